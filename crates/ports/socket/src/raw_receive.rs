//! Receiving from raw sockets: one datagram per message, many messages per call.
//!
//! IPv4 gives whole datagrams, as they arrived. IPv6 gives what follows the headers, and these as control
//! data.

use crate::control::ControlArea;
use crate::extension_headers::ExtensionHeaders;
use crate::header::{Content, Outer};
use crate::kernel::{Incoming, MessageSocket};
use crate::open::Endpoint;
use crate::udp_receive::Received;
use arrayvec::ArrayVec;
use std::io::{self, IoSliceMut};
use testudo_packet::{BATCH_SIZE, Batch, Buffer, DropReason, Pool};
use testudo_wire::checksum;
use testudo_wire::ip::IPV4_HEADER_BYTES;

/// The state of receiving from one raw socket.
pub(crate) struct RawReceiver {
    /// One for each message of a call; none for IPv4.
    controls: Vec<ControlArea>,
}

impl RawReceiver {
    pub(crate) fn new(endpoint: &Endpoint) -> Self {
        let areas = if endpoint.local.is_ipv6() { BATCH_SIZE } else { 0 };
        Self { controls: vec![ControlArea::EMPTY; areas] }
    }

    /// Fills `batch` once from the socket; datagrams that do not fit stay in the kernel's queue.
    ///
    /// # Errors
    /// Those of recvmmsg(2).
    pub(crate) fn receive(
        &mut self,
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
        let outcome = receive_into(socket, &mut staged, packet_bytes, &mut self.controls, &mut incoming);
        let before = done.packets;
        let mut buffers = staged.drain(..);
        let mut controls = self.controls.iter();
        for (message, mut buffer) in incoming.iter().zip(buffers.by_ref()) {
            let control = controls.next().map_or(&[][..], ControlArea::bytes);
            match complete(message, control, endpoint, packet_bytes, &mut buffer) {
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
}

fn receive_into(
    socket: &impl MessageSocket,
    staged: &mut Batch,
    packet_bytes: usize,
    controls: &mut [ControlArea],
    received: &mut ArrayVec<Incoming, BATCH_SIZE>,
) -> io::Result<()> {
    let mut slices: ArrayVec<[IoSliceMut<'_>; 1], BATCH_SIZE> = staged
        .iter_mut()
        .map(|buffer| [IoSliceMut::new(&mut buffer.receive_area()[..packet_bytes])])
        .collect();
    let mut messages: ArrayVec<&mut [IoSliceMut<'_>], BATCH_SIZE> =
        slices.iter_mut().map(|slice| &mut slice[..]).collect();
    socket.receive_many(&mut messages, controls, received)
}

/// Makes a whole datagram of a message.
fn complete(
    message: &Incoming,
    control: &[u8],
    endpoint: &Endpoint,
    packet_bytes: usize,
    buffer: &mut Buffer,
) -> Result<(), DropReason> {
    if message.cut || message.bytes > packet_bytes {
        return Err(DropReason::ReceiveTruncated);
    }
    buffer.set_len(message.bytes);
    if endpoint.local.is_ipv4() {
        correct_checksum(buffer.bytes_mut());
        return Ok(());
    }
    let last = endpoint.encapsulation.protocol();
    let extensions = ExtensionHeaders::read(control, last)?;
    extensions.prepend_to(buffer, last)?;
    let content = Content::Other(extensions.first(last));
    let outer = Outer::of(message, endpoint, content).ok_or(DropReason::BadHeader)?;
    outer.synthesize(buffer.len()).ok_or(DropReason::BadHeader)?.prepend_to(buffer)
}

/// Corrects the checksum of an IPv4 header with options. The kernel has verified it, and then notes our
/// address in recorded routes and timestamps (RFC 791 3.1) without changing it.
fn correct_checksum(datagram: &mut [u8]) {
    let header_bytes = datagram.first().map_or(0, |first| usize::from(first & 0x0F) * 4);
    if header_bytes <= IPV4_HEADER_BYTES {
        return;
    }
    if let Some(header) = datagram.get_mut(..header_bytes) {
        header[10..12].fill(0);
        let sum = checksum::of(header).to_bytes();
        header[10..12].copy_from_slice(&sum);
    }
}
