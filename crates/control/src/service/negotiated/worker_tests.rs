//! SAs and policies of XFRM in a running worker.

mod of_vpe;
mod of_workers;

use super::super::installed::Numbers;
use super::super::sa_control::tests::{Gateway, loaded_with, material};
use super::super::xfrm::{Client, Now, Xfrm};
use super::routes::tests::NotedRoutes;
use super::*;
use crate::MemoryStore;
use crate::firewall::{RouteChange, TunnelRoute};
use crate::service::interfaces::interfaces;
use crate::service::leases::Leases;
use serde_json::{Value, json};
use std::net::Ipv4Addr;
use testudo_gateway::{InterfaceSnapshot, KeyPreparers};
use testudo_packet::{DropCounters, PortCounters};
use testudo_port_memory::MemoryHandle;
use testudo_wire::netlink::ack::Answer;
use testudo_wire::netlink::datagram::Datagram;
use testudo_wire::netlink::errno::Errno;
use testudo_wire::netlink::{Header, flag, messages};
use testudo_wire::xfrm::algorithm::{AlgorithmWithIcv, Key};
use testudo_wire::xfrm::attribute::{Attribute, SaDirection};
use testudo_wire::xfrm::lifetime::LifetimeConfig;
use testudo_wire::xfrm::message::{Body, Message};
use testudo_wire::xfrm::policy::{PolicyId, PolicyInfo, Template};
use testudo_wire::xfrm::sa::SaInfo;
use testudo_wire::xfrm::selector::{Id, Selector};
use testudo_wire::xfrm::{family, mode};
use zeroize::Zeroizing;

const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
const ROUNDS: usize = 100_000;

/// A gateway that is spoken to in XFRM.
struct Spoken {
    gateway: Gateway,
    xfrm: Xfrm<WorkerPath>,
    routes: Arc<NotedRoutes>,
}

impl Spoken {
    fn new() -> Self {
        Self::with_routes(NotedRoutes::new())
    }

    fn with_routes(routes: Arc<NotedRoutes>) -> Self {
        Self::with(routes, "")
    }

    /// Of a gateway with these sections.
    fn with(routes: Arc<NotedRoutes>, sections: &str) -> Self {
        let gateway = Gateway::running(Arc::new(MemoryStore::new()), &loaded_with(sections, ""));
        Self::over(gateway, routes, Settings::default())
    }

    fn over(gateway: Gateway, routes: Arc<NotedRoutes>, settings: Settings) -> Self {
        let noted = Arc::<NotedRoutes>::clone(&routes);
        let path = WorkerPath::new(Arc::clone(&gateway.shared), settings, noted);
        Self { gateway, xfrm: Xfrm::new(path, Now::default()), routes }
    }

    /// The errno and the text of the answer.
    fn says(&mut self, message: impl Into<Message>) -> (i32, String) {
        let mut datagram = Datagram::new();
        let header = Header { flags: flag::REQUEST | flag::ACK, sequence: 1, ..Header::default() };
        message.into().write(header, &mut datagram);
        let request = messages(datagram.as_bytes()).next().unwrap().unwrap();
        let mut client = Client::default();
        client.acks.extended = true;
        let now = Now { unix_s: 1000, monotonic_ms: 1000 };
        let answers = self.xfrm.answer_at_once(&client, &request, false, now, &mut |_| 7);
        let last = answers.datagrams.last().expect("an answer");
        let answer = messages(last.as_bytes()).next().unwrap().unwrap();
        let Answer { code, text, .. } = Answer::read(&answer).unwrap();
        (code, text.unwrap_or_default())
    }

    #[track_caller]
    fn takes(&mut self, message: impl Into<Message>) {
        assert_eq!(self.says(message), (0, String::new()));
    }

    #[track_caller]
    fn refuses(&mut self, message: impl Into<Message>, errno: Errno, why: &str) {
        let (code, text) = self.says(message);
        assert_eq!(code, errno.code(), "{text}");
        assert!(text.contains(why), "{text}");
    }

