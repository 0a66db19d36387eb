//! Requests about SAs.

use super::data_path::{DataPath, SaUse};
use super::processor;
use super::renewal::RenewalState;
use super::sa::{SaKey, UsedBefore, XfrmSa, address, invalid, last_of_each, updated};
use super::sad::Place;
use super::server::{Client, Now, Outcome, Request, Xfrm, answer};
use testudo_crypto::KeyMaterial;
use testudo_wire::netlink::ack::Refusal;
use testudo_wire::netlink::errno::Errno;
use testudo_wire::protocol;
use testudo_wire::xfrm::attribute::{Attribute, Attributes};
use testudo_wire::xfrm::group;
use testudo_wire::xfrm::info::{HashSize, SadInfo};
use testudo_wire::xfrm::message::{Body, Message};
use testudo_wire::xfrm::sa::{SaInfo, SpiRequest};
use testudo_wire::xfrm::selector::{SaId, Selector};

/// No SA is meant.
pub(super) fn no_sa() -> Refusal {
    Refusal::new(Errno::SRCH, "there is no such SA: destination, protocol, SPI and mark must be its own")
}

fn is_there() -> Refusal {
    Refusal::new(Errno::EXIST, "an SA has this destination, protocol, SPI and mark")
}

/// An SA has changed, or has come under an SPI that was reserved.
fn tell_update(request: &mut Request<'_>, shown: Message) {
    let Body::NewSa(info) = shown.body else { return };
    request.tell(group::SA, &Message { body: Body::UpdateSa(info), ..shown });
}

/// An SA is gone.
fn tell_deleted(request: &mut Request<'_>, shown: Message) {
    let Body::NewSa(info) = shown.body else { return };
    let mut attributes = Attributes::from([Attribute::Sa(Box::new(info))]);
    shown.attributes.iter().for_each(|attribute| attributes.push(attribute.clone()));
    request.tell(group::SA, &Message { body: Body::DeleteSa(info.sa_id()), attributes });
}

impl<D: DataPath> Xfrm<D> {
    /// What an SA has been used for; one whose SPI alone is reserved is not in the data path.
    pub(super) fn use_of(&self, sa: &XfrmSa) -> SaUse {
        if sa.is_larval() { SaUse::default() } else { self.data_path.use_of(&sa.key) }
    }

    /// The SA of a request, in the place that it would have.
    fn requested(
        &self,
        request: &Request<'_>,
        info: &SaInfo,
        attributes: &Attributes,
    ) -> Result<(XfrmSa, KeyMaterial), Refusal> {
        processor::check_sa(attributes, self.data_path.processors())?;
        let is_local = |address| self.data_path.is_local(address);
        let (sa, key) = XfrmSa::requested(info, attributes, is_local, request.now.unix_s)?;
        let Client { name: daemon, owner, .. } = *request.client;
        Ok((XfrmSa { place: self.sad.next_place(), owner, daemon, ..sa }, key))
    }

    pub(super) fn new_sa(
        &mut self,
        request: &mut Request<'_>,
        info: &SaInfo,
        attributes: &Attributes,
    ) -> Result<Outcome, Refusal> {
        let (sa, key) = self.requested(request, info, attributes)?;
        if self.sad.meant(&sa.key).is_some() {
            return Err(is_there());
        }
        self.sad.check_room(&sa.key)?;
        self.add_sa(request, &sa, key, (info, attributes))?;
        let shown = sa.shown(&SaUse::default());
        self.sad.insert(sa);
        request.tell(group::SA, &shown);
        Ok(Outcome::Done)
    }

