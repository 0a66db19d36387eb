//! Reassembly by its definition (RFC 791 3.2, RFC 8200 4.5, RFC 5722, RFC 3168 5.3), slow and obvious, beside
//! the reassembler: the same fragments must have the same outcome, one by one.

use super::datagrams::{Choose, mend, one_of};
use super::fragments::{Part, fragment_with, header_bytes};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;
use testudo_ipsec::Moment;
use testudo_ipsec::fragments::{Reassembled, Reassembler};
use testudo_packet::{DropCounters, DropReason, Pool};
use testudo_wire::ip::IpHeader;

/// Buffers of the pool: an eighth of them may hold incomplete datagrams, three quarters of that for peers.
const BUFFERS: usize = 96;
const ROOM_FOR_PEERS: usize = 9;
const ROOM_FOR_STRANGERS: usize = 3;

/// What a datagram is known by: source, destination, identification, protocol (0 over IPv6).
type Key = (u8, u8, u32, u8);

/// A fragment, and what the model must know of it.
#[derive(Debug, Clone)]
pub struct Sent {
    pub packet: Vec<u8>,
    key: Key,
    is_peer: bool,
    part: Part,
    payload: Vec<u8>,
    ecn: u8,
    /// The header of the whole datagram if this is its first fragment, but for length and ECN.
    header: Vec<u8>,
}

/// The outcome of a fragment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Whole(Vec<u8>),
    Kept,
    Dropped(DropReason),
}

impl fmt::Display for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, is_peer, part, ecn, .. } = self;
        write!(f, "{part:?} of {key:?}, {} bytes, peer {is_peer}, ECN {ecn}", self.payload.len())
    }
}

/// An outcome in a few words.
pub fn name(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Whole(bytes) => format!("whole, IPv{}", bytes[0] >> 4),
        Outcome::Kept => "kept".to_owned(),
        Outcome::Dropped(reason) => reason.name().to_owned(),
    }
}

#[derive(Debug)]
struct Incomplete {
    key: Key,
    is_peer: bool,
    since: Moment,
    fragments: Vec<Sent>,
    /// Why it is no longer reassembled.
    dropped: Option<DropReason>,
}

/// Incomplete datagrams, oldest first.
#[derive(Debug, Default)]
pub struct Model {
    incomplete: Vec<Incomplete>,
    /// Datagrams dropped by reason, without the fragments that were dropped alone.
    pub dropped: BTreeMap<DropReason, u64>,
}

fn spans(sent: &Sent) -> std::ops::Range<usize> {
    sent.part.offset..sent.part.offset + sent.payload.len()
}

impl Model {
    fn drop_datagram(&mut self, at: usize, reason: DropReason) {
        let old = self.incomplete.remove(at);
        if old.dropped.is_none() {
            *self.dropped.entry(reason).or_default() += 1;
        }
    }

    pub fn expire(&mut self, now: Moment) {
        for at in (0..self.incomplete.len()).rev() {
            if now.since(self.incomplete[at].since) >= Duration::from_secs(15) {
                self.drop_datagram(at, DropReason::FragmentTimeout);
            }
        }
    }

    pub fn held(&self) -> usize {
        self.incomplete.iter().filter(|datagram| datagram.dropped.is_none()).count()
    }

    pub fn receive(&mut self, sent: &Sent, now: Moment) -> Outcome {
        let is_v4 = sent.packet[0] >> 4 == 4;
        let header = if is_v4 { sent.packet.len() - sent.payload.len() } else { 0 };
        if sent.payload.is_empty()
            || sent.part.more && !sent.payload.len().is_multiple_of(8)
            || spans(sent).end + header > 65_535
            || !is_v4 && sent.part.offset == 0 && sent.payload.len() < 8
        {
            return Outcome::Dropped(DropReason::FragmentMalformed);
        }
        let same = |datagram: &Incomplete| datagram.key == sent.key && datagram.is_peer == sent.is_peer;
        if let Some(at) = self.incomplete.iter().position(same)
            && now.since(self.incomplete[at].since) >= Duration::from_secs(15)
        {
            self.drop_datagram(at, DropReason::FragmentTimeout);
        }
        match self.incomplete.iter().position(same) {
            Some(at) => self.add(at, sent),
            None => {
                self.make_room(sent.is_peer);
                let (key, is_peer, fragments) = (sent.key, sent.is_peer, vec![sent.clone()]);
                self.incomplete.push(Incomplete { key, is_peer, since: now, fragments, dropped: None });
                Outcome::Kept
            }
        }
    }

