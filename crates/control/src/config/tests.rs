//! One test per kind of error, against the words that an operator reads.

mod engines;
mod fast_ports;
mod groups;
mod interfaces;
mod populate;
mod scheduler;
mod selectors;
mod vpe;
mod workers;

use super::*;
use crate::keys::KeySource;
use proptest::prelude::*;
use std::time::Duration;
use testudo_ipsec::{
    Df, Dscp, Encapsulation, FlowLabel, Fragmentation, IpsecProtocol, Lifetime, Mode, MssClamp, PortRange,
    Protocol, ReplayError, ReplayWindow, TunnelIndex,
};

/// The smallest configuration.
pub(crate) const MINIMAL: &str = r#"
[gateway]
state = "state.redb"

[port.protected]
kind = "tun"
name = "testudo0"

[port.unprotected]
kind = "socket"

[[tunnel]]
name = "site-b"
local = "192.0.2.1"
remote = "192.0.2.2"
suite = "aes128gcm16"
selectors = [ { local = "10.1.0.0/16", remote = "10.2.0.0/16" } ]
outbound = { spi = 0x1001, key_file = "out.key" }
inbound = { spi = 0x1002, key_file = "in.key" }
"#;

/// A second tunnel that conflicts with the first in nothing.
const SECOND: &str = r#"
[[tunnel]]
name = "site-c"
local = "192.0.2.1"
remote = "192.0.2.3"
suite = "aes128gcm16"
selectors = [ { local = "10.1.0.0/16", remote = "10.3.0.0/16" } ]
outbound = { spi = 0x2001, key_file = "c-out.key" }
inbound = { spi = 0x2002, key_file = "c-in.key" }
"#;

fn good(text: &str) -> Configuration {
    Configuration::parse(text, "/etc/testudo/t.toml").unwrap_or_else(|errors| panic!("{errors}"))
}

fn errors(text: &str) -> Vec<ConfigError> {
    match Configuration::parse(text, "t.toml") {
        Ok(configuration) => panic!("accepted: {configuration:?}"),
        Err(errors) => errors.errors().to_vec(),
    }
}

/// The only error of `text`, as `key: expected …, found …[; help]`.
fn error(text: &str) -> String {
    let errors = errors(text);
    assert_eq!(errors.len(), 1, "{errors:#?}");
    let ConfigError { key, expected, found, help, .. } = &errors[0];
    let help = help.as_ref().map(|help| format!("; {help}")).unwrap_or_default();
    format!("{key}: expected {expected}, found {found}{help}")
}

/// The minimal configuration with `from` replaced.
fn with(from: &str, to: &str) -> String {
    assert!(MINIMAL.contains(from), "{from}");
    MINIMAL.replacen(from, to, 1)
}

/// The minimal configuration with lines added to its tunnel.
fn in_tunnel(lines: &str) -> String {
    with("name = \"site-b\"", &format!("name = \"site-b\"\n{lines}"))
}

fn in_gateway(lines: &str) -> String {
    with("[gateway]", &format!("[gateway]\n{lines}"))
}

#[track_caller]
fn expect(text: &str, parts: &[&str]) {
    let message = error(text);
    for part in parts {
        assert!(message.contains(part), "no {part:?} in: {message}");
    }
}

#[test]
fn defaults_are_filled_in_and_paths_start_at_the_files_folder() {
    let configuration = good(MINIMAL);
    let Gateway {
        state,
        control,
        metrics,
        dashboard,
        engines,
        engines_named,
        log,
        audit,
        buffers,
        buffers_named,
        seccomp,
        allow_key_export,
        workers,
        workers_max,
        spread_inbound,
    } = configuration.gateway;
    assert_eq!(state, Path::new("/etc/testudo/state.redb"));
    assert_eq!(control, Path::new("/run/testudo/control.sock"));
    assert_eq!(audit, AuditTarget::Log);
    assert_eq!((metrics, log, buffers, seccomp), (None, LogLevel::Info, 4096, true));
    assert!(!allow_key_export && !buffers_named && dashboard.is_none());
    assert_eq!((workers, workers_max), (Workers::Count(1), None));
    assert_eq!(spread_inbound, SpreadInbound::BySa);
    assert_eq!(
        (engines_named, engines.as_slice()),
        (false, &["vaes", "ipsec-mb", "portable"].map(str::to_owned)[..])
    );
    assert_eq!((configuration.protected.mtu, configuration.protected.routes), (1446, true));
    assert_eq!(
        configuration.unprotected,
        UnprotectedPort { kind: PortKind::Host, mtu: 1500, interface: None, offload: Offload::Auto }
    );
    assert_eq!(configuration.protected.kind, PortKind::Host);
    let tunnel = &configuration.tunnels[0];
    assert_eq!((tunnel.esn, tunnel.replay_window, tunnel.dscp), (true, 4096, Dscp::Copy));
    assert_eq!((tunnel.encapsulation, tunnel.keepalive), (Encapsulation::Esp, None));
    assert_eq!((tunnel.lifetime(), &tunnel.known_answer), (Lifetime::default(), &None));
    assert_eq!(tunnel.outbound.key, KeySource::File("/etc/testudo/out.key".into()));
    let selector = &tunnel.selectors[0][0];
    assert_eq!((selector.protocol, selector.local_ports), (Protocol::Any, PortRange::ANY));
}

#[test]
fn every_key_is_understood() {
    let text = in_tunnel(
        r#"encapsulation = "esp-in-udp"
local_port = 4501
remote_port = 4502
keepalive_seconds = 0
esn = false
replay_window = 64
dscp = 46
lifetime = { soft_bytes = "9 GiB", hard_bytes = "10 GiB", soft_seconds = "7h", hard_seconds = 28800, hard_packets = 5 }
known_answer = { next_sequence_number = 7, iv_seed = 0xffff_ffff_ffff_ffff, inbound_sequence_number = 10, inbound_window = "0x205" }"#,
    );
    let tunnel = &good(&text).tunnels[0];
    let udp = Encapsulation::EspInUdp { local_port: 4501, remote_port: 4502 };
    assert_eq!((tunnel.encapsulation, tunnel.esn, tunnel.dscp), (udp, false, Dscp::Fixed(46)));
    assert_eq!(tunnel.keepalive, None);
    assert_eq!(tunnel.lifetime().hard.bytes, Some(10 << 30));
    assert_eq!(tunnel.lifetime().soft.time, Some(Duration::from_secs(25_200)));
    let received = Some(Received { highest: 10, window: Some([0x05, 0x02].into()) });
    let known_answer = KnownAnswer { next_sequence_number: 7, iv_seed: u64::MAX, received };
    assert_eq!(tunnel.known_answer.as_deref(), Some(&known_answer));
}

