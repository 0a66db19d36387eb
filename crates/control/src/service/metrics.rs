//! Metrics for Prometheus, over HTTP on a loopback address.
//!
//! Everyone on the machine may request them, so the cost of answering is bounded: in clients, in time for
//! each, and in memory, since all clients within a second share one rendering (`Bodies`).

mod of_sas;
mod of_windows;
mod scheduled;
mod shares;
mod threads;

use super::api::Shared;
use super::bodies::{Bodies, Body};
use super::clients::{self, Admission, Limits};
use super::http::{self, Hosts, Page, Refusal, Site};
use super::installed::{InstalledTunnels, Running};
use super::port_details::PortDetail;
use super::sas::RunningSa;
use super::timed::{Stream, Timed};
use super::worker_threads::thread_name;
use super::worker_time::worker_time;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};
use testudo_crypto::OffloadReport;
use testudo_gateway::{AllCounters, InterfaceSnapshot, PortSnapshot, WorkerCounters};
use testudo_packet::{MEASURED_OF, PortCounters, Stage, StageTimes, ticks};

/// Clients that are served, and that are refused, at the same time at most.
const LIMITS: Limits = Limits { served: 4, refused: 4 };
/// How long a client may take to send its request and read the answer, in total.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long refusing a client may take.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(1);
/// How long a body is served before a new one is rendered.
const FRESH: Duration = Duration::from_secs(1);
/// A scraper is on this machine, or at the other end of a tunnel or proxy that ends here.
const SITE: Site =
    Site { paths: &["/metrics"], elsewhere: "the page here is /metrics", hosts: Hosts::LocalOrNone };
/// Its content type.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The metrics address could not be used.
#[derive(Debug, thiserror::Error)]
#[error("metrics on {address}: {source}")]
pub struct MetricsError {
    address: SocketAddr,
    #[source]
    source: std::io::Error,
}

/// The address that metrics are served on.
#[derive(Debug)]
pub struct MetricsSocket {
    listener: TcpListener,
    address: SocketAddr,
}

impl MetricsSocket {
    /// Binds `address`; clients wait until [`serve`](Self::serve).
    ///
    /// # Errors
    /// [`MetricsError`] if the address is taken or the system refuses.
    pub fn bind(address: SocketAddr) -> Result<Self, MetricsError> {
        let error = |source| MetricsError { address, source };
        let listener = TcpListener::bind(address).map_err(error)?;
        let address = listener.local_addr().map_err(error)?;
        Ok(Self { listener, address })
    }

    /// The address that was bound.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves `http://ADDRESS/metrics` on its own threads until the process ends.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn serve(self, shared: Arc<Shared>) -> Result<(), MetricsError> {
        let Self { listener, address } = self;
        let bodies = Bodies::new(FRESH);
        let body = move || bodies.get(Instant::now(), |bytes| render(&shared, bytes));
        serve(listener, PATIENCE, body).map_err(|source| MetricsError { address, source })
    }
}

fn serve(
    listener: TcpListener,
    patience: Duration,
    body: impl Fn() -> Body + Send + Sync + 'static,
) -> io::Result<()> {
    clients::serve("metrics", listener, LIMITS, move |stream, admission| match admission {
        Admission::Serve => serve_client(Timed::new(stream, patience), &body),
        Admission::Refuse => refuse_client(Timed::new(stream, REFUSAL_PATIENCE)),
    })
}

fn serve_client<S: Stream>(mut stream: Timed<S>, body: &impl Fn() -> Body) {
    let method = match http::read_request(&mut stream, &SITE) {
        Ok((method, _)) => method,
        Err(refusal) => return refuse(stream, refusal),
    };
    let Ok(body) = body() else { return http::refuse(stream, Refusal::Failed) };
    // A client that went away, or was too slow, is ignored.
    if http::answer(&mut stream, method, &Page { kind: CONTENT_TYPE, headers: "", body: &body }).is_ok() {
        drop(body);
        stream.finish();
    }
}

/// The request is read nevertheless: the client would not read an answer before it has sent it.
fn refuse_client<S: Stream>(mut stream: Timed<S>) {
    let refusal = http::read_request(&mut stream, &SITE).err().unwrap_or(Some(Refusal::TooManyClients));
    refuse(stream, refusal);
}

