//! The datagrams that are incomplete, and what each fragment does to them.

use super::datagram::{Datagram, Refusal};
use super::shares::{Pair, ShareIndex, Shares};
use crate::ecn;
use crate::lifetime::Moment;
use hashbrown::HashMap;
use std::time::Duration;
use testudo_packet::{Buffer, DropReason, Interface, Pool};
use testudo_wire::ah::AhHeader;
use testudo_wire::ip::{IpHeader, Version};
use testudo_wire::protocol;
use testudo_wire::reassembly::ReceivedFragment;

/// How long a datagram may take, from its first fragment to arrive (RFC 791 3.2; RFC 8200 4.5 allows 60 s).
const TIMEOUT: Duration = Duration::from_secs(15);
/// Datagrams of the same pair of addresses that may begin after one that is incomplete. Over IPv4 the same
/// Identification comes again after 65,536, or sooner: unfragmented packets use them up, too (RFC 4963).
const MAX_LATER: u32 = 1024;
/// Incomplete datagrams at most, and the part of the pool that they may take.
const MAX_INCOMPLETE: usize = 256;
const PART_OF_THE_POOL: usize = 8;
/// The part of the room for sources that are no peers.
const PART_FOR_STRANGERS: usize = 4;

/// What became of a fragment that was not dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reassembled {
    /// The whole datagram is in the buffer now.
    Whole,
    /// The datagram is not complete. The buffer is empty: its bytes are kept.
    Kept,
}

/// What fragments of one datagram have in common (RFC 791 3.2, RFC 8200 4.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    pair: Pair,
    identification: u32,
    /// 0 over IPv6, where it is not a part of the key.
    protocol: u8,
    /// Hosts behind different interfaces may have the same addresses.
    interface: Interface,
}

/// A datagram, or the place of one that was dropped, whose later fragments are dropped, too.
#[derive(Debug)]
struct Entry {
    key: Key,
    since: Moment,
    /// Its number among the datagrams of its pair.
    number: u32,
    state: State,
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "at most 256 exist, and most are incomplete")]
enum State {
    Incomplete(Datagram),
    Dropped(DropReason),
}

/// Incomplete datagrams of peers, or of all others.
#[derive(Debug, Default)]
struct Table {
    index: HashMap<Key, u16, foldhash::fast::RandomState>,
    entries: Vec<Entry>,
    /// The share of each entry, and a number that is lower for older ones.
    ages: Vec<(ShareIndex, u64)>,
    shares: Shares<Pair>,
    begun: u64,
}

/// Puts fragments together. See the [module](super) for its rules and bounds.
///
/// One belongs to a worker. It allocates its tables with the first fragments, and nothing later.
#[derive(Debug, Default)]
pub struct Reassembler {
    peers: Table,
    strangers: Table,
}

impl Reassembler {
    /// Takes a fragment of a datagram that is addressed to us. `header` was parsed from `buffer`, which has
    /// no bytes after the packet, and has its interface. `is_peer` says whether an SA sends to its source.
    ///
    /// # Errors
    /// The reason to drop the fragment, which is still in `buffer` then. Where its whole datagram is dropped,
    /// that has been discarded to `pool` for the same reason, as one packet.
    pub fn take(
        &mut self,
        buffer: &mut Buffer,
        header: &IpHeader,
        is_peer: bool,
        now: Moment,
        pool: &mut Pool,
    ) -> Result<Reassembled, DropReason> {
        let fragment = ReceivedFragment::read(header, buffer.bytes()).ok_or(DropReason::FragmentMalformed)?;
        check(&fragment, header, buffer.bytes())?;
        let pair = Pair { source: header.source, destination: header.destination };
        let is_v4 = header.version == Version::V4;
        let protocol = if is_v4 { fragment.protocol } else { 0 };
        let key =
            Key { pair, identification: fragment.identification, protocol, interface: buffer.interface() };
        let room = room(pool, is_peer);
        let table = if is_peer { &mut self.peers } else { &mut self.strangers };
        table.end_if_stale(&key, now, pool);
        match table.index.get(&key) {
            Some(&at) => table.add(at.into(), buffer, &fragment, header.traffic_class, pool),
            None => table.begin(key, room, buffer, (&fragment, header.traffic_class), now, pool),
        }
    }

