//! What the attacker on the link sends to gateway B in the name of A, and the drop reasons by which B shows
//! that it refused it.

use crate::attack::Recorded;
use crate::capture::Eavesdropper;
use crate::gateway::Status;

/// Number of packets replayed from the beginning of the run, of those from its end, and of forged ones.
const ATTACKS: usize = 8;
/// How far ahead forged sequence numbers are: a multiple of this, all beyond what was sent.
const AHEAD: u32 = 1000;
/// Drop reasons for replayed packets. With extended sequence numbers, a number left of the window is taken
/// for one of the next 2^32 (RFC 4303 A2.2), with which the integrity check fails.
pub(super) const REPLAYED: [&str; 3] = ["replay_duplicate", "replay_too_old", "authentication_failed"];
/// The same where SAs are renewed: packets of an SA that is gone have nobody who would take them.
pub(super) const REPLAYED_OF_RENEWED: [&str; 4] =
    ["replay_duplicate", "replay_too_old", "authentication_failed", "unknown_spi"];
/// Drop reason for packets that neither gateway sent.
pub(super) const FORGED: [&str; 1] = ["authentication_failed"];

/// The packets that the attacker sends; all must be refused.
pub(super) struct Attack {
    /// Packets as they were recorded.
    pub(super) replayed: Vec<Recorded>,
    /// Packets with a sequence number not sent yet, and one bit of the ciphertext changed.
    pub(super) forged: Vec<Recorded>,
}

impl Attack {
    /// Uses packets recorded at the beginning of the run, and at its end: the latter are still in B's replay
    /// window.
    pub(super) fn plan(eavesdropper: &Eavesdropper, old: &[Vec<u8>], fresh: &[Vec<u8>]) -> Self {
        let last = |packets: &[Vec<u8>]| -> Vec<Recorded> {
            let recorded = packets.iter().rev().filter_map(|packet| eavesdropper.recorded(packet));
            recorded.take(ATTACKS).collect()
        };
        let (old, fresh) = (last(old), last(fresh));
        let forged =
            fresh.iter().zip(1_u32..).map(|(packet, number)| packet.forged(number * AHEAD)).collect();
        Self { replayed: [old, fresh].concat(), forged }
    }
}

/// Number of packets refused for any of `reasons`.
pub(super) fn refused(status: &Status, reasons: &[&str]) -> u64 {
    reasons.iter().map(|reason| status.dropped(reason)).sum()
}

pub(super) fn count(packets: &[Recorded]) -> u64 {
    u64::try_from(packets.len()).unwrap_or(u64::MAX)
}
