//! What is measured: one cell of suites × sizes × directions × numbers of SAs × formations × engines.

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use testudo_crypto::{AesKey, Cipher, Integrity, ProposalError, Requirement, Suite};
use testudo_gateway::Formation;
use testudo_ipsec::{Encapsulation, IpsecProtocol};
use testudo_wire::vpe::VPE_UDP_PORT;

use super::load::{LARGEST_BYTES, SMALLEST_BYTES};

/// The suites of a measurement's tunnels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Suites {
    /// One suite for all tunnels.
    One(Suite),
    /// Tunnels are assigned in turn those that engines with bursts do; the packets are spread over the
    /// tunnels at random.
    Mixed,
    /// The same with those that PIPSEA has: with both directions its six combinations.
    Combinations,
    /// The same with one that processors are good at, AES-GCM, and one that they are bad at, 3DES.
    Contrast,
}

/// AES-128-CBC with HMAC-SHA1, and each alone (paper 002, 4.1).
pub(super) static COMBINATIONS: LazyLock<Vec<Suite>> = LazyLock::new(|| {
    let is_cbc = |suite: &Suite| suite.cipher() == Cipher::AesCbc(AesKey::Aes128);
    let is_null = |suite: &Suite| suite.cipher() == Cipher::Null;
    let of = |pick: &dyn Fn(&Suite) -> bool, integrity| {
        Suite::measurable().find(|suite| pick(suite) && suite.integrity() == integrity)
    };
    let sha1 = Integrity::HmacSha1;
    let all = [of(&is_cbc, sha1), of(&is_cbc, Integrity::None), of(&is_null, sha1)];
    all.into_iter().flatten().collect()
});

/// AES-128-GCM, and 3DES with HMAC-SHA1.
pub(super) static CONTRAST: LazyLock<Vec<Suite>> = LazyLock::new(|| {
    let is_3des =
        |suite: &Suite| suite.cipher() == Cipher::TripleDesCbc && suite.integrity() == Integrity::HmacSha1;
    [Suite::AES128GCM16].into_iter().chain(Suite::measurable().find(is_3des)).collect()
});

/// The suites of a mixture, which engines with bursts do: AEADs with ICVs of 16 bytes, and AES-CBC and NULL
/// with HMAC of SHA-1 and SHA-256; all with keys of 128 or 256 bits.
pub(super) static MIXED: LazyLock<Vec<Suite>> = LazyLock::new(|| {
    use AesKey::{Aes128, Aes256};
    let is_in = |suite: &Suite| match suite.cipher() {
        Cipher::AesGcm(Aes128 | Aes256) | Cipher::ChaCha20Poly1305 => suite.icv_bytes() == 16,
        Cipher::AesCbc(Aes128 | Aes256) | Cipher::Null => {
            matches!(suite.integrity(), Integrity::HmacSha1 | Integrity::HmacSha256)
        }
        _ => false,
    };
    Suite::ALL.iter().copied().filter(is_in).collect()
});

impl Suites {
    /// The suites in use, each once.
    pub(super) fn all(&self) -> &[Suite] {
        match self {
            Suites::One(suite) => std::slice::from_ref(suite),
            Suites::Mixed => &MIXED,
            Suites::Combinations => &COMBINATIONS,
            Suites::Contrast => &CONTRAST,
        }
    }

    /// The suite of one tunnel.
    pub(super) fn of(self, tunnel: u32) -> Suite {
        match self {
            Suites::One(suite) => suite,
            Suites::Mixed => MIXED[tunnel as usize % MIXED.len()],
            Suites::Combinations => COMBINATIONS[tunnel as usize % COMBINATIONS.len()],
            Suites::Contrast => CONTRAST[tunnel as usize % CONTRAST.len()],
        }
    }
}

impl fmt::Display for Suites {
    /// Name on the command line, in tables and JSON.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Suites::One(suite) => suite.fmt(f),
            Suites::Mixed => f.pad("mixed"),
            Suites::Combinations => f.pad("combinations"),
            Suites::Contrast => f.pad("contrast"),
        }
    }
}

