//! A group of gateways of several workers each, all of which send under one key, driven by a seed: a turn of
//! any worker at a time, on a network that delays, repeats, damages and loses, brings senders their own
//! packets back, and leads packets to any worker; with crashes and restarts.
//!
//! ```text
//!   packets ─► sender 1: workers ─┐   to all, itself     ┌─► sender 1: workers ─► judge: of each other sender
//!   packets ─► sender 2: workers ─┼─► too: no nonce ─────┼─► sender 2: workers ─►  once, in order, and all
//!   packets ─► sender 3: workers ─┘   twice under the key└─► sender 3: workers ─►  that its window accepts
//! ```

use crate::late_engine::SharedEngine;
use crate::model::WindowModel;
use crate::support::gateway::{PoolSize, portable};
use crate::support::group::{address, install, policies, spec};
use crate::support::random::seed;
use crate::support::{Gateway, Inner, LeaseTwin, PortHandle};
use fastrand::Rng;
use std::collections::{HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;
use testudo_engine_late::LateConfig;
use testudo_gateway::{Installed, SaChange, TunnelInstall, Update, Worker};
use testudo_ipsec::{Event, EventKind, Moment, VpeClasses, VpeRules};
use testudo_packet::DropReason;
use testudo_wire::ip::IpHeader;
use testudo_wire::steering::Steering;
use testudo_wire::vpe::{VPE_PROTOCOL, VpeHeader};

const MEMBERS: u16 = 3;
/// The DSCP of some packets, which have windows of their own.
const URGENT: u8 = 46;
const CLASSES: NonZeroU16 = NonZeroU16::new(2).unwrap();
const WINDOW: u32 = 64;
/// Steps that a datagram may be on its way for.
const DELAY: usize = 40;
/// Numbers that are leased at once: few, since each window has its own.
const LEASE: u64 = 10;
/// Datagrams that are kept to be replayed.
const ARCHIVE: usize = 3000;

/// A mistake that is built in on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// Each worker has windows of its own for all senders.
    WindowsApart,
    /// Two members have one Sender ID.
    OneSenderTwice,
    /// After the workers have gone, those that start number as if no number had been leased.
    LeasesForgotten,
    /// After the workers have gone, those that start know no window.
    WindowsForgotten,
}

#[derive(Debug, Clone, Copy)]
struct Scenario {
    seed: u64,
    steps: usize,
    /// Engines answer in later turns.
    is_late: bool,
    /// Workers crash and restart.
    changes: bool,
    fault: Option<Fault>,
}

/// What happened, so that nothing passes because nothing did.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    sent: u64,
    delivered: u64,
    replayed: u64,
    own: u64,
    crashes: u64,
    restarts: u64,
    not_leased: u64,
    windows: usize,
}

/// A datagram on its way to a worker.
#[derive(Clone)]
struct Arrival {
    bytes: Vec<u8>,
    is_genuine: bool,
}

impl Arrival {
    fn header(&self) -> VpeHeader {
        VpeHeader::parse(&self.bytes[20..]).expect("a header of VPE")
    }
}

/// A number of a window of a sender.
type Name = (u16, u16, u64);

/// What must come out of a member.
#[derive(Default)]
struct Judge {
    own: u16,
    windows: HashMap<(u16, u16), WindowModel>,
    saved: HashMap<(u16, u16), WindowModel>,
    /// What each worker must deliver, in order.
    expected: Vec<VecDeque<Name>>,
    delivered: HashSet<(u8, u32)>,
    unsaved: Vec<(u8, u32)>,
    /// Delivered since the windows were last saved, by a gateway that has crashed: only these may come again.
    forgotten: HashSet<(u8, u32)>,
    is_exact: bool,
    came: u64,
}

impl Judge {
    fn receive(&mut self, worker: usize, arrival: &Arrival) {
        let VpeHeader { sender, window, number, .. } = arrival.header();
        if sender == self.own || !arrival.is_genuine {
            return;
        }
        let model = self.windows.entry((sender, window)).or_insert_with(|| WindowModel::new(WINDOW));
        if model.receive(number) {
            self.expected[worker].push_back((sender, window, number));
        }
    }

