//! The senders of a group: whose window a packet is of, where each sender sends from, and what that gives
//! away (`docs/VPE.md`, "Windows").
//!
//! ```text
//!   (Sender ID, Window ID) ─► place of its window        both bounded by `windows_max`: a sender is
//!   Sender ID ─► address, when it was last heard         known by its windows, and these by authentic packets
//! ```
//!
//! Two devices with one Sender ID have perhaps used a nonce twice. They are noticed by their addresses; one
//! that has ours is noticed by any authentic packet under it that we have not sent.

use crate::counters::SaCounters;
use crate::lifetime::Moment;
use hashbrown::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;
use testudo_wire::vpe::VpeHeader;

/// Authentic packets of one sender from two addresses within this time are those of two devices.
const APART: Duration = Duration::from_secs(1);
/// A sender that is two devices is told of at most this often.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// Something about a sender that others must learn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum News {
    /// An authentic packet has our own Sender ID.
    Own { window: u16, number: u64, address: IpAddr },
    /// One Sender ID, two addresses.
    Twice { sender: u16, before: IpAddr, address: IpAddr },
}

/// What is known of a sender.
#[derive(Debug)]
pub(super) struct Heard {
    /// Where its last packet came from.
    address: IpAddr,
    at: Moment,
    /// When it was last told that it is two devices.
    told: Option<Moment>,
}

impl Heard {
    pub(super) fn new(address: IpAddr, at: Moment) -> Self {
        Self { address, at, told: None }
    }

    /// Notes where a packet came from. Returns where the one before came from, if two devices must have sent
    /// them, and whether that may be told now. Our own packets do not move us.
    pub(super) fn note(&mut self, address: IpAddr, now: Moment, is_own: bool) -> Option<(IpAddr, bool)> {
        let before = self.address;
        let is_twice = before != address && now.since(self.at) < APART;
        let outcome = is_twice.then(|| (before, self.tell(now)));
        self.at = now;
        if !is_own {
            self.address = address;
        }
        outcome
    }

    /// Whether it may be told of now; then it is.
    fn tell(&mut self, now: Moment) -> bool {
        let is_due = self.told.is_none_or(|told| now.since(told) >= TOLD_EVERY);
        if is_due {
            self.told = Some(now);
        }
        is_due
    }
}

/// The senders of a group's SA, which is one and the same for all of them.
#[derive(Debug)]
pub(crate) struct Senders {
    /// Our own ID; 0 if we only receive.
    own: u16,
    /// Where our own packets come from.
    local: IpAddr,
    places: HashMap<u32, u32, foldhash::fast::RandomState>,
    /// Each with its row among the [counts](crate::SenderCounts).
    heard: HashMap<u16, (Heard, Option<usize>), foldhash::fast::RandomState>,
    counters: Arc<SaCounters>,
    news: Vec<News>,
}

/// One number for both IDs.
fn key_of(sender: u16, window: u16) -> u32 {
    u32::from(sender) << 16 | u32::from(window)
}

impl Senders {
    pub(crate) fn new(own: u16, local: IpAddr, counters: Arc<SaCounters>) -> Box<Self> {
        let (places, heard) = (HashMap::default(), HashMap::default());
        Box::new(Self { own, local, places, heard, counters, news: Vec::new() })
    }

    /// For windows that are read to be handed on.
    pub(crate) fn of_nobody() -> Box<Self> {
        Self::new(0, IpAddr::V4(Ipv4Addr::UNSPECIFIED), Arc::default())
    }

    /// The same for windows that are read again: nobody was heard yet.
    pub(crate) fn afresh(&self) -> Box<Self> {
        Self::new(self.own, self.local, Arc::clone(&self.counters))
    }

    /// One more than the place of a window; 0 for none.
    #[inline]
    pub(crate) fn place(&self, sender: u16, window: u16) -> u32 {
        self.places.get(&key_of(sender, window)).copied().unwrap_or(0)
    }

    pub(crate) fn set_place(&mut self, sender: u16, window: u16, place: u32) {
        self.places.insert(key_of(sender, window), place);
    }

