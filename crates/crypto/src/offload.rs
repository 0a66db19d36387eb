//! Devices that do the cryptography of IPsec as packets pass them (inline crypto), and the engines that use
//! them.
//!
//! ```text
//!   outbound   job ─► engine: "seal under session n" ─► port.tx ─► the device seals it on its way out
//!   inbound    the device opens it, "opened under session n" ─► port.rx ─► job ─► engine: looks at the mark
//! ```
//!
//! A [`SecurityDevice`] has sessions: an SA's key in one direction under a number of ours, which the
//! [`Mark`](testudo_packet::Mark) of a packet names. It is shaped after DPDK's `rte_security`: a session is
//! what `rte_security_session_create` makes, its number goes with the packet as the session's metadata does,
//! and the verdict on a received packet is that of its offload flags. Packets themselves pass by the device's
//! port, which refuses to send one whose session it does not have.
//!
//! An engine over such a device says so by [`Engine::offload`](crate::Engine::offload). SAs are
//! [admitted](Offload::admit) to it one by one by who knows their traffic; the others never meet it.

use crate::{Direction, KeyId, KeyMaterial, Suite};
use std::net::IpAddr;
use testudo_packet::Mark;

/// The protocol of an SA (RFC 4301 4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SecurityProtocol {
    /// RFC 4303.
    Esp,
    /// RFC 4302.
    Ah,
}

/// The mode of an SA.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SecurityMode {
    /// A packet within a datagram.
    Tunnel,
    /// What a packet carries.
    Transport,
}

/// What a device must know of an SA, or what keeps it out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaFacts {
    /// Security parameters index.
    pub spi: u32,
    /// Algorithms.
    pub suite: Suite,
    /// ESP or AH.
    pub protocol: SecurityProtocol,
    /// Tunnel or transport mode.
    pub mode: SecurityMode,
    /// Extended sequence numbers.
    pub esn: bool,
    /// ESP in UDP.
    pub in_udp: bool,
    /// Our outer address.
    pub local: IpAddr,
    /// The peer's, if it is known.
    pub remote: Option<IpAddr>,
    /// Its datagrams are those of another SA's payload (ESP within AH).
    pub is_covered: bool,
    /// A job with any of these bits in [`then`](crate::Job::then) is changed after it was sealed: it is cut,
    /// or covered by another SA.
    pub changed_if: u8,
}

/// What a device takes over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Offering {
    /// The cryptography of packets whose headers and trailers are ours (inline crypto).
    Cryptography,
    /// Headers, trailers and sequence numbers as well (inline protocol). Not used for what we send: numbers
    /// of a device are in nobody's store, and a restart would use them again.
    Protocol,
}

/// What a device can do, and how much of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceLimits {
    /// What it takes over.
    pub offering: Offering,
    /// Protocols with their suites.
    pub suites: Vec<(SecurityProtocol, Suite)>,
    /// Modes.
    pub modes: Vec<SecurityMode>,
    /// Whether it authenticates the high half of numbers.
    pub esn: bool,
    /// Whether it finds ESP in UDP.
    pub in_udp: bool,
    /// Sessions for what is sent, at most.
    pub sealing_sessions: usize,
    /// Sessions for what is received, at most.
    pub opening_sessions: usize,
    /// Our addresses that its sessions for what is received may have, at most.
    pub receive_addresses: usize,
    /// The longest datagram that it seals, in bytes.
    pub datagram_bytes: usize,
    /// Whether a packet whose ICV it found wrong is as it came, so that software may check that.
    pub leaves_refused_unchanged: bool,
}

impl DeviceLimits {
    /// Sessions of a direction, at most; no more than marks can name.
    #[must_use]
    pub fn sessions(&self, direction: Direction) -> usize {
        let limit = match direction {
            Direction::Seal => self.sealing_sessions,
            Direction::Open => self.opening_sessions,
        };
        limit.min(usize::from(Mark::SESSIONS) / 2)
    }

    /// Whether a session of such an SA can be, whatever else the device holds.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn check(&self, sa: &SaFacts) -> Result<(), OffloadState> {
        let does_suite = self.suites.contains(&(sa.protocol, sa.suite));
        match () {
            () if self.offering == Offering::Protocol => Err(OffloadState::ProtocolOnly),
            () if !self.suites.iter().any(|(protocol, _)| *protocol == sa.protocol) => {
                Err(OffloadState::Protocol)
            }
            () if !does_suite => Err(OffloadState::Suite),
            () if !self.modes.contains(&sa.mode) => Err(OffloadState::Mode),
            () if sa.esn && !self.esn => Err(OffloadState::Esn),
            () if sa.in_udp && !self.in_udp => Err(OffloadState::InUdp),
            () if sa.is_covered => Err(OffloadState::Covered),
            () => Ok(()),
        }
    }
}

/// All that a session is made of.
#[derive(Debug, Clone, Copy)]
pub struct SessionParameters<'a> {
    /// Seal what is sent, or open what is received.
    pub direction: Direction,
    /// The SA.
    pub sa: &'a SaFacts,
    /// Its key.
    pub key: &'a KeyMaterial,
}

