//! What PIPSEA prints of its APU in words, in Gbit/s (paper 002, 4.1 and 4.2), to stand beside what was
//! measured of a GPU. Its sizes are of frames, ours of inner packets.

use testudo_crypto::Suite;

use super::case::{Size, Suites, Way};

/// End to end: AES-CBC with HMAC-SHA1 when it encapsulates (figure 12), and the mix of its six combinations.
const CBC_SHA1: [(Size, f64); 4] =
    [(Size::Bytes(64), 3.08), (Size::Bytes(1024), 10.36), (Size::Bytes(1280), 11.09), (Size::Random, 10.66)];
const MIX: [(Size, f64); 1] = [(Size::Bytes(1280), 17.42)];
/// Algorithms alone, of packets that are in main memory and have no headers (figure 8).
const ALONE: [(Suite, f64); 2] = [(Suite::AES128_SHA1, 13.87), (Suite::NULL_SHA1, 39.37)];
const ALONE_SIZE: Size = Size::Bytes(1280);

/// What a gateway carries, if it says so of these suites, this direction or both, and this size.
pub(super) fn end_to_end(suites: Suites, way: Option<Way>, size: Size) -> Option<f64> {
    let printed: &[(Size, f64)] = match (suites, way) {
        (Suites::One(suite), Some(Way::Outbound)) if suite == Suite::AES128_SHA1 => &CBC_SHA1,
        (Suites::Combinations, None) => &MIX,
        _ => &[],
    };
    printed.iter().find(|(of, _)| *of == size).map(|(_, gbit_s)| *gbit_s)
}

/// What the algorithms of a suite do alone, likewise.
pub(super) fn alone(suite: Suite, way: Way, size: Size) -> Option<f64> {
    let is_printed = way == Way::Outbound && size == ALONE_SIZE;
    ALONE.iter().find(|(of, _)| is_printed && *of == suite).map(|(_, gbit_s)| *gbit_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_pipsea_prints_is_of_a_suite_a_direction_and_a_size() {
        let cbc = |way, size| end_to_end(Suites::One(Suite::AES128_SHA1), way, size);
        assert_eq!(cbc(Some(Way::Outbound), Size::Random), Some(10.66));
        assert_eq!(cbc(Some(Way::Outbound), Size::Bytes(1420)), None);
        assert_eq!(cbc(Some(Way::Inbound), Size::Bytes(64)), None);
        assert_eq!(end_to_end(Suites::One(Suite::AES128GCM16), Some(Way::Outbound), Size::Bytes(64)), None);
        let mix = |way, bytes| end_to_end(Suites::Combinations, way, Size::Bytes(bytes));
        assert_eq!(
            [mix(None, 1280), mix(None, 64), mix(Some(Way::Outbound), 1280)],
            [Some(17.42), None, None]
        );
        let of_hmac = |way, bytes| alone(Suite::NULL_SHA1, way, Size::Bytes(bytes));
        assert_eq!([of_hmac(Way::Outbound, 1280), of_hmac(Way::Inbound, 1280)], [Some(39.37), None]);
        assert_eq!(alone(Suite::AES128_SHA1, Way::Outbound, Size::Bytes(1280)), Some(13.87));
    }
}
