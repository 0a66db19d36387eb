//! Tunnels as bundles of SAs, which are added, put to use and removed one at a time (RFC 4301 4.4.2): what a
//! change costs does not depend on how many tunnels and SAs there are.
//!
//! A key is replaced without losing a packet ("make before break", RFC 7296 2.8) in this order, at both ends:
//!
//! ```text
//!   add_inbound(new)     packets of both keys are accepted from here on
//!   add_outbound(new)    it waits
//!   use_outbound(new)    at once, or with the peer's first packet under the new key (use_outbound_with)
//!   remove_outbound(old)
//!   remove_inbound(old)  when no packet of the old key is on its way any more
//! ```

use crate::Ipsec;
use crate::counters::{SaCounters, SaState};
use crate::encap::outer_fields::OuterRules;
use crate::encap::{IpsecProtocol, Mode};
use crate::event::{Event, EventKind};
use crate::last_windows::LastWindows;
use crate::lifetime::{Lifetime, Moment};
use crate::mtu_probe::Prober;
use crate::numbers::{MIN_WINDOW, NumberSource, ReleaseRing, Reordering, ReplayWindow, SharedWindow};
use crate::path_mtu::{PathMtu, SaName};
use crate::sa::{MAX_SAS_OF_WORKER, MAX_TUNNEL_SAS, Member, Members, OneWorker, Takeover, Tunnel};
use crate::slots::SaRef;
use crate::spd::TunnelIndex;
use crate::spi_table::SpiTable;
use crate::tables::{inbound_sa, outbound_sa};
use crate::tunnel::{Encapsulation, InboundParameters, OutboundParameters, SaWorker, TunnelParameters};
use crate::vpe::{
    GroupWindows, SaWindows, Senders, SharedWindows, TooManyWindows, VpeRules, Windows, WorkersWindows,
};
use std::sync::Arc;

/// A tunnel or an SA could not be installed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InstallError {
    /// Another SA has this SPI, or it is 0, which names no SA (RFC 4303 2.1).
    #[error("tunnel {tunnel}: SPI {spi:#x} is reserved or in use")]
    SpiInUse {
        /// The tunnel that was to have it.
        tunnel: Arc<str>,
        /// The SPI.
        spi: u32,
    },
    /// Another tunnel has this index.
    #[error("tunnel {tunnel}: its place {place} is in use")]
    PlaceInUse {
        /// The tunnel that was to be installed.
        tunnel: Arc<str>,
        /// The index.
        place: u32,
    },
    /// No tunnel has this index.
    #[error("there is no tunnel at place {place}")]
    NoTunnel {
        /// The index.
        place: u32,
    },
    /// The tunnel has as many SAs in this direction as it can, or as all workers, or one alone, can have.
    #[error("tunnel {tunnel}: it has {MAX_SAS_OF_WORKER} SAs in this direction: remove one first")]
    BundleFull {
        /// The tunnel.
        tunnel: Arc<str>,
    },
    /// As many workers as share the numbers of an SA have it already.
    #[error("tunnel {tunnel}: no more workers can send through this SA")]
    TooManyWorkers {
        /// The tunnel that the SA was to be added to.
        tunnel: Arc<str>,
    },
    /// ESP and AH on one packet, whose numbers workers cannot share: a packet that waits for the second one
    /// would hold up the first. Or VPE with what workers share of ESP, or the reverse; or an SA of these for
    /// one worker alone.
    #[error(
        "tunnel {tunnel}: workers cannot share an SA of AH over ESP, nor one of VPE as one of ESP, nor have one each"
    )]
    NotShareable {
        /// The tunnel that the SA was to be added to.
        tunnel: Arc<str>,
    },
    /// So many workers would have more windows of VPE than there are Window IDs.
    #[error("tunnel {tunnel}, with all its workers: {source}")]
    TooManyWindows {
        /// The tunnel that the SA was to be added to.
        tunnel: Arc<str>,
        /// How many they are.
        source: TooManyWindows,
    },
    /// 2^24 SAs are installed.
    #[error("tunnel {tunnel}: the table of SAs is full")]
    TableFull {
        /// The tunnel that was to be installed.
        tunnel: Arc<str>,
    },
}

