//! Sequence numbers of SAs: those that one sends, and those that it has received.

mod lease;
mod padded;
mod sequence;
#[cfg(all(test, not(loom)))]
mod sequence_tests;
mod shared_sequence;
mod shared_window;
mod window;
#[cfg(all(test, not(loom)))]
mod window_tests;

pub use lease::{Lease, NumberSource, Waker};
pub use sequence::{SequenceError, SequenceNumbers};
pub use shared_sequence::{Block, DEFAULT_PEER_WINDOW, MAX_SHARERS, Reserver, STALLED, SharedNumbers};
pub use shared_window::SharedWindow;
pub use window::{MAX_WINDOW, MIN_WINDOW, ReplayError, ReplayWindow, WINDOW_STEP};
