//! Why a measurement says nothing.

use std::path::PathBuf;
use std::process::ExitCode;

/// Why the data path could not be measured, or files could not be compared. The text is for the user.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// What was asked for cannot be measured.
    #[error("{0}")]
    Usage(String),
    /// No engine, or not the one that was asked for.
    #[error("{0}")]
    Engine(String),
    /// Something did not do its work; the measurement would say nothing.
    #[error("{case}: {what}")]
    Invalid {
        /// Which measurement.
        case: String,
        /// What was wrong.
        what: String,
    },
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is not what `testudo bench --json` writes.
    #[error("{}: {what}", path.display())]
    Malformed {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A comparison shows more of a loss than is allowed.
    #[error("{0}")]
    Slower(String),
}

impl BenchError {
    /// The program's exit codes: 2 command line, 5 no engine, 1 all else.
    pub(super) fn exit_code(&self) -> ExitCode {
        match self {
            BenchError::Usage(_) => ExitCode::from(2),
            BenchError::Engine(_) => ExitCode::from(5),
            _ => ExitCode::FAILURE,
        }
    }
}

/// What is wrong with one measurement; the caller that knows adds which one.
pub(super) type Wrong = String;