    pub(super) fn update_sa(
        &mut self,
        request: &mut Request<'_>,
        info: &SaInfo,
        attributes: &Attributes,
    ) -> Result<Outcome, Refusal> {
        let (sa, key) = self.requested(request, info, attributes)?;
        let before = self.sad.meant(&sa.key).ok_or_else(no_sa)?;
        if before.is_larval() {
            let reserved = before.place;
            return self.complete(request, reserved, (sa, key), (info, attributes));
        }
        let has_encapsulation = |sa: &XfrmSa| sa.attributes.encapsulation().is_some();
        if has_encapsulation(&before) != has_encapsulation(&sa) {
            return Err(invalid("an SA keeps its encapsulation, or keeps having none"));
        }
        // Of an SA that lives these change; the rest stays.
        let mut after = before.clone();
        after.info.lifetime = sa.info.lifetime;
        after.attributes = updated(&before.attributes, &sa.attributes);
        self.data_path.change_sa(&before, &after)?;
        let shown = after.shown(&self.use_of(&after));
        self.sad.change(after);
        tell_update(request, shown);
        Ok(Outcome::Done)
    }

    /// Adds an SA to the data path. Where that has no room, the oldest one between the same ends gives way
    /// whose process has gone: nobody will ever delete it.
    fn add_sa(
        &mut self,
        request: &mut Request<'_>,
        sa: &XfrmSa,
        key: KeyMaterial,
        (info, attributes): (&SaInfo, &Attributes),
    ) -> Result<(), Refusal> {
        let added = self.data_path.add_sa(sa, key);
        let Err(refusal) = added.as_ref() else {
            self.note_renewed(sa, request.now);
            return added;
        };
        let left = match refusal.errno {
            Errno::NOBUFS => self.left_behind(sa, |other| other.processor() == sa.processor()),
            // Those of single processors are too many together.
            Errno::NOMEM if sa.processor().is_some() => {
                self.left_behind(sa, |other| other.processor().is_some())
            }
            _ => None,
        };
        let Some(shown) = left.map(|left| (left.place, left.shown(&self.use_of(&left)))) else {
            return added;
        };
        let (place, shown) = shown;
        self.drop_sa(place);
        tell_deleted(request, shown);
        let (_, key) = self.requested(request, info, attributes)?;
        self.data_path.add_sa(sa, key)?;
        self.note_renewed(sa, request.now);
        Ok(())
    }

    /// The oldest SA between the same ends, of the same direction and these processors, that a process has
    /// left which is gone.
    fn left_behind(&self, sa: &XfrmSa, is_meant: impl Fn(&XfrmSa) -> bool) -> Option<XfrmSa> {
        let ends = |sa: &XfrmSa| {
            let (SaKey { protocol, .. }, SaInfo { mode, reqid, .. }) = (sa.key, sa.info);
            (protocol, mode, reqid, sa.if_id(), sa.is_inbound)
        };
        let others = self.sad.between(sa.source, sa.key.destination, sa.info.reqid);
        let left = others.filter(|other| {
            !other.is_larval()
                && ends(other) == ends(sa)
                && is_meant(other)
                && !self.connected.contains(&other.owner)
        });
        left.last()
    }

    fn note_renewed(&mut self, sa: &XfrmSa, now: Now) {
        let Some(over) = self.renewal.added(sa, now.monotonic_ms) else { return };
        let RenewalState { renewed, without_traffic_ms, .. } = over;
        tracing::info!(
            "key exchange daemons have renewed what the gateway before had: {renewed} tunnels were without traffic for \
             {}.{} s at most",
            without_traffic_ms / 1000,
            without_traffic_ms % 1000 / 100
        );
    }

    /// An SA comes under the SPI that was reserved for it. It may have a mark where the reservation has none:
    /// charon reserves so.
    fn complete(
        &mut self,
        request: &mut Request<'_>,
        reserved: Place,
        (mut sa, key): (XfrmSa, KeyMaterial),
        said: (&SaInfo, &Attributes),
    ) -> Result<Outcome, Refusal> {
        let is_reservations = self.sad.at(reserved).is_some_and(|larval| larval.key == sa.key);
        if !is_reservations && self.sad.has(&sa.key) {
            return Err(is_there());
        }
        // It was reserved here, so that its packets come here.
        sa.is_inbound = true;
        self.add_sa(request, &sa, key, said)?;
        let shown = sa.shown(&SaUse::default());
        self.sad.remove(reserved);
        self.sad.insert(sa);
        tell_update(request, shown);
        Ok(Outcome::Done)
    }

