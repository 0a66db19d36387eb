//! Configuration errors: where, what was expected, what was found, what to write instead.

use serde_json::{Value, json};
use std::fmt;

/// Errors that are kept; those beyond are only counted.
pub const MAX_ERRORS: usize = 100;

/// One thing that is wrong in a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// Line, from 1; 0 if it concerns the whole file.
    pub line: usize,
    /// Column in characters, from 1; 0 if it concerns the whole file.
    pub column: usize,
    /// Path of the key, such as `tunnel[site-b].replay_window`; empty if it concerns the whole file.
    pub key: String,
    /// What was expected there.
    pub expected: String,
    /// What was found, with anything that may be a secret masked.
    pub found: String,
    /// How to correct it.
    pub help: Option<String>,
    /// The line that it is on.
    pub excerpt: Option<Excerpt>,
}

/// A source line, clipped and masked, and the part of it that an error is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Excerpt {
    /// The line's text.
    pub text: String,
    /// Characters before the marked part.
    pub mark_start: usize,
    /// Characters in the marked part, at least 1.
    pub mark_width: usize,
}

/// All errors in a configuration, in the order of its lines. `Display` is for people, [`Self::to_json`] for
/// programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors {
    file: String,
    errors: Vec<ConfigError>,
    omitted: usize,
}

impl ConfigErrors {
    pub(super) fn new(file: &str, mut errors: Vec<ConfigError>, omitted: usize) -> Self {
        errors.sort_by_key(|error| (error.line, error.column));
        Self { file: file.to_owned(), errors, omitted }
    }

    /// One error about the file as a whole.
    pub(super) fn whole_file(file: &str, expected: &str, found: String, help: Option<String>) -> Self {
        let expected = expected.to_owned();
        let error =
            ConfigError { line: 0, column: 0, key: String::new(), expected, found, help, excerpt: None };
        Self::new(file, vec![error], 0)
    }

    /// The name of the file, as given to the parser.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The errors, at most [`MAX_ERRORS`].
    #[must_use]
    pub fn errors(&self) -> &[ConfigError] {
        &self.errors
    }

    /// Errors beyond [`MAX_ERRORS`].
    #[must_use]
    pub fn omitted(&self) -> usize {
        self.omitted
    }

    /// `[{"line", "column", "key", "found", "expected", "help"}]`; `help` may be null.
    #[must_use]
    pub fn to_json(&self) -> String {
        let object = |e: &ConfigError| {
            json!({"line": e.line, "column": e.column, "key": e.key, "found": e.found,
                   "expected": e.expected, "help": e.help})
        };
        Value::Array(self.errors.iter().map(object).collect()).to_string()
    }
}

impl std::error::Error for ConfigErrors {}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.errors.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            error.render(&self.file, f)?;
        }
        if self.omitted > 0 {
            writeln!(f, "\n{}: and {} more errors", self.file, self.omitted)?;
        }
        Ok(())
    }
}

impl ConfigError {
    fn render(&self, file: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(file)?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        if !self.key.is_empty() {
            write!(f, ": {}", self.key)?;
        }
        writeln!(f, ": expected {}, found {}", self.expected, self.found)?;
        let line = self.line.to_string();
        let gutter = " ".repeat(line.len());
        if let Some(excerpt) = &self.excerpt {
            let (indent, mark) = (" ".repeat(excerpt.mark_start), "^".repeat(excerpt.mark_width));
            writeln!(f, "{gutter} |\n{line} | {}\n{gutter} | {indent}{mark}", excerpt.text)?;
        }
        match &self.help {
            Some(help) => writeln!(f, "{gutter} = help: {help}"),
            None => Ok(()),
        }
    }
}
