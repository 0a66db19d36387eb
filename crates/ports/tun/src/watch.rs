//! Whether an interface is up, and addresses that the host gets, from the kernel's change messages
//! (rtnetlink(7), RTNLGRP_LINK, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR).
//!
//! When an administrator takes an interface down, it loses its routes and its IPv6 addresses; bringing it up
//! again restores none of them. Nor does an address that the host loses and gets again, at any interface,
//! restore the routes that had it as their source. The program that configured the interface has to restore
//! them.

use crate::configure::{IFA_ADDRESS, IFA_LOCAL, RTM_NEWADDR, RTM_NEWLINK};
use crate::error::ConfigureError;
use crate::netlink::{HEADER_BYTES, Message, Netlink};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const RTM_GETLINK: u16 = 18;
const IFF_UP: u32 = 1;

/// Bytes of `struct ifaddrmsg`.
const ADDRESS_MESSAGE_BYTES: usize = 8;

/// A change of an interface, or of the host's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkChange {
    /// It was taken down.
    Down,
    /// It was brought up again, without its routes.
    Up,
    /// The host has got an address, or has it still, at any interface.
    Address(IpAddr),
}

/// Watches one interface, and the addresses of all.
pub struct LinkWatch {
    netlink: Netlink,
    index: u32,
    /// `None` after messages were lost: it may have been down in the meantime.
    is_up: Option<bool>,
}

impl LinkWatch {
    /// Watches `interface`, which is up.
    ///
    /// # Errors
    /// [`ConfigureError`] with the kernel's error.
    pub fn open(interface: &str) -> Result<Self, ConfigureError> {
        let failed = |source| ConfigureError::new(format!("watch the interface {interface}"), source);
        let netlink = Netlink::of_changes().map_err(failed)?;
        let index = netlink.index_of(interface).map_err(failed)?;
        let mut watch = Self { netlink, index, is_up: Some(true) };
        watch.ask().map_err(failed)?;
        Ok(watch)
    }

