//! What joins SAs and policies of XFRM: the values that a policy's template has, and the SAs that serve it.

use super::super::xfrm::{SaKey, XfrmSa};
use crate::config::{Remote, SaSettings, Tunnel};
use crate::keys::KeySource;
use std::fmt;
use std::net::IpAddr;
use testudo_crypto::Suite;
use testudo_ipsec::{
    AddressRange, DEFAULT_PEER_WINDOW, Df, Dscp, Encapsulation, Endpoints, Fragmentation, IpsecProtocol,
    Lifetime, Limits, Mode, PacketRules, Selector,
};
use testudo_packet::Interface;
use testudo_wire::netlink::ack::Refusal;
use testudo_wire::netlink::errno::Errno;
use testudo_wire::protocol;
use testudo_wire::vpe::VPE_PROTOCOL;
use testudo_wire::xfrm::address::Address;
use testudo_wire::xfrm::lifetime::{LifetimeConfig, UNLIMITED};
use testudo_wire::xfrm::policy::Template;
use testudo_wire::xfrm::{mode, sa_extra_flag, sa_flag};

/// The values that the template of a policy and its SAs share, seen from here: a template of packets that
/// arrive has its ends exchanged. The SAs of one make a tunnel of the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TemplateKey {
    /// Our address; unspecified where a packet's own is taken.
    pub local: IpAddr,
    /// The peer's; unspecified where a packet's own is taken.
    pub remote: IpAddr,
    /// ESP or AH.
    pub protocol: IpsecProtocol,
    /// Tunnel or transport mode.
    pub mode: Mode,
    /// The number by which a daemon joins them.
    pub reqid: u32,
    /// The interface that they belong to; 0 is none.
    pub if_id: u32,
}

impl fmt::Display for TemplateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match self.protocol {
            IpsecProtocol::Esp => "ESP",
            IpsecProtocol::Ah => "AH",
            IpsecProtocol::Vpe => "VPE",
        };
        write!(f, "{protocol} between {} and {}, reqid {}", self.local, self.remote, self.reqid)
    }
}

pub(super) fn unsupported(text: impl Into<String>) -> Refusal {
    Refusal::new(Errno::OPNOTSUPP, text)
}

pub(super) fn invalid(text: impl Into<String>) -> Refusal {
    Refusal::new(Errno::INVAL, text)
}

fn protocol_of(number: u8) -> Result<IpsecProtocol, Refusal> {
    match number {
        protocol::ESP => Ok(IpsecProtocol::Esp),
        protocol::AH => Ok(IpsecProtocol::Ah),
        other => Err(invalid(format!("{other} is no IPsec protocol: ESP is 50, AH is 51"))),
    }
}

fn mode_of(number: u8) -> Result<Mode, Refusal> {
    match number {
        mode::TRANSPORT => Ok(Mode::Transport),
        mode::TUNNEL => Ok(Mode::Tunnel),
        other => Err(unsupported(format!("mode {other} is not done: tunnel and transport mode are"))),
    }
}

fn address(address: Address, family: u16, what: &str) -> Result<IpAddr, Refusal> {
    address.ip(family).ok_or_else(|| invalid(format!("{what}: {family} is no family of IP")))
}

impl TemplateKey {
    /// The key of a template of a policy for these packets, which arrive or leave.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for what the gateway does not do.
    pub fn of_template(
        template: &Template,
        packets: &Selector,
        is_outbound: bool,
        if_id: u32,
    ) -> Result<Self, Refusal> {
        let source = address(template.source, template.family, "source of the template")?;
        let destination = address(template.id.destination, template.family, "destination of the template")?;
        if template.optional != 0 {
            return Err(unsupported(
                "a template that is optional (level use) lets packets pass in clear where there is no SA: leave \
                 it out, or require it",
            ));
        }
        let (mut local, mut remote) = if is_outbound { (source, destination) } else { (destination, source) };
        let (protocol, mode) = (protocol_of(template.id.protocol)?, mode_of(template.mode)?);
        if mode == Mode::Transport {
            // As the kernel: the packet's own addresses.
            let host = |range: AddressRange| range.ends().filter(|(a, b)| a == b).map(|(host, _)| host);
            let own =
                |end: IpAddr, range| if end.is_unspecified() { host(range).unwrap_or(end) } else { end };
            (local, remote) = (own(local, packets.local), own(remote, packets.remote));
        }
        Ok(Self { local, remote, protocol, mode, reqid: template.reqid, if_id })
    }

    /// The key of an SA.
    ///
    /// # Errors
    /// `EINVAL`, `EOPNOTSUPP` for what the gateway does not do.
    pub fn of_sa(sa: &XfrmSa) -> Result<Self, Refusal> {
        let (destination, source) = (sa.key.destination, sa.source);
        let (local, remote) = if sa.is_inbound { (destination, source) } else { (source, destination) };
        let (protocol, mode) = (protocol_of(sa.key.protocol)?, mode_of(sa.info.mode)?);
        Ok(Self { local, remote, protocol, mode, reqid: sa.info.reqid, if_id: sa.if_id() })
    }

