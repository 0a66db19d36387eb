//! The windows and senders of a group's SA whose packets several workers open. They are made as those of a
//! peer that is one host ([`shared_windows`](super::shared_windows)), but are found by both IDs, of which
//! there are too many for a page of each.

use super::grow_map::GrowMap;
use super::senders::News;
use super::shared_senders::{SharedSenders, WorkersSenders};
use super::shared_windows::{SharedWindows, WorkersWindows};
use super::windows::WindowName;
use super::{WindowRun, WindowTop};
use crate::counters::SaCounters;
use crate::inbound::reason_of_replay;
use crate::lifetime::Moment;
use crate::numbers::{ReplayError, SharedWindow};
use crate::sync::{AtomicBool, Ordering};
use std::net::IpAddr;
use std::sync::Arc;
use testudo_packet::DropReason;
use testudo_wire::vpe::VpeHeader;

/// What workers share of a group, beside what they share of every SA of VPE.
#[derive(Debug)]
pub(super) struct GroupShare {
    windows: GrowMap<SharedWindow>,
    senders: SharedSenders,
    /// A worker has said that our own Sender ID is taken.
    is_taken: AtomicBool,
}

/// One number for both IDs: never 0, which is nobody's.
fn key_of((sender, window): WindowName) -> u32 {
    u32::from(sender) << 16 | u32::from(window)
}

fn name_of(key: u32) -> WindowName {
    let [s0, s1, w0, w1] = key.to_be_bytes();
    (u16::from_be_bytes([s0, s1]), u16::from_be_bytes([w0, w1]))
}

impl GroupShare {
    pub(super) fn new() -> Self {
        Self { windows: GrowMap::new(), senders: SharedSenders::new(), is_taken: AtomicBool::new(false) }
    }

    #[inline]
    fn get(&self, name: WindowName) -> Option<&SharedWindow> {
        self.windows.get(key_of(name))
    }

    /// All windows that are there.
    pub(super) fn each(&self) -> impl Iterator<Item = (WindowName, &SharedWindow)> {
        self.windows.each().map(|(key, window)| (name_of(key), window))
    }

    /// How far the window with this key is, if it is there.
    pub(super) fn top_of(&self, key: u32) -> Option<WindowTop> {
        let (sender, window) = name_of(key);
        Some(WindowTop { sender, window, number: self.windows.get(key)?.top() })
    }
}

impl SharedWindows {
    /// The window of an authentic packet of a group, made if it is not there; `None` if it is one too many.
    #[cold]
    pub(super) fn group_window_or_make(
        &self,
        sender: u16,
        window: u16,
        limit: usize,
    ) -> Option<&SharedWindow> {
        let key = key_of((sender, window));
        if !self.has_name(key, limit) {
            return None;
        }
        let (window, is_new) = self.group().windows.get_or_insert(key, || self.new_window())?;
        if is_new {
            self.count_window();
        }
        Some(window)
    }
}

/// What one worker has of a group.
#[derive(Debug)]
pub(crate) struct GroupWindows {
    windows: WorkersWindows,
    senders: WorkersSenders,
}

impl GroupWindows {
    /// `own` is our Sender ID, 0 if we only receive; our packets come from `local`.
    pub(crate) fn new(
        all: Arc<SharedWindows>,
        limit: u32,
        (own, local): (u16, IpAddr),
        counters: Arc<SaCounters>,
    ) -> Self {
        let senders = WorkersSenders::new(own, local, counters);
        Self { windows: WorkersWindows::new(all, limit), senders }
    }

    pub(crate) fn windows(&self) -> &WorkersWindows {
        &self.windows
    }

    /// Whether a packet may be accepted. Changes nothing. A packet of a sender that is refused is asked first
    /// whether it is authentic: only then it says something about that sender.
    pub(crate) fn check(&self, header: &VpeHeader) -> Result<(), DropReason> {
        if self.senders.is_refused(header.sender) {
            return Ok(());
        }
        let (all, name) = (self.windows.all(), (header.sender, header.window));
        let Some(window) = all.group().get(name) else {
            if header.number <= all.floor() {
                return Err(reason_of_replay(ReplayError::TooOld));
            }
            // In this order: see the header of `shared_windows`.
            let is_refused = all.is_full(self.windows.limit()) && all.group().get(name).is_none();
            return if is_refused { Err(DropReason::VpeWindows) } else { Ok(()) };
        };
        window.check(header.number).map_err(reason_of_replay)?;
        if header.number <= all.floor() { Err(DropReason::ReplayDuplicate) } else { Ok(()) }
    }

