//! What the kernel changes along with a setting: a played one does as Linux, and undo brings that back, too.

use super::played::{Life, Machine, rows};
use crate::place::Place;
use crate::plan::{Options, plan};
use crate::report::Outcome;
use crate::setting::Group;
use crate::{apply, undo};
use std::fs;
use std::os::unix::fs::symlink;

const CPUFREQ: &str = "sys/devices/system/cpu/cpufreq";
const ALL_PAGES: &str = "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

fn pages(node: usize) -> String {
    format!("sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/nr_hugepages")
}

impl Machine {
    /// VLANs on eth0, one in the other, tunables that are not the governor's own, and pages of one node.
    pub fn with_companions(self) -> Self {
        let net = self.root().join("sys/class/net");
        for (below, name, index) in [("eth0", "eth0.7", "70"), ("eth0.7", "eth0.7.8", "78")] {
            self.put(&format!("sys/class/net/{name}/mtu"), "1500");
            self.put(&format!("sys/class/net/{name}/ifindex"), index);
            symlink(format!("../{name}"), net.join(below).join(format!("upper_{name}"))).unwrap();
        }
        self.put(&format!("{CPUFREQ}/policy0/schedutil/rate_limit_us"), "500");
        self.put(&format!("{CPUFREQ}/schedutil/shared_limit"), "3");
        self.put(&pages(0), "1");
        self.put(&pages(1), "7");
        self.put(ALL_PAGES, "8");
        self
    }

    /// What Linux changes along with a place.
    pub fn follows(&self, interface: &str, place: &Place, before: &str, value: &str) {
        let has = |file: &str| self.root().join(file).exists();
        match place {
            Place::Interface { file } if file == "mtu" => self.lowers(interface, value.parse().unwrap()),
            Place::MtuOf { interface, .. } => self.lowers(interface, value.parse().unwrap()),
            Place::Governor { policy } if before != value => {
                for folder in [format!("{CPUFREQ}/{policy}/{before}"), format!("{CPUFREQ}/{before}")] {
                    let _ = fs::remove_dir_all(self.root().join(folder));
                }
                if value == "schedutil" && has("sys/class/net/eth0.7") {
                    self.put(&format!("{CPUFREQ}/{policy}/schedutil/rate_limit_us"), "1000");
                    self.put(&format!("{CPUFREQ}/schedutil/shared_limit"), "9");
                }
            }
            Place::HugePages { .. } if has(&pages(0)) => {
                let all: usize = self.value(ALL_PAGES).parse().unwrap();
                self.put(&pages(0), &all.div_ceil(2).to_string());
                self.put(&pages(1), &(all / 2).to_string());
            }
            Place::NodePages { .. } => {
                let of = |node| self.value(&pages(node)).parse::<usize>().unwrap();
                self.put(ALL_PAGES, &(of(0) + of(1)).to_string());
            }
            _ => {}
        }
    }

    fn lowers(&self, interface: &str, mtu: u64) {
        for link in fs::read_dir(self.root().join("sys/class/net").join(interface)).unwrap().flatten() {
            let name = link.file_name().into_string().unwrap();
            let Some(name) = name.strip_prefix("upper_") else { continue };
            let file = format!("sys/class/net/{name}/mtu");
            if self.value(&file).parse::<u64>().unwrap() > mtu {
                self.put(&file, &mtu.to_string());
                self.lowers(name, mtu);
            }
        }
    }
}

fn all() -> Options {
    Options { mtu: Some(1400), huge_pages: Some(64), only: Vec::new() }
}

#[test]
fn undo_brings_back_what_the_kernel_has_changed_along() {
    let machine = Machine::new().with_companions();
    let before = machine.everything();
    machine.apply("eth0", &all());
    assert_eq!(machine.value("sys/class/net/eth0.7.8/mtu"), "1400");
    assert_eq!((machine.value(&pages(0)), machine.value(&pages(1))), ("32".to_owned(), "32".to_owned()));
    let report = machine.undo("eth0");
    let restored = rows(&report, Outcome::Restored);
    assert_eq!(restored.len(), report.rows.len(), "{report:#?}");
    for name in [
        "mtu of eth0.7",
        "mtu of eth0.7.8",
        "rate_limit_us of schedutil of policy0",
        "shared_limit of schedutil",
        "huge pages of 2048 KiB of node1",
    ] {
        assert!(restored.contains(&name), "{name} of {restored:?}");
    }
    assert_eq!(machine.everything(), before);
}

