//! What a running gateway reports about itself, as JSON: the source of every table, and of `--json`.

use super::daemon::WORKER_THREAD;
use super::installed::{InstalledTunnels, Running};
use super::path_mtu::{path_mtu, path_mtus};
use super::populated::{MAX_POPULATED, PopulatedTunnel};
use super::sas::RunningSa;
use super::wanted::named;
use super::worker_time::worker_time;
use crate::config::{self, Network, Remote};
use crate::firewall::Firewall;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use testudo_crypto::Suite;
use testudo_gateway::{Clock, EngineReport, PortSnapshot, SystemClock, WorkerCounters};
use testudo_ipsec::{
    Action, Direction, Encapsulation, Flow, IpsecProtocol, Mismatch, Mode, Moment, PacketValues, Policy,
    PortRange, Protocol, SaCounters, SaState, Selector, TunnelIndex, Verdict,
};
use testudo_packet::{DropReason, MEASURED_OF, Stage, StageTimes, ticks};
use testudo_wire::next_layer::NextLayerFields;
use testudo_wire::protocol;

/// What does not change while a gateway runs.
#[derive(Debug)]
pub struct Facts {
    /// Version of the program.
    pub version: &'static str,
    /// When it started.
    pub started: Instant,
    /// The worker's clock.
    pub clock: SystemClock,
    /// The start-up report of each engine.
    pub engines: Vec<EngineReport>,
    /// The worker's counters.
    pub counters: Arc<WorkerCounters>,
}

/// The engines in service, in the order in which they get jobs.
#[derive(Debug)]
pub struct EnginesInService<'a>(Vec<&'a EngineReport>);

impl<'a> EnginesInService<'a> {
    /// Those in use of `reports` but for the `withdrawn` ones.
    #[must_use]
    pub fn new(reports: &'a [EngineReport], withdrawn: &[&str]) -> Self {
        let in_service = |report: &&EngineReport| report.in_use && !withdrawn.contains(&&*report.name);
        Self(reports.iter().filter(in_service).collect())
    }

    /// Of a gateway that runs.
    #[must_use]
    pub fn of(facts: &'a Facts) -> Self {
        Self::new(&facts.engines, &facts.counters.withdrawn_engines().collect::<Vec<_>>())
    }

    /// The name of the engine that does the packets of a suite's SAs.
    fn name_for(&self, suite: Suite) -> Option<&'a str> {
        self.0.iter().find(|engine| engine.suites.contains(&suite)).map(|engine| &*engine.name)
    }
}

/// Drops by reason, for all reasons.
#[must_use]
pub fn drops(counters: &WorkerCounters) -> Value {
    counters
        .drops()
        .iter()
        .map(|(reason, count)| (reason.name().to_owned(), json!(count)))
        .collect::<Map<_, _>>()
        .into()
}

