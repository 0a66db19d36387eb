//! The replay windows of an inbound SA of VPE whose packets several workers open: any of them may get a
//! packet of any window.
//!
//! ```text
//!   pages   by Window ID ─► page ─► window     each made once, and never taken away
//!   names   the Window IDs that have a window or get one, in the order in which they came
//! ```
//!
//! Each window is a [`SharedWindow`], which has no lock. It is found by two loads. One that is not there is
//! made by the first authentic packet, in these steps:
//!
//! - (1) the worker enters the Window ID into the names: it tries them in order, and puts the ID where it
//!   finds none, by compare-exchange. If none of the first `limit` is free nor has this ID, the window is one
//!   too many;
//! - (2) it makes a window, and puts it into its page unless another worker has put one there;
//! - (3) who has put it there counts it.
//!
//! **One window for an ID.** A page's place is filled once; who comes second uses what is there. So a
//! number is accepted by one window, which accepts it once.
//!
//! **No more than `limit`.** Only an ID that is in the names has a window, and no ID is there twice: two
//! workers that enter one both try the names from the first on, none of which is ever freed, so that who is
//! second finds the ID or an occupied name wherever the first has passed.
//!
//! **Nobody is refused for a window that another makes.** A worker refuses a packet before it is authentic
//! only if as many windows are counted (3) as there may be, and its own is still not there: then all names
//! are those of other windows, which are there. No worker waits for one that makes a window: it makes
//! another, and loses it or not.

use super::group_windows::GroupShare;
use super::heard::WindowsHeard;
use super::senders::Senders;
use super::windows::{FRONT_BYTES, MANY, WindowName, Windows, append_window, close_each, saved_bytes};
use super::{WindowRun, WindowTop, WindowsPage, WindowsSeen};
use crate::inbound::reason_of_replay;
use crate::numbers::{ReplayError, ReplayWindow, SharedWindow};
use crate::shared_use::SharedUse;
use crate::sync::{AtomicU32, AtomicU64, OnceLock, Ordering};
use std::sync::Arc;
use testudo_packet::DropReason;
use testudo_wire::vpe::VpeHeader;

/// Places of a page, and names of a list. Loom's model has few, since it follows each.
const PAGE: usize = if cfg!(loom) { 2 } else { 256 };
/// Pages, and lists of names: a place for each Window ID.
const PAGES: usize = if cfg!(loom) { 1 } else { 256 };

type Page = Box<[OnceLock<Arc<SharedWindow>>]>;
type Names = Box<[AtomicU32]>;

/// The windows of one SA from a peer, shared by the workers that open its packets.
#[derive(Debug)]
pub struct SharedWindows {
    pages: Box<[OnceLock<Page>]>,
    names: Box<[OnceLock<Names>]>,
    /// Of a group: its windows, in place of the pages, and its senders.
    group: GroupShare,
    /// Windows that are there.
    made: AtomicU32,
    /// Numbers up to this one count as received in every window, there or not: it may have been there before
    /// a crash.
    floor: AtomicU64,
    /// When news came in them, while the SA is watched.
    heard: WindowsHeard,
    /// Packets that each window spans.
    size: u32,
    used: Arc<SharedUse>,
}

/// What is in a place once, made if nothing is there yet.
fn once<T: 'static>(place: &OnceLock<T>, make: impl FnOnce() -> T) -> Option<&T> {
    if place.get().is_none() {
        // Made before: who is second waits for a pointer to be stored, not for what it points to.
        let _ = place.set(make());
    }
    place.get()
}

impl SharedWindows {
    /// No windows yet; each will span so many packets.
    #[must_use]
    pub fn new(size: u32) -> Self {
        Self {
            pages: (0..PAGES).map(|_| OnceLock::new()).collect(),
            names: (0..PAGES).map(|_| OnceLock::new()).collect(),
            group: GroupShare::new(),
            made: AtomicU32::new(0),
            floor: AtomicU64::new(0),
            heard: WindowsHeard::new(),
            size,
            used: Arc::new(SharedUse::new()),
        }
    }

