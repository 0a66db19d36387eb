//! A stream with one deadline for all that is read from it and written to it.
//!
//! A time-out for each call bounds nothing: who sends a byte before each ends is served for as long as it
//! likes.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// What is read, at most, of what a client still sends while it is told goodbye.
const MAX_DRAINED_BYTES: usize = 64 << 10;

/// A connected socket.
pub(super) trait Stream: Read + Write + Send + 'static {
    /// No read may take longer.
    fn limit_read(&self, limit: Duration) -> io::Result<()>;
    /// No write may take longer.
    fn limit_write(&self, limit: Duration) -> io::Result<()>;
    /// Tells the other end that nothing more comes.
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

    /// Gives it a little time to be told why it gets no answer, once its own may be over.
    pub(super) fn grant(&mut self, grace: Duration) {
        self.deadline = Instant::now() + grace;
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
    }

    /// Ends the connection so that the other end gets to read what was written: a socket that is closed
    /// before all that came was read resets the connection, and the last answer is lost with it.
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

/// The system says of a time-out that the call would block.
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
        self.stream.write(bytes).map_err(timed_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives and takes one byte with each call, without end.
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
    fn who_sends_or_reads_a_byte_at_a_time_is_cut_off_at_the_deadline() {
        let trickle = || Timed::new(Trickle, Duration::from_millis(20));
        let request = io::copy(&mut trickle(), &mut io::sink());
        assert_eq!(request.unwrap_err().kind(), ErrorKind::TimedOut);
        let answer = io::copy(&mut io::repeat(b'x'), &mut trickle());
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::TimedOut);
        trickle().finish();
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
