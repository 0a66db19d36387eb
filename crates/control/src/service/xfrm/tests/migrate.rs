//! MIGRATE and NEWAE: SAs that live get other addresses and numbers.

use super::model::{sa_with, update};
use super::*;
use testudo_wire::xfrm::lifetime::LifetimeCurrent;
use testudo_wire::xfrm::notification::Expire;
use testudo_wire::xfrm::policy::{KeyExchangeAddresses, Migration, Template};
use testudo_wire::xfrm::replay::{EsnFixed, ReplayState, ReplayStateEsn};
use testudo_wire::xfrm::sa::{Encapsulation, EventId};
use testudo_wire::xfrm::sa_flag;

const EINVAL: i32 = -22;
const ENOENT: i32 = -2;
const ENODATA: i32 = -61;
const EBUSY: i32 = -16;
const EOPNOTSUPP: i32 = -95;
const REQID: u32 = 7;

fn address(last: u8) -> Address {
    IpAddr::from([192, 0, 2, last]).into()
}

/// An SA of the bundle, to this host from the peer at .2.
fn of_bundle(spi: u32) -> Message {
    let message = sa(spi);
    let Body::NewSa(info) = message.body else { panic!("an SA") };
    Message { body: Body::NewSa(SaInfo { reqid: REQID, ..info }), ..message }
}

/// An inbound policy of the bundle.
fn of_tunnel() -> Message {
    let Body::NewPolicy(info) = policy(80).body else { panic!("a policy") };
    let template = Template {
        id: Id { destination: address(1), spi: 0, protocol: 50 },
        source: address(2),
        family: family::IPV4,
        reqid: REQID,
        mode: mode::TUNNEL,
        ..Template::default()
    };
    let attributes = [Attribute::Templates(vec![template])].into();
    Message { body: Body::NewPolicy(PolicyInfo { direction: 0, ..info }), attributes }
}

/// The peer goes from .2 to another address.
fn entry(to: u8) -> Migration {
    Migration {
        old_destination: address(1),
        old_source: address(2),
        new_destination: address(1),
        new_source: address(to),
        protocol: 50,
        mode: mode::TUNNEL,
        reqid: REQID,
        old_family: family::IPV4,
        new_family: family::IPV4,
    }
}

fn migrate(entries: &[Migration]) -> Message {
    let Body::NewPolicy(info) = of_tunnel().body else { panic!("a policy") };
    let body = Body::Migrate(PolicyId { selector: info.selector, index: 0, direction: 0 });
    Message { body, attributes: [Attribute::Migrations(entries.to_vec())].into() }
}

/// With an SA and its policy.
fn with_tunnel() -> Direct {
    let mut direct = Direct::default();
    assert_eq!(direct.ask(of_bundle(0x1001)), Ok(None));
    assert_eq!(direct.ask(of_tunnel()), Ok(None));
    direct.told.clear();
    direct
}

fn source_of(direct: &Direct, spi: u32) -> IpAddr {
    direct.xfrm.data_path.sas.values().find(|sa| sa.key.spi == spi).unwrap().source
}

fn template_of(direct: &Direct) -> Template {
    direct.xfrm.data_path.policies.values().next().unwrap().templates[0]
}

#[test]
fn a_policy_and_its_sa_move_and_those_who_listen_hear_where() {
    let mut direct = with_tunnel();
    let place = direct.xfrm.data_path.sas.values().next().unwrap().place;
    let mut message = migrate(&[entry(9)]);
    let key_exchange = KeyExchangeAddresses {
        local: address(1),
        remote: address(9),
        family: family::IPV4,
        ..KeyExchangeAddresses::default()
    };
    message.attributes.push(Attribute::KeyExchange(key_exchange));
    let selector = of_tunnel();
    assert_eq!(direct.ask(message), Ok(None));
    assert_eq!(source_of(&direct, 0x1001), IpAddr::from([192, 0, 2, 9]));
    assert_eq!((template_of(&direct).source, template_of(&direct).id.destination), (address(9), address(1)));
    let (info, _) = direct.shown(0x1001, Attributes::default()).unwrap();
    assert_eq!((info.source, info.current.packets), (address(9), 7), "with what it was used for");
    let [(group, header, told)] = &direct.told[..] else { panic!("{:?}", direct.told) };
    assert_eq!((*group, header.sequence, header.port), (group::MIGRATE, 0, 0));
    let Body::NewPolicy(own) = selector.body else { panic!("a policy") };
    assert_eq!(told.body, Body::Migrate(PolicyId { selector: own.selector, index: 0, direction: 0 }));
    assert_eq!(told.attributes.migrations(), Some(&vec![entry(9)]));
    assert_eq!(told.attributes.key_exchange(), Some(&key_exchange));
    // The policy shows it, and the SA still ends by the number that it had.
    let id = PolicyId { selector: own.selector, index: 0, direction: 0 };
    let shown = direct.ask(Body::GetPolicy(id)).unwrap().unwrap();
    assert_eq!(shown.attributes.templates().unwrap()[0].source, address(9));
    assert!(direct.xfrm.reached_limit(place, true).is_some());
    assert!(direct.xfrm.data_path.sas.is_empty());
}

