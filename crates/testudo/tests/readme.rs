//! README.md works as written: one shell runs every command block in order, on a host that a reader could
//! have, and the resulting gateway carries packets and keeps others out.
//!
//! Only four things are replaced, because a namespace lacks them: `make install` installs the program under
//! test instead of building one, and creates no user; `systemctl enable --now` runs the commands of the
//! installed unit without systemd; and `~you/testudo` is this repository. The host's `/etc`, `/usr/local` and
//! `/var/lib` are copies, or empty.

#[path = "support/mod.rs"]
mod support;

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use support::gateway::{Gateway, PROGRAM};
use support::link::{LINK, Link};
use support::wait::{PATIENCE, until};
use support::{Outcome, ensure, folder, wait};
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::namespaces::{Namespace, enter};
use testudo_lab::traffic::ping;

/// Blocks with these commands are not run: they build for minutes and run all tests, including this one. The
/// demo has its own tests.
const NOT_RUN: [&str; 2] = ["make demo", "make test"];

fn main() -> ExitCode {
    Suite::new()
        .test("every_command_of_the_readme_works_and_keeps_clear_packets_out", runs_every_block)
        .test("command_blocks_are_found_at_any_indentation", |_| finds_blocks())
        .run(|| -> Outcome<Link> {
            enter()?;
            make_private()?;
            Link::build()
        })
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The fenced blocks of a document: language and text, without the indentation of a surrounding list.
fn blocks(text: &str) -> Vec<(String, String)> {
    let mut blocks: Vec<(String, String)> = Vec::new();
    let mut indent = None;
    for line in text.lines() {
        match (line.trim_start().strip_prefix("```"), indent) {
            (Some(language), None) => {
                indent = Some(line.len() - line.trim_start().len());
                blocks.push((language.trim().to_owned(), String::new()));
            }
            (Some(_), Some(_)) => indent = None,
            (None, Some(indent)) => {
                if let Some((_, block)) = blocks.last_mut() {
                    block.push_str(line.get(indent..).unwrap_or_default());
                    block.push('\n');
                }
            }
            (None, None) => {}
        }
    }
    blocks
}

fn finds_blocks() -> TestResult {
    let text = "a\n```sh\nb\n  c\n```\n1. d\n\n   ```toml\n   e\n     f\n   ```\n";
    let expected = [("sh", "b\n  c\n"), ("toml", "e\n  f\n")].map(|(l, b)| (l.to_owned(), b.to_owned()));
    let found = blocks(text);
    ensure(found == expected, || format!("{found:?}"))
}

fn run(program: &str, words: &[&str]) -> Outcome<()> {
    let output = wait::output(Command::new(program).args(words))?;
    ensure(output.status.success(), || {
        format!("{program} {words:?}: {}", String::from_utf8_lossy(&output.stderr))
    })
}

/// Mounts private copies of the folders that the commands write to.
fn make_private() -> Outcome<()> {
    let etc = folder("etc")?;
    run("mount", &["-t", "tmpfs", "none", &etc.to_string_lossy()])?;
    // Files that only root may read are not copied if we are not root; nothing here needs them.
    let _ = wait::output(Command::new("cp").args(["-a", "/etc/."]).arg(&etc))?;
    run("mount", &["--move", &etc.to_string_lossy(), "/etc"])?;
    ["/usr/local", "/var/lib"].iter().try_for_each(|path| run("mount", &["-t", "tmpfs", "none", path]))
}

/// Replaces programs that a namespace lacks.
const PREAMBLE: &str = r#"
export PATH=/usr/local/bin:/usr/local/sbin:$PATH PREFIX=/usr/local
make() {
    [[ $* == install ]] || { echo "make $*: not this test's" >&2; return 64; }
    "$REPOSITORY/scripts/install.sh"
}
# The namespace has only one user, so no files can be given to another.
systemd-sysusers() { :; }
systemd-tmpfiles() { :; }
export -f systemd-sysusers systemd-tmpfiles
systemctl() {
    [[ $* == "enable --now testudo@site" ]] || { echo "systemctl $*: not this test's" >&2; return 64; }
    local unit=/etc/systemd/system/testudo@.service line
    sed -n 's/^ExecStartPre=+\?//p' "$unit" | sed 's/%i/site/g' >/run/testudo-tests/before
    grep -q . /run/testudo-tests/before || { echo "the unit runs nothing before the start" >&2; return 65; }
    while read -r line; do $line; done </run/testudo-tests/before
    line=$(sed -n 's/^ExecStart=+\?//p' "$unit" | sed 's/%i/site/g')
    $line </dev/null >/run/testudo-tests/log 2>&1 &
    until testudo status >/dev/null 2>&1; do
        kill -0 $! || { cat /run/testudo-tests/log >&2; return 66; }
    done
}
"#;

fn runs_every_block(link: &mut Link) -> TestResult {
    let readme = fs::read_to_string(repository().join("README.md"))?;
    let mut script = PREAMBLE.to_owned();
    let mut count = 0;
    for (language, block) in blocks(&readme) {
        ensure(language == "sh", || format!("what is a block of {language:?} to be tested by?\n{block}"))?;
        let is_run = !block.lines().any(|line| NOT_RUN.iter().any(|command| line.starts_with(command)));
        if is_run {
            count += 1;
            script += &block.replace("~you/testudo", &repository().to_string_lossy());
        }
    }
    ensure(count >= 8, || format!("only {count} blocks"))?;
    let build = folder("target/release")?;
    symlink(PROGRAM, build.join("testudo"))?;
    let mut shell = link.a.command("bash");
    shell.args(["-euxo", "pipefail", "-c", &script]).env("REPOSITORY", repository());
    let output = wait::output(shell.env("CARGO_TARGET_DIR", folder("target")?))?;
    ensure(output.status.success(), || {
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        format!("{}\n{}\n{}", output.status, said(&output.stdout), said(&output.stderr))
    })?;
    for installed in ["man/man1/testudo-firewall.1", "bash-completion/completions/testudo"] {
        let text = fs::read_to_string(Path::new("/usr/local/share").join(installed))?;
        ensure(text.contains("firewall"), || format!("{installed} does not know the verb `firewall`"))?;
    }
    keeps_clear_packets_out(link)?;
    reaches_the_other_site(link)
}

/// nft accepts the printed rules. A clear packet with a source address of the other site, sent on the outer
/// link to the gateway's inner address, arrives without the rules and does not arrive with them.
fn keeps_clear_packets_out(link: &Link) -> Outcome<()> {
    let script =
        "cd /etc/testudo && /usr/local/bin/testudo firewall site.toml >rules.nft && nft -c -f rules.nft";
    link.a.run(&["sh", "-c", script])?;
    link.b.address("lo", "10.2.0.1/32")?;
    link.b.route_via("10.1.0.0/16", "192.0.2.1")?;
    let receiver = bound(&link.a, "10.1.0.1:7007")?;
    let firewall =
        |option| link.a.run(&["/usr/local/bin/testudo", "firewall", "/etc/testudo/site.toml", option]);
    ensure(!hears_spoofed(link, &receiver, false)?, || "a spoofed packet came in".to_owned())?;
    firewall("--remove")?;
    ensure(hears_spoofed(link, &receiver, true)?, || "nothing comes in without rules either".to_owned())?;
    firewall("--apply")?;
    link.b.run(&["ip", "route", "del", "10.1.0.0/16"])?;
    link.b.run(&["ip", "address", "del", "10.2.0.1/32", "dev", "lo"])?;
    Ok(())
}

fn bound(namespace: &Namespace, address: &str) -> Outcome<UdpSocket> {
    let address: SocketAddr = address.parse()?;
    let socket = namespace.within(|| UdpSocket::bind(address))??;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Whether a packet "from" 10.2.0.1 arrives before one from 192.0.2.2 that is sent after it. If it is
/// `expected`, waits for it.
fn hears_spoofed(link: &Link, receiver: &UdpSocket, expected: bool) -> Outcome<bool> {
    for source in ["10.2.0.1:0", "192.0.2.2:0"] {
        bound(&link.b, source)?.send_to(b"clear", receiver.local_addr()?)?;
    }
    let mut heard = [false, false];
    until("for a packet in the sender's own name", || {
        while let Ok((_, from)) = receiver.recv_from(&mut [0; 16]) {
            heard[usize::from(from.ip().to_string() == "192.0.2.2")] = true;
        }
        Ok((heard[1] && (heard[0] || !expected)).then_some(()))
    })?;
    Ok(heard[0])
}

/// Starts the second gateway as step 2 says: addresses and keys are exchanged, and it has an address of its
/// own network.
fn reaches_the_other_site(link: &Link) -> Outcome<()> {
    let folder = folder("second")?;
    let text = fs::read_to_string("/etc/testudo/site.toml")?;
    let exchange =
        |text: &str, one: &str, other: &str| text.replace(one, "\0").replace(other, one).replace('\0', other);
    let text = exchange(&text, "\nlocal = \"192.0.2.1\"", "\nlocal = \"192.0.2.2\"");
    let text = exchange(&text, "\nremote = \"192.0.2.2\"", "\nremote = \"192.0.2.1\"");
    let text = exchange(&exchange(&text, "10.1.0.0/16", "10.2.0.0/16"), "\noutbound = ", "\ninbound = ");
    let text = text.replace("10.1.0.1/16", "10.2.0.1/16");
    let text = text.replace("/var/lib/testudo/", "").replace("/run/testudo/", "");
    fs::write(folder.join(support::config::CONFIGURATION), text)?;
    for key in ["a-to-b.key", "b-to-a.key"] {
        // `copy` keeps the mode.
        fs::copy(Path::new("/etc/testudo").join(key), folder.join(key))?;
    }
    let gateway = Gateway::init_and_start(&link.b, &folder)?;
    let trips = ping(&link.a, "10.2.0.1".parse()?, 3, PATIENCE)?;
    ensure(trips.lost == 0, || format!("{} of 3 pings through the tunnel were lost on {LINK}", trips.lost))?;
    gateway.stop()
}
