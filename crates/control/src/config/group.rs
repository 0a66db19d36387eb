//! Reads what tunnels to a multicast group have of their own (`docs/VPE.md`): `sender_id`, `receive_only`,
//! `sa`, `senders`.
//!
//! All members of a group have one SA, with one SPI and one key, in both directions: what tells their packets
//! apart is the Sender ID. So the selectors of such a tunnel have another meaning, too: `local` is where
//! packets come from and `remote` where they go to, whichever member sends them.

use super::checks::Facts;
use super::model::{Configuration, Remote, Selectors, Tunnel, UnprotectedPort};
use super::tunnel::SaDraft;
use super::value::{self, Parsed};
use super::vpe::{Carried, MAX_WINDOWS};
use super::walk::{Located, Problem, Section, Walker};
use super::workers::MAX_WORKERS;
use std::net::IpAddr;
use std::sync::Arc;
use testudo_ipsec::{AddressRange, Directions, VpeRules};
use toml::de::DeValue;

/// The keys that only tunnels to a group have.
const KEYS: [&str; 4] = ["sender_id", "receive_only", "sa", SENDERS];
/// What only those have something to hide with who send.
const KEYS_OF_SENDERS: [&str; 3] =
    ["dummy_packets_per_second", "clocked_packets_per_second", "rehash_seconds"];
/// How many members of a group send.
const SENDERS: &str = "senders";

/// The address of a host or, where packets are VPE, of a multicast group: only VPE has many senders under one
/// key.
pub(super) fn host_or_group(value: &DeValue<'_>, carried: Option<Carried>) -> Parsed<IpAddr> {
    let group = value.as_str().and_then(|text| text.parse().ok()).filter(IpAddr::is_multicast);
    match (group, carried) {
        (Some(group), Some(_)) => Ok(group),
        (Some(_), None) => value::host_address(value)
            .map_err(|problem| problem.help("for a multicast group add `encapsulation = \"vpe\"`")),
        (None, _) => value::host_address(value),
    }
}

/// Whether the peer is a group.
pub(super) fn is_group(remote: Option<Remote>) -> bool {
    matches!(remote, Some(Remote::Address(address)) if address.is_multicast())
}

/// Our Sender ID in a group; 0 if we only receive, and with a peer that is one host.
pub(super) fn read_sender(
    section: &mut Section<'_>,
    walker: &mut Walker<'_>,
    remote: Option<Remote>,
    facts: &mut Facts,
) -> u16 {
    // One for each tunnel, as names are.
    facts.senders.push(section.located(walker, SENDERS, value::number_u16(1, u16::MAX)));
    if !is_group(remote) {
        for key in KEYS {
            let problem = Problem::expected(format!("`{key}` only in a group"));
            let help = "a group has a multicast address as `remote`, such as \"239.1.2.3\"";
            section.refuse(walker, key, problem.help(help));
        }
        return 0;
    }
    for (key, help) in [
        ("outbound", "write `sa = { spi = 0x1001, key_file = \"group.key\" }`, the same at all members"),
        ("inbound", "write `sa = { spi = 0x1001, key_file = \"group.key\" }`, the same at all members"),
        ("mtu_probe", "no member of a group answers probes: set `mtu` in [port.unprotected]"),
    ] {
        let problem = Problem::expected(format!("no `{key}` in a group, whose members have one SA"));
        section.refuse(walker, key, problem.help(help));
    }
    let receives_only = section.or_default(walker, "receive_only", false, value::boolean);
    if receives_only {
        let problem = Problem::expected("no `sender_id` beside `receive_only = true`");
        section.refuse(walker, "sender_id", problem.help("who sends nothing needs none: leave it out"));
        for key in KEYS_OF_SENDERS {
            let problem = Problem::expected(format!("no `{key}` beside `receive_only = true`"));
            section.refuse(walker, key, problem.help("who sends nothing has nothing to hide: leave it out"));
        }
        return 0;
    }
    let sender = section.required(walker, "sender_id", "1", value::number_u16(1, u16::MAX));
    sender.map_or(0, |sender| sender.value)
}

/// The one SA as that of both directions.
pub(super) fn both_ways(sa: SaDraft) -> (SaDraft, SaDraft) {
    (sa.clone(), sa)
}

/// The entries of the SPD that selectors of a group stand for: what we send, and what others do.
pub(super) fn entries(
    selectors: &Selectors,
    sends: bool,
) -> impl Iterator<Item = (Selectors, Directions)> + use<> {
    let sent = sends.then(|| (Arc::clone(selectors), Directions::Outbound));
    let received: Selectors = selectors.iter().map(|selector| selector.mirrored()).collect();
    sent.into_iter().chain([(received, Directions::Inbound)])
}

