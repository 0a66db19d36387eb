//! The bytes of a packet file, and the position in it.

use std::io::{self, Read};

/// Why the next record could not be read.
#[derive(Debug)]
pub(crate) enum Broken {
    Io(io::Error),
    Format(String),
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Broken::Format("the file ends within it".to_owned()),
            _ => Broken::Io(error),
        }
    }
}

pub(crate) fn broken<T>(what: impl Into<String>) -> Result<T, Broken> {
    Err(Broken::Format(what.into()))
}

/// A file that is read from front to back.
pub(crate) struct Source {
    file: Box<dyn Read + Send>,
    offset: u64,
    /// Records (pcap) or blocks (pcapng) that began so far.
    pub(crate) records: u64,
    /// Where the last of them began, in bytes.
    pub(crate) record_at: u64,
}

impl Source {
    pub(crate) fn new(file: Box<dyn Read + Send>) -> Self {
        Self { file, offset: 0, records: 0, record_at: 0 }
    }

    /// Begins a record: reads all of `header`; `false` if the file ended before its first byte.
    pub(crate) fn begin_record(&mut self, header: &mut [u8]) -> Result<bool, Broken> {
        let (first, rest) = header.split_at_mut(1);
        let begins_at = self.offset;
        match self.read_exact(first) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(e) => return Err(Broken::Io(e)),
        }
        self.records += 1;
        self.record_at = begins_at;
        self.read_exact(rest)?;
        Ok(true)
    }

    /// Reads `bytes` bytes into `buffer`, replacing its content. The caller has checked that this many may be
    /// kept.
    pub(crate) fn fill(&mut self, buffer: &mut Vec<u8>, bytes: usize) -> Result<(), Broken> {
        buffer.resize(bytes, 0);
        Ok(self.read_exact(buffer)?)
    }

    /// Reads and discards.
    pub(crate) fn skip(&mut self, bytes: usize) -> Result<(), Broken> {
        let skipped = io::copy(&mut self.take(bytes as u64), &mut io::sink())?;
        if skipped == bytes as u64 {
            Ok(())
        } else {
            Err(io::Error::from(io::ErrorKind::UnexpectedEof).into())
        }
    }
}

impl Read for Source {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(bytes)?;
        self.offset += count as u64;
        Ok(count)
    }
}

/// The byte order of a file's integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Little,
    Big,
}

impl Order {
    pub(crate) fn u32(self, bytes: &[u8], at: usize) -> u32 {
        let four = bytes.get(at..).and_then(|b| b.first_chunk::<4>()).copied().unwrap_or_default();
        match self {
            Order::Little => u32::from_le_bytes(four),
            Order::Big => u32::from_be_bytes(four),
        }
    }

    pub(crate) fn u64(self, bytes: &[u8], at: usize) -> u64 {
        let (first, second) =
            (u64::from(self.u32(bytes, at)), u64::from(self.u32(bytes, at.saturating_add(4))));
        match self {
            Order::Little => second << 32 | first,
            Order::Big => first << 32 | second,
        }
    }

    pub(crate) fn length(self, bytes: &[u8], at: usize) -> usize {
        usize::try_from(self.u32(bytes, at)).unwrap_or(usize::MAX)
    }

    pub(crate) fn u16(self, bytes: &[u8], at: usize) -> u16 {
        let two = bytes.get(at..).and_then(|b| b.first_chunk::<2>()).copied().unwrap_or_default();
        match self {
            Order::Little => u16::from_le_bytes(two),
            Order::Big => u16::from_be_bytes(two),
        }
    }
}
