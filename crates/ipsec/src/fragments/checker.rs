//! Stateful fragment checking (RFC 4301 7.3, 7.4): later fragments follow the decision on their first one.
//!
//! All fragments of a datagram but the first hide its ports, and over IPv6 its protocol. Where policy asks
//! for these, a later fragment cannot be decided by itself. So the decision on each first fragment of that
//! kind is remembered for a moment:
//!
//! ```text
//!   first fragment  ─► SPD ─► protect, bypass, discard ──► noted under its datagram's key
//!   later fragment  ─► SPD ─► "fields hidden" ───────────► what was noted; nothing noted: dropped
//! ```
//!
//! **Never a way past policy.** A later fragment passes only
//!
//! - on the same way as its first one: from the protected side, in clear from the unprotected side, or out of
//!   the same tunnel. So a forged datagram in clear decides nothing for what comes through a tunnel (7.4);
//! - after its first one: what overtakes it is dropped; and the first one must show all of its fields, or it
//!   was decided on as what it shows (7.2);
//! - where it carries none of the bytes that the first one had: those were what policy looked at. One that
//!   overlaps them ends the datagram (RFC 5722 3, RFC 3128), and so does another first fragment with other
//!   fields, another decision or length: nobody can tell to which of both a later one belongs;
//! - where policy says of the first one now what it said when that came. The fields that it showed are kept,
//!   and for each later fragment the SPD and the SA's selectors are asked about them again, as they are in
//!   force. So nothing can be missed when these change, a change that concerns the datagram ends it, and one
//!   that does not, such as the policy of another flow that begins or ends, takes nothing from it;
//! - through or out of the tunnel that its first one went or came through: not through another one that has
//!   its place since, whatever policy says of that place;
//! - within a second of its first one, and not once all bytes of the datagram have come. Then the
//!   Identification may belong to another datagram (RFC 4963).
//!
//! **PROTECT** by a policy on ports needs the consent of the other end: "if an implementation does not
//! successfully negotiate transmission of non-initial fragments for such an SA, it MUST NOT send such
//! fragments over the SA", and a receiver "MUST discard" them (7.3). With manual keys the operator says so
//! for both ends. BYPASS always follows, which all implementations MUST support (7.4).
//!
//! **Memory.** 512 datagrams from the protected side, in clear, and through tunnels, a table of its own for
//! each, with the first fragment in it. A new datagram is always taken; if there is no room, the tunnel that
//! has the most makes it, by the oldest datagram of its source that has the most. So one source cannot take
//! the room of others, a peer that invents addresses that of other peers, a flood in clear takes nothing from
//! what comes through tunnels or from inside, and what is pushed out was not to be used for more than a
//! second.

use super::shares::{ShareIndex, Shares};
use crate::lifetime::Moment;
use crate::spd::{Action, Flow, TunnelIndex};
use hashbrown::HashMap;
use std::cmp::Reverse;
use std::net::IpAddr;
use std::time::Duration;
use testudo_packet::Interface;
use testudo_wire::ip::{IpHeader, Version};
use testudo_wire::reassembly::ReceivedFragment;

/// How long a decision holds. A gateway sees fragments right after each other.
const LIFETIME: Duration = Duration::from_secs(1);
/// Datagrams at most on each way.
const ROOM: usize = 512;

/// Where a fragment comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Way {
    /// This interface of the protected side.
    Outbound(Interface),
    /// The unprotected side, in clear.
    Clear,
    /// The unprotected side, through a tunnel.
    Tunnel(TunnelIndex),
}

/// What fragments of one datagram have in common (RFC 791 3.2, RFC 8200 4.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    way: Way,
    source: IpAddr,
    destination: IpAddr,
    identification: u32,
    /// 0 over IPv6, where it is not a part of the key.
    protocol: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Later fragments share what happens to the first one.
    Follow(Decision),
    /// They are dropped.
    Drop,
}

/// What happens to a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Decision {
    action: Action,
    /// The number of the tunnel that it goes or came through, if any.
    tunnel: u32,
}

/// What is known of the tunnel at an index.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    /// How many tunnels have begun and ended here, modulo 2^32: the number of the present one.
    number: u32,
    /// Whether its other end takes later fragments.
    agrees: bool,
}

