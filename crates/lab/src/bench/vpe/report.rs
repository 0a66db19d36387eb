//! What `testudo bench vpe` prints: rows for programs, and what tables and pictures have in common.

use serde_json::{Map, Value, json};

use super::Experiment;
use crate::bench::case::Carrier;
use crate::bench::chart::Line;
use crate::statistics::Spread;

/// What an experiment found.
pub(super) struct Outcome {
    pub(super) rows: Vec<Row>,
    /// The table, with what there is to say of it.
    pub(super) text: String,
    pub(super) picture: Option<String>,
}

/// How the threads of a gateway divide their work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Threading {
    /// Each takes packets, does everything, and sends them; no SA is shared.
    RunToCompletion,
    /// The same with one SA of ESP, whose numbers and window are shared.
    SharedSa,
    /// One numbers, and others encrypt: the paper's parallel ESP.
    ParallelEsp,
    /// The same as to completion, each with an SA of its own under one tunnel (RFC 9611).
    SaPerWorker,
    /// One does all but cryptography, of which it has a share: the engine `cores`.
    Cores,
}

impl Threading {
    /// Name in JSON.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::RunToCompletion => "run_to_completion",
            Self::SharedSa => "shared_sa",
            Self::ParallelEsp => "parallel_esp",
            Self::SaPerWorker => "sa_per_worker",
            Self::Cores => "cores",
        }
    }
}

/// One object of the array that `--json` prints.
pub(super) struct Row {
    pub(super) experiment: Experiment,
    pub(super) carrier: Carrier,
    pub(super) threading: Threading,
    pub(super) workers: usize,
    pub(super) inner_bytes: usize,
    /// `None` where no time was measured: then the row has no such member.
    pub(super) packets_per_second: Option<Spread>,
    /// What this experiment has beyond the members of all; `null` stands for no figure.
    pub(super) more: Vec<(&'static str, Value)>,
}

impl Row {
    /// Of one worker that shares nothing.
    pub(super) fn of_one(experiment: Experiment, carrier: Carrier, inner_bytes: usize) -> Self {
        let (threading, packets_per_second) = (Threading::RunToCompletion, None);
        Self { experiment, carrier, threading, workers: 1, inner_bytes, packets_per_second, more: Vec::new() }
    }

    /// With the members that have something to say: who reads one finds a figure there, or no member.
    pub(super) fn json(&self) -> Value {
        let mut object = Map::new();
        let mut put = |name: &str, value: Value| {
            if !value.is_null() {
                object.insert(name.to_owned(), value);
            }
        };
        put("experiment", json!(self.experiment.name()));
        put("encapsulation", json!(if is_vpe(self.carrier) { "vpe" } else { "esp" }));
        put("in_udp", json!(is_in_udp(self.carrier)));
        put("threading", json!(self.threading.name()));
        put("workers", json!(self.workers));
        put("inner_bytes", json!(self.inner_bytes));
        if let Some(Spread { median, lowest, highest }) = self.packets_per_second {
            put("packets_per_second", json!(median));
            put("packets_per_second_lowest", json!(lowest));
            put("packets_per_second_highest", json!(highest));
        }
        for (name, value) in &self.more {
            put(name, value.clone());
        }
        Value::Object(object)
    }
}

pub(super) fn is_vpe(carrier: Carrier) -> bool {
    matches!(carrier, Carrier::Vpe | Carrier::VpeInUdp)
}

pub(super) fn is_in_udp(carrier: Carrier) -> bool {
    matches!(carrier, Carrier::EspInUdp | Carrier::VpeInUdp)
}

/// Name for people.
pub(super) fn words(carrier: Carrier) -> &'static str {
    match carrier {
        Carrier::Esp => "ESP",
        Carrier::EspInUdp => "ESP in UDP",
        Carrier::Vpe => "VPE",
        Carrier::VpeInUdp => "VPE in UDP",
    }
}

/// Millions, with three decimals.
pub(super) fn millions(value: f64) -> String {
    format!("{:.3}", value / 1e6)
}

/// Lowest and highest, in millions.
pub(super) fn range_millions(spread: &Spread) -> String {
    format!("{}-{}", millions(spread.lowest), millions(spread.highest))
}

/// A line of a picture.
pub(super) fn line(name: String, colour: usize, dash: usize, points: Vec<(usize, Spread)>) -> Line {
    Line { name, colour, dash, points, mixes: [None; 2] }
}
