//! The sessions of a device by their numbers, and what of them is still on its way.

use super::offer::bit_of;
use super::place::{Arrival, Place};
use super::raw::{self, Table, algorithms};
use crate::plugin::{Errno, Plugin};
use std::collections::{HashMap, HashSet};
use std::ffi::c_void;
use std::net::IpAddr;
use testudo_crypto::{
    DeviceError, DeviceLimits, Direction, SecurityMode, SecurityProtocol, SessionParameters,
};
use testudo_packet::Mark;
use zeroize::Zeroizing;

/// A number for marks that are not to be believed: no session that an SA has is under it.
const NOBODYS: u16 = Mark::SESSIONS - 1;
/// Refusals in a row, each without a reason, after which a device that has sessions counts as full.
const FULL_AFTER: u32 = 3;

/// A session that the device has.
struct Held {
    session: *mut c_void,
    /// No other session has it: by this the packets under it are known.
    serial: u32,
    /// Whether packets were given to the device under it.
    was_used: bool,
    arrival: Arrival,
}

/// Sessions that end once their packets have left, and what knows whether they have.
struct Leaving {
    session: *mut c_void,
    serial: u32,
}

/// The sessions of one device.
pub(crate) struct Sessions {
    plugin: Plugin,
    table: &'static Table,
    handle: *mut c_void,
    limits: DeviceLimits,
    is_open: bool,
    generation: u64,
    sealing: Vec<Option<Box<Held>>>,
    opening: Vec<Option<Box<Held>>>,
    /// Those whose packets are recognised.
    arrivals: HashMap<Arrival, u16>,
    leaving: Vec<Leaving>,
    serial: u32,
    refusals: u32,
    /// Calls that failed when sessions were to end.
    pub failed_ends: u64,
}

// SAFETY: sessions are handles of the plugin's, which one thread at a time uses: that which has this.
unsafe impl Send for Sessions {}