    /// The changes since the last call, in order. Never blocks.
    ///
    /// # Errors
    /// The kernel reports no more changes.
    pub fn changes(&mut self) -> io::Result<Vec<LinkChange>> {
        let mut changes = Vec::new();
        loop {
            match self.netlink.receive() {
                Ok(Some(datagram)) => changes.extend(note(&mut self.is_up, datagram, self.index)),
                Ok(None) => return Ok(changes),
                // More messages came than the socket's buffer holds.
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {
                    self.is_up = None;
                    self.ask()?;
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// Requests the interface's state, which the kernel then reports like a change.
    fn ask(&mut self) -> io::Result<()> {
        let mut body = [0; 16];
        body[4..8].copy_from_slice(&self.index.to_ne_bytes());
        self.netlink.send(Message::new(RTM_GETLINK, 0, &body))
    }
}

/// Reads the messages about interface `index` and about addresses from a datagram, and updates `is_up`.
fn note(is_up: &mut Option<bool>, mut datagram: &[u8], index: u32) -> Vec<LinkChange> {
    let mut changes = Vec::new();
    while let Some(header) = datagram.first_chunk::<HEADER_BYTES>() {
        let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let Some(message) = datagram.get(HEADER_BYTES..length) else { break };
        match u16::from_ne_bytes([header[4], header[5]]) {
            RTM_NEWLINK => changes.extend(link(is_up, message, index)),
            RTM_NEWADDR => changes.extend(address(message).map(LinkChange::Address)),
            _ => {}
        }
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    changes
}

/// The change that a message about an interface brings.
fn link(is_up: &mut Option<bool>, message: &[u8], index: u32) -> Option<LinkChange> {
    // `struct ifinfomsg`: index and flags.
    let [_, _, _, _, a, b, c, d, e, f, g, h, ..] = message else { return None };
    if u32::from_ne_bytes([*a, *b, *c, *d]) != index {
        return None;
    }
    let now = u32::from_ne_bytes([*e, *f, *g, *h]) & IFF_UP != 0;
    let before = is_up.replace(now);
    (before != Some(now)).then_some(if now { LinkChange::Up } else { LinkChange::Down })
}

/// The address that a message is about: of a point-to-point interface, our end.
fn address(message: &[u8]) -> Option<IpAddr> {
    let mut attributes = message.get(ADDRESS_MESSAGE_BYTES..)?;
    let (mut local, mut other) = (None, None);
    while let Some(&[a, b, c, d]) = attributes.first_chunk::<4>() {
        let length = usize::from(u16::from_ne_bytes([a, b]));
        let Some(value) = attributes.get(4..length) else { break };
        match u16::from_ne_bytes([c, d]) {
            IFA_LOCAL => local = parse(value),
            IFA_ADDRESS => other = parse(value),
            _ => {}
        }
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    local.or(other)
}

fn parse(octets: &[u8]) -> Option<IpAddr> {
    match octets.len() {
        4 => octets.first_chunk::<4>().map(|octets| Ipv4Addr::from(*octets).into()),
        _ => octets.first_chunk::<16>().map(|octets| Ipv6Addr::from(*octets).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, index: u32, flags: u32) -> Vec<u8> {
        let mut bytes = vec![0; 32];
        bytes[..4].copy_from_slice(&32_u32.to_ne_bytes());
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[20..24].copy_from_slice(&index.to_ne_bytes());
        bytes[24..28].copy_from_slice(&flags.to_ne_bytes());
        bytes
    }

    #[test]
    fn changes_of_the_interface_itself_are_reported_once_each() {
        let mut is_up = Some(true);
        let up = message(RTM_NEWLINK, 7, IFF_UP | 0x40);
        let down = message(RTM_NEWLINK, 7, 0x40);
        let other = message(RTM_NEWLINK, 8, 0);
        assert_eq!(note(&mut is_up, &[up.clone(), other.clone()].concat(), 7), []);
        let both = [down.clone(), down.clone(), other, up.clone()].concat();
        assert_eq!(note(&mut is_up, &both, 7), [LinkChange::Down, LinkChange::Up]);
        assert_eq!(note(&mut is_up, &message(RTM_GETLINK, 7, 0), 7), []);
        is_up = None;
        assert_eq!(note(&mut is_up, &up, 7), [LinkChange::Up], "it may have been down meanwhile");
        assert_eq!(note(&mut is_up, &down, 7), [LinkChange::Down]);
    }

    /// `struct ifaddrmsg` and attributes.
    fn new_address(attributes: &[(u16, &str)]) -> Vec<u8> {
        let mut bytes = vec![0; 16 + 8];
        for (kind, text) in attributes {
            let octets = match text.parse().unwrap() {
                IpAddr::V4(address) => address.octets().to_vec(),
                IpAddr::V6(address) => address.octets().to_vec(),
            };
            bytes.extend(u16::try_from(4 + octets.len()).unwrap().to_ne_bytes());
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(octets);
        }
        let length = u32::try_from(bytes.len()).unwrap();
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        bytes[4..6].copy_from_slice(&RTM_NEWADDR.to_ne_bytes());
        bytes
    }

    #[test]
    fn addresses_of_any_interface_are_reported() {
        for (attributes, expected) in [
            (&[(IFA_ADDRESS, "192.0.2.1"), (IFA_LOCAL, "192.0.2.1")][..], Some("192.0.2.1")),
            (&[(IFA_ADDRESS, "192.0.2.9"), (IFA_LOCAL, "192.0.2.1")], Some("192.0.2.1")),
            (&[(IFA_ADDRESS, "2001:db8::1"), (6, "192.0.2.9")], Some("2001:db8::1")),
            (&[(6, "192.0.2.9")], None),
        ] {
            let expected: Vec<_> =
                expected.iter().map(|text| LinkChange::Address(text.parse().unwrap())).collect();
            let message = new_address(attributes);
            assert_eq!(note(&mut Some(true), &message, 7), expected);
            for cut in 0..message.len() {
                assert_eq!(note(&mut Some(true), &message[..cut], 7), [], "{cut} bytes");
            }
        }
        let mut lying = new_address(&[(IFA_LOCAL, "192.0.2.1")]);
        for length in [0_u16, 3, 5, 9, u16::MAX] {
            lying[24..26].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(note(&mut Some(true), &lying, 7), [], "{length}");
        }
    }

    #[test]
    fn truncated_messages_and_wrong_lengths_report_nothing() {
        let down = message(RTM_NEWLINK, 7, 0);
        for length in 0..down.len() {
            assert_eq!(note(&mut Some(true), &down[..length], 7), [], "{length} bytes");
        }
        for said in [0_u32, 1, 15, 16, 27, 33, u32::MAX] {
            let mut lying = down.clone();
            lying[..4].copy_from_slice(&said.to_ne_bytes());
            assert_eq!(note(&mut Some(true), &lying, 7), [], "{said}");
        }
    }
}
