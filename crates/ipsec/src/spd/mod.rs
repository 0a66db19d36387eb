//! The security policy database (RFC 4301 4.4.1): an ordered list of policies; the first that matches a
//! packet decides what happens to it.
//!
//! ```text
//!   packet ─► Pair (two IPv4 addresses) ─► Spd::answer_v4 ─► Answer: where addresses alone decide
//!          └► Flow (all that selectors see) ─► Spd::verdict ─► Verdict: the action, or why there is none
//! ```
//!
//! - [`addresses`] and [`selector`]: what a policy or an SA applies to; [`flow`]: what a packet shows of itself.
//! - [`policy`]: a selector with its action, and the verdict on a packet.
//! - [`index`]: the SPD, which finds the first policy that matches; [`table`] is one hash table of it.
//! - [`pair`]: IPv4 packets by their two addresses alone, which decide most of them.
//! - [`inbound_selectors`]: the check of decrypted packets against the selectors of their SA.

mod addresses;
mod flow;
mod inbound_selectors;
mod index;
mod pair;
mod policy;
mod selector;
mod table;

pub(crate) use addresses::address_bits;
pub use addresses::{AddressRange, BadPrefix, BadRange, Prefix};
pub use flow::{Direction, Flow};
pub(crate) use inbound_selectors::InboundSelectors;
pub use index::Spd;
pub(crate) use pair::Pair;
pub use policy::{Action, Policy, TunnelIndex, Verdict};
pub use selector::{Mismatch, PortRange, Protocol, Selector};
pub(crate) use table::Answer;