    /// The name of the SA with this SPI that serves it.
    pub(super) fn sa(&self, spi: u32, is_outbound: bool, mark: (u32, u32)) -> SaKey {
        let protocol = match self.protocol {
            IpsecProtocol::Esp => protocol::ESP,
            IpsecProtocol::Ah => protocol::AH,
            // No daemon negotiates it.
            IpsecProtocol::Vpe => VPE_PROTOCOL,
        };
        SaKey { destination: if is_outbound { self.remote } else { self.local }, protocol, spi, mark }
    }

    /// The outer ends of its tunnel, encapsulated so.
    pub(super) fn endpoints(&self, encapsulation: Encapsulation) -> Endpoints {
        let remote = (!self.remote.is_unspecified()).then_some(self.remote);
        Endpoints { local: self.local, remote, encapsulation }
    }

    /// The tunnel that carries its SAs at an interface, as a configuration would have it. `sa` is its first
    /// SA, if there is one already.
    pub(super) fn tunnel(&self, number: u64, interface: Interface, sa: Option<&XfrmSa>) -> Tunnel {
        let nowhere = || SaSettings { spi: 0, key: KeySource::Exchanged };
        let (dscp, rules) = rules_of(sa);
        Tunnel {
            name: format!("ike:{number}"),
            local: self.local,
            remote: if self.remote.is_unspecified() { Remote::Any } else { Remote::Address(self.remote) },
            interface,
            protocol: self.protocol,
            mode: self.mode,
            covered_by: None,
            covers: None,
            // Each SA has its own.
            suite: sa.and_then(|sa| sa.suite).unwrap_or(Suite::AES128GCM16),
            encapsulation: sa.map_or(Encapsulation::Esp, encapsulation_of),
            // The daemon sends keepalives (RFC 3948 4).
            keepalive: None,
            esn: false,
            replay_window: 0,
            peer_window: DEFAULT_PEER_WINDOW,
            dscp,
            rules,
            fragmentation: Fragmentation::Before,
            non_first_fragments: false,
            selectors: Vec::new(),
            outbound: nowhere(),
            inbound: nowhere(),
            worker_sas: Vec::new(),
            limits: None,
            known_answer: None,
        }
    }
}

/// Whether an SA from the peer, in UDP, leaves its port open: packets may come from any. strongSwan says so
/// of all SAs of single processors, since each may have a port of its own.
pub(super) fn is_from_any_port(sa: &XfrmSa) -> bool {
    sa.is_inbound && sa.attributes.encapsulation().is_some_and(|udp| udp.source_port == 0)
}

/// How an SA is carried, seen from here. Where it leaves the peer's port open, that is taken to be ours.
pub(super) fn encapsulation_of(sa: &XfrmSa) -> Encapsulation {
    match sa.attributes.encapsulation() {
        None => Encapsulation::Esp,
        Some(udp) => {
            let (local_port, remote_port) = match sa.is_inbound {
                true if is_from_any_port(sa) => (udp.destination_port, udp.destination_port),
                true => (udp.destination_port, udp.source_port),
                false => (udp.source_port, udp.destination_port),
            };
            Encapsulation::EspInUdp { local_port, remote_port }
        }
    }
}

/// What an SA says of outer headers.
fn rules_of(sa: Option<&XfrmSa>) -> (Dscp, PacketRules) {
    let Some(sa) = sa else { return (Dscp::default(), PacketRules::default()) };
    let extra = sa.attributes.extra_flags().copied().unwrap_or(0);
    let dscp = if extra & sa_extra_flag::DONT_ENCAP_DSCP != 0 { Dscp::Fixed(0) } else { Dscp::default() };
    let df = if sa.info.flags & sa_flag::NO_PMTU_DISCOVERY != 0 { Df::Clear } else { Df::default() };
    let padding = sa.attributes.tfc_padding().copied().unwrap_or(0);
    let tfc_pad_to = u16::try_from(padding).unwrap_or(u16::MAX);
    (dscp, PacketRules { df, tfc_pad_to, ..PacketRules::default() })
}

/// Limits as the data path has them. Seconds since the first use count from the SA's beginning: it may end
/// earlier than under the kernel, and never later.
pub(super) fn lifetime_of(limits: &LifetimeConfig) -> Lifetime {
    let amount = |amount: u64| (amount != UNLIMITED).then_some(amount);
    let time = |added: u64, used: u64| {
        let limited = [added, used].into_iter().filter(|seconds| *seconds != 0);
        limited.min().map(std::time::Duration::from_secs)
    };
    Lifetime {
        soft: Limits {
            bytes: amount(limits.soft_bytes),
            packets: amount(limits.soft_packets),
            time: time(limits.soft_added_s, limits.soft_used_s),
        },
        hard: Limits {
            bytes: amount(limits.hard_bytes),
            packets: amount(limits.hard_packets),
            time: time(limits.hard_added_s, limits.hard_used_s),
        },
    }
}
