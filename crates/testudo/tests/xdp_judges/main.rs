//! Foreign implementations judge what AF_XDP ports send and receive: a Linux kernel as the other gateway, and
//! Scapy at the other end of the wire. As root, as `tests/xdp`.
//!
//! ```text
//!   left host ══ Testudo ══ router ══ 1400 bytes ══ router ══ Linux: ip xfrm ══ right host
//!            AF_XDP   AF_XDP  │                               (in a virtual machine)
//!                           Scapy
//! ```

#[path = "../support/mod.rs"]
mod support;

mod linux;
mod scapy;
#[path = "../linux_gateway/site.rs"]
#[allow(dead_code, reason = "shared with the tests of a Linux gateway")]
mod site;

use site::{Kind, Protocol, Site};
use std::process::ExitCode;
use support::sites::Network;
use testudo_judge::harness::Suite;

/// AF_XDP at both sides.
mod port {
    use crate::support::Outcome;
    use crate::support::config::Config;
    use crate::support::sites::Network;

    pub fn choose(end: &mut Config) {
        end.with_xdp("mode = \"native\"");
    }

    /// The port is on the cables.
    #[allow(clippy::unnecessary_wraps, reason = "other ports have something to do here, which may fail")]
    pub fn plug(_: &Network) -> Outcome<()> {
        Ok(())
    }

    pub fn wan_mac(network: &Network) -> Outcome<String> {
        crate::scapy::mac(&network.a, "wan")
    }
}

fn tests(suite: Suite<'_, Site>) -> Suite<'_, Site> {
    let [esp, over_ipv6, in_udp, ah] = Kind::ALL;
    let in_udp_over_ipv6 = Kind { protocol: Protocol::EspInUdp, over_ipv6: true, in_transport: false };
    suite
        .test("hosts_behind_af_xdp_and_linux_reach_each_other_by_esp_over_ipv4", move |site| {
            linux::reach(site, esp)
        })
        .test("hosts_behind_af_xdp_and_linux_reach_each_other_by_esp_over_ipv6", move |site| {
            linux::reach(site, over_ipv6)
        })
        .test("hosts_behind_af_xdp_and_linux_reach_each_other_by_esp_in_udp", move |site| {
            linux::reach(site, in_udp)
        })
        .test("hosts_behind_af_xdp_and_linux_reach_each_other_by_esp_in_udp_over_ipv6", move |site| {
            linux::reach(site, in_udp_over_ipv6)
        })
        .test("hosts_behind_af_xdp_and_linux_reach_each_other_by_ah", move |site| linux::reach(site, ah))
        .test("scapy_and_an_af_xdp_port_exchange_esp_over_ipv4", |site| scapy::exchange(site, false, "esp"))
        .test("scapy_and_an_af_xdp_port_exchange_esp_over_ipv6", |site| scapy::exchange(site, true, "esp"))
        .test("scapy_and_an_af_xdp_port_exchange_esp_in_udp", |site| scapy::exchange(site, false, "udp"))
        .test("scapy_and_an_af_xdp_port_exchange_ah", |site| scapy::exchange(site, false, "ah"))
}

fn main() -> ExitCode {
    if std::env::var_os("TESTUDO_WITHOUT_XDP").is_some() {
        println!("xdp_judges: skipped, TESTUDO_WITHOUT_XDP is set");
        return ExitCode::SUCCESS;
    }
    tests(Suite::new()).run(|| Site::build_on(Network::build_for_xdp))
}
