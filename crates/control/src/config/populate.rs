//! Reads `populate_from_packet` of a `[[policy]]` (RFC 4301 4.4.1.2): the fields that each flow's SA takes
//! from its packets.
//!
//! The tunnel that the policy names is a template: the flow's own has its peer, protocol, mode and MTU. What
//! makes no sense is refused, so that no packet asks in vain:
//!
//! - OPAQUE holds no value: "PFP=1 with an OPAQUE value is an error" (RFC 4301 4.4.2.2);
//! - ports and types are those of a protocol, which must be named, or populated as well;
//! - a type is populated for both directions, so that both must have the same;
//! - ranges of the other fields make few prefixes, which are inserted and removed with each flow's SA;
//! - the peer's address must be known: somebody is to make an SA with it.

use super::model::{Remote, Selectors, Tunnel};
use super::suggest::did_you_mean;
use super::walk::{Located, Problem, Section, Walker};
use std::sync::Arc;
use testudo_ipsec::{
    Direction, Directions, MAX_FLOW_PIECES, Policy, PopulateFlags, PortRange, Protocol, Selector, TunnelIndex,
};

pub(super) const KEY: &str = "populate_from_packet";

/// The flags of a policy, none without the key. `selectors` are its own, none if some are wrong.
pub(super) fn read(
    section: &mut Section<'_>,
    walker: &mut Walker<'_>,
    directions: Directions,
    selectors: &Selectors,
) -> Option<Located<PopulateFlags>> {
    let span = section.value(KEY)?.span();
    let list = section.words(walker, KEY, PopulateFlags::NAMED.len(), field)?;
    if list.is_partial {
        return None;
    }
    let flags = list.items.iter().fold(PopulateFlags::default(), |flags, item| flags.with(item.value));
    let key = section.path_of(KEY);
    let problem = if !directions.include(Direction::Outbound) {
        let help = "packets that leave populate SAs (RFC 4301 5.1): leave `direction` out";
        Some(Problem::expected("it only where the policy is for packets that leave").help(help))
    } else {
        let problem = selectors.iter().find_map(|selector| problem_of(flags, selector));
        problem.or_else(|| too_many_pieces(flags, directions, selectors))
    };
    if let Some(problem) = problem {
        walker.report(&span, key, problem);
        return None;
    }
    Some(Located { value: flags, span, key })
}

/// Each flow's SA costs what its ranges cost in the worker's SPD, between two batches of packets.
fn too_many_pieces(flags: PopulateFlags, directions: Directions, selectors: &Selectors) -> Option<Problem> {
    let policy = Policy::populating(Selector::ANY, TunnelIndex(0), flags);
    let pieces = Policy { directions, selectors: Arc::clone(selectors), ..policy }.count_flow_pieces();
    let expected =
        format!("SAs for flows whose selectors make at most {MAX_FLOW_PIECES} pairs of prefixes each");
    let help = "write prefixes in place of ranges, or populate the fields that have ranges or lists, too";
    let problem = Problem::expected(expected).found(format!("{pieces} for a flow")).help(help);
    (pieces > MAX_FLOW_PIECES).then_some(problem)
}

fn field(word: &str) -> Result<PopulateFlags, Problem> {
    let found = PopulateFlags::NAMED.into_iter().find(|(name, _)| *name == word);
    found.map(|(_, flag)| flag).ok_or_else(|| {
        let names = PopulateFlags::NAMED.map(|(name, _)| name);
        let help = did_you_mean(word, names);
        Problem { help, ..Problem::expected(format!("one of {}", names.join(", "))) }
    })
}

/// What is wrong with these flags for packets of a selector.
fn problem_of(flags: PopulateFlags, selector: &Selector) -> Option<Problem> {
    let Selector { protocol, local_ports, remote_ports, .. } = *selector;
    let has_types = flags.has(PopulateFlags::TYPES) && protocol.is_of_messages();
    let opaque = [
        (PopulateFlags::PROTOCOL, protocol == Protocol::Opaque),
        (PopulateFlags::LOCAL_PORTS, local_ports == PortRange::OPAQUE && !protocol.is_of_messages()),
        (PopulateFlags::REMOTE_PORTS, remote_ports == PortRange::OPAQUE && !protocol.is_of_messages()),
    ];
    if let Some((flag, _)) = opaque.into_iter().find(|(flag, is_opaque)| *is_opaque && flags.has(*flag)) {
        let name = flag.names().next().unwrap_or_default();
        let problem = Problem::expected(format!("no \"{name}\" where the policy has \"opaque\" there"));
        return Some(problem.help("what a packet does not show populates nothing (RFC 4301 4.4.2.2)"));
    }
    if has_types && local_ports != remote_ports {
        let problem =
            Problem::expected("\"types\" only where the policy has the same types in both directions");
        return Some(problem.help("an SA has one type for both (RFC 4301 4.4.1.2): write `types`"));
    }
    let of_a_protocol = [PopulateFlags::LOCAL_PORTS, PopulateFlags::REMOTE_PORTS, PopulateFlags::TYPES];
    let has_one = of_a_protocol.into_iter().any(|flag| flags.has(flag));
    if has_one && !flags.has(PopulateFlags::PROTOCOL) && !matches!(protocol, Protocol::Is(_)) {
        let problem = Problem::expected("\"protocol\" beside ports or types");
        let help =
            "ports are those of a protocol (RFC 4301 4.4.1.1): populate it, too, or name it with `protocol`";
        return Some(problem.help(help));
    }
    None
}

/// Checks the tunnel that is to be a template.
pub(super) fn check_template(walker: &mut Walker<'_>, flags: &Located<()>, template: &Tunnel) {
    let problem = if template.covered_by.is_some() {
        let problem = Problem::expected("a tunnel of esp or ah alone");
        Some(problem.found(format!("tunnel {}, of ah+esp", template.name)))
    } else if template.remote == Remote::Any {
        let problem = Problem::expected("a tunnel whose peer has an address");
        let problem = problem.found(format!("tunnel {}, with `remote = \"any\"`", template.name));
        Some(problem.help("an SA for a flow is made together with the peer, which must be known first"))
    } else if !template.worker_sas.is_empty() {
        let problem = Problem::expected("a tunnel without SAs of single workers");
        let problem = problem.found(format!("tunnel {}, with `worker_sas`", template.name));
        Some(problem.help("SAs for a flow are made when a packet asks for them, and a flow has one worker"))
    } else {
        None
    };
    if let Some(problem) = problem {
        walker.report(&flags.span, flags.key.clone(), problem);
    }
}
