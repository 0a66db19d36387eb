//! Receiving, checking and transmitting on threads of their own.
//!
//! A worker and an I/O thread share rings as a driver and a NIC do: the worker posts empty buffers of its
//! pool, the thread fills them, and those that the worker sends come back once they left. All rings are
//! bounded, and carry bursts.
//!
//! ```text
//!              ┌ posted ◄─ worker ─► sent ┐                    ┌ posted ◄─ worker ─► sent ┐
//!   generator ─┤  (thread)                ├─ copied (thread) ──┤                          ├─► sink (thread)
//!              └ filled ─► worker         └ done ─► worker     └ filled ─► worker         ┘
//! ```

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};

use testudo_packet::{BATCH_SIZE, Batch, Buffer, DropReason, Pool, Port, PortCounters, PortError};
use testudo_wire::ParseError;
use testudo_wire::ip::IpHeader;

use super::timing::Busy;
use crate::bench::threads::bind;
use crate::generator::{FeedPort, ReturnPort};

/// Packets that are handed over at once.
const BURST: usize = 32;
/// After so many polls without a packet a thread lets others have a processor that is shared.
const IDLE_POLLS: u32 = 64;
/// Bursts in each direction of a ring.
const BURSTS: usize = 16;

/// What passes: whole IP packets with a right header checksum, to hosts of one network.
#[derive(Debug, Clone, Copy)]
pub(super) struct Filter {
    network: u32,
    mask: u32,
}

impl Filter {
    /// To hosts of this network, with a prefix of so many bits.
    pub(super) fn to(network: Ipv4Addr, length: u8) -> Self {
        let mask = u32::MAX.checked_shl(u32::BITS.saturating_sub(length.into())).unwrap_or(0);
        Self { network: network.to_bits() & mask, mask }
    }

    /// Why a packet does not pass.
    fn refuses(self, packet: &[u8]) -> Option<DropReason> {
        match IpHeader::parse(packet).map(|header| header.destination) {
            Ok(IpAddr::V4(address)) if address.to_bits() & self.mask == self.network => None,
            Ok(_) => Some(DropReason::NoPolicy),
            Err(ParseError::NotIp) => Some(DropReason::NotIp),
            Err(ParseError::Truncated) => Some(DropReason::Truncated),
            Err(ParseError::BadHeader) => Some(DropReason::BadHeader),
            Err(ParseError::BadChecksum) => Some(DropReason::BadChecksum),
        }
    }
}

/// A port whose packets the worker itself checks and filters: the same work as on an I/O thread.
pub(super) struct Checked<P> {
    port: P,
    filter: Filter,
}

impl<P: Port> Checked<P> {
    pub(super) fn new(port: P, filter: Filter) -> Self {
        Self { port, filter }
    }

    #[cold]
    fn drop_refused(&self, batch: &mut Batch, from: usize, pool: &mut Pool) {
        let received: Vec<Buffer> = batch.drain(from..).collect();
        for buffer in received {
            match self.filter.refuses(buffer.bytes()) {
                None => batch.push(buffer),
                Some(reason) => pool.discard(buffer, reason),
            }
        }
    }
}

impl<P: Port> Port for Checked<P> {
    fn name(&self) -> &str {
        self.port.name()
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let from = batch.len();
        let received = self.port.rx(pool, batch)?;
        if batch[from..].iter().any(|buffer| self.filter.refuses(buffer.bytes()).is_some()) {
            self.drop_refused(batch, from, pool);
            return Ok(batch.len() - from);
        }
        Ok(received)
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        self.port.tx(pool, batch)
    }

    fn joins(&self) -> bool {
        self.port.joins()
    }

    fn counters(&self) -> PortCounters {
        self.port.counters()
    }
}

/// Buffers of which the first so many are packets.
struct Filled {
    buffers: Vec<Buffer>,
    packets: usize,
}

/// What I/O threads and their worker tell each other.
#[derive(Debug, Default)]
struct State {
    stop: AtomicBool,
    /// A thread has packets of the generator in hand.
    has_in_hand: AtomicBool,
    /// Bursts that the worker sent and that have not left.
    leaving: AtomicUsize,
    /// Packets that did not pass the filter.
    refused: AtomicUsize,
}

