//! Rate limit for what the gateway sends on its own because of a host's packets: errors must be limited (RFC
//! 1812 4.3.2.8, RFC 4443 2.4 (f)), and no host may use up what the others need to learn their paths' MTU, or
//! to get an SA.

use crate::lifetime::Moment;
use crate::spd::address_bits;
use std::net::IpAddr;

/// Replies in any one second, for all senders together. Enough for thousands of hosts to learn a path's MTU,
/// too few for an attack.
pub(crate) const REPLIES_PER_SECOND: u16 = 1000;
/// To one address: more than a host with many new connections needs.
const TO_ONE_ADDRESS: u16 = 50;
/// To the addresses of one network, a /64 of IPv6 or a /24 of IPv4: a host can have as many addresses there
/// as it likes.
const TO_ONE_NETWORK: u16 = REPLIES_PER_SECOND / 2;
/// Number of counts for addresses, and of counts for networks. Those that share a count share its limit.
const COUNTS: usize = 1024;

/// How much may be sent in any one second.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Because of all hosts together.
    pub(crate) all: u16,
    /// Because of one address.
    pub(crate) address: u16,
    /// Because of the addresses of one network, a /64 of IPv6 or a /24 of IPv4.
    pub(crate) network: u16,
}

/// Those of replies.
const REPLIES: Limits = Limits { all: REPLIES_PER_SECOND, address: TO_ONE_ADDRESS, network: TO_ONE_NETWORK };

/// The replies used up in this second.
#[derive(Debug)]
pub(crate) struct ReplyBudget {
    limits: Limits,
    second: u64,
    used: u16,
    addresses: Box<[u16; COUNTS]>,
    networks: Box<[u16; COUNTS]>,
}

impl Default for ReplyBudget {
    fn default() -> Self {
        Self::of(REPLIES)
    }
}

/// The index of a sender's count, from the high bits of a product, so that neighbours have different counts.
fn count_of(bits: u128) -> usize {
    let folded = u64::try_from((bits ^ bits >> 64) & u128::from(u64::MAX)).unwrap_or(0);
    let bits = COUNTS.trailing_zeros();
    usize::try_from(folded.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - bits)).unwrap_or(0)
}

impl ReplyBudget {
    /// One with these limits.
    pub(crate) fn of(limits: Limits) -> Self {
        let counts = || Box::new([0; COUNTS]);
        Self { limits, second: 0, used: 0, addresses: counts(), networks: counts() }
    }

    /// Whether one more reply may be sent now to this address; if so, it counts as sent.
    pub(crate) fn spend(&mut self, now: Moment, to: IpAddr) -> bool {
        let second = now.0.as_secs();
        if second != self.second {
            (self.second, self.used) = (second, 0);
            self.addresses.fill(0);
            self.networks.fill(0);
        }
        let bits = address_bits(to);
        let network = if to.is_ipv4() { bits >> 8 } else { bits >> 64 };
        let (address, network) = (&mut self.addresses[count_of(bits)], &mut self.networks[count_of(network)]);
        let limits = self.limits;
        let allowed = self.used < limits.all && *address < limits.address && *network < limits.network;
        for count in [&mut self.used, address, network] {
            *count += u16::from(allowed);
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn sent(budget: &mut ReplyBudget, second: u64, to: impl Iterator<Item = IpAddr>) -> usize {
        let now = Moment(Duration::from_millis(second * 1000 + 500));
        to.filter(|&address| budget.spend(now, address)).count()
    }

    fn v4(number: u32) -> IpAddr {
        IpAddr::V4((0x0A00_0000 + number).into())
    }

    #[test]
    fn replies_are_limited_in_each_second() {
        let mut budget = ReplyBudget::default();
        for second in [0, 1, 7] {
            let everyone = (0..5000).map(|n| v4(n * 256));
            assert_eq!(
                sent(&mut budget, second, everyone),
                usize::from(REPLIES_PER_SECOND),
                "second {second}"
            );
        }
    }

    #[test]
    fn one_host_and_one_network_leave_replies_for_others() {
        let mut budget = ReplyBudget::default();
        for second in 0..3 {
            let host = std::iter::repeat_n(v4(1), 100_000);
            assert_eq!(sent(&mut budget, second, host), usize::from(TO_ONE_ADDRESS));
            let of_a_network = (0..100_000).map(|n| IpAddr::V6(((0x2001_0DB8 << 96) + n).into()));
            assert_eq!(sent(&mut budget, second, of_a_network), usize::from(TO_ONE_NETWORK));
            let others = (1..=100).map(|n| v4(n << 16));
            assert_eq!(sent(&mut budget, second, others), 100, "each of a hundred other hosts is answered");
        }
    }
}
