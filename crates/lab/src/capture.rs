//! An eavesdropper on a link: records it, and counts what is readable there.

mod frame;
mod judge;
mod tap;

pub(crate) use frame::Ip;
pub use judge::{Eavesdropper, Seen};
pub(crate) use tap::Tap;

use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use testudo_port_pcap::{Frame, FrameReader, FrameWriter, Link};

use crate::error::{LabError, io as io_error};
use crate::namespaces::Namespace;

/// Snap length for whole packets, so that they can be sent again.
pub const WHOLE: u32 = 65_535;
/// Snap length for headers and the beginning of the payload: cheap enough not to slow down the measured
/// traffic.
pub const HEADERS: u32 = 128;

/// Requested socket buffer; the kernel grants as much as an unprivileged process may have.
const BUFFER_BYTES: usize = 32 << 20;
/// How long the recording thread sleeps on a silent link before it checks whether to stop.
const POLL: Duration = Duration::from_millis(20);
/// How long the thread may lag behind the link when the recording ends.
const DRAINED_WITHIN: Duration = Duration::from_secs(2);

/// A recording in progress. Dropping it stops it.
///
/// tcpdump would do, except that as root of a user namespace it insists on dropping privileges in a way that
/// the kernel refuses there. So this is our own packet socket (`man 7 packet`). Its socket filter keeps the
/// first bytes of each packet at one interface, so that a super-segment of 64 KiB takes no more space in the
/// socket's buffer than these.
#[derive(Debug)]
pub struct Capture {
    interface: String,
    file: PathBuf,
    /// The interface's packet count when the recording began.
    passed_before: u64,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

#[derive(Debug, Default)]
struct Shared {
    packets: AtomicU64,
    done: AtomicBool,
}

impl Capture {
    /// Records `interface` of `namespace` into `file` (pcap), `snap` bytes of each packet; returns once the
    /// recording is running.
    ///
    /// A packet socket cannot be opened, the interface does not exist, or the file cannot be written.
    /// No packet socket can be had, there is no such interface, or the file cannot be written.
    pub fn start(namespace: &Namespace, interface: &str, file: &Path, snap: u32) -> Result<Self, LabError> {
        let index = numbers(namespace, interface, &["ifindex"])?;
        let index = u32::try_from(index).unwrap_or(0);
        let socket = namespace.within(|| listen(index, snap))?.map_err(io_error("open a packet socket"))?;
        let passed_before = passed(namespace, interface)?;
        let to_file = || FrameWriter::new(BufWriter::new(File::create(file)?), Link::Ethernet, snap);
        let output = to_file().map_err(io_error(format!("write {}", file.display())))?;
        let shared = Arc::new(Shared::default());
        let (interface, file) = (interface.to_owned(), file.to_owned());
        let inner = Arc::clone(&shared);
        let thread = Some(thread::spawn(move || record(socket, output, &inner)));
        Ok(Self { interface, file, passed_before, shared, thread })
    }

    /// Stops the recording once every packet that has passed so far is in it or known to be missing.
    /// `namespace` is the one that it was started with.
    ///
    /// # Errors
    /// The file could not be written.
    pub fn finish(mut self, namespace: &Namespace) -> Result<Recording, LabError> {
        let deadline = Instant::now() + DRAINED_WITHIN;
        let passed = passed(namespace, &self.interface)?.saturating_sub(self.passed_before);
        while self.shared.packets.load(Ordering::Relaxed) < passed && Instant::now() < deadline {
            thread::sleep(POLL);
        }
        self.end().map_err(io_error(format!("record to {}", self.file.display())))?;
        let packets = self.shared.packets.load(Ordering::Relaxed);
        Ok(Recording { file: self.file.clone(), packets, not_recorded: passed.saturating_sub(packets) })
    }

