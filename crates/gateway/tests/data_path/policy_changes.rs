//! Policies that are changed one by one while packets pass.

use crate::support::gateway::{PoolSize, portable};
use crate::support::random;
use crate::support::{Gateway, Inner, LeaseTwin, Side, TunnelSpec};
use fastrand::Rng;
use std::cell::Cell;
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::mpsc::{Receiver, sync_channel};
use testudo_crypto::Suite;
use testudo_gateway::{Clock, Command, Commander, CommanderError, ManualClock, serve};
use testudo_ipsec::{
    Action, Directions, Moment, Policy, PolicyChange, PolicyId, PortRange, Position, Prefix, Selector, Spd,
    SpdError,
};
use testudo_packet::DropReason;
use testudo_wire::protocol::UDP;

fn spec() -> TunnelSpec {
    TunnelSpec::new(0, Suite::AES128GCM16)
}

fn gateway() -> Gateway {
    let mut gateway = Gateway::new(spec().policies(Side::A), PoolSize(64, 2048), portable());
    gateway.install(spec().install(Side::A, &mut LeaseTwin::new(1 << 40), None));
    gateway
}

fn dns() -> Selector {
    Selector { protocol: UDP.into(), remote_ports: PortRange::one(53), ..Selector::ANY }
}

fn packet(port: u16) -> Vec<u8> {
    Inner { ports: (40_000, port), ..Inner::udp("10.0.0.1", "172.16.0.2", 100) }.bytes()
}

#[test]
fn a_change_holds_from_the_next_packet_on() {
    let mut a = gateway();
    let protects = |a: &mut Gateway| a.seal(packet(53)).first().map(|datagram| datagram[9]) == Some(50);
    assert!(protects(&mut a));
    let bypass = Policy::new(dns(), Action::Bypass);
    let changes = vec![PolicyChange::Insert(Position::First, bypass.clone())];
    let [Ok(id)] = *a.worker.change_policies(changes) else { panic!("one policy is added") };
    assert_eq!(a.seal(packet(53)), [packet(53)], "in clear");
    let discard = Policy { action: Action::Discard, ..bypass };
    assert_eq!(a.worker.change_policies(vec![PolicyChange::Replace(id, discard)]), [Ok(id)]);
    assert!(a.seal(packet(53)).is_empty());
    assert_eq!(a.drops(DropReason::PolicyDiscard), 1);
    let gone = a.worker.change_policies(vec![PolicyChange::Remove(id), PolicyChange::Remove(id)]);
    assert_eq!(gone, [Ok(id), Err(SpdError::UnknownPolicy)]);
    assert!(protects(&mut a));
}

/// RFC 4301 4.4.1: SPD-O and SPD-I are separate, and may be asymmetric.
#[test]
fn a_policy_for_one_direction_lets_nothing_pass_in_the_other() {
    let answer = Inner { ports: (53, 40_000), ..Inner::udp("172.16.0.2", "10.0.0.1", 100) }.bytes();
    for (directions, leaves, arrives) in [
        (Directions::Both, true, true),
        (Directions::Outbound, true, false),
        (Directions::Inbound, false, true),
    ] {
        let mut a = gateway();
        let policy = Policy { directions, ..Policy::new(dns(), Action::Bypass) };
        let changes = vec![PolicyChange::Insert(Position::First, policy)];
        assert!(a.worker.change_policies(changes)[0].is_ok());
        assert_eq!(a.seal(packet(53)) == [packet(53)], leaves, "{directions:?}");
        assert_eq!(a.open(answer.clone()) == [answer.clone()], arrives, "{directions:?}");
        assert_eq!(a.drops(DropReason::CleartextForProtected), u64::from(!arrives), "{directions:?}");
    }
}

/// What `policy add` relies on: the control plane makes each change in its own copy first.
#[test]
fn a_copy_of_the_policies_gives_new_ones_the_same_names() {
    let mut random = Rng::with_seed(random::seed());
    let mut a = gateway();
    let mut copy: Spd = a.worker.policies().clone();
    let mut names = Vec::new();
    for number in 0..2000u32 {
        let network = Prefix::new(IpAddr::V4(Ipv4Addr::from_bits(random.u32(..))), random.u8(0..=32));
        let policy = Policy::new(Selector::between(network.expect("a prefix"), Prefix::ANY), Action::Discard);
        let change = match random.choice(&names).copied() {
            Some(id) if number % 3 == 0 => PolicyChange::Remove(id),
            Some(id) if number % 3 == 1 => PolicyChange::Insert(Position::Before(id), policy),
            _ => PolicyChange::Insert(Position::Last, policy),
        };
        let here = copy.change(change.clone());
        assert_eq!(a.worker.change_policies(vec![change]), [here]);
        names.extend(here);
    }
    assert!(copy.policies().eq(a.worker.policies().policies()));
}

/// A clock that looks at each turn how many commands were answered since the one before.
struct Watch {
    commander: Commander,
    answers: Vec<Receiver<Vec<Result<PolicyId, SpdError>>>>,
    answered: Cell<usize>,
}

impl Clock for Watch {
    fn now(&self) -> Moment {
        let left = self.answers.iter().skip(self.answered.get());
        let count = left.take_while(|answer| answer.try_recv().is_ok()).count();
        assert!(count <= 1, "{count} commands between two batches");
        self.answered.set(self.answered.get() + count);
        if count == 1 && self.answered.get() == self.answers.len() {
            self.commander.stop().expect("the loop takes commands");
        }
        Moment::default()
    }
}

/// A daemon gone mad adds and deletes policies without end.
#[test]
fn a_turn_takes_one_command_however_many_wait() {
    let mut a = gateway();
    let (commander, inbox) = Commander::channel().expect("a file descriptor");
    let policy = Policy::new(dns(), Action::Bypass);
    let ask = |_| {
        let (reply, answer) = sync_channel(1);
        let changes = vec![PolicyChange::Insert(Position::First, policy.clone())];
        commander.post(|_| Command::ChangePolicies(changes.clone(), reply.clone())).expect("there is room");
        answer
    };
    let answers: Vec<_> = (0..16).map(ask).collect();
    let watch = Watch { commander, answers, answered: Cell::new(0) };
    serve(&mut a.worker, &inbox, &watch, &mut |_| {}).expect("ports do not fail");
    assert_eq!(watch.answered.get(), 16);
}

#[test]
fn a_running_gateway_makes_the_changes_of_a_command_and_answers() {
    let mut a = gateway();
    let (commander, inbox) = Commander::channel().expect("a file descriptor");
    let policy = Policy::new(dns(), Action::Bypass);
    let insert = || PolicyChange::Insert(Position::First, policy.clone());
    assert_eq!(commander.change_policies(vec![insert(); 65]), Err(CommanderError::TooManyChanges));
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let answer = commander.change_policies(vec![insert(); 64]).expect("the worker answers");
            commander.stop().expect("the loop takes commands");
            answer
        });
        serve(&mut a.worker, &inbox, &ManualClock::default(), &mut |_| {}).expect("ports do not fail");
        let names: HashSet<_> = asking.join().expect("no panic").into_iter().collect();
        assert_eq!(names.len(), 64);
        assert!(names.iter().all(|name| name.is_ok_and(|id| a.worker.policies().get(id) == Some(&policy))));
    });
}
