//! Receiving from UDP sockets: predictive scatter, so that each datagram of a GRO super-packet lands in its
//! own buffer.
//!
//! ```text
//!   while super-packets come, one recvmsg:      buffer 0    buffer 1   …  buffer n-1   tail
//!                                               [gso_size]  [gso_size]    [gso_size]   [rest]
//!   while single datagrams come, one recvmmsg:  16 × ( buffer, tail )
//! ```
//!
//! A spare iovec, the tail, catches bytes beyond the predicted layout, so nothing is ever truncated. After a
//! misprediction the bytes are gathered in a *relay*, and the datagrams cut from there: one copy.

use crate::header::{Content, Outer, Synthesized};
use crate::kernel::{Incoming, MessageSocket};
use crate::open::{Encapsulation, Endpoint};
use arrayvec::ArrayVec;
use std::io::{self, IoSliceMut};
use testudo_packet::{BATCH_SIZE, Batch, Buffer, DropReason, Pool};

/// Longer than any datagram or super-packet.
const DATAGRAM_BYTES: usize = 65_536;
/// Datagrams per recvmmsg call while they arrive singly.
const SINGLES: usize = 16;
/// After this many single datagrams, the next one is no longer predicted to be a super-packet.
const FORGET_AFTER: usize = 32;
/// Calls for one batch, bounded so that datagrams that are dropped cannot keep the worker here.
const MAX_CALLS: usize = BATCH_SIZE + 16;

/// The result of one call.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) calls: u64,
}

/// The state of receiving from one UDP socket.
pub(crate) struct UdpReceiver {
    /// Each is twice [`DATAGRAM_BYTES`] long: the tail, and before it room to prepend the buffer's part.
    /// Memory that is not used is never touched.
    relays: Vec<Vec<u8>>,
    guess: Option<Guess>,
    singles_in_a_row: usize,
    pending: ArrayVec<Pending, SINGLES>,
}

#[derive(Debug, Clone, Copy)]
struct Guess {
    gso_size: usize,
    segments: usize,
}

/// A super-packet in a relay that is not completely cut yet.
#[derive(Debug)]
struct Pending {
    relay: usize,
    at: usize,
    end: usize,
    gso_size: usize,
    outer: Outer,
}

impl UdpReceiver {
    pub(crate) fn new() -> Self {
        let relays = (0..SINGLES).map(|_| vec![0; 2 * DATAGRAM_BYTES]).collect();
        Self { relays, guess: None, singles_in_a_row: 0, pending: ArrayVec::new() }
    }

    /// Whether datagrams wait here, regardless of the socket's readiness.
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Fills `batch` from the socket; datagrams that do not fit stay there or here.
    ///
    /// # Errors
    /// Those of recvmsg(2), except that `WouldBlock` ends the batch. An error may follow packets that are in
    /// the batch.
    pub(crate) fn receive(
        &mut self,
        socket: &impl MessageSocket,
        endpoint: &Endpoint,
        pool: &mut Pool,
        batch: &mut Batch,
        done: &mut Received,
    ) -> io::Result<()> {
        self.cut_pending(pool, batch, done);
        let before = done.packets;
        for _ in 0..MAX_CALLS {
            let room = batch.remaining_capacity();
            let expected = self.guess.map_or(1, |g| g.segments);
            let is_enough = if done.packets == before { room > 0 } else { room >= expected };
            if self.has_pending() || !is_enough || pool.available() == 0 {
                return Ok(());
            }
            let packets = done.packets;
            let outcome = match self.guess {
                Some(guess) if guess.gso_size <= pool.frame_packet_bytes() => {
                    self.receive_super(guess, socket, endpoint, pool, batch, done)
                }
                _ => self.receive_singles(socket, endpoint, pool, batch, done),
            };
            self.cut_pending(pool, batch, done);
            done.calls += u64::from(done.packets > packets);
            match outcome {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                other => other?,
            }
        }
        Ok(())
    }

