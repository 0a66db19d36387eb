//! The replay windows of an inbound SA of VPE: one for each (Sender ID, Window ID).

use super::WindowsSeen;
use crate::inbound::reason_of_replay;
use crate::numbers::{ReplayError, ReplayWindow};
use testudo_packet::DropReason;
use testudo_wire::vpe::VpeHeader;

/// Bytes before the windows in their saved form, which are those of a window that says how far the highest
/// number is: who keeps windows reads no more of them.
pub(super) const FRONT_BYTES: usize = 16;
/// In the place of a window's size, which is less: windows of VPE follow.
pub(super) const MANY: u64 = u64::MAX;
/// Bytes before each window: Sender ID, Window ID, its length.
const WINDOW_FRONT_BYTES: usize = 8;

/// The windows of one SA. A window is made by its first authentic packet, and kept as long as the key is.
#[derive(Debug)]
pub(crate) struct Windows {
    windows: Vec<(u16, ReplayWindow)>,
    /// One more than the place of each window there, by its Window ID; 0 for none. As long as the highest ID
    /// of an authentic packet needs: no more than a quarter of a megabyte.
    places: Vec<u32>,
    /// The most windows.
    limit: usize,
    /// Packets that each spans.
    size: u32,
    /// In a window that is not there, numbers up to this one count as received: it may have been there before
    /// a crash.
    floor: u64,
    /// The highest number of any window.
    top: u64,
}

