use clap::Parser;
use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, KeyId, KeyMaterial, PortableEngine, Suite,
};
use testudo_engine_late::{LateConfig, LateEngine};

use super::*;

#[derive(Parser)]
struct Program {
    #[command(flatten)]
    options: PlacementsOptions,
}

fn options(words: &str) -> PlacementsOptions {
    Program::parse_from(["placements"].into_iter().chain(words.split_whitespace())).options
}

const TINY: &str = "--quick --trial-seconds 0.005 --engine portable --suites des-sha1,3des-sha1,aes128-sha1";

fn rows(options: &PlacementsOptions, devices: Vec<Candidate>) -> Vec<Value> {
    let Value::Array(rows) = measure(options, Vec::new(), devices).unwrap() else { panic!("no array") };
    rows
}

#[test]
fn every_placement_and_suite_has_rows_whose_shares_are_one() {
    let rows = rows(&options(&format!("{TINY} --sizes 64,1518")), Vec::new());
    let text = |row: &Value, key: &str| row[key].as_str().unwrap_or("-").to_owned();
    let mut seen: Vec<([String; 4], u32, f64)> = Vec::new();
    for row in rows.iter().filter(|row| row["test"] == "placement") {
        for key in [
            "placement",
            "suite",
            "frame_bytes",
            "throughput",
            "block",
            "turnaround_us",
            "share",
            "bottleneck",
        ] {
            assert!(row.get(key).is_some(), "{key} in {row}");
        }
        assert!(row["not_possible_here"].is_null(), "{row}");
        assert!(row["turnaround_us"].as_f64().is_some_and(|time| time >= 0.0), "{row}");
        assert!(row["worker_us"].as_f64() <= row["turnaround_us"].as_f64(), "{row}");
        // Where threads share a processor there may be no rate without loss.
        assert!(row["throughput"].is_null() || row["throughput"].as_f64().is_some_and(|rate| rate > 0.0));
        assert!(row["capacity"].as_f64().is_some_and(|rate| rate > 0.0), "{row}");
        assert_eq!((&row["quick"], &row["conforming"]), (&true.into(), &false.into()));
        let notes = row["notes"].as_array().unwrap();
        let has_note = |begin: &str| notes.iter().any(|note| note.as_str().unwrap().starts_with(begin));
        assert!(has_note("--quick: does not conform to RFC 2544"), "{row}");
        assert_eq!(has_note("cores shared: "), row["cores"]["shared"] == true, "{row}");
        let says_why_none = |note: &Value| {
            let note = note.as_str().unwrap();
            note.contains("packets") && !note.starts_with("bottleneck: ")
        };
        assert_eq!(row["throughput"].is_null(), notes.iter().any(says_why_none), "{row}");
        let numbers = ["frame_bytes", "io_threads"].map(|name| row[name].to_string());
        let [bytes, threads] = numbers;
        let key = [text(row, "suite"), text(row, "placement"), bytes, threads];
        match seen.iter_mut().find(|(known, ..)| *known == key) {
            Some((_, blocks, share)) => {
                *blocks += 1;
                *share += row["share"].as_f64().unwrap();
            }
            None => seen.push((key, 1, row["share"].as_f64().unwrap())),
        }
    }
    // Four placements of three suites, and forwarding with 0, 1 and 2 threads; two sizes.
    assert_eq!(seen.len(), (4 * 3 + 3) * 2);
    for (key, blocks, share) in seen {
        assert!(blocks == 4 && (share - 1.0).abs() < 1e-9, "{key:?}: {blocks} blocks, shares {share}");
    }
    let paper: Vec<_> = rows.iter().filter(|row| row["test"] == "paper").collect();
    assert_eq!(
        paper.iter().map(|row| row["paper"].as_str().unwrap()).collect::<Vec<_>>(),
        ["60", "1024", "350", "1450", "45"]
    );
    assert!(paper.iter().all(|row| row["here"].as_f64().is_some()));
}

