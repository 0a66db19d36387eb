//! `testudo bench` through its public entry point: what it prints, and that it rejects an engine that cheats.

#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::Value;
use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, JobStatus, KeyId, KeyMaterial, PortableEngine,
    Requirement, Suite,
};
use testudo_engine_late::{LateConfig, LateEngine};
use testudo_gateway::Candidate;
use testudo_lab::bench::{BenchArgs, BenchError, Gpus, measure};

#[derive(Parser)]
struct Program {
    #[command(flatten)]
    bench: BenchArgs,
}

/// Short measurements with these additional options.
fn bench(words: &str, candidates: Vec<Candidate>) -> Result<Vec<Value>, BenchError> {
    let usual = if words.contains("--repetitions") { "" } else { "--repetitions 2" };
    let words = format!("bench --json {usual} --milliseconds 2 {words}");
    let options = Program::parse_from(words.split_whitespace()).bench.options;
    match measure(&options, candidates)? {
        Value::Array(cases) => Ok(cases),
        other => panic!("no array: {other}"),
    }
}

fn number(object: &Value, name: &str) -> f64 {
    object[name].as_f64().unwrap_or_else(|| panic!("{name} is no number in {object}"))
}

#[test]
fn a_run_has_all_cases_and_each_has_all_fields() {
    let cases = bench("--sizes 64,1420,imix --sas 1,5", Vec::new()).expect("figures");
    let recommended = Suite::ALL.iter().filter(|suite| suite.requirement() <= Requirement::Should).count();
    assert_eq!(cases.len(), recommended * 2 * 2 * 3);
    for case in &cases {
        assert!(Suite::ALL.iter().any(|suite| case["suite"] == suite.to_string()), "{case}");
        assert!(["outbound", "inbound"].iter().any(|direction| case["direction"] == *direction), "{case}");
        assert!(case["inner_bytes"] == "imix" || case["inner_bytes"].is_u64(), "{case}");
        assert_eq!((&case["engine"], &case["encapsulation"]), (&"portable".into(), &"esp".into()));
        assert!(case["sas"] == 1 || case["sas"] == 5);
        assert_eq!(case["repetitions"], 2);
        assert!(!case["cores"]["worker"].as_array().expect("processors").is_empty(), "{case}");
        for figure in [
            "packets_per_second",
            "gbit_s",
            "cycles_per_packet",
            "cycles_per_byte",
            "floor_cycles_per_packet",
            "processor_share",
        ] {
            let [lowest, median, highest] =
                ["_lowest", "", "_highest"].map(|end| number(case, &format!("{figure}{end}")));
            assert!(0.0 < lowest && lowest <= median && median <= highest, "{figure} in {case}");
        }
        let shares = case["stages"].as_object().expect("an object");
        let sum: f64 = shares.values().filter_map(Value::as_f64).sum();
        assert!(shares.contains_key("cryptography") && (sum - 1.0).abs() < 1e-6, "{case}");
        // Every packet kept by the measurement was judged: at least one round of all flows in each
        // repetition.
        assert!(number(case, "judged_packets") >= 2.0 * 512.0 && number(case, "packets") > 0.0, "{case}");
    }
}

#[test]
fn gbit_and_cycles_per_byte_count_inner_packets() {
    for case in bench("--sizes 1000 --suites aes128gcm16", Vec::new()).expect("figures") {
        let ratio = number(&case, "gbit_s") / (number(&case, "packets_per_second") * 8000.0 / 1e9);
        assert!((ratio - 1.0).abs() < 1e-9, "{case}");
        let ratio = number(&case, "cycles_per_packet") / number(&case, "cycles_per_byte");
        assert!((ratio - 1000.0).abs() < 1e-6, "{case}");
    }
}

#[test]
fn esp_in_udp_is_measured_too() {
    let cases = bench("--sizes 64 --suites chacha20poly1305 --encapsulation esp-in-udp", Vec::new());
    assert!(cases.expect("figures").iter().all(|case| case["encapsulation"] == "esp-in-udp"));
}

