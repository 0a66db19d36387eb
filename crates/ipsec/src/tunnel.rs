//! The parameters of a tunnel and of its SAs.
//!
//! A tunnel is a *bundle* of SAs that carry the same traffic between the same two ends, what Linux calls a
//! reqid: policies name the tunnel, and so do not change when its keys do. One of its SAs towards the peer is
//! in use; each of its SAs from the peer may carry its packets, so that those of the old key and those of the
//! new one are both accepted while a key is replaced (RFC 4301 4.4.2.1, RFC 7296 2.8).
//!
//! ```text
//!   policy ──► tunnel ──► outbound SA in use      inbound SAs ──► tunnel, whose policies decide
//!                    └─   outbound SA, waiting      0x1001 (old)
//!                                                   0x1003 (new)
//! ```
//!
//! Several workers may share the SA in use, or each has one of its own beside it (RFC 9611), by which its
//! packets go: the shared one is the fallback then, for workers without.
//!
//! What a tunnel has is common to all its SAs; SPI, algorithms, numbers, window and lifetime are an SA's own.

use crate::encap::template::Dscp;
use crate::encap::{IpsecProtocol, Mode, Shape};
use crate::lifetime::{Lifetime, Spent};
use crate::numbers::NumberSource;
use crate::packet_rules::PacketRules;
use crate::peer_heard::PeerHeard;
use crate::spd::{InboundSelectors, SaSelectors, Selector, TunnelIndex};
use crate::tables::{longest_datagram, longest_fragmented};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use testudo_crypto::Suite;
use testudo_packet::Interface;
use testudo_wire::ip::Version;

/// How ESP or VPE is carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Encapsulation {
    /// As IP protocol 50 (RFC 4303), VPE as the one of its [rules](crate::VpeRules).
    Esp,
    /// In UDP (RFC 3948; VPE by `docs/VPE.md`).
    EspInUdp {
        /// Our port.
        local_port: u16,
        /// The peer's port; it is learned together with the peer's address.
        remote_port: u16,
    },
}

/// The outer ends of a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoints {
    /// Our address.
    pub local: IpAddr,
    /// The peer's address; `None` while it is to be learned from authentic packets.
    pub remote: Option<IpAddr>,
    /// How ESP is carried between them.
    pub encapsulation: Encapsulation,
}

/// What SAs of both directions have.
#[derive(Debug, Clone)]
pub struct SaParameters {
    /// Security parameters index.
    pub spi: u32,
    /// Algorithms.
    pub suite: Suite,
    /// Extended sequence numbers.
    pub esn: bool,
    /// Its limits.
    pub lifetime: Lifetime,
    /// How much of them its key has used before.
    pub spent: Spent,
}

/// The only worker that sends through an SA (RFC 9611 3): its numbers are nobody else's. All workers of a
/// gateway have the SA, under one handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SaWorker {
    /// The worker, by its index.
    pub worker: u32,
    /// Whether it is this one.
    pub is_here: bool,
    /// Whether this one keeps its limits and reports them: that worker, or the first one while it is not
    /// known that there is such a worker.
    pub(crate) keeps_limits: bool,
}

impl SaWorker {
    /// This worker, as the first one is told of it: others are told [by a copy](Self::at).
    #[must_use]
    pub fn new(worker: u32) -> Self {
        Self { worker, is_here: worker == 0, keeps_limits: true }
    }

    /// The same where there are so many workers: if it is one of them, nobody else keeps the SA's limits.
    #[must_use]
    pub fn among(self, workers: usize) -> Self {
        let is_there = usize::try_from(self.worker).is_ok_and(|only| only < workers);
        Self { keeps_limits: self.is_here || !is_there, ..self }
    }

    /// The same, as the worker with this index is told of it.
    #[must_use]
    pub fn at(self, worker: usize) -> Self {
        let is_here = usize::try_from(self.worker).is_ok_and(|only| only == worker);
        Self { is_here, keeps_limits: is_here, ..self }
    }
}

/// The parameters of an SA towards the peer. The key is not part of them: engines hold it.
#[derive(Debug, Clone)]
pub struct OutboundParameters {
    /// What SAs of both directions have.
    pub sa: SaParameters,
    /// Where its sequence numbers come from.
    pub numbers: NumberSource,
    /// XORed into the sequence number to make the IV, so that two stores of numbers under one key do not give
    /// the same IVs.
    pub iv_mask: u64,
    /// The only worker that sends through it; `None` for all. Of ESP and AH alone: with VPE each worker has
    /// windows of its own already.
    pub worker: Option<SaWorker>,
}

/// The parameters of an SA from the peer. The key is not part of them: engines hold it.
#[derive(Debug, Clone)]
pub struct InboundParameters {
    /// What SAs of both directions have.
    pub sa: SaParameters,
    /// Packets that the replay window spans.
    pub replay_window: u32,
    /// Whether its packets may come from any port of the peer's, in UDP: then none says where the peer is. A
    /// peer that has an SA for each worker (RFC 9611) may send each from a port of its own, so that receivers
    /// can steer by ports, and receives at none of these.
    pub from_any_port: bool,
}

/// Where a packet is cut that is too long for the path in tunnel mode (RFC 4301 8.1, RFC 4303 3.3.4). In
/// transport mode it is always cut after it was sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Fragmentation {
    /// Before it is encrypted: IPv4 packets without DF are cut, the senders of others are told the MTU. The
    /// peer gets whole datagrams.
    #[default]
    Before,
    /// After: each packet is sealed as a whole, with DF or not, and its datagram is cut. Where DF is
    /// [copied](crate::Df::Copy), that of a packet with DF is not, and its sender is told the MTU.
    After,
}

