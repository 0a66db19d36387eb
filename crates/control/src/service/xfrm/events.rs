//! Numbers and limits of SAs: what clients are shown and told of them.

use super::data_path::{DataPath, SaUse};
use super::sa::{UsedBefore, XfrmSa, invalid};
use super::sad::Place;
use super::server::{Notification, Now, Outcome, Request, Xfrm, answer, notification};
use testudo_wire::netlink::ack::Refusal;
use testudo_wire::netlink::errno::Errno;
use testudo_wire::netlink::{Header, flag};
use testudo_wire::xfrm::attribute::{Attribute, Attributes};
use testudo_wire::xfrm::lifetime::LifetimeCurrent;
use testudo_wire::xfrm::message::{Body, Message};
use testudo_wire::xfrm::notification::Expire;
use testudo_wire::xfrm::sa::EventId;
use testudo_wire::xfrm::{event_flag, group};

/// Mark, interface and processor of an SA, as messages have them that do not show all of it.
fn mark_interface_and_processor(sa: &XfrmSa) -> impl Iterator<Item = Attribute> {
    let shown = |attribute: &&Attribute| {
        matches!(attribute, Attribute::Mark(_) | Attribute::IfId(_) | Attribute::Processor(_))
    };
    sa.attributes.iter().filter(shown).cloned()
}

/// What the kernel asks of a message that sets something.
fn check_event(header: Header, attributes: &Attributes) -> Result<(), Refusal> {
    let thresholds = [attributes.replay_threshold(), attributes.event_timer()];
    let sets_numbers = attributes.replay().is_some() || attributes.replay_esn().is_some();
    if !sets_numbers && attributes.used().is_none() && thresholds == [None, None] {
        return Err(invalid("there is nothing to set: neither numbers, nor use, nor thresholds"));
    }
    if !header.has(flag::REPLACE) {
        return Err(invalid("what is there is set again only with NLM_F_REPLACE"));
    }
    if thresholds.into_iter().flatten().any(|threshold| *threshold != 0) {
        let text = "numbers of an SA are told when they are asked for, not as they change: thresholds are 0";
        return Err(Refusal::new(Errno::OPNOTSUPP, text));
    }
    Ok(())
}

/// The numbers sent and received that a client sets, if it sets those that the SA has.
fn numbers(sa: &XfrmSa, attributes: &Attributes, last: u64) -> Result<Option<(u64, u64)>, Refusal> {
    let set = match sa.attributes.replay_esn() {
        Some(own) => match attributes.replay_esn() {
            Some(set) if set.fixed.words != own.fixed.words => {
                let (set, own) = (set.fixed.words, own.fixed.words);
                return Err(invalid(format!("a bitmap of {set} words, the one of the SA has {own}")));
            }
            Some(set) if u64::from(set.fixed.window) > u64::from(u32::BITS) * u64::from(own.fixed.words) => {
                return Err(invalid("the bitmap has no room for the replay window"));
            }
            set => set.map(|set| (set.sent(), set.received())),
        },
        None => attributes.replay().map(|set| (u64::from(set.sent), u64::from(set.received))),
    };
    let Some((sent, received)) = set else { return Ok(None) };
    let number = if sa.is_inbound { received } else { sent };
    if number < last {
        let text = format!("the SA is at number {last}, and goes not back to {number} (RFC 4303 3.3.3)");
        return Err(invalid(text));
    }
    if number > u64::from(u32::MAX) && !sa.has_extended_numbers() {
        return Err(invalid(format!("{number} needs extended sequence numbers (esn), which the SA has not")));
    }
    Ok((number > last).then_some((sent, received)))
}

/// The SA with what a client says that it was used for.
fn used_otherwise(sa: &XfrmSa, used: &SaUse, set: &LifetimeCurrent) -> Result<XfrmSa, Refusal> {
    let own = sa.current(used);
    if set.bytes < own.bytes || set.packets < own.packets {
        let text = format!("the SA was used for {} packets and {} bytes already", own.packets, own.bytes);
        return Err(invalid(text));
    }
    let used_before = UsedBefore {
        bytes: set.bytes - used.bytes,
        packets: set.packets - used.packets,
        first_s: set.used_at_s,
    };
    Ok(XfrmSa { used_before, added_s: set.added_at_s, ..sa.clone() })
}

impl<D: DataPath> Xfrm<D> {
    pub(super) fn get_event(&self, id: &EventId, attributes: &Attributes) -> Result<Outcome, Refusal> {
        let sa = self.meant(&id.sa, attributes)?;
        Ok(answer(self.event(&sa, id.flags)))
    }