/// An engine that records the suites of its jobs, and whether it sealed or opened.
struct Noting {
    inner: PortableEngine,
    suites: HashMap<KeyId, Suite>,
    seen: Arc<Mutex<HashSet<(Suite, bool)>>>,
}

impl Engine for Noting {
    fn name(&self) -> &'static str {
        "noting"
    }

    fn description(&self) -> String {
        "notes suites".to_owned()
    }

    fn capability(&self, suite: Suite) -> Option<Capability> {
        self.inner.capability(suite)
    }

    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        let id = self.inner.install(key, direction)?;
        self.suites.insert(id, key.suite());
        Ok(id)
    }

    fn remove(&mut self, key: KeyId) {
        self.inner.remove(key);
    }

    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        // The self-test submits single jobs, of every suite.
        let jobs_of_bursts = if jobs.len() > 1 { &*jobs } else { &[] };
        seen.extend(
            jobs_of_bursts.iter().map(|job| (self.suites[&job.key], job.direction == Direction::Seal)),
        );
        self.inner.submit(jobs)
    }
}

#[test]
fn mixed_suites_are_all_there_and_every_packet_is_judged() {
    let seen = Arc::<Mutex<HashSet<_>>>::default();
    let shared = Arc::clone(&seen);
    let noting = move || -> Box<dyn Engine> {
        Box::new(Noting { inner: PortableEngine::new(), suites: HashMap::new(), seen: Arc::clone(&shared) })
    };
    let words = "--suites mixed --sas 60 --sizes random,imix --formation none,suite,length --engines noting";
    let cases = bench(words, candidate("noting", noting)).expect("figures");
    assert_eq!(cases.len(), 2 * 3 * 2);
    for (index, case) in cases.iter().enumerate() {
        assert_eq!((&case["suite"], &case["judge"]), (&"mixed".into(), &"portable".into()));
        assert_eq!(case["formation"], ["none", "suite", "length"][index / 2 % 3]);
        assert_eq!(case["inner_bytes"], ["random", "imix"][index % 2]);
        // At least one whole round in each of two repetitions.
        assert!(number(case, "judged_packets") >= 2.0 * 980.0, "{case}");
        let mean = number(case, "gbit_s") * 1e9 / 8.0 / number(case, "packets_per_second");
        let expected = if index % 2 == 0 { 700.0..770.0 } else { 355.0..359.0 };
        assert!(expected.contains(&mean), "{mean} bytes a packet in {case}");
    }
    // Both directions of nine suites.
    assert_eq!(seen.lock().expect("nobody panicked").len(), 2 * 9);
}

/// Ciphers without authentication, too, which no gateway can have (RFC 8221 4): papers 001 and 002 measure
/// them.
#[test]
fn all_suites_and_ciphers_alone_are_measured_and_judged() {
    let words = "--suites all --sizes 64 --directions outbound --repetitions 1";
    let cases = bench(words, Vec::new()).expect("figures");
    let measured: Vec<_> = cases.iter().map(|case| case["suite"].as_str().expect("a name")).collect();
    assert_eq!(measured, Suite::measurable().map(|suite| suite.to_string()).collect::<Vec<_>>());
    assert!(measured.contains(&"aes128-none") && measured.contains(&"des-md5"));
    assert!(cases.iter().all(|case| number(case, "judged_packets") >= 512.0));
}

#[test]
fn the_default_formation_is_the_gateways() {
    let cases = bench("--suites aes128-sha1 --sizes 64", Vec::new()).expect("figures");
    assert!(cases.iter().all(|case| case["formation"] == "length"));
}

