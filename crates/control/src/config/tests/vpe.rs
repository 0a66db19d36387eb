//! `encapsulation = "vpe"` and what comes with it (`docs/VPE.md`).

use super::*;
use testudo_crypto::Suite;
use testudo_ipsec::{VpeClasses, VpeRules, VpeSourcePorts};

const ALLOWED: &str = "allow_manual_counter_nonce = true\n";

/// The minimal configuration with these lines in its tunnel, which is of VPE.
fn vpe(lines: &str) -> String {
    in_tunnel(&format!("encapsulation = \"vpe\"\n{ALLOWED}{lines}"))
}

fn in_udp(lines: &str) -> String {
    in_tunnel(&format!("encapsulation = \"vpe-in-udp\"\n{ALLOWED}{lines}"))
}

#[test]
fn a_tunnel_of_vpe_has_its_protocol_number_or_its_port() {
    let tunnel = &good(&vpe("")).tunnels[0];
    let of_vpe = "aes128gcm16".parse::<Suite>().unwrap().for_vpe().unwrap();
    assert_eq!((tunnel.protocol, tunnel.suite, tunnel.esn), (IpsecProtocol::Vpe, of_vpe, true));
    assert_eq!(tunnel.rules.vpe.as_deref(), Some(&VpeRules::default()));
    assert_eq!(tunnel.outer_protocol(), OuterProtocol::Vpe { number: 253 });
    // 1500 - 20 (IPv4) - 32 (VPE), whatever the length.
    assert_eq!((tunnel.inner_mtu(1500), tunnel.inner_mtu(1499)), (1448, 1447));
    let other = &good(&vpe("ip_protocol = 200")).tunnels[0];
    assert_eq!(other.outer_protocol(), OuterProtocol::Vpe { number: 200 });
    assert_eq!(good(&vpe("ip_protocol = 50")).tunnels[0].outer_protocol(), OuterProtocol::Esp);
    let udp = &good(&in_udp("")).tunnels[0];
    assert_eq!((udp.outer_protocol(), udp.inner_mtu(1500)), (OuterProtocol::Udp { local_port: 4501 }, 1440));
    assert!(udp.keepalive.is_some());
    let udp = &good(&in_udp("udp_port = 7000")).tunnels[0];
    let encapsulation = Encapsulation::EspInUdp { local_port: 7000, remote_port: 7000 };
    assert_eq!(udp.encapsulation, encapsulation);
    assert!(good(&in_udp("").replace("\"192.0.2.2\"", "\"any\"")).tunnels[0].remote == Remote::Any);
}

/// A peer that has the key may have as many windows as it may have.
#[test]
fn the_memory_of_all_windows_of_vpe_is_told() {
    let note = |workers: &str, lines: &str| {
        let gateway = format!("[gateway]\nworkers = {workers}");
        good(&vpe(lines).replacen("[gateway]", &gateway, 1)).vpe_note()
    };
    let told = |all: u64| {
        let of_tunnel = format!("{all} MiB of them for tunnel site-b, where peers have `windows_max`");
        Some(format!("windows of VPE: at most {all} MiB, {of_tunnel}"))
    };
    assert_eq!((note("1", ""), note("2", "")), (told(1), told(2)));
    const MOST: &str = "windows_max = 65536\nreplay_window = 65536";
    assert_eq!((note("1", MOST), note("\"all\"", MOST)), (told(1024), told(2048)));
    assert_eq!(good(MINIMAL).vpe_note(), None);
}

/// A NAT, which needs keepalives, would map each port apart; a daemon may find one.
#[test]
fn windows_may_have_udp_source_ports_of_their_own() {
    let ports = |lines: &str| good(&in_udp(lines)).tunnels[0].rules.of_vpe().source_ports;
    assert_eq!([ports(""), ports("udp_source_ports = \"one\"")], [VpeSourcePorts::One; 2]);
    const PER_WINDOW: &str = "udp_source_ports = \"per-window\"";
    assert_eq!(ports(PER_WINDOW), VpeSourcePorts::PerWindow);
    let tunnel = &good(&in_udp(&format!("udp_port = 7000\n{PER_WINDOW}"))).tunnels[0];
    assert_eq!((tunnel.outer_protocol(), tunnel.keepalive), (OuterProtocol::Udp { local_port: 7000 }, None));
    expect(&in_udp(&format!("{PER_WINDOW}\nkeepalive_seconds = 20")), &["no `keepalive_seconds`", "NAT"]);
    expect(&in_udp("udp_source_ports = \"two\""), &["\"one\"", "\"per-window\""]);
    expect(&vpe(PER_WINDOW), &["only where VPE is in UDP", "vpe-in-udp"]);
    expect(&in_tunnel(PER_WINDOW), &["only with VPE"]);
    let interface = format!("if_id = 42\nencapsulation = \"vpe-in-udp\"\n{PER_WINDOW}");
    let text =
        format!("[ike]\nsocket = \"x.sock\"\n{MINIMAL}[[interface]]\nname = \"ipsec0\"\n{interface}\n");
    expect(&text, &["interface[ipsec0].udp_source_ports", "a daemon may find a NAT"]);
}

