//! Preserves the replay windows across restarts.
//!
//! A stop saves them unchanged. While packets arrive, a *ceiling* is saved for each window instead: a number
//! that the peer will not have passed by the time the next ceiling is saved. After a crash the window starts
//! there, and everything up to it counts as received, whether it was or not:
//!
//! ```text
//!   numbers   ──── received ────┬──────── reach ────────┬──────────►
//!                              top                   ceiling (durable)
//!   crash:    all of these are refused                 │ and these are taken
//! ```
//!
//! So a crash refuses up to about a second's worth of packets once, and accepts nothing twice that came at
//! the rate of the seconds before. The worker does not wait for a ceiling: a peer that was quiet, and then
//! sends more than the reach within a tenth of a second before the crash, is not covered (SECURITY.md says
//! so). The sequence numbers that we send are different: they are leased, and never repeat.

use super::installed::InstalledTunnels;
use crate::fingerprint::under_other_icvs;
use crate::store::MAX_WINDOW_BYTES;
use crate::{Fingerprint, LeaseStore, StoreError, fingerprint};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};
use testudo_crypto::KeyMaterial;
use testudo_gateway::{PlacedSa, SaCounts};
use testudo_ipsec::{LastWindows, ReplayWindow, SaRef, closed_windows};

/// Packets of the smallest window.
const LEAST_WINDOW: u32 = 32;
/// Windows per transaction: a lease may have to wait for one transaction, but not for the windows of all
/// tunnels.
pub(crate) const TRANSACTION_WINDOWS: usize = 512;
/// Bytes of windows per transaction.
const TRANSACTION_BYTES: usize = 512 << 10;
/// Distance from the top of a window that has received nothing in this run to its ceiling.
pub(crate) const FIRST_REACH: u64 = 128;
/// A quiet peer may send this many packets before the next ceiling is saved, and loses as many after a crash.
const QUIET_REACH: u64 = 8;
/// The distance from a window's top to its ceiling is what the peer may send in this time.
const HORIZON: Duration = Duration::from_secs(1);
/// Numbers further ahead than the packets received in the same time are gaps that the peer left, not its
/// rate; packets lost in the network count towards its rate.
const MOST_NUMBERS_PER_PACKET: u64 = 4;

/// How a window is converted into its saved form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// The window unchanged: no more packets come.
    Exact,
    /// A ceiling this far above its top, at most at this number.
    Ahead { reach: u64, most: u64 },
}

/// SAs from peers whose windows are to be saved.
#[derive(Debug)]
pub(crate) struct Asked(BTreeMap<SaRef, (Fingerprint, Keep)>);

impl Asked {
    /// All SAs, with unchanged windows.
    pub(crate) fn exactly(installed: &InstalledTunnels) -> Self {
        Self::of(inbound(installed).into_iter().map(|sa| (sa.sa, (sa.key, Keep::Exact))))
    }

    pub(crate) fn of(sas: impl Iterator<Item = (SaRef, (Fingerprint, Keep))>) -> Self {
        Self(sas.collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn sas(&self) -> Vec<SaRef> {
        self.0.keys().copied().collect()
    }
}

/// An installed SA from a peer, whose window the store keeps.
struct Inbound {
    sa: SaRef,
    key: Fingerprint,
    esn: bool,
    counters: SaCounts,
}

fn inbound(installed: &InstalledTunnels) -> Vec<Inbound> {
    let mut all = Vec::with_capacity(installed.tunnels.len());
    for running in &installed.tunnels {
        let sas = running.sas.lock();
        let kept = sas.iter().filter(|sa| !sa.is_outbound() && sa.is_durable());
        all.extend(kept.filter_map(|sa| {
            let PlacedSa { sa: handle, counters } = sa.added.clone()?;
            Some(Inbound { sa: handle, key: sa.key, esn: sa.esn, counters })
        }));
    }
    all
}

/// A window to be saved.
#[derive(Debug, Clone)]
pub(crate) struct Entry<'w> {
    pub(crate) key: Fingerprint,
    pub(crate) window: Cow<'w, [u8]>,
}

/// How fast the numbers of one window rise, and which ceiling is saved.
#[derive(Debug, Clone, Copy, Default)]
struct Pace {
    packets: u64,
    top: u64,
    /// Increase per second, or per four checks if those take longer.
    rise: u64,
    /// The durable ceiling.
    ceiling: u64,
}

impl Pace {
    /// Records what was received by now, `elapsed` after the last check. After the rate falls, the higher one
    /// is remembered for some seconds.
    fn look(&mut self, packets: u64, top: u64, elapsed: Duration) {
        if packets < self.packets {
            // Another SA under the same key.
            *self = Self { ceiling: self.ceiling, ..Self::default() };
        }
        let most = (packets - self.packets).saturating_mul(MOST_NUMBERS_PER_PACKET);
        let numbers = u128::from(top.saturating_sub(self.top).min(most));
        let rise = numbers * HORIZON.max(4 * elapsed).as_micros() / elapsed.as_micros().max(1);
        let rise = u64::try_from(rise).unwrap_or(u64::MAX);
        *self = Self { packets, top, rise: rise.max(self.rise / 8 * 7), ..*self };
    }

