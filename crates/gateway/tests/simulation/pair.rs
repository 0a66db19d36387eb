//! Two whole gateways, the network between them, and a judge who knows what must be delivered.
//!
//! ```text
//!   protected A ─► gateway A ─► network (loses, repeats, reorders, damages, forges) ─► gateway B ─► protected B
//!   protected A ◄─ gateway A ◄──────────────────── network ◄────────────────────────── gateway B ◄─ protected B
//!                       a foreign peer that pads its packets (TFC) ─► network ─► gateway B
//! ```
//!
//! Whenever a datagram is handed to a gateway, the model decides whether its packet must be delivered. The
//! gateway must then deliver exactly that, per SA and in order: nothing forged, repeated or damaged, nothing
//! valid refused, nothing lost. Where engines keep jobs for good, as many packets may be missing as were
//! counted, and a packet that was never received may come again.

use crate::corruption::Truth;
use crate::hurried_clock::HurriedClock;
use crate::model::{WindowModel, ecn_at_egress};
use crate::network::Network;
use crate::support::gateway::PoolSize;
use crate::support::packet::{number, numbered, tunnel_of};
use crate::support::sealer::esp_offset;
use crate::support::{Gateway, Handmade, LeaseTwin, PortHandle, Sealer, Side, TunnelSpec};
use fastrand::Rng;
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;
use testudo_crypto::Engine;
use testudo_gateway::{Reason, SchedulerSettings};
use testudo_ipsec::{IpsecProtocol, ReplayWindow};
use testudo_packet::{DropReason, Port};

/// The streams: A to B, B to A, and the foreign peer's to B.
const A_TO_B: usize = 0;
const B_TO_A: usize = 1;
const FOREIGN: usize = 2;

/// What is simulated.
#[derive(Clone)]
pub struct Scenario {
    pub seed: u64,
    pub spec: TunnelSpec,
    /// Packets that protected A sends; B sends a quarter as many.
    pub packets: u32,
    /// The number of each SA's first packet.
    pub first_sequence: u64,
    /// How many sequence numbers are leased at a time.
    pub lease_block: u64,
    pub restarts: bool,
    /// Engines keep jobs for good. (Then without restarts, which would skip numbers: a gap in the numbers
    /// means lost packets.)
    pub keeps: bool,
    /// How packets are gathered for engines that want many.
    pub scheduler: SchedulerSettings,
}

/// What a gateway has besides its links.
pub struct Equipment {
    pub engines: Vec<Box<dyn Engine>>,
    /// The unprotected port, around the link that was given.
    pub port: Box<dyn Port>,
}

/// Gives a gateway its engines, and what stands between it and its unprotected link.
pub type Equip<'e> = dyn FnMut(u64, Box<dyn Port>) -> Equipment + 'e;

/// One SA: the packets sent through it, and those that must be delivered.
struct Stream {
    from: Side,
    spec: TunnelSpec,
    seed: u64,
    network: Network,
    next_id: u32,
    /// The highest number that was sent.
    newest: u64,
    /// Packets that the sending gateway has taken, in order.
    pending: VecDeque<u32>,
    /// Sequence numbers and their packets.
    sent: HashMap<u64, u32>,
    model: WindowModel,
    saved_model: WindowModel,
    /// Packets that must be delivered, in order, with their ECN field.
    expected: VecDeque<(u32, u8)>,
    delivered: HashSet<u32>,
    /// Delivered since the window was last saved.
    unsaved: Vec<u32>,
    /// A killed gateway forgets what it received since the last save: only these may be delivered twice.
    forgotten: HashSet<u32>,
    /// Whether engines keep jobs.
    keeps: bool,
    /// How often each packet reached the receiver.
    handed: HashMap<u32, u32>,
    /// Packets overtaken by later ones: an engine has kept them.
    overtaken: HashSet<u32>,
    /// Packets that were never sent.
    unsent: u64,
}

/// What happened in a run, so that no scenario passes because nothing did.
#[derive(Debug, Default)]
pub struct Outcome {
    pub sent: u64,
    pub delivered: u64,
    pub refused: HashMap<DropReason, u64>,
    /// Gateways that had taken an engine out of service by half-time.
    pub withdrawn_midway: usize,
    /// Jobs by engine and reason of the gateways that were there at the end, where they are placed by cost.
    pub placed: HashMap<(&'static str, Reason), u64>,
}

pub struct Pair<'a> {
    scenario: Scenario,
    random: Rng,
    gateways: [Gateway; 2],
    stores: [LeaseTwin; 2],
    saved_windows: [Vec<Option<Vec<u8>>>; 2],
    streams: [Stream; 3],
    foreign_peer: Sealer,
    foreign_sequence: u64,
    nonces: HashSet<(u32, [u8; 16])>,
    outcome: Outcome,
    equip: &'a mut Equip<'a>,
}

