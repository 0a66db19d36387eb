//! Two sites, their gateways, and a narrow link between two routers.

use super::config::{Config, pair};
use super::gateway::{Gateway, init};
use super::{Outcome, folder};
use std::path::PathBuf;
use testudo_lab::namespaces::{
    Entered, Namespace, NamespaceError, enter, enter_as_root, veth, veth_with_queues,
};

/// What the link between the routers carries at first, in bytes; all others carry 1,500.
pub const NARROW: usize = 1400;

/// Networks of the two sites, IPv4 and IPv6.
const SITES: [[&str; 2]; 2] = [["10.1.0.0/16", "10.2.0.0/16"], ["fd01::/64", "fd02::/64"]];
/// The outer addresses of the gateways.
pub const OUTER: [[&str; 2]; 2] = [["192.0.2.1", "198.51.100.1"], ["2001:db8:a::1", "2001:db8:b::1"]];
/// The routers' ends of the link between them.
const BETWEEN: [[&str; 2]; 2] = [["203.0.113.1", "2001:db8:c::1"], ["203.0.113.2", "2001:db8:c::2"]];
/// What the routers say that they are: the one at the left gateway.
pub const ROUTER: [&str; 2] = ["192.0.2.254", "2001:db8:a::254"];

/// ```text
///   left host ══ gateway A ══ router ══ 1400 bytes ══ router ══ gateway B ══ right host
/// ```
pub struct Network {
    pub left: Namespace,
    pub a: Namespace,
    /// At A and at B.
    pub routers: [Namespace; 2],
    pub b: Namespace,
    pub right: Namespace,
    folders: u32,
    /// Hosts of the right site that nobody has sent to yet.
    fresh_hosts: std::ops::Range<u8>,
}

/// Lays a cable between the gateways and what is beside them.
type Cable = fn((&Namespace, &str), (&Namespace, &str)) -> Result<(), NamespaceError>;

/// Addresses of an interface: IPv4 and IPv6.
fn address(host: &Namespace, interface: &str, addresses: [&str; 2]) -> Outcome<()> {
    host.address(interface, &format!("{}/24", addresses[0]))?;
    Ok(host.address(interface, &format!("{}/64", addresses[1]))?)
}

impl Network {
    pub fn build() -> Outcome<Self> {
        Self::build_in(enter()?, veth)
    }

    /// The same as root of all, with two queues at each end of the gateways' cables: for AF_XDP.
    pub fn build_for_xdp() -> Outcome<Self> {
        Self::build_in(enter_as_root()?, |a, b| veth_with_queues(a, b, 2))
    }

    fn build_in(inside: Entered, cable: Cable) -> Outcome<Self> {
        let host = |name| Namespace::new(inside, name);
        let network = Self {
            left: host("left")?,
            a: host("a")?,
            routers: [host("router-a")?, host("router-b")?],
            b: host("b")?,
            right: host("right")?,
            folders: 0,
            fresh_hosts: 10..70,
        };
        network.connect(cable)?;
        network.route()?;
        Ok(network)
    }

    fn connect(&self, cable: Cable) -> Outcome<()> {
        let Self { left, a, routers: [at_a, at_b], b, right, .. } = self;
        cable((left, "lan"), (a, "lan"))?;
        cable((a, "wan"), (at_a, "wan"))?;
        veth((at_a, "narrow"), (at_b, "narrow"))?;
        cable((at_b, "wan"), (b, "wan"))?;
        cable((b, "lan"), (right, "lan"))?;
        address(left, "lan", ["10.1.0.2", "fd01::2"])?;
        address(a, "lan", ["10.1.0.1", "fd01::1"])?;
        address(a, "wan", [OUTER[0][0], OUTER[1][0]])?;
        address(at_a, "wan", ROUTER)?;
        address(at_a, "narrow", BETWEEN[0])?;
        address(at_b, "narrow", BETWEEN[1])?;
        address(at_b, "wan", ["198.51.100.254", "2001:db8:b::254"])?;
        address(b, "wan", [OUTER[0][1], OUTER[1][1]])?;
        address(b, "lan", ["10.2.0.1", "fd02::1"])?;
        for number in self.fresh_hosts.clone() {
            address(right, "lan", [&format!("10.2.0.{number}"), &format!("fd02::{number}")])?;
        }
        for router in &self.routers {
            router.mtu("narrow", NARROW)?;
            // A router in a hurry may tell nobody; these tell everybody.
            router.sysctl("net.ipv4.icmp_ratelimit", "0")?;
            router.sysctl("net.ipv6.icmp.ratelimit", "0")?;
        }
        Ok(())
    }

