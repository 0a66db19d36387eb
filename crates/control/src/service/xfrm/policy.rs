//! One policy as a client says it, checked by the kernel's rules (`verify_newpolicy_info`, `validate_tmpl`).

use super::data_path::PolicyUse;
use super::sa::{check_selector, invalid, last_of_each, mark_of};
use testudo_wire::netlink::ack::Refusal;
use testudo_wire::netlink::errno::Errno;
use testudo_wire::protocol;
use testudo_wire::xfrm::attribute::{Attribute, Attributes};
use testudo_wire::xfrm::lifetime::LifetimeCurrent;
use testudo_wire::xfrm::message::{Body, Message};
use testudo_wire::xfrm::policy::{PolicyInfo, Template};
use testudo_wire::xfrm::selector::{Mark, Selector};
use testudo_wire::xfrm::{family, mode, policy_flag};

/// Which packets a policy is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// Those that come to this host.
    Inbound,
    /// Those that leave.
    Outbound,
    /// Those that come and are for other hosts.
    Forward,
}

impl Direction {
    /// All of them, by their numbers.
    pub const ALL: [Self; 3] = [Self::Inbound, Self::Outbound, Self::Forward];

    /// The direction of this number.
    ///
    /// # Errors
    /// `EINVAL` if there is none.
    pub fn of(number: u8) -> Result<Self, Refusal> {
        let found = Self::ALL.get(usize::from(number));
        found
            .copied()
            .ok_or_else(|| invalid(format!("{number} is no direction: 0 is in, 1 is out, 2 is fwd")))
    }

    /// Its number.
    #[must_use]
    pub fn number(self) -> u8 {
        self as u8
    }
}

/// What tells a policy from others, beside its direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PolicyKey {
    pub(super) selector: Selector,
    pub(super) mark: (u32, u32),
    pub(super) if_id: u32,
}

/// The only table.
pub(super) const MAIN: u8 = 0;

impl PolicyKey {
    /// The key that a selector and the attributes beside it mean.
    ///
    /// # Errors
    /// `EINVAL` and `EOPNOTSUPP` for tables that are not there.
    pub(super) fn of(selector: Selector, attributes: &Attributes) -> Result<Self, Refusal> {
        let kind = attributes.policy_type().map_or(0, |policy_type| policy_type.kind);
        match kind {
            MAIN => Ok(Self::in_main(selector, attributes)),
            1 => {
                let text = "the table \"sub\" is for Mobile IPv6, which is not done";
                Err(Refusal::new(Errno::OPNOTSUPP, text))
            }
            other => Err(invalid(format!("{other} is no table of policies: 0 is main"))),
        }
    }

    fn in_main(selector: Selector, attributes: &Attributes) -> Self {
        let if_id = attributes.if_id().copied().unwrap_or(0);
        Self { selector: comparable(selector), mark: mark_of(attributes), if_id }
    }
}

/// A selector without what is left in it by chance: bytes of an address after IPv4's own.
pub(super) fn comparable(selector: Selector) -> Selector {
    let clean = |address: testudo_wire::xfrm::address::Address| {
        address.ip(selector.family).map_or(address, testudo_wire::xfrm::address::Address::from)
    };
    Selector { source: clean(selector.source), destination: clean(selector.destination), ..selector }
}

/// A policy.
#[derive(Debug, Clone)]
pub struct XfrmPolicy {
    /// What the client has said of it; `index` is never 0.
    pub info: PolicyInfo,
    /// Which packets it is for.
    pub direction: Direction,
    /// What is done to them: the SAs that they go through, innermost first.
    pub templates: Vec<Template>,
    /// Mark and interface, and what else is shown.
    pub attributes: Attributes,
    /// When it was added, in seconds since 1970.
    pub added_s: u64,
}

/// Whether a template's family is right, and what it says can be done.
fn check_template(template: &Template, direction: Direction, before: u16) -> Result<u16, Refusal> {
    let own = if template.family == family::UNSPECIFIED { before } else { template.family };
    if own != family::IPV4 && own != family::IPV6 {
        return Err(invalid(format!("template: {own} is neither the family of IPv4 nor of IPv6")));
    }
    match template.mode {
        mode::TUNNEL if template.optional != 0 && direction == Direction::Outbound => {
            return Err(invalid("template: an outbound tunnel cannot be optional (level use)"));
        }
        mode::TUNNEL => {}
        mode::TRANSPORT if own != before => {
            return Err(invalid("template: transport mode does not change the family of addresses"));
        }
        mode::TRANSPORT => {}
        other => {
            let text = format!("template: mode {other} is not done: tunnel and transport mode are");
            return Err(Refusal::new(Errno::OPNOTSUPP, text));
        }
    }
    match template.id.protocol {
        protocol::ESP | protocol::AH => Ok(own),
        108 if template.optional != 0 => Ok(own),
        108 => Err(Refusal::new(Errno::OPNOTSUPP, "template: IPComp is not done")),
        other => Err(invalid(format!("template: {other} is no IPsec protocol: ESP is 50, AH is 51"))),
    }
}

