//! SAs that an operator adds, replaces and deletes while the gateway runs, through the control socket.
//!
//! A replacement is *make before break* (RFC 7296 2.8): the new SA from the peer is accepted at once, beside
//! the old one; packets go out through the new SA towards the peer at once, or from the peer's first packet
//! under the new key on; the old SAs leave a while after that, when none of their packets is on its way.
//!
//! ```text
//!   replace ──► worker: add inbound, add outbound ──► … outbound in use ──► overlap ──► worker: remove the old
//!                                                     (now, or when the peer does)
//! ```
//!
//! Such an SA lasts until it is deleted or replaced, its tunnel changes in a reload, or the gateway ends. The
//! configuration knows nothing of it: after a restart the tunnel has the SAs of its configuration again.
//!
//! Changes, reloads and the ends of overlaps take turns. None waits for the store while a worker's packets
//! do.

use super::api::Shared;
use super::installed::{InstalledTunnels, Running};
use super::leases::{Leases, check_known};
use super::sa_request::{NewSa, SaChoice, SaRequest, Wanted};
use super::sas::{KeyState, RunningSa, TunnelSas};
use super::{usages, windows};
use crate::config::did_you_mean;
use crate::{Fingerprint, LeaseStore, Usage, fingerprint, numbers_of};
use serde_json::{Value, json};
use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use testudo_crypto::{Direction, KeyMaterial, NonceRule, Suite};
use testudo_gateway::{
    Commander, InboundInstall, KeyPreparers, OutboundInstall, SaChange, SaChanged, UseFrom,
};
use testudo_ipsec::{
    AddedSa, Demand, InboundParameters, InstallError, MAX_TUNNEL_SAS, NumberSource, OutboundParameters,
    SaCounters, SaParameters, Spent,
};

/// Ephemeral keys that are remembered, so that none is used twice: the latest ones.
const MAX_EPHEMERAL_KEYS: usize = 1 << 18;

/// Changes SAs. May be used from any thread.
pub struct SaControl {
    commander: Commander,
    leases: Arc<Leases>,
    store: Arc<dyn LeaseStore>,
    preparers: KeyPreparers,
    state: Mutex<State>,
}

impl fmt::Debug for SaControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SaControl").field("state", &self.state).finish_non_exhaustive()
    }
}

/// What changes remember; while it is locked, nobody else changes SAs or tunnels.
#[derive(Debug, Default)]
pub struct State {
    overlaps: Vec<Overlap>,
    ephemeral: EphemeralKeys,
    /// Keys of SAs that are gone.
    gone: Vec<Fingerprint>,
}

/// SAs that leave some time after their successor is in use.
#[derive(Debug)]
struct Overlap {
    running: Running,
    leaving: Vec<(Direction, u32)>,
    /// The SA towards the peer that must be in use first.
    successor: Option<(u32, Arc<SaCounters>)>,
    lasts: Duration,
    ends: Option<Instant>,
}

/// The latest ephemeral keys.
#[derive(Debug, Default)]
struct EphemeralKeys {
    known: HashSet<Fingerprint>,
    order: VecDeque<Fingerprint>,
}

impl EphemeralKeys {
    fn add(&mut self, key: Fingerprint) {
        if self.known.insert(key) {
            self.order.push_back(key);
        }
        if self.order.len() > MAX_EPHEMERAL_KEYS
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}

impl State {
    /// Whether a key has served as an ephemeral one in this run.
    pub(crate) fn was_ephemeral(&self, key: &KeyMaterial) -> bool {
        self.ephemeral.known.contains(&numbers_of(key))
    }

