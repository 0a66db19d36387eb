//! What several interfaces share: of one function of a bus, of one namespace, of the machine.

use super::played::{HOME, Life, Machine, rows};
use crate::ended::Ended;
use crate::plan::{Options, plan};
use crate::report::{Outcome, Report};
use crate::setting::Group;
use crate::{apply, undo};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

const THERE: &str = "net:[2]";
const GOVERNOR: &str = "sys/devices/system/cpu/cpufreq/policy0/scaling_governor";
const PAGES: &str = "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
const INTERRUPT: &str = "proc/irq/41/smp_affinity_list";

fn of_the_machine() -> Options {
    let only = vec![Group::Affinity, Group::Governor, Group::HugePages];
    Options { huge_pages: Some(64), only, ..Options::default() }
}

/// eth0 at home, eth1 in another namespace, whose state has a folder of its own.
fn places(machine: &Machine) -> [(&'static str, &'static str, PathBuf); 2] {
    [("eth0", HOME, machine.state()), ("eth1", THERE, machine.root().with_file_name("state-there"))]
}

type At<'a> = (&'static str, &'static str, &'a Path);

fn applied(machine: &Machine, (interface, namespace, state): At<'_>, life: Life) -> Option<Report> {
    let work = machine.process_in((namespace, state), interface, life, |host, stores| {
        apply::apply(host, stores, &plan(host, &of_the_machine()))
    });
    work.ok()
}

fn undone(machine: &Machine, (interface, namespace, state): At<'_>, life: Life) -> Option<Report> {
    machine.process_in((namespace, state), interface, life, |host, stores| undo::undo(host, stores)).ok()
}

fn note(report: &Report, name: &str) -> String {
    let row =
        report.rows.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("{name}: {report:#?}"));
    row.note.clone().unwrap_or_default()
}

/// Applied in two namespaces with a folder each, undone in either order, by processes that end at any step.
#[test]
fn what_is_the_machines_goes_back_with_the_last_of_two_namespaces() {
    let mut kills = 0;
    for (order, does_last) in [([0, 1], false), ([1, 0], true)] {
        for step in 0.. {
            let machine = Machine::new();
            machine.join();
            let before = machine.everything();
            let places = places(&machine);
            let at = |which: usize| (places[which].0, places[which].1, places[which].2.as_path());
            // Each is killed at a step, and begun again.
            let lives: Vec<Life> = (0..4).map(|_| Life::until(step, does_last)).collect();
            for which in [0, 1] {
                applied(&machine, at(which), lives[which].clone());
                applied(&machine, at(which), Life::long()).unwrap();
            }
            undone(&machine, at(order[0]), lives[2].clone());
            undone(&machine, at(order[0]), Life::long()).unwrap();
            for (file, value) in [(GOVERNOR, "performance"), (PAGES, "64"), (INTERRUPT, "1")] {
                assert_eq!(machine.value(file), value, "{order:?} killed at step {step}");
            }
            undone(&machine, at(order[1]), lives[3].clone());
            undone(&machine, at(order[1]), Life::long()).unwrap();
            assert_eq!(machine.everything(), before, "{order:?} killed at step {step}");
            assert!(machine.journals().is_empty());
            kills += lives.iter().filter(|life| life.is_over()).count();
            if !lives.iter().any(Life::is_over) {
                break;
            }
        }
    }
    assert!(kills > 60, "{kills}");
}

#[test]
fn who_else_wants_what_is_the_machines_is_said() {
    let machine = Machine::new();
    machine.join();
    let [(_, _, home), (_, _, there)] = places(&machine);
    let (home, there) = (("eth0", HOME, home.as_path()), ("eth1", THERE, there.as_path()));
    applied(&machine, home, Life::long()).unwrap();
    let second = applied(&machine, there, Life::long()).unwrap();
    let too = "eth0 of network namespace 1 wants it, too: the last undo brings back";
    assert_eq!(note(&second, "governor of policy0"), format!("{too} schedutil"));
    assert_eq!(note(&second, "huge pages of 2048 KiB"), format!("{too} 0"));
    assert_eq!(note(&second, "processors of interrupt 40"), format!("{too} 0-3"));
    let report = undone(&machine, home, Life::long()).unwrap();
    let wants = "eth1 of network namespace 2 wants it, and the last undo brings back schedutil";
    assert_eq!(note(&report, "governor of policy0"), wants);
    assert_eq!(rows(&report, Outcome::Kept).len(), 4);
}

