//! Datagrams as a hostile host sends them: whole or fragmented, with extension headers and options in any
//! order, and with arbitrary fields in later fragments. What a receiver will reassemble is known from how
//! they were made.

use super::rfc4301::{Field, Seen};

/// Source of choices: a seed, or a fuzzer.
pub type Choose<'a> = &'a mut dyn FnMut() -> u8;

/// A datagram and the packets that carry it.
#[derive(Debug, Clone)]
pub struct Datagram {
    /// The fields of the whole datagram; source routes are noted per packet.
    pub whole: Seen,
    pub packets: Vec<Vec<u8>>,
}

/// One of a list.
pub fn one_of<T: Copy>(choose: Choose<'_>, list: &[T]) -> T {
    list[usize::from(choose()) % list.len()]
}

/// An address of one of sixteen networks; those of the protected side and of the other side differ.
pub fn address(choose: Choose<'_>, ipv6: bool, is_local: bool) -> u128 {
    let (net, host) = (u128::from(choose() % 4), u128::from(choose() % 4));
    let side = u128::from(!is_local);
    if ipv6 {
        0xFD00 << 112 | side << 96 | net << 8 | host
    } else {
        0x0A00_0000 | side << 16 | net << 8 | host
    }
}

const PROTOCOLS: [u8; 8] = [6, 17, 132, 1, 58, 135, 47, 59];
/// Next Headers that a later fragment may claim.
const LIES: [u8; 12] = [6, 17, 60, 0, 43, 44, 58, 59, 51, 139, 200, 253];

/// Ports and message type, and a payload with them.
fn transport(choose: Choose<'_>, protocol: u8) -> (Field<(u16, u16)>, Field<u16>, Vec<u8>) {
    let (source, destination) = (u16::from(choose() % 4), u16::from(choose() % 4));
    let has_ports = [6, 17, 132].contains(&protocol);
    let mut bytes = [source.to_be_bytes(), destination.to_be_bytes()].concat();
    let message = match protocol {
        1 | 58 => Field::Shown(source),
        135 => {
            bytes[2] = destination as u8;
            Field::Shown(destination << 8)
        }
        _ => Field::Absent,
    };
    bytes.resize(8 + usize::from(choose() % 16) * 8, choose());
    if protocol == 17 {
        let length = (bytes.len() as u16).to_be_bytes();
        bytes[4..6].copy_from_slice(&length);
    }
    (if has_ports { Field::Shown((source, destination)) } else { Field::Absent }, message, bytes)
}

/// Offset and length of the parts that bytes are split into: one, or a few, of which all but the last are
/// multiples of 8 bytes long.
fn cuts(choose: Choose<'_>, bytes: usize) -> Vec<(usize, usize)> {
    let (mut parts, mut at) = (Vec::new(), 0);
    while at < bytes {
        let length = (8 * (1 + usize::from(choose() % 4))).min(bytes - at);
        parts.push((at, length));
        at += length;
    }
    parts
}

/// A datagram with this Identification.
pub fn datagram(choose: Choose<'_>, leaves: bool, identification: u8) -> Datagram {
    if choose().is_multiple_of(2) {
        ipv4(choose, leaves, identification)
    } else {
        ipv6(choose, leaves, identification)
    }
}

fn ends(choose: Choose<'_>, ipv6: bool, leaves: bool) -> (u128, u128) {
    let (local, remote) = (address(choose, ipv6, true), address(choose, ipv6, false));
    if leaves { (local, remote) } else { (remote, local) }
}

fn ipv4(choose: Choose<'_>, leaves: bool, identification: u8) -> Datagram {
    let (source, destination) = ends(choose, false, leaves);
    let protocol = one_of(choose, &PROTOCOLS);
    let (ports, message, payload) = transport(choose, protocol);
    // None, two that mean nothing, router alert, and both kinds of source route.
    let none: &[u8] = &[];
    let options = one_of(
        choose,
        &[none, none, none, none, &[1, 1, 1, 0], &[148, 4, 0, 0], &[131, 3, 4, 0], &[1, 137, 3, 4]],
    );
    let packet = |offset: usize, more: bool, part: &[u8]| {
        let header = 20 + options.len();
        let total = (header + part.len()) as u16;
        let place = (offset / 8) as u16 | if more { 0x2000 } else { 0 };
        let mut bytes = vec![0x40 | (header / 4) as u8, 0];
        bytes.extend(total.to_be_bytes());
        bytes.extend([0, identification]);
        bytes.extend(place.to_be_bytes());
        bytes.extend([61, protocol, 0, 0]);
        bytes.extend((source as u32).to_be_bytes());
        bytes.extend((destination as u32).to_be_bytes());
        bytes.extend_from_slice(options);
        mend(&mut bytes);
        bytes.extend_from_slice(part);
        bytes
    };
    let packets = match choose() % 4 {
        0 | 1 => vec![packet(0, false, &payload)],
        // A first fragment that ends before or within the ports.
        2 => vec![packet(0, true, &payload[..usize::from(choose() % 5)]), packet(8, false, &payload[8..])],
        _ => {
            let all = cuts(choose, payload.len());
            let end = payload.len();
            all.iter().map(|&(at, n)| packet(at, at + n < end, &payload[at..at + n])).collect()
        }
    };
    let protocol = Field::Shown(protocol);
    Datagram {
        whole: Seen {
            ipv6: false,
            source,
            destination,
            protocol,
            ports,
            message,
            source_routed: false,
            part: None,
        },
        packets,
    }
}

