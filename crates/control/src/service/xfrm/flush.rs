//! Flushes, a part at a time: what there is may be much, each removal is the worker's to confirm, and other
//! clients have their turn between two parts. What is added meanwhile stays.

use super::data_path::DataPath;
use super::server::{Notification, Xfrm, notification};
use testudo_wire::netlink::Header;
use testudo_wire::xfrm::group;
use testudo_wire::xfrm::message::{Body, Message};
use testudo_wire::xfrm::sa::FlushSas;

/// SAs or policies that are looked at in one part.
const PART: usize = 64;

#[derive(Debug, Clone, Copy)]
enum What {
    Sas(FlushSas),
    Policies,
}

/// A flush that goes on.
#[derive(Debug)]
pub struct Flush {
    what: What,
    /// Places or arrivals before this one are left to look at.
    before: u64,
    has_removed: bool,
    header: Header,
    port: u32,
}

impl Flush {
    /// Of all SAs of a protocol. As in the kernel, there may be none of it, and no such protocol.
    pub(super) fn of_sas(flush: FlushSas, header: Header, port: u32) -> Self {
        Self { what: What::Sas(flush), before: u64::MAX, has_removed: false, header, port }
    }

    /// Of all policies.
    pub(super) fn of_policies(header: Header, port: u32) -> Self {
        Self { what: What::Policies, before: u64::MAX, has_removed: false, header, port }
    }

    fn told(&self) -> Notification {
        let (group, message) = match self.what {
            What::Sas(flush) => (group::SA, Message::from(Body::FlushSas(flush))),
            What::Policies => (group::POLICY, Body::FlushPolicies.into()),
        };
        notification(group, self.header.sequence, self.port, &message)
    }
}

impl<D: DataPath> Xfrm<D> {
    /// Goes on with a flush. Returns whether it is over, and what those who listen are told then.
    pub fn flush(&mut self, flush: &mut Flush) -> (bool, Vec<Notification>) {
        for _ in 0..PART {
            let next = match flush.what {
                What::Sas(wanted) => self.sad.before(flush.before).map(|(place, sa)| {
                    (place, [0, 255, sa.key.protocol].contains(&wanted.protocol).then_some(0))
                }),
                What::Policies => {
                    let next = self.spd.before(flush.before);
                    next.map(|(arrival, policy)| (arrival, Some(policy.info.index)))
                }
            };
            let Some((place, removed)) = next else {
                return (true, flush.has_removed.then(|| flush.told()).into_iter().collect());
            };
            flush.before = place;
            let Some(index) = removed else { continue };
            flush.has_removed = true;
            match flush.what {
                What::Sas(_) => self.drop_sa(place),
                What::Policies => self.drop_policy(index),
            }
        }
        (false, Vec::new())
    }
}