    /// The SA that a client means.
    pub(super) fn meant(&self, id: &SaId, attributes: &Attributes) -> Result<XfrmSa, Refusal> {
        let key = SaKey::of(id, attributes)?;
        self.sad.meant(&key).ok_or_else(no_sa)
    }

    pub(super) fn delete_sa(
        &mut self,
        request: &mut Request<'_>,
        id: &SaId,
        attributes: &Attributes,
    ) -> Result<Outcome, Refusal> {
        let sa = self.meant(id, attributes)?;
        let (shown, place) = (sa.shown(&self.use_of(&sa)), sa.place);
        self.drop_sa(place);
        tell_deleted(request, shown);
        Ok(Outcome::Done)
    }

    /// Removes an SA from where it takes effect, too; a reservation takes none.
    pub(super) fn drop_sa(&mut self, place: Place) {
        if let Some(sa) = self.sad.remove(place)
            && !sa.is_larval()
        {
            self.data_path.remove_sa(&sa);
        }
    }

    pub(super) fn get_sa(&self, id: &SaId, attributes: &Attributes) -> Result<Outcome, Refusal> {
        let sa = self.meant(id, attributes)?;
        Ok(answer(sa.shown(&self.use_of(&sa))))
    }

    pub(super) fn allocate_spi(
        &mut self,
        request: &mut Request<'_>,
        wish: &SpiRequest,
        attributes: &Attributes,
        random: &mut dyn FnMut(u32) -> u32,
    ) -> Result<Outcome, Refusal> {
        let info = wish.sa;
        if ![protocol::ESP, protocol::AH].contains(&info.id.protocol) {
            return Err(invalid(format!(
                "{} has no SPIs of the gateway: ESP is 50, AH is 51",
                info.id.protocol
            )));
        }
        if wish.lowest > wish.highest {
            return Err(invalid(format!("no SPI is between {:#x} and {:#x}", wish.lowest, wish.highest)));
        }
        processor::check_reservation(attributes, self.data_path.processors())?;
        let key = SaKey::of(&info.sa_id(), attributes)?;
        let source = address(info.source, info.family, "source")?;
        let (range, process) = ((wish.lowest, wish.highest), request.client.process);
        let spi = self.sad.free_spi(key, range, process, &self.data_path, random)?;
        let key = SaKey { spi, ..key };
        let mut shown = info;
        shown.id.spi = spi;
        // As the kernel: between the two hosts, until the SA says otherwise.
        let bits = if key.destination.is_ipv4() { 32 } else { 128 };
        shown.selector = Selector {
            source: info.source,
            destination: info.id.destination,
            family: info.family,
            source_prefix: bits,
            destination_prefix: bits,
            ..Selector::default()
        };
        let kept = last_of_each(attributes, |a| {
            matches!(a, Attribute::Mark(_) | Attribute::IfId(_) | Attribute::Processor(_))
        });
        let sa = XfrmSa {
            key,
            place: self.sad.next_place(),
            source,
            info: shown,
            attributes: kept.into_iter().collect(),
            suite: None,
            is_inbound: true,
            added_s: request.now.unix_s,
            owner: request.client.owner,
            used_before: UsedBefore::default(),
            daemon: request.client.name,
        };
        let shown = sa.shown(&SaUse::default());
        self.sad.reserve(sa, process, request.now.monotonic_s());
        Ok(answer(shown))
    }

    pub(super) fn sad_info(&self, flags: u32) -> SadInfo {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let buckets = count(self.sad.len().next_power_of_two().max(8));
        let max_buckets = count(super::sad::MAX_SAS);
        SadInfo { flags, count: Some(count(self.sad.len())), hash: Some(HashSize { buckets, max_buckets }) }
    }
}
