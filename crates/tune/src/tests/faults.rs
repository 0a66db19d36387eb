//! What is left behind, step by step.

use super::played::{Life, Machine, rows};
use crate::error::TuneError;
use crate::place::Place;
use crate::plan::{Options, plan};
use crate::report::Outcome;
use crate::{apply, undo};

fn everything() -> Options {
    Options { mtu: Some(9000), huge_pages: Some(64), isolate: vec![3], only: Vec::new() }
}

#[test]
fn undo_leaves_every_setting_as_it_was() {
    let machine = Machine::new();
    let before = machine.everything();
    let report = machine.apply("eth0", &everything());
    let changed = rows(&report, Outcome::Changed);
    for name in [
        "net.core.rmem_max",
        "net.core.netdev_max_backlog",
        "net.ipv4.tcp_rmem",
        "net.ipv4.tcp_sack",
        "rx-gro",
        "tx-tcp-segmentation",
        "rx-lro",
        "ring rx",
        "mtu",
        "rx-usecs",
        "napi_defer_hard_irqs",
        "gro_flush_timeout",
        "rx-0/rps_cpus",
        "tx-0/xps_cpus",
        "tx-1/xps_cpus",
        "processors of interrupt 40",
        "governor of policy0",
        "huge pages of 2048 KiB",
        "default processors of interrupts",
        "processors of unbound workqueues",
    ] {
        assert!(changed.contains(&name), "{name} of {report:#?}");
    }
    assert_eq!(machine.value("proc/sys/net/ipv4/tcp_rmem"), "4096 131072 4194304");
    assert_eq!(machine.value("sys/class/net/eth0/mtu"), "9000");
    assert_eq!(machine.value("proc/irq/41/smp_affinity_list"), "1");
    assert_eq!(machine.value("proc/irq/default_smp_affinity"), "7");
    assert_eq!(machine.value("sys/devices/virtual/workqueue/cpumask"), "00000007");
    assert_eq!(rows(&report, Outcome::Refused), [""; 0]);
    let report = machine.undo("eth0");
    assert_eq!(rows(&report, Outcome::Restored).len(), report.rows.len());
    assert_eq!(machine.everything(), before);
    assert!(machine.journals().is_empty());
    assert!(machine.undo("eth0").rows.is_empty(), "nothing is left to undo");
}

/// Apply ends at each of its steps, undo at each of its own, and a second undo brings back everything.
#[test]
fn undo_after_a_kill_at_any_step_leaves_every_setting_as_it_was() {
    let (mut kills, mut deaths_of_undo) = (0, 0);
    for does_last in [false, true] {
        for step in 0.. {
            let (machine, life) = (Machine::new(), Life::until(step, does_last));
            let before = machine.everything();
            let _ = machine.process("eth0", life.clone(), |host, stores| {
                apply::apply(host, stores, &plan(host, &everything()))
            });
            // Every third place where undo ends: each pair would be some thousand machines.
            for undo_step in (step % 3..).step_by(3) {
                let life = Life::until(undo_step, does_last);
                let _ = machine.process("eth0", life.clone(), |host, stores| undo::undo(host, stores));
                if !life.is_over() {
                    break;
                }
                deaths_of_undo += 1;
            }
            machine.undo("eth0");
            assert_eq!(machine.everything(), before, "killed at step {step}, {does_last}");
            assert!(machine.journals().is_empty(), "killed at step {step}, {does_last}");
            if !life.is_over() {
                break;
            }
            kills += 1;
        }
    }
    assert!(kills > 70 && deaths_of_undo > kills, "{kills} {deaths_of_undo}");
}

/// Here the disk fails from some step on, rather than the process: who has called is told what was changed.
#[test]
fn an_apply_that_ends_by_an_error_says_what_it_has_changed() {
    let mut told = 0;
    for step in 0.. {
        let (machine, life) = (Machine::new(), Life::until(step, false));
        let before = machine.everything();
        let applied = machine.process("eth0", life.clone(), |host, stores| {
            apply::apply(host, stores, &plan(host, &everything()))
        });
        if !life.is_over() {
            applied.unwrap();
            break;
        }
        let changed = match applied.unwrap_err() {
            TuneError::Partly { report, .. } => rows(&report, Outcome::Changed).len(),
            _ => 0,
        };
        assert_eq!(changed, machine.writes.get(), "failed at step {step}");
        told += usize::from(changed > 0);
        machine.undo("eth0");
        assert_eq!(machine.everything(), before, "failed at step {step}");
    }
    assert!(told > 30, "{told}");
}

