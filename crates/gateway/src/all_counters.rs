//! What all workers of a gateway have done.

use crate::balance::{Balance, Imbalance};
use crate::counters::{PortSnapshot, WorkerCounters};
use crate::interface_counters::InterfaceSnapshot;
use crate::meter::ChosenThreads;
use crate::scheduler::{LateJobs, Scheduled, Shares};
use crate::withdrawn::WithdrawalReason;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use testudo_crypto::OffloadReport;
use testudo_packet::{DropCounters, PortCounters, Stage, StageTimes};

/// The counters of all workers, and their sums.
#[derive(Debug, Clone)]
pub struct AllCounters(Arc<[Arc<WorkerCounters>]>, Arc<Mutex<Balance>>);

impl AllCounters {
    /// Those of these workers, in their order.
    #[must_use]
    pub fn of(workers: impl IntoIterator<Item = Arc<WorkerCounters>>) -> Self {
        Self(workers.into_iter().collect(), Arc::default())
    }

    /// Those of each worker, in their order.
    pub fn each(&self) -> impl ExactSizeIterator<Item = &WorkerCounters> {
        self.0.iter().map(|counters| &**counters)
    }

    /// Looks at how packets are spread, where there are several workers. To be called about once a second.
    pub fn look(&self, now: Instant) {
        if self.each().len() > 1 {
            self.balance().look(self.each(), now);
        }
    }

    /// Of each direction, a worker that had more than twice the packets of the others when somebody
    /// [looked](Self::look) last.
    #[must_use]
    pub fn imbalances(&self) -> Vec<Imbalance> {
        let takers: Vec<_> = self.each().map(|counters| (counters.role(), counters.is_parked())).collect();
        self.balance().imbalances(&takers)
    }

    fn balance(&self) -> MutexGuard<'_, Balance> {
        self.1.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sum(&self, get: fn(&WorkerCounters) -> u64) -> u64 {
        self.each().map(get).sum()
    }

    fn port(&self, get: fn(&WorkerCounters) -> PortSnapshot) -> PortSnapshot {
        let none = PortSnapshot { name: String::new(), counters: PortCounters::default(), waited_ticks: 0 };
        let sum = |mut all: PortSnapshot, next: PortSnapshot| {
            add_port(&mut all.counters, &next.counters);
            all.waited_ticks += next.waited_ticks;
            all
        };
        self.each().map(get).reduce(sum).unwrap_or(none)
    }

    /// The port to the protected side: all its queues, under the name of the first.
    #[must_use]
    pub fn protected(&self) -> PortSnapshot {
        self.port(WorkerCounters::protected)
    }

    /// The port to the unprotected side, likewise.
    #[must_use]
    pub fn unprotected(&self) -> PortSnapshot {
        self.port(WorkerCounters::unprotected)
    }

    /// The interfaces of the protected side, by their numbers, where there are several.
    #[must_use]
    pub fn interfaces(&self) -> Vec<InterfaceSnapshot> {
        let sum = |mut all: Vec<InterfaceSnapshot>, next: Vec<InterfaceSnapshot>| {
            for (one, other) in all.iter_mut().zip(next) {
                add_port(&mut one.counters, &other.counters);
                add_drops(&mut one.drops, &other.drops);
            }
            all
        };
        self.each().map(WorkerCounters::interfaces).reduce(sum).unwrap_or_default()
    }

    /// Names of the engines that a worker took out of service, each once, and why.
    pub fn withdrawals(&self) -> impl Iterator<Item = (&'static str, WithdrawalReason)> {
        let mut all: Vec<_> = self.each().flat_map(WorkerCounters::withdrawals).collect();
        all.sort_unstable();
        all.dedup_by_key(|(name, _)| *name);
        all.into_iter()
    }

