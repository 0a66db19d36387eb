//! Tunnels of flows that end, of a running worker: many at once, in the middle of other changes, and one by
//! one in each way in which they can.

use super::*;
use crate::MemoryStore;
use crate::config::Loaded;
use crate::service::installed::Numbers;
use crate::service::policies;
use crate::service::populated::tests::populated;
use crate::service::report;
use crate::service::sa_control::tests::{Gateway, SUITE, loaded_with, material};
use crate::service::sas::RunningSa;
use crate::service::saver::Saver;
use serde_json::{Value, json};
use std::net::Ipv4Addr;
use testudo_gateway::{Notice, OutboundInstall, SaChanged, UseFrom};
use testudo_ipsec::{
    DEFAULT_PEER_WINDOW, Event, EventKind, Lease, NumberSource, OutboundParameters, SaParameters, Spent,
};

/// Rounds of the worker that a packet may take: a test that needs more has failed.
const ROUNDS: usize = 100_000;
const HOSTS: &str = "[[policy]]\nname = \"hosts\"\naction = \"protect\"\ntunnel = \"a\"\nlocal = \"10.1.0.0/16\"\n\
                     remote = \"10.9.0.0/16\"\npopulate_from_packet = \"remote\"\n";
/// SPIs of a flow's SAs: from the peer, and towards it.
const INBOUND: u32 = 0x1_0000;
const OUTBOUND: u32 = 0x2_0000;

fn gateway_with(policies: &str, more: &str) -> Gateway {
    Gateway::running(Arc::new(MemoryStore::new()), &loaded_with(policies, more))
}

fn gateway() -> Gateway {
    gateway_with(HOSTS, "")
}

fn host(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from_be_bytes([10, 9, 0, 0]) + number)
}

/// A key that no other number has, in hex.
fn key(number: u32) -> String {
    format!("{number:08x}").repeat(2 * SUITE.keying_material_bytes() / 8)
}

/// Asks for SAs for a flow, under keys of two numbers; `more` says the rest.
fn add(gateway: &Gateway, flow: &Value, number: u32, more: &Value) -> Result<Value, String> {
    let mut request = json!({
        "verb": "sa-add", "tunnel": "a", "for": flow, "ephemeral": true,
        "inbound": INBOUND + number, "inbound_key": key(0x1000_0000 + number),
        "outbound": OUTBOUND + number, "outbound_key": key(0x2000_0000 + number),
    });
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    gateway.ask(request)
}

/// The tunnel of a host, made now.
fn begin(gateway: &Gateway, number: u32, more: &Value) -> String {
    let answer = add(gateway, &json!({ "remote": host(number) }), number, more).unwrap();
    answer["tunnel"].as_str().unwrap().to_owned()
}

fn change(gateway: &Gateway, request: &Value) -> Result<usize, String> {
    let made = policies::make(&gateway.shared, &gateway.commander, request, true)?;
    made.routes.unwrap();
    Ok(made.ends)
}

fn delete_hosts() -> Value {
    json!({ "verb": "policy-delete", "policy": "hosts" })
}

/// Puts a configuration in force, as a reload does.
fn reload(gateway: &Gateway, loaded: &Loaded) -> Result<(), String> {
    let mut state = gateway.sas().lock();
    let old = gateway.shared.installed();
    state.check(&old, loaded)?;
    let (update, mut next, _) = old.plan(loaded, &Numbers::KnownAnswers).unwrap();
    let gone: Vec<_> = update.remove.iter().filter_map(|index| old.populated.at(*index)).collect();
    let errors = next.note(gateway.commander.update(update).unwrap());
    assert!(errors.is_empty(), "{errors:?}");
    state.turn_over(&old, &next, &gone);
    gateway.shared.replace_installed(next);
    Ok(())
}

/// One turn: how many tunnels and SAs it removed, with how many commands, and whether there is more.
fn part(gateway: &Gateway) -> (usize, u64, bool) {
    let installed = gateway.shared.installed();
    let (before, sent) = (installed.populated.len(), gateway.commander.sent());
    let more = gateway.sas().end_part(&mut gateway.sas().lock(), &installed);
    (before - installed.populated.len(), gateway.commander.sent() - sent, more)
}

