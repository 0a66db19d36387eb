//! Frames that are ready and that no caller holds: questions and answers of the link layer, and packets that
//! waited.

use crate::device::FrameDevice;
use crate::framing::{Framing, Template};
use std::collections::VecDeque;
use testudo_packet::{Batch, Buffer, DropReason, Pool, PortError};
use testudo_wire::ethernet::MacAddress;

/// Frames that it holds at most, beside one batch: as many packets as may wait by default, and as many
/// questions and answers.
const MOST: usize = 256;

/// The frames, oldest first.
pub(crate) struct Outbox {
    framing: Framing,
    /// What the device has not taken yet; older than the queue.
    batch: Batch,
    queue: VecDeque<Buffer>,
}

impl Outbox {
    pub(crate) fn new(framing: Framing) -> Self {
        Self { framing, batch: Batch::new(), queue: VecDeque::with_capacity(MOST) }
    }

    pub(crate) fn framing(&self) -> &Framing {
        &self.framing
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.batch.is_empty() && self.queue.is_empty()
    }

    /// Frames a packet that is in a buffer.
    pub(crate) fn packet(&mut self, pool: &mut Pool, mut buffer: Buffer, template: &Template) {
        if self.queue.len() >= MOST {
            return pool.discard(buffer, DropReason::QueueFull);
        }
        match self.framing.put(template, &mut buffer) {
            Ok(()) => self.queue.push_back(buffer),
            Err(reason) => pool.discard(buffer, reason),
        }
    }

    /// Makes a frame around `payload`. Without a buffer for it, it is not made: who asked asks again.
    pub(crate) fn message(
        &mut self,
        pool: &mut Pool,
        destination: MacAddress,
        ether_type: u16,
        payload: &[u8],
    ) {
        if self.queue.len() >= MOST {
            return;
        }
        let Some(mut buffer) = pool.create(payload.len()) else { return };
        buffer.receive_area()[..payload.len()].copy_from_slice(payload);
        buffer.set_len(payload.len());
        let template = self.framing.template(destination, ether_type);
        self.packet(pool, buffer, &template);
    }

    /// All of it.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Buffer> {
        self.batch.drain(..).chain(self.queue.drain(..))
    }

    /// Hands the device what it takes.
    pub(crate) fn flush(&mut self, pool: &mut Pool, device: &mut dyn FrameDevice) -> Result<(), PortError> {
        while !self.is_empty() {
            let room = self.batch.remaining_capacity().min(self.queue.len());
            self.batch.extend(self.queue.drain(..room));
            if device.tx(pool, &mut self.batch)? == 0 {
                break;
            }
        }
        Ok(())
    }
}
