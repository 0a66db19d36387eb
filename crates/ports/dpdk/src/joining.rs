//! Segments of one flow that leave as a super-frame, for devices that take it whole: virtio hands it to
//! the host's or the guest's TCP as it is. The first mbuf has the headers, and payloads stay where they are.

use crate::device::DpdkDevice;
use crate::mbuf::{Known, flags, tx_lengths};
use crate::raw::offers;
use crate::receive::MOST_PARTS;
use crate::transmit::Transmitted;
use arrayvec::ArrayVec;
use std::ffi::c_void;
use std::io;
use testudo_packet::{BATCH_SIZE, Batch, Buffer, Mark, Pool};
use testudo_port_tun::coalesce::{self, Groups, JoinedHeader};
use testudo_port_tun::vnet::Gso;

const ETHERNET_BYTES: usize = 14;
/// Ethernet, IPv6 and the longest header of TCP.
const MOST_HEADER_BYTES: usize = ETHERNET_BYTES + 40 + 60;

/// The mbufs of a super-frame, and whether each has its packet's own frame.
type Chain = ArrayVec<(Known, bool), MOST_PARTS>;

/// The IP packet of a frame; empty, and so joined with none, if it has none or a VLAN, or if the device is to
/// seal it: what is sealed is one packet.
fn packet_of(frame: &Buffer) -> &[u8] {
    match frame.bytes() {
        _ if frame.mark().is_to_be_sealed() => &[],
        [_, _, _, _, _, _, _, _, _, _, _, _, 0x08, 0x00, packet @ ..]
        | [_, _, _, _, _, _, _, _, _, _, _, _, 0x86, 0xDD, packet @ ..] => packet,
        _ => &[],
    }
}

/// What the device is asked to do with a super-frame: flags and lengths of its mbuf.
fn request(header: &JoinedHeader, fills_ip_checksums: bool) -> Option<(u64, u64)> {
    let gso = header.vnet.gso().ok()??;
    let is_v4 = header.bytes().first().is_some_and(|byte| byte >> 4 == 4);
    let segmentation = match gso {
        Gso::TcpV4 | Gso::TcpV6 => flags::TCP_SEGMENTS | flags::TCP_CHECKSUM,
        Gso::Udp => flags::UDP_SEGMENTS | flags::UDP_CHECKSUM,
    };
    let network = match (is_v4, fills_ip_checksums) {
        (true, true) => flags::IPV4 | flags::IP_CHECKSUM,
        (true, false) => flags::IPV4,
        (false, _) => flags::IPV6,
    };
    let l3 = header.vnet.checksum_start;
    let l4 = header.vnet.header_bytes - l3;
    Some((segmentation | network, tx_lengths(14, l3, l4, header.vnet.gso_size)))
}

impl DpdkDevice {
    /// Sends packets from `batch`, those of a flow together. The others of a batch may be overtaken, those of
    /// their own flow never.
    // Its lists would make the stack frame of those that send packet by packet long.
    #[cold]
    #[inline(never)]
    pub(crate) fn transmit_joined(&mut self, pool: &mut Pool, batch: &mut Batch) -> io::Result<Transmitted> {
        let mut total = Transmitted::default();
        let before = batch.len();
        let mut at = 0;
        while let Some(buffer) = batch.get(at) {
            match self.refusal(buffer) {
                Some(reason) => pool.discard(batch.remove(at), reason),
                None => at += 1,
            }
        }
        total.taken = before - batch.len();
        let mut groups = Groups::new();
        let udp = self.started.offers & offers::UDP_SEGMENTATION != 0;
        coalesce::plan(batch.iter().map(packet_of), udp, &mut groups);
        let mut packets: ArrayVec<Option<Buffer>, BATCH_SIZE> = batch.drain(..).map(Some).collect();
        for group in &groups {
            let members = group.members.iter().filter_map(|&index| packets[usize::from(index)].take());
            batch.extend(members);
        }
        let mut alone = 0;
        for group in &groups {
            let count = group.members.len();
            let header = match (batch.get(alone), batch.get(alone + count - 1)) {
                (Some(first), Some(last)) => group.joined_header(packet_of(first), packet_of(last)),
                _ => None,
            };
            let Some(header) = header.filter(|_| self.may_join(&batch[alone..alone + count])) else {
                alone += count;
                continue;
            };
            let went = self.transmit_some(alone, pool, batch, &mut total)?
                && (self.send_joined(&header, count, pool, batch, &mut total)?
                    // What a driver does not take together, it may take one by one.
                    || self.transmit_some(count, pool, batch, &mut total)?);
            if !went {
                return Ok(total);
            }
            alone = 0;
        }
        self.transmit_some(alone, pool, batch, &mut total)?;
        Ok(total)
    }