/// `None` if the client has gone.
fn refuse<S: Stream>(mut stream: Timed<S>, refusal: Option<Refusal>) {
    if let Some(refusal) = refusal {
        stream.grant(REFUSAL_PATIENCE);
        http::refuse(stream, refusal);
    }
}

/// All metrics as text, of about `expected_bytes`.
///
/// # Errors
/// Formatting failed.
fn render(shared: &Arc<Shared>, expected_bytes: usize) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("testudo");
    registry.register_collector(Box::new(Gateway(Arc::clone(shared))));
    // Counters grow by a few digits. A text that outgrows its allocation is copied to one of twice the size.
    let mut body = String::with_capacity(expected_bytes + expected_bytes / 16);
    text::encode(&mut body, &registry)?;
    body.shrink_to_fit();
    Ok(body)
}

#[derive(Debug)]
struct Gateway(Arc<Shared>);

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

/// The same of each interface of the protected side, where there are several.
const INTERFACE_METRICS: [PortMetric; 4] = [
    ("interface_rx_packets", "Packets that an interface received", |c| c.rx_packets),
    ("interface_rx_bytes", "IP bytes that an interface received", |c| c.rx_bytes),
    ("interface_tx_packets", "Packets that an interface sent", |c| c.tx_packets),
    ("interface_tx_bytes", "IP bytes that an interface sent", |c| c.tx_bytes),
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
        let populated = installed.populated.len() as u64;
        gauge(
            &mut encoder,
            "populated_tunnels",
            "Tunnels of single flows, populated from packets",
            populated,
        )?;
        let negotiated = installed.negotiated.len() as u64;
        gauge(&mut encoder, "negotiated_tunnels", "Tunnels that key exchange daemons negotiate", negotiated)?;
        let policies = installed.negotiated.count_policies() as u64;
        gauge(&mut encoder, "negotiated_policies", "Policies that key exchange daemons negotiate", policies)?;
        let (told, left_out) = installed.populated.wanted().counts();
        counter(&mut encoder, "acquires", "Times that the worker told of a flow that wants an SA", told)?;
        let help =
            "Packets that asked for an SA of their flow and were not told of, since others had the limits";
        counter(&mut encoder, "acquires_left_out", help, left_out)?;
        gauge(
            &mut encoder,
            "legacy_sas",
            "SAs under an algorithm that RFC 8221 says SHOULD NOT or MUST NOT be used",
            legacy_sas(&installed),
        )?;
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
        let merged = shared.facts.counters.merged();
        counter(&mut encoder, "merged_packets", "Fragments that became a part of a datagram", merged)?;
        let linearised = shared.facts.counters.linearised();
        counter(
            &mut encoder,
            "linearised_packets",
            "Chains of buffers that were merged into one",
            linearised,
        )?;
        let drops = shared.facts.counters.drops();
        let drops = drops.iter().map(|(reason, count)| (vec![("reason", reason.name().to_owned())], count));
        family(&mut encoder, "drops", "Packets that were dropped, by reason", drops)?;
        encode_ports(&mut encoder, &shared.facts.counters.protected(), &shared.facts.counters.unprotected())?;
        encode_devices(&mut encoder, &shared.facts.ports.of_both())?;
        encode_interfaces(&mut encoder, &shared.facts.counters.interfaces())?;
        encode_offload(&mut encoder, shared.facts.counters.offload())?;
        scheduled::encode(&mut encoder, &shared.facts.counters.scheduled())?;
        threads::encode(&mut encoder, shared.facts.counters.threads())?;
        shares::encode(&mut encoder, shared.facts.counters.shares().as_ref())?;
        encode_stages(&mut encoder, shared)?;
        encode_workers(&mut encoder, shared)?;
        of_sas::encode_associations(&mut encoder, &installed.tunnels)
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

/// What fast ports tell of their devices' queues. Which events there are depends on the kind of port.
fn encode_devices(encoder: &mut DescriptorEncoder<'_>, ports: &[(&str, PortDetail)]) -> fmt::Result {
    if ports.is_empty() {
        return Ok(());
    }
    let of_queues = |is_drop: bool| {
        ports.iter().flat_map(move |(side, port)| {
            port.queues.iter().flat_map(move |queue| {
                let counters = queue.counters.iter().filter(move |counter| counter.is_drop == is_drop);
                counters.map(move |counter| {
                    let labels = vec![
                        ("side", (*side).to_owned()),
                        ("port", port.device.clone()),
                        ("kind", port.kind.to_owned()),
                        ("queue", queue.queue.to_string()),
                        (if is_drop { "reason" } else { "event" }, counter.name.to_owned()),
                    ];
                    (labels, counter.value)
                })
            })
        })
    };
    let help = "Packets that a port's device has lost, by queue and reason";
    family(encoder, "port_queue_drops", help, of_queues(true))?;
    family(encoder, "port_queue_events", "What else happened at a queue of a port's device", of_queues(false))
}

fn encode_interfaces(encoder: &mut DescriptorEncoder<'_>, interfaces: &[InterfaceSnapshot]) -> fmt::Result {
    if interfaces.is_empty() {
        return Ok(());
    }
    let label = |interface: &InterfaceSnapshot| vec![("interface", interface.name.clone())];
    for (name, help, get) in INTERFACE_METRICS {
        family(encoder, name, help, interfaces.iter().map(|one| (label(one), get(&one.counters))))?;
    }
    let drops = interfaces.iter().flat_map(|one| {
        let hit = one.drops.iter().filter(|(_, count)| *count > 0);
        hit.map(|(reason, count)| ([label(one), vec![("reason", reason.name().to_owned())]].concat(), count))
    });
    let help = "Packets that an interface delivered, or that came to an SA of its tunnels, and were dropped, by reason";
    family(encoder, "interface_drops", help, drops)
}

/// The stage clock: ticks per packet are `stage_ticks` over `stage_packets`; the busy share of the worker is
/// the rate of `stage_ticks` times `stage_measured_of` over the rate of `ticks`.
/// What a NIC does of the cryptography, if one does.
fn encode_offload(encoder: &mut DescriptorEncoder<'_>, report: Option<OffloadReport>) -> fmt::Result {
    let Some(report) = report else { return Ok(()) };
    let events = report.counts.iter().map(|(name, _, count)| (vec![("event", name.to_owned())], count));
    family(
        encoder,
        "offload_events",
        "What happened between the gateway and its NIC's cryptography",
        events,
    )?;
    for (name, (in_use, limit)) in [("sealing", report.sealing), ("opening", report.opening)] {
        let help = "Sessions of the NIC in use";
        gauge(encoder, &format!("offload_{name}_sessions"), help, in_use as u64)?;
        let help = "Sessions of the NIC at most";
        gauge(encoder, &format!("offload_{name}_sessions_limit"), help, limit as u64)?;
    }
    let help = "Whether the NIC was taken out of service for cryptography";
    gauge(encoder, "offload_out_of_service", help, u64::from(report.out_of_service.is_some()))
}

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
    counter(encoder, "ticks", help, ticks())
}

