//! The SPD against a list of policies that is searched from its first to its last, for random policies of
//! every kind, random changes, and random packets.

use super::flow::is_of_messages;
use super::*;
use proptest::prelude::*;
use std::net::IpAddr;
use testudo_packet::Interface;
use testudo_wire::ip::Version;
use testudo_wire::next_layer::NextLayerFields;
use testudo_wire::protocol::ICMP;

/// The policies, in order, with their names in the SPD.
#[derive(Debug, Default)]
struct Model(Vec<(PolicyId, Policy)>);

impl Model {
    /// The verdict at an interface, and its policy: policies are asked one by one.
    fn lookup(&self, interface: Interface, flow: &Flow) -> (Verdict, Option<PolicyId>) {
        let mut concerned = None;
        let is_asked =
            |policy: &Policy| policy.interface == interface && policy.directions.include(flow.direction());
        for (id, policy) in self.0.iter().filter(|(_, policy)| is_asked(policy)) {
            let fits: Vec<_> =
                policy.selectors.iter().map(|s| (s.fit(flow), asks_for_opaque(s, flow))).collect();
            // A selector without OPAQUE says more than one with it.
            let sure =
                fits.iter().filter(|(fit, _)| *fit == selector::Fit::Sure).map(|(_, opaque)| *opaque).min();
            if let Some(by_opaque) = sure {
                let before = concerned.unwrap_or(*id);
                return match (policy.action, by_opaque && flow.hides_fields(), concerned) {
                    (Action::Bypass, true, _) => (Verdict::FieldsHidden, Some(before)),
                    (action, true, _) | (action, false, None) => (Verdict::Policy(action), Some(*id)),
                    (_, false, Some(_)) => (Verdict::FieldsHidden, Some(before)),
                };
            }
            if concerned.is_none() && fits.iter().any(|(fit, _)| *fit == selector::Fit::Perhaps) {
                concerned = Some(*id);
            }
        }
        (if concerned.is_some() { Verdict::FieldsHidden } else { Verdict::NoPolicy }, concerned)
    }
}

/// Whether it asks for OPAQUE at an end that has a say.
fn asks_for_opaque(selector: &Selector, flow: &Flow) -> bool {
    let ends = match (selector.protocol.is_of_messages(), flow.direction()) {
        (true, Direction::Outbound) => vec![selector.local_ports],
        (true, Direction::Inbound) => vec![selector.remote_ports],
        (false, _) => vec![selector.local_ports, selector.remote_ports],
    };
    selector.protocol == Protocol::Opaque || ends.contains(&PortRange::OPAQUE)
}

fn address(v6: bool) -> BoxedStrategy<IpAddr> {
    // Few distinct bits, so that prefixes overlap and nest often.
    if v6 {
        (0..4u128, 0..4u128).prop_map(|(a, b)| IpAddr::V6((0xFD00 << 112 | a << 3 | b).into())).boxed()
    } else {
        (0..4u32, 0..4u32).prop_map(|(a, b)| IpAddr::V4((0x0A00_0000 | a << 3 | b).into())).boxed()
    }
}

fn addresses(v6: bool) -> BoxedStrategy<AddressRange> {
    let lengths = prop_oneof![Just(0u8), Just(8), Just(27), Just(28), Just(29), Just(30), Just(31), Just(32)];
    let prefix = (address(v6), lengths)
        .prop_map(|(a, l)| Prefix::new(a, if a.is_ipv4() || l == 0 { l } else { l + 96 }).unwrap().into());
    let range = (address(v6), address(v6)).prop_map(|(a, b)| AddressRange::new(a.min(b), a.max(b)).unwrap());
    prop_oneof![1 => Just(AddressRange::ANY), 6 => prefix, 2 => range].boxed()
}

fn ports() -> impl Strategy<Value = PortRange> {
    prop_oneof![
        4 => Just(PortRange::ANY),
        1 => Just(PortRange::OPAQUE),
        3 => (0..6u16, 0..6u16).prop_map(|(a, b)| PortRange { first: a.min(b), last: a.max(b) }),
    ]
}

