//! `--persist` where systemd is the first process: a guest with it, whose network card goes and comes again,
//! and a second one that boots with the files of the first.

use crate::guest::Guest;
use crate::site::Site;
use crate::support::{Outcome, ensure, folder, wait};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::namespaces::{Namespace, enter_as_root};

pub fn tests(suite: Suite<'_, Option<Site>>) -> Suite<'_, Option<Site>> {
    suite.test(
        "systemd_applies_what_is_persisted_when_the_card_comes_again_or_the_machine_boots_until_it_is_undone",
        |_| persists(),
    )
}

const LIMIT: Duration = Duration::from_secs(60);
const DEVICE: &str = "sys-subsystem-net-devices-eth0.device";
const UNIT: &str = "testudo-tune@eth0.service";
/// What the unit is to change, which is the interface's own and the machine's.
const VALUES: &str = "cd /sys/class/net/eth0; grep . mtu gro_flush_timeout napi_defer_hard_irqs queues/*/rps_cpus \
    /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages; \
    for irq in device/../msi_irqs/*; do cat /proc/irq/${irq##*/}/smp_affinity_list; done";
/// The card goes, and comes with its own values. What is the machine's is as somebody has set it meanwhile.
const COMES_AGAIN: &str = "
driver=/sys/bus/virtio/drivers/virtio_net
card=$(readlink /sys/class/net/eth0/device)
echo ${card##*/} >$driver/unbind
until ! systemctl --quiet is-active sys-subsystem-net-devices-eth0.device; do usleep 20000; done
echo 1 >/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages
echo ${card##*/} >$driver/bind
until [ -e /sys/class/net/eth0 ]; do usleep 20000; done
";

/// What a disk would keep, as text.
const KEPT: &str = "cd / && tar cf - etc/systemd/system var/lib/testudo-tune | base64";

fn persists() -> TestResult {
    let host = Namespace::new(enter_as_root()?, "guests")?;
    let mut guest = Guest::boot(&host, &["systemd"])?;
    let first = guest.0.run("cat /proc/1/comm")?;
    assert_eq!(first.trim(), "systemd");
    guest.0.wait_until(&format!("systemctl is-active {DEVICE}"), LIMIT)?;
    let before = guest.0.run(VALUES)?;
    let wishes = "--mtu 1400 --huge-pages 6 --only mtu,napi,affinity,huge-pages";
    guest.tune(&format!("apply eth0 {wishes} --persist"), 0)?;
    let applied = guest.0.run(VALUES)?;
    ensure(applied != before && applied.contains("mtu:1400"), || applied.clone())?;

    let kept = guest.0.run(KEPT)?;

    // It was told of the link: nobody but `apply` has had it reload.
    guest.0.sh(COMES_AGAIN, LIMIT)?;
    has_applied(&mut guest, &applied)?;
    guest.tune("undo eth0", 0)?;
    assert_eq!(guest.0.run(VALUES)?, before);
    guest.0.sh(COMES_AGAIN, LIMIT)?;
    guest.0.wait_until(&format!("systemctl is-active {DEVICE}"), LIMIT)?;
    let enabled = guest.0.sh(&format!("systemctl is-enabled {UNIT}; systemctl is-active {UNIT}"), LIMIT)?;
    assert_eq!(enabled.stdout, "disabled\ninactive\n");
    assert_eq!(guest.0.run("cat /sys/class/net/eth0/mtu")?.trim(), "1500");
    drop(guest);
    boots(&unpacked(&kept)?, &before, &applied)
}

/// The unit, in its sandbox.
fn has_applied(guest: &mut Guest, applied: &str) -> TestResult {
    guest.0.wait_until(&format!("systemctl is-active {UNIT} || systemctl is-failed {UNIT}"), LIMIT)?;
    let status =
        guest.0.run(&format!("systemctl show -p Result,CapabilityBoundingSet,ProtectSystem {UNIT}"))?;
    for line in ["Result=success", "CapabilityBoundingSet=cap_net_admin", "ProtectSystem=strict"] {
        ensure(status.contains(line), || status.clone())?;
    }
    assert_eq!(guest.0.run(VALUES)?, applied, "the unit has applied all of it");
    Ok(())
}

/// The files of a machine, in a folder.
fn unpacked(kept: &str) -> Outcome<PathBuf> {
    let (files, text) = (folder("tune-kept")?, folder("tune-kept-text")?.join("kept.base64"));
    std::fs::write(&text, kept)?;
    let mut command = Command::new("sh");
    command.args(["-c", "set -e; base64 -d \"$1\" | tar xf - -C \"$2\"", "sh"]).args([&text, &files]);
    let output = wait::output(&mut command)?;
    ensure(output.status.success(), || String::from_utf8_lossy(&output.stderr).into_owned())?;
    Ok(files)
}

/// A machine that was off: its values are the kernel's own, and /run is empty.
fn boots(kept: &Path, before: &str, applied: &str) -> TestResult {
    let host = Namespace::new(enter_as_root()?, "again")?;
    let mut guest = Guest::boot(&host, &["systemd", &kept.to_string_lossy()])?;
    has_applied(&mut guest, applied)?;
    guest.tune("undo eth0", 0)?;
    assert_eq!(guest.0.run(VALUES)?, before, "as the kernel has them at a boot");
    assert_eq!(guest.0.sh(&format!("systemctl is-enabled {UNIT}"), LIMIT)?.stdout, "disabled\n");
    Ok(())
}
