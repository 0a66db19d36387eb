//! TCP streams at full speed.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::pattern::Pattern;
use crate::bench::threads::allow;
use crate::error::{LabError, io};
use crate::namespaces::Namespace;

/// If nothing moves for this long, the path is broken.
const STALLED: Duration = Duration::from_secs(5);
/// How often the observer is called.
const OBSERVED_EVERY: Duration = Duration::from_millis(100);
/// Buffer of one read: more than a TCP super-segment, so that the cost of system calls is negligible.
const READ_BYTES: usize = 256 * 1024;

/// The result at the receiving end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TcpStreamResult {
    /// Bytes of user data received.
    pub bytes: u64,
    /// From the first byte received to the last.
    pub elapsed: Duration,
}

impl TcpStreamResult {
    /// User data per time, in Gbit/s (1e9 bits).
    pub fn gbit_s(&self) -> f64 {
        gbit_s(self.bytes, self.elapsed)
    }
}

/// `bytes` in `elapsed` as Gbit/s (1e9 bits); 0 if no time has passed.
pub(crate) fn gbit_s(bytes: u64, elapsed: Duration) -> f64 {
    if elapsed.is_zero() { 0.0 } else { bytes as f64 * 8e-9 / elapsed.as_secs_f64() }
}

/// What TCP sends.
#[derive(Debug, Clone, Copy)]
pub struct TcpLoad<'a> {
    /// Streams at once.
    pub streams: usize,
    /// How long they send.
    pub duration: Duration,
    /// Bytes that each write hands to the kernel, 65,536 at most; `None` for large writes, which cost few
    /// system calls.
    pub message_bytes: Option<usize>,
    /// The processors of the senders and those of the receivers; `None` leaves it to the system.
    pub processors: Option<[&'a [usize]; 2]>,
}

impl TcpLoad<'_> {
    fn bind(&self, end: usize) {
        if let Some(processors) = self.processors.as_ref().and_then(|ends| ends.get(end)) {
            allow(processors);
        }
    }
}

/// [`tcp_streams`] with one stream.
///
/// # Errors
/// As there.
pub fn tcp_stream(
    from: &Namespace,
    to: &Namespace,
    address: IpAddr,
    duration: Duration,
    observe: &mut dyn FnMut(Duration, u64),
) -> Result<TcpStreamResult, LabError> {
    tcp_streams(1, from, to, address, duration, observe)
}

/// Sends so many TCP streams at once from the namespace `from` to `address`, which is in `to`, for
/// `duration`, and returns what all of them carried together.
///
/// Each stream carries a known pattern, and part of every read is compared. `observe` is called about ten
/// times a second with the time passed and the bytes received.
///
/// # Errors
/// No connection, five seconds without progress of a stream, or [`LabError::Corrupted`] if the received data
/// differs from the data sent.
pub fn tcp_streams(
    count: usize,
    from: &Namespace,
    to: &Namespace,
    address: IpAddr,
    duration: Duration,
    observe: &mut dyn FnMut(Duration, u64),
) -> Result<TcpStreamResult, LabError> {
    let load = TcpLoad { streams: count, duration, message_bytes: None, processors: None };
    tcp_load(&load, from, to, address, observe)
}

/// [`tcp_streams`] with messages of one size, or bound to processors.
///
/// # Errors
/// As there.
pub fn tcp_load(
    load: &TcpLoad<'_>,
    from: &Namespace,
    to: &Namespace,
    address: IpAddr,
    observe: &mut dyn FnMut(Duration, u64),
) -> Result<TcpStreamResult, LabError> {
    let connections: Vec<_> =
        (0..load.streams).map(|_| connect(from, to, address)).collect::<Result<_, _>>()?;
    let (pattern, received) = (Pattern::new(), AtomicU64::new(0));
    let started = Instant::now();
    let deadline = started + load.duration;
    thread::scope(|scope| {
        let start = |(near, far)| {
            let source = scope.spawn(|| {
                load.bind(0);
                send(near, &pattern, load.message_bytes, deadline)
            });
            let sink = scope.spawn(|| {
                load.bind(1);
                receive(far, &pattern, &received)
            });
            (source, sink)
        };
        let streams: Vec<_> = connections.into_iter().map(start).collect();
        while streams.iter().any(|(_, sink)| !sink.is_finished()) {
            thread::sleep(OBSERVED_EVERY);
            observe(started.elapsed(), received.load(Ordering::Relaxed));
        }
        let ended = streams.into_iter().map(|(source, sink)| {
            let sent = source.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let result = sink.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            // An error noticed by the sink explains why the source got stuck, not the other way round.
            let (result, sent) = (result?, sent?);
            if result.bytes == sent {
                return Ok(result);
            }
            Err(LabError::Corrupted(format!("{sent} bytes of TCP sent, {} received", result.bytes)))
        });
        let ended: Vec<Received> = ended.collect::<Result<_, _>>()?;
        Ok(together(&ended))
    })
}

/// What several streams carried, from the first byte of any to the last.
fn together(streams: &[Received]) -> TcpStreamResult {
    let first = streams.iter().filter_map(|stream| stream.times).map(|(first, _)| first).min();
    let last = streams.iter().filter_map(|stream| stream.times).map(|(_, last)| last).max();
    let elapsed = first.zip(last).map_or(Duration::ZERO, |(first, last)| last - first);
    TcpStreamResult { bytes: streams.iter().map(|stream| stream.bytes).sum(), elapsed }
}

