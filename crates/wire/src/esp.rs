//! ESP header and trailer (RFC 4303 2), ESP in UDP (RFC 3948 2).

/// Bytes of SPI and sequence number.
pub const ESP_HEADER_BYTES: usize = 8;
/// Bytes of pad length and next header, at the end of the ciphertext.
pub const ESP_TRAILER_BYTES: usize = 2;
/// The one byte of a NAT keepalive (RFC 3948 2.3).
pub const NAT_KEEPALIVE: u8 = 0xFF;

/// SPI and sequence number of an ESP packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EspHeader {
    /// Security parameters index.
    pub spi: u32,
    /// Low 32 bits of the sequence number.
    pub sequence: u32,
}

impl EspHeader {
    /// Reads the header at the start of `bytes`; `None` if there are fewer than 8.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let h = bytes.first_chunk::<ESP_HEADER_BYTES>()?;
        Some(Self {
            spi: u32::from_be_bytes([h[0], h[1], h[2], h[3]]),
            sequence: u32::from_be_bytes([h[4], h[5], h[6], h[7]]),
        })
    }
}

/// The trailer of a decrypted ESP payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EspTrailer {
    /// Bytes of the payload data before the padding.
    pub payload_bytes: usize,
    /// Protocol of the payload data.
    pub next_header: u8,
}

/// Padding or pad length is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the ESP padding is wrong")]
pub struct BadPadding;

impl EspTrailer {
    /// Reads the trailer of decrypted `text` and checks that the padding is the default one, 1, 2, 3, … (RFC
    /// 4303 2.4).
    ///
    /// # Errors
    /// [`BadPadding`] if the pad length exceeds the text or a padding byte differs.
    #[inline]
    pub fn parse(text: &[u8]) -> Result<Self, BadPadding> {
        let (body, trailer) = text.split_last_chunk::<ESP_TRAILER_BYTES>().ok_or(BadPadding)?;
        let [pad_bytes, next_header] = *trailer;
        let payload_bytes = body.len().checked_sub(usize::from(pad_bytes)).ok_or(BadPadding)?;
        if is_default_padding(body, payload_bytes) {
            Ok(Self { payload_bytes, next_header })
        } else {
            Err(BadPadding)
        }
    }
}

/// Whether the bytes of `body` after the payload are 1, 2, 3, … Up to seven of them (AEADs need three at
/// most) are compared without a loop: their number differs from packet to packet, which no branch predictor
/// learns.
#[inline]
fn is_default_padding(body: &[u8], payload_bytes: usize) -> bool {
    let pad_bytes = body.len() - payload_bytes;
    match (body.last_chunk::<8>(), SHORT_PADDINGS.get(pad_bytes)) {
        (Some(last), Some((mask, padding))) => u64::from_le_bytes(*last) & mask == *padding,
        _ => body[payload_bytes..].iter().zip(1..=u8::MAX).all(|(&found, expected)| found == expected),
    }
}

/// Mask and value of the padding in the last eight bytes (the last byte the most significant), by the number
/// of padding bytes.
static SHORT_PADDINGS: [(u64, u64); 8] = short_paddings();

const fn short_paddings() -> [(u64, u64); 8] {
    let mut all = [(0, 0); 8];
    let mut bytes = 1;
    while bytes < all.len() {
        let free = 8 * (8 - bytes);
        all[bytes] = (u64::MAX << free, 0x0807_0605_0403_0201 << free);
        bytes += 1;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A payload of this many bytes, the default padding (RFC 4303 2.4), its length and the next header.
    fn text(payload: usize, padding: u8, next_header: u8) -> Vec<u8> {
        let trailer: Vec<u8> = (1..=padding).chain([padding, next_header]).collect();
        [vec![0xAA; payload], trailer].concat()
    }

    #[test]
    fn padding_of_every_length_is_read() {
        for (payload, padding) in
            (0..20).flat_map(|payload| (0..=u8::MAX).map(move |padding| (payload, padding)))
        {
            let expected = EspTrailer { payload_bytes: payload, next_header: 4 };
            assert_eq!(EspTrailer::parse(&text(payload, padding, 4)), Ok(expected));
        }
    }

    #[test]
    fn a_pad_length_beyond_the_text_is_refused() {
        assert_eq!(EspTrailer::parse(&[1, 2, 3, 4, 5, 4]), Err(BadPadding));
        assert_eq!(EspTrailer::parse(&[9]), Err(BadPadding));
        assert_eq!(EspTrailer::parse(&[]), Err(BadPadding));
        assert_eq!(EspTrailer::parse(&[255; 200]), Err(BadPadding));
    }

    #[test]
    fn each_padding_byte_is_checked() {
        for (payload, padding) in
            [0, 1, 5, 8, 40].into_iter().flat_map(|n| [0, 1, 3, 6, 7, 8, 9, 15, 255].map(|p| (n, p)))
        {
            let text = text(payload, padding, 41);
            assert_eq!(EspTrailer::parse(&text).unwrap().payload_bytes, payload);
            for (at, bit) in
                (payload..payload + usize::from(padding)).flat_map(|at| (0..8).map(move |bit| (at, bit)))
            {
                let mut bad = text.clone();
                bad[at] ^= 1 << bit;
                assert_eq!(
                    EspTrailer::parse(&bad),
                    Err(BadPadding),
                    "{payload} and {padding} bytes, byte {at}"
                );
            }
        }
    }
}
