//! Receiving from raw ESP sockets: one datagram per message, many messages per call.

use crate::header::Outer;
use crate::kernel::{Incoming, MessageSocket};
use crate::open::Endpoint;
use crate::udp_receive::Received;
use arrayvec::ArrayVec;
use std::io::{self, IoSliceMut};
use testudo_packet::{BATCH_SIZE, Batch, Buffer, DropReason, Pool};

/// Fills `batch` once from the socket; datagrams that do not fit stay in the kernel's queue.
///
/// # Errors
/// Those of recvmmsg(2).
pub(crate) fn receive(
    socket: &impl MessageSocket,
    endpoint: &Endpoint,
    pool: &mut Pool,
    batch: &mut Batch,
    done: &mut Received,
) -> io::Result<()> {
    let packet_bytes = pool.packet_bytes();
    let room = batch.remaining_capacity();
    let mut staged = Batch::new();
    pool.pop_many(room, &mut staged);
    if staged.is_empty() {
        return Ok(());
    }
    let mut incoming = ArrayVec::new();
    let outcome = receive_into(socket, &mut staged, packet_bytes, &mut incoming);
    let before = done.packets;
    let mut buffers = staged.drain(..);
    for (message, mut buffer) in incoming.iter().zip(buffers.by_ref()) {
        match complete(message, endpoint, packet_bytes, &mut buffer) {
            Ok(()) => {
                done.packets += 1;
                done.bytes += buffer.len() as u64;
                batch.push(buffer);
            }
            Err(reason) => pool.discard(buffer, reason),
        }
    }
    buffers.for_each(|buffer| pool.recycle(buffer));
    done.calls += u64::from(done.packets > before);
    outcome
}

fn receive_into(
    socket: &impl MessageSocket,
    staged: &mut Batch,
    packet_bytes: usize,
    received: &mut ArrayVec<Incoming, BATCH_SIZE>,
) -> io::Result<()> {
    let mut slices: ArrayVec<[IoSliceMut<'_>; 1], BATCH_SIZE> = staged
        .iter_mut()
        .map(|buffer| [IoSliceMut::new(&mut buffer.receive_area()[..packet_bytes])])
        .collect();
    let mut messages: ArrayVec<&mut [IoSliceMut<'_>], BATCH_SIZE> =
        slices.iter_mut().map(|slice| &mut slice[..]).collect();
    socket.receive_many(&mut messages, received)
}

/// Makes a whole datagram of a message: IPv4 delivers it whole, IPv6 without its header (RFC 3542 3).
fn complete(
    message: &Incoming,
    endpoint: &Endpoint,
    packet_bytes: usize,
    buffer: &mut Buffer,
) -> Result<(), DropReason> {
    if message.cut || message.bytes > packet_bytes {
        return Err(DropReason::ReceiveTruncated);
    }
    buffer.set_len(message.bytes);
    if endpoint.local.is_ipv4() {
        return Ok(());
    }
    let outer = Outer {
        source: message.source.ok_or(DropReason::BadHeader)?,
        destination: message.about.destination.unwrap_or(endpoint.local),
        destination_port: None,
        traffic_class: message.about.traffic_class,
    };
    outer.synthesize(message.bytes).ok_or(DropReason::BadHeader)?.prepend_to(buffer)
}
