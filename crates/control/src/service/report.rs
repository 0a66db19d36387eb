//! What a running gateway reports about itself, as JSON: the source of every table, and of `--json`.

use super::balance::imbalances;
use super::gathering;
use super::groups::{groups, senders};
use super::installed::{InstalledTunnels, Running};
use super::instance::instance;
use super::interfaces::interfaces;
use super::negotiated::NegotiatedPolicy;
use super::offload;
use super::path_mtu::{path_mtu, path_mtus};
use super::populated::{MAX_POPULATED, MAX_POPULATED_PIECES};
use super::port_details::{BothDetails, PortDetail, PortDetails};
use super::sas::RunningSa;
use super::shares;
use super::threads::Threads;
use super::vpe_windows::{windows, windows_of_all, windows_of_sas};
use super::wanted::{self, named};
use super::worker_sas;
use super::worker_threads::thread_name;
use super::worker_time::{WorkerTime, worker_place, worker_time};
use crate::config::{self, Configuration, Network, Remote};
use crate::firewall::Firewall;
use crate::processors::Processors;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use testudo_crypto::Suite;
use testudo_gateway::{
    AllCounters, Clock, EngineReport, LateJobs, PortSnapshot, SaCounts, Scheduled, Shares, SystemClock,
    WithdrawalReason, WorkerCounters,
};
use testudo_ipsec::{
    Action, Encapsulation, IpsecProtocol, Mode, Moment, Protocol, SaState, Selector, TunnelIndex,
};
use testudo_packet::{DropCounters, DropReason, MEASURED_OF, Stage, StageTimes, ticks};

/// What does not change while a gateway runs.
#[derive(Debug)]
pub struct Facts {
    /// Version of the program.
    pub version: &'static str,
    /// When it started.
    pub started: Instant,
    /// The workers' clock.
    pub clock: SystemClock,
    /// The start-up report of each engine.
    pub engines: Vec<EngineReport>,
    /// What the ports' devices tell.
    pub ports: BothDetails,
    /// The workers' counters.
    pub counters: AllCounters,
    /// Which threads packets pass.
    pub threads: Threads,
}

/// The engines in service, in the order in which they get jobs.
#[derive(Debug)]
pub struct EnginesInService<'a> {
    engines: Vec<&'a EngineReport>,
    /// What jobs are placed by, if by what they cost.
    shares: Option<Shares>,
}

impl<'a> EnginesInService<'a> {
    /// Those in use of `reports` but for the `withdrawn` ones.
    #[must_use]
    pub fn new(reports: &'a [EngineReport], withdrawn: &[&str]) -> Self {
        let in_service = |report: &&EngineReport| report.in_use && !withdrawn.contains(&&*report.name);
        Self { engines: reports.iter().filter(in_service).collect(), shares: None }
    }

    /// The same, where jobs are placed by what they cost.
    pub(super) fn placing(self, shares: Option<Shares>) -> Self {
        Self { shares, ..self }
    }

    /// Of a gateway that runs.
    #[must_use]
    pub fn of(facts: &'a Facts) -> Self {
        let shares = facts.counters.shares();
        // Where one worker has lost an engine, others may place jobs there.
        let is_placed = |name: &&str| {
            let mut rows = shares.iter().flat_map(|shares| &shares.rows);
            rows.any(|row| row.engine == *name && row.in_service)
        };
        let withdrawn: Vec<_> = facts.counters.withdrawn_engines().filter(|name| !is_placed(name)).collect();
        Self::new(&facts.engines, &withdrawn).placing(shares)
    }

    fn all_for(&self, suite: Suite) -> impl Iterator<Item = &'a EngineReport> {
        self.engines.iter().copied().filter(move |engine| engine.suites.contains(&suite))
    }

    /// The name of the first engine that does the packets of a suite's SAs.
    pub(super) fn name_for(&self, suite: Suite) -> Option<&'a str> {
        self.all_for(suite).next().map(|engine| &*engine.name)
    }

    /// How many engines do a suite.
    pub(super) fn count_for(&self, suite: Suite) -> usize {
        self.all_for(suite).count()
    }

    /// What the jobs of a suite are placed by, if that is what they cost: several engines do it.
    pub(super) fn shares_of(&self, suite: Suite) -> Option<&Shares> {
        self.shares.as_ref().filter(|_| self.count_for(suite) > 1)
    }
}

