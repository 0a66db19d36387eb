//! The output of `testudo status --json`, as far as the laboratory needs it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use testudo_gateway::EngineReport;

/// The state of a gateway. Members not needed here are ignored, so that it may grow.
#[derive(Debug, Clone, Deserialize)]
pub struct Status {
    /// In order of placement.
    pub engines: Vec<EngineStatus>,
    /// The ports of both sides.
    pub ports: Ports,
    /// Packets dropped, by the name of the reason.
    pub drops: BTreeMap<String, u64>,
}

/// An SA of `testudo sa list --json`.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct ListedSa {
    pub(crate) spi: u32,
    /// `inbound` or `outbound`.
    pub(crate) direction: String,
}

/// One engine.
#[derive(Debug, Clone, Deserialize)]
pub struct EngineStatus {
    /// Its name in the configuration.
    pub name: String,
    /// Whether jobs are submitted to it.
    pub in_use: bool,
    /// The suites that it does, by all of their names.
    #[serde(default)]
    pub suites: Vec<String>,
}

impl EngineStatus {
    /// What a gateway says of an engine that started like this.
    #[must_use]
    pub fn of(report: &EngineReport) -> Self {
        Self { name: report.name.clone(), in_use: report.in_use, suites: report.suite_names() }
    }
}

/// The ports of a gateway's two sides.
#[derive(Debug, Clone, Deserialize)]
pub struct Ports {
    /// Towards the private network.
    pub protected: PortStatus,
    /// Towards the public network.
    pub unprotected: PortStatus,
}

/// Packet counts of a port.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct PortStatus {
    /// Received from the network, in packets.
    pub rx_packets: u64,
    /// Sent to the network, in packets.
    pub tx_packets: u64,
}

/// Fewer measured batches say nothing of all: one that waited for a processor would be most of them.
pub(crate) const LEAST_BATCHES: u64 = 4;

/// What the worker of a gateway with one worker has done so far, of the same output.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Work {
    stages: Stages,
    ports: Ports,
}

/// The gateway's stage clock: times of one batch in some.
#[derive(Debug, Clone, Deserialize)]
struct Stages {
    outbound: Batches,
    inbound: Batches,
    clock: Clock,
}

/// The measured batches of one direction.
#[derive(Debug, Clone, Deserialize)]
struct Batches {
    /// By the name of the stage.
    ticks: BTreeMap<String, u64>,
    packets: u64,
    batches: u64,
}

impl Batches {
    fn ticks(&self) -> u64 {
        self.ticks.values().sum()
    }
}

/// Both clocks at one moment, since the gateway started.
#[derive(Debug, Clone, Copy, Deserialize)]
struct Clock {
    ticks: u64,
    elapsed_ns: u64,
}

impl Work {
    /// How long packets kept the worker since an `earlier` reading, as a share of `time`, 0 to 1: what one
    /// takes in the measured batches, for each that came. `None` if fewer than [`LEAST_BATCHES`] were
    /// measured, or if no time has passed.
    pub(crate) fn load_since(&self, earlier: &Self, time: Duration) -> Option<f64> {
        let came = self.came().saturating_sub(earlier.came());
        if came == 0 {
            return Some(0.0);
        }
        let of = |figure: fn(&Batches) -> u64| self.sum(figure).saturating_sub(earlier.sum(figure));
        let (ticks, packets, batches) = (of(Batches::ticks), of(|one| one.packets), of(|one| one.batches));
        let (then, now) = (earlier.stages.clock, self.stages.clock);
        let clock_ticks = now.ticks.saturating_sub(then.ticks);
        if batches < LEAST_BATCHES || packets == 0 || clock_ticks == 0 || time.is_zero() {
            return None;
        }
        let ns_per_tick = now.elapsed_ns.saturating_sub(then.elapsed_ns) as f64 / clock_ticks as f64;
        let ns_per_packet = ticks as f64 / packets as f64 * ns_per_tick;
        Some((came as f64 * ns_per_packet / 1e9 / time.as_secs_f64()).min(1.0))
    }

    /// The same of the busier of two gateways, if it is known of both.
    pub(crate) fn busier([a, b]: &[Self; 2], earlier: &[Self; 2], time: Duration) -> Option<f64> {
        let [earlier_a, earlier_b] = earlier;
        Some(a.load_since(earlier_a, time)?.max(b.load_since(earlier_b, time)?))
    }

    /// Packets from both sides.
    fn came(&self) -> u64 {
        self.ports.protected.rx_packets + self.ports.unprotected.rx_packets
    }

