//! Sessions by their numbers, of which each direction has its own.
//!
//! A number that was used goes to the end of a queue, and comes back when all others have been used. It does
//! not even enter the queue while a packet bears it, or while the device may still have its session.

use std::collections::VecDeque;
use testudo_crypto::{Direction, KeyId, SaFacts};
use testudo_packet::Mark;

/// The number of no session: of a mark that is not to be believed. Sessions of the test at start-up have it.
pub(crate) const NOBODYS: u16 = Mark::SESSIONS - 1;

/// What has become of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// The device has it.
    Live,
    /// It was ended by us.
    Closed,
    /// The device has lost it.
    Lost,
}

/// A session, and what remains of it.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) facts: SaFacts,
    pub(crate) direction: Direction,
    /// The id by which jobs name it.
    pub(crate) key: KeyId,
    /// The SA's key in the software engine, for sealing.
    pub(crate) software: KeyId,
    pub(crate) state: State,
    /// Whether the device may have it, although it was ended here.
    pub(crate) lingers: bool,
    /// Whether jobs may come under [`key`](Self::key).
    pub(crate) has_key: bool,
    /// Packets that bear its number and are to be sealed.
    pub(crate) marked: u64,
    /// How often the port had given all that it had, when the device ended this or lost it.
    pub(crate) closed_at: u64,
    /// Packets that the device opened, and that it should have opened since it last did.
    pub(crate) opened: u64,
    pub(crate) missed: u32,
}

impl Session {
    fn is_over(&self) -> bool {
        !self.has_key && !self.lingers && self.marked == 0
    }
}

/// The sessions of one direction.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    by_number: Vec<Option<Box<Session>>>,
    free: VecDeque<u16>,
    /// Sessions that the device has.
    pub(crate) live: usize,
    /// Makes ids differ that name the same number at different times.
    serial: u32,
}

/// Where an id has the bit that tells directions apart, above the number.
const DIRECTION_AT: u32 = 14;
const SERIAL_AT: u32 = 15;

impl Sessions {
    /// A number that no packet bears; `None` if there is none.
    pub(crate) fn next_number(&self) -> Option<u16> {
        let unused = u16::try_from(self.by_number.len()).ok().filter(|number| *number < NOBODYS);
        unused.or_else(|| self.free.front().copied())
    }

    /// Puts a session under the [next number](Self::next_number), and gives it its id.
    pub(crate) fn insert(&mut self, number: u16, mut session: Session) -> KeyId {
        // Never all ones, which with a number of all ones would be the id of no key.
        self.serial = (self.serial + 1) % (u32::MAX >> SERIAL_AT);
        let direction = u32::from(session.direction == Direction::Open) << DIRECTION_AT;
        session.key = KeyId(self.serial << SERIAL_AT | direction | u32::from(number));
        let key = session.key;
        self.live += 1;
        let session = Some(Box::new(session));
        match self.by_number.get_mut(usize::from(number)) {
            Some(place) => {
                self.free.pop_front();
                *place = session;
            }
            None => self.by_number.push(session),
        }
        key
    }

    pub(crate) fn get_mut(&mut self, number: u16) -> Option<&mut Session> {
        self.by_number.get_mut(usize::from(number))?.as_deref_mut()
    }

    /// The session of an id, as long as jobs may come under it.
    pub(crate) fn of_key(&mut self, key: KeyId) -> Option<(u16, &mut Session)> {
        let number = number_of(key);
        let session = self.get_mut(number).filter(|session| session.key == key && session.has_key)?;
        Some((number, session))
    }

    /// Takes a session from the device's account.
    pub(crate) fn leave(&mut self, number: u16, state: State) {
        if let Some(session) = self.get_mut(number).filter(|session| session.state == State::Live) {
            session.state = state;
            self.live -= 1;
        }
    }

    /// All sessions of the device are gone. Ends the records that were there only because the device might
    /// have had their sessions; their keys in the software engine.
    pub(crate) fn lose_all(&mut self, drained: u64) -> Vec<KeyId> {
        for session in self.by_number.iter_mut().flatten() {
            if std::mem::take(&mut session.lingers) {
                session.closed_at = drained;
            }
            if session.state == State::Live {
                session.state = State::Lost;
            }
        }
        self.live = 0;
        let numbers = 0..u16::try_from(self.by_number.len()).unwrap_or(u16::MAX);
        numbers.filter_map(|number| self.settle(number)).collect()
    }