    /// How many there are.
    #[must_use]
    pub fn made(&self) -> u32 {
        self.made.load(Ordering::Acquire)
    }

    /// Each window that is there, by its ID, with its highest number; none of a group's.
    pub fn tops(&self) -> impl Iterator<Item = (u16, u64)> + '_ {
        self.each_of_one().map(|(id, window)| (id, window.top()))
    }

    /// The highest number of any window, before the first packet that up to which all are closed.
    #[must_use]
    pub fn top(&self) -> u64 {
        self.each().map(|(_, window)| window.top()).fold(self.floor(), u64::max)
    }

    /// The highest number of the window of a packet of a peer that is one host; if it is not there, the one
    /// up to which it is closed.
    pub(super) fn top_of(&self, header: &VpeHeader) -> u64 {
        let window = self.get(header.window).filter(|_| header.sender == 0);
        window.map_or(0, |window| window.top()).max(self.floor())
    }

    /// When news came in the windows.
    pub(super) fn heard(&self) -> &WindowsHeard {
        &self.heard
    }

    /// What the workers have used of the SA's lifetime.
    pub(crate) fn used(&self) -> &Arc<SharedUse> {
        &self.used
    }

    /// Numbers up to this one count as received.
    pub(super) fn floor(&self) -> u64 {
        self.floor.load(Ordering::Acquire)
    }

    pub(super) fn group(&self) -> &GroupShare {
        &self.group
    }

    /// All windows that are there.
    fn each(&self) -> impl Iterator<Item = (WindowName, &SharedWindow)> {
        self.each_of_one().map(|(id, window)| ((0, id), window)).chain(self.group.each())
    }

    /// Those of a peer that is one host.
    fn each_of_one(&self) -> impl Iterator<Item = (u16, &SharedWindow)> {
        let pages = self.pages.iter().enumerate().filter_map(|(at, page)| Some((at, page.get()?)));
        pages.flat_map(|(at, page)| {
            let there = page.iter().enumerate().filter_map(|(place, window)| Some((place, window.get()?)));
            there.filter_map(move |(place, window)| {
                Some((u16::try_from(at * PAGE + place).ok()?, window.as_ref()))
            })
        })
    }

    #[inline]
    fn get(&self, id: u16) -> Option<&Arc<SharedWindow>> {
        let id = usize::from(id);
        self.pages.get(id / PAGE)?.get()?.get(id % PAGE)?.get()
    }

    /// The window of an authentic packet, made if it is not there; `None` if it is one too many.
    #[cold]
    fn get_or_make(&self, id: u16, limit: usize) -> Option<&Arc<SharedWindow>> {
        if !self.has_name(u32::from(id) + 1, limit) {
            return None;
        }
        let at = usize::from(id);
        let page = once(self.pages.get(at / PAGE)?, || (0..PAGE).map(|_| OnceLock::new()).collect())?;
        let place = page.get(at % PAGE)?;
        if place.get().is_none() && place.set(Arc::new(self.new_window())).is_ok() {
            self.count_window();
        }
        place.get()
    }

    /// A window that is to be put into its place.
    pub(super) fn new_window(&self) -> SharedWindow {
        let window = SharedWindow::using(self.size, true, Arc::clone(&self.used));
        close(&window, self.floor());
        window
    }

    /// It is there.
    pub(super) fn count_window(&self) {
        // Release: who finds as many as there may be finds this one.
        self.made.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether as many windows are there as there may be.
    pub(super) fn is_full(&self, limit: usize) -> bool {
        usize::try_from(self.made()).is_ok_and(|made| made >= limit)
    }

    /// Enters a window into the names, by a number other than 0, unless it is there; `false` if there is no
    /// room for it.
    pub(super) fn has_name(&self, name: u32, limit: usize) -> bool {
        let list = || (0..PAGE).map(|_| AtomicU32::new(0)).collect();
        let lists = self.names.iter().map_while(|place| once(place, list));
        for place in lists.flat_map(|list| list.iter()).take(limit) {
            let there = match place.load(Ordering::Acquire) {
                0 => {
                    place.compare_exchange(0, name, Ordering::AcqRel, Ordering::Acquire).unwrap_or_else(|n| n)
                }
                there => there,
            };
            // 0: it was free, and is this one's now.
            if there == 0 || there == name {
                return true;
            }
        }
        false
    }

    /// Some windows, of a group or of a peer that is one host, from a place among the names on: none of these
    /// goes, so that each stays where it is.
    pub(super) fn page(&self, from: usize, is_group: bool) -> WindowsPage {
        let top = |name: u32| {
            if is_group {
                return self.group.top_of(name);
            }
            let window = u16::try_from(name - 1).ok()?;
            Some(WindowTop { sender: 0, window, number: self.get(window)?.top() })
        };
        WindowsPage::of(from, (from..PAGE * PAGES).map_while(|at| self.name_at(at)).map(top))
    }

    /// The name at a place; it may have no window yet. `None` where there is none, nor behind it.
    fn name_at(&self, at: usize) -> Option<u32> {
        let name = self.names.get(at / PAGE)?.get()?.get(at % PAGE)?.load(Ordering::Acquire);
        (name != 0).then_some(name)
    }

    /// Whether a packet may be accepted, where there may be so many windows. Changes nothing.
    fn check(&self, header: &VpeHeader, limit: usize) -> Result<(), DropReason> {
        let window = if header.sender == 0 { self.get(header.window) } else { None };
        let Some(window) = window else { return self.check_new(header, limit) };
        window.check(header.number).map_err(reason_of_replay)?;
        self.check_floor(header)
    }

    /// Whether the number of a packet that its window would take is not closed.
    #[inline(always)]
    fn check_floor(&self, header: &VpeHeader) -> Result<(), DropReason> {
        if header.number <= self.floor() { Err(DropReason::ReplayDuplicate) } else { Ok(()) }
    }

    #[cold]
    fn check_new(&self, header: &VpeHeader, limit: usize) -> Result<(), DropReason> {
        if header.number <= self.floor() {
            return Err(reason_of_replay(ReplayError::TooOld));
        }
        // In this order: see the module's header.
        let is_refused = self.is_full(limit) && (header.sender != 0 || self.get(header.window).is_none());
        if is_refused { Err(DropReason::VpeWindows) } else { Ok(()) }
    }

    /// Notes authentic packets of one window, of a peer that is one host, which is there or is to be made;
    /// `refuse` has the places of those that may not be accepted (any more). Returns the window's highest
    /// number then.
    #[inline]
    fn commit(
        &self,
        window: Option<&SharedWindow>,
        run: &WindowRun,
        limit: usize,
        mut refuse: impl FnMut(usize, DropReason),
    ) -> u64 {
        let (sender, id) = run.window();
        if sender != 0 {
            run.numbers().for_each(|(place, _)| refuse(place, DropReason::VpeSender));
            return 0;
        }
        self.commit_to(window, || self.get_or_make(id, limit).map(AsRef::as_ref), run, refuse)
    }

    /// The same for a window of any peer.
    #[inline]
    pub(super) fn commit_to<'w>(
        &self,
        window: Option<&'w SharedWindow>,
        make: impl FnOnce() -> Option<&'w SharedWindow>,
        run: &WindowRun,
        mut refuse: impl FnMut(usize, DropReason),
    ) -> u64 {
        let floor = self.floor();
        match window {
            Some(window) if run.first() > floor => {
                let run_of = (run.first(), run.count());
                window
                    .commit_run(run_of, run.numbers(), |place, error| refuse(place, reason_of_replay(error)));
                window.top()
            }
            _ => self.commit_singly(window, make, run, floor, refuse),
        }
    }

    /// The same for a window that is to be made, or numbers that may be closed.
    #[cold]
    fn commit_singly<'w>(
        &self,
        window: Option<&'w SharedWindow>,
        make: impl FnOnce() -> Option<&'w SharedWindow>,
        run: &WindowRun,
        floor: u64,
        mut refuse: impl FnMut(usize, DropReason),
    ) -> u64 {
        let numbers = run.numbers();
        let above = numbers.clone().filter(|(_, number)| *number > floor);
        let window = match window {
            None if above.clone().next().is_some() => make(),
            window => window,
        };
        let Some(window) = window else {
            let reason =
                |number| if number <= floor { DropReason::ReplayTooOld } else { DropReason::VpeWindows };
            numbers.for_each(|(place, number)| refuse(place, reason(number)));
            return 0;
        };
        for (place, number) in numbers.filter(|(_, number)| *number <= floor) {
            let error = window.check(number).err().unwrap_or(ReplayError::Duplicate);
            refuse(place, reason_of_replay(error));
        }
        window.commit_batch(above, |place, error| refuse(place, reason_of_replay(error)));
        window.top()
    }

    /// All windows as bytes, to be saved over a restart: as one worker saves [its own](Windows::save).
    #[must_use]
    pub(crate) fn save(&self) -> Vec<u8> {
        let floor = self.floor();
        let (mut top, mut windows) = (floor, Vec::new());
        for (name, window) in self.each() {
            // Who has made it may not have known of it.
            close(window, floor);
            let saved = window.snapshot();
            top = top.max(saved.top());
            append_window(&mut windows, name, &saved);
        }
        let mut bytes = Vec::with_capacity(FRONT_BYTES + 8 + windows.len());
        [top, MANY, floor].into_iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        bytes.extend(windows);
        bytes
    }

    /// The same in no more than `most` bytes, if need be [closed](close_each).
    pub(super) fn save_within(&self, most: usize) -> Vec<u8> {
        let made = usize::try_from(self.made()).unwrap_or(usize::MAX);
        if saved_bytes(made, self.size) <= most {
            return self.save();
        }
        let floor = self.floor();
        close_each(floor, self.each().map(|(name, window)| (name, window.top().max(floor))), most)
    }

    /// Continues where [`save`](Self::save) left off, or after the number up to which a window is closed:
    /// what was received then counts as received, beside what was received since. `false`, with nothing
    /// changed, if the bytes are neither.
    #[must_use]
    pub(super) fn restore(&self, bytes: &[u8], limit: usize, is_group: bool) -> bool {
        let most = u32::try_from(limit).unwrap_or(u32::MAX);
        let mut saved = match is_group {
            true => Windows::of_group(most, self.size, Senders::of_nobody()),
            false => Windows::new(most, self.size),
        };
        if !saved.restore(bytes) {
            return false;
        }
        let floor = self.floor.fetch_max(saved.floor(), Ordering::AcqRel).max(saved.floor());
        self.each().for_each(|(_, window)| close(window, floor));
        // More than there may be now stay, beside those that have come since: a saved one that found no room
        // would begin anew when there is some.
        let count = saved.each().count() + usize::try_from(self.made()).unwrap_or(usize::MAX);
        let limit = limit.max(count.min(PAGE * PAGES));
        for ((sender, id), window) in saved.each() {
            let own = if is_group {
                self.group_window_or_make(sender, id, limit)
            } else {
                self.get_or_make(id, limit).map(AsRef::as_ref)
            };
            let is_restored = own.is_none_or(|own| own.restore(&window.save()));
            debug_assert!(is_restored, "it was saved by a window of VPE");
        }
        true
    }
}

