//! What can go wrong before packets flow, each with what to do about it.

use std::io;
use std::net::{IpAddr, SocketAddr};

/// Why a socket could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another socket has the UDP port.
    #[error("UDP port {0} is already taken: find its owner with `ss -lunp`, stop it or choose another port")]
    PortTaken(SocketAddr),
    /// The address is not configured on this host.
    #[error("{0} is no address of this host (see `ip address`): add it, or correct the configuration")]
    NoSuchAddress(IpAddr),
    /// Raw sockets need a capability.
    #[error(
        "not permitted to {action}: this needs {capability} (run as root, or `setcap cap_net_admin,cap_net_raw+ep` the program)"
    )]
    NotPermitted {
        /// The action that failed.
        action: String,
        /// The capability that is needed.
        capability: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The interface to use does not exist.
    #[error("there is no interface {0} (see `ip link`)")]
    NoInterface(String),
    /// The kernel was built without IPv6, or IPv6 is switched off.
    #[error("this host has no IPv6, which {0} needs")]
    NoIpv6(IpAddr),
    /// The system refuses the mark alone.
    #[error("cannot {action}: {source} (this needs CAP_NET_ADMIN)")]
    NotMarked {
        /// The action that failed.
        action: String,
        /// The system's error.
        source: io::Error,
    },
    /// There is nothing to open.
    #[error("a socket port needs at least one endpoint")]
    NoEndpoint,
    /// Two endpoints of the same port are the same.
    #[error("the endpoint {0} is given twice")]
    Duplicate(String),
    /// A number of queues that endpoints cannot have.
    #[error("sockets can have 1 to 256 queues, not {queues}")]
    Queues {
        /// The requested number.
        queues: u32,
    },
    /// Some of the ports send alone.
    #[error("the number of queues does not change where some ports send alone")]
    Senders,
    /// Anything else that the operating system refused.
    #[error("cannot {action}: {source}")]
    Io {
        /// The action that failed.
        action: String,
        /// The system's error.
        source: io::Error,
    },
}