    fn route(&self) -> Outcome<()> {
        let Self { left, a, routers: [at_a, at_b], b, right, .. } = self;
        for host in [a, at_a, at_b, b] {
            host.forward()?;
        }
        for (host, vias) in [
            (left, ["10.1.0.1", "fd01::1"]),
            (a, ROUTER),
            (at_a, BETWEEN[1]),
            (at_b, BETWEEN[0]),
            (b, ["198.51.100.254", "2001:db8:b::254"]),
            (right, ["10.2.0.1", "fd02::1"]),
        ] {
            for (everything, via) in ["0.0.0.0/0", "::/0"].into_iter().zip(vias) {
                host.route_via(everything, via)?;
            }
        }
        Ok(())
    }

    /// Sets what the link between the routers carries. Below 1,280 bytes an interface loses its IPv6 (RFC
    /// 8200 5), and the kernel its addresses and routes.
    pub fn narrow_to(&self, bytes: usize) -> Outcome<()> {
        for (at, router) in self.routers.iter().enumerate() {
            router.mtu("narrow", bytes)?;
            if bytes >= 1280 {
                let own = format!("{}/64", BETWEEN[at][1]);
                router.run(&["ip", "address", "replace", &own, "dev", "narrow", "nodad"])?;
                router.route_via("::/0", BETWEEN[1 - at][1])?;
            }
        }
        Ok(())
    }

    /// Addresses of a host of the right site to which the left one has no notes on the path.
    pub fn fresh_host(&mut self) -> Outcome<[String; 2]> {
        let number = self.fresh_hosts.next().ok_or("there are no more hosts")?;
        Ok([format!("10.2.0.{number}"), format!("fd02::{number}")])
    }

    /// Configurations of both gateways: all traffic between the sites, over IPv4 or IPv6, and further lines
    /// of the tunnel's.
    pub fn ends(over_ipv6: bool, udp: bool, more: &str) -> Outcome<[Config; 2]> {
        let mut ends = pair(udp)?;
        for (end, [local, remote]) in ends.iter_mut().zip([[0, 1], [1, 0]]) {
            let tunnel = &mut end.tunnels[0];
            let outer = OUTER[usize::from(over_ipv6)];
            (tunnel.local, tunnel.remote) = (outer[local].to_owned(), outer[remote].to_owned());
            let site = |networks: [&str; 2]| (networks[local].to_owned(), networks[remote].to_owned());
            tunnel.selectors = SITES.map(site).to_vec();
            tunnel.more = more.to_owned();
            end.addresses.clear();
        }
        Ok(ends)
    }

    /// Starts both gateways.
    pub fn start(&mut self, ends: &[Config; 2]) -> Outcome<[Gateway; 2]> {
        let [a, b] = ends;
        Ok([self.start_at(true, a)?, self.start_at(false, b)?])
    }

    /// Starts the left gateway alone.
    pub fn start_left(&mut self, end: &Config) -> Outcome<Gateway> {
        self.start_at(true, end)
    }

    /// A folder with this configuration, and a store.
    pub fn folder_of(&mut self, config: &Config) -> Outcome<PathBuf> {
        self.folders += 1;
        let folder = folder(&self.folders.to_string())?;
        config.write(&folder)?;
        init(&folder)?;
        Ok(folder)
    }

    fn start_at(&mut self, left: bool, config: &Config) -> Outcome<Gateway> {
        let folder = self.folder_of(config)?;
        Gateway::start(if left { &self.a } else { &self.b }, &folder)
    }
}
