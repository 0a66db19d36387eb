//! The independent codec `netlink-packet-xfrm` reads what we build, and its values are ours.
//!
//! It panics on some messages that are cut off, so that it gets whole ones only. It knows no attribute after
//! `XFRMA_MTIMER_THRESH`, and one migration per attribute, no dump of policies and no attributes of expiries:
//! these are compared as far as it reads them.

use crate::captures::{DAEMONS, IPROUTE2, STRONGSWAN, of_xfrm, read, recorded};
use crate::examples;
use fastrand::Rng;
use netlink_packet_core::{Nla, ParseableParametrized};
use netlink_packet_xfrm as theirs;
use netlink_packet_xfrm::{XfrmAttrs, XfrmMessage};
use testudo_wire::netlink::{HEADER_BYTES, messages};
use testudo_wire::xfrm::address::Address;
use testudo_wire::xfrm::algorithm::{Algorithm, AlgorithmWithIcv};
use testudo_wire::xfrm::attribute::Attribute;
use testudo_wire::xfrm::lifetime::{LifetimeConfig, LifetimeCurrent};
use testudo_wire::xfrm::message::{Body, Message};
use testudo_wire::xfrm::policy::{Migration, PolicyId, PolicyInfo, Template};
use testudo_wire::xfrm::sa::{EventId, SaInfo};
use testudo_wire::xfrm::selector::{Id, SaId, Selector};

fn address(ours: Address) -> theirs::Address {
    theirs::Address { addr: ours.0 }
}

fn selector(ours: &Selector) -> theirs::Selector {
    theirs::Selector {
        daddr: address(ours.destination),
        saddr: address(ours.source),
        dport: ours.destination_port,
        dport_mask: ours.destination_port_mask,
        sport: ours.source_port,
        sport_mask: ours.source_port_mask,
        family: ours.family,
        prefixlen_d: ours.destination_prefix,
        prefixlen_s: ours.source_prefix,
        proto: ours.protocol,
        ifindex: ours.interface,
        user: ours.user,
    }
}

fn id(ours: &Id) -> theirs::Id {
    theirs::Id { daddr: address(ours.destination), spi: ours.spi, proto: ours.protocol }
}

fn sa_id(ours: &SaId) -> theirs::UserSaId {
    let SaId { destination, spi, family, protocol } = *ours;
    theirs::UserSaId { daddr: address(destination), spi, family, proto: protocol }
}

fn limits(ours: &LifetimeConfig) -> theirs::LifetimeConfig {
    theirs::LifetimeConfig {
        soft_byte_limit: ours.soft_bytes,
        hard_byte_limit: ours.hard_bytes,
        soft_packet_limit: ours.soft_packets,
        hard_packet_limit: ours.hard_packets,
        soft_add_expires_seconds: ours.soft_added_s,
        hard_add_expires_seconds: ours.hard_added_s,
        soft_use_expires_seconds: ours.soft_used_s,
        hard_use_expires_seconds: ours.hard_used_s,
    }
}

fn used(ours: &LifetimeCurrent) -> theirs::Lifetime {
    let LifetimeCurrent { bytes, packets, added_at_s, used_at_s } = *ours;
    theirs::Lifetime { bytes, packets, add_time: added_at_s, use_time: used_at_s }
}

fn sa(ours: &SaInfo) -> theirs::UserSaInfo {
    theirs::UserSaInfo {
        selector: selector(&ours.selector),
        id: id(&ours.id),
        saddr: address(ours.source),
        lifetime_cfg: limits(&ours.lifetime),
        lifetime_cur: used(&ours.current),
        stats: theirs::Stats {
            replay_window: ours.stats.outside_window,
            replay: ours.stats.replayed,
            integrity_failed: ours.stats.integrity_failed,
        },
        seq: ours.sequence,
        reqid: ours.reqid,
        family: ours.family,
        mode: ours.mode,
        replay_window: ours.replay_window,
        flags: ours.flags,
    }
}

fn policy(ours: &PolicyInfo) -> theirs::UserPolicyInfo {
    theirs::UserPolicyInfo {
        selector: selector(&ours.selector),
        lifetime_cfg: limits(&ours.lifetime),
        lifetime_cur: used(&ours.current),
        priority: ours.priority,
        index: ours.index,
        direction: ours.direction,
        action: ours.action,
        flags: ours.flags,
        share: ours.share,
    }
}