/// Drops by reason, for all reasons.
#[must_use]
pub fn drops(counters: &DropCounters) -> Value {
    counters
        .iter()
        .map(|(reason, count)| (reason.name().to_owned(), json!(count)))
        .collect::<Map<_, _>>()
        .into()
}

/// A port, whose kind is `of_host` unless its device says another.
fn port(snapshot: &PortSnapshot, of_host: &str, details: Option<&Arc<dyn PortDetails>>) -> Value {
    let details = details.map(|details| details.details());
    let c = snapshot.counters;
    json!({
        "kind": details.as_ref().map_or(of_host, |details| details.kind),
        "device": details.as_ref().map(PortDetail::to_json),
        "name": snapshot.name, "rx_packets": c.rx_packets, "rx_bytes": c.rx_bytes, "tx_packets": c.tx_packets,
        "tx_bytes": c.tx_bytes, "rx_calls": c.rx_calls, "tx_calls": c.tx_calls, "waited_ticks": snapshot.waited_ticks,
    })
}

/// Both clocks at one moment. Two readings give the tick rate.
struct Now {
    ticks: u64,
    /// Since the gateway started.
    elapsed: Duration,
}

/// Attempts to read both clocks without an interruption.
const CLOCK_READINGS: usize = 4;

impl Now {
    /// The closest of a few readings: a thread may be preempted between the two clocks.
    fn read(started: Instant) -> Self {
        let readings = (0..CLOCK_READINGS).map(|_| {
            let before = ticks();
            let elapsed = started.elapsed();
            let took = ticks().wrapping_sub(before);
            (took, Self { ticks: before.wrapping_add(took / 2), elapsed })
        });
        let closest = readings.min_by_key(|(took, _)| *took);
        closest.map_or(Self { ticks: 0, elapsed: Duration::ZERO }, |(_, now)| now)
    }
}

fn stage_times(times: &StageTimes) -> Value {
    let ticks = Stage::ALL.into_iter().map(|stage| (stage.name().to_owned(), json!(times.of(stage))));
    json!({ "ticks": ticks.collect::<Map<_, _>>(), "packets": times.packets, "batches": times.batches })
}

/// The stage times of batches, and the clocks that convert ticks to time.
fn stages(facts: &Facts) -> Value {
    let (outbound, inbound) = (facts.counters.outbound_stages(), facts.counters.inbound_stages());
    let now = Now::read(facts.started);
    json!({
        "outbound": stage_times(&outbound),
        "inbound": stage_times(&inbound),
        "measured_of": MEASURED_OF,
        "clock": { "ticks": now.ticks, "elapsed_ns": u64::try_from(now.elapsed.as_nanos()).unwrap_or(u64::MAX) },
    })
}

fn in_ns(time: WorkerTime) -> Value {
    json!({ "ran_ns": time.ran_ns, "queued_ns": time.queued_ns })
}

/// The time of all workers together, if the kernel reports it.
fn time_of_all(facts: &Facts) -> Option<WorkerTime> {
    let times = (0..facts.counters.each().len()).map(|number| worker_time(&thread_name(number)));
    let sum = |a: WorkerTime, b: WorkerTime| WorkerTime {
        ran_ns: a.ran_ns + b.ran_ns,
        queued_ns: a.queued_ns + b.queued_ns,
    };
    times.collect::<Option<Vec<_>>>()?.into_iter().reduce(sum)
}

