//! The contract between the gateway and its cryptographic engines.

use crate::{Direction, Job, KeyId, KeyMaterial, KeyPreparer, Offload, PreparedKey, Profile, Reclaim, Suite};
use std::sync::Arc;
use testudo_packet::Region;

/// The most jobs that an engine which has lost thousands at once gives back as [`JobStatus::Fault`] in one
/// poll: as many as a turn of a worker brings.
///
/// [`JobStatus::Fault`]: crate::JobStatus::Fault
pub const MOST_FAULTS: usize = 256;

/// What an engine can do with one suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capability {
    /// The longest text it takes, in bytes; what a header has beyond ESP's 8 bytes counts as text.
    pub max_text_bytes: usize,
    /// How many keys it can hold at a time.
    pub max_keys: usize,
    /// Whether it does jobs over [chains](testudo_packet::Buffer::is_chain) of buffers where they are. Others
    /// it ends as faults, as any text beyond its buffer; the gateway merges their segments before it submits
    /// them.
    pub takes_chains: bool,
    /// Whether it writes the [frames](crate::frame) of jobs that it seals, where those leave it to the
    /// engine. All others must be given whole packets.
    pub writes_frames: bool,
}

/// An engine cannot be used, or not for this purpose.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The engine is not available on this machine; the text says what is missing and what would help.
    #[error("engine {engine} is not available: {reason}")]
    Unavailable {
        /// Name of the engine.
        engine: &'static str,
        /// What is missing, and what would help.
        reason: String,
    },
    /// A known answer came out wrong.
    #[error("engine {engine} failed its self-test: {reason}")]
    SelfTest {
        /// Name of the engine.
        engine: &'static str,
        /// Which answer was wrong.
        reason: String,
    },
    /// The engine does not do this suite.
    #[error("engine {engine} does not do {suite}")]
    Unsupported {
        /// Name of the engine.
        engine: &'static str,
        /// The suite.
        suite: Suite,
    },
    /// The engine did not take this key: its expansion failed.
    #[error("engine {engine} refused a key: {reason}")]
    KeyRefused {
        /// Name of the engine.
        engine: &'static str,
        /// Its reason, without any of the key's bytes.
        reason: String,
    },
    /// The engine holds as many keys as it can.
    #[error("engine {engine} holds {limit} keys and can hold no more")]
    Full {
        /// Name of the engine.
        engine: &'static str,
        /// Its limit.
        limit: usize,
    },
}

/// Something that does cryptography, synchronously or asynchronously.
///
/// The contract:
/// - `submit` takes a prefix of the jobs, in order, and returns its length. What it did not take stays the
///   caller's, untouched.
/// - Every job of the prefix ends exactly once: in place (its status is `Done`, `AuthenticationFailed` or
///   `Fault` when `submit` returns) or, if its status is `Taken`, through `poll`.
/// - A job that ends as `Fault` has its buffer as it was submitted, and its frame is as
///   [unwritten](Job::unwritten) as it was. One that was sealed has its frame.
/// - A job that names a key which the engine does not hold (any more), a text beyond its buffer, a longer one
///   than the engine's capability, or one that is no multiple of its cipher's block, ends as `Fault`. A
///   [`KeyId`] is not given to another key soon after it was removed.
/// - Where the ICV is wrong, no decrypted text remains in the buffer. (A suite that does not encrypt has
///   nothing to hide.)
/// - What `submit` took may gather in the engine until [`flush`](Self::flush): from then on it ends without
///   further calls but `poll`.
/// - Completions come from `poll` in any order; the gateway restores the order of each SA.
/// - One call of `poll` gives back [`MOST_FAULTS`] jobs that it has failed at, and the others with the next
///   ones: the caller has the next engine do them in the same turn.
/// - No call waits, and a `Taken` job comes back within a second, far more than any device needs. An engine
///   that keeps one longer is taken out of service until the gateway is restarted; while three quarters of
///   the gateway's buffers are in flight, after 62.5 ms. It gets no further job or key, the jobs it holds are
///   counted as lost, and those it gives back later are dropped. It is still told which keys to
///   [`remove`](Self::remove), and polled up to sixteen times a second for the buffers that it has. One that
///   can tell that its device hangs gives the jobs back as `Fault` before that, and takes none, until its
///   device has answered.
/// - An engine that can do nothing any more ends all jobs as `Fault` and [says so](Self::is_out_of_service).
///   It is asked after a `Fault`, and each second. Then it gets no further job or key, and is taken out of
///   service when it has given back what it had.
/// - The gateway has its own record of which engine has which job. A job that an engine gives back without
///   having been given it is dropped.
pub trait Engine: Send {
    /// Short name for configuration, tables and metrics: `ipsec-mb`, `portable`.
    fn name(&self) -> &'static str;

