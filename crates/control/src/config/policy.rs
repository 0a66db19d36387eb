//! Reads `[[policy]]`.

use super::checks::{Facts, Traffic};
use super::model::{Action, Policy};
use super::populate;
use super::selector::{SelectorDraft, read_selector};
use super::suggest::did_you_mean;
use super::value;
use super::walk::{Located, Problem, Section, Walker};
use std::collections::HashMap;
use testudo_ipsec::{Direction, Directions};
use testudo_packet::Interface;

/// Reads a policy; `tunnels` maps names to indices.
pub(super) fn read_policy(
    mut section: Section<'_>,
    walker: &mut Walker<'_>,
    tunnels: &HashMap<String, usize>,
    facts: &mut Facts,
) -> Option<Policy> {
    let name = section.located(walker, "name", value::name);
    if let Some(name) = &name {
        section.rename(format!("policy[{}]", name.value));
    }
    facts.policy_names.extend(name.clone());
    let words = [("protect", "protect"), ("bypass", "bypass"), ("discard", "discard")];
    let action = section.required(walker, "action", "\"discard\"", value::choice(&words));
    let words = [("in", Directions::Inbound), ("out", Directions::Outbound), ("both", Directions::Both)];
    let directions = section.or_default(walker, "direction", Directions::Both, value::choice(&words));
    let SelectorDraft { selectors, remotes } = read_selector(&mut section, walker);
    let word = action.as_ref().map(|action| action.value);
    let flags = populate::read(&mut section, walker, directions, &selectors.value);
    let action = match word {
        Some("protect") => {
            if directions.include(Direction::Outbound) {
                facts.routed.extend(remotes);
            }
            let tunnel = read_tunnel_name(&mut section, walker, tunnels);
            let template = flags.clone().zip(tunnel.as_ref());
            facts.templates.extend(template.map(|(flags, tunnel)| flags.map(|_| tunnel.value)));
            facts.named.extend(tunnel.clone());
            tunnel.map(|tunnel| Action::Protect { tunnel: tunnel.value })
        }
        Some("bypass") => {
            facts.bypasses.extend(action.map(|action| Located { value: (), ..unit(action) }));
            Some(Action::Bypass)
        }
        Some(_) => Some(Action::Discard),
        None => None,
    };
    if word != Some("protect") {
        let problem = Problem::expected("`tunnel` only where `action` is \"protect\"");
        // If the action is wrong, `tunnel` may be right or wrong.
        match word {
            Some(_) => {
                section.refuse(walker, "tunnel", problem);
                let problem = Problem::expected("SAs to be populated only where `action` is \"protect\"");
                section.refuse(walker, populate::KEY, problem);
            }
            None => drop(section.value("tunnel")),
        }
    }
    section.finish(walker);
    let Located { value: selectors, span, key } = selectors;
    facts.policy_rules.push(Located {
        value: Traffic { interface: Interface::MAIN, selectors: selectors.clone(), directions },
        span,
        key,
    });
    let (name, populate) = (name.map(|name| name.value), flags.map(|flags| flags.value).unwrap_or_default());
    Some(Policy { name, number: 0, selectors, directions, action: action?, populate })
}

fn unit<T>(located: Located<T>) -> Located<()> {
    Located { value: (), span: located.span, key: located.key }
}

fn read_tunnel_name(
    section: &mut Section<'_>,
    walker: &mut Walker<'_>,
    tunnels: &HashMap<String, usize>,
) -> Option<Located<usize>> {
    section.required(walker, "tunnel", "\"site-b\"", |value| {
        let name = value::string(value, "the name of a tunnel")?;
        tunnels.get(name).copied().ok_or_else(|| {
            let help = did_you_mean(name, tunnels.keys().map(String::as_str));
            Problem { help, ..Problem::expected("the name of a tunnel") }
        })
    })
}