    fn tunnels(&self) -> Arc<NegotiatedTunnels> {
        Arc::clone(&self.gateway.shared.installed().negotiated)
    }

    /// Of each interface its name, if_id, configured tunnels, and negotiated tunnels, policies and SAs.
    fn by_interface(&self) -> Vec<Value> {
        let snapshot = |name: &str| InterfaceSnapshot {
            name: name.to_owned(),
            counters: PortCounters::default(),
            drops: DropCounters::default(),
        };
        let snapshots = ["testudo0", "ipsec0", "ipsec1"].map(snapshot);
        let rows = interfaces(&self.gateway.shared.installed(), &snapshots);
        let shown = |row: &Value| {
            let negotiated = ["tunnels", "policies", "sas"].map(|key| row["negotiated"][key].clone());
            json!([row["name"], row["if_id"], row["tunnels"], negotiated])
        };
        rows.as_array().unwrap().iter().map(shown).collect()
    }

    /// Sends a packet to 10.9.0.2: SPI, sequence number and IV of what leaves, if something does.
    fn seals(&self) -> Option<(u32, u32, u64)> {
        self.seals_at(&self.gateway.protected, &self.gateway.unprotected)
    }

    /// The same at the ports of one worker.
    fn seals_at(&self, protected: &MemoryHandle, unprotected: &MemoryHandle) -> Option<(u32, u32, u64)> {
        let sealed = self.sealed_at(protected, unprotected)?;
        let number = |at: usize| u32::from_be_bytes(*sealed[at..].first_chunk().unwrap());
        Some((number(20), number(24), u64::from_be_bytes(*sealed[28..].first_chunk().unwrap())))
    }

    /// The datagram itself.
    fn sealed_at(&self, protected: &MemoryHandle, unprotected: &MemoryHandle) -> Option<Vec<u8>> {
        let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 1, 0, 1, 10, 9, 0, 2];
        let sum = testudo_wire::checksum::of(&packet).to_bytes();
        packet[10..12].copy_from_slice(&sum);
        packet.extend([0, 7, 0, 7, 0, 8, 0, 0]);
        assert!(protected.input.push(&packet));
        let taken = self.gateway.shared.facts.counters.protected().counters.rx_packets + 1;
        for _ in 0..ROUNDS {
            self.gateway.commander.save_windows(Vec::new()).unwrap();
            if let Some(sealed) = unprotected.output.pop() {
                return Some(sealed.to_vec());
            }
            if self.gateway.shared.facts.counters.protected().counters.rx_packets >= taken {
                // What the worker has taken it has finished by its answer to one command more.
                self.gateway.commander.save_windows(Vec::new()).unwrap();
                self.gateway.commander.save_windows(Vec::new()).unwrap();
                if unprotected.output.is_empty() {
                    return None;
                }
            }
        }
        panic!("the worker takes nothing");
    }
}

fn info(spi: u32, is_inbound: bool) -> SaInfo {
    let (source, destination) = if is_inbound { (PEER, LOCAL) } else { (LOCAL, PEER) };
    SaInfo {
        id: Id { destination: destination.into(), spi, protocol: 50 },
        source: source.into(),
        family: family::IPV4,
        mode: mode::TUNNEL,
        reqid: 5,
        replay_window: 32 * u8::from(is_inbound),
        lifetime: LifetimeConfig::UNLIMITED,
        ..SaInfo::default()
    }
}

/// An SA whose key has this byte.
fn sa(spi: u32, is_inbound: bool, key: u8) -> Message {
    let material = material(key);
    let bytes = [material.key(), material.salt()].concat();
    let key = Key::new(Zeroizing::new(bytes));
    let aead = AlgorithmWithIcv { name: "rfc4106(gcm(aes))".into(), key, icv_bits: 128 };
    let direction = if is_inbound { SaDirection::Inbound } else { SaDirection::Outbound };
    let attributes = [Attribute::Aead(aead), Attribute::Direction(direction)].into();
    Message { body: Body::NewSa(info(spi, is_inbound)), attributes }
}

