//! Tests the judge: engines that break the contract in one way each do not pass.

use testudo_conformance::run_only;
use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, JobStatus, KeyId, KeyMaterial, PortableEngine, Suite,
};

/// What is wrong with an engine.
#[derive(Debug, Clone, Copy)]
enum Sin {
    BelievesEveryTag,
    LeavesPlaintext,
    SpoilsOneByteOfLongTexts,
    WritesBehindTheIcv,
    TouchesFaultedBuffers,
    LosesAJob,
    EndsAJobTwice,
    TouchesWhatItDidNotTake,
    TakesMoreThanItWasGiven,
    ForgetsToForgetKeys,
    ChangesCookies,
}

/// The portable engine with one defect.
struct Sinner {
    inner: PortableEngine,
    sin: Sin,
    kept: Vec<Job>,
}

impl Engine for Sinner {
    fn name(&self) -> &'static str {
        "sinner"
    }
    fn description(&self) -> String {
        format!("{:?}", self.sin)
    }
    fn capability(&self, suite: Suite) -> Option<Capability> {
        self.inner.capability(suite)
    }
    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        self.inner.install(key, direction)
    }
    fn remove(&mut self, key: KeyId) {
        if !matches!(self.sin, Sin::ForgetsToForgetKeys) {
            self.inner.remove(key);
        }
    }
    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        let before: Vec<Vec<u8>> = jobs.iter().map(|j| j.buffer.bytes().to_vec()).collect();
        let taken = self.inner.submit(jobs);
        for (job, before) in jobs.iter_mut().zip(before) {
            self.spoil(job, &before);
        }
        match self.sin {
            Sin::TakesMoreThanItWasGiven => taken + 1,
            Sin::TouchesWhatItDidNotTake => taken.saturating_sub(1),
            _ => taken,
        }
    }
    fn poll(&mut self, done: &mut Vec<Job>, max: usize) {
        let count = self.kept.len().min(max);
        done.extend(self.kept.drain(..count));
    }
    fn in_flight(&self) -> usize {
        self.kept.len()
    }
}

impl Sinner {
    fn spoil(&mut self, job: &mut Job, before: &[u8]) {
        let behind_text = (job.text_start as usize).saturating_add(job.text_bytes as usize);
        match (self.sin, job.status) {
            (Sin::BelievesEveryTag, JobStatus::AuthenticationFailed) => job.status = JobStatus::Done,
            (Sin::LeavesPlaintext, JobStatus::AuthenticationFailed) => {
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
            (Sin::SpoilsOneByteOfLongTexts, JobStatus::Done) if job.text_bytes > 2000 => {
                job.buffer.bytes_mut()[behind_text - 1] ^= 1;
            }
            (Sin::WritesBehindTheIcv, JobStatus::Done) => {
                if let Some(byte) = job.buffer.bytes_mut().get_mut(behind_text + 16) {
                    *byte = 0;
                }
            }
            (Sin::TouchesFaultedBuffers, JobStatus::Fault) => job.buffer.bytes_mut().fill(0),
            (Sin::LosesAJob, _) if job.text_bytes == 50 => drop(job.take()),
            (Sin::EndsAJobTwice, JobStatus::Done) => {
                let twin = Job { buffer: testudo_packet::Buffer::copied(before, 0, 0), ..*job };
                self.kept.push(twin);
            }
            (Sin::ChangesCookies, _) => job.cookie += 1,
            _ => {}
        }
    }
}

#[test]
fn every_sin_is_found_by_the_check_that_is_for_it() {
    let cases = [
        (Sin::BelievesEveryTag, "every bit of a forged packet"),
        (Sin::LeavesPlaintext, "every bit of a forged packet"),
        (Sin::SpoilsOneByteOfLongTexts, "every length"),
        (Sin::WritesBehindTheIcv, "every alignment"),
        (Sin::TouchesFaultedBuffers, "undeserved jobs fault"),
        (Sin::EndsAJobTwice, "official vectors"),
        (Sin::TouchesWhatItDidNotTake, "official vectors"),
        (Sin::TakesMoreThanItWasGiven, "official vectors"),
        (Sin::ForgetsToForgetKeys, "undeserved jobs fault"),
        (Sin::ChangesCookies, "official vectors"),
        (Sin::LosesAJob, "every length"),
    ];
    for (sin, check) in cases {
        let mut make = || -> Box<dyn Engine> {
            Box::new(Sinner { inner: PortableEngine::new(), sin, kept: Vec::new() })
        };
        let report = run_only(&mut make, &[check]);
        println!("{report}");
        assert!(!report.passed() && !report.outcomes.is_empty(), "{sin:?} passed \"{check}\"");
    }
}
