//! What is kept for the next boot. A file system in memory hides the machine's units and state; a new cable
//! is the device that appears at boot.

use crate::site::{INTERFACE, ONLY, Site};
use crate::support::gateway::Said;
use crate::support::{Outcome, ensure, wait};
use rustix::mount::{MountFlags, mount};
use std::fs;
use std::path::Path;
use std::process::Command;
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::namespaces::veth_with_queues;

const UNITS: &str = "/etc/systemd/system";
const UNIT: &str = "testudo-tune@wan.service";

pub fn tests(suite: Suite<'_, Site>) -> Suite<'_, Site> {
    suite
        .test("what_is_persisted_is_applied_again_by_the_unit_until_it_is_undone", persists)
        .test("what_is_persisted_ends_with_an_undo_that_cannot_read_its_journal", ends_with_a_damaged_journal)
}

impl Site {
    fn says_of_the_machine(&self, words: &[&str]) -> Outcome<Said> {
        Ok(wait::output(&mut self.command_of_the_machine(words))?.into())
    }
}

fn is_enabled() -> Outcome<String> {
    let output = wait::output(Command::new("systemctl").args(["--root=/", "is-enabled", UNIT]))?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// The words after the program in the unit's command, with the interface in their place.
fn words_of_the_unit() -> Outcome<Vec<String>> {
    let unit = fs::read_to_string(Path::new(UNITS).join("testudo-tune@.service"))?;
    let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/testudo tune "));
    let words = line.ok_or("the unit runs nothing")?.replace("%I", INTERFACE);
    Ok(words.split(' ').map(str::to_owned).collect())
}

/// Empty folders in place of the machine's.
fn hide_the_machine() -> TestResult {
    for folder in [UNITS, "/var/lib"] {
        mount("tune", folder, "tmpfs", MountFlags::NOSUID, c"mode=755")?;
    }
    Ok(())
}

fn install_the_unit() -> TestResult {
    let contrib = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/testudo-tune@.service");
    fs::copy(contrib, Path::new(UNITS).join("testudo-tune@.service"))?;
    Ok(())
}

fn persists(site: &mut Site) -> TestResult {
    hide_the_machine()?;
    let before = site.everything()?;
    let wishes = [&["apply", INTERFACE, "--mtu", "8000", "--persist"][..], &ONLY].concat();
    site.says_of_the_machine(&wishes)?.refused(1, "testudo-tune@.service is not installed")?;
    crate::site::same(&before, &site.everything()?, "without a unit")?;
    install_the_unit()?;
    let said = site.says_of_the_machine(&wishes)?;
    ensure(said.code == Some(0), || format!("{said:#?}"))?;
    assert_eq!((is_enabled()?.as_str(), site.file("mtu")?.as_str()), ("enabled", "8000"));

    // What is refused as a whole takes the place of nothing: the unit applies what it did.
    let small = [&["apply", INTERFACE, "--mtu", "1200", "--persist"][..], &ONLY].concat();
    site.says_of_the_machine(&small)?.refused(1, "takes IPv6 from wan")?;

    // The device goes, and comes as it is at boot; the unit runs.
    site.here.run(&["ip", "link", "delete", INTERFACE])?;
    veth_with_queues((&site.here, INTERFACE), (&site.there, INTERFACE), 2)?;
    assert_eq!(site.file("mtu")?, "1500");
    let words = words_of_the_unit()?;
    let said = site.says_of_the_machine(&words.iter().map(String::as_str).collect::<Vec<_>>())?;
    ensure(said.code == Some(0), || format!("{said:#?}"))?;
    assert_eq!(site.file("mtu")?, "8000");

    let said = site.says_of_the_machine(&["undo", INTERFACE])?;
    let told = said.stdout.contains("applies nothing at boot any more");
    ensure(said.code == Some(0) && told, || format!("{said:#?}"))?;
    assert_eq!((is_enabled()?.as_str(), site.file("mtu")?.as_str()), ("disabled", "1500"));
    for name in ["proc/sys/net/ipv4/tcp_rmem", "proc/sys/net/ipv4/tcp_sack"] {
        let path = Path::new("/").join(name);
        let now = site.here.within(|| fs::read_to_string(&path))??;
        assert_eq!(before.get(&path.display().to_string()), Some(&now));
    }
    let words = words.iter().map(String::as_str).collect::<Vec<_>>();
    site.says_of_the_machine(&words)?.refused(1, "nothing is kept for wan")?;
    Ok(())
}

fn ends_with_a_damaged_journal(site: &mut Site) -> TestResult {
    hide_the_machine()?;
    install_the_unit()?;
    let before = site.everything()?;
    let wishes = [&["apply", INTERFACE, "--mtu", "8000", "--persist"][..], &ONLY].concat();
    let said = site.says_of_the_machine(&wishes)?;
    ensure(said.code == Some(0), || format!("{said:#?}"))?;
    let file = Path::new("/var/lib/testudo-tune/wan.json");
    let journal = fs::read(file)?;
    fs::write(file, "no journal")?;

    let said = site.says_of_the_machine(&["undo", INTERFACE])?;
    said.refused(3, "wan.json")?;
    ensure(said.stdout.contains("applies nothing at boot any more"), || format!("{said:#?}"))?;
    assert_eq!((is_enabled()?.as_str(), site.file("mtu")?.as_str()), ("disabled", "8000"));
    fs::write(file, journal)?;
    let said = site.says_of_the_machine(&["undo", INTERFACE])?;
    ensure(said.code == Some(0), || format!("{said:#?}"))?;
    crate::site::same(&before, &site.everything()?, "once its journal could be read")?;
    Ok(())
}