fn port(snapshot: &PortSnapshot) -> Value {
    let c = snapshot.counters;
    json!({
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

/// The current state of an engine: one that was in use at first may have been taken out of service since.
fn engine(report: &EngineReport, is_withdrawn: bool) -> Value {
    let detail = if is_withdrawn {
        "kept packets for too long and is out of service until a restart"
    } else {
        &report.detail
    };
    json!({
        "name": report.name, "in_use": report.in_use && !is_withdrawn, "detail": detail,
        "suites": report.suite_names(),
    })
}

/// The gateway as a whole.
#[must_use]
pub fn status(facts: &Facts, installed: &InstalledTunnels) -> Value {
    let withdrawn: Vec<_> = facts.counters.withdrawn_engines().collect();
    let engines = facts.engines.iter().map(|e| engine(e, withdrawn.contains(&&*e.name)));
    let (paths, omitted) = path_mtus(installed, facts.clock.now());
    json!({
        "version": facts.version,
        "uptime_seconds": facts.started.elapsed().as_secs(),
        "engines": engines.collect::<Vec<_>>(),
        "ports": { "protected": port(&facts.counters.protected()), "unprotected": port(&facts.counters.unprotected()) },
        "stages": stages(facts),
        "worker": worker_time(WORKER_THREAD).map(|t| json!({ "ran_ns": t.ran_ns, "queued_ns": t.queued_ns })),
        "drops": drops(&facts.counters),
        "created": facts.counters.created(),
        "merged": facts.counters.merged(),
        "free_buffers": facts.counters.free_buffers(),
        "tunnels": installed.tunnels.len(),
        "tunnels_down": installed.tunnels.iter().filter(|t| !t.is_installed).count(),
        "path_mtus": paths,
        "path_mtus_omitted": omitted,
        "populated": populated(installed),
    })
}

/// The tunnels that were populated from packets, and what asked for some.
fn populated(installed: &InstalledTunnels) -> Value {
    let (told, left_out) = installed.populated.wanted().counts();
    json!({
        "tunnels": installed.populated.len(),
        "limit": MAX_POPULATED,
        "wanted": installed.populated.wanted().list(Instant::now()).len(),
        "acquires": told,
        "acquires_left_out": left_out,
    })
}

/// The SAs that packets have asked for, the first that asked first.
#[must_use]
pub fn wanted(installed: &InstalledTunnels, now: Instant) -> Value {
    let row = |(number, values, packet, age): (u32, PacketValues, PacketValues, Duration)| {
        let policy = installed.policy(number)?;
        let template = policy.tunnel().and_then(|tunnel| installed.configuration.tunnels.get(tunnel));
        Some(json!({
            "tunnel": template.map(|template| &template.name),
            "policy": policy.label(),
            "for": named(&values),
            "packet": named(&packet),
            "age_seconds": age.as_secs(),
        }))
    };
    let list = installed.populated.wanted().list(now);
    list.into_iter().filter_map(row).collect::<Vec<_>>().into()
}

/// Every SA, at `now` in the worker's time.
#[must_use]
pub fn security_associations(
    installed: &InstalledTunnels,
    peers: &Peers,
    engines: &EnginesInService<'_>,
    now: Moment,
) -> Value {
    let populated = installed.populated.all();
    let tunnels = installed.tunnels.iter().chain(populated.iter().map(|populated| &populated.running));
    tunnels.flat_map(|running| rows_of(running, installed, peers, engines, now)).collect::<Vec<_>>().into()
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
    let row = |of: &RunningSa| {
        let mut row = sa(running, of, peers);
        row["engine"] = of.added.as_ref().and_then(|_| engines.name_for(of.suite)).into();
        row["for"] = populated.as_ref().map_or(Value::Null, |populated| named(&populated.values));
        row["path_mtu"] = if of.is_outbound() { path_mtu(installed, running, of, now) } else { Value::Null };
        row
    };
    // Copies, since AH that covers a tunnel has a list of its own.
    let sas = running.sas.lock().clone();
    sas.iter().map(row).collect()
}

/// The last known addresses of roaming peers.
pub type Peers = HashMap<TunnelIndex, SocketAddr>;

/// The reported state of an SA: it may have stopped although its tunnel is installed.
fn state(counters: Option<&SaCounters>) -> &'static str {
    match counters.map(SaCounters::state) {
        None => "down",
        Some(SaState::Installed) => "installed",
        Some(SaState::Expired) => "expired",
        Some(SaState::Exhausted) => "exhausted",
    }
}

fn sa(running: &Running, sa: &RunningSa, peers: &Peers) -> Value {
    let tunnel = &running.tunnel;
    let outbound = sa.is_outbound();
    let counters = sa.added.as_ref().map(|added| &*added.counters);
    let count = |get: fn(&SaCounters) -> u64| counters.map_or(0, get);
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
        "protocol": match tunnel.protocol { IpsecProtocol::Esp => "esp", IpsecProtocol::Ah => "ah" },
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
        },
        "state": state(counters),
        "in_use": if outbound { json!(sa.is_in_use()) } else { Value::Null },
        "ephemeral": !sa.is_durable(),
        "peer": peers.get(&running.index),
        "error": running.error,
        "packets": count(SaCounters::packets),
        "bytes": count(SaCounters::bytes),
        "dummies": count(SaCounters::dummies),
        "sequence": count(SaCounters::sequence),
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
                match own.checked_sub(tunnel.selectors.len()) {
                    None => return format!("tunnel {}, selector {}", tunnel.name, own + 1),
                    Some(rest) => own = rest,
                }
            }
            "unknown".to_owned()
        }
    }
}

