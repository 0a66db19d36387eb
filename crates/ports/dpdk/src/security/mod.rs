//! Cryptography in the device (rte_security, inline crypto): its sessions, and the marks of packets.
//!
//! ```text
//!   DpdkSecurity (SecurityDevice) ─► Sessions ─► rte_security_session_create, rte_flow_create
//!                                       │
//!   DpdkDevice::tx: "seal under n" ─────┤ session n: RTE_MBUF_F_TX_SEC_OFFLOAD, its metadata
//!   DpdkDevice::rx: flags of the mbuf ──┘ SPI, destination and protocol: "opened under n", "refused under n"
//! ```
//!
//! **Which session a received packet was opened under** no flag tells, and with inline crypto no metadata
//! either (drivers fill it for inline protocol alone). So the packet's own headers are asked, as they tell a
//! receiver its SA. A packet with the flags and without a session is marked as nobody's: the engine then has
//! software look at it. One without IPsec has no mark.
//!
//! **A session for what is sent ends after its packets have left.** Each mbuf on its way is noted with the
//! session that it is sealed under; until the driver has given all of them back, the device keeps the key,
//! so that none leaves under another.
//!
//! **A reset ends all sessions**, those that the driver can still end and the others, before packets go on.

mod offer;
mod place;
pub(crate) mod raw;
mod sessions;

use crate::device::DpdkDevice;
use crate::mbuf::{Known, SECURED, SECURITY_FAILED};
use crate::mbufs::Mbufs;
use crate::plugin::{Errno, Plugin};
use sessions::Sessions;
use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use testudo_crypto::{DeviceError, DeviceLimits, Direction, SecurityDevice, SessionParameters};
use testudo_packet::{Batch, Buffer, Mark, MarkKind};

/// Most things that a device declares.
const MOST_OFFERS: usize = 64;
/// Sessions that a driver did not end, beyond those that there can be.
const SPARE_SESSIONS: usize = 256;
/// Calls between two looks at whether the packets of an ended session have left.
const CALLS_PER_LOOK: u32 = 64;

/// What the port and the [`SecurityDevice`] of a device share.
#[derive(Clone)]
struct Shared(Arc<Mutex<Sessions>>);

impl Shared {
    /// One worker has both: nobody waits.
    fn lock(&self) -> MutexGuard<'_, Sessions> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The port's half.
pub(crate) struct Security {
    shared: Shared,
    /// The serial of the session that each mbuf was last sent under; 0 for none.
    sent_under: Vec<u32>,
    /// Whether packets with flags have come in this call.
    came: bool,
    look_in: u32,
    /// Packets with the flags of cryptography that have no IPsec a device would find.
    pub misplaced: u64,
}

impl fmt::Debug for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Security")
    }
}

/// What a device could do, before it is started.
///
/// # Errors
/// Why nothing.
pub(crate) fn offered(
    plugin: Plugin,
    port: u16,
    driver: &str,
    offers: u32,
    datagram_bytes: usize,
) -> Result<DeviceLimits, String> {
    let table = plugin.security().ok_or("the plugin is older than this: build it again")?;
    let mut declared = [raw::Offer::default(); MOST_OFFERS];
    // SAFETY: as much room as is told.
    let count = unsafe { (table.offers)(port, declared.as_mut_ptr(), 64) };
    let declared = declared.get(..usize::try_from(count).unwrap_or(0)).unwrap_or(&[]);
    offer::limits_of(declared, driver, offers, datagram_bytes)
}

impl Security {
    /// For a device that was started for this.
    pub(crate) fn open(plugin: Plugin, port: u16, limits: DeviceLimits) -> Result<Self, String> {
        let table = plugin.security().ok_or("the plugin is older than this: build it again")?;
        let sessions = [Direction::Seal, Direction::Open].map(|direction| limits.sessions(direction));
        let sessions = sessions.iter().sum::<usize>() + SPARE_SESSIONS;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the device is started; there is a place for the result.
        let code =
            unsafe { (table.open)(port, u32::try_from(sessions).unwrap_or(u32::MAX), &raw mut handle) };
        if code < 0 {
            return Err(plugin.words(Errno(code.saturating_neg())));
        }
        let shared = Shared(Arc::new(Mutex::new(Sessions::new(plugin, table, handle, limits))));
        Ok(Self { shared, sent_under: Vec::new(), came: false, look_in: 0, misplaced: 0 })
    }

    pub(crate) fn failed_ends(&self) -> u64 {
        self.shared.lock().failed_ends
    }

    /// What the flags of a received packet say, before its session is known.
    #[inline]
    pub(crate) fn note(&mut self, packet: &mut Buffer, flags: u64) {
        if flags & (SECURED | SECURITY_FAILED) != 0 {
            let is_refused = flags & SECURITY_FAILED != 0;
            packet.set_mark(if is_refused { Mark::refused_under(0) } else { Mark::opened_under(0) });
            self.came = true;
        }
    }

    /// Packets that were [noted](Self::note) in an earlier call are among those of this one.
    pub(crate) fn look_at_all(&mut self) {
        self.came = true;
    }