    fn deliver(&mut self, worker: usize, packet: &[u8]) {
        let source = IpHeader::parse(packet).expect("a packet").source;
        let IpAddr::V4(source) = source else { panic!("not of this test: {source}") };
        let [_, sender, high, low] = source.octets();
        let id = u32::from(high) << 8 | u32::from(low);
        assert_eq!(packet, inner(sender, id), "packet {id} of {sender} came out as another one");
        let is_new = self.delivered.insert((sender, id)) || self.forgotten.remove(&(sender, id));
        assert!(is_new, "packet {id} of sender {sender} was delivered twice");
        self.unsaved.push((sender, id));
        self.came += 1;
        if self.is_exact {
            let name = self.expected[worker].pop_front();
            let (expected, ..) = name.unwrap_or_else(|| panic!("packet {id} must not be delivered"));
            assert_eq!(u16::from(sender), expected, "packet {id} is out of order");
        }
    }

    fn save(&mut self) {
        self.saved = self.windows.clone();
        self.unsaved.clear();
    }

    fn crash(&mut self) {
        self.windows = self.saved.clone();
        self.forgotten.extend(self.unsaved.drain(..));
        self.expected.iter_mut().for_each(VecDeque::clear);
    }

    fn end(&self) {
        let missing = self.expected.iter().map(VecDeque::len).sum::<usize>();
        assert!(missing == 0 || !self.is_exact, "{missing} packets were received and not delivered");
    }
}

/// Packet `id` of a member, whatever worker gets it.
fn inner(sender: u8, id: u32) -> Vec<u8> {
    let source = format!("10.{sender}.{}.{}", id >> 8 & 255, id & 255);
    let bytes = 60 + id as usize * 37 % 300;
    let traffic_class = if id.is_multiple_of(3) { URGENT << 2 } else { 0 };
    let seed = u64::from(id) << 8 | u64::from(sender);
    Inner { seed, traffic_class, ..Inner::udp(&source, "239.9.9.9", bytes) }.bytes()
}

struct Member {
    gateway: Gateway,
    queue: VecDeque<Arrival>,
    heard: VecDeque<Event>,
}

/// A gateway of several workers.
struct Site {
    scenario: Scenario,
    /// What it is called in its packets.
    number: u8,
    sender: u16,
    workers: usize,
    random: Rng,
    members: Vec<Member>,
    installed: Option<Installed>,
    store: LeaseTwin,
    saved: Option<Vec<u8>>,
    judge: Judge,
    next_id: u32,
    now: Duration,
    /// Packets that were pushed into ports, and taken out of them, while the workers of now have run.
    pushed: u64,
    taken: u64,
    outcome: Outcome,
}

impl Site {
    fn new(scenario: Scenario, number: u8, mut random: Rng) -> Self {
        let workers = random.usize(2..=4);
        let is_twin = scenario.fault == Some(Fault::OneSenderTwice) && number == 2;
        let sender = if is_twin { 1 } else { u16::from(number) };
        let expected = vec![VecDeque::new(); workers];
        let judge = Judge { own: sender, expected, is_exact: !scenario.is_late, ..Judge::default() };
        let mut site = Self {
            scenario,
            number,
            sender,
            workers,
            random,
            members: Vec::new(),
            installed: None,
            store: LeaseTwin::new(LEASE),
            saved: None,
            judge,
            next_id: 0,
            now: Duration::ZERO,
            pushed: 0,
            taken: 0,
            outcome: Outcome::default(),
        };
        let link = || ([PortHandle::default(), PortHandle::default()], VecDeque::new());
        site.start((0..workers).map(|_| link()).collect());
        site
    }

    fn tunnel(&mut self) -> TunnelInstall {
        let rules = VpeRules::default().with_slots(VpeClasses::of_sets([&[URGENT][..]]), 0, 8);
        let rules = rules.expect("few").with_sender(self.sender);
        let mut tunnel = install(rules, &mut self.store, self.saved.clone());
        tunnel.inbound.parameters.replay_window = WINDOW;
        tunnel
    }

