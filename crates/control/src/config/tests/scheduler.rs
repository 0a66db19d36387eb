//! `[scheduler]`.

use super::{MINIMAL, expect, good};
use crate::config::Threading;
use std::time::Duration;
use testudo_gateway::{PlacementMode, SchedulerSettings, ThreadingModel};

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

/// With these engines, and more lines of `[gateway]`.
fn with_engines(gateway: &str, lines: &str) -> String {
    with_scheduler(lines).replacen("[gateway]\n", &format!("[gateway]\n{gateway}\n"), 1)
}

#[test]
fn threads_are_those_that_are_written_where_there_is_a_device() {
    assert_eq!(good(MINIMAL).threading, Threading::default());
    let gpu = "engines = [\"gpu\", \"portable\"]";
    for model in ThreadingModel::ALL {
        let line = format!("threading = \"{}\"", model.name());
        let model = Some(model);
        assert_eq!(good(&with_engines(gpu, &line)).threading, Threading { model, processors: Vec::new() });
    }
    let written = good(&with_engines(gpu, "threading = \"two_io\"\nprocessors = [2, 3]")).threading;
    assert_eq!(written, Threading { model: Some(ThreadingModel::TwoIo), processors: vec![2, 3] });
}

/// Each device has a thread: processors are theirs, in the order of `engines`, then the transmit thread's.
#[test]
fn each_thread_beside_the_worker_has_a_processor_of_its_own() {
    let lines = "\n[engine.cryptodev]\ndevice = \"crypto_aesni_mb\"\n";
    let both = |line: &str| {
        let engines = "engines = [\"cryptodev\", \"vaes\", \"gpu\", \"portable\"]";
        with_engines(engines, line) + lines
    };
    let two_io = "threading = \"two_io\"\nprocessors = [4, 5, 6]";
    let written = good(&both(two_io));
    let (threading, engines) = (written.threading, written.gateway.engines);
    let of = |engine| threading.processor_of_device(&engines, engine);
    assert_eq!((of("cryptodev (crypto_aesni_mb)"), of("gpu"), of("vaes")), (Some(4), Some(5), None));
    assert_eq!(threading.processor_of_transmit(&engines), Some(6));
    let one_io = good(&both("threading = \"one_io\"\nprocessors = [4]")).threading;
    assert_eq!(one_io.processor_of_device(&engines, "gpu"), None, "it goes where the kernel puts it");
    for (line, told) in [
        ("threading = \"one_io\"\nprocessors = [4, 5, 6]", "at most 2 processors"),
        ("threading = \"two_io\"\nprocessors = [4, 5, 4]", "two different"),
    ] {
        expect(&both(line), &["scheduler.processors[2]", told]);
    }
}

/// It has the threads that the device, the workers and the ports allow for, and refuses none of them.
#[test]
fn threads_that_the_scheduler_chooses_need_nothing() {
    for gateway in ["", "engines = [\"gpu\", \"portable\"]", "workers = 4"] {
        let threading = good(&with_engines(gateway, "threading = \"auto\"")).threading;
        assert_eq!(threading, Threading { model: None, processors: Vec::new() });
    }
    let written = good(&with_engines("", "threading = \"auto\"\nprocessors = [2, 3]")).threading;
    assert_eq!(written, Threading { model: None, processors: vec![2, 3] });
    let same = "threading = \"auto\"\nprocessors = [3, 3]";
    expect(&with_engines("", same), &["scheduler.processors", "two different"]);
}

#[test]
fn threads_that_nothing_would_be_done_on_are_refused_where_they_stand() {
    let gpu = "engines = [\"gpu\", \"portable\"]";
    let cases = [
        ("", "threading = \"one_io\"", ["scheduler.threading", "an engine on a device"]),
        ("engines = [\"portable\"]", "threading = \"two_io\"", ["scheduler.threading", "run_to_completion"]),
        (gpu, "threading = \"three_io\"", ["scheduler.threading", "\"auto\""]),
        (gpu, "processors = [1]", ["scheduler.processors", "one_io"]),
        (
            gpu,
            "threading = \"one_io\"\nprocessors = [1, 2, 3]",
            ["scheduler.processors", "one processor with"],
        ),
        (gpu, "threading = \"two_io\"\nprocessors = [1, 2, 3]", ["scheduler.processors", "at most 2"]),
        (gpu, "threading = \"two_io\"\nprocessors = [1, 2, 3, 4]", ["scheduler.processors", "at most 3"]),
        (gpu, "threading = \"one_io\"\nprocessors = [1, 2]", ["scheduler.processors", "one processor with"]),
        (gpu, "threading = \"two_io\"\nprocessors = [3, 3]", ["scheduler.processors", "two different"]),
        (gpu, "threading = \"one_io\"\nprocessors = [1024]", ["scheduler.processors[0]", "1023"]),
    ];
    for (gateway, lines, parts) in cases {
        expect(&with_engines(gateway, lines), &parts);
    }
    for workers in ["workers = 2", "workers_max = 4", "workers = \"all\""] {
        let gateway = format!("{gpu}\n{workers}");
        let parts = ["scheduler.threading", "`workers = 1`"];
        expect(&with_engines(&gateway, "threading = \"one_io\""), &parts);
    }
}
