//! Which of several queues a packet goes to: the functions that the programs in the kernel compute, in plain
//! Rust, and that software computes where a port cannot.
//!
//! Outbound, [`FlowBuckets`] spread flows by their [hash](crate::flow). Inbound, a [`Steering`] reads what
//! stands in clear at the start of a protected packet:
//!
//! | steering | queue, of n | packets that stay together |
//! | --- | --- | --- |
//! | [`BySpi`](Steering::BySpi) | SPI mod n | those of an SA |
//! | [`BySequence`](Steering::BySequence) | (SPI + sequence number / block) mod n | blocks of consecutive numbers of an SA |
//! | [`ByWindow`](Steering::ByWindow) | (sender + slot + slot / 4n) mod n | those of a slot of VPE, window / classes |
//! | [`ByUdpSource`](Steering::ByUdpSource) | source port mod n; without UDP, by SPI | those of a peer's port |
//!
//! A queue is a number below n. **Queue 0** gets what says nothing of that kind: a packet that is too short,
//! and, in UDP, IKE's messages (four zero bytes, RFC 3948 2.2) and keepalives (one byte, RFC 3948 2.3, and of
//! VPE). Every packet has exactly one queue.
//!
//! A receiver reads nothing into a Window ID, so it does not know how many classes its peer has. If they are
//! others than `classes`, the windows of one class are not consecutive slots: of two classes where one is
//! expected, every other one, which n = 2 would send to one queue. So slots are *turned* by a queue after
//! every [4n](slots_of_a_turn): what a step over the slots leaves out before a turn, it meets after it.
//! Within n slots that begin at a multiple of n nothing is turned, so that as many classes as expected have
//! exactly their shares. Of a peer with 8 slots for each queue and 1 to 8 classes, no queue has more than
//! twice its share of any class, for any `classes`:
//!
//! - *Fewer, p of e*: a queue has one of n slots, of each of ⌈8p / e⌉ rounds, with at most ⌈e / p⌉ windows of
//!   the class: 14 at most, where 8 is the share.
//! - *A multiple, p-fold*: every p-th slot. With g = gcd(p, n), a queue has windows before every g-th turn
//!   alone, and then in every (p / g)-th of 4 rounds of n slots: 2p / g times at most ⌈4g / p⌉, 16 at most.
//! - *Others* leave out slots in a pattern; that is counted out, as all cases are, by a test.

use crate::flow::flow_hash;
use crate::ip::IpHeader;
use crate::protocol;
use crate::udp::UdpHeader;
use std::num::{NonZeroU16, NonZeroU32};

/// Slots of VPE, spread over so many queues, until they are turned by one: see [the module](self).
#[must_use]
pub const fn slots_of_a_turn(queues: u32) -> u32 {
    queues.saturating_mul(4)
}

/// How protected packets are spread over queues, see [the module](self).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Steering {
    /// Each SA has a queue: SPI modulo queues.
    BySpi,
    /// Each SA is spread over all queues, in blocks of this many consecutive sequence numbers (the 32 bits
    /// that the packet has). The SPI shifts the blocks, so that SAs with few packets spread, too.
    BySequence {
        /// Packets in a block.
        block: NonZeroU32,
    },
    /// Each slot of a sender of VPE has a queue. The sender's ID shifts the slots, so that senders with few
    /// slots spread, too.
    ByWindow {
        /// Windows of a slot: a window's number is slot × classes + class. Senders with other classes are
        /// spread as well, if less evenly.
        classes: NonZeroU16,
    },
    /// Each source port of UDP has a queue, for peers that use several.
    ByUdpSource,
}

