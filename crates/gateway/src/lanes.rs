//! The dispatcher's view of SAs.
//!
//! An SA's lane says which engine its jobs are submitted to first. Jobs that may end later than their
//! successors are kept in the SA's order by its ring ([`rings`](crate::rings)).

use crate::in_flight::Taken;
use crate::placement::SaKey;
use crate::rings::{JobId, RingIndex, Rings, lost_job, orphaned};
use std::collections::HashMap;
use testudo_crypto::{Direction, Job, KeyId};
use testudo_ipsec::{Prepared, SaRef};
use testudo_packet::prefetch;

/// Up to this many lanes fit in the first-level cache, 16 KiB of it; prefetch only beyond.
const NEAR: usize = 512;

/// Index of an engine that does not exist.
pub(crate) const NO_ENGINE: u32 = u32::MAX;

/// The engine that an SA's jobs are submitted to first, and the id of the SA's key there.
pub(crate) type First = (u32, KeyId);

/// No engine: where the key is to be laid out is found out with the SA's next packet.
pub(crate) const NOWHERE: First = (NO_ENGINE, KeyId::NONE);

/// The dispatcher's view of one SA. Two of them share a cache line, of which every packet reads one.
#[derive(Debug, Clone, Copy)]
#[repr(align(32))]
pub(crate) struct Lane {
    pub(crate) sa: SaRef,
    pub(crate) first: First,
    /// The key, from which others than the first engine get theirs.
    pub(crate) key: SaKey,
    pub(crate) suite_rank: u8,
    /// `first` is the best of several engines, for now.
    pub(crate) is_settled: bool,
    /// Ticket of the next job to submit. SAs that use a slot one after the other count on, so that a job of
    /// one is not taken for a job of another.
    next_ticket: u32,
    /// The jobs that are under way, if there are any.
    ring: RingIndex,
}

const _: () = assert!(size_of::<Lane>() == 32);

impl Lane {
    pub(crate) fn new(sa: SaRef, first: First, key: SaKey, suite_rank: u8) -> Self {
        Self { sa, first, key, suite_rank, is_settled: false, next_ticket: 0, ring: RingIndex::NONE }
    }

    /// From now on its jobs go to the only engine that takes them, or to none.
    pub(crate) fn name(&mut self, first: First) {
        (self.first, self.is_settled) = (first, false);
    }

    /// The engine that is named for it, unless others may get its jobs, too.
    pub(crate) fn only(&self) -> First {
        if self.is_settled { NOWHERE } else { self.first }
    }

    /// A slot without an SA.
    fn vacant(next_ticket: u32) -> Self {
        Self { next_ticket, ..Self::new(SaRef::NOBODY, NOWHERE, SaKey::NONE, 0) }
    }
}

/// The lanes of both directions, by the slots of their SAs.
#[derive(Debug, Default)]
struct Table {
    outbound: Vec<Lane>,
    inbound: Vec<Lane>,
}

impl Table {
    #[inline]
    fn of_direction(&self, direction: Direction) -> &[Lane] {
        match direction {
            Direction::Seal => &self.outbound,
            Direction::Open => &self.inbound,
        }
    }

    fn of_direction_mut(&mut self, direction: Direction) -> &mut Vec<Lane> {
        match direction {
            Direction::Seal => &mut self.outbound,
            Direction::Open => &mut self.inbound,
        }
    }

    #[inline]
    fn get(&self, direction: Direction, sa: SaRef) -> Option<&Lane> {
        self.of_direction(direction).get(sa.slot()).filter(|lane| lane.sa == sa)
    }

    #[inline]
    fn get_mut(&mut self, direction: Direction, sa: SaRef) -> Option<&mut Lane> {
        self.of_direction_mut(direction).get_mut(sa.slot()).filter(|lane| lane.sa == sa)
    }
}

/// All SAs of both directions, and their jobs that are under way.
#[derive(Debug)]
pub(crate) struct Lanes {
    table: Table,
    rings: Rings,
    /// What engines hold of SAs that were removed. Bounded by the pool, since every job has a buffer.
    strays: HashMap<JobId, Taken>,
}

