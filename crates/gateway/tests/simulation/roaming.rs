//! A peer of VPE that moves now and then, several workers that hear it, of one another late, and an attacker
//! who keeps packets back and sends them from elsewhere: all of it driven by a seed.

use crate::support::learner::{Learner, Place, moved_to, packet};
use crate::support::random::seed;
use fastrand::Rng;
use std::collections::VecDeque;
use std::time::Duration;
use testudo_ipsec::Event;

const STEP: Duration = Duration::from_millis(100);
/// Steps of a second.
const SECOND: usize = 10;
const WINDOWS: usize = 6;
const ATTACKER: Place = (66, 6666);

/// A packet that the attacker has.
#[derive(Clone, Copy)]
struct Kept {
    window: usize,
    number: u64,
    /// The step in which the peer sent it.
    sent: usize,
}

struct World {
    random: Rng,
    b: Learner,
    /// What each worker is yet to hear of the others.
    unheard: Vec<VecDeque<Event>>,
    numbers: [u64; WINDOWS],
    /// Whether the attacker has kept the last packet of each window back.
    has_gap: [bool; WINDOWS],
    kept: Vec<Kept>,
    peer: Place,
    /// The highest number of each window that was delivered.
    tops: [u64; WINDOWS],
    /// Where the gateway has it, and the last step in which news came from there.
    believed: Option<(Place, usize)>,
    step: usize,
    moves: [usize; 2],
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let workers = random.usize(1..=4);
        // Numbers of windows have nothing to do with one another.
        let numbers = [(); WINDOWS].map(|()| random.u64(1..1_000_000));
        Self {
            b: Learner::new(workers),
            unheard: vec![VecDeque::new(); workers],
            numbers,
            has_gap: [false; WINDOWS],
            kept: Vec::new(),
            peer: (7, 1111),
            tops: [0; WINDOWS],
            believed: None,
            step: 0,
            moves: [0; 2],
            random,
        }
    }

    /// Some worker receives a packet that the peer sent in this step.
    fn arrive(&mut self, Kept { window, number, sent }: Kept, place: Place) {
        let worker = self.random.usize(..self.b.workers.len());
        let (delivered, events) = self.b.take(worker, packet(window as u16, number, place));
        for event in events {
            let Some(there) = moved_to(event) else { continue };
            assert_eq!(there, place);
            if let Some((before, heard)) = self.believed {
                assert!(self.step >= heard + SECOND, "a peer that is alive was moved");
                assert!(sent + SECOND >= heard, "moved by what was sent {} steps before", heard - sent);
                assert_ne!(before, there);
            }
            self.moves[usize::from(place == ATTACKER)] += 1;
            self.believed = Some((place, self.step));
            self.unheard.iter_mut().for_each(|unheard| unheard.push_back(event));
        }
        let is_news = delivered > 0 && number > self.tops[window];
        if is_news {
            self.tops[window] = number;
        }
        if let Some((believed, heard)) = &mut self.believed
            && *believed == place
            && is_news
        {
            *heard = self.step;
        }
    }

    /// The peer sends in a window. The attacker may keep the packet back, but not two of a window in a row.
    fn send(&mut self, window: usize, is_attacked: bool) {
        self.numbers[window] += 1;
        let packet = Kept { window, number: self.numbers[window], sent: self.step };
        self.has_gap[window] = is_attacked && !self.has_gap[window] && self.random.usize(..4) == 0;
        if self.has_gap[window] { self.kept.push(packet) } else { self.arrive(packet, self.peer) }
    }

    fn hear(&mut self, all: bool) {
        for worker in 0..self.unheard.len() {
            while (all || self.random.bool())
                && let Some(event) = self.unheard[worker].pop_front()
            {
                self.b.tell(worker, event);
            }
        }
    }

    fn pass(&mut self) {
        self.step += 1;
        self.b.wait(STEP);
    }

    fn run(&mut self, steps: usize) {
        // Windows in use, the steps between two packets, and until when.
        let (mut windows, mut every, mut until) = (0..WINDOWS, 1, 0);
        while self.step < steps {
            self.pass();
            if self.step >= until {
                let first = self.random.usize(..WINDOWS);
                windows = first..self.random.usize(first + 1..=WINDOWS);
                every = [1, 3, 7, 15, 40][self.random.usize(..5)];
                until = self.step + self.random.usize(10..100);
                self.peer = (7 + self.random.u8(..3), 1111);
            }
            if self.step.is_multiple_of(every) {
                let window = self.random.usize(windows.clone());
                self.send(window, true);
            }
            if self.random.usize(..8) == 0 && !self.kept.is_empty() {
                let kept = self.kept.swap_remove(self.random.usize(..self.kept.len()));
                self.arrive(kept, ATTACKER);
            }
            self.hear(false);
        }
    }

    /// The attacker has nothing more, and the peer speaks in one window: it is found by a packet for the
    /// second in which the attacker's may have come last, and one for the window to speak.
    fn settle(&mut self) {
        self.peer = (20, 2020);
        let window = self.random.usize(..WINDOWS);
        for _ in 0..SECOND + 2 {
            self.pass();
            self.send(window, false);
        }
        self.hear(true);
        assert_eq!(self.b.target(), Some(self.peer), "it is found in the end");
    }
}

/// A peer that is heard is never moved; nothing that it sent more than a second before its last words moves
/// it; and wherever it is in the end, in whichever window it speaks, all workers find it little more than a
/// second later.
#[test]
fn a_peer_that_roams_is_followed_and_no_packet_that_was_kept_back_long_moves_it() {
    let mut random = Rng::with_seed(seed());
    let mut moves = [0; 2];
    for _ in 0..60 {
        let own = random.u64(..);
        let mut world = World::new(own);
        let run = std::panic::AssertUnwindSafe(|| {
            world.run(1500);
            world.settle();
            world.moves
        });
        let made = std::panic::catch_unwind(run).unwrap_or_else(|panic| {
            eprintln!("world {own:#x} of seed {:#x}", seed());
            std::panic::resume_unwind(panic)
        });
        moves = [moves[0] + made[0], moves[1] + made[1]];
    }
    // An attacker who has the last words of a peer that is silent moves it (`docs/VPE.md`).
    assert!(moves[0] > 500 && moves[1] > 20, "the peer itself was followed, and misled: {moves:?}");
}
