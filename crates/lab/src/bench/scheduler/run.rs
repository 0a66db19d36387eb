//! One gateway with a deep engine, packets for both of its directions, and what came of them.
//!
//! ```text
//!   plain packets ───► protected port ─┐            ┌─► unprotected port ─► sealed ─► a peer opens them
//!                                      ├─ a worker ─┤
//!   sealed by a peer ► unprotected ────┘            └─► protected port ───► opened ─► compared
//! ```
//!
//! So many packets are under way that the engine has as many chunks as it takes, and one more waits; no more,
//! so that few find bins and leftovers full: the portable engine has those, as in any gateway. Launches count
//! between the moment when that is reached and the last packet's coming.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use rustix::thread::sched_getcpu;
use testudo_crypto::{Engine, PortableEngine};
use testudo_gateway::{
    CHUNKS, Formation, OffloadMode, PortPair, Scheduled, SchedulerSettings, SystemClock, ThreadingModel,
    Worker, transmit_apart,
};
use testudo_packet::{Batch, Pool, Port, PortCounters, PortError};
use testudo_port_memory::{Demand, LoopPort, Packets, SinkHandle, SinkPort};

use super::engine::Watch;
use super::lanes::Tally;
use super::stay::{Latencies, Stay, Time};
use crate::bench::case::{Carrier, Case, Order, Size, Suites, Way};
use crate::bench::engines::all_in_service;
use crate::bench::error::Wrong;
use crate::bench::load::packets;
use crate::bench::tunnels::{self, OVERHEAD_BYTES};
use crate::bench::{judge, load};
use crate::supply::Supply;

/// Tunnels, each with an SA in either direction, where latencies are not asked for.
pub(super) const SAS: u32 = 60;
const BUFFER_BYTES: usize = 2048;
/// What a turn may bring in a direction.
const TURN_PACKETS: usize = 256;
/// After this many turns in a row without a packet, none is expected any more: for a device of its own speed
/// some seconds.
const QUIET_TURNS: u32 = 20_000_000;
/// Where SPI and number of an ESP packet are, after an IPv4 header without options.
const SPI_AT: usize = 20;

/// What is measured.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) suites: Suites,
    /// One direction; both if none is named.
    pub(super) way: Option<Way>,
    pub(super) size: Size,
    /// Tunnels. Of one in one direction latencies are taken, too.
    pub(super) sas: u32,
    pub(super) formation: Formation,
    pub(super) settings: SchedulerSettings,
    /// Threads beside the worker.
    pub(super) threads: ThreadingModel,
    /// Chunks that count, about.
    pub(super) chunks: usize,
    /// Chunks under way, at most; `None`: as many as keep the engine busy.
    pub(super) under_way: Option<usize>,
}

impl Plan {
    /// The most packets under way: unless told, two chunks with the engine, or one where no bins wait, and
    /// one that gathers.
    pub(super) fn window(&self) -> usize {
        if let Some(chunks) = self.under_way {
            return chunks * self.settings.chunk;
        }
        if self.settings.tune {
            return 3 * CHUNKS.end();
        }
        let with_engine = if self.settings.ideas.waiting_bins { 2 } else { 1 };
        (with_engine + 1) * self.settings.chunk
    }

    /// The most that find a place: in bins and among leftovers, or there alone.
    fn places(&self) -> usize {
        if self.settings.ideas.waiting_bins { 2 * self.settings.chunk } else { self.settings.chunk }
    }

    fn packets(&self) -> usize {
        self.window() + self.chunks * self.settings.chunk
    }

    fn case(&self) -> Case {
        Case {
            suites: self.suites,
            way: Way::Outbound,
            size: self.size,
            sas: self.sas,
            policies: self.sas,
            carrier: Carrier::Esp,
            order: Order::default(),
            esn: true,
            engine: 0,
            placed: 0,
        }
    }
}

/// What came of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outcome {
    pub(super) tally: Tally,
    pub(super) scheduled: Scheduled,
    /// Packets that the engine did not do, but the portable one behind it.
    pub(super) spilled: u64,
    /// Packets that came out at another place of their SA's order.
    pub(super) reordered: u64,
    /// Packets that a peer or a comparison has judged: all.
    pub(super) judged: u64,
    /// While launches counted: packets that came out, and how long it took. What each has as an inner
    /// packet, on average.
    pub(super) packets: u64,
    pub(super) mean_bytes: f64,
    pub(super) elapsed: Duration,
    pub(super) latency_us: Option<Latencies>,
    /// The processors that the worker had before the first packet and after the last.
    pub(super) processors: [usize; 2],
}

