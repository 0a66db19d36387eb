//! `testudo lab rfc2544`: the methods of RFC 2544 over two gateways in memory ([`crate::tandem`]), or over
//! two processes in namespaces (`path`).
//!
//! Results repeat within 3 % or rows say that they do not. A row names the processors that it was measured
//! on, and says where generator and gateways share one. Nothing but what was measured in the run is printed.

pub(crate) mod cells;
mod options;
mod path;
mod report;

pub(crate) use cells::{Remarks, notes};
pub use options::{Over, Rfc2544Options, TandemArgs, TestName};
pub(crate) use options::{QUICK_RESIDUAL, Watched, has_flows, is_silent, seconds};

use serde_json::Value;
use testudo_gateway::Candidate;

use crate::bench::BenchError;
use crate::generator::Sizes;
use crate::harness::{
    Basis, Device, DeviceError, Measurement, Plan, Test, Unconverged, back_to_back, frame_loss, latency,
    throughput,
};
pub(crate) use path::Path;
pub(crate) use report::Subject;

/// Measures what `options` say, and returns the array that `testudo lab rfc2544 --json` prints.
///
/// # Errors
/// [`BenchError`] if there is no engine for the suite, or the gateways failed.
pub fn measure(options: &Rfc2544Options, candidates: Vec<Candidate>) -> Result<Value, BenchError> {
    let (subject, rows) = run(options, candidates)?;
    Ok(report::json(options, &subject, &rows))
}

/// The same as text: a table, or that array.
pub(crate) fn report(options: &Rfc2544Options, candidates: Vec<Candidate>) -> Result<String, BenchError> {
    let (subject, rows) = run(options, candidates)?;
    if options.json {
        return Ok(format!("{:#}\n", report::json(options, &subject, &rows)));
    }
    Ok(report::table(options, &subject, &rows))
}

fn run(
    options: &Rfc2544Options,
    candidates: Vec<Candidate>,
) -> Result<(Subject, Vec<Measurement>), BenchError> {
    if options.over != Over::Memory {
        let mut path = Path::build(options.over, &options.device, "rfc2544", options.residual())?;
        let rows = rows(options, &mut path)?;
        return Ok((path.end()?, rows));
    }
    let mut device = options.device.open(candidates)?;
    let rows = rows(options, &mut device)?;
    Ok((Subject::in_memory(&device, &options.device), rows))
}

fn rows(options: &Rfc2544Options, device: &mut dyn Device) -> Result<Vec<Measurement>, BenchError> {
    let (plan, sizes, tests) = (options.plan(), options.sizes(), options.tests());
    let mut watched = Watched::new(device, options.expected(), plan.trial, options.json);
    let mut rows = Vec::new();
    for sizes in sizes {
        let measured = of_size(&mut watched, sizes, &plan, &tests);
        rows.extend(
            measured.map_err(|DeviceError(what)| BenchError::Invalid {
                case: format!("frames of {sizes}"),
                what,
            })?,
        );
    }
    Ok(rows)
}

