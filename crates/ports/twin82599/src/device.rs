//! The sessions of a twin.

use crate::cryptography::{Cryptography, Place, Work, suites};
use crate::faults::Faults;
use fastrand::Rng;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use testudo_crypto::{
    DeviceError, DeviceLimits, Direction, KeyId, Offering, SecurityDevice, SecurityMode, SecurityProtocol,
    SessionParameters,
};
use testudo_packet::Mark;

/// Limits of the 82599 (paper 000, IV).
const SESSIONS: usize = 1024;
const RECEIVE_ADDRESSES: usize = 128;
/// Bytes of the longest datagram: those of a jumbo frame less its Ethernet header, a tag, and the check
/// sequence.
const DATAGRAM_BYTES: usize = 15_872 - 22;

/// A session for what is received.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Opening {
    pub(crate) number: u16,
    pub(crate) key: KeyId,
}

/// By what a received packet is told: SPI, destination, protocol (RFC 4301 4.1).
type Arrival = (u32, u128, SecurityProtocol);

pub(crate) struct State {
    /// By number, as a table in hardware is, for all numbers from the start: a soak watches memory.
    sealing: Vec<Option<(KeyId, Place)>>,
    /// The numbers of those that are there.
    in_use: Vec<u16>,
    pub(crate) opening: HashMap<Arrival, Opening, foldhash::fast::RandomState>,
    pub(crate) cryptography: Cryptography,
    pub(crate) faults: Faults,
    pub(crate) random: Rng,
    pub(crate) generation: u64,
    limits: DeviceLimits,
    is_hidden: bool,
    /// Whether the next sealed packet is kept, and the packet.
    pub(crate) watches: bool,
    pub(crate) watched: Option<Vec<u8>>,
}

impl State {
    /// Whether something happens now that happens so often in a million.
    pub(crate) fn happens(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.random.u32(..1_000_000) < per_million
    }

    pub(crate) fn reset(&mut self) {
        self.generation += 1;
        self.lose_sealing();
        let opening = std::mem::take(&mut self.opening);
        opening.into_values().for_each(|session| self.cryptography.remove(session.key));
        (self.watches, self.watched) = (false, None);
    }

    pub(crate) fn lose_sealing(&mut self) {
        while let Some(number) = self.in_use.pop() {
            if let Some((key, _)) = self.sealing[usize::from(number)].take() {
                self.cryptography.remove(key);
            }
        }
    }

    /// Where the engine finds a received packet, and its session.
    pub(crate) fn find(&self, datagram: &[u8]) -> Option<(Place, Opening)> {
        let place = Place::of(datagram)?;
        let session = self.opening.get(&(place.spi, place.destination, place.protocol))?;
        Some((place, *session))
    }

    /// Opens a datagram under its session; `false` if its ICV is wrong.
    pub(crate) fn open(&mut self, datagram: &mut [u8], place: Place, session: Opening) -> bool {
        self.cryptography.run(datagram, place, session.key, Direction::Open)
    }

    /// Seals a datagram under a session; `false` if it has none, or not of this packet.
    pub(crate) fn seal(&mut self, datagram: &mut [u8], number: u16) -> bool {
        let Some(&Some((key, of))) = self.sealing.get(usize::from(number)) else { return false };
        if self.cryptography.does_nothing() {
            return true;
        }
        let place = Place::of(datagram).filter(|place| (place.spi, place.protocol) == (of.spi, of.protocol));
        place.is_some_and(|place| self.cryptography.run(datagram, place, key, Direction::Seal))
    }

    fn create(&mut self, number: u16, session: SessionParameters<'_>) -> Result<(), DeviceError> {
        let SessionParameters { direction, sa, key } = session;
        if self.happens(self.faults.calls) {
            return Err(DeviceError::Failed("the mailbox does not answer".to_owned()));
        }
        self.limits.check(sa).map_err(|why| DeviceError::Failed(why.description().to_owned()))?;
        let in_use = if direction == Direction::Seal { self.sealing_sessions() } else { self.opening.len() };
        if in_use >= self.limits.sessions(direction) {
            return Err(DeviceError::Full);
        }
        if self.has(direction, number) {
            return Err(DeviceError::Failed(format!("session {number} is there")));
        }
        let destination =
            address(if direction == Direction::Seal { sa.remote.unwrap_or(sa.local) } else { sa.local });
        if direction == Direction::Open && !self.knows_or_may_know(destination) {
            return Err(DeviceError::Addresses);
        }
        let arrival = (sa.spi, destination, sa.protocol);
        if direction == Direction::Open && self.opening.contains_key(&arrival) {
            return Err(DeviceError::Failed("another session has this SPI".to_owned()));
        }
        let key = self.cryptography.install(key, direction);
        let key = key.ok_or_else(|| DeviceError::Failed("the key was refused".to_owned()))?;
        match direction {
            Direction::Seal => {
                let place = Place { protocol: sa.protocol, at: 0, spi: sa.spi, destination };
                self.sealing[usize::from(number)] = Some((key, place));
                self.in_use.push(number);
            }
            Direction::Open => drop(self.opening.insert(arrival, Opening { number, key })),
        }
        Ok(())
    }

    fn sealing_sessions(&self) -> usize {
        self.in_use.len()
    }

    fn knows_or_may_know(&self, address: u128) -> bool {
        let mut known: Vec<u128> = self.opening.keys().map(|(_, address, _)| *address).collect();
        known.sort_unstable();
        known.dedup();
        known.len() < self.limits.receive_addresses || known.contains(&address)
    }