/// A port that receives from one and sends to another.
struct Both {
    feed: LoopPort,
    sink: SinkPort,
}

impl Port for Both {
    fn name(&self) -> &str {
        self.feed.name()
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        self.feed.rx(pool, batch)
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        self.sink.tx(pool, batch)
    }

    fn joins(&self) -> bool {
        false
    }

    fn counters(&self) -> PortCounters {
        let (received, sent) = (self.feed.counters(), self.sink.counters());
        let PortCounters { tx_packets, tx_bytes, tx_calls, .. } = sent;
        PortCounters { tx_packets, tx_bytes, tx_calls, ..received }
    }
}

/// One end of the tunnels.
pub(super) struct End {
    pub(super) worker: Worker,
    supply: Supply,
    time: Time,
    /// Of the protected and the unprotected port.
    pub(super) demands: [Demand; 2],
    /// What was opened, and what was sealed.
    pub(super) sinks: [SinkHandle; 2],
    /// Threads beside the worker may need its processor.
    shares: bool,
}

/// Ports of a thread that sends, and what they were given.
type Senders = ((Box<dyn Port>, Box<dyn Port>), [SinkHandle; 2]);

fn senders() -> Senders {
    let ((one, opened), (other, sealed)) = (SinkPort::new("protected"), SinkPort::new("unprotected"));
    ((Box::new(one), Box::new(other)), [opened, sealed])
}

/// How an end is told to gather jobs.
type Gathering = (Formation, SchedulerSettings);

impl End {
    /// `feeds`: for the protected and the unprotected port. `gathering`: if one of its engines may be deep.
    pub(super) fn new(
        plan: &Plan,
        side: Way,
        engines: Vec<Box<dyn Engine>>,
        time: Time,
        feeds: [Packets; 2],
        gathering: Option<Gathering>,
    ) -> Result<Self, Wrong> {
        let case = plan.case();
        let port = |name: &str, feed| {
            let (feed, demand) = LoopPort::on_demand(name, feed);
            let (sink, handle) = SinkPort::new(name);
            (Box::new(Both { feed, sink }), demand, handle)
        };
        let [protected, unprotected] = feeds;
        let (protected, first, mut opened) = port("protected", protected);
        let (unprotected, second, mut sealed) = port("unprotected", unprotected);
        let mut ports = PortPair { protected, unprotected };
        if plan.threads == ThreadingModel::TwoIo && gathering.is_some() {
            // What the thread sends goes into sinks of its own.
            let ((one, other), handles) = senders();
            [opened, sealed] = handles;
            let senders = PortPair { protected: one, unprotected: other };
            ports = transmit_apart(ports, senders, || {}).map_err(|error| error.to_string())?;
        }
        // Twice as many as are under way: an engine is not to be told that buffers are short.
        let buffers = 2 * plan.window() + 16 * TURN_PACKETS;
        let pool = Pool::new(buffers, BUFFER_BYTES.max(plan.size.longest_bytes() + OVERHEAD_BYTES));
        let mut worker = Worker::new(ports, pool, engines, Box::default());
        worker.set_offload_mode(OffloadMode::Always);
        if let Some((formation, settings)) = gathering {
            worker.set_formation(formation);
            worker.set_scheduler(&settings);
        }
        let supply = tunnels::install(&mut worker, &case, side)?;
        let (demands, sinks, shares) = ([first, second], [opened, sealed], plan.threads.has_device_thread());
        Ok(Self { worker, supply, time, demands, sinks, shares })
    }

    pub(super) fn turn(&mut self) -> Result<usize, Wrong> {
        let now = self.time.now();
        let moved = self.worker.turn(now).map_err(|error| error.to_string())?;
        self.supply.serve(now);
        all_in_service(&mut self.worker)?;
        Ok(moved)
    }

    /// After a turn that moved nothing: threads beside the worker may need its processor.
    pub(super) fn rest(&self) {
        if self.shares {
            std::thread::yield_now();
        }
    }

    fn counters(&self) -> [PortCounters; 2] {
        [self.worker.protected_port().counters(), self.worker.unprotected_port().counters()]
    }

    pub(super) fn sent(&self) -> u64 {
        self.counters().iter().map(|port| port.tx_packets).sum()
    }

    pub(super) fn loss(&self, asked: usize) -> Wrong {
        let drops = self.worker.pool().drops().iter().filter(|(_, count)| *count > 0);
        let drops: Vec<String> = drops.map(|(reason, count)| format!("{} {count}", reason.name())).collect();
        format!("{} of {asked} packets came out; drops: {}", self.sent(), drops.join(", "))
    }

