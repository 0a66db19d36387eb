//! What the engine and the port of a device share.

use crate::check::Software;
use crate::sessions::{Session, Sessions, State, direction_of};
use crate::shape;
use fastrand::Rng;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use testudo_crypto::{
    DeviceError, DeviceLimits, Direction, Job, JobStatus, KeyId, KeyMaterial, OffloadCounts, OffloadReport,
    OffloadState, SaFacts, SecurityDevice, SecurityMode, SecurityProtocol, SessionParameters,
};
use testudo_packet::{Buffer, Mark, MarkKind};

/// How much of what a device does is checked by software.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checks {
    /// One packet of so many, by chance; 1 for all.
    pub one_of: u32,
    /// Differences after which a device is out of service.
    pub tolerated: u64,
    /// Seed of chance. An attacker who knew it could tell which packets are not checked.
    pub seed: u64,
}

impl Checks {
    /// One of 1,024 packets, and none may differ.
    #[must_use]
    pub const fn usual(seed: u64) -> Self {
        Self { one_of: 1024, tolerated: 0, seed }
    }
}

/// Packets in a row that a device should have opened and did not, after which its session is of no use.
const USELESS_AFTER: u32 = 256;
/// Of these so many are checked for being open.
const MISSES_CHECKED: u32 = 32;

/// A device, its sessions, and software beside it. Clones are the same.
#[derive(Clone)]
pub struct Nic {
    shared: Arc<Mutex<Shared>>,
    /// How often the port had given all that it had.
    drained: Arc<AtomicU64>,
}

impl Nic {
    /// A device that nothing uses yet, and the software beside it.
    pub(crate) fn new(device: Box<dyn SecurityDevice>, software: Software, checks: Checks) -> Self {
        let drained = Arc::new(AtomicU64::new(0));
        let shared = Shared {
            limits: device.limits(),
            generation: device.generation(),
            device,
            software,
            sealing: Sessions::default(),
            opening: Sessions::default(),
            counts: OffloadCounts::default(),
            out_of_service: None,
            checks,
            random: Rng::with_seed(checks.seed),
            until_check: 1,
            unsettled: Vec::new(),
            drained: Arc::clone(&drained),
        };
        Self { shared: Arc::new(Mutex::new(shared)), drained }
    }

    /// Nobody else has it for long: the worker alone calls.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it has done.
    #[must_use]
    pub fn report(&self) -> OffloadReport {
        self.lock().report()
    }

    /// Packets to be sealed were dropped.
    pub(crate) fn forget(&self, marks: &[Mark]) {
        let mut shared = self.lock();
        let sealing = marks.iter().filter(|mark| mark.is_to_be_sealed());
        sealing.for_each(|mark| shared.unmark(mark.session(), 1));
    }

    /// The port has given all that it had.
    pub(crate) fn note_drained(&self) {
        self.drained.fetch_add(1, Ordering::Relaxed);
    }
}

/// A packet that the device was asked to show, as it was given to it.
pub(crate) struct Watched {
    session: u16,
    software: KeyId,
    facts: SaFacts,
    clear: Vec<u8>,
}

pub(crate) struct Shared {
    pub(crate) device: Box<dyn SecurityDevice>,
    pub(crate) limits: DeviceLimits,
    generation: u64,
    software: Software,
    sealing: Sessions,
    opening: Sessions,
    pub(crate) counts: OffloadCounts,
    out_of_service: Option<String>,
    checks: Checks,
    random: Rng,
    /// Packets until the next one is checked.
    until_check: u32,
    /// Numbers whose last packets have been given to the device.
    unsettled: Vec<u16>,
    /// The same as [`Nic::drained`].
    drained: Arc<AtomicU64>,
}

impl Shared {
    pub(crate) fn sessions(&mut self, direction: Direction) -> &mut Sessions {
        match direction {
            Direction::Seal => &mut self.sealing,
            Direction::Open => &mut self.opening,
        }
    }

