//! The worker behind XFRM.

use super::super::api::Shared;
use super::super::assemble;
use super::super::checked_sas::{Checked, FirstNumbers};
use super::super::daemon::{unix_s, unix_time};
use super::super::installed::{InstalledTunnels, Running};
use super::super::last_states::few_of_vpe;
use super::super::sa_control::{SaControl, State};
use super::super::sas::{KeyState, RunningSa, TunnelSas};
use super::super::seed::random_seed;
use super::super::xfrm::{Algorithms, DataPath, PolicyUse, SaUse, UsedBefore};
use super::super::xfrm::{Direction as PolicyDirection, XfrmPolicy};
use super::super::xfrm::{SaKey, XfrmSa};
use super::kept_numbers::Used;
use super::routes::NegotiatedRoutes;
use super::selector;
use super::template::{TemplateKey, encapsulation_of, is_from_any_port, lifetime_of, unsupported};
use super::vpe;
use super::{NegotiatedTunnel, NegotiatedTunnels, Place, Processor};
use crate::config::limits_of;
use crate::fingerprint::digest_of;
use crate::{KeyDigests, Usage, numbers_of};
use std::net::{IpAddr, UdpSocket};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;
use testudo_crypto::{Direction, KeyMaterial, NonceRule};
use testudo_gateway::{Clock, SaChange};
use testudo_ipsec::{Action, Encapsulation, IpsecProtocol, Moment, Spent};
use testudo_packet::{DropReason, Interface};
use testudo_wire::netlink::ack::Refusal;
use testudo_wire::netlink::errno::Errno;
use testudo_wire::protocol;
use testudo_wire::xfrm::action;
use testudo_wire::xfrm::selector::Selector;

/// Tunnels at most: as many as XFRM has room for SAs, two each.
const MAX_NEGOTIATED: usize = 1 << 17;
/// The longest replay window, in packets.
const MAX_WINDOW: u32 = 1 << 21;
/// Windows are whole words of so many packets.
const WINDOW_STEP: u32 = 32;

/// What the configuration allows.
#[derive(Debug, Clone, Copy, Default)]
pub struct Settings {
    /// Algorithms that RFC 8221 says SHOULD NOT or MUST NOT be used.
    pub allow_legacy: bool,
    /// Policies that let packets pass in clear: the port was opened for that.
    pub may_bypass: bool,
    /// The port at which ESP in UDP arrives.
    pub udp_port: u16,
    /// Processors of this machine: a daemon numbers SAs of single processors (RFC 9611) by what it has seen
    /// of the machine, and not by workers.
    pub processors: u32,
}

/// SAs and policies of XFRM in the worker.
pub struct WorkerPath {
    shared: Arc<Shared>,
    settings: Settings,
    routes: Arc<dyn NegotiatedRoutes>,
}

/// What one request works on. Nobody else changes SAs, tunnels or the configuration meanwhile.
pub(super) struct Work<'w> {
    pub(super) shared: &'w Shared,
    pub(super) control: &'w SaControl,
    pub(super) state: MutexGuard<'w, State>,
    pub(super) installed: Arc<InstalledTunnels>,
    pub(super) routes: &'w dyn NegotiatedRoutes,
}

pub(super) fn failed(error: impl Into<String>) -> Refusal {
    Refusal::new(Errno::INVAL, error)
}

fn in_use(text: impl Into<String>) -> Refusal {
    Refusal::new(Errno::EXIST, text)
}

impl WorkerPath {
    /// SAs and policies of the worker that `shared` is about.
    #[must_use]
    pub fn new(shared: Arc<Shared>, settings: Settings, routes: Arc<dyn NegotiatedRoutes>) -> Self {
        Self { shared, settings, routes }
    }

