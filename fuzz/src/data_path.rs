//! The data path as a whole: gateways that receive arbitrary bytes.

use crate::input::Input;
use crate::support::datagrams::{datagram, mend};
use crate::support::gateway::{PoolSize, portable};
use crate::support::policy_oracle::{self, Met};
use crate::support::sealer::encapsulate;
use crate::support::{Gateway, Handmade, Inner, LeaseTwin, Sealer, Side, TunnelSpec};
use std::collections::HashSet;
use testudo_crypto::Suite;
use testudo_ipsec::{
    Action, Df, FlowLabel, Fragmentation, PacketRules, Policy, PortRange, ReplayWindow, Selector,
};
use testudo_packet::DropReason;
use testudo_wire::ip::{IpHeader, Version};
use testudo_wire::protocol;

/// The tunnel selected by the first byte.
fn spec(input: &mut Input<'_>) -> TunnelSpec {
    let choice = usize::from(input.byte());
    let suite = Suite::ALL[choice % Suite::ALL.len()];
    TunnelSpec {
        esn: choice & 0x10 == 0,
        udp: choice & 0x20 != 0,
        outer: if choice & 0x40 == 0 { Version::V4 } else { Version::V6 },
        b_learns: choice & 0x80 != 0,
        window: 64,
        ..TunnelSpec::new(0, suite)
    }
}

fn gateway(side: Side, spec: &TunnelSpec, policies: Vec<Policy>) -> Gateway {
    let mut gateway = Gateway::new(policies, PoolSize(64, 2048), portable());
    // What is dropped is told, too.
    gateway.worker.set_audit(true);
    gateway.install(spec.install(side, &mut LeaseTwin::new(1 << 40), None));
    gateway
}

/// A packet that may come through the tunnel.
fn template(choice: u8) -> Vec<u8> {
    let bytes = 20 + usize::from(choice >> 1);
    if choice & 1 == 0 {
        Inner::udp("10.0.0.1", "172.16.0.2", bytes).bytes()
    } else {
        Inner::udp("fd0a::1", "fd16::2", bytes.max(40)).bytes()
    }
}

/// Changes bytes of a packet: pairs of index and value.
fn overwrite(bytes: &mut [u8], changes: &[u8]) {
    for change in changes.chunks_exact(3) {
        let index = usize::from(change[0]) << 8 | usize::from(change[1]);
        if let Some(byte) = bytes.get_mut(index) {
            *byte = change[2];
        }
    }
}

/// Inbound processing as a whole. The input selects how each datagram is made: raw, with valid outer headers,
/// or validly sealed with arbitrary content, so that the code after the ICV check is reached.
pub fn inbound(data: &[u8]) {
    inbound_as_the_model_says(data);
    let mut input = Input::new(data);
    let spec = spec(&mut input);
    let mut sealer = Sealer::new(&spec, Side::A);
    let mut b = gateway(Side::B, &spec, spec.policies(Side::B));
    let mut sequence = 0;
    let mut sealed_at = HashSet::new();
    let mut last = Vec::new();
    let mut different = HashSet::new();
    while !input.is_empty() {
        let kind = input.byte();
        let datagram = match kind % 8 {
            0 => input.run().to_vec(),
            1 => encapsulate(&spec, Side::A, input.run(), kind),
            2 => last.clone(),
            3 => {
                let mut damaged = last.clone();
                overwrite(&mut damaged, input.run());
                damaged
            }
            _ => {
                sequence += 1 + u64::from(kind >> 3);
                if !spec.esn && sequence > u64::from(u32::MAX) || !sealed_at.insert(sequence) {
                    return;
                }
                let text = sealed_text(kind % 8, spec.suite, &mut input);
                sealer.seal_text(sequence, &text, input.byte())
            }
        };
        b.unprotected.push(datagram.clone());
        b.settle();
        different.insert(datagram.clone());
        last = datagram;
    }
    let delivered = b.protected.take();
    assert!(delivered.len() <= different.len(), "a replayed datagram was delivered again");
    for packet in delivered {
        let header = IpHeader::parse(&packet).expect("what is delivered is a packet");
        assert_eq!(header.total_bytes, packet.len());
        let flow = testudo_ipsec::Flow::inbound(&header, &packet);
        assert!(spec.selectors(Side::B).iter().any(|s| s.matches(&flow)), "outside of its selectors");
    }
    let answer = b.seal(Inner::udp("172.16.0.2", "10.0.0.1", 60).bytes());
    assert!(answer.len() == 1 || spec.b_learns, "the gateway still works");
    b.assert_settled();
}