/// The rows of one size: those of `tests`, in order.
fn of_size(
    device: &mut Watched<'_>,
    sizes: Sizes,
    plan: &Plan,
    tests: &[Test],
) -> Result<Vec<Measurement>, DeviceError> {
    let (mut rows, mut found) = (Vec::new(), None);
    for &test in tests {
        device.begin(test, sizes);
        match test {
            Test::Throughput => {
                let row = throughput(device, sizes, plan)?;
                // Of one repetition rows say themselves that it is the only one.
                let why = row.unconverged.filter(|why| *why != Unconverged::MeasuredOnce);
                found = Some((row.offered_packets_per_second, row.limit, why.map(Basis::Throughput)));
                rows.push(row);
            }
            Test::Latency => {
                let (rate, limit, basis) = match found {
                    Some(found) => found,
                    // Without a search the loads are shares of half of the maximum rate.
                    None => {
                        let highest = device.maximum_rate(sizes)?.packets_per_second;
                        (highest / 2.0, None, Some(Basis::HalfOfHighest))
                    }
                };
                // Shares of what the generator reaches are none of what the device can.
                let of_it = latency(device, sizes, plan, rate)?.into_iter();
                rows.extend(of_it.map(|row| Measurement { limit: limit.or(row.limit), basis, ..row }));
            }
            Test::FrameLoss => rows.extend(frame_loss(device, sizes, plan)?),
            Test::BackToBack => rows.push(back_to_back(device, sizes, plan)?),
            Test::Overload | Test::Efficiency | Test::Placement => {}
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        options: Rfc2544Options,
    }

    fn options(words: &str) -> Rfc2544Options {
        Program::parse_from(["rfc2544"].into_iter().chain(words.split_whitespace())).options
    }

    #[test]
    fn rows_of_all_tests_have_all_fields_and_say_what_does_not_conform() {
        let options =
            options("--quick --trial-seconds 0.005 --repetitions 2 --sizes 64,imix --engine portable --json");
        let Value::Array(rows) = measure(&options, Vec::new()).unwrap() else { panic!("no array") };
        for test in ["throughput", "latency", "frame_loss", "back_to_back"] {
            assert!(rows.iter().any(|row| row["test"] == test), "no {test}");
        }
        for row in &rows {
            println!("{row}");
            assert!(row["frame_bytes"] == 64 || row["frame_bytes"] == "imix");
            for figure in ["offered_packets_per_second", "throughput_packets_per_second", "loss"] {
                assert!(row[figure].as_f64().is_some_and(|figure| figure >= 0.0), "{figure} in {row}");
            }
            let latency = &row["latency_us"];
            let of = |name: &str| latency[name].as_f64().unwrap_or(-1.0);
            assert!(
                latency.is_null() || (0.0 <= of("p50") && of("p50") <= of("p99") && of("p99") <= of("max"))
            );
            assert!(row["repeat_spread"].is_null() || row["repeat_spread"].as_f64().is_some());
            let notes: Vec<_> = row["notes"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
            assert!(row["conforming"] == false, "{row}");
            assert!(notes.iter().any(|note| note.starts_with("does not conform to RFC 2544")), "{row}");
            let is_shared = row["cores"]["gateways"] == row["cores"]["generator"];
            assert_eq!(row["cores"]["shared"], is_shared);
            assert_eq!(notes.iter().any(|note| note.starts_with("cores shared")), is_shared);
        }
    }

    #[test]
    fn a_table_has_units_and_explains_its_remarks() {
        let words =
            "--quick --trial-seconds 0.005 --repetitions 1 --sizes 1518 --tests frame-loss --engine portable";
        let text = report(&options(words), Vec::new()).unwrap();
        println!("{text}");
        for part in
            ["--quick: does not conform", "(kpps)", "(µs)", "(%)", "Cores: gateways", "frame loss", "  1: "]
        {
            assert!(text.contains(part), "{part}");
        }
    }

    #[test]
    fn only_long_and_repeated_trials_conform() {
        let conforms = |words: &str, test| options(words).deviations(test).is_empty();
        assert!(conforms("", Test::Throughput) && conforms("", Test::FrameLoss));
        assert!(!conforms("--quick", Test::Throughput) && !conforms("--trial-seconds 59", Test::FrameLoss));
        assert!(!conforms("--quick --trial-seconds 60", Test::Throughput), "the table says so, too");
        assert!(!conforms("", Test::Latency) && !conforms("--trial-seconds 120", Test::Latency));
        assert!(conforms("--trial-seconds 120 --repetitions 20", Test::Latency));
        assert!(!conforms("", Test::BackToBack) && conforms("--repetitions 50", Test::BackToBack));
    }

    #[test]
    fn flows_are_as_many_as_sas_or_refused() {
        let words =
            "--quick --trial-seconds 0.005 --engine portable --sizes 64 --tests frame-loss --repetitions 1";
        let error = measure(&options(&format!("{words} --flows 3 --sas 4")), Vec::new()).err().unwrap();
        assert!(error.to_string().contains("--flows: 4 SAs need as many, 3 are fewer"), "{error}");
        let rows = measure(&options(&format!("{words} --flows 4 --sas 4")), Vec::new()).unwrap();
        assert_eq!((&rows[0]["flows"], &rows[0]["sas"]), (&4.into(), &4.into()));
    }

    #[test]
    fn tests_are_made_in_order_and_sizes_once() {
        let options = options("--tests latency,throughput --sizes 64,imix,64");
        assert_eq!(options.tests(), [Test::Throughput, Test::Latency]);
        assert_eq!(options.sizes(), [Sizes::Bytes(64), Sizes::Imix]);
        for wrong in ["--sizes 63", "--trial-seconds 0", "--repetitions 0", "--tests none"] {
            let words = ["rfc2544"].into_iter().chain(wrong.split(' '));
            assert!(Program::try_parse_from(words).is_err(), "{wrong}");
        }
    }
}
