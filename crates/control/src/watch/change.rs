//! What happened between two readings: rates, shares, cycles. Computed here, shown elsewhere.

use super::reading::{Port, Reading, Worker};
use super::shares::{self, EngineShare};
use testudo_gateway::Role;
use testudo_packet::{Stage, StageTimes};

/// What happened between two readings of one gateway.
#[derive(Debug, Clone)]
pub struct Change {
    /// Of the gateway's own time.
    pub seconds: f64,
    /// Ticks of the processor's clock.
    pub ticks_per_second: f64,
    /// Packets from the protected side.
    pub outbound: Direction,
    /// Packets from the unprotected side.
    pub inbound: Direction,
    /// The port of the protected side.
    pub protected: PortRates,
    /// The port of the unprotected side.
    pub unprotected: PortRates,
    /// Packets a second, for each reason that occurred.
    pub drops: Vec<(String, f64)>,
    /// Shares of the time, 0 to 1, in which a worker was on a processor and in which it waited for one, if
    /// the kernel reports them: the mean of all workers.
    pub worker: Option<(f64, f64)>,
    /// Each worker.
    pub workers: Vec<WorkerRates>,
    /// Whether the pool was empty at either end.
    pub is_out_of_buffers: bool,
    /// What each engine did, where jobs are placed by what they cost.
    pub shares: Vec<EngineShare>,
}

/// One direction: packets that came in at one side.
#[derive(Debug, Clone)]
pub struct Direction {
    /// Packets that came in.
    pub packets_per_second: f64,
    /// Of inner packets.
    pub gbit_s: f64,
    /// Packets per system call or device operation; `None` if none came.
    pub packets_per_call: Option<f64>,
    /// Share of the workers' time that they spent on it, 0 to 1.
    pub busy: f64,
    /// Of the measured batches.
    pub times: StageTimes,
}

/// One worker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WorkerRates {
    /// Which directions it has.
    pub role: Role,
    /// Whether its queues get no packets.
    pub is_parked: bool,
    /// Packets from the protected side.
    pub outbound_per_second: f64,
    /// Packets from the unprotected side.
    pub inbound_per_second: f64,
    /// Packets that it dropped.
    pub dropped_per_second: f64,
    /// Share of the time that it spent on packets, 0 to 1.
    pub busy: f64,
}

/// One port.
#[derive(Debug, Clone)]
pub struct PortRates {
    /// Its interface, and of a fast one its kind.
    pub name: String,
    /// Packets that came in by it.
    pub rx_packets_per_second: f64,
    /// The same in 10^9 bits a second.
    pub rx_gbit_s: f64,
    /// Packets that went out by it.
    pub tx_packets_per_second: f64,
    /// The same in 10^9 bits a second.
    pub tx_gbit_s: f64,
    /// Share of the time in which packets waited for it, 0 to 1.
    pub waiting: f64,
}

/// How many times as busy as the idlest worker the busiest one may be before that is told.
const UNBALANCED: f64 = 1.5;
/// From this share of its time on a worker is busy enough for a comparison.
const UNBALANCED_FROM: f64 = 0.1;

/// `part` of `whole`; `None` if `whole` is zero.
fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// As [`ratio`], at most 1, and 0 if `whole` is zero. Two readings of a running worker can be a batch apart,
/// so a share may come out above 1.
fn share(part: u64, whole: u64) -> f64 {
    ratio(part, whole).unwrap_or(0.0).min(1.0)
}

impl Direction {
    /// Packets that the worker took in one turn.
    #[must_use]
    pub fn packets_per_batch(&self) -> Option<f64> {
        ratio(self.times.packets, self.times.batches)
    }

    /// Cycles of a packet in one stage.
    #[must_use]
    pub fn cycles_per_packet(&self, stage: Stage) -> Option<f64> {
        ratio(self.times.of(stage), self.times.packets)
    }