/// What a protected packet shows, after its IP headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown<'a> {
    /// ESP or VPE, from its header on.
    Esp(&'a [u8]),
    /// AH, from its header on.
    Ah(&'a [u8]),
    /// UDP: its source port, and what it carries, ESP or VPE from its header on.
    Udp(u16, &'a [u8]),
}

impl<'a> Shown<'a> {
    /// What a whole IP datagram shows. `None` for a fragment, for what is neither ESP, AH, VPE by one of
    /// these IP protocol numbers nor UDP, and for what is no datagram.
    #[must_use]
    pub fn of(datagram: &'a [u8], vpe_numbers: &[u8]) -> Option<Self> {
        let header = IpHeader::parse(datagram).ok().filter(|header| header.fragment.is_none())?;
        let content = header.payload(datagram);
        match header.protocol {
            protocol::ESP => Some(Shown::Esp(content)),
            protocol::AH => Some(Shown::Ah(content)),
            protocol::UDP => {
                let udp = UdpHeader::parse(content).ok()?;
                Some(Shown::Udp(udp.source_port, content.get(8..udp.total_bytes)?))
            }
            number => vpe_numbers.contains(&number).then_some(Shown::Esp(content)),
        }
    }
}

impl Steering {
    /// The queue of a packet.
    ///
    /// # Panics
    /// If there are no queues.
    #[must_use]
    pub fn queue(self, shown: Shown<'_>, queues: u32) -> u32 {
        assert!(queues > 0, "a packet needs a queue");
        let (content, spi_at, source) = match shown {
            Shown::Esp(content) => (content, 0, None),
            Shown::Ah(content) => (content, 4, None),
            Shown::Udp(source, content) => (content, 0, Some(source)),
        };
        if source.is_some() && content.first_chunk::<4>().is_none_or(|first| *first == [0; 4]) {
            return 0;
        }
        let number = match (self, source) {
            (Steering::ByUdpSource, Some(source)) => Some(u32::from(source)),
            (Steering::BySpi | Steering::ByUdpSource, _) => word(content, spi_at),
            (Steering::BySequence { block }, _) => {
                let spi_and_number = word(content, spi_at).zip(word(content, spi_at + 4));
                spi_and_number.map(|(spi, number)| spi.wrapping_add(number / block))
            }
            (Steering::ByWindow { classes }, _) => content.first_chunk::<4>().map(|b| {
                let (sender, window) = (u16::from_le_bytes([b[0], b[1]]), u16::from_le_bytes([b[2], b[3]]));
                let slot = u32::from(window / classes);
                u32::from(sender) + slot + slot / slots_of_a_turn(queues)
            }),
        };
        number.map_or(0, |number| number % queues)
    }

    /// The queue of a whole IP datagram, where VPE has these IP protocol numbers. What
    /// [shows nothing](Shown::of) goes to queue 0: fragments are put together at one place.
    ///
    /// # Panics
    /// If there are no queues.
    #[must_use]
    pub fn queue_of_datagram(self, datagram: &[u8], queues: u32, vpe_numbers: &[u8]) -> u32 {
        Shown::of(datagram, vpe_numbers).map_or(0, |shown| self.queue(shown, queues))
    }
}

/// How software spreads the packets of one side of a gateway over queues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spread {
    /// Packets that are not protected yet, by their flows.
    Flows(FlowBuckets),
    /// Protected packets.
    Protected {
        /// How they are spread.
        steering: Steering,
        /// The IP protocol numbers of VPE, of all tunnels that have it: it is configured for each.
        vpe_numbers: Vec<u8>,
        /// How many queues there are: at least one.
        queues: u32,
    },
}

impl Spread {
    /// The number of queues.
    #[must_use]
    pub fn queues(&self) -> u32 {
        match self {
            Spread::Flows(buckets) => buckets.queues(),
            Spread::Protected { queues, .. } => (*queues).max(1),
        }
    }

    /// The queue of a whole IP datagram.
    #[must_use]
    pub fn queue(&self, datagram: &[u8]) -> u32 {
        match self {
            Spread::Flows(buckets) => buckets.queue(datagram),
            Spread::Protected { steering, vpe_numbers, queues } => {
                steering.queue_of_datagram(datagram, (*queues).max(1), vpe_numbers)
            }
        }
    }

    /// The same over another number of queues.
    pub fn resize(&mut self, wanted: u32) {
        match self {
            Spread::Flows(buckets) => buckets.resize(wanted),
            Spread::Protected { queues, .. } => *queues = wanted.max(1),
        }
    }
}

/// Four bytes as a number, the first of them the highest.
fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|four| u32::from_be_bytes(*four))
}