    fn end(&mut self) -> io::Result<()> {
        self.shared.done.store(true, Ordering::Relaxed);
        match self.thread.take() {
            Some(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            None => Ok(()),
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        // Dropped without `finish`: the caller does not want the recording any more.
        let _ = self.end();
    }
}

/// The sum of some of the kernel's counters of an interface.
fn numbers(namespace: &Namespace, interface: &str, files: &[&str]) -> Result<u64, LabError> {
    let paths: Vec<String> = files.iter().map(|file| format!("/sys/class/net/{interface}/{file}")).collect();
    let words: Vec<&str> = std::iter::once("cat").chain(paths.iter().map(String::as_str)).collect();
    let text = namespace.run(&words)?;
    let invalid = |_| io_error(format!("read the counters of {interface}"))(ErrorKind::InvalidData.into());
    text.lines().try_fold(0, |sum, line| line.parse::<u64>().map(|number| sum + number)).map_err(invalid)
}

/// Packets that have passed an interface, in both directions.
fn passed(namespace: &Namespace, interface: &str) -> Result<u64, LabError> {
    numbers(namespace, interface, &["statistics/rx_packets", "statistics/tx_packets"])
}

/// A socket that gets the first `snap` bytes of every frame at the interface with this index.
fn listen(index: u32, snap: u32) -> io::Result<Socket> {
    const EVERY_PROTOCOL: u16 = 3;
    let protocol = Protocol::from(i32::from(EVERY_PROTOCOL.to_be()));
    let socket = Socket::new(Domain::PACKET, Type::RAW, Some(protocol))?;
    socket.attach_filter(&filter(index, snap))?;
    // If the kernel grants less, more packets are missed, and those are counted.
    let _ = socket.set_recv_buffer_size(BUFFER_BYTES);
    // Discard frames that arrived before the filter was attached.
    socket.set_nonblocking(true)?;
    let mut byte = [0];
    while (&socket).read(&mut byte).is_ok() {}
    socket.set_nonblocking(false)?;
    socket.set_read_timeout(Some(POLL))?;
    Ok(socket)
}

/// In classic BPF: if the frame is at this interface, keep `snap` bytes, else none.
fn filter(index: u32, snap: u32) -> [SockFilter; 4] {
    /// Load a word, jump if equal, return: `man 7 socket`, linux/bpf_common.h.
    const LOAD: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    /// The pseudo-address of the interface's index (SKF_AD_OFF + SKF_AD_IFINDEX, linux/filter.h).
    const INTERFACE_INDEX: u32 = 0xffff_f008;
    [
        SockFilter::new(LOAD, 0, 0, INTERFACE_INDEX),
        SockFilter::new(JUMP_IF_EQUAL, 0, 1, index),
        SockFilter::new(RETURN, 0, 0, snap),
        SockFilter::new(RETURN, 0, 0, 0),
    ]
}

fn record(mut socket: Socket, mut output: FrameWriter<impl Write>, shared: &Shared) -> io::Result<()> {
    let mut frame = vec![0; 1 << 17];
    while !shared.done.load(Ordering::Relaxed) {
        // A timeout and an interface that goes down are errors here; neither ends the recording.
        if let Ok(length) = socket.read(&mut frame) {
            let recorded = frame.get(..length).unwrap_or(&[]);
            let time = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
            output.write(time, recorded, length_on_link(recorded))?;
            shared.packets.fetch_add(1, Ordering::Relaxed);
        }
    }
    output.flush()
}

/// Length of a frame before the filter truncated it, from its IP header; only IP packets are long here.
fn length_on_link(frame: &[u8]) -> usize {
    match frame {
        [_, _, _, _, _, _, _, _, _, _, _, _, 0x08, 0x00, _, _, high, low, ..] => {
            frame.len().max(14 + usize::from(u16::from_be_bytes([*high, *low])))
        }
        [_, _, _, _, _, _, _, _, _, _, _, _, 0x86, 0xdd, _, _, _, _, high, low, ..] => {
            frame.len().max(14 + 40 + usize::from(u16::from_be_bytes([*high, *low])))
        }
        _ => frame.len(),
    }
}

/// A finished recording.
#[derive(Debug)]
pub struct Recording {
    file: PathBuf,
    /// Packets in it. A super-segment, which the kernel delivers in one piece, counts once.
    pub packets: u64,
    /// Packets that passed the interface but are missing from the recording.
    pub not_recorded: u64,
}

impl Recording {
    /// Calls `each` with the recorded beginning of every frame, and the frame's length on the link in bytes.
    ///
    /// # Errors
    /// The file cannot be read or is not a recording of Ethernet.
    pub fn frames(&self, mut each: impl FnMut(&[u8], usize)) -> Result<(), LabError> {
        let damaged =
            |what: String| io_error("read a recording")(io::Error::new(ErrorKind::InvalidData, what));
        let mut reader = FrameReader::open(&self.file).map_err(|e| damaged(e.to_string()))?;
        while let Some(frame) = reader.next_frame().map_err(|e| damaged(e.to_string()))? {
            let Frame { link: Some(Link::Ethernet), bytes, wire_bytes, .. } = frame else {
                return Err(damaged(format!("{}: not a recording of Ethernet", self.file.display())));
            };
            each(bytes, wire_bytes);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_recordings_are_errors_not_short_ones() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("link.pcap");
        let read = |bytes: &[u8]| {
            std::fs::write(&file, bytes).unwrap();
            let (mut seen, recording) =
                (Vec::new(), Recording { file: file.clone(), packets: 0, not_recorded: 0 });
            recording.frames(|frame, length| seen.push((frame.to_vec(), length))).map(|()| seen)
        };
        let recorded = |link| {
            let mut bytes = Vec::new();
            FrameWriter::new(&mut bytes, link, 128)
                .unwrap()
                .write(Duration::from_secs(1), b"one", 1500)
                .unwrap();
            bytes
        };
        let whole = recorded(Link::Ethernet);
        assert_eq!(read(&whole).unwrap(), [(b"one".to_vec(), 1500)]);
        assert!(read(&whole[..whole.len() - 1]).unwrap_err().to_string().contains("the file ends within it"));
        assert!(read(&whole[..30]).is_err());
        assert!(read(b"not a recording at all").is_err());
        assert!(read(&recorded(Link::Raw)).unwrap_err().to_string().contains("not a recording of Ethernet"));
    }

    #[test]
    fn a_recorded_beginning_keeps_the_length_that_the_packet_had() {
        let mut frame = [0; 60];
        frame[12..18].copy_from_slice(&[8, 0, 0x45, 0, 0x20, 0]);
        assert_eq!(length_on_link(&frame), 0x2000 + 14);
        assert_eq!(length_on_link(&frame[..14]), 14);
        frame[12..14].copy_from_slice(&[8, 6]);
        assert_eq!(length_on_link(&frame), 60);
    }
}
