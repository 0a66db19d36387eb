//! What undo meets when the host is not as apply left it.

use super::played::{Life, Machine, rows};
use crate::error::TuneError;
use crate::host::Reading;
use crate::place::{Direction, Place};
use crate::plan::{Options, plan};
use crate::report::Outcome;
use crate::setting::Group;
use crate::{apply, undo};
use std::fs;

fn everything() -> Options {
    Options { mtu: Some(9000), huge_pages: Some(64), ..Options::default() }
}

#[test]
fn what_cannot_be_read_for_a_while_keeps_its_original() {
    let machine = Machine::new();
    let before = machine.everything();
    machine.apply("eth0", &everything());
    let (ring, mtu) =
        (Place::Ring { direction: Direction::Rx }, machine.root().join("sys/class/net/eth0/mtu"));
    machine.device("eth0").has(&ring, Reading::Unreadable("timed out".to_owned()));
    // A folder is read with EISDIR.
    fs::remove_file(&mtu).unwrap();
    fs::create_dir(&mtu).unwrap();
    let report = machine.undo("eth0");
    assert_eq!(rows(&report, Outcome::Refused), ["mtu", "ring rx"]);
    assert_eq!(rows(&report, Outcome::Gone), [""; 0]);
    assert_eq!(machine.journals(), ["eth0.json"]);
    machine.device("eth0").has(&ring, Reading::Value("512".to_owned()));
    fs::remove_dir(&mtu).unwrap();
    machine.put("sys/class/net/eth0/mtu", "9000");
    assert_eq!(rows(&machine.undo("eth0"), Outcome::Restored).len(), 2);
    assert_eq!(machine.everything(), before);
}

#[test]
fn a_renamed_interface_is_undone_by_its_new_name() {
    for step in 0.. {
        let machine = Machine::new();
        machine.rename("eth0", "wan0");
        let renamed_before = machine.everything();
        machine.rename("wan0", "eth0");
        let before = machine.everything();
        machine.apply("eth0", &everything());
        machine.rename("eth0", "wan0");
        let undone = machine.process("eth0", Life::long(), |host, stores| undo::undo(host, stores));
        assert!(undone.unwrap_err().to_string().contains("undo wan0`"));
        assert_eq!(machine.journals(), ["eth0.json", "eth0@1.json"]);
        let life = Life::until(step, true);
        let _ = machine.process("wan0", life.clone(), |host, stores| undo::undo(host, stores));
        // A kill between the two files leaves the old one, by which nobody else wants anything.
        let report = machine.undo("wan0");
        assert_eq!(rows(&report, Outcome::Kept), [""; 0], "{step}");
        assert_eq!(machine.everything(), renamed_before, "{step}");
        assert!(machine.journals().is_empty(), "{step}");
        machine.rename("wan0", "eth0");
        machine.undo("eth0");
        assert_eq!(machine.everything(), before, "{step}");
        if !life.is_over() {
            break;
        }
    }
}

/// The journal is under two names then, and the interface has neither.
#[test]
fn an_interface_that_is_renamed_again_after_a_kill_is_undone_at_once() {
    for does_last in [false, true] {
        for step in 0.. {
            let machine = Machine::new();
            let before = machine.everything();
            machine.apply("eth0", &everything());
            machine.rename("eth0", "wan0");
            let life = Life::until(step, does_last);
            let _ = machine.process("wan0", life.clone(), |host, stores| undo::undo(host, stores));
            machine.rename("wan0", "lan0");
            let report = machine.undo("lan0");
            assert_eq!(rows(&report, Outcome::Kept), [""; 0], "step {step}, {does_last}");
            assert!(machine.journals().is_empty(), "step {step}, {does_last}");
            machine.rename("lan0", "eth0");
            assert_eq!(machine.everything(), before, "step {step}, {does_last}");
            if !life.is_over() {
                assert!(step > 20, "{step}");
                break;
            }
        }
    }
}

