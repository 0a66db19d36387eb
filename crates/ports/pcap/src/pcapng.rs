//! Blocks of pcapng files (draft-ietf-opsawg-pcapng).

use crate::frames::{MAX_PACKET_BYTES, Record};
use crate::link::Link;
use crate::source::{Broken, Order, Source, broken};
use std::io::Read;
use std::time::Duration;

/// Room for the longest packet with its fields and options.
const MAX_BLOCK_BYTES: usize = MAX_PACKET_BYTES + 65_536;
/// The most interfaces accepted: the table of their link types must be bounded.
const MAX_INTERFACES: usize = 4096;

const INTERFACE: u32 = 1;
/// Obsolete since 2009, and still written by some: its interface number has 16 bits, and a drop count
/// follows.
const PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;
/// Host names, statistics, systemd journal entries, TLS secrets, and custom blocks, which say of themselves
/// what they are: no packets.
const NO_PACKETS: [u32; 6] = [4, 5, 9, 10, 0x0BAD, 0x4000_0BAD];
const BYTE_ORDER: u32 = 0x1A2B_3C4D;

/// Options of an interface description.
const END_OF_OPTIONS: u16 = 0;
const RESOLUTION: u16 = 9;
const OFFSET: u16 = 14;

/// The content of the section and interface headers so far.
#[derive(Debug)]
pub(crate) struct PcapNg {
    order: Order,
    interfaces: Vec<Interface>,
    unknown_blocks: Seen,
    foreign_frames: Seen,
}

#[derive(Debug, Clone, Copy)]
struct Interface {
    link_type: u16,
    /// The longest capture; only simple packet blocks need it.
    snap_bytes: usize,
    clock: Clock,
}

/// What the time stamps of an interface count (options `if_tsresol` and `if_tsoffset`).
#[derive(Debug, Clone, Copy)]
struct Clock {
    /// Ticks a second: a power of 10 or of 2.
    ticks_per_second: u128,
    /// Seconds from the start of 1970 to tick 0.
    offset_seconds: i64,
}

impl Default for Clock {
    fn default() -> Self {
        Self { ticks_per_second: 1_000_000, offset_seconds: 0 }
    }
}

impl Clock {
    /// The clock that the options of an interface description describe.
    fn read(order: Order, mut options: &[u8]) -> Self {
        let mut clock = Self::default();
        while let Some((head, rest)) = options.split_at_checked(4) {
            let (code, length) = (order.u16(head, 0), usize::from(order.u16(head, 2)));
            let Some(value) = rest.get(..length) else { break };
            match (code, value) {
                (END_OF_OPTIONS, _) => break,
                (RESOLUTION, [exponent]) => clock.ticks_per_second = ticks_per_second(*exponent),
                (OFFSET, value) if length == 8 => {
                    clock.offset_seconds = order.u64(value, 0).cast_signed();
                }
                _ => {}
            }
            options = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        clock
    }

    /// Since the start of 1970; what is before that counts as it.
    fn time(self, ticks: u64) -> Duration {
        let ticks = u128::from(ticks);
        let seconds = u64::try_from(ticks / self.ticks_per_second).unwrap_or(u64::MAX);
        // Ticks have 64 bits, so the product has fewer than 128.
        let nanos = ticks % self.ticks_per_second * 1_000_000_000 / self.ticks_per_second;
        let nanos = u32::try_from(nanos).unwrap_or(0);
        Duration::new(seconds.saturating_add_signed(self.offset_seconds), nanos)
    }
}

/// The highest bit says whether the rest is an exponent of 2 or, negative, of 10. Finer than time stamps of
/// 64 bits can be is as fine as they can be.
fn ticks_per_second(resolution: u8) -> u128 {
    let exponent = u32::from(resolution & 0x7F);
    let base: u128 = if resolution & 0x80 != 0 { 2 } else { 10 };
    base.checked_pow(exponent).unwrap_or(u128::MAX)
}

/// How often something occurred, and its first occurrence.
#[derive(Debug, Default)]
struct Seen {
    count: u64,
    first: u32,
}

impl Seen {
    fn note(&mut self, number: u32) {
        if self.count == 0 {
            self.first = number;
        }
        self.count += 1;
    }
}

impl PcapNg {
    /// The type of a section header block: a palindrome, so that it is the same in either byte order.
    pub(crate) const MAGIC: u32 = 0x0A0D_0D0A;

    /// Reads the first section header after its type.
    pub(crate) fn read(source: &mut Source) -> Result<Self, Broken> {
        source.records = 1;
        let order = read_section_header(source)?;
        let (unknown_blocks, foreign_frames) = Default::default();
        Ok(Self { order, interfaces: Vec::new(), unknown_blocks, foreign_frames })
    }