fn tunnel_at(installed: &InstalledTunnels, action: Action) -> Option<&Running> {
    match action {
        Action::Protect(index) | Action::Populate(index) => {
            installed.tunnels.iter().find(|t| t.index == index)
        }
        Action::Bypass | Action::Discard => None,
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

/// The SPD, in order. Tunnels are found once and not for each policy: there may be 100,000.
#[must_use]
pub fn policies(installed: &InstalledTunnels) -> Value {
    let configuration = &installed.configuration;
    let names: HashMap<_, _> = installed.tunnels.iter().map(|t| (t.index, &t.tunnel.name)).collect();
    let own = configuration.tunnels.iter().flat_map(|tunnel| {
        (1..=tunnel.selectors.len()).map(|number| format!("tunnel {}, selector {number}", tunnel.name))
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
            "policy": configured.map(config::Policy::label),
            "action": action_name(policy.action),
            "tunnel": tunnel,
            "direction": policy.directions.to_string(),
            "selectors": policy.selectors.iter().map(selector).collect::<Vec<_>>(),
            "populate_from_packet": populating.map(|policy| policy.populate.names().collect::<Vec<_>>()),
            "populated": populating.map(|policy| installed.populated.count_of(policy.number)),
        })
    });
    rows.collect::<Vec<_>>().into()
}

/// The host's rules and routes that follow from the policies in force, which may not be those of the file.
///
/// # Errors
/// The message for the client.
pub fn firewall(installed: &InstalledTunnels) -> Result<Value, String> {
    let firewall = Firewall::of(&installed.configuration).map_err(|e| e.to_string())?;
    Ok(json!({
        "interface": firewall.interface(),
        "rules": firewall.to_string(),
        "networks": firewall.routes().networks().iter().map(Network::to_string).collect::<Vec<_>>(),
        "warnings": firewall.notes(),
    }))
}

/// Which side a packet comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// From the private network.
    Protected,
    /// From the public one.
    Unprotected,
}

/// A packet to explain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// Where it comes from.
    pub side: Side,
    /// Its source address.
    pub source: IpAddr,
    /// Its destination address; of the same version.
    pub destination: IpAddr,
    /// Its transport protocol.
    pub protocol: u8,
    /// Source and destination port.
    pub ports: Option<(u16, u16)>,
    /// Type and code of its message of ICMP, type of that of the Mobility Header.
    pub message: Option<(u8, u8)>,
    /// Whether it is a fragment other than the first. Then `ports` and `message` mean nothing.
    pub is_later_fragment: bool,
}

impl Question {
    /// What policy sees of the packet.
    fn flow(&self) -> Flow {
        let (direction, local, remote) = match self.side {
            Side::Protected => (Direction::Outbound, self.source, self.destination),
            Side::Unprotected => (Direction::Inbound, self.destination, self.source),
        };
        if self.is_later_fragment {
            return Flow::of_later_fragments(direction, local, remote, self.protocol);
        }
        let ports = self.ports.map(|(source, destination)| NextLayerFields::Ports(source, destination));
        let message = self.message.map(|(kind, code)| match self.protocol {
            protocol::MOBILITY => NextLayerFields::Mobility(kind),
            _ => NextLayerFields::Icmp(kind, code),
        });
        let is_of_messages = Protocol::Is(self.protocol).is_of_messages();
        let fields = if is_of_messages { message } else { ports };
        Flow::new(direction, local, remote, self.protocol, fields)
    }
}

/// Policies that are explained individually as not matching, at most.
const TOLD: usize = 20;

