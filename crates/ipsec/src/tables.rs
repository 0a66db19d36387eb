//! The protocol state of one worker: SPD, tunnels, SAs.

use crate::addresses::OuterAddresses;
use crate::counters::SaCounters;
use crate::encap::outer_fields::OuterRules;
use crate::encap::template::OuterTemplate;
use crate::encap::{Encap, IpsecProtocol, MAX_DATAGRAM, MAX_ICV_BYTES, Mode, then};
use crate::event::Event;
use crate::fragments::{Identifications, Reassembler};
use crate::lifetime::{LifetimeUse, Moment};
use crate::path_mtu::{OutboundNames, PathMtu, SaName};
use crate::replay::ReplayWindow;
use crate::reply_budget::ReplyBudget;
use crate::sa::{InboundSa, LocalEndpoint, OutboundSa, Reported, SuiteLayout, Tunnel};
use crate::sequence::SequenceNumbers;
use crate::slots::{SaRef, Slots};
use crate::spd::{InboundSelectors, Spd, TunnelIndex, address_bits};
use crate::spi_table::SpiTable;
use crate::tunnel::{Encapsulation, Endpoints, Fragmentation, TunnelParameters};
use crate::udp_ports::UdpPorts;
use std::sync::Arc;
use testudo_crypto::Job;
use testudo_wire::ah::ah_bytes;
use testudo_wire::ip::Version;

/// A tunnel could not be installed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InstallError {
    /// Another tunnel has this inbound SPI, or it is 0, which names no SA (RFC 4303 2.1).
    #[error("tunnel {tunnel}: inbound SPI {spi:#x} is reserved or in use")]
    SpiInUse {
        /// The tunnel that was to be installed.
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
    /// 2^24 SAs are installed.
    #[error("tunnel {tunnel}: the table of SAs is full")]
    TableFull {
        /// The tunnel that was to be installed.
        tunnel: Arc<str>,
    },
}

/// The handles of a tunnel's SAs, and the counters that they share with other threads.
#[derive(Debug, Clone)]
pub struct Installed {
    /// The SA towards the peer.
    pub outbound: SaRef,
    /// The SA from the peer.
    pub inbound: SaRef,
    /// The counters of the outbound SA.
    pub outbound_counters: Arc<SaCounters>,
    /// The counters of the inbound SA.
    pub inbound_counters: Arc<SaCounters>,
}

/// The protocol state of one worker, and the data path functions over it (modules `outbound` and `inbound`).
///
/// Engines and ports are not part of it: it takes packets, makes jobs, and takes completed jobs.
#[derive(Debug, Default)]
pub struct Ipsec {
    pub(crate) spd: Box<Spd>,
    pub(crate) tunnels: Vec<Option<Tunnel>>,
    /// The SA towards the peer of each tunnel, by the tunnel's index: all that a packet needs of a tunnel,
    /// close together.
    pub(crate) outbound_of: Vec<Option<SaRef>>,
    pub(crate) outbound: Slots<OutboundSa>,
    pub(crate) inbound: Slots<InboundSa>,
    /// SPIs of ESP.
    pub(crate) sad: SpiTable,
    /// SPIs of AH: the protocol is a part of an SA's name (RFC 4301 4.1).
    pub(crate) sad_of_ah: SpiTable,
    /// Jobs that datagrams of ESP became in their second SA, or the reverse.
    pub(crate) again: Vec<Job>,
    pub(crate) udp_ports: UdpPorts,
    pub(crate) addresses: OuterAddresses,
    pub(crate) fragments: Reassembler,
    pub(crate) identifications: Identifications,
    /// Whether the port to the unprotected side fragments datagrams of UDP itself.
    pub(crate) port_fragments_udp: bool,
    pub(crate) names: OutboundNames,
    pub(crate) events: Vec<Event>,
    pub(crate) replies: ReplyBudget,
}

impl Ipsec {
    /// State with these policies and no tunnels.
    #[must_use]
    pub fn new(spd: Box<Spd>) -> Self {
        Self { spd, ..Self::default() }
    }

    /// The policies in force.
    #[must_use]
    pub fn spd(&self) -> &Spd {
        &self.spd
    }

    /// The same, to change policies: for all later packets.
    pub fn spd_mut(&mut self) -> &mut Spd {
        &mut self.spd
    }

    /// Puts other policies in force for all later packets, and returns those before: to free many of them
    /// takes longer than packets should wait.
    #[must_use = "it is freed best where no packet waits"]
    pub fn replace_policies(&mut self, spd: Box<Spd>) -> Box<Spd> {
        std::mem::replace(&mut self.spd, spd)
    }

