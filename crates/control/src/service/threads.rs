//! Which threads packets pass: what is told of it.

use super::worker_threads::thread_name;
use serde_json::{Value, json};
use testudo_gateway::{ChosenThreads, TRANSMIT_THREAD, ThreadRates, ThreadingModel};

/// The threading model in force.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Threads {
    /// The model.
    pub model: ThreadingModel,
    /// Why it is that one, in words; where it is chosen by what is measured, why it is never one with more
    /// threads, or nothing.
    pub why: String,
    /// The names of the device threads that there are, or may be.
    pub devices: Vec<String>,
}

/// `auto: I/O 3.10 Mpps (2.60 Mpps and driving the device), cryptography 9.40 Mpps`
fn words(rates: &ThreadRates) -> String {
    let [io, alone, cryptography] =
        [rates.io, rates.alone, rates.cryptography].map(|rate| format!("{:.2} Mpps", rate as f64 / 1e6));
    format!("I/O {io} ({alone} and driving the device), cryptography {cryptography}")
}

impl Threads {
    /// `threading` of `status`, of so many workers, and what was chosen, if that is so.
    pub(super) fn status(&self, workers: usize, chosen: Option<ChosenThreads>) -> Value {
        let model = chosen.map_or(self.model, |chosen| chosen.model);
        let workers = (0..workers).map(thread_name);
        let devices = self.devices.iter().filter(|_| model.has_device_thread()).cloned();
        let transmits = (model == ThreadingModel::TwoIo).then(|| TRANSMIT_THREAD.to_owned());
        let threads: Vec<_> = workers.chain(devices).chain(transmits).collect();
        json!({
            "model": model.name(), "in_words": model.to_string(), "why": self.why(chosen), "threads": threads,
            "auto": chosen.map(|chosen| json!({
                "most": chosen.most.name(),
                "changes": chosen.changes,
                "io_pps": chosen.rates.map(|rates| rates.io),
                "io_and_driving_pps": chosen.rates.map(|rates| rates.alone),
                "cryptography_pps": chosen.rates.map(|rates| rates.cryptography),
            })),
        })
    }

    /// `placement` of an explanation with the threads that its packet passes beside the worker, or may pass.
    pub(super) fn beside(&self, mut placement: Value, chosen: Option<ChosenThreads>) -> Value {
        if let Some(members) = placement.as_object_mut()
            && (chosen.is_some() || self.model.has_device_thread())
        {
            let model = chosen.map_or(self.model, |chosen| chosen.model);
            let told = json!({ "in_words": model.to_string(), "why": self.why(chosen) });
            members.insert("threading".to_owned(), told);
        }
        placement
    }

    /// Why it is the model that it is.
    pub(super) fn why(&self, chosen: Option<ChosenThreads>) -> String {
        let Some(chosen) = chosen else { return self.why.clone() };
        let rates = chosen.rates.as_ref().map_or_else(|| "no load was measured yet".to_owned(), words);
        let bound = if self.why.is_empty() { String::new() } else { format!("; {}", self.why) };
        format!("auto: {rates}{bound}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_names_the_model_and_its_threads() {
        let threads = Threads::default().status(2, None);
        assert_eq!(
            (&threads["model"], &threads["threads"]),
            (&json!("run_to_completion"), &json!(["worker-0", "worker-1"]))
        );
        let (why, devices) = ("configured".to_owned(), vec!["device-gpu".to_owned()]);
        let threads = Threads { model: ThreadingModel::TwoIo, why, devices }.status(1, None);
        let expected = json!({
            "model": "two_io", "in_words": "two I/O threads and a device thread", "why": "configured",
            "threads": ["worker-0", "device-gpu", "transmit-0"], "auto": null,
        });
        assert_eq!(threads, expected);
    }

    #[test]
    fn status_says_by_which_rates_a_model_was_chosen() {
        let why = "at most one_io: 2 processors".to_owned();
        let threads = Threads { why, devices: vec!["device-gpu".to_owned()], ..Threads::default() };
        let [model, most] = [ThreadingModel::RunToCompletion, ThreadingModel::OneIo];
        let chosen = ChosenThreads { model, most, rates: None, changes: 0 };
        let status = threads.status(1, Some(chosen));
        assert_eq!(status["why"], "auto: no load was measured yet; at most one_io: 2 processors");
        assert_eq!(status["threads"], json!(["worker-0"]), "there is no other one now");
        let rates = ThreadRates { io: 3_100_000, alone: 2_604_999, cryptography: 9_400_000 };
        let chosen = ChosenThreads { model: most, rates: Some(rates), changes: 1, ..chosen };
        let status = Threads { why: String::new(), ..threads }.status(1, Some(chosen));
        let why = "auto: I/O 3.10 Mpps (2.60 Mpps and driving the device), cryptography 9.40 Mpps";
        assert_eq!((&status["why"], &status["model"]), (&json!(why), &json!("one_io")));
        assert_eq!(status["threads"], json!(["worker-0", "device-gpu"]));
        let expected = json!({
            "most": "one_io", "changes": 1,
            "io_pps": 3_100_000, "io_and_driving_pps": 2_604_999, "cryptography_pps": 9_400_000,
        });
        assert_eq!(status["auto"], expected);
    }

    #[test]
    fn an_explanation_has_threads_where_there_are_any_or_may_be() {
        let alone = Threads::default();
        assert_eq!(alone.beside(json!({}), None), json!({}));
        let [model, most] = [ThreadingModel::RunToCompletion, ThreadingModel::OneIo];
        let chosen = Some(ChosenThreads { model, most, rates: None, changes: 0 });
        let told = alone.beside(json!({}), chosen);
        assert_eq!(told["threading"]["in_words"], "run to completion");
        assert_eq!(told["threading"]["why"], "auto: no load was measured yet");
        let one = Threads { model: most, why: "configured".to_owned(), ..alone };
        assert_eq!(one.beside(json!({}), None)["threading"]["why"], "configured");
        assert!(one.beside(Value::Null, None).is_null());
    }
}
