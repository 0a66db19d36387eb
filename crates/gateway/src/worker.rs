//! One worker: ports, pool, protocol and engines, run to completion.

use crate::change::Change;
use crate::command::{InboundInstall, OutboundInstall, SharedInbound, Update, UpdateError, UpdateOutcome};
use crate::counters::WorkerCounters;
use crate::dispatcher::Dispatcher;
use crate::formation::Formation;
use crate::meter::Meter;
use crate::offload::Offloading;
use crate::outlet::Outlet;
use crate::placement::{KeyPreparers, PlacedKey, SaKey};
use crate::role::Role;
use crate::withdrawn::Withdrawal;
use std::sync::Arc;
use testudo_crypto::{Direction, Engine, Job, KeyFrame, Suite};
use testudo_ipsec::{
    AddedSa, AuditRecord, Event, InstallError, Ipsec, LastWindows, Moment, PolicyChange, PolicyId, Prepared,
    Protected, RemovedTunnel, SaRef, SaSelectors, Spd, SpdError, TunnelIndex, Unprotected,
};
use testudo_packet::{
    BATCH_SIZE, Batch, DropReason, Interface, Pool, Port, PortError, Stage, StageClock, StageTimes,
};

/// Packets of one direction after which a turn takes no more: enough to spread what every turn costs.
const PACKETS: usize = 4 * BATCH_SIZE;
/// How often a turn calls a port's `rx` if the other port joins packets. What that one joins into one call
/// may be spread over several batches; more than a few would only delay the first of them.
const ROUNDS: usize = 4;

/// How often, at most, a turn calls `rx` for packets that leave by `outlet`.
fn rounds<Side>(outlet: &Outlet<Side>) -> usize {
    if outlet.port.joins() { ROUNDS } else { PACKETS }
}

/// The two sides of a gateway.
pub struct PortPair {
    /// The private network.
    pub protected: Box<dyn Port>,
    /// The public one.
    pub unprotected: Box<dyn Port>,
}

/// One worker. It owns everything it touches; [`turn`](Self::turn) never waits.
pub struct Worker {
    pub(crate) protected: Outlet<Protected>,
    pub(crate) unprotected: Outlet<Unprotected>,
    pub(crate) pool: Pool,
    pub(crate) ipsec: Ipsec,
    pub(crate) dispatcher: Dispatcher,
    pub(crate) counters: Arc<WorkerCounters>,
    batch: Batch,
    pub(crate) prepared: Prepared,
    released: Vec<Job>,
    /// Stage times of outbound packets.
    outbound_clock: StageClock,
    /// Stage times of inbound packets.
    inbound_clock: StageClock,
    pub(crate) draining: bool,
    /// Whether packets may come in chains of buffers.
    pub(crate) takes_chains: bool,
    /// Whether jobs are looked at before they are submitted: for a journal, or since they may be chains.
    attends_to_jobs: bool,
    pub(crate) role: Role,
    /// Whether another worker sends what no packet asks for.
    pub(crate) is_follower: bool,
    /// Which SAs the NIC of the unprotected port has, if it does cryptography.
    pub(crate) offloading: Option<Box<Offloading>>,
    /// What the threading model follows, if it is chosen by what is measured.
    pub(crate) meter: Option<Box<Meter>>,
}

impl Worker {
    /// A worker without tunnels.
    #[must_use]
    pub fn new(
        ports: PortPair,
        mut pool: Pool,
        mut engines: Vec<Box<dyn Engine>>,
        policies: Box<Spd>,
    ) -> Self {
        engines.iter_mut().for_each(|engine| engine.use_memory(pool.region()));
        let mut dispatcher = Dispatcher::new(engines, pool.size());
        let (protected, unprotected) = (&*ports.protected, &*ports.unprotected);
        let engines = (dispatcher.engine_names(), dispatcher.withdrawn(), dispatcher.scheduled());
        let counters = Arc::new(WorkerCounters::new(protected, unprotected, engines));
        let mut ipsec = Ipsec::new(policies);
        ipsec.set_port_fragments_udp(unprotected.fragments_udp());
        ipsec.set_has_interfaces(protected.interfaces() > 1);
        if protected.interfaces() > 1 {
            pool.count_by_interface(protected.interfaces());
        }
        let takes_chains = protected.takes_chains() || unprotected.takes_chains();
        ipsec.set_takes_chains(takes_chains);
        let attends_to_jobs = takes_chains || pool.journal().is_some();
        let offloads = dispatcher.offload().is_some() && unprotected.seals_marked();
        let (mut protected, mut unprotected) = (Outlet::new(ports.protected), Outlet::new(ports.unprotected));
        if takes_chains {
            protected.expect_chains();
            unprotected.expect_chains();
        }
        if offloads {
            protected.expect_marked();
            unprotected.expect_marked();
        }
        let released = Vec::with_capacity(dispatcher.most_released());
        let worker = Self {
            protected,
            unprotected,
            pool,
            ipsec,
            dispatcher,
            counters,
            batch: Batch::new(),
            prepared: Prepared::default(),
            released,
            outbound_clock: StageClock::default(),
            inbound_clock: StageClock::default(),
            draining: false,
            takes_chains,
            attends_to_jobs,
            role: Role::Both,
            is_follower: false,
            offloading: offloads.then(|| Box::new(Offloading::new())),
            meter: None,
        };
        worker.publish();
        worker
    }

