//! The windows of an SA of VPE, as other threads may see them.

use crate::slots::SaRef;

/// Windows of which the highest number is told, by each worker.
pub const MAX_WINDOWS_SEEN: usize = 64;

/// How far one window is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowTop {
    /// Whose it is; 0 but in a group.
    pub sender: u16,
    /// Its Window ID.
    pub window: u16,
    /// The highest number: the last one used, or the highest received.
    pub number: u64,
}

/// The windows of an SA of VPE, as they were within the last second.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowsSeen {
    /// How many there are: towards the peer those that packets went in since the numbers were last moved on,
    /// from it those that were made.
    pub count: u64,
    /// How many there may be.
    pub most: u64,
    /// The highest numbers of some, by their IDs: of [`MAX_WINDOWS_SEEN`] at most for each worker.
    pub tops: Vec<WindowTop>,
}

impl Default for WindowsSeen {
    fn default() -> Self {
        // Who writes it has packets to forward, and allocates nothing later.
        Self { count: 0, most: 0, tops: Vec::with_capacity(MAX_WINDOWS_SEEN) }
    }
}

impl WindowsSeen {
    /// Those that there are now.
    pub(crate) fn set(&mut self, count: u64, most: u64, tops: impl Iterator<Item = WindowTop>) {
        (self.count, self.most) = (count, most);
        self.tops.clear();
        self.tops.extend(tops.take(MAX_WINDOWS_SEEN));
        // Those of a group come in no order.
        self.tops.sort_unstable_by_key(|top| (top.sender, top.window));
    }

    /// Adds those that another worker sends in.
    pub fn absorb(&mut self, other: &Self) {
        self.count += other.count;
        self.most += other.most;
        self.tops.extend(&other.tops);
    }
}

/// Windows that a worker tells of at a time: worth some ten microseconds, for which packets wait.
pub const WINDOWS_AT_A_TIME: usize = 256;

/// Which windows of an SA of VPE a worker is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowsFrom {
    /// The SA.
    pub sa: SaRef,
    /// Whether it is towards the peer.
    pub is_outbound: bool,
    /// From which place on: 0, or the [`next`](WindowsPage::next) of a page before.
    pub from: usize,
}

/// Some windows of an SA of VPE.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WindowsPage {
    /// Their highest numbers, in no order: of [`WINDOWS_AT_A_TIME`] at most for each worker.
    pub tops: Vec<WindowTop>,
    /// The place from which on there may be more; `None`: there are none.
    pub next: Option<usize>,
}

impl WindowsPage {
    /// What is at the first of these places, which are those from `from` on; at some there may be nothing.
    pub(super) fn of(from: usize, mut places: impl Iterator<Item = Option<WindowTop>>) -> Self {
        let tops = places.by_ref().take(WINDOWS_AT_A_TIME).flatten().collect();
        let next = places.next().map(|_| from.saturating_add(WINDOWS_AT_A_TIME));
        Self { tops, next }
    }

    /// With those that another worker sends in.
    #[must_use]
    pub fn joined(mut self, other: Self) -> Self {
        self.tops.extend(other.tops);
        Self { next: self.next.max(other.next), ..self }
    }
}