    /// Forgets the overlaps of tunnels that are gone.
    pub(crate) fn keep(&mut self, installed: &InstalledTunnels) {
        let kept: HashSet<_> = installed.tunnels.iter().map(|running| running.sas.id()).collect();
        self.overlaps.retain(|overlap| kept.contains(&overlap.running.sas.id()));
    }
}

/// SAs that were added, for the answer.
#[derive(Debug, Default)]
struct Report {
    added: Vec<(Direction, u32)>,
    leaving: Vec<(Direction, u32)>,
}

impl SaControl {
    /// Changes SAs of the worker behind `commander`.
    pub fn new(
        commander: Commander,
        leases: Arc<Leases>,
        store: Arc<dyn LeaseStore>,
        preparers: KeyPreparers,
    ) -> Self {
        Self { commander, leases, store, preparers, state: Mutex::default() }
    }

    /// Keeps all other changes of SAs out for as long as the guard lives.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers a request.
    ///
    /// # Errors
    /// The message for the client; then nothing has changed.
    pub fn answer(&self, shared: &Shared, request: SaRequest) -> Result<Value, String> {
        let mut state = self.lock();
        let installed = shared.installed();
        let running = find(&installed, request.tunnel())?;
        match request {
            SaRequest::Add { sas, .. } => self.add(&mut state, &installed, running, sas, None),
            SaRequest::Replace { sas, overlap, .. } => {
                self.add(&mut state, &installed, running, sas, Some(overlap))
            }
            SaRequest::Use { spi, .. } => self.put_to_use(running, spi),
            SaRequest::Delete { choice, force, .. } => self.delete(&mut state, running, choice, force),
        }
    }

    /// Adds SAs; if `overlap` is given, those that they replace leave that long after.
    fn add(
        &self,
        state: &mut State,
        installed: &InstalledTunnels,
        running: &Running,
        wanted: Wanted,
        overlap: Option<Duration>,
    ) -> Result<Value, String> {
        let wanted = self.checked(state, installed, running, wanted)?;
        let older: Vec<_> = running.sas.lock().iter().map(|sa| (sa.direction, sa.spi)).collect();
        let mut report = self.install(state, running, &wanted)?;
        if let Some(lasts) = overlap {
            let is_replaced = |direction| report.added.iter().any(|(added, _)| *added == direction);
            report.leaving = older.into_iter().filter(|(direction, _)| is_replaced(*direction)).collect();
            state.overlaps.push(overlap_of(running, &report, lasts));
        }
        let in_words = |sas: &[(Direction, u32)]| -> Vec<Value> {
            let row =
                |(direction, spi): &(Direction, u32)| json!({ "direction": word(*direction), "spi": spi });
            sas.iter().map(row).collect()
        };
        let is_waiting = overlap.is_some() && wanted.is_waiting_for_peer;
        Ok(json!({
            "tunnel": running.tunnel.name,
            "added": in_words(&report.added),
            "leaving": in_words(&report.leaving),
            "overlap_seconds": overlap.map(|overlap| overlap.as_secs()),
            "waits_for_peer": is_waiting,
        }))
    }

    /// The SAs to add, once everything about them that can be checked beforehand is.
    fn checked(
        &self,
        state: &State,
        installed: &InstalledTunnels,
        running: &Running,
        wanted: Wanted,
    ) -> Result<Checked, String> {
        let name = &running.tunnel.name;
        if !running.is_installed {
            let why = running.error.as_deref().unwrap_or("it could not be installed");
            return Err(format!("tunnel {name} is down: {why}"));
        }
        let suite = suite_of(running, wanted.suite)?;
        if wanted.is_waiting_for_peer && (wanted.inbound.is_none() || wanted.outbound.is_none()) {
            let why = "it is the peer's first packet under the new inbound SA that is waited for";
            return Err(format!("--when-peer-does needs an inbound and an outbound SA: {why}"));
        }
        let inbound = wanted.inbound.map(|sa| sa.key(suite, "inbound")).transpose()?;
        let outbound = wanted.outbound.map(|sa| sa.key(suite, "outbound")).transpose()?;
        if let (Some((_, a)), Some((_, b))) = (&inbound, &outbound)
            && numbers_of(a) == numbers_of(b)
        {
            return Err("both directions have the same key: each SA needs its own (RFC 4106 8.2)".to_owned());
        }
        // Before anything is recorded of the keys, so that they are still new for the next attempt.
        let durable = wanted.key_state == KeyState::Durable;
        let taken = inbound.as_ref().filter(|_| durable).map(|(spi, _)| (Direction::Open, *spi));
        let taken = taken.into_iter().chain(outbound.as_ref().map(|(spi, _)| (Direction::Seal, *spi)));
        for (direction, spi) in taken {
            check_place(installed, running, direction, spi).map_err(|error| error.to_string())?;
        }
        for (_, key) in inbound.iter().chain(&outbound) {
            self.check_key(state, running, key, wanted.key_state, wanted.resumes)?;
        }
        let lifetime = wanted.lifetime.unwrap_or(running.tunnel.lifetime);
        let Wanted { key_state, is_used_at_once, is_waiting_for_peer, .. } = wanted;
        Ok(Checked { inbound, outbound, lifetime, key_state, is_used_at_once, is_waiting_for_peer })
    }

