//! Who is at which link-layer address: a bounded table with the states of RFC 4861 7.3.2, for ARP as well.
//!
//! ```text
//!            resolve                    an answer                     30 s, or doubt
//!   (none) ──────────► Incomplete ────────────────────► Reachable ──────────────────► Stale
//!      ▲                   │                                ▲                           │ resolve: used again
//!      │                   │ 3 asked in vain                └──────────── Probe ◄───────┘
//!      └───────────────────┴───────────────────────────────────────────── 3 asked in vain
//! ```
//!
//! There is no DELAY: no layer above tells that packets arrive, so that waiting for it would only take time.
//! In Probe packets still go to the known address.
//!
//! **A flood of invented addresses** cannot push out peers in use. An address that somebody asked for or
//! heard of is a *guest*: guests have a quarter of the table, in which the newest replaces the oldest. Who
//! was asked and has answered is a *resident*, and gives way only to another one, if it is unused for two
//! minutes. While residents fill their part, who answers remains a guest. What invents addresses *and*
//! answers for them is a host of the link itself, which could do worse.
//!
//! The table does nothing by itself: its [events](Neighbours::next_event) say what is to be sent or dropped.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;
use testudo_wire::ethernet::MacAddress;

/// How long an answer is believed (RFC 4861 10, `REACHABLE_TIME`).
pub const REACHABLE: Duration = Duration::from_secs(30);
/// Time between two questions (RFC 4861 10, `RETRANS_TIMER`).
pub const RETRANSMIT: Duration = Duration::from_secs(1);
/// How often is asked in vain (RFC 4861 10, `MAX_MULTICAST_SOLICIT`, `MAX_UNICAST_SOLICIT`).
const MAX_SOLICITATIONS: u8 = 3;
/// A resident that was unused for so long gives way to another one. Much longer than [`REACHABLE`], because
/// use is noted when a next hop is looked up, which is about as rare.
const IDLE: Duration = Duration::from_secs(120);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Incomplete,
    Reachable,
    Stale,
    Probe,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    address: IpAddr,
    /// Meaningless in `Incomplete`.
    mac: MacAddress,
    state: State,
    /// When `Reachable` ends, or when is asked again.
    deadline: Duration,
    asked: u8,
    used: Duration,
}

/// What the holder of the table is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NeighbourEvent {
    /// Ask for `address`: its known link-layer address, or everyone.
    Solicit {
        /// The neighbour.
        address: IpAddr,
        /// Where it was last.
        mac: Option<MacAddress>,
    },
    /// Packets that wait for it can be sent.
    Resolved {
        /// The neighbour.
        address: IpAddr,
        /// Its link-layer address.
        mac: MacAddress,
    },
    /// Nobody answered, or the entry gave way: packets that wait for it are lost.
    Failed {
        /// The neighbour.
        address: IpAddr,
    },
}

/// Where packets to a neighbour go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolution {
    /// To this link-layer address, until then at most; then look again.
    Known {
        /// Its link-layer address.
        mac: MacAddress,
        /// On the caller's clock.
        until: Duration,
    },
    /// Nowhere yet: an event will tell.
    Pending,
}

/// What a message says about a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heard {
    /// Its link-layer address; `None` where an answer leaves it out.
    pub mac: Option<MacAddress>,
    /// Whether it claims to be an answer. It is believed to be one if this table has asked.
    pub is_answer: bool,
    /// Whether it may replace another link-layer address (RFC 4861 7.2.5).
    pub overrides: bool,
    /// Whether an unknown neighbour gets an entry: only who asks for us does, who announces itself does not
    /// (Linux: `arp_accept` and `accept_untracked_na`, both off by default).
    pub creates: bool,
}

/// The table.
#[derive(Debug)]
pub struct Neighbours {
    /// Guests first, then residents.
    entries: Vec<Option<Entry>>,
    index: HashMap<IpAddr, usize>,
    guests: usize,
    /// The guest that the next one replaces.
    next_guest: usize,
    events: VecDeque<NeighbourEvent>,
    /// No entry has anything to do before; `MAX` if none has.
    next_timer: Duration,
    generation: u64,
}

