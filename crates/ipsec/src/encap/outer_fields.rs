//! Fields of outer headers that few tunnels want to differ from packet to packet: DF (RFC 4301 8.1) and the
//! flow label (RFC 6438). They are written over the [template](super::template)'s, while the inner packet can
//! still be read.

use super::Mode;
use super::template::{Dscp, OuterTemplate};
use crate::fragments::{Identifications, folded, mix};
use crate::packet_rules::{Df, FlowLabel, PacketRules};
use crate::slots::SaRef;
use crate::tunnel::TunnelParameters;
use testudo_crypto::Job;
use testudo_wire::checksum::Checksum;
use testudo_wire::ip::{IPV4_HEADER_BYTES, IpHeader, Version};
use testudo_wire::protocol;

/// How the fields of outer headers are made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OuterRules {
    pub(crate) dscp: Dscp,
    /// Whether ECN is copied (RFC 6040 4.1, normal mode) or always Not-ECT (compatibility mode).
    pub(crate) copies_ecn: bool,
    pub(crate) df: Df,
    /// What flow labels are hashed with; `None` for labels of 0.
    pub(crate) flow_seed: Option<u64>,
    /// What flows are hashed with.
    pub(crate) seed: u64,
    /// The protocol number of VPE's datagrams that are not in UDP.
    pub(crate) vpe_protocol: u8,
}

impl OuterRules {
    /// Those of a tunnel. Flow labels depend on the `seed`, so that who does not know it cannot tell which
    /// flow has which.
    ///
    /// Where packets are sent by a [clock](crate::clocked), all have one header: what is copied from them
    /// would tell them from dummies.
    pub(crate) fn of(p: &TunnelParameters, seed: u64) -> Self {
        let PacketRules { df, flow_label, .. } = p.rules;
        let flow_seed = (flow_label == FlowLabel::PerFlow).then_some(seed);
        let vpe_protocol = p.rules.of_vpe().ip_protocol;
        let rules = Self { dscp: p.dscp, copies_ecn: true, df, flow_seed, seed, vpe_protocol };
        if p.clock() == 0 {
            return rules;
        }
        let dscp = if rules.dscp == Dscp::Copy { Dscp::Fixed(0) } else { rules.dscp };
        let df = if df == Df::Copy { Df::Set } else { df };
        Self { dscp, copies_ecn: false, df, flow_seed: None, ..rules }
    }

    /// Whether headers of a tunnel differ in more than class and length. In transport mode packets keep their
    /// own.
    pub(crate) fn vary(&self, mode: Mode, outer: Version) -> bool {
        mode == Mode::Tunnel
            && match outer {
                Version::V4 => self.df != Df::Set,
                Version::V6 => self.flow_seed.is_some(),
            }
    }
}

/// Completes the outer headers of those jobs that are of this SA: packets that are framed and not sealed.
#[cold]
#[inline(never)]
pub(crate) fn complete_run<'j>(
    template: Option<&OuterTemplate>,
    sa: SaRef,
    jobs: impl Iterator<Item = &'j mut Job>,
    identifications: &mut Identifications,
) {
    let Some(template) = template else { return };
    for job in jobs.filter(|job| job.sa == sa.bits()) {
        let text_start = job.text_start as usize;
        if let Some((outer, inner)) = job.buffer.bytes_mut().split_at_mut_checked(text_start) {
            complete(template, outer, inner, Some((&mut *identifications, sa)));
        }
    }
}

/// Completes the outer header at the start of `outer`, whose datagram carries the packet `inner`. Where DF
/// becomes clear, a datagram without Identification gets one, of an SA's: routers may cut it (RFC 6864 4.2).
pub(crate) fn complete(
    template: &OuterTemplate,
    outer: &mut [u8],
    inner: &[u8],
    identifications: Option<(&mut Identifications, SaRef)>,
) {
    let rules = template.rules();
    match template.version() {
        Version::V4 if !is_df_set(rules.df, inner) => {
            let [source, destination] = template.addresses();
            let next = |i: &mut Identifications| i.next(source, destination, template.protocol());
            clear_df(outer, || identifications.map_or(0, |(identifications, _)| next(identifications)));
        }
        Version::V4 => {}
        Version::V6 => {
            if let (Some(seed), Some(bytes)) = (rules.flow_seed, outer.get_mut(1..4)) {
                let [_, high, middle, low] = label_of(inner, seed, identifications).to_be_bytes();
                bytes[0] = bytes[0] & 0xF0 | high;
                bytes[1..].copy_from_slice(&[middle, low]);
            }
        }
    }
}

