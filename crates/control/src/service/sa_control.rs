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
//! Such an SA lasts until it is deleted or replaced, its tunnel changes in a reload, or the gateway ends: the
//! configuration knows nothing of it. Changes, reloads and the ends of overlaps take turns. None waits for
//! the store while a worker's packets do.

use super::api::Shared;
use super::checked_sas::{Checked, FirstNumbers};
use super::ending::Stopped;
use super::ephemeral_keys::EphemeralKeys;
use super::groups;
use super::installed::{InstalledTunnels, Running};
use super::last_states::LastState;
use super::leases::{Leases, check_known};
use super::overlaps::{Leaving, Overlap, Overlaps};
use super::populated::PopulatedTunnel;
use super::sa_index::SaIndex;
use super::sa_request::{SaChoice, SaRequest, Wanted};
use super::sas::{KeyState, RunningSa};
use super::{usages, windows};
use crate::config::{Loaded, did_you_mean, limits_of};
use crate::{Fingerprint, KeyDigests, LeaseStore, StoreError, Usage, fingerprint, numbers_of};
use serde_json::{Value, json};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use testudo_crypto::{Direction, KeyMaterial, NonceRule, Suite};
use testudo_gateway::{
    Commander, InboundInstall, KeyPreparers, OutboundInstall, SaChange, SaChanged, UseFrom,
};
use testudo_ipsec::{
    Demand, InstallError, Lease, MAX_SAS_OF_WORKER, MAX_TUNNEL_SAS, NumberSource, OutboundParameters,
    SaParameters, SaWorker, TunnelIndex,
};

/// Why the tunnel of a flow has no durable keys.
pub(super) const NOT_EPHEMERAL: &str = "the tunnel of a flow ends with the gateway, and so do its keys: add \
    --ephemeral, with keys that no gateway had before or will have after";

/// How often a store that failed is tried again.
const SAVE_INTERVAL: Duration = Duration::from_secs(1);

/// Changes SAs. May be used from any thread.
pub struct SaControl {
    pub(super) commander: Commander,
    leases: Arc<Leases>,
    pub(super) store: Arc<dyn LeaseStore>,
    preparers: KeyPreparers,
    /// Whether SAs keep their keys, for somebody to read.
    keeps_keys: bool,
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
    index: SaIndex,
    overlaps: Overlaps,
    ephemeral: EphemeralKeys,
    /// Keys of SAs that are gone.
    gone: Vec<Fingerprint>,
    /// What the store could not save of such keys: of no more than were installed, since none is added while
    /// the store does not work.
    pub(super) unsaved: Vec<LastState>,
    next_save: Option<Instant>,
    /// Where SAs of flows' tunnels may have stopped.
    pub(super) stopped: Stopped,
}

impl State {
    /// Whether a key has served as an ephemeral one in this run.
    pub(crate) fn was_ephemeral(&self, key: &KeyMaterial) -> bool {
        self.ephemeral.has(numbers_of(key))
    }

    /// The tunnel with an SA that has one of these keys.
    pub(super) fn with_key(&self, keys: KeyDigests) -> Option<TunnelIndex> {
        self.index.with_key(keys)
    }

    /// Whether an SA from a peer has this SPI.
    pub(super) fn has_inbound(&self, protocol: testudo_ipsec::IpsecProtocol, spi: u32) -> bool {
        self.index.with_inbound_spi(protocol, spi).is_some()
    }

    /// Whether `loaded` may be put in force beside SAs that were added at run time.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn check(&self, installed: &InstalledTunnels, loaded: &Loaded) -> Result<(), String> {
        if let Some(last) = self.unsaved.first() {
            return Err(format!("what key {} has received could not be saved yet: see the log", last.key));
        }
        self.index.conflict(installed, loaded).map_or(Ok(()), Err)
    }

    /// After a reload: forgets tunnels that are gone, and knows the SAs of new ones. The worker has removed
    /// the tunnels `gone`, which were populated from packets: their inbound SPIs are those of new tunnels.
    pub(crate) fn turn_over(
        &mut self,
        old: &InstalledTunnels,
        installed: &InstalledTunnels,
        gone: &[Arc<PopulatedTunnel>],
    ) {
        for populated in gone {
            self.forget_sas(&populated.running);
            installed.populated.remove(populated.number, true);
        }
        self.index.turn_over(old, installed);
        self.overlaps.keep(&installed.all().map(|running| running.sas.id()).collect());
    }

    /// A tunnel has gone from the worker with all its SAs, whose keys are ephemeral.
    pub(super) fn forget_sas(&mut self, running: &Running) {
        for sa in std::mem::take(&mut *running.sas.lock()) {
            self.index.remove(running, &sa);
            self.gone.push(sa.key);
        }
    }
}

