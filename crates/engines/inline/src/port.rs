//! The port half: no marked packet leaves that the device would not seal.

use crate::nic::{Nic, Watched};
use crate::sessions::NOBODYS;
use crate::shape::has_its_length;
use std::os::fd::BorrowedFd;
use testudo_packet::{
    BATCH_SIZE, Batch, Buffer, DropReason, Interface, Mark, MarkKind, Pool, Port, PortCounters, PortError,
};

/// How often a call of `tx` gives the device packets: again only after it has lost sessions meanwhile.
const ROUNDS: usize = 4;

/// The port of a device that does cryptography as packets pass: around the device's own port. See the
/// [crate](crate).
pub struct InlinePort {
    port: Box<dyn Port>,
    nic: Nic,
}

impl InlinePort {
    pub(crate) fn new(port: Box<dyn Port>, nic: Nic) -> Self {
        Self { port, nic }
    }
}

/// Gives packets to a device, after all whose sessions have gone were sealed by software; returns how many
/// left. `ip_at` says where a packet's IP header is, and `send` is the device's `tx`.
pub(crate) fn send_secured(
    nic: &Nic,
    ip_at: impl Fn(&[u8]) -> Option<usize>,
    pool: &mut Pool,
    batch: &mut Batch,
    mut send: impl FnMut(&mut Pool, &mut Batch) -> Result<usize, PortError>,
) -> Result<usize, PortError> {
    let mut sent = 0;
    for _ in 0..ROUNDS {
        let (marks, watched) = secure(nic, &ip_at, pool, batch);
        if batch.is_empty() {
            return Ok(sent);
        }
        if marks == 0 {
            return Ok(sent + send(pool, batch)?);
        }
        let lost_before = pool.take_lost_marks();
        let result = send(pool, batch);
        if let Some(marks) = lost_before {
            nic.forget(&marks);
        }
        settle(nic, pool, batch, watched);
        sent += result?;
        let is_stuck = batch.first().is_some_and(|packet| packet.mark().is_to_be_sealed());
        if !is_stuck || !has_lost_sessions(nic, batch) {
            return Ok(sent);
        }
    }
    Ok(sent)
}

/// Seals in place what the device will not, and drops what cannot be sealed. How many packets are left to the
/// device, and the one that it is asked to show.
fn secure(
    nic: &Nic,
    ip_at: &impl Fn(&[u8]) -> Option<usize>,
    pool: &mut Pool,
    batch: &mut Batch,
) -> (u64, Option<Watched>) {
    let Some(first) = batch.iter().position(|packet| packet.mark().is_to_be_sealed()) else {
        return (0, None);
    };
    let mut shared = nic.lock();
    shared.notice_reset();
    let (mut marks, mut watched) = (0, None);
    // Adjacent packets tend to be of one session: it is looked up once, and their marks are counted together.
    let mut run = (0, 0);
    let mut at = first;
    while let Some(packet) = batch.get_mut(at) {
        if packet.mark().is_to_be_sealed() && run.1 > 0 && packet.mark().session() == run.0 {
            (marks, run.1) = (marks + 1, run.1 + 1);
        } else if packet.mark().is_to_be_sealed() {
            shared.unmark_for_now(run.0, std::mem::take(&mut run.1));
            let link_bytes = ip_at(packet.bytes()).unwrap_or(0);
            if !as_datagram(packet, link_bytes, |datagram| shared.secure(datagram)) {
                let lost = batch.remove(at);
                shared.unmark(lost.mark().session(), 1);
                drop_unsealed(lost, pool);
                continue;
            }
            if packet.mark().is_to_be_sealed() {
                if marks == 0
                    && let Some(datagram) = packet.bytes().get(link_bytes..)
                {
                    watched = shared.watch(datagram, packet.mark().session());
                }
                // Counted as gone; those that stay are counted again.
                run = (packet.mark().session(), 1);
                marks += 1;
            }
        }
        at += 1;
    }
    shared.unmark_for_now(run.0, run.1);
    (marks, watched)
}

