//! Accepts clients of a local service: a limited number at a time, each on its own thread and for a limited
//! time.
//!
//! ```text
//!   accept ──► a slot for service is free    ──► Admission::Serve   (its answer)
//!          └─► a slot for a refusal is free  ──► Admission::Refuse  (a short answer)
//!          └─► neither: the next one waits in the kernel's queue until one of those above has ended
//!          └─► an error (no descriptor left) ──► a pause, then again
//! ```
//!
//! Clients cannot use more descriptors or threads than there are slots, and a client that is refused gets an
//! answer that says so.

use super::fault::Fault;
use super::timed::Stream;
use std::io::{self, ErrorKind};
use std::net::{TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long nothing is accepted after an error: descriptors become free when clients end, and until then
/// every call fails at once.
const PAUSE: Duration = Duration::from_millis(200);

/// The source of clients.
pub(super) trait Listener: Send + 'static {
    type Stream: Stream;
    fn next(&self) -> io::Result<Self::Stream>;
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    fn next(&self) -> io::Result<UnixStream> {
        self.accept().map(|(stream, _)| stream)
    }
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    fn next(&self) -> io::Result<TcpStream> {
        self.accept().map(|(stream, _)| stream)
    }
}

/// What to do with a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// Serve it.
    Serve,
    /// Tell it that there are too many clients.
    Refuse,
}

/// Bounds of a service.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Clients served at the same time.
    pub(super) served: usize,
    /// Clients refused at the same time.
    pub(super) refused: usize,
}

/// Serves clients until the process ends. The accepting thread is called `name`; each client has its own
/// thread.
///
/// # Errors
/// The system has no thread left.
pub(super) fn serve<L: Listener>(
    name: &'static str,
    listener: L,
    limits: Limits,
    serve: impl Fn(L::Stream, Admission) + Send + Sync + 'static,
) -> io::Result<()> {
    let slots = Arc::new(Slots::new(limits));
    let serve = Arc::new(serve);
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        let start = |stream, slot: Slot| {
            let serve = Arc::clone(&serve);
            let client = move || {
                serve(stream, slot.admission);
                drop(slot);
            };
            thread::Builder::new().name(format!("{name}-client")).spawn(client).map(drop)
        };
        let mut fault = Fault::default();
        accept_all(&listener, &slots, start, |error| {
            if let Some(untold) = fault.occurs(Instant::now()) {
                tracing::warn!("{name}: a client could not be accepted: {error}{untold}");
            }
            thread::sleep(PAUSE);
            ControlFlow::Continue(())
        });
    })?;
    Ok(())
}

/// Accepts until `failed` breaks; it is called with each error that will not go away by itself.
fn accept_all<L: Listener>(
    listener: &L,
    slots: &Arc<Slots>,
    mut start: impl FnMut(L::Stream, Slot) -> io::Result<()>,
    mut failed: impl FnMut(io::Error) -> ControlFlow<()>,
) {
    loop {
        // A slot is chosen only when the client is there: others may become free in the meantime.
        match listener.next().and_then(|stream| start(stream, slots.wait())) {
            Ok(()) => {}
            // These errors concern one client that has gone; each costs it as much as us.
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
            Err(error) => {
                if failed(error).is_break() {
                    return;
                }
            }
        }
    }
}

/// The free slots.
#[derive(Debug)]
struct Slots {
    free: Mutex<Limits>,
    changed: Condvar,
}

/// A slot, held by a client until this is dropped.
#[derive(Debug)]
struct Slot {
    admission: Admission,
    slots: Arc<Slots>,
}

impl Slots {
    fn new(limits: Limits) -> Self {
        Self { free: Mutex::new(limits), changed: Condvar::new() }
    }

    fn free(&self) -> MutexGuard<'_, Limits> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a free slot and takes it.
    fn wait(self: &Arc<Self>) -> Slot {
        let mut free = self.free();
        while free.served == 0 && free.refused == 0 {
            free = self.changed.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
        let admission = if free.served > 0 { Admission::Serve } else { Admission::Refuse };
        *free.of(admission) -= 1;
        drop(free);
        Slot { admission, slots: Arc::clone(self) }
    }
}

impl Limits {
    fn of(&mut self, admission: Admission) -> &mut usize {
        match admission {
            Admission::Serve => &mut self.served,
            Admission::Refuse => &mut self.refused,
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        *self.slots.free().of(self.admission) += 1;
        self.slots.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::sync::mpsc::channel;

    const LIMITS: Limits = Limits { served: 2, refused: 1 };

    /// Has descriptors for this many clients and none for further ones.
    struct Exhausted {
        descriptors: Cell<usize>,
        asked: Cell<usize>,
    }

    impl Listener for Exhausted {
        type Stream = UnixStream;

        fn next(&self) -> io::Result<UnixStream> {
            self.asked.set(self.asked.get() + 1);
            match self.descriptors.get().checked_sub(1) {
                Some(left) => {
                    self.descriptors.set(left);
                    UnixStream::pair().map(|(near, _)| near)
                }
                None => Err(rustix::io::Errno::MFILE.into()),
            }
        }
    }

    #[test]
    fn without_descriptors_each_attempt_is_followed_by_a_pause() {
        let listener = Exhausted { descriptors: Cell::new(3), asked: Cell::new(0) };
        let (mut pauses, mut started) = (0, 0);
        let start = |_, _| {
            started += 1;
            Ok(())
        };
        accept_all(&listener, &Arc::new(Slots::new(LIMITS)), start, |error| {
            assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::MFILE.raw_os_error()));
            pauses += 1;
            if pauses == 5 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert_eq!((started, pauses, listener.asked.get()), (3, 5, 8));
    }

    #[test]
    fn a_thread_that_fails_to_start_is_followed_by_a_pause_and_frees_its_slot() {
        let listener = Exhausted { descriptors: Cell::new(9), asked: Cell::new(0) };
        let slots = Arc::new(Slots::new(LIMITS));
        let mut pauses = 0;
        accept_all(
            &listener,
            &slots,
            |_, _| Err(ErrorKind::WouldBlock.into()),
            |_| {
                pauses += 1;
                if pauses == 9 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            },
        );
        let free = slots.free();
        assert_eq!((free.served, free.refused), (LIMITS.served, LIMITS.refused));
    }

    #[test]
    fn clients_beyond_the_slots_are_refused_and_beyond_those_they_wait() {
        let slots = Arc::new(Slots::new(LIMITS));
        let mut taken: Vec<Slot> = (0..3).map(|_| slots.wait()).collect();
        let admissions: Vec<_> = taken.iter().map(|slot| slot.admission).collect();
        assert_eq!(admissions, [Admission::Serve, Admission::Serve, Admission::Refuse]);
        let (got, admission) = channel();
        let waiting = Arc::clone(&slots);
        let next = thread::spawn(move || got.send(waiting.wait().admission));
        assert!(admission.try_recv().is_err());
        taken.remove(0);
        assert_eq!(admission.recv(), Ok(Admission::Serve));
        next.join().unwrap().unwrap();
    }
}
