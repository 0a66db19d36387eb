//! Gateways and daemons that are started again.

use super::super::renewal::{Outlived, RenewalState};
use super::model::only_message;
use super::*;
use testudo_wire::netlink::kind;

/// An SA towards the peer.
fn outbound(spi: u32, reqid: u32) -> Message {
    let Message { body: Body::NewSa(info), attributes } = sa(spi) else { panic!("an SA") };
    let id = Id { destination: info.source, ..info.id };
    Message { body: Body::NewSa(SaInfo { id, source: info.id.destination, reqid, ..info }), attributes }
}

fn outlived(lost_ms: u64, tunnels: u32) -> Option<RenewalState> {
    let mut direct = Direct::default();
    direct.xfrm.renewal.note(1, Outlived { lost_ms, tunnels });
    direct.xfrm.renewal()
}

#[test]
fn how_long_tunnels_were_without_traffic_is_told() {
    let mut direct = Direct::default();
    // Two connections of a daemon, one of which has noticed later.
    for lost_ms in [NOW.monotonic_ms - 2500, NOW.monotonic_ms - 3000, NOW.monotonic_ms - 2900] {
        direct.xfrm.renewal.note(1, Outlived { lost_ms, tunnels: 2 });
    }
    let state = |renewed, without_traffic_ms| Some(RenewalState { expected: 2, renewed, without_traffic_ms });
    assert_eq!(direct.xfrm.renewal(), state(0, 0));
    direct.now.monotonic_ms += 200;
    assert_eq!(direct.ask(sa(0x1001)), Ok(None));
    assert_eq!(direct.xfrm.renewal(), state(0, 0), "what comes from the peer lets nothing out");
    assert_eq!(direct.ask(outbound(0x2001, 1)), Ok(None));
    assert_eq!(direct.xfrm.renewal(), state(1, 3200));
    direct.now.monotonic_ms += 1000;
    assert_eq!(direct.ask(outbound(0x2002, 1)), Ok(None));
    assert_eq!(direct.xfrm.renewal(), state(1, 3200), "a second SA of the same tunnel");
    assert_eq!(direct.ask(outbound(0x2003, 2)), Ok(None));
    assert_eq!(direct.xfrm.renewal(), state(2, 4200));
    assert_eq!(direct.ask(outbound(0x2004, 3)), Ok(None));
    assert_eq!(direct.xfrm.renewal(), state(2, 4200), "a new tunnel, for which nobody waited");
}

#[test]
fn the_tunnels_of_all_daemons_are_expected() {
    let mut direct = Direct::default();
    let lost_ms = NOW.monotonic_ms - 1000;
    let expected = |direct: &Direct| direct.xfrm.renewal().map(|state| (state.expected, state.renewed));
    for (daemon, tunnels, all) in [(1, 1, 1), (2, 2, 3), (1, 1, 3), (2, 0, 3)] {
        direct.xfrm.renewal.note(daemon, Outlived { lost_ms, tunnels });
        assert_eq!(expected(&direct), Some((all, 0)), "{tunnels} of daemon {daemon}");
    }
    for (spi, reqid, renewed) in [(0x2001, 1, 1), (0x2002, 2, 2), (0x2003, 3, 3)] {
        assert_eq!(direct.ask(outbound(spi, reqid)), Ok(None));
        assert_eq!(expected(&direct), Some((3, renewed)));
    }
    // A third daemon comes after the others are done: what those renew now is not counted for it.
    direct.xfrm.renewal.note(3, Outlived { lost_ms, tunnels: 1 });
    assert_eq!(direct.ask(outbound(0x2004, 3)), Ok(None));
    assert_eq!(expected(&direct), Some((4, 3)));
    for daemon in 4..10_000 {
        direct.xfrm.renewal.note(daemon, Outlived { lost_ms, tunnels: u32::MAX });
    }
    assert_eq!(expected(&direct), Some((u32::MAX, 3)), "and no daemons without bound");
}

#[test]
fn a_time_that_cannot_be_is_ignored() {
    let started = NOW.monotonic_ms;
    for (lost_ms, tunnels) in [(started + 1, 1), (u64::MAX, 1), (started - 10, 0)] {
        assert_eq!(outlived(lost_ms, tunnels), None, "{lost_ms}, {tunnels}");
    }
    assert!(outlived(started, 1).is_some() && outlived(0, u32::MAX).is_some());
    let day_ms = 24 * 3600 * 1000;
    let later = Now { monotonic_ms: day_ms + 10, ..NOW };
    let mut xfrm = Xfrm::new(Model::default(), later);
    xfrm.renewal.note(1, Outlived { lost_ms: 9, tunnels: 1 });
    assert_eq!(xfrm.renewal(), None, "longer ago than a day");
}

/// The words of a welcome that name the gateway.
fn welcome(served: &Served) -> Vec<u8> {
    let client = served.client();
    let header = Header { flags: flag::ACK, sequence: 9, port: 4711, ..Header::default() };
    client.send(&hello::tests::outliving(header, 0, 0, 0));
    let record = client.receive();
    let message = messages(&record).next().unwrap().unwrap();
    assert_eq!((message.header.kind, message.header.port, record.len()), (kind::NOOP, 4711, 44));
    assert_eq!(record[16..24], [0x5246_5854_u32, 1].map(u32::to_ne_bytes).concat());
    assert_eq!(record[24..28], [0; 4], "no mark");
    let acknowledged = client.receive();
    assert_eq!(messages(&acknowledged).next().unwrap().unwrap().header.kind, kind::ERROR, "after it");
    record[28..].to_vec()
}

