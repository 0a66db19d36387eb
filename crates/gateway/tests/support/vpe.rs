//! Packets of VPE made by hand: valid under their key, whatever their header and content.

use super::{Side, TunnelSpec};
use std::net::IpAddr;
use testudo_crypto::{Direction, Engine, Job, JobStatus, KeyMaterial, PortableEngine, Suite};
use testudo_ipsec::IpsecProtocol;
use testudo_packet::Buffer;
use testudo_wire::ip::OuterHeader;
use testudo_wire::protocol;
use testudo_wire::udp::{UDP_HEADER_BYTES, UdpHeader};
use testudo_wire::vpe::{VPE_HEADER_BYTES, VPE_ICV_BYTES, VpeHeader};

/// A tunnel of VPE.
pub fn vpe(suite: Suite) -> TunnelSpec {
    TunnelSpec { protocol: IpsecProtocol::Vpe, ..TunnelSpec::new(0, suite) }
}

/// A packet of VPE under a key: header, ICV, ciphertext.
pub fn sealed(key: &KeyMaterial, header: VpeHeader, text: &[u8]) -> Vec<u8> {
    let mut engine = PortableEngine::new();
    let key = engine.install(key, Direction::Seal).expect("a key");
    let packet = [&header.to_bytes()[..], &[0; VPE_ICV_BYTES], text].concat();
    let mut jobs = [Job {
        key,
        text_start: VPE_HEADER_BYTES as u32,
        text_bytes: text.len() as u32,
        ..Job::new(Buffer::copied(&packet, 0, 0), Direction::Seal, 0)
    }];
    engine.submit(&mut jobs);
    assert_eq!(jobs[0].status, JobStatus::Done);
    jobs[0].buffer.bytes().to_vec()
}

/// A datagram from A to B that carries this, by the protocol number or in UDP.
pub fn datagram(spec: &TunnelSpec, number: u8, packet: &[u8]) -> Vec<u8> {
    datagram_between(spec.address(Side::A), spec.address(Side::B), number, packet)
}

/// The same between any two addresses.
pub fn datagram_between(source: IpAddr, destination: IpAddr, number: u8, packet: &[u8]) -> Vec<u8> {
    let payload = if number == protocol::UDP {
        let mut udp = vec![0; UDP_HEADER_BYTES];
        let total_bytes = UDP_HEADER_BYTES + packet.len();
        UdpHeader { source_port: 4501, destination_port: 4501, total_bytes }.write(&mut udp).expect("UDP");
        [&udp[..], packet].concat()
    } else {
        packet.to_vec()
    };
    let (traffic_class, hop_limit, dont_fragment) = (0, 64, true);
    let header =
        OuterHeader { source, destination, protocol: number, traffic_class, hop_limit, dont_fragment };
    let mut datagram = vec![0; header.bytes()];
    header.write(&mut datagram, header.bytes() + payload.len(), 0).expect("a header");
    [datagram, payload].concat()
}