#[test]
fn a_second_apply_keeps_the_first_originals_even_if_it_is_killed() {
    for does_last in [false, true] {
        for step in 0.. {
            let (machine, life) = (Machine::new(), Life::until(step, does_last));
            let before = machine.everything();
            machine.apply("eth0", &Options { mtu: Some(4000), ..Options::default() });
            let _ = machine.process("eth0", life.clone(), |host, stores| {
                apply::apply(host, stores, &plan(host, &everything()))
            });
            machine.undo("eth0");
            assert_eq!(machine.everything(), before, "killed at step {step}, {does_last}");
            if !life.is_over() {
                assert!(step > 3, "{step}");
                break;
            }
        }
    }
}

#[test]
fn an_apply_that_was_killed_is_completed_by_the_next_one() {
    for step in [0, 1, 5, 20, 21] {
        let machine = Machine::new();
        let before = machine.everything();
        let _ = machine.process("eth0", Life::until(step, true), |host, stores| {
            apply::apply(host, stores, &plan(host, &everything()))
        });
        machine.apply("eth0", &everything());
        let host = machine.system("eth0");
        let check = crate::check::check(&host, &plan(&host, &everything()));
        assert_eq!(rows(&check, Outcome::Differs), [""; 0], "{step}");
        machine.undo("eth0");
        assert_eq!(machine.everything(), before, "{step}");
    }
}

#[test]
fn what_another_interface_wants_stays_until_that_is_undone() {
    for first in ["eth0", "eth1"] {
        let machine = Machine::new();
        let before = machine.everything();
        machine.apply("eth0", &everything());
        machine.apply("eth1", &Options::default());
        let second = if first == "eth0" { "eth1" } else { "eth0" };
        let report = machine.undo(first);
        assert!(rows(&report, Outcome::Kept).contains(&"net.core.rmem_max"), "{report:#?}");
        assert_eq!(machine.value("proc/sys/net/core/rmem_max"), "4194304");
        assert_eq!(machine.value(&format!("sys/class/net/{first}/gro_flush_timeout")), "0");
        assert_eq!(machine.value(&format!("sys/class/net/{second}/gro_flush_timeout")), "20000");
        let kept = rows(&report, Outcome::Kept).contains(&"huge pages of 2048 KiB");
        assert!(!kept, "eth1 has never wanted them");
        machine.undo(second);
        assert_eq!(machine.everything(), before, "{first} first");
    }
}

/// A refused write, a write that the kernel clamps, and one of which it makes something else.
#[test]
fn what_is_refused_is_put_back_and_named() {
    let machine = Machine::new();
    *machine.refused.borrow_mut() = vec![Place::interface("mtu"), Place::Interrupt { number: 40 }];
    machine.clamped.borrow_mut().insert("huge pages of 2048 KiB".to_owned(), "17".to_owned());
    let before = machine.everything();
    let report = machine.apply("eth0", &everything());
    let refused = rows(&report, Outcome::Refused);
    assert_eq!(refused, ["mtu", "processors of interrupt 40", "huge pages of 2048 KiB"]);
    let pages = report.rows.iter().find(|row| row.name.starts_with("huge")).unwrap();
    assert_eq!(pages.note.as_deref(), Some("the kernel made it 17"));
    assert_eq!(machine.value("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"), "0");
    assert_eq!(machine.value("sys/class/net/eth0/mtu"), "1500");
    let undone = machine.undo("eth0");
    assert!(!undone.rows.iter().any(|row| refused.contains(&row.name.as_str())), "{undone:#?}");
    assert_eq!(machine.everything(), before);
}

