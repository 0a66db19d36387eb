//! Rules as data: the conditions of a rule, and the verdict on a packet that matches.
//!
//! Only what nftables can express exactly is represented, so that the printed text and the rules that the
//! tests evaluate are the same.

use crate::config::Network;
use std::net::IpAddr;
use testudo_ipsec::{AddressRange, PortRange};

/// A chain of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Chain {
    /// Hook: packets to this host.
    Input,
    /// Hook: packets that this host routes.
    Forward,
    /// Hook: packets of this host, including the gateway's own.
    Output,
    /// The SPD, applied to a packet whose source is local.
    Outbound,
    /// The SPD, applied to a packet whose destination is local.
    Inbound,
}

impl Chain {
    pub(super) const ALL: [Chain; 5] =
        [Chain::Input, Chain::Forward, Chain::Output, Chain::Outbound, Chain::Inbound];

    /// Its name in the table.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Chain::Input => "input",
            Chain::Forward => "forward",
            Chain::Output => "output",
            Chain::Outbound => "outbound",
            Chain::Inbound => "inbound",
        }
    }

    /// Whether it is a base chain, called by a kernel hook.
    pub(super) const fn is_hooked(self) -> bool {
        matches!(self, Chain::Input | Chain::Forward | Chain::Output)
    }
}

/// The verdict on a packet that a rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Drops the packet.
    Drop,
    /// This chain has no objection; the calling chain continues.
    Return,
    /// This table has no objection. Other tables still decide.
    Accept,
    /// Evaluates another chain first.
    Jump(Chain),
}

/// One end of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Source,
    Destination,
}

impl End {
    pub(super) const fn other(self) -> Self {
        match self {
            End::Source => End::Destination,
            End::Destination => End::Source,
        }
    }
}

/// Interfaces that the rules name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Interface {
    /// The gateway's TUN interface.
    Tunnel,
    /// The TUN interface and the loopback interface; nothing comes in from outside on either.
    TunnelOrLoopback,
    /// The loopback interface alone, where there is no TUN interface.
    Loopback,
    /// Each `[[interface]]`: TUN interfaces of the gateway, too, with policies of their own.
    Others,
}

/// A condition. All conditions of a rule must hold; one on a field that the packet does not have does not
/// hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Match {
    /// It came in by this interface.
    In(Interface),
    /// It leaves by this interface.
    Out(Interface),
    /// Packets to its source would be routed into the TUN interface.
    AnswersGoToTunnel,
    /// IP version: whether it is 6.
    Ipv6(bool),
    /// The address at this end is one of these.
    Addresses(End, AddressRange),
    /// The address at this end is none of these, and of the same version.
    NotAddresses(End, AddressRange),
    /// Source and destination, truncated to these lengths, are one of these pairs: a hash lookup, however
    /// many there are.
    Pairs(Pairs),
    /// The address at this end, truncated to the networks' length, is one of these.
    Networks(End, Vec<Network>),
    /// Protocol after all extension headers but AH; in a later IPv6 fragment, the protocol that it claims.
    Protocol(u8),
    /// It has no IPv6 fragment header.
    NoFragmentHeader,
    /// The port at this end is in the range. A later fragment has no ports.
    Ports(End, PortRange),
    /// A message whose type and code, or whose type times 256 in the Mobility Header, is in the range (RFC
    /// 4301 4.4.1.1). A later fragment has none.
    Message {
        /// Whether it is one of the Mobility Header.
        is_mobility: bool,
        /// The range.
        range: PortRange,
    },
    /// Its protocol is known and has no ports.
    HasNoPorts {
        /// IP version: whether it is 6.
        ipv6: bool,
    },
    /// IPv4: it is whole, or the first fragment of its datagram.
    NotLaterFragment,
    /// A fragment that is not the first of its datagram: in IPv4 it hides the ports, in IPv6 the protocol as
    /// well (RFC 8200 4.5).
    LaterFragment {
        /// IP version: whether it is 6.
        ipv6: bool,
    },
    /// IPv6: another extension header follows the fragment header. nftables reads the first fragment header
    /// alone, and a later fragment's may be among those that follow.
    HeadersInFragment,
    /// IPv6: the extension headers end in one after which anything may follow.
    UnknownHeader,
    /// An ICMP error about a packet: destination unreachable, too big, time exceeded, parameter problem (RFC
    /// 792, RFC 4443).
    IcmpError {
        /// IP version: whether it is 6.
        ipv6: bool,
    },
    /// Neighbour discovery from this link itself (RFC 4861 7.1: hop limit 255), without which no packet
    /// leaves, and multicast listener reports, without which a switch may not deliver it.
    NeighbourDiscovery,
}

/// Pairs of networks, all with the same two prefix lengths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pairs {
    /// Bits of the source's prefix.
    pub(super) source_bits: u8,
    /// Bits of the destination's prefix.
    pub(super) destination_bits: u8,
    /// Source, destination, and a name for the pair.
    pub(super) pairs: Vec<(IpAddr, IpAddr, String)>,
}

/// Conditions, the verdict if all of them hold, and a comment that names the policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) matches: Vec<Match>,
    pub(super) verdict: Verdict,
    pub(super) comment: String,
}

impl Rule {
    pub(super) fn new(matches: Vec<Match>, verdict: Verdict, comment: impl Into<String>) -> Self {
        Self { matches, verdict, comment: comment.into() }
    }
}
