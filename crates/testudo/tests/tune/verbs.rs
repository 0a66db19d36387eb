//! What each verb does and says.

use crate::site::{INTERFACE, ONLY, Site};
use crate::support::ensure;
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::namespaces::veth;
use testudo_tune::folder::Folder;

pub fn tests(suite: Suite<'_, Site>) -> Suite<'_, Site> {
    suite
        .test("check_apply_check_undo_on_a_veth_leaves_every_setting_as_it_was", applies_and_undoes)
        .test("what_a_veth_lacks_or_refuses_is_named_and_stays_as_it_was", refuses)
        .test("a_second_apply_on_a_veth_keeps_the_first_originals", applies_twice)
        .test("what_two_interfaces_share_stays_until_the_last_undo", shares)
        .test("a_damaged_journal_of_another_interface_keeps_only_what_both_may_want", goes_on_past_damage)
        .test("tune_refuses_a_busy_or_foreign_state_and_an_unknown_interface", refuses_states)
}

fn applies_and_undoes(site: &mut Site) -> TestResult {
    let before = site.everything()?;
    let words = |verb| [&[verb, INTERFACE, "--mtu", "9000"][..], &ONLY].concat();
    let checked = site.rows(&words("check"), 1)?;
    assert_eq!(checked["net.ipv4.tcp_rmem"]["outcome"], "differs");
    assert_eq!(checked["rx-gro"]["before"], "off");
    crate::site::same(&before, &site.everything()?, "check changes nothing")?;

    let applied = site.rows(&words("apply"), 0)?;
    for name in ["net.ipv4.tcp_rmem", "net.ipv4.tcp_sack", "rx-gro", "tx-tcp-segmentation", "mtu"] {
        assert_eq!(applied[name]["outcome"], "changed", "{name}: {}", applied[name]);
    }
    // What the kernel and ethtool say of it.
    assert_eq!(site.file("mtu")?, "9000");
    let of_ipv6 = site.here.within(|| std::fs::read_to_string("/proc/sys/net/ipv6/conf/wan/mtu"))??;
    assert_eq!(of_ipv6.trim(), "9000", "the kernel changes it along");
    for name in ["generic-receive-offload", "tcp-segmentation-offload", "generic-segmentation-offload"] {
        assert!(site.offload(name)?, "{name}");
    }
    let rmem = site.here.within(|| std::fs::read_to_string("/proc/sys/net/ipv4/tcp_rmem"))??;
    assert_eq!(rmem.split_whitespace().collect::<Vec<_>>(), ["4096", "65536", "4194304"]);
    // All is as wanted now.
    site.rows(&words("check"), 0)?;
    // The data still passes.
    site.here.run(&["ping", "-c", "1", "-W", "5", "-s", "1400", "10.9.0.2"])?;

    let table = site.says(&["undo", INTERFACE])?;
    ensure(table.code == Some(0) && table.stdout.contains("as it was"), || format!("{table:#?}"))?;
    crate::site::same(&before, &site.everything()?, "undo")?;
    let again = site.says(&["undo", INTERFACE])?;
    ensure(again.code == Some(0) && again.stdout.contains("nothing is to be undone"), || {
        format!("{again:#?}")
    })
}

fn refuses(site: &mut Site) -> TestResult {
    let before = site.everything()?;
    // A veth carries at most 65,535 bytes.
    let rows = site.rows(&["apply", INTERFACE, "--mtu", "65536"], 1)?;
    assert_eq!(rows["mtu"]["outcome"], "refused", "{}", rows["mtu"]);
    assert_eq!(rows["mtu"]["after"], "1500");
    for name in ["rx-usecs", "interrupts", "net.core.rmem_max", "rx-lro"] {
        let row = &rows[name];
        assert!(row["outcome"] == "not-supported" || row["outcome"] == "as-wanted", "{row}");
    }
    assert_eq!(rows["rx-usecs"]["note"], "the device has none");
    assert_eq!(rows["tx-tcp-segmentation"]["outcome"], "changed");
    // Nor may root of a user namespace change these.
    assert_eq!(rows["gro_flush_timeout"]["outcome"], "refused", "{}", rows["gro_flush_timeout"]);
    let said = site.says(&["apply", INTERFACE, "--mtu", "65536"])?;
    said.refused(1, "the kernel refused: mtu, napi_defer_hard_irqs, gro_flush_timeout")?;
    assert!(said.stdout.contains("not supported by the device: the device has none"), "{}", said.stdout);
    site.undo_to(&before, "after a refusal")?;
    Ok(())
}

fn applies_twice(site: &mut Site) -> TestResult {
    let before = site.everything()?;
    site.rows(&[&["apply", INTERFACE, "--mtu", "4000"][..], &ONLY].concat(), 0)?;
    site.rows(&["apply", INTERFACE, "--mtu", "9000", "--only", "mtu"], 0)?;
    assert_eq!(site.file("mtu")?, "9000");
    site.undo_to(&before, "after two applies")?;
    Ok(())
}

fn shares(site: &mut Site) -> TestResult {
    let before = site.everything()?;
    veth((&site.here, "lan"), (&site.there, "lan"))?;
    let only = ["--mtu", "4000", "--only", "tcp,mtu"];
    site.rows(&[&["apply", INTERFACE][..], &only].concat(), 0)?;
    site.rows(&[&["apply", "lan"][..], &only].concat(), 0)?;
    let first = site.rows(&["undo", INTERFACE], 0)?;
    assert_eq!(first["net.ipv4.tcp_rmem"]["outcome"], "kept");
    assert_eq!(first["mtu"]["outcome"], "restored");
    // The second interface has gone before it was undone.
    site.here.run(&["ip", "link", "delete", "lan"])?;
    let last = site.rows(&["undo", "lan"], 0)?;
    assert_eq!(last["net.ipv4.tcp_rmem"]["outcome"], "restored");
    assert_eq!(last["mtu"]["outcome"], "gone", "with the device");
    crate::site::same(&before, &site.everything()?, "after both undos")?;
    Ok(())
}

fn goes_on_past_damage(site: &mut Site) -> TestResult {
    let before = site.everything()?;
    veth((&site.here, "lan"), (&site.there, "lan"))?;
    let only = ["--mtu", "4000", "--only", "tcp,mtu"];
    for name in [INTERFACE, "lan"] {
        site.rows(&[&["apply", name][..], &only].concat(), 0)?;
    }
    let file = site.state.join("lan.json");
    let journal = std::fs::read(&file)?;
    std::fs::write(&file, "no journal")?;
    site.says(&["apply", INTERFACE, "--only", "tcp"])?.refused(3, "lan.json")?;
    let undone = site.rows(&["undo", INTERFACE], 3)?;
    assert_eq!(undone["mtu"]["outcome"], "restored");
    assert_eq!(undone["net.ipv4.tcp_rmem"]["outcome"], "refused");
    assert_eq!(site.file("mtu")?, "1500");
    std::fs::write(&file, journal)?;
    let undone = site.rows(&["undo", INTERFACE], 0)?;
    assert_eq!(undone["net.ipv4.tcp_rmem"]["outcome"], "kept");
    site.rows(&["undo", "lan"], 0)?;
    site.here.run(&["ip", "link", "delete", "lan"])?;
    crate::site::same(&before, &site.everything()?, "after both undos")?;
    Ok(())
}

fn refuses_states(site: &mut Site) -> TestResult {
    let before = site.everything()?;
    let lock = Folder::open(&site.state)?;
    site.says(&["apply", INTERFACE])?.refused(3, "another `testudo tune` is at work")?;
    site.says(&["undo", INTERFACE])?.refused(3, "another `testudo tune` is at work")?;
    drop(lock);
    site.says(&["apply", "no-such"])?.refused(4, "there is no interface 'no-such'")?;
    site.says(&["check", "../wan"])?.refused(4, "there is no interface")?;
    let wrong = site.says(&["check", INTERFACE, "--isolate", "3-1"])?;
    let is_told = wrong.code == Some(2) && wrong.stderr.contains("expected processors such as 2-3,8");
    ensure(is_told, || format!("{wrong:#?}"))?;
    let left_out = ["apply", INTERFACE, "--isolate", "1", "--only", "sockets"];
    site.says(&left_out)?
        .refused(2, "--isolate is of the group isolation or affinity, which --only leaves out")?;
    for verb in ["check", "apply"] {
        let nowhere = [verb, INTERFACE, "--isolate", "8191", "--only", "isolation"];
        site.says(&nowhere)?.refused(1, "not possible here: isolated cores")?;
    }
    let link = site.state.with_file_name("link");
    std::os::unix::fs::symlink(&site.state, &link)?;
    let real = std::mem::replace(&mut site.state, link);
    let linked = site.says(&["apply", INTERFACE]);
    site.state = real;
    linked?.refused(3, "is no folder")?;
    crate::site::same(&before, &site.everything()?, "nothing was changed")?;
    Ok(())
}
