//! Metrics for Prometheus, over HTTP on a loopback address.

use super::api::Shared;
use super::daemon::WORKER_THREAD;
use super::installed::Running;
use super::worker_time::worker_time;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use testudo_gateway::PortSnapshot;
use testudo_ipsec::SaCounters;
use testudo_packet::{DropReason, MEASURED_OF, PortCounters, Stage, StageTimes, ticks};

/// The metrics address could not be used.
#[derive(Debug, thiserror::Error)]
#[error("metrics on {address}: {source}")]
pub struct MetricsError {
    address: SocketAddr,
    #[source]
    source: std::io::Error,
}

/// Serves `http://ADDRESS/metrics` on a thread of its own until the process ends. Returns the address that was bound.
///
/// # Errors
/// [`MetricsError`] if the address is taken or the system refuses.
pub fn serve(address: SocketAddr, shared: Arc<Shared>) -> Result<SocketAddr, MetricsError> {
    let error = |source| MetricsError { address, source };
    let listener = TcpListener::bind(address).map_err(error)?;
    listener.set_nonblocking(true).map_err(error)?;
    let bound = listener.local_addr().map_err(error)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(error)?;
    let app = Router::new().route("/metrics", get(scrape)).with_state(shared);
    std::thread::Builder::new()
        .name("metrics".into())
        .spawn(move || {
            runtime.block_on(async move {
                // Without the server the gateway goes on: nobody can be told but the log, and axum's accept loop does not end by itself.
                if let Ok(listener) = tokio::net::TcpListener::from_std(listener) {
                    let _ = axum::serve(listener, app).await;
                }
            });
        })
        .map_err(error)?;
    Ok(bound)
}

async fn scrape(State(shared): State<Arc<Shared>>) -> impl IntoResponse {
    match render(&shared) {
        Ok(body) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            (StatusCode::OK, [(header::CONTENT_TYPE, kind)], body)
        }
        Err(fmt::Error) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            [(header::CONTENT_TYPE, "text/plain")],
            "metrics failed".to_owned(),
        ),
    }
}

/// All metrics as text.
///
/// # Errors
/// Formatting failed.
pub fn render(shared: &Arc<Shared>) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("testudo");
    registry.register_collector(Box::new(Gateway(Arc::clone(shared))));
    let mut body = String::new();
    text::encode(&mut body, &registry)?;
    Ok(body)
}

#[derive(Debug)]
struct Gateway(Arc<Shared>);

/// One metric over all SAs: name, help text, value.
type SaMetric = (&'static str, &'static str, fn(&SaCounters) -> u64);

const SA_METRICS: [SaMetric; 3] = [
    ("sa_packets", "Packets that passed an SA", SaCounters::packets),
    ("sa_bytes", "Inner bytes that passed an SA", SaCounters::bytes),
    ("sa_sequence", "Outbound: sequence number last used; inbound: highest received", SaCounters::sequence),
];

/// One metric over both ports: name, help text, value.
type PortMetric = (&'static str, &'static str, fn(&PortCounters) -> u64);

const PORT_METRICS: [PortMetric; 6] = [
    ("port_rx_packets", "Packets that a port received", |c| c.rx_packets),
    ("port_rx_bytes", "IP bytes that a port received", |c| c.rx_bytes),
    ("port_tx_packets", "Packets that a port sent", |c| c.tx_packets),
    ("port_tx_bytes", "IP bytes that a port sent", |c| c.tx_bytes),
    ("port_rx_calls", "System calls or device operations that received packets", |c| c.rx_calls),
    ("port_tx_calls", "System calls or device operations that sent packets", |c| c.tx_calls),
];

/// One metric over both directions of the stage clock: name, help text, value.
type StageSum = (&'static str, &'static str, fn(&StageTimes) -> u64);

const STAGE_SUMS: [StageSum; 2] = [
    ("stage_packets", "Packets of the batches whose stages were measured", |times| times.packets),
    ("stage_batches", "Batches whose stages were measured", |times| times.batches),
];

impl Collector for Gateway {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let shared = &self.0;
        let installed = shared.installed();
        gauge(
            &mut encoder,
            "uptime_seconds",
            "Time since the gateway started",
            shared.facts.started.elapsed().as_secs(),
        )?;
        gauge(&mut encoder, "tunnels", "Tunnels configured", installed.tunnels.len() as u64)?;
        gauge(
            &mut encoder,
            "free_buffers",
            "Buffers of the pool that are free",
            shared.facts.counters.free_buffers(),
        )?;
        let created = shared.facts.counters.created();
        counter(
            &mut encoder,
            "created_packets",
            "Packets made by the gateway: fragments, replies, keepalives",
            created,
        )?;
        let drops = shared.facts.counters.drops();
        for (reason, count) in drops.iter() {
            let help = format!("Packets dropped: {}", reason.description().trim_end_matches('.'));
            counter(&mut encoder, &format!("drop_{}", reason.name()), &help, count)?;
        }
        encode_ports(&mut encoder, &shared.facts.counters.protected(), &shared.facts.counters.unprotected())?;
        encode_stages(&mut encoder, shared)?;
        encode_associations(&mut encoder, &installed.tunnels)
    }
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    let metric = ConstGauge::new(value);
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}