/// RFC 4301 8.1. A packet of IPv6 must not be cut by routers, whatever carries it.
fn is_df_set(rule: Df, inner: &[u8]) -> bool {
    const DF: u8 = 0x40;
    match rule {
        Df::Set => true,
        Df::Clear => false,
        Df::Copy => inner.first().is_none_or(|b| b >> 4 != 4) || inner.get(6).is_none_or(|b| b & DF != 0),
    }
}

fn clear_df(outer: &mut [u8], identification: impl FnOnce() -> u32) {
    let Some(header) = outer.first_chunk_mut::<IPV4_HEADER_BYTES>() else { return };
    let before = [header[4], header[5], header[6], header[7]];
    if before[..2] == [0, 0] {
        let [_, _, high, low] = identification().to_be_bytes();
        header[4..6].copy_from_slice(&[high, low]);
    }
    header[6..8].fill(0);
    let checksum = Checksum::from_bytes([header[10], header[11]]).update(&before, &header[4..8]);
    header[10..12].copy_from_slice(&checksum.to_bytes());
}

/// The label of a packet. A dummy is of no flow: it gets the label of the packet before it, since by one of
/// its own it could be told from packets (RFC 4303 2.6).
fn label_of(inner: &[u8], seed: u64, identifications: Option<(&mut Identifications, SaRef)>) -> u32 {
    let label = flow_label(inner, seed);
    let Some((identifications, sa)) = identifications else { return label };
    if inner.first().is_some_and(|byte| byte >> 4 == 0) {
        return identifications.last_label(sa).unwrap_or(label);
    }
    identifications.note_label(sa, label);
    label
}