/// Buckets of a [`FlowBuckets`].
pub const FLOW_BUCKETS: usize = 256;

/// Which queue each flow has: its hash names one of 256 buckets, and each bucket has a queue. Queues have
/// equally many buckets, but for one. When queues come and go, a bucket moves only if its queue is gone or
/// has more than its share now, so that most flows keep their queue, and with it their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowBuckets {
    queues: u32,
    of: Box<[u32; FLOW_BUCKETS]>,
}

impl FlowBuckets {
    /// Buckets for so many queues: at least one, at most one for each bucket.
    #[must_use]
    pub fn new(queues: u32) -> Self {
        let mut buckets = Self { queues: 1, of: Box::new([0; FLOW_BUCKETS]) };
        buckets.resize(queues);
        buckets
    }

    /// The number of queues.
    #[must_use]
    pub fn queues(&self) -> u32 {
        self.queues
    }

    /// The queue of each bucket.
    #[must_use]
    pub fn table(&self) -> &[u32; FLOW_BUCKETS] {
        &self.of
    }

    /// The queue of a packet that is not protected yet.
    #[must_use]
    #[inline]
    pub fn queue(&self, packet: &[u8]) -> u32 {
        self.queue_of_hash(flow_hash(packet))
    }

    /// The queue of a flow with this hash.
    #[must_use]
    #[inline]
    pub fn queue_of_hash(&self, hash: u32) -> u32 {
        self.of[usize::from(hash.to_le_bytes()[0])]
    }