/// Why a device did not do what it was told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// It holds as many sessions as it can.
    #[error("the device holds as many sessions as it can")]
    Full,
    /// It knows as many receive addresses as it can.
    #[error("the device knows as many receive addresses as it can")]
    Addresses,
    /// The call failed.
    #[error("{0}")]
    Failed(String),
}

/// A device with sessions. Its packets go through its port; both share what they know.
///
/// No call waits for the network; one may take as long as a mailbox to firmware does.
pub trait SecurityDevice: Send {
    /// Name for people.
    fn name(&self) -> &str;

    /// What it can do. Does not change.
    fn limits(&self) -> DeviceLimits;

    /// Another number after each reset, with which all sessions are gone.
    fn generation(&self) -> u64;

    /// Makes a session under a number that no other session of its direction has.
    ///
    /// # Errors
    /// [`DeviceError`]; there is no such session then.
    fn create(&mut self, number: u16, session: SessionParameters<'_>) -> Result<(), DeviceError>;

    /// Ends a session. One that is not there has ended.
    ///
    /// # Errors
    /// [`DeviceError`]; the session is there, or it is not.
    fn destroy(&mut self, direction: Direction, number: u16) -> Result<(), DeviceError>;

    /// Whether it has this session.
    fn holds(&self, direction: Direction, number: u16) -> bool;

    /// Has a copy kept of the next packet that is sealed on its way out; `false` if it cannot be seen.
    fn watch_next(&mut self) -> bool {
        false
    }

    /// The packet that was watched, as it was sent, without its link-layer header.
    fn take_watched(&mut self) -> Option<Vec<u8>> {
        None
    }

    /// Takes a datagram through a session without sending or receiving it: what is marked on it afterwards
    /// tells how that ended. `None` if the device has no such way. For the test at start-up.
    fn loop_back(&mut self, direction: Direction, number: u16, datagram: &mut [u8]) -> Option<Mark> {
        let _ = (direction, number, datagram);
        None
    }
}

macro_rules! states {
    ($($(#[doc = $doc:literal])+ $name:ident = $word:literal;)+) => {
        /// Where an SA's cryptography is done, or why not in the NIC.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum OffloadState {
            $($(#[doc = $doc])+ $name,)+
        }

        impl OffloadState {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// In a word, for tables and metrics.
            #[must_use]
            pub fn word(self) -> &'static str {
                match self { $(Self::$name => $word,)+ }
            }

            /// In a sentence.
            #[must_use]
            pub fn description(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+).trim_ascii(),)+ }
            }
        }
    };
}

states! {
    /// No port of this gateway offloads cryptography.
    Off = "off";
    /// The NIC does it.
    InNic = "nic";
    /// Too few packets so far: those with more go first.
    Cold = "cold";
    /// The NIC does not do this suite.
    Suite = "suite";
    /// The NIC does not do this protocol (ESP or AH).
    Protocol = "protocol";
    /// The NIC does not do this mode.
    Mode = "mode";
    /// The NIC has no extended sequence numbers.
    Esn = "esn";
    /// The NIC does not look into UDP.
    InUdp = "udp";
    /// Its packets are those of AH around ESP.
    Covered = "covered";
    /// The NIC would number packets itself, which no store of ours knows of.
    ProtocolOnly = "protocol-only";
    /// The peer's address is not known yet.
    PeerUnknown = "peer-unknown";
    /// The NIC holds as many SAs as it can, all of which have more packets.
    TableFull = "table-full";
    /// The NIC knows as many receive addresses as it can.
    Addresses = "addresses";
    /// The NIC refused the session; it is tried again.
    Refused = "refused";
    /// The NIC was reset; it is tried again.
    Reset = "reset";
    /// The NIC has the session and opens nothing under it.
    NotOpened = "not-opened";
    /// It leaves the NIC: what is still under way is finished.
    Leaving = "leaving";
    /// The NIC is out of service.
    OutOfService = "out-of-service";
}

impl OffloadState {
    /// The state of this number; [`Off`](Self::Off) for any other.
    #[must_use]
    pub fn from_number(number: u8) -> Self {
        Self::ALL.get(usize::from(number)).copied().unwrap_or(Self::Off)
    }
}

macro_rules! counts {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// What an engine over a device has counted.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct OffloadCounts {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl OffloadCounts {
            /// Each count with its name and its description.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> + use<> {
                [$((stringify!($name), concat!($($doc),+).trim_ascii(), self.$name),)+].into_iter()
            }
        }
    };
}