impl XfrmPolicy {
    /// The policy of a request, whose index may still be 0.
    ///
    /// # Errors
    /// The kernel's, or what the gateway does not do.
    pub(super) fn requested(info: &PolicyInfo, attributes: &Attributes, now_s: u64) -> Result<Self, Refusal> {
        if info.share > 3 {
            return Err(invalid(format!("{} is no way to share SAs", info.share)));
        }
        if info.action > 1 {
            return Err(invalid(format!("{} is no action: 0 is allow, 1 is block", info.action)));
        }
        check_selector(&info.selector, false)?;
        let direction = Direction::of(info.direction)?;
        check_index(info.index, direction)?;
        if attributes.security_context().is_some() {
            let text = "security contexts need an LSM that labels packets, which the gateway has not";
            return Err(Refusal::new(Errno::OPNOTSUPP, text));
        }
        let templates = attributes.templates().cloned().unwrap_or_default();
        let mut of_packet = info.selector.family;
        for template in &templates {
            of_packet = check_template(template, direction, of_packet)?;
        }
        // Only tables that there are.
        PolicyKey::of(info.selector, attributes)?;
        // A template without a family has its packet's, and is shown with it.
        let filled = templates.into_iter().map(|template| match template.family {
            family::UNSPECIFIED => Template { family: info.selector.family, ..template },
            _ => template,
        });
        let templates = filled.collect();
        let kept = last_of_each(attributes, is_kept).into_iter();
        let says_nothing = |attribute: &Attribute| {
            matches!(attribute, Attribute::Mark(Mark { value: 0, mask: 0 }) | Attribute::IfId(0))
        };
        let attributes = kept.filter(|attribute| !says_nothing(attribute)).collect();
        Ok(Self { info: *info, direction, templates, attributes, added_s: now_s })
    }

    /// What tells it from others of its direction.
    pub(super) fn key(&self) -> PolicyKey {
        PolicyKey::in_main(self.info.selector, &self.attributes)
    }

    /// Its interface, 0 for none.
    #[must_use]
    pub fn if_id(&self) -> u32 {
        self.attributes.if_id().copied().unwrap_or(0)
    }

    /// Whether each processor is to acquire an SA of its own for packets that leave (RFC 9611).
    #[must_use]
    pub fn wants_own(&self) -> bool {
        self.direction == Direction::Outbound && self.info.flags & policy_flag::CPU_ACQUIRE != 0
    }

    /// Value and mask of its mark.
    #[must_use]
    pub fn mark(&self) -> (u32, u32) {
        mark_of(&self.attributes)
    }

    /// The policy as a message shows it.
    #[must_use]
    pub fn shown(&self, used: &PolicyUse) -> Message {
        // Of a policy the kernel shows the last use, where it shows an SA's first one.
        let current = LifetimeCurrent {
            bytes: used.bytes,
            packets: used.packets,
            added_at_s: self.added_s,
            used_at_s: used.last_s,
        };
        let mut attributes = Attributes::default();
        if !self.templates.is_empty() {
            attributes.push(Attribute::Templates(self.templates.clone()));
        }
        attributes.push(Attribute::PolicyType(testudo_wire::xfrm::policy::PolicyType { kind: MAIN }));
        self.attributes.iter().for_each(|attribute| attributes.push(attribute.clone()));
        Message { body: Body::NewPolicy(PolicyInfo { current, ..self.info }), attributes }
    }
}

/// The low bits of a policy's index are its direction.
pub(super) fn check_index(index: u32, direction: Direction) -> Result<(), Refusal> {
    if index != 0 && index & 7 != u32::from(direction.number()) {
        return Err(invalid(format!("index {index} is none of a policy of this direction")));
    }
    Ok(())
}

fn is_kept(attribute: &Attribute) -> bool {
    matches!(attribute, Attribute::Mark(_) | Attribute::IfId(_))
}
