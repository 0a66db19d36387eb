//! Which policy and which SA a packet meets, and why: for `testudo explain`.

use super::any_tunnel::AnyTunnel;
use super::groups;
use super::installed::{InstalledTunnels, Running};
use super::negotiated::NegotiatedPolicy;
use super::offload;
use super::populated::PopulatedTunnel;
use super::report::{Peers, action_name, origin, sa};
use super::sas::RunningSa;
use super::vpe_windows;
use super::worker_sas;
use crate::config::Workers;
use serde_json::{Value, json};
use std::net::IpAddr;
use std::sync::Arc;
use testudo_crypto::Suite;
use testudo_ipsec::{
    Action, Direction, Flow, Mismatch, PacketValues, Policy, PortRange, Protocol, Selector, Spd, Verdict,
};
use testudo_packet::Interface;
use testudo_wire::next_layer::NextLayerFields;
use testudo_wire::protocol;

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
    /// The interface of the protected side that it comes from, or is to leave by.
    pub interface: Interface,
    /// Its source address.
    pub source: IpAddr,
    /// Its destination address; of the same version.
    pub destination: IpAddr,
    /// Its transport protocol.
    pub protocol: u8,
    /// Its DSCP, 0 to 63, which says in which window an SA of VPE sends it.
    pub dscp: u8,
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

/// The policies that decide, in the order of the worker's SPD: the configuration's, and behind them what is
/// negotiated.
struct InOrder<'i> {
    installed: &'i InstalledTunnels,
    negotiated: Vec<Arc<NegotiatedPolicy>>,
}

impl<'i> InOrder<'i> {
    fn of(installed: &'i InstalledTunnels) -> Self {
        Self { installed, negotiated: installed.negotiated.policies() }
    }

    fn len(&self) -> usize {
        self.installed.spd.len() + self.negotiated.len()
    }

    fn all(&self) -> impl Iterator<Item = &Policy> {
        let configured = self.installed.spd.policies().map(|(_, policy)| policy);
        configured.chain(self.negotiated.iter().map(|policy| &policy.entry))
    }

    fn origin(&self, place: usize) -> String {
        let negotiated = place.checked_sub(self.installed.spd.len()).and_then(|at| self.negotiated.get(at));
        negotiated.map_or_else(|| origin(&self.installed.configuration, place), |policy| policy.origin())
    }

    /// The verdict on a flow, and the place of the policy that it is of.
    fn lookup(&self, interface: Interface, flow: &Flow) -> (Verdict, Option<usize>) {
        let (verdict, place) = place_in(&self.installed.spd, interface, flow);
        if place.is_some() {
            return (verdict, place);
        }
        // An SPD of those alone whose addresses are the flow's, which are few.
        let is_elsewhere =
            |s: &Selector| matches!(s.mismatch(flow), Some(Mismatch::Local | Mismatch::Remote));
        let may_match = |policy: &Policy| {
            policy.directions.include(flow.direction()) && !policy.selectors.iter().all(is_elsewhere)
        };
        let negotiated = self.negotiated.iter().zip(self.installed.spd.len()..);
        let (places, policies): (Vec<_>, Vec<_>) = negotiated
            .filter(|(policy, _)| may_match(&policy.entry))
            .map(|(policy, place)| (place, policy.entry.clone()))
            .unzip();
        // Each of them is in the worker's SPD already.
        let spd = Spd::new(policies).unwrap_or_default();
        let (verdict, place) = place_in(&spd, interface, flow);
        (verdict, place.and_then(|place| places.get(place).copied()))
    }
}

/// What an SPD says of a flow, and the place of the policy that says it.
fn place_in(spd: &Spd, interface: Interface, flow: &Flow) -> (Verdict, Option<usize>) {
    let (verdict, id) = spd.of(interface).lookup(flow);
    (verdict, id.and_then(|id| spd.policies().position(|(other, _)| other == id)))
}

