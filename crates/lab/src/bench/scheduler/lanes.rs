//! What a launch is to the lanes of a device: a measure that no machine's speed is in.
//!
//! A work-group has one kind of job (suite and direction) and as many lanes as there are; all of them are
//! busy until the longest job has ended, and a lane without a job is busy with nothing (PIPSEA, paper 002,
//! 3.4). What its lanes could have done meanwhile, beside what they did, is what scheduling is about.

use std::collections::BinaryHeap;

use testudo_crypto::Profile;

/// A device: so many units, each of which has a work-group at a time, with so many lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Geometry {
    pub(super) units: usize,
    pub(super) lanes: usize,
}

/// A job as a lane sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lane {
    /// Its suite and direction, as a number.
    pub(super) kind: u32,
    pub(super) bytes: u32,
    /// What a byte costs the whole device, in picoseconds.
    pub(super) byte_ps: u64,
}

/// Launches, added up.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Tally {
    pub(super) launches: u64,
    pub(super) jobs: u64,
    pub(super) groups: u64,
    /// Bytes times what each costs: of all jobs; and of all lanes, until the longest job of their group ends.
    pub(super) work: f64,
    pub(super) lane_work: f64,
    /// How long units computed, one launch after the other, and how long all launches were away beside that,
    /// in nanoseconds, as the engine's profile has it.
    pub(super) compute_ns: f64,
    /// The same if a group took any kinds of jobs, as PIPSEA's do, and did one kind after the other.
    pub(super) diverging_ns: f64,
    pub(super) launch_ns: f64,
    pub(super) latency_ns: f64,
}

impl Tally {
    /// The share of what lanes could have done that they did: 0 to 1.
    pub(super) fn lanes_used(&self) -> f64 {
        if self.lane_work > 0.0 { self.work / self.lane_work } else { 0.0 }
    }

    /// Adds a launch: jobs in the order in which the device gets them.
    pub(super) fn add(&mut self, jobs: &[Lane], geometry: Geometry, profile: &Profile) {
        let lanes = geometry.lanes.max(1);
        let kinds = jobs.chunk_by(|one, next| one.kind == next.kind);
        let mut ends = Units::new(geometry.units);
        // All lanes of all units together do a byte in `byte_ps`: one lane takes so many times as long.
        let nanoseconds = (lanes * geometry.units.max(1)) as f64 / 1000.0;
        for group in kinds.flat_map(|kind| kind.chunks(lanes)) {
            let work = |lane: &Lane| f64::from(lane.bytes) * lane.byte_ps as f64;
            let longest = group.iter().map(work).fold(0.0, f64::max);
            self.groups += 1;
            self.work += group.iter().map(work).sum::<f64>();
            self.lane_work += longest * lanes as f64;
            ends.take(longest * nanoseconds);
        }
        let mut diverging = Units::new(geometry.units);
        jobs.chunks(lanes).for_each(|group| diverging.take(one_kind_after_the_other(group) * nanoseconds));
        self.diverging_ns += diverging.last();
        self.launches += 1;
        self.jobs += jobs.len() as u64;
        self.compute_ns += ends.last();
        self.launch_ns += profile.fixed_ns as f64;
        self.latency_ns += profile.latency_ns as f64;
    }

    /// How long the device took for all, in nanoseconds: what is expected of it, not what was measured. With
    /// one launch at a time each is waited for.
    pub(super) fn predicted_ns(&self, one_at_a_time: bool) -> f64 {
        self.compute_ns + self.launches_ns(one_at_a_time)
    }

    /// The same of a device whose groups take any kinds.
    pub(super) fn predicted_diverging_ns(&self, one_at_a_time: bool) -> f64 {
        self.diverging_ns + self.launches_ns(one_at_a_time)
    }

    fn launches_ns(&self, one_at_a_time: bool) -> f64 {
        self.launch_ns + if one_at_a_time { self.latency_ns } else { 0.0 }
    }
}