    pub(crate) fn report(&self) -> OffloadReport {
        let use_of = |sessions: &Sessions, direction| (sessions.live, self.limits.sessions(direction));
        OffloadReport {
            device: self.device.name().to_owned(),
            out_of_service: self.out_of_service.clone(),
            sealing: use_of(&self.sealing, Direction::Seal),
            opening: use_of(&self.opening, Direction::Open),
            counts: self.counts,
        }
    }

    pub(crate) fn is_in_service(&self) -> bool {
        self.out_of_service.is_none()
    }

    pub(crate) fn room(&self, direction: Direction) -> usize {
        let sessions = if direction == Direction::Seal { &self.sealing } else { &self.opening };
        let room = self.limits.sessions(direction).saturating_sub(sessions.live);
        if self.is_in_service() { room } else { 0 }
    }

    /// Notices a reset.
    #[inline]
    pub(crate) fn notice_reset(&mut self) {
        let generation = self.device.generation();
        if generation != self.generation {
            self.generation = generation;
            self.counts.resets += 1;
            let drained = self.drained();
            let mut over = self.sealing.lose_all(drained);
            over.append(&mut self.opening.lose_all(drained));
            over.into_iter().for_each(|key| self.software.remove(key));
        }
    }

    fn drained(&self) -> u64 {
        self.drained.load(Ordering::Relaxed)
    }

    pub(crate) fn admit(
        &mut self,
        direction: Direction,
        key: &KeyMaterial,
        facts: &SaFacts,
    ) -> Result<KeyId, OffloadState> {
        self.notice_reset();
        self.limits.check(facts)?;
        if direction == Direction::Seal && facts.esn {
            // A packet has the low half of its number: software could not seal it in the device's stead.
            return Err(OffloadState::Esn);
        }
        if !self.is_in_service() {
            return Err(OffloadState::OutOfService);
        }
        let number = self.sessions(direction).next_number().filter(|_| self.room(direction) > 0);
        let number = number.ok_or(OffloadState::TableFull)?;
        let software = self.software.install(key).map_err(|_| OffloadState::Suite)?;
        let session = SessionParameters { direction, sa: facts, key };
        if let Err(error) = self.device.create(number, session) {
            self.software.remove(software);
            self.counts.failed_calls += 1;
            return Err(match error {
                DeviceError::Full => OffloadState::TableFull,
                DeviceError::Addresses => OffloadState::Addresses,
                DeviceError::Failed(_) => OffloadState::Refused,
            });
        }
        self.counts.sessions_made += 1;
        let session = Session {
            facts: facts.clone(),
            direction,
            key: KeyId::NONE,
            software,
            state: State::Live,
            lingers: false,
            has_key: true,
            marked: 0,
            closed_at: 0,
            opened: 0,
            missed: 0,
        };
        Ok(self.sessions(direction).insert(number, session))
    }

    /// Ends a session in the device; what remains of it stays.
    pub(crate) fn close(&mut self, key: KeyId) {
        self.notice_reset();
        let (direction, drained) = (direction_of(key), self.drained());
        let Some((number, session)) = self.sessions(direction).of_key(key) else { return };
        session.closed_at = drained;
        if session.state == State::Live {
            session.lingers = true;
            self.sessions(direction).leave(number, State::Closed);
            self.end_in_device(direction, number);
        }
    }

    fn end_in_device(&mut self, direction: Direction, number: u16) {
        match self.device.destroy(direction, number) {
            Ok(()) => {
                self.counts.sessions_ended += 1;
                let drained = self.drained();
                if let Some(session) = self.sessions(direction).get_mut(number) {
                    // Until now it may have opened packets.
                    (session.lingers, session.closed_at) = (false, drained);
                }
                self.settle(direction, number);
            }
            Err(_) => self.counts.failed_calls += 1,
        }
    }

