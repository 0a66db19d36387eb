//! What the network between the gateways sees of a tunnel.

use super::model::{Configuration, Ike, Tunnel};
use std::collections::HashSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use testudo_ipsec::{Encapsulation, IpsecProtocol, VpeRules, VpeSourcePorts};
use testudo_wire::protocol;

/// What follows the IP header of a tunnel's outer datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OuterProtocol {
    /// ESP (RFC 4303), IP protocol 50.
    Esp,
    /// AH (RFC 4302), IP protocol 51, also where it covers ESP.
    Ah,
    /// VPE (`docs/VPE.md`), as an IP protocol of its own.
    Vpe {
        /// The protocol number, other than 50.
        number: u8,
    },
    /// ESP in UDP (RFC 3948), or VPE.
    Udp {
        /// Our port. A NAT may have changed the peer's.
        local_port: u16,
    },
    /// ESP in UDP (RFC 3948) on a port whose socket an IKE daemon has.
    UdpBeside {
        /// The daemon's port.
        local_port: u16,
    },
}

/// Where outer datagrams arrive, and are sent from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OuterEndpoint {
    /// Our address, or a multicast group that we are in.
    pub local: IpAddr,
    /// What they are.
    pub protocol: OuterProtocol,
}

impl fmt::Display for OuterEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.protocol {
            OuterProtocol::Esp => write!(f, "ESP at {}", self.local),
            OuterProtocol::Ah => write!(f, "AH at {}", self.local),
            OuterProtocol::Vpe { number } => write!(f, "VPE (IP protocol {number}) at {}", self.local),
            OuterProtocol::Udp { local_port } => {
                write!(f, "UDP port {}", SocketAddr::new(self.local, local_port))
            }
            OuterProtocol::UdpBeside { local_port } => {
                write!(f, "UDP port {} beside IKE", SocketAddr::new(self.local, local_port))
            }
        }
    }
}

impl Tunnel {
    /// What its outer datagrams are.
    #[must_use]
    pub fn outer_protocol(&self) -> OuterProtocol {
        if matches!(self.protocol, IpsecProtocol::Ah) || self.covered_by.is_some() {
            return OuterProtocol::Ah;
        }
        match (self.encapsulation, self.rules.vpe.as_deref()) {
            (Encapsulation::EspInUdp { local_port, .. }, _) => OuterProtocol::Udp { local_port },
            (Encapsulation::Esp, Some(&VpeRules { ip_protocol: number, .. })) if number != protocol::ESP => {
                OuterProtocol::Vpe { number }
            }
            // VPE with the number of ESP comes through the same socket.
            (Encapsulation::Esp, _) => OuterProtocol::Esp,
        }
    }

    /// Our end of it.
    #[must_use]
    pub fn outer_endpoint(&self) -> OuterEndpoint {
        OuterEndpoint { local: self.local, protocol: self.outer_protocol() }
    }

    /// Whether each window of VPE has a UDP source port of its own, which the tunnel's port is not.
    #[must_use]
    pub fn has_source_ports(&self) -> bool {
        self.rules.vpe.as_deref().is_some_and(|vpe| vpe.source_ports == VpeSourcePorts::PerWindow)
    }

    /// The end at which datagrams to its group arrive.
    fn group_endpoint(&self) -> Option<OuterEndpoint> {
        self.group().map(|local| OuterEndpoint { local, protocol: self.outer_protocol() })
    }
}

impl Ike {
    /// Where packets of negotiated SAs arrive: at any address of the host.
    fn outer_endpoints(&self) -> impl Iterator<Item = OuterEndpoint> + use<> {
        let beside = OuterProtocol::UdpBeside { local_port: self.udp_port };
        let any = [IpAddr::from([0; 4]), IpAddr::from([0_u8; 16])];
        let of = move |local| [OuterProtocol::Esp, OuterProtocol::Ah, beside].map(|p| (local, p));
        any.into_iter().flat_map(of).map(|(local, protocol)| OuterEndpoint { local, protocol })
    }
}

impl Configuration {
    /// Our ends of all tunnels, each once, in the order of the tunnels, without those that an end for all
    /// addresses covers.
    #[must_use]
    pub fn outer_endpoints(&self) -> Vec<OuterEndpoint> {
        let ends = |tunnel: &Tunnel| [Some(tunnel.outer_endpoint()), tunnel.group_endpoint()];
        let configured = self.tunnels.iter().flat_map(ends).flatten();
        let of_vpe =
            self.interfaces.iter().filter_map(|interface| interface.vpe.filter(|_| self.ike.is_some()));
        let of_vpe = of_vpe.flat_map(|vpe| vpe.outer_endpoints());
        let negotiated = self.ike.iter().flat_map(Ike::outer_endpoints).chain(of_vpe);
        covered_by_wildcards(configured.chain(negotiated).collect())
    }

    /// The groups that datagrams are received from, each with our address on its link.
    pub fn groups(&self) -> impl Iterator<Item = (IpAddr, IpAddr)> + '_ {
        self.tunnels.iter().filter_map(|tunnel| Some((tunnel.group()?, tunnel.local)))
    }

    /// Whether the gateway does without this end on a host without IPv6: it is there for peers yet to come,
    /// and no tunnel needs it.
    #[must_use]
    pub fn is_optional(&self, end: &OuterEndpoint) -> bool {
        let is_any_ipv6 = end.local.is_ipv6() && end.local.is_unspecified();
        is_any_ipv6 && self.tunnels.iter().all(|tunnel| !end.covers(&tunnel.outer_endpoint()))
    }
}