/// Datagrams per set of policies, limited so that one input does not take long.
const MODEL_DATAGRAMS: usize = 4;

/// Any policies and any datagrams: exactly what the model of RFC 4301 lets pass passes. The rest of the input
/// is packets of arbitrary bytes.
fn inbound_as_the_model_says(data: &[u8]) {
    let mut input = Input::new(data);
    let mut site = policy_oracle::inbound(&mut || input.byte(), MODEL_DATAGRAMS, &mut Met::default());
    while !input.is_empty() {
        let kind = input.byte();
        match kind % 4 {
            0 => site.receive_bytes(&damaged_datagram(&mut input, false)),
            1 => site.receive_bytes_through(kind >> 2, &damaged_datagram(&mut input, false)),
            2 => site.receive_bytes(input.run()),
            _ => site.receive_bytes_through(kind >> 2, input.run()),
        }
    }
    site.assert_settled();
}

/// Likewise for packets that leave.
fn outbound_as_the_model_says(data: &[u8]) {
    let mut input = Input::new(data);
    let mut site = policy_oracle::outbound(&mut || input.byte(), MODEL_DATAGRAMS, &mut Met::default());
    while !input.is_empty() {
        let packet = match input.byte() % 2 {
            0 => damaged_datagram(&mut input, true),
            _ => input.run().to_vec(),
        };
        site.send_bytes(&packet);
    }
    site.assert_settled();
}

/// Policies that come and go between packets: each packet meets those of its moment, as in the model of RFC
/// 4301.
pub fn policy_changes(data: &[u8]) {
    let mut input = Input::new(data);
    let mut site = policy_oracle::changing(&mut || input.byte(), MODEL_DATAGRAMS, &mut Met::default());
    while !input.is_empty() {
        let kind = input.byte();
        match kind % 5 {
            0 => site.change(&mut || input.byte()),
            4 => site.answer(&mut || input.byte(), &mut Met::default()),
            1 => site.send_bytes(&damaged_datagram(&mut input, true)),
            2 => site.receive_bytes(&damaged_datagram(&mut input, false)),
            _ => site.receive_bytes_through(kind / 5, &damaged_datagram(&mut input, false)),
        }
    }
    site.assert_settled();
}

/// A packet of a hostile datagram, with some bytes changed and a valid IPv4 checksum.
fn damaged_datagram(input: &mut Input<'_>, leaves: bool) -> Vec<u8> {
    let datagram = datagram(&mut || input.byte(), leaves, 7);
    let at = usize::from(input.byte()) % datagram.packets.len();
    let mut packet = datagram.packets[at].clone();
    overwrite(&mut packet, input.run());
    let header = usize::from(packet[0] & 0x0F) * 4;
    if packet[0] >> 4 == 4 && (20..=packet.len()).contains(&header) {
        mend(&mut packet[..header]);
    }
    packet
}

/// Plaintext of a datagram whose ICV will be valid.
fn sealed_text(kind: u8, suite: Suite, input: &mut Input<'_>) -> Vec<u8> {
    match kind {
        // Any text of a legal length.
        4 => {
            let text = input.run();
            text[..text.len() - text.len() % suite.alignment_bytes()].to_vec()
        }
        // Any payload, with a correct trailer.
        5 => {
            let next_header = input.byte();
            Handmade::with_payload(input.run().to_vec(), next_header).padded_for(suite).text()
        }
        // A valid packet, damaged before sealing.
        _ => {
            let choice = input.byte();
            let tfc_bytes = usize::from(input.byte());
            let mut text = Handmade::with_tfc(&template(choice), tfc_bytes).padded_for(suite).text();
            overwrite(&mut text, input.run());
            text
        }
    }
}

/// What a tunnel does to packets and headers.
fn rules(choice: u8) -> PacketRules {
    PacketRules {
        df: [Df::Set, Df::Copy, Df::Clear][usize::from(choice >> 1) % 3],
        flow_label: if choice & 8 == 0 { FlowLabel::Zero } else { FlowLabel::PerFlow },
        tfc_pad_to: [0, 100, 700, 9000][usize::from(choice >> 4) % 4],
        ..PacketRules::default()
    }
}