/// pluto moves the policies of a tunnel one by one, of which two share an SA.
#[test]
fn a_policy_whose_sa_has_moved_already_moves_alone() {
    let mut direct = with_tunnel();
    let forward = of_tunnel();
    let Body::NewPolicy(info) = forward.body else { panic!("a policy") };
    let forward = Message { body: Body::NewPolicy(PolicyInfo { direction: 2, ..info }), ..forward };
    assert_eq!(direct.ask(forward), Ok(None));
    assert_eq!(direct.ask(migrate(&[entry(9)])), Ok(None));
    let message = migrate(&[entry(9)]);
    let Body::Migrate(id) = message.body else { panic!("a migration") };
    let of_forward = Message { body: Body::Migrate(PolicyId { direction: 2, ..id }), ..message };
    assert_eq!(direct.ask(of_forward), Ok(None));
    let model = &direct.xfrm.data_path;
    assert!(model.policies.values().all(|policy| policy.templates[0].source == address(9)));
}

#[test]
fn of_several_sas_of_a_bundle_the_latest_moves() {
    let mut direct = with_tunnel();
    assert_eq!(direct.ask(of_bundle(0x1002)), Ok(None));
    assert_eq!(direct.ask(sa(0x1003)), Ok(None), "of another bundle");
    direct.reserve(0x1004);
    assert_eq!(direct.ask(migrate(&[entry(9)])), Ok(None));
    let sources: Vec<_> = [0x1001, 0x1002, 0x1003].map(|spi| source_of(&direct, spi)).into();
    let [there, new] = [[192, 0, 2, 2], [192, 0, 2, 9]].map(IpAddr::from);
    assert_eq!(sources, [there, new, there]);
    // Without a bundle, any of them: the latest that is no reservation.
    assert_eq!(direct.ask(of_tunnel_again()), Ok(None));
    assert_eq!(direct.ask(migrate(&[Migration { reqid: 0, ..entry(10) }])), Ok(None));
    assert_eq!(source_of(&direct, 0x1003), IpAddr::from([192, 0, 2, 10]));
}

fn of_tunnel_again() -> Message {
    let message = of_tunnel();
    let Body::NewPolicy(info) = message.body else { panic!("a policy") };
    Message { body: Body::UpdatePolicy(info), ..message }
}

#[test]
fn ports_move_with_the_addresses() {
    let mut direct = with_tunnel();
    let to = Encapsulation { kind: 2, source_port: 4501, destination_port: 4500, ..Encapsulation::default() };
    let mut message = migrate(&[entry(9)]);
    message.attributes.push(Attribute::Encapsulation(to));
    assert_eq!(direct.ask(message), Ok(None));
    let (_, shown) = direct.shown(0x1001, Attributes::default()).unwrap();
    assert_eq!(shown.encapsulation(), Some(&to), "a NAT has come into the way");
    assert_eq!(direct.told[0].2.attributes.encapsulation(), Some(&to));
    let mut message = migrate(&[entry(9)]);
    message.attributes.push(Attribute::Encapsulation(Encapsulation { kind: 7, ..to }));
    assert_eq!(direct.ask(message), Err(EOPNOTSUPP));
}

