//! Whether it helped: TCP streams through the interface before and after, both ways, and their spread.
//!
//! The far end takes what comes ([`sink`], or any service of that kind); a stream is over when it has closed
//! the connection, so that what counts has arrived. A [`sink`] sends one back to who asks for it: settings
//! that act on receiving are seen in these.
//!
//! ```text
//!   there   anything but the words below, until the sender's end ─►  nothing, and its end
//!   back    "testudo tune get", milliseconds (32 bits, network order), the end ─►  zeros for so long
//! ```
//!
//! **The verdict** compares ranges, not means: a difference counts where the slowest stream of one side is
//! faster than the fastest of the other. Five of each that differ in nothing fall apart like that once in 126
//! times, so the verdict is a hint, and the streams themselves are in the report.

use crate::error::TuneError;
use crate::host::Host;
use serde::Serialize;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// Nothing may stall for longer.
const STALLED: Duration = Duration::from_secs(10);
/// So long after an error the sink accepts again; so many errors in a row, 10 seconds of them, do not pass.
const AGAIN: Duration = Duration::from_millis(100);
const MOST_FAILURES: u32 = 100;
/// Bytes of a write: more than a super-segment, so that system calls do not count.
const BLOCK_BYTES: usize = 256 * 1024;

/// What a stream begins with that wants one back.
const GET: [u8; 16] = *b"testudo tune get";
/// Milliseconds after that.
const TIME_BYTES: usize = 4;
/// A sink sends back for no longer, however long it is asked for.
const LONGEST: Duration = Duration::from_secs(3600);

/// Which way streams go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// To the sink.
    There,
    /// From it.
    Back,
}

impl Way {
    /// What the interface counts of them.
    const fn counter(self) -> &'static str {
        match self {
            Self::There => "tx_bytes",
            Self::Back => "rx_bytes",
        }
    }

    /// For errors.
    const fn words(self) -> [&'static str; 3] {
        match self {
            Self::There => ["to", "sent to", "left"],
            Self::Back => ["from", "received from", "came"],
        }
    }
}

/// Streams one after the other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Where the sink is.
    pub to: SocketAddr,
    /// How many streams count; one more comes first and does not.
    pub streams: u32,
    /// How long each is sent, an hour at most of those that come back.
    pub each: Duration,
}

/// The goodput of each stream, in Gbit/s (1e9 bits of user data), in the order of measurement.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Streams {
    /// Each.
    pub gbit_s: Vec<f64>,
    /// The middle one.
    pub median: f64,
    /// The slowest one.
    pub least: f64,
    /// The fastest one.
    pub most: f64,
}

impl Streams {
    /// Of these; nothing if there are none.
    #[must_use]
    pub fn of(gbit_s: Vec<f64>) -> Option<Self> {
        let mut sorted = gbit_s.clone();
        sorted.sort_by(f64::total_cmp);
        let (least, most) = (*sorted.first()?, *sorted.last()?);
        let (low, high) = (sorted.get((sorted.len() - 1) / 2)?, sorted.get(sorted.len() / 2)?);
        Some(Self { gbit_s, median: f64::midpoint(*low, *high), least, most })
    }
}

/// What two measurements say of each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// All streams after were faster than all before.
    Faster,
    /// All streams after were slower than all before.
    Slower,
    /// Neither.
    NoDifferenceBeyondTheSpread,
}

/// Compares what was measured before with what was measured after.
#[must_use]
pub fn verdict(before: &Streams, after: &Streams) -> Verdict {
    if after.least > before.most {
        Verdict::Faster
    } else if after.most < before.least {
        Verdict::Slower
    } else {
        Verdict::NoDifferenceBeyondTheSpread
    }
}

/// Streams of one way; checks that they went by the interface. `None` of those back if the far end sends
/// none, as a sink of another kind does.
///
/// # Errors
/// Nobody takes them, they stall, or they took another way.
pub fn measure(host: &dyn Host, load: &Load, way: Way) -> Result<Option<Streams>, TuneError> {
    let [to, done, went] = way.words();
    let failed = |error: io::Error| TuneError::Measurement(format!("a stream {to} {}: {error}", load.to));
    let counted_before = counted(host, way)?;
    let (mut rates, mut bytes) = (Vec::new(), 0_u64);
    for number in 0..=load.streams {
        let stream = match way {
            Way::There => there(load.to, load.each),
            Way::Back => back(load.to, load.each),
        };
        let (of_stream, took) = stream.map_err(failed)?;
        if of_stream == 0 {
            return Ok(None);
        }
        bytes = bytes.saturating_add(of_stream);
        // The first one wakes caches and clocks.
        if number > 0 {
            rates.push(gbit_s(of_stream, took));
        }
    }
    let by_it = counted(host, way)?.saturating_sub(counted_before);
    if by_it < bytes / 10 * 9 {
        let interface = host.interface();
        let what = format!("{bytes} bytes were {done} {}, and {by_it} {went} by {interface}", load.to);
        return Err(TuneError::Measurement(format!("{what}: name an address behind that interface")));
    }
    Ok(Streams::of(rates))
}

