//! Requests about policies, by the kernel's rules.

use super::model::only_message;
use super::*;
use testudo_wire::xfrm::lifetime::LifetimeConfig;
use testudo_wire::xfrm::notification::PolicyExpire;

fn info(port: u16, priority: u32) -> PolicyInfo {
    let Body::NewPolicy(info) = policy(port).body else { panic!("a policy") };
    PolicyInfo { priority, ..info }
}

fn id(port: u16) -> PolicyId {
    PolicyId { selector: info(port, 0).selector, direction: 1, index: 0 }
}

/// The ports of outbound policies, in the order in which they take effect.
fn order(direct: &Direct) -> Vec<u16> {
    let model = &direct.xfrm.data_path;
    model.order[&1].iter().map(|index| model.policies[index].info.selector.destination_port).collect()
}

#[test]
fn an_update_of_the_same_priority_keeps_its_place() {
    let mut direct = Direct::default();
    for port in [1, 2, 3] {
        assert_eq!(direct.ask(Body::NewPolicy(info(port, 10))), Ok(None));
    }
    assert_eq!(direct.ask(Body::NewPolicy(info(4, 20))), Ok(None));
    assert_eq!(order(&direct), [1, 2, 3, 4]);
    assert_eq!(direct.ask(Body::UpdatePolicy(info(2, 10))), Ok(None));
    assert_eq!(order(&direct), [1, 2, 3, 4]);
    assert_eq!(direct.ask(Body::UpdatePolicy(info(1, 20))), Ok(None));
    assert_eq!(order(&direct), [2, 3, 4, 1], "another priority: behind its equals");
    assert_eq!(direct.ask(Body::UpdatePolicy(info(4, 10))), Ok(None));
    assert_eq!(order(&direct), [2, 3, 4, 1]);
    assert_eq!(direct.ask(Body::UpdatePolicy(info(3, 10))), Ok(None));
    assert_eq!(order(&direct), [2, 3, 4, 1], "also between others");
    assert_eq!(direct.ask(Body::NewPolicy(info(5, 10))), Ok(None));
    assert_eq!(order(&direct), [2, 3, 4, 5, 1]);
}

#[test]
fn a_policy_shows_when_it_was_used_last() {
    let mut direct = Direct::default();
    assert_eq!(direct.ask(Body::NewPolicy(info(80, 0))), Ok(None));
    let index = *direct.xfrm.data_path.policies.keys().next().unwrap();
    let shown = |direct: &mut Direct| match direct.ask(Body::GetPolicy(id(80))).unwrap().unwrap().body {
        Body::NewPolicy(info) => info.current,
        other => panic!("{other:?}"),
    };
    let current = shown(&mut direct);
    assert_eq!((current.used_at_s, current.added_at_s), (0, NOW.unix_s));
    let used = PolicyUse { first_s: 1_000_001, last_s: 1_000_009, packets: 3, bytes: 300 };
    direct.xfrm.data_path.policy_uses.insert(index, used);
    let current = shown(&mut direct);
    assert_eq!((current.used_at_s, current.packets, current.bytes), (1_000_009, 3, 300));
    direct.told.clear();
    assert_eq!(direct.ask(Body::DeletePolicy(id(80))), Ok(None));
    let last = direct.told[0].2.attributes.policy().unwrap().current;
    assert_eq!(last, current, "and the last word of it says so, too");
}

#[test]
fn a_client_ends_a_policy_and_those_who_listen_hear_of_its_end_alone() {
    let mut direct = Direct::default();
    let expire = |hard| Body::PolicyExpire(PolicyExpire { policy: info(80, 0), hard });
    assert_eq!(direct.ask(expire(1)), Err(-2));
    assert_eq!(direct.ask(Body::NewPolicy(info(80, 7))), Ok(None));
    direct.told.clear();
    for hard in [0, 3] {
        assert_eq!(direct.ask(expire(hard)), Ok(None));
    }
    assert_eq!(direct.ask(expire(1)), Err(-2));
    let heard = direct.told.iter().map(|(group, header, message)| {
        let Body::PolicyExpire(expire) = message.body else { panic!("{message:?}") };
        (*group, header.sequence, expire.policy.priority, expire.hard)
    });
    let heard: Vec<_> = heard.collect();
    assert_eq!(heard, [(group::EXPIRE, 0, 7, 0), (group::EXPIRE, 0, 7, 1)], "and of no deletion");
    assert!(direct.xfrm.data_path.policies.is_empty());
}

/// Linux's own rules (`xfrm_policy_timer`).
#[test]
fn a_policy_ends_when_its_time_is_over_and_those_who_listen_hear_of_it() {
    let mut direct = Direct::default();
    let limited = |port, soft_added_s, hard_added_s, hard_used_s| {
        let own = info(port, 0);
        let lifetime = LifetimeConfig { soft_added_s, hard_added_s, hard_used_s, ..own.lifetime };
        Body::UpdatePolicy(PolicyInfo { lifetime, ..own })
    };
    for body in [limited(1, 0, 0, 0), limited(2, 10, 60, 0), limited(3, 0, 0, 20)] {
        assert_eq!(direct.ask(body), Ok(None));
    }
    let told = |direct: &mut Direct, seconds| -> Vec<(u16, u8)> {
        let told = direct.xfrm.tick(later(seconds)).into_iter().map(|told| {
            assert_eq!(told.group, group::EXPIRE);
            let Body::PolicyExpire(expire) = only_message(&told.datagram).1.body else {
                panic!("another message")
            };
            (expire.policy.selector.destination_port, expire.hard)
        });
        told.collect()
    };
    assert_eq!(told(&mut direct, 9), []);
    assert_eq!(told(&mut direct, 10), [(2, 0)]);
    // Use puts off the one that ends without.
    let used = PolicyUse { last_s: NOW.unix_s + 15, ..PolicyUse::default() };
    let third = direct.xfrm.data_path.policies.iter().find(|(_, p)| p.info.selector.destination_port == 3);
    direct.xfrm.data_path.policy_uses.insert(*third.unwrap().0, used);
    assert_eq!(told(&mut direct, 20), []);
    assert_eq!(told(&mut direct, 34), []);
    assert_eq!(told(&mut direct, 35), [(3, 1)]);
    assert_eq!(told(&mut direct, 40), [(2, 0)], "told again, after 30 seconds");
    // An update begins anew, and a deletion ends what was to come.
    assert_eq!(direct.ask(limited(2, 0, 25, 0)), Ok(None));
    assert_eq!(told(&mut direct, 25), [(2, 1)], "at its own time of being added");
    assert_eq!(direct.ask(limited(4, 0, 30, 0)), Ok(None));
    assert_eq!(direct.ask(Body::DeletePolicy(id(4))), Ok(None));
    assert_eq!(told(&mut direct, 1 << 30), []);
    assert_eq!(order(&direct), [1]);
}

#[test]
fn an_index_of_another_direction_names_no_policy() {
    let mut direct = Direct::default();
    assert_eq!(direct.ask(Body::NewPolicy(info(80, 0))), Ok(None));
    let index = *direct.xfrm.data_path.policies.keys().next().unwrap();
    assert_eq!(direct.ask(Body::GetPolicy(PolicyId { index, direction: 0, ..id(80) })), Err(-2));
    assert_eq!(direct.ask(Body::GetPolicy(PolicyId { index, direction: 3, ..id(80) })), Err(-22));
    assert!(direct.ask(Body::GetPolicy(PolicyId { index, ..id(80) })).is_ok());
}