/// What one stream carried, and when its first and its last byte came.
struct Received {
    bytes: u64,
    times: Option<(Instant, Instant)>,
}

/// A connection, its client in `from`.
fn connect(from: &Namespace, to: &Namespace, address: IpAddr) -> Result<(TcpStream, TcpStream), LabError> {
    let listener =
        to.within(|| TcpListener::bind((address, 0)))?.map_err(io(format!("listen at {address}")))?;
    let server = listener.local_addr().map_err(io("read the listener's port"))?;
    let near = from
        .within(|| TcpStream::connect_timeout(&server, STALLED))?
        .map_err(io(format!("connect from {} to {address}", from.name())))?;
    let (far, _) = listener.accept().map_err(io("accept a connection"))?;
    near.set_write_timeout(Some(STALLED)).map_err(io("set a write timeout"))?;
    far.set_read_timeout(Some(STALLED)).map_err(io("set a read timeout"))?;
    Ok((near, far))
}

/// The bytes sent.
fn send(
    mut stream: TcpStream,
    pattern: &Pattern,
    message_bytes: Option<usize>,
    deadline: Instant,
) -> Result<u64, LabError> {
    let mut sent = 0;
    while Instant::now() < deadline {
        let message = message_bytes.map_or_else(|| pattern.from(sent), |bytes| pattern.message(sent, bytes));
        sent += counted(stream.write(message), "send TCP data")?;
    }
    stream.shutdown(Shutdown::Write).map_err(io("end a TCP stream"))?;
    Ok(sent)
}

/// Counts what comes in `received`, too, which all streams share.
fn receive(mut stream: TcpStream, pattern: &Pattern, received: &AtomicU64) -> Result<Received, LabError> {
    let mut buffer = vec![0; READ_BYTES];
    let mut bytes = 0;
    let mut times: Option<(Instant, Instant)> = None;
    loop {
        let count = counted(stream.read(&mut buffer), "receive TCP data")?;
        if count == 0 {
            return Ok(Received { bytes, times });
        }
        let now = Instant::now();
        times = Some((times.map_or(now, |(first, _)| first), now));
        let piece = usize::try_from(count).ok().and_then(|count| buffer.get(..count)).unwrap_or(&[]);
        if !pattern.matches(bytes, piece) {
            return Err(LabError::Corrupted(format!("wrong TCP data after {bytes} bytes")));
        }
        bytes += count;
        received.fetch_add(count, Ordering::Relaxed);
    }
}

fn counted(result: io::Result<usize>, action: &str) -> Result<u64, LabError> {
    match result {
        Ok(count) => Ok(u64::try_from(count).unwrap_or(u64::MAX)),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            Err(LabError::TooLate { what: format!("could not {action}: nothing moved"), limit: STALLED })
        }
        Err(error) => Err(io(action)(error)),
    }
}

/// A socket address whose port does not matter.
pub(crate) fn portless(address: IpAddr) -> SocketAddr {
    SocketAddr::new(address, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    #[test]
    fn all_that_is_sent_arrives_and_is_counted() {
        all_arrives(None);
    }

    #[test]
    fn all_messages_of_one_size_arrive_and_are_whole() {
        assert_eq!(all_arrives(Some(1000)) % 1000, 0);
    }

    fn all_arrives(message_bytes: Option<usize>) -> u64 {
        let ((near, far), pattern, received) = (pair(), Pattern::new(), AtomicU64::new(0));
        let (sent, result) = thread::scope(|scope| {
            let source = scope
                .spawn(|| send(near, &pattern, message_bytes, Instant::now() + Duration::from_millis(50)));
            let result = together(&[receive(far, &pattern, &received).unwrap()]);
            (source.join().unwrap().unwrap(), result)
        });
        assert!(sent > 0);
        assert_eq!((result.bytes, received.into_inner()), (sent, sent));
        assert!(result.gbit_s() > 0.0);
        sent
    }

    #[test]
    fn other_data_than_was_sent_is_an_error() {
        let ((mut near, far), pattern) = (pair(), Pattern::new());
        near.write_all(&pattern.from(0)[1..3000]).unwrap();
        drop(near);
        let refused = receive(far, &pattern, &AtomicU64::new(0));
        assert!(matches!(refused, Err(LabError::Corrupted(_))), "{:?}", refused.err());
    }

    #[test]
    fn streams_together_last_from_the_first_byte_of_any_to_the_last() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let stream = |bytes, times| Received { bytes, times };
        let streams = [
            stream(1000, Some((at(5), at(20)))),
            stream(300, Some((at(2), at(12)))),
            // A stream that carried nothing has no times.
            stream(0, None),
        ];
        let elapsed = Duration::from_millis(18);
        assert_eq!(together(&streams), TcpStreamResult { bytes: 1300, elapsed });
        assert_eq!(together(&[]), TcpStreamResult { bytes: 0, elapsed: Duration::ZERO });
    }

    #[test]
    fn a_gigabit_is_a_thousand_million_bits() {
        assert_eq!(gbit_s(125_000_000, Duration::from_secs(1)), 1.0);
        assert_eq!(gbit_s(1, Duration::ZERO), 0.0);
    }
}
