//! When news came last in each window of an SA that is watched: what was kept back of a window that has been
//! silent since says nothing of where the peer is ([`crate::roaming`]).

use crate::lifetime::Moment;
use crate::peer_heard::{Heard, HeardCell};
use crate::sync::OnceLock;

/// Windows of a page.
const PAGE: usize = 256;
const PAGES: usize = 256;
/// A window's time is that of its last news, by less than so many milliseconds: who hears packet after packet
/// only loads.
const COARSE_MS: u64 = 62;

type Page = Box<[HeardCell]>;

/// Of all windows of one SA, by Window ID. Memory is taken by pages, with the first news of a window.
#[derive(Debug)]
pub(super) struct WindowsHeard(OnceLock<Box<[OnceLock<Page>]>>);

impl WindowsHeard {
    pub(super) fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Notes news of a window, and returns when news came there before.
    pub(super) fn note(&self, window: u16, now: Moment) -> Heard {
        let Some(cell) = self.cell(usize::from(window)) else { return Heard::NEVER };
        let before = cell.get();
        cell.move_on(Heard::at(now), COARSE_MS);
        before
    }

    fn cell(&self, at: usize) -> Option<&HeardCell> {
        let pages = made(&self.0, || (0..PAGES).map(|_| OnceLock::new()).collect())?;
        made(pages.get(at / PAGE)?, || (0..PAGE).map(|_| HeardCell::new()).collect())?.get(at % PAGE)
    }
}

/// What is in a place, made if nothing is.
fn made<T: 'static>(place: &OnceLock<T>, make: impl FnOnce() -> T) -> Option<&T> {
    if place.get().is_none() {
        let _ = place.set(make());
    }
    place.get()
}
