//! What is negotiated beside the configuration's policies, and interfaces beside the main one.

use super::*;
use testudo_ipsec::Action as Act;

/// A configuration with the interface `ipsec0`, and a tunnel from 10.1.0.0/16 to 10.0.0.0/8 at the main one.
fn two_interfaces() -> Configuration {
    let mut configuration = minimal();
    configuration.interfaces = vec![crate::config::Interface {
        vpe: None,
        name: "ipsec0".to_owned(),
        if_id: Some(42),
        addresses: Vec::new(),
        mtu: 1400,
    }];
    configuration.tunnels[0].selectors = vec![[between(prefix("10.1.0.0/16"), prefix("10.0.0.0/8"))].into()];
    configuration
}

/// RFC 4301 5.1: each interface has an SPD of its own.
#[test]
fn what_goes_into_another_interface_passes_whatever_main_policies_say() {
    let firewall = Firewall::of(&two_interfaces()).unwrap();
    let (other, beside) = (Some(Link::Other), Some(Link::Beside));
    let forward = |from, to| passage(Chain::Forward, from, to);
    let out = udp("10.1.0.7", "10.20.0.5", (7, 7));
    assert!(!drops(&firewall, &out, forward(other, beside)), "{firewall}");
    assert!(!drops(&firewall, &out, passage(Chain::Output, None, beside)), "{firewall}");
    for clear in [forward(other, other), passage(Chain::Output, None, other), forward(beside, other)] {
        assert!(drops(&firewall, &out, clear), "{clear:?}\n{firewall}");
    }
    assert_eq!(firewall.to_string().matches("oifname { \"ipsec0\" } accept").count(), 2, "{firewall}");
    let mut without = two_interfaces();
    without.interfaces.clear();
    assert!(!Firewall::of(&without).unwrap().to_string().contains("ipsec0"));
}

/// Neither by what comes in clear nor by a peer of the other interface.
#[test]
fn sources_that_main_policies_protect_are_not_taken_by_way_of_another_interface() {
    let firewall = Firewall::of(&two_interfaces()).unwrap();
    let (other, beside) = (Some(Link::Other), Some(Link::Beside));
    let taken = udp("10.2.0.5", "10.1.0.7", (7, 7));
    for passage in [passage(Chain::Forward, beside, other), passage(Chain::Input, beside, None)] {
        assert!(drops(&firewall, &taken, passage), "{passage:?}\n{firewall}");
        let honest = udp("203.0.113.5", "10.1.0.7", (7, 7));
        assert!(!drops(&firewall, &honest, passage), "{passage:?}\n{firewall}");
    }
    let into = udp("10.2.0.5", "203.0.113.5", (7, 7));
    for from in [other, beside] {
        assert!(drops(&firewall, &into, passage(Chain::Forward, from, beside)), "{firewall}");
        let answered = Passage { answers_go_to_tunnel: true, ..passage(Chain::Forward, from, beside) };
        let anybody = udp("198.51.100.9", "203.0.113.5", (7, 7));
        assert!(drops(&firewall, &anybody, answered), "{firewall}");
    }
}

#[test]
fn another_interface_that_nftables_cannot_name_is_refused() {
    let mut configuration = two_interfaces();
    configuration.interfaces[0].name = "ip\"sec".to_owned();
    let error = Firewall::of(&configuration).unwrap_err().to_string();
    assert!(error.contains("\"ip\\\"sec\"") && error.contains("[[interface]]"), "{error}");
}

/// What a follower compares: the same text closes the same.
#[test]
fn what_is_closed_is_said_with_all_that_a_policy_selects() {
    let (here, there) = (prefix("10.1.0.0/16"), prefix("10.2.0.0/16"));
    let protect = Act::Protect(TunnelIndex(9));
    let policy = |selector, action, directions| {
        (
            "ike".to_owned(),
            testudo_ipsec::Policy { directions, ..testudo_ipsec::Policy::new(selector, action) },
        )
    };
    let said =
        |policies: Vec<(String, testudo_ipsec::Policy)>| Negotiated { policies, tunnels: Vec::new() }.pairs();
    let all = between(here, there);
    let web =
        Selector { protocol: Protocol::Is(TCP), remote_ports: PortRange { first: 443, last: 443 }, ..all };
    let (out, inbound, both) = (Directions::Outbound, Directions::Inbound, Directions::Both);
    for (selector, action, directions, expected) in [
        (all, protect, both, "10.1.0.0/16 10.2.0.0/16"),
        (all, protect, out, "10.1.0.0/16 10.2.0.0/16 out"),
        (all, Act::Discard, inbound, "10.1.0.0/16 10.2.0.0/16 discard in"),
        (web, protect, both, "10.1.0.0/16 10.2.0.0/16 protocol 6 ports any 443"),
    ] {
        assert_eq!(said(vec![policy(selector, action, directions)]), [expected]);
    }
    let halves = vec![policy(all, protect, out), policy(all, protect, inbound)];
    assert_eq!(said(halves), ["10.1.0.0/16 10.2.0.0/16"]);
    let range = AddressRange::new("10.1.0.1".parse().unwrap(), "10.1.0.9".parse().unwrap()).unwrap();
    let ranged = Selector { local: range, ..all };
    assert_eq!(said(vec![policy(ranged, protect, both)]), ["10.1.0.1-10.1.0.9 10.2.0.0/16"]);
    // Neither what lets packets pass, nor what is for another interface, closes anything.
    let mut beside = policy(all, protect, both);
    beside.1.interface = testudo_packet::Interface(1);
    assert!(said(vec![beside, policy(all, Act::Bypass, both)]).is_empty());
}
