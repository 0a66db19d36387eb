//! Successors of SAs: policies stay, and no SA goes before its successor is in force.

use crate::connection::Connection;
use crate::negotiation::{ends, initiate, is_in_force};
use crate::network::Network;
use crate::strongswan::only_child;
use crate::support::ensure;
use testudo_judge::harness::{Suite, TestResult};
use testudo_wire::netlink::messages;
use testudo_wire::xfrm::kind;

pub use crate::pair::until_renewed;

type Tests<'a> = Suite<'a, Network>;

pub fn tests(suite: Tests<'_>) -> Tests<'_> {
    suite
        .test("a_child_sa_is_renewed_by_either_end_and_its_policies_stay", of_child)
        .test("an_ike_sa_is_renewed_and_its_child_sa_stays", of_ike)
        .test("an_ike_sa_is_made_anew_by_reauthentication", of_all)
}

/// Types of the messages that a host's daemon has sent so far.
fn kinds(network: &Network, at: usize) -> Vec<u16> {
    let records = network.hosts()[at].gateway().recorder.records();
    let sent = records.iter().filter(|(from_daemon, _)| *from_daemon);
    sent.flat_map(|(_, bytes)| messages(bytes)).flatten().map(|message| message.header.kind).collect()
}

fn of_child(network: &mut Network) -> TestResult {
    let charons = network.charons(&Connection::default())?;
    let mut spis = initiate(&charons)?;
    let before = [0, 1].map(|at| kinds(network, at).len());
    for by in [0, 1, 0, 1] {
        charons[by].swanctl(&["--rekey", "--child", "net"])?;
        spis = until_renewed(&charons, spis)?;
        is_in_force(network, spis, "aes128gcm16")?;
    }
    for at in [0, 1] {
        let since = &kinds(network, at)[before[at]..];
        ensure(!since.contains(&kind::DELETE_POLICY), || format!("a policy was deleted: {since:x?}"))?;
        let added = network.hosts()[at].gateway().memory.get().added;
        ensure(added == 10, || format!("{added} SAs in place of two and four times two"))?;
        // Each new one first, then the deletion of each old one.
        let of_sas: Vec<u16> = since.iter().copied().filter(|k| *k != kind::GET_SA).collect();
        let first_new = of_sas.iter().position(|k| *k == kind::NEW_SA || *k == kind::UPDATE_SA);
        let first_gone = of_sas.iter().position(|k| *k == kind::DELETE_SA);
        ensure(first_new < first_gone && first_new.is_some(), || format!("in another order: {of_sas:x?}"))?;
    }
    ends(network, charons)
}

fn of_ike(network: &mut Network) -> TestResult {
    let charons = network.charons(&Connection::default())?;
    let spis = initiate(&charons)?;
    let before = kinds(network, 0).len();
    for by in [0, 1] {
        let id = charons[by].until("for the IKE_SA", |sas| Some(sas.first()?.id().to_owned()))?;
        charons[by].swanctl(&["--rekey", "--ike", "net"])?;
        for charon in &charons {
            charon.until("for another IKE_SA with the CHILD_SA", |sas| {
                (only_child(sas)?.iter().all(|spi| spis.contains(spi)) && sas[0].id() != id).then_some(())
            })?;
        }
    }
    let changes = [kind::NEW_SA, kind::UPDATE_SA, kind::DELETE_SA, kind::UPDATE_POLICY, kind::DELETE_POLICY];
    let since = kinds(network, 0).split_off(before);
    ensure(!since.iter().any(|k| changes.contains(k)), || format!("something has changed: {since:x?}"))?;
    is_in_force(network, spis, "aes128gcm16")?;
    ends(network, charons)
}

fn of_all(network: &mut Network) -> TestResult {
    let charons = network.charons(&Connection::default())?;
    let spis = initiate(&charons)?;
    charons[0].swanctl(&["--rekey", "--ike", "net", "--reauth"])?;
    let spis = until_renewed(&charons, spis)?;
    is_in_force(network, spis, "aes128gcm16")?;
    ends(network, charons)
}
