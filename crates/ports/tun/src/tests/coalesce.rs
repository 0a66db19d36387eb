use super::frames::{Shape, cut_by_oracle, random_bytes};
use crate::coalesce::{Group, Groups, plan};
use crate::vnet::{Gso, VnetHeader};
use fastrand::Rng;
use std::collections::HashMap;
use testudo_packet::BATCH_SIZE;

/// The header and frame that would be written for a group.
fn joined(group: &Group, packets: &[Vec<u8>]) -> (VnetHeader, Vec<u8>) {
    let member = |index: &u8| &packets[usize::from(*index)];
    let (first, last) = (member(&group.members[0]), member(group.members.last().unwrap()));
    let Some(header) = group.joined_header(first, last) else {
        assert_eq!(group.members.len(), 1);
        return (VnetHeader::default(), first.clone());
    };
    let mut frame = header.bytes().to_vec();
    for index in &group.members {
        frame.extend_from_slice(&member(index)[group.header_bytes()..]);
    }
    (header.vnet, frame)
}

fn planned(packets: &[Vec<u8>], udp: bool) -> Groups {
    let mut groups = Groups::new();
    plan(packets.iter().map(|p| &p[..]), udp, &mut groups);
    groups
}

fn join_all(packets: &[Vec<u8>], udp: bool) -> Vec<(VnetHeader, Vec<u8>)> {
    let groups = planned(packets, udp);
    groups.iter().map(|group| joined(group, packets)).collect()
}

/// The packets that the kernel would see.
fn cut_all(frames: &[(VnetHeader, Vec<u8>)]) -> Vec<Vec<u8>> {
    frames
        .iter()
        .flat_map(
            |(vnet, frame)| {
                if vnet.gso_type == 0 { vec![frame.clone()] } else { cut_by_oracle(vnet, frame) }
            },
        )
        .collect()
}

fn tcp(random: &mut Rng, segments: usize) -> Shape {
    Shape {
        gso: Gso::TcpV4,
        is_v6: false,
        flags: 0x10,
        gso_size: 1000,
        payload_bytes: 1000 * segments,
        tcp_options: vec![1; 12],
        ..Shape::random(random)
    }
}

/// The packets of one flow.
fn flow(random: &mut Rng, shape: &Shape) -> Vec<Vec<u8>> {
    let (vnet, frame) = shape.frame(random);
    cut_by_oracle(&vnet, &frame)
}

#[test]
fn what_was_cut_is_joined_to_the_same_frame() {
    for seed in 0..600 {
        println!("seed {seed}");
        let mut random = Rng::with_seed(seed);
        let mut shape = Shape::random(&mut random);
        shape.flags &= !0x81; // FIN and CWR are not joined
        shape.payload_bytes = shape.payload_bytes.min(usize::from(shape.gso_size) * BATCH_SIZE);
        let (vnet, frame) = shape.frame(&mut random);
        let packets = cut_by_oracle(&vnet, &frame);
        let frames = join_all(&packets, true);
        assert_eq!(frames.len(), 1);
        if packets.len() > 1 {
            assert_eq!(frames[0].0, vnet);
            assert!(frames[0].1 == frame);
        }
    }
}

#[test]
fn any_batch_keeps_every_packet_and_the_order_of_every_flow() {
    let (mut all, mut alone) = (0, 0);
    for seed in 0..600 {
        println!("seed {seed}");
        let mut random = Rng::with_seed(seed);
        let packets = mixed_batch(&mut random);
        let frames = join_all(&packets, random.usize(..2) == 0);
        let after = cut_all(&frames);
        assert_eq!(after.len(), packets.len());
        let by_flow = |packets: &[Vec<u8>]| {
            let mut flows: HashMap<Vec<u8>, Vec<Vec<u8>>> = HashMap::new();
            packets.iter().for_each(|p| flows.entry(flow_key(p)).or_default().push(without_idle_id(p)));
            flows
        };
        assert!(by_flow(&packets) == by_flow(&after));
        (all, alone) = (all + packets.len(), alone + frames.len());
    }
    println!("{all} packets in {alone} frames");
    assert!(alone * 3 < all, "hardly anything was joined: {all} packets, {alone} frames");
}

