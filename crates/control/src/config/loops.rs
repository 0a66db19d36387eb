//! Tunnels whose own packets may come back into them.
//!
//! A sealed packet goes to the peer's outer address. Where a policy protects packets to that address, and
//! their route leads into the TUN interface, the sealed packet would be sealed again and again, and none
//! would leave. Sockets that are bound to an interface ignore routes through another; without, everything
//! depends on the routes. For those that the gateway makes, that is an error of the configuration (`checks`).
//! For those that the operator makes, it is a warning: only the operator knows them.

use super::model::{Action, Configuration, Remote};
use super::network::{Network, Networks};
use testudo_ipsec::{AddressRange, Direction, Selector};
use testudo_packet::Interface;
use testudo_wire::ip::Version;

/// The warning, if the operator's own routes decide whether sealed packets leave.
pub(super) fn warning(configuration: &Configuration) -> Option<String> {
    // No route leads into a fast port.
    if configuration.unprotected.interface.is_some() || !configuration.protected.kind.is_host() {
        return None;
    }
    let network = |remote: AddressRange| Network::of(remote.covering_prefix()).filter(|n| n.length() > 0);
    let named: Networks = protected(configuration).filter_map(|s| network(s.remote)).collect();
    let holds_all = |version| {
        let mut wide = protected(configuration).filter(|s| network(s.remote).is_none());
        wide.any(|s| s.remote.version().or(s.local.version()).is_none_or(|v| v == version))
    };
    let all = [Version::V4, Version::V6].map(holds_all);
    let is_held = |peer: &Network| {
        all[usize::from(peer.address().is_ipv6())]
            || !configuration.protected.routes && named.holding(*peer).next().is_some()
    };
    let mut held = configuration.tunnels.iter().filter(|tunnel| match tunnel.remote {
        Remote::Address(peer) => is_held(&Network::host(peer)),
        Remote::Any => false,
    });
    let (first, others) = (held.next()?, held.count());
    let others = if others > 0 { format!(" (and {others} more)") } else { String::new() };
    let interface = &configuration.protected.name;
    Some(format!(
        "tunnel {}{others}: a policy protects packets to the peer's own outer address, so that your routes into \
         {interface} must not catch the tunnel's packets, or none will leave; with `interface = \"eth0\"` in \
         [port.unprotected] they leave by that interface, whatever the routes say",
        first.name
    ))
}

/// The selectors whose packets are protected.
fn protected(configuration: &Configuration) -> impl Iterator<Item = &Selector> {
    let policies = configuration.policies.iter();
    let named = policies
        .filter(|p| matches!(p.action, Action::Protect { .. }) && p.directions.include(Direction::Outbound));
    // Routes into other interfaces are for what is behind them, and nothing else comes there.
    let tunnels = configuration.tunnels.iter().filter(|tunnel| tunnel.interface == Interface::MAIN);
    let own = tunnels.flat_map(|tunnel| &tunnel.selectors);
    named.map(|p| &p.selectors).chain(own).flat_map(|selectors| selectors.iter())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::MINIMAL;
    use testudo_ipsec::Prefix;

    fn warned(change: impl FnOnce(&mut Configuration), local: &str, remote: &str) -> bool {
        let mut configuration = Configuration::parse(MINIMAL, "t.toml").unwrap();
        let range = |text: &str| match text {
            "any" => AddressRange::ANY,
            _ => {
                let (address, bits) = text.split_once('/').unwrap();
                Prefix::new(address.parse().unwrap(), bits.parse().unwrap()).unwrap().into()
            }
        };
        let selector = Selector {
            local: range(local),
            remote: range(remote),
            ..configuration.tunnels[0].selectors[0][0]
        };
        configuration.tunnels[0].selectors = vec![[selector].into()];
        configuration.protected.routes = false;
        change(&mut configuration);
        warning(&configuration).is_some_and(|text| text.contains("interface = "))
    }

    #[test]
    fn routes_of_the_operator_that_could_make_a_loop_are_warned_of() {
        let nothing = |_: &mut Configuration| {};
        // The peer of this configuration is 192.0.2.2.
        assert!(warned(nothing, "192.0.2.1/32", "192.0.2.2/32"));
        assert!(warned(nothing, "10.1.0.0/16", "192.0.0.0/8"));
        assert!(warned(nothing, "any", "any") && warned(nothing, "10.1.0.0/16", "any"));
        assert!(warned(nothing, "any", "0.0.0.0/0"));
        assert!(!warned(nothing, "any", "::/0") && !warned(nothing, "fd01::/64", "any"));
        assert!(!warned(nothing, "10.1.0.0/16", "10.2.0.0/16"));
        let bound = |c: &mut Configuration| c.unprotected.interface = Some("eth0".to_owned());
        assert!(!warned(bound, "192.0.2.1/32", "192.0.2.2/32"));
        // The gateway's own routes: an error, unless there is none (`Facts::check_routes`).
        let routes = |c: &mut Configuration| c.protected.routes = true;
        assert!(!warned(routes, "192.0.2.1/32", "192.0.2.2/32") && warned(routes, "any", "any"));
        let learned = |c: &mut Configuration| c.tunnels[0].remote = Remote::Any;
        assert!(!warned(learned, "any", "any"));
    }
}