#[test]
fn what_the_kernel_has_changed_along_is_brought_back_after_a_kill_at_any_step() {
    for does_last in [false, true] {
        for step in 0.. {
            let (machine, life) = (Machine::new().with_companions(), Life::until(step, does_last));
            let before = machine.everything();
            // A second one, which lowers the MTU below what the first has raised.
            machine.apply("eth0", &Options { mtu: Some(9000), only: vec![Group::Mtu], huge_pages: None });
            let _ = machine.process("eth0", life.clone(), |host, stores| {
                apply::apply(host, stores, &plan(host, &all()))
            });
            let undo_life = Life::until(step, !does_last);
            let _ = machine.process("eth0", undo_life, |host, stores| undo::undo(host, stores));
            machine.undo("eth0");
            assert_eq!(machine.everything(), before, "killed at step {step}, {does_last}");
            if !life.is_over() {
                assert!(step > 40, "{step}");
                break;
            }
        }
    }
}

#[test]
fn what_goes_along_with_what_two_interfaces_share_goes_back_with_the_last() {
    for first in ["eth0", "eth1"] {
        let machine = Machine::new().with_companions();
        let before = machine.everything();
        machine.apply("eth0", &all());
        machine.apply("eth1", &all());
        let report = machine.undo(first);
        for name in ["rate_limit_us of schedutil of policy0", "huge pages of 2048 KiB of node0"] {
            assert!(rows(&report, Outcome::Kept).contains(&name), "{report:#?}");
        }
        machine.undo(if first == "eth0" { "eth1" } else { "eth0" });
        assert_eq!(machine.everything(), before, "{first} first");
    }
}

#[test]
fn what_goes_along_with_a_refused_setting_is_put_back_with_it() {
    let machine = Machine::new().with_companions();
    let before = machine.everything();
    machine.clamped.borrow_mut().insert("huge pages of 2048 KiB".to_owned(), "17".to_owned());
    let only = vec![Group::HugePages];
    let report = machine.apply("eth0", &Options { only, ..all() });
    assert_eq!(rows(&report, Outcome::Refused), ["huge pages of 2048 KiB"]);
    machine.clamped.borrow_mut().clear();
    machine.undo("eth0");
    assert_eq!(machine.everything(), before);
}

#[test]
fn tunables_of_a_governor_that_undo_cannot_bring_back_wait_for_it() {
    let machine = Machine::new().with_companions();
    let before = machine.everything();
    machine.apply("eth0", &all());
    let governor = Place::Governor { policy: "policy0".to_owned() };
    machine.refused.borrow_mut().push(governor.clone());
    let report = machine.undo("eth0");
    let refused = rows(&report, Outcome::Refused);
    for name in [&*governor.to_string(), "rate_limit_us of schedutil of policy0", "shared_limit of schedutil"]
    {
        assert!(refused.contains(&name), "{name} of {refused:?}");
    }
    machine.refused.borrow_mut().clear();
    machine.undo("eth0");
    assert_eq!(machine.everything(), before);
}

#[test]
fn the_mtu_of_another_interface_of_the_same_name_is_left_alone() {
    let machine = Machine::new().with_companions();
    machine.apply("eth0", &all());
    machine.put("sys/class/net/eth0.7/ifindex", "99");
    let report = machine.undo("eth0");
    assert_eq!(rows(&report, Outcome::Gone), ["mtu of eth0.7"]);
    assert_eq!(machine.value("sys/class/net/eth0.7/mtu"), "1400");
}

const STACK: [&str; 3] = ["eth0", "eth0.7", "eth0.7.8"];

/// All orders of the interfaces on top of each other.
fn orders() -> impl Iterator<Item = [&'static str; 3]> {
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    orders.into_iter().map(|order| order.map(|place| STACK[place]))
}

