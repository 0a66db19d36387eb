//! What operators see of SAs and policies that a key exchange daemon says to a running gateway.

use super::routes::tests::NotedRoutes;
use super::*;
use crate::MemoryStore;
use crate::firewall::{RouteChange, TunnelRoute};
use crate::service::explanation::{Question, Side, explain};
use crate::service::sa_control::tests::{Gateway, loaded_with};
use crate::service::xfrm::{Client, Now, Xfrm};
use crate::service::{api, metrics, policies, report};
use serde_json::{Value, json};
use testudo_packet::Interface;
use testudo_wire::netlink::ack::Answer;
use testudo_wire::netlink::datagram::Datagram;
use testudo_wire::netlink::{Header, flag, messages};
use testudo_wire::xfrm::address::Address;
use testudo_wire::xfrm::algorithm::{AlgorithmWithIcv, Key};
use testudo_wire::xfrm::attribute::Attribute;
use testudo_wire::xfrm::lifetime::LifetimeConfig;
use testudo_wire::xfrm::message::{Body, Message};
use testudo_wire::xfrm::policy::{PolicyId as XfrmPolicyId, PolicyInfo, Template};
use testudo_wire::xfrm::sa::{Encapsulation as XfrmEncapsulation, SaInfo};
use testudo_wire::xfrm::selector::{Id, Selector};
use testudo_wire::xfrm::{family, mode};
use zeroize::Zeroizing;

const IKE: &str = "[ike]\nsocket = \"/run/t/xfrm.sock\"\n";
/// An address that this host has, and a peer's.
const ENDS: [[u8; 4]; 2] = [[127, 0, 0, 1], [198, 51, 100, 2]];
/// Networks behind them. The configuration names neither.
const NETWORKS: [[u8; 4]; 2] = [[10, 1, 0, 0], [10, 77, 0, 0]];

/// A gateway, and what a daemon's messages are given to.
struct Negotiating {
    gateway: Gateway,
    xfrm: Xfrm<WorkerPath>,
    /// Routes that were made or taken away.
    routes: Arc<NotedRoutes>,
}

impl Negotiating {
    fn start(policies: &str) -> Self {
        let loaded = loaded_with(&format!("{IKE}{policies}"), "");
        let gateway = Gateway::running(Arc::new(MemoryStore::new()), &loaded);
        let routes = NotedRoutes::new();
        let path = WorkerPath::new(
            Arc::clone(&gateway.shared),
            Settings { udp_port: 4500, ..Settings::default() },
            Arc::<NotedRoutes>::clone(&routes),
        );
        Self { gateway, xfrm: Xfrm::new(path, Now::default()), routes }
    }

    fn ask(&mut self, message: impl Into<Message>) -> i32 {
        let mut record = Datagram::new();
        let header = Header { flags: flag::REQUEST | flag::ACK, sequence: 7, ..Header::default() };
        message.into().write(header, &mut record);
        let message = messages(record.as_bytes()).next().unwrap().unwrap();
        let now = Now { unix_s: 1_000_000, monotonic_ms: 1_000_000 };
        let answers =
            self.xfrm.answer_at_once(&Client::default(), &message, false, now, &mut |most| most.min(3));
        let answer = messages(answers.datagrams[0].as_bytes()).next().unwrap().unwrap();
        Answer::read(&answer).unwrap().code
    }

    /// As charon does: policies first, then both SAs.
    fn negotiate(&mut self) {
        for direction in [1, 0, 2] {
            assert_eq!(self.ask(policy(direction)), 0);
        }
        self.add_sas();
    }

    fn add_sas(&mut self) {
        assert_eq!(self.ask(sa(0xC001, 7, true, None)), 0);
        assert_eq!(self.ask(sa(0xC002, 8, false, None)), 0);
    }

    fn installed(&self) -> Arc<InstalledTunnels> {
        self.gateway.shared.installed()
    }

    /// The answer to a request at the control socket.
    fn control(&self, request: &Value) -> Value {
        let mut answer = Vec::new();
        api::converse(format!("{request}\n").as_bytes(), &mut answer, &self.gateway.shared).unwrap();
        serde_json::from_slice(&answer).unwrap()
    }

    fn explain(&self, side: Side, [source, destination]: [[u8; 4]; 2]) -> Value {
        let question = Question {
            interface: Interface::MAIN,
            side,
            source: source.into(),
            destination: destination.into(),
            protocol: 17,
            dscp: 0,
            ports: Some((7, 7)),
            message: None,
            is_later_fragment: false,
        };
        explain(&self.installed(), &self.gateway.shared.peers(), &question, &|_| Value::Null)
    }
}