/// Where a datagram has its SPI, with the number after it, and the IV after that, in ESP and AH alike.
fn spi_offset(spec: &TunnelSpec) -> usize {
    esp_offset(spec) + if spec.protocol == IpsecProtocol::Ah { 4 } else { 0 }
}

fn index_of(side: Side) -> usize {
    usize::from(side == Side::B)
}

fn start_gateway(
    side: Side,
    specs: &[TunnelSpec],
    links: (PortHandle, PortHandle),
    store: &mut LeaseTwin,
    windows: &[Option<Vec<u8>>],
    scheduler: &SchedulerSettings,
    equip: impl FnOnce(Box<dyn Port>) -> Equipment,
) -> Gateway {
    let policies = specs.iter().flat_map(|s| s.policies(side)).collect();
    let equip = |port| {
        let Equipment { engines, port } = equip(port);
        (engines, port)
    };
    let mut gateway = Gateway::equipped(links.0, links.1, policies, PoolSize(4096, 2048), equip);
    gateway.worker.set_scheduler(scheduler);
    gateway.worker.set_placement_clock(Box::new(HurriedClock::new(index_of(side) as u64)));
    for (spec, window) in specs.iter().zip(windows) {
        gateway.install(spec.install(side, store, window.clone()));
    }
    gateway
}

impl Stream {
    fn new(from: Side, spec: &TunnelSpec, scenario: &Scenario, random: &mut Rng) -> Self {
        let model = match scenario.first_sequence {
            1 => WindowModel::new(spec.window),
            first => WindowModel::behind(spec.window, first - 1),
        };
        Self {
            from,
            spec: spec.clone(),
            seed: random.u64(..),
            network: Network::new(random.fork(), spec.window, spi_offset(spec), spec.number),
            next_id: 0,
            newest: scenario.first_sequence - 1,
            pending: VecDeque::new(),
            sent: HashMap::new(),
            saved_model: model.clone(),
            model,
            expected: VecDeque::new(),
            delivered: HashSet::new(),
            unsaved: Vec::new(),
            forgotten: HashSet::new(),
            keeps: scenario.keeps,
            handed: HashMap::new(),
            overtaken: HashSet::new(),
            unsent: 0,
        }
    }

    /// The whole number of the next datagram to leave, whose low half ESP carries: numbers only grow, and
    /// never by much.
    fn next_number(&mut self, low: u32) -> u64 {
        let ahead = low.wrapping_sub(self.newest as u32);
        assert!(ahead > 0 && ahead < 1 << 30, "{low:#x} follows {:#x}", self.newest);
        self.newest += u64::from(ahead);
        if self.keeps {
            let lost = self.pending.drain(..ahead as usize - 1).count();
            self.unsent += lost as u64;
        }
        self.newest
    }

    fn packet(&self, id: u32) -> crate::support::Inner {
        let max = if self.spec.number == 1 { 1200 } else { self.spec.inner_mtu() };
        numbered(self.seed, id, self.spec.number, self.from == Side::A, max)
    }

    /// Decides whether the packet of an arriving datagram must be delivered, before the gateway sees it.
    fn judge(&mut self, truth: Truth, datagram: &[u8]) {
        let Truth::Genuine { sequence } = truth else { return };
        *self.handed.entry(self.sent[&sequence]).or_default() += 1;
        if !self.model.receive(sequence) {
            return;
        }
        let id = self.sent[&sequence];
        let outer_class =
            if self.spec.outer == testudo_wire::ip::Version::V4 { datagram[1] } else { datagram[1] >> 4 };
        if let Some(ecn) = ecn_at_egress(self.packet(id).traffic_class, outer_class) {
            self.expected.push_back((id, ecn));
        }
    }

