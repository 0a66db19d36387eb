//! With devices in memory: one that says it is a GPU, one that says it is PoCL, and none.

use std::collections::{HashMap, VecDeque};

use serde_json::Value;
use testudo_crypto::{
    Capability, Cipher, Direction, Engine, EngineError, Job, JobStatus, KeyFrame, KeyId, KeyMaterial,
    PortableEngine, Profile, Suite, frame,
};

use super::*;

#[derive(clap::Parser)]
struct Program {
    #[command(flatten)]
    options: BenchGpuOptions,
}

fn options(words: &str) -> BenchGpuOptions {
    let words = ["gpu"].into_iter().chain(words.split_whitespace());
    <Program as clap::Parser>::parse_from(words).options
}

/// At which jobs a device fails, counted from its start with those of its self-test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fails {
    Never,
    /// All behind so many, and it says that it is out of service.
    Behind(u64),
    /// Each second one behind so many, and it says nothing.
    EachSecondBehind(u64),
}

impl Fails {
    fn at(self, number: u64) -> bool {
        match self {
            Self::Never => false,
            Self::Behind(last) => number > last,
            Self::EachSecondBehind(last) => number > last && number.is_multiple_of(2),
        }
    }
}

/// A deep engine: what it is given it does when it is asked, by the portable engine. It writes headers.
struct Deep {
    says: &'static str,
    fails: Fails,
    ended: u64,
    portable: PortableEngine,
    frames: HashMap<KeyId, (Option<KeyFrame>, Suite)>,
    open: VecDeque<Job>,
    away: VecDeque<VecDeque<Job>>,
}

impl Deep {
    fn new(says: &'static str) -> Self {
        Self::that(says, Fails::Never)
    }

    fn that(says: &'static str, fails: Fails) -> Self {
        Self {
            says,
            fails,
            ended: 0,
            portable: PortableEngine::new(),
            frames: HashMap::new(),
            open: VecDeque::new(),
            away: VecDeque::new(),
        }
    }
}

impl Engine for Deep {
    fn name(&self) -> &'static str {
        GPU
    }

    fn description(&self) -> String {
        self.says.to_owned()
    }

    fn capability(&self, suite: Suite) -> Option<Capability> {
        let capability = self.portable.capability(suite)?;
        // One that fails does at its start what its self-test asks of it: few jobs, without frames.
        let writes_frames = self.fails == Fails::Never && !suite.is_for_vpe();
        Some(Capability { writes_frames, takes_chains: false, ..capability })
    }

    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        let id = self.portable.install(key, direction)?;
        self.frames.insert(id, (key.frame(), key.suite()));
        Ok(id)
    }

    fn remove(&mut self, key: KeyId) {
        self.portable.remove(key);
    }

    fn profile(&self, _: Suite) -> Profile {
        Profile { under_way: 2, ..Profile::of_depth(4096) }
    }

    fn is_synchronous(&self) -> bool {
        false
    }

    fn is_out_of_service(&self) -> bool {
        matches!(self.fails, Fails::Behind(last) if self.ended > last)
    }

    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        if self.away.len() >= 2 {
            return 0;
        }
        self.open.extend(jobs.iter_mut().map(Job::take));
        jobs.len()
    }

    fn flush(&mut self) {
        if !self.open.is_empty() {
            self.away.push_back(std::mem::take(&mut self.open));
        }
    }

    fn poll(&mut self, done: &mut Vec<Job>, max: usize) {
        for _ in 0..max {
            let Some(first) = self.away.front_mut() else { return };
            match first.pop_front() {
                None => drop(self.away.pop_front()),
                Some(mut job) => {
                    self.ended += 1;
                    if self.fails.at(self.ended) {
                        job.status = JobStatus::Fault;
                        done.push(job);
                        continue;
                    }
                    if job.unwritten.trailer().is_some() {
                        let (frame, suite) = self.frames[&job.key];
                        assert!(frame::complete(&mut job, frame.unwrap(), suite));
                    }
                    let mut jobs = [job];
                    self.portable.submit(&mut jobs);
                    done.extend(jobs);
                }
            }
        }
    }

    fn in_flight(&self) -> usize {
        self.open.len() + self.away.iter().map(VecDeque::len).sum::<usize>()
    }
}