#[test]
fn a_road_warriors_address_is_learned_and_its_nat_kept_open() {
    let text = with("remote = \"192.0.2.2\"", "remote = \"any\"\nencapsulation = \"esp-in-udp\"");
    let tunnel = &good(&text).tunnels[0];
    assert_eq!(tunnel.remote, Remote::Any);
    assert_eq!(tunnel.encapsulation, Encapsulation::EspInUdp { local_port: 4500, remote_port: 4500 });
    assert_eq!(tunnel.keepalive, Some(Duration::from_secs(20)));
}

/// Packets are matched against the configured selectors: no translation in between could fall back to
/// everything.
#[test]
fn a_prefix_that_is_wrong_is_an_error_and_never_selects_everything() {
    for wrong in
        ["10.1.0.0/33", "fd00::/129", "10.1.0.0/-1", "10.1.0.0/", "10.1.0.1/16", "::ffff:10.1.0.0/112"]
    {
        expect(&with("10.1.0.0/16", wrong), &["selectors[0].local"]);
    }
    let configuration = good(MINIMAL);
    let spd = crate::service::assemble::policies(&configuration, &[TunnelIndex(0)]);
    let in_force: Vec<_> = spd.policies().map(|(_, policy)| policy.selectors[0]).collect();
    assert_eq!(in_force, *configuration.tunnels[0].selectors[0]);
    assert_eq!(in_force[0].to_string(), "10.1.0.0/16 <-> 10.2.0.0/16");
}

#[test]
fn policies_name_tunnels_and_keep_their_order() {
    let policies = r#"
[[policy]]
action = "protect"
remote = "10.9.0.0/16"
protocol = "udp"
remote_ports = "1000-2000"
tunnel = "site-b"
[[policy]]
action = "discard"
protocol = 47
"#;
    let text = with("selectors = [ { local = \"10.1.0.0/16\", remote = \"10.2.0.0/16\" } ]\n", "") + policies;
    let policies = good(&text).policies;
    assert_eq!(policies[0].action, Action::Protect { tunnel: 0 });
    assert_eq!(policies[0].selectors[0].remote_ports, PortRange { first: 1000, last: 2000 });
    assert_eq!((policies[1].action, policies[1].selectors[0].protocol), (Action::Discard, Protocol::Is(47)));
}

#[test]
fn portable_is_added_last() {
    assert_eq!(good(&in_gateway("engines = [\"ipsec-mb\"]")).gateway.engines, ["ipsec-mb", "portable"]);
    let none = good(&in_gateway("engines = []")).gateway;
    assert_eq!((none.engines_named, none.engines), (true, vec!["portable".to_owned()]));
}

// Errors.

#[test]
fn a_misspelled_key_is_an_error_with_a_suggestion() {
    expect(
        &in_tunnel("replay_windw = 64"),
        &["tunnel[site-b].replay_windw", "did you mean `replay_window`?"],
    );
    expect(
        &in_gateway("banana = 1"),
        &["gateway.banana", "a known key", "the keys here are: state, control"],
    );
    expect(&format!("{MINIMAL}[tunnle]"), &["tunnle", "did you mean `tunnel`?"]);
}

#[test]
fn the_keys_that_are_known_are_listed_once_each() {
    let selector = with("selectors = [ {", "selectors = [ { zzz = 1, ");
    for text in [in_gateway("zzz = 1"), in_tunnel("zzz = 1"), format!("{MINIMAL}zzz = 1"), selector] {
        let errors = Configuration::parse(&text, "t.toml").unwrap_err();
        let help = errors.errors().iter().find_map(|e| e.help.as_deref()).unwrap_or_default();
        let keys: Vec<_> = help.strip_prefix("the keys here are: ").expect(help).split(", ").collect();
        let distinct: std::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len(), "{help}");
    }
}

#[test]
fn a_missing_key_is_an_error_with_an_example() {
    expect(&with("state = \"state.redb\"", ""), &["gateway.state", "the key `state`", "found nothing"]);
    expect(&with("suite = \"aes128gcm16\"", ""), &["tunnel[site-b].suite", "`suite = \"aes128gcm16\"`"]);
    expect(&with("inbound = { spi = 0x1002, key_file = \"in.key\" }", ""), &["tunnel[site-b].inbound"]);
    expect(&with(", key_file = \"in.key\"", ""), &["tunnel[site-b].inbound.key_file"]);
}

#[test]
fn a_missing_section_is_one_error() {
    expect(&with("[port.unprotected]\nkind = \"socket\"", ""), &["the section [port.unprotected]"]);
    let no_ports = with("[port.unprotected]\nkind = \"socket\"", "");
    let no_ports = no_ports.replace("[port.protected]\nkind = \"tun\"\nname = \"testudo0\"", "");
    expect(&no_ports, &["port: expected the section [port.protected] and [port.unprotected]"]);
}

#[test]
fn a_value_of_the_wrong_type_is_an_error() {
    expect(&in_tunnel("esn = \"true\""), &["true or false", "found \"true\"", "without quotes"]);
    expect(&in_tunnel("replay_window = \"64\""), &["a number from 32 to 2097152", "without quotes"]);
    expect(&with("name = \"testudo0\"", "name = 7"), &["found 7", "in quotes"]);
    expect(&in_gateway("log = [1]"), &["gateway.log", "found an array"]);
    expect(&in_tunnel("lifetime = 5"), &["a table", "found an integer"]);
    expect(&with("selectors = [ {", "selectors = [ 5, {"), &["selectors[0]", "a table"]);
    expect(&in_gateway("engines = \"portable\""), &["a list"]);
    expect(
        "tunnel = 5\n[gateway]\nstate = \"s\"\n[port.protected]\nkind = \"tun\"\nname = \"t\"\n[port.unprotected]\nkind = \"socket\"",
        &["a list of tables", "`[[tunnel]]`"],
    );
}

