//! Ports that read packet files, and ports that read one and write another.

use crate::error::PcapError;
use crate::record::{Broken, Format, Record};
use crate::writer::PcapWriter;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;
use testudo_packet::{Batch, DropReason, Pool, Port, PortCounters, PortError};
use testudo_wire::udp;

/// A packet file as a port: it gives the file's packets, then is exhausted. What it is given, it forgets.
pub struct PcapReader {
    name: String,
    file: Box<dyn Read + Send>,
    format: Format,
    frame: Vec<u8>,
    records: u64,
    /// The end of the file, or the error that is to be told after the packets before it.
    end: Option<Option<PcapError>>,
    counters: PortCounters,
}

impl PcapReader {
    /// Opens a pcap or pcapng file.
    ///
    /// # Errors
    /// [`PcapError`] if it cannot be opened, is of another format, or of a link type that is not read here.
    pub fn open(path: &Path) -> Result<Self, PcapError> {
        let name = path.display().to_string();
        match File::open(path) {
            Ok(file) => Self::from_read(name, Box::new(BufReader::with_capacity(1 << 18, file))),
            Err(source) => Err(PcapError::Io { file: name, source }),
        }
    }

    /// Reads from `file`, which errors call `name`.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn from_read(name: impl Into<String>, mut file: Box<dyn Read + Send>) -> Result<Self, PcapError> {
        let name = name.into();
        match Format::read(&mut file) {
            Ok(format) => Ok(Self {
                name,
                file,
                format,
                frame: Vec::new(),
                records: 0,
                end: None,
                counters: PortCounters::default(),
            }),
            Err(Broken::Io(source)) => Err(PcapError::Io { file: name, source }),
            Err(Broken::Format(what)) => Err(PcapError::Header { file: name, what }),
        }
    }

    fn next_record(&mut self) -> Option<Record> {
        if self.end.is_some() {
            return None;
        }
        let file = || self.name.clone();
        match self.format.next(&mut self.file, &mut self.frame, &mut self.records) {
            Ok(Some(record)) => return Some(record),
            Ok(None) => self.end = Some(None),
            Err(Broken::Io(source)) => self.end = Some(Some(PcapError::Io { file: file(), source })),
            Err(Broken::Format(what)) => {
                let record = self.records;
                self.end = Some(Some(PcapError::Record { file: file(), record, what }));
            }
        }
        None
    }

    /// The datagram of a record, or why it is none.
    fn datagram(&self, record: &Record, packet_bytes: usize) -> Result<&[u8], DropReason> {
        let frame = &self.frame[record.start..record.start + record.captured];
        let range = record.link.ok_or(DropReason::NotIp)?.datagram(frame)?;
        if record.captured < record.original {
            return Err(DropReason::Truncated);
        }
        if range.len() > packet_bytes {
            return Err(DropReason::ReceiveTruncated);
        }
        Ok(&frame[range])
    }
}

impl Port for PcapReader {
    fn name(&self) -> &str {
        &self.name
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let before = batch.len();
        while !batch.is_full() && pool.available() > 0 {
            let Some(record) = self.next_record() else { break };
            let Some(mut buffer) = pool.pop() else { break };
            match self.datagram(&record, pool.packet_bytes()) {
                Ok(bytes) => {
                    buffer.receive_area()[..bytes.len()].copy_from_slice(bytes);
                    buffer.set_len(bytes.len());
                    self.counters.rx_bytes += buffer.len() as u64;
                    batch.push(buffer);
                }
                Err(reason) => pool.discard(buffer, reason),
            }
        }
        let received = batch.len() - before;
        self.counters.rx_packets += received as u64;
        self.counters.rx_calls += u64::from(received > 0);
        if received == 0
            && let Some(error) = self.end.as_mut().and_then(Option::take)
        {
            return Err(error.into_port_error());
        }
        Ok(received)
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let taken = batch.len();
        batch.drain(..).for_each(|buffer| pool.recycle(buffer));
        Ok(taken)
    }

    fn exhausted(&self) -> bool {
        matches!(self.end, Some(None))
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
}

impl PcapPort {
    /// A port called `name`. Without a reader it is exhausted from the start; without a writer it forgets what it is given.
    #[must_use]
    pub fn new(name: impl Into<String>, reader: Option<PcapReader>, writer: Option<PcapWriter>) -> Self {
        Self { name: name.into(), reader, writer }
    }

    /// Writes what is still in memory to the file.
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
            // What a socket's kernel or a NIC would do on the way out.
            batch.iter_mut().for_each(|buffer| udp::complete_ipv6_checksum(buffer.bytes_mut()));
            return writer.tx(pool, batch);
        }
        let taken = batch.len();
        batch.drain(..).for_each(|buffer| pool.recycle(buffer));
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
        if let Some(written) = self.writer.as_ref().map(Port::counters) {
            counters.tx_packets = written.tx_packets;
            counters.tx_bytes = written.tx_bytes;
            counters.tx_calls = written.tx_calls;
        }
        counters
    }
}
