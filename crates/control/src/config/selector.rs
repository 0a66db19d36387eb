//! Reads selectors: what a `[[policy]]` and an entry of a tunnel's `selectors` have in common.
//!
//! ```text
//!   local, remote                 addresses, prefixes, ranges
//!   protocol                      by name or number
//!   local_ports, remote_ports     TCP, UDP, SCTP
//!   types                         ICMP, ICMPv6, the Mobility Header: messages that are sent and received
//!   types_sent, types_received    the same, told apart
//! ```
//!
//! Each takes a value or a list of them. RFC 4301 4.4.1.1 has lists of ranges in every field of a selector;
//! the SPD has one selector for each combination, of which those are left out that no packet can have: an
//! IPv4 address with an IPv6 one, ICMPv6 over IPv4.

use super::messages;
use super::model::Selectors;
use super::network::Network;
use super::traffic;
use super::walk::{List, Located, Problem, Section, Walker};
use testudo_ipsec::{Action, AddressRange, Policy, PortRange, Protocol, Selector};
use testudo_wire::ip::Version;
use testudo_wire::protocol;

/// Values of a key at most.
const MAX_VALUES: usize = 256;
/// Combinations of the values of one entry at most.
const MAX_COMBINATIONS: usize = 256;

/// The selectors of an entry, and the remote networks that it names.
pub(super) struct SelectorDraft {
    /// Empty if some of the entry is wrong.
    pub(super) selectors: Located<Selectors>,
    pub(super) remotes: Vec<Located<Network>>,
}

/// By protocol, messages that are sent and messages that are received.
type Messages = Vec<(u8, Vec<(PortRange, PortRange)>)>;

/// What an entry asks of the next layer.
struct NextLayer {
    protocols: Vec<Located<Protocol>>,
    local_ports: List<PortRange>,
    remote_ports: List<PortRange>,
    /// Of each protocol that has messages: those that are sent, and those that are received.
    messages: Messages,
    is_wrong: bool,
}

/// The keys of a selector, all optional.
pub(super) fn read_selector(section: &mut Section<'_>, walker: &mut Walker<'_>) -> SelectorDraft {
    let local = read_list(section, walker, "local", AddressRange::ANY, traffic::addresses);
    let remote = read_list(section, walker, "remote", AddressRange::ANY, traffic::addresses);
    let layer = read_next_layer(section, walker);
    let mut is_wrong = layer.is_wrong || local.is_partial || remote.is_partial;
    if !is_wrong {
        is_wrong = !check_versions(walker, &local.items, &remote.items, &layer.protocols);
    }
    let selectors = if is_wrong { Vec::new() } else { combine(&local.items, &remote.items, &layer) };
    let key = section.path_of("").trim_end_matches('.').to_owned();
    let span = section.span().clone();
    let selectors = Located { value: checked(walker, selectors, &span, &key), span, key };
    let networks = remote.items.into_iter().flat_map(|range| {
        let Located { value, span, key } = range;
        traffic::networks(value).map(move |value| Located { value, span: span.clone(), key: key.clone() })
    });
    SelectorDraft { selectors, remotes: networks.collect() }
}

/// The values under a key; one that is `any` stands alone, since it includes the others.
fn read_list<T: Copy + PartialEq>(
    section: &mut Section<'_>,
    walker: &mut Walker<'_>,
    key: &'static str,
    any: T,
    parse: impl Fn(&str) -> Result<T, Problem>,
) -> List<T> {
    let Some(mut list) = section.words(walker, key, MAX_VALUES, parse) else {
        let place = Located { value: any, span: section.span().clone(), key: section.path_of(key) };
        return List { items: vec![place], is_partial: false };
    };
    if let Some(item) = list.items.iter().find(|item| item.value == any && list.items.len() > 1) {
        let problem =
            Problem::expected("\"any\" by itself").help("it includes the others: leave them out, or it");
        walker.report(&item.span, item.key.clone(), problem);
        list.is_partial = true;
    }
    list
}