#[test]
fn a_number_out_of_range_is_an_error_with_the_range() {
    expect(
        &in_tunnel("replay_window = 16"),
        &["replay_window: expected a number from 32 to 2097152, found 16"],
    );
    expect(&in_tunnel("replay_window = 100"), &["a multiple of 32", "write 96 or 128"]);
    expect(&in_tunnel("dscp = 64"), &["\"copy\" or a number from 0 to 63"]);
    expect(&in_gateway("buffers = 255"), &["a number from 256 to 1048576"]);
    expect(&in_gateway("buffers = -1"), &["found -1"]);
    expect(&in_gateway("buffers = 999999999999999999999999999999999999999999"), &["a number from 256"]);
    expect(&with("kind = \"socket\"", "kind = \"socket\"\nmtu = 500"), &["a number from 576 to 65535"]);
}

/// RFC 4303 3.3.4: transport mode is applied to whole packets, and what is too long is cut after.
#[test]
fn a_tunnel_says_where_long_packets_are_cut() {
    let read = |lines: &str| good(&in_tunnel(lines)).tunnels[0].fragmentation;
    assert_eq!(read(""), Fragmentation::Before);
    assert_eq!(read("fragment = \"before\""), Fragmentation::Before);
    assert_eq!(read("fragment = \"after\""), Fragmentation::After);
    assert_eq!(read("mode = \"transport\""), Fragmentation::After);
    assert_eq!(read("mode = \"transport\"\nfragment = \"after\""), Fragmentation::After);
    expect(
        &in_tunnel("mode = \"transport\"\nfragment = \"before\""),
        &["\"after\", in transport mode", "RFC 4303 3.3.4"],
    );
    expect(&in_tunnel("fragment = \"affter\""), &["did you mean `after`?"]);
    let warnings = good(&in_tunnel("fragment = \"after\"")).warnings().join("\n");
    assert!(warnings.contains("the peer must reassemble"), "{warnings}");
    assert!(!good(&in_tunnel("mode = \"transport\"")).warnings().join("\n").contains("reassemble"));
}

/// RFC 4301 8.1 and 5.1.2.2; `set` and `zero` are the defaults.
#[test]
fn a_tunnel_says_what_df_and_flow_label_its_outer_headers_have() {
    let v6 = |lines: &str| {
        let text = in_tunnel(lines).replace("\"192.0.2.1\"", "\"2001:db8::1\"");
        text.replace("\"192.0.2.2\"", "\"2001:db8::2\"")
    };
    let df = |lines: &str| good(&in_tunnel(lines)).tunnels[0].rules.df;
    assert_eq!(df(""), Df::Set);
    assert_eq!(df("df = \"set\""), Df::Set);
    assert_eq!(df("df = \"copy\""), Df::Copy);
    assert_eq!(df("df = \"clear\""), Df::Clear);
    let label = |lines: &str| good(&v6(lines)).tunnels[0].rules.flow_label;
    assert_eq!(label(""), FlowLabel::Zero);
    assert_eq!(label("flow_label = \"zero\""), FlowLabel::Zero);
    assert_eq!(label("flow_label = \"per-flow\""), FlowLabel::PerFlow);
    expect(&in_tunnel("df = \"kopy\""), &["did you mean `copy`?"]);
    expect(&v6("df = \"copy\""), &["`df` only where outer headers are IPv4", "RFC 8200 5"]);
    expect(&in_tunnel("flow_label = \"zero\""), &["`flow_label` only where outer headers are IPv6"]);
    for key in ["df = \"set\"", "flow_label = \"zero\""] {
        let lines = format!("mode = \"transport\"\n{key}");
        expect(&in_tunnel(&lines), &["only in tunnel mode", "a packet keeps its own header"]);
    }
}

/// RFC 4303 4: auditing can be enabled and disabled.
#[test]
fn audit_goes_to_the_log_to_a_file_or_nowhere() {
    let read = |line: &str| good(&in_gateway(line)).gateway.audit;
    assert_eq!(read("audit = \"log\""), AuditTarget::Log);
    assert_eq!(read("audit = \"off\""), AuditTarget::Off);
    assert_eq!(read("audit = \"/var/log/a.json\""), AuditTarget::File("/var/log/a.json".into()));
    assert_eq!(read("audit = \"./a.json\""), AuditTarget::File("/etc/testudo/./a.json".into()));
    for wrong in ["\"of\"", "true", "\"\""] {
        expect(&in_gateway(&format!("audit = {wrong}")), &["\"log\", \"off\" or the path of a file"]);
    }
}

/// Lines of JSON at its end would be damage that no restart survives.
#[test]
fn audit_lines_go_into_no_file_that_the_gateway_has_for_itself() {
    for (path, whose) in
        [("./state.redb", "the file of `state`"), ("/run/testudo/control.sock", "that of `control`")]
    {
        let text = in_gateway(&format!("audit = \"{path}\""));
        expect(&text, &["gateway.audit", "a file of its own", whose]);
    }
}

#[test]
fn a_tunnel_says_which_mss_its_connections_have() {
    let read = |lines: &str| good(&in_tunnel(lines)).tunnels[0].rules.mss_clamp;
    assert_eq!(read(""), MssClamp::Auto);
    assert_eq!(read("mss_clamp = \"auto\""), MssClamp::Auto);
    assert_eq!(read("mss_clamp = \"off\""), MssClamp::Off);
    assert_eq!(read("mss_clamp = 1300"), MssClamp::Bytes(1300));
    for wrong in ["\"of\"", "63", "65536", "true"] {
        expect(&in_tunnel(&format!("mss_clamp = {wrong}")), &["\"auto\", \"off\" or a number from 64"]);
    }
}