    /// Ends the record of a session if nothing names it any more; its key in the software engine.
    pub(crate) fn settle(&mut self, number: u16) -> Option<KeyId> {
        let place = self.by_number.get_mut(usize::from(number))?;
        let ended = place.take_if(|session| session.is_over())?;
        self.free.push_back(number);
        Some(ended.software)
    }

    /// A session that the device may have although it was ended.
    pub(crate) fn lingering(&self) -> Option<u16> {
        let lingers =
            |session: &Option<Box<Session>>| session.as_ref().is_some_and(|session| session.lingers);
        (0..).zip(&self.by_number).find(|(_, session)| lingers(session)).map(|(number, _)| number)
    }
}

pub(crate) fn number_of(key: KeyId) -> u16 {
    u16::try_from(key.0 & ((1 << DIRECTION_AT) - 1)).unwrap_or_default()
}

pub(crate) fn direction_of(key: KeyId) -> Direction {
    if key.0 >> DIRECTION_AT & 1 == 0 { Direction::Seal } else { Direction::Open }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;
    use testudo_crypto::{SecurityMode, SecurityProtocol, Suite};

    fn session() -> Session {
        Session {
            facts: SaFacts {
                spi: 1,
                suite: Suite::AES128GCM16,
                protocol: SecurityProtocol::Esp,
                mode: SecurityMode::Tunnel,
                esn: false,
                in_udp: false,
                local: IpAddr::from([192, 0, 2, 1]),
                remote: None,
                is_covered: false,
                changed_if: 0,
            },
            direction: Direction::Seal,
            key: KeyId::NONE,
            software: KeyId(7),
            state: State::Live,
            lingers: false,
            has_key: true,
            marked: 0,
            closed_at: 0,
            opened: 0,
            missed: 0,
        }
    }

    fn begin(sessions: &mut Sessions) -> (u16, KeyId) {
        let number = sessions.next_number().unwrap();
        (number, sessions.insert(number, session()))
    }

    #[test]
    fn a_number_comes_back_after_all_others_and_never_while_a_packet_bears_it() {
        let mut sessions = Sessions::default();
        let (first, key) = begin(&mut sessions);
        sessions.get_mut(first).unwrap().marked = 2;
        let end = |sessions: &mut Sessions, number: u16| {
            sessions.get_mut(number).unwrap().has_key = false;
            sessions.leave(number, State::Closed);
            sessions.settle(number)
        };
        assert_eq!(end(&mut sessions, first), None, "two packets bear it");
        assert!(sessions.of_key(key).is_none());
        for expected in 1..NOBODYS {
            assert_eq!(begin(&mut sessions).0, expected);
            assert_eq!(end(&mut sessions, expected), Some(KeyId(7)));
        }
        assert_eq!(sessions.next_number(), Some(1), "the first one is not free");
        sessions.get_mut(first).unwrap().marked = 0;
        assert!(sessions.settle(first).is_some() && sessions.settle(first).is_none());
        for expected in (1..NOBODYS).chain([first]) {
            assert_eq!(begin(&mut sessions).0, expected);
        }
        assert_eq!((sessions.next_number(), sessions.live), (None, usize::from(NOBODYS)));
    }

    #[test]
    fn the_id_of_an_earlier_session_does_not_name_a_later_one_of_its_number() {
        let mut sessions = Sessions::default();
        let (number, early) = begin(&mut sessions);
        sessions.get_mut(number).unwrap().has_key = false;
        sessions.settle(number);
        let late = sessions.insert(number, session());
        assert!(sessions.of_key(early).is_none() && sessions.of_key(late).is_some());
        assert_eq!((number_of(late), direction_of(late)), (number, Direction::Seal));
        let opening = sessions.insert(1, Session { direction: Direction::Open, ..session() });
        assert_eq!((number_of(opening), direction_of(opening)), (1, Direction::Open));
    }

    #[test]
    fn a_session_that_the_device_may_still_have_keeps_its_number() {
        let mut sessions = Sessions::default();
        let (number, _) = begin(&mut sessions);
        let session = sessions.get_mut(number).unwrap();
        (session.has_key, session.lingers) = (false, true);
        assert_eq!((sessions.settle(number), sessions.lingering()), (None, Some(number)));
        assert_eq!(sessions.lose_all(0), [KeyId(7)], "its number and its key are free with the reset");
        assert_eq!((sessions.settle(number), sessions.live, sessions.free.front()), (None, 0, Some(&number)));
    }
}
