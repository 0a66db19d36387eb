//! Foreign implementations judge what a gateway over DPDK's TAP devices sends and receives: a Linux kernel as
//! the other gateway, and Scapy at the other end of the wire. As root, as `tests/xdp_judges`.
//!
//! ```text
//!   left host ══ Testudo ══ router ══ 1400 bytes ══ router ══ Linux: ip xfrm ══ right host
//!         br-lan         br-wan │                              (in a virtual machine)
//!         dtap0          dtap1  Scapy
//! ```

#[path = "../support/mod.rs"]
mod support;

#[path = "../xdp_judges/linux.rs"]
mod linux;
#[path = "../xdp_judges/scapy.rs"]
mod scapy;
#[path = "../linux_gateway/site.rs"]
#[allow(dead_code, reason = "shared with the tests of a Linux gateway")]
mod site;

use site::{Kind, Protocol, Site};
use std::path::Path;
use std::process::{Command, ExitCode};
use support::sites::Network;
use support::{Outcome, ensure};
use testudo_judge::harness::Suite;

/// TAP devices of DPDK's at both sides, which bridges join to the cables.
mod port {
    use crate::support::Outcome;
    use crate::support::config::Config;
    use crate::support::sites::{Network, OUTER};
    use std::path::{Path, PathBuf};

    const OURS: [&str; 2] = [OUTER[0][0], OUTER[1][0]];

    pub fn plugin() -> PathBuf {
        Path::new(env!("CARGO_TARGET_TMPDIR")).join("dpdk_judges/libtestudo-dpdk.so")
    }

    pub fn choose(end: &mut Config) {
        end.with_dpdk_taps(&plugin());
    }

    pub fn plug(network: &Network) -> Outcome<()> {
        let a = &network.a;
        for (tap, cable) in [("dtap0", "lan"), ("dtap1", "wan")] {
            // Of its own: to a bridge the address of an interface is the bridge's, and this one is the
            // port's.
            let own = format!("02:00:00:00:0b:0{}", &tap[4..]);
            a.run(&["ip", "link", "set", tap, "address", &own, "up"])?;
            a.run(&["ip", "link", "set", tap, "master", &format!("br-{cable}")])?;
        }
        // Each port has an address of its own, and those beside it know the one before.
        let beside = [(&network.left, "lan", ["10.1.0.1", "fd01::1"]), (&network.routers[0], "wan", OURS)];
        for (host, interface, addresses) in beside {
            host.run(&["ip", "neighbour", "flush", "dev", interface])?;
            for address in addresses {
                host.run(&["ping", "-q", "-c", "1", "-w", "20", address])?;
            }
        }
        Ok(())
    }

    /// What the port says that its address is.
    pub fn wan_mac(network: &Network) -> Outcome<String> {
        let router = &network.routers[0];
        let shown = router.run(&["ip", "neighbour", "show", OURS[0]])?;
        let mut words = shown.split_whitespace().skip_while(|word| *word != "lladdr").skip(1);
        Ok(words.next().ok_or("the port does not say its link-layer address")?.to_owned())
    }
}

/// The left gateway's cables end in bridges, and the kernel has no address there.
fn network() -> Outcome<Network> {
    let network = Network::build_for_xdp()?;
    let a = &network.a;
    for cable in ["lan", "wan"] {
        let bridge = format!("br-{cable}");
        a.run(&["ip", "address", "flush", "dev", cable])?;
        a.run(&["ip", "link", "add", &bridge, "type", "bridge"])?;
        a.run(&["ip", "link", "set", cable, "master", &bridge])?;
        a.sysctl(&format!("net.ipv6.conf.{bridge}.disable_ipv6"), "1")?;
        a.link_up(&bridge)?;
    }
    Ok(network)
}

fn build_plugin() -> Outcome<()> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/shim.sh");
    let folder = port::plugin();
    let folder = folder.parent().ok_or("the plugin has no folder")?;
    let built = Command::new(script).arg(folder).arg("dpdk").status()?;
    ensure(built.success(), || {
        "the plugin cannot be built; TESTUDO_WITHOUT_DPDK=1 leaves these out".to_owned()
    })
}

fn tests(suite: Suite<'_, Site>) -> Suite<'_, Site> {
    let [esp, over_ipv6, in_udp, ah] = Kind::ALL;
    let in_udp_over_ipv6 = Kind { protocol: Protocol::EspInUdp, over_ipv6: true, in_transport: false };
    suite
        .test("hosts_behind_dpdk_and_linux_reach_each_other_by_esp_over_ipv4", move |site| {
            linux::reach(site, esp)
        })
        .test("hosts_behind_dpdk_and_linux_reach_each_other_by_esp_over_ipv6", move |site| {
            linux::reach(site, over_ipv6)
        })
        .test("hosts_behind_dpdk_and_linux_reach_each_other_by_esp_in_udp", move |site| {
            linux::reach(site, in_udp)
        })
        .test("hosts_behind_dpdk_and_linux_reach_each_other_by_esp_in_udp_over_ipv6", move |site| {
            linux::reach(site, in_udp_over_ipv6)
        })
        .test("hosts_behind_dpdk_and_linux_reach_each_other_by_ah", move |site| linux::reach(site, ah))
        .test("scapy_and_a_dpdk_port_exchange_esp_over_ipv4", |site| scapy::exchange(site, false, "esp"))
        .test("scapy_and_a_dpdk_port_exchange_esp_over_ipv6", |site| scapy::exchange(site, true, "esp"))
        .test("scapy_and_a_dpdk_port_exchange_esp_in_udp", |site| scapy::exchange(site, false, "udp"))
        .test("scapy_and_a_dpdk_port_exchange_ah", |site| scapy::exchange(site, false, "ah"))
}

fn main() -> ExitCode {
    if std::env::var_os("TESTUDO_WITHOUT_DPDK").is_some() {
        println!("dpdk_judges: skipped, TESTUDO_WITHOUT_DPDK is set");
        return ExitCode::SUCCESS;
    }
    tests(Suite::new()).run(|| {
        build_plugin()?;
        Site::build_on(network)
    })
}