/// RFC 4303 2.6, 2.7.
#[test]
fn padding_and_dummies_are_for_esp_and_padding_for_tunnel_mode() {
    let rules = |lines: &str| good(&in_tunnel(lines)).tunnels[0].rules.clone();
    assert_eq!((rules("").tfc_pad_to, rules("").dummy_packets_per_second), (0, 0));
    let both = rules("tfc_pad_to = 1400\ndummy_packets_per_second = 20");
    assert_eq!((both.tfc_pad_to, both.dummy_packets_per_second), (1400, 20));
    assert_eq!(rules("mode = \"transport\"\ndummy_packets_per_second = 1000").dummy_packets_per_second, 1000);
    expect(&in_tunnel("mode = \"transport\"\ntfc_pad_to = 1400"), &["only in tunnel mode", "RFC 4303 2.7"]);
    expect(&in_tunnel("tfc_pad_to = 63"), &["a number from 64 to 65535"]);
    expect(&in_tunnel("dummy_packets_per_second = 1001"), &["a number from 0 to 1000"]);
    for key in ["tfc_pad_to = 1400", "dummy_packets_per_second = 1"] {
        let text = in_tunnel(&format!("protocol = \"ah\"\n{key}")).replace("aes128gcm16", "sha256");
        expect(&text, &["only with ESP", "AH hides nothing"]);
    }
}

/// Packet clocking: a rate that a worker can keep, where each packet is one datagram, and no other dummies.
#[test]
fn a_clock_is_for_esp_and_vpe_in_tunnel_mode_and_in_place_of_dummies() {
    let rules = |lines: &str| good(&in_tunnel(lines)).tunnels[0].rules.clone();
    assert_eq!(rules("").clocked_packets_per_second, 0);
    for rate in [0, 1, 10_000] {
        let lines = format!("clocked_packets_per_second = {rate}\ntfc_pad_to = 1400");
        assert_eq!(rules(&lines).clocked_packets_per_second, rate);
    }
    assert_eq!(
        rules("clocked_packets_per_second = 5\ndummy_packets_per_second = 0").dummy_packets_per_second,
        0
    );
    for wrong in ["10001", "-1", "\"all\""] {
        let text = in_tunnel(&format!("clocked_packets_per_second = {wrong}"));
        expect(&text, &["tunnel[site-b].clocked_packets_per_second", "a number from 0 to 10000"]);
    }
    const CLOCK: &str = "clocked_packets_per_second = 100";
    let both = in_tunnel(&format!("{CLOCK}\ndummy_packets_per_second = 10"));
    expect(&both, &["`clocked_packets_per_second` or `dummy_packets_per_second`, not both"]);
    expect(&in_tunnel(&format!("{CLOCK}\nmode = \"transport\"")), &["only in tunnel mode", "at one tick"]);
    expect(&in_tunnel(&format!("{CLOCK}\nfragment = \"after\"")), &["no `clocked_packets_per_second` with"]);
    let ah = in_tunnel(&format!("{CLOCK}\nprotocol = \"ah\"")).replace("aes128gcm16", "sha256");
    expect(&ah, &["only with ESP", "AH hides nothing"]);
    // Lengths show unless packets have one.
    let warns =
        |lines: &str| good(&in_tunnel(lines)).warnings().iter().any(|line| line.contains("still show"));
    assert_eq!(["", CLOCK].map(warns), [false, true]);
    assert!(!warns(&format!("{CLOCK}\ntfc_pad_to = 1400")));
    let warns = |lines: &str| {
        good(&in_tunnel(lines)).warnings().iter().any(|line| line.contains("longer packets show"))
    };
    let padded = |bytes: u16| format!("{CLOCK}\ntfc_pad_to = {bytes}");
    assert_eq!([warns(CLOCK), warns(&padded(576)), warns(&padded(9000))], [false, true, false]);
    assert!(!warns("tfc_pad_to = 576"));
}

/// The default leaves most packets whole; where a path is too narrow even for the least that hosts must be
/// able to send, datagrams are cut.
#[test]
fn any_path_leaves_the_smallest_mtu_where_datagrams_are_cut() {
    let mtu = |lines: &str, link: u16| {
        let text = in_tunnel(lines).replace("kind = \"socket\"", &format!("kind = \"socket\"\nmtu = {link}"));
        good(&text).protected.mtu
    };
    assert_eq!(mtu("fragment = \"after\"", 1500), mtu("", 1500));
    assert_eq!(mtu("fragment = \"after\"", 600), 576);
}

#[test]
fn an_unknown_word_is_an_error_with_a_suggestion() {
    expect(
        &with("aes128gcm16", "aes128gmc16"),
        &["a suite, such as \"aes128gcm16\"", "did you mean `aes128gcm16`?"],
    );
    expect(&in_tunnel("encapsulation = \"esp-udp\""), &["did you mean `esp-in-udp`?"]);
    expect(&in_gateway("log = \"inof\""), &["did you mean `info`?"]);
    expect(&in_gateway("engines = [\"ipsec_mb\"]"), &["engines[0]", "did you mean `ipsec-mb`?"]);
    expect(&with("kind = \"tun\"", "kind = \"tap\""), &["one of \"tun\""]);
}

#[test]
fn a_bad_name_is_an_error_with_a_valid_suggestion() {
    expect(&with("\"site-b\"", "\"Site B\""), &["tunnel[0].name", "write \"site-b\""]);
    expect(&with("\"site-b\"", "\"\""), &["1 to 64 characters"]);
    expect(&with("\"site-b\"", &format!("\"{}\"", "x".repeat(65))), &["1 to 64 characters"]);
}

#[test]
fn a_bad_interface_name_is_an_error() {
    for name in ["testudo-interface", "a/b", "tun%d", "a b", ".."] {
        expect(&with("testudo0", name), &["port.protected.name", "1 to 15 characters"]);
    }
}

#[test]
fn a_prefix_with_host_bits_is_an_error_with_its_network() {
    expect(&with("10.1.0.0/16", "10.1.2.3/16"), &["without host bits", "\"10.1.0.0/16\"", "\"10.1.2.3\""]);
    expect(&with("10.1.0.0/16", "10.1/16"), &["write \"10.1.0.0/16\""]);
    expect(&with("10.1.0.0/16", "10.1.0.0/33"), &["a number from 0 to 32"]);
    expect(&with("10.1.0.0/16", "::ffff:10.1.0.0/112"), &["write it as IPv4"]);
    expect(&with("10.1.0.0/16", "nay"), &["did you mean `any`?"]);
}

#[test]
fn versions_may_not_be_mixed_in_a_selector_or_a_tunnel() {
    expect(&with("10.2.0.0/16", "fd00::/16"), &["an IPv4 prefix, as `local` is", "a selector for each"]);
    expect(&with("192.0.2.2", "2001:db8::2"), &["an IPv4 address, as `local` is"]);
    expect(
        &with("remote = \"10.2.0.0/16\"", "remote = \"10.2.0.0/16\", protocol = \"icmpv6\""),
        &["\"icmp\""],
    );
}

