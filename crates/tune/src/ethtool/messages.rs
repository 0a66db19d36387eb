//! Messages of the family "ethtool", and of "nlctrl", which knows the family's number.
//!
//! ```text
//!   netlink header │ command, version, 0, 0 │ header { interface, flags } │ attributes
//! ```
//!
//! Numbers are from `include/uapi/linux/{genetlink,ethtool_netlink}.h`.

use std::collections::BTreeSet;
use testudo_wire::netlink::attribute::{RawAttribute, attributes};
use testudo_wire::netlink::datagram::{Datagram, MessageBuilder};
use testudo_wire::netlink::{HEADER_BYTES, Header, Message, flag};

/// Bytes of the header of generic netlink.
const GENERIC_BYTES: usize = 4;
/// The number of the family that knows all others.
pub const CONTROL: u16 = 0x10;
/// The most features that are taken from an answer; Linux 6 has 60.
const MAX_BITS: usize = 1024;

/// Commands.
pub mod command {
    /// `CTRL_CMD_GETFAMILY`.
    pub const GET_FAMILY: u8 = 3;
    /// `ETHTOOL_MSG_FEATURES_GET`.
    pub const FEATURES_GET: u8 = 11;
    /// `ETHTOOL_MSG_FEATURES_SET`.
    pub const FEATURES_SET: u8 = 12;
    /// `ETHTOOL_MSG_RINGS_GET`.
    pub const RINGS_GET: u8 = 15;
    /// `ETHTOOL_MSG_RINGS_SET`.
    pub const RINGS_SET: u8 = 16;
    /// `ETHTOOL_MSG_COALESCE_GET`.
    pub const COALESCE_GET: u8 = 19;
    /// `ETHTOOL_MSG_COALESCE_SET`.
    pub const COALESCE_SET: u8 = 20;
}

/// Attributes of rings.
pub mod ring {
    /// The most descriptors of a receive ring.
    pub const RX_MAX: u16 = 2;
    /// The most descriptors of a transmit ring.
    pub const TX_MAX: u16 = 5;
    /// Descriptors of a receive ring.
    pub const RX: u16 = 6;
    /// Descriptors of a transmit ring.
    pub const TX: u16 = 9;
}

/// Attributes of coalescing.
pub mod coalesce {
    /// Microseconds until the interrupt, 32 bits.
    pub const RX_USECS: u16 = 2;
    /// Packets until the interrupt, 32 bits.
    pub const RX_MAX_FRAMES: u16 = 3;
    /// Whether the driver chooses them, 8 bits.
    pub const USE_ADAPTIVE_RX: u16 = 11;
}

const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// Every message's first attribute, and what is in it.
const HEADER: u16 = 1;
const HEADER_NAME: u16 = 2;
const FEATURES_HARDWARE: u16 = 2;
const FEATURES_WANTED: u16 = 3;
const FEATURES_ACTIVE: u16 = 4;
const FEATURES_NO_CHANGE: u16 = 5;
const SET_NO_MASK: u16 = 1;
const SET_BITS: u16 = 3;
const BIT: u16 = 1;
const BIT_NAME: u16 = 2;
const BIT_VALUE: u16 = 3;

/// Asks for the number of a family.
pub fn ask_family(datagram: &mut Datagram, sequence: u32, name: &str) {
    let mut message = start(datagram, CONTROL, sequence, command::GET_FAMILY);
    message.attribute(FAMILY_NAME, &terminated(name));
    message.finish();
}

/// A request about an interface, with what `build` appends.
pub fn ask(
    datagram: &mut Datagram,
    [family, sequence]: [u32; 2],
    command: u8,
    interface: &str,
    build: impl FnOnce(&mut MessageBuilder<'_>),
) {
    let family = u16::try_from(family).unwrap_or(CONTROL);
    let mut message = start(datagram, family, sequence, command);
    message.nested(HEADER, |header| header.attribute(HEADER_NAME, &terminated(interface)));
    build(&mut message);
    message.finish();
}

/// Appends the change of one feature.
pub fn change_feature(message: &mut MessageBuilder<'_>, name: &str, is_on: bool) {
    message.nested(FEATURES_WANTED, |set| {
        set.nested(SET_BITS, |bits| {
            bits.nested(BIT, |bit| {
                bit.attribute(BIT_NAME, &terminated(name));
                if is_on {
                    bit.attribute(BIT_VALUE, &[]);
                }
            });
        });
    });
}

fn start(datagram: &mut Datagram, kind: u16, sequence: u32, command: u8) -> MessageBuilder<'_> {
    let flags = flag::REQUEST | flag::ACK;
    let mut message = datagram.message(Header { kind, flags, sequence, ..Header::default() });
    message.body(&[command, 1, 0, 0]);
    message
}

fn terminated(text: &str) -> Vec<u8> {
    [text.as_bytes(), &[0]].concat()
}

/// The attributes of an answer, as far as their lengths are right.
fn parts<'a>(message: &Message<'a>) -> impl Iterator<Item = RawAttribute<'a>> {
    let bytes = message.payload().get(GENERIC_BYTES..).unwrap_or_default();
    attributes(bytes, HEADER_BYTES + GENERIC_BYTES).map_while(Result::ok)
}

/// The number of the family that was asked for.
#[must_use]
pub fn family(message: &Message<'_>) -> Option<u16> {
    let id = parts(message).find(|part| part.kind == FAMILY_ID)?;
    Some(u16::from_ne_bytes(*id.value.first_chunk()?))
}