/// Each is lowered in this order, further than the one before it.
fn apply_in(machine: &Machine, order: [&str; 3]) {
    for (name, mtu) in order.into_iter().zip([1450, 1400, 1350]) {
        machine.apply(name, &Options { mtu: Some(mtu), only: vec![Group::Mtu], huge_pages: None });
    }
}

#[test]
fn mtus_of_interfaces_on_top_of_each_other_come_back_in_any_order() {
    for applied in orders() {
        for undone in orders() {
            let machine = Machine::new().with_companions();
            let before = machine.everything();
            apply_in(&machine, applied);
            undone.into_iter().for_each(|name| drop(machine.undo(name)));
            assert_eq!(machine.everything(), before, "applied {applied:?}, undone {undone:?}");
        }
    }
}

/// The upper one was lowered first, and so far that the lower one does not change it.
#[test]
fn an_mtu_above_that_of_the_interface_below_comes_back_after_it() {
    let machine = Machine::new().with_companions();
    let before = machine.everything();
    for (name, mtu) in [("eth0.7", 1300), ("eth0", 1400)] {
        machine.apply(name, &Options { mtu: Some(mtu), only: vec![Group::Mtu], huge_pages: None });
    }
    let report = machine.undo("eth0.7");
    assert_eq!(rows(&report, Outcome::Refused), ["mtu", "mtu of eth0.7.8"], "{report:#?}");
    assert_eq!(machine.value("sys/class/net/eth0.7/mtu"), "1300");
    machine.undo("eth0");
    machine.undo("eth0.7");
    assert_eq!(machine.everything(), before);
}

#[test]
fn an_mtu_that_another_interface_wants_is_left_to_its_undo_after_a_kill_at_any_step() {
    for step in 0.. {
        let (machine, life) = (Machine::new().with_companions(), Life::until(step, step % 2 == 0));
        let before = machine.everything();
        apply_in(&machine, STACK);
        let undone = machine.process("eth0", life.clone(), |host, stores| undo::undo(host, stores));
        if life.is_over() {
            assert_eq!(machine.value("sys/class/net/eth0.7.8/mtu"), "1350", "killed at step {step}");
        } else {
            let report = undone.unwrap();
            assert_eq!(rows(&report, Outcome::Kept), ["mtu of eth0.7", "mtu of eth0.7.8"], "{report:#?}");
        }
        STACK.into_iter().for_each(|name| drop(machine.undo(name)));
        assert_eq!(machine.everything(), before, "killed at step {step}");
        if !life.is_over() {
            assert!(step >= 4, "{step}");
            break;
        }
    }
}

#[test]
fn the_mtu_of_an_interface_with_a_new_name_comes_back() {
    let machine = Machine::new().with_companions();
    machine.apply("eth0", &all());
    let net = machine.root().join("sys/class/net");
    fs::rename(net.join("eth0.7"), net.join("lan7")).unwrap();
    fs::remove_file(net.join("eth0/upper_eth0.7")).unwrap();
    symlink("../lan7", net.join("eth0/upper_lan7")).unwrap();
    let report = machine.undo("eth0");
    assert!(rows(&report, Outcome::Restored).contains(&"mtu of lan7"), "{report:#?}");
    assert_eq!(machine.value("sys/class/net/lan7/mtu"), "1500");
}

#[test]
fn an_mtu_that_takes_ipv6_away_is_refused_before_anything_changes() {
    let machine = Machine::new();
    let small = Options { mtu: Some(1279), ..Options::default() };
    let apply = || {
        machine
            .process("eth0", Life::long(), |host, stores| apply::apply(host, stores, &plan(host, &small)))
            .map_err(|error| error.to_string())
    };
    machine.put("proc/sys/net/ipv6/conf/eth0/mtu", "1500");
    let before = machine.everything();
    assert!(apply().unwrap_err().contains("takes IPv6 from eth0"));
    assert_eq!((machine.everything(), machine.writes.get()), (before, 0));
    fs::remove_dir_all(machine.root().join("proc/sys/net/ipv6/conf/eth0")).unwrap();
    assert_eq!(rows(&apply().unwrap(), Outcome::Refused), [""; 0]);
    assert_eq!(machine.value("sys/class/net/eth0/mtu"), "1279");
}