fn ends(of: [[u8; 4]; 2], is_towards_peer: bool) -> (Address, Address) {
    let [local, remote] = of.map(|bytes| Address::from(IpAddr::from(bytes)));
    if is_towards_peer { (local, remote) } else { (remote, local) }
}

/// A policy on packets between the networks: 0 is in, 1 out, 2 fwd.
fn policy(direction: u8) -> Message {
    let (source, destination) = ends(NETWORKS, direction == 1);
    let selector = Selector {
        family: family::IPV4,
        source,
        destination,
        source_prefix: 16,
        destination_prefix: 16,
        ..Selector::default()
    };
    let lifetime = LifetimeConfig::UNLIMITED;
    let info = PolicyInfo { selector, direction, priority: 375_423, lifetime, ..PolicyInfo::default() };
    let (source, destination) = ends(ENDS, direction == 1);
    let template = Template {
        id: Id { destination, spi: 0, protocol: 50 },
        family: family::IPV4,
        source,
        reqid: 1,
        mode: mode::TUNNEL,
        integrity_algorithms: u32::MAX,
        ciphers: u32::MAX,
        ..Template::default()
    };
    Message { body: Body::NewPolicy(info), attributes: [Attribute::Templates(vec![template])].into() }
}

/// `ports` are those of ESP in UDP, ours first.
fn sa(spi: u32, key: u8, is_inbound: bool, ports: Option<(u16, u16)>) -> Message {
    let (source, destination) = ends(ENDS, !is_inbound);
    let info = SaInfo {
        id: Id { destination, spi, protocol: 50 },
        source,
        family: family::IPV4,
        mode: mode::TUNNEL,
        reqid: 1,
        replay_window: 32,
        lifetime: LifetimeConfig::UNLIMITED,
        ..SaInfo::default()
    };
    let key = Key::new(Zeroizing::new(vec![key; 20]));
    let aead = AlgorithmWithIcv { name: "rfc4106(gcm(aes))".into(), key, icv_bits: 128 };
    let encapsulation = ports.map(|(local, remote)| {
        let (source_port, destination_port) = if is_inbound { (remote, local) } else { (local, remote) };
        let original_address = Address::from(IpAddr::from([0; 4]));
        let kind = 2;
        Attribute::Encapsulation(XfrmEncapsulation { kind, source_port, destination_port, original_address })
    });
    let attributes: Vec<_> = [Attribute::Aead(aead)].into_iter().chain(encapsulation).collect();
    Message { body: Body::NewSa(info), attributes: attributes.into_iter().collect() }
}

/// The rows of a list that a daemon owns.
fn owned_by_ike(list: &Value) -> Vec<&Value> {
    list.as_array().unwrap().iter().filter(|row| row["owner"] == "ike").collect()
}

#[test]
fn sas_are_listed_with_their_owner_and_the_ends_that_they_have_now() {
    let mut daemon = Negotiating::start("");
    daemon.negotiate();
    let list = |daemon: &Negotiating| daemon.control(&json!({ "verb": "sa-list" }));
    let all = list(&daemon);
    let owners: Vec<_> = all.as_array().unwrap().iter().map(|sa| sa["owner"].clone()).collect();
    assert_eq!(owners, ["file", "file", "file", "file", "ike", "ike"]);
    let ends = |sa: &Value| {
        let shown = ["tunnel", "direction", "spi", "local", "remote", "encapsulation", "udp_ports"];
        Value::from(shown.map(|key| sa[key].clone()).to_vec())
    };
    let row = |direction, spi: u32, encapsulation, ports: &Value| {
        json!(["ike:1", direction, spi, "127.0.0.1", "198.51.100.2", encapsulation, ports])
    };
    let expected =
        [row("inbound", 0xC001, "esp", &Value::Null), row("outbound", 0xC002, "esp", &Value::Null)];
    assert_eq!(owned_by_ike(&all).into_iter().map(ends).collect::<Vec<_>>(), expected);
    let index = daemon.installed().named("ike:1").unwrap().index;
    daemon.gateway.shared.peers().insert(index, "198.51.100.3:7".parse().unwrap());
    assert_eq!(owned_by_ike(&list(&daemon))[1]["peer"], "198.51.100.3:7");
    // A NAT has come in between, as charon notes with new SAs.
    assert_eq!(daemon.ask(sa(0xC003, 9, true, Some((4500, 61_000)))), 0);
    assert_eq!(daemon.ask(sa(0xC004, 10, false, Some((4500, 61_000)))), 0);
    let all = list(&daemon);
    let ports = json!({ "local": 4500, "remote": 61_000 });
    assert_eq!(owned_by_ike(&all)[3]["peer"], Value::Null, "the daemon has said where it is");
    assert_eq!(ends(owned_by_ike(&all)[3]), row("outbound", 0xC004, "esp-in-udp", &ports));
    let one = daemon.control(&json!({ "verb": "sa-list", "tunnel": "ike:1" }));
    assert_eq!(one, json!(owned_by_ike(&all)), "the list of that tunnel says the same");
    assert_eq!(daemon.installed().negotiated.for_firewall().tunnels[0].encapsulation, {
        Encapsulation::EspInUdp { local_port: 4500, remote_port: 61_000 }
    });
}

