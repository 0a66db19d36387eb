//! Judges a recorded link as an eavesdropper would: is anything readable?

use std::net::IpAddr;

use super::Recording;
use super::frame::{Frame, Ip};
use crate::error::LabError;

const ICMPV6: u8 = 58;
const UDP: u8 = 17;
const ESP: u8 = 50;
const UDP_HEADER: usize = 8;
/// SPI, sequence number, and at least an ICV of 16 bytes.
const SHORTEST_ESP: usize = 24;

/// Judges frames of the link between two gateways.
#[derive(Debug, Clone)]
pub struct Eavesdropper {
    /// The gateways' addresses on the link.
    pub gateways: [IpAddr; 2],
    /// The UDP port of ESP at both gateways; `None` for ESP directly on IP.
    pub udp_port: Option<u16>,
    /// Two addresses of the protected side that exchange traffic; their headers must not be seen.
    pub inner: [IpAddr; 2],
}

/// Packets on the link, by kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// ESP between the gateways.
    pub protected: u64,
    /// NAT keepalives between the gateways (RFC 3948 2.3).
    pub keepalives: u64,
    /// The background traffic of every link: ARP, neighbour discovery, multicast listener reports.
    pub housekeeping: u64,
    /// All other packets, and all in which a header of the protected side was found.
    pub cleartext: u64,
    /// Missing from the recording, so they cannot be judged.
    pub not_recorded: u64,
    /// Whole ESP packets from the first gateway to the second, from the IP header on; only the most recent.
    pub to_send_again: Vec<Vec<u8>>,
}

/// Maximum number of packets kept for sending again.
const KEPT: usize = 16;

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Protected,
    Keepalive,
    Housekeeping,
    Cleartext,
}

impl Eavesdropper {
    /// Reads an entire recording and adds its packets to `seen`.
    ///
    /// # Errors
    /// The recording cannot be read.
    pub fn judge(&self, recording: &Recording, seen: &mut Seen) -> Result<(), LabError> {
        seen.not_recorded += recording.not_recorded;
        let headers = self.inner_headers();
        recording.frames(|frame, length| self.look(&headers, frame, length, seen))
    }

    /// Adds a frame, recorded completely or only its beginning, to `seen`. `inner_headers` are
    /// [`Self::inner_headers`].
    pub(super) fn look(&self, inner_headers: &[Vec<u8>], frame: &[u8], length: usize, seen: &mut Seen) {
        match self.verdict(frame, inner_headers) {
            Verdict::Protected => {
                seen.protected += 1;
                self.keep(frame, length, &mut seen.to_send_again);
            }
            Verdict::Keepalive => seen.keepalives += 1,
            Verdict::Housekeeping => seen.housekeeping += 1,
            Verdict::Cleartext => seen.cleartext += 1,
        }
    }

