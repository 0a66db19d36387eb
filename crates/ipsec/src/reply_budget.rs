//! How many messages the gateway sends back by itself: errors must be limited in rate (RFC 1812 4.3.2.8, RFC 4443 2.4 (f)).

use crate::lifetime::Moment;

/// Replies in any one second, for all senders together. Enough for thousands of hosts to learn a path's MTU, too few to be a weapon.
pub(crate) const REPLIES_PER_SECOND: u32 = 1000;

/// What is left of this second's replies.
#[derive(Debug, Default)]
pub(crate) struct ReplyBudget {
    second: u64,
    used: u32,
}

impl ReplyBudget {
    /// Whether one more reply may be sent now; it counts as sent.
    pub(crate) fn spend(&mut self, now: Moment) -> bool {
        let second = now.0.as_secs();
        if second != self.second {
            *self = Self { second, used: 0 };
        }
        let allowed = self.used < REPLIES_PER_SECOND;
        self.used += u32::from(allowed);
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn replies_are_limited_in_each_second() {
        let mut budget = ReplyBudget::default();
        for second in [0, 1, 7] {
            let now = Moment(Duration::from_millis(second * 1000 + 500));
            let sent = (0..5000).filter(|_| budget.spend(now)).count();
            assert_eq!(sent, REPLIES_PER_SECOND as usize, "second {second}");
        }
    }
}
