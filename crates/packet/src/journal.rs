//! What happens to single packets, for somebody who looks for a fault: counters say how many were dropped, a
//! journal says which.
//!
//! ```text
//!   received ──► assigned, once to each SA ──► sent
//!      │                                       dropped
//!      └──► derived: a fragment of it,         joined: its bytes are in another packet now
//!           or a message about it
//! ```
//!
//! A packet is known by the [identity](Buffer::identity) of its buffer, which stays the same until the buffer
//! is recycled, or the packet is moved to a longer one. A [pool](crate::Pool) without a journal pays a branch
//! for each packet that is dropped, created or merged, and its worker one for each batch.

use crate::{Buffer, DropReason};
use std::time::Duration;

/// A record of a packet file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'p> {
    /// Name of the port that read it.
    pub port: &'p str,
    /// Its number in the file, from 1.
    pub number: u64,
    /// When it was captured, since the start of 1970; `None` where the file does not say.
    pub time: Option<Duration>,
}

/// An SA that a packet goes through, or that refuses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passage {
    /// The SA, as jobs name it.
    pub sa: u32,
    /// Whether it is one towards the peer.
    pub is_outbound: bool,
    /// The packet's sequence number, whole.
    pub sequence: u64,
    /// Where in the packet the text begins that is sealed or opened, in bytes; 0 for a packet that is
    /// refused.
    pub text_start: usize,
    /// The first four bytes of its header of IPsec, as they are sent or came: the SPI of ESP, Sender ID and
    /// Window ID of VPE. Of AH, whose datagrams are judged as a masked copy, they say nothing.
    pub head: [u8; 4],
}

/// Is told what happens to each packet.
pub trait Journal: Send {
    /// A port has read `packet`; it is empty where the record holds no datagram, or none that fits.
    fn received(&mut self, packet: &Buffer, record: Record<'_>);

    /// `packet` was made of another one: a fragment of it, or a message about it.
    fn derived(&mut self, packet: &Buffer, from: &Buffer);

    /// A packet was moved from one buffer to a longer one.
    fn moved(&mut self, from: &Buffer, to: &Buffer);

    /// The bytes of `part` are in `whole` now.
    fn joined(&mut self, part: &Buffer, whole: &Buffer);

    /// `packet` is about to be sealed or opened by an SA, or this SA refuses it.
    fn assigned(&mut self, packet: &Buffer, passage: Passage);

    /// A port sends `packet` as number `number`, from 1. Returns when the packet that it came from was
    /// captured.
    fn sent(&mut self, packet: &Buffer, port: &str, number: u64) -> Option<Duration>;

    /// `packet` is dropped.
    fn dropped(&mut self, packet: &Buffer, reason: DropReason);
}
