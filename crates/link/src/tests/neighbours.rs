//! The table by itself: states, time, floods.

use super::*;
use fastrand::Rng;
use std::net::Ipv4Addr;

const SECOND: Duration = Duration::from_secs(1);

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn host(number: u32) -> IpAddr {
    Ipv4Addr::from(0x0A00_0000 + number).into()
}

fn mac(number: u8) -> MacAddress {
    MacAddress([2, 0, 0, 0, 0, number])
}

fn answer(number: u8) -> Heard {
    Heard { mac: Some(mac(number)), is_answer: true, overrides: true, creates: false }
}

fn announcement(number: u8) -> Heard {
    Heard { is_answer: false, ..answer(number) }
}

fn request(number: u8) -> Heard {
    Heard { is_answer: false, creates: true, ..answer(number) }
}

fn events(table: &mut Neighbours) -> Vec<NeighbourEvent> {
    std::iter::from_fn(|| table.next_event()).collect()
}

fn solicit(number: u32, mac: Option<MacAddress>) -> NeighbourEvent {
    NeighbourEvent::Solicit { address: host(number), mac }
}

/// A table that has resolved host 1 at time 0, with its events taken.
fn with_host_1() -> Neighbours {
    let mut table = Neighbours::new(64);
    assert_eq!(table.resolve(host(1), at(0)), Resolution::Pending);
    table.hear(host(1), answer(1), at(0));
    let resolved = NeighbourEvent::Resolved { address: host(1), mac: mac(1) };
    assert_eq!(events(&mut table), [solicit(1, None), resolved]);
    table
}

fn known(number: u8, until: u64) -> Resolution {
    Resolution::Known { mac: mac(number), until: at(until) }
}

#[test]
fn an_unknown_neighbour_is_asked_for_three_times_and_given_up() {
    let mut table = Neighbours::new(64);
    for (now, expected) in [
        (0, vec![solicit(1, None)]),
        (1, vec![solicit(1, None)]),
        (2, vec![solicit(1, None)]),
        (3, vec![NeighbourEvent::Failed { address: host(1) }]),
    ] {
        table.expire(at(now));
        if now < 3 {
            assert_eq!(table.resolve(host(1), at(now)), Resolution::Pending);
        }
        assert_eq!(events(&mut table), expected, "after {now} s");
    }
    assert!(table.is_empty());
    assert_eq!(table.next_timer, Duration::MAX);
}

#[test]
fn an_answer_is_believed_for_30_seconds_and_then_checked_when_it_is_used() {
    let mut table = with_host_1();
    assert_eq!(table.resolve(host(1), at(29)), known(1, 30));
    table.expire(at(1000));
    assert_eq!(events(&mut table), [], "nobody uses it");
    assert_eq!(table.resolve(host(1), at(1000)), known(1, 1001), "packets go where it was");
    assert_eq!(events(&mut table), [solicit(1, Some(mac(1)))]);
    table.hear(host(1), answer(1), at(1000));
    assert_eq!(table.resolve(host(1), at(1000)), known(1, 1030));
    assert_eq!(events(&mut table), []);
}

#[test]
fn a_neighbour_that_is_gone_is_forgotten_after_three_probes() {
    let mut table = with_host_1();
    table.resolve(host(1), at(40));
    let before = table.generation();
    (41..=43).for_each(|now| table.expire(at(now)));
    assert_eq!(events(&mut table), [solicit(1, Some(mac(1))); 3]);
    assert!(table.is_empty() && table.generation() > before);
    assert_eq!(table.resolve(host(1), at(43)), Resolution::Pending);
}

/// RFC 4861 7.2.5, and Linux without `arp_accept`.
#[test]
fn an_announcement_changes_what_is_known_and_adds_nothing() {
    let mut table = with_host_1();
    table.hear(host(2), announcement(2), at(1));
    assert_eq!((table.len(), table.mac(host(2))), (1, None));
    let before = table.generation();
    table.hear(host(1), announcement(1), at(1));
    assert_eq!((table.generation(), table.resolve(host(1), at(1))), (before, known(1, 30)), "nothing new");
    table.hear(host(1), announcement(9), at(1));
    assert!(table.generation() > before);
    assert_eq!(table.resolve(host(1), at(1)), known(9, 2), "believed, and checked at once");
    assert_eq!(events(&mut table), [solicit(1, Some(mac(9)))]);
}

#[test]
fn an_advertisement_that_does_not_override_only_raises_doubt() {
    let mut table = with_host_1();
    table.hear(host(1), Heard { overrides: false, ..answer(9) }, at(1));
    assert_eq!(table.mac(host(1)), Some(mac(1)));
    assert_eq!(table.resolve(host(1), at(1)), known(1, 2));
    assert_eq!(events(&mut table), [solicit(1, Some(mac(1)))]);
    table.hear(host(1), Heard { mac: None, ..answer(0) }, at(1));
    assert_eq!(table.resolve(host(1), at(1)), known(1, 31), "an answer without an address confirms the old");
}

#[test]
fn an_answer_that_nobody_asked_for_makes_nothing_reachable() {
    let mut table = with_host_1();
    table.hear(host(1), answer(9), at(10));
    assert_eq!(table.resolve(host(1), at(10)), known(9, 11), "it is probed");
}

