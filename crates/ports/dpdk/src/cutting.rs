//! Super-frames that a device delivers: several segments of TCP under one header (LRO, virtio's GSO). They
//! are cut into the segments, as each is sealed by itself.
//!
//! What does not fit a batch waits, with all that came after it, and the device is not asked before all of it
//! is delivered.

use std::collections::VecDeque;
use testudo_link::partial_checksum::packet_at;
use testudo_packet::{Batch, Buffer, DropReason, Pool};
use testudo_port_tun::split::SuperFrame;
use testudo_port_tun::vnet::{Gso, VnetHeader};

/// What has come and is not delivered yet, in order.
#[derive(Debug, Default)]
pub(crate) struct Backlog(VecDeque<Waiting>);

#[derive(Debug)]
enum Waiting {
    Cut(Box<Cut>),
    Packet(Buffer),
}

/// A super-frame.
#[derive(Debug)]
struct Cut {
    frame: SuperFrame,
    whole: Buffer,
    /// Where the packet begins in the frame.
    packet_at: usize,
    /// The segment that is next.
    next: usize,
}

impl Cut {
    /// Reads the headers of a frame whose segments carry `segment_bytes` each.
    fn of(whole: Buffer, segment_bytes: u16) -> Result<Self, (Buffer, DropReason)> {
        let frame = packet_at(whole.bytes()).map(|at| (at, parse(&whole.bytes()[at..], segment_bytes)));
        match frame {
            Some((packet_at, Ok(frame))) => Ok(Self { frame, whole, packet_at, next: 0 }),
            Some((_, Err(reason))) => Err((whole, reason)),
            None => Err((whole, DropReason::BadHeader)),
        }
    }

    /// Bytes of the next segment, with its headers.
    fn next_bytes(&self) -> usize {
        self.packet_at + self.frame.header_bytes() + self.frame.payload_range(self.next).len()
    }

    /// Copies the next segment out; `None` if there is no buffer for it.
    fn segment(&mut self, pool: &mut Pool) -> Option<Buffer> {
        let payload = self.frame.payload_range(self.next);
        let headers = self.packet_at + self.frame.header_bytes();
        let bytes = self.next_bytes();
        let mut segment = pool.pop_for(bytes)?;
        let (whole, area) = (self.whole.bytes(), &mut segment.receive_area()[..bytes]);
        area[..self.packet_at].copy_from_slice(&whole[..self.packet_at]);
        area[headers..].copy_from_slice(&whole[headers..][payload]);
        self.frame.write_headers(self.next, &mut area[self.packet_at..]);
        segment.set_len(bytes);
        self.next += 1;
        Some(segment)
    }
}

fn parse(packet: &[u8], segment_bytes: u16) -> Result<SuperFrame, DropReason> {
    let kind = if packet.first().is_some_and(|byte| byte >> 4 == 6) { Gso::TcpV6 } else { Gso::TcpV4 };
    let vnet = VnetHeader { gso_type: kind.code(), gso_size: segment_bytes, ..VnetHeader::default() };
    SuperFrame::parse(&vnet, packet, packet.len())
}

impl Backlog {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A packet that came after a super-frame.
    #[cold]
    pub(crate) fn push(&mut self, packet: Buffer) {
        self.0.push_back(Waiting::Packet(packet));
    }

    /// Takes a super-frame. Returns whether it is one; if not, it is dropped by name.
    #[cold]
    pub(crate) fn push_super_frame(&mut self, whole: Buffer, segment_bytes: u16, pool: &mut Pool) -> bool {
        match Cut::of(whole, segment_bytes) {
            Ok(cut) => self.0.push_back(Waiting::Cut(Box::new(cut))),
            Err((whole, reason)) => {
                pool.discard(whole, reason);
                return false;
            }
        }
        true
    }

    /// Delivers packets and segments, as many as there is room for. Returns whether all are delivered.
    #[cold]
    pub(crate) fn deliver(&mut self, pool: &mut Pool, batch: &mut Batch) -> bool {
        while let Some(mut first) = self.0.pop_front() {
            if let Waiting::Cut(cut) = &mut first {
                while cut.next < cut.frame.segments() && !batch.is_full() {
                    let Some(segment) = cut.segment(pool) else { break };
                    batch.push(segment);
                }
            }
            match first {
                Waiting::Cut(cut) if cut.next == cut.frame.segments() => pool.recycle(cut.whole),
                Waiting::Packet(packet) if !batch.is_full() => batch.push(packet),
                // Frames come back. Long buffers may all be those of super-frames that wait here.
                Waiting::Cut(cut) if !batch.is_full() && cut.next_bytes() > pool.frame_packet_bytes() => {
                    pool.discard(cut.whole, DropReason::PoolEmpty);
                }
                unfinished => {
                    self.0.push_front(unfinished);
                    return false;
                }
            }
        }
        true
    }

    /// Gives all buffers back.
    pub(crate) fn end(&mut self, pool: &mut Pool) {
        for waiting in self.0.drain(..) {
            match waiting {
                Waiting::Cut(cut) => pool.discard(cut.whole, DropReason::ShuttingDown),
                Waiting::Packet(packet) => pool.discard(packet, DropReason::ShuttingDown),
            }
        }
    }
}
