//! A gateway of several workers, whose every step the simulation makes: a turn of a worker, or a step of a
//! command at one of them.

use super::encapsulation::Case;
use super::judge::Judge;
use super::wire::Arrival;
use super::{Engines, Fault, Scenario};
use crate::support::gateway::PoolSize;
use crate::support::{Gateway, LeaseTwin, PortHandle, Side, TunnelSpec};
use fastrand::Rng;
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;
use testudo_gateway::{
    InboundInstall, OutboundInstall, SaChange, SaOutcome, SaRounds, TunnelInstall, Update, Worker,
};
use testudo_ipsec::{Moment, ReplayWindow, SaWorker};
use testudo_packet::DropReason;

/// A worker, and what the simulation knows of it.
pub struct Member {
    pub gateway: Gateway,
    /// What waits at its unprotected port.
    pub queue: VecDeque<Arrival>,
    /// SAs from the peer that it has.
    pub spis: HashSet<u32>,
    /// Commands on their way to it: `true` if the control plane waits for the answer.
    orders: VecDeque<(SaChange, bool)>,
    answers: SaOutcome,
    /// It found nothing to do in its last turn, and was told nothing since.
    is_idle: bool,
}

/// A command that not all workers have answered.
struct InProgress {
    rounds: Option<SaRounds>,
    /// Changes of this round, at each worker.
    changes: usize,
}

/// What the control plane has installed, or begun to: numbers of keys, oldest first.
#[derive(Debug, Clone)]
pub struct Keys {
    pub inbound: Vec<u8>,
    /// The last one is in use, or will be.
    pub outbound: Vec<u8>,
}

/// A gateway of several workers.
pub struct Site {
    pub side: Side,
    case: Case,
    pub members: Vec<Member>,
    pub store: LeaseTwin,
    pub keys: Keys,
    /// Windows of SAs by their numbers.
    saved: HashMap<u8, Vec<u8>>,
    in_progress: Option<InProgress>,
    engines: Engines,
    fault: Option<Fault>,
    in_order: bool,
    /// How many workers there are.
    workers: usize,
    /// The first so many get packets to send.
    pub running: usize,
    /// The first so many get what arrives.
    queues: usize,
    /// Turns of workers that slept.
    pub slept: u64,
    /// How often what arrives was led to more workers or to fewer.
    pub led: u64,
    /// Drops of workers that are gone.
    drops: HashMap<DropReason, u64>,
    now: Duration,
    /// Packets that were pushed into ports, and taken out of them, while the workers of now have run.
    pushed: u64,
    taken: u64,
}

/// A tunnel under its key number `key`.
pub fn under(spec: &TunnelSpec, key: u8) -> TunnelSpec {
    TunnelSpec { number: spec.number + 10 * key, ..spec.clone() }
}

/// The SAs that a site of four workers has at most for single ones of them, under its key number `key`.
fn own(spec: &TunnelSpec, key: u8) -> [TunnelSpec; 3] {
    [0, 1, 2].map(|worker| TunnelSpec { number: under(spec, key).number + 1 + worker, ..spec.clone() })
}

pub fn other(side: Side) -> Side {
    if side == Side::A { Side::B } else { Side::A }
}

impl Site {
    pub fn new(side: Side, scenario: &Scenario, workers: usize, engines: Engines) -> Self {
        let case = &scenario.case;
        let mut store = LeaseTwin::new(100);
        let mut saved = HashMap::new();
        if case.begins_after > 0 {
            store.begin_at(case.spec.spi_from(side), case.begins_after + 1);
            let mut window = ReplayWindow::new(case.spec.window, case.spec.esn);
            window.commit(case.begins_after).expect("the first number");
            saved.insert(case.spec.number, window.save());
        }
        let mut site = Self {
            side,
            case: case.clone(),
            members: Vec::new(),
            store,
            keys: Keys { inbound: vec![0], outbound: vec![0] },
            saved,
            in_progress: None,
            engines,
            fault: scenario.fault,
            in_order: scenario.in_order,
            workers,
            running: workers,
            queues: workers,
            slept: 0,
            led: 0,
            drops: HashMap::new(),
            now: Duration::ZERO,
            pushed: 0,
            taken: 0,
        };
        let links = (0..workers).map(|_| [PortHandle::default(), PortHandle::default()]).collect();
        site.start(links, (0..workers).map(|_| VecDeque::new()).collect());
        site
    }

    fn now(&self) -> Moment {
        Moment(self.now)
    }

