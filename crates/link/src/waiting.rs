//! Packets that wait until it is known where their next hop is.

use std::collections::VecDeque;
use std::net::IpAddr;
use testudo_packet::Buffer;

/// How many packets may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitingLimits {
    /// For one next hop.
    pub per_next_hop: usize,
    /// In all.
    pub total: usize,
}

impl Default for WaitingLimits {
    /// 16 for each next hop, and 128.
    fn default() -> Self {
        Self { per_next_hop: 16, total: 128 }
    }
}

/// The packets, oldest first.
#[derive(Debug)]
pub(crate) struct Waiting {
    packets: VecDeque<(IpAddr, Buffer)>,
    limits: WaitingLimits,
}

impl Waiting {
    pub(crate) fn new(limits: WaitingLimits) -> Self {
        Self { packets: VecDeque::with_capacity(limits.total + 1), limits }
    }

    pub(crate) fn len(&self) -> usize {
        self.packets.len()
    }

    /// Adds a packet, and returns the one that gives way to it: the oldest for the same next hop if these are
    /// too many (RFC 4861 7.2.2), otherwise the oldest of all.
    pub(crate) fn push(&mut self, next_hop: IpAddr, packet: Buffer) -> Option<Buffer> {
        self.packets.push_back((next_hop, packet));
        let same = self.packets.iter().filter(|(hop, _)| *hop == next_hop).count();
        if same > self.limits.per_next_hop {
            return self.pop(next_hop);
        }
        let is_full = self.packets.len() > self.limits.total;
        is_full.then(|| self.packets.pop_front()).flatten().map(|(_, packet)| packet)
    }

    /// Takes all.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Buffer> {
        self.packets.drain(..).map(|(_, packet)| packet)
    }

    /// Takes the oldest packet for this next hop.
    pub(crate) fn pop(&mut self, next_hop: IpAddr) -> Option<Buffer> {
        let at = self.packets.iter().position(|(hop, _)| *hop == next_hop)?;
        self.packets.remove(at).map(|(_, packet)| packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_gives_way_and_the_others_keep_their_order() {
        let mut waiting = Waiting::new(WaitingLimits { per_next_hop: 3, total: 5 });
        let hop = |last: u8| IpAddr::from([192, 0, 2, last]);
        let mut push = |last, number: u8| {
            waiting.push(hop(last), Buffer::copied(&[number], 0, 0)).map(|buffer| buffer.bytes()[0])
        };
        assert_eq!([push(1, 0), push(2, 1), push(1, 2), push(1, 3)], [None; 4]);
        assert_eq!((push(1, 4), push(3, 5), push(4, 6)), (Some(0), None, Some(1)));
        let mut rest = |last| waiting.pop(hop(last)).map(|buffer| buffer.bytes()[0]);
        assert_eq!(
            [rest(1), rest(1), rest(3), rest(1), rest(1)],
            [2, 3, 5, 4, 0].map(|n| (n > 0).then_some(n))
        );
        assert_eq!((rest(4), rest(2), waiting.len()), (Some(6), None, 0));
    }
}