impl Neighbours {
    /// A table of at most `capacity` entries, and at least 8.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.max(8);
        Self {
            entries: vec![None; capacity],
            // Twice, so that it neither grows nor has to be rehashed.
            index: HashMap::with_capacity(2 * capacity),
            guests: capacity / 4,
            next_guest: 0,
            // Each entry has at most one timer and one change at a time.
            events: VecDeque::with_capacity(2 * capacity),
            next_timer: Duration::MAX,
            generation: 0,
        }
    }

    /// Changes when an answer of [`resolve`](Self::resolve) may no longer hold.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// The link-layer address of a neighbour, if it is known; this does not count as use.
    #[must_use]
    pub fn mac(&self, address: IpAddr) -> Option<MacAddress> {
        let entry = self.entries[*self.index.get(&address)?].as_ref()?;
        (entry.state != State::Incomplete).then_some(entry.mac)
    }

    /// What is to be done next, in order.
    pub fn next_event(&mut self) -> Option<NeighbourEvent> {
        self.events.pop_front()
    }

    /// Where packets to `address` go. An unknown neighbour gets an entry and is asked for; one that was not
    /// heard of for long is asked again, while packets go to where it was.
    pub fn resolve(&mut self, address: IpAddr, now: Duration) -> Resolution {
        let slot = match self.index.get(&address) {
            Some(&slot) => slot,
            None => self.admit(address, now),
        };
        let Some(entry) = &mut self.entries[slot] else { return Resolution::Pending };
        entry.used = now;
        let is_over = entry.state == State::Reachable && now >= entry.deadline;
        if entry.state == State::Stale || is_over {
            (entry.state, entry.deadline, entry.asked) = (State::Probe, now + RETRANSMIT, 1);
            self.next_timer = self.next_timer.min(entry.deadline);
            self.events.push_back(NeighbourEvent::Solicit { address, mac: Some(entry.mac) });
        }
        match entry.state {
            State::Incomplete => Resolution::Pending,
            _ => Resolution::Known { mac: entry.mac, until: entry.deadline },
        }
    }

    /// A new entry, which is asked for.
    fn admit(&mut self, address: IpAddr, now: Duration) -> usize {
        let deadline = now + RETRANSMIT;
        let mac = MacAddress::default();
        self.next_timer = self.next_timer.min(deadline);
        self.events.push_back(NeighbourEvent::Solicit { address, mac: None });
        self.insert_guest(Entry { address, mac, state: State::Incomplete, deadline, asked: 1, used: now })
    }

    /// Puts an entry in the place of the oldest guest.
    fn insert_guest(&mut self, entry: Entry) -> usize {
        let slot = self.next_guest;
        self.next_guest = (slot + 1) % self.guests;
        self.remove(slot);
        self.index.insert(entry.address, slot);
        self.entries[slot] = Some(entry);
        slot
    }

    fn remove(&mut self, slot: usize) {
        if let Some(entry) = self.entries[slot].take() {
            self.index.remove(&entry.address);
            // Only these have been told by `resolve` since the generation changed: what is invented and
            // pushed out again changes nothing for the packets of others.
            self.generation += u64::from(matches!(entry.state, State::Reachable | State::Probe));
            if entry.state == State::Incomplete {
                self.events.push_back(NeighbourEvent::Failed { address: entry.address });
            }
        }
    }

    /// Notes what a message says about the neighbour `address` (RFC 4861 7.2.3, 7.2.5; RFC 826).
    pub fn hear(&mut self, address: IpAddr, heard: Heard, now: Duration) {
        let Some(&slot) = self.index.get(&address) else {
            if let (true, Some(mac)) = (heard.creates, heard.mac) {
                let (state, deadline) = (State::Stale, Duration::MAX);
                self.insert_guest(Entry { address, mac, state, deadline, asked: 0, used: now });
            }
            return;
        };
        let Some(entry) = &mut self.entries[slot] else { return };
        let was_asked = matches!(entry.state, State::Incomplete | State::Probe);
        let is_answer = heard.is_answer && was_asked;
        let mac = match heard.mac {
            Some(mac) => mac,
            None if entry.state == State::Incomplete => return,
            None => entry.mac,
        };
        let is_new = entry.state == State::Incomplete || mac != entry.mac;
        if is_new && entry.state != State::Incomplete && !heard.overrides {
            // Somebody else has the address, too: whom it belongs to is asked when it is used.
            if entry.state == State::Reachable {
                entry.state = State::Stale;
                self.generation += 1;
            }
            return;
        }
        let was_incomplete = entry.state == State::Incomplete;
        entry.mac = mac;
        if is_answer {
            (entry.state, entry.deadline) = (State::Reachable, now + REACHABLE);
        } else if is_new {
            entry.state = State::Stale;
        }
        self.generation += u64::from(is_new && !was_incomplete);
        if was_incomplete {
            self.events.push_back(NeighbourEvent::Resolved { address, mac });
        }
        if is_answer && slot < self.guests {
            self.promote(slot, now);
        }
    }

    /// Makes a guest that has answered a resident, if one may give way to it.
    fn promote(&mut self, guest: usize, now: Duration) {
        let is_idle = |entry: &Entry| now.saturating_sub(entry.used) >= IDLE;
        let residents = self.entries.iter().enumerate().skip(self.guests);
        let free = residents.clone().find(|(_, entry)| entry.is_none()).map(|(slot, _)| slot);
        let idle = || {
            let idle = residents.filter_map(|(slot, entry)| Some((entry.filter(is_idle)?.used, slot)));
            idle.min().map(|(_, slot)| slot)
        };
        let Some(slot) = free.or_else(idle) else { return };
        self.remove(slot);
        self.entries[slot] = self.entries[guest].take();
        if let Some(entry) = &self.entries[slot] {
            self.index.insert(entry.address, slot);
        }
    }

    /// Forgets a neighbour: a kernel says that it is gone.
    pub fn forget(&mut self, address: IpAddr) {
        if let Some(&slot) = self.index.get(&address) {
            self.remove(slot);
        }
    }

    /// Asks again, and gives up, where it is time. Costs a comparison while it is not.
    pub fn expire(&mut self, now: Duration) {
        if now < self.next_timer {
            return;
        }
        self.next_timer = Duration::MAX;
        for slot in 0..self.entries.len() {
            let Some(entry) = &mut self.entries[slot] else { continue };
            let known = match entry.state {
                State::Incomplete => None,
                State::Probe => Some(entry.mac),
                State::Reachable | State::Stale => continue,
            };
            if now >= entry.deadline && entry.asked >= MAX_SOLICITATIONS {
                self.remove(slot);
                continue;
            }
            if now >= entry.deadline {
                (entry.asked, entry.deadline) = (entry.asked + 1, now + RETRANSMIT);
                let address = entry.address;
                self.events.push_back(NeighbourEvent::Solicit { address, mac: known });
            }
            self.next_timer = self.next_timer.min(entry.deadline);
        }
    }
}

#[cfg(test)]
#[path = "tests/neighbours.rs"]
mod tests;
