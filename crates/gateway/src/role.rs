//! Which side a worker takes packets from.
//!
//! ```text
//!   protected side ──► encrypt ──► unprotected side
//!   protected side ◄── decrypt ◄── unprotected side
//! ```
//!
//! A worker sends to both sides whatever its role: an encrypting one answers the hosts of the protected side,
//! a decrypting one probes the paths of the packets that it opens.

use crate::worker::Worker;
use std::fmt;

/// Which side a worker takes packets from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Role {
    /// The protected side alone.
    Encrypt,
    /// The unprotected side alone.
    Decrypt,
    /// Both sides.
    #[default]
    Both,
}

impl Role {
    /// Each, in the order of their declaration.
    pub const ALL: [Self; 3] = [Self::Encrypt, Self::Decrypt, Self::Both];

    /// Whether it takes packets from the protected side.
    #[must_use]
    pub const fn encrypts(self) -> bool {
        matches!(self, Self::Encrypt | Self::Both)
    }

    /// Whether it takes packets from the unprotected side.
    #[must_use]
    pub const fn decrypts(self) -> bool {
        matches!(self, Self::Decrypt | Self::Both)
    }

    /// Its name in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Encrypt => "encrypt",
            Self::Decrypt => "decrypt",
            Self::Both => "both",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Worker {
    /// Gives it a role, once, before it runs; without one it takes packets from both sides.
    pub fn set_role(&mut self, role: Role) {
        self.role = role;
        self.counters.set_role(role);
    }

    /// Which side it takes packets from.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// Whether nothing, or nothing more, is to be taken from the protected side.
    pub(crate) fn takes_no_outbound(&self) -> bool {
        self.draining || !self.role.encrypts()
    }
}
