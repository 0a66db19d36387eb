//! Receiving from raw sockets: one datagram per message, many messages per call.
//!
//! A datagram that is longer than a frame ends in a relay, from where it is copied to a long buffer: one that
//! a peer has cut after sealing, and the kernel has put together.
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

/// Longer than any datagram.
const DATAGRAM_BYTES: usize = 65_536;

/// The state of receiving from one raw socket.
pub(crate) struct RawReceiver {
    /// One for each message of a call; none for IPv4.
    controls: Vec<ControlArea>,
    /// What did not fit the frame, one for each message of a call. Memory that is not used is never touched.
    relays: Vec<Vec<u8>>,
}

impl RawReceiver {
    pub(crate) fn new(endpoint: &Endpoint) -> Self {
        let areas = if endpoint.local.is_ipv6() { BATCH_SIZE } else { 0 };
        let relays = (0..BATCH_SIZE).map(|_| vec![0; DATAGRAM_BYTES]).collect();
        Self { controls: vec![ControlArea::EMPTY; areas], relays }
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
        let frame_bytes = pool.frame_packet_bytes();
        let room = batch.remaining_capacity();
        let mut staged = Batch::new();
        pool.pop_many(room, &mut staged);
        if staged.is_empty() {
            return Ok(());
        }
        let mut incoming = ArrayVec::new();
        let Self { controls, relays } = self;
        let outcome = receive_into(socket, &mut staged, frame_bytes, relays, controls, &mut incoming);
        let before = done.packets;
        let mut buffers = staged.drain(..);
        let mut controls = controls.iter();
        for ((message, relay), mut buffer) in incoming.iter().zip(relays.iter()).zip(buffers.by_ref()) {
            let control = controls.next().map_or(&[][..], ControlArea::bytes);
            let gathered = gather(message, relay, &mut buffer, pool);
            match gathered.and_then(|()| complete(message, control, endpoint, &mut buffer)) {
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
    frame_bytes: usize,
    relays: &mut [Vec<u8>],
    controls: &mut [ControlArea],
    received: &mut ArrayVec<Incoming, BATCH_SIZE>,
) -> io::Result<()> {
    let mut slices: ArrayVec<[IoSliceMut<'_>; 2], BATCH_SIZE> = staged
        .iter_mut()
        .zip(relays)
        .map(|(buffer, relay)| {
            let area = &mut buffer.receive_area()[..frame_bytes];
            [IoSliceMut::new(area), IoSliceMut::new(relay)]
        })
        .collect();
    let mut messages: ArrayVec<&mut [IoSliceMut<'_>], BATCH_SIZE> =
        slices.iter_mut().map(|slices| &mut slices[..]).collect();
    socket.receive_many(&mut messages, controls, received)
}

/// Makes a message the packet of `buffer`, which becomes a long one where the frame has only the message's
/// start.
fn gather(message: &Incoming, relay: &[u8], buffer: &mut Buffer, pool: &mut Pool) -> Result<(), DropReason> {
    if message.cut || message.bytes > pool.packet_bytes() {
        return Err(DropReason::ReceiveTruncated);
    }
    let Some(rest) = message.bytes.checked_sub(pool.frame_packet_bytes()).filter(|&rest| rest > 0) else {
        buffer.set_len(message.bytes);
        return Ok(());
    };
    buffer.set_len(message.bytes - rest);
    let mut long = pool.pop_for(message.bytes).ok_or(DropReason::PoolEmpty)?;
    let (start, end) = long.receive_area()[..message.bytes].split_at_mut(buffer.len());
    start.copy_from_slice(buffer.bytes());
    end.copy_from_slice(&relay[..rest]);
    long.set_len(message.bytes);
    pool.recycle(std::mem::replace(buffer, long));
    Ok(())
}

/// Makes a whole datagram of a message.
fn complete(
    message: &Incoming,
    control: &[u8],
    endpoint: &Endpoint,
    buffer: &mut Buffer,
) -> Result<(), DropReason> {
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
