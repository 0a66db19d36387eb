//! Adjacent packets of a batch that have the same disposition: work that they share is done once.

use crate::slots::SaRef;
use arrayvec::ArrayVec;
use testudo_packet::{BATCH_SIZE, Buffer, DropReason, Pool};

/// What to do with a packet, according to its headers and policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// Through an SA.
    Sa(SaRef),
    Pass,
    /// Its buffer was taken: it waits for an SA, or was dropped since too many do.
    Held,
    Drop(DropReason),
}

/// A run of packets with one disposition.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SaRun {
    pub(crate) disposition: Disposition,
    pub(crate) packets: usize,
}

/// The runs of a batch, in its order.
#[derive(Debug, Default)]
pub(crate) struct Runs(ArrayVec<SaRun, BATCH_SIZE>);

impl Runs {
    /// Appends a packet that has `disposition`; `true` if that starts a run.
    #[inline(always)]
    pub(crate) fn push(&mut self, disposition: Disposition) -> bool {
        match self.0.last_mut() {
            Some(run) if run.disposition == disposition => {
                run.packets += 1;
                false
            }
            _ => {
                self.0.push(SaRun { disposition, packets: 1 });
                true
            }
        }
    }

    /// Appends a packet that has another disposition than the one before.
    #[inline(always)]
    pub(crate) fn begin(&mut self, disposition: Disposition) {
        self.0.push(SaRun { disposition, packets: 1 });
    }

    /// Appends a packet that has the disposition of the one before.
    #[inline(always)]
    pub(crate) fn push_same(&mut self) {
        if let Some(run) = self.0.last_mut() {
            run.packets += 1;
        }
    }

    /// Whether one has this disposition.
    pub(crate) fn have(&self, disposition: Disposition) -> bool {
        self.0.iter().any(|run| run.disposition == disposition)
    }

    /// The runs of the batch if each packet has the disposition that `revise` gives it, by its place and the
    /// one that it has.
    #[cold]
    pub(crate) fn revised(&self, mut revise: impl FnMut(usize, Disposition) -> Disposition) -> Self {
        let each = self.0.iter().flat_map(|run| std::iter::repeat_n(run.disposition, run.packets));
        let mut runs = Self::default();
        for (place, disposition) in each.enumerate() {
            runs.push(revise(place, disposition));
        }
        runs
    }

    /// The SAs that packets go through.
    #[inline]
    pub(crate) fn sas(&self) -> impl Iterator<Item = SaRef> {
        self.0
            .iter()
            .filter_map(|run| if let Disposition::Sa(sa_ref) = run.disposition { Some(sa_ref) } else { None })
    }

    /// Each run, with the metadata and the buffers of its packets. Neither slice may be shorter than all runs
    /// together.
    #[inline]
    pub(crate) fn over<'a, T>(
        &'a self,
        mut known: &'a [T],
        mut buffers: &'a mut [Buffer],
    ) -> impl Iterator<Item = (Disposition, &'a [T], &'a mut [Buffer])> {
        self.0.iter().map(move |&SaRun { disposition, packets }| {
            let ours;
            (ours, known) = known.split_at(packets);
            let (taken, rest) = std::mem::take(&mut buffers).split_at_mut(packets);
            buffers = rest;
            (disposition, ours, taken)
        })
    }
}

/// Discards all of a run.
pub(crate) fn discard(buffers: &mut [Buffer], reason: DropReason, pool: &mut Pool) {
    drain(buffers).for_each(|buffer| pool.discard(buffer, reason));
}

/// Moves the buffers of a run out of its batch.
#[inline(always)]
pub(crate) fn drain(buffers: &mut [Buffer]) -> impl Iterator<Item = Buffer> {
    buffers.iter_mut().map(std::mem::take)
}