    fn start(&mut self, links: Vec<([PortHandle; 2], VecDeque<Arrival>)>) {
        let (mut workers, mut ends) = (Vec::new(), Vec::new());
        for ([protected, unprotected], queue) in links {
            self.pushed += (protected.arriving() + unprotected.arriving()) as u64;
            let engines = match self.scenario.is_late {
                true => SharedEngine::new(LateConfig::reliable(self.random.u64(..))).before_portable(),
                false => portable(),
            };
            let pool = PoolSize(1024, 2048);
            let whole = Gateway::on_links(protected, unprotected, policies(), pool, engines);
            let Gateway { mut worker, protected, unprotected, clock } = whole;
            if !workers.is_empty() {
                worker.follow();
            }
            clock.advance(self.now);
            workers.push(worker);
            ends.push((protected, unprotected, clock, queue));
        }
        self.install(&mut workers);
        let members =
            workers.into_iter().zip(ends).map(|(worker, (protected, unprotected, clock, queue))| Member {
                gateway: Gateway { worker, protected, unprotected, clock },
                queue,
                heard: VecDeque::new(),
            });
        self.members = members.collect();
    }

    fn install(&mut self, workers: &mut [Worker]) {
        let now = Moment(self.now);
        let mut tunnel = self.tunnel();
        if self.scenario.fault != Some(Fault::WindowsApart) {
            let update = Update { install: vec![tunnel], ..Update::default() };
            let (_, outcome) = Worker::update_all(workers, update, now).remove(0);
            self.installed = Some(outcome.expect("there is room"));
            return;
        }
        let numbers = std::mem::replace(
            &mut tunnel.outbound.parameters.numbers,
            testudo_ipsec::NumberSource::Ephemeral,
        );
        let numbers = numbers.gated(true);
        for (at, worker) in workers.iter_mut().enumerate() {
            let mut own = self.tunnel();
            own.outbound.parameters.numbers = numbers.of_worker(at);
            let update = Update { install: vec![own], ..Update::default() };
            let (_, outcome) = worker.update(update, now).remove(0);
            self.installed = Some(outcome.expect("there is room"));
        }
    }

    fn load(&mut self) {
        let worker = self.random.usize(..self.workers);
        for _ in 0..self.random.usize(..12) {
            self.pushed += 1;
            self.members[worker].gateway.protected.push(inner(self.number, self.next_id));
            self.next_id += 1;
        }
        let gateway = &self.members[worker].gateway;
        match self.random.usize(..12) {
            0 => gateway.unprotected.set_room(Some(self.random.usize(..20))),
            1 => gateway.protected.set_room(Some(self.random.usize(..20))),
            2..8 => {
                gateway.unprotected.set_room(None);
                gateway.protected.set_room(None);
            }
            _ => {}
        }
    }

    /// Half of what arrives goes astray, to any worker.
    fn arrive(&mut self, arrival: Arrival) {
        let steering = Steering::ByWindow { classes: CLASSES };
        let queues = self.workers as u32;
        let steered = steering.queue_of_datagram(&arrival.bytes, queues, &[VPE_PROTOCOL]) as usize;
        let worker = if self.random.bool() { self.random.usize(..self.workers) } else { steered };
        self.pushed += 1;
        let member = &mut self.members[worker];
        member.gateway.unprotected.push(arrival.bytes.clone());
        member.queue.push_back(arrival);
    }

    /// A turn of a worker. Returns the datagrams that left it.
    fn turn(&mut self, at: usize) -> Vec<Vec<u8>> {
        let now = Moment(self.now);
        let member = &mut self.members[at];
        if let Some(event) = member.heard.pop_front() {
            member.gateway.worker.change_sa(SaChange::Hear(event), now).expect("it hears");
        }
        let before = member.gateway.unprotected.arriving();
        member.gateway.turn();
        let taken = before - member.gateway.unprotected.arriving();
        for arrival in member.queue.drain(..taken) {
            self.judge.receive(at, &arrival);
        }
        let (delivered, left) = (member.gateway.protected.take(), member.gateway.unprotected.take());
        self.taken += (delivered.len() + left.len()) as u64;
        delivered.iter().for_each(|packet| self.judge.deliver(at, packet));
        for event in member.gateway.worker.take_events() {
            let is_wrong =
                matches!(event.kind, EventKind::SenderTwice { .. } | EventKind::SenderTaken { .. });
            let may_be = self.scenario.fault == Some(Fault::LeasesForgotten);
            assert!(!is_wrong || may_be, "each sender is one device: {event:?}");
            if event.kind.concerns_all() {
                self.members.iter_mut().for_each(|member| member.heard.push_back(event));
            }
        }
        left
    }