/// Has all numbers up to `floor` count as received.
fn close(window: &SharedWindow, floor: u64) {
    if floor > 0 && window.check(floor).is_ok() {
        let is_closed = window.restore(&ReplayWindow::closed_up_to(floor));
        debug_assert!(is_closed, "no number is too high for a window of VPE");
    }
}

/// What one worker has of windows that are shared.
#[derive(Debug)]
pub(crate) struct WorkersWindows {
    all: Arc<SharedWindows>,
    /// The most windows.
    limit: usize,
    /// The highest number that this worker has taken, or found when they were restored.
    top: u64,
    /// Windows that it has committed to, of a peer that is one host, by their IDs: found by one load.
    near: Vec<Option<Arc<SharedWindow>>>,
}

/// Window IDs below this one are kept near, in at most 8 KiB.
const NEAR: usize = 1024;

impl WorkersWindows {
    pub(crate) fn new(all: Arc<SharedWindows>, limit: u32) -> Self {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX).max(1);
        let top = all.top();
        Self { all, limit, top, near: Vec::new() }
    }

    pub(crate) fn all(&self) -> &SharedWindows {
        &self.all
    }

    /// The most windows.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// The highest number of a window that this worker has taken packets of.
    pub(super) fn note_top(&mut self, top: u64) {
        self.top = self.top.max(top);
    }

    /// Shows other threads the windows that there are.
    pub(super) fn show(&self, seen: &mut WindowsSeen) {
        let tops = self.all.each().map(|((sender, id), window)| WindowTop {
            sender,
            window: id,
            number: window.top(),
        });
        seen.set(self.all.made().into(), self.limit as u64, tops);
    }

    pub(crate) fn top(&self) -> u64 {
        self.top
    }

    #[inline(always)]
    pub(crate) fn check(&self, header: &VpeHeader) -> Result<(), DropReason> {
        match self.near.get(usize::from(header.window)) {
            Some(Some(window)) if header.sender == 0 && window.is_ahead(header.number) => {
                self.all.check_floor(header)
            }
            _ => self.all.check(header, self.limit),
        }
    }

    /// Notes authentic packets of one window; `refuse` has the places of those that may not be accepted (any
    /// more).
    #[inline]
    pub(crate) fn commit(&mut self, run: &WindowRun, refuse: impl FnMut(usize, DropReason)) {
        let (_, id) = run.window();
        let top = match self.near.get(usize::from(id)) {
            Some(Some(window)) => self.all.commit(Some(window), run, self.limit, refuse),
            _ => self.commit_afar(run, refuse),
        };
        self.top = self.top.max(top);
    }

    /// [`commit`](Self::commit) in a window that is not near, and is from now on.
    #[cold]
    fn commit_afar(&mut self, run: &WindowRun, refuse: impl FnMut(usize, DropReason)) -> u64 {
        let (_, id) = run.window();
        let window = self.all.get(id).map(AsRef::as_ref);
        let top = self.all.commit(window, run, self.limit, refuse);
        let at = usize::from(id);
        if let Some(window) = self.all.get(id).filter(|_| at < NEAR) {
            if self.near.len() <= at {
                self.near.resize(at + 1, None);
            }
            self.near[at] = Some(Arc::clone(window));
        }
        top
    }

    /// [`commit`](Self::commit) for one packet.
    pub(crate) fn commit_one(&mut self, header: &VpeHeader) -> Result<(), DropReason> {
        let mut outcome = Ok(());
        let run = WindowRun::one((header.sender, header.window), header.number, 0);
        self.commit(&run, |_, reason| outcome = Err(reason));
        outcome
    }

    #[must_use]
    pub(crate) fn restore(&mut self, bytes: &[u8]) -> bool {
        self.restore_as(bytes, false)
    }

    /// The same for the windows of a group, or of a peer that is one host.
    #[must_use]
    pub(super) fn restore_as(&mut self, bytes: &[u8], is_group: bool) -> bool {
        let is_restored = self.all.restore(bytes, self.limit, is_group);
        self.top = self.all.top();
        is_restored
    }
}

