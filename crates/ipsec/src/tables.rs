//! The protocol state of one worker: SPD, tunnels, SAs.

use crate::acquire::Acquires;
use crate::addresses::OuterAddresses;
use crate::audit::{Audit, AuditRecord};
use crate::clocked::Clocked;
use crate::counters::SaCounters;
use crate::dummies::Dummies;
use crate::encap::outer_fields::OuterRules;
use crate::encap::template::OuterTemplate;
use crate::encap::{Encap, IpsecProtocol, MAX_DATAGRAM, MAX_ICV_BYTES, Mode, then};
use crate::event::Event;
use crate::fragments::{FragmentChecker, Identifications, Reassembler};
use crate::held::Held;
use crate::in_order::InOrder;
use crate::lifetime::{LifetimeUse, Moment};
use crate::mss_clamp;
use crate::numbers::{ReplayWindow, SequenceNumbers};
use crate::packet_rules::Df;
use crate::path_mtu::OutboundNames;
use crate::reply_budget::ReplyBudget;
use crate::resync::Resync;
use crate::sa::{Delivery, Framed, InboundSa, LocalEndpoint, OutboundSa, Reported, SuiteLayout, Tunnel};
use crate::shared_use::SharedUse;
use crate::sharing::Sharing;
use crate::slots::{SaRef, Slots};
use crate::spd::{SaSelectors, Spd, TunnelIndex, address_bits};
use crate::spi_table::SpiTable;
use crate::tunnel::{Encapsulation, Fragmentation, InboundParameters, OutboundParameters, TunnelParameters};
use crate::udp_ports::UdpPorts;
use crate::vpe::{self, Numbers, VpeRules};
use std::collections::BTreeSet;
use std::sync::Arc;
use testudo_crypto::Job;
use testudo_wire::ah::ah_bytes;
use testudo_wire::ip::Version;

/// The protocol state of one worker, and the data path functions over it (modules `outbound` and `inbound`).
///
/// Engines and ports are not part of it: it takes packets, makes jobs, and takes completed jobs.
#[derive(Debug, Default)]
pub struct Ipsec {
    pub(crate) spd: Box<Spd>,
    pub(crate) tunnels: Vec<Option<Box<Tunnel>>>,
    /// The SA towards the peer that each tunnel's packets go through, by the tunnel's index: all that a
    /// packet needs of a tunnel, close together. `None` as well where AH is to cover them and has no SA, and
    /// where they wait for a [tick](crate::clocked).
    pub(crate) outbound_of: Vec<Option<SaRef>>,
    pub(crate) outbound: Slots<OutboundSa>,
    pub(crate) inbound: Slots<InboundSa>,
    /// SPIs of ESP.
    pub(crate) sad: SpiTable,
    /// SPIs of AH: the protocol is a part of an SA's name (RFC 4301 4.1).
    pub(crate) sad_of_ah: SpiTable,
    /// SPIs of VPE.
    pub(crate) sad_of_vpe: SpiTable,
    /// Where VPE arrives.
    pub(crate) vpe: vpe::Places,
    /// Windows of SAs of VPE from peers.
    pub(crate) vpe_windows: vpe::InboundWindows,
    /// Memory for what is heard of senders of groups, empty but while that is followed.
    pub(crate) news: Vec<vpe::News>,
    /// Jobs that datagrams of ESP became in their second SA, or the reverse.
    pub(crate) again: Vec<Job>,
    pub(crate) udp_ports: UdpPorts,
    pub(crate) addresses: OuterAddresses,
    /// Whether the protected side has more interfaces than the main one.
    pub(crate) has_interfaces: bool,
    /// Whether packets may be chains.
    pub(crate) takes_chains: bool,
    /// Of datagrams from the unprotected side.
    pub(crate) fragments: Reassembler,
    /// Of the host's own datagrams, which go through SAs in transport mode.
    pub(crate) host_fragments: Reassembler,
    pub(crate) checker: FragmentChecker,
    pub(crate) identifications: Identifications,
    /// Whether the port to the unprotected side fragments datagrams of UDP itself.
    pub(crate) port_fragments_udp: bool,
    pub(crate) names: OutboundNames,
    pub(crate) dummies: Dummies,
    pub(crate) clocked: Clocked,
    /// The place of the tunnel that is probed first next time.
    pub(crate) probed_next: usize,
    pub(crate) audit: Audit,
    pub(crate) events: Vec<Event>,
    pub(crate) acquires: Acquires,
    /// Until when tunnels do not ask for [SAs of this worker's own](crate::own_acquire).
    pub(crate) quiet: BTreeSet<(Moment, TunnelIndex)>,
    pub(crate) held: Held,
    pub(crate) replies: ReplyBudget,
    pub(crate) sharing: Sharing,
    /// What waits for its turn, where packets are released in order.
    pub(crate) in_order: Option<Box<InOrder>>,
}

