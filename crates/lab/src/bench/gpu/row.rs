//! One row: a suite, a direction and a length on one device, or none, and beside it the processor.

use std::collections::BTreeSet;

use rustix::thread::sched_getcpu;
use testudo_crypto::{Direction, Engine, Suite};
use testudo_gateway::SchedulerSettings;
use testudo_port_memory::{LoopPort, Packets};

use super::devices::{GpuDevice, Launches, StepsOf, TimedDevice};
use super::gateway::{Gateway, Parts, Rate, Until, share, together};
use super::lent::{Done, Owned};
use super::model::{Load, Prediction};
use super::options::{BenchGpuOptions, Headers, Part};
use crate::bench::case::{Carrier, Case, Order, Size, Suites, Way};
use crate::bench::device::Device;
use crate::bench::engines::{Available, Engines};
use crate::bench::error::Wrong;
use crate::bench::floor::Recorder;
use crate::bench::judge;
use crate::bench::load::packets;
use crate::bench::subject::Subject;
use crate::bench::threads::placed;
use crate::generator::{FRAME_EXTRA_BYTES, Latency};

/// Packets of a launch, as in figure 7 of paper 002.
pub(super) const LAUNCH_PACKETS: usize = 2048;
/// Launches of each kind.
const LAUNCHES: u32 = 20;
/// Tunnels of a gateway that is kept supplied: packets of neighbours have other keys.
const SAS: u32 = 60;
/// Packets that are sealed before an inbound measurement, at most.
const RING_PACKETS: usize = 16 * 4096;
/// As many for engines of the processor, and as many through PoCL.
const PROCESSOR_PACKETS: usize = 4 * 4096;
const FEW_PACKETS: usize = 256;
/// What ESP adds to a packet of the device's work, about.
const ESP_BYTES: usize = 34;
/// The load under which latencies are taken, of what the gateway reaches.
const SHARE: f64 = 0.5;

/// A device at work: an engine for each core.
pub(super) struct AtWork {
    pub(super) device: Device,
    engines: Vec<Owned>,
    timed: Option<Box<dyn TimedDevice>>,
}

impl AtWork {
    /// Opens as many engines as there are cores; of PoCL one.
    pub(super) fn open(gpu: &GpuDevice, options: &BenchGpuOptions, cores: usize) -> Result<Self, Wrong> {
        let start = || -> Result<Box<dyn Engine>, Wrong> {
            let mut engine = (gpu.engine)()?;
            testudo_crypto::self_test(engine.as_mut()).map_err(|error| error.to_string())?;
            Ok(engine)
        };
        let first = start()?;
        let device = Device::of(first.name(), &first.description());
        let mut engines = vec![Owned::new(first)];
        let is_fast = device.note.is_none();
        if is_fast && options.has(Part::Gateways) {
            let others = (1..cores).map(|_| Ok(Owned::new(start()?)));
            engines.extend(others.collect::<Result<Vec<_>, Wrong>>()?);
        }
        let are_wanted = is_fast && options.has(Part::Launches);
        let timed = gpu.timed.as_ref().filter(|_| are_wanted).map(|open| open()).transpose()?;
        Ok(Self { device, engines, timed })
    }

    /// An error where the next engine did all that was measured, or does all from now on: figures would be
    /// the processor's under the device's name.
    fn did_its_part(&self, spilled: f64) -> Result<(), Wrong> {
        let gone = self.engines.iter().map(Owned::lock).find(|engine| engine.is_out_of_service());
        match gone {
            Some(gone) => Err(format!("{} is out of service: {}", gone.name(), gone.description())),
            None if spilled >= 1.0 => Err("the GPU did none of the packets".to_owned()),
            None => Ok(()),
        }
    }
}

/// Gateways with one kind of engine.
#[derive(Debug, Clone, Default)]
pub(super) struct Gateways {
    pub(super) engine: &'static str,
    /// Packets per second: of one, and of one on each core.
    pub(super) one: Option<f64>,
    pub(super) all: Option<f64>,
    /// Of a device: the share of packets that it did not do, but the engine behind it; of one, and of all.
    pub(super) spilled: [f64; 2],
    /// Under half of what one reaches, and that share.
    pub(super) latency: Option<Latency>,
    pub(super) latency_spilled: f64,
    pub(super) judged: u64,
    /// The processors that they were bound to.
    pub(super) processors: BTreeSet<usize>,
}