/// An SA that was added: its handle, and the counters that it shares with other threads.
#[derive(Debug, Clone)]
pub struct AddedSa {
    /// The handle.
    pub sa: SaRef,
    /// Its state and counters.
    pub counters: Arc<SaCounters>,
    /// Of one from the peer that several workers have: how far out of order its packets arrive.
    pub reordering: Option<Arc<Reordering>>,
    /// Of one whose packets they release in order: that order.
    pub ring: Option<Arc<ReleaseRing>>,
}

/// A tunnel that was removed. To free its selectors and windows takes longer than packets should wait: it is
/// dropped best by who has the time.
#[derive(Debug)]
pub struct RemovedTunnel {
    tunnel: Box<Tunnel>,
    /// Of its SAs from the peer, in their order.
    windows: Vec<(ReplayWindow, Option<SaWindows>)>,
}

impl RemovedTunnel {
    /// The SAs towards the peer that it had.
    pub fn outbound(&self) -> impl Iterator<Item = SaRef> + '_ {
        self.tunnel.outbound.iter().map(|member| member.sa)
    }

    /// The SAs from the peer that it had and that are wanted, with their windows as bytes. Of no others are
    /// these made: windows of VPE, of which an SA may have 65,536, may take half a gigabyte.
    pub fn saved_windows(&self, is_wanted: impl Fn(SaRef) -> bool) -> impl Iterator<Item = (SaRef, Vec<u8>)> {
        let wanted = self.inbound().zip(&self.windows).filter(move |(sa, _)| is_wanted(*sa));
        wanted.map(|(sa, (window, of_vpe))| {
            (sa, of_vpe.as_ref().map_or_else(|| window.save(), SaWindows::save))
        })
    }

    /// The SAs from the peer that it had.
    pub fn inbound(&self) -> impl Iterator<Item = SaRef> + '_ {
        self.tunnel.inbound.iter().map(|member| member.sa)
    }
}

impl Ipsec {
    /// Adds a tunnel without SAs. Packets that policy gives to it wait or are dropped
    /// ([`TunnelParameters::acquires`]) until one towards the peer is [in use](Self::use_outbound).
    ///
    /// # Errors
    /// [`InstallError::PlaceInUse`].
    pub fn add_tunnel(
        &mut self,
        index: TunnelIndex,
        mut parameters: TunnelParameters,
        now: Moment,
    ) -> Result<(), InstallError> {
        let place = index.0 as usize;
        if self.tunnels.get(place).is_some_and(Option::is_some) {
            return Err(InstallError::PlaceInUse { tunnel: parameters.name, place: index.0 });
        }
        self.listen(&parameters);
        self.addresses.add(&parameters);
        // In transport mode the datagram goes out whole, so that there is nothing to agree on.
        let takes_fragments = parameters.non_first_fragments || parameters.mode == Mode::Transport;
        self.checker.begin(index, takes_fragments);
        if self.tunnels.len() <= place {
            self.tunnels.resize_with(place + 1, || None);
            self.outbound_of.resize(place + 1, None);
        }
        self.held.tunnels += usize::from(parameters.packets_may_wait());
        if parameters.learn_remote {
            parameters.peer_heard.begin();
        }
        let dummies = self.add_dummies(index, &parameters, now);
        self.tunnels[place] = Some(Box::new(Tunnel {
            dummies,
            path_mtu: PathMtu::new(parameters.path_mtu, 1, now),
            marks_of_all: None,
            prober: parameters.rules.mtu_probe.as_deref().map(|probe| Box::new(Prober::new(probe, now))),
            parameters,
            // A tunnel has one each way for most of its time.
            outbound: Members::with_capacity(1),
            inbound: Members::with_capacity(1),
            in_use: None,
            own_in_use: None,
            wants_own: None,
            takeovers: Vec::new(),
        }));
        Ok(())
    }