fn policy_id(ours: &PolicyId) -> theirs::UserPolicyId {
    theirs::UserPolicyId { selector: selector(&ours.selector), index: ours.index, direction: ours.direction }
}

fn event(ours: &EventId) -> theirs::AsyncEventId {
    let EventId { sa, source, flags, reqid } = ours;
    theirs::AsyncEventId { sa_id: sa_id(sa), saddr: address(*source), flags: *flags, reqid: *reqid }
}

fn template(ours: &Template) -> theirs::UserTemplate {
    theirs::UserTemplate {
        id: id(&ours.id),
        family: ours.family,
        saddr: address(ours.source),
        reqid: ours.reqid,
        mode: ours.mode,
        share: ours.share,
        optional: ours.optional,
        aalgos: ours.integrity_algorithms,
        ealgos: ours.ciphers,
        calgos: ours.compression_algorithms,
    }
}

fn migration(ours: &Migration) -> theirs::UserMigrate {
    theirs::UserMigrate {
        old_daddr: address(ours.old_destination),
        old_saddr: address(ours.old_source),
        new_daddr: address(ours.new_destination),
        new_saddr: address(ours.new_source),
        proto: ours.protocol,
        mode: ours.mode,
        reserved: 0,
        reqid: ours.reqid,
        old_family: ours.old_family,
        new_family: ours.new_family,
    }
}

fn name(ours: &str) -> [u8; 64] {
    let mut name = [0; 64];
    name[..ours.len()].copy_from_slice(ours.as_bytes());
    name
}

fn algorithm(ours: &Algorithm) -> theirs::Alg {
    theirs::Alg {
        alg_name: name(&ours.name),
        alg_key_len: ours.key.bits(),
        alg_key: ours.key.bytes().to_vec(),
    }
}

fn integrity(ours: &AlgorithmWithIcv) -> theirs::AlgAuth {
    theirs::AlgAuth {
        alg_name: name(&ours.name),
        alg_key_len: ours.key.bits(),
        alg_trunc_len: ours.icv_bits,
        alg_key: ours.key.bytes().to_vec(),
    }
}

fn aead(ours: &AlgorithmWithIcv) -> theirs::AlgAead {
    theirs::AlgAead {
        alg_name: name(&ours.name),
        alg_key_len: ours.key.bits(),
        alg_icv_len: ours.icv_bits,
        alg_key: ours.key.bytes().to_vec(),
    }
}

/// Attributes of SAs that are not numbers.
fn of_sa(ours: &Attribute) -> Option<XfrmAttrs> {
    Some(match ours {
        Attribute::Integrity(it) => XfrmAttrs::AuthenticationAlg(algorithm(it)),
        Attribute::Cipher(it) => XfrmAttrs::EncryptionAlg(algorithm(it)),
        Attribute::Compression(it) => XfrmAttrs::CompressionAlg(algorithm(it)),
        Attribute::IntegrityTruncated(it) => XfrmAttrs::AuthenticationAlgTrunc(integrity(it)),
        Attribute::Aead(it) => XfrmAttrs::EncryptionAlgAead(aead(it)),
        Attribute::Encapsulation(it) => XfrmAttrs::EncapsulationTemplate(theirs::EncapTmpl {
            encap_type: it.kind,
            encap_sport: it.source_port,
            encap_dport: it.destination_port,
            encap_oa: address(it.original_address),
        }),
        Attribute::Sa(it) => XfrmAttrs::SaInfo(sa(it)),
        Attribute::Used(it) => XfrmAttrs::LifetimeBytes(used(it)),
        Attribute::Replay(it) => {
            XfrmAttrs::ReplayState(theirs::Replay { oseq: it.sent, seq: it.received, bitmap: it.bitmap })
        }
        Attribute::ReplayEsn(it) => XfrmAttrs::ReplayStateEsn(theirs::ReplayEsn {
            bmp_len: it.fixed.words,
            oseq: it.fixed.sent,
            seq: it.fixed.received,
            oseq_hi: it.fixed.sent_high,
            seq_hi: it.fixed.received_high,
            replay_window: it.fixed.window,
            bmp: it.bitmap.clone(),
        }),
        Attribute::Source(it) => XfrmAttrs::SrcAddr(address(*it)),
        Attribute::CareOf(it) => XfrmAttrs::CareOfAddr(address(*it)),
        Attribute::AddressFilter(it) => XfrmAttrs::AddressFilter(theirs::AddressFilter {
            saddr: address(it.source),
            daddr: address(it.destination),
            family: it.family,
            splen: it.source_prefix,
            dplen: it.destination_prefix,
        }),
        Attribute::Offload(it) => {
            XfrmAttrs::OffloadDevice(theirs::UserOffloadDev { ifindex: it.interface, flags: it.flags })
        }
        _ => return None,
    })
}

