//! How the program ends: a one-line message, and an exit code that scripts can distinguish.

use crate::out::errln;
use std::fmt::Display;
use std::process::ExitCode;

/// The kind of failure, which determines the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Anything else.
    Other = 1,
    /// The command line or the configuration (clap uses 2 as well).
    Configuration = 2,
    /// The durable state.
    State = 3,
    /// A device, port, address or permission.
    Port = 4,
    /// No engine.
    Engine = 5,
    /// No gateway answers.
    Unreachable = 6,
}

/// Why the program ends.
#[derive(Debug)]
pub struct Failure {
    kind: Kind,
    message: String,
}

impl Failure {
    /// A failure of this kind, with a message of one line, or of one line per error.
    pub fn new(kind: Kind, message: impl Display) -> Self {
        Self { kind, message: message.to_string() }
    }

    /// A failure whose message was printed already.
    pub fn silent(kind: Kind) -> Self {
        Self { kind, message: String::new() }
    }

    /// The same kind of failure, with what it means for who asked.
    pub fn explained(self, explain: impl FnOnce(&str) -> String) -> Self {
        Self { message: explain(&self.message), ..self }
    }

    /// What failed.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Prints the message and returns the exit code.
    pub fn report(self) -> ExitCode {
        if !self.message.is_empty() {
            errln!("testudo: {}", self.message);
        }
        ExitCode::from(self.kind as u8)
    }
}

/// Makes a failure from any error.
pub fn failure<E: Display>(kind: Kind) -> impl Fn(E) -> Failure {
    move |error| Failure::new(kind, error)
}