fn policy_info(direction: u8, priority: u32) -> PolicyInfo {
    let network = |b| IpAddr::from([10, b, 0, 0]).into();
    let (source, destination) = if direction == 1 { (1, 9) } else { (9, 1) };
    let selector = Selector {
        source: network(source),
        destination: network(destination),
        source_prefix: 16,
        destination_prefix: 16,
        family: family::IPV4,
        ..Selector::default()
    };
    PolicyInfo { selector, direction, priority, lifetime: LifetimeConfig::UNLIMITED, ..PolicyInfo::default() }
}

fn template(direction: u8, spi: u32) -> Template {
    let (source, destination) = if direction == 1 { (LOCAL, PEER) } else { (PEER, LOCAL) };
    Template {
        id: Id { destination: destination.into(), spi, protocol: 50 },
        family: family::IPV4,
        source: source.into(),
        reqid: 5,
        mode: mode::TUNNEL,
        integrity_algorithms: u32::MAX,
        ciphers: u32::MAX,
        compression_algorithms: u32::MAX,
        ..Template::default()
    }
}

/// A policy between 10.1.0.0/16 and 10.9.0.0/16 that names this SPI.
fn policy(direction: u8, spi: u32) -> Message {
    let attributes = [Attribute::Templates(vec![template(direction, spi)])].into();
    Message { body: Body::NewPolicy(policy_info(direction, 100)), attributes }
}

fn update(policy: Message) -> Message {
    let Body::NewPolicy(info) = policy.body else { panic!("{policy:?}") };
    Message { body: Body::UpdatePolicy(info), ..policy }
}

fn deletion(spi: u32, is_inbound: bool) -> Body {
    Body::DeleteSa(info(spi, is_inbound).sa_id())
}

#[test]
fn a_tunnel_is_there_while_a_policy_names_it_or_an_sa_serves_it() {
    let mut spoken = Spoken::new();
    assert_eq!(spoken.seals(), None, "no policy names it");
    spoken.takes(policy(1, 0));
    spoken.takes(policy(0, 0));
    spoken.takes(policy(2, 0));
    assert_eq!((spoken.tunnels().len(), spoken.tunnels().count_policies()), (1, 3));
    let routes = spoken.routes.changes();
    assert!(matches!(&routes[..], [RouteChange { before: None, after: Some(_) }]), "{routes:?}");
    spoken.takes(sa(0x5001, false, 21));
    spoken.takes(sa(0x5002, true, 22));
    let (spi, number, _) = spoken.seals().expect("it is sealed");
    assert_eq!((spi, number), (0x5001, 1));
    let tunnel = spoken.tunnels().named("ike:1").expect("its name");
    assert_eq!(tunnel.running.sas.lock().len(), 2);
    spoken.takes(deletion(0x5001, false));
    spoken.takes(deletion(0x5002, true));
    assert_eq!(spoken.tunnels().len(), 1, "policies name it");
    assert_eq!(spoken.says(Body::FlushPolicies).0, 0);
    assert!(spoken.tunnels().is_empty());
    assert_eq!(spoken.routes.changes().len(), 2, "the route goes, too");
    assert_eq!(spoken.seals(), None);
    // Its place is free for another one.
    let index = tunnel.running.index;
    spoken.takes(sa(0x5003, true, 23));
    assert_eq!(spoken.tunnels().all()[0].running.index, index);
}

