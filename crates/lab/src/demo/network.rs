//! The hosts of the demonstration and their cables.

use std::net::IpAddr;

use super::DemoOptions;
use crate::capture::Eavesdropper;
use crate::error::{LabError, io};
use crate::gateway::Settings;
use crate::namespaces::{Entered, Namespace, veth};

/// The interface of both gateways towards the link.
pub(super) const LINK: &str = "wan";
const UDP_PORT: u16 = crate::gateway::UDP_PORT;

/// A host behind a gateway, and the gateway.
pub(super) struct Site {
    pub(super) host: Namespace,
    pub(super) gateway: Namespace,
    /// The host's address.
    pub(super) address: IpAddr,
    /// The gateway's address on the link.
    pub(super) outer: IpAddr,
    network: String,
}

/// Addresses of one site.
struct Plan {
    host: &'static str,
    gateway: &'static str,
    network: &'static str,
    outer: &'static str,
    /// Lengths of the prefixes of the site and of the link.
    lengths: (u8, u8),
}

const fn plan(ipv6: bool, is_a: bool) -> Plan {
    let (host, gateway, network, outer) = match (ipv6, is_a) {
        (false, true) => ("10.1.0.2", "10.1.0.1", "10.1.0.0/24", "192.0.2.1"),
        (false, false) => ("10.2.0.2", "10.2.0.1", "10.2.0.0/24", "192.0.2.2"),
        (true, true) => ("fd00:1::2", "fd00:1::1", "fd00:1::/64", "2001:db8::1"),
        (true, false) => ("fd00:2::2", "fd00:2::1", "fd00:2::/64", "2001:db8::2"),
    };
    Plan { host, gateway, network, outer, lengths: if ipv6 { (64, 64) } else { (24, 24) } }
}

fn parse(address: &str) -> Result<IpAddr, LabError> {
    let invalid = |_| io(format!("read the address {address}"))(std::io::ErrorKind::InvalidData.into());
    address.parse().map_err(invalid)
}

impl Site {
    fn build(inside: Entered, ipv6: bool, is_a: bool) -> Result<Self, LabError> {
        let (plan, letter) = (plan(ipv6, is_a), if is_a { "a" } else { "b" });
        let host = Namespace::new(inside, &format!("site-{letter}"))?;
        let gateway = Namespace::new(inside, &format!("gateway-{letter}"))?;
        veth((&host, "lan"), (&gateway, "lan"))?;
        host.address("lan", &format!("{}/{}", plan.host, plan.lengths.0))?;
        gateway.address("lan", &format!("{}/{}", plan.gateway, plan.lengths.0))?;
        host.route_via("default", plan.gateway)?;
        gateway.forward()?;
        let (address, outer) = (parse(plan.host)?, parse(plan.outer)?);
        Ok(Self { host, gateway, address, outer, network: plan.network.to_owned() })
    }
}

/// Both sites.
pub(super) struct Network {
    pub(super) a: Site,
    pub(super) b: Site,
}

impl Network {
    pub(super) fn build(inside: Entered, ipv6: bool) -> Result<Self, LabError> {
        let network = Self { a: Site::build(inside, ipv6, true)?, b: Site::build(inside, ipv6, false)? };
        veth((&network.a.gateway, LINK), (&network.b.gateway, LINK))?;
        for (site, is_a) in [(&network.a, true), (&network.b, false)] {
            let plan = plan(ipv6, is_a);
            site.gateway.address(LINK, &format!("{}/{}", plan.outer, plan.lengths.1))?;
        }
        Ok(network)
    }

    /// The configurations of both gateways.
    pub(super) fn settings(&self, options: &DemoOptions) -> [Settings; 2] {
        let end = |here: &Site, there: &Site, is_a| Settings {
            is_a,
            addresses: Vec::new(),
            local: here.outer,
            remote: there.outer,
            local_network: here.network.clone(),
            remote_network: there.network.clone(),
            suite: options.suite.clone(),
            encapsulation: options.encapsulation.clone(),
            engine: options.engine.clone(),
        };
        [end(&self.a, &self.b, true), end(&self.b, &self.a, false)]
    }

    /// What an eavesdropper on the link may expect.
    pub(super) fn eavesdropper(&self, options: &DemoOptions) -> Eavesdropper {
        Eavesdropper {
            gateways: [self.a.outer, self.b.outer],
            udp_port: (options.encapsulation == "esp-in-udp").then_some(UDP_PORT),
            inner: [self.a.address, self.b.address],
        }
    }
}