/// Which policy and which SA a packet matches, and why.
#[must_use]
pub fn explain(installed: &InstalledTunnels, peers: &Peers, question: &Question) -> Value {
    let flow = question.flow();
    let (verdict_of_spd, id) = installed.spd.lookup(&flow);
    let fields_hidden = verdict_of_spd == Verdict::FieldsHidden;
    let policies = || installed.spd.policies();
    let found = policies().enumerate().find(|(_, (other, _))| Some(*other) == id).map(|(at, (_, p))| (at, p));
    let passed_over = found.map_or(installed.spd.len(), |(index, _)| index);
    let why_not: Vec<_> = policies()
        .enumerate()
        .take(passed_over.min(TOLD))
        .filter_map(|(index, (_, policy))| {
            let why = why_not(policy, &flow)?;
            Some(json!({ "place": index + 1, "origin": origin(&installed.configuration, index), "why": why }))
        })
        .collect();
    let own = found.and_then(|(index, policy)| own_tunnel(installed, index, policy, &flow));
    let fields_hidden = fields_hidden || matches!(own, Some(OwnTunnel::Never));
    let template =
        found.filter(|_| !fields_hidden).and_then(|(_, policy)| tunnel_at(installed, policy.action));
    let tunnel = match &own {
        None => template,
        Some(OwnTunnel::There(populated)) => Some(&populated.running),
        Some(OwnTunnel::NotYet(_) | OwnTunnel::Never) => None,
    };
    json!({
        "policy": found.map(|(index, policy)| json!({
            "place": index + 1,
            "origin": origin(&installed.configuration, index),
            "action": action_name(policy.action),
            "selector": nearest(policy, &flow).map(|(selector, _)| selector.to_string()),
        })),
        "passed_over": why_not,
        "passed_over_untold": passed_over - why_not.len(),
        "tunnel": tunnel.map(|t| &t.tunnel.name),
        "sa": tunnel.and_then(|t| Some(sa(t, &sa_for(question.side, t)?, peers))),
        "fields_hidden": fields_hidden,
        "verdict": match (found, &own) {
            (Some(_), Some(OwnTunnel::Never)) => never(&flow),
            (Some((_, policy)), _) if fields_hidden => hidden(policy, &flow),
            (Some(_), Some(OwnTunnel::NotYet(values))) => not_yet(question.side, template, values),
            _ => verdict(question.side, found.map(|(_, p)| p.action), tunnel),
        },
    })
}

/// The tunnel of a flow whose policy populates one for it.
#[derive(Debug)]
enum OwnTunnel {
    There(Arc<PopulatedTunnel>),
    /// It would have these values.
    NotYet(PacketValues),
    /// The packet does not show or have what it is populated with (RFC 4301 4.4.2.2).
    Never,
}

/// `None` if the policy populates none.
fn own_tunnel(installed: &InstalledTunnels, place: usize, policy: &Policy, flow: &Flow) -> Option<OwnTunnel> {
    if !matches!(policy.action, Action::Populate(_)) {
        return None;
    }
    let number = installed.configuration.policies.get(place)?.number;
    let Some(values) = PacketValues::of(flow, policy.populate) else { return Some(OwnTunnel::Never) };
    if !policy.populated(&values).iter().any(|selector| selector.matches(flow)) {
        return Some(OwnTunnel::Never);
    }
    let there = installed.populated.with_values(number, &values);
    Some(there.map_or(OwnTunnel::NotYet(values), OwnTunnel::There))
}

fn never(flow: &Flow) -> String {
    let shown = PacketValues::shown(flow);
    format!(
        "discarded as fields_hidden: the packet shows {shown}, and an SA is populated with more (RFC 4301 4.4.2.2)"
    )
}

fn not_yet(side: Side, template: Option<&Running>, values: &PacketValues) -> String {
    let template = template.map_or("?", |running| running.tunnel.name.as_str());
    match side {
        Side::Protected => format!(
            "discarded as sa_wanted: it asks for an SA of its own; `testudo sa add {template} --for \"{values}\"` makes one"
        ),
        Side::Unprotected => format!(
            "in clear: discarded, policy wants it protected (RFC 4301 5.2); there is no SA yet for {values}"
        ),
    }
}

/// The selector of a policy that comes nearest to a flow, and the first field that it does not match.
fn nearest<'p>(policy: &'p Policy, flow: &Flow) -> Option<(&'p Selector, Option<Mismatch>)> {
    let compared = policy.selectors.iter().map(|selector| (selector, selector.mismatch(flow)));
    // `None` is a match, and the later a field, the more have matched before it.
    compared.max_by_key(|(_, mismatch)| (mismatch.is_none(), *mismatch))
}