/// What workers hand over to a device that does nothing and take back from it: packets per second of one, and
/// of one on each core; and what one packet costs the first, in ticks.
#[derive(Debug, Clone, Copy)]
pub(super) struct HandedOver {
    pub(super) one: f64,
    pub(super) all: f64,
    pub(super) ticks: f64,
}

/// What was measured, and what is predicted.
pub(super) struct Row {
    pub(super) suite: Suite,
    pub(super) way: Way,
    pub(super) size: Size,
    /// Who writes headers in gateways with the device.
    pub(super) headers: Headers,
    pub(super) device: Option<Device>,
    /// Of frames of the plain side, with check sequence, on average.
    pub(super) frame_bytes: f64,
    pub(super) launches: Option<Launches>,
    pub(super) gpu: Option<Gateways>,
    pub(super) processor: Option<Gateways>,
    pub(super) prediction: Option<Prediction>,
    /// Where there is no device.
    pub(super) handed_over: Option<HandedOver>,
    /// Gateways where there is one on each core.
    pub(super) workers: usize,
    /// The processors that the thread had before and after, which drives the device and does all else that
    /// gateways do not.
    pub(super) worker: [usize; 2],
}

/// What all rows are measured with.
pub(super) struct Bench<'a> {
    pub(super) options: &'a BenchGpuOptions,
    pub(super) engines: &'a Engines,
    pub(super) processors: &'a [usize],
    /// An engine on a device that does nothing for each core, where something is predicted.
    pub(super) idle: &'a [Owned],
    pub(super) steps: StepsOf,
}