    fn work(&self) -> Result<Work<'_>, Refusal> {
        let control = self.shared.sas.get();
        let control = control.ok_or_else(|| Refusal::new(Errno::BUSY, "the gateway is starting"))?;
        // Locked before the configuration is looked at: a reload may be on its way.
        let state = control.lock();
        let (shared, installed) = (&*self.shared, self.shared.installed());
        Ok(Work { shared, control, state, installed, routes: &*self.routes })
    }

    fn check_suite(&self, sa: &XfrmSa) -> Result<(), Refusal> {
        let Some(suite) = sa.suite else { return Err(failed("an SA without algorithms")) };
        if suite.is_legacy() && !self.settings.allow_legacy {
            let text = format!(
                "{suite} is not to be used any more (RFC 8221): `allow_legacy = true` in [ike] allows it"
            );
            return Err(Refusal::new(Errno::NOSYS, text));
        }
        if let Encapsulation::EspInUdp { local_port, .. } = encapsulation_of(sa)
            && local_port != self.settings.udp_port
        {
            let own = self.settings.udp_port;
            let text =
                format!("ESP in UDP arrives at port {own}, not at {local_port}: see `udp_port` in [ike]");
            return Err(unsupported(text));
        }
        if vpe::of(&self.shared.installed(), sa.if_id()).is_some() {
            vpe::check_suite(suite)?;
            vpe::check_processor(sa.processor().is_some())?;
        }
        let is_of_ah = suite.ah_name().is_some() && !suite.encrypts();
        if sa.key.protocol == protocol::AH && !is_of_ah {
            return Err(Refusal::new(Errno::NOSYS, format!("{suite} is no suite of AH")));
        }
        Ok(())
    }

    fn use_of_sa(&self, sa: &RunningSa) -> SaUse {
        let Some(counters) = sa.added.as_ref().map(|added| &added.counters) else { return SaUse::default() };
        let (now, unix_now) = (self.shared.facts.clock.now(), unix_s());
        let unix = |used: Option<Moment>| {
            used.map_or(0, |used| unix_now.saturating_sub(now.since(used).as_secs()).max(1))
        };
        SaUse {
            bytes: counters.bytes(),
            packets: counters.packets(),
            first_s: unix(counters.first_used()),
            last_s: unix(counters.last_used()),
            sequence: counters.sequence(),
            outside_window: counters.drops(DropReason::ReplayTooOld),
            replayed: counters.drops(DropReason::ReplayDuplicate),
            integrity_failed: counters.drops(DropReason::AuthenticationFailed),
        }
    }

    /// What a policy does to its packets, and the key of the tunnel for that.
    fn action_of(&self, policy: &XfrmPolicy) -> Result<(Option<TemplateKey>, Action), Refusal> {
        if policy.mark() != (0, 0) {
            return Err(unsupported("packets have no marks here: tell tunnels apart by if_id"));
        }
        if policy.info.action == action::BLOCK {
            return Ok((None, Action::Discard));
        }
        let is_outbound = policy.direction == PolicyDirection::Outbound;
        match &policy.templates[..] {
            [] if self.settings.may_bypass => Ok((None, Action::Bypass)),
            [] if is_neighbor_discovery(&policy.info.selector) => Ok((None, Action::Discard)),
            [] => Err(unsupported(
                "a policy that lets packets pass in clear needs one that says so in the gateway's configuration: \
                 `action = \"bypass\"`",
            )),
            [template] => {
                let packets = selector::of_xfrm(&policy.info.selector, policy.direction)?;
                let key = TemplateKey::of_template(template, &packets, is_outbound, policy.if_id())?;
                if vpe::of(&self.shared.installed(), policy.if_id()).is_some() {
                    vpe::check_processor(policy.wants_own())?;
                }
                Ok((Some(key), Action::Discard))
            }
            [_, ..] => Err(unsupported("several templates in one policy (IPComp, AH over ESP) are not done")),
        }
    }
}

/// Whether a selector is for messages of Neighbor Discovery (RFC 4861 4), which pluto lets pass. Its packets
/// stay on their link, and the gateway's interface has no link to discover neighbors on.
fn is_neighbor_discovery(selector: &Selector) -> bool {
    let Selector { protocol, source_port, source_port_mask, .. } = *selector;
    protocol == protocol::ICMPV6 && (133..=137).contains(&source_port) && source_port_mask == u16::MAX
}

