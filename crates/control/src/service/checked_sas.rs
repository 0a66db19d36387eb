//! SAs whose request was checked, as the worker is to get them.

use super::sas::KeyState;
use crate::Usage;
use testudo_crypto::KeyMaterial;
use testudo_ipsec::{InboundParameters, Lifetime, ReplayWindow, SaParameters};

/// SAs that can be added.
pub(super) struct Checked {
    pub(super) inbound: Option<(u32, KeyMaterial)>,
    pub(super) outbound: Option<(u32, KeyMaterial)>,
    /// The worker that they are for; `None` for all.
    pub(super) worker: Option<u32>,
    pub(super) lifetime: Lifetime,
    pub(super) key_state: KeyState,
    pub(super) esn: bool,
    pub(super) replay_window: u32,
    /// Whether packets from the peer say nothing of where that is.
    pub(super) from_any_port: bool,
    pub(super) first: Option<FirstNumbers>,
    pub(super) is_used_at_once: bool,
    pub(super) is_waiting_for_peer: bool,
}

impl Checked {
    /// What the worker is to know of the SA from the peer.
    pub(super) fn inbound_parameters(&self, sa: SaParameters) -> InboundParameters {
        let Self { replay_window, from_any_port, .. } = *self;
        InboundParameters { sa, replay_window, from_any_port }
    }

    /// The saved window that an SA from the peer goes on with whose ephemeral key has received something
    /// before.
    pub(super) fn received_before(&self) -> Option<Vec<u8>> {
        let first = self.first.as_ref()?;
        let closed = || ReplayWindow::closed_up_to(first.number).to_vec();
        first.windows.clone().or_else(|| (first.number > 0).then(closed))
    }
}

/// Where an ephemeral key begins, if not at its first number.
#[derive(Debug, Clone)]
pub(super) struct FirstNumbers {
    /// The first number that is sent; of an SA from the peer the last that was received, 0 for none.
    pub(super) number: u64,
    /// Of an SA of VPE from the peer its windows, if they are known; else all are closed up to that number.
    pub(super) windows: Option<Vec<u8>>,
    /// XORed into numbers to make IVs.
    pub(super) iv_mask: u64,
    /// What the key was used for before.
    pub(super) before: Usage,
}
