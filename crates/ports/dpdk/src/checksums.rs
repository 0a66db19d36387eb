//! Checksums of UDP over IPv6, which has no packets without (RFC 8200 8.1): the one around ESP covers the
//! whole datagram. Here it is left to a device that computes it; elsewhere the link layer has completed it.
//! Over IPv4 there is none (RFC 3948 2.1).

use crate::mbuf::{flags, tx_lengths};
use testudo_packet::Buffer;
use testudo_wire::checksum::Sum;
use testudo_wire::ip::IpHeader;

const ETHERNET_BYTES: usize = 14;
const IPV6_BYTES: usize = 40;
const UDP_BYTES: usize = 8;
/// Where the checksum is in a frame.
const CHECKSUM_AT: usize = ETHERNET_BYTES + IPV6_BYTES + 6;
/// Where the protocol is.
const PROTOCOL_AT: usize = ETHERNET_BYTES + 6;

/// What a device is asked for: flags and lengths of the mbuf.
pub(crate) const REQUEST: (u64, u64) = (flags::UDP_CHECKSUM | flags::IPV6, tx_lengths(14, 40, 8, 0));

/// Whether a frame has UDP over IPv6 without a checksum. Others leave as they came.
#[inline]
fn is_missing(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&[0x86, 0xDD])
        && frame.get(PROTOCOL_AT) == Some(&17)
        && frame.get(CHECKSUM_AT..CHECKSUM_AT + 2) == Some(&[0, 0])
}

/// Leaves a checksum that is missing to the device, which continues the sum of the pseudo-header. Returns
/// whether it has to.
pub(crate) fn leave_to_device(buffer: &mut Buffer) -> bool {
    let frame = buffer.bytes_mut();
    if !is_missing(frame) {
        return false;
    }
    let Ok(header) = IpHeader::parse(&frame[ETHERNET_BYTES..]) else { return false };
    let bytes = header.payload(&frame[ETHERNET_BYTES..]).len();
    let Ok(length) = u32::try_from(bytes) else { return false };
    if bytes < UDP_BYTES {
        return false;
    }
    let sum = Sum::default().pseudo_header(header.source, header.destination, header.protocol, length);
    let sum = sum.finish().to_bytes().map(|byte| !byte);
    frame[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&sum);
    true
}

/// The packet was not sent: its checksum is missing again.
pub(crate) fn take_off(buffer: &mut Buffer) {
    if let Some(field) = buffer.bytes_mut().get_mut(CHECKSUM_AT..CHECKSUM_AT + 2) {
        field.fill(0);
    }
}
