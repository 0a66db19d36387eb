//! The gateway as the kernel's XFRM: iproute2's `ip xfrm` asks both in the same words, the gateway through
//! `libtestudo-xfrm.so` and Linux in its guest, and what it prints is compared.

#[path = "../support/mod.rs"]
mod support;

mod forms;
mod twin;

use forms::{Answer, FORMS, Form};
use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;
use support::ensure;
use tempfile::TempDir;
use testudo_control::service::xfrm::{Surroundings, XfrmServer, XfrmSocket};
use testudo_judge::harness::{self, TestResult};
use testudo_judge::linux_peer::LinuxPeer;
use testudo_lab::namespaces::{Namespace, enter, is_inside};
use twin::Twin;

/// 2026-01-01, in seconds since 1970.
const NOW_S: u64 = 1_767_225_600;
/// Bytes of keys.
const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20212223";

struct Still;

impl Surroundings for Still {
    fn unix_s(&self) -> u64 {
        NOW_S
    }

    fn monotonic_ms(&self) -> u64 {
        0
    }

    fn random(&self, highest: u32) -> u32 {
        highest / 2
    }
}

/// Both who are asked.
struct Asked {
    guest: LinuxPeer,
    folder: TempDir,
    twin: Twin,
    _host: Namespace,
    _socket: XfrmSocket,
}

/// What `ip` says: its output, or that it fails.
type Said = Result<String, String>;

fn main() -> ExitCode {
    let mut suite = harness::Suite::new();
    for form in FORMS {
        let name = format!("ip_xfrm_prints_what_it_prints_of_linux_{}", form.name);
        suite = suite.test(name, move |asked: &mut Asked| asked.compare(form));
    }
    suite.test("the_documentation_has_each_form", |_: &mut Asked| is_documented()).run(boot)
}

/// docs/IKE.md says of each form how it is answered.
fn is_documented() -> TestResult {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/IKE.md");
    let text = std::fs::read_to_string(path)?;
    for Form { name, answer, .. } in FORMS {
        let answer = match answer {
            Answer::Same => "same".to_owned(),
            Answer::Differs(why) => format!("differs: {why}"),
            Answer::Refused(why) => format!("refused: {why}"),
        };
        let row = format!("| {} | {answer} |", name.replace('_', " "));
        ensure(text.contains(&row), || format!("docs/IKE.md lacks the row {row}"))?;
    }
    Ok(())
}

fn boot() -> Result<Asked, Box<dyn Error>> {
    let cache = LinuxPeer::default_cache();
    if !is_inside() {
        // While the network still exists.
        LinuxPeer::prepare_image(&cache)?;
    }
    let host = Namespace::new(enter()?, "host")?;
    host.tap("tap0")?;
    let mut guest = LinuxPeer::boot(&host, "tap0", &cache)?;
    // Names that `ip` knows here.
    guest.run("printf 'icmp 1 ICMP\\ntcp 6 TCP\\ngre 47 GRE\\n' >/etc/protocols")?;
    let folder = tempfile::tempdir()?;
    let shim = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/shim.sh");
    ensure(Command::new(shim).arg(folder.path()).arg("xfrm").status()?.success(), || {
        "the library is not built".into()
    })?;
    let twin = Twin::default();
    let server = Arc::new(XfrmServer::new(twin.clone(), Box::new(Still)));
    let socket = XfrmSocket::bind(&folder.path().join("xfrm.sock"), None)?;
    socket.serve(server, |_| Ok(()))?;
    Ok(Asked { guest, folder, twin, _host: host, _socket: socket })
}

/// The words of a script, in full.
fn words(line: &str) -> String {
    let mut words = line
        .replace("ENDS", "src 192.0.2.1 dst 192.0.2.2")
        .replace("BACK", "src 192.0.2.2 dst 192.0.2.1")
        .replace("GCM", "aead rfc4106(gcm(aes)) 0xKEY20 128")
        .replace("CBC", "enc cbc(aes) 0xKEY16 auth-trunc hmac(sha256) 0xKEY32 128")
        .replace("OUT", "src 10.1.0.0/16 dst 10.2.0.0/16");
    for bytes in (16..=36).rev() {
        words = words.replace(&format!("KEY{bytes}"), &KEY[..2 * bytes]);
    }
    match words.strip_prefix("-s ") {
        Some(rest) => format!("-s xfrm {rest}"),
        None => format!("xfrm {words}"),
    }
}

/// Without what no two of them have in common: times, and the numbers of policies.
fn comparable(text: &str) -> String {
    let mut lines = String::new();
    for line in text.lines() {
        let line = match line.trim_start().strip_prefix("add 20") {
            Some(_) => "\t  add TIME use -",
            None => line,
        };
        let without_index = match line.split_once(" index ") {
            Some((before, after)) => {
                let rest = after.split_once(' ').map_or("", |(_, rest)| rest);
                format!("{before} index N {rest}")
            }
            None => line.to_owned(),
        };
        writeln!(lines, "{}", without_index.trim_end()).unwrap_or_default();
    }
    lines
}

impl Asked {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// What the gateway says through the library.
    fn gateway(&self, words: &str) -> Result<Said, Box<dyn Error>> {
        let output = Command::new("/bin/sh")
            .args(["-c", &format!("ip {}", quoted_parentheses(words))])
            .env("LD_PRELOAD", self.path("libtestudo-xfrm.so"))
            .env("TESTUDO_XFRM", self.path("xfrm.sock"))
            .output()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) })
    }

    /// What Linux says.
    fn linux(&mut self, words: &str) -> Result<Said, Box<dyn Error>> {
        let script = format!("ip {}", quoted_parentheses(words));
        let output = self.guest.sh(&script, Duration::from_secs(20))?;
        Ok(if output.status == 0 { Ok(output.stdout) } else { Err(output.stderr) })
    }

    fn compare(&mut self, form: &Form) -> TestResult {
        for flush in ["xfrm policy flush", "xfrm state flush"] {
            self.linux(flush)?.map_err(|error| format!("{flush}: {error}"))?;
            self.gateway(flush)?.map_err(|error| format!("{flush}: {error}"))?;
        }
        ensure(self.twin.is_empty(), || "something is left after both flushes".into())?;
        let mut found = Answer::Same;
        for line in form.script {
            let words = words(line);
            let (linux, gateway) = (self.linux(&words)?, self.gateway(&words)?);
            let differs = match (&linux, &gateway) {
                (Ok(linux), Ok(gateway)) => comparable(linux) != comparable(gateway),
                (Err(_), Err(_)) => false,
                (Ok(_), Err(_)) => {
                    found = Answer::Refused("");
                    true
                }
                (Err(_), Ok(_)) => true,
            };
            let is_expected = match form.answer {
                Answer::Same => !differs,
                Answer::Differs(_) => linux.is_ok() && gateway.is_ok(),
                Answer::Refused(_) => !differs || gateway.is_err(),
            };
            ensure(is_expected, || format!("ip {words}\nLinux: {linux:#?}\nTestudo: {gateway:#?}"))?;
            if differs && found == Answer::Same {
                found = Answer::Differs("");
            }
        }
        let is_as_said = matches!(
            (form.answer, found),
            (Answer::Same, Answer::Same)
                | (Answer::Differs(_), Answer::Differs(_))
                | (Answer::Refused(_), Answer::Refused(_))
        );
        ensure(is_as_said, || format!("{found:?}, and {:?} is said of it", form.answer))
    }
}

/// A shell takes parentheses for its own.
fn quoted_parentheses(words: &str) -> String {
    words.replace('(', "\\(").replace(')', "\\)")
}
