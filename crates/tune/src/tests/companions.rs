//! What the kernel changes along with a setting: a played one does as Linux, and undo brings that back, too.

use super::played::{Life, Machine, rows};
use crate::error::TuneError;
use crate::host::Reading;
use crate::place::{Coalescing, Place};
use crate::plan::{Options, plan};
use crate::report::{Outcome, Report};
use crate::setting::Group;
use crate::{apply, undo};
use std::fs;
use std::os::unix::fs::symlink;

const CPUFREQ: &str = "sys/devices/system/cpu/cpufreq";
const ALL_PAGES: &str = "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

fn pages(node: usize) -> String {
    format!("sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/nr_hugepages")
}

fn preference(policy: &str) -> String {
    format!("{CPUFREQ}/{policy}/energy_performance_preference")
}

/// The MTU of IPv6 of an interface.
fn ipv6(interface: &str) -> String {
    format!("proc/sys/net/ipv6/conf/{interface}/mtu")
}

/// Those of `with_companions`: no interface has its own MTU there.
const OF_IPV6: [(&str, &str); 4] =
    [("eth0", "1292"), ("eth0.7", "1290"), ("eth0.7.8", "1285"), ("third", "1350")];

impl Machine {
    /// VLANs on eth0, one in the other, an ipvlan there, tunables that are not the governor's own, and pages
    /// of one node.
    pub fn with_companions(self) -> Self {
        for (below, name, index) in [("eth0", "eth0.7", "70"), ("eth0.7", "eth0.7.8", "78")] {
            self.stack(below, name, index, "1500");
        }
        self.stack("eth0", "third", "71", "1400");
        self.put("sys/class/net/third/is_ipvlan", "1");
        OF_IPV6.iter().for_each(|(name, mtu)| self.put(&ipv6(name), mtu));
        self.put(&format!("{CPUFREQ}/policy0/schedutil/rate_limit_us"), "500");
        self.put(&format!("{CPUFREQ}/schedutil/shared_limit"), "3");
        self.put(&preference("policy0"), "balance_power");
        self.put(&pages(0), "1");
        self.put(&pages(1), "7");
        self.put(ALL_PAGES, "8");
        self
    }

    /// An interface on top of another one.
    fn stack(&self, below: &str, name: &str, index: &str, mtu: &str) {
        self.put(&format!("sys/class/net/{name}/mtu"), mtu);
        self.put(&format!("sys/class/net/{name}/ifindex"), index);
        let net = self.root().join("sys/class/net");
        symlink(format!("../{name}"), net.join(below).join(format!("upper_{name}"))).unwrap();
        symlink(format!("../{below}"), net.join(name).join(format!("lower_{below}"))).unwrap();
    }

    /// Renames an interface on top of eth0.
    fn rename_on_top(&self, from: &str, to: &str) {
        self.rename(from, to);
        let lower = self.root().join("sys/class/net/eth0");
        fs::remove_file(lower.join(format!("upper_{from}"))).unwrap();
        symlink(format!("../{to}"), lower.join(format!("upper_{to}"))).unwrap();
        for upper in fs::read_dir(lower.with_file_name(to)).unwrap().flatten() {
            let name = upper.file_name().into_string().unwrap();
            let Some(name) = name.strip_prefix("upper_") else { continue };
            let upper = lower.with_file_name(name);
            fs::remove_file(upper.join(format!("lower_{from}"))).unwrap();
            symlink(format!("../{to}"), upper.join(format!("lower_{to}"))).unwrap();
        }
        let conf = self.root().join("proc/sys/net/ipv6/conf");
        fs::rename(conf.join(from), conf.join(to)).unwrap();
    }