fn status(gateway: &Gateway) -> [Value; 2] {
    let status = report::status(&gateway.shared.facts, &gateway.shared.installed());
    ["tunnels", "ending"].map(|key| status["populated"][key].clone())
}

/// Rows of `sa list`.
fn listed(gateway: &Gateway) -> usize {
    let shared = &gateway.shared;
    let engines = report::EnginesInService::of(&shared.facts);
    let now = testudo_gateway::Clock::now(&shared.facts.clock);
    let rows = report::security_associations(&shared.installed(), &shared.peers(), &engines, now);
    rows.as_array().unwrap().len()
}

/// Sends a packet to a host; returns the SPI under which it leaves, or `None` if it is dropped.
fn send(gateway: &Gateway, host: Ipv4Addr) -> Option<u32> {
    let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 1, 0, 1];
    packet.extend(host.octets());
    packet.extend([0, 7, 0, 7, 0, 8, 0, 0]);
    let sum: u32 = packet[..20].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    let sum = u16::try_from((sum & 0xFFFF) + (sum >> 16)).unwrap();
    packet[10..12].copy_from_slice(&(!sum).to_be_bytes());
    let dropped = || gateway.shared.facts.counters.drops().iter().map(|(_, count)| count).sum::<u64>();
    let before = dropped();
    assert!(gateway.protected.input.push(&packet));
    for _ in 0..ROUNDS {
        gateway.commander.save_windows(Vec::new()).unwrap();
        if let Some(sealed) = gateway.unprotected.output.pop() {
            return Some(u32::from_be_bytes(*sealed[20..].first_chunk().unwrap()));
        }
        if dropped() > before {
            return None;
        }
    }
    panic!("neither left nor dropped");
}

/// The next event of a kind.
fn told(gateway: &Gateway, is_meant: impl Fn(&EventKind) -> bool) -> Event {
    for _ in 0..ROUNDS {
        gateway.commander.save_windows(Vec::new()).unwrap();
        for notice in gateway.notices.try_iter() {
            if let Notice::Tunnel(event) = notice
                && is_meant(&event.kind)
            {
                return event;
            }
        }
    }
    panic!("it is not told");
}

/// The policy first, then 64 flows a turn, each with one command for policies and one for tunnels: all else
/// that is served waits for one part.
#[test]
fn the_flows_of_a_policy_that_is_deleted_end_in_parts_and_none_begins() {
    let gateway = gateway();
    (0..150).for_each(|number| drop(begin(&gateway, number, &json!({}))));
    assert_eq!(send(&gateway, host(149)), Some(OUTBOUND + 149));
    assert_eq!((status(&gateway), listed(&gateway)), ([json!(150), json!(0)], 4 + 2 * 150));
    let sent = gateway.commander.sent();
    assert_eq!(change(&gateway, &delete_hosts()), Ok(150), "the client is told");
    assert!(gateway.commander.sent() - sent <= 3, "the policy, and a first part");
    assert_eq!((status(&gateway), listed(&gateway)), ([json!(86), json!(86)], 4 + 2 * 86));
    // In the middle: what has not ended carries packets, nothing begins, and nothing can be added.
    assert_eq!((send(&gateway, host(0)), send(&gateway, host(149))), (None, Some(OUTBOUND + 149)));
    let refused = add(&gateway, &json!({ "remote": host(200) }), 200, &json!({})).unwrap_err();
    assert!(refused.contains("no policy populates SAs after tunnel a"), "{refused}");
    let more = json!({ "verb": "sa-add", "tunnel": "a/150", "outbound": 0x3_0000, "outbound_key": key(7), "ephemeral": true });
    assert!(gateway.ask(more).unwrap_err().contains("tunnel a/150 ends"));
    assert!(change(&gateway, &delete_hosts()).unwrap_err().contains("there is no policy"));
    // A gateway that ends now saves what it would without them: their keys are ephemeral.
    assert_eq!(Saver::new().last(&gateway.shared.installed()).sas().len(), 2);
    assert_eq!(part(&gateway), (64, 2, true));
    assert_eq!(part(&gateway), (22, 2, false));
    assert_eq!(part(&gateway), (0, 0, false));
    assert_eq!((status(&gateway), listed(&gateway)), ([json!(0), json!(0)], 4));
    assert_eq!(send(&gateway, host(149)), None);
    assert_eq!(
        gateway.sas().end_overlaps(&gateway.shared, std::time::Instant::now()).len(),
        300,
        "their keys"
    );
}