    /// Turns until so many packets have come out. `ask` is told how many have, and lets more come.
    fn run(&mut self, all: usize, mut ask: impl FnMut(usize, &[Demand; 2])) -> Result<(), Wrong> {
        let mut quiet = 0;
        loop {
            let sent = usize::try_from(self.sent()).unwrap_or(usize::MAX);
            if sent >= all {
                return Ok(());
            }
            ask(sent, &self.demands);
            quiet = if self.turn()? > 0 { 0 } else { quiet + 1 };
            if quiet > 0 {
                self.rest();
            }
            if quiet > QUIET_TURNS || self.worker.pool().drops().total() > 0 {
                return Err(self.loss(all));
            }
        }
    }

    pub(super) fn keep_all(&self, each: usize) {
        self.sinks.iter().for_each(|sink| sink.keep(1, each));
    }
}

/// The same packets with source and destination exchanged: what the other end's hosts send. Sums stay right.
pub(super) fn reversed(packets: &Packets) -> Packets {
    let whole = packets.iter().map(|(head, tail)| {
        let mut packet = [head, tail].concat();
        if let Some(addresses) = packet.get_mut(12..20) {
            addresses.rotate_left(4);
        }
        packet
    });
    whole.collect::<Vec<_>>().into()
}

/// Sends packets through an end with an engine that ends jobs inside `submit`: all that come out.
pub(super) fn by_peer(
    plan: &Plan,
    engine: Box<dyn Engine>,
    is_protected: bool,
    feed: Packets,
    count: usize,
) -> Result<Vec<Vec<u8>>, Wrong> {
    if count == 0 {
        return Ok(Vec::new());
    }
    let feeds = if is_protected { [feed, Packets::default()] } else { [Packets::default(), feed] };
    let time = Time::System(SystemClock::default());
    let mut peer = End::new(plan, Way::Inbound, vec![engine], time, feeds, None)?;
    peer.keep_all(count);
    let (port, mut left) = (usize::from(!is_protected), count);
    peer.run(count, |_, demands| {
        let some = left.min(TURN_PACKETS);
        left -= some;
        if some > 0 {
            demands.get(port).into_iter().for_each(|demand| demand.ask(some as u64));
        }
    })?;
    Ok(peer.sinks.get(usize::from(is_protected)).map(SinkHandle::take).unwrap_or_default())
}

/// Runs `plan` with an engine that is watched.
pub(super) fn run(plan: &Plan, engine: Box<dyn Engine>, watch: &Watch, time: Time) -> Result<Outcome, Wrong> {
    let originals = packets(plan.suites, plan.size, plan.sas).map_err(|error| error.to_string())?;
    let others = reversed(&originals);
    let counts = match plan.way {
        Some(Way::Outbound) => [plan.packets(), 0],
        Some(Way::Inbound) => [0, plan.packets()],
        None => [plan.packets() / 2, plan.packets() / 2],
    };
    let portable = || -> Box<dyn Engine> { Box::new(PortableEngine::new()) };
    let sealed: Packets = by_peer(plan, portable(), true, others.clone(), counts[1])?.into();
    let feeds = [originals.clone(), sealed];
    let gathering = Some((plan.formation, plan.settings));
    let engines = vec![engine, portable()];
    let mut subject = End::new(plan, Way::Outbound, engines, time, feeds, gathering)?;
    subject.keep_all(plan.packets());
    let before = sched_getcpu();
    let span = drive(plan, &mut subject, watch, counts)?;
    let processors = [before, sched_getcpu()];
    settle(&mut subject)?;
    let [opened, sealed] = &subject.sinks;
    let (opened, sealed) = (opened.take(), sealed.take());
    let scheduled = subject.worker.counters().scheduled().next();
    let (_, scheduled) = scheduled.ok_or("the engine is not deep")?;
    let (tally, done) = (watch.tally(), watch.done());
    drop(subject);
    if done == 0 {
        return Err("the engine did none of the packets".to_owned());
    }
    let reordered = disordered_numbers(&sealed) + disordered(&opened, &others, counts[1]);
    judge::compare(&opened, &others)?;
    let count = sealed.len();
    let judged = (count + opened.len()) as u64;
    let spilled = judged.saturating_sub(done);
    let recovered = by_peer(plan, portable(), false, sealed.into(), count);
    let recovered = recovered.map_err(|wrong| format!("a peer refuses the sealed packets: {wrong}"))?;
    judge::compare(&recovered, &originals)?;
    let Span { packets, elapsed, latency_us } = span;
    let mean_bytes = originals.bytes() as f64 / originals.len().max(1) as f64;
    Ok(Outcome {
        tally,
        scheduled,
        spilled,
        reordered,
        judged,
        packets,
        mean_bytes,
        elapsed,
        latency_us,
        processors,
    })
}

