//! The replay windows of an inbound SA of VPE: one for each (Sender ID, Window ID).

use super::heard::WindowsHeard;
use super::senders::{News, Senders};
use super::{WindowTop, WindowsPage, WindowsSeen};
use crate::inbound::reason_of_replay;
use crate::lifetime::Moment;
use crate::numbers::{ReplayError, ReplayWindow};
use std::net::IpAddr;
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
    windows: Vec<(WindowName, ReplayWindow)>,
    /// One more than the place of each window there, by its Window ID; 0 for none. As long as the highest ID
    /// of an authentic packet needs: no more than a quarter of a megabyte. Not of a group.
    places: Vec<u32>,
    /// Of a group: its senders, by which places are found there.
    group: Option<Box<Senders>>,
    /// The most windows.
    limit: usize,
    /// Packets that each spans.
    size: u32,
    /// In a window that is not there, numbers up to this one count as received: it may have been there before
    /// a crash.
    floor: u64,
    /// The highest number of any window.
    top: u64,
    /// When news came in them, while the SA is watched.
    heard: WindowsHeard,
}

/// Sender ID and Window ID. On a unicast SA the former is 0.
pub(super) type WindowName = (u16, u16);

impl Windows {
    pub(crate) fn new(limit: u32, size: u32) -> Box<Self> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX).max(1);
        Box::new(Self::empty(limit, size, None))
    }

    /// The same for all senders of a group together.
    pub(crate) fn of_group(limit: u32, size: u32, group: Box<Senders>) -> Box<Self> {
        Box::new(Self { group: Some(group), ..*Self::new(limit, size) })
    }

    fn empty(limit: usize, size: u32, group: Option<Box<Senders>>) -> Self {
        Self {
            windows: Vec::new(),
            places: Vec::new(),
            group,
            limit,
            size,
            floor: 0,
            top: 0,
            heard: WindowsHeard::new(),
        }
    }

    /// The place of a window, if it is there.
    #[inline]
    fn place(&self, header: &VpeHeader) -> Option<usize> {
        match self.places.get(usize::from(header.window)) {
            Some(place) if header.sender == 0 => (*place as usize).checked_sub(1),
            // Of a group there are none.
            _ => self.place_in_group(header),
        }
    }

    /// On a unicast SA another Sender ID than 0 has none. A sender that is refused may have had some before
    /// it was our own ID.
    #[inline(never)]
    fn place_in_group(&self, header: &VpeHeader) -> Option<usize> {
        let group = self.group.as_ref().filter(|group| !group.is_refused(header.sender))?;
        (group.place(header.sender, header.window) as usize).checked_sub(1)
    }

    fn insert(&mut self, name: WindowName, window: ReplayWindow) {
        self.windows.push((name, window));
        // No more windows than the limit, which is one of 32 bits.
        let place = u32::try_from(self.windows.len()).unwrap_or(0);
        let (sender, id) = name;
        if let Some(group) = &mut self.group {
            return group.set_place(sender, id, place);
        }
        let at = usize::from(id);
        if self.places.len() <= at {
            self.places.resize(at + 1, 0);
        }
        self.places[at] = place;
    }

    /// Whether no packet of this sender is accepted, however authentic it is.
    fn is_refused(&self, sender: u16) -> bool {
        match &self.group {
            None => sender != 0,
            Some(group) => group.is_refused(sender),
        }
    }

    /// Whether a packet may be accepted. Changes nothing.
    ///
    /// # Errors
    /// Why not.
    #[inline(always)]
    pub(crate) fn check(&self, header: &VpeHeader) -> Result<(), DropReason> {
        match self.place(header).and_then(|place| self.windows.get(place)) {
            Some((_, window)) => window.check(header.number).map_err(reason_of_replay),
            None => self.check_new(header),
        }
    }

    /// In a group, a packet of a sender that is refused is asked first whether it is authentic: only then it
    /// says something about that sender. Of our own ID also where it may be a copy of what we have sent: see
    /// `Ipsec::hear_own_sender`.
    #[cold]
    fn check_new(&self, header: &VpeHeader) -> Result<(), DropReason> {
        if self.is_group() && self.is_refused(header.sender) {
            return Ok(());
        }
        if header.number <= self.floor {
            return Err(reason_of_replay(ReplayError::TooOld));
        }
        if self.windows.len() >= self.limit { Err(DropReason::VpeWindows) } else { Ok(()) }
    }

    /// Notes an authentic packet, and makes its window if it is the first one.
    ///
    /// # Errors
    /// Why it may not be accepted (any more); then nothing changes.
    #[inline]
    pub(crate) fn commit(&mut self, header: &VpeHeader) -> Result<(), DropReason> {
        match self.place(header).and_then(|place| self.windows.get_mut(place)) {
            Some((_, window)) => window.commit(header.number).map_err(reason_of_replay)?,
            None => self.commit_new(header)?,
        }
        self.top = self.top.max(header.number);
        Ok(())
    }

    #[cold]
    fn commit_new(&mut self, header: &VpeHeader) -> Result<(), DropReason> {
        if self.is_refused(header.sender) {
            return Err(DropReason::VpeSender);
        }
        self.check_new(header)?;
        let mut window = ReplayWindow::new(self.size, true);
        if self.floor > 0 {
            let closed = window.restore(&ReplayWindow::closed_up_to(self.floor));
            debug_assert!(closed, "no number is too high for a window of VPE");
        }
        window.commit(header.number).map_err(reason_of_replay)?;
        self.insert((header.sender, header.window), window);
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

    /// Whether it is of a group: then each authentic packet is to be [heard](Self::hear), too.
    #[inline]
    pub(crate) fn is_group(&self) -> bool {
        self.group.is_some()
    }

    /// Of a group: notes where an authentic packet came from that was [committed](Self::commit) or refused
    /// for its sender.
    pub(crate) fn hear(&mut self, header: &VpeHeader, address: Option<IpAddr>, now: Moment) {
        if let Some(group) = &mut self.group {
            group.hear(header, address, now);
        }
    }

    /// Whether something about a sender was heard that others must learn.
    pub(crate) fn has_news(&self) -> bool {
        self.group.as_ref().is_some_and(|group| group.has_news())
    }

    /// [`Senders::swap_news`].
    pub(crate) fn swap_news(&mut self, empty: &mut Vec<News>) {
        if let Some(group) = &mut self.group {
            group.swap_news(empty);
        }
    }

    /// The highest number of any window, before the first packet that up to which all are closed.
    pub(crate) fn top(&self) -> u64 {
        self.top
    }

    /// The highest number of the window of a packet; if it is not there, the one up to which it is closed.
    pub(super) fn top_of(&self, header: &VpeHeader) -> u64 {
        let window = self.place(header).and_then(|place| self.windows.get(place));
        window.map_or(self.floor, |(_, window)| window.top())
    }

    /// When news came in the windows.
    pub(super) fn heard(&self) -> &WindowsHeard {
        &self.heard
    }

    /// Shows other threads the windows that there are; of a group, the first that were made.
    pub(super) fn show(&self, seen: &mut WindowsSeen) {
        let (count, most) = (self.windows.len() as u64, self.limit as u64);
        if self.is_group() {
            return seen.set(count, most, self.windows.iter().map(top));
        }
        let places = self.places.iter().filter(|place| **place > 0);
        let windows = places.filter_map(|place| self.windows.get(*place as usize - 1));
        seen.set(count, most, windows.map(top));
    }

    /// Some windows, in the order in which they were made: none goes, so that each stays where it is.
    pub(super) fn page(&self, from: usize) -> WindowsPage {
        let places = self.windows.get(from..).unwrap_or_default();
        WindowsPage::of(from, places.iter().map(|window| Some(top(window))))
    }

    /// In a window that is not there, numbers up to this one count as received.
    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    /// Each window, by its name.
    pub(crate) fn each(&self) -> impl Iterator<Item = (WindowName, &ReplayWindow)> {
        self.windows.iter().map(|(name, window)| (*name, window))
    }

    /// All windows as bytes, to be saved over a restart.
    pub(crate) fn save(&self) -> Vec<u8> {
        let mut bytes = [self.top.to_le_bytes(), MANY.to_le_bytes(), self.floor.to_le_bytes()].concat();
        self.each().for_each(|(name, window)| append_window(&mut bytes, name, window));
        bytes
    }

    /// The same in no more than `most` bytes, if need be [closed](close_each).
    pub(super) fn save_within(&self, most: usize) -> Vec<u8> {
        if saved_bytes(self.windows.len(), self.size) <= most {
            return self.save();
        }
        close_each(self.floor, self.each().map(|(name, window)| (name, window.top())), most)
    }

    /// Continues where [`save`](Self::save) left off, or, with a window that is
    /// [closed](ReplayWindow::closed_up_to), after the number up to which it is: in all windows, since nobody
    /// knows which there were. `false`, with nothing changed, if the bytes are neither.
    #[must_use]
    pub(crate) fn restore(&mut self, bytes: &[u8]) -> bool {
        let group = || self.group.as_ref().map(|group| group.afresh());
        let empty = || Self::empty(self.limit, self.size, group());
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
            let [sender, id] = [[s0, s1], [w0, w1]].map(u16::from_le_bytes);
            let header = VpeHeader { sender, window: id, number: 0, spi: 0 };
            // Of two devices that know each other all have 0, and of a group none.
            let is_of_its_kind = (sender == 0) != empty.is_group();
            let is_new = is_of_its_kind && empty.place(&header).is_none();
            if !is_new || !window.restore(saved) || window.top() > empty.top {
                return None;
            }
            empty.insert((sender, id), window);
            rest = after;
        }
        // More than there may be now stay, as the peer may send in each: none is made beside them.
        rest.is_empty().then_some(empty)
    }
}

