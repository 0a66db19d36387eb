//! Maps, programs and links as owning types: what they are in the kernel ends when the last descriptor does,
//! however the process ends.

use crate::assembler::Instruction;
use crate::raw::{self, bpf};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Named `testudo` in `bpftool`.
const NAME: [u8; 16] = *b"testudo\0\0\0\0\0\0\0\0\0";
/// Bytes for what the verifier says about a program that it refuses.
const LOG_BYTES: usize = 256 << 10;

/// A map, of keys and values whose lengths it keeps.
#[derive(Debug)]
pub struct Map {
    descriptor: OwnedFd,
    key_bytes: usize,
    value_bytes: usize,
}

impl Map {
    /// A map of address prefixes with addresses of `address_bytes`, each with a value of four bytes: the
    /// longest prefix wins.
    ///
    /// # Errors
    /// Those of bpf(2).
    pub fn of_prefixes(address_bytes: u32, entries: u32) -> io::Result<Self> {
        Self::create(raw::MAP_OF_PREFIXES, 4 + address_bytes, entries, raw::NO_PREALLOCATION)
    }

    /// A map of AF_XDP sockets, by number of the queue.
    ///
    /// # Errors
    /// Those of bpf(2).
    pub fn of_sockets(entries: u32) -> io::Result<Self> {
        Self::create(raw::MAP_OF_SOCKETS, 4, entries, 0)
    }

    /// An array of numbers of 32 bits, by their place. All are 0 at first.
    ///
    /// # Errors
    /// Those of bpf(2).
    pub fn of_numbers(entries: u32) -> io::Result<Self> {
        Self::create(raw::ARRAY, 4, entries, 0)
    }

    fn create(kind: u32, key_bytes: u32, entries: u32, flags: u32) -> io::Result<Self> {
        let value_bytes = 4;
        let mut attributes =
            raw::MapCreate { kind, key_bytes, value_bytes, entries, flags, name: NAME, ..Default::default() };
        // SAFETY: this is MAP_CREATE's structure, and it has no address.
        let descriptor = unsafe { owned(bpf(raw::MAP_CREATE, &mut attributes)?) };
        let bytes = |bytes: u32| usize::try_from(bytes).unwrap_or(0); // at most 20
        Ok(Self { descriptor, key_bytes: bytes(key_bytes), value_bytes: bytes(value_bytes) })
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// Those of bpf(2).
    ///
    /// # Panics
    /// If either has another length than the map's.
    pub fn set(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        assert_eq!((key.len(), value.len()), (self.key_bytes, self.value_bytes), "lengths of this map");
        let mut attributes = raw::MapElement {
            map: self.descriptor.as_raw_fd(),
            key: address(key.as_ptr()),
            value: address(value.as_ptr()),
            ..Default::default()
        };
        // SAFETY: this is MAP_UPDATE's structure. The kernel reads a key and a value, which are as long as
        // this map's and borrowed.
        unsafe { bpf(raw::MAP_UPDATE, &mut attributes) }.map(drop)
    }

    /// Removes a key.
    ///
    /// # Errors
    /// Those of bpf(2).
    ///
    /// # Panics
    /// If it has another length than the map's.
    pub fn remove(&self, key: &[u8]) -> io::Result<()> {
        assert_eq!(key.len(), self.key_bytes, "length of this map's keys");
        let map = self.descriptor.as_raw_fd();
        let mut attributes = raw::MapElement { map, key: address(key.as_ptr()), ..Default::default() };
        // SAFETY: this is MAP_DELETE's structure. The kernel reads a key, which is as long as this map's and
        // borrowed.
        unsafe { bpf(raw::MAP_DELETE, &mut attributes) }.map(drop)
    }

    /// Its number, which programs name.
    #[must_use]
    pub fn descriptor(&self) -> i32 {
        self.descriptor.as_raw_fd()
    }
}

/// What a program is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It judges frames at an interface.
    Xdp {
        /// Whether it may be shown the first of several buffers of a frame.
        multi_buffer: bool,
    },
    /// It judges packets of a socket, or of a TUN device.
    SocketFilter,
}

/// Why a program was not loaded.
#[derive(Debug)]
pub struct Refused {
    /// The system's error.
    pub source: io::Error,
    /// The end of what the verifier said.
    pub log: String,
}

/// A program that the verifier has accepted.
#[derive(Debug)]
pub struct Program(OwnedFd);

