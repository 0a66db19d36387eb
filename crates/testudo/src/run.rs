//! `testudo run`.

use crate::cli::ConfigArgs;
use crate::exit::{Failure, Kind, failure};
use crate::ports::Opened;
use crate::threading::Room;
use crate::{engines, ports, threading};
use std::io::IsTerminal;
use std::sync::Arc;
use testudo_control::config::{Configuration, KnownAnswers, LogLevel};
use testudo_control::service::daemon::{self, DaemonError, Parts};
use testudo_control::service::signals::EarlySignals;
use testudo_control::service::system_calls::Needs;
use testudo_control::service::worker_count::{Spreader, WorkerCount};
use testudo_control::service::worker_threads::{Senders, WorkerParts};
use testudo_control::service::{negotiation, privileges, system_calls};
use testudo_control::{Store, StoreError};
use testudo_crypto::Engine;
use testudo_gateway::{Candidate, EngineReport, choose_engines, same_engines};
use tracing::level_filters::LevelFilter;

/// Runs a gateway until it is stopped.
pub fn run(args: &ConfigArgs) -> Result<(), Failure> {
    let signals = EarlySignals::catch().map_err(failure(Kind::Other))?;
    let environment = |name: &str| std::env::var(name).ok();
    let loaded = Configuration::load(&args.config, KnownAnswers::Refuse, &environment)
        .map_err(|e| Failure::new(Kind::Configuration, format!("the configuration has errors\n{e}")))?;
    start_log(loaded.configuration.gateway.log);
    let configuration = &loaded.configuration;
    let store = Store::open(&configuration.gateway.state).map_err(|e| explain_store(&e, args))?;
    let candidates = engines::candidates(&configuration.gateway.engines, configuration);
    let order = engines::order(&configuration.gateway);
    let (engines, engine_reports) = choose_engines(&candidates, order).map_err(failure(Kind::Engine))?;
    for report in &engine_reports {
        let use_ = if report.in_use { "in use" } else { "not used" };
        tracing::info!("engine {} {use_}: {}", report.name, report.detail);
    }
    let plan = threading::plan(&configuration.threading, &engine_reports, Room::of(configuration));
    let threading = (&configuration.threading, configuration.gateway.engines.as_slice());
    let (engines, chooses) = threading::apart(engines, threading, &plan);
    let mut opened = ports::open(configuration, plan.transmits())?;
    let mut workers = workers(&mut opened, engines, &candidates, &engine_reports)?;
    if let Some(worker) = workers.first_mut() {
        let processor = threading.0.processor_of_transmit(threading.1);
        worker.senders = opened.senders.take().map(|ports| Senders { ports, processor });
        worker.chooses = chooses;
    }
    let changers = opened.changers(configuration)?;
    // Before privileges are given up: the socket may be another user's.
    let xfrm = configuration.ike.as_ref().map(negotiation::bind).transpose().map_err(failure(Kind::Port))?;
    privileges::drop_privileges().map_err(failure(Kind::Port))?;
    if configuration.gateway.seccomp {
        filter_system_calls(opened.needs());
    }
    opened.start_background()?;
    let most = workers.len();
    let spread =
        opened.spread.map(|mut spread| -> Spreader { Box::new(move |workers| spread.over(workers)) });
    if let Err(why) = &spread
        && opened.running > configuration.gateway.workers.count(opened.running)
    {
        tracing::warn!("all {most} workers get packets, since none can be parked: {why}");
    }
    let parts = Parts {
        signals,
        version: env!("CARGO_PKG_VERSION"),
        path: args.config.clone(),
        store: Arc::new(store),
        workers,
        worker_count: WorkerCount::new(opened.running, most, spread),
        port_details: opened.details,
        engine_reports,
        threads: plan.threads,
        change_routes: changers.change_routes,
        edit_routes: changers.edit_routes,
        xfrm: xfrm.zip(changers.negotiated),
        keep_interface: changers.keep_interface,
        loaded,
    };
    let result = daemon::run(parts).map_err(|e| Failure::new(kind_of(&e), e));
    changers.table.into_iter().for_each(|table| table.close());
    result
}

/// What each worker is made of. The first has `engines`, and that of the NIC before them.
fn workers(
    opened: &mut Opened,
    engines: Vec<Box<dyn Engine>>,
    candidates: &[Candidate],
    reports: &[EngineReport],
) -> Result<Vec<WorkerParts>, Failure> {
    let mut first = Some(engines);
    let make = |(role, ports, pool)| {
        let engines = match first.take() {
            Some(engines) => engines,
            None => same_engines(candidates, reports).map_err(failure(Kind::Engine))?,
        };
        Ok(WorkerParts { role, ports, pool, engines, senders: None, chooses: None })
    };
    let mut workers = opened.queues.drain(..).map(make).collect::<Result<Vec<_>, Failure>>()?;
    if let (Some(nic), Some(first)) = (&opened.nic, workers.first_mut()) {
        let engine = nic.engine();
        tracing::info!("engine {} in use: {}", engine.name(), engine.description());
        first.engines.insert(0, Box::new(engine));
    }
    Ok(workers)
}

/// A second line of defence; where the kernel does not allow it, the gateway runs without.
fn filter_system_calls(needs: Needs) {
    if let Err(error) = system_calls::filter(needs) {
        tracing::warn!("system calls are not filtered: {error}");
    }
}

fn explain_store(error: &StoreError, args: &ConfigArgs) -> Failure {
    match error {
        StoreError::Missing(_) => {
            Failure::new(Kind::State, format!("{error}: `testudo init {}`", args.config.display()))
        }
        _ => Failure::new(kind_of_store(error), error),
    }
}

/// A full disk may be freed, so systemd should retry; it does not after damaged state.
fn kind_of_store(error: &StoreError) -> Kind {
    if error.is_disk_full() { Kind::Other } else { Kind::State }
}

fn kind_of(error: &DaemonError) -> Kind {
    match error {
        DaemonError::Store(error) => kind_of_store(error),
        DaemonError::Bind(_) | DaemonError::Metrics(_) | DaemonError::Dashboard(_) => Kind::Port,
        DaemonError::Tunnels(_) => Kind::Configuration,
        // A failure at run time may be gone after a restart: it is not a fault of the configuration.
        DaemonError::Serve(_)
        | DaemonError::System(_)
        | DaemonError::Worker(_)
        | DaemonError::Panicked(_) => Kind::Other,
    }
}

/// Logs go to standard error. systemd's journal adds the time; on a terminal the log does.
fn start_log(level: LogLevel) {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    let builder = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        // It would tell standard error, the one place that has just failed, and panic there: a full disk or a
        // reader that is gone must not end the gateway.
        .log_internal_errors(false);
    if std::env::var_os("JOURNAL_STREAM").is_some() { builder.without_time().init() } else { builder.init() }
}
