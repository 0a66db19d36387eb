//! Reads what a tunnel does to packets and their headers: `df`, `flow_label`,
//! `mss_clamp`, `tfc_pad_to`, `dummy_packets_per_second`, `clocked_packets_per_second`.

use super::value::{self, Parsed};
use super::walk::{Problem, Section, Walker};
use std::net::IpAddr;
use testudo_ipsec::{Df, FlowLabel, Fragmentation, IpsecProtocol, Mode, MssClamp, PacketRules};
use toml::de::DeValue;

/// The least MSS that may be asked for: senders take less for an attack (Linux, `tcp_min_snd_mss`: 48).
const LEAST_MSS: u16 = 64;

/// The least length that packets may be padded to: a host's shortest packets are no secret.
const LEAST_PADDED: u16 = 64;
/// The most dummy packets of a tunnel in a second.
const MOST_DUMMIES: u16 = 1000;
/// The most packets that a worker sends for a tunnel by a clock in a second: it wakes up for each.
const MOST_CLOCKED: u16 = 10_000;
/// How many these are.
const CLOCKED: &str = "clocked_packets_per_second";

/// Packets that are sent in a second whatever there is to send: one of both is 0.
pub(super) struct Rates {
    /// Dummies, or fill packets, beside the tunnel's own.
    pub(super) dummies: u16,
    /// By a clock, with the tunnel's own among them.
    pub(super) clocked: u16,
}

/// The rules of a tunnel in this mode, whose packets are cut there, from this outer address (`None` where
/// that could not be read).
pub(super) fn read(
    section: &mut Section<'_>,
    walker: &mut Walker<'_>,
    (mode, fragmentation): (Mode, Fragmentation),
    protocol: IpsecProtocol,
    local: Option<IpAddr>,
) -> PacketRules {
    let dfs = [("copy", Df::Copy), ("set", Df::Set), ("clear", Df::Clear)];
    let labels = [("zero", FlowLabel::Zero), ("per-flow", FlowLabel::PerFlow)];
    let Rates { dummies, clocked } = read_rates(section, walker);
    let rules = PacketRules {
        df: section.or_default(walker, "df", Df::default(), value::choice(&dfs)),
        flow_label: section.or_default(walker, "flow_label", FlowLabel::default(), value::choice(&labels)),
        mss_clamp: section.or_default(walker, "mss_clamp", MssClamp::default(), mss_clamp),
        tfc_pad_to: section.or_default(walker, "tfc_pad_to", 0, value::number_u16(LEAST_PADDED, u16::MAX)),
        dummy_packets_per_second: dummies,
        clocked_packets_per_second: clocked,
        ..PacketRules::default()
    };
    refuse_absent_fields(section, walker, mode, local);
    refuse_without_confidentiality(section, walker, mode, protocol);
    let cuts_after = (mode, fragmentation) == (Mode::Tunnel, Fragmentation::After);
    if clocked > 0 && cuts_after && protocol != IpsecProtocol::Ah {
        let problem = Problem::expected(format!("no `{CLOCKED}` with `fragment = \"after\"`"));
        let help = "a packet that is cut after it was sealed would leave as several at one tick";
        section.refuse(walker, CLOCKED, problem.help(help));
    }
    rules
}

/// Dummies, or fill packets, in a second, or packets by a clock.
pub(super) fn read_rates(section: &mut Section<'_>, walker: &mut Walker<'_>) -> Rates {
    let most = value::number_u16(0, MOST_DUMMIES);
    let dummies = section.or_default(walker, "dummy_packets_per_second", 0, most);
    let clocked = section.or_default(walker, CLOCKED, 0, value::number_u16(0, MOST_CLOCKED));
    if dummies > 0 && clocked > 0 {
        let problem = Problem::expected(format!("`{CLOCKED}` or `dummy_packets_per_second`, not both"));
        let help = "at each tick for which no packet waits, one of these is sent anyway";
        section.refuse(walker, CLOCKED, problem.help(help));
    }
    Rates { dummies, clocked }
}

/// Traffic flow confidentiality is a service of ESP (RFC 4303 2.6, 2.7). In transport mode a packet has no
/// length of its own that says where padding begins, unless its protocol brings one, and it is cut after it
/// was sealed: one packet would be several at a tick.
fn refuse_without_confidentiality(
    section: &mut Section<'_>,
    walker: &mut Walker<'_>,
    mode: Mode,
    protocol: IpsecProtocol,
) {
    for key in ["tfc_pad_to", "dummy_packets_per_second", CLOCKED] {
        if protocol == IpsecProtocol::Ah {
            let problem = Problem::expected(format!("`{key}` only with ESP"));
            section.refuse(
                walker,
                key,
                problem.help("AH hides nothing: what is padding or a dummy can be seen"),
            );
        } else if mode == Mode::Transport && key != "dummy_packets_per_second" {
            let problem = Problem::expected(format!("`{key}` only in tunnel mode"));
            let help = match key {
                CLOCKED => "in transport mode packets are cut after they were sealed: several at one tick",
                _ => {
                    "in transport mode nothing says where a packet ends and its padding begins (RFC 4303 2.7)"
                }
            };
            section.refuse(walker, key, problem.help(help));
        }
    }
}

fn mss_clamp(value: &DeValue<'_>) -> Parsed<MssClamp> {
    match value.as_str() {
        Some("auto") => return Ok(MssClamp::Auto),
        Some("off") => return Ok(MssClamp::Off),
        _ => {}
    }
    let expected = format!("\"auto\", \"off\" or a number from {LEAST_MSS} to {}", u16::MAX);
    let number = value::number_u16(LEAST_MSS, u16::MAX)(value);
    number.map(MssClamp::Bytes).map_err(|p| Problem { help: p.help, ..Problem::expected(expected) })
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