/// RFC 4106 2: MOBIKE and NAT make daemons install a key once more, with any numbers.
#[test]
fn a_key_that_comes_back_goes_on_behind_its_numbers_with_the_same_mask() {
    let mut spoken = Spoken::new();
    spoken.takes(policy(1, 0));
    spoken.takes(sa(0x5001, false, 21));
    let (_, first, iv) = spoken.seals().unwrap();
    let mask = iv ^ u64::from(first);
    let mut last = u64::from(first);
    for told in [0, 3] {
        spoken.takes(deletion(0x5001, false));
        let mut again = sa(0x5001, false, 21);
        let state = testudo_wire::xfrm::replay::ReplayState { sent: told, ..Default::default() };
        again.attributes.push(Attribute::Replay(state));
        spoken.takes(again);
        let (_, number, iv) = spoken.seals().unwrap();
        assert!(u64::from(number) > last + 60_000, "{number} after {last}");
        assert_eq!(iv ^ u64::from(number), mask, "IVs under one mask do not repeat");
        last = number.into();
    }
    // While an SA has it, no other one may; nor may one towards us.
    spoken.refuses(sa(0x5009, false, 21), Errno::EXIST, "has this key");
    spoken.refuses(sa(0x5009, true, 21), Errno::EXIST, "has this key");
    // A key never changes its direction, though no SA has it any more.
    spoken.takes(deletion(0x5001, false));
    spoken.refuses(sa(0x5009, true, 21), Errno::EXIST, "of the other direction");
    // A key of the configuration.
    spoken.refuses(sa(0x5009, false, 1), Errno::EXIST, "has this key");
}

/// charon adds an SA before the peer has its half, and names it in the policy once it has.
#[test]
fn an_sa_that_no_policy_names_waits_where_another_one_is_named() {
    let mut spoken = Spoken::new();
    spoken.takes(sa(0x5001, false, 21));
    spoken.takes(policy(1, 0x5001));
    assert_eq!(spoken.seals().unwrap().0, 0x5001);
    spoken.takes(sa(0x5002, false, 22));
    assert_eq!(spoken.seals().unwrap().0, 0x5001);
    spoken.takes(update(policy(1, 0x5002)));
    assert_eq!(spoken.seals().unwrap().0, 0x5002);
    spoken.takes(deletion(0x5001, false));
    assert_eq!(spoken.seals().unwrap().0, 0x5002);
    assert_eq!(spoken.tunnels().count_policies(), 1);
}

#[test]
fn what_is_negotiated_outlives_a_reload() {
    let mut spoken = Spoken::new();
    spoken.takes(policy(1, 0));
    spoken.takes(sa(0x5001, false, 21));
    assert_eq!(spoken.seals().unwrap().1, 1);
    let old = spoken.gateway.shared.installed();
    let (store, leases, preparers) = (MemoryStore::new(), Leases::default(), KeyPreparers::default());
    let numbers = Numbers::Leased { store: &store, leases: &leases, unix_s: 1, preparers: &preparers };
    const MAIL: &str =
        "[[policy]]\nname = \"mail\"\naction = \"discard\"\nprotocol = \"tcp\"\nremote_ports = 25\n";
    let (update, mut installed, _) = old.plan(&loaded_with(MAIL, ""), &numbers).unwrap();
    installed.note(spoken.gateway.commander.update(update).unwrap());
    spoken.gateway.shared.replace_installed(installed);
    assert_eq!(spoken.seals().unwrap().1, 2);
    // Its policies are found under their new names.
    spoken.takes(self::update(policy(1, 0)));
    spoken.takes(policy(0, 0));
    assert_eq!(spoken.seals().unwrap().1, 3);
    assert_eq!(spoken.says(Body::FlushPolicies).0, 0);
    assert_eq!(spoken.seals(), None);
}

/// A policy for packets that leave, with changes.
fn with(edit: impl Fn(&mut PolicyInfo, &mut Template)) -> Message {
    let (mut info, mut template) = (policy_info(1, 100), template(1, 0));
    edit(&mut info, &mut template);
    Message { body: Body::NewPolicy(info), attributes: [Attribute::Templates(vec![template])].into() }
}

/// A policy whose remote network is this one.
fn policy_to(network: [u8; 4], length: u8) -> Message {
    with(|info, _| {
        info.selector.destination = IpAddr::from(network).into();
        info.selector.destination_prefix = length;
    })
}

