//! One measurement of one case: the path through the gateway, the floor below it, and the proof that both did
//! real work.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use testudo_crypto::Engine;
use testudo_packet::StageTimes;
use testudo_port_memory::{Demand, LoopPort, Packets};

use super::case::{Case, Size, Way};
use super::engines::Engines;
use super::error::Wrong;
use super::floor::Recorder;
use super::judge;
use super::load::{NEAR_BYTES, packets};
use super::subject::{Run, Subject};

/// One packet in this many of a measured run is kept for the judge. A prime, so that the kept packets cycle
/// through every index of a batch.
const SAMPLE_INTERVAL: usize = 509;
/// Only this many kept packets are held, the newest.
const SAMPLES: usize = 64;
/// Sealed packets that an inbound measurement uses before it starts over: the outbound packets, repeated as
/// often as stays within this number and within [`NEAR_BYTES`]; many SAs need more.
const RING_PACKETS: usize = 4096;
/// Minimum packets of each SA in the ring, unless they would take more than [`RING_MOST_BYTES`].
const RING_PACKETS_PER_SA: usize = 4;
/// Upper limit of the ring: many SAs need many packets, and sealed packets share no bytes.
const RING_MOST_BYTES: usize = 512 << 20;
/// Maximum bytes that ESP adds to a packet, bookkeeping included.
const SEALED_EXTRA_BYTES: usize = 112;
/// Bytes of packets kept for the judge before and after a measured run, and bytes of packets for measuring
/// the floor.
const KEPT_BYTES: usize = 16 << 20;
const FLOOR_BYTES: usize = 64 << 20;
/// Warm-up time before a measurement, for caches and predictors.
const WARM_UP: Duration = Duration::from_millis(2);
/// The same where jobs are placed by what they cost: a gateway that has just started asks each engine for
/// packets of each suite and length.
pub(super) const LEARNING: Duration = Duration::from_millis(500);

/// The figures of one measurement.
#[derive(Debug, Clone)]
pub(super) struct Sample {
    pub(super) run: Run,
    pub(super) floor_cycles_per_packet: f64,
    /// Packets that the judge has checked.
    pub(super) judged: u64,
    /// Jobs that each engine did, where they are placed by what they cost.
    pub(super) done: Jobs,
}

/// A run, packets that the judge has checked, and jobs by engine.
type Outcome = (Run, u64, Jobs);
/// By engine.
type Jobs = BTreeMap<&'static str, u64>;

/// Measures `case` once.
pub(super) fn measure(case: &Case, engines: &mut Engines, duration: Duration) -> Result<Sample, Wrong> {
    let originals = packets(case.suites, case.size, case.sas).map_err(|e| e.to_string())?;
    let judge = engines.judge(case).open()?;
    let opened = case.engines().into_iter().map(|engine| engines.available[engine].open());
    let subject = opened.collect::<Result<Vec<_>, Wrong>>()?;
    match case.way {
        Way::Outbound => {
            let floor = floor(case, engines, &originals, originals.len(), duration)?;
            let (run, judged, done) = outbound(case, subject, judge, &originals, duration)?;
            Ok(Sample { run, floor_cycles_per_packet: floor, judged, done })
        }
        Way::Inbound => {
            let ring = judge::seal(case, judge, &originals, ring_packets(case.sas, case.size, &originals))?;
            let floor = floor(case, engines, &ring, originals.len(), duration)?;
            let (run, judged, done) = inbound(case, subject, ring, &originals, duration)?;
            Ok(Sample { run, floor_cycles_per_packet: floor, judged, done })
        }
    }
}

