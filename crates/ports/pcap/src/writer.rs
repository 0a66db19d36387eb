//! A port that writes a packet file.

use crate::error::PcapError;
use crate::link::Link;
use std::io::{self, Write};
use std::time::Duration;
use testudo_packet::{Batch, Pool, Port, PortCounters, PortError};

const SNAP_BYTES: u32 = 262_144;

/// The resolution of a file's time stamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolution {
    /// Microseconds: what every tool reads.
    Micros,
    /// Nanoseconds: no time stamp of an input loses anything.
    Nanos,
}

/// Writes a pcap file frame by frame, little-endian.
#[derive(Debug)]
pub struct FrameWriter<W> {
    file: W,
    resolution: Resolution,
}

impl<W: Write> FrameWriter<W> {
    /// Writes the header of a file of frames of one link type, of which at most `snap_bytes` are recorded,
    /// with time stamps in microseconds.
    ///
    /// # Errors
    /// The system's error.
    pub fn new(file: W, link: Link, snap_bytes: u32) -> io::Result<Self> {
        Self::with_resolution(file, link, snap_bytes, Resolution::Micros)
    }

    /// The same with time stamps of this resolution.
    ///
    /// # Errors
    /// The system's error.
    pub fn with_resolution(
        mut file: W,
        link: Link,
        snap_bytes: u32,
        resolution: Resolution,
    ) -> io::Result<Self> {
        let magic = match resolution {
            Resolution::Micros => 0xA1B2_C3D4,
            Resolution::Nanos => 0xA1B2_3C4D,
        };
        /// 2 and 4, 16 bits each.
        const VERSION: u32 = 0x0004_0002;
        let words = [magic, VERSION, 0, 0, snap_bytes, link.number()];
        file.write_all(words.map(u32::to_le_bytes).as_flattened())?;
        Ok(Self { file, resolution })
    }

    /// Adds a frame that had `wire_bytes` bytes on the link, as far as it was recorded, at `time` after the
    /// start of 1970.
    ///
    /// # Errors
    /// The system's error.
    pub fn write(&mut self, time: Duration, recorded: &[u8], wire_bytes: usize) -> io::Result<()> {
        let word = |n: usize| u32::try_from(n).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
        // The format's seconds are 32 bits wide: they wrap in 2106.
        let seconds = u32::try_from(time.as_secs() & 0xFFFF_FFFF).unwrap_or(0);
        let fraction = match self.resolution {
            Resolution::Micros => time.subsec_micros(),
            Resolution::Nanos => time.subsec_nanos(),
        };
        let words = [seconds, fraction, word(recorded.len())?, word(wire_bytes)?];
        self.file.write_all(words.map(u32::to_le_bytes).as_flattened())?;
        self.file.write_all(recorded)
    }

    /// Writes buffered data to the file.
    ///
    /// # Errors
    /// The system's error, such as that the disk is full.
    pub fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// A port that writes what it is given to a pcap file, and never gives anything.
///
/// Where the pool has a [journal](testudo_packet::Journal), packets have the time stamps of those that they
/// came from. Otherwise, and for others, it is the packet's number, as microseconds: equal runs write equal
/// files.
pub struct PcapWriter {
    /// Name of the file.
    name: String,
    /// Name of the port that this is a half of.
    port: String,
    frames: FrameWriter<Box<dyn Write + Send>>,
    counters: PortCounters,
}

impl PcapWriter {
    /// Writes to `file`, which errors call `name`.
    ///
    /// # Errors
    /// [`PcapError::Io`] if the header cannot be written.
    pub fn new(name: impl Into<String>, file: Box<dyn Write + Send>) -> Result<Self, PcapError> {
        let name = name.into();
        match FrameWriter::with_resolution(file, Link::Raw, SNAP_BYTES, Resolution::Nanos) {
            Ok(frames) => Ok(Self { port: name.clone(), name, frames, counters: PortCounters::default() }),
            Err(source) => Err(PcapError::Io { file: name, source }),
        }
    }

    /// The same as a half of a port of this name.
    pub(crate) fn of_port(self, name: &str) -> Self {
        Self { port: name.to_owned(), ..self }
    }

    /// Writes buffered data to the file.
    ///
    /// # Errors
    /// [`PcapError::Io`], such as that the disk is full.
    pub fn finish(&mut self) -> Result<(), PcapError> {
        self.frames.flush().map_err(|source| PcapError::Io { file: self.name.clone(), source })
    }
}

impl Port for PcapWriter {
    fn name(&self) -> &str {
        &self.name
    }

    fn rx(&mut self, _pool: &mut Pool, _batch: &mut Batch) -> Result<usize, PortError> {
        Ok(0)
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let mut outcome = Ok(());
        let mut taken = 0;
        for buffer in batch.iter() {
            let number = self.counters.tx_packets + 1;
            let time = pool.journal().and_then(|journal| journal.sent(buffer, &self.port, number));
            let time = time.unwrap_or(Duration::from_micros(number - 1));
            outcome = self.frames.write(time, buffer.bytes(), buffer.len());
            if outcome.is_err() {
                break;
            }
            taken += 1;
            self.counters.tx_packets += 1;
            self.counters.tx_bytes += buffer.len() as u64;
        }
        batch.drain(..taken).for_each(|buffer| pool.recycle(buffer));
        self.counters.tx_calls += u64::from(taken > 0);
        let error = |source| {
            let what = "write a packet".to_owned();
            PortError { port: self.name.clone(), what, source: Some(source) }
        };
        outcome.map(|()| taken).map_err(error)
    }

    fn exhausted(&self) -> bool {
        true
    }

    fn joins(&self) -> bool {
        false
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}
