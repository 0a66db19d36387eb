//! The tables that `testudo lab efficiency` prints.

use super::options::EfficiencyOptions;
use super::papers::{Energy, TABLE_2, TABLE_I};
use super::report::step_notes;
use super::{Found, OfSize, Rated};
use crate::harness::Step;
use crate::rfc2544::{Remarks, cells};
use crate::table::Table;

/// The rate of most of table I, in Gbit/s.
const RATE_OF_TABLE_I: f64 = 1.0;
/// What a row or column of another origin has in a cell.
const NONE: &str = "-";

/// All of them, and what their columns and remarks mean.
pub(super) fn text(options: &EfficiencyOptions, found: &Found) -> String {
    let plan = options.plan();
    let mut remarks = Remarks::default();
    let mut text = found.heading.clone();
    text += &format!(
        "Efficiency: trials of {} s, {} repetitions, seed {}.{}\n\n",
        plan.trial.as_secs_f64(),
        plan.repetitions,
        options.device.seed,
        if options.quick { " --quick: figures are coarse." } else { "" },
    );
    text += &rates(options, found, &mut remarks).to_string();
    text += "\n  rate: Gbit/s of frames, or a share of what the gateways can. pause: what the worker is told to sleep after a poll that found nothing;\n  \
             of each rate there are the row without pauses and that of the longest with which all came through. slept: how long pauses really were.\n  \
             awake: share of the time in which the worker had a processor. busy: share in which it had packets. cycles: of the time stamp counter.\n";
    text += &meters(found);
    text += &format!(
        "\nTable I of paper 000, beside the rates of this run nearest to {RATE_OF_TABLE_I} Gbit/s\n\n{}",
        table_i(found)
    );
    text += "\n  The paper's power is that of a whole server, its processor one core at 3.3 GHz; its gateway encrypts with the NIC's engine, or is Linux, and\n  \
             another host decrypts. Here one core does both, and power is that of the meters above. The paper's cycles are \"about 3\" and \"10 to 20\n  \
             times as many\". It prints energy in mJ for each byte; in nJ it is what its watts and throughput come to. What a rate takes is not known where it\n  \
             is not held, even without a pause.\n";
    text += &format!(
        "\nTable 2 of paper 002, beside what these gateways can in this run\n\n{}",
        table_2(options, found, &mut remarks)
    );
    text += &about_prices(found);
    text + "\n" + &remarks.lines()
}

/// A figure, or that there is none.
fn known(figure: Option<f64>) -> String {
    figure.map_or_else(|| "not known".to_owned(), cells::figure)
}

fn none(figure: Option<f64>) -> String {
    figure.map_or_else(|| NONE.to_owned(), cells::figure)
}

fn nanojoules(step: &Step) -> Option<f64> {
    step.joules_per_byte().ok().map(|joules| joules * 1e9)
}

fn rates(options: &EfficiencyOptions, found: &Found, remarks: &mut Remarks) -> Table {
    let heads = [
        "frame (bytes)",
        "rate",
        "came through (Gbit/s)",
        "loss (%)",
        "pause (µs)",
        "slept (µs)",
        "awake (%)",
        "busy (%)",
        "cycles/byte awake",
        "busy",
        "power (W)",
        "energy (nJ/byte)",
        "p99 (µs)",
        "spread (%)",
        "remarks",
    ];
    let mut lines = vec![heads.map(str::to_owned).to_vec()];
    for of_size in &found.sizes {
        for rated in &of_size.rates {
            let longest = rated.longest().filter(|longest| !longest.pause.is_zero());
            for step in rated.steps.first().into_iter().chain(longest) {
                let mut line = cells_of(rated, step);
                line.push(remarks.refer(step_notes(options, found, Some(rated), step)));
                lines.push(line);
            }
        }
    }
    Table::report(lines)
}

fn cells_of(rated: &Rated, step: &Step) -> Vec<String> {
    let row = &step.row;
    let [_, p99, _] = cells::latency_cells(row);
    vec![
        row.sizes.to_string(),
        rated.rate.to_string(),
        cells::figure(step.gbit_per_second()),
        cells::percent(Some(row.loss)),
        step.pause.as_micros().to_string(),
        none(step.mean_pause_us),
        cells::percent(step.awake_share),
        cells::percent(row.busy_share),
        known(step.cycles_per_byte),
        known(step.busy_cycles_per_byte),
        known(step.power.total().ok()),
        known(nanojoules(step)),
        p99,
        cells::percent(row.repeat_spread),
    ]
}

/// What power is the sum of, and which meters there are none of.
fn meters(found: &Found) -> String {
    let names = found.sizes.first().map_or(&[][..], |of_size| &of_size.capacity.power.0);
    let names: Vec<_> = names.iter().map(|(name, _)| name.as_str()).collect();
    let mut text = format!(
        "  power: of {}, generator included.\n",
        if names.is_empty() { "nothing".to_owned() } else { names.join(" and ") }
    );
    for (name, why) in &found.absent {
        text += &format!("  {name}: not known: {why}.\n");
    }
    text
}

