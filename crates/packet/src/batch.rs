//! The unit of all work: up to 64 packets.

use crate::Buffer;
use arrayvec::ArrayVec;

/// The most packets that a [`Batch`] holds. A TSO super-frame of 64 KiB at an Internet MTU is one batch.
pub const BATCH_SIZE: usize = 64;

/// Up to [`BATCH_SIZE`] packets, in the order in which they came.
pub type Batch = ArrayVec<Buffer, BATCH_SIZE>;
