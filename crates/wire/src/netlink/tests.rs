//! Messages, attributes and acknowledgements, against the rules of Linux `net/netlink/af_netlink.c` and
//! `lib/nlattr.c`.

use super::ack::{AckOptions, Answer, Refusal, TEXT};
use super::attribute::{BrokenAttribute, NESTED, NETWORK_ORDER, attributes};
use super::datagram::Datagram;
use super::errno::Errno;
use super::{Header, flag, kind, messages};

/// A request of type 20 with the sequence number 7, whose body has `bytes` bytes.
fn request(bytes: usize) -> Datagram {
    let mut datagram = Datagram::new();
    let header =
        Header { kind: 20, flags: flag::REQUEST | flag::ACK, sequence: 7, port: 99, ..Header::default() };
    let mut message = datagram.message(header);
    message.body(&vec![0xAB; bytes]);
    message.finish();
    datagram
}

fn answers(datagram: &Datagram) -> Vec<Answer> {
    messages(datagram.as_bytes()).filter_map(|message| Answer::read(&message.expect("whole"))).collect()
}

#[test]
fn messages_and_attributes_are_padded_and_lengths_leave_the_padding_out() {
    let mut datagram = Datagram::new();
    let mut message = datagram.message(Header { kind: 20, ..Header::default() });
    message.body(&[1]);
    message.attribute(5, &[2, 3, 4, 5, 6]);
    message.nested(6, |inner| {
        inner.attribute(7, &[8]);
        inner.attribute(9, &[]);
    });
    message.finish();
    let bytes = datagram.as_bytes();
    assert_eq!(bytes.len(), 16 + 4 + 12 + 4 + 8 + 4);
    assert_eq!(messages(bytes).next().expect("one").expect("whole").header.length as usize, bytes.len());
    let read: Vec<_> = attributes(&bytes[20..], 20).map(|attribute| attribute.expect("whole")).collect();
    assert_eq!((read[0].kind, read[0].value, read[0].offset), (5, &[2, 3, 4, 5, 6][..], 20));
    assert_eq!((read[1].kind, read[1].flags, read[1].offset), (6, NESTED, 32));
    let inner: Vec<_> = read[1].nested().map(|attribute| attribute.expect("whole")).collect();
    assert_eq!((inner[0].kind, inner[0].value, inner[0].offset), (7, &[8][..], 36));
    assert_eq!((inner[1].kind, inner[1].value, inner[1].offset), (9, &[][..], 44));
}

/// The padding after the last attribute may be missing (`nla_next()` in Linux).
#[test]
fn the_last_attribute_needs_no_padding() {
    let bytes = [5, 0, 1, 0, 9, 0, 0, 0, 6, 0, 2, 0x40, 9, 8];
    let read: Vec<_> = attributes(&bytes, 0).map(|attribute| attribute.expect("whole")).collect();
    assert_eq!((read[1].kind, read[1].flags, read[1].value), (2, NETWORK_ORDER, &[9, 8][..]));
}

#[test]
fn an_attribute_whose_length_is_wrong_ends_them_with_an_error() {
    for (bytes, length) in
        [(&[9, 0, 1, 0, 0, 0, 0, 0][..], 9), (&[3, 0, 1, 0], 3), (&[8, 0, 1], 0), (&[0; 8], 0)]
    {
        let mut all = attributes(bytes, 100);
        assert_eq!(all.next(), Some(Err(BrokenAttribute { offset: 100, length, bytes: bytes.len() })));
        assert_eq!(all.next(), None);
    }
}

#[test]
fn an_acknowledgement_has_what_its_socket_asked_for() {
    let request = request(10);
    let request = messages(request.as_bytes()).next().expect("one").expect("whole");
    let refusal = Refusal::new(Errno::INVAL, "no such mode").at(40);
    for (capped, extended) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut datagram = Datagram::new();
        datagram.ack(&request, 99, Err(&refusal), AckOptions { capped, extended });
        let quoted = if capped { 16 } else { request.bytes.len() };
        let message = messages(datagram.as_bytes()).next().expect("one").expect("whole");
        assert_eq!(&message.payload()[4..4 + quoted], &request.bytes[..quoted]);
        assert_eq!((message.header.sequence, message.header.port, message.header.kind), (7, 99, kind::ERROR));
        assert_eq!(
            (message.header.has(flag::CAPPED), message.header.has(flag::ACK_TLVS)),
            (capped, extended)
        );
        // Text with its NUL, padded, and offset.
        assert_eq!(datagram.len(), Answer::OVERHEAD_BYTES + quoted + if extended { 4 + 16 + 8 } else { 0 });
        let answer = &answers(&datagram)[0];
        assert_eq!((answer.code, answer.request), (-22, request.header));
        assert_eq!(answer.text.as_deref(), extended.then_some("no such mode"));
        assert_eq!(answer.offset, extended.then_some(40));
    }
}

#[test]
fn success_quotes_the_header_alone() {
    let request = request(100);
    let request = messages(request.as_bytes()).next().expect("one").expect("whole");
    let mut datagram = Datagram::new();
    datagram.ack(&request, 99, Ok(()), AckOptions { capped: false, extended: true });
    assert_eq!(datagram.len(), Answer::OVERHEAD_BYTES + 16);
    let message = messages(datagram.as_bytes()).next().expect("one").expect("whole");
    assert_eq!(message.header.flags, flag::CAPPED);
    assert_eq!((answers(&datagram)[0].code, answers(&datagram)[0].text.as_deref()), (0, None));
}

/// Lengths in an acknowledgement are its sender's word.
#[test]
fn a_broken_acknowledgement_is_none() {
    let request = request(0);
    let request = messages(request.as_bytes()).next().expect("one").expect("whole");
    let mut datagram = Datagram::new();
    let refusal = Refusal::new(Errno::INVAL, "x");
    datagram.ack(&request, 99, Err(&refusal), AckOptions { capped: false, extended: true });
    let read = |bytes: &[u8]| Answer::read(&messages(bytes).next()?.ok()?);
    assert!(read(datagram.as_bytes()).is_some());
    for length in [0u32, 15, 17, 40, 1 << 20, u32::MAX] {
        let mut wrong = datagram.as_bytes().to_vec();
        wrong[20..24].copy_from_slice(&length.to_ne_bytes());
        let answer = read(&wrong);
        assert!(answer.is_none_or(|answer| answer.text.as_deref() != Some("x")), "{length}");
    }
    assert_eq!(TEXT, 1);
}

/// Where memory moves it is made anew, so that none is left with keys in it.
#[test]
fn a_datagram_keeps_its_messages_when_it_grows_and_can_drop_the_last() {
    let mut datagram = Datagram::with_capacity(32);
    let mut expected = Vec::new();
    for n in 0..100u8 {
        let mut message = datagram.message(Header { kind: 20, sequence: n.into(), ..Header::default() });
        message.body(&[n; 20]);
        assert_eq!((message.len(), message.is_empty()), (36, false));
        message.finish();
        expected.push(u32::from(n));
    }
    let all = |datagram: &Datagram| -> Vec<u32> {
        messages(datagram.as_bytes()).map(|message| message.expect("whole").header.sequence).collect()
    };
    assert_eq!(all(&datagram), expected);
    datagram.truncate(36 * 99);
    assert_eq!(all(&datagram), expected[..99]);
    datagram.clear();
    assert!(datagram.is_empty());
}
