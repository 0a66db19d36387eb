//! A steady stream of numbered datagrams, and the fate of each.

use super::Outcome;
use super::wait::PATIENCE;
use std::collections::HashSet;
use std::io;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use testudo_lab::namespaces::Namespace;

/// Long enough that a busy machine need not drop datagrams, short enough that every gap is noticed.
const PAUSE: Duration = Duration::from_millis(2);
/// Receive buffer for when the receiver does not get to run; the kernel may grant less.
const BUFFER_BYTES: usize = 8 << 20;
/// How often the receiver checks whether the stream has ended.
const POLL: Duration = Duration::from_millis(20);

/// State shared by the two ends.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    sent: AtomicU64,
    received: AtomicU64,
}

/// A stream that flows until `end` is called.
pub struct Stream {
    shared: Arc<Shared>,
    sender: JoinHandle<()>,
    receiver: JoinHandle<io::Result<HashSet<u64>>>,
}

impl Stream {
    /// Starts sending from one host and address (without port) to another.
    pub fn start(from: (&Namespace, &str), to: (&Namespace, &str)) -> Outcome<Self> {
        Self::start_at(from, to, 1.0 / PAUSE.as_secs_f64())
    }

    /// The same at so many datagrams a second, or as fast as possible if that is infinite.
    pub fn start_at(from: (&Namespace, &str), to: (&Namespace, &str), per_second: f64) -> Outcome<Self> {
        let far = to.0.within(|| UdpSocket::bind(format!("{}:0", to.1)))??;
        rustix::net::sockopt::set_socket_recv_buffer_size(&far, BUFFER_BYTES)?;
        far.set_read_timeout(Some(POLL))?;
        let near = from.0.within(|| UdpSocket::bind(format!("{}:0", from.1)))??;
        near.connect(far.local_addr()?)?;
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

    /// Waits until `count` more datagrams have arrived.
    pub fn flows(&self, count: u64) -> Outcome<()> {
        let goal = self.received() + count;
        super::wait::until("for the stream to flow", || Ok((self.received() >= goal).then_some(())))
    }

    /// Ends the stream; returns how many datagrams were sent and which of them never arrived.
    pub fn end(self) -> Outcome<(u64, Vec<u64>)> {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let arrived = self.receiver.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
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
                shared.received.fetch_add(1, Ordering::Relaxed);
                last = Instant::now();
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                let all = arrived.len() as u64 == shared.sent.load(Ordering::Relaxed);
                if is_over && (all || last.elapsed() > PATIENCE / 10) {
                    return Ok(arrived);
                }
            }
            Err(error) => return Err(error),
        }
    }
}
