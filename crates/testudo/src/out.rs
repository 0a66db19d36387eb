//! Standard output, which may be a pipe that nobody reads any more: `testudo sa list | head -1` is no
//! failure.

use std::io::{ErrorKind, Write};

/// Writes text to standard output. Ends the program quietly where the reader has gone, and with a word where
/// the disk is full.
pub fn write(text: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(e) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        if e.kind() == ErrorKind::BrokenPipe {
            std::process::exit(0);
        }
        eprintln!("testudo: standard output: {e}");
        std::process::exit(1);
    }
}

/// `println!`, by way of [`write()`].
macro_rules! outln {
    () => { $crate::out::write("\n") };
    ($($arg:tt)*) => { $crate::out::write(&format!("{}\n", format_args!($($arg)*))) };
}
pub(crate) use outln;