/// A policy that is replaced keeps its number, and another of the same words is another policy.
#[test]
fn flows_begin_anew_under_a_new_policy_while_those_of_the_old_one_end() {
    let gateway = gateway();
    (0..130).for_each(|number| drop(begin(&gateway, number, &json!({}))));
    let words = json!({
        "action": "protect", "tunnel": "a", "local": "10.1.0.0/16", "remote": "10.9.0.0/16",
        "populate_from_packet": "remote",
    });
    let replace = json!({ "verb": "policy-replace", "policy": "hosts", "words": words });
    assert_eq!(change(&gateway, &replace), Ok(130));
    assert_eq!(status(&gateway), [json!(66), json!(66)]);
    // The last one still has its old tunnel, whose SPIs are taken, and gets a new one.
    let flow = json!({ "remote": host(129) });
    assert!(add(&gateway, &flow, 129, &json!({})).unwrap_err().contains("is reserved or in use"));
    let name = add(&gateway, &flow, 1129, &json!({})).unwrap()["tunnel"].clone();
    assert_eq!((name, status(&gateway)), (json!("a/132"), [json!(67), json!(66)]));
    while part(&gateway).2 {}
    assert_eq!(status(&gateway), [json!(1), json!(0)]);
    assert_eq!((send(&gateway, host(129)), send(&gateway, host(128))), (Some(OUTBOUND + 1129), None));
    let rows = report::policies(&gateway.shared.installed());
    assert_eq!(rows[0]["populated"], 1);
}

/// Their policies are gone with the SPD that a reload replaces, whose names mean others now; those of flows
/// that go on are untouched.
#[test]
fn a_reload_while_flows_end_ends_no_other_and_adds_its_own() {
    const OTHERS: &str = "[[policy]]\nname = \"others\"\naction = \"protect\"\ntunnel = \"b\"\nlocal = \"10.1.0.0/16\"\n\
                          remote = \"10.8.0.0/16\"\npopulate_from_packet = \"remote\"\n";
    let gateway = gateway_with(&format!("{HOSTS}{OTHERS}"), "");
    (0..100).for_each(|number| drop(begin(&gateway, number, &json!({}))));
    for number in 100..200 {
        let to_b = json!({ "tunnel": "b" });
        let flow = json!({ "remote": Ipv4Addr::from_bits(u32::from_be_bytes([10, 8, 0, 0]) + number) });
        add(&gateway, &flow, number, &to_b).unwrap();
    }
    assert_eq!(change(&gateway, &delete_hosts()), Ok(100));
    assert_eq!(status(&gateway), [json!(136), json!(36)]);
    let mail = "[[policy]]\naction = \"discard\"\nprotocol = \"tcp\"\nremote_ports = 25\n";
    reload(&gateway, &loaded_with(&format!("{mail}{OTHERS}{HOSTS}"), "")).unwrap();
    assert_eq!(status(&gateway), [json!(136), json!(36)], "the file's policy of this name has no flows");
    // No policy is left to remove.
    assert_eq!(part(&gateway), (36, 1, false));
    assert_eq!(send(&gateway, host(99)), None);
    assert_eq!(send(&gateway, [10, 8, 0, 199].into()), Some(OUTBOUND + 199));
    // The next reload ends these, after it.
    reload(&gateway, &loaded_with(mail, "")).unwrap();
    assert_eq!(status(&gateway), [json!(100), json!(100)]);
    assert_eq!(send(&gateway, [10, 8, 0, 199].into()), None, "no policy leads to it");
    assert_eq!((part(&gateway), part(&gateway)), ((64, 1, true), (36, 1, false)));
    assert_eq!(listed(&gateway), 4);
}

