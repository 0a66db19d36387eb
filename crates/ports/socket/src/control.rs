//! Control messages (cmsg(3)), which accompany a datagram. Written and read as bytes, with every length
//! checked.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Room for all messages that we send or request, except for extension headers: at most five of them.
pub(crate) const CONTROL_BYTES: usize = 144;
/// `struct cmsghdr`: a length as long as a pointer, level and type.
const HEADER_BYTES: usize = size_of::<usize>() + 8;

/// A buffer for control messages, aligned as the kernel requires.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct Control {
    bytes: [u8; CONTROL_BYTES],
    length: usize,
}

/// Bytes of a [`ControlArea`].
const AREA_BYTES: usize = 1024;

/// Room for the control data of one message that may have IPv6 extension headers. Longer data is cut.
#[derive(Debug, Clone)]
#[repr(C, align(8))]
pub struct ControlArea {
    bytes: [u8; AREA_BYTES],
    length: usize,
}

/// The kernel's information about a datagram.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct About {
    /// Size of each datagram, if several arrived together.
    pub gro_size: Option<usize>,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// TTL or Hop Limit, if the socket reports it.
    pub hop_limit: Option<u8>,
    /// Flow label of IPv6, 20 bits; 0 if the socket does not report it.
    pub flow_label: u32,
    /// Where it was sent to.
    pub destination: Option<IpAddr>,
}

impl Control {
    pub(crate) const EMPTY: Self = Self { bytes: [0; CONTROL_BYTES], length: 0 };

    /// Adds a message. A message that does not fit is omitted; ours fit, see the tests.
    pub(crate) fn push(&mut self, level: i32, kind: i32, data: &[u8]) {
        let at = self.length;
        let end = at + align(HEADER_BYTES) + align(data.len());
        let Some(message) = self.bytes.get_mut(at..end) else { return };
        message.fill(0);
        let length = align(HEADER_BYTES) + data.len();
        message[..size_of::<usize>()].copy_from_slice(&length.to_ne_bytes());
        message[size_of::<usize>()..][..4].copy_from_slice(&level.to_ne_bytes());
        message[size_of::<usize>() + 4..][..4].copy_from_slice(&kind.to_ne_bytes());
        message[align(HEADER_BYTES)..length].copy_from_slice(data);
        self.length = end;
    }

    /// Requests a traffic class.
    pub(crate) fn push_traffic_class(&mut self, is_v6: bool, traffic_class: u8) {
        let value = i32::from(traffic_class).to_ne_bytes();
        if is_v6 {
            self.push(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &value);
        } else {
            self.push(libc::IPPROTO_IP, libc::IP_TOS, &value);
        }
    }

    /// Requests a TTL or Hop Limit, at least 1.
    pub(crate) fn push_hop_limit(&mut self, is_v6: bool, hop_limit: u8) {
        let value = i32::from(hop_limit).to_ne_bytes();
        if is_v6 {
            self.push(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, &value);
        } else {
            self.push(libc::IPPROTO_IP, libc::IP_TTL, &value);
        }
    }

    /// Requests a flow label of IPv6, 20 bits (RFC 8200 3: the low bits of the header's first word).
    pub(crate) fn push_flow_label(&mut self, flow_label: u32) {
        self.push(libc::IPPROTO_IPV6, libc::IPV6_FLOWINFO, &flow_label.to_be_bytes());
    }

    /// Requests segmentation.
    pub(crate) fn push_segment_size(&mut self, bytes: u16) {
        self.push(libc::SOL_UDP, libc::UDP_SEGMENT, &bytes.to_ne_bytes());
    }

    /// Requests a source address.
    pub(crate) fn push_source(&mut self, source: IpAddr) {
        match source {
            IpAddr::V4(a) => {
                // struct in_pktinfo: interface index, source, destination.
                let mut info = [0; 12];
                info[4..8].copy_from_slice(&a.octets());
                self.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
            }
            IpAddr::V6(a) => {
                // struct in6_pktinfo: address, interface index.
                let mut info = [0; 20];
                info[..16].copy_from_slice(&a.octets());
                self.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            }
        }
    }

    /// The bytes for the kernel to read.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// All bytes, for the kernel to write to.
    pub(crate) fn storage(&mut self) -> &mut [u8; CONTROL_BYTES] {
        &mut self.bytes
    }

    /// Parses what the kernel wrote to [`storage`](Self::storage), `length` bytes of it.
    pub(crate) fn read(&self, length: usize) -> About {
        About::read(self.bytes.get(..length).unwrap_or_default())
    }
}

impl ControlArea {
    /// Without data.
    pub const EMPTY: Self = Self { bytes: [0; AREA_BYTES], length: 0 };

    /// Replaces its content by `control`, in the layout of cmsg(3), for a socket that is not the kernel's.
    /// Returns whether all of it fits; else it is cut.
    #[must_use]
    pub fn fill(&mut self, control: &[u8]) -> bool {
        self.length = control.len().min(AREA_BYTES);
        self.bytes[..self.length].copy_from_slice(&control[..self.length]);
        self.length == control.len()
    }

    /// Its content.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// All bytes, for the kernel to write to.
    pub(crate) fn storage(&mut self) -> &mut [u8; AREA_BYTES] {
        &mut self.bytes
    }

    /// Notes how many bytes the kernel wrote to [`storage`](Self::storage).
    pub(crate) fn set_length(&mut self, length: usize) {
        self.length = length.min(AREA_BYTES);
    }
}

