//! Bins against a list of all that waits, searched from its start.

use super::*;
use fastrand::Rng;
use std::collections::BTreeSet;
use std::time::Duration;
use testudo_packet::Buffer;

impl Bins {
    /// Jobs in bins and leftovers.
    fn len(&self) -> usize {
        self.jobs + self.leftovers.len()
    }
}

fn at(us: u64) -> Moment {
    Moment(Duration::from_micros(us))
}

fn job(ticket: u32, direction: Direction, text_bytes: u32) -> Job {
    Job { ticket, text_bytes, ..Job::new(Buffer::default(), direction, 0) }
}

fn small(formation: Formation) -> Bins {
    let settings = SchedulerSettings { chunk: 8, bins: 4, range_bytes: 100, ..SchedulerSettings::default() };
    Bins::new(&settings, formation)
}

/// Sorts jobs of suite 0 with these lengths, a microsecond apart, and returns those that found no room.
fn fill(bins: &mut Bins, lengths: &[u32]) -> Vec<u32> {
    let refused = (0..).zip(lengths).filter_map(|(ticket, length)| {
        let job = job(ticket, Direction::Seal, *length);
        let label = bins.label(&job, Some(0));
        bins.push(job, label, at(ticket.into())).err().map(|job| job.ticket)
    });
    refused.collect()
}

fn taken(bins: &mut Bins) -> Vec<u32> {
    let mut out = Vec::new();
    bins.take(&mut out);
    out.iter().map(|job| job.ticket).collect()
}

/// Figure 6 of the paper, in small.
#[test]
fn jobs_of_one_label_share_a_bin_and_the_longest_go_first() {
    let mut bins = small(Formation::SuiteAndLength);
    // Ranges 0, 5, 0, 9, 5, 0: the third short one needs a second bin.
    assert!(fill(&mut bins, &[64, 520, 99, 980, 599, 10]).is_empty());
    assert_eq!((bins.len(), bins.is_full(), bins.oldest()), (6, false, Some(at(0))));
    assert_eq!(taken(&mut bins), [3, 1, 4, 0, 2, 5]);
    assert!(bins.len() == 0 && bins.oldest().is_none());
}

#[test]
fn leftovers_are_sorted_first_and_are_as_old_as_they_are() {
    let mut bins = small(Formation::SuiteAndLength);
    assert!(fill(&mut bins, &[0, 100, 200, 300, 400, 450, 500, 0]).is_empty());
    assert!(bins.is_full(), "three jobs found no bin");
    assert_eq!(taken(&mut bins), [3, 2, 1, 0, 7]);
    assert_eq!((bins.len(), bins.oldest()), (3, Some(at(4))));
    assert_eq!(taken(&mut bins), [6, 4, 5]);
}

#[test]
fn what_has_waited_too_long_leaves_out_of_bins_and_leftovers() {
    let mut bins = small(Formation::SuiteAndLength);
    assert!(fill(&mut bins, &[0, 100, 200, 300, 400, 0, 500]).is_empty());
    let mut out = Vec::new();
    bins.take_until(at(1), usize::MAX, &mut out);
    assert_eq!(out.iter().map(|job| job.ticket).collect::<Vec<_>>(), [0, 5, 1]);
    out.clear();
    // The leftovers have the bins now, and are no younger than they were.
    assert_eq!((bins.len(), bins.oldest()), (4, Some(at(2))));
    bins.take_until(at(4), usize::MAX, &mut out);
    assert_eq!(out.iter().map(|job| job.ticket).collect::<Vec<_>>(), [2, 3, 4]);
    assert_eq!((bins.len(), bins.oldest()), (1, Some(at(6))));
}

/// As many at a time as are asked for, and what shares a bin with them. The rest is no younger than it was.
#[test]
fn what_has_waited_too_long_leaves_by_and_by() {
    let mut bins = small(Formation::SuiteAndLength);
    assert!(fill(&mut bins, &[0, 100, 200, 300, 400, 0, 500]).is_empty());
    let mut leaves = |most| {
        let mut out = Vec::new();
        bins.take_until(at(9), most, &mut out);
        (out.iter().map(|job| job.ticket).collect::<Vec<_>>(), bins.oldest())
    };
    assert_eq!(leaves(1), (vec![0, 5], Some(at(1))));
    assert_eq!(leaves(2), (vec![1, 2], Some(at(3))));
    assert_eq!(leaves(9), (vec![3, 4, 6], None));
}

#[test]
fn more_than_two_chunks_find_no_room() {
    let mut bins = small(Formation::None);
    assert_eq!(fill(&mut bins, &[7; 20]), [16, 17, 18, 19]);
    assert_eq!(taken(&mut bins), (0..8).collect::<Vec<_>>(), "without formation as they came");
    assert_eq!(taken(&mut bins), (8..16).collect::<Vec<_>>());
}

