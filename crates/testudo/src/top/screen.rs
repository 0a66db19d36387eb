//! A terminal that the program draws on and then restores.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGWINCH};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The alternate screen, so that the terminal's content can be restored; no cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// Lines overwrite the previous ones, and the rest of each is cleared: clearing the screen first would
/// flicker.
const HOME: &str = "\x1b[H";
const CLEAR_TO_END_OF_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";
const CTRL_C: u8 = 3;
const CTRL_D: u8 = 4;

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// The time has passed.
    Time,
    /// The screen was resized, or a key without a meaning was pressed.
    Redraw,
    /// The user wants to leave.
    Quit,
}

/// A terminal that the program draws on. Dropping it restores the terminal.
pub struct Screen {
    /// The terminal's modes before; `None` if standard input is no terminal.
    keys: Option<Termios>,
    has_input: bool,
    is_over: Arc<AtomicBool>,
    signals: UnixStream,
}

impl Screen {
    /// Takes over the terminal of standard output.
    pub fn open() -> io::Result<Self> {
        let (signals, sender) = UnixStream::pair()?;
        signals.set_nonblocking(true)?;
        let is_over = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // Before the pipe, which wakes the thread that checks it.
            signal_hook::flag::register(signal, Arc::clone(&is_over))?;
        }
        for signal in [SIGINT, SIGTERM, SIGHUP, SIGWINCH] {
            signal_hook::low_level::pipe::register(signal, sender.try_clone()?)?;
        }
        let keys = tcgetattr(io::stdin()).ok();
        if let Some(saved) = &keys {
            let mut modes = saved.clone();
            // Raw keys without echo, Ctrl-C included: no signal may end us before the terminal is restored.
            modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
            tcsetattr(io::stdin(), OptionalActions::Now, &modes)?;
        }
        let screen = Self { has_input: keys.is_some(), keys, is_over, signals };
        write(ENTER)?;
        Ok(screen)
    }

    /// Columns and rows.
    pub fn size(&self) -> (usize, usize) {
        match tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
            _ => (80, 24),
        }
    }

    /// Shows lines, which must fit.
    pub fn draw(&self, lines: &[String]) -> io::Result<()> {
        // One write, and no line feed after the last line, which would scroll a full screen.
        let text: Vec<String> = lines.iter().map(|line| format!("{line}{CLEAR_TO_END_OF_LINE}")).collect();
        write(&format!("{HOME}{}{CLEAR_BELOW}", text.join("\r\n")))
    }

    /// Waits for a timeout, a key or a signal.
    pub fn wait(&mut self, duration: Duration) -> io::Result<Wake> {
        let (stdin, signals) = (io::stdin(), &self.signals);
        let mut fds = vec![PollFd::new(signals, PollFlags::IN)];
        if self.has_input {
            fds.push(PollFd::new(&stdin, PollFlags::IN));
        }
        let timeout = Timespec {
            tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: duration.subsec_nanos().into(),
        };
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) => return Ok(Wake::Time),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let has_key = fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
        // A signal's byte only wakes the thread; the flag says whether to quit.
        let _ = (&self.signals).read(&mut [0; 64]);
        if self.is_over.load(Ordering::Relaxed) || (has_key && self.is_told_to_leave()?) {
            return Ok(Wake::Quit);
        }
        Ok(Wake::Redraw)
    }

    fn is_told_to_leave(&mut self) -> io::Result<bool> {
        let mut keys = [0; 64];
        // `io::stdin` would buffer what it read, so it is not used.
        match rustix::io::read(io::stdin(), &mut keys) {
            Ok(0) | Err(rustix::io::Errno::IO) => self.has_input = false,
            Ok(n) => return Ok(keys[..n].iter().any(|key| [b'q', b'Q', CTRL_C, CTRL_D].contains(key))),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(false)
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

impl Drop for Screen {
    fn drop(&mut self) {
        // If the terminal is gone, there is nothing to restore.
        let _ = write(LEAVE);
        if let Some(saved) = &self.keys {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, saved);
        }
    }
}