/// Outbound processing as a whole: one gateway seals, the other delivers; the packet counts balance.
pub fn outbound(data: &[u8]) {
    outbound_as_the_model_says(data);
    let mut input = Input::new(data);
    let choice = input.byte();
    let path_mtu = 576 + usize::from(choice) * 5;
    let cuts_after = choice & 1 == 1;
    let fragmentation = if cuts_after { Fragmentation::After } else { Fragmentation::Before };
    let rules = rules(choice);
    let spec = TunnelSpec { path_mtu, fragmentation, rules, b_learns: false, ..spec(&mut input) };
    let dns = Selector {
        protocol: protocol::UDP.into(),
        remote_ports: PortRange { first: 53, last: 53 },
        ..Selector::ANY
    };
    let mut policies = vec![
        Policy::new(dns, Action::Bypass),
        Policy::new(Selector { protocol: protocol::SCTP.into(), ..Selector::ANY }, Action::Discard),
    ];
    policies.extend(spec.policies(Side::A));
    let mut a = gateway(Side::A, &spec, policies);
    let mut b = gateway(Side::B, &spec, spec.policies(Side::B));
    while !input.is_empty() {
        let packet = match input.byte() % 2 {
            0 => input.run().to_vec(),
            _ => {
                let choice = input.byte();
                let mut packet = template(choice);
                packet.extend_from_slice(input.run());
                let total = u16::try_from(packet.len()).unwrap_or(u16::MAX).to_be_bytes();
                if packet[0] >> 4 == 4 {
                    packet[2..4].copy_from_slice(&total);
                }
                overwrite(&mut packet, input.run());
                if packet[0] == 0x45 {
                    packet[10..12].fill(0);
                    let sum = testudo_wire::checksum::of(&packet[..20]).to_bytes();
                    packet[10..12].copy_from_slice(&sum);
                }
                packet
            }
        };
        a.protected.push(packet);
        a.settle();
        let left = a.unprotected.take();
        let sealed = left.into_iter().filter(|datagram| {
            let header = IpHeader::parse(datagram).expect("what leaves is a packet");
            header.source == spec.address(Side::A)
        });
        let sealed: Vec<_> = sealed.collect();
        assert!(
            sealed.iter().all(|datagram| datagram.len() <= spec.path_mtu),
            "longer than the path carries"
        );
        // One datagram is in many fragments, or each is one.
        let expected = if cuts_after { sealed.len().min(1) } else { sealed.len() };
        let delivered: usize = sealed.into_iter().map(|datagram| b.open(datagram).len()).sum();
        assert_eq!(delivered, expected, "sealed, but refused by the peer");
        for reply in a.protected.take() {
            IpHeader::parse(&reply).expect("a reply is a packet");
        }
    }
    assert_eq!(
        a.drops(DropReason::NoRoom) + a.drops(DropReason::EngineFault) + a.drops(DropReason::QueueFull),
        0
    );
    a.assert_settled();
    b.assert_settled();
}

/// A window restored from any bytes is a valid window: it accepts numbers above its top once, and saves what
/// it restored.
pub fn replay_window_restore(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.byte();
    let esn = choice & 1 == 0;
    let sizes = [64, 128, 1024, 4096];
    let size = sizes[usize::from(choice >> 1) % 4];
    let mut saved = input.run().to_vec();
    if choice & 0x80 != 0 {
        // Of the valid length, so that the words themselves are read.
        let whole = ReplayWindow::new(sizes[usize::from(choice >> 4) % 4], esn).save();
        saved.resize(whole.len(), 0);
        saved[8..16].copy_from_slice(&whole[8..16]);
    }
    let mut window = ReplayWindow::new(size, esn);
    if !window.restore(&saved) {
        assert_eq!(window, ReplayWindow::new(size, esn), "a refused restore changes nothing");
        return;
    }
    assert_eq!(window.size(), u64::from(size));
    let mut again = ReplayWindow::new(size, esn);
    assert!(again.restore(&window.save()));
    assert_eq!(again, window);
    let top = window.top();
    for back in 0..(u64::from(size) + 70).min(top) {
        let number = top - back;
        let answer = window.check(number);
        assert!(!window.clone().commit(number).is_ok_and(|()| answer.is_err()));
        assert!(answer.is_err() || back < u64::from(size));
    }
    let mut steps: Vec<u64> = (0..64).map(|_| u64::from(input.byte())).collect();
    steps.extend([1, 3, 2]);
    let mut seen = HashSet::new();
    for step in steps {
        let Some(number) = top.checked_add(1 + step) else { return };
        let is_inside = window.top() < u64::from(size) || number > window.top() - u64::from(size);
        assert_eq!(window.commit(number).is_ok(), is_inside && seen.insert(number), "{number} above {top}");
    }
}