#[test]
fn an_outer_address_must_be_one_host_and_not_ourselves() {
    expect(&with("192.0.2.2", "192.0.2.1"), &["another address than `local`"]);
    expect(&with("192.0.2.2", "192.0.2.0/24"), &["write \"192.0.2.0\""]);
    expect(&with("192.0.2.2", "site-b.example"), &["names are not looked up"]);
    for address in ["0.0.0.0", "224.0.0.1", "255.255.255.255"] {
        expect(&with("192.0.2.2", address), &["of one host"]);
    }
}

#[test]
fn any_remote_needs_esp_in_udp() {
    expect(&with("192.0.2.2", "any"), &["where ESP is not in UDP", "`encapsulation = \"esp-in-udp\"`"]);
}

#[test]
fn udp_options_need_esp_in_udp() {
    expect(&in_tunnel("keepalive_seconds = 20"), &["`keepalive_seconds` only where ESP is in UDP"]);
}

#[test]
fn ports_need_a_protocol_that_has_them() {
    let with_ports =
        |ports: &str| with("remote = \"10.2.0.0/16\"", &format!("remote = \"10.2.0.0/16\", {ports}"));
    expect(&with_ports("remote_ports = \"25\""), &["only with tcp, udp or sctp", "`protocol = \"tcp\"`"]);
    expect(&with_ports("protocol = \"tcp\", remote_ports = \"20-10\""), &["write \"10-20\""]);
    expect(&with_ports("protocol = \"tcp\", remote_ports = \"70000\""), &["0 to 65535"]);
    expect(&with_ports("protocol = \"tpc\""), &["did you mean `tcp`?"]);
    expect(&with_ports("protocol = 256"), &["a number from 0 to 255"]);
}

#[test]
fn reserved_spis_are_errors() {
    expect(&with("0x1001", "0"), &["an SPI from 256 to 4294967295", "never appears"]);
    expect(&with("0x1001", "255"), &["1 to 255 are reserved (RFC 4303 2.1)"]);
    expect(&with("0x1001", "0x1_0000_0000"), &["an SPI from 256"]);
}

/// RFC 4303 2.1: packets with them are not to be made, but some are in captures and in test vectors.
#[test]
fn reserved_spis_are_for_known_answers() {
    let known = |spi: &str| in_tunnel("known_answer = {}").replacen("0x1001", spi, 1);
    assert_eq!([1, 255, 4321].map(|n| good(&known(&n.to_string())).tunnels[0].outbound.spi), [1, 255, 4321]);
    expect(&known("0"), &["an SPI from 1 to 4294967295"]);
    expect(&known("0x1_0000_0000"), &["an SPI from 1 to 4294967295"]);
}

#[test]
fn what_an_sa_has_received_is_a_window_that_fits() {
    let known = |answer: &str| {
        let lines = format!("replay_window = 64\nesn = false\nknown_answer = {{ {answer} }}");
        in_tunnel(&lines)
    };
    let with_window = |highest: u64, window: &str| {
        known(&format!("inbound_sequence_number = {highest}, inbound_window = \"{window}\""))
    };
    expect(&known("inbound_sequence_number = 0"), &["a number from 1 to 4294967295"]);
    expect(&known("inbound_window = \"1\""), &["`inbound_sequence_number` beside it"]);
    for window in ["", "0x", "0x1g", "-1"] {
        expect(&with_window(100, window), &["hexadecimal digits in quotes"]);
    }
    expect(&known("inbound_sequence_number = 9, inbound_window = 1"), &["hexadecimal digits in quotes"]);
    expect(&with_window(100, "2"), &["whose lowest bit is set: 100 was received"]);
    expect(&with_window(100, "0x1_0000"), &["hexadecimal digits"]);
    expect(&with_window(100, "10000000000000001"), &["at most 64 bits"]);
    expect(&with_window(3, "f"), &["no bit for a number below 1"]);
    for (highest, window) in [(100, "0x8000000000000001"), (3, "007"), (1, "1")] {
        good(&with_window(highest, window));
    }
}

/// Bit 0 is the highest number, as in the kernel's replay bitmap that `ip xfrm state` prints.
#[test]
fn a_known_window_refuses_what_its_bits_say_and_nothing_else() {
    let check = |received: &Received, sequence| {
        let mut window = ReplayWindow::new(64, true);
        assert!(window.restore(&received.window(64, true)));
        window.check(sequence)
    };
    let highest = 0x2_0000_0005;
    let received = Received { highest, window: Some([0b0010_0101, 0x80].into()) };
    let seen: Vec<u64> =
        (highest - 63..=highest + 5).filter(|n| check(&received, *n).is_err()).map(|n| highest - n).collect();
    assert_eq!(seen, [15, 5, 2, 0]);
    assert_eq!(check(&received, highest - 64), Err(ReplayError::TooOld));
    let closed = Received { highest, window: None };
    assert_eq!((0..100).find(|n| check(&closed, highest - n).is_ok()), None);
    assert_eq!(check(&closed, highest + 1), Ok(()));
}

#[test]
fn names_spis_and_keys_must_be_unique() {
    let second = |from: &str, to: &str| format!("{MINIMAL}{}", SECOND.replacen(from, to, 1));
    expect(&second("site-c", "site-b"), &["a name that no other tunnel has", "the other is on line 13"]);
    expect(&second("0x2002", "0x1002"), &["tunnel[site-c].inbound.spi", "an inbound SPI", "on line 19"]);
    expect(&second("c-in.key", "out.key"), &["a key of its own", "repeat nonces"]);
    good(&second("0x2001", "0x1001"));
    let same_peer = second("0x2001", "0x1001").replace("192.0.2.3", "192.0.2.2");
    expect(&same_peer, &["tunnel[site-c].outbound.spi", "an outbound SPI"]);
}