#[test]
fn twenty_thousand_sas_take_long_packets() {
    let words = "--suites aes128gcm16 --sas 20000 --sizes 1400 --directions outbound --repetitions 1";
    let cases = bench(words, Vec::new()).expect("figures");
    assert_eq!((&cases[0]["sas"], &cases[0]["policies"]), (&20_000.into(), &20_000.into()));
    // The packets kept from a round are judged.
    assert!(number(&cases[0], "judged_packets") > 10_000.0, "{}", cases[0]);
}

#[test]
fn policies_for_other_networks_do_not_catch_the_traffic() {
    let cases =
        bench("--suites aes128gcm16 --sizes 64 --sas 1,300 --policies 200", Vec::new()).expect("figures");
    let policies: Vec<_> = cases.iter().map(|case| (number(case, "sas"), number(case, "policies"))).collect();
    assert_eq!(policies, [(1.0, 200.0), (300.0, 300.0), (1.0, 200.0), (300.0, 300.0)]);
}

/// More jobs than the packets that are judged before a measured run.
const HONEST_JOBS: usize = 2000;

/// How an engine cheats once it has passed its self-test and the first packets.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Cheat {
    /// One bit of each ICV is wrong.
    WrongIcv,
    /// Nothing is encrypted; opened packets are left as they were.
    NoWork,
    /// A byte of the text is altered after the ICV was computed or checked.
    WrongText,
    /// Some jobs are not done.
    Faults,
}

impl Cheat {
    fn spoil(self, job: &mut Job) {
        let (start, end) = (job.text_start as usize, (job.text_start + job.text_bytes) as usize);
        let bytes = job.buffer.bytes_mut();
        match self {
            Cheat::WrongIcv if job.direction == Direction::Seal => bytes[end] ^= 1,
            Cheat::WrongText => bytes[start + 30] ^= 1,
            Cheat::Faults => job.status = JobStatus::Fault,
            Cheat::WrongIcv | Cheat::NoWork => {}
        }
    }

    /// An engine that is honest for this many jobs.
    fn after(self, mut honest_jobs: usize) -> Box<dyn Engine> {
        let submit = move |engine: &mut PortableEngine, jobs: &mut [Job]| {
            let is_honest = honest_jobs > jobs.len();
            honest_jobs = honest_jobs.saturating_sub(jobs.len());
            if !is_honest && self == Cheat::NoWork {
                jobs.iter_mut().for_each(|job| job.status = JobStatus::Done);
                return jobs.len();
            }
            let taken = engine.submit(jobs);
            if !is_honest {
                jobs.iter_mut().for_each(|job| self.spoil(job));
            }
            taken
        };
        Box::new(Changed { name: "cheater", inner: PortableEngine::new(), submit })
    }
}

/// The portable engine, with a changed `submit`.
struct Changed<S> {
    name: &'static str,
    inner: PortableEngine,
    submit: S,
}

impl<S: FnMut(&mut PortableEngine, &mut [Job]) -> usize + Send> Engine for Changed<S> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn description(&self) -> String {
        "portable, changed by a test".to_owned()
    }

    fn capability(&self, suite: Suite) -> Option<Capability> {
        self.inner.capability(suite)
    }

    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        self.inner.install(key, direction)
    }

    fn remove(&mut self, key: KeyId) {
        self.inner.remove(key);
    }

    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        (self.submit)(&mut self.inner, jobs)
    }
}

fn candidate(name: &'static str, open: impl Fn() -> Box<dyn Engine> + Send + 'static) -> Vec<Candidate> {
    vec![Candidate { name, open: Box::new(move || Ok(open())) }]
}

/// The error for an engine that cheats in one direction.
fn verdict(cheat: Cheat, direction: &str) -> String {
    let opened = AtomicUsize::new(0);
    let cheater = move || -> Box<dyn Engine> {
        // The first instance measures the floor; the cheat must be noticed in the gateway.
        let is_first = opened.fetch_add(1, Ordering::Relaxed) == 0;
        cheat.after(if is_first { usize::MAX } else { HONEST_JOBS })
    };
    let words = format!("--engines cheater --suites aes128gcm16 --sizes 64 --directions {direction}");
    match bench(&words, candidate("cheater", cheater)) {
        Err(error) => error.to_string(),
        Ok(figures) => panic!("{cheat:?} was believed: {figures:?}"),
    }
}

