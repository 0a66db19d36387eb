//! Ports that read packet files, and ports that read one and write another.

use crate::error::PcapError;
use crate::frames::{Frame, FrameReader};
use crate::writer::PcapWriter;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use testudo_packet::{Batch, DropReason, Pool, Port, PortCounters, PortError, Record};
use testudo_wire::udp;

/// The outcome of reading a packet file, once no more can be read.
#[derive(Debug)]
pub struct Ending {
    /// Why reading stopped before the end of the file.
    pub error: Option<PcapError>,
    /// What was skipped and might have been a packet: a line each.
    pub notes: Vec<String>,
}

/// How many frames a port may still read: clones share it.
#[derive(Debug, Clone, Default)]
pub struct Allowance(Arc<AtomicUsize>);

impl Allowance {
    /// Sets it to this many.
    pub fn set(&self, frames: usize) {
        self.0.store(frames, Ordering::Relaxed);
    }

    /// Takes one; `false` if there is none.
    fn spend(&self) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }
}

/// A packet file as a port: it gives the file's packets, then is exhausted. It discards what it is given.
///
/// A damaged file is exhausted where the damage begins. That is no [`PortError`], which ends a gateway: the
/// packets before it are valid, and are processed to the end.
pub struct PcapReader {
    frames: FrameReader,
    /// Name of the port that this is a half of.
    port: String,
    /// Frames that were read.
    records: u64,
    allowance: Option<Allowance>,
    ending: Arc<OnceLock<Ending>>,
    counters: PortCounters,
}

impl PcapReader {
    /// Opens a pcap or pcapng file.
    ///
    /// # Errors
    /// [`PcapError`] if it cannot be opened, is of another format, or of a link type that is not read here.
    pub fn open(path: &Path) -> Result<Self, PcapError> {
        FrameReader::open(path).map(Self::new)
    }

    /// A port that gives what `frames` reads.
    #[must_use]
    pub fn new(frames: FrameReader) -> Self {
        let (port, counters) = (frames.name().to_owned(), PortCounters::default());
        Self { frames, port, records: 0, allowance: None, ending: Arc::default(), counters }
    }

    /// The same port, which reads no more frames than `allowance` says.
    #[must_use]
    pub fn within(self, allowance: Allowance) -> Self {
        Self { allowance: Some(allowance), ..self }
    }

    /// Where the port records how the file ended, once it has.
    #[must_use]
    pub fn ending(&self) -> Arc<OnceLock<Ending>> {
        Arc::clone(&self.ending)
    }

    /// Ends the reading, unless it has ended before.
    fn end(&mut self, error: Option<PcapError>) {
        let notes = self.frames.notes();
        self.ending.get_or_init(|| Ending { error, notes });
    }
}

/// Whether the pool has a buffer for a packet of any length.
fn has_any(pool: &Pool) -> bool {
    pool.available() > 0 && pool.available_for(pool.packet_bytes()) > 0
}

/// The datagram in a frame, or why there is none.
fn datagram<'f>(frame: &Frame<'f>, packet_bytes: usize) -> Result<&'f [u8], DropReason> {
    let range = frame.link.ok_or(DropReason::NotIp)?.datagram(frame.bytes)?;
    if frame.bytes.len() < frame.wire_bytes {
        return Err(DropReason::Truncated);
    }
    if range.len() > packet_bytes {
        return Err(DropReason::ReceiveTruncated);
    }
    Ok(&frame.bytes[range])
}

