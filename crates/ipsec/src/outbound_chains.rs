//! Outbound packets in chains of buffers: headers in a segment of their own in front, the payload where it
//! is, the trailer behind the last segment.
//!
//! ```text
//!   | IP, (UDP), ESP, IV | ► | packet … | ► | … packet | ► | … packet | trailer, ICV |
//!   | IP, (UDP), VPE | ► | inner IP header of a piece |   ► | … payload … | ► | … |
//! ```

use crate::encap::esp_tunnel::{Content, Framing};
use crate::encap::vpe::VpeFraming;
use crate::encap::{Encap, Frame, MAX_ICV_BYTES, ROOM_BEHIND, esp_tunnel, then};
use crate::parsed::PacketMeta;
use crate::sharing::Waiting;
use crate::slow_path::SlowPath;
use crate::vpe::Numbers;
use testudo_crypto::Job;
use testudo_packet::{Buffer, DropReason};
use testudo_wire::fragment::{self, Piece};
use testudo_wire::ip::IpHeader;
use testudo_wire::plain::PlainHeader;
use testudo_wire::protocol;

/// Bytes of the longest trailer with its ICV.
const LONGEST_TAIL: usize = esp_tunnel::TRAILER_BLOCK_BYTES + MAX_ICV_BYTES;

/// A packet that becomes one job: its first bytes, if they are not in the chain, and the chain.
struct Parts {
    front: Buffer,
    rest: Buffer,
}

