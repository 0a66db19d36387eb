//! The jobs of a batch, window by window. Flows in many windows come in turns: neighbours seldom share one.
//!
//! ```text
//!   jobs, window and number    3 17   5 40   3 18   3 19   5 41
//!   runs                       window 3: 17 to 19          window 5: 40, 41
//! ```
//!
//! The run that a window's next job may continue is found by a few slots. A job that does not continue it
//! begins another: where windows share a slot, or a window lost packets, runs are shorter, and nothing else
//! is different.

use arrayvec::ArrayVec;
use testudo_crypto::{Job, JobStatus};

/// Adjacent numbers of one window, and the places of their jobs in the batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WindowRun {
    /// Sender ID and Window ID, as the bytes of a header.
    name: u32,
    count: u32,
    first: u64,
    /// A bit for each.
    places: u64,
}

impl WindowRun {
    /// One number, of a job at this place, which is below 64.
    #[inline]
    pub(crate) fn one((sender, window): (u16, u16), number: u64, place: usize) -> Self {
        Self::begin(u32::from(sender) | u32::from(window) << 16, number, place)
    }

    #[inline(always)]
    fn begin(name: u32, first: u64, place: usize) -> Self {
        Self { name, count: 1, first, places: 1 << place }
    }

    /// Appends a job; `false`, with nothing changed, if it is of another window, or its number does not
    /// follow.
    #[inline(always)]
    pub(super) fn append(&mut self, name: u32, number: u64, place: usize) -> bool {
        // No overflow: number 0 does not follow the highest one.
        let follows = self.name == name && number.checked_sub(self.first) == Some(self.count.into());
        if follows {
            self.count += 1;
            self.places |= 1 << place;
        }
        follows
    }

    /// Sender ID and Window ID.
    #[inline]
    pub(crate) fn window(&self) -> (u16, u16) {
        let [s0, s1, w0, w1] = self.name.to_le_bytes();
        (u16::from_le_bytes([s0, s1]), u16::from_le_bytes([w0, w1]))
    }

    /// Its lowest number.
    #[inline]
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// How many numbers, at least one.
    #[inline]
    pub(crate) fn count(&self) -> u64 {
        self.count.into()
    }

    /// The places of its jobs, a bit for each.
    #[inline]
    pub(crate) fn places(&self) -> u64 {
        self.places
    }

    /// Each number with the place of its job.
    #[inline]
    pub(crate) fn numbers(&self) -> impl Iterator<Item = (usize, u64)> + Clone + use<> {
        let first = self.first;
        // None is higher than the highest.
        (0..).zip(Places(self.places)).map(move |(ahead, place)| (place, first.wrapping_add(ahead)))
    }
}

/// Places, in ascending order: the bits that are set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Places(pub(crate) u64);

impl Iterator for Places {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let place = self.0.trailing_zeros();
        // None of the bits is set: 64.
        self.0 &= self.0.wrapping_sub(1);
        (place < u64::BITS).then_some(place as usize)
    }
}

/// The most jobs that are taken together.
pub(crate) const MOST: usize = 64;

/// Where a window's last run is found.
const SLOTS: usize = 32;

/// A sender's windows of one class are as far apart as there are classes; senders of a group have the same
/// ones. So all bits count. The multiplier is one that keeps eight windows of one class apart.
#[inline(always)]
fn slot_of(name: u32) -> usize {
    (name.wrapping_mul(0xC2B2_AE35) >> (u32::BITS - SLOTS.ilog2())) as usize
}

/// Calls `take` with all runs of these jobs, [at most so many](MOST); of a window in the order of its jobs.
/// Returns the places of jobs that are left out, since they are not authentic.
#[inline(always)]
pub(crate) fn each_run(jobs: &[Job], take: impl FnMut(&WindowRun)) -> u64 {
    let mut runs = ArrayVec::<WindowRun, MOST>::new();
    let (mut last, mut left_out) = ([u8::MAX; SLOTS], 0);
    for (place, job) in jobs.iter().take(MOST).enumerate() {
        let header = job.buffer.bytes().get(job.auth_start as usize..).and_then(<[u8]>::first_chunk);
        let (Some(header), JobStatus::Done) = (header, job.status) else {
            left_out |= 1 << place;
            continue;
        };
        let name = u32::from_le_bytes(*header);
        let last = &mut last[slot_of(name)];
        let run = runs.get_mut(usize::from(*last));
        if !run.is_some_and(|run| run.append(name, job.sequence, place)) {
            // Lossless: there are no more runs than jobs.
            *last = u8::try_from(runs.len()).unwrap_or(u8::MAX);
            runs.push(WindowRun::begin(name, job.sequence, place));
        }
    }
    runs.iter().for_each(take);
    left_out
}

