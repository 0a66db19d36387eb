//! The rows of the matrix.

use std::fmt;
use testudo_crypto::{NonceRule, Suite};

/// What protects the packets of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// ESP (RFC 4303) directly in IP.
    Esp,
    /// ESP in UDP (RFC 3948).
    EspInUdp,
    /// AH (RFC 4302).
    Ah,
    /// ESP, and AH in transport mode around it.
    AhAndEsp,
}

impl Protocol {
    /// All of them, in the order of the tables.
    pub const ALL: [Protocol; 4] = [Self::Esp, Self::EspInUdp, Self::Ah, Self::AhAndEsp];

    /// Its name in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Esp => "esp",
            Self::EspInUdp => "esp-in-udp",
            Self::Ah => "ah",
            Self::AhAndEsp => "ah+esp",
        }
    }

    /// Its suites, each with that of AH around ESP. Encapsulation in UDP does not touch what a suite does, so
    /// there the suites that gateways use most stand for all. The two suites of AH and ESP do not know each
    /// other, so each suite of ESP has one of AH beside it, in turns.
    fn suites(self) -> Vec<(Suite, Option<Suite>)> {
        let alone = |suite: &Suite| (*suite, None);
        match self {
            Self::Esp => Suite::ALL.iter().map(alone).collect(),
            Self::EspInUdp => Row::COMMON.iter().map(alone).collect(),
            Self::Ah => Suite::all_for_ah().map(|suite| (suite, None)).collect(),
            Self::AhAndEsp => {
                let of_ah: Vec<Suite> = Suite::all_for_ah().filter(|suite| !suite.is_combined()).collect();
                Suite::ALL.iter().zip(of_ah.iter().cycle()).map(|(esp, ah)| (*esp, Some(*ah))).collect()
            }
        }
    }
}

/// Tunnel or transport mode (RFC 4301 4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// Packets between networks, in packets between gateways.
    Tunnel,
    /// Packets between the two hosts themselves.
    Transport,
}

impl Mode {
    /// Both.
    pub const ALL: [Mode; 2] = [Self::Tunnel, Self::Transport];

    /// Its name in configurations and results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tunnel => "tunnel",
            Self::Transport => "transport",
        }
    }
}

/// One row: the settings that both ends of a tunnel share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Row {
    /// What protects the packets.
    pub protocol: Protocol,
    /// Tunnel or transport mode.
    pub mode: Mode,
    /// Whether IPv6 is outside.
    pub ipv6: bool,
    /// Extended sequence numbers (RFC 4303 2.2.1).
    pub esn: bool,
    /// The suite of ESP, or of AH alone.
    pub suite: Suite,
    /// The suite of AH around ESP.
    pub ah: Option<Suite>,
}

impl Row {
    /// The suites that gateways use most.
    pub const COMMON: [Suite; 6] = [
        Suite::AES128GCM16,
        Suite::AES256GCM16,
        Suite::CHACHA20POLY1305,
        Suite::AES128_SHA1,
        Suite::AES256_SHA256,
        Suite::NULL_SHA1,
    ];

    /// The names of its suites: `aes128gcm16`, of AH alone `sha256`, of both `aes128gcm16+sha256`.
    #[must_use]
    pub fn suites(&self) -> String {
        match (self.protocol, self.ah) {
            (Protocol::Ah, _) => ah_name(self.suite),
            (_, Some(ah)) => format!("{}+{}", self.suite, ah_name(ah)),
            (_, None) => self.suite.to_string(),
        }
    }

    /// The IP version outside, in results.
    #[must_use]
    pub const fn family(&self) -> &'static str {
        if self.ipv6 { "ipv6" } else { "ipv4" }
    }

    /// Whether a configuration takes its suites only knowingly, because RFC 8221 speaks against one.
    #[must_use]
    pub fn is_legacy(&self) -> bool {
        self.suite.is_legacy() || self.ah.is_some_and(Suite::is_legacy)
    }

    /// Whether its nonces are its sequence numbers (RFC 8750).
    #[must_use]
    pub fn has_counter_nonces(&self) -> bool {
        self.suite.nonce_rule() == NonceRule::Counter
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (protocol, mode) = (self.protocol.name(), self.mode.name());
        let esn = if self.esn { ", ESN" } else { "" };
        write!(f, "{protocol} {mode} {} over {}{esn}", self.suites(), self.family())
    }
}

