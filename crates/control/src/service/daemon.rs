//! A running gateway: starts the workers, keeps them supplied, reloads, and ends it cleanly.

use super::api::{BindError, ControlSocket, Shared};
use super::audit_log::AuditLog;
use super::dashboard::{DashboardError, DashboardSocket};
use super::ending::forget_peers;
use super::event_log::{EventLog, Line};
use super::fault::Fault;
use super::installed::{Changes, InstalledTunnels, Numbers};
use super::key_export;
use super::leases::Leases;
use super::metrics::{MetricsError, MetricsSocket};
use super::negotiated::{NegotiatedRoutes, Settings};
use super::negotiation::Negotiation;
use super::news::{LostNotices, News};
use super::offload;
use super::policies::{self, Changer, Made};
use super::port_details::BothDetails;
use super::reload_checks::{
    bypasses, refuse_bypass, refuse_ephemeral_keys, refuse_what_needs_a_restart, warn_of_replaced_sas,
    warn_of_undone_policies,
};
use super::report::Facts;
use super::sa_control::SaControl;
use super::saver::Saver;
use super::seed::random_seed;
use super::signals::EarlySignals;
use super::supplier::{SUPPLIER_THREAD, Supplier};
use super::threads::Threads;
use super::usages;
use super::watchdog::Watchdog;
use super::worker_count::{self, WorkerCount};
use super::worker_sas;
use super::worker_threads::{WorkerParts, WorkerThreads, choose_threads, with_senders};
use super::xfrm::XfrmSocket;
use crate::config::{AuditTarget, Configuration, Ike, KnownAnswers, Loaded, SpreadInbound};
use crate::firewall::RouteChange;
use crate::processors::{self, Processors};
use crate::{Fingerprint, LeaseStore, StoreError};
use sd_notify::NotifyState;
use serde_json::{Value, json};
use signal_hook::consts::SIGHUP;
use std::borrow::Cow;
use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use testudo_gateway::{
    AllCounters, Clock, Commander, CommanderError, EngineReport, KeyPreparers, Notice, ServeError,
    SystemClock, Withdrawal, WithdrawalReason, Worker,
};
use testudo_ipsec::{Event, EventKind, Moment};

/// How often the control thread checks whether anything must be saved, and whether the other threads are
/// alive.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Capacity of the event queue to the control thread. Events beyond it are dropped: the worker does not wait.
const MAX_NEWS: usize = 1024;