    /// A new SA has a new key: numbers that repeat under one reveal what it protects (RFC 4106 2).
    fn check_key(
        &self,
        state: &State,
        running: &Running,
        key: &KeyMaterial,
        key_state: KeyState,
        resumes: bool,
    ) -> Result<(), String> {
        let (print, numbers) = (fingerprint(key), numbers_of(key));
        let in_store = |e: crate::StoreError| format!("the store: {e}");
        if state.was_ephemeral(key) {
            return Err(format!("key {print} was used in this run already: give a new one"));
        }
        // Two SAs with one key would repeat its numbers; all others are known to the store.
        if running.sas.lock().iter().any(|sa| sa.key == print || sa.numbers == numbers) {
            return Err(format!("key {print} belongs to an SA of the tunnel: give a new one"));
        }
        let is_known = self.store.is_known(numbers).map_err(in_store)?
            || self.store.window(print).map_err(in_store)?.is_some();
        match (is_known, key_state) {
            (true, KeyState::Ephemeral) => {
                Err(format!("key {print} is known to the store, so that it is not ephemeral: give a new one"))
            }
            (true, KeyState::Durable) if !resumes => Err(format!(
                "key {print} is known to the store, as one that was used: give a new one, or --resume to go on \
                 after its numbers"
            )),
            _ => Ok(()),
        }
    }

    /// Gives the SAs to the worker.
    fn install(&self, state: &mut State, running: &Running, wanted: &Checked) -> Result<Report, String> {
        let mut changes = Vec::new();
        let mut planned = Vec::new();
        if let Some((spi, key)) = &wanted.inbound {
            let sa = self.planned(running, wanted, Direction::Open, *spi, key)?;
            let window = self.window_of(&sa)?;
            let parameters =
                InboundParameters { sa: parameters_of(&sa), replay_window: running.tunnel.replay_window };
            let key = self.preparers.prepare(key.clone(), Direction::Open);
            let install = InboundInstall { parameters, key, window, inherits: None };
            changes.push(SaChange::AddInbound(running.index, Box::new(install)));
            planned.push(sa);
        }
        if let Some((spi, key)) = &wanted.outbound {
            let sa = self.planned(running, wanted, Direction::Seal, *spi, key)?;
            let (numbers, iv_mask) = self.numbers(running, key, wanted.key_state)?;
            let parameters = OutboundParameters { sa: parameters_of(&sa), numbers, iv_mask };
            let key = self.preparers.prepare(key.clone(), Direction::Seal);
            let install = OutboundInstall { parameters, key };
            let from = match &wanted.inbound {
                Some((inbound, _)) if wanted.is_waiting_for_peer => UseFrom::PeersUseOf(*inbound),
                _ if wanted.is_used_at_once || running.sas.outbound().is_none_or(|sa| !sa.is_in_use()) => {
                    UseFrom::Now
                }
                _ => UseFrom::Later,
            };
            changes.push(SaChange::AddOutbound(running.index, Box::new(install), from));
            planned.push(sa);
        }
        let outcome = self.change(changes).inspect_err(|_| self.give_back_all(&planned))?;
        let added: Vec<Result<AddedSa, String>> = outcome.into_iter().map(added).collect();
        if let Some(Err(error)) = added.iter().find(|added| added.is_err()) {
            let error = error.clone();
            self.undo(running, &planned, &added);
            return Err(error);
        }
        let mut report = Report::default();
        for (mut sa, added) in planned.into_iter().zip(added.into_iter().flatten()) {
            report.added.push((sa.direction, sa.spi));
            sa.added = Some(added);
            running.sas.lock().push(sa);
        }
        if wanted.key_state == KeyState::Ephemeral {
            let keys = wanted.inbound.iter().chain(&wanted.outbound);
            keys.for_each(|(_, key)| state.ephemeral.add(numbers_of(key)));
        }
        Ok(report)
    }