/// Cycles per packet of the engine alone, of several the fastest, for the jobs that the gateway makes of the
/// first `count` packets of `feed`, at most [`FLOOR_BYTES`] of them.
fn floor(
    case: &Case,
    engines: &mut Engines,
    feed: &Packets,
    count: usize,
    duration: Duration,
) -> Result<f64, Wrong> {
    let all = case.engines();
    let each = duration / 2 / u32::try_from(all.len()).unwrap_or(1).max(1);
    let mut least = f64::INFINITY;
    for engine in all {
        let engine = engines.available[engine].instance.as_mut();
        let (recorder, recorded) = Recorder::beside(engine);
        let count = count.min(FLOOR_BYTES / (case.size.longest_bytes() + SEALED_EXTRA_BYTES));
        let port = LoopPort::new("load", feed.clone()).with_limit(count as u64);
        Subject::new(case, case.way, Box::new(recorder), port)?.exhaust()?;
        least = least.min(recorded.floor(engine, each)?.cycles_per_packet);
    }
    Ok(least)
}

fn outbound(
    case: &Case,
    engines: Vec<Box<dyn Engine>>,
    judge: Box<dyn Engine>,
    originals: &Packets,
    duration: Duration,
) -> Result<Outcome, Wrong> {
    let mut subject = Subject::with(case, Way::Outbound, engines, LoopPort::new("load", originals.clone()))?;
    let mut sealed = capture(case, &mut subject, originals.len())?;
    subject.sink.keep(0, 0);
    subject.run_for(if case.is_placed() { LEARNING } else { WARM_UP })?;
    subject.sink.keep(SAMPLE_INTERVAL, SAMPLES);
    let before = subject.done();
    let run = subject.run_for(duration)?;
    let done = since(subject.done(), &before);
    sealed.extend(subject.sink.take());
    sealed.extend(capture(case, &mut subject, originals.len())?);
    subject.settle()?;
    subject.check_books()?;
    // The judge has as many tunnels, so free the memory first.
    drop(subject);
    let judged = sealed.len() as u64;
    judge::accept(case, judge, sealed, originals)?;
    Ok((run, judged, done))
}

/// Sends `count` more packets and returns them: all, or a sample spread over them if they exceed
/// [`KEPT_BYTES`].
fn capture(case: &Case, subject: &mut Subject, count: usize) -> Result<Vec<Vec<u8>>, Wrong> {
    let most = count.min(KEPT_BYTES / (case.size.longest_bytes() + SEALED_EXTRA_BYTES));
    let interval = count.div_ceil(most.max(1));
    // An odd interval does not sample the same tunnels repeatedly.
    subject.sink.keep(if interval > 1 { interval | 1 } else { 1 }, most);
    subject.advance(count)?;
    Ok(subject.sink.take())
}

/// Number of packets in an inbound measurement's ring: whole rounds of the originals.
pub(super) fn ring_packets(sas: u32, size: Size, originals: &Packets) -> usize {
    let round = originals.len();
    let near = NEAR_BYTES / (originals.bytes() + SEALED_EXTRA_BYTES * round);
    let rounds = near.min(RING_PACKETS / round).max((RING_PACKETS_PER_SA * sas as usize).div_ceil(round));
    let most = RING_MOST_BYTES / ((size.longest_bytes() + SEALED_EXTRA_BYTES) * round);
    round * rounds.min(most).max(1)
}

/// The most SAs that an inbound measurement can have with packets of `size`, with one packet each in the
/// ring.
pub(super) fn most_sas_inbound(size: Size) -> usize {
    RING_MOST_BYTES / (size.longest_bytes() + SEALED_EXTRA_BYTES)
}

