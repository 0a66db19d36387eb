//! What is remembered of the keys of SAs that are gone: for as long as the store does not work, here.

use super::installed::Running;
use super::sa_control::{SaControl, State};
use super::sas::RunningSa;
use super::usages;
use crate::{Fingerprint, StoreError, Usage};
use testudo_ipsec::ReplayWindow;

/// What is to be remembered of a key whose SA is gone.
#[derive(Debug)]
pub(super) struct LastState {
    pub(super) key: Fingerprint,
    window: Option<Vec<u8>>,
    usage: Option<Usage>,
}

impl SaControl {
    /// Saves the window and the usage of a key whose SA is gone, now or when the store works again; the
    /// numbers that it has not used return. Of a key that no configuration has, no more than the highest
    /// number is kept, as of keys that are retired: windows of replaced keys would fill the disk until the
    /// next reload.
    pub(super) fn keep_what_is_known(
        &self,
        state: &mut State,
        running: &Running,
        sa: &RunningSa,
        window: Option<Vec<u8>>,
    ) {
        let is_configured = sa.key == running.inbound_key;
        let closed = window.as_deref().filter(|_| !is_configured).and_then(ReplayWindow::top_of);
        let window = closed.map(|top| ReplayWindow::closed_up_to(top).to_vec()).or(window);
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