    /// Takes back those of several SAs that were added.
    fn undo(&self, running: &Running, planned: &[RunningSa], added: &[Result<AddedSa, String>]) {
        let there = planned.iter().zip(added).filter(|(_, added)| added.is_ok()).map(|(sa, _)| sa);
        let changes = there.map(|sa| removal(running, sa.direction, sa.spi)).collect();
        if let Err(error) = self.change(changes) {
            tracing::error!("taking back an SA of tunnel {}: {error}", running.tunnel.name);
        }
        self.give_back_all(planned);
    }

    /// Gives back the numbers of SAs that were not added after all.
    fn give_back_all(&self, planned: &[RunningSa]) {
        for sa in planned.iter().filter(|sa| sa.is_outbound() && sa.is_durable()) {
            self.give_back_numbers(sa.numbers);
        }
    }

    fn planned(
        &self,
        running: &Running,
        wanted: &Checked,
        direction: Direction,
        spi: u32,
        key: &KeyMaterial,
    ) -> Result<RunningSa, String> {
        let print = fingerprint(key);
        let unused = Usage { bytes: 0, packets: 0, since_unix_s: super::daemon::unix_s() };
        let before = match wanted.key_state {
            KeyState::Durable => self.store.usage(print).map_err(|e| format!("the store: {e}"))?,
            KeyState::Ephemeral => None,
        };
        Ok(RunningSa {
            direction,
            spi,
            suite: key.suite(),
            esn: running.tunnel.esn,
            replay_window: running.tunnel.replay_window,
            lifetime: wanted.lifetime,
            key: print,
            numbers: numbers_of(key),
            key_state: wanted.key_state,
            before: before.unwrap_or(unused),
            added: None,
        })
    }

    /// The window that an SA from the peer starts with. Where a crash would leave it is durable from here on.
    fn window_of(&self, sa: &RunningSa) -> Result<Option<Vec<u8>>, String> {
        if !sa.is_durable() {
            return Ok(None);
        }
        let in_store = |e: crate::StoreError| format!("the store: {e}");
        let window = self.store.window(sa.key).map_err(in_store)?;
        if let Some(ceiling) = windows::first_ceiling(window.as_deref(), sa.esn) {
            self.store.save_windows(&[(sa.key, &ceiling[..])]).map_err(in_store)?;
        }
        Ok(window)
    }

    /// Where the numbers of an SA towards the peer come from, and the mask that makes IVs of them.
    fn numbers(
        &self,
        running: &Running,
        key: &KeyMaterial,
        key_state: KeyState,
    ) -> Result<(NumberSource, u64), String> {
        let rule = key.suite().nonce_rule();
        if key_state == KeyState::Ephemeral {
            let mask = match rule {
                // Should the key have been used before all the same, IVs do not repeat for that alone.
                NonceRule::Explicit => super::daemon::random_seed().map_err(|e| e.to_string())?,
                NonceRule::Counter => 0,
            };
            return Ok((NumberSource::Ephemeral, mask));
        }
        let numbers = numbers_of(key);
        let in_store = |e: crate::StoreError| format!("the store: {e}");
        check_known(self.store.as_ref(), [(numbers, rule)]).map_err(in_store)?;
        // It takes over all of its predecessor's packets at once, and needs as many numbers at a time.
        let before = running.sas.outbound().filter(RunningSa::is_in_use);
        let demand = before.map_or_else(Demand::default, |sa| {
            self.leases.demand_of(sa.numbers).unwrap_or_else(Demand::busy)
        });
        let start = self.leases.begin_with(self.store.as_ref(), numbers, demand).map_err(in_store)?;
        let start = start.under(rule);
        Ok((NumberSource::Leased { first: start.first, lease: start.lease }, start.iv_mask))
    }