/// A device whose launches take times that are known.
struct Timed(Deep);

impl TimedDevice for Timed {
    fn engine(&mut self) -> &mut dyn Engine {
        &mut self.0
    }

    fn time(&mut self, _: u32) -> Result<Launches, String> {
        let mut jobs: Vec<Job> = self.0.open.drain(..).collect();
        assert!(jobs.is_sorted_by_key(|job| std::cmp::Reverse(job.text_bytes)));
        self.0.portable.submit(&mut jobs);
        assert!(jobs.iter().all(|job| job.status == JobStatus::Done), "they are a gateway's");
        let us = Duration::from_micros;
        Ok(Launches {
            packets: jobs.len(),
            transfer_bytes: jobs.iter().map(|job| job.text_bytes as usize).sum(),
            kernel: us(100),
            transfers: us(50),
            bus: us(25),
            with_transfers: us(200),
            alone: us(300),
        })
    }
}

fn steps(suite: Suite, _: Direction, _: usize, _: usize) -> Option<Steps> {
    let is_done = !matches!(suite.cipher(), Cipher::ChaCha20Poly1305);
    is_done.then_some(Steps { cipher: 25, hash: 12, lanes: 1 })
}

fn gpus(says: Option<&'static str>) -> Gpus {
    gpus_that(says, Fails::Never)
}

/// Only gateways have those that fail.
fn gpus_that(says: Option<&'static str>, fails: Fails) -> Gpus {
    let find = move |_: Option<&str>, count: GpuCount| {
        let says = says.ok_or("nothing of the kind")?;
        let device = GpuDevice {
            engine: Box::new(move || Ok(Box::new(Deep::that(says, fails)))),
            timed: (count == GpuCount::default()).then(|| -> devices::Open<dyn TimedDevice> {
                Box::new(move || Ok(Box::new(Timed(Deep::new(says)))))
            }),
        };
        Ok(vec![device])
    };
    Gpus { find: Box::new(find), idle: Box::new(|| Ok(Box::new(Deep::new("idle")))), steps }
}

fn rows_of(words: &str, says: Option<&'static str>) -> (Vec<Value>, String) {
    let words = format!("--milliseconds 2 --suites aes128-sha1 --sizes 1024 {words}");
    let (json, gpus) = (options(&format!("{words} --json")), gpus(says));
    let Value::Array(rows) = array(&json, Vec::new(), &gpus).unwrap() else { panic!("no array") };
    (rows, measure(&options(&words), Vec::new(), &gpus).unwrap())
}

const SPEEDS: [&str; 5] =
    ["kernels_gbit_s", "with_transfers_gbit_s", "bus_gbit_s", "gateway_gbit_s", "gateways_gbit_s"];