    /// Cycles of a batch in one stage.
    #[must_use]
    pub fn cycles_per_batch(&self, stage: Stage) -> Option<f64> {
        ratio(self.times.of(stage), self.times.batches)
    }

    /// Cycles of a packet, and of a batch, in all stages.
    #[must_use]
    pub fn cycles(&self) -> (Option<f64>, Option<f64>) {
        let total = self.times.total();
        (ratio(total, self.times.packets), ratio(total, self.times.batches))
    }

    /// One stage's share of all stages, 0 to 1.
    #[must_use]
    pub fn share(&self, stage: Stage) -> Option<f64> {
        ratio(self.times.of(stage), self.times.total())
    }

    /// The stage that takes most.
    #[must_use]
    pub fn largest_stage(&self) -> Option<Stage> {
        let stage = Stage::ALL.into_iter().max_by_key(|stage| self.times.of(*stage))?;
        (self.times.of(stage) > 0).then_some(stage)
    }
}

/// Seconds and ticks between two readings.
struct Interval {
    seconds: f64,
    ticks: u64,
    measured_of: u64,
    workers: u64,
}

impl Interval {
    fn rate(&self, count: u64) -> f64 {
        count as f64 / self.seconds
    }

    fn gbit_s(&self, bytes: u64) -> f64 {
        self.rate(bytes) * 8e-9
    }

    fn port(&self, earlier: &Port, later: &Port) -> PortRates {
        let (then, now) = (&earlier.counters, &later.counters);
        PortRates {
            name: later.name.clone(),
            rx_packets_per_second: self.rate(now.rx_packets - then.rx_packets),
            rx_gbit_s: self.gbit_s(now.rx_bytes - then.rx_bytes),
            tx_packets_per_second: self.rate(now.tx_packets - then.tx_packets),
            tx_gbit_s: self.gbit_s(now.tx_bytes - then.tx_bytes),
            // A wait in progress is counted up to a clock reading of another thread, so the count can go back
            // slightly.
            waiting: share(later.waited_ticks.saturating_sub(earlier.waited_ticks), self.ticks),
        }
    }

    /// The packets that came in at a port; `inner_bytes` counts their inner packets.
    fn direction(&self, from: (&Port, &Port), times: StageTimes, inner_bytes: u64) -> Direction {
        let (then, now) = (&from.0.counters, &from.1.counters);
        let packets = now.rx_packets - then.rx_packets;
        Direction {
            packets_per_second: self.rate(packets),
            gbit_s: self.gbit_s(inner_bytes),
            packets_per_call: ratio(packets, now.rx_calls - then.rx_calls),
            busy: share(
                times.total().saturating_mul(self.measured_of),
                self.ticks.saturating_mul(self.workers),
            ),
            times,
        }
    }

    fn worker(&self, then: &Worker, now: &Worker) -> WorkerRates {
        let rate = |then: u64, now: u64| self.rate(now.saturating_sub(then));
        let ticks = now.ticks.saturating_sub(then.ticks);
        WorkerRates {
            role: now.role,
            is_parked: now.is_parked,
            outbound_per_second: rate(then.packets[0], now.packets[0]),
            inbound_per_second: rate(then.packets[1], now.packets[1]),
            dropped_per_second: rate(then.dropped, now.dropped),
            busy: share(ticks.saturating_mul(self.measured_of), self.ticks),
        }
    }
}