/// Whether an address is this host's: a socket can have it.
pub(super) fn is_own(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

impl Work<'_> {
    pub(super) fn tunnels(&self) -> &NegotiatedTunnels {
        &self.installed.negotiated
    }

    pub(super) fn change(&self, changes: Vec<SaChange>) -> Result<(), Refusal> {
        for result in self.control.change(changes).map_err(failed)? {
            result.map_err(|error| failed(error.to_string()))?;
        }
        Ok(())
    }

    /// The interface with an if_id; without one, the main one.
    pub(super) fn interface(&self, if_id: u32) -> Result<Interface, Refusal> {
        if if_id == 0 {
            return Ok(Interface::MAIN);
        }
        let mut interfaces = self.installed.configuration.numbered_interfaces();
        let found = interfaces.find(|(_, interface)| interface.if_id == Some(if_id));
        found.map(|(number, _)| number).ok_or_else(|| {
            unsupported(format!("no interface has if_id {if_id}: the gateway needs an [[interface]] with it"))
        })
    }

    /// The tunnel of a template, which is made if it is not there.
    pub(super) fn tunnel(
        &self,
        key: TemplateKey,
        sa: Option<&XfrmSa>,
    ) -> Result<Arc<NegotiatedTunnel>, Refusal> {
        let tunnels = self.tunnels();
        if let Some(tunnel) = tunnels.table().with_key(&key) {
            return Ok(tunnel);
        }
        if tunnels.len() >= MAX_NEGOTIATED {
            let text = format!("{MAX_NEGOTIATED} tunnels are negotiated, and more are not possible");
            return Err(Refusal::new(Errno::NOMEM, text));
        }
        let interface = self.interface(key.if_id)?;
        let number = {
            let mut table = tunnels.table();
            table.numbers += 1;
            table.numbers
        };
        let tunnel = key.tunnel(number, interface, sa);
        let tunnel = match vpe::of(&self.installed, key.if_id) {
            Some(of_vpe) => vpe::tunnel_of(tunnel, of_vpe)?,
            None => tunnel,
        };
        let index = tunnels.indices.take().ok_or_else(|| failed("no tunnel more is possible"))?;
        let nothing = digest_of(&[]);
        let running = Running {
            tunnel,
            index,
            outbound_key: nothing,
            inbound_key: nothing,
            more_keys: Arc::default(),
            sas: TunnelSas::default(),
            is_installed: true,
            error: None,
        };
        let mtu = self.installed.configuration.unprotected.mtu;
        let mut parameters = assemble::parameters(&running.tunnel, Arc::default(), mtu);
        parameters.acquires = true;
        parameters.learn_remote = may_move(running.tunnel.encapsulation);
        // If the worker refuses the index, another tunnel has it: it is not given again.
        self.change(vec![SaChange::AddTunnel(index, Box::new(parameters))])?;
        Ok(tunnels.table().insert(NegotiatedTunnel { running, number, key }))
    }

    /// Removes a tunnel that nothing needs any more.
    pub(super) fn tidy(&self, number: u64) {
        let tunnels = self.tunnels();
        let tunnel = {
            let table = tunnels.table();
            let has_sas = |tunnel: &NegotiatedTunnel| !tunnel.running.sas.lock().is_empty();
            let tunnel = table.by_number.get(&number);
            tunnel.filter(|tunnel| !table.policies.have(number) && !has_sas(tunnel)).map(Arc::clone)
        };
        let Some(tunnel) = tunnel else { return };
        let index = tunnel.running.index;
        match self.change(vec![SaChange::RemoveTunnel(index)]) {
            Ok(()) => {
                tunnels.table().remove(number);
                tunnels.indices.give_back(index);
            }
            Err(refusal) => {
                tracing::error!("removing tunnel {}: {}", tunnel.running.tunnel.name, refusal.text)
            }
        }
    }

    /// Where the numbers of an SA begin: behind those that its key was used with before.
    fn first_numbers(&self, sa: &XfrmSa, key: &KeyMaterial) -> Result<FirstNumbers, Refusal> {
        let numbers = numbers_of(key);
        if let Some(holder) = self.state.with_key(KeyDigests::of(key)) {
            let name = self.installed.name_at(holder);
            return Err(in_use(format!(
                "an SA of tunnel {name} has this key, and each SA needs its own (RFC 4106 8.2)"
            )));
        }
        let kept = self.tunnels().table().kept.of(numbers);
        let is_known = self.control.store.is_known(numbers).map_err(|error| failed(error.to_string()))?;
        if kept.is_some_and(|used| used.is_outbound == sa.is_inbound) {
            return Err(in_use(
                "this key was one of the other direction, and each SA needs its own (RFC 4106 8.2)",
            ));
        }
        if is_known || kept.is_none() && self.state.was_ephemeral(key) {
            return Err(in_use("this key was used before, and where its numbers ended is not known"));
        }
        let told = sa.last_number();
        let used = kept.unwrap_or(Used { last: 0, iv_mask: 0, is_outbound: !sa.is_inbound });
        let iv_mask = match (kept, key.suite().nonce_rule()) {
            (Some(used), _) => used.iv_mask,
            (None, NonceRule::Explicit) => random_seed().map_err(|error| failed(error.to_string()))?,
            (None, NonceRule::Counter) => 0,
        };
        let number = match sa.is_inbound {
            true => used.last.max(told),
            false => first_sent(told, kept, key.suite().is_for_vpe(), unix_time()),
        };
        // Who is told no more than we have received need not close windows that are behind others.
        let kept_windows = || self.tunnels().table().kept.windows_of(numbers, number);
        let windows = sa.is_inbound.then(kept_windows).flatten();
        let UsedBefore { bytes, packets, .. } = sa.used_before;
        let before = Usage { bytes, packets, since_unix_s: sa.added_s };
        Ok(FirstNumbers { number, windows, iv_mask, before })
    }

    fn add_sa(&mut self, sa: &XfrmSa, key: KeyMaterial) -> Result<(), Refusal> {
        let template = TemplateKey::of_sa(sa)?;
        let window = window_of(sa)?;
        let key = match vpe::of(&self.installed, sa.if_id()) {
            Some(_) => vpe::key_of(&key, sa.key.spi)?,
            None => key,
        };
        let first = self.first_numbers(sa, &key)?;
        let tunnel = self.tunnel(template, Some(sa))?;
        let added = self.install(&tunnel, sa, key, window, first);
        if added.is_err() {
            self.tidy(tunnel.number);
        }
        added
    }

    fn install(
        &mut self,
        tunnel: &NegotiatedTunnel,
        sa: &XfrmSa,
        key: KeyMaterial,
        replay_window: u32,
        first: FirstNumbers,
    ) -> Result<(), Refusal> {
        let direction = if sa.is_inbound { Direction::Open } else { Direction::Seal };
        self.check_room(tunnel, direction, sa.processor())?;
        let worker = sa.processor().map(|processor| self.worker_for(tunnel, processor));
        let iv_mask = first.iv_mask;
        let before = self.tunnels().encapsulation(tunnel);
        self.redirect(tunnel, self.carried_beside(before, sa))?;
        // charon adds an SA before the peer has its half, and names it in the policy once it has. What it
        // names is that of all workers, or of one, and keeps no SA of another one waiting.
        let named = self.tunnels().table().policies.spis_of(tunnel.number);
        let is_named = |spi: &u32| {
            running_sa(&tunnel.running, Direction::Seal, *spi).is_some_and(|named| named.worker == worker)
        };
        let is_used_at_once = named.contains(&sa.key.spi) || !named.iter().any(is_named);
        let pair = Some((sa.key.spi, key));
        let (inbound, outbound) = if sa.is_inbound { (pair, None) } else { (None, pair) };
        let wanted = Checked {
            inbound,
            outbound,
            worker,
            lifetime: lifetime_of(&sa.info.lifetime),
            key_state: KeyState::Ephemeral,
            esn: sa.has_extended_numbers() || tunnel.running.tunnel.protocol == IpsecProtocol::Vpe,
            replay_window,
            from_any_port: is_from_any_port(sa),
            first: Some(first),
            is_used_at_once,
            is_waiting_for_peer: false,
        };
        let added = self.control.install(&mut self.state, &tunnel.running, &wanted);
        if let Err(error) = added {
            // SAs that are there go on as they did.
            self.redirect(tunnel, before)?;
            return Err(failed(error));
        }
        let (of_xfrm, daemon) = (sa.place, sa.daemon);
        let processor = Processor::new(sa.processor());
        let place = Place { tunnel: tunnel.number, direction, iv_mask, of_xfrm, daemon, processor };
        self.tunnels().table().place(sa.key, place);
        self.settle_own(tunnel.number);
        Ok(())
    }

    /// How the packets of an SA are carried.
    fn carried(&self, sa: &XfrmSa) -> Encapsulation {
        let of_esp = encapsulation_of(sa);
        vpe::of(&self.installed, sa.if_id()).map_or(of_esp, |vpe| vpe.carried(of_esp != Encapsulation::Esp))
    }

    /// How the packets of a tunnel are carried with one SA more, which were carried so `before`. One that
    /// leaves the peer's port open only says that it is in UDP.
    fn carried_beside(&self, before: Encapsulation, sa: &XfrmSa) -> Encapsulation {
        let is_in_udp = before != Encapsulation::Esp;
        if is_in_udp && is_from_any_port(sa) { before } else { self.carried(sa) }
    }

    /// Carries the packets of a tunnel so, as its daemon says. If it has said so before, the peer may have
    /// moved since, and is left where it is.
    fn redirect(&self, tunnel: &NegotiatedTunnel, encapsulation: Encapsulation) -> Result<(), Refusal> {
        if self.tunnels().encapsulation(tunnel) == encapsulation {
            return Ok(());
        }
        let ends = tunnel.key.endpoints(encapsulation);
        let may_move = may_move(encapsulation);
        self.change(vec![SaChange::Redirect(tunnel.running.index, ends, may_move)])?;
        self.tunnels().redirected(tunnel.number, ends.encapsulation);
        // Where its packets came from last says nothing of it any more.
        self.shared.peers().remove(&tunnel.running.index);
        Ok(())
    }

    fn change_sa(&mut self, before: &XfrmSa, after: &XfrmSa) -> Result<(), Refusal> {
        let found = self.tunnels().table().place_of(&after.key);
        let (place, tunnel) = found.ok_or_else(|| Refusal::new(Errno::SRCH, "there is no such SA"))?;
        if place.direction == Direction::Seal && self.carried(before) != self.carried(after) {
            self.redirect(&tunnel, self.carried(after))?;
        }
        let is_used = before.used_before != after.used_before || before.added_s != after.added_s;
        if is_used || before.info.lifetime != after.info.lifetime {
            let lifetime = lifetime_of(&after.info.lifetime);
            let index = tunnel.running.index;
            let more = spent_before(before, after);
            self.change(vec![SaChange::Limit(index, place.direction, after.key.spi, lifetime, more)])?;
            let mut sas = tunnel.running.sas.lock();
            let is_meant = |sa: &&mut RunningSa| sa.direction == place.direction && sa.spi == after.key.spi;
            sas.iter_mut().find(is_meant).into_iter().for_each(|sa| sa.limits = limits_of(lifetime));
        }
        Ok(())
    }

    fn advance(&mut self, key: &SaKey, sent: u64, received: u64) -> Result<(), Refusal> {
        let found = self.tunnels().table().place_of(key);
        let (place, tunnel) = found.ok_or_else(|| Refusal::new(Errno::SRCH, "there is no such SA"))?;
        let number = if place.direction == Direction::Seal { sent } else { received };
        self.change(vec![SaChange::Advance(tunnel.running.index, place.direction, key.spi, number)])
    }

    /// The SA goes, and comes back at its new place; at its old one if it cannot.
    fn migrate_sa(&mut self, before: &XfrmSa, after: &XfrmSa) -> Result<(), Refusal> {
        let key = |sa: &XfrmSa| Algorithms::of(&sa.attributes).map(|algorithms| algorithms.key);
        let (new, old) = (key(after)?, key(before)?);
        let used = self.remove_sa(&before.key);
        let with_use = |sa: &XfrmSa| {
            let mut sa = sa.clone();
            sa.used_before.bytes = sa.used_before.bytes.saturating_add(used.0);
            sa.used_before.packets = sa.used_before.packets.saturating_add(used.1);
            sa
        };
        let moved = self.add_sa(&with_use(after), new);
        if moved.is_err()
            && let Err(refusal) = self.add_sa(&with_use(before), old)
        {
            tracing::error!("an SA that could not be moved is gone: {}", refusal.text);
        }
        moved
    }

    /// Returns the bytes and packets that its key was used for.
    fn remove_sa(&mut self, key: &SaKey) -> (u64, u64) {
        let found = self.tunnels().table().take_place(key);
        let Some((place, tunnel)) = found else { return (0, 0) };
        let sa = running_sa(&tunnel.running, place.direction, key.spi);
        let removed = self.control.remove(&mut self.state, &tunnel.running, place.direction, key.spi);
        let windows = removed.unwrap_or_else(|error| {
            tracing::error!("tunnel {}: {error}", tunnel.running.tunnel.name);
            None
        });
        // Now that the worker sends and receives nothing more under it; before its key may come back.
        if let Some(sa) = &sa {
            let last = sa.added.as_ref().map_or(0, |added| added.counters.sequence());
            let is_outbound = place.direction == Direction::Seal;
            let mut table = self.tunnels().table();
            table.kept.keep(sa.numbers, Used { last, iv_mask: place.iv_mask, is_outbound });
            table.kept.keep_windows(sa.numbers, windows.as_deref().and_then(few_of_vpe));
        }
        self.tidy(tunnel.number);
        let counters = sa.and_then(|sa| sa.added).map(|added| added.counters);
        counters.map_or((0, 0), |counters| (counters.used_bytes(), counters.used_packets()))
    }
}