#[test]
fn a_selector_that_an_earlier_one_covers_is_an_error() {
    let second = |remote: &str| format!("{MINIMAL}{}", SECOND.replacen("10.3.0.0/16", remote, 1));
    let message = "one that `tunnel[site-b].selectors[0]` on line 17 covers";
    expect(&second("10.2.0.0/16"), &[message]);
    expect(&second("10.2.3.0/24"), &[message, "narrower selector first"]);
    good(&second("10.0.0.0/8"));
    let everything = "[[policy]]\naction = \"discard\"\n";
    expect(&format!("{everything}{MINIMAL}"), &["`policy[0]` on line 1 covers"]);
}

#[test]
fn a_tunnel_without_selectors_must_be_named_by_a_policy() {
    let text = with("selectors = [ { local = \"10.1.0.0/16\", remote = \"10.2.0.0/16\" } ]\n", "");
    expect(&text, &["at least one selector, or a policy that names the tunnel", "found none"]);
}

#[test]
fn a_policy_must_name_a_tunnel_that_exists_and_only_if_it_protects() {
    let policy = |lines: &str| format!("{MINIMAL}[[policy]]\nremote = \"10.99.0.0/16\"\n{lines}");
    expect(&policy("action = \"protect\"\ntunnel = \"site-d\""), &["policy[0].tunnel", "`site-b`?"]);
    expect(&policy("action = \"protect\""), &["the key `tunnel`"]);
    expect(&policy("action = \"discard\"\ntunnel = \"site-b\""), &["only where `action` is \"protect\""]);
    expect(&policy("action = \"protct\"\ntunnel = \"site-b\""), &["did you mean `protect`?"]);
}

#[test]
fn a_bypass_needs_an_interface() {
    let bypass = "[[policy]]\nremote = \"10.99.0.0/16\"\naction = \"bypass\"";
    expect(&format!("{MINIMAL}{bypass}"), &["policy[0].action", "`interface` in [port.unprotected]"]);
    good(&(with("kind = \"socket\"", "kind = \"socket\"\ninterface = \"eth0\"") + bypass));
}

#[test]
fn metrics_are_served_on_loopback_only() {
    assert!(good(&in_gateway("metrics = \"[::1]:9468\"")).gateway.metrics.is_some());
    expect(&in_gateway("metrics = \"0.0.0.0:9468\""), &["a loopback address", "not authenticated"]);
    expect(&in_gateway("metrics = \"::1\""), &["write \"[::1]:9468\""]);
    expect(&in_gateway("metrics = \"127.0.0.1:0\""), &["a loopback address and a port"]);
}

#[test]
fn the_dashboard_is_served_on_loopback_only_and_not_in_the_place_of_metrics() {
    let address = good(&in_gateway("dashboard = \"127.0.0.1:9469\"")).gateway.dashboard;
    assert_eq!(address, Some("127.0.0.1:9469".parse().unwrap()));
    for open in ["0.0.0.0:9469", "192.0.2.1:9469", "[::]:9469"] {
        let line = format!("dashboard = \"{open}\"");
        expect(
            &in_gateway(&line),
            &["gateway.dashboard", "a loopback address", "ssh -L 9469:127.0.0.1:9469"],
        );
    }
    expect(&in_gateway("dashboard = \"::1\""), &["write \"[::1]:9469\""]);
    expect(&in_gateway("dashboard = \"127.0.0.1:0\""), &["a loopback address and a port"]);
    expect(&in_gateway("dashboard = true"), &["write it in quotes"]);
    let both = "metrics = \"127.0.0.1:9468\"\ndashboard = \"127.0.0.1:9468\"";
    expect(&in_gateway(both), &["another port than that of `metrics`", "the other is on line"]);
    good(&in_gateway("metrics = \"127.0.0.1:9468\"\ndashboard = \"[::1]:9468\""));
}

#[test]
fn engines_are_named_once_and_portable_last() {
    expect(&in_gateway("engines = [\"ipsec-mb\", \"ipsec-mb\"]"), &["each engine once"]);
    expect(&in_gateway("engines = [\"portable\", \"ipsec-mb\"]"), &["\"portable\" last"]);
}

#[test]
fn a_soft_limit_is_below_its_hard_limit() {
    expect(
        &in_tunnel("lifetime = { soft_packets = 5, hard_packets = 5 }"),
        &["less than the hard limit of 5"],
    );
    expect(&in_tunnel("lifetime = { hard_bytes = \"10 parsecs\" }"), &["a size", "units are B, kB"]);
    expect(&in_tunnel("lifetime = { hard_seconds = 0 }"), &["at least 1"]);
}

#[test]
fn ipv6_needs_its_smallest_mtu() {
    let mtu = |mtu: u16| {
        with(
            "name = \"testudo0\"",
            &format!("name = \"testudo0\"\nmtu = {mtu}\naddresses = [\"fd00:1::1/64\"]"),
        )
    };
    expect(&mtu(1279), &["port.protected.mtu", "1280 to 65535", "RFC 8200"]);
    good(&mtu(1280));
    // A tunnel that carries less than the interface's MTU promises is an error, too.
    expect(
        &mtu(1400).replace("kind = \"socket\"", "kind = \"socket\"\nmtu = 1300"),
        &["port.unprotected.mtu", "1280"],
    );
    expect(
        &with("kind = \"socket\"", "kind = \"socket\"\nmtu = 600"),
        &["port.unprotected.mtu", "leaves 546"],
    );
}

#[test]
fn interface_addresses_have_a_prefix_length_and_are_unique() {
    let addresses =
        |list: &str| with("name = \"testudo0\"", &format!("name = \"testudo0\"\naddresses = {list}"));
    assert_eq!(good(&addresses("[\"10.1.0.1/24\"]")).protected.addresses[0].prefix_length, 24);
    expect(&addresses("[\"10.1.0.1\"]"), &["addresses[0]", "add the prefix length"]);
    expect(&addresses("[\"10.1.0.1/24\", \"10.1.0.1/16\"]"), &["each address once"]);
}

#[test]
fn a_key_in_the_configuration_is_refused_and_not_shown() {
    let text = with("key_file = \"out.key\"", "key = \"not even in hex\"");
    let all = Configuration::parse(&text, "t.toml").unwrap_err();
    assert!(all.to_string().contains("a configuration is copied, kept in backups"), "{all}");
    assert!(!format!("{all}{}{all:?}", all.to_json()).contains("even in hex"));
    assert_eq!(all.errors().len(), 1);
}