impl Change {
    /// What happened from `earlier` to `later`; `None` if another gateway answers now, or no time has passed.
    #[must_use]
    pub fn between(earlier: &Reading, later: &Reading) -> Option<Self> {
        if !later.continues(earlier) || later.elapsed_ns == earlier.elapsed_ns {
            return None;
        }
        let interval = Interval {
            seconds: (later.elapsed_ns - earlier.elapsed_ns) as f64 * 1e-9,
            ticks: later.clock_ticks - earlier.clock_ticks,
            measured_of: later.measured_of,
            workers: u64::try_from(later.workers.iter().filter(|worker| !worker.is_parked).count())
                .unwrap_or(1)
                .max(1),
        };
        let protected = (&earlier.protected, &later.protected);
        let unprotected = (&earlier.unprotected, &later.unprotected);
        let inner = |get: fn(&Port) -> u64| get(protected.1) - get(protected.0);
        let moved = later.drops.iter().filter_map(|(reason, now)| {
            let then = earlier.drops.iter().find(|(r, _)| r == reason).map_or(0, |(_, count)| *count);
            (*now > then).then(|| (reason.clone(), interval.rate(now - then)))
        });
        Some(Self {
            seconds: interval.seconds,
            ticks_per_second: interval.rate(interval.ticks),
            outbound: interval.direction(
                protected,
                later.outbound.since(&earlier.outbound),
                inner(|port| port.counters.rx_bytes),
            ),
            inbound: interval.direction(
                unprotected,
                later.inbound.since(&earlier.inbound),
                inner(|port| port.counters.tx_bytes),
            ),
            protected: interval.port(protected.0, protected.1),
            unprotected: interval.port(unprotected.0, unprotected.1),
            drops: moved.collect(),
            worker: earlier.worker.zip(later.worker).map(|(then, now)| {
                let elapsed = (later.elapsed_ns - earlier.elapsed_ns).saturating_mul(interval.workers);
                (share(now.0.saturating_sub(then.0), elapsed), share(now.1.saturating_sub(then.1), elapsed))
            }),
            workers: earlier
                .workers
                .iter()
                .zip(&later.workers)
                .map(|(then, now)| interval.worker(then, now))
                .collect(),
            shares: shares::between(&earlier.placed, &later.placed),
            is_out_of_buffers: earlier.free_buffers == 0 || later.free_buffers == 0,
        })
    }

    /// How the packets are spread, where several workers have one role and something to do: the share of the
    /// busiest one's time, and of the idlest one's, if the first has half as much again to do or more.
    #[must_use]
    pub fn imbalance(&self) -> Option<(f64, f64)> {
        Role::ALL.into_iter().find_map(|role| self.imbalance_of(role))
    }

    fn imbalance_of(&self, role: Role) -> Option<(f64, f64)> {
        let is_of = |worker: &&WorkerRates| worker.role == role && !worker.is_parked;
        let busy = || self.workers.iter().filter(is_of).map(|worker| worker.busy);
        let (most, least) = (busy().reduce(f64::max)?, busy().reduce(f64::min)?);
        (most >= UNBALANCED_FROM && most >= UNBALANCED * least && busy().count() > 1).then_some((most, least))
    }

    /// Share of the time in which the workers were busy with packets, 0 to 1.
    #[must_use]
    pub fn busy(&self) -> f64 {
        (self.outbound.busy + self.inbound.busy).min(1.0)
    }