impl SlowPath<'_> {
    /// [`protect`](Self::protect) for a chain. What cannot be framed as one is merged.
    #[cold]
    #[inline(never)]
    pub(crate) fn protect_chain<E: Frame>(&mut self, meta: &PacketMeta, packet: Buffer) {
        let total = packet.chain_bytes();
        let header = PlainHeader::parse_front(packet.bytes(), total);
        let header = header.filter(|header| self.frames_chains() && !header.is_syn(packet.bytes()));
        // Pieces are padded, too.
        let (pad_to, inner_mtu) = (usize::from(self.sa.tfc_pad_to), usize::from(self.sa.inner_mtu));
        let is_padded = pad_to > total || pad_to > 0 && total > inner_mtu;
        if let (Some(header), false) = (header, is_padded) {
            let content = Content {
                bytes: header.total_bytes,
                traffic_class: header.traffic_class,
                next_header: header.version.protocol(),
            };
            if header.total_bytes <= self.sa.inner_mtu {
                let Some(front) = self.pool.pop() else { return self.refuse(packet, DropReason::PoolEmpty) };
                return self.push_chain(Parts { front, rest: packet }, content);
            }
            let v4 = IpHeader::parse_front(packet.bytes(), total);
            if let Some(v4) = v4.ok().filter(|v4| !v4.dont_fragment) {
                return self.protect_pieces(&v4, packet, content);
            }
        }
        match self.pool.linearise(packet) {
            Ok(whole) => self.protect::<E>(meta, whole),
            Err(chain) => self.refuse(chain, DropReason::PoolEmpty),
        }
    }

    /// Whether the packets of this SA can be framed in chains.
    fn frames_chains(&self) -> bool {
        let sa = &*self.sa;
        let does = matches!(sa.encap, Encap::EspTunnel | Encap::Vpe);
        does && sa.then == then::SEND && !sa.headers_vary && sa.template.is_some()
    }

    /// Cuts a packet before it is sealed. Each piece has its header in a segment of its own, which its
    /// tunnel's headers share, and the payload stays where it is, but for what a cut leaves behind in its
    /// buffer.
    fn protect_pieces(&mut self, header: &IpHeader, packet: Buffer, content: Content) {
        let front: Vec<u8> = packet.bytes().get(..header.header_bytes).unwrap_or_default().to_vec();
        let mtu = usize::from(self.sa.inner_mtu);
        let pieces = fragment::pieces_behind(header, &front, mtu);
        self.keep_flow(Some(packet.bytes()));
        let parts = self.cut_chain(pieces, packet, header.header_bytes).unwrap_or_default();
        for (parts, bytes) in parts {
            match u16::try_from(bytes) {
                Ok(bytes) => {
                    self.push_chain(parts, Content { bytes, next_header: protocol::IPV4, ..content })
                }
                // Not reached: no piece is longer than its packet.
                Err(_) => self.refuse_parts(parts, DropReason::TooBig),
            }
        }
        self.keep_flow(None);
    }

    /// The pieces, each with its length. If buffers run out, all are dropped: an incomplete set is useless.
    fn cut_chain(
        &mut self,
        pieces: impl Iterator<Item = Piece>,
        packet: Buffer,
        header_bytes: usize,
    ) -> Option<Vec<(Parts, usize)>> {
        let mut all = Vec::new();
        let mut rest = Some(self.pool.trim_front(packet, header_bytes));
        let mut lacks = None;
        for piece in pieces {
            let Some(mut payload) = rest.take() else { break };
            let is_last = payload.chain_bytes() <= piece.payload_bytes;
            let later = if is_last { None } else { self.pool.split_off(&mut payload, piece.payload_bytes) };
            let Some(mut front) = self.pool.pop().filter(|_| is_last || later.is_some()) else {
                lacks = Some(payload);
                rest = later;
                break;
            };
            front.set_interface(payload.interface());
            front.receive_area()[..piece.header_bytes].copy_from_slice(&piece.header[..piece.header_bytes]);
            front.set_len(piece.header_bytes);
            all.push((Parts { front, rest: payload }, piece.header_bytes + piece.payload_bytes));
            rest = later;
        }
        if lacks.is_none() && rest.is_none() && !all.is_empty() {
            return Some(all);
        }
        let reason =
            if all.is_empty() && lacks.is_none() { DropReason::TooBig } else { DropReason::PoolEmpty };
        all.into_iter().for_each(|(parts, _)| self.refuse_parts(parts, reason));
        lacks.into_iter().chain(rest).for_each(|payload| self.refuse(payload, reason));
        None
    }

    fn refuse_parts(&mut self, Parts { front, rest }: Parts, reason: DropReason) {
        self.pool.recycle(front);
        self.refuse(rest, reason);
    }

    /// Makes a job of one packet.
    fn push_chain(&mut self, parts: Parts, content: Content) {
        if !self.out.waiting.is_empty() || self.sa.must_wait(self.now) {
            return self.have_wait(parts);
        }
        let is_vpe = self.sa.encap == Encap::Vpe;
        let Parts { front, mut rest } = parts;
        // Before a number is used up. A port that fills its frames leaves the pool's tailroom.
        if !is_vpe && rest.with_last(|last| last.tailroom() < ROOM_BEHIND) {
            return self.refuse_parts(Parts { front, rest }, DropReason::NoRoom);
        }
        let bytes = usize::from(content.bytes);
        let sequence = if is_vpe {
            let first = if front.is_empty() { rest.bytes() } else { front.bytes() };
            let flow = |numbers: &Numbers| numbers.flow_of(first);
            self.sa.admit_in_window(flow, content.traffic_class, bytes, self.now, self.events)
        } else {
            self.sa.admit(bytes, self.now, self.events)
        };
        let sequence = match sequence {
            Ok(sequence) => sequence,
            Err(reason) => return self.refuse_parts(Parts { front, rest }, reason),
        };
        self.sa.counters.count(1, bytes as u64, self.sa.sequence.next() - 1);
        match self.frame_chain(front, content, sequence) {
            Ok((mut job, tail)) => {
                if rest
                    .with_last(|last| last.append(tail.len()).map(|place| place.copy_from_slice(&tail)))
                    .is_err()
                {
                    // Not reached: its room was checked.
                    return self.refuse_parts(Parts { front: job.buffer, rest }, DropReason::NoRoom);
                }
                match self.pool.link_before(std::mem::take(&mut job.buffer), rest) {
                    Ok(packet) => self.out.jobs.push(Job { buffer: packet, ..job }),
                    Err((front, rest)) => self.refuse_parts(Parts { front, rest }, DropReason::NoRoom),
                }
            }
            Err(front) => self.refuse_parts(Parts { front, rest }, DropReason::NoRoom),
        }
    }

    /// The job that seals a packet whose headers are written before `front`, and the trailer that belongs
    /// behind its last segment.
    fn frame_chain(
        &mut self,
        front: Buffer,
        content: Content,
        sequence: u64,
    ) -> Result<(Job, arrayvec::ArrayVec<u8, LONGEST_TAIL>), Buffer> {
        let own = front.len();
        let (mut job, is_written) = match self.sa.encap {
            Encap::Vpe => {
                let Some(framing) = VpeFraming::of(self.sa, self.sa_ref) else { return Err(front) };
                let window = self.sa.vpe.as_ref().map_or(0, |numbers| numbers.chosen());
                let mut job = framing.job(front, content.bytes, sequence);
                let is_written =
                    framing.write(std::slice::from_mut(&mut job), [(content, window)].into_iter());
                (job, is_written)
            }
            _ => {
                let Some(framing) = Framing::of(self.sa, self.sa_ref) else { return Err(front) };
                let mut job = framing.job(front, sequence);
                let is_written = framing.write_one(&mut job, content, sequence);
                (job, is_written)
            }
        };
        if !is_written {
            return Err(job.buffer);
        }
        // The trailer was written behind this segment, and its place is behind the last one.
        let headers = job.text_start as usize + own;
        let behind = job.buffer.bytes().get(headers..).unwrap_or_default();
        let mut tail = arrayvec::ArrayVec::new();
        if tail.try_extend_from_slice(behind).is_err() {
            return Err(job.buffer);
        }
        job.buffer.truncate(headers);
        Ok((job, tail))
    }

    /// Has a packet wait for numbers: a piece in one buffer, which its length allows, since its header would
    /// not be taken for that of a chain.
    fn have_wait(&mut self, Parts { front, rest }: Parts) {
        debug_assert!(self.sa.vpe.is_none(), "a piece that waits would lose its flow's window");
        let packet = if front.is_empty() {
            self.pool.recycle(front);
            Ok(rest)
        } else {
            self.pool.link_before(front, rest).map(|piece| self.pool.linearise(piece)).unwrap_or_else(
                |(front, rest)| {
                    self.pool.recycle(front);
                    Err(rest)
                },
            )
        };
        match packet {
            Ok(packet) => self.out.waiting.push(Waiting { packet, may_be_cut: true }),
            Err(chain) => self.refuse(chain, DropReason::PoolEmpty),
        }
    }
}
