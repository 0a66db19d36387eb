//! MIGRATE: a policy and its SAs move to other addresses (`xfrm_migrate`), as MOBIKE has it (RFC 4555).
//!
//! A policy is meant by selector and direction. Each entry of the list names the old ends, protocol, mode and
//! bundle, of which the latest SA moves, and the templates of the policy that say the same. That there is no
//! such SA is no error: the three policies of a tunnel come one by one, and share their SAs.
//!
//! All of it happens, or nothing does.

use super::data_path::DataPath;
use super::policy::{Direction, MAIN, PolicyKey, XfrmPolicy};
use super::policy_requests::no_policy;
use super::sa::{SaKey, XfrmSa, address, invalid};
use super::server::{Outcome, Request, Xfrm, notification};
use std::net::IpAddr;
use testudo_wire::netlink::ack::Refusal;
use testudo_wire::netlink::errno::Errno;
use testudo_wire::xfrm::attribute::{Attribute, Attributes};
use testudo_wire::xfrm::message::{Body, Message};
use testudo_wire::xfrm::policy::{Migration, PolicyId, PolicyType, Template};
use testudo_wire::xfrm::sa::Encapsulation;
use testudo_wire::xfrm::{encapsulation, group, mode};

/// Source and destination.
type Ends = (IpAddr, IpAddr);

/// An entry of the list.
struct Entry {
    migration: Migration,
    old: Ends,
    new: Ends,
}

/// An SA that is to move.
struct Move {
    before: XfrmSa,
    after: XfrmSa,
}

fn no_data(text: &str) -> Refusal {
    Refusal::new(Errno::NODATA, text)
}

impl Entry {
    fn of(migration: &Migration) -> Result<Self, Refusal> {
        let ends = |source, destination, family| -> Result<Ends, Refusal> {
            Ok((address(source, family, "source")?, address(destination, family, "destination")?))
        };
        let Migration { old_source, old_destination, old_family, .. } = *migration;
        let Migration { new_source, new_destination, new_family, .. } = *migration;
        let old = ends(old_source, old_destination, old_family)?;
        let new = ends(new_source, new_destination, new_family)?;
        if new.0.is_unspecified() || new.1.is_unspecified() {
            return Err(invalid("an SA moves to two addresses, neither of them 0"));
        }
        Ok(Self { migration: *migration, old, new })
    }

    /// Whether two mean the same SAs.
    fn is_same(&self, other: &Self) -> bool {
        let key =
            |entry: &Self| (entry.old, entry.migration.protocol, entry.migration.mode, entry.migration.reqid);
        key(self) == key(other)
    }

    fn means(&self, sa: &XfrmSa, if_id: u32) -> bool {
        !sa.is_larval()
            && (sa.info.mode, sa.key.protocol) == (self.migration.mode, self.migration.protocol)
            && (if_id == 0 || sa.if_id() == if_id)
    }

    /// Templates in transport mode have no addresses (`migrate_tmpl_match`).
    fn means_template(&self, template: &Template) -> bool {
        let Migration { protocol, mode, reqid, .. } = self.migration;
        let is_kind = (template.mode, template.id.protocol) == (mode, protocol);
        let ip = |address: testudo_wire::xfrm::address::Address| address.ip(template.family);
        let is_between =
            (ip(template.source), ip(template.id.destination)) == (Some(self.old.0), Some(self.old.1));
        is_kind && (reqid == 0 || template.reqid == reqid) && (template.mode == mode::TRANSPORT || is_between)
    }

    /// The SA in its new place, with a new encapsulation if one is said.
    fn moved(&self, sa: &XfrmSa, new_encapsulation: Option<&Encapsulation>) -> XfrmSa {
        let mut after = sa.clone();
        (after.source, after.key.destination) = self.new;
        after.info.source = self.new.0.into();
        after.info.id.destination = self.new.1.into();
        after.info.family = self.migration.new_family;
        if let Some(new) = new_encapsulation {
            let others = sa.attributes.iter().filter(|a| !matches!(a, Attribute::Encapsulation(_)));
            after.attributes = others.cloned().chain([Attribute::Encapsulation(*new)]).collect();
        }
        after
    }
}

fn entries(attributes: &Attributes) -> Result<Vec<Entry>, Refusal> {
    let migrations = attributes.migrations();
    let migrations = migrations.ok_or_else(|| invalid("what moves where is not said (XFRMA_MIGRATE)"))?;
    let entries: Vec<Entry> = migrations.iter().map(Entry::of).collect::<Result<_, _>>()?;
    let is_twice = |at: usize| entries[..at].iter().any(|other| entries[at].is_same(other));
    match (0..entries.len()).any(is_twice) {
        true => Err(invalid("two entries are for the same SAs")),
        false => Ok(entries),
    }
}

