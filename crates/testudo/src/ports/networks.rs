//! The networks that the filter of the protected interface takes: those of policies, of the configuration and
//! negotiated, but for this host's own addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use testudo_control::Configuration;
use testudo_control::config::Network;
use testudo_control::firewall::{Destinations, RouteChange, destinations};
use testudo_control::service::negotiated::NegotiatedRoutes;
use testudo_port_xdp::{self as xdp, Filter, host_addresses};

/// How often the host's addresses are looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What no policy for everything means: groups, and what does not leave its link.
const OF_THE_LINK: [(IpAddr, u8); 4] = [
    (IpAddr::V4(std::net::Ipv4Addr::new(224, 0, 0, 0)), 4),
    (IpAddr::V4(std::net::Ipv4Addr::BROADCAST), 32),
    (IpAddr::V6(std::net::Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0)), 8),
    (IpAddr::V6(std::net::Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0)), 10),
];

/// What is taken, and the filter that follows it.
pub struct FilterNetworks {
    wanted: Mutex<Wanted>,
    filter: Mutex<Option<Arc<Filter>>>,
}

#[derive(Default)]
struct Wanted {
    configured: Destinations,
    negotiated: BTreeSet<Network>,
    own: BTreeSet<IpAddr>,
    looked: Option<Instant>,
}

impl FilterNetworks {
    /// Those of a configuration. They are in force once there is a filter.
    ///
    /// # Errors
    /// The host's addresses cannot be read.
    pub fn of(configuration: &Configuration) -> std::io::Result<Self> {
        let (configured, own) = (destinations(configuration), host_addresses()?);
        let wanted = Wanted { configured, own, ..Wanted::default() };
        Ok(Self { wanted: Mutex::new(wanted), filter: Mutex::default() })
    }

    /// The networks, for a filter that is about to be attached.
    pub fn all(&self) -> Vec<xdp::Network> {
        self.wanted().all()
    }

    /// The filter follows from now on.
    pub fn follow_with(&self, filter: &Arc<Filter>) {
        *self.filter.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(filter));
    }

    fn wanted(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what is taken.
    fn change(&self, change: impl FnOnce(&mut Wanted)) -> Result<(), String> {
        let mut wanted = self.wanted();
        change(&mut wanted);
        let filter = self.filter.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(filter) = &*filter else { return Ok(()) };
        filter.replace_networks(&wanted.all()).map_err(|error| {
            let interface = &filter.interface().name;
            format!(
                "the filter of {interface} cannot follow the policies: {error} (this needs Linux 5.19, or newer)"
            )
        })
    }

    /// Follows the policies of a configuration that has changed.
    ///
    /// # Errors
    /// What the kernel refuses, in words.
    pub fn follow(&self, configuration: &Configuration) -> Result<(), String> {
        let configured = destinations(configuration);
        self.change(|wanted| wanted.configured = configured)
    }

    /// Follows the host's addresses, which are looked at now and then.
    pub fn look_at_addresses(&self) {
        let now = Instant::now();
        {
            let mut wanted = self.wanted();
            if wanted.looked.is_some_and(|looked| now < looked + LOOK_INTERVAL) {
                return;
            }
            wanted.looked = Some(now);
        }
        let outcome = host_addresses().map_err(|error| format!("this host's addresses: {error}"));
        let followed = outcome.and_then(|own| {
            let is_same = self.wanted().own == own;
            if is_same { Ok(()) } else { self.change(|wanted| wanted.own = own) }
        });
        if let Err(error) = followed {
            tracing::error!("{error}");
        }
    }
}

impl Wanted {
    /// Each network once: what is taken wins over what is left, but for this host's own addresses.
    fn all(&self) -> Vec<xdp::Network> {
        let key = |network: &Network| (network.address(), network.length());
        let mut all: BTreeMap<(IpAddr, u8), bool> = OF_THE_LINK.iter().map(|link| (*link, false)).collect();
        all.extend(self.configured.left.iter().map(|network| (key(network), false)));
        all.extend(self.configured.taken.iter().map(|network| (key(network), true)));
        all.extend(self.negotiated.iter().map(|network| (key(network), true)));
        all.extend(self.own.iter().map(|address| (key(&Network::host(*address)), false)));
        let network = |((address, prefix_bits), take)| {
            let taken = if take { xdp::Taken::All } else { xdp::Taken::Nothing };
            xdp::Network { address, prefix_bits, taken }
        };
        all.into_iter().map(network).collect()
    }
}

