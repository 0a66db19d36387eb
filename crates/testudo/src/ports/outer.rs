//! What the filter of the unprotected interface takes: what tunnels carry, to addresses where tunnels end.
//! ESP that this host forwards for somebody else stays with the kernel.
//!
//! With `[ike]` a daemon makes tunnels at any address of the host, so that the filter follows these.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use testudo_control::Configuration;
use testudo_control::config::OuterProtocol;
use testudo_port_xdp::{Filter, FilterConfig, Network, Taken, UdpContent, UdpPort, host_addresses};

/// How often the host's addresses are looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The filter of a configuration, at a host with these addresses.
pub fn filter_config(configuration: &Configuration, of_host: &BTreeSet<IpAddr>) -> FilterConfig {
    let mut filter = FilterConfig::default();
    let ends = configuration.outer_endpoints();
    for end in &ends {
        match end.protocol {
            OuterProtocol::Esp => filter.esp = true,
            OuterProtocol::Ah => filter.ah = true,
            OuterProtocol::Vpe { number } => filter.vpe_protocol = Some(number),
            OuterProtocol::Udp { local_port } => filter.udp.push(udp(local_port, UdpContent::All)),
            OuterProtocol::UdpBeside { local_port } => filter.udp.push(udp(local_port, UdpContent::Esp)),
        }
    }
    // One port may be at several addresses; where IKE is at one of them, its messages are the kernel's.
    filter.udp.sort_by_key(|port| (port.port, port.content == UdpContent::All));
    filter.udp.dedup_by_key(|port| port.port);
    filter.networks = Ends::of(configuration).networks(of_host);
    filter
}

fn udp(port: u16, content: UdpContent) -> UdpPort {
    UdpPort { port, content }
}

/// Where tunnels end, and those to come.
struct Ends {
    fixed: BTreeSet<IpAddr>,
    /// Any address of the host, of IPv4 and of IPv6.
    any: [bool; 2],
}

impl Ends {
    fn of(configuration: &Configuration) -> Self {
        let ends: BTreeSet<IpAddr> = configuration.outer_endpoints().iter().map(|end| end.local).collect();
        let has_any = |ipv6| ends.iter().any(|end| end.is_unspecified() && end.is_ipv6() == ipv6);
        Self { any: [has_any(false), has_any(true)], fixed: ends }
    }

    fn follows_host(&self) -> bool {
        self.any.contains(&true)
    }

    fn networks(&self, of_host: &BTreeSet<IpAddr>) -> Vec<Network> {
        let is_end = |address: &&IpAddr| self.any[usize::from(address.is_ipv6())] && !address.is_loopback();
        let fixed = self.fixed.iter().filter(|address| !address.is_unspecified());
        let all: BTreeSet<&IpAddr> = fixed.chain(of_host.iter().filter(is_end)).collect();
        let network = |address: &IpAddr| Network {
            address: *address,
            prefix_bits: if address.is_ipv4() { 32 } else { 128 },
            taken: Taken::OfTunnels,
        };
        all.into_iter().map(network).collect()
    }
}

/// Has a filter follow the host's addresses.
pub struct FollowedAddresses {
    ends: Ends,
    filter: Arc<Filter>,
    looked: Mutex<(Instant, BTreeSet<IpAddr>)>,
}

impl FollowedAddresses {
    /// For the filter of a configuration, made for these addresses; `None` where tunnels end at
    /// addresses of the configuration alone.
    pub fn of(
        configuration: &Configuration,
        filter: &Arc<Filter>,
        of_host: BTreeSet<IpAddr>,
    ) -> Option<Arc<Self>> {
        let (ends, filter) = (Ends::of(configuration), Arc::clone(filter));
        let looked = Mutex::new((Instant::now(), of_host));
        ends.follows_host().then(|| Arc::new(Self { ends, filter, looked }))
    }

    /// Looks at the host's addresses, now and then.
    pub fn look(&self) {
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if now < looked.0 + LOOK_INTERVAL {
            return;
        }
        looked.0 = now;
        let followed = host_addresses().and_then(|of_host| {
            if looked.1 != of_host {
                self.filter.replace_networks(&self.ends.networks(&of_host))?;
                looked.1 = of_host;
            }
            Ok(())
        });
        if let Err(error) = followed {
            let interface = &self.filter.interface().name;
            tracing::error!(
                "the filter of {interface} cannot follow this host's addresses: {error} (this needs Linux 5.19, or newer)"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configuration(tunnel: &str, more: &str) -> Configuration {
        let text = format!(
            "[gateway]\nstate = \"s\"\n{more}[port.protected]\nkind = \"tun\"\nname = \"t0\"\n[port.unprotected]\n\
             kind = \"xdp\"\ninterface = \"eth0\"\n[[tunnel]]\nname = \"a\"\nlocal = \"192.0.2.1\"\n\
             remote = \"192.0.2.2\"\n{tunnel}\nselectors = [ {{ local = \"10.1.0.0/16\", remote = \"10.2.0.0/16\" }} ]\n\
             outbound = {{ spi = 0x1001, key_file = \"a.out\" }}\ninbound = {{ spi = 0x1002, key_file = \"a.in\" }}\n"
        );
        Configuration::parse(&text, "t.toml").unwrap_or_else(|errors| panic!("{errors}"))
    }

    const SUITE: &str = "suite = \"aes128gcm16\"";
    const IKE: &str = "[ike]\nsocket = \"x.sock\"\n";

    #[test]
    fn the_outer_filter_takes_what_the_tunnels_carry() {
        let taken = |tunnel: &str, more: &str| {
            let filter = filter_config(&configuration(tunnel, more), &BTreeSet::new());
            (filter.esp, filter.ah, filter.udp)
        };
        assert_eq!(taken(SUITE, ""), (true, false, vec![]));
        let ah = "protocol = \"ah\"\nsuite = \"sha256\"";
        assert_eq!(taken(ah, ""), (false, true, vec![]));
        let in_udp = format!("{SUITE}\nencapsulation = \"esp-in-udp\"");
        assert_eq!(taken(&in_udp, ""), (false, false, vec![udp(4500, UdpContent::All)]));
        let beside = vec![udp(4500, UdpContent::Esp)];
        assert_eq!(taken(&in_udp, IKE), (true, true, beside), "IKE's messages are the daemon's");
    }

    #[test]
    fn the_outer_filter_takes_it_at_addresses_where_tunnels_end() {
        let of_host =
            ["127.0.0.1", "::1", "192.0.2.1", "192.0.2.7", "2001:db8::7"].map(|a| a.parse().unwrap());
        let at = |more| {
            let networks = filter_config(&configuration(SUITE, more), &of_host.into()).networks;
            assert!(networks.iter().all(|network| network.taken == Taken::OfTunnels));
            let text = |n: &Network| format!("{}/{}", n.address, n.prefix_bits);
            networks.iter().map(text).collect::<Vec<_>>()
        };
        assert_eq!(at(""), ["192.0.2.1/32"]);
        assert_eq!(at(IKE), ["192.0.2.1/32", "192.0.2.7/32", "2001:db8::7/128"]);
    }
}