/// 3DES of 200 bytes keeps a lane for longer than AES of 500.
#[test]
fn a_suite_that_costs_more_counts_as_longer() {
    let mut bins = small(Formation::SuiteAndLength);
    bins.set_cost(1, 10);
    bins.set_cost(0, 0);
    for (ticket, (suite, length)) in (0..).zip([(0, 500), (1, 200)]) {
        let job = job(ticket, Direction::Open, length);
        let label = bins.label(&job, Some(suite));
        assert!(bins.push(job, label, at(0)).is_ok());
    }
    assert_eq!(taken(&mut bins), [1, 0]);
}

/// A job in the model.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    ticket: u32,
    label: (usize, bool, u32),
    since: Moment,
    /// The bin, by the order in which bins are opened; `None` for a leftover.
    bin: Option<u64>,
}

struct Model {
    all: Vec<Waiting>,
    opened: u64,
    bins: usize,
    room: usize,
}

impl Model {
    fn in_bins(&self) -> impl Iterator<Item = (u64, &Waiting)> {
        self.all.iter().filter_map(|waiting| Some((waiting.bin?, waiting)))
    }

    /// The bin that a job of this label would go to now.
    fn bin_for(&mut self, label: (usize, bool, u32)) -> Option<u64> {
        let of_label: BTreeSet<u64> =
            self.in_bins().filter(|(_, other)| other.label == label).map(|(bin, _)| bin).collect();
        let has_room = |bin: &u64| self.in_bins().filter(|(other, _)| other == bin).count() < self.room;
        if let Some(bin) = of_label.iter().copied().find(has_room) {
            return Some(bin);
        }
        let used: BTreeSet<u64> = self.in_bins().map(|(bin, _)| bin).collect();
        (used.len() < self.bins).then(|| {
            self.opened += 1;
            self.opened
        })
    }

    fn push(&mut self, ticket: u32, label: (usize, bool, u32), since: Moment) -> bool {
        let bin = self.bin_for(label);
        let leftovers = self.all.iter().filter(|waiting| waiting.bin.is_none()).count();
        let fits = bin.is_some() || leftovers < self.bins * self.room;
        if fits {
            self.all.push(Waiting { ticket, label, since, bin });
        }
        fits
    }

    /// Takes bins out, and leftovers that came at `until` or before; sorts the rest.
    fn remove(&mut self, bins: &[u64], until: Option<Moment>) -> Vec<u32> {
        let mut out = Vec::new();
        for bin in bins {
            out.extend(self.in_bins().filter(|(its, _)| its == bin).map(|(_, waiting)| waiting.ticket));
        }
        let old = |waiting: &&Waiting| until.is_some_and(|until| waiting.since <= until);
        let leftovers = self.all.iter().filter(|waiting| waiting.bin.is_none());
        out.extend(leftovers.take_while(old).map(|waiting| waiting.ticket));
        self.all.retain(|waiting| !out.contains(&waiting.ticket));
        for at in 0..self.all.len() {
            if self.all[at].bin.is_none() {
                self.all[at].bin = self.bin_for(self.all[at].label);
            }
        }
        out
    }

    fn take(&mut self) -> Vec<u32> {
        let bins: BTreeSet<_> = self
            .in_bins()
            .map(|(bin, Waiting { label: (suite, opens, range), .. })| {
                (u32::MAX - range, *suite, *opens, bin)
            })
            .collect();
        let bins: Vec<u64> = bins.into_iter().map(|(.., bin)| bin).collect();
        self.remove(&bins, None)
    }

    fn take_until(&mut self, until: Moment) -> Vec<u32> {
        let old: BTreeSet<u64> =
            self.in_bins().filter(|(_, waiting)| waiting.since <= until).map(|(bin, _)| bin).collect();
        let bins: Vec<u64> = old.into_iter().collect();
        self.remove(&bins, Some(until))
    }
}

/// What the model tells apart, by formation: as coarse as that is.
fn label(formation: Formation, suite: usize, direction: Direction, range: u32) -> (usize, bool, u32) {
    let opens = direction == Direction::Open;
    match formation {
        Formation::None => (0, false, 0),
        Formation::Suite => (suite, opens, 0),
        Formation::SuiteAndLength => (suite, opens, range.min(31)),
    }
}

