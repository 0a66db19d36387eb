//! Whether it helped: TCP streams through the interface before and after, and their spread.
//!
//! The far end takes what comes and says nothing ([`sink`], or any service of that kind); a stream is over
//! when it has closed the connection, so that what counts has arrived.
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

/// Streams one after the other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Where the sink is.
    pub to: SocketAddr,
    /// How many streams count; one more comes first and does not.
    pub streams: u32,
    /// How long each sends.
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

/// Sends the streams, and checks that they left by the interface.
///
/// # Errors
/// Nobody takes them, they stall, or they took another way.
pub fn measure(host: &dyn Host, load: &Load) -> Result<Streams, TuneError> {
    let failed = |error: io::Error| TuneError::Measurement(format!("a stream to {}: {error}", load.to));
    let sent_before = sent_bytes(host)?;
    let (mut rates, mut bytes) = (Vec::new(), 0_u64);
    for number in 0..=load.streams {
        let (sent, took) = stream(load.to, load.each).map_err(failed)?;
        bytes = bytes.saturating_add(sent);
        // The first one wakes caches and clocks.
        if number > 0 {
            rates.push(sent as f64 * 8e-9 / took.as_secs_f64());
        }
    }
    let left = sent_bytes(host)?.saturating_sub(sent_before);
    if left < bytes / 10 * 9 {
        let interface = host.interface();
        let what = format!("{bytes} bytes were sent to {}, and {left} left by {interface}", load.to);
        return Err(TuneError::Measurement(format!("{what}: name an address behind that interface")));
    }
    Streams::of(rates).ok_or_else(|| TuneError::Measurement("there was no stream".to_owned()))
}

fn sent_bytes(host: &dyn Host) -> Result<u64, TuneError> {
    let file = format!("sys/class/net/{}/statistics/tx_bytes", host.interface());
    let count = host.text(&file).and_then(|text| text.parse().ok());
    count.ok_or_else(|| TuneError::Measurement(format!("/{file} cannot be read")))
}

/// Bytes that arrived, and the time from the first write until the far end had all.
fn stream(to: SocketAddr, duration: Duration) -> io::Result<(u64, Duration)> {
    let mut stream = TcpStream::connect_timeout(&to, STALLED)?;
    stream.set_write_timeout(Some(STALLED))?;
    stream.set_read_timeout(Some(STALLED))?;
    let (block, started, mut sent) = (vec![0; BLOCK_BYTES], Instant::now(), 0_u64);
    while started.elapsed() < duration {
        let bytes = stream.write(&block)?;
        sent = sent.saturating_add(u64::try_from(bytes).map_err(io::Error::other)?);
    }
    stream.shutdown(Shutdown::Write)?;
    if stream.read(&mut [0; 1])? > 0 {
        return Err(io::Error::other(
            "it answers, so it is no sink: `testudo tune sink` at the far end is one",
        ));
    }
    Ok((sent, started.elapsed()))
}

/// Takes streams, one after the other, and drops what comes, until accepting has failed for long.
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
        if stream.set_read_timeout(Some(STALLED)).is_err() {
            continue;
        }
        // A stream that ends with an error ends for its sender, too.
        while stream.read(&mut block).is_ok_and(|bytes| bytes > 0) {}
    }
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

    /// The played interface sends nothing, so the streams over loopback have not left by it.
    #[test]
    fn streams_that_took_another_way_are_no_measurement() {
        let machine = Machine::new();
        machine.put("sys/class/net/eth0/statistics/tx_bytes", "5");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        thread::spawn(move || sink(&listener));
        let error = measure(&machine.system("eth0"), &load(to)).unwrap_err().to_string();
        assert!(error.contains("5 bytes") || error.contains("and 0 left by eth0"), "{error}");
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
        let error = measure(&machine.system("eth0"), &load(to)).unwrap_err().to_string();
        assert!(error.contains("it is no sink"), "{error}");
        server.join().unwrap();
        let error = measure(&machine.system("eth0"), &load(to)).unwrap_err().to_string();
        assert!(error.contains("refused"), "{error}");
    }
}
