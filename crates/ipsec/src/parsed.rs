//! Metadata of outbound packets while their batch passes through the phases.

use crate::encap::esp_tunnel::Content;
use crate::encap::has_room;
use crate::spd::{Answer, Direction, Flow, OfInterface, Pair, Verdict};
use crate::vpe::{flow_hash, flow_hash_of_plain};
use arrayvec::ArrayVec;
use testudo_packet::{BATCH_SIZE, Batch, Buffer, DropReason, Interface};
use testudo_wire::ip::IpHeader;
use testudo_wire::plain::{PlainHeader, PlainV4};
use testudo_wire::{ParseError, protocol};

/// Metadata of one packet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PacketMeta {
    /// The two addresses of a plain IPv4 packet.
    pair: Pair,
    /// The first bytes after the header of such a packet.
    first: [u8; 4],
    /// Of such a packet; of another one [`WAS_CUT`] or 0. (A field of its own, or a kind, would cost every
    /// packet instructions.)
    protocol: u8,
    pub(crate) content: Content,
    kind: Kind,
    /// Whether the packet may take the fast path: nothing in it is to be changed, and its buffer has the room
    /// that this needs.
    pub(crate) is_common: bool,
}

/// The protocol of a packet that was put together of fragments.
const WAS_CUT: u8 = protocol::FRAGMENT;

/// How a packet is matched against policy.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// A plain IPv4 packet, most often decided by its addresses.
    V4,
    /// Any other; the index of its flow in the [`ParsedBatch`].
    Flow(u8),
    /// Not at all: it is refused before.
    Refused(DropReason),
}

/// Metadata of a batch.
#[derive(Debug, Default)]
pub(crate) struct ParsedBatch {
    /// Of all its packets.
    pub(crate) interface: Interface,
    packets: ArrayVec<PacketMeta, BATCH_SIZE>,
    /// Flows of packets that are not plain IPv4, kept apart because a flow is several times as long.
    flows: ArrayVec<Flow, BATCH_SIZE>,
    /// The packets that are fragments, each with the index of its flow.
    fragments: ArrayVec<(u8, u8), BATCH_SIZE>,
    /// Verdicts on fragments, of which first ones have decided, by the index of their flow.
    followed: ArrayVec<(u8, Verdict), BATCH_SIZE>,
}

/// What becomes of a fragment before policy is asked.
#[derive(Debug, Clone, Copy)]
pub(crate) enum OnFragment {
    /// It stays one: the verdict if it hides what policy asks for.
    Alone(Verdict),
    /// Its bytes are kept, and its buffer is empty.
    Kept,
    /// Its whole datagram is in its buffer.
    Whole,
    Refused(DropReason),
}

impl ParsedBatch {
    /// Metadata of packets to be [read](Self::read), all of the interface that the first one has.
    #[inline]
    pub(crate) fn of(batch: &Batch) -> Self {
        let interface = batch.first().map_or(Interface::MAIN, Buffer::interface);
        debug_assert!(batch.iter().all(|packet| packet.interface() == interface));
        Self { interface, ..Self::default() }
    }

    /// Parses a packet's header, and cuts off bytes after the datagram. The metadata is written in place, not
    /// returned: copying it would hit failed store-to-load forwarding (wide loads over recent narrow stores).
    #[inline(always)]
    pub(crate) fn read(&mut self, buffer: &mut Buffer) {
        let has_room = has_room(buffer);
        let Some(header) = PlainV4::parse(buffer.bytes()) else { return self.read_other(buffer, has_room) };
        buffer.truncate(header.total_bytes.into());
        self.packets.push(PacketMeta {
            pair: Pair::outbound(&header),
            first: header.first,
            protocol: header.protocol,
            content: Content {
                bytes: header.total_bytes,
                traffic_class: header.traffic_class,
                next_header: protocol::IPV4,
            },
            kind: Kind::V4,
            is_common: has_room && !header.is_syn(buffer.bytes()),
        });
    }

    /// [`read`](Self::read) for a packet that is not plain IPv4.
    #[inline(always)]
    fn read_other(&mut self, buffer: &mut Buffer, has_room: bool) {
        let Some(header) = PlainHeader::parse(buffer.bytes()) else { return self.read_uncommon(buffer) };
        buffer.truncate(header.total_bytes.into());
        let content = Content {
            bytes: header.total_bytes,
            traffic_class: header.traffic_class,
            next_header: header.version.protocol(),
        };
        let is_common = has_room && !header.is_syn(buffer.bytes());
        self.push_flow(Flow::plain_outbound(&header), content, is_common);
    }

