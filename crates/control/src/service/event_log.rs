//! Decides which events of tunnels become log lines. Each kind has a limited rate, which no peer
//! can raise.
//!
//! A peer's move is logged once the peer has stayed for a while ([`STABLE`]); a peer that keeps moving is
//! logged once a minute.

use crate::config::Tunnel;
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use testudo_ipsec::{Event, EventKind, LearnedFrom, TunnelIndex};

/// Lines of one kind per [`WINDOW`], over all tunnels.
const MAX_LINES: u32 = 10;
const WINDOW: Duration = Duration::from_secs(1);
/// How long a peer must stay at an address before its move is logged.
const STABLE: Duration = Duration::from_secs(3);
/// How long a peer may keep moving before that is logged.
const RESTLESS: Duration = Duration::from_secs(60);
/// How often [`EventLog::due`] checks the peers that have moved.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// A line for the log, with its level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    level: tracing::Level,
    text: String,
}

impl Line {
    fn new(level: tracing::Level, text: String) -> Self {
        Self { level, text }
    }

    /// Writes it.
    pub(super) fn write(&self) {
        match self.level {
            tracing::Level::ERROR => tracing::error!("{}", self.text),
            tracing::Level::WARN => tracing::warn!("{}", self.text),
            _ => tracing::info!("{}", self.text),
        }
    }
}

/// Kinds with separate limits, so that many of one do not hide the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    SoftLifetime,
    HardLifetime,
    SequenceExhausted,
    SequenceNotLeased,
    Resynchronised,
    TookOver,
    PeerMoved,
    PeerRestless,
    PathMtu,
    Acquire,
    SenderTwice,
    SenderTaken,
    Lost,
}

impl Kind {
    const ALL: [Self; 13] = [
        Self::SoftLifetime,
        Self::HardLifetime,
        Self::SequenceExhausted,
        Self::SequenceNotLeased,
        Self::Resynchronised,
        Self::TookOver,
        Self::PeerMoved,
        Self::PeerRestless,
        Self::PathMtu,
        Self::Acquire,
        Self::SenderTwice,
        Self::SenderTaken,
        Self::Lost,
    ];

    /// What happened to an SA.
    fn of_one(self) -> &'static str {
        match self {
            Self::SoftLifetime => "reached its soft lifetime: give it a new key soon",
            Self::HardLifetime => "reached its hard lifetime and has stopped: give it a new key",
            Self::SequenceExhausted => "has used all sequence numbers and has stopped: give it a new key",
            Self::SequenceNotLeased => "waits for sequence numbers from the store",
            Self::Resynchronised => "has found the peer's numbers again after 2^32 lost packets or more",
            Self::TookOver => "is in use: the peer has its new key",
            Self::PeerMoved | Self::PeerRestless | Self::PathMtu | Self::Acquire | Self::Lost => "",
            Self::SenderTwice | Self::SenderTaken => "",
        }
    }

    /// What happened to the tunnels whose lines were left out.
    fn of_others(self) -> &'static str {
        match self {
            Self::SoftLifetime => "SAs reached their soft lifetime",
            Self::HardLifetime => "SAs reached their hard lifetime and have stopped",
            Self::SequenceExhausted => "SAs have used all sequence numbers and have stopped",
            Self::SequenceNotLeased => "SAs wait for sequence numbers from the store",
            Self::Resynchronised => "SAs have found their peers' numbers again",
            Self::TookOver => "SAs are in use, since their peers have their new keys",
            Self::PeerMoved => "peers have moved",
            Self::PeerRestless => "peers keep changing their address",
            Self::PathMtu => "paths have another MTU",
            Self::Acquire => "flows want SAs, which `testudo sa wanted` lists",
            Self::SenderTwice => "Sender IDs are those of two devices",
            Self::SenderTaken => "tunnels have stopped sending, since another device has their Sender ID",
            Self::Lost => "times events came too fast to be told",
        }
    }
}

/// How many lines a kind has had in the current window.
#[derive(Debug, Clone, Copy, Default)]
struct Limit {
    began: Option<Instant>,
    lines: u32,
    untold: u64,
}

impl Limit {
    fn begin(&mut self, now: Instant) {
        if self.began.is_none_or(|began| now.saturating_duration_since(began) >= WINDOW) {
            (self.began, self.lines) = (Some(now), 0);
        }
    }