    /// Installs a tunnel at its index, with empty counters and an empty replay window.
    ///
    /// # Errors
    /// [`InstallError`]; then nothing is installed.
    pub fn install(
        &mut self,
        index: TunnelIndex,
        parameters: TunnelParameters,
        now: Moment,
    ) -> Result<Installed, InstallError> {
        let name = &parameters.name;
        if self.tunnels.get(index.0 as usize).is_some_and(Option::is_some) {
            return Err(InstallError::PlaceInUse { tunnel: Arc::clone(name), place: index.0 });
        }
        if parameters.inbound.spi == 0 || self.sad(parameters.protocol).get(parameters.inbound.spi).is_some()
        {
            return Err(InstallError::SpiInUse { tunnel: Arc::clone(name), spi: parameters.inbound.spi });
        }
        let outbound_counters = Arc::new(SaCounters::default());
        let inbound_counters = Arc::new(SaCounters::default());
        let full = || InstallError::TableFull { tunnel: Arc::clone(name) };
        let rules = OuterRules::of(&parameters, self.identifications.seed());
        let out_sa = outbound_sa(index, &parameters, rules, Arc::clone(&outbound_counters), now);
        let in_sa = inbound_sa(index, &parameters, Arc::clone(&inbound_counters), now);
        let outbound = self.outbound.insert(out_sa).ok_or_else(full)?;
        let Some(inbound) = self.inbound.insert(in_sa) else {
            self.outbound.remove(outbound);
            return Err(full());
        };
        self.sad(parameters.protocol).insert(parameters.inbound.spi, inbound);
        if let Encapsulation::EspInUdp { local_port, .. } = parameters.endpoints.encapsulation {
            self.udp_ports.add(local_port);
        }
        let remote = parameters.endpoints.remote;
        self.addresses.add(parameters.endpoints.local, remote);
        self.names.add(index, SaName::of(&parameters));
        let path_mtu = PathMtu::new(parameters.path_mtu, parameters.first_sequence, now);
        let place = index.0 as usize;
        if self.tunnels.len() <= place {
            self.tunnels.resize_with(place + 1, || None);
            self.outbound_of.resize(place + 1, None);
        }
        self.outbound_of[place] = Some(outbound);
        self.tunnels[place] = Some(Tunnel { parameters, outbound, inbound, peer_heard: None, path_mtu });
        Ok(Installed { outbound, inbound, outbound_counters, inbound_counters })
    }

    /// Removes a tunnel. Jobs of its SAs that are in flight end as
    /// [`ShuttingDown`](testudo_packet::DropReason::ShuttingDown). Returns the handles of its SAs; `None` if
    /// there is no such tunnel.
    pub fn remove(&mut self, index: TunnelIndex) -> Option<(SaRef, SaRef)> {
        let tunnel = self.tunnels.get_mut(index.0 as usize)?.take()?;
        self.outbound_of[index.0 as usize] = None;
        self.outbound.remove(tunnel.outbound);
        self.inbound.remove(tunnel.inbound);
        self.sad(tunnel.parameters.protocol).remove(tunnel.parameters.inbound.spi);
        let Endpoints { remote, encapsulation, local } = tunnel.parameters.endpoints;
        if let Encapsulation::EspInUdp { local_port, .. } = encapsulation {
            self.udp_ports.unref(local_port);
        }
        self.addresses.unref(local, remote);
        self.names.remove(index, SaName::of(&tunnel.parameters));
        Some((tunnel.outbound, tunnel.inbound))
    }

    /// Replaces the selectors that packets from a tunnel are checked against, while its SAs continue.
    pub fn replace_selectors(&mut self, index: TunnelIndex, selectors: Arc<[crate::Selector]>) {
        if let Some(tunnel) = self.tunnels.get_mut(index.0 as usize).and_then(Option::as_mut) {
            if let Some(sa) = self.inbound.get_mut(tunnel.inbound) {
                sa.inbound_selectors = InboundSelectors::new(Arc::clone(&selectors));
            }
            tunnel.parameters.selectors = selectors;
        }
    }

    /// The replay window of a tunnel as bytes, to be saved over a restart.
    #[must_use]
    pub fn save_window(&self, index: TunnelIndex) -> Option<Vec<u8>> {
        let tunnel = self.tunnel(index)?;
        Some(self.inbound.get(tunnel.inbound)?.window.save())
    }

