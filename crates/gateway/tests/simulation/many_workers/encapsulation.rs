//! What a simulation of many workers needs to know of an encapsulation. A case more is a line in [`all`].

use crate::support::sealer::esp_offset;
use crate::support::vpe::vpe;
use crate::support::{Side, TunnelSpec};
use std::num::NonZeroU16;
use testudo_crypto::Suite;
use testudo_ipsec::{IpsecProtocol, PacketRules, VpeClasses, VpeRules};
use testudo_wire::ip::Version;
use testudo_wire::steering::Steering;
use testudo_wire::vpe::VpeHeader;

/// What a protected datagram shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shown {
    pub spi: u32,
    /// Which of the SA's counts its number is of: always 0 where an SA has one; of VPE sender and window.
    pub count: u32,
    pub number: u64,
    /// What must be unique under the key.
    pub nonce: [u8; 16],
}

/// An encapsulation under which many workers are simulated.
#[derive(Clone)]
pub struct Case {
    pub name: &'static str,
    pub spec: TunnelSpec,
    /// Bits of the number that a datagram shows.
    pub number_bits: u32,
    pub show: fn(&TunnelSpec, &[u8]) -> Shown,
    /// How a port spreads what comes from the peer.
    pub steering: Steering,
    /// The last number before the start, of the SAs under the first key.
    pub begins_after: u64,
    /// Every worker but the last one has an SA of its own (RFC 9611).
    pub own_sas: bool,
}

impl Case {
    /// Whether each worker sends at the ticks of a clock.
    pub fn has_clock(&self) -> bool {
        self.spec.rules.clocked_packets_per_second > 0
    }

    /// What was received of an SA before the start: of those under the first key.
    pub fn begins_after_of(&self, spi: u32) -> u64 {
        let is_first = [Side::A, Side::B].iter().any(|side| self.spec.spi_from(*side) == spi);
        if is_first { self.begins_after } else { 0 }
    }
}

/// The DSCP of some packets: of VPE they have windows of their own.
pub const URGENT: u8 = 46;
const CLASSES: NonZeroU16 = NonZeroU16::new(2).unwrap();

/// Every case: suites with and without ESN, nonces from numbers and from elsewhere, numbers that cross 2^32.
pub fn all() -> Vec<Case> {
    let ah = Suite::all_for_ah().next().expect("a suite for AH");
    let spec = |suite| TunnelSpec::new(0, suite);
    let esp = |name, spec| Case {
        name,
        spec,
        number_bits: 32,
        show: show_esp,
        steering: Steering::BySpi,
        begins_after: 0,
        own_sas: false,
    };
    vec![
        esp("ESP, AES-GCM", spec(Suite::AES128GCM16)),
        esp("ESP in UDP, ChaCha20", TunnelSpec { udp: true, esn: false, ..spec(Suite::CHACHA20POLY1305) }),
        esp("ESP over IPv6, CBC", TunnelSpec { outer: Version::V6, ..spec(Suite::AES256_SHA256) }),
        Case {
            begins_after: (1 << 32) - 700,
            ..esp("ESP across 2^32", TunnelSpec { window: 256, ..spec(Suite::AES256GCM16) })
        },
        Case { show: show_ah, ..esp("AH", TunnelSpec { protocol: IpsecProtocol::Ah, ..spec(ah) }) },
        Case { own_sas: true, ..esp("ESP, an SA for each worker", spec(Suite::AES128GCM16)) },
        Case {
            own_sas: true,
            show: show_ah,
            ..esp("AH, an SA for each worker", TunnelSpec { protocol: IpsecProtocol::Ah, ..spec(ah) })
        },
        of_vpe(),
        Case {
            name: "VPE in UDP, across 2^32",
            spec: TunnelSpec { udp: true, window: 64, ..of_vpe().spec },
            begins_after: (1 << 32) - 5,
            ..of_vpe()
        },
    ]
}

/// Windows of two classes at each worker.
pub fn of_vpe() -> Case {
    let rules = VpeRules::default().with_slots(VpeClasses::of_sets([&[URGENT][..]]), 0, 8);
    let rules = PacketRules { vpe: Some(Box::new(rules.expect("few"))), ..PacketRules::default() };
    Case {
        name: "VPE",
        spec: TunnelSpec { rules, ..vpe(Suite::ALL_FOR_VPE[0]) },
        number_bits: 64,
        show: show_vpe,
        steering: Steering::ByWindow { classes: CLASSES },
        begins_after: 0,
        own_sas: false,
    }
}

/// Numbers that workers share, and windows of their own, by a clock that has more ticks than there are
/// packets.
pub fn by_a_clock() -> [Case; 2] {
    let shared = Case { name: "ESP by a clock", ..all().remove(0) };
    [shared, Case { name: "VPE by a clock", ..of_vpe() }].map(|case| {
        let rules = PacketRules { clocked_packets_per_second: 10_000, ..case.spec.rules.clone() };
        Case { spec: TunnelSpec { rules, ..case.spec.clone() }, ..case }
    })
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// SPI, number, IV. Of CBC the IV is not a nonce, but its numbers are unique all the same.
fn show_esp(spec: &TunnelSpec, datagram: &[u8]) -> Shown {
    let at = esp_offset(spec);
    let mut nonce = [0; 16];
    let iv = spec.suite.iv_bytes();
    nonce[..iv].copy_from_slice(&datagram[at + 8..at + 8 + iv]);
    Shown { spi: word(datagram, at), count: 0, number: word(datagram, at + 4).into(), nonce }
}

/// The nonce is the header but for its SPI; each window of each sender has a count.
fn show_vpe(spec: &TunnelSpec, datagram: &[u8]) -> Shown {
    let bytes = &datagram[esp_offset(spec)..];
    let VpeHeader { sender, window, number, spi } = VpeHeader::parse(bytes).expect("a header of VPE");
    let mut nonce = [0; 16];
    nonce[..12].copy_from_slice(&bytes[..12]);
    Shown { spi, count: u32::from(sender) << 16 | u32::from(window), number, nonce }
}

/// AH has no nonce: its number must be unique.
fn show_ah(spec: &TunnelSpec, datagram: &[u8]) -> Shown {
    let at = esp_offset(spec) + 4;
    let mut nonce = [0; 16];
    nonce[..4].copy_from_slice(&datagram[at + 4..at + 8]);
    Shown { spi: word(datagram, at), count: 0, number: word(datagram, at + 4).into(), nonce }
}