/// The worker gives up no more of its index with one command than one flow may have: ranges count by their
/// prefixes, here 46.
#[test]
fn what_ends_at_once_is_bounded_by_the_prefixes_of_its_ranges() {
    let range = HOSTS.replace("\"10.9.0.0/16\"", "\"11.0.0.1-11.255.255.254\"");
    let gateway = gateway_with(
        &range.replace("populate_from_packet = \"remote\"", "populate_from_packet = \"local\""),
        "",
    );
    for number in 0..12 {
        let local = Ipv4Addr::new(10, 1, 0, u8::try_from(number).unwrap());
        add(&gateway, &json!({ "local": local }), number, &json!({})).unwrap();
    }
    let status_of =
        || report::status(&gateway.shared.facts, &gateway.shared.installed())["populated"].clone();
    assert_eq!((&status_of()["pieces"], &status_of()["pieces_limit"]), (&json!(12 * 46), &json!(262_144)));
    assert_eq!(change(&gateway, &delete_hosts()), Ok(12));
    assert_eq!(status(&gateway), [json!(7), json!(7)], "256 are those of five");
    assert_eq!((part(&gateway), part(&gateway)), ((5, 2, true), (2, 2, false)));
    assert_eq!(status_of()["pieces"], 0);
}

#[test]
fn what_ends_at_once_is_bounded_by_its_selectors() {
    let networks: Vec<String> = (0..100).map(|number| format!("\"10.9.{number}.0/24\"")).collect();
    let hosts = HOSTS.replace("\"10.9.0.0/16\"", &format!("[{}]", networks.join(", ")));
    let gateway = gateway_with(
        &hosts.replace("populate_from_packet = \"remote\"", "populate_from_packet = \"local\""),
        "",
    );
    for number in 0..6 {
        let local = Ipv4Addr::new(10, 1, 0, u8::try_from(number).unwrap());
        add(&gateway, &json!({ "local": local }), number, &json!({})).unwrap();
    }
    assert_eq!(change(&gateway, &delete_hosts()), Ok(6));
    assert_eq!(status(&gateway), [json!(4), json!(4)], "256 selectors are those of two");
    assert_eq!((part(&gateway), part(&gateway)), ((2, 2, true), (2, 2, false)));
}

/// RFC 4301 4.4.2.1: what has reached its lifetime is deleted, also where nobody was told.
#[test]
fn after_lost_events_what_has_stopped_is_found_and_ends_in_parts() {
    let gateway = gateway();
    let limited = json!({ "lifetime": { "hard_packets": 1 } });
    (0..70).for_each(|number| drop(begin(&gateway, number, &limited)));
    begin(&gateway, 70, &json!({}));
    // One of them has a second SA each way, which carries packets once the first has stopped.
    let second = json!({
        "verb": "sa-add", "tunnel": "a/1", "ephemeral": true, "outbound": 0x3_0000, "outbound_key": key(1),
    });
    gateway.ask(second).unwrap();
    for number in 0..70 {
        assert_eq!(send(&gateway, host(number)), Some(OUTBOUND + number));
        send(&gateway, host(number));
    }
    assert_eq!(status(&gateway), [json!(71), json!(0)]);
    assert_eq!(part(&gateway), (0, 0, false), "nothing was told");
    gateway.sas().any_may_have_stopped();
    assert_eq!(part(&gateway), (63, 2, true), "63 tunnels, and an SA of one that goes on");
    assert_eq!(part(&gateway), (6, 2, false));
    assert_eq!(status(&gateway), [json!(2), json!(0)]);
    let first = gateway.shared.installed().populated.named("a/1").unwrap();
    let spis: Vec<u32> = first.running.sas.lock().iter().map(|sa| sa.spi).collect();
    assert_eq!(spis, [INBOUND, 0x3_0000]);
}

