//! Rows of runs that were not made, for tests of those who read rows.

use serde_json::Value;

use super::cpu::{STATES, Shares};
use super::ends::Ends;
use super::report::{Gain, Measured, Report, Row};
use super::subject::{Setting, Subject};
use super::{OF_THE_MACHINE, Stage, TcpOptions};
use crate::harness::Interval;

/// A step of tuning that is left out, as one that changes nothing is.
const LEFT_OUT: &str = "rings";

/// What a run with these options prints if its streams have the rates that `rate` says, of the protocol's
/// name, the suite, whether it is transport mode, the MTU and the bytes of messages; in Mbit/s.
pub(crate) fn rows(options: &TcpOptions, rate: impl Fn(&str, &str, bool, u16, u32) -> f64) -> Value {
    let subjects = options.subjects().unwrap();
    let shares = Shares { of: [0.125, 0.125, 0.5, 0.125, 0.125, 0.0], seconds: 1.0 };
    assert_eq!(STATES[4], "idle");
    let mut rows: Vec<Row> = Vec::new();
    for link in options.links() {
        for untuned_mtu in options.mtus() {
            for stage in options.tuning.stages() {
                let setting = Setting { link, untuned_mtu, stage };
                if setting.stage.name == LEFT_OUT {
                    rows.push(Row::left_out(setting, "it changes nothing here".to_owned()));
                    continue;
                }
                for subject in &subjects {
                    for bytes in options.message_bytes() {
                        let row = measured(&setting, subject, bytes, &rate, shares, &rows);
                        rows.push(row);
                    }
                }
            }
            if options.tuning == super::Tuning::Each {
                let stage = Stage { name: OF_THE_MACHINE[0], steps: Vec::new() };
                rows.push(Row::left_out(Setting { link, untuned_mtu, stage }, "of the machine".to_owned()));
            }
        }
    }
    let are_apart = !options.no_pin;
    let processors = if are_apart { [vec![0, 1], vec![2, 3]] } else { [vec![0], vec![0]] };
    Report { options, ends: &Ends { processors, are_apart }, rows }.json()
}

fn measured(
    setting: &Setting,
    subject: &Subject,
    message_bytes: u32,
    rate: &impl Fn(&str, &str, bool, u16, u32) -> f64,
    shares: Shares,
    before: &[Row],
) -> Row {
    let protocol = subject.protocol().map_or("plain", super::Protocol::name);
    let in_transport = subject.path() == "gateways";
    let mean =
        rate(protocol, subject.suite().unwrap_or_default(), in_transport, setting.mtu(), message_bytes);
    let rates = [mean * 0.995, mean * 1.005];
    let interval = Interval::of(&rates).unwrap();
    let is_same = |row: &&Row| row.subject.as_ref() == Some(subject) && row.message_bytes == message_bytes;
    let gain = before.iter().rev().find(is_same).filter(|_| !setting.stage.steps.is_empty());
    let measured = Measured {
        interval,
        lowest: rates[0],
        highest: rates[1],
        unconverged: None,
        received_bytes: 1000,
        link_bytes: 1100,
        ends: [shares; 2],
        engine: subject.protocol().map(|_| "portable".to_owned()),
        untuned: None,
        share_of_plain: None,
        gain: gain.and_then(|row| Gain::over(&interval, row)),
    };
    Row {
        setting: setting.clone(),
        subject: Some(subject.clone()),
        message_bytes,
        measured: Some(measured),
        left_out: None,
    }
}