    fn has(&self, direction: Direction, number: u16) -> bool {
        match direction {
            Direction::Seal => self.sealing.get(usize::from(number)).is_some_and(Option::is_some),
            Direction::Open => self.opening.values().any(|session| session.number == number),
        }
    }

    fn destroy(&mut self, direction: Direction, number: u16) -> Result<(), DeviceError> {
        if self.happens(self.faults.calls) {
            return Err(DeviceError::Failed("the mailbox does not answer".to_owned()));
        }
        let ended = match direction {
            Direction::Seal => {
                self.in_use.retain(|&of| of != number);
                self.sealing.get_mut(usize::from(number)).and_then(Option::take).map(|(key, _)| key)
            }
            Direction::Open => {
                let arrival = self.opening.iter().find(|(_, session)| session.number == number);
                let arrival = arrival.map(|(arrival, _)| *arrival);
                arrival.and_then(|arrival| self.opening.remove(&arrival)).map(|session| session.key)
            }
        };
        if let Some(key) = ended {
            self.cryptography.remove(key);
        }
        Ok(())
    }
}

fn address(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u32::from(v4).into(),
        IpAddr::V6(v6) => v6.into(),
    }
}

/// The security engine of a twin. Clones are the same device.
#[derive(Clone)]
pub struct Twin82599(Arc<Mutex<State>>);

impl Twin82599 {
    /// A device that does not fail.
    #[must_use]
    pub fn new(work: Work) -> Self {
        let limits = DeviceLimits {
            offering: Offering::Cryptography,
            suites: suites(),
            modes: vec![SecurityMode::Tunnel, SecurityMode::Transport],
            esn: false,
            in_udp: false,
            sealing_sessions: SESSIONS,
            opening_sessions: SESSIONS,
            receive_addresses: RECEIVE_ADDRESSES,
            datagram_bytes: DATAGRAM_BYTES,
            leaves_refused_unchanged: true,
        };
        Self(Arc::new(Mutex::new(State {
            sealing: vec![None; usize::from(Mark::SESSIONS)],
            in_use: Vec::new(),
            opening: HashMap::default(),
            cryptography: Cryptography::new(work),
            faults: Faults::default(),
            random: Rng::with_seed(0),
            generation: 1,
            limits,
            is_hidden: false,
            watches: false,
            watched: None,
        })))
    }

    /// From now on it fails like this.
    pub fn fail(&self, faults: Faults, seed: u64) {
        let mut state = self.state();
        state.faults = faults;
        state.random = Rng::with_seed(seed);
    }

    /// A device with smaller tables: tests need not fill large ones.
    #[must_use]
    pub fn with_sessions(self, sessions: usize) -> Self {
        let mut state = self.state();
        (state.limits.sealing_sessions, state.limits.opening_sessions) = (sessions, sessions);
        drop(state);
        self
    }

    /// A device that knows fewer addresses.
    #[must_use]
    pub fn with_receive_addresses(self, addresses: usize) -> Self {
        self.state().limits.receive_addresses = addresses;
        self
    }

    /// A device that shows nothing of what it does: neither what it has sent nor an answer at start-up.
    #[must_use]
    pub fn that_cannot_be_seen(self) -> Self {
        self.state().is_hidden = true;
        self
    }

    /// A device that changes packets whose ICV is wrong, so that its verdict on them has to be believed.
    #[must_use]
    pub fn that_changes_refused(self) -> Self {
        self.state().limits.leaves_refused_unchanged = false;
        self
    }

    /// Resets it: all sessions are gone.
    pub fn reset(&self) {
        self.state().reset();
    }

    /// Loses the table of what is sent, silently.
    pub fn lose_table(&self) {
        self.state().lose_sealing();
    }

    /// Sessions for what is sent, and for what is received.
    #[must_use]
    pub fn sessions(&self) -> (usize, usize) {
        let state = self.state();
        (state.sealing_sessions(), state.opening.len())
    }

    /// A test that panicked left a whole state.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SecurityDevice for Twin82599 {
    fn name(&self) -> &str {
        "twin of an 82599"
    }

    fn limits(&self) -> DeviceLimits {
        self.state().limits.clone()
    }

    fn generation(&self) -> u64 {
        self.state().generation
    }

    fn create(&mut self, number: u16, session: SessionParameters<'_>) -> Result<(), DeviceError> {
        self.state().create(number, session)
    }

    fn destroy(&mut self, direction: Direction, number: u16) -> Result<(), DeviceError> {
        self.state().destroy(direction, number)
    }

    fn holds(&self, direction: Direction, number: u16) -> bool {
        self.state().has(direction, number)
    }

    fn watch_next(&mut self) -> bool {
        let mut state = self.state();
        (state.watches, state.watched) = (!state.is_hidden, None);
        state.watches
    }

    fn take_watched(&mut self) -> Option<Vec<u8>> {
        let mut state = self.state();
        state.watches = false;
        state.watched.take()
    }

    fn loop_back(&mut self, direction: Direction, number: u16, datagram: &mut [u8]) -> Option<Mark> {
        let mut state = self.state();
        if state.is_hidden {
            return None;
        }
        match direction {
            Direction::Seal => {
                Some(if state.seal(datagram, number) { Mark::NONE } else { Mark::seal_under(number) })
            }
            Direction::Open => {
                let Some((place, session)) = state.find(datagram) else { return Some(Mark::NONE) };
                let is_authentic = state.open(datagram, place, session);
                let mark = if is_authentic { Mark::opened_under } else { Mark::refused_under };
                Some(mark(session.number))
            }
        }
    }
}