/// As many as there may be are looked at in parts, too.
#[test]
fn one_part_looks_at_a_bounded_number_of_tunnels() {
    let gateway = gateway();
    let count = u32::try_from(PART_LOOKS).unwrap() + 10;
    (0..count).for_each(|number| drop(begin(&gateway, number, &json!({}))));
    gateway.sas().any_may_have_stopped();
    assert_eq!(part(&gateway), (0, 0, true));
    assert_eq!(gateway.sas().lock().stopped.rest, Some(u64::try_from(PART_LOOKS).unwrap() + 1));
    // More are lost meanwhile: first the rest, then all of them again.
    gateway.sas().any_may_have_stopped();
    assert_eq!(part(&gateway), (0, 0, true));
    assert_eq!(gateway.sas().lock().stopped.rest, Some(u64::from(count) + 1));
    assert_eq!(part(&gateway), (0, 0, true));
    assert_eq!(gateway.sas().lock().stopped.rest, Some(0));
    assert_eq!([0; 3].map(|_| part(&gateway)), [(0, 0, true), (0, 0, true), (0, 0, false)]);
}

#[test]
fn the_tunnel_of_a_flow_ends_with_an_overlap_that_takes_its_last_sa_of_a_direction() {
    let gateway = gateway();
    let name = begin(&gateway, 1, &json!({}));
    let replace = json!({
        "verb": "sa-replace", "tunnel": name, "ephemeral": true, "overlap_seconds": 30,
        "inbound": 0x3_0000, "inbound_key": key(1), "outbound": 0x4_0000, "outbound_key": key(2),
    });
    gateway.ask(replace).unwrap();
    // The old one is left, so that nothing is lost yet.
    gateway.ask(json!({ "verb": "sa-delete", "tunnel": name, "spi": 0x3_0000 })).unwrap();
    gateway.end_overlaps(0);
    assert_eq!(status(&gateway), [json!(1), json!(0)]);
    assert_eq!(send(&gateway, host(1)), Some(0x4_0000));
    gateway.end_overlaps(60);
    assert_eq!(status(&gateway), [json!(0), json!(0)]);
    assert_eq!((send(&gateway, host(1)), listed(&gateway)), (None, 4));
    told(
        &gateway,
        |kind| matches!(kind, EventKind::Acquire(acquire) if acquire.values.remote == Some(host(1).into())),
    );
}

/// RFC 4303 3.3.3: there are no numbers after the last one.
#[test]
fn the_tunnel_of_a_flow_ends_with_its_last_sequence_number() {
    let gateway = gateway_with(HOSTS, "esn = false");
    let name = begin(&gateway, 1, &json!({}));
    let running = gateway.shared.installed().populated.named(&name).unwrap().running.clone();
    // Nobody waits for 4 billion packets: the worker gets an SA that begins with its last number.
    let old = running.sas.outbound().unwrap();
    let sa = SaParameters {
        spi: 0x3_0000,
        suite: SUITE,
        esn: false,
        lifetime: old.lifetime(),
        spent: Spent::default(),
    };
    let numbers = NumberSource::Leased { first: u32::MAX.into(), lease: Arc::new(Lease::until(u64::MAX)) };
    let parameters = OutboundParameters { sa, numbers, iv_mask: 0, worker: None };
    let install = OutboundInstall { parameters, key: material(77).into(), peer_window: DEFAULT_PEER_WINDOW };
    let add = SaChange::AddOutbound(running.index, Box::new(install), UseFrom::Now);
    let Ok(SaChanged::Added(added)) = gateway.sas().change(vec![add]).unwrap().remove(0) else { panic!() };
    running.sas.lock().push(RunningSa { spi: 0x3_0000, added: Some(added), ..old.clone() });
    gateway.ask(json!({ "verb": "sa-delete", "tunnel": name, "spi": old.spi })).unwrap();
    assert_eq!((send(&gateway, host(1)), send(&gateway, host(1))), (Some(0x3_0000), None));
    let event = told(&gateway, |kind| matches!(kind, EventKind::SequenceExhausted { spi: 0x3_0000 }));
    assert_eq!(event.tunnel, running.index);
    gateway.sas().has_stopped(&gateway.shared.installed(), event.tunnel);
    assert_eq!(part(&gateway), (1, 2, false));
    assert_eq!(status(&gateway), [json!(0), json!(0)]);
}

