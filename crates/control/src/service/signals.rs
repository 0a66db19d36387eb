//! Signals that reload and end a gateway.

use super::news::News;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag::register_conditional_default;
use signal_hook::iterator::Signals;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;

/// Signals while a gateway starts. Reloads that are requested take place once it runs, where SIGHUP would
/// otherwise end the process, which systemd takes for an intended end. SIGTERM and SIGINT end it at once.
///
/// Their handlers are ours from the beginning: a device's compiler (LLVM, under OpenCL) has handlers of its
/// own, which put those back that were there before them and raise the signal again. That must not be the
/// system's, which ends the process at once.
#[derive(Debug)]
pub struct EarlySignals {
    signals: Signals,
    /// SIGTERM and SIGINT do what they do by default.
    is_starting: Arc<AtomicBool>,
}

impl EarlySignals {
    /// Catches signals from now on.
    ///
    /// # Errors
    /// The system refuses.
    pub fn catch() -> io::Result<Self> {
        let is_starting = Arc::new(AtomicBool::new(true));
        for signal in [SIGTERM, SIGINT] {
            register_conditional_default(signal, Arc::clone(&is_starting))?;
        }
        Ok(Self { signals: Signals::new([SIGHUP])?, is_starting })
    }

    /// Has a thread tell of them.
    ///
    /// # Errors
    /// The system refuses, or has no thread left.
    pub(super) fn watch(self, sender: SyncSender<News>) -> io::Result<()> {
        let Self { mut signals, is_starting } = self;
        for signal in [SIGTERM, SIGINT] {
            signals.add_signal(signal)?;
        }
        is_starting.store(false, Ordering::SeqCst);
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            for signal in signals.forever() {
                if sender.send(News::Signal(signal)).is_err() {
                    return;
                }
            }
        })?;
        Ok(())
    }
}
