//! One measurement of one case: the way through the gateway, the floor below it, and the proof that both did real work.

use std::time::Duration;

use testudo_crypto::Engine;
use testudo_packet::StageTimes;
use testudo_port_memory::LoopPort;

use super::case::{Case, Way};
use super::engines::Engines;
use super::error::Wrong;
use super::floor::Recorder;
use super::judge;
use super::load::packets;
use super::subject::{Run, Subject};

/// One packet in this many of a measured run is kept for the judge: prime, so that it stands at every place of a batch in turn.
const SAMPLE_INTERVAL: usize = 509;
/// Of those, the newest.
const SAMPLES: usize = 64;
/// Sealed packets that an inbound measurement goes through before it begins anew: bytes to aim at, and packets at least. They stay in a
/// cache, as the few packets that an outbound measurement repeats do; figures are the same from 64 KiB to 1 MiB, and 8 % lower at 4 MiB.
const RING_BYTES: usize = 1 << 20;
const RING_PACKETS: usize = 2048;
/// Packets of each SA in the ring, at least.
const RING_PACKETS_PER_SA: usize = 4;
/// Time before a measurement in which caches and predictors get used to it.
const WARM_UP: Duration = Duration::from_millis(2);

/// The figures of one measurement.
#[derive(Debug, Clone)]
pub(super) struct Sample {
    pub(super) run: Run,
    pub(super) floor_cycles_per_packet: f64,
    /// Packets that the judge has looked at.
    pub(super) judged: u64,
}

/// Measures `case` once.
pub(super) fn measure(case: &Case, engines: &mut Engines, duration: Duration) -> Result<Sample, Wrong> {
    let originals = packets(case.suites, case.size, case.sas).map_err(|e| e.to_string())?;
    let judge = engines.judge(case).open()?;
    let subject = engines.available[case.engine].open()?;
    match case.way {
        Way::Outbound => {
            let floor = floor(case, engines, &originals, duration)?;
            let (run, judged) = outbound(case, subject, judge, &originals, duration)?;
            Ok(Sample { run, floor_cycles_per_packet: floor, judged })
        }
        Way::Inbound => {
            let ring = judge::seal(case, judge, &originals, ring_packets(case, &originals))?;
            let floor = floor(case, engines, &ring[..originals.len()], duration)?;
            let (run, judged) = inbound(case, subject, ring, &originals, duration)?;
            Ok(Sample { run, floor_cycles_per_packet: floor, judged })
        }
    }
}

/// Cycles per packet of the engine alone, for the jobs that the gateway makes of `feed`.
fn floor(case: &Case, engines: &mut Engines, feed: &[Vec<u8>], duration: Duration) -> Result<f64, Wrong> {
    let (recorder, recorded) = Recorder::new();
    let port = LoopPort::new("load", feed.to_vec()).with_limit(feed.len() as u64);
    Subject::new(case, case.way, Box::new(recorder), port)?.exhaust()?;
    let engine = engines.available[case.engine].instance.as_mut();
    Ok(recorded.floor(engine, duration / 2)?.cycles_per_packet)
}

fn outbound(
    case: &Case,
    engine: Box<dyn Engine>,
    judge: Box<dyn Engine>,
    originals: &[Vec<u8>],
    duration: Duration,
) -> Result<(Run, u64), Wrong> {
    let mut subject = Subject::new(case, Way::Outbound, engine, LoopPort::new("load", originals.to_vec()))?;
    let mut sealed = capture(&mut subject, originals.len())?;
    subject.sink.keep(0, 0);
    subject.run_for(WARM_UP)?;
    subject.sink.keep(SAMPLE_INTERVAL, SAMPLES);
    let run = subject.run_for(duration)?;
    sealed.extend(subject.sink.take());
    sealed.extend(capture(&mut subject, originals.len())?);
    subject.settle()?;
    subject.check_books()?;
    let judged = sealed.len() as u64;
    judge::accept(case, judge, sealed, originals)?;
    Ok((run, judged))
}

/// The newest packets of as many as `count` more.
fn capture(subject: &mut Subject, count: usize) -> Result<Vec<Vec<u8>>, Wrong> {
    subject.sink.keep(1, count);
    subject.advance(count)?;
    Ok(subject.sink.take())
}

/// How many packets an inbound measurement has before it begins anew: whole rounds of the originals.
fn ring_packets(case: &Case, originals: &[Vec<u8>]) -> usize {
    let bytes: usize = originals.iter().map(Vec::len).sum();
    let by_bytes = RING_BYTES * originals.len() / bytes.max(1);
    let wanted = by_bytes.max(RING_PACKETS).max(RING_PACKETS_PER_SA * case.sas as usize);
    originals.len() * wanted.div_ceil(originals.len())
}

fn inbound(
    case: &Case,
    engine: Box<dyn Engine>,
    ring: Vec<Vec<u8>>,
    originals: &[Vec<u8>],
    duration: Duration,
) -> Result<(Run, u64), Wrong> {
    let count = ring.len();
    let (feed, demand) = LoopPort::on_demand("ring", ring);
    let mut subject = Subject::new(case, Way::Inbound, engine, feed)?;
    demand.ask(count as u64);
    let mut opened = capture(&mut subject, count)?;
    subject.sink.keep(SAMPLE_INTERVAL, SAMPLES);
    let mut total = Run::default();
    while total.packets == 0 || total.elapsed < duration {
        // Replay windows take each packet once; what they are taken back with is not part of a packet's cost.
        subject.reinstall(case)?;
        demand.ask(count as u64);
        add(&mut total, &subject.run_through(count)?);
    }
    opened.extend(subject.sink.take());
    subject.settle()?;
    subject.check_books()?;
    judge::compare(&opened, originals)?;
    Ok((total, opened.len() as u64))
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
