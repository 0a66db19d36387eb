//! Writes the seed corpora: `cargo run --package testudo-fuzz --example seeds`. Fuzzing's own findings stay
//! in the same folders under other names.

#![allow(
    clippy::cast_possible_truncation,
    clippy::expect_used,
    reason = "seeds are small, and what cannot be written ends it"
)]

use fastrand::Rng;
use std::path::Path;
use testudo_fuzz::support::fragments::{fragmentable, fragments};
use testudo_fuzz::support::{Handmade, Inner, Sealer, Side, TunnelSpec, random_bytes};
use testudo_ipsec::ReplayWindow;
use testudo_port_tun::vnet::VnetHeader;

fn write(target: &str, name: &str, bytes: &[u8]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join(name), bytes).expect("a file");
}

/// A run of bytes, preceded by its length.
fn run(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat()
}

fn v4(bytes: usize) -> Vec<u8> {
    Inner::udp("10.0.0.1", "172.16.0.2", bytes).bytes()
}

fn v6(bytes: usize) -> Vec<u8> {
    Inner::udp("fd0a::1", "fd16::2", bytes).bytes()
}

fn spec() -> TunnelSpec {
    TunnelSpec::new(0, testudo_crypto::Suite::AES128GCM16)
}

fn wire() {
    write("wire_ip", "ipv4", &v4(100));
    write("wire_ip", "ipv6", &v6(100));
    write("wire_ip", "ipv4-long", &v4(1500));
    let mut options = v4(60);
    options[0] = 0x47;
    options[20..28].copy_from_slice(&[0x83, 3, 4, 1, 7, 3, 4, 0]);
    options[10..12].fill(0);
    let sum = testudo_wire::checksum::of(&options[..28]).to_bytes();
    options[10..12].copy_from_slice(&sum);
    write("wire_ip", "ipv4-options", &options);
    let mut extended = v6(64);
    extended[6] = 0;
    extended[40..48].copy_from_slice(&[44, 0, 1, 4, 0, 0, 0, 0]);
    extended[48..56].copy_from_slice(&[17, 0, 0, 1, 0, 0, 0, 9]);
    write("wire_ip", "ipv6-extensions", &extended);
    write("esp_trailer", "carrying-ipv4", &Handmade::carrying(&v4(45)).text());
    write("esp_trailer", "only-a-trailer", &[0, 59]);
    write("esp_trailer", "long-padding", &[&(1..=254).collect::<Vec<u8>>()[..], &[254, 4]].concat());
    write("udp", "esp-in-udp", &[0x11, 0x94, 0x11, 0x94, 0, 12, 0, 0, 1, 2, 3, 4]);
    write("wire_ip", "icmp-in-ipv4", &with_headers(false, 1, &[], &[8, 0, 0xF7, 0xFE, 0, 1, 0, 0]));
    write("wire_ip", "mobility-in-ipv6", &with_headers(true, 135, &[], &[59, 1, 5, 0, 0, 0, 0, 0]));
    write("udp", "keepalive", &[0x11, 0x94, 0x11, 0x94, 0, 9, 0, 0, 0xFF]);
}

/// AH with an ICV of 12 bytes, and UDP.
fn ah_and_udp() -> Vec<u8> {
    let fixed = [17, 4, 0, 0, 0, 0, 0x10, 1, 0, 0, 0, 7];
    [&fixed[..], &[0xA5; 12], &[0x13, 0x88, 0, 53, 0, 12, 0, 0, 1, 2, 3, 4]].concat()
}

/// A packet whose extension headers, or options and what follows them, are `rest`. The first byte of a header
/// says what follows.
fn with_headers(v6: bool, first: u8, options: &[u8], rest: &[u8]) -> Vec<u8> {
    let mut packet = if v6 { v6_fixed() } else { v4(20) };
    packet.extend_from_slice(options);
    let header_bytes = packet.len();
    packet.extend_from_slice(rest);
    let total = packet.len();
    if v6 {
        packet[4..6].copy_from_slice(&(total as u16 - 40).to_be_bytes());
        packet[6] = first;
    } else {
        packet[0] = 0x40 | (header_bytes / 4) as u8;
        packet[2..4].copy_from_slice(&(total as u16).to_be_bytes());
        packet[9] = first;
        packet[10..12].fill(0);
        let sum = testudo_wire::checksum::of(&packet[..header_bytes]).to_bytes();
        packet[10..12].copy_from_slice(&sum);
    }
    packet
}

fn v6_fixed() -> Vec<u8> {
    let mut packet = v6(40);
    packet.truncate(40);
    packet
}