/// Tunnels for which the tables by their indices have room from the start: more than a gateway takes (20,000
/// that are configured and 131,072 of flows). Such a table that grew would be copied while packets wait, and
/// one in blocks would cost each packet two instructions more. Room that is not used is addresses without
/// memory behind them: 2 MiB for each table.
const ROOM: usize = 1 << 18;

impl Ipsec {
    /// State with these policies and no tunnels.
    #[must_use]
    pub fn new(spd: Box<Spd>) -> Self {
        let (tunnels, outbound_of) = (Vec::with_capacity(ROOM), Vec::with_capacity(ROOM));
        let checker = FragmentChecker::with_room_for(ROOM);
        Self { spd, tunnels, outbound_of, checker, ..Self::default() }
    }

    /// The policies in force.
    #[must_use]
    pub fn spd(&self) -> &Spd {
        &self.spd
    }

    /// The same, to change policies: for all later packets.
    pub fn spd_mut(&mut self) -> &mut Spd {
        self.ask_policy_again();
        &mut self.spd
    }

    /// Puts other policies in force for all later packets, and leaves those before in `spd`: to free many of
    /// them takes longer than packets should wait.
    pub fn swap_policies(&mut self, spd: &mut Box<Spd>) {
        self.ask_policy_again();
        std::mem::swap(&mut self.spd, spd);
    }

    /// Puts other selectors in the place of those that packets from a tunnel are checked against, while its
    /// SAs continue, and leaves those before in `selectors`: to free many takes longer than packets should
    /// wait. Without effect if there is no such tunnel.
    pub fn swap_selectors(&mut self, index: TunnelIndex, selectors: &mut SaSelectors) {
        let Some(tunnel) = self.tunnels.get_mut(index.0 as usize).and_then(Option::as_mut) else { return };
        std::mem::swap(&mut tunnel.parameters.selectors, selectors);
        let checked = tunnel.parameters.inbound_selectors();
        for member in &tunnel.inbound {
            if let Some(sa) = self.inbound.get_mut(member.sa) {
                sa.inbound_selectors = checked.clone();
            }
        }
    }

    /// The replay window of an SA from a peer as bytes, to be saved over a restart.
    #[must_use]
    pub fn save_window(&self, inbound: SaRef) -> Option<Vec<u8>> {
        self.save_window_within(inbound, usize::MAX)
    }

    /// The same; of VPE, of whose windows there may be 65,536, in no more than `most_bytes`, as
    /// [`LastWindows::save_within`](crate::LastWindows::save_within) has them.
    #[must_use]
    pub fn save_window_within(&self, inbound: SaRef, most_bytes: usize) -> Option<Vec<u8>> {
        let sa = self.inbound.get(inbound)?;
        let of_vpe = self.vpe_windows.get(inbound).map(|windows| windows.save_within(most_bytes));
        Some(of_vpe.unwrap_or_else(|| sa.window.save()))
    }

    /// Some windows of an SA of VPE, [`WINDOWS_AT_A_TIME`](vpe::WINDOWS_AT_A_TIME) at most: from the peer
    /// those of all workers, towards it those that this one sends in. `None` if there is no such SA.
    #[must_use]
    pub fn windows_from(&self, asked: vpe::WindowsFrom) -> Option<vpe::WindowsPage> {
        if asked.is_outbound {
            return Some(self.outbound.get(asked.sa)?.vpe.as_ref()?.page(asked.from));
        }
        // A handle of an SA that is gone has none.
        self.inbound.get(asked.sa)?;
        Some(self.vpe_windows.get(asked.sa)?.page(asked.from))
    }

    /// Restores a saved replay window; `false` if there is no such SA or the bytes are no window.
    #[must_use]
    pub fn restore_window(&mut self, inbound: SaRef, bytes: &[u8]) -> bool {
        let Some(sa) = self.inbound.get_mut(inbound) else { return false };
        let is_restored = match self.vpe_windows.get_mut(inbound) {
            None => sa.window.restore(bytes),
            Some(windows) => {
                windows.restore(bytes) && sa.window.restore(&ReplayWindow::closed_up_to(windows.top()))
            }
        };
        if is_restored {
            sa.counters.set_sequence(sa.top());
        }
        is_restored
    }

    /// Says whether the protected side has more interfaces than the main one: the packets of an SA then leave
    /// by that of its tunnel.
    pub fn set_has_interfaces(&mut self, has: bool) {
        self.has_interfaces = has;
    }

    /// Whether [auditable events](crate::AUDITED) are noted.
    pub fn set_audit(&mut self, is_on: bool) {
        self.audit.set(is_on);
    }