#[test]
fn tables_have_units_the_papers_numbers_and_a_picture() {
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("placements.svg");
    let words = format!(
        "--quick --trial-seconds 0.005 --engine portable --suites des-sha1 --placements none,crypto --sizes 64 \
         --bypass-io-threads 0 --svg {}",
        picture.display()
    );
    let text = report(&options(&words), Vec::new(), Vec::new()).unwrap();
    println!("{text}");
    for part in [
        "--quick: does not conform to RFC 2544",
        "throughput (Mbit/s)",
        "cores (worker / generator / I/O / crypto)",
        "IPsec look-up (µs)",
        "paper: cryptography (µs)",
        "80 to 90",
        "cores (portable)",
        "bypass: gain by I/O threads, up to (figure 3)",
        "not measured",
        "memory (MiB)",
    ] {
        assert!(text.contains(part), "{part}");
    }
    // The worker has the last processor, the generator the first, and where nothing is offloaded nobody else.
    let all = processors();
    let cores = format!(" {} / {} / - / - ", all[all.len() - 1], all[0]);
    assert!(text.lines().filter(|line| line.contains(&cores)).count() == 2, "DES, and bypass: {cores}");
    let drawn = std::fs::read_to_string(picture).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.contains("des-sha1: turnaround by placement"));
    assert!(drawn.contains("crypto: cryptography") && drawn.contains("bypass: capacity by placement"));
}

#[test]
fn latencies_under_half_of_the_throughput_stand_beside_the_bound() {
    let words = "--quick --trial-seconds 0.02 --engine portable --suites aes128gcm16 --placements none,crypto \
                 --sizes 64 --bypass-io-threads none --latency --bound-us 50000";
    let all = rows(&options(words), Vec::new());
    let measured: Vec<_> = all.iter().filter(|row| row["latency_us"].is_object()).collect();
    println!("{measured:#?}");
    let has_throughput = |row: &&Value| row["block"].is_string() && row["throughput"].is_number();
    assert_eq!(measured.len(), all.iter().filter(has_throughput).count());
    for row in measured {
        let latency = &row["latency_us"];
        assert_eq!((&latency["bound"], &latency["slices"]), (&50_000.into(), &10.into()), "{row}");
        let counted = latency["here"].is_object() || latency["apart"] == latency["slices"];
        assert!(counted, "what is not here is apart: {row}");
        // One repetition says nothing of others.
        assert!(latency["repeat_spread"].is_null() && latency["converged"] != true, "{row}");
    }
    let text = report(&options(words), Vec::new(), Vec::new()).unwrap();
    assert!(text.contains("bound (µs)") && text.contains("50000") && text.contains("apart (%)"), "{text}");
    let without = rows(&options(&words.replace("--latency ", "")), Vec::new());
    assert!(without.iter().all(|row| !row["latency_us"].is_object()));
}

#[test]
fn a_device_that_is_not_there_is_a_reason_and_one_that_is_unknown_an_error() {
    let absent = || {
        let open = || -> Result<Box<dyn Engine>, EngineError> {
            Err(EngineError::Unavailable { engine: "gpu", reason: "there is no such device".to_owned() })
        };
        vec![Candidate { name: "gpu", open: Box::new(open) }]
    };
    let words = "--quick --trial-seconds 0.005 --engine portable --suites des-sha1 --sizes 64 --bypass-io-threads none";
    let gpu = options(&format!("{words} --offload-engine gpu"));
    let rows = rows(&gpu, absent());
    for placement in Placement::ALL {
        let of_it: Vec<_> = rows.iter().filter(|row| row["placement"] == placement.name()).collect();
        let reasons: Vec<_> = of_it.iter().filter_map(|row| row["not_possible_here"].as_str()).collect();
        match placement.has_crypto() {
            true => assert!(of_it.len() == 1 && reasons[0].contains("there is no such device"), "{of_it:?}"),
            false => assert!(of_it.len() == 4 && reasons.is_empty(), "{of_it:?}"),
        }
    }
    let text = report(&gpu, Vec::new(), absent()).unwrap();
    assert!(text.contains("des-sha1, crypto, frames of 64: not possible here: "), "{text}");
    let unknown = options(&format!("{words} --offload-engine abacus"));
    let error = measure(&unknown, Vec::new(), absent()).err().unwrap().to_string();
    assert!(error.contains("there is no engine \"abacus\"; expected cores, gpu"), "{error}");
}

const POCL: &str = "Portable Computing Language, a processor: for correctness, not for speed";

/// The portable engine, as a device that is none.
struct OnTheProcessor {
    name: &'static str,
    description: &'static str,
    engine: PortableEngine,
}

impl Engine for OnTheProcessor {
    fn name(&self) -> &'static str {
        self.name
    }
    fn description(&self) -> String {
        self.description.to_owned()
    }
    fn capability(&self, suite: Suite) -> Option<Capability> {
        self.engine.capability(suite)
    }
    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        self.engine.install(key, direction)
    }
    fn remove(&mut self, key: KeyId) {
        self.engine.remove(key);
    }
    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        self.engine.submit(jobs)
    }
}