    /// If there is no room, the oldest datagram goes whose pair of addresses has the most of them.
    fn make_room(&mut self, is_peer: bool) {
        let pairs = |class: bool| {
            self.incomplete.iter().filter(move |d| d.is_peer == class).map(|d| (d.key.0, d.key.1))
        };
        let room = if is_peer { ROOM_FOR_PEERS } else { ROOM_FOR_STRANGERS };
        if pairs(is_peer).count() < room {
            return;
        }
        let count = |pair| pairs(is_peer).filter(|other| *other == pair).count();
        let most = pairs(is_peer).map(count).max().expect("there are some");
        let mut of_class = self.incomplete.iter().enumerate().filter(|(_, d)| d.is_peer == is_peer);
        let oldest = of_class.find(|(_, d)| count((d.key.0, d.key.1)) == most);
        let at = oldest.map(|(at, _)| at).expect("one of them has the most");
        self.drop_datagram(at, DropReason::FragmentEvicted);
    }

    fn add(&mut self, at: usize, sent: &Sent) -> Outcome {
        let datagram = &mut self.incomplete[at];
        if let Some(reason) = datagram.dropped {
            return Outcome::Dropped(reason);
        }
        let refuse = |datagram: &mut Incomplete, dropped: &mut BTreeMap<_, _>, reason| {
            datagram.dropped = Some(reason);
            *dropped.entry(reason).or_default() += 1;
            Outcome::Dropped(reason)
        };
        let all = || datagram.fragments.iter().chain([sent]);
        let last = all().filter(|f| !f.part.more).map(|f| spans(f).end).max();
        let contradicts =
            |end: usize| all().any(|f| if f.part.more { spans(f).end >= end } else { spans(f).end != end });
        if last.is_some_and(contradicts) {
            return refuse(datagram, &mut self.dropped, DropReason::FragmentMalformed);
        }
        if let Some(twin) = datagram.fragments.iter().find(|f| spans(f) == spans(sent)) {
            if twin.payload == sent.payload {
                return Outcome::Dropped(DropReason::FragmentDuplicate);
            }
            return refuse(datagram, &mut self.dropped, DropReason::FragmentOverlap);
        }
        let overlaps = |f: &Sent| spans(f).any(|byte| spans(sent).contains(&byte));
        if datagram.fragments.iter().any(overlaps) {
            return refuse(datagram, &mut self.dropped, DropReason::FragmentOverlap);
        }
        datagram.fragments.push(sent.clone());
        let bytes: BTreeMap<usize, u8> =
            datagram.fragments.iter().flat_map(|f| spans(f).zip(f.payload.iter().copied())).collect();
        if last != Some(bytes.len()) {
            return Outcome::Kept;
        }
        let datagram = self.incomplete.remove(at);
        whole(&datagram.fragments, bytes.into_values().collect())
    }
}

