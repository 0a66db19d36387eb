//! Taking jobs back from an engine while a call of it does not return.
//!
//! A thread that drives a device for a worker may stay in a call of the driver for ever. The jobs that the
//! engine has are then as they came, since nobody but that thread ends them, but no call of the engine can
//! be made. So an engine may keep its jobs where another thread finds them.

use crate::Job;

/// The jobs that an engine has, for another thread than the one that calls it.
pub trait Reclaim: Send + Sync {
    /// Moves all jobs that the engine has taken and not ended to `jobs`, in the order in which it took them,
    /// with their packets as they were submitted; `false` if it is at some of them just now, which stay: it
    /// may be asked again. Does not wait. From then on neither the engine nor its device writes to the
    /// packets that were moved: what comes of them is discarded, and the engine [rests](Self::rests) until
    /// its device has ended them.
    fn reclaim(&self, jobs: &mut Vec<Job>) -> bool;

    /// Whether the engine takes no job until its device has ended those that were taken back, by it or by
    /// [`reclaim`](Self::reclaim).
    fn rests(&self) -> bool;
}
