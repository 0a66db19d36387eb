//! What clients cannot take from others.

use super::model::{Gate, sa_with, wish};
use super::*;
use testudo_wire::xfrm::selector::Mark;

#[test]
fn a_client_that_does_not_read_is_disconnected_and_holds_up_nobody() {
    let served = Served::start();
    let deaf = served.listener(&[group::SA]);
    let mut client = served.client();
    for spi in 1..=4000 {
        assert_eq!(client.acked(sa(0x1000 + spi)).code, 0);
    }
    let mut heard = 0;
    while !deaf.receive().is_empty() {
        heard += 1;
    }
    assert!((1..4000).contains(&heard), "{heard} were in its queue when it was disconnected");
}

#[test]
fn a_daemon_gone_mad_reserves_a_bounded_number_of_spis() {
    let served = Served::start();
    let mut client = served.client();
    let Body::NewSa(info) = sa(0).body else { panic!() };
    let wish = Message::from(Body::AllocateSpi(SpiRequest { sa: info, lowest: 1, highest: u32::MAX }));
    let mut refused = None;
    for _ in 0..100_000 {
        client.request(&wish, 0);
        let record = client.receive();
        let message = messages(&record).next().unwrap().unwrap();
        if let Some(answer) = Answer::read(&message) {
            refused = Some(answer.code);
            break;
        }
        let reserved = Message::read(&message).unwrap();
        assert_ne!(id_of(&reserved).spi, 0x666, "an SA of the configuration has it");
    }
    assert_eq!(refused, Some(-12));
    // Flushes make room, and reservations end by themselves.
    assert_eq!(client.acked(Body::FlushSas(FlushSas { protocol: 0 })).code, 0);
    client.request(&wish, 0);
    assert_eq!(id_of(&client.heard().1).family, family::IPV4);
    assert!(served.server.xfrm().tick(later(164)).is_empty());
    assert_eq!(served.server.xfrm().tick(later(165)).len(), 1, "those who listen hear of it");
}

#[test]
fn records_that_are_no_messages_are_nobodys() {
    let served = Served::start();
    let mut client = served.client();
    for record in [&b"x"[..], &[0; 15], &[0xFF; 100], &[16, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]] {
        client.send(record);
    }
    assert_eq!(client.acked(sa(0x1001)).code, 0, "it is still served");
    client.send(&vec![0; (1 << 16) + 1]);
    assert!(client.receive().is_empty(), "but not after a record that nobody reads");
}

#[test]
fn a_process_that_has_its_share_of_reservations_takes_none_from_others() {
    let mut direct = Direct::default();
    direct.client.process = 1;
    for _ in 0..reservations::MAX_OF_ONE {
        assert!(direct.ask(wish((1, u32::MAX))).is_ok());
    }
    assert_eq!(direct.ask(wish((1, u32::MAX))), Err(-12));
    direct.client.process = 2;
    let other = direct.ask(wish((1, u32::MAX))).unwrap().unwrap();
    assert_eq!(direct.ask(Body::DeleteSa(id_of(&other))), Ok(None));
    direct.client.process = 1;
    assert_eq!(direct.ask(wish((1, u32::MAX))), Err(-12), "what another one ends makes no room for it");
    assert_eq!(direct.xfrm.tick(later(1 << 40)).len(), reservations::MAX_OF_ONE);
    assert!(direct.ask(wish((1, u32::MAX))).is_ok());
}

#[test]
fn sas_that_marks_alone_tell_apart_are_bounded() {
    let mut direct = Direct::default();
    let marked = |value| sa_with(0x1001, [Attribute::Mark(Mark { value, mask: u32::MAX })]);
    for value in 1..=1024 {
        assert_eq!(direct.ask(marked(value)), Ok(None));
    }
    assert_eq!(direct.ask(marked(1025)), Err(-12));
    assert_eq!(direct.ask(sa(0x1002)), Ok(None));
}