impl Lanes {
    /// No SAs yet, and a pool of `buffers` buffers.
    pub(crate) fn new(buffers: usize) -> Self {
        Self { table: Table::default(), rings: Rings::new(buffers), strays: HashMap::new() }
    }

    /// Takes memory now for so many jobs that have ended and wait for earlier ones.
    pub(crate) fn reserve(&mut self, jobs: usize) {
        self.rings.reserve(jobs);
    }

    pub(crate) fn insert(&mut self, direction: Direction, lane: Lane) {
        let (lanes, slot) = (self.table.of_direction_mut(direction), lane.sa.slot());
        if lanes.len() <= slot {
            lanes.resize(slot + 1, Lane::vacant(0));
        }
        lanes[slot] = Lane { next_ticket: lanes[slot].next_ticket, ..lane };
    }

    /// Forgets an SA. Its jobs that have already ended go to `released`, where their SA is no longer known.
    pub(crate) fn remove(
        &mut self,
        direction: Direction,
        sa: SaRef,
        released: &mut Vec<Job>,
    ) -> Option<Lane> {
        let lane = self.table.get_mut(direction, sa)?;
        let removed = std::mem::replace(lane, Lane::vacant(lane.next_ticket));
        self.rings.end(removed.ring, released, |id, taken| {
            self.strays.insert(id, taken);
        });
        Some(removed)
    }

    /// Prefetches the lanes of jobs when there are too many for the cache. The jobs of a batch have one
    /// direction.
    #[inline]
    pub(crate) fn prefetch(&self, jobs: &[Job]) {
        let Some(first) = jobs.first() else { return };
        let lanes = self.table.of_direction(first.direction);
        if lanes.len() <= NEAR {
            return;
        }
        for job in jobs {
            if let Some(lane) = lanes.get(Prepared::sa_of(job).slot()) {
                prefetch(lane);
            }
        }
    }

    /// The SA of a job, unless it has gone.
    #[inline]
    pub(crate) fn of(&self, job: &Job) -> Option<&Lane> {
        self.table.get(job.direction, Prepared::sa_of(job))
    }

    /// An SA, to be changed.
    pub(crate) fn get_mut(&mut self, direction: Direction, sa: SaRef) -> Option<&mut Lane> {
        self.table.get_mut(direction, sa)
    }

    /// The SA of a job, to be changed.
    pub(crate) fn of_mut(&mut self, job: &Job) -> Option<&mut Lane> {
        self.table.get_mut(job.direction, Prepared::sa_of(job))
    }

    /// The SA of a job that has a ticket, unless it has gone. (A later SA may have its handle.)
    pub(crate) fn of_ticket(&self, job: &Job) -> Option<&Lane> {
        self.of(job).filter(|lane| self.rings.awaits(lane.ring, job.ticket))
    }

