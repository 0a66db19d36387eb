//! Records of pcap and pcapng files, read one by one into one buffer of bounded length.

use crate::link::Link;
use std::io::{self, Read};

/// The longest packet that tools write (`MAXIMUM_SNAPLEN` of libpcap): a record that promises more is broken.
const MAX_PACKET_BYTES: usize = 262_144;
/// Room for the longest packet with its fields and options.
const MAX_BLOCK_BYTES: usize = MAX_PACKET_BYTES + 65_536;
/// More interfaces than this are refused: the table of their link types must be bounded.
const MAX_INTERFACES: usize = 4096;

const SECTION_HEADER: u32 = 0x0A0D_0D0A;
const INTERFACE: u32 = 1;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER: u32 = 0x1A2B_3C4D;

/// A packet as it was captured: its frame is in the buffer that it was read to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) link: Option<Link>,
    /// Where in the buffer the frame starts.
    pub(crate) start: usize,
    /// Bytes that were captured.
    pub(crate) captured: usize,
    /// Bytes that the frame had on the wire.
    pub(crate) original: usize,
}

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

fn broken<T>(what: impl Into<String>) -> Result<T, Broken> {
    Err(Broken::Format(what.into()))
}

/// The byte order of a file's integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Little,
    Big,
}

impl Order {
    fn u32(self, bytes: &[u8], at: usize) -> u32 {
        let four = bytes.get(at..).and_then(|b| b.first_chunk::<4>()).copied().unwrap_or_default();
        match self {
            Order::Little => u32::from_le_bytes(four),
            Order::Big => u32::from_be_bytes(four),
        }
    }

    fn length(self, bytes: &[u8], at: usize) -> usize {
        usize::try_from(self.u32(bytes, at)).unwrap_or(usize::MAX)
    }

    fn u16(self, bytes: &[u8], at: usize) -> u16 {
        let two = bytes.get(at..).and_then(|b| b.first_chunk::<2>()).copied().unwrap_or_default();
        match self {
            Order::Little => u16::from_le_bytes(two),
            Order::Big => u16::from_be_bytes(two),
        }
    }
}

/// A file's format and what its headers said.
#[derive(Debug)]
pub(crate) enum Format {
    Pcap(Pcap),
    PcapNg(PcapNg),
}

/// What the header of a pcap file says.
#[derive(Debug)]
pub(crate) struct Pcap {
    order: Order,
    link: Link,
}

/// What the section and interface headers so far said.
#[derive(Debug)]
pub(crate) struct PcapNg {
    order: Order,
    /// Link type and longest capture of each interface.
    interfaces: Vec<(Option<Link>, usize)>,
}

impl Format {
    /// Reads the header of the file.
    pub(crate) fn read(file: &mut impl Read) -> Result<Self, Broken> {
        let mut magic = [0; 4];
        file.read_exact(&mut magic)?;
        let order = match u32::from_be_bytes(magic) {
            // Time stamps in microseconds or nanoseconds.
            0xA1B2_C3D4 | 0xA1B2_3C4D => Order::Big,
            0xD4C3_B2A1 | 0x4D3C_B2A1 => Order::Little,
            SECTION_HEADER => {
                let order = read_section_header(file)?;
                return Ok(Format::PcapNg(PcapNg { order, interfaces: Vec::new() }));
            }
            other => return broken(format!("neither a pcap nor a pcapng file (it begins with {other:08x})")),
        };
        let mut rest = [0; 20];
        file.read_exact(&mut rest)?;
        // The upper bits of the link type tell the length of the frame check sequence.
        let number = order.u32(&rest, 16) & 0xFFFF;
        match Link::of(number) {
            Some(link) => Ok(Format::Pcap(Pcap { order, link })),
            None => {
                broken(format!("link type {number} is not supported (raw IP, Ethernet, Linux cooked are)"))
            }
        }
    }

    /// Reads the next packet to `buffer`; `None` at the end of the file.
    pub(crate) fn next(
        &mut self,
        file: &mut impl Read,
        buffer: &mut Vec<u8>,
        blocks: &mut u64,
    ) -> Result<Option<Record>, Broken> {
        match self {
            Format::Pcap(pcap) => pcap.next(file, buffer, blocks),
            Format::PcapNg(ng) => ng.next(file, buffer, blocks),
        }
    }
}

impl Pcap {
    fn next(
        &self,
        file: &mut impl Read,
        buffer: &mut Vec<u8>,
        blocks: &mut u64,
    ) -> Result<Option<Record>, Broken> {
        let mut header = [0; 16];
        if !read_or_end(file, &mut header, blocks)? {
            return Ok(None);
        }
        let (captured, original) = (self.order.length(&header, 8), self.order.length(&header, 12));
        if captured > MAX_PACKET_BYTES {
            return broken(format!(
                "it promises {captured} bytes, more than the {MAX_PACKET_BYTES} possible"
            ));
        }
        buffer.resize(captured, 0);
        file.read_exact(buffer)?;
        Ok(Some(Record { link: Some(self.link), start: 0, captured, original }))
    }
}

