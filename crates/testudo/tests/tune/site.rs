//! Two namespaces and a cable with two queues, set as nobody would want it.

use crate::support::gateway::{PROGRAM, Said};
use crate::support::{Outcome, ensure, folder, wait};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use testudo_lab::namespaces::{Entered, Namespace, enter, veth_with_queues};

pub const INTERFACE: &str = "wan";
/// The groups of which root of a user namespace may change everything. NAPI and queues are for root of the
/// machine.
pub const ONLY: [&str; 2] = ["--only", "sockets,tcp,offloads,rings,mtu,coalescing,huge-pages,isolation"];
/// Settings that a namespace may change, whose originals are then known.
const SLACK: [(&str, &str); 3] = [
    ("net.ipv4.tcp_rmem", "4096 65536 131072"),
    ("net.ipv4.tcp_wmem", "4096 16384 131072"),
    ("net.ipv4.tcp_sack", "0"),
];
/// And one that the kernel changes along with the MTU.
pub const OF_IPV6: (&str, &str) = ("net.ipv6.conf.wan.mtu", "1400");
/// Counts, not settings.
const COUNTS: [&str; 2] = ["nf_conntrack_count", "/random/"];

/// All values of settings, by name.
pub type Everything = BTreeMap<String, String>;

/// Of these namespaces' own settings, all that root of the machine may change: none is the machine's.
#[allow(dead_code, reason = "for the tests as root")]
pub const ONLY_AS_ROOT: [&str; 2] = ["--only", "tcp,offloads,rings,mtu,coalescing,napi,affinity,isolation"];

pub struct Site {
    pub here: Namespace,
    pub there: Namespace,
    pub state: PathBuf,
}

impl Site {
    /// With a cable, as root of a user namespace.
    #[allow(dead_code, reason = "the tests as root have their own")]
    pub fn build() -> Outcome<Self> {
        let site = Self::build_in(enter()?, |here, there| {
            Ok(veth_with_queues((here, INTERFACE), (there, INTERFACE), 2)?)
        })?;
        for (namespace, address) in [(&site.here, "10.9.0.1/24"), (&site.there, "10.9.0.2/24")] {
            namespace.address(INTERFACE, address)?;
        }
        site.slack_of_ipv6()?;
        Ok(site)
    }

    /// An MTU of IPv6 that is not the interface's. The kernel makes it that when the link comes up, too: this
    /// is after it.
    pub fn slack_of_ipv6(&self) -> Outcome<()> {
        wait::until("for the link to come up", || Ok((self.file("operstate")? == "up").then_some(())))?;
        // Links come up under a lock, which this waits for.
        self.here.run(&["ip", "link", "set", INTERFACE, "txqueuelen", "1000"])?;
        Ok(self.here.sysctl(OF_IPV6.0, OF_IPV6.1)?)
    }

    /// With what `plug` makes the interface.
    pub fn build_in(
        inside: Entered,
        plug: impl FnOnce(&Namespace, &Namespace) -> Outcome<()>,
    ) -> Outcome<Self> {
        let (here, there) = (Namespace::new(inside, "here")?, Namespace::new(inside, "there")?);
        plug(&here, &there)?;
        for (name, value) in SLACK {
            here.sysctl(name, value)?;
        }
        for offload in ["gro", "tso", "gso"] {
            here.run(&["ethtool", "-K", INTERFACE, offload, "off"])?;
        }
        Ok(Self { here, there, state: folder("tune")?.join("state") })
    }

    /// `testudo tune VERB wan …` in the namespace, with a state folder of the test's own.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = self.command_of_the_machine(words);
        if words.first() != Some(&"check") {
            command.arg("--state").arg(&self.state);
        }
        command
    }

    /// The same with the state folder that the program chooses itself.
    pub fn command_of_the_machine(&self, words: &[&str]) -> Command {
        let mut command = self.here.command(PROGRAM);
        command.arg("tune").args(words);
        command
    }

    pub fn says(&self, words: &[&str]) -> Outcome<Said> {
        Ok(wait::output(&mut self.command(words))?.into())
    }

    /// The rows of a report that is printed as JSON, by name, if the exit code is `code`.
    pub fn rows(&self, words: &[&str], code: i32) -> Outcome<BTreeMap<String, Value>> {
        let said = self.says(&[words, &["--json"]].concat())?;
        let unexpected = || format!("{words:?}: expected exit {code}, not {:?}: {}", said.code, said.stderr);
        ensure(said.code == Some(code), unexpected)?;
        let report: Value = serde_json::from_str(&said.stdout)?;
        let rows = report["rows"].as_array().ok_or("no rows")?;
        let name = |row: &Value| row["name"].as_str().unwrap_or_default().to_owned();
        Ok(rows.iter().map(|row| (name(row), row.clone())).collect())
    }

    /// All settings of the network and of the interface that this namespace has, as the kernel and ethtool
    /// show them.
    pub fn everything(&self) -> Outcome<Everything> {
        let mut all = self.here.within(|| {
            let mut all = Everything::new();
            read_below(Path::new("/proc/sys/net"), &mut all);
            all
        })?;
        // A device with one queue has a file for its senders that cannot be read: grep's status 2.
        let files = "cd /sys/class/net/wan && { grep -Hs . mtu gro_flush_timeout napi_defer_hard_irqs tx_queue_len \
                     threaded queues/*/?ps_cpus || test $? = 2; }";
        for (name, words) in [
            ("files", ["sh", "-c", files]),
            ("offloads", ["ethtool", "-k", INTERFACE]),
            ("link", ["ip", "link", "show"]),
        ] {
            all.insert(name.to_owned(), self.here.run(&words)?);
        }
        Ok(all)
    }

    /// A file of the interface, as the kernel has it.
    pub fn file(&self, name: &str) -> Outcome<String> {
        Ok(self.here.run(&["cat", &format!("/sys/class/net/{INTERFACE}/{name}")])?.trim().to_owned())
    }

    /// Whether an offload is on, as ethtool says.
    #[allow(dead_code, reason = "the tests as root do not ask")]
    pub fn offload(&self, name: &str) -> Outcome<bool> {
        let text = self.here.run(&["ethtool", "-k", INTERFACE])?;
        let line = text.lines().find_map(|line| line.trim().strip_prefix(&format!("{name}: ")));
        Ok(line.ok_or("ethtool does not know it")?.starts_with("on"))
    }

    /// Undoes, and compares with what was before.
    pub fn undo_to(&self, before: &Everything, when: &str) -> Outcome<()> {
        self.rows(&["undo", INTERFACE], 0)?;
        same(before, &self.everything()?, when)?;
        let left = self.state.join("wan.json");
        ensure(!left.exists(), || format!("{when}: a journal is left"))
    }
}

/// Fails with each setting that is not as it was.
pub fn same(before: &Everything, after: &Everything, when: &str) -> Outcome<()> {
    let differing: Vec<_> = before.iter().filter(|(name, value)| after.get(*name) != Some(*value)).collect();
    ensure(differing.is_empty() && before.len() == after.len(), || {
        let now: Vec<_> = differing.iter().map(|(name, _)| after.get(*name)).collect();
        format!("{when}: {differing:#?} is now {now:#?}")
    })
}

fn read_below(folder: &Path, all: &mut Everything) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = path.display().to_string();
        if path.is_dir() {
            read_below(&path, all);
        } else if !COUNTS.iter().any(|count| name.contains(count)) {
            // Some can only be written.
            all.extend(fs::read_to_string(&path).ok().map(|text| (name, text)));
        }
    }
}