/// The parameters of a tunnel: what all its SAs have in common.
#[derive(Debug, Clone)]
pub struct TunnelParameters {
    /// Name in configuration, tables and metrics.
    pub name: Arc<str>,
    /// The outer ends.
    pub endpoints: Endpoints,
    /// Follow the peer to the source of its newest authentic packet, once it has been silent for a second at
    /// its current address.
    pub learn_remote: bool,
    /// The interface of the protected side that its packets come from and leave by. That of its policies.
    pub interface: Interface,
    /// ESP, AH or VPE.
    pub protocol: IpsecProtocol,
    /// Tunnel or transport mode.
    pub mode: Mode,
    /// ESP and AH on one packet: the tunnel of AH in transport mode that covers this one's datagrams. Of ESP
    /// without UDP alone.
    pub covered_by: Option<TunnelIndex>,
    /// The tunnel of ESP whose datagrams this one, of AH in transport mode, covers. It has no policies then.
    pub covers: Option<TunnelIndex>,
    /// Outer DSCP.
    pub dscp: Dscp,
    /// What is done to packets and their headers.
    pub rules: PacketRules,
    /// The longest datagram that the path to the peer carries, outer headers included, in bytes.
    pub path_mtu: usize,
    /// Where packets are cut that are too long for it.
    pub fragmentation: Fragmentation,
    /// Whether the peer takes fragments that hide what the tunnel's policies ask for, because it remembers
    /// their first ones as we do (RFC 4301 7.3).
    pub non_first_fragments: bool,
    /// After this time without a packet, a NAT keepalive is sent; `None` for never.
    pub keepalive: Option<Duration>,
    /// Whether somebody makes its SAs when a packet asks for one ([`EventKind::Acquire`](crate::EventKind)):
    /// such packets wait for a while.
    pub acquires: bool,
    /// When an authentic packet last came from the peer's current address, to any worker that has the tunnel.
    /// Kept only where that address is learned.
    pub peer_heard: PeerHeard,
    /// The packets that may come through the tunnel: the selectors of the policies that name it, made for its
    /// mode and ends.
    pub selectors: SaSelectors,
}

impl TunnelParameters {
    /// The same tunnel for packets of these selectors.
    #[must_use]
    pub fn selecting(self, selectors: impl IntoIterator<Item = Selector>) -> Self {
        Self { selectors: SaSelectors::new(selectors, self.mode, &self.endpoints), ..self }
    }

    /// Packets that are sent in a second by a [clock](crate::PacketRules::clocked_packets_per_second); 0 if
    /// they are sent as they come.
    pub(crate) fn clock(&self) -> u16 {
        if self.hides_nothing() { 0 } else { self.rules.clocked_packets_per_second }
    }

    /// Dummies that are sent in a second beside its packets.
    pub(crate) fn dummies_beside(&self) -> u16 {
        if self.hides_nothing() { 0 } else { self.rules.dummy_packets_per_second }
    }

    /// Whether there is nothing that other packets could hide: those of AH are read by all.
    fn hides_nothing(&self) -> bool {
        self.protocol == IpsecProtocol::Ah || self.only_receives()
    }

    /// Whether its packets may wait: for an SA, or for a tick.
    pub(crate) fn packets_may_wait(&self) -> bool {
        self.acquires || self.clock() > 0
    }

    /// What its SAs from the peer check.
    pub(crate) fn inbound_selectors(&self) -> InboundSelectors {
        self.selectors.for_sas(self.mode, &self.endpoints)
    }

    /// The longest packet that crosses the path under these algorithms, whole or in fragments, whatever its
    /// sender says about cutting it, in bytes.
    pub(crate) fn inner_mtu(&self, suite: Suite) -> u16 {
        u16::try_from(self.shape(suite).inner_mtu(longest_datagram(self))).unwrap_or(0)
    }

    /// The longest packet that is sealed as a whole where its sender lets it be cut, in bytes: in transport
    /// mode any (RFC 4303 3.3.4).
    pub(crate) fn longest_whole(&self, suite: Suite) -> u16 {
        match (self.mode, self.fragmentation) {
            (Mode::Transport, _) => u16::MAX,
            (Mode::Tunnel, Fragmentation::Before) => self.inner_mtu(suite),
            (Mode::Tunnel, Fragmentation::After) => {
                u16::try_from(self.shape(suite).inner_mtu(longest_fragmented(self))).unwrap_or(0)
            }
        }
    }

    /// The longest packet whose datagram under these algorithms crosses the path uncut, in bytes.
    pub(crate) fn longest_uncut(&self, suite: Suite) -> u16 {
        u16::try_from(self.shape(suite).inner_mtu(self.path_mtu)).unwrap_or(u16::MAX)
    }

    /// The length that packets are padded to under these algorithms, in bytes: no padding is worth two
    /// datagrams in place of one. ESP in tunnel mode alone has it (RFC 4303 2.7).
    pub(crate) fn tfc_pad_to(&self, suite: Suite) -> u16 {
        match (self.protocol, self.mode) {
            (IpsecProtocol::Esp | IpsecProtocol::Vpe, Mode::Tunnel) => {
                self.rules.tfc_pad_to.min(self.longest_uncut(suite))
            }
            _ => 0,
        }
    }

    /// What the lengths of its datagrams under these algorithms depend on.
    #[must_use]
    pub fn shape(&self, suite: Suite) -> Shape {
        Shape {
            outer: Version::of(self.endpoints.local),
            encapsulation: self.endpoints.encapsulation,
            protocol: self.protocol,
            mode: self.mode,
            suite,
        }
    }
}