/// The decision on a datagram.
#[derive(Debug)]
struct Entry {
    key: Key,
    since: Moment,
    state: State,
    /// What the first fragment showed.
    first: Flow,
    /// Where the first fragment ends in the datagram's payload.
    first_end: usize,
    /// Bytes of payload that have come, and all, once that is known.
    come: usize,
    total: Option<usize>,
}

#[derive(Debug, Default)]
struct Table {
    index: HashMap<Key, u16, foldhash::fast::RandomState>,
    entries: Vec<Entry>,
    /// Who has each entry.
    owners: Vec<Owner>,
    ways: Shares<Way>,
    sources: Shares<(Way, IpAddr)>,
    begun: u64,
}

/// Who has an entry, and a number that is lower for older ones.
#[derive(Debug, Clone, Copy)]
struct Owner {
    way: ShareIndex,
    source: ShareIndex,
    age: u64,
}

/// Remembers the decisions on first fragments. See the [module](self) for rules and bounds.
///
/// One belongs to a worker. It allocates a table with the first fragment on a way, and nothing later.
#[derive(Debug, Default)]
pub(crate) struct FragmentChecker {
    outbound: Table,
    clear: Table,
    tunnels: Table,
    /// By the indices of tunnels.
    places: Vec<Place>,
}

impl FragmentChecker {
    /// With room for so many tunnels, before a table is moved.
    pub(crate) fn with_room_for(tunnels: usize) -> Self {
        Self { places: Vec::with_capacity(tunnels), ..Self::default() }
    }

    /// Notes that a tunnel begins, and whether its other end takes fragments that hide what its policies ask
    /// for (RFC 4301 7.3).
    pub(crate) fn begin(&mut self, TunnelIndex(index): TunnelIndex, agrees: bool) {
        let index = index as usize;
        if self.places.len() <= index {
            self.places.resize(index + 1, Place::default());
        }
        let place = &mut self.places[index];
        *place = Place { number: place.number.wrapping_add(1), agrees };
    }

    /// Notes that a tunnel has ended: no later fragment follows its first one through it.
    pub(crate) fn end(&mut self, TunnelIndex(index): TunnelIndex) {
        if let Some(place) = self.places.get_mut(index as usize) {
            *place = Place { number: place.number.wrapping_add(1), agrees: false };
        }
    }

    /// Notes the decision on a first fragment that shows `first`, of a datagram whose later ones hide what
    /// policy asks for. `None` is any reason to drop it.
    pub(crate) fn note(
        &mut self,
        way: Way,
        header: &IpHeader,
        fragment: &ReceivedFragment,
        (first, decision): (Flow, Option<Action>),
        now: Moment,
    ) {
        let decision = decision.and_then(|action| Decision::of(action, &self.places));
        let state = decision.map_or(State::Drop, State::Follow);
        let (key, end) = (key(way, header, fragment), fragment.end_bytes());
        let entry = Entry { key, since: now, state, first, first_end: end, come: end, total: None };
        let (table, _) = self.parts(way);
        table.note(entry);
    }

    /// What is done with a later fragment that hides what policy asks for: what was done with its first one,
    /// if policy `says` the same of that one now. `None` drops it.
    pub(crate) fn follow(
        &mut self,
        way: Way,
        header: &IpHeader,
        fragment: &ReceivedFragment,
        now: Moment,
        says: impl FnOnce(&Flow) -> Option<Action>,
    ) -> Option<Action> {
        let key = key(way, header, fragment);
        let (table, places) = self.parts(way);
        let holds = |decision: Decision, first: &Flow| {
            Decision::of(decision.action, places) == Some(decision) && says(first) == Some(decision.action)
        };
        table.follow(&key, fragment, now, holds)
    }

    /// The table of a way, and what is known of tunnels.
    fn parts(&mut self, way: Way) -> (&mut Table, &[Place]) {
        let table = match way {
            Way::Outbound(_) => &mut self.outbound,
            Way::Clear => &mut self.clear,
            Way::Tunnel(_) => &mut self.tunnels,
        };
        (table, &self.places)
    }
}