#[test]
fn a_gpu_is_measured_from_its_kernels_to_gateways_beside_the_processor_and_pipsea() {
    let (rows, text) = rows_of("", Some("A Maker, a GPU, 32 lanes"));
    println!("{rows:#?}\n{text}");
    assert_eq!(rows.len(), 2);
    for row in &rows {
        assert!(SPEEDS.iter().all(|name| row[name].as_f64().is_some_and(|rate| rate > 0.0)), "{row:#}");
        // 2,048 frames of 1,024 bytes with 18 more, in 100 and 200 µs.
        let near = |name: &str, gbit_s: f64| (row[name].as_f64().unwrap() / gbit_s - 1.0).abs() < 1e-9;
        assert!(near("kernels_gbit_s", 2048.0 * 1042.0 * 8e-5), "{row:#}");
        assert!(near("with_transfers_gbit_s", 2048.0 * 1042.0 * 4e-5), "{row:#}");
        // Of the bus both ways at once, not of copies there and back one after the other.
        assert!(near("bus_gbit_s", 2048.0 * 1042.0 * 32e-5), "{row:#}");
        assert!(near("transfers_us", 50.0) && near("bus_us", 25.0), "{row:#}");
        for name in ["latency_us", "processor_latency_us"] {
            assert!(row[name]["p99"].as_f64() >= row[name]["p50"].as_f64(), "{row:#}");
            assert!(row[name]["p50"].as_f64().is_some_and(|us| us > 0.0), "{row:#}");
        }
        assert!(row["note"].is_null() && row["predicted_limit"].is_null(), "{row:#}");
        assert!(row["judged_packets"].as_u64().is_some_and(|judged| judged > 0), "{row:#}");
        assert_eq!(row["processor_engine"], "portable");
        let named = |role: &str| row["cores"][role].as_array().map_or(0, Vec::len);
        assert!((1..=2).contains(&named("worker")) && named("gateways") == processors().len(), "{row:#}");
        assert!(row["spilled"].as_f64().is_some_and(|share| share < 0.05), "{row:#}");
    }
    assert_eq!((&rows[0]["pipsea_gbit_s"], &rows[1]["pipsea_gbit_s"]), (&10.36.into(), &Value::Null));
    for part in ["gpu (A Maker, a GPU, 32 lanes)", "PIPSEA", "Goal of aes128-sha1 at 1024 bytes", "p99 µs"] {
        assert!(text.contains(part), "{part}");
    }
    assert!(!text.contains("prediction"), "{text}");
}

/// Else the row, and each after it, would have the processor's figures under the GPU's name.
#[test]
fn a_gpu_that_goes_out_of_service_in_a_row_is_an_error_that_names_it_and_no_figure() {
    // More packets than that are let through before any count.
    let gpus = gpus_that(Some("A Maker, a GPU"), Fails::Behind(10_000));
    for parts in ["gateways", "gateways,latency,processor"] {
        let words =
            format!("--milliseconds 2 --suites aes128-sha1 --sizes 64 --directions outbound --parts {parts}");
        let error = measure(&options(&words), Vec::new(), &gpus).unwrap_err().to_string();
        assert!(error.starts_with("aes128-sha1 outbound, 64: gpu "), "{error}");
        assert!(error.contains("out of service"), "{error}");
    }
}

/// Whatever the reason: bins were full, it was late, or the GPU has failed at them.
#[test]
fn what_the_processor_did_of_a_gpus_packets_is_told_and_no_part_of_the_goal() {
    let words = "--milliseconds 2 --suites aes128-sha1 --sizes 1024 --directions outbound";
    let options = options(&format!("{words} --parts gateways,latency"));
    let gpus = gpus_that(Some("A Maker, a GPU"), Fails::EachSecondBehind(4000));
    let (rows, _) = rows(&options, Vec::new(), &gpus).unwrap();
    let (text, json) = (report::table(&rows, None, &options.model(), 1), report::json(&rows));
    let row = &json[0];
    let [rate, spilled] = ["gateways_gbit_s", "spilled"].map(|name| row[name].as_f64().unwrap());
    for share in [&row["gateway_spilled"], &row["spilled"], &row["latency_us"]["spilled"]] {
        assert!(share.as_f64().is_some_and(|share| (0.2..1.0).contains(&share)), "{row:#}");
    }
    assert!(text.contains("spilled %"), "{text}");
    let of_gpu =
        format!("of packets that the GPU did: 200 Gbit/s: not reached ({:.1})", rate * (1.0 - spilled));
    assert!(text.contains(&of_gpu), "{of_gpu}: {text}");
    assert!(text.contains("below 1 ms at p99: not known, "), "{text}");
}

/// Several as one engine are measured end to end; what a launch takes is each device's own.
#[test]
fn several_gpus_are_measured_as_one_engine_without_launches() {
    let (rows, text) = rows_of("--gpus 2 --directions outbound", Some("A Maker, a GPU; A Maker, a GPU"));
    assert_eq!(rows.len(), 1);
    assert!(["gateway_gbit_s", "gateways_gbit_s"].iter().all(|name| rows[0][name].as_f64() > Some(0.0)));
    assert!(["kernels_gbit_s", "bus_gbit_s"].iter().all(|name| rows[0][name].is_null()), "{:#}", rows[0]);
    assert!(!text.contains("kernel µs"), "{text}");
    let error = measure(&options("--gpus all"), Vec::new(), &gpus(None)).unwrap_err();
    assert!(matches!(&error, BenchError::Engine(reason) if reason == "nothing of the kind"), "{error}");
}