    /// Notes authentic packets of one window; `refuse` has the places of those that may not be accepted (any
    /// more).
    pub(crate) fn commit(&mut self, run: &WindowRun, mut refuse: impl FnMut(usize, DropReason)) {
        let (sender, window) = run.window();
        if self.senders.is_refused(sender) {
            return run.numbers().for_each(|(place, _)| refuse(place, DropReason::VpeSender));
        }
        let (all, limit) = (self.windows.all(), self.windows.limit());
        let make = || all.group_window_or_make(sender, window, limit);
        let top = all.commit_to(all.group().get((sender, window)), make, run, refuse);
        self.windows.note_top(top);
    }

    /// [`commit`](Self::commit) for one packet.
    pub(crate) fn commit_one(&mut self, header: &VpeHeader) -> Result<(), DropReason> {
        let mut outcome = Ok(());
        let run = WindowRun::one((header.sender, header.window), header.number, 0);
        self.commit(&run, |_, reason| outcome = Err(reason));
        outcome
    }

    /// Notes where an authentic packet came from that was committed or refused for its sender.
    pub(crate) fn hear(&mut self, header: &VpeHeader, address: Option<IpAddr>, now: Moment) {
        self.senders.hear(&self.windows.all().group().senders, header, address, now);
    }

    pub(crate) fn has_news(&self) -> bool {
        self.senders.has_news()
    }

    pub(crate) fn swap_news(&mut self, empty: &mut Vec<News>) {
        self.senders.swap_news(empty);
    }

    /// Whether no worker has said yet that our own Sender ID is taken; then it is said.
    pub(crate) fn tell_taken(&self) -> bool {
        !self.windows.all().group().is_taken.swap(true, Ordering::AcqRel)
    }

    #[must_use]
    pub(crate) fn restore(&mut self, bytes: &[u8]) -> bool {
        self.windows.restore_as(bytes, true)
    }
}

#[cfg(all(test, not(loom)))]
#[path = "group_windows_tests.rs"]
mod tests;

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::thread;

    type Packet = (WindowName, u64);

    const ONE: WindowName = (1, 5);
    const OTHER: WindowName = (2, 5);

    /// A worker of a group whose Sender ID is 9.
    fn worker(all: &Arc<SharedWindows>, limit: u32) -> GroupWindows {
        GroupWindows::new(Arc::clone(all), limit, (9, [192, 0, 2, 9].into()), Arc::default())
    }

    /// Takes authentic packets, one after the other; returns those that are accepted.
    fn take(mut worker: GroupWindows, packets: &[Packet]) -> Vec<Packet> {
        let mut accepted = Vec::new();
        for &((sender, window), number) in packets {
            let header = VpeHeader { sender, window, number, spi: 0 };
            if worker.check(&header).is_ok() && worker.commit_one(&header).is_ok() {
                accepted.push(((sender, window), number));
            }
        }
        accepted
    }

    /// Two workers take packets where there may be so many windows; checks those that were accepted, and how
    /// many windows were made.
    fn take_at_two(
        limit: u32,
        packets: [&'static [Packet]; 2],
        check: impl Fn(&[Packet], u32) + Sync + Send + 'static,
    ) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let all = Arc::new(SharedWindows::new(32));
            let [one, other] = [(); 2].map(|()| worker(&all, limit));
            let other = thread::spawn(move || take(other, packets[1]));
            let mut accepted = take(one, packets[0]);
            accepted.extend(other.join().unwrap());
            accepted.sort_unstable();
            check(&accepted, all.made());
        });
    }

    /// The first packet of a window of a sender at two workers at once: it is accepted once.
    #[test]
    fn a_packet_of_a_group_that_makes_a_window_at_two_workers_is_accepted_once() {
        take_at_two(1, [&[(ONE, 7)], &[(ONE, 7)]], |accepted, made| {
            assert_eq!((accepted, made), (&[(ONE, 7)][..], 1));
        });
    }

    /// The last window that there may be, made by two workers at once: neither is refused for the other.
    #[test]
    fn nobody_is_refused_because_another_makes_the_last_window_of_a_group() {
        take_at_two(1, [&[(ONE, 7)], &[(ONE, 8)]], |accepted, made| {
            assert_eq!((accepted, made), (&[(ONE, 7), (ONE, 8)][..], 1));
        });
    }

    /// Windows of two senders where there may be one.
    #[test]
    fn no_more_windows_of_a_group_are_made_than_there_may_be() {
        take_at_two(1, [&[(ONE, 7)], &[(OTHER, 7)]], |accepted, made| {
            assert_eq!(made, 1);
            assert!(accepted == [(ONE, 7)] || accepted == [(OTHER, 7)], "{accepted:?}");
        });
    }

    /// Both want the first place of the map, and who comes second goes on below it.
    #[test]
    fn windows_of_two_senders_that_are_made_at_once_are_both_there() {
        take_at_two(2, [&[(ONE, 7)], &[(OTHER, 7)]], |accepted, made| {
            assert_eq!((accepted, made), (&[(ONE, 7), (OTHER, 7)][..], 2));
        });
    }
}