impl PcapNg {
    fn next(
        &mut self,
        file: &mut impl Read,
        buffer: &mut Vec<u8>,
        blocks: &mut u64,
    ) -> Result<Option<Record>, Broken> {
        loop {
            let mut header = [0; 4];
            if !read_or_end(file, &mut header, blocks)? {
                return Ok(None);
            }
            if u32::from_be_bytes(header) == SECTION_HEADER {
                self.order = read_section_header(file)?;
                self.interfaces.clear();
                continue;
            }
            let kind = self.order.u32(&header, 0);
            read_block(file, self.order, buffer)?;
            match kind {
                INTERFACE => self.add_interface(buffer)?,
                ENHANCED_PACKET => return self.enhanced(buffer).map(Some),
                SIMPLE_PACKET => return self.simple(buffer).map(Some),
                _ => {}
            }
        }
    }

    fn add_interface(&mut self, body: &[u8]) -> Result<(), Broken> {
        if body.len() < 8 || self.interfaces.len() >= MAX_INTERFACES {
            return broken("an interface description that is too short, or one too many");
        }
        let link = Link::of(u32::from(self.order.u16(body, 0)));
        let snap_bytes = match self.order.length(body, 4) {
            0 => usize::MAX,
            limit => limit,
        };
        self.interfaces.push((link, snap_bytes));
        Ok(())
    }

    fn enhanced(&self, body: &[u8]) -> Result<Record, Broken> {
        let index = self.order.length(body, 0);
        let (captured, original) = (self.order.length(body, 12), self.order.length(body, 16));
        let Some(&(link, _)) = self.interfaces.get(index) else {
            return broken(format!("its interface {index} was not described"));
        };
        if body.len() < 20 || captured > body.len() - 20 {
            return broken(format!("it promises {captured} bytes, more than its block has"));
        }
        Ok(Record { link, start: 20, captured, original })
    }

    fn simple(&self, body: &[u8]) -> Result<Record, Broken> {
        let Some(&(link, snap_bytes)) = self.interfaces.first() else {
            return broken("no interface was described");
        };
        let original = self.order.length(body, 0);
        let captured = original.min(snap_bytes);
        if body.len() < 4 || captured > body.len() - 4 {
            return broken(format!("it promises {captured} bytes, more than its block has"));
        }
        Ok(Record { link, start: 4, captured, original })
    }
}

/// Reads all of `header`; `false` if the file ended before its first byte. Counts a record once it began.
fn read_or_end(file: &mut impl Read, header: &mut [u8], blocks: &mut u64) -> Result<bool, Broken> {
    let (first, rest) = header.split_at_mut(1);
    loop {
        match file.read(first) {
            Ok(0) => return Ok(false),
            Ok(_) => break,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Broken::Io(e)),
        }
    }
    *blocks += 1;
    file.read_exact(rest)?;
    Ok(true)
}

/// Reads a section header behind its type, and returns the byte order of the section.
fn read_section_header(file: &mut impl Read) -> Result<Order, Broken> {
    let mut fixed = [0; 8];
    file.read_exact(&mut fixed)?;
    let order = match [Order::Little, Order::Big].into_iter().find(|o| o.u32(&fixed, 4) == BYTE_ORDER) {
        Some(order) => order,
        None => return broken("a pcapng section whose byte order cannot be told"),
    };
    let length = order.length(&fixed, 0);
    if !(28..=MAX_BLOCK_BYTES).contains(&length) || !length.is_multiple_of(4) {
        return broken(format!("a section header of {length} bytes"));
    }
    skip(file, length - 12)?;
    Ok(order)
}

/// Reads the body of a block behind its type.
fn read_block(file: &mut impl Read, order: Order, body: &mut Vec<u8>) -> Result<(), Broken> {
    let mut length = [0; 4];
    file.read_exact(&mut length)?;
    let length = order.length(&length, 0);
    if !(12..=MAX_BLOCK_BYTES).contains(&length) || !length.is_multiple_of(4) {
        return broken(format!("a block of {length} bytes"));
    }
    body.resize(length - 12, 0);
    file.read_exact(body)?;
    let mut again = [0; 4];
    file.read_exact(&mut again)?;
    if order.length(&again, 0) != length {
        return broken("the lengths at its start and end differ");
    }
    Ok(())
}

fn skip(file: &mut impl Read, bytes: usize) -> Result<(), Broken> {
    let skipped = io::copy(&mut file.take(bytes as u64), &mut io::sink())?;
    if skipped == bytes as u64 { Ok(()) } else { broken("the file ends within it") }
}