    fn sum(&self, figure: fn(&Batches) -> u64) -> u64 {
        figure(&self.stages.outbound) + figure(&self.stages.inbound)
    }
}

impl Status {
    /// Packets dropped for `reason`; a reason that is not listed has not occurred.
    pub fn dropped(&self, reason: &str) -> u64 {
        self.drops.get(reason).copied().unwrap_or(0)
    }

    /// The name of the engine that does a suite: the first in use of those that can.
    pub fn engine(&self, suite: &str) -> &str {
        let does = |engine: &&EngineStatus| engine.in_use && engine.suites.iter().any(|name| name == suite);
        self.engines.iter().find(does).map_or("none", |engine| &engine.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A gateway whose clock ticks twice a nanosecond, after so many packets, of which some were measured, in
    /// so many batches. Each packet took 4,000 ticks.
    fn work(seconds: u64, packets: u64, (measured, batches): (u64, u64)) -> Work {
        let idle = json!({ "ticks": { "receive": 0 }, "packets": 0, "batches": 0 });
        let ticks = json!({ "receive": 1_000 * measured, "cryptography": 3_000 * measured });
        let status = json!({
            "version": "9",
            "stages": {
                "outbound": { "ticks": ticks, "packets": measured, "batches": batches },
                "inbound": idle,
                "measured_of": 17,
                "clock": { "ticks": 77 + 2_000_000_000 * seconds, "elapsed_ns": 1_000_000_000 * seconds },
            },
            "ports": {
                "protected": { "name": "lan", "rx_packets": packets, "tx_packets": 0 },
                "unprotected": { "name": "wan", "rx_packets": 0, "tx_packets": packets },
            },
        });
        serde_json::from_value(status).unwrap()
    }

    #[test]
    fn a_gateways_load_is_what_packets_take_in_measured_batches_for_each_that_came() {
        let (before, time) = (work(1, 500, (30, 10)), Duration::from_millis(100));
        let is = |found: Option<f64>, known: f64| found.is_some_and(|found| (found - known).abs() < 1e-9);
        // 20,000 packets of 2 µs take 40 of 100 ms, whenever the reading is taken.
        let after = work(3, 20_500, (1_230, 90));
        assert!(is(after.load_since(&before, time), 0.4));
        assert!(is(work(30, 20_500, (1_230, 90)).load_since(&before, time), 0.4));
        assert!(is(after.load_since(&before, Duration::from_millis(30)), 1.0), "all of the time at most");
        let idle = work(3, 500, (30, 10));
        assert!(is(idle.load_since(&before, time), 0.0), "nothing came");
        let pair = [before.clone(), before.clone()];
        assert!(is(Work::busier(&[idle.clone(), after.clone()], &pair, time), 0.4));
        assert!(is(Work::busier(&[after.clone(), idle], &pair, time), 0.4));
    }

    #[test]
    fn a_load_of_too_few_measured_batches_is_not_known() {
        let (before, time) = (work(1, 500, (30, 10)), Duration::from_millis(100));
        let pair = [before.clone(), before.clone()];
        let [few, enough] = [3, 4].map(|batches| work(3, 600, (36, 10 + batches)));
        assert_eq!(few.load_since(&before, time), None);
        assert_eq!(Work::busier(&[enough.clone(), few], &pair, time), None, "the other one may be busier");
        assert!(Work::busier(&[enough.clone(), enough.clone()], &pair, time).is_some());
        assert_eq!(enough.load_since(&before, Duration::ZERO), None);
    }

    #[test]
    fn unused_members_of_a_status_are_optional() {
        let text = r#"{"version": "9", "engines": [{"name": "gpu", "in_use": false, "detail": "absent"},
            {"name": "vaes", "in_use": true, "suites": ["aes128gcm16"]},
            {"name": "portable", "in_use": true, "suites": ["aes128gcm16", "null-sha256", "sha256"]}], "drops": {"replay_duplicate": 3}, "tunnels": 1,
            "ports": {"protected": {"name": "testudo0", "rx_packets": 1, "tx_packets": 2, "rx_calls": 7},
                      "unprotected": {"rx_packets": 3, "tx_packets": 4}}}"#;
        let status: Status = serde_json::from_str(text).unwrap();
        let engines = ["aes128gcm16", "sha256", "rot13"].map(|suite| status.engine(suite));
        assert_eq!(engines, ["vaes", "portable", "none"]);
        assert_eq!((status.dropped("replay_duplicate"), status.dropped("never_heard_of")), (3, 0));
        assert_eq!(status.ports.unprotected.tx_packets, 4);
    }
}