#[test]
fn a_key_in_place_of_a_file_name_is_not_shown_by_any_error_of_its_line() {
    let key = "4c80cdefbb5d10da906ac73c3613a6342e443b68";
    let text =
        with("spi = 0x1001, key_file = \"out.key\"", &format!("spi = 0, key_env = \"{key}\", key_env = 5"));
    let all = Configuration::parse(&text, "t.toml").unwrap_err();
    assert!(!format!("{all}{}", all.to_json()).contains("4c80"), "{all}");
}

#[test]
fn a_key_has_one_source() {
    let both = with("key_file = \"out.key\"", "key_file = \"out.key\", key_env = \"KEY\"");
    expect(&both, &["either `key_file` or `key_env`", "found both"]);
    expect(&with("key_file = \"out.key\"", "key_env = \"A-B\""), &["the name of an environment variable"]);
}

#[test]
fn broken_toml_is_reported_with_its_position_and_nothing_else() {
    let broken = errors(&with("state = \"state.redb\"", "state = \"state.redb"));
    assert_eq!((broken.len(), broken[0].line), (1, 3), "{broken:#?}");
    assert_eq!(broken[0].expected, "TOML");
}

#[test]
fn a_key_given_twice_is_reported_beside_other_errors() {
    let both = errors(&in_tunnel("esn = true\nesn = false\nreplay_window = 1"));
    assert_eq!(both.len(), 2, "{both:#?}");
    assert_eq!((both[0].expected.as_str(), both[0].line), ("each key once", 15));
}

#[test]
fn all_sizes_are_bounded() {
    let tunnels = "[[tunnel]]\n".repeat(MAX_TUNNELS + 1);
    let text = MINIMAL.replace("[[tunnel]]", &tunnels);
    expect(&text, &["at most 20000 tables", "found 20001"]);
    let selectors = format!("selectors = [ {} ]", "{},".repeat(MAX_SELECTORS + 1));
    let selector = "selectors = [ { local = \"10.1.0.0/16\", remote = \"10.2.0.0/16\" } ]";
    expect(&with(selector, &selectors), &["at most 256 tables"]);
    let nested = format!("x = {}", "[".repeat(100_000));
    assert!(errors(&nested).len() <= MAX_ERRORS);
    for deep in
        ["a.".repeat(100_000) + "a = 1", format!("[{}a]", "a.".repeat(100_000)), "{a=".repeat(100_000)]
    {
        assert!(errors(&deep).len() <= MAX_ERRORS);
    }
    let noise = "x = [".to_owned() + &"=,".repeat(1 << 20);
    assert_eq!(errors(&noise).len(), 1, "of a long text, the first error");
    let huge = "#".repeat(MAX_FILE_BYTES + 1);
    assert_eq!(errors(&huge)[0].expected, "at most 32 MiB");
}

#[test]
fn errors_beyond_a_hundred_are_counted() {
    let text = MINIMAL.replace("[[tunnel]]", &"[[tunnel]]\nx = 1\n".repeat(200));
    let errors = Configuration::parse(&text, "t.toml").unwrap_err();
    assert_eq!(errors.errors().len(), MAX_ERRORS);
    assert!(errors.omitted() > 100);
    assert!(errors.to_string().contains("more errors"));
}

/// Twenty thousand tunnels are read in seconds, not minutes, and each still has its own line.
#[test]
fn the_largest_configuration_is_accepted() {
    let (header, _) = MINIMAL.split_once("[[tunnel]]").unwrap();
    let mut text = header.to_owned();
    for n in 0..MAX_TUNNELS {
        let (a, b) = (n / 256, n % 256);
        text += &format!(
            "[[tunnel]]\nname = \"t{n}\"\nlocal = \"192.0.2.1\"\nremote = \"198.51.{a}.{b}\"\nsuite = \"aes256gcm16\"\n\
             selectors = [ {{ local = \"10.0.0.0/16\", remote = \"10.{}.{b}.0/24\" }} ]\n\
             outbound = {{ spi = {}, key_file = \"{n}o\" }}\ninbound = {{ spi = {}, key_file = \"{n}i\" }}\n",
            a + 1,
            n + 256,
            n + 256
        );
    }
    assert_eq!(good(&text).tunnels.len(), MAX_TUNNELS);
    let last = format!("name = \"t{}\"", MAX_TUNNELS - 1);
    expect(&text.replace(&last, "name = \"t0\""), &["a name that no other tunnel has"]);
}

/// Pieces of texts that resemble configurations.
fn piece() -> impl Strategy<Value = String> {
    let lines: Vec<String> = format!("{MINIMAL}{SECOND}").lines().map(|line| format!("{line}\n")).collect();
    prop_oneof![
        8 => prop::sample::select(lines),
        1 => "\\PC{0,12}",
        1 => prop::sample::select(vec!["key = \"", "'''", "[[policy]]\n", "ü=", "{", "]", "\r\n", "\t", "\u{0}"])
            .prop_map(str::to_owned),
    ]
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(pieces in prop::collection::vec(piece(), 0..30)) {
        let text = pieces.concat();
        if let Err(errors) = Configuration::parse(&text, "t.toml") {
            let _ = (errors.to_string(), errors.to_json());
        }
    }

    #[test]
    fn a_configuration_cut_anywhere_is_an_error_or_still_one(cut in 0..MINIMAL.len()) {
        let _ = Configuration::parse(&MINIMAL[..cut], "t.toml");
    }
}

#[test]
fn a_route_that_would_catch_the_tunnels_own_packets_is_refused() {
    let text = |remote: &str| MINIMAL.replace("10.2.0.0/16", remote);
    for remote in ["192.0.2.2", "192.0.2.0/24", "128.0.0.0/1"] {
        let error = error(&text(remote));
        assert!(
            error.starts_with("tunnel[site-b].selectors[0].remote: expected a remote network without"),
            "{error}"
        );
        assert!(error.contains("which holds `tunnel[site-b].remote` of line 15"), "{error}");
        assert!(error.contains("`interface = \"eth0\"`"), "{error}");
    }
    // Another tunnel's peer.
    let both = text("192.0.2.3") + SECOND;
    assert!(error(&both).contains("which holds `tunnel[site-c].remote`"));
    let named = text("10.2.0.0/16")
        + "[[policy]]\naction = \"protect\"\ntunnel = \"site-b\"\nlocal = \"10.9.0.0/16\"\nremote = \"192.0.2.0/28\"\n";
    assert!(error(&named).starts_with("policy[0].remote: "));
    // Accepted: no route, sockets that ignore it, or an address outside it.
    good(&text("192.0.2.2").replace("kind = \"tun\"", "kind = \"tun\"\nroutes = false"));
    good(&text("192.0.2.2").replace("kind = \"socket\"", "kind = \"socket\"\ninterface = \"eth0\""));
    good(&text("192.0.2.3"));
    good(&text("any"));
}