pub(super) fn running_sa(running: &Running, direction: Direction, spi: u32) -> Option<RunningSa> {
    let sas = running.sas.lock();
    sas.iter().find(|sa| sa.direction == direction && sa.spi == spi).cloned()
}

/// Whether a peer may move: a NAT may give it another port at any time (RFC 3948 3.1).
fn may_move(encapsulation: Encapsulation) -> bool {
    encapsulation != Encapsulation::Esp
}

/// What an SA was used for elsewhere that it was not known to have been used for. Less is not possible.
fn spent_before(before: &XfrmSa, after: &XfrmSa) -> Spent {
    let (old, new) = (&before.used_before, &after.used_before);
    Spent {
        bytes: new.bytes.saturating_sub(old.bytes),
        packets: new.packets.saturating_sub(old.packets),
        time: Duration::from_secs(before.added_s.saturating_sub(after.added_s)),
    }
}

/// The window of an SA from the peer: as wide as it is asked for, or a little wider.
fn window_of(sa: &XfrmSa) -> Result<u32, Refusal> {
    let window = sa.replay_window();
    if window > MAX_WINDOW {
        return Err(failed(format!(
            "a replay window of {window} packets, at most {MAX_WINDOW} are possible"
        )));
    }
    Ok(window.next_multiple_of(WINDOW_STEP))
}

