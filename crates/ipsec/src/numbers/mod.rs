//! Sequence numbers of SAs: those that one sends, and those that it has received.
//!
//! ```text
//!   outbound:  Lease (granted by the store) ─► SequenceNumbers ─► a number for each packet
//!   inbound:   a number of each packet ─► ReplayWindow: check ─► (engine) ─► commit
//! ```
//!
//! An SA that one worker has owns its numbers and its window: no other thread touches them. An SA that
//! several workers have shares them:
//!
//! ```text
//!   outbound:  Lease ─► SharedNumbers ─► a block of numbers for each run ─► SequenceNumbers, one per worker
//!   inbound:   ReplayWindow, one per worker ─► a word of numbers for each 32 and batch ─► SharedWindow
//! ```
//!
//! The worker's part has the same type in both cases, and the same fast path: [`SequenceNumbers`] are its own
//! up to low water, [`ReplayWindow`] knows how far the window was when it last looked. Where that does not
//! suffice, a cold path asks what is shared. There is no lock, and no worker waits for another one: it gets
//! numbers or does not, a number is accepted or refused.
//!
//! Of VPE, each worker numbers in windows of its own, all of them below what [`gates`] let it.
//!
//! What may not happen, with any number of workers: a number used twice under a key, a packet accepted twice.
//! [`shared_sequence`] and [`shared_window`] argue why it does not; `sequence_tests` and `window_tests` run
//! one body of tests over both kinds, and loom tries the interleavings of the shared one, with up to three
//! preemptions.

mod gates;
mod grants;
mod lease;
mod padded;
mod release;
mod reordering;
mod sequence;
#[cfg(all(test, not(loom)))]
mod sequence_tests;
mod shared_sequence;
mod shared_window;
mod window;
#[cfg(all(test, not(loom)))]
mod window_tests;

pub use gates::GatedNumbers;
pub use lease::{Lease, NumberSource, Waker};
pub use release::{ORDER_SPAN, PATIENCE, ReleaseCost, ReleaseRing, RingMember};
pub use reordering::{Reordered, Reordering};
pub use sequence::{SequenceError, SequenceNumbers};
pub use shared_sequence::{Block, DEFAULT_PEER_WINDOW, MAX_SHARERS, Reserver, STALLED, SharedNumbers};
pub use shared_window::SharedWindow;
pub use window::{MAX_WINDOW, MIN_WINDOW, ReplayError, ReplayWindow, WINDOW_STEP};