/// Drops a packet whose mark is already off the books.
#[cold]
fn drop_unsealed(mut packet: Buffer, pool: &mut Pool) {
    packet.set_mark(Mark::NONE);
    pool.discard(packet, DropReason::NotSealed);
}

/// Lets `act` see a frame without its link-layer header.
fn as_datagram(packet: &mut Buffer, link_bytes: usize, act: impl FnOnce(&mut Buffer) -> bool) -> bool {
    if link_bytes == 0 {
        return act(packet);
    }
    let mut header = [0; 64];
    let Some(kept) = header.get_mut(..link_bytes) else { return false };
    kept.copy_from_slice(&packet.bytes()[..link_bytes]);
    let len = u32::try_from(packet.len()).unwrap_or(u32::MAX);
    packet.narrow(u32::try_from(link_bytes).unwrap_or(u32::MAX), len);
    let is_done = act(packet);
    packet.prepend(link_bytes).is_ok_and(|front| {
        front.copy_from_slice(kept);
        is_done
    })
}

/// Brings the books of marks up to date after the device took some packets.
fn settle(nic: &Nic, pool: &mut Pool, batch: &Batch, watched: Option<Watched>) {
    let mut shared = nic.lock();
    // Those that the device dropped have left the books already, as sealed.
    let lost = pool.take_lost_marks().map_or(0, |marks| marks.len());
    shared.counts.sealed = shared.counts.sealed.saturating_sub(u64::try_from(lost).unwrap_or(u64::MAX));
    let left = batch.iter().filter(|packet| packet.mark().is_to_be_sealed());
    left.for_each(|packet| shared.mark_again(packet.mark().session()));
    if let Some(watched) = watched {
        shared.compare(&watched);
    }
    shared.settle_marks();
}

/// Whether the device does not have the session of the packet that it did not take.
fn has_lost_sessions(nic: &Nic, batch: &Batch) -> bool {
    let mut shared = nic.lock();
    shared.notice_reset();
    let Some(mark) = batch.first().map(|packet| packet.mark()) else { return false };
    shared.notice_loss(mark.session());
    !shared.is_live(mark.session())
}

/// Takes received packets from a device: those whose length is in doubt lose the session of their mark, so
/// that software checks them. `ip_at` says where a packet's IP header is.
pub(crate) fn receive(
    nic: &Nic,
    ip_at: impl Fn(&[u8]) -> Option<usize>,
    batch: &mut Batch,
    receive: impl FnOnce(&mut Batch) -> Result<usize, PortError>,
) -> Result<usize, PortError> {
    let before = batch.len();
    let received = receive(batch);
    for packet in batch.iter_mut().skip(before) {
        if packet.mark().kind() == MarkKind::Opened {
            let datagram = packet.bytes().get(ip_at(packet.bytes()).unwrap_or(0)..);
            if !datagram.is_some_and(has_its_length) {
                packet.set_mark(Mark::opened_under(NOBODYS));
            }
        }
    }
    if batch.len() < BATCH_SIZE {
        nic.note_drained();
    }
    received
}

impl Port for InlinePort {
    fn name(&self) -> &str {
        self.port.name()
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let Self { port, nic } = self;
        receive(nic, |_| None, batch, |batch| port.rx(pool, batch))
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let Self { port, nic } = self;
        send_secured(nic, |_| None, pool, batch, |pool, batch| port.tx(pool, batch))
    }

    fn readiness(&self) -> Vec<BorrowedFd<'_>> {
        self.port.readiness()
    }

    fn joins(&self) -> bool {
        self.port.joins()
    }

    fn fragments_udp(&self) -> bool {
        self.port.fragments_udp()
    }

    fn seals_marked(&self) -> bool {
        true
    }

    fn interfaces(&self) -> usize {
        self.port.interfaces()
    }

    fn interface(&self, interface: Interface) -> Option<(&str, PortCounters)> {
        self.port.interface(interface)
    }

    fn exhausted(&self) -> bool {
        self.port.exhausted()
    }

    fn finish(&mut self) -> Result<(), PortError> {
        self.port.finish()
    }

    fn end(&mut self, pool: &mut Pool) {
        self.port.end(pool);
    }

    fn counters(&self) -> PortCounters {
        self.port.counters()
    }
}
