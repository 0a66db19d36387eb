//! What happens to each packet of a replay: when it was captured, so that what it becomes has the same time
//! stamp, and, for a list, how it ended and on whose account.
//!
//! The worker's pool owns the journal, the replay has the notes: it takes what has ended after each turn.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use testudo_ipsec::Flow;
use testudo_packet::{Buffer, DropReason, Journal, Passage, Record};
use testudo_wire::ip::IpHeader;

/// The port to the protected side; the other one is that to the unprotected side.
pub const PROTECTED: &str = "protected";

/// A packet of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Whether the file is that of the protected side.
    pub is_protected: bool,
    /// The packet's number in it, from 1.
    pub number: u64,
}

/// How a packet ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// A port sent it.
    Sent(Place),
    /// It was dropped.
    Dropped(DropReason),
    /// A fragment, put together with others: what became of the datagram is told of this one.
    Joined(Option<Place>),
}

/// A packet as it was captured.
#[derive(Debug, Clone)]
pub struct Captured {
    pub place: Place,
    /// Since the start of 1970.
    pub time: Option<Duration>,
    /// Bytes of the datagram; 0 where the record holds none, or none that fits.
    pub bytes: usize,
    /// Its header and the first bytes after it, if it is a datagram.
    pub header: Option<(IpHeader, Vec<u8>)>,
    /// What policy sees of it.
    pub flow: Option<Flow>,
}

/// What a list says of a packet.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The packet that it came from; `None` for one that the gateway sent by itself.
    pub captured: Option<Captured>,
    /// Whether the gateway made it of that one: a further fragment, or a message about it.
    pub is_derived: bool,
    /// The SAs that it went through, or the last of which refused it.
    pub passages: Vec<Passage>,
    pub end: End,
    /// What policy sees of the packet that a port sent.
    pub sent: Option<Flow>,
    /// The bytes of a packet that was dropped after an SA took it.
    pub rest: Vec<u8>,
}

/// A packet that has not ended.
#[derive(Debug, Clone, Default)]
struct UnderWay {
    time: Option<Duration>,
    captured: Option<Captured>,
    is_derived: bool,
    passages: Vec<Passage>,
}

impl UnderWay {
    fn ended(self, end: End) -> Entry {
        let Self { captured, is_derived, passages, .. } = self;
        Entry { captured, is_derived, passages, end, sent: None, rest: Vec::new() }
    }
}

#[derive(Debug, Default)]
struct State {
    is_list: bool,
    /// By the identity of their buffers: as many as the pool has.
    under_way: HashMap<usize, UnderWay>,
    /// In order, since they were last taken.
    ended: Vec<Entry>,
}

/// The notes of a replay; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Notes(Arc<Mutex<State>>);

impl Notes {
    /// Notes of times, and, if `is_list`, of all that a list needs.
    pub fn new(is_list: bool) -> Self {
        Self(Arc::new(Mutex::new(State { is_list, ..State::default() })))
    }

    /// The packets that have ended since this was last called.
    pub fn take(&self) -> Vec<Entry> {
        std::mem::take(&mut self.state().ended)
    }

    /// The packets that have not ended: an engine has kept them. The gateway counts them as dropped, too.
    pub fn take_lost(&self) -> Vec<Entry> {
        let lost = std::mem::take(&mut self.state().under_way);
        let lost = lost.into_values().map(|packet| packet.ended(End::Dropped(DropReason::ShuttingDown)));
        let mut lost: Vec<_> = lost.collect();
        lost.sort_by_key(|entry| entry.captured.as_ref().map(|captured| captured.place));
        lost
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn end(&mut self, packet: &Buffer) -> UnderWay {
        packet.identity().and_then(|packet| self.under_way.remove(&packet)).unwrap_or_default()
    }

    fn note(&mut self, packet: &Buffer, what: UnderWay) {
        if let Some(packet) = packet.identity() {
            self.under_way.insert(packet, what);
        }
    }
}

fn captured(packet: &Buffer, record: Record<'_>) -> Captured {
    /// Enough for a UDP header and the fixed part of ESP or AH.
    const FIRST_BYTES: usize = 40;
    let bytes = packet.bytes();
    let place = Place { is_protected: record.port == PROTECTED, number: record.number };
    let header = IpHeader::parse(bytes).ok();
    let flow = header.map(|header| match place.is_protected {
        true => Flow::outbound(&header, bytes),
        false => Flow::inbound(&header, bytes),
    });
    let header = header.map(|header| {
        let payload = header.payload(bytes);
        (header, payload[..payload.len().min(FIRST_BYTES)].to_vec())
    });
    Captured { place, time: record.time, bytes: bytes.len(), header, flow }
}

/// What policy sees of a packet from the unprotected side.
pub fn inbound_flow(packet: &[u8]) -> Option<Flow> {
    IpHeader::parse(packet).ok().map(|header| Flow::inbound(&header, packet))
}

impl Journal for Notes {
    fn received(&mut self, packet: &Buffer, record: Record<'_>) {
        let mut state = self.state();
        let captured = state.is_list.then(|| captured(packet, record));
        state.note(packet, UnderWay { time: record.time, captured, ..UnderWay::default() });
    }

    fn derived(&mut self, packet: &Buffer, from: &Buffer) {
        let mut state = self.state();
        let from = from.identity().and_then(|from| state.under_way.get(&from)).cloned();
        state.note(packet, UnderWay { is_derived: true, ..from.unwrap_or_default() });
    }

    /// A datagram is there when the last of its fragments is.
    fn moved(&mut self, from: &Buffer, to: &Buffer) {
        let mut state = self.state();
        let packet = state.end(from);
        state.note(to, packet);
    }

    fn joined(&mut self, part: &Buffer, whole: &Buffer) {
        let mut state = self.state();
        let part = state.end(part);
        let whole = whole.identity().and_then(|whole| state.under_way.get_mut(&whole));
        let place = whole.and_then(|whole| {
            whole.time = whole.time.max(part.time);
            whole.captured.as_ref().map(|captured| captured.place)
        });
        if state.is_list {
            state.ended.push(part.ended(End::Joined(place)));
        }
    }

    fn assigned(&mut self, packet: &Buffer, passage: Passage) {
        let mut state = self.state();
        if state.is_list
            && let Some(packet) = packet.identity()
        {
            state.under_way.entry(packet).or_default().passages.push(passage);
        }
    }

    fn sent(&mut self, packet: &Buffer, port: &str, number: u64) -> Option<Duration> {
        let mut state = self.state();
        let under_way = state.end(packet);
        let time = under_way.time;
        if state.is_list {
            let is_protected = port == PROTECTED;
            let sent = if is_protected { inbound_flow(packet.bytes()) } else { None };
            let entry = under_way.ended(End::Sent(Place { is_protected, number }));
            state.ended.push(Entry { sent, ..entry });
        }
        time
    }

    fn dropped(&mut self, packet: &Buffer, reason: DropReason) {
        let mut state = self.state();
        let under_way = state.end(packet);
        if state.is_list {
            let is_taken = !under_way.passages.is_empty();
            let rest = if is_taken { packet.bytes().to_vec() } else { Vec::new() };
            state.ended.push(Entry { rest, ..under_way.ended(End::Dropped(reason)) });
        }
    }
}
