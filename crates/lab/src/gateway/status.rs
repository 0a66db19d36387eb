//! The output of `testudo status --json`, as far as the laboratory needs it.

use std::collections::BTreeMap;

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