    /// Whether packets of a flow go to the same neighbour, and each fits an mbuf.
    fn may_join(&self, packets: &[Buffer]) -> bool {
        let link = |packet: &Buffer| packet.bytes().first_chunk::<ETHERNET_BYTES>().copied();
        packets.len() <= MOST_PARTS
            && packets.windows(2).all(|two| link(&two[0]) == link(&two[1]))
            && packets.iter().all(|packet| packet.len() <= self.part_bytes)
    }

    /// Sends the first packets of `batch` as one. Otherwise nothing has changed, and it returns false.
    fn send_joined(
        &mut self,
        header: &JoinedHeader,
        count: usize,
        pool: &mut Pool,
        batch: &mut Batch,
        total: &mut Transmitted,
    ) -> io::Result<bool> {
        let asked = request(header, self.started.offers & offers::IP_CHECKSUMS != 0);
        let mut handles = [std::ptr::null_mut(); MOST_PARTS];
        let handles = &mut handles[..count];
        let got = self.mbufs.get(handles);
        let Some((flags, lengths)) = asked.filter(|_| got == count) else {
            self.mbufs.put(&handles[..got]);
            return Ok(false);
        };
        let header_bytes = ETHERNET_BYTES + header.bytes().len();
        let mut original = [0; MOST_HEADER_BYTES];
        let original = &mut original[..header_bytes];
        let head = &mut batch[0].bytes_mut()[..header_bytes];
        original.copy_from_slice(head);
        head[ETHERNET_BYTES..].copy_from_slice(header.bytes());
        let chain = self.chain(&batch[..count], handles, header_bytes)?;
        let first = chain[0].0;
        first.request(flags, lengths);
        self.without_session(&chain);
        // SAFETY: as in `send`.
        let fits = unsafe { self.plugin.prepare(self.port, 0, first.handle()) };
        // SAFETY: the device is started with this queue, and belongs to one thread. The mbufs are of its
        // mempool, taken from there, and describe frames whose buffers are in `batch`, where they stay until
        // their mbuf is free; or their own frames.
        let sent = if fits { unsafe { self.plugin.send(self.port, 0, &mut [first.handle()]) } } else { 0 };
        if sent == 0 {
            batch[0].bytes_mut()[..header_bytes].copy_from_slice(original);
            for (known, _) in chain {
                self.mbufs.unsent(known);
                self.mbufs.put(&[known.handle()]);
            }
            return Ok(false);
        }
        let mut free = Batch::new();
        for (mut buffer, (known, is_in_place)) in batch.drain(..count).zip(chain) {
            buffer.set_mark(Mark::NONE);
            total.bytes += u64::try_from(buffer.len()).unwrap_or(0);
            self.statistics.tx_copied += u64::from(!is_in_place);
            free.push(if is_in_place { self.mbufs.sent(known, buffer) } else { buffer });
        }
        pool.recycle_all(&mut free);
        total.packets += u64::try_from(count).unwrap_or(0);
        total.taken += count;
        self.statistics.super_frames_sent += 1;
        Ok(true)
    }

    /// Chains mbufs over these packets: the first as it is, of the others what follows the headers.
    fn chain(
        &mut self,
        packets: &[Buffer],
        handles: &[*mut c_void],
        header_bytes: usize,
    ) -> io::Result<Chain> {
        let skipped = u16::try_from(header_bytes).unwrap_or(0); // at most 114
        let payloads = packets.iter().map(|packet| packet.len() - header_bytes);
        let packet_bytes = u32::try_from(header_bytes + payloads.sum::<usize>()).unwrap_or(0); // below 2^17
        let mut chain = Chain::new();
        for (packet, &handle) in packets.iter().zip(handles) {
            let known = self.mbufs.own(handle)?;
            let skip = if chain.is_empty() { 0 } else { skipped };
            let in_place = if self.shares(packet) { self.mbufs.in_place(packet) } else { None };
            let mut what = match in_place {
                Some(mut what) => {
                    (what.offset, what.bytes) = (what.offset + skip, what.bytes - skip);
                    what
                }
                None => self.mbufs.write(known, &packet.bytes()[usize::from(skip)..]),
            };
            what.segments = 1;
            what.packet_bytes = u32::from(what.bytes);
            if chain.is_empty() {
                what.segments = u16::try_from(packets.len()).unwrap_or(0); // a batch
                what.packet_bytes = packet_bytes;
            }
            known.prepare(what);
            self.mbufs.lend(known);
            if let Some((last, _)) = chain.last() {
                last.set_next(Some(known));
            }
            chain.push((known, in_place.is_some()));
        }
        Ok(chain)
    }
}