/// A record of many requests is answered one by one, and others have their turn in between.
#[test]
fn a_long_record_holds_up_nobody() {
    const REQUESTS: u32 = 150;
    let (give, taken) = std::sync::mpsc::channel::<()>();
    let taken = std::sync::Mutex::new(taken);
    // Each addition of the long record waits for the test; the one of the other client does not.
    let gate = Gate(Box::new(move |spi| {
        if spi < 0x9000 {
            let _ = taken.lock().unwrap().recv_timeout(Duration::from_secs(20));
        }
    }));
    let served = Served::over(Model { adding: Some(gate), ..Model::default() }, |_| Ok(()));
    let busy = served.client();
    let mut record = Datagram::new();
    for spi in 0x1000..0x1000 + REQUESTS {
        sa(spi).write(Header { flags: flag::REQUEST, ..Header::default() }, &mut record);
    }
    assert!(record.len() < 1 << 16);
    busy.send(record.as_bytes());
    let mut other = served.client();
    other.stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    other.request(&sa(0x9000), flag::ACK);
    let mut given = 0;
    while other.receive().is_empty() {
        given += 1;
        assert!(given < REQUESTS, "the other client waits for all of the record");
        give.send(()).unwrap();
    }
    (given..REQUESTS).for_each(|_| give.send(()).unwrap());
    let mut busy = busy;
    assert_eq!(busy.acked(Body::DeleteSa(id_of(&sa(0x1000)))).code, 0, "the record was answered whole");
}

/// The kernel keeps what it tells a client while it dumps, as far as there is room.
#[test]
fn a_client_that_dumps_slowly_hears_in_order_what_happens_meanwhile() {
    let served = Served::start();
    let mut slow = served.listener(&[group::SA]);
    {
        let mut xfrm = Direct::default();
        std::mem::swap(&mut xfrm.xfrm, &mut served.server.xfrm());
        for spi in 1..=20_000 {
            assert_eq!(xfrm.ask(sa(0x10_0000 + spi)), Ok(None));
        }
        std::mem::swap(&mut xfrm.xfrm, &mut served.server.xfrm());
    }
    // More than the socket has room for: its thread waits for the reader.
    slow.request(&Body::DumpSas.into(), flag::DUMP);
    let first = slow.receive();
    assert!(!first.is_empty());
    let mut busy = served.client();
    for spi in 1..=500 {
        assert_eq!(busy.acked(sa(0x1000 + spi)).code, 0);
    }
    let (mut dumped, mut heard, mut is_over) = (0, Vec::new(), false);
    while !is_over || heard.len() < 500 {
        let record = slow.receive();
        assert!(!record.is_empty(), "it was not disconnected");
        for message in messages(&record).map(Result::unwrap) {
            match message.header.has(flag::MULTI) {
                true if message.header.kind == netlink::kind::DONE => is_over = true,
                true => dumped += 1,
                false => heard.push(id_of(&Message::read(&message).unwrap()).spi - 0x1000),
            }
        }
    }
    assert!(heard.iter().copied().eq(1..=500), "{heard:?}");
    assert!(dumped >= 19_000, "{dumped}");
}

/// Notifications come in the order of what happened, though several clients make things happen.
#[test]
fn those_who_listen_hear_things_in_the_order_in_which_they_happen() {
    let served = Served::start();
    let listener = served.listener(&[group::SA]);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let mut client = served.client();
            scope.spawn(move || {
                for _ in 0..100 {
                    // One of them adds it, and one deletes it; the others are refused.
                    client.acked(sa(0x1001));
                    client.acked(Body::DeleteSa(id_of(&sa(0x1001))));
                }
            });
        }
    });
    served.client().acked(sa(0x2000));
    let mut is_there = false;
    loop {
        match listener.heard().1.body {
            Body::NewSa(info) if info.id.spi == 0x2000 => break,
            Body::NewSa(_) => assert!(!std::mem::replace(&mut is_there, true), "it came twice"),
            Body::DeleteSa(_) => assert!(std::mem::replace(&mut is_there, false), "it went before it came"),
            other => panic!("{other:?}"),
        }
    }
}