fn protocol() -> impl Strategy<Value = Protocol> {
    prop_oneof![
        3 => Just(Protocol::Any),
        1 => Just(Protocol::Opaque),
        4 => prop_oneof![Just(6u8), Just(17), Just(1), Just(58), Just(47)].prop_map(Protocol::Is),
    ]
}

fn selector() -> impl Strategy<Value = Selector> {
    let ends = prop_oneof![4 => Just((false, false)), 4 => Just((true, true)), 1 => Just((true, false))];
    let ends = ends.prop_flat_map(|(a, b)| (addresses(a), addresses(b)));
    (ends, protocol(), ports(), ports()).prop_map(|((local, remote), protocol, local_ports, remote_ports)| {
        Selector { local, remote, protocol, local_ports, remote_ports }
    })
}

/// Many of them between the same networks, so that their ports are indexed.
fn selectors() -> impl Strategy<Value = Vec<Selector>> {
    let network = |text: &str| Prefix::new(text.parse().unwrap(), 28).unwrap();
    let between = Selector::between(network("10.0.0.0"), network("10.0.0.0"));
    let alike = selector().prop_map(move |s| Selector { local: between.local, remote: between.remote, ..s });
    prop::collection::vec(prop_oneof![2 => selector(), 3 => alike], 1..4)
}

fn policy() -> impl Strategy<Value = Policy> {
    let action = prop_oneof![
        Just(Action::Bypass),
        Just(Action::Discard),
        any::<u32>().prop_map(|n| Action::Protect(TunnelIndex(n))),
        any::<u32>().prop_map(|n| Action::Populate(TunnelIndex(n))),
    ];
    let directions = prop_oneof![
        3 => Just(Directions::Both), 1 => Just(Directions::Outbound), 1 => Just(Directions::Inbound)
    ];
    let parts = (selectors(), interface(), directions, action, populate_flags());
    parts.prop_map(|(selectors, interface, directions, action, flags)| Policy {
        selectors: selectors.into(),
        interface,
        directions,
        action,
        populate: if matches!(action, Action::Populate(_)) { flags } else { PopulateFlags::default() },
        asks_for_own: false,
    })
}

/// Most often the main one; no policy has the last of [`INTERFACES`].
fn interface() -> impl Strategy<Value = Interface> {
    prop_oneof![6 => Just(Interface::MAIN), 3 => Just(Interface(1)), 1 => Just(Interface(7))]
}

const INTERFACES: [Interface; 5] =
    [Interface::MAIN, Interface(1), Interface(7), Interface(6), Interface(200)];

fn populate_flags() -> impl Strategy<Value = PopulateFlags> {
    (1..64u8).prop_map(|bits| {
        let set = PopulateFlags::NAMED.into_iter().enumerate().filter(|(at, _)| bits >> at & 1 == 1);
        set.fold(PopulateFlags::default(), |flags, (_, (_, flag))| flags.with(flag))
    })
}

/// A policy as a configuration allows it beside these flags: no OPAQUE (RFC 4301 4.4.2.2), a protocol where
/// ports or types are populated, and the same messages in both directions where their types are.
fn may_populate(policy: &Policy) -> bool {
    let flags = policy.populate;
    policy.selectors.iter().all(|s| {
        let has = |flag| flags.has(flag);
        let fields = [PopulateFlags::LOCAL_PORTS, PopulateFlags::REMOTE_PORTS, PopulateFlags::TYPES];
        let fields = fields.into_iter().any(has);
        let is_named = matches!(s.protocol, Protocol::Is(_));
        let of_messages = has(PopulateFlags::TYPES) && s.protocol.is_of_messages();
        let is_wrong = [
            has(PopulateFlags::PROTOCOL) && s.protocol == Protocol::Opaque,
            fields && [s.local_ports, s.remote_ports].contains(&PortRange::OPAQUE),
            fields && !has(PopulateFlags::PROTOCOL) && !is_named,
            of_messages && s.local_ports != s.remote_ports,
        ];
        !is_wrong.contains(&true)
    })
}