#[test]
fn what_cannot_move_is_refused_as_the_kernel_refuses_it() {
    let mut direct = with_tunnel();
    let nothing = Message { attributes: Attributes::default(), ..migrate(&[]) };
    assert_eq!(direct.ask(nothing), Err(EINVAL));
    let nowhere = Migration { new_source: Address::ANY, ..entry(9) };
    assert_eq!(direct.ask(migrate(&[nowhere])), Err(EINVAL));
    assert_eq!(direct.ask(migrate(&[entry(9), entry(10)])), Err(EINVAL), "two for the same SAs");
    let wild = migrate(&[entry(9), Migration { reqid: 0, ..entry(9) }]);
    assert_eq!(direct.ask(wild), Err(ENODATA), "two that mean the same SA");
    let message = migrate(&[entry(9)]);
    let Body::Migrate(id) = message.body else { panic!("a migration") };
    let other = |direction| Message { body: Body::Migrate(PolicyId { direction, ..id }), ..message.clone() };
    assert_eq!(direct.ask(other(1)), Err(ENOENT));
    assert_eq!(direct.ask(other(3)), Err(EINVAL));
    let mut of_interface = message.clone();
    of_interface.attributes.push(Attribute::IfId(5));
    assert_eq!(direct.ask(of_interface), Err(ENOENT));
    assert_eq!(direct.ask(migrate(&[Migration { reqid: 8, ..entry(9) }])), Err(ENODATA), "no such template");
    // The SPI is taken where the SA would end.
    let Body::NewSa(there) = sa(0x1001).body else { panic!("an SA") };
    let taken = SaInfo { id: Id { destination: address(3), ..there.id }, ..there };
    assert_eq!(direct.ask(Message { body: Body::NewSa(taken), ..sa(0x1001) }), Ok(None));
    let to_taken = Migration { new_destination: address(3), ..entry(9) };
    assert_eq!(direct.ask(migrate(&[to_taken])), Err(ENODATA));
    assert_eq!(source_of_first(&direct), IpAddr::from([192, 0, 2, 2]), "nothing has moved");
    assert_eq!(template_of(&direct).source, address(2));
    assert!(direct.told.iter().all(|(group, _, _)| *group != group::MIGRATE));
}

fn source_of_first(direct: &Direct) -> IpAddr {
    direct.xfrm.data_path.sas.values().min_by_key(|sa| sa.place).unwrap().source
}

#[test]
fn a_selector_of_any_protocol_means_each_policy_between_its_networks() {
    let mut direct = with_tunnel();
    let message = migrate(&[entry(9)]);
    let Body::Migrate(id) = message.body else { panic!("a migration") };
    let of = |protocol| {
        let selector = Selector { protocol, destination_port: 0, destination_port_mask: 0, ..id.selector };
        Message { body: Body::Migrate(PolicyId { selector, ..id }), ..message.clone() }
    };
    assert_eq!(direct.ask(of(6)), Err(ENOENT));
    assert_eq!(direct.ask(of(255)), Ok(None));
    assert_eq!(template_of(&direct).source, address(9));
}

/// Each of two SAs is refused in turn, and then the policy.
#[test]
fn what_has_moved_moves_back_when_the_rest_is_refused() {
    let mut direct = with_tunnel();
    let outbound = Migration {
        old_destination: address(2),
        old_source: address(1),
        new_destination: address(9),
        new_source: address(1),
        ..entry(9)
    };
    let message = of_bundle(0x2001);
    let Body::NewSa(info) = message.body else { panic!("an SA") };
    let info = SaInfo { id: Id { destination: address(2), ..info.id }, source: address(1), ..info };
    assert_eq!(direct.ask(Message { body: Body::NewSa(info), ..message }), Ok(None));
    let mut before: Vec<_> = direct.xfrm.data_path.sas.keys().copied().collect();
    before.sort_by_key(|key| key.spi);
    for refused in [Some(0x1001), Some(0x2001), None] {
        direct.xfrm.data_path.refused = refused.into_iter().collect();
        direct.xfrm.data_path.refuses_policies = refused.is_none();
        direct.told.clear();
        assert_eq!(direct.ask(migrate(&[entry(9), outbound])), Err(EBUSY), "{refused:?}");
        let mut after: Vec<_> = direct.xfrm.data_path.sas.keys().copied().collect();
        after.sort_by_key(|key| key.spi);
        assert_eq!(after, before);
        assert_eq!(source_of(&direct, 0x1001), IpAddr::from([192, 0, 2, 2]));
        assert_eq!(template_of(&direct).source, address(2));
        assert!(direct.told.is_empty());
        let id = Body::GetSa(SaInfo { ..info }.sa_id());
        assert!(direct.ask(id).is_ok(), "it is shown where it is");
    }
    direct.xfrm.data_path.refuses_policies = false;
    assert_eq!(direct.ask(migrate(&[entry(9), outbound])), Ok(None));
    assert!(direct.xfrm.data_path.sas.keys().any(|key| key.destination == IpAddr::from([192, 0, 2, 9])));
}

fn event(spi: u32, attributes: impl IntoIterator<Item = Attribute>) -> Message {
    let id = EventId { sa: id_of(&sa(spi)), ..EventId::default() };
    Message { body: Body::NewEvent(id), attributes: attributes.into_iter().collect() }
}

fn received(number: u32) -> Attribute {
    Attribute::Replay(ReplayState { received: number, ..ReplayState::default() })
}

