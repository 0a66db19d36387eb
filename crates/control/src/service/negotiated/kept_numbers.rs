//! Where the sequence numbers of keys ended whose SAs are gone: a daemon may install a key once more, with
//! other addresses (MOBIKE, RFC 4555) or ports of a NAT. Under one key no number may repeat (RFC 4106 2), and
//! none that was received may be accepted again (RFC 4303 3.4.3).

use crate::Fingerprint;
use std::collections::{HashMap, VecDeque};
use testudo_ipsec::ReplayWindow;

/// Keys that are remembered, the latest ones. One that was forgotten is refused.
const MAX_KEPT: usize = 1 << 16;
/// Keys of VPE from peers whose windows are remembered, the latest ones, in 3 KiB each: an SA that is moved
/// comes back soon. In those of others, all is closed up to the highest number.
const MAX_WITH_WINDOWS: usize = 1 << 10;
/// Numbers that are left out, since packets were on their way when an SA was removed.
const LEFT_OUT: u64 = 1 << 16;

/// What an SA used of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Used {
    /// The last number: sent, or the highest that was received.
    pub(super) last: u64,
    /// What its IVs are made with.
    pub(super) iv_mask: u64,
    /// Whether it was towards the peer: a key never changes its direction (RFC 4106 8.2).
    pub(super) is_outbound: bool,
}

impl Used {
    /// The first number that may be sent, where the daemon says that `told` was the last.
    pub(super) fn next_sent(self, told: u64) -> u64 {
        self.last.saturating_add(LEFT_OUT).max(told).saturating_add(1)
    }
}

/// The latest keys.
#[derive(Debug, Default)]
pub(super) struct KeptNumbers {
    known: HashMap<Fingerprint, Used>,
    order: VecDeque<Fingerprint>,
    windows: VecDeque<(Fingerprint, Vec<u8>)>,
}

impl KeptNumbers {
    /// Remembers a key, whose SA is gone.
    pub(super) fn keep(&mut self, key: Fingerprint, used: Used) {
        if self.known.insert(key, used).is_none() {
            self.order.push_back(key);
        }
        if self.order.len() > MAX_KEPT
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    /// Remembers the windows of such a key, or no more that it has some that are known.
    pub(super) fn keep_windows(&mut self, key: Fingerprint, windows: Option<Vec<u8>>) {
        self.windows.retain(|(of, _)| *of != key);
        self.windows.extend(windows.map(|windows| (key, windows)));
        if self.windows.len() > MAX_WITH_WINDOWS {
            self.windows.pop_front();
        }
    }

    /// The saved windows of a key of VPE, if they are known, and up to this number or further.
    pub(super) fn windows_of(&self, key: Fingerprint, number: u64) -> Option<Vec<u8>> {
        let (_, windows) = self.windows.iter().rev().find(|(of, _)| *of == key)?;
        (ReplayWindow::top_of(windows)? >= number).then(|| windows.clone())
    }

    /// What an SA has used of a key.
    pub(super) fn of(&self, key: Fingerprint) -> Option<Used> {
        self.known.get(&key).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u32) -> Fingerprint {
        crate::fingerprint::digest_of(&[&number.to_le_bytes()])
    }

    #[test]
    fn the_latest_keys_are_remembered_and_the_oldest_forgotten() {
        let mut kept = KeptNumbers::default();
        let used = |last| Used { last, iv_mask: 5, is_outbound: true };
        (0..=1 << 16).for_each(|number: u32| kept.keep(key(number), used(number.into())));
        assert_eq!((kept.of(key(0)), kept.of(key(1))), (None, Some(used(1))));
        kept.keep(key(1), used(9));
        assert_eq!(
            (kept.of(key(1)), kept.order.len(), kept.known.len()),
            (Some(used(9)), MAX_KEPT, MAX_KEPT)
        );
    }

    /// Windows that are not those of its last SA would take again what came in that.
    #[test]
    fn the_windows_of_the_latest_keys_are_remembered_as_their_last_sa_left_them() {
        let mut kept = KeptNumbers::default();
        let closed = |top: u64| ReplayWindow::closed_up_to(top).to_vec();
        for number in 0..=1 << 10 {
            kept.keep_windows(key(number), Some(closed(u64::from(number) + 1)));
        }
        assert_eq!(kept.windows.len(), MAX_WITH_WINDOWS);
        assert_eq!((kept.windows_of(key(0), 0), kept.windows_of(key(1), 2)), (None, Some(closed(2))));
        assert_eq!(kept.windows_of(key(1), 3), None, "more has come than they know of");
        kept.keep_windows(key(1), Some(closed(9)));
        assert_eq!(kept.windows_of(key(1), 3), Some(closed(9)));
        kept.keep_windows(key(1), None);
        assert_eq!((kept.windows_of(key(1), 0), kept.windows.len()), (None, MAX_WITH_WINDOWS - 1));
    }

    #[test]
    fn numbers_go_on_behind_what_was_sent_whatever_a_daemon_says() {
        let used = Used { last: 100, iv_mask: 0, is_outbound: true };
        assert_eq!(used.next_sent(0), 101 + LEFT_OUT);
        assert_eq!(used.next_sent(u64::MAX - 1), u64::MAX);
        assert_eq!(Used { last: u64::MAX, iv_mask: 0, is_outbound: true }.next_sent(7), u64::MAX);
    }
}