/// The datagram of these fragments.
fn whole(fragments: &[Sent], payload: Vec<u8>) -> Outcome {
    let first = fragments.iter().find(|f| f.part.offset == 0).expect("byte 0 is there");
    let fields: BTreeSet<u8> = fragments.iter().map(|f| f.ecn).collect();
    // RFC 3168 5.3: Not-ECT with anything else is a contradiction; otherwise congestion prevails.
    if fields.contains(&0) && fields.len() > 1 {
        return Outcome::Dropped(DropReason::FragmentEcn);
    }
    let ecn = if fields.contains(&3) { 3 } else { first.ecn };
    let mut header = first.header.clone();
    if header[0] >> 4 == 4 {
        header[1] = header[1] & 0xFC | ecn;
        let total = (header.len() + payload.len()) as u16;
        header[2..4].copy_from_slice(&total.to_be_bytes());
        mend(&mut header);
    } else {
        header[1] = header[1] & 0xCF | ecn << 4;
        let length = (header.len() - 40 + payload.len()) as u16;
        header[4..6].copy_from_slice(&length.to_be_bytes());
    }
    Outcome::Whole([header, payload].concat())
}

/// Byte `at` of the `epoch`th datagram with a key.
fn content(key: Key, epoch: u8, at: usize) -> u8 {
    (at as u8).wrapping_mul(31) ^ key.2 as u8 ^ key.0 << 4 ^ epoch.wrapping_mul(57) ^ (at >> 8) as u8
}

/// A fragment of one of a few datagrams, or of more than there is room for; most often a right one.
pub fn any_fragment(choose: Choose<'_>, is_crowded: bool) -> Sent {
    let version = one_of(choose, &[4u8, 6]);
    let (sources, identifications) = if is_crowded { (8, 6) } else { (1, 2) };
    let (source, destination) = (choose() % sources + choose() % 2 * 4, 1);
    let is_peer = source < 4;
    let identification = u32::from(choose() % identifications) << if version == 6 { 20 } else { 4 };
    let protocol = one_of(choose, &[50u8, 50, 50, 50, 50, 50, 50, 17]);
    let key = (source, destination << 4 | version, identification, if version == 4 { protocol } else { 0 });
    let epoch = choose() / 252;
    // Five parts: the unit makes datagrams of 40 bytes to 7,200.
    let unit = [1usize, 20, 180][key.2.count_ones() as usize % 3] * 8;
    let total = 4 * unit + 1 + usize::from(identification as u8 | (identification >> 20) as u8) % unit;
    let index = usize::from(choose()) % 5;
    let (mut offset, mut bytes) = (index * unit, if index == 4 { total - 4 * unit } else { unit });
    let mut more = index < 4;
    match choose() {
        0..4 => offset += 8,
        4..8 => bytes = (bytes + 8).min(total),
        8..12 => bytes = bytes.saturating_sub(usize::from(choose() % 9)),
        12..15 => more = !more,
        15 => bytes = 0,
        16 => offset = 65_528,
        _ => {}
    }
    // What begins and ends a datagram is no fragment of it.
    more |= offset == 0;
    let mut payload: Vec<u8> = (offset..offset + bytes).map(|at| content(key, epoch, at)).collect();
    if choose() < 4
        && let Some(byte) = payload.first_mut()
    {
        *byte ^= 0x80;
    }
    let ecn = one_of(choose, &[2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 1, 0]);
    let header = header_of(choose, version, key, protocol, ecn);
    let part = Part { offset, bytes, more };
    let mut packet = fragment_with(&header, identification, part, &payload);
    if version == 6 && offset != 0 {
        // Only what the first fragment says counts.
        packet[40] = choose();
    }
    Sent { packet, key, is_peer, part, payload, ecn, header }
}

/// The header of a whole datagram, without its length.
fn header_of(choose: Choose<'_>, version: u8, key: Key, protocol: u8, ecn: u8) -> Vec<u8> {
    let hops = choose();
    if version == 6 {
        let mut header = vec![0x6B, 0x80 | ecn << 4, 0, 0, 0, 0, protocol, hops];
        header.extend([0x20, 1, 0x0D, 0xB8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, key.0]);
        header.extend([0x20, 1, 0x0D, 0xB8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, key.1]);
        return header;
    }
    let [_, _, high, low] = key.2.to_be_bytes();
    let mut header = vec![0x45, 0xB8 | ecn, 0, 0, high, low, 0, 0, hops, protocol, 0, 0];
    header.extend([192, 0, 2, key.0, 198, 51, 100, key.1]);
    if choose().is_multiple_of(4) {
        header[0] = 0x46;
        header.extend([148, 4, 0, 0]);
    }
    header
}

