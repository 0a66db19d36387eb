//! One entry of the SPD (RFC 4301 4.4.1.2), and what a lookup says.

use super::flow::Direction;
use super::populate::PopulateFlags;
use super::selector::Selector;
use std::fmt;
use std::sync::Arc;
use testudo_packet::Interface;

/// A tunnel's index in the worker's table of tunnels; it does not change while the tunnel is unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct TunnelIndex(pub u32);

/// What to do with a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Send it through a tunnel.
    Protect(TunnelIndex),
    /// Let it pass in clear.
    Bypass,
    /// Drop it.
    Discard,
    /// Send it through a tunnel of its own, made after this one, whose selectors take the values of the
    /// packet at the fields that the policy [populates](Policy::populate). Such a tunnel has a policy of its
    /// own, ahead of this one: packets that come here have none yet, and are discarded with an
    /// [acquire](crate::Acquire).
    Populate(TunnelIndex),
}

/// The directions that a policy applies to. RFC 4301 4.4.1 has them as three databases: SPD-S for traffic
/// that is protected, in both directions, SPD-O and SPD-I for what is bypassed or discarded on its way out or
/// in. One ordered list of policies says the same, and lets all of them be compared by their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Directions {
    /// Packets that leave, and packets that arrive with their ends exchanged.
    #[default]
    Both,
    /// Packets that leave.
    Outbound,
    /// Packets that arrive.
    Inbound,
}

impl Directions {
    /// Whether packets of this direction are among them.
    #[must_use]
    pub fn include(self, direction: Direction) -> bool {
        match self {
            Self::Both => true,
            Self::Outbound => direction == Direction::Outbound,
            Self::Inbound => direction == Direction::Inbound,
        }
    }

    /// Whether all directions of `other` are among them.
    #[must_use]
    pub fn cover(self, other: Self) -> bool {
        self == Self::Both || self == other
    }
}

impl fmt::Display for Directions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Both => "both",
            Self::Outbound => "out",
            Self::Inbound => "in",
        })
    }
}

/// One entry of the SPD: any of its selectors matching, it decides.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Policy {
    /// The packets that it applies to. A list of ranges in RFC 4301 is a list of selectors here, one for each
    /// combination.
    pub selectors: Arc<[Selector]>,
    /// The interface of the protected side whose packets it applies to. That of its tunnel, if it has one.
    pub interface: Interface,
    /// The directions that it applies to.
    pub directions: Directions,
    /// What to do with the packets.
    pub action: Action,
    /// With [`Action::Populate`], the fields that SAs take from packets (RFC 4301 4.4.1.2); otherwise none.
    /// Not in the action, so that a verdict stays two registers.
    pub populate: PopulateFlags,
    /// Whether its packets ask for an SA of their worker's own, where the tunnel's workers
    /// [are to](crate::Ipsec::want_own) (RFC 9611).
    pub asks_for_own: bool,
}

impl Policy {
    /// A policy of the main interface for both directions with one selector.
    #[must_use]
    pub fn new(selector: Selector, action: Action) -> Self {
        Self {
            selectors: Arc::from([selector]),
            interface: Interface::MAIN,
            directions: Directions::Both,
            action,
            populate: PopulateFlags::default(),
            asks_for_own: true,
        }
    }

    /// A policy for both directions with one selector, by which each flow has an SA of its own after this
    /// tunnel, populated with these fields of its packets.
    #[must_use]
    pub fn populating(selector: Selector, template: TunnelIndex, populate: PopulateFlags) -> Self {
        Self { populate, ..Self::new(selector, Action::Populate(template)) }
    }

    /// The policy of a tunnel that was populated for this one, with these selectors: ahead of this one, and
    /// for the same directions and interface.
    #[must_use]
    pub fn of_populated(&self, tunnel: TunnelIndex, selectors: Arc<[Selector]>) -> Self {
        let populate = PopulateFlags::default();
        Self { selectors, action: Action::Protect(tunnel), populate, ..*self }
    }
}

/// The name of a policy in an SPD: no later policy of that SPD has the same, nor any of another one that was
/// [made of policies](super::Spd::new) in this process: what names a policy of an SPD that was replaced names
/// none of its successor's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PolicyId {
    /// The number of the SPD.
    pub(super) spd: u32,
    pub(super) slot: u32,
    pub(super) serial: u32,
}

impl PolicyId {
    /// The name as a number, of those of one SPD. The same in each run, whatever SPDs were made before.
    pub(crate) fn bits(self) -> u64 {
        u64::from(self.slot) << 32 | u64::from(self.serial)
    }
}

/// Where a policy is put in the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Position {
    /// Before all others.
    First,
    /// After all others.
    Last,
    /// Right before this one.
    Before(PolicyId),
    /// Right after this one.
    After(PolicyId),
}

/// A change of one policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicyChange {
    /// Add this policy.
    Insert(Position, Policy),
    /// Put this policy in the place of that one, whose name it keeps.
    Replace(PolicyId, Policy),
    /// Remove that one.
    Remove(PolicyId),
}

/// A change of the SPD is not possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum SpdError {
    /// The policy's ranges make too many prefixes.
    #[error(
        "a policy whose address and port ranges make more than {} pairs of prefixes: use prefixes, or several policies",
        super::MAX_PIECES
    )]
    TooManyPieces,
    /// There are as many policies as an SPD holds.
    #[error("{} policies are installed, and more are not possible", super::MAX_POLICIES)]
    Full,
    /// The policy is not, or no longer, in the SPD.
    #[error("there is no such policy")]
    UnknownPolicy,
}

/// The SPD's verdict on a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// This policy decides.
    Policy(Action),
    /// No policy matches it.
    NoPolicy,
    /// It hides its protocol, its ports, or the type of its message, and the first policy that concerns it
    /// depends on them.
    FieldsHidden,
}

impl Verdict {
    /// What to do, if a policy decides.
    pub(crate) fn action(self) -> Option<Action> {
        if let Self::Policy(action) = self { Some(action) } else { None }
    }
}