    #[cold]
    fn read_uncommon(&mut self, buffer: &mut Buffer) {
        if buffer.is_chain() {
            return self.read_chain(buffer);
        }
        match flow_of_uncommon(buffer) {
            Ok((flow, content, is_fragment)) => {
                if is_fragment {
                    // Lossless: a batch has fewer packets.
                    let index = |n: usize| u8::try_from(n).unwrap_or(u8::MAX);
                    self.fragments.push((index(self.packets.len()), index(self.flows.len())));
                }
                // `false` even if there is room: packets like this one take the slow path.
                self.push_flow(flow, content, false);
            }
            Err(reason) => self.push(Kind::Refused(reason), Content::default(), false),
        }
    }

    /// Chains are plain packets and cut to their length ([`crate::chains`]). They take the slow path.
    #[cold]
    fn read_chain(&mut self, buffer: &Buffer) {
        let total = buffer.chain_bytes();
        let header = PlainHeader::parse_front(buffer.bytes(), total);
        match header.filter(|header| usize::from(header.total_bytes) == total && total > buffer.len()) {
            Some(header) => {
                let content = Content {
                    bytes: header.total_bytes,
                    traffic_class: header.traffic_class,
                    next_header: header.version.protocol(),
                };
                self.push_flow(Flow::plain_outbound(&header), content, false);
            }
            None => self.push(Kind::Refused(DropReason::BadHeader), Content::default(), false),
        }
    }

    #[inline(always)]
    fn push_flow(&mut self, flow: Flow, content: Content, is_common: bool) {
        let place = u8::try_from(self.flows.len()).unwrap_or(u8::MAX);
        self.flows.push(flow);
        self.push(Kind::Flow(place), content, is_common);
    }

    #[inline]
    fn push(&mut self, kind: Kind, content: Content, is_common: bool) {
        self.packets.push(PacketMeta { pair: Pair(0), first: [0; 4], protocol: 0, content, kind, is_common });
    }

    /// Decides on the fragments, in their order. Those that are kept leave the batch.
    #[cold]
    pub(crate) fn decide_on_fragments(
        &mut self,
        batch: &mut Batch,
        mut decide: impl FnMut(&IpHeader, &mut Buffer) -> OnFragment,
    ) {
        let mut gone = 0;
        for (packet, flow) in std::mem::take(&mut self.fragments) {
            let at = usize::from(packet) - gone;
            let Some(buffer) = batch.get_mut(at) else { continue };
            let Ok(header) = IpHeader::parse(buffer.bytes()) else { continue };
            let refused = match decide(&header, buffer) {
                OnFragment::Alone(verdict) => {
                    self.followed.push((flow, verdict));
                    continue;
                }
                OnFragment::Kept => {
                    self.packets.remove(at);
                    batch.remove(at);
                    gone += 1;
                    continue;
                }
                OnFragment::Whole => self.replace(at, flow, buffer).err(),
                OnFragment::Refused(reason) => Some(reason),
            };
            if let (Some(reason), Some(meta)) = (refused, self.packets.get_mut(at)) {
                meta.kind = Kind::Refused(reason);
            }
        }
    }

    /// Reads the whole datagram that a fragment has become.
    fn replace(&mut self, at: usize, place: u8, buffer: &mut Buffer) -> Result<(), DropReason> {
        let (flow, content, _) = flow_of_uncommon(buffer)?;
        let (known, meta) = (self.flows.get_mut(usize::from(place)), self.packets.get_mut(at));
        if let (Some(known), Some(meta)) = (known, meta) {
            *known = flow;
            (meta.content, meta.protocol) = (content, WAS_CUT);
        }
        Ok(())
    }

    /// Notes that a packet was put together of fragments before, and does not show it.
    #[cold]
    pub(crate) fn note_cut(&mut self, place: usize) {
        let Some(meta) = self.packets.get_mut(place) else { return };
        match meta.kind {
            Kind::V4 => {
                let flow = u8::try_from(self.flows.len()).unwrap_or(u8::MAX);
                self.flows.push(meta.flow());
                meta.kind = Kind::Flow(flow);
            }
            Kind::Flow(_) => {}
            Kind::Refused(_) => return,
        }
        (meta.protocol, meta.is_common) = (WAS_CUT, false);
    }

    /// Whether any packet is a fragment.
    #[inline(always)]
    pub(crate) fn has_fragments(&self) -> bool {
        !self.fragments.is_empty()
    }

    /// The verdict on a packet that hides what policy asks for, by the index of its flow.
    #[cold]
    fn followed(&self, flow: u8) -> Verdict {
        let followed = self.followed.iter().find(|(of, _)| *of == flow);
        followed.map_or(Verdict::FieldsHidden, |(_, verdict)| *verdict)
    }

