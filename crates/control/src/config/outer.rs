//! What the network between the gateways sees of a tunnel.

use super::model::{Configuration, Tunnel};
use std::collections::HashSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use testudo_ipsec::{Encapsulation, IpsecProtocol};

/// What follows the IP header of a tunnel's outer datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OuterProtocol {
    /// ESP (RFC 4303), IP protocol 50.
    Esp,
    /// AH (RFC 4302), IP protocol 51, also where it covers ESP.
    Ah,
    /// ESP in UDP (RFC 3948).
    Udp {
        /// Our port. A NAT may have changed the peer's.
        local_port: u16,
    },
}

/// Where outer datagrams arrive, and are sent from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OuterEndpoint {
    /// Our address.
    pub local: IpAddr,
    /// What they are.
    pub protocol: OuterProtocol,
}

impl fmt::Display for OuterEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.protocol {
            OuterProtocol::Esp => write!(f, "ESP at {}", self.local),
            OuterProtocol::Ah => write!(f, "AH at {}", self.local),
            OuterProtocol::Udp { local_port } => {
                write!(f, "UDP port {}", SocketAddr::new(self.local, local_port))
            }
        }
    }
}

impl Tunnel {
    /// What its outer datagrams are.
    #[must_use]
    pub const fn outer_protocol(&self) -> OuterProtocol {
        if matches!(self.protocol, IpsecProtocol::Ah) || self.covered_by.is_some() {
            return OuterProtocol::Ah;
        }
        match self.encapsulation {
            Encapsulation::Esp => OuterProtocol::Esp,
            Encapsulation::EspInUdp { local_port, .. } => OuterProtocol::Udp { local_port },
        }
    }

    /// Our end of it.
    #[must_use]
    pub const fn outer_endpoint(&self) -> OuterEndpoint {
        OuterEndpoint { local: self.local, protocol: self.outer_protocol() }
    }
}

impl Configuration {
    /// Our ends of all tunnels, each once, in the order of the tunnels.
    #[must_use]
    pub fn outer_endpoints(&self) -> Vec<OuterEndpoint> {
        let mut seen = HashSet::new();
        self.tunnels.iter().map(Tunnel::outer_endpoint).filter(|end| seen.insert(*end)).collect()
    }
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
    }
}
