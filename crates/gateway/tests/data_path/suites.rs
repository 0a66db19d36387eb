//! The differences between suites: IVs, ICVs, lengths, and what an observer can see.

use crate::support::sealer::{encapsulate, esp_offset};
use crate::support::{Gateway, Handmade, Inner, Sealer, Side, TunnelSpec};
use std::collections::HashSet;
use testudo_crypto::{Cipher, Integrity, Suite};
use testudo_packet::DropReason;
use testudo_wire::ip::Version;

/// Every suite over either kind of outer network, with and without ESN.
fn specs() -> Vec<TunnelSpec> {
    let kinds = [(Version::V4, false, true), (Version::V6, true, false), (Version::V6, false, true)];
    let every =
        |&suite| kinds.map(|(outer, udp, esn)| TunnelSpec { outer, udp, esn, ..TunnelSpec::new(0, suite) });
    Suite::ALL.iter().flat_map(every).collect()
}

fn packet(bytes: usize) -> Vec<u8> {
    Inner::udp("10.0.0.1", "172.16.0.2", bytes).bytes()
}

fn sealed_by_a_new_gateway(spec: &TunnelSpec, packets: usize) -> Vec<Vec<u8>> {
    let mut a = Gateway::with_tunnels(Side::A, std::slice::from_ref(spec));
    (0..packets).map(|_| a.seal(packet(60)).remove(0)[esp_offset(spec)..].to_vec()).collect()
}

/// RFC 3602 3 forbids counters and other IVs of low Hamming distance; SP 800-38A, appendix C, requires IVs
/// that cannot be predicted. So do RFC 2405 3 and RFC 2451 3 for DES.
#[test]
fn ivs_of_cbc_are_never_equal_and_differ_like_random_ones() {
    for suite in ["aes128-sha1", "aes192-sha384", "aes256-sha256", "3des-sha1", "des-md5"] {
        let spec = TunnelSpec::new(0, suite.parse().expect("a suite"));
        let iv_bytes = spec.suite.iv_bytes();
        let ivs: Vec<u128> = sealed_by_a_new_gateway(&spec, 4000)
            .iter()
            .map(|esp| esp[8..8 + iv_bytes].iter().fold(0, |iv, byte| iv << 8 | u128::from(*byte)))
            .collect();
        assert_eq!(ivs.iter().collect::<HashSet<_>>().len(), ivs.len());
        let distances: Vec<u32> = ivs.windows(2).map(|pair| (pair[0] ^ pair[1]).count_ones()).collect();
        // Binomial over the bits: the mean is half of them, and six standard deviations are three times the
        // root of their number.
        let bits = 8.0 * iv_bytes as f64;
        let is_near = |d: &u32| (f64::from(*d) - bits / 2.0).abs() <= 3.0 * bits.sqrt();
        assert!(distances.iter().all(is_near), "{suite}: {distances:?}");
        let mean = f64::from(distances.iter().sum::<u32>()) / distances.len() as f64;
        assert!((mean - bits / 2.0).abs() < 1.0, "{suite}: {mean}");
    }
}

/// Known answers depend on this. Leases, not suites, prevent the reuse of a number.
#[test]
fn equal_numbers_under_equal_keys_give_equal_packets_in_every_suite() {
    for spec in specs() {
        assert_eq!(sealed_by_a_new_gateway(&spec, 20), sealed_by_a_new_gateway(&spec, 20), "{}", spec.suite);
    }
}

/// Both directions begin at number 1, under different keys.
#[test]
fn ivs_of_cbc_depend_on_the_key() {
    let spec = TunnelSpec::new(0, Suite::AES128_SHA1);
    let mut b = Gateway::with_tunnels(Side::B, std::slice::from_ref(&spec));
    let answer = Inner::udp("172.16.0.2", "10.0.0.1", 60).bytes();
    for esp in sealed_by_a_new_gateway(&spec, 20) {
        let back = &b.seal(answer.clone()).remove(0)[esp_offset(&spec)..];
        assert_eq!(esp[4..8], back[4..8], "the same number");
        assert_ne!(esp[8..24], back[8..24]);
    }
}

