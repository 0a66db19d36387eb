//! Where IPsec is in a datagram, and whether a device finds it there.
//!
//! Offload engines of NICs look at fixed places: after an IPv4 header without options or an IPv6 header
//! without extension headers, in a datagram that is no fragment (paper 000, IV.B).

use testudo_crypto::{Job, SecurityProtocol, Suite};
use testudo_packet::Buffer;
use testudo_wire::ip::{IPV4_HEADER_BYTES, IPV6_HEADER_BYTES};
use testudo_wire::protocol;

/// Bytes of SPI and number.
const ESP_HEADER_BYTES: usize = 8;

/// Length of the IP header of a datagram whose next header, without any in between, is that of `protocol`;
/// `None` for all others.
#[inline]
pub(crate) fn plain_header_bytes(datagram: &[u8], protocol: SecurityProtocol) -> Option<usize> {
    let number = match protocol {
        SecurityProtocol::Esp => protocol::ESP,
        SecurityProtocol::Ah => protocol::AH,
    };
    match datagram.first()? {
        // More Fragments and the offset: bits 0x3FFF.
        0x45 if datagram.len() >= IPV4_HEADER_BYTES => {
            let is_whole = datagram[6] & 0x3F == 0 && datagram[7] == 0;
            (is_whole && datagram[9] == number).then_some(IPV4_HEADER_BYTES)
        }
        0x60..=0x6F if datagram.len() >= IPV6_HEADER_BYTES => {
            (datagram[6] == number).then_some(IPV6_HEADER_BYTES)
        }
        _ => None,
    }
}

/// Whether a received datagram is as long as its IP header says. That header is not authenticated with ESP,
/// and a device may go by the length of the frame: what it opened then is another text than software would
/// see.
#[inline]
pub(crate) fn has_its_length(datagram: &[u8]) -> bool {
    let said = match (datagram.first().map(|first| first >> 4), datagram.get(2..6)) {
        (Some(4), Some(&[high, low, ..])) => usize::from(u16::from_be_bytes([high, low])),
        (Some(6), Some(&[.., high, low])) => IPV6_HEADER_BYTES + usize::from(u16::from_be_bytes([high, low])),
        _ => return false,
    };
    said == datagram.len()
}

/// Whether a device finds the packet of a job: its datagram begins the buffer, or, with AH, a copy of its
/// front does.
#[inline]
pub(crate) fn is_plain(job: &Job, protocol: SecurityProtocol) -> bool {
    let header = plain_header_bytes(job.buffer.bytes(), protocol);
    match protocol {
        SecurityProtocol::Esp => header == Some(job.auth_start as usize),
        SecurityProtocol::Ah => header.is_some() && job.auth_start * 2 == job.text_start,
    }
}

/// Bytes of the datagram that a job's packet is or will be.
#[inline]
pub(crate) fn datagram_bytes(job: &Job, protocol: SecurityProtocol) -> usize {
    match protocol {
        SecurityProtocol::Esp => job.buffer.len(),
        // The front is there twice, and the ICV within it.
        SecurityProtocol::Ah => (job.text_start / 2 + job.text_bytes) as usize,
    }
}

/// The job that seals a framed ESP datagram; `None` where it is none.
pub(crate) fn esp_job(datagram: Buffer, suite: Suite) -> Result<Job, Buffer> {
    let bytes = datagram.bytes();
    let ranges = plain_header_bytes(bytes, SecurityProtocol::Esp).and_then(|auth_start| {
        let text_start = auth_start + ESP_HEADER_BYTES + suite.iv_bytes();
        let text_bytes = bytes.len().checked_sub(text_start + suite.icv_bytes())?;
        let low = bytes.get(auth_start + 4..auth_start + ESP_HEADER_BYTES)?.first_chunk()?;
        Some((auth_start, text_start, text_bytes, u32::from_be_bytes(*low)))
    });
    let Some((auth_start, text_start, text_bytes, sequence)) = ranges else { return Err(datagram) };
    let offset = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Ok(Job {
        sequence: sequence.into(),
        auth_start: offset(auth_start),
        text_start: offset(text_start),
        text_bytes: offset(text_bytes),
        ..Job::new(datagram, testudo_crypto::Direction::Seal, 0)
    })
}

/// Whether the end of a decrypted text is a trailer as senders write it: padding of 1, 2, 3, … (RFC 4303
/// 2.4), and, in tunnel mode, one of three next headers. The end of a text that was not decrypted is one of
/// these once in twenty thousand.
pub(crate) fn has_plausible_trailer(text: &[u8], is_tunnel: bool) -> bool {
    let [front @ .., padding, next_header] = text else { return false };
    let Some(at) = front.len().checked_sub(usize::from(*padding)) else { return false };
    let is_known = matches!(*next_header, protocol::IPV4 | protocol::IPV6 | protocol::NO_NEXT_HEADER);
    (is_known || !is_tunnel) && front[at..].iter().zip(1..).all(|(byte, n)| *byte == n)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(first: u8, fragment: [u8; 2], protocol: u8) -> Vec<u8> {
        let mut datagram = vec![0; 60];
        datagram[0] = first;
        datagram[6..8].copy_from_slice(&fragment);
        datagram[9] = protocol;
        datagram
    }

    #[test]
    fn only_plain_datagrams_are_found() {
        let esp = |datagram: &[u8]| plain_header_bytes(datagram, SecurityProtocol::Esp);
        assert_eq!(esp(&v4(0x45, [0, 0], 50)), Some(20));
        assert_eq!(esp(&v4(0x45, [0x40, 0], 50)), Some(20), "DF");
        for (first, fragment, protocol) in
            [(0x46, [0, 0], 50), (0x45, [0x20, 0], 50), (0x45, [0, 1], 50), (0x45, [0, 0], 17)]
        {
            assert_eq!(esp(&v4(first, fragment, protocol)), None);
        }
        let mut v6 = vec![0; 60];
        (v6[0], v6[6]) = (0x6A, 50);
        assert_eq!(esp(&v6), Some(40));
        assert_eq!(plain_header_bytes(&v6, SecurityProtocol::Ah), None);
        v6[6] = 60;
        assert_eq!(esp(&v6), None, "destination options come first");
        assert_eq!((esp(&v6[..39]), esp(&[])), (None, None));
    }

    #[test]
    fn a_datagram_has_its_length_or_a_device_may_have_seen_another_one() {
        let mut datagram = v4(0x45, [0, 0], 50);
        datagram[3] = 60;
        assert!(has_its_length(&datagram));
        datagram[3] = 59;
        assert!(!has_its_length(&datagram));
        (datagram[0], datagram[5]) = (0x60, 20);
        assert!(has_its_length(&datagram));
        datagram[5] = 21;
        assert!(!has_its_length(&datagram) && !has_its_length(&[]) && !has_its_length(&[0x45, 0, 0]));
    }

    #[test]
    fn a_trailer_is_plausible_if_a_sender_writes_such() {
        assert!(has_plausible_trailer(&[9, 9, 1, 2, 2, 4], true));
        assert!(has_plausible_trailer(&[0, 59], true) && has_plausible_trailer(&[0, 6], false));
        for text in [&[9, 2, 2, 2, 4][..], &[1, 2, 3, 4], &[0, 6], &[0], &[], &[7, 4]] {
            assert!(!has_plausible_trailer(text, true), "{text:?}");
        }
    }
}
