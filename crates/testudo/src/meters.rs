//! The meters of energy that `testudo lab` has: those of the laboratory, and NVIDIA's of its GPUs.

use testudo_lab::meters::Meters;

/// All that this machine has.
pub fn of_this_machine() -> Meters {
    Meters::of_this_machine()
}