#[test]
fn numbers_of_an_sa_are_set_forward_and_never_back() {
    let mut direct = Direct::default();
    assert_eq!(direct.ask(sa(0x1001)), Ok(None));
    direct.told.clear();
    assert_eq!(direct.ask(event(0x1001, [received(5)])), Err(EINVAL), "without NLM_F_REPLACE");
    let set = |direct: &mut Direct, spi, attribute| direct.ask_with(event(spi, [attribute]), flag::REPLACE);
    assert_eq!(direct.ask_with(event(0x1001, []), flag::REPLACE), Err(EINVAL), "nothing to set");
    assert_eq!(set(&mut direct, 0x1002, received(5)), Err(-3));
    assert_eq!(set(&mut direct, 0x1001, received(5)), Ok(None));
    assert_eq!(set(&mut direct, 0x1001, received(4)), Err(EINVAL));
    assert_eq!(set(&mut direct, 0x1001, received(5)), Ok(None), "where it is already");
    let key = *direct.xfrm.data_path.sas.keys().next().unwrap();
    assert_eq!(direct.xfrm.data_path.uses[&key].sequence, 5);
    assert_eq!(direct.told.len(), 2);
    let (group, header, told) = &direct.told[0];
    assert_eq!((*group, header.sequence), (group::EVENT, 77), "under the number of the request");
    let Body::NewEvent(id) = told.body else { panic!("{told:?}") };
    assert_eq!(id.flags, testudo_wire::xfrm::event_flag::CAUSE_UPDATE);
    assert_eq!(told.attributes.replay().unwrap().received, 5);
    direct.reserve(0x200);
    assert_eq!(set(&mut direct, 0x200, received(5)), Err(EINVAL), "an SPI that is reserved is no SA");
    assert_eq!(set(&mut direct, 0x1001, Attribute::EventTimer(10)), Err(EOPNOTSUPP));
    assert_eq!(set(&mut direct, 0x1001, Attribute::EventTimer(0)), Ok(None));
}

#[test]
fn extended_numbers_are_set_in_a_window_of_their_own_size() {
    let mut direct = Direct::default();
    let state = |words, received_high| {
        let fixed = EsnFixed { words, window: 32, received: 1, received_high, ..EsnFixed::default() };
        Attribute::ReplayEsn(ReplayStateEsn { fixed, bitmap: Vec::new() })
    };
    let message = sa_with(0x1001, [state(1, 0)]);
    let Body::NewSa(info) = message.body else { panic!("an SA") };
    let info = SaInfo { flags: sa_flag::ESN, ..info };
    assert_eq!(direct.ask(Message { body: Body::NewSa(info), ..message }), Ok(None));
    assert_eq!(direct.ask_with(event(0x1001, [state(2, 1)]), flag::REPLACE), Err(EINVAL));
    assert_eq!(direct.ask_with(event(0x1001, [state(1, 1)]), flag::REPLACE), Ok(None));
    let key = *direct.xfrm.data_path.sas.keys().next().unwrap();
    assert_eq!(direct.xfrm.data_path.uses[&key].sequence, (1 << 32) + 1);
}

#[test]
fn use_that_is_set_counts_on_and_is_taken_back_when_the_numbers_are_refused() {
    let mut direct = Direct::default();
    assert_eq!(direct.ask(sa(0x1001)), Ok(None));
    let used = |packets| {
        let used = LifetimeCurrent { bytes: 100 * packets, packets, added_at_s: 900_000, used_at_s: 900_001 };
        Attribute::Used(used)
    };
    let shown = |direct: &mut Direct| direct.shown(0x1001, Attributes::default()).unwrap().0.current;
    assert_eq!(direct.ask_with(event(0x1001, [used(100)]), flag::REPLACE), Ok(None));
    assert_eq!((shown(&mut direct).packets, shown(&mut direct).added_at_s), (100, 900_000));
    assert_eq!(direct.ask_with(event(0x1001, [used(99)]), flag::REPLACE), Err(EINVAL), "not back");
    let key = *direct.xfrm.data_path.sas.keys().next().unwrap();
    assert_eq!(direct.xfrm.data_path.sas[&key].used_before.packets, 93, "for its limits, beside 7 here");
    let both = event(0x1001, [used(200), received(u32::MAX)]);
    direct.xfrm.data_path.stays = true;
    assert_eq!(direct.ask_with(both, flag::REPLACE), Err(EBUSY));
    assert_eq!(shown(&mut direct).packets, 100);
    assert_eq!(direct.xfrm.data_path.sas[&key].used_before.packets, 93);
    // What is said of it later holds on.
    assert_eq!(direct.ask(update(sa(0x1001))), Ok(None));
    assert_eq!(shown(&mut direct).packets, 100);
    let Body::NewSa(info) = sa(0x1001).body else { panic!("an SA") };
    assert_eq!(direct.ask(Body::Expire(Expire { sa: info, hard: 1 })), Ok(None));
    let Body::Expire(last) = direct.told.last().unwrap().2.body else { panic!("an end") };
    assert_eq!(last.sa.current.packets, 100);
}
