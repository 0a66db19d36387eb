//! Several workers that get the same commands.

use crate::support::gateway::{PoolSize, portable};
use crate::support::{Gateway, Inner, LeaseTwin, Side, TunnelSpec};
use testudo_crypto::Suite;
use testudo_gateway::{Commander, PlacementError, SaChange, SystemClock, Update, UpdateError, Worker, serve};
use testudo_ipsec::{Event, EventKind, LearnedFrom, PolicyChange, Position};

fn spec(number: u8) -> TunnelSpec {
    TunnelSpec::new(number, Suite::AES128GCM16)
}

/// A worker without tunnels or policies.
fn worker() -> Worker {
    Gateway::new(Vec::new(), PoolSize(16, 2048), portable()).worker
}

/// Runs the workers while `work` commands them; they come back in their order.
fn run<R>(workers: Vec<Worker>, work: impl FnOnce(&Commander) -> R) -> (Vec<Worker>, R) {
    let (commander, inboxes) = Commander::channels(workers.len()).expect("file descriptors");
    let start = |(mut worker, inbox)| {
        std::thread::spawn(move || {
            serve(&mut worker, &inbox, &SystemClock::default(), &mut |_| {}).expect("ports do not fail");
            worker
        })
    };
    let threads: Vec<_> = workers.into_iter().zip(inboxes).map(start).collect();
    let result = work(&commander);
    commander.stop().expect("they take commands");
    (threads.into_iter().map(|thread| thread.join().expect("it ends")).collect(), result)
}

fn install(store: &mut LeaseTwin, number: u8) -> Update {
    Update { install: vec![spec(number).install(Side::A, store, None)], ..Update::default() }
}

#[test]
fn all_workers_make_each_change_and_answer_as_one() {
    let mut store = LeaseTwin::new(1 << 40);
    let policies = spec(1).policies(Side::A);
    let count = policies.len();
    let (workers, sas) = run(vec![worker(), worker(), worker()], |commander| {
        let insert = policies.into_iter().map(|policy| PolicyChange::Insert(Position::Last, policy));
        let inserted = commander.change_policies(insert.collect()).expect("they answer");
        assert!(inserted.iter().all(Result::is_ok));
        let mut sas = Vec::new();
        for number in [0, 1] {
            let (_, outcome) = commander.update(install(&mut store, number)).expect("they answer").remove(0);
            sas.push(outcome.expect("there is room"));
        }
        // The second tunnel has the place of the first one's SAs in no worker.
        let remove = Update { remove: vec![spec(0).index()], ..Update::default() };
        assert!(commander.update(remove).expect("they answer").is_empty());
        assert_eq!(commander.save_windows(vec![sas[0].inbound.sa]).expect("they answer").len(), 0);
        assert_eq!(commander.save_windows(vec![sas[1].inbound.sa]).expect("they answer").len(), 1);
        sas
    });
    let installed = &sas[1];
    for counters in [&installed.outbound.counters, &installed.inbound.counters] {
        assert_eq!((counters.each().count(), counters.packets()), (3, 0));
    }
    assert!(installed.outbound.counters.is_in_use() && !installed.inbound.counters.is_in_use());
    for worker in &workers {
        assert_eq!(worker.inbound_sas(spec(1).index()).collect::<Vec<_>>(), [installed.inbound.sa]);
        assert_eq!(worker.inbound_sas(spec(0).index()).count(), 0);
        assert_eq!(worker.policies().len(), count);
    }
}

/// Otherwise a tunnel would pass some flows, and the handles of workers would differ from then on.
#[test]
fn a_change_that_one_worker_refuses_is_made_by_none() {
    let mut store = LeaseTwin::new(1 << 40);
    let ports = Gateway::new(Vec::new(), PoolSize(16, 2048), Vec::new()).worker;
    let (workers, ()) = run(vec![worker(), ports], |commander| {
        let (_, outcome) = commander.update(install(&mut store, 0)).expect("they answer").remove(0);
        let refused = matches!(outcome, Err(UpdateError::Placement { source: PlacementError::Empty, .. }));
        assert!(refused, "it has no engine");
        let parameters = Box::new(spec(0).parameters(Side::A));
        let add = SaChange::AddTunnel(spec(0).index(), parameters);
        let inbound = SaChange::AddInbound(spec(0).index(), Box::new(spec(0).inbound(Side::A)));
        let outcome = commander.change_sas(vec![add, inbound]).expect("they answer");
        assert!(outcome[0].is_ok() && outcome[1].is_err(), "{outcome:?}");
    });
    for worker in &workers {
        assert_eq!(worker.inbound_sas(spec(0).index()).count(), 0);
    }
}

#[test]
fn a_worker_follows_what_another_has_learned_and_tells_nobody() {
    let mut a = Gateway::with_tunnels(Side::A, &[spec(0)]);
    let long = || Inner::udp("10.0.0.1", "172.16.0.2", 1300).bytes();
    assert_eq!(a.seal(long()).len(), 1);
    assert!(a.unprotected.take().is_empty());
    let kind = EventKind::PathMtu { mtu: 1000, learned_from: Some(LearnedFrom::Router) };
    let event = Event { tunnel: spec(0).index(), kind };
    assert!(kind.concerns_all() && !EventKind::SequenceExhausted { spi: 1 }.concerns_all());
    let now = a.now();
    let before = a.worker.take_events().len();
    a.worker.change_sa(SaChange::Hear(event), now).expect("nothing refuses that");
    let sealed = a.seal(long());
    assert!(sealed.iter().all(|datagram| datagram.len() <= 1000), "the path carries no more");
    // Nothing waits for the peer: another SA was put to use since.
    let took_over = Event { kind: EventKind::TookOver { spi: spec(0).spi_from(Side::A) }, ..event };
    a.worker.change_sa(SaChange::Hear(took_over), now).expect("nothing refuses that");
    assert_eq!((before, a.worker.take_events().len()), (0, 0));
}