    /// A packet was delivered where engines keep some: it must be one that was sent, for the first time, and
    /// in order unless the network repeated it.
    fn deliver_what_was_not_kept(&mut self, packet: &[u8]) {
        let id = number(packet, self.from == Side::A);
        let place = self.expected.iter().position(|(expected, _)| *expected == id);
        if let Some(place) = place {
            self.overtaken.extend(self.expected.drain(..=place).map(|(id, _)| id));
        }
        let is_in_order = place.is_some() || !self.overtaken.contains(&id);
        assert!(is_in_order || self.handed[&id] > 1, "packet {id} came out of order");
        self.overtaken.remove(&id);
        let mut original = self.packet(id);
        original.traffic_class = original.traffic_class & !3 | testudo_wire::ip::traffic_class(packet) & 3;
        assert!(packet == original.bytes(), "packet {id} was changed under way");
        assert!(self.delivered.insert(id), "packet {id} came out twice");
    }

    /// A packet was delivered: it must be the next expected one, byte for byte.
    fn deliver(&mut self, packet: &[u8]) {
        if self.keeps {
            return self.deliver_what_was_not_kept(packet);
        }
        let id = number(packet, self.from == Side::A);
        let next = self.expected.pop_front();
        assert_eq!(next.map(|(id, _)| id), Some(id), "packet {id} came out, which is not the next one due");
        let mut original = self.packet(id);
        original.traffic_class = original.traffic_class & !3 | next.map_or(0, |(_, ecn)| ecn);
        assert!(packet == original.bytes(), "packet {id} was changed under way");
        self.unsaved.push(id);
        let is_first = self.delivered.insert(id);
        assert!(is_first || self.forgotten.contains(&id), "packet {id} came out twice");
    }

    fn window_is_saved(&mut self) {
        self.saved_model = self.model.clone();
        self.unsaved.clear();
    }

    fn receiver_was_killed(&mut self) {
        self.model = self.saved_model.clone();
        self.expected.clear();
        self.forgotten.extend(self.unsaved.drain(..));
    }
}

impl<'a> Pair<'a> {
    pub fn new(scenario: &Scenario, equip: &'a mut Equip<'a>) -> Self {
        let mut random = Rng::with_seed(scenario.seed);
        // Which pads, as only ESP can.
        let foreign = TunnelSpec { number: 1, protocol: IpsecProtocol::Esp, ..scenario.spec.clone() };
        let specs = [scenario.spec.clone(), foreign.clone()];
        let first = scenario.first_sequence;
        let window = (first > 1).then(|| {
            let mut window = ReplayWindow::new(scenario.spec.window, scenario.spec.esn);
            window.commit(first - 1).expect("an empty window takes anything");
            window.save()
        });
        let mut stores = [(); 2].map(|()| LeaseTwin::new(scenario.lease_block));
        let gateways = [Side::A, Side::B].map(|side| {
            let store = &mut stores[index_of(side)];
            specs.iter().for_each(|s| store.begin_at(s.spi_from(side), first));
            let links = (PortHandle::default(), PortHandle::default());
            let windows = [window.clone(), window.clone()];
            start_gateway(side, &specs, links, store, &windows, &scenario.scheduler, |port| {
                equip(random.u64(..), port)
            })
        });
        let streams = [(Side::A, 0), (Side::B, 0), (Side::A, 1)]
            .map(|(from, tunnel)| Stream::new(from, &specs[tunnel], scenario, &mut random));
        Self {
            scenario: scenario.clone(),
            random,
            gateways,
            stores,
            saved_windows: [vec![window.clone(), window.clone()], vec![window.clone(), window]],
            streams,
            foreign_peer: Sealer::new(&foreign, Side::A),
            foreign_sequence: first,
            nonces: HashSet::new(),
            outcome: Outcome::default(),
            equip,
        }
    }

    /// Runs the scenario to its end and calls `midway` half-way through.
    pub fn run(mut self, mut midway: impl FnMut()) -> Outcome {
        let steps = self.scenario.packets / 48 + 1;
        for step in 0..steps {
            self.step();
            if step % 16 == 7 {
                self.save_windows();
            }
            if step == steps / 2 {
                let withdrawn = |g: &&Gateway| g.worker.counters().withdrawn_engines().next().is_some();
                self.outcome.withdrawn_midway = self.gateways.iter().filter(withdrawn).count();
                midway();
            }
            if self.scenario.restarts {
                match step * 8 / steps {
                    2 if (step - 1) * 8 / steps == 1 => self.restart(Side::B),
                    3 if (step - 1) * 8 / steps == 2 => self.kill(Side::A),
                    5 if (step - 1) * 8 / steps == 4 => self.kill(Side::B),
                    6 if (step - 1) * 8 / steps == 5 => self.restart(Side::A),
                    _ => {}
                }
            }
        }
        self.end()
    }

