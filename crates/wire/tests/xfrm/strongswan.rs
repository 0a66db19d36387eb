//! What charon sends: each message is read, says what was negotiated, and is built again byte for byte.

use crate::captures::{STRONGSWAN, assert_same, of_xfrm, read, rebuilt, recorded};
use std::net::IpAddr;
use testudo_wire::netlink::{Header, flag};
use testudo_wire::xfrm::attribute::Attributes;
use testudo_wire::xfrm::message::{Body, Message};
use testudo_wire::xfrm::sa::SaInfo;
use testudo_wire::xfrm::{direction, mode, sa_flag};

/// What was sent under a command that has `words`, with its headers.
fn sent(words: &str) -> Vec<(Header, Message)> {
    let all = recorded(STRONGSWAN)
        .into_iter()
        .filter(|datagram| datagram.is_sent && datagram.command.contains(words));
    all.flat_map(|datagram| of_xfrm(&datagram.bytes).iter().map(|m| (m.header, read(m))).collect::<Vec<_>>())
        .collect()
}

#[test]
fn messages_of_charon_are_built_again_byte_for_byte() {
    for datagram in recorded(STRONGSWAN) {
        for message in of_xfrm(&datagram.bytes) {
            assert_same(&rebuilt(&read(&message), &message), message.bytes, datagram.command);
            assert!(message.header.has(flag::REQUEST));
        }
    }
}

/// The SAs that a responder installs: the inbound one completes its SPI, the outbound one is new.
fn sas(words: &str) -> [(SaInfo, Attributes); 2] {
    let all: Vec<_> = sent(words).into_iter().map(|(_, message)| message).collect();
    let inbound = all.iter().find_map(|message| match message.body {
        Body::UpdateSa(sa) => Some((sa, message.attributes.clone())),
        _ => None,
    });
    let outbound = all.iter().find_map(|message| match message.body {
        Body::NewSa(sa) => Some((sa, message.attributes.clone())),
        _ => None,
    });
    [inbound.expect("an inbound SA"), outbound.expect("an outbound SA")]
}

fn addresses(sa: &SaInfo) -> [Option<IpAddr>; 2] {
    [sa.source.ip(sa.family), sa.id.destination.ip(sa.family)]
}

#[test]
fn sas_with_an_aead_say_what_was_negotiated() {
    let [(inbound, at_inbound), (outbound, at_outbound)] = sas("GCM");
    let [a, b] = ["10.0.0.1", "10.0.0.2"].map(|ip| Some(ip.parse().expect("an address")));
    assert_eq!((addresses(&inbound), addresses(&outbound)), ([a, b], [b, a]));
    for (sa, attributes) in [(inbound, &at_inbound), (outbound, &at_outbound)] {
        assert_eq!((sa.mode, sa.id.protocol, sa.reqid), (mode::TUNNEL, 50, 1));
        assert_eq!(sa.flags, sa_flag::ESN | sa_flag::AF_UNSPEC);
        assert_eq!((sa.lifetime.hard_bytes, sa.lifetime.hard_added_s), (1_000_000_000, 3600));
        let aead = attributes.aead().expect("AES-GCM");
        assert_eq!((aead.name.as_str(), aead.key.bits(), aead.icv_bits), ("rfc4106(gcm(aes))", 160, 128));
        assert_eq!(attributes.unknown().count(), 0);
    }
    assert_eq!(at_inbound.if_id(), Some(&7));
    assert_eq!(at_inbound.replay_esn().expect("a window").fixed.window, 32);
}

/// charon says `aes` where `ip` says `cbc(aes)`, and that the ICV of HMAC-SHA-256 has 128 bits (RFC 4868
/// 2.6).
#[test]
fn sas_with_cipher_and_integrity_algorithm_say_what_was_negotiated() {
    for (sa, attributes) in sas("CBC") {
        assert_eq!((sa.mode, sa.id.protocol), (mode::TRANSPORT, 50));
        let cipher = attributes.cipher().expect("AES-CBC");
        assert_eq!((cipher.name.as_str(), cipher.key.bits()), ("aes", 256));
        let integrity = attributes.integrity_truncated().expect("HMAC-SHA-256");
        assert_eq!(
            (integrity.name.as_str(), integrity.key.bits(), integrity.icv_bits),
            ("hmac(sha256)", 256, 128)
        );
        let encapsulation = attributes.encapsulation().expect("in UDP");
        assert_eq!(
            (encapsulation.kind, encapsulation.source_port, encapsulation.destination_port),
            (2, 4500, 4500)
        );
    }
}

/// The SPI for the inbound SA is asked for with the range of RFC 4303 2.1.
#[test]
fn charon_asks_for_an_spi_and_deletes_what_it_made() {
    let all = sent("charon");
    let has = |test: fn(&Body) -> bool| all.iter().any(|(_, message)| test(&message.body));
    assert!(has(|body| matches!(body, Body::AllocateSpi(request) if request.lowest >= 256)));
    assert!(has(|body| matches!(body, Body::GetSpdInfo(_))));
    assert!(
        has(|body| matches!(body, Body::DeleteSa(_))) && has(|body| matches!(body, Body::DeletePolicy(_)))
    );
    let templates = |message: &Message| message.attributes.templates().map(|templates| templates[0]);
    let trap = all
        .iter()
        .find(|(_, message)| matches!(message.body, Body::NewPolicy(p) if p.direction == direction::OUT));
    let (_, trap) = trap.expect("a trap policy");
    assert_eq!(templates(trap).expect("with a template").id.protocol, 50);
}