    /// Removes a tunnel with all its SAs. Jobs of these that are in flight end as
    /// [`ShuttingDown`](testudo_packet::DropReason::ShuttingDown). `None` if there is no such tunnel.
    #[must_use = "it is freed best where no packet waits"]
    pub fn remove(&mut self, index: TunnelIndex) -> Option<RemovedTunnel> {
        self.be_quiet_no_more(index);
        let tunnel = self.tunnels.get_mut(index.0 as usize)?.take()?;
        self.outbound_of[index.0 as usize] = None;
        self.checker.end(index);
        self.held.tunnels -= usize::from(tunnel.parameters.packets_may_wait());
        self.release_clocked(index);
        self.clocked.end(index);
        self.held.release(index);
        let (protocol, endpoints) = (tunnel.parameters.protocol, tunnel.parameters.endpoints);
        for member in &tunnel.outbound {
            self.outbound.remove(member.sa);
            self.names.remove(index, SaName::of(protocol, &endpoints, member.spi));
        }
        let mut windows = Vec::with_capacity(tunnel.inbound.len());
        for member in &tunnel.inbound {
            let of_vpe = self.vpe_windows.remove(member.sa);
            self.forget_order_of(member.sa);
            windows.extend(self.inbound.remove(member.sa).map(|sa| (sa.window, of_vpe)));
            self.sad_of(protocol).remove(member.spi);
        }
        self.unlisten(&tunnel.parameters);
        self.addresses.unref(&tunnel.parameters);
        if let Some(covered) = tunnel.parameters.covers {
            self.settle_way(covered);
        }
        Some(RemovedTunnel { tunnel, windows })
    }

    /// Adds an SA from the peer, with empty counters and an empty replay window. Packets of the tunnel are
    /// accepted under it from now on, and under those that it has already.
    ///
    /// # Errors
    /// [`InstallError`]; then nothing is added.
    pub fn add_inbound(
        &mut self,
        index: TunnelIndex,
        parameters: InboundParameters,
        now: Moment,
    ) -> Result<AddedSa, InstallError> {
        let window = match self.is_of_vpe(index) {
            // Windows of VPE are in a table of their own.
            true => ReplayWindow::new(MIN_WINDOW, true),
            false => ReplayWindow::new(parameters.replay_window, parameters.sa.esn),
        };
        self.add_inbound_with(index, &parameters, window, None, now)
    }

    /// [`add_inbound`](Self::add_inbound) for an SA whose packets several workers open: each of them adds it
    /// with the same window, whose size and kind of numbers it has.
    ///
    /// # Errors
    /// [`InstallError`]; then nothing is added.
    pub fn add_shared_inbound(
        &mut self,
        index: TunnelIndex,
        mut parameters: InboundParameters,
        window: &Arc<SharedWindow>,
        now: Moment,
    ) -> Result<AddedSa, InstallError> {
        self.check_kind(index, false)?;
        parameters.sa.esn = window.esn();
        self.add_inbound_with(index, &parameters, ReplayWindow::shared(Arc::clone(window)), None, now)
    }

    /// [`add_inbound`](Self::add_inbound) for an SA of VPE whose packets several workers open: each of them
    /// adds it with the same windows.
    ///
    /// # Errors
    /// [`InstallError`]; then nothing is added.
    pub fn add_shared_inbound_of_vpe(
        &mut self,
        index: TunnelIndex,
        parameters: &InboundParameters,
        windows: &Arc<SharedWindows>,
        now: Moment,
    ) -> Result<AddedSa, InstallError> {
        self.check_kind(index, true)?;
        let window = ReplayWindow::new(MIN_WINDOW, true);
        self.add_inbound_with(index, parameters, window, Some(windows), now)
    }

    fn is_of_vpe(&self, index: TunnelIndex) -> bool {
        self.tunnel(index).is_some_and(|tunnel| tunnel.parameters.protocol == IpsecProtocol::Vpe)
    }

