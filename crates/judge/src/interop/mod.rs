//! The matrix of interoperability: which tunnels another implementation is tried with, what became of each,
//! and the document that says so.
//!
//! ```text
//!   row       protocol × mode × suite × IP version outside × ESN
//!   peer      who stands at the other end
//!   results   one line of JSON for each row that was run, kept between runs
//!   document  the table: docs/INTEROP.md
//! ```
//!
//! Who runs the rows is no part of this module: see `crates/testudo/tests/linux_kernel`.

mod document;
mod peer;
mod results;
mod row;

pub use document::{Facts, document, json, summary};
pub use peer::Peer;
pub use results::{Results, ResultsError, Verdict};
pub use row::{Mode, Protocol, Row, all_rows, sample};