    /// Tries again to end a session that the device did not end.
    pub(crate) fn end_lingering(&mut self) {
        for direction in [Direction::Seal, Direction::Open] {
            if let Some(number) = self.sessions(direction).lingering() {
                return self.end_in_device(direction, number);
            }
        }
    }

    /// No job comes under this key any more.
    pub(crate) fn remove(&mut self, key: KeyId) {
        self.close(key);
        let direction = direction_of(key);
        if let Some((number, session)) = self.sessions(direction).of_key(key) {
            session.has_key = false;
            self.settle(direction, number);
        }
    }

    fn settle(&mut self, direction: Direction, number: u16) {
        if let Some(software) = self.sessions(direction).settle(number) {
            self.software.remove(software);
        }
    }

    /// Whether the port has given all that the device may have opened under a session that was closed.
    pub(crate) fn is_drained(&mut self, key: KeyId) -> bool {
        let drained = self.drained();
        let session = self.sessions(direction_of(key)).of_key(key).map(|(_, session)| session);
        // Once more than that: the device may have been about to give what it had opened.
        session.is_none_or(|session| !session.lingers && drained > session.closed_at + 1)
    }

    pub(crate) fn state(&mut self, key: KeyId) -> OffloadState {
        self.notice_reset();
        let is_in_service = self.is_in_service();
        match self.sessions(direction_of(key)).of_key(key) {
            _ if !is_in_service => OffloadState::OutOfService,
            Some((_, session)) => match session.state {
                State::Live if session.missed >= USELESS_AFTER => OffloadState::NotOpened,
                State::Live => OffloadState::InNic,
                State::Closed => OffloadState::Leaving,
                State::Lost => OffloadState::Reset,
            },
            None => OffloadState::Reset,
        }
    }

    /// Whether chance has it that this packet is checked.
    #[inline]
    fn is_checked(&mut self) -> bool {
        self.until_check -= 1;
        if self.until_check > 0 {
            return false;
        }
        // On average one of so many; nobody can tell which.
        self.until_check = self.random.u32(1..=(2 * self.checks.one_of).saturating_sub(1).max(1));
        true
    }

    /// The device has given another answer than software.
    #[cold]
    fn differ(&mut self, what: &str, facts: &SaFacts) {
        self.counts.differences += 1;
        if self.counts.differences > self.checks.tolerated && self.is_in_service() {
            let protocol = if facts.protocol == SecurityProtocol::Esp { "ESP" } else { "AH" };
            let why = format!(
                "{what} (SPI {:#010x}, {protocol}, {}) differs from software",
                facts.spi, facts.suite
            );
            self.out_of_service = Some(why);
        }
    }

    /// Runs one job of the engine.
    #[inline]
    pub(crate) fn run(&mut self, job: &mut Job) -> JobStatus {
        match job.direction {
            Direction::Seal => self.mark(job),
            Direction::Open => self.judge(job),
        }
    }

    /// Leaves a packet to the device, if it does such.
    #[inline]
    fn mark(&mut self, job: &mut Job) -> JobStatus {
        let (is_in_service, limit) = (self.is_in_service(), self.limits.datagram_bytes);
        let Some((number, session)) = self.sealing.of_key(job.key) else { return JobStatus::Fault };
        let protocol = session.facts.protocol;
        let icv_bytes = session.facts.suite.icv_bytes();
        let icv_at = (job.text_start + job.text_bytes) as usize;
        let refused = match () {
            () if session.state != State::Live || !is_in_service => &mut self.counts.session_gone,
            () if job.then & session.facts.changed_if != 0 => &mut self.counts.changed_later,
            () if !shape::is_plain(job, protocol) => &mut self.counts.headers,
            () if shape::datagram_bytes(job, protocol) > limit => &mut self.counts.too_long,
            () => {
                let Some(icv) = job.buffer.bytes_mut().get_mut(icv_at..icv_at + icv_bytes) else {
                    return JobStatus::Fault;
                };
                icv.fill(0);
                session.marked += 1;
                job.buffer.set_mark(Mark::seal_under(number));
                return JobStatus::Done;
            }
        };
        *refused += 1;
        JobStatus::Fault
    }