    /// Whether nobody else may send with this ID: 0 is for two that know each other.
    #[inline]
    pub(crate) fn is_refused(&self, sender: u16) -> bool {
        sender == 0 || sender == self.own
    }

    /// Notes an authentic packet that was accepted, or refused for its sender.
    pub(crate) fn hear(&mut self, header: &VpeHeader, address: Option<IpAddr>, now: Moment) {
        let Some(address) = address.filter(|_| header.sender != 0) else { return };
        let is_own = header.sender == self.own;
        if is_own {
            self.news.push(News::Own { window: header.window, number: header.number, address });
        }
        let counters = &self.counters;
        let new = || {
            // Our own packets are known to come from here.
            let (address, row) = match is_own {
                true => (self.local, None),
                false => (address, counters.senders_to_count().add(header.sender)),
            };
            (Heard::new(address, now), row)
        };
        let (heard, row) = self.heard.entry(header.sender).or_insert_with(new);
        if let Some((before, is_told)) = heard.note(address, now, is_own) {
            counters.senders_to_count().count_double();
            if is_told {
                self.news.push(News::Twice { sender: header.sender, before, address });
            }
        }
        if !is_own {
            counters.senders_to_count().count_packet(*row, address, now);
        }
    }

    pub(crate) fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// Swaps what is new since the last call, no more than two for each packet in between, for an empty list:
    /// both keep their memory, as copies of what we have sent are news that anybody can make.
    pub(crate) fn swap_news(&mut self, empty: &mut Vec<News>) {
        std::mem::swap(&mut self.news, empty);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: u16 = 7;

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    fn at(ms: u64) -> Moment {
        Moment(Duration::from_millis(ms))
    }

    fn senders() -> (Box<Senders>, Arc<SaCounters>) {
        let counters = Arc::new(SaCounters::default());
        (Senders::new(OWN, address(7), Arc::clone(&counters)), counters)
    }

    fn hear(senders: &mut Senders, sender: u16, from: u8, ms: u64) -> Vec<News> {
        let header = VpeHeader { sender, window: 3, number: 9, spi: 0x1000 };
        senders.hear(&header, Some(address(from)), at(ms));
        let mut news = Vec::new();
        senders.swap_news(&mut news);
        news
    }

    /// `docs/VPE.md`: one Sender ID from two outer addresses within a second is two devices; who moves is
    /// one.
    #[test]
    fn one_sender_at_two_addresses_within_a_second_is_told_once_a_minute() {
        let (mut senders, counters) = senders();
        assert_eq!(hear(&mut senders, 1, 1, 0), []);
        assert_eq!(hear(&mut senders, 2, 2, 0), [], "another sender is elsewhere");
        assert_eq!(hear(&mut senders, 1, 9, 1001), [], "it has moved");
        let twice = News::Twice { sender: 1, before: address(9), address: address(1) };
        assert_eq!(hear(&mut senders, 1, 1, 2000), [twice]);
        for ms in 2002..4000 {
            assert_eq!(hear(&mut senders, 1, (ms % 2) as u8 * 8 + 1, ms), []);
        }
        assert_eq!(counters.senders().unwrap().doubles(), 1 + 1998 - 1);
        assert_eq!(hear(&mut senders, 1, 1, 62_000), []);
        assert!(matches!(hear(&mut senders, 1, 9, 62_001)[..], [News::Twice { .. }]));
    }

    #[test]
    fn our_own_id_is_news_each_time_and_told_if_it_comes_from_elsewhere() {
        let (mut senders, counters) = senders();
        let own = |from| News::Own { window: 3, number: 9, address: address(from) };
        assert_eq!(hear(&mut senders, OWN, 7, 0), [own(7)], "sent back to us");
        let twice = News::Twice { sender: OWN, before: address(7), address: address(1) };
        assert_eq!(hear(&mut senders, OWN, 1, 1), [own(1), twice]);
        assert_eq!(hear(&mut senders, OWN, 1, 2), [own(1)]);
        assert_eq!(counters.senders().unwrap().count(), 0, "it is none of the others");
        assert!(senders.is_refused(OWN) && senders.is_refused(0) && !senders.is_refused(1));
    }
}
