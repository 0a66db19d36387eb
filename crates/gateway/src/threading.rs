//! Threading models: which threads a packet passes (paper 002, PIPSEA, section 3.1).
//!
//! ```text
//!   run to completion        worker: receive, protocol, cryptography, transmit
//!   one I/O thread           worker: receive, protocol, transmit  ⇄  device thread: cryptography
//!   two I/O threads          worker: receive, protocol  ⇄  device thread: cryptography
//!                              └─► transmit thread
//! ```
//!
//! The protocol is always the worker's, and so is the order of each SA: threads beside it are joined to it by
//! rings, and are an engine and ports to it. In run to completion it has neither, and nothing of it is on the
//! packets' way.

use std::fmt;

/// Which threads a packet passes. A model with more of them is the greater one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum ThreadingModel {
    /// The worker alone.
    #[default]
    RunToCompletion,
    /// The worker does all I/O, and a device thread drives the device that does cryptography.
    OneIo,
    /// The same, and another thread transmits.
    TwoIo,
}

impl ThreadingModel {
    /// Each, in the order of their threads.
    pub const ALL: [Self; 3] = [Self::RunToCompletion, Self::OneIo, Self::TwoIo];

    /// Its name in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RunToCompletion => "run_to_completion",
            Self::OneIo => "one_io",
            Self::TwoIo => "two_io",
        }
    }

    /// Whether a thread of its own drives the device.
    #[must_use]
    pub const fn has_device_thread(self) -> bool {
        !matches!(self, Self::RunToCompletion)
    }
}

impl fmt::Display for ThreadingModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RunToCompletion => "run to completion",
            Self::OneIo => "one I/O thread and a device thread",
            Self::TwoIo => "two I/O threads and a device thread",
        })
    }
}
