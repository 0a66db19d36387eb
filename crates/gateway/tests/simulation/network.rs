//! The network between two gateways, which does everything that a network may do and an attacker on it can
//! do.

use crate::corruption::{Truth, flip_a_bit, forge, rubbish};
use crate::support::fragments::{Part, fragment_with, fragmentable, fragments, header_bytes};
use fastrand::Rng;
use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};
use testudo_wire::protocol;

/// A datagram that reaches the other side.
pub struct Arrival {
    pub bytes: Vec<u8>,
    pub truth: Truth,
}

/// A datagram in flight. Time is counted in packets sent.
struct Delayed {
    due: u64,
    order: u64,
    arrival: Arrival,
}

impl PartialEq for Delayed {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Delayed {}

impl PartialOrd for Delayed {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Delayed {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.due, self.order).cmp(&(other.due, other.order))
    }
}

/// A packet held back until one is sent whose number is exactly `distance` ahead: the edge of the replay
/// window.
struct Held {
    sequence: u64,
    distance: u64,
    bytes: Vec<u8>,
}

/// One direction of the network, for one SA.
pub struct Network {
    random: Rng,
    window: u64,
    spi_at: usize,
    time: u64,
    order: u64,
    delayed: BinaryHeap<Reverse<Delayed>>,
    held: Vec<Held>,
    ready: VecDeque<Arrival>,
    /// Everything that was ever sent, for replays.
    captured: Vec<(u64, Vec<u8>)>,
    /// Of the datagram that was fragmented last. Even or odd, so that two networks between the same gateways
    /// use different ones.
    identification: u32,
}

impl Network {
    pub fn new(random: Rng, window: u32, spi_at: usize, tunnel: u8) -> Self {
        Self {
            random,
            window: window.into(),
            spi_at,
            time: 0,
            order: 0,
            delayed: BinaryHeap::new(),
            held: Vec::new(),
            ready: VecDeque::new(),
            captured: Vec::new(),
            identification: tunnel.into(),
        }
    }

    /// Takes a datagram from its sender and decides its fate.
    pub fn send(&mut self, sequence: u64, bytes: Vec<u8>) {
        self.time += 1;
        self.captured.push((sequence, bytes.clone()));
        let at_edge = self.held.iter().any(|h| sequence - h.sequence == h.distance);
        if at_edge {
            self.pass(sequence, bytes, 0);
            for held in self.held.extract_if(.., |h| sequence - h.sequence == h.distance).collect::<Vec<_>>()
            {
                self.pass(held.sequence, held.bytes, 0);
            }
        } else {
            self.meet_fate(sequence, bytes);
        }
        self.release(self.time);
    }

    fn meet_fate(&mut self, sequence: u64, bytes: Vec<u8>) {
        let window = self.window;
        match self.random.usize(..100) {
            0..62 => self.pass(sequence, bytes, 0),
            62..64 => {} // lost
            64..70 => self.delay(sequence, bytes, 32),
            70..74 => self.delay(sequence, bytes, window + 3),
            74..76 => self.held.push(Held { sequence, distance: window - 1, bytes }),
            76 => self.held.push(Held { sequence, distance: window, bytes }),
            77..79 => {
                self.pass(sequence, bytes.clone(), 0);
                self.pass(sequence, bytes, 0);
            }
            79..81 => {
                self.pass(sequence, bytes.clone(), 0);
                self.delay(sequence, bytes, 2 * window);
            }
            81..86 => {
                self.damage(sequence, &bytes);
                self.pass(sequence, bytes, 0);
            }
            86..89 => self.damage(sequence, &bytes),
            89..91 => {
                self.cut(&bytes);
                self.pass(sequence, bytes, 0);
            }
            91 => self.cut(&bytes),
            92..94 => {
                let rubbish = rubbish(&mut self.random, &bytes);
                self.arrive(rubbish, Truth::Hostile, 0);
                self.pass(sequence, bytes, 0);
            }
            94..96 => {
                let forged = forge(&mut self.random, &bytes, self.spi_at);
                self.arrive(forged, Truth::Hostile, 0);
                self.pass(sequence, bytes, 0);
            }
            96..98 => {
                let (old, replayed) = self.captured[self.random.usize(..self.captured.len())].clone();
                self.pass(old, replayed, 0);
                self.pass(sequence, bytes, 0);
            }
            98 => self.pad(sequence, bytes),
            _ => self.fragment(sequence, bytes),
        }
    }

