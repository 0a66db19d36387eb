//! Testudo against Scapy, both ways, through `testudo replay`: every suite, IPv4 and IPv6 inside and outside
//! in every mix, sequence numbers of 32 and 64 bits from the first and to the last, ESP raw and in UDP.
//!
//! Each test runs one gateway with a tunnel for every case, of one suite or of several in turn, and one
//! Python process that plays the peers (`tests/scapy`). All random input comes from [`SEED`]. The files stay
//! in a folder that a failure names.
//!
//! Scapy 2.5 lacks AES-XCBC, AES-GMAC and implicit IVs; Linux lacks AES-GMAC in AH and implicit IVs. These
//! are written down in `tests/scapy/algorithms.py` from their RFCs, on OpenSSL's ciphers, and everything
//! around them is Scapy's.

#![allow(clippy::unwrap_used, reason = "a test that cannot prepare its files has failed")]

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use testudo_crypto::Suite;
use testudo_judge::scapy::{Scapy, ScapyError};

const TESTUDO: &str = env!("CARGO_BIN_EXE_testudo");
const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/scapy");
const SEED: &str = "4303";
/// The second packet from here on has a sequence number whose high half is 1; without ESN there is only one
/// more number.
const LAST_BUT_ONE_OF_32_BITS: u64 = 0xFFFF_FFFE;
/// Sizes of replay windows: the cases take them in turn.
const WINDOWS: [u32; 4] = [64, 128, 4096, 65_536];

/// One tunnel of the matrix, which carries both IPv4 and IPv6.
#[derive(Clone, Copy)]
struct Case {
    ipv6_outside: bool,
    esn: bool,
    udp: bool,
    first_number: u64,
}

fn matrix() -> Vec<Case> {
    let both = [false, true];
    let mut cases = Vec::new();
    for first_number in [1, LAST_BUT_ONE_OF_32_BITS] {
        for ipv6_outside in both {
            for esn in both {
                cases.extend(both.map(|udp| Case { ipv6_outside, esn, udp, first_number }));
            }
        }
    }
    cases
}

impl Case {
    fn name(self) -> String {
        format!(
            "ipv{}-{}-{}-from-{}",
            if self.ipv6_outside { 6 } else { 4 },
            if self.esn { "esn" } else { "noesn" },
            if self.udp { "udp" } else { "raw" },
            self.first_number,
        )
    }

