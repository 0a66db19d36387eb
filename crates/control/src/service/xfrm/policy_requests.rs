//! Requests about policies, and about what becomes of packets without one.

use super::data_path::{DataPath, PolicyUse};
use super::flush::Flush;
use super::policy::{Direction, PolicyKey, XfrmPolicy};
use super::server::{Outcome, Request, Xfrm, notification};
use testudo_wire::netlink::ack::Refusal;
use testudo_wire::netlink::errno::Errno;
use testudo_wire::xfrm::attribute::{Attribute, Attributes};
use testudo_wire::xfrm::info::{HashSize, PolicyCounts, SpdInfo};
use testudo_wire::xfrm::message::{Body, Message};
use testudo_wire::xfrm::notification::PolicyExpire;
use testudo_wire::xfrm::policy::{PolicyDefaults, PolicyId, PolicyInfo};
use testudo_wire::xfrm::selector::Selector;
use testudo_wire::xfrm::{default_action, group};

pub(super) fn no_policy() -> Refusal {
    Refusal::new(Errno::NOENT, "there is no such policy: selector, direction, mark and if_id must be its own")
}

/// What no policy names is discarded (RFC 4301 4.4.1).
pub(super) const BLOCKED: PolicyDefaults = PolicyDefaults {
    inbound: default_action::BLOCK,
    forward: default_action::BLOCK,
    outbound: default_action::BLOCK,
};

pub(super) fn set_defaults(defaults: &PolicyDefaults) -> Result<Outcome, Refusal> {
    let PolicyDefaults { inbound, forward, outbound } = *defaults;
    if [inbound, forward, outbound].contains(&default_action::ACCEPT) {
        let text =
            "what no policy names is discarded (RFC 4301 4.4.1): add a policy of low priority that allows it";
        return Err(Refusal::new(Errno::OPNOTSUPP, text));
    }
    Ok(Outcome::Done)
}

impl<D: DataPath> Xfrm<D> {
    /// A policy as a message shows it.
    pub(super) fn shown(&self, policy: &XfrmPolicy) -> Message {
        policy.shown(&self.data_path.use_of_policy(policy.info.index))
    }

    pub(super) fn put_policy(
        &mut self,
        request: &mut Request<'_>,
        info: &PolicyInfo,
        attributes: &Attributes,
        is_new: bool,
    ) -> Result<Outcome, Refusal> {
        let mut policy = XfrmPolicy::requested(info, attributes, request.now.unix_s)?;
        let before = self.spd.with_key(policy.direction, &policy.key());
        let is_update = match before {
            Some(_) if is_new => {
                let text =
                    "a policy has this selector, direction, mark and if_id: update it, or delete it first";
                return Err(Refusal::new(Errno::EXIST, text));
            }
            Some(index) => {
                // One of the same priority stays where it is, and so does one in front of its own place.
                let priority = policy.info.priority;
                let successor = self.spd.successor(policy.direction, priority);
                let is_same = self.spd.get(index).is_some_and(|before| before.info.priority == priority);
                let stays = is_same || successor == Some(index);
                let next = if stays { self.spd.behind(index) } else { successor };
                policy.info.index = index;
                self.data_path.replace_policy(&policy, next)?;
                true
            }
            None => {
                policy.info.index = self.spd.free_index(policy.direction, info.index)?;
                let next = self.spd.successor(policy.direction, policy.info.priority);
                self.data_path.add_policy(&policy, next)?;
                false
            }
        };
        let shown = policy.shown(&PolicyUse::default());
        self.policy_limits.note(policy.info.index, &policy.info.lifetime, request.now.monotonic_s());
        self.spd.insert(policy);
        let Body::NewPolicy(info) = shown.body else { return Ok(Outcome::Done) };
        let body = if is_update { Body::UpdatePolicy(info) } else { Body::NewPolicy(info) };
        request.tell(group::POLICY, &Message { body, ..shown });
        Ok(Outcome::Done)
    }