/// What one worker has done.
fn worker(
    (number, counters): (usize, &WorkerCounters),
    own_sas: &HashMap<usize, usize>,
    machine: &Processors,
) -> Value {
    let queue = |snapshot: PortSnapshot| {
        let c = snapshot.counters;
        json!({
            "name": snapshot.name, "rx_packets": c.rx_packets, "rx_bytes": c.rx_bytes,
            "tx_packets": c.tx_packets, "tx_bytes": c.tx_bytes,
        })
    };
    let time = worker_time(&thread_name(number));
    let place = worker_place(&thread_name(number), machine);
    json!({
        "worker": number,
        "thread": thread_name(number),
        "parked": counters.is_parked(),
        "role": counters.role().name(),
        "processors": place.as_ref().map(|place| &place.processors),
        "numa_node": place.as_ref().and_then(|place| place.node),
        "own_sas": own_sas.get(&number).copied().unwrap_or(0),
        "ran_ns": time.map(|time| time.ran_ns),
        "queued_ns": time.map(|time| time.queued_ns),
        "protected": queue(counters.protected()),
        "unprotected": queue(counters.unprotected()),
        "outbound_ticks": counters.outbound_stages().total(),
        "inbound_ticks": counters.inbound_stages().total(),
        "dropped": counters.drops().iter().map(|(_, count)| count).sum::<u64>(),
        "free_buffers": counters.free_buffers(),
    })
}

/// The current state of an engine: one that was in use at first may have been taken out of service since.
fn engine(
    report: &EngineReport,
    withdrawn: Option<WithdrawalReason>,
    scheduled: Option<&Scheduled>,
    late: &[LateJobs],
) -> Value {
    let detail = match withdrawn {
        None => report.detail.as_str(),
        Some(WithdrawalReason::KeptPackets) => {
            "kept packets for too long and is out of service until a restart"
        }
        Some(WithdrawalReason::Failed) => "failed and is out of service until a restart",
    };
    json!({
        "name": report.name, "in_use": report.in_use && withdrawn.is_none(), "detail": detail,
        "suites": report.suite_names(),
        "scheduler": scheduled.map(|scheduled| scheduler(scheduled, if withdrawn.is_none() { late } else { &[] })),
    })
}

/// What the packet scheduler has done for an engine with bins.
#[must_use]
pub fn scheduler(scheduled: &Scheduled, late: &[LateJobs]) -> Value {
    json!({
        "chunks": scheduled.chunks, "packets": scheduled.packets, "left_over": scheduled.left_over,
        "spilled": { "no_room": scheduled.no_room, "too_late": scheduled.too_late },
        "gathering": gathering::gathering(scheduled, late),
    })
}

/// The gateway as a whole.
#[must_use]
pub fn status(facts: &Facts, installed: &InstalledTunnels) -> Value {
    let withdrawn: HashMap<_, _> = facts.counters.withdrawals().collect();
    let scheduled = facts.counters.scheduled();
    let why = |e: &EngineReport| withdrawn.get(&*e.name).copied();
    let late = facts.counters.late_jobs();
    let late_of = |e: &EngineReport| late.get(&*e.name).map_or(&[][..], Vec::as_slice);
    let engines = facts.engines.iter().map(|e| engine(e, why(e), scheduled.get(&*e.name), late_of(e)));
    let (paths, omitted) = path_mtus(installed, facts.clock.now());
    let (groups, groups_count) = groups(installed, facts.clock.now());
    let (own_sas, machine) = (worker_sas::counted(installed), Processors::of_this_process());
    let workers = facts.counters.each().enumerate().map(|of| worker(of, &own_sas, &machine));
    json!({
        "version": facts.version,
        "uptime_seconds": facts.started.elapsed().as_secs(),
        "engines": engines.collect::<Vec<_>>(),
        "ports": {
            "protected": port(&facts.counters.protected(), "tun", facts.ports.protected.as_ref()),
            "unprotected": port(&facts.counters.unprotected(), "socket", facts.ports.unprotected.as_ref()),
        },
        "offload": offload::status(facts.counters.offload()),
        "placement": shares::status(facts.counters.shares().as_ref()),
        "threading": facts.threads.status(facts.counters.each().len(), facts.counters.threads()),
        "interfaces": interfaces(installed, &facts.counters.interfaces()),
        "stages": stages(facts),
        "worker": time_of_all(facts).map(in_ns),
        "workers": workers.collect::<Vec<_>>(),
        "imbalance": imbalances(&facts.counters, installed),
        "drops": drops(&facts.counters.drops()),
        "created": facts.counters.created(),
        "merged": facts.counters.merged(),
        "linearised": facts.counters.linearised(),
        "free_buffers": facts.counters.free_buffers(),
        "windows": windows_of_all(installed),
        "windows_of_sas": windows_of_sas(installed),
        "tunnels": installed.tunnels.len(),
        "tunnels_down": installed.tunnels.iter().filter(|t| !t.is_installed).count(),
        "path_mtus": paths,
        "path_mtus_omitted": omitted,
        "groups": groups,
        "groups_count": groups_count,
        "populated": populated(installed),
        "ike": installed.configuration.ike.as_ref().map(|ike| json!({
            "socket": ike.socket,
            "vici": ike.vici,
            "tunnels": installed.negotiated.len(),
            "policies": installed.negotiated.count_policies(),
            "renewal": installed.negotiated.renewal().map(|renewal| json!({
                "expected": renewal.expected,
                "renewed": renewal.renewed,
                "without_traffic_ms": renewal.without_traffic_ms,
            })),
            "sas": installed.negotiated.count_sas(),
        })),
    })
}