fn fields() -> impl Strategy<Value = (u8, Option<NextLayerFields>)> {
    let ports = (prop_oneof![Just(6u8), Just(17)], 0..6u16, 0..6u16)
        .prop_map(|(protocol, a, b)| (protocol, Some(NextLayerFields::Ports(a, b))));
    let message = (prop_oneof![Just(1u8), Just(58)], 0..6u8)
        .prop_map(|(protocol, code)| (protocol, Some(NextLayerFields::Icmp(0, code))));
    let none = prop_oneof![Just(6u8), Just(17), Just(1), Just(47), Just(253)].prop_map(|p| (p, None));
    prop_oneof![3 => ports, 1 => message, 1 => none]
}

fn flow() -> impl Strategy<Value = Flow> {
    let direction = prop_oneof![Just(Direction::Outbound), Just(Direction::Inbound)];
    let ends = prop_oneof![2 => (address(false), address(false)), 1 => (address(true), address(true))];
    (direction, ends, fields(), prop::bool::weighted(0.2)).prop_map(
        |(direction, (l, r), (p, fields), later)| {
            if later {
                Flow::of_later_fragments(direction, l, r, p)
            } else {
                Flow::new(direction, l, r, p, fields)
            }
        },
    )
}

/// Checks every kind of lookup.
fn assert_same(spd: &Spd, model: &Model, flows: &[Flow]) -> Result<(), TestCaseError> {
    prop_assert_eq!(spd.len(), model.0.len());
    prop_assert!(spd.policies().eq(model.0.iter().map(|(id, policy)| (*id, policy))));
    for (flow, interface) in flows.iter().flat_map(|flow| INTERFACES.map(|interface| (flow, interface))) {
        let (verdict, policy) = model.lookup(interface, flow);
        let spd = spd.of(interface);
        prop_assert_eq!(spd.lookup(flow), (verdict, policy), "{:?} {:?}", interface, flow);
        prop_assert_eq!(spd.verdict(flow), verdict, "{:?} {:?}", interface, flow);
        if flow.version() == Version::V4 && !flow.hides_fields() {
            let answer = spd.answer_v4(flow.direction(), Pair::new(flow.local(), flow.remote()));
            if let Some(answer) = answer.verdict() {
                prop_assert_eq!(answer, verdict, "by addresses: {:?}", flow);
            }
        }
    }
    Ok(())
}

fn built(policies: Vec<Policy>) -> (Spd, Model) {
    let spd = Spd::new(policies).unwrap();
    let model = Model(spd.policies().map(|(id, policy)| (id, policy.clone())).collect());
    (spd, model)
}

proptest! {
    #[test]
    fn the_index_finds_what_a_scan_finds(
        policies in prop::collection::vec(policy(), 0..60),
        flows in prop::collection::vec(flow(), 50),
    ) {
        let (spd, model) = built(policies);
        assert_same(&spd, &model, &flows)?;
    }

    #[test]
    fn policies_come_and_go_one_by_one(
        policies in prop::collection::vec(policy(), 0..20),
        changes in prop::collection::vec((0..10u8, any::<usize>(), policy()), 0..80),
        flows in prop::collection::vec(flow(), 12),
    ) {
        let (mut spd, mut model) = built(policies);
        for (kind, at, policy) in changes {
            let count = model.0.len();
            let at = at % (count + 1);
            let id = model.0.get(at).map(|(id, _)| *id);
            match (kind, id) {
                (0..=2, Some(id)) => {
                    prop_assert_eq!(spd.remove(id), Ok(model.0.remove(at).1));
                    prop_assert_eq!(spd.remove(id), Err(SpdError::UnknownPolicy));
                    prop_assert_eq!(spd.get(id), None);
                }
                (3, Some(id)) => {
                    let before = std::mem::replace(&mut model.0[at].1, policy.clone());
                    prop_assert_eq!(spd.replace(id, policy), Ok(before));
                }
                (8, _) | (4 | 6, None) => {
                    let id = spd.insert(Position::Last, policy.clone()).unwrap();
                    model.0.push((id, policy));
                }
                (_, Some(before)) if kind % 2 == 0 => {
                    let id = spd.insert(Position::Before(before), policy.clone()).unwrap();
                    model.0.insert(at, (id, policy));
                }
                _ => {
                    let position = at.checked_sub(1).map(|at| Position::After(model.0[at].0));
                    let id = spd.insert(position.unwrap_or(Position::First), policy.clone()).unwrap();
                    model.0.insert(at, (id, policy));
                }
            }
            assert_same(&spd, &model, &flows)?;
        }
        // Nothing is left of what was removed.
        for (id, _) in std::mem::take(&mut model.0) {
            prop_assert!(spd.remove(id).is_ok());
        }
        prop_assert!(spd.is_empty() && !spd.is_indexed());
        for interface in INTERFACES {
            let spd = spd.of(interface);
            prop_assert!(!spd.is_indexed());
            prop_assert!(flows.iter().all(|flow| spd.lookup(flow) == (Verdict::NoPolicy, None)));
        }
    }
}

