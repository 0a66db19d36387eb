//! Rules as data: what a rule looks at, and what becomes of a packet that it matches.
//!
//! Only what nftables can say exactly is in here, so that the text that is printed and the rules that the
//! tests evaluate are one and the same thing.

use crate::config::Network;
use std::net::IpAddr;
use testudo_ipsec::PortRange;

/// A chain of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Chain {
    /// Hook: packets to this host.
    Input,
    /// Hook: packets that this host routes.
    Forward,
    /// Hook: packets of this host, the gateway's own among them.
    Output,
    /// The SPD, asked about a packet whose source is local.
    Outbound,
    /// The SPD, asked about a packet whose destination is local.
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

    /// Whether the kernel calls it.
    pub(super) const fn is_hooked(self) -> bool {
        matches!(self, Chain::Input | Chain::Forward | Chain::Output)
    }
}

/// What becomes of a packet that a rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is gone.
    Drop,
    /// The chain has no objection; the one that jumped here goes on.
    Return,
    /// This table has no objection. Other tables are asked all the same.
    Accept,
    /// Another chain looks at it first.
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
    /// The TUN interface and the loopback interface, on which nothing comes from outside.
    TunnelOrLoopback,
}

/// A condition. Those of a rule must all hold; where a packet does not have the field that one looks at, it
/// does not hold.
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
    /// The address at this end is in the network.
    Network(End, Network),
    /// The address at this end is not in the network, and of the same version.
    NotNetwork(End, Network),
    /// Source and destination, cut to so many bits, are one of these pairs: a hash lookup, however many there
    /// are.
    Pairs(Pairs),
    /// The address at this end, cut to so many bits, is one of these.
    Networks(End, Vec<Network>),
    /// Protocol after all extension headers but AH; in a later fragment of IPv6, whatever it claims.
    Protocol(u8),
    /// It has no fragment header of IPv6.
    NoFragmentHeader,
    /// Ports of this end. A later fragment has none.
    Ports(End, PortRange),
    /// A fragment that is not its datagram's first: IPv4 hides the ports, IPv6 the protocol as well (RFC 8200
    /// 4.5).
    LaterFragment {
        /// IP version: whether it is 6.
        ipv6: bool,
    },
    /// Neighbour discovery from this very link (RFC 4861 7.1: its hop limit is 255), without which no packet
    /// leaves at all, and multicast listener reports, without which a switch may not deliver it.
    NeighbourDiscovery,
}

/// Pairs of networks, all with the same two prefix lengths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pairs {
    /// Bits of the source's prefix.
    pub(super) source_bits: u8,
    /// Bits of the destination's prefix.
    pub(super) destination_bits: u8,
    /// Source, destination, and what the pair is for.
    pub(super) pairs: Vec<(IpAddr, IpAddr, String)>,
}

/// Conditions, the verdict where all of them hold, and a comment that says which policy it is for.
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