    fn reach(&self) -> u64 {
        self.rise.saturating_add(QUIET_REACH)
    }

    /// Whether the ceiling will soon be too close, or is much too far ahead.
    fn is_due(&self) -> bool {
        let reach = self.reach();
        let (near, far) = (self.top.saturating_add(reach / 2), self.top.saturating_add(2 * reach));
        self.packets > 0 && !(near..=far).contains(&self.ceiling)
    }
}

/// Remembers the saved ceilings, and measures how fast numbers rise.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    paces: HashMap<Fingerprint, Pace>,
    looked: Option<Instant>,
}

impl Windows {
    /// SAs that need a new ceiling.
    pub(crate) fn due(&mut self, installed: &InstalledTunnels, now: Instant) -> Asked {
        self.look(installed, now, Pace::is_due)
    }

    /// All SAs that have received anything: each needs a ceiling if it is removed now.
    pub(crate) fn all(&mut self, installed: &InstalledTunnels, now: Instant) -> Asked {
        self.look(installed, now, |pace| pace.packets > 0)
    }

    fn look(&mut self, installed: &InstalledTunnels, now: Instant, is_asked: fn(&Pace) -> bool) -> Asked {
        let elapsed = self.looked.replace(now).map_or(Duration::from_secs(1), |then| now - then);
        let asked = inbound(installed).into_iter().filter_map(|Inbound { sa, key, esn, counters }| {
            let pace = self.paces.entry(key).or_default();
            // Refused packets move the window, too.
            pace.look(counters.used_packets(), counters.sequence(), elapsed);
            let keep = Keep::Ahead { reach: pace.reach(), most: last_number(esn) };
            is_asked(pace).then_some((sa, (key, keep)))
        });
        Asked(asked.collect())
    }

    pub(crate) fn note(&mut self, saved: &[Entry<'_>]) {
        for entry in saved {
            let top = ReplayWindow::top_of(&entry.window).unwrap_or(0);
            self.paces.entry(entry.key).or_default().ceiling = top;
        }
    }

    pub(crate) fn forget(&mut self, key: &Fingerprint) {
        self.paces.remove(key);
    }

    /// Forgets all keys but these.
    pub(crate) fn keep(&mut self, keys: &HashSet<Fingerprint>) {
        self.paces.retain(|key, _| keys.contains(key));
    }

    #[cfg(test)]
    pub(crate) fn ceiling(&self, key: Fingerprint) -> u64 {
        self.paces.get(&key).map_or(0, |pace| pace.ceiling)
    }
}

/// The saved form of a window that the worker returned as these bytes.
fn kept(keep: Keep, window: &[u8]) -> Cow<'_, [u8]> {
    match (keep, ReplayWindow::top_of(window)) {
        (Keep::Ahead { reach, most }, Some(top)) => {
            Cow::Owned(ReplayWindow::closed_up_to(top.saturating_add(reach).min(most)).to_vec())
        }
        _ => storable(window),
    }
}

/// What the store has room for of saved windows. Of VPE there may be thousands, each as long as one of ESP;
/// where they are too long all that each has received is [closed].
pub(super) fn storable(saved: &[u8]) -> Cow<'_, [u8]> {
    let is_long = saved.len() > MAX_WINDOW_BYTES;
    let closed = is_long.then(|| closed(saved, MAX_WINDOW_BYTES)).flatten();
    closed.map_or(Cow::Borrowed(saved), Cow::Owned)
}

/// The windows of an SA that is gone, as far as the store has room for them.
pub(super) fn of_removed(last: &LastWindows) -> Vec<u8> {
    last.save_within(MAX_WINDOW_BYTES)
}

