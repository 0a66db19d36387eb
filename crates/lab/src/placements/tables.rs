//! What `testudo lab placements` prints for people.

use super::options::PlacementsOptions;
use super::report::{lossless, notes};
use super::setup::Threads;
use super::{Found, Outcome, printed};
use crate::harness::{Block, BlockTime};
use crate::rfc2544::{Remarks, cells};
use crate::table::Table;

/// All tables.
pub(super) fn text(options: &PlacementsOptions, found: &Found) -> String {
    let plan = options.plan();
    let mut text = format!(
        "Gateways in memory on one worker's core: two in series, one seals and one opens, over a path of {} bytes; \
         of a bypass policy one.\nTrials of {} s, {} repetitions, seed {}. Flows {}, SAs {}.\n\n",
        options.mtu,
        plan.trial.as_secs_f64(),
        plan.repetitions,
        options.seed,
        options.flows,
        options.sas
    );
    if options.quick {
        text += "--quick: does not conform to RFC 2544.\n\n";
    }
    let mut remarks = Remarks::default();
    text += &rates(options, found, &mut remarks);
    text += "\n";
    text += &blocks(found);
    text += "\n";
    if options.latency {
        text += &latencies(options, found);
        text += "\n";
    }
    text += &compared(found);
    text += &impossible(found);
    text + LEGEND + &remarks.lines()
}

const LEGEND: &str = "
  throughput: the highest rate without loss; capacity: what comes through when twice as much is offered. Mbit/s are of frames.
  IP: reception, header checksums, a filter by destination, reading headers, transmission. IPsec look-up: policy and SA. IPsec headers:
  numbers, replay windows, headers and trailers, and what else the worker's turns take. Times are of a packet through all gateways, the mean
  of those who work on it, worker and others; of a device until it returns the packet. worker: those of the worker alone.
  io: threads receive, check, filter, carry packets between the gateways and transmit; without them the worker does the same. It reads
  headers in any case. crypto by cores: threads seal and open, and the worker does what they have no room for.
  cores: the processors that worker, generator, I/O threads and those of the cryptography are bound to.
  memory: of the process. buffers: of a gateway, in use at once at most; those that I/O threads have for packets to come are among them.
";

const CORES: &str = "cores (worker / generator / I/O / crypto)";

fn owned<const N: usize>(heads: [&str; N]) -> Vec<String> {
    heads.map(str::to_owned).to_vec()
}

/// Suite, placement, threads and size: the first cells of a row.
fn firsts(outcome: &Outcome) -> Vec<String> {
    let setup = &outcome.setup;
    let threads = format!("{}+{}", setup.threads.io.len(), setup.crypto_threads());
    vec![setup.suite_name(), setup.placement.to_string(), threads, outcome.sizes.to_string()]
}

/// The processors of all threads, by what they do.
fn cores(outcome: &Outcome) -> String {
    let Threads { worker, generator, io, cryptography, .. } = &outcome.setup.threads;
    let list = |processors: &[usize]| match processors {
        [] => "-".to_owned(),
        some => some.iter().map(usize::to_string).collect::<Vec<_>>().join(" "),
    };
    [list(&[*worker]), list(&[*generator]), list(io), list(cryptography)].join(" / ")
}

fn rates(options: &PlacementsOptions, found: &Found, remarks: &mut Remarks) -> String {
    let mut lines = vec![owned([
        "suite",
        "placement",
        "threads (I/O + crypto)",
        "frame (bytes)",
        "engine",
        CORES,
        "throughput (Mbit/s)",
        "capacity (Mbit/s)",
        "bottleneck",
        "memory (MiB)",
        "buffers",
        "remarks",
    ])];
    for outcome in &found.outcomes {
        let Ok(measured) = &outcome.result else { continue };
        let megabits = |rate: f64| cells::figure(rate * outcome.sizes.mean_bytes() * 8e-6);
        let row = &measured.row;
        let mut line = firsts(outcome);
        line.extend([outcome.engine.clone(), cores(outcome)]);
        line.push(lossless(&row.throughput).map_or_else(|| "-".to_owned(), megabits));
        line.push(megabits(row.capacity.throughput_packets_per_second));
        line.push(row.bottleneck.name().to_owned());
        let mebibytes = |bytes: u64| format!("{:.0}", bytes as f64 / 1048576.0);
        line.push(measured.memory.resident_bytes.map_or_else(|| "not known".to_owned(), mebibytes));
        line.push(measured.memory.buffers.to_string());
        line.push(remarks.refer(notes(options, outcome)));
        lines.push(line);
    }
    Table::report(lines).to_string()
}