impl FromStr for Suites {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        if name == "mixed" {
            return Ok(Suites::Mixed);
        }
        Suite::for_measurement(name)
            .map(Suites::One)
            .map_err(|error: ProposalError| format!("{error}; or mixed, or all"))
    }
}

/// What `--suites` names: one choice of suites, or each in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wanted {
    /// This one.
    Only(Suites),
    /// Each that an engine may do, ciphers without authentication included.
    All,
}

impl Wanted {
    /// The suites that are measured where nothing is said: those that RFC 8221 recommends.
    pub(super) fn recommended() -> impl Iterator<Item = Suites> {
        let is_in = |suite: &Suite| suite.requirement() <= Requirement::Should;
        Suite::ALL.iter().copied().filter(is_in).map(Suites::One)
    }

    pub(super) fn each(self) -> Vec<Suites> {
        match self {
            Wanted::Only(suites) => vec![suites],
            Wanted::All => Suite::measurable().map(Suites::One).collect(),
        }
    }
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        if name == "all" { Ok(Wanted::All) } else { name.parse().map(Wanted::Only) }
    }
}

/// Lengths of inner packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Size {
    /// One length for all, in bytes of the whole inner IP packet.
    Bytes(usize),
    /// Intel's Internet mix: of 98 packets 60 with 46, 23 with 522, 15 with 1346 bytes (Ethernet frames of
    /// 64, 540, 1364).
    Imix,
    /// Any length from 46 to 1420 bytes, all equally likely.
    Random,
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "imix" => return Ok(Size::Imix),
            "random" => return Ok(Size::Random),
            _ => {}
        }
        let bytes = text.parse().ok().filter(|bytes| (SMALLEST_BYTES..=LARGEST_BYTES).contains(bytes));
        let expected =
            || format!("expected a length from {SMALLEST_BYTES} to {LARGEST_BYTES} bytes, imix, or random");
        bytes.map(Size::Bytes).ok_or_else(expected)
    }
}

impl Size {
    fn unit(self) -> &'static str {
        if matches!(self, Size::Bytes(_)) { " bytes" } else { "" }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Size::Bytes(bytes) => write!(f, "{bytes}"),
            Size::Imix => f.write_str("imix"),
            Size::Random => f.write_str("random"),
        }
    }
}

/// Direction of packets through the gateway.
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

/// Order of the jobs given to an engine that works on several at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, clap::ValueEnum)]
pub enum Order {
    /// In the order of their packets
    None,
    /// By suite
    Suite,
    /// By suite and length
    #[default]
    Length,
}

impl Order {
    /// Name on the command line, in tables and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Order::None => "none",
            Order::Suite => "suite",
            Order::Length => "length",
        }
    }

    pub(super) fn formation(self) -> Formation {
        match self {
            Order::None => Formation::None,
            Order::Suite => Formation::Suite,
            Order::Length => Formation::SuiteAndLength,
        }
    }
}

/// Encapsulation of ESP, or VPE in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Carrier {
    /// As IP protocol 50
    Esp,
    /// In UDP, port 4500
    EspInUdp,
    /// VPE, as IP protocol 253
    Vpe,
    /// VPE in UDP, port 4501
    VpeInUdp,
}

impl Carrier {
    /// Name on the command line, in tables and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Carrier::Esp => "esp",
            Carrier::EspInUdp => "esp-in-udp",
            Carrier::Vpe => "vpe",
            Carrier::VpeInUdp => "vpe-in-udp",
        }
    }

    pub(super) fn encapsulation(self) -> Encapsulation {
        match self {
            Carrier::Esp | Carrier::Vpe => Encapsulation::Esp,
            Carrier::EspInUdp => Encapsulation::EspInUdp { local_port: 4500, remote_port: 4500 },
            Carrier::VpeInUdp => {
                Encapsulation::EspInUdp { local_port: VPE_UDP_PORT, remote_port: VPE_UDP_PORT }
            }
        }
    }

    pub(super) fn protocol(self) -> IpsecProtocol {
        match self {
            Carrier::Esp | Carrier::EspInUdp => IpsecProtocol::Esp,
            Carrier::Vpe | Carrier::VpeInUdp => IpsecProtocol::Vpe,
        }
    }

    /// The suite as this encapsulation has it; `None` if it does not.
    pub(super) fn suite(self, suite: Suite) -> Option<Suite> {
        match self.protocol() {
            IpsecProtocol::Vpe => suite.for_vpe(),
            _ => Some(suite),
        }
    }
}

