//! Stands between a daemon and the server of XFRM, and keeps what passes: every refusal is seen, and the
//! server can be away.
//!
//! With `TESTUDO_RECORD=FOLDER` each recording is written to a file of that folder, without the keys:
//! `crates/wire/tests/xfrm/captures/daemons.txt` is made of such, and the fuzz corpora of that
//! (`fuzz/examples/seeds.rs`).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::support::Outcome;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recv, send, shutdown, socket_with,
};
use std::fmt::Write as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;
use testudo_wire::netlink::ack::Answer;
use testudo_wire::netlink::{kind, messages};
use testudo_wire::xfrm::message::Message;

const MAX_RECORD: usize = 1 << 16;

/// A record, and whether the daemon has sent it.
type Record = (bool, Vec<u8>);

/// A record and when it passed.
pub type Passed = (Instant, Record);

#[derive(Debug, Default)]
struct Kept {
    records: Mutex<Vec<Passed>>,
    ends: Mutex<Vec<Arc<OwnedFd>>>,
}

/// The socket that the daemon connects to. Dropping this disconnects it.
#[derive(Debug)]
pub struct Recorder {
    listener: Arc<OwnedFd>,
    path: PathBuf,
    kept: Arc<Kept>,
}

fn seqpacket() -> Outcome<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

impl Recorder {
    /// Listens at `path` and passes records on to the server at `server`.
    pub fn start(path: &Path, server: &Path) -> Outcome<Self> {
        let listener = Arc::new(seqpacket()?);
        bind(&listener, &SocketAddrUnix::new(path)?)?;
        listen(&listener, 16)?;
        let kept = Arc::new(Kept::default());
        let (accepting, keeping, server) = (Arc::clone(&listener), Arc::clone(&kept), server.to_owned());
        thread::spawn(move || {
            while let Ok(daemon) = accept_with(&accepting, SocketFlags::CLOEXEC) {
                let Ok(upstream) = seqpacket() else { return };
                let Ok(address) = SocketAddrUnix::new(&server) else { return };
                if connect(&upstream, &address).is_err() {
                    continue;
                }
                let ends = [daemon, upstream].map(Arc::new);
                keeping.ends.lock().unwrap().extend(ends.clone());
                for from_daemon in [true, false] {
                    let [daemon, upstream] = ends.clone();
                    let (from, to) = if from_daemon { (daemon, upstream) } else { (upstream, daemon) };
                    let kept = Arc::clone(&keeping);
                    thread::spawn(move || pass(&from, &to, from_daemon, &kept));
                }
            }
        });
        Ok(Self { listener, path: path.to_owned(), kept })
    }

    /// What passed so far.
    pub fn records(&self) -> Vec<Record> {
        self.passed().into_iter().map(|(_, record)| record).collect()
    }

    /// The same, with the time of each record.
    pub fn passed(&self) -> Vec<Passed> {
        self.kept.records.lock().unwrap().clone()
    }

    /// How many messages of a kind a daemon has sent.
    pub fn requests_of(&self, kind: u16) -> usize {
        let records = self.records();
        let sent = records.iter().filter(|(from_daemon, _)| *from_daemon);
        sent.flat_map(|(_, bytes)| messages(bytes)).flatten().filter(|m| m.header.kind == kind).count()
    }

    /// Requests that were refused: message type, error, text, and the bytes of the request.
    pub fn refusals(&self) -> Vec<String> {
        let records = self.records();
        let mut found = Vec::new();
        for (at, (from_daemon, bytes)) in records.iter().enumerate() {
            let answers = messages(bytes).flatten().filter(|_| !from_daemon);
            for (message, answer) in answers.filter_map(|m| Answer::read(&m).map(|answer| (m, answer))) {
                if answer.code == 0 {
                    continue;
                }
                let asked = records[..at].iter().rev().filter(|(from_daemon, _)| *from_daemon);
                let request = asked.map(|(_, bytes)| bytes).find(|bytes| {
                    messages(bytes).flatten().any(|m| m.header.sequence == message.header.sequence)
                });
                found.push(told(answer.code, answer.text.as_deref(), request.map_or(&[], Vec::as_slice)));
            }
        }
        found
    }
}

fn told(code: i32, text: Option<&str>, request: &[u8]) -> String {
    let kind = messages(request).flatten().next().map_or(0, |message| message.header.kind);
    let mut line = format!("type {kind:#x}, errno {code}, {text:?}: ");
    for byte in request {
        write!(line, "{byte:02x}").unwrap();
    }
    line
}

fn pass(from: &OwnedFd, to: &OwnedFd, from_daemon: bool, kept: &Kept) {
    let mut bytes = vec![0; MAX_RECORD];
    loop {
        let (_, length) = recv(from, &mut bytes[..], RecvFlags::empty()).unwrap_or((0, 0));
        if length > 0 {
            kept.records.lock().unwrap().push((Instant::now(), (from_daemon, bytes[..length].to_vec())));
        }
        if length == 0 || send(to, &bytes[..length], SendFlags::NOSIGNAL).is_err() {
            let _ = shutdown(from, rustix::net::Shutdown::Both);
            let _ = shutdown(to, rustix::net::Shutdown::Both);
            return;
        }
    }
}

/// The bytes of a datagram in hexadecimal digits, with another key in the place of each key.
fn without_keys(bytes: &[u8]) -> String {
    let mut other = bytes.to_vec();
    for message in messages(bytes).map_while(Result::ok) {
        let Ok(Message { attributes, .. }) = Message::read(&message) else { continue };
        let of_aead = attributes.aead().map(|algorithm| algorithm.key.bytes());
        let of_cipher = attributes.cipher().map(|algorithm| algorithm.key.bytes());
        let of_integrity = attributes.integrity().map(|algorithm| algorithm.key.bytes());
        let truncated = attributes.integrity_truncated().map(|algorithm| algorithm.key.bytes());
        for key in [of_aead, of_cipher, of_integrity, truncated].into_iter().flatten() {
            let at = bytes.windows(key.len().max(1)).position(|found| found == key);
            // Not one key for all: the gateway refuses a second SA with it.
            let fill = message.header.sequence.to_le_bytes().into_iter().cycle();
            at.into_iter().for_each(|at| {
                other[at..at + key.len()].iter_mut().zip(fill.clone()).for_each(|(byte, fill)| *byte = fill);
            });
        }
    }
    other.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

impl Kept {
    /// Writes the recording where the environment asks for it.
    fn write(&self, socket: &Path) {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let Some(folder) = std::env::var_os("TESTUDO_RECORD") else { return };
        let records = self.records.lock().unwrap();
        let line = |(_, (from_daemon, bytes)): &Passed| {
            let word = if *from_daemon { "sent" } else { "received" };
            format!("{word} {}\n", without_keys(bytes))
        };
        // Hellos and greetings are the library's.
        let is_netlink = |(_, (_, bytes)): &&Passed| bytes.get(4..6) != Some(&kind::NOOP.to_ne_bytes());
        let text: String = records.iter().filter(is_netlink).map(line).collect();
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = Path::new(&folder).join(format!("{number:03}.txt"));
        std::fs::write(&path, format!("# {}\n{text}", socket.display())).unwrap();
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.kept.write(&self.path);
        let _ = std::fs::remove_file(&self.path);
        let _ = shutdown(&self.listener, rustix::net::Shutdown::Both);
        for end in self.kept.ends.lock().unwrap().iter() {
            let _ = shutdown(end, rustix::net::Shutdown::Both);
        }
    }
}
