//! The port of a twin: around any other port, which is its wire.

use crate::device::{State, Twin82599};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use testudo_packet::{BATCH_SIZE, Batch, Buffer, Mark, Pool, Port, PortCounters, PortError};

/// A port whose packets pass a [`Twin82599`].
pub struct TwinPort {
    wire: Box<dyn Port>,
    device: Twin82599,
    /// Sealed packets that the wire has not taken.
    leaving: Batch,
    /// Received packets whose status is late.
    late: VecDeque<Buffer>,
}

impl TwinPort {
    /// A port of `device` on this wire.
    #[must_use]
    pub fn new(device: Twin82599, wire: Box<dyn Port>) -> Self {
        Self { wire, device, leaving: Batch::new(), late: VecDeque::new() }
    }

    /// Sends what was sealed; whether all of it is gone.
    fn flush(&mut self, pool: &mut Pool) -> Result<bool, PortError> {
        if !self.leaving.is_empty() {
            self.wire.tx(pool, &mut self.leaving)?;
        }
        Ok(self.leaving.is_empty())
    }
}

/// Seals a packet that is about to leave; `false` if it has to stay.
fn seal(state: &mut State, packet: &mut Buffer) -> bool {
    let mark = packet.mark();
    if !mark.is_to_be_sealed() {
        return true;
    }
    if !state.seal(packet.bytes_mut(), mark.session()) {
        return false;
    }
    packet.set_mark(Mark::NONE);
    if state.happens(state.faults.wrong_seal)
        && let Some(last) = packet.bytes_mut().last_mut()
    {
        *last ^= 1;
    }
    if std::mem::take(&mut state.watches) {
        state.watched = Some(packet.bytes().to_vec());
    }
    true
}

/// Opens a packet that has come, and marks it.
fn open(state: &mut State, packet: &mut Buffer) {
    let faults = state.faults;
    let Some((place, session)) = state.find(packet.bytes()) else { return };
    if state.happens(faults.closed_as_opened) {
        return packet.set_mark(Mark::opened_under(session.number));
    }
    if state.happens(faults.opened_as_refused) {
        return packet.set_mark(Mark::refused_under(session.number));
    }
    let number = session.number;
    if !state.open(packet.bytes_mut(), place, session) {
        return packet.set_mark(Mark::refused_under(number));
    }
    if state.happens(faults.unmarked) {
        return;
    }
    let number = if state.happens(faults.other_session) { (number + 1) % Mark::SESSIONS } else { number };
    packet.set_mark(Mark::opened_under(number));
    let middle = packet.len() / 2;
    if state.happens(faults.wrong_text)
        && let Some(byte) = packet.bytes_mut().get_mut(middle)
    {
        *byte ^= 1;
    }
}

impl Port for TwinPort {
    fn name(&self) -> &str {
        self.wire.name()
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        // What the wire did not take goes on without being asked, as in a NIC's queue.
        self.flush(pool)?;
        let before = batch.len();
        let room = BATCH_SIZE - before;
        batch.extend(self.late.drain(..room.min(self.late.len())));
        if !self.late.is_empty() {
            return Ok(batch.len() - before);
        }
        let at = batch.len();
        let result = self.wire.rx(pool, batch);
        let mut guard = self.device.state();
        let state = &mut *guard;
        if state.happens(state.faults.receive_resets) {
            state.reset();
        }
        batch[at..].iter_mut().for_each(|packet| open(state, packet));
        if state.happens(state.faults.late) {
            self.late.extend(batch.drain(at..));
        }
        result.map(|_| batch.len() - before)
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let mut left = 0;
        while !batch.is_empty() && self.flush(pool)? {
            let mut guard = self.device.state();
            let state = &mut *guard;
            if state.happens(state.faults.busy) {
                break;
            }
            let reset_at = state.happens(state.faults.resets).then(|| state.random.usize(..=batch.len()));
            if state.happens(state.faults.lost_tables) {
                state.lose_sealing();
            }
            let mut sealed = 0;
            for (at, packet) in batch.iter_mut().enumerate() {
                if reset_at == Some(at) {
                    state.reset();
                }
                if !seal(state, packet) {
                    break;
                }
                sealed += 1;
            }
            drop(guard);
            if sealed == 0 {
                break;
            }
            left += sealed;
            self.leaving.extend(batch.drain(..sealed));
        }
        self.flush(pool)?;
        Ok(left)
    }

    fn readiness(&self) -> Vec<BorrowedFd<'_>> {
        self.wire.readiness()
    }

    fn joins(&self) -> bool {
        false
    }

    fn seals_marked(&self) -> bool {
        true
    }

    fn exhausted(&self) -> bool {
        self.wire.exhausted() && self.late.is_empty()
    }

    fn finish(&mut self) -> Result<(), PortError> {
        self.wire.finish()
    }

    fn counters(&self) -> PortCounters {
        self.wire.counters()
    }
}
