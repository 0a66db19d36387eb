//! The policies of certain directions, by addresses.

use super::answer::Answer;
use super::leaf::Entry;
use super::pair::Pair;
use super::search::Search;
use super::selector::PrefixPair;
use super::space::Space;
use super::table::Slot;
use testudo_wire::ip::Version;

/// The policies of both IP versions.
#[derive(Debug, Clone)]
pub(super) struct Index {
    pub(super) v4: Space,
    v6: Space,
}

impl Default for Index {
    fn default() -> Self {
        Self { v4: Space::new(Version::V4), v6: Space::new(Version::V6) }
    }
}

impl Index {
    #[inline]
    fn of(&self, version: Version) -> &Space {
        match version {
            Version::V4 => &self.v4,
            Version::V6 => &self.v6,
        }
    }

    fn of_mut(&mut self, version: Version) -> &mut Space {
        match version {
            Version::V4 => &mut self.v4,
            Version::V6 => &mut self.v6,
        }
    }

    pub(super) fn insert(&mut self, pair: &PrefixPair, entry: Entry) {
        self.of_mut(pair.version).insert(pair, entry);
    }

    pub(super) fn remove(&mut self, pair: &PrefixPair, entry: &Entry) {
        self.of_mut(pair.version).remove(pair, entry);
    }

    #[inline]
    pub(super) fn prefetch_v4(&self, pair: Pair) {
        self.v4.prefetch_v4(pair);
    }

    #[inline]
    pub(super) fn prefetch_v6(&self, local: u128, remote: u128) {
        self.v6.prefetch(local, remote);
    }

    /// Notes the first policies that fit.
    #[inline]
    pub(super) fn search(&self, search: &mut Search<'_>) {
        self.of(search.flow.version()).search(search);
    }
}

/// The answer for two IPv4 addresses of the first policy in either index; [`Answer::ASK`] if that policy
/// depends on more than addresses.
#[inline(never)]
pub(super) fn first_answer_v4(a: &Index, b: &Index, pair: Pair) -> Answer {
    let first: Option<Slot> = b.v4.first_slot_v4(pair, a.v4.first_slot_v4(pair, None));
    first.map_or(Answer::NONE, |slot| slot.answer)
}
