//! What netlink knows of a client's socket and a Unix socket does not: told by `libtestudo-xfrm.so` in the
//! first message of a connection, and again when it changes (`struct hello` in `shim/testudo-xfrm.c`). With
//! `NLM_F_ACK` it is acknowledged after it has taken effect.
//!
//! The gateway bids welcome: it says which process it is, by a number of chance. A library that has
//! known another one learns by this that its program's SAs and policies are gone (`shim/renewal.c`), and has
//! said in its own hello since when.

use super::process_name::ProcessName;
use super::renewal::Outlived;
use super::server::Client;
use testudo_wire::netlink::ack::AckOptions;
use testudo_wire::netlink::datagram::Datagram;
use testudo_wire::netlink::{Header, Message, kind};

/// "TXFR"
const MAGIC: u32 = 0x5246_5854;
const VERSION: u32 = 1;
/// Where the process's name begins, after eight words.
const NAME_AT: usize = 32;
/// Numbers of netlink's options, as in `linux/netlink.h`.
const CAP_ACK: u32 = 10;
const EXT_ACK: u32 = 11;

/// Which process a gateway is, by chance.
pub(super) type Identity = [u32; 4];

/// What the library is to know of the gateway, ahead of the acknowledgement of its hello (`struct welcome` in
/// `shim/link.c`).
#[derive(Debug, Clone, Copy)]
pub(super) struct Welcome {
    /// The mark of packets that pass all policies; 0 for none.
    pub(super) mark: u32,
    pub(super) identity: Identity,
}

impl Welcome {
    pub(super) fn written(&self, port: u32) -> Datagram {
        let mut datagram = Datagram::new();
        let header = Header { kind: kind::NOOP, port, ..Header::default() };
        let mut message = datagram.message(header);
        message.body([MAGIC, VERSION, self.mark].map(u32::to_ne_bytes).as_flattened());
        message.body(self.identity.map(u32::to_ne_bytes).as_flattened());
        message.finish();
        datagram
    }
}

/// A client's socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) port: u32,
    /// Bit n - 1 is group n.
    pub(super) groups: u32,
    /// Bit n is option n.
    options: u32,
    /// What it says of the connection that it had before; `None` if it had none, or does not say.
    pub(super) outlived: Option<Outlived>,
    /// Whether its library knows of welcomes.
    pub(super) is_welcomed: bool,
    /// What the process is called, if its library says.
    name: Option<ProcessName>,
}

impl Hello {
    /// Reads one; `None` if the message is something else.
    pub(super) fn read(message: &Message<'_>) -> Option<Self> {
        if message.header.kind != kind::NOOP {
            return None;
        }
        let (words, _) = message.payload().as_chunks();
        let words: Vec<u32> = words.iter().map(|word| u32::from_ne_bytes(*word)).collect();
        let [MAGIC, VERSION, port, groups, options, ref more @ ..] = words[..] else { return None };
        let outlived = match *more {
            [tunnels, low, high, ..] => {
                let lost_ms = u64::from(high) << 32 | u64::from(low);
                Some(Outlived { lost_ms, tunnels }).filter(|_| lost_ms != 0)
            }
            _ => None,
        };
        let name = message.payload().get(NAME_AT..).and_then(<[u8]>::first_chunk);
        let name = name.and_then(|name| ProcessName::read(*name));
        Some(Self { port, groups, options, outlived, is_welcomed: more.len() >= 3, name })
    }

    /// What answers need of it.
    pub(super) fn client(&self) -> Client {
        let has = |option: u32| self.options & (1 << option) != 0;
        let acks = AckOptions { capped: has(CAP_ACK), extended: has(EXT_ACK) };
        Client { port: self.port, acks, name: self.name, ..Client::default() }
    }

    /// Whether it listens to a group.
    pub(super) fn hears(&self, group: u32) -> bool {
        group.checked_sub(1).is_some_and(|bit| bit < u32::BITS && self.groups & (1 << bit) != 0)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use testudo_wire::netlink::{Header, messages};

    /// What the library sends.
    pub(in super::super) fn bytes(header: Header, groups: u32, options: u32) -> Vec<u8> {
        let header = Header { length: 36, kind: kind::NOOP, ..header };
        let rest = [MAGIC, VERSION, header.port, groups, options].map(u32::to_ne_bytes);
        [&header.to_bytes()[..], rest.as_flattened()].concat()
    }

    /// The same of one whose program had SAs at a gateway before.
    pub(in super::super) fn outliving(header: Header, groups: u32, lost_ms: u64, tunnels: u32) -> Vec<u8> {
        let [low, high] =
            [lost_ms & u64::from(u32::MAX), lost_ms >> 32].map(|half| u32::try_from(half).unwrap());
        let more = [tunnels, low, high].map(u32::to_ne_bytes);
        let mut whole = [bytes(header, groups, 0), more.as_flattened().to_vec()].concat();
        whole[0] = 48;
        whole
    }

    #[test]
    fn the_process_says_its_name_or_an_older_library_none() {
        let old = outliving(of_port(1), 0, 7, 3);
        assert_eq!(read(&old).unwrap().client().name, None);
        let mut new = [&old[..], b"pluto\0\0\0\0\0\0\0\0\0\0\0"].concat();
        new[..4].copy_from_slice(&64_u32.to_ne_bytes());
        let hello = read(&new).unwrap();
        assert_eq!(hello.client().name.unwrap().to_string(), "pluto");
        assert_eq!((hello.is_welcomed, hello.outlived), (true, read(&old).unwrap().outlived));
        let at = new.len() - 16;
        new[at..at + 5].copy_from_slice(b"\x1b[2J!");
        assert_eq!(read(&new).unwrap().client().name, None);
    }

    fn of_port(port: u32) -> Header {
        Header { port, ..Header::default() }
    }

    fn read(bytes: &[u8]) -> Option<Hello> {
        messages(bytes).next().and_then(|message| Hello::read(&message.ok()?))
    }

    #[test]
    fn ports_groups_and_options_are_read() {
        let hello = read(&bytes(of_port(4711), 0b101, 1 << EXT_ACK)).unwrap();
        assert_eq!((hello.client().port, hello.client().acks.extended), (4711, true));
        assert!(!hello.client().acks.capped);
        assert!(hello.hears(1) && !hello.hears(2) && hello.hears(3) && !hello.hears(0) && !hello.hears(33));
    }

    #[test]
    fn what_a_library_says_of_the_gateway_before_is_read() {
        let hello = |lost_ms, tunnels| read(&outliving(of_port(1), 2, lost_ms, tunnels)).unwrap();
        assert_eq!(hello(7 << 32 | 9, 3).outlived, Some(Outlived { lost_ms: 7 << 32 | 9, tunnels: 3 }));
        assert_eq!((hello(0, 3).outlived, hello(0, 3).is_welcomed), (None, true));
        let of_before = read(&bytes(of_port(1), 2, 3)).unwrap();
        assert_eq!((of_before.outlived, of_before.is_welcomed), (None, false));
    }

    #[test]
    fn what_is_cut_or_of_another_version_is_none() {
        let whole = bytes(of_port(1), 2, 3);
        assert!((0..whole.len()).all(|length| read(&whole[..length]).is_none()));
        let mut other = whole;
        other[20] = 2;
        assert_eq!(read(&other), None);
    }
}
