//! What a NIC that does cryptography has to do with the SAs: for status, lists, `explain` and metrics.

use super::sas::RunningSa;
use crate::config::{Configuration, Offload};
use serde_json::{Map, Value, json};
use testudo_crypto::{OffloadReport, OffloadState};
use testudo_gateway::{OffloadFailure, OffloadMode};

/// How the worker is to use a NIC.
pub(super) fn mode(configuration: &Configuration) -> OffloadMode {
    match configuration.unprotected.offload {
        Offload::Always => OffloadMode::Always,
        // With "off" no port was given such a NIC.
        Offload::Off | Offload::Auto => OffloadMode::Auto,
    }
}

/// Where an SA's cryptography is done; [`Off`](OffloadState::Off) for one that is not installed.
fn state(sa: &RunningSa) -> OffloadState {
    sa.added.as_ref().map_or(OffloadState::Off, |added| added.counters.offload())
}

/// Whether the NIC has an SA.
pub(super) fn is_in_nic(sa: &RunningSa) -> bool {
    state(sa) == OffloadState::InNic
}

/// Where an SA is: `cpu` or `nic`, and why not in the NIC; null where no port offloads.
pub(super) fn of_sa(sa: &RunningSa) -> Value {
    match state(sa) {
        OffloadState::Off => Value::Null,
        OffloadState::InNic => json!({ "place": "nic", "why_not": null, "description": null }),
        state => json!({ "place": "cpu", "why_not": state.word(), "description": state.description() }),
    }
}

/// Where an SA is, at the end of a sentence; empty where no port offloads.
pub(super) fn in_words(sa: &RunningSa) -> String {
    match state(sa) {
        OffloadState::Off => String::new(),
        OffloadState::InNic => ", whose cryptography the NIC does".to_owned(),
        state => format!(", whose cryptography the CPU does ({}: {})", state.word(), sentence_part(state)),
    }
}

/// A description without its full stop, to go on with.
fn sentence_part(state: OffloadState) -> &'static str {
    state.description().trim_end_matches('.')
}

/// The NIC itself; null where no port offloads.
pub(super) fn status(report: Option<OffloadReport>) -> Value {
    let Some(report) = report else { return Value::Null };
    let sessions = |(in_use, limit): (usize, usize)| json!({ "in_use": in_use, "limit": limit });
    let counts = report.counts.iter().map(|(name, _, count)| (name.to_owned(), json!(count)));
    json!({
        "device": report.device,
        "out_of_service": report.out_of_service,
        "sealing": sessions(report.sealing),
        "opening": sessions(report.opening),
        "counts": counts.collect::<Map<_, _>>(),
    })
}

/// Logs that a NIC is out of service.
pub(super) fn log(OffloadFailure { device, why }: &OffloadFailure) {
    tracing::error!("{}", out_of_service(device, why));
}

/// What the log says of a NIC that is out of service.
fn out_of_service(device: &str, why: &str) -> String {
    format!(
        "the NIC {device} is out of service for cryptography until a restart: {why}; its SAs go on in software; \
         see whether its firmware is in order"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use testudo_crypto::OffloadCounts;

    #[test]
    fn a_nic_is_reported_with_its_sessions_and_counts() {
        assert_eq!(status(None), Value::Null);
        let counts = OffloadCounts { sealed: 7, ..OffloadCounts::default() };
        let report = OffloadReport {
            device: "a NIC".to_owned(),
            out_of_service: Some("it lies".to_owned()),
            sealing: (2, 1024),
            opening: (3, 1024),
            counts,
        };
        let status = status(Some(report));
        assert_eq!((&status["sealing"]["in_use"], &status["opening"]["limit"]), (&json!(2), &json!(1024)));
        assert_eq!((&status["counts"]["sealed"], &status["counts"]["resets"]), (&json!(7), &json!(0)));
        assert_eq!(status["out_of_service"], "it lies");
        let line = out_of_service("a NIC", "it lies");
        assert!(line.contains("a NIC") && line.contains("it lies; its SAs go on in software"), "{line}");
    }
}
