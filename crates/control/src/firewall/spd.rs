//! The policies as rules of the chains `outbound` and `inbound`.
//!
//! Packets that these chains see travel in clear. The first policy that matches decides: "bypass" lets them
//! pass, "protect" and "discard" drop them. A later fragment hides fields that some policies test, and so
//! does an IPv6 packet with an unknown header. It passes a "bypass" policy only if none of the hidden fields
//! matter to it, and is dropped if a "protect" or "discard" policy could match with suitable hidden fields.
//! So no fragment passes of a datagram that is dropped (RFC 4301 7.4).

use super::entry::Entry;
use super::rule::{End, Match, Pairs, Rule, Verdict};
use crate::config::{Network, Networks};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use testudo_ipsec::{AddressRange, Direction, PortRange, Protocol, Selector};
use testudo_wire::protocol;

/// From this many similar rules on, a hash table is better; fewer are easier to read as rules.
const WORTH_A_SET: usize = 9;

/// The rules of one direction. `local` is the end of the packet on our side.
pub(super) fn rules(entries: &[Entry], local: End, routed: bool) -> Vec<Rule> {
    let mut rules = Vec::new();
    let mut drops: Vec<&Entry> = Vec::new();
    for entry in entries.iter().filter(|entry| entry.directions.include(direction(local))) {
        if entry.bypass {
            rules.extend(dropped(&std::mem::take(&mut drops), local));
            let versions = entry.versions().filter(|ipv6| !(*ipv6 && names_an_unknown_header(entry)));
            rules.extend(versions.filter_map(|ipv6| passed(entry, local, ipv6)));
        } else if entry.names_a_network() {
            drops.push(entry);
        }
    }
    rules.extend(dropped(&drops, local));
    if routed {
        rules.extend(unnamed(entries, local.other()));
    }
    rules
}

/// The direction of packets whose local end is this.
fn direction(local: End) -> Direction {
    if local == End::Source { Direction::Outbound } else { Direction::Inbound }
}

/// A selector's conditions on addresses, for packets of one IP version.
fn addresses(entry: &Entry, local: End, ipv6: bool) -> Vec<Match> {
    let ends = [(local, entry.local()), (local.other(), entry.remote())];
    let mut matches: Vec<_> =
        ends.into_iter().filter_map(|(end, r)| Some(Match::Addresses(end, r?))).collect();
    if matches.is_empty() {
        matches.push(Match::Ipv6(ipv6));
    }
    matches
}

/// What a selector asks of ports or messages.
enum Asked {
    /// Nothing, or these conditions on what a packet shows.
    Shown(Vec<Match>),
    /// Only that a packet does not show them: no packet that hides nothing matches.
    Hidden,
}

/// Of an IP version, since over IPv6 more is hidden.
fn asked(entry: &Entry, local: End, ipv6: bool) -> Asked {
    let Selector { protocol, local_ports, remote_ports, .. } = entry.selector;
    if protocol == Protocol::Opaque {
        return Asked::Hidden;
    }
    // A message is its sender's (RFC 4301 4.4.1.1).
    let ends = match (protocol.is_of_messages(), local) {
        (false, _) => vec![(local, local_ports), (local.other(), remote_ports)],
        (true, End::Source) => vec![(End::Source, local_ports)],
        (true, End::Destination) => vec![(End::Source, remote_ports)],
    };
    let ends: Vec<_> = ends.into_iter().filter(|(_, ports)| *ports != PortRange::ANY).collect();
    if !ends.iter().any(|(_, ports)| *ports == PortRange::OPAQUE) {
        let condition = |(end, range)| match protocol {
            Protocol::Is(number) if protocol.is_of_messages() => {
                Match::Message { is_mobility: number == protocol::MOBILITY, range }
            }
            _ => Match::Ports(end, range),
        };
        return Asked::Shown(ends.into_iter().map(condition).collect());
    }
    match protocol {
        // A packet shows both ports or none.
        _ if ends.iter().any(|(_, ports)| *ports != PortRange::OPAQUE) => Asked::Hidden,
        Protocol::Is(number) if protocol::has_selector_fields(number) => Asked::Hidden,
        Protocol::Is(_) | Protocol::Opaque => Asked::Shown(Vec::new()),
        Protocol::Any => Asked::Shown(vec![Match::HasNoPorts { ipv6 }]),
    }
}

/// Whether its protocol is one that IPv6 packets never show: another header may follow it.
fn names_an_unknown_header(entry: &Entry) -> bool {
    matches!(entry.selector.protocol, Protocol::Is(number) if protocol::hides_what_follows(number))
}

/// A "bypass" policy; no rule if all that it selects is hidden, since that never passes (RFC 4301 7.4).
fn passed(entry: &Entry, local: End, ipv6: bool) -> Option<Rule> {
    let Asked::Shown(asked) = asked(entry, local, ipv6) else { return None };
    let mut matches = addresses(entry, local, ipv6);
    if !entry.is_by_address_alone() && ipv6 {
        // A later fragment may claim any protocol.
        matches.push(Match::NoFragmentHeader);
    }
    match entry.selector.protocol {
        Protocol::Is(number) => matches.push(Match::Protocol(number)),
        _ if !asked.is_empty() && !ipv6 => matches.push(Match::NotLaterFragment),
        _ => {}
    }
    matches.extend(asked);
    Some(Rule::new(matches, Verdict::Return, &*entry.name))
}

