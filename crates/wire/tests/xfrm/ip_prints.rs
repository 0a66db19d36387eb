//! What we build is printed by `ip xfrm monitor file`, iproute2's own decoder, and says what went in.

use crate::captures::unhex;
use std::process::Command;
use testudo_wire::netlink::Header;
use testudo_wire::netlink::datagram::Datagram;
use testudo_wire::xfrm::address::Address;
use testudo_wire::xfrm::algorithm::{Algorithm, AlgorithmWithIcv, Key};
use testudo_wire::xfrm::attribute::{Attribute, Attributes};
use testudo_wire::xfrm::lifetime::{LifetimeConfig, LifetimeCurrent};
use testudo_wire::xfrm::message::{Body, Message};
use testudo_wire::xfrm::notification::{Acquire, Expire, Mapping, PolicyExpire, Report};
use testudo_wire::xfrm::policy::{PolicyId, PolicyInfo, Template};
use testudo_wire::xfrm::replay::{EsnFixed, ReplayState, ReplayStateEsn};
use testudo_wire::xfrm::sa::{Encapsulation, EventId, FlushSas, SaInfo};
use testudo_wire::xfrm::selector::{Id, Mark, SaId, Selector};
use testudo_wire::xfrm::{direction, event_flag, family, mode, sa_extra_flag, sa_flag};

fn ip(text: &str) -> Address {
    text.parse::<std::net::IpAddr>().expect("an address").into()
}