#[test]
fn an_engine_whose_packets_no_peer_accepts_is_found_out() {
    for cheat in [Cheat::WrongIcv, Cheat::NoWork, Cheat::WrongText] {
        let verdict = verdict(cheat, "outbound");
        assert!(verdict.contains("a peer refuses the sealed packets"), "{cheat:?}: {verdict}");
        assert!(verdict.starts_with("aes128gcm16 outbound, 64 bytes, 1 SA, esp, cheater: "), "{verdict}");
    }
}

#[test]
fn an_engine_that_falsely_claims_to_have_opened_packets_is_found_out() {
    let verdict_on = |cheat| verdict(cheat, "inbound");
    // Without decryption, the padding or the packet after it is wrong.
    assert!(verdict_on(Cheat::NoWork).contains("drops: bad_"), "{}", verdict_on(Cheat::NoWork));
    assert!(verdict_on(Cheat::WrongText).contains("packets came out changed"));
}

#[test]
fn packets_that_an_engine_loses_are_found_missing() {
    for direction in ["outbound", "inbound"] {
        let verdict = verdict(Cheat::Faults, direction);
        assert!(verdict.contains("engine_fault"), "{verdict}");
    }
}

#[test]
fn an_engine_that_answers_late_is_measured_like_others() {
    let late = || -> Box<dyn Engine> {
        // The worker never has more packets in flight than buffers, so the queue never overflows.
        let config = LateConfig { queue_jobs: 1 << 16, ..LateConfig::reliable(1) };
        Box::new(LateEngine::new(Box::new(PortableEngine::new()), config))
    };
    let cases =
        bench("--engines late --suites aes128gcm16 --sizes 64,imix --sas 1,3", candidate("late", late));
    assert_eq!(cases.expect("figures").len(), 2 * 2 * 2);
}

/// The stage clock measures one turn in several, so a run of only a few turns may contain no measured turn.
/// Where a round of packets is one turn (9,000 bytes), that would happen in both directions.
#[test]
fn stages_are_measured_however_slow_an_engine_is() {
    let slow = || -> Box<dyn Engine> {
        let submit = |engine: &mut PortableEngine, jobs: &mut [Job]| {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_micros(100) {
                std::hint::spin_loop();
            }
            engine.submit(jobs)
        };
        Box::new(Changed { name: "slow", inner: PortableEngine::new(), submit })
    };
    let words = "--engines slow --suites aes128gcm16 --sizes 1420,9000";
    for case in bench(words, candidate("slow", slow)).expect("figures") {
        assert!(number(&case["stages"], "cryptography") > 0.5, "{case}");
    }
}

#[test]
fn impossible_measurements_are_refused_in_one_line() {
    let error = |words: &str| bench(words, Vec::new()).expect_err(words).to_string();
    assert_eq!(error("--engines gpu"), "there is no engine \"gpu\"; the engines are portable");
    let few = error("--suites mixed --sas 60,5");
    assert_eq!(few, "--suites mixed needs --sas 9 or more: it has 9 suites, and 5 is too few");
    assert!(error("--sas 65536 --sizes 16000").contains("at most 33321 SAs"));
    let missing = Candidate {
        name: "missing",
        open: Box::new(|| {
            Err(EngineError::Unavailable { engine: "missing", reason: "no such library".to_owned() })
        }),
    };
    let error = bench("--engines missing", vec![missing]).expect_err("no engine").to_string();
    assert_eq!(error, "engine missing is not available: no such library");
}

/// A machine without a GPU.
fn no_gpus() -> Gpus {
    Gpus {
        find: Box::new(|_, _| Err("there is none".to_owned())),
        idle: Box::new(|| Err("there is none".to_owned())),
        steps: |_, _, _, _| None,
    }
}