    /// `sa use`
    fn put_to_use(&self, running: &Running, spi: u32) -> Result<Value, String> {
        let outcome = self.change(vec![SaChange::UseOutbound(running.index, spi)])?;
        for result in outcome {
            result.map_err(|_| unknown_spi(running, spi))?;
        }
        Ok(json!({ "tunnel": running.tunnel.name, "in_use": spi }))
    }

    /// `sa delete`
    fn delete(
        &self,
        state: &mut State,
        running: &Running,
        SaChoice { spi, direction }: SaChoice,
        force: bool,
    ) -> Result<Value, String> {
        let sas = running.sas.lock().clone();
        let is_meant = |sa: &&RunningSa| sa.spi == spi && direction.is_none_or(|d| d == sa.direction);
        let mut meant = sas.iter().filter(is_meant);
        let sa = match (meant.next(), meant.next()) {
            (None, _) => return Err(unknown_spi(running, spi)),
            (Some(_), Some(_)) => {
                return Err(format!("SPI {spi:#x} names two SAs: add --direction inbound or outbound"));
            }
            (Some(sa), None) => sa,
        };
        let is_last_inbound = !sa.is_outbound() && sas.iter().filter(|sa| !sa.is_outbound()).count() == 1;
        if !force && (sa.is_in_use() || is_last_inbound) {
            let (what, way) = match sa.is_outbound() {
                true => ("the SA in use", "towards"),
                false => ("the only SA", "from"),
            };
            return Err(format!(
                "{spi:#x} is {what} {way} the peer: the tunnel's packets would be dropped; replace it, or add --force"
            ));
        }
        self.remove(state, running, sa.direction, spi)?;
        let direction = word(sa.direction);
        Ok(json!({ "tunnel": running.tunnel.name, "deleted": { "direction": direction, "spi": spi } }))
    }

    /// Removes an SA, and keeps what is to be remembered of its key.
    fn remove(&self, state: &mut State, running: &Running, way: Direction, spi: u32) -> Result<(), String> {
        let changed = self.change(vec![removal(running, way, spi)])?;
        let mut window = None;
        for result in changed {
            if let SaChanged::Removed(last) = result.map_err(|_| unknown_spi(running, spi))? {
                window = last;
            }
        }
        let mut sas = running.sas.lock();
        let Some(at) = sas.iter().position(|sa| sa.direction == way && sa.spi == spi) else { return Ok(()) };
        let sa = sas.remove(at);
        drop(sas);
        state.gone.push(sa.key);
        if sa.is_durable() {
            self.keep_what_is_known(&sa, window.as_deref());
        }
        Ok(())
    }

    /// Saves the window and the usage of a key whose SA is gone; the numbers that it has not used return.
    fn keep_what_is_known(&self, sa: &RunningSa, window: Option<&[u8]>) {
        let windows: Vec<_> = window.into_iter().map(|window| (sa.key, window)).collect();
        let usages: Vec<_> = usages::of(sa).into_iter().collect();
        if let Err(error) = self.store.save(&windows, &usages) {
            tracing::error!("saving what a removed key was used for: {error}");
        }
        if sa.is_outbound() {
            self.give_back_numbers(sa.numbers);
        }
    }

    fn give_back_numbers(&self, key: Fingerprint) {
        if let Err(error) = self.leases.give_back_of(self.store.as_ref(), key) {
            tracing::error!("giving back the numbers of SAs that are gone: {error}");
        }
    }