    /// Restores a saved replay window; `false` if there is no such tunnel or the bytes are no window.
    #[must_use]
    pub fn restore_window(&mut self, index: TunnelIndex, bytes: &[u8]) -> bool {
        let Some(inbound) = self.tunnel(index).map(|t| t.inbound) else { return false };
        let Some(sa) = self.inbound.get_mut(inbound) else { return false };
        let is_restored = sa.window.restore(bytes);
        if is_restored {
            sa.counters.set_sequence(sa.window.top());
        }
        is_restored
    }

    /// Events for the operator since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Jobs that finished ones have become: ESP that is to be covered by AH, or was. They are to be submitted
    /// like those of a batch.
    #[must_use]
    #[inline]
    pub fn take_again(&mut self, jobs: &mut Vec<Job>) -> bool {
        jobs.append(&mut self.again);
        !jobs.is_empty()
    }

    fn sad(&mut self, protocol: IpsecProtocol) -> &mut SpiTable {
        match protocol {
            IpsecProtocol::Esp => &mut self.sad,
            IpsecProtocol::Ah => &mut self.sad_of_ah,
        }
    }

    pub(crate) fn tunnel(&self, index: TunnelIndex) -> Option<&Tunnel> {
        self.tunnels.get(index.0 as usize)?.as_ref()
    }
}

fn outbound_sa(
    index: TunnelIndex,
    p: &TunnelParameters,
    rules: OuterRules,
    counters: Arc<SaCounters>,
    now: Moment,
) -> OutboundSa {
    OutboundSa {
        spi: p.outbound.spi,
        layout: SuiteLayout::of(p.suite),
        esn: p.esn,
        iv_mask: p.iv_mask,
        sequence: SequenceNumbers::new(p.first_sequence, p.esn, Arc::clone(&p.lease)),
        lifetime: LifetimeUse::resumed(p.outbound.lifetime, now, p.outbound.spent),
        encap: Encap::new(p.protocol, p.mode),
        then: then_of(p),
        template: OuterTemplate::new(&p.endpoints, p.protocol, rules, p.outbound.spi),
        headers_vary: rules.vary(p.mode, Version::of(p.endpoints.local)),
        inner_mtu: p.inner_mtu(),
        last_sent: now,
        tunnel: index,
        counters,
        reported: Reported::default(),
    }
}

/// What is done with the datagrams of an SA once they are sealed. In transport mode a packet is only cut
/// after that (RFC 4303 3.3.4).
fn then_of(p: &TunnelParameters) -> u8 {
    match (p.covered_by, p.mode, p.fragmentation) {
        (Some(_), ..) => then::AUTHENTICATE,
        (None, Mode::Tunnel, Fragmentation::Before) => then::SEND,
        (None, Mode::Transport, _) | (None, _, Fragmentation::After) => then::CUT,
    }
}

/// The longest datagram that a packet may become, in bytes. AH goes around what it covers. Packets in
/// transport mode keep their own DF, so that those that have it must fit the path.
pub(crate) fn longest_datagram(p: &TunnelParameters) -> usize {
    match (p.mode, p.fragmentation) {
        (Mode::Tunnel, Fragmentation::After) if p.covered_by.is_some() => {
            MAX_DATAGRAM - ah_bytes(MAX_ICV_BYTES, Version::V6)
        }
        (Mode::Tunnel, Fragmentation::After) => MAX_DATAGRAM,
        _ => p.path_mtu,
    }
}

fn inbound_sa(index: TunnelIndex, p: &TunnelParameters, counters: Arc<SaCounters>, now: Moment) -> InboundSa {
    let udp_port = match p.endpoints.encapsulation {
        Encapsulation::Esp => None,
        Encapsulation::EspInUdp { local_port, .. } => Some(local_port),
    };
    let endpoint =
        LocalEndpoint::new(Version::of(p.endpoints.local), address_bits(p.endpoints.local), udp_port);
    InboundSa {
        local_endpoint: match p.protocol {
            IpsecProtocol::Ah => endpoint.of_ah(),
            IpsecProtocol::Esp if p.covered_by.is_some() => endpoint.covered(),
            IpsecProtocol::Esp => endpoint,
        },
        encap: Encap::new(p.protocol, p.mode),
        covers: p.covers,
        layout: SuiteLayout::of(p.suite),
        learns_remote: p.learn_remote,
        inbound_selectors: InboundSelectors::new(Arc::clone(&p.selectors)),
        esn: p.esn,
        window: ReplayWindow::new(p.replay_window, p.esn),
        lifetime: LifetimeUse::resumed(p.inbound.lifetime, now, p.inbound.spent),
        tunnel: index,
        counters,
        reported: Reported::default(),
    }
}