/// Both, and the accounts of the packets.
pub struct Twins {
    reassembler: Reassembler,
    model: Model,
    pool: Pool,
    now: Moment,
    received: u64,
    sent: u64,
    dropped: BTreeMap<DropReason, u64>,
}

impl Default for Twins {
    fn default() -> Self {
        Self {
            reassembler: Reassembler::default(),
            model: Model::default(),
            pool: Pool::new(BUFFERS, 1584).with_long(BUFFERS, 65_535),
            now: Moment::default(),
            received: 0,
            sent: 0,
            dropped: BTreeMap::new(),
        }
    }
}

impl Twins {
    /// Lets some time pass, and gives a fragment to both.
    pub fn step(&mut self, choose: Choose<'_>) -> Outcome {
        match choose() {
            0 => self.now = Moment(self.now.0 + Duration::from_secs(choose().into()) / 8),
            1 => {
                self.reassembler.expire(self.now, &mut self.pool);
                self.model.expire(self.now);
            }
            _ => self.now = Moment(self.now.0 + Duration::from_millis(choose().into())),
        }
        let sent = any_fragment(choose, (self.now.0.as_secs() / 32).is_multiple_of(4));
        let expected = self.model.receive(&sent, self.now);
        let outcome = self.take(&sent);
        assert!(outcome == expected, "{} instead of {} for {sent}", name(&outcome), name(&expected));
        self.assert_books_balance();
        outcome
    }

    fn take(&mut self, sent: &Sent) -> Outcome {
        let Ok(header) = IpHeader::parse(&sent.packet) else {
            return Outcome::Dropped(DropReason::FragmentMalformed);
        };
        let mut buffer = self.pool.pop_for(sent.packet.len()).expect("a few buffers are enough");
        buffer.receive_area()[..sent.packet.len()].copy_from_slice(&sent.packet);
        buffer.set_len(sent.packet.len());
        self.received += 1;
        match self.reassembler.take(&mut buffer, &header, sent.is_peer, self.now, &mut self.pool) {
            Ok(Reassembled::Whole) => {
                let bytes = buffer.bytes().to_vec();
                self.pool.recycle(buffer);
                self.sent += 1;
                Outcome::Whole(bytes)
            }
            Ok(Reassembled::Kept) => {
                assert_eq!(buffer.capacity(), 0, "the buffer is kept");
                Outcome::Kept
            }
            Err(reason) => {
                self.pool.discard(buffer, reason);
                *self.dropped.entry(reason).or_default() += 1;
                Outcome::Dropped(reason)
            }
        }
    }

    fn assert_books_balance(&self) {
        let (pool, held) = (&self.pool, self.reassembler.incomplete());
        assert_eq!(held, self.model.held());
        assert_eq!(held, pool.in_use(), "each incomplete datagram has one buffer");
        assert_eq!(self.received, self.sent + pool.drops().total() + pool.merged() + held as u64);
        for (reason, count) in pool.drops().iter() {
            let [alone, datagrams] = [&self.dropped, &self.model.dropped].map(|d| d.get(&reason).copied());
            assert_eq!(count, alone.unwrap_or(0) + datagrams.unwrap_or(0), "{reason:?}");
        }
    }

    /// Nothing remains once time has passed. Returns all drops.
    pub fn finish(mut self) -> DropCounters {
        self.now = Moment(self.now.0 + Duration::from_secs(15));
        self.reassembler.expire(self.now, &mut self.pool);
        self.model.expire(self.now);
        self.assert_books_balance();
        assert_eq!(self.pool.in_use(), 0);
        self.pool.drops().clone()
    }
}