fn read_next_layer(section: &mut Section<'_>, walker: &mut Walker<'_>) -> NextLayer {
    let protocols = read_list(section, walker, "protocol", Protocol::Any, traffic::protocol);
    let local_ports = read_list(section, walker, "local_ports", PortRange::ANY, traffic::ports);
    let remote_ports = read_list(section, walker, "remote_ports", PortRange::ANY, traffic::ports);
    let mut is_wrong =
        [protocols.is_partial, local_ports.is_partial, remote_ports.is_partial].contains(&true);
    // Where the protocol is wrong, what goes with it may be right.
    if !protocols.is_partial {
        let has_ports = |p: &Located<Protocol>| {
            matches!(p.value, Protocol::Is(protocol::TCP | protocol::UDP | protocol::SCTP))
        };
        let may_have_ports = protocols.items.iter().all(has_ports);
        for ports in local_ports.items.iter().chain(&remote_ports.items) {
            if ports.value != PortRange::ANY && ports.value != PortRange::OPAQUE && !may_have_ports {
                let problem = Problem::expected("ports only with tcp, udp or sctp");
                walker.report(&ports.span, ports.key.clone(), problem.help("add `protocol = \"tcp\"`"));
                is_wrong = true;
            }
        }
    }
    let messages = if protocols.is_partial { None } else { read_messages(section, walker, &protocols.items) };
    is_wrong |= messages.is_none();
    let messages = messages.unwrap_or_default();
    NextLayer { protocols: protocols.items, local_ports, remote_ports, messages, is_wrong }
}

/// The messages of each protocol. `None` if some are wrong.
fn read_messages(
    section: &mut Section<'_>,
    walker: &mut Walker<'_>,
    protocols: &[Located<Protocol>],
) -> Option<Messages> {
    const KEYS: [&str; 3] = ["types", "types_sent", "types_received"];
    let given = KEYS.map(|key| section.value(key).is_some());
    if given == [false; 3] {
        return Some(Vec::new());
    }
    if given[0] && (given[1] || given[2]) {
        let problem = Problem::expected("either `types`, or `types_sent` and `types_received`").found("both");
        section.refuse(walker, "types", problem);
        return None;
    }
    let of_messages = |p: &Located<Protocol>| match p.value {
        Protocol::Is(number) if p.value.is_of_messages() => Some(number),
        _ => None,
    };
    let numbers: Option<Vec<u8>> = protocols.iter().map(of_messages).collect();
    let Some(numbers) = numbers else {
        for key in KEYS {
            let problem = Problem::expected(format!("`{key}` only with icmp, icmpv6 or mobility"));
            section.refuse(walker, key, problem.help("add `protocol = \"icmp\"`"));
        }
        return None;
    };
    let mut messages = Vec::with_capacity(numbers.len());
    for number in numbers {
        let mut of = |key| {
            let list = section.words(walker, key, MAX_VALUES, |word| messages::messages(number, word))?;
            Some((list.items.into_iter().map(|item| item.value).collect::<Vec<_>>(), list.is_partial))
        };
        let [both, sent, received] = KEYS.map(&mut of);
        // Of a type that is only sent, none is received (RFC 4301 4.4.1.1: the remote end's is OPAQUE).
        let none = || (vec![PortRange::OPAQUE], false);
        let sent = both.clone().or(sent).unwrap_or_else(none);
        let received = both.or(received).unwrap_or_else(none);
        if sent.1 || received.1 {
            return None;
        }
        messages.push((number, side_by_side(&sent.0, &received.0)));
    }
    Some(messages)
}

/// Both lists in pairs. A packet meets one half of a pair, so that each value has to be in one of them.
fn side_by_side(sent: &[PortRange], received: &[PortRange]) -> Vec<(PortRange, PortRange)> {
    let at = |list: &[PortRange], index: usize| list.get(index).or(list.last()).copied();
    let pairs =
        (0..sent.len().max(received.len())).filter_map(|index| at(sent, index).zip(at(received, index)));
    pairs.collect()
}

fn is_one_version(a: Option<Version>, b: Option<Version>) -> bool {
    a.is_none() || b.is_none() || a == b
}

/// Whether packets of a version may have a protocol.
fn may_carry(version: Option<Version>, protocol: Protocol) -> bool {
    match version {
        Some(Version::V4) => protocol != Protocol::Is(protocol::ICMPV6) && protocol != Protocol::Opaque,
        Some(Version::V6) => protocol != Protocol::Is(protocol::ICMP),
        None => true,
    }
}