/// An interface gets the name of a device that has gone, and has a journal under its earlier name.
#[test]
fn the_journal_of_an_earlier_device_of_the_new_name_takes_no_originals_away() {
    let machine = Machine::new();
    let before = machine.value("proc/sys/net/core/rmem_max");
    let options = Options { mtu: Some(9000), only: vec![Group::Sockets, Group::Mtu], ..Options::default() };
    machine.rename("eth1", "wan0");
    machine.apply("wan0", &options);
    fs::remove_dir_all(machine.root().join("sys/class/net/wan0")).unwrap();
    machine.apply("eth0", &options);
    machine.rename("eth0", "wan0");
    let report = machine.undo("wan0");
    let kept = report.rows.iter().find(|row| row.name == "net.core.rmem_max").unwrap();
    let wants = "eth0 (this one, before it was renamed) wants it, and the last undo brings back 212992";
    assert_eq!((kept.outcome, kept.note.as_deref()), (Outcome::Kept, Some(wants)));
    assert_eq!(machine.journals(), ["eth0.json"]);
    machine.undo("wan0");
    assert_eq!(machine.value("proc/sys/net/core/rmem_max"), before);
    assert_eq!(machine.value("sys/class/net/wan0/mtu"), "1500");
    assert!(machine.journals().is_empty());
}

#[test]
fn what_has_gone_with_a_device_is_named_setting_by_setting() {
    let machine = Machine::new();
    machine.apply("eth0", &everything());
    machine.put("sys/class/net/eth0/ifindex", "17");
    let report = machine.undo("eth0");
    let gone = rows(&report, Outcome::Gone);
    for name in ["mtu", "ring rx", "rx-gro", "processors of interrupt 40"] {
        assert!(gone.contains(&name), "{name} of {gone:?}");
    }
}

#[test]
fn what_a_restart_of_the_device_resets_is_brought_back_again() {
    let machine = Machine::new();
    let before = machine.everything();
    machine.resets_queues.set(true);
    machine.apply("eth0", &everything());
    let report = machine.undo("eth0");
    assert_eq!(rows(&report, Outcome::Refused), [""; 0]);
    assert_eq!(machine.everything(), before);
}

#[test]
fn an_interrupt_that_is_no_longer_the_devices_is_left_alone() {
    let machine = Machine::new();
    machine.apply("eth0", &everything());
    fs::remove_file(machine.root().join("sys/class/net/eth0/device/msi_irqs/40")).unwrap();
    machine.put("proc/irq/40/smp_affinity_list", "2");
    let report = machine.undo("eth0");
    assert_eq!(rows(&report, Outcome::Gone), ["processors of interrupt 40"]);
    assert_eq!(machine.value("proc/irq/40/smp_affinity_list"), "2");
}

#[test]
fn what_somebody_changed_before_a_second_interface_wanted_it_is_said() {
    let machine = Machine::new();
    machine.apply("eth0", &everything());
    machine.put("proc/sys/net/core/rmem_max", "8388608");
    machine.apply("eth1", &Options::default());
    machine.undo("eth0");
    let report = machine.undo("eth1");
    let row = report.rows.iter().find(|row| row.name == "net.core.rmem_max").unwrap();
    assert_eq!(row.note.as_deref(), Some("somebody had changed it since"));
}

#[test]
fn modes_of_intel_drivers_are_no_microseconds() {
    let machine = Machine::new();
    std::os::unix::fs::symlink(
        "../../bus/pci/drivers/igb",
        machine.root().join("sys/class/net/eth0/device/driver"),
    )
    .unwrap();
    let report = machine
        .process("eth0", Life::long(), |host, stores| apply::apply(host, stores, &plan(host, &everything())))
        .unwrap();
    assert!(rows(&report, Outcome::NotSupported).contains(&"rx-usecs"), "{report:#?}");
}

#[test]
fn without_the_boots_number_no_journal_is_believed_or_begun() {
    let machine = Machine::new();
    let before = machine.everything();
    machine.apply("eth0", &everything());
    let boot = machine.root().join("proc/sys/kernel/random/boot_id");
    fs::remove_file(&boot).unwrap();
    let (applied, writes) = (machine.everything(), machine.writes.get());
    let undone = machine.process("eth0", Life::long(), |host, stores| undo::undo(host, stores));
    assert!(matches!(undone, Err(TuneError::NoBoot)), "{undone:?}");
    let again = machine
        .process("eth1", Life::long(), |host, stores| apply::apply(host, stores, &plan(host, &everything())));
    assert!(matches!(again, Err(TuneError::NoBoot)), "{again:?}");
    assert_eq!((machine.everything(), machine.writes.get()), (applied, writes));
    machine.put("proc/sys/kernel/random/boot_id", "boot-1");
    machine.undo("eth0");
    assert_eq!(machine.everything(), before);
}

