//! `testudo workers`: what each worker has done, and how many get packets.

use crate::cli::{WorkersArgs, WorkersSetArgs, WorkersVerb};
use crate::exit::Failure;
use crate::out::{errln, outln};
use crate::query::Asked;
use crate::table::{cell, print};
use serde_json::{Value, json};
use testudo_lab::table::{Table, grouped};

/// `testudo workers`
pub fn workers(args: &WorkersArgs) -> Result<(), Failure> {
    if let Some(WorkersVerb::Set(args)) = &args.verb {
        return set(args);
    }
    let status = Asked::find(&args.gateway)?.ask(&json!({ "verb": "status" }))?;
    let workers = &status["workers"];
    if args.gateway.json {
        outln!("{workers}");
    } else {
        print(&table(workers));
    }
    Ok(())
}

/// `testudo workers set`
fn set(args: &WorkersSetArgs) -> Result<(), Failure> {
    let answer =
        Asked::find(&args.gateway)?.change(&json!({ "verb": "workers-set", "workers": args.workers }))?;
    if args.gateway.json {
        outln!("{answer}");
        return Ok(());
    }
    outln!("{}", answer["said"].as_str().unwrap_or_default());
    if let Some(warning) = answer["warning"].as_str() {
        errln!("warning: {warning}");
    }
    Ok(())
}

/// A row for each worker, and the sum, where there are several.
pub fn table(workers: &Value) -> Table {
    let heads =
        ["worker", "state", "role", "outbound packets", "inbound packets", "dropped", "processors", "node"];
    let mut table = Table::new(&heads);
    let counts = |worker: &Value| {
        [&worker["protected"]["rx_packets"], &worker["unprotected"]["rx_packets"], &worker["dropped"]]
            .map(|count| count.as_u64().unwrap_or(0))
    };
    let mut sum = [0_u64; 3];
    let all = workers.as_array().map_or(&[][..], Vec::as_slice);
    for worker in all {
        let counts = counts(worker);
        sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum = sum.saturating_add(count));
        let state = if worker["parked"] == true { "parked" } else { "running" };
        let names = [cell(&worker["worker"]), state.to_owned(), cell(&worker["role"])];
        let place = [cell(&worker["processors"]), cell(&worker["numa_node"])];
        table.row(names.into_iter().chain(counts.map(grouped)).chain(place).collect());
    }
    if all.len() > 1 {
        let names = ["all", "", ""].map(str::to_owned);
        let nowhere = ["", ""].map(str::to_owned);
        table.row(names.into_iter().chain(sum.map(grouped)).chain(nowhere).collect());
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_listed_with_state_role_counts_and_their_sum() {
        let worker = |number: u64, parked: bool| {
            json!({
                "worker": number, "parked": parked, "role": "both", "dropped": number,
                "processors": if number == 0 { json!("2-3") } else { Value::Null }, "numa_node": number,
                "protected": { "rx_packets": 1000 }, "unprotected": { "rx_packets": 500 + number },
            })
        };
        let text = table(&json!([worker(0, false), worker(1, true)])).to_string();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        let has = |row: &[&str]| lines.iter().any(|line| line == row);
        assert!(has(&["0", "running", "both", "1,000", "500", "0", "2-3", "0"]), "{text}");
        assert!(has(&["1", "parked", "both", "1,000", "501", "1", "-", "1"]), "{text}");
        assert!(has(&["all", "2,000", "1,001", "1"]), "{text}");
        assert!(!table(&json!([worker(0, false)])).to_string().contains("all"));
    }
}
