//! Lengths that are too short are refused with the errno that Linux 6.18 gave when it was sent the same
//! messages, with every attribute at every length.

use crate::examples;
use fastrand::Rng;
use testudo_wire::netlink::ack::Refusal;
use testudo_wire::netlink::datagram::Datagram;
use testudo_wire::netlink::errno::Errno;
use testudo_wire::netlink::{Header, messages};
use testudo_wire::xfrm::attribute::{Attribute, MAX_ATTRIBUTES};
use testudo_wire::xfrm::kind;
use testudo_wire::xfrm::message::Message;

/// The kernel's shortest value of each attribute, from number 1 on: `ERANGE` below, up to 32.
const SHORTEST: [usize; 32] = [
    68, 68, 68, 24, 64, 224, 168, 8, 32, 12, 4, 4, 16, 16, 8, 6, 76, 72, 40, 72, 8, 4, 24, 4, 1, 36, 0, 8, 4,
    4, 4, 4,
];
/// From number 33 on: exactly so many, otherwise `EINVAL`.
const EXACT: [usize; 3] = [1, 4, 4];
/// The shortest body of each type, from 0x10 on.
const BODIES: [usize; 25] =
    [224, 24, 24, 168, 64, 64, 232, 280, 232, 168, 224, 176, 1, 0, 48, 48, 60, 64, 4, 4, 4, 4, 64, 3, 3];

/// A message of a type, a body of zeros, and attributes.
fn read(kind: u16, body: usize, attributes: &[(u16, &[u8])]) -> Result<Message, Refusal> {
    let mut datagram = Datagram::new();
    let mut message = datagram.message(Header { kind, flags: 1, ..Header::default() });
    message.body(&vec![0; body]);
    attributes.iter().for_each(|(kind, value)| message.attribute(*kind, value));
    message.finish();
    Message::read(&messages(datagram.as_bytes()).next().expect("a message").expect("whole"))
}

fn refusal(kind: u16, body: usize, attributes: &[(u16, &[u8])]) -> Refusal {
    read(kind, body, attributes).expect_err("a refusal")
}

#[test]
fn attributes_that_are_too_short_are_refused_as_the_kernel_refuses_them() {
    for (number, shortest) in (1..).zip(SHORTEST) {
        for length in 0..shortest + 4 {
            let said = read(kind::GET_SA, 24, &[(31, &[0; 4]), (number, &vec![0; length])]);
            if length < shortest {
                let refusal = said.expect_err("too short");
                assert_eq!(
                    (refusal.errno, refusal.offset),
                    (Errno::RANGE, Some(16 + 24 + 8)),
                    "{number}: {refusal}"
                );
                assert!(refusal.text.contains(&length.to_string()), "{refusal}");
                assert!(refusal.text.starts_with("XFRMA_"), "{refusal}");
            } else if let Err(refusal) = said {
                // Zeros beyond the shortest are fine, but for templates and migrations, which come whole.
                assert_eq!(refusal.errno, Errno::INVAL, "{number}: {refusal}");
                assert!([5, 8, 17].contains(&number), "{number}, {length}: {refusal}");
            }
        }
    }
    for (number, exact) in (33..).zip(EXACT) {
        for length in 0..exact + 4 {
            let said = read(kind::GET_SA, 24, &[(number, &vec![1; length])]);
            assert_eq!(said.is_ok(), length == exact, "{number}, {length}: {said:?}");
            said.inspect_err(|refusal| assert_eq!(refusal.errno, Errno::INVAL)).ok();
        }
    }
}

#[test]
fn bodies_that_are_too_short_are_refused_as_the_kernel_refuses_them() {
    for (kind, bytes) in (0x10..).zip(BODIES) {
        let mut datagram = Datagram::new();
        for length in 0..bytes + 1 {
            // Bodies are padded; a message that ends before its padding has its true length.
            datagram.clear();
            let mut message = datagram.message(Header { kind, flags: 1, ..Header::default() });
            message.body(&vec![0; length]);
            message.finish();
            let mut cut = datagram.as_bytes()[..16 + length].to_vec();
            cut[..4].copy_from_slice(&(16 + length as u32).to_ne_bytes());
            let said = Message::read(&messages(&cut).next().expect("a message").expect("whole"));
            if length < bytes {
                let refusal = said.expect_err("too short");
                assert_eq!((refusal.errno, refusal.offset), (Errno::INVAL, None), "{kind:#x}: {refusal}");
            } else if length == bytes {
                assert!(said.is_ok(), "{kind:#x}, {length}: {said:?}");
            }
        }
    }
    for kind in [0, 3, 0xF, 0x29, 0x2A, u16::MAX] {
        assert_eq!(refusal(kind, 300, &[]).errno, Errno::INVAL, "{kind:#x}");
    }
}