    /// Reads the next packet to `buffer`; `None` at the end of the file.
    pub(crate) fn next(
        &mut self,
        source: &mut Source,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<Record>, Broken> {
        let mut header = [0; 4];
        while source.begin_record(&mut header)? {
            if u32::from_be_bytes(header) == Self::MAGIC {
                self.order = read_section_header(source)?;
                self.interfaces.clear();
                continue;
            }
            match self.order.u32(&header, 0) {
                INTERFACE => {
                    read_block(source, self.order, buffer)?;
                    self.add_interface(buffer)?;
                }
                kind @ (PACKET | SIMPLE_PACKET | ENHANCED_PACKET) => {
                    read_block(source, self.order, buffer)?;
                    return self.packet(kind, buffer).map(Some);
                }
                kind => {
                    skip_block(source, self.order)?;
                    if !NO_PACKETS.contains(&kind) {
                        self.unknown_blocks.note(kind);
                    }
                }
            }
        }
        Ok(None)
    }

    /// What was skipped and might have been a packet.
    pub(crate) fn notes(&self) -> impl Iterator<Item = String> {
        let blocks = (self.unknown_blocks.count > 0).then(|| {
            let Seen { count, first } = self.unknown_blocks;
            format!(
                "passed over blocks of a type that is not known here: {count}, the first of type {first:#x}"
            )
        });
        let frames = (self.foreign_frames.count > 0).then(|| {
            let Seen { count, first } = self.foreign_frames;
            format!("packets of a link type that is not supported: {count}, the first of type {first}")
        });
        blocks.into_iter().chain(frames)
    }

    fn add_interface(&mut self, body: &[u8]) -> Result<(), Broken> {
        if body.len() < 8 || self.interfaces.len() >= MAX_INTERFACES {
            return broken("an interface description that is too short, or one too many");
        }
        let snap_bytes = match self.order.length(body, 4) {
            0 => usize::MAX,
            limit => limit,
        };
        let clock = Clock::read(self.order, body.get(8..).unwrap_or_default());
        self.interfaces.push(Interface { link_type: self.order.u16(body, 0), snap_bytes, clock });
        Ok(())
    }

    fn packet(&mut self, kind: u32, body: &[u8]) -> Result<Record, Broken> {
        let index = match kind {
            SIMPLE_PACKET => 0,
            PACKET => usize::from(self.order.u16(body, 0)),
            _ => self.order.length(body, 0),
        };
        let Some(&Interface { link_type, snap_bytes, clock }) = self.interfaces.get(index) else {
            return broken(format!("its interface {index} was not described"));
        };
        let (start, captured, original, time) = if kind == SIMPLE_PACKET {
            let original = self.order.length(body, 0);
            (4, original.min(snap_bytes), original, None)
        } else {
            let ticks = u64::from(self.order.u32(body, 4)) << 32 | u64::from(self.order.u32(body, 8));
            (20, self.order.length(body, 12), self.order.length(body, 16), Some(clock.time(ticks)))
        };
        if body.len() < start || captured > body.len() - start {
            return broken(format!("it promises {captured} bytes, more than its block has"));
        }
        let link = Link::of(link_type.into());
        if link.is_none() {
            self.foreign_frames.note(link_type.into());
        }
        Ok(Record { link, start, captured, original, time })
    }
}

/// Reads a section header after its type, and returns the byte order of the section.
fn read_section_header(source: &mut Source) -> Result<Order, Broken> {
    let mut fixed = [0; 12];
    source.read_exact(&mut fixed)?;
    let order = match [Order::Little, Order::Big].into_iter().find(|o| o.u32(&fixed, 4) == BYTE_ORDER) {
        Some(order) => order,
        None => return broken("a pcapng section whose byte order cannot be told"),
    };
    let length = order.length(&fixed, 0);
    if length < 28 || !length.is_multiple_of(4) {
        return broken(format!("a section header of {length} bytes"));
    }
    let major = order.u16(&fixed, 8);
    if major != 1 {
        return broken(format!("pcapng version {major} is not known here"));
    }
    source.skip(length - 20)?;
    check_length_at_end(source, order, length)?;
    Ok(order)
}

/// Reads the length of a block after its type.
fn read_length(source: &mut Source, order: Order) -> Result<usize, Broken> {
    let mut length = [0; 4];
    source.read_exact(&mut length)?;
    let length = order.length(&length, 0);
    if length < 12 || !length.is_multiple_of(4) {
        return broken(format!("a block of {length} bytes"));
    }
    Ok(length)
}

/// Reads the body of a block after its type.
fn read_block(source: &mut Source, order: Order, body: &mut Vec<u8>) -> Result<(), Broken> {
    let length = read_length(source, order)?;
    if length > MAX_BLOCK_BYTES {
        return broken(format!("a block of {length} bytes, more than the {MAX_BLOCK_BYTES} possible"));
    }
    source.fill(body, length - 12)?;
    check_length_at_end(source, order, length)
}

/// Skips a block, of any length, after its type.
fn skip_block(source: &mut Source, order: Order) -> Result<(), Broken> {
    let length = read_length(source, order)?;
    source.skip(length - 12)?;
    check_length_at_end(source, order, length)
}

fn check_length_at_end(source: &mut Source, order: Order, length: usize) -> Result<(), Broken> {
    let mut again = [0; 4];
    source.read_exact(&mut again)?;
    if order.length(&again, 0) == length { Ok(()) } else { broken("the lengths at its start and end differ") }
}