    /// Says what the device's verdict on a received packet is worth.
    #[inline]
    fn judge(&mut self, job: &mut Job) -> JobStatus {
        let mark = job.buffer.mark();
        job.buffer.set_mark(Mark::NONE);
        let is_in_service = self.is_in_service();
        let Some((number, session)) = self.opening.of_key(job.key) else { return JobStatus::Fault };
        let is_ours = is_in_service && session.state == State::Live && mark.session() == number;
        match mark.kind() {
            MarkKind::Opened if is_ours && is_plausible(job, &session.facts) => {
                session.opened += 1;
                session.missed = 0;
                self.counts.opened += 1;
                if self.is_checked() { self.spot_check(job) } else { JobStatus::Done }
            }
            MarkKind::Opened => {
                self.counts.doubtful += 1;
                let is_right = self.is_opened(job);
                if !is_right && is_ours {
                    self.tell_difference(job, "a packet that it says it opened");
                }
                if is_right { JobStatus::Done } else { JobStatus::Fault }
            }
            MarkKind::Refused if self.limits.leaves_refused_unchanged => {
                self.counts.refused += 1;
                JobStatus::Fault
            }
            MarkKind::Refused if is_ours => {
                self.counts.refused += 1;
                self.judge_refused(job)
            }
            _ => self.judge_unmarked(job),
        }
    }

    /// A packet that the device refused, and has changed by then: it may be open, and right. To find out
    /// costs what it costs software to refuse it.
    #[cold]
    fn judge_refused(&mut self, job: &Job) -> JobStatus {
        if self.is_opened(job) {
            self.tell_difference(job, "a packet that it says it refused");
            return JobStatus::Done;
        }
        JobStatus::AuthenticationFailed
    }

    /// A packet of an SA of the device that it did not open, or does not say so.
    fn judge_unmarked(&mut self, job: &mut Job) -> JobStatus {
        self.counts.unmarked += 1;
        let Some((_, session)) = self.opening.of_key(job.key) else { return JobStatus::Fault };
        if !shape::is_plain(job, session.facts.protocol) {
            return JobStatus::Fault;
        }
        session.missed = session.missed.saturating_add(1);
        // It may be open without saying so: software would take clear text for a forgery.
        if session.missed <= MISSES_CHECKED && self.is_opened(job) {
            JobStatus::Done
        } else {
            JobStatus::Fault
        }
    }

    #[cold]
    fn spot_check(&mut self, job: &Job) -> JobStatus {
        self.counts.spot_checks += 1;
        if self.is_opened(job) {
            return JobStatus::Done;
        }
        self.tell_difference(job, "a packet that it says it opened");
        JobStatus::Fault
    }

    #[cold]
    fn tell_difference(&mut self, job: &Job, what: &str) {
        if let Some(facts) = self.opening.of_key(job.key).map(|(_, session)| session.facts.clone()) {
            self.differ(what, &facts);
        }
    }

    /// Whether software finds the packet of a job to open in clear and authentic.
    fn is_opened(&mut self, job: &Job) -> bool {
        let Some((_, session)) = self.opening.of_key(job.key) else { return false };
        self.software.is_opened(job, session.software, session.facts.suite.icv_bytes())
    }

    /// Has software seal a packet whose session the device does not have. `false` if that was not possible:
    /// the packet must be dropped. `Ok(true)` where the device will.
    pub(crate) fn secure(&mut self, packet: &mut Buffer) -> bool {
        let number = packet.mark().session();
        let is_in_service = self.is_in_service();
        let Some(session) = self.sealing.get_mut(number) else { return false };
        if session.state == State::Live && is_in_service {
            return true;
        }
        let is_sealed = self.software.seal(packet, session.software, &session.facts);
        if is_sealed {
            packet.set_mark(Mark::NONE);
            self.counts.sealed_after_loss += 1;
            self.unmark(number, 1);
        }
        is_sealed
    }

