//! Groups of senders under one SA of VPE (`docs/VPE.md`): what their packets give away about Sender IDs.

use crate::Ipsec;
use crate::counters::SaState;
use crate::event::{Event, EventKind};
use crate::slots::SaRef;
use crate::spd::TunnelIndex;
use crate::tunnel::{Endpoints, TunnelParameters};
use crate::vpe::{News, SaWindows};
use std::net::IpAddr;

impl Endpoints {
    /// The multicast group that it sends to and receives from, if it is one of a group.
    #[must_use]
    pub fn group(&self) -> Option<IpAddr> {
        self.remote.filter(IpAddr::is_multicast)
    }

    /// The address that its packets arrive at.
    pub(crate) fn destination(&self) -> IpAddr {
        self.group().unwrap_or(self.local)
    }
}

impl TunnelParameters {
    /// Whether it is one of a group: its SA from the peers is the same as that towards them.
    #[must_use]
    pub fn is_group(&self) -> bool {
        self.endpoints.group().is_some()
    }

    /// Whether nothing is sent through it: it is one of a group, without a Sender ID. It has an SA towards
    /// the group as others do; what it sent by itself would have the nonces of each other such member.
    pub(crate) fn only_receives(&self) -> bool {
        self.is_group() && self.rules.of_vpe().sender == 0
    }
}

/// The outer source of a datagram.
pub(crate) fn source_address(datagram: &[u8]) -> Option<IpAddr> {
    let first = datagram.first()?;
    if first >> 4 == 4 {
        return Some(IpAddr::from(*datagram.get(12..)?.first_chunk::<4>()?));
    }
    Some(IpAddr::from(*datagram.get(8..)?.first_chunk::<16>()?))
}

impl Ipsec {
    /// Follows what the packets of an SA have given away about senders.
    pub(crate) fn hear_senders(&mut self, sa_ref: SaRef) {
        let Some(windows) = self.vpe_windows.get_mut(sa_ref).filter(|windows| windows.has_news()) else {
            return;
        };
        let mut all = std::mem::take(&mut self.news);
        windows.swap_news(&mut all);
        if let Some((spi, tunnel)) = self.inbound.get(sa_ref).map(|sa| (sa.spi, sa.tunnel)) {
            all.iter().for_each(|news| self.hear_sender(tunnel, spi, *news));
        }
        all.clear();
        self.news = all;
    }

    fn hear_sender(&mut self, tunnel: TunnelIndex, spi: u32, news: News) {
        match news {
            News::Own { window, number, address } => {
                self.hear_own_sender(tunnel, spi, (window, number), address);
            }
            News::Twice { sender, before, address } => {
                let kind = EventKind::SenderTwice { spi, sender, before, address };
                self.events.push(Event { tunnel, kind });
            }
        }
    }

    /// An authentic packet with our own Sender ID. One that we have sent was sent back to us, by the network
    /// or by anybody who has seen it: that must not silence us. Of any other, somebody else has our ID, or we
    /// have had it before with a store that is lost: numbers have been used twice, or will be.
    ///
    /// Why packets under our own ID are opened at all, also those with numbers that we have sent: a device
    /// that has our ID and is behind us seals under just these. Its address alone gives it away, and means
    /// nothing unless the packet is authentic: anybody can write it. A copy costs no more than what anybody
    /// can make who does not wait for us to send, a packet with a high number of any sender, which is opened
    /// as well.
    #[cold]
    fn hear_own_sender(
        &mut self,
        tunnel: TunnelIndex,
        spi: u32,
        (window, number): (u16, u64),
        address: IpAddr,
    ) {
        let sa = self.outbound_sa(tunnel, spi).and_then(|sa| self.outbound.get_mut(sa));
        let Some(sa) = sa else { return };
        let Some(numbers) = &mut sa.vpe else { return };
        if numbers.is_taken(&sa.sequence) || numbers.has_sent(window, number, &sa.sequence) {
            return;
        }
        let sender = numbers.rules().sender;
        numbers.set_taken(&sa.sequence);
        sa.counters.set_state(SaState::SenderTaken);
        let windows = self.inbound_sa(tunnel, spi).and_then(|sa| self.vpe_windows.get(sa));
        if windows.is_none_or(SaWindows::tell_taken) {
            let kind = EventKind::SenderTaken { spi, sender, address };
            self.events.push(Event { tunnel, kind });
        }
    }

    /// Another worker has found that somebody else has our Sender ID.
    pub(crate) fn hear_of_taken(&mut self, tunnel: TunnelIndex, spi: u32, sender: u16) {
        let sa = self.outbound_sa(tunnel, spi).and_then(|sa| self.outbound.get_mut(sa));
        // The tunnel may have got another one since.
        let numbers = sa.and_then(|sa| Some((sa.vpe.as_mut()?, &sa.sequence, &sa.counters)));
        if let Some((numbers, gate, counters)) = numbers.filter(|(of, ..)| of.rules().sender == sender) {
            numbers.set_taken(gate);
            counters.set_state(SaState::SenderTaken);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outer_source_is_read_of_either_version() {
        let v4 = [&[0x45; 12][..], &[192, 0, 2, 1, 9, 9, 9, 9]].concat();
        assert_eq!(source_address(&v4), Some([192, 0, 2, 1].into()));
        let v6 = [&[0x60; 8][..], &[7; 16], &[9; 16]].concat();
        assert_eq!(source_address(&v6), Some([7_u8; 16].into()));
        assert_eq!(
            (source_address(&[]), source_address(&v4[..14]), source_address(&v6[..20])),
            (None, None, None)
        );
    }
}