/// What Linux 6.18 gave for each of these: `EINVAL`, but `ERANGE` for a direction.
#[test]
fn what_does_not_fit_inside_of_an_attribute_is_refused_as_the_kernel_refuses_it() {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
    let aead = |bits: u32, key: usize| [&[b'a'; 63][..], &[0], &words(&[bits, 128]), &vec![0; key]].concat();
    let context = [&9u16.to_ne_bytes()[..], &[8, 0, 1, 1], &1u16.to_ne_bytes()].concat();
    let esn = |bitmap: u32, bytes: usize| [&words(&[bitmap, 0, 0, 0, 0, 32])[..], &vec![0; bytes]].concat();
    for (number, value, errno) in [
        (5, vec![0; 7 * 64], Errno::INVAL),
        (8, context, Errno::INVAL),
        (17, vec![0; 7 * 76], Errno::INVAL),
        (18, aead(168, 20), Errno::INVAL),
        (18, aead(u32::MAX, 20), Errno::INVAL),
        (23, esn(129, 129 * 4), Errno::INVAL),
        (23, esn(4, 8), Errno::INVAL),
        (23, esn(u32::MAX, 0), Errno::INVAL),
        (33, vec![0], Errno::RANGE),
        (33, vec![3], Errno::RANGE),
    ] {
        let refusal = refusal(kind::NEW_SA, 224, &[(number, &value)]);
        assert_eq!((refusal.errno, refusal.offset), (errno, Some(240)), "{number}: {refusal}");
    }
    for (number, value) in [(18, aead(160, 20)), (23, esn(128, 128 * 4)), (23, esn(4, 0)), (33, vec![2])] {
        assert!(read(kind::NEW_SA, 224, &[(number, &value)]).is_ok(), "{number}");
    }
    let thresholds: [(u16, &[u8], Errno); 3] =
        [(3, &[33, 0], Errno::INVAL), (3, &[1], Errno::RANGE), (4, &[129, 0], Errno::INVAL)];
    for (number, value, errno) in thresholds {
        assert_eq!(refusal(kind::SPD_INFO, 4, &[(number, value)]).errno, errno, "{number}");
    }
}

/// Where the kernel reads on, or ends silently.
#[test]
fn what_is_cut_off_is_refused_where_the_kernel_passes_over_it() {
    assert_eq!(refusal(kind::NEW_SA, 224, &[(5, &[0; 65])]).errno, Errno::INVAL);
    let endless = [&[b'x'; 64][..], &[0; 4]].concat();
    let no_end = refusal(kind::NEW_SA, 224, &[(2, &endless)]);
    assert!(no_end.text.contains("no end within 64"), "{no_end}");
    let message = |tail: &[u8]| {
        let bytes = [&[0; 16][..], &[0; 168], tail].concat();
        let header = Header { length: bytes.len() as u32, kind: kind::NEW_POLICY, ..Header::default() };
        [&header.to_bytes(), &bytes[16..]].concat()
    };
    for (tail, said) in [(&[12, 0, 21, 0, 0, 0, 0, 0][..], 12), (&[1, 2], 0), (&[3, 0, 21, 0], 3)] {
        let bytes = message(tail);
        let refusal =
            Message::read(&messages(&bytes).next().expect("a message").expect("whole")).expect_err("cut");
        assert_eq!((refusal.errno, refusal.offset), (Errno::INVAL, Some(184)), "{refusal}");
        assert!(refusal.text.contains(&format!("says that it has {said} bytes")), "{refusal}");
    }
    let many: Vec<(u16, &[u8])> = (0..=MAX_ATTRIBUTES).map(|_| (31, &[0; 4][..])).collect();
    assert!(read(kind::NEW_SA, 224, &many[1..]).is_ok());
    assert_eq!(refusal(kind::NEW_SA, 224, &many).errno, Errno::INVAL);
}

#[test]
fn of_several_attributes_of_one_type_the_last_counts() {
    let both: [(u16, &[u8]); 2] = [(31, &7u32.to_ne_bytes()), (31, &9u32.to_ne_bytes())];
    let read = read(kind::NEW_SA, 224, &both).expect("fine");
    assert_eq!((read.attributes.if_id(), read.attributes.iter().count()), (Some(&9), 2));
}

#[test]
fn unknown_attributes_are_kept_and_the_flags_of_a_type_are_masked() {
    let odd: [(u16, &[u8]); 3] = [(40, &[1, 2, 3]), (0, &[]), (31 | 1 << 15 | 1 << 14, &[0; 4])];
    let read = read(kind::NEW_SA, 224, &odd).expect("fine");
    assert_eq!(read.attributes.unknown().collect::<Vec<_>>(), [40, 0]);
    assert_eq!(read.attributes.if_id(), Some(&0));
    let value = vec![1, 2, 3];
    assert_eq!(read.attributes.iter().next(), Some(&Attribute::Unknown { kind: 40, value }));
}

/// A request for a dump may have anything after its header: old programs send a family there.
#[test]
fn a_dump_is_read_up_to_what_is_no_attribute() {
    let dump = |payload: &[u8]| {
        let header = Header {
            length: 16 + payload.len() as u32,
            kind: kind::GET_SA,
            flags: 0x301,
            ..Header::default()
        };
        let bytes = [&header.to_bytes(), payload].concat();
        let message = messages(&bytes).next().expect("a message").expect("whole");
        Message::read(&message).expect("a dump").attributes
    };
    assert_eq!(dump(&[10, 0, 0, 0]).iter().count(), 0);
    let protocol = [5, 0, 25, 0, 50, 0, 0, 0];
    assert_eq!(dump(&protocol).protocol(), Some(&50));
    assert_eq!(dump(&[&protocol[..], &[9, 0, 0, 0]].concat()).protocol(), Some(&50));
}

#[test]
fn a_key_is_never_shown() {
    let mut rng = Rng::with_seed(5);
    for number in [1, 2, 18, 20] {
        let shown = format!("{:?}", examples::attribute(number, &mut rng));
        assert!(shown.contains("bits }") || shown.contains("bits, icv_bits"), "{shown}");
    }
    let datagram = examples::datagram(&examples::messages(&mut rng)[0]);
    assert_eq!(format!("{datagram:?}"), format!("Datagram of {} bytes", datagram.len()));
}
