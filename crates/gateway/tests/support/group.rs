//! Gateways of one group: many senders under one key, each with a Sender ID of its own.

use super::vpe::{datagram_between, sealed, vpe};
use super::{Inner, LeaseTwin, Side, TunnelSpec};
use std::net::IpAddr;
use testudo_crypto::Suite;
use testudo_gateway::TunnelInstall;
use testudo_ipsec::{
    Action, Directions, Encapsulation, Endpoints, Mode, PacketRules, Policy, Prefix, SaSelectors, Selector,
    TunnelParameters, VpeRules,
};
use testudo_wire::vpe::{VPE_PROTOCOL, VpeHeader};

pub const GROUP: [u8; 4] = [239, 1, 2, 3];

pub fn spec() -> TunnelSpec {
    vpe(Suite::ALL_FOR_VPE[0])
}

/// The outer address of the sender with this ID.
pub fn address(sender: u16) -> IpAddr {
    [192, 0, 2, sender as u8].into()
}

/// What the group carries, as seen by who sends it and by who receives it.
fn selectors() -> (Selector, Selector) {
    let prefix = |first, bits| Prefix::new([first, 0, 0, 0].into(), bits).expect("a prefix");
    let (sources, groups) = (prefix(10, 8), prefix(239, 8));
    (Selector::between(sources, groups), Selector::between(groups, sources))
}

pub fn policies() -> Vec<Policy> {
    let (out, inb) = selectors();
    let action = Action::Protect(spec().index());
    let policy = |selector, directions| Policy { directions, ..Policy::new(selector, action) };
    vec![policy(out, Directions::Outbound), policy(inb, Directions::Inbound)]
}

/// A packet from the network of a sender to a group inside.
pub fn inner(sender: u16, seed: u64) -> Vec<u8> {
    Inner { seed, ..Inner::udp(&format!("10.{sender}.0.1"), "239.9.9.9", 80) }.bytes()
}

/// The tunnel of a member with these rules.
pub fn install(rules: VpeRules, store: &mut LeaseTwin, window: Option<Vec<u8>>) -> TunnelInstall {
    let mut install = spec().install(Side::A, store, window);
    let endpoints = Endpoints {
        local: address(rules.sender),
        remote: Some(GROUP.into()),
        encapsulation: Encapsulation::Esp,
    };
    let rules = PacketRules { vpe: Some(Box::new(rules)), ..PacketRules::default() };
    let selectors = SaSelectors::new([selectors().1], Mode::Tunnel, &endpoints);
    install.parameters = TunnelParameters { endpoints, rules, selectors, ..install.parameters };
    // One SA for all of them.
    install.inbound.parameters.sa = install.outbound.parameters.sa.clone();
    install.inbound.key = spec().key_from(Side::A).into();
    install
}

/// A packet of a member of the group, made by hand.
pub fn by_hand(from: IpAddr, sender: u16, window: u16, number: u64) -> Vec<u8> {
    let header = VpeHeader { sender, window, number, spi: spec().spi_from(Side::A) };
    let packet = sealed(&spec().key_from(Side::A), header, &inner(sender & 0xFF, number));
    datagram_between(from, GROUP.into(), VPE_PROTOCOL, &packet)
}

pub fn sent_by(sender: u16, window: u16, number: u64) -> Vec<u8> {
    by_hand(address(sender), sender, window, number)
}
