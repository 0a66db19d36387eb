//! iproute2's requests: each is read, says what the command line said, and is built again byte for byte.

use crate::captures::{IPROUTE2, assert_same, of_xfrm, read, rebuilt, recorded};
use crate::command::expected;
use std::collections::HashSet;
use testudo_wire::xfrm::attribute::Attribute;
use testudo_wire::xfrm::message::Body;

/// In one order: programs order their attributes as they like.
fn sorted(attributes: impl IntoIterator<Item = Attribute>) -> Vec<Attribute> {
    let mut all: Vec<_> = attributes.into_iter().collect();
    all.sort_by_key(Attribute::kind);
    all
}

#[test]
fn requests_say_what_the_command_line_said() {
    let mut kinds = HashSet::new();
    for datagram in recorded(IPROUTE2).iter().filter(|datagram| datagram.is_sent) {
        for message in of_xfrm(&datagram.bytes) {
            let said = read(&message);
            // deleteall dumps first, then deletes what it has found: that is in no command line.
            let Some(expected) = expected(datagram.command) else { continue };
            if expected.body.kind() != said.body.kind() {
                assert!(datagram.command.contains("deleteall"), "{}: {said:?}", datagram.command);
                continue;
            }
            kinds.insert(said.body.kind());
            assert_eq!(said.body, expected.body, "{}", datagram.command);
            let (said, expected) = (said.attributes.iter().cloned(), expected.attributes.iter().cloned());
            assert_eq!(sorted(said), sorted(expected), "{}", datagram.command);
        }
    }
    assert!(kinds.len() >= 15, "{kinds:?}");
}

#[test]
fn requests_are_built_again_byte_for_byte() {
    for datagram in recorded(IPROUTE2).iter().filter(|datagram| datagram.is_sent) {
        for message in of_xfrm(&datagram.bytes) {
            assert_same(&rebuilt(&read(&message), &message), message.bytes, datagram.command);
        }
    }
}

#[test]
fn a_dump_is_told_from_a_single_answer_by_the_flags() {
    let all = recorded(IPROUTE2);
    let bodies = |command: &str| -> Vec<Body> {
        let sent = all.iter().filter(|datagram| datagram.is_sent && datagram.command == command);
        sent.flat_map(|datagram| {
            of_xfrm(&datagram.bytes).iter().map(|message| read(message).body).collect::<Vec<_>>()
        })
        .collect()
    };
    assert_eq!(bodies("ip xfrm state list"), [Body::DumpSas]);
    assert_eq!(bodies("ip xfrm policy list"), [Body::DumpPolicies]);
    let get = bodies("ip xfrm state get src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x9999");
    assert!(matches!(get[..], [Body::GetSa(id)] if id.spi == 0x9999));
}
