//! The clients of the socket: each record is a netlink datagram.
//!
//! ```text
//!   a client's thread: record ─► message ─► Xfrm, locked ─┬─► answers ──────────────────► its socket
//!                                                         └─► outbox of each who listens ─► theirs
//! ```
//!
//! Every client has a thread, which reads a record, has its messages answered, each under the lock for
//! itself, and writes what follows: answers to itself, notifications to all who listen. These come into the
//! outboxes under the lock, in the order of what happened, and are sent after it. A client that does not read
//! is disconnected, which its library tells it as lost messages (`ENOBUFS`), as the kernel does: it holds up
//! nobody. One that is being answered may take its time: what it is told waits in its outbox for so long.
//!
//! **Who may.** SAs are keys and policies are ways past the gateway. The kernel lets root configure them;
//! here it is for the caller of [`XfrmSocket::serve`](super::XfrmSocket::serve) to say. Others are
//! disconnected without an answer.

use super::super::fault::Fault;
use super::data_path::DataPath;
use super::dump::Dump;
use super::flush::Flush;
use super::hello::{Hello, Identity, Welcome};
use super::server::{Answers, Client, Notification, Now, Xfrm, acknowledged};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::net::sockopt::{set_socket_send_buffer_size, set_socket_send_buffer_size_force};
use rustix::net::{RecvFlags, SendFlags};
use std::collections::VecDeque;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use testudo_wire::netlink::datagram::Datagram;
use testudo_wire::netlink::{Message, flag, messages};

/// The longest record that is read, in bytes. Daemons send single requests; `ip -batch` sends many at a time.
const MAX_RECORD: usize = 1 << 16;
/// How long a client may leave an answer unread.
const PATIENCE: Duration = Duration::from_secs(5);
/// What may wait in a client's socket, in bytes, as the kernel counts them.
const SEND_BUFFER_BYTES: usize = 1 << 20;
/// What may wait beside it while the client is being answered, in bytes of datagrams.
const MAX_OUTBOX_BYTES: usize = 1 << 20;

/// Time and chance, handed in.
pub trait Surroundings: Send + Sync + 'static {
    /// Seconds since 1970.
    fn unix_s(&self) -> u64;
    /// Milliseconds of the host's `CLOCK_MONOTONIC`, which nobody sets.
    fn monotonic_ms(&self) -> u64;
    /// A number from 0 to `highest` that nobody can guess.
    fn random(&self, highest: u32) -> u32;
}

/// The server behind the socket.
pub struct XfrmServer<D> {
    /// Held while the other is waited for: those who wait have their turn before one that comes again.
    turn: Mutex<()>,
    xfrm: Mutex<Xfrm<D>>,
    sessions: Mutex<Vec<Arc<Session>>>,
    surroundings: Box<dyn Surroundings>,
    identity: Identity,
    owners: AtomicU64,
    refused: Mutex<Fault>,
    /// Of what programs send past all policies; 0 for none.
    mark: u32,
}

/// A connected client.
struct Session {
    stream: UnixStream,
    process: u32,
    /// The process, in a number of this server's.
    owner: u64,
    hello: Mutex<Option<Hello>>,
    outbox: Mutex<Outbox>,
}

/// What a client is to be told, in order.
#[derive(Default)]
struct Outbox {
    waiting: VecDeque<Arc<Datagram>>,
    bytes: usize,
    /// Its own thread is writing to it, and sends what waits in between.
    is_answering: bool,
}

impl Outbox {
    fn pop(&mut self) -> Option<Arc<Datagram>> {
        let datagram = self.waiting.pop_front()?;
        self.bytes -= datagram.len();
        Some(datagram)
    }
}

