//! The thread's side: drives the engine.

use crate::keys::{Ids, KeyChange};
use crate::shared::{Jobs, Shared};
use crate::slot::{Ended, SLOT_JOBS, Slot};
use crate::sync::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, yield_now};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use testudo_crypto::{Direction, Engine, Job, JobStatus, KeyId, Reclaim, Suite};
use testudo_packet::{Aside, Buffer, Consumer, Producer};

/// Jobs that are asked for in one poll.
const POLL_MAX: usize = 1024;
/// How often the thread looks for jobs that have ended before it lets others have its processor.
const LOOKS: u32 = if cfg!(loom) { 0 } else { 64 };
/// How often it looks in all before it rests in between: for about a millisecond.
const LOOKS_AWAKE: u32 = 1024;
/// For how long it rests first and at most. Each rest is a quarter longer than the one before, so that what
/// the rests add to a job's time is a fraction of that.
const NAPS: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(10)];

/// What the thread tells of itself.
#[derive(Default)]
pub(crate) struct Told {
    /// The engine has ended in a panic.
    pub(crate) is_broken: AtomicBool,
    /// Slots that the thread has taken and changes of keys that it has followed: that it does something.
    pub(crate) steps: AtomicU64,
    /// On how many submissions the engine works by now, or that it is [out of service](OUT_OF_SERVICE); 0
    /// before anything was told.
    under_way: AtomicUsize,
    /// Whose the engine is that was recalled, once that is settled.
    returned: AtomicU8,
    /// How often the thread has been round: that it is in no call for ever. Not loom's: nothing follows from
    /// it but when the worker looks.
    turns: std::sync::atomic::AtomicU64,
    /// Keys that the engine has refused, by the worker's ids, until the worker takes them. Seldom any: what
    /// is allocated for one is so on the thread. Not loom's: it is held over no step that loom knows.
    refused: Mutex<Vec<KeyId>>,
}

/// The thread has handed the engine back, or the worker has given it up.
const HANDED_BACK: u8 = 1;
const GIVEN_UP: u8 = 2;

/// The engine says that it does nothing any more. No engine works on so many submissions.
const OUT_OF_SERVICE: usize = usize::MAX;

impl Told {
    /// Settles that it is the one, if it is not the other yet; whether it is.
    fn settle(&self, as_that: u8) -> bool {
        self.returned.compare_exchange(0, as_that, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// The worker does not want the engine any more. `false` if it is on its last way back.
    pub(crate) fn gives_up(&self) -> bool {
        self.settle(GIVEN_UP)
    }

    /// The worker has the engine, and may give it away again.
    pub(crate) fn has_come_back(&self) {
        self.returned.store(0, Ordering::Release);
    }

    /// On how many submissions the engine works by now, of `most` at first.
    pub(crate) fn under_way(&self, most: usize) -> usize {
        match self.under_way.load(Ordering::Relaxed) {
            0 => most,
            by_now => by_now.min(most),
        }
    }

    /// Whether the engine says that it does nothing any more.
    pub(crate) fn is_out_of_service(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) == OUT_OF_SERVICE
    }

    /// The engine has refused keys.
    pub(crate) fn refuses(&self, keys: impl IntoIterator<Item = KeyId>) {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).extend(keys);
    }

    /// One of these, if the thread is not at them.
    pub(crate) fn take_refused(&self) -> Option<KeyId> {
        self.refused.try_lock().ok()?.pop()
    }

    fn step(&self) {
        self.steps.fetch_add(1, Ordering::Relaxed);
    }

