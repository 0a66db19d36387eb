//! A stream with one deadline for all its reads and writes.
//!
//! A time-out per call bounds nothing: a client that sends a byte before each one expires is served
//! indefinitely.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Bytes of one call that writes, at most. A Unix socket takes more than that in parts, and may wait the
/// whole limit for each.
const MAX_PIECE_BYTES: usize = 32 << 10;
/// Bytes that are still read from a client after its answer, at most.
const MAX_DRAINED_BYTES: usize = 64 << 10;

/// A connected socket.
pub(super) trait Stream: Read + Write + Send + 'static {
    /// Limits the duration of each read.
    fn limit_read(&self, limit: Duration) -> io::Result<()>;
    /// Limits the duration of each write.
    fn limit_write(&self, limit: Duration) -> io::Result<()>;
    /// Signals the other end that no more data follows.
    fn end(&self) -> io::Result<()>;
}

impl Stream for UnixStream {
    fn limit_read(&self, limit: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(limit))
    }

    fn limit_write(&self, limit: Duration) -> io::Result<()> {
        self.set_write_timeout(Some(limit))
    }

    fn end(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

impl Stream for TcpStream {
    fn limit_read(&self, limit: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(limit))
    }

    fn limit_write(&self, limit: Duration) -> io::Result<()> {
        self.set_write_timeout(Some(limit))
    }

    fn end(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

/// A stream that ends with [`ErrorKind::TimedOut`] at its deadline.
#[derive(Debug)]
pub(super) struct Timed<S> {
    stream: S,
    deadline: Instant,
}

impl<S: Stream> Timed<S> {
    pub(super) fn new(stream: S, patience: Duration) -> Self {
        Self { stream, deadline: Instant::now() + patience }
    }

    /// Grants a little time to say why there is no answer, since the client's own time may be over.
    pub(super) fn grant(&mut self, grace: Duration) {
        self.deadline = Instant::now() + grace;
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
    }

    /// Ends the connection so that the other end can read what was written: closing a socket with unread
    /// input resets the connection, and the last answer is lost.
    pub(super) fn finish(mut self) {
        if self.stream.end().is_err() {
            return;
        }
        let (mut unread, mut buffer) = (MAX_DRAINED_BYTES, [0; 4096]);
        while unread > 0 {
            match self.read(&mut buffer) {
                Ok(0) => return,
                Ok(count) => unread = unread.saturating_sub(count),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }
}

/// The system reports a time-out as `WouldBlock`.
fn timed_out(error: io::Error) -> io::Error {
    if error.kind() == ErrorKind::WouldBlock { ErrorKind::TimedOut.into() } else { error }
}

impl<S: Stream> Read for Timed<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.limit_read(self.left()?)?;
        self.stream.read(buffer).map_err(timed_out)
    }
}

impl<S: Stream> Write for Timed<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.limit_write(self.left()?)?;
        let piece = &bytes[..bytes.len().min(MAX_PIECE_BYTES)];
        self.stream.write(piece).map_err(timed_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads and writes one byte per call, without end.
    struct Trickle;

    impl Read for Trickle {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            buffer[0] = b'x';
            Ok(1)
        }
    }

    impl Write for Trickle {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Ok(1)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Stream for Trickle {
        fn limit_read(&self, _: Duration) -> io::Result<()> {
            Ok(())
        }

        fn limit_write(&self, _: Duration) -> io::Result<()> {
            Ok(())
        }

        fn end(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_client_that_sends_or_reads_byte_by_byte_is_cut_off_at_the_deadline() {
        let trickle = || Timed::new(Trickle, Duration::from_millis(20));
        let request = io::copy(&mut trickle(), &mut io::sink());
        assert_eq!(request.unwrap_err().kind(), ErrorKind::TimedOut);
        let answer = io::copy(&mut io::repeat(b'x'), &mut trickle());
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::TimedOut);
        trickle().finish();
    }

    #[test]
    fn a_client_that_reads_a_long_answer_slowly_is_cut_off_at_the_deadline() {
        const PATIENCE: Duration = Duration::from_millis(200);
        let (client, server) = UnixStream::pair().unwrap();
        let reader = std::thread::spawn(move || {
            let (mut client, mut part) = (client, vec![0; 64 << 10]);
            // No single wait lasts as long as the deadline.
            while client.read(&mut part).is_ok_and(|count| count > 0) {
                std::thread::sleep(PATIENCE / 4);
            }
        });
        let written = Timed::new(server, PATIENCE).write_all(&vec![b'x'; 4 << 20]);
        assert_eq!(written.map_err(|error| error.kind()), Err(ErrorKind::TimedOut));
        reader.join().unwrap();
    }

    #[test]
    fn an_answer_arrives_although_the_request_was_not_read() {
        let (mut client, server) = UnixStream::pair().unwrap();
        client.write_all(&[b'x'; 5000]).unwrap();
        let server = std::thread::spawn(move || {
            let mut server = Timed::new(server, Duration::from_secs(60));
            server.write_all(b"no").unwrap();
            server.finish();
        });
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        drop(client);
        assert_eq!(answer, "no");
        server.join().unwrap();
    }
}