    /// It is one of several, and another one sends keepalives and dummies for all; fill packets of VPE each
    /// that encrypts sends in its own windows.
    pub fn follow(&mut self) {
        self.is_follower = true;
        self.ipsec.leave_dummies_of_esp();
    }

    /// Measures stages in what `source` shows, instead of the processor's ticks: from the next turn on.
    pub fn measure_in(&mut self, source: fn() -> u64) {
        self.outbound_clock = StageClock::with_source(source);
        self.inbound_clock = StageClock::with_source(source);
    }

    /// Where the Identifications of datagrams that are fragmented begin: different for each start, so that
    /// who does not see them cannot guess them (RFC 7739 3).
    pub fn seed_identifications(&mut self, seed: u64) {
        self.ipsec.seed_identifications(seed);
    }

    /// Its counters, to be read by other threads.
    #[must_use]
    pub fn counters(&self) -> Arc<WorkerCounters> {
        Arc::clone(&self.counters)
    }

    /// Where the cycles of outbound packets went.
    #[must_use]
    pub fn outbound_stages(&self) -> &StageTimes {
        self.outbound_clock.times()
    }

    /// Where the cycles of inbound packets went.
    #[must_use]
    pub fn inbound_stages(&self) -> &StageTimes {
        self.inbound_clock.times()
    }

