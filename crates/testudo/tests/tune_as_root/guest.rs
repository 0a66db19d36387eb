//! A guest of its own, whose virtio network card has rings and interrupts, and whose huge pages are no
//! machine's of ours. Its first process is that of tests/linux-peer, with the program and ethtool added.

use crate::site::Site;
use crate::support::gateway::PROGRAM;
use crate::support::{Outcome, ensure, folder, wait};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use testudo_judge::harness::{Suite, TestResult};
use testudo_judge::linux_peer::{LinuxPeer, Options};
use testudo_lab::namespaces::{Namespace, enter_as_root};
use testudo_tune::believed::number;

const LIMIT: Duration = Duration::from_secs(60);
/// Rounds at most, until a kill was not too late.
const ROUNDS: usize = 20;
/// Where it is in the guests.
const TESTUDO: &str = "/usr/local/bin/testudo";

pub fn tests(suite: Suite<'_, Option<Site>>) -> Suite<'_, Option<Site>> {
    suite.test("all_settings_of_a_virtio_card_and_of_its_machine_are_as_they_were_after_undo", |_| {
        in_a_guest()
    })
}

/// The guest of tests/linux-peer with the program; with systemd as its first process if asked for.
fn image(more: &[&str]) -> Outcome<PathBuf> {
    let (cache, new) = (LinuxPeer::default_cache(), folder("tune-guest")?);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/tune/guest-image.sh");
    let mut command = Command::new(script);
    command.args([cache.as_path(), new.as_path(), Path::new(PROGRAM)]).args(more);
    let output = wait::output(&mut command)?;
    ensure(output.status.success(), || String::from_utf8_lossy(&output.stderr).into_owned())?;
    Ok(new)
}

/// All settings that the guest has, as its kernel and ethtool show them.
const EVERYTHING: &str = "
grep -rs . /proc/sys/net | grep -v -e nf_conntrack_count -e /random/ | sort
cd /sys/class/net/eth0
grep . mtu gro_flush_timeout napi_defer_hard_irqs tx_queue_len queues/*/rps_cpus queues/*/xps_cpus
grep . /proc/irq/*/smp_affinity_list /sys/kernel/mm/hugepages/*/nr_hugepages
grep . /proc/irq/default_smp_affinity /sys/devices/virtual/workqueue/cpumask
for what in -k -g -c -l; do ethtool $what eth0; done
ip link show
";

pub struct Guest(pub LinuxPeer);

impl Guest {
    pub fn boot(host: &Namespace, more: &[&str]) -> Outcome<Self> {
        host.tap("tap0")?;
        let options = Options { processors: 2, ..Options::default() };
        Ok(Self(LinuxPeer::boot_with(host, "tap0", &image(more)?, &options)?))
    }

    fn everything(&mut self) -> Outcome<Vec<String>> {
        Ok(self.0.sh(EVERYTHING, LIMIT)?.stdout.lines().map(without_carrier).collect())
    }

    /// The rows of a report, by name.
    pub fn tune(&mut self, words: &str, code: u8) -> Outcome<BTreeMap<String, Value>> {
        let said = self.0.sh(&format!("{TESTUDO} tune {words} --json"), LIMIT)?;
        ensure(said.status == code, || format!("{words}: expected exit {code}, not {said}"))?;
        let report: Value = serde_json::from_str(&said.stdout)?;
        let rows = report["rows"].as_array().ok_or("no rows")?;
        let name = |row: &Value| row["name"].as_str().unwrap_or_default().to_owned();
        Ok(rows.iter().map(|row| (name(row), row.clone())).collect())
    }
}

/// A card has a carrier again some time after its rings were changed: that is no setting.
fn without_carrier(line: &str) -> String {
    let carrier = ["NO-CARRIER,", ",LOWER_UP", " state UP", " state DOWN", " state UNKNOWN"];
    carrier.iter().fold(line.to_owned(), |line, word| line.replace(word, ""))
}

fn same(before: &[String], after: &[String], when: &str) -> Outcome<()> {
    let is_new = |line: &&String| !before.contains(*line);
    ensure(before == after, || format!("{when}: {:#?}", after.iter().filter(is_new).collect::<Vec<_>>()))
}

fn in_a_guest() -> TestResult {
    let host = Namespace::new(enter_as_root()?, "guests")?;
    let mut guest = Guest::boot(&host, &[])?;
    // Values that are no kernel's own.
    guest.0.run(SLACK)?;
    let before = guest.everything()?;
    for what in
        ["RX:\t\t64", "smp_affinity_list:1", "nr_hugepages:3", "eth0.*mtu 1500", "queues/rx-0/rps_cpus:2"]
    {
        let has = |line: &String| what.split(".*").all(|part| line.contains(part));
        ensure(before.iter().any(has), || format!("no {what} in {before:#?}"))?;
    }
    applies_and_undoes(&mut guest, &before)?;
    keeps_a_processor_free(&mut guest, &before)?;
    killed(&mut guest, &before)?;
    shared_by_namespaces(&mut guest, &before)
}

const SLACK: &str = "
ip link set eth0 up
ethtool -G eth0 rx 64 tx 64
ethtool -K eth0 gro off
cd /sys/class/net/eth0
echo 7000 >gro_flush_timeout
echo 2 >queues/rx-0/rps_cpus
for irq in device/../msi_irqs/*; do echo 1 >/proc/irq/${irq##*/}/smp_affinity_list; done
echo 3 >/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages
";
const ALL: &str = "--mtu 1400 --huge-pages 6";