/// Saved windows in few bytes: one is closed up to its highest number. So is each of VPE, or, if these were
/// more than `most` bytes, all of them up to the highest number of any.
pub(super) fn closed(saved: &[u8], most: usize) -> Option<Vec<u8>> {
    let of_one = || Some(ReplayWindow::closed_up_to(ReplayWindow::top_of(saved)?).to_vec());
    closed_windows(saved).filter(|windows| windows.len() <= most).or_else(of_one)
}

/// The window that an SA from a peer continues with. Where the same key has received more under an ICV of
/// another length, nothing up to there is received again.
pub(crate) fn saved(store: &dyn LeaseStore, key: &KeyMaterial) -> Result<Option<Vec<u8>>, StoreError> {
    let own = store.window(fingerprint(key))?;
    let mut highest = None;
    for other in under_other_icvs(key) {
        highest = highest.max(store.window(other)?.as_deref().and_then(ReplayWindow::top_of));
    }
    if highest <= own.as_deref().and_then(ReplayWindow::top_of) {
        return Ok(own);
    }
    // Of a size, unlike one that a crash has closed: a crash has to close this one further.
    let mut window = ReplayWindow::new(LEAST_WINDOW, true);
    let closed = highest.map(ReplayWindow::closed_up_to);
    Ok(closed.filter(|closed| window.restore(closed)).map(|_| window.save()))
}

/// What must be durable of a window saved as `saved` before its SA accepts its first packet; `None` if it is
/// durable already. A window that a crash has closed is not closed further: a gateway that crashes again and
/// again must not lock its peer out.
pub(crate) fn first_ceiling(saved: Option<&[u8]>, esn: bool) -> Option<[u8; 16]> {
    let top = match saved {
        Some(saved) if ReplayWindow::is_closed(saved) => return None,
        Some(saved) => ReplayWindow::top_of(saved)?,
        None => 0,
    };
    let ceiling = top.saturating_add(FIRST_REACH).min(last_number(esn)).max(top);
    Some(ReplayWindow::closed_up_to(ceiling))
}

/// The highest number that a peer can send. A window closed beyond it could not be restored.
fn last_number(esn: bool) -> u64 {
    if esn { u64::MAX - 1 } else { u32::MAX.into() }
}

/// The requested windows, in the order of their keys.
pub(crate) fn entries<'w>(asked: &Asked, windows: &'w [(SaRef, Vec<u8>)]) -> Vec<Entry<'w>> {
    let mut entries: Vec<_> = windows
        .iter()
        .filter_map(|(sa, window)| {
            let (key, keep) = *asked.0.get(sa)?;
            Some(Entry { key, window: kept(keep, window) })
        })
        .collect();
    // Neighbours in the store are saved together, so that each page is written once.
    entries.sort_unstable_by_key(|entry| entry.key);
    entries
}

