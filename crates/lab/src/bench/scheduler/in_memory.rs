//! A device in memory: an engine of the processor that takes chunks and answers when it is asked again, as a
//! device does. It shows what threads beside the worker bring where there is no GPU; it is none.

use std::collections::VecDeque;

use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, JobStatus, KeyId, KeyMaterial, Profile, Suite,
};

/// Its name in rows.
const IN_MEMORY: &str = "in_memory";
const DEPTH_JOBS: usize = 8192;
/// Jobs that are done in one call of the engine.
const BURST: usize = 64;

/// An engine behind a queue. What is given between two flushes is a chunk, and the thread that polls does it.
pub(super) struct InMemory {
    inner: Box<dyn Engine>,
    open: VecDeque<Job>,
    due: VecDeque<Job>,
}

impl InMemory {
    /// Around an engine that answers at once.
    pub(super) fn over(inner: Box<dyn Engine>) -> Self {
        Self { inner, open: VecDeque::new(), due: VecDeque::new() }
    }
}

impl Engine for InMemory {
    fn name(&self) -> &'static str {
        IN_MEMORY
    }

    fn description(&self) -> String {
        format!("{} in chunks: a device in memory, no GPU", self.inner.name())
    }

    fn capability(&self, suite: Suite) -> Option<Capability> {
        self.inner.capability(suite)
    }

    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        self.inner.install(key, direction)
    }

    fn remove(&mut self, key: KeyId) {
        self.inner.remove(key);
    }

    fn profile(&self, suite: Suite) -> Profile {
        Profile { under_way: 2, ..Profile { depth_jobs: DEPTH_JOBS, ..self.inner.profile(suite) } }
    }

    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        self.open.extend(jobs.iter_mut().map(Job::take));
        jobs.len()
    }

    fn flush(&mut self) {
        self.due.append(&mut self.open);
    }

    fn poll(&mut self, done: &mut Vec<Job>, max: usize) {
        let mut jobs: Vec<Job> = self.due.drain(..max.min(BURST).min(self.due.len())).collect();
        if !jobs.is_empty() {
            self.inner.submit(&mut jobs);
            done.extend(jobs.into_iter().filter(|job| job.status != JobStatus::Taken));
        }
    }

    fn in_flight(&self) -> usize {
        self.open.len() + self.due.len()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::{BenchSchedulerOptions, array};
    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        options: BenchSchedulerOptions,
    }

    /// With threads beside the worker, too, all packets come out, in their order, and a peer accepts them.
    #[test]
    fn every_threading_model_is_measured_without_a_gpu_and_says_how_many_threads_it_has() {
        let words = ["scheduler", "--experiment", "threading", "--sizes", "64", "--chunks", "1"];
        let rows = array(&Program::parse_from(words).options, Vec::new()).unwrap();
        let rows = rows.as_array().unwrap();
        assert_eq!(rows.len(), 6);
        for (row, (model, threads)) in
            rows.iter().zip([("run_to_completion", 1), ("one_io", 2), ("two_io", 3)].into_iter().cycle())
        {
            assert_eq!((row["threading"].as_str(), row["threads"].as_u64()), (Some(model), Some(threads)));
            assert!(row["gbit_s"].as_f64().is_some_and(|rate| rate > 0.0), "{row}");
            assert_eq!((&row["engine"], &row["reordered"]), (&IN_MEMORY.into(), &0.into()), "{row}");
            let [lowest, highest] = ["gbit_s_lowest", "gbit_s_highest"].map(|end| row[end].as_f64());
            assert!(lowest <= row["gbit_s"].as_f64() && row["gbit_s"].as_f64() <= highest, "{row}");
            assert!(row["launches"].as_u64() > Some(0), "the device in memory did it: {row}");
            assert!(row["predicted_gbit_s"].is_null(), "nobody has a model of threads: {row}");
            assert!(row["device"].as_str().unwrap().contains("no GPU"), "{row}");
            assert_eq!(row["cores_shared"], threads > row["cores"].as_u64().unwrap());
            let named = |role: &str| row["processors"][role].as_array().map_or(0, Vec::len);
            assert!((1..=2).contains(&named("worker")), "{row}");
            assert_eq!(named("beside") as u64, if threads > 1 { row["cores"].as_u64().unwrap() } else { 0 });
        }
    }
}
