//! A steady stream of numbered datagrams, and the fate of each.

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
/// Bytes of a datagram's number.
const NUMBER_BYTES: usize = 8;
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

/// What a stream sends.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Datagrams a second; as fast as possible if it is infinite.
    pub per_second: f64,
    /// Bytes of UDP payload in each: at least the eight of its number.
    pub bytes: usize,
}

impl Default for Load {
    /// Enough that every gap is noticed, too little to keep a machine busy.
    fn default() -> Self {
        Self { per_second: 1.0 / PAUSE.as_secs_f64(), bytes: NUMBER_BYTES }
    }
}

/// The numbers that have arrived: one bit each, since there may be millions of them.
#[derive(Default)]
struct Arrived {
    words: Vec<u64>,
    count: u64,
}

impl Arrived {
    /// Of the first `end` numbers, which are all that were sent.
    fn insert(&mut self, number: u64, end: u64) {
        let (Ok(word), bit) = (usize::try_from(number / 64), 1 << (number % 64)) else { return };
        if number >= end {
            return;
        }
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.count += u64::from(self.words[word] & bit == 0);
        self.words[word] |= bit;
    }

    fn contains(&self, number: u64) -> bool {
        let word = usize::try_from(number / 64).ok().and_then(|word| self.words.get(word));
        word.is_some_and(|word| word & (1 << (number % 64)) != 0)
    }
}

/// Stops the stream when it goes, however that comes: what follows in the same namespace would see it.
struct Stopping(Arc<Shared>);

impl Drop for Stopping {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

/// A stream that flows until `end` is called.
pub struct Stream {
    shared: Arc<Shared>,
    stopping: Stopping,
    sender: JoinHandle<()>,
    receiver: JoinHandle<io::Result<Arrived>>,
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
        Self::start_with(from, to, Load::default())
    }

    /// The same with another load.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(from: End<'_>, to: End<'_>, load: Load) -> Result<Self, LabError> {
        Self::start_marked(from, to, load, 0)
    }

    /// The same with this DSCP (RFC 2474) in each datagram; another one than 0 over IPv4 alone.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_marked(from: End<'_>, to: End<'_>, load: Load, dscp: u8) -> Result<Self, LabError> {
        let (far, near) = (bound(to)?, bound(from)?);
        let join = || {
            rustix::net::sockopt::set_socket_recv_buffer_size(&far, BUFFER_BYTES)?;
            far.set_read_timeout(Some(POLL))?;
            if dscp != 0 {
                rustix::net::sockopt::set_ip_tos(&near, dscp << 2)?;
            }
            near.connect(far.local_addr()?)
        };
        join().map_err(io_error("join the sockets of a stream"))?;
        let shared = Arc::new(Shared::default());
        let (of_sender, of_receiver) = (Arc::clone(&shared), Arc::clone(&shared));
        let sender = thread::spawn(move || send(&near, &of_sender, load));
        let receiver = thread::spawn(move || receive(&far, &of_receiver));
        Ok(Self { stopping: Stopping(Arc::clone(&shared)), shared, sender, receiver })
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
        drop(self.stopping);
        self.sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let arrived = self.receiver.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let arrived = arrived.map_err(io_error("receive a stream"))?;
        let sent = self.shared.sent.load(Ordering::Relaxed);
        Ok((sent, (0..sent).filter(|&number| !arrived.contains(number)).collect()))
    }
}

/// Sends what is due, and waits for more to be.
fn send(socket: &UdpSocket, shared: &Shared, Load { per_second, bytes }: Load) {
    let mut datagram = vec![0; bytes.max(NUMBER_BYTES)];
    let began = Instant::now();
    while !shared.stop.load(Ordering::Relaxed) {
        let due = began.elapsed().as_secs_f64() * per_second;
        if shared.sent.load(Ordering::Relaxed) as f64 > due {
            thread::sleep(PAUSE.min(Duration::from_secs_f64(1.0 / per_second)));
            continue;
        }
        // Counted first: the receiver takes no number that was not sent.
        let number = shared.sent.fetch_add(1, Ordering::Relaxed);
        datagram[..NUMBER_BYTES].copy_from_slice(&number.to_be_bytes());
        // A datagram that cannot be sent (say, because a gateway's route is gone) counts as lost.
        let _ = socket.send(&datagram);
    }
}

/// Receives until all datagrams have arrived, or none has come for a while.
fn receive(socket: &UdpSocket, shared: &Shared) -> io::Result<Arrived> {
    let (mut arrived, mut number) = (Arrived::default(), [0; NUMBER_BYTES]);
    let mut last = Instant::now();
    loop {
        let is_over = shared.stop.load(Ordering::Relaxed);
        match socket.recv(&mut number) {
            Ok(_) => {
                arrived.insert(u64::from_be_bytes(number), shared.sent.load(Ordering::Relaxed));
                if shared.received.fetch_add(1, Ordering::Relaxed) > 0 {
                    let pause_us = u64::try_from(last.elapsed().as_micros()).unwrap_or(u64::MAX);
                    shared.pause_us.fetch_max(pause_us, Ordering::Relaxed);
                }
                last = Instant::now();
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                let all = arrived.count == shared.sent.load(Ordering::Relaxed);
                if is_over && (all || last.elapsed() > LATEST) {
                    return Ok(arrived);
                }
            }
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_that_was_sent_arrives_once() {
        let mut arrived = Arrived::default();
        for number in [0, 63, 64, 1000, 64, u64::MAX, 1001] {
            arrived.insert(number, 1001);
        }
        assert_eq!(arrived.count, 4);
        let found: Vec<u64> = (0..2000).filter(|&number| arrived.contains(number)).collect();
        assert_eq!(found, [0, 63, 64, 1000]);
    }
}
