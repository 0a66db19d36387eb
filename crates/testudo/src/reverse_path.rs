//! Whether Linux drops what a peer sends because of where the route back to it leads.

use std::fs;
use std::net::IpAddr;
use testudo_control::Configuration;
use testudo_control::firewall::routed_peers;

/// The strict reverse path filter (RFC 3704 2.2): a packet must come by the interface of the route to its
/// source.
const STRICT: u32 = 1;

/// The warning, in a line, if a route into the tunnel holds a peer's own address, and the strict filter would
/// therefore drop all that comes from it by the outer interface. There is no such filter for IPv6.
pub fn warning(configuration: &Configuration) -> Option<String> {
    let interface = configuration.unprotected.interface.as_ref()?;
    warning_for(interface, routed_peers(configuration).find(IpAddr::is_ipv4)?)
}

/// The same for a peer in a network whose route is new.
pub fn warning_of(configuration: &Configuration, peer: IpAddr) -> Option<String> {
    warning_for(configuration.unprotected.interface.as_ref().filter(|_| peer.is_ipv4())?, peer)
}

/// The same where packets of the peer may arrive by any interface but the tunnel's.
pub fn warning_anywhere(tunnel: &str, peer: IpAddr) -> Option<String> {
    let entries = fs::read_dir("/proc/sys/net/ipv4/conf").ok().filter(|_| peer.is_ipv4())?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> =
        names.filter(|name| !["all", "default", "lo", tunnel].contains(&name.as_str())).collect();
    names.sort();
    names.iter().find_map(|interface| warning_for(interface, peer))
}

fn warning_for(interface: &str, peer: IpAddr) -> Option<String> {
    // The greater value counts (the kernel's ip-sysctl documentation).
    let value = ["all", interface].into_iter().filter_map(filter).max();
    // sysctl(8) separates by dots, and writes a dot within a name as a slash.
    let name = format!("net.ipv4.conf.{}.rp_filter", interface.replace('.', "/"));
    (value == Some(STRICT)).then(|| {
        format!(
            "packets of the peer {peer} are dropped if they arrive by {interface}: the route to it leads into the tunnel, \
             and {name} is strict; make it loose with `sysctl -w {name}=2`"
        )
    })
}

/// The filter's mode at an interface, if this host has that.
fn filter(interface: &str) -> Option<u32> {
    fs::read_to_string(format!("/proc/sys/net/ipv4/conf/{interface}/rp_filter")).ok()?.trim().parse().ok()
}