    fn advance(&mut self, by: Duration) {
        let before = self.now.as_secs();
        self.now += by;
        let (now, is_due) = (Moment(self.now), self.now.as_secs() > before);
        for member in &mut self.members {
            member.gateway.clock.advance(by);
            if is_due {
                member.gateway.worker.tick(now);
            }
        }
    }

    fn save(&mut self) {
        let sa = self.installed.as_ref().expect("it is installed").inbound.sa;
        let worker = self.random.usize(..self.workers);
        self.saved = self.members[worker].gateway.worker.save_window(sa);
        self.judge.save();
    }

    /// All workers are gone in the middle of what they did, and others start.
    fn crash(&mut self) {
        self.outcome.crashes += 1;
        self.judge.crash();
        self.replace();
    }

    /// All workers end as they do when they are told to. Returns what they still send.
    fn restart(&mut self) -> Vec<Vec<u8>> {
        self.outcome.restarts += 1;
        for member in &mut self.members {
            member.gateway.protected.set_room(None);
            member.gateway.unprotected.set_room(None);
            member.gateway.worker.drain();
        }
        let mut left = Vec::new();
        for _ in 0..200 * self.workers {
            let at = self.random.usize(..self.workers);
            left.extend(self.turn(at));
        }
        self.members.iter_mut().for_each(|member| member.gateway.worker.discard_waiting());
        self.save();
        self.judge.end();
        self.replace();
        left
    }

    fn replace(&mut self) {
        self.assert_books();
        match self.scenario.fault {
            Some(Fault::LeasesForgotten) => self.store = LeaseTwin::new(LEASE),
            Some(Fault::WindowsForgotten) => self.saved = None,
            _ => {}
        }
        let mut links = Vec::new();
        for Member { gateway, queue, .. } in std::mem::take(&mut self.members) {
            let drops = gateway.worker.pool().drops();
            self.outcome.replayed += drops.get(DropReason::ReplayDuplicate);
            self.outcome.own += drops.get(DropReason::VpeSender);
            self.outcome.not_leased += drops.get(DropReason::SequenceNotLeased);
            links.push(([gateway.protected, gateway.unprotected], queue));
        }
        // What their ports have taken by now is out.
        (self.pushed, self.taken) = (0, 0);
        self.start(links);
    }

    /// Every packet of every worker is accounted for, and so is every one of the links.
    fn assert_books(&self) {
        let books: Vec<_> = self.members.iter().map(|member| member.gateway.books()).collect();
        assert!(books.iter().all(testudo_gateway::Books::balance), "{books:?}");
        let arriving = |m: &Member| m.gateway.protected.arriving() + m.gateway.unprotected.arriving();
        let waiting: usize = self.members.iter().map(arriving).sum();
        let received: u64 = books.iter().map(|books| books.received).sum();
        let sent: u64 = books.iter().map(|books| books.sent).sum();
        assert_eq!((received + waiting as u64, sent), (self.pushed, self.taken), "{books:?}");
    }

    fn is_idle(&self) -> bool {
        let arriving = |g: &Gateway| g.protected.arriving() + g.unprotected.arriving();
        self.members.iter().all(|m| arriving(&m.gateway) == 0 && !m.gateway.worker.is_busy())
    }
}

struct World {
    scenario: Scenario,
    random: Rng,
    sites: Vec<Site>,
    /// To each member, with the step in which it arrives.
    underway: Vec<(usize, usize, Arrival)>,
    archive: Vec<Arrival>,
    nonces: HashSet<[u8; 12]>,
    windows: HashSet<(u16, u16)>,
    step: usize,
    sent: u64,
}

impl World {
    fn new(scenario: Scenario) -> Self {
        let mut random = Rng::with_seed(scenario.seed);
        let numbers = 1..=MEMBERS as u8;
        let sites = numbers.map(|number| Site::new(scenario, number, random.fork())).collect();
        Self {
            scenario,
            random,
            sites,
            underway: Vec::new(),
            archive: Vec::new(),
            nonces: HashSet::new(),
            windows: HashSet::new(),
            step: 0,
            sent: 0,
        }
    }

