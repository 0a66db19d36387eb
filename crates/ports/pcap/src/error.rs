//! What can be wrong with a packet file.

use std::io;
use testudo_packet::PortError;

/// A packet file could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PcapError {
    /// The operating system refused.
    #[error("{file}: {source}")]
    Io {
        /// Name of the file.
        file: String,
        /// What the system said.
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
    #[error("{file}: record {record}: {what}")]
    Record {
        /// Name of the file.
        file: String,
        /// Number of the record (pcap) or block (pcapng), from 1.
        record: u64,
        /// What is wrong.
        what: String,
    },
}

impl PcapError {
    /// The same, of a port that is called as its file.
    pub(crate) fn into_port_error(self) -> PortError {
        match self {
            PcapError::Io { file, source } => {
                PortError { port: file, what: "read the file".to_owned(), source: Some(source) }
            }
            PcapError::Header { file, what } => PortError { port: file, what, source: None },
            PcapError::Record { file, record, what } => {
                PortError { port: file, what: format!("record {record}: {what}"), source: None }
            }
        }
    }
}