/// Why a policy does not match a flow; `None` if it does.
fn why_not(policy: &Policy, flow: &Flow) -> Option<String> {
    if !policy.directions.include(flow.direction()) {
        let packets = if flow.direction() == Direction::Outbound { "arrive" } else { "leave" };
        return Some(format!("it is for packets that {packets}"));
    }
    let (selector, mismatch) = nearest(policy, flow)?;
    let why = why(selector, mismatch?);
    Some(match policy.selectors.len() {
        1 => why,
        count => format!("none of its {count} selectors matches; of the nearest, {why}"),
    })
}

fn why(selector: &Selector, mismatch: Mismatch) -> String {
    match mismatch {
        Mismatch::Local => format!("the local address is not in {}", selector.local),
        Mismatch::Remote => format!("the remote address is not in {}", selector.remote),
        Mismatch::Protocol => format!("the protocol is not {}", selector.protocol),
        Mismatch::Message => "the type of the message is not among those of the policy".to_owned(),
        Mismatch::LocalPort => format!("the local port is not in {}", selector.local_ports),
        Mismatch::RemotePort => format!("the remote port is not in {}", selector.remote_ports),
    }
}

/// The verdict on a flow that hides what a policy asks for.
fn hidden(policy: &Policy, flow: &Flow) -> String {
    let asked = match nearest(policy, flow).map(|(selector, _)| selector) {
        Some(s) if s.protocol.is_of_messages() => "protocol and type",
        Some(s) if [s.local_ports, s.remote_ports] == [PortRange::ANY; 2] => "protocol",
        _ => "protocol and ports",
    };
    format!(
        "discarded as fields_hidden: the policy asks for {asked}, which the packet does not show (RFC 4301 7.4)"
    )
}

/// The SA that packets from a side meet. From the peer they come through any; the newest stands for all.
fn sa_for(side: Side, tunnel: &Running) -> Option<RunningSa> {
    match side {
        Side::Protected => tunnel.sas.outbound(),
        Side::Unprotected => tunnel.sas.newest_inbound(),
    }
}

fn verdict(side: Side, action: Option<Action>, tunnel: Option<&Running>) -> String {
    let name = tunnel.map_or("?", |t| t.tunnel.name.as_str());
    let down = tunnel.is_none_or(|t| !t.is_installed);
    let spi = tunnel.and_then(|t| sa_for(side, t)).map_or(0, |sa| sa.spi);
    match (side, action) {
        (_, None) => "discarded: no policy matches (RFC 4301 4.4.1)".to_owned(),
        (_, Some(Action::Discard)) => "discarded: the policy says so".to_owned(),
        (_, Some(Action::Bypass)) => "passes in clear".to_owned(),
        (_, Some(Action::Protect(_) | Action::Populate(_))) if down => {
            format!("discarded: tunnel {name} is down")
        }
        (Side::Protected, Some(Action::Protect(_) | Action::Populate(_))) => {
            format!("goes through tunnel {name}, outbound SA {spi:#x}")
        }
        (Side::Unprotected, Some(Action::Protect(_) | Action::Populate(_))) => format!(
            "in clear: discarded, policy wants it protected (RFC 4301 5.2); through inbound SA {spi:#x} of tunnel {name}: passes"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(in_use: bool) -> EngineReport {
        let suites = vec![Suite::AES128GCM16, Suite::NULL_SHA384];
        EngineReport { name: "gpu".into(), in_use, detail: "a device".into(), suites }
    }

    #[test]
    fn an_engine_that_was_taken_out_of_service_is_not_in_use_and_says_why() {
        let suites = ["aes128gcm16", "null-sha384", "sha384"];
        let expected = json!({ "name": "gpu", "in_use": true, "detail": "a device", "suites": suites });
        assert_eq!(engine(&gpu(true), false), expected);
        let withdrawn = engine(&gpu(true), true);
        assert_eq!(withdrawn["in_use"], false);
        assert!(withdrawn["detail"].as_str().is_some_and(|text| text.contains("out of service")));
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