    /// Both directions by name.
    #[must_use]
    pub fn directions(&self) -> [(&'static str, &Direction); 2] {
        [("outbound", &self.outbound), ("inbound", &self.inbound)]
    }

    /// Both ports by side.
    #[must_use]
    pub fn ports(&self) -> [(&'static str, &PortRates); 2] {
        [("protected", &self.protected), ("unprotected", &self.unprotected)]
    }
}

/// A reading after `seconds` of a gateway whose clock ticks 1,000 times in a microsecond.
#[cfg(test)]
pub fn reading(seconds: u64) -> Reading {
    Reading {
        measured_of: 8,
        elapsed_ns: seconds * 1_000_000_000,
        clock_ticks: 77 + seconds * 1_000_000_000,
        free_buffers: 100,
        ..Reading::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9 * b.abs().max(1.0)
    }

    #[test]
    fn rates_are_differences_over_the_gateways_own_time() {
        let (mut a, mut b) = (reading(10), reading(12));
        a.protected.counters.rx_packets = 500;
        b.protected.counters.rx_packets = 2500;
        b.protected.counters.rx_bytes = 500_000_000;
        b.protected.counters.rx_calls = 100;
        b.protected.counters.tx_bytes = 250_000_000;
        b.unprotected.counters.rx_packets = 400;
        b.unprotected.waited_ticks = 500_000_000;
        (a.drops, b.drops) = (vec![("x".into(), 3), ("y".into(), 5)], vec![("x".into(), 3), ("y".into(), 9)]);
        let change = Change::between(&a, &b).unwrap();
        assert!(close(change.seconds, 2.0) && close(change.ticks_per_second, 1e9));
        assert!(close(change.outbound.packets_per_second, 1000.0) && close(change.outbound.gbit_s, 2.0));
        assert!(close(change.inbound.packets_per_second, 200.0) && close(change.inbound.gbit_s, 1.0));
        assert_eq!(change.outbound.packets_per_call, Some(20.0));
        assert_eq!(change.inbound.packets_per_call, None);
        assert!(close(change.unprotected.waiting, 0.25) && close(change.protected.waiting, 0.0));
        assert_eq!(change.drops, [("y".to_owned(), 2.0)]);
        assert!(change.worker.is_none(), "the kernel reported none");
        (a.worker, b.worker) = (Some((0, 7)), Some((500_000_000, 200_000_007)));
        assert_eq!(Change::between(&a, &b).unwrap().worker, Some((0.25, 0.1)));
    }

    #[test]
    fn stage_shares_are_of_measured_batches_and_busy_time_is_extrapolated() {
        let (a, mut b) = (reading(1), reading(2));
        b.outbound.ticks[Stage::Cryptography as usize] = 60_000_000;
        b.outbound.ticks[Stage::Receive as usize] = 20_000_000;
        (b.outbound.packets, b.outbound.batches) = (400_000, 10_000);
        let change = Change::between(&a, &b).unwrap();
        let out = &change.outbound;
        assert_eq!(out.cycles_per_packet(Stage::Cryptography), Some(150.0));
        assert_eq!(out.cycles_per_batch(Stage::Cryptography), Some(6000.0));
        assert_eq!(out.share(Stage::Cryptography), Some(0.75));
        assert_eq!((out.cycles(), out.packets_per_batch()), ((Some(200.0), Some(8000.0)), Some(40.0)));
        assert_eq!(out.largest_stage(), Some(Stage::Cryptography));
        assert!(close(change.busy(), 0.64), "80 of 1000 million ticks were measured, one batch in eight");
    }

    #[test]
    fn an_idle_gateway_has_rates_of_zero_and_no_cycles() {
        let change = Change::between(&reading(1), &reading(2)).unwrap();
        let out = &change.outbound;
        assert!(out.packets_per_second == 0.0 && out.gbit_s == 0.0 && change.busy() == 0.0);
        assert_eq!((out.packets_per_batch(), out.cycles(), out.largest_stage()), (None, (None, None), None));
        assert!(out.share(Stage::Parse).is_none() && out.cycles_per_packet(Stage::Parse).is_none());
        assert!(change.drops.is_empty());
    }

    #[test]
    fn counters_that_decrease_are_another_gateways() {
        let mut before = reading(100);
        before.protected.counters.rx_packets = 1000;
        assert!(Change::between(&before, &reading(1)).is_none(), "its time started again");
        assert!(Change::between(&before, &reading(101)).is_none(), "its counters started again");
        assert!(Change::between(&before, &before).is_none(), "no time has passed");
    }

    #[test]
    fn shares_above_1_are_capped() {
        let (a, mut b) = (reading(1), reading(2));
        b.outbound.ticks[0] = 900_000_000;
        b.protected.waited_ticks = 2_000_000_000;
        let change = Change::between(&a, &b).unwrap();
        assert!(close(change.busy(), 1.0) && close(change.protected.waiting, 1.0));
    }
}