/// Each figure that the paper has of a row stands beside it: those end to end, and those of kernels.
#[test]
fn pipseas_figures_stand_beside_every_suite_and_size_that_has_one() {
    let words = "--suites null-sha1 --sizes 1280,random --parts launches";
    let (rows, text) = rows_of(words, Some("A Maker, a GPU, 32 lanes"));
    assert_eq!(rows.len(), 2 * 3 * 2);
    for row in &rows {
        let of = [&row["suite"], &row["direction"], &row["inner_bytes"]].map(Value::to_string).join(" ");
        let (end_to_end, alone) = match of.as_str() {
            r#""aes128-sha1" "outbound" 1024"# => (Some(10.36), None),
            r#""aes128-sha1" "outbound" 1280"# => (Some(11.09), Some(13.87)),
            r#""aes128-sha1" "outbound" "random""# => (Some(10.66), None),
            r#""null-sha1" "outbound" 1280"# => (None, Some(39.37)),
            _ => (None, None),
        };
        let printed = ["pipsea_gbit_s", "pipsea_alone_gbit_s"].map(|name| row[name].as_f64());
        assert_eq!(printed, [end_to_end, alone], "{of}");
    }
    assert!(text.contains("PIPSEA: kernels"), "{text}");
}

/// The rows of headers by the GPU are of outbound packets, and of its gateways alone.
#[test]
fn headers_by_the_gpu_are_measured_beside_those_by_the_processor() {
    let words = "--headers cpu,gpu --parts launches,gateways,processor";
    let (rows, text) = rows_of(words, Some("A Maker, a GPU, 32 lanes"));
    let who: Vec<_> = rows.iter().map(|row| [&row["direction"], &row["headers"]]).collect();
    assert_eq!(who, [["outbound", "cpu"], ["outbound", "gpu"], ["inbound", "cpu"]]);
    let by_gpu = &rows[1];
    for name in ["gateway_gbit_s", "gateways_gbit_s"] {
        assert!(by_gpu[name].as_f64().is_some_and(|rate| rate > 0.0), "{by_gpu:#}");
    }
    for name in ["kernels_gbit_s", "one_core_gbit_s", "processor_engine"] {
        assert!(by_gpu[name].is_null() && !rows[0][name].is_null(), "{name}: {by_gpu:#}");
    }
    assert!(by_gpu["judged_packets"].as_u64().is_some_and(|judged| judged > 0), "{by_gpu:#}");
    assert!(text.contains("aes128-sha1 outbound, 1024, headers by the GPU"), "{text}");
    assert_eq!(text.matches("Goal of aes128-sha1").count(), 1, "{text}");
}

#[test]
fn headers_by_pocl_are_judged_and_have_no_speed() {
    let words = "--headers gpu --parts gateways --directions outbound --gpu pocl";
    let (rows, _) = rows_of(words, Some("Portable Computing Language, a processor"));
    assert_eq!((rows.len(), &rows[0]["headers"]), (1, &"gpu".into()));
    assert!(SPEEDS.iter().all(|name| rows[0][name].is_null()), "{:#}", rows[0]);
    assert!(rows[0]["judged_packets"].as_u64() >= Some(256), "{:#}", rows[0]);
    let inbound =
        options("--milliseconds 2 --suites aes128-sha1 --sizes 64 --headers gpu --directions inbound");
    let error = measure(&inbound, Vec::new(), &gpus(Some("A Maker, a GPU"))).unwrap_err();
    assert!(matches!(error, BenchError::Usage(_)), "{error}");
}

