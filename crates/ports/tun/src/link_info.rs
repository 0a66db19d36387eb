//! What rtnetlink(7) says of a TUN interface: how many queues it may have and has.

use crate::netlink::{HEADER_BYTES, Message, Netlink};
use testudo_wire::netlink::attribute::{Attributes, attributes};

const RTM_GETLINK: u16 = 18;
/// `struct ifinfomsg`.
const INFO_BYTES: usize = 16;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
/// Of `linux/if_link.h`, since Linux 4.20.
const IFLA_TUN_MULTI_QUEUE: u16 = 7;
const IFLA_TUN_NUM_QUEUES: u16 = 8;
const IFLA_TUN_NUM_DISABLED_QUEUES: u16 = 9;

/// A TUN or TAP interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LinkInfo {
    /// Whether it may have several queues.
    pub multi_queue: bool,
    /// Queues that somebody has open.
    queues: u32,
}

impl LinkInfo {
    /// That of the interface of this name; `None` if there is none, it is of another kind, or the kernel does
    /// not say.
    pub(crate) fn of(name: &str) -> Option<Self> {
        let name = [name.as_bytes(), &[0]].concat();
        let message = Message::new(RTM_GETLINK, 0, &[0; INFO_BYTES]).attribute(IFLA_IFNAME, &name);
        Self::read(Netlink::open().ok()?.ask(message).ok()?)
    }

    /// From a message about an interface.
    fn read(message: impl AsRef<[u8]>) -> Option<Self> {
        let start = HEADER_BYTES + INFO_BYTES;
        let length = message.as_ref().first_chunk::<4>().map(|four| u32::from_ne_bytes(*four))?;
        let message = message.as_ref().get(start..usize::try_from(length).ok()?)?;
        let info = value(attributes(message, start), IFLA_LINKINFO)?;
        if value(attributes(info, 0), IFLA_INFO_KIND)? != b"tun\0" {
            return None;
        }
        let data = value(attributes(info, 0), IFLA_INFO_DATA)?;
        let count = |kind| {
            let four = value(attributes(data, 0), kind)?.first_chunk::<4>()?;
            Some(u32::from_ne_bytes(*four))
        };
        let multi_queue = value(attributes(data, 0), IFLA_TUN_MULTI_QUEUE)?.first().is_some_and(|b| *b != 0);
        // Left out where there are none, and for interfaces with a single queue.
        let queues = [IFLA_TUN_NUM_QUEUES, IFLA_TUN_NUM_DISABLED_QUEUES].into_iter().filter_map(count).sum();
        Some(Self { multi_queue, queues })
    }

    /// Whether a program has some of its several queues.
    pub(crate) fn is_in_use(self) -> bool {
        self.multi_queue && self.queues > 0
    }
}

fn value(mut attributes: Attributes<'_>, kind: u16) -> Option<&[u8]> {
    let found = attributes.find(|attribute| attribute.as_ref().map_or(true, |found| found.kind == kind))?;
    found.ok().map(|attribute| attribute.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(4 + value.len()).unwrap();
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend_from_slice(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn message(kind: &[u8], data: &[Vec<u8>]) -> Vec<u8> {
        let info = [attribute(1, kind), attribute(2, &data.concat())].concat();
        let mut bytes = vec![0; HEADER_BYTES + INFO_BYTES];
        bytes.extend(attribute(3, b"tun0\0"));
        bytes.extend(attribute(IFLA_LINKINFO, &info));
        let length = u32::try_from(bytes.len()).unwrap();
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        bytes
    }

    #[test]
    fn queues_are_read_from_a_message_and_no_cut_one_is_believed() {
        let data =
            [attribute(7, &[1]), attribute(8, &3_u32.to_ne_bytes()), attribute(9, &1_u32.to_ne_bytes())];
        let whole = message(b"tun\0", &data);
        let info = LinkInfo::read(&whole).unwrap();
        assert_eq!((info, info.is_in_use()), (LinkInfo { multi_queue: true, queues: 4 }, true));
        let single = LinkInfo::read(message(b"tun\0", &data[..0])).is_none();
        assert!(single, "an old kernel does not say");
        let idle = LinkInfo::read(message(b"tun\0", &data[..1])).unwrap();
        assert!(idle.multi_queue && !idle.is_in_use());
        assert_eq!(LinkInfo::read(message(b"veth\0", &data)), None);
        for length in 0..whole.len() {
            assert_eq!(LinkInfo::read(&whole[..length]), None, "{length} bytes");
        }
    }
}
