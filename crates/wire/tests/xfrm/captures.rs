//! What foreign programs sent and received, recorded by a library loaded before libc that wrote down each
//! netlink datagram, or by the recorder of `crates/testudo/tests/ike`. Each file says at its top which
//! programs these were.

use testudo_wire::netlink::datagram::Datagram;
use testudo_wire::netlink::{self, messages};
use testudo_wire::xfrm::message::Message;

/// Requests of iproute2, and what a kernel answered and told it.
pub const IPROUTE2: &str = include_str!("captures/iproute2.txt");

/// Requests of strongSwan's charon.
pub const STRONGSWAN: &str = include_str!("captures/strongswan.txt");

/// What daemons and the gateway say to each other.
pub const DAEMONS: &str = include_str!("captures/daemons.txt");

/// A datagram of a recording.
pub struct Recorded {
    /// The command line before it.
    pub command: &'static str,
    /// Whether the program sent it; otherwise the kernel did.
    pub is_sent: bool,
    pub bytes: Vec<u8>,
}

pub fn unhex(digits: &str) -> Vec<u8> {
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    assert!(rest.is_empty(), "a digit is missing");
    let byte =
        |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("a digit");
    pairs.iter().map(byte).collect()
}

/// The datagrams of a recording: `# command`, then `sent HEX` and `received HEX`.
pub fn recorded(text: &'static str) -> Vec<Recorded> {
    let (mut command, mut all) = ("", Vec::new());
    for line in text.lines().filter(|line| !line.starts_with("//")) {
        let (word, rest) = line.split_once(' ').expect("two words");
        match word {
            "#" => command = rest,
            "sent" | "received" => {
                all.push(Recorded { command, is_sent: word == "sent", bytes: unhex(rest) });
            }
            other => panic!("{other}"),
        }
    }
    assert!(!all.is_empty(), "an empty recording");
    all
}

/// The messages of the XFRM protocol in a datagram; acknowledgements and ends of dumps are not among them.
pub fn of_xfrm(datagram: &[u8]) -> Vec<netlink::Message<'_>> {
    let all = messages(datagram).map(|message| message.expect("whole"));
    all.filter(|message| message.header.kind >= netlink::kind::FIRST_OF_PROTOCOL).collect()
}

pub fn read(message: &netlink::Message) -> Message {
    Message::read(message).unwrap_or_else(|refusal| panic!("{message:?}: {refusal}"))
}

/// The message, built again under the same header.
pub fn rebuilt(read: &Message, message: &netlink::Message) -> Vec<u8> {
    let mut datagram = Datagram::new();
    read.write(message.header, &mut datagram);
    datagram.as_bytes().to_vec()
}

/// Both are the same message. `ip` leaves out the padding after a short structure without attributes; the
/// kernel and we have it.
pub fn assert_same(built: &[u8], recorded: &[u8], what: &str) {
    let padded = recorded.len().next_multiple_of(4);
    let mut whole = recorded.to_vec();
    whole.resize(padded, 0);
    whole[..4].copy_from_slice(&(padded as u32).to_ne_bytes());
    assert_eq!(built, whole, "{what}");
}