fn now(surroundings: &dyn Surroundings) -> Now {
    Now { unix_s: surroundings.unix_s(), monotonic_ms: surroundings.monotonic_ms() }
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Session {
    fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_write_timeout(Some(PATIENCE))?;
        // More than the system gives to others, where this process may say so (CAP_NET_ADMIN).
        let forced = set_socket_send_buffer_size_force(&stream, SEND_BUFFER_BYTES);
        forced.or_else(|_| set_socket_send_buffer_size(&stream, SEND_BUFFER_BYTES))?;
        // A process that this one's namespace cannot see is 0: such ones share what one may have.
        let process = u32::try_from(getsockopt(&stream, PeerCredentials)?.pid()).unwrap_or(0);
        Ok(Self { stream, process, owner: 0, hello: Mutex::default(), outbox: Mutex::default() })
    }

    fn client(&self) -> Client {
        let client = held(&self.hello).map(|hello| hello.client()).unwrap_or_default();
        Client { process: self.process, owner: self.owner, ..client }
    }

    /// Takes a hello. One that wants an acknowledgement has it once its groups are heard: bind(2) of a
    /// netlink socket returns then, and a program that has bound misses nothing of what comes after.
    fn greeted(&self, message: &Message<'_>, hello: Hello, welcome: &Welcome) -> io::Result<()> {
        *held(&self.hello) = Some(hello);
        if welcome.mark != 0 || hello.is_welcomed {
            self.write(&welcome.written(hello.port))?;
        }
        if !message.header.has(flag::ACK) {
            return Ok(());
        }
        let mut datagram = Datagram::new();
        let Client { port, acks, .. } = hello.client();
        datagram.ack(message, port, Ok(()), acks);
        self.write(&datagram)
    }

    /// Tells its library that messages were lost.
    fn disconnect(&self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    /// Has the client told something after all else, if it listens.
    fn queue(&self, notification: &Notification) {
        if !held(&self.hello).is_some_and(|hello| hello.hears(notification.group)) {
            return;
        }
        let mut outbox = held(&self.outbox);
        outbox.bytes += notification.datagram.len();
        outbox.waiting.push_back(Arc::clone(&notification.datagram));
        if outbox.bytes > MAX_OUTBOX_BYTES {
            *outbox = Outbox { is_answering: outbox.is_answering, ..Outbox::default() };
            self.disconnect();
        }
    }

    /// Sends what waits, if its own thread does not. A client that has no room has lost messages.
    fn flush(&self) {
        let mut outbox = held(&self.outbox);
        if outbox.is_answering {
            return;
        }
        // The lock is held, so that others who come with more do not overtake.
        while let Some(datagram) = outbox.pop() {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            if rustix::net::send(&self.stream, datagram.as_bytes(), flags).is_err() {
                self.disconnect();
            }
        }
    }

    /// Writes a datagram, and waits a while for room.
    fn write(&self, datagram: &Datagram) -> io::Result<()> {
        rustix::net::send(&self.stream, datagram.as_bytes(), SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Writes an answer, after what waits: it happened before.
    fn answer(&self, datagram: &Datagram) -> io::Result<()> {
        held(&self.outbox).is_answering = true;
        loop {
            let Some(waiting) = held(&self.outbox).pop() else { break };
            self.write(&waiting)?;
        }
        self.write(datagram)
    }

    /// Nothing more is to be answered: what waits is written, and from now on others do it.
    fn answered(&self) -> io::Result<()> {
        loop {
            let mut outbox = held(&self.outbox);
            let Some(waiting) = outbox.pop() else {
                outbox.is_answering = false;
                return Ok(());
            };
            drop(outbox);
            self.write(&waiting)?;
        }
    }
}

impl<D: DataPath + Send + 'static> XfrmServer<D> {
    /// A server over a data path.
    #[must_use]
    pub fn new(data_path: D, surroundings: Box<dyn Surroundings>) -> Self {
        let now = now(&*surroundings);
        Self {
            turn: Mutex::default(),
            xfrm: Mutex::new(Xfrm::new(data_path, now)),
            sessions: Mutex::default(),
            identity: std::array::from_fn(|_| surroundings.random(u32::MAX)),
            owners: AtomicU64::new(1),
            surroundings,
            refused: Mutex::default(),
            mark: 0,
        }
    }

    /// The same server, whose clients mark so what they send past all policies.
    #[must_use]
    pub fn with_mark(self, mark: u32) -> Self {
        Self { mark, ..self }
    }

    /// SAs and policies, to be read. What changes them has news: [`change`](Self::change).
    pub fn xfrm(&self) -> MutexGuard<'_, Xfrm<D>> {
        let _turn = held(&self.turn);
        held(&self.xfrm)
    }

    /// Changes SAs and policies, and tells all who listen, in the order in which things happen.
    pub fn change<T>(&self, change: impl FnOnce(&mut Xfrm<D>) -> (T, Vec<Notification>)) -> T {
        let mut xfrm = self.xfrm();
        let (value, notifications) = change(&mut xfrm);
        let listeners = self.queue(&notifications);
        drop(xfrm);
        listeners.iter().for_each(|session| session.flush());
        value
    }

    /// Forgets reserved SPIs whose time is over, and ends policies whose is. To be called about once a
    /// second.
    pub fn tick(&self) {
        let now = now(&*self.surroundings);
        self.change(|xfrm| ((), xfrm.tick(now)));
    }

    /// Tells all who listen what no change here has brought about, such as a packet without an SA.
    pub fn tell(&self, notifications: &[Notification]) {
        self.queue(notifications).iter().for_each(|session| session.flush());
    }

    /// Puts notifications into the outboxes, which are to be flushed.
    fn queue(&self, notifications: &[Notification]) -> Vec<Arc<Session>> {
        if notifications.is_empty() {
            return Vec::new();
        }
        let sessions = held(&self.sessions);
        for notification in notifications {
            sessions.iter().for_each(|session| session.queue(notification));
        }
        sessions.clone()
    }

    /// Notes why a client was disconnected.
    pub(super) fn note_disconnected(&self, error: &io::Error) {
        if let Some(untold) = held(&self.refused).occurs(Instant::now()) {
            tracing::warn!("xfrm: a client was disconnected: {error}{untold}");
        }
    }

    /// Serves a client until it goes.
    pub(super) fn serve(&self, stream: UnixStream) -> io::Result<()> {
        let session = self.enter(Session::new(stream)?);
        let result = self.serve_session(&session);
        self.leave(&session);
        result
    }

    /// A client has come. The connections of one process have one owner; a process that comes after all of
    /// them have gone is another one, even with the same number.
    fn enter(&self, session: Session) -> Arc<Session> {
        let mut xfrm = self.xfrm();
        let mut sessions = held(&self.sessions);
        let is_same = |other: &&Arc<Session>| session.process != 0 && other.process == session.process;
        let known = sessions.iter().find(is_same).map(|other| other.owner);
        let owner = known.unwrap_or_else(|| self.owners.fetch_add(1, Ordering::Relaxed));
        let session = Arc::new(Session { owner, ..session });
        xfrm.connected.insert(owner);
        sessions.push(Arc::clone(&session));
        session
    }

    fn leave(&self, session: &Arc<Session>) {
        let mut xfrm = self.xfrm();
        let mut sessions = held(&self.sessions);
        sessions.retain(|other| !Arc::ptr_eq(other, session));
        if sessions.iter().all(|other| other.owner != session.owner) {
            xfrm.connected.remove(&session.owner);
        }
    }

    /// Carries out a flush; others have their turn between its parts.
    fn flush(&self, mut flush: Flush) {
        while !self.change(|xfrm| xfrm.flush(&mut flush)) {}
    }

    fn serve_session(&self, session: &Session) -> io::Result<()> {
        let mut record = zeroize::Zeroizing::new(vec![0; MAX_RECORD]);
        loop {
            let (_, length) = rustix::net::recv(&session.stream, &mut record[..], RecvFlags::TRUNC)?;
            let Some(received) = record.get(..length) else {
                let text = format!("a record of {length} bytes, at most {MAX_RECORD} are read");
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            };
            if received.is_empty() {
                return Ok(());
            }
            self.answer(session, received)?;
        }
    }

    fn answer(&self, session: &Session, record: &[u8]) -> io::Result<()> {
        let mut dump: Option<Dump> = None;
        // As the kernel: what has no whole header any more is nobody's.
        for message in messages(record).map_while(Result::ok) {
            if let Some(hello) = Hello::read(&message) {
                if let Some(outlived) = hello.outlived {
                    // Those that cannot be told apart are one.
                    let daemon = if session.process == 0 { 0 } else { session.owner };
                    self.xfrm().renewal.note(daemon, outlived);
                }
                let welcome = Welcome { mark: self.mark, identity: self.identity };
                session.greeted(&message, hello, &welcome)?;
                continue;
            }
            let client = session.client();
            let surroundings = &*self.surroundings;
            let now = now(surroundings);
            let random = &mut |highest| surroundings.random(highest);
            // Each for itself, so that others have their turn between two.
            let answers = self.change(|xfrm| {
                let mut answers = xfrm.answer(&client, &message, dump.is_some(), now, random);
                let notifications = std::mem::take(&mut answers.notifications);
                (answers, notifications)
            });
            let Answers { mut datagrams, dump: begun, flush, .. } = answers;
            dump = dump.or(begun);
            if let Some(flush) = flush {
                self.flush(flush);
                datagrams.extend(acknowledged(&message, &client));
            }
            datagrams.iter().try_for_each(|datagram| session.answer(datagram))?;
        }
        // A part at a time: others change things in between.
        while let Some(part) = dump.as_mut().and_then(|dump| self.xfrm().dumped(dump)) {
            if !part.is_empty() {
                session.answer(&part)?;
            }
        }
        session.answered()
    }
}