    /// The case's `[[tunnel]]`. Any two SPIs differ in more than one bit, so that a flipped bit never selects
    /// another SA.
    fn table(self, index: usize, suite: &str) -> String {
        // RFC 8221 speaks against these.
        let is_legacy = ["des-", "3des-"].iter().any(|old| suite.starts_with(old)) || suite.ends_with("-md5");
        let has_implicit_iv = suite.ends_with("iiv");
        let (local, remote) =
            if self.ipv6_outside { ("2001:db8::1", "2001:db8::2") } else { ("192.0.2.1", "192.0.2.2") };
        let encapsulation = if self.udp { "esp-in-udp" } else { "esp" };
        let window = WINDOWS[index % WINDOWS.len()];
        let spi = 0x0101_0101 * (index + 1);
        let (name, esn, first) = (self.name(), self.esn, self.first_number);
        format!(
            r#"
[[tunnel]]
name = "{name}"
local = "{local}"
remote = "{remote}"
suite = "{suite}"
allow_legacy = {is_legacy}
allow_manual_counter_nonce = {has_implicit_iv}
encapsulation = "{encapsulation}"
esn = {esn}
replay_window = {window}
selectors = [
    {{ local = "10.{index}.0.0/17", remote = "10.{index}.128.0/17" }},
    {{ local = "fd00:{index}::/48", remote = "fd00:{index}:1::/48" }},
]
outbound = {{ spi = {spi:#x}, key_file = "{name}-out.key" }}
inbound = {{ spi = {spi:#x}, key_file = "{name}-in.key" }}
known_answer = {{ next_sequence_number = {first}, iv_seed = {iv_seed:#x} }}
"#,
            iv_seed = 0x0123_4567_89AB_CDEF_u64.rotate_left(u32::try_from(index).unwrap()) >> 1,
        )
    }
}

/// Creates a folder with a gateway for all cases, in which suites take turns; returns the path of the
/// configuration.
fn gateway(purpose: &str, suites: &[&str]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("scapy-{purpose}-{}", suites[0]));
    fs::create_dir_all(&folder).unwrap();
    let mut configuration = r#"
[gateway]
state = "state.redb"

[port.protected]
kind = "tun"
name = "testudo0"

[port.unprotected]
kind = "socket"
mtu = 1500
"#
    .to_owned();
    for (index, case) in matrix().into_iter().enumerate() {
        let suite = suites[index % suites.len()];
        write!(configuration, "{}", case.table(index, suite)).unwrap();
        for (direction, mark) in [("out", 0), ("in", 128)] {
            let key = key(suite, u8::try_from(mark + index).unwrap());
            write_private(&folder.join(format!("{}-{direction}.key", case.name())), &key);
        }
    }
    let path = folder.join("gateway.toml");
    fs::write(&path, configuration).unwrap();
    path
}

/// Keying material in hex, different for every mark.
fn key(suite: &str, mark: u8) -> String {
    key_of(suite.parse().unwrap(), mark)
}

fn key_of(suite: Suite, mark: u8) -> String {
    let bytes = u8::try_from(suite.keying_material_bytes()).unwrap();
    (0..bytes).map(|at| format!("{:02x}", mark ^ at.wrapping_mul(7))).collect()
}

/// Key files that others may read are refused.
fn write_private(path: &Path, text: &str) {
    let _ = fs::remove_file(path);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

fn judge(script: &str, arguments: &[&OsStr]) {
    let verdict =
        Scapy::find(Path::new(SCRIPTS)).and_then(|scapy| scapy.judge(script, Path::new(TESTUDO), arguments));
    match verdict {
        Ok(said) => println!("{said}"),
        Err(error @ ScapyError::Verdict { .. }) => panic!("{error}"),
        Err(error) => panic!("no judge: {error}"),
    }
}

fn scapy_opens_what_testudo_seals(suite: &str) {
    let configuration = gateway("opens", &[suite]);
    judge("testudo_seals.py", &[configuration.as_os_str(), OsStr::new(SEED)]);
}

fn testudo_opens_what_scapy_seals(suite: &str) {
    let configuration = gateway("seals", &[suite]);
    judge("testudo_opens.py", &[configuration.as_os_str(), OsStr::new(SEED)]);
}

#[test]
fn scapy_opens_exactly_what_testudo_seals_with_aes128gcm16() {
    scapy_opens_what_testudo_seals("aes128gcm16");
}

#[test]
fn scapy_opens_exactly_what_testudo_seals_with_aes256gcm16() {
    scapy_opens_what_testudo_seals("aes256gcm16");
}

#[test]
fn scapy_opens_exactly_what_testudo_seals_with_chacha20poly1305() {
    scapy_opens_what_testudo_seals("chacha20poly1305");
}

#[test]
fn testudo_opens_exactly_what_scapy_seals_with_aes128gcm16_and_counts_every_attack() {
    testudo_opens_what_scapy_seals("aes128gcm16");
}

#[test]
fn testudo_opens_exactly_what_scapy_seals_with_aes256gcm16_and_counts_every_attack() {
    testudo_opens_what_scapy_seals("aes256gcm16");
}

#[test]
fn testudo_opens_exactly_what_scapy_seals_with_chacha20poly1305_and_counts_every_attack() {
    testudo_opens_what_scapy_seals("chacha20poly1305");
}

#[test]
fn scapy_opens_exactly_what_testudo_seals_with_aes128_sha1() {
    scapy_opens_what_testudo_seals("aes128-sha1");
}

#[test]
fn scapy_opens_exactly_what_testudo_seals_with_aes256_sha256() {
    scapy_opens_what_testudo_seals("aes256-sha256");
}

#[test]
fn scapy_opens_exactly_what_testudo_seals_with_null_sha1() {
    scapy_opens_what_testudo_seals("null-sha1");
}

#[test]
fn testudo_opens_exactly_what_scapy_seals_with_aes128_sha1_and_counts_every_attack() {
    testudo_opens_what_scapy_seals("aes128-sha1");
}

#[test]
fn testudo_opens_exactly_what_scapy_seals_with_aes256_sha256_and_counts_every_attack() {
    testudo_opens_what_scapy_seals("aes256-sha256");
}

#[test]
fn testudo_opens_exactly_what_scapy_seals_with_null_sha1_and_counts_every_attack() {
    testudo_opens_what_scapy_seals("null-sha1");
}

#[test]
fn scapy_opens_exactly_what_testudo_seals_with_aes128_sha256() {
    scapy_opens_what_testudo_seals("aes128-sha256");
}

#[test]
fn testudo_opens_exactly_what_scapy_seals_with_aes128_sha256_and_counts_every_attack() {
    testudo_opens_what_scapy_seals("aes128-sha256");
}

#[test]
fn scapy_opens_exactly_what_testudo_seals_with_aes256_sha1() {
    scapy_opens_what_testudo_seals("aes256-sha1");
}

#[test]
fn testudo_opens_exactly_what_scapy_seals_with_aes256_sha1_and_counts_every_attack() {
    testudo_opens_what_scapy_seals("aes256-sha1");
}

#[test]
fn scapy_opens_exactly_what_testudo_seals_with_null_sha256() {
    scapy_opens_what_testudo_seals("null-sha256");
}

#[test]
fn testudo_opens_exactly_what_scapy_seals_with_null_sha256_and_counts_every_attack() {
    testudo_opens_what_scapy_seals("null-sha256");
}

#[test]
fn scapy_opens_exactly_what_testudo_seals_with_aes256_sha384() {
    scapy_opens_what_testudo_seals("aes256-sha384");
}

#[test]
fn scapy_opens_exactly_what_testudo_seals_with_aes256_sha512() {
    scapy_opens_what_testudo_seals("aes256-sha512");
}

#[test]
fn testudo_opens_exactly_what_scapy_seals_with_aes256_sha384_and_counts_every_attack() {
    testudo_opens_what_scapy_seals("aes256-sha384");
}

#[test]
fn testudo_opens_exactly_what_scapy_seals_with_aes256_sha512_and_counts_every_attack() {
    testudo_opens_what_scapy_seals("aes256-sha512");
}

/// Every primitive that Scapy 2.5 has, and that has no test of its own above, in one suite or two. Two suites
/// more than the matrix has cases: in the second round each suite meets a case of another kind.
const OTHER_SUITES: [&str; 18] = [
    "aes192gcm16",
    "aes128gcm8",
    "aes256gcm12",
    "aes128ccm8",
    "aes192ccm12",
    "aes256ccm16",
    "aes128ctr-sha256",
    "aes192ctr-sha1",
    "aes256ctr-sha512",
    "aes192-sha384",
    "3des-sha1",
    "3des-sha256",
    "des-md5",
    "null-aescmac",
    "aes128-aescmac",
    "aes256-md5",
    "null-sha384",
    "aes192gcm8",
];

/// What Scapy 2.5 lacks: AES-GMAC (RFC 4543), implicit IVs (RFC 8750), AES-XCBC (RFC 3566).
const SUITES_FROM_RFCS: [&str; 13] = [
    "aes128gmac",
    "aes192gmac",
    "aes256gmac",
    "aes128gcm16iiv",
    "aes192gcm16iiv",
    "aes256gcm16iiv",
    "aes128ccm8iiv",
    "aes192ccm8iiv",
    "aes256ccm8iiv",
    "chacha20poly1305iiv",
    "null-aesxcbc",
    "aes256-aesxcbc",
    "aes128ctr-aesxcbc",
];

/// The suites of two rounds over the matrix: all of them occur, in other cases in the second round.
fn rounds(suites: &[&'static str]) -> [Vec<&'static str>; 2] {
    let mut later = suites.to_vec();
    later.rotate_left(5);
    [suites.to_vec(), later]
}

#[test]
fn every_other_suite_occurs_in_a_round() {
    let cases = matrix().len();
    for suites in [&OTHER_SUITES[..], &SUITES_FROM_RFCS] {
        let seen: Vec<_> =
            rounds(suites).into_iter().flat_map(|round| round.into_iter().take(cases)).collect();
        assert!(suites.iter().all(|suite| seen.contains(suite)));
    }
}

fn scapy_opens_what_testudo_seals_in_rounds(suites: &[&'static str]) {
    for round in rounds(suites) {
        let configuration = gateway("opens", &round);
        judge("testudo_seals.py", &[configuration.as_os_str(), OsStr::new(SEED)]);
    }
}

fn testudo_opens_what_scapy_seals_in_rounds(suites: &[&'static str]) {
    for round in rounds(suites) {
        let configuration = gateway("seals", &round);
        judge("testudo_opens.py", &[configuration.as_os_str(), OsStr::new(SEED)]);
    }
}

#[test]
fn scapy_opens_exactly_what_testudo_seals_with_every_other_suite() {
    scapy_opens_what_testudo_seals_in_rounds(&OTHER_SUITES);
}

#[test]
fn testudo_opens_exactly_what_scapy_seals_with_every_other_suite_and_counts_every_attack() {
    testudo_opens_what_scapy_seals_in_rounds(&OTHER_SUITES);
}

#[test]
fn scapy_opens_exactly_what_testudo_seals_with_gmac_implicit_ivs_and_xcbc() {
    scapy_opens_what_testudo_seals_in_rounds(&SUITES_FROM_RFCS);
}

#[test]
fn testudo_opens_exactly_what_scapy_seals_with_gmac_implicit_ivs_and_xcbc_and_counts_every_attack() {
    testudo_opens_what_scapy_seals_in_rounds(&SUITES_FROM_RFCS);
}

/// Fragments of Scapy's, whole, reordered, repeated, missing, overlapping and lying: RFC 791 3.2, RFC 8200
/// 4.5, RFC 5722, RFC 6946, RFC 1858.
#[test]
fn testudo_reassembles_what_scapy_fragments_and_refuses_what_overlaps() {
    let configuration = gateway("fragments", &["aes128gcm16"]);
    judge("fragments.py", &[configuration.as_os_str(), OsStr::new(SEED)]);
}

/// Long packets are sealed whole and their datagrams cut; Scapy joins the fragments and opens them (RFC 4303
/// 3.3.4).
#[test]
fn what_testudo_cuts_after_encryption_scapy_joins_and_opens() {
    let configuration = gateway("fragments-sealed", &["aes128gcm16"]);
    let text = fs::read_to_string(&configuration).unwrap();
    fs::write(&configuration, text.replace("\nesn = ", "\nfragment = \"after\"\nesn = ")).unwrap();
    judge("fragments_sealed.py", &[configuration.as_os_str(), OsStr::new(SEED)]);
}

/// RFC 4301 7.3, 7.4: a first fragment decides for those that come after it, on its way alone; what overtakes
/// it, overlaps it or has another Identification is dropped. IPv4 and IPv6, in clear and through tunnels
/// whose ends have agreed on it or not.
#[test]
fn fragments_that_scapy_makes_follow_the_decision_on_their_first_one() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("scapy-policy-fragments");
    fs::create_dir_all(&folder).unwrap();
    judge("policy_fragments.py", &[folder.as_os_str(), OsStr::new(SEED)]);
}

/// RFC 7634 appendix A; the packets of draft-mcgrew-gcm-test-01 section 4 that a gateway in tunnel mode can
/// have; and those of RFC 3602 section 4 in tunnel mode, which are only opened.
#[test]
fn official_esp_packets_are_sealed_to_the_byte_and_opened() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("scapy-official");
    fs::create_dir_all(&folder).unwrap();
    judge("official.py", &[folder.as_os_str()]);
}

/// The protocols and modes, over either IP version, with and without ESN; suites take turns.
#[test]
fn scapy_and_testudo_open_each_others_ah_and_transport_mode() {
    let esp = ["aes128gcm16", "aes256-sha256", "chacha20poly1305", "aes128-sha1"];
    judge_encapsulations("encapsulations", "encapsulations.py", esp, ["sha256", "sha1", "aescmac", "sha512"]);
}

/// Fragments of AH and of AH over ESP, too, tunnel and transport: reassembled, or refused with their datagram
/// where any two overlap (RFC 5722 3).
#[test]
fn testudo_reassembles_every_encapsulation_that_scapy_fragments_and_refuses_what_overlaps() {
    let esp = ["aes128gcm16", "aes256-sha256", "chacha20poly1305", "aes128-sha1"];
    let ah = ["sha256", "aes128gmac", "aescmac", "sha512"];
    judge_encapsulations("encapsulations-fragments", "fragments_encapsulated.py", esp, ah);
}

/// The same with what Linux lacks: AES-GMAC in AH (RFC 4543 4), alone and around ESP, and implicit IVs (RFC
/// 8750).
#[test]
fn scapy_and_testudo_open_each_others_gmac_in_ah_and_implicit_ivs() {
    let esp = ["aes128gcm16iiv", "aes256gmac", "chacha20poly1305iiv", "aes256ccm8iiv"];
    let ah = ["aes128gmac", "aes256gmac", "aesxcbc", "aes192gmac"];
    judge_encapsulations("encapsulations-gmac", "encapsulations.py", esp, ah);
}

/// Has a script judge a gateway with two tunnels of each protocol and mode, over each IP version, with ESN
/// and without.
fn judge_encapsulations(name: &str, script: &str, esp_suites: [&str; 4], ah_suites: [&str; 4]) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("scapy-{name}"));
    fs::create_dir_all(&folder).unwrap();
    let mut configuration = r#"
[gateway]
state = "state.redb"

[port.protected]
kind = "tun"
name = "testudo0"
mtu = 1300
routes = false

[port.unprotected]
kind = "socket"
mtu = 1500
"#
    .to_owned();
    let mut index = 0;
    for protocol in ["esp", "ah", "ah+esp"] {
        for mode in ["tunnel", "transport"] {
            for (ipv6, esn) in [(false, false), (false, true), (true, false), (true, true)] {
                for turn in 0..2 {
                    let (esp, ah) =
                        (esp_suites[(index / 2 + 2 * turn) % 4], ah_suites[(index / 2 + turn) % 4]);
                    let suite = if protocol == "ah" { ah } else { esp };
                    write!(configuration, "{}", encapsulation(index, protocol, mode, suite, ah, ipv6, esn))
                        .unwrap();
                    for (at, direction) in ["out", "in"].into_iter().enumerate() {
                        let mark = u8::try_from(2 * index + at).unwrap();
                        let own = if protocol == "ah" { Suite::for_ah(suite) } else { suite.parse() };
                        let of_ah = Suite::for_ah(ah);
                        for (name, suite, mark) in [("", own, mark), ("-ah", of_ah, mark ^ 0x80)] {
                            let file = folder.join(format!("{index}-{direction}{name}.key"));
                            write_private(&file, &key_of(suite.unwrap(), mark));
                        }
                    }
                    index += 1;
                }
            }
        }
    }
    let path = folder.join("gateway.toml");
    fs::write(&path, configuration).unwrap();
    judge(script, &[path.as_os_str(), OsStr::new(SEED)]);
}

/// A `[[tunnel]]` with a peer of its own.
fn encapsulation(
    index: usize,
    protocol: &str,
    mode: &str,
    suite: &str,
    ah: &str,
    ipv6: bool,
    esn: bool,
) -> String {
    let host = index + 10;
    let [local, remote] = match ipv6 {
        true => ["2001:db8::1".to_owned(), format!("2001:db8::{host}")],
        false => ["192.0.2.1".to_owned(), format!("192.0.2.{host}")],
    };
    let selectors = match (mode, ipv6) {
        ("transport", true) => [format!("{local}/128"), format!("{remote}/128")],
        ("transport", false) => [format!("{local}/32"), format!("{remote}/32")],
        (_, true) => [format!("fd00:{host}::0/64"), format!("fd00:{host}:1::0/64")],
        (_, false) => [format!("10.{host}.0.0/24"), format!("10.{host}.1.0/24")],
    };
    let has_implicit_iv = protocol != "ah" && suite.ends_with("iiv");
    let (ah_suite, ah_sa) = match protocol {
        "ah+esp" => (format!("ah_suite = \"{ah}\""), true),
        _ => (String::new(), false),
    };
    let spi = 0x0101_0101 * (index + 1);
    let sa = |direction: &str| {
        let of_ah = format!(", ah_spi = {spi:#x}, ah_key_file = \"{index}-{direction}-ah.key\"");
        let of_ah = if ah_sa { of_ah } else { String::new() };
        format!("{{ spi = {spi:#x}, key_file = \"{index}-{direction}.key\"{of_ah} }}")
    };
    let [ours, theirs] = selectors;
    format!(
        r#"
[[tunnel]]
name = "{index}-{name}-{mode}"
local = "{local}"
remote = "{remote}"
protocol = "{protocol}"
mode = "{mode}"
suite = "{suite}"
{ah_suite}
allow_manual_counter_nonce = {has_implicit_iv}
esn = {esn}
selectors = [ {{ local = "{ours}", remote = "{theirs}" }} ]
outbound = {out}
inbound = {inbound}
known_answer = {{ next_sequence_number = {first}, iv_seed = 0x0123456789abcdef }}
"#,
        name = protocol.replace('+', "-"),
        out = sa("out"),
        inbound = sa("in"),
        first = if esn { 0xFFFF_FFF0_u64 } else { 1 },
    )
}

/// VPE, whose second implementation is a Scapy layer written from docs/VPE.md: in every suite, over IPv4,
/// IPv6 and in UDP, with padding, fill packets, and attacks that are counted by their names.
#[test]
fn scapy_and_testudo_open_each_others_vpe() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vpe/gateway.py");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("scapy-vpe");
    let python = std::process::Command::new("/usr/bin/python3")
        .args([script.as_os_str(), OsStr::new(TESTUDO), folder.as_os_str()])
        .output()
        .expect("python3 runs");
    let said = [python.stdout, python.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(python.status.success(), "{}", said.concat());
}