    /// Whether what is shared of an SA from the peer is that of its tunnel's protocol.
    fn check_kind(&self, index: TunnelIndex, has_windows_of_vpe: bool) -> Result<(), InstallError> {
        match self.tunnel(index) {
            Some(tunnel) if self.is_of_vpe(index) != has_windows_of_vpe => {
                Err(InstallError::NotShareable { tunnel: Arc::clone(&tunnel.parameters.name) })
            }
            _ => Ok(()),
        }
    }

    fn add_inbound_with(
        &mut self,
        index: TunnelIndex,
        parameters: &InboundParameters,
        window: ReplayWindow,
        of_vpe: Option<&Arc<SharedWindows>>,
        now: Moment,
    ) -> Result<AddedSa, InstallError> {
        let (spi, suite) = (parameters.sa.spi, parameters.sa.suite);
        let place = index.0 as usize;
        let tunnel = self.tunnels.get_mut(place).and_then(Option::as_mut);
        let tunnel = tunnel.ok_or(InstallError::NoTunnel { place: index.0 })?;
        let name = Arc::clone(&tunnel.parameters.name);
        let protocol = tunnel.parameters.protocol;
        let sad = match protocol {
            IpsecProtocol::Esp => &self.sad,
            IpsecProtocol::Ah => &self.sad_of_ah,
            IpsecProtocol::Vpe => &self.sad_of_vpe,
        };
        if spi == 0 || sad.get(spi).is_some() {
            return Err(InstallError::SpiInUse { tunnel: name, spi });
        }
        if tunnel.inbound.len() >= MAX_TUNNEL_SAS {
            return Err(InstallError::BundleFull { tunnel: name });
        }
        let counters = Arc::new(SaCounters::default());
        let shared = window.sharing().cloned();
        let used = of_vpe.map(|windows| windows.used()).or_else(|| shared.as_ref().map(|w| w.used()));
        let added = inbound_sa(index, tunnel, parameters, window, used, Arc::clone(&counters), now);
        let sa = self.inbound.insert(added).ok_or(InstallError::TableFull { tunnel: name })?;
        let from_any_port = parameters.from_any_port;
        tunnel.inbound.push(Member { spi, sa, suite, of_one: None, from_any_port });
        if protocol == IpsecProtocol::Vpe {
            let (p, size) = (&tunnel.parameters, parameters.replay_window);
            let VpeRules { windows_max, sender, .. } = p.rules.of_vpe();
            let senders = || Senders::new(sender, p.endpoints.local, Arc::clone(&counters));
            let ends = (sender, p.endpoints.local);
            let group = |all| GroupWindows::new(all, windows_max, ends, Arc::clone(&counters));
            let windows = match of_vpe {
                Some(all) if p.is_group() => SaWindows::Group(Box::new(group(Arc::clone(all)))),
                Some(all) => SaWindows::Shared(Box::new(WorkersWindows::new(Arc::clone(all), windows_max))),
                None if p.is_group() => SaWindows::Owned(Windows::of_group(windows_max, size, senders())),
                None => SaWindows::Owned(Windows::new(windows_max, size)),
            };
            self.vpe_windows.insert(sa, windows);
        }
        self.sad_of(protocol).insert(spi, sa);
        // The answer to a probe may come under it.
        self.settle_watches(index);
        let ring = shared.as_ref().filter(|_| self.is_in_order()).map(|window| Arc::clone(window.ring()));
        if let Some(ring) = &ring {
            self.keep_order_of(sa, Arc::clone(ring));
        }
        let reordering = shared.and_then(|window| window.reordering().cloned());
        Ok(AddedSa { sa, counters, reordering, ring })
    }