impl SaControl {
    /// Changes SAs of the worker behind `commander`, where these tunnels are `installed`.
    pub fn new(
        commander: Commander,
        leases: Arc<Leases>,
        store: Arc<dyn LeaseStore>,
        preparers: KeyPreparers,
        installed: &InstalledTunnels,
    ) -> Self {
        let state = State { index: SaIndex::of(installed), ..State::default() };
        let keeps_keys = installed.configuration.gateway.allow_key_export;
        Self { commander, leases, store, preparers, keeps_keys, state: Mutex::new(state) }
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
        let running = &find(&installed, request.tunnel())?;
        groups::refuse_change(&installed, running, &request)?;
        match request {
            SaRequest::Add { sas, flow: Some(flow), .. } => {
                self.add_for(&mut state, &installed, running, &flow, sas)
            }
            SaRequest::Add { sas, flow: None, .. } => self.add(&mut state, &installed, running, sas, None),
            SaRequest::Replace { sas, overlap, .. } => {
                self.add(&mut state, &installed, running, sas, Some(overlap))
            }
            SaRequest::Use { spi, .. } => self.put_to_use(running, spi),
            SaRequest::Delete { choice, force, .. } => {
                self.delete(&mut state, &installed, running, choice, force)
            }
        }
    }

    /// Adds SAs; if `overlap` is given, those that they replace leave that long after.
    pub(super) fn add(
        &self,
        state: &mut State,
        installed: &InstalledTunnels,
        running: &Running,
        wanted: Wanted,
        overlap: Option<Duration>,
    ) -> Result<Value, String> {
        let wanted = self.checked(state, installed, running, wanted)?;
        // Those of the same worker, or of all: each is renewed by itself.
        let is_of_same = |sa: &&RunningSa| sa.worker == wanted.worker;
        let older: Vec<_> = running.sas.lock().iter().filter(is_of_same).filter_map(Leaving::of).collect();
        let added = self.install(state, running, &wanted)?;
        let mut leaving = Vec::new();
        if let Some(lasts) = overlap {
            let is_replaced = |old: &Leaving| added.iter().any(|new| new.direction == old.direction);
            leaving = older.into_iter().filter(is_replaced).collect();
            let successor = added.iter().find(|sa| sa.is_outbound());
            state.overlaps.push(Overlap::new(running, leaving.clone(), successor, lasts));
        }
        let mut answer = in_words(&running.tunnel.name, &added, &leaving);
        answer["overlap_seconds"] = json!(overlap.map(|overlap| overlap.as_secs()));
        answer["waits_for_peer"] = json!(overlap.is_some() && wanted.is_waiting_for_peer);
        Ok(answer)
    }

