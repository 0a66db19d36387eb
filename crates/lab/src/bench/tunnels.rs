//! The tunnels of a measurement, for both ends.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use testudo_crypto::{KeyMaterial, Suite};
use testudo_gateway::{InboundInstall, OutboundInstall, TunnelInstall, Update, Worker};
use testudo_ipsec::{
    Action, DEFAULT_PEER_WINDOW, Dscp, Endpoints, Fragmentation, InboundParameters, Lease, Lifetime, Mode,
    Moment, NumberSource, OutboundParameters, PacketRules, PeerHeard, Policy, Prefix, SaParameters,
    SaSelectors, Selector, Spd, Spent, TunnelIndex, TunnelParameters,
};
use testudo_packet::Interface;
use zeroize::Zeroizing;

use super::case::{Case, Way};
use super::error::Wrong;
use super::load::{bytes, destination};
use crate::supply::Supply;

/// The default replay window of `testudo run`.
const REPLAY_WINDOW: u32 = 4096;
/// Outer headers, ESP header, IV, padding, trailer and ICV of any suite, and some spare.
pub(super) const OVERHEAD_BYTES: usize = 256;

fn prefix(address: IpAddr, length: u8) -> Result<Prefix, Wrong> {
    Prefix::new(address, length).map_err(|e| e.to_string())
}

/// Tunnel `number` carries traffic from 10.0.0.0/8 to its own host.
pub(super) fn selector(number: u32, side: Way) -> Result<Selector, Wrong> {
    between(prefix(destination(number), 32)?, side)
}

/// The traffic from 10.0.0.0/8 to `there`, seen from either side.
fn between(there: Prefix, side: Way) -> Result<Selector, Wrong> {
    let here = prefix(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 0)), 8)?;
    Ok(match side {
        Way::Outbound => Selector::between(here, there),
        Way::Inbound => Selector::between(there, here),
    })
}

fn key(suite: Suite, spi: u32) -> Result<KeyMaterial, Wrong> {
    let bytes = bytes(spi.into(), suite.keying_material_bytes());
    KeyMaterial::new(suite, Zeroizing::new(bytes)).map_err(|e| e.to_string())
}

fn sa(spi: u32, suite: Suite, esn: bool) -> SaParameters {
    SaParameters { spi, suite, esn, lifetime: Lifetime::default(), spent: Spent::default() }
}

/// Tunnel `number` at the end where packets go `side`: outbound from here, or inbound to here.
pub(super) fn tunnel(case: &Case, number: u32, side: Way, lease: Arc<Lease>) -> Result<TunnelInstall, Wrong> {
    let (there, back) = (0x10_0000 + 2 * number, 0x10_0001 + 2 * number);
    let ends = [Ipv4Addr::new(1, 1, 1, 1), Ipv4Addr::new(2, 2, 2, 2)].map(IpAddr::V4);
    let (local, remote, outbound, inbound) = match side {
        Way::Outbound => (ends[0], ends[1], there, back),
        Way::Inbound => (ends[1], ends[0], back, there),
    };
    let suite = case.suites.of(number);
    let suite = case.carrier.suite(suite).ok_or_else(|| format!("{suite} is no suite of VPE"))?;
    let endpoints = Endpoints { local, remote: Some(remote), encapsulation: case.carrier.encapsulation() };
    let parameters = TunnelParameters {
        name: format!("tunnel {number}").into(),
        endpoints,
        learn_remote: false,
        interface: Interface::MAIN,
        protocol: case.carrier.protocol(),
        mode: Mode::Tunnel,
        covered_by: None,
        covers: None,
        dscp: Dscp::Copy,
        rules: PacketRules::default(),
        path_mtu: case.size.longest_bytes() + OVERHEAD_BYTES,
        fragmentation: Fragmentation::Before,
        non_first_fragments: false,
        acquires: false,
        peer_heard: PeerHeard::default(),
        keepalive: None,
        selectors: SaSelectors::new([selector(number, side)?], Mode::Tunnel, &endpoints),
    };
    let numbers = NumberSource::Leased { first: 1, lease };
    let outbound = OutboundInstall {
        parameters: OutboundParameters {
            sa: sa(outbound, suite, case.esn),
            numbers,
            iv_mask: 0,
            worker: None,
        },
        key: key(suite, outbound)?.into(),
        peer_window: DEFAULT_PEER_WINDOW,
    };
    let inbound = InboundInstall {
        parameters: InboundParameters {
            sa: sa(inbound, suite, case.esn),
            replay_window: REPLAY_WINDOW,
            from_any_port: false,
        },
        key: key(suite, inbound)?.into(),
        window: None,
        inherits: None,
        shared: None,
    };
    Ok(TunnelInstall {
        index: TunnelIndex(number),
        parameters,
        outbound,
        inbound,
        more_outbound: Vec::new(),
        more_inbound: Vec::new(),
    })
}

