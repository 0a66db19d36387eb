//! A full disk: nothing starts on it, a running gateway continues until its leased numbers are used up, and
//! no number is repeated.

use crate::support::config::{CONFIGURATION, Config, pair};
use crate::support::gateway::{Gateway, PROGRAM, Said, init, run_to_end};
use crate::support::link::Link;
use crate::support::wait::{until, until_within};
use crate::support::{Outcome, ensure, wait};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use testudo_judge::harness::{Suite, TestResult};

/// systemd restarts after this exit code.
const FAILED: i32 = 1;
/// systemd does not restart after these.
const CONFIGURATION_IS_WRONG: i32 = 2;
const STATE_IS_WRONG: i32 = 3;
/// The numbers that an SA first leases.
const BLOCK: u64 = 1 << 10;
/// Time for a thousand packets on a busy machine.
const FLOODED_WITHIN: Duration = Duration::from_secs(60);

pub fn tests<'a>(suite: Suite<'a, Link>) -> Suite<'a, Link> {
    suite
        .test("on_a_full_disk_no_store_is_made", makes_no_store)
        .test("on_a_full_disk_no_gateway_starts_and_systemd_tries_again", does_not_start)
        .test("a_log_that_cannot_be_written_ends_no_gateway_and_changes_no_exit_code", goes_on_without_a_log)
        .test(
            "a_store_that_cannot_write_stops_an_sa_at_its_last_number_and_no_earlier",
            stops_at_the_last_number,
        )
}

/// A small file system for durable state alone.
struct Disk(PathBuf);

impl Disk {
    fn below(folder: &Path) -> Outcome<Self> {
        let path = folder.join("disk");
        fs::create_dir(&path)?;
        mount("testudo-tests", &path, "tmpfs", MountFlags::empty(), c"size=4m,mode=700")?;
        Ok(Self(path))
    }