/// Numbers, and attributes of policies. None where the other codec does not know it, or only a part.
fn of_policy(ours: &Attribute) -> Option<XfrmAttrs> {
    Some(match ours {
        Attribute::Templates(it) => XfrmAttrs::Template(it.iter().map(template).collect()),
        Attribute::Policy(it) => XfrmAttrs::PolicyInfo(policy(it)),
        Attribute::SecurityContext(it) => XfrmAttrs::SecurityContext(theirs::SecurityCtx {
            len: 8 + it.text.len() as u16,
            exttype: it.extension,
            ctx_alg: it.algorithm,
            ctx_doi: it.domain,
            ctx_len: it.text.len() as u16,
            ctx_str: it.text.clone(),
        }),
        Attribute::PolicyType(it) => {
            XfrmAttrs::PolicyType(theirs::UserPolicyType { ptype: it.kind, reserved1: 0, reserved2: 0 })
        }
        Attribute::Migrations(it) if it.len() == 1 => XfrmAttrs::Migrate(migration(&it[0])),
        Attribute::KeyExchange(it) => XfrmAttrs::KmAddress(theirs::UserKmAddress {
            local: address(it.local),
            remote: address(it.remote),
            reserved: it.reserved,
            family: it.family,
        }),
        Attribute::Mark(it) => XfrmAttrs::Mark(theirs::Mark { value: it.value, mask: it.mask }),
        Attribute::ReplayThreshold(it) => XfrmAttrs::ReplayThreshold(*it),
        Attribute::EventTimer(it) => XfrmAttrs::EventTimeThreshold(*it),
        Attribute::LastUsed(it) => XfrmAttrs::LastUsed(*it),
        Attribute::TfcPadding(it) => XfrmAttrs::TfcPadding(*it),
        Attribute::ExtraFlags(it) => XfrmAttrs::ExtraFlags(*it),
        Attribute::Protocol(it) => XfrmAttrs::Proto(*it),
        Attribute::Padding(_) => XfrmAttrs::Pad(),
        Attribute::SetMark(it) => XfrmAttrs::MarkVal(*it),
        Attribute::SetMarkMask(it) => XfrmAttrs::MarkMask(*it),
        Attribute::IfId(it) => XfrmAttrs::IfId(*it),
        Attribute::MappingTimer(it) => XfrmAttrs::MappingTimeThreshold(*it),
        _ => return None,
    })
}

/// Each attribute of ours is one of theirs, in order; those that they do not know have number and bytes.
fn assert_attributes(ours: &Message, theirs: &[XfrmAttrs], what: &str) -> usize {
    assert_eq!(ours.attributes.iter().count(), theirs.len(), "{what}");
    let mut compared = 0;
    for (ours, theirs) in ours.attributes.iter().zip(theirs) {
        assert_eq!(ours.kind(), theirs.kind(), "{what}");
        if let Some(expected) = of_sa(ours).or_else(|| of_policy(ours)) {
            assert_eq!(&expected, theirs, "{what}");
            compared += 1;
        }
    }
    compared
}