/// Rows of `bench scheduler` with these options.
fn scheduler(words: &str) -> Vec<Value> {
    let words = format!("bench scheduler --json --chunks 4 {words}");
    let bench = Program::parse_from(words.split_whitespace()).bench;
    match bench.rows(Vec::new(), &no_gpus()) {
        Ok(Value::Array(rows)) => rows,
        other => panic!("no array: {other:?}"),
    }
}

/// Figure 9: what each idea is worth does not depend on a machine's speed.
#[test]
fn lanes_are_used_the_better_the_more_a_chunk_is_sorted() {
    let rows = scheduler("--experiment ideas --sizes random");
    let of = |setting: &str, name: &str| {
        let row = rows.iter().find(|row| row["setting"] == setting);
        number(row.unwrap_or_else(|| panic!("no {setting}")), name)
    };
    let lanes = |setting: &str| of(setting, "lanes_used");
    println!("{rows:#?}");
    assert!(lanes("no scheduling") < 0.5 * lanes("by algorithm"), "groups of one kind are small");
    assert!(lanes("by algorithm") < 0.9 * lanes("by algorithm and length"));
    assert!(lanes("all") > 0.75, "{}", lanes("all"));
    let predicted = |setting: &str| of(setting, "predicted_gbit_s");
    assert!(predicted("all") > 1.02 * predicted("by algorithm and length"), "the longest first");
    assert!(predicted("all") > 1.5 * predicted("no scheduling"), "paper: 1.87");
    for row in &rows {
        assert_eq!(row["reordered"], 0, "{row}");
        assert!(number(row, "spilled") < 0.05 * number(row, "judged_packets"), "{row}");
        assert!(row["gbit_s"].is_null() && row["note"].is_null(), "a model has no speed: {row}");
        assert!(number(row, "judged_packets") >= 6.0 * 4096.0, "{row}");
        assert!(row["device"].as_str().is_some_and(|device| device.contains("no device")), "{row}");
    }
}

/// Changes are made while packets flow: none is lost, and none is elsewhere in its SA's order.
#[test]
fn self_tuning_finds_better_parameters_while_packets_flow() {
    let rows = scheduler("--experiment tuning --sizes 64");
    println!("{rows:#?}");
    assert_eq!(rows.len(), 2);
    for row in &rows {
        assert_eq!(row["reordered"], 0, "{row}");
        assert!(number(&row["tuned"], "changes") >= 1.0, "{row}");
        let chunk = number(&row["tuned"], "chunk");
        assert!(chunk > number(row, "chunk"), "launching is much of the time of so short packets: {row}");
        let spilled = number(row, "spilled") / number(row, "judged_packets");
        assert!(spilled < 0.2, "{spilled} of the packets found no room");
    }
}

/// Figure 14(a): the smaller the chunk, the sooner a packet leaves; what a model says is a prediction.
#[test]
fn packets_stay_the_longer_the_larger_a_chunk_is() {
    let rows = scheduler("--experiment latency --sizes 1280");
    println!("{rows:#?}");
    let [small, usual, large] = rows.as_slice() else { panic!("{} rows", rows.len()) };
    let median = |row: &Value| number(&row["predicted_latency_us"], "p50");
    assert!(median(small) < 0.7 * median(usual) && median(usual) < 0.7 * median(large));
    for row in &rows {
        assert!(row["latency_us"].is_null() && row["reordered"] == 0, "{row}");
        assert!(number(&row["predicted_latency_us"], "p99") >= median(row), "{row}");
        let points = row["predicted_latency_us"]["distribution"].as_array().expect("a distribution");
        let longest = number(points.last().expect("quantiles"), "us");
        let mean = number(&row["predicted_latency_us"], "mean");
        assert!(mean > 0.0 && mean < longest, "{row}");
        assert!(!row["processors"]["worker"].as_array().expect("processors").is_empty(), "{row}");
    }
}