#[test]
fn pocl_has_judged_packets_no_speed_and_no_pipsea_beside_it() {
    let (rows, text) = rows_of("--gpu pocl", Some("Portable Computing Language, a processor"));
    println!("{text}");
    for row in &rows {
        assert!(SPEEDS.iter().all(|name| row[name].is_null()), "{row:#}");
        assert!(row["latency_us"].is_null() && row["pipsea_gbit_s"].is_null(), "{row:#}");
        assert_eq!(row["note"], "PoCL: correctness only");
        assert!(row["judged_packets"].as_u64() >= Some(256), "each of a few packets: {row:#}");
        assert!(row["one_core_gbit_s"].as_f64() > Some(0.0), "the processor's is one: {row:#}");
    }
    assert!(text.contains("no speed was measured") && text.contains("judged"), "{text}");
    assert!(!text.contains("PIPSEA") && !text.contains("kernel µs"), "{text}");
}

#[test]
fn without_a_gpu_a_model_predicts_and_says_so() {
    let (rows, text) = rows_of("--parts launches,gateways --bus-gb-s 10", None);
    println!("{text}");
    for row in &rows {
        assert!(SPEEDS.iter().all(|name| row[name].is_null()) && row["device"].is_null(), "{row:#}");
        assert!(row["note"].as_str().is_some_and(|note| note.contains("prediction")), "{row:#}");
        let [kernels, both, occupancy] =
            ["kernels_gbit_s", "with_transfers_gbit_s", "occupancy"].map(|name| {
                let name = format!("predicted_{name}");
                row[name.as_str()].as_f64().unwrap()
            });
        assert!(kernels >= both && both > 0.0 && (0.0..=1.0).contains(&occupancy), "{row:#}");
        assert_eq!(row["predicted_limit"], "bus", "{row:#}");
        assert!(row["cores"]["worker"].is_array() && row["cores"]["gateways"].is_null(), "{row:#}");
        assert!(row["pipsea_gbit_s"].is_null(), "{row:#}");
        let of = |name: &str| row[name].as_f64().unwrap();
        for (predicted, handed_over) in
            [("predicted_gateway_gbit_s", "worker_gbit_s"), ("predicted_gateways_gbit_s", "workers_gbit_s")]
        {
            let least = of("predicted_with_transfers_gbit_s").min(of(handed_over));
            assert!(least > 0.0 && (of(predicted) - least).abs() < 1e-9 * least, "{row:#}");
        }
        let is_of_workers = of("workers_gbit_s") < of("predicted_with_transfers_gbit_s");
        let limit = if is_of_workers { "workers" } else { "device" };
        assert_eq!(row["predicted_gateways_limit"], limit, "{row:#}");
        assert!(of("worker_cycles_per_packet") > 0.0 && of("workers") >= 1.0, "{row:#}");
    }
    assert!(text.contains("prediction: gateways") && text.contains("a device that does nothing"), "{text}");
    let (launches, _) = rows_of("--parts launches", None);
    assert!(launches.iter().all(|row| row["worker_gbit_s"].is_null()), "{launches:#?}");
    assert!(launches.iter().all(|row| row["predicted_gateways_gbit_s"].is_null()), "{launches:#?}");
    assert!(text.starts_with("No GPU here: nothing of the kind.\n"), "{text}");
    assert!(text.contains("prediction: kernels") && text.contains("Nobody has measured it"), "{text}");
    assert!(!text.contains("one core  "), "parts that were not wanted are not there: {text}");
}

#[test]
fn a_gpu_that_was_named_must_be_there_and_suites_must_be_the_kernels() {
    let error = measure(&options("--gpu abacus"), Vec::new(), &gpus(None)).unwrap_err();
    assert!(matches!(&error, BenchError::Engine(reason) if reason == "nothing of the kind"), "{error}");
    let words = "--suites chacha20poly1305";
    let error = measure(&options(words), Vec::new(), &gpus(None)).unwrap_err();
    assert!(matches!(error, BenchError::Usage(_)), "{error}");
    let all = options("").cells(steps);
    let quick = options("--quick").cells(steps);
    assert!(all.len() > 40 * 10, "every suite, two directions, five sizes: {}", all.len());
    assert_eq!(quick.len(), 5 * 10);
}