/// The tunnels that were populated from packets, and what asked for some.
fn populated(installed: &InstalledTunnels) -> Value {
    let (told, left_out) = installed.populated.wanted().counts();
    json!({
        "tunnels": installed.populated.len(),
        "ending": installed.populated.count_ending(),
        "limit": MAX_POPULATED,
        "pieces": installed.populated.pieces(),
        "pieces_limit": MAX_POPULATED_PIECES,
        "wanted": installed.populated.wanted().count(Instant::now()),
        "acquires": told,
        "acquires_left_out": left_out,
    })
}

/// The SAs that packets have asked for, the first that asked first.
#[must_use]
pub fn wanted(installed: &InstalledTunnels, now: Instant) -> Value {
    let row = |wanted: wanted::Row| {
        let policy = installed.policy(installed.book.number_populating(wanted.policy)?)?;
        let template = policy.tunnel().and_then(|tunnel| installed.configuration.tunnels.get(tunnel));
        Some(json!({
            "tunnel": template.map(|template| &template.name),
            "policy": policy.label(),
            "for": named(&wanted.values),
            "packet": named(&wanted.packet),
            "age_seconds": wanted.age.as_secs(),
        }))
    };
    // A statement of its own: sorted and put into words without the lock.
    let rows = installed.populated.wanted().rows(now);
    wanted::sorted(rows).into_iter().filter_map(row).collect::<Vec<_>>().into()
}

/// Every SA, at `now` in the worker's time.
#[must_use]
pub fn security_associations(
    installed: &InstalledTunnels,
    peers: &Peers,
    engines: &EnginesInService<'_>,
    now: Moment,
) -> Value {
    let rows = installed.all().flat_map(|running| rows_of(&running, installed, peers, engines, now));
    rows.collect::<Vec<_>>().into()
}

/// The SAs of one tunnel.
#[must_use]
pub fn tunnel_sas(
    running: &Running,
    installed: &InstalledTunnels,
    peers: &Peers,
    engines: &EnginesInService<'_>,
    now: Moment,
) -> Value {
    rows_of(running, installed, peers, engines, now).into()
}

