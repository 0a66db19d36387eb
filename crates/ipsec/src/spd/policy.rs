//! One entry of the SPD (RFC 4301 4.4.1.2), and what a lookup says.

use super::flow::Flow;
use super::selector::Selector;

/// A tunnel's index in the worker's table of tunnels; it does not change while the tunnel is unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
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
}

/// One entry of the SPD.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Policy {
    /// The packets that it applies to.
    pub selector: Selector,
    /// What to do with them.
    pub action: Action,
}

/// The SPD's verdict on a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// This policy decides.
    Policy(Action),
    /// No policy matches it.
    NoPolicy,
    /// It hides its protocol or its ports, and the first policy that concerns it depends on them.
    FieldsHidden,
}

impl Policy {
    #[inline]
    pub(super) fn verdict(&self, flow: &Flow) -> Verdict {
        if flow.hides_fields() && !self.selector.matches(flow) {
            return Verdict::FieldsHidden;
        }
        Verdict::Policy(self.action)
    }
}