    /// The SAs to add, once everything about them that can be checked beforehand is.
    pub(super) fn checked(
        &self,
        state: &State,
        installed: &InstalledTunnels,
        running: &Running,
        wanted: Wanted,
    ) -> Result<Checked, String> {
        let name = &running.tunnel.name;
        if let Some(populated) = installed.populated.at(running.index) {
            if wanted.key_state != KeyState::Ephemeral {
                return Err(NOT_EPHEMERAL.to_owned());
            }
            if installed.populated.is_ending(populated.number) {
                return Err(format!("tunnel {name} ends: its policy is gone, or says something else now"));
            }
        }
        if !running.is_installed {
            let why = running.error.as_deref().unwrap_or("it could not be installed");
            return Err(format!("tunnel {name} is down: {why}"));
        }
        let suite = suite_of(running, wanted.suite)?;
        if let Some(worker) = wanted.worker {
            self.check_worker(running, worker)?;
        }
        if wanted.is_waiting_for_peer && (wanted.inbound.is_none() || wanted.outbound.is_none()) {
            let why = "it is the peer's first packet under the new inbound SA that is waited for";
            return Err(format!("--when-peer-does needs an inbound and an outbound SA: {why}"));
        }
        let inbound = wanted.inbound.map(|sa| sa.key(suite, "inbound")).transpose()?;
        let outbound = wanted.outbound.map(|sa| sa.key(suite, "outbound")).transpose()?;
        if let (Some((_, a)), Some((_, b))) = (&inbound, &outbound)
            && KeyDigests::of(a).overlap(&KeyDigests::of(b))
        {
            return Err("both directions have the same key: each SA needs its own (RFC 4106 8.2)".to_owned());
        }
        // Before anything is recorded of the keys, so that they are still new for the next attempt.
        let places = inbound.iter().map(|(spi, _)| (Direction::Open, *spi));
        for (direction, spi) in places.chain(outbound.iter().map(|(spi, _)| (Direction::Seal, *spi))) {
            check_place(state, running, (direction, wanted.worker), spi)
                .map_err(|error| error.to_string())?;
        }
        for (_, key) in inbound.iter().chain(&outbound) {
            self.check_key(state, installed, key, wanted.key_state, wanted.resumes)?;
        }
        if let Some((_, key)) = outbound.as_ref().filter(|_| wanted.key_state == KeyState::Durable) {
            let rule = key.suite().nonce_rule();
            check_known(self.store.as_ref(), [(numbers_of(key), rule)]).map_err(in_store)?;
        }
        let lifetime = wanted.lifetime.unwrap_or(running.tunnel.lifetime());
        let Wanted { key_state, is_used_at_once, is_waiting_for_peer, .. } = wanted;
        let crate::config::Tunnel { esn, replay_window, .. } = running.tunnel;
        Ok(Checked {
            inbound,
            outbound,
            worker: wanted.worker,
            lifetime,
            key_state,
            esn,
            replay_window,
            from_any_port: false,
            first: None,
            is_used_at_once,
            is_waiting_for_peer,
        })
    }

