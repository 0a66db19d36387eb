//! Who stands at the other end of a row.

use std::fmt;

/// Another implementation of IPsec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Peer {
    /// The Linux kernel, configured with `ip xfrm`.
    Linux,
    /// Scapy's security associations, and what it lacks written down from the RFCs (`tests/scapy`).
    Scapy,
}

impl Peer {
    /// All of them, in the order of the tables.
    pub const ALL: [Peer; 2] = [Self::Linux, Self::Scapy];

    /// Its name in options and results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Linux => "linux",
            Self::Scapy => "scapy",
        }
    }

    /// The peer of this name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|peer| peer.name() == name)
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Linux => "Linux",
            Self::Scapy => "Scapy",
        })
    }
}