    /// Spreads the buckets over queues 0 to `queues` − 1, within the limits of [`new`](Self::new).
    pub fn resize(&mut self, queues: u32) {
        let queues = queues.clamp(1, 256);
        self.queues = queues;
        let mut held = vec![0_usize; usize::try_from(queues).unwrap_or(FLOW_BUCKETS)];
        let count = held.len();
        let (least, with_one_more) = (FLOW_BUCKETS / count, FLOW_BUCKETS % count);
        // The first ones have one more, if any: they had it before, unless queues went.
        let share = |queue: usize| least + usize::from(queue < with_one_more);
        let mut homeless = Vec::new();
        for (bucket, queue) in self.of.iter().enumerate() {
            match usize::try_from(*queue).ok().filter(|queue| *queue < count) {
                Some(queue) if held[queue] < share(queue) => held[queue] += 1,
                _ => homeless.push(bucket),
            }
        }
        let free =
            held.iter().enumerate().flat_map(|(queue, held)| (*held..share(queue)).map(move |_| queue));
        for (bucket, queue) in homeless.into_iter().zip(free) {
            self.of[bucket] = u32::try_from(queue).unwrap_or(0); // below 256
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vpe::VPE_PROTOCOL;

    const THREE: NonZeroU16 = NonZeroU16::new(3).unwrap();
    const BLOCK: NonZeroU32 = NonZeroU32::new(64).unwrap();

    fn esp(spi: u32, number: u32) -> Vec<u8> {
        [spi.to_be_bytes(), number.to_be_bytes()].concat()
    }

    #[test]
    fn each_steering_reads_its_field() {
        let packet = esp(0x1000_0007, 64 * 5 + 63);
        let queue = |steering: Steering| steering.queue(Shown::Esp(&packet), 4);
        assert_eq!(queue(Steering::BySpi), 3);
        assert_eq!(queue(Steering::BySequence { block: BLOCK }), (7 + 5) % 4);
        assert_eq!(queue(Steering::ByUdpSource), 3, "without UDP, by SPI");
        let ah = [&[4, 4, 0, 0][..], &packet].concat();
        assert_eq!(Steering::BySpi.queue(Shown::Ah(&ah), 4), 3);
        assert_eq!(Steering::BySequence { block: BLOCK }.queue(Shown::Ah(&ah), 4), 0);
        let vpe = [2, 1, 11, 0, 9, 9];
        let by_window = Steering::ByWindow { classes: THREE };
        assert_eq!(by_window.queue(Shown::Esp(&vpe), 7), (0x0102 + 3) % 7);
        assert_eq!(Steering::ByUdpSource.queue(Shown::Udp(4501, &packet), 4), 1);
    }

    /// How many windows of a class each of so many queues has, of a peer with 8 slots for each of them.
    fn shares(expected: u16, peers: u16, class: u16, queues: u32) -> Vec<u32> {
        let steering = Steering::ByWindow { classes: NonZeroU16::new(expected).unwrap() };
        let mut shares = vec![0; queues as usize];
        for slot in 0..8 * queues as u16 {
            let [low, high] = (slot * peers + class).to_le_bytes();
            let queue = steering.queue(Shown::Esp(&[0, 0, low, high]), queues);
            shares[queue as usize] += 1;
        }
        shares
    }

    /// What is expected is our own number of classes. Of up to 8 queues each has some.
    #[test]
    fn windows_of_each_class_are_spread_whatever_classes_the_peer_has() {
        for (expected, peers) in (1..=8).flat_map(|expected| (1..=8).map(move |peers| (expected, peers))) {
            for (class, queues) in (0..peers).flat_map(|class| (2..=16).map(move |queues| (class, queues))) {
                let shares = shares(expected, peers, class, queues);
                let said =
                    format!("{queues} queues, class {class} of {peers}, {expected} expected: {shares:?}");
                let most = shares.iter().copied().max().unwrap();
                assert!(most <= if queues == 2 { 14 } else { 16 }, "{said}");
                assert!(queues > 8 || !shares.contains(&0), "{said}");
                if peers == expected {
                    assert!(shares.iter().all(|share| *share == 8), "{said}");
                }
            }
        }
        // What this is about: every other window of two queues.
        assert_eq!(shares(1, 2, 0, 2), [8, 8]);
    }

    #[test]
    fn slots_of_every_sender_are_spread_exactly_before_and_after_a_turn() {
        let steering = Steering::ByWindow { classes: THREE };
        for (sender, queues) in [(0_u16, 2_u32), (7, 3), (u16::MAX, 5), (300, 16)] {
            let slots = u32::from(u16::MAX / 3) / queues * queues;
            let mut shares = vec![0; queues as usize];
            for slot in 0..slots {
                let header = [sender.to_le_bytes(), ((slot * 3) as u16 + 2).to_le_bytes()].concat();
                shares[steering.queue(Shown::Esp(&header), queues) as usize] += 1;
            }
            assert!(shares.iter().all(|share| *share == slots / queues), "{sender}, {queues}: {shares:?}");
        }
    }

    #[test]
    fn what_says_nothing_goes_to_queue_0() {
        let all = [
            Steering::BySpi,
            Steering::BySequence { block: BLOCK },
            Steering::ByWindow { classes: THREE },
            Steering::ByUdpSource,
        ];
        for steering in all {
            for content in [&[][..], &[0xFF], &[1, 2, 3], &[0, 0, 0, 0, 1, 2, 3, 4]] {
                assert_eq!(steering.queue(Shown::Udp(4501, content), 5), 0, "{steering:?} {content:?}");
            }
            assert_eq!(steering.queue(Shown::Esp(&[9, 9, 9]), 5), 0);
            assert_eq!(steering.queue_of_datagram(&[0x45; 8], 5, &[VPE_PROTOCOL]), 0);
        }
        assert_eq!(Steering::BySequence { block: BLOCK }.queue(Shown::Esp(&[9; 7]), 5), 0);
        assert_eq!(Steering::BySpi.queue(Shown::Ah(&[9; 7]), 5), 0);
    }

    fn datagram(number: u8, content: &[u8]) -> Vec<u8> {
        let header = crate::ip::OuterHeader {
            source: [10, 0, 0, 1].into(),
            destination: [10, 0, 0, 2].into(),
            protocol: number,
            traffic_class: 0,
            hop_limit: 64,
            dont_fragment: true,
        };
        let mut bytes = vec![0; 20];
        header.write(&mut bytes, 20 + content.len(), 0).unwrap();
        [bytes, content.to_vec()].concat()
    }

    #[test]
    fn a_datagram_shows_what_follows_its_headers() {
        let content = esp(7, 1);
        let udp = [&4500_u16.to_be_bytes()[..], &4500_u16.to_be_bytes(), &[0, 16, 0, 0], &content].concat();
        for (number, content, shown) in [
            (50, &content, Some(Shown::Esp(&content))),
            (253, &content, Some(Shown::Esp(&content))),
            (51, &content, Some(Shown::Ah(&content))),
            (17, &udp, Some(Shown::Udp(4500, &content))),
            (6, &content, None),
        ] {
            assert_eq!(Shown::of(&datagram(number, content), &[VPE_PROTOCOL]), shown, "protocol {number}");
        }
        assert_eq!(Steering::BySpi.queue_of_datagram(&datagram(17, &udp), 4, &[]), 3);
    }

    /// The number is configured for each tunnel (`ip_protocol`); what others use by it is no VPE.
    #[test]
    fn windows_are_spread_under_the_protocol_numbers_that_vpe_has() {
        let steering = Steering::ByWindow { classes: NonZeroU16::MIN };
        let vpe_numbers = vec![200, VPE_PROTOCOL];
        let mut spread = Spread::Protected { steering, vpe_numbers, queues: 4 };
        for window in 0..8_u8 {
            let of = |number| datagram(number, &[[0, 0, window, 0], [9; 4]].concat());
            let queue = u32::from(window) % 4;
            assert_eq!([200, VPE_PROTOCOL, 50].map(|number| spread.queue(&of(number))), [queue; 3]);
            assert_eq!([201, 6].map(|number| spread.queue(&of(number))), [0; 2]);
        }
        spread.resize(2);
        let third = datagram(200, &[0, 0, 3, 0, 9, 9, 9, 9]);
        assert_eq!((spread.queues(), spread.queue(&third)), (2, 1));
    }

    /// Shares differ by one at most, and a change moves only what the new shares ask for.
    #[test]
    fn a_change_of_queues_moves_no_bucket_without_need() {
        let mut random = fastrand::Rng::with_seed(15);
        let mut buckets = FlowBuckets::new(1);
        for round in 0..500 {
            let before = buckets.clone();
            let queues = random.u32(1..20);
            buckets.resize(queues);
            let held = |b: &FlowBuckets, queue| b.table().iter().filter(|of| **of == queue).count();
            let shares: Vec<_> = (0..queues).map(|queue| held(&buckets, queue)).collect();
            assert_eq!(shares.iter().sum::<usize>(), FLOW_BUCKETS);
            assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1, "{shares:?}");
            let moved = before.table().iter().zip(buckets.table()).filter(|(a, b)| a != b).count();
            let gained: usize = (0..queues).map(|q| held(&buckets, q).saturating_sub(held(&before, q))).sum();
            assert_eq!(moved, gained, "seed 15, round {round}: {} to {queues} queues", before.queues());
        }
        assert_eq!((FlowBuckets::new(0).queues(), FlowBuckets::new(1000).queues()), (1, 256));
    }

    #[test]
    fn flows_keep_their_queue_while_nothing_changes() {
        let buckets = FlowBuckets::new(3);
        let mut seen = [0; 3];
        for hash in 0..4096_u32 {
            let hash = hash.wrapping_mul(2_654_435_761);
            assert_eq!(buckets.queue_of_hash(hash), buckets.table()[usize::from(hash as u8)]);
            seen[buckets.queue_of_hash(hash) as usize] += 1;
        }
        assert!(seen.iter().all(|n| *n > 1000), "{seen:?}");
    }
}