/// Figure 5: two columns for each block, and the paper's beside that of the cryptography.
fn blocks(found: &Found) -> String {
    let mut heads = owned(["suite", "placement", "threads (I/O + crypto)", "frame (bytes)"]);
    for block in Block::ALL {
        heads.extend([format!("{} (µs)", block.name()), "worker (µs)".to_owned(), "share (%)".to_owned()]);
    }
    heads.extend(owned(["paper: cryptography (µs)", "paper: share (%)"]));
    let mut lines = vec![heads];
    for outcome in &found.outcomes {
        let Ok(measured) = &outcome.result else { continue };
        let mut line = firsts(outcome);
        for BlockTime { turnaround_us, worker_us, share, .. } in measured.row.blocks {
            line.extend([turnaround_us, worker_us].map(|time| format!("{time:.3}")));
            line.push(format!("{:.1}", share * 100.0));
        }
        let (time, share) =
            printed::of_block(outcome.setup.suite, outcome.setup.placement, Block::Cryptography);
        line.extend([time, share].map(|figure| figure.unwrap_or("-").to_owned()));
        lines.push(line);
    }
    format!("Turnaround of a packet (paper 004, figure 5)\n{}", Table::report(lines))
}

/// Latencies under half of the throughput, beside the bound.
fn latencies(options: &PlacementsOptions, found: &Found) -> String {
    let mut heads = owned(["suite", "placement", "threads (I/O + crypto)", "frame (bytes)"]);
    heads.extend(owned([
        "offered (Mbit/s)",
        "p50 (µs)",
        "p99 (µs)",
        "spread (%)",
        "bound (µs)",
        "within",
        "lost",
        "apart (%)",
        "p99 apart (µs)",
    ]));
    let mut lines = vec![heads];
    for outcome in &found.outcomes {
        let Ok(measured) = &outcome.result else { continue };
        let mut line = firsts(outcome);
        let none = || "-".to_owned();
        let cell = |figure: Option<f64>| figure.map_or_else(none, cells::figure);
        let bound = options.bound_us.to_string();
        let Some(one) = measured.under_half else {
            line.extend(["-", "-", "-", "-", &bound, "no throughput", "-", "-", "-"].map(str::to_owned));
            lines.push(line);
            continue;
        };
        let within = one.is_within(options.bound_us.into());
        let megabits = outcome.sizes.mean_bytes() * 8e-6;
        line.push(cells::figure(one.offered_packets_per_second * megabits));
        line.extend([one.latency_us.map(|us| us.p50), one.latency_us.map(|us| us.p99)].map(cell));
        line.push(cells::percent(one.repeat_spread));
        line.push(bound);
        line.push(within.map_or("not known", |is| if is { "yes" } else { "no" }).to_owned());
        line.push(one.lost.to_string());
        line.push(format!("{:.0}", 100.0 * f64::from(one.apart) / f64::from(one.slices.max(1))));
        line.push(cell(one.apart_us.map(|us| us.p99)));
        lines.push(line);
    }
    let text = "Latency of a packet through all gateways under half of the throughput, queues included. apart: slices of the time in which\n\
                a hypervisor or another program had processors; they are in no other figure. spread: of repetitions, in p50 or p99.\n\
                lost: packets that did not come back; within is of those that did.\n";
    format!("{text}{}", Table::report(lines))
}

fn compared(found: &Found) -> String {
    let mut lines = vec![owned(["capacity", "here", "paper 004", "unit"])];
    for one in printed::compared(found) {
        let here = one.here.map_or_else(|| "not measured".to_owned(), |here| format!("{here:.0}"));
        lines.push(vec![one.what.to_owned(), here, one.paper.to_owned(), one.unit.to_owned()]);
    }
    Table::report(lines).to_string()
}

fn impossible(found: &Found) -> String {
    let mut text = String::new();
    for outcome in &found.outcomes {
        if let Err(reason) = &outcome.result {
            let [suite, placement, _, size] = firsts(outcome).try_into().unwrap_or_default();
            text += &format!("  {suite}, {placement}, frames of {size}: not possible here: {reason}\n");
        }
    }
    if text.is_empty() { text } else { format!("\n{text}") }
}
