//! The host's end of the control channel; `tests/linux-peer/init` is the guest's.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::ShellOutput;

/// More than any test prints: a larger length means that the two ends are out of step.
const OUTPUT_LIMIT_BYTES: usize = 64 << 20;
const LINE_LIMIT_BYTES: usize = 4096;

/// Why no reply came.
#[derive(Debug)]
pub(super) enum ChannelError {
    /// The deadline passed.
    Late,
    /// The other end closed the channel.
    Closed,
    /// The bytes read are not a reply.
    Nonsense(String),
    Io(io::Error),
}

impl fmt::Display for ChannelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Late => f.write_str("no reply in time"),
            Self::Closed => f.write_str("the emulator has ended"),
            Self::Nonsense(line) => write!(f, "unexpected reply {line:?}"),
            Self::Io(error) => write!(f, "control channel: {error}"),
        }
    }
}

impl From<io::Error> for ChannelError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Self::Closed,
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::Late,
            _ => Self::Io(error),
        }
    }
}

/// A marker that no earlier reply can contain: unguessable and numbered.
pub(super) fn marker(count: u64) -> String {
    format!("{:016x}-{count}", RandomState::new().build_hasher().finish())
}

/// A stream of lines and counted bytes, read with deadlines.
pub(super) struct Channel {
    stream: UnixStream,
    /// Received but not yet consumed. Keeps a partial reply when a deadline interrupts it.
    pending: Vec<u8>,
}

impl Channel {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self { stream, pending: Vec::new() }
    }

    /// Has the guest run `script` for at most `limit_seconds`, and waits for the reply that carries `marker`.
    pub(super) fn command(
        &mut self,
        marker: &str,
        limit_seconds: u64,
        script: &str,
        deadline: Instant,
    ) -> Result<ShellOutput, ChannelError> {
        self.stream.set_write_timeout(Some(remaining(deadline)?))?;
        self.stream.write_all(format!("{marker} {limit_seconds} {}\n{script}", script.len()).as_bytes())?;
        loop {
            let line = self.line(deadline)?;
            let words: Vec<&str> = line.split(' ').collect();
            let numbers: Option<Vec<usize>> = words.iter().skip(1).map(|word| word.parse().ok()).collect();
            let Some([status, stdout, stderr]) = numbers.as_deref() else {
                return Err(ChannelError::Nonsense(line));
            };
            let (stdout, stderr) = (self.text(*stdout, deadline)?, self.text(*stderr, deadline)?);
            // A reply to a command that an earlier call gave up on is read and discarded.
            if words.first() == Some(&marker) {
                let status = u8::try_from(*status).map_err(|_| ChannelError::Nonsense(line.clone()))?;
                return Ok(ShellOutput { status, stdout, stderr });
            }
        }
    }

    /// The next line, without its newline.
    pub(super) fn line(&mut self, deadline: Instant) -> Result<String, ChannelError> {
        loop {
            if let Some(end) = self.pending.iter().position(|&byte| byte == b'\n') {
                let line = self.pending.drain(..=end).collect::<Vec<u8>>();
                return Ok(String::from_utf8_lossy(line.trim_ascii_end()).into_owned());
            }
            if self.pending.len() > LINE_LIMIT_BYTES {
                return Err(ChannelError::Nonsense("a line without end".to_owned()));
            }
            self.receive(deadline)?;
        }
    }

    fn text(&mut self, bytes: usize, deadline: Instant) -> Result<String, ChannelError> {
        if bytes > OUTPUT_LIMIT_BYTES {
            return Err(ChannelError::Nonsense(format!("{bytes} bytes of output")));
        }
        while self.pending.len() < bytes {
            self.receive(deadline)?;
        }
        Ok(String::from_utf8_lossy(&self.pending.drain(..bytes).collect::<Vec<u8>>()).into_owned())
    }

    fn receive(&mut self, deadline: Instant) -> Result<(), ChannelError> {
        let mut chunk = [0; 16384];
        self.stream.set_read_timeout(Some(remaining(deadline)?))?;
        match self.stream.read(&mut chunk) {
            Ok(0) => Err(ChannelError::Closed),
            Ok(length) => {
                self.pending.extend_from_slice(&chunk[..length]);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn remaining(deadline: Instant) -> Result<Duration, ChannelError> {
    // A timeout of zero would mean no timeout.
    deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()).ok_or(ChannelError::Late)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Channel, UnixStream) {
        let (host, guest) = UnixStream::pair().expect("a socket pair");
        (Channel::new(host), guest)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(30)
    }

    #[test]
    fn a_reply_is_cut_by_its_lengths_whatever_it_contains() {
        let (mut channel, mut guest) = pair();
        guest.write_all(b"m-1 7 9 3\nm-1 0 0 0err").expect("written");
        let output = channel.command("m-1", 1, "true", soon()).expect("a reply");
        let expected = ShellOutput { status: 7, stdout: "m-1 0 0 0".into(), stderr: "err".into() };
        assert_eq!(output, expected);
    }

    #[test]
    fn the_script_travels_with_its_length() {
        let (mut channel, mut guest) = pair();
        guest.write_all(b"m 0 0 0\n").expect("written");
        channel.command("m", 3, "echo a\necho b", soon()).expect("a reply");
        drop(channel);
        let mut sent = String::new();
        guest.read_to_string(&mut sent).expect("text");
        assert_eq!(sent, "m 3 13\necho a\necho b");
    }

    #[test]
    fn a_late_reply_to_an_earlier_command_is_skipped() {
        let (mut channel, mut guest) = pair();
        guest.write_all(b"old 0 4 0\nlatenew 1 1 0\nx").expect("written");
        assert_eq!(channel.command("new", 1, "", soon()).expect("a reply").stdout, "x");
    }

    #[test]
    fn nonsense_closing_and_silence_are_told_apart() {
        let (mut channel, mut guest) = pair();
        guest.write_all(b"Kernel panic - not syncing\n").expect("written");
        let nonsense = channel.command("m", 1, "", soon());
        assert!(matches!(nonsense, Err(ChannelError::Nonsense(_))), "{nonsense:?}");
        let late = channel.line(Instant::now() + Duration::from_millis(1));
        assert!(matches!(late, Err(ChannelError::Late)), "{late:?}");
        drop(guest);
        let closed = channel.line(soon());
        assert!(matches!(closed, Err(ChannelError::Closed)), "{closed:?}");
    }

    #[test]
    fn absurd_lengths_and_endless_lines_are_refused() {
        let (mut channel, mut guest) = pair();
        guest.write_all(b"m 0 99999999999 0\n").expect("written");
        assert!(matches!(channel.command("m", 1, "", soon()), Err(ChannelError::Nonsense(_))));
        guest.write_all(&[b'x'; 2 * LINE_LIMIT_BYTES]).expect("written");
        assert!(matches!(channel.line(soon()), Err(ChannelError::Nonsense(_))));
    }
}