    /// Fills the file system to the last byte.
    fn fill(&self) -> Outcome<()> {
        let mut file = File::create(self.0.join("ballast"))?;
        for piece in [4096, 1] {
            loop {
                match file.write(&vec![0x5a; piece]) {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::StorageFull => break,
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    fn clear(&self) -> Outcome<()> {
        Ok(fs::remove_file(self.0.join("ballast"))?)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// A's configuration, with its state on a separate disk.
fn on_disk(link: &mut Link) -> Outcome<(PathBuf, Disk, Config)> {
    let [mut config, _] = pair(true)?;
    config.state = "disk/state.redb".to_owned();
    let folder = link.write(&config)?;
    let disk = Disk::below(&folder)?;
    Ok((folder, disk, config))
}

fn makes_no_store(link: &mut Link) -> TestResult {
    let (folder, disk, _) = on_disk(link)?;
    disk.fill()?;
    let said = wait::output(Command::new(PROGRAM).arg("init").arg(folder.join(CONFIGURATION)))?;
    Said::from(said).refused(STATE_IS_WRONG, "No space left on device")?;
    let left: Vec<_> = fs::read_dir(&disk.0)?.flatten().map(|entry| entry.file_name()).collect();
    ensure(left == ["ballast"], || format!("{left:?} was left behind"))?;
    disk.clear()?;
    init(&folder)
}

fn does_not_start(link: &mut Link) -> TestResult {
    let (folder, disk, _) = on_disk(link)?;
    init(&folder)?;
    disk.fill()?;
    run_to_end(&link.a, &folder)?.refused(FAILED, "No space left on device")?;
    disk.clear()?;
    Gateway::start(&link.a, &folder)?.stop()
}

/// Sends small datagrams through the tunnel until told to stop.
fn flood(link: &Link, done: &AtomicBool) -> Outcome<()> {
    let socket = link.a.within(|| UdpSocket::bind("10.1.0.1:0"))??;
    socket.connect("10.2.0.1:9")?;
    while !done.load(Ordering::Relaxed) {
        for _ in 0..256 {
            socket.send(b"x")?;
        }
    }
    Ok(())
}

/// A store whose blocks are already allocated may continue for long on a full disk. So every write is refused
/// instead, by a limit on the size of the gateway's files; the error is another one of the same kind.
fn set_writable(gateway: &Gateway, writable: bool) -> Outcome<()> {
    // The log is shorter than that.
    let current = (!writable).then_some(16 << 10);
    let process = Pid::from_raw(i32::try_from(gateway.process())?);
    prlimit(process, Resource::Fsize, Rlimit { current, maximum: None })?;
    Ok(())
}

fn stops_at_the_last_number(link: &mut Link) -> TestResult {
    let [config, _] = pair(true)?;
    let folder = link.prepare(&config)?;
    // SIGXFSZ, which comes with a refused write, would end a process that does not ignore it.
    let mut command = link.a.command("sh");
    command.args(["-c", "trap '' XFSZ; exec \"$@\"", "sh", PROGRAM, "run"]).arg(folder.join(CONFIGURATION));
    let mut gateway = Gateway::spawn(command, &folder)?;
    gateway.hears("READY=1")?;
    set_writable(&gateway, false)?;
    // Receives everything and reads none of it.
    let sink = link.b.within(|| UdpSocket::bind("192.0.2.2:4500"))??;
    let (done, link) = (AtomicBool::new(false), &*link);
    let result = thread::scope(|scope| {
        let sender = scope.spawn(|| flood(link, &done).map_err(|e| e.to_string()));
        let result = starve_and_feed(&gateway);
        done.store(true, Ordering::Relaxed);
        sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        result
    });
    drop(sink);
    result.map_err(|e| format!("{e}\n{}", gateway.log()))?;
    gateway.stop()
}

fn starve_and_feed(gateway: &Gateway) -> Outcome<()> {
    let outbound = || -> Outcome<(u64, u64)> {
        let sa = gateway.sa("a-b", "outbound")?;
        Ok((sa["packets"].as_u64().ok_or("no packets")?, sa["sequence"].as_u64().ok_or("no sequence")?))
    };
    let is_starved = || Ok((gateway.dropped("sequence_not_leased")? > 0).then_some(()));
    until_within(FLOODED_WITHIN, "for the numbers to run out", is_starved)?;
    gateway.logs("leasing sequence numbers")?;
    gateway.logs("waits for sequence numbers from the store")?;
    let starved = outbound()?;
    ensure(starved == (BLOCK, BLOCK), || format!("{BLOCK} numbers were leased, and {starved:?} used"))?;
    set_writable(gateway, true)?;
    let fed =
        until("for numbers beyond the first block", || Ok(Some(outbound()?).filter(|fed| fed.1 > BLOCK)))?;
    // One number per packet: none was used twice, none skipped.
    ensure(fed.0 == fed.1, || format!("{} packets, but the last number is {}", fed.0, fed.1))
}

/// Runs the program in A's namespace, with all that it says to a disk that is full.
fn without_a_log(link: &Link, words: &[&str], config: &Path) -> Command {
    let mut command = link.a.command("sh");
    command.args(["-c", "exec \"$@\" 2>/dev/full", "sh", PROGRAM]).args(words).arg(config);
    command
}

fn goes_on_without_a_log(link: &mut Link) -> TestResult {
    let [config, _] = pair(true)?;
    let folder = link.prepare(&config)?;
    let path = folder.join(CONFIGURATION);
    let mut gateway = Gateway::spawn(without_a_log(link, &["run"], &path), &folder)?;
    gateway.hears("READY=1")?;
    gateway.reload()?;
    gateway.stop()?;
    for verb in ["run", "check"] {
        let said = wait::output(&mut without_a_log(link, &[verb], &folder.join("missing.toml")))?;
        ensure(said.status.code() == Some(CONFIGURATION_IS_WRONG), || format!("{verb}: {}", said.status))?;
    }
    Ok(())
}