    /// Source and destination as they are adjacent in an IP header, in both directions. Eight bytes are
    /// enough that ciphertext does not contain them by chance; the four of one IPv4 address would not be.
    pub(super) fn inner_headers(&self) -> [Vec<u8>; 2] {
        let bytes = |address: IpAddr| match address {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        let [a, b] = self.inner.map(bytes);
        [[a.clone(), b.clone()].concat(), [b, a].concat()]
    }

    fn verdict(&self, frame: &[u8], inner_headers: &[Vec<u8>]) -> Verdict {
        if inner_headers.iter().any(|header| frame.windows(header.len()).any(|window| window == header)) {
            return Verdict::Cleartext;
        }
        match Frame::parse(frame) {
            Frame::Arp => Verdict::Housekeeping,
            Frame::Ip(ip) if is_housekeeping(&ip) => Verdict::Housekeeping,
            Frame::Ip(ip) if self.is_between_gateways(&ip) => self.verdict_on_tunnel(&ip),
            _ => Verdict::Cleartext,
        }
    }

    fn is_between_gateways(&self, ip: &Ip<'_>) -> bool {
        let [a, b] = self.gateways;
        [(a, b), (b, a)].contains(&(ip.source, ip.destination))
    }

    fn verdict_on_tunnel(&self, ip: &Ip<'_>) -> Verdict {
        let payload = ip.payload();
        let Some(port) = self.udp_port else {
            let long_enough = ip.protocol == ESP && payload.len() >= SHORTEST_ESP;
            return if long_enough { Verdict::Protected } else { Verdict::Cleartext };
        };
        let [high, low] = port.to_be_bytes();
        match payload {
            [0..=255, 0..=255, 0..=255, 0..=255, ..]
                if ip.protocol != UDP || payload[..4] != [high, low, high, low] =>
            {
                Verdict::Cleartext
            }
            [_, _, _, _, _, _, _, _, 0xff] => Verdict::Keepalive,
            // A first word of zero would be the non-ESP marker: IKE, which is not used here (RFC 3948 2.2).
            [_, _, _, _, _, _, _, _, esp @ ..] if esp.len() >= SHORTEST_ESP && esp[..4] != [0; 4] => {
                Verdict::Protected
            }
            _ => Verdict::Cleartext,
        }
    }

    /// Keeps the packet of a protected frame if it can be sent again: it is from the first gateway, whole,
    /// and no super-segment.
    fn keep(&self, frame: &[u8], length: usize, kept: &mut Vec<Vec<u8>>) {
        let Frame::Ip(ip) = Frame::parse(frame) else { return };
        if frame.len() < length || length > 1514 || ip.source != self.gateways[0] {
            return;
        }
        if kept.len() == KEPT {
            kept.remove(0);
        }
        kept.push(ip.packet.to_vec());
    }

    /// Offset of the ESP header in a packet that [`Self::judge`] has kept.
    pub(crate) fn esp_at(&self) -> usize {
        let ip = if self.gateways[0].is_ipv6() { 40 } else { 20 };
        ip + self.udp_port.map_or(0, |_| UDP_HEADER)
    }
}

/// Neighbour and router discovery (RFC 4861 4), and reports to multicast routers (RFC 3810 5.2).
fn is_housekeeping(ip: &Ip<'_>) -> bool {
    let (IpAddr::V6(source), IpAddr::V6(destination)) = (ip.source, ip.destination) else { return false };
    match (ip.protocol, ip.payload()) {
        (ICMPV6, [kind, ..]) => (133..=137).contains(kind),
        // A hop-by-hop header (router alert), then the report.
        (0, [ICMPV6, ..]) => {
            let from_link = source.is_unicast_link_local() || source.is_unspecified();
            from_link && destination.segments()[0] == 0xff02
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eavesdropper() -> Eavesdropper {
        Eavesdropper {
            gateways: ["192.0.2.1", "192.0.2.2"].map(|address| address.parse().unwrap()),
            udp_port: Some(4500),
            inner: ["10.1.0.2", "10.2.0.2"].map(|address| address.parse().unwrap()),
        }
    }

    /// An IPv4 packet in Ethernet.
    fn frame(source: [u8; 4], destination: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
        let length = u16::try_from(20 + payload.len()).unwrap().to_be_bytes();
        let mut frame =
            [[0; 12].as_slice(), &[8, 0, 0x45, 0], &length, &[0, 0, 0, 0, 64, protocol, 0, 0]].concat();
        frame.extend([source, destination].concat());
        frame.extend(payload);
        frame
    }

    fn udp(payload: &[u8]) -> Vec<u8> {
        [&[0x11, 0x94, 0x11, 0x94, 0, 0, 0, 0], payload].concat()
    }

    fn verdict(frame: &[u8]) -> Verdict {
        let eavesdropper = eavesdropper();
        eavesdropper.verdict(frame, &eavesdropper.inner_headers())
    }

    const A: [u8; 4] = [192, 0, 2, 1];
    const B: [u8; 4] = [192, 0, 2, 2];

    #[test]
    fn esp_in_udp_between_the_gateways_is_protected() {
        assert_eq!(verdict(&frame(A, B, 17, &udp(&[7; 60]))), Verdict::Protected);
        assert_eq!(verdict(&frame(B, A, 17, &udp(&[7; 60]))), Verdict::Protected);
        assert_eq!(verdict(&frame(A, B, 17, &udp(&[0xff]))), Verdict::Keepalive);
    }

    #[test]
    fn anything_else_between_the_gateways_or_others_is_cleartext() {
        assert_eq!(verdict(&frame(A, [192, 0, 2, 3], 17, &udp(&[7; 60]))), Verdict::Cleartext);
        assert_eq!(verdict(&frame(A, B, 1, &[8; 60])), Verdict::Cleartext, "ping between the gateways");
        assert_eq!(verdict(&frame(A, B, 17, &[7; 60])), Verdict::Cleartext, "other ports");
        assert_eq!(verdict(&frame(A, B, 17, &udp(&[0; 60]))), Verdict::Cleartext, "non-ESP marker");
        assert_eq!(verdict(&frame(A, B, 17, &udp(&[7; 10]))), Verdict::Cleartext, "too short for ESP");
        assert_eq!(verdict(&[0; 60]), Verdict::Cleartext, "not IP");
    }

    #[test]
    fn an_inner_header_inside_of_what_looks_protected_is_cleartext() {
        let inner = frame([10, 1, 0, 2], [10, 2, 0, 2], 6, &[0; 40]);
        assert_eq!(verdict(&inner), Verdict::Cleartext);
        let hidden = [&[7; 8], &inner[14..]].concat();
        assert_eq!(verdict(&frame(A, B, 17, &udp(&hidden))), Verdict::Cleartext);
    }

    #[test]
    fn esp_right_on_ip_is_protected_only_where_it_is_expected() {
        let raw = Eavesdropper { udp_port: None, ..eavesdropper() };
        let packet = frame(A, B, 50, &[7; 60]);
        assert_eq!(raw.verdict(&packet, &raw.inner_headers()), Verdict::Protected);
        assert_eq!(verdict(&packet), Verdict::Cleartext);
        assert_eq!(raw.verdict(&frame(A, B, 17, &udp(&[7; 60])), &raw.inner_headers()), Verdict::Cleartext);
    }

    #[test]
    fn only_whole_packets_of_the_first_gateway_are_kept_and_the_last_ones() {
        let (eavesdropper, mut kept) = (eavesdropper(), Vec::new());
        let from_a = frame(A, B, 17, &udp(&[7; 60]));
        eavesdropper.keep(&from_a, from_a.len() + 1, &mut kept);
        eavesdropper.keep(&frame(B, A, 17, &udp(&[7; 60])), 102, &mut kept);
        assert!(kept.is_empty());
        for number in 0..20 {
            let packet = frame(A, B, 17, &udp(&[number; 60]));
            eavesdropper.keep(&packet, packet.len(), &mut kept);
        }
        assert_eq!(kept.len(), KEPT);
        assert_eq!(kept[0][eavesdropper.esp_at()], 4);
    }

    #[test]
    fn neighbour_discovery_is_housekeeping_and_other_icmpv6_is_not() {
        let frame = |protocol: u8, payload: &[u8]| {
            let length = u16::try_from(payload.len()).unwrap().to_be_bytes();
            let mut frame =
                [[0; 12].as_slice(), &[0x86, 0xdd, 0x60, 0, 0, 0], &length, &[protocol, 255]].concat();
            frame.extend("fe80::1".parse::<std::net::Ipv6Addr>().unwrap().octets());
            frame.extend("ff02::16".parse::<std::net::Ipv6Addr>().unwrap().octets());
            frame.extend(payload);
            frame
        };
        assert_eq!(verdict(&frame(58, &[135; 24])), Verdict::Housekeeping);
        assert_eq!(verdict(&frame(0, &[58; 24])), Verdict::Housekeeping);
        assert_eq!(verdict(&frame(58, &[128; 24])), Verdict::Cleartext);
    }
}
