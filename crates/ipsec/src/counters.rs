//! State and counters of an SA, readable by other threads while its worker counts.

use crate::lifetime::Moment;
use crate::path_mtu::LearnedMtu;
use crate::sender_counts::SenderCounts;
use crate::vpe::WindowsSeen;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;
use testudo_crypto::OffloadState;
use testudo_packet::{DropReason, prefetch};

/// Whether an SA can pass packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SaState {
    /// It can.
    Installed,
    /// It has reached a hard limit of its lifetime.
    Expired,
    /// It has used all its sequence numbers.
    Exhausted,
    /// Somebody else sends with its Sender ID.
    SenderTaken,
}

/// Counters of one SA. Only its worker writes them, so that a count is a load and a store, not an atomic
/// addition.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct SaCounters {
    packets: AtomicU64,
    bytes: AtomicU64,
    sequence: AtomicU64,
    /// The second of its last use, of the worker's clock; [`NEVER`].
    last_used: AtomicU64,
    state: AtomicU8,
    in_use: AtomicBool,
    /// [`OffloadState`] as a number.
    offload: AtomicU8,
    /// [`LearnedMtu`] in a number; 0 for none.
    learned_mtu: AtomicU64,
    drops: OnceLock<Box<Drops>>,
    first_used: AtomicU64,
    /// The packets of its key when this was last looked at.
    noted: AtomicU64,
    refused_packets: AtomicU64,
    refused_bytes: AtomicU64,
    dummies: AtomicU64,
    dummy_bytes: AtomicU64,
    /// Of VPE alone.
    of_vpe: OnceLock<Box<OfVpe>>,
}

/// What an SA of VPE has besides: behind one pointer, since most SAs are none.
#[derive(Debug, Default)]
struct OfVpe {
    windows: OnceLock<Mutex<WindowsSeen>>,
    /// Of a group.
    senders: OnceLock<Box<SenderCounts>>,
}

/// No second.
const NEVER: u64 = u64::MAX;

/// Counts by reason: five times the memory of all other counters. Most SAs never drop a packet, so that these
/// are made with the first that one does.
type Drops = [AtomicU64; DropReason::ALL.len()];

/// Two cache lines, of which most packets touch one.
const _: () = assert!(size_of::<SaCounters>() == 128);

impl Default for SaCounters {
    fn default() -> Self {
        Self {
            packets: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            sequence: AtomicU64::new(0),
            last_used: AtomicU64::new(NEVER),
            state: AtomicU8::new(SaState::Installed as u8),
            in_use: AtomicBool::new(false),
            offload: AtomicU8::new(OffloadState::Off as u8),
            learned_mtu: AtomicU64::new(0),
            drops: OnceLock::new(),
            first_used: AtomicU64::new(NEVER),
            noted: AtomicU64::new(0),
            refused_packets: AtomicU64::new(0),
            refused_bytes: AtomicU64::new(0),
            dummies: AtomicU64::new(0),
            dummy_bytes: AtomicU64::new(0),
            of_vpe: OnceLock::new(),
        }
    }
}

fn moment(second: u64) -> Option<Moment> {
    (second != NEVER).then(|| Moment(Duration::from_secs(second)))
}

fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

