//! The interfaces of the protected side.

/// An interface of the protected side, by its number: the main one, or one of those whose packets meet only
/// its own policies (route-based VPN; XFRM interfaces of Linux).
///
/// A packet of the unprotected side has none until it is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Interface(pub u8);

impl Interface {
    /// The interface of everything that names none.
    pub const MAIN: Self = Self(0);
    /// Interfaces at most, with numbers from 0 on: one number is left for what has none.
    pub const MOST: usize = u8::MAX as usize;
    /// What has none: a packet of the unprotected side that no SA has yet, where there are several
    /// interfaces.
    pub const NONE: Self = Self(u8::MAX);
}