/// A network that no tunnel leads to: most are hosts next to the tunnels' own, some are longer and shorter
/// prefixes.
fn other_network(number: u32) -> Result<Prefix, Wrong> {
    let (round, column) = (number / 8, number % 8);
    let (first, length) = match column {
        0..5 => (u32::from(Ipv4Addr::new(172, 24, 0, 0)) + 5 * round + column, 32),
        5..7 => (u32::from(Ipv4Addr::new(11, 0, 0, 0)) + ((2 * round + column - 5) << 8), 24),
        _ => (u32::from(Ipv4Addr::new(20, 0, 0, 0)) + (round << 16), 16),
    };
    prefix(IpAddr::V4(Ipv4Addr::from_bits(first)), length)
}

/// All policies of `case`, in order: those for other networks, alternately protect and discard, then each
/// tunnel's own.
pub(super) fn policies(case: &Case, side: Way) -> Result<Vec<Policy>, Wrong> {
    let others = (0..case.policies.saturating_sub(case.sas)).map(|number| {
        let selector = between(other_network(number)?, side)?;
        let tunnel = TunnelIndex(number % case.sas);
        let action = if number % 2 == 0 { Action::Protect(tunnel) } else { Action::Discard };
        Ok(Policy::new(selector, action))
    });
    let own = (0..case.sas)
        .map(|number| Ok(Policy::new(selector(number, side)?, Action::Protect(TunnelIndex(number)))));
    others.chain(own).collect()
}

/// Installs the tunnels of `case` and their policies.
pub(super) fn install(worker: &mut Worker, case: &Case, side: Way) -> Result<Supply, Wrong> {
    install_over(worker, case, side, None)
}

/// The same over a path of this MTU, if it has one: what it does not carry is fragmented after it was sealed,
/// so that whole packets come back.
pub(super) fn install_over(
    worker: &mut Worker,
    case: &Case,
    side: Way,
    path_mtu: Option<u16>,
) -> Result<Supply, Wrong> {
    let policies = Box::new(Spd::new(policies(case, side)?).map_err(|e| e.to_string())?);
    apply(worker, case, side, path_mtu, Update { policies: Some(policies), ..Update::default() })
}

/// Removes the tunnels and reinstalls them, with sequence numbers from 1 and empty replay windows.
pub(super) fn reinstall(worker: &mut Worker, case: &Case, side: Way) -> Result<Supply, Wrong> {
    let remove = (0..case.sas).map(TunnelIndex).collect();
    apply(worker, case, side, None, Update { remove, ..Update::default() })
}

fn apply(
    worker: &mut Worker,
    case: &Case,
    side: Way,
    path_mtu: Option<u16>,
    mut update: Update,
) -> Result<Supply, Wrong> {
    let mut supply = Supply::default();
    let tunnels = (0..case.sas).map(|number| tunnel(case, number, side, supply.lease()));
    update.install = tunnels.collect::<Result<_, Wrong>>()?;
    if let Some(path_mtu) = path_mtu {
        for install in &mut update.install {
            install.parameters.path_mtu = path_mtu.into();
            install.parameters.fragmentation = Fragmentation::After;
        }
    }
    for (_, outcome) in worker.update(update, Moment::default()) {
        outcome.map_err(|e| e.to_string())?;
    }
    Ok(supply)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{Carrier, Order, Size, Suites};
    use std::collections::HashSet;
    use testudo_ipsec::{Direction, Flow, Verdict};
    use testudo_wire::next_layer::NextLayerFields;

    #[test]
    fn policies_before_the_tunnels_own_do_not_catch_their_traffic() {
        let (sas, all) = (3000, 100_000);
        let (suites, size) = (Suites::One(Suite::AES128GCM16), Size::Bytes(64));
        let (carrier, order, engine) = (Carrier::Esp, Order::Length, 0);
        let case = Case {
            suites,
            way: Way::Outbound,
            size,
            sas,
            policies: all,
            carrier,
            order,
            esn: true,
            engine,
            placed: 0,
        };
        let policies = policies(&case, Way::Outbound).unwrap();
        let distinct: HashSet<_> = policies.iter().map(|policy| policy.selectors[0]).collect();
        assert_eq!((policies.len(), distinct.len()), (100_000, 100_000));
        let others = &policies[..97_000];
        for length in ["/16", "/24", "/32"] {
            let has_length = |policy: &&Policy| policy.selectors[0].remote.to_string().ends_with(length);
            assert!(others.iter().filter(has_length).count() > 10_000, "{length}");
        }
        let others = Spd::new(others.to_vec()).unwrap();
        let spd = Spd::new(policies).unwrap();
        let flow = |number| {
            let source = IpAddr::V4(Ipv4Addr::new(10, 1, 2, 3));
            let ports = Some(NextLayerFields::Ports(1024, 5000));
            Flow::new(Direction::Outbound, source, destination(number), 17, ports)
        };
        for number in 0..sas {
            let own = Verdict::Policy(Action::Protect(TunnelIndex(number)));
            assert_eq!(spd.verdict(&flow(number)), own);
        }
        // Nor do they match the hosts of the maximum number of tunnels.
        assert!((0..100_000).all(|number| others.verdict(&flow(number)) == Verdict::NoPolicy));
    }
}
