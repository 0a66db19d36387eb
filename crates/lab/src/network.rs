//! Two sites, their gateways, and the link between them.
//!
//! ```text
//!   site A ══ gateway A ─── unprotected link ─── gateway B ══ site B
//!   10.1.0.2             192.0.2.1     192.0.2.2             10.2.0.2
//! ```

use std::net::IpAddr;
use std::path::Path;

use crate::bench::threads;
use crate::error::{LabError, io};
use crate::gateway::{Gateway, Keys, Settings, write_for_daemon};
use crate::namespaces::{Entered, Namespace, NamespaceError, veth, veth_with_queues};
use crate::protection::Protection;

/// The interface of both gateways on the link.
pub(crate) const LINK: &str = "wan";
/// The interface of both gateways towards their sites.
pub(crate) const SITE: &str = "lan";
/// MTU of Ethernet without jumbo frames, in bytes of an IP packet.
pub(crate) const ETHERNET_MTU: u16 = 1500;
/// Queues of the interfaces of fast ports: more than one, as NICs have.
const FAST_QUEUES: u32 = 2;

/// What the gateways' packets come and go by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PortKind {
    /// TUN interfaces and sockets: without privileges
    #[default]
    Tun,
    /// AF_XDP at both sides, native mode: needs root
    Xdp,
    /// DPDK at both sides, its driver of TAP: needs libdpdk-dev and the plugin
    Dpdk,
    /// DPDK at both sides, its driver of AF_XDP at the cables themselves: these carry longer frames than its
    /// TAP. Super-frames of a host do not get in.
    #[value(skip)]
    #[serde(rename = "dpdk")]
    DpdkOnCables,
}

impl PortKind {
    /// Whether the gateways' kernels have the addresses of their interfaces. Those of DPDK's ports are the
    /// gateways' alone: a kernel would answer for them as well.
    const fn has_kernel_addresses(self) -> bool {
        !matches!(self, Self::Dpdk | Self::DpdkOnCables)
    }
}

/// A host behind a gateway, and the gateway.
pub(crate) struct Site {
    pub(crate) host: Namespace,
    pub(crate) gateway: Namespace,
    /// The host's address.
    pub(crate) address: IpAddr,
    /// The gateway's address on the link.
    pub(crate) outer: IpAddr,
    /// The protected network.
    pub(crate) network: String,
    /// Its parts that have tunnels of their own: usually the whole.
    pub(crate) parts: Vec<String>,
    /// The gateway's addresses at the site and on the link, with their prefix lengths.
    ends: [String; 2],
}

impl Site {
    /// The host that sends and receives here, and its address: in transport mode the gateway itself.
    pub(crate) fn end(&self, in_transport: bool) -> (&Namespace, IpAddr) {
        if in_transport { (&self.gateway, self.outer) } else { (&self.host, self.address) }
    }
}

/// The tunnel between the two gateways.
pub(crate) struct Tunnel<'a> {
    pub(crate) protection: &'a Protection,
    pub(crate) port: PortKind,
    pub(crate) engine: Option<&'a str>,
    pub(crate) workers: u8,
    /// Of the link: what its interfaces have.
    pub(crate) mtu: u16,
    /// The processors of each gateway; `None` leaves it to the system.
    pub(crate) processors: Option<[&'a [usize]; 2]>,
}

/// Addresses of one site.
pub(crate) struct Plan {
    host: &'static str,
    gateway: &'static str,
    network: &'static str,
    outer: &'static str,
    /// Prefix lengths at the site and on the link.
    lengths: (u8, u8),
}

impl Plan {
    pub(crate) const fn of(ipv6: bool, is_a: bool) -> Self {
        let (host, gateway, network, outer) = match (ipv6, is_a) {
            (false, true) => ("10.1.0.2", "10.1.0.1", "10.1.0.0", "192.0.2.1"),
            (false, false) => ("10.2.0.2", "10.2.0.1", "10.2.0.0", "192.0.2.2"),
            (true, true) => ("fd00:1::2", "fd00:1::1", "fd00:1::", "2001:db8::1"),
            (true, false) => ("fd00:2::2", "fd00:2::1", "fd00:2::", "2001:db8::2"),
        };
        Self { host, gateway, network, outer, lengths: if ipv6 { (64, 64) } else { (24, 24) } }
    }

    /// The host's address.
    pub(crate) fn host(&self) -> Result<IpAddr, LabError> {
        parse(self.host)
    }

    /// The gateway's address on the link.
    pub(crate) fn outer(&self) -> Result<IpAddr, LabError> {
        parse(self.outer)
    }

    /// An address on the link that is no gateway's.
    fn attacker(&self) -> &'static str {
        if self.outer.contains(':') { "2001:db8::3" } else { "192.0.2.3" }
    }

    /// The gateway's addresses at the site and on the link, with their prefix lengths.
    fn ends(&self) -> [String; 2] {
        [format!("{}/{}", self.gateway, self.lengths.0), format!("{}/{}", self.outer, self.lengths.1)]
    }

    /// The protected network: address and prefix length.
    pub(crate) fn network(&self) -> Result<(IpAddr, u8), LabError> {
        Ok((parse(self.network)?, self.lengths.0))
    }
}

