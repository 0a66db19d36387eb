//! Standard output, which may be a pipe that was closed: `testudo sa list | head -1` is no failure.

use std::io::{ErrorKind, Write};

/// Writes text to standard output. If the reader has closed the pipe, the program ends quietly; other errors,
/// such as a full disk, are printed.
pub fn write(text: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(e) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        if e.kind() == ErrorKind::BrokenPipe {
            std::process::exit(0);
        }
        write_error(&format!("testudo: standard output: {e}\n"));
        std::process::exit(1);
    }
}

/// `println!` through [`write()`].
macro_rules! outln {
    () => { $crate::out::write("\n") };
    ($($arg:tt)*) => { $crate::out::write(&format!("{}\n", format_args!($($arg)*))) };
}
pub(crate) use outln;

/// Writes text to standard error. What cannot be written is lost, and nothing else: no verb may fail because
/// the disk with its log is full, or change its exit code.
pub fn write_error(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// `eprintln!` without its panic, through [`write_error()`].
macro_rules! errln {
    ($($arg:tt)*) => { $crate::out::write_error(&format!("{}\n", format_args!($($arg)*))) };
}
pub(crate) use errln;