/// Why a gateway could not start, or why it ended.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The durable store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The control socket.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The metrics address.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// The dashboard's address.
    #[error(transparent)]
    Dashboard(#[from] DashboardError),
    /// The data path.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// Tunnels that could not be installed.
    #[error("{}", .0.join("; "))]
    Tunnels(Vec<String>),
    /// The system.
    #[error("{0}")]
    System(#[from] io::Error),
    /// The worker.
    #[error(transparent)]
    Worker(#[from] CommanderError),
    /// This thread panicked, which is a bug.
    #[error("the thread {0} ended in a panic; this is a bug, please report it with the log")]
    Panicked(Cow<'static, str>),
}

/// Changes the host's routes into the tunnels for a new configuration; returns failures as text.
pub type RouteChanger = Box<dyn FnMut(&Configuration, &Configuration) -> Result<(), String>>;

/// Makes single changes of these routes, for a configuration that has just been changed to this one. New ones
/// may lead to a network with this outer address of a peer. Returns failures as text.
pub type RouteEditor = Box<dyn Fn(&Configuration, &[RouteChange], Option<IpAddr>) -> Result<(), String>>;

/// Keeps the TUN interface as the configuration in force wants it. Called several times a second, so it must
/// not block.
pub type InterfaceKeeper = Box<dyn FnMut(&Configuration)>;

/// Everything a gateway starts with, opened and checked by the program.
pub struct Parts {
    /// Signals since the program started.
    pub signals: EarlySignals,
    /// Version of the program.
    pub version: &'static str,
    /// The configuration file, which is read again on SIGHUP.
    pub path: PathBuf,
    /// Its content.
    pub loaded: Loaded,
    /// The store of sequence numbers and replay windows.
    pub store: Arc<dyn LeaseStore>,
    /// The workers, at least one, each with its ports.
    pub workers: Vec<WorkerParts>,
    /// How many of them get packets.
    pub worker_count: WorkerCount,
    /// What the ports' devices tell.
    pub port_details: BothDetails,
    /// The start-up report of each engine.
    pub engine_reports: Vec<EngineReport>,
    /// Which threads packets pass.
    pub threads: Threads,
    /// Where key exchange daemons connect, as `[ike]` says, and routes to what they negotiate.
    pub xfrm: Option<(XfrmSocket, Arc<dyn NegotiatedRoutes>)>,
    /// Changes routes on a reload.
    pub change_routes: RouteChanger,
    /// Changes single routes when a policy changes.
    pub edit_routes: RouteEditor,
    /// Maintains the interface.
    pub keep_interface: InterfaceKeeper,
}

/// Runs a gateway until SIGTERM or SIGINT.
///
/// # Errors
/// [`DaemonError`] if it cannot start or cannot continue.
pub fn run(parts: Parts) -> Result<(), DaemonError> {
    let (sender, news) = sync_channel(MAX_NEWS);
    parts.signals.watch(sender.clone())?;
    let (leases, clock) = (Arc::new(Leases::default()), SystemClock::default());
    let configuration = parts.loaded.configuration.clone();
    let mut workers = make_workers(parts.workers, &configuration)?;
    let audit = AuditLog::open(&configuration.gateway.audit)?;
    let counters = AllCounters::of(workers.iter().map(Worker::counters));
    let (engines, ports) = (parts.engine_reports, parts.port_details);
    let (version, started) = (parts.version, Instant::now());
    let threads = parts.threads;
    tracing::info!("threading: {} ({})", threads.model, threads.why(counters.threads()));
    let facts = Facts { version, started, clock, engines, ports, counters, threads };
    let empty = InstalledTunnels::empty(configuration.clone());
    let shared = Arc::new(Shared {
        facts,
        installed: Mutex::new(Arc::new(empty)),
        peers: Mutex::default(),
        sas: OnceLock::new(),
        changer: OnceLock::from(changer(sender.clone())),
    });
    let socket = ControlSocket::bind(&configuration.gateway.control)?;
    socket.serve(Arc::clone(&shared))?;
    serve_pages(&configuration, &shared)?;
    let supplier = Supplier::start(Arc::clone(&leases), Arc::clone(&parts.store))?;
    let (commander, inboxes) = Commander::channels(workers.len())?;
    let kept = parts.loaded.fingerprints();
    // Sequence numbers come last: a start that fails again and again must not use them up.
    if let Err(e) = install(&mut workers, &shared, parts.loaded, &leases, parts.store.as_ref(), clock.now()) {
        drop(workers);
        leases.give_back(parts.store.as_ref())?;
        return Err(e);
    }
    let (preparers, lost) = (preparers(&workers), LostNotices::default());
    let workers: Vec<_> = workers.into_iter().zip(inboxes).collect();
    let places = processors::places(&configuration, workers.len());
    let threads = WorkerThreads::start(workers, &places, clock, &sender, &lost)?;
    let (leased, store) = (Arc::clone(&leases), Arc::clone(&parts.store));
    let sas = SaControl::new(commander.clone(), leased, store, preparers.clone(), &shared.installed());
    let _ = shared.sas.set(sas); // Nobody else sets it.
    let negotiation = negotiate(&parts.xfrm, &configuration, &shared)?;
    tell_systemd(&[NotifyState::Ready]);
    tracing::info!("ready: {} tunnels", shared.installed().tunnels.len());
    warn(&configuration);
    retire(parts.store.as_ref(), &kept);
    let daemon = Daemon {
        path: parts.path,
        store: parts.store,
        worker_count: parts.worker_count,
        preparers,
        change_routes: parts.change_routes,
        edit_routes: parts.edit_routes,
        keep_interface: parts.keep_interface,
        leases,
        supplier,
        saver: Saver::new(),
        watchdog: Watchdog::from_environment(),
        events: EventLog::default(),
        audit,
        saving: Fault::default(),
        may_bypass: bypasses(&configuration),
        policy_changes: 0,
        negotiation,
        lost,
        shared,
        commander,
        threads,
    };
    daemon.run(&news)
}

/// The workers, without tunnels.
fn make_workers(parts: Vec<WorkerParts>, configuration: &Configuration) -> io::Result<Vec<Worker>> {
    // Keepalives and dummies are sent where packets are.
    let leader = parts.iter().position(|parts| parts.role.encrypts()).unwrap_or(0);
    let mut suites = Vec::new();
    for tunnel in &configuration.tunnels {
        if !suites.contains(&tunnel.suite) {
            suites.push(tunnel.suite);
        }
    }
    // Engines are the same for all workers, and measured by one.
    let mut costs = None;
    let make = |(number, parts): (usize, WorkerParts)| {
        let WorkerParts { role, ports, pool, mut engines, senders, chooses } = parts;
        let transmit = (senders.is_some() && chooses.is_some()).then(Arc::default);
        let ports = with_senders(ports, senders, transmit.clone())?;
        configuration.scheduler.placement.arrange(&mut engines);
        let mut worker = Worker::new(ports, pool, engines, Box::default());
        worker.set_role(role);
        chooses.into_iter().for_each(|from| choose_threads(&mut worker, from, transmit.clone()));
        worker.seed_identifications(random_seed()?);
        worker.set_scheduler(&configuration.scheduler);
        match &costs {
            None => costs = Some(worker.measure_engines(&suites)),
            Some(costs) => worker.know_engines(costs),
        }
        worker.set_offload_mode(offload::mode(configuration));
        worker.set_audit(configuration.gateway.audit != AuditTarget::Off);
        if number != leader {
            worker.follow();
        }
        if configuration.gateway.spread_inbound == SpreadInbound::InOrder {
            worker.release_in_order();
        }
        Ok(worker)
    };
    parts.into_iter().enumerate().map(make).collect()
}

/// What expands keys for all workers, whose engines are the same.
fn preparers(workers: &[Worker]) -> KeyPreparers {
    let first = workers.first().map(Worker::preparers);
    first.unwrap_or_default().for_workers(workers.len())
}

/// Serves key exchange daemons, where the configuration has them.
fn negotiate(
    xfrm: &Option<(XfrmSocket, Arc<dyn NegotiatedRoutes>)>,
    configuration: &Configuration,
    shared: &Arc<Shared>,
) -> io::Result<Option<Negotiation>> {
    let (Some((socket, routes)), Some(ike)) = (xfrm, &configuration.ike) else { return Ok(None) };
    let Ike { allow_legacy, udp_port, .. } = *ike;
    let processors = Processors::of_this_process().of_machine();
    let processors = u32::try_from(processors).unwrap_or(u32::MAX);
    let settings = Settings { allow_legacy, may_bypass: bypasses(configuration), udp_port, processors };
    Negotiation::start(socket, ike, shared, settings, Arc::clone(routes)).map(Some)
}

/// Hands changes that clients ask for to the main thread, which takes them between its other duties.
fn changer(main: SyncSender<News>) -> Changer {
    Changer::new(move |request| main.try_send(News::Change(request)).is_ok())
}

/// Installs the tunnels of `loaded`. The keys are erased on return: kept for the gateway's lifetime, they
/// would survive their replacement and removal.
fn install(
    workers: &mut [Worker],
    shared: &Shared,
    loaded: Loaded,
    leases: &Leases,
    store: &dyn LeaseStore,
    now: Moment,
) -> Result<(), DaemonError> {
    let preparers = &preparers(workers);
    let numbers = Numbers::Leased { store, leases, unix_s: unix_s(), preparers };
    let (update, mut installed, _) = shared.installed().plan(&loaded, &numbers)?;
    let failed = installed.note(Worker::update_all(workers, update, now));
    shared.replace_installed(installed);
    if failed.is_empty() { Ok(()) } else { Err(DaemonError::Tunnels(failed)) }
}

/// Retires the keys that the configuration has no more. They may come back, and go on where they were.
fn retire(store: &dyn LeaseStore, kept: &HashSet<Fingerprint>) {
    match store.retire(kept) {
        Ok(0) => {}
        Ok(keys) => tracing::info!("the store has retired {keys} keys that are not configured"),
        Err(e) => tracing::error!("retiring keys that are not configured: {e}"),
    }
}

/// Metrics and the dashboard, as the configuration has them.
fn serve_pages(configuration: &Configuration, shared: &Arc<Shared>) -> Result<(), DaemonError> {
    if let Some(address) = configuration.gateway.metrics {
        let socket = MetricsSocket::bind(address)?;
        tracing::info!("metrics at http://{}/metrics", socket.address());
        socket.serve(Arc::clone(shared))?;
    }
    if let Some(address) = configuration.gateway.dashboard {
        let socket = DashboardSocket::bind(address)?;
        tracing::info!("dashboard at http://{}/", socket.address());
        socket.serve(Arc::clone(shared))?;
    }
    Ok(())
}

fn tell_systemd(states: &[NotifyState<'_>]) {
    // Without systemd there is no one to notify.
    let _ = sd_notify::notify(states);
}

struct Daemon {
    path: PathBuf,
    store: Arc<dyn LeaseStore>,
    worker_count: WorkerCount,
    /// Expands keys for the workers' engines.
    preparers: KeyPreparers,
    change_routes: RouteChanger,
    edit_routes: RouteEditor,
    keep_interface: InterfaceKeeper,
    leases: Arc<Leases>,
    supplier: Supplier,
    saver: Saver,
    watchdog: Watchdog,
    events: EventLog,
    audit: AuditLog,
    /// Saving windows and usages; fails on a full disk.
    saving: Fault,
    /// Whether the port was opened for packets that pass in clear.
    may_bypass: bool,
    /// Changes of policies since the configuration was read.
    policy_changes: u64,
    /// Tells key exchange daemons.
    negotiation: Option<Negotiation>,
    /// What the worker could not tell.
    lost: LostNotices,
    shared: Arc<Shared>,
    commander: Commander,
    threads: WorkerThreads,
}

/// Seconds since 1970 by the host's clock, which may be wrong; 0 if it is before 1970.
pub(super) fn unix_s() -> u64 {
    unix_time().as_secs()
}

/// The same to the nanosecond.
pub(super) fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Logs the settings that are valid but should be deliberate.
fn warn(configuration: &Configuration) {
    let of_workers = processors::warnings(configuration);
    configuration.warnings().iter().chain(&of_workers).for_each(|line| tracing::warn!("{line}"));
}

impl Daemon {
    fn run(mut self, news: &Receiver<News>) -> Result<(), DaemonError> {
        self.worker_count.note(&self.shared.facts.counters);
        // Whether tunnels of flows are left to end at once.
        let mut ends_more = false;
        loop {
            let patience = if ends_more { Duration::ZERO } else { LOOK_INTERVAL };
            match news.recv_timeout(patience) {
                Ok(News::Signal(SIGHUP)) => self.reload(),
                Ok(News::Signal(_)) => return self.stop(),
                // A client that has gone hears nothing.
                Ok(News::Change(change)) => drop(change.reply.try_send(self.change(&change.request))),
                Ok(News::Notice(Notice::Tunnel(event))) => self.log(event),
                Ok(News::Notice(Notice::Engine(withdrawal))) => log_withdrawal(withdrawal),
                Ok(News::Notice(Notice::Offload(failure))) => offload::log(&failure),
                Ok(News::Notice(Notice::Audit(record))) => self.audit.write(&record),
                Ok(News::WorkerEnded) | Err(RecvTimeoutError::Disconnected) => return self.stop(),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.threads.has_ended() || self.supplier.is_finished() {
                return self.stop();
            }
            (self.keep_interface)(&self.shared.installed().configuration);
            self.shared.facts.counters.look(Instant::now());
            self.look_for_lost();
            self.log_what_is_due();
            self.end_overlaps();
            ends_more = self.end_flows();
            self.save();
            if self.watchdog.is_alive(&self.commander, Instant::now()) {
                tell_systemd(&[NotifyState::Watchdog]);
            }
        }
    }

    /// Removes the SAs whose successors have been in use for long enough.
    fn end_overlaps(&mut self) {
        let gone = self.shared.sas.get().map(|sas| sas.end_overlaps(&self.shared, Instant::now()));
        self.saver.forget(&gone.unwrap_or_default());
    }

    /// Ends a part of the tunnels of flows that are to end; `true` if there are more.
    fn end_flows(&mut self) -> bool {
        let Some(sas) = self.shared.sas.get() else { return false };
        // Before the configuration is looked at: a change may be on its way.
        let mut state = sas.lock();
        let has_more = sas.end_part(&mut state, &self.shared.installed());
        drop(state);
        forget_peers(&self.shared, &mut self.events);
        has_more
    }

    fn save(&mut self) {
        const WHAT: &str = "saving replay windows and what keys were used for";
        let now = Instant::now();
        match self.saver.save_due(&self.shared, &self.commander, self.store.as_ref(), now) {
            None => {}
            Some(Ok(())) if self.saving.ends() => tracing::info!("{WHAT}: it works again"),
            Some(Ok(())) => {}
            Some(Err(e)) => {
                if let Some(untold) = self.saving.occurs(Instant::now()) {
                    tracing::error!("{WHAT}: {e}; trying again{untold}");
                }
            }
        }
    }

    fn reload(&mut self) {
        let monotonic = NotifyState::monotonic_usec_now();
        tell_systemd(&[NotifyState::Reloading]);
        if let Ok(now) = monotonic {
            tell_systemd(&[now]);
        }
        match self.try_reload() {
            Ok(c) => tracing::info!(
                "reloaded: {} tunnels go on untouched, {} started, {} removed",
                c.kept,
                c.started,
                c.removed
            ),
            Err(e) => tracing::error!("reload failed, everything goes on as before: {e}"),
        }
        tell_systemd(&[NotifyState::Ready]);
    }

    /// Changes a policy, as a client asked for.
    fn change(&mut self, request: &Value) -> Result<Value, String> {
        if request["verb"] == key_export::NOTE {
            self.audit.write_note(request);
            return Ok(Value::Null);
        }
        if request["verb"] == worker_count::SET {
            let changed = self.worker_count.change(request, &self.commander, &self.shared.facts.counters);
            return changed.map(|changed| worker_sas::with_warnings(&self.shared.installed(), changed));
        }
        let made = policies::make(&self.shared, &self.commander, request, self.may_bypass)?;
        let Made { said, ends, routes } = made;
        let installed = self.shared.installed();
        // The host's firewall follows by the client's hand: this process may run no program.
        let mut answer = json!({
            "said": said,
            "interface": installed.configuration.protected.name,
            "network_namespace": network_namespace(),
            "tunnels_that_end": ends,
        });
        let edited = routes.map_err(|e| e.to_string()).and_then(|routes| {
            let new =
                routes.iter().filter(|change| change.before.is_none()).filter_map(|change| change.after);
            let peer = new.flat_map(|route| installed.book.index.peers_in(route.network)).next();
            (self.edit_routes)(&installed.configuration, &routes, peer.map(|(peer, _)| peer))
        });
        if let Err(e) = edited {
            tracing::error!("routes: {e}");
            answer["warning"] = json!(format!("routes: {e}"));
        }
        match ends {
            0 => tracing::info!("{said}"),
            ends => tracing::info!("{said}; tunnels of flows that end: {ends}"),
        }
        self.policy_changes += 1;
        Ok(answer)
    }

    fn try_reload(&mut self) -> Result<Changes, String> {
        let environment = |name: &str| std::env::var(name).ok();
        let loaded = Configuration::load(&self.path, KnownAnswers::Refuse, &environment)
            .map_err(|e| format!("\n{e}"))?;
        let shared = Arc::clone(&self.shared);
        // No SA changes meanwhile.
        let mut sas = shared.sas.get().map(SaControl::lock);
        let old = self.shared.installed();
        if let (Some(control), Some(state)) = (shared.sas.get(), &mut sas) {
            refuse_ephemeral_keys(state, &loaded)?;
            control.save_rest(state);
            state.check(&old, &loaded)?;
        }
        refuse_what_needs_a_restart(&old.configuration, &loaded.configuration)?;
        let workers = self.worker_count.of_reload(&old.configuration, &loaded.configuration)?;
        refuse_bypass(self.may_bypass, &loaded.configuration)?;
        // A key that is removed and returns later starts from the ceiling that is saved now.
        self.save_all(&old)?;
        let (store, leases, preparers) = (self.store.as_ref(), &self.leases, &self.preparers);
        let numbers = Numbers::Leased { store, leases, unix_s: unix_s(), preparers };
        let (update, mut installed, changes) = old.plan(&loaded, &numbers).map_err(|e| e.to_string())?;
        let gone: Vec<_> = update.remove.iter().filter_map(|index| old.populated.at(*index)).collect();
        let outcome = self.commander.update(update).map_err(|e| e.to_string())?;
        for error in installed.note(outcome) {
            tracing::error!("{error}");
        }
        self.save_what_was_removed(&old);
        usages::carry_over(&old, &installed);
        if let Err(e) = (self.change_routes)(&old.configuration, &installed.configuration) {
            tracing::error!("routes: {e}");
        }
        if let Some(sas) = &mut sas {
            sas.turn_over(&old, &installed, &gone);
        }
        // An index that is free, or belongs to another tunnel now, says nothing about its peer.
        let kept: HashSet<_> = old.tunnels.iter().map(|t| t.sas.id()).collect();
        let kept = installed.tunnels.iter().filter(|t| kept.contains(&t.sas.id()));
        let kept: HashSet<_> = kept.map(|t| t.index).chain(installed.indices_at_run_time()).collect();
        self.shared.peers().retain(|index, _| kept.contains(index));
        self.events.keep(&kept);
        self.saver.keep(&installed.keys());
        self.shared.replace_installed(installed);
        warn_of_undone_policies(std::mem::take(&mut self.policy_changes));
        if let Err(e) = self.leases.give_back(self.store.as_ref()) {
            tracing::error!("giving back the numbers of tunnels that are gone: {e}");
        }
        // Keys that were added at run time are in use, though no configuration has them.
        let mut kept = loaded.fingerprints();
        kept.extend(self.shared.installed().keys());
        retire(self.store.as_ref(), &kept);
        if let Some(workers) = workers {
            let counters = &self.shared.facts.counters;
            if let Err(e) = self.worker_count.set(workers, &self.commander, counters) {
                tracing::error!("workers: {e}");
            }
        }
        warn(&loaded.configuration);
        warn_of_replaced_sas(&self.shared.installed());
        Ok(changes)
    }

    fn save_all(&mut self, installed: &InstalledTunnels) -> Result<(), String> {
        let all = self.saver.all(installed);
        let windows = self.commander.save_windows(all.sas()).map_err(|e| e.to_string())?;
        self.saver.save(self.store.as_ref(), &all, &windows).map_err(|e| e.to_string())
    }

    /// Saves the final counts of the tunnels of `old`, which has been replaced. Their windows are gone with
    /// them.
    fn save_what_was_removed(&mut self, old: &InstalledTunnels) {
        let usages = self.saver.all(old);
        if let Err(e) = self.saver.save(self.store.as_ref(), &usages, &[]) {
            tracing::error!("saving what removed keys were used for: {e}");
        }
    }

    fn stop(mut self) -> Result<(), DaemonError> {
        tell_systemd(&[NotifyState::Stopping]);
        let shared = Arc::clone(&self.shared);
        // A change in progress ends first, with what it saves, and none begins.
        let mut no_changes = shared.sas.get().map(SaControl::lock);
        if let (Some(sas), Some(state)) = (shared.sas.get(), &mut no_changes) {
            sas.save_rest(state);
        }
        self.commander.stop()?;
        let workers = self.threads.join()?;
        // While the worker finished what was in flight, it may have needed numbers.
        let supplied = self.supplier.end().map_err(|_| DaemonError::Panicked(SUPPLIER_THREAD.into()));
        let all = self.saver.last(&self.shared.installed());
        let windows = all.sas().into_iter().filter_map(|sa| Some((sa, workers.save_window(sa)?)));
        let windows: Vec<_> = windows.collect();
        self.saver.save(self.store.as_ref(), &all, &windows)?;
        // No numbers are taken any more: the next start continues with the first unused one.
        workers.tell_books();
        let result = workers.end();
        self.leases.give_back(self.store.as_ref())?;
        result?;
        supplied?;
        tracing::info!("ended");
        Ok(())
    }

    /// Records an event, and writes its log line, if any.
    fn log(&mut self, event: Event) {
        if let Err(e) = self.commander.spread(event) {
            tracing::warn!("the workers do not know of each other what one has learned: {e}");
        }
        if let EventKind::PeerMoved { address, port, .. } = event.kind {
            self.shared.peers().insert(event.tunnel, SocketAddr::new(address, port));
        }
        let (installed, now) = (self.shared.installed(), Instant::now());
        if let Some(negotiation) = &mut self.negotiation
            && installed.negotiated.at(event.tunnel).is_some()
        {
            negotiation.tell(event);
            // The daemon sees to it, and says so in a log of its own.
            if !matches!(event.kind, EventKind::PeerMoved { .. } | EventKind::PathMtu { .. }) {
                return;
            }
        }
        if let EventKind::Acquire(acquire) = event.kind {
            // A policy that has just gone wants nothing.
            let number = installed.book.number_of(acquire.policy);
            let policy = number.and_then(|number| installed.book.populating(number));
            if !policy.is_some_and(|policy| installed.populated.note_wanted(policy, &acquire, now)) {
                return;
            }
        }
        let tunnel = installed.at(event.tunnel);
        let find = || tunnel.as_ref().map(|running| &running.tunnel);
        self.write(|events| events.note(event, find, now));
        let stops =
            matches!(event.kind, EventKind::HardLifetime { .. } | EventKind::SequenceExhausted { .. });
        if let Some(sas) = self.shared.sas.get().filter(|_| stops) {
            sas.has_stopped(&installed, event.tunnel);
        }
    }

    /// If events were lost, the ends of SAs may be among them.
    fn look_for_lost(&mut self) {
        let events = self.lost.take();
        if events == 0 {
            return;
        }
        self.write(|log| log.lost(events, Instant::now()));
        if let Some(sas) = self.shared.sas.get() {
            sas.any_may_have_stopped();
        }
        self.negotiation.iter_mut().for_each(Negotiation::has_lost);
    }

    fn log_what_is_due(&mut self) {
        let installed = self.shared.installed();
        let tunnel = |index| installed.tunnels.iter().find(|t| t.index == index).map(|t| &t.tunnel);
        self.write(|events| events.due(Instant::now(), tunnel));
    }

    fn write<L: IntoIterator<Item = Line>>(&mut self, lines: impl FnOnce(&mut EventLog) -> L) {
        lines(&mut self.events).into_iter().for_each(|line| line.write());
    }
}

fn log_withdrawal(Withdrawal { engine, packets, reason }: Withdrawal) {
    match reason {
        WithdrawalReason::KeptPackets => tracing::error!(
            "engine {engine} has kept packets for too long and is out of service until a restart: {packets} are lost, tunnels go on with the next engine; \
             see whether its device or library is in order"
        ),
        WithdrawalReason::Failed => tracing::error!(
            "engine {engine} has failed and is out of service until a restart: tunnels go on with the next engine; \
             see whether its device or library is in order"
        ),
    }
}

/// What tells the network namespace of this process from others, as the kernel names it: `net:[4026531840]`.
#[must_use]
pub fn network_namespace() -> Option<String> {
    let link = rustix::fs::readlinkat(rustix::fs::CWD, "/proc/self/ns/net", Vec::new()).ok()?;
    link.into_string().ok()
}

/// Reads the path of the control socket from a configuration, without its keys; for clients.
///
/// # Errors
/// The errors in the configuration.
pub fn control_path(path: &Path) -> Result<PathBuf, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let configuration = Configuration::parse(&text, &path.to_string_lossy()).map_err(|e| e.to_string())?;
    Ok(configuration.gateway.control)
}
