//! One reading of a gateway: its status as numbers.

use super::shares::{self, Placed};
use serde_json::Value;
use testudo_gateway::Role;
use testudo_packet::{PortCounters, Stage, StageTimes};

/// What a gateway reported about itself at one moment.
#[derive(Debug, Clone, Default)]
pub struct Reading {
    /// Of the gateway's program.
    pub version: String,
    /// Since it started.
    pub uptime_seconds: u64,
    /// Tunnels in its configuration.
    pub tunnels: u64,
    /// Those of them that carry nothing.
    pub tunnels_down: u64,
    /// The first engine in use.
    pub engine: String,
    /// SAs that the NIC seals and opens for, if it does cryptography.
    pub in_nic: Option<(u64, u64)>,
    /// An engine that would come before it, and why it is not in use.
    pub missed_engine: Option<(String, String)>,
    /// The processor's clock.
    pub clock_ticks: u64,
    /// The same moment in the gateway's own time.
    pub elapsed_ns: u64,
    /// Nanoseconds that the workers were on processors, and that they waited for one, if the kernel reports
    /// them.
    pub worker: Option<(u64, u64)>,
    /// Each worker.
    pub workers: Vec<Worker>,
    /// What the gateway says of how packets are spread over workers.
    pub imbalance: Vec<String>,
    /// One batch in this many is measured.
    pub measured_of: u64,
    /// Of measured batches from the protected side.
    pub outbound: StageTimes,
    /// Of measured batches from the unprotected side.
    pub inbound: StageTimes,
    /// The port of the protected side.
    pub protected: Port,
    /// The port of the unprotected side.
    pub unprotected: Port,
    /// Every reason with its count.
    pub drops: Vec<(String, u64)>,
    /// Of the pool.
    pub free_buffers: u64,
    /// Jobs by engine and reason, where they are placed by what they cost.
    pub placed: Placed,
    /// How packets are gathered for engines that have bins, in words, with the status' own members.
    pub gathered: Vec<(String, Value)>,
    /// Which threads packets pass and why, in words, where threads beside the worker may be among them.
    pub threading: Option<String>,
}

/// One worker at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub struct Worker {
    /// Which directions it has.
    pub role: Role,
    /// Whether its queues get no packets.
    pub is_parked: bool,
    /// Packets from the protected side, and from the unprotected one.
    pub packets: [u64; 2],
    /// Ticks of measured batches, of both directions.
    pub ticks: u64,
    /// Packets that it dropped.
    pub dropped: u64,
}

/// One port at one moment.
#[derive(Debug, Clone, Default)]
pub struct Port {
    /// Its interface, and of a fast one its kind.
    pub name: String,
    /// Since the start.
    pub counters: PortCounters,
    /// How long packets have waited for it, in ticks.
    pub waited_ticks: u64,
}

/// A field that the gateway's status lacks: its version differs from this program's.
#[derive(Debug)]
pub struct Missing(&'static str);

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the gateway's status has no {}: its version may differ from this program's", self.0)
    }
}

fn number(object: &Value, key: &'static str) -> Result<u64, Missing> {
    object[key].as_u64().ok_or(Missing(key))
}

fn text(object: &Value, key: &'static str) -> Result<String, Missing> {
    object[key].as_str().map(str::to_owned).ok_or(Missing(key))
}

/// Nothing of workers that are alone because that is configured, or in older gateways.
fn threading(status: &Value) -> Option<String> {
    let (words, why) = (status["in_words"].as_str()?, status["why"].as_str()?);
    let is_told = status["model"] != "run_to_completion" || why != "configured";
    is_told.then(|| format!("threading: {words} ({why})"))
}

impl Reading {
    /// Reads the answer to `status`.
    ///
    /// # Errors
    /// [`Missing`] names a field that the answer has not.
    pub fn parse(status: &Value) -> Result<Self, Missing> {
        let stages = &status["stages"];
        let (engine, missed_engine) = engines(status)?;
        let drops = status["drops"].as_object().ok_or(Missing("drops"))?;
        Ok(Self {
            version: text(status, "version")?,
            uptime_seconds: number(status, "uptime_seconds")?,
            tunnels: number(status, "tunnels")?,
            tunnels_down: number(status, "tunnels_down")?,
            engine,
            in_nic: in_nic(&status["offload"]),
            missed_engine,
            clock_ticks: number(&stages["clock"], "ticks")?,
            elapsed_ns: number(&stages["clock"], "elapsed_ns")?,
            worker: time(&status["worker"])?,
            workers: workers(&status["workers"])?,
            imbalance: imbalance(&status["imbalance"]),
            measured_of: number(stages, "measured_of")?,
            outbound: times(&stages["outbound"])?,
            inbound: times(&stages["inbound"])?,
            protected: port(&status["ports"]["protected"])?,
            unprotected: port(&status["ports"]["unprotected"])?,
            drops: drops
                .iter()
                .filter_map(|(reason, n)| Some((reason.clone(), n.as_u64()?)))
                .chain(device_drops(&status["ports"]))
                .collect(),
            free_buffers: number(status, "free_buffers")?,
            placed: shares::read(&status["placement"]),
            gathered: shares::gathered(&status["engines"]),
            threading: threading(&status["threading"]),
        })
    }

