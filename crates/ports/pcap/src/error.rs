//! Errors in packet files.

use std::io;

/// A packet file could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PcapError {
    /// The operating system refused.
    #[error("{file}: {source}")]
    Io {
        /// Name of the file.
        file: String,
        /// The system's error.
        source: io::Error,
    },
    /// The file's own header is wrong.
    #[error("{file}: {what}")]
    Header {
        /// Name of the file.
        file: String,
        /// What is wrong.
        what: String,
    },
    /// A record is wrong; those before it were good.
    #[error("{file}: record {record}, at byte {offset}: {what}")]
    Record {
        /// Name of the file.
        file: String,
        /// Number of the record (pcap) or block (pcapng), from 1.
        record: u64,
        /// Where the record begins, in bytes from the beginning of the file.
        offset: u64,
        /// What is wrong.
        what: String,
    },
}