    /// The names alone.
    pub fn withdrawn_engines(&self) -> impl Iterator<Item = &'static str> {
        self.withdrawals().map(|(name, _)| name)
    }

    /// What the packet scheduler has done for each deep engine of all workers, by its name.
    #[must_use]
    pub fn scheduled(&self) -> BTreeMap<&'static str, Scheduled> {
        let mut all = BTreeMap::<_, Scheduled>::new();
        for (name, scheduled) in self.each().flat_map(WorkerCounters::scheduled) {
            let sum = all.entry(name).or_default();
            *sum = sum.plus(scheduled);
        }
        all
    }

    /// Which jobs each deep engine is not given by one worker at least, since it had them back too late, by
    /// its name.
    #[must_use]
    pub fn late_jobs(&self) -> BTreeMap<&'static str, Vec<LateJobs>> {
        let mut all = BTreeMap::<_, Vec<LateJobs>>::new();
        for (name, late) in self.each().flat_map(WorkerCounters::late_jobs) {
            let known = all.entry(name).or_default();
            for one in late {
                if !known.contains(&one) {
                    known.push(one);
                }
            }
        }
        all
    }

    /// Which engine does how many jobs of what, and why, of all workers; `None` unless they are placed by
    /// what they cost.
    #[must_use]
    pub fn shares(&self) -> Option<Shares> {
        self.each().filter_map(WorkerCounters::shares).reduce(Shares::plus)
    }

    /// Which threads are chosen by what is measured; `None` where the model is configured.
    #[must_use]
    pub fn threads(&self) -> Option<ChosenThreads> {
        self.each().find_map(WorkerCounters::threads)
    }

    /// What the NIC of the unprotected port does, if it does cryptography.
    #[must_use]
    pub fn offload(&self) -> Option<OffloadReport> {
        self.each().find_map(WorkerCounters::offload)
    }

    /// Stage times of outbound packets.
    #[must_use]
    pub fn outbound_stages(&self) -> StageTimes {
        self.stages(WorkerCounters::outbound_stages)
    }

    /// Stage times of inbound packets.
    #[must_use]
    pub fn inbound_stages(&self) -> StageTimes {
        self.stages(WorkerCounters::inbound_stages)
    }

    fn stages(&self, get: fn(&WorkerCounters) -> StageTimes) -> StageTimes {
        let mut all = StageTimes { ticks: [0; Stage::ALL.len()], packets: 0, batches: 0 };
        for times in self.each().map(get) {
            all.ticks.iter_mut().zip(times.ticks).for_each(|(sum, ticks)| *sum += ticks);
            all.packets += times.packets;
            all.batches += times.batches;
        }
        all
    }

    /// Packets that the gateway made itself: fragments, replies, keepalives.
    #[must_use]
    pub fn created(&self) -> u64 {
        self.sum(WorkerCounters::created)
    }

    /// Fragments that became a part of a datagram, which is what is counted from then on.
    #[must_use]
    pub fn merged(&self) -> u64 {
        self.sum(WorkerCounters::merged)
    }

    /// Packets in chains of buffers that were merged into one.
    #[must_use]
    pub fn linearised(&self) -> u64 {
        self.sum(WorkerCounters::linearised)
    }

    /// Buffers that were free after the last turns.
    #[must_use]
    pub fn free_buffers(&self) -> u64 {
        self.sum(WorkerCounters::free_buffers)
    }

    /// Drops by reason.
    #[must_use]
    pub fn drops(&self) -> DropCounters {
        let mut all = DropCounters::default();
        self.each().for_each(|counters| add_drops(&mut all, &counters.drops()));
        all
    }
}

fn add_port(sum: &mut PortCounters, more: &PortCounters) {
    sum.rx_packets += more.rx_packets;
    sum.rx_bytes += more.rx_bytes;
    sum.tx_packets += more.tx_packets;
    sum.tx_bytes += more.tx_bytes;
    sum.rx_calls += more.rx_calls;
    sum.tx_calls += more.tx_calls;
}

fn add_drops(sum: &mut DropCounters, more: &DropCounters) {
    more.iter().for_each(|(reason, count)| sum.add(reason, count));
}
