//! The engine `cryptodev` in the program: a device of DPDK's in software seals what every engine seals,
//! status and errors name it, and where it is missing the next engine is used.
//!
//! The plugin is built by `scripts/shim.sh`. Where DPDK is not installed, the tests fail, unless
//! `TESTUDO_WITHOUT_DPDK=1` says that this is known.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, dead_code, reason = "a test that cannot prepare its files has failed")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::capture::capture;
use support::config::{CONFIGURATION, pair};
use support::gateway::{PROGRAM, Said};
use support::wait;
use tempfile::TempDir;

const NO_ENGINE: i32 = 5;

/// A folder with packets for a tunnel, and the configuration of its gateway.
struct Fixture {
    folder: TempDir,
    program: PathBuf,
}

impl Fixture {
    /// `program` finds the plugin beside itself, or does not.
    fn new(program: PathBuf, suite: &str, device: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut config = pair(true).unwrap()[0].clone();
        config.unprotected = "interface = \"eth0\"".to_owned();
        config.tunnels[0].selectors = vec![("10.1.0.0/16".to_owned(), "10.2.0.0/16".to_owned())];
        config.tunnels[0].more = "known_answer = { next_sequence_number = 1, iv_seed = 7 }".to_owned();
        config.tunnels[0].suite = suite.to_owned();
        config.tunnels[0].outbound = support::config::Sa::random(0x1001, suite).unwrap();
        config.tunnels[0].inbound = support::config::Sa::random(0x1002, suite).unwrap();
        config.write(folder.path()).unwrap();
        let path = folder.path().join(CONFIGURATION);
        let text = fs::read_to_string(&path).unwrap();
        let text = text.replacen("[gateway]\n", "[gateway]\nengines = [\"cryptodev\", \"portable\"]\n", 1);
        let section = format!("\n[engine.cryptodev]\ndevice = \"{device}\"\neal = [\"--no-huge\"]\n");
        fs::write(&path, text + &section).unwrap();
        fs::write(folder.path().join("in.pcap"), capture().unwrap()).unwrap();
        Self { folder, program }
    }

    fn replay(&self, output: &str, words: &[&str]) -> Said {
        let mut command = Command::new(&self.program);
        let output = format!("unprotected={output}");
        let files = ["replay", CONFIGURATION, "--rx", "protected=in.pcap", "--tx", &output];
        command.current_dir(self.folder.path()).args(files).args(words);
        wait::output(&mut command).unwrap().into()
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.folder.path().join(name)).unwrap()
    }
}

/// The program with the plugin beside it; `None` where DPDK is known to be missing.
fn with_plugin(folder: &str) -> Option<PathBuf> {
    if std::env::var_os("TESTUDO_WITHOUT_DPDK").is_some() {
        println!("not tested, as TESTUDO_WITHOUT_DPDK allows");
        return None;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let program = alone(folder);
    let folder = program.parent().unwrap();
    let output = Command::new(root.join("scripts/shim.sh")).arg(folder).arg("dpdk").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}; without DPDK, set TESTUDO_WITHOUT_DPDK=1");
    Some(program)
}

/// The program in a folder of its own.
fn alone(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&folder).unwrap();
    let program = folder.join("testudo");
    if program.exists() {
        fs::remove_file(&program).unwrap();
    }
    fs::hard_link(PROGRAM, &program).unwrap();
    program
}

#[test]
fn devices_of_dpdk_seal_what_the_portable_engine_seals() {
    let Some(program) = with_plugin("cryptodev-seals") else { return };
    for device in ["crypto_aesni_mb", "crypto_openssl"] {
        for suite in ["aes128gcm16", "aes256-sha256", "aes128gmac"] {
            let fixture = Fixture::new(program.clone(), suite, device);
            let by_device = fixture.replay("device.pcap", &["--engine", "cryptodev"]);
            assert_eq!(by_device.code, Some(0), "{device}, {suite}: {by_device:#?}");
            let by_portable = fixture.replay("portable.pcap", &["--engine", "portable"]);
            assert_eq!(by_portable.code, Some(0), "{suite}: {by_portable:#?}");
            let sealed = fixture.read("device.pcap");
            assert!(sealed.len() > 200 * 700, "{} bytes", sealed.len());
            assert!(sealed == fixture.read("portable.pcap"), "{device}, {suite}");
        }
    }
}

#[test]
fn a_device_that_is_missing_is_told_in_one_line() {
    let Some(program) = with_plugin("cryptodev-missing") else { return };
    let fixture = Fixture::new(program, "aes128gcm16", "crypto_nonsense");
    let said = fixture.replay("out.pcap", &["--engine", "cryptodev"]);
    assert_eq!(said.code, Some(NO_ENGINE), "{said:#?}");
    assert!(said.stderr.lines().count() == 1 && said.stderr.contains("crypto_nonsense"), "{said:#?}");
    let said = fixture.replay("out.pcap", &[]);
    assert_eq!(said.code, Some(0), "the next engine does it: {said:#?}");
}

#[test]
fn without_the_plugin_the_next_engine_is_used_and_one_line_says_what_to_install() {
    let fixture = Fixture::new(alone("without-plugin"), "aes128gcm16", "crypto_aesni_mb");
    let said = fixture.replay("out.pcap", &["--engine", "cryptodev"]);
    assert_eq!(said.code, Some(NO_ENGINE), "{said:#?}");
    assert!(said.stderr.lines().count() == 1 && said.stderr.contains("libdpdk-dev"), "{said:#?}");
    let said = fixture.replay("out.pcap", &[]);
    assert_eq!(said.code, Some(0), "{said:#?}");
    let said = fixture.replay("portable.pcap", &["--engine", "portable"]);
    assert_eq!(said.code, Some(0), "{said:#?}");
    assert!(fixture.read("out.pcap") == fixture.read("portable.pcap"));
}