impl OuterEndpoint {
    /// Whether its socket receives all that arrives at the other end, too. Packets would come twice, and look
    /// like replays, if both were open; the UDP socket of IKE's port would also take what is the daemon's.
    fn covers(&self, other: &Self) -> bool {
        let is_any = self.local.is_unspecified() && self.local.is_ipv4() == other.local.is_ipv4();
        let is_beside = match (self.protocol, other.protocol) {
            (OuterProtocol::UdpBeside { local_port }, OuterProtocol::Udp { local_port: other }) => {
                local_port == other
            }
            _ => false,
        };
        (is_any || self.local == other.local) && (is_beside || self.protocol == other.protocol)
    }
}

/// Ends, each once and in their order, without those that another one covers: the one for all addresses of an
/// IP version covers those of single addresses.
#[must_use]
pub fn covered_by_wildcards(ends: Vec<OuterEndpoint>) -> Vec<OuterEndpoint> {
    // Few are for all addresses, however many tunnels there are; beside IKE there are few, too.
    let is_wide = |end: &&OuterEndpoint| {
        end.local.is_unspecified() || matches!(end.protocol, OuterProtocol::UdpBeside { .. })
    };
    let wide: HashSet<OuterEndpoint> = ends.iter().filter(is_wide).copied().collect();
    let mut seen = HashSet::new();
    let is_uncovered = |end: &OuterEndpoint| !wide.iter().any(|other| other != end && other.covers(end));
    ends.into_iter().filter(|end| is_uncovered(end) && seen.insert(*end)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::MINIMAL;

    #[test]
    fn ends_are_listed_once_and_named_as_an_operator_knows_them() {
        let mut configuration = Configuration::parse(MINIMAL, "t.toml").unwrap();
        let tunnel = configuration.tunnels[0].clone();
        let encapsulation = Encapsulation::EspInUdp { local_port: 4501, remote_port: 4500 };
        let udp = Tunnel { encapsulation, local: "2001:db8::1".parse().unwrap(), ..tunnel.clone() };
        configuration.tunnels = vec![udp.clone(), tunnel.clone(), udp, tunnel];
        let ends: Vec<_> = configuration.outer_endpoints().iter().map(ToString::to_string).collect();
        assert_eq!(ends, ["UDP port [2001:db8::1]:4501", "ESP at 192.0.2.1"]);
        let ah = OuterEndpoint { local: "192.0.2.7".parse().unwrap(), protocol: OuterProtocol::Ah };
        assert_eq!(ah.to_string(), "AH at 192.0.2.7");
        let beside = OuterEndpoint { protocol: OuterProtocol::UdpBeside { local_port: 4500 }, ..ah };
        assert_eq!(beside.to_string(), "UDP port 192.0.2.7:4500 beside IKE");
    }

    fn end(local: &str, protocol: OuterProtocol) -> OuterEndpoint {
        OuterEndpoint { local: local.parse().unwrap(), protocol }
    }

    #[test]
    fn an_end_for_all_addresses_stands_for_the_others_of_its_version_and_protocol() {
        use OuterProtocol::{Ah, Esp, Udp, UdpBeside};
        let (udp, beside) = (Udp { local_port: 4500 }, UdpBeside { local_port: 4500 });
        let other_udp = Udp { local_port: 4501 };
        let all = vec![
            end("192.0.2.1", Esp),
            end("192.0.2.1", udp),
            end("192.0.2.1", other_udp),
            end("192.0.2.1", Ah),
            end("2001:db8::1", Esp),
            end("2001:db8::1", udp),
            end("192.0.2.2", Esp),
        ];
        assert_eq!(covered_by_wildcards(all.clone()), all, "nothing is for all addresses");
        let with = |wide: &[OuterEndpoint]| covered_by_wildcards([&all[..], wide, wide].concat());
        let esp = end("0.0.0.0", Esp);
        assert_eq!(with(&[esp]), [all[1], all[2], all[3], all[4], all[5], esp]);
        // Beside IKE, its port covers that of a UDP socket, which is the daemon's.
        let [v4, v6] = [end("0.0.0.0", beside), end("::", beside)];
        assert_eq!(with(&[v4]), [all[0], all[2], all[3], all[4], all[5], all[6], v4]);
        assert_eq!(with(&[v4, v6]), [all[0], all[2], all[3], all[4], all[6], v4, v6]);
        let at_one = end("192.0.2.1", beside);
        assert_eq!(with(&[at_one]), [all[0], all[2], all[3], all[4], all[5], all[6], at_one]);
        assert_eq!(with(&[at_one, v4, end("0.0.0.0", udp)])[6..], [v4], "one for all stands for both");
    }

    #[test]
    fn an_end_for_all_addresses_of_ipv6_is_optional_unless_a_tunnel_needs_it() {
        let mut configuration = Configuration::parse(MINIMAL, "t.toml").unwrap();
        let [v4, v6] = ["0.0.0.0", "::"].map(|local| end(local, OuterProtocol::Esp));
        let optional = |c: &Configuration, local| c.is_optional(&end(local, OuterProtocol::Esp));
        assert!(configuration.is_optional(&v6) && !configuration.is_optional(&v4));
        assert!(!optional(&configuration, "2001:db8::1") && !optional(&configuration, "192.0.2.1"));
        configuration.tunnels[0].local = "2001:db8::1".parse().unwrap();
        assert!(!configuration.is_optional(&v6));
        assert!(configuration.is_optional(&end("::", OuterProtocol::Ah)));
    }
}