/// Which policy and which SA a packet matches, and why. `placement` says which engine does a suite; an SA in
/// the NIC needs none.
#[must_use]
pub fn explain(
    installed: &InstalledTunnels,
    peers: &Peers,
    question: &Question,
    placement: &dyn Fn(Suite) -> Value,
) -> Value {
    let (flow, policies) = (question.flow(), InOrder::of(installed));
    let (verdict_of_spd, place) = policies.lookup(question.interface, &flow);
    let fields_hidden = verdict_of_spd == Verdict::FieldsHidden;
    let found = place.and_then(|place| Some((place, policies.all().nth(place)?)));
    let passed_over = found.map_or(policies.len(), |(index, _)| index);
    let configuration = &installed.configuration;
    let why_not: Vec<_> = policies
        .all()
        .enumerate()
        .take(passed_over.min(TOLD))
        .filter_map(|(index, policy)| {
            let why = match policy.interface == question.interface {
                true => why_not(policy, &flow)?,
                false => format!("for packets of {}", configuration.interface_name(policy.interface)),
            };
            Some(json!({ "place": index + 1, "origin": policies.origin(index), "why": why }))
        })
        .collect();
    let own = found.and_then(|(index, policy)| own_tunnel(installed, index, policy, &flow));
    let fields_hidden = fields_hidden || matches!(own, Some(OwnTunnel::Never));
    let template =
        found.filter(|_| !fields_hidden).and_then(|(_, policy)| tunnel_at(installed, policy.action));
    let template = template.as_deref().map(|running| installed.negotiated.in_force(running));
    let tunnel = match &own {
        None => template.as_deref(),
        Some(OwnTunnel::There(populated)) => Some(&populated.running),
        Some(OwnTunnel::NotYet(_) | OwnTunnel::Never) => None,
    };
    json!({
        "policy": found.map(|(index, policy)| json!({
            "place": index + 1,
            "origin": policies.origin(index),
            "action": action_name(policy.action),
            "selector": nearest(policy, &flow).map(|(selector, _)| selector.to_string()),
        })),
        "passed_over": why_not,
        "passed_over_untold": passed_over - why_not.len(),
        "tunnel": tunnel.map(|t| &t.tunnel.name),
        "sa": tunnel.and_then(|t| Some(sa(t, &sa_for(question.side, t)?, peers))),
        "placement": tunnel.and_then(|t| sa_for(question.side, t)).filter(|sa| !offload::is_in_nic(sa)).map(|sa| placement(sa.suite)),
        "vpe": tunnel.and_then(|t| {
            let (side, sa) = (question.side, sa_for(question.side, t)?);
            Some(vpe_windows::of_packet(side, t, &sa, question.dscp, configuration.gateway.workers))
        }),
        "sas_of_workers": tunnel.map(|t| worker_sas::outbound_of(t, question.side)),
        "fields_hidden": fields_hidden,
        "verdict": match (found, &own) {
            (Some(_), Some(OwnTunnel::Never)) => never(&flow),
            (Some((_, policy)), _) if fields_hidden => hidden(policy, &flow),
            (Some(_), Some(OwnTunnel::NotYet(values))) => {
                not_yet(question.side, template.as_deref(), values)
            }
            _ => {
                let action = found.map(|(_, policy)| policy.action);
                verdict(question, action, tunnel, configuration.gateway.workers)
            }
        },
    })
}

fn tunnel_at(installed: &InstalledTunnels, action: Action) -> Option<AnyTunnel<'_>> {
    match action {
        Action::Protect(index) | Action::Populate(index) => installed.at(index),
        Action::Bypass | Action::Discard => None,
    }
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
    let id = installed.book.populating(number);
    let there = id.and_then(|id| installed.populated.with_values(id, &values));
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

fn verdict(
    question: &Question,
    action: Option<Action>,
    tunnel: Option<&Running>,
    workers: Workers,
) -> String {
    let side = question.side;
    let name = tunnel.map_or("?", |t| t.tunnel.name.as_str());
    let down = tunnel.is_none_or(|t| !t.is_installed);
    let sa = tunnel.and_then(|t| sa_for(side, t));
    let place = tunnel.zip(sa.as_ref());
    let place = place.map_or(String::new(), |(t, sa)| {
        groups::in_words(t, sa)
            + &offload::in_words(sa)
            + &vpe_windows::in_words(side, t, sa, question.dscp, workers)
            + &worker_sas::in_words(side, t)
    });
    let (has_sa, spi) = (sa.is_some(), sa.map_or(0, |sa| sa.spi));
    match (side, action) {
        (_, None) => "discarded: no policy matches (RFC 4301 4.4.1)".to_owned(),
        (_, Some(Action::Discard)) => "discarded: the policy says so".to_owned(),
        (_, Some(Action::Bypass)) => "passes in clear".to_owned(),
        (_, Some(Action::Protect(_) | Action::Populate(_))) if down => {
            format!("discarded: tunnel {name} is down")
        }
        // Tunnels of the configuration always have one, unless they are down.
        (Side::Protected, Some(Action::Protect(_) | Action::Populate(_))) if !has_sa => {
            format!("waits: tunnel {name} has no outbound SA yet, and a key exchange daemon is asked for one")
        }
        (Side::Unprotected, Some(Action::Protect(_) | Action::Populate(_))) if !has_sa => format!(
            "in clear: discarded, policy wants it protected (RFC 4301 5.2); tunnel {name} has no inbound SA yet"
        ),
        (Side::Protected, Some(Action::Protect(_) | Action::Populate(_))) => {
            format!("goes through tunnel {name}, outbound SA {spi:#x}{place}")
        }
        (Side::Unprotected, Some(Action::Protect(_) | Action::Populate(_))) => format!(
            "in clear: discarded, policy wants it protected (RFC 4301 5.2); through inbound SA {spi:#x} of tunnel {name}{place}: passes"
        ),
    }
}