/// RFC 4303 2: header, IV, the packet with its padding and trailer, ICV.
#[test]
fn each_suite_adds_what_its_iv_its_alignment_and_its_icv_take() {
    let of = |suite: Suite| {
        let (iv, alignment) = match suite.cipher() {
            Cipher::AesGcm(_) | Cipher::AesCcm(_) | Cipher::AesGmac(_) | Cipher::ChaCha20Poly1305 => (8, 4),
            Cipher::AesGcmImplicitIv(_)
            | Cipher::AesCcmImplicitIv(_)
            | Cipher::ChaCha20Poly1305ImplicitIv
            | Cipher::AesGcmVpe(_)
            | Cipher::ChaCha20Poly1305Vpe
            | Cipher::Null => (0, 4),
            Cipher::AesCbc(_) => (16, 16),
            Cipher::AesCtr(_) => (8, 4),
            Cipher::TripleDesCbc | Cipher::DesCbc => (8, 8),
        };
        let icv = match suite.integrity() {
            Integrity::Combined
                if ["gcm8", "ccm8", "ccm8iiv"].iter().any(|end| suite.to_string().ends_with(end)) =>
            {
                8
            }
            Integrity::Combined if suite.to_string().ends_with("cm12") => 12,
            Integrity::Combined | Integrity::HmacSha256 => 16,
            Integrity::HmacMd5 | Integrity::HmacSha1 | Integrity::AesXcbc | Integrity::AesCmac => 12,
            Integrity::HmacSha384 => 24,
            Integrity::HmacSha512 => 32,
            Integrity::None => panic!("a gateway has no such suite"),
        };
        (iv, alignment, icv)
    };
    for spec in specs() {
        let (iv, alignment, icv): (usize, usize, usize) = of(spec.suite);
        let mut a = Gateway::with_tunnels(Side::A, std::slice::from_ref(&spec));
        for bytes in 40..140 {
            let esp = a.seal(packet(bytes)).remove(0).len() - esp_offset(&spec);
            assert_eq!(
                esp,
                8 + iv + (bytes + 2).next_multiple_of(alignment) + icv,
                "{}, {bytes}",
                spec.suite
            );
        }
    }
}

#[test]
fn the_longest_inner_packet_of_each_suite_fits_the_path_and_no_longer_one_would() {
    for spec in specs() {
        for path_mtu in 1280..1312 {
            let spec = TunnelSpec { path_mtu, ..spec.clone() };
            let mut a = Gateway::with_tunnels(Side::A, std::slice::from_ref(&spec));
            let mut b = Gateway::with_tunnels(Side::B, std::slice::from_ref(&spec));
            let longest = packet(spec.inner_mtu());
            let sealed = a.seal(longest.clone()).remove(0);
            let (length, alignment) = (sealed.len(), spec.suite.alignment_bytes());
            assert!(length <= path_mtu && length + alignment > path_mtu, "{} of {path_mtu}", spec.suite);
            assert_eq!(b.open(sealed), [longest]);
        }
    }
}

#[test]
fn each_flipped_bit_of_header_iv_text_and_icv_is_refused_in_every_suite() {
    for spec in specs() {
        let mut b = Gateway::with_tunnels(Side::B, std::slice::from_ref(&spec));
        let packet = packet(60);
        let made = Handmade::carrying(&packet).padded_for(spec.suite);
        let datagram = Sealer::new(&spec, Side::A).seal(1, &made);
        for bit in esp_offset(&spec) * 8..datagram.len() * 8 {
            let mut damaged = datagram.clone();
            damaged[bit / 8] ^= 0x80 >> (bit % 8);
            assert!(b.open(damaged).is_empty(), "{}, bit {bit}", spec.suite);
        }
        assert_eq!(b.open(datagram), [packet]);
        b.assert_settled();
    }
}

#[test]
fn every_length_of_esp_is_refused_but_the_right_one_in_every_suite() {
    for spec in specs() {
        let mut b = Gateway::with_tunnels(Side::B, std::slice::from_ref(&spec));
        let packet = packet(120);
        let made = Handmade::carrying(&packet).padded_for(spec.suite);
        let datagram = Sealer::new(&spec, Side::A).seal(1, &made);
        let esp = &datagram[esp_offset(&spec)..];
        for len in 0..esp.len() {
            let cut = encapsulate(&spec, Side::A, &esp[..len], 0);
            assert!(b.open(cut).is_empty(), "{}, {len} bytes", spec.suite);
        }
        assert_eq!(b.open(datagram.clone()), [packet]);
        b.assert_settled();
    }
}

/// RFC 4303 2.2.1: the high half, which is not sent, is authenticated.
#[test]
fn a_packet_that_was_sealed_under_another_high_half_is_refused_in_every_suite() {
    for spec in specs().into_iter().filter(|spec| spec.esn) {
        let mut b = Gateway::with_tunnels(Side::B, std::slice::from_ref(&spec));
        let mut sealer = Sealer::new(&spec, Side::A);
        let made = Handmade::carrying(&packet(60)).padded_for(spec.suite);
        for (refused, high) in (1..).zip([1_u64, 2, 1 << 8, 1 << 16, 1 << 31]) {
            assert!(b.open(sealer.seal(high << 32 | 1, &made)).is_empty(), "{}", spec.suite);
            assert_eq!(b.drops(DropReason::AuthenticationFailed), refused);
        }
        assert_eq!(b.open(sealer.seal(1, &made)).len(), 1);
    }
}

/// RFC 2410 and RFC 4543 3: NULL and GMAC hide nothing, every other suite hides the packet.
#[test]
fn only_null_encryption_and_gmac_show_what_they_carry() {
    for spec in specs() {
        let packet = packet(200);
        let mut a = Gateway::with_tunnels(Side::A, std::slice::from_ref(&spec));
        let datagram = a.seal(packet.clone()).remove(0);
        let is_visible = datagram.windows(packet.len()).any(|window| window == packet);
        let hides_nothing = matches!(spec.suite.cipher(), Cipher::Null | Cipher::AesGmac(_));
        assert_eq!(is_visible, hides_nothing, "{}", spec.suite);
        assert_eq!(is_visible, !spec.suite.encrypts());
    }
}
