//! A slow model of the windows of an SA of VPE, by which those of one worker and those of several are judged.

use std::collections::{BTreeMap, BTreeSet};
use testudo_packet::DropReason;
use testudo_wire::vpe::VpeHeader;

/// Packets that a window spans.
pub(super) const SIZE: u32 = 64;

pub(super) fn header(window: u16, number: u64) -> VpeHeader {
    VpeHeader { sender: 0, window, number, spi: 0x1000 }
}

/// All numbers ever received, window by window.
#[derive(Default)]
pub(super) struct Model {
    /// By Sender ID and Window ID.
    pub(super) received: BTreeMap<(u16, u16), BTreeSet<u64>>,
    pub(super) floor: u64,
    pub(super) limit: usize,
}

impl Model {
    pub(super) fn take(&mut self, window: (u16, u16), number: u64) -> Result<(), DropReason> {
        let count = self.received.len();
        let is_new = !self.received.contains_key(&window);
        if is_new && number <= self.floor {
            return Err(DropReason::ReplayTooOld);
        }
        if is_new && count >= self.limit {
            return Err(DropReason::VpeWindows);
        }
        let seen = self.received.entry(window).or_default();
        let top = seen.last().copied().unwrap_or(0).max(self.floor);
        if number == 0 || number + u64::from(SIZE) <= top {
            return Err(DropReason::ReplayTooOld);
        }
        if number <= self.floor || !seen.insert(number) {
            return Err(DropReason::ReplayDuplicate);
        }
        Ok(())
    }
}
