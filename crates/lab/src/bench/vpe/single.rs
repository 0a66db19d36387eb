//! `single_thread`: one worker, and the chain of two gateways with goodput after a round trip.

use std::time::Duration;

use serde_json::json;

use super::chain::round_trips;
use super::experiments::{Cell, measure};
use super::mean::Mean;
use super::peer::{self, PeerFigure};
use super::report::{Outcome, Row, is_in_udp, is_vpe, line, millions, range_millions, words};
use super::side_by_side::Effort;
use super::threads::{placed, processors, time};
use super::{Experiment, Setup};
use crate::bench::case::{Carrier, Way};
use crate::bench::chart::{self, Extent, Panel};
use crate::bench::error::BenchError;
use crate::statistics::Spread;
use crate::table::Table;

/// Lengths of inner packets, in bytes.
pub(super) const SIZES: [usize; 2] = [64, 1420];
/// What takes turns. ESP first, and what is in UDP after what is not.
pub(super) const CARRIERS: [Carrier; 4] = [Carrier::Esp, Carrier::Vpe, Carrier::EspInUdp, Carrier::VpeInUdp];
/// What goes through the chain.
const CHAINED: [Carrier; 2] = [Carrier::Esp, Carrier::Vpe];

/// About how long all runs of the chain take.
pub(super) fn expected_of_chain(setup: &super::BenchVpeOptions) -> Duration {
    let cells = u32::try_from(SIZES.len() * CHAINED.len()).unwrap_or(u32::MAX);
    (setup.chain_run() + Duration::from_millis(50)).saturating_mul(cells.saturating_mul(setup.chain_runs()))
}

type Key = (Way, usize);

/// ESP and VPE, with and without UDP, sealing and opening apart; then both through the chain.
pub(super) fn single_thread(setup: &mut Setup<'_>) -> Result<Outcome, BenchError> {
    let peer = setup.options.peer_json.as_deref().map(peer::read).transpose()?;
    let keys: Vec<Key> =
        [Way::Outbound, Way::Inbound].into_iter().flat_map(|way| SIZES.map(|bytes| (way, bytes))).collect();
    let effort = Effort::Time(setup.options.duration());
    let cells = measure(setup, Experiment::SingleThread, effort, &keys, |setup, (way, bytes)| {
        let cases = CARRIERS.map(|carrier| setup.case(carrier, way, bytes));
        (format!("{}, {bytes} bytes", way.name()), cases.into(), None)
    })?;
    let chains = chains(setup)?;
    let peer_rows =
        peer.as_deref().map_or_else(not_measured, |figures| figures.iter().filter_map(peer_row).collect());
    let mut rows = rows(setup, &keys, &cells);
    let text = table(setup, &keys, &cells, &peer_rows) + &chain_table(setup, &chains);
    rows.extend(peer_rows);
    rows.extend(chains.iter().map(|chain| chain.row(setup)));
    Ok(Outcome { rows, text, picture: Some(draw(setup, &keys, &cells)) })
}

/// How many times as fast it is as ESP, where it is VPE, and as without UDP, where it is in UDP.
pub(super) fn ratios(cell: &Cell, lane: usize, carrier: Carrier) -> [Option<Spread>; 2] {
    let of_esp = is_vpe(carrier).then(|| cell.ratio(lane, lane - 1));
    [of_esp, is_in_udp(carrier).then(|| cell.ratio(lane, lane - 2))]
}

fn rows(setup: &Setup<'_>, keys: &[Key], cells: &[Cell]) -> Vec<Row> {
    let mut rows = Vec::new();
    for ((way, bytes), cell) in keys.iter().zip(cells) {
        for (lane, carrier) in CARRIERS.into_iter().enumerate() {
            let (rate, [of_esp, of_plain]) = (cell.rate(lane), ratios(cell, lane, carrier));
            let mut row = Row::of_one(Experiment::SingleThread, carrier, *bytes);
            row.packets_per_second = Some(rate);
            row.more = vec![
                ("direction", json!(way.name())),
                ("gbit_s", json!(gbit_s(rate, *bytes).median)),
                ("cycles_per_packet", json!(cell.cycles(lane).median)),
                ("engine", json!(setup.engine_name())),
                ("repetitions", json!(cell.takes.len())),
                ("cores", cell.cores()),
                ("time", json!(time(true))),
            ];
            for (name, lowest, highest, ratio) in [
                ("of_esp", "of_esp_lowest", "of_esp_highest", of_esp),
                ("of_plain", "of_plain_lowest", "of_plain_highest", of_plain),
            ] {
                let Some(ratio) = ratio else { continue };
                row.more.extend([
                    (name, json!(ratio.median)),
                    (lowest, json!(ratio.lowest)),
                    (highest, json!(ratio.highest)),
                ]);
            }
            rows.push(row);
        }
    }
    rows
}