    /// A packet at the head of a batch was not sent: whether its session has gone without a reset.
    pub(crate) fn notice_loss(&mut self, number: u16) {
        if !self.device.holds(Direction::Seal, number) {
            self.sealing.leave(number, State::Lost);
        }
    }

    /// So many packets of a number have left with the device, or were dropped.
    pub(crate) fn unmark(&mut self, number: u16, packets: u64) {
        if let Some(session) = self.sealing.get_mut(number) {
            session.marked = session.marked.saturating_sub(packets);
            self.settle(Direction::Seal, number);
        }
    }

    /// So many packets are given to the device. Those that stay after all are [marked
    /// again](Self::mark_again).
    pub(crate) fn unmark_for_now(&mut self, number: u16, packets: u64) {
        if packets > 0
            && let Some(session) = self.sealing.get_mut(number)
        {
            session.marked = session.marked.saturating_sub(packets);
            self.counts.sealed += packets;
            if session.marked == 0 && !session.has_key {
                self.unsettled.push(number);
            }
        }
    }

    /// The device did not take it.
    pub(crate) fn mark_again(&mut self, number: u16) {
        if let Some(session) = self.sealing.get_mut(number) {
            session.marked += 1;
            self.counts.sealed -= 1;
        }
    }

    /// Ends the records of sessions whose last packets have left.
    pub(crate) fn settle_marks(&mut self) {
        while let Some(number) = self.unsettled.pop() {
            self.settle(Direction::Seal, number);
        }
    }

    /// Whether the device has the session of packets to be sealed.
    pub(crate) fn is_live(&mut self, number: u16) -> bool {
        let is_in_service = self.is_in_service();
        self.sealing.get_mut(number).is_some_and(|session| session.state == State::Live && is_in_service)
    }

    /// Asks the device for a copy of a packet that it is about to seal, if chance has it.
    pub(crate) fn watch(&mut self, packet: &[u8], number: u16) -> Option<Watched> {
        if !self.is_checked() {
            return None;
        }
        let session = self.sealing.get_mut(number)?;
        let is_watched = self.device.watch_next();
        is_watched.then(|| Watched {
            session: number,
            software: session.software,
            facts: session.facts.clone(),
            clear: packet.to_vec(),
        })
    }

    /// Compares what was sent with what should have been.
    pub(crate) fn compare(&mut self, watched: &Watched) {
        let Some(sealed) = self.device.take_watched() else { return };
        // Another packet may have gone first: they are told apart by SPI and number. And the key must still
        // be the one that this packet had.
        let Watched { session, software, ref facts, ref clear } = *watched;
        let is_same_key = self.sealing.get_mut(session).is_some_and(|session| session.software == software);
        if !is_same_key || !is_same_packet(clear, &sealed, facts.protocol) {
            return;
        }
        self.counts.spot_checks += 1;
        if !self.software.has_sealed(clear, &sealed, software, facts) {
            self.differ("a packet that it sealed", facts);
        }
    }
}

#[inline]
fn is_plausible(job: &Job, facts: &SaFacts) -> bool {
    if facts.protocol == SecurityProtocol::Ah {
        return true;
    }
    let text = job.text_start as usize..(job.text_start + job.text_bytes) as usize;
    let text = job.buffer.bytes().get(text);
    text.is_some_and(|text| shape::has_plausible_trailer(text, facts.mode == SecurityMode::Tunnel))
}

/// Whether two datagrams have the same SPI and number.
fn is_same_packet(one: &[u8], other: &[u8], protocol: SecurityProtocol) -> bool {
    let at = match protocol {
        SecurityProtocol::Esp => 0,
        SecurityProtocol::Ah => 4,
    };
    let place = shape::plain_header_bytes(one, protocol).map(|header| header + at..header + at + 8);
    place.is_some_and(|place| one.get(place.clone()).is_some_and(|bytes| other.get(place) == Some(bytes)))
}
