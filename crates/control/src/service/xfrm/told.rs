//! What the data path has to say to key exchange daemons.

use super::data_path::DataPath;
use super::sad::Place;
use super::server::{Notification, Xfrm, notification};
use std::net::SocketAddr;
use testudo_wire::xfrm::attribute::{Attribute, Attributes};
use testudo_wire::xfrm::group;
use testudo_wire::xfrm::message::{Body, Message};
use testudo_wire::xfrm::notification::{Acquire, Mapping};
use testudo_wire::xfrm::policy::PolicyType;
use testudo_wire::xfrm::selector::{Id, Selector};

impl<D: DataPath> Xfrm<D> {
    /// A packet with these values meets the policy with an index, and there is no SA for it; or, at a
    /// `processor`, none of that processor's own (RFC 9611). `sequence` is a number that no other acquire
    /// has. Returns what those who listen are told; nothing if the policy is gone, names no SA, or wants none
    /// for each processor.
    pub fn acquire(
        &self,
        index: u32,
        packet: Selector,
        processor: Option<u32>,
        sequence: u32,
    ) -> Option<Notification> {
        let policy = self.spd.get(index)?;
        if processor.is_some() && !policy.wants_own() {
            return None;
        }
        let template = policy.templates.first()?;
        let Body::NewPolicy(info) = policy.shown(&self.data_path.use_of_policy(index)).body else {
            return None;
        };
        let body = Acquire {
            id: Id { spi: 0, ..template.id },
            source: template.source,
            selector: packet,
            policy: info,
            integrity_algorithms: template.integrity_algorithms,
            ciphers: template.ciphers,
            compression_algorithms: template.compression_algorithms,
            sequence,
        };
        let mut attributes = Attributes::from([Attribute::Templates(policy.templates.clone())]);
        attributes.push(Attribute::PolicyType(PolicyType::default()));
        policy.attributes.iter().for_each(|attribute| attributes.push(attribute.clone()));
        processor.into_iter().for_each(|number| attributes.push(Attribute::Processor(number)));
        let message = Message { body: Body::Acquire(body), attributes };
        Some(notification(group::ACQUIRE, 0, 0, &message))
    }

    /// Packets of the SA at a place come from another address or port of the peer (RFC 3948 3.1). Returns
    /// what those who listen are told.
    pub fn mapping(&self, place: Place, from: SocketAddr) -> Option<Notification> {
        let sa = self.sad.at(place)?;
        let encapsulation = sa.attributes.encapsulation()?;
        let body = Mapping {
            sa: sa.info.sa_id(),
            reqid: sa.info.reqid,
            old_source: sa.info.source,
            new_source: from.ip().into(),
            old_port: encapsulation.source_port,
            new_port: from.port(),
        };
        Some(notification(group::MAPPING, 0, 0, &Body::Mapping(body).into()))
    }
}
