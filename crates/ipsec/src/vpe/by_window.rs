//! The jobs of a batch, window by window. Flows in many windows come in turns: neighbours seldom share one.

use testudo_crypto::{Job, JobStatus};

/// Each window of some jobs, with the places of its jobs among them, in their order. Leaves out jobs that are
/// not authentic.
#[derive(Debug)]
pub(crate) struct ByWindow {
    /// Sender ID and Window ID of each job, as the bytes of its header.
    names: [u32; Self::MOST],
    /// The jobs that have not been given out yet: a bit for each.
    left: u64,
}

impl ByWindow {
    /// The most jobs.
    pub(crate) const MOST: usize = 64;

    /// Of the first [`MOST`](Self::MOST) of these jobs.
    #[inline]
    pub(crate) fn of(jobs: &[Job]) -> Self {
        let (mut names, mut left) = ([0; Self::MOST], 0);
        for (place, (name, job)) in names.iter_mut().zip(jobs).enumerate() {
            let header = job.buffer.bytes().get(job.auth_start as usize..).and_then(<[u8]>::first_chunk);
            *name = header.map_or(0, |bytes| u32::from_le_bytes(*bytes));
            let is_wanted = job.status == JobStatus::Done && header.is_some();
            left |= u64::from(is_wanted) << place;
        }
        Self { names, left }
    }

    /// Whether every one of these jobs is to be given out: of those that it is [of](Self::of), before any is.
    #[inline]
    pub(crate) fn has_all(&self, jobs: &[Job]) -> bool {
        self.left.count_ones() as usize == jobs.len()
    }
}

impl Iterator for ByWindow {
    type Item = ((u16, u16), Places);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let first = *self.names.get(self.left.trailing_zeros() as usize)?;
        let mut same = 0;
        for (place, name) in self.names.iter().enumerate() {
            same |= u64::from(*name == first) << place;
        }
        same &= self.left;
        self.left ^= same;
        let [s0, s1, w0, w1] = first.to_le_bytes();
        Some(((u16::from_le_bytes([s0, s1]), u16::from_le_bytes([w0, w1])), Places(same)))
    }
}

/// Places, in ascending order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Places(u64);

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

#[cfg(test)]
mod tests {
    use super::*;
    use testudo_crypto::Direction;
    use testudo_packet::Buffer;

    /// The obvious model: each window in the order of its first job, with all of its jobs.
    fn model(windows: &[Option<(u16, u16)>]) -> Vec<((u16, u16), Vec<usize>)> {
        let mut all: Vec<((u16, u16), Vec<usize>)> = Vec::new();
        for (place, window) in windows.iter().enumerate() {
            let Some(window) = window else { continue };
            match all.iter_mut().find(|(name, _)| name == window) {
                Some((_, places)) => places.push(place),
                None => all.push((*window, vec![place])),
            }
        }
        all
    }

    #[test]
    fn jobs_are_given_out_by_window_in_their_order_without_those_that_are_not_authentic() {
        let mut seed = 20_261_127_u64;
        println!("seed {seed}");
        let mut random = move |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for count in [0, 1, 2, 63, 64] {
            for different in [1, 3, 64] {
                let windows: Vec<_> = (0..count)
                    .map(|_| {
                        let window = (0, u16::try_from(random(different)).unwrap() << 4);
                        (random(5) > 0).then_some(window)
                    })
                    .collect();
                let jobs: Vec<_> = windows
                    .iter()
                    .map(|window| {
                        let (sender, id): (u16, u16) = window.unwrap_or_default();
                        let header = [sender.to_le_bytes(), id.to_le_bytes()].concat();
                        let mut job = Job::new(Buffer::copied(&header, 0, 0), Direction::Open, 0);
                        let failed = JobStatus::AuthenticationFailed;
                        job.status = if window.is_some() { JobStatus::Done } else { failed };
                        job
                    })
                    .collect();
                let by_window = ByWindow::of(&jobs);
                assert_eq!(by_window.has_all(&jobs), windows.iter().all(Option::is_some), "{windows:?}");
                let found: Vec<_> = by_window.map(|(name, places)| (name, places.collect())).collect();
                assert_eq!(found, model(&windows), "{windows:?}");
            }
        }
    }
}
