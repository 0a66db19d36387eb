//! The names that strongSwan has for its SAs: asked from charon's vici socket, as the user who runs the
//! program.
//!
//! ```text
//!   sa list ── control socket ──► gateway: SPIs, counters
//!      └────── vici ────────────► charon: which connection negotiated each SPI
//! ```
//!
//! The gateway itself does not ask: whatever charon does there, no packet and no request waits for it. What
//! charon answers is data from outside: lengths are checked, messages and their number have bounds, and the
//! whole of it a deadline. The protocol is that of strongSwan's `src/libcharon/plugins/vici/README.md`.

mod message;

use message::{Message, Packet, Section};
use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

/// Longest packet of vici (`VICI_MESSAGE_SIZE_MAX` of strongSwan), in bytes.
const MAX_PACKET_BYTES: u32 = 512 * 1024;
/// All packets of an answer, in bytes: an IKE_SA takes about 1,000.
const MAX_ANSWER_BYTES: u64 = 128 << 20;
/// SAs of an answer that are kept, far more than a charon has.
const MAX_SAS: usize = 1 << 18;
/// How long all of it may take.
pub const PATIENCE: Duration = Duration::from_secs(3);
/// Characters of a name that are shown.
const MAX_NAME_CHARS: usize = 64;

/// The connection that an SA belongs to, by strongSwan's names and unique numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    /// Name and number of the IKE_SA.
    pub ike: (String, u32),
    /// Name and number of the CHILD_SA.
    pub child: (String, u32),
    remote: Option<IpAddr>,
}

/// Connections by the SPIs of their SAs.
#[derive(Debug, Default)]
pub struct Connections {
    by_spi: HashMap<(bool, u32), Vec<Connection>>,
    count: usize,
}

impl Connections {
    /// Asks the charon that listens at `socket`.
    ///
    /// # Errors
    /// It may not be asked, does not answer in time, or says something else than vici.
    pub fn ask(socket: &Path) -> io::Result<Self> {
        let (answer, answered) = channel();
        let socket = socket.to_owned();
        // Connecting has no time limit of its own. A thread that hangs there ends with the program.
        thread::spawn(move || {
            let end = Instant::now() + PATIENCE;
            let asked = UnixStream::connect(&socket).and_then(|stream| Self::list(Limited { stream, end }));
            let _ = answer.send(asked);
        });
        let late =
            || io::Error::new(ErrorKind::TimedOut, format!("no answer within {} s", PATIENCE.as_secs()));
        answered.recv_timeout(PATIENCE).unwrap_or_else(|_| Err(late()))
    }

    /// Reads all SAs from a connection.
    fn list(mut stream: impl Read + Write) -> io::Result<Self> {
        send(&mut stream, &Packet::register("list-sa"))?;
        let mut left = MAX_ANSWER_BYTES;
        match receive(&mut stream, &mut left)? {
            Packet::Confirmed => {}
            other => return Err(unexpected(&other)),
        }
        send(&mut stream, &Packet::request("list-sas"))?;
        let mut connections = Self::default();
        loop {
            match receive(&mut stream, &mut left)? {
                Packet::Event(_, sas) => connections.add(&sas)?,
                Packet::Response(_) => return Ok(connections),
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// Adds the CHILD_SAs of an event: a section for each IKE_SA.
    fn add(&mut self, Message(sas): &Message) -> io::Result<()> {
        for (name, ike) in &sas.sections {
            let remote = ike.value("remote-host").and_then(|address| address.parse().ok());
            let ike_name = (printable(name), ike.number("uniqueid"));
            let children = ike.sections.iter().filter(|(name, _)| name == "child-sas");
            for (name, child) in children.flat_map(|(_, children)| &children.sections) {
                let child_name = printable(child.value("name").unwrap_or(name));
                let child_name = (child_name, child.number("uniqueid"));
                for (key, is_outbound) in [("spi-in", false), ("spi-out", true)] {
                    let spi = child.value(key).and_then(|spi| u32::from_str_radix(spi, 16).ok());
                    let Some(spi) = spi else { continue };
                    if self.count == MAX_SAS {
                        return Err(invalid(format!("more than {MAX_SAS} SAs")));
                    }
                    self.count += 1;
                    let connection = Connection { ike: ike_name.clone(), child: child_name.clone(), remote };
                    self.by_spi.entry((is_outbound, spi)).or_default().push(connection);
                }
            }
        }
        Ok(())
    }

    /// The connection of an SA. Two peers may have chosen the same SPI for what goes to them (RFC 4301 4.1):
    /// where the SPI alone does not decide, `remote` must be the peer's address.
    pub fn of(&self, is_outbound: bool, spi: u32, remote: Option<IpAddr>) -> Option<&Connection> {
        match &self.by_spi.get(&(is_outbound, spi))?[..] {
            [only] => Some(only),
            several => {
                let mut theirs = several.iter().filter(|one| one.remote.is_some() && one.remote == remote);
                theirs.next().filter(|_| theirs.next().is_none())
            }
        }
    }
}

/// As strongSwan's own log writes them: `IKE[1] CHILD{2}`.
impl std::fmt::Display for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { ike, child, .. } = self;
        write!(f, "{}[{}] {}{{{}}}", ike.0, ike.1, child.0, child.1)
    }
}

/// A name without what would move a terminal's cursor, and not longer than a line has room for.
fn printable(name: &str) -> String {
    let shown = |c: char| if c.is_control() { '?' } else { c };
    name.chars().take(MAX_NAME_CHARS).map(shown).collect()
}

/// A connection that ends with its time: a daemon that says a byte now and then does not prolong it.
struct Limited {
    stream: UnixStream,
    end: Instant,
}

impl Limited {
    fn left(&self) -> io::Result<Duration> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Read for Limited {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        self.stream.read(bytes)
    }
}

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.into())
}

fn unexpected(packet: &Packet) -> io::Error {
    invalid(format!("an unexpected answer: {}", packet.kind()))
}

fn send(stream: &mut impl Write, packet: &Packet) -> io::Result<()> {
    let bytes = packet.to_bytes();
    let length = u32::try_from(bytes.len()).map_err(|_| invalid("too long"))?;
    stream.write_all(&[&length.to_be_bytes()[..], &bytes].concat())
}

/// Reads a packet, of an answer that has `left` bytes left.
fn receive(stream: &mut impl Read, left: &mut u64) -> io::Result<Packet> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length);
    if length > MAX_PACKET_BYTES {
        return Err(invalid(format!("a packet of {length} bytes, at most {MAX_PACKET_BYTES} are read")));
    }
    let too_much = || invalid(format!("an answer of more than {MAX_ANSWER_BYTES} bytes"));
    *left = left.checked_sub(length.into()).ok_or_else(too_much)?;
    let mut bytes = Vec::new();
    stream.take(length.into()).read_to_end(&mut bytes)?;
    if u32::try_from(bytes.len()) != Ok(length) {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Packet::read(&bytes).ok_or_else(|| invalid("not a packet of vici"))
}

impl Section {
    fn value(&self, name: &str) -> Option<&str> {
        self.values.iter().find(|(own, _)| own == name).map(|(_, value)| &**value)
    }

    /// A number; 0 where there is none.
    fn number(&self, name: &str) -> u32 {
        self.value(name).and_then(|value| value.parse().ok()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
