//! Fragments made by hand, without a line of the code that they test.

use super::datagrams::mend;

/// A part of a datagram's payload.
#[derive(Debug, Clone, Copy)]
pub struct Part {
    pub offset: usize,
    pub bytes: usize,
    pub more: bool,
}

/// Bytes of a datagram's header: IPv4 with its options, or IPv6 without extension headers.
pub fn header_bytes(datagram: &[u8]) -> usize {
    if datagram[0] >> 4 == 4 { usize::from(datagram[0] % 16) * 4 } else { 40 }
}

/// The fragment that carries a part of a whole datagram.
pub fn fragment(datagram: &[u8], identification: u32, part: Part) -> Vec<u8> {
    let header = header_bytes(datagram);
    let payload = &datagram[header + part.offset..header + part.offset + part.bytes];
    fragment_with(datagram, identification, part, payload)
}

/// The same with any payload.
pub fn fragment_with(datagram: &[u8], identification: u32, part: Part, payload: &[u8]) -> Vec<u8> {
    let is_v4 = datagram[0] >> 4 == 4;
    let mut bytes = datagram[..header_bytes(datagram)].to_vec();
    if is_v4 {
        let total = (bytes.len() + payload.len()) as u16;
        let place = (part.offset / 8) as u16 | u16::from(part.more) << 13;
        bytes[2..4].copy_from_slice(&total.to_be_bytes());
        bytes[4..6].copy_from_slice(&(identification as u16).to_be_bytes());
        bytes[6..8].copy_from_slice(&place.to_be_bytes());
        mend(&mut bytes);
    } else {
        let place = (part.offset as u16 | u16::from(part.more)).to_be_bytes();
        let [a, b, c, d] = identification.to_be_bytes();
        bytes[4..6].copy_from_slice(&((8 + payload.len()) as u16).to_be_bytes());
        let next = std::mem::replace(&mut bytes[6], 44);
        bytes.extend([next, 0, place[0], place[1], a, b, c, d]);
    }
    bytes.extend_from_slice(payload);
    bytes
}

/// All fragments of a datagram, in order, each with `payload` bytes of it, a multiple of 8; the last has
/// fewer.
pub fn fragments(datagram: &[u8], identification: u32, payload: usize) -> Vec<Vec<u8>> {
    let end = datagram.len() - header_bytes(datagram);
    let part = |offset: usize| {
        let bytes = payload.min(end - offset);
        Part { offset, bytes, more: offset + bytes < end }
    };
    (0..end).step_by(payload).map(|offset| fragment(datagram, identification, part(offset))).collect()
}

/// A datagram without DF, as a sender that fragments makes it. Its fragments are compared with it.
pub fn fragmentable(mut datagram: Vec<u8>, identification: u16) -> Vec<u8> {
    if datagram[0] >> 4 == 4 {
        datagram[4..6].copy_from_slice(&identification.to_be_bytes());
        datagram[6..8].fill(0);
        let header = header_bytes(&datagram);
        mend(&mut datagram[..header]);
    }
    datagram
}
