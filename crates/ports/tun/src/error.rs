//! What can go wrong before packets flow, each with what to do about it.

use std::io;

/// Why a TUN device could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The kernel cuts names at 15 bytes.
    #[error("'{name}' is no interface name: use 1 to 15 letters, digits, hyphens or underscores")]
    Name {
        /// The requested name.
        name: String,
    },
    /// There is no `/dev/net/tun`.
    #[error(
        "/dev/net/tun is missing: load the driver with `modprobe tun` as root (in a container, pass the device in)"
    )]
    NoDevice {
        /// The system's error.
        source: io::Error,
    },
    /// Permission to use the device node or the interface is missing.
    #[error(
        "not permitted to {action}: this needs CAP_NET_ADMIN (run as root, or `setcap cap_net_admin,cap_net_raw+ep` the program)"
    )]
    NotPermitted {
        /// The action that failed.
        action: String,
        /// The system's error.
        source: io::Error,
    },
    /// Another program has the interface open.
    #[error(
        "the interface {name} is in use by another program (see `ip -details link show {name}`): stop it or choose another name"
    )]
    Busy {
        /// Name of the interface.
        name: String,
    },
    /// An interface of this name exists that is no TUN device, or has other properties.
    #[error(
        "an interface {name} of another kind exists (see `ip -details link show {name}`): choose another name"
    )]
    OtherKind {
        /// Name of the interface.
        name: String,
    },
    /// The interface exists, and cannot have several queues.
    #[error(
        "the interface {name} exists with a single queue, so that only one worker can serve it: remove it (`ip link delete {name}`) or make it with `ip tuntap add dev {name} mode tun multi_queue vnet_hdr`, or use one worker"
    )]
    SingleQueue {
        /// Name of the interface.
        name: String,
    },
    /// The interface exists with several queues, and one without was wanted.
    #[error(
        "the interface {name} exists with several queues: remove it (`ip link delete {name}`), or use several workers"
    )]
    SeveralQueues {
        /// Name of the interface.
        name: String,
    },
    /// A number of queues that no interface can have.
    #[error("a TUN interface has 1 to 256 queues, not {queues}")]
    Queues {
        /// The requested number.
        queues: u32,
    },
    /// Anything else that the operating system refused.
    #[error("cannot {action}: {source}")]
    Io {
        /// The action that failed.
        action: String,
        /// The system's error.
        source: io::Error,
    },
}

/// Why the queues of an interface could not become more or fewer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddError {
    /// There would be none.
    #[error("the interface {name} has one queue, which stays")]
    LastQueue {
        /// Name of the interface.
        name: String,
    },
    /// The new queue could not be opened.
    #[error(transparent)]
    Open(OpenError),
    /// The kernel spreads the flows, over all queues.
    #[error("flows of {name} stay with all of its queues: {why}")]
    NotSteered {
        /// Name of the interface.
        name: String,
        /// Why the program is not in force.
        why: String,
    },
    /// The flows could not be moved.
    #[error("cannot move flows between queues of {name}: {source}")]
    Steer {
        /// Name of the interface.
        name: String,
        /// The system's error.
        source: io::Error,
    },
}

/// Why an interface could not be given its addresses, MTU or routes.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action}: {source}{hint}")]
pub struct ConfigureError {
    /// The action that failed.
    pub action: String,
    /// What to do about it, with its punctuation; empty if that is not known.
    pub hint: String,
    /// The kernel's error.
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
