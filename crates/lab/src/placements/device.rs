//! Gateways of which part of the work is elsewhere: a device whose parts tell what they do.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::gateways::{CLOCK, Engines, Gateways, Report};
use super::memory::{self, Memory};
use super::setup::{Crypto, Setup};
use super::timing::Spent;
use crate::bench::pair::PairEngines;
use crate::bench::threads::{allow, bind};
use crate::generator::{FRAME_EXTRA_BYTES, MemoryPorts, Sizes, Timer, Traffic, memory_ports};
use crate::harness::{Block, Ceiling, Cores, Device, DeviceError, Effort, Elsewhere, Load, Placed, Trial};
use crate::stolen::Stolen;
use crate::tandem::{Running, highest_rate};

/// How often a flood is repeated at most until turns of all gateways were measured.
const AGAIN: u32 = 50;
/// A rate of at least this share of the highest is a flood.
const FLOOD: f64 = 0.9;

/// The device.
pub(super) struct Offloaded {
    setup: Setup,
    own: Rc<PairEngines>,
    device: Option<Rc<PairEngines>>,
    processors: Vec<usize>,
    running: Option<(Running, Arc<Report>)>,
    trials: u16,
    maximum: Option<(Sizes, Ceiling)>,
    /// What was told at the end of floods, less what was told before: of each gateway the ticks of reading
    /// headers and of looking up, and the packets that both are of.
    stages: Vec<[u64; 3]>,
    memory: Memory,
    /// From any of the processors.
    stolen: Stolen,
}

/// What threads told at one moment.
struct Reading {
    spent: Spent,
    io: u64,
    cryptography: u64,
    received: Vec<u64>,
    stages: Vec<[u64; 3]>,
}

impl Reading {
    fn of(report: &Report) -> Self {
        let gateways = report.gateways.iter();
        Self {
            spent: report.times.spent(),
            io: report.io.ticks(),
            cryptography: report.cryptography.ticks(),
            received: gateways.clone().map(|told| told.received.get()).collect(),
            stages: gateways
                .map(|told| [told.parse.get(), told.look_up.get(), told.measured.get()])
                .collect(),
        }
    }
}

impl Offloaded {
    /// The device of `setup`, on `processors`. This thread, which generates and counts, is bound to one of
    /// them until the device is dropped.
    pub(super) fn new(
        setup: Setup,
        processors: Vec<usize>,
        own: &Rc<PairEngines>,
        device: Option<&Rc<PairEngines>>,
    ) -> Self {
        bind(setup.threads.generator);
        let (own, device) = (Rc::clone(own), device.cloned());
        let (running, stages, memory) = (None, Vec::new(), Memory::default());
        let stolen = Stolen::of(&processors);
        Self { setup, own, device, processors, running, trials: 0, maximum: None, stages, memory, stolen }
    }

    /// What the gateways of the last sizes had in memory at most.
    pub(super) fn memory(&self) -> Memory {
        self.memory
    }

    fn cores(&self) -> Cores {
        Cores { device: self.setup.threads.worker, generator: self.setup.threads.generator }
    }

    /// The gateways for these sizes: those at work, or new ones in their place.
    fn start(&mut self, sizes: Sizes) -> Result<&mut (Running, Arc<Report>), DeviceError> {
        if self.running.as_ref().is_none_or(|(running, _)| running.sizes != sizes) {
            self.running = None;
            self.running = Some(self.build(sizes)?);
            self.memory = Memory::default();
            self.stages = vec![[0; 3]; self.setup.gateways()];
        }
        self.running.as_mut().ok_or_else(|| DeviceError("the gateways did not start".to_owned()))
    }

    fn build(&self, sizes: Sizes) -> Result<(Running, Arc<Report>), DeviceError> {
        let Setup { sas, flows, seed, .. } = self.setup;
        let traffic = Traffic { sas, flows, seed, ..Traffic::of(sizes) };
        let templates = traffic.templates().map_err(|error| DeviceError(error.to_string()))?;
        let timer = Timer::start();
        let MemoryPorts { feed, returns, generator } = memory_ports(&templates, timer);
        let report = Report::new(self.setup.gateways(), CLOCK);
        let engines = Engines { own: &self.own, device: self.device.as_deref() };
        let longest_bytes = sizes.longest_bytes() - FRAME_EXTRA_BYTES;
        let gateways = Gateways::build(&self.setup, &engines, longest_bytes, (feed, returns), &report);
        let gateways = gateways.map_err(DeviceError)?;
        let (cores, is_shared) = (self.cores(), self.setup.threads.are_shared);
        Ok((Running::start(sizes, (generator, timer), cores, is_shared, gateways)?, report))
    }