#[cfg(test)]
mod tests {
    use super::*;
    use testudo_crypto::Direction;
    use testudo_packet::Buffer;

    /// Window, number, and whether it is authentic.
    type Packet = ((u16, u16), u64, bool);
    /// Window, and its numbers with their places.
    type Run = ((u16, u16), Vec<(usize, u64)>);

    fn job((window, number, is_authentic): Packet) -> Job {
        let header = [window.0.to_le_bytes(), window.1.to_le_bytes()].concat();
        let mut job = Job::new(Buffer::copied(&header, 0, 0), Direction::Open, 0);
        job.sequence = number;
        job.status = if is_authentic { JobStatus::Done } else { JobStatus::AuthenticationFailed };
        job
    }

    /// The runs of these packets, each as its window and its numbers with their places; and who is left out.
    fn runs_of(packets: &[Packet]) -> (Vec<Run>, u64) {
        let jobs: Vec<_> = packets.iter().copied().map(job).collect();
        let mut runs = Vec::new();
        let left_out = each_run(&jobs, |run| {
            let numbers: Vec<_> = run.numbers().collect();
            assert_eq!((run.count(), run.first()), (numbers.len() as u64, numbers[0].1));
            assert_eq!(run.places(), numbers.iter().fold(0, |places, (place, _)| places | 1 << place));
            runs.push((run.window(), numbers));
        });
        (runs, left_out)
    }

    #[test]
    fn each_authentic_job_is_in_one_run_and_those_of_a_window_stay_in_order() {
        let seed = 20_261_128;
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        for count in [0, 1, 2, 63, 64] {
            for windows in [1, 3, 40, 65_535] {
                let mut next = std::collections::HashMap::<_, u64>::new();
                let packets: Vec<Packet> = (0..count)
                    .map(|_| {
                        let window = (random.u16(0..2), random.u16(0..windows));
                        let number = next.entry(window).or_insert_with(|| random.u64(..1 << 40));
                        // Some are lost, and some come twice.
                        *number += [0, 1, 1, 1, 1, 1, 1, 3][random.usize(0..8)];
                        (window, *number, random.u32(0..5) > 0)
                    })
                    .collect();
                let (runs, left_out) = runs_of(&packets);
                let mut found: Vec<Option<Packet>> = vec![None; count];
                for (window, numbers) in &runs {
                    assert!(numbers.windows(2).all(|pair| pair[0].1 + 1 == pair[1].1), "{numbers:?}");
                    for &(place, number) in numbers {
                        let other = found[place].replace((*window, number, true));
                        assert_eq!(other, None, "place {place} twice");
                    }
                }
                for (place, packet) in packets.iter().enumerate() {
                    assert_eq!(found[place], packet.2.then_some(*packet));
                    assert_eq!(left_out >> place & 1 == 0, packet.2);
                }
                let mut last = std::collections::HashMap::new();
                for (window, numbers) in runs {
                    for (place, _) in numbers {
                        assert!(last.insert(window, place).is_none_or(|before| before < place));
                    }
                }
            }
        }
    }

    #[test]
    fn flows_in_eight_windows_of_a_class_are_eight_runs_however_many_classes_there_are() {
        for (classes, worker) in [1, 2, 3, 4, 8, 16, 32, 64].into_iter().flat_map(|n| [(n, 0), (n, 3)]) {
            let window = |n: u16| (8 * worker + n % 8) * classes;
            let packet = |n: u16| ((0, window(n)), 100 + u64::from(n / 8), true);
            let packets: Vec<Packet> = (0..64).map(packet).collect();
            let (runs, left_out) = runs_of(&packets);
            assert_eq!((runs.len(), left_out), (8, 0), "{classes} classes");
            assert!(runs.iter().all(|(_, numbers)| numbers.len() == 8));
        }
    }

    #[test]
    fn no_number_follows_the_highest() {
        let window = (0, 0);
        let (runs, _) = runs_of(&[(window, u64::MAX, true), (window, u64::MAX, true), (window, 0, true)]);
        let numbers: Vec<_> = runs.into_iter().map(|(_, numbers)| numbers).collect();
        assert_eq!(numbers, [[(0, u64::MAX)], [(1, u64::MAX)], [(2, 0)]]);
    }
}
