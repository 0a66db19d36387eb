//! Whether an interface is up, from the kernel's change messages (rtnetlink(7), RTNLGRP_LINK).
//!
//! When an administrator takes an interface down, it loses its routes and its IPv6 addresses; bringing it up
//! again restores none of them. The program that configured the interface has to restore them.

use crate::configure::RTM_NEWLINK;
use crate::error::ConfigureError;
use crate::netlink::{HEADER_BYTES, Message, Netlink};
use std::io;

const RTM_GETLINK: u16 = 18;
const IFF_UP: u32 = 1;

/// A change of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkChange {
    /// It was taken down.
    Down,
    /// It was brought up again, without its routes.
    Up,
}

/// Watches one interface.
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
        let netlink = Netlink::of_links().map_err(failed)?;
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

/// Reads the messages about interface `index` from a datagram, and updates `is_up`.
fn note(is_up: &mut Option<bool>, mut datagram: &[u8], index: u32) -> Vec<LinkChange> {
    let mut changes = Vec::new();
    while let Some(header) = datagram.first_chunk::<HEADER_BYTES>() {
        let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let Some(message) = datagram.get(HEADER_BYTES..length) else { break };
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        // `struct ifinfomsg`: index and flags.
        if let (RTM_NEWLINK, [_, _, _, _, a, b, c, d, e, f, g, h, ..]) = (kind, message)
            && u32::from_ne_bytes([*a, *b, *c, *d]) == index
        {
            let now = u32::from_ne_bytes([*e, *f, *g, *h]) & IFF_UP != 0;
            if *is_up != Some(now) {
                changes.push(if now { LinkChange::Up } else { LinkChange::Down });
            }
            *is_up = Some(now);
        }
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    changes
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