/// Consecutive policies that all drop, so that their order does not matter.
fn dropped(entries: &[&Entry], local: End) -> Vec<Rule> {
    let mut alike: BTreeMap<(bool, u8, u8), Vec<&Entry>> = BTreeMap::new();
    for entry in entries {
        if let Some((local, remote)) = networks(entry) {
            alike.entry(lengths(local, remote)).or_default().push(entry);
        }
    }
    alike.retain(|_, members| members.len() >= WORTH_A_SET);
    let is_alike = |entry: &Entry| networks(entry).is_some_and(|(l, r)| alike.contains_key(&lengths(l, r)));
    let alone = entries.iter().filter(|entry| !is_alike(entry));
    let mut rules: Vec<_> =
        alone.flat_map(|entry| entry.versions().flat_map(|ipv6| dropped_alone(entry, local, ipv6))).collect();
    rules.extend(alike.into_iter().map(|(lengths, members)| dropped_together(lengths, &members, local)));
    rules
}

/// The local and the remote network, if the policy has no other conditions than these.
fn networks(entry: &Entry) -> Option<(Network, Network)> {
    let plain = entry.is_by_address_alone() && entry.local_within_remote().is_none();
    let network = |range: AddressRange| range.prefix().and_then(Network::of);
    let ends = (network(entry.local()?)?, network(entry.remote()?)?);
    plain.then_some(ends)
}

/// IP version and prefix lengths.
fn lengths(local: Network, remote: Network) -> (bool, u8, u8) {
    (local.address().is_ipv6(), local.length(), remote.length())
}

fn dropped_alone(entry: &Entry, local: End, ipv6: bool) -> Vec<Rule> {
    let mut matches = addresses(entry, local, ipv6);
    matches.extend(entry.local_within_remote().map(|range| Match::NotAddresses(local.other(), range)));
    let drop =
        |more: Vec<Match>, comment: &str| Rule::new([matches.clone(), more].concat(), Verdict::Drop, comment);
    let hidden = |more: Vec<Match>, what: &str| drop(more, &format!("{}: {what}", entry.name));
    let protocol = match entry.selector.protocol {
        Protocol::Is(number) => Some(Match::Protocol(number)),
        Protocol::Any | Protocol::Opaque => None,
    };
    let asked = asked(entry, local, ipv6);
    let mut rules = Vec::new();
    if ipv6 && !entry.is_by_address_alone() {
        rules.push(hidden(vec![Match::LaterFragment { ipv6 }], "later fragments"));
        rules.push(hidden(vec![Match::HeadersInFragment], "headers within fragments"));
        rules.push(hidden(vec![Match::UnknownHeader], "unknown headers"));
    } else if entry.selector.protocol != Protocol::Opaque
        && !matches!(&asked, Asked::Shown(asked) if asked.is_empty())
    {
        let later: Vec<_> = protocol.clone().into_iter().chain([Match::LaterFragment { ipv6 }]).collect();
        rules.push(hidden(later, "later fragments"));
    }
    if let Asked::Shown(asked) = asked {
        rules.push(drop(protocol.into_iter().chain(asked).collect(), &entry.name));
    }
    rules
}

fn dropped_together((_, local_bits, remote_bits): (bool, u8, u8), members: &[&Entry], local: End) -> Rule {
    let pairs = members.iter().filter_map(|entry| {
        let (here, there) = networks(entry)?;
        let (here, there) = (here.address(), there.address());
        let (source, destination) = if local == End::Source { (here, there) } else { (there, here) };
        Some((source, destination, entry.name.to_string()))
    });
    let (source_bits, destination_bits) =
        if local == End::Source { (local_bits, remote_bits) } else { (remote_bits, local_bits) };
    let mut seen = HashSet::new();
    let pairs: Vec<_> =
        pairs.filter(|(source, destination, _)| seen.insert((*source, *destination))).collect();
    let comment = format!("{} policies with networks of /{local_bits} and /{remote_bits}", pairs.len());
    Rule::new(vec![Match::Pairs(Pairs { source_bits, destination_bits, pairs })], Verdict::Drop, comment)
}

/// Packets that no policy names but that have an end in a network that is routed into the tunnel: RFC 4301
/// 5.1 and 5.2 discard them. An address belongs to the longest network that contains it, as with routes: a
/// local network within a remote one stays local.
fn unnamed(entries: &[Entry], remote: End) -> Vec<Rule> {
    let protect = || entries.iter().filter(|entry| entry.is_routed());
    let remotes: BTreeSet<Network> = protect().flat_map(Entry::remote_networks).collect();
    let known: Networks = remotes.iter().copied().collect();
    let is_within_a_remote =
        |local: &Network| !known.contains(*local) && known.holding(*local).next().is_some();
    let locals: BTreeSet<Network> =
        protect().flat_map(Entry::local_networks).filter(is_within_a_remote).collect();
    // Longest first.
    let mut groups: BTreeMap<(Reverse<u8>, bool, bool), Vec<Network>> = BTreeMap::new();
    for (is_remote, networks) in [(true, &remotes), (false, &locals)] {
        for prefix in networks {
            let key = (Reverse(prefix.length()), prefix.address().is_ipv6(), is_remote);
            groups.entry(key).or_default().push(*prefix);
        }
    }
    let groups = groups.into_iter().map(|((_, _, is_remote), networks)| (networks, is_remote));
    groups.flat_map(|(networks, is_remote)| of_networks(networks, is_remote, remote)).collect()
}

/// Rules for networks of one length.
fn of_networks(networks: Vec<Network>, are_remote: bool, end: End) -> Vec<Rule> {
    let (verdict, what) =
        if are_remote { (Verdict::Drop, "no policy: anything else of") } else { (Verdict::Return, "local:") };
    if networks.len() >= WORTH_A_SET {
        let comment = format!("{what} {} networks", networks.len());
        return vec![Rule::new(vec![Match::Networks(end, networks)], verdict, comment)];
    }
    let rule = |network: Network| {
        Rule::new(vec![Match::Addresses(end, network.into())], verdict, format!("{what} {network}"))
    };
    networks.into_iter().map(rule).collect()
}