    /// Whether one more line may be written; if not, it is counted.
    fn admits(&mut self, now: Instant) -> bool {
        self.begin(now);
        // If lines were left out, the first line of the window is the one that counts them.
        let has_room = self.lines < MAX_LINES && self.untold == 0;
        if has_room {
            self.lines += 1
        } else {
            self.untold += 1
        }
        has_room
    }

    /// How many were left out, once a window has room for the line.
    fn owed(&mut self, now: Instant) -> Option<u64> {
        if self.untold == 0 {
            return None;
        }
        self.begin(now);
        (self.lines < MAX_LINES).then(|| {
            self.lines += 1;
            std::mem::take(&mut self.untold)
        })
    }
}

/// A peer that has moved, where the move is not logged yet.
#[derive(Debug, Clone, Copy)]
struct Moving {
    address: SocketAddr,
    /// When it was first seen there.
    last_move: Instant,
    /// When the moves that are not logged yet began.
    began: Instant,
    moves: u64,
}

/// Decides what is logged of events.
#[derive(Debug, Default)]
pub(super) struct EventLog {
    limits: [Limit; Kind::ALL.len()],
    moving: HashMap<TunnelIndex, Moving>,
    /// The last logged address of each peer.
    told: HashMap<TunnelIndex, SocketAddr>,
    next_look: Option<Instant>,
}