#[test]
fn policies_are_listed_behind_those_of_the_configuration() {
    let mut daemon =
        Negotiating::start("[[policy]]\nname = \"x\"\naction = \"discard\"\nremote = \"10.3.0.0/16\"\n");
    daemon.negotiate();
    let list = daemon.control(&json!({ "verb": "policy-list" }));
    let rows = list.as_array().unwrap();
    let places: Vec<_> = rows.iter().map(|row| row["place"].as_u64().unwrap()).collect();
    assert_eq!(places, [1, 2, 3, 4, 5, 6]);
    assert_eq!(owned_by_ike(&list).len(), 3);
    let shown: Vec<_> = rows[2..].iter().map(|row| json!([row["owner"], row["direction"]])).collect();
    assert_eq!(json!(shown), json!([["file", "both"], ["ike", "out"], ["ike", "in"], ["ike", "in"]]));
    let out = &rows[3];
    assert_eq!((&out["priority"], &out["tunnel"]), (&json!(375_423), &json!("ike:1")));
    assert_eq!((&out["action"], &out["policy"]), (&json!("protect"), &Value::Null));
    assert_eq!(out["selectors"][0]["remote"], "10.77.0.0/16");
    let origin = rows[5]["origin"].as_str().unwrap();
    assert!(origin.starts_with("ike, fwd index ") && origin.ends_with(", priority 375423"), "{origin}");
}

/// RFC 4301 4.4.1: what no policy of the configuration names, one that is negotiated may.
#[test]
fn packets_are_explained_by_negotiated_policies_behind_the_configurations() {
    let mut daemon = Negotiating::start("[[policy]]\naction = \"discard\"\nremote = \"10.77.9.0/24\"\n");
    let there = [[10, 1, 0, 1], [10, 77, 0, 1]];
    let answer = daemon.explain(Side::Protected, there);
    assert_eq!((&answer["policy"], &answer["passed_over_untold"]), (&Value::Null, &json!(0)));
    assert_eq!(daemon.ask(policy(1)), 0);
    let answer = daemon.explain(Side::Protected, there);
    assert_eq!((&answer["policy"]["place"], &answer["tunnel"]), (&json!(4), &json!("ike:1")));
    assert_eq!(
        answer["verdict"],
        "waits: tunnel ike:1 has no outbound SA yet, and a key exchange daemon is asked for one"
    );
    daemon.add_sas();
    let answer = daemon.explain(Side::Protected, there);
    assert_eq!(answer["verdict"], "goes through tunnel ike:1, outbound SA 0xc002");
    assert_eq!((&answer["sa"]["spi"], &answer["sa"]["remote"]), (&json!(0xC002), &json!("198.51.100.2")));
    assert_eq!(answer["passed_over"].as_array().unwrap().len(), 3, "{answer}");
    // The configuration's comes first.
    let answer = daemon.explain(Side::Protected, [[10, 1, 0, 1], [10, 77, 9, 1]]);
    assert_eq!((&answer["policy"]["place"], &answer["tunnel"]), (&json!(1), &Value::Null));
    // No policy is about packets that arrive.
    let back = [there[1], there[0]];
    assert_eq!(daemon.explain(Side::Unprotected, back)["policy"], Value::Null);
    assert_eq!(daemon.ask(policy(0)), 0);
    let answer = daemon.explain(Side::Unprotected, back);
    assert!(answer["verdict"].as_str().unwrap().contains("inbound SA 0xc001 of tunnel ike:1"), "{answer}");
    assert_eq!(answer["passed_over"][3]["why"], "it is for packets that leave");
}