counts! {
    /// Packets that the NIC sealed.
    sealed,
    /// Packets that the NIC opened.
    opened,
    /// Packets that software sealed because their session had gone when they were to leave.
    sealed_after_loss,
    /// Packets of SAs in the NIC that have IPv4 options, IPv6 extension headers or UDP.
    headers,
    /// Packets of SAs in the NIC that are cut, or covered by another SA, after they are sealed.
    changed_later,
    /// Packets of SAs in the NIC that are too long for it.
    too_long,
    /// Received packets of SAs in the NIC that it did not open.
    unmarked,
    /// Received packets whose ICV the NIC found wrong.
    refused,
    /// Packets that were to go through a session that is being moved or was lost.
    session_gone,
    /// Received packets whose mark did not suffice, so that software checked them.
    doubtful,
    /// Packets that the NIC sealed or opened and software checked by chance.
    spot_checks,
    /// Checks by software that gave another answer than the NIC.
    differences,
    /// Sessions that were made.
    sessions_made,
    /// Sessions that were ended.
    sessions_ended,
    /// Calls to the NIC that failed.
    failed_calls,
    /// Resets of the NIC.
    resets,
}

/// An engine's account of its device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OffloadReport {
    /// Name of the device.
    pub device: String,
    /// Why it is out of service, if it is.
    pub out_of_service: Option<String>,
    /// Sessions in use and at most, for what is sent.
    pub sealing: (usize, usize),
    /// Sessions in use and at most, for what is received.
    pub opening: (usize, usize),
    /// Counts.
    pub counts: OffloadCounts,
}

/// What an engine over a device does beyond [`Engine`](crate::Engine). It holds the keys that were admitted,
/// and no others.
pub trait Offload {
    /// Whether such an SA may be admitted at all.
    ///
    /// # Errors
    /// Why not.
    fn check(&self, sa: &SaFacts) -> Result<(), OffloadState>;

    /// How many more sessions of this direction there is room for; none where the device is out of service.
    fn room(&self, direction: Direction) -> usize;

    /// Makes a session. At most one call of the device.
    ///
    /// # Errors
    /// Why there is none.
    fn admit(&mut self, direction: Direction, key: &KeyMaterial, sa: &SaFacts)
    -> Result<KeyId, OffloadState>;

    /// Ends a session in the device: nothing more is marked or opened under it. Packets that the device has
    /// opened before are recognised until the key is [removed](crate::Engine::remove). At most one call of
    /// the device.
    fn close(&mut self, key: KeyId);

    /// Whether a closed key may be removed: all that was received before has been taken from the port.
    fn is_drained(&self, key: KeyId) -> bool;

    /// What has become of a key that was admitted: [`InNic`](OffloadState::InNic), or why it has to go.
    fn state(&self, key: KeyId) -> OffloadState;

    /// Looks after the device: resets, and sessions whose end failed. At most one call of the device.
    fn look_after(&mut self);

    /// Packets to be sealed were dropped elsewhere.
    fn forget(&mut self, marks: &[Mark]);

    /// What it has to say.
    fn report(&self) -> OffloadReport;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn states_have_words_of_their_own_and_survive_as_numbers() {
        let words: HashSet<_> = OffloadState::ALL.iter().map(|state| state.word()).collect();
        assert_eq!(words.len(), OffloadState::ALL.len());
        for state in OffloadState::ALL.iter().copied() {
            assert_eq!(OffloadState::from_number(state as u8), state);
            assert!(state.description().ends_with('.'), "{state:?}");
        }
        assert_eq!(OffloadState::from_number(200), OffloadState::Off);
    }

    fn limits() -> DeviceLimits {
        DeviceLimits {
            offering: Offering::Cryptography,
            suites: vec![(SecurityProtocol::Esp, Suite::AES128GCM16)],
            modes: vec![SecurityMode::Tunnel],
            esn: false,
            in_udp: false,
            sealing_sessions: 1024,
            opening_sessions: usize::MAX,
            receive_addresses: 128,
            datagram_bytes: 1500,
            leaves_refused_unchanged: true,
        }
    }

    fn facts() -> SaFacts {
        SaFacts {
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
        }
    }

    #[test]
    fn what_a_device_does_not_do_is_named() {
        use OffloadState as S;
        let check = |change: fn(&mut SaFacts)| {
            let mut sa = facts();
            change(&mut sa);
            limits().check(&sa)
        };
        assert_eq!(check(|_| {}), Ok(()));
        assert_eq!(check(|sa| sa.suite = Suite::AES256GCM16), Err(S::Suite));
        assert_eq!(check(|sa| sa.protocol = SecurityProtocol::Ah), Err(S::Protocol));
        assert_eq!(check(|sa| sa.mode = SecurityMode::Transport), Err(S::Mode));
        assert_eq!(check(|sa| sa.esn = true), Err(S::Esn));
        assert_eq!(check(|sa| sa.in_udp = true), Err(S::InUdp));
        assert_eq!(check(|sa| sa.is_covered = true), Err(S::Covered));
        let protocol_only = DeviceLimits { offering: Offering::Protocol, ..limits() };
        assert_eq!(protocol_only.check(&facts()), Err(S::ProtocolOnly));
        let sessions = [Direction::Seal, Direction::Open].map(|direction| limits().sessions(direction));
        assert_eq!(sessions, [1024, 8192], "half of what marks can name");
    }
}