impl DataPath for WorkerPath {
    fn is_local(&self, address: IpAddr) -> bool {
        is_own(address)
    }

    fn has_inbound(&self, protocol: u8, spi: u32) -> bool {
        // What is negotiated as ESP may run as VPE.
        let (ah, esp) = (&[IpsecProtocol::Ah][..], &[IpsecProtocol::Esp, IpsecProtocol::Vpe][..]);
        let protocols = if protocol == protocol::AH { ah } else { esp };
        let has = |work: Work<'_>| protocols.iter().any(|of| work.state.has_inbound(*of, spi));
        self.work().is_ok_and(has)
    }

    fn processors(&self) -> u32 {
        let workers = self.shared.sas.get().map_or(1, |control| control.commander.workers());
        u32::try_from(workers).unwrap_or(u32::MAX).max(self.settings.processors)
    }

    fn add_sa(&mut self, sa: &XfrmSa, key: KeyMaterial) -> Result<(), Refusal> {
        self.check_suite(sa)?;
        self.work()?.add_sa(sa, key)
    }

    fn change_sa(&mut self, before: &XfrmSa, after: &XfrmSa) -> Result<(), Refusal> {
        self.work()?.change_sa(before, after)
    }

    fn remove_sa(&mut self, sa: &XfrmSa) {
        if let Ok(mut work) = self.work() {
            work.remove_sa(&sa.key);
        }
    }