/// The row of another implementation.
fn peer_row(figure: &PeerFigure) -> Option<Row> {
    if figure.suite != "aes128gcm16" {
        return None;
    }
    let mut row = Row::of_one(Experiment::SingleThread, Carrier::Esp, figure.inner_bytes);
    row.packets_per_second = Some(Spread::of([figure.packets_per_second]));
    row.more = vec![("implementation", json!("ipsec-secgw")), ("direction", json!(Way::Outbound.name()))];
    Some(row)
}

/// The same where there are no figures of it.
fn not_measured() -> Vec<Row> {
    let row = |bytes| {
        let mut row = Row::of_one(Experiment::SingleThread, Carrier::Esp, bytes);
        row.more = vec![
            ("implementation", json!("ipsec-secgw")),
            ("direction", json!(Way::Outbound.name())),
            ("not_measured", json!(peer::NOT_MEASURED)),
        ];
        row
    };
    SIZES.map(row).into()
}

fn table(setup: &Setup<'_>, keys: &[Key], cells: &[Cell], peer_rows: &[Row]) -> String {
    let mut table = Table::new(&[
        "direction",
        "inner bytes",
        "encapsulation",
        "Mpackets/s",
        "lowest-highest",
        "Gbit/s",
        "cycles/packet",
        "VPE/ESP",
        "of it without UDP",
    ]);
    let ratio = |ratio: Option<Spread>| ratio.map_or("-".to_owned(), |ratio| format!("{:.3}", ratio.median));
    for ((way, bytes), cell) in keys.iter().zip(cells) {
        for (lane, carrier) in CARRIERS.into_iter().enumerate() {
            let (rate, [of_esp, of_plain]) = (cell.rate(lane), ratios(cell, lane, carrier));
            table.row(vec![
                way.name().to_owned(),
                bytes.to_string(),
                words(carrier).to_owned(),
                millions(rate.median),
                range_millions(&rate),
                format!("{:.2}", gbit_s(rate, *bytes).median),
                format!("{:.0}", cell.cycles(lane).median),
                ratio(of_esp),
                ratio(of_plain),
            ]);
        }
    }
    let mut is_missing = false;
    for row in peer_rows {
        let Some(rate) = row.packets_per_second else {
            is_missing = true;
            continue;
        };
        let mut cells = vec![Way::Outbound.name().to_owned(), row.inner_bytes.to_string()];
        cells.extend([
            "ESP, ipsec-secgw, in a run of its own".to_owned(),
            millions(rate.median),
            "-".to_owned(),
        ]);
        cells.extend([format!("{:.2}", gbit_s(rate, row.inner_bytes).median), "-".to_owned()]);
        cells.extend(["-".to_owned(), "-".to_owned()]);
        table.row(cells);
    }
    let missing = if is_missing { format!("ipsec-secgw: {}.\n", peer::NOT_MEASURED) } else { String::new() };
    format!(
        "single_thread: one worker, one SA, tunnel mode, aes128gcm16 ({}); medians of {} times {} ms in turns\n{table}\
         Gbit/s: of inner packets. VPE/ESP: the median of ratios of slices in turns, in UDP of what is in UDP.\n{missing}",
        setup.engine_name(),
        setup.options.repeat(),
        setup.options.duration,
    )
}

/// Runs of the chain of one encapsulation at one length.
struct Chained {
    carrier: Carrier,
    inner_bytes: usize,
    rates: Vec<f64>,
}

impl Chained {
    fn goodput(&self) -> Mean {
        let gbit_s: Vec<f64> = self.rates.iter().map(|rate| rate * self.inner_bytes as f64 * 8e-9).collect();
        Mean::of(&gbit_s)
    }