/// Several flows, interleaved in runs, with changed bytes, lost and doubled packets among them.
fn mixed_batch(random: &mut Rng) -> Vec<Vec<u8>> {
    let mut flows: Vec<Vec<Vec<u8>>> = (0..=random.usize(..4))
        .map(|host| {
            let shape = Shape { host: host as u8, ..Shape::random(random) };
            let mut packets = flow(random, &shape);
            packets.reverse();
            packets
        })
        .collect();
    let mut batch = Vec::new();
    while batch.len() < BATCH_SIZE && !flows.is_empty() {
        let at = random.usize(..flows.len());
        for _ in 0..=random.usize(..12) {
            let Some(mut packet) = flows[at].pop() else { break };
            match random.usize(..60) {
                0 => continue,
                1 => batch.push(packet.clone()),
                2 => {
                    let at = random.usize(..packet.len());
                    packet[at] ^= 1 << random.usize(..8);
                }
                _ => {}
            }
            batch.push(packet);
        }
        flows.retain(|flow| !flow.is_empty());
    }
    batch.truncate(BATCH_SIZE);
    batch
}

/// The packet without the identification, which DF makes meaningless (RFC 6864 4.1): joining numbers packets
/// upwards from the first one's.
fn without_idle_id(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    let is_intact = packet[0] == 0x45 && testudo_wire::checksum::of(&packet[..20]).is_intact();
    if is_intact && packet[6] & 0x40 != 0 {
        packet[4..6].fill(0);
        packet[10..12].fill(0);
    }
    packet
}

/// Addresses, protocol and ports at their offsets in plain headers; other packets are told apart by their
/// first bytes.
fn flow_key(packet: &[u8]) -> Vec<u8> {
    match packet[0] {
        0x45 => [&packet[9..10], &packet[12..24.min(packet.len())]].concat(),
        _ => [&packet[6..7], &packet[8..44.min(packet.len())]].concat(),
    }
}

#[test]
fn interleaved_flows_are_joined_each() {
    let mut random = Rng::with_seed(7);
    let flows: Vec<_> = (0..6)
        .map(|host| {
            let shape = Shape { host, ..tcp(&mut random, 10) };
            flow(&mut random, &shape)
        })
        .collect();
    let batch: Vec<_> = (0..10).flat_map(|i| flows.iter().map(move |flow| flow[i].clone())).collect();
    assert_eq!(join_all(&batch, false).len(), 6);
}

/// The number of frames that two packets of one flow make after `change` to the second.
fn frames_after(change: impl Fn(&mut Vec<u8>)) -> usize {
    let mut random = Rng::with_seed(8);
    let shape = Shape { dont_fragment: false, ..tcp(&mut random, 2) };
    let mut packets = flow(&mut random, &shape);
    change(&mut packets[1]);
    mend(&mut packets[1]);
    join_all(&packets, true).len()
}

/// Recomputes the checksums.
fn mend(packet: &mut [u8]) {
    packet[10..12].fill(0);
    let sum = testudo_wire::checksum::of(&packet[..20]).to_bytes();
    packet[10..12].copy_from_slice(&sum);
    packet[36..38].fill(0);
    let sum = crate::split::transport_sum(packet, 20, 6).finish().to_bytes();
    packet[36..38].copy_from_slice(&sum);
}

#[test]
fn each_difference_that_cutting_cannot_restore_prevents_joining() {
    assert_eq!(frames_after(|_| {}), 1);
    assert_eq!(frames_after(|p| p[33] |= 0x08), 1, "PSH on the last");
    let changes: [(&str, usize, u8); 13] = [
        ("traffic class", 1, 1),
        ("identification without DF", 5, 1),
        ("DF", 6, 0x40),
        ("TTL", 8, 1),
        ("source", 12, 1),
        ("port", 20, 1),
        ("sequence number", 27, 1),
        ("acknowledgment", 31, 1),
        ("FIN", 33, 0x01),
        ("SYN", 33, 0x02),
        ("ECE", 33, 0x40),
        ("window", 35, 1),
        ("an option", 41, 1),
    ];
    for (what, at, bits) in changes {
        assert_eq!(frames_after(|p| p[at] ^= bits), 2, "{what}");
    }
}