impl SaCounters {
    /// Prefetches the counts that every packet changes.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch(&self.packets);
    }

    /// Counts `packets` packets of together `bytes` inner bytes.
    #[inline]
    pub(crate) fn count(&self, packets: u64, bytes: u64, sequence: u64) {
        add(&self.packets, packets);
        add(&self.bytes, bytes);
        self.sequence.store(sequence, Ordering::Relaxed);
    }

    /// Notes whether the SA was used since the last call. To be called about once a second, so that packets
    /// pay nothing for it.
    pub(crate) fn age(&self, now: Moment) {
        let used = self.used_packets();
        if used == self.noted.load(Ordering::Relaxed) {
            return;
        }
        self.noted.store(used, Ordering::Relaxed);
        let second = now.0.as_secs();
        if self.first_used.load(Ordering::Relaxed) == NEVER {
            self.first_used.store(second, Ordering::Relaxed);
        }
        self.last_used.store(second, Ordering::Release);
    }

    /// Notes the windows of an SA of VPE. To be called about once a second.
    pub(crate) fn see_windows(&self, see: impl FnOnce(&mut WindowsSeen)) {
        // The worker does not wait for those who copy it: the next second will do.
        if let Ok(mut seen) =
            self.of_vpe.get_or_init(Box::default).windows.get_or_init(Mutex::default).try_lock()
        {
            see(&mut seen);
        }
    }

    /// The windows of an SA of VPE, up to a second late; `None` of other SAs, and in the first second.
    #[must_use]
    pub fn windows(&self) -> Option<WindowsSeen> {
        let seen = self.of_vpe.get()?.windows.get()?.lock().unwrap_or_else(PoisonError::into_inner);
        Some(seen.clone())
    }

    /// When the SA was last used, up to a second late: when it sealed a packet, or opened one that was
    /// authentic. A moment of the worker's clock, in whole seconds; `None` if it was not.
    #[must_use]
    pub fn last_used(&self) -> Option<Moment> {
        moment(self.last_used.load(Ordering::Acquire))
    }

    /// When the SA was first used, likewise.
    #[must_use]
    pub fn first_used(&self) -> Option<Moment> {
        moment(self.first_used.load(Ordering::Relaxed))
    }

    /// Counts an authentic packet that did not pass, with its number of decrypted bytes: it has used the key.
    /// The highest number received includes those of such packets.
    pub(crate) fn count_refused(&self, bytes: u64, sequence: u64) {
        add(&self.refused_packets, 1);
        add(&self.refused_bytes, bytes);
        self.set_sequence(sequence);
    }

    /// Counts a dummy packet of so many bytes that is sent: it has used the key, and is nobody's packet.
    pub(crate) fn count_dummy(&self, bytes: u64, sequence: u64) {
        add(&self.dummies, 1);
        add(&self.dummy_bytes, bytes);
        self.set_sequence(sequence);
    }

    pub(crate) fn count_drop(&self, reason: DropReason) {
        let drops = self.drops.get_or_init(|| Box::new([const { AtomicU64::new(0) }; DropReason::ALL.len()]));
        add(&drops[reason as usize], 1);
    }

    /// Where the senders of a group are counted.
    pub(crate) fn senders_to_count(&self) -> &SenderCounts {
        self.of_vpe.get_or_init(Box::default).senders.get_or_init(Box::default)
    }

    /// The senders of a group; `None` before the first, and where there is none.
    #[must_use]
    pub fn senders(&self) -> Option<&SenderCounts> {
        self.of_vpe.get()?.senders.get().map(|senders| &**senders)
    }

    /// The SA continues from this number.
    pub(crate) fn set_sequence(&self, sequence: u64) {
        self.sequence.store(sequence, Ordering::Relaxed);
    }

    pub(crate) fn set_state(&self, state: SaState) {
        self.state.store(state as u8, Ordering::Relaxed);
    }

    pub(crate) fn set_in_use(&self, in_use: bool) {
        self.in_use.store(in_use, Ordering::Relaxed);
    }

    /// Whether the packets of its tunnel go out through this SA. Of an SA from the peer: always `false`.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        self.in_use.load(Ordering::Relaxed)
    }

    /// Its cryptography is done elsewhere from now on.
    pub fn set_offload(&self, state: OffloadState) {
        self.offload.store(state as u8, Ordering::Relaxed);
    }

    /// Whether a NIC does its cryptography, or why not.
    #[must_use]
    pub fn offload(&self) -> OffloadState {
        OffloadState::from_number(self.offload.load(Ordering::Relaxed))
    }

    /// The path has another MTU.
    pub(crate) fn set_learned_mtu(&self, learned: Option<LearnedMtu>) {
        self.learned_mtu.store(learned.map_or(0, LearnedMtu::to_bits), Ordering::Relaxed);
    }

    /// Outbound: the MTU of the path, where it is not the configured one. Its moment is of the worker's
    /// clock, in whole seconds.
    #[must_use]
    pub fn learned_mtu(&self) -> Option<LearnedMtu> {
        LearnedMtu::from_bits(self.learned_mtu.load(Ordering::Relaxed))
    }

    /// Whether the SA can pass packets.
    #[must_use]
    pub fn state(&self) -> SaState {
        let state = self.state.load(Ordering::Relaxed);
        [SaState::Expired, SaState::Exhausted, SaState::SenderTaken]
            .into_iter()
            .find(|s| *s as u8 == state)
            .unwrap_or(SaState::Installed)
    }

    /// Packets that passed.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.packets.load(Ordering::Relaxed)
    }

    /// Their inner bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Dummy packets that were sent (RFC 4303 2.6).
    #[must_use]
    pub fn dummies(&self) -> u64 {
        self.dummies.load(Ordering::Relaxed)
    }

    /// Packets that count towards the key's lifetime: those that passed, the authentic ones that were refused
    /// later, and dummies.
    #[must_use]
    pub fn used_packets(&self) -> u64 {
        self.packets().wrapping_add(self.refused_packets.load(Ordering::Relaxed)).wrapping_add(self.dummies())
    }

    /// Bytes that count towards the key's lifetime, likewise.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        let others = [&self.refused_bytes, &self.dummy_bytes].map(|bytes| bytes.load(Ordering::Relaxed));
        others.into_iter().fold(self.bytes(), u64::wrapping_add)
    }

    /// Outbound: the number last used. Inbound: the highest received.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.sequence.load(Ordering::Relaxed)
    }

    /// Packets of this SA that were dropped for `reason`.
    #[must_use]
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.drops.get().map_or(0, |drops| drops[reason as usize].load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_counted_by_reason_from_the_first_on() {
        let counters = SaCounters::default();
        assert!(DropReason::ALL.iter().all(|reason| counters.drops(*reason) == 0));
        for (times, reason) in (1..).zip(DropReason::ALL.iter().copied()) {
            (0..times).for_each(|_| counters.count_drop(reason));
        }
        let counted: Vec<u64> = DropReason::ALL.iter().map(|reason| counters.drops(*reason)).collect();
        assert!(counted.into_iter().eq(1..=DropReason::ALL.len() as u64));
    }
}