/// Whether a message is dropped that hides its type, because its policy decided on it by OPAQUE ports without
/// a protocol, and its SA has the protocol: see `types_of`.
fn is_lost_opaque(template: &Policy, flow: &Flow, found: Verdict) -> bool {
    let is_by_ports = |s: &Selector| {
        s.protocol == Protocol::Any && [s.local_ports, s.remote_ports].contains(&PortRange::OPAQUE)
    };
    let is_message = flow.protocol().is_some_and(is_of_messages);
    found == Verdict::FieldsHidden
        && flow.hides_fields()
        && is_message
        && template.selectors.iter().any(|s| is_by_ports(s) && s.matches(flow))
}

/// An earlier policy may be about the type that the packet hides. OPAQUE decided all the same; what is taken
/// out of it for an SA has no way to say so, and the packet is dropped and does not go a wrong way.
#[test]
fn a_message_that_hides_its_type_is_dropped_where_opaque_ports_decided_on_it() {
    let ping = Selector { protocol: ICMP.into(), local_ports: PortRange::one(8 << 8), ..Selector::ANY };
    let opaque = Selector { local_ports: PortRange::OPAQUE, ..Selector::ANY };
    let populating = Policy::populating(opaque, TunnelIndex(0), PopulateFlags::PROTOCOL);
    let populate = populating.action;
    let (mut spd, model) = built(vec![Policy::new(ping, Action::Bypass), populating]);
    let message = |fields| {
        let (local, remote) = ("10.1.0.5".parse().unwrap(), "10.2.0.5".parse().unwrap());
        Flow::new(Direction::Outbound, local, remote, ICMP, fields)
    };
    let (hidden, pong) = (message(None), message(Some(NextLayerFields::Icmp(0, 0))));
    for flow in [&hidden, &pong] {
        let (verdict, policy) = model.lookup(Interface::MAIN, flow);
        assert_eq!((spd.lookup(flow), verdict), ((verdict, policy), Verdict::Policy(populate)));
    }
    let template = spd.lookup(&pong).1.unwrap();
    let values = PacketValues::of(&pong, PopulateFlags::PROTOCOL).unwrap();
    let policy = spd.get(template).unwrap().clone();
    let own = policy.of_populated(TunnelIndex(7), policy.populated(&values).into());
    spd.insert(Position::Before(template), own).unwrap();
    assert_eq!(spd.verdict(&pong), Verdict::Policy(Action::Protect(TunnelIndex(7))));
    assert_eq!(spd.verdict(&hidden), Verdict::FieldsHidden);
}