/// Sets the checksum of an IPv4 header.
pub fn mend(header: &mut [u8]) {
    header[10..12].fill(0);
    let sum: u32 = header.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    let folded = (sum & 0xFFFF) + (sum >> 16);
    let sum = !((folded & 0xFFFF) + (folded >> 16)) as u16;
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Empty extension headers, each a number and the bytes after Next Header.
type Chain = Vec<(u8, Vec<u8>)>;

fn chain(choose: Choose<'_>, numbers: &[u8]) -> Chain {
    let count = if choose() == 0 { 9 } else { usize::from(choose() % 4) };
    let header = |choose: Choose<'_>| {
        let number = one_of(choose, numbers);
        let units = if number == 44 { 0 } else { choose() % 3 };
        let mut rest = vec![0; 7 + 8 * usize::from(units)];
        match number {
            44 => {} // an atomic fragment (RFC 6946)
            43 => {
                // Routing headers 0 and 2.
                rest[0] = units;
                rest[1] = if choose().is_multiple_of(8) { 0 } else { 2 };
            }
            _ => {
                rest[0] = units;
                rest[1] = 1; // PadN
                rest[2] = (rest.len() - 3).min(255) as u8;
            }
        }
        (number, rest)
    };
    (0..count).map(|_| header(choose)).collect()
}

/// The headers of a chain, each naming the next and the last one naming `last`; also the number of the first.
fn linked(chain: &Chain, last: u8) -> (u8, Vec<u8>) {
    let mut bytes = Vec::new();
    for (at, (_, rest)) in chain.iter().enumerate() {
        bytes.push(chain.get(at + 1).map_or(last, |(number, _)| *number));
        bytes.extend_from_slice(rest);
    }
    (chain.first().map_or(last, |(number, _)| *number), bytes)
}

fn ipv6(choose: Choose<'_>, leaves: bool, identification: u8) -> Datagram {
    let (source, destination) = ends(choose, true, leaves);
    let protocol = one_of(choose, &PROTOCOLS);
    let (ports, message, payload) = transport(choose, protocol);
    let outer = chain(choose, &[0, 43, 60, 60, 44]);
    let inner = chain(choose, &[0, 43, 60, 60, 60, 44, 139, 140, 253]);
    let (inner_first, inner_bytes) = linked(&inner, protocol);
    let fragmentable = [inner_bytes, payload].concat();
    let packet = |next: u8, header: &[u8], part: &[u8]| {
        let (first, before) = linked(&outer, next);
        let length = (before.len() + header.len() + part.len()) as u16;
        let mut bytes = vec![0x60, 0, 0, 0];
        bytes.extend(length.to_be_bytes());
        bytes.extend([first, 61]);
        bytes.extend(source.to_be_bytes());
        bytes.extend(destination.to_be_bytes());
        [&bytes, &before, header, part].concat()
    };
    let packets = if choose().is_multiple_of(3) {
        vec![packet(inner_first, &[], &fragmentable)]
    } else {
        let all = cuts(choose, fragmentable.len());
        let end = fragmentable.len();
        let fragment = |choose: Choose<'_>, (at, n): (usize, usize)| {
            let said =
                if at == 0 || choose().is_multiple_of(2) { inner_first } else { one_of(choose, &LIES) };
            let place = (at as u16 | u16::from(at + n < end)).to_be_bytes();
            packet(44, &[said, 0, place[0], place[1], 0, 0, 0, identification], &fragmentable[at..at + n])
        };
        all.into_iter().map(|part| fragment(choose, part)).collect()
    };
    let protocol = Field::Shown(protocol);
    Datagram {
        whole: Seen {
            ipv6: true,
            source,
            destination,
            protocol,
            ports,
            message,
            source_routed: false,
            part: None,
        },
        packets,
    }
}
