//! Rows with Scapy as the peer: `testudo replay` on packet files, judged by `tests/scapy/rows.py`.

use crate::engines::Engines;
use crate::support::config::write_private;
use crate::support::{Outcome, ensure};
use serde_json::Value;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use testudo_crypto::Suite;
use testudo_judge::harness::TestResult;
use testudo_judge::interop::{Mode, Protocol, Row, Verdict};
use testudo_judge::scapy;

/// Rows in one configuration, which one Python process judges.
pub const LOT: usize = 64;

const TESTUDO: &str = env!("CARGO_BIN_EXE_testudo");
const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/scapy");
const SEED: &str = "4301";
/// With ESN, some of a row's packets have a number below 2^32 and the others one above.
const BEFORE_THE_HIGH_HALF: u64 = 0xFFFF_FFFA;

/// Expects that every row passes with a gateway that has these engines. `purpose` names the folder.
pub fn pass(purpose: &str, rows: &[Row], engines: Engines) -> TestResult {
    let scapy = Scapy::find(purpose)?;
    let mut complaints = Vec::new();
    for lot in rows.chunks(LOT) {
        let verdicts = scapy.judge(lot, engines)?;
        let failed = verdicts.iter().filter(|(_, verdict)| *verdict != Verdict::Pass);
        complaints.extend(failed.map(|(row, verdict)| format!("{row}: {}", verdict.reason())));
    }
    ensure(complaints.is_empty(), || complaints.join("\n"))
}

/// Scapy, and the folder for what it is handed.
pub struct Scapy {
    scapy: scapy::Scapy,
    version: String,
    folder: PathBuf,
}

impl Scapy {
    /// `purpose` names the folder.
    pub fn find(purpose: &str) -> Outcome<Self> {
        let scapy = scapy::Scapy::find(Path::new(SCRIPTS))?;
        let version = format!("Scapy {}", scapy.version()?);
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("scapy-rows-{purpose}"));
        Ok(Self { scapy, version, folder })
    }

    /// Name and version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// What became of each row, with a gateway that has these engines. Of a GPU's every packet must be its
    /// own.
    ///
    /// # Errors
    /// The judge could not be run, or did not speak of all rows.
    pub fn judge(&self, rows: &[Row], engines: Engines) -> Outcome<Vec<(Row, Verdict)>> {
        let configuration = self.configure(rows, engines)?;
        let mut words = vec![configuration.as_os_str(), OsStr::new(SEED)];
        words.extend(engines.gpu().map(OsStr::new));
        let said = self.scapy.judge("rows.py", Path::new(TESTUDO), &words)?;
        let mut reasons = HashMap::new();
        for line in said.lines() {
            let line: Value = serde_json::from_str(line)?;
            let (tunnel, reason) = (line["tunnel"].as_str(), line["reason"].as_str());
            reasons.insert(tunnel.ok_or("no tunnel")?.to_owned(), reason.ok_or("no reason")?.to_owned());
        }
        ensure(reasons.len() == rows.len(), || format!("{} rows judged of {}", reasons.len(), rows.len()))?;
        let mut verdicts = Vec::new();
        for (index, row) in rows.iter().enumerate() {
            let verdict = match reasons.remove(&name(index)) {
                None => return Err(format!("{row} was not judged").into()),
                Some(reason) if reason.is_empty() => Verdict::Pass,
                Some(reason) => Verdict::Fail(reason),
            };
            verdicts.push((*row, verdict));
        }
        Ok(verdicts)
    }

    /// Writes a gateway with a tunnel for each row; returns the path of its configuration.
    fn configure(&self, rows: &[Row], engines: Engines) -> Outcome<PathBuf> {
        let [named, sections] = engines.lines();
        // Jumbo frames inside, so that a long datagram leaves as one packet; the path outside has 1,500
        // bytes.
        let mut text = format!(
            r#"
[gateway]
{named}state = "state.redb"

[port.protected]
kind = "tun"
name = "testudo0"
mtu = 9000
routes = false

[port.unprotected]
kind = "socket"
mtu = 1500
{sections}"#
        );
        fs::create_dir_all(&self.folder)?;
        for (index, row) in rows.iter().enumerate() {
            write!(text, "{}", table(index, row)?)?;
            for (direction, mark) in [("out", 0), ("in", 0x40)] {
                let mark = u8::try_from(index + mark)?;
                let file = |kind: &str| self.folder.join(format!("{}-{direction}{kind}.key", name(index)));
                write_private(&file(""), &key(row.suite, mark))?;
                if let Some(ah) = row.ah {
                    write_private(&file("-ah"), &key(ah, mark ^ 0x80))?;
                }
            }
        }
        let path = self.folder.join("gateway.toml");
        fs::write(&path, text)?;
        Ok(path)
    }
}