    /// Auditable events since the last call.
    pub fn take_audit(&mut self) -> Vec<AuditRecord> {
        self.audit.take()
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

    pub(crate) fn tunnel(&self, index: TunnelIndex) -> Option<&Tunnel> {
        self.tunnels.get(index.0 as usize)?.as_deref()
    }

    /// The SA that packets of a tunnel go out through.
    #[inline(always)]
    pub(crate) fn outbound_in_use(&self, index: TunnelIndex) -> Option<SaRef> {
        self.outbound_of.get(index.0 as usize).copied().flatten()
    }
}

/// An SA towards the peer, of VPE if it has rules of that; `None` if its numbers are shared and all slots are
/// taken.
pub(crate) fn outbound_sa(
    index: TunnelIndex,
    (p, of_vpe): (&TunnelParameters, Option<VpeRules>),
    parameters: OutboundParameters,
    rules: OuterRules,
    counters: Arc<SaCounters>,
    now: Moment,
) -> Option<OutboundSa> {
    let OutboundParameters { sa, numbers, iv_mask, .. } = parameters;
    let sequence = SequenceNumbers::of(numbers, sa.esn)?;
    let lifetime = match sequence.used() {
        None => LifetimeUse::resumed(sa.lifetime, now, sa.spent),
        Some(used) => LifetimeUse::sharing(sa.lifetime, now, sa.spent, used),
    };
    let encap = Encap::new(p.protocol, p.mode);
    let headers_vary = rules.vary(p.mode, Version::of(p.endpoints.local));
    let is_shared = sequence.is_shared();
    let windows = of_vpe.map(|of_vpe| Numbers::new(of_vpe, &sequence, rules.seed, now));
    Some(OutboundSa {
        spi: sa.spi,
        layout: SuiteLayout::of(sa.suite),
        esn: sa.esn,
        iv_mask,
        sequence,
        lifetime,
        encap,
        then: then_of(p),
        template: OuterTemplate::new(&p.endpoints, p.protocol, rules, sa.spi),
        headers_vary,
        leaves_frames: false,
        inner_mtu: p.inner_mtu(sa.suite),
        longest_whole: p.longest_whole(sa.suite),
        mss_limits: mss_clamp::limits_of(p, sa.suite),
        tfc_pad_to: p.tfc_pad_to(sa.suite),
        framed: Framed::new(encap, headers_vary, p.rules.tfc_pad_to > 0, is_shared),
        last_sent: now,
        tunnel: index,
        counters,
        reported: Reported::default(),
        vpe: windows,
    })
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

/// The longest datagram that a packet may become, in bytes, whatever its sender says about cutting it.
/// Packets in transport mode keep their own DF, and those of a tunnel that copies it have it outside, so that
/// those that have it must fit the path (RFC 4301 8.1).
pub(crate) fn longest_datagram(p: &TunnelParameters) -> usize {
    match (p.mode, p.fragmentation) {
        (Mode::Tunnel, Fragmentation::After) if p.rules.df != Df::Copy => longest_fragmented(p),
        _ => p.path_mtu,
    }
}

/// The longest datagram that is cut after it was sealed, in bytes. AH goes around what it covers.
pub(crate) fn longest_fragmented(p: &TunnelParameters) -> usize {
    let ah = p.covered_by.map_or(0, |_| ah_bytes(MAX_ICV_BYTES, Version::V6));
    MAX_DATAGRAM - ah
}

/// An SA from the peer. Of one that several workers have, what they use of its lifetime is shared.
pub(crate) fn inbound_sa(
    index: TunnelIndex,
    tunnel: &Tunnel,
    parameters: &InboundParameters,
    window: ReplayWindow,
    used: Option<&Arc<SharedUse>>,
    counters: Arc<SaCounters>,
    now: Moment,
) -> InboundSa {
    let (p, sa) = (&tunnel.parameters, &parameters.sa);
    let udp_port = match p.endpoints.encapsulation {
        Encapsulation::Esp => None,
        Encapsulation::EspInUdp { local_port, .. } => Some(local_port),
    };
    let destination = p.endpoints.destination();
    let endpoint = LocalEndpoint::new(Version::of(destination), address_bits(destination), udp_port);
    let lifetime = match used {
        None => LifetimeUse::resumed(sa.lifetime, now, sa.spent),
        Some(used) => LifetimeUse::sharing(sa.lifetime, now, sa.spent, used),
    };
    let mut sa = InboundSa {
        local_endpoint: match p.protocol {
            IpsecProtocol::Ah => endpoint.of_ah(),
            IpsecProtocol::Esp if p.covered_by.is_some() => endpoint.covered(),
            IpsecProtocol::Esp => endpoint,
            IpsecProtocol::Vpe => endpoint.of_vpe(p.rules.of_vpe().ip_protocol),
        },
        encap: Encap::new(p.protocol, p.mode),
        delivery: Delivery::of(p),
        layout: SuiteLayout::of(sa.suite),
        is_watched: false,
        is_plain: false,
        spi: sa.spi,
        inbound_selectors: p.inbound_selectors(),
        esn: sa.esn,
        window,
        lifetime,
        tunnel: index,
        counters,
        resync: Resync::default(),
        reported: Reported::default(),
    };
    sa.watch(p.learn_remote && !parameters.from_any_port);
    sa
}
