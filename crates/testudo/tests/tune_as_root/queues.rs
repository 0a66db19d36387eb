//! NAPI deferral and queues, of devices in namespaces of the test's own.

use crate::kills::apply_in_the_middle;
use crate::site::{INTERFACE, OF_IPV6, ONLY_AS_ROOT, Site, same};
use crate::support::{Outcome, ensure};
use std::fs;
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::namespaces::{Namespace, enter_as_root, veth_with_queues};

type Place = Option<Site>;

pub fn tests(suite: Suite<'_, Place>) -> Suite<'_, Place> {
    suite
        .test("root_applies_and_undoes_napi_and_queues_of_a_veth", |_| on_a_veth())
        .test("undo_after_kill_9_of_apply_leaves_napi_and_queues_as_they_were", |_| killed())
        .test("root_applies_and_undoes_napi_and_queues_of_a_tap", |_| on_a_tap())
        .test("the_mtu_of_an_interface_on_top_comes_back_with_undo", |_| on_top())
        .test("the_mtu_of_ipv6_on_a_bridge_that_follows_its_port_up_comes_back_with_undo", |_| on_a_bridge())
        .test("an_mtu_below_that_of_ipv6_is_refused_and_takes_no_address_away", |_| below_ipv6())
}

fn veth() -> Outcome<Site> {
    let site = Site::build_in(enter_as_root()?, |here, there| {
        Ok(veth_with_queues((here, INTERFACE), (there, INTERFACE), 2)?)
    })?;
    site.here.address(INTERFACE, "10.9.0.1/24")?;
    slack(&site.here)?;
    site.slack_of_ipv6()?;
    Ok(site)
}

/// Values that are no kernel's own, so that bringing back the defaults would be noticed.
fn slack(here: &Namespace) -> Outcome<()> {
    let wan = "/sys/class/net/wan";
    let script = format!(
        "echo 7000 >{wan}/gro_flush_timeout; echo 1 >{wan}/napi_defer_hard_irqs; echo 1 >{wan}/queues/rx-0/rps_cpus"
    );
    here.run(&["sh", "-ec", &script])?;
    Ok(())
}

fn several_processors() -> Outcome<bool> {
    Ok(fs::read_to_string("/sys/devices/system/cpu/online")?.trim() != "0")
}

fn check_apply_check_undo(site: &Site, only: &[&str], queues: &[&str]) -> TestResult {
    let before = site.everything()?;
    let words = |verb| [&[verb, INTERFACE, "--mtu", "1400"][..], only].concat();
    let checked = site.rows(&words("check"), 1)?;
    assert_eq!(checked["gro_flush_timeout"]["outcome"], "differs", "{checked:#?}");
    same(&before, &site.everything()?, "check changes nothing")?;
    let applied = site.rows(&words("apply"), 0)?;
    let mut names = vec!["gro_flush_timeout", "napi_defer_hard_irqs"];
    if several_processors()? {
        names.extend(queues);
    }
    for name in names {
        assert_eq!(applied[name]["outcome"], "changed", "{name}: {applied:#?}");
    }
    assert_eq!(
        (site.file("gro_flush_timeout")?.as_str(), site.file("napi_defer_hard_irqs")?.as_str()),
        ("20000", "2")
    );
    site.rows(&words("check"), 0)?;
    site.undo_to(&before, "undo")
}

fn on_a_veth() -> TestResult {
    let site = veth()?;
    // Each of two queues sends from its own processors, and receives for all.
    let all = ["tx-0/xps_cpus", "tx-1/xps_cpus"];
    check_apply_check_undo(&site, &ONLY_AS_ROOT, &all)
}

fn killed() -> TestResult {
    apply_in_the_middle(&veth()?, &ONLY_AS_ROOT)
}

fn on_a_tap() -> TestResult {
    let site = Site::build_in(enter_as_root()?, |here, _| Ok(here.tap(INTERFACE)?))?;
    slack(&site.here)?;
    // Its link never comes up, as no program has it open.
    site.here.sysctl(OF_IPV6.0, OF_IPV6.1)?;
    // Its offloads are up to the program that has it open, and there is none.
    let only = ["--only", "tcp,rings,mtu,coalescing,napi,affinity"];
    check_apply_check_undo(&site, &only, &["rx-0/rps_cpus"])?;
    apply_in_the_middle(&site, &only)
}

fn on_top() -> TestResult {
    let site = veth()?;
    for (below, name) in [(INTERFACE, "first"), ("first", "second")] {
        site.here.run(&["ip", "link", "add", "link", below, "name", name, "type", "macvlan"])?;
    }
    site.here.sysctl("net.ipv6.conf.first.mtu", "1350")?;
    let before = site.everything()?;
    let applied = ["apply", INTERFACE, "--mtu", "1400", "--only", "mtu"];
    site.rows(&applied, 0)?;
    for name in ["first", "second"] {
        assert_eq!(mtus(&site, name)?, ["1400", "1400"], "{name}");
    }
    site.undo_to(&before, "with interfaces on top")
}

/// The MTU of an interface, and that of IPv6 there.
fn mtus(site: &Site, name: &str) -> Outcome<[String; 2]> {
    let read = |file: String| -> Outcome<String> { Ok(site.here.run(&["cat", &file])?.trim().to_owned()) };
    Ok([read(format!("/sys/class/net/{name}/mtu"))?, read(format!("/proc/sys/net/ipv6/conf/{name}/mtu"))?])
}

/// A bridge has the least MTU of its ports (`br_mtu_auto_adjust`).
fn on_a_bridge() -> TestResult {
    let site = veth()?;
    site.here.run(&["ip", "link", "add", "bridge", "type", "bridge"])?;
    site.here.run(&["ip", "link", "set", INTERFACE, "master", "bridge"])?;
    site.here.sysctl("net.ipv6.conf.bridge.mtu", "1400")?;
    let before = site.everything()?;
    site.rows(&["apply", INTERFACE, "--mtu", "9000", "--only", "mtu"], 0)?;
    assert_eq!(mtus(&site, "bridge")?, ["9000", "9000"]);
    site.undo_to(&before, "with a bridge on top")?;
    assert_eq!(mtus(&site, "bridge")?, ["1500", "1400"]);
    let offloads = site.says(&["check", "bridge", "--only", "offloads"])?;
    ensure(offloads.stdout.contains("the interfaces below it decide"), || format!("{offloads:#?}"))
}

fn below_ipv6() -> TestResult {
    let site = veth()?;
    site.here.address(INTERFACE, "2001:db8::1/64")?;
    let addresses = || site.here.run(&["ip", "-6", "address", "show", "dev", INTERFACE, "scope", "global"]);
    let (before, had) = (site.everything()?, addresses()?);
    ensure(had.contains("2001:db8::1"), || had.clone())?;
    site.says(&["apply", INTERFACE, "--mtu", "1279"])?.refused(1, "takes IPv6 from wan")?;
    assert_eq!(addresses()?, had);
    same(&before, &site.everything()?, "a refused MTU")
}