    /// Receives one message, predicted to be a super-packet like the last.
    fn receive_super(
        &mut self,
        guess: Guess,
        socket: &impl MessageSocket,
        endpoint: &Endpoint,
        pool: &mut Pool,
        batch: &mut Batch,
        done: &mut Received,
    ) -> io::Result<()> {
        let wanted = guess.segments.min(batch.remaining_capacity());
        let mut staged = Batch::new();
        pool.pop_many(wanted, &mut staged);
        let mut slices: ArrayVec<IoSliceMut<'_>, { BATCH_SIZE + 1 }> = staged
            .iter_mut()
            .map(|buffer| IoSliceMut::new(&mut buffer.receive_area()[..guess.gso_size]))
            .collect();
        slices.push(IoSliceMut::new(&mut self.relays[0][DATAGRAM_BYTES..]));
        let message = socket.receive(&mut slices);
        drop(slices);
        let outcome = message.map(|message| {
            if let Err((reason, packets)) =
                self.take_super(&message, guess, endpoint, &mut staged, pool, batch, done)
            {
                pool.count(reason, packets);
            }
        });
        staged.drain(..).for_each(|buffer| pool.recycle(buffer));
        outcome
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one call, each borrowed apart")]
    fn take_super(
        &mut self,
        message: &Incoming,
        guess: Guess,
        endpoint: &Endpoint,
        staged: &mut Batch,
        pool: &mut Pool,
        batch: &mut Batch,
        done: &mut Received,
    ) -> Result<(), (DropReason, u64)> {
        let (outer, gso_size) = self.accept(message, endpoint, pool.packet_bytes())?;
        let is_single = message.bytes <= gso_size;
        let is_as_foretold = gso_size == guess.gso_size || (is_single && message.bytes <= guess.gso_size);
        if !is_as_foretold {
            self.gather(guess, staged, message.bytes);
            self.pending.push(Pending { relay: 1, at: 0, end: message.bytes, gso_size, outer });
            return Ok(());
        }
        let segments = message.bytes.div_ceil(guess.gso_size).max(1);
        let in_place = segments.min(staged.len());
        let mut header = None;
        for (index, mut buffer) in staged.drain(..in_place).enumerate() {
            let length = (message.bytes - index * guess.gso_size).min(guess.gso_size);
            buffer.set_len(length);
            finish(&outer, &mut header, buffer, pool, batch, done);
        }
        if in_place < segments {
            let end = DATAGRAM_BYTES + message.bytes - in_place * guess.gso_size;
            self.pending.push(Pending { relay: 0, at: DATAGRAM_BYTES, end, gso_size, outer });
        }
        Ok(())
    }

    /// Receives up to [`SINGLES`] messages, each predicted to be a single datagram.
    fn receive_singles(
        &mut self,
        socket: &impl MessageSocket,
        endpoint: &Endpoint,
        pool: &mut Pool,
        batch: &mut Batch,
        done: &mut Received,
    ) -> io::Result<()> {
        let frame_bytes = pool.frame_packet_bytes();
        let wanted = batch.remaining_capacity().min(SINGLES);
        let mut staged = Batch::new();
        pool.pop_many(wanted, &mut staged);
        let mut messages = ArrayVec::new();
        let outcome = receive_into(socket, &mut staged, &mut self.relays, frame_bytes, &mut messages);
        let mut buffers = staged.drain(..);
        for (relay, (message, buffer)) in messages.iter().zip(buffers.by_ref()).enumerate() {
            if let Err((reason, packets)) =
                self.take_single(message, relay, endpoint, buffer, pool, batch, done)
            {
                pool.count(reason, packets);
            }
        }
        buffers.for_each(|buffer| pool.recycle(buffer));
        outcome
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one call, each borrowed apart")]
    fn take_single(
        &mut self,
        message: &Incoming,
        relay: usize,
        endpoint: &Endpoint,
        mut buffer: Buffer,
        pool: &mut Pool,
        batch: &mut Batch,
        done: &mut Received,
    ) -> Result<(), (DropReason, u64)> {
        let frame_bytes = pool.frame_packet_bytes();
        let accepted = self.accept(message, endpoint, pool.packet_bytes());
        // After a super-packet or a long datagram in the same call, later messages queue after it.
        let is_single = accepted.as_ref().is_ok_and(|(_, size)| message.bytes <= *size);
        let goes_on = is_single && message.bytes <= frame_bytes && self.pending.is_empty();
        if goes_on && let Ok((outer, _)) = accepted {
            buffer.set_len(message.bytes);
            finish(&outer, &mut None, buffer, pool, batch, done);
            return Ok(());
        }
        let outcome = accepted.map(|(outer, gso_size)| {
            let head = message.bytes.min(frame_bytes);
            let at = DATAGRAM_BYTES - head;
            self.relays[relay][at..DATAGRAM_BYTES].copy_from_slice(&buffer.receive_area()[..head]);
            self.pending.push(Pending { relay, at, end: at + message.bytes, gso_size, outer });
        });
        pool.recycle(buffer);
        outcome
    }

    /// Checks a message, updates the prediction, and returns the common part of its headers and the size of
    /// its datagrams.
    fn accept(
        &mut self,
        message: &Incoming,
        endpoint: &Endpoint,
        packet_bytes: usize,
    ) -> Result<(Outer, usize), (DropReason, u64)> {
        let gso_size = message.about.gro_size.unwrap_or(message.bytes).min(message.bytes).max(1);
        let segments = message.bytes.div_ceil(gso_size).max(1);
        self.learn(gso_size, segments);
        let outer = outer_of(message, endpoint).ok_or((DropReason::BadHeader, segments as u64))?;
        let is_cut = message.cut || message.bytes > DATAGRAM_BYTES;
        if is_cut || gso_size > packet_bytes {
            return Err((DropReason::ReceiveTruncated, segments as u64));
        }
        Ok((outer, gso_size))
    }

    fn learn(&mut self, gso_size: usize, segments: usize) {
        if segments > 1 {
            let before = self.guess.map_or(0, |g| g.segments);
            let segments = segments.max(before - before.div_ceil(8)).min(BATCH_SIZE);
            self.guess = Some(Guess { gso_size, segments });
            self.singles_in_a_row = 0;
        } else {
            self.singles_in_a_row += 1;
            if self.singles_in_a_row > FORGET_AFTER {
                self.guess = None;
            }
        }
    }

    /// Gathers the bytes of a scattered message at the start of relay 1.
    fn gather(&mut self, guess: Guess, staged: &mut Batch, bytes: usize) {
        let [source, target, ..] = &mut self.relays[..] else { return };
        let mut at = 0;
        for buffer in staged.iter_mut() {
            let length = guess.gso_size.min(bytes - at);
            target[at..at + length].copy_from_slice(&buffer.receive_area()[..length]);
            at += length;
        }
        target[at..bytes].copy_from_slice(&source[DATAGRAM_BYTES..DATAGRAM_BYTES + bytes - at]);
    }

    /// Cuts datagrams from relays while there are buffers, and room in the batch.
    fn cut_pending(&mut self, pool: &mut Pool, batch: &mut Batch, done: &mut Received) {
        while let Some(pending) = self.pending.first_mut() {
            let mut header = None;
            // A datagram without payload is also one.
            let mut is_first = pending.at == pending.end;
            while pending.at < pending.end || is_first {
                is_first = false;
                if batch.is_full() {
                    return;
                }
                let length = pending.gso_size.min(pending.end - pending.at);
                let Some(mut buffer) = pool.pop_for(length) else {
                    // A frame will be there soon. For a long buffer nobody waits: all others would, too.
                    if length <= pool.frame_packet_bytes() {
                        return;
                    }
                    pool.count(DropReason::PoolEmpty, 1);
                    pending.at += length;
                    continue;
                };
                let bytes = &self.relays[pending.relay][pending.at..pending.at + length];
                buffer.receive_area()[..length].copy_from_slice(bytes);
                buffer.set_len(length);
                pending.at += length;
                finish(&pending.outer, &mut header, buffer, pool, batch, done);
            }
            self.pending.remove(0);
        }
    }
}

fn receive_into(
    socket: &impl MessageSocket,
    staged: &mut Batch,
    relays: &mut [Vec<u8>],
    frame_bytes: usize,
    received: &mut ArrayVec<Incoming, SINGLES>,
) -> io::Result<()> {
    let mut slices: ArrayVec<[IoSliceMut<'_>; 2], SINGLES> = staged
        .iter_mut()
        .zip(relays)
        .map(|(buffer, relay)| {
            let area = &mut buffer.receive_area()[..frame_bytes];
            [IoSliceMut::new(area), IoSliceMut::new(&mut relay[DATAGRAM_BYTES..])]
        })
        .collect();
    let mut messages: ArrayVec<&mut [IoSliceMut<'_>], SINGLES> =
        slices.iter_mut().map(|slices| &mut slices[..]).collect();
    socket.receive_many(&mut messages, &mut [], received)
}

fn outer_of(message: &Incoming, endpoint: &Endpoint) -> Option<Outer> {
    let Encapsulation::Udp { port } = endpoint.encapsulation else { return None };
    Outer::of(message, endpoint, Content::Udp(port))
}

/// Writes the headers before a payload and delivers the packet. `header` caches them for the next payload of
/// the same length.
fn finish(
    outer: &Outer,
    header: &mut Option<Synthesized>,
    mut buffer: Buffer,
    pool: &mut Pool,
    batch: &mut Batch,
    done: &mut Received,
) {
    if header.as_ref().is_none_or(|h| h.payload_bytes != buffer.len()) {
        *header = outer.synthesize(buffer.len());
    }
    let prepended = header.as_ref().ok_or(DropReason::BadHeader).and_then(|h| h.prepend_to(&mut buffer));
    match prepended {
        Ok(()) => {
            done.packets += 1;
            done.bytes += buffer.len() as u64;
            batch.push(buffer);
        }
        Err(reason) => pool.discard(buffer, reason),
    }
}