#[test]
fn operators_are_told_whose_it_is_where_they_change_it() {
    let mut daemon = Negotiating::start("");
    daemon.negotiate();
    let is_refused = |said: &str, what: &str| {
        let expected =
            format!("{what} is negotiated: it belongs to the key exchange daemon behind /run/t/xfrm.sock");
        assert!(said.starts_with(&expected), "{said}");
    };
    let (spis, key) = (0x9001, "ab".repeat(20));
    for (verb, more) in [
        ("sa-add", json!({ "inbound": spis, "inbound_key": key, "ephemeral": true })),
        ("sa-replace", json!({ "inbound": spis, "inbound_key": key, "ephemeral": true })),
        ("sa-use", json!({ "spi": 0xC002 })),
        ("sa-delete", json!({ "spi": 0xC001, "force": true })),
    ] {
        let mut request = json!({ "verb": verb, "tunnel": "ike:1" });
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        is_refused(daemon.control(&request)["error"].as_str().unwrap(), "tunnel ike:1");
    }
    let installed = daemon.installed();
    assert_eq!(installed.named("ike:1").unwrap().sas.lock().len(), 2);
    let index = installed.negotiated.policies()[0].index.to_string();
    let words = json!({ "action": "discard", "remote": "10.9.0.0/16" });
    for label in ["3", "5", index.as_str(), "ike:1"] {
        for verb in ["policy-delete", "policy-replace"] {
            let request = json!({ "verb": verb, "policy": label, "words": words });
            is_refused(&policies::plan(&installed, &request).unwrap_err(), &format!("policy \"{label}\""));
        }
    }
    for label in ["2", "6", "ike:2"] {
        let unknown = policies::plan(&installed, &json!({ "verb": "policy-delete", "policy": label }));
        assert!(unknown.unwrap_err().contains("there is no policy"), "{label}");
    }
    assert_eq!(installed.negotiated.count_policies(), 3);
}

#[test]
fn status_and_metrics_count_what_is_negotiated() {
    let mut daemon = Negotiating::start("");
    let status = |daemon: &Negotiating| daemon.control(&json!({ "verb": "status" }))["ike"].clone();
    let (socket, vici) = ("/run/t/xfrm.sock", "/run/charon.vici");
    let counted = |tunnels, policies, sas: Value| {
        let renewal = Value::Null;
        json!({
            "socket": socket, "vici": vici, "tunnels": tunnels, "policies": policies, "renewal": renewal, "sas": sas,
        })
    };
    assert_eq!(status(&daemon), counted(0, 0, json!({})));
    daemon.negotiate();
    // Of a daemon that has not said its name.
    assert_eq!(status(&daemon), counted(1, 3, json!({ "ike": 2 })));
    let page = metrics::tests::page(&daemon.gateway.shared);
    for line in ["testudo_negotiated_tunnels 1", "testudo_negotiated_policies 3", "testudo_tunnels 2"] {
        assert!(page.lines().any(|other| other == line), "{line}");
    }
    let mut without = (*daemon.installed()).clone();
    without.configuration.ike = None;
    assert_eq!(report::status(&daemon.gateway.shared.facts, &without)["ike"], Value::Null);
}

#[test]
fn a_network_is_routed_while_a_policy_asks_for_it() {
    let mut daemon = Negotiating::start("");
    daemon.negotiate();
    let network = Network::containing(NETWORKS[1].into(), 16).unwrap();
    let route = Some(TunnelRoute { network, source: None });
    assert_eq!(daemon.routes.changes(), [RouteChange { before: None, after: route }]);
    let Body::NewPolicy(info) = policy(1).body else { panic!("a policy") };
    let id = XfrmPolicyId { selector: info.selector, direction: 1, index: 0 };
    assert_eq!(daemon.ask(Body::DeletePolicy(id)), 0);
    assert_eq!(daemon.routes.changes()[1..], [RouteChange { before: route, after: None }]);
}

#[test]
fn the_hosts_rules_have_the_networks_that_are_negotiated() {
    let mut daemon = Negotiating::start("");
    let rules = |daemon: &Negotiating| daemon.control(&json!({ "verb": "firewall" }));
    let before = rules(&daemon);
    assert!(!before.to_string().contains("10.77.0.0"), "{before}");
    daemon.negotiate();
    let now = rules(&daemon);
    let text = now["rules"].as_str().unwrap();
    let comments = |what: &str| text.matches(&format!("\"ike, {what} index ")).count();
    assert_eq!((comments("out"), comments("in"), comments("fwd")), (1, 1, 0), "{text}");
    assert_eq!(now["networks"], before["networks"], "an unreachable route would win over the negotiated one");
    assert_eq!(now["negotiated"], json!(["10.1.0.0/16 10.77.0.0/16"]));
    assert_eq!((&before["negotiated"], &before["instance"]), (&json!([]), &now["instance"]));
}