/// One thing to measure; `engine` is an index into the list of engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) suites: Suites,
    pub(super) way: Way,
    pub(super) size: Size,
    pub(super) sas: u32,
    /// Policies in total; those that are not the tunnels' own precede them.
    pub(super) policies: u32,
    pub(super) carrier: Carrier,
    pub(super) order: Order,
    /// Whether numbers have 64 bits.
    pub(super) esn: bool,
    pub(super) engine: usize,
    /// Engines of one gateway that places jobs by what they cost, a bit for each; 0 if it has `engine` alone.
    pub(super) placed: u32,
}

impl Case {
    /// The engines of its gateway, by their indices.
    pub(super) fn engines(&self) -> Vec<usize> {
        match self.placed {
            0 => vec![self.engine],
            placed => (0..32).filter(|engine| placed >> engine & 1 == 1).collect(),
        }
    }

    /// Whether jobs are placed by what they cost.
    pub(super) fn is_placed(&self) -> bool {
        self.placed != 0
    }

    /// Number of SAs, and of policies if there are more than the tunnels' own.
    pub(super) fn scale(&self) -> String {
        let sas = plural(self.sas);
        if self.policies == self.sas { sas } else { format!("{sas}, {} policies", self.policies) }
    }
}

impl fmt::Display for Case {
    /// Everything but the engine and default settings.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { suites, way, size, carrier, order, .. } = self;
        let (bytes, sas) = (size.unit(), self.scale());
        write!(f, "{suites} {}, {size}{bytes}, {sas}, {}", way.name(), carrier.name())?;
        if *order == Order::default() { Ok(()) } else { write!(f, ", formation {}", order.name()) }
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
        assert_eq!("random".parse(), Ok(Size::Random));
        for wrong in ["27", "70000", "-1", "IMIX", ""] {
            assert!(wrong.parse::<Size>().unwrap_err().starts_with("expected a length from 28"), "{wrong}");
        }
    }

    #[test]
    fn mixed_tunnels_take_turns_over_all_suites() {
        assert_eq!("mixed".parse(), Ok(Suites::Mixed));
        let turns: Vec<Suite> = (0..).take(2 * MIXED.len()).map(|tunnel| Suites::Mixed.of(tunnel)).collect();
        assert_eq!(turns, [MIXED.as_slice(), MIXED.as_slice()].concat());
        for &suite in Suite::ALL {
            assert_eq!(suite.to_string().parse(), Ok(Suites::One(suite)));
            assert_eq!((Suites::One(suite).of(5), Suites::One(suite).all()), (suite, &[suite][..]));
        }
        assert!("MIXED".parse::<Suites>().unwrap_err().ends_with("null; or mixed, or all"));
        assert_eq!(MIXED.len(), 9);
    }

    #[test]
    fn all_suites_are_measured_where_that_is_wanted_and_ciphers_alone_too() {
        let all = "all".parse::<Wanted>().unwrap().each();
        assert_eq!(all.len(), Suite::ALL.len() + 8);
        let alone = "aes256ctr-none".parse::<Wanted>().unwrap().each();
        assert!(alone.len() == 1 && all.contains(&alone[0]));
        let usual: Vec<_> = Wanted::recommended().map(|suites| suites.to_string()).collect();
        assert!(usual.contains(&"aes128gcm16".to_owned()) && usual.contains(&"aes256-sha512".to_owned()));
        assert!(usual.iter().all(|name| !name.contains("des") && !name.contains("192")), "{usual:?}");
    }
}