    /// How often the thread has been round.
    pub(crate) fn turns(&self) -> u64 {
        self.turns.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn turn(&self) {
        self.turns.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

/// A job that the engine has, as the worker knows it.
#[derive(Clone, Copy)]
struct Away {
    sa: u32,
    ticket: u32,
    direction: Direction,
    key: KeyId,
}

/// A place in the list, and how often it was used.
#[derive(Clone, Copy, Default)]
struct Place {
    uses: u16,
    away: Option<Away>,
}

/// The jobs that are on their way. A job's ticket is meanwhile its place here, in the lower half, and that
/// place's number of uses. A place that is free is used again after all others, so that a job that an engine
/// gives back a second time is not taken for the next one there.
pub(crate) struct List {
    places: Vec<Place>,
    free: VecDeque<u16>,
}

impl List {
    /// For so many jobs, 65,536 at most.
    pub(crate) fn new(jobs: usize) -> Self {
        Self { places: vec![Place::default(); jobs], free: (0..=u16::MAX).take(jobs).collect() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.places.len() == self.free.len()
    }

    /// Enters a job, which gets the engine's id of its key; `false` if there is no room, as never is so while
    /// the worker keeps to its bound.
    pub(crate) fn enter(&mut self, job: &mut Job, ids: &Ids) -> bool {
        let Some(at) = self.free.pop_front() else { return false };
        let away = Away { sa: job.sa, ticket: job.ticket, direction: job.direction, key: job.key };
        let Some(place) = self.places.get_mut(usize::from(at)) else { return false };
        *place = Place { uses: place.uses.wrapping_add(1), away: Some(away) };
        (job.ticket, job.key) = (u32::from(place.uses) << 16 | u32::from(at), ids.of(job.key));
        true
    }

    /// Takes a job out, which gets its own ticket again; `false` if it was not entered, or was taken out
    /// before.
    pub(crate) fn leave(&mut self, job: &mut Job) -> bool {
        let [low, high, uses @ ..] = job.ticket.to_le_bytes();
        let at = u16::from_le_bytes([low, high]);
        let Some(place) = self.places.get_mut(usize::from(at)) else { return false };
        let is_used = place.uses == u16::from_le_bytes(uses);
        let is_it = |away: &mut Away| is_used && away.sa == job.sa && away.direction == job.direction;
        let Some(away) = place.away.take_if(is_it) else { return false };
        (job.ticket, job.key) = (away.ticket, away.key);
        self.free.push_back(at);
        true
    }

    /// Empties it, and makes a stand-in for each job.
    pub(crate) fn stand_ins(&mut self) -> impl Iterator<Item = Job> + '_ {
        let free = &mut self.free;
        let left = (0..).zip(&mut self.places).filter_map(|(at, place)| Some((at, place.away.take()?)));
        left.map(|(at, away)| {
            free.push_back(at);
            let mut job = Job { ticket: away.ticket, ..Job::new(Buffer::default(), away.direction, away.sa) };
            spoil(&mut job);
            job
        })
    }
}

/// Makes of a job a fault that no engine can repair: the buffer may be sealed in part, and what is sealed
/// twice under one nonce may be plaintext.
fn spoil(job: &mut Job) {
    job.buffer.segments_mut().for_each(|segment| segment.fill(0));
    (job.text_start, job.text_bytes) = (u32::MAX, u32::MAX);
    job.status = JobStatus::Fault;
}

/// The engine, and what is on its way to it and back.
pub(crate) struct Device {
    /// `None` after a panic.
    pub(crate) engine: Option<Box<dyn Engine>>,
    pub(crate) ids: Ids,
    /// Jobs that the worker may take back.
    shared: Arc<Shared>,
    /// Whether the engine takes none because its device is late, if it says so.
    reclaims: Option<Arc<dyn Reclaim>>,
    /// The slot that was taken last: changes of keys that come after jobs which wait.
    current: Slot,
    /// Jobs that the engine has in hand in this call; empty between calls.
    hand: Vec<Job>,
    /// The worker has flushed, and the engine was not told yet.
    flush_is_due: bool,
    /// The worker wants the engine back.
    is_recalled: bool,
    /// The engine was flushed because it took no more, and has taken nothing since.
    is_pressed: bool,
    polled: Vec<Job>,
    told: Arc<Told>,
    /// Where times are booked, if anybody asks for them.
    aside: Option<Arc<Aside>>,
    /// When time was last booked, if the engine had jobs then.
    busy_since: Option<Instant>,
    /// The suite whose profile says on how many submissions the engine works, and what was told last.
    deepest: Option<Suite>,
    last_told: usize,
}

/// A device, and the thread's ends of the rings.
pub(crate) struct Served {
    pub(crate) device: Device,
    pub(crate) slots: Consumer<Slot>,
    pub(crate) results: Producer<Ended>,
}

impl Device {
    /// With the jobs that it shares with the worker.
    pub(crate) fn new(
        engine: Box<dyn Engine>,
        shared: Arc<Shared>,
        told: Arc<Told>,
        aside: Option<Arc<Aside>>,
    ) -> Self {
        let suites = Suite::every().filter(|suite| engine.capability(*suite).is_some());
        let deepest = suites.max_by_key(|suite| engine.profile(*suite).depth_jobs);
        Self {
            reclaims: engine.reclaims(),
            engine: Some(engine),
            ids: Ids::default(),
            shared,
            current: Slot::new(),
            hand: Vec::with_capacity(SLOT_JOBS),
            flush_is_due: false,
            is_recalled: false,
            is_pressed: false,
            polled: Vec::with_capacity(POLL_MAX),
            told,
            aside,
            busy_since: None,
            deepest,
            last_told: 0,
        }
    }

    pub(crate) fn engine_mut(&mut self) -> Option<&mut Box<dyn Engine>> {
        self.engine.as_mut()
    }

    /// Works until the ring is closed: what was not done by then goes with it, the buffers back to their
    /// pool. Or until it is recalled, and all that came before has gone back.
    pub(crate) fn serve(mut self, mut slots: Consumer<Slot>, mut results: Producer<Ended>) -> Option<Served> {
        let [first_nap, longest_nap] = NAPS;
        let (mut looks, mut nap) = (0, first_nap);
        while !slots.is_closed() {
            self.told.turn();
            let began = self.aside.is_some().then(Instant::now);
            let moved = catch_unwind(AssertUnwindSafe(|| self.turn(&mut slots)));
            let moved = moved.unwrap_or_else(|_| self.break_down());
            let given = self.give_back(&mut results);
            let is_empty = self.current.is_empty() && self.shared.lock().is_empty();
            self.book(given, began.filter(|_| moved || given > 0));
            if moved || given > 0 {
                (looks, nap) = (0, first_nap);
            } else if is_empty && self.is_recalled {
                self.is_recalled = false;
                // One that was given up ends here: the worker must not wait for its driver.
                let is_wanted = self.told.settle(HANDED_BACK);
                return is_wanted.then_some(Served { device: self, slots, results });
            } else if is_empty && !self.rests() {
                slots.sleep();
            } else if looks < LOOKS_AWAKE {
                looks += 1;
                if looks < LOOKS { std::hint::spin_loop() } else { yield_now() }
            } else {
                // Where the engine takes no more, what is published behind is no reason to wake.
                match self.has_waiting() {
                    false => slots.sleep_for(nap),
                    true => std::thread::sleep(nap),
                }
                nap = longest_nap.min(nap + nap / 4);
            }
        }
        None
    }

    /// Whether the engine's device is late, for which somebody has to look.
    fn rests(&self) -> bool {
        self.reclaims.as_ref().is_some_and(|engine| engine.rests())
    }

    /// Whether there is anything that the engine has not taken.
    fn has_waiting(&self) -> bool {
        !self.current.is_empty() || !self.shared.lock().waiting.is_empty()
    }

    /// Gives the engine what there is, and takes what has ended; whether anything moved.
    fn turn(&mut self, slots: &mut Consumer<Slot>) -> bool {
        let mut moved = false;
        while self.submit() && self.take(slots) {
            moved = true;
        }
        let has_waiting = self.has_waiting();
        let Some(engine) = &mut self.engine else { return moved };
        if !has_waiting {
            if std::mem::take(&mut self.flush_is_due) {
                engine.flush();
                moved = true;
            }
        } else if !self.is_pressed {
            // It may be full of what it gathers until it is flushed, and the worker's flush is behind.
            self.is_pressed = true;
            engine.flush();
            moved = true;
        }
        engine.poll(&mut self.polled, POLL_MAX);
        let any = self.restore();
        let has_ended = !self.shared.lock().ended.is_empty();
        if moved || any || has_ended {
            self.tell();
        }
        moved | any
    }

    /// Has the engine follow a change of keys on the worker's thread.
    pub(crate) fn follow(&mut self, change: KeyChange) {
        let Self { engine: Some(engine), ids, told, .. } = self else { return };
        if let Some(refused) = ids.follow(change, engine.as_mut()) {
            told.refuses([refused]);
        }
    }

    /// Tells on how many submissions the engine works by now, and whether it does anything at all, before
    /// what has ended goes back: who asks after a fault is to be told what caused it. That may change with
    /// any call, as when a device is lost.
    pub(crate) fn tell(&mut self) {
        let (Some(engine), Some(suite)) = (&self.engine, self.deepest) else { return };
        let now = match engine.is_out_of_service() {
            true => OUT_OF_SERVICE,
            false => engine.profile(suite).under_way,
        };
        if now != std::mem::replace(&mut self.last_told, now) {
            self.told.under_way.store(now, Ordering::Relaxed);
        }
    }

    /// Takes the next slot; `false` if there is none.
    fn take(&mut self, slots: &mut Consumer<Slot>) -> bool {
        let (current, due, recalled) = (&mut self.current, &mut self.flush_is_due, &mut self.is_recalled);
        let is_taken = slots.take(|slot| {
            slot.move_to(current);
            slot.is_taken = true;
            *due |= std::mem::take(&mut current.flushes);
            *recalled |= std::mem::take(&mut current.recalls);
            true
        });
        if is_taken {
            self.told.step();
            let Self { current, shared, ids, .. } = self;
            let Jobs { list, waiting, ended } = &mut *shared.lock();
            for mut job in current.jobs.drain(..) {
                match list.enter(&mut job, ids) {
                    true => waiting.push(job),
                    false => ended.push(Job { status: JobStatus::Fault, ..job }),
                }
            }
        }
        is_taken
    }

    /// Gives the engine what waits for it; `false` if it does not take all of it now. While its device is
    /// late none is to wait for that.
    fn submit(&mut self) -> bool {
        let Self { engine, ids, shared, current, hand, is_pressed, told, reclaims, .. } = self;
        let rests = || reclaims.as_ref().is_some_and(|engine| engine.rests());
        let Some(engine) = engine else {
            current.changes.clear();
            shared.lock().end_waiting();
            return true;
        };
        loop {
            // In no hand either, while somebody asks the device.
            if rests() {
                shared.lock().end_waiting();
            }
            hand.append(&mut shared.lock().waiting);
            if hand.is_empty() {
                break;
            }
            let taken = engine.submit(hand).min(hand.len());
            let Jobs { list, waiting, ended } = &mut *shared.lock();
            for mut job in hand.drain(..taken) {
                // Those that are away come back by `poll`.
                if job.status != JobStatus::Taken && list.leave(&mut job) {
                    ended.push(job);
                }
            }
            waiting.append(hand);
            *is_pressed &= taken == 0;
            if taken == 0 {
                break;
            }
        }
        if rests() {
            shared.lock().end_waiting();
        }
        if !shared.lock().waiting.is_empty() {
            return false;
        }
        for change in current.changes.drain(..) {
            if let Some(refused) = ids.follow(change, engine.as_mut()) {
                told.refuses([refused]);
            }
            told.step();
        }
        true
    }

    /// Takes over what the last poll has brought, as far as the engine had it; whether there was any.
    fn restore(&mut self) -> bool {
        let Self { polled, shared, .. } = self;
        if polled.is_empty() {
            return false;
        }
        let Jobs { list, ended, .. } = &mut *shared.lock();
        ended.extend(polled.drain(..).filter_map(|mut job| list.leave(&mut job).then_some(job)));
        true
    }

    /// Brings what has ended to the worker; returns how many jobs that it had room for.
    fn give_back(&mut self, results: &mut Producer<Ended>) -> usize {
        let (mut given, ended) = (0, &mut self.shared.lock().ended);
        while given < ended.len() {
            let most = SLOT_JOBS.min(ended.len() - given);
            let jobs = ended.iter_mut().skip(given).take(most);
            if !results.publish(|slot| slot.extend(jobs.map(moved))) {
                break;
            }
            given += most;
        }
        ended.drain(..given);
        given
    }

    /// Books that so many jobs have gone back, the time in which the engine had any, and what the thread has
    /// worked.
    fn book(&mut self, given: usize, working_since: Option<Instant>) {
        let Some(aside) = &self.aside else { return };
        working_since.into_iter().for_each(|since| aside.add_work(since));
        let is_busy = !self.shared.lock().list.is_empty();
        if self.busy_since.is_none() && !is_busy && given == 0 {
            return;
        }
        let now = Instant::now();
        let busy = self.busy_since.map_or(Duration::ZERO, |since| now - since);
        aside.add_jobs(given, busy);
        self.busy_since = is_busy.then_some(now);
    }

    /// The engine has panicked: it is not called again, and what it had ends.
    #[cold]
    fn break_down(&mut self) -> bool {
        self.told.is_broken.store(true, Ordering::Release);
        let engine = self.engine.take();
        self.reclaims = None;
        let name = engine.as_ref().map_or("", |engine| engine.name());
        tracing::error!(
            "engine {name} has ended in a panic and is out of service until a restart; this is a bug"
        );
        // What the last poll had brought before is whole.
        self.restore();
        {
            let jobs = &mut *self.shared.lock();
            // Whatever that call has made of them.
            for mut job in self.hand.drain(..) {
                if job.status != JobStatus::Taken && jobs.list.leave(&mut job) {
                    spoil(&mut job);
                    jobs.ended.push(job);
                }
            }
            jobs.end_waiting();
            jobs.ended.extend(jobs.list.stand_ins());
        }
        self.current.changes.clear();
        // Its jobs go with it, and their buffers to their pool.
        if catch_unwind(AssertUnwindSafe(|| drop(engine))).is_err() {
            tracing::error!("the same engine has ended in a panic a second time, when it was to end");
        }
        true
    }
}

/// A job out of a place that is given up.
fn moved(job: &mut Job) -> Job {
    let status = job.status;
    Job { status, ..job.take() }
}