    fn use_of(&self, key: &SaKey) -> SaUse {
        let installed = self.shared.installed();
        let place = installed.negotiated.table().place_of(key);
        let sa = place.and_then(|(place, tunnel)| running_sa(&tunnel.running, place.direction, key.spi));
        sa.map_or_else(SaUse::default, |sa| self.use_of_sa(&sa))
    }

    fn advance(&mut self, sa: &SaKey, sent: u64, received: u64) -> Result<(), Refusal> {
        self.work()?.advance(sa, sent, received)
    }

    fn migrate_sa(&mut self, before: &XfrmSa, after: &XfrmSa) -> Result<(), Refusal> {
        self.work()?.migrate_sa(before, after)
    }

    fn add_policy(&mut self, policy: &XfrmPolicy, _before: Option<u32>) -> Result<(), Refusal> {
        let (key, action) = self.action_of(policy)?;
        self.work()?.put_policy(policy, key, action)
    }

    fn replace_policy(&mut self, policy: &XfrmPolicy, _before: Option<u32>) -> Result<(), Refusal> {
        let (key, action) = self.action_of(policy)?;
        self.work()?.put_policy(policy, key, action)
    }

    fn remove_policy(&mut self, index: u32) {
        if let Ok(mut work) = self.work() {
            work.remove_policy(index);
        }
    }