/// Nothing but refusals: no journal stays behind.
#[test]
fn an_apply_that_changes_nothing_leaves_no_journal() {
    let machine = Machine::new();
    *machine.refused.borrow_mut() = vec![Place::interface("mtu")];
    let only = vec![crate::setting::Group::Mtu];
    let report = machine.apply("eth0", &Options { only, ..everything() });
    assert_eq!(rows(&report, Outcome::Refused), ["mtu"]);
    assert!(machine.journals().is_empty());
}

#[test]
fn what_cannot_be_brought_back_is_named_and_stays_in_the_journal() {
    let machine = Machine::new();
    let before = machine.everything();
    machine.apply("eth0", &everything());
    machine.refused.borrow_mut().push(Place::interface("mtu"));
    let report = machine.undo("eth0");
    assert_eq!(rows(&report, Outcome::Refused), ["mtu"]);
    assert_eq!(machine.journals(), ["eth0.json"]);
    machine.refused.borrow_mut().clear();
    assert_eq!(machine.undo("eth0").rows.len(), 1);
    assert_eq!(machine.everything(), before);
}

#[test]
fn what_somebody_has_changed_since_is_brought_back_and_said() {
    let machine = Machine::new();
    let before = machine.everything();
    machine.apply("eth0", &everything());
    machine.put("sys/class/net/eth0/mtu", "4000");
    let report = machine.undo("eth0");
    let noted: Vec<_> = report.rows.iter().filter(|row| row.note.is_some()).map(|row| &row.name).collect();
    assert_eq!(noted, ["mtu"]);
    assert_eq!(machine.everything(), before);
}

#[test]
fn a_journal_of_an_earlier_boot_changes_nothing() {
    let machine = Machine::new();
    machine.apply("eth0", &everything());
    // A new kernel, whose administrator has chosen another buffer meanwhile.
    let machine_after = |machine: &Machine| {
        machine.put("proc/sys/kernel/random/boot_id", "boot-2");
        machine.put("proc/sys/net/core/rmem_max", "300000");
    };
    machine_after(&machine);
    let (before, writes) = (machine.everything(), machine.writes.get());
    assert!(machine.undo("eth0").rows.is_empty());
    assert_eq!((machine.everything(), machine.writes.get()), (before.clone(), writes));
    machine.apply("eth0", &everything());
    machine.undo("eth0");
    assert_eq!(machine.everything(), before, "originals are those of the new boot");
}

#[test]
fn a_new_device_of_the_same_name_is_not_given_the_settings_of_the_old_one() {
    let machine = Machine::new();
    machine.apply("eth0", &everything());
    machine.put("sys/class/net/eth0/ifindex", "17");
    machine.put("sys/class/net/eth0/mtu", "1280");
    machine.undo("eth0");
    assert_eq!(machine.value("sys/class/net/eth0/mtu"), "1280");
    assert_eq!(machine.value("proc/sys/net/core/rmem_max"), "212992", "the machine's is brought back");
}

#[test]
fn what_the_machine_was_given_is_taken_back_after_the_interface_has_gone() {
    let machine = Machine::new();
    machine.apply("eth0", &everything());
    std::fs::remove_dir_all(machine.root().join("sys/class/net/eth0")).unwrap();
    let report = machine.undo("eth0");
    assert!(rows(&report, Outcome::Restored).contains(&"net.core.rmem_max"), "{report:#?}");
    assert_eq!(machine.value("proc/sys/net/core/rmem_max"), "212992");
    assert_eq!(machine.value("sys/devices/system/cpu/cpufreq/policy0/scaling_governor"), "schedutil");
    assert!(machine.journals().is_empty());
}

#[test]
fn originals_of_another_network_namespace_are_not_used() {
    let machine = Machine::new();
    machine.apply("eth0", &everything());
    let (writes, state) = (machine.writes.get(), machine.state());
    let there = ("net:[2]", state.as_path());
    for interface in ["eth0", "eth1"] {
        let applied = machine.process_in(there, interface, Life::long(), |host, stores| {
            apply::apply(host, stores, &plan(host, &everything()))
        });
        assert!(applied.unwrap_err().to_string().contains("another network namespace"));
        let undone =
            machine.process_in(there, interface, Life::long(), |host, stores| undo::undo(host, stores));
        assert!(undone.unwrap_err().to_string().contains("the state of eth0"));
    }
    assert_eq!(machine.writes.get(), writes);
}
