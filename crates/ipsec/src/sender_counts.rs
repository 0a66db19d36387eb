//! The senders of a group, as other threads read them while the worker counts.

use crate::lifetime::Moment;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

/// Senders of which packets and address are shown: the first ones heard. All are counted.
pub const SHOWN_SENDERS: usize = 64;

/// The senders of one SA of a group, as one worker counts them. Only that worker writes.
#[derive(Debug)]
pub struct SenderCounts {
    count: AtomicU64,
    doubles: AtomicU64,
    rows: [Row; SHOWN_SENDERS],
}

/// A sender; free while its ID is 0. Its address is written in two parts, and who reads while it changes may
/// see one of each address: that is shown to people, once.
#[derive(Debug)]
struct Row {
    sender: AtomicU16,
    packets: AtomicU64,
    last_heard: AtomicU64,
    address: [AtomicU64; 2],
}

/// The senders of one SA of a group, as all of its workers have counted them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeardSenders {
    /// Senders that were heard, our own ID not among them.
    pub count: u64,
    /// Packets that came from another address than the one before with the same Sender ID, within a second:
    /// above 0, two devices have one Sender ID.
    pub doubles: u64,
    /// The first [`SHOWN_SENDERS`] that were heard, in that order.
    pub shown: Vec<HeardSender>,
}

/// A sender of a group, for a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeardSender {
    /// Its Sender ID.
    pub sender: u16,
    /// Where its last packet came from.
    pub address: IpAddr,
    /// Its authentic packets that were no replays, since the SA was installed.
    pub packets: u64,
    /// When it was last heard: a moment of the worker's clock, in whole seconds.
    pub last_heard: Moment,
}

impl Default for SenderCounts {
    fn default() -> Self {
        let row = |_| Row {
            sender: AtomicU16::new(0),
            packets: AtomicU64::new(0),
            last_heard: AtomicU64::new(0),
            address: [AtomicU64::new(0), AtomicU64::new(0)],
        };
        Self {
            count: AtomicU64::new(0),
            doubles: AtomicU64::new(0),
            rows: std::array::from_fn::<usize, SHOWN_SENDERS, _>(|at| at).map(row),
        }
    }
}

fn add_one(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

/// As the two halves of an IPv6 address; those of IPv4 are mapped (RFC 4291 2.5.5.2).
fn halves(address: IpAddr) -> [u64; 2] {
    let mapped = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let [a, b, c, d, e, f, g, h] = mapped.segments().map(u64::from);
    [a << 48 | b << 32 | c << 16 | d, e << 48 | f << 32 | g << 16 | h]
}

impl SenderCounts {
    /// A sender was heard for the first time. Returns its row, if there is one.
    pub(crate) fn add(&self, sender: u16) -> Option<usize> {
        add_one(&self.count);
        let at = self.rows.iter().position(|row| row.sender.load(Ordering::Relaxed) == 0)?;
        self.rows[at].sender.store(sender, Ordering::Relaxed);
        Some(at)
    }

    /// Counts a packet of the sender with this row.
    pub(crate) fn count_packet(&self, row: Option<usize>, address: IpAddr, now: Moment) {
        let Some(row) = row.and_then(|at| self.rows.get(at)) else { return };
        add_one(&row.packets);
        row.last_heard.store(now.0.as_secs(), Ordering::Relaxed);
        for (half, value) in row.address.iter().zip(halves(address)) {
            half.store(value, Ordering::Relaxed);
        }
    }

    /// A sender was heard for the first time by any worker: its row is known to all.
    pub(crate) fn count_sender(&self) {
        add_one(&self.count);
    }

    /// Counts a packet of the sender with this row at all workers.
    pub(crate) fn count_packet_of(&self, sender: u16, row: Option<usize>, address: IpAddr, now: Moment) {
        if let Some(row) = row.and_then(|at| self.rows.get(at)) {
            row.sender.store(sender, Ordering::Relaxed);
        }
        self.count_packet(row, address, now);
    }

    /// Counts a packet that came from another address than the one before, within a second.
    pub(crate) fn count_double(&self) {
        add_one(&self.doubles);
    }

    /// Senders that were heard, our own ID not among them.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Packets that came from another address than the one before with the same Sender ID, within a second:
    /// above 0, two devices have one Sender ID.
    #[must_use]
    pub fn doubles(&self) -> u64 {
        self.doubles.load(Ordering::Relaxed)
    }

    /// The first [`SHOWN_SENDERS`] that were heard, in that order.
    pub fn shown(&self) -> impl Iterator<Item = HeardSender> + '_ {
        self.rows.iter().filter_map(Row::heard)
    }
}