/// An SA of one packet stops before who makes its tunnel has listed it: the event waits for the list.
#[test]
fn an_event_that_overtakes_the_list_of_tunnels_is_not_lost() {
    let gateway = gateway();
    let installed = gateway.shared.installed();
    let reserved = installed.populated.reserve(0).unwrap();
    let sas = gateway.sas();
    let state = sas.lock();
    let barrier = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        let event = scope.spawn(|| {
            barrier.wait();
            sas.has_stopped(&installed, reserved.index);
        });
        barrier.wait();
        // Time enough to look at a list that does not have the tunnel.
        (0..1000).for_each(|_| drop(gateway.commander.save_windows(Vec::new())));
        assert!(!event.is_finished(), "who makes a tunnel is not waited for");
        installed.populated.insert(populated(&reserved, installed.populated.name_policy(), 1));
        drop(state);
    });
    let stopped: Vec<u64> = gateway.sas().lock().stopped.tunnels.iter().copied().collect();
    assert_eq!(stopped, [reserved.number]);
}

/// An index is used again: what was known of the peer of the tunnel that had it before is forgotten.
#[test]
fn a_flow_that_has_the_index_of_one_that_ended_has_not_its_peer() {
    let (gateway, mut events) = (gateway(), EventLog::default());
    let index_of = |name: &str| gateway.shared.installed().populated.named(name).unwrap().running.index;
    let [first, second] = [1, 2].map(|number| begin(&gateway, number, &json!({})));
    let [old, other] = [&first, &second].map(|name| index_of(name));
    let at = |port| std::net::SocketAddr::from(([192, 0, 2, 9], port));
    let moves_to = |events: &mut EventLog, index, port| {
        gateway.shared.peers().insert(index, at(port));
        let moved = EventKind::PeerMoved { spi: INBOUND, before: None, address: at(port).ip(), port };
        let tunnel = gateway.shared.installed().tunnels[0].tunnel.clone();
        let now = std::time::Instant::now();
        events.note(Event { tunnel: index, kind: moved }, || Some(&tunnel), now).is_some()
    };
    assert!(moves_to(&mut events, old, 1) && moves_to(&mut events, other, 2));
    gateway.ask(json!({ "verb": "sa-delete", "tunnel": first, "spi": INBOUND + 1, "force": true })).unwrap();
    forget_peers(&gateway.shared, &mut events);
    assert_eq!(index_of(&begin(&gateway, 3, &json!({}))), old);
    assert_eq!(*gateway.shared.peers(), [(other, at(2))].into());
    // The first address of a peer is told at once, a move is not.
    assert!(moves_to(&mut events, old, 3) && !moves_to(&mut events, other, 3));
}

/// RFC 4301 4.4.1: a policy on packets that leave, alone. The SAs that it populates carry both directions.
#[test]
fn a_policy_on_packets_that_leave_populates_sas_and_takes_them_along() {
    let out = HOSTS.replace("action", "direction = \"out\"\naction");
    let gateway = gateway_with(&out, "");
    assert_eq!(send(&gateway, host(1)), None);
    let event = told(&gateway, |kind| matches!(kind, EventKind::Acquire(_)));
    let EventKind::Acquire(acquire) = event.kind else { panic!() };
    let installed = gateway.shared.installed();
    let number = installed.book.number_of(acquire.policy).unwrap();
    assert_eq!(installed.policy(number).unwrap().label(), "hosts");
    assert_eq!(acquire.values.remote, Some(host(1).into()));
    drop(installed);
    let name = begin(&gateway, 1, &json!({}));
    assert_eq!((send(&gateway, host(1)), send(&gateway, host(2))), (Some(OUTBOUND + 1), None));
    gateway.ask(json!({ "verb": "sa-delete", "tunnel": name, "spi": INBOUND + 1, "force": true })).unwrap();
    assert_eq!((send(&gateway, host(1)), status(&gateway)), (None, [json!(0), json!(0)]));
    begin(&gateway, 3, &json!({}));
    assert_eq!(change(&gateway, &delete_hosts()), Ok(1));
    assert_eq!(status(&gateway), [json!(0), json!(0)], "a few end before the client is answered");
}

