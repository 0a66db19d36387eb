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
    /// megabyte at most for one window, and as many times that as there were of VPE.
    #[must_use]
    pub fn save(&self) -> Vec<u8> {
        self.of_vpe.as_ref().map_or_else(|| self.window.save(), SaWindows::save)
    }
}
