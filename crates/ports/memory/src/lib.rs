//! Ports in memory: for tests, for pairs of gateways in one process, and for benchmarks.
//!
//! ```
//! use testudo_packet::{Batch, Pool, Port};
//! use testudo_port_memory::MemoryPort;
//! let (mut port, handle) = MemoryPort::with_handle("site", 64);
//! handle.input.push(b"a packet");
//! let (mut pool, mut batch) = (Pool::new(64, 1500), Batch::new());
//! port.rx(&mut pool, &mut batch)?;
//! port.tx(&mut pool, &mut batch)?;
//! assert_eq!(handle.output.pop().as_deref(), Some(&b"a packet"[..]));
//! # Ok::<(), testudo_packet::PortError>(())
//! ```
//!
//! | port | gives | takes |
//! | --- | --- | --- |
//! | [`MemoryPort`] | what was pushed to its queue | what its queue has room for |
//! | [`LoopPort`] | a fixed set of packets, ([`Packets`]) again and again, or as many as are asked for | everything, and forgets it |
//! | [`SinkPort`] | nothing | everything, and keeps a few copies |
//!
//! Several workers have a port each: [`MemoryQueues`] spread what is pushed over several [`MemoryPort`]s, and
//! [`LoopPort::queues`] a set of packets over several [`LoopPort`]s.
//!
//! Queues are shared with the test under a lock: they show what happens, not how fast. [`LoopPort`] and
//! [`SinkPort`] are for measurements.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::cast_possible_truncation, reason = "test data is made of small numbers"))]

mod looping;
mod packets;
mod port;
mod queue;
mod queues;
mod sink;

pub use looping::{Demand, LoopPort};
pub use packets::Packets;
pub use port::{MemoryHandle, MemoryPort};
pub use queue::Queue;
pub use queues::MemoryQueues;
pub use sink::{SinkHandle, SinkPort};
