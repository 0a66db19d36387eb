//! What is negotiated for an interface of VPE.

use super::*;
use crate::KeyDigests;
use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use testudo_ipsec::{Encapsulation, IpsecProtocol};
use testudo_packet::DropReason;
use testudo_wire::xfrm::replay::ReplayState;

const SECTIONS: &str =
    "[[interface]]\nname = \"ipsec0\"\nif_id = 42\nencapsulation = \"vpe\"\nkeepalive_seconds = 7\n";

fn spoken() -> Spoken {
    Spoken::with(NotedRoutes::new(), SECTIONS)
}

/// Of the interface of VPE.
fn at(mut message: Message) -> Message {
    message.attributes.push(Attribute::IfId(42));
    message
}

fn only(spoken: &Spoken) -> Arc<NegotiatedTunnel> {
    let tunnels = spoken.tunnels().all();
    assert_eq!(tunnels.len(), 1);
    Arc::clone(&tunnels[0])
}

#[test]
fn what_an_if_id_of_vpe_negotiates_runs_as_vpe_under_a_key_of_its_own() {
    let mut spoken = spoken();
    spoken.takes(at(policy(1, 0)));
    spoken.takes(at(policy(0, 0)));
    spoken.takes(at(sa(0x5001, false, 21)));
    spoken.takes(at(sa(0x5002, true, 22)));
    let tunnel = only(&spoken);
    let running = &tunnel.running;
    assert_eq!((running.tunnel.protocol, running.tunnel.esn), (IpsecProtocol::Vpe, true));
    assert_eq!(running.tunnel.keepalive, Some(std::time::Duration::from_secs(7)));
    let sas = running.sas.lock().clone();
    for (running, (spi, byte)) in sas.iter().zip([(0x5001, 21), (0x5002, 22)]) {
        let negotiated = material(byte);
        let own = crate::vpe_key::of_negotiated(&negotiated, spi).unwrap();
        assert_eq!((running.spi, running.suite), (spi, negotiated.suite().for_vpe().unwrap()));
        assert_eq!(running.key_digests, KeyDigests::of(&own));
        assert_ne!(running.key_digests, KeyDigests::of(&negotiated));
    }
    // The SPI of one is free for none of ESP.
    spoken.refuses(sa(0x5002, true, 23), Errno::EXIST, "an SA has this");
    spoken.takes(at(deletion(0x5001, false).into()));
    spoken.takes(at(deletion(0x5002, true).into()));
    assert_eq!(spoken.says(Body::FlushPolicies).0, 0);
    assert!(spoken.tunnels().is_empty());
}

/// A packet of ESP with the SPI of an SA of VPE has no SA.
#[test]
fn an_sa_of_vpe_takes_no_packet_of_esp() {
    let mut spoken = spoken();
    spoken.takes(at(sa(0x5002, true, 22)));
    let unknown = |spoken: &Spoken| {
        spoken.gateway.commander.save_windows(Vec::new()).unwrap();
        let drops = spoken.gateway.shared.facts.counters.drops();
        drops.get(DropReason::UnknownSpi)
    };
    let before = unknown(&spoken);
    let mut esp = vec![0x45, 0, 0, 60, 0, 0, 0, 0, 64, 50, 0, 0, 192, 0, 2, 2, 192, 0, 2, 1];
    let sum = testudo_wire::checksum::of(&esp).to_bytes();
    esp[10..12].copy_from_slice(&sum);
    esp.extend([0, 0, 0x50, 0x02, 0, 0, 0, 1]);
    esp.resize(60, 7);
    assert!(spoken.gateway.unprotected.input.push(&esp));
    let is_dropped = (0..ROUNDS).any(|_| unknown(&spoken) == before + 1);
    assert!(is_dropped, "it is dropped by name");
}

/// Moved by a NAT or by MOBIKE, an SA comes back with its key. Under two SPIs one negotiated key makes two.
#[test]
fn a_key_of_vpe_is_another_under_another_spi_and_keeps_its_direction() {
    let mut spoken = spoken();
    spoken.takes(at(policy(1, 0)));
    spoken.takes(at(sa(0x5001, false, 21)));
    spoken.takes(at(sa(0x5003, false, 21)));
    let digests: Vec<_> = only(&spoken).running.sas.lock().iter().map(|sa| sa.key_digests).collect();
    assert_ne!(digests[0], digests[1]);
    spoken.takes(at(deletion(0x5001, false).into()));
    spoken.takes(at(sa(0x5001, false, 21)));
    spoken.takes(at(deletion(0x5001, false).into()));
    spoken.refuses(at(sa(0x5001, true, 21)), Errno::EXIST, "of the other direction");
}

/// The peer's fill packet with this number in this window, under the SA with the SPI 0x5002.
fn fill(window: u16, number: u64) -> Vec<u8> {
    let mut datagram = vec![0x45, 0, 0, 60, 0, 0, 0, 0, 64, 253, 0, 0, 192, 0, 2, 2, 192, 0, 2, 1];
    let sum = testudo_wire::checksum::of(&datagram).to_bytes();
    datagram[10..12].copy_from_slice(&sum);
    let mut nonce = [0; 12];
    nonce[2..4].copy_from_slice(&window.to_le_bytes());
    nonce[4..].copy_from_slice(&number.to_le_bytes());
    let key = crate::vpe_key::of_negotiated(&material(22), 0x5002).unwrap();
    let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, key.key()).unwrap());
    let mut text = [0; 8];
    let unique = Nonce::assume_unique_for_key(nonce);
    let icv = key.seal_in_place_separate_tag(unique, Aad::empty(), &mut text).unwrap();
    for part in [&nonce[..], &0x5002_u32.to_le_bytes(), icv.as_ref(), &text] {
        datagram.extend(part);
    }
    datagram
}