/// The worker's end where packets come in.
pub(super) struct InPort {
    posted: SyncSender<Vec<Buffer>>,
    filled: Receiver<Filled>,
    /// Packets that were taken out of the ring and had no room in a batch, and empty buffers after them.
    current: Filled,
    /// Bursts that the thread has, or that wait for the worker.
    in_ring: usize,
    counters: PortCounters,
}

/// The worker's end where they go out.
pub(super) struct OutPort {
    sent: SyncSender<Vec<Buffer>>,
    done: Receiver<Vec<Buffer>>,
    state: Arc<State>,
    /// Bursts that were sent and did not come back.
    in_ring: usize,
    spare: Vec<Vec<Buffer>>,
    counters: PortCounters,
}

/// The thread's end where packets go in.
struct Inward {
    posted: Receiver<Vec<Buffer>>,
    filled: SyncSender<Filled>,
    hand: Option<Filled>,
}

/// The thread's end where they come out.
struct Outward {
    sent: Receiver<Vec<Buffer>>,
    done: SyncSender<Vec<Buffer>>,
    state: Arc<State>,
    /// A burst, and how many of its packets have left.
    hand: Option<(Vec<Buffer>, usize)>,
}

fn ring_in() -> (InPort, Inward) {
    let (posted, empty) = sync_channel(BURSTS);
    let (full, filled) = sync_channel(BURSTS);
    let (current, counters) = (Filled { buffers: Vec::new(), packets: 0 }, PortCounters::default());
    let port = InPort { posted, filled, current, in_ring: 0, counters };
    (port, Inward { posted: empty, filled: full, hand: None })
}

fn ring_out(state: &Arc<State>) -> (OutPort, Outward) {
    let (sent, leaving) = sync_channel(BURSTS);
    let (left, done) = sync_channel(BURSTS);
    let (counters, spare) = (PortCounters::default(), Vec::new());
    let port = OutPort { sent, done, state: Arc::clone(state), in_ring: 0, spare, counters };
    (port, Outward { sent: leaving, done: left, state: Arc::clone(state), hand: None })
}

impl InPort {
    /// Gives the thread as many empty buffers as the ring has room for.
    fn post(&mut self, pool: &mut Pool) {
        while self.in_ring < BURSTS {
            let mut buffers = std::mem::take(&mut self.current.buffers);
            buffers.reserve(BURST.saturating_sub(buffers.len()));
            while buffers.len() < BURST
                && let Some(buffer) = pool.pop()
            {
                buffers.push(buffer);
            }
            if buffers.is_empty() {
                return;
            }
            if let Err(TrySendError::Full(buffers) | TrySendError::Disconnected(buffers)) =
                self.posted.try_send(buffers)
            {
                return buffers.into_iter().for_each(|buffer| pool.recycle(buffer));
            }
            self.in_ring += 1;
        }
    }
}

