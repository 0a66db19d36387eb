//! Judges a recorded link as an eavesdropper would: is anything readable?

use std::net::IpAddr;

use super::Recording;
use super::frame::{Frame, Ip};
use crate::attack::Recorded;
use crate::error::LabError;
use crate::protection::{Protocols, known_text};
use testudo_wire::vpe::{VPE_HEADER_BYTES, VPE_PROTOCOL};

const ICMPV6: u8 = 58;
const UDP: u8 = 17;
const ESP: u8 = 50;
const AH: u8 = 51;
const UDP_HEADER: usize = 8;
/// SPI, sequence number, and at least an ICV of 16 bytes.
const SHORTEST_ESP: usize = 24;
/// The fixed fields of AH, and at least an ICV of 12 bytes.
const SHORTEST_AH: usize = 24;

/// Judges frames of the link between two gateways.
#[derive(Debug, Clone)]
pub struct Eavesdropper {
    /// The gateways' addresses on the link.
    pub gateways: [IpAddr; 2],
    /// The UDP port of ESP at both gateways; `None` for ESP directly on IP.
    pub udp_port: Option<u16>,
    /// Two addresses of the protected side that exchange traffic; their headers must not be seen.
    pub inner: [IpAddr; 2],
    /// The tunnel's protocols: AH hides nothing.
    pub protocols: Protocols,
    /// Whether the gateways' daemons speak IKE on the link.
    pub ike: bool,
}