/// Nothing is applied meanwhile: what the others have changed is not known.
#[test]
fn another_interfaces_journal_that_cannot_be_read_keeps_what_it_may_share_alone() {
    let machine = Machine::new().with_companions();
    let (mtu, shared) = ("sys/class/net/eth0/mtu", "proc/sys/net/core/rmem_max");
    let before = machine.everything();
    machine.apply("eth0", &everything());
    machine.apply("eth1", &Options::default());
    let file = machine.state().join("eth1.json");
    let journal = fs::read(&file).unwrap();
    fs::write(&file, "no journal").unwrap();
    let applied = machine.everything();
    let again = machine
        .process("eth0", Life::long(), |host, stores| apply::apply(host, stores, &plan(host, &everything())));
    let Err(TuneError::OfAnother(why)) = again else { panic!("{again:?}") };
    assert!(matches!(*why, TuneError::Damaged { .. }), "{why:?}");
    assert!(TuneError::OfAnother(why).to_string().contains("or remove it"));
    assert_eq!(machine.everything(), applied);

    let undone = machine.process("eth0", Life::long(), |host, stores| undo::undo(host, stores));
    let Err(TuneError::Partly { report, why }) = undone else { panic!("{undone:?}") };
    assert!(why.to_string().contains("eth1.json"), "{why}");
    let restored = rows(&report, Outcome::Restored);
    for name in ["mtu", "IPv6 mtu of eth0", "ring rx", "rx-gro", "huge pages of 2048 KiB"] {
        assert!(restored.contains(&name), "{name} of {report:#?}");
    }
    let refused = rows(&report, Outcome::Refused);
    for name in ["net.core.rmem_max", "mtu of third", "IPv6 mtu of third"] {
        assert!(refused.contains(&name), "{name} of {report:#?}");
    }
    assert_eq!((machine.value(mtu), machine.value(shared)), ("1500".to_owned(), "4194304".to_owned()));

    fs::write(&file, journal).unwrap();
    let report = machine.undo("eth0");
    assert!(rows(&report, Outcome::Kept).contains(&"net.core.rmem_max"), "{report:#?}");
    machine.undo("eth1");
    assert_eq!(machine.everything(), before);
    assert!(machine.journals().is_empty());
}

/// What is done is done, however often it is asked for.
#[test]
fn an_undo_that_leaves_nothing_does_not_fail_by_another_interfaces_journal() {
    let machine = Machine::new();
    let before = machine.everything();
    let only = |group| Options { mtu: Some(9000), only: vec![group], ..Options::default() };
    machine.apply("eth0", &only(Group::Tcp));
    machine.apply("eth1", &only(Group::Mtu));
    let file = machine.state().join("eth0.json");
    let journal = fs::read(&file).unwrap();
    fs::write(&file, "no journal").unwrap();
    let report = machine.undo("eth1");
    assert_eq!(rows(&report, Outcome::Restored), ["mtu"], "{report:#?}");
    assert_eq!(machine.journals(), ["eth0.json"]);
    assert!(machine.undo("eth1").rows.is_empty());
    fs::write(&file, journal).unwrap();
    machine.undo("eth0");
    assert_eq!(machine.everything(), before);
}

/// Either store, damaged, leaves the other's settings to be undone.
#[test]
fn a_store_that_refuses_does_not_keep_what_the_other_one_has() {
    for (damaged, has_come_back) in [("state", [false, true]), ("machine", [true, false])] {
        let machine = Machine::new();
        let files = ["proc/sys/net/core/rmem_max", "sys/devices/system/cpu/cpufreq/policy0/scaling_governor"];
        let before = files.map(|file| machine.value(file));
        machine.apply("eth0", &everything());
        let file = match damaged {
            "state" => machine.state().join("eth0.json"),
            _ => machine.machines().join("eth0@1.json"),
        };
        let journal = fs::read(&file).unwrap();
        fs::write(&file, "no journal").unwrap();
        let undone = machine.process("eth0", Life::long(), |host, stores| undo::undo(host, stores));
        let Err(TuneError::Partly { report, why }) = undone else { panic!("{damaged}: {undone:?}") };
        assert!(!report.rows.is_empty() && why.to_string().contains("nothing of it was changed"), "{why}");
        let now = files.map(|file| machine.value(file));
        assert_eq!([now[0] == before[0], now[1] == before[1]], has_come_back, "{damaged}");
        fs::write(&file, journal).unwrap();
        machine.undo("eth0");
        assert_eq!(files.map(|file| machine.value(file)), before, "{damaged}");
    }
}