    /// What Linux changes along with a place.
    pub fn follows(&self, interface: &str, place: &Place, before: &str, value: &str) {
        let has = |file: &str| self.root().join(file).exists();
        match place {
            Place::Interface { file } if file == "mtu" && before != value => self.has_mtu(interface, value),
            Place::MtuOf { interface, .. } if before != value => self.has_mtu(interface, value),
            Place::Governor { policy } if before != value => {
                for folder in [format!("{CPUFREQ}/{policy}/{before}"), format!("{CPUFREQ}/{before}")] {
                    let _ = fs::remove_dir_all(self.root().join(folder));
                }
                if value == "performance" && has(&preference(policy)) {
                    self.put(&preference(policy), "performance");
                }
                if value == "schedutil" && has("sys/class/net/eth0.7") {
                    self.put(&format!("{CPUFREQ}/{policy}/schedutil/rate_limit_us"), "1000");
                    self.put(&format!("{CPUFREQ}/schedutil/shared_limit"), "9");
                }
            }
            // As some drivers do.
            Place::Coalescing { item: Coalescing::AdaptiveRx } if value == "off" => {
                for (item, profile) in [(Coalescing::RxUsecs, "8"), (Coalescing::RxFrames, "128")] {
                    self.device(interface)
                        .has(&Place::Coalescing { item }, Reading::Value(profile.to_owned()));
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

    /// An interface has another MTU: so has IPv6 there, and VLANs on top are lowered. An ipvlan has what the
    /// one below it has, without a word to others (`ipvlan_adjust_mtu`).
    pub fn has_mtu(&self, interface: &str, mtu: &str) {
        if self.root().join(ipv6(interface)).exists() {
            self.put(&ipv6(interface), mtu);
        }
        for link in fs::read_dir(self.root().join("sys/class/net").join(interface)).unwrap().flatten() {
            let name = link.file_name().into_string().unwrap();
            let Some(name) = name.strip_prefix("upper_") else { continue };
            let file = format!("sys/class/net/{name}/mtu");
            let number = |text: &str| text.parse::<u64>().unwrap();
            if self.root().join("sys/class/net").join(name).join("is_ipvlan").exists() {
                self.put(&file, mtu);
            } else if number(&self.value(&file)) > number(mtu) {
                self.put(&file, mtu);
                self.has_mtu(name, mtu);
            }
        }
    }
}

fn all() -> Options {
    Options { mtu: Some(1400), huge_pages: Some(64), ..Options::default() }
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
        "IPv6 mtu of eth0",
        "mtu of eth0.7",
        "IPv6 mtu of eth0.7",
        "mtu of eth0.7.8",
        "mtu of third",
        "IPv6 mtu of third",
        "rate_limit_us of schedutil of policy0",
        "shared_limit of schedutil",
        "energy preference of policy0",
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
            machine.apply("eth0", &Options { mtu: Some(9000), only: vec![Group::Mtu], ..Options::default() });
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

/// One apply ends anywhere, another one is whole: undo comes to all in their order, at once, whether IPv6 has
/// the MTU of its interface or one of its own.
#[test]
fn what_an_apply_that_was_killed_has_kept_comes_back_by_one_undo_after_another_apply() {
    for (has_own, does_last) in [(true, true), (true, false), (false, true), (false, false)] {
        for step in 0.. {
            let (machine, life) = (Machine::new().with_companions(), Life::until(step, does_last));
            for (name, _) in OF_IPV6.iter().filter(|_| !has_own) {
                machine.put(&ipv6(name), &machine.value(&format!("sys/class/net/{name}/mtu")));
            }
            let before = machine.everything();
            let _ = machine.process("eth0", life.clone(), |host, stores| {
                apply::apply(host, stores, &plan(host, &all()))
            });
            machine.apply("eth0", &all());
            let report = machine.undo("eth0");
            assert_eq!(rows(&report, Outcome::Refused), [""; 0], "step {step}, {has_own}, {does_last}");
            assert_eq!(machine.everything(), before, "step {step}, {has_own}, {does_last}");
            if !life.is_over() {
                assert!(step > 20, "{step}");
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
        for name in [
            "rate_limit_us of schedutil of policy0",
            "energy preference of policy0",
            "huge pages of 2048 KiB of node0",
        ] {
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
    for name in [
        &*governor.to_string(),
        "rate_limit_us of schedutil of policy0",
        "shared_limit of schedutil",
        "energy preference of policy0",
    ] {
        assert!(refused.contains(&name), "{name} of {refused:?}");
    }
    machine.refused.borrow_mut().clear();
    machine.undo("eth0");
    assert_eq!(machine.everything(), before);
}

#[test]
fn what_a_driver_sets_when_it_no_longer_adapts_comes_back_after_a_kill_at_any_step() {
    let only = Options { only: vec![Group::Coalescing], ..Options::default() };
    for (kills_apply, does_last) in [(true, true), (true, false), (false, true), (false, false)] {
        for step in 0.. {
            let (machine, life) = (Machine::new(), Life::until(step, does_last));
            let values =
                [(Coalescing::AdaptiveRx, "off"), (Coalescing::RxUsecs, "3"), (Coalescing::RxFrames, "32")];
            for (item, value) in values {
                machine.device("eth0").has(&Place::Coalescing { item }, Reading::Value(value.to_owned()));
            }
            let before = machine.everything();
            let applies = if kills_apply { life.clone() } else { Life::long() };
            let applied = machine
                .process("eth0", applies, |host, stores| apply::apply(host, stores, &plan(host, &only)));
            if !kills_apply {
                let report = applied.unwrap();
                assert_eq!(rows(&report, Outcome::Changed), ["adaptive-rx"], "{report:#?}");
                let _ = machine.process("eth0", life.clone(), |host, stores| undo::undo(host, stores));
            }
            machine.undo("eth0");
            assert_eq!(machine.everything(), before, "step {step}, {kills_apply}, {does_last}");
            if !life.is_over() {
                assert!(step >= 4, "{step}");
                break;
            }
        }
    }
}

/// A driver has its own MTU when it restarts for the rings, and the kernel takes others along with that.
#[test]
fn an_mtu_that_a_restart_of_the_device_resets_comes_back_with_what_it_takes_along() {
    let machine = Machine::new().with_companions();
    let before = machine.everything();
    machine.apply("eth0", &Options { mtu: Some(9000), ..Options::default() });
    machine.resets_mtu.set(true);
    let report = machine.undo("eth0");
    assert_eq!(rows(&report, Outcome::Refused), [""; 0], "{report:#?}");
    assert_eq!(machine.everything(), before);
    assert!(machine.journals().is_empty());
}

#[test]
fn the_mtu_of_another_interface_of_the_same_name_is_left_alone() {
    let machine = Machine::new().with_companions();
    machine.apply("eth0", &all());
    machine.put("sys/class/net/eth0.7/ifindex", "99");
    let report = machine.undo("eth0");
    assert_eq!(rows(&report, Outcome::Gone), ["mtu of eth0.7", "IPv6 mtu of eth0.7"]);
    assert_eq!(machine.value("sys/class/net/eth0.7/mtu"), "1400");
    assert_eq!(machine.value(&ipv6("eth0.7")), "1400");
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
        machine.apply(name, &Options { mtu: Some(mtu), only: vec![Group::Mtu], ..Options::default() });
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
        machine.apply(name, &Options { mtu: Some(mtu), only: vec![Group::Mtu], ..Options::default() });
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
            let kept = ["mtu of eth0.7", "IPv6 mtu of eth0.7", "mtu of eth0.7.8", "IPv6 mtu of eth0.7.8"];
            assert_eq!(rows(&report, Outcome::Kept), kept, "{report:#?}");
        }
        STACK.into_iter().for_each(|name| drop(machine.undo(name)));
        assert_eq!(machine.everything(), before, "killed at step {step}");
        if !life.is_over() {
            assert!(step >= 4, "{step}");
            break;
        }
    }
}

/// The upper one was lowered first, and the lower one's change has left it as it was. Undo of the upper one
/// is killed at any step, and begun again before that of the lower one, or after it.
#[test]
fn an_mtu_that_another_journal_only_watches_comes_back_at_once_and_stays() {
    for is_first_again in [true, false] {
        for step in 0.. {
            let (machine, life) = (Machine::new().with_companions(), Life::until(step, step % 2 == 0));
            let before = machine.everything();
            for (name, mtu) in [("eth0.7", 1300), ("eth0", 9000)] {
                machine
                    .apply(name, &Options { mtu: Some(mtu), only: vec![Group::Mtu], ..Options::default() });
            }
            let undone = machine.process("eth0.7", life.clone(), |host, stores| undo::undo(host, stores));
            if !life.is_over() {
                let report = undone.unwrap();
                assert_eq!(rows(&report, Outcome::Restored).len(), report.rows.len(), "{report:#?}");
                assert_eq!(machine.value("sys/class/net/eth0.7/mtu"), "1500");
                assert_eq!(machine.value(&ipv6("eth0.7")), "1290");
            }
            let order = if is_first_again { ["eth0.7", "eth0"] } else { ["eth0", "eth0.7"] };
            order.into_iter().for_each(|name| drop(machine.undo(name)));
            assert_eq!(machine.everything(), before, "killed at step {step}, {order:?}");
            if !life.is_over() {
                assert!(step >= 8, "{step}");
                break;
            }
        }
    }
}

/// The kernel takes it along once more when the MTU comes back at last.
#[test]
fn what_comes_along_with_an_mtu_that_undo_cannot_bring_back_waits_for_it() {
    let machine = Machine::new().with_companions();
    let before = machine.everything();
    machine.apply("eth0", &Options { mtu: Some(9000), only: vec![Group::Mtu], ..Options::default() });
    assert_eq!(machine.value("sys/class/net/third/mtu"), "9000");
    machine.refused.borrow_mut().push(Place::interface("mtu"));
    let report = machine.undo("eth0");
    assert_eq!(rows(&report, Outcome::Refused), ["mtu"], "{report:#?}");
    machine.refused.borrow_mut().clear();
    let report = machine.undo("eth0");
    assert!(rows(&report, Outcome::Restored).contains(&"mtu of third"), "{report:#?}");
    assert_eq!(machine.everything(), before);
    assert!(machine.journals().is_empty());
}

/// It is left to a later change, and the MTU comes back after that was undone.
#[test]
fn what_is_left_to_another_interface_waits_for_the_mtu_that_takes_it_along() {
    let machine = Machine::new().with_companions();
    let before = machine.everything();
    for (name, mtu) in [("eth0", 9000), ("third", 1350)] {
        machine.apply(name, &Options { mtu: Some(mtu), only: vec![Group::Mtu], ..Options::default() });
    }
    machine.refused.borrow_mut().push(Place::interface("mtu"));
    let report = machine.undo("eth0");
    assert_eq!(rows(&report, Outcome::Kept), ["mtu of third"], "{report:#?}");
    machine.refused.borrow_mut().clear();
    machine.undo("third");
    assert_eq!(machine.value("sys/class/net/third/mtu"), "1400");
    machine.undo("eth0");
    assert_eq!(machine.everything(), before);
    assert!(machine.journals().is_empty());
}

/// Undoes an interface while the journal of another one cannot be read.
fn undo_without(machine: &Machine, name: &str, unread: &str) -> Report {
    let file = machine.state().join(format!("{unread}.json"));
    let journal = fs::read(&file).unwrap();
    fs::write(&file, "no journal").unwrap();
    let undone = machine.process(name, Life::long(), |host, stores| undo::undo(host, stores));
    let Err(TuneError::Partly { report, why }) = undone else { panic!("{undone:?}") };
    assert!(matches!(*why, TuneError::OfAnother(_)), "{why:?}");
    fs::write(&file, journal).unwrap();
    *report
}

#[test]
fn an_mtu_that_an_unread_journal_may_have_taken_along_comes_back_and_stays_in_its_own() {
    let machine = Machine::new().with_companions();
    let before = machine.everything();
    for (name, mtu) in [("third", 1350), ("eth0", 9000)] {
        machine.apply(name, &Options { mtu: Some(mtu), only: vec![Group::Mtu], ..Options::default() });
    }
    for _ in 0..2 {
        let report = undo_without(&machine, "third", "eth0");
        assert_eq!(rows(&report, Outcome::Restored), ["mtu", "IPv6 mtu of third"], "{report:#?}");
        assert_eq!(machine.value("sys/class/net/third/mtu"), "1400");
    }
    ["eth0", "third"].into_iter().for_each(|name| drop(machine.undo(name)));
    assert_eq!(machine.everything(), before);
    assert!(machine.journals().is_empty());
}

/// The one that cannot be read has the change in between.
#[test]
fn an_mtu_is_left_to_nobody_while_a_journal_cannot_be_read() {
    let machine = Machine::new().with_companions();
    let before = machine.everything();
    apply_in(&machine, ["eth0.7.8", "eth0.7", "eth0"]);
    let report = undo_without(&machine, "eth0.7.8", "eth0.7");
    assert_eq!(rows(&report, Outcome::Refused), ["mtu", "IPv6 mtu of eth0.7.8"], "{report:#?}");
    assert_eq!(machine.value("sys/class/net/eth0.7.8/mtu"), "1350");
    ["eth0.7", "eth0", "eth0.7.8"].into_iter().for_each(|name| drop(machine.undo(name)));
    assert_eq!(machine.everything(), before);
    assert!(machine.journals().is_empty());
}

/// The change in between has left the others as they were. A VLAN cannot be above the one below it: what is
/// refused comes back when all were undone once.
#[test]
fn an_mtu_that_is_left_to_a_later_change_is_known_to_who_watches_in_between() {
    for undone in orders() {
        let machine = Machine::new().with_companions();
        let before = machine.everything();
        for (name, mtu) in [("eth0.7", 1400), ("eth0", 2000), ("eth0.7.8", 1350)] {
            let only = vec![Group::Mtu];
            machine.apply(name, &Options { mtu: Some(mtu), only, ..Options::default() });
        }
        undone.into_iter().chain(undone).for_each(|name| drop(machine.undo(name)));
        assert_eq!(machine.everything(), before, "undone {undone:?}");
        assert!(machine.journals().is_empty(), "undone {undone:?}");
    }
}

/// A VLAN that came after the first apply, in another one: undo has that one's MTU before its own.
#[test]
fn what_came_on_top_after_the_first_apply_comes_back_after_what_it_is_on() {
    let machine = Machine::new();
    machine.stack("eth0", "eth0.7", "70", "1500");
    let only = |mtu| Options { mtu: Some(mtu), only: vec![Group::Mtu], ..Options::default() };
    machine.apply("eth0", &only(1400));
    machine.stack("eth0.7", "eth0.7.8", "78", "1400");
    machine.apply("eth0", &only(1300));
    assert_eq!(machine.value("sys/class/net/eth0.7.8/mtu"), "1300");
    let report = machine.undo("eth0");
    assert_eq!(rows(&report, Outcome::Refused), [""; 0], "{report:#?}");
    let mtus = STACK.map(|name| machine.value(&format!("sys/class/net/{name}/mtu")));
    assert_eq!(mtus, ["1500", "1500", "1400"]);
}

/// Some thousand of them are no reason to wait for the disk at each, nor to look through all for each.
#[test]
fn many_interfaces_on_top_cost_one_journal_and_a_few_looks_each() {
    let cost = |count: usize| {
        let machine = Machine::new();
        for number in 0..count {
            let name = format!("eth0.{number}");
            machine.stack("eth0", &name, &(100 + number).to_string(), "1500");
            machine.put(&ipv6(&name), "1300");
        }
        let (before, life) = (machine.everything(), Life::long());
        let only = Options { mtu: Some(1400), only: vec![Group::Mtu], ..Options::default() };
        let applied = machine
            .process("eth0", life.clone(), |host, stores| apply::apply(host, stores, &plan(host, &only)));
        applied.unwrap();
        let looks = machine.looks.get();
        machine.undo("eth0");
        assert_eq!(machine.everything(), before);
        (life.steps(), machine.looks.get() - looks)
    };
    let (few, many) = (cost(2), cost(32));
    assert_eq!(many.0, few.0, "steps of apply");
    // Each has two entries.
    assert!(many.1 - few.1 <= 30 * 2 * 3, "looks of undo: {few:?} {many:?}");
}

/// Apply has left it alone, and so does undo.
#[test]
fn what_somebody_makes_of_an_mtu_that_apply_has_left_as_it_was_stays_after_a_kill_at_any_step() {
    for (mtu, name, theirs) in [(9000, "eth0.7", "1400"), (1400, "third", "1380")] {
        for (does_last, step) in [false, true].into_iter().flat_map(|last| (0..30).map(move |s| (last, s))) {
            let (machine, life) = (Machine::new().with_companions(), Life::until(step, does_last));
            let file = format!("sys/class/net/{name}/mtu");
            let sets = |mtu: &str, of_ipv6: &str| {
                machine.put(&file, mtu);
                machine.has_mtu(name, mtu);
                machine.put(&ipv6(name), of_ipv6);
            };
            let first = [machine.value(&file), machine.value(&ipv6(name))];
            sets(theirs, "1300");
            let before = machine.everything();
            sets(&first[0], &first[1]);
            let only = vec![Group::Mtu];
            machine.apply("eth0", &Options { mtu: Some(mtu), only, ..Options::default() });
            sets(theirs, "1300");
            let _ = machine.process("eth0", life.clone(), |host, stores| undo::undo(host, stores));
            assert!(step < 29 || !life.is_over(), "undo has more steps");
            machine.undo("eth0");
            assert_eq!(machine.everything(), before, "{name}, killed at step {step}, {does_last}");
        }
    }
}

/// A VLAN cannot keep more than the one below it has again.
#[test]
fn an_mtu_that_somebody_has_raised_above_the_original_of_the_one_below_comes_back() {
    let machine = Machine::new().with_companions();
    let set = |name: &str, mtu: &str| {
        machine.put(&format!("sys/class/net/{name}/mtu"), mtu);
        machine.has_mtu(name, mtu);
    };
    set("eth0.7", "1400");
    set("eth0.7.8", "1300");
    let before = machine.everything();
    machine.apply("eth0", &Options { mtu: Some(9000), only: vec![Group::Mtu], ..Options::default() });
    set("eth0.7", "8000");
    set("eth0.7.8", "1450");
    let report = machine.undo("eth0");
    assert_eq!(rows(&report, Outcome::Refused), [""; 0], "{report:#?}");
    assert_eq!(machine.everything(), before);
    assert!(machine.journals().is_empty());
}

/// Somebody, or an apply to the upper one itself, between two applies to the lower one.
#[test]
fn an_mtu_that_has_changed_between_two_applies_to_the_one_below_comes_back_as_it_was_then() {
    let only = |mtu| Options { mtu: Some(mtu), only: vec![Group::Mtu], ..Options::default() };
    let mtu = "sys/class/net/eth0.7/mtu";
    let machine = Machine::new().with_companions();
    machine.apply("eth0", &only(9000));
    machine.put(mtu, "1450");
    machine.apply("eth0", &only(1400));
    assert_eq!(machine.value(mtu), "1400");
    machine.undo("eth0");
    assert_eq!(machine.value(mtu), "1450");

    for order in [["eth0", "eth0.7"], ["eth0.7", "eth0"]] {
        let machine = Machine::new().with_companions();
        let before = machine.everything();
        for (name, mtu) in [("eth0", 9000), ("eth0.7", 1400), ("eth0", 1300)] {
            machine.apply(name, &only(mtu));
        }
        order.into_iter().for_each(|name| drop(machine.undo(name)));
        assert_eq!(machine.everything(), before, "{order:?}");
        assert!(machine.journals().is_empty(), "{order:?}");
    }
}

/// What undo itself takes along is nobody else's change.
#[test]
fn only_what_somebody_has_changed_is_said_to_be_changed() {
    let machine = Machine::new().with_companions();
    machine.apply("eth0", &all());
    machine.put("sys/class/net/third/mtu", "1380");
    let report = machine.undo("eth0");
    let noted: Vec<_> = report.rows.iter().filter(|row| row.note.is_some()).map(|row| &row.name).collect();
    assert_eq!(noted, ["mtu of third"], "{report:#?}");
}

#[test]
fn the_mtu_of_an_interface_with_a_new_name_comes_back() {
    let machine = Machine::new().with_companions();
    machine.apply("eth0", &all());
    machine.rename_on_top("eth0.7", "lan7");
    let report = machine.undo("eth0");
    for name in ["mtu of lan7", "IPv6 mtu of lan7"] {
        assert!(rows(&report, Outcome::Restored).contains(&name), "{report:#?}");
    }
    assert_eq!(machine.value("sys/class/net/lan7/mtu"), "1500");
    assert_eq!(machine.value(&ipv6("lan7")), "1290");
}

/// Killed when its undo had its journal under the new name, and the earlier one was still there.
#[test]
fn an_mtu_is_left_to_a_renamed_interface_whose_journal_has_two_names() {
    for does_last in [false, true] {
        for step in 0.. {
            let (machine, life) = (Machine::new().with_companions(), Life::until(step, does_last));
            machine.rename_on_top("eth0.7", "vlan7");
            let before = machine.everything();
            machine.rename_on_top("vlan7", "eth0.7");
            for (name, mtu) in [("eth0", 1400), ("eth0.7", 1350)] {
                let only = vec![Group::Mtu];
                machine.apply(name, &Options { mtu: Some(mtu), only, ..Options::default() });
            }
            machine.rename_on_top("eth0.7", "vlan7");
            let _ = machine.process("vlan7", life.clone(), |host, stores| undo::undo(host, stores));
            machine.undo("eth0");
            machine.undo("vlan7");
            assert_eq!(machine.everything(), before, "step {step}, {does_last}");
            assert!(machine.journals().is_empty(), "step {step}, {does_last}");
            if !life.is_over() {
                assert!(step >= 4, "{step}");
                break;
            }
        }
    }
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

/// They are lowered along; macsec keeps room for its own header.
#[test]
fn an_mtu_that_takes_ipv6_from_an_interface_on_top_is_refused_before_anything_changes() {
    let machine = Machine::new();
    for (name, index, mtu) in [("eth0.7", "70", "1500"), ("macsec0", "71", "1468"), ("small", "72", "1279")] {
        machine.stack("eth0", name, index, mtu);
        machine.put(&ipv6(name), mtu);
    }
    machine.put("sys/class/net/macsec0/uevent", "DEVTYPE=macsec\nINTERFACE=macsec0");
    let before = machine.everything();
    let apply = |mtu| {
        let options = Options { mtu: Some(mtu), only: vec![Group::Mtu], ..Options::default() };
        machine
            .process("eth0", Life::long(), |host, stores| apply::apply(host, stores, &plan(host, &options)))
            .map_err(|error| error.to_string())
    };
    assert!(apply(1279).unwrap_err().contains("takes IPv6 from eth0.7"));
    assert!(apply(1311).unwrap_err().contains("takes IPv6 from macsec0"));
    assert_eq!((machine.everything(), machine.writes.get()), (before.clone(), 0));
    // What is smaller already is not lowered.
    assert_eq!(rows(&apply(1312).unwrap(), Outcome::Changed), ["mtu"]);
    machine.undo("eth0");
    assert_eq!(machine.everything(), before);
}
