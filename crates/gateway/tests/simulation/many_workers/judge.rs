//! What must come out of a gateway of several workers: exactly what the slow model of its windows accepts, at
//! the worker that received it, in that worker's order, and never twice.

use super::encapsulation::Case;
use super::underway::Underway;
use super::wire::Arrival;
use crate::model::WindowModel;
use crate::support::Side;
use crate::support::packet::number;
use std::collections::{HashMap, HashSet, VecDeque};

/// A number of one count of one SA.
pub type Name = (u32, u32, u64);

/// Judges what one gateway receives.
pub struct Judge {
    /// Who sends.
    from: Side,
    case: Case,
    /// The windows of all SAs, by SPI and count.
    windows: HashMap<(u32, u32), WindowModel>,
    saved: HashMap<(u32, u32), WindowModel>,
    /// What each worker must deliver, in order.
    expected: Vec<VecDeque<Name>>,
    /// The packet of each number, as far as it was seen.
    packets: HashMap<Name, u32>,
    delivered: HashSet<u32>,
    unsaved: Vec<u32>,
    /// Delivered since the windows were last saved, by a gateway that has crashed: only these may come again.
    forgotten: HashSet<u32>,
    /// Whether the engines answer within a turn: otherwise what comes out of a worker has no known turn.
    is_exact: bool,
    /// What engines that answer in later turns may have of a gateway that releases in order.
    underway: Option<Underway>,
    pub accepted: u64,
    pub refused: u64,
    pub came: u64,
    /// Those that have come and carried nothing.
    pub fills: u64,
}

impl Judge {
    pub fn new(from: Side, case: &Case, workers: usize, is_late: bool, in_order: bool) -> Self {
        Self {
            from,
            case: case.clone(),
            windows: HashMap::new(),
            saved: HashMap::new(),
            expected: vec![VecDeque::new(); workers],
            packets: HashMap::new(),
            delivered: HashSet::new(),
            unsaved: Vec::new(),
            forgotten: HashSet::new(),
            // Where the order is restored, a packet leaves in no known turn.
            is_exact: !is_late && !in_order,
            underway: (is_late && in_order).then(|| Underway::new(case.spec.window, workers)),
            accepted: 0,
            refused: 0,
            came: 0,
            fills: 0,
        }
    }

    /// A worker has taken a datagram, under an SA that it has or has not.
    pub fn receive(&mut self, worker: usize, arrival: &Arrival, has_sa: bool) {
        let shown = arrival.shown;
        let size = self.case.spec.window;
        let window = self.windows.entry((shown.spi, shown.count));
        let window = window.or_insert_with(|| match self.case.begins_after_of(shown.spi) {
            0 => WindowModel::new(size),
            last => WindowModel::behind(size, last),
        });
        let name = (shown.spi, shown.count, shown.number);
        let is_authentic = has_sa && arrival.is_genuine;
        let (is_new, is_accepted) = (!window.has(shown.number), is_authentic && window.receive(shown.number));
        if is_accepted {
            self.accepted += 1;
            if arrival.is_fill {
                self.came += 1;
                self.fills += 1;
            } else {
                self.expected[worker].push_back(name);
            }
        } else {
            self.refused += 1;
        }
        if let Some(underway) = self.underway.as_mut().filter(|_| is_authentic && is_new) {
            underway.take(worker, name, self.case.begins_after_of(shown.spi), is_accepted);
        }
    }

    /// A worker has ended a turn.
    pub fn end_turn(&mut self, worker: usize) {
        if let Some(underway) = &mut self.underway {
            underway.end_turn(worker);
        }
    }

    /// A worker has delivered a packet.
    pub fn deliver(&mut self, worker: usize, packet: &[u8]) {
        let id = number(packet, self.from == Side::A);
        self.came += 1;
        assert_eq!(packet, super::packet(self.from, id), "packet {id} came out as another one");
        let is_new = self.delivered.insert(id) || self.forgotten.remove(&id);
        assert!(is_new, "packet {id} was delivered twice");
        self.unsaved.push(id);
        if self.is_exact {
            let name = self.expected[worker].pop_front();
            let name = name.unwrap_or_else(|| panic!("packet {id} must not be delivered"));
            let known = *self.packets.entry(name).or_insert(id);
            assert_eq!(known, id, "{name:?} carried {known}, so this is out of order");
        }
    }

    pub fn save(&mut self) {
        self.saved = self.windows.clone();
        self.unsaved.clear();
    }

    /// The workers have gone: what they had is lost, and what they have received since windows were saved is
    /// forgotten.
    pub fn crash(&mut self) {
        self.windows = self.saved.clone();
        self.forgotten.extend(self.unsaved.drain(..));
        self.expected.iter_mut().for_each(VecDeque::clear);
    }

    /// What was received is released: exactly what the model accepts, but for packets that were with engines
    /// while others moved the window. `too_old` were dropped as left of it. Returns how many are missing.
    pub fn assert_released(&self, too_old: u64) -> u64 {
        let (came, accepted) = (self.came, self.accepted);
        let Some(underway) = &self.underway else {
            assert_eq!(came, accepted, "what was received is released");
            return 0;
        };
        let (may_age, early) = (underway.may_have_aged().min(too_old), underway.may_have_been_early());
        let expected = accepted - may_age..=accepted + early;
        assert!(
            expected.contains(&came),
            "of {accepted} that were received {came} are released: {expected:?}"
        );
        accepted.saturating_sub(came)
    }

    /// The workers have ended: all that they had received was delivered.
    pub fn end(&self) {
        let missing = self.expected.iter().map(VecDeque::len).sum::<usize>();
        assert!(missing == 0 || !self.is_exact, "{missing} packets were received and not delivered");
    }
}
