//! What keeps packets from going faster, in words.

use super::change::Change;
use super::reading::Reading;
use testudo_packet::Stage;

/// From this share on, the time that the worker waits for a processor says more than what it does on one.
/// Interrupts and the scheduler's tick stay below a few percent.
const QUEUED: f64 = 0.20;
/// A worker that sleeps for more than the rest has enough processor time, even if it gets it late: a tunnel
/// over a slow link, on a machine busy with other things, waits for a processor at each packet and could
/// carry many times as much.
const WANTED: f64 = 0.70;
/// From this share of the time on, as the stage clock saw it, the worker is the bottleneck. The clock does
/// not see all of a busy worker: calls that find a port empty and checks for commands come between its
/// batches, up to a third of the time where a call brings one packet.
const BUSY: f64 = 0.80;
/// A worker that runs, or would run, for this share of the time never sleeps: it is the bottleneck if it is
/// at least [`HALF`] busy with packets.
const AWAKE: f64 = 0.90;
/// From this share on, a port that accepts nothing is the bottleneck of a worker that is not busy. A burst
/// slightly longer than a socket's buffer shows as a few percent, and costs nothing.
const WAITING: f64 = 0.25;
/// From this share on, the future bottleneck is worth reporting.
const HALF: f64 = 0.50;

/// What keeps packets from going faster.
#[derive(Debug, Clone, PartialEq)]
pub enum Bottleneck {
    /// There are no packets.
    NoPackets,
    /// Other processes have the processors that the worker needs.
    Processors {
        /// Share of the time in which a worker waited for one, 0 to 1.
        queued: f64,
    },
    /// A stage of the workers.
    Stage(Heaviest),
    /// One worker, while others have time left.
    OneWorker {
        /// Which.
        number: usize,
        /// Share of its time, 0 to 1.
        busy: f64,
    },
    /// A port accepts no more.
    Port {
        /// `protected` or `unprotected`.
        side: &'static str,
        /// Share of the time in which packets waited for it, 0 to 1.
        waiting: f64,
    },
    /// The pool has no buffers for more packets in flight.
    Buffers,
    /// Something before or after the gateway. If the worker is half busy already: the gateway's future
    /// bottleneck.
    Elsewhere {
        /// What would be it here.
        next: Option<Heaviest>,
    },
}

/// The most expensive stage of the most expensive direction.
#[derive(Debug, Clone, PartialEq)]
pub struct Heaviest {
    /// `outbound` or `inbound`.
    pub direction: &'static str,
    /// Which stage.
    pub stage: Stage,
    /// Of its direction, of 1.
    pub share: f64,
    /// Cycles of a packet in all stages.
    pub cycles_per_packet: f64,
}

fn heaviest(change: &Change) -> Option<Heaviest> {
    let [outbound, inbound] = change.directions();
    let (name, direction) = if inbound.1.busy > outbound.1.busy { inbound } else { outbound };
    let stage = direction.largest_stage()?;
    let (share, cycles_per_packet) = (direction.share(stage)?, direction.cycles().0?);
    Some(Heaviest { direction: name, stage, share, cycles_per_packet })
}

fn is_worker_full(change: &Change) -> bool {
    let is_awake = change.worker.is_some_and(|(ran, queued)| ran + queued >= AWAKE);
    change.busy() >= BUSY || (is_awake && change.busy() >= HALF)
}

/// The busiest of several workers, if it has no time left.
fn full_one_of_several(change: &Change) -> Option<(usize, f64)> {
    let workers = change.workers.iter().enumerate().filter(|_| change.workers.len() > 1);
    let busiest = workers.max_by(|a, b| a.1.busy.total_cmp(&b.1.busy))?;
    (busiest.1.busy >= BUSY).then_some((busiest.0, busiest.1.busy))
}

/// Names the bottleneck. A worker without a processor comes first, because all of its stages seem slow; a
/// busy one comes next, because everything else waits for it.
#[must_use]
pub fn bottleneck(change: &Change) -> Bottleneck {
    if change.directions().iter().all(|(_, direction)| direction.packets_per_second == 0.0)
        && change.ports().iter().all(|(_, port)| port.waiting < WAITING)
    {
        return Bottleneck::NoPackets;
    }
    let is_starved = |&(ran, queued): &(f64, f64)| queued >= QUEUED && ran + queued >= WANTED;
    if let Some((_, queued)) = change.worker.filter(is_starved) {
        return Bottleneck::Processors { queued };
    }
    let heaviest = heaviest(change);
    if let Some(heaviest) = heaviest.clone().filter(|_| is_worker_full(change)) {
        return Bottleneck::Stage(heaviest);
    }
    if let Some((number, busy)) = full_one_of_several(change) {
        return Bottleneck::OneWorker { number, busy };
    }
    let [protected, unprotected] = change.ports();
    let (side, port) = if unprotected.1.waiting > protected.1.waiting { unprotected } else { protected };
    if port.waiting >= WAITING {
        return Bottleneck::Port { side, waiting: port.waiting };
    }
    if change.is_out_of_buffers {
        return Bottleneck::Buffers;
    }
    Bottleneck::Elsewhere { next: heaviest.filter(|_| change.busy() >= HALF) }
}