/// The longest job of each kind, added up: what a group takes whose lanes have one program counter.
fn one_kind_after_the_other(group: &[Lane]) -> f64 {
    let mut longest: Vec<(u32, f64)> = Vec::new();
    for lane in group {
        let work = f64::from(lane.bytes) * lane.byte_ps as f64;
        match longest.iter_mut().find(|(kind, _)| *kind == lane.kind) {
            Some((_, most)) => *most = most.max(work),
            None => longest.push((lane.kind, work)),
        }
    }
    longest.iter().map(|(_, work)| work).sum()
}

/// When the units of a device are free. A group goes to the one that is free first, in the order of groups
/// (paper 002, 2.2).
struct Units {
    /// Negative, so that the earliest is the greatest.
    free_at: BinaryHeap<Time>,
    last: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Time(f64);

impl Eq for Time {}

impl Ord for Time {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.0.total_cmp(&self.0)
    }
}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Units {
    fn new(units: usize) -> Self {
        Self { free_at: (0..units.max(1)).map(|_| Time(0.0)).collect(), last: 0.0 }
    }

    fn take(&mut self, time: f64) {
        let Time(free) = self.free_at.pop().unwrap_or(Time(0.0));
        self.last = self.last.max(free + time);
        self.free_at.push(Time(free + time));
    }

    fn last(&self) -> f64 {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry = Geometry { units: 2, lanes: 4 };

    fn lane(kind: u32, bytes: u32) -> Lane {
        Lane { kind, bytes, byte_ps: 1000 }
    }

    fn tally(jobs: &[Lane]) -> Tally {
        let profile = Profile { fixed_ns: 7, latency_ns: 5, ..Profile::of_depth(4096) };
        let mut tally = Tally::default();
        tally.add(jobs, GEOMETRY, &profile);
        tally
    }

    #[test]
    fn lanes_are_all_used_by_equal_jobs_that_fill_their_group() {
        let tally = tally(&[lane(0, 100); 8]);
        assert_eq!((tally.launches, tally.jobs, tally.groups, tally.lanes_used()), (1, 8, 2, 1.0));
        // As many bytes as there are, times what each costs, in picoseconds.
        assert!((tally.compute_ns - 800.0).abs() < 1e-9);
        assert!((tally.predicted_ns(false) - 807.0).abs() < 1e-9);
        assert!((tally.predicted_ns(true) - 812.0).abs() < 1e-9);
    }

    #[test]
    fn a_lane_is_lost_to_a_longer_neighbour_to_another_kind_and_to_nobody() {
        let longer = tally(&[lane(0, 100), lane(0, 50), lane(0, 50), lane(0, 50)]);
        assert!((longer.lanes_used() - 250.0 / 400.0).abs() < 1e-9);
        let kinds = tally(&[lane(0, 100), lane(1, 100), lane(0, 100), lane(1, 100)]);
        assert_eq!((kinds.groups, kinds.lanes_used()), (4, 0.25));
        assert_eq!(tally(&[lane(0, 100)]).lanes_used(), 0.25);
        // Four groups of one lane on two units, or one group that does both kinds in turn.
        assert!((kinds.compute_ns - 1600.0).abs() < 1e-9 && (kinds.diverging_ns - 1600.0).abs() < 1e-9);
        assert!((longer.diverging_ns - longer.compute_ns).abs() < 1e-9, "of one kind both are the same");
        assert!(Tally::default().lanes_used().abs() < 1e-9);
    }

    /// Graham's example in small: a long group that begins last is waited for.
    #[test]
    fn the_longest_group_first_ends_sooner() {
        let groups = |lengths: [u32; 3]| {
            let lanes: Vec<Lane> = lengths.iter().flat_map(|bytes| [lane(0, *bytes); 4]).collect();
            tally(&lanes).compute_ns
        };
        assert!((groups([200, 100, 100]) - 1600.0).abs() < 1e-9);
        assert!((groups([100, 100, 200]) - 2400.0).abs() < 1e-9);
    }
}
