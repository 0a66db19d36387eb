//! Accepts clients of a local service: a limited number at a time, each on a thread of its own and for a
//! limited time.
//!
//! ```text
//!   accept ──► a place to be served is free   ──► Admission::Serve     (its answer)
//!          └─► a place to be refused is free  ──► Admission::Refuse    (a short answer that says so)
//!          └─► neither: the next one waits in the kernel's queue until one of those above has ended
//!          └─► an error (no descriptor left)  ──► a pause, then again
//! ```
//!
//! Clients cannot take more descriptors or threads than there are places, and a client that is refused gets
//! an answer that says so.

use super::fault::Fault;
use super::timed::Stream;
use std::io::{self, ErrorKind};
use std::net::{TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long nothing is accepted after an error: descriptors come back when clients end, and until then every
/// call fails at once.
const PAUSE: Duration = Duration::from_millis(200);

/// What clients come to.
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

/// Serves clients until the process ends. The accepting thread is called `name`; each client has one of its
/// own.
///
/// # Errors
/// The system has no thread left.
pub(super) fn serve<L: Listener>(
    name: &'static str,
    listener: L,
    limits: Limits,
    serve: impl Fn(L::Stream, Admission) + Send + Sync + 'static,
) -> io::Result<()> {
    let places = Arc::new(Places::new(limits));
    let serve = Arc::new(serve);
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        let start = |stream, place: Place| {
            let serve = Arc::clone(&serve);
            let client = move || {
                serve(stream, place.admission);
                drop(place);
            };
            thread::Builder::new().name(format!("{name}-client")).spawn(client).map(drop)
        };
        let mut fault = Fault::default();
        accept_all(&listener, &places, start, |error| {
            if let Some(untold) = fault.occurs(Instant::now()) {
                tracing::warn!("{name}: a client could not be accepted: {error}{untold}");
            }
            thread::sleep(PAUSE);
            ControlFlow::Continue(())
        });
    })?;
    Ok(())
}

/// Accepts until `failed` breaks, which is called with each error that will not go away by itself.
fn accept_all<L: Listener>(
    listener: &L,
    places: &Arc<Places>,
    mut start: impl FnMut(L::Stream, Place) -> io::Result<()>,
    mut failed: impl FnMut(io::Error) -> ControlFlow<()>,
) {
    loop {
        // A place is chosen only when the client is there: others may end in the meantime.
        match listener.next().and_then(|stream| start(stream, places.wait())) {
            Ok(()) => {}
            // These errors concern one client that has gone, and cost it as much as us.
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
            Err(error) => {
                if failed(error).is_break() {
                    return;
                }
            }
        }
    }
}

/// Free places.
#[derive(Debug)]
struct Places {
    free: Mutex<Limits>,
    changed: Condvar,
}

/// A place, held by a client until this is dropped.
#[derive(Debug)]
struct Place {
    admission: Admission,
    places: Arc<Places>,
}

impl Places {
    fn new(limits: Limits) -> Self {
        Self { free: Mutex::new(limits), changed: Condvar::new() }
    }

    fn free(&self) -> MutexGuard<'_, Limits> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a place is free, and takes it.
    fn wait(self: &Arc<Self>) -> Place {
        let mut free = self.free();
        while free.served == 0 && free.refused == 0 {
            free = self.changed.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
        let admission = if free.served > 0 { Admission::Serve } else { Admission::Refuse };
        *free.of(admission) -= 1;
        drop(free);
        Place { admission, places: Arc::clone(self) }
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

impl Drop for Place {
    fn drop(&mut self) {
        *self.places.free().of(self.admission) += 1;
        self.places.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::sync::mpsc::channel;

    const LIMITS: Limits = Limits { served: 2, refused: 1 };

    /// Has a descriptor for each of so many clients, and none after that.
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
        accept_all(&listener, &Arc::new(Places::new(LIMITS)), start, |error| {
            assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::MFILE.raw_os_error()));
            pauses += 1;
            if pauses == 5 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert_eq!((started, pauses, listener.asked.get()), (3, 5, 8));
    }

    #[test]
    fn a_thread_that_cannot_be_had_is_followed_by_a_pause_and_gives_its_place_back() {
        let listener = Exhausted { descriptors: Cell::new(9), asked: Cell::new(0) };
        let places = Arc::new(Places::new(LIMITS));
        let mut pauses = 0;
        accept_all(
            &listener,
            &places,
            |_, _| Err(ErrorKind::WouldBlock.into()),
            |_| {
                pauses += 1;
                if pauses == 9 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            },
        );
        let free = places.free();
        assert_eq!((free.served, free.refused), (LIMITS.served, LIMITS.refused));
    }

    #[test]
    fn beyond_its_places_clients_are_refused_and_beyond_those_they_wait() {
        let places = Arc::new(Places::new(LIMITS));
        let mut taken: Vec<Place> = (0..3).map(|_| places.wait()).collect();
        let admissions: Vec<_> = taken.iter().map(|place| place.admission).collect();
        assert_eq!(admissions, [Admission::Serve, Admission::Serve, Admission::Refuse]);
        let (got, admission) = channel();
        let waiting = Arc::clone(&places);
        let next = thread::spawn(move || got.send(waiting.wait().admission));
        assert!(admission.try_recv().is_err());
        taken.remove(0);
        assert_eq!(admission.recv(), Ok(Admission::Serve));
        next.join().unwrap().unwrap();
    }
}