/// Bytes in that time, in Gbit/s.
fn gbit_s(bytes: u64, took: Duration) -> f64 {
    bytes as f64 * 8e-9 / took.as_secs_f64()
}

fn counted(host: &dyn Host, way: Way) -> Result<u64, TuneError> {
    let file = format!("sys/class/net/{}/statistics/{}", host.interface(), way.counter());
    let count = host.text(&file).and_then(|text| text.parse().ok());
    count.ok_or_else(|| TuneError::Measurement(format!("/{file} cannot be read")))
}

fn connected(to: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, STALLED)?;
    stream.set_write_timeout(Some(STALLED))?;
    stream.set_read_timeout(Some(STALLED))?;
    Ok(stream)
}

/// Bytes that arrived there, and the time from the first write until the far end had all.
fn there(to: SocketAddr, duration: Duration) -> io::Result<(u64, Duration)> {
    let (mut stream, started) = (connected(to)?, Instant::now());
    let sent = send(&mut stream, duration)?;
    if stream.read(&mut [0; 1])? > 0 {
        return Err(io::Error::other(
            "it answers, so it is no sink: `testudo tune sink` at the far end is one",
        ));
    }
    Ok((sent, started.elapsed()))
}

/// Bytes that came from there, and the time from the request until all had come.
fn back(to: SocketAddr, duration: Duration) -> io::Result<(u64, Duration)> {
    let (mut stream, started) = (connected(to)?, Instant::now());
    let milliseconds = u32::try_from(duration.as_millis()).unwrap_or(u32::MAX);
    stream.write_all(&[&GET[..], &milliseconds.to_be_bytes()].concat())?;
    stream.shutdown(Shutdown::Write)?;
    let (mut block, mut received) = (vec![0; BLOCK_BYTES], 0_u64);
    loop {
        match stream.read(&mut block)? {
            0 => return Ok((received, started.elapsed())),
            bytes => received = received.saturating_add(count(bytes)?),
        }
    }
}

/// Sends zeros for so long, and the end; how many.
fn send(stream: &mut TcpStream, duration: Duration) -> io::Result<u64> {
    let (block, started, mut sent) = (vec![0; BLOCK_BYTES], Instant::now(), 0_u64);
    while started.elapsed() < duration {
        sent = sent.saturating_add(count(stream.write(&block)?)?);
    }
    stream.shutdown(Shutdown::Write)?;
    Ok(sent)
}

fn count(bytes: usize) -> io::Result<u64> {
    u64::try_from(bytes).map_err(io::Error::other)
}

/// Takes streams, one after the other, and drops what comes, or sends one back where that is asked for, until
/// accepting has failed for long.
///
/// # Errors
/// What accepting failed with last.
pub fn sink(listener: &TcpListener) -> io::Result<()> {
    take(|| listener.accept().map(|(stream, _)| stream), thread::sleep)
}

/// The same with what accepts, and what waits before it accepts again.
fn take(mut accept: impl FnMut() -> io::Result<TcpStream>, wait: impl Fn(Duration)) -> io::Result<()> {
    let (mut block, mut failures) = (vec![0; BLOCK_BYTES], 0);
    loop {
        // Errors are of one connection that has gone, or pass when others end (accept(2)).
        let mut stream = match accept() {
            Ok(stream) => stream,
            Err(error) if failures == MOST_FAILURES => return Err(error),
            Err(_) => {
                failures += 1;
                wait(AGAIN);
                continue;
            }
        };
        failures = 0;
        // A stream that ends with an error ends for the other end, too.
        let _ = serve(&mut stream, &mut block);
    }
}

/// One stream of a sink.
fn serve(stream: &mut TcpStream, block: &mut [u8]) -> io::Result<()> {
    stream.set_read_timeout(Some(STALLED))?;
    stream.set_write_timeout(Some(STALLED))?;
    let mut first = [0; GET.len() + TIME_BYTES];
    let mut have = 0;
    while have < first.len() {
        match stream.read(&mut first[have..])? {
            0 => return Ok(()),
            bytes => have += bytes,
        }
    }
    if let Some(time) = wanted(&first) {
        send(stream, time)?;
    }
    while stream.read(block)? > 0 {}
    Ok(())
}

