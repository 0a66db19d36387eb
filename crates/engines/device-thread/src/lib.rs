//! The device thread: drives an engine on a device for a worker, on a thread of its own (paper 002, PIPSEA,
//! section 3.1, which calls it the IPsec thread). Copies to the device, launches, and looking after what has
//! ended then take none of the time in which the worker receives and sends.
//!
//! ```text
//!                ┌─ jobs, keys, flush ─► ring ─►┐
//!   worker: submit, poll                        device thread: the engine's submit, flush, poll
//!                └◄──── ended jobs ◄─── ring ◄──┘
//! ```
//!
//! It is an [`Engine`](testudo_crypto::Engine) around another one, under that one's name, and keeps the same
//! contract: what the inner engine ends later, at once or as a fault comes back through `poll`, and the
//! gateway restores the order of each SA. So the packet scheduler, live placement, the latency bound and the
//! fallback to the next engine are what they are without the thread.
//!
//! **Rings** ([`testudo_packet::ring`]) carry slots of up to 64 jobs, and there is room in both for all jobs
//! that may be away: as many as the engine has under way at its depth, and one more of these. Beyond that
//! `submit` takes none. Nothing is allocated for a job after the start.
//!
//! **Several submissions become one.** The inner engine is flushed when the worker has flushed and the ring
//! is empty: what came while the thread was busy goes to the device together. And when it takes no more.
//!
//! **Keys** get their ids here, at once, so that no call waits, and reach the inner engine through the ring,
//! after the jobs before and ahead of those behind. A key that it refuses makes faults of the jobs under it,
//! which go to the next engine, and is told to who asks then
//! ([`take_refused`](testudo_crypto::Engine::take_refused)). Suites and the number of keys are known, and
//! refused at once.
//!
//! **Jobs on their way** are entered in a list, and their tickets are places in it, and how often each was
//! used: what the inner engine gives back is believed only if it was given, and once.
//!
//! **Faults.** An engine that panics is not called again. Jobs that it has not had come back as faults, for
//! the next engine; those that it had in hand in that call are cleared, since they may be half sealed, and
//! can be done by no engine; in place of those it had before come stand-ins without a buffer, which no engine
//! can do either: they are dropped. The worker goes on while an engine hangs. From one that keeps its jobs
//! where another thread finds them ([`Reclaim`](testudo_crypto::Reclaim)) it takes them back before a gateway
//! in need would give them up (`watch`), and gives it none while it rests; any other one keeps its jobs, and
//! the gateway takes it out of service. When this engine ends it is waited for, but not for long.
//!
//! **Sleep.** While jobs are away the thread polls; after about a millisecond in which nothing comes back it
//! rests in between, for longer each time up to ten, so that a device that hangs does not cost a processor.
//! Else it sleeps. The worker wakes it from either.
//!
//! **The thread starts late**, when the worker tells of its memory: by then the process has given up its
//! privileges and filters its system calls, which threads inherit.
//!
//! **By choice** ([`DeviceThread::by_choice`]) the worker drives the engine itself until a thread is wanted,
//! and gets it back when none is: for the threading model `auto`. The engine changes hands when it has no
//! job, in the worker's next submission, or when asked whether the engine rests: jobs that are gathered wait
//! on meanwhile, and what is submitted nevertheless goes to the next engine. Keys that come while a thread
//! hands it back follow once it is there, which the worker's tick sees without any job. A thread that is not
//! wanted any more ends; one that neither does that nor anything else for a second, or for sixteen ticks
//! where nobody else looks, is lost with its engine, and keys that were to follow are dropped. Where no
//! thread starts, the worker goes on and wants none. That no job or key is lost on the way, and that an
//! engine is either given up or comes back, loom tries in all interleavings; and that jobs which are taken
//! back at any moment end once.
//!
//! Deliberately missing: more workers at one device thread. The device does one chunk after another, so that
//! chunks of several would wait for each other (section 3.1).

#![forbid(unsafe_code)]

mod by_hand;
mod device;
mod engine;
mod keys;
#[cfg(all(test, loom))]
mod loom_tests;
mod shared;
mod slot;
mod sync;
#[cfg(all(test, not(loom)))]
mod tests;
mod watch;

pub use engine::{DeviceThread, thread_name};