fn rows_of(
    running: &Running,
    installed: &InstalledTunnels,
    peers: &Peers,
    engines: &EnginesInService<'_>,
    now: Moment,
) -> Vec<Value> {
    let populated = installed.populated.at(running.index);
    let running = &*installed.negotiated.in_force(running);
    let (owner, index) = (owner(installed, running.index), running.index);
    let row = |of: &RunningSa| {
        let mut row = sa(running, of, peers);
        row["owner"] = owner.into();
        let daemon = installed.negotiated.daemon_of(index, of.spi, of.is_outbound());
        row["daemon"] = daemon.map(|name| name.to_string()).into();
        row["interface"] = installed.configuration.interface_name(running.tunnel.interface).into();
        let of_software = of.added.as_ref().and_then(|_| shares::of_sa(of.suite, engines));
        row["engine"] = if offload::is_in_nic(of) { Some("nic".to_owned()) } else { of_software }.into();
        row["offload"] = offload::of_sa(of);
        row["for"] = populated.as_ref().map_or(Value::Null, |populated| named(&populated.values));
        row["sender_id"] = json!(running.tunnel.sender().filter(|_| of.is_outbound()));
        row["senders"] = senders(running, of, now);
        row["path_mtu"] = if of.is_outbound() { path_mtu(installed, running, of, now) } else { Value::Null };
        row
    };
    // Copies, since AH that covers a tunnel has a list of its own.
    let sas = running.sas.lock().clone();
    sas.iter().map(row).collect()
}

/// Who makes the SAs of a tunnel: the configuration, packets of a flow that ask for them, or a key exchange.
fn owner(installed: &InstalledTunnels, index: TunnelIndex) -> &'static str {
    if installed.populated.at(index).is_some() {
        "flow"
    } else if installed.negotiated.at(index).is_some() {
        "ike"
    } else {
        "file"
    }
}

/// The last known addresses of roaming peers.
pub type Peers = HashMap<TunnelIndex, SocketAddr>;

/// The reported state of an SA: it may have stopped although its tunnel is installed.
fn state(counters: Option<&SaCounts>) -> &'static str {
    match counters.map(SaCounts::state) {
        None => "down",
        Some(SaState::Installed) => "installed",
        Some(SaState::Expired) => "expired",
        Some(SaState::Exhausted) => "exhausted",
        Some(SaState::SenderTaken) => "sender_taken",
    }
}

pub(super) fn sa(running: &Running, sa: &RunningSa, peers: &Peers) -> Value {
    let tunnel = &running.tunnel;
    let outbound = sa.is_outbound();
    let counters = sa.added.as_ref().map(|added| &added.counters);
    let count = |get: fn(&SaCounts) -> u64| counters.map_or(0, get);
    let drops: Map<_, _> = DropReason::ALL
        .iter()
        .map(|&reason| (reason.name().to_owned(), counters.map_or(0, |c| c.drops(reason))))
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| (name, json!(count)))
        .collect();
    json!({
        "tunnel": tunnel.name,
        "direction": if outbound { "outbound" } else { "inbound" },
        "spi": sa.spi,
        "protocol": match tunnel.protocol {
            IpsecProtocol::Esp => "esp",
            IpsecProtocol::Ah => "ah",
            IpsecProtocol::Vpe => "vpe",
        },
        "mode": match tunnel.mode { Mode::Tunnel => "tunnel", Mode::Transport => "transport" },
        "suite": suite(tunnel.protocol, sa.suite),
        "esn": sa.esn,
        "replay_window": if outbound { Value::Null } else { json!(sa.replay_window) },
        "local": tunnel.local,
        "remote": match tunnel.remote { Remote::Address(a) => json!(a), Remote::Any => json!("any") },
        "encapsulation": match (tunnel.protocol, tunnel.encapsulation) {
            (IpsecProtocol::Ah, _) => "ah",
            (IpsecProtocol::Esp, Encapsulation::Esp) => "esp",
            (IpsecProtocol::Esp, Encapsulation::EspInUdp { .. }) => "esp-in-udp",
            (IpsecProtocol::Vpe, Encapsulation::Esp) => "vpe",
            (IpsecProtocol::Vpe, Encapsulation::EspInUdp { .. }) => "vpe-in-udp",
        },
        "udp_ports": match (tunnel.protocol, tunnel.encapsulation) {
            (
                IpsecProtocol::Esp | IpsecProtocol::Vpe,
                Encapsulation::EspInUdp { local_port, remote_port },
            ) => {
                json!({ "local": local_port, "remote": remote_port })
            }
            _ => Value::Null,
        },
        "state": state(counters),
        "in_use": if outbound { json!(sa.is_in_use()) } else { Value::Null },
        "worker": sa.worker.filter(|_| outbound),
        "renewed_with_worker": sa.worker.filter(|_| !outbound),
        "ephemeral": !sa.is_durable(),
        "peer": peers.get(&running.index),
        "error": running.error,
        "packets": count(SaCounts::packets),
        "bytes": count(SaCounts::bytes),
        "dummies": count(SaCounts::dummies),
        "sequence": count(SaCounts::sequence),
        "reordering": counters.and_then(SaCounts::reordered).map(|counted| json!({
            "arrived": counted.arrived,
            "reordered": counted.reordered,
            "longest_extent": counted.longest_extent,
        })),
        "release": counters.and_then(SaCounts::release_cost).map(|cost| json!({
            "waited": cost.waited,
            "longest_wait_us": cost.longest_wait_us,
            "passed_over": cost.passed_over,
        })),
        "windows": counters.and_then(|counters| counters.windows(outbound)).map(windows),
        "drops": drops,
    })
}

