//! Why a measurement failed.

use std::path::PathBuf;
use std::process::ExitCode;

/// The exit code where a device or a right is missing.
pub(crate) const NOT_POSSIBLE: u8 = 4;
/// That where no engine does the work.
pub(crate) const NO_ENGINE: u8 = 5;

/// Why the data path could not be measured, or files could not be compared. The text is for the user.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The requested measurement is impossible.
    #[error("{0}")]
    Usage(String),
    /// No engine, or not the requested one.
    #[error("{0}")]
    Engine(String),
    /// Some part did not do its work, so the figures would mean nothing.
    #[error("{case}: {what}")]
    Invalid {
        /// The measurement.
        case: String,
        /// What was wrong.
        what: String,
    },
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file is not what `testudo bench --json` writes.
    #[error("{}: {what}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A network or its gateways could not be had, or failed.
    #[error(transparent)]
    Network(#[from] crate::error::LabError),
    /// This machine lacks a device or a right.
    #[error("{0}")]
    NotPossible(String),
    /// A case is slower than the allowed loss.
    #[error("{0}")]
    Slower(String),
}

impl BenchError {
    /// The program's exit codes: 2 command line, 4 a device or a right is missing, 5 no engine, 1 anything
    /// else.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            BenchError::Usage(_) => ExitCode::from(2),
            BenchError::NotPossible(_) => ExitCode::from(NOT_POSSIBLE),
            BenchError::Network(error) if error.is_of_the_machine() => ExitCode::from(NOT_POSSIBLE),
            BenchError::Engine(_) => ExitCode::from(NO_ENGINE),
            _ => ExitCode::FAILURE,
        }
    }
}

/// What is wrong with a measurement; the caller adds which one.
pub(super) type Wrong = String;