impl Bench<'_> {
    /// Who writes headers in the rows of a cell: a device those of what goes out, if it does.
    pub(super) fn headers(
        &self,
        device: Option<&AtWork>,
        (suite, way, _): (Suite, Way, Size),
    ) -> Vec<Headers> {
        let Some(device) = device else { return vec![Headers::Cpu] };
        let writes = way == Way::Outbound && device.engines.iter().all(|one| one.writes_headers(suite));
        let is_possible = |headers: &Headers| *headers == Headers::Cpu || writes;
        self.options.headers.iter().copied().filter(is_possible).collect()
    }

    /// Measures one row, on a device if there is one. With headers by the GPU it is of the GPU's gateways
    /// alone: all else is in the row of the processor's.
    pub(super) fn row(
        &self,
        device: Option<&mut AtWork>,
        (suite, way, size): (Suite, Way, Size),
        headers: Headers,
    ) -> Result<Row, Wrong> {
        let is_whole = headers == Headers::Cpu;
        let before = sched_getcpu();
        let case = case(suite, way, size, SAS);
        let originals = packets(case.suites, size, SAS).map_err(|error| error.to_string())?;
        let mean_bytes = originals.bytes() as f64 / originals.len().max(1) as f64;
        let named = device.as_ref().map(|device| device.device.clone());
        let prediction = if device.is_none() { self.predict(&case, &originals, suite) } else { None };
        let handed_over = if self.idle.is_empty() { None } else { Some(self.handed_over(suite, size)?) };
        let (mut launches, mut gpu) = (None, None);
        if let Some(device) = device {
            if let Some(timed) = device.timed.as_mut().filter(|_| is_whole) {
                launches = Some(self.launches(timed.as_mut(), &case, &originals)?);
            }
            gpu = self.on_device(device, &case, &originals, headers)?;
        }
        let has_processor = is_whole && self.options.has(Part::Processor);
        let processor = if has_processor { Some(self.on_processor(&case, &originals)?) } else { None };
        let frame_bytes = mean_bytes + FRAME_EXTRA_BYTES as f64;
        Ok(Row {
            suite,
            way,
            size,
            headers,
            device: named,
            frame_bytes,
            launches,
            gpu,
            processor,
            prediction,
            handed_over,
            workers: self.processors.len(),
            worker: [before, sched_getcpu()],
        })
    }

    fn predict(&self, case: &Case, originals: &Packets, suite: Suite) -> Option<Prediction> {
        /// Lanes of a group of the engine's.
        const GROUP_LANES: usize = 32;
        let direction = if case.way == Way::Outbound { Direction::Seal } else { Direction::Open };
        let mut load = Load::default();
        for number in (0..originals.len()).cycle().take(LAUNCH_PACKETS) {
            let (head, tail) = originals.get(number);
            let bytes = head.len() + tail.len() + ESP_BYTES;
            load.add(bytes, (self.steps)(suite, direction, bytes, GROUP_LANES)?);
        }
        Some(self.options.model().predict(&load))
    }

    /// Keeps workers supplied whose device does nothing, with packets that go out: of others it had to know
    /// the ICVs.
    fn handed_over(&self, suite: Suite, size: Size) -> Result<HandedOver, Wrong> {
        let case = case(suite, Way::Outbound, size, SAS);
        let originals = packets(case.suites, size, SAS).map_err(|error| error.to_string())?;
        let (feed, until) = self.feed(&case, &originals, RING_PACKETS)?;
        let run = |workers: usize| -> Result<Vec<Rate>, Wrong> {
            let build = |idle: &Owned| -> Result<Gateway, Wrong> {
                let next = self.best_at_hand(&case).ok_or("no engine of the processor does it")?.open()?;
                let (engines, scheduler) = (vec![idle.lend(false), next], Some(settings(true)));
                let (done, feed) = (Some(idle.done.clone()), feed.clone());
                Gateway::new(&case, Parts { engines, scheduler, done, feed })
            };
            let gateways = self.idle.iter().take(workers).map(build);
            let mut gateways = gateways.collect::<Result<Vec<_>, Wrong>>()?;
            together(&mut gateways, until, self.processors)
        };
        // What its processor sealed was not handed over.
        let sum = |rates: &[Rate]| rates.iter().map(Rate::of_first_engine).sum::<f64>();
        let one = run(1)?;
        let all = if self.idle.len() > 1 { sum(&run(self.idle.len())?) } else { sum(&one) };
        let ticks = one.iter().map(|rate| rate.ticks as f64 / rate.packets.max(1) as f64).sum();
        Ok(HandedOver { one: sum(&one), all, ticks })
    }

    /// Times launches of the very jobs that a gateway makes.
    fn launches(
        &self,
        device: &mut dyn TimedDevice,
        case: &Case,
        originals: &Packets,
    ) -> Result<Launches, Wrong> {
        let feed = match case.way {
            Way::Outbound => originals.clone(),
            Way::Inbound => self.sealed(case, originals, LAUNCH_PACKETS)?,
        };
        let (recorder, recorded) = Recorder::beside(&testudo_crypto::PortableEngine::new());
        let port = LoopPort::new("load", feed).with_limit(LAUNCH_PACKETS as u64);
        Subject::new(case, case.way, Box::new(recorder), port)?.exhaust()?;
        let engine = device.engine();
        let mut jobs = recorded.jobs(engine, LAUNCH_PACKETS)?;
        // In a gateway the scheduler has sorted them.
        jobs.sort_by_key(|job| std::cmp::Reverse(job.text_bytes));
        let keys: std::collections::HashSet<_> = jobs.iter().map(|job| job.key).collect();
        let taken = engine.submit(&mut jobs);
        let times = device.time(LAUNCHES);
        keys.into_iter().for_each(|key| device.engine().remove(key));
        match times? {
            times if taken == LAUNCH_PACKETS && times.packets == taken => Ok(times),
            times => Err(format!("a launch has {} of {LAUNCH_PACKETS} packets", times.packets)),
        }
    }

    fn sealed(&self, case: &Case, originals: &Packets, count: usize) -> Result<Packets, Wrong> {
        let engine = self.best_at_hand(case).ok_or("no engine of the processor does it")?;
        judge::seal(case, engine.open()?, originals, count)
    }

    /// The engines of the processor that do it; the portable one only if no other does.
    fn able(&self, case: &Case) -> Vec<&Available> {
        let able = self.engines.available.iter().filter(|engine| engine.refusal(case).is_none());
        let (portable, others): (Vec<_>, Vec<_>) = able.partition(|engine| engine.name() == "portable");
        if others.is_empty() { portable } else { others }
    }

    fn best_at_hand(&self, case: &Case) -> Option<&Available> {
        self.able(case).first().copied()
    }

    /// The device's gateways; `None` where none are wanted.
    fn on_device(
        &self,
        device: &AtWork,
        case: &Case,
        originals: &Packets,
        headers: Headers,
    ) -> Result<Option<Gateways>, Wrong> {
        let is_fast = device.device.note.is_none();
        if !self.options.has(Part::Gateways) {
            return Ok(None);
        }
        let settings = settings(is_fast);
        let with = |number: usize, settings| -> Result<Opened, Wrong> {
            let next = self.best_at_hand(case).ok_or("no engine of the processor does it")?.open()?;
            let engine = device.engines.get(number).ok_or("there are fewer engines than gateways")?;
            let (engines, done) = (vec![engine.lend(headers == Headers::Gpu), next], engine.done.clone());
            Ok(Opened { engines, scheduler: Some(settings), done: Some(done) })
        };
        let count = if is_fast { RING_PACKETS } else { FEW_PACKETS };
        let workers = device.engines.len();
        for engine in &device.engines {
            engine.take_unwritten();
        }
        let name = device.engines.first().map_or("", |engine| engine.lock().name());
        let mut found = self.gateways(case, originals, (count, workers), &|number| with(number, settings))?;
        found.engine = name;
        found.spilled.into_iter().try_for_each(|spilled| device.did_its_part(spilled))?;
        // A figure of what was not done would be the processor's.
        let left = device.engines.iter().filter(|engine| engine.take_unwritten()).count();
        if headers == Headers::Gpu && left < workers {
            return Err("packets came to the GPU with their headers".to_owned());
        }
        if let Some(rate) = found.one.filter(|_| is_fast && self.options.has(Part::Latency)) {
            let usual = || with(0, SchedulerSettings::default());
            let (latency, spilled) = self.latency(case, originals, rate * SHARE, &usual)?;
            (found.latency, found.latency_spilled) = (Some(latency), spilled);
            device.did_its_part(spilled)?;
        }
        Ok(Some(found))
    }

    /// The best of the processor's engines: that which is fastest on one core.
    fn on_processor(&self, case: &Case, originals: &Packets) -> Result<Gateways, Wrong> {
        let mut best: Option<(f64, &Available)> = None;
        for engine in self.able(case) {
            let open = |_| Opened::alone(engine);
            let one = self.gateways(case, originals, (PROCESSOR_PACKETS, 1), &open)?.one.unwrap_or(0.0);
            if best.is_none_or(|(rate, _)| rate < one) {
                best = Some((one, engine));
            }
        }
        let (rate, engine) = best.ok_or("no engine of the processor does it")?;
        let open = |_| Opened::alone(engine);
        let workers = self.processors.len();
        let mut found = self.gateways(case, originals, (PROCESSOR_PACKETS, workers), &open)?;
        found.engine = engine.name();
        if self.options.has(Part::Latency) {
            found.latency = Some(self.latency(case, originals, rate * SHARE, &|| open(0))?.0);
        }
        Ok(found)
    }

    /// One gateway, then one on each core if there are several: packets per second, with a judge's word on
    /// those that were kept.
    fn gateways(
        &self,
        case: &Case,
        originals: &Packets,
        (count, workers): (usize, usize),
        open: &OpenFor<'_>,
    ) -> Result<Gateways, Wrong> {
        let mut found = Gateways { processors: placed(workers, self.processors), ..Gateways::default() };
        let (feed, until) = self.feed(case, originals, count)?;
        let mut run = |workers: usize| -> Result<(f64, f64), Wrong> {
            let build = |number| {
                let Opened { engines, scheduler, done } = open(number)?;
                Gateway::new(case, Parts { engines, scheduler, done, feed: feed.clone() })
            };
            let mut gateways = (0..workers).map(build).collect::<Result<Vec<_>, Wrong>>()?;
            let rates = together(&mut gateways, until, self.processors)?;
            let kept: Vec<_> = gateways.iter().map(Gateway::kept).collect();
            drop(gateways);
            for kept in kept {
                found.judged += kept.len() as u64;
                self.judge(case, kept, originals)?;
            }
            let sum = |part: fn(&Rate) -> u64| rates.iter().map(part).sum::<u64>();
            let spilled = share(sum(|rate| rate.spilled), sum(|rate| rate.all));
            Ok((rates.iter().map(Rate::per_second).sum(), spilled))
        };
        let one = run(1)?;
        let all = if workers > 1 { run(workers)? } else { one };
        Ok(Gateways { one: Some(one.0), all: Some(all.0), spilled: [one.1, all.1], ..found })
    }

    /// Packets to send, and how long they last: those that come sealed come once.
    fn feed(&self, case: &Case, originals: &Packets, count: usize) -> Result<(Packets, Until), Wrong> {
        let elapsed = self.options.elapsed();
        let few = count == FEW_PACKETS;
        Ok(match case.way {
            Way::Outbound => {
                let packets = if few { count as u64 } else { u64::MAX };
                (originals.clone(), Until { elapsed, packets })
            }
            Way::Inbound => (self.sealed(case, originals, count)?, Until { elapsed, packets: count as u64 }),
        })
    }

    fn judge(&self, case: &Case, kept: Vec<Vec<u8>>, originals: &Packets) -> Result<(), Wrong> {
        match case.way {
            Way::Inbound => judge::compare(&kept, originals),
            Way::Outbound => judge::accept(case, self.engines.judge(case).open()?, kept, originals),
        }
    }

    /// How long packets are in one gateway with one tunnel that is offered this rate, and the share of them
    /// that its first engine did not do.
    fn latency(
        &self,
        case: &Case,
        originals: &Packets,
        per_second: f64,
        open: &dyn Fn() -> Result<Opened, Wrong>,
    ) -> Result<(Latency, f64), Wrong> {
        let case = Case { sas: 1, policies: 1, ..*case };
        let originals = match case.suites {
            Suites::One(_) => packets(case.suites, case.size, 1).map_err(|error| error.to_string())?,
            _ => originals.clone(),
        };
        let (feed, until) = self.feed(&case, &originals, PROCESSOR_PACKETS)?;
        let Opened { engines, scheduler, done } = open()?;
        let mut gateway = Gateway::new(&case, Parts { engines, scheduler, done, feed })?;
        let latency = gateway.offered(per_second.max(1.0), until)?;
        self.judge(&case, gateway.kept(), &originals)?;
        Ok((latency, gateway.share_spilled()))
    }
}