impl EventLog {
    /// Records an event; returns the line to be written now, if any. `tunnel` finds the tunnel, which takes
    /// time where there are thousands, and is called only for a line.
    pub(super) fn note<'n>(
        &mut self,
        event: Event,
        tunnel: impl FnOnce() -> Option<&'n Tunnel>,
        now: Instant,
    ) -> Option<Line> {
        let kind = match event.kind {
            EventKind::PeerMoved { address, port, .. } => {
                return self.peer_moved(event.tunnel, SocketAddr::new(address, port), tunnel, now);
            }
            EventKind::PathMtu { mtu, learned_from } => {
                return self.path_mtu(mtu, learned_from, tunnel, now);
            }
            EventKind::Acquire(acquire) => {
                let values = acquire.values;
                let text =
                    format!("a flow wants an SA of its own: {values} (`testudo sa wanted` lists them)");
                return self.peer_line(Kind::Acquire, now, || Some((tunnel()?, text)));
            }
            EventKind::SenderTwice { sender, before, address, .. } => {
                let text = format!(
                    "authentic packets with Sender ID {sender} come from {before} and from {address}: two devices may have \
                     it and repeat each other's nonces: give each its own `sender_id`, and the group a new key"
                );
                return self
                    .tunnel_line(Kind::SenderTwice, tracing::Level::ERROR, now, || Some((tunnel()?, text)));
            }
            EventKind::SenderTaken { sender, address, .. } => {
                let text = format!(
                    "an authentic packet from {address} has our own Sender ID {sender}, and we have not sent it: another \
                     device has this ID, or the state file was lost; sending has stopped until a restart, or a reload \
                     with another `sender_id` or key: give each device its own `sender_id`, and the group a new key"
                );
                return self
                    .tunnel_line(Kind::SenderTaken, tracing::Level::ERROR, now, || Some((tunnel()?, text)));
            }
            EventKind::SoftLifetime { .. } => Kind::SoftLifetime,
            EventKind::HardLifetime { .. } => Kind::HardLifetime,
            EventKind::SequenceExhausted { .. } => Kind::SequenceExhausted,
            EventKind::SequenceNotLeased { .. } => Kind::SequenceNotLeased,
            EventKind::Resynchronised { .. } => Kind::Resynchronised,
            EventKind::TookOver { .. } => Kind::TookOver,
        };
        if !self.limit(kind).admits(now) {
            return None;
        }
        let level = match kind {
            Kind::TookOver => tracing::Level::INFO,
            Kind::SoftLifetime | Kind::Resynchronised => tracing::Level::WARN,
            _ => tracing::Level::ERROR,
        };
        Some(Line::new(level, format!("{} {}", sa(tunnel()?, event.kind), kind.of_one())))
    }

    /// Records events that were lost because they came too fast.
    pub(super) fn lost(&mut self, events: u64, now: Instant) -> Option<Line> {
        let text =
            format!("{events} events came too fast to be told: see `testudo status` and `testudo sa list`");
        self.limit(Kind::Lost).admits(now).then(|| Line::new(tracing::Level::WARN, text))
    }

    /// Lines that are due without a new event: about peers that have come to rest or keep moving, and about
    /// lines that were left out.
    pub(super) fn due<'n>(
        &mut self,
        now: Instant,
        tunnel: impl Fn(TunnelIndex) -> Option<&'n Tunnel>,
    ) -> Vec<Line> {
        if self.next_look.is_some_and(|next| now < next) {
            return Vec::new();
        }
        self.next_look = Some(now + LOOK_INTERVAL);
        let mut lines = Vec::new();
        for kind in Kind::ALL {
            let owed = self.limit(kind).owed(now);
            lines.extend(owed.map(|others| {
                let text = format!("{others} more {}: see `testudo sa list`", kind.of_others());
                Line::new(tracing::Level::WARN, text)
            }));
        }
        let is_due = |moving: &Moving| {
            now.saturating_duration_since(moving.last_move) >= STABLE
                || now.saturating_duration_since(moving.began) >= RESTLESS
        };
        let due: Vec<_> = self.moving.extract_if(|_, moving| is_due(moving)).collect();
        lines.extend(due.iter().filter_map(|(index, moving)| self.tell_move(*index, moving, &tunnel, now)));
        lines
    }

    /// Forgets the peers of all tunnels but these.
    pub(super) fn keep(&mut self, tunnels: &HashSet<TunnelIndex>) {
        self.moving.retain(|index, _| tunnels.contains(index));
        self.told.retain(|index, _| tunnels.contains(index));
    }

    /// Forgets the peer of the tunnel that had this index.
    pub(super) fn forget(&mut self, index: TunnelIndex) {
        self.moving.remove(&index);
        self.told.remove(&index);
    }

    fn limit(&mut self, kind: Kind) -> &mut Limit {
        &mut self.limits[kind as usize]
    }

    /// The first address of a peer is logged at once; moves wait.
    fn peer_moved<'n>(
        &mut self,
        index: TunnelIndex,
        address: SocketAddr,
        tunnel: impl FnOnce() -> Option<&'n Tunnel>,
        now: Instant,
    ) -> Option<Line> {
        if let Some(moving) = self.moving.get_mut(&index) {
            (moving.address, moving.last_move) = (address, now);
            moving.moves += 1;
            return None;
        }
        if self.told.contains_key(&index) {
            self.moving.insert(index, Moving { address, last_move: now, began: now, moves: 1 });
            return None;
        }
        self.told.insert(index, address);
        let text = format!("the peer is at {address}");
        self.peer_line(Kind::PeerMoved, now, || Some((tunnel()?, text)))
    }

    /// The line on a peer that has come to rest, or has not within [`RESTLESS`].
    fn tell_move<'n>(
        &mut self,
        index: TunnelIndex,
        moving: &Moving,
        tunnel: impl FnOnce(TunnelIndex) -> Option<&'n Tunnel>,
        now: Instant,
    ) -> Option<Line> {
        let Moving { address, last_move, moves, .. } = *moving;
        let before = self.told.insert(index, address);
        let after = if moves > 1 { format!(" after {moves} moves") } else { String::new() };
        let (kind, text) = if now.saturating_duration_since(last_move) < STABLE {
            let text =
                format!("the peer keeps changing its address, {moves} times in a minute, now {address}");
            (Kind::PeerRestless, text)
        } else if before == Some(address) {
            (Kind::PeerMoved, format!("the peer is back at {address}{after}"))
        } else {
            (Kind::PeerMoved, format!("the peer is at {address}{after}"))
        };
        self.peer_line(kind, now, || Some((tunnel(index)?, text)))
    }

    /// The line on a path whose MTU was lowered, or is the configured one again.
    fn path_mtu<'n>(
        &mut self,
        mtu: usize,
        learned_from: Option<LearnedFrom>,
        tunnel: impl FnOnce() -> Option<&'n Tunnel>,
        now: Instant,
    ) -> Option<Line> {
        let text = match learned_from {
            Some(LearnedFrom::Router) => format!(
                "a router says that the path to the peer carries {mtu} bytes: longer datagrams are not sent"
            ),
            Some(LearnedFrom::Probes) => {
                format!("probes say that the path to the peer carries {mtu} bytes: longer ones were lost")
            }
            None => format!("the path to the peer is taken to carry {mtu} bytes again, as configured"),
        };
        self.peer_line(Kind::PathMtu, now, || Some((tunnel()?, text)))
    }

    fn peer_line<'n>(
        &mut self,
        kind: Kind,
        now: Instant,
        line: impl FnOnce() -> Option<(&'n Tunnel, String)>,
    ) -> Option<Line> {
        let level = if kind == Kind::PeerRestless { tracing::Level::WARN } else { tracing::Level::INFO };
        self.tunnel_line(kind, level, now, line)
    }

    fn tunnel_line<'n>(
        &mut self,
        kind: Kind,
        level: tracing::Level,
        now: Instant,
        line: impl FnOnce() -> Option<(&'n Tunnel, String)>,
    ) -> Option<Line> {
        if !self.limit(kind).admits(now) {
            return None;
        }
        let (tunnel, text) = line()?;
        Some(Line::new(level, format!("tunnel {}: {text}", tunnel.name)))
    }
}