impl Sessions {
    pub(super) fn new(
        plugin: Plugin,
        table: &'static Table,
        handle: *mut c_void,
        limits: DeviceLimits,
    ) -> Self {
        Self {
            plugin,
            table,
            handle,
            limits,
            is_open: true,
            generation: 1,
            sealing: Vec::new(),
            opening: Vec::new(),
            arrivals: HashMap::new(),
            leaving: Vec::new(),
            serial: 0,
            refusals: 0,
            failed_ends: 0,
        }
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    fn of(&self, direction: Direction) -> &Vec<Option<Box<Held>>> {
        if direction == Direction::Seal { &self.sealing } else { &self.opening }
    }

    fn of_mut(&mut self, direction: Direction) -> &mut Vec<Option<Box<Held>>> {
        if direction == Direction::Seal { &mut self.sealing } else { &mut self.opening }
    }

    fn held(&self, direction: Direction, number: u16) -> Option<&Held> {
        self.of(direction).get(usize::from(number))?.as_deref()
    }

    pub(super) fn holds(&self, direction: Direction, number: u16) -> bool {
        self.held(direction, number).is_some()
    }

    fn count(&self, direction: Direction) -> usize {
        let leaving = if direction == Direction::Seal { self.leaving.len() } else { 0 };
        self.of(direction).iter().flatten().count() + leaving
    }

    pub(super) fn create(&mut self, number: u16, wanted: SessionParameters<'_>) -> Result<(), DeviceError> {
        let SessionParameters { direction, sa, key } = wanted;
        let failed = |why: &str| Err(DeviceError::Failed(why.to_owned()));
        let source = if direction == Direction::Seal { Some(sa.local) } else { sa.remote };
        let destination = if direction == Direction::Seal { sa.remote } else { Some(sa.local) };
        let Some(destination) = destination else { return failed("the peer's address is not known") };
        let arrival = Arrival { spi: sa.spi, destination, protocol: sa.protocol };
        match () {
            () if !self.is_open => return failed("the device is closed"),
            () if number >= Mark::SESSIONS => return failed("no mark can name this session"),
            () if self.holds(direction, number) => return failed("there is a session of this number"),
            () if self.limits.check(sa).is_err() || bit_of(key.suite()) == 0 => {
                return failed("the device does not do this");
            }
            () if direction == Direction::Open && self.arrivals.contains_key(&arrival) => {
                return failed("another session has this SPI");
            }
            () if self.count(direction) >= self.limits.sessions(direction) => return Err(DeviceError::Full),
            () if direction == Direction::Open && !self.has_room_for(destination) => {
                return Err(DeviceError::Addresses);
            }
            () => {}
        }
        let session = self
            .make(number, &wanted, source, destination)
            .map_err(|errno| self.refused(direction, errno))?;
        self.refusals = 0;
        self.serial = self.serial.wrapping_add(1).max(1);
        let held = Held { session, serial: self.serial, was_used: false, arrival };
        let numbered = self.of_mut(direction);
        if numbered.len() <= usize::from(number) {
            numbered.resize_with(usize::from(number) + 1, || None);
        }
        numbered[usize::from(number)] = Some(Box::new(held));
        if direction == Direction::Open {
            self.arrivals.insert(arrival, number);
        }
        Ok(())
    }

    /// Whether the device may be told of one more address of ours, or knows it.
    fn has_room_for(&self, address: IpAddr) -> bool {
        let held = self.opening.iter().flatten().map(|held| held.arrival.destination);
        let known: HashSet<IpAddr> = held.collect();
        known.len() < self.limits.receive_addresses || known.contains(&address)
    }

    /// Drivers do not say why they refuse a session.
    fn refused(&mut self, direction: Direction, errno: Errno) -> DeviceError {
        use rustix::io::Errno as E;
        self.refusals += 1;
        let is_told = [E::NOSPC, E::NOMEM].iter().any(|known| known.raw_os_error() == errno.0);
        if is_told || self.refusals >= FULL_AFTER && self.count(direction) > 0 {
            return DeviceError::Full;
        }
        DeviceError::Failed(self.plugin.words(errno))
    }

    fn make(
        &self,
        number: u16,
        wanted: &SessionParameters<'_>,
        source: Option<IpAddr>,
        destination: IpAddr,
    ) -> Result<*mut c_void, Errno> {
        let SessionParameters { direction, sa, key } = wanted;
        let suite = key.suite();
        let secret = Zeroizing::new([key.key(), key.salt()].concat());
        let short = |bytes: usize| u8::try_from(bytes).unwrap_or(u8::MAX);
        let session = raw::Session {
            key: secret.as_ptr(),
            key_bytes: short(suite.key_bytes()),
            icv_bytes: short(suite.icv_bytes()),
            algorithm: if suite.encrypts() { algorithms::GCM } else { algorithms::GMAC },
            is_ah: (sa.protocol == SecurityProtocol::Ah).into(),
            is_tunnel: (sa.mode == SecurityMode::Tunnel).into(),
            is_inbound: (*direction == Direction::Open).into(),
            is_ipv6: destination.is_ipv6().into(),
            padding: 0,
            spi: sa.spi,
            source: source.map_or([0; 16], octets),
            destination: octets(destination),
            number: number.into(),
        };
        let mut made = std::ptr::null_mut();
        // SAFETY: the engine is open. The description has a key of as many bytes as it says, with a salt of 4
        // after it, which all suites that `bit_of` knows have; there is a place for the result.
        let code = unsafe { (self.table.session_make)(self.handle, &raw const session, &raw mut made) };
        match code {
            0.. => Ok(made),
            _ => Err(Errno(code.saturating_neg())),
        }
    }

    /// Ends a session of the device's. Whether it did.
    fn end(&mut self, session: *mut c_void) -> bool {
        // SAFETY: the engine is open; the session is one of its that has not ended.
        let is_ended = unsafe { (self.table.session_end)(self.handle, session) } == 0;
        self.failed_ends += u64::from(!is_ended);
        is_ended
    }

    pub(super) fn destroy(&mut self, direction: Direction, number: u16) -> Result<(), DeviceError> {
        if direction == Direction::Seal {
            self.lose(number);
            return Ok(());
        }
        let Some(place) = self.opening.get_mut(usize::from(number)) else { return Ok(()) };
        let Some(held) = place.take() else { return Ok(()) };
        // What it has opened before is not believed any more, but checked.
        self.arrivals.remove(&held.arrival);
        if self.end(held.session) {
            return Ok(());
        }
        self.opening[usize::from(number)] = Some(held);
        Err(DeviceError::Failed("the driver did not end the session".to_owned()))
    }

    /// No packet goes under this session any more: it ends once those on their way have left.
    fn lose(&mut self, number: u16) {
        let place = self.sealing.get_mut(usize::from(number));
        let Some(held) = place.and_then(Option::take) else { return };
        if held.was_used || !self.end(held.session) {
            self.leaving.push(Leaving { session: held.session, serial: held.serial });
        }
    }

    pub(super) fn has_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Ends sessions that have no packet on its way; `is_under_way` is asked by their serials.
    pub(super) fn end_leaving(&mut self, is_under_way: impl Fn(u32) -> bool) {
        for Leaving { session, serial } in std::mem::take(&mut self.leaving) {
            if is_under_way(serial) || !self.end(session) {
                self.leaving.push(Leaving { session, serial });
            }
        }
    }

    /// Has the device seal a packet as it leaves; the serial of its session. `None` if it does not: the
    /// session is gone then.
    #[inline]
    pub(super) fn prepare(&mut self, mbuf: *mut c_void, frame: &[u8], number: u16) -> Option<u32> {
        let held = self.sealing.get_mut(usize::from(number)).and_then(Option::as_deref_mut)?;
        let place = Place::of(frame);
        let is_its = |place: &Place| {
            (place.arrival.spi, place.arrival.protocol) == (held.arrival.spi, held.arrival.protocol)
        };
        if let Some(place) = place.filter(is_its) {
            let (link, ip) = (place.link_bytes, place.ip_bytes);
            // SAFETY: the engine is open and the session its own. The mbuf is the gateway's, describes all of
            // the packet, and its first part has the headers.
            let code = unsafe { (self.table.prepare)(self.handle, held.session, mbuf, link, ip) };
            if code == 0 {
                held.was_used = true;
                return Some(held.serial);
            }
        }
        self.lose(number);
        None
    }

    /// A packet does not leave after all.
    pub(super) fn undo(&self, mbuf: *mut c_void) {
        // SAFETY: the mbuf is the gateway's, and describes a packet that was prepared.
        unsafe { (self.table.undo)(mbuf) }
    }

    /// The session of a received frame that the device says it has looked at: nobody's if it has none any
    /// more. `None` if no device would have found anything in it.
    #[inline]
    pub(super) fn of_received(&self, frame: &[u8]) -> Option<u16> {
        let place = Place::of(frame)?;
        Some(self.arrivals.get(&place.arrival).copied().unwrap_or(NOBODYS))
    }

    /// The device is about to be reset, and has stopped: all sessions end.
    pub(super) fn end_all(&mut self) {
        let numbered = self.sealing.drain(..).chain(self.opening.drain(..)).flatten();
        let mut sessions: Vec<_> = numbered.map(|held| held.session).collect();
        sessions.extend(self.leaving.drain(..).map(|leaving| leaving.session));
        self.arrivals.clear();
        for session in sessions {
            if !self.end(session) {
                // SAFETY: the session has not ended; its device will not know it any more.
                unsafe { (self.table.session_forget)(session) };
            }
        }
        self.generation += 1;
    }

    /// After a reset.
    pub(super) fn renew(&mut self) -> Result<(), Errno> {
        // SAFETY: the engine is open.
        let code = unsafe { (self.table.renew)(self.handle) };
        if code < 0 { Err(Errno(code.saturating_neg())) } else { Ok(()) }
    }

    /// After the device was closed.
    pub(super) fn close(&mut self) {
        if std::mem::take(&mut self.is_open) {
            // SAFETY: the engine is open, and its sessions have ended with the device.
            unsafe { (self.table.close)(self.handle) };
        }
    }

    pub(super) fn limits(&self) -> DeviceLimits {
        self.limits.clone()
    }
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V6(address) => address.octets(),
        IpAddr::V4(address) => {
            let mut octets = [0; 16];
            octets[..4].copy_from_slice(&address.octets());
            octets
        }
    }
}