/// The name of an SA's suite, as the configuration has it.
fn suite(protocol: IpsecProtocol, suite: Suite) -> String {
    let of_ah = suite.ah_name().filter(|_| protocol == IpsecProtocol::Ah);
    of_ah.map_or_else(|| suite.to_string(), str::to_owned)
}

/// The origin of a policy of the SPD, by its place from 0, in words of the configuration.
#[must_use]
pub fn origin(configuration: &config::Configuration, index: usize) -> String {
    match index.checked_sub(configuration.policies.len()) {
        None => {
            let policy = configuration.policies.get(index);
            format!("policy {}", policy.map(config::Policy::label).unwrap_or_default())
        }
        Some(mut own) => {
            for tunnel in &configuration.tunnels {
                let each = tunnel.entries_per_selector();
                match own.checked_sub(tunnel.selectors.len() * each) {
                    None => return format!("tunnel {}, selector {}", tunnel.name, own / each + 1),
                    Some(rest) => own = rest,
                }
            }
            "unknown".to_owned()
        }
    }
}

/// What a policy does with packets, in one word.
#[must_use]
pub fn action_name(action: Action) -> &'static str {
    match action {
        Action::Protect(_) | Action::Populate(_) => "protect",
        Action::Bypass => "bypass",
        Action::Discard => "discard",
    }
}

fn protocol_value(protocol: Protocol) -> Value {
    match protocol {
        Protocol::Is(number) => json!(number),
        other => json!(other.to_string()),
    }
}

/// A selector, in words of the configuration.
fn selector(selector: &Selector) -> Value {
    let mut value = json!({
        "local": selector.local.to_string(),
        "remote": selector.remote.to_string(),
        "protocol": protocol_value(selector.protocol),
    });
    if selector.protocol.is_of_messages() {
        value["types_sent"] = json!(selector.local_ports.messages().to_string());
        value["types_received"] = json!(selector.remote_ports.messages().to_string());
    } else {
        value["local_ports"] = json!(selector.local_ports.to_string());
        value["remote_ports"] = json!(selector.remote_ports.to_string());
    }
    value
}

