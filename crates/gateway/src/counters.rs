//! What a worker has done, readable by other threads.

use crate::interface_counters::{InterfaceCounters, InterfaceSnapshot};
use crate::meter::ChosenThreads;
use crate::outlet::Wait;
use crate::role::Role;
use crate::scheduler::{LateJobs, Scheduled, SharedScheduled, SharedShares, Shares};
use crate::withdrawn::{WithdrawalReason, Withdrawn};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use testudo_crypto::OffloadReport;
use testudo_packet::{DropCounters, DropReason, Pool, Port, PortCounters, Stage, StageTimes, ticks};

/// Counters of one port as atomics.
#[derive(Debug, Default)]
pub(crate) struct SharedPortCounters([AtomicU64; 6]);

/// Counters of one port at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortSnapshot {
    /// Name of the port.
    pub name: String,
    /// What went through it.
    pub counters: PortCounters,
    /// How long packets have waited for it because it took none, in ticks of the processor's clock.
    pub waited_ticks: u64,
}

impl SharedPortCounters {
    pub(crate) fn publish(&self, c: &PortCounters) {
        let values = [c.rx_packets, c.rx_bytes, c.tx_packets, c.tx_bytes, c.rx_calls, c.tx_calls];
        self.0.iter().zip(values).for_each(|(shared, value)| shared.store(value, Ordering::Relaxed));
    }

    pub(crate) fn snapshot(&self) -> PortCounters {
        let [rx_packets, rx_bytes, tx_packets, tx_bytes, rx_calls, tx_calls] =
            self.0.each_ref().map(|c| c.load(Ordering::Relaxed));
        PortCounters { rx_packets, rx_bytes, tx_packets, tx_bytes, rx_calls, tx_calls }
    }
}

/// A port's waits as atomics. A wait that goes on is published once, with its beginning: the reader adds the
/// time since.
#[derive(Debug, Default)]
struct SharedWait {
    ended_ticks: AtomicU64,
    /// 0 while nothing waits.
    since: AtomicU64,
}

impl SharedWait {
    fn publish(&self, wait: Wait) {
        self.ended_ticks.store(wait.ended_ticks, Ordering::Relaxed);
        self.since.store(wait.since.unwrap_or(0), Ordering::Relaxed);
    }

    fn snapshot(&self) -> u64 {
        let ended = self.ended_ticks.load(Ordering::Relaxed);
        match self.since.load(Ordering::Relaxed) {
            0 => ended,
            // Another processor's clock may be slightly behind.
            since => ended + ticks().saturating_sub(since),
        }
    }
}

/// Stage times of one direction as atomics.
#[derive(Debug, Default)]
struct SharedStageTimes {
    ticks: [AtomicU64; Stage::ALL.len()],
    packets: AtomicU64,
    batches: AtomicU64,
}

impl SharedStageTimes {
    fn publish(&self, times: &StageTimes) {
        if self.batches.load(Ordering::Relaxed) == times.batches {
            return;
        }
        self.ticks.iter().zip(times.ticks).for_each(|(shared, ticks)| shared.store(ticks, Ordering::Relaxed));
        self.packets.store(times.packets, Ordering::Relaxed);
        self.batches.store(times.batches, Ordering::Relaxed);
    }

    fn snapshot(&self) -> StageTimes {
        StageTimes {
            ticks: self.ticks.each_ref().map(|ticks| ticks.load(Ordering::Relaxed)),
            packets: self.packets.load(Ordering::Relaxed),
            batches: self.batches.load(Ordering::Relaxed),
        }
    }
}