#[test]
fn a_gateway_says_which_process_it_is() {
    let served = Served::start();
    let one = welcome(&served);
    assert_eq!(welcome(&served), one);
    // Chance is a count in these tests: a server that begins with another one is another process.
    let other = Served::by(XfrmServer::new(Model::default(), Box::new(Still(77.into()))), |_| Ok(()));
    assert_ne!(welcome(&other), one);
}

#[test]
fn the_oldest_sa_of_a_process_that_has_gone_gives_way() {
    const NOBUFS: i32 = -105;
    let mut direct = Direct::default();
    direct.xfrm.data_path.room = Some(2);
    direct.xfrm.connected.insert(1);
    direct.client.owner = 1;
    for spi in [0x2001, 0x2002] {
        assert_eq!(direct.ask(outbound(spi, 1)), Ok(None));
    }
    assert_eq!(direct.ask(outbound(0x2003, 1)), Err(NOBUFS), "its own SAs stay while it is there");
    direct.client.owner = 2;
    direct.xfrm.connected.insert(2);
    assert_eq!(direct.ask(outbound(0x2003, 1)), Err(NOBUFS), "and those of others do, too");
    direct.xfrm.connected.remove(&1);
    assert_eq!(direct.ask(outbound(0x2003, 7)), Err(NOBUFS), "none of these ends is left");
    direct.told.clear();
    assert_eq!(direct.ask(outbound(0x2003, 1)), Ok(None));
    let told: Vec<_> = direct.told.iter().map(|(_, _, message)| &message.body).collect();
    let [Body::DeleteSa(gone), Body::NewSa(come)] = told[..] else { panic!("{told:?}") };
    assert_eq!((gone.spi, come.id.spi), (0x2001, 0x2003));
    assert_eq!(direct.ask(outbound(0x2004, 1)), Ok(None));
    let mut left: Vec<u32> = direct.xfrm.data_path.sas.keys().map(|key| key.spi).collect();
    left.sort_unstable();
    assert_eq!(left, [0x2003, 0x2004]);
    assert_eq!(direct.ask(outbound(0x2005, 1)), Err(NOBUFS), "nothing is left of the one that has gone");
}

/// Also where a container gives each start of a daemon the same process number.
#[test]
fn a_process_is_there_as_long_as_one_of_its_connections() {
    let served = Served::start();
    let connected = |count: usize| {
        while served.server.xfrm().connected.len() != count {
            std::thread::yield_now();
        }
        served.server.xfrm().connected.first().copied()
    };
    let (mut one, mut other) = (served.client(), served.client());
    // Each is served once it has an answer.
    assert_eq!((one.acked(sa(1)).code, other.acked(sa(2)).code), (0, 0));
    let owner = connected(1);
    drop(one);
    assert_eq!(other.acked(sa(3)).code, 0);
    assert_eq!(connected(1), owner);
    drop(other);
    assert_eq!(connected(0), None);
    assert_eq!(served.client().acked(sa(4)).code, 0);
    let mut later = served.client();
    assert_eq!(later.acked(sa(5)).code, 0);
    assert_ne!(connected(1), owner, "another process");
}

/// What is added while a flush goes on stays, and who listens hears of it once, at its end.
#[test]
fn a_flush_is_carried_out_in_parts() {
    const COUNT: u16 = 1000;
    let mut direct = Direct::default();
    for port in 1..=COUNT {
        assert_eq!(direct.ask(policy(port)), Ok(None));
    }
    let mut datagram = Datagram::new();
    let header = Header { flags: flag::REQUEST | flag::ACK, sequence: 5, ..Header::default() };
    Message::from(Body::FlushPolicies).write(header, &mut datagram);
    let request = messages(datagram.as_bytes()).next().unwrap().unwrap();
    let answers = direct.xfrm.answer(&direct.client, &request, false, NOW, &mut |_| 0);
    assert!(answers.datagrams.is_empty(), "it is acknowledged when it is over");
    let mut flush = answers.flush.unwrap();
    let mut parts = 0;
    let told = loop {
        let before = direct.xfrm.data_path.policies.len();
        let (is_over, told) = direct.xfrm.flush(&mut flush);
        assert!(before - direct.xfrm.data_path.policies.len() <= 64);
        if is_over {
            break told;
        }
        assert!(told.is_empty());
        parts += 1;
        assert_eq!(direct.ask(policy(COUNT + parts)), Ok(None));
    };
    assert_eq!(direct.xfrm.data_path.policies.len(), usize::from(parts));
    assert_eq!(parts, COUNT / 64);
    let [told] = &told[..] else { panic!("{told:?}") };
    let (header, message) = only_message(&told.datagram);
    assert_eq!((header.sequence, message.body), (5, Body::FlushPolicies));
}
