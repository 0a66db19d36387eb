//! Where SAs and policies take effect.

use super::policy::XfrmPolicy;
use super::sa::{SaKey, XfrmSa};
use testudo_crypto::KeyMaterial;
use testudo_wire::netlink::ack::Refusal;

/// What an SA has been used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SaUse {
    /// Bytes of packets.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
    /// When it was first used, in seconds since 1970; 0 is never.
    pub first_s: u64,
    /// When it was last used, in seconds since 1970; 0 is never.
    pub last_s: u64,
    /// The last sequence number: sent, or received as the highest.
    pub sequence: u64,
    /// Packets that came outside of the replay window.
    pub outside_window: u64,
    /// Packets that had come before.
    pub replayed: u64,
    /// Packets with a wrong ICV.
    pub integrity_failed: u64,
}

/// What a policy has been used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PolicyUse {
    /// When it was first used, in seconds since 1970; 0 is never.
    pub first_s: u64,
    /// When it was last used, in seconds since 1970; 0 is never.
    pub last_s: u64,
    /// Packets.
    pub packets: u64,
    /// Bytes of packets.
    pub bytes: u64,
}

/// The gateway behind [`Xfrm`](super::Xfrm).
///
/// Each call takes effect whole or not at all, and a refusal is what the client is told.
pub trait DataPath {
    /// Whether packets to this address are for this host: SAs that end there are inbound.
    fn is_local(&self, address: std::net::IpAddr) -> bool;

    /// Whether an SA from a peer has this SPI, one of the configuration too.
    fn has_inbound(&self, protocol: u8, spi: u32) -> bool;

    /// How many processors SAs may be for, at least one: numbers from 0 on.
    fn processors(&self) -> u32;

    /// Adds an SA.
    ///
    /// # Errors
    /// Why it cannot be added.
    fn add_sa(&mut self, sa: &XfrmSa, key: KeyMaterial) -> Result<(), Refusal>;

    /// Changes what may change of an SA while it lives: limits, ports of its encapsulation, the mark that its
    /// packets get, its interface, and what it was used for before.
    ///
    /// # Errors
    /// Why it cannot be changed.
    fn change_sa(&mut self, before: &XfrmSa, after: &XfrmSa) -> Result<(), Refusal>;

    /// Removes an SA, one that was added.
    fn remove_sa(&mut self, sa: &XfrmSa);

    /// What an SA has been used for since it was added here.
    fn use_of(&self, sa: &SaKey) -> SaUse;

    /// Moves an SA's numbers on: an outbound one goes on after the number `sent`, an inbound one takes all
    /// numbers up to `received` as received. Numbers never go back.
    ///
    /// # Errors
    /// Why they cannot be moved, such as that the SA is further on.
    fn advance(&mut self, sa: &SaKey, sent: u64, received: u64) -> Result<(), Refusal>;

    /// Moves an SA to other addresses, or ports of its encapsulation, with its keys, numbers and use. Of
    /// `after` its key, source, family and encapsulation may differ.
    ///
    /// # Errors
    /// Why it cannot be moved.
    fn migrate_sa(&mut self, before: &XfrmSa, after: &XfrmSa) -> Result<(), Refusal>;

    /// Adds a policy directly ahead of another one, by its index; `None` is behind all.
    ///
    /// # Errors
    /// Why it cannot be added.
    fn add_policy(&mut self, policy: &XfrmPolicy, before: Option<u32>) -> Result<(), Refusal>;

    /// Puts a policy in the place of the one with its index.
    ///
    /// # Errors
    /// Why it cannot be changed.
    fn replace_policy(&mut self, policy: &XfrmPolicy, before: Option<u32>) -> Result<(), Refusal>;

    /// Removes the policy with this index.
    fn remove_policy(&mut self, index: u32);

    /// What the policy with this index has been used for.
    fn use_of_policy(&self, index: u32) -> PolicyUse;
}
