//! What the packets of a side come and go by: the kinds of ports, a file for the keys of each fast one.
//!
//! | kind | side | file |
//! | --- | --- | --- |
//! | `tun`, `socket`: [`PortKind::Host`] | protected, unprotected | `gateway` |
//! | `xdp` | both | `xdp` |

use super::xdp::XdpSettings;

/// The kind of a port, with the settings of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortKind {
    /// The kernel's: TUN interfaces on the protected side, sockets on the unprotected one.
    Host,
    /// AF_XDP at an interface of the host.
    Xdp(XdpSettings),
}

/// The kinds by name, before their settings are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KindName {
    Host,
    Xdp,
}

/// The words of the protected side.
pub(super) const PROTECTED: [(&str, KindName); 2] = [("tun", KindName::Host), ("xdp", KindName::Xdp)];
/// The words of the unprotected side.
pub(super) const UNPROTECTED: [(&str, KindName); 2] = [("socket", KindName::Host), ("xdp", KindName::Xdp)];

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
            Self::Host => None,
        }
    }
}