impl Port for PcapReader {
    fn name(&self) -> &str {
        self.frames.name()
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let before = batch.len();
        // A frame that was read must have a buffer, however long it is.
        while !batch.is_full() && has_any(pool) && !self.exhausted() {
            if self.allowance.as_ref().is_some_and(|allowance| !allowance.spend()) {
                break;
            }
            let frame = match self.frames.next_frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => {
                    self.end(None);
                    break;
                }
                Err(error) => {
                    self.end(Some(error));
                    break;
                }
            };
            let datagram = datagram(&frame, pool.packet_bytes());
            let Some(mut buffer) = pool.pop_for(datagram.map_or(0, <[u8]>::len)) else { break };
            self.records += 1;
            if let Ok(bytes) = datagram {
                buffer.receive_area()[..bytes.len()].copy_from_slice(bytes);
                buffer.set_len(bytes.len());
            }
            if let Some(journal) = pool.journal() {
                let record = Record { port: &self.port, number: self.records, time: frame.time };
                journal.received(&buffer, record);
            }
            match datagram {
                Ok(_) => {
                    self.counters.rx_bytes += buffer.len() as u64;
                    batch.push(buffer);
                }
                Err(reason) => pool.discard(buffer, reason),
            }
        }
        let received = batch.len() - before;
        self.counters.rx_packets += received as u64;
        self.counters.rx_calls += u64::from(received > 0);
        Ok(received)
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let taken = batch.len();
        batch.drain(..).for_each(|buffer| pool.recycle(buffer));
        Ok(taken)
    }

    fn exhausted(&self) -> bool {
        self.ending.get().is_some()
    }

    fn joins(&self) -> bool {
        false
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

/// A port that gives one file's packets and writes what it is given to another; either may be missing.
pub struct PcapPort {
    name: String,
    reader: Option<PcapReader>,
    writer: Option<PcapWriter>,
    /// What was sent without a writer.
    discarded: PortCounters,
}

impl PcapPort {
    /// A port called `name`. Without a reader it is exhausted from the start; without a writer it discards
    /// what it is given.
    #[must_use]
    pub fn new(name: impl Into<String>, reader: Option<PcapReader>, writer: Option<PcapWriter>) -> Self {
        let name = name.into();
        let reader = reader.map(|reader| PcapReader { port: name.clone(), ..reader });
        let writer = writer.map(|writer| writer.of_port(&name));
        Self { name, reader, writer, discarded: PortCounters::default() }
    }

    /// Writes buffered data to the file.
    ///
    /// # Errors
    /// [`PcapError::Io`], such as that the disk is full.
    pub fn finish(&mut self) -> Result<(), PcapError> {
        self.writer.as_mut().map_or(Ok(()), PcapWriter::finish)
    }
}

impl Port for PcapPort {
    fn name(&self) -> &str {
        &self.name
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        self.reader.as_mut().map_or(Ok(0), |reader| reader.rx(pool, batch))
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        if let Some(writer) = &mut self.writer {
            // As a socket's kernel or a NIC would do when sending.
            batch.iter_mut().for_each(|buffer| udp::complete_ipv6_checksum(buffer.bytes_mut()));
            return writer.tx(pool, batch);
        }
        let taken = batch.len();
        for buffer in batch.drain(..) {
            self.discarded.tx_packets += 1;
            self.discarded.tx_bytes += buffer.len() as u64;
            if let Some(journal) = pool.journal() {
                journal.sent(&buffer, &self.name, self.discarded.tx_packets);
            }
            pool.recycle(buffer);
        }
        Ok(taken)
    }

    fn exhausted(&self) -> bool {
        self.reader.as_ref().is_none_or(Port::exhausted)
    }

    fn finish(&mut self) -> Result<(), PortError> {
        PcapPort::finish(self).map_err(|e| PortError {
            port: self.name.clone(),
            what: e.to_string(),
            source: None,
        })
    }

    fn joins(&self) -> bool {
        false
    }

    fn counters(&self) -> PortCounters {
        let mut counters = self.reader.as_ref().map(Port::counters).unwrap_or_default();
        let sent = self.writer.as_ref().map_or(self.discarded, Port::counters);
        counters.tx_packets = sent.tx_packets;
        counters.tx_bytes = sent.tx_bytes;
        counters.tx_calls = sent.tx_calls;
        counters
    }
}