/// The SA that something happened to.
fn sa(tunnel: &Tunnel, kind: EventKind) -> String {
    let (way, spi) = match kind {
        EventKind::SoftLifetime { spi, outbound: false }
        | EventKind::HardLifetime { spi, outbound: false }
        | EventKind::Resynchronised { spi, .. } => ("inbound", spi),
        EventKind::SoftLifetime { spi, .. }
        | EventKind::HardLifetime { spi, .. }
        | EventKind::SequenceExhausted { spi }
        | EventKind::SequenceNotLeased { spi }
        | EventKind::TookOver { spi } => ("outbound", spi),
        EventKind::PeerMoved { .. }
        | EventKind::PathMtu { .. }
        | EventKind::Acquire(_)
        | EventKind::SenderTwice { .. }
        | EventKind::SenderTaken { .. } => {
            return format!("tunnel {}", tunnel.name);
        }
    };
    format!("tunnel {}: {way} SA {spi:#x}", tunnel.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Configuration;
    use crate::config::tests::MINIMAL;

    /// A log whose lines are kept, and its clock, which begins at 0.
    struct Log {
        log: EventLog,
        tunnel: Tunnel,
        start: Instant,
        now: Duration,
        lines: Vec<(Duration, String)>,
    }

    impl Log {
        fn new() -> Self {
            let tunnel = Configuration::parse(MINIMAL, "t.toml").unwrap().tunnels.remove(0);
            let (start, now, lines) = (Instant::now(), Duration::ZERO, Vec::new());
            Self { log: EventLog::default(), tunnel, start, now, lines }
        }

        fn note(&mut self, tunnel: u32, kind: EventKind) {
            let event = Event { tunnel: TunnelIndex(tunnel), kind };
            let line = self.log.note(event, || Some(&self.tunnel), self.start + self.now);
            self.keep(line);
        }

        fn moves_to(&mut self, tunnel: u32, port: u16) {
            let (spi, before, address) = (0x1001, None, [192, 0, 2, 7].into());
            self.note(tunnel, EventKind::PeerMoved { spi, before, address, port });
        }

        /// Advances time as the control thread does, a tenth of a second at a time.
        fn pass(&mut self, time: Duration) {
            let end = self.now + time;
            while self.now < end {
                self.now = (self.now + LOOK_INTERVAL).min(end);
                let lines = self.log.due(self.start + self.now, |_| Some(&self.tunnel));
                self.keep(lines);
            }
        }

        fn keep(&mut self, lines: impl IntoIterator<Item = Line>) {
            self.lines.extend(lines.into_iter().map(|line| (self.now, line.text)));
        }

        /// The lines since this was last called.
        fn said(&mut self) -> Vec<String> {
            self.lines.drain(..).map(|(_, line)| line).collect()
        }
    }

    #[test]
    fn a_peer_is_logged_at_once_and_its_moves_when_it_stays() {
        let mut log = Log::new();
        log.moves_to(1, 1000);
        assert_eq!(log.said(), ["tunnel site-b: the peer is at 192.0.2.7:1000"]);
        log.moves_to(1, 2000);
        log.pass(STABLE - LOOK_INTERVAL);
        assert!(log.said().is_empty());
        log.pass(LOOK_INTERVAL);
        assert_eq!(log.said(), ["tunnel site-b: the peer is at 192.0.2.7:2000"]);
    }

    #[test]
    fn a_peer_that_keeps_moving_makes_a_line_a_minute_and_one_when_it_stays() {
        let mut log = Log::new();
        log.moves_to(1, 1);
        log.said();
        for packet in 0..300_000_u32 {
            log.moves_to(1, 1 + u16::try_from(packet % 2).unwrap());
        }
        assert!(log.said().is_empty());
        log.pass(STABLE);
        assert_eq!(log.said(), ["tunnel site-b: the peer is at 192.0.2.7:2 after 300000 moves"]);
        for second in 0..630_u16 {
            log.moves_to(1, 1 + second % 2);
            log.pass(Duration::from_secs(1));
        }
        let said = log.said();
        assert!(said.iter().all(|line| line.contains("keeps changing its address, 60 times")), "{said:#?}");
        assert_eq!(said.len(), 10);
        log.pass(STABLE);
        assert_eq!(log.said().len(), 1);
    }

    /// What has happened, what it means, and what is to be done.
    #[test]
    fn sender_ids_that_two_devices_have_are_logged_with_what_to_do() {
        let mut log = Log::new();
        let (before, address) = ([192, 0, 2, 7].into(), [192, 0, 2, 8].into());
        log.note(1, EventKind::SenderTwice { spi: 7, sender: 3, before, address });
        log.note(1, EventKind::SenderTaken { spi: 7, sender: 9, address });
        let said = log.said();
        let has = |line: usize, words: &[&str]| words.iter().all(|word| said[line].contains(word));
        assert!(has(0, &["site-b", "Sender ID 3", "192.0.2.7", "192.0.2.8", "own `sender_id`"]), "{said:?}");
        assert!(
            has(1, &["site-b", "Sender ID 9", "192.0.2.8", "stopped until a restart", "reload"]),
            "{said:?}"
        );
        (0..2000).for_each(|_| log.note(1, EventKind::SenderTwice { spi: 7, sender: 3, before, address }));
        assert_eq!(log.said().len(), 9);
    }

    #[test]
    fn twenty_thousand_tunnels_at_once_make_ten_lines_and_one_that_counts_the_rest() {
        let mut log = Log::new();
        (0..20_000).for_each(|tunnel| log.note(tunnel, EventKind::SoftLifetime { spi: 7, outbound: true }));
        log.note(0, EventKind::SequenceExhausted { spi: 7 });
        let said = log.said();
        assert_eq!(said.len(), 10 + 1);
        assert!(said[10].ends_with("has used all sequence numbers and has stopped: give it a new key"));
        log.pass(Duration::from_secs(5));
        assert_eq!(log.said(), ["19990 more SAs reached their soft lifetime: see `testudo sa list`"]);
    }

    #[test]
    fn no_kind_ever_makes_more_than_ten_lines_a_second() {
        const SECONDS: u64 = 120;
        let mut log = Log::new();
        for step in 0..SECONDS * 10 {
            for tunnel in 0..50 {
                log.moves_to(tunnel, u16::try_from(step / 40).unwrap());
                log.note(tunnel, EventKind::SequenceNotLeased { spi: 7 });
                log.note(tunnel, EventKind::HardLifetime { spi: 7, outbound: false });
                let lost = log.log.lost(7, log.start + log.now);
                log.keep(lost);
            }
            log.pass(LOOK_INTERVAL);
        }
        for kind in ["the peer", "waits for", "hard lifetime", "too fast"] {
            let mut windows = vec![0; usize::try_from(SECONDS).unwrap() + 1];
            for (at, _) in log.lines.iter().filter(|(_, line)| line.contains(kind)) {
                windows[usize::try_from(at.as_secs()).unwrap()] += 1;
            }
            let most = windows.iter().max().copied().unwrap_or(0);
            assert!((1..=10).contains(&most), "{kind}: {windows:?}");
        }
    }

    /// RFC 4301 8.2: the path MTU of an SA changes on the word of a router, which the operator should know.
    #[test]
    fn each_change_of_a_path_mtu_is_logged() {
        let mut log = Log::new();
        log.note(1, EventKind::PathMtu { mtu: 1400, learned_from: Some(LearnedFrom::Router) });
        log.note(1, EventKind::PathMtu { mtu: 1500, learned_from: None });
        log.note(1, EventKind::PathMtu { mtu: 576, learned_from: Some(LearnedFrom::Probes) });
        let said = log.said();
        assert!(said[0].starts_with("tunnel site-b: a router says that the path to the peer carries 1400"));
        assert!(said[1].ends_with("is taken to carry 1500 bytes again, as configured"));
        assert!(said[2].contains("probes say that the path to the peer carries 576 bytes"));
    }

    #[test]
    fn a_removed_tunnel_is_forgotten() {
        let mut log = Log::new();
        log.moves_to(1, 1000);
        log.moves_to(1, 2000);
        log.said();
        log.log.keep(&HashSet::new());
        log.pass(STABLE);
        assert!(log.said().is_empty());
        assert!(log.log.told.is_empty() && log.log.moving.is_empty());
    }
}
