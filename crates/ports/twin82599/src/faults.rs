//! How a twin fails.

/// How often, in a million, each of these happens. What lies is a device that no software can rely on without
/// looking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Faults {
    /// A session is not made, or does not end, although it could.
    pub calls: u32,
    /// A call of `tx` takes nothing.
    pub busy: u32,
    /// A call of `tx` resets the device first, or after some of its packets.
    pub resets: u32,
    /// A call of `rx` resets the device first.
    pub receive_resets: u32,
    /// A call of `tx` finds the table of what is sent empty, and the device does not say so.
    pub lost_tables: u32,
    /// A call of `rx` gives its packets only with a later one.
    pub late: u32,
    /// An opened packet comes without a mark.
    pub unmarked: u32,
    /// Lie: a packet comes as it was received, with the mark of one that was opened.
    pub closed_as_opened: u32,
    /// Lie: a packet that is authentic comes as it was received, with the mark of a forgery.
    pub opened_as_refused: u32,
    /// Lie: an opened packet has the mark of another session.
    pub other_session: u32,
    /// Lie: an opened packet has a wrong byte.
    pub wrong_text: u32,
    /// Lie: a packet is sealed with a wrong byte.
    pub wrong_seal: u32,
}

impl Faults {
    /// Fails often, and never lies.
    pub const OFTEN: Self = Self {
        calls: 200_000,
        busy: 20_000,
        resets: 10_000,
        receive_resets: 2_000,
        lost_tables: 10_000,
        late: 20_000,
        unmarked: 1_000,
        closed_as_opened: 0,
        opened_as_refused: 0,
        other_session: 0,
        wrong_text: 0,
        wrong_seal: 0,
    };

    /// Sets wrong flags as well: each is one that software can see through without losing the packet.
    pub const WRONG_FLAGS: Self =
        Self { closed_as_opened: 5_000, opened_as_refused: 5_000, other_session: 5_000, ..Self::OFTEN };
}
