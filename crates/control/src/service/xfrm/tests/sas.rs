//! Requests about SAs, by the kernel's rules.

use super::model::{only_message, sa_with, update};
use super::*;
use testudo_wire::xfrm::lifetime::LifetimeCurrent;
use testudo_wire::xfrm::notification::Expire;
use testudo_wire::xfrm::replay::{EsnFixed, ReplayState, ReplayStateEsn};
use testudo_wire::xfrm::sa::EventId;
use testudo_wire::xfrm::sa_flag;
use testudo_wire::xfrm::selector::Mark;

fn mark(value: u32, mask: u32) -> Attribute {
    Attribute::Mark(Mark { value, mask })
}

const EEXIST: i32 = -17;
const EINVAL: i32 = -22;
const ENOENT: i32 = -2;
const ESRCH: i32 = -3;

/// charon's `mark_in_sa`: the SPI is reserved without a mark, and the SA comes with one.
#[test]
fn an_update_with_a_mark_completes_a_reservation_that_has_none() {
    let mut direct = Direct::default();
    direct.reserve(0x200);
    assert_eq!(direct.ask(update(sa_with(0x200, [mark(5, 0xFF)]))), Ok(None));
    assert!(matches!(direct.told.pop(), Some((group::SA, _, Message { body: Body::UpdateSa(_), .. }))));
    assert!(direct.xfrm.tick(later(1_000_000)).is_empty(), "nothing is reserved any more");
    assert!(direct.shown(0x200, [mark(5, 0xFF)].into()).is_some(), "and the SA lives");
    assert_eq!(direct.shown(0x200, Attributes::default()), None);
    assert_eq!(direct.xfrm.data_path.sas.len(), 1);
}

#[test]
fn an_update_with_a_mark_does_not_become_a_second_sa_of_its_name() {
    let mut direct = Direct::default();
    assert_eq!(direct.ask(sa_with(0x200, [mark(5, 0xFF)])), Ok(None));
    direct.reserve(0x200);
    assert_eq!(direct.ask(update(sa_with(0x200, [mark(5, 0xFF)]))), Err(EEXIST));
    assert_eq!(direct.xfrm.data_path.sas.len(), 1);
}

#[test]
fn an_sa_without_a_mark_is_meant_by_each_mark() {
    let mut direct = Direct::default();
    assert_eq!(direct.ask(sa(0x1001)), Ok(None));
    assert_eq!(direct.ask(sa_with(0x1001, [mark(5, 0xFF)])), Err(EEXIST));
    assert!(direct.shown(0x1001, [mark(5, 0xFF)].into()).is_some());
    // Beside one with a mark there is room for others, and for one without.
    assert_eq!(direct.ask(sa_with(0x1002, [mark(5, 0xFF)])), Ok(None));
    assert_eq!(direct.ask(sa_with(0x1002, [mark(6, 0xFF)])), Ok(None));
    assert_eq!(direct.ask(sa_with(0x1002, [mark(0x15, 0x0F)])), Err(EEXIST), "5 under the mask of the first");
    assert_eq!(direct.shown(0x1002, Attributes::default()), None);
    assert_eq!(direct.ask(sa(0x1002)), Ok(None));
    let (_, of_six) = direct.shown(0x1002, [mark(0x106, 0xFFF)].into()).unwrap();
    assert_eq!(of_six.mark(), None, "the latest one that the mark fits: the one without");
    let delete = Message { body: Body::DeleteSa(id_of(&sa(0x1002))), attributes: [mark(6, 0xFF)].into() };
    assert_eq!(direct.ask(delete.clone()), Ok(None));
    let (_, of_six) = direct.shown(0x1002, [mark(6, 0xFF)].into()).unwrap();
    assert_eq!(of_six.mark(), Some(&Mark { value: 6, mask: 0xFF }), "which was left");
    assert_eq!(direct.ask(delete.clone()), Ok(None));
    assert_eq!(direct.ask(delete), Err(ESRCH));
}

/// charon moves an SA to other addresses by deleting it and adding it with what it had used.
#[test]
fn an_sa_that_comes_with_what_it_had_used_goes_on_counting_there() {
    let mut direct = Direct::default();
    let used = LifetimeCurrent { bytes: 1000, packets: 10, added_at_s: 900_000, used_at_s: 900_005 };
    assert_eq!(direct.ask(sa_with(0x1001, [Attribute::Used(used)])), Ok(None));
    let key = *direct.xfrm.data_path.sas.keys().next().unwrap();
    let here = SaUse { bytes: 50, packets: 2, first_s: 1_000_001, last_s: 1_000_002, ..SaUse::default() };
    direct.xfrm.data_path.uses.insert(key, here);
    let (info, attributes) = direct.shown(0x1001, Attributes::default()).unwrap();
    let whole = LifetimeCurrent { bytes: 1050, packets: 12, ..used };
    assert_eq!(info.current, whole);
    assert_eq!(attributes.last_used(), Some(&1_000_002));
    let event = Body::GetEvent(EventId { sa: id_of(&sa(0x1001)), ..EventId::default() });
    assert_eq!(direct.ask(event).unwrap().unwrap().attributes.used(), Some(&whole));
    let told = direct.xfrm.data_path.sas[&key].used_before;
    assert_eq!((told.bytes, told.packets, told.first_s), (1000, 10, 900_005), "for its limits");
    // Without it, an SA begins when it comes.
    assert_eq!(direct.ask(sa(0x1002)), Ok(None));
    assert_eq!(direct.shown(0x1002, Attributes::default()).unwrap().0.current.added_at_s, NOW.unix_s);
}

