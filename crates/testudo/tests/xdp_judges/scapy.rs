//! Scapy at the other end of the wire: it seals echo requests to a host behind the gateway, and opens what
//! comes back, of ESP, ESP in UDP and AH.

use crate::port;
use crate::site::Site;
use crate::support::config::{Config, Sa};
use crate::support::gateway::Gateway;
use crate::support::sites::{Network, OUTER};
use crate::support::{Outcome, ensure, wait};
use std::path::Path;
use testudo_crypto::Suite as Algorithms;
use testudo_judge::harness::TestResult;
use testudo_judge::scapy::Scapy;
use testudo_lab::namespaces::Namespace;

const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/scapy");

/// The link-layer address of an interface.
pub fn mac(host: &Namespace, interface: &str) -> Outcome<String> {
    let shown = host.run(&["ip", "-o", "link", "show", "dev", interface])?;
    let mut words = shown.split_whitespace().skip_while(|word| *word != "link/ether").skip(1);
    Ok(words.next().ok_or("no link-layer address")?.to_owned())
}

/// The left gateway, whose peer is Scapy.
fn config(over_ipv6: bool, kind: &str) -> Outcome<Config> {
    let [mut end, _] = Network::ends(over_ipv6, kind == "udp", "")?;
    port::choose(&mut end);
    let tunnel = &mut end.tunnels[0];
    tunnel.esn = false;
    if kind == "ah" {
        tunnel.suite = "sha256".to_owned();
        tunnel.more = "protocol = \"ah\"".to_owned();
        for sa in [&mut tunnel.outbound, &mut tunnel.inbound] {
            *sa = Sa::of(sa.spi, Algorithms::for_ah("sha256")?)?;
        }
    }
    Ok(end)
}

pub fn exchange(site: &mut Site, over_ipv6: bool, kind: &str) -> TestResult {
    Scapy::find(Path::new(SCRIPTS))?;
    let config = config(over_ipv6, kind)?;
    let folder = site.network.folder_of(&config)?;
    let gateway = Gateway::start(&site.network.a, &folder)?;
    port::plug(&site.network)?;
    let (router, tunnel) = (&site.network.routers[0], &config.tunnels[0]);
    let [local, remote] = OUTER[usize::from(over_ipv6)];
    let (own_mac, gateway_mac) = (mac(router, "wan")?, port::wan_mac(&site.network)?);
    let mut command = router.command("/usr/bin/python3");
    command.arg("-B").arg(Path::new(SCRIPTS).join("on_the_wire.py"));
    command.args(["wan", &own_mac, &gateway_mac, kind, remote, local]);
    for sa in [&tunnel.inbound, &tunnel.outbound] {
        command.args([sa.spi.to_string(), sa.key.clone()]);
    }
    let output = wait::output(&mut command)?;
    let said = [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    ensure(output.status.success(), || format!("{}\n{}", said.join("\n"), gateway.log()))?;
    for reason in ["authentication_failed", "esp_malformed", "ah_malformed", "replay_duplicate"] {
        assert_eq!(gateway.dropped(reason)?, 0, "{reason}");
    }
    gateway.stop()
}
