//! Protocol numbers (IANA), as far as the gateway knows them by name.

/// IPv6 hop-by-hop options.
pub const HOP_BY_HOP: u8 = 0;
/// ICMP for IPv4.
pub const ICMP: u8 = 1;
/// IPv4 in IP: the Next Header of ESP that carries an IPv4 packet.
pub const IPV4: u8 = 4;
/// TCP.
pub const TCP: u8 = 6;
/// UDP.
pub const UDP: u8 = 17;
/// IPv6 in IP: the Next Header of ESP that carries an IPv6 packet.
pub const IPV6: u8 = 41;
/// IPv6 routing header.
pub const ROUTING: u8 = 43;
/// IPv6 fragment header.
pub const FRAGMENT: u8 = 44;
/// ESP. As a packet's content it is a next layer protocol (RFC 4301 4.4.1.1), as AH is.
pub const ESP: u8 = 50;
/// AH.
pub const AH: u8 = 51;
/// ICMP for IPv6.
pub const ICMPV6: u8 = 58;
/// No next header; in ESP, a dummy packet (RFC 4303 2.6).
pub const NO_NEXT_HEADER: u8 = 59;
/// IPv6 destination options.
pub const DESTINATION_OPTIONS: u8 = 60;
/// SCTP.
pub const SCTP: u8 = 132;
/// IPv6 Mobility Header (RFC 6275 6.1): a next layer protocol to policy (RFC 4301 4.4.1.1).
pub const MOBILITY: u8 = 135;

/// Whether a next layer protocol has selector fields of its own (RFC 4301 4.4.1.1): ports, type and code of a
/// message, or its type. A packet of such a protocol that shows none of them hides them: they are OPAQUE.
#[must_use]
#[inline]
pub const fn has_selector_fields(number: u8) -> bool {
    matches!(number, TCP | UDP | SCTP | ICMP | ICMPV6 | MOBILITY)
}

/// Whether it is unknown what follows a header of this number in IPv6, so that a next layer protocol may
/// still come: extension headers that are not stepped over here (of IANA's list, RFC 7045 4: HIP, Shim6, and
/// two for experiments), and numbers that IANA has not assigned and that may become such headers. AH, ESP and
/// the Mobility Header are next layer protocols to policy (RFC 4301 4.4.1.1).
#[must_use]
#[inline]
pub const fn hides_what_follows(number: u8) -> bool {
    matches!(number, 139 | 140 | 148..=254)
}