#[cfg(all(test, not(loom)))]
#[path = "shared_windows_tests.rs"]
mod tests;

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::thread;

    /// Two workers commit packets of these windows, one after the other, where there may be so many windows;
    /// returns those that were accepted, and how many windows were made.
    fn commit(
        limit: usize,
        packets: [&'static [(u16, u64)]; 2],
        check: impl Fn(&[(u16, u64)], u32) + Sync + Send + 'static,
    ) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let windows = Arc::new(SharedWindows::new(32));
            let take = move |packets: &'static [(u16, u64)], windows: &SharedWindows| {
                let mut accepted = Vec::new();
                for &(window, number) in packets {
                    let header = VpeHeader { sender: 0, window, number, spi: 0 };
                    let mut outcome = windows.check(&header, limit);
                    if outcome.is_ok() {
                        let run = WindowRun::one((0, window), number, 0);
                        let there = windows.get(window).map(AsRef::as_ref);
                        windows.commit(there, &run, limit, |_, reason| outcome = Err(reason));
                    }
                    accepted.extend(outcome.is_ok().then_some((window, number)));
                }
                accepted
            };
            let other = {
                let windows = Arc::clone(&windows);
                thread::spawn(move || take(packets[0], &windows))
            };
            let mut accepted = take(packets[1], &windows);
            accepted.extend(other.join().unwrap());
            accepted.sort_unstable();
            check(&accepted, windows.made());
        });
    }

    /// The first packet of a window at two workers at once: it is accepted once.
    #[test]
    fn a_packet_that_makes_a_window_at_two_workers_is_accepted_once() {
        commit(1, [&[(1, 5)], &[(1, 5)]], |accepted, made| assert_eq!((accepted, made), (&[(1, 5)][..], 1)));
    }

    /// The last window that there may be, made by two workers at once: neither is refused for the other.
    #[test]
    fn nobody_is_refused_because_another_makes_the_same_window() {
        commit(1, [&[(1, 5)], &[(1, 6)]], |accepted, made| {
            assert_eq!((accepted, made), (&[(1, 5), (1, 6)][..], 1));
        });
    }

    /// Four adjacent numbers of window 1, from `first` on, at a worker; returns those that are accepted.
    fn commit_run(worker: &mut WorkersWindows, first: u64) -> Vec<u64> {
        let (mut run, mut accepted) = (WindowRun::one((0, 1), first, 0), vec![first]);
        for place in 1..4 {
            let number = first + place as u64;
            assert!(run.append(1 << 16, number, place));
            accepted.push(number);
        }
        worker.commit(&run, |place, _| accepted[place] = 0);
        accepted.retain(|number| *number != 0);
        accepted
    }

    /// 32 is in another word than 31. One worker has the window near, the other finds it.
    #[test]
    fn runs_over_a_words_end_that_overlap_at_two_workers_are_accepted_once() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let windows = Arc::new(SharedWindows::new(32));
            let [mut near, mut afar] = [(); 2].map(|()| WorkersWindows::new(Arc::clone(&windows), 1));
            let first = VpeHeader { sender: 0, window: 1, number: 1, spi: 0 };
            assert_eq!(near.commit_one(&first), Ok(()));
            assert!(near.near[1].is_some() && afar.near.is_empty());
            let other = thread::spawn(move || commit_run(&mut afar, 31));
            let mut accepted = commit_run(&mut near, 30);
            accepted.extend(other.join().unwrap());
            accepted.sort_unstable();
            assert_eq!(accepted, [30, 31, 32, 33, 34]);
        });
    }

    /// Two windows where there may be one: one is made, and all of its packets are taken.
    #[test]
    fn no_more_windows_are_made_than_there_may_be() {
        commit(1, [&[(0, 5), (0, 6)], &[(1, 7)]], |accepted, made| {
            assert_eq!(made, 1);
            assert!(accepted == [(0, 5), (0, 6)] || accepted == [(1, 7)], "{accepted:?}");
        });
    }
}
