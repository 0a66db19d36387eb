//! What charon, pluto and the gateway say to each other (`tests/ike/record.py`): each message is read, and
//! built again byte for byte.

use crate::captures::{DAEMONS, assert_same, of_xfrm, read, rebuilt, recorded};
use std::collections::BTreeSet;
use testudo_wire::netlink::{self, HEADER_BYTES};
use testudo_wire::xfrm::kind;

/// The bytes of a message. In the structure of XFRMA_ENCAP two bytes fill a gap; pluto leaves in them what
/// its stack had there.
fn without_gaps(message: &netlink::Message) -> Vec<u8> {
    const ENCAPSULATION: u16 = 4;
    let mut bytes = message.bytes.to_vec();
    let is_sa = [kind::NEW_SA, kind::UPDATE_SA].contains(&message.header.kind);
    let mut at = HEADER_BYTES + 224;
    while is_sa && at + 4 <= bytes.len() {
        let [length, kind] = [at, at + 2].map(|at| u16::from_ne_bytes([bytes[at], bytes[at + 1]]));
        if kind == ENCAPSULATION {
            bytes[at + 10..at + 12].fill(0);
        }
        at += usize::from(length.max(4)).next_multiple_of(4);
    }
    bytes
}

#[test]
fn messages_of_daemons_and_their_answers_are_built_again_byte_for_byte() {
    let mut seen = BTreeSet::new();
    for datagram in recorded(DAEMONS) {
        for message in of_xfrm(&datagram.bytes) {
            assert_same(&rebuilt(&read(&message), &message), &without_gaps(&message), datagram.command);
            seen.insert((datagram.is_sent, message.header.kind));
        }
    }
    for told in [kind::ACQUIRE, kind::EXPIRE, kind::MAPPING] {
        assert!(seen.contains(&(false, told)), "{told:#x}");
    }
}