proptest! {
    /// RFC 4301 4.4.1.2 and 4.4.2.2 in a sentence: the packets of one SA are those that its policy decides on
    /// and that have the same values at the fields with a flag. The model asks nothing else; the SPD has a
    /// policy for each SA that a packet has asked for so far.
    #[test]
    fn each_flow_has_the_sa_that_was_populated_with_its_values(
        policies in prop::collection::vec(policy().prop_filter("no populating that is refused", |p| {
            let is_refused = matches!(p.action, Action::Populate(_)) && !may_populate(p);
            p.interface == Interface::MAIN && !is_refused
        }), 1..24),
        flows in prop::collection::vec(flow(), 60),
    ) {
        let (mut spd, model) = built(policies);
        let mut sas: Vec<(PolicyId, PacketValues, TunnelIndex)> = Vec::new();
        for flow in &flows {
            let (expected, policy) = model.lookup(Interface::MAIN, flow);
            let asked = match expected {
                Verdict::Policy(Action::Populate(_)) => policy.and_then(|policy| {
                    let flags = spd.get(policy).unwrap().populate;
                    PacketValues::of(flow, flags).zip(Some(policy))
                }),
                _ => None,
            };
            let known = asked.and_then(|(v, p)| sas.iter().find(|sa| (sa.0, sa.1) == (p, v)).map(|sa| sa.2));
            let (found, id) = spd.lookup(flow);
            if let Some((tunnel, (_, policy))) = known.zip(asked) {
                let protects = found == Verdict::Policy(Action::Protect(tunnel));
                prop_assert!(protects || is_lost_opaque(spd.get(policy).unwrap(), flow, found), "{:?}", flow);
                continue;
            }
            match expected {
                // It may be one of an SA that is there, so that it is dropped as before.
                Verdict::Policy(Action::Populate(_)) if asked.is_none() => {
                    prop_assert!(found == expected || found == Verdict::FieldsHidden, "{:?}", found);
                }
                // The policy that it depends on may be that of an SA, ahead of the one it is populated for.
                Verdict::FieldsHidden => prop_assert_eq!(found, expected, "{:?}", flow),
                _ => prop_assert_eq!((found, id), (expected, policy), "{:?}", flow),
            }
            let Some((values, policy)) = asked.filter(|_| flow.direction() == Direction::Outbound) else { continue };
            let template = spd.get(policy).unwrap().clone();
            let selectors = template.populated(&values);
            if selectors.is_empty() {
                continue;
            }
            // Nothing goes into an SA that its policy would not have decided on.
            for other in flows.iter().filter(|other| selectors.iter().any(|own| own.matches(other))) {
                prop_assert!(template.selectors.iter().any(|wide| wide.matches(other)), "{:?}", other);
            }
            let tunnel = TunnelIndex(1_000_000 + sas.len() as u32);
            let own = template.of_populated(tunnel, selectors.into());
            spd.insert(Position::Before(policy), own).unwrap();
            sas.push((policy, values, tunnel));
            let found = spd.verdict(flow);
            let protects = found == Verdict::Policy(Action::Protect(tunnel));
            prop_assert!(protects || is_lost_opaque(&template, flow, found), "{:?}", flow);
        }
    }
}

proptest! {
    /// RFC 4301 5.2, step 4: the selectors of an SA, one by one, and by the index that many of them have.
    #[test]
    fn a_packet_may_come_out_of_an_sa_if_one_of_its_selectors_holds_it(
        selectors in prop::collection::vec(selector(), 0..40),
        flows in prop::collection::vec(flow(), 50),
    ) {
        use selector::Fit;
        let inbound = InboundSelectors::new(&selectors.as_slice().into());
        for flow in &flows {
            let fit = selectors.iter().map(|s| s.fit(flow)).max().unwrap_or(Fit::No);
            let expected = match fit {
                Fit::Sure => Ok(()),
                Fit::Perhaps => Err(testudo_packet::DropReason::FieldsHidden),
                Fit::No => Err(testudo_packet::DropReason::SelectorMismatch),
            };
            prop_assert_eq!(inbound.search(flow), expected, "{:?}", flow);
            prop_assert!(!inbound.holds(flow) || fit == Fit::Sure, "{:?}", flow);
            let pair = Pair::new(flow.local(), flow.remote());
            if flow.version() == Version::V4 && !flow.hides_fields() && inbound.holds_pair(pair) {
                prop_assert_eq!(fit, Fit::Sure, "by addresses: {:?}", flow);
            }
        }
    }
}