    /// Whether no job of an SA is under way.
    pub(crate) fn is_over(&self, direction: Direction, sa: SaRef) -> bool {
        self.table.get(direction, sa).is_none_or(|lane| lane.ring == RingIndex::NONE)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Lane> {
        self.table.outbound.iter_mut().chain(&mut self.table.inbound)
    }

    /// A turn begins, in which so many jobs at most are released that have waited for others.
    #[inline]
    pub(crate) fn begin_turn(&mut self, most: usize) {
        self.rings.begin_turn(most);
    }

    /// Whether jobs could be released for which a turn had no time.
    #[inline]
    pub(crate) fn has_late(&self) -> bool {
        self.rings.has_late()
    }

    /// Releases jobs for which the turn before had no time, as many as this one has.
    #[cold]
    pub(crate) fn release_late(&mut self, released: &mut Vec<Job>) {
        let finished = |direction, sa| {
            if let Some(lane) = self.table.get_mut(direction, sa) {
                lane.ring = RingIndex::NONE;
            }
        };
        self.rings.release_late(released, finished);
    }

    /// Jobs that wait for their turn.
    #[inline]
    pub(crate) fn waiting(&self) -> usize {
        self.rings.waiting()
    }

    /// Gives each job its ticket.
    pub(crate) fn ticket(&mut self, jobs: &mut [Job]) {
        for job in jobs {
            if let Some(lane) = self.table.get_mut(job.direction, Prepared::sa_of(job)) {
                job.ticket = lane.next_ticket;
                if lane.ring == RingIndex::NONE {
                    lane.ring = self.rings.begin(job.direction, lane.sa, job.ticket);
                }
                self.rings.issue(lane.ring);
                lane.next_ticket = lane.next_ticket.wrapping_add(1);
            }
        }
    }

    /// An engine took a job.
    #[inline]
    pub(crate) fn take(&mut self, id: JobId, taken: Taken) {
        let lane = self.table.get(id.direction, id.sa);
        if !lane.is_some_and(|lane| self.rings.take(lane.ring, id.ticket, taken)) {
            self.strays.insert(id, taken);
        }
    }

    /// An engine gives a job back; `None` if it does not hold it, or no longer.
    #[inline]
    pub(crate) fn give_back(&mut self, engine: usize, id: JobId) -> Option<Taken> {
        let lane = self.table.get(id.direction, id.sa);
        match lane.and_then(|lane| self.rings.give_back(lane.ring, id.ticket, engine)) {
            Some(taken) => Some(taken),
            None if self.strays.is_empty() => None,
            None => {
                self.strays.get(&id).filter(|taken| taken.is_by(engine))?;
                self.strays.remove(&id)
            }
        }
    }

    /// An engine gives back a job that has ended, which is released in its turn, and then those that waited
    /// for it: one look at its SA. Returns when it was taken; the job, if it is not among those of an SA that
    /// the engine holds.
    #[inline]
    pub(crate) fn end_in_order(
        &mut self,
        engine: usize,
        job: Job,
        released: &mut Vec<Job>,
    ) -> Result<Taken, Job> {
        let lane = self.table.get_mut(job.direction, Prepared::sa_of(&job));
        let Some(lane) = lane else { return Err(job) };
        let (taken, is_last) = self.rings.end_in_order(lane.ring, engine, job, released)?;
        if is_last {
            lane.ring = RingIndex::NONE;
        }
        Ok(taken)
    }

    /// Gives up what an engine holds, so many jobs at most, and returns how many. They go to `released` as
    /// faults without buffers, followed by those that waited for them.
    pub(crate) fn give_up(&mut self, engine: usize, most: usize, released: &mut Vec<Job>) -> usize {
        let mut strays = 0;
        self.strays.retain(|&id, taken| {
            let is_lost = taken.is_by(engine) && strays < most;
            if is_lost {
                strays += 1;
                released.push(lost_job(id));
            }
            !is_lost
        });
        let finished = |direction, sa| {
            if let Some(lane) = self.table.get_mut(direction, sa) {
                lane.ring = RingIndex::NONE;
            }
        };
        strays + self.rings.give_up((engine, most - strays), released, finished)
    }

    /// Releases an ended job in its turn, and then those that waited for it.
    #[inline]
    pub(crate) fn release_in_order(&mut self, job: Job, released: &mut Vec<Job>) {
        match self.table.get_mut(job.direction, Prepared::sa_of(&job)) {
            None => released.push(orphaned(job)),
            Some(lane) => {
                if self.rings.release_in_order(lane.ring, job, released) {
                    lane.ring = RingIndex::NONE;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_flight::InFlight;
    use crate::placement::MAX_ENGINES;
    use crate::rings::job_id;
    use fastrand::Rng;
    use std::collections::{BTreeMap, BTreeSet, VecDeque};
    use testudo_crypto::Direction::{Open, Seal};
    use testudo_crypto::JobStatus::{self, Done, Fault};
    use testudo_packet::Buffer;

    const BUFFERS: usize = 64;

    fn sa(slot: u32, reuse: u32) -> SaRef {
        SaRef::from_bits(reuse << 24 | slot)
    }

    fn insert(lanes: &mut Lanes, direction: Direction, sa: SaRef) {
        lanes.insert(direction, Lane::new(sa, (0, KeyId::NONE), SaKey::NONE, 0));
    }

    fn issue(lanes: &mut Lanes, direction: Direction, sa: SaRef) -> JobId {
        let mut jobs = [Job::new(Buffer::default(), direction, sa.bits())];
        lanes.ticket(&mut jobs);
        job_id(&jobs[0])
    }

    fn ended(JobId { direction, sa, ticket }: JobId, status: JobStatus) -> Job {
        Job { ticket, status, ..Job::new(Buffer::default(), direction, sa.bits()) }
    }

    /// Lanes with one outbound and one inbound SA, and ten jobs of each.
    fn two_sas() -> (Lanes, Vec<JobId>, Vec<JobId>) {
        let mut lanes = Lanes::new(BUFFERS);
        let ids = [Seal, Open].map(|direction| {
            insert(&mut lanes, direction, sa(1, 0));
            (0..10).map(|_| issue(&mut lanes, direction, sa(1, 0))).collect()
        });
        let [sealing, opening] = ids;
        (lanes, sealing, opening)
    }

    #[test]
    fn a_job_comes_back_once_with_its_id_from_the_engine_that_holds_it() {
        let (mut lanes, sealing, opening) = two_sas();
        let mut in_flight = InFlight::default();
        lanes.take(sealing[1], in_flight.take(0));
        assert!(lanes.give_back(1, sealing[1]).is_none(), "another engine's");
        assert!(lanes.give_back(0, opening[1]).is_none(), "the other direction's");
        assert!(lanes.give_back(0, sealing[2]).is_none(), "not taken");
        for ticket in [10, 11, u32::MAX] {
            assert!(lanes.give_back(0, JobId { ticket, ..sealing[0] }).is_none(), "not issued");
        }
        for other in [sa(2, 0), sa(1, 1)] {
            assert!(lanes.give_back(0, JobId { sa: other, ..sealing[1] }).is_none(), "no such SA");
        }
        in_flight.give_back(lanes.give_back(0, sealing[1]).expect("it holds this one"));
        assert!(in_flight.is_empty() && lanes.give_back(0, sealing[1]).is_none(), "it has come back");
    }

    #[test]
    fn jobs_given_up_are_of_one_engine_and_the_others_continue_in_order() {
        let (mut lanes, sealing, opening) = two_sas();
        let (mut in_flight, mut released) = (InFlight::default(), Vec::new());
        sealing.iter().for_each(|&id| lanes.take(id, in_flight.take(usize::from(id.ticket == 4))));
        opening.iter().for_each(|&id| lanes.take(id, in_flight.take(1)));
        for id in [sealing[2], sealing[5]] {
            lanes.give_back(0, id).expect("it holds this one");
            lanes.release_in_order(ended(id, Done), &mut released);
        }
        assert!(released.is_empty() && lanes.waiting() == 2);
        assert_eq!(lanes.give_up(0, usize::MAX, &mut released), 7);
        let lost = released.iter().filter(|job| job.status == Fault).map(job_id);
        assert!(lost.eq([0, 1, 3, 6, 7, 8, 9].map(|n| sealing[n])));
        let done: Vec<_> =
            released.drain(..).filter(|job| job.status == Done).map(|job| job_id(&job)).collect();
        assert_eq!((done, lanes.waiting()), (vec![sealing[2]], 1), "5 waits for 4, which engine 1 holds");
        assert!(lanes.give_back(0, sealing[3]).is_none(), "it is not taken back");
        lanes.give_back(1, sealing[4]).expect("it holds this one");
        lanes.release_in_order(ended(sealing[4], Done), &mut released);
        assert!(released.iter().map(job_id).eq([sealing[4], sealing[5]]));
        assert!(opening.iter().all(|&id| lanes.give_back(1, id).is_some()));
    }

    #[test]
    fn jobs_are_given_up_some_at_a_time() {
        let (mut lanes, sealing, opening) = two_sas();
        let (mut in_flight, mut released) = (InFlight::default(), Vec::new());
        for &id in sealing.iter().chain(&opening) {
            lanes.take(id, in_flight.take(0));
        }
        assert!(lanes.remove(Seal, sa(1, 0), &mut released).is_some(), "its jobs are strays");
        for left in [14, 8, 2, 0, 0] {
            let lost = lanes.give_up(0, 6, &mut released);
            assert_eq!((lost, in_flight.give_up(0, lost)), (6_usize.min(in_flight.held(0) + lost), lost));
            assert_eq!(in_flight.held(0), left);
        }
        let mut lost: Vec<_> = released.iter().map(|job| (job.direction == Open, job.ticket)).collect();
        lost.sort_unstable();
        let all = [false, true].into_iter().flat_map(|is_open| (0..10).map(move |ticket| (is_open, ticket)));
        assert!(lost.into_iter().eq(all), "each once");
        assert!(lanes.is_over(Open, sa(1, 0)));
    }

    /// One job of an SA comes back for which all others have waited.
    #[test]
    fn a_turn_releases_some_of_what_has_waited_and_the_next_ones_the_rest_in_order() {
        let (mut lanes, sealing, opening) = two_sas();
        let (mut in_flight, mut released) = (InFlight::default(), Vec::new());
        for ids in [&sealing, &opening] {
            lanes.take(ids[0], in_flight.take(0));
            ids[1..].iter().for_each(|&id| lanes.release_in_order(ended(id, Done), &mut released));
        }
        assert!(released.is_empty() && lanes.waiting() == 18 && !lanes.has_late());
        lanes.begin_turn(4);
        for ids in [&sealing, &opening] {
            let taken = lanes.end_in_order(0, ended(ids[0], Done), &mut released);
            in_flight.give_back(taken.expect("it is held"));
        }
        assert_eq!((released.len(), lanes.waiting(), lanes.has_late()), (2 + 4, 14, true));
        // What comes now is behind what waits.
        let newer = issue(&mut lanes, Seal, sa(1, 0));
        lanes.release_in_order(ended(newer, Done), &mut released);
        assert_eq!(released.len(), 6);
        for left in [11, 7, 3] {
            lanes.begin_turn(4);
            lanes.release_late(&mut released);
            assert_eq!((lanes.waiting(), lanes.has_late()), (left, true));
        }
        lanes.begin_turn(4);
        lanes.release_late(&mut released);
        assert_eq!((lanes.waiting(), lanes.has_late()), (0, false));
        let of =
            |direction| released.iter().filter(move |job| job.direction == direction).map(|job| job.ticket);
        assert!(of(Seal).eq(0..11) && of(Open).eq(0..10));
        assert!(lanes.is_over(Seal, sa(1, 0)) && lanes.is_over(Open, sa(1, 0)));
        lanes.rings.assert_bounded();
    }

    #[test]
    fn an_sa_that_is_removed_is_not_released_late() {
        let (mut lanes, sealing, _) = two_sas();
        let mut released = Vec::new();
        let mut in_flight = InFlight::default();
        lanes.take(sealing[0], in_flight.take(0));
        sealing[1..].iter().for_each(|&id| lanes.release_in_order(ended(id, Done), &mut released));
        lanes.begin_turn(0);
        assert!(lanes.end_in_order(0, ended(sealing[0], Done), &mut released).is_ok() && lanes.has_late());
        assert!(lanes.remove(Seal, sa(1, 0), &mut released).is_some());
        assert_eq!((released.len(), lanes.waiting(), lanes.has_late()), (10, 0, false));
        // Its ring is the next one's.
        insert(&mut lanes, Seal, sa(2, 0));
        issue(&mut lanes, Seal, sa(2, 0));
        lanes.begin_turn(4);
        lanes.release_late(&mut released);
        assert_eq!(released.len(), 10);
    }

    /// The handle of an SA returns after 256 others have used its slot. What an engine still holds of the
    /// first is then none of the second's.
    #[test]
    fn a_later_sa_with_the_same_handle_is_not_given_jobs_of_the_removed_one() {
        let mut lanes = Lanes::new(BUFFERS);
        let (mut in_flight, mut released) = (InFlight::default(), Vec::new());
        insert(&mut lanes, Seal, sa(1, 0));
        let old: Vec<_> = (0..3).map(|_| issue(&mut lanes, Seal, sa(1, 0))).collect();
        old.iter().for_each(|&id| lanes.take(id, in_flight.take(0)));
        assert!(lanes.remove(Seal, sa(1, 0), &mut released).is_some());
        assert!(lanes.remove(Seal, sa(1, 0), &mut released).is_none(), "it is gone");
        insert(&mut lanes, Seal, sa(1, 0));
        let new: Vec<_> = (0..3).map(|_| issue(&mut lanes, Seal, sa(1, 0))).collect();
        new.iter().for_each(|&id| lanes.take(id, in_flight.take(0)));
        for &id in old.iter().chain(&new) {
            in_flight.give_back(lanes.give_back(0, id).expect("both are held"));
            assert_eq!(lanes.of_ticket(&ended(id, Fault)).is_some(), new.contains(&id));
            lanes.release_in_order(ended(id, Done), &mut released);
        }
        let statuses: Vec<_> = released.iter().map(|job| (job_id(job), job.status)).collect();
        let expected = old.iter().map(|&id| (id, Fault)).chain(new.iter().map(|&id| (id, Done)));
        assert!(statuses.iter().copied().eq(expected), "{statuses:?}");
    }

    /// What a job may be between its ticket and its release.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Known {
        Queued,
        Held(usize),
        Ended,
        GivenUp,
    }

    /// An SA in the model: whether it is outbound, and its handle.
    type Key = (bool, SaRef);

    fn key(id: JobId) -> Key {
        (id.direction == Seal, id.sa)
    }

    /// The obvious way: for each SA a list of all that is known, searched from its start.
    #[derive(Default)]
    struct Model {
        sas: BTreeMap<Key, VecDeque<(JobId, Known)>>,
        strays: Vec<(JobId, usize)>,
        /// What each SA's jobs are still to be released as, in order; those that are lost apart.
        expected: BTreeMap<Key, VecDeque<(u32, JobStatus)>>,
        lost: BTreeSet<(Key, u32)>,
    }

    impl Model {
        fn expect(&mut self, id: JobId, status: JobStatus) {
            self.expected.entry(key(id)).or_default().push_back((id.ticket, status));
        }

        fn set(&mut self, id: JobId, to: Known) {
            let jobs = self.sas.get_mut(&key(id)).expect("the SA is there");
            jobs.iter_mut().find(|(its, _)| *its == id).expect("the job is there").1 = to;
        }

        fn release(&mut self) {
            let mut ready = Vec::new();
            for jobs in self.sas.values_mut() {
                while let Some((id, known @ (Known::Ended | Known::GivenUp))) = jobs.front() {
                    ready.extend((*known == Known::Ended).then_some(*id));
                    jobs.pop_front();
                }
            }
            ready.into_iter().for_each(|id| self.expect(id, Done));
        }

        fn give_up(&mut self, engine: usize) {
            for (id, known) in self.sas.values_mut().flatten() {
                if *known == Known::Held(engine) {
                    *known = Known::GivenUp;
                    self.lost.insert((key(*id), id.ticket));
                }
            }
            let strays = self.strays.extract_if(.., |(_, its)| *its == engine);
            self.lost.extend(strays.map(|(id, _)| (key(id), id.ticket)));
        }

        fn remove(&mut self, sa: Key) {
            for (id, known) in self.sas.remove(&sa).into_iter().flatten() {
                match known {
                    Known::Ended => self.expect(id, Fault),
                    Known::Held(engine) => self.strays.push((id, engine)),
                    Known::Queued | Known::GivenUp => {}
                }
            }
        }

        fn held(&self) -> Vec<(JobId, usize)> {
            let jobs = self.sas.values().flatten();
            let held = jobs.filter_map(|(id, known)| match known {
                Known::Held(engine) => Some((*id, *engine)),
                _ => None,
            });
            held.chain(self.strays.iter().copied()).collect()
        }

        fn waiting(&self) -> usize {
            self.sas.values().flatten().filter(|(_, known)| *known == Known::Ended).count()
        }

        /// Takes what was released off what is expected.
        fn check(&mut self, released: &[Job]) {
            for job in released {
                let (sa, ticket) = (key(job_id(job)), job.ticket);
                if job.status == Fault && self.lost.remove(&(sa, ticket)) {
                    continue;
                }
                let expected = self.expected.get_mut(&sa).and_then(VecDeque::pop_front);
                assert_eq!(expected, Some((ticket, job.status)), "{sa:?}");
            }
            let all = self.lost.is_empty() && self.expected.values().all(VecDeque::is_empty);
            assert!(all, "not released: {:?}, lost {:?}", self.expected, self.lost);
        }
    }

    /// Lanes and the model, and what chance makes of them.
    struct Both {
        random: Rng,
        lanes: Lanes,
        in_flight: InFlight,
        model: Model,
        released: Vec<Job>,
    }

    impl Both {
        fn hold(&mut self, id: JobId) {
            let engine = self.random.usize(..MAX_ENGINES);
            self.lanes.take(id, self.in_flight.take(engine));
            self.model.set(id, Known::Held(engine));
        }

        fn end(&mut self, id: JobId) {
            self.lanes.release_in_order(ended(id, Done), &mut self.released);
            self.model.set(id, Known::Ended);
        }

        fn submit(&mut self, sa: Key) {
            if self.model.sas.contains_key(&sa) && self.in_flight.len() + self.lanes.waiting() < BUFFERS {
                let id = issue(&mut self.lanes, if sa.0 { Seal } else { Open }, sa.1);
                self.model.sas.entry(sa).or_default().push_back((id, Known::Queued));
                // A synchronous engine ends one in ten.
                if self.random.u32(..10) == 0 { self.end(id) } else { self.hold(id) }
            }
        }

        fn poll(&mut self) {
            let Some(&(id, engine)) = self.random.choice(&self.model.held()) else { return };
            assert!(self.lanes.give_back((engine + 1) % MAX_ENGINES, id).is_none());
            self.in_flight.give_back(self.lanes.give_back(engine, id).expect("it is held"));
            assert!(self.lanes.give_back(engine, id).is_none());
            let is_stray = self.model.strays.contains(&(id, engine));
            assert_eq!(self.lanes.of_ticket(&ended(id, Fault)).is_some(), !is_stray);
            if is_stray {
                self.model.strays.retain(|stray| *stray != (id, engine));
                self.model.expect(id, Fault);
                self.lanes.release_in_order(ended(id, Done), &mut self.released);
            } else if self.random.bool() {
                // It failed, and goes to another engine.
                self.hold(id);
            } else {
                self.end(id);
            }
        }

        fn give_up(&mut self) {
            let engine = self.random.usize(..MAX_ENGINES);
            self.model.give_up(engine);
            let lost = self.lanes.give_up(engine, usize::MAX, &mut self.released);
            assert_eq!(self.in_flight.give_up(engine, usize::MAX), lost);
        }

        fn replace(&mut self, sa: Key) {
            let direction = if sa.0 { Seal } else { Open };
            let same_slot = self.model.sas.keys().copied().find(|k| k.0 == sa.0 && k.1.slot() == sa.1.slot());
            if let Some(old) = same_slot {
                self.model.remove(old);
                assert!(self.lanes.remove(direction, old.1, &mut self.released).is_some());
            }
            insert(&mut self.lanes, direction, sa.1);
            self.model.sas.insert(sa, VecDeque::new());
        }

        fn step(&mut self) {
            // Few handles, so that they return while engines hold jobs of the SAs that had them.
            let any = (self.random.bool(), sa(self.random.u32(..4), self.random.u32(..2)));
            match self.random.u32(..1000) {
                0..600 => self.submit(any),
                600..990 => self.poll(),
                990..993 => self.give_up(),
                _ => self.replace(any),
            }
            self.model.release();
            self.model.check(&std::mem::take(&mut self.released));
            assert_eq!(self.lanes.waiting(), self.model.waiting());
            assert_eq!(self.in_flight.len(), self.model.held().len());
            self.lanes.rings.assert_bounded();
        }
    }

    #[test]
    fn lanes_agree_with_a_list_for_each_sa() {
        for seed in 0..20 {
            println!("seed {seed}");
            let mut both = Both {
                random: Rng::with_seed(seed),
                lanes: Lanes::new(BUFFERS),
                in_flight: InFlight::default(),
                model: Model::default(),
                released: Vec::new(),
            };
            (0..5000).for_each(|_| both.step());
        }
    }
}