    /// A member has sent these. No nonce is ever used twice under the key, by any of them.
    fn send(&mut self, at: usize, datagrams: Vec<Vec<u8>>) {
        for bytes in datagrams {
            let header = VpeHeader::parse(&bytes[20..]).expect("a header of VPE");
            let (sender, from) = (self.sites[at].sender, IpHeader::parse(&bytes).expect("a header").source);
            assert_eq!((header.sender, header.spi), (sender, spec().spi_from(crate::support::Side::A)));
            assert_eq!(from, address(sender));
            let nonce = *bytes[20..].first_chunk().expect("a header");
            assert!(self.nonces.insert(nonce), "a nonce is used twice: {header:?}");
            self.windows.insert((header.sender, header.window));
            self.sent += 1;
            let arrival = Arrival { bytes, is_genuine: true };
            if self.archive.len() < ARCHIVE {
                self.archive.push(arrival.clone());
            } else {
                self.archive[self.random.usize(..ARCHIVE)] = arrival.clone();
            }
            (0..self.sites.len()).for_each(|to| self.pass(to, arrival.clone()));
        }
    }

    fn pass(&mut self, to: usize, arrival: Arrival) {
        let mut delay = || if self.random.bool() { 0 } else { self.random.usize(..DELAY) };
        let (due, again) = (self.step + delay(), self.step + delay());
        match self.random.usize(..32) {
            0..2 => {}
            2..6 => self.underway.extend([(due, to, arrival.clone()), (again, to, arrival)]),
            6 => {
                let mut damaged = Arrival { is_genuine: false, ..arrival };
                // Its sender or window, too: what is not authentic says nothing of either.
                let places = [20, 22, damaged.bytes.len() - 1];
                damaged.bytes[self.random.choice(places).expect("one")] ^= 1 << self.random.usize(..8);
                self.underway.push((due, to, damaged));
            }
            _ => self.underway.push((due, to, arrival)),
        }
    }

    /// Sends some of what was ever captured again, to everybody, or all of it.
    fn replay(&mut self, most: usize) {
        self.random.shuffle(&mut self.archive);
        for arrival in self.archive.iter().take(most) {
            let to = 0..self.sites.len();
            self.underway.extend(to.map(|to| (self.step, to, arrival.clone())));
        }
    }

    fn arrive(&mut self) {
        let step = self.step;
        let (now, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.underway).into_iter().partition(|(due, ..)| *due <= step);
        self.underway = later;
        now.into_iter().for_each(|(_, to, arrival)| self.sites[to].arrive(arrival));
    }

    fn turn(&mut self, at: usize) {
        let worker = self.random.usize(..self.sites[at].workers);
        let left = self.sites[at].turn(worker);
        self.send(at, left);
    }

    fn run_to_end(&mut self) -> Outcome {
        while self.step < self.scenario.steps {
            self.step += 1;
            let at = self.random.usize(..self.sites.len());
            self.sites[at].load();
            self.arrive();
            (0..self.random.usize(2..8)).for_each(|_| {
                let at = self.random.usize(..self.sites.len());
                self.turn(at);
            });
            if self.random.usize(..12) == 0 {
                self.sites[at].store.serve();
            }
            self.sites.iter_mut().for_each(|site| site.advance(Duration::from_millis(1)));
            if self.random.usize(..50) == 0 {
                self.replay(30);
            }
            if self.scenario.changes {
                self.disturb(at);
            }
        }
        self.settle();
        self.replay(usize::MAX);
        self.settle();
        self.conclude()
    }

    fn disturb(&mut self, at: usize) {
        match self.random.usize(..300) {
            0 => self.sites[at].crash(),
            1 => {
                let left = self.sites[at].restart();
                self.send(at, left);
            }
            2..6 => self.sites[at].save(),
            _ => {}
        }
    }

    /// Lets everything that is under way arrive.
    fn settle(&mut self) {
        for member in self.sites.iter_mut().flat_map(|site| &mut site.members) {
            member.gateway.unprotected.set_room(None);
            member.gateway.protected.set_room(None);
        }
        let mut quiet = 0;
        for round in 0.. {
            assert!(round < 100_000, "it does not come to rest");
            self.step += 1;
            self.arrive();
            for at in 0..self.sites.len() {
                self.sites[at].store.serve();
                self.sites[at].advance(Duration::from_millis(1));
                for worker in 0..self.sites[at].workers {
                    let left = self.sites[at].turn(worker);
                    self.send(at, left);
                }
            }
            let is_quiet = self.underway.is_empty() && self.sites.iter().all(Site::is_idle);
            quiet = if is_quiet { quiet + 1 } else { 0 };
            if quiet > 3 {
                return;
            }
        }
    }