    /// The metadata, in the order of the packets.
    pub(crate) fn as_slice(&self) -> &[PacketMeta] {
        &self.packets
    }

    /// Prefetches what a packet's verdict will need.
    #[inline(always)]
    pub(crate) fn prefetch(&self, meta: &PacketMeta, policies: OfInterface<'_>) {
        match meta.kind {
            Kind::V4 => policies.prefetch_v4(Direction::Outbound, meta.pair),
            Kind::Flow(place) => {
                if let Some(flow) = self.flows.get(usize::from(place)) {
                    policies.prefetch_v6(Direction::Outbound, flow.local(), flow.remote());
                }
            }
            Kind::Refused(_) => {}
        }
    }

    /// Policy's answer for a packet, as far as addresses decide.
    #[inline(always)]
    pub(crate) fn answer(meta: &PacketMeta, policies: OfInterface<'_>) -> Answer {
        if let Kind::V4 = meta.kind {
            policies.answer_v4(Direction::Outbound, meta.pair)
        } else {
            Answer::ASK
        }
    }

    /// The flow of a packet that policy was asked about, by its place in the batch.
    pub(crate) fn flow(&self, place: usize) -> Option<Flow> {
        let meta = self.packets.get(place)?;
        match meta.kind {
            Kind::V4 => Some(meta.flow()),
            Kind::Flow(place) => self.flows.get(usize::from(place)).copied(),
            Kind::Refused(_) => None,
        }
    }

    /// Policy's verdict on a packet whose [addresses](Self::answer) do not decide, or why none is looked up.
    pub(crate) fn verdict(
        &self,
        meta: &PacketMeta,
        policies: OfInterface<'_>,
    ) -> Result<Verdict, DropReason> {
        match meta.kind {
            Kind::V4 => Ok(policies.verdict(&meta.flow())),
            Kind::Flow(place) => {
                let flow = self.flows.get(usize::from(place)).ok_or(DropReason::BadHeader)?;
                match policies.verdict(flow) {
                    Verdict::FieldsHidden => Ok(self.followed(place)),
                    verdict => Ok(verdict),
                }
            }
            Kind::Refused(reason) => Err(reason),
        }
    }
}

impl PacketMeta {
    /// Whether its source had cut it.
    #[inline]
    pub(crate) fn was_cut(&self) -> bool {
        matches!(self.kind, Kind::Flow(_)) && self.protocol == WAS_CUT
    }

    /// The hash of its flow under these keys, from which its window of VPE follows.
    #[inline(always)]
    pub(crate) fn flow_hash(&self, packet: &Buffer, keys: [u64; 2]) -> u64 {
        match self.kind {
            Kind::V4 => flow_hash_of_plain(&self.header(), keys),
            Kind::Flow(_) | Kind::Refused(_) => flow_hash(packet.bytes(), keys),
        }
    }

    /// The flow of a plain IPv4 packet.
    #[inline]
    fn flow(&self) -> Flow {
        Flow::plain_outbound(&self.header().into())
    }

    /// The header of a plain IPv4 packet.
    #[inline(always)]
    fn header(&self) -> PlainV4 {
        PlainV4 {
            addresses: self.pair.0,
            first: self.first,
            total_bytes: self.content.bytes,
            protocol: self.protocol,
            traffic_class: self.content.traffic_class,
        }
    }
}

/// The flow of a packet that is not plain, what its frame depends on, and whether it is a fragment. Bytes
/// after the datagram are cut off.
fn flow_of_uncommon(buffer: &mut Buffer) -> Result<(Flow, Content, bool), DropReason> {
    let header = IpHeader::parse(buffer.bytes()).map_err(reason_of)?;
    if header.has_source_route {
        return Err(DropReason::SourceRoute);
    }
    let bytes = u16::try_from(header.total_bytes).map_err(|_| DropReason::TooBig)?;
    let content =
        Content { bytes, traffic_class: header.traffic_class, next_header: header.version.protocol() };
    buffer.truncate(header.total_bytes);
    Ok((Flow::outbound(&header, buffer.bytes()), content, header.fragment.is_some()))
}

pub(crate) fn reason_of(error: ParseError) -> DropReason {
    match error {
        ParseError::NotIp => DropReason::NotIp,
        ParseError::Truncated => DropReason::Truncated,
        ParseError::BadHeader => DropReason::BadHeader,
        ParseError::BadChecksum => DropReason::BadChecksum,
    }
}
