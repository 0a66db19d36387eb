//! All SAs of the clients, as the kernel keeps them: by name, and in the order in which they came.

use super::data_path::DataPath;
use super::reservations::Reservations;
use super::sa::{SaKey, XfrmSa};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use testudo_wire::netlink::ack::Refusal;
use testudo_wire::netlink::errno::Errno;

/// SAs at most, reserved SPIs included.
pub(super) const MAX_SAS: usize = 1 << 18;
/// SAs at most that only their marks tell apart: they are looked through one by one.
const MAX_OF_ONE_NAME: usize = 1 << 10;
/// How many random SPIs are tried before the first ones of the range are.
const TRIES: usize = 64;
const TRIES_IN_ORDER: usize = 1 << 16;

/// The place of an SA in the order; later ones have higher places, and none is given twice.
pub type Place = u64;

/// What names an SA beside its mark.
type Name = (IpAddr, u8, u32);

fn name(key: &SaKey) -> Name {
    (key.destination, key.protocol, key.spi)
}

/// The SAs.
#[derive(Debug, Default)]
pub(super) struct Sad {
    /// Boxed: nodes of a map that grows at its end are little more than half full.
    by_place: BTreeMap<Place, Box<XfrmSa>>,
    /// In the order of their places.
    by_name: HashMap<Name, Vec<Place>>,
    /// Source, destination, bundle.
    by_ends: BTreeSet<(IpAddr, IpAddr, u32, Place)>,
    next: Place,
    reservations: Reservations,
}

impl Sad {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.by_place.len()
    }

    /// The SA at a place.
    pub(super) fn at(&self, place: Place) -> Option<&XfrmSa> {
        self.by_place.get(&place).map(Box::as_ref)
    }

    fn named(&self, name: &Name) -> impl Iterator<Item = &XfrmSa> {
        self.by_name.get(name).into_iter().flatten().rev().filter_map(|place| self.at(*place))
    }

    /// The SA that a client means: the latest one of this name whose own mask leaves of the client's mark
    /// what its own mark is (`__xfrm_state_lookup`). So SAs without a mark are meant by each mark.
    pub(super) fn meant(&self, key: &SaKey) -> Option<&XfrmSa> {
        self.named(&name(key)).find(|sa| {
            let (value, mask) = sa.key.mark;
            key.mark.0 & mask == value
        })
    }

    /// Whether an SA has this key, to the bit.
    pub(super) fn has(&self, key: &SaKey) -> bool {
        self.named(&name(key)).any(|sa| sa.key == *key)
    }

    /// The latest one before `place`, with its place.
    pub(super) fn before(&self, place: Place) -> Option<(Place, &XfrmSa)> {
        self.by_place.range(..place).next_back().map(|(place, sa)| (*place, sa.as_ref()))
    }

    /// The latest ones between two hosts first; of one bundle, or of all for 0.
    pub(super) fn between(
        &self,
        source: IpAddr,
        destination: IpAddr,
        reqid: u32,
    ) -> impl Iterator<Item = &XfrmSa> {
        let (lowest, highest) = if reqid == 0 { (0, u32::MAX) } else { (reqid, reqid) };
        let all = (source, destination, lowest, 0)..=(source, destination, highest, Place::MAX);
        let mut places: Vec<Place> = self.by_ends.range(all).map(|(_, _, _, place)| *place).collect();
        places.sort_unstable_by(|one, other| other.cmp(one));
        places.into_iter().filter_map(|place| self.at(place))
    }

    /// Whether one more of this name may be added.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn check_room(&self, key: &SaKey) -> Result<(), Refusal> {
        let text = if self.len() >= MAX_SAS {
            format!("{MAX_SAS} SAs are there, and more are not possible")
        } else if self.by_name.get(&name(key)).is_some_and(|places| places.len() >= MAX_OF_ONE_NAME) {
            format!("{MAX_OF_ONE_NAME} SAs with other marks have this SPI, and more are not possible")
        } else {
            return Ok(());
        };
        Err(Refusal::new(Errno::NOMEM, text))
    }

    /// The place of the next one that comes.
    pub(super) fn next_place(&self) -> Place {
        self.next
    }

    /// Adds one, whose place is the next one.
    pub(super) fn insert(&mut self, sa: XfrmSa) {
        assert_eq!(sa.place, self.next, "an SA has the place that it was promised");
        self.next += 1;
        self.index(sa);
    }

    /// Adds one whose SPI a process reserves from now on.
    pub(super) fn reserve(&mut self, sa: XfrmSa, process: u32, now_s: u64) {
        self.reservations.insert(sa.place, process, now_s);
        self.insert(sa);
    }

    fn index(&mut self, sa: XfrmSa) {
        let places = self.by_name.entry(name(&sa.key)).or_default();
        places.push(sa.place);
        places.sort_unstable();
        self.by_ends.insert((sa.source, sa.key.destination, sa.info.reqid, sa.place));
        self.by_place.insert(sa.place, Box::new(sa));
    }

    /// Changes one that is there, which keeps its place.
    pub(super) fn change(&mut self, sa: XfrmSa) {
        if self.unindex(sa.place).is_some() {
            self.index(sa);
        }
    }

    fn unindex(&mut self, place: Place) -> Option<XfrmSa> {
        let sa = self.by_place.remove(&place)?;
        self.by_ends.remove(&(sa.source, sa.key.destination, sa.info.reqid, place));
        let name = name(&sa.key);
        if let Some(places) = self.by_name.get_mut(&name) {
            places.retain(|other| *other != place);
            if places.is_empty() {
                self.by_name.remove(&name);
            }
        }
        Some(*sa)
    }

    pub(super) fn remove(&mut self, place: Place) -> Option<XfrmSa> {
        self.reservations.remove(place);
        self.unindex(place)
    }

    /// An SPI from `lowest` to `highest` that nobody has, for a process, by chance: `random` gives a number
    /// up to the one it is given.
    ///
    /// # Errors
    /// `ENOENT` if none is free, `ENOMEM` if too many are reserved.
    pub(super) fn free_spi(
        &self,
        wanted: SaKey,
        (lowest, highest): (u32, u32),
        process: u32,
        data_path: &impl DataPath,
        random: &mut dyn FnMut(u32) -> u32,
    ) -> Result<u32, Refusal> {
        self.reservations.check_room(process)?;
        if highest == 0 {
            return Err(Refusal::new(Errno::NOENT, "SPI 0 names no SA (RFC 4303 2.1)"));
        }
        let lowest = lowest.max(1);
        let is_free = |spi: &u32| {
            self.meant(&SaKey { spi: *spi, ..wanted }).is_none()
                && !data_path.has_inbound(wanted.protocol, *spi)
        };
        let span = highest.saturating_sub(lowest);
        let mut tries = (0..TRIES).map(|_| lowest + random(span));
        let mut in_order = (lowest..=highest).take(TRIES_IN_ORDER);
        let found = tries.find(is_free).or_else(|| in_order.find(is_free));
        let spi = found.ok_or_else(|| Refusal::new(Errno::NOENT, "no SPI of the range is free"))?;
        self.check_room(&SaKey { spi, ..wanted })?;
        Ok(spi)
    }

    /// Forgets the next SPI whose reservation is over, if there is one.
    pub(super) fn expired(&mut self, now_s: u64) -> Option<XfrmSa> {
        let place = self.reservations.over(now_s)?;
        self.remove(place)
    }
}
