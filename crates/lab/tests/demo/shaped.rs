//! A path of known rate, shaped by the kernel: the judge of what the harness measures through sockets.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use testudo_lab::generator::{Sizes, UdpPath};
use testudo_lab::harness::{Device, Limit, Load, Plan, throughput};
use testudo_lab::namespaces::{Namespace, enter, veth};

const SIZES: Sizes = Sizes::Bytes(1518);
const RATE_BITS: f64 = 200e6;
/// A frame of 1,518 bytes as the kernel counts it: without its check sequence.
const FRAME_BYTES: f64 = 1514.0;
const TRIAL: Duration = Duration::from_millis(500);
/// Packets are at most so late behind a queue of 64 KiB, which is 3 ms at that rate.
const RESIDUAL: Duration = Duration::from_millis(100);

/// Two hosts, a cable, and a token bucket at the sending end.
fn measure() -> Result<serde_json::Value, Box<dyn Error>> {
    let inside = enter()?;
    let (a, b) = (Namespace::new(inside, "shaped-a")?, Namespace::new(inside, "shaped-b")?);
    veth((&a, "out"), (&b, "in"))?;
    a.address("out", "192.0.2.1/24")?;
    b.address("in", "192.0.2.2/24")?;
    let bucket = "tc qdisc add dev out root tbf rate 200mbit burst 16kb limit 64kb";
    a.run(&bucket.split(' ').collect::<Vec<_>>())?;
    let path = UdpPath::between(&a, &b, "192.0.2.2".parse()?, 4, None, 41)?;
    let mut path = path.patient_for(RESIDUAL);
    let plan = Plan { trial: TRIAL, repetitions: 2, ..Plan::default() };
    let flood = path.maximum_rate(SIZES)?.packets_per_second;
    let flooded = path.trial(SIZES, Load::rate(flood, TRIAL))?;
    let row = throughput(&mut path, SIZES, &plan)?;
    Ok(json!({
        "known": RATE_BITS / 8.0 / FRAME_BYTES,
        "found": row.offered_packets_per_second,
        "came_back": row.throughput_packets_per_second,
        "flooded": flooded.received_rate(),
        "loss": row.loss,
        "limit": row.limit.map(Limit::name),
        "unconverged": row.unconverged.map(|why| why.to_string()),
    }))
}

/// Prints what was found.
pub fn main() -> ExitCode {
    match measure() {
        Ok(found) => println!("{found}"),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
