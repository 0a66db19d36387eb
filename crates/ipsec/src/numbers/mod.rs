//! Sequence numbers of SAs: those that one sends, and those that it has received.

mod lease;
mod sequence;
mod window;

pub use lease::{Lease, NumberSource, Waker};
pub use sequence::{SequenceError, SequenceNumbers};
pub use window::{MAX_WINDOW, MIN_WINDOW, ReplayError, ReplayWindow, WINDOW_STEP};
