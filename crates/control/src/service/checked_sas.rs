//! SAs whose request was checked, as the worker is to get them.

use super::sas::KeyState;
use crate::Usage;
use testudo_crypto::KeyMaterial;
use testudo_ipsec::{InboundParameters, Lifetime, SaParameters};

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
}

/// Where an ephemeral key begins, if not at its first number.
#[derive(Debug, Clone, Copy)]
pub(super) struct FirstNumbers {
    /// The first number that is sent; of an SA from the peer the last that was received, 0 for none.
    pub(super) number: u64,
    /// XORed into numbers to make IVs.
    pub(super) iv_mask: u64,
    /// What the key was used for before.
    pub(super) before: Usage,
}
