//! Apply and undo over a played host, which refuses, clamps, and dies at any step.

mod companions;
mod faults;
mod hostile;
mod model;
mod plans;
pub mod played;
mod sharing;