    /// A burst from each side, and what the network makes of it.
    fn step(&mut self) {
        for (stream, at_most) in [(A_TO_B, 96), (B_TO_A, 24)] {
            let burst = 1 + self.random.usize(..at_most);
            self.feed(stream, burst);
        }
        // At times the durable store answers late, and the gateways run out of numbers.
        if self.random.usize(..8) != 0 {
            self.stores.iter_mut().for_each(LeaseTwin::serve);
        }
        self.pump(Side::A);
        self.pump(Side::B);
        for _ in 0..self.random.usize(..12) {
            self.send_from_foreign_peer();
        }
        self.carry();
    }

    fn feed(&mut self, stream: usize, packets: usize) {
        let stream = &mut self.streams[stream];
        let link = &self.gateways[index_of(stream.from)].protected;
        for _ in 0..packets {
            let id = stream.next_id;
            stream.next_id += 1;
            stream.pending.push_back(id);
            link.push(stream.packet(id).bytes());
            self.outcome.sent += 1;
        }
    }

    fn send_from_foreign_peer(&mut self) {
        let stream = &mut self.streams[FOREIGN];
        if !self.scenario.spec.esn && self.foreign_sequence > u64::from(u32::MAX) {
            return;
        }
        let (id, sequence) = (stream.next_id, self.foreign_sequence);
        stream.next_id += 1;
        self.foreign_sequence += 1;
        let tfc_bytes = self.random.usize(..120);
        // Routers may have marked congestion: any outer field meets any inner one.
        let outer_class = self.random.u8(..);
        let made = Handmade::with_tfc(&stream.packet(id).bytes(), tfc_bytes).padded_for(stream.spec.suite);
        let made = Handmade { outer_class, ..made };
        stream.sent.insert(sequence, id);
        stream.network.send(sequence, self.foreign_peer.seal(sequence, &made));
        self.outcome.sent += 1;
    }

    /// Lets a gateway take everything that has arrived, and records what it sends and delivers.
    fn pump(&mut self, side: Side) {
        let turn = Duration::from_millis(if self.scenario.keeps { 5 } else { 1 });
        loop {
            self.gateways[index_of(side)].clock.advance(turn);
            self.fail_a_port_at_times(side);
            let refused = self.refused_numbers(side);
            self.gateways[index_of(side)].turn();
            self.notice_refusals(side, self.refused_numbers(side) - refused);
            self.collect(side);
            let gateway = &self.gateways[index_of(side)];
            if gateway.protected.arriving() + gateway.unprotected.arriving() == 0 {
                break;
            }
        }
        self.gateways[index_of(side)].assert_books_balance();
    }

    /// Makes a port fail once, at any of its calls: nothing that was taken before may be lost.
    fn fail_a_port_at_times(&mut self, side: Side) {
        if self.random.usize(..16) == 0 {
            let gateway = &self.gateways[index_of(side)];
            let port = if self.random.usize(..2) == 0 { &gateway.protected } else { &gateway.unprotected };
            port.fail_after(self.random.usize(..8));
        }
    }

    fn refused_numbers(&self, side: Side) -> u64 {
        let gateway = &self.gateways[index_of(side)];
        gateway.drops(DropReason::SequenceExhausted) + gateway.drops(DropReason::SequenceNotLeased)
    }

    /// Numbers run out between two packets and become available between two turns, so the refused packets are
    /// the last ones of a turn.
    fn notice_refusals(&mut self, side: Side, refused: u64) {
        let stream = &mut self.streams[if side == Side::A { A_TO_B } else { B_TO_A }];
        let waiting = self.gateways[index_of(side)].protected.arriving();
        let taken = stream.pending.len() - waiting;
        stream.pending.drain(taken - refused as usize..taken);
    }

