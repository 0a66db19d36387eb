//! Ephemeral keys that have served in this run of the gateway, so that none is used twice: under one key, no
//! number may repeat (RFC 4106 2), and the numbers of such a key begin at 1 whenever it is added.

use crate::{Fingerprint, HalfDigest};
use std::collections::{HashSet, VecDeque};

/// Keys that are remembered, the latest ones. Those that an SA has are known by the SA besides.
pub(super) const MAX_EPHEMERAL_KEYS: usize = 1 << 18;

/// The latest ephemeral keys.
#[derive(Debug, Default)]
pub(super) struct EphemeralKeys {
    known: HashSet<HalfDigest>,
    order: VecDeque<HalfDigest>,
}

impl EphemeralKeys {
    /// Remembers a key; the oldest one is forgotten if there are too many.
    pub(super) fn add(&mut self, key: Fingerprint) {
        let key = key.into();
        if self.known.insert(key) {
            self.order.push_back(key);
        }
        if self.order.len() > MAX_EPHEMERAL_KEYS
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    /// Whether a key is remembered.
    pub(super) fn has(&self, key: Fingerprint) -> bool {
        self.known.contains(&key.into())
    }
}