#[test]
fn a_wrong_checksum_is_never_vouched_for() {
    let mut random = Rng::with_seed(9);
    let shape = tcp(&mut random, 3);
    for broken in 0..3 {
        let mut packets = flow(&mut random, &shape);
        packets[broken][500] ^= 1;
        let frames = join_all(&packets, false);
        let alone =
            frames.iter().filter(|(vnet, frame)| vnet.flags == 0 && *frame == packets[broken]).count();
        assert_eq!(alone, 1, "packet {broken}");
        assert!(cut_all(&frames) == packets);
    }
}

#[test]
fn a_short_or_pushed_packet_ends_its_frame() {
    let mut random = Rng::with_seed(10);
    let (first, second) = (tcp(&mut random, 5), tcp(&mut random, 5));
    let shape = Shape { payload_bytes: 4500, ..first };
    let mut packets = flow(&mut random, &shape);
    packets.extend(flow(&mut random, &second));
    packets[6][33] |= 0x08;
    mend(&mut packets[6]);
    let members = planned(&packets, false);
    assert_eq!(members.iter().map(|group| group.members.len()).collect::<Vec<_>>(), [5, 2, 3]);
}

#[test]
fn udp_is_joined_only_where_the_kernel_can_cut_it() {
    let mut random = Rng::with_seed(11);
    let shape = Shape { gso: Gso::Udp, ..tcp(&mut random, 8) };
    let mut packets = flow(&mut random, &shape);
    assert_eq!(join_all(&packets, true).len(), 1);
    assert_eq!(join_all(&packets, false).len(), 8);
    packets.iter_mut().for_each(|p| p[26..28].fill(0));
    assert_eq!(join_all(&packets, true).len(), 8, "without a checksum there is nothing to vouch for");
}

#[test]
fn a_fragment_overtakes_nothing() {
    let mut random = Rng::with_seed(12);
    let shape = tcp(&mut random, 4);
    let mut packets = flow(&mut random, &shape);
    packets[2][6] = 0x20;
    mend(&mut packets[2]);
    let members: Vec<Vec<u8>> = planned(&packets, false).iter().map(|g| g.members.to_vec()).collect();
    assert_eq!(members, [vec![0, 1], vec![2], vec![3]]);
}

#[test]
fn a_frame_stays_below_64_kib() {
    let mut random = Rng::with_seed(13);
    let shape = Shape { gso_size: 8900, payload_bytes: 62_300, ..tcp(&mut random, 1) };
    let mut packets = flow(&mut random, &shape);
    let last = packets.last().unwrap().clone();
    let next = u32::from_be_bytes(last[24..28].try_into().unwrap()).wrapping_add(8900);
    let mut more = last;
    more[24..28].copy_from_slice(&next.to_be_bytes());
    let id = u16::from_be_bytes([more[4], more[5]]).wrapping_add(1);
    more[4..6].copy_from_slice(&id.to_be_bytes());
    mend(&mut more);
    packets.push(more);
    let frames = join_all(&packets, false);
    assert_eq!(frames.len(), 2);
    assert!(cut_all(&frames) == packets);
}

#[test]
fn no_bytes_make_joining_panic() {
    for seed in 0..2000 {
        println!("seed {seed}");
        let mut random = Rng::with_seed(seed);
        let packets: Vec<_> = (0..random.usize(..80))
            .map(|_| {
                let n = random.usize(..90);
                let mut bytes = random_bytes(&mut random, n);
                if let Some(first) = bytes.first_mut() {
                    *first = [0x45, 0x60, 0x46, 0x00][random.usize(..4)];
                }
                bytes
            })
            .collect();
        let groups = planned(&packets, true);
        assert_eq!(groups.iter().map(|g| g.members.len()).sum::<usize>(), packets.len().min(BATCH_SIZE));
    }
}