    fn row(&self, setup: &Setup<'_>) -> Row {
        let Mean { mean, half_width, count } = self.goodput();
        let processors = processors();
        let (gateways, is_shared) = (placed(2, &processors), processors.len() < 2);
        let mut row = Row::of_one(Experiment::SingleThread, self.carrier, self.inner_bytes);
        row.packets_per_second = Some(Spread::of(self.rates.iter().copied()));
        row.more = vec![
            ("direction", json!("round_trip")),
            ("goodput_gbit_s_mean", json!(mean)),
            ("goodput_gbit_s_ci95", json!(half_width.is_finite().then_some(half_width))),
            ("runs", json!(count)),
            ("run_ms", json!(setup.options.chain_run().as_millis())),
            ("engine", json!(setup.engine_name())),
            ("cores", json!({ "gateways": gateways, "shared": is_shared })),
            ("time", json!(time(false))),
        ];
        row
    }
}

fn chains(setup: &mut Setup<'_>) -> Result<Vec<Chained>, BenchError> {
    let one = |carrier| move |inner_bytes| Chained { carrier, inner_bytes, rates: Vec::new() };
    let mut chains: Vec<Chained> = CHAINED.into_iter().flat_map(|carrier| SIZES.map(one(carrier))).collect();
    let (runs, duration) = (setup.options.chain_runs(), setup.options.chain_run());
    for run in 1..=runs {
        for chain in &mut chains {
            let case = format!("chain, {}, {} bytes", chain.carrier.name(), chain.inner_bytes);
            setup.progress.stage(&format!("{run} of {runs}: {case}"), duration);
            let rate = round_trips(setup, chain.carrier, chain.inner_bytes, duration);
            chain.rates.push(rate.map_err(|what| BenchError::Invalid { case, what })?);
        }
    }
    Ok(chains)
}

fn chain_table(setup: &Setup<'_>, chains: &[Chained]) -> String {
    let mut table =
        Table::new(&["inner bytes", "encapsulation", "goodput, Gbit/s", "95 % interval", "Mpackets/s"]);
    for inner_bytes in SIZES {
        for chain in chains.iter().filter(|chain| chain.inner_bytes == inner_bytes) {
            let Mean { mean, half_width, .. } = chain.goodput();
            let width = if half_width.is_finite() { format!("± {half_width:.3}") } else { "-".to_owned() };
            table.row(vec![
                inner_bytes.to_string(),
                words(chain.carrier).to_owned(),
                format!("{mean:.3}"),
                width,
                millions(Mean::of(&chain.rates).mean),
            ]);
        }
    }
    let (runs, run) = (setup.options.chain_runs(), setup.options.chain_run());
    let short =
        if (runs, run) == super::FULL_CHAIN { "" } else { "; short: the paper has 60 runs of 1 s (--full)" };
    format!(
        "Chain: generator, gateway, gateway, reflector, and back; what comes back, one worker in each gateway for both ways;\n\
         means of {runs} runs of {} ms{short}\n{table}",
        run.as_millis(),
    )
}

fn draw(setup: &Setup<'_>, keys: &[Key], cells: &[Cell]) -> String {
    let panel = |way: Way| {
        let of = |(lane, carrier): (usize, Carrier)| {
            let points = keys.iter().zip(cells).filter(|((of, _), _)| *of == way);
            let points = points.map(|((_, bytes), cell)| (*bytes, gbit_s(cell.rate(lane), *bytes)));
            line(words(carrier).to_owned(), lane % 2, lane / 2, points.collect())
        };
        let mut lines: Vec<_> = CARRIERS.into_iter().enumerate().map(of).collect();
        chart::sort(&mut lines);
        Panel {
            title: format!("Testudo: one worker, {} (figure 5)", way.name()),
            subtitle: format!(
                "aes128gcm16, {}; medians of {}, with lowest and highest",
                setup.engine_name(),
                setup.options.repeat()
            ),
            across: "packet size (bytes of the inner IP packet)".to_owned(),
            up: "throughput (Gbit/s of inner packets)".to_owned(),
            extent: Extent::Zero,
            lines,
        }
    };
    chart::svg(&[panel(Way::Outbound), panel(Way::Inbound)])
}

fn gbit_s(rate: Spread, bytes: usize) -> Spread {
    let gbit = |rate: f64| rate * bytes as f64 * 8e-9;
    Spread { median: gbit(rate.median), lowest: gbit(rate.lowest), highest: gbit(rate.highest) }
}
