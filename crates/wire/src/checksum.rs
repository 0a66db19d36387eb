//! The Internet checksum (RFC 1071).

use std::net::IpAddr;

/// A running one's complement sum. Parts are added in any order; each part but the last must have even
/// length.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sum(u64);

impl Sum {
    /// Adds bytes. Sums 32-bit words in native order, which the compiler vectorises; RFC 1071 2 (B) shows
    /// that the byte order can be corrected at the end. Always inlined, so that callers compiled for wider
    /// vectors use them.
    #[must_use]
    #[inline(always)]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        let words = bytes.chunks_exact(4);
        let rest = words.remainder();
        let words = words.map(|w| u64::from(u32::from_ne_bytes([w[0], w[1], w[2], w[3]])));
        // Cannot wrap below 16 GiB. `wrapping_add`, because an overflow check per word would prevent
        // vectorisation.
        let mut sum = words.fold(0, u64::wrapping_add);
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        sum += u64::from(u32::from_ne_bytes(last));
        self.words(sum)
    }

    /// Adds bytes that come in pieces of any lengths, as if they were in one.
    #[must_use]
    pub fn pieces<'a>(self, pieces: impl Iterator<Item = &'a [u8]>) -> Self {
        let (mut sum, mut odd) = (self, None::<u8>);
        for mut piece in pieces {
            // The second byte of a pair that a piece before this one began.
            if let (Some(first), [second, rest @ ..]) = (odd, piece) {
                (sum, piece, odd) = (sum.bytes(&[first, *second]), rest, None);
            }
            let (pairs, last) = piece.split_at(piece.len() & !1);
            sum = sum.bytes(pairs);
            odd = last.first().copied().or(odd);
        }
        sum.bytes(odd.as_slice())
    }

    /// Adds a sum of 32-bit words in native order that was computed elsewhere, for example with vectors that
    /// this crate does not know.
    #[must_use]
    #[inline(always)]
    pub fn words(self, sum: u64) -> Self {
        Self(self.0 + (sum & 0xFFFF_FFFF) + (sum >> 32))
    }

    /// Adds the pseudo-header of TCP, UDP and ICMPv6 (RFC 9293 3.1, RFC 8200 8.1). Addresses of mixed
    /// versions are summed as they are.
    #[must_use]
    pub fn pseudo_header(self, source: IpAddr, destination: IpAddr, protocol: u8, length: u32) -> Self {
        let sum = self.address(source).address(destination);
        sum.bytes(&[0, 0, 0, protocol]).bytes(&length.to_be_bytes())
    }

    fn address(self, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(a) => self.bytes(&a.octets()),
            IpAddr::V6(a) => self.bytes(&a.octets()),
        }
    }

    /// The checksum: the complement of the folded sum, in network byte order when stored with `to_ne_bytes`.
    ///
    /// Branch-free: how often a sum has to be folded differs from packet to packet, which no branch predictor
    /// learns. The upper half of a number plus itself with its halves exchanged is the one's complement sum
    /// of both halves: the lower ones carry into the upper ones.
    #[must_use]
    #[inline]
    pub fn finish(self) -> Checksum {
        let sum = self.0.wrapping_add(self.0.rotate_left(32)) >> 32;
        let sum = u32::try_from(sum).unwrap_or(0);
        let sum = sum.wrapping_add(sum.rotate_left(16)) >> 16;
        Checksum(!u16::try_from(sum).unwrap_or(0))
    }
}

/// A finished checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checksum(u16);

impl Checksum {
    /// The checksum that a header holds in these two bytes.
    #[must_use]
    #[inline]
    pub fn from_bytes(bytes: [u8; 2]) -> Self {
        Self(u16::from_ne_bytes(bytes))
    }

    /// The checksum after `old` became `new` in what it covers: equation 3 of RFC 1624, which unlike its
    /// predecessors never yields the wrong one of the two zeros. Both begin at an even offset of what is
    /// covered and have even lengths, not necessarily the same.
    #[must_use]
    #[inline]
    pub fn update(self, old: &[u8], new: &[u8]) -> Self {
        let without_old = Sum::default().bytes(old).finish();
        Sum(u64::from(!self.0) + u64::from(without_old.0)).bytes(new).finish()
    }

