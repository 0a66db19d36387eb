//! Bursts in which datagrams of VPE come: how the first one is carried is what the others are looked at for
//! first, and whatever they are, each is read as it is alone.

use crate::support::vpe::{datagram, datagram_between, sealed};
use crate::support::{Gateway, Inner, Side, TunnelSpec};
use crate::vpe::{header, inner, spec, with};
use testudo_crypto::Suite;
use testudo_ipsec::VpeRules;
use testudo_packet::DropReason;
use testudo_wire::checksum;
use testudo_wire::protocol;
use testudo_wire::vpe::VPE_PROTOCOL;

/// The datagram with another IPv4 header, whose checksum is right.
fn changed(datagram: &[u8], change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut changed = datagram.to_vec();
    change(&mut changed);
    let header_bytes = 4 * usize::from(changed[0] & 15);
    changed[10..12].fill(0);
    let sum = checksum::of(&changed[..header_bytes]).to_bytes();
    changed[10..12].copy_from_slice(&sum);
    changed
}

/// The same with a header that has an option of four bytes.
fn with_option(datagram: &[u8]) -> Vec<u8> {
    changed(datagram, |bytes| {
        bytes[0] = 0x46;
        let longer = u16::from_be_bytes([bytes[2], bytes[3]]) + 4;
        bytes[2..4].copy_from_slice(&longer.to_be_bytes());
        bytes.splice(20..20, [1, 1, 1, 0]);
    })
}

/// The same with another byte.
fn flipped(datagram: &[u8], at: usize) -> Vec<u8> {
    let mut flipped = datagram.to_vec();
    flipped[at] ^= 1;
    flipped
}

/// Datagrams that come between two of a tunnel of VPE.
fn others(vpe: &TunnelSpec, number: u8, esp: &TunnelSpec) -> Vec<Vec<u8>> {
    let packet = sealed(&spec().key_from(Side::A), header(1, 2), &inner(90));
    let good = datagram(vpe, number, &packet);
    let nobody =
        datagram_between(vpe.address(Side::A), "198.51.100.9".parse().expect("an address"), number, &packet);
    let mut a = Gateway::with_tunnels(Side::A, std::slice::from_ref(esp));
    let of_esp = a.seal(Inner::udp("10.0.0.1", "172.17.0.2", 60).bytes()).remove(0);
    let carriers = [VPE_PROTOCOL, protocol::UDP, protocol::ESP, protocol::AH, protocol::TCP, 254];
    let mut all: Vec<Vec<u8>> = carriers.into_iter().map(|other| datagram(vpe, other, &packet)).collect();
    all.extend([0, 1, 8, 31].map(|bytes| datagram(vpe, number, &packet[..bytes])));
    all.extend([
        good.clone(),
        [&good[..], &[9; 5]].concat(),
        good[..good.len() - 1].to_vec(),
        changed(&good, |bytes| bytes[1] = 3),
        changed(&good, |bytes| bytes[6] |= 0x20),
        with_option(&good),
        datagram(vpe, number, &[0xFF]),
        nobody,
        of_esp.clone(),
        flipped(&of_esp, 40),
        vec![0x60; 80],
        vec![0x45; 20],
        vec![7],
    ]);
    // The checksum, the protocol, our address, ports and length of UDP or the header of VPE, the text.
    all.extend([10, 9, 19, 21, 23, 25, 24, 32, 70].map(|at| flipped(&good, at)));
    assert_eq!(all.len(), 32);
    all
}

/// What became of a gateway's datagrams: those that it forwarded, and how many it dropped for each reason.
fn fate(b: &Gateway) -> (Vec<Vec<u8>>, Vec<(DropReason, u64)>) {
    let drops = b.worker.pool().drops().iter().filter(|(_, packets)| *packets > 0);
    (b.protected.take(), drops.collect())
}

#[test]
fn a_datagram_after_one_of_vpe_is_read_as_it_is_alone() {
    let of_esp_number = with(VpeRules::default().with_ip_protocol(protocol::ESP));
    let in_udp = TunnelSpec { udp: true, ..spec() };
    let esp = TunnelSpec { udp: true, ..TunnelSpec::new(1, Suite::AES128GCM16) };
    let mut forwarded = 0;
    for (number, vpe) in [(VPE_PROTOCOL, spec()), (protocol::UDP, in_udp), (protocol::ESP, of_esp_number)] {
        let both = [vpe.clone(), esp.clone()];
        let of_vpe = |number_in_window| {
            let packet = sealed(&spec().key_from(Side::A), header(0, number_in_window), &inner(60));
            datagram(&vpe, number, &packet)
        };
        for (n, other) in others(&vpe, number, &esp).into_iter().enumerate() {
            let burst = [of_vpe(1), other, of_vpe(2)];
            let mut alone = Gateway::with_tunnels(Side::B, &both);
            for datagram in burst.clone() {
                alone.unprotected.push(datagram);
                alone.settle();
            }
            let mut together = Gateway::with_tunnels(Side::B, &both);
            burst.into_iter().for_each(|datagram| together.unprotected.push(datagram));
            together.settle();
            let (alone, together) = (fate(&alone), fate(&together));
            assert_eq!(together, alone, "by number {number}, datagram {n}");
            assert!(alone.0.len() >= 2, "both of VPE are forwarded");
            forwarded += alone.0.len() - 2;
        }
    }
    // Of each carrier the whole one, with a new ECN mark, an option, and bytes after it; of ESP one.
    assert!(forwarded >= 3 * 4, "{forwarded}");
}