impl Windows {
    pub(crate) fn new(limit: u32, size: u32) -> Box<Self> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX).max(1);
        Box::new(Self::empty(limit, size))
    }

    fn empty(limit: usize, size: u32) -> Self {
        Self { windows: Vec::new(), places: Vec::new(), limit, size, floor: 0, top: 0 }
    }

    /// The place of a window, if it is there. Another Sender ID than 0 has none.
    #[inline]
    fn place(&self, header: &VpeHeader) -> Option<usize> {
        let place = *self.places.get(usize::from(header.window))?;
        if header.sender != 0 {
            return None;
        }
        (place as usize).checked_sub(1)
    }

    fn insert(&mut self, id: u16, window: ReplayWindow) {
        let at = usize::from(id);
        if self.places.len() <= at {
            self.places.resize(at + 1, 0);
        }
        self.windows.push((id, window));
        // No more windows than Window IDs.
        self.places[at] = u32::try_from(self.windows.len()).unwrap_or(0);
    }

    /// Whether a packet may be accepted. Changes nothing.
    ///
    /// # Errors
    /// Why not.
    #[inline]
    pub(crate) fn check(&self, header: &VpeHeader) -> Result<(), DropReason> {
        match self.place(header).and_then(|place| self.windows.get(place)) {
            Some((_, window)) => window.check(header.number).map_err(reason_of_replay),
            None => self.check_new(header),
        }
    }

    #[cold]
    fn check_new(&self, header: &VpeHeader) -> Result<(), DropReason> {
        if header.number <= self.floor {
            return Err(reason_of_replay(ReplayError::TooOld));
        }
        if self.windows.len() >= self.limit { Err(DropReason::VpeWindows) } else { Ok(()) }
    }

    /// Notes an authentic packet of a unicast SA, and makes its window if it is the first one.
    ///
    /// # Errors
    /// Why it may not be accepted (any more); then nothing changes.
    #[inline]
    pub(crate) fn commit(&mut self, header: &VpeHeader) -> Result<(), DropReason> {
        if header.sender != 0 {
            return Err(DropReason::VpeSender);
        }
        match self.place(header).and_then(|place| self.windows.get_mut(place)) {
            Some((_, window)) => window.commit(header.number).map_err(reason_of_replay)?,
            None => self.commit_new(header)?,
        }
        self.top = self.top.max(header.number);
        Ok(())
    }

    #[cold]
    fn commit_new(&mut self, header: &VpeHeader) -> Result<(), DropReason> {
        self.check_new(header)?;
        let mut window = ReplayWindow::new(self.size, true);
        if self.floor > 0 {
            let closed = window.restore(&ReplayWindow::closed_up_to(self.floor));
            debug_assert!(closed, "no number is too high for a window of VPE");
        }
        window.commit(header.number).map_err(reason_of_replay)?;
        self.insert(header.window, window);
        Ok(())
    }

    /// Notes `count` adjacent authentic packets of one window, by its Sender ID and Window ID, numbered from
    /// `first` on. `false`, with nothing changed, unless all are ahead of those before, and the window is
    /// there.
    #[inline]
    pub(crate) fn commit_ahead(&mut self, (sender, window): (u16, u16), first: u64, count: u64) -> bool {
        let header = VpeHeader { sender, window, number: first, spi: 0 };
        let Some((_, window)) = self.place(&header).and_then(|place| self.windows.get_mut(place)) else {
            return false;
        };
        let is_ahead = window.commit_ahead(first, count);
        self.top = self.top.max(window.top());
        is_ahead
    }

    /// The highest number of any window, before the first packet that up to which all are closed.
    pub(crate) fn top(&self) -> u64 {
        self.top
    }

    /// Shows other threads the windows that there are.
    pub(super) fn show(&self, seen: &mut WindowsSeen) {
        let places = (0_u16..=u16::MAX).zip(&self.places).filter(|(_, place)| **place > 0);
        let windows = places.filter_map(|(id, place)| Some((id, self.windows.get(*place as usize - 1)?)));
        let tops = windows.map(|(id, (_, window))| (id, window.top()));
        seen.set(self.windows.len() as u64, self.limit as u64, tops);
    }

    /// In a window that is not there, numbers up to this one count as received.
    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    /// Each window, by its ID.
    pub(crate) fn each(&self) -> impl Iterator<Item = (u16, &ReplayWindow)> {
        self.windows.iter().map(|(id, window)| (*id, window))
    }

    /// All windows as bytes, to be saved over a restart.
    pub(crate) fn save(&self) -> Vec<u8> {
        let mut bytes = [self.top.to_le_bytes(), MANY.to_le_bytes(), self.floor.to_le_bytes()].concat();
        self.each().for_each(|(id, window)| append_window(&mut bytes, id, window));
        bytes
    }

    /// Continues where [`save`](Self::save) left off, or, with a window that is
    /// [closed](ReplayWindow::closed_up_to), after the number up to which it is: in all windows, since nobody
    /// knows which there were. `false`, with nothing changed, if the bytes are neither.
    #[must_use]
    pub(crate) fn restore(&mut self, bytes: &[u8]) -> bool {
        let empty = || Self::empty(self.limit, self.size);
        let restored = if ReplayWindow::is_closed(bytes) {
            ReplayWindow::top_of(bytes).map(|top| Self { floor: top, top, ..empty() })
        } else {
            Self::parse(empty(), bytes)
        };
        let is_restored = restored.is_some();
        if let Some(restored) = restored {
            *self = restored;
        }
        is_restored
    }

    fn parse(mut empty: Self, bytes: &[u8]) -> Option<Self> {
        let (front, rest) = bytes.split_at_checked(FRONT_BYTES)?;
        if u64::from_le_bytes(*front.last_chunk()?) != MANY {
            // The key was one of ESP before: its window says no more than the highest number.
            let mut window = ReplayWindow::new(empty.size, true);
            let top = window.restore(bytes).then(|| window.top())?;
            return Some(Self { floor: top, top, ..empty });
        }
        (empty.top, empty.floor) =
            (u64::from_le_bytes(*front.first_chunk()?), u64::from_le_bytes(*rest.first_chunk()?));
        let mut rest = rest.get(8..)?;
        while let Some((front, after)) = rest.split_at_checked(WINDOW_FRONT_BYTES) {
            let [s0, s1, w0, w1, n0, n1, n2, n3] = *front.first_chunk()?;
            let length = usize::try_from(u32::from_le_bytes([n0, n1, n2, n3])).ok()?;
            let (saved, after) = after.split_at_checked(length)?;
            let mut window = ReplayWindow::new(empty.size, true);
            let header = VpeHeader { sender: 0, window: u16::from_le_bytes([w0, w1]), number: 0, spi: 0 };
            let is_new = [s0, s1] == [0; 2] && empty.place(&header).is_none();
            if !is_new || !window.restore(saved) || window.top() > empty.top {
                return None;
            }
            empty.insert(header.window, window);
            rest = after;
        }
        (rest.is_empty() && empty.windows.len() <= empty.limit).then_some(empty)
    }
}

/// Appends a window of a unicast SA in its saved form.
pub(super) fn append_window(bytes: &mut Vec<u8>, id: u16, window: &ReplayWindow) {
    let saved = window.save();
    bytes.extend([[0; 2], id.to_le_bytes()].concat());
    bytes.extend(u32::try_from(saved.len()).unwrap_or(0).to_le_bytes());
    bytes.extend(saved);
}

#[cfg(all(test, not(loom)))]
#[path = "windows_tests.rs"]
mod tests;
