//! All SAs of the clients, as the kernel keeps them: by name, and in the order in which they came.

use super::data_path::DataPath;
use super::packed::Packed;
use super::process_name::ProcessName;
use super::reservations::Reservations;
use super::sa::{SaKey, UsedBefore, XfrmSa};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use testudo_crypto::Suite;
use testudo_wire::netlink::ack::Refusal;
use testudo_wire::netlink::errno::Errno;
use testudo_wire::xfrm::message::{Body, Message};

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

/// An SA as it is kept, among so many: half of what [`XfrmSa`] takes, or less.
#[derive(Debug)]
struct Entry {
    key: SaKey,
    owner: u64,
    added_s: u64,
    /// `None` if it was not used.
    used_before: Option<Box<UsedBefore>>,
    /// What the client has said of it.
    said: Packed,
    daemon: Option<ProcessName>,
    suite: Option<Suite>,
    is_inbound: bool,
}

impl Entry {
    fn of(sa: XfrmSa) -> Self {
        let XfrmSa { key, owner, added_s, used_before, daemon, suite, is_inbound, .. } = sa;
        let used_before = (used_before != UsedBefore::default()).then(|| Box::new(used_before));
        let said = Packed::of(&Message { body: Body::NewSa(sa.info), attributes: sa.attributes });
        Self { key, owner, added_s, used_before, said, daemon, suite, is_inbound }
    }

    fn sa(&self, place: Place) -> XfrmSa {
        let Self { key, owner, added_s, daemon, suite, is_inbound, .. } = *self;
        let Message { body: Body::NewSa(info), attributes } = self.said.message() else {
            unreachable!("an SA is kept as a message about one")
        };
        let source = info.source.ip(info.family);
        let source = source.unwrap_or_else(|| unreachable!("the family of an SA was checked when it came"));
        let used_before = self.used_before.as_deref().copied().unwrap_or_default();
        XfrmSa {
            key,
            place,
            source,
            info,
            attributes,
            suite,
            is_inbound,
            added_s,
            used_before,
            owner,
            daemon,
        }
    }
}

/// The SAs.
#[derive(Debug, Default)]
pub(super) struct Sad {
    /// Boxed: nodes of a map that grows at its end are little more than half full.
    by_place: BTreeMap<Place, Box<Entry>>,
    /// By the hashes of their names, and in the order of their places.
    by_name: BTreeSet<(u64, Place)>,
    /// By the hashes of source and destination, and by bundle.
    by_ends: BTreeSet<(u64, u32, Place)>,
    hasher: RandomState,
    next: Place,
    reservations: Reservations,
}

impl Sad {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.by_place.len()
    }

    /// The SA at a place.
    pub(super) fn at(&self, place: Place) -> Option<XfrmSa> {
        self.by_place.get(&place).map(|entry| entry.sa(place))
    }

    /// Those of the name in a key, the latest ones first.
    fn named(&self, key: &SaKey) -> impl Iterator<Item = (Place, &Entry)> {
        let (name, hash) = (name(key), self.hasher.hash_one(name(key)));
        let places = self.by_name.range((hash, 0)..=(hash, Place::MAX)).rev();
        let entries = places.filter_map(|(_, place)| Some((*place, self.by_place.get(place)?.as_ref())));
        entries.filter(move |(_, entry)| self::name(&entry.key) == name)
    }

    /// The SA that a client means: the latest one of this name whose own mask leaves of the client's mark
    /// what its own mark is (`__xfrm_state_lookup`). So SAs without a mark are meant by each mark.
    pub(super) fn meant(&self, key: &SaKey) -> Option<XfrmSa> {
        self.place_meant(key).and_then(|place| self.at(place))
    }

    fn place_meant(&self, key: &SaKey) -> Option<Place> {
        let meant = self.named(key).find(|(_, entry)| {
            let (value, mask) = entry.key.mark;
            key.mark.0 & mask == value
        });
        meant.map(|(place, _)| place)
    }

    /// Whether an SA has this key, to the bit.
    pub(super) fn has(&self, key: &SaKey) -> bool {
        self.named(key).any(|(_, entry)| entry.key == *key)
    }

    /// The latest one before `place`, with its place.
    pub(super) fn before(&self, place: Place) -> Option<(Place, XfrmSa)> {
        let (place, entry) = self.by_place.range(..place).next_back()?;
        Some((*place, entry.sa(*place)))
    }

    /// The latest ones between two hosts first; of one bundle, or of all for 0.
    pub(super) fn between(
        &self,
        source: IpAddr,
        destination: IpAddr,
        reqid: u32,
    ) -> impl Iterator<Item = XfrmSa> {
        let (lowest, highest) = if reqid == 0 { (0, u32::MAX) } else { (reqid, reqid) };
        let hash = self.hasher.hash_one((source, destination));
        let all = (hash, lowest, 0)..=(hash, highest, Place::MAX);
        let mut places: Vec<Place> = self.by_ends.range(all).map(|(_, _, place)| *place).collect();
        places.sort_unstable_by(|one, other| other.cmp(one));
        let sas = places.into_iter().filter_map(|place| self.at(place));
        sas.filter(move |sa| (sa.source, sa.key.destination) == (source, destination))
    }

    /// Whether one more of this name may be added.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn check_room(&self, key: &SaKey) -> Result<(), Refusal> {
        let text = if self.len() >= MAX_SAS {
            format!("{MAX_SAS} SAs are there, and more are not possible")
        } else if self.named(key).count() >= MAX_OF_ONE_NAME {
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

    /// Where an SA is found by its name, and by its ends.
    fn indices(&self, sa: &XfrmSa) -> ((u64, Place), (u64, u32, Place)) {
        let by_name = self.hasher.hash_one(name(&sa.key));
        let by_ends = self.hasher.hash_one((sa.source, sa.key.destination));
        ((by_name, sa.place), (by_ends, sa.info.reqid, sa.place))
    }

    fn index(&mut self, sa: XfrmSa) {
        let (by_name, by_ends) = self.indices(&sa);
        self.by_name.insert(by_name);
        self.by_ends.insert(by_ends);
        self.by_place.insert(sa.place, Box::new(Entry::of(sa)));
    }

    /// Changes one that is there, which keeps its place.
    pub(super) fn change(&mut self, sa: XfrmSa) {
        if self.unindex(sa.place).is_some() {
            self.index(sa);
        }
    }

    fn unindex(&mut self, place: Place) -> Option<XfrmSa> {
        let sa = self.by_place.remove(&place)?.sa(place);
        let (by_name, by_ends) = self.indices(&sa);
        self.by_name.remove(&by_name);
        self.by_ends.remove(&by_ends);
        Some(sa)
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
            self.place_meant(&SaKey { spi: *spi, ..wanted }).is_none()
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
