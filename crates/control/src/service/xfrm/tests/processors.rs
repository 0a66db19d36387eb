//! SAs of one processor each, by the kernel's rules: what is expected here Linux 6.18 has answered, on a
//! machine with two processors. ERANGE alone is what its source says, as that kernel had no ESP.

use super::model::{sa_with, update, wish};
use super::*;
use testudo_wire::netlink::errno::Errno;
use testudo_wire::xfrm::attribute::SaDirection;
use testudo_wire::xfrm::sa::EventId;

const OUT: Attribute = Attribute::Direction(SaDirection::Outbound);
const IN: Attribute = Attribute::Direction(SaDirection::Inbound);

fn of(number: u32) -> Attribute {
    Attribute::Processor(number)
}

/// One whose value has so many bytes.
fn of_bytes(bytes: usize) -> Attribute {
    Attribute::Unknown { kind: 35, value: vec![0; bytes] }
}

#[test]
fn an_sa_has_its_processor_in_all_that_shows_it() {
    let mut direct = Direct::default();
    assert_eq!(direct.ask(sa_with(0x1001, [OUT, of(3)])), Ok(None));
    let told = direct.told.pop().unwrap();
    assert_eq!((told.0, told.2.attributes.processor()), (group::SA, Some(&3)));
    let shown = |direct: &mut Direct| {
        let (_, attributes) = direct.shown(0x1001, Attributes::default()).unwrap();
        (attributes.processor().copied(), attributes.direction().copied())
    };
    assert_eq!(shown(&mut direct), (Some(3), Some(SaDirection::Outbound)));
    assert_eq!(direct.xfrm.data_path.sas.values().next().unwrap().processor(), Some(3));
    let event = Body::GetEvent(EventId { sa: id_of(&sa(0x1001)), ..EventId::default() });
    assert_eq!(direct.ask(event).unwrap().unwrap().attributes.processor(), Some(&3));
    // An SA that lives keeps it, whatever an update says.
    assert_eq!(direct.ask(update(sa_with(0x1001, [OUT, of(1)]))), Ok(None));
    assert_eq!(shown(&mut direct).0, Some(3));
    assert_eq!(direct.ask(update(sa_with(0x1001, []))), Ok(None));
    assert_eq!(shown(&mut direct).0, Some(3));
    let place = direct.xfrm.data_path.sas.values().next().unwrap().place;
    let expired = direct.xfrm.reached_limit(place, true).unwrap();
    assert_eq!(model::only_message(&expired.datagram).1.attributes.processor(), Some(&3));
}

#[test]
fn a_processor_is_one_that_there_may_be_and_comes_with_a_direction() {
    let errno = |errno: Errno| Err(errno.code());
    let mut direct = Direct::default();
    for make in [|message| message, update as fn(Message) -> Message] {
        let mut ask = |more: &[Attribute]| direct.ask(make(sa_with(0x1001, more.iter().cloned())));
        assert_eq!(ask(&[of(0)]), errno(Errno::INVAL), "SA_PCPU only supported with SA_DIR");
        for number in [4, 5, u32::MAX] {
            assert_eq!(ask(&[OUT, of(number)]), errno(Errno::RANGE), "{number}");
            assert_eq!(ask(&[IN, of(number)]), errno(Errno::RANGE), "{number}");
        }
        for bytes in [0, 1, 3, 5, 8] {
            assert_eq!(ask(&[OUT, of_bytes(bytes)]), errno(Errno::INVAL), "{bytes} bytes");
        }
        // Of several the last counts.
        assert_eq!(ask(&[OUT, of(0), of(4)]), errno(Errno::RANGE));
    }
    assert!(direct.xfrm.data_path.sas.is_empty());
    assert_eq!(direct.ask(sa_with(0x1001, [OUT, of(4), of(0)])), Ok(None));
}

#[test]
fn a_reservation_has_a_processor_without_a_direction() {
    let mut direct = Direct::default();
    let with = |attributes: &[Attribute]| {
        let mut wish = wish((0x200, 0x200));
        attributes.iter().for_each(|attribute| wish.attributes.push(attribute.clone()));
        wish
    };
    for number in [4, u32::MAX] {
        assert_eq!(direct.ask(with(&[of(number)])), Err(Errno::INVAL.code()), "{number}: not ERANGE");
    }
    assert_eq!(direct.ask(with(&[of_bytes(2)])), Err(Errno::INVAL.code()));
    let answer = direct.ask(with(&[Attribute::IfId(9), of(1)])).unwrap().unwrap();
    assert_eq!((answer.attributes.processor(), answer.attributes.if_id()), (Some(&1), Some(&9)));
    // Its SA says for itself which one it has.
    assert_eq!(direct.ask(update(sa_with(0x200, [IN, of(2)]))), Ok(None));
    assert_eq!(direct.shown(0x200, Attributes::default()).unwrap().1.processor(), Some(&2));
}

#[test]
fn messages_that_make_no_sa_have_no_processor() {
    let mut direct = Direct::default();
    assert_eq!(direct.ask(sa(0x1001)), Ok(None));
    let id = id_of(&sa(0x1001));
    let Body::NewSa(info) = sa(0x1001).body else { panic!("an SA") };
    let event = EventId { sa: id, ..EventId::default() };
    let expire = testudo_wire::xfrm::notification::Expire { sa: info, hard: 0 };
    let policy = PolicyInfo { selector: info.selector, ..PolicyInfo::default() };
    let policy_id = PolicyId { selector: info.selector, ..PolicyId::default() };
    let bodies = [
        Body::DeleteSa(id),
        Body::GetSa(id),
        Body::FlushSas(FlushSas { protocol: 0 }),
        Body::NewPolicy(policy),
        Body::UpdatePolicy(policy),
        Body::DeletePolicy(policy_id),
        Body::GetPolicy(policy_id),
        Body::FlushPolicies,
        Body::GetEvent(event),
        Body::NewEvent(event),
        Body::Expire(expire),
    ];
    for body in bodies {
        let asked = direct.ask(Message { body, attributes: [of(0)].into() });
        assert_eq!(asked, Err(Errno::INVAL.code()), "{body:?}");
    }
    assert!(direct.shown(0x1001, Attributes::default()).is_some());
}

/// What a process has left that is gone gives way to an SA of the same processor: one of another one's would
/// make no room.
#[test]
fn an_sa_that_was_left_behind_gives_way_to_one_of_its_processor() {
    let mut direct = Direct::default();
    for (spi, number) in [(0x1001, 0), (0x1002, 1)] {
        assert_eq!(direct.ask(sa_with(spi, [OUT, of(number)])), Ok(None));
    }
    direct.client.owner = 77;
    direct.xfrm.data_path.room = Some(2);
    assert_eq!(direct.ask(sa_with(0x1003, [OUT, of(2)])), Err(Errno::NOBUFS.code()));
    assert_eq!(direct.ask(sa_with(0x1004, [OUT, of(1)])), Ok(None));
    let left: Vec<_> = [0x1001, 0x1002, 0x1004]
        .into_iter()
        .filter(|spi| direct.shown(*spi, Attributes::default()).is_some())
        .collect();
    assert_eq!(left, [0x1001, 0x1004]);
}