/// What is negotiated is taken by the filter; no route leads anywhere.
impl NegotiatedRoutes for FilterNetworks {
    fn refusal(&self) -> Option<String> {
        None
    }

    /// The packets of this host pass the filter by.
    fn spare_peers(&self) -> bool {
        true
    }

    fn change(&self, change: RouteChange, _peer: Option<IpAddr>) -> Result<(), String> {
        self.change(|wanted| {
            change.before.into_iter().for_each(|old| _ = wanted.negotiated.remove(&old.network));
            wanted.negotiated.extend(change.after.map(|new| new.network));
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testudo_control::firewall::TunnelRoute;

    fn configuration(local: &str, remote: &str) -> Configuration {
        let text = format!(
            "[gateway]\nstate = \"s\"\n[port.protected]\nkind = \"xdp\"\ninterface = \"eth1\"\n[port.unprotected]\n\
             kind = \"socket\"\n[[tunnel]]\nname = \"a\"\nlocal = \"192.0.2.1\"\nremote = \"192.0.2.2\"\n\
             suite = \"aes128gcm16\"\nselectors = [ {{ local = \"{local}\", remote = \"{remote}\" }} ]\n\
             outbound = {{ spi = 0x1001, key_file = \"a.out\" }}\ninbound = {{ spi = 0x1002, key_file = \"a.in\" }}\n"
        );
        Configuration::parse(&text, "t.toml").unwrap_or_else(|errors| panic!("{errors}"))
    }

    fn of(local: &str, remote: &str, own: &[&str]) -> FilterNetworks {
        let configured = destinations(&configuration(local, remote));
        let own = own.iter().map(|address| address.parse().unwrap()).collect();
        let wanted = Wanted { configured, own, ..Wanted::default() };
        FilterNetworks { wanted: Mutex::new(wanted), filter: Mutex::default() }
    }

    /// The decision on a destination, as a table of prefixes makes it.
    fn takes(networks: &FilterNetworks, destination: &str) -> bool {
        let destination: IpAddr = destination.parse().unwrap();
        let all = networks.all();
        let holds = |n: &&xdp::Network| {
            Network::containing(destination, n.prefix_bits).is_some_and(|network| {
                network.address() == n.address && n.address.is_ipv4() == destination.is_ipv4()
            })
        };
        all.iter()
            .filter(holds)
            .max_by_key(|network| network.prefix_bits)
            .is_some_and(|network| network.taken == xdp::Taken::All)
    }

    #[test]
    fn remote_networks_are_taken_and_the_hosts_own_addresses_are_not() {
        let networks = of("10.1.0.0/16", "10.2.0.0/16", &["10.2.0.1", "10.1.0.1"]);
        assert!(takes(&networks, "10.2.0.2") && !takes(&networks, "10.2.0.1"));
        assert!(!takes(&networks, "10.1.0.1") && !takes(&networks, "10.3.0.1"));
    }

    #[test]
    fn a_policy_for_everything_leaves_the_local_networks_and_the_link_to_the_kernel() {
        let networks = of("10.1.0.0/16", "0.0.0.0/0", &["192.0.2.1", "10.1.255.255"]);
        assert!(takes(&networks, "203.0.113.9"));
        for left in ["10.1.0.7", "192.0.2.1", "224.0.0.251", "255.255.255.255", "2001:db8::1"] {
            assert!(!takes(&networks, left), "{left}");
        }
        let networks = of("any", "any", &[]);
        assert!(takes(&networks, "203.0.113.9") && takes(&networks, "2001:db8::1"));
        assert!(!takes(&networks, "ff02::1") && !takes(&networks, "fe80::1"));
    }

    #[test]
    fn what_is_negotiated_is_taken_until_its_policy_goes() {
        let networks = of("10.1.0.0/16", "10.2.0.0/16", &[]);
        let network = Network::containing([10, 9, 0, 0].into(), 16).unwrap();
        let route = Some(TunnelRoute { network, source: None });
        NegotiatedRoutes::change(&networks, RouteChange { before: None, after: route }, None).unwrap();
        assert!(takes(&networks, "10.9.0.1"));
        networks.follow(&configuration("10.1.0.0/16", "10.3.0.0/16")).unwrap();
        assert!(
            takes(&networks, "10.9.0.1") && takes(&networks, "10.3.0.1") && !takes(&networks, "10.2.0.1")
        );
        NegotiatedRoutes::change(&networks, RouteChange { before: route, after: None }, None).unwrap();
        assert!(!takes(&networks, "10.9.0.1"));
    }
}