impl About {
    /// Parses control messages in memory layout (cmsg(3)). Parsing ends at the first invalid length.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Self {
        let mut about = Self::default();
        let mut rest = bytes;
        while let Some((level, kind, data, after)) = next_message(rest) {
            about.take(level, kind, data);
            rest = after;
        }
        about
    }

    fn take(&mut self, level: i32, kind: i32, data: &[u8]) {
        match (level, kind) {
            (libc::SOL_UDP, libc::UDP_GRO) => {
                let size = data.first_chunk().and_then(|b| usize::try_from(i32::from_ne_bytes(*b)).ok());
                self.gro_size = size.filter(|&n| n > 0);
            }
            // One byte for IPv4, an int for IPv6.
            (libc::IPPROTO_IP, libc::IP_TOS) => self.traffic_class = data.first().copied().unwrap_or(0),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                let value = data.first_chunk().map_or(0, |b| i32::from_ne_bytes(*b));
                self.traffic_class = u8::try_from(value).unwrap_or(0);
            }
            // The first word of the header, without its version (RFC 8200 3).
            (libc::IPPROTO_IPV6, libc::IPV6_FLOWINFO) => {
                let word = data.first_chunk().map_or(0, |b| u32::from_be_bytes(*b));
                self.traffic_class = (word >> 20).to_le_bytes()[0];
                self.flow_label = word & 0xF_FFFF;
            }
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                let value = data.first_chunk().map(|b| i32::from_ne_bytes(*b));
                self.hop_limit = value.and_then(|value| u8::try_from(value).ok());
            }
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                let address = data.get(8..12).and_then(|b| b.first_chunk::<4>());
                self.destination = address.map(|b| IpAddr::V4(Ipv4Addr::from(*b)));
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                self.destination = data.first_chunk::<16>().map(|b| IpAddr::V6(Ipv6Addr::from(*b)));
            }
            _ => {}
        }
    }
}

/// Level, type and data of the first message, and the bytes after it.
pub(crate) fn next_message(bytes: &[u8]) -> Option<(i32, i32, &[u8], &[u8])> {
    let length = usize::from_ne_bytes(*bytes.first_chunk()?);
    let level = i32::from_ne_bytes(*bytes.get(size_of::<usize>()..)?.first_chunk()?);
    let kind = i32::from_ne_bytes(*bytes.get(size_of::<usize>() + 4..)?.first_chunk()?);
    let data = bytes.get(align(HEADER_BYTES)..length)?;
    Some((level, kind, data, bytes.get(align(length)..).unwrap_or_default()))
}

fn align(n: usize) -> usize {
    n.saturating_add(size_of::<usize>() - 1) & !(size_of::<usize>() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_sent_at_once_fits() {
        let mut control = Control::EMPTY;
        control.push_traffic_class(true, 3);
        control.push_segment_size(1400);
        control.push_source(IpAddr::V6(Ipv6Addr::LOCALHOST));
        control.push_hop_limit(true, 255);
        control.push_flow_label(0xF_FFFF);
        let kinds: Vec<_> = std::iter::successors(next_message(control.bytes()), |m| next_message(m.3))
            .map(|(level, kind, data, _)| (level, kind, data.len()))
            .collect();
        let expected = [
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, 4),
            (libc::SOL_UDP, libc::UDP_SEGMENT, 2),
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, 20),
            (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, 4),
            (libc::IPPROTO_IPV6, libc::IPV6_FLOWINFO, 4),
        ];
        assert_eq!(kinds, expected);
    }

    #[test]
    fn control_messages_of_the_kernel_are_read() {
        let mut control = Control::EMPTY;
        control.push(libc::IPPROTO_IP, libc::IP_TOS, &[0xB9]);
        control.push(libc::SOL_UDP, libc::UDP_GRO, &1400i32.to_ne_bytes());
        control.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &[0, 0, 0, 0, 1, 1, 1, 1, 192, 0, 2, 7]);
        control.push(libc::IPPROTO_IP, libc::IP_TTL, &255i32.to_ne_bytes());
        let length = control.bytes().len();
        let expected = About {
            gro_size: Some(1400),
            traffic_class: 0xB9,
            hop_limit: Some(255),
            flow_label: 0,
            destination: Some("192.0.2.7".parse().unwrap()),
        };
        assert_eq!(control.read(length), expected);
        for cut in 0..length {
            let _ = control.read(cut);
        }
    }

    /// RFC 8200 3: after the version, 8 bits of traffic class and 20 of flow label.
    #[test]
    fn the_first_word_of_an_ipv6_header_is_read() {
        let mut control = Control::EMPTY;
        control.push(libc::IPPROTO_IPV6, libc::IPV6_FLOWINFO, &[0x0B, 0x9F, 0xED, 0xCB]);
        let expected = About { traffic_class: 0xB9, flow_label: 0xF_EDCB, ..About::default() };
        assert_eq!(control.read(control.bytes().len()), expected);
    }

    #[test]
    fn lengths_that_lie_end_the_reading() {
        for lie in [0, 1, 15, 1000, usize::MAX] {
            let mut control = Control::EMPTY;
            control.push(libc::SOL_UDP, libc::UDP_GRO, &1400i32.to_ne_bytes());
            control.bytes[..size_of::<usize>()].copy_from_slice(&lie.to_ne_bytes());
            assert_eq!(control.read(CONTROL_BYTES), About::default(), "{lie}");
        }
    }
}