/// What `ip` prints of messages, without leading and trailing blanks.
fn printed(all: &[Message]) -> Vec<String> {
    let mut datagram = Datagram::new();
    all.iter().for_each(|message| message.write(Header::default(), &mut datagram));
    let file = std::env::temp_dir().join(format!(
        "testudo-xfrm-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    std::fs::write(&file, datagram.as_bytes()).expect("a file");
    let output = Command::new("ip").args(["xfrm", "monitor", "all", "file"]).arg(&file).output();
    std::fs::remove_file(&file).expect("it was there");
    let output = output.expect("iproute2 is installed (tests/packages-host.txt)");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).lines().map(|line| line.trim().to_owned()).collect()
}

fn assert_prints(message: Message, expected: &[&str]) {
    let lines = printed(&[message]);
    let lines: Vec<_> = lines.iter().map(String::as_str).filter(|line| !line.is_empty()).collect();
    assert_eq!(lines, expected);
}

fn with(body: Body, attributes: impl Into<Attributes>) -> Message {
    Message { body, attributes: attributes.into() }
}

fn selector() -> Selector {
    Selector {
        destination: ip("10.2.0.0"),
        source: ip("10.1.0.0"),
        destination_port: 443,
        destination_port_mask: u16::MAX,
        family: family::IPV4,
        destination_prefix: 16,
        source_prefix: 24,
        protocol: 6,
        ..Selector::default()
    }
}

fn sa() -> SaInfo {
    SaInfo {
        selector: selector(),
        id: Id { destination: ip("192.0.2.2"), spi: 0xC0FF_EE01, protocol: 50 },
        source: ip("192.0.2.1"),
        lifetime: LifetimeConfig { soft_bytes: 1000, hard_added_s: 3600, ..LifetimeConfig::UNLIMITED },
        reqid: 7,
        family: family::IPV4,
        mode: mode::TUNNEL,
        replay_window: 32,
        flags: sa_flag::AF_UNSPEC | sa_flag::DECAP_DSCP,
        ..SaInfo::default()
    }
}

fn key(digits: &str) -> Key {
    Key::new(unhex(digits).into())
}

#[test]
fn an_sa_with_cipher_and_integrity_algorithm() {
    let cipher = Algorithm { name: "cbc(aes)".into(), key: key("000102030405060708090a0b0c0d0e0f") };
    let key = key("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff");
    let integrity = AlgorithmWithIcv { name: "xcbc(aes)".into(), key, icv_bits: 96 };
    let encapsulation =
        Encapsulation { kind: 2, source_port: 4500, destination_port: 4501, ..Encapsulation::default() };
    let attributes = [
        Attribute::Mark(Mark { value: 0x11, mask: 0xFF }),
        Attribute::IntegrityTruncated(integrity),
        Attribute::Cipher(cipher),
        Attribute::Encapsulation(encapsulation),
        Attribute::Replay(ReplayState { sent: 0x22, received: 0x33, bitmap: 0x7 }),
        Attribute::SetMark(0x44),
        Attribute::SetMarkMask(0xF0),
        Attribute::IfId(0x55),
        Attribute::TfcPadding(1400),
    ];
    assert_prints(
        with(Body::NewSa(sa()), attributes),
        &[
            "src 192.0.2.1 dst 192.0.2.2",
            "proto esp spi 0xc0ffee01 reqid 7 mode tunnel",
            "replay-window 32 flag decap-dscp af-unspec",
            "mark 0x11/0xff output-mark 0x44/0xf0",
            "auth-trunc xcbc(aes) 0xf0f1f2f3f4f5f6f7f8f9fafbfcfdfeff 96",
            "enc cbc(aes) 0x000102030405060708090a0b0c0d0e0f",
            "encap type espinudp sport 4500 dport 4501 addr 0.0.0.0",
            "anti-replay context: seq 0x33, oseq 0x22, bitmap 0x00000007",
            "if_id 0x55",
            "tfcpad 1400",
            "sel src 10.1.0.0/24 dst 10.2.0.0/16 proto tcp dport 443",
        ],
    );
}

#[test]
fn an_sa_with_an_aead_and_extended_sequence_numbers() {
    let name = "rfc4106(gcm(aes))".into();
    let fixed = EsnFixed { words: 2, sent: 0x10, received: 0x20, sent_high: 1, received_high: 2, window: 64 };
    let attributes = [
        Attribute::ExtraFlags(sa_extra_flag::DONT_ENCAP_DSCP),
        Attribute::Aead(AlgorithmWithIcv {
            name,
            key: key("000102030405060708090a0b0c0d0e0f10111213"),
            icv_bits: 128,
        }),
        Attribute::ReplayEsn(ReplayStateEsn { fixed, bitmap: vec![0xA, 0xB] }),
        Attribute::Direction(testudo_wire::xfrm::attribute::SaDirection::Inbound),
        Attribute::LastUsed(0),
    ];
    let sa = SaInfo { mode: mode::TRANSPORT, replay_window: 0, flags: sa_flag::ESN, ..sa() };
    assert_prints(
        with(Body::UpdateSa(sa), attributes),
        &[
            "Updated src 192.0.2.1 dst 192.0.2.2",
            "proto esp spi 0xc0ffee01 reqid 7 mode transport",
            "replay-window 0 flag esn",
            "aead rfc4106(gcm(aes)) 0x000102030405060708090a0b0c0d0e0f10111213 128",
            "lastused -",
            "anti-replay esn context:",
            "seq-hi 0x2, seq 0x20, oseq-hi 0x1, oseq 0x10",
            "replay_window 64, bitmap-length 2",
            "0000000b 0000000a",
            "sel src 10.1.0.0/24 dst 10.2.0.0/16 proto tcp dport 443",
        ],
    );
}

fn policy() -> PolicyInfo {
    let lifetime = LifetimeConfig::UNLIMITED;
    let (priority, index, direction) = (366_847, 0x41, direction::OUT);
    PolicyInfo { selector: selector(), lifetime, priority, index, direction, ..PolicyInfo::default() }
}

fn template() -> Template {
    let id = Id { destination: ip("192.0.2.2"), spi: 0x1234, protocol: 50 };
    let (integrity_algorithms, ciphers, compression_algorithms) = (u32::MAX, u32::MAX, u32::MAX);
    Template {
        id,
        family: family::IPV4,
        source: ip("192.0.2.1"),
        reqid: 7,
        mode: mode::TUNNEL,
        optional: 1,
        integrity_algorithms,
        ciphers,
        compression_algorithms,
        ..Template::default()
    }
}

#[test]
fn a_policy_with_templates() {
    let second =
        Template { id: Id { protocol: 51, ..Id::default() }, mode: mode::TRANSPORT, ..Template::default() };
    let second = Template { family: family::IPV4, integrity_algorithms: u32::MAX, ciphers: 0xF, ..second };
    let attributes = [
        Attribute::Templates(vec![template(), second]),
        Attribute::Mark(Mark { value: 3, mask: 7 }),
        Attribute::IfId(9),
    ];
    assert_prints(
        with(Body::NewPolicy(policy()), attributes),
        &[
            "src 10.1.0.0/24 dst 10.2.0.0/16 proto tcp dport 443",
            "dir out priority 366847",
            "mark 0x3/0x7",
            "tmpl src 192.0.2.1 dst 192.0.2.2",
            "proto esp spi 0x00001234 reqid 7 mode tunnel",
            "level use",
            "tmpl src 0.0.0.0 dst 0.0.0.0",
            "proto ah reqid 0 mode transport",
            "if_id 0x9",
        ],
    );
}

#[test]
fn an_acquire() {
    let acquire = Acquire {
        id: Id { destination: ip("192.0.2.2"), spi: 0, protocol: 50 },
        source: ip("192.0.2.1"),
        selector: Selector { destination_prefix: 32, source_prefix: 32, ..selector() },
        policy: policy(),
        integrity_algorithms: u32::MAX,
        ciphers: u32::MAX,
        compression_algorithms: u32::MAX,
        sequence: 0x0102_0304,
    };
    assert_prints(
        with(Body::Acquire(acquire), [Attribute::Templates(vec![template()])]),
        &[
            "acquire proto esp",
            "sel src 10.1.0.0/32 dst 10.2.0.0/32 proto tcp dport 443",
            "policy src 10.1.0.0/24 dst 10.2.0.0/16 proto tcp dport 443",
            "dir out priority 366847",
            "tmpl src 192.0.2.1 dst 192.0.2.2",
            "proto esp spi 0x00001234 reqid 7 mode tunnel",
            "level use",
        ],
    );
}

#[test]
fn expiries_soft_and_hard() {
    assert_prints(
        with(Body::Expire(Expire { sa: sa(), hard: 1 }), []),
        &[
            "Expired src 192.0.2.1 dst 192.0.2.2",
            "proto esp spi 0xc0ffee01 reqid 7 mode tunnel",
            "replay-window 32 flag decap-dscp af-unspec",
            "sel src 10.1.0.0/24 dst 10.2.0.0/16 proto tcp dport 443",
            "hard 1",
        ],
    );
    assert_prints(
        with(Body::PolicyExpire(PolicyExpire { policy: policy(), hard: 0 }), []),
        &["Expired src 10.1.0.0/24 dst 10.2.0.0/16 proto tcp dport 443", "dir out priority 366847", "hard 0"],
    );
}

fn sa_id() -> SaId {
    SaId { destination: ip("2001:db8::2"), spi: 0xC0FF_EE02, family: family::IPV6, protocol: 50 }
}

#[test]
fn deletions_and_flushes() {
    assert_prints(
        with(Body::DeleteSa(sa().sa_id()), [Attribute::Sa(sa().into())]),
        &[
            "Deleted src 192.0.2.1 dst 192.0.2.2",
            "proto esp spi 0xc0ffee01 reqid 7 mode tunnel",
            "replay-window 32 flag decap-dscp af-unspec",
            "sel src 10.1.0.0/24 dst 10.2.0.0/16 proto tcp dport 443",
        ],
    );
    let id = PolicyId { selector: selector(), index: 0, direction: direction::OUT };
    assert_prints(
        with(Body::DeletePolicy(id), [Attribute::Policy(policy().into())]),
        &["Deleted src 10.1.0.0/24 dst 10.2.0.0/16 proto tcp dport 443", "dir out priority 366847"],
    );
    assert_prints(with(Body::FlushSas(FlushSas { protocol: 50 }), []), &["Flushed state proto esp"]);
    assert_prints(with(Body::FlushPolicies, []), &["Flushed policy"]);
}

#[test]
fn what_is_told_of_an_sa() {
    let event =
        EventId { sa: sa_id(), source: ip("2001:db8::1"), flags: event_flag::CAUSE_TIMER, reqid: 0x77 };
    let used = LifetimeCurrent { bytes: 1000, packets: 10, added_at_s: 0, used_at_s: 0 };
    let attributes =
        [Attribute::Replay(ReplayState { sent: 5, received: 6, bitmap: 1 }), Attribute::Used(used)];
    assert_prints(
        with(Body::NewEvent(event), attributes),
        &[
            "Async event  (0x20)  timer expired",
            "src 2001:db8::1 dst 2001:db8::2  reqid 0x77 protocol esp  SPI 0xc0ffee02",
        ],
    );
    let mapping = Mapping {
        sa: sa_id(),
        reqid: 0x77,
        old_source: ip("2001:db8::1"),
        new_source: ip("2001:db8::3"),
        old_port: 4500,
        new_port: 61_000,
    };
    assert_prints(
        with(Body::Mapping(mapping), []),
        &[
            "Mapping change 2001:db8::1:4500 -> 2001:db8::3:61000",
            "dst 2001:db8::2  reqid 0x77 protocol esp  SPI 0xc0ffee02",
        ],
    );
    let report = Report { protocol: 43, selector: selector() };
    assert_prints(
        with(Body::Report(report), [Attribute::CareOf(ip("192.0.2.9"))]),
        &["report proto route2", "sel src 10.1.0.0/24 dst 10.2.0.0/16 proto tcp dport 443", "coa 192.0.2.9"],
    );
}
