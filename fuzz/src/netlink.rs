//! Netlink messages.

use testudo_wire::ethernet::MacAddress;
use testudo_wire::netlink::ack::{AckOptions, Answer};
use testudo_wire::netlink::datagram::Datagram;
use testudo_wire::netlink::{HEADER_BYTES, messages};
use testudo_wire::rtnetlink::RtMessage;
use testudo_wire::xfrm::message::Message;

/// Each message of a datagram is refused or read. What is read is the same when it has been written and read
/// again, so that no length in it is one that its bytes do not bear out; what is refused points into the
/// message.
pub fn xfrm_messages(data: &[u8]) {
    let mut bytes = 0;
    for message in messages(data) {
        let Ok(message) = message else { break };
        bytes += message.bytes.len();
        assert!(message.bytes.len() >= HEADER_BYTES && bytes <= data.len());
        let _ = Answer::read(&message);
        let mut built = Datagram::new();
        match Message::read(&message) {
            Ok(read) => {
                read.write(message.header, &mut built);
                assert!(built.len() <= message.bytes.len().next_multiple_of(4));
                let again = messages(built.as_bytes()).next().expect("a message").expect("whole");
                assert_eq!(Message::read(&again).as_ref(), Ok(&read));
            }
            Err(refusal) => {
                assert!(refusal.errno.0 > 0 && !refusal.text.is_empty());
                assert!(refusal.offset.is_none_or(|offset| offset < message.bytes.len()));
                built.ack(&message, 1, Err(&refusal), AckOptions { capped: false, extended: true });
                let ack = messages(built.as_bytes()).next().expect("a message").expect("whole");
                let answer = Answer::read(&ack).expect("an acknowledgement");
                assert_eq!((answer.code, answer.request), (refusal.errno.code(), message.header));
                assert_eq!(answer.text, Some(refusal.text));
            }
        }
    }
}

/// Each message about routes and neighbours is refused or read; a prefix fits its network, and a neighbour is
/// one host.
pub fn rt_messages(data: &[u8]) {
    for message in messages(data).map_while(Result::ok) {
        match RtMessage::read(&message) {
            Ok(Some(RtMessage::Route(route))) => {
                assert!(route.prefix_bits <= if route.network.is_ipv4() { 32 } else { 128 });
                // Each way takes 8 bytes of the message at least.
                assert!(8 * route.hops.len() <= message.bytes.len());
            }
            Ok(Some(RtMessage::Neighbour { address, .. })) => {
                assert_eq!(MacAddress::of_group(address), None);
            }
            Ok(Some(RtMessage::RouteRemoved) | None) | Err(_) => {}
        }
    }
}