/// Extension headers and IPv4 options that AH and transport mode treat each in its own way.
fn headers() {
    const HOPS: [u8; 8] = [43, 0, 0x3E, 4, 1, 2, 3, 4];
    const ENDS: [u8; 8] = [44, 0, 0x1E, 4, 1, 2, 3, 4];
    const ATOMIC: [u8; 8] = [51, 0, 0, 0, 0, 0, 0, 9];
    let route = [&[60, 4, 0, 2, 0, 0, 0, 0][..], &[0xFD; 16], &[0xFE; 16]].concat();
    let chain = [&HOPS[..], &route, &ENDS, &ATOMIC, &ah_and_udp()].concat();
    let options = [&[148, 4, 0, 0, 7, 7, 8, 1, 2, 3, 4, 1, 131, 11, 8][..], &[9; 8], &[0]].concat();
    let udp = &ah_and_udp()[24..];
    let ended = [&[17, 0, 1, 4, 0, 0, 0, 0][..], udp].concat();
    for (name, packet, plain) in [
        ("ipv4", with_headers(false, 51, &[], &ah_and_udp()), with_headers(false, 17, &[], udp)),
        (
            "ipv4-options",
            with_headers(false, 51, &options, &ah_and_udp()),
            with_headers(false, 17, &options, udp),
        ),
        ("ipv6", with_headers(true, 51, &[], &ah_and_udp()), with_headers(true, 17, &[], udp)),
        ("ipv6-extensions", with_headers(true, 0, &[], &chain), with_headers(true, 60, &[], &ended)),
    ] {
        write("ah", name, &[&[3][..], &packet].concat());
        write("transport_mode", name, &[&[0][..], &plain].concat());
        write("transport_mode", &format!("{name}-ah"), &[&[1 + 12][..], &[5; 3], &packet].concat());
    }
    let syn = |options: &[u8]| {
        let fixed = [0, 1, 0, 2, 0, 0, 0, 9, 0, 0, 0, 0, 0x50 + 0x10 * (options.len() / 4) as u8, 2, 0x20, 0];
        [&fixed[..], &[0; 4], options, b"data"].concat()
    };
    for (name, segment) in [
        ("even", syn(&[2, 4, 5, 180])),
        ("odd", syn(&[1, 2, 4, 5, 180, 3, 3, 7])),
        ("twice", syn(&[2, 4, 5, 180, 1, 2, 4, 5, 160, 1, 1, 0])),
    ] {
        write("mss", &format!("ipv4-{name}"), &[&[0, 4, 0][..], &segment].concat());
        write("mss", &format!("ipv6-{name}"), &[&[1, 4, 0][..], &segment].concat());
        write(
            "nat_checksum",
            &format!("tcp-{name}"),
            &[&[0][..], &[10, 0, 0, 5, 10, 9, 8, 7], &segment].concat(),
        );
    }
    write("nat_checksum", "udp-ipv6", &[&[7][..], &[0xFD; 16], &[0xFC; 16], udp].concat());
    write("nat_checksum", "udp-from-ipv6-to-ipv4", &[&[3][..], &[0xFD; 16], &[0xFC; 16], udp].concat());
    icmp_errors();
}

/// Frames as Scapy writes them.
const FRAMES: [(&str, &str); 9] = [
    ("arp-request", "ffffffffffff02005e0000010806000108000604000102005e000001c0000201000000000000c0000202"),
    ("arp-reply", "02005e00000102005e0000020806000108000604000202005e000002c000020202005e000001c0000201"),
    (
        "vlan",
        "02005e00000102005e0000028100a06408004500001e000000004011f6cbc0000202c000020100010002000a136a6869",
    ),
    (
        "two-vlans",
        "02005e00000102005e00000288a800c88100306486dd60000000000a114020010db800000000000000000000000220010db8000000000000000000000001\
         00010002000a3bf96869",
    ),
    (
        "solicitation",
        "3333ff00000202005e00000186dd6000000000203aff20010db8000000000000000000000001ff0200000000000000000001ff0000028700be2600000000\
         20010db8000000000000000000000002010102005e000001",
    ),
    (
        "advertisement",
        "02005e00000102005e00000286dd6000000000203aff20010db800000000000000000000000220010db80000000000000000000000018800ac70e0000000\
         20010db8000000000000000000000002020102005e000002",
    ),
    (
        "address-detection",
        "3333ff00000202005e00000186dd6000000000183aff00000000000000000000000000000000ff0200000000000000000001ff00000287004ceb00000000\
         20010db8000000000000000000000002",
    ),
    (
        "echo",
        "02005e00000102005e000002080045000029000700004001f6c9c0000202c00002010800943412340005736f6d65207061796c6f616421",
    ),
    (
        "echo-ipv6",
        "02005e00000102005e00000286dd6000000000153a4020010db800000000000000000000000220010db80000000000000000000000018000c06f12340005\
         736f6d65207061796c6f616421",
    ),
];

/// What Linux 6.18 tells of routes and neighbours.
const ROUTING: [(&str, &str); 5] = [
    (
        "route",
        "4400000018000006494c066b6102000002100000fe0300010000000008000f00fe000000080001000a090000080006000700000008000500c0000202\
         0800040001000000",
    ),
    (
        "several-ways",
        "50000000180000064b4c066ba602000002100000fe0300010000000008000f00fe000000080001000a08000024000900100000000100000008000500\
         c0000202100000000100000008000500c0000203",
    ),
    (
        "via-ipv6",
        "4c000000180000068d4c066bcc12000002100000fe0300010000000008000f00fe000000080001000a060000160012000a0020010db8000000000000\
         00000000000200000800040003000000",
    ),
    (
        "neighbour",
        "4c0000001c00000000000000b612000002000000030000008000000108000100c00002020a00020002005e0000020000080004000000000014000300\
         00000000000000000000000001000000",
    ),
    (
        "neighbour-gone",
        "400000001d000000000000000000000002000000030000002000000108000100c0000202080004000000000014000300980000009800000098000000\
         00000000",
    ),
];