    fn collect(&mut self, side: Side) {
        let (sent, delivered) = (
            self.gateways[index_of(side)].unprotected.take(),
            self.gateways[index_of(side)].protected.take(),
        );
        let stream = &mut self.streams[if side == Side::A { A_TO_B } else { B_TO_A }];
        let spi_at = spi_offset(&stream.spec);
        for datagram in sent {
            let ipsec = &datagram[spi_at..];
            let spi = u32::from_be_bytes(*ipsec.first_chunk().expect("an SPI"));
            let low = u32::from_be_bytes(*ipsec[4..].first_chunk().expect("a number"));
            let sequence = stream.next_number(low);
            // Where a suite has no IV, the number itself must not be used twice.
            let iv = match stream.spec.suite.iv_bytes() {
                0 => u128::from(sequence).to_be_bytes(),
                length => std::array::from_fn(|at| if at < length { ipsec[8 + at] } else { 0 }),
            };
            assert!(self.nonces.insert((spi, iv)), "the IV {iv:x?} of SPI {spi:#x} was used twice");
            let id = stream.pending.pop_front().expect("nothing leaves that did not come");
            stream.sent.insert(sequence, id);
            stream.network.send(sequence, datagram);
        }
        for packet in delivered {
            let stream = match (side, tunnel_of(&packet, side == Side::B)) {
                (Side::A, 0) => B_TO_A,
                (Side::B, 0) => A_TO_B,
                (Side::B, 1) => FOREIGN,
                (_, tunnel) => panic!("a packet came out of tunnel {tunnel}"),
            };
            self.streams[stream].deliver(&packet);
            self.outcome.delivered += 1;
        }
    }

    /// Hands arriving datagrams to the gateways.
    fn carry(&mut self) {
        for side in [Side::A, Side::B] {
            let streams: &[usize] = if side == Side::A { &[B_TO_A] } else { &[A_TO_B, FOREIGN] };
            loop {
                let mut moved = false;
                for &stream in streams {
                    let burst = 1 + self.random.usize(..64);
                    moved |= self.hand_over(stream, side, burst);
                }
                self.pump(side);
                if !moved {
                    break;
                }
            }
        }
    }

    fn hand_over(&mut self, stream: usize, to: Side, at_most: usize) -> bool {
        let stream = &mut self.streams[stream];
        for done in 0..at_most {
            let Some(arrival) = stream.network.next() else { return done > 0 };
            stream.judge(arrival.truth, &arrival.bytes);
            self.gateways[index_of(to)].unprotected.push(arrival.bytes);
        }
        true
    }

    fn streams_to(&mut self, side: Side) -> impl Iterator<Item = &mut Stream> {
        self.streams.iter_mut().filter(move |s| s.from != side)
    }

    fn settle(&mut self, side: Side) {
        // Far more turns than any engine delays its answer, or a device what it has received.
        let mut quiet = 0;
        for _ in 0..10_000 {
            self.pump(side);
            let worker = &self.gateways[index_of(side)].worker;
            // A port that failed has left packets waiting.
            let is_quiet = !worker.is_busy() && worker.is_waiting() == (false, false);
            quiet = if is_quiet { quiet + 1 } else { 0 };
            if quiet == 3 {
                return;
            }
        }
        panic!("a worker waits for packets that do not come");
    }

    fn save_windows(&mut self) {
        for side in [Side::A, Side::B] {
            self.settle(side);
            self.save_windows_of(side);
        }
    }

    fn save_windows_of(&mut self, side: Side) {
        let worker = &self.gateways[index_of(side)].worker;
        let windows = [0, 1].map(|tunnel| {
            let inbound = worker.inbound_sas(testudo_ipsec::TunnelIndex(tunnel)).next()?;
            worker.save_window(inbound)
        });
        assert!(windows.iter().all(Option::is_some), "every tunnel has a window to save");
        self.saved_windows[index_of(side)] = windows.into();
        self.streams_to(side).for_each(Stream::window_is_saved);
    }

    /// Sends until every leased number has been used: a restart one number too early would repeat one.
    fn use_up_the_lease(&mut self, side: Side) {
        let refused = self.refused_numbers(side);
        while self.scenario.lease_block <= 1_000 && self.refused_numbers(side) == refused {
            self.feed(if side == Side::A { A_TO_B } else { B_TO_A }, 64);
            self.pump(side);
        }
    }

    /// An orderly stop and a new start: nothing is lost, nothing forgotten.
    fn restart(&mut self, side: Side) {
        self.use_up_the_lease(side);
        self.settle(side);
        self.gateways[index_of(side)].assert_settled();
        assert!(self.streams_to(side).all(|s| s.expected.is_empty()), "a settled gateway owes packets");
        self.save_windows_of(side);
        self.start_again(side);
    }

