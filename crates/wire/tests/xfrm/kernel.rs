//! What a Linux kernel answers and tells: each message is read, and built again byte for byte.

use crate::captures::{IPROUTE2, of_xfrm, read, rebuilt, recorded};
use std::collections::HashMap;
use testudo_wire::netlink::ack::{AckOptions, Answer, Refusal};
use testudo_wire::netlink::datagram::Datagram;
use testudo_wire::netlink::errno::Errno;
use testudo_wire::netlink::{Header, kind, messages};
use testudo_wire::xfrm::kind as xfrm_kind;
use testudo_wire::xfrm::message::{Body, Message};

#[test]
fn answers_and_notifications_are_built_again_byte_for_byte() {
    let mut seen = HashMap::new();
    for datagram in recorded(IPROUTE2).iter().filter(|datagram| !datagram.is_sent) {
        for message in of_xfrm(&datagram.bytes) {
            let said = read(&message);
            assert_eq!(rebuilt(&said, &message), message.bytes, "{}: {said:?}", datagram.command);
            *seen.entry(message.header.kind).or_insert(0) += 1;
        }
    }
    let told = [
        xfrm_kind::NEW_SA,
        xfrm_kind::DELETE_SA,
        xfrm_kind::FLUSH_SAS,
        xfrm_kind::NEW_POLICY,
        xfrm_kind::UPDATE_POLICY,
        xfrm_kind::DELETE_POLICY,
        xfrm_kind::FLUSH_POLICIES,
        xfrm_kind::ACQUIRE,
        xfrm_kind::EXPIRE,
        xfrm_kind::POLICY_EXPIRE,
        xfrm_kind::SAD_INFO,
        xfrm_kind::SPD_INFO,
        xfrm_kind::GET_DEFAULTS,
    ];
    for kind in told {
        assert!(seen.contains_key(&kind), "no {:?} in the recording", xfrm_kind::name_of(kind));
    }
}

fn told(kind: u16) -> Vec<Message> {
    let all = recorded(IPROUTE2);
    let told = all.iter().filter(|datagram| datagram.command == "ip xfrm monitor");
    told.flat_map(|datagram| of_xfrm(&datagram.bytes).iter().map(read).collect::<Vec<_>>())
        .filter(|message| message.body.kind() == kind)
        .collect()
}

/// A packet from 10.9.0.1 to 10.10.0.1 met a policy from 10.9.0.0/24 to 10.10.0.0/16 with one template.
#[test]
fn an_acquire_says_packet_policy_and_template() {
    let all = told(xfrm_kind::ACQUIRE);
    let Some(Body::Acquire(acquire)) = all.first().map(|message| message.body) else { panic!("{all:?}") };
    let ip = |text: &str| text.parse::<std::net::IpAddr>().expect("an address").into();
    assert_eq!(
        (acquire.id.protocol, acquire.id.destination, acquire.source),
        (50, ip("10.9.0.2"), ip("10.9.0.1"))
    );
    let selector = acquire.selector;
    assert_eq!((selector.source, selector.source_prefix), (ip("10.9.0.1"), 32));
    assert_eq!((selector.destination, selector.destination_prefix), (ip("10.10.0.1"), 32));
    assert_eq!((acquire.policy.selector.source_prefix, acquire.policy.selector.destination_prefix), (24, 16));
    assert_eq!(acquire.policy.priority, 5);
    let templates = all[0].attributes.templates().expect("the policy's templates");
    assert_eq!((templates.len(), templates[0].reqid, templates[0].mode), (1, 11, 1));
    assert_ne!(acquire.sequence, 0);
}

#[test]
fn expiries_are_soft_and_hard() {
    let sas = told(xfrm_kind::EXPIRE);
    assert!(
        sas.iter().all(|message| matches!(message.body, Body::Expire(expire) if expire.hard == 1)),
        "{sas:?}"
    );
    assert!(!sas.is_empty());
    let policies = told(xfrm_kind::POLICY_EXPIRE);
    let hard: Vec<u8> = policies
        .iter()
        .filter_map(|message| match message.body {
            Body::PolicyExpire(expire) => Some(expire.hard),
            _ => None,
        })
        .collect();
    assert!(hard.contains(&0) && hard.contains(&1), "{hard:?}");
}

/// The SA that is gone is an attribute after its identity.
#[test]
fn a_deleted_sa_is_told_whole() {
    let all = told(xfrm_kind::DELETE_SA);
    let Some(Body::DeleteSa(id)) = all.first().map(|message| message.body) else { panic!("{all:?}") };
    assert_eq!(id.spi, 0x3000);
    let sa = all[0].attributes.sa().expect("the SA");
    assert_eq!((sa.sa_id(), sa.reqid), (id, 6));
    let mark = all[0].attributes.mark().expect("its mark");
    assert_eq!((mark.value, mark.mask), (1, 3));
}

/// The requests of the recording with the acknowledgements that the kernel gave.
fn acknowledged() -> Vec<(&'static str, Vec<u8>, Vec<u8>)> {
    let (mut pairs, mut last) = (Vec::new(), None);
    for datagram in recorded(IPROUTE2) {
        if datagram.is_sent {
            last = Some(datagram.bytes);
        } else if messages(&datagram.bytes).any(|message| message.is_ok_and(|m| m.header.kind == kind::ERROR))
        {
            pairs.push((datagram.command, last.clone().expect("a request"), datagram.bytes));
        }
    }
    pairs
}

/// The kernel's acknowledgements, of success and of failure, with a text and without, come out of ours byte
/// for byte when it is told what the kernel said.
#[test]
fn acknowledgements_are_built_as_the_kernel_builds_them() {
    let (mut successes, mut failures, mut texts) = (0, 0, 0);
    for (command, request, recorded) in acknowledged() {
        let request = messages(&request).next().expect("a request").expect("whole");
        let message = messages(&recorded).next().expect("an answer").expect("whole");
        let answer = Answer::read(&message).expect("an acknowledgement");
        assert_eq!(answer.request, request.header, "{command}");
        let text = answer.text.clone();
        let errno = Errno(u16::try_from(-answer.code).expect("an errno"));
        let refusal = Refusal {
            errno,
            text: text.clone().unwrap_or_default(),
            offset: answer.offset.map(|at| at as usize),
        };
        let outcome = if answer.code == 0 { Ok(()) } else { Err(&refusal) };
        let mut datagram = Datagram::new();
        let options = AckOptions { capped: false, extended: text.is_some() };
        datagram.ack(&request, message.header.port, outcome, options);
        assert_eq!(datagram.as_bytes(), recorded, "{command}: {answer:?}");
        successes += usize::from(answer.code == 0);
        failures += usize::from(answer.code != 0);
        texts += usize::from(text.is_some());
    }
    assert!(successes > 10 && failures > 10 && texts > 10, "{successes}, {failures}, {texts}");
}

#[test]
fn the_end_of_a_dump_is_built_as_the_kernel_builds_it() {
    let mut ends = 0;
    for datagram in recorded(IPROUTE2).iter().filter(|datagram| !datagram.is_sent) {
        for message in messages(&datagram.bytes).map(|message| message.expect("whole")) {
            if message.header.kind == kind::DONE {
                let mut built = Datagram::new();
                built.done(&Header { flags: 0x301, kind: 0x12, ..message.header }, message.header.port, 0);
                assert_eq!(built.as_bytes(), message.bytes, "{}", datagram.command);
                ends += 1;
            }
        }
    }
    assert!(ends > 3);
}
