//! Whose an SA is, and what its daemon calls it.

use crate::connection::Connection;
use crate::negotiation::initiate;
use crate::network::Network;
use crate::strongswan::{Charon, IkeSa};
use crate::support::{Outcome, ensure};
use serde_json::{Value, json};
use testudo_judge::harness::{Suite, TestResult};

type Tests<'a> = Suite<'a, Network>;

pub fn tests(suite: Tests<'_>) -> Tests<'_> {
    suite.test("sa_list_has_the_names_and_numbers_that_charon_has", names)
}

/// The connection of the only CHILD_SA, as swanctl shows it.
fn connection_of(charon: &Charon) -> Outcome<Value> {
    let sas = charon.sas()?;
    let [sa] = &sas[..] else { return Err(format!("one IKE_SA, not {sas:?}").into()) };
    let children = IkeSa::installed(sa);
    let [child] = children[..] else { return Err(format!("one CHILD_SA, not {children:?}").into()) };
    let id = |text: &str| text.parse::<u32>();
    let (ike_id, child_id) = (id(sa.id())?, id(child.get("uniqueid"))?);
    Ok(json!({ "ike": "net", "ike_id": ike_id, "child": child.get("name"), "child_id": child_id }))
}

fn names(network: &mut Network) -> TestResult {
    let charons = network.programs("", &Connection::default())?;
    // So that IKE_SAs and CHILD_SAs do not have the same numbers.
    initiate(&charons)?;
    charons[0].swanctl(&["--rekey", "--child", "net"])?;
    charons[0].until("for a second CHILD_SA alone", |sas| {
        let child = sas.first()?.installed().first()?.get("uniqueid").to_owned();
        let all = sas.first()?.all.sections.get("child-sas")?.sections.len();
        (child != "1" && all == 1).then_some(())
    })?;
    charons[1].until("for the same at B", |sas| {
        (sas.first()?.all.sections.get("child-sas")?.sections.len() == 1).then_some(())
    })?;
    for (host, charon) in network.hosts().into_iter().zip(&charons) {
        let process = &host.program().process;
        let (listed, expected) = (process.ask_json(&["sa", "list"])?, connection_of(charon)?);
        let sas = listed.as_array().ok_or("no list")?;
        let is_right = |sa: &Value| {
            sa["daemon"] == "charon-systemd" && sa["owner"] == "ike" && sa["connection"] == expected
        };
        ensure(sas.len() == 2 && sas.iter().all(is_right), || format!("{expected} of all, not {listed:#}"))?;
        let status = process.ask_json(&["status"])?;
        ensure(status["ike"]["sas"] == json!({ "charon-systemd": 2 }), || format!("{:#}", status["ike"]))?;
    }
    // What somebody types has the name of `ip`, and charon knows nothing of it.
    let own = ["state", "add", "src", "192.0.2.1", "dst", "192.0.2.9", "proto", "esp", "spi", "0x7001"];
    let how =
        ["mode", "tunnel", "aead", "rfc4106(gcm(aes))", "0x000102030405060708090a0b0c0d0e0f10111213", "128"];
    network.a.ip_xfrm(&[&own[..], &how].concat())?;
    let listed = network.a.program().process.ask_json(&["sa", "list"])?;
    let typed = listed.as_array().into_iter().flatten().find(|sa| sa["spi"] == 0x7001);
    let typed = typed.ok_or_else(|| format!("the SA is not listed: {listed:#}"))?;
    ensure(typed["daemon"] == "ip" && typed["connection"].is_null(), || format!("{typed:#}"))?;
    network.a.ip_xfrm(&["state", "delete", "dst", "192.0.2.9", "proto", "esp", "spi", "0x7001"])?;
    crate::traffic::ends(network, charons)
}