    /// A new SA has a new key: numbers that repeat under one reveal what it protects (RFC 4106 2).
    fn check_key(
        &self,
        state: &State,
        installed: &InstalledTunnels,
        key: &KeyMaterial,
        key_state: KeyState,
        resumes: bool,
    ) -> Result<(), String> {
        let (print, numbers) = (fingerprint(key), numbers_of(key));
        // Its old window would accept again what came since.
        if state.unsaved.iter().any(|last| last.key == print) {
            return Err(format!(
                "what key {print} has received could not be saved yet: try again, and see the log"
            ));
        }
        if state.was_ephemeral(key) {
            return Err(format!("key {print} was used in this run already: give a new one"));
        }
        // Holds for keys that may be resumed as well, and for ephemeral ones that are not among the latest.
        if let Some(holder) = state.index.with_key(KeyDigests::of(key)) {
            let name = installed.name_at(holder);
            return Err(format!("key {print} belongs to an SA of tunnel {name}: give a new one"));
        }
        let is_known = self.store.is_known(numbers).map_err(in_store)?
            || windows::saved(self.store.as_ref(), key).map_err(in_store)?.is_some();
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

    /// Gives the SAs to the worker, first the one from the peer: nothing goes out under a new key before the
    /// other SA is there, so that a refusal leaves the tunnel's packets where they were, and no number is
    /// used twice.
    pub(super) fn install(
        &self,
        state: &mut State,
        running: &Running,
        wanted: &Checked,
    ) -> Result<Vec<RunningSa>, String> {
        let mut added = Vec::new();
        if let Some((spi, key)) = &wanted.inbound {
            let sa = self.add_inbound(running, wanted, *spi, key)?;
            register(state, running, &sa);
            added.push(sa);
        }
        if let Some((spi, key)) = &wanted.outbound {
            let sa = self.add_outbound(running, wanted, *spi, key).inspect_err(|_| {
                let taken_back = added.iter().map(|sa| self.remove(state, running, sa.direction, sa.spi));
                for error in taken_back.filter_map(Result::err) {
                    tracing::error!("taking back an SA of tunnel {}: {error}", running.tunnel.name);
                }
            })?;
            register(state, running, &sa);
            added.push(sa);
        }
        Ok(added)
    }

    fn add_inbound(
        &self,
        running: &Running,
        wanted: &Checked,
        spi: u32,
        key: &KeyMaterial,
    ) -> Result<RunningSa, String> {
        let sa = self.planned(wanted, Direction::Open, spi, key)?;
        let window = match wanted.received_before() {
            None => self.window_of(&sa, key)?,
            received => received,
        };
        let parameters = wanted.inbound_parameters(parameters_of(&sa));
        let key = self.preparers.prepare(key.clone(), Direction::Open);
        let install = InboundInstall { parameters, key, window, inherits: None, shared: None };
        self.add_one(sa, SaChange::AddInbound(running.index, Box::new(install)))
    }

    fn add_outbound(
        &self,
        running: &Running,
        wanted: &Checked,
        spi: u32,
        key: &KeyMaterial,
    ) -> Result<RunningSa, String> {
        let sa = self.planned(wanted, Direction::Seal, spi, key)?;
        let (numbers, iv_mask) = match &wanted.first {
            Some(FirstNumbers { number, iv_mask, .. }) => {
                let lease = Arc::new(Lease::until(u64::MAX));
                (NumberSource::Leased { first: *number, lease }, *iv_mask)
            }
            None => self.numbers(running, key, (wanted.worker, wanted.key_state))?,
        };
        let worker = sa.worker.map(SaWorker::new);
        let parameters = OutboundParameters { sa: parameters_of(&sa), numbers, iv_mask, worker };
        let key = self.preparers.prepare(key.clone(), Direction::Seal);
        let install = Box::new(OutboundInstall { parameters, key, peer_window: running.tunnel.peer_window });
        let is_first = || running.sas.in_use_of(sa.worker).is_none();
        let from = match &wanted.inbound {
            Some((inbound, _)) if wanted.is_waiting_for_peer => UseFrom::PeersUseOf(*inbound),
            _ if wanted.is_used_at_once || is_first() => UseFrom::Now,
            _ => UseFrom::Later,
        };
        let (numbers, is_durable) = (sa.numbers, sa.is_durable());
        let added = self.add_one(sa, SaChange::AddOutbound(running.index, install, from));
        if added.is_err() && is_durable {
            self.give_back_numbers(numbers);
        }
        added
    }

    fn add_one(&self, sa: RunningSa, change: SaChange) -> Result<RunningSa, String> {
        let mut outcome = self.change(vec![change])?;
        match outcome.pop() {
            Some(Ok(SaChanged::Added(added))) => Ok(RunningSa { added: Some(added), ..sa }),
            Some(Err(error)) => Err(error.to_string()),
            other => Err(format!("the worker answered {other:?}; this is a bug")),
        }
    }

    fn planned(
        &self,
        wanted: &Checked,
        direction: Direction,
        spi: u32,
        key: &KeyMaterial,
    ) -> Result<RunningSa, String> {
        let print = fingerprint(key);
        let unused = Usage { bytes: 0, packets: 0, since_unix_s: super::daemon::unix_s() };
        let before = match wanted.key_state {
            KeyState::Durable => self.store.usage(print).map_err(in_store)?,
            KeyState::Ephemeral => wanted.first.as_ref().map(|first| first.before),
        };
        Ok(RunningSa {
            direction,
            spi,
            worker: wanted.worker,
            suite: key.suite(),
            esn: wanted.esn,
            replay_window: wanted.replay_window,
            limits: limits_of(wanted.lifetime),
            key: print,
            numbers: numbers_of(key),
            key_digests: KeyDigests::of(key),
            key_state: wanted.key_state,
            before: before.unwrap_or(unused),
            kept_key: self.keeps_keys.then(|| Arc::new(key.clone())),
            added: None,
        })
    }

    /// The window that an SA from the peer starts with. Where a crash would leave it is durable from here on.
    fn window_of(&self, sa: &RunningSa, key: &KeyMaterial) -> Result<Option<Vec<u8>>, String> {
        if !sa.is_durable() {
            return Ok(None);
        }
        let window = windows::saved(self.store.as_ref(), key).map_err(in_store)?;
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
        (worker, key_state): (Option<u32>, KeyState),
    ) -> Result<(NumberSource, u64), String> {
        let rule = key.suite().nonce_rule();
        if key_state == KeyState::Ephemeral {
            let mask = match rule {
                // Should the key have been used before all the same, IVs do not repeat for that alone.
                NonceRule::Explicit => super::seed::random_seed().map_err(|e| e.to_string())?,
                NonceRule::Counter => 0,
            };
            return Ok((NumberSource::Ephemeral, mask));
        }
        let numbers = numbers_of(key);
        // It takes over all of its predecessor's packets at once, and needs as many numbers at a time.
        let before = running.sas.in_use_of(worker);
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
        installed: &InstalledTunnels,
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
        // A worker without one of its own sends through that of all.
        let is_way = sa.is_in_use() && (sa.worker.is_none() || running.sas.in_use_of(None).is_none());
        if !force && (is_way || is_last_inbound) {
            let (what, way) = match sa.is_outbound() {
                true => ("the SA in use", "towards"),
                false => ("the only SA", "from"),
            };
            return Err(format!(
                "{spi:#x} is {what} {way} the peer: the tunnel's packets would be dropped; replace it, or add --force"
            ));
        }
        self.remove(state, running, sa.direction, spi)?;
        let ends = self.end_without(state, installed, running, sa.direction);
        let deleted = json!({ "direction": word(sa.direction), "spi": spi });
        Ok(json!({ "tunnel": running.tunnel.name, "deleted": deleted, "tunnel_ends": ends }))
    }

    /// Removes an SA, and keeps what is to be remembered of its key. Returns the windows of an ephemeral one.
    pub(super) fn remove(
        &self,
        state: &mut State,
        running: &Running,
        way: Direction,
        spi: u32,
    ) -> Result<Option<Vec<u8>>, String> {
        let window = match self.change(vec![removal(running, way, spi)])?.pop() {
            Some(Ok(SaChanged::Removed(last))) => last.as_ref().map(windows::of_removed),
            Some(Err(_)) => return Err(unknown_spi(running, spi)),
            _ => None,
        };
        Ok(self.forget_sa(state, running, way, spi, window))
    }

    /// The worker has removed an SA, with this window. Returns that of an ephemeral key, which is not kept.
    pub(super) fn forget_sa(
        &self,
        state: &mut State,
        running: &Running,
        way: Direction,
        spi: u32,
        window: Option<Vec<u8>>,
    ) -> Option<Vec<u8>> {
        let mut sas = running.sas.lock();
        let at = sas.iter().position(|sa| sa.direction == way && sa.spi == spi)?;
        let sa = sas.remove(at);
        sas.shrink_to_fit();
        drop(sas);
        state.index.remove(running, &sa);
        state.gone.push(sa.key);
        if !sa.is_durable() {
            return window;
        }
        self.keep_what_is_known(state, running, &sa, window);
        None
    }

    pub(super) fn give_back_numbers(&self, key: Fingerprint) {
        if let Err(error) = self.leases.give_back_of(self.store.as_ref(), key) {
            tracing::error!("giving back the numbers of SAs that are gone: {error}");
        }
    }

    /// Ends the overlaps whose time has come. Returns the keys of SAs that are gone since the last call.
    pub fn end_overlaps(&self, shared: &Shared, now: Instant) -> Vec<Fingerprint> {
        let mut state = self.lock();
        let installed = shared.installed();
        if !state.unsaved.is_empty() && state.next_save.is_none_or(|next| now >= next) {
            state.next_save = Some(now + SAVE_INTERVAL);
            self.save_rest(&mut state);
        }
        for Overlap { running, leaving, .. } in state.overlaps.due(now) {
            // Others may have been removed before.
            for Leaving { direction, spi, .. } in leaving.iter().filter(|sa| sa.is_in(&running)) {
                match self.remove(&mut state, &running, *direction, *spi) {
                    Ok(_) => {
                        let (name, way) = (&running.tunnel.name, word(*direction));
                        tracing::info!("tunnel {name}: {way} SA {spi:#x} has been replaced and is gone");
                        self.end_without(&mut state, &installed, &running, *direction);
                    }
                    Err(error) => tracing::error!("tunnel {}: {error}", running.tunnel.name),
                }
            }
        }
        std::mem::take(&mut state.gone)
    }

    pub(super) fn change(&self, changes: Vec<SaChange>) -> Result<testudo_gateway::SaOutcome, String> {
        self.commander.change_sas(changes).map_err(|error| error.to_string())
    }
}

/// SAs that were added to a tunnel, and those that leave it, for the answer.
pub(super) fn in_words(tunnel: &str, added: &[RunningSa], leaving: &[Leaving]) -> Value {
    let row = |direction, spi: u32| json!({ "direction": word(direction), "spi": spi });
    json!({
        "tunnel": tunnel,
        "added": added.iter().map(|sa| row(sa.direction, sa.spi)).collect::<Vec<_>>(),
        "leaving": leaving.iter().map(|sa| row(sa.direction, sa.spi)).collect::<Vec<_>>(),
    })
}

/// Knows an SA that was added.
fn register(state: &mut State, running: &Running, sa: &RunningSa) {
    state.index.add(running, sa);
    if !sa.is_durable() {
        state.ephemeral.add(sa.numbers);
    }
    let mut sas = running.sas.lock();
    // A tunnel has two for most of its time, and room for four would be half a kilobyte more.
    sas.reserve_exact(1);
    sas.push(sa.clone());
}

fn in_store(error: StoreError) -> String {
    format!("the store: {error}")
}

fn parameters_of(sa: &RunningSa) -> SaParameters {
    let spent = usages::spent(sa.before, super::daemon::unix_s());
    SaParameters { spi: sa.spi, suite: sa.suite, esn: sa.esn, lifetime: sa.lifetime(), spent }
}

pub(super) fn removal(running: &Running, direction: Direction, spi: u32) -> SaChange {
    match direction {
        Direction::Seal => SaChange::RemoveOutbound(running.index, spi),
        Direction::Open => SaChange::RemoveInbound(running.index, spi),
    }
}

fn word(direction: Direction) -> &'static str {
    match direction {
        Direction::Seal => "outbound",
        Direction::Open => "inbound",
    }
}

