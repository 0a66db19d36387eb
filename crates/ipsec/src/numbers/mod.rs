//! Sequence numbers of SAs: those that one sends, and those that it has received.

mod sequence;
mod window;

pub use sequence::{Lease, NumberSource, SequenceError, SequenceNumbers, Waker};
pub use window::{MAX_WINDOW, MIN_WINDOW, ReplayError, ReplayWindow, WINDOW_STEP};
