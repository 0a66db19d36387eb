//! A site behind a Linux gateway, each protocol and IP version in turn.

use crate::port;
use crate::site::{Kind, Site, stop};
use crate::support::ensure;
use crate::support::gateway::Gateway;
use crate::support::wait::PATIENCE;
use std::net::IpAddr;
use std::time::Duration;
use testudo_judge::harness::TestResult;
use testudo_lab::traffic::{ping, tcp_stream, udp_echo};

const SIZES: [usize; 3] = [1, 64, 1200];
const SECOND: Duration = Duration::from_secs(1);

pub fn reach(site: &mut Site, kind: Kind) -> TestResult {
    let gateway = site.connect_with(kind, "", port::choose)?;
    port::plug(&site.network)?;
    let (left, right) = (&site.network.left, &site.network.right);
    for [at_left, at_right] in [["10.1.0.2", "10.2.0.10"], ["fd01::2", "fd02::10"]] {
        let [at_left, at_right]: [IpAddr; 2] = [at_left.parse()?, at_right.parse()?];
        let both = [(left, right, at_right), (right, left, at_left)];
        for (from, to, address) in both {
            // An emulated machine beside other tests may answer after seconds: what counts is that it does.
            let lost = ping(from, address, 5, PATIENCE)?.lost;
            ensure(lost == 0, || format!("{lost} pings to {address} were lost\n{}", told(&gateway)))?;
            // Both ways, so that hosts know the path when datagrams follow, which nobody sends again.
            tcp_stream(from, to, address, SECOND / 5, &mut |_, _| ())?;
        }
        for (from, to, address) in both {
            let lost = udp_echo(from, to, address, &SIZES)?.lost;
            ensure(lost == 0, || format!("{lost} datagrams to {address} were lost\n{}", told(&gateway)))?;
        }
    }
    let errors = site.errors_of_linux()?;
    ensure(errors.is_empty(), || format!("Linux counted {errors}"))?;
    // Where no kernel has the port, it drops what is not for it: bridges send some of that to all.
    stop(gateway, &["icmp_believed", "icmp_ignored", "too_big", "link_control", "other_mac"])
}

/// What the gateway knows of packets that did not arrive.
fn told(gateway: &Gateway) -> String {
    let drops = match gateway.ask_json(&["status"]) {
        Ok(status) => status["drops"].to_string(),
        Err(error) => error.to_string(),
    };
    format!("dropped: {drops}\n{}", gateway.log())
}
