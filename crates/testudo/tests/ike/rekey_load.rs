//! CHILD_SAs renewed by both charons, in turn, while numbered datagrams flow both ways at half of the rate
//! that the two gateways hold. `cargo test --release -p testudo --test ike -- --rekey SECONDS` measures.

use crate::connection::Connection;
use crate::negotiation::initiate;
use crate::network::Network;
use crate::rekey::until_renewed;
use crate::strongswan::Charon;
use crate::support::load::{capacity, kernel_drops};
use crate::support::{Outcome, ensure};
use crate::traffic::{INNER, drops, ends, logs, with_addresses};
use std::time::{Duration, Instant};
use testudo_judge::harness::Suite;
use testudo_lab::traffic::{Load, Stream};

/// Bytes of UDP payload of each datagram: a full packet, with what ESP adds.
const BYTES: usize = 1300;
/// For how long a test renews.
const SHORT: Duration = Duration::from_secs(2);

pub fn tests(suite: Suite<'_, Network>) -> Suite<'_, Network> {
    suite.test("no_packet_is_lost_by_renewals_at_half_of_the_rate_that_gateways_hold", |network| {
        load(network, SHORT).map(drop)
    })
}

/// Renews for so long, and prints what it found.
pub fn measure(network: &mut Network, time: Duration) -> Outcome<()> {
    load(network, time)?.print();
    Ok(())
}

#[derive(Debug)]
struct Measured {
    /// Datagrams a second that arrive if as many are sent as possible, one way.
    held: f64,
    /// What was sent, both ways, and what of it never arrived.
    sent: u64,
    lost: u64,
    /// What queues of the kernel have dropped meanwhile, on both hosts.
    by_kernel: u64,
    /// CHILD_SAs that were renewed, and for how long.
    renewals: u32,
    time: Duration,
    /// The longest time between two datagrams that arrived, of either way.
    pause: Duration,
}

impl Measured {
    fn print(&self) {
        let Self { held, sent, lost, by_kernel, renewals, time, pause } = self;
        let seconds = time.as_secs_f64();
        let gbit_s = |rate: f64| rate * BYTES as f64 * 8e-9;
        let rate = *sent as f64 / seconds;
        println!(
            "held: {held:.0} datagrams of {BYTES} bytes a second ({:.2} Gbit/s)\n\
             sent in {seconds:.1} s: {sent}, {rate:.0} a second ({:.2} Gbit/s), half of them each way\n\
             renewals: {renewals}, by both ends in turn\n\
             lost: {lost}, of which queues of the kernel have dropped {by_kernel}\n\
             between two that arrived: at most {:.1} ms",
            gbit_s(*held),
            gbit_s(rate),
            pause.as_secs_f64() * 1e3,
        );
    }
}

fn dropped_by_kernel(network: &Network) -> Outcome<u64> {
    Ok(kernel_drops(&network.a.namespace)? + kernel_drops(&network.b.namespace)?)
}

/// Renews the CHILD_SA by either end in turn, for a while; how often.
fn renew(charons: &[Charon; 2], mut spis: [u32; 2], time: Duration) -> Outcome<u32> {
    let (began, mut renewals) = (Instant::now(), 0);
    while began.elapsed() < time || renewals < 2 {
        let by = &charons[renewals as usize % 2];
        by.swanctl(&["--rekey", "--child", "net"])?;
        spis = until_renewed(charons, spis)?;
        renewals += 1;
    }
    Ok(renewals)
}

fn load(network: &mut Network, time: Duration) -> Outcome<Measured> {
    let charons = network.programs("", &Connection::default())?;
    with_addresses(network)?;
    let spis = initiate(&charons)?;
    let [a, b] = [(&network.a.namespace, INNER[0]), (&network.b.namespace, INNER[1])];
    let held = capacity([a, b], BYTES)?;
    let before = dropped_by_kernel(network)?;
    let half = Load { per_second: held / 4.0, bytes: BYTES };
    let streams = [Stream::start_with(a, b, half)?, Stream::start_with(b, a, half)?];
    let began = Instant::now();
    let renewals = renew(&charons, spis, time)?;
    let time = began.elapsed();
    let pause = streams.iter().map(Stream::longest_pause).max().unwrap_or_default();
    let (mut sent, mut lost) = (0, 0);
    for stream in streams {
        let (count, missing) = stream.end()?;
        (sent, lost) = (sent + count, lost + missing.len() as u64);
    }
    let by_kernel = dropped_by_kernel(network)? - before;
    let measured = Measured { held, sent, lost, by_kernel, renewals, time, pause };
    ensure(lost <= by_kernel, || format!("{measured:?}\n{}", logs(network, &charons)))?;
    for host in network.hosts() {
        let drops = drops(host)?;
        ensure(drops.is_empty(), || format!("{}: {drops:?}", host.namespace.name()))?;
    }
    ends(network, charons)?;
    Ok(measured)
}
