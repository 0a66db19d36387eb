//! The senders of a group, as other threads read them while the worker counts.

use crate::lifetime::Moment;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

/// Senders of which packets and address are shown: the first ones heard. All are counted.
pub const SHOWN_SENDERS: usize = 64;

/// The senders of one SA of a group. Only its worker writes.
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
        let is_used = |row: &&Row| row.packets.load(Ordering::Relaxed) > 0;
        self.rows.iter().filter(is_used).map(|row| {
            let [high, low] = [0, 1].map(|at: usize| u128::from(row.address[at].load(Ordering::Relaxed)));
            HeardSender {
                sender: row.sender.load(Ordering::Relaxed),
                address: IpAddr::V6(Ipv6Addr::from_bits(high << 64 | low)).to_canonical(),
                packets: row.packets.load(Ordering::Relaxed),
                last_heard: Moment(Duration::from_secs(row.last_heard.load(Ordering::Relaxed))),
            }
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
}