/// Compares a message; returns how many attributes were compared by value.
fn assert_same(ours: &Message, foreign: &XfrmMessage, what: &str) -> usize {
    let attributes = match (&ours.body, foreign) {
        (Body::NewSa(it), XfrmMessage::AddSa(m)) | (Body::UpdateSa(it), XfrmMessage::UpdateSa(m)) => {
            assert_eq!(m.user_sa_info, sa(it), "{what}");
            &m.nlas
        }
        (Body::DeleteSa(it), XfrmMessage::DeleteSa(m)) | (Body::GetSa(it), XfrmMessage::GetSa(m)) => {
            assert_eq!(m.user_sa_id, sa_id(it), "{what}");
            &m.nlas
        }
        (Body::NewPolicy(it), XfrmMessage::AddPolicy(m))
        | (Body::UpdatePolicy(it), XfrmMessage::UpdatePolicy(m)) => {
            assert_eq!(m.user_policy_info, policy(it), "{what}");
            &m.nlas
        }
        (Body::DeletePolicy(it), XfrmMessage::DeletePolicy(m))
        | (Body::GetPolicy(it), XfrmMessage::GetPolicy(m)) => {
            assert_eq!(m.user_policy_id, policy_id(it), "{what}");
            &m.nlas
        }
        (Body::AllocateSpi(it), XfrmMessage::AllocSpi(m)) => {
            let expected = theirs::UserSpiInfo { info: sa(&it.sa), min: it.lowest, max: it.highest };
            assert_eq!(m.spi_info, expected, "{what}");
            &m.nlas
        }
        (Body::FlushPolicies, XfrmMessage::FlushPolicy(m)) => &m.nlas,
        (Body::NewEvent(it), XfrmMessage::NewAsyncEvent(m)) => {
            assert_eq!(m.id, event(it), "{what}");
            &m.nlas
        }
        (Body::Migrate(it), XfrmMessage::Migrate(m)) => {
            assert_eq!(m.user_policy_id, policy_id(it), "{what}");
            &m.nlas
        }
        _ => return assert_same_notification(ours, foreign, what),
    };
    assert_attributes(ours, attributes, what)
}

fn assert_same_notification(ours: &Message, foreign: &XfrmMessage, what: &str) -> usize {
    match (&ours.body, foreign) {
        (Body::Acquire(it), XfrmMessage::Acquire(m)) => {
            let expected = theirs::UserAcquire {
                id: id(&it.id),
                saddr: address(it.source),
                selector: selector(&it.selector),
                policy: policy(&it.policy),
                aalgos: it.integrity_algorithms,
                ealgos: it.ciphers,
                calgos: it.compression_algorithms,
                seq: it.sequence,
            };
            assert_eq!(m.acquire, expected, "{what}");
            return assert_attributes(ours, &m.nlas, what);
        }
        (Body::PolicyExpire(it), XfrmMessage::PolicyExpire(m)) => {
            assert_eq!(
                m.expire,
                theirs::UserPolicyExpire { pol: policy(&it.policy), hard: it.hard },
                "{what}"
            );
            return assert_attributes(ours, &m.nlas, what);
        }
        (Body::Report(it), XfrmMessage::Report(m)) => {
            assert_eq!(
                m.report,
                theirs::UserReport { proto: it.protocol, selector: selector(&it.selector) },
                "{what}"
            );
            return assert_attributes(ours, &m.nlas, what);
        }
        (Body::Expire(it), XfrmMessage::Expire(m)) => {
            assert_eq!(m.expire, theirs::UserExpire { state: sa(&it.sa), hard: it.hard }, "{what}");
        }
        (Body::Mapping(it), XfrmMessage::Mapping(m)) => {
            let expected = theirs::UserMapping {
                id: sa_id(&it.sa),
                reqid: it.reqid,
                old_saddr: address(it.old_source),
                new_saddr: address(it.new_source),
                old_sport: it.old_port,
                new_sport: it.new_port,
            };
            assert_eq!(m.map, expected, "{what}");
        }
        (Body::GetEvent(it), XfrmMessage::GetAsyncEvent(m)) => assert_eq!(m.id, event(it), "{what}"),
        (Body::FlushSas(it), XfrmMessage::FlushSa(m)) => assert_eq!(m.protocol, it.protocol, "{what}"),
        (Body::GetSadInfo(it), XfrmMessage::GetSadInfo(m)) => assert_eq!(m.flags, it.flags, "{what}"),
        (Body::GetSpdInfo(it), XfrmMessage::GetSpdInfo(m)) => assert_eq!(m.flags, it.flags, "{what}"),
        (Body::SetDefaults(it), XfrmMessage::SetPolicyDefault(m))
        | (Body::GetDefaults(it), XfrmMessage::GetPolicyDefault(m)) => {
            let (input, forward, output) = (it.inbound, it.forward, it.outbound);
            assert_eq!(m.user_policy, theirs::UserPolicyDefault { input, forward, output }, "{what}");
        }
        _ => assert_same_sizes(ours, foreign, what),
    }
    0
}

