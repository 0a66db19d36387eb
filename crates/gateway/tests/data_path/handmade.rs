//! ESP packets that are valid under their key and wrong, or unusual, inside (RFC 4303 2.4 to 2.7, 3.4.4).

use crate::support::{Gateway, Handmade, Inner, Sealer, Side, TunnelSpec};
use testudo_crypto::Suite;
use testudo_packet::DropReason;
use testudo_wire::ip::Version;

struct Fixture {
    sealer: Sealer,
    b: Gateway,
    suite: Suite,
    sequence: u64,
}

impl Fixture {
    fn new(spec: &TunnelSpec) -> Self {
        Self {
            sealer: Sealer::new(spec, Side::A),
            b: Gateway::with_tunnels(Side::B, std::slice::from_ref(spec)),
            suite: spec.suite,
            sequence: 0,
        }
    }

    fn receive(&mut self, made: &Handmade) -> Vec<Vec<u8>> {
        self.receive_text(&made.text())
    }

    fn receive_text(&mut self, text: &[u8]) -> Vec<Vec<u8>> {
        self.sequence += 1;
        let datagram = self.sealer.seal_text(self.sequence, text, 0);
        self.b.open(datagram)
    }
}

fn fixtures() -> Vec<Fixture> {
    let mut fixtures = Vec::new();
    for &suite in Suite::ALL {
        for (outer, udp) in [(Version::V4, false), (Version::V6, true)] {
            fixtures.push(Fixture::new(&TunnelSpec { outer, udp, ..TunnelSpec::new(0, suite) }));
        }
    }
    fixtures
}

fn packets() -> [Vec<u8>; 2] {
    [Inner::udp("10.0.0.1", "172.16.0.2", 84).bytes(), Inner::udp("fd0a::1", "fd16::2", 84).bytes()]
}

#[test]
fn every_legal_pad_length_is_taken_off() {
    for mut fixture in fixtures() {
        let alignment = fixture.suite.alignment_bytes();
        for packet in packets() {
            let fits = |pad: &u8| (packet.len() + usize::from(*pad) + 2).is_multiple_of(alignment);
            for pad_length in (0..=254u8).filter(fits) {
                let padding = (1..=pad_length).collect();
                let made = Handmade { padding, pad_length, ..Handmade::carrying(&packet) };
                assert_eq!(
                    fixture.receive(&made),
                    std::slice::from_ref(&packet),
                    "{pad_length} bytes of padding"
                );
            }
        }
    }
}

#[test]
fn each_wrong_padding_byte_is_refused() {
    let mut fixture = Fixture::new(&TunnelSpec::new(0, Suite::AES128GCM16));
    let packet = &packets()[0];
    let good: Vec<u8> = (1..=254).collect();
    for wrong in 0..good.len() {
        let mut padding = good.clone();
        padding[wrong] ^= 0x40;
        assert!(
            fixture.receive(&Handmade { padding, pad_length: 254, ..Handmade::carrying(packet) }).is_empty()
        );
    }
    assert_eq!(fixture.b.drops(DropReason::BadPadding), good.len() as u64);
}

#[test]
fn a_pad_length_beyond_the_text_is_refused() {
    let mut fixture = Fixture::new(&TunnelSpec::new(0, Suite::AES128GCM16));
    for text in [&[0, 0, 3, 4][..], &[1, 2, 255, 4], &[1, 2, 3, 4, 5, 6, 7, 4]] {
        assert!(fixture.receive_text(text).is_empty());
    }
    assert_eq!(fixture.b.drops(DropReason::BadPadding), 3);
}

#[test]
fn each_next_header_but_the_inner_version_is_refused() {
    for packet in packets() {
        let mut fixture = Fixture::new(&TunnelSpec::new(0, Suite::CHACHA20POLY1305));
        let right = Handmade::carrying(&packet).next_header;
        for next_header in 0..=255 {
            let made = Handmade { next_header, ..Handmade::carrying(&packet) };
            let delivered = fixture.receive(&made).len();
            assert_eq!(delivered, usize::from(next_header == right), "next header {next_header}");
        }
        assert_eq!(fixture.b.drops(DropReason::DummyPacket), 1);
        assert_eq!(fixture.b.drops(DropReason::InnerMalformed), 1, "the other IP version");
        assert_eq!(fixture.b.drops(DropReason::BadNextHeader), 253);
        fixture.b.assert_settled();
    }
}

#[test]
fn a_dummy_packet_needs_no_packet_inside_and_cannot_be_replayed() {
    let spec = TunnelSpec::new(0, Suite::AES256GCM16);
    let mut fixture = Fixture::new(&spec);
    for payload in [vec![], vec![0xA5; 1000]] {
        assert!(fixture.receive(&Handmade::with_payload(payload, 59)).is_empty());
    }
    let replayed = fixture.sealer.seal(1, &Handmade::with_payload(vec![], 59));
    fixture.b.open(replayed);
    assert_eq!(fixture.b.drops(DropReason::DummyPacket), 2);
    assert_eq!(fixture.b.drops(DropReason::ReplayDuplicate), 1);
}

#[test]
fn tfc_padding_of_any_length_is_cut_off() {
    for mut fixture in fixtures() {
        for packet in packets() {
            for tfc_bytes in (0..300).chain([1000, 1300]) {
                let made = Handmade::with_tfc(&packet, tfc_bytes).padded_for(fixture.suite);
                assert_eq!(
                    fixture.receive(&made),
                    std::slice::from_ref(&packet),
                    "{tfc_bytes} bytes of TFC padding"
                );
            }
        }
    }
}

#[test]
fn inner_packets_that_break_their_own_format_are_refused() {
    let mut fixture = Fixture::new(&TunnelSpec::new(0, Suite::AES128GCM16));
    let mut refused = 0;
    for packet in packets() {
        for len in 0..packet.len() {
            assert!(
                fixture
                    .receive(&Handmade::with_payload(packet[..len].to_vec(), version_header(&packet)))
                    .is_empty()
            );
            refused += 1;
        }
    }
    assert_eq!(fixture.b.drops(DropReason::InnerMalformed), refused);
    fixture.b.assert_settled();
}

/// RFC 4303 2.4: text and trailer end on a four-byte boundary. No peer that follows the RFC seals anything
/// else.
#[test]
fn text_of_a_crooked_length_is_refused_before_it_is_decrypted() {
    let mut fixture = Fixture::new(&TunnelSpec::new(0, Suite::AES128GCM16));
    for len in [0, 1, 2, 3, 5, 6, 7, 101] {
        assert!(fixture.receive_text(&vec![4; len]).is_empty());
    }
    assert_eq!(fixture.b.drops(DropReason::EspMalformed), 8);
}

/// RFC 3602 3: AES-CBC encrypts whole blocks only.
#[test]
fn ciphertext_of_cbc_that_ends_within_a_block_is_refused_before_it_is_decrypted() {
    for suite in [Suite::AES128_SHA1, Suite::AES256_SHA256] {
        let mut fixture = Fixture::new(&TunnelSpec::new(0, suite));
        let crooked: Vec<usize> = (0..80).filter(|len| len % 16 != 0).chain([0]).collect();
        for len in &crooked {
            assert!(fixture.receive_text(&vec![4; *len]).is_empty());
        }
        assert_eq!(fixture.b.drops(DropReason::EspMalformed), crooked.len() as u64);
    }
}

fn version_header(packet: &[u8]) -> u8 {
    if packet[0] >> 4 == 6 { 41 } else { 4 }
}