/// The strategies above reach every kind of lookup: by a scan, by few and by many tuples, by a list and by
/// the index of ports.
#[test]
fn random_policies_reach_every_kind_of_lookup() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let strategy = (prop::collection::vec(policy(), 0..60), prop::collection::vec(flow(), 20));
    let (mut by_scan, mut by_few, mut by_many) = (0, 0, 0);
    for _ in 0..200 {
        let (policies, flows) = strategy.new_tree(&mut runner).unwrap().current();
        let spd = Spd::new(policies).unwrap();
        for flow in flows {
            let LookupCost { tables, nodes, .. } = spd.lookup_cost(&flow);
            match (spd.is_indexed(), nodes) {
                (false, _) => by_scan += 1,
                (true, 0) => by_few += usize::from(tables > 0),
                (true, _) => by_many += 1,
            }
        }
    }
    assert!(by_scan > 20 && by_few > 100 && by_many > 1000, "{by_scan} {by_few} {by_many}");
}

/// More than eight policies between the same networks: their ports are indexed, and become a list again.
#[test]
fn policies_between_two_networks_are_found_by_their_ports() {
    let network = |text: &str| Prefix::new(text.parse().unwrap(), 16).unwrap();
    let between = Selector::between(network("10.1.0.0"), network("10.2.0.0"));
    let policy = |number: u16| {
        let (protocol, ports) = (Protocol::Is(6), PortRange { first: number, last: number + 9 });
        let selector = Selector { protocol, remote_ports: ports, ..between };
        Policy::new(selector, Action::Protect(TunnelIndex(number.into())))
    };
    let mut spd = Spd::new((0..5000).map(|n| policy(10 * n))).unwrap();
    let tunnel = |spd: &Spd, port| {
        let ends = ("10.1.0.1".parse().unwrap(), "10.2.0.1".parse().unwrap());
        let flow = Flow::new(Direction::Outbound, ends.0, ends.1, 6, Some(NextLayerFields::Ports(7, port)));
        assert!(spd.lookup_cost(&flow).nodes < 40 && spd.lookup_cost(&flow).policies <= 8);
        match spd.verdict(&flow) {
            Verdict::Policy(Action::Protect(TunnelIndex(number))) => Some(number),
            verdict => {
                assert_eq!(verdict, Verdict::NoPolicy);
                None
            }
        }
    };
    assert!((0..50_000u16).all(|port| tunnel(&spd, port) == Some(u32::from(port) / 10 * 10)));
    assert_eq!(tunnel(&spd, 50_000), None);
    let ids: Vec<PolicyId> = spd.policies().map(|(id, _)| id).collect();
    for (number, id) in ids.iter().enumerate().skip(3) {
        assert_eq!(tunnel(&spd, 10 * number as u16 + 5), Some(10 * number as u32));
        spd.remove(*id).unwrap();
        assert_eq!(tunnel(&spd, 10 * number as u16 + 5), None);
    }
    assert_eq!((spd.len(), tunnel(&spd, 29), tunnel(&spd, 30)), (3, Some(20), None));
}

/// What waits across a reload, as an acquire does, must not name whichever policy is in that place now. A
/// copy has the same names, also of what is added to both.
#[test]
fn the_name_of_a_policy_names_none_of_another_spd() {
    let policy = || Policy::new(Selector::ANY, Action::Discard);
    let mut before = Spd::new([policy(), policy()]).unwrap();
    let mut after = Spd::new([policy(), policy(), policy()]).unwrap();
    let mut copy = before.clone();
    let added = before.insert(Position::Last, policy()).unwrap();
    assert_eq!(copy.insert(Position::Last, policy()), Ok(added));
    let names: Vec<PolicyId> = before.policies().map(|(id, _)| id).collect();
    assert!(copy.policies().map(|(id, _)| id).eq(names.iter().copied()));
    for id in names {
        assert!(before.get(id).is_some() && copy.get(id).is_some() && after.get(id).is_none());
        assert_eq!(after.remove(id), Err(SpdError::UnknownPolicy));
        assert_eq!(after.replace(id, policy()), Err(SpdError::UnknownPolicy));
        assert_eq!(after.insert(Position::Before(id), policy()), Err(SpdError::UnknownPolicy));
    }
    assert_eq!(after.len(), 3);
}