/// Two interfaces of one function, undone in the order in which they were applied.
#[test]
fn interrupts_that_two_interfaces_share_go_back_with_the_last() {
    for administrators in [None, Some("2-3")] {
        let machine = Machine::new();
        machine.join();
        let only = Options { only: vec![Group::Affinity], ..Options::default() };
        machine.apply("eth0", &only);
        administrators.inspect(|value| machine.put(INTERRUPT, value));
        let second = machine.apply("eth1", &only);
        let said = note(&second, "processors of interrupt 41");
        let expected = match administrators {
            None => "eth0 wants it, too: the last undo brings back 0-3",
            Some(_) => "somebody had set it since: undo brings back 0-3",
        };
        assert_eq!(said, expected);
        let first = machine.undo("eth0");
        assert!(rows(&first, Outcome::Kept).contains(&"processors of interrupt 41"), "{first:#?}");
        assert_eq!(machine.value(INTERRUPT), "1");
        machine.undo("eth1");
        assert_eq!(machine.value(INTERRUPT), "0-3");
    }
}

/// Each keeps its own free, and neither puts back what the other one's are kept from.
#[test]
fn processors_that_two_interfaces_keep_free_are_used_again_after_the_last() {
    const DEFAULT: &str = "proc/irq/default_smp_affinity";
    for first in ["eth0", "eth1"] {
        let machine = Machine::new();
        let before = machine.everything();
        for (name, processor) in [("eth0", 2), ("eth1", 3)] {
            let only = vec![Group::Isolation];
            machine.apply(name, &Options { isolate: vec![processor], only, ..Options::default() });
        }
        assert_eq!(machine.value(DEFAULT), "3");
        let report = machine.undo(first);
        let names = ["processors of unbound workqueues", "default processors of interrupts"];
        assert_eq!(rows(&report, Outcome::Kept), names, "{report:#?}");
        assert_eq!(machine.value(DEFAULT), "3");
        machine.undo(if first == "eth0" { "eth1" } else { "eth0" });
        assert_eq!(machine.everything(), before, "{first} first");
    }
}

/// A new device may have the numbers of one that has gone.
#[test]
fn interrupts_of_a_device_that_has_gone_are_nobody_elses_originals() {
    let machine = Machine::new();
    machine.join();
    machine.apply("eth0", &of_the_machine());
    std::fs::remove_dir_all(machine.root().join("sys/class/net/eth0")).unwrap();
    machine.put(INTERRUPT, "3");
    machine.apply("eth1", &of_the_machine());
    machine.undo("eth1");
    assert_eq!(machine.value(INTERRUPT), "3");
    assert_eq!(machine.value(GOVERNOR), "performance", "eth0 wants it, wherever it is");
}

