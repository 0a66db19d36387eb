//! What daemons said when they renewed a CHILD_SA, played to two gateways in memory while numbered packets
//! pass between them, both ways.
//!
//! ```text
//!   numbered ─► worker A ═══ ESP ═══ worker B ─► are all there?
//!                  ▲                    ▲
//!      recorded: XFRM of A        XFRM of B
//! ```
//!
//! `make bench-ike` plays them at full rate and says how fast packets were meanwhile. Beside that, a
//! daemon gone mad, and packets of a tunnel that is not its own.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

#[path = "../played/mod.rs"]
mod played;

mod full_rate;
mod mad_daemon;
mod ports;
mod turn_by_turn;

use played::{CHARONS, Gateway, Part, Recording, Said, Warrior};

/// Two gateways, what is played to them, and by whom.
struct Pair {
    gateways: [Gateway; 2],
    recording: Recording,
    warrior: Warrior,
    sequence: u32,
}

impl Pair {
    /// Nothing is negotiated yet.
    fn new(gateways: [Gateway; 2]) -> Self {
        let recording = Recording::read(CHARONS).expect("a recording");
        Self { gateways, recording, warrior: Warrior::in_memory(0), sequence: 0 }
    }

    /// Plays a part that was recorded behind `before`; `between` happens around each message.
    fn plays(&mut self, name: &str, before: Option<&str>, mut between: impl FnMut(&[Gateway; 2])) {
        let part = self.part(name);
        let before = before.map(|name| self.part(name));
        self.warrior.begin(&part, before.as_ref(), None);
        for said in &part.said {
            between(&self.gateways);
            self.says(said);
            between(&self.gateways);
        }
    }

    fn part(&self, name: &str) -> Part {
        self.recording.part(name).expect("a part of the recording").clone()
    }

    fn says(&mut self, said: &Said) {
        self.sequence += 1;
        let request = self.warrior.says(said, self.sequence);
        if let Some(spi) = self.gateways[said.host].hears(&request) {
            self.warrior.reserved(said, spi);
        }
    }

    /// Both ends renew the CHILD_SA `rounds` times, in turn.
    fn renew(&mut self, rounds: usize, mut between: impl FnMut(&[Gateway; 2])) {
        for _ in 0..rounds {
            self.plays("renewed by a", Some("negotiated"), &mut between);
            self.plays("renewed by b", Some("renewed by a"), &mut between);
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}
