//! What a worker does to jobs between their preparation and the engine, where it does anything.

use crate::Worker;
use testudo_crypto::{Direction, Job};
use testudo_packet::Passage;

impl Worker {
    /// Merges chains that the engine does not take, and tells the journal.
    #[cold]
    #[inline(never)]
    pub(crate) fn attend_to_jobs(&mut self) {
        if self.takes_chains {
            self.dispatcher.merge_chains(&mut self.prepared.jobs, &mut self.pool);
        }
        self.note_jobs();
    }

    /// Tells the pool's journal which packets the prepared jobs seal or open.
    fn note_jobs(&mut self) {
        let Some(journal) = self.pool.journal() else { return };
        for job in &self.prepared.jobs {
            let Job { sa, sequence, .. } = *job;
            let (is_outbound, text_start) = (job.direction == Direction::Seal, job.text_start as usize);
            let header = job.buffer.bytes().get(job.auth_start as usize..);
            let head: [u8; 4] = header.and_then(|header| header.first_chunk().copied()).unwrap_or_default();
            journal.assigned(&job.buffer, Passage { sa, is_outbound, sequence, text_start, head });
        }
    }
}