fn counter(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    let metric = ConstCounter::new(value);
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}

type Labels = Vec<(&'static str, String)>;

/// One family of counters with their labels.
fn family(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (Labels, u64)>,
) -> fmt::Result {
    let kind = ConstCounter::new(0u64).metric_type();
    let mut family = encoder.encode_descriptor(name, help, None, kind)?;
    for (labels, value) in values {
        let counter = ConstCounter::new(value);
        counter.encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

fn encode_ports(
    encoder: &mut DescriptorEncoder<'_>,
    protected: &PortSnapshot,
    unprotected: &PortSnapshot,
) -> fmt::Result {
    for (name, help, get) in PORT_METRICS {
        let sides = [("protected", protected), ("unprotected", unprotected)];
        let values = sides
            .map(|(side, p)| (vec![("side", side.to_owned()), ("port", p.name.clone())], get(&p.counters)));
        family(encoder, name, help, values)?;
    }
    let waited = [("protected", protected), ("unprotected", unprotected)]
        .map(|(side, p)| (vec![("side", side.to_owned()), ("port", p.name.clone())], p.waited_ticks));
    let help = "Ticks of the processor's clock for which packets waited for a port that took none";
    family(encoder, "port_waited_ticks", help, waited)
}

/// The stage clock: per packet is `stage_ticks` over `stage_packets`, and the busy share of the worker is the rate of `stage_ticks` times
/// `stage_measured_of` over the rate of `ticks`.
fn encode_stages(encoder: &mut DescriptorEncoder<'_>, shared: &Shared) -> fmt::Result {
    let counters = &shared.facts.counters;
    let directions = [("outbound", counters.outbound_stages()), ("inbound", counters.inbound_stages())];
    let label = |direction: &str| vec![("direction", direction.to_owned())];
    let ticks_of = directions.iter().flat_map(|(direction, times)| {
        Stage::ALL.map(|stage| {
            let labels = [label(direction), vec![("stage", stage.name().to_owned())]].concat();
            (labels, times.of(stage))
        })
    });
    let help = "Ticks of the processor's clock that measured batches spent in a stage";
    family(encoder, "stage_ticks", help, ticks_of)?;
    for (name, help, get) in STAGE_SUMS {
        family(encoder, name, help, directions.iter().map(|(way, times)| (label(way), get(times))))?;
    }
    let help = "Of so many batches one has its stages measured";
    gauge(encoder, "stage_measured_of", help, MEASURED_OF.into())?;
    let help = "The processor's clock that stages are measured with: its rate is ticks in a second";
    counter(encoder, "ticks", help, ticks())?;
    let Some(time) = worker_time(WORKER_THREAD) else { return Ok(()) };
    counter(encoder, "worker_ran_ns", "Nanoseconds that the worker was on a processor", time.ran_ns)?;
    let help = "Nanoseconds that the worker was ready to run and had no processor";
    counter(encoder, "worker_queued_ns", help, time.queued_ns)
}

fn encode_associations(encoder: &mut DescriptorEncoder<'_>, tunnels: &[Running]) -> fmt::Result {
    for (name, help, get) in SA_METRICS {
        family(encoder, name, help, associations(tunnels).map(|(labels, c)| (labels, get(c))))?;
    }
    let drops = associations(tunnels).flat_map(|(labels, counters)| {
        let hit = DropReason::ALL.iter().filter(|&&reason| counters.drops(reason) > 0);
        hit.map(move |&reason| {
            let mut labels = labels.clone();
            labels.push(("reason", reason.name().to_owned()));
            (labels, counters.drops(reason))
        })
    });
    family(encoder, "sa_dropped", "Packets of an SA that were dropped, by reason", drops)
}

fn associations(tunnels: &[Running]) -> impl Iterator<Item = (Labels, &SaCounters)> {
    tunnels.iter().filter_map(|t| Some((t, t.installed.as_ref()?))).flat_map(|(t, installed)| {
        let labels = |direction: &str, spi: u32| {
            vec![
                ("tunnel", t.tunnel.name.clone()),
                ("direction", direction.to_owned()),
                ("spi", format!("{spi:#x}")),
            ]
        };
        [
            (labels("outbound", t.tunnel.outbound.spi), installed.outbound_counters.as_ref()),
            (labels("inbound", t.tunnel.inbound.spi), installed.inbound_counters.as_ref()),
        ]
    })
}
