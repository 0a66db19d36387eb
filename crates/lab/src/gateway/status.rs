//! What `testudo status --json` says, as far as the laboratory asks.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The state of a gateway. Members that we do not ask for are left out, so that it may grow.
#[derive(Debug, Clone, Deserialize)]
pub struct Status {
    /// In the order of placement.
    pub engines: Vec<EngineStatus>,
    /// Both sides.
    pub ports: Ports,
    /// Packets dropped, by the name of the reason.
    pub drops: BTreeMap<String, u64>,
}

/// One engine.
#[derive(Debug, Clone, Deserialize)]
pub struct EngineStatus {
    /// Its name in the configuration.
    pub name: String,
    /// Whether jobs go to it.
    pub in_use: bool,
}

/// The two sides of a gateway.
#[derive(Debug, Clone, Deserialize)]
pub struct Ports {
    /// The private network's.
    pub protected: PortStatus,
    /// The public network's.
    pub unprotected: PortStatus,
}

/// What has passed a port.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct PortStatus {
    /// Received from the network, in packets.
    pub rx_packets: u64,
    /// Sent to the network, in packets.
    pub tx_packets: u64,
}

impl Status {
    /// Packets dropped for `reason`; a reason that is not named has not occurred.
    pub fn dropped(&self, reason: &str) -> u64 {
        self.drops.get(reason).copied().unwrap_or(0)
    }

    /// The name of the engine in use: the first, where several are.
    pub fn engine(&self) -> &str {
        self.engines.iter().find(|engine| engine.in_use).map_or("none", |engine| &engine.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_members_of_a_status_are_optional() {
        let text = r#"{"version": "9", "engines": [{"name": "gpu", "in_use": false, "detail": "absent"},
            {"name": "portable", "in_use": true}], "drops": {"replay_duplicate": 3}, "tunnels": 1,
            "ports": {"protected": {"name": "testudo0", "rx_packets": 1, "tx_packets": 2, "rx_calls": 7},
                      "unprotected": {"rx_packets": 3, "tx_packets": 4}}}"#;
        let status: Status = serde_json::from_str(text).unwrap();
        assert_eq!(status.engine(), "portable");
        assert_eq!((status.dropped("replay_duplicate"), status.dropped("never_heard_of")), (3, 0));
        assert_eq!(status.ports.unprotected.tx_packets, 4);
    }
}