/// What a worker has done. The worker publishes after each turn in which it did anything.
#[derive(Debug)]
pub struct WorkerCounters {
    protected_name: String,
    unprotected_name: String,
    role: OnceLock<Role>,
    /// Whether its queues get no packets, as somebody has decided who runs it.
    is_parked: AtomicBool,
    /// Engines in the order of placement.
    engines: Vec<&'static str>,
    withdrawn: Withdrawn,
    scheduled: Arc<[SharedScheduled]>,
    shares: OnceLock<Arc<SharedShares>>,
    protected: SharedPortCounters,
    unprotected: SharedPortCounters,
    interfaces: InterfaceCounters,
    protected_wait: SharedWait,
    unprotected_wait: SharedWait,
    created: AtomicU64,
    merged: AtomicU64,
    linearised: AtomicU64,
    free_buffers: AtomicU64,
    drops: [AtomicU64; DropReason::ALL.len()],
    outbound_stages: SharedStageTimes,
    inbound_stages: SharedStageTimes,
    offload: Mutex<Option<OffloadReport>>,
    threads: Mutex<Option<ChosenThreads>>,
}

impl WorkerCounters {
    pub(crate) fn new(
        protected: &dyn Port,
        unprotected: &dyn Port,
        (engines, withdrawn, scheduled): (Vec<&'static str>, Withdrawn, Arc<[SharedScheduled]>),
    ) -> Self {
        Self {
            protected_name: protected.name().to_owned(),
            unprotected_name: unprotected.name().to_owned(),
            role: OnceLock::new(),
            is_parked: AtomicBool::new(false),
            engines,
            withdrawn,
            scheduled,
            shares: OnceLock::new(),
            protected: SharedPortCounters::default(),
            unprotected: SharedPortCounters::default(),
            interfaces: InterfaceCounters::of(protected),
            protected_wait: SharedWait::default(),
            unprotected_wait: SharedWait::default(),
            created: AtomicU64::new(0),
            merged: AtomicU64::new(0),
            linearised: AtomicU64::new(0),
            free_buffers: AtomicU64::new(0),
            drops: [const { AtomicU64::new(0) }; DropReason::ALL.len()],
            outbound_stages: SharedStageTimes::default(),
            inbound_stages: SharedStageTimes::default(),
            offload: Mutex::default(),
            threads: Mutex::default(),
        }
    }

    pub(crate) fn set_role(&self, role: Role) {
        let _ = self.role.set(role); // It has one role for as long as it lives.
    }

    /// Which sides the worker takes packets from.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role.get().copied().unwrap_or_default()
    }

    /// Notes whether its queues get packets. The worker itself does not know.
    pub fn set_parked(&self, is_parked: bool) {
        self.is_parked.store(is_parked, Ordering::Relaxed);
    }

    /// Whether its queues get no packets.
    #[must_use]
    pub fn is_parked(&self) -> bool {
        self.is_parked.load(Ordering::Relaxed)
    }

    pub(crate) fn publish(&self, pool: &Pool, protected: &dyn Port, unprotected: &dyn Port) {
        self.protected.publish(&protected.counters());
        self.unprotected.publish(&unprotected.counters());
        self.interfaces.publish(pool, protected);
        self.created.store(pool.created(), Ordering::Relaxed);
        self.merged.store(pool.merged(), Ordering::Relaxed);
        self.linearised.store(pool.linearised(), Ordering::Relaxed);
        self.free_buffers.store(pool.available() as u64, Ordering::Relaxed);
        for (reason, count) in pool.drops().iter() {
            self.drops[reason as usize].store(count, Ordering::Relaxed);
        }
    }

    pub(crate) fn publish_stages(&self, outbound: &StageTimes, inbound: &StageTimes) {
        self.outbound_stages.publish(outbound);
        self.inbound_stages.publish(inbound);
    }

    /// Publishes what a NIC does. The worker does not wait for who reads the last report: the next one comes
    /// soon.
    pub(crate) fn publish_offload(&self, report: Option<OffloadReport>) {
        if let Ok(mut published) = self.offload.try_lock() {
            *published = report;
        }
    }