    fn conclude(&mut self) -> Outcome {
        let mut all = Outcome { sent: self.sent, windows: self.windows.len(), ..Outcome::default() };
        for site in &mut self.sites {
            site.assert_books();
            site.members.iter().for_each(|member| member.gateway.assert_settled());
            site.judge.end();
            let drops = |reason| site.members.iter().map(|m| m.gateway.drops(reason)).sum::<u64>();
            all.delivered += site.judge.came;
            all.replayed += site.outcome.replayed + drops(DropReason::ReplayDuplicate);
            all.own += site.outcome.own + drops(DropReason::VpeSender);
            all.not_leased += site.outcome.not_leased + drops(DropReason::SequenceNotLeased);
            all.crashes += site.outcome.crashes;
            all.restarts += site.outcome.restarts;
            if self.scenario.fault.is_none() {
                assert_eq!(drops(DropReason::VpeSenderTaken), 0, "what it has sent silences nobody");
            }
            let heard = site.installed.as_ref().and_then(|installed| installed.inbound.counters.senders());
            let heard = heard.expect("some");
            let mut senders: Vec<_> = heard.shown.iter().map(|of| of.sender).collect();
            senders.sort_unstable();
            let others: Vec<_> = (1..=MEMBERS).filter(|sender| *sender != site.sender).collect();
            assert_eq!((senders, heard.doubles), (others, 0));
        }
        all
    }
}

/// Runs a scenario; if it fails, prints how to run it again.
fn run(scenario: Scenario) -> Outcome {
    catch_unwind(AssertUnwindSafe(|| World::new(scenario).run_to_end())).unwrap_or_else(|panic| {
        eprintln!("scenario: {scenario:?}");
        let seed = seed();
        eprintln!("again:    TESTUDO_SEED={seed:#x} cargo test -p testudo-gateway --test simulation group");
        resume_unwind(panic)
    })
}

fn scenario(salt: u64, is_late: bool, changes: bool) -> Scenario {
    Scenario { seed: seed() ^ salt << 48, steps: 2500, is_late, changes, fault: None }
}

#[test]
fn senders_of_a_group_at_many_workers_use_no_nonce_twice_and_let_no_replay_through() {
    let (mut crashes, mut restarts, mut not_leased) = (0, 0, 0);
    for (salt, (is_late, changes)) in (1..).zip([(false, false), (false, true), (true, false), (true, true)])
    {
        let outcome = run(scenario(salt, is_late, changes));
        println!("{outcome:?}");
        // Each packet is for two others.
        assert!(outcome.delivered > outcome.sent, "too little came through: {outcome:?}");
        assert!(outcome.replayed > 2000 && outcome.own > 2000, "the network tried: {outcome:?}");
        assert!(outcome.windows > 3 * 16, "many windows of each sender: {outcome:?}");
        crashes += outcome.crashes;
        restarts += outcome.restarts;
        not_leased += outcome.not_leased;
    }
    assert!(crashes > 3 && restarts > 3 && not_leased > 0, "{crashes} {restarts} {not_leased}");
}

#[test]
fn a_group_does_the_same_again_from_the_same_seed() {
    assert_eq!(run(scenario(7, true, true)), run(scenario(7, true, true)));
}

fn run_with(fault: Fault, changes: bool) {
    run(Scenario { fault: Some(fault), ..scenario(8, false, changes) });
}

/// The simulation is worth something.
#[test]
#[should_panic(expected = "delivered")]
fn workers_of_a_group_that_note_replays_by_themselves_are_found() {
    run_with(Fault::WindowsApart, false);
}

#[test]
#[should_panic(expected = "each sender is one device")]
fn two_members_of_a_group_with_one_sender_id_are_found() {
    run_with(Fault::OneSenderTwice, false);
}

#[test]
#[should_panic(expected = "a nonce is used twice")]
fn a_member_of_a_group_that_forgets_its_leases_is_found() {
    run_with(Fault::LeasesForgotten, true);
}

#[test]
#[should_panic(expected = "delivered")]
fn a_member_of_a_group_that_forgets_its_windows_is_found() {
    run_with(Fault::WindowsForgotten, true);
}