    /// Starts all workers on these links, with what the store and the saved windows say.
    fn start(&mut self, links: Vec<[PortHandle; 2]>, queues: Vec<VecDeque<Arrival>>) {
        let spec = self.case.spec.clone();
        let mut workers = Vec::new();
        let mut ends = Vec::new();
        for [protected, unprotected] in links {
            self.pushed += (protected.arriving() + unprotected.arriving()) as u64;
            let (policies, engines) = (spec.policies(self.side), (self.engines)());
            let pool = PoolSize(1024, 2048);
            let whole = Gateway::on_links(protected, unprotected, policies, pool, engines);
            let Gateway { mut worker, protected, unprotected, clock } = whole;
            if !workers.is_empty() {
                worker.follow();
            }
            if self.in_order {
                worker.release_in_order();
            }
            clock.advance(self.now);
            workers.push(worker);
            ends.push((protected, unprotected, clock));
        }
        self.install(&mut workers);
        let inbound = self.keys.inbound.iter().flat_map(|key| self.each_inbound(*key));
        let inbound: HashSet<u32> = inbound.map(|spec| spec.spi_from(other(self.side))).collect();
        let whole = workers.into_iter().zip(ends).zip(queues);
        self.members = whole
            .map(|((worker, (protected, unprotected, clock)), queue)| Member {
                gateway: Gateway { worker, protected, unprotected, clock },
                queue,
                spis: inbound.clone(),
                orders: VecDeque::new(),
                answers: Vec::new(),
                is_idle: false,
            })
            .collect();
        (self.running, self.queues) = (self.workers, self.workers);
    }

    /// Packets are led to the first so many workers from now on, as `workers set` does. The others send what
    /// they have, and their ports take it; then they sleep.
    pub fn lead_to(&mut self, running: usize) {
        self.running = running;
        for (at, Member { gateway, .. }) in self.members.iter().enumerate() {
            gateway.worker.counters().set_parked(at >= running);
            if at >= running {
                gateway.protected.set_room(None);
                gateway.unprotected.set_room(None);
            }
        }
    }

    /// How many workers what arrives is spread over. Packets that come to another worker overtake what the
    /// one before still has (`docs/WORKERS.md`); where none may, they are led to others when nobody has any.
    pub fn queues(&mut self, may_overtake: bool) -> usize {
        let has_none = |m: &Member| m.queue.is_empty() && !m.gateway.worker.is_busy();
        if may_overtake || self.members.iter().all(has_none) {
            self.led += u64::from(self.queues != self.running);
            self.queues = self.running;
        }
        self.queues
    }

    /// Whether a worker that gets no packets has nothing left to do, so that its thread sleeps.
    fn sleeps(&self, at: usize) -> bool {
        if at < self.running || self.fault == Some(Fault::SleepsAtOnce) {
            return at >= self.running;
        }
        let Member { gateway, is_idle, .. } = &self.members[at];
        let worker = &gateway.worker;
        let waits = worker.waits_for_numbers() || worker.waits_for_order();
        let has_any = gateway.protected.arriving() + gateway.unprotected.arriving() > 0;
        *is_idle && !has_any && !worker.is_busy() && worker.is_waiting() == (false, false) && !waits
    }

    /// The SAs from the peer under a key: as many as it may have workers.
    fn each_inbound(&self, key: u8) -> Vec<TunnelSpec> {
        let own = own(&self.case.spec, key).into_iter().filter(|_| self.case.own_sas);
        std::iter::once(under(&self.case.spec, key)).chain(own).collect()
    }

    /// The SAs towards the peer under a key, each with the worker that alone sends through it.
    fn each_outbound(&self, key: u8) -> Vec<(TunnelSpec, Option<u32>)> {
        let own = own(&self.case.spec, key).into_iter().take(self.workers - 1).zip((0..).map(Some));
        let own = own.filter(|_| self.case.own_sas);
        std::iter::once((under(&self.case.spec, key), None)).chain(own).collect()
    }

    /// The SPIs that workers send through under a key.
    pub fn spis_out(&self, key: u8) -> Vec<u32> {
        self.each_outbound(key).into_iter().map(|(spec, _)| spec.spi_from(self.side)).collect()
    }

    fn inbound(&self, key: u8) -> Vec<InboundInstall> {
        let install = |spec: TunnelSpec| {
            let window = self.saved.get(&spec.number).cloned();
            InboundInstall { window, ..spec.inbound(self.side) }
        };
        self.each_inbound(key).into_iter().map(install).collect()
    }

