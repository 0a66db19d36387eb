//! Buffers, pools, batches and the [`Port`] trait: what moves through the gateway, and how.
//!
//! A [`Buffer`] holds one IP datagram with room before it (for tunnel headers) and after it (for padding and
//! ICV):
//!
//! ```text
//!   |<- headroom ->|<------- bytes() ------->|<- tailroom ->|
//!   +--------------+-------------------------+--------------+
//!   0            start                      end         capacity
//! ```
//!
//! The holder of a `Buffer` owns it; there is no second handle. Buffers come from a [`Pool`] and go back to
//! it in exactly one of three ways: [`Pool::recycle`] after the packet was sent, [`Pool::discard`] with a
//! [`DropReason`], or [`Pool::merge`] after its bytes became a part of another packet. So the books of a
//! worker always balance: packets in + packets created = packets out + drops by reason + packets merged. A
//! [`Journal`] keeps books about single packets, where somebody wants them.
//!
//! Threads: a pool, its buffers and its ports belong to one worker. Nothing here is shared, locked or atomic,
//! but for the [`ring`] by which a thread beside a worker gets what it is to do, the [`Aside`] that says who
//! does it, and the wait for what another thread makes ([`Awaited`]).
//!
//! A [`StageClock`] attributes the cycles of a batch to stages: it travels with the batch through the crates
//! above.
//!
//! The bytes of a pool's buffers are frames of a [`Region`]: one mapping, on large pages where there are
//! some, of which a device can be told as a whole. Most packets fit a frame; a pool has some long buffers for
//! the others.
//!
//! A packet may also be a *chain*: a buffer to which more are linked, for a packet in several frames that
//! nobody has to merge. Who has the first buffer has all of them. Few code sees chains: see
//! [`Port::takes_chains`].

#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::cast_possible_truncation, reason = "test data is made of small numbers"))]

mod aside;
mod awaited;
mod batch;
mod buffer;
mod chain;
mod drop_reason;
mod frames;
mod interface;
mod journal;
mod mapping;
mod mark;
mod move_buffers;
mod pool;
mod port;
mod prefetch;
mod region;
mod ring;
mod stage;
mod storage;
mod sync;
mod ticks;
mod tx_outcome;

pub use aside::{Aside, AsideTimes};
pub use awaited::Awaited;
pub use batch::{BATCH_SIZE, Batch};
pub use buffer::{Around, Buffer, NoRoom};
pub use chain::{MAX_SEGMENTS, Segments, SegmentsMut};
pub use drop_reason::{DropCounters, DropReason};
pub use interface::Interface;
pub use journal::{Journal, Passage, Record};
pub use mapping::{PageChoice, Pages};
pub use mark::{Mark, MarkKind};
pub use pool::{HEADROOM_BYTES, Pool, Stray, TAILROOM_BYTES};
pub use port::{Port, PortCounters, PortError};
pub use prefetch::prefetch;
pub use region::Region;
pub use ring::{Consumer, Producer, ring, sleep_on};
pub use stage::{MEASURED_OF, Stage, StageClock, StageTimes};
pub use ticks::ticks;
pub use tx_outcome::{Sent, TxOutcome};