    /// A kill -9: everything in flight is lost. Only the last saved windows and the numbers recorded by the
    /// store survive.
    fn kill(&mut self, side: Side) {
        self.use_up_the_lease(side);
        self.gateways[index_of(side)].assert_books_balance();
        let untaken = self.gateways[index_of(side)].protected.arriving();
        let stream = &mut self.streams[if side == Side::A { A_TO_B } else { B_TO_A }];
        stream.pending.drain(..stream.pending.len() - untaken);
        self.streams_to(side).for_each(Stream::receiver_was_killed);
        self.start_again(side);
    }

    fn start_again(&mut self, side: Side) {
        self.note_refusals(side);
        let specs = [self.streams[A_TO_B].spec.clone(), self.streams[FOREIGN].spec.clone()];
        let old = &self.gateways[index_of(side)];
        let links = (old.protected.clone(), old.unprotected.clone());
        let seed = self.random.u64(..);
        let windows = &self.saved_windows[index_of(side)];
        let store = &mut self.stores[index_of(side)];
        let equip = |port| (self.equip)(seed, port);
        let scheduler = &self.scenario.scheduler;
        self.gateways[index_of(side)] = start_gateway(side, &specs, links, store, windows, scheduler, equip);
    }

    fn note_refusals(&mut self, side: Side) {
        for (reason, count) in self.gateways[index_of(side)].worker.pool().drops().iter() {
            *self.outcome.refused.entry(reason).or_default() += count;
        }
    }

    fn end(mut self) -> Outcome {
        self.streams.iter_mut().for_each(|s| s.network.flush());
        self.carry();
        self.streams.iter_mut().for_each(|s| s.network.replay_everything());
        self.carry();
        for side in [Side::A, Side::B] {
            self.settle(side);
            // No fragment will come any more.
            self.gateways[index_of(side)].worker.end_waits();
            self.gateways[index_of(side)].assert_settled();
            self.note_refusals(side);
        }
        for share in self.gateways.iter().filter_map(|g| g.worker.counters().shares()).flat_map(|s| s.rows) {
            for (reason, jobs) in Reason::ALL.into_iter().zip(share.jobs) {
                *self.outcome.placed.entry((share.engine, reason)).or_default() += jobs;
            }
        }
        if self.scenario.keeps {
            self.assert_missing_are_counted();
        }
        for stream in &self.streams {
            let missing = stream.expected.len();
            assert_eq!(missing, 0, "{missing} packets from {:?} were not delivered", stream.from);
            assert!(stream.pending.is_empty(), "packets from {:?} never left", stream.from);
        }
        self.assert_only_expected_refusals();
        self.outcome
    }

    /// Packets that were not sent or not delivered were given up with an engine, and counted as such. (So may
    /// forgeries have been.)
    fn assert_missing_are_counted(&mut self) {
        let mut missing = 0;
        for stream in &mut self.streams {
            let overdue =
                stream.expected.drain(..).map(|(id, _)| id).filter(|id| !stream.delivered.contains(id));
            stream.overtaken.extend(overdue);
            missing +=
                stream.unsent + stream.pending.drain(..).count() as u64 + stream.overtaken.len() as u64;
        }
        let counted = self.outcome.refused.get(&DropReason::EngineFault).copied().unwrap_or(0);
        assert!(missing <= counted, "{missing} packets are missing, {counted} were counted");
    }

    /// Nothing was dropped for lack of room, buffers, an engine or a policy: only because of the network, and
    /// of numbers that ran out.
    fn assert_only_expected_refusals(&self) {
        use DropReason as R;
        for reason in [
            R::PolicyDiscard,
            R::NoPolicy,
            R::SelectorMismatch,
            R::NoSa,
            R::PeerUnknown,
            R::LifetimeExpired,
            R::TooBig,
            R::NoRoom,
            R::EngineFault,
            R::BadPadding,
            R::BadNextHeader,
            R::DummyPacket,
            R::InnerMalformed,
            R::PoolEmpty,
            R::QueueFull,
            R::MessageTooLong,
            R::SendRefused,
            R::ShuttingDown,
        ] {
            if self.scenario.keeps && reason == R::EngineFault {
                continue;
            }
            assert_eq!(
                self.outcome.refused.get(&reason).copied().unwrap_or(0),
                0,
                "{}",
                reason.description()
            );
        }
    }
}