/// The minimal configuration with another suite, and lines added to its tunnel.
fn of_suite(suite: &str, lines: &str) -> String {
    in_tunnel(lines).replace("suite = \"aes128gcm16\"", &format!("suite = \"{suite}\""))
}

#[test]
fn ah_names_its_integrity_algorithm_alone() {
    let tunnel = &good(&of_suite("sha256", "protocol = \"ah\"")).tunnels[0];
    assert_eq!((tunnel.protocol, tunnel.suite.to_string()), (IpsecProtocol::Ah, "null-sha256".to_owned()));
    // 1500 - 20 (IPv4) - 12 - 16 (AH).
    assert_eq!(tunnel.inner_mtu(1500), 1452);
    expect(&of_suite("aes128gcm16", "protocol = \"ah\""), &["an integrity algorithm", "AH does not encrypt"]);
    expect(&of_suite("sha255", "protocol = \"ah\""), &["did you mean `sha256`?"]);
}

/// RFC 3715 2.1.
#[test]
fn ah_does_not_go_through_a_nat() {
    let text = of_suite("sha256", "protocol = \"ah\"\nencapsulation = \"esp-in-udp\"");
    expect(&text, &["no UDP around AH", "use ESP"]);
}

#[test]
fn ah_over_esp_is_two_pairs_of_sas_that_name_each_other() {
    let both = in_tunnel("protocol = \"ah+esp\"\nah_suite = \"sha256\"");
    let both = both.replace("\"out.key\"", "\"out.key\", ah_spi = 0x2001, ah_key_file = \"out-ah.key\"");
    let both = both.replace("\"in.key\"", "\"in.key\", ah_spi = 0x1002, ah_key_file = \"in-ah.key\"");
    let configuration = good(&format!("{both}{SECOND}"));
    let [esp, other, ah] = &configuration.tunnels[..] else { panic!("{:?}", configuration.tunnels) };
    assert_eq!((esp.covered_by, ah.covers, other.covered_by), (Some(2), Some(0), None));
    assert_eq!((ah.name.as_str(), ah.protocol, ah.mode), ("site-b/ah", IpsecProtocol::Ah, Mode::Transport));
    // The two protocols count SPIs apart (RFC 4301 4.1).
    assert_eq!((esp.inbound.spi, ah.inbound.spi, ah.outbound.spi), (0x1002, 0x1002, 0x2001));
    assert!(ah.selectors.is_empty());
    let told = errors(&in_tunnel("protocol = \"ah+esp\""));
    for key in
        ["outbound.ah_spi", "outbound.ah_key_file", "inbound.ah_spi", "inbound.ah_key_file", "ah_suite"]
    {
        assert!(told.iter().any(|error| error.key.ends_with(key)), "no {key} in {told:?}");
    }
    expect(&in_tunnel("ah_suite = \"sha256\""), &["only where AH covers ESP"]);
    // RFC 8221 6 speaks of AH, too.
    let old = both.replace("ah_suite = \"sha256\"", "ah_suite = \"md5\"");
    expect(&old, &["allow_legacy = true", "MUST NOT to md5"]);
    let allowed = good(&old.replace("protocol =", "allow_legacy = true\nprotocol ="));
    let warned: Vec<_> = allowed.warnings().into_iter().filter(|line| line.contains("RFC 8221")).collect();
    assert!(warned.len() == 1 && warned[0].contains("site-b/ah"), "{warned:?}");
}

#[test]
fn transport_mode_knows_its_peer_and_has_no_outer_header() {
    let tunnel = &good(&in_tunnel("mode = \"transport\"")).tunnels[0];
    assert_eq!(tunnel.mode, Mode::Transport);
    expect(&in_tunnel("mode = \"transport\"\ndscp = 5"), &["only in tunnel mode"]);
    let anybody = in_tunnel("mode = \"transport\"\nencapsulation = \"esp-in-udp\"");
    expect(
        &anybody.replace("remote = \"192.0.2.2\"", "remote = \"any\""),
        &["an address, in transport mode"],
    );
    expect(&in_tunnel("mode = \"tunel\""), &["did you mean `tunnel`?"]);
}

#[test]
fn no_replay_window_is_a_decision() {
    let off = in_tunnel("replay_window = 0\nallow_replay = true\nesn = false");
    let configuration = good(&off);
    assert_eq!(configuration.tunnels[0].replay_window, 0);
    assert!(configuration.warnings().iter().any(|warning| warning.contains("accepted again")));
    expect(&off.replace("allow_replay = true\n", ""), &["allow_replay = true", "recorded"]);
    expect(&off.replace("esn = false", ""), &["esn = false"]);
    expect(&in_tunnel("allow_replay = true"), &["only beside `replay_window = 0`"]);
    assert_eq!(good(&in_tunnel("replay_window = 2097152")).tunnels[0].replay_window, 1 << 21);
}

#[test]
fn the_outer_datagrams_of_ah_are_of_ah_whatever_they_cover() {
    let outer = |text: &str| good(text).tunnels[0].outer_protocol();
    assert_eq!(outer(MINIMAL), OuterProtocol::Esp);
    assert_eq!(outer(&of_suite("sha256", "protocol = \"ah\"")), OuterProtocol::Ah);
    let both = in_tunnel("protocol = \"ah+esp\"\nah_suite = \"sha256\"");
    let both = both.replace("\"out.key\"", "\"out.key\", ah_spi = 0x2001, ah_key_file = \"out-ah.key\"");
    let both = both.replace("\"in.key\"", "\"in.key\", ah_spi = 0x1002, ah_key_file = \"in-ah.key\"");
    assert_eq!(good(&both).outer_endpoints().len(), 1, "one socket for both");
    assert_eq!(outer(&both), OuterProtocol::Ah);
}