    /// Adds an SA towards the peer. It carries nothing until it is [in use](Self::use_outbound).
    ///
    /// # Errors
    /// [`InstallError`]; then nothing is added.
    pub fn add_outbound(
        &mut self,
        index: TunnelIndex,
        mut parameters: OutboundParameters,
        now: Moment,
    ) -> Result<AddedSa, InstallError> {
        let (spi, suite) = (parameters.sa.spi, parameters.sa.suite);
        let tunnel = self.tunnels.get_mut(index.0 as usize).and_then(Option::as_mut);
        let tunnel = tunnel.ok_or(InstallError::NoTunnel { place: index.0 })?;
        let name = || Arc::clone(&tunnel.parameters.name);
        // The peer tells its SAs apart by their SPIs; other peers may have the same one.
        if spi == 0 || tunnel.outbound.iter().any(|member| member.spi == spi) {
            return Err(InstallError::SpiInUse { tunnel: name(), spi });
        }
        if tunnel.outbound.len() >= MAX_TUNNEL_SAS {
            return Err(InstallError::BundleFull { tunnel: name() });
        }
        let is_shared = matches!(parameters.numbers, NumberSource::Shared(_));
        let p = &tunnel.parameters;
        let is_vpe = p.protocol == IpsecProtocol::Vpe;
        let worker = match &parameters.numbers {
            NumberSource::Gated(numbers) => Some(numbers.worker()),
            _ => None,
        };
        let is_of_one = is_vpe || p.covers.is_some() || p.covered_by.is_some();
        let of_worker = parameters.worker;
        if (is_shared || of_worker.is_some()) && is_of_one || worker.is_some() && !is_vpe {
            return Err(InstallError::NotShareable { tunnel: name() });
        }
        let of_vpe = is_vpe.then(|| p.rules.of_vpe().of_worker(worker.unwrap_or(0))).transpose();
        let of_vpe = of_vpe.map_err(|source| InstallError::TooManyWindows { tunnel: name(), source })?;
        if of_worker.is_some_and(|worker| !worker.keeps_limits) {
            // They are reported where they are kept.
            parameters.sa.lifetime = Lifetime::default();
        }
        let seen = match &parameters.numbers {
            NumberSource::OfOne(own) => Some(Arc::clone(&own.seen)),
            _ => None,
        };
        let own = seen.as_ref().filter(|_| of_worker.is_some_and(|worker| worker.is_here));
        let counters = own.map_or_else(Arc::default, |seen| Arc::clone(&seen.counters));
        let rules = OuterRules::of(&tunnel.parameters, self.identifications.seed());
        let added = outbound_sa(index, (p, of_vpe), parameters, rules, Arc::clone(&counters), now);
        let added = added.ok_or_else(|| InstallError::TooManyWorkers { tunnel: name() })?;
        let sa = self.outbound.insert(added).ok_or_else(|| InstallError::TableFull { tunnel: name() })?;
        counters.set_learned_mtu(tunnel.path_mtu.learned());
        let of_one = of_worker.map(|worker| Box::new(OneWorker { worker, seen }));
        tunnel.outbound.push(Member { spi, sa, suite, of_one, from_any_port: false });
        if is_shared {
            self.sharing.begin();
        }
        self.names.add(index, SaName::of(tunnel.parameters.protocol, &tunnel.parameters.endpoints, spi));
        Ok(AddedSa { sa, counters, reordering: None, ring: None })
    }

    /// Sends the packets of a tunnel through this SA from now on; `false` if the tunnel has no such SA. Of
    /// one that another worker alone sends through, nothing changes here.
    pub fn use_outbound(&mut self, index: TunnelIndex, sa: SaRef) -> bool {
        let member = self.tunnel(index).and_then(|tunnel| tunnel.outbound_member(sa));
        let Some(worker) = member.map(Member::worker) else { return false };
        self.put_in_use(index, worker, Some(sa));
        self.forget_takeovers(index, |takeover| takeover.worker == worker);
        true
    }

