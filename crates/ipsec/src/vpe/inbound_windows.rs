//! The windows of all inbound SAs of VPE.

use super::group_windows::GroupWindows;
use super::senders::News;
use super::shared_windows::WorkersWindows;
use super::windows::Windows;
use super::{WindowsPage, WindowsSeen};
use crate::lifetime::Moment;
use crate::peer_heard::Heard;
use crate::slots::SaRef;
use testudo_wire::vpe::VpeHeader;

/// The windows of one SA, as one worker has them.
#[derive(Debug)]
pub(crate) enum SaWindows {
    /// No other worker has the SA.
    Owned(Box<Windows>),
    /// Several have it.
    Shared(Box<WorkersWindows>),
    /// Several have it, of a group.
    Group(Box<GroupWindows>),
}

impl SaWindows {
    /// The highest number of any window that this worker knows of, before the first packet that up to which
    /// all are closed.
    pub(crate) fn top(&self) -> u64 {
        match self {
            Self::Owned(windows) => windows.top(),
            Self::Shared(windows) => windows.top(),
            Self::Group(windows) => windows.windows().top(),
        }
    }

    /// The same of all workers.
    pub(crate) fn top_of_all(&self) -> u64 {
        match self {
            Self::Owned(windows) => windows.top(),
            Self::Shared(windows) => windows.all().top(),
            Self::Group(windows) => windows.windows().all().top(),
        }
    }

    /// The highest number of the window of a packet: numbers of two windows have no order.
    pub(crate) fn top_of(&self, header: &VpeHeader) -> u64 {
        match self {
            Self::Owned(windows) => windows.top_of(header),
            Self::Shared(windows) => windows.all().top_of(header),
            // Of a group, whose address never changes, no packet is news.
            Self::Group(_) => u64::MAX,
        }
    }

    /// Notes that a packet was news in its window. Returns when the window had news before.
    pub(crate) fn hear_news(&self, header: &VpeHeader, now: Moment) -> Heard {
        match self {
            Self::Owned(windows) => windows.heard().note(header.window, now),
            Self::Shared(windows) => windows.all().heard().note(header.window, now),
            Self::Group(_) => Heard::NEVER,
        }
    }

    /// Shows other threads the windows that there are.
    pub(crate) fn show(&self, seen: &mut WindowsSeen) {
        match self {
            Self::Owned(windows) => windows.show(seen),
            Self::Shared(windows) => windows.show(seen),
            Self::Group(windows) => windows.windows().show(seen),
        }
    }

    /// Some windows, in the order in which they came, from a place in it on.
    pub(crate) fn page(&self, from: usize) -> WindowsPage {
        match self {
            Self::Owned(windows) => windows.page(from),
            Self::Shared(windows) => windows.all().page(from, false),
            Self::Group(windows) => windows.windows().all().page(from, true),
        }
    }

    /// Whether something about a sender of a group was heard that others must learn.
    pub(crate) fn has_news(&self) -> bool {
        match self {
            Self::Owned(windows) => windows.has_news(),
            Self::Shared(_) => false,
            Self::Group(windows) => windows.has_news(),
        }
    }

    /// Swaps what was heard since the last call for an empty list.
    pub(crate) fn swap_news(&mut self, empty: &mut Vec<News>) {
        match self {
            Self::Owned(windows) => windows.swap_news(empty),
            Self::Shared(_) => {}
            Self::Group(windows) => windows.swap_news(empty),
        }
    }

    /// Whether nobody has said yet that our own Sender ID is taken; then it is said.
    pub(crate) fn tell_taken(&self) -> bool {
        match self {
            Self::Owned(_) | Self::Shared(_) => true,
            Self::Group(windows) => windows.tell_taken(),
        }
    }

    /// All windows as bytes, to be saved over a restart.
    pub(crate) fn save(&self) -> Vec<u8> {
        match self {
            Self::Owned(windows) => windows.save(),
            Self::Shared(windows) => windows.all().save(),
            Self::Group(windows) => windows.windows().all().save(),
        }
    }

    /// The same in no more than `most` bytes, if need be as [`close_each`](super::windows::close_each) has
    /// them.
    pub(crate) fn save_within(&self, most: usize) -> Vec<u8> {
        match self {
            Self::Owned(windows) => windows.save_within(most),
            Self::Shared(windows) => windows.all().save_within(most),
            Self::Group(windows) => windows.windows().all().save_within(most),
        }
    }

    /// Continues with saved windows; `false` if the bytes are none.
    #[must_use]
    pub(crate) fn restore(&mut self, bytes: &[u8]) -> bool {
        match self {
            Self::Owned(windows) => windows.restore(bytes),
            Self::Shared(windows) => windows.restore(bytes),
            Self::Group(windows) => windows.restore(bytes),
        }
    }
}

/// The windows of all SAs of VPE from peers, by the slot of each: an SA has no room for a pointer to them.
#[derive(Debug, Default)]
pub(crate) struct InboundWindows(Vec<Option<(SaRef, SaWindows)>>);

impl InboundWindows {
    #[inline]
    pub(crate) fn get(&self, sa: SaRef) -> Option<&SaWindows> {
        self.0.get(sa.slot())?.as_ref().map(|(_, windows)| windows)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, sa: SaRef) -> Option<&mut SaWindows> {
        self.0.get_mut(sa.slot())?.as_mut().map(|(_, windows)| windows)
    }

    pub(crate) fn insert(&mut self, sa: SaRef, windows: SaWindows) {
        if self.0.len() <= sa.slot() {
            self.0.resize_with(sa.slot() + 1, || None);
        }
        self.0[sa.slot()] = Some((sa, windows));
    }

    pub(crate) fn remove(&mut self, sa: SaRef) -> Option<SaWindows> {
        self.0.get_mut(sa.slot())?.take().map(|(_, windows)| windows)
    }

    /// Those of each SA that has some.
    pub(crate) fn each(&self) -> impl Iterator<Item = (SaRef, &SaWindows)> {
        self.0.iter().flatten().map(|(sa, windows)| (*sa, windows))
    }
}