/// Every value must be possible in some packet.
fn check_versions(
    walker: &mut Walker<'_>,
    locals: &[Located<AddressRange>],
    remotes: &[Located<AddressRange>],
    protocols: &[Located<Protocol>],
) -> bool {
    let version = |range: &Located<AddressRange>| range.value.version();
    for (ours, theirs, other) in [(remotes, locals, "local"), (locals, remotes, "remote")] {
        let is_lonely = |range: &&Located<AddressRange>| {
            !theirs.iter().any(|other| is_one_version(version(range), version(other)))
        };
        let lonely: Vec<_> = ours.iter().filter(is_lonely).collect();
        for range in &lonely {
            let needed = theirs.first().and_then(version).unwrap_or(Version::V4);
            let problem = Problem::expected(format!("an {} prefix, as `{other}` is", ip_name(needed)));
            let help = "a packet has addresses of one version: write a selector for each";
            walker.report(&range.span, range.key.clone(), problem.help(help));
        }
        // Of two lists that do not go together, one is named.
        if !lonely.is_empty() {
            return false;
        }
    }
    let pairs =
        || locals.iter().flat_map(|l| remotes.iter().map(move |r| (l.value.version(), r.value.version())));
    let versions = || pairs().filter(|(a, b)| is_one_version(*a, *b)).map(|(a, b)| a.or(b));
    let wrong = protocols.iter().find(|p| !versions().any(|v| may_carry(v, p.value)));
    if let Some(protocol) = wrong {
        let (version, help) = match protocol.value {
            Protocol::Is(protocol::ICMPV6) => (Version::V4, "write `protocol = \"icmp\"`"),
            Protocol::Is(_) => (Version::V6, "write `protocol = \"icmpv6\"`"),
            _ => (
                Version::V4,
                "every packet of IPv4 shows its protocol: `local_ports = \"opaque\"` is for its fragments",
            ),
        };
        let problem = Problem::expected(format!("a protocol of {}", ip_name(version)));
        walker.report(&protocol.span, protocol.key.clone(), problem.help(help));
    }
    wrong.is_none()
}

fn ip_name(version: Version) -> &'static str {
    match version {
        Version::V4 => "IPv4",
        Version::V6 => "IPv6",
    }
}

/// One selector for each combination that packets may have; no more than one above the bound.
fn combine(
    locals: &[Located<AddressRange>],
    remotes: &[Located<AddressRange>],
    layer: &NextLayer,
) -> Vec<Selector> {
    let mut selectors = Vec::new();
    for (local, remote) in locals.iter().flat_map(|l| remotes.iter().map(|r| (l.value, r.value))) {
        if !is_one_version(local.version(), remote.version()) {
            continue;
        }
        let version = local.version().or(remote.version());
        for protocol in layer.protocols.iter().map(|p| p.value).filter(|p| may_carry(version, *p)) {
            for (local_ports, remote_ports) in layer.values_of(protocol) {
                if selectors.len() > MAX_COMBINATIONS {
                    return selectors;
                }
                selectors.push(Selector { local, remote, protocol, local_ports, remote_ports });
            }
        }
    }
    selectors
}

impl NextLayer {
    /// Pairs of ports, or of messages.
    fn values_of(&self, protocol: Protocol) -> Vec<(PortRange, PortRange)> {
        let of_messages = self.messages.iter().find(|(number, _)| protocol == Protocol::Is(*number));
        if let Some((_, messages)) = of_messages {
            return messages.clone();
        }
        let ports = self
            .local_ports
            .items
            .iter()
            .flat_map(|l| self.remote_ports.items.iter().map(|r| (l.value, r.value)));
        ports.collect()
    }
}

/// The selectors, if the SPD takes them as one policy; none otherwise.
fn checked(
    walker: &mut Walker<'_>,
    selectors: Vec<Selector>,
    span: &super::source::Span,
    key: &str,
) -> Selectors {
    if selectors.len() > MAX_COMBINATIONS {
        let expected = format!("at most {MAX_COMBINATIONS} combinations of addresses, protocols and ports");
        let problem = Problem::expected(expected).found("more");
        walker.report(span, key, problem.help("use prefixes and ranges, or write several policies"));
        return Selectors::from([]);
    }
    let policy = Policy { selectors: selectors.into(), ..Policy::new(Selector::ANY, Action::Discard) };
    if let Err(error) = policy.check() {
        let problem = Problem::expected("ranges that make fewer prefixes").found(error.to_string());
        walker.report(span, key, problem);
        return Selectors::from([]);
    }
    policy.selectors
}