    /// The two bytes as in a header.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 2] {
        self.0.to_ne_bytes()
    }

    /// Whether a header that was summed with its checksum in place is intact.
    #[must_use]
    pub fn is_intact(self) -> bool {
        self.0 == 0
    }
}

/// The checksum of a slice.
#[must_use]
pub fn of(bytes: &[u8]) -> Checksum {
    Sum::default().bytes(bytes).finish()
}

/// The checksum of an IPv4 header without options: the same sum, unrolled, since every packet needs it
/// several times.
#[must_use]
#[inline]
pub fn of_ipv4_header(header: &[u8; 20]) -> Checksum {
    let word = |at: usize| {
        let [a, b, c, d] = [header[at], header[at + 1], header[at + 2], header[at + 3]];
        u64::from(u32::from_ne_bytes([a, b, c, d]))
    };
    // Two words at a time, adjacent in memory and in the number; the carry out of the highest bit is added at
    // the lowest.
    let pair = |at: usize| u128::from(word(at + 4) << 32 | word(at));
    let sum = pair(0) + pair(8) + u128::from(word(16));
    let (sum, carries) = (u64::try_from(sum & u128::from(u64::MAX)), u64::try_from(sum >> 64));
    let (sum, carry) = sum.unwrap_or(0).overflowing_add(carries.unwrap_or(0));
    Sum(sum + u64::from(carry)).finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 1071, word by word.
    fn slow(bytes: &[u8]) -> [u8; 2] {
        let mut sum: u32 = 0;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            sum = (sum & 0xFFFF) + (sum >> 16);
        }
        (!(sum as u16)).to_be_bytes()
    }

    #[test]
    fn agrees_with_the_definition_at_every_length() {
        let bytes: Vec<u8> = (0..2100u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for len in 0..bytes.len() {
            assert_eq!(of(&bytes[..len]).to_bytes(), slow(&bytes[..len]), "length {len}");
        }
        assert_eq!(of(&[0xFF; 65536]).to_bytes(), slow(&[0xFF; 65536]));
    }

    #[test]
    fn the_unrolled_sum_agrees() {
        for seed in 0..1000u32 {
            let header: [u8; 20] =
                std::array::from_fn(|i| (seed.wrapping_mul(2_654_435_761).rotate_left(i as u32) >> 8) as u8);
            assert_eq!(of_ipv4_header(&header), of(&header));
        }
        assert_eq!(of_ipv4_header(&[0xFF; 20]), of(&[0xFF; 20]));
    }

    /// RFC 1624 4: a header whose other words sum to 0xCD7A, of which one changes from 0x5555 to 0x3285. An
    /// update by RFC 1141's equation gives 0xFFFF here, which a receiver would refuse.
    #[test]
    fn rfc_1624_example() {
        let checksum = Checksum::from_bytes([0xDD, 0x2F]).update(&[0x55, 0x55], &[0x32, 0x85]);
        assert_eq!(checksum.to_bytes(), [0, 0]);
    }

    proptest! {
        #[test]
        fn pieces_of_any_lengths_have_the_sum_of_the_whole(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..9),
        ) {
            let sum = Sum::default().pieces(pieces.iter().map(Vec::as_slice));
            prop_assert_eq!(sum.finish().to_bytes(), slow(&pieces.concat()));
        }

        #[test]
        fn an_updated_checksum_is_that_of_the_changed_bytes(
            mut bytes in prop::collection::vec(any::<u8>(), 20..60),
            new in prop::collection::vec(prop_oneof![any::<u8>(), Just(0), Just(0xFF)], 0..9),
            at in 0usize..5,
        ) {
            // No header that a checksum is for is all zeros: its version, or its protocol, is not.
            bytes[19] |= 1;
            let (at, new) = (2 * at, &new[..new.len() & !1]);
            let before = of(&bytes);
            let old = bytes[at..at + new.len()].to_vec();
            bytes[at..at + new.len()].copy_from_slice(new);
            prop_assert_eq!(before.update(&old, new), of(&bytes));
        }
    }

    #[test]
    fn rfc_1071_example() {
        assert_eq!(of(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]).to_bytes(), [!0xdd, !0xf2]);
    }
}