    /// The policy that an id means: by its index, or by its selector.
    pub(super) fn index_of(&self, id: &PolicyId, attributes: &Attributes) -> Result<u32, Refusal> {
        let direction = Direction::of(id.direction)?;
        let key = PolicyKey::of(id.selector, attributes)?;
        if id.index != 0 {
            let is_meant = |policy: &XfrmPolicy| {
                let own = policy.key();
                (policy.direction, own.mark, own.if_id) == (direction, key.mark, key.if_id)
            };
            let found = self.spd.get(id.index).filter(is_meant);
            return found.map(|policy| policy.info.index).ok_or_else(no_policy);
        }
        self.spd.with_key(direction, &key).ok_or_else(no_policy)
    }

    pub(super) fn delete_policy(
        &mut self,
        request: &mut Request<'_>,
        id: &PolicyId,
        attributes: &Attributes,
    ) -> Result<Outcome, Refusal> {
        let index = self.index_of(id, attributes)?;
        let policy = self.spd.get(index).ok_or_else(no_policy)?;
        let shown = self.shown(&policy);
        self.drop_policy(index);
        let Body::NewPolicy(info) = shown.body else { return Ok(Outcome::Done) };
        let id = PolicyId { selector: info.selector, index, direction: info.direction };
        let mut attributes = Attributes::from([Attribute::Policy(Box::new(info))]);
        shown.attributes.iter().for_each(|attribute| attributes.push(attribute.clone()));
        request.tell(group::POLICY, &Message { body: Body::DeletePolicy(id), attributes });
        Ok(Outcome::Done)
    }

    /// Removes a policy from where it takes effect, too.
    pub(super) fn drop_policy(&mut self, index: u32) {
        self.policy_limits.forget(index);
        if self.spd.remove(index).is_some() {
            self.data_path.remove_policy(index);
        }
    }

    /// A client says that a policy is at a limit; a hard one ends it, of which the kernel tells only this.
    pub(super) fn expire_policy(
        &mut self,
        request: &mut Request<'_>,
        expire: &PolicyExpire,
        attributes: &Attributes,
    ) -> Result<Outcome, Refusal> {
        let PolicyInfo { selector, index, direction, .. } = expire.policy;
        let index = self.index_of(&PolicyId { selector, index, direction }, attributes)?;
        let policy = self.spd.get(index).ok_or_else(no_policy)?;
        let shown = self.shown(&policy);
        let Body::NewPolicy(info) = shown.body else { return Ok(Outcome::Done) };
        if expire.hard != 0 {
            self.drop_policy(index);
        }
        let body = Body::PolicyExpire(PolicyExpire { policy: info, hard: (expire.hard != 0).into() });
        let message = Message { body, ..shown };
        request.notifications.push(notification(group::EXPIRE, 0, request.client.port, &message));
        Ok(Outcome::Done)
    }

    pub(super) fn flush_policies(
        &self,
        request: &Request<'_>,
        attributes: &Attributes,
    ) -> Result<Outcome, Refusal> {
        // Another table than the one that there is has no policies.
        PolicyKey::of(Selector::default(), attributes)?;
        Ok(Outcome::Flush(Flush::of_policies(request.header, request.client.port)))
    }

    pub(super) fn spd_info(&self, flags: u32) -> SpdInfo {
        let count = |direction| u32::try_from(self.spd.count_of(direction)).unwrap_or(u32::MAX);
        let counts = PolicyCounts {
            inbound: count(Direction::Inbound),
            outbound: count(Direction::Outbound),
            forward: count(Direction::Forward),
            ..PolicyCounts::default()
        };
        let limit = u32::try_from(super::spd::MAX_POLICIES).unwrap_or(u32::MAX);
        let buckets = u32::try_from(self.spd.len().next_power_of_two().max(8)).unwrap_or(u32::MAX);
        let [threshold_ipv4, threshold_ipv6] = self.thresholds.map(Some);
        let hash = Some(HashSize { buckets, max_buckets: limit });
        SpdInfo { flags, counts: Some(counts), hash, threshold_ipv4, threshold_ipv6 }
    }

    /// Remembered for those who ask: look-up costs the same here for all prefixes.
    pub(super) fn set_thresholds(&mut self, info: &SpdInfo) -> Result<Outcome, Refusal> {
        for (own, new) in self.thresholds.iter_mut().zip([info.threshold_ipv4, info.threshold_ipv6]) {
            *own = new.unwrap_or(*own);
        }
        Ok(Outcome::Done)
    }
}
