//! Lifetimes by time end on time, whether packets arrive or not (RFC 4301 4.4.2.1), and so does what was
//! learned of a path's MTU.

use crate::Ipsec;
use crate::encap::IpsecProtocol;
use crate::lifetime::{Lifetime, LifetimeState, LifetimeUse, Moment, Spent};
use crate::numbers::ReplayWindow;
use crate::sa::OutboundSa;
use crate::spd::TunnelIndex;
use crate::vpe::SaWindows;

impl Ipsec {
    /// Reports the SAs that have reached a limit since the last call, and forgets MTUs that were learned long
    /// ago. To be called about once a second.
    pub fn age(&mut self, now: Moment) {
        self.audit.tick(now);
        self.age_lifetimes(now);
        for (sa, windows) in self.vpe_windows.each() {
            if let Some(sa) = self.inbound.get(sa) {
                sa.counters.see_windows(|seen| windows.show(seen));
            }
        }
        for index in (0..).map(TunnelIndex).take(self.tunnels.len()) {
            if self.tunnel(index).is_some_and(|tunnel| tunnel.own_in_use.is_some()) {
                self.leave_stopped(index);
            }
            self.age_path_mtu(index, now);
            self.age_windows(index, now);
        }
    }

    /// Notes which numbers of a tunnel of VPE are recent, and gives its flows other windows, where that is
    /// configured.
    fn age_windows(&mut self, index: TunnelIndex, now: Moment) {
        let tunnel = self.tunnels.get(index.0 as usize).and_then(Option::as_ref);
        let tunnel = tunnel.filter(|tunnel| tunnel.parameters.protocol == IpsecProtocol::Vpe);
        for member in tunnel.into_iter().flat_map(|tunnel| &tunnel.outbound) {
            let windows = self.outbound.get_mut(member.sa).and_then(|sa| sa.vpe.as_mut());
            windows.into_iter().for_each(|windows| windows.age(now));
        }
    }

    /// Gives an SA other limits; what it has used stays, and `more` of elsewhere counts. `false` if the
    /// tunnel has no such SA. Of one that another worker alone sends through that one keeps them.
    pub fn set_lifetime(
        &mut self,
        index: TunnelIndex,
        spi: u32,
        is_outbound: bool,
        lifetime: Lifetime,
        more: Spent,
    ) -> bool {
        let of_worker = self.worker_of(index, spi).filter(|_| is_outbound);
        if of_worker.is_some_and(|worker| !worker.keeps_limits) {
            return true;
        }
        let found = if is_outbound { self.outbound_sa(index, spi) } else { self.inbound_sa(index, spi) };
        let used = match found {
            None => None,
            Some(sa) if is_outbound => self.outbound.get_mut(sa).map(|sa| &mut sa.lifetime),
            Some(sa) => self.inbound.get_mut(sa).map(|sa| &mut sa.lifetime),
        };
        let Some(used) = used else { return false };
        let before = std::mem::replace(used, LifetimeUse::new(Lifetime::default(), Moment::default()));
        *used = before.under(lifetime, more);
        true
    }

    /// Moves the numbers of an SA on: the next that is sent is behind `number`, and of those that are
    /// received all up to it count as received. Numbers never go back. `None` if the tunnel has no such SA,
    /// `false` if it is further on. One that another worker alone sends through moves there.
    pub fn advance(&mut self, index: TunnelIndex, spi: u32, is_outbound: bool, number: u64) -> Option<bool> {
        if is_outbound {
            let sa = self.outbound_sa(index, spi)?;
            if self.worker_of(index, spi).is_some_and(|worker| !worker.is_here) {
                return Some(true);
            }
            let sa = self.outbound.get_mut(sa)?;
            let is_ahead = sa.sequence.advance(number);
            if let Some(windows) = &mut sa.vpe {
                windows.follow(&sa.sequence);
            }
            if is_ahead {
                sa.counters.set_sequence(number);
            }
            return Some(is_ahead);
        }
        let sa = self.inbound_sa(index, spi)?;
        let top = self.inbound.get(sa)?.top();
        let top = self.vpe_windows.get(sa).map_or(top, SaWindows::top_of_all);
        Some(number >= top && self.restore_window(sa, &ReplayWindow::closed_up_to(number)))
    }

    /// What [`advance`](Self::advance) at one worker means for another one: an SA that this one alone sends
    /// through moves here, and the windows of VPE that it sends in leave the same numbers out. What else
    /// workers share has moved with the first of them. `false` if the SA is further on.
    pub fn follow_advance(&mut self, index: TunnelIndex, spi: u32, number: u64) -> bool {
        if self.worker_of(index, spi).is_some() {
            return self.advance(index, spi, true, number).unwrap_or(true);
        }
        let sa = self.outbound_sa(index, spi).and_then(|sa| self.outbound.get_mut(sa));
        if let Some(OutboundSa { vpe: Some(windows), sequence, .. }) = sa {
            sequence.advance(number);
            windows.follow(sequence);
        }
        true
    }

    fn age_lifetimes(&mut self, now: Moment) {
        let events = &mut self.events;
        for sa in self.outbound.iter_mut() {
            sa.counters.age(now);
            if let Some(numbers) = &sa.vpe {
                sa.counters.see_windows(|seen| numbers.show(seen));
            }
            if let Some(reserver) = sa.sequence.reserver() {
                reserver.shared().pass_over_stalled(now);
            }
            match sa.lifetime.look(now) {
                LifetimeState::Alive => {}
                LifetimeState::SoftReached => events.push(sa.soft_lifetime()),
                LifetimeState::Expired => sa.expire(events),
            }
        }
        for sa in self.inbound.iter_mut() {
            sa.counters.age(now);
            match sa.lifetime.look(now) {
                LifetimeState::Alive => {}
                LifetimeState::SoftReached => events.push(sa.soft_lifetime()),
                LifetimeState::Expired => sa.expire(events),
            }
        }
    }
}