fn with_esn(spi: u32, flags: u8, window: u32, words: u32) -> Message {
    let state =
        ReplayStateEsn { fixed: EsnFixed { window, words, ..EsnFixed::default() }, bitmap: Vec::new() };
    let message = sa_with(spi, [Attribute::ReplayEsn(state)]);
    let Body::NewSa(info) = message.body else { panic!("an SA") };
    Message { body: Body::NewSa(SaInfo { flags, ..info }), ..message }
}

#[test]
fn a_replay_window_fits_its_bitmap_and_is_there_with_extended_numbers() {
    let mut direct = Direct::default();
    assert_eq!(direct.ask(with_esn(0x1001, sa_flag::ESN, 0, 0)), Err(EINVAL));
    assert_eq!(direct.ask(with_esn(0x1001, sa_flag::ESN, 0, 1)), Err(EINVAL));
    assert_eq!(direct.ask(with_esn(0x1001, sa_flag::ESN, 33, 1)), Err(EINVAL));
    assert_eq!(direct.ask(with_esn(0x1001, 0, 65, 2)), Err(EINVAL), "without extended numbers, too");
    assert_eq!(direct.ask(with_esn(0x1001, sa_flag::ESN, 32, 1)), Ok(None));
    assert_eq!(direct.ask(with_esn(0x1002, 0, 64, 2)), Ok(None));
    assert_eq!(direct.ask(with_esn(0x1003, 0, 0, 0)), Ok(None), "no window without extended numbers");
}

#[test]
fn an_update_changes_the_mark_that_packets_get_and_the_interface() {
    let mut direct = Direct::default();
    assert_eq!(direct.ask(sa_with(0x1001, [Attribute::SetMark(1), Attribute::IfId(9)])), Ok(None));
    let marks = |direct: &mut Direct| {
        let (_, shown) = direct.shown(0x1001, Attributes::default()).unwrap();
        (shown.set_mark().copied(), shown.set_mark_mask().copied(), shown.if_id().copied())
    };
    assert_eq!(marks(&mut direct), (Some(1), Some(u32::MAX), Some(9)), "a mark alone is one of all bits");
    assert_eq!(direct.ask(update(sa(0x1001))), Ok(None));
    assert_eq!(marks(&mut direct), (Some(1), Some(u32::MAX), Some(9)), "what an update does not say stays");
    let new = [Attribute::SetMark(2), Attribute::SetMarkMask(0xF), Attribute::IfId(10)];
    assert_eq!(direct.ask(update(sa_with(0x1001, new))), Ok(None));
    assert_eq!(marks(&mut direct), (Some(2), Some(0xF), Some(10)));
    let there = direct.xfrm.data_path.sas.values().next().unwrap();
    assert_eq!((there.if_id(), there.attributes.set_mark()), (10, Some(&2)), "where they take effect");
}

#[test]
fn what_says_nothing_is_not_shown() {
    let mut direct = Direct::default();
    let nothing = [mark(0, 0), Attribute::IfId(0), Attribute::SetMarkMask(7), Attribute::TfcPadding(0)];
    assert_eq!(direct.ask(sa_with(0x1001, nothing)), Ok(None));
    let (_, shown) = direct.shown(0x1001, Attributes::default()).unwrap();
    assert_eq!((shown.mark(), shown.if_id(), shown.set_mark_mask()), (None, None, None));
    assert_eq!(shown.tfc_padding(), None);
}

fn expire(spi: u32, hard: u8) -> Body {
    let Body::NewSa(info) = sa(spi).body else { panic!("an SA") };
    Body::Expire(Expire { sa: info, hard })
}