/// A number of 32 or 8 bits in an answer; nothing if it has no such attribute.
#[must_use]
pub fn number(message: &Message<'_>, kind: u16) -> Option<u32> {
    let part = parts(message).find(|part| part.kind == kind)?;
    match *part.value {
        [byte] => Some(u32::from(byte)),
        [a, b, c, d] => Some(u32::from_ne_bytes([a, b, c, d])),
        _ => None,
    }
}

/// The offloads of an interface, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Features {
    /// Those that the device can switch.
    pub switchable: BTreeSet<String>,
    /// Those that are requested.
    pub requested: BTreeSet<String>,
    /// Those that are on.
    pub active: BTreeSet<String>,
    /// Those that there are.
    pub known: BTreeSet<String>,
}

impl Features {
    /// Reads an answer to [`command::FEATURES_GET`].
    #[must_use]
    pub fn read(message: &Message<'_>) -> Self {
        let mut features = Self::default();
        let mut fixed = BTreeSet::new();
        for part in parts(message) {
            match part.kind {
                FEATURES_HARDWARE => (features.switchable, features.known) = bits(&part),
                FEATURES_WANTED => features.requested = bits(&part).0,
                FEATURES_ACTIVE => features.active = bits(&part).0,
                FEATURES_NO_CHANGE => fixed = bits(&part).0,
                _ => {}
            }
        }
        features.switchable.retain(|name| !fixed.contains(name));
        features
    }
}

/// The names of the bits of a set that are set, and of all that it lists.
fn bits(set: &RawAttribute<'_>) -> (BTreeSet<String>, BTreeSet<String>) {
    let parts = || set.nested().map_while(Result::ok);
    let has_mask = !parts().any(|part| part.kind == SET_NO_MASK);
    let (mut chosen, mut listed) = (BTreeSet::new(), BTreeSet::new());
    let bits = parts().filter(|part| part.kind == SET_BITS);
    for bit in bits.flat_map(|bits| bits.nested().map_while(Result::ok)).take(MAX_BITS) {
        let inner = || bit.nested().map_while(Result::ok);
        let Some(name) = inner().find(|part| part.kind == BIT_NAME) else { continue };
        let name = name.value.strip_suffix(&[0]).unwrap_or(name.value);
        let name = String::from_utf8_lossy(name).into_owned();
        if !has_mask || inner().any(|part| part.kind == BIT_VALUE) {
            chosen.insert(name.clone());
        }
        listed.insert(name);
    }
    (chosen, listed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use testudo_wire::netlink::messages;

    fn names(list: &[&str]) -> BTreeSet<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    /// A set as the kernel writes it.
    fn set(message: &mut MessageBuilder<'_>, kind: u16, has_mask: bool, bits: &[(&str, bool)]) {
        message.nested(kind, |set| {
            if !has_mask {
                set.attribute(SET_NO_MASK, &[]);
            }
            set.nested(SET_BITS, |list| {
                for (name, is_set) in bits {
                    list.nested(BIT, |bit| {
                        bit.attribute(BIT_NAME, &terminated(name));
                        if *is_set {
                            bit.attribute(BIT_VALUE, &[]);
                        }
                    });
                }
            });
        });
    }

    fn answer() -> Datagram {
        let mut datagram = Datagram::new();
        let mut message = start(&mut datagram, 30, 7, 11);
        set(&mut message, FEATURES_HARDWARE, true, &[("rx-gro", true), ("rx-lro", false), ("loop", true)]);
        set(&mut message, FEATURES_WANTED, false, &[("rx-gro", false)]);
        set(&mut message, FEATURES_ACTIVE, false, &[("rx-gro", false), ("loop", false)]);
        set(&mut message, FEATURES_NO_CHANGE, false, &[("loop", false)]);
        message.finish();
        datagram
    }

    #[test]
    fn features_are_read_from_sets_with_masks_and_without() {
        let datagram = answer();
        let message = messages(datagram.as_bytes()).next().unwrap().unwrap();
        let features = Features::read(&message);
        assert_eq!(features.switchable, names(&["rx-gro"]));
        assert_eq!(features.known, names(&["rx-gro", "rx-lro", "loop"]));
        assert_eq!(features.requested, names(&["rx-gro"]));
        assert_eq!(features.active, names(&["rx-gro", "loop"]));
    }

    /// Lengths that lie end the reading, and nothing panics.
    #[test]
    fn an_answer_that_is_cut_or_changed_anywhere_is_read_without_a_panic() {
        let datagram = answer();
        let whole = datagram.as_bytes();
        let read = |bytes: &[u8]| {
            for message in messages(bytes).map_while(Result::ok) {
                let features = Features::read(&message);
                assert!(features.known.len() <= 4, "{features:?}");
                let _ = (family(&message), number(&message, ring::RX));
            }
        };
        for end in 0..whole.len() {
            let mut cut = whole[..end].to_vec();
            if let Some(length) = cut.first_chunk_mut() {
                *length = u32::try_from(end).unwrap().to_ne_bytes();
            }
            read(&cut);
            for byte in [0, 1, 0x7f, 0xff] {
                let mut changed = whole.to_vec();
                changed[end] = byte;
                read(&changed);
            }
        }
    }

    #[test]
    fn numbers_have_32_or_8_bits() {
        let mut datagram = Datagram::new();
        let mut message = start(&mut datagram, 30, 7, 19);
        message.attribute(coalesce::RX_USECS, &64_u32.to_ne_bytes());
        message.attribute(coalesce::USE_ADAPTIVE_RX, &[1]);
        message.attribute(9, &[1, 2]);
        message.finish();
        let message = messages(datagram.as_bytes()).next().unwrap().unwrap();
        assert_eq!([2, 11, 9, 8].map(|kind| number(&message, kind)), [Some(64), Some(1), None, None]);
    }
}
