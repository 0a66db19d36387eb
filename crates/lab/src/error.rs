//! Errors of the laboratory.

use std::io;
use std::time::Duration;

use crate::namespaces::NamespaceError;

/// Why a demonstration or a measurement could not be completed. The text is for the user.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// The private network could not be built.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// A required program is not installed.
    #[error("the program '{program}' is missing: install the package {package}, or run `make setup`")]
    MissingProgram {
        /// Its name on the path.
        program: &'static str,
        /// The Debian package that contains it.
        package: &'static str,
    },
    /// No IKE daemon is installed.
    #[error(
        "--ike needs strongSwan's charon-systemd and swanctl, which are not installed: `sudo apt install {packages}`. \
         Debian starts a charon for this host then, which the demonstration does not need: `sudo systemctl disable \
         --now strongswan` ends it"
    )]
    MissingDaemon {
        /// The Debian packages that contain it.
        packages: &'static str,
    },
    /// The library that leads daemons to a gateway is not there.
    #[error(
        "--ike needs libtestudo-xfrm.so, which is neither beside the program nor installed: `make install` installs \
         it, `scripts/shim.sh FOLDER` builds it, `--library FILE` names it"
    )]
    MissingLibrary,
    /// Transport mode protects packets of the gateways' hosts, which come by TUN interfaces alone.
    #[error("--mode transport is between the gateways themselves: it needs --port tun")]
    NoTransport,
    /// The operating system refused a call.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was attempted.
        action: String,
        /// The system's error.
        source: io::Error,
    },
    /// A program that we run exited or reported an error.
    #[error("{program} {complaint}")]
    Program {
        /// Which one, such as "gateway A".
        program: String,
        /// How it exited, and its message.
        complaint: String,
    },
    /// An event did not happen in time.
    #[error("{what} within {} seconds", limit.as_secs_f32())]
    TooLate {
        /// What did not happen, such as "gateway A did not become ready".
        what: String,
        /// The time limit.
        limit: Duration,
    },
    /// The kernel makes no link of a set rate.
    #[error("no link of a set rate can be made: {0}")]
    NoRate(NamespaceError),
    /// A stream that was to cross the link did not.
    #[error("{received} bytes of TCP were received, and {crossed} came by the link: they took another way")]
    AnotherWay {
        /// Bytes of user data that the receiver counted.
        received: u64,
        /// Bytes that came by the link.
        crossed: u64,
    },
    /// Data was altered in the network.
    #[error("corrupted data: {0}")]
    Corrupted(String),
}

impl LabError {
    /// Whether this machine lacks a device, a program or a right, so that no other attempt would do better.
    pub(crate) fn is_of_the_machine(&self) -> bool {
        match self {
            Self::MissingProgram { .. } | Self::NoRate(_) => true,
            Self::Namespace(error) => matches!(
                error,
                NamespaceError::Forbidden { .. }
                    | NamespaceError::NotRoot(_)
                    | NamespaceError::MissingProgram { .. }
                    | NamespaceError::Tun { .. }
            ),
            _ => false,
        }
    }
}

/// Wraps an I/O error with what was attempted: `file.read(…).map_err(io("read the capture"))`.
pub(crate) fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> LabError {
    let action = action.into();
    move |source| LabError::Io { action, source }
}