fn frames() {
    ROUTING.iter().for_each(|(name, digits)| write("rt_messages", name, &hex(digits)));
    FRAMES.iter().for_each(|(name, digits)| write("link_headers", name, &hex(digits)));
    // To a port with each number of tags: packets that wait for a neighbour, all frames as they are and
    // addressed to the port, the packets again, and time that passes.
    let step = |kind: u8, bytes: &[u8]| {
        [&[kind][..], &u16::try_from(bytes.len()).expect("short").to_be_bytes(), bytes].concat()
    };
    let packets = [
        with_headers(false, 17, &[], &[0, 1, 0, 2, 0, 8, 0, 0]),
        with_headers(true, 17, &[], &[0, 1, 0, 2, 0, 8, 0, 0]),
    ];
    for tags in 0..3u8 {
        let waiting: Vec<u8> = packets.iter().flat_map(|packet| step(5, packet)).collect();
        let frames = FRAMES.iter().map(|(_, digits)| hex(digits));
        let received: Vec<u8> =
            frames.flat_map(|frame| [step(0, &frame), step(2, &frame[14..])].concat()).collect();
        let seed = [&[tags][..], &waiting, &received, &waiting, &[7, 1], &[6, 0x80, 0], &waiting].concat();
        write("link_port", &format!("{tags}-tags"), &seed);
    }
}

fn icmp_errors() {
    for (name, v6, kind, code, protocol) in [
        ("too-big-esp", 0u8, 3u8, 4u8, 50u8),
        ("unreachable-udp", 0, 3, 3, 17),
        ("time-exceeded-ah", 0, 11, 0, 51),
        ("too-big-ipv6-esp", 1, 2, 0, 50),
        ("parameter-problem-ipv6-udp", 1, 4, 1, 17),
    ] {
        let quoted = match protocol {
            51 => ah_and_udp(),
            _ => [&[0x11, 0x94, 0x11, 0x94, 0, 40, 0, 0][..], &[0, 0, 0x10, 1, 0, 0, 0, 7]].concat(),
        };
        let quote = with_headers(v6 == 1, protocol, &[], &quoted);
        let head = [v6, kind, code, 0, 0, 0, 0, 5, 120];
        write("icmp_error", name, &[&head[..], &quote].concat());
    }
    let fragment = [&[50, 0, 0, 1, 0, 0, 0, 9][..], &[0, 0, 0x10, 1, 0, 0, 0, 7]].concat();
    let quote = with_headers(true, 44, &[], &fragment);
    write("icmp_error", "first-fragment-ipv6", &[&[1, 2, 0, 0, 0, 0, 0, 5, 0][..], &quote].concat());
}

/// A member of a group: packets (address, kind, sender, window, number) and texts of others, replays, more
/// windows than there may be, its own that come back, and one under its ID that it has not sent.
fn group_of_senders() {
    let packet = |header: [u8; 5]| [&[6][..], &header, &[1], &run(&[7; 9])].concat();
    let windows: Vec<u8> = (0..7).flat_map(|window| packet([4, 0, 4, window, 9])).collect();
    let others: [&[u8]; 5] = [&packet([3, 0, 3, 1, 5]), &[2], &packet([3, 1, 3, 1, 0]), &windows, &[4, 1]];
    let came_back: [&[u8]; 6] = [&[4, 7, 4, 8], &[3, 0, 0], &[3, 1, 66], &[5, 101], &[3, 0, 66], &[4, 9]];
    let own = [packet([5, 0, 1, 0, 1]), packet([5, 1, 1, 0, 3]), vec![4, 10, 3, 0, 0]].concat();
    let nobody = [packet([5, 0, 0, 0, 1]), [&[1, 3][..], &run(&[9; 40])].concat()].concat();
    write("inbound_group", "others", &others.concat());
    write(
        "inbound_group",
        "came-back",
        &[&came_back.concat()[..], &nobody, &packet([2, 0, 2, 7, 200])].concat(),
    );
    write("inbound_group", "taken", &[&came_back.concat()[..], &own].concat());
}

