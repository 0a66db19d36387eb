//! What a network may do to the bytes of a datagram, and whether the packet in it survives.

use crate::support::random_bytes;
use fastrand::Rng;
use testudo_wire::checksum;
use testudo_wire::ip::IPV4_HEADER_BYTES;
use testudo_wire::protocol;

/// Whether an arriving datagram is, as far as the peer's key can tell, one that the peer sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truth {
    /// Everything authenticated, and everything that demultiplexing needs, is as it was sent.
    Genuine { sequence: u64 },
    /// Made or damaged without the key.
    Hostile,
}

/// A field of the datagram: first bit, bits, and whether a receiver may ignore it.
struct Field {
    first_bit: usize,
    bits: usize,
    is_free: bool,
}

const fn field(first_bit: usize, bits: usize, is_free: bool) -> Field {
    Field { first_bit, bits, is_free }
}

/// Version and IHL, TOS, length, identification, reserved and DF, MF and offset, TTL, protocol, source,
/// destination.
const IPV4: [Field; 10] = [
    field(0, 8, false),
    field(8, 8, true),
    field(16, 16, false),
    field(32, 16, true),
    field(48, 2, true),
    field(50, 14, false),
    field(64, 8, true),
    field(72, 8, false),
    field(96, 32, true),
    field(128, 32, false),
];

/// The same where AH follows: also what routers leave alone is authenticated (RFC 4302 3.3.3.1.1).
const IPV4_OF_AH: [Field; 10] = [
    field(0, 8, false),
    field(8, 8, true),
    field(16, 16, false),
    field(32, 16, false),
    field(48, 2, true),
    field(50, 14, false),
    field(64, 8, true),
    field(72, 8, false),
    field(96, 32, false),
    field(128, 32, false),
];

/// Version, class, flow label, length, next header, hop limit, source, destination.
const IPV6: [Field; 8] = [
    field(0, 4, false),
    field(4, 8, true),
    field(12, 20, true),
    field(32, 16, false),
    field(48, 8, false),
    field(56, 8, true),
    field(64, 128, true),
    field(192, 128, false),
];

const IPV6_OF_AH: [Field; 8] = [
    field(0, 4, false),
    field(4, 8, true),
    field(12, 20, true),
    field(32, 16, false),
    field(48, 8, false),
    field(56, 8, true),
    field(64, 128, false),
    field(192, 128, false),
];

/// Source port, destination port, length, checksum (which RFC 3948 2.1 tells receivers not to depend on).
const UDP: [Field; 4] = [field(0, 16, true), field(16, 16, false), field(32, 16, false), field(48, 16, true)];

/// SPI, sequence number, IV, ciphertext, ICV, with the lengths of an AEAD: all authenticated in every suite.
fn esp(bytes: usize) -> [Field; 5] {
    let text = bytes * 8 - 128 - 128;
    [
        field(0, 32, false),
        field(32, 32, false),
        field(64, 64, false),
        field(128, text, false),
        field(128 + text, 128, false),
    ]
}

/// Next header, length and reserved field of AH, SPI, sequence number, the rest: all authenticated.
fn ah(bytes: usize) -> [Field; 5] {
    [
        field(0, 16, false),
        field(16, 16, false),
        field(32, 32, false),
        field(64, 32, false),
        field(96, bytes * 8 - 96, false),
    ]
}

/// Flips one bit of a field, each field with the same probability; sometimes corrects the IPv4 checksum, as
/// an attacker would.
pub fn flip_a_bit(random: &mut Rng, datagram: &[u8], sequence: u64) -> (Vec<u8>, Truth) {
    let mut bytes = datagram.to_vec();
    let is_v4 = bytes[0] >> 4 == 4;
    let carried = bytes[if is_v4 { 9 } else { 6 }];
    let is_ah = carried == protocol::AH;
    let ip = match (is_v4, is_ah) {
        (true, false) => &IPV4[..],
        (true, true) => &IPV4_OF_AH,
        (false, false) => &IPV6,
        (false, true) => &IPV6_OF_AH,
    };
    let ip_bits = if is_v4 { 160 } else { 320 };
    let is_udp = carried == protocol::UDP;
    let udp = if is_udp { &UDP[..] } else { &[] };
    let udp_bits = if is_udp { 64 } else { 0 };
    let payload = bytes.len() - (ip_bits + udp_bits) / 8;
    let ipsec = if is_ah { ah(payload) } else { esp(payload) };
    let fields: Vec<(usize, &Field)> = ip
        .iter()
        .map(|f| (0, f))
        .chain(udp.iter().map(|f| (ip_bits, f)))
        .chain(ipsec.iter().map(|f| (ip_bits + udp_bits, f)))
        .collect();
    let (base, field) = fields[random.usize(..fields.len())];
    let bit = base + field.first_bit + random.usize(..field.bits);
    bytes[bit / 8] ^= 0x80 >> (bit % 8);
    let mut survives = field.is_free;
    if is_v4 && bit < 160 {
        if random.usize(..2) == 0 {
            bytes[10..12].fill(0);
            let sum = checksum::of(&bytes[..IPV4_HEADER_BYTES]).to_bytes();
            bytes[10..12].copy_from_slice(&sum);
        } else {
            survives = false;
        }
    }
    (bytes, if survives { Truth::Genuine { sequence } } else { Truth::Hostile })
}

/// Bytes that were never a packet, or look like one only in their outer headers.
pub fn rubbish(random: &mut Rng, like: &[u8]) -> Vec<u8> {
    let len = random.usize(..2000);
    let mut bytes = random_bytes(random, len);
    if random.usize(..2) == 0 {
        // Valid outer headers around noise.
        let headers = like.len().min(len).min(48);
        bytes[..headers].copy_from_slice(&like[..headers]);
    }
    bytes
}

/// A packet with valid headers and SPI and a future sequence number, made without the key.
pub fn forge(random: &mut Rng, like: &[u8], spi_at: usize) -> Vec<u8> {
    let mut bytes = like.to_vec();
    let sequence =
        u32::from_be_bytes([bytes[spi_at + 4], bytes[spi_at + 5], bytes[spi_at + 6], bytes[spi_at + 7]]);
    let ahead = 1 + (random.u64(..) >> (33 + random.usize(..30))) as u32;
    bytes[spi_at + 4..spi_at + 8].copy_from_slice(&sequence.wrapping_add(ahead).to_be_bytes());
    if random.usize(..2) == 0 {
        random.fill(&mut bytes[spi_at + 8..]);
    }
    bytes
}
