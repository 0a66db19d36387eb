//! Changes of SAs at several workers, in rounds that all of them answer.
//!
//! ```text
//!   round 1   every worker makes the changes; an SA that is to be used at once carries nothing yet
//!   round 2   what one worker refused is taken back at the others; what all have made is put to use
//! ```
//!
//! If a worker refused an SA after another had sent through it, who adds the SA would take its key for
//! unused, and might begin with the same numbers again.
//!
//! [`Commander`](crate::Commander) runs them over channels. They are apart from it so that a simulation can
//! make each step of each worker when it likes.

use crate::replica::{merge_changes, undo};
use crate::sa_change::{SaChange, SaOutcome};

/// Changes of SAs at several workers of which not all have answered yet.
#[derive(Debug)]
pub struct SaRounds {
    workers: usize,
    /// What puts each change to use.
    uses: Vec<Option<SaChange>>,
    /// What takes each change back.
    undo: Vec<Option<SaChange>>,
}

impl SaRounds {
    /// Begins changes at so many workers. Returns what each of them is to change first.
    #[must_use]
    pub fn begin(mut changes: Vec<SaChange>, workers: usize) -> (Self, Vec<Vec<SaChange>>) {
        changes.iter_mut().for_each(|change| change.share(workers));
        let uses = changes.iter_mut().map(SaChange::take_use).collect();
        let undo = changes.iter().map(undo).collect();
        (Self { workers, uses, undo }, for_each(changes, workers))
    }

    /// All workers have made their changes, with these outcomes in the workers' order. Returns what became of
    /// each change, and what each worker is to change then, if there is a second round.
    pub fn answered(
        self,
        answers: impl Iterator<Item = SaOutcome>,
    ) -> (SaOutcome, Option<Vec<Vec<SaChange>>>) {
        let (outcome, torn) = merge_changes(answers);
        // A change that one worker refused is made at none.
        let mut undo: Vec<_> = self.undo.into_iter().enumerate().collect();
        undo.retain(|(at, _)| torn.contains(at));
        let undo = undo.into_iter().rev().filter_map(|(_, change)| change);
        let made = self.uses.into_iter().zip(&outcome).filter(|(_, result)| result.is_ok());
        let more: Vec<_> = undo.chain(made.filter_map(|(change, _)| change)).collect();
        let second = (!more.is_empty()).then(|| for_each(more, self.workers));
        (outcome, second)
    }
}

/// The changes of each worker.
fn for_each(mut changes: Vec<SaChange>, workers: usize) -> Vec<Vec<SaChange>> {
    let others: Vec<Vec<_>> =
        (1..workers).map(|worker| changes.iter_mut().map(|c| c.replica(worker)).collect()).collect();
    [changes].into_iter().chain(others).collect()
}