    /// Finds the sessions of packets that were [noted](Self::note).
    fn find(&mut self, frames: &mut [Buffer]) {
        if !std::mem::take(&mut self.came) {
            return;
        }
        let sessions = self.shared.lock();
        for frame in frames {
            let kind = frame.mark().kind();
            if kind == MarkKind::None {
                continue;
            }
            frame.set_mark(match (sessions.of_received(frame.bytes()), kind) {
                (Some(number), MarkKind::Opened) => Mark::opened_under(number),
                (Some(number), _) => Mark::refused_under(number),
                (None, _) => {
                    self.misplaced += 1;
                    Mark::NONE
                }
            });
        }
    }

    /// Ends sessions whose packets have all left.
    fn end_leaving(&mut self, mbufs: &Mbufs) {
        let mut sessions = self.shared.lock();
        if !sessions.has_leaving() {
            return;
        }
        let sent =
            (0..).zip(&self.sent_under).filter(|(number, serial)| **serial != 0 && mbufs.is_sending(*number));
        let under_way: HashSet<u32> = sent.map(|(_, serial)| *serial).collect();
        sessions.end_leaving(|serial| under_way.contains(&serial));
    }
}

impl DpdkDevice {
    /// What tells the device of SAs, and what it can do.
    ///
    /// # Errors
    /// Why it does no cryptography.
    pub fn security(&self) -> Result<DpdkSecurity, String> {
        match &self.security {
            Ok(security) => {
                let name = format!("DPDK's {} ({})", self.name, self.chosen.driver);
                let limits = security.shared.lock().limits();
                Ok(DpdkSecurity { name, limits, shared: security.shared.clone() })
            }
            Err(why) => Err(why.clone()),
        }
    }

    /// Whether a packet that the device is to seal cannot be: it does no cryptography, or finds nothing.
    #[inline]
    pub(crate) fn cannot_seal(&self, packet: &Buffer) -> bool {
        packet.mark().is_to_be_sealed()
            && (self.security.is_err() || place::Place::of(packet.bytes()).is_none())
    }

    /// Gives packets that are described already, and whose device is to seal them, what it needs for that.
    /// How many of them can be sent: up to the first one whose session is gone.
    #[inline]
    pub(crate) fn secure(&mut self, ready: &[(Known, bool)], batch: &Batch) -> usize {
        let Ok(security) = &mut self.security else { return ready.len() };
        security.sent_under.resize(self.mbufs.count(), 0);
        let mut sessions = None;
        for (at, ((known, _), packet)) in ready.iter().zip(batch).enumerate() {
            let mut serial = 0;
            if packet.mark().is_to_be_sealed() {
                let sessions = sessions
                    .get_or_insert_with(|| security.shared.0.lock().unwrap_or_else(PoisonError::into_inner));
                match sessions.prepare(known.handle(), packet.bytes(), packet.mark().session()) {
                    Some(prepared) => serial = prepared,
                    None => return at,
                }
            }
            security.sent_under[known.number] = serial;
        }
        ready.len()
    }

    /// These mbufs leave under no session.
    pub(crate) fn without_session(&mut self, leaving: &[(Known, bool)]) {
        let Ok(security) = &mut self.security else { return };
        security.sent_under.resize(self.mbufs.count(), 0);
        leaving.iter().for_each(|(known, _)| security.sent_under[known.number] = 0);
    }

    /// Packets do not leave after all.
    pub(crate) fn unsecure(&mut self, unsent: &[(Known, bool)]) {
        if let Ok(security) = &mut self.security {
            let sessions = security.shared.lock();
            unsent.iter().for_each(|(known, _)| sessions.undo(known.handle()));
        }
    }

    /// Looks after sessions: those of packets that have come, and those that are to end.
    #[inline]
    pub(crate) fn look_after_sessions(&mut self, frames: &mut [Buffer]) {
        let Ok(security) = &mut self.security else { return };
        security.find(frames);
        security.look_in = security.look_in.saturating_sub(1);
        if security.look_in == 0 {
            security.look_in = CALLS_PER_LOOK;
            security.end_leaving(&self.mbufs);
        }
    }

    /// The device has stopped, and all its sessions end.
    pub(crate) fn end_sessions(&mut self) {
        if let Ok(security) = &mut self.security {
            security.shared.lock().end_all();
        }
    }

    /// The device was reset.
    pub(crate) fn renew_security(&mut self) -> Result<(), Errno> {
        self.security.as_mut().map_or(Ok(()), |security| security.shared.lock().renew())
    }

    /// The device is closed.
    pub(crate) fn close_security(&mut self) {
        if let Ok(security) = &mut self.security {
            security.shared.lock().close();
        }
    }
}

/// A device of DPDK's that does cryptography as packets pass: its sessions. Clones of what it shares with the
/// port are on the port's worker.
pub struct DpdkSecurity {
    name: String,
    limits: DeviceLimits,
    shared: Shared,
}

impl fmt::Debug for DpdkSecurity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DpdkSecurity({})", self.name)
    }
}

impl SecurityDevice for DpdkSecurity {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> DeviceLimits {
        self.limits.clone()
    }

    fn generation(&self) -> u64 {
        self.shared.lock().generation()
    }

    fn create(&mut self, number: u16, session: SessionParameters<'_>) -> Result<(), DeviceError> {
        self.shared.lock().create(number, session)
    }

    /// A session for what is sent ends later, after its packets.
    fn destroy(&mut self, direction: Direction, number: u16) -> Result<(), DeviceError> {
        self.shared.lock().destroy(direction, number)
    }

    fn holds(&self, direction: Direction, number: u16) -> bool {
        self.shared.lock().holds(direction, number)
    }
}
