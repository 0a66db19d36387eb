//! What the guest is told: addresses, and the states and policies of `ip xfrm`.

use crate::slot::{SLOTS, Slot};
use crate::support::config::{Sa, Tunnel};
use testudo_crypto::Suite;
use testudo_judge::interop::{Mode, Protocol, Row};

/// The commands, in the syntax of `ip -batch`, that give the guest the addresses of every slot.
///
/// Each has a route of its own from the guest to our end, so that datagrams of servers that are bound to any
/// address leave with the slot's.
pub fn addresses() -> String {
    let mut batch = String::new();
    let mut routes = String::new();
    for slot in (0..SLOTS).map(Slot) {
        for ipv6 in [false, true] {
            let [(our_outer, outer), (ours, inner)] = [slot.outer(ipv6), slot.inner(ipv6)];
            let [network, host, nodad] = if ipv6 { ["64", "128", "nodad"] } else { ["24", "32", ""] };
            batch += &format!("address add {outer}/{network} dev eth0 {nodad}\n");
            batch += &format!("address add {inner}/{host} dev lo {nodad}\n");
            routes += &format!("route add {our_outer}/{host} dev eth0 src {outer}\n");
            routes += &format!("route add {ours}/{host} dev eth0 src {inner}\n");
        }
    }
    format!("{batch}link set eth0 up\n{routes}")
}

/// The algorithms and keys of a suite in the syntax of `ip xfrm state`; `None` if Linux has no name for one.
fn algorithms(protocol: &str, suite: Suite, key: &str) -> Option<String> {
    let cipher = suite.cipher().info().linux?;
    let integrity = suite.integrity().info().linux;
    let icv_bits = 8 * suite.icv_bytes();
    if suite.is_combined() {
        return Some(format!("aead '{cipher}' 0x{key} {icv_bits}"));
    }
    if protocol == "ah" {
        return Some(format!("auth-trunc '{integrity}' 0x{key} {icv_bits}"));
    }
    // Linux takes the salt of counter mode for the end of the key, as RFC 3686 5.1 does.
    let (cipher_key, integrity_key) = key.split_at(2 * (suite.key_bytes() + suite.salt_bytes()));
    let cipher_key = if cipher_key.is_empty() { "''".to_owned() } else { format!("0x{cipher_key}") };
    Some(format!("enc '{cipher}' {cipher_key} auth-trunc '{integrity}' 0x{integrity_key} {icv_bits}"))
}

/// The protocols of a row at the guest, the inner one first, each with its mode, suite, and SAs from the host
/// and to it.
fn layers<'a>(row: &Row, tunnel: &'a Tunnel) -> Vec<(&'static str, Mode, Suite, [&'a Sa; 2])> {
    let name = if row.protocol == Protocol::Ah { "ah" } else { "esp" };
    let mut layers = vec![(name, row.mode, row.suite, [&tunnel.outbound, &tunnel.inbound])];
    if let (Some(suite), Some([outbound, inbound])) = (row.ah, &tunnel.covered_by) {
        layers.push(("ah", Mode::Transport, suite, [outbound, inbound]));
    }
    layers
}

/// The commands, in the syntax of `ip -batch`, that configure the guest's end of `tunnel`, which is given
/// from the host's point of view; `None` if Linux has no name for the row's suite.
pub fn states_and_policies(row: &Row, slot: Slot, tunnel: &Tunnel, replay_window: u32) -> Option<String> {
    let (host, guest) = (&tunnel.local, &tunnel.remote);
    let reqid = slot.0 + 1;
    let any = if row.ipv6 { "::" } else { "0.0.0.0" };
    let in_udp = row.protocol == Protocol::EspInUdp;
    let encapsulation = if in_udp { format!("encap espinudp 4500 4500 {any}") } else { String::new() };
    let (mut batch, mut inward, mut outward) = (String::new(), String::new(), String::new());
    for (protocol, mode, suite, sas) in layers(row, tunnel) {
        for (sa, [from, to]) in sas.into_iter().zip([[host, guest], [guest, host]]) {
            let algorithms = algorithms(protocol, suite, &sa.key)?;
            batch += &format!(
                "xfrm state add src {from} dst {to} proto {protocol} spi {:#x} reqid {reqid} mode {} {} \
                 {encapsulation} {algorithms}\n",
                sa.spi,
                mode.name(),
                window(row, protocol, mode, replay_window),
            );
        }
        let mode = mode.name();
        inward += &format!(" tmpl src {host} dst {guest} proto {protocol} reqid {reqid} mode {mode}");
        outward += &format!(" tmpl src {guest} dst {host} proto {protocol} reqid {reqid} mode {mode}");
    }
    for (ours, theirs) in &tunnel.selectors {
        batch += &format!(
            "xfrm policy add src {theirs} dst {ours} dir out priority 10{outward}\n\
             xfrm policy add src {ours} dst {theirs} dir in priority 10{inward}\n"
        );
    }
    Some(batch)
}

/// The replay window and the flags of a state.
fn window(row: &Row, protocol: &str, mode: Mode, replay_window: u32) -> String {
    let mut flags = Vec::new();
    if row.esn {
        flags.push("esn");
    }
    // RFC 4302 2.6: over IPv4 the header's length is a multiple of 4 bytes; without the flag Linux makes it
    // one of 8, as over IPv6.
    if protocol == "ah" && !row.ipv6 {
        flags.push("align4");
    }
    // Either version inside; Linux has that in tunnel mode alone.
    if mode == Mode::Tunnel {
        flags.push("af-unspec");
    }
    let flags = if flags.is_empty() { String::new() } else { format!("flag {}", flags.join(" ")) };
    format!("replay-window {replay_window} {flags}")
}

/// The beginning of the script that configures the guest: nothing is left of what was there.
///
/// In transport mode a policy is about all packets between two hosts. Linux applies it to Neighbor Discovery,
/// on which the first packet waits, and to the datagrams that ESP arrives in: RFC 4301 4.4.1 has bypass
/// policies for such. (A key exchange daemon sets the second on its socket.)
pub fn fresh() -> String {
    let mut batch = "xfrm state flush\nxfrm policy flush\n".to_owned();
    // By number: the guest has no /etc/protocols.
    let clear = [
        ("::/0", "proto 58 type 135 code 0"),
        ("::/0", "proto 58 type 136 code 0"),
        ("::/0", "proto 17 sport 4500 dport 4500"),
        ("0.0.0.0/0", "proto 17 sport 4500 dport 4500"),
    ];
    for (direction, (any, packets)) in ["in", "out"].into_iter().flat_map(|d| clear.map(|c| (d, c))) {
        batch += &format!(
            "xfrm policy add src {any} dst {any} {packets} dir {direction} priority 1 action allow\n"
        );
    }
    batch
}

/// A command that gives `batch` to `ip`, in the syntax of the guest's shell.
pub fn ip_batch(batch: &str) -> String {
    format!("/usr/bin/ip -batch - <<'END' 2>&1\n{batch}END\n")
}