fn data_path() {
    for (name, choice) in [("esp-v4", 0u8), ("udp-v4", 0x20), ("esp-v6", 0x41), ("udp-v6-learned", 0xE2)] {
        let datagram = Sealer::new(&spec(), Side::A).seal(1, &Handmade::carrying(&v4(40)));
        let steps: [&[u8]; 8] = [
            &[choice],
            &[&[0][..], &run(&datagram)].concat(),
            &[&[1][..], &run(&[0xFF])].concat(),
            &[&[6, 90, 3][..], &run(&[]), &[0]].concat(),
            &[2],
            &[&[3][..], &run(&[0, 30, 1])].concat(),
            &[&[5, 59][..], &run(&[0; 20]), &[3]].concat(),
            &[&[4][..], &run(&[0, 0, 2, 4]), &[0]].concat(),
        ];
        write("inbound", name, &steps.concat());
        let steps: [&[u8]; 4] = [
            &[200, choice],
            &[&[0][..], &run(&v6(80))].concat(),
            &[&[1, 60][..], &run(&[0x55; 2000]), &run(&[])].concat(),
            &[&[1, 61][..], &run(&[0; 20]), &run(&[0, 6, 58])].concat(),
        ];
        write("outbound", name, &steps.concat());
    }
    for (name, choice) in [("raw", 0_u8), ("chacha-in-udp", 6)] {
        // Headers (kind, window, number) and texts, replays, rubbish, and more windows than there may be.
        let packet = |header: [u8; 3]| [&[3][..], &header, &[1], &run(&[7; 9])].concat();
        let windows: Vec<u8> = (0..7).flat_map(|window| packet([0, window, 9])).collect();
        let steps: [&[u8]; 8] = [
            &[choice],
            &packet([0, 1, 5]),
            &[2],
            &packet([1, 1, 0]),
            &[&[3, 6, 2, 1, 2, 64][..], &[3, 0, 2, 1, 0], &run(&[0x50; 30])].concat(),
            &windows,
            &[&[1][..], &run(&[0xFF]), &[1], &run(&[9; 40])].concat(),
            &[&[4, 0, 2, 9, 3][..], &run(&[3, 200, 0, 0x60])].concat(),
        ];
        write("inbound_vpe", name, &steps.concat());
    }
    group_of_senders();
    // For the model of RFC 4301, any bytes are policies and datagrams.
    for seed in 1..=4 {
        write("inbound", &format!("policies-{seed}"), &random_bytes(&mut Rng::with_seed(seed), 700));
        write("outbound", &format!("policies-{seed}"), &random_bytes(&mut Rng::with_seed(seed << 32), 700));
    }
    let mut window = ReplayWindow::new(64, true);
    [1, 5, 60, 70].into_iter().for_each(|n| window.commit(n).expect("fresh"));
    write("replay_window_restore", "same-size", &[&[0][..], &run(&window.save())].concat());
    write("replay_window_restore", "another-size", &[&[6][..], &run(&window.save()), &[1, 2, 3]].concat());
    write("replay_window_restore", "made-to-fit", &[&[0x80][..], &run(&[0xFF; 32])].concat());
}

fn reassembly() {
    // For the model, any bytes are fragments of a few datagrams.
    for seed in 1..=4 {
        write("reassembly", &format!("any-{seed}"), &random_bytes(&mut Rng::with_seed(seed), 2000));
    }
    for (name, datagram) in [("packets-v4", v4(300)), ("packets-v6", v6(300))] {
        let all = fragments(&fragmentable(datagram, 7), 7, 80);
        let steps = |order: &[usize]| -> Vec<u8> {
            order.iter().flat_map(|&place| [&[0][..], &run(&all[place])].concat()).collect()
        };
        // In order; backwards, one twice; again with a changed place, length or byte; the rest after a while.
        let changed = [33, 7, 1, 65, 3, 0, 60, 9, 97, 41, 0, 43, 8, 7, 0x1D];
        let steps = [steps(&[0, 1, 2, 3]), steps(&[3, 2, 2, 1, 0]), changed.into(), steps(&[1, 3])];
        write("reassembly", name, &steps.concat());
    }
}

fn engines() {
    // A job for each of the twelve keys, a burst, a forged one and an impossible one, another key, a burst
    // with the remaining bytes.
    for (name, choice, shape) in [("short", 0x10u8, 0x30u8), ("long", 0x7F, 0x31), ("late", 0xC1, 0x25)] {
        let job = |kind: u8, key: u8| vec![kind, key, shape, key * 7, 0, 90 + key];
        let mut steps = vec![choice, 0, 7];
        (0..12).for_each(|key| steps.extend(job(100, key)));
        steps.extend([33, 65, 3]);
        (0..12).for_each(|key| steps.extend([job(171, key), vec![0, 200, 3]].concat()));
        (0..12).for_each(|spoil| steps.extend([job(168 + spoil, spoil), vec![0, 17, 0, 1]].concat()));
        steps.extend([1, 2, 9, 17, 3, 40]);
        (0..13).for_each(|key| steps.extend(job(100, key)));
        write("engines", name, &steps);
    }
}

fn operator() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    for name in ["site-to-site.toml", "road-warrior.toml"] {
        write("config", name, &std::fs::read(examples.join(name)).expect("the example"));
    }
    write("config", "broken.toml", b"[gateway]\nlog = 7\n[[tunnel]]\nname = \"a\nsuite = []\n");
}

