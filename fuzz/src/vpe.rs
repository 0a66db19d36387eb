//! Inbound VPE: any datagrams, and packets that are authentic, whatever their header and content.

use crate::input::Input;
use crate::support::gateway::{PoolSize, portable};
use crate::support::vpe::{datagram, sealed, vpe};
use crate::support::{Gateway, Inner, LeaseTwin, Side, TunnelSpec};
use std::collections::HashSet;
use testudo_crypto::Suite;
use testudo_ipsec::{PacketRules, VpeRules};
use testudo_wire::ip::IpHeader;
use testudo_wire::protocol;
use testudo_wire::vpe::{VPE_PROTOCOL, VpeHeader};

/// Windows that the SA may have: few, so that inputs reach the limit.
const WINDOWS_MAX: u32 = 4;

/// The tunnel selected by the first byte.
fn spec(choice: u8) -> TunnelSpec {
    let vpe_rules = VpeRules::default().with_windows_max(WINDOWS_MAX);
    let rules = PacketRules { vpe: Some(Box::new(vpe_rules)), ..PacketRules::default() };
    let suite = Suite::ALL_FOR_VPE[usize::from(choice % 3)];
    TunnelSpec { udp: choice & 4 != 0, window: 64, rules, ..vpe(suite) }
}

/// A header with a small window, and a number that is small or near the last one.
fn header(spec: &TunnelSpec, input: &mut Input<'_>) -> VpeHeader {
    let (kind, window) = (input.byte(), u16::from(input.byte() % 8));
    let number = u64::from(input.byte());
    let number = if kind & 1 == 0 { number } else { u64::MAX - number };
    VpeHeader { sender: u16::from(kind & 6 == 6), window, number, spi: spec.spi_from(Side::A) }
}

/// A plaintext: any, a packet with any padding, zeros, or a packet that was damaged.
fn text(input: &mut Input<'_>) -> Vec<u8> {
    let kind = input.byte();
    let mut packet = Inner::udp("10.0.0.1", "172.16.0.2", 28 + usize::from(kind >> 2)).bytes();
    match kind % 4 {
        0 => return input.run().to_vec(),
        1 => packet.extend(input.run()),
        2 => packet = vec![0; usize::from(input.byte())],
        _ => {
            for change in input.run().chunks_exact(2) {
                if let Some(byte) = packet.get_mut(usize::from(change[0])) {
                    *byte = change[1];
                }
            }
        }
    }
    packet
}

/// Whatever comes: no number of a window is delivered twice, there are never more windows than there may be,
/// only sender 0 is heard, and the gateway still works.
pub fn inbound_vpe(data: &[u8]) {
    let mut input = Input::new(data);
    let spec = spec(input.byte());
    let number = if spec.udp { protocol::UDP } else { VPE_PROTOCOL };
    let mut b = Gateway::new(spec.policies(Side::B), PoolSize(64, 2048), portable());
    b.worker.set_audit(true);
    b.install(spec.install(Side::B, &mut LeaseTwin::new(1 << 40), None));
    let (key, mut received, mut last) = (spec.key_from(Side::A), HashSet::new(), Vec::new());
    while !input.is_empty() {
        let kind = input.byte();
        let mut authentic = None;
        let sent = match kind % 5 {
            0 => input.run().to_vec(),
            1 => datagram(&spec, number, input.run()),
            2 => last.clone(),
            _ => {
                let header = header(&spec, &mut input);
                authentic = Some(header);
                datagram(&spec, number, &sealed(&key, header, &text(&mut input)))
            }
        };
        for packet in b.open(sent.clone()) {
            let parsed = IpHeader::parse(&packet).expect("what is delivered is a packet");
            assert_eq!(parsed.total_bytes, packet.len());
            let header = authentic.expect("only what is authentic, and no replay, is delivered");
            assert_eq!(header.sender, 0);
            assert!(header.number > 0 && received.insert((header.window, header.number)));
        }
        let windows: HashSet<u16> = received.iter().map(|(window, _)| *window).collect();
        assert!(windows.len() <= WINDOWS_MAX as usize);
        last = sent;
    }
    assert_eq!(b.seal(Inner::udp("172.16.0.2", "10.0.0.1", 60).bytes()).len(), 1, "the gateway still works");
    b.assert_settled();
}