    /// Drops what is incomplete for too long. To be called about once a second.
    pub fn expire(&mut self, now: Moment, pool: &mut Pool) {
        for table in [&mut self.peers, &mut self.strangers] {
            table.drop_where(DropReason::FragmentTimeout, pool, |entry| now.since(entry.since) >= TIMEOUT);
        }
    }

    /// Drops everything that is incomplete, for this reason: no fragment will come any more.
    pub fn discard_all(&mut self, reason: DropReason, pool: &mut Pool) {
        for table in [&mut self.peers, &mut self.strangers] {
            table.drop_where(reason, pool, |_| true);
        }
    }

    /// Datagrams that are incomplete, each of which has a buffer of the pool.
    #[must_use]
    pub fn incomplete(&self) -> usize {
        let entries = self.peers.entries.iter().chain(&self.strangers.entries);
        entries.filter(|entry| matches!(entry.state, State::Incomplete(_))).count()
    }
}

/// How many datagrams of peers, or of others, may be incomplete.
fn room(pool: &Pool, is_peer: bool) -> usize {
    let all = (pool.size() / PART_OF_THE_POOL).min(MAX_INCOMPLETE);
    let strangers = all / PART_FOR_STRANGERS;
    if is_peer { all - strangers } else { strangers }
}

/// The rules that a fragment must keep by itself (RFC 791 3.2, RFC 8200 4.5): one that breaks them is dropped
/// alone.
fn check(fragment: &ReceivedFragment, header: &IpHeader, packet: &[u8]) -> Result<(), DropReason> {
    let bytes = fragment.payload_bytes();
    let is_aligned = !fragment.more || bytes.is_multiple_of(8);
    // The wire's parse has checked this for IPv6, and for IPv4 without the header.
    let longest =
        usize::from(u16::MAX) - if header.version == Version::V4 { fragment.header_bytes } else { 0 };
    if bytes == 0 || !is_aligned || fragment.end_bytes() > longest {
        return Err(DropReason::FragmentMalformed);
    }
    let is_first = fragment.offset_bytes == 0;
    if is_first && header.version == Version::V6 && !has_whole_chain(header, packet) {
        return Err(DropReason::FragmentMalformed);
    }
    Ok(())
}

/// Whether a first fragment of IPv6 has all headers up to that of the next layer (RFC 7112 5). The wire's
/// parse has refused those that end within an extension header; eight bytes are the header of ESP or UDP.
fn has_whole_chain(header: &IpHeader, packet: &[u8]) -> bool {
    let next_layer = header.payload(packet);
    match header.protocol {
        protocol::AH => AhHeader::parse(next_layer).is_ok(),
        protocol::NO_NEXT_HEADER => true,
        _ => next_layer.len() >= 8,
    }
}

impl Table {
    /// Adds a fragment to the datagram at this index.
    fn add(
        &mut self,
        at: usize,
        buffer: &mut Buffer,
        fragment: &ReceivedFragment,
        traffic_class: u8,
        pool: &mut Pool,
    ) -> Result<Reassembled, DropReason> {
        let datagram = match &mut self.entries[at].state {
            State::Incomplete(datagram) => datagram,
            State::Dropped(reason) => return Err(*reason),
        };
        match datagram.add(buffer.bytes(), fragment, traffic_class & ecn::MASK, pool) {
            Ok(()) => {}
            Err(Refusal::Fragment(reason)) => return Err(reason),
            Err(Refusal::Datagram(reason)) => {
                self.refuse(at, reason, pool);
                return Err(reason);
            }
        }
        let is_complete = datagram.is_complete();
        pool.merge(std::mem::take(buffer), datagram.buffer());
        if !is_complete {
            return Ok(Reassembled::Kept);
        }
        let State::Incomplete(datagram) = self.remove(at).state else { return Ok(Reassembled::Kept) };
        match datagram.into_whole() {
            Ok(whole) => {
                *buffer = whole;
                Ok(Reassembled::Whole)
            }
            Err((whole, reason)) => {
                *buffer = whole;
                Err(reason)
            }
        }
    }