    /// What the NIC of the unprotected port does, if it does cryptography: up to an eighth of a second old.
    #[must_use]
    pub fn offload(&self) -> Option<OffloadReport> {
        self.offload.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Publishes which threads are chosen, likewise without waiting.
    pub(crate) fn publish_threads(&self, chosen: ChosenThreads) {
        if let Ok(mut published) = self.threads.try_lock() {
            *published = Some(chosen);
        }
    }

    /// Which threads are chosen by what is measured; `None` where the model is configured.
    #[must_use]
    pub fn threads(&self) -> Option<ChosenThreads> {
        *self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn publish_waits(&self, protected: Wait, unprotected: Wait) {
        self.protected_wait.publish(protected);
        self.unprotected_wait.publish(unprotected);
    }

    /// Stage times of outbound packets. Another thread's reading may mix two batches.
    #[must_use]
    pub fn outbound_stages(&self) -> StageTimes {
        self.outbound_stages.snapshot()
    }

    /// Stage times of inbound packets, likewise.
    #[must_use]
    pub fn inbound_stages(&self) -> StageTimes {
        self.inbound_stages.snapshot()
    }

    /// The port to the protected side.
    #[must_use]
    pub fn protected(&self) -> PortSnapshot {
        PortSnapshot {
            name: self.protected_name.clone(),
            counters: self.protected.snapshot(),
            waited_ticks: self.protected_wait.snapshot(),
        }
    }

    /// The port to the unprotected side.
    #[must_use]
    pub fn unprotected(&self) -> PortSnapshot {
        PortSnapshot {
            name: self.unprotected_name.clone(),
            counters: self.unprotected.snapshot(),
            waited_ticks: self.unprotected_wait.snapshot(),
        }
    }

    /// The interfaces of the protected side, by their numbers, where there are several.
    #[must_use]
    pub fn interfaces(&self) -> Vec<InterfaceSnapshot> {
        self.interfaces.snapshots()
    }

    /// Names of the engines that were taken out of service, and why each was.
    pub fn withdrawals(&self) -> impl Iterator<Item = (&'static str, WithdrawalReason)> {
        let engines = self.engines.iter().enumerate();
        engines.filter_map(|(place, name)| Some((*name, self.withdrawn.reason(place)?)))
    }

    /// Names of the engines that were taken out of service.
    pub fn withdrawn_engines(&self) -> impl Iterator<Item = &'static str> {
        self.withdrawals().map(|(name, _)| name)
    }

    /// What the packet scheduler has done for each deep engine, by its name.
    pub fn scheduled(&self) -> impl Iterator<Item = (&'static str, Scheduled)> {
        let each = self.engines.iter().zip(self.scheduled.iter());
        each.filter_map(|(name, scheduled)| Some((*name, scheduled.snapshot()?)))
    }

    /// Which jobs each deep engine is not given, since it had them back too late, by its name.
    pub fn late_jobs(&self) -> impl Iterator<Item = (&'static str, Vec<LateJobs>)> {
        self.engines.iter().zip(self.scheduled.iter()).map(|(name, scheduled)| (*name, scheduled.late()))
    }

    pub(crate) fn set_shares(&self, shares: Option<Arc<SharedShares>>) {
        if let Some(shares) = shares {
            let _ = self.shares.set(shares); // Settings are made once.
        }
    }

    /// Which engine does how many jobs of what, and why; `None` unless they are placed by what they cost.
    #[must_use]
    pub fn shares(&self) -> Option<Shares> {
        self.shares.get().map(|shares| shares.snapshot())
    }

    /// Packets that the gateway made itself: fragments, replies, keepalives.
    #[must_use]
    pub fn created(&self) -> u64 {
        self.created.load(Ordering::Relaxed)
    }

    /// Fragments that became a part of a datagram, which is what is counted from then on.
    #[must_use]
    pub fn merged(&self) -> u64 {
        self.merged.load(Ordering::Relaxed)
    }

    /// Packets in chains of buffers that were merged into one: for an engine or a port that takes no chains,
    /// or since the packet was not plain.
    #[must_use]
    pub fn linearised(&self) -> u64 {
        self.linearised.load(Ordering::Relaxed)
    }

    /// Buffers of the pool that were free after the last turn.
    #[must_use]
    pub fn free_buffers(&self) -> u64 {
        self.free_buffers.load(Ordering::Relaxed)
    }

    /// Drops by reason.
    #[must_use]
    pub fn drops(&self) -> DropCounters {
        let mut counters = DropCounters::default();
        for &reason in DropReason::ALL {
            counters.add(reason, self.drops[reason as usize].load(Ordering::Relaxed));
        }
        counters
    }
}