/// A tunnel of the file may have the inbound SPI of a flow that its reload ends, and never the key.
#[test]
fn a_reload_may_give_a_tunnel_the_spi_of_a_flow_that_ends_with_it() {
    let gateway = gateway();
    (0..3).for_each(|number| drop(begin(&gateway, number, &json!({}))));
    let changed = |policies: &str| {
        let mut changed = loaded_with(policies, "");
        changed.configuration.tunnels[1].inbound.spi = INBOUND + 1;
        changed.keys[1].inbound = material(99);
        changed
    };
    let refused = reload(&gateway, &changed(HOSTS)).unwrap_err();
    assert!(
        refused.contains("its inbound SPI 0x10001 belongs to an SA that was added to tunnel a/2"),
        "{refused}"
    );
    let mut with_key = changed("");
    let bytes: Vec<u8> = (0..SUITE.keying_material_bytes()).map(|at| [0x10, 0, 0, 1][at % 4]).collect();
    with_key.keys[1].inbound =
        testudo_crypto::KeyMaterial::new(SUITE, zeroize::Zeroizing::new(bytes)).unwrap();
    let refused = reload(&gateway, &with_key).unwrap_err();
    assert!(
        refused.contains("tunnel b: a key of its SAs belongs to an SA that was added to tunnel a/2"),
        "{refused}"
    );
    reload(&gateway, &changed("")).unwrap();
    // It has gone at once, and the others follow.
    assert_eq!(status(&gateway), [json!(2), json!(2)]);
    assert_eq!(part(&gateway), (2, 1, false));
    let installed = gateway.shared.installed();
    let spis: Vec<u32> = installed.find("b").unwrap().sas.lock().iter().map(|sa| sa.spi).collect();
    assert_eq!(spis, [0x2001, INBOUND + 1]);
    // The SPI is the tunnel's now, and the index knows whose.
    drop(installed);
    let taken = json!({ "verb": "sa-add", "tunnel": "a", "inbound": INBOUND + 1, "inbound_key": key(1), "ephemeral": true });
    assert_eq!(gateway.ask(taken).unwrap_err(), "tunnel a: SPI 0x10001 is reserved or in use");
    gateway.ask(json!({ "verb": "sa-delete", "tunnel": "b", "spi": INBOUND + 1, "force": true })).unwrap();
    let free = json!({ "verb": "sa-add", "tunnel": "a", "inbound": INBOUND + 1, "inbound_key": key(2), "ephemeral": true });
    gateway.ask(free).unwrap();
}

/// What a packet asked for before a reload waits in the queue: in the SPD of the reload its policy's place is
/// another's.
#[test]
fn what_a_packet_asked_for_before_a_reload_is_no_other_policys() {
    let gateway = gateway();
    assert_eq!(send(&gateway, host(1)), None);
    let event = told(&gateway, |kind| matches!(kind, EventKind::Acquire(_)));
    let EventKind::Acquire(acquire) = event.kind else { panic!() };
    assert!(gateway.shared.installed().book.number_of(acquire.policy).is_some());
    let others = HOSTS.replace("hosts", "others").replace("10.9.", "10.8.");
    reload(&gateway, &loaded_with(&format!("{others}{HOSTS}"), "")).unwrap();
    assert_eq!(gateway.shared.installed().book.number_of(acquire.policy), None);
}

/// What the configuration before says of flows holds until the next one is in force: they are found by what
/// their policy is, not by its number, which is another then.
#[test]
fn who_answers_from_the_configuration_before_finds_the_same_flows() {
    let gateway = gateway();
    begin(&gateway, 1, &json!({}));
    let before = gateway.shared.installed();
    let mail = "[[policy]]\naction = \"discard\"\nprotocol = \"tcp\"\nremote_ports = 25\n";
    reload(&gateway, &loaded_with(&format!("{mail}{HOSTS}"), "")).unwrap();
    let after = gateway.shared.installed();
    let counts = |installed: &InstalledTunnels| -> Vec<Value> {
        report::policies(installed).as_array().unwrap().iter().map(|row| row["populated"].clone()).collect()
    };
    assert_eq!(counts(&before)[..1], [json!(1)]);
    assert_eq!(counts(&after)[..2], [Value::Null, json!(1)]);
}
