//! A device of known rate, latency and loss, in virtual time: the judge of the methods.
//!
//! Packets come from the real [`Generator`](crate::generator::Generator) and go to the real
//! [`Arrivals`]; only the clock and what is between them are played: a queue before a server of constant
//! rate, and a delay after it.

use fastrand::Rng;

use super::device::{Ceiling, Device, DeviceError, Limit, Load, Trial};
use crate::generator::{Arrivals, Sizes, Stamp};

/// What is added to the time in the queue.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Delay {
    /// Always so many nanoseconds.
    Fixed(u64),
    /// Any from the first to the second, all equally likely.
    Uniform(u64, u64),
    /// The first, but the second for one packet in so many.
    Rare(u64, u64, u64),
    /// The first, but for one packet in 20 another, from the second to the third, which is drawn anew for
    /// each trial.
    Wandering(u64, u64, u64),
}

/// The device. Rates are packets per second.
#[derive(Debug, Clone)]
pub(crate) struct FakeDevice {
    pub(crate) rate: f64,
    /// Packets that may wait.
    pub(crate) queue: f64,
    pub(crate) delay: Delay,
    /// The share of packets that are lost whatever the rate.
    pub(crate) loss: f64,
    /// By what share of it the rate changes from trial to trial, up and down.
    pub(crate) wander: f64,
    /// Rates between these lose every second packet.
    pub(crate) bad_band: (f64, f64),
    /// The highest rate, and what sets it.
    pub(crate) medium: f64,
    pub(crate) limit: Limit,
    /// The rate that its generator reaches.
    pub(crate) generator: f64,
    /// So many trials to come are disturbed, and lose a packet.
    pub(crate) disturbed: u32,
    pub(crate) trials: u16,
    /// Of this trial's slow packets.
    pub(crate) slow_ns: u64,
    pub(crate) draw: Rng,
    /// Its clock, in nanoseconds.
    pub(crate) now_ns: u64,
}

impl FakeDevice {
    /// A device that forwards so many packets a second, keeps 64, and adds 10 µs.
    pub(crate) fn new(rate: f64, seed: u64) -> Self {
        println!("seed {seed}");
        Self {
            rate,
            queue: 64.0,
            delay: Delay::Fixed(10_000),
            loss: 0.0,
            wander: 0.0,
            bad_band: (0.0, 0.0),
            medium: 4.0 * rate,
            limit: Limit::Medium,
            generator: f64::INFINITY,
            disturbed: 0,
            trials: 0,
            slow_ns: 0,
            draw: Rng::with_seed(seed),
            now_ns: 1_000,
        }
    }

    fn delay_ns(&mut self) -> u64 {
        match self.delay {
            Delay::Fixed(ns) => ns,
            Delay::Uniform(from, to) => self.draw.u64(from..=to),
            Delay::Wandering(usual, ..) if self.draw.u64(..20) != 0 => usual,
            Delay::Wandering(..) => self.slow_ns,
            Delay::Rare(usual, rare, one_in) => {
                if self.draw.u64(..one_in) == 0 {
                    rare
                } else {
                    usual
                }
            }
        }
    }

    /// What comes out, with the time, of packets sent at these times.
    fn carry(&mut self, sent: &[Stamp], load: Load) -> Vec<(u64, Stamp)> {
        let rate = self.rate * (1.0 + self.wander * (2.0 * self.draw.f64() - 1.0));
        let is_bad = (self.bad_band.0..self.bad_band.1).contains(&load.packets_per_second);
        let (mut free_at, service_ns) = (0.0_f64, 1e9 / rate);
        let mut arrivals = Vec::new();
        for (number, stamp) in sent.iter().enumerate() {
            let at = stamp.sent_ns as f64;
            let is_lost = self.draw.f64() < self.loss || (is_bad && number % 2 == 0);
            if is_lost || (free_at - at) / service_ns > self.queue {
                continue;
            }
            free_at = free_at.max(at) + service_ns;
            let done = super::count(free_at) + self.delay_ns();
            arrivals.push((done, *stamp));
        }
        arrivals.sort_by_key(|(at, _)| *at);
        arrivals
    }
}

impl Device for FakeDevice {
    fn maximum_rate(&mut self, _: Sizes) -> Result<Ceiling, DeviceError> {
        Ok(Ceiling { packets_per_second: self.medium, limit: self.limit })
    }

    fn trial(&mut self, _: Sizes, load: Load) -> Result<Trial, DeviceError> {
        self.trials += 1;
        if let Delay::Wandering(_, from, to) = self.delay {
            self.slow_ns = self.draw.u64(from..=to);
        }
        let reached = Load { packets_per_second: load.packets_per_second.min(self.generator), ..load };
        let (mut generator, mut sent) = (reached.generator(self.trials, self.now_ns), Vec::new());
        while !generator.is_done() {
            generator.poll(self.now_ns, |stamp| sent.push(stamp));
            self.now_ns = self.now_ns.max(generator.next_due_ns());
        }
        let is_disturbed = self.disturbed > 0;
        self.disturbed = self.disturbed.saturating_sub(1);
        let mut arrivals = Arrivals::new(self.trials);
        for (at, stamp) in self.carry(&sent, load).into_iter().skip(usize::from(is_disturbed)) {
            arrivals.take(stamp, at);
            self.now_ns = self.now_ns.max(at);
        }
        let trial = Trial::of(load, &generator, arrivals);
        let busy = trial.received as f64 / self.rate / trial.sending.as_secs_f64();
        Ok(Trial { is_disturbed, busy_share: Some(busy.min(1.0)), ..trial })
    }
}