    /// Version and what it runs on, for people: `intel-ipsec-mb 1.3.0, VAES-AVX512`.
    fn description(&self) -> String;

    /// What it can do with `suite`; `None` if nothing.
    fn capability(&self, suite: Suite) -> Option<Capability>;

    /// Makes the engine hold a key for one direction.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`], [`EngineError::Full`] or [`EngineError::KeyRefused`].
    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError>;

    /// Expands keys on other threads, so that [`link`](Self::link) is all that this one has to do; `None` if
    /// only [`install`](Self::install) can.
    fn preparer(&self) -> Option<Arc<dyn KeyPreparer>> {
        None
    }

    /// Makes the engine hold a key that its [`preparer`](Self::preparer) has expanded.
    ///
    /// # Errors
    /// [`EngineError::Full`], or [`EngineError::KeyRefused`] for a key that was prepared for another engine.
    fn link(&mut self, key: PreparedKey) -> Result<KeyId, EngineError> {
        drop(key);
        Err(EngineError::KeyRefused { engine: self.name(), reason: "it takes no expanded keys".to_owned() })
    }

    /// The next of the keys that it gave an id for and does not hold after all, as where another thread was
    /// to give them to its device: each once. It holds no such key any more, and jobs under one end as
    /// `Fault`. Asked after a `Fault`, and each second.
    fn take_refused(&mut self) -> Option<KeyId> {
        None
    }

    /// Forgets a key and zeroes it. Jobs in flight under it still end.
    fn remove(&mut self, key: KeyId);

    /// Tells of the memory that the worker's buffers are in, before the first job: for devices that reach no
    /// other. Packets elsewhere remain jobs like all others.
    fn use_memory(&mut self, region: &Region) {
        let _ = region;
    }

    /// Takes a prefix of `jobs`; see the contract.
    fn submit(&mut self, jobs: &mut [Job]) -> usize;

    /// Whether it takes no job for now, for a reason that is none of the jobs', as when another thread
    /// is to drive it: a caller that gathers asks before it submits, and has them wait on. Also called from
    /// time to time while there are none, and may do then what such a change needs.
    fn is_resting(&mut self) -> bool {
        false
    }

    /// Whether it does nothing any more until a restart, as after the loss of its device: every job ends as
    /// `Fault`.
    fn is_out_of_service(&self) -> bool {
        false
    }

    /// Hands over to the device what has been taken and gathered. Callers flush when they have nothing more
    /// to submit for now.
    fn flush(&mut self) {}

    /// What jobs of a suite cost, and how many it wants at a time.
    fn profile(&self, suite: Suite) -> Profile {
        let _ = suite;
        Profile::default()
    }

    /// Whether every job ends inside `submit`, so that none is ever `Taken`: the gateway then leaves jobs in
    /// place.
    fn is_synchronous(&self) -> bool {
        false
    }

    /// Whether the next [`submit`](Self::submit) ends all of its jobs inside, as an engine may know of these
    /// that [is not synchronous](Self::is_synchronous) in general: the gateway then leaves them in place,
    /// too. Asked once before that submission, which may have the jobs in another order. What was promised
    /// holds for the next submission, whatever that is of.
    fn ends_next_at_once(&mut self, jobs: &[Job]) -> bool {
        let _ = jobs;
        self.is_synchronous()
    }

    /// Whether [`ends_next_at_once`](Self::ends_next_at_once) is worth asking: whether it is ever true.
    fn ends_some_at_once(&self) -> bool {
        self.is_synchronous()
    }

    /// Appends up to `max` jobs that ended since they were taken.
    fn poll(&mut self, done: &mut Vec<Job>, max: usize) {
        let _ = (done, max);
    }

    /// What it does for SAs that are admitted one by one, if a device does its cryptography as packets pass.
    /// Such an engine has no [capability](Self::capability) of its own.
    fn offload(&mut self) -> Option<&mut dyn Offload> {
        None
    }

    /// What takes its jobs back from another thread, while a call of it does not return; `None` if jobs are
    /// not to be had without the engine, as where it or its device works in the packets themselves.
    fn reclaims(&self) -> Option<Arc<dyn Reclaim>> {
        None
    }

    /// Jobs taken and not yet given back by `poll`: for callers that drive an engine without a gateway.
    fn in_flight(&self) -> usize {
        0
    }
}
