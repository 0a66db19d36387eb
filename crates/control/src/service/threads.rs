//! Which threads packets pass: what is told of it.

use super::worker_threads::thread_name;
use serde_json::{Value, json};
use testudo_gateway::{TRANSMIT_THREAD, ThreadingModel};

/// The threading model in force.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Threads {
    /// The model.
    pub model: ThreadingModel,
    /// Why it is that one, in words.
    pub why: String,
    /// The names of the device threads.
    pub devices: Vec<String>,
}

impl Threads {
    /// `threading` of `status`, of so many workers.
    pub(super) fn status(&self, workers: usize) -> Value {
        let workers = (0..workers).map(thread_name);
        let devices = self.devices.iter().cloned();
        let transmits = (self.model == ThreadingModel::TwoIo).then(|| TRANSMIT_THREAD.to_owned());
        let threads: Vec<_> = workers.chain(devices).chain(transmits).collect();
        json!({
            "model": self.model.name(), "in_words": self.model.to_string(), "why": self.why, "threads": threads,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_names_the_model_and_its_threads() {
        let threads = Threads::default().status(2);
        assert_eq!(
            (&threads["model"], &threads["threads"]),
            (&json!("run_to_completion"), &json!(["worker-0", "worker-1"]))
        );
        let (why, devices) = ("configured".to_owned(), vec!["device-gpu".to_owned()]);
        let threads = Threads { model: ThreadingModel::TwoIo, why, devices }.status(1);
        let expected = json!({
            "model": "two_io", "in_words": "two I/O threads and a device thread", "why": "configured",
            "threads": ["worker-0", "device-gpu", "transmit-0"],
        });
        assert_eq!(threads, expected);
    }
}
