//! What is remembered of the keys of SAs that are gone: for as long as the store does not work, here.

use super::installed::Running;
use super::sa_control::{SaControl, State};
use super::sas::RunningSa;
use super::{usages, windows};
use crate::{Fingerprint, StoreError, Usage};
use testudo_ipsec::closed_windows;

/// What is to be remembered of a key whose SA is gone.
#[derive(Debug)]
pub(super) struct LastState {
    pub(super) key: Fingerprint,
    window: Option<Vec<u8>>,
    usage: Option<Usage>,
}

/// The most bytes that are kept of a key's windows: 24 for each, and as many before them. They are enough for
/// those of a peer with 16 workers and the default of 8 slots, or 8 workers and two classes. A peer chooses
/// how many it has, and how often it renews its keys. Of more windows, the highest number of all is kept.
const MOST_BYTES: usize = 24 + 128 * 24;

/// What is kept of a saved window, or of those of VPE.
fn closed(saved: &[u8]) -> Option<Vec<u8>> {
    windows::closed(saved, MOST_BYTES)
}

/// What is kept of the saved windows of a negotiated key of VPE; `None` of ESP, or where they are too many.
pub(super) fn few_of_vpe(saved: &[u8]) -> Option<Vec<u8>> {
    closed_windows(saved).filter(|windows| windows.len() <= MOST_BYTES)
}

impl SaControl {
    /// Saves the window and the usage of a key whose SA is gone, now or when the store works again; the
    /// numbers that it has not used return. Of a key that no configuration has, no more than the highest
    /// number is kept, as of keys that are retired: windows of replaced keys would fill the disk until the
    /// next reload. Of VPE that is the highest one of each window: if a daemon installs the SA again, windows
    /// that are behind others go on.
    pub(super) fn keep_what_is_known(
        &self,
        state: &mut State,
        running: &Running,
        sa: &RunningSa,
        window: Option<Vec<u8>>,
    ) {
        let is_configured = sa.key == running.inbound_key || running.more_keys.contains(&sa.key);
        let window = window.as_deref().and_then(|window| match is_configured {
            true => Some(windows::storable(window).into_owned()),
            false => closed(window),
        });
        let last = LastState { key: sa.key, window, usage: usages::of(sa).map(|(_, usage)| usage) };
        if let Err(error) = self.save_last(&last) {
            tracing::error!("saving what a removed key was used for: {error}; trying again");
            state.unsaved.push(last);
        }
        if sa.is_outbound() {
            self.give_back_numbers(sa.numbers);
        }
    }

    fn save_last(&self, last: &LastState) -> Result<(), StoreError> {
        let window = last.window.as_deref().map(|window| (last.key, window));
        let usage = last.usage.map(|usage| (last.key, usage));
        self.store.save(window.as_slice(), usage.as_slice())
    }

    /// Saves what the store could not save before, as far as it can.
    pub(crate) fn save_rest(&self, state: &mut State) {
        while let Some(last) = state.unsaved.last() {
            if self.save_last(last).is_err() {
                return;
            }
            state.unsaved.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testudo_ipsec::ReplayWindow;

    /// Of an SA of VPE that a daemon installs again, the window behind all others goes on.
    #[test]
    fn windows_of_vpe_are_kept_each_with_its_highest_number() {
        let (mut fast, mut slow) = (ReplayWindow::new(4096, true), ReplayWindow::new(4096, true));
        (1..=5000).for_each(|number| fast.commit(number).unwrap());
        [40, 38].iter().for_each(|number| slow.commit(*number).unwrap());
        let mut saved = [5000, u64::MAX, 0].map(u64::to_le_bytes).concat();
        let mut kept = saved.clone();
        for (id, window) in [(1_u32, &fast), (2, &slow)] {
            let append = |bytes: &mut Vec<u8>, window: &[u8]| {
                let front = [(id << 16).to_le_bytes(), u32::try_from(window.len()).unwrap().to_le_bytes()];
                bytes.extend(front.concat());
                bytes.extend(window);
            };
            append(&mut saved, &window.save());
            append(&mut kept, &ReplayWindow::closed_up_to(window.top()));
        }
        assert!(saved.len() > 1000);
        assert_eq!(closed(&saved), Some(kept));
        assert_eq!(closed(&fast.save()), Some(ReplayWindow::closed_up_to(5000).to_vec()));
        let window = slow.save();
        let mut append = |id: u32| {
            let front = [(id << 16).to_le_bytes(), u32::try_from(window.len()).unwrap().to_le_bytes()];
            saved.extend(front.concat());
            saved.extend(&window);
        };
        // As many as 16 workers have.
        (3..=128).for_each(&mut append);
        // A flood of windows leaves no more than one number.
        append(129);
        let of_16_workers = closed(&saved[..saved.len() - 8 - window.len()]).unwrap();
        assert_eq!(of_16_workers.len(), 24 + 128 * 24);
        assert_eq!(closed(&saved), Some(ReplayWindow::closed_up_to(5000).to_vec()));
    }
}
