//! What a device that does cryptography has done with a packet, or is to do.

/// A mark on a packet between the gateway and a NIC that does IPsec itself (inline crypto). The number names
/// a session of that device, of which each direction has its own; that of a session that ended is not given
/// to another while a packet may still bear it.
///
/// ```text
///   none
///   to be sealed under session n      the NIC encrypts it and fills in its ICV as it leaves; in memory it is clear
///   opened under session n            the NIC has decrypted it, and says that its ICV is right
///   refused under session n           the NIC says that its ICV is wrong
/// ```
///
/// A packet that is to be sealed leaves by the port of its session or not at all. What a mark on a received
/// packet is worth, the engine of that device decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Mark(u16);

/// What a [`Mark`] says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MarkKind {
    /// Nothing.
    None,
    /// To be sealed by the device.
    Seal,
    /// Opened by the device.
    Opened,
    /// The device found its ICV wrong.
    Refused,
}

/// Where a mark has its kind.
const KIND_AT: u32 = 14;

impl Mark {
    /// No mark.
    pub const NONE: Self = Self(0);

    /// How many sessions marks can name in each direction.
    pub const SESSIONS: u16 = 1 << KIND_AT;

    /// To be sealed under a session.
    #[must_use]
    #[inline]
    pub const fn seal_under(session: u16) -> Self {
        Self::new(1, session)
    }

    /// Opened under a session.
    #[must_use]
    #[inline]
    pub const fn opened_under(session: u16) -> Self {
        Self::new(2, session)
    }

    /// Refused under a session.
    #[must_use]
    #[inline]
    pub const fn refused_under(session: u16) -> Self {
        Self::new(3, session)
    }

    /// # Panics
    /// If a mark cannot name the session.
    #[inline]
    const fn new(kind: u16, session: u16) -> Self {
        assert!(session < Self::SESSIONS, "a mark names 2^14 sessions");
        Self(kind << KIND_AT | session)
    }

    /// What it says.
    #[must_use]
    #[inline]
    pub const fn kind(self) -> MarkKind {
        match self.0 >> KIND_AT {
            0 => MarkKind::None,
            1 => MarkKind::Seal,
            2 => MarkKind::Opened,
            _ => MarkKind::Refused,
        }
    }

    /// The session that it names; 0 where there is no mark.
    #[must_use]
    #[inline]
    pub const fn session(self) -> u16 {
        self.0 & (Self::SESSIONS - 1)
    }

    /// Whether the packet is clear in memory and a device is to seal it.
    #[must_use]
    #[inline]
    pub const fn is_to_be_sealed(self) -> bool {
        self.0 >> KIND_AT == 1
    }

    #[inline(always)]
    pub(crate) const fn bits(self) -> u16 {
        self.0
    }

    #[inline(always)]
    pub(crate) const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_keeps_its_kind_and_its_session() {
        for session in [0, 1, 1023, Mark::SESSIONS - 1] {
            let marks = [Mark::seal_under, Mark::opened_under, Mark::refused_under].map(|mark| mark(session));
            let kinds = marks.map(|mark| (mark.kind(), mark.is_to_be_sealed()));
            let expected = [(MarkKind::Seal, true), (MarkKind::Opened, false), (MarkKind::Refused, false)];
            assert_eq!((kinds, marks.map(Mark::session)), (expected, [session; 3]));
        }
        assert_eq!((Mark::NONE.kind(), Mark::default()), (MarkKind::None, Mark::NONE));
    }

    #[test]
    #[should_panic(expected = "a mark names 2^14 sessions")]
    fn a_session_that_no_mark_can_name_is_a_mistake() {
        let _never = Mark::seal_under(Mark::SESSIONS);
    }
}