#[test]
fn slots_and_classes_make_windows() {
    let rules = |lines: &str| good(&vpe(lines)).tunnels[0].rules.of_vpe();
    assert_eq!((rules("").windows(), rules("").windows_max), (8, 1024));
    let many = rules("slots = 16\nclasses = [[46], [10, 12, 14]]\nwindows_max = 48");
    let classes = VpeClasses::of_sets([&[46][..], &[10, 12, 14]]);
    assert_eq!(many, VpeRules::default().with_windows_max(48).with_slots(classes, 0, 16).unwrap());
    assert_eq!(many.windows(), 48);
    expect(&vpe("slots = 16\nclasses = [[46]]\nwindows_max = 31"), &["32 or more", "31", "32 windows"]);
    expect(&vpe("slots = 2000"), &["2000 or more", "1024"]);
    expect(&vpe("slots = 7"), &["a number from 8 to 8192"]);
    let nine = (0..9).map(|dscp| format!("[{dscp}]")).collect::<Vec<_>>().join(", ");
    let text = vpe(&format!("slots = 8192\nclasses = [{nine}]\nwindows_max = 65536"));
    expect(&text, &["at most 65,536 windows", "8192 slots of 10 classes"]);
    for wrong in ["46", "[46]", "[[]]", "[[64]]", "[[1, 2], [2]]", "[[\"ef\"]]"] {
        expect(&vpe(&format!("classes = {wrong}")), &["a list of lists of DSCP values"]);
    }
}

/// Traffic-flow confidentiality, as the paper has it in 5.1.
#[test]
fn fill_packets_and_other_windows_are_configured() {
    let rules = good(&vpe("dummy_packets_per_second = 5\nrehash_seconds = 600")).tunnels[0].rules.clone();
    assert_eq!((rules.dummy_packets_per_second, rules.of_vpe().rehash_seconds), (5, 600));
    assert_eq!(good(&vpe("")).tunnels[0].rules.of_vpe().rehash_seconds, 0);
    let rules = good(&vpe("clocked_packets_per_second = 500")).tunnels[0].rules.clone();
    assert_eq!((rules.clocked_packets_per_second, rules.dummy_packets_per_second), (500, 0));
}

#[test]
fn what_vpe_has_not_is_refused_in_words() {
    let not_allowed = in_tunnel("encapsulation = \"vpe\"");
    expect(
        &not_allowed,
        &["`allow_manual_counter_nonce = true`", "nonces of this suite are its sequence numbers"],
    );
    for suite in ["aes192gcm16", "aes128gcm8", "aes256-sha256", "aes128gmac", "aes128gcm16iiv"] {
        let text = vpe("").replace("suite = \"aes128gcm16\"", &format!("suite = \"{suite}\""));
        let told: String = errors(&text).iter().map(|error| format!("{error:?}")).collect();
        assert!(told.contains("chacha20poly1305"), "{suite}: {told}");
    }
    let ah = errors(&vpe("protocol = \"ah\"").replace("aes128gcm16", "sha256"));
    assert!(ah.iter().any(|error| error.expected.contains("ESP and AH")), "{ah:?}");
    expect(&vpe("mode = \"transport\""), &["tunnel mode", "VPE carries whole packets"]);
    expect(&vpe("esn = true"), &["no `esn`", "all 64 bits"]);
    expect(&vpe("rehash_seconds = 86401"), &["a number from 0 to 86400"]);
    expect(&vpe("ip_protocol = 6"), &["50, or a number from 146 to 254", "253 is for experiments"]);
    expect(&vpe("udp_port = 4501"), &["only where VPE is in UDP", "vpe-in-udp"]);
    expect(&vpe("local_port = 4501"), &["only where ESP is in UDP", "`udp_port`"]);
    expect(&in_udp("udp_port = 4500"), &["another port than 4500", "RFC 3948 2.2"]);
    expect(&in_udp("ip_protocol = 253"), &["no `ip_protocol` where VPE is in UDP"]);
    let to_any = vpe("").replace("\"192.0.2.2\"", "\"any\"");
    expect(&to_any, &["where VPE is not in UDP", "`encapsulation = \"vpe-in-udp\"`"]);
    assert!(!error(&to_any).contains("esp-in-udp"), "that would be no VPE");
    for key in [
        "ip_protocol = 253",
        "slots = 8",
        "classes = [[46]]",
        "windows_max = 9",
        "udp_port = 4501",
        "rehash_seconds = 60",
    ] {
        expect(&in_tunnel(key), &["only with VPE", "encapsulation = \"vpe\""]);
    }
}

