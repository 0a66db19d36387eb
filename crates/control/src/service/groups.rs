//! Tunnels to groups as the gateway reports them: who sends, and from where. Their SAs are those of the
//! configuration.

use super::installed::{InstalledTunnels, Running};
use super::negotiated;
use super::sa_request::SaRequest;
use super::sas::RunningSa;
use serde_json::{Value, json};
use testudo_gateway::SaCounts;
use testudo_ipsec::{HeardSender, Moment, SHOWN_SENDERS};

/// The most groups that the status has; `sa list` has all.
const SHOWN_GROUPS: usize = 16;

/// The first groups, each with the first of its senders, and how many groups there are.
pub(super) fn groups(installed: &InstalledTunnels, now: Moment) -> (Vec<Value>, usize) {
    let of_groups = || installed.tunnels.iter().filter(|running| running.tunnel.group().is_some());
    let shown = of_groups().take(SHOWN_GROUPS).map(|running| {
        let sa = running.sas.newest_inbound();
        json!({
            "tunnel": running.tunnel.name,
            "group": running.tunnel.group(),
            "sender_id": running.tunnel.sender(),
            "sends": running.sas.outbound().is_some_and(|sa| !sa.has_stopped()) && running.tunnel.sender().is_some(),
            "senders": sa.map_or(Value::Null, |sa| senders(running, &sa, now)),
        })
    });
    (shown.collect(), of_groups().count())
}

/// The senders that the SA of a group has heard; null of every other SA.
pub(super) fn senders(running: &Running, sa: &RunningSa, now: Moment) -> Value {
    if running.tunnel.group().is_none() || sa.is_outbound() {
        return Value::Null;
    }
    let counts = sa.added.as_ref().and_then(|added| added.counters.senders());
    let row = |HeardSender { sender, address, packets, last_heard }| {
        json!({
            "sender_id": sender,
            "address": address,
            "packets": packets,
            "last_heard_seconds": now.since(last_heard).as_secs(),
        })
    };
    let (count, twice) = counts.as_ref().map_or((0, 0), |counts| (counts.count, counts.doubles));
    let shown: Vec<_> = counts.into_iter().flat_map(|counts| counts.shown).map(row).collect();
    debug_assert!(shown.len() <= SHOWN_SENDERS, "no more are kept");
    json!({ "count": count, "twice": twice, "heard": shown })
}

/// Refuses to change SAs that are not one tunnel's to change: those of a key exchange, and that of a group,
/// which is one for all members and both directions.
///
/// # Errors
/// Why, for the client.
pub(super) fn refuse_change(
    installed: &InstalledTunnels,
    running: &Running,
    request: &SaRequest,
) -> Result<(), String> {
    let name = &running.tunnel.name;
    if installed.negotiated.at(running.index).is_some() {
        return Err(negotiated::not_ours(&format!("tunnel {name}"), installed));
    }
    let is_new = matches!(request, SaRequest::Add { .. } | SaRequest::Replace { .. });
    if is_new && running.tunnel.group().is_some() {
        return Err(format!(
            "tunnel {name} is one of a group, whose members have one SA: change it in the configuration, at all members"
        ));
    }
    Ok(())
}

/// What an SA of a group is, for a sentence about it; empty for every other.
pub(super) fn in_words(running: &Running, sa: &RunningSa) -> String {
    let Some(group) = running.tunnel.group() else { return String::new() };
    match (sa.is_outbound(), running.tunnel.sender()) {
        (true, Some(sender)) if sa.has_stopped() => {
            format!(" to group {group} as sender {sender}, which has stopped (see `testudo sa list`)")
        }
        (true, Some(sender)) => format!(" to group {group} as sender {sender}"),
        _ => format!(" of group {group}"),
    }
}

/// Senders that an SA has heard.
pub(super) fn count(counts: &SaCounts) -> u64 {
    counts.senders().map_or(0, |senders| senders.count)
}

/// Packets that gave a Sender ID away as that of two devices.
pub(super) fn doubles(counts: &SaCounts) -> u64 {
    counts.senders().map_or(0, |senders| senders.doubles)
}