fn keys() {
    let hex = |count: usize| (0..count).map(|n| format!("{:02x}", n * 7 % 256)).collect::<String>();
    for (name, choice, mode, text) in [
        ("plain", 0x80u8, 0o600u16, hex(20)),
        ("with-prefix-and-spaces", 0x81, 0o400, format!(" \n0x {}\n:{}\r\n", hex(30), hex(6))),
        ("two-keys", 0x83, 0o640, hex(36)),
        ("not-hex", 4, 0o600, format!("{}\nxy", hex(12))),
        ("short", 5, 0o600, hex(3)),
    ] {
        write("keys", name, &[&[choice][..], &mode.to_be_bytes(), text.as_bytes()].concat());
    }
    let text = |suite: &str, out: &str, inb: &str, more: &str| {
        format!(
            "[gateway]\nstate = \"s\"\n[port.protected]\nkind = \"tun\"\nname = \"t0\"\n[port.unprotected]\nkind = \"socket\"\n\
             [[tunnel]]\nname = \"a\"\nlocal = \"192.0.2.1\"\nremote = \"192.0.2.2\"\nsuite = \"{suite}\"\n\
             selectors = [ {{ local = \"10.1.0.0/16\", remote = \"10.2.0.0/16\" }} ]\n\
             outbound = {{ spi = 0x1001, {out} }}\ninbound = {{ spi = 0x1002, {inb} }}\n{more}"
        )
    };
    let env = text("aes128gcm16", "key_env = \"K0\"", "key_env = \"K1\"", "");
    let files = text(
        "chacha20poly1305",
        "key_file = \"@0\"",
        "key_file = \"@1\"",
        "known_answer = { iv_seed = 3 }\n",
    );
    let same = text("aes128-sha1", "key_file = \"@0\"", "key_env = \"K0\"", "");
    for (name, choice, bytes, text) in
        [("variables", 0u8, 20, env), ("files", 1, 36, files), ("one-key-twice", 0, 36, same)]
    {
        let all = hex(2 * bytes);
        let keys = [run(&all.as_bytes()[..2 * bytes]), run(&all.as_bytes()[2 * bytes..])].concat();
        write("config_load", name, &[&[choice, 2][..], &keys, text.as_bytes()].concat());
    }
}