/// Of each size the rate that is nearest to the paper's.
fn nearest(of_size: &OfSize) -> Option<&Step> {
    let far = |step: &Step| (step.gbit_per_second().max(f64::MIN_POSITIVE) / RATE_OF_TABLE_I).ln().abs();
    let steps = of_size.rates.iter().filter_map(Rated::longest);
    steps.min_by(|a, b| far(a).total_cmp(&far(b)))
}

fn table_i(found: &Found) -> Table {
    let here: Vec<(String, &Step)> = found
        .sizes
        .iter()
        .filter_map(|of_size| Some((format!("this run, {} bytes", of_size.sizes), nearest(of_size)?)))
        .collect();
    let line = |name: &str, of_step: &dyn Fn(&Step) -> String, of_paper: &dyn Fn(&Energy) -> String| {
        let steps = here.iter().map(|(_, step)| of_step(step));
        [name.to_owned()].into_iter().chain(steps).chain(TABLE_I.iter().map(of_paper)).collect::<Vec<_>>()
    };
    // A worker that cannot keep up is always awake: what it takes then is nothing of the rate.
    let taken = |step: &Step, figure: fn(&Step) -> Option<f64>| known(figure(step).filter(|_| step.is_held));
    let mut head = vec![String::new()];
    head.extend(here.iter().map(|(name, _)| name.clone()));
    head.extend(TABLE_I.iter().map(|system| format!("paper: {}", system.name)));
    Table::report(vec![
        head,
        line("power (W)", &|step| taken(step, |step| step.power.total().ok()), &|paper| {
            format!("{:.0}", paper.watts)
        }),
        line("throughput (Gbit/s)", &|step| cells::figure(step.gbit_per_second()), &|paper| {
            cells::figure(paper.gbit_s)
        }),
        line("processor, awake (%)", &|step| taken(step, |step| Some(step.awake_share? * 100.0)), &|paper| {
            format!("{:.0}", paper.processor_share * 100.0)
        }),
        line("cycles/byte", &|step| taken(step, |step| step.cycles_per_byte), &|paper| {
            paper.cycles_per_byte.to_owned()
        }),
        line("energy (nJ/byte)", &|step| taken(step, nanojoules), &|paper| {
            cells::figure(paper.joules_per_byte() * 1e9)
        }),
        line("energy, as printed (mJ/byte)", &|_| NONE.to_owned(), &|paper| {
            format!("{:.3}", paper.printed_mj_per_byte)
        }),
    ])
}

fn table_2(options: &EfficiencyOptions, found: &Found, remarks: &mut Remarks) -> Table {
    let prices = found.prices.as_ref();
    let currency = prices.map_or("US$", |prices| prices.currency.as_str());
    let mut lines = vec![vec![
        "system".to_owned(),
        "paper: Gbit/s".to_owned(),
        "US$".to_owned(),
        "US$ per Gbit/s".to_owned(),
        "Mbit/s per US$".to_owned(),
        "W".to_owned(),
        "this run: Gbit/s".to_owned(),
        "W".to_owned(),
        format!("price file: {currency}"),
        "W".to_owned(),
        format!("{currency} per Gbit/s"),
        format!("Mbit/s per {currency}"),
        "remarks".to_owned(),
    ]];
    for system in &TABLE_2 {
        let today = prices.and_then(|prices| prices.of(system.name));
        let price = today.map(|today| today.price);
        lines.push(vec![
            system.name.to_owned(),
            cells::figure(system.gbit_s),
            cells::figure(system.price),
            cells::figure(system.price_per_gbit_s()),
            format!("{:.2}", system.printed_mbit_s_per_dollar),
            none(system.watts),
            NONE.to_owned(),
            NONE.to_owned(),
            none(price),
            none(today.and_then(|today| today.watts)),
            none(price.map(|price| price / system.gbit_s)),
            none(price.map(|price| system.gbit_s * 1e3 / price)),
            String::new(),
        ]);
    }
    for of_size in &found.sizes {
        let (gbit, capacity) = (of_size.capacity.gbit_per_second(), &of_size.capacity);
        let machine = prices.map(|prices| &prices.machine);
        let price = machine.map(|machine| machine.price);
        let mut line = vec![format!(
            "{}, {} bytes",
            machine.map_or("this machine", |machine| &machine.name),
            of_size.sizes
        )];
        line.extend([NONE; 5].map(str::to_owned));
        line.extend([
            cells::figure(gbit),
            known(capacity.power.total().ok()),
            known(price),
            known(machine.and_then(|machine| machine.watts)),
            known(price.map(|price| price / gbit)),
            known(price.map(|price| gbit * 1e3 / price)),
            remarks.refer(step_notes(options, found, None, capacity)),
        ]);
        lines.push(line);
    }
    Table::report(lines)
}

fn about_prices(found: &Found) -> String {
    let file = if found.prices.is_some() { "" } else { " --prices FILE tells what this machine costs." };
    format!(
        "\n  Papers' throughput is of all that a system has, this run's of one core that seals and opens. Prices are those of the paper, of 2016, or of\n  \
         the price file, which are never measured; columns after its price are computed of it and of the row's throughput.{file}\n"
    )
}