/// Engines, how a deep one's jobs are gathered, and what it has done.
struct Opened {
    engines: Vec<Box<dyn Engine>>,
    scheduler: Option<SchedulerSettings>,
    done: Option<Done>,
}

impl Opened {
    /// An engine of the processor with none behind it.
    fn alone(engine: &Available) -> Result<Self, Wrong> {
        Ok(Self { engines: vec![engine.open()?], scheduler: None, done: None })
    }
}

/// Those for the gateway of this number.
type OpenFor<'a> = dyn Fn(usize) -> Result<Opened, Wrong> + 'a;

fn case(suite: Suite, way: Way, size: Size, sas: u32) -> Case {
    let (carrier, order) = (Carrier::Esp, Order::default());
    let suites = Suites::One(suite);
    Case { suites, way, size, sas, policies: sas, carrier, order, esn: true, engine: 0, placed: 0 }
}

/// Chunks of the usual size, without a bound: nothing is taken from the device for the time it takes.
fn settings(is_fast: bool) -> SchedulerSettings {
    let chunk = if is_fast { SchedulerSettings::default().chunk } else { 1024 };
    let (latency, bins) = (std::time::Duration::from_secs(3600), chunk / 64);
    SchedulerSettings { chunk, bins, latency, tune: false, ..SchedulerSettings::default() }
}