    /// Puts an SA of a tunnel to use, or none, in place of the one that this worker, or all, use.
    fn put_in_use(&mut self, index: TunnelIndex, worker: Option<SaWorker>, sa: Option<SaRef>) {
        let Some(tunnel) = self.tunnels.get_mut(index.0 as usize).and_then(Option::as_mut) else { return };
        let way_before = tunnel.way();
        let in_use = match worker {
            None => &mut tunnel.in_use,
            Some(SaWorker { is_here: true, .. }) => &mut tunnel.own_in_use,
            Some(_) => return,
        };
        let before = std::mem::replace(in_use, sa);
        for (sa, in_use) in [(before, false), (sa, true)] {
            if let Some(sa) = sa.and_then(|sa| self.outbound.get(sa)) {
                sa.counters.set_in_use(in_use);
            }
        }
        if let Some(way) = tunnel.way().filter(|way| way_before != Some(*way))
            && let Some(sa) = self.outbound.get(way)
        {
            tunnel.path_mtu.follow(sa.sequence.next());
        }
        let covers = tunnel.parameters.covers;
        self.settle_marks_of_all(index);
        self.show_recent(index);
        self.settle_way(index);
        if let Some(covered) = covers {
            self.settle_way(covered);
        }
    }

    /// A worker whose own SA has stopped sends through the one of all from now on, the fallback of RFC 9611,
    /// unless that has stopped, too.
    #[cold]
    pub(crate) fn leave_stopped(&mut self, index: TunnelIndex) {
        let Some(tunnel) = self.tunnel(index) else { return };
        let Some(own) = tunnel.own_in_use else { return };
        let has_stopped =
            |sa| self.outbound.get(sa).is_none_or(|sa| sa.counters.state() != SaState::Installed);
        if has_stopped(own) && !tunnel.in_use.is_none_or(has_stopped) {
            let worker = tunnel.outbound_member(own).and_then(Member::worker);
            self.put_in_use(index, worker, None);
        }
    }

    /// The SA that the packets of a tunnel go through, whether or not this worker is to ask for one of its
    /// own.
    pub(crate) fn way_of(&self, tunnel: &Tunnel) -> Option<SaRef> {
        let has_one = |ah| self.tunnel(ah).is_some_and(|ah| ah.way().is_some());
        tunnel.way().filter(|_| tunnel.parameters.covered_by.is_none_or(has_one))
    }

    /// Settles which SA the packets of a tunnel go through, which lets those go that have waited for one, or,
    /// where there is none any more, for a tick: before newer ones, which find none either.
    /// What AH is to cover needs one of AH as well: without it, it would be sealed in vain. While this worker
    /// is to [ask for one of its own](crate::own_acquire), none is found at once, and none ever where packets
    /// wait for a [tick](crate::clocked).
    pub(crate) fn settle_way(&mut self, index: TunnelIndex) {
        let Some(tunnel) = self.tunnel(index) else { return };
        let way = self.way_of(tunnel);
        let is_found = !tunnel.is_armed() && tunnel.parameters.clock() == 0;
        self.outbound_of[index.0 as usize] = way.filter(|_| is_found);
        match way {
            Some(_) => self.held.release(index),
            None => self.release_clocked(index),
        }
    }

    /// Sends the packets of a tunnel through the SA `outbound` from the first authentic packet on that comes
    /// under the SA `inbound`: the peer has the new keys then. `false` if the tunnel has no such SAs.
    pub fn use_outbound_with(&mut self, index: TunnelIndex, outbound: SaRef, inbound: SaRef) -> bool {
        let Some(tunnel) = self.tunnels.get_mut(index.0 as usize).and_then(Option::as_mut) else {
            return false;
        };
        let Some(member) = tunnel.outbound_member(outbound) else { return false };
        if !tunnel.inbound.iter().any(|member| member.sa == inbound) {
            return false;
        }
        let worker = member.worker();
        // Of another worker's SA, too: the packet may come here, and that worker hears of it.
        tunnel.takeovers.retain(|takeover| takeover.worker != worker);
        tunnel.takeovers.push(Takeover { inbound, outbound, worker });
        self.settle_watches(index);
        true
    }

