//! Tests the conformance suite itself: engines that break the contract in one way each do not pass.

use testudo_conformance::run_only;
use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, JobStatus, KeyId, KeyMaterial, PortableEngine, Profile,
    Suite,
};

/// What is wrong with an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Defect {
    BelievesEveryTag,
    LeavesPlaintext,
    SpoilsOneByteOfLongTexts,
    WritesAfterTheIcv,
    TouchesFaultedBuffers,
    LosesAJob,
    EndsAJobTwice,
    TouchesWhatItDidNotTake,
    TakesMoreThanItWasGiven,
    ForgetsToForgetKeys,
    ChangesTickets,
    GathersForEver,
    WantsNothing,
    KeepsWhatWasToEndAtOnce,
}

/// The portable engine with one defect.
struct Defective {
    inner: PortableEngine,
    defect: Defect,
    kept: Vec<Job>,
}

impl Engine for Defective {
    fn name(&self) -> &'static str {
        "sinner"
    }
    fn description(&self) -> String {
        format!("{:?}", self.defect)
    }
    fn capability(&self, suite: Suite) -> Option<Capability> {
        self.inner.capability(suite)
    }
    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        self.inner.install(key, direction)
    }
    fn remove(&mut self, key: KeyId) {
        if !matches!(self.defect, Defect::ForgetsToForgetKeys) {
            self.inner.remove(key);
        }
    }
    fn profile(&self, _: Suite) -> Profile {
        Profile::of_depth(match self.defect {
            Defect::WantsNothing => 0,
            Defect::GathersForEver => 8,
            _ => 1,
        })
    }
    fn ends_next_at_once(&mut self, _: &[Job]) -> bool {
        self.defect == Defect::KeepsWhatWasToEndAtOnce
    }
    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        let before: Vec<Vec<u8>> = jobs.iter().map(|j| j.buffer.bytes().to_vec()).collect();
        let taken = self.inner.submit(jobs);
        for (job, before) in jobs.iter_mut().zip(before) {
            self.spoil(job, &before);
        }
        match self.defect {
            Defect::TakesMoreThanItWasGiven => taken + 1,
            Defect::TouchesWhatItDidNotTake => taken.saturating_sub(1),
            _ => taken,
        }
    }
    fn poll(&mut self, done: &mut Vec<Job>, max: usize) {
        if self.defect == Defect::GathersForEver && self.kept.len() < 8 {
            return;
        }
        let count = self.kept.len().min(max);
        done.extend(self.kept.drain(..count));
    }
    fn in_flight(&self) -> usize {
        self.kept.len()
    }
}

impl Defective {
    fn spoil(&mut self, job: &mut Job, before: &[u8]) {
        let behind_text = (job.text_start as usize).saturating_add(job.text_bytes as usize);
        match (self.defect, job.status) {
            (Defect::BelievesEveryTag, JobStatus::AuthenticationFailed) => job.status = JobStatus::Done,
            (Defect::LeavesPlaintext, JobStatus::AuthenticationFailed) => {
                // The key stream is what sealing zeros would give; here it is enough to undo the flipped bit
                // and open again.
                for bit in 0..before.len() * 8 {
                    job.buffer.bytes_mut().copy_from_slice(before);
                    job.buffer.bytes_mut()[bit / 8] ^= 1 << (bit % 8);
                    if self.inner.submit(std::slice::from_mut(job)) == 1 && job.status == JobStatus::Done {
                        break;
                    }
                }
                job.status = JobStatus::AuthenticationFailed;
            }
            (Defect::SpoilsOneByteOfLongTexts, JobStatus::Done) if job.text_bytes > 2000 => {
                job.buffer.bytes_mut()[behind_text - 1] ^= 1;
            }
            (Defect::WritesAfterTheIcv, JobStatus::Done) => {
                if let Some(byte) = job.buffer.bytes_mut().get_mut(behind_text + 16) {
                    *byte = 0;
                }
            }
            (Defect::TouchesFaultedBuffers, JobStatus::Fault) => job.buffer.bytes_mut().fill(0),
            (Defect::LosesAJob, _) if job.text_bytes == 50 => drop(job.take()),
            (Defect::EndsAJobTwice, JobStatus::Done) => {
                let twin = Job { buffer: testudo_packet::Buffer::copied(before, 0, 0), ..*job };
                self.kept.push(twin);
            }
            (Defect::GathersForEver | Defect::KeepsWhatWasToEndAtOnce, _) => {
                let status = job.status;
                self.kept.push(Job { status, ..job.take() });
            }
            (Defect::ChangesTickets, _) => job.ticket += 1,
            _ => {}
        }
    }
}

#[test]
fn every_defect_is_found_by_the_check_for_it() {
    let cases = [
        (Defect::BelievesEveryTag, "every bit of a forged packet"),
        (Defect::LeavesPlaintext, "every bit of a forged packet"),
        (Defect::SpoilsOneByteOfLongTexts, "every length"),
        (Defect::WritesAfterTheIcv, "every alignment"),
        (Defect::TouchesFaultedBuffers, "undeserved jobs fault"),
        (Defect::EndsAJobTwice, "official vectors"),
        (Defect::TouchesWhatItDidNotTake, "official vectors"),
        (Defect::TakesMoreThanItWasGiven, "official vectors"),
        (Defect::ForgetsToForgetKeys, "undeserved jobs fault"),
        (Defect::ChangesTickets, "official vectors"),
        (Defect::LosesAJob, "every length"),
        (Defect::GathersForEver, "profile and flush"),
        (Defect::WantsNothing, "profile and flush"),
        (Defect::KeepsWhatWasToEndAtOnce, "official vectors"),
    ];
    for (defect, check) in cases {
        let mut make = || -> Box<dyn Engine> {
            Box::new(Defective { inner: PortableEngine::new(), defect, kept: Vec::new() })
        };
        let report = run_only(&mut make, &[check]);
        println!("{report}");
        assert!(!report.passed() && !report.outcomes.is_empty(), "{defect:?} passed \"{check}\"");
    }
}