/// The SPD, in order: the configuration's, and behind it what is negotiated. Tunnels are found once and not
/// for each policy: there may be 100,000.
#[must_use]
pub fn policies(installed: &InstalledTunnels) -> Value {
    let configuration = &installed.configuration;
    let names: HashMap<_, _> = installed.tunnels.iter().map(|t| (t.index, &t.tunnel.name)).collect();
    let own = configuration.tunnels.iter().flat_map(|tunnel| {
        let each = tunnel.entries_per_selector();
        let number = move |place| 1 + place / each;
        (0..tunnel.selectors.len() * each)
            .map(move |place| format!("tunnel {}, selector {}", tunnel.name, number(place)))
    });
    let named = configuration.policies.iter().map(|policy| format!("policy {}", policy.label()));
    let rows = installed.spd.policies().zip(named.chain(own)).enumerate();
    let rows = rows.map(|(index, ((_, policy), origin))| {
        let tunnel = match policy.action {
            Action::Protect(index) | Action::Populate(index) => names.get(&index),
            Action::Bypass | Action::Discard => None,
        };
        let configured = configuration.policies.get(index);
        let populating = configured.filter(|policy| !policy.populate.is_empty());
        json!({
            "place": index + 1,
            "origin": origin,
            "owner": "file",
            "priority": null,
            "policy": configured.map(config::Policy::label),
            "action": action_name(policy.action),
            "tunnel": tunnel,
            "interface": configuration.interface_name(policy.interface),
            "direction": policy.directions.to_string(),
            "selectors": policy.selectors.iter().map(selector).collect::<Vec<_>>(),
            "populate_from_packet": populating.map(|policy| policy.populate.names().collect::<Vec<_>>()),
            "populated": populating.map(|policy| {
                let id = installed.book.populating(policy.number);
                id.map_or(0, |id| installed.populated.count_of(id))
            }),
        })
    });
    let negotiated = installed.negotiated.policies();
    let negotiated = negotiated.iter().zip(installed.spd.len() + 1..);
    let rows = rows.chain(negotiated.map(|policy| negotiated_policy(configuration, policy)));
    rows.collect::<Vec<_>>().into()
}

/// A policy that a key exchange daemon has said, at its place in the SPD.
fn negotiated_policy(
    configuration: &Configuration,
    (policy, place): (&Arc<NegotiatedPolicy>, usize),
) -> Value {
    json!({
        "place": place,
        "origin": policy.origin(),
        "owner": "ike",
        "priority": policy.priority,
        "policy": null,
        "action": action_name(policy.entry.action),
        "tunnel": policy.tunnel.map(|number| format!("ike:{number}")),
        "interface": configuration.interface_name(policy.entry.interface),
        "direction": policy.entry.directions.to_string(),
        "selectors": policy.entry.selectors.iter().map(selector).collect::<Vec<_>>(),
        "populate_from_packet": null,
        "populated": null,
    })
}