    /// An authentic packet came under an SA that is watched: puts the SAs to use that wait for it.
    #[cold]
    pub(crate) fn take_over(&mut self, index: TunnelIndex, inbound: SaRef) {
        let takeovers = self.tunnel(index).map(|tunnel| &tunnel.takeovers[..]).unwrap_or_default();
        let waiting = takeovers.iter().filter(|takeover| takeover.inbound == inbound);
        for outbound in waiting.map(|takeover| takeover.outbound).collect::<Vec<_>>() {
            if self.use_outbound(index, outbound)
                && let Some(sa) = self.outbound.get(outbound)
            {
                self.events.push(Event { tunnel: index, kind: EventKind::TookOver { spi: sa.spi } });
            }
        }
    }

    /// These wait for the peer's packets no more.
    fn forget_takeovers(&mut self, index: TunnelIndex, is_over: impl Fn(&Takeover) -> bool) {
        let Some(tunnel) = self.tunnels.get_mut(index.0 as usize).and_then(Option::as_mut) else { return };
        let before = tunnel.takeovers.len();
        tunnel.takeovers.retain(|takeover| !is_over(takeover));
        if tunnel.takeovers.len() < before {
            self.settle_watches(index);
        }
    }

    /// Settles which SAs from the peer are watched.
    pub(crate) fn settle_watches(&mut self, index: TunnelIndex) {
        let Some(tunnel) = self.tunnels.get(index.0 as usize).and_then(Option::as_ref) else { return };
        let is_probed = tunnel.prober.as_ref().is_some_and(|prober| prober.is_waiting());
        let learns = tunnel.parameters.learn_remote;
        for member in &tunnel.inbound {
            if let Some(sa) = self.inbound.get_mut(member.sa) {
                let all = is_probed || learns && !member.from_any_port;
                sa.watch(all || tunnel.takeovers.iter().any(|takeover| takeover.inbound == member.sa));
            }
        }
    }

    /// Removes an SA towards the peer. Jobs of it that are in flight end as
    /// [`ShuttingDown`](testudo_packet::DropReason::ShuttingDown). If it was in use, the newest of those that
    /// remain for the same worker, or for all, and have not stopped is from now on, as with Linux. A worker
    /// without one of its own sends through that of all; without one of these, too, packets of the tunnel
    /// wait or are dropped ([`TunnelParameters::acquires`]). Returns its handle; `None` if the tunnel has no
    /// SA with this SPI.
    pub fn remove_outbound(&mut self, index: TunnelIndex, spi: u32) -> Option<SaRef> {
        let tunnel = self.tunnels.get_mut(index.0 as usize)?.as_mut()?;
        let member = take_member(&mut tunnel.outbound, spi)?;
        let (sa, worker) = (member.sa, member.worker());
        let name = SaName::of(tunnel.parameters.protocol, &tunnel.parameters.endpoints, spi);
        self.names.remove(index, name);
        self.forget_takeovers(index, |takeover| takeover.outbound == sa);
        let was_used = |tunnel: &Tunnel| tunnel.in_use == Some(sa) || tunnel.own_in_use == Some(sa);
        if self.tunnel(index).is_some_and(was_used) {
            let next = self.newest(index, worker);
            self.put_in_use(index, worker, next);
            self.forget_takeovers(index, |takeover| Some(takeover.outbound) == next);
        }
        self.outbound.remove(sa);
        Some(sa)
    }

    /// The SA towards the peer that was added last for this worker, or for all, of those that have not
    /// stopped. One that waits for the peer to use its keys comes after all others: the peer may not have
    /// them yet.
    fn newest(&self, index: TunnelIndex, worker: Option<SaWorker>) -> Option<SaRef> {
        let tunnel = self.tunnel(index)?;
        let is_alive =
            |sa: &SaRef| self.outbound.get(*sa).is_some_and(|sa| sa.counters.state() == SaState::Installed);
        let of_worker = tunnel.outbound.iter().rev().filter(|member| member.worker() == worker);
        let mut alive = of_worker.map(|member| member.sa).filter(is_alive);
        let newest = alive.next()?;
        if tunnel.waits_for_peer(newest) { alive.next().or(Some(newest)) } else { Some(newest) }
    }