impl Program {
    /// Loads a program.
    ///
    /// # Errors
    /// [`Refused`] says why the kernel does not take it.
    pub fn load(kind: Kind, code: &[Instruction]) -> Result<Self, Refused> {
        // The log is wanted only of a program that is refused: its first reading is without.
        match Self::load_with(kind, code, &mut []) {
            Ok(program) => Ok(program),
            Err(source) => {
                let mut log = vec![0; LOG_BYTES];
                match Self::load_with(kind, code, &mut log) {
                    Ok(program) => Ok(program),
                    Err(_) => Err(Refused { source, log: last_lines(&log) }),
                }
            }
        }
    }

    fn load_with(kind: Kind, code: &[Instruction], log: &mut [u8]) -> io::Result<Self> {
        let (kind, flags) = match kind {
            Kind::Xdp { multi_buffer: true } => (raw::PROGRAM_OF_XDP, raw::HAS_FRAGMENTS),
            Kind::Xdp { multi_buffer: false } => (raw::PROGRAM_OF_XDP, 0),
            Kind::SocketFilter => (raw::PROGRAM_OF_SOCKETS, 0),
        };
        let count = |n: usize| u32::try_from(n).map_err(|_| io::ErrorKind::InvalidInput);
        let license = c"Apache-2.0";
        let mut attributes = raw::ProgramLoad {
            kind,
            instruction_count: count(code.len())?,
            instructions: address(code.as_ptr().cast()),
            license: address(license.as_ptr().cast()),
            log_level: u32::from(!log.is_empty()),
            log_bytes: count(log.len())?,
            log: if log.is_empty() { 0 } else { address(log.as_mut_ptr()) },
            flags,
            name: NAME,
            ..Default::default()
        };
        // SAFETY: this is PROGRAM_LOAD's structure. The kernel reads the instructions and a string that ends
        // with zero, and writes into the log; all three are borrowed, and as long as it is told.
        unsafe { Ok(Self(owned(bpf(raw::PROGRAM_LOAD, &mut attributes)?))) }
    }

    /// What the program decides on `frame`, which begins with an Ethernet header, without a device: for XDP
    /// the number of an action. A socket filter sees what follows that header.
    ///
    /// # Errors
    /// Those of bpf(2): the frame is shorter than that header, or longer than a page.
    pub fn run(&self, frame: &[u8]) -> io::Result<u32> {
        let mut attributes = raw::TestRun {
            program: self.0.as_raw_fd(),
            bytes_in: u32::try_from(frame.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
            input: address(frame.as_ptr()),
            repeat: 1,
            ..Default::default()
        };
        // SAFETY: this is PROGRAM_TEST_RUN's structure. The kernel reads the frame, which is borrowed and as
        // long as it is told, and has nowhere to write it back.
        unsafe { bpf(raw::PROGRAM_TEST_RUN, &mut attributes)? };
        Ok(attributes.verdict)
    }

    /// Attaches a program of XDP to an interface, in [`GENERIC_MODE`](crate::GENERIC_MODE) or
    /// [`NATIVE_MODE`](crate::NATIVE_MODE).
    ///
    /// # Errors
    /// Those of bpf(2).
    pub fn attach(&self, interface: u32, mode: u32) -> io::Result<Link> {
        let program = self.0.as_raw_fd();
        let mut attributes =
            raw::LinkCreate { program, interface, attach_type: raw::ATTACH_XDP, flags: mode };
        // SAFETY: this is LINK_CREATE's structure, and it has no address.
        unsafe { Ok(Link(owned(bpf(raw::LINK_CREATE, &mut attributes)?))) }
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A program at an interface. It detaches when this is dropped, or when the process ends in whatever way:
/// the kernel closes its descriptors.
#[derive(Debug)]
pub struct Link(OwnedFd);

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// # Safety
/// The descriptor is open, and nobody else's.
unsafe fn owned(descriptor: i32) -> OwnedFd {
    // SAFETY: by this function's own contract. bpf(2) opens descriptors that close at exec(2).
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

fn address(pointer: *const u8) -> u64 {
    // The kernel is handed addresses as numbers; a pointer has at most 64 bits.
    u64::try_from(pointer.expose_provenance()).unwrap_or(0)
}

/// The verifier tells what it went through; why it stopped is at the end.
fn last_lines(log: &[u8]) -> String {
    let text = log.split(|&byte| byte == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(6)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_log_the_end_is_kept() {
        let log: String = (0..100).map(|line| format!("{line}: exit\n")).collect();
        assert_eq!(last_lines(log.as_bytes()).lines().next(), Some("94: exit"));
        assert_eq!(last_lines(b"invalid\0\0\0"), "invalid");
        assert_eq!(last_lines(&[]), "");
    }
}
