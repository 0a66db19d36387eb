//! What is measured: one cell of suites × sizes × directions × numbers of SAs × engines.

use std::fmt;
use std::str::FromStr;

use testudo_crypto::Suite;
use testudo_ipsec::Encapsulation;

use super::load::{LARGEST_BYTES, SMALLEST_BYTES};

/// How long inner packets are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Size {
    /// All alike, in bytes of the whole inner IP packet.
    Bytes(usize),
    /// Intel's Internet mix: of 98 packets 60 with 46, 23 with 522, 15 with 1346 bytes (Ethernet frames of 64, 540, 1364).
    Imix,
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "imix" {
            return Ok(Size::Imix);
        }
        let bytes = text.parse().ok().filter(|bytes| (SMALLEST_BYTES..=LARGEST_BYTES).contains(bytes));
        let expected =
            || format!("expected a length from {SMALLEST_BYTES} to {LARGEST_BYTES} bytes, or imix");
        bytes.map(Size::Bytes).ok_or_else(expected)
    }
}

impl Size {
    fn unit(self) -> &'static str {
        if self == Size::Imix { "" } else { " bytes" }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Size::Bytes(bytes) => write!(f, "{bytes}"),
            Size::Imix => f.write_str("imix"),
        }
    }
}

/// Which way packets go through the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Way {
    /// From the protected side: sealed
    Outbound,
    /// From the unprotected side: opened
    Inbound,
}

impl Way {
    /// Name on the command line, in tables and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Way::Outbound => "outbound",
            Way::Inbound => "inbound",
        }
    }
}

/// How ESP travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Carrier {
    /// As IP protocol 50
    Esp,
    /// In UDP, port 4500
    EspInUdp,
}

impl Carrier {
    /// Name on the command line, in tables and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Carrier::Esp => "esp",
            Carrier::EspInUdp => "esp-in-udp",
        }
    }

    pub(super) fn encapsulation(self) -> Encapsulation {
        match self {
            Carrier::Esp => Encapsulation::Esp,
            Carrier::EspInUdp => Encapsulation::EspInUdp { local_port: 4500, remote_port: 4500 },
        }
    }
}

/// One thing to measure; the engine is told by its place in the list of engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) suite: Suite,
    pub(super) way: Way,
    pub(super) size: Size,
    pub(super) sas: u32,
    pub(super) carrier: Carrier,
    pub(super) engine: usize,
}

impl fmt::Display for Case {
    /// All but the engine.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { suite, way, size, sas, carrier, .. } = self;
        let (bytes, sas) = (size.unit(), plural(*sas));
        write!(f, "{suite} {}, {size}{bytes}, {sas}, {}", way.name(), carrier.name())
    }
}

/// "1 SA", "2 SAs".
pub(super) fn plural(sas: u32) -> String {
    if sas == 1 { "1 SA".to_owned() } else { format!("{sas} SAs") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_a_length_or_the_mix() {
        assert_eq!("1420".parse(), Ok(Size::Bytes(1420)));
        assert_eq!("imix".parse(), Ok(Size::Imix));
        for wrong in ["27", "70000", "-1", "IMIX", ""] {
            assert!(wrong.parse::<Size>().unwrap_err().starts_with("expected a length from 28"), "{wrong}");
        }
    }
}