    /// Names of the engines, in the order of placement.
    #[must_use]
    pub fn engine_names(&self) -> Vec<&'static str> {
        self.dispatcher.engine_names()
    }

    /// What expands keys for its engines on other threads.
    #[must_use]
    pub fn preparers(&self) -> KeyPreparers {
        self.dispatcher.preparers()
    }

    /// How jobs are arranged for engines that prefer bursts; by suite and length unless told otherwise.
    pub fn set_formation(&mut self, formation: Formation) {
        self.dispatcher.set_formation(formation);
    }

    /// Changes tunnels and policies, all between two batches. A running gateway changes a few tunnels at a
    /// time.
    pub fn update(&mut self, update: Update, now: Moment) -> UpdateOutcome {
        let mut change = Change::new(update);
        while !change.step(self, now, usize::MAX) {}
        change.into_outcome()
    }

    /// Puts policies and selectors in force, at once, and leaves those before in their place.
    pub(crate) fn turn_over(
        &mut self,
        policies: &mut Option<Box<Spd>>,
        selectors: &mut [(TunnelIndex, SaSelectors)],
    ) {
        for (index, selectors) in selectors {
            self.ipsec.swap_selectors(*index, selectors);
        }
        if let Some(policies) = policies {
            self.ipsec.swap_policies(policies);
        }
    }

    /// Changes policies one by one. All changes are in force for the next packet.
    pub fn change_policies(&mut self, changes: Vec<PolicyChange>) -> Vec<Result<PolicyId, SpdError>> {
        changes.into_iter().map(|change| self.ipsec.spd_mut().change(change)).collect()
    }

    /// The policies in force.
    #[must_use]
    pub fn policies(&self) -> &Spd {
        self.ipsec.spd()
    }

    /// Adds an SA towards the peer, which carries nothing yet.
    pub(crate) fn add_outbound(
        &mut self,
        index: TunnelIndex,
        install: OutboundInstall,
        now: Moment,
    ) -> Result<AddedSa, UpdateError> {
        let OutboundInstall { parameters, key, .. } = install;
        let suite = key.suite();
        let frame = KeyFrame::new(parameters.sa.spi, parameters.iv_mask);
        let key = self.place(index, key.with_frame(frame), Direction::Seal)?;
        let added = self.ipsec.add_outbound(index, parameters, now);
        let added = self.connect(Direction::Seal, added, key, suite)?;
        if self.dispatcher.may_leave_frames(added.sa, suite) {
            self.ipsec.leave_frames(added.sa);
        }
        Ok(added)
    }

    /// Adds an SA from the peer.
    pub(crate) fn add_inbound(
        &mut self,
        index: TunnelIndex,
        install: InboundInstall,
        now: Moment,
    ) -> Result<AddedSa, UpdateError> {
        let InboundInstall { parameters, key, window, shared, .. } = install;
        let (spi, suite) = (parameters.sa.spi, key.suite());
        let key = self.place(index, key, Direction::Open)?;
        let added = match &shared {
            None => self.ipsec.add_inbound(index, parameters, now),
            Some(SharedInbound::Window(window)) => {
                self.ipsec.add_shared_inbound(index, parameters, window, now)
            }
            Some(SharedInbound::Windows(windows)) => {
                self.ipsec.add_shared_inbound_of_vpe(index, &parameters, windows, now)
            }
        };
        let added = self.connect(Direction::Open, added, key, suite)?;
        if window.is_some_and(|window| !self.ipsec.restore_window(added.sa, &window)) {
            // Without its window the SA would accept again what was accepted before.
            let tunnel = self.name_of(index);
            drop(self.remove_inbound(index, spi));
            return Err(UpdateError::Window { tunnel });
        }
        Ok(added)
    }

    fn place(
        &mut self,
        index: TunnelIndex,
        key: PlacedKey,
        direction: Direction,
    ) -> Result<SaKey, UpdateError> {
        let placed = self.dispatcher.install(key, direction);
        placed.map_err(|source| UpdateError::Placement { tunnel: self.name_of(index), source })
    }

    /// Makes the key of an SA effective, or takes it back if it was not added.
    fn connect(
        &mut self,
        direction: Direction,
        added: Result<AddedSa, InstallError>,
        key: SaKey,
        suite: Suite,
    ) -> Result<AddedSa, UpdateError> {
        match &added {
            Ok(added) => {
                self.dispatcher.connect(direction, added.sa, key, suite);
                if let Some(offloading) = &mut self.offloading {
                    offloading.add(direction, added.sa, suite, Arc::clone(&added.counters));
                }
            }
            Err(_) => self.dispatcher.uninstall(key),
        }
        Ok(added?)
    }

    fn name_of(&self, index: TunnelIndex) -> Arc<str> {
        self.ipsec.tunnel_name(index).unwrap_or_else(|| Arc::from("?"))
    }

    pub(crate) fn remove(&mut self, index: TunnelIndex) -> Option<RemovedTunnel> {
        let removed = self.ipsec.remove(index)?;
        removed.outbound().for_each(|sa| self.disconnect(Direction::Seal, sa));
        removed.inbound().for_each(|sa| self.disconnect(Direction::Open, sa));
        Some(removed)
    }

    pub(crate) fn remove_inbound(&mut self, index: TunnelIndex, spi: u32) -> Option<LastWindows> {
        let (sa, windows) = self.ipsec.remove_inbound(index, spi)?;
        self.disconnect(Direction::Open, sa);
        Some(windows)
    }

    /// Forgets the keys of an SA that was removed. Its jobs that have ended are dropped.
    pub(crate) fn disconnect(&mut self, direction: Direction, sa: SaRef) {
        let mut stale = Vec::new();
        if let Some(offloading) = &mut self.offloading {
            offloading.remove(direction, sa);
        }
        self.dispatcher.disconnect(direction, sa, &mut stale);
        stale.into_iter().for_each(|job| self.pool.discard(job.buffer, DropReason::ShuttingDown));
    }

    /// The SAs of a tunnel from its peer, oldest first.
    pub fn inbound_sas(&self, index: TunnelIndex) -> impl Iterator<Item = SaRef> + '_ {
        self.ipsec.inbound_sas(index)
    }

    /// The replay window of an SA from a peer, as bytes.
    #[must_use]
    pub fn save_window(&self, inbound: SaRef) -> Option<Vec<u8>> {
        self.ipsec.save_window(inbound)
    }

    /// The same; of VPE, whose windows may be many, in no more than `most_bytes`
    /// ([`Ipsec::save_window_within`]).
    #[must_use]
    pub fn save_window_within(&self, inbound: SaRef, most_bytes: usize) -> Option<Vec<u8>> {
        self.ipsec.save_window_within(inbound, most_bytes)
    }

    /// Events of tunnels for the operator since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        self.ipsec.take_events()
    }

    /// Whether [auditable events](testudo_ipsec::AUDITED) are noted.
    pub fn set_audit(&mut self, is_on: bool) {
        self.ipsec.set_audit(is_on);
    }

    /// Auditable events since the last call, at most ten of a kind in a second.
    pub fn take_audit(&mut self) -> Vec<AuditRecord> {
        self.ipsec.take_audit()
    }

    /// Engines that were taken out of service since this was last called.
    pub fn take_withdrawals(&mut self) -> Vec<Withdrawal> {
        let withdrawals = self.dispatcher.take_withdrawals();
        if !withdrawals.is_empty() && self.dispatcher.leaves_frames() {
            // It may be the one that wrote them. What is left to it by now is completed for the next engine.
            self.ipsec.write_all_frames();
        }
        withdrawals
    }

    /// Does what there is to do, once in each direction; returns how many packets moved.
    ///
    /// # Errors
    /// [`PortError`] if a port failed for good. What was taken by then is finished, sent as far as the ports
    /// go, and counted; what could not be sent still waits.
    pub fn turn(&mut self, now: Moment) -> Result<usize, PortError> {
        let was_busy = self.dispatcher.is_busy();
        if self.offloading.is_some() {
            self.offload(now);
        }
        let mut moved = self.collect(now);
        // Backpressure: while packets wait for a port no more are made for it, so that the kernel's queue
        // behind the other port fills instead of ours.
        if !self.unprotected.is_waiting() && (!self.takes_no_outbound() || self.ipsec.waits_for_numbers()) {
            moved += self.outbound(now);
        }
        if self.role.decrypts() && !self.protected.is_waiting() {
            moved += self.inbound(now);
        }
        if self.ipsec.is_in_order() {
            moved += self.send_in_order(now);
        }
        if self.ipsec.has_numbers_in_flight() {
            self.hand_over();
        }
        let failure = self.protected.take_failure().or(self.unprotected.take_failure());
        if moved > 0 || was_busy || failure.is_some() {
            self.publish();
        }
        failure.map_or(Ok(moved), Err)
    }

    /// Takes the jobs that engines have ended since the last turn, and sends what still waits.
    fn collect(&mut self, now: Moment) -> usize {
        let given_up = self.dispatcher.poll(now, &mut self.released);
        if given_up > 0 {
            self.pool.forget(given_up);
        }
        self.finish(false, now);
        self.protected.flush(&mut self.pool) + self.unprotected.flush(&mut self.pool)
    }

    fn outbound(&mut self, now: Moment) -> usize {
        self.outbound_clock.begin();
        let mut moved = 0;
        let gathers = self.dispatcher.gathers();
        for _ in 0..rounds(&self.unprotected) {
            if self.ipsec.waits_for_numbers() && !self.send_waiting(now, &mut moved) {
                break;
            }
            // Those that have waited for an SA are older than what comes now.
            let received = match self.ipsec.take_released(&mut self.batch) {
                0 => self.protected.receive(&mut self.pool, &mut self.batch),
                released => released,
            };
            if received == 0 {
                break;
            }
            moved += received;
            if self.takes_chains {
                self.ipsec.admit_chains(&mut self.batch, &mut self.pool);
            }
            let clock = &mut self.outbound_clock;
            clock.lap(Stage::Receive);
            self.ipsec.outbound(&mut self.batch, now, &mut self.pool, clock, &mut self.prepared);
            for packet in self.prepared.pass.drain(..) {
                self.unprotected.push(packet, &mut self.pool);
            }
            for packet in self.prepared.replies.drain(..) {
                self.protected.push(packet, &mut self.pool);
            }
            if !gathers {
                self.seal(now);
            }
            if moved >= PACKETS {
                break;
            }
        }
        if gathers || !self.prepared.jobs.is_empty() {
            self.seal(now);
        }
        self.flush(moved);
        self.outbound_clock.lap(Stage::Transmit);
        self.outbound_clock.end(moved);
        moved
    }

    /// Runs the crypto for outbound jobs, then sends what is [ready](Outlet::flush_ready).
    pub(crate) fn seal(&mut self, now: Moment) {
        if self.prepared.jobs.is_empty() {
            return self.unprotected.flush_ready(&mut self.pool);
        }
        let in_place = self.submit();
        self.outbound_clock.lap(Stage::Cryptography);
        self.finish(in_place, now);
    }

    /// Submits the prepared jobs. `true` where all have ended in place; else those that have ended were
    /// released.
    #[inline(always)]
    fn submit(&mut self) -> bool {
        if self.attends_to_jobs {
            self.attend_to_jobs();
        }
        self.dispatcher.submit(&mut self.prepared.jobs, &mut self.released)
    }

    /// Takes packets of the unprotected side: they are no interface's before they are opened, whatever was in
    /// their buffers before.
    #[inline(always)]
    fn receive_unprotected(&mut self) -> usize {
        if !self.pool.counts_by_interface() {
            return self.unprotected.receive(&mut self.pool, &mut self.batch);
        }
        self.pool.set_receiving(Some(Interface::NONE));
        let received = self.unprotected.receive(&mut self.pool, &mut self.batch);
        self.pool.set_receiving(None);
        self.batch.iter_mut().for_each(|packet| packet.set_interface(Interface::NONE));
        received
    }

    fn inbound(&mut self, now: Moment) -> usize {
        self.inbound_clock.begin();
        let mut moved = 0;
        let (gathers, in_order) = (self.dispatcher.gathers(), self.ipsec.is_in_order());
        for _ in 0..rounds(&self.protected) {
            let received = self.receive_unprotected();
            if received == 0 {
                break;
            }
            moved += received;
            if self.takes_chains {
                self.ipsec.admit_chains(&mut self.batch, &mut self.pool);
            }
            let clock = &mut self.inbound_clock;
            clock.lap(Stage::Receive);
            self.ipsec.inbound(&mut self.batch, now, &mut self.pool, clock, &mut self.prepared);
            for packet in self.prepared.pass.drain(..) {
                self.protected.push(packet, &mut self.pool);
            }
            if !gathers {
                self.open(now);
            }
            if in_order {
                // Other workers wait for what is next here: all of this turn would keep them longer.
                self.send_in_order(now);
            }
            if moved >= PACKETS {
                break;
            }
        }
        if gathers || !self.prepared.jobs.is_empty() {
            self.open(now);
        }
        self.flush(moved);
        self.inbound_clock.lap(Stage::Transmit);
        self.inbound_clock.end(moved);
        moved
    }

    /// Runs the crypto for inbound jobs, then sends what is [ready](Outlet::flush_ready).
    fn open(&mut self, now: Moment) {
        if self.prepared.jobs.is_empty() {
            return self.protected.flush_ready(&mut self.pool);
        }
        let in_place = self.submit();
        self.inbound_clock.lap(Stage::Cryptography);
        self.finish(in_place, now);
    }

    /// Sends what `moved` packets have become.
    pub(crate) fn flush(&mut self, moved: usize) {
        if moved > 0 {
            self.unprotected.flush(&mut self.pool);
            self.protected.flush(&mut self.pool);
        }
    }

    /// Takes ended jobs back through the protocol, those submitted last or those that were released, and
    /// sends what is [ready](Outlet::flush_ready): a batch at a time, while a cache holds it.
    ///
    /// Datagrams that then go through a second SA (AH over ESP) are submitted again.
    fn finish(&mut self, in_place: bool, now: Moment) {
        self.finish_once(in_place, !in_place, now);
        while self.ipsec.take_again(&mut self.prepared.jobs) {
            let in_place = self.submit();
            // Jobs of both directions may have ended in one poll, and are here together.
            self.finish_once(in_place, true, now);
        }
    }

    /// `is_mixed` if there may be jobs of both directions. What was decrypted must never take the way of what
    /// was sealed.
    fn finish_once(&mut self, in_place: bool, is_mixed: bool, now: Moment) {
        let mut jobs = std::mem::take(if in_place { &mut self.prepared.jobs } else { &mut self.released });
        while let Some(direction) = jobs.first().map(|job| job.direction) {
            let mut count = jobs.len().min(BATCH_SIZE);
            if is_mixed {
                let is_other = |job: &Job| job.direction != direction;
                count = jobs[..count].iter().position(is_other).unwrap_or(count);
            }
            match direction {
                Direction::Seal => self.finish_sealed(&mut jobs, count, now),
                Direction::Open => self.finish_opened(&mut jobs, count, now),
            }
        }
        *(if in_place { &mut self.prepared.jobs } else { &mut self.released }) = jobs;
    }

    fn finish_sealed(&mut self, jobs: &mut Vec<Job>, count: usize, now: Moment) {
        let (outlet, clock) = (&mut self.unprotected, &mut self.outbound_clock);
        let jobs = jobs.drain(..count);
        self.ipsec.finish_outbound(jobs, now, &mut self.pool, |sealed, pool| outlet.push(sealed, pool));
        clock.lap(Stage::Finish);
        outlet.flush_ready(&mut self.pool);
        clock.lap(Stage::Transmit);
    }

    // Apart: inlined beside the other way, it shares registers with it, and changes decide who pays.
    #[inline(never)]
    fn finish_opened(&mut self, jobs: &mut Vec<Job>, count: usize, now: Moment) {
        if self.takes_chains {
            Ipsec::merge_opened(&mut jobs[..count], &mut self.pool);
        }
        let (outlet, clock, pool) = (&mut self.protected, &mut self.inbound_clock, &mut self.pool);
        self.ipsec.finish_inbound(jobs, count, now, pool, clock, |cleared, pool| outlet.push(cleared, pool));
        clock.lap(Stage::Finish);
        outlet.flush_ready(&mut self.pool);
        clock.lap(Stage::Transmit);
    }

    /// Work that is due by the clock and not by a packet. To be called about once a second.
    pub fn tick(&mut self, now: Moment) {
        let mut due = Vec::new();
        self.dispatcher.tend();
        self.ipsec.age(now);
        self.ipsec.expire_waits(now, &mut self.pool);
        if !self.is_follower {
            self.ipsec.keepalives(now, &mut self.pool, &mut due);
        }
        due.into_iter().for_each(|packet| self.unprotected.push(packet, &mut self.pool));
        // The answers come to those that decrypt, which tell the others what they have learned.
        self.pass_ticks_over(now);
        if self.can_originate() && self.role.decrypts() {
            self.ipsec.probe_paths(now, &mut self.pool, &mut self.prepared);
            if !self.prepared.jobs.is_empty() {
                self.seal(now);
                self.unprotected.flush(&mut self.pool);
            }
        }
        self.publish();
    }

    /// From now on nothing is taken from the protected side: the gateway is ending.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// Whether packets are with engines. Those that were given up do not count.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.dispatcher.is_busy()
    }

    /// Whether packets wait to be sent to the (protected, unprotected) side.
    #[must_use]
    pub fn is_waiting(&self) -> (bool, bool) {
        (self.protected.is_waiting(), self.unprotected.is_waiting())
    }

    /// Whether nothing is in flight and neither port will ever give a packet again.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        let (protected, unprotected) = self.is_waiting();
        let exhausted = self.protected.port.exhausted() && self.unprotected.port.exhausted();
        let waits = protected || unprotected || self.waits_for_numbers() || self.waits_for_order();
        exhausted && !waits && !self.waits_for_tick() && !self.is_busy()
    }

    /// Tells both ports that no more packets will be sent.
    ///
    /// # Errors
    /// [`PortError`] if sent packets did not reach their destination (a file, for one).
    pub fn finish_ports(&mut self) -> Result<(), PortError> {
        self.protected.port.finish()?;
        self.unprotected.port.finish()
    }

    /// The port to the protected side.
    #[must_use]
    pub fn protected_port(&self) -> &dyn Port {
        self.protected.port.as_ref()
    }

    /// The port to the unprotected side.
    #[must_use]
    pub fn unprotected_port(&self) -> &dyn Port {
        self.unprotected.port.as_ref()
    }

    /// The pool, with its counts of packets created, merged and dropped.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn publish(&self) {
        self.counters.publish(&self.pool, &*self.protected.port, &*self.unprotected.port);
        self.counters.publish_stages(self.outbound_clock.times(), self.inbound_clock.times());
        self.counters.publish_waits(self.protected.wait(), self.unprotected.wait());
    }
}