/// A road warrior's, and that of transport mode.
#[test]
fn routes_lead_to_peers_and_anywhere_where_packets_to_peers_pass_by_them() {
    let networks = [([192, 0, 2, 2], 32), ([0; 4], 0)];
    let mut without = Spoken::new();
    for (network, length) in networks {
        without.refuses(policy_to(network, length), Errno::OPNOTSUPP, "packets to the peer 192.0.2.2");
    }
    assert!(without.routes.changes().is_empty());
    let noted = NotedRoutes { spare_peers: true, ..NotedRoutes::default() };
    let mut spoken = Spoken::with_routes(Arc::new(noted));
    for (network, length) in networks {
        spoken.takes(policy_to(network, length));
        let after = spoken.routes.changes().last().unwrap().after.unwrap();
        assert_eq!(Some(after.network), Network::containing(network.into(), length));
    }
    assert_eq!(
        *spoken.routes.peers.lock().unwrap(),
        [PEER; 2],
        "the strict filter would drop what they send"
    );
}

#[test]
fn where_no_routes_can_be_made_policies_that_need_them_are_refused() {
    let noted = NotedRoutes { refusal: Some("no rules".into()), spare_peers: true, ..NotedRoutes::default() };
    let mut spoken = Spoken::with_routes(Arc::new(noted));
    spoken.refuses(policy(1, 0), Errno::OPNOTSUPP, "no rules; make routes of your own");
    spoken.takes(policy(0, 0));
    assert!(spoken.routes.changes().is_empty());
}

/// A host may have rules of one IP version only.
#[test]
fn where_no_routes_of_ipv6_can_be_made_policies_of_ipv4_are_taken() {
    let refusal_of_ipv6 = Some("no IPv6".into());
    let noted = NotedRoutes { refusal_of_ipv6, spare_peers: true, ..NotedRoutes::default() };
    let mut spoken = Spoken::with_routes(Arc::new(noted));
    let of_ipv6 = with(|info, _| {
        let network = |last| IpAddr::from([0xFD00, last, 0, 0, 0, 0, 0, 0]).into();
        (info.selector.source, info.selector.destination) = (network(1), network(9));
        info.selector.family = family::IPV6;
    });
    spoken.refuses(of_ipv6, Errno::OPNOTSUPP, "no route to fd00::/16: no IPv6");
    spoken.takes(policy(1, 0));
    assert_eq!(spoken.routes.changes().len(), 1);
}

/// Policies of several own addresses to one network, as of hosts that speak to one another.
#[test]
fn a_route_has_the_lowest_source_of_the_policies_that_ask_for_it() {
    let mut spoken = Spoken::new();
    let own = |last| IpAddr::from([127, 0, 0, last]);
    let from =
        |last| with(|info, _| (info.selector.source, info.selector.source_prefix) = (own(last).into(), 32));
    let deletion = |policy: Message| {
        let Body::NewPolicy(info) = policy.body else { panic!("{policy:?}") };
        let PolicyInfo { selector, direction, .. } = info;
        Body::DeletePolicy(PolicyId { selector, direction, ..PolicyId::default() })
    };
    let mut seen = 0;
    let mut changes = |spoken: &Spoken| {
        let all = spoken.routes.changes();
        let new = all[std::mem::replace(&mut seen, all.len())..].to_vec();
        let source = |route: Option<TunnelRoute>| route.map(|route| route.source);
        new.iter().map(|change| (source(change.before), source(change.after))).collect::<Vec<_>>()
    };
    let of = |last| Some(Some(own(last)));
    // Of a network of ours, whose packets have their sources.
    spoken.takes(policy(1, 0));
    assert_eq!(changes(&spoken), [(None, Some(None))]);
    spoken.takes(from(3));
    spoken.takes(from(1));
    spoken.takes(from(2));
    assert_eq!(changes(&spoken), [(Some(None), of(3)), (of(3), of(1))]);
    spoken.takes(update(from(1)));
    spoken.takes(deletion(from(3)));
    spoken.takes(deletion(policy(1, 0)));
    assert_eq!(changes(&spoken), []);
    spoken.takes(deletion(from(1)));
    assert_eq!(changes(&spoken), [(of(1), of(2))]);
    spoken.takes(policy(1, 0));
    spoken.takes(deletion(from(2)));
    spoken.takes(deletion(policy(1, 0)));
    assert_eq!(changes(&spoken), [(of(2), Some(None)), (Some(None), None)]);
}