#[test]
fn a_client_ends_an_sa_and_those_who_listen_hear_of_its_end_alone() {
    let mut direct = Direct::default();
    assert_eq!(direct.ask(expire(0x1001, 1)), Err(ENOENT));
    direct.reserve(0x200);
    assert_eq!(direct.ask(expire(0x200, 0)), Err(EINVAL), "an SPI that is reserved is no SA");
    assert_eq!(direct.ask(sa_with(0x1001, [Attribute::IfId(9)])), Ok(None));
    direct.told.clear();
    assert_eq!(direct.ask(expire(0x1001, 0)), Ok(None));
    assert_eq!(direct.ask(expire(0x1001, 1)), Ok(None));
    assert_eq!(direct.ask(expire(0x1001, 1)), Err(ENOENT));
    let heard: Vec<_> = direct.told.iter().map(|(group, header, _)| (*group, header.sequence)).collect();
    assert_eq!(heard, [(group::EXPIRE, 0), (group::EXPIRE, 0)], "no deletion; and no number of a request");
    assert_eq!(direct.told[1].2.attributes.if_id(), Some(&9));
    assert!(direct.xfrm.data_path.sas.is_empty());
}

#[test]
fn a_limit_of_an_sa_that_has_gone_is_none_of_its_successor() {
    let mut direct = Direct::default();
    assert_eq!(direct.ask(sa(0x1001)), Ok(None));
    let place = |direct: &Direct| direct.xfrm.data_path.sas.values().next().unwrap().place;
    let first = place(&direct);
    assert_eq!(direct.ask(Body::DeleteSa(id_of(&sa(0x1001)))), Ok(None));
    assert_eq!(direct.ask(sa(0x1001)), Ok(None));
    assert!(direct.xfrm.reached_limit(first, true).is_none(), "the worker's event came late");
    assert!(direct.shown(0x1001, Attributes::default()).is_some());
    let second = place(&direct);
    let soft = direct.xfrm.reached_limit(second, false).unwrap();
    assert!(matches!(only_message(&soft.datagram).1.body, Body::Expire(Expire { hard: 0, .. })));
    assert!(direct.xfrm.reached_limit(second, true).is_some());
    assert_eq!(direct.shown(0x1001, Attributes::default()), None);
    // The model panics if it is told to remove what it does not have.
    direct.reserve(0x200);
    assert!(direct.xfrm.reached_limit(second + 1, true).is_none());
    assert!(direct.shown(0x200, Attributes::default()).is_some(), "its SPI stays reserved");
    assert_eq!(direct.ask(Body::DeleteSa(id_of(&sa(0x200)))), Ok(None));
}

/// Marks, interfaces and numbers are shown of an event as of its SA.
#[test]
fn an_event_shows_mark_and_interface() {
    let mut direct = Direct::default();
    let numbers = Attribute::Replay(ReplayState { received: 5, ..ReplayState::default() });
    assert_eq!(direct.ask(sa_with(0x1001, [mark(3, 7), Attribute::IfId(9), numbers])), Ok(None));
    let id = EventId { sa: id_of(&sa(0x1001)), flags: 1, ..EventId::default() };
    let asked = Message { body: Body::GetEvent(id), attributes: [mark(3, 7)].into() };
    let Message { body: Body::NewEvent(shown), attributes } = direct.ask(asked).unwrap().unwrap() else {
        panic!("an event");
    };
    assert_eq!((shown.sa, shown.flags), (id.sa, 1));
    assert_eq!((attributes.mark(), attributes.if_id()), (Some(&Mark { value: 3, mask: 7 }), Some(&9)));
}

#[test]
fn a_flush_of_a_protocol_without_sas_succeeds() {
    let mut direct = Direct::default();
    for protocol in [0, 43, 50, 60, 108, 135, 255] {
        assert_eq!(direct.ask(Body::FlushSas(FlushSas { protocol })), Ok(None), "{protocol}");
    }
    assert!(direct.told.is_empty(), "nothing has happened");
    assert_eq!(direct.ask(sa(0x1001)), Ok(None));
    assert_eq!(direct.ask(Body::FlushSas(FlushSas { protocol: 60 })), Ok(None));
    assert!(direct.shown(0x1001, Attributes::default()).is_some());
}

#[test]
fn reservations_end_by_a_clock_that_nobody_sets_and_show_the_one_that_is_set() {
    let mut direct = Direct::default();
    direct.reserve(0x200);
    direct.now.unix_s += 1_000_000;
    direct.reserve(0x201);
    assert!(direct.xfrm.tick(later(164)).is_empty(), "though somebody has set the clock");
    assert_eq!(direct.shown(0x201, Attributes::default()).unwrap().0.current.added_at_s, 2_000_000);
    let told = direct.xfrm.tick(later(165));
    direct.hear(&told);
    let ended: Vec<_> = direct.told.iter().map(|(group, _, message)| (*group, message.body)).collect();
    assert!(
        matches!(ended[..], [(group::EXPIRE, Body::Expire(one)), (group::EXPIRE, Body::Expire(other))]
            if (one.hard, other.hard) == (1, 1) && (one.sa.id.spi, other.sa.id.spi) == (0x200, 0x201)),
        "{ended:?}"
    );
    assert_eq!(direct.shown(0x200, Attributes::default()), None);
}
