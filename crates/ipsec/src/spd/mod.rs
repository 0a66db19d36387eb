//! The security policy database (RFC 4301 4.4.1): an ordered list of policies; the first that matches a
//! packet decides what happens to it.
//!
//! ```text
//!   packet ─► Pair (two IPv4 addresses) ─► Spd::answer_v4 ─► Answer: where addresses alone decide
//!          └► Flow (all that selectors see) ─► Spd::verdict ─► Verdict: the action, or why there is none
//! ```
//!
//! **What policies say.** A policy ([`policy`]) has selectors ([`selector`]: ranges of [`addresses`],
//! protocol, ports or message types), directions, and an action. A packet shows them a [`flow`]. What it
//! hides (a later fragment its ports) may match or not: then nothing is skipped that could match.
//!
//! **How the first one is found.** Up to eight are compared one by one ([`scan`]). Beyond that:
//!
//! ```text
//!   direction ─► IP version ─► lengths of both prefixes ─► hash of the prefixes ─► protocol ─► ports
//!   [lookups]    [index]       [space], [lengths]          [table]                 [leaf], [port_index]
//! ```
//!
//! Ranges are entered as the prefixes they are made of. A slot of a hash table holds the answer where nothing
//! but addresses matters, and the rank of its first policy, which ends a search in other places early. A
//! lookup costs a hash table for each pair of a local and a remote network around the packet's addresses that
//! policies name. In linear space no method does fundamentally better in so many dimensions (Gupta and
//! McKeown 2001, *Algorithms for Packet Classification*: (log n)^(d-1)).
//!
//! **Interfaces.** A packet meets the policies of the interface of the protected side that it came from, or
//! will leave by ([`lookups`]): RFC 4301's choice of an SPD (4.4.1, the selection function). One order holds
//! the policies of all.
//!
//! **How it changes.** One policy at a time, at a cost that does not depend on the others: ranks have gaps
//! ([`order`]), tables grow a few slots at a time, slots are used again ([`slab`]), and a [`trie`] changes at
//! one node. The worker owns its SPD, and changes arrive as commands, so that lookups take no lock.
//!
//! **SAs for flows.** A policy may [`populate`] SAs from packets. Each of these has a policy of its own,
//! directly ahead of that one, so that the index finds it as any other (RFC 4301's SPD cache); a packet that
//! reaches the policy itself has no SA yet.
//!
//! **What an SA checks.** [`inbound_selectors`] compares decrypted packets with the selectors of their SA, by
//! the same index where these are many, and [`pair`] makes the two addresses of IPv4 packets one number.

mod addresses;
mod answer;
mod database;
mod flow;
mod inbound_selectors;
mod index;
mod leaf;
mod lengths;
mod lookups;
mod order;
mod pair;
mod policy;
mod populate;
mod port_index;
mod scan;
mod search;
mod selector;
mod slab;
mod space;
mod table;
mod trie;

#[cfg(test)]
mod model_tests;

pub(crate) use addresses::address_bits;
pub use addresses::{AddressRange, BadPrefix, BadRange, Prefix};
pub(crate) use answer::Answer;
pub use database::{MAX_FLOW_PIECES, MAX_PIECES, MAX_POLICIES, Spd};
pub use flow::{Direction, Flow};
pub(crate) use inbound_selectors::InboundSelectors;
pub use inbound_selectors::SaSelectors;
pub use lookups::OfInterface;
pub(crate) use pair::Pair;
pub use policy::{
    Action, Directions, Policy, PolicyChange, PolicyId, Position, SpdError, TunnelIndex, Verdict,
};
pub(crate) use populate::Wanted;
pub use populate::{PacketValues, PopulateFlags};
pub use search::LookupCost;
pub use selector::{Mismatch, PortRange, Protocol, Selector};