/// What a stage does that an engineer might not guess from its name.
fn what(stage: Stage) -> &'static str {
    match stage {
        Stage::Receive => "receive (taking packets from the port)",
        Stage::Framing => "framing (replay check or sequence numbers, headers)",
        Stage::Sa => "SA lookup",
        Stage::Transmit => "transmit (giving packets to the port)",
        other => other.name(),
    }
}

impl Bottleneck {
    /// For programs: a word, and for a port or a stage which.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Bottleneck::NoPackets => "none",
            Bottleneck::Processors { .. } => "processors",
            Bottleneck::Stage(_) | Bottleneck::OneWorker { .. } => "worker",
            Bottleneck::Port { .. } => "port",
            Bottleneck::Buffers => "buffers",
            Bottleneck::Elsewhere { .. } => "elsewhere",
        }
    }

    /// For people: one sentence.
    #[must_use]
    pub fn tell(&self, change: &Change, reading: &Reading) -> String {
        let busy = change.busy() * 100.0;
        match self {
            Bottleneck::NoPackets => "no packets arrived: there is no bottleneck".to_owned(),
            Bottleneck::OneWorker { number, busy: one } => format!(
                "bottleneck: worker {number}, {:.0} % busy, while all together are {busy:.0} % busy: its flows are more than its share",
                one * 100.0
            ),
            Bottleneck::Processors { queued } => format!(
                "bottleneck: processor time: the worker waited for a processor {:.0} % of the time, while others ran there; worker {busy:.0} % busy",
                queued * 100.0
            ),
            Bottleneck::Stage(heaviest) => {
                let Heaviest { direction, stage, share, cycles_per_packet } = heaviest;
                let advice = match (stage, &reading.missed_engine) {
                    (Stage::Cryptography, Some((name, why))) => {
                        format!("; the engine {name} is not in use: {why}")
                    }
                    _ => String::new(),
                };
                format!(
                    "bottleneck: {}, {:.0} % of {cycles_per_packet:.0} cycles per {direction} packet; worker {busy:.0} % busy{advice}",
                    what(*stage),
                    share * 100.0
                )
            }
            Bottleneck::Port { side, waiting } => format!(
                "bottleneck: the {side} port: packets waited for it {:.0} % of the time; the worker is {busy:.0} % busy",
                waiting * 100.0
            ),
            Bottleneck::Buffers => format!(
                "bottleneck: no free buffers, so packets wait in the kernel: raise `buffers`; the worker is {busy:.0} % busy"
            ),
            Bottleneck::Elsewhere { next } => {
                let next = next
                    .as_ref()
                    .map_or(String::new(), |h| format!("; next here: {}, {}", what(h.stage), h.direction));
                format!("the worker is {busy:.0} % busy: the bottleneck is not this gateway{next}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::change::{WorkerRates, reading};
    use super::*;

    #[test]
    fn one_full_worker_of_several_is_the_bottleneck() {
        let mut change = Change::between(&reading(1), &reading(2)).unwrap();
        change.outbound.packets_per_second = 1.0;
        let worker = |busy| WorkerRates {
            role: testudo_gateway::Role::Both,
            is_parked: false,
            outbound_per_second: 1.0,
            inbound_per_second: 0.0,
            dropped_per_second: 0.0,
            busy,
        };
        change.workers = vec![worker(0.1), worker(0.9)];
        let found = bottleneck(&change);
        assert_eq!(found, Bottleneck::OneWorker { number: 1, busy: 0.9 });
        let words = found.tell(&change, &Reading::default());
        assert!(words.starts_with("bottleneck: worker 1, 90 % busy"), "{words}");
        change.workers = vec![worker(0.9)];
        assert_ne!(bottleneck(&change), Bottleneck::OneWorker { number: 0, busy: 0.9 }, "there is no other");
    }

    /// A second in which the worker was busy for so many thousandths, with cryptography most of all.
    fn load(outbound: u64, inbound: u64) -> (Reading, Reading) {
        let (a, mut b) = (reading(1), reading(2));
        for (times, port, busy) in
            [(&mut b.outbound, &mut b.protected, outbound), (&mut b.inbound, &mut b.unprotected, inbound)]
        {
            times.ticks[Stage::Cryptography as usize] = busy * 1_000_000 / 8 * 3 / 5;
            times.ticks[Stage::Transmit as usize] = busy * 1_000_000 / 8 * 2 / 5;
            (times.packets, times.batches) = (busy * 125, busy);
            port.counters.rx_packets = busy * 1000;
        }
        (a, b)
    }

    fn named(readings: &(Reading, Reading)) -> (Bottleneck, String) {
        let change = Change::between(&readings.0, &readings.1).unwrap();
        let found = bottleneck(&change);
        let words = found.tell(&change, &readings.1);
        (found, words)
    }

    #[test]
    fn a_busy_worker_is_the_bottleneck_and_its_heaviest_stage_is_named() {
        let (found, words) = named(&load(300, 650));
        assert_eq!(found.kind(), "worker");
        assert_eq!(
            words,
            "bottleneck: cryptography, 60 % of 1000 cycles per inbound packet; worker 95 % busy"
        );
        assert!(named(&load(650, 300)).1.contains("per outbound packet"));
    }

    #[test]
    fn a_missing_faster_engine_is_reported() {
        let mut readings = load(950, 0);
        readings.1.missed_engine = Some(("ipsec-mb".into(), "no library".into()));
        assert!(named(&readings).1.ends_with("; the engine ipsec-mb is not in use: no library"));
    }

    #[test]
    fn a_worker_that_waits_for_a_processor_is_reported_first() {
        let mut readings = load(900, 0);
        (readings.0.worker, readings.1.worker) = (Some((0, 0)), Some((650_000_000, 300_000_000)));
        let (found, words) = named(&readings);
        assert_eq!(found, Bottleneck::Processors { queued: 0.3 });
        assert!(
            words.starts_with("bottleneck: processor time: the worker waited for a processor 30 % of"),
            "{words}"
        );
        readings.1.worker = Some((900_000_000, 50_000_000));
        assert_eq!(named(&readings).0.kind(), "worker");
        let mut readings = load(60, 0);
        (readings.0.worker, readings.1.worker) = (Some((0, 0)), Some((80_000_000, 210_000_000)));
        assert_eq!(named(&readings).0.kind(), "elsewhere", "it sleeps most of the time");
    }

    #[test]
    fn a_worker_that_never_sleeps_is_the_bottleneck_even_if_the_stage_clock_misses_time() {
        let mut readings = load(600, 0);
        (readings.0.worker, readings.1.worker) = (Some((0, 0)), Some((900_000_000, 50_000_000)));
        assert_eq!(named(&readings).0.kind(), "worker");
        readings.1.worker = Some((700_000_000, 50_000_000));
        assert_eq!(named(&readings).0.kind(), "elsewhere");
    }

    #[test]
    fn an_idle_worker_is_not_the_bottleneck() {
        let (found, words) = named(&load(100, 20));
        assert_eq!(found, Bottleneck::Elsewhere { next: None });
        assert_eq!(words, "the worker is 12 % busy: the bottleneck is not this gateway");
        let (_, words) = named(&load(600, 0));
        assert!(words.ends_with("not this gateway; next here: cryptography, outbound"), "{words}");
    }

    #[test]
    fn a_port_that_accepts_nothing_is_the_bottleneck_unless_the_worker_is_busy() {
        let mut readings = load(200, 0);
        readings.1.unprotected.waited_ticks = 700_000_000;
        let (found, words) = named(&readings);
        assert_eq!(found.kind(), "port");
        assert_eq!(
            words,
            "bottleneck: the unprotected port: packets waited for it 70 % of the time; the worker is 20 % busy"
        );
        let mut readings = load(900, 0);
        readings.1.unprotected.waited_ticks = 700_000_000;
        assert_eq!(named(&readings).0.kind(), "worker");
    }

    #[test]
    fn a_stuck_port_is_the_bottleneck_even_if_no_packets_arrive() {
        let mut readings = load(0, 0);
        readings.1.unprotected.waited_ticks = 1_000_000_000;
        assert_eq!(named(&readings).0.kind(), "port");
    }

    #[test]
    fn an_empty_pool_is_the_bottleneck_and_without_packets_there_is_none() {
        let mut readings = load(200, 0);
        readings.1.free_buffers = 0;
        assert_eq!(named(&readings).0, Bottleneck::Buffers);
        assert_eq!(named(&load(0, 0)).0, Bottleneck::NoPackets);
    }

    #[test]
    fn without_measured_batches_no_stage_is_named() {
        let (a, mut b) = (reading(1), reading(2));
        b.protected.counters.rx_packets = 3;
        assert_eq!(named(&(a, b)).0, Bottleneck::Elsewhere { next: None });
    }
}
