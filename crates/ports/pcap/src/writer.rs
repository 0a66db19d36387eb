//! A port that writes a packet file.

use crate::error::PcapError;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use testudo_packet::{Batch, Pool, Port, PortCounters, PortError};

/// `LINKTYPE_RAW`: packets begin with their IP header.
const LINK_RAW: u32 = 101;
const SNAP_BYTES: u32 = 262_144;

/// A port that writes what it is given to a pcap file, and never gives anything.
pub struct PcapWriter {
    name: String,
    file: Box<dyn Write + Send>,
    counters: PortCounters,
}

impl PcapWriter {
    /// Creates the file, or empties it.
    ///
    /// # Errors
    /// [`PcapError::Io`] with what the system said.
    pub fn create(path: &Path) -> Result<Self, PcapError> {
        let name = path.display().to_string();
        match File::create(path) {
            Ok(file) => Self::to_write(name, Box::new(BufWriter::with_capacity(1 << 18, file))),
            Err(source) => Err(PcapError::Io { file: name, source }),
        }
    }

    /// Writes to `file`, which errors call `name`.
    ///
    /// # Errors
    /// [`PcapError::Io`] if the header cannot be written.
    pub fn to_write(name: impl Into<String>, mut file: Box<dyn Write + Send>) -> Result<Self, PcapError> {
        let name = name.into();
        let mut header = Vec::with_capacity(24);
        header.extend(0xA1B2_C3D4_u32.to_le_bytes());
        header.extend(2_u16.to_le_bytes());
        header.extend(4_u16.to_le_bytes());
        header.extend([0; 8]);
        header.extend(SNAP_BYTES.to_le_bytes());
        header.extend(LINK_RAW.to_le_bytes());
        match file.write_all(&header) {
            Ok(()) => Ok(Self { name, file, counters: PortCounters::default() }),
            Err(source) => Err(PcapError::Io { file: name, source }),
        }
    }

    /// Writes what is still in memory to the file.
    ///
    /// # Errors
    /// [`PcapError::Io`], such as that the disk is full.
    pub fn finish(&mut self) -> Result<(), PcapError> {
        self.file.flush().map_err(|source| PcapError::Io { file: self.name.clone(), source })
    }

    fn write(&mut self, packet: &[u8]) -> io::Result<()> {
        let index = self.counters.tx_packets;
        // Seconds are 32 bits wide: they wrap after 4 * 10^15 packets.
        let seconds = u32::try_from((index / 1_000_000) & 0xFFFF_FFFF).unwrap_or(0);
        let microseconds = u32::try_from(index % 1_000_000).unwrap_or(0);
        let length = u32::try_from(packet.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut header = [0; 16];
        for (field, value) in header.chunks_exact_mut(4).zip([seconds, microseconds, length, length]) {
            field.copy_from_slice(&value.to_le_bytes());
        }
        self.file.write_all(&header)?;
        self.file.write_all(packet)
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
            outcome = self.write(buffer.bytes());
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