#[test]
fn what_a_namespace_that_has_ended_wanted_of_the_machine_is_taken_back_by_its_number() {
    let machine = Machine::new();
    let before = machine.everything();
    let [_, there] = places(&machine);
    let only = Options { only: vec![Group::Napi, Group::Governor, Group::HugePages], ..of_the_machine() };
    let applied = machine.process_in((THERE, &there.2), "eth1", Life::long(), |host, stores| {
        apply::apply(host, stores, &plan(host, &only))
    });
    applied.unwrap();
    let eth1 = machine.root().join("sys/class/net/eth1");
    let before_the_end = machine.value("sys/class/net/eth1/gro_flush_timeout");
    let is_it = |process: &str| {
        let folder = machine.root().join("proc").join(process).join("ns");
        std::fs::create_dir_all(&folder).unwrap();
        symlink(THERE, folder.join("net")).unwrap();
    };
    let ended = || {
        machine.process_in((THERE, &there.2), "eth1", Life::long(), |host, stores| {
            Ok(Ended::new(host, "2").map(|ended| undo::undo(&ended, stores).unwrap()))
        })
    };
    is_it("77");
    assert!(ended().unwrap().is_none(), "a process is in it");
    std::fs::remove_dir_all(machine.root().join("proc/77")).unwrap();
    machine.put("proc/self/mountinfo", "9 8 0:4 net:[2] /run/netns/there rw - nsfs nsfs rw");
    assert!(ended().unwrap().is_none(), "it has a name");
    std::fs::remove_file(machine.root().join("proc/self/mountinfo")).unwrap();

    let report = ended().unwrap().unwrap();
    assert_eq!(rows(&report, Outcome::Restored), ["huge pages of 2048 KiB", "governor of policy0"]);
    assert_eq!(rows(&report, Outcome::Gone), ["gro_flush_timeout", "napi_defer_hard_irqs"]);
    // An interface of the same name is another one.
    assert_eq!(machine.value("sys/class/net/eth1/gro_flush_timeout"), before_the_end);
    for file in ["gro_flush_timeout", "napi_defer_hard_irqs"] {
        std::fs::write(eth1.join(file), "0\n").unwrap();
    }
    std::fs::remove_dir_all(machine.root().join("proc/self")).unwrap();
    assert_eq!(machine.everything(), before);
    assert!(machine.journals().is_empty() && !there.2.join("eth1.json").exists());
}

/// The state folder of this namespace, which has changed settings of its own, does not stand in the way.
#[test]
fn what_an_ended_namespace_wanted_is_taken_back_where_another_has_settings_of_its_own() {
    let machine = Machine::new();
    let [home, there] = places(&machine);
    let before = machine.value(PAGES);
    let pages = Options { only: vec![Group::HugePages], ..of_the_machine() };
    let applied = machine.process_in((THERE, &there.2), "eth1", Life::long(), |host, stores| {
        apply::apply(host, stores, &plan(host, &pages))
    });
    applied.unwrap();
    machine.apply("eth0", &Options { only: vec![Group::Napi], ..Options::default() });
    // The machine's folder as the ended namespace saw it, and the other one of this namespace.
    let report = machine.process_in((THERE, &home.2), "eth1", Life::long(), |host, stores| {
        undo::undo(&Ended::new(host, "2").unwrap(), stores)
    });
    assert_eq!(rows(&report.unwrap(), Outcome::Restored), ["huge pages of 2048 KiB"]);
    assert_eq!((machine.value(PAGES), machine.journals()), (before, vec!["eth0.json".to_owned()]));
}

/// The kernel gives numbers of namespaces again.
#[test]
fn a_namespace_with_the_number_of_one_that_has_ended_has_its_machine_settings_and_none_of_its_own() {
    let machine = Machine::new();
    let governor = machine.value(GOVERNOR);
    machine.cookie.set(Some(7));
    let only = Options { only: vec![Group::Napi, Group::Governor, Group::Affinity], ..of_the_machine() };
    machine.apply("eth0", &only);
    machine.apply("eth1", &only);
    // Other interfaces have the names and the indexes, and are as they are.
    machine.cookie.set(Some(8));
    for name in ["eth0", "eth1"] {
        machine.put(&format!("sys/class/net/{name}/gro_flush_timeout"), "7");
    }
    machine.put(INTERRUPT, "3");
    let report = machine.undo("eth0");
    assert_eq!(rows(&report, Outcome::Kept), ["governor of policy0"]);
    assert!(note(&report, "governor of policy0").contains("eth1 of a network namespace that has ended"));
    assert!(rows(&report, Outcome::Gone).contains(&"processors of interrupt 41"), "{report:#?}");
    machine.undo("eth1");
    assert_eq!(machine.value(GOVERNOR), governor);
    assert_eq!(
        (machine.value("sys/class/net/eth0/gro_flush_timeout"), machine.value(INTERRUPT)),
        ("7".to_owned(), "3".to_owned())
    );
    assert!(machine.journals().is_empty());
}