/// Two interfaces with the same packets: each tunnel is told by its if_id. The ports of this gateway are the
/// main interface alone, whose packets meet none of the others' policies.
#[test]
fn policies_and_sas_with_an_if_id_belong_to_the_interface_that_has_it() {
    let sections =
        "[[interface]]\nname = \"ipsec0\"\nif_id = 42\n[[interface]]\nname = \"ipsec1\"\nif_id = 43\n";
    let mut spoken = Spoken::with(NotedRoutes::new(), sections);
    let at = |if_id: u32, mut message: Message| {
        message.attributes.push(Attribute::IfId(if_id));
        message
    };
    for (if_id, spi, key) in [(42, 0x42, 0x20), (43, 0x43, 0x60)] {
        spoken.takes(at(if_id, policy(1, 0)));
        spoken.takes(at(if_id, policy(0, 0)));
        spoken.takes(at(if_id, sa(0x1000 + spi, true, key)));
        spoken.takes(at(if_id, sa(0x2000 + spi, false, key + 1)));
    }
    assert_eq!((spoken.tunnels().len(), spoken.tunnels().count_policies()), (2, 4));
    let policies = spoken.tunnels().policies();
    let interfaces: Vec<_> = policies.iter().map(|policy| policy.entry.interface.0).collect();
    assert_eq!(interfaces, [1, 1, 2, 2]);
    assert_eq!(
        spoken.by_interface(),
        [
            json!(["testudo0", null, 2, [0, 0, 0]]),
            json!(["ipsec0", 42, 0, [1, 2, 2]]),
            json!(["ipsec1", 43, 0, [1, 2, 2]])
        ]
    );
    assert!(spoken.routes.changes().is_empty(), "routes into them are the operator's");
    assert_eq!(spoken.seals(), None, "from the main interface");
    spoken.refuses(at(44, policy(1, 0)), Errno::OPNOTSUPP, "[[interface]]");
    spoken.refuses(at(44, sa(0x3000, true, 0xB0)), Errno::OPNOTSUPP, "no interface has if_id 44");
    assert_eq!(spoken.tunnels().len(), 2, "nothing is left of what was refused");
    // Beside them, one of the main interface.
    spoken.takes(policy(1, 0));
    spoken.takes(sa(0x2001, false, 0xB1));
    assert_eq!(spoken.seals().map(|sealed| sealed.0), Some(0x2001));
    assert_eq!(spoken.by_interface()[0], json!(["testudo0", null, 2, [1, 1, 1]]));
    assert_eq!(spoken.says(Body::FlushPolicies).0, 0);
    assert_eq!(spoken.seals(), None);
}