    /// Removes an SA from the peer: later packets under it have an unknown SPI, and jobs of it that are in
    /// flight end as [`ShuttingDown`](testudo_packet::DropReason::ShuttingDown). Returns its handle and its
    /// window, of up to 512 KiB, or windows; `None` if the tunnel has no SA with this SPI.
    #[must_use = "windows are freed best where no packet waits"]
    pub fn remove_inbound(&mut self, index: TunnelIndex, spi: u32) -> Option<(SaRef, LastWindows)> {
        let tunnel = self.tunnels.get_mut(index.0 as usize)?.as_mut()?;
        let sa = take_member(&mut tunnel.inbound, spi)?.sa;
        let protocol = tunnel.parameters.protocol;
        self.forget_takeovers(index, |takeover| takeover.inbound == sa);
        self.sad_of(protocol).remove(spi);
        let windows = self.vpe_windows.remove(sa);
        self.forget_order_of(sa);
        let window = self.inbound.remove(sa)?.window;
        Some((sa, LastWindows::new(window, windows)))
    }

    /// The name of a tunnel.
    #[must_use]
    pub fn tunnel_name(&self, index: TunnelIndex) -> Option<Arc<str>> {
        self.tunnel(index).map(|tunnel| Arc::clone(&tunnel.parameters.name))
    }

    /// The SAs of a tunnel from its peer, oldest first.
    pub fn inbound_sas(&self, index: TunnelIndex) -> impl Iterator<Item = SaRef> + '_ {
        self.tunnel(index).into_iter().flat_map(|tunnel| &tunnel.inbound).map(|member| member.sa)
    }

    /// The SA of a tunnel from its peer that has this SPI.
    #[must_use]
    pub fn inbound_sa(&self, index: TunnelIndex, spi: u32) -> Option<SaRef> {
        find(&self.tunnel(index)?.inbound, spi)
    }

    /// The SA of a tunnel towards its peer that has this SPI.
    #[must_use]
    pub fn outbound_sa(&self, index: TunnelIndex, spi: u32) -> Option<SaRef> {
        find(&self.tunnel(index)?.outbound, spi)
    }

    /// The only worker that sends through an SA towards a tunnel's peer; `None` if all do.
    #[must_use]
    pub fn worker_of(&self, index: TunnelIndex, spi: u32) -> Option<SaWorker> {
        self.tunnel(index)?.outbound.iter().find(|member| member.spi == spi)?.worker()
    }

    /// SPIs of a protocol (RFC 4301 4.1).
    fn sad_of(&mut self, protocol: IpsecProtocol) -> &mut SpiTable {
        match protocol {
            IpsecProtocol::Esp => &mut self.sad,
            IpsecProtocol::Ah => &mut self.sad_of_ah,
            IpsecProtocol::Vpe => &mut self.sad_of_vpe,
        }
    }

    /// Takes datagrams as a tunnel's: in UDP, and VPE's.
    pub(crate) fn listen(&mut self, tunnel: &TunnelParameters) {
        self.vpe.add(tunnel);
        if let Encapsulation::EspInUdp { local_port, .. } = tunnel.endpoints.encapsulation
            && tunnel.protocol != IpsecProtocol::Vpe
        {
            self.udp_ports.add(local_port);
        }
    }

    /// Ends what [`listen`](Self::listen) began.
    pub(crate) fn unlisten(&mut self, tunnel: &TunnelParameters) {
        self.vpe.unref(tunnel);
        if let Encapsulation::EspInUdp { local_port, .. } = tunnel.endpoints.encapsulation
            && tunnel.protocol != IpsecProtocol::Vpe
        {
            self.udp_ports.unref(local_port);
        }
    }
}

fn find(members: &Members, spi: u32) -> Option<SaRef> {
    members.iter().find(|member| member.spi == spi).map(|member| member.sa)
}

fn take_member(members: &mut Members, spi: u32) -> Option<Member> {
    let at = members.iter().position(|member| member.spi == spi)?;
    Some(members.remove(at))
}
