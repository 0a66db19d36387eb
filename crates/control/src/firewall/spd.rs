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
use testudo_ipsec::{PortRange, Protocol};
use testudo_wire::protocol;

/// From this many similar rules on, a hash table is better; fewer are easier to read as rules.
const WORTH_A_SET: usize = 9;

/// The rules of one direction. `local` is the end of the packet on our side.
pub(super) fn rules(entries: &[Entry], local: End, routed: bool) -> Vec<Rule> {
    let mut rules = Vec::new();
    let mut drops: Vec<&Entry> = Vec::new();
    for entry in entries {
        if entry.bypass {
            rules.extend(dropped(&std::mem::take(&mut drops), local));
            let versions = entry.versions().filter(|ipv6| !(*ipv6 && names_an_unknown_header(entry)));
            rules.extend(versions.map(|ipv6| passed(entry, local, ipv6)));
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

/// A selector's conditions on addresses, for packets of one IP version.
fn addresses(entry: &Entry, local: End, ipv6: bool) -> Vec<Match> {
    let ends = [(local, entry.local()), (local.other(), entry.remote())];
    let mut matches: Vec<_> = ends.into_iter().filter_map(|(end, p)| Some(Match::Network(end, p?))).collect();
    if matches.is_empty() {
        matches.push(Match::Ipv6(ipv6));
    }
    matches
}

fn ports(entry: &Entry, local: End) -> impl Iterator<Item = Match> + use<> {
    let ends = [(local, entry.selector.local_ports), (local.other(), entry.selector.remote_ports)];
    ends.into_iter()
        .filter(|(_, ports)| *ports != PortRange::ANY)
        .map(|(end, ports)| Match::Ports(end, ports))
}

/// Whether its protocol is one that IPv6 packets never show: another header may follow it.
fn names_an_unknown_header(entry: &Entry) -> bool {
    matches!(entry.selector.protocol, Protocol::Is(number) if protocol::hides_what_follows(number))
}

/// A "bypass" policy.
fn passed(entry: &Entry, local: End, ipv6: bool) -> Rule {
    let mut matches = addresses(entry, local, ipv6);
    if let Protocol::Is(number) = entry.selector.protocol {
        // A later fragment may claim any protocol.
        matches.extend(ipv6.then_some(Match::NoFragmentHeader));
        matches.push(Match::Protocol(number));
    }
    matches.extend(ports(entry, local));
    Rule::new(matches, Verdict::Return, entry.name.as_str())
}

/// Consecutive policies that all drop, so that their order does not matter.
fn dropped(entries: &[&Entry], local: End) -> Vec<Rule> {
    let mut alike: BTreeMap<(bool, u8, u8), Vec<&Entry>> = BTreeMap::new();
    for entry in entries {
        if let Some(key) = lengths(entry) {
            alike.entry(key).or_default().push(entry);
        }
    }
    alike.retain(|_, members| members.len() >= WORTH_A_SET);
    let alone = entries.iter().filter(|entry| !lengths(entry).is_some_and(|key| alike.contains_key(&key)));
    let mut rules: Vec<_> =
        alone.flat_map(|entry| entry.versions().flat_map(|ipv6| dropped_alone(entry, local, ipv6))).collect();
    rules.extend(alike.into_iter().map(|(lengths, members)| dropped_together(lengths, &members, local)));
    rules
}

/// IP version and the prefix lengths of local and remote, if the policy has no other conditions than two
/// networks.
fn lengths(entry: &Entry) -> Option<(bool, u8, u8)> {
    let plain = entry.is_by_address_alone() && entry.local_within_remote().is_none();
    let (local, remote) = (entry.local()?, entry.remote()?);
    plain.then_some((local.address().is_ipv6(), local.length(), remote.length()))
}

fn dropped_alone(entry: &Entry, local: End, ipv6: bool) -> Vec<Rule> {
    let mut matches = addresses(entry, local, ipv6);
    matches.extend(entry.local_within_remote().map(|network| Match::NotNetwork(local.other(), network)));
    let drop = |more: Vec<Match>, comment: String| {
        Rule::new([matches.clone(), more].concat(), Verdict::Drop, comment)
    };
    let hidden = |more: Vec<Match>, what: &str| drop(more, format!("{}: {what}", entry.name));
    let mut ports: Vec<_> = ports(entry, local).collect();
    let mut rules = Vec::new();
    if let Protocol::Is(number) = entry.selector.protocol {
        if ipv6 {
            rules.push(hidden(vec![Match::LaterFragment { ipv6 }], "later fragments"));
            rules.push(hidden(vec![Match::HeadersInFragment], "headers within fragments"));
            rules.push(hidden(vec![Match::UnknownHeader], "unknown headers"));
        } else if !ports.is_empty() {
            let later = vec![Match::Protocol(number), Match::LaterFragment { ipv6 }];
            rules.push(hidden(later, "later fragments"));
        }
        ports.insert(0, Match::Protocol(number));
    }
    rules.push(drop(ports, entry.name.clone()));
    rules
}

fn dropped_together((_, local_bits, remote_bits): (bool, u8, u8), members: &[&Entry], local: End) -> Rule {
    let pairs = members.iter().filter_map(|entry| {
        let (here, there) = (entry.local()?.address(), entry.remote()?.address());
        let (source, destination) = if local == End::Source { (here, there) } else { (there, here) };
        Some((source, destination, entry.name.clone()))
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
    let protect = || entries.iter().filter(|entry| entry.protect);
    let remotes: BTreeSet<Network> = protect().filter_map(Entry::remote).collect();
    let known: Networks = remotes.iter().copied().collect();
    let is_within_a_remote =
        |local: &Network| !known.contains(*local) && known.holding(*local).next().is_some();
    let locals: BTreeSet<Network> = protect().filter_map(Entry::local).filter(is_within_a_remote).collect();
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
    let rule = |network| Rule::new(vec![Match::Network(end, network)], verdict, format!("{what} {network}"));
    networks.into_iter().map(rule).collect()
}