/// `entries` in order, split into transactions.
pub(crate) fn transactions<'e, 'w>(mut entries: &'e [Entry<'w>]) -> impl Iterator<Item = &'e [Entry<'w>]> {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fitting = entries.iter().take(TRANSACTION_WINDOWS).take_while(|entry| {
            bytes += entry.window.len();
            bytes <= TRANSACTION_BYTES
        });
        // An entry that is too long gets its own transaction.
        let length = fitting.count().max(1);
        let (part, rest) = entries.split_at_checked(length)?;
        entries = rest;
        Some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENTH: Duration = Duration::from_millis(100);

    #[test]
    fn a_window_that_is_longer_than_a_transaction_goes_alone() {
        let window = vec![0; TRANSACTION_BYTES + 1];
        let entry = Entry { key: Fingerprint::from_bytes([1; 32]), window: Cow::Borrowed(&window) };
        assert!(transactions(&[entry.clone(), entry]).map(<[_]>::len).eq([1, 1]));
    }

    /// Checks a peer ten times a second that sends `per_look` packets between two checks. Returns how often a
    /// ceiling was saved, and asserts that none was passed.
    fn follow(pace: &mut Pace, per_look: u64, looks: u32) -> u32 {
        (0..looks)
            .map(|_| {
                pace.look(pace.packets + per_look, pace.top + per_look, TENTH);
                let is_due = pace.is_due();
                if is_due {
                    pace.ceiling = pace.top + pace.reach();
                }
                assert!(pace.top + per_look <= pace.ceiling, "{pace:?}");
                u32::from(is_due)
            })
            .sum()
    }

    #[test]
    fn a_steady_peer_never_passes_its_ceiling_and_needs_two_a_second() {
        for per_look in [1, 10, 1000, 1_000_000] {
            let mut pace = Pace::default();
            follow(&mut pace, per_look, 1);
            let saves = follow(&mut pace, per_look, 100);
            assert!((4..=25).contains(&saves), "{per_look}: {saves}");
            assert!(pace.ceiling - pace.top <= 10 * per_look + QUIET_REACH, "a second's worth: {pace:?}");
        }
    }

    #[test]
    fn a_peer_that_gets_quiet_loses_a_few_packets_and_not_what_it_sent_before() {
        let mut pace = Pace::default();
        follow(&mut pace, 100_000, 20);
        let saves = follow(&mut pace, 0, 300);
        assert!(pace.ceiling - pace.top <= 2 * QUIET_REACH, "{pace:?}");
        assert!(saves < 20, "{saves}");
        assert_eq!(follow(&mut pace, 0, 100), 0, "nothing is kept while nothing comes");
    }

    #[test]
    fn a_jump_of_the_peers_numbers_is_no_rate() {
        let mut pace = Pace::default();
        follow(&mut pace, 1, 10);
        pace.look(pace.packets + 1, pace.top + (1 << 40), TENTH);
        assert!(pace.is_due() && pace.reach() < 100, "{pace:?}");
    }

    #[test]
    fn a_crash_does_not_close_a_window_further_than_it_is() {
        let exact = {
            let mut window = ReplayWindow::new(64, true);
            window.commit(5).unwrap();
            window.save()
        };
        assert_eq!(first_ceiling(None, true), Some(ReplayWindow::closed_up_to(FIRST_REACH)));
        assert_eq!(first_ceiling(Some(&exact), true), Some(ReplayWindow::closed_up_to(5 + FIRST_REACH)));
        assert_eq!(first_ceiling(Some(&ReplayWindow::closed_up_to(700)), true), None);
    }

    /// Of VPE, whose windows may be thousands: one that the store refuses would fail all of a stop.
    #[test]
    fn windows_that_the_store_has_no_room_for_are_closed_each_by_itself() {
        let saved = |size: u32, count: u32| {
            let mut window = ReplayWindow::new(size, true);
            window.commit(40).unwrap();
            let window = window.save();
            let length = u32::try_from(window.len()).unwrap();
            let row = |id: u32| [&(id << 16).to_le_bytes()[..], &length.to_le_bytes(), &window].concat();
            let front = [40, u64::MAX, 0].map(u64::to_le_bytes).concat();
            [front, (0..count).flat_map(row).collect()].concat()
        };
        let (short, long, longest) = (saved(4096, 100), saved(4096, 1024), saved(32, 22_000));
        assert_eq!(*kept(Keep::Exact, &short), short);
        assert!(long.len() > MAX_WINDOW_BYTES && longest.len() > MAX_WINDOW_BYTES);
        let each = kept(Keep::Exact, &long);
        assert_eq!((each.len(), &*each), (24 * 1025, &closed_windows(&long).unwrap()[..]));
        assert_eq!(*kept(Keep::Exact, &longest), ReplayWindow::closed_up_to(40));
        let store = crate::MemoryStore::new();
        let key = Fingerprint::from_bytes([1; 32]);
        for saved in [&short, &long, &longest] {
            store.save_windows(&[(key, &*kept(Keep::Exact, saved))]).unwrap();
        }
    }

    /// Otherwise the gateway would not start again.
    #[test]
    fn a_window_that_a_crash_closes_near_its_last_numbers_can_be_restored() {
        for (esn, last) in [(false, u64::from(u32::MAX)), (true, u64::MAX - 1)] {
            for back in [0, 1, 5, FIRST_REACH, FIRST_REACH + 1] {
                let mut window = ReplayWindow::new(64, esn);
                assert!(window.restore(&ReplayWindow::closed_up_to(last - back - 1)));
                window.commit(last - back).unwrap();
                let closed = first_ceiling(Some(&window.save()), esn).unwrap();
                assert!(window.restore(&closed), "{back} before {last}");
                assert_eq!(window.top(), (last - back).saturating_add(FIRST_REACH).min(last));
            }
        }
    }

    #[test]
    fn a_ceiling_is_saved_while_packets_come_and_the_window_itself_at_the_end() {
        let mut window = ReplayWindow::new(64, false);
        window.commit(1000).unwrap();
        let bytes = window.save();
        assert_eq!(*kept(Keep::Exact, &bytes), bytes);
        let most = u32::MAX.into();
        assert_eq!(*kept(Keep::Ahead { reach: 50, most }, &bytes), ReplayWindow::closed_up_to(1050));
        assert_eq!(*kept(Keep::Ahead { reach: u64::MAX, most }, &bytes), ReplayWindow::closed_up_to(most));
    }
}
