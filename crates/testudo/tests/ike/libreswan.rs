//! libreswan's pluto: its files are in a folder of the test, and it is spoken to through whack.

use crate::host::{Host, ticks_of};
use crate::support::{Outcome, ensure, wait};
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const PLUTO: &str = "/usr/libexec/ipsec/pluto";
const WHACK: &str = "/usr/libexec/ipsec/whack";

/// A running pluto. Dropping it kills it.
#[derive(Debug)]
pub struct Pluto {
    child: Child,
    folder: PathBuf,
}

/// An empty data base of certificates, which pluto wants to have.
fn make_database(folder: &Path) -> Outcome<()> {
    let database = format!("sql:{}", folder.display());
    let output = wait::output(Command::new("certutil").args(["-N", "-d", &database, "--empty-password"]))?;
    ensure(output.status.success(), || String::from_utf8_lossy(&output.stderr).into_owned())
}

impl Pluto {
    /// Starts it on a host with the connection `net`, whose lines are given (`auto` is what
    /// becomes of it at first), and waits until that is loaded.
    pub fn start(host: &Host, lines: &str, auto: &str) -> Outcome<Self> {
        let folder = host.folder.join("libreswan");
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        make_database(&folder)?;
        let shown = folder.display();
        let lines = lines.lines().map(|line| format!("    {}\n", line.trim())).collect::<String>();
        // A tab or blanks begin the lines of a section.
        let configuration = format!(
            "config setup\n    nssdir={shown}\n    dnssec-enable=no\n\nconn net\n{lines}    auto={auto}\n"
        );
        fs::write(folder.join("ipsec.conf"), configuration)?;
        fs::write(
            folder.join("ipsec.secrets"),
            "@a.example @b.example : PSK \"of both, and long enough\"\n",
        )?;
        let output = File::create(folder.join("log"))?;
        let child = host
            .with_library(PLUTO)
            .args(["--nofork", "--stderrlog", "--log-no-time", "--log-no-audit", "--no-dnssec", "--nssdir"])
            .arg(&folder)
            .arg("--rundir")
            .arg(&folder)
            .arg("--config")
            .arg(folder.join("ipsec.conf"))
            .arg("--secretsfile")
            .arg(folder.join("ipsec.secrets"))
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()?;
        let mut pluto = Self { child, folder };
        // It loads the connections itself, then its secrets.
        wait::until("for pluto to be ready", || {
            if let Some(status) = pluto.child.try_wait()? {
                return Err(format!("pluto ended: {status}\n{}", pluto.log()).into());
            }
            let log = pluto.log();
            let is_ready = log.contains("\"net\": added") && log.contains("loading secrets from");
            Ok(is_ready.then_some(()))
        })
        .map_err(|error| format!("{error}\n{}", pluto.log()))?;
        pluto.whack(&["--briefstatus"])?;
        Ok(pluto)
    }

    fn said(&self, command: &mut Command) -> Outcome<String> {
        let output = wait::output(command)?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure(output.status.success(), || format!("{command:?}: {said}{complaint}\n{}", self.log()))?;
        Ok(said)
    }

    /// A whack with these words; its output.
    pub fn whack(&self, words: &[&str]) -> Outcome<String> {
        self.said(Command::new(WHACK).arg("--rundir").arg(&self.folder).args(words))
    }

    /// All of its log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Lines of its log in which it complains of the kernel.
    pub fn complaints(&self) -> Vec<String> {
        const WORDS: [&str; 4] = ["ERROR", "EXPECTATION", "netlink", "XFRM_MSG"];
        // No interface of these hosts can take SAs.
        let is_complaint =
            |line: &&str| WORDS.iter().any(|word| line.contains(word)) && !line.contains("can't offload");
        self.log().lines().filter(is_complaint).map(str::to_owned).collect()
    }

    /// The time that its threads have run: [`ticks_of`].
    pub fn ticks(&self) -> Outcome<u64> {
        ticks_of(self.child.id())
    }

    /// Ends it: it deletes its SAs and policies, and tells its peers.
    pub fn stop(mut self) -> Outcome<()> {
        self.whack(&["--shutdown"])?;
        let status = wait::ended(&mut self.child).map_err(|error| format!("{error}\n{}", self.log()))?;
        // At its exit pluto 4.10 waits for its helper threads no more: one of them may end after NSPR's lock
        // has (PR_Lock in a destructor of thread data), a fault of its own.
        let log = self.log();
        let fell_at_exit = status.signal() == Some(11) && log.contains("shutting down interface");
        ensure(status.success() || fell_at_exit, || format!("pluto: {status}\n{log}"))
    }
}

impl Drop for Pluto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