fn parse(address: &str) -> Result<IpAddr, LabError> {
    let invalid = |_| io(format!("read the address {address}"))(std::io::ErrorKind::InvalidData.into());
    address.parse().map_err(invalid)
}

impl Site {
    fn build(inside: Entered, ipv6: bool, is_a: bool, port: PortKind) -> Result<Self, LabError> {
        let (plan, letter) = (Plan::of(ipv6, is_a), if is_a { "a" } else { "b" });
        let host = Namespace::new(inside, &format!("site-{letter}"))?;
        let gateway = Namespace::new(inside, &format!("gateway-{letter}"))?;
        cable(port, (&host, SITE), (&gateway, SITE))?;
        host.address(SITE, &format!("{}/{}", plan.host, plan.lengths.0))?;
        if port.has_kernel_addresses() {
            gateway.address(SITE, &format!("{}/{}", plan.gateway, plan.lengths.0))?;
            gateway.forward()?;
        }
        host.route_via("default", plan.gateway)?;
        let (address, outer) = (plan.host()?, plan.outer()?);
        let network = format!("{}/{}", plan.network, plan.lengths.0);
        let ends = plan.ends();
        let parts = vec![network.clone()];
        Ok(Self { host, gateway, address, outer, network, parts, ends })
    }
}

/// A cable as ports of this kind need it.
fn cable(port: PortKind, a: (&Namespace, &str), b: (&Namespace, &str)) -> Result<(), NamespaceError> {
    match port {
        PortKind::Tun | PortKind::Dpdk | PortKind::DpdkOnCables => veth(a, b),
        PortKind::Xdp => veth_with_queues(a, b, FAST_QUEUES),
    }
}

/// The TAP interfaces of a gateway's DPDK, towards its site and the link, and the MAC addresses of the
/// kernel's ends: DPDK's own are the same otherwise, which a switch would take for itself.
pub(crate) const TAPS: [(&str, &str, &str); 2] =
    [("dtap0", SITE, "02:00:00:00:0d:00"), ("dtap1", LINK, "02:00:00:00:0d:01")];

/// Joins a gateway's TAP interfaces, which are there once it runs, to its cables.
fn join_taps(gateway: &Namespace) -> Result<(), NamespaceError> {
    for (tap, cable, mac) in TAPS {
        gateway.run(&["ip", "link", "set", tap, "address", mac])?;
        gateway.bridge(&format!("to-{cable}"), &[tap, cable])?;
        gateway.link_up(tap)?;
    }
    Ok(())
}

/// Both sites.
pub(crate) struct Network {
    pub(crate) a: Site,
    pub(crate) b: Site,
    /// A switch in the middle of the link, where frames can be heard that no kernel of a gateway sees.
    switch: Option<Namespace>,
    port: PortKind,
}

/// The switch's interfaces.
const SWITCH: &str = "switch";
const TO_GATEWAYS: [&str; 2] = ["to-a", "to-b"];

impl Network {
    pub(crate) fn build(inside: Entered, ipv6: bool, port: PortKind) -> Result<Self, LabError> {
        let site = |is_a| Site::build(inside, ipv6, is_a, port);
        let mut network = Self { a: site(true)?, b: site(false)?, switch: None, port };
        let (a, b) = ((&network.a.gateway, LINK), (&network.b.gateway, LINK));
        match port {
            PortKind::Tun => veth(a, b)?,
            PortKind::Xdp | PortKind::Dpdk | PortKind::DpdkOnCables => {
                let switch = Namespace::new(inside, "link")?;
                for (gateway, end) in [a, b].into_iter().zip(TO_GATEWAYS) {
                    cable(port, gateway, (&switch, end))?;
                }
                switch.bridge(SWITCH, &TO_GATEWAYS)?;
                if !port.has_kernel_addresses() {
                    let plan = Plan::of(ipv6, true);
                    switch.address(SWITCH, &format!("{}/{}", plan.attacker(), plan.lengths.1))?;
                }
                network.switch = Some(switch);
            }
        }
        for (site, is_a) in [(&network.a, true), (&network.b, false)] {
            let plan = Plan::of(ipv6, is_a);
            if port.has_kernel_addresses() {
                site.gateway.address(LINK, &format!("{}/{}", plan.outer, plan.lengths.1))?;
            }
        }
        Ok(network)
    }

    /// Where the link can be recorded.
    pub(crate) fn tap(&self) -> (&Namespace, &'static str) {
        self.switch.as_ref().map_or((&self.a.gateway, LINK), |switch| (switch, TO_GATEWAYS[0]))
    }

