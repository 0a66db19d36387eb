//! What an SA from a peer leaves when it is removed.

use crate::numbers::ReplayWindow;
use crate::vpe::SaWindows;

/// The replay window of an SA that was removed, or all those of one of VPE. Windows that workers share are
/// read when they are asked for: once all workers have let go of the SA, nothing moves them any more.
#[derive(Debug)]
pub struct LastWindows {
    window: ReplayWindow,
    of_vpe: Option<SaWindows>,
}

impl LastWindows {
    pub(crate) fn new(window: ReplayWindow, of_vpe: Option<SaWindows>) -> Self {
        Self { window, of_vpe }
    }

    /// The highest number that was received, of VPE in any window.
    #[must_use]
    pub fn top(&self) -> u64 {
        self.of_vpe.as_ref().map_or_else(|| self.window.top(), SaWindows::top_of_all)
    }

    /// The bytes that [`Ipsec::save_window`](crate::Ipsec::save_window) would have made of them: half a
    /// megabyte at most for one window. If those of VPE, of which there may be 65,536, would be longer than
    /// `most_bytes`, no more than that is collected: the highest number of each, up to which all of it counts
    /// as received, or, where these are too many as well, the highest of any.
    #[must_use]
    pub fn save_within(&self, most_bytes: usize) -> Vec<u8> {
        self.of_vpe.as_ref().map_or_else(|| self.window.save(), |windows| windows.save_within(most_bytes))
    }
}