    /// Ends the overlaps whose time has come. Returns the keys of SAs that are gone since the last call.
    pub(crate) fn end_overlaps(&self, now: Instant) -> Vec<Fingerprint> {
        let mut state = self.lock();
        let mut due = Vec::new();
        state.overlaps.retain_mut(|overlap| {
            if !overlap.is_wanted() {
                return false;
            }
            let is_due = overlap.look(now);
            if is_due {
                due.push((overlap.running.clone(), std::mem::take(&mut overlap.leaving)));
            }
            !is_due
        });
        for (running, leaving) in due {
            for (direction, spi) in leaving {
                // Others may have removed it before.
                if running.sas.lock().iter().any(|sa| sa.direction == direction && sa.spi == spi) {
                    match self.remove(&mut state, &running, direction, spi) {
                        Ok(()) => tracing::info!(
                            "tunnel {}: {} SA {spi:#x} has been replaced and is gone",
                            running.tunnel.name,
                            word(direction)
                        ),
                        Err(error) => tracing::error!("tunnel {}: {error}", running.tunnel.name),
                    }
                }
            }
        }
        std::mem::take(&mut state.gone)
    }

    fn change(&self, changes: Vec<SaChange>) -> Result<testudo_gateway::SaOutcome, String> {
        self.commander.change_sas(changes).map_err(|error| error.to_string())
    }
}

impl Overlap {
    /// Whether its successor is still there.
    fn is_wanted(&self) -> bool {
        let Some((spi, counters)) = &self.successor else { return true };
        self.running.sas.lock().iter().any(|sa| {
            sa.spi == *spi && sa.added.as_ref().is_some_and(|added| Arc::ptr_eq(&added.counters, counters))
        })
    }

    /// Whether it is over. Its time begins when the successor is in use.
    fn look(&mut self, now: Instant) -> bool {
        let has_begun = self.successor.as_ref().is_none_or(|(_, counters)| counters.is_in_use());
        if has_begun && self.ends.is_none() {
            self.ends = Some(now + self.lasts);
        }
        self.ends.is_some_and(|end| now >= end)
    }
}

/// SAs that can be added.
struct Checked {
    inbound: Option<(u32, KeyMaterial)>,
    outbound: Option<(u32, KeyMaterial)>,
    lifetime: testudo_ipsec::Lifetime,
    key_state: KeyState,
    is_used_at_once: bool,
    is_waiting_for_peer: bool,
}

fn overlap_of(running: &Running, report: &Report, lasts: Duration) -> Overlap {
    let outbound = report.added.iter().find(|(direction, _)| *direction == Direction::Seal);
    let successor = outbound.and_then(|(_, spi)| Some((*spi, counters_of(&running.sas, *spi)?)));
    Overlap { running: running.clone(), leaving: report.leaving.clone(), successor, lasts, ends: None }
}

fn counters_of(sas: &TunnelSas, spi: u32) -> Option<Arc<SaCounters>> {
    let sas = sas.lock();
    let sa = sas.iter().rfind(|sa| sa.is_outbound() && sa.spi == spi)?;
    Some(Arc::clone(&sa.added.as_ref()?.counters))
}

fn parameters_of(sa: &RunningSa) -> SaParameters {
    let spent = match sa.key_state {
        KeyState::Durable => usages::spent(sa.before, super::daemon::unix_s()),
        KeyState::Ephemeral => Spent::default(),
    };
    SaParameters { spi: sa.spi, suite: sa.suite, esn: sa.esn, lifetime: sa.lifetime, spent }
}

fn removal(running: &Running, direction: Direction, spi: u32) -> SaChange {
    match direction {
        Direction::Seal => SaChange::RemoveOutbound(running.index, spi),
        Direction::Open => SaChange::RemoveInbound(running.index, spi),
    }
}

fn added(result: Result<SaChanged, testudo_gateway::SaChangeError>) -> Result<AddedSa, String> {
    match result {
        Ok(SaChanged::Added(added)) => Ok(added),
        Ok(other) => Err(format!("the worker answered {other:?}; this is a bug")),
        Err(error) => Err(error.to_string()),
    }
}

fn word(direction: Direction) -> &'static str {
    match direction {
        Direction::Seal => "outbound",
        Direction::Open => "inbound",
    }
}