/// For how long a stream that begins like this wants one back.
fn wanted(first: &[u8; GET.len() + TIME_BYTES]) -> Option<Duration> {
    let milliseconds = first.strip_prefix(&GET)?.first_chunk::<TIME_BYTES>()?;
    Some(Duration::from_millis(u32::from_be_bytes(*milliseconds).into()).min(LONGEST))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::played::Machine;
    use std::cell::Cell;

    fn streams(rates: &[f64]) -> Streams {
        Streams::of(rates.to_vec()).unwrap()
    }

    #[test]
    fn a_difference_counts_only_beyond_the_spread() {
        let before = streams(&[1.0, 1.2, 1.1]);
        assert_eq!((before.median, before.least, before.most), (1.1, 1.0, 1.2));
        assert_eq!(verdict(&before, &streams(&[1.3, 1.21, 2.0])), Verdict::Faster);
        assert_eq!(verdict(&before, &streams(&[0.9, 0.5])), Verdict::Slower);
        for overlapping in [&[1.2, 3.0, 3.0][..], &[0.1, 0.1, 1.0], &[1.1], &[0.5, 2.0]] {
            assert_eq!(verdict(&before, &streams(overlapping)), Verdict::NoDifferenceBeyondTheSpread);
        }
        assert_eq!(streams(&[1.0, 4.0, 2.0, 3.0]).median, 2.5);
        assert_eq!(Streams::of(Vec::new()), None);
    }

    /// A stream's bytes are those that its sink has read, and its time is that in which it did.
    #[test]
    fn goodput_is_of_what_the_sink_has_read_in_the_time_until_it_had_all() {
        assert_eq!(gbit_s(1_250_000_000, Duration::from_secs(1)), 10.0);
        assert_eq!(gbit_s(125_000, Duration::from_millis(2)), 0.5);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let sink = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            io::copy(&mut stream, &mut io::sink()).unwrap()
        });
        let (least, begun) = (Duration::from_millis(20), Instant::now());
        let (sent, took) = there(to, least).unwrap();
        let most = begun.elapsed();
        assert_eq!(sink.join().unwrap(), sent);
        assert!(sent > 0 && (least..=most).contains(&took), "{took:?} of {most:?}");
    }

    /// A sink that sends back, and one that does not know how.
    #[test]
    fn what_comes_back_is_measured_where_the_sink_sends_it_and_for_no_longer_than_an_hour() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        thread::spawn(move || sink(&listener));
        let (least, begun) = (Duration::from_millis(20), Instant::now());
        let (received, took) = back(to, least).unwrap();
        assert!(received > 0 && (least..=begun.elapsed()).contains(&took), "{received} in {took:?}");
        let of = |milliseconds: u32| {
            let first = [&GET[..], &milliseconds.to_be_bytes()].concat();
            wanted(<&[u8; GET.len() + TIME_BYTES]>::try_from(&first[..]).unwrap())
        };
        assert_eq!((of(7), of(u32::MAX)), (Some(Duration::from_millis(7)), Some(LONGEST)));
        assert_eq!(wanted(&[0; GET.len() + TIME_BYTES]), None);

        let discard = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = discard.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = discard.accept().unwrap();
            io::copy(&mut stream, &mut io::sink()).unwrap();
        });
        let machine = Machine::new();
        machine.put("sys/class/net/eth0/statistics/rx_bytes", "5");
        assert_eq!(measure(&machine.system("eth0"), &load(to), Way::Back).unwrap(), None);
    }

    fn load(to: SocketAddr) -> Load {
        Load { to, streams: 2, each: Duration::from_millis(20) }
    }

    /// A connection that goes before it is accepted, or a process that has no file left for it, ends no sink.
    #[test]
    fn a_sink_goes_on_after_errors_of_accepting_that_pass() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        // Each time all errors but one that a sink bears, then a stream.
        let (calls, streams) = (Cell::new(0), Cell::new(0));
        let accept = || {
            calls.set(calls.get() + 1);
            if streams.get() == 2 || calls.get() % (MOST_FAILURES + 1) > 0 {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            let mut sent = TcpStream::connect(to)?;
            let (taken, _) = listener.accept()?;
            sent.write_all(b"dropped")?;
            sent.shutdown(Shutdown::Write)?;
            streams.set(streams.get() + 1);
            Ok(taken)
        };
        let waited = Cell::new(Duration::ZERO);
        let error = take(accept, |time| waited.set(waited.get() + time)).unwrap_err();
        assert_eq!((error.kind(), streams.get()), (io::ErrorKind::ConnectionAborted, 2));
        assert_eq!((calls.get(), waited.get()), (3 * (MOST_FAILURES + 1), AGAIN * (3 * MOST_FAILURES)));
    }

    /// The played interface counts nothing, so the streams over loopback have not gone by it.
    #[test]
    fn streams_that_took_another_way_are_no_measurement() {
        let machine = Machine::new();
        machine.put("sys/class/net/eth0/statistics/tx_bytes", "5");
        machine.put("sys/class/net/eth0/statistics/rx_bytes", "5");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        thread::spawn(move || sink(&listener));
        for (way, told) in [(Way::There, "and 0 left by eth0"), (Way::Back, "and 0 came by eth0")] {
            let error = measure(&machine.system("eth0"), &load(to), way).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
    }

    #[test]
    fn who_answers_is_no_sink_and_who_does_not_listen_neither() {
        let machine = Machine::new();
        machine.put("sys/class/net/eth0/statistics/tx_bytes", "5");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"hello").unwrap();
            let _ = io::copy(&mut stream, &mut io::sink());
        });
        let error = measure(&machine.system("eth0"), &load(to), Way::There).unwrap_err().to_string();
        assert!(error.contains("it is no sink"), "{error}");
        server.join().unwrap();
        let error = measure(&machine.system("eth0"), &load(to), Way::There).unwrap_err().to_string();
        assert!(error.contains("refused"), "{error}");
    }
}