fn assert_same_sizes(ours: &Message, foreign: &XfrmMessage, what: &str) {
    use theirs::policy::{SpdHInfo, SpdHThresh, SpdInfo, SpdInfoAttrs};
    use theirs::state::{SadHInfo, SadInfoAttrs};
    match (&ours.body, foreign) {
        (Body::SadInfo(it), XfrmMessage::NewSadInfo(m)) => {
            let count = it.count.map(SadInfoAttrs::SadCount);
            let hash = it.hash.map(|hash| SadHInfo { sadhcnt: hash.buckets, sadhmcnt: hash.max_buckets });
            let expected = count.into_iter().chain(hash.map(SadInfoAttrs::SadHInfo));
            assert_eq!((m.flags, &m.nlas), (it.flags, &expected.collect()), "{what}");
        }
        (Body::SpdInfo(it), XfrmMessage::NewSpdInfo(m)) => {
            let counts = it.counts.map(|counts| {
                SpdInfoAttrs::SpdInfo(SpdInfo {
                    incnt: counts.inbound,
                    outcnt: counts.outbound,
                    fwdcnt: counts.forward,
                    inscnt: counts.socket_inbound,
                    outscnt: counts.socket_outbound,
                    fwdscnt: counts.socket_forward,
                })
            });
            let hash = it.hash.map(|hash| {
                SpdInfoAttrs::SpdHInfo(SpdHInfo { spdhcnt: hash.buckets, spdhmcnt: hash.max_buckets })
            });
            let [v4, v6] = [it.threshold_ipv4, it.threshold_ipv6].map(|threshold| {
                threshold.map(|threshold| SpdHThresh {
                    lbits: threshold.local_prefix,
                    rbits: threshold.remote_prefix,
                })
            });
            let thresholds = [v4.map(SpdInfoAttrs::SpdIpv4HThresh), v6.map(SpdInfoAttrs::SpdIpv6HThresh)];
            let expected: Vec<_> = [counts, hash].into_iter().chain(thresholds).flatten().collect();
            assert_eq!((m.flags, &m.nlas), (it.flags, &expected), "{what}");
        }
        _ => panic!("{what}: {ours:?} is for them {foreign:?}"),
    }
}

/// Reads a message that we have built, with their codec.
fn foreign(message: &Message) -> XfrmMessage {
    let datagram = examples::datagram(message);
    let header = messages(datagram.as_bytes()).next().expect("a message").expect("whole").header;
    XfrmMessage::parse_with_param(&datagram.as_bytes()[HEADER_BYTES..], header.kind)
        .unwrap_or_else(|error| panic!("{message:?}: {error}"))
}

#[test]
fn messages_of_every_type_are_the_same_for_an_independent_codec() {
    let mut attributes = 0;
    for seed in 0..300 {
        for ours in examples::messages(&mut Rng::with_seed(seed)) {
            // For them a dump is no request of its own.
            if !matches!(ours.body, Body::DumpSas | Body::DumpPolicies) {
                attributes += assert_same(&ours, &foreign(&ours), &format!("seed {seed}"));
            }
        }
    }
    assert!(attributes > 5000, "{attributes} attributes compared");
}

/// They are not what we build, but what iproute2, charon, pluto, a kernel and the gateway have sent.
#[test]
fn recorded_messages_are_the_same_for_an_independent_codec() {
    let (mut messages, mut attributes) = (0, 0);
    for datagram in [IPROUTE2, STRONGSWAN, DAEMONS].into_iter().flat_map(recorded) {
        for message in of_xfrm(&datagram.bytes) {
            let ours = read(&message);
            if matches!(ours.body, Body::DumpSas | Body::DumpPolicies) {
                continue;
            }
            let what = datagram.command;
            let theirs = XfrmMessage::parse_with_param(message.payload(), message.header.kind)
                .unwrap_or_else(|error| panic!("{what}: {message:?}: {error}"));
            attributes += assert_same(&ours, &theirs, what);
            messages += 1;
        }
    }
    assert!(messages > 300 && attributes > 500, "{messages} messages, {attributes} attributes");
}
