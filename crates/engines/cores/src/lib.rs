//! The engine on other cores: threads that do cryptography for a worker, as VPP's software crypto scheduler
//! has them do it. One SA, however fast, gets as many cores as there are threads, and the worker's own beside
//! them; its protocol does not change, since the worker still numbers its packets and releases them in order.
//!
//! ```text
//!                   ┌─ ring ─► thread 0: its own engines ─┐ (in place: a chunk stays in its slot)
//!   submit ─ chunks ┼─ ring ─► thread 1: its own engines ─┼─► poll
//!                   └─ the worker's own share: its own engines, before submit returns
//! ```
//!
//! **Rings.** Each thread has one ring of slots, and a slot has room for a chunk of 32 jobs. The worker moves
//! jobs into a slot and publishes it; the thread does them where they lie and publishes that; the worker
//! moves them out. So two counters make of one ring what two rings would be, there and back, with one move
//! less. Counters have cache lines of their own, and change once for each chunk.
//!
//! **Who does what** follows the time that it takes, not the number of packets. What jobs cost is learned
//! for each suite from what threads report of their chunks and from the worker's own share (`cost`), with
//! two readings of the clock for each. A burst is divided so that all end together, where what a thread
//! has left counts, and what the worker does between bursts: that is measured, too (`share`). A worker
//! that is busy with headers does little cryptography, and one that has time does its part. So nobody
//! idles while there is work, and the share need not be configured. (VPP has it configured for each
//! worker; its workers hand whole frames to those that are enabled.) Three things are the worker's own:
//! what costs less than to hand it over; a few microseconds of cryptography while it is not pressed,
//! since waking a thread takes as long; and what a thread has no room for.
//!
//! **A worker that is better alone is left alone.** Whether bursts are worth handing over is remembered by
//! suite and length (`worth`). If not, they are neither priced nor timed, and the engine
//! [says so](testudo_crypto::Engine::ends_next_at_once) before it gets one, so that the gateway finishes its
//! jobs in place. Where reckoning does not tell, the worker's time with and without threads does: at times
//! it does bursts the other way. Wakings and lines that cross from cache to cache are in that time.
//!
//! **Several bursts are under way.** Nothing waits for a burst's other parts. While the worker is pressed
//! each thread has some work more before it than would be even, so that it never waits for the next
//! burst, and so that lines which cross from cache to cache have left the nearest one. What has ended
//! makes room in its ring when the worker needs that, before it polls.
//!
//! **Sleep.** A thread that finds its ring empty looks some hundred times, then sleeps; the worker wakes it.
//! That no wake-up is lost, loom tries in all interleavings (`ring`). The worker is not woken: it polls while
//! anything is under way.
//!
//! **Keys** are installed in the worker's engines at once, and reach each thread in its ring, between the
//! chunks before and after. So a job never meets its key too early or too late, and no call waits. Each
//! thread expands or [links](testudo_crypto::Engine::link) them itself and zeroes them when they are removed.
//! A thread that could not install a key ends jobs under it as faults, for the gateway's next engine.
//!
//! **Faults.** What an engine of a thread fails at comes back as a fault, its buffer untouched. A thread that
//! panics gets no more; what was in its ring comes back as faults, but for the jobs that it had at that
//! moment: their buffers may be half sealed, and sealed again they would show plaintext. They are cleared and
//! can be done by no engine. A thread that hangs keeps its jobs, and the gateway takes the engine out of
//! service, as the contract says; when the engine ends it is waited for, but not for long.
//!
//! **Threads start late**, when the worker tells of its memory: by then the process has given up its
//! privileges and filters its system calls, which threads inherit.
//!
//! Deliberately missing: engines that end jobs later (a thread would have to poll them, and the gateway can),
//! and stealing of chunks that another thread has not begun.

#![forbid(unsafe_code)]

#[cfg(not(loom))]
mod cost;
#[cfg(not(loom))]
mod engine;
#[cfg(not(loom))]
mod engines;
#[cfg(not(loom))]
mod helper;
#[cfg(not(loom))]
mod preparer;
mod ring;
#[cfg(not(loom))]
mod share;
mod sync;
#[cfg(all(test, not(loom)))]
mod tests;
#[cfg(not(loom))]
mod worth;

#[cfg(not(loom))]
pub use engine::{CoresConfig, CoresEngine, MAX_THREADS};

/// The engine's name in configuration and errors.
pub const NAME: &str = "cores";
