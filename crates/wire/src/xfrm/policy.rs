//! Policies in messages, their templates, defaults and migration.

use super::address::Address;
use super::attribute::{Value, too_short};
use super::lifetime::{LifetimeConfig, LifetimeCurrent};
use super::selector::{Id, Selector};
use super::structure::{Structure, structure};
use crate::netlink::ack::Refusal;
use crate::netlink::errno::Errno;
use zeroize::Zeroizing;

/// At most so many templates, and entries of a migration (`XFRM_MAX_DEPTH`).
pub const MAX_DEPTH: usize = 6;

structure! {
    /// `struct xfrm_userpolicy_info`: a policy.
    PolicyInfo, 168, {
        /// Which packets.
        selector: Selector = 0,
        /// Limits.
        lifetime: LifetimeConfig = 56,
        /// What has been used; requests leave it empty.
        current: LifetimeCurrent = 120,
        /// Lower ones come first.
        priority: u32 = 152,
        /// Its number, whose low 3 bits are the direction; 0 in a request: to be chosen.
        index: u32 = 156,
        /// [`direction`](super::direction).
        direction: u8 = 160,
        /// [`action`](super::action).
        action: u8 = 161,
        /// [`policy_flag`](super::policy_flag).
        flags: u8 = 162,
        /// [`share`](super::share); the kernel ignores it.
        share: u8 = 163,
    }
}

structure! {
    /// `struct xfrm_userpolicy_id`: a policy, by its number, or else by its selector.
    PolicyId, 64, {
        /// Which packets.
        selector: Selector = 0,
        /// Its number, or 0.
        index: u32 = 56,
        /// [`direction`](super::direction).
        direction: u8 = 60,
    }
}

structure! {
    /// `struct xfrm_user_tmpl`: what a policy does to its packets.
    Template, 64, {
        /// Destination, SPI and protocol of the SA.
        id: Id = 0,
        /// Of the SA's addresses: [`family`](super::family); 0 is the policy's.
        family: u16 = 24,
        /// Where the SA begins.
        source: Address = 28,
        /// The bundle of SAs; 0 is any.
        reqid: u32 = 44,
        /// [`mode`](super::mode).
        mode: u8 = 48,
        /// [`share`](super::share).
        share: u8 = 49,
        /// Not 0: used if there is an SA, and otherwise passed over.
        optional: u8 = 50,
        /// Which integrity algorithms, by their numbers; all bits are any.
        integrity_algorithms: u32 = 52,
        /// Which ciphers.
        ciphers: u32 = 56,
        /// Which compression.
        compression_algorithms: u32 = 60,
    }
}

structure! {
    /// `struct xfrm_user_migrate`: SAs move from two addresses to two others (MOBIKE, RFC 4555).
    Migration, 76, {
        /// Where they ended.
        old_destination: Address = 0,
        /// Where they began.
        old_source: Address = 16,
        /// Where they will end.
        new_destination: Address = 32,
        /// Where they will begin.
        new_source: Address = 48,
        /// ESP, AH or IPComp.
        protocol: u8 = 64,
        /// [`mode`](super::mode).
        mode: u8 = 65,
        /// Their bundle; 0 is any.
        reqid: u32 = 68,
        /// Of the old addresses.
        old_family: u16 = 72,
        /// Of the new ones.
        new_family: u16 = 74,
    }
}

structure! {
    /// `struct xfrm_user_kmaddress`: where the key exchange happens from now on.
    KeyExchangeAddresses, 40, {
        /// Ours.
        local: Address = 0,
        /// The peer's.
        remote: Address = 16,
        /// Without meaning.
        reserved: u32 = 32,
        /// [`family`](super::family).
        family: u16 = 36,
    }
}

structure! {
    /// `struct xfrm_userpolicy_type`: whether a policy is one of the main table
    /// ([`policy_type`](super::policy_type)).
    PolicyType, 6, {
        /// The table.
        kind: u8 = 0,
    }
}

structure! {
    /// `struct xfrm_userpolicy_default`: what becomes of packets that no policy concerns
    /// ([`default_action`](super::default_action)).
    PolicyDefaults, 3, {
        /// Of what comes in.
        inbound: u8 = 0,
        /// Of what is forwarded.
        forward: u8 = 1,
        /// Of what goes out.
        outbound: u8 = 2,
    }
}

/// `what`, as many as there are, of one length each: at least one, at most [`MAX_DEPTH`].
fn read_several<T: Structure>(bytes: &[u8], what: &str) -> Result<Vec<T>, Refusal> {
    if bytes.len() < T::LENGTH {
        return Err(too_short(bytes.len(), T::LENGTH));
    }
    if !bytes.len().is_multiple_of(T::LENGTH) {
        let text = format!("{} bytes are no whole number of {what} of {} bytes", bytes.len(), T::LENGTH);
        return Err(Refusal::new(Errno::INVAL, text));
    }
    let count = bytes.len() / T::LENGTH;
    if count > MAX_DEPTH {
        return Err(Refusal::new(Errno::INVAL, format!("{count} {what}, at most {MAX_DEPTH} may be")));
    }
    Ok(bytes.chunks_exact(T::LENGTH).filter_map(T::read_first).collect())
}

fn append_all<T: Structure>(all: &[T]) -> Zeroizing<Vec<u8>> {
    let mut bytes = Vec::with_capacity(all.len() * T::LENGTH);
    all.iter().for_each(|one| one.append(&mut bytes));
    Zeroizing::new(bytes)
}

impl Value for Vec<Template> {
    fn read(bytes: &[u8]) -> Result<Self, Refusal> {
        read_several(bytes, "templates")
    }

    fn bytes(&self) -> Zeroizing<Vec<u8>> {
        append_all(self)
    }
}

impl Value for Vec<Migration> {
    fn read(bytes: &[u8]) -> Result<Self, Refusal> {
        read_several(bytes, "entries")
    }

    fn bytes(&self) -> Zeroizing<Vec<u8>> {
        append_all(self)
    }
}