/// A label of 20 bits, not 0, that is the same for all packets of a flow: of the flow label of IPv6 where
/// there is one, else of protocol and ports, without ports where it is a fragment, so that all fragments have
/// the same (RFC 6437 3, RFC 6438 3).
fn flow_label(inner: &[u8], seed: u64) -> u32 {
    let label = |hash: u64| u32::try_from(hash >> 44).unwrap_or(0).max(1);
    // Before the first packet, a dummy looks like a flow of its own.
    let Ok(header) = IpHeader::parse(inner) else { return label(mix(seed)) };
    let own = match (header.version, inner.first_chunk()) {
        (Version::V6, Some(word)) => u32::from_be_bytes(*word) & 0xF_FFFF,
        _ => 0,
    };
    let ports = header.fragment.is_none().then(|| header.ports(inner)).flatten();
    let rest = match ports {
        _ if own != 0 => u64::from(own) | 1 << 63,
        Some((source, destination)) => {
            u64::from(header.protocol) << 32 | u64::from(source) << 16 | u64::from(destination)
        }
        // All fragments of a datagram, and only the first over IPv6 shows its protocol.
        None if header.fragment.is_some() => u64::from(protocol::FRAGMENT) << 32,
        None => u64::from(header.protocol) << 32,
    };
    label(mix(mix(mix(seed ^ folded(header.source)) ^ folded(header.destination)) ^ rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encap::IpsecProtocol;
    use crate::tunnel::{Encapsulation, Endpoints};

    fn template(v6: bool, df: Df, flow_seed: Option<u64>) -> OuterTemplate {
        let [local, remote] =
            if v6 { ["2001:db8::1", "2001:db8::2"] } else { ["192.0.2.1", "192.0.2.2"] }.map(|a| a.parse());
        let (local, remote) = (local.unwrap(), Some(remote.unwrap()));
        let endpoints = Endpoints { local, remote, encapsulation: Encapsulation::Esp };
        let rules =
            OuterRules { dscp: Dscp::Copy, copies_ecn: true, df, flow_seed, seed: 0, vpe_protocol: 253 };
        OuterTemplate::new(&endpoints, IpsecProtocol::Esp, rules, 0x1234).unwrap()
    }

    fn v4(dont_fragment: bool) -> Vec<u8> {
        let mut packet = vec![0; 28];
        packet[0] = 0x45;
        packet[6] = if dont_fragment { 0x40 } else { 0 };
        packet
    }

    /// RFC 4301 8.1: set, copied or cleared; RFC 6864 4: what may be cut has an Identification.
    #[test]
    fn df_is_set_copied_or_cleared() {
        let mut v6 = vec![0; 48];
        v6[0] = 0x60;
        let packets = [(v4(true), true), (v4(false), false), (v6, true)];
        let mut identifications = Identifications::new(5);
        for (inner, is_set) in packets {
            for (rule, expected) in [(Df::Set, true), (Df::Clear, false), (Df::Copy, is_set)] {
                let template = template(false, rule, None);
                let mut outer = [0; 20];
                template.write(&mut outer, 120, 0xB8, 0).unwrap();
                complete(&template, &mut outer, &inner, Some((&mut identifications, SaRef::NOBODY)));
                let mut datagram = outer.to_vec();
                datagram.resize(120, 0);
                // The checksum is checked by the parse.
                let header = IpHeader::parse(&datagram).unwrap();
                assert_eq!((header.dont_fragment, header.traffic_class), (expected, 0xB8), "{rule:?}");
                assert_eq!(outer[4..6] == [0, 0], expected, "{rule:?}");
            }
        }
    }

    #[test]
    fn an_identification_that_is_there_is_kept() {
        let template = template(false, Df::Clear, None);
        let mut outer = [0; 20];
        template.write(&mut outer, 120, 0, 77).unwrap();
        complete(&template, &mut outer, &v4(true), None);
        assert_eq!(outer[4..8], [0, 77, 0, 0]);
    }

    fn udp(v6: bool, label: u8, source: u16, destination: u16) -> Vec<u8> {
        let header = if v6 {
            let mut header = vec![0x60, 0, 0, label, 0, 12, protocol::UDP, 64];
            header.extend([0xFD; 32]);
            header
        } else {
            let mut header =
                vec![0x45, 0, 0, 32, 0, 0, 0, 0, 64, protocol::UDP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
            let sum = testudo_wire::checksum::of(&header).to_bytes();
            header[10..12].copy_from_slice(&sum);
            header
        };
        [&header[..], &source.to_be_bytes(), &destination.to_be_bytes(), &[0, 12, 0, 0, 1, 2, 3, 4]].concat()
    }

    /// RFC 6437 2: labels are spread evenly over 20 bits, are not 0, and stay the same within a flow.
    #[test]
    fn each_flow_has_a_label_of_its_own() {
        let labels = |seed| -> Vec<u32> {
            (0..1000).map(|port| flow_label(&udp(port % 2 == 0, 0, port, 53), seed)).collect()
        };
        let all = labels(1);
        assert_eq!(all, labels(1));
        assert!(all.iter().all(|label| (1..1 << 20).contains(label)));
        let mut distinct = all.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert!(distinct.len() > 990, "{} labels for 1,000 flows", distinct.len());
        assert_ne!(all, labels(2), "they cannot be foretold without the seed");
        // The label that a host chose stands for the flow (RFC 6438 3).
        assert_eq!(flow_label(&udp(true, 7, 1, 2), 1), flow_label(&udp(true, 7, 3, 4), 1));
        assert_ne!(flow_label(&udp(true, 7, 1, 2), 1), flow_label(&udp(true, 8, 1, 2), 1));
    }

    #[test]
    fn all_fragments_of_a_datagram_have_one_label() {
        let fragment = |flags: u16| {
            let mut packet = udp(false, 0, 1, 2);
            packet[6..8].copy_from_slice(&flags.to_be_bytes());
            packet[10..12].fill(0);
            let sum = testudo_wire::checksum::of(&packet[..20]).to_bytes();
            packet[10..12].copy_from_slice(&sum);
            flow_label(&packet, 9)
        };
        assert_eq!(fragment(0x2000), fragment(3));
    }

    #[test]
    fn the_label_is_written_beside_the_class() {
        let template = template(true, Df::Set, Some(3));
        let mut outer = [0; 40];
        template.write(&mut outer, 140, 0xB9, 0).unwrap();
        let inner = udp(false, 0, 1, 2);
        complete(&template, &mut outer, &inner, None);
        let word = u32::from_be_bytes([outer[0], outer[1], outer[2], outer[3]]);
        assert_eq!(word, 0x6B90_0000 | flow_label(&inner, 3));
    }
}