/// The tunnel of a name: one of the configuration, or one that was made at run time.
///
/// # Errors
/// The message for the client, with the nearest name.
pub(super) fn find(installed: &InstalledTunnels, name: &str) -> Result<Running, String> {
    installed.named(name).map(|running| Running::clone(&running)).ok_or_else(|| {
        let names = installed.tunnels.iter().map(|running| running.tunnel.name.as_str());
        let hint = did_you_mean(name, names).map_or(String::new(), |hint| format!("; {hint}"));
        format!("there is no tunnel {name}{hint}")
    })
}

/// Whether there is a place for an SA. The worker checks the same again.
fn check_place(
    state: &State,
    running: &Running,
    (direction, worker): (Direction, Option<u32>),
    spi: u32,
) -> Result<(), InstallError> {
    let tunnel = || Arc::from(running.tunnel.name.as_str());
    let sas = running.sas.lock();
    let mut own = sas.iter().filter(|sa| sa.direction == direction);
    let of_worker = own.clone().filter(|sa| sa.worker == worker).count();
    if of_worker >= MAX_SAS_OF_WORKER || own.clone().count() >= MAX_TUNNEL_SAS {
        return Err(InstallError::BundleFull { tunnel: tunnel() });
    }
    let is_taken = match direction {
        Direction::Seal => own.any(|sa| sa.spi == spi),
        Direction::Open => state.index.with_inbound_spi(running.tunnel.protocol, spi).is_some(),
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
    let is_vpe = running.tunnel.protocol == testudo_ipsec::IpsecProtocol::Vpe;
    let wanted = match wanted {
        Some(suite) if is_vpe => Some(suite.for_vpe().ok_or_else(|| format!("{suite} is no suite of VPE"))?),
        other => other,
    };
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

#[cfg(test)]
pub(super) mod tests;