fn name(index: usize) -> String {
    format!("row{index}")
}

/// Keying material in hex, different for every mark.
fn key(suite: Suite, mark: u8) -> String {
    let bytes = (0..=u8::MAX).map(|at| mark ^ at.wrapping_mul(7)).take(suite.keying_material_bytes());
    bytes.fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// The `[[tunnel]]` of a row, with a peer of its own.
fn table(index: usize, row: &Row) -> Outcome<String> {
    let host = index + 10;
    let [local, remote] = match row.ipv6 {
        true => ["2001:db8::1".to_owned(), format!("2001:db8::{host}")],
        false => ["192.0.2.1".to_owned(), format!("192.0.2.{host}")],
    };
    let selector = |local: &str, remote: &str| format!("{{ local = \"{local}\", remote = \"{remote}\" }}");
    let selectors = match (row.mode, row.ipv6) {
        (Mode::Transport, true) => selector(&format!("{local}/128"), &format!("{remote}/128")),
        (Mode::Transport, false) => selector(&format!("{local}/32"), &format!("{remote}/32")),
        (Mode::Tunnel, _) => {
            let ipv4 = selector(&format!("10.{host}.0.0/24"), &format!("10.{host}.1.0/24"));
            let ipv6 = selector(&format!("fd00:{host}::0/64"), &format!("fd00:{host}:1::0/64"));
            format!("{ipv4}, {ipv6}")
        }
    };
    let suites = match (row.protocol, row.ah) {
        (Protocol::Ah, _) => format!("suite = \"{}\"", row.suites()),
        (_, Some(ah)) => {
            let ah = ah.ah_name().ok_or("a suite that AH does not have")?;
            format!("suite = \"{}\"\nah_suite = \"{ah}\"", row.suite)
        }
        (_, None) => format!("suite = \"{}\"", row.suite),
    };
    let (protocol, encapsulation) = match row.protocol {
        Protocol::Esp => ("esp", "encapsulation = \"esp\""),
        Protocol::EspInUdp => ("esp", "encapsulation = \"esp-in-udp\""),
        Protocol::Ah => ("ah", ""),
        Protocol::AhAndEsp => ("ah+esp", ""),
    };
    let (tunnel, spi) = (name(index), 0x0101_0101 * (index + 1));
    let sa = |direction: &str| {
        let of_ah = format!(", ah_spi = {spi:#x}, ah_key_file = \"{tunnel}-{direction}-ah.key\"");
        let of_ah = if row.ah.is_some() { of_ah } else { String::new() };
        format!("{{ spi = {spi:#x}, key_file = \"{tunnel}-{direction}.key\"{of_ah} }}")
    };
    let (first, received) = match row.esn {
        true => (BEFORE_THE_HIGH_HALF, format!(", inbound_sequence_number = {}", BEFORE_THE_HIGH_HALF - 1)),
        false => (1, String::new()),
    };
    Ok(format!(
        r#"
[[tunnel]]
name = "{tunnel}"
local = "{local}"
remote = "{remote}"
protocol = "{protocol}"
{encapsulation}
mode = "{mode}"
{suites}
allow_legacy = {is_legacy}
allow_manual_counter_nonce = {has_counter_nonces}
esn = {esn}
selectors = [ {selectors} ]
outbound = {out}
inbound = {inbound}
known_answer = {{ next_sequence_number = {first}, iv_seed = 0x0123456789abcdef{received} }}
"#,
        mode = row.mode.name(),
        is_legacy = row.is_legacy(),
        has_counter_nonces = row.has_counter_nonces(),
        esn = row.esn,
        out = sa("out"),
        inbound = sa("in"),
    ))
}
