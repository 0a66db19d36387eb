//! Reads what a tunnel does to packets and their headers: `df`, `flow_label`.

use super::value;
use super::walk::{Problem, Section, Walker};
use std::net::IpAddr;
use testudo_ipsec::{Df, FlowLabel, Mode, PacketRules};

/// The rules of a tunnel in this mode, from this outer address (`None` where that could not be read).
pub(super) fn read(
    section: &mut Section<'_>,
    walker: &mut Walker<'_>,
    mode: Mode,
    local: Option<IpAddr>,
) -> PacketRules {
    let dfs = [("copy", Df::Copy), ("set", Df::Set), ("clear", Df::Clear)];
    let labels = [("zero", FlowLabel::Zero), ("per-flow", FlowLabel::PerFlow)];
    let rules = PacketRules {
        df: section.or_default(walker, "df", Df::default(), value::choice(&dfs)),
        flow_label: section.or_default(walker, "flow_label", FlowLabel::default(), value::choice(&labels)),
    };
    refuse_absent_fields(section, walker, mode, local);
    rules
}

/// A field that no outer header has cannot be chosen.
fn refuse_absent_fields(
    section: &mut Section<'_>,
    walker: &mut Walker<'_>,
    mode: Mode,
    local: Option<IpAddr>,
) {
    let keys = [
        ("df", "IPv4", "IPv6 has no such bit: its routers never cut a packet (RFC 8200 5)"),
        ("flow_label", "IPv6", "IPv4 has no such field"),
    ];
    for (key, version, help) in keys {
        let has_field = local.is_none_or(|local| local.is_ipv4() == (version == "IPv4"));
        if mode == Mode::Transport {
            let problem = Problem::expected(format!("`{key}` only in tunnel mode"));
            section.refuse(walker, key, problem.help("in transport mode a packet keeps its own header"));
        } else if !has_field {
            let problem = Problem::expected(format!("`{key}` only where outer headers are {version}"));
            section.refuse(walker, key, problem.help(help));
        }
    }
}