/// The name of a suite of AH.
pub(super) fn ah_name(suite: Suite) -> String {
    suite.ah_name().map_or_else(|| suite.to_string(), str::to_owned)
}

/// Mode, IPv6, ESN: the cells of a table for each suite.
const CELLS: [(Mode, bool, bool); 8] = {
    use Mode::{Transport, Tunnel};
    [
        (Tunnel, false, false),
        (Tunnel, false, true),
        (Tunnel, true, false),
        (Tunnel, true, true),
        (Transport, false, false),
        (Transport, false, true),
        (Transport, true, false),
        (Transport, true, true),
    ]
};

/// Every row.
#[must_use]
pub fn all_rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for protocol in Protocol::ALL {
        for (mode, ipv6, esn) in CELLS {
            let row = |(suite, ah)| Row { protocol, mode, ipv6, esn, suite, ah };
            rows.extend(protocol.suites().into_iter().map(row));
        }
    }
    rows
}

/// A sample of them: every suite of ESP and of AH, and every protocol in every cell.
///
/// Suites take turns in the cells, with a step that has no factor in common with the number of a cipher's
/// variants, so that each cipher and each integrity algorithm is in both modes and over both versions. AH,
/// which has few suites, has each in both modes.
#[must_use]
pub fn sample() -> Vec<Row> {
    let mut rows = Vec::new();
    let mut add = |protocol: Protocol, suites: Vec<(Suite, Option<Suite>)>, turns: usize| {
        for turn in 0..turns {
            for (at, (suite, ah)) in suites.iter().enumerate() {
                let (mode, ipv6, esn) = CELLS[(at * 5 + at / 8 + turn * 4) % CELLS.len()];
                rows.push(Row { protocol, mode, ipv6, esn, suite: *suite, ah: *ah });
            }
        }
    };
    add(Protocol::Esp, Protocol::Esp.suites(), 1);
    add(Protocol::EspInUdp, Protocol::EspInUdp.suites(), 2);
    add(Protocol::Ah, Protocol::Ah.suites(), 2);
    let mut both = Protocol::AhAndEsp.suites();
    both.retain(|(esp, _)| Suite::EACH_PRIMITIVE.contains(esp));
    add(Protocol::AhAndEsp, both, 1);
    rows.sort();
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeSet, HashSet};

    #[test]
    fn every_suite_is_in_every_cell_once() {
        let rows = all_rows();
        assert_eq!(rows.iter().collect::<HashSet<_>>().len(), rows.len());
        let count = |protocol: Protocol| rows.iter().filter(|row| row.protocol == protocol).count();
        let (esp, ah) = (Suite::ALL.len(), Suite::all_for_ah().count());
        let expected = [8 * esp, 8 * Row::COMMON.len(), 8 * ah, 8 * esp];
        assert_eq!(Protocol::ALL.map(count), expected);
    }

    #[test]
    fn names_tell_all_rows_apart() {
        let names: BTreeSet<String> = all_rows().iter().map(Row::to_string).collect();
        assert_eq!(names.len(), all_rows().len());
        assert!(names.contains("ah transport sha256 over ipv6, ESN"), "{names:?}");
        assert!(names.iter().any(|name| name.starts_with("ah+esp tunnel aes256gcm16+")), "{names:?}");
    }

    #[test]
    fn the_sample_has_every_suite_and_every_protocol_in_every_cell() {
        let sample = sample();
        let all: HashSet<Row> = all_rows().into_iter().collect();
        assert!(sample.iter().all(|row| all.contains(row)));
        let suites = |protocol| -> BTreeSet<Suite> {
            sample.iter().filter(|row| row.protocol == protocol).map(|row| row.suite).collect()
        };
        assert_eq!(suites(Protocol::Esp).len(), Suite::ALL.len());
        assert_eq!(suites(Protocol::Ah).len(), Suite::all_for_ah().count());
        for protocol in [Protocol::Esp, Protocol::Ah, Protocol::AhAndEsp] {
            let cells: BTreeSet<_> = sample
                .iter()
                .filter(|row| row.protocol == protocol)
                .map(|row| (row.mode, row.ipv6, row.esn))
                .collect();
            assert_eq!(cells.len(), CELLS.len(), "{protocol:?}");
        }
        for suite in Suite::all_for_ah() {
            let modes: BTreeSet<_> = sample
                .iter()
                .filter(|row| row.protocol == Protocol::Ah && row.suite == suite)
                .map(|row| row.mode)
                .collect();
            assert_eq!(modes.len(), 2, "{suite}");
        }
    }
}