/// What came out while launches counted.
#[derive(Debug, Clone, Copy, Default)]
struct Span {
    packets: u64,
    elapsed: Duration,
    latency_us: Option<Latencies>,
}

/// Keeps the engine supplied until all packets have come out.
fn drive(plan: &Plan, subject: &mut End, watch: &Watch, counts: [usize; 2]) -> Result<Span, Wrong> {
    let (window, all) = (plan.window(), counts[0] + counts[1]);
    let counters = subject.worker.counters();
    let refused = || counters.scheduled().next().map_or(0, |(_, scheduled)| scheduled.no_room);
    let (mut places, mut last_refused) = (plan.places(), 0);
    let mut left = counts;
    let (mut began, mut ended) = (None, None);
    let mut stay = Stay::of(plan, &subject.time);
    subject.run(all, |sent, demands| {
        let asked = all - left[0] - left[1];
        stay.iter_mut().for_each(|stay| stay.left(sent, began.is_some() && ended.is_none()));
        let under_way = asked.saturating_sub(sent);
        // What has ended and waits for its SA's order counts as waiting for the engine: it is not known.
        let waiting = under_way.saturating_sub(watch.in_flight());
        // How many find a place depends on how they fill bins: a little more each turn, and less when one
        // found none.
        let now = refused();
        let most = if plan.settings.tune { window } else { plan.places() };
        places = if now > last_refused { places * 3 / 4 } else { (places + TURN_PACKETS / 4).min(most) };
        last_refused = now;
        let room = places.saturating_sub(waiting);
        let room = room.min(window.saturating_sub(under_way)).min(2 * TURN_PACKETS);
        // In turns, so that both directions end together.
        let first = if left[1] == 0 { room } else { room / 2 }.min(left[0]);
        let some = [first, (room - first).min(left[1])];
        stay.iter_mut().for_each(|stay| stay.came(some[0] + some[1]));
        for ((demand, some), left) in demands.iter().zip(some).zip(&mut left) {
            *left -= some;
            if some > 0 {
                demand.ask(some as u64);
            }
        }
        if began.is_none() && asked >= window.min(all / 2) {
            watch.count(true);
            began = Some((sent, Instant::now()));
        }
        if ended.is_none() && *left.iter().max().unwrap_or(&0) == 0 {
            watch.count(false);
            ended = Some((sent, Instant::now()));
        }
    })?;
    watch.count(false);
    let (Some((first, from)), Some((last, to))) = (began, ended) else { return Ok(Span::default()) };
    let packets = (last - first) as u64;
    let latency_us = stay.and_then(|stay| stay.latencies());
    Ok(Span { packets, elapsed: to.duration_since(from), latency_us })
}

/// Waits for what is under way after the last packet: nothing, unless some were lost.
fn settle(subject: &mut End) -> Result<(), Wrong> {
    subject.worker.drain();
    for _ in 0..TURN_PACKETS {
        subject.turn()?;
    }
    // What a thread has sent comes back when it has a processor.
    for _ in 0..QUIET_TURNS {
        if !subject.shares || !subject.worker.is_busy() {
            break;
        }
        subject.turn()?;
        std::thread::yield_now();
    }
    let drops = subject.worker.pool().drops().total();
    if drops == 0 && !subject.worker.is_busy() { Ok(()) } else { Err(subject.loss(0)) }
}

/// Packets whose number is not above all before it, by SA.
fn disordered_numbers(sealed: &[Vec<u8>]) -> u64 {
    let mut last: HashMap<&[u8], u32> = HashMap::new();
    let mut wrong = 0;
    for packet in sealed {
        let Some((spi, rest)) = packet.get(SPI_AT..).and_then(|esp| esp.split_at_checked(4)) else {
            wrong += 1;
            continue;
        };
        let number = rest.first_chunk().copied().map_or(0, u32::from_be_bytes);
        let before = last.insert(spi, number);
        wrong += u64::from(before.is_some_and(|before| number <= before));
    }
    wrong
}

