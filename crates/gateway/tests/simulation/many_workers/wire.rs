//! The network between two gateways of several workers, one way: orderly, or hostile. It notes every number
//! and every nonce that leaves a gateway.

use super::encapsulation::{Case, Shown};
use super::fills::Fills;
use crate::support::Side;
use fastrand::Rng;
use std::collections::{HashMap, HashSet};

/// Turns that a datagram may be on its way for.
pub const DELAY: usize = 40;
/// Datagrams that are kept to be replayed.
const ARCHIVE: usize = 4000;

/// A datagram on its way to a worker.
#[derive(Clone)]
pub struct Arrival {
    pub bytes: Vec<u8>,
    /// With its whole number.
    pub shown: Shown,
    /// It is as it was sent.
    pub is_genuine: bool,
    /// It carries no packet.
    pub is_fill: bool,
}

/// One way between two gateways.
pub struct Wire {
    case: Case,
    is_hostile: bool,
    random: Rng,
    /// Datagrams with the step in which they arrive.
    underway: Vec<(usize, Arrival)>,
    archive: Vec<Arrival>,
    newest: HashMap<(u32, u32), u64>,
    numbers: HashSet<(u32, u32, u64)>,
    nonces: HashSet<(u32, [u8; 16])>,
    fills: Fills,
    pub sent: u64,
    pub lost: u64,
}

impl Wire {
    pub fn new(from: Side, case: &Case, is_hostile: bool, random: Rng) -> Self {
        Self {
            case: case.clone(),
            is_hostile,
            random,
            underway: Vec::new(),
            archive: Vec::new(),
            newest: HashMap::new(),
            numbers: HashSet::new(),
            nonces: HashSet::new(),
            fills: Fills::new(from, case),
            sent: 0,
            lost: 0,
        }
    }

    /// What a datagram shows, with the whole of its number: the one nearest to the newest.
    fn read(&mut self, datagram: &[u8]) -> Shown {
        let mut shown = (self.case.show)(&self.case.spec, datagram);
        if self.case.number_bits < 64 {
            let begin = self.case.begins_after_of(shown.spi);
            let newest = self.newest.entry((shown.spi, shown.count)).or_insert(begin);
            let ahead = (shown.number as u32).wrapping_sub(*newest as u32).cast_signed();
            shown.number = newest.checked_add_signed(ahead.into()).expect("no number is below 0");
            *newest = shown.number.max(*newest);
        }
        shown
    }

    /// A gateway has sent these. No number and no nonce is ever used twice under a key.
    pub fn send(&mut self, datagrams: Vec<Vec<u8>>, step: usize) {
        for bytes in datagrams {
            let shown = self.read(&bytes);
            let Shown { spi, count, number, nonce } = shown;
            assert!(number > 0, "SPI {spi:#x}: no number is 0");
            assert!(self.numbers.insert((spi, count, number)), "SPI {spi:#x}: number {number} is used twice");
            assert!(self.nonces.insert((spi, nonce)), "SPI {spi:#x}: a nonce is used twice: {nonce:x?}");
            self.sent += 1;
            let is_fill = self.fills.have(spi, &bytes);
            self.pass(Arrival { bytes, shown, is_genuine: true, is_fill }, step);
        }
    }

    fn pass(&mut self, arrival: Arrival, step: usize) {
        if !self.is_hostile {
            return self.underway.push((step, arrival));
        }
        if self.archive.len() < ARCHIVE {
            self.archive.push(arrival.clone());
        } else {
            let place = self.random.usize(..ARCHIVE);
            self.archive[place] = arrival.clone();
        }
        let mut delay = || if self.random.bool() { 0 } else { self.random.usize(..DELAY) };
        let (due, again) = (step + delay(), step + delay());
        match self.random.usize(..32) {
            0..2 => self.lost += 1,
            2..6 => self.underway.extend([(due, arrival.clone()), (again, arrival)]),
            6 => {
                self.lost += 1;
                let mut damaged = Arrival { is_genuine: false, ..arrival };
                *damaged.bytes.last_mut().expect("it is not empty") ^= 1 << self.random.usize(..8);
                self.underway.push((due, damaged));
            }
            _ => self.underway.push((due, arrival)),
        }
    }

    /// Sends some of what was ever captured again, or all of it.
    pub fn replay(&mut self, most: usize, step: usize) {
        if most < self.archive.len() {
            for _ in 0..most {
                let place = self.random.usize(..self.archive.len());
                self.underway.push((step, self.archive[place].clone()));
            }
            return;
        }
        self.random.shuffle(&mut self.archive);
        self.underway.extend(self.archive.iter().map(|arrival| (step, arrival.clone())));
    }

    /// What arrives by this step.
    pub fn arriving(&mut self, step: usize) -> Vec<Arrival> {
        let (now, later) =
            std::mem::take(&mut self.underway).into_iter().partition::<Vec<_>, _>(|d| d.0 <= step);
        self.underway = later;
        now.into_iter().map(|(_, arrival)| arrival).collect()
    }

    /// The counts that numbers were seen of, each with its highest number.
    pub fn counts(&self) -> Vec<(u32, u64)> {
        let mut counts = HashMap::<u32, u64>::new();
        for (_, count, number) in &self.numbers {
            let highest = counts.entry(*count).or_default();
            *highest = (*highest).max(*number);
        }
        counts.into_iter().collect()
    }

    /// The SPIs that datagrams were seen of.
    pub fn spis(&self) -> HashSet<u32> {
        self.numbers.iter().map(|(spi, ..)| *spi).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.underway.is_empty()
    }
}
