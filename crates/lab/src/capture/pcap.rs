//! Writes and reads the classic pcap format (draft-ietf-opsawg-pcap), in this machine's byte order.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;
use std::time::Duration;

const MAGIC: u32 = 0xa1b2_c3d4;
const LINKTYPE_ETHERNET: u32 = 1;
/// More than any frame, super-segments included: a longer one means that the file is damaged.
const LONGEST: usize = 1 << 20;

/// What a file begins with.
pub(super) fn write_header(file: &mut impl Write, snap: u32) -> io::Result<()> {
    const VERSION: [u16; 2] = [2, 4];
    file.write_all(&MAGIC.to_ne_bytes())?;
    file.write_all(&VERSION.map(u16::to_ne_bytes).concat())?;
    file.write_all(&[0, 0, snap, LINKTYPE_ETHERNET].map(u32::to_ne_bytes).concat())
}

/// Adds the recorded beginning of a frame that had `length` bytes on the link, `time` after 1970 began.
pub(super) fn write_frame(
    file: &mut impl Write,
    time: Duration,
    recorded: &[u8],
    length: usize,
) -> io::Result<()> {
    let small = |number: u128| u32::try_from(number).unwrap_or(u32::MAX);
    // The format ends in 2106.
    let words = [time.as_secs().into(), time.subsec_micros().into(), recorded.len() as u128, length as u128];
    words.into_iter().try_for_each(|word| file.write_all(&small(word).to_ne_bytes()))?;
    file.write_all(recorded)
}

/// Calls `each` with every frame's recorded bytes and its length on the link.
pub(super) fn read(path: &Path, each: impl FnMut(&[u8], usize)) -> io::Result<()> {
    read_from(BufReader::new(File::open(path)?), each)
}

fn read_from(mut file: impl Read, mut each: impl FnMut(&[u8], usize)) -> io::Result<()> {
    let mut header = [0; 24];
    file.read_exact(&mut header)?;
    if word(&header, 0) != MAGIC || word(&header, 20) != LINKTYPE_ETHERNET {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "no recording of Ethernet"));
    }
    let (mut record, mut frame) = ([0; 16], Vec::new());
    while starts(&mut file, &mut record)? {
        let size = |at| usize::try_from(word(&record, at)).unwrap_or(usize::MAX);
        let (recorded, length) = (size(8), size(12));
        if recorded > LONGEST {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame of impossible length"));
        }
        frame.resize(recorded, 0);
        file.read_exact(&mut frame)?;
        each(&frame, length);
    }
    Ok(())
}

/// Reads a record's header; false at the end of the file.
fn starts(file: &mut impl Read, record: &mut [u8; 16]) -> io::Result<bool> {
    let (first, rest) = record.split_at_mut(1);
    if file.read(first)? == 0 {
        return Ok(false);
    }
    file.read_exact(rest).map(|()| true)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recording(frames: &[(&[u8], usize)]) -> Vec<u8> {
        let mut file = Vec::new();
        write_header(&mut file, 65_535).unwrap();
        for (frame, length) in frames {
            write_frame(&mut file, Duration::from_micros(1_000_001), frame, *length).unwrap();
        }
        file
    }

    /// The format's own numbers, so that other programs can read it.
    #[test]
    fn headers_are_24_and_16_bytes() {
        let file = recording(&[(b"one", 3)]);
        assert_eq!(file.len(), 24 + 16 + 3);
        assert_eq!((word(&file, 16), word(&file, 24), word(&file, 28)), (65_535, 1, 1));
    }

    #[test]
    fn every_frame_comes_with_the_length_it_had() {
        let mut seen = Vec::new();
        let file = recording(&[(b"one", 3), (b"", 0), (b"thre", 1500)]);
        read_from(&file[..], |frame, length| seen.push((frame.to_vec(), length))).unwrap();
        assert_eq!(seen, [(b"one".to_vec(), 3), (Vec::new(), 0), (b"thre".to_vec(), 1500)]);
    }

    #[test]
    fn damaged_recordings_are_errors_not_short_ones() {
        let file = recording(&[(b"one", 3)]);
        assert!(read_from(&file[..file.len() - 1], |_, _| {}).is_err());
        assert!(read_from(&file[..30], |_, _| {}).is_err());
        assert!(read_from(&b"not a recording at all"[..], |_, _| {}).is_err());
    }
}