/// How far a window is.
fn top(((sender, window), numbers): &(WindowName, ReplayWindow)) -> WindowTop {
    WindowTop { sender: *sender, window: *window, number: numbers.top() }
}

/// What is to be kept of saved windows of an SA that is gone, in few bytes: all that each has received is
/// closed, up to its own highest number. `None` if they are none of VPE.
#[must_use]
pub fn closed_windows(saved: &[u8]) -> Option<Vec<u8>> {
    let (front, mut rest) = saved.split_at_checked(FRONT_BYTES + 8)?;
    if u64::from_le_bytes(*front.get(8..)?.first_chunk()?) != MANY {
        return None;
    }
    let mut bytes = front.to_vec();
    while let Some((front, after)) = rest.split_at_checked(WINDOW_FRONT_BYTES) {
        let [name @ .., n0, n1, n2, n3]: [u8; WINDOW_FRONT_BYTES] = *front.first_chunk()?;
        let length = usize::try_from(u32::from_le_bytes([n0, n1, n2, n3])).ok()?;
        let (window, after) = after.split_at_checked(length)?;
        let closed = ReplayWindow::closed_up_to(ReplayWindow::top_of(window)?);
        bytes.extend(name);
        bytes.extend(u32::try_from(closed.len()).ok()?.to_le_bytes());
        bytes.extend(closed);
        rest = after;
    }
    rest.is_empty().then_some(bytes)
}