/// One metric of each worker: name, help text, value.
type WorkerMetric = (&'static str, &'static str, fn(&WorkerCounters) -> u64);

const WORKER_METRICS: [WorkerMetric; 5] = [
    ("worker_outbound_packets", "Packets that a worker took from the protected side", |counters| {
        counters.protected().counters.rx_packets
    }),
    ("worker_inbound_packets", "Packets that a worker took from the unprotected side", |counters| {
        counters.unprotected().counters.rx_packets
    }),
    ("worker_outbound_ticks", "Ticks of the measured outbound batches of a worker", |counters| {
        counters.outbound_stages().total()
    }),
    ("worker_inbound_ticks", "Ticks of the measured inbound batches of a worker", |counters| {
        counters.inbound_stages().total()
    }),
    ("worker_dropped", "Packets that a worker dropped", |counters| {
        counters.drops().iter().map(|(_, count)| count).sum()
    }),
];

fn encode_workers(encoder: &mut DescriptorEncoder<'_>, shared: &Shared) -> fmt::Result {
    let label = |number: usize| vec![("worker", number.to_string())];
    let all = &shared.facts.counters;
    gauge(encoder, "workers", "Workers", all.each().len() as u64)?;
    let running = all.each().filter(|counters| !counters.is_parked()).count();
    gauge(encoder, "workers_running", "Workers that get packets: the others are parked", running as u64)?;
    encode_roles(encoder, all)?;
    encode_imbalance(encoder, all)?;
    for (name, help, get) in WORKER_METRICS {
        let values = all.each().enumerate().map(|(number, counters)| (label(number), get(counters)));
        family(encoder, name, help, values)?;
    }
    let times = (0..all.each().len()).map(|number| Some((number, worker_time(&thread_name(number))?)));
    let times: Vec<_> = times.flatten().collect();
    if times.is_empty() {
        return Ok(());
    }
    let help = "Nanoseconds that a worker was on a processor";
    family(encoder, "worker_ran_ns", help, times.iter().map(|(number, time)| (label(*number), time.ran_ns)))?;
    let help = "Nanoseconds that a worker was ready to run and had no processor";
    let queued = times.iter().map(|(number, time)| (label(*number), time.queued_ns));
    family(encoder, "worker_queued_ns", help, queued)
}