/// The templates of a policy after a move.
fn moved_templates(policy: &XfrmPolicy, entries: &[Entry]) -> Result<Vec<Template>, Refusal> {
    let mut templates = policy.templates.clone();
    let mut is_meant = false;
    for template in &mut templates {
        for entry in entries {
            if !entry.means_template(template) {
                continue;
            }
            is_meant = true;
            if template.mode == mode::TUNNEL {
                template.source = entry.new.0.into();
                template.id.destination = entry.new.1.into();
                template.family = entry.migration.new_family;
            }
        }
    }
    if is_meant { Ok(templates) } else { Err(no_data("the policy has no template of these SAs")) }
}

impl<D: DataPath> Xfrm<D> {
    pub(super) fn migrate(
        &mut self,
        request: &mut Request<'_>,
        id: &PolicyId,
        attributes: &Attributes,
    ) -> Result<Outcome, Refusal> {
        let entries = entries(attributes)?;
        let direction = Direction::of(id.direction)?;
        let PolicyKey { selector, if_id, .. } = PolicyKey::of(id.selector, attributes)?;
        let mut policy = self.spd.to_migrate(direction, &selector, if_id).ok_or_else(no_policy)?;
        let index = policy.info.index;
        let moves = self.moves(&entries, attributes.encapsulation(), if_id)?;
        policy.templates = moved_templates(&policy, &entries)?;
        self.move_all(&moves)?;
        if let Err(refusal) = self.data_path.replace_policy(&policy, self.spd.behind(index)) {
            self.move_back(&moves);
            return Err(refusal);
        }
        moves.into_iter().for_each(|Move { after, .. }| self.sad.change(after));
        self.spd.change_templates(index, policy.templates);
        // In the kernel's order, and each entry for itself, as the kernel has it.
        let mut told = Attributes::default();
        let kept = [
            attributes.key_exchange().map(|addresses| Attribute::KeyExchange(*addresses)),
            attributes.encapsulation().map(|encapsulation| Attribute::Encapsulation(*encapsulation)),
            Some(Attribute::PolicyType(PolicyType { kind: MAIN })),
        ];
        kept.into_iter().flatten().for_each(|attribute| told.push(attribute));
        entries.iter().for_each(|entry| told.push(Attribute::Migrations(vec![entry.migration])));
        let body = Body::Migrate(PolicyId { index: 0, ..*id });
        let message = Message { body, attributes: told };
        request.notifications.push(notification(group::MIGRATE, 0, 0, &message));
        Ok(Outcome::Done)
    }

    /// Which SAs move where: of each entry the latest one.
    fn moves(
        &self,
        entries: &[Entry],
        new_encapsulation: Option<&Encapsulation>,
        if_id: u32,
    ) -> Result<Vec<Move>, Refusal> {
        if new_encapsulation.is_some_and(|new| new.kind != encapsulation::ESP_IN_UDP) {
            return Err(Refusal::new(Errno::OPNOTSUPP, "encapsulation: 2 is done, ESP in UDP (RFC 3948)"));
        }
        let mut moves: Vec<Move> = Vec::new();
        for entry in entries {
            let mut there = self.sad.between(entry.old.0, entry.old.1, entry.migration.reqid);
            let Some(before) = there.find(|sa| entry.means(sa, if_id)) else { continue };
            let after = entry.moved(&before, new_encapsulation);
            let is_taken = |key: &SaKey| {
                let other = self.sad.meant(key).is_some_and(|other| other.place != before.place);
                let is_moved_to = moves.iter().any(|other| other.after.key == *key);
                before.key.destination != key.destination && (other || is_moved_to)
            };
            if moves.iter().any(|other| other.before.place == before.place) {
                return Err(no_data("two entries mean the same SA"));
            }
            if is_taken(&after.key) {
                return Err(no_data("another SA has the SPI at the new address"));
            }
            moves.push(Move { before, after });
        }
        Ok(moves)
    }

    /// Moves all of them in the data path, or none.
    fn move_all(&mut self, moves: &[Move]) -> Result<(), Refusal> {
        for (count, Move { before, after }) in moves.iter().enumerate() {
            if let Err(refusal) = self.data_path.migrate_sa(before, after) {
                self.move_back(&moves[..count]);
                return Err(refusal);
            }
        }
        Ok(())
    }

    fn move_back(&mut self, moves: &[Move]) {
        for Move { before, after } in moves.iter().rev() {
            if let Err(refusal) = self.data_path.migrate_sa(after, before) {
                // It is where it is, and is shown there.
                tracing::warn!("xfrm: SA {:#x} could not move back: {refusal}", before.key.spi);
                self.sad.change(after.clone());
            }
        }
    }
}