#[test]
fn a_policy_between_two_versions_matches_nothing() {
    let any = |address: &str| Prefix::new(address.parse().unwrap(), 0).unwrap();
    let nonsense = Policy::new(Selector::between(any("0.0.0.0"), any("::")), Action::Discard);
    let all = Policy::new(Selector::ANY, Action::Bypass);
    let spd = Spd::new(std::iter::repeat_n(nonsense, 20).chain([all])).unwrap();
    for (local, remote) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
        let (local, remote) = (local.parse().unwrap(), remote.parse().unwrap());
        let flow = Flow::new(Direction::Outbound, local, remote, 17, Some(NextLayerFields::Ports(1, 2)));
        assert_eq!(spd.verdict(&flow), Verdict::Policy(Action::Bypass));
    }
}

#[test]
fn ranges_that_make_too_many_prefixes_are_refused() {
    let range =
        |first: &str, last: &str| AddressRange::new(first.parse().unwrap(), last.parse().unwrap()).unwrap();
    let v4 = range("0.0.0.1", "255.255.255.254");
    let v6 = range("::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe");
    let mut spd = Spd::default();
    let mut insert = |selector| spd.insert(Position::Last, Policy::new(selector, Action::Discard)).map(drop);
    assert_eq!(insert(Selector::between(v4, v4)), Ok(()), "62 times 62");
    assert_eq!(insert(Selector::between(v6, v6)), Err(SpdError::TooManyPieces));
    let ports = PortRange { first: 1, last: 65_534 };
    let worst = Selector { protocol: 6.into(), local_ports: ports, remote_ports: ports, ..Selector::ANY };
    assert_eq!(insert(worst), Ok(()), "30 times 30, for two versions");
    assert_eq!(insert(Selector { remote: v4, ..worst }), Err(SpdError::TooManyPieces));
    assert_eq!(spd.len(), 2);
}

/// RFC 4301 7.2: fragments may have an SA of their own, by OPAQUE; 7.4: none passes in clear for that.
#[test]
fn opaque_decides_on_fragments_after_ports_but_never_lets_them_bypass() {
    let web = Selector { protocol: 6.into(), remote_ports: PortRange::one(443), ..Selector::ANY };
    let later = Selector { remote_ports: PortRange::OPAQUE, ..web };
    let any = Selector { remote_ports: PortRange::ANY, ..web };
    let protect = |n| Action::Protect(TunnelIndex(n));
    let (a, b) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
    let fragment = Flow::of_later_fragments(Direction::Outbound, a, b, 6);
    for (policies, expected) in [
        (vec![(web, protect(1)), (later, protect(2))], Verdict::Policy(protect(2))),
        (vec![(later, protect(2)), (web, protect(1))], Verdict::Policy(protect(2))),
        (vec![(web, protect(1)), (later, Action::Discard)], Verdict::Policy(Action::Discard)),
        (vec![(web, protect(1)), (later, Action::Bypass)], Verdict::FieldsHidden),
        (vec![(later, Action::Bypass), (web, protect(1))], Verdict::FieldsHidden),
        (vec![(later, Action::Bypass)], Verdict::FieldsHidden),
        (vec![(web, protect(1)), (any, protect(3)), (later, protect(2))], Verdict::FieldsHidden),
        (vec![(web, protect(1))], Verdict::FieldsHidden),
    ] {
        for padding in [0, 20] {
            // Enough policies for other packets, so that the index is asked.
            let other = Policy::new(Selector { protocol: 47.into(), ..Selector::ANY }, Action::Discard);
            let own = policies.iter().map(|(selector, action)| Policy::new(*selector, *action));
            let spd = Spd::new(std::iter::repeat_n(other, padding).chain(own)).unwrap();
            assert_eq!(spd.verdict(&fragment), expected, "{policies:?}");
        }
    }
}