/// Roles are labels: the value says nothing.
fn encode_roles(encoder: &mut DescriptorEncoder<'_>, all: &AllCounters) -> fmt::Result {
    let help = "Which sides a worker takes packets from: encrypt, decrypt or both";
    let kind = ConstGauge::new(1u64).metric_type();
    let mut family = encoder.encode_descriptor("worker_role", help, None, kind)?;
    for (number, counters) in all.each().enumerate() {
        let labels = vec![("worker", number.to_string()), ("role", counters.role().to_string())];
        ConstGauge::new(1u64).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

/// 0 where packets are spread evenly, or are few.
fn encode_imbalance(encoder: &mut DescriptorEncoder<'_>, all: &AllCounters) -> fmt::Result {
    let help = "Packets of the busiest worker in the last second in percent of the mean of the others, if these are less than half";
    let kind = ConstGauge::new(0u64).metric_type();
    let mut family = encoder.encode_descriptor("worker_imbalance_percent", help, None, kind)?;
    let found = all.imbalances();
    for (direction, is_outbound) in [("outbound", true), ("inbound", false)] {
        let of_direction = found.iter().find(|imbalance| imbalance.is_outbound == is_outbound);
        let percent = of_direction.map_or(0, |imbalance| imbalance.percent_of_mean());
        ConstGauge::new(percent).encode(family.encode_family(&[("direction", direction)])?)?;
    }
    Ok(())
}

/// How many installed SAs are under a legacy algorithm (RFC 8221 5, 6).
fn legacy_sas(installed: &InstalledTunnels) -> u64 {
    let is_legacy = |sa: &&RunningSa| sa.added.is_some() && sa.suite.is_legacy();
    installed.all().map(|t| t.sas.lock().iter().filter(is_legacy).count() as u64).sum()
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::port_details::{QueueCounter, QueueDetail};
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use testudo_packet::DropCounters;
    use testudo_packet::DropReason;

    const LONG: Duration = Duration::from_secs(60);

    /// The page of a gateway.
    pub(in crate::service) fn page(shared: &Arc<Shared>) -> String {
        render(shared, 0).unwrap()
    }

    /// Serves a body to clients with this time limit. Returns the address, and how often the body was
    /// requested.
    fn service(patience: Duration, body: String) -> (SocketAddr, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, body, asked) = (listener.local_addr().unwrap(), Arc::new(body), Arc::default());
        let count: Arc<AtomicUsize> = Arc::clone(&asked);
        let get = move || {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(Arc::clone(&body))
        };
        serve(listener, patience, get).unwrap();
        (address, asked)
    }

    fn answer(address: SocketAddr, request: &str) -> String {
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        answer
    }

    const REQUEST: &str = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

    /// Interfaces as the metrics have them.
    #[derive(Debug)]
    struct Interfaces(Vec<InterfaceSnapshot>);

    impl Collector for Interfaces {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
            encode_interfaces(&mut encoder, &self.0)
        }
    }

    fn page_of(collector: impl Collector) -> String {
        let (mut registry, mut page) = (Registry::with_prefix("testudo"), String::new());
        registry.register_collector(Box::new(collector));
        text::encode(&mut page, &registry).unwrap();
        page
    }

    #[test]
    fn each_interface_has_its_packets_bytes_and_drops() {
        let interface = |name: &str, rx_packets, dropped| {
            let counters = PortCounters {
                rx_packets,
                rx_bytes: 2,
                tx_packets: 3,
                tx_bytes: 4,
                ..PortCounters::default()
            };
            let mut drops = DropCounters::default();
            drops.add(DropReason::NoPolicy, dropped);
            InterfaceSnapshot { name: name.into(), counters, drops }
        };
        let page = page_of(Interfaces(vec![interface("testudo0", 7, 0), interface("ipsec0", 1, 5)]));
        for line in [
            "testudo_interface_rx_packets_total{interface=\"testudo0\"} 7",
            "testudo_interface_rx_packets_total{interface=\"ipsec0\"} 1",
            "testudo_interface_rx_bytes_total{interface=\"ipsec0\"} 2",
            "testudo_interface_tx_packets_total{interface=\"ipsec0\"} 3",
            "testudo_interface_tx_bytes_total{interface=\"ipsec0\"} 4",
            "testudo_interface_drops_total{interface=\"ipsec0\",reason=\"no_policy\"} 5",
        ] {
            assert!(page.lines().any(|other| other == line), "{line} is not in\n{page}");
        }
        assert!(!page.contains("drops_total{interface=\"testudo0\""), "{page}");
        assert!(
            !page_of(Interfaces(Vec::new())).contains("interface"),
            "the ports of one interface say it all"
        );
    }

    /// Fast ports as the metrics have them.
    #[derive(Debug)]
    struct Devices(Vec<(&'static str, PortDetail)>);

    impl Collector for Devices {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
            encode_devices(&mut encoder, &self.0)
        }
    }

    #[test]
    fn each_reason_for_which_a_device_loses_packets_has_its_counter() {
        let counters = vec![
            QueueCounter { name: "rx_ring_full", value: 3, is_drop: true },
            QueueCounter { name: "wakeups", value: 9, is_drop: false },
        ];
        let queues = vec![QueueDetail { queue: 1, counters, levels: Vec::new() }];
        let port = PortDetail { kind: "xdp", device: "eth0".to_owned(), facts: Vec::new(), queues };
        let page = page_of(Devices(vec![("protected", port)]));
        let labels = "side=\"protected\",port=\"eth0\",kind=\"xdp\",queue=\"1\"";
        for line in [
            format!("testudo_port_queue_drops_total{{{labels},reason=\"rx_ring_full\"}} 3"),
            format!("testudo_port_queue_events_total{{{labels},event=\"wakeups\"}} 9"),
        ] {
            assert!(page.lines().any(|other| other == line), "{line} is not in\n{page}");
        }
        assert!(!page_of(Devices(Vec::new())).contains("queue"), "other ports have no such device");
    }

    #[test]
    fn the_fifth_client_is_told_that_there_are_too_many() {
        let (address, _) = service(LONG, "page".to_owned());
        let idle: Vec<_> = (0..LIMITS.served).map(|_| TcpStream::connect(address).unwrap()).collect();
        assert!(answer(address, REQUEST).starts_with("HTTP/1.1 503 Service Unavailable\r\n"));
        drop(idle);
    }

    #[test]
    fn a_client_that_never_ends_its_request_is_told_when_its_time_is_over() {
        let (address, _) = service(Duration::from_millis(50), "page".to_owned());
        assert!(answer(address, "GET /metrics").starts_with("HTTP/1.1 408 Request Timeout\r\n"));
    }

    #[test]
    fn a_client_that_does_not_read_is_cut_off_when_its_time_is_over() {
        const BYTES: usize = 64 << 20;
        let (address, _) = service(Duration::from_millis(50), "x".repeat(BYTES));
        let slow = || {
            let mut client = TcpStream::connect(address).unwrap();
            client.write_all(REQUEST.as_bytes()).unwrap();
            client
        };
        let clients: Vec<_> = (0..LIMITS.served).map(|_| slow()).collect();
        // While these have all slots, another client is refused.
        while !answer(address, "HEAD /metrics HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 200 OK") {}
        let received = clients.into_iter().map(|mut client| {
            let mut bytes = Vec::new();
            let _ = client.read_to_end(&mut bytes);
            bytes.len()
        });
        assert!(received.min().unwrap() < BYTES);
    }

    #[test]
    fn of_many_requests_on_one_connection_the_first_is_answered() {
        let (address, asked) = service(LONG, "page".to_owned());
        let answer = answer(address, &REQUEST.repeat(100));
        assert!(answer.ends_with("\r\nConnection: close\r\n\r\npage"), "{answer}");
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }
}
