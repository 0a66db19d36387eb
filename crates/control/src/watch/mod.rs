//! What a gateway did between two of its answers to `status`, and what its bottleneck is: for `testudo top`
//! and the dashboard, which say the same.
//!
//! ```text
//!   status ──► Reading ─┐
//!   status ──► Reading ─┴─► Change ──► bottleneck ──► a sentence
//! ```
//!
//! Rates are differences over the gateway's own time, cycles are those of the stage clock.

mod bottleneck;
mod change;
mod reading;
pub mod shares;

pub use bottleneck::{Bottleneck, Heaviest, bottleneck};
pub use change::{Change, Direction, PortRates, WorkerRates};
pub use reading::{Missing, Port, Reading, Worker};