pub(super) fn inbound(
    case: &Case,
    engines: Vec<Box<dyn Engine>>,
    ring: Packets,
    originals: &Packets,
    duration: Duration,
) -> Result<Outcome, Wrong> {
    // Installing many tunnels takes longer than measuring them, so the rest of the ring is measured first.
    let has_many = RING_PACKETS_PER_SA * case.sas as usize > RING_PACKETS;
    let count = ring.len();
    let round = if has_many { originals.len() } else { count };
    let (feed, demand) = LoopPort::on_demand("ring", ring);
    let mut subject = Subject::with(case, Way::Inbound, engines, feed)?;
    demand.ask(round as u64);
    let mut opened = capture(case, &mut subject, round)?;
    subject.sink.keep(0, 0);
    let mut rounds = Rounds { case, demand, count, left: count - round };
    if case.is_placed() {
        let began = Instant::now();
        rounds.run_while(&mut subject, |_| began.elapsed() < LEARNING)?;
    }
    subject.sink.keep(SAMPLE_INTERVAL, SAMPLES);
    let before = subject.done();
    // The stage clock measures one turn in several, and a slow engine makes only a few in that time.
    let is_short = |total: &Run| total.stages.batches == 0 || total.elapsed < duration;
    let total = rounds.run_while(&mut subject, is_short)?;
    let done = since(subject.done(), &before);
    opened.extend(subject.sink.take());
    subject.settle()?;
    subject.check_books()?;
    judge::compare(&opened, originals)?;
    Ok((total, opened.len() as u64, done))
}

/// Rounds of a ring of sealed packets.
struct Rounds<'c> {
    case: &'c Case,
    demand: Demand,
    count: usize,
    /// Packets of this round that are still to come.
    left: usize,
}

impl Rounds<'_> {
    fn run_while(&mut self, subject: &mut Subject, goes_on: impl Fn(&Run) -> bool) -> Result<Run, Wrong> {
        let mut total = Run::default();
        while goes_on(&total) {
            if self.left == 0 {
                // Replay windows accept each packet once. Reinstalling the tunnels is not part of a packet's
                // cost.
                subject.reinstall(self.case)?;
                self.left = self.count;
            }
            self.demand.ask(self.left as u64);
            add(&mut total, &subject.run_through(self.left)?);
            self.left = 0;
        }
        Ok(total)
    }
}

/// What was done since then. A job that went on since is no longer its first engine's.
fn since(mut now: Jobs, before: &Jobs) -> Jobs {
    now.iter_mut()
        .for_each(|(engine, jobs)| *jobs = jobs.saturating_sub(before.get(engine).copied().unwrap_or(0)));
    now
}

fn add(total: &mut Run, run: &Run) {
    total.packets += run.packets;
    total.bytes += run.bytes;
    total.ticks += run.ticks;
    total.elapsed += run.elapsed;
    total.running += run.running;
    let StageTimes { ticks, packets, batches } = &mut total.stages;
    ticks.iter_mut().zip(run.stages.ticks).for_each(|(sum, ticks)| *sum += ticks);
    *packets += run.stages.packets;
    *batches += run.stages.batches;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::case::Suites;
    use crate::bench::load::LARGEST_BYTES;
    use testudo_crypto::Suite;

    /// The number of originals for `size` and `sas`, and of packets in their ring.
    fn ring(size: Size, sas: u32) -> (usize, usize) {
        let suites = Suites::One(Suite::AES128GCM16);
        let originals = packets(suites, size, sas).unwrap();
        (originals.len(), ring_packets(sas, size, &originals))
    }

    #[test]
    fn a_ring_is_whole_rounds_that_a_near_cache_holds() {
        assert_eq!(ring(Size::Bytes(46), 1), (512, RING_PACKETS));
        assert_eq!(ring(Size::Bytes(1402), 1), (512, 512));
        assert_eq!(ring(Size::Imix, 1), (980, 2 * 980));
        assert_eq!(ring(Size::Bytes(LARGEST_BYTES), 1), (65, 65));
    }

    #[test]
    fn each_of_many_sas_has_several_packets_in_a_ring_as_far_as_memory_goes() {
        assert_eq!(ring(Size::Bytes(64), 10_000), (10_000, 40_000));
        let (round, packets) = ring(Size::Bytes(1400), 100_000);
        assert_eq!((round, packets), (100_000, 300_000));
        assert!(packets * (1400 + SEALED_EXTRA_BYTES) <= RING_MOST_BYTES);
    }
}