/// The host's rules and routes that follow from the policies in force, which may not be those of the file.
///
/// # Errors
/// The message for the client.
pub fn firewall(installed: &InstalledTunnels) -> Result<Value, String> {
    let negotiated = installed.negotiated.for_firewall();
    let firewall = Firewall::beside(&installed.configuration, &negotiated).map_err(|e| e.to_string())?;
    Ok(json!({
        "interface": firewall.interface(),
        "rules": firewall.to_string(),
        "networks": firewall.routes().networks().iter().map(Network::to_string).collect::<Vec<_>>(),
        "warnings": firewall.notes(),
        "instance": instance(),
        "negotiated": negotiated.pairs(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::metrics;
    use crate::service::sa_control::tests::of_vpe;
    use testudo_crypto::Direction;

    fn gpu(in_use: bool) -> EngineReport {
        let suites = vec![Suite::AES128GCM16, Suite::NULL_SHA384];
        EngineReport { name: "gpu".into(), in_use, detail: "a device".into(), suites }
    }

    /// `docs/VPE.md`: how many windows there are, of how many there may be, and how far each is.
    #[test]
    fn windows_of_vpe_are_counted_in_status_lists_and_metrics() {
        let gateway = of_vpe();
        gateway.seal();
        let page = || metrics::tests::page(&gateway.shared);
        let sample = |name: &str, direction: &str, spi: &str, value: u64| {
            format!("testudo_{name}{{tunnel=\"a\",direction=\"{direction}\",spi=\"{spi}\"}} {value}")
        };
        // The worker shows them in its next second.
        let used = sample("sa_windows", "outbound", "0x1001", 1);
        while !page().lines().any(|line| line == used) {
            gateway.commander.save_windows(Vec::new()).unwrap();
        }
        for line in [
            sample("sa_windows_max", "outbound", "0x1001", 8),
            sample("sa_windows", "inbound", "0x1002", 0),
            sample("sa_windows_max", "inbound", "0x1002", 1024),
        ] {
            assert!(page().lines().any(|other| other == line), "{line}: {}", page());
        }
        let installed = gateway.shared.installed();
        let sums = json!({ "inbound": { "count": 0, "most": 2048 }, "outbound": { "count": 1, "most": 16 } });
        assert_eq!(status(&gateway.shared.facts, &installed)["windows"], sums);
        let (running, engines) = (installed.find("a").unwrap(), EnginesInService::new(&[], &[]));
        let rows = tunnel_sas(running, &installed, &Peers::default(), &engines, Moment::default());
        let windows = |direction: &str| {
            let row = rows.as_array().unwrap().iter().find(|row| row["direction"] == direction).unwrap();
            row["windows"].clone()
        };
        assert_eq!(windows("inbound"), json!({ "count": 0, "most": 1024, "tops": [], "omitted": 0 }));
        let outbound = windows("outbound");
        let window = outbound["tops"][0]["window"].as_u64().unwrap();
        assert!(window < 8, "{outbound}");
        let tops = json!([{ "window": window, "sequence": 1 }]);
        assert_eq!(outbound, json!({ "count": 1, "most": 8, "tops": tops, "omitted": 0 }));
    }

    #[test]
    fn an_engine_that_was_taken_out_of_service_is_not_in_use_and_says_why() {
        let suites = ["aes128gcm16", "null-sha384", "sha384"];
        let expected = json!({ "name": "gpu", "in_use": true, "detail": "a device", "suites": suites, "scheduler": null });
        assert_eq!(engine(&gpu(true), None, None, &[]), expected);
        for (reason, why) in [
            (WithdrawalReason::KeptPackets, "kept packets for too long and is out of service"),
            (WithdrawalReason::Failed, "failed and is out of service"),
        ] {
            let withdrawn = engine(&gpu(true), Some(reason), None, &[]);
            assert_eq!(withdrawn["in_use"], false);
            // What it had back too late says nothing any more.
            let late = LateJobs { suite: Suite::AES128GCM16, direction: Direction::Seal, class: 0 };
            let chunks = Scheduled { chunk: 1024, ..Scheduled::default() };
            let late_of = |why| {
                engine(&gpu(true), why, Some(&chunks), &[late])["scheduler"]["gathering"]["late"].clone()
            };
            assert_eq!((late_of(None).as_array().map(Vec::len), late_of(Some(reason))), (Some(1), json!([])));
            assert!(withdrawn["detail"].as_str().is_some_and(|text| text.starts_with(why)), "{withdrawn}");
        }
    }

    #[test]
    fn an_engine_with_bins_says_what_went_to_it_and_what_to_the_next_one() {
        let (chunks, packets, no_room, too_late, left_over) = (3, 700, 5, 2, 9);
        let scheduled = Scheduled { chunks, packets, no_room, too_late, left_over, ..Scheduled::default() };
        let expected = json!({ "chunks": 3, "packets": 700, "left_over": 9, "spilled": { "no_room": 5, "too_late": 2 }, "gathering": null });
        assert_eq!(engine(&gpu(true), None, Some(&scheduled), &[])["scheduler"], expected);
    }

    #[test]
    fn the_engine_of_an_sa_is_the_first_in_service_that_does_its_suite() {
        let portable = EngineReport { name: "portable".into(), suites: Suite::ALL.to_vec(), ..gpu(true) };
        let both = [gpu(true), portable.clone()];
        let engines = EnginesInService::new(&both, &[]);
        assert_eq!(engines.name_for(Suite::AES128GCM16), Some("gpu"));
        assert_eq!(engines.name_for(Suite::AES256GCM16), Some("portable"));
        assert_eq!(EnginesInService::new(&both, &["gpu"]).name_for(Suite::AES128GCM16), Some("portable"));
        let absent = [gpu(false), portable];
        assert_eq!(EnginesInService::new(&absent, &[]).name_for(Suite::AES128GCM16), Some("portable"));
    }
}