impl Decision {
    /// The decision for an action, if later fragments may follow it.
    fn of(action: Action, places: &[Place]) -> Option<Self> {
        match action {
            Action::Protect(TunnelIndex(index)) => {
                let place = places.get(index as usize).filter(|place| place.agrees)?;
                Some(Self { action, tunnel: place.number })
            }
            Action::Bypass => Some(Self { action, tunnel: 0 }),
            // One that has no SA yet leads nowhere.
            Action::Populate(_) | Action::Discard => None,
        }
    }
}

fn key(way: Way, header: &IpHeader, fragment: &ReceivedFragment) -> Key {
    let protocol = if header.version == Version::V4 { fragment.protocol } else { 0 };
    let (source, destination) = (header.source, header.destination);
    Key { way, source, destination, identification: fragment.identification, protocol }
}

impl Table {
    fn note(&mut self, first: Entry) {
        if self.entries.capacity() < ROOM {
            self.reserve();
        }
        if let Some(at) = self.current(&first.key, first.since) {
            let known = &mut self.entries[at];
            let is_same =
                (known.state, known.first, known.first_end) == (first.state, first.first, first.first_end);
            let state = if is_same { first.state } else { State::Drop };
            *known = Entry { state, ..first };
            return;
        }
        if self.entries.len() >= ROOM
            && let Some(victim) = self.victim()
        {
            self.remove(victim);
        }
        let (way, _) = self.ways.begin(first.key.way);
        let (source, _) = self.sources.begin((first.key.way, first.key.source));
        self.begun += 1;
        let at = u16::try_from(self.entries.len()).unwrap_or(u16::MAX);
        self.index.insert(first.key, at);
        self.owners.push(Owner { way, source, age: self.begun });
        self.entries.push(first);
    }

    /// Which entry makes room. Where nothing comes through tunnels, all have the same way.
    fn victim(&self) -> Option<usize> {
        let weight = |owner: &Owner| {
            (self.ways.weight(owner.way), self.sources.weight(owner.source), Reverse(owner.age))
        };
        self.owners.iter().enumerate().max_by_key(|(_, owner)| weight(owner)).map(|(at, _)| at)
    }

    /// What happens to a later fragment, if the decision on its first one still `holds`.
    fn follow(
        &mut self,
        key: &Key,
        fragment: &ReceivedFragment,
        now: Moment,
        holds: impl FnOnce(Decision, &Flow) -> bool,
    ) -> Option<Action> {
        let at = self.current(key, now)?;
        let entry = &mut self.entries[at];
        if let State::Follow(decision) = entry.state
            && (fragment.offset_bytes < entry.first_end || !holds(decision, &entry.first))
        {
            entry.state = State::Drop;
        }
        entry.come = entry.come.saturating_add(fragment.payload_bytes());
        if !fragment.more {
            entry.total = Some(fragment.end_bytes());
        }
        let state = entry.state;
        let is_complete = entry.total.is_some_and(|total| entry.come >= total);
        // What is dropped stays, so that nothing of it passes in the name of another first fragment.
        if is_complete && state != State::Drop {
            self.remove(at);
        }
        match state {
            State::Follow(decision) => Some(decision.action),
            State::Drop => None,
        }
    }

    /// Where the entry of a key is, if it still holds.
    fn current(&mut self, key: &Key, now: Moment) -> Option<usize> {
        let at = self.index.get(key).map(|at| usize::from(*at))?;
        if now.since(self.entries[at].since) < LIFETIME {
            return Some(at);
        }
        self.remove(at);
        None
    }

    /// Gives the tables their final size; what is hashed gets twice as much (see `Reassembler`).
    #[cold]
    fn reserve(&mut self) {
        self.entries.reserve_exact(ROOM);
        self.owners.reserve_exact(ROOM);
        self.index.reserve(2 * ROOM);
        self.ways.reserve(ROOM);
        self.sources.reserve(ROOM);
    }

    /// Takes an entry out; the last one moves to its index.
    fn remove(&mut self, at: usize) {
        let entry = self.entries.swap_remove(at);
        let owner = self.owners.swap_remove(at);
        self.ways.end(owner.way);
        self.sources.end(owner.source);
        self.index.remove(&entry.key);
        if let Some(moved) = self.entries.get(at)
            && let Some(index) = self.index.get_mut(&moved.key)
        {
            *index = u16::try_from(at).unwrap_or(u16::MAX);
        }
    }
}