/// Packets on the link, by kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// ESP, or AH, between the gateways.
    pub protected: u64,
    /// Those of them that anybody on the link can read: AH without ESP.
    pub readable: u64,
    /// IKEv2 between the gateways: the first exchange, and what is encrypted after it (RFC 7296 1.2).
    pub ike: u64,
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
    /// Protected by AH alone, and read.
    Readable,
    Ike,
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
            verdict @ (Verdict::Protected | Verdict::Readable) => {
                seen.protected += 1;
                seen.readable += u64::from(verdict == Verdict::Readable);
                self.keep(frame, length, &mut seen.to_send_again);
            }
            Verdict::Ike => seen.ike += 1,
            Verdict::Keepalive => seen.keepalives += 1,
            Verdict::Housekeeping => seen.housekeeping += 1,
            Verdict::Cleartext => seen.cleartext += 1,
        }
    }

    /// Source and destination as they are adjacent in an IP header, in both directions. Eight bytes are
    /// enough that ciphertext does not contain them by chance; the four of one IPv4 address would not be. In
    /// transport mode these are in every packet: what the hosts say is looked for instead.
    pub(super) fn inner_headers(&self) -> Vec<Vec<u8>> {
        if self.inner == self.gateways {
            return vec![known_text()];
        }
        let bytes = |address: IpAddr| match address {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        let [a, b] = self.inner.map(bytes);
        vec![[a.clone(), b.clone()].concat(), [b, a].concat()]
    }

    fn verdict(&self, frame: &[u8], inner_headers: &[Vec<u8>]) -> Verdict {
        let is_read =
            inner_headers.iter().any(|header| frame.windows(header.len()).any(|window| window == header));
        if is_read {
            return match Frame::parse(frame) {
                Frame::Ip(ip) if self.is_between_gateways(&ip) && self.is_of_ah_alone(&ip) => {
                    Verdict::Readable
                }
                _ => Verdict::Cleartext,
            };
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

    /// Whether a packet between the gateways is one of a tunnel that authenticates and does not encrypt.
    fn is_of_ah_alone(&self, ip: &Ip<'_>) -> bool {
        self.protocols == Protocols::Ah && ip.protocol == AH && ip.payload().len() >= SHORTEST_AH
    }

    fn verdict_on_tunnel(&self, ip: &Ip<'_>) -> Verdict {
        let payload = ip.payload();
        if self.ike && is_ike(ip) {
            return Verdict::Ike;
        }
        if self.protocols.has_ah() {
            let long_enough = ip.protocol == AH && payload.len() >= SHORTEST_AH;
            // RFC 4302 2.1: the first byte says what is inside; AH over ESP must show nothing else.
            let is_esp_inside = payload.first() == Some(&ESP);
            let is_right = long_enough && (self.protocols == Protocols::Ah || is_esp_inside);
            return if is_right { Verdict::Protected } else { Verdict::Cleartext };
        }
        let Some(port) = self.udp_port else {
            let (number, shortest) = match self.protocols {
                Protocols::Vpe => (VPE_PROTOCOL, VPE_HEADER_BYTES),
                _ => (ESP, SHORTEST_ESP),
            };
            let long_enough = ip.protocol == number && payload.len() >= shortest;
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
            // Its first word may be zero.
            [_, _, _, _, _, _, _, _, vpe @ ..] if self.protocols == Protocols::Vpe => {
                if vpe.len() >= VPE_HEADER_BYTES { Verdict::Protected } else { Verdict::Cleartext }
            }
            // A first word of zero would be the non-ESP marker of IKE (RFC 3948 2.2).
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

    /// A packet that [`Self::judge`] has kept, to be sent again.
    pub(crate) fn recorded(&self, packet: &[u8]) -> Option<Recorded> {
        match self.protocols {
            // A header of VPE has a number where ESP has the end of its own.
            Protocols::Esp | Protocols::Vpe => {
                Recorded::new(packet, self.header_at(), self.udp_port.is_some())
            }
            Protocols::Ah | Protocols::AhAndEsp => Recorded::of_ah(packet, self.header_at()),
        }
    }

    /// Offset of the ESP or AH header in a packet that [`Self::judge`] has kept.
    fn header_at(&self) -> usize {
        let ip = if self.gateways[0].is_ipv6() { 40 } else { 20 };
        ip + self.udp_port.map_or(0, |_| UDP_HEADER)
    }
}

/// Whether a packet is one of IKEv2 that anybody may see: on its port, or after the non-ESP marker on that of
/// NATs, one of IKE_SA_INIT, or one whose payloads are all in an encrypted one (RFC 7296 2.23, 3.1, 3.14).
fn is_ike(ip: &Ip<'_>) -> bool {
    const VERSION_2: u8 = 0x20;
    const SA_INIT: u8 = 34;
    /// The payload "Encrypted and Authenticated", and a fragment of one (RFC 7383).
    const ENCRYPTED: [u8; 2] = [46, 53];
    let Some((udp, payload)) = ip.payload().split_at_checked(UDP_HEADER) else { return false };
    let message = match udp[..4] {
        [0x01, 0xf4, 0x01, 0xf4] => payload,
        [0x11, 0x94, 0x11, 0x94] => payload.strip_prefix(&[0; 4]).unwrap_or(&[]),
        _ => &[],
    };
    // After both SPIs: the first payload, the version, the exchange.
    let Some(&[next, version, exchange]) = message.get(16..19) else { return false };
    ip.protocol == UDP && version == VERSION_2 && (exchange == SA_INIT || ENCRYPTED.contains(&next))
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
            protocols: Protocols::Esp,
            ike: false,
        }
    }

    fn of(protocols: Protocols) -> Eavesdropper {
        Eavesdropper { protocols, udp_port: None, ..eavesdropper() }
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

    /// An IKE header, from its SPIs on, with this first payload and exchange, and what follows it.
    fn ike(next: u8, exchange: u8) -> Vec<u8> {
        [&[5; 16][..], &[next, 0x20, exchange, 8], &[0; 8], &[6; 60]].concat()
    }

    #[test]
    fn ike_is_seen_only_where_daemons_speak_it_and_only_what_is_encrypted() {
        let with_ike = Eavesdropper { ike: true, ..eavesdropper() };
        let judged = |packet: &[u8]| with_ike.verdict(packet, &with_ike.inner_headers());
        let on_500 = |message: Vec<u8>| [&[0x01, 0xf4, 0x01, 0xf4, 0, 0, 0, 0], &message[..]].concat();
        let on_4500 = |message: Vec<u8>| udp(&[&[0; 4], &message[..]].concat());
        let (first, then) = (frame(A, B, 17, &on_500(ike(33, 34))), frame(A, B, 17, &on_4500(ike(46, 35))));
        for packet in [&first, &then] {
            assert_eq!(judged(packet), Verdict::Ike);
            assert_eq!(verdict(packet), Verdict::Cleartext, "nobody is to speak IKE");
        }
        assert_eq!(
            judged(&frame(A, B, 17, &on_4500(ike(35, 35)))),
            Verdict::Cleartext,
            "an identity in clear"
        );
        assert_eq!(judged(&frame(A, B, 17, &on_4500(ike(46, 35)[..17].to_vec()))), Verdict::Cleartext);
        assert_eq!(judged(&frame(A, [192, 0, 2, 3], 17, &on_500(ike(33, 34)))), Verdict::Cleartext);
        assert_eq!(judged(&frame(A, B, 17, &udp(&[7; 60]))), Verdict::Protected);
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

    /// AH with what it covers: Next Header, and twelve bytes each of fixed fields and ICV.
    fn ah(next_header: u8, inside: &[u8]) -> Vec<u8> {
        [&[next_header, 4, 0, 0], &[7; 20][..], inside].concat()
    }

    #[test]
    fn ah_hides_nothing_and_is_no_cleartext_where_it_is_expected() {
        let inner = frame([10, 1, 0, 2], [10, 2, 0, 2], 6, &[0; 40]);
        let packet = frame(A, B, 51, &ah(4, &inner[14..]));
        let verdict = |of: &Eavesdropper, packet: &[u8]| of.verdict(packet, &of.inner_headers());
        assert_eq!(verdict(&of(Protocols::Ah), &packet), Verdict::Readable);
        assert_eq!(verdict(&of(Protocols::Ah), &frame(A, B, 51, &ah(4, &[1; 60]))), Verdict::Protected);
        assert_eq!(
            verdict(&of(Protocols::Ah), &frame(A, [192, 0, 2, 3], 51, &ah(4, &inner[14..]))),
            Verdict::Cleartext
        );
        assert_eq!(verdict(&of(Protocols::Ah), &frame(A, B, 4, &inner[14..])), Verdict::Cleartext, "no AH");
        assert_eq!(verdict(&of(Protocols::Esp), &packet), Verdict::Cleartext);
        assert_eq!(verdict(&of(Protocols::AhAndEsp), &packet), Verdict::Cleartext, "ESP hides it");
        let sealed = frame(A, B, 51, &ah(50, &[1; 60]));
        assert_eq!(verdict(&of(Protocols::AhAndEsp), &sealed), Verdict::Protected);
        assert_eq!(verdict(&of(Protocols::AhAndEsp), &frame(A, B, 51, &ah(6, &[1; 60]))), Verdict::Cleartext);
    }

    #[test]
    fn in_transport_mode_it_is_what_the_hosts_say_that_must_not_be_seen() {
        let of = Eavesdropper { inner: eavesdropper().gateways, ..of(Protocols::Esp) };
        let verdict = |packet: &[u8]| of.verdict(packet, &of.inner_headers());
        assert_eq!(verdict(&frame(A, B, 50, &[7; 60])), Verdict::Protected);
        assert_eq!(
            verdict(&frame(A, B, 50, &[&[7; 20], &*known_text(), &[7; 20]].concat())),
            Verdict::Cleartext
        );
        assert_eq!(verdict(&frame(A, B, 17, &[7; 60])), Verdict::Cleartext, "neither ESP nor AH");
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
        assert_eq!(kept[0][eavesdropper.header_at()], 4);
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