    /// Numbers and use of an SA.
    fn event(&self, sa: &XfrmSa, flags: u32) -> Message {
        let used = self.use_of(sa);
        let mut shown =
            Attributes::from([sa.replay_shown(used.sequence), Attribute::Used(sa.current(&used))]);
        if flags & event_flag::REPLAY_THRESHOLD != 0 {
            shown.push(Attribute::ReplayThreshold(0));
        }
        if flags & event_flag::TIMER_THRESHOLD != 0 {
            shown.push(Attribute::EventTimer(0));
        }
        mark_interface_and_processor(sa).for_each(|attribute| shown.push(attribute));
        let body = EventId { sa: sa.info.sa_id(), source: sa.info.source, reqid: sa.info.reqid, flags };
        Message { body: Body::NewEvent(body), attributes: shown }
    }

    /// A client sets numbers and use of an SA, such as one that was used in another place meanwhile.
    pub(super) fn new_event(
        &mut self,
        request: &mut Request<'_>,
        id: &EventId,
        attributes: &Attributes,
    ) -> Result<Outcome, Refusal> {
        check_event(request.header, attributes)?;
        let before = self.meant(&id.sa, attributes)?;
        if before.is_larval() {
            return Err(invalid("the SPI is reserved, and its SA has not come"));
        }
        let used = self.use_of(&before);
        let numbers = numbers(&before, attributes, used.sequence)?;
        if let Some(set) = attributes.used() {
            let after = used_otherwise(&before, &used, set)?;
            self.data_path.change_sa(&before, &after)?;
            self.sad.change(after);
        }
        let advanced = numbers.map(|(sent, received)| self.data_path.advance(&before.key, sent, received));
        if let Some(Err(refusal)) = advanced {
            self.restore(before);
            return Err(refusal);
        }
        if let Some(sa) = self.sad.at(before.place) {
            let event = self.event(&sa, event_flag::CAUSE_UPDATE);
            request.tell(group::EVENT, &event);
        }
        Ok(Outcome::Done)
    }

    /// Takes back what a refused request has changed.
    fn restore(&mut self, before: XfrmSa) {
        let Some(after) = self.sad.at(before.place) else { return };
        match self.data_path.change_sa(&after, &before) {
            Ok(()) => self.sad.change(before),
            Err(refusal) => tracing::warn!("xfrm: use of an SA could not be taken back: {refusal}"),
        }
    }

    /// A client says that an SA is at a limit; a hard one ends it, of which the kernel tells only this.
    pub(super) fn expire(
        &mut self,
        request: &mut Request<'_>,
        expire: &Expire,
        attributes: &Attributes,
    ) -> Result<Outcome, Refusal> {
        let id = expire.sa.sa_id();
        // The kernel's number here is not the one of other requests.
        let sa = self.meant(&id, attributes).map_err(|refusal| match refusal.errno {
            Errno::SRCH => Refusal { errno: Errno::NOENT, ..refusal },
            _ => refusal,
        })?;
        if sa.is_larval() {
            return Err(invalid("the SPI is reserved, and its SA has not come"));
        }
        let (place, is_hard) = (sa.place, expire.hard != 0);
        let told = notification(group::EXPIRE, 0, request.client.port, &self.expired(&sa, is_hard));
        request.notifications.push(told);
        if is_hard {
            self.drop_sa(place);
        }
        Ok(Outcome::Done)
    }

    fn expired(&self, sa: &XfrmSa, is_hard: bool) -> Message {
        let used = self.use_of(sa);
        let info = sa.info_shown(&used);
        let body = Body::Expire(Expire { sa: info, hard: is_hard.into() });
        Message { body, attributes: mark_interface_and_processor(sa).collect() }
    }

    /// The SA at a place has reached a limit of its lifetime. One that has reached a hard one is deleted.
    /// Returns what those who listen are told; nothing if that SA is no longer there, though another one may
    /// have its name.
    pub fn reached_limit(&mut self, place: Place, is_hard: bool) -> Option<Notification> {
        let sa = self.sad.at(place).filter(|sa| !sa.is_larval())?;
        let message = self.expired(&sa, is_hard);
        if is_hard {
            self.drop_sa(place);
        }
        Some(notification(group::EXPIRE, 0, 0, &message))
    }

    /// Forgets reserved SPIs whose time is over, and ends policies whose limit in seconds is. Returns what
    /// those who listen are told.
    pub fn tick(&mut self, now: Now) -> Vec<Notification> {
        let mut told = self.end_policies(now);
        while let Some(sa) = self.sad.expired(now.monotonic_s()) {
            told.push(notification(group::EXPIRE, 0, 0, &self.expired(&sa, true)));
        }
        told
    }
}
