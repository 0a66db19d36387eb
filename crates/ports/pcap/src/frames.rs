//! The frames of a packet file, read one by one into one buffer of bounded length.

use crate::error::PcapError;
use crate::link::Link;
use crate::pcapng::PcapNg;
use crate::source::{Broken, Order, Source, broken};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;
use std::time::Duration;

/// The longest packet that tools write (`MAXIMUM_SNAPLEN` of libpcap): a record that promises more is broken.
pub(crate) const MAX_PACKET_BYTES: usize = 262_144;

/// Where a record's frame is in the buffer that it was read to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record {
    /// `None` for a link type that is not read here.
    pub(crate) link: Option<Link>,
    /// Where in the buffer the frame starts.
    pub(crate) start: usize,
    /// Bytes that were captured.
    pub(crate) captured: usize,
    /// Bytes that the frame had on the wire.
    pub(crate) original: usize,
    /// When it was captured, if the record says so.
    pub(crate) time: Option<Duration>,
}

/// A frame as it was captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'f> {
    /// Its link type; `None` for one that is not read here.
    pub link: Option<Link>,
    /// The bytes that were captured.
    pub bytes: &'f [u8],
    /// Bytes that it had on the wire: more than were captured, if it was cut.
    pub wire_bytes: usize,
    /// When it was captured, since the start of 1970; `None` where the file does not say.
    pub time: Option<Duration>,
}

/// Reads a pcap or pcapng file frame by frame.
pub struct FrameReader {
    name: String,
    source: Source,
    format: Format,
    buffer: Vec<u8>,
}

/// A file's format, with the content of its headers.
#[derive(Debug)]
enum Format {
    Pcap(Pcap),
    PcapNg(PcapNg),
}

/// The header of a pcap file.
#[derive(Debug)]
struct Pcap {
    order: Order,
    link: Link,
    /// Whether time stamps are in nanoseconds, not microseconds.
    in_nanoseconds: bool,
}

impl FrameReader {
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
    pub fn from_read(name: impl Into<String>, file: Box<dyn Read + Send>) -> Result<Self, PcapError> {
        let (name, mut source) = (name.into(), Source::new(file));
        match Format::read(&mut source) {
            Ok(format) => Ok(Self { name, source, format, buffer: Vec::new() }),
            Err(Broken::Io(source)) => Err(PcapError::Io { file: name, source }),
            Err(Broken::Format(what)) => Err(PcapError::Header { file: name, what }),
        }
    }

    /// What errors call the file.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The next frame; `None` at the end of the file.
    ///
    /// # Errors
    /// [`PcapError`] if the file is damaged from here on: nothing after that can be read.
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>, PcapError> {
        let read = match &mut self.format {
            Format::Pcap(pcap) => pcap.next(&mut self.source, &mut self.buffer),
            Format::PcapNg(ng) => ng.next(&mut self.source, &mut self.buffer),
        };
        let file = || self.name.clone();
        match read {
            Ok(record) => Ok(record.map(|r| Frame {
                link: r.link,
                bytes: &self.buffer[r.start..r.start + r.captured],
                wire_bytes: r.original,
                time: r.time,
            })),
            Err(Broken::Io(source)) => Err(PcapError::Io { file: file(), source }),
            Err(Broken::Format(what)) => {
                let Source { records: record, record_at: offset, .. } = self.source;
                Err(PcapError::Record { file: file(), record, offset, what })
            }
        }
    }

    /// What was skipped so far and might have been a packet: a line each.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        match &self.format {
            Format::Pcap(_) => Vec::new(),
            Format::PcapNg(ng) => ng.notes().map(|note| format!("{}: {note}", self.name)).collect(),
        }
    }
}

impl Format {
    /// Reads the header of the file.
    fn read(source: &mut Source) -> Result<Self, Broken> {
        let mut magic = [0; 4];
        source.read_exact(&mut magic).map_err(|e| match Broken::from(e) {
            Broken::Format(_) => Broken::Format("the file ends within its header".to_owned()),
            other => other,
        })?;
        let (order, in_nanoseconds) = match u32::from_be_bytes(magic) {
            0xA1B2_C3D4 => (Order::Big, false),
            0xA1B2_3C4D => (Order::Big, true),
            0xD4C3_B2A1 => (Order::Little, false),
            0x4D3C_B2A1 => (Order::Little, true),
            PcapNg::MAGIC => return Ok(Format::PcapNg(PcapNg::read(source)?)),
            other => return broken(format!("neither a pcap nor a pcapng file (it begins with {other:08x})")),
        };
        let mut rest = [0; 20];
        source.read_exact(&mut rest)?;
        // The upper bits of the link type hold the length of the frame check sequence.
        let number = order.u32(&rest, 16) & 0xFFFF;
        match Link::of(number) {
            Some(link) => Ok(Format::Pcap(Pcap { order, link, in_nanoseconds })),
            None => {
                broken(format!("link type {number} is not supported (raw IP, Ethernet, Linux cooked are)"))
            }
        }
    }
}

impl Pcap {
    fn next(&self, source: &mut Source, buffer: &mut Vec<u8>) -> Result<Option<Record>, Broken> {
        let mut header = [0; 16];
        if !source.begin_record(&mut header)? {
            return Ok(None);
        }
        let (captured, original) = (self.order.length(&header, 8), self.order.length(&header, 12));
        if captured > MAX_PACKET_BYTES {
            return broken(format!(
                "it promises {captured} bytes, more than the {MAX_PACKET_BYTES} possible"
            ));
        }
        source.fill(buffer, captured)?;
        let [seconds, fraction] = [0, 4].map(|at| u64::from(self.order.u32(&header, at)));
        let fraction = match self.in_nanoseconds {
            true => Duration::from_nanos(fraction),
            false => Duration::from_micros(fraction),
        };
        let time = Some(Duration::from_secs(seconds) + fraction);
        Ok(Some(Record { link: Some(self.link), start: 0, captured, original, time }))
    }
}
