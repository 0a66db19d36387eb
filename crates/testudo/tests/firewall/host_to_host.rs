//! A tunnel between the outer addresses themselves.

use crate::site::{OUR_OUTER, OUTER, Site, firewall, hears, socket};
use crate::support::ensure;
use crate::support::gateway::Gateway;
use crate::support::link::LINK;
use crate::support::wait::PATIENCE;
use std::net::{Ipv4Addr, SocketAddr};
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::traffic::ping;

pub fn tests<'a>(suite: Suite<'a, Site>) -> Suite<'a, Site> {
    suite.test("a_tunnel_between_outer_addresses_needs_an_interface_and_then_works", works_by_an_interface)
}

fn works_by_an_interface(site: &mut Site) -> TestResult {
    let mut pair = Site::pair()?;
    for config in &mut pair {
        let (local, remote) = (config.tunnels[0].local.clone(), config.tunnels[0].remote.clone());
        config.tunnels[0].selectors = vec![(local, remote)];
        config.addresses.clear();
    }
    let folder = site.link.write(&pair[0])?;
    let said = firewall(&site.link.a, &folder, &[])?;
    let told = said.stderr.contains("lead the tunnel's own packets back into the tunnel");
    ensure(said.code == Some(2) && told, || format!("{said:#?}"))?;
    for config in &mut pair {
        config.unprotected = format!("interface = \"{LINK}\"");
    }
    let rules = site.protected(&pair[0])?;
    let gateway = Gateway::start(&site.link.a, &rules.folder)?;
    let (peer, _) = site.link.start_b(&pair[1])?;
    let trips = ping(&site.link.a, OUTER[0].parse()?, 3, PATIENCE)?;
    ensure(trips.lost == 0, || format!("{} of 3 pings were lost", trips.lost))?;
    let sealed = gateway.sa("a-b", "outbound")?["packets"].as_u64();
    ensure(sealed == Some(3), || format!("{sealed:?} packets were sealed"))?;
    peer.stop()?;
    // Between the same addresses, clear packets are refused from now on.
    let receiver = socket(&site.link.a, OUR_OUTER[0], 7007)?;
    let to: SocketAddr = receiver.local_addr()?;
    site.link.b.address(LINK, "192.0.2.9/24")?;
    socket(&site.link.b, OUTER[0], 0)?.send_to(b"clear", to)?;
    socket(&site.link.b, "192.0.2.9", 0)?.send_to(b"another host", to)?;
    let others = hears(&receiver, b"another host", Ipv4Addr::new(192, 0, 2, 9).into())?;
    site.link.b.run(&["ip", "address", "del", "192.0.2.9/24", "dev", LINK])?;
    ensure(others.is_empty(), || format!("heard {others:?}"))?;
    gateway.stop()
}
