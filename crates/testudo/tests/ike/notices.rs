//! What the gateway tells daemons without being asked, and what they do then; and what they ask to learn
//! whether the peer lives.

use crate::connection::Connection;
use crate::host::Host;
use crate::negotiation::{ends, initiate, is_empty, is_in_force};
use crate::network::{LINK, Network};
use crate::rekey::until_renewed;
use crate::strongswan::only_child;
use crate::support::{Outcome, ensure, wait};
use std::net::IpAddr;
use testudo_control::service::xfrm::{Direction, XfrmSa};
use testudo_judge::harness::{Suite, TestResult};
use testudo_wire::protocol;
use testudo_wire::xfrm::attribute::Attribute;
use testudo_wire::xfrm::message::{Body, Message};
use testudo_wire::xfrm::notification::{Acquire, Mapping};
use testudo_wire::xfrm::selector::Selector;
use testudo_wire::xfrm::{family, group, kind};

type Tests<'a> = Suite<'a, Network>;

pub fn tests(suite: Tests<'_>) -> Tests<'_> {
    suite
        .test("a_packet_that_meets_a_trap_policy_makes_charon_negotiate", acquire)
        .test("an_sa_at_its_soft_limit_is_renewed", soft_limit)
        .test("an_sa_at_its_hard_limit_ends_at_both_ends_and_has_a_successor", hard_limit)
        .test("a_peer_behind_a_nat_that_moves_is_followed", mapping)
        .test("a_host_that_changes_its_address_takes_its_sas_along", mobike)
        .test("sas_with_a_dead_peer_end", dead_peer)
}

/// What the kernel tells of a packet that needs an SA for the host's outbound policy.
pub fn acquire_of(host: &Host, [source, destination]: [&str; 2]) -> Outcome<Message> {
    let now = host.gateway().memory.get();
    let policies = now.policies_of(Direction::Outbound);
    let policy = policies.iter().find(|policy| !policy.templates.is_empty()).ok_or("no outbound policy")?;
    let template = policy.templates.first().ok_or("no template")?;
    let [from, to] = [source, destination].map(|text| text.parse::<IpAddr>());
    let selector = Selector {
        source: from?.into(),
        destination: to?.into(),
        source_prefix: 32,
        destination_prefix: 32,
        protocol: protocol::UDP,
        family: family::IPV4,
        ..Selector::default()
    };
    let acquire = Acquire {
        id: template.id,
        source: template.source,
        selector,
        policy: policy.info,
        integrity_algorithms: u32::MAX,
        ciphers: u32::MAX,
        compression_algorithms: u32::MAX,
        sequence: 1,
    };
    let attributes = [Attribute::Templates(policy.templates.clone())].into();
    Ok(Message { body: Body::Acquire(acquire), attributes })
}

fn acquire(network: &mut Network) -> TestResult {
    let connection = Connection::child("start_action = trap");
    let charons = network.charons(&connection)?;
    wait::until("for a trap policy at A", || {
        Ok((network.a.gateway().memory.get().policies_of(Direction::Outbound).len() == 1).then_some(()))
    })?;
    ensure(network.a.gateway().memory.get().sas.is_empty(), || "an SA without traffic".to_owned())?;
    let message = acquire_of(&network.a, ["10.1.0.1", "10.2.0.1"])?;
    network.a.gateway().tell(group::ACQUIRE, &message);
    let spis = charons[0].until("for a CHILD_SA", only_child)?;
    is_in_force(network, spis, "aes128gcm16")?;
    // Of the same bundle as the trap, so that the packet that waits finds it.
    let reqid = |sa: &testudo_control::service::xfrm::XfrmSa| sa.info.reqid;
    let now = network.a.gateway().memory.get();
    let own = now.policies_of(Direction::Outbound)[0].templates[0].reqid;
    ensure(now.sas.values().all(|sa| reqid(sa) == own && own != 0), || {
        format!("not of {own}: {:?}", now.sas)
    })?;
    drop(now);
    network.all_is_well(&charons)
}

/// A host's inbound SA.
fn inbound_of(host: &Host) -> Outcome<XfrmSa> {
    Ok((*host.gateway().memory.get().sas_of(true).first().ok_or("no SA")?).clone())
}

/// An SA of a host is at a limit.
fn reaches_limit(host: &Host, is_hard: bool) -> Outcome<()> {
    let place = inbound_of(host)?.place;
    let told = host.gateway().server.change(|xfrm| {
        let told: Vec<_> = xfrm.reached_limit(place, is_hard).into_iter().collect();
        (told.len(), told)
    });
    ensure(told == 1, || "no such SA".to_owned())
}

fn soft_limit(network: &mut Network) -> TestResult {
    let charons = network.charons(&Connection::default())?;
    let mut spis = initiate(&charons)?;
    for host in network.hosts() {
        reaches_limit(host, false)?;
        spis = until_renewed(&charons, spis)?;
        is_in_force(network, spis, "aes128gcm16")?;
    }
    ends(network, charons)
}

fn hard_limit(network: &mut Network) -> TestResult {
    let charons = network.charons(&Connection::default())?;
    let spis = initiate(&charons)?;
    reaches_limit(&network.a, true)?;
    // charon wants another one in its place.
    let spis = until_renewed(&charons, spis)?;
    is_in_force(network, spis, "aes128gcm16")?;
    // It asks for what is deleted already, and deletes it, as it does with a kernel.
    let refusals = network.a.gateway().recorder.refusals();
    let is_of = |line: &String, kind: u16| line.starts_with(&format!("type {kind:#x}, errno -3,"));
    let is_expected = |line: &String| is_of(line, kind::DELETE_SA) || is_of(line, kind::GET_SA);
    ensure(refusals.iter().all(is_expected), || refusals.join("\n"))
}

fn mapping(network: &mut Network) -> TestResult {
    let connection = Connection { ike: "encap = yes".to_owned(), ..Connection::default() };
    let charons = network.charons(&connection)?;
    initiate(&charons)?;
    let now = network.b.gateway().memory.get();
    let sa = now.sas_of(true)[0].clone();
    drop(now);
    let elsewhere = IpAddr::from([192, 0, 2, 1]);
    let body = Mapping {
        sa: sa.info.sa_id(),
        reqid: sa.info.reqid,
        old_source: sa.info.source,
        new_source: elsewhere.into(),
        old_port: 4500,
        new_port: 34500,
    };
    network.b.gateway().tell(group::MAPPING, &Body::Mapping(body).into());
    wait::until("for the outbound SA to have another port", || {
        let now = network.b.gateway().memory.get();
        let ports = now
            .sas_of(false)
            .first()
            .and_then(|sa| sa.attributes.encapsulation().map(|udp| (udp.source_port, udp.destination_port)));
        Ok((ports == Some((4500, 34500)) && now.sas.len() == 2).then_some(()))
    })
    .map_err(|error| format!("{error}\n{}", charons[1].log()))?;
    let state = network.b.ip_xfrm(&["state"])?;
    ensure(state.contains("encap type espinudp sport 34500 dport 4500"), || {
        format!("the inbound SA: {state}")
    })?;
    network.all_is_well(&charons)
}

/// RFC 4555: the same SAs between other addresses, with their keys and SPIs.
fn mobike(network: &mut Network) -> TestResult {
    const NEW: &str = "192.0.2.11";
    let mut connection = Connection { ike: "mobike = yes".to_owned(), ..Connection::default() };
    connection.addresses[0] = format!("192.0.2.1, {NEW}");
    // It tries all paths, and takes the first that answers.
    let settings = "plugins { socket-default { use_ipv6 = no } }";
    let charons = network.charons_with(settings, &connection)?;
    network.a.gateway().memory.get().local.push(NEW.parse()?);
    let spis = initiate(&charons)?;
    let old = inbound_of(&network.b)?.key;
    // Otherwise a network's first address takes the others along when it goes.
    network.a.namespace.sysctl(&format!("net.ipv4.conf.{LINK}.promote_secondaries"), "1")?;
    network.a.namespace.address(LINK, &format!("{NEW}/24"))?;
    network.a.namespace.run(&["ip", "address", "delete", "192.0.2.1/24", "dev", LINK])?;
    let result = wait::until("for B's SA to begin at the new address", || {
        let now = network.b.gateway().memory.get();
        let sa =
            now.sas.get(&old).filter(|sa| sa.source == NEW.parse::<IpAddr>().unwrap_or(sa.key.destination));
        Ok((sa.is_some() && now.sas.len() == 2).then_some(()))
    });
    // For the tests to come.
    network.a.namespace.address(LINK, "192.0.2.1/24")?;
    result.map_err(|error| format!("{error}\n{}\n{}", charons[0].log(), charons[1].log()))?;
    is_in_force(network, spis, "aes128gcm16")?;
    for host in network.hosts() {
        let shown = host.ip_xfrm(&["policy"])?;
        ensure(shown.contains(NEW) && !shown.contains("192.0.2.1\n"), || format!("policies: {shown}"))?;
    }
    ends(network, charons)?;
    network.a.namespace.run(&["ip", "address", "delete", &format!("{NEW}/24"), "dev", LINK]).map(drop)?;
    Ok(())
}

/// RFC 7296 2.4. charon asks each policy for its last use first: a peer whose packets come is not asked.
fn dead_peer(network: &mut Network) -> TestResult {
    let ike_of = ["dpd_delay = 1s".to_owned(), String::new()];
    let settings = "retransmit_tries = 1\n retransmit_timeout = 0.3";
    let connection = Connection { ike_of, ..Connection::default() };
    let [a, b] = network.charons_with(settings, &connection)?;
    let charons = [a, b];
    initiate(&charons)?;
    let recorder = &network.a.gateway().recorder;
    let before = recorder.requests_of(kind::GET_POLICY);
    let [a, b] = charons;
    drop(b);
    a.until("for the end of the IKE_SA", |sas| sas.is_empty().then_some(()))?;
    ensure(a.log().contains("sending DPD request"), || a.log())?;
    ensure(recorder.requests_of(kind::GET_POLICY) > before, || "no policy was asked for its use".to_owned())?;
    ensure(is_empty(&network.a)?, || format!("{:?}", network.a.gateway().memory.get()))?;
    network.a.nothing_refused()
}
