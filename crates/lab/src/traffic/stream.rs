//! A steady stream of numbered datagrams, and the fate of each.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::error::{LabError, io as io_error};
use crate::namespaces::Namespace;

/// Long enough that a busy machine need not drop datagrams, short enough that every gap is noticed.
const PAUSE: Duration = Duration::from_millis(2);
/// Receive buffer for when the receiver does not get to run; the kernel may grant less.
const BUFFER_BYTES: usize = 8 << 20;
/// How often the receiver checks whether the stream has ended.
const POLL: Duration = Duration::from_millis(20);
/// How long a datagram may be under way on a busy machine.
const LATEST: Duration = Duration::from_secs(3);
/// How long the stream may take to flow.
const FLOWS_WITHIN: Duration = Duration::from_secs(30);

/// State shared by the two ends.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    sent: AtomicU64,
    received: AtomicU64,
    /// The longest time between two that arrived, in microseconds.
    pause_us: AtomicU64,
}

/// A stream that flows until `end` is called.
pub struct Stream {
    shared: Arc<Shared>,
    sender: JoinHandle<()>,
    receiver: JoinHandle<io::Result<HashSet<u64>>>,
}

/// A host and an address of it.
pub type End<'a> = (&'a Namespace, &'a str);

fn bound((namespace, address): End<'_>) -> Result<UdpSocket, LabError> {
    let invalid = |_| io_error(format!("read the address {address}"))(io::ErrorKind::InvalidInput.into());
    let own: IpAddr = address.parse().map_err(invalid)?;
    namespace.within(|| UdpSocket::bind((own, 0)))?.map_err(io_error(format!("bind to {address}")))
}

impl Stream {
    /// Starts sending from one host and address to another.
    ///
    /// # Errors
    /// A socket cannot be had there.
    pub fn start(from: End<'_>, to: End<'_>) -> Result<Self, LabError> {
        Self::start_at(from, to, 1.0 / PAUSE.as_secs_f64())
    }

    /// The same at so many datagrams a second, or as fast as possible if that is infinite.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_at(from: End<'_>, to: End<'_>, per_second: f64) -> Result<Self, LabError> {
        let (far, near) = (bound(to)?, bound(from)?);
        let join = || {
            rustix::net::sockopt::set_socket_recv_buffer_size(&far, BUFFER_BYTES)?;
            far.set_read_timeout(Some(POLL))?;
            near.connect(far.local_addr()?)
        };
        join().map_err(io_error("join the sockets of a stream"))?;
        let shared = Arc::new(Shared::default());
        let (of_sender, of_receiver) = (Arc::clone(&shared), Arc::clone(&shared));
        let sender = thread::spawn(move || send(&near, &of_sender, per_second));
        let receiver = thread::spawn(move || receive(&far, &of_receiver));
        Ok(Self { shared, sender, receiver })
    }

    /// Datagrams that have arrived so far.
    pub fn received(&self) -> u64 {
        self.shared.received.load(Ordering::Relaxed)
    }

    /// The longest time between two datagrams that arrived so far.
    pub fn longest_pause(&self) -> Duration {
        Duration::from_micros(self.shared.pause_us.load(Ordering::Relaxed))
    }

    /// Waits until `count` more datagrams have arrived.
    ///
    /// # Errors
    /// They do not, within half a minute.
    pub fn flows(&self, count: u64) -> Result<(), LabError> {
        let (goal, started) = (self.received() + count, Instant::now());
        while self.received() < goal {
            if started.elapsed() > FLOWS_WITHIN {
                let what = format!("a stream did not flow: {} of {goal} datagrams came", self.received());
                return Err(LabError::TooLate { what, limit: FLOWS_WITHIN });
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Ends the stream; returns how many datagrams were sent and which of them never arrived.
    ///
    /// # Errors
    /// The receiver's socket failed.
    pub fn end(self) -> Result<(u64, Vec<u64>), LabError> {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let arrived = self.receiver.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let arrived = arrived.map_err(io_error("receive a stream"))?;
        let sent = self.shared.sent.load(Ordering::Relaxed);
        Ok((sent, (0..sent).filter(|number| !arrived.contains(number)).collect()))
    }
}

/// Sends what is due, and waits for more to be.
fn send(socket: &UdpSocket, shared: &Shared, per_second: f64) {
    let began = Instant::now();
    while !shared.stop.load(Ordering::Relaxed) {
        let due = began.elapsed().as_secs_f64() * per_second;
        if shared.sent.load(Ordering::Relaxed) as f64 > due {
            thread::sleep(PAUSE.min(Duration::from_secs_f64(1.0 / per_second)));
            continue;
        }
        // A datagram that cannot be sent (say, because a gateway's route is gone) counts as lost.
        let _ = socket.send(&shared.sent.load(Ordering::Relaxed).to_be_bytes());
        shared.sent.fetch_add(1, Ordering::Relaxed);
    }
}

/// Receives until all datagrams have arrived, or none has come for a while.
fn receive(socket: &UdpSocket, shared: &Shared) -> io::Result<HashSet<u64>> {
    let (mut arrived, mut number) = (HashSet::new(), [0; 8]);
    let mut last = Instant::now();
    loop {
        let is_over = shared.stop.load(Ordering::Relaxed);
        match socket.recv(&mut number) {
            Ok(_) => {
                arrived.insert(u64::from_be_bytes(number));
                if shared.received.fetch_add(1, Ordering::Relaxed) > 0 {
                    let pause_us = u64::try_from(last.elapsed().as_micros()).unwrap_or(u64::MAX);
                    shared.pause_us.fetch_max(pause_us, Ordering::Relaxed);
                }
                last = Instant::now();
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                let all = u64::try_from(arrived.len()).ok() == Some(shared.sent.load(Ordering::Relaxed));
                if is_over && (all || last.elapsed() > LATEST) {
                    return Ok(arrived);
                }
            }
            Err(error) => return Err(error),
        }
    }
}
