//! A clock that a random time passes on between two readings, as if everything took a random time.

use fastrand::Rng;
use std::sync::Mutex;
use std::time::Duration;
use testudo_gateway::Clock;
use testudo_ipsec::Moment;

/// Up to a tenth of a millisecond between two readings, and up to 10 ms for one in a thousand.
pub struct HurriedClock(Mutex<(Rng, Duration)>);

impl HurriedClock {
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new((Rng::with_seed(seed), Duration::ZERO)))
    }
}

impl Clock for HurriedClock {
    fn now(&self) -> Moment {
        let mut state = self.0.lock().expect("nobody panics with the clock");
        let most_us = if state.0.u32(..1000) == 0 { 10_000 } else { 100 };
        let passed = state.0.u64(..most_us);
        state.1 += Duration::from_micros(passed);
        Moment(state.1)
    }
}