fn applies_and_undoes(guest: &mut Guest, before: &[String]) -> TestResult {
    let checked = guest.tune(&format!("check eth0 {ALL}"), 1)?;
    same(before, &guest.everything()?, "check changes nothing")?;
    // The emulator's card has no coalescing that can be set: the driver refuses, which is named.
    let applied = guest.tune(&format!("apply eth0 {ALL}"), 1)?;
    let interrupt = applied.keys().rfind(|name| name.starts_with("processors of interrupt"));
    let interrupt = interrupt.ok_or("no interrupt")?.clone();
    let changed = [
        "ring rx",
        "ring tx",
        "rx-gro",
        "mtu",
        "gro_flush_timeout",
        "rx-0/rps_cpus",
        "huge pages of 2048 KiB",
        "net.core.rmem_max",
    ];
    for name in changed.into_iter().chain([interrupt.as_str()]) {
        assert_eq!(checked[name]["outcome"], "differs", "{name}: {checked:#?}");
        assert_eq!(applied[name]["outcome"], "changed", "{name}: {applied:#?}");
    }
    assert_eq!(applied["rx-usecs"]["outcome"], "refused", "{applied:#?}");
    let again = guest.tune(&format!("check eth0 {ALL}"), 1)?;
    let differing: Vec<_> = again.iter().filter(|(_, row)| row["outcome"] == "differs").collect();
    assert!(matches!(differing[..], [(name, _)] if name == "rx-usecs"), "{differing:#?}");
    guest.tune("undo eth0", 0)?;
    same(before, &guest.everything()?, "undo")
}

/// Nothing that has no processor of its own is given the second one.
fn keeps_a_processor_free(guest: &mut Guest, before: &[String]) -> TestResult {
    let words = "eth0 --isolate 1 --only isolation";
    let applied = guest.tune(&format!("apply {words}"), 0)?;
    for name in ["default processors of interrupts", "processors of unbound workqueues"] {
        assert_eq!(applied[name]["outcome"], "changed", "{name}: {applied:#?}");
    }
    guest.tune(&format!("check {words}"), 0)?;
    guest.tune("undo eth0", 0)?;
    same(before, &guest.everything()?, "a processor that was kept free")
}

/// As soon as either journal is there, and once apply has come to the machine's settings, its last.
fn killed(guest: &mut Guest, before: &[String]) -> TestResult {
    let namespace = guest.0.run("readlink /proc/self/ns/net")?;
    let of_the_machine = format!("/run/testudo-tune/eth0@{}.json", number(namespace.trim()));
    for journal in ["/var/lib/testudo-tune/eth0.json", &of_the_machine] {
        // Without another process, so that it is quick.
        let script = format!(
            "{TESTUDO} tune apply eth0 {ALL} >/dev/null 2>&1 & process=$!
             until [ -e {journal} ] || ! kill -0 $process; do :; done
             kill -9 $process 2>/dev/null; wait $process; echo $?"
        );
        let mut killed = false;
        for _ in 0..ROUNDS {
            killed = guest.0.run(&script)?.trim() == "137";
            println!("killed when there was {journal}: {killed}");
            guest.tune("undo eth0", 0)?;
            same(before, &guest.everything()?, &format!("killed when there was {journal}"))?;
            if killed {
                break;
            }
        }
        ensure(killed, || format!("apply had ended each time before it was killed, with {journal}"))?;
    }
    Ok(())
}

/// Huge pages, wanted in two namespaces: undone in the order in which they were applied, and for a namespace
/// that has ended.
fn shared_by_namespaces(guest: &mut Guest, before: &[String]) -> TestResult {
    let pages = "cat /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    let there = format!("ip netns exec there {TESTUDO} tune");
    let only = "--huge-pages 6 --only huge-pages";
    let build = "ip netns add there; ip link add wan netns there type veth peer name lan netns there";
    let applied = format!("{build}; {there} apply wan --state /var/there {only}");
    for ends in [false, true] {
        guest.tune(&format!("apply eth0 {only}"), 0)?;
        let said = guest.0.run(&applied)?;
        ensure(said.contains("eth0 of network namespace"), || said.clone())?;
        let first = guest.tune("undo eth0", 0)?;
        let row = &first["huge pages of 2048 KiB"];
        assert_eq!(row["outcome"], "kept", "{row}");
        assert_eq!(guest.0.run(pages)?.trim(), "6");
        let number = guest.0.run("ip netns exec there readlink /proc/self/ns/net")?;
        let by_number = format!("undo wan --state /var/there --namespace '{}'", number.trim());
        if ends {
            let refused = guest.0.sh(&format!("{TESTUDO} tune {by_number}"), LIMIT)?;
            ensure(refused.status == 3 && refused.stderr.contains("has not ended"), || refused.to_string())?;
            guest.0.run("ip netns delete there")?;
            let last = guest.tune(&by_number, 0)?;
            assert_eq!(last["huge pages of 2048 KiB"]["outcome"], "restored", "{last:#?}");
        } else {
            guest.0.run(&format!("{there} undo wan --state /var/there; ip netns delete there"))?;
        }
        same(before, &guest.everything()?, "after the last undo")?;
    }
    Ok(())
}
