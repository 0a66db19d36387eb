//! The engine on other cores: threads that do cryptography for a worker, as VPP's software crypto scheduler
//! has them do it. One SA, however fast, gets as many cores as there are threads, and the worker's own beside
//! them; its protocol does not change, since the worker still numbers its packets and releases them in order.
//!
//! ```text
//!                   ┌─ ring ─► thread 0: its own engines ─┐ (in place: a chunk stays in its slot)
//!   submit ─ chunks ┼─ ring ─► thread 1: its own engines ─┼─► poll
//!                   └─ what no ring has room for: the worker's own engines, before submit returns
//! ```
//!
//! **Rings.** Each thread has one ring of slots, and a slot has room for a chunk of 32 jobs. The worker moves
//! jobs into a slot and publishes it; the thread does them where they lie and publishes that; the worker
//! moves them out. So two counters make of one ring what two rings would be, there and back, with one move
//! less. Counters have cache lines of their own, and change once for each chunk.
//!
//! **The worker's own share.** From idleness a burst is divided evenly among all threads and the worker, and
//! up to 16 jobs are the worker's: who has so few packets is not short of time, and a hand-over costs more.
//! While threads are at work, each gets chunks until it has four; the rest is the worker's. A worker that is
//! busy with headers finds rings that are nearly empty and does little cryptography; one that has time finds
//! them full. So nobody idles while there is work, and the share need not be configured. (VPP has it
//! configured for each worker; its workers hand whole frames to those that are enabled.)
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
mod engine;
#[cfg(not(loom))]
mod engines;
#[cfg(not(loom))]
mod helper;
#[cfg(not(loom))]
mod preparer;
mod ring;
mod sync;
#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(not(loom))]
pub use engine::{CoresConfig, CoresEngine, MAX_THREADS};

/// The engine's name in configuration and errors.
pub const NAME: &str = "cores";
