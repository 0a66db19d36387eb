//! DPDK for tests of cryptodevs, without huge pages.
//!
//! The plugin is built by `scripts/shim.sh`. Where DPDK is not installed, the tests fail, unless
//! `TESTUDO_WITHOUT_DPDK=1` says that this is known.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use testudo_conformance::{differential, run};
use testudo_crypto::{Engine, EngineError, PortableEngine, Suite};
use testudo_engine_cryptodev::{CryptodevConfig, CryptodevEngine};
use testudo_port_dpdk::{EalConfig, FILE, Plugin};

/// Devices that a scheduler spreads jobs over. Engines of one process share its EAL.
pub const WORKERS: [&str; 2] = ["crypto_aesni_mb_one", "crypto_aesni_mb_two"];

/// The plugin, built once; `None` where DPDK is known to be missing.
pub fn plugin(folder: &str) -> Option<Plugin> {
    static PLUGIN: OnceLock<Plugin> = OnceLock::new();
    if std::env::var_os("TESTUDO_WITHOUT_DPDK").is_some() {
        println!("not tested, as TESTUDO_WITHOUT_DPDK allows");
        return None;
    }
    let build = || {
        let plugin = Plugin::open(Some(&built(folder).join(FILE)));
        plugin.unwrap_or_else(|e| panic!("{e}; without DPDK, set TESTUDO_WITHOUT_DPDK=1"))
    };
    Some(*PLUGIN.get_or_init(build))
}

fn built(folder: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
    let mut build = Command::new(root.join("scripts/shim.sh"));
    let output = build.arg(&folder).arg("dpdk").output().unwrap_or_else(|e| panic!("scripts/shim.sh: {e}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}; without DPDK, set TESTUDO_WITHOUT_DPDK=1");
    folder
}

pub fn open(plugin: Plugin, device: &str) -> Result<CryptodevEngine, EngineError> {
    let mut arguments: Vec<String> = ["--no-huge", "-m", "768"].map(str::to_owned).into();
    WORKERS.iter().for_each(|worker| arguments.extend(["--vdev".to_owned(), (*worker).to_owned()]));
    let eal = EalConfig { arguments, pci: Vec::new() };
    CryptodevEngine::open(plugin, &CryptodevConfig { keys: 1_000, eal, ..CryptodevConfig::of(device) })
}

/// The device passes the suite and agrees with the portable engine, in at least so many suites.
pub fn conforms(plugin: Plugin, device: &str, at_least: usize) {
    let mut make = || -> Box<dyn Engine> { Box::new(open(plugin, device).unwrap_or_else(|e| panic!("{e}"))) };
    let engine = make();
    let suites = Suite::ALL.iter().filter(|suite| engine.capability(**suite).is_some()).count();
    println!("{}: {}, {suites} suites", engine.name(), engine.description());
    assert!(suites >= at_least, "{suites} suites");
    drop(engine);
    run(&mut make).assert_passed();
    for seed in 1..=3 {
        let compared = differential(make().as_mut(), &mut PortableEngine::new(), seed);
        assert_eq!(compared, Ok(2_000));
    }
}