fn control_socket() {
    let question = r#"{"verb":"explain","side":"protected","source":"10.1.0.1","destination":"10.2.0.1""#;
    for (name, text) in [
        ("status", r#"{"verb":"status"}"#.to_owned()),
        ("sa-list", r#"{"verb":"sa-list"}"#.to_owned()),
        ("policy-list", r#"{"verb":"policy-list"}"#.to_owned()),
        ("explain", format!(r#"{question},"protocol":6,"source_port":1024,"destination_port":25}}"#)),
        (
            "explain-v6",
            r#"{"verb":"explain","side":"unprotected","source":"fd02::1","destination":"fd01::1"}"#
                .to_owned(),
        ),
        ("bad-port", format!(r#"{question},"destination_port":65536}}"#)),
        ("deep", "[".repeat(300)),
    ] {
        write("control_request", name, format!("\u{7}{text}\n").as_bytes());
    }
    write("control_request", "not-utf-8", b"\x07{\"verb\":\"status\xff\"}\n");
    write("control_request", "too-long", &[&[0xFF][..], br#"{"verb":"status"}"#, &[b' '; 4200]].concat());
}

fn store() {
    let lease = |key: u8, block: u8| [5, key, block];
    let change = |kind: u8, at: u32, value: u8| {
        let [_, a, b, c] = at.to_be_bytes();
        vec![kind, a, b, c, value]
    };
    let damage = |changes: &[Vec<u8>]| [&[3][..], &run(&changes.concat())].concat();
    let history = [&[0][..], &lease(0, 100), &lease(1, 5), &[2, 1, 0, 3, 7, 7, 7], &lease(0, 255)].concat();
    write("store", "closed-and-opened", &[&history[..], &[0], &lease(0, 1), &[0], &lease(1, 9)].concat());
    write("store", "killed", &[&history[..], &[1], &lease(0, 3), &[1], &lease(2, 1), &[0]].concat());
    let flipped: Vec<u8> =
        [9, 20, 64, 100, 140, 200, 320].iter().flat_map(|&at| damage(&[change(0, at, 3)])).collect();
    write("store", "header-damaged", &[&history[..], &flipped, &lease(0, 1)].concat());
    let pages = [change(1, 0x01_02_00, 0), change(2, 0x03_00_00, 0), change(3, 9000, 0), change(4, 5000, 9)];
    let pages: Vec<u8> = pages.iter().flat_map(|page| damage(std::slice::from_ref(page))).collect();
    write("store", "pages-damaged", &[&history[..], &[1], &pages, &lease(0, 1)].concat());
    write("store", "made-up", &[&[1, 1][..], &run(&change(0, 9, 1)), &[0; 300]].concat());
    write("store", "no-start", &[&[1, 0][..], b"this is no store"].concat());
}

fn ports() {
    let header: Vec<u8> =
        [0xA1B2_C3D4u32, 0x0004_0002, 0, 0, 65_535, 101].iter().flat_map(|w| w.to_le_bytes()).collect();
    let packet = v4(60);
    let record: Vec<u8> = [0, 1, 60, 60u32].iter().flat_map(|w| w.to_le_bytes()).collect();
    write("pcap", "raw-ip.pcap", &[&header[..], &record, &packet].concat());
    let block = |kind: u32, body: &[u8]| {
        let length = (body.len() as u32 + 12).to_le_bytes();
        [&kind.to_le_bytes()[..], &length, body, &length].concat()
    };
    let section =
        block(0x0A0D_0D0A, &[0x4D, 0x3C, 0x2B, 0x1A, 1, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255]);
    let interface = block(1, &[101, 0, 0, 0, 0, 0, 0, 0]);
    let enhanced = block(6, &[&[0; 12][..], &60u32.to_le_bytes(), &60u32.to_le_bytes(), &packet].concat());
    write("pcap", "raw-ip.pcapng", &[section, interface, enhanced].concat());

    for (name, gso_type, protocol, mut frame) in
        [("tcp4", 1u8, 6u8, v4(1000)), ("udp4", 5, 17, v4(1000)), ("tcp6", 4, 6, v6(1000))]
    {
        let (at, protocol_at) = if frame[0] >> 4 == 4 { (20, 9) } else { (40, 6) };
        frame[protocol_at] = protocol;
        frame[at + 12] = 0x50;
        let vnet = VnetHeader { flags: 1, gso_type, gso_size: 300, ..VnetHeader::default() };
        write("tun_split", name, &[&vnet.to_bytes()[..], &frame].concat());
    }
}

/// A message for `socket_receive`: `length` bytes in datagrams of `size`.
fn message(length: u16, size: u16) -> Vec<u8> {
    [&[100][..], &length.to_be_bytes(), &[2 | 4], &size.to_be_bytes()].concat()
}

/// A frame for `tun_receive`: `length` bytes of payload, to be split in parts of `size`, by the kind of
/// packet.
fn frame(kind: u8, length: u16, size: u16) -> Vec<u8> {
    [&[kind][..], &length.to_be_bytes(), &size.to_be_bytes()].concat()
}

fn socket_port() {
    let read = |taken: u8| vec![40, taken];
    let single = |length: u16| [&[100][..], &length.to_be_bytes(), &[1]].concat();
    for (name, choice, buffers) in [
        ("udp4", 0x08u8, 140u8),
        ("udp6-few-buffers", 0x04, 3),
        ("raw4", 0x0E, 60),
        ("raw6", 0x0F, 60),
        ("ah4", 0x2E, 60),
        ("ah6", 0x2F, 60),
    ] {
        let supers = [
            message(14_000, 1400),
            message(14_000, 1400),
            read(200),
            message(20_000, 1400),
            message(900, 300),
            read(5),
        ];
        let mixed = [
            single(200),
            single(60),
            vec![5, 6],
            message(4_000, 1_000),
            read(0),
            message(5_000, 9_000),
            single(0),
            read(60),
        ];
        let odd =
            [vec![65, 0, 100, 1], vec![70, 0, 100, 0], vec![255, 1, 0, 2], vec![100, 255, 255, 3], read(9)];
        let unknown = run(&[24, 0, 0, 0, 0, 0, 0, 0, 17, 0, 0, 0, 104, 0, 0, 0, 30, 0, 0, 0]);
        let junk = [&[100, 0, 90, 0x21][..], &unknown].concat();
        let steps = [supers.concat(), mixed.concat(), odd.concat(), junk, read(255)].concat();
        write("socket_receive", name, &[&[choice, buffers][..], &steps].concat());
    }
    let fields = [0x0B, 0x9F, 0xED, 0xCB, 0, 255];
    let headers = [
        &[3, 0x00, 0x05, 0x02][..],      // hop-by-hop, destination, routing
        &[2, 0xC0, 0x01],                // hop-by-hop, (atomic fragment,) destination
        &[2, 0xE0, 0x01],                // the first names no header
        &[0x82, 0x00, 0x01],             // lengths that lie
        &[9, 1, 1, 1, 1, 1, 1, 1, 1, 1], // more than a datagram may have
        &[15, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29], // more than there is room for
    ];
    let steps: Vec<u8> = headers
        .iter()
        .flat_map(|headers| [&[100, 0, 200, 0x81][..], &fields, headers].concat())
        .chain(read(255))
        .collect();
    write("socket_receive", "ah6-extension-headers", &[&[0x2F, 60][..], &steps].concat());
    let both = [message(4_000, 1_000), single(0), single(60), read(255)].concat();
    write("socket_receive", "empty-behind-a-super-packet", &[&[0x08, 40][..], &both].concat());
}

/// Super-frames and single packets from a TUN interface.
fn tun_port() {
    let read = |taken: u8| vec![40, taken];
    for (name, choice, buffers) in [("many-buffers", 2u8, 140u8), ("few-buffers", 1, 3)] {
        let one = |kind: u8| {
            [frame(kind, 14_000, 1_400), frame(kind, 14_000, 1_400), read(200), frame(kind, 30_000, 1_400)]
                .concat()
        };
        let other = |kind: u8| {
            [frame(kind, 3_000, 500), read(3), frame(kind, 400, 500), vec![3, 2], read(0)].concat()
        };
        let flows: Vec<u8> =
            [0xA0, 0xA1, 0xA2, 0xA3].iter().flat_map(|&kind| [one(kind), other(kind)].concat()).collect();
        let singles = [frame(0x90, 100, 0), frame(0x93, 1_200, 0), frame(0x92, 2_990, 0), read(255)].concat();
        let odd = [&[66][..], &run(&[0; 9]), &[66], &run(&[0; 10]), &[70], &run(&[3; 50])].concat();
        write("tun_receive", name, &[&[choice, buffers][..], &flows, &singles, &odd, &read(255)].concat());
    }
}

/// What a kernel writes into the rings of AF_XDP: as it should, and lies of each kind among that.
fn xdp_port() {
    // A frame that came, one of three parts, packets to send, and those that were sent.
    let honest =
        [&[80, 5, 100, 81, 6, 0, 81, 6, 0, 80, 1, 0, 0][..], &[48, 2, 0, 100, 5, 200, 30, 0], &[144; 6]];
    let honest = honest.concat().repeat(8);
    let lies: [(&str, &[u8]); 6] = [
        (
            "any-address",
            &[176, 0, 60, 3, 177, 0, 60, 150, 9, 9, 1, 192, 255, 255, 250, 0, 1, 200, 7, 200, 255, 1, 1],
        ),
        ("twice", &[80, 0, 60, 228, 0, 216, 0, 228, 229, 0]),
        ("beyond-the-frame", &[82, 8, 151, 0, 80, 7, 0, 0, 192, 0, 255, 4, 0]),
        ("index-of-what-came", &[240, 0, 65]),
        ("index-of-what-was-sent", &[245, 255, 255]),
        ("index-of-what-was-read", &[80, 0, 60, 249, 0, 70, 0, 253, 1, 0, 48, 0, 0, 60]),
    ];
    for choice in [0, 1] {
        write("xdp_rings", &format!("honest-{choice}"), &[&[choice][..], &honest].concat());
    }
    for (name, lie) in lies {
        write("xdp_rings", name, &[&[0][..], &honest, lie, &honest].concat());
    }
}

/// What a driver of DPDK says of its mbufs: as it should, and lies of each kind among that.
fn dpdk_port() {
    // Frames that came, one of two parts, packets to send, and those that were sent.
    let honest = [&[81, 5, 100, 81, 6, 0, 82, 1, 0, 0][..], &[48, 2, 0, 100, 5, 200, 30, 0], &[144; 6]];
    let honest = honest.concat().repeat(8);
    let lies: [(&str, &[u8]); 8] = [
        ("any-address", &[216, 0, 60, 223, 255, 255, 208, 0, 7, 0]),
        ("twice", &[81, 0, 60, 192, 0, 192, 0, 144, 192, 0]),
        ("beyond-the-frame", &[81, 0, 60, 176, 0, 128, 7, 200, 1, 0, 0, 0, 0, 0, 192, 0]),
        ("elsewhere", &[81, 0, 60, 176, 0, 128, 0, 60, 1, 0, 16, 0, 0, 0, 192, 0]),
        ("chain-without-end", &[81, 0, 60, 177, 0, 128, 0, 60, 9, 0, 0, 0, 192, 0]),
        ("freed-twice", &[81, 0, 60, 224, 224, 232, 1, 0, 48, 0, 0, 60]),
        ("counts", &[240, 1, 48, 3, 0, 60, 0, 61, 0, 62, 0, 63, 244, 48, 0, 0, 60, 248, 65, 0]),
        ("reset-and-gone", &[252, 0, 254, 0]),
    ];
    for choice in [0, 1, 2] {
        write("dpdk_mbufs", &format!("honest-{choice}"), &[&[choice][..], &honest].concat());
    }
    for (name, lie) in lies {
        write("dpdk_mbufs", name, &[&[0][..], &honest, lie, &honest].concat());
    }
}

/// What the kernel answers to packets that are sent.
fn transmission() {
    for (name, answers) in
        [("all-goes", &[0u8][..]), ("refused", &[3, 10, 15, 9]), ("later", &[4, 14, 2, 200, 5])]
    {
        let one = |kind: u8| [&[39][..], &[kind, 0].repeat(40)].concat();
        let steps: Vec<u8> = [0u8, 0x48, 3, 4, 5, 6, 0x25, 0x20, 0x90, 0x96]
            .iter()
            .flat_map(|&kind| [answers, &one(kind)].concat())
            .collect();
        write("socket_transmit", name, &[&[7][..], &steps].concat());
        let mixed = [&[39][..], &[0, 0, 1, 0, 2, 0, 3, 0, 0x10, 4, 4, 2].repeat(7)].concat();
        let steps = [answers, &mixed, answers, &one(0), answers, &one(3), &[0], &mixed].concat();
        write("tun_transmit", name, &[&[0][..], &steps].concat());
    }
}

/// Policies, datagrams and changes drawn from runs of bytes.
fn policy_changes() {
    for (name, step) in [("odd-steps", 7_u8), ("even-steps", 52), ("many-removals", 31)] {
        let bytes: Vec<u8> = (0..900_u16).map(|n| (n as u8).wrapping_mul(step) ^ (n >> 3) as u8).collect();
        write("policy_changes", name, &bytes);
    }
    // Insertions at both ends, then removals, with packets in between.
    let changes: Vec<u8> =
        [0, 3, 200, 9].into_iter().chain((0..1200_u16).map(|n| [0, 1, 3, 40, 2][n as usize % 5])).collect();
    write("policy_changes", "in-turn", &changes);
    // Flows that ask for SAs of their own, are given them, and go on.
    let flows: Vec<u8> = (0..2400_u32).map(|n| ((n * n * 31 + n * 7) >> 5) as u8).collect();
    write("policy_changes", "flows", &flows);
}

/// Numbers near and far, SAs in a rekey's order and in none, paths that narrow.
fn sas() {
    let run_of = |numbers: u8| [7, numbers];
    for (name, halves) in [("near", 0_u8), ("a-half-ahead", 1), ("many-halves-ahead", 15)] {
        let steps = [&run_of(40)[..], &[4, halves], &run_of(47).repeat(8), &[5, 9, 6, 200, 0x46, 3, 3, 77]];
        write("sequence_numbers", name, &[steps.concat(), steps.concat()].concat());
    }
    let in_turn = |side: u8| -> Vec<u8> {
        let change = |kind: u8, key: u8, awaited: u8| vec![kind << 1 | side, key, awaited];
        let pass = vec![7 << 1 | side, 7 << 1 | (1 - side)];
        let rekey = |key: u8| {
            let add = [change(0, key, 0), vec![1 - side, key, 0], pass.clone(), change(4, key, 0)].concat();
            let follow = [vec![6 << 1 | (1 - side), key, key], pass.clone(), pass.clone()].concat();
            let old = key - 1;
            let remove = [change(2, old, 0), change(1, old, 0), vec![2 << 1 | (1 - side), old, 0]].concat();
            [add, follow, remove, vec![1 << 1 | (1 - side), old, 0], pass.clone()].concat()
        };
        (1..12).flat_map(rekey).collect()
    };
    for (name, choice, side) in [("esp", 0_u8, 0), ("esp-in-udp", 1, 1), ("ah", 2, 0)] {
        write("sa_changes", name, &[&[choice][..], &in_turn(side)].concat());
    }
    write("sa_changes", "any", &random_bytes(&mut Rng::with_seed(9), 900));
    for (name, choice, rules) in
        [("routers-v4", 0_u8, 1_u8), ("after-v6", 17, 0x2C), ("probes", 8, 0x31), ("udp-padded", 26, 0x59)]
    {
        let send = |choice: u8, bytes: u16| [&[0, choice][..], &bytes.to_be_bytes()].concat();
        let complain = |mtu: u16| [&[2][..], &mtu.to_be_bytes(), &run(&[])].concat();
        let wait = |passes: u16| [&[3, 7][..], &passes.to_be_bytes(), &run(&[])].concat();
        let sends = [send(0, 100), send(1, 1400), send(0, 3000), send(2, 1280), send(1, 1300)].concat();
        let told = [complain(1400), wait(1500), sends.clone(), complain(1300), complain(100)].concat();
        let probed = [wait(1300), wait(1300), sends.clone(), wait(1300), wait(1500), sends.clone()].concat();
        write("path_mtu", name, &[&[choice, rules][..], &sends, &told, &probed, &probed].concat());
    }
}

/// What foreign programs and a kernel were recorded saying: of each type and each set of attributes one
/// message.
/// The bytes that hexadecimal digits say.
fn hex(digits: &str) -> Vec<u8> {
    let pairs = digits.as_bytes().as_chunks::<2>().0;
    let byte =
        |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("hex");
    pairs.iter().map(byte).collect()
}

fn xfrm() {
    const RECORDED: [&str; 3] = [
        include_str!("../../crates/wire/tests/xfrm/captures/iproute2.txt"),
        include_str!("../../crates/wire/tests/xfrm/captures/strongswan.txt"),
        include_str!("../../crates/wire/tests/xfrm/captures/daemons.txt"),
    ];
    for (name, text) in ["iproute2", "strongswan", "daemons"].iter().zip(RECORDED) {
        let sent = text.lines().filter_map(|line| line.strip_prefix("sent ")).map(hex);
        // Several sessions in a row: each file has as many records as the target takes.
        for (count, records) in sent.collect::<Vec<_>>().chunks(64).enumerate() {
            let runs = records.iter().flat_map(|record| {
                let length = u16::try_from(record.len()).expect("a short record").to_be_bytes();
                [&[1][..], &length, record].concat()
            });
            write("xfrm_server", &format!("{name}-{count}"), &runs.collect::<Vec<u8>>());
        }
    }
    let mut seen = Vec::new();
    for line in RECORDED.iter().flat_map(|text| text.lines()) {
        let digits = line.strip_prefix("sent ").or_else(|| line.strip_prefix("received "));
        let Some(digits) = digits else { continue };
        let datagram = hex(digits);
        for message in testudo_wire::netlink::messages(&datagram).map(|message| message.expect("whole")) {
            let read = testudo_wire::xfrm::message::Message::read(&message);
            let Ok(read) = read else { continue };
            let (kind, attributes) =
                (read.body.kind(), read.attributes.iter().map(|attribute| attribute.kind()));
            let shape = (kind, attributes.collect::<Vec<u16>>());
            if !seen.contains(&shape) {
                let count = seen.iter().filter(|(seen, _)| *seen == kind).count();
                let name = testudo_wire::xfrm::kind::name_of(kind).expect("a known type");
                write("xfrm_messages", &format!("{}-{count}", name[9..].to_lowercase()), message.bytes);
                seen.push(shape);
            }
        }
    }
}

fn main() {
    wire();
    xfrm();
    headers();
    frames();
    data_path();
    reassembly();
    engines();
    operator();
    keys();
    control_socket();
    store();
    ports();
    socket_port();
    tun_port();
    xdp_port();
    dpdk_port();
    transmission();
    policy_changes();
    sas();
}