/// Windows of which the highest numbers are these, as bytes: in each all numbers up to its own count as
/// received. Where that takes more than `most` bytes, no more are collected, and in all windows the numbers
/// up to the highest of any count as received.
pub(super) fn close_each(
    floor: u64,
    windows: impl Iterator<Item = (WindowName, u64)>,
    most: usize,
) -> Vec<u8> {
    let (mut top, mut has_room) = (floor, true);
    // The front is known at the end.
    let mut bytes = vec![0; FRONT_BYTES + 8];
    for (name, number) in windows {
        top = top.max(number);
        let closed = ReplayWindow::closed_up_to(number);
        has_room = has_room && bytes.len() + WINDOW_FRONT_BYTES + closed.len() <= most;
        if has_room {
            append_saved(&mut bytes, name, &closed);
        }
    }
    if !has_room {
        return ReplayWindow::closed_up_to(top).to_vec();
    }
    let front = [top, MANY, floor].map(u64::to_le_bytes).concat();
    bytes[..front.len()].copy_from_slice(&front);
    bytes
}

/// Bytes of so many windows in their saved form, each of which spans so many packets.
pub(super) fn saved_bytes(count: usize, size: u32) -> usize {
    let of_one = WINDOW_FRONT_BYTES + FRONT_BYTES + ReplayWindow::bitmap_bytes(size, false);
    count.saturating_mul(of_one).saturating_add(FRONT_BYTES + 8)
}

/// Appends a window in its saved form.
pub(super) fn append_window(bytes: &mut Vec<u8>, name: WindowName, window: &ReplayWindow) {
    append_saved(bytes, name, &window.save());
}

fn append_saved(bytes: &mut Vec<u8>, (sender, id): WindowName, saved: &[u8]) {
    bytes.extend([sender.to_le_bytes(), id.to_le_bytes()].concat());
    bytes.extend(u32::try_from(saved.len()).unwrap_or(0).to_le_bytes());
    bytes.extend(saved);
}

#[cfg(all(test, not(loom)))]
#[path = "windows_tests.rs"]
mod tests;