#[test]
fn who_asks_for_us_is_known_and_checked_when_used() {
    let mut table = Neighbours::new(64);
    table.hear(host(3), request(3), at(5));
    assert_eq!(events(&mut table), []);
    assert_eq!(table.resolve(host(3), at(6)), known(3, 7));
    assert_eq!(events(&mut table), [solicit(3, Some(mac(3)))]);
    let mut waited = Neighbours::new(64);
    waited.resolve(host(3), at(5));
    waited.hear(host(3), request(3), at(5));
    let resolved = NeighbourEvent::Resolved { address: host(3), mac: mac(3) };
    assert_eq!(events(&mut waited), [solicit(3, None), resolved]);
}

/// Invented addresses, to be resolved and heard of, by the hundred thousand.
#[test]
fn a_flood_of_invented_addresses_pushes_out_no_peer_in_use() {
    let mut table = Neighbours::new(64);
    let (mut now, peers) = (at(0), 48);
    for peer in 0..peers {
        table.resolve(host(peer), now);
        table.hear(host(peer), answer(peer as u8), now);
    }
    let mut invented = 1_000_000;
    for _ in 0..1000 {
        for _ in 0..100 {
            invented += 2;
            table.resolve(host(invented), now);
            table.hear(host(invented + 1), request(7), now);
        }
        now += Duration::from_millis(100);
        table.expire(now);
        while let Some(event) = table.next_event() {
            // The peers answer when they are probed.
            if let NeighbourEvent::Solicit { address, mac: Some(mac) } = event
                && address < host(peers)
            {
                table.hear(address, Heard { mac: Some(mac), ..answer(0) }, now);
            }
        }
        for peer in 0..peers {
            let Resolution::Known { mac: found, .. } = table.resolve(host(peer), now) else {
                panic!("peer {peer} was pushed out");
            };
            assert_eq!(found, mac(peer as u8));
        }
        assert!(table.len() <= 64);
    }
}

#[test]
fn invented_addresses_do_not_have_the_paths_of_others_looked_up_again() {
    let mut table = with_host_1();
    let before = table.generation();
    for invented in 0..1000 {
        table.resolve(host(1_000_000 + invented), at(1));
        table.hear(host(2_000_000 + invented), request(7), at(1));
    }
    assert_eq!(table.generation(), before);
    (1..=4).for_each(|now| table.expire(at(now)));
    assert_eq!(table.generation(), before);
    table.forget(host(1));
    assert!(table.generation() > before);
}

/// A new peer is found in the middle of a flood, if it answers before a quarter of the table was invented.
#[test]
fn a_peer_that_answers_soon_is_found_during_a_flood() {
    let mut table = Neighbours::new(64);
    for peer in 0..10 {
        (0..100).for_each(|other| _ = table.resolve(host(1_000_000 + 1000 * peer + other), at(0)));
        table.resolve(host(peer), at(0));
        (0..15).for_each(|other| _ = table.resolve(host(2_000_000 + 1000 * peer + other), at(0)));
        table.hear(host(peer), answer(1), at(0));
    }
    (0..100).for_each(|other| _ = table.resolve(host(3_000_000 + other), at(0)));
    assert!((0..10).all(|peer| table.mac(host(peer)) == Some(mac(1))));
}

#[test]
fn an_idle_resident_gives_way_and_one_in_use_does_not() {
    let mut table = Neighbours::new(8);
    for peer in 0..6 {
        table.resolve(host(peer), at(u64::from(peer)));
        table.hear(host(peer), answer(1), at(u64::from(peer)));
    }
    table.resolve(host(6), at(100));
    table.hear(host(6), answer(1), at(100));
    (0..2).for_each(|other| _ = table.resolve(host(100 + other), at(101)));
    assert_eq!(table.mac(host(6)), None, "all residents are in use: it remained a guest");
    assert!((0..6).all(|peer| table.mac(host(peer)).is_some()));
    table.resolve(host(7), at(121));
    table.hear(host(7), answer(1), at(121));
    (0..2).for_each(|other| _ = table.resolve(host(100 + other), at(122)));
    assert_eq!((table.mac(host(7)), table.mac(host(0))), (Some(mac(1)), None), "the one unused for longest");
    assert!((1..6).all(|peer| table.mac(host(peer)).is_some()));
}

/// Whatever happens in whatever order: the index leads to each entry, and to nothing else.
#[test]
fn index_and_entries_agree_after_any_operations() {
    let mut random = Rng::with_seed(4861);
    for _ in 0..50 {
        let (mut table, mut now) = (Neighbours::new(16), at(0));
        for _ in 0..2000 {
            let address = host(random.u32(..40));
            match random.u8(..8) {
                0..=2 => _ = table.resolve(address, now),
                3 | 4 => {
                    let heard = Heard {
                        mac: random.bool().then(|| mac(random.u8(..))),
                        is_answer: random.bool(),
                        overrides: random.bool(),
                        creates: random.bool(),
                    };
                    table.hear(address, heard, now);
                }
                5 => table.forget(address),
                _ => {
                    now += SECOND * random.u32(..60);
                    table.expire(now);
                }
            }
            assert!(events(&mut table).len() <= 2 * 16);
            let entries: Vec<_> = table.entries.iter().flatten().collect();
            assert_eq!(entries.len(), table.index.len());
            for (slot, entry) in table.entries.iter().enumerate() {
                let address = entry.as_ref().map(|entry| entry.address);
                assert!(address.is_none_or(|address| table.index.get(&address) == Some(&slot)));
            }
        }
    }
}