/// Packets that are not where they are in what was fed, each SA's by themselves: an SA is its hosts' address.
fn disordered(opened: &[Vec<u8>], fed: &Packets, count: usize) -> u64 {
    let headers = |packet: &[u8]| packet.get(..load::SMALLEST_BYTES).map(<[u8]>::to_vec);
    let source = |packet: &[u8]| packet.get(12..16).map(<[u8]>::to_vec);
    let mut expected: HashMap<Option<Vec<u8>>, VecDeque<Option<Vec<u8>>>> = HashMap::new();
    let order = (0..fed.len().max(1)).cycle().take(count);
    for (head, _) in order.map(|at| fed.get(at)) {
        expected.entry(source(head)).or_default().push_back(headers(head));
    }
    let is_elsewhere = |packet: &&Vec<u8>| {
        let next = expected.get_mut(&source(packet)).and_then(VecDeque::pop_front);
        next.flatten() != headers(packet)
    };
    opened.iter().filter(is_elsewhere).count() as u64
}

#[cfg(test)]
mod tests {
    use testudo_crypto::{
        Capability, Direction, EngineError, Job, JobStatus, KeyId, KeyMaterial, Profile, Suite,
    };
    use testudo_gateway::ManualClock;

    use super::super::Experiment;
    use super::super::engine::{Model, Observed};
    use super::super::experiments::cells;
    use super::super::lanes::Geometry;
    use super::*;

    const GEOMETRY: Geometry = Geometry { units: 8, lanes: 64 };

    /// A model of a device that fails at some of its jobs, counted from 1, and may say that it is out of
    /// service from the first of these on.
    struct Failing {
        inner: Model,
        fails: fn(u64) -> bool,
        says_so: bool,
        jobs: u64,
        has_failed: bool,
    }

    impl Engine for Failing {
        fn name(&self) -> &'static str {
            self.inner.name()
        }

        fn description(&self) -> String {
            self.inner.description()
        }

        fn capability(&self, suite: Suite) -> Option<Capability> {
            self.inner.capability(suite)
        }

        fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
            self.inner.install(key, direction)
        }

        fn remove(&mut self, key: KeyId) {
            self.inner.remove(key);
        }

        fn profile(&self, suite: Suite) -> Profile {
            self.inner.profile(suite)
        }

        fn is_out_of_service(&self) -> bool {
            self.says_so && self.has_failed
        }

        fn submit(&mut self, jobs: &mut [Job]) -> usize {
            for job in &mut *jobs {
                self.jobs += 1;
                if (self.fails)(self.jobs) {
                    self.has_failed = true;
                    job.status = JobStatus::Fault;
                } else {
                    self.inner.submit(std::slice::from_mut(job));
                }
            }
            jobs.len()
        }

        fn flush(&mut self) {
            self.inner.flush();
        }

        fn poll(&mut self, done: &mut Vec<Job>, max: usize) {
            self.inner.poll(done, max);
        }

        fn in_flight(&self) -> usize {
            self.inner.in_flight()
        }
    }

    fn outcome(fails: fn(u64) -> bool, says_so: bool) -> Result<Outcome, Wrong> {
        let clock = ManualClock::default();
        let inner = Model::new(clock.clone(), GEOMETRY);
        let failing = Failing { inner, fails, says_so, jobs: 0, has_failed: false };
        let (observed, watch) = Observed::new(Box::new(failing), GEOMETRY);
        let plan = cells(Experiment::Ranges, &[Size::Bytes(64)], 1)[0].plan;
        run(&plan, Box::new(observed), &watch, Time::Model(clock))
    }

    /// Else the rest of the row is the portable engine's.
    #[test]
    fn a_device_that_goes_out_of_service_ends_the_measurement() {
        let error = outcome(|number| number > 5000, true).unwrap_err();
        assert!(error.starts_with("model went out of service"), "{error}");
        let error = outcome(|_| true, false).unwrap_err();
        assert_eq!(error, "the engine did none of the packets");
    }

    /// A fault is in no counter of what found no room or was late.
    #[test]
    fn packets_that_a_device_fails_at_are_not_its_own() {
        let Outcome { spilled, judged, scheduled, .. } =
            outcome(|number| number.is_multiple_of(2), false).unwrap();
        assert!(spilled < judged && 2 * spilled + 1 >= judged, "{spilled} of {judged}");
        assert!(scheduled.no_room + scheduled.too_late < spilled, "{scheduled:?}");
        let none = outcome(|_| false, false).unwrap();
        assert_eq!(none.spilled, none.scheduled.no_room + none.scheduled.too_late);
    }
}
