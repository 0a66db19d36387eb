//! The workers' threads: their names, the processors that they are bound to, their start and their end.

use super::daemon::DaemonError;
use super::news::{LostNotices, News};
use crate::processors;
use crate::store::MAX_WINDOW_BYTES;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::thread::JoinHandle;
use testudo_crypto::Engine;
use testudo_gateway::{
    Inbox, MeterParts, PortPair, Role, ServeError, SystemClock, TRANSMIT_THREAD, ThreadingModel, Worker,
    serve, transmit_apart, transmit_by_choice,
};
use testudo_ipsec::SaRef;
use testudo_packet::{Aside, Pool};

/// What one worker is made of.
pub struct WorkerParts {
    /// Which sides it takes packets from.
    pub role: Role,
    /// Its queues of the two ports.
    pub ports: PortPair,
    /// Its buffers.
    pub pool: Pool,
    /// Its engines in the order of placement.
    pub engines: Vec<Box<dyn Engine>>,
    /// If another thread transmits: ports at the same queues that send.
    pub senders: Option<Senders>,
    /// If what it measures decides of its threads: of which.
    pub chooses: Option<ChosenFrom>,
}

/// What the scheduler chooses threads from.
pub struct ChosenFrom {
    /// The engines on devices.
    pub devices: Vec<Arc<Aside>>,
    /// The model with the most threads that it may choose.
    pub most: ThreadingModel,
}

/// What a transmit thread is made of.
pub struct Senders {
    /// Ports that send what the worker's would, and receive nothing.
    pub ports: PortPair,
    /// The processor that the thread is bound to.
    pub processor: Option<usize>,
}

/// The ports of a worker, which hand what is to be sent to a transmit thread if there are `senders`; while
/// `aside` wants that, if it is given.
pub(super) fn with_senders(
    ports: PortPair,
    senders: Option<Senders>,
    aside: Option<Arc<Aside>>,
) -> io::Result<PortPair> {
    let Some(Senders { ports: senders, processor }) = senders else { return Ok(ports) };
    let first = move || processor.into_iter().for_each(|processor| bind(TRANSMIT_THREAD, &[processor]));
    match aside {
        Some(aside) => transmit_by_choice(ports, senders, aside, first),
        None => transmit_apart(ports, senders, first),
    }
}

/// Has the threads of a worker follow what it measures.
pub(super) fn choose_threads(worker: &mut Worker, from: ChosenFrom, transmit: Option<Arc<Aside>>) {
    let ChosenFrom { devices, most } = from;
    worker.choose_threads(MeterParts { devices, transmit, most, clock: Box::new(SystemClock::default()) });
}

/// The name of a worker's thread.
#[must_use]
pub fn thread_name(worker: usize) -> String {
    format!("worker-{worker}")
}

/// A worker returns from its thread in its final state, so that its replay windows can be saved.
type Ended = (Worker, Result<(), ServeError>);

/// All workers, running.
pub(super) struct WorkerThreads(Vec<JoinHandle<Ended>>);

impl WorkerThreads {
    /// Starts each worker on a thread of its own, which is bound to these processors, if there are any,
    /// before it touches a packet's memory ([`processors::places`]).
    ///
    /// # Errors
    /// The system has no thread left.
    pub(super) fn start(
        workers: Vec<(Worker, Inbox)>,
        places: &[Vec<usize>],
        clock: SystemClock,
        news: &SyncSender<News>,
        lost: &LostNotices,
    ) -> io::Result<Self> {
        let start = |(number, (mut worker, inbox)): (usize, (Worker, Inbox))| {
            let (mut tell, news) = (lost.teller(news.clone()), news.clone());
            let place = places.get(number).cloned().unwrap_or_default();
            std::thread::Builder::new().name(thread_name(number)).spawn(move || {
                bind("a worker", &place);
                let result = serve(&mut worker, &inbox, &clock, &mut tell);
                let _ = news.try_send(News::WorkerEnded);
                (worker, result)
            })
        };
        workers.into_iter().enumerate().map(start).collect::<io::Result<_>>().map(Self)
    }

    /// Whether a worker has ended: then the gateway does.
    pub(super) fn has_ended(&self) -> bool {
        self.0.iter().any(JoinHandle::is_finished)
    }

    /// Waits until all have ended.
    ///
    /// # Errors
    /// [`DaemonError::Panicked`]
    pub(super) fn join(self) -> Result<EndedWorkers, DaemonError> {
        let join = |(number, thread): (usize, JoinHandle<Ended>)| {
            thread.join().map_err(|_| DaemonError::Panicked(thread_name(number).into()))
        };
        // All of them first: one that panicked must not leave others that run.
        let ended: Vec<_> = self.0.into_iter().enumerate().map(join).collect();
        ended.into_iter().collect::<Result<_, _>>().map(EndedWorkers)
    }
}

/// Workers that have ended.
pub(super) struct EndedWorkers(Vec<Ended>);

impl EndedWorkers {
    /// The window of an SA from a peer, which the workers shared; of VPE the windows, as far as the store has
    /// room for them.
    pub(super) fn save_window(&self, inbound: SaRef) -> Option<Vec<u8>> {
        self.0.first()?.0.save_window_within(inbound, MAX_WINDOW_BYTES)
    }

    /// Says in the log what became of all packets: with several workers, of each one's.
    pub(super) fn tell_books(&self) {
        for (number, (worker, _)) in self.0.iter().enumerate() {
            let books = worker.books();
            match self.0.len() {
                1 => tracing::info!("packets: {books}"),
                _ => tracing::info!("packets of {}: {books}", thread_name(number)),
            }
        }
    }

    /// Frees the workers. Their SAs use no number any more.
    ///
    /// # Errors
    /// Why the first of those that failed did.
    pub(super) fn end(self) -> Result<(), ServeError> {
        let results: Vec<_> = self.0.into_iter().map(|(worker, result)| (drop(worker), result).1).collect();
        results.into_iter().collect()
    }
}

/// Binds this thread to these processors, if there are any.
fn bind(who: &str, place: &[usize]) {
    if place.is_empty() {
        return;
    }
    if let Err(error) = processors::bind(place) {
        let place = place.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        tracing::warn!(
            "{who} is not bound to processor {place}: {error}: under systemd this needs the drop-in testudo-workers.conf"
        );
    }
}