    fn pass(&mut self, sequence: u64, bytes: Vec<u8>, delay: u64) {
        self.arrive(bytes, Truth::Genuine { sequence }, delay);
    }

    fn delay(&mut self, sequence: u64, bytes: Vec<u8>, at_most: u64) {
        let places = 1 + self.random.usize(..at_most as usize) as u64;
        self.pass(sequence, bytes, places);
    }

    fn damage(&mut self, sequence: u64, bytes: &[u8]) {
        let (damaged, truth) = flip_a_bit(&mut self.random, bytes, sequence);
        self.arrive(damaged, truth, 0);
    }

    fn cut(&mut self, bytes: &[u8]) {
        let len = self.random.usize(..bytes.len());
        self.arrive(bytes[..len].to_vec(), Truth::Hostile, 0);
    }

    /// Link layers pad short frames: receivers ignore bytes after the datagram.
    fn pad(&mut self, sequence: u64, mut bytes: Vec<u8>) {
        let padded = bytes.len() + 1 + self.random.usize(..40);
        bytes.resize(padded, 0xEE);
        self.pass(sequence, bytes, 0);
    }

    /// A router cuts the datagram. Its fragments come in any order, some of them twice, or one is missing or
    /// overlaps the others.
    fn fragment(&mut self, sequence: u64, bytes: Vec<u8>) {
        let is_ah = bytes[if bytes[0] >> 4 == 4 { 9 } else { 6 }] == protocol::AH;
        if is_ah && bytes[0] >> 4 == 4 {
            // AH covers the identification: what routers may cut has to be sent with one.
            return self.pass(sequence, bytes, 0);
        }
        self.identification += 2;
        let whole = fragmentable(bytes, self.identification as u16);
        // AH is of the headers that no fragment of IPv6 may cut off (RFC 7112 5).
        let least = if is_ah { 12 } else { 2 };
        let payload = 8 * (least + self.random.usize(..80));
        let mut all = fragments(&whole, self.identification, payload);
        if all.len() == 1 {
            return self.pass(sequence, whole, 0);
        }
        self.random.shuffle(&mut all);
        let last = match self.random.usize(..8) {
            0 => {
                all.pop();
                Truth::Hostile
            }
            1 => {
                let header = header_bytes(&whole);
                let bytes = (whole.len() - header) / 8 * 8;
                let mut noise = crate::support::random_bytes(&mut self.random, bytes);
                // With the chain of headers whole: it would be dropped alone otherwise, and the others pass.
                noise[..8 * least].copy_from_slice(&whole[header..header + 8 * least]);
                let part = Part { offset: 0, bytes, more: true };
                all.insert(1, fragment_with(&whole, self.identification, part, &noise));
                Truth::Hostile
            }
            _ => Truth::Genuine { sequence },
        };
        let end = all.len() - 1;
        for (place, fragment) in all.into_iter().enumerate() {
            if place == end {
                return self.arrive(fragment, last, 0);
            }
            if self.random.usize(..8) == 0 {
                self.arrive(fragment.clone(), Truth::Hostile, 0);
            }
            self.arrive(fragment, Truth::Hostile, 0);
        }
    }

    fn arrive(&mut self, bytes: Vec<u8>, truth: Truth, delay: u64) {
        self.order += 1;
        let arrival = Arrival { bytes, truth };
        self.delayed.push(Reverse(Delayed { due: self.time + delay, order: self.order, arrival }));
    }

    fn release(&mut self, until: u64) {
        while self.delayed.peek().is_some_and(|d| d.0.due <= until) {
            self.ready.extend(self.delayed.pop().map(|d| d.0.arrival));
        }
    }

    /// The next datagram to reach the other side.
    pub fn next(&mut self) -> Option<Arrival> {
        self.ready.pop_front()
    }

    /// Lets everything in flight arrive.
    pub fn flush(&mut self) {
        for held in std::mem::take(&mut self.held) {
            self.pass(held.sequence, held.bytes, 0);
        }
        self.release(u64::MAX);
    }

    /// Sends everything that was ever captured again, in random order.
    pub fn replay_everything(&mut self) {
        let mut captured = std::mem::take(&mut self.captured);
        for last in (1..captured.len()).rev() {
            captured.swap(last, self.random.usize(..last + 1));
        }
        for (sequence, bytes) in captured {
            self.pass(sequence, bytes, 0);
        }
        self.flush();
    }
}
