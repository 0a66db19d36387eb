//! A site behind a Linux gateway, each protocol and IP version in turn.

use crate::site::{Kind, Site, stop};
use crate::support::ensure;
use std::net::IpAddr;
use std::time::Duration;
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::traffic::{ping, tcp_stream, udp_echo};

pub fn tests(suite: Suite<'_, Site>) -> Suite<'_, Site> {
    let [esp, over_ipv6, in_udp, ah] = Kind::ALL;
    suite
        .test("hosts_behind_af_xdp_and_linux_reach_each_other_by_esp_over_ipv4", move |site| reach(site, esp))
        .test("hosts_behind_af_xdp_and_linux_reach_each_other_by_esp_over_ipv6", move |site| {
            reach(site, over_ipv6)
        })
        .test("hosts_behind_af_xdp_and_linux_reach_each_other_by_esp_in_udp", move |site| reach(site, in_udp))
        .test("hosts_behind_af_xdp_and_linux_reach_each_other_by_ah", move |site| reach(site, ah))
}

const SIZES: [usize; 3] = [1, 64, 1200];
const SECOND: Duration = Duration::from_secs(1);

fn reach(site: &mut Site, kind: Kind) -> TestResult {
    let gateway = site.connect_with(kind, "", |end| end.with_xdp("mode = \"native\""))?;
    let (left, right) = (&site.network.left, &site.network.right);
    for [at_left, at_right] in [["10.1.0.2", "10.2.0.10"], ["fd01::2", "fd02::10"]] {
        let [at_left, at_right]: [IpAddr; 2] = [at_left.parse()?, at_right.parse()?];
        let both = [(left, right, at_right), (right, left, at_left)];
        for (from, to, address) in both {
            let lost = ping(from, address, 5, SECOND)?.lost;
            ensure(lost == 0, || format!("{lost} pings to {address} were lost\n{}", gateway.log()))?;
            // Both ways, so that hosts know the path when datagrams follow, which nobody sends again.
            tcp_stream(from, to, address, SECOND / 5, &mut |_, _| ())?;
        }
        for (from, to, address) in both {
            let lost = udp_echo(from, to, address, &SIZES)?.lost;
            ensure(lost == 0, || format!("{lost} datagrams to {address} were lost\n{}", gateway.log()))?;
        }
    }
    let errors = site.errors_of_linux()?;
    ensure(errors.is_empty(), || format!("Linux counted {errors}"))?;
    stop(gateway, &["icmp_believed", "icmp_ignored", "too_big"])
}