    /// A trial, and what threads told before and after.
    fn told(
        &mut self,
        sizes: Sizes,
        load: Load,
        is_timed: bool,
    ) -> Result<(Trial, [Reading; 2]), DeviceError> {
        self.trials = self.trials.wrapping_add(1);
        let number = self.trials;
        let is_flood = self
            .maximum
            .is_some_and(|(_, ceiling)| load.packets_per_second >= FLOOD * ceiling.packets_per_second);
        // What was stolen before is of no trial.
        self.stolen.has_grown();
        let (running, report) = self.start(sizes)?;
        report.set_timing(is_timed);
        // Nothing is under way between two trials.
        let before = Reading::of(report);
        let trial = running.trial(number, load, Duration::ZERO);
        report.set_timing(false);
        let (mut trial, after) = (trial?, Reading::of(report));
        let memory = memory::of(report);
        self.memory = self.memory.most(memory);
        // Threads of the device take processors from each other, in every trial: to repeat it is in vain, and
        // rows say that they are shared.
        trial.is_disturbed &= !self.setup.threads.are_shared;
        let trial = self.stolen.judge(trial);
        if is_flood {
            for (sum, (before, after)) in self.stages.iter_mut().zip(before.stages.iter().zip(&after.stages))
            {
                sum.iter_mut().zip(before.iter().zip(after)).for_each(|(sum, (from, to))| *sum += to - from);
            }
        }
        Ok((trial, [before, after]))
    }

    /// Of the worker's ticks in a trial, those of each block.
    fn of_worker(&self, spent: Spent, received: &[u64]) -> [f64; Block::ALL.len()] {
        let (mut parse, mut look_up) = (0.0, 0.0);
        for ([ticks, look_up_ticks, packets], received) in self.stages.iter().zip(received) {
            let each = *received as f64 / (*packets).max(1) as f64;
            parse += *ticks as f64 * each;
            look_up += *look_up_ticks as f64 * each;
        }
        let [ports, engines, turns] = [spent.ports, spent.engines, spent.turns].map(|ticks| ticks as f64);
        // Both are of some turns only, and their sum may be more than there was.
        let rest = (turns - ports - engines).max(0.0);
        let scale = if parse + look_up > rest { rest / (parse + look_up) } else { 1.0 };
        let (parse, look_up) = (parse * scale, look_up * scale);
        [ports + parse, look_up, (rest - parse - look_up).max(0.0), engines]
    }

    fn effort(&self, trial: &Trial, [before, after]: &[Reading; 2]) -> Option<Effort> {
        let second = 1.0 / trial.activity.as_ref()?.cycles_per_second;
        let spent = after.spent.since(before.spent);
        let received = after.received.iter().zip(&before.received).map(|(after, before)| after - before);
        let received: Vec<u64> = received.collect();
        let threads = |count: usize, ticks: u64| match count {
            0 => Elsewhere::Nowhere,
            count => Elsewhere::Threads { count, busy: ticks as f64 * second },
        };
        let cryptography = match &self.setup.crypto {
            Crypto::Worker => Elsewhere::Nowhere,
            Crypto::Threads(_) => {
                threads(self.setup.crypto_threads(), after.cryptography - before.cryptography)
            }
            Crypto::Device(_) => Elsewhere::Device { stay: spent.stay as f64 * second },
        };
        Some(Effort {
            packets: *received.first()?,
            worker: self.of_worker(spent, &received).map(|ticks| ticks * second),
            io: threads(self.setup.threads.io.len(), after.io - before.io),
            cryptography,
        })
    }
}

impl Drop for Offloaded {
    fn drop(&mut self) {
        allow(&self.processors);
    }
}

impl Device for Offloaded {
    /// The [highest rate](highest_rate) of gateways in memory, found once for the last sizes.
    fn maximum_rate(&mut self, sizes: Sizes) -> Result<Ceiling, DeviceError> {
        if let Some((_, ceiling)) = self.maximum.filter(|(known, _)| *known == sizes) {
            return Ok(ceiling);
        }
        let cores = self.cores();
        // The gateways would share the processor with what is measured.
        self.running = None;
        self.maximum = None;
        let ceiling = highest_rate(cores, |load| self.trial(sizes, load))?;
        self.maximum = Some((sizes, ceiling));
        Ok(ceiling)
    }

    fn trial(&mut self, sizes: Sizes, load: Load) -> Result<Trial, DeviceError> {
        Ok(self.told(sizes, load, false)?.0)
    }
}

impl Placed for Offloaded {
    /// The time of reading headers and of looking up is that of one turn in several. A trial that is too
    /// short for one is made again.
    fn timed(&mut self, sizes: Sizes, load: Load) -> Result<(Trial, Effort), DeviceError> {
        for _ in 0..AGAIN {
            let (trial, readings) = self.told(sizes, load, true)?;
            if self.stages.iter().all(|[.., packets]| *packets > 0)
                && let Some(effort) = self.effort(&trial, &readings)
            {
                return Ok((trial, effort));
            }
        }
        Err(DeviceError("no turn of the worker was measured: trials are too short".to_owned()))
    }
}

#[cfg(test)]
mod tests;
