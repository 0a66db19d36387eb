//! What the packets of a side come and go by: the kinds of ports, a file for the keys of each fast one.
//!
//! | kind | side | file |
//! | --- | --- | --- |
//! | `tun`, `socket`: [`PortKind::Host`] | protected, unprotected | `gateway` |
//! | `xdp` | both | `xdp` |
//! | `dpdk` | both | `dpdk` |

use super::dpdk::DpdkSettings;
use super::xdp::XdpSettings;

/// The kind of a port, with the settings of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortKind {
    /// The kernel's: TUN interfaces on the protected side, sockets on the unprotected one.
    Host,
    /// AF_XDP at an interface of the host.
    Xdp(XdpSettings),
    /// A device of DPDK's.
    Dpdk(Box<DpdkSettings>),
}

/// The kinds by name, before their settings are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KindName {
    Host,
    Xdp,
    Dpdk,
}

/// The words of the protected side.
pub(super) const PROTECTED: [(&str, KindName); 3] =
    [("tun", KindName::Host), ("xdp", KindName::Xdp), ("dpdk", KindName::Dpdk)];
/// The words of the unprotected side.
pub(super) const UNPROTECTED: [(&str, KindName); 3] =
    [("socket", KindName::Host), ("xdp", KindName::Xdp), ("dpdk", KindName::Dpdk)];

impl PortKind {
    /// Whether it is the kernel's.
    #[must_use]
    pub const fn is_host(&self) -> bool {
        matches!(self, Self::Host)
    }

    /// Its settings, if it is AF_XDP.
    #[must_use]
    pub const fn xdp(&self) -> Option<&XdpSettings> {
        match self {
            Self::Xdp(settings) => Some(settings),
            Self::Host | Self::Dpdk(_) => None,
        }
    }

    /// Its settings, if it is DPDK.
    #[must_use]
    pub fn dpdk(&self) -> Option<&DpdkSettings> {
        match self {
            Self::Dpdk(settings) => Some(settings),
            Self::Host | Self::Xdp(_) => None,
        }
    }
}
