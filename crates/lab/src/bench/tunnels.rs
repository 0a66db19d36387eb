//! The tunnels of a measurement, told from either side.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use testudo_crypto::{KeyMaterial, Suite};
use testudo_gateway::{KeyPair, TunnelInstall, Update, Worker};
use testudo_ipsec::{
    Action, Dscp, Endpoints, Lease, Lifetime, Moment, Policy, Prefix, SaParameters, Selector, Spd,
    TunnelIndex, TunnelParameters,
};
use zeroize::Zeroizing;

use super::case::{Case, Way};
use super::error::Wrong;
use super::load::{Draw, destination};

/// The replay window of `testudo run`, if its configuration says nothing else.
const REPLAY_WINDOW: u32 = 4096;
/// More numbers than any measurement takes.
const NUMBERS: u64 = 1 << 40;
/// Outer headers, ESP header, IV, padding, trailer and ICV of any suite, and something more.
pub(super) const OVERHEAD_BYTES: usize = 256;

fn prefix(address: IpAddr, length: u8) -> Result<Prefix, Wrong> {
    Prefix::new(address, length).map_err(|e| e.to_string())
}

/// Tunnel `number` carries 10.0.0.0/8 to a host of its own.
fn selector(number: u32, side: Way) -> Result<Selector, Wrong> {
    let sites = (prefix(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 0)), 8)?, prefix(destination(number), 32)?);
    Ok(match side {
        Way::Outbound => Selector::between(sites.0, sites.1),
        Way::Inbound => Selector::between(sites.1, sites.0),
    })
}

fn key(suite: Suite, spi: u32) -> Result<KeyMaterial, Wrong> {
    let bytes = Draw(spi.into()).bytes(suite.keying_material_bytes());
    KeyMaterial::new(suite, Zeroizing::new(bytes)).map_err(|e| e.to_string())
}

fn sa(spi: u32, key: &KeyMaterial) -> SaParameters {
    // A suite without a salt has none to put here.
    let salt = key.salt().try_into().unwrap_or_default();
    SaParameters { spi, salt, lifetime: Lifetime::default() }
}

/// Tunnel `number` on the side whose packets go `side`: outbound from here, or inbound to here.
fn tunnel(case: &Case, number: u32, side: Way) -> Result<TunnelInstall, Wrong> {
    let (there, back) = (0x10_0000 + 2 * number, 0x10_0001 + 2 * number);
    let ends = [Ipv4Addr::new(1, 1, 1, 1), Ipv4Addr::new(2, 2, 2, 2)].map(IpAddr::V4);
    let (local, remote, outbound, inbound) = match side {
        Way::Outbound => (ends[0], ends[1], there, back),
        Way::Inbound => (ends[1], ends[0], back, there),
    };
    let suite = case.suites.of(number);
    let keys = KeyPair { outbound: key(suite, outbound)?, inbound: key(suite, inbound)? };
    let parameters = TunnelParameters {
        name: format!("tunnel {number}").into(),
        endpoints: Endpoints { local, remote: Some(remote), encapsulation: case.carrier.encapsulation() },
        learn_remote: false,
        suite,
        esn: true,
        replay_window: REPLAY_WINDOW,
        dscp: Dscp::Copy,
        path_mtu: case.size.longest_bytes() + OVERHEAD_BYTES,
        keepalive: None,
        selectors: Arc::from([selector(number, side)?]),
        outbound: sa(outbound, &keys.outbound),
        inbound: sa(inbound, &keys.inbound),
        first_sequence: 1,
        lease: Arc::new(Lease::until(NUMBERS)),
        iv_seed: 0,
    };
    Ok(TunnelInstall { index: TunnelIndex(number), parameters, keys, window: None, inherits: None })
}

/// Installs the tunnels of `case` and their policies.
pub(super) fn install(worker: &mut Worker, case: &Case, side: Way) -> Result<(), Wrong> {
    let policy = |number| {
        Ok(Policy { selector: selector(number, side)?, action: Action::Protect(TunnelIndex(number)) })
    };
    let policies = (0..case.sas).map(policy).collect::<Result<Vec<_>, Wrong>>()?;
    apply(worker, case, side, Update { policies: Some(Arc::new(Spd::new(policies))), ..Update::default() })
}

/// Removes the tunnels and installs them anew, with sequence numbers from 1 and empty replay windows.
pub(super) fn reinstall(worker: &mut Worker, case: &Case, side: Way) -> Result<(), Wrong> {
    let remove = (0..case.sas).map(TunnelIndex).collect();
    apply(worker, case, side, Update { remove, ..Update::default() })
}

fn apply(worker: &mut Worker, case: &Case, side: Way, mut update: Update) -> Result<(), Wrong> {
    update.install = (0..case.sas).map(|number| tunnel(case, number, side)).collect::<Result<_, Wrong>>()?;
    for (_, outcome) in worker.update(update, Moment::default()) {
        outcome.map_err(|e| e.to_string())?;
    }
    Ok(())
}
