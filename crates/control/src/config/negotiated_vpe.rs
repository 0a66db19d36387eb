//! `encapsulation` of an `[[interface]]`: what an IKE daemon negotiates there as ESP runs as VPE
//! (`docs/VPE.md`).

use super::checks::Facts;
use super::outer::{OuterEndpoint, OuterProtocol};
use super::packet_rules::{Rates, read_rates};
use super::tunnel::read_keepalive;
use super::value;
use super::vpe::{self, Carried};
use super::walk::{Problem, Section, Walker};
use std::net::IpAddr;
use std::time::Duration;
use testudo_ipsec::{Encapsulation, VpeRules};
use testudo_wire::protocol;

/// How what is negotiated for an interface runs as VPE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NegotiatedVpe {
    /// In UDP always, and not only where a NAT was found.
    pub is_always_in_udp: bool,
    /// The port of both ends in UDP.
    pub udp_port: u16,
    /// Silence after which a keepalive is sent in UDP; `None` for never.
    pub keepalive: Option<Duration>,
    /// Protocol number and windows.
    pub rules: VpeRules,
    /// Fill packets that are sent; 0 for none.
    pub fill_packets_per_second: u16,
    /// Packets that each worker that encrypts sends by a clock; 0 for packets as they come.
    pub clocked_packets_per_second: u16,
}

impl NegotiatedVpe {
    /// How packets are carried, where the daemon may have found a NAT.
    #[must_use]
    pub fn carried(&self, has_nat: bool) -> Encapsulation {
        match has_nat || self.is_always_in_udp {
            true => Encapsulation::EspInUdp { local_port: self.udp_port, remote_port: self.udp_port },
            false => Encapsulation::Esp,
        }
    }

    /// Where they arrive: at any address of the host.
    pub fn outer_endpoints(&self) -> impl Iterator<Item = OuterEndpoint> + use<> {
        let number = OuterProtocol::Vpe { number: self.rules.ip_protocol };
        let number = (!self.is_always_in_udp).then_some(number);
        let protocols = [Some(OuterProtocol::Udp { local_port: self.udp_port }), number];
        let any = [IpAddr::from([0; 4]), IpAddr::from([0_u8; 16])];
        let of = move |local| {
            protocols.into_iter().flatten().map(move |protocol| OuterEndpoint { local, protocol })
        };
        any.into_iter().flat_map(of)
    }
}

/// Reads it; `None` where ESP stays ESP.
pub(super) fn read_negotiated(
    section: &mut Section<'_>,
    walker: &mut Walker<'_>,
    has_if_id: bool,
    facts: &mut Facts,
) -> Option<NegotiatedVpe> {
    let words = [("esp", None), ("vpe", Some(Carried::ByNumber)), ("vpe-in-udp", Some(Carried::InUdp))];
    let carried = section.optional(walker, "encapsulation", value::choice(&words)).flatten();
    let Some(carried) = carried else {
        vpe::refuse_keys(section, walker);
        return None;
    };
    if !has_if_id {
        let problem = Problem::expected("`encapsulation` only with `if_id`");
        let help = "a daemon says by it which connections are meant: give the interface one";
        section.refuse(walker, "encapsulation", problem.help(help));
    }
    vpe::refuse_source_ports(section, walker);
    let (port, udp_port) = vpe::read_port(section, walker);
    let keepalive = read_keepalive(section, walker);
    let rules = vpe::read_rules(section, walker, carried, (None, port), facts);
    if rules.ip_protocol == protocol::ESP {
        let problem = Problem::expected("another number than 50, where ESP is served");
        section.refuse(walker, "ip_protocol", problem.help("daemons negotiate ESP at any address: use 253"));
    }
    let Rates { dummies, clocked } = read_rates(section, walker);
    Some(NegotiatedVpe {
        is_always_in_udp: carried == Carried::InUdp,
        udp_port,
        keepalive,
        rules,
        fill_packets_per_second: dummies,
        clocked_packets_per_second: clocked,
    })
}
