//! `[scheduler]`.

use super::{MINIMAL, expect, good};
use std::time::Duration;
use testudo_gateway::{PlacementMode, SchedulerSettings};

fn with_scheduler(lines: &str) -> String {
    format!("{MINIMAL}\n[scheduler]\n{lines}\n")
}

#[test]
fn the_scheduler_has_defaults_and_takes_what_is_written() {
    assert_eq!(good(MINIMAL).scheduler, SchedulerSettings::default());
    assert_eq!(good(&with_scheduler("")).scheduler, SchedulerSettings::default());
    let written = good(&with_scheduler(
        "chunk = 1024\nbins = 4\nrange_bytes = 1536\nlatency_us = 50\nplacement = \"live\"\ntune = false",
    ))
    .scheduler;
    let latency = Duration::from_micros(50);
    assert_eq!(
        written,
        SchedulerSettings {
            chunk: 1024,
            bins: 4,
            range_bytes: 1536,
            latency,
            placement: PlacementMode::Live,
            tune: false,
            ..SchedulerSettings::default()
        }
    );
}

#[test]
fn what_no_scheduler_can_work_with_is_refused_where_it_stands() {
    let cases = [
        ("chunk = 1000", ["scheduler.chunk", "1024 to 8192 packets"]),
        ("chunk = 9000", ["scheduler.chunk", "found 9000"]),
        ("bins = 2", ["scheduler.bins", "4 to 128 bins"]),
        ("bins = 100", ["scheduler.bins", "divides 4096 packets"]),
        ("chunk = 1025", ["scheduler.chunk", "divides 1025 packets"]),
        ("range_bytes = 100", ["scheduler.range_bytes", "64, 256, 512 or 1536 bytes"]),
        ("latency_us = 49", ["scheduler.latency_us", "50 to 50000 microseconds"]),
        ("latency_us = -1", ["scheduler.latency_us", "a number"]),
        ("placement = \"fast\"", ["scheduler.placement", "\"first\""]),
        ("tune = 1", ["scheduler.tune", "true"]),
        ("range = 64", ["scheduler.range", "range_bytes"]),
    ];
    for (lines, parts) in cases {
        expect(&with_scheduler(lines), &parts);
    }
}