fn agree(seed: u64, formation: Formation) {
    let mut random = Rng::with_seed(seed);
    let (bins, room) = (random.usize(4..12), random.usize(1..6));
    let settings =
        SchedulerSettings { chunk: bins * room, bins, range_bytes: 64, ..SchedulerSettings::default() };
    let mut model = Model { all: Vec::new(), opened: 0, bins, room };
    let mut ours = Bins::new(&settings, formation);
    let (mut next, mut now, mut seen) = (0, 0, BTreeSet::new());
    for step in 0..4000 {
        now += random.u64(..3);
        let mut out = Vec::new();
        let expected = match random.u32(..100) {
            0..95 => {
                let direction = if random.bool() { Direction::Seal } else { Direction::Open };
                let (suite, length) = (random.usize(..4), random.u32(..2500));
                let job = job(next, direction, length);
                let its = ours.label(&job, u8::try_from(suite).ok());
                let refused = ours.push(job, its, at(now)).is_err();
                let label = label(formation, suite, direction, length / 64);
                assert_eq!(!refused, model.push(next, label, at(now)), "seed {seed}, step {step}");
                next += 1;
                Vec::new()
            }
            95..98 => {
                ours.take(&mut out);
                model.take()
            }
            _ => {
                let until = at(now.saturating_sub(random.u64(..40)));
                ours.take_until(until, usize::MAX, &mut out);
                assert!(ours.oldest().is_none_or(|oldest| oldest > until), "seed {seed}, step {step}");
                model.take_until(until)
            }
        };
        let out: Vec<u32> = out.iter().map(|job| job.ticket).collect();
        assert_eq!(out, expected, "seed {seed}, step {step}, {formation:?}");
        assert!(out.iter().all(|ticket| seen.insert(*ticket)), "twice: seed {seed}, step {step}");
        assert_eq!(ours.len(), model.all.len(), "lost: seed {seed}, step {step}");
        assert_eq!(ours.oldest(), model.all.iter().map(|waiting| waiting.since).min());
    }
}

#[test]
fn bins_agree_with_a_list_of_all_that_waits() {
    for seed in 0..40 {
        println!("seed {seed}");
        for formation in [Formation::None, Formation::Suite, Formation::SuiteAndLength] {
            agree(seed, formation);
        }
    }
}

/// Every job that was taken in leaves once, those of one label in their order, whatever changes meanwhile.
#[test]
fn a_change_of_shape_loses_nothing_and_keeps_what_waits() {
    for seed in 0..40 {
        println!("seed {seed}");
        let mut random = Rng::with_seed(seed);
        let shape = Shape { chunk: 1024, bins: 16, range_bytes: 256 };
        let settings = SchedulerSettings::default();
        let mut bins = Bins::tuned(&settings, Formation::SuiteAndLength, shape);
        let (mut next, mut left, mut out) = (0, BTreeSet::new(), Vec::new());
        for epoch in 1..60 {
            for _ in 0..random.usize(..3000) {
                let job = job(next, Direction::Seal, random.u32(..3000));
                let label = bins.label(&job, Some(random.u8(..4)));
                if bins.push(job, label, at(next.into())).is_ok() {
                    left.insert(next);
                }
                next += 1;
            }
            let chunk = 1024 << random.u32(..4);
            let bin_packets = [64, 128, 256][random.usize(..3)];
            let range_bytes = [64, 256, 512, 1536][random.usize(..4)];
            let shape = Shape { chunk, bins: chunk / bin_packets, range_bytes };
            bins.set_next(shape, epoch);
            let load = bins.take(&mut out);
            assert_eq!((bins.shape(), load.epoch), (shape, epoch - 1));
            for job in out.drain(..) {
                assert!(left.remove(&job.ticket), "twice: seed {seed}, {}", job.ticket);
            }
            assert_eq!(bins.len(), left.len(), "lost: seed {seed}");
            assert_eq!(bins.oldest(), left.first().map(|ticket| at(u64::from(*ticket))));
        }
        while !left.is_empty() {
            bins.take(&mut out);
            out.drain(..).for_each(|job| assert!(left.remove(&job.ticket)));
        }
    }
}

/// What is left out of the scheduler in measurements, and what that does to a chunk.
#[test]
fn ideas_that_are_left_out_are() {
    let with = |ideas| {
        let settings =
            SchedulerSettings { chunk: 8, bins: 4, range_bytes: 100, ideas, ..SchedulerSettings::default() };
        Bins::new(&settings, Formation::SuiteAndLength)
    };
    let mut unsorted = with(Ideas { longest_first: false, ..Ideas::default() });
    assert!(fill(&mut unsorted, &[64, 520, 99, 980]).is_empty());
    assert_eq!(taken(&mut unsorted), [0, 2, 1, 3], "bins in the order in which they were opened");
    let mut late = with(Ideas { leftovers_first: false, ..Ideas::default() });
    assert!(fill(&mut late, &[0, 100, 200, 300, 400]).is_empty());
    assert_eq!(taken(&mut late), [3, 2, 1, 0]);
    let newer = job(9, Direction::Seal, 500);
    let label = late.label(&newer, Some(0));
    assert!(late.push(newer, label, at(9)).is_ok());
    assert_eq!(taken(&mut late), [9, 4], "the leftover has what the newer ones have left");
}
