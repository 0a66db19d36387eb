//! Damaged messages: each is refused or read, none panics, and what is read has lengths that fit its bytes.

use crate::captures::{DAEMONS, IPROUTE2, STRONGSWAN, recorded};
use crate::examples;
use fastrand::Rng;
use testudo_wire::netlink::ack::Answer;
use testudo_wire::netlink::datagram::Datagram;
use testudo_wire::netlink::{HEADER_BYTES, NetlinkError, messages};
use testudo_wire::xfrm::message::Message;

/// Everything that was recorded, and a message of every type from each of a few seeds.
fn datagrams() -> Vec<Vec<u8>> {
    let recorded =
        [IPROUTE2, STRONGSWAN, DAEMONS].into_iter().flat_map(recorded).map(|datagram| datagram.bytes);
    let made = (0..4).flat_map(|seed| examples::messages(&mut Rng::with_seed(seed)));
    recorded.chain(made.map(|message| examples::datagram(&message).as_bytes().to_vec())).collect()
}

/// Reads all messages of a datagram; returns how many were accepted. Those are written again, and read again
/// as the same: so no length in them is one that their bytes do not bear out.
fn read_all(datagram: &[u8], what: &str) -> usize {
    let mut accepted = 0;
    for message in messages(datagram) {
        let Ok(message) = message else { break };
        assert!(message.bytes.len() >= HEADER_BYTES && message.bytes.len() <= datagram.len(), "{what}");
        let _ = Answer::read(&message);
        let Ok(read) = Message::read(&message) else { continue };
        accepted += 1;
        let mut built = Datagram::new();
        read.write(message.header, &mut built);
        // What is longer than its structure, or was cut off after a dump, is not built again.
        assert!(built.len() <= message.bytes.len().next_multiple_of(4), "{what}: {read:?}");
        let again = messages(built.as_bytes()).next().expect("a message").expect("whole");
        assert_eq!(Message::read(&again).as_ref(), Ok(&read), "{what}");
    }
    accepted
}

#[test]
fn every_truncation_is_refused_by_name_or_read() {
    for datagram in datagrams() {
        for length in 0..datagram.len() {
            let what = format!("{length} bytes of {datagram:02x?}");
            read_all(&datagram[..length], &what);
            // Without the rest, the last message is longer than the datagram.
            let broken = messages(&datagram[..length]).filter_map(Result::err).count();
            assert!(broken <= 1, "{what}");
        }
        // With the length in the header cut as well, what is cut off is in the message.
        let first = messages(&datagram).next().expect("a message").expect("whole");
        for length in HEADER_BYTES..first.bytes.len() {
            let mut cut = first.bytes[..length].to_vec();
            cut[..4].copy_from_slice(&(length as u32).to_ne_bytes());
            read_all(&cut, &format!("a message of {length} bytes: {cut:02x?}"));
        }
    }
}

#[test]
fn random_damage_is_refused_or_read() {
    let (mut accepted, mut refused) = (0, 0);
    for (number, datagram) in datagrams().into_iter().enumerate() {
        let seed = number as u64;
        let mut rng = Rng::with_seed(seed);
        for _ in 0..2000 {
            let mut damaged = datagram.clone();
            for _ in 0..rng.usize(1..5) {
                let at = rng.usize(..damaged.len());
                damaged[at] = if rng.bool() { rng.u8(..) } else { damaged[at] ^ (1 << rng.u8(..8)) };
            }
            let read = read_all(&damaged, &format!("seed {seed}: {damaged:02x?}"));
            *(if read == 0 { &mut refused } else { &mut accepted }) += 1;
        }
    }
    assert!(accepted > 1000 && refused > 1000, "{accepted} accepted, {refused} refused");
}

#[test]
fn a_datagram_says_where_it_is_broken() {
    let whole = examples::datagram(&examples::messages(&mut Rng::with_seed(1))[14]);
    let two = [whole.as_bytes(), whole.as_bytes()].concat();
    let length = whole.len();
    let errors = |bytes: &[u8]| messages(bytes).filter_map(Result::err).collect::<Vec<_>>();
    assert_eq!(errors(&two), []);
    assert_eq!(errors(&two[..length + 9]), [NetlinkError::NoHeader { offset: length, bytes: 9 }]);
    let short = length + HEADER_BYTES;
    let said = length as u32;
    assert_eq!(
        errors(&two[..short]),
        [NetlinkError::TooLong { offset: length, length: said, bytes: HEADER_BYTES }]
    );
    let mut wrong = two;
    wrong[length..length + 4].copy_from_slice(&15u32.to_ne_bytes());
    assert_eq!(errors(&wrong), [NetlinkError::TooShort { offset: length, length: 15 }]);
}
