//! What it costs a worker to hand a job over to another core and to take it back, beside doing it at once.
//!
//! The jobs name no key, so that engines end them without any cryptography: what is left is the framework,
//! submit and poll, with one thread that does nothing else.

use std::time::{Duration, Instant};

use testudo_crypto::{Direction, Engine, Job, JobStatus};
use testudo_engine_cores::{CoresConfig, CoresEngine};
use testudo_packet::{BATCH_SIZE, Buffer, ticks};

use super::{Setup, threads};
use crate::bench::error::Wrong;
use crate::traffic::median;

/// Batches that are under way at most.
const BATCHES: usize = 8;
/// Parts of a measurement, of which the median counts: other programs are at work in some.
const PARTS: u32 = 8;

/// In cycles of the time stamp counter that the worker spends for a job.
#[derive(Debug, Clone, Copy)]
pub(super) struct HandingOver {
    /// An engine that is called directly.
    pub(super) direct: f64,
    /// Submit and poll, of a job that another core had.
    pub(super) handed_over: f64,
}

/// What the worker spent, and on how many jobs.
#[derive(Debug, Clone, Copy, Default)]
struct Spent {
    cycles: u64,
    /// Jobs that the engine did before `submit` returned, and those that came back by `poll`.
    own: u64,
    handed_over: u64,
}

impl HandingOver {
    /// Measured on the first two of these processors, for about so long; `None` where there is one.
    pub(super) fn measure(
        setup: &Setup<'_>,
        processors: &[usize],
        duration: Duration,
    ) -> Result<Option<Self>, Wrong> {
        let [worker, other, ..] = *processors else { return Ok(None) };
        let engine = &setup.engines.available[setup.engine];
        let config = CoresConfig { processors: vec![other], ..CoresConfig::of(1) };
        let cores = CoresEngine::open(&config, &mut || Ok(vec![engine.opened()?]));
        let (mut plain, mut cores) = (engine.open()?, cores.map_err(|e| e.to_string())?);
        let on_worker = move || {
            threads::bind(worker);
            let part = duration / (2 * PARTS);
            let mut found = Vec::new();
            for _ in 0..PARTS {
                let direct = spend(plain.as_mut(), part)?;
                let direct = direct.cycles as f64 / direct.own.max(1) as f64;
                let spent = spend(&mut cores, part)?;
                if spent.handed_over > 0 {
                    let handed_over = spent.cycles as f64 - spent.own as f64 * direct;
                    found.push((direct, handed_over.max(0.0) / spent.handed_over as f64));
                }
            }
            let of = |figure: fn(&(f64, f64)) -> f64| median(&found.iter().map(figure).collect::<Vec<_>>());
            let both = of(|part| part.0).zip(of(|part| part.1));
            Ok(both.map(|(direct, handed_over)| Self { direct, handed_over }))
        };
        let thread = std::thread::spawn(on_worker);
        thread.join().unwrap_or_else(|_| Err("an engine has panicked".to_owned()))
    }
}

/// Has the engine end jobs for so long, with several batches under way, and waits for what is left. Polls in
/// vain are no cost of a job: the worker has other work then.
fn spend(engine: &mut dyn Engine, duration: Duration) -> Result<Spent, Wrong> {
    let no_key = |_| Job::new(Buffer::default(), Direction::Seal, 0);
    let mut waiting: Vec<Job> = (0..BATCHES * BATCH_SIZE).map(no_key).collect();
    let (all, mut batch, mut done) =
        (waiting.len(), Vec::with_capacity(BATCH_SIZE), Vec::with_capacity(BATCH_SIZE));
    let (mut spent, begun) = (Spent::default(), Instant::now());
    loop {
        let is_over = begun.elapsed() >= duration;
        if is_over && waiting.len() == all {
            return Ok(spent);
        }
        if !is_over && waiting.len() >= BATCH_SIZE {
            batch.extend(waiting.drain(..BATCH_SIZE));
            batch.iter_mut().for_each(|job| job.status = JobStatus::Pending);
            let before = ticks();
            let taken = engine.submit(&mut batch);
            engine.flush();
            spent.cycles += ticks().wrapping_sub(before);
            if taken != batch.len() {
                return Err(format!("{} did not take a batch", engine.name()));
            }
            let own = batch.iter().filter(|job| job.status != JobStatus::Taken).count();
            spent.own += own as u64;
            waiting.extend(batch.drain(..).filter(|job| job.status != JobStatus::Taken));
        }
        let before = ticks();
        engine.poll(&mut done, BATCH_SIZE);
        if !done.is_empty() {
            spent.cycles += ticks().wrapping_sub(before);
            spent.handed_over += done.len() as u64;
            waiting.append(&mut done);
        }
        if begun.elapsed() > duration + threads::PATIENCE {
            return Err(format!("{} keeps jobs", engine.name()));
        }
    }
}
