//! What can go wrong before packets flow, each with what to do about it.

use std::io;

/// Why a TUN device could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The kernel cuts names at 15 bytes.
    #[error("'{name}' is no interface name: use 1 to 15 letters, digits, hyphens or underscores")]
    Name {
        /// The name as it was given.
        name: String,
    },
    /// There is no `/dev/net/tun`.
    #[error(
        "/dev/net/tun is missing: load the driver with `modprobe tun` as root (in a container, pass the device in)"
    )]
    NoDevice {
        /// What the system said.
        source: io::Error,
    },
    /// The device node or the interface may not be used.
    #[error(
        "not permitted to {action}: this needs CAP_NET_ADMIN (run as root, or `setcap cap_net_admin,cap_net_raw+ep` the program)"
    )]
    NotPermitted {
        /// What was tried.
        action: String,
        /// What the system said.
        source: io::Error,
    },
    /// Another program holds the interface.
    #[error(
        "the interface {name} is in use by another program (see `ip -details link show {name}`): stop it or choose another name"
    )]
    Busy {
        /// Name of the interface.
        name: String,
    },
    /// An interface of this name exists and is no TUN device, or one with other properties.
    #[error(
        "an interface {name} of another kind exists (see `ip -details link show {name}`): choose another name"
    )]
    OtherKind {
        /// Name of the interface.
        name: String,
    },
    /// Anything else that the operating system refused.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was tried.
        action: String,
        /// What the system said.
        source: io::Error,
    },
}

/// Why an interface could not be given its addresses, MTU or routes.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action}: {source}{hint}")]
pub struct ConfigureError {
    /// What was tried.
    pub action: String,
    /// What to do about it, with its punctuation; empty if that is not known.
    pub hint: String,
    /// What the kernel said.
    pub source: io::Error,
}

impl ConfigureError {
    pub(crate) fn new(action: impl Into<String>, source: io::Error) -> Self {
        let hint = match source.kind() {
            io::ErrorKind::PermissionDenied => " (this needs CAP_NET_ADMIN)",
            io::ErrorKind::AlreadyExists => {
                " (another interface has it: see `ip address`, `ip route show table all`)"
            }
            _ => "",
        };
        Self { action: action.into(), hint: hint.to_owned(), source }
    }
}