    fn outbound(&mut self, key: u8) -> Vec<OutboundInstall> {
        let all = self.each_outbound(key);
        let install = |(spec, worker): (TunnelSpec, Option<u32>)| {
            let mut install = spec.outbound(self.side, &mut self.store);
            install.parameters.worker = worker.map(SaWorker::new);
            install
        };
        all.into_iter().map(install).collect()
    }

    fn tunnel(&self, outbound: Vec<OutboundInstall>) -> TunnelInstall {
        let spec = &self.case.spec;
        let (mut outbound, mut inbound) = (outbound, self.inbound(self.keys.inbound[0]));
        let (more_outbound, more_inbound) = (outbound.split_off(1), inbound.split_off(1));
        TunnelInstall {
            index: spec.index(),
            parameters: spec.parameters(self.side),
            outbound: outbound.remove(0),
            inbound: inbound.remove(0),
            more_outbound,
            more_inbound,
        }
    }

    /// Installs the tunnel at workers that do not run yet.
    fn install(&mut self, workers: &mut [Worker]) {
        let (now, index) = (self.now(), self.case.spec.index());
        let key = *self.keys.outbound.last().expect("a key");
        let outbound = self.outbound(key);
        if self.fault.is_some_and(Fault::is_of_sharing) {
            return self.install_apart(workers, key, &outbound[0]);
        }
        let update = Update { install: vec![self.tunnel(outbound)], ..Update::default() };
        let (_, outcome) = Worker::update_all(workers, update, now).remove(0);
        outcome.expect("there is room");
        let more = self.keys.inbound[1..].iter();
        let more = more.flat_map(|key| self.inbound(*key));
        let more = more.map(|inbound| SaChange::AddInbound(index, Box::new(inbound))).collect();
        let (rounds, first) = SaRounds::begin(more, workers.len());
        let answer = |(worker, changes): (&mut Worker, Vec<SaChange>)| {
            changes.into_iter().map(|change| worker.change_sa(change, now)).collect()
        };
        let answers: Vec<_> = workers.iter_mut().zip(first).map(answer).collect();
        let (outcome, second) = rounds.answered(answers.into_iter());
        assert!(outcome.iter().all(Result::is_ok) && second.is_none(), "{outcome:?}");
    }

    /// The mistakes that the simulation must find: workers that do not share what they must.
    fn install_apart(&self, workers: &mut [Worker], key: u8, of_one: &OutboundInstall) {
        let OutboundInstall { parameters, peer_window, .. } = of_one;
        let mut parameters = parameters.clone();
        if self.fault == Some(Fault::WindowsApart) {
            let (numbers, esn) = (parameters.numbers.clone(), parameters.sa.esn);
            parameters.numbers = match parameters.sa.suite.is_for_vpe() {
                true => numbers.gated(esn),
                false => numbers.shared(esn, *peer_window, workers.len()),
            };
        }
        for (at, worker) in workers.iter_mut().enumerate() {
            // Of VPE each has its own windows then; of lone workers all have those of the first one.
            parameters.numbers = parameters.numbers.of_worker(at);
            let key = under(&self.case.spec, key).key_from(self.side).into();
            let outbound = OutboundInstall { parameters: parameters.clone(), key, peer_window: *peer_window };
            let update = Update { install: vec![self.tunnel(vec![outbound])], ..Update::default() };
            let (_, outcome) = worker.update(update, self.now()).remove(0);
            outcome.expect("there is room");
        }
    }

    pub fn is_changing(&self) -> bool {
        self.in_progress.is_some()
    }

    /// Begins changes of SAs, as the control plane does.
    fn change(&mut self, changes: Vec<SaChange>) {
        assert!(!self.is_changing(), "one command at a time");
        let (rounds, first) = SaRounds::begin(changes, self.members.len());
        self.give(first, Some(rounds));
    }

    fn give(&mut self, round: Vec<Vec<SaChange>>, rounds: Option<SaRounds>) {
        self.in_progress = Some(InProgress { rounds, changes: round[0].len() });
        for (member, changes) in self.members.iter_mut().zip(round) {
            member.answers.clear();
            member.orders.extend(changes.into_iter().map(|change| (change, true)));
        }
    }

    pub fn accept(&mut self, key: u8) {
        let index = self.case.spec.index();
        let add = |inbound| SaChange::AddInbound(index, Box::new(inbound));
        let changes = self.inbound(key).into_iter().map(add).collect();
        self.keys.inbound.push(key);
        self.change(changes);
    }

    pub fn send_under(&mut self, key: u8, from: testudo_gateway::UseFrom) {
        let index = self.case.spec.index();
        let add = |outbound| SaChange::AddOutbound(index, Box::new(outbound), from);
        let changes = self.outbound(key).into_iter().map(add).collect();
        self.keys.outbound.push(key);
        self.change(changes);
    }