/// Refuses selectors that are not about groups: what is sent to one host is for one tunnel.
pub(super) fn check_selectors(walker: &mut Walker<'_>, entry: &Located<Selectors>) {
    let is_of_groups = |range: &AddressRange| {
        range.ends().is_some_and(|(first, last)| first.is_multicast() && last.is_multicast())
    };
    if entry.value.iter().any(|selector| !is_of_groups(&selector.remote)) {
        let problem = Problem::expected("multicast addresses as `remote`, in a tunnel to a group");
        let help = "in a group `local` is where packets come from, of all members, and `remote` the groups that they go \
                    to: `{ local = \"10.0.0.0/8\", remote = \"239.0.0.0/8\" }`";
        walker.report(&entry.span, entry.key.clone(), problem.help(help));
    }
}

/// The windows of one sender that is configured like this gateway, at so many workers.
fn windows_of_one(rules: &VpeRules, workers: usize) -> u64 {
    u64::from(rules.windows()).saturating_mul(u64::try_from(workers).unwrap_or(u64::MAX))
}

/// The windows of all senders of a group, of which each has some for every worker: all are in one SA.
pub(super) fn check_senders(walker: &mut Walker<'_>, workers: usize, tunnels: &[Tunnel], facts: &Facts) {
    for ((tunnel, name), senders) in tunnels.iter().zip(&facts.names).zip(&facts.senders) {
        let (Some(_), Some(name), Some(senders)) = (tunnel.group(), name, senders) else { continue };
        let (rules, count) = (tunnel.rules.of_vpe(), senders.value);
        let (has, of_one) = (u64::from(rules.windows_max), windows_of_one(&rules, workers));
        let wanted = of_one.saturating_mul(count.into());
        // Too few for one sender is told without this.
        if has >= wanted || has < of_one {
            continue;
        }
        let (key, problem) = if wanted > u64::from(MAX_WINDOWS) {
            let expected = "at most 65,536 windows, of slots, classes, workers and senders together";
            let help =
                format!("{count} senders would have {wanted}: have fewer senders, slots, classes or workers");
            (SENDERS, Problem::expected(expected).help(help))
        } else {
            let help = format!(
                "{count} senders that are configured like this gateway send in {wanted} windows, slots times \
                 classes times workers times senders: raise it, or what is beyond is dropped (vpe_windows)"
            );
            let problem = Problem::expected(format!("{wanted} or more, with {count} senders"));
            ("windows_max", problem.found(has.to_string()).help(help))
        };
        walker.report(&senders.span, format!("tunnel[{}].{key}", name.value), problem);
    }
}

impl Configuration {
    /// For each tunnel to a group, how many senders its windows are enough for: a line each, for `testudo
    /// check`.
    #[must_use]
    pub fn group_notes(&self) -> Vec<String> {
        let workers = self.gateway.workers.most(self.gateway.workers_max, MAX_WORKERS);
        let groups = self.tunnels.iter().filter(|tunnel| tunnel.group().is_some());
        let note = |tunnel: &Tunnel| {
            let rules = tunnel.rules.of_vpe();
            let (most, of_one) = (rules.windows_max, windows_of_one(&rules, workers));
            let senders = u64::from(most).checked_div(of_one).unwrap_or(0);
            format!(
                "tunnel {}: windows_max = {most} is enough for {senders} senders with {of_one} windows each",
                tunnel.name
            )
        };
        groups.map(note).collect()
    }
}

/// Groups are joined by the kernel, on its own sockets.
pub(super) fn check_port(
    walker: &mut Walker<'_>,
    port: &Located<UnprotectedPort>,
    (tunnels, is_vpe_negotiated): (&[Tunnel], bool),
    facts: &Facts,
) {
    let first = tunnels.iter().zip(&facts.names).find(|(tunnel, _)| tunnel.group().is_some());
    if let Some((_, Some(name))) = first.filter(|_| is_vpe_negotiated) {
        let problem = Problem::expected("no tunnel to a group beside an [[interface]] of VPE");
        let help = "its sockets, which take VPE at any address, do not join groups: use two gateways";
        walker.report(&name.span, format!("tunnel[{}].remote", name.value), problem.help(help));
    }
    if let Some((_, Some(name))) = first.filter(|_| !port.value.kind.is_host()) {
        let problem = Problem::expected("kind = \"socket\" in [port.unprotected], with a tunnel to a group");
        let help = "ports of other kinds do not join groups";
        walker.report(&name.span, format!("tunnel[{}].remote", name.value), problem.help(help));
    }
}