    fn use_of_policy(&self, index: u32) -> PolicyUse {
        let installed = self.shared.installed();
        let found = {
            let table = installed.negotiated.table();
            let policy = table.policies.get(index);
            policy.and_then(|policy| {
                Some((policy.direction, table.by_number.get(&policy.tunnel?).map(Arc::clone)?))
            })
        };
        let Some((direction, tunnel)) = found else { return PolicyUse::default() };
        // Of the SAs that serve it now.
        let is_outbound = direction == PolicyDirection::Outbound;
        let sas = tunnel.running.sas.lock();
        let used = sas.iter().filter(|sa| sa.is_outbound() == is_outbound).map(|sa| self.use_of_sa(sa));
        used.fold(PolicyUse::default(), |all, sa| PolicyUse {
            first_s: [all.first_s, sa.first_s].into_iter().filter(|s| *s != 0).min().unwrap_or(0),
            last_s: all.last_s.max(sa.last_s),
            packets: all.packets + sa.packets,
            bytes: all.bytes + sa.bytes,
        })
    }
}

/// The first number that is sent under a key that was used so far before. The nonces of VPE are numbers, and
/// nobody has noted a key of SAs that somebody types in: after a restart of this process it may come back.
/// So those of VPE begin at the clock, which goes on faster than any sender: by 2^28 a second, and by some at
/// each of its steps, since a process may be started again within the same second.
fn first_sent(told: u64, kept: Option<Used>, is_vpe: bool, unix_time: Duration) -> u64 {
    // A span has less than 2^94 nanoseconds.
    let of_clock = || u64::try_from((unix_time.as_nanos() << 28) / 1_000_000_000).unwrap_or(u64::MAX);
    match kept {
        Some(used) => used.next_sent(told),
        None if is_vpe => told.saturating_add(1).max(of_clock()),
        None => told.saturating_add(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_vpe_begin_at_the_clock_as_nobody_notes_its_keys() {
        let at = Duration::from_secs(1_800_000_000);
        let of = |told, unix_time| first_sent(told, None, true, unix_time);
        assert_eq!((of(0, at), of(9, Duration::ZERO)), (1_800_000_000 << 28, 10));
        assert_eq!(of(0, Duration::MAX), u64::MAX);
        // Faster than any sender, also where a process is started again within the same second.
        for (later, numbers) in [(1_000_000, 268_000_000), (800_000, 200_000_000), (1000, 200_000)] {
            let ahead = of(0, at + Duration::from_micros(later)) - of(0, at);
            assert!(ahead > numbers, "{ahead} after {later} us");
        }
        assert_eq!(first_sent(0, None, false, at), 1);
        let used = Used { last: 1000, iv_mask: 0, is_outbound: true };
        assert_eq!(first_sent(0, Some(used), true, at), used.next_sent(0));
    }
}