    /// Removes a key's SAs, as far as it has them.
    pub fn forget(&mut self, key: u8) {
        let (index, side) = (self.case.spec.index(), self.side);
        let mut changes = Vec::new();
        if self.keys.outbound.contains(&key) {
            let outbound = self.each_outbound(key).into_iter().map(|(spec, _)| spec.spi_from(side));
            changes.extend(outbound.map(|spi| SaChange::RemoveOutbound(index, spi)));
        }
        if self.keys.inbound.contains(&key) {
            let inbound = self.each_inbound(key).into_iter().map(|spec| spec.spi_from(other(side)));
            changes.extend(inbound.map(|spi| SaChange::RemoveInbound(index, spi)));
        }
        self.keys.outbound.retain(|of| *of != key);
        self.keys.inbound.retain(|of| *of != key);
        self.change(changes);
    }

    /// Makes the next step of a command at a worker, if one is on its way.
    pub fn step_command(&mut self, at: usize) {
        let (now, index) = (self.now(), self.case.spec.index());
        let member = &mut self.members[at];
        let Some((change, is_awaited)) = member.orders.pop_front() else { return };
        match &change {
            SaChange::AddInbound(_, install) => drop(member.spis.insert(install.parameters.sa.spi)),
            SaChange::RemoveInbound(of, spi) if *of == index => drop(member.spis.remove(spi)),
            _ => {}
        }
        let outcome = member.gateway.worker.change_sa(change, now);
        member.is_idle = false;
        if is_awaited {
            assert!(outcome.is_ok(), "{outcome:?}");
            member.answers.push(outcome);
        }
        self.end_round();
    }

    fn end_round(&mut self) {
        let Some(InProgress { changes, .. }) = &self.in_progress else { return };
        if self.members.iter().any(|member| member.answers.len() < *changes) {
            return;
        }
        let answers: Vec<_> =
            self.members.iter_mut().map(|member| std::mem::take(&mut member.answers)).collect();
        let rounds = self.in_progress.take().and_then(|progress| progress.rounds);
        if let Some(rounds) = rounds
            && let (_, Some(second)) = rounds.answered(answers.into_iter())
        {
            self.give(second, None);
        }
    }

    /// Lets all workers know what one of them has learned, as the control plane does.
    fn spread_events(&mut self, at: usize) {
        for event in self.members[at].gateway.worker.take_events() {
            if event.kind.concerns_all() {
                for member in &mut self.members {
                    member.orders.push_back((SaChange::Hear(event), false));
                }
            }
        }
    }

    pub fn push_protected(&mut self, at: usize, packet: Vec<u8>) {
        self.pushed += 1;
        self.members[at].gateway.protected.push(packet);
    }

    pub fn arrive(&mut self, at: usize, arrival: Arrival) {
        self.pushed += 1;
        let member = &mut self.members[at];
        member.gateway.unprotected.push(arrival.bytes.clone());
        member.queue.push_back(arrival);
    }

    /// A turn of a worker. Returns the datagrams that left it; `judge` has what came in and what came out.
    pub fn turn(&mut self, at: usize, judge: &mut Judge) -> Vec<Vec<u8>> {
        if self.sleeps(at) {
            self.slept += 1;
            return Vec::new();
        }
        let member = &mut self.members[at];
        let before = member.gateway.unprotected.arriving();
        if self.case.has_clock() {
            let now = member.gateway.now();
            member.gateway.worker.send_dummies(now);
        }
        member.is_idle = member.gateway.turn() == 0;
        let taken = before - member.gateway.unprotected.arriving();
        for arrival in member.queue.drain(..taken) {
            judge.receive(at, &arrival, member.spis.contains(&arrival.shown.spi));
        }
        let delivered = member.gateway.protected.take();
        let left = member.gateway.unprotected.take();
        let sent = left.iter().map(|datagram| (self.case.show)(&self.case.spec, datagram).spi);
        for spi in sent.filter(|_| self.case.own_sas) {
            // The last digit of its number says whose it is.
            let whose = ((spi - 0x1000) / 2 % 10) as usize;
            let expected = if at + 1 < self.workers { 1 + at } else { 0 };
            assert_eq!(whose, expected, "worker {at} of {} sent through {spi:#x}", self.workers);
        }
        let vanishes = self.fault == Some(Fault::PacketsVanish) && delivered.len() > 2;
        self.taken += (delivered.len() + left.len() - usize::from(vanishes)) as u64;
        delivered.iter().for_each(|packet| judge.deliver(at, packet));
        judge.end_turn(at);
        self.spread_events(at);
        left
    }