/// One number means one thing at one address, and one UDP port everywhere.
#[test]
fn vpe_takes_nothing_that_esp_is_served_by() {
    let both = |lines: &str| format!("{}{SECOND}", vpe(lines));
    assert_eq!(good(&both("")).tunnels.len(), 2);
    expect(&both("ip_protocol = 50"), &["another number than 50", "192.0.2.1 serves ESP"]);
    let second = SECOND.replacen("local = \"192.0.2.1\"", "local = \"192.0.2.9\"", 1);
    assert_eq!(good(&format!("{}{second}", vpe("ip_protocol = 50"))).tunnels.len(), 2);
    let esp_in_udp = format!("{SECOND}encapsulation = \"esp-in-udp\"\nlocal_port = 7000\n");
    expect(&format!("{}{esp_in_udp}", in_udp("udp_port = 7000")), &["on which nobody expects ESP"]);
}

/// What a daemon negotiates for an interface may run as VPE, at any address of the host.
#[test]
fn an_interface_of_vpe_has_what_a_tunnel_has() {
    let ike = "[ike]\nsocket = \"x.sock\"\n";
    let with = |lines: &str| format!("{ike}{MINIMAL}[[interface]]\nname = \"ipsec0\"\n{lines}\n");
    let of = |lines: &str| good(&with(&format!("if_id = 42\n{lines}"))).interfaces[0].vpe;
    assert_eq!((of(""), of("encapsulation = \"esp\"")), (None, None));
    let vpe = of("encapsulation = \"vpe\"").unwrap();
    assert_eq!((vpe.udp_port, vpe.rules, vpe.is_always_in_udp), (4501, VpeRules::default(), false));
    let udp = Encapsulation::EspInUdp { local_port: 4501, remote_port: 4501 };
    assert_eq!([false, true].map(|has_nat| vpe.carried(has_nat)), [Encapsulation::Esp, udp]);
    let all = "encapsulation = \"vpe-in-udp\"\nudp_port = 7000\nslots = 16\nclasses = [[46]]\nwindows_max = 32\n\
               keepalive_seconds = 0";
    let vpe = of(all).unwrap();
    let in_udp = Encapsulation::EspInUdp { local_port: 7000, remote_port: 7000 };
    assert_eq!((vpe.carried(false), vpe.keepalive, vpe.rules.windows()), (in_udp, None, 32));
    let filled = of("encapsulation = \"vpe\"\ndummy_packets_per_second = 3\nrehash_seconds = 60").unwrap();
    assert_eq!((filled.fill_packets_per_second, filled.rules.rehash_seconds), (3, 60));
    let clocked = of("encapsulation = \"vpe\"\nclocked_packets_per_second = 500").unwrap();
    assert_eq!((clocked.clocked_packets_per_second, clocked.fill_packets_per_second), (500, 0));
    let text = with("if_id = 42\nencapsulation = \"vpe\"\nclocked_packets_per_second = 500");
    assert!(good(&text).warnings().iter().any(|line| line.starts_with("interface ipsec0: clocked")));
    let numbered = with("if_id = 42\nencapsulation = \"vpe\"\nip_protocol = 200");
    let ends: Vec<_> = good(&numbered).outer_endpoints().iter().map(ToString::to_string).collect();
    for end in ["VPE (IP protocol 200) at 0.0.0.0", "VPE (IP protocol 200) at ::", "UDP port 0.0.0.0:4501"] {
        assert!(ends.iter().any(|e| e == end), "{ends:?}");
    }
    let of_udp = good(&with(&format!("if_id = 42\n{all}"))).outer_endpoints();
    assert!(!of_udp.iter().any(|end| matches!(end.protocol, OuterProtocol::Vpe { .. })), "{of_udp:?}");
    let without_ike = with("if_id = 42\nencapsulation = \"vpe\"").replace(ike, "");
    assert_eq!(good(&without_ike).outer_endpoints().len(), 1, "nobody negotiates");
    // In words.
    let bad = |lines: &str, said: &[&str]| expect(&with(lines), said);
    bad("encapsulation = \"vpe\"", &["interface[ipsec0].encapsulation", "only with `if_id`"]);
    bad("if_id = 42\nslots = 9", &["only with VPE"]);
    bad("if_id = 42\nencapsulation = \"vpe\"\nip_protocol = 50", &["another number than 50"]);
    let of_port = |port: u16| with(&format!("if_id = 42\nencapsulation = \"vpe\"\nudp_port = {port}"));
    let of_port = |port| of_port(port).replacen(ike, &format!("{ike}udp_port = 4700\n"), 1);
    expect(&of_port(4500), &["another port than 4500"]);
    expect(&of_port(4700), &["a UDP port on which nobody expects ESP"]);
    bad("if_id = 42\nencapsulation = \"vpe\"\nwindows_max = 7", &["8 or more"]);
    let both = "clocked_packets_per_second = 1\ndummy_packets_per_second = 1";
    bad(&format!("if_id = 42\nencapsulation = \"vpe\"\n{both}"), &["not both"]);
    bad("if_id = 42\nencapsulation = \"ah\"", &["interface[ipsec0].encapsulation"]);
}