impl Row {
    /// What it says, if the worker has heard the sender.
    fn heard(&self) -> Option<HeardSender> {
        let packets = self.packets.load(Ordering::Relaxed);
        let [high, low] = [0, 1].map(|at: usize| u128::from(self.address[at].load(Ordering::Relaxed)));
        (packets > 0).then(|| HeardSender {
            sender: self.sender.load(Ordering::Relaxed),
            address: IpAddr::V6(Ipv6Addr::from_bits(high << 64 | low)).to_canonical(),
            packets,
            last_heard: Moment(Duration::from_secs(self.last_heard.load(Ordering::Relaxed))),
        })
    }
}

impl HeardSenders {
    /// Those that these workers have counted, of which each has every sender in the same row; `None` if none
    /// has counted any.
    #[must_use]
    pub fn of<'c>(workers: impl Iterator<Item = &'c SenderCounts> + Clone) -> Option<Self> {
        workers.clone().next()?;
        let sum = |get: fn(&SenderCounts) -> u64| workers.clone().map(get).fold(0, u64::wrapping_add);
        let join = |one: HeardSender, other: HeardSender| {
            let last = if other.last_heard > one.last_heard { other } else { one };
            HeardSender { packets: one.packets.wrapping_add(other.packets), ..last }
        };
        let row = |at: usize| workers.clone().filter_map(|of| of.rows.get(at)?.heard()).reduce(join);
        Some(Self {
            count: sum(SenderCounts::count),
            doubles: sum(SenderCounts::doubles),
            shown: (0..SHOWN_SENDERS).filter_map(row).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_senders_are_shown_and_all_are_counted() {
        let counts = SenderCounts::default();
        let now = Moment(Duration::from_millis(7900));
        for sender in 1..=100_u16 {
            let row = counts.add(sender);
            assert_eq!(row.is_some(), usize::from(sender) <= SHOWN_SENDERS);
            let address = if sender % 2 == 0 { "192.0.2.7" } else { "2001:db8::7" }.parse().unwrap();
            (0..sender).for_each(|_| counts.count_packet(row, address, now));
        }
        assert_eq!((counts.count(), counts.shown().count()), (100, SHOWN_SENDERS));
        let second = counts.shown().nth(1).unwrap();
        let expected = HeardSender {
            sender: 2,
            address: "192.0.2.7".parse().unwrap(),
            packets: 2,
            last_heard: Moment(Duration::from_secs(7)),
        };
        assert_eq!(second, expected);
        assert_eq!(counts.shown().next().unwrap().address, "2001:db8::7".parse::<IpAddr>().unwrap());
    }

    /// Two workers have packets of the same senders; each sender was new to one of them.
    #[test]
    fn senders_of_several_workers_are_one_list() {
        let workers = [SenderCounts::default(), SenderCounts::default()];
        assert_eq!(HeardSenders::of(workers[..0].iter()), None);
        let at = |seconds| Moment(Duration::from_secs(seconds));
        let [one, other]: [IpAddr; 2] = [[192, 0, 2, 1].into(), [192, 0, 2, 2].into()];
        workers[0].count_sender();
        workers[0].count_packet_of(9, Some(0), one, at(1));
        workers[1].count_packet_of(9, Some(0), other, at(3));
        workers[1].count_sender();
        (0..2).for_each(|_| workers[1].count_packet_of(5, Some(1), other, at(2)));
        workers[0].count_sender();
        workers[0].count_packet_of(6, None, one, at(4));
        workers[1].count_double();
        let row = |sender, address, packets, seconds| HeardSender {
            sender,
            address,
            packets,
            last_heard: at(seconds),
        };
        let shown = vec![row(9, other, 2, 3), row(5, other, 2, 2)];
        assert_eq!(HeardSenders::of(workers.iter()), Some(HeardSenders { count: 3, doubles: 1, shown }));
    }
}