impl Port for InPort {
    fn name(&self) -> &'static str {
        "I/O thread, in"
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        if self.current.packets == 0 {
            self.post(pool);
            let Ok(filled) = self.filled.try_recv() else { return Ok(0) };
            self.in_ring -= 1;
            self.current = filled;
        }
        let count = self.current.packets.min(batch.remaining_capacity());
        for buffer in self.current.buffers.drain(..count) {
            self.counters.rx_bytes += buffer.len() as u64;
            batch.push(buffer);
        }
        self.current.packets -= count;
        self.counters.rx_packets += count as u64;
        self.counters.rx_calls += u64::from(count > 0);
        Ok(count)
    }

    /// Nothing is for where packets come from.
    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let taken = batch.len();
        pool.recycle_all(batch);
        Ok(taken)
    }

    fn joins(&self) -> bool {
        false
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

impl OutPort {
    /// Takes back what has left.
    fn complete(&mut self, pool: &mut Pool) {
        while let Ok(mut buffers) = self.done.try_recv() {
            self.in_ring -= 1;
            buffers.drain(..).for_each(|buffer| pool.recycle(buffer));
            self.spare.push(buffers);
        }
    }
}

impl Port for OutPort {
    fn name(&self) -> &'static str {
        "I/O thread, out"
    }

    /// Nothing comes from there but buffers.
    fn rx(&mut self, pool: &mut Pool, _: &mut Batch) -> Result<usize, PortError> {
        self.complete(pool);
        Ok(0)
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        self.complete(pool);
        let count = batch.len();
        if count == 0 || self.in_ring == BURSTS {
            return Ok(0);
        }
        let mut burst = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(BATCH_SIZE));
        burst.extend(batch.drain(..).inspect(|buffer| self.counters.tx_bytes += buffer.len() as u64));
        self.state.leaving.fetch_add(1, Ordering::AcqRel);
        if self.sent.try_send(burst).is_err() {
            let (port, what) = (self.name().to_owned(), "has ended".to_owned());
            return Err(PortError { port, what, source: None });
        }
        self.in_ring += 1;
        self.counters.tx_packets += count as u64;
        self.counters.tx_calls += 1;
        Ok(count)
    }

    fn joins(&self) -> bool {
        false
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

impl Inward {
    /// The burst that is being filled; `None` while the worker has posted none.
    fn open(&mut self) -> Option<&mut Filled> {
        if self.hand.is_none() {
            self.hand = self.posted.try_recv().ok().map(|buffers| Filled { buffers, packets: 0 });
        }
        self.hand.as_mut()
    }

    /// Hands over what is filled: of a burst that is full, or of any that has packets.
    fn hand_over(&mut self, if_full: bool) {
        let is_ready = |hand: &Filled| match if_full {
            true => hand.packets == hand.buffers.len(),
            false => hand.packets > 0,
        };
        if self.hand.as_ref().is_some_and(is_ready)
            && let Some(filled) = self.hand.take()
        {
            // There is room: no more bursts are under way than the ring has places.
            let _ = self.filled.try_send(filled);
        }
    }
}

impl Outward {
    /// The burst that is leaving.
    fn open(&mut self) -> Option<&mut (Vec<Buffer>, usize)> {
        if self.hand.is_none() {
            self.hand = self.sent.try_recv().ok().map(|buffers| (buffers, 0));
        }
        self.hand.as_mut()
    }

    /// All of the burst has left.
    fn close(&mut self) {
        if let Some((buffers, _)) = self.hand.take() {
            let _ = self.done.try_send(buffers);
            self.state.leaving.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// A part of the work of I/O.
enum Part {
    /// From the generator to a worker.
    Receive { feed: Box<FeedPort>, to: Inward, filter: Filter },
    /// From one gateway to the other, as over a wire.
    Carry { from: Outward, to: Inward, filter: Filter },
    /// From a worker to the sink.
    Transmit { from: Outward, sink: Box<ReturnPort> },
}

impl Part {
    /// Does what there is to do, a burst at most; returns how many packets moved.
    fn poll(&mut self, state: &State) -> usize {
        match self {
            Part::Receive { feed, to, filter } => receive(feed, to, *filter, state),
            Part::Carry { from, to, filter } => carry(from, to, *filter, state),
            Part::Transmit { from, sink } => {
                let Some((buffers, _)) = from.open() else { return 0 };
                let (now_ns, count) = (sink.now_ns(), buffers.len());
                buffers.iter().for_each(|buffer| sink.take(buffer.bytes(), now_ns));
                from.close();
                count
            }
        }
    }
}

fn receive(feed: &mut FeedPort, to: &mut Inward, filter: Filter, state: &State) -> usize {
    if !feed.has_offer() {
        return 0;
    }
    // Who sees that the generator's ring is empty sees this, too, until the worker can have the packets.
    state.has_in_hand.store(true, Ordering::Release);
    let mut moved = 0;
    if let Some(hand) = to.open() {
        while let Some(buffer) = hand.buffers.get_mut(hand.packets)
            && feed.fill(buffer)
        {
            moved += 1;
            match filter.refuses(buffer.bytes()) {
                None => hand.packets += 1,
                Some(_) => refuse(buffer, state),
            }
        }
    }
    to.hand_over(false);
    state.has_in_hand.store(false, Ordering::Release);
    moved
}

/// Counts a packet that does not pass, and empties its buffer.
#[cold]
fn refuse(buffer: &mut Buffer, state: &State) {
    buffer.set_len(0);
    state.refused.fetch_add(1, Ordering::Relaxed);
}

fn carry(from: &mut Outward, to: &mut Inward, filter: Filter, state: &State) -> usize {
    let mut moved = 0;
    let Some((buffers, left)) = from.open() else { return 0 };
    while let Some(packet) = buffers.get(*left).map(Buffer::bytes) {
        let Some(hand) = to.open() else { break };
        if let Some(buffer) = hand.buffers.get_mut(hand.packets) {
            let area = buffer.receive_area();
            let fits = packet.len().min(area.len());
            area[..fits].copy_from_slice(&packet[..fits]);
            buffer.set_len(fits);
            match filter.refuses(buffer.bytes()) {
                None => hand.packets += 1,
                Some(_) => refuse(buffer, state),
            }
            (*left, moved) = (*left + 1, moved + 1);
        }
        to.hand_over(true);
    }
    let is_done = *left == buffers.len();
    to.hand_over(false);
    if is_done {
        from.close();
    }
    moved
}

/// Threads that do the I/O of one or two gateways. Dropping them ends them.
pub(super) struct IoThreads {
    state: Arc<State>,
    threads: Vec<JoinHandle<()>>,
}

/// The ends of the generator and the sink, and what passes where.
pub(super) struct Ends {
    pub(super) feed: FeedPort,
    pub(super) sink: ReturnPort,
    /// At the first gateway, and at the second.
    pub(super) filters: [Filter; 2],
}

impl IoThreads {
    /// Starts a thread on each of these processors, for so many gateways in series, one or two; the ports of
    /// each gateway are for packets that come in and for those that go out.
    pub(super) fn start(
        ends: Ends,
        gateways: usize,
        processors: &[usize],
        busy: &Arc<Busy>,
        is_shared: bool,
    ) -> Result<(Self, Vec<(InPort, OutPort)>), String> {
        let state = Arc::<State>::default();
        let Ends { feed, sink, filters: [first, second] } = ends;
        let ((into, to), (out, from)) = (ring_in(), ring_out(&state));
        let mut parts = vec![Part::Receive { feed: Box::new(feed), to, filter: first }];
        let mut ports = Vec::new();
        if gateways == 1 {
            ports.push((into, out));
        } else {
            let ((right, to), (left, between)) = (ring_in(), ring_out(&state));
            parts.push(Part::Carry { from: between, to, filter: second });
            ports.extend([(into, left), (right, out)]);
        }
        parts.push(Part::Transmit { from, sink: Box::new(sink) });
        let count = processors.len().clamp(1, parts.len());
        let mut shares: Vec<Vec<Part>> = (0..count).map(|_| Vec::new()).collect();
        parts.into_iter().enumerate().for_each(|(number, part)| shares[number % count].push(part));
        let mut threads = Self { state, threads: Vec::new() };
        for (parts, processor) in shares.into_iter().zip(processors) {
            let (state, busy, processor) = (Arc::clone(&threads.state), Arc::clone(busy), *processor);
            let body = move || {
                bind(processor);
                serve(parts, &state, &busy, is_shared);
            };
            let thread = thread::Builder::new().name("lab-io".to_owned()).spawn(body);
            threads.threads.push(thread.map_err(|error| format!("no thread can be started: {error}"))?);
        }
        Ok((threads, ports))
    }

    /// Whether packets are with a thread, or on their way to one.
    pub(super) fn is_busy(&self) -> bool {
        self.state.has_in_hand.load(Ordering::Acquire) || self.state.leaving.load(Ordering::Acquire) > 0
    }

    /// Packets that did not pass a filter so far.
    pub(super) fn refused(&self) -> usize {
        self.state.refused.load(Ordering::Relaxed)
    }
}

impl Drop for IoThreads {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn serve(mut parts: Vec<Part>, state: &State, busy: &Busy, is_shared: bool) {
    let mut idle = 0_u32;
    while !state.stop.load(Ordering::Acquire) {
        let begun = busy.begin();
        let moved: usize = parts.iter_mut().map(|part| part.poll(state)).sum();
        if moved > 0 {
            busy.end(begun);
            idle = 0;
        } else if is_shared && idle >= IDLE_POLLS {
            idle = 0;
            thread::yield_now();
        } else {
            idle += 1;
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests;