/// The only row of what is offloaded to an engine that says this of itself, with these options.
fn of_device(name: &'static str, description: &'static str, offload: &str) -> Value {
    let words = "--quick --trial-seconds 0.005 --engine portable --suites des-sha1 --sizes 64";
    let words = format!("{words} --placements crypto --bypass-io-threads none {offload}");
    let open = move || -> Result<Box<dyn Engine>, EngineError> {
        Ok(Box::new(OnTheProcessor { name, description, engine: PortableEngine::new() }))
    };
    let rows = rows(&options(&words), vec![Candidate { name, open: Box::new(open) }]);
    let of_it: Vec<_> = rows.iter().filter(|row| row["placement"] == "crypto").collect();
    assert_eq!(of_it.len(), 1, "{of_it:?}");
    of_it[0].clone()
}

#[test]
fn a_processor_in_a_devices_place_is_not_measured() {
    let software = "DPDK 22.11.5, crypto_aesni_mb, 2 queue pairs, in software";
    for (name, description, offload, told) in [
        ("gpu", POCL, "--offload-engine gpu --gpu pocl", "PoCL: correctness only"),
        (
            "cryptodev",
            software,
            "--offload-engine cryptodev",
            "a driver in software; cryptodev would take nothing off the worker's processor",
        ),
    ] {
        let row = of_device(name, description, offload);
        assert!(row["not_possible_here"].as_str().is_some_and(|why| why.starts_with(told)), "{row}");
        assert!(row["throughput"].is_null() && row["capacity"].is_null(), "{row}");
    }
}

#[test]
fn options_that_would_do_nothing_are_refused() {
    for (words, told) in [
        ("--gpu H200", "--gpu is of --offload-engine gpu, and the cryptography is offloaded to cores"),
        ("--offload-engine gpu --crypto-threads 1", "is of --offload-engine cores, and the cryptography is"),
        ("--flows 3 --sas 4", "--flows: 4 SAs need as many"),
    ] {
        let error = measure(&options(words), Vec::new(), Vec::new()).err().unwrap().to_string();
        assert!(error.contains(told), "{error}");
    }
}

#[test]
fn a_device_that_is_there_gets_the_cryptography_and_is_timed_from_outside() {
    let late = || {
        let open = || -> Result<Box<dyn Engine>, EngineError> {
            Ok(Box::new(LateEngine::new(Box::new(PortableEngine::new()), LateConfig::reliable(1))))
        };
        vec![Candidate { name: "late", open: Box::new(open) }]
    };
    let words = "--quick --trial-seconds 0.005 --engine portable --suites aes128gcm16 --sizes 64 --placements crypto \
                 --bypass-io-threads none --offload-engine late";
    let rows = rows(&options(words), late());
    let cryptography = rows.iter().find(|row| row["block"] == "cryptography").unwrap();
    assert_eq!(cryptography["engine"], "late");
    // It waits there, and the worker only hands it over.
    assert!(cryptography["turnaround_us"].as_f64() > cryptography["worker_us"].as_f64(), "{cryptography}");
}

#[test]
fn wrong_options_are_refused_and_setups_are_made_once() {
    for wrong in [
        "--placements all",
        "--sizes 63",
        "--io-threads 4",
        "--io-threads 0",
        "--bypass-io-threads 3",
        "--suites none",
        "--mtu 100",
        "--repetitions 0",
        "--crypto-threads 0",
        "--bound-us 49",
    ] {
        let words = ["placements"].into_iter().chain(wrong.split(' '));
        assert!(Program::try_parse_from(words).is_err(), "{wrong}");
    }
    let twice =
        options("--suites des-sha1,des-sha1 --placements none,none --bypass-io-threads 0,0 --sizes 64,64");
    assert_eq!((twice.setups(&[0, 1]).unwrap().len(), twice.sizes().len()), (2, 1));
    let deviation = |words| options(words).deviation();
    assert!(deviation("--trial-seconds 60").is_none() && deviation("").is_some());
    assert_eq!(deviation("--quick --trial-seconds 60").unwrap(), "--quick: does not conform to RFC 2544");
    let without = options("--suites des-sha1 --placements none --bypass-io-threads none");
    assert_eq!(without.setups(&[0, 1]).unwrap().len(), 1);
}