    /// Time passes, and now and then each worker has its tick.
    pub fn advance(&mut self, by: Duration, random: &mut Rng) {
        let before = self.now.as_secs();
        self.now += by;
        let is_due = self.now.as_secs() > before;
        let now = self.now();
        let first = random.usize(..self.members.len());
        let count = self.members.len();
        self.members.iter_mut().for_each(|member| member.gateway.clock.advance(by));
        for at in (0..count).map(|n| (first + n) % count).filter(|_| is_due) {
            self.members[at].gateway.worker.tick(now);
            self.members[at].is_idle = false;
        }
    }

    /// Saves the windows of all SAs, unless a command is on its way: commands have one order.
    pub fn save(&mut self, judge: &mut Judge) {
        if self.is_changing() {
            return;
        }
        let worker = &self.members[0].gateway.worker;
        let sas: Vec<_> = worker.inbound_sas(self.case.spec.index()).collect();
        let specs: Vec<_> = self.keys.inbound.iter().flat_map(|key| self.each_inbound(*key)).collect();
        assert_eq!(sas.len(), specs.len(), "{:?}", self.keys);
        for (spec, sa) in specs.iter().zip(sas) {
            self.saved.insert(spec.number, worker.save_window(sa).expect("it has the SA"));
        }
        judge.save();
    }

    /// All workers are gone in the middle of what they did, and others start. What is in the ports' queues
    /// stays there.
    pub fn crash(&mut self, judge: &mut Judge) {
        judge.crash();
        self.replace();
    }

    /// All workers end as they do when they are told to, and others start. The windows are saved last.
    pub fn restart(&mut self, judge: &mut Judge, random: &mut Rng, mut sent: impl FnMut(Vec<Vec<u8>>)) {
        while self.is_changing() {
            self.step_command(random.usize(..self.members.len()));
        }
        for member in &mut self.members {
            member.gateway.protected.set_room(None);
            member.gateway.unprotected.set_room(None);
            member.gateway.worker.drain();
        }
        for _ in 0..200 * self.members.len() {
            let at = random.usize(..self.members.len());
            sent(self.turn(at, judge));
        }
        for member in &mut self.members {
            member.gateway.worker.discard_waiting();
        }
        self.save(judge);
        judge.end();
        self.replace();
    }

    fn replace(&mut self) {
        self.assert_books();
        self.in_progress = None;
        match self.fault {
            Some(Fault::LeasesForgotten) => self.store = LeaseTwin::new(100),
            Some(Fault::WindowsForgotten) => self.saved.clear(),
            _ => {}
        }
        let newest = *self.keys.outbound.last().expect("a key");
        self.keys.outbound = vec![newest];
        let members = std::mem::take(&mut self.members);
        let (mut links, mut queues) = (Vec::new(), Vec::new());
        for Member { gateway, queue, .. } in members {
            for (reason, count) in gateway.worker.pool().drops().iter() {
                *self.drops.entry(reason).or_default() += count;
            }
            links.push([gateway.protected, gateway.unprotected]);
            queues.push(queue);
        }
        // What their ports have taken by now is out.
        (self.pushed, self.taken) = (0, 0);
        self.start(links, queues);
    }

    /// Every packet of every worker is accounted for, and so is every one of the links.
    pub fn assert_books(&self) {
        let books: Vec<_> = self.members.iter().map(|member| member.gateway.books()).collect();
        assert!(books.iter().all(testudo_gateway::Books::balance), "{books:?}");
        let arriving = |m: &Member| m.gateway.protected.arriving() + m.gateway.unprotected.arriving();
        let waiting: usize = self.members.iter().map(arriving).sum();
        let received: u64 = books.iter().map(|books| books.received).sum();
        let sent: u64 = books.iter().map(|books| books.sent).sum();
        assert_eq!((received + waiting as u64, sent), (self.pushed, self.taken), "{books:?}");
    }

    /// Nothing is under way at any worker.
    pub fn assert_settled(&self) {
        self.assert_books();
        for Member { gateway, queue, .. } in &self.members {
            let worker = &gateway.worker;
            assert!(queue.is_empty() && !worker.waits_for_numbers() && !worker.is_busy());
            gateway.assert_settled();
        }
    }

    /// Packets that were dropped for a reason, by all workers that there were.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        let now: u64 = self.members.iter().map(|member| member.gateway.drops(reason)).sum();
        now + self.drops.get(&reason).copied().unwrap_or(0)
    }
}