    /// From where an attacker reaches the gateways: a kernel with an address on the link.
    pub(crate) fn attacker(&self) -> (&Namespace, &'static str) {
        match &self.switch {
            Some(switch) if !self.port.has_kernel_addresses() => (switch, SWITCH),
            _ => (&self.a.gateway, LINK),
        }
    }

    /// The interfaces of all cables: of the hosts, the gateways towards them, and the gateways on the link.
    pub(crate) fn interfaces(&self) -> [(&Namespace, &'static str); 6] {
        fn of(site: &Site) -> [(&Namespace, &'static str); 3] {
            [(&site.host, SITE), (&site.gateway, SITE), (&site.gateway, LINK)]
        }
        let ([host_a, site_a, link_a], [host_b, site_b, link_b]) = (of(&self.a), of(&self.b));
        [host_a, site_a, link_a, link_b, site_b, host_b]
    }

    /// Gives all cables this MTU, in bytes of an IP packet, and the switch in the middle, if there is one.
    pub(crate) fn set_mtu(&self, mtu: u16) -> Result<(), LabError> {
        for (namespace, interface) in self.interfaces() {
            namespace.mtu(interface, mtu.into())?;
        }
        if let Some(switch) = &self.switch {
            for interface in TO_GATEWAYS {
                switch.mtu(interface, mtu.into())?;
            }
        }
        Ok(())
    }

    /// Joins the sites over the link without a tunnel, as routers would.
    pub(crate) fn join_in_clear(&self) -> Result<(), LabError> {
        for (here, there) in [(&self.a, &self.b), (&self.b, &self.a)] {
            here.gateway.route_via(&there.network, &there.outer.to_string())?;
        }
        Ok(())
    }

    /// Starts a build of the program at each gateway, with a tunnel of fresh keys between each two parts of
    /// their networks; configurations and logs are in `folder`.
    pub(crate) fn start_gateways(
        &self,
        tunnel: &Tunnel,
        program: &Path,
        folder: &Path,
    ) -> Result<[Gateway; 2], LabError> {
        let tunnels = self.a.parts.len() * self.b.parts.len();
        let keys: Vec<_> = (0..tunnels).map(|_| Keys::random(tunnel.protection)).collect::<Result<_, _>>()?;
        self.start_both(program, folder, tunnel.processors, |here, there, is_a, folder| {
            settings(here, there, is_a, tunnel).write(&keys, folder)
        })
    }

    /// The same with gateways whose keys an IKE daemon at each is to negotiate.
    pub(crate) fn start_gateways_for_daemons(
        &self,
        tunnel: &Tunnel,
        program: &Path,
        folder: &Path,
    ) -> Result<[Gateway; 2], LabError> {
        self.start_both(program, folder, None, |_, _, _, folder| {
            write_for_daemon(tunnel.protection, tunnel.engine, folder)
        })
    }

    /// Starts both gateways, whose files `write` makes: of this site towards the other, which is A or not, in
    /// a folder.
    fn start_both(
        &self,
        program: &Path,
        folder: &Path,
        processors: Option<[&[usize]; 2]>,
        write: impl Fn(&Site, &Site, bool, &Path) -> Result<(), LabError>,
    ) -> Result<[Gateway; 2], LabError> {
        let start = |is_a: bool| {
            let (here, there) = if is_a { (&self.a, &self.b) } else { (&self.b, &self.a) };
            let (name, below) = if is_a { ("gateway A", "gateway-a") } else { ("gateway B", "gateway-b") };
            let folder = folder.join(below);
            write(here, there, is_a, &folder)?;
            let own = processors.map(|[a, b]| if is_a { a } else { b });
            let gateway = on(own, || Gateway::start(&here.gateway, program, name, &folder))?;
            if self.port == PortKind::Dpdk {
                join_taps(&here.gateway)?;
            }
            Ok::<_, LabError>(gateway)
        };
        Ok([start(true)?, start(false)?])
    }
}

/// Calls `start` on these processors: a process that it starts inherits them.
fn on<T>(own: Option<&[usize]>, start: impl FnOnce() -> T) -> T {
    let Some(own) = own else { return start() };
    let all = threads::processors();
    threads::allow(own);
    let started = start();
    threads::allow(&all);
    started
}

fn settings(here: &Site, there: &Site, is_a: bool, tunnel: &Tunnel) -> Settings {
    let (a, b) = if is_a { (here, there) } else { (there, here) };
    // Both ends number tunnels in the same order.
    let all = a.parts.iter().flat_map(|a| b.parts.iter().map(move |b| [a.clone(), b.clone()]));
    let networks = all.map(|[a, b]| if is_a { [a, b] } else { [b, a] }).collect();
    Settings {
        is_a,
        local: here.outer,
        remote: there.outer,
        networks,
        protection: tunnel.protection.clone(),
        interface: LINK,
        addresses: here.ends.clone(),
        port: tunnel.port,
        engine: tunnel.engine.map(str::to_owned),
        workers: tunnel.workers,
        mtu: tunnel.mtu,
    }
}
