//! Workers that take packets from one side alone.

use crate::support::gateway::{PoolSize, portable};
use crate::support::{Gateway, Inner, LeaseTwin, PortHandle, Side, TunnelSpec};
use std::time::Duration;
use testudo_crypto::Suite;
use testudo_gateway::{Commander, CommanderError, Inbox, Role, SystemClock, Update, Worker, serve};
use testudo_ipsec::{Moment, PacketRules};

fn spec() -> TunnelSpec {
    let rules = PacketRules { dummy_packets_per_second: 1, ..PacketRules::default() };
    TunnelSpec { rules, ..TunnelSpec::new(0, Suite::AES128GCM16) }
}

/// A gateway with a worker for each role, all with ports of their own and the same SAs.
fn gateways(side: Side) -> Vec<Gateway> {
    let make = |_| {
        let pool = PoolSize(512, 2048);
        let (protected, unprotected) = (PortHandle::default(), PortHandle::default());
        Gateway::on_links(protected, unprotected, spec().policies(side), pool, portable())
    };
    let (mut workers, mut ends) = (Vec::new(), Vec::new());
    for (role, gateway) in Role::ALL.into_iter().zip((0..3).map(make)) {
        let Gateway { mut worker, protected, unprotected, clock } = gateway;
        worker.set_role(role);
        workers.push(worker);
        ends.push((protected, unprotected, clock));
    }
    let tunnel = spec().install(side, &mut LeaseTwin::new(1 << 40), None);
    let update = Update { install: vec![tunnel], ..Update::default() };
    let outcome = Worker::update_all(&mut workers, update, Moment::default());
    assert!(outcome.iter().all(|(_, result)| result.is_ok()), "there is room");
    let whole = workers.into_iter().zip(ends);
    let whole = whole.map(|(worker, (protected, unprotected, clock))| Gateway {
        worker,
        protected,
        unprotected,
        clock,
    });
    whole.collect()
}

fn packet() -> Vec<u8> {
    Inner::udp("10.0.0.1", "172.16.0.2", 100).bytes()
}

#[test]
fn a_worker_takes_packets_of_the_sides_of_its_role_and_leaves_the_others() {
    let mut peer = Gateway::with_tunnels(Side::B, &[spec()]);
    let back = || Inner::udp("172.16.0.2", "10.0.0.1", 100).bytes();
    let sealed: Vec<_> = (0..30).flat_map(|_| peer.seal(back())).collect();
    let mut all = gateways(Side::A);
    for (gateway, sealed) in all.iter_mut().zip(sealed.chunks(10)) {
        (0..10).for_each(|_| gateway.protected.push(packet()));
        sealed.iter().for_each(|datagram| gateway.unprotected.push(datagram.clone()));
        gateway.settle();
    }
    let left = |gateway: &Gateway| (gateway.protected.arriving(), gateway.unprotected.arriving());
    assert_eq!(all.iter().map(left).collect::<Vec<_>>(), [(0, 10), (10, 0), (0, 0)]);
    let sent = |gateway: &Gateway| (gateway.protected.departed(), gateway.unprotected.departed());
    assert_eq!(all.iter().map(sent).collect::<Vec<_>>(), [(0, 10), (10, 0), (10, 10)]);
    // What a worker leaves is no loss: another one takes it.
    all[2].unprotected.push(sealed[0].clone());
    all[2].settle();
    assert_eq!(all[2].protected.departed(), 11);
    assert!(all.iter().all(|gateway| gateway.worker.pool().drops().total() == 0));
    assert!(all.iter().all(|gateway| gateway.worker.pool().in_use() == 0));
}

/// Sequence numbers that a decrypting worker uses are shared with the others.
#[test]
fn a_decrypting_worker_sends_what_no_packet_asks_for_and_still_takes_nothing() {
    let mut all = gateways(Side::A);
    let decrypt = &mut all[1];
    decrypt.protected.push(packet());
    let now = decrypt.now();
    decrypt.worker.send_dummies(now);
    decrypt.settle();
    assert_eq!((decrypt.unprotected.departed(), decrypt.protected.arriving()), (1, 1));
    all[0].protected.push(packet());
    all[0].settle();
    let number = |datagram: &[u8]| u32::from_be_bytes(datagram[24..28].try_into().expect("an ESP header"));
    let numbers = [1, 0].map(|worker| number(&all[worker].unprotected.take()[0]));
    assert_eq!(numbers, [1, 2]);
}

/// Of two workers the second is asked. It has a packet that its port does not take yet.
#[test]
fn a_worker_says_when_it_has_nothing_left_to_do() {
    let mut all = gateways(Side::A);
    // Dummies would wait for the port as well.
    all.iter_mut().for_each(|gateway| gateway.worker.follow());
    let (port, protected) = (all[2].unprotected.clone(), all[2].protected.clone());
    port.set_room(Some(0));
    protected.push(packet());
    let workers: Vec<_> = all.into_iter().map(|gateway| gateway.worker).collect();
    let (commander, inboxes) = Commander::channels(workers.len()).expect("file descriptors");
    let start = |(mut worker, inbox): (Worker, Inbox)| {
        std::thread::spawn(move || serve(&mut worker, &inbox, &SystemClock::default(), &mut |_| {}))
    };
    let threads: Vec<_> = workers.into_iter().zip(inboxes).map(start).collect();
    // The ports of this test do not wake them; commands do.
    while protected.arriving() > 0 {
        commander.save_windows(Vec::new()).expect("they answer");
    }
    assert_eq!(commander.settle(2, Duration::from_millis(1)), Ok(false), "a packet waits for its port");
    port.set_room(None);
    assert_eq!(commander.settle(0, Duration::from_secs(60)), Ok(true));
    assert_eq!(port.departed(), 1);
    commander.stop().expect("they take commands");
    threads.into_iter().for_each(|thread| thread.join().expect("no panic").expect("ports do not fail"));
    assert_eq!(commander.settle(0, Duration::from_secs(60)), Err(CommanderError::Ended));
}

#[test]
fn roles_are_named_as_in_the_configuration() {
    let said = Role::ALL.map(|role| (role.to_string(), role.encrypts(), role.decrypts()));
    let expected = [("encrypt", true, false), ("decrypt", false, true), ("both", true, true)];
    assert_eq!(said, expected.map(|(name, encrypts, decrypts)| (name.to_owned(), encrypts, decrypts)));
    assert_eq!(Role::default(), Role::Both);
}