/// The tunnel of a name.
///
/// # Errors
/// The message for the client, with the nearest name.
pub(super) fn find<'i>(installed: &'i InstalledTunnels, name: &str) -> Result<&'i Running, String> {
    installed.find(name).ok_or_else(|| {
        let names = installed.tunnels.iter().map(|running| running.tunnel.name.as_str());
        let hint = did_you_mean(name, names).map_or(String::new(), |hint| format!("; {hint}"));
        format!("there is no tunnel {name}{hint}")
    })
}

/// Whether there is a place for an SA. The worker checks the same again.
fn check_place(
    installed: &InstalledTunnels,
    running: &Running,
    direction: Direction,
    spi: u32,
) -> Result<(), InstallError> {
    let tunnel = || Arc::from(running.tunnel.name.as_str());
    let count = |sas: &[RunningSa]| sas.iter().filter(|sa| sa.direction == direction).count();
    if count(&running.sas.lock()) >= MAX_TUNNEL_SAS {
        return Err(InstallError::BundleFull { tunnel: tunnel() });
    }
    let has = |other: &Running| other.sas.lock().iter().any(|sa| sa.direction == direction && sa.spi == spi);
    // SPIs of SAs from peers are ours to choose, one for each protocol (RFC 4301 4.1).
    let is_taken = match direction {
        Direction::Seal => has(running),
        Direction::Open => {
            let rivals = installed.tunnels.iter().filter(|t| t.tunnel.protocol == running.tunnel.protocol);
            rivals.into_iter().any(has)
        }
    };
    if is_taken { Err(InstallError::SpiInUse { tunnel: tunnel(), spi }) } else { Ok(()) }
}

fn unknown_spi(running: &Running, spi: u32) -> String {
    let sas = running.sas.lock();
    let list: Vec<_> = sas.iter().map(|sa| format!("{} {:#x}", word(sa.direction), sa.spi)).collect();
    format!("tunnel {} has no such SA {spi:#x}; it has {}", running.tunnel.name, list.join(", "))
}

/// The algorithms of a new SA. What a configuration must allow in so many words is its tunnel's alone.
fn suite_of(running: &Running, wanted: Option<Suite>) -> Result<Suite, String> {
    let own = running.tunnel.suite;
    let Some(suite) = wanted.filter(|suite| *suite != own) else { return Ok(own) };
    let is_for_ah = suite.ah_name().is_some() && !suite.encrypts();
    let needs_consent = suite.is_legacy() || !suite.encrypts() || suite.nonce_rule() == NonceRule::Counter;
    match running.tunnel.protocol {
        testudo_ipsec::IpsecProtocol::Ah if !is_for_ah => Err(format!("{suite} is no suite of AH")),
        testudo_ipsec::IpsecProtocol::Esp if needs_consent => Err(format!(
            "{suite} needs its configuration's consent: tunnel {} is configured with {own}",
            running.tunnel.name
        )),
        testudo_ipsec::IpsecProtocol::Ah if suite.is_legacy() => Err(format!(
            "{suite} needs its configuration's consent: tunnel {} is configured with {own}",
            running.tunnel.name
        )),
        _ => Ok(suite),
    }
}

impl NewSa {
    /// The SPI and the key, for this suite.
    fn key(self, suite: Suite, way: &str) -> Result<(u32, KeyMaterial), String> {
        let key = crate::keys::parse(self.key.as_bytes(), suite).map_err(|error| match error {
            crate::keys::KeyError::Length { expected, found } => {
                format!("the {way} key has {found} hex digits; {suite} needs {expected}")
            }
            other => format!("the {way} key: {other}"),
        })?;
        Ok((self.spi, key))
    }
}