/// Whether the worker takes it, and does not refuse it for its number.
fn takes(spoken: &Spoken, (window, number): (u16, u64)) -> bool {
    let counts = || {
        let drops = spoken.gateway.shared.facts.counters.drops();
        [DropReason::VpeFill, DropReason::ReplayDuplicate, DropReason::ReplayTooOld].map(|why| drops.get(why))
    };
    let before = counts();
    assert!(spoken.gateway.unprotected.input.push(&fill(window, number)));
    for _ in 0..ROUNDS {
        spoken.gateway.commander.save_windows(Vec::new()).unwrap();
        let after = counts();
        if after != before {
            return after[0] > before[0];
        }
    }
    panic!("the worker takes nothing");
}

/// A flow that is behind others goes on, though a NAT or MOBIKE has the daemon install the SA again, and
/// nothing that has come before is received again (RFC 4303 3.4.3).
#[test]
fn windows_of_an_sa_that_comes_back_go_on_each_by_itself() {
    let mut spoken = spoken();
    let again = |received: u32| {
        let mut sa = at(sa(0x5002, true, 22));
        let state = ReplayState { received, ..ReplayState::default() };
        sa.attributes.push(Attribute::Replay(state));
        sa
    };
    spoken.takes(at(sa(0x5002, true, 22)));
    for packet in [(1, 6000), (2, 1000), (2, 1002)] {
        assert!(takes(&spoken, packet), "{packet:?}");
    }
    // The daemon says what it was told, or nothing.
    for (told, next) in [(0, 1003), (6000, 1004), (5, 1005)] {
        spoken.takes(at(deletion(0x5002, true).into()));
        spoken.takes(again(told));
        assert!(takes(&spoken, (2, next)), "{next}");
        for old in [(1, 6000), (2, 1002), (2, next)] {
            assert!(!takes(&spoken, old), "{old:?}, told {told}");
        }
    }
    // Who knows of more than we do closes all.
    spoken.takes(at(deletion(0x5002, true).into()));
    spoken.takes(again(7000));
    for packet in [(1, 6001), (2, 1006), (3, 7000)] {
        assert!(!takes(&spoken, packet), "{packet:?}");
    }
    assert!(takes(&spoken, (2, 7001)));
}

#[test]
fn vpe_goes_in_udp_at_its_own_port_where_a_nat_was_found() {
    let mut spoken = spoken();
    spoken.takes(at(policy(1, 0)));
    let carried = |spoken: &Spoken| {
        let tunnel = only(spoken);
        spoken.tunnels().in_force(&tunnel.running).tunnel.encapsulation
    };
    assert_eq!(carried(&spoken), Encapsulation::Esp);
    let in_udp = |mut message: Message| {
        let udp = testudo_wire::xfrm::sa::Encapsulation {
            kind: 2,
            source_port: 0,
            destination_port: 40_000,
            ..Default::default()
        };
        message.attributes.push(Attribute::Encapsulation(udp));
        message
    };
    spoken.takes(in_udp(at(sa(0x5001, false, 21))));
    // The NAT's port for IKE says nothing of the one for VPE, which is learned.
    let own = Encapsulation::EspInUdp { local_port: 4501, remote_port: 4501 };
    assert_eq!(carried(&spoken), own);
    spoken.takes(at(sa(0x5003, false, 25)));
    assert_eq!(carried(&spoken), Encapsulation::Esp);
}

#[test]
fn what_vpe_cannot_carry_is_refused_and_leaves_nothing() {
    let mut spoken = spoken();
    let of = |change: &dyn Fn(&mut SaInfo)| {
        let Message { body: Body::NewSa(mut info), attributes } = at(sa(0x5001, false, 21)) else {
            panic!("an SA")
        };
        change(&mut info);
        Message { body: Body::NewSa(info), attributes }
    };
    spoken.refuses(of(&|info| info.mode = mode::TRANSPORT), Errno::OPNOTSUPP, "tunnel mode");
    let mut transport = template(1, 0);
    transport.mode = mode::TRANSPORT;
    let attributes = [Attribute::Templates(vec![transport])].into();
    let policy = Message { body: Body::NewPolicy(policy_info(1, 100)), attributes };
    spoken.refuses(at(policy), Errno::OPNOTSUPP, "tunnel mode");
    let mut ah = template(1, 0);
    ah.id.protocol = 51;
    let policy = Message {
        body: Body::NewPolicy(policy_info(1, 100)),
        attributes: [Attribute::Templates(vec![ah])].into(),
    };
    spoken.refuses(at(policy), Errno::OPNOTSUPP, "AH does not");
    let aead = |bits: u32, bytes: usize| {
        let key = Key::new(Zeroizing::new(vec![5; bytes]));
        Attribute::Aead(AlgorithmWithIcv { name: "rfc4106(gcm(aes))".into(), key, icv_bits: bits })
    };
    for (bits, bytes) in [(64, 20), (128, 28)] {
        let attributes = [aead(bits, bytes), Attribute::Direction(SaDirection::Outbound)].into();
        let other = at(Message { body: Body::NewSa(info(0x5001, false)), attributes });
        spoken.refuses(other, Errno::NOSYS, "propose one of aes128gcm16");
    }
    assert_eq!((spoken.tunnels().len(), spoken.tunnels().count_policies()), (0, 0));
}