    /// Whether no counter is lower than in an `earlier` reading. Otherwise another gateway answers now.
    #[must_use]
    pub fn continues(&self, earlier: &Reading) -> bool {
        let counts = |r: &Reading| {
            let ports = [&r.protected.counters, &r.unprotected.counters];
            let ports = ports.map(|c| [c.rx_packets, c.rx_bytes, c.tx_packets, c.tx_bytes, c.rx_calls]);
            [ports.concat(), vec![r.elapsed_ns, r.clock_ticks, r.outbound.batches, r.inbound.batches]]
                .concat()
        };
        counts(self).iter().zip(counts(earlier)).all(|(now, then)| *now >= then)
    }
}

/// Absent where no NIC does cryptography, and in older gateways.
fn in_nic(offload: &Value) -> Option<(u64, u64)> {
    Some((offload["sealing"]["in_use"].as_u64()?, offload["opening"]["in_use"].as_u64()?))
}

/// The first engine in use, and one before it that is not.
fn engines(status: &Value) -> Result<(String, Option<(String, String)>), Missing> {
    let engines = status["engines"].as_array().ok_or(Missing("engines"))?;
    let first = engines.iter().position(|e| e["in_use"] == true).ok_or(Missing("engine"))?;
    let missed = engines[..first].first().map(|e| Ok((text(e, "name")?, text(e, "detail")?))).transpose()?;
    Ok((text(&engines[first], "name")?, missed))
}

/// Gateways before there were several do not list them.
fn workers(list: &Value) -> Result<Vec<Worker>, Missing> {
    let worker = |object: &Value| {
        let packets = |side: &str| number(&object[side], "rx_packets");
        let ticks = number(object, "outbound_ticks")?.saturating_add(number(object, "inbound_ticks")?);
        let packets = [packets("protected")?, packets("unprotected")?];
        // Gateways before there were roles do not name them.
        let role = Role::ALL.into_iter().find(|role| object["role"] == role.name()).unwrap_or_default();
        let is_parked = object["parked"] == true;
        Ok(Worker { role, is_parked, packets, ticks, dropped: number(object, "dropped")? })
    };
    list.as_array().into_iter().flatten().map(worker).collect()
}

/// Absent in gateways before there were several workers.
fn imbalance(list: &Value) -> Vec<String> {
    let words = |one: &Value| one["words"].as_str().map(str::to_owned);
    list.as_array().into_iter().flatten().filter_map(words).collect()
}

fn time(object: &Value) -> Result<Option<(u64, u64)>, Missing> {
    if object.is_null() {
        return Ok(None);
    }
    Ok(Some((number(object, "ran_ns")?, number(object, "queued_ns")?)))
}

fn times(object: &Value) -> Result<StageTimes, Missing> {
    let mut times = StageTimes {
        packets: number(object, "packets")?,
        batches: number(object, "batches")?,
        ..StageTimes::default()
    };
    for (ticks, stage) in times.ticks.iter_mut().zip(Stage::ALL) {
        *ticks = number(&object["ticks"], stage.name())?;
    }
    Ok(times)
}

/// What the devices of fast ports have lost, by side and reason.
fn device_drops(ports: &Value) -> Vec<(String, u64)> {
    let of_side = |side: &'static str| {
        let drops = ports[side]["device"]["drops"].as_object().into_iter().flatten();
        drops.filter_map(move |(reason, count)| Some((format!("{side} {reason}"), count.as_u64()?)))
    };
    ["protected", "unprotected"].into_iter().flat_map(of_side).collect()
}

/// The name of a port: of a fast one, with its kind.
fn name(object: &Value) -> Result<String, Missing> {
    let name = text(object, "name")?;
    let kind = object["device"]["kind"].as_str();
    Ok(kind.map_or_else(|| name.clone(), |kind| format!("{kind} {name}")))
}

fn port(object: &Value) -> Result<Port, Missing> {
    let counters = PortCounters {
        rx_packets: number(object, "rx_packets")?,
        rx_bytes: number(object, "rx_bytes")?,
        tx_packets: number(object, "tx_packets")?,
        tx_bytes: number(object, "tx_bytes")?,
        rx_calls: number(object, "rx_calls")?,
        tx_calls: number(object, "tx_calls")?,
    };
    Ok(Port { name: name(object)?, counters, waited_ticks: number(object, "waited_ticks")? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_fast_port_is_named_with_its_kind_and_what_its_device_lost() {
        let device = json!({ "kind": "xdp", "drops": { "rx_ring_full": 7 } });
        let ports = json!({ "unprotected": { "name": "eth0", "device": device }, "protected": { "name": "tun0", "device": null } });
        assert_eq!(device_drops(&ports), [("unprotected rx_ring_full".to_owned(), 7)]);
        assert_eq!(name(&ports["unprotected"]).unwrap(), "xdp eth0");
        assert_eq!(name(&ports["protected"]).unwrap(), "tun0");
    }

    #[test]
    fn threads_are_told_of_where_the_worker_is_not_alone_or_need_not_be() {
        let status = |model: &str, why: &str| json!({ "model": model, "in_words": "so", "why": why });
        assert_eq!(threading(&Value::Null), None);
        assert_eq!(threading(&status("run_to_completion", "configured")), None);
        for (model, why) in [("one_io", "configured"), ("run_to_completion", "auto: no load")] {
            assert_eq!(threading(&status(model, why)), Some(format!("threading: so ({why})")));
        }
    }
}
