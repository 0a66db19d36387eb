//! The floor: the cost of a case's cryptography alone, for exactly the jobs that the gateway makes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, JobStatus, KeyId, KeyMaterial, Profile, Suite,
};
use testudo_packet::{BATCH_SIZE, Buffer, ticks};

use super::error::Wrong;

/// What [`Recorder`] has recorded.
#[derive(Default)]
struct Recording {
    keys: Vec<(KeyMaterial, Direction)>,
    jobs: Vec<RecordedJob>,
    /// The size of each batch of jobs.
    submissions: Vec<usize>,
    packets: Vec<Vec<u8>>,
    /// Index of the packet that serves all jobs that seal this length.
    sealed_lengths: HashMap<usize, usize>,
    /// The capacity of the largest buffer.
    room: usize,
}

/// A job without its buffer.
struct RecordedJob {
    job: Job,
    headroom: usize,
    /// Index of its packet.
    packet: usize,
}

impl Recording {
    fn add(&mut self, job: &Job) {
        let bytes = job.buffer.bytes();
        let next = self.packets.len();
        // Input to seal may be arbitrary; input to open must carry its own ICV.
        let packet = match job.direction {
            Direction::Seal => *self.sealed_lengths.entry(bytes.len()).or_insert(next),
            Direction::Open => next,
        };
        if packet == next {
            self.packets.push(bytes.to_vec());
        }
        self.room = self.room.max(job.buffer.capacity());
        let headroom = job.buffer.headroom();
        self.jobs.push(RecordedJob { job: Job { buffer: Buffer::default(), ..*job }, headroom, packet });
    }
}

/// An engine that copies its jobs and processes none of them.
pub(super) struct Recorder {
    recording: Arc<Mutex<Recording>>,
    /// The profile of the engine it represents, so that jobs arrive in the same formation.
    profiles: Vec<(Suite, Profile)>,
}

/// The jobs of a gateway and the keys that they name.
pub(super) struct Recorded(Arc<Mutex<Recording>>);

impl Recorder {
    /// A recorder that is given the same jobs as `engine` would be.
    pub(super) fn beside(engine: &dyn Engine) -> (Self, Recorded) {
        let recording = Arc::<Mutex<Recording>>::default();
        let profiles = Suite::measurable().map(|suite| (suite, engine.profile(suite))).collect();
        (Self { recording: Arc::clone(&recording), profiles }, Recorded(recording))
    }

    fn with<T>(&self, change: impl FnOnce(&mut Recording) -> T) -> T {
        change(&mut self.recording.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Engine for Recorder {
    fn name(&self) -> &'static str {
        "recorder"
    }

    fn description(&self) -> String {
        "copies jobs".to_owned()
    }

    fn capability(&self, _suite: Suite) -> Option<Capability> {
        Some(Capability {
            max_text_bytes: usize::MAX,
            max_keys: usize::MAX,
            takes_chains: false,
            writes_frames: false,
        })
    }

    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        let index = self.with(|recording| {
            recording.keys.push((key.clone(), direction));
            recording.keys.len() - 1
        });
        let full = EngineError::Full { engine: "recorder", limit: index };
        u32::try_from(index).map(KeyId).map_err(|_| full)
    }

    fn remove(&mut self, _key: KeyId) {}

    fn profile(&self, suite: Suite) -> Profile {
        let own = self.profiles.iter().find(|(own, _)| *own == suite);
        own.map(|(_, profile)| *profile).unwrap_or_default()
    }

    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        self.with(|recording| {
            recording.submissions.push(jobs.len());
            jobs.iter().for_each(|job| recording.add(job));
        });
        jobs.iter_mut().for_each(|job| job.status = JobStatus::Fault);
        jobs.len()
    }
}

/// The result: cycles per packet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Floor {
    pub(super) cycles_per_packet: f64,
}

impl Recorded {
    /// The first `count` of the recorded jobs, again from the first if there are fewer, in buffers of their
    /// own and under keys that `engine` has for them.
    pub(super) fn jobs(self, engine: &mut dyn Engine, count: usize) -> Result<Vec<Job>, Wrong> {
        let recording = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let keys = install(engine, &recording.keys)?;
        let buffer = || Buffer::with_capacity(recording.room);
        let some = recording.jobs.iter().cycle().take(count);
        Ok(some.map(|job| refilled(buffer(), job, &recording, &keys)).collect())
    }

    /// Runs the recorded jobs on `engine` for about `duration`, in batches as the gateway submits them, from
    /// warm buffers.
    pub(super) fn floor(self, engine: &mut dyn Engine, duration: Duration) -> Result<Floor, Wrong> {
        let recording = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let keys = install(engine, &recording.keys)?;
        let measured = measure(engine, &keys, &recording, duration);
        keys.into_iter().flatten().for_each(|key| engine.remove(key));
        measured
    }
}

/// Installs the keys on `engine`, each for its recorded direction; the index is that of the recording.
fn install(engine: &mut dyn Engine, keys: &[(KeyMaterial, Direction)]) -> Result<Vec<Option<KeyId>>, Wrong> {
    let install = |(key, direction): &(KeyMaterial, Direction)| engine.install(key, *direction).map(Some);
    keys.iter().map(install).collect::<Result<_, _>>().map_err(|e| e.to_string())
}

fn measure(
    engine: &mut dyn Engine,
    keys: &[Option<KeyId>],
    recording: &Recording,
    duration: Duration,
) -> Result<Floor, Wrong> {
    let start = Instant::now();
    // The same few buffers are reused, as from a pool.
    let (mut live, mut spare): (Vec<Job>, Vec<Buffer>) = Default::default();
    let (mut packets, mut cycles, mut done) = (0, 0, Vec::new());
    let mut source = recording.jobs.iter().cycle();
    let mut submissions = recording.submissions.iter().cycle();
    while packets == 0 || start.elapsed() < duration {
        let count = submissions.next().copied().unwrap_or_default();
        for recorded in (&mut source).take(count) {
            let buffer = spare.pop().unwrap_or_else(|| Buffer::with_capacity(recording.room));
            live.push(refilled(buffer, recorded, recording, keys));
        }
        if live.is_empty() {
            return Err("the gateway made no jobs".to_owned());
        }
        let before = ticks();
        let taken = engine.submit(&mut live);
        engine.flush();
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
            return Err(format!("{} did not complete all jobs of a batch", engine.name()));
        }
        spare.extend(live.drain(..).map(|job| job.buffer));
    }
    Ok(Floor { cycles_per_packet: cycles as f64 / packets as f64 })
}

/// The recorded job, in `buffer`.
fn refilled(
    mut buffer: Buffer,
    recorded: &RecordedJob,
    recording: &Recording,
    keys: &[Option<KeyId>],
) -> Job {
    let bytes = &recording.packets[recorded.packet];
    buffer.reset(recorded.headroom);
    buffer.receive_area()[..bytes.len()].copy_from_slice(bytes);
    buffer.set_len(bytes.len());
    let job = &recorded.job;
    let key = keys.get(job.key.0 as usize).copied().flatten().unwrap_or(KeyId(u32::MAX));
    Job { buffer, key, status: JobStatus::Pending, ..*job }
}
