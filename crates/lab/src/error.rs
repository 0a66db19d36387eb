//! What can go wrong in the laboratory.

use std::io;
use std::time::Duration;

use crate::namespaces::NamespaceError;

/// Why a demonstration or a measurement could not be carried through. The text is for the user.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// The private network could not be built.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// A program that is needed is not installed.
    #[error("the program '{program}' is missing: install the package {package}, or run `make setup`")]
    MissingProgram {
        /// What was looked for on the path.
        program: &'static str,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// The operating system refused something.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was tried.
        action: String,
        /// What the system said.
        source: io::Error,
    },
    /// A program that we run ended or complained.
    #[error("{program} {complaint}")]
    Program {
        /// Which one, such as "gateway A".
        program: String,
        /// How it ended and what it said.
        complaint: String,
    },
    /// Something did not happen in time.
    #[error("{what} within {} seconds", limit.as_secs_f32())]
    TooLate {
        /// What did not happen, such as "gateway A did not become ready".
        what: String,
        /// How long we waited.
        limit: Duration,
    },
    /// Data came out of the network other than it went in.
    #[error("corrupted data: {0}")]
    Corrupted(String),
}

/// Wraps an I/O error with what was tried: `file.read(…).map_err(io("read the capture"))`.
pub(crate) fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> LabError {
    let action = action.into();
    move |source| LabError::Io { action, source }
}