#[test]
fn what_the_gateway_does_not_do_is_refused_and_leaves_nothing() {
    let mut spoken = Spoken::new();
    spoken.refuses(with(|info, _| info.selector.interface = 3), Errno::OPNOTSUPP, "interface");
    let mut marked = policy(1, 0);
    marked.attributes.push(Attribute::IfId(9));
    spoken.refuses(marked, Errno::OPNOTSUPP, "if_id");
    let clear = Message { body: Body::NewPolicy(policy_info(1, 100)), attributes: [].into() };
    spoken.refuses(clear, Errno::OPNOTSUPP, "in clear");
    // pluto's, which lets nothing pass here.
    let mut discovery = policy_info(1, 100);
    discovery.selector = Selector {
        protocol: 58,
        source_port: 135,
        source_port_mask: u16::MAX,
        family: family::IPV6,
        ..Selector::default()
    };
    let clear = Message { body: Body::NewPolicy(discovery), attributes: [].into() };
    spoken.takes(clear);
    assert_eq!(spoken.says(Body::FlushPolicies).0, 0);
    let two = vec![template(1, 0), template(1, 0)];
    let two =
        Message { body: Body::NewPolicy(policy_info(1, 1)), attributes: [Attribute::Templates(two)].into() };
    spoken.refuses(two, Errno::OPNOTSUPP, "several templates");
    let mut elsewhere = sa(0x5001, false, 21);
    let udp = testudo_wire::xfrm::sa::Encapsulation { kind: 2, source_port: 4501, ..Default::default() };
    elsewhere.attributes.push(Attribute::Encapsulation(udp));
    spoken.refuses(elsewhere, Errno::OPNOTSUPP, "not at 4501");
    assert_eq!((spoken.tunnels().len(), spoken.tunnels().count_policies()), (0, 0));
    assert!(spoken.routes.changes().is_empty());
}

/// Whatever becomes of a request, SAs that are there go on as they did.
#[test]
fn an_sa_that_cannot_be_added_redirects_no_other() {
    let mut spoken = Spoken::new();
    spoken.takes(policy(1, 0));
    let mut first = sa(0x5001, false, 21);
    first.attributes.push(Attribute::Mark(testudo_wire::xfrm::selector::Mark { value: 1, mask: 0xFF }));
    spoken.takes(first);
    assert_eq!(spoken.seals().map(|(spi, number, _)| (spi, number)), Some((0x5001, 1)));
    // The same SPI in the same tunnel, under another mark.
    let mut second = sa(0x5001, false, 22);
    second.attributes.push(Attribute::Mark(testudo_wire::xfrm::selector::Mark { value: 2, mask: 0xFF }));
    let udp = testudo_wire::xfrm::sa::Encapsulation { kind: 2, destination_port: 9, ..Default::default() };
    second.attributes.push(Attribute::Encapsulation(udp));
    spoken.refuses(second, Errno::INVAL, "0x5001");
    assert_eq!(spoken.seals().map(|(spi, number, _)| (spi, number)), Some((0x5001, 2)), "not in UDP");
}

/// Two SAs with one SPI would be told apart by nothing: the reload waits until one has gone.
#[test]
fn a_reload_may_not_take_the_spi_of_a_negotiated_sa() {
    let mut spoken = Spoken::new();
    spoken.takes(sa(0x3002, true, 31));
    let installed = spoken.gateway.shared.installed();
    let mut loaded = loaded_with("", "");
    let check = |loaded: &_| spoken.gateway.sas().lock().check(&installed, loaded);
    assert_eq!(check(&loaded), Ok(()));
    loaded.configuration.tunnels[0].inbound.spi = 0x3002;
    let refused = check(&loaded).unwrap_err();
    assert!(refused.contains("0x3002") && refused.contains("ike:1"), "{refused}");
}

/// A template in transport mode that names no addresses is for its packets' own, as the kernel has it.
#[test]
fn a_template_of_transport_mode_without_addresses_has_its_packets_own() {
    let host = |last| testudo_ipsec::AddressRange::host(IpAddr::from([192, 0, 2, last]));
    let packets = testudo_ipsec::Selector::between(host(1), host(2));
    let unspecified = IpAddr::from([0; 4]).into();
    let mut template = template(1, 0);
    (template.source, template.id.destination) = (unspecified, unspecified);
    let tunnel = TemplateKey::of_template(&template, &packets, true, 0).unwrap();
    assert!(tunnel.local.is_unspecified() && tunnel.remote.is_unspecified());
    template.mode = mode::TRANSPORT;
    for is_outbound in [true, false] {
        let key = TemplateKey::of_template(&template, &packets, is_outbound, 0).unwrap();
        assert_eq!((key.local, key.remote), (LOCAL, PEER));
    }
}
