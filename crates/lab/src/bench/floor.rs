//! The floor: what the cryptography of a case costs alone, for the very jobs that the gateway makes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use testudo_crypto::{Capability, Direction, Engine, EngineError, Job, JobStatus, KeyId, KeyMaterial, Suite};
use testudo_packet::{BATCH_SIZE, Buffer, ticks};

use super::error::Wrong;

/// What [`Recorder`] has seen.
#[derive(Default)]
struct Recording {
    keys: Vec<(KeyMaterial, Direction)>,
    jobs: Vec<Job>,
}

/// An engine that copies the jobs it is given, and does none of them.
pub(super) struct Recorder(Arc<Mutex<Recording>>);

/// The jobs of a gateway and the keys that they name.
pub(super) struct Recorded(Arc<Mutex<Recording>>);

impl Recorder {
    pub(super) fn new() -> (Self, Recorded) {
        let recording = Arc::<Mutex<Recording>>::default();
        (Self(Arc::clone(&recording)), Recorded(recording))
    }

    fn with<T>(&self, change: impl FnOnce(&mut Recording) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A job of its own with a copy of the packet, in a buffer of the same shape.
fn copy_of(job: &Job) -> Job {
    let buffer = Buffer::copied(job.buffer.bytes(), job.buffer.headroom(), job.buffer.tailroom());
    Job { buffer, ..*job }
}

impl Engine for Recorder {
    fn name(&self) -> &'static str {
        "recorder"
    }

    fn description(&self) -> String {
        "copies jobs".to_owned()
    }

    fn capability(&self, _suite: Suite) -> Option<Capability> {
        Some(Capability { max_text_bytes: usize::MAX, max_keys: usize::MAX })
    }

    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        let place = self.with(|recording| {
            recording.keys.push((key.clone(), direction));
            recording.keys.len() - 1
        });
        let full = EngineError::Full { engine: "recorder", limit: place };
        u32::try_from(place).map(KeyId).map_err(|_| full)
    }

    fn remove(&mut self, _key: KeyId) {}

    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        self.with(|recording| recording.jobs.extend(jobs.iter().map(copy_of)));
        jobs.iter_mut().for_each(|job| job.status = JobStatus::Fault);
        jobs.len()
    }
}

/// Jobs and cycles.
#[derive(Debug, Clone, Copy)]
pub(super) struct Floor {
    pub(super) cycles_per_packet: f64,
}

impl Recorded {
    /// Lets `engine` do the recorded jobs for about `duration`, in batches as the gateway submits them, from warm buffers.
    pub(super) fn floor(self, engine: &mut dyn Engine, duration: Duration) -> Result<Floor, Wrong> {
        let recording = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let keys = install(engine, &recording.keys)?;
        let measured = measure(engine, &keys, &recording.jobs, duration);
        keys.into_iter().flatten().for_each(|key| engine.remove(key));
        measured
    }
}

/// The keys as `engine` knows them, by their place in the recording; of the direction that jobs have.
fn install(engine: &mut dyn Engine, keys: &[(KeyMaterial, Direction)]) -> Result<Vec<Option<KeyId>>, Wrong> {
    let install = |(key, direction): &(KeyMaterial, Direction)| engine.install(key, *direction).map(Some);
    keys.iter().map(install).collect::<Result<_, _>>().map_err(|e| e.to_string())
}

fn measure(
    engine: &mut dyn Engine,
    keys: &[Option<KeyId>],
    jobs: &[Job],
    duration: Duration,
) -> Result<Floor, Wrong> {
    let start = Instant::now();
    // The same few buffers again and again, as a pool gives them.
    let mut live: Vec<Job> = jobs.iter().take(BATCH_SIZE).map(copy_of).collect();
    let room = jobs.iter().map(|job| job.buffer.capacity()).max().unwrap_or(0);
    live.iter_mut().for_each(|job| job.buffer = Buffer::with_capacity(room));
    let (mut packets, mut cycles, mut done) = (0, 0, Vec::new());
    let mut source = jobs.iter().cycle();
    while packets == 0 || start.elapsed() < duration {
        for (job, recorded) in live.iter_mut().zip(&mut source) {
            refill(job, recorded, keys);
        }
        let before = ticks();
        let taken = engine.submit(&mut live);
        while engine.in_flight() > 0 {
            engine.poll(&mut done, BATCH_SIZE);
        }
        cycles += ticks().wrapping_sub(before);
        packets += live.len() as u64;
        if !done.is_empty() {
            live.retain(|job| job.status != JobStatus::Taken);
            live.append(&mut done);
        }
        if taken != live.len() || live.iter().any(|job| job.status != JobStatus::Done) {
            return Err(format!("{} did not do all jobs of a batch", engine.name()));
        }
    }
    Ok(Floor { cycles_per_packet: cycles as f64 / packets as f64 })
}

/// Makes `job` what `recorded` was, in its own buffer.
fn refill(job: &mut Job, recorded: &Job, keys: &[Option<KeyId>]) {
    let mut buffer = std::mem::take(&mut job.buffer);
    let bytes = recorded.buffer.bytes();
    buffer.reset(recorded.buffer.headroom());
    buffer.receive_area()[..bytes.len()].copy_from_slice(bytes);
    buffer.set_len(bytes.len());
    let key = keys.get(recorded.key.0 as usize).copied().flatten().unwrap_or(KeyId(u32::MAX));
    *job = Job { buffer, key, status: JobStatus::Pending, ..*recorded };
}