    /// Begins the datagram of a fragment; if there is no room, another one ends.
    fn begin(
        &mut self,
        key: Key,
        room: usize,
        buffer: &mut Buffer,
        (fragment, traffic_class): (&ReceivedFragment, u8),
        now: Moment,
        pool: &mut Pool,
    ) -> Result<Reassembled, DropReason> {
        if room == 0 {
            return Err(DropReason::FragmentLimit);
        }
        if self.entries.capacity() < room {
            self.reserve(room);
        }
        let datagram = Datagram::begin(buffer, fragment, traffic_class & ecn::MASK, pool)?;
        if self.entries.len() >= room
            && let Some(victim) = self.shares.victim(self.ages.iter().copied())
        {
            self.drop_entry(victim, DropReason::FragmentEvicted, pool);
        }
        let (share, number) = self.shares.begin(key.pair);
        self.begun += 1;
        let at = u16::try_from(self.entries.len()).unwrap_or(u16::MAX);
        self.index.insert(key, at);
        self.ages.push((share, self.begun));
        self.entries.push(Entry { key, since: now, number, state: State::Incomplete(datagram) });
        Ok(Reassembled::Kept)
    }

    /// Gives the tables their final size. Those that are hashed get twice as much: where entries come and go,
    /// a table that is more than half full would grow to get rid of their traces.
    #[cold]
    fn reserve(&mut self, room: usize) {
        self.entries.reserve_exact(room);
        self.ages.reserve_exact(room);
        self.index.reserve(2 * room);
        self.shares.reserve(room);
    }

    /// Ends a datagram whose time is over, so that a fragment with the same key begins another one.
    fn end_if_stale(&mut self, key: &Key, now: Moment, pool: &mut Pool) {
        let Some(at) = self.index.get(key).map(|at| usize::from(*at)) else { return };
        let (entry, (share, _)) = (&self.entries[at], self.ages[at]);
        let is_stale =
            now.since(entry.since) >= TIMEOUT || self.shares.begun_since(share, entry.number) > MAX_LATER;
        if is_stale {
            self.drop_entry(at, DropReason::FragmentTimeout, pool);
        }
    }

    /// Drops a datagram and keeps its place, so that its later fragments are dropped, too.
    fn refuse(&mut self, at: usize, reason: DropReason, pool: &mut Pool) {
        let state = std::mem::replace(&mut self.entries[at].state, State::Dropped(reason));
        discard(state, reason, pool);
    }

    fn drop_where(&mut self, reason: DropReason, pool: &mut Pool, is_over: impl Fn(&Entry) -> bool) {
        for at in (0..self.entries.len()).rev() {
            if is_over(&self.entries[at]) {
                self.drop_entry(at, reason, pool);
            }
        }
    }

    fn drop_entry(&mut self, at: usize, reason: DropReason, pool: &mut Pool) {
        discard(self.remove(at).state, reason, pool);
    }

    /// Takes an entry out; the last one moves to its index.
    fn remove(&mut self, at: usize) -> Entry {
        let entry = self.entries.swap_remove(at);
        let (share, _) = self.ages.swap_remove(at);
        self.shares.end(share);
        self.index.remove(&entry.key);
        if let Some(moved) = self.entries.get(at)
            && let Some(index) = self.index.get_mut(&moved.key)
        {
            *index = u16::try_from(at).unwrap_or(u16::MAX);
        }
        entry
    }
}

fn discard(state: State, reason: DropReason, pool: &mut Pool) {
    if let State::Incomplete(datagram) = state {
        pool.discard(datagram.into_buffer(), reason);
    }
}
