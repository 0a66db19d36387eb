//! `testudo replay` and the user's files: inputs stay unchanged, outputs appear only if everything succeeds,
//! and errors are reported in one line.

#![allow(clippy::unwrap_used, reason = "a test that cannot prepare its files has failed")]

mod support;

use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use support::config::{CONFIGURATION, pair};
use support::gateway::{PROGRAM, Said};
use support::wait;
use tempfile::TempDir;
use testudo_judge::scapy::Scapy;
use testudo_port_pcap::{FrameReader, FrameWriter, Link};

const CONFIGURATION_IS_WRONG: i32 = 2;
const PORT_IS_WRONG: i32 = 4;
const BYPASS: &str = r#"
[[policy]]
local = "10.0.0.0/8"
remote = "10.0.0.0/8"
action = "bypass"
[[policy]]
local = "fd00::/8"
remote = "fd00::/8"
action = "bypass"
"#;
const IN: &str = "protected=in.pcap";
const OLD: &[u8] = b"an older output";

/// A folder with three packets and a gateway that bypasses 10.0.0.0/8 and fd00::/8.
struct Fixture(TempDir);

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut config = pair(true).unwrap()[0].clone();
        config.unprotected = "interface = \"eth0\"".to_owned();
        config.policies = BYPASS.to_owned();
        config.tunnels[0].selectors = vec![("172.16.0.1".to_owned(), "172.16.0.2".to_owned())];
        config.tunnels[0].more = "known_answer = { next_sequence_number = 1, iv_seed = 0 }".to_owned();
        config.write(folder.path()).unwrap();
        let fixture = Self(folder);
        fs::write(fixture.path("in.pcap"), capture(3)).unwrap();
        fixture
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.current_dir(self.0.path()).args(["replay", CONFIGURATION]).args(words);
        command
    }

    fn replay(&self, words: &[&str]) -> Said {
        wait::output(&mut self.command(words)).unwrap().into()
    }

    /// Everything in the folder, with its content.
    fn content(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let entries = fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().path());
        let mut content: Vec<_> =
            entries.map(|path| (path.clone(), fs::read(&path).unwrap_or_default())).collect();
        content.sort();
        content
    }
}

fn packet(mark: u8) -> Vec<u8> {
    let mut packet =
        vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 1, 0, 1, 10, 2, 0, 1, 0, mark, 0, 7, 0, 8, 0, 0];
    let sum = testudo_wire::checksum::of(&packet[..20]).to_bytes();
    packet[10..12].copy_from_slice(&sum);
    packet
}

fn capture(packets: u8) -> Vec<u8> {
    let mut file = Vec::new();
    let mut writer = FrameWriter::new(&mut file, Link::Raw, 65_535).unwrap();
    let time = |mark: u8| Duration::from_secs(1_700_000_000) + Duration::from_micros(7) * mark.into();
    (0..packets).for_each(|mark| writer.write(time(mark), &packet(mark), 28).unwrap());
    file
}

/// How many packets a complete capture has.
fn count(path: &Path) -> usize {
    let mut reader = FrameReader::open(path).unwrap();
    let mut count = 0;
    while reader.next_frame().unwrap().is_some() {
        count += 1;
    }
    count
}

/// Checks that the command line is refused with one line that contains `complaint`, and that nothing in the
/// folder has changed.
fn is_refused(fixture: &Fixture, words: &[&str], complaint: &str) {
    let before = fixture.content();
    let said = fixture.replay(words);
    assert_eq!(said.code, Some(CONFIGURATION_IS_WRONG), "{words:?}: {said:#?}");
    assert!(said.stderr.lines().count() == 1 && said.stderr.contains(complaint), "{words:?}: {said:#?}");
    assert_eq!(fixture.content(), before, "{words:?}");
}

#[test]
fn an_output_that_is_an_input_by_any_name_is_refused_and_nothing_is_touched() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.path("folder")).unwrap();
    symlink("in.pcap", fixture.path("link.pcap")).unwrap();
    symlink("..", fixture.path("folder/up")).unwrap();
    fs::hard_link(fixture.path("in.pcap"), fixture.path("hard.pcap")).unwrap();
    let absolute = fixture.path("in.pcap");
    for name in [
        "in.pcap",
        "./in.pcap",
        "folder/../in.pcap",
        "folder/up/in.pcap",
        "link.pcap",
        "hard.pcap",
        absolute.to_str().unwrap(),
    ] {
        for side in ["protected", "unprotected"] {
            is_refused(
                &fixture,
                &["--rx", IN, "--tx", &format!("{side}={name}")],
                "is the same file as input in.pcap",
            );
        }
    }
    for name in [CONFIGURATION, "1001.key", "state.redb"] {
        is_refused(&fixture, &["--rx", IN, "--tx", &format!("unprotected={name}")], name);
    }
}

#[test]
fn two_outputs_to_one_file_are_refused_whether_or_not_the_file_exists() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.path("folder")).unwrap();
    fs::write(fixture.path("old.pcap"), OLD).unwrap();
    symlink("old.pcap", fixture.path("link.pcap")).unwrap();
    for (one, other) in [
        ("new.pcap", "new.pcap"),
        ("new.pcap", "folder/../new.pcap"),
        ("old.pcap", "link.pcap"),
        ("old.pcap", "./old.pcap"),
    ] {
        let (protected, unprotected) = (format!("protected={one}"), format!("unprotected={other}"));
        let words = ["--rx", IN, "--tx", &protected, "--tx", &unprotected];
        is_refused(&fixture, &words, &format!("output {other} is the same file as output {one}"));
    }
    is_refused(
        &fixture,
        &["--rx", IN, "--tx", "protected=a.pcap", "--tx", "protected=b.pcap"],
        "a second file",
    );
}

#[test]
fn no_output_is_touched_if_an_input_cannot_be_read() {
    let fixture = Fixture::new();
    fs::write(fixture.path("old.pcap"), OLD).unwrap();
    fs::write(fixture.path("rubbish.pcap"), "#!/bin/sh").unwrap();
    let before = fixture.content();
    for (input, complaint) in
        [("missing.pcap", "No such file"), ("rubbish.pcap", "neither a pcap nor a pcapng")]
    {
        let said = fixture.replay(&["--rx", &format!("protected={input}"), "--tx", "unprotected=old.pcap"]);
        assert!(said.code == Some(PORT_IS_WRONG) && said.stderr.contains(complaint), "{said:#?}");
        let said = fixture.replay(&[
            "--rx",
            IN,
            "--rx",
            &format!("unprotected={input}"),
            "--tx",
            "unprotected=old.pcap",
        ]);
        assert!(said.code == Some(PORT_IS_WRONG) && said.stderr.contains(input), "{said:#?}");
        assert_eq!(fixture.content(), before);
    }
}

#[test]
fn an_unwritable_output_is_named_and_leaves_no_file_behind() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.path("folder")).unwrap();
    symlink("nowhere", fixture.path("dangling.pcap")).unwrap();
    let before = fixture.content();
    for (name, complaint) in [
        ("missing/out.pcap", "No such file"),
        ("folder", "is a directory"),
        ("dangling.pcap", "a dangling symbolic link"),
        ("/dev/full", "No space left"),
    ] {
        let said = fixture.replay(&[
            "--rx",
            IN,
            "--tx",
            "protected=other.pcap",
            "--tx",
            &format!("unprotected={name}"),
        ]);
        let is_named = said.stderr.contains(name) && said.stderr.contains(complaint);
        assert!(said.code == Some(PORT_IS_WRONG) && is_named, "{name}: {said:#?}");
        assert_eq!(fixture.content(), before, "{name}");
    }
}

#[test]
fn a_replaced_output_keeps_its_owner_its_permissions_and_the_links_to_it() {
    let fixture = Fixture::new();
    fs::write(fixture.path("old.pcap"), OLD).unwrap();
    fs::set_permissions(fixture.path("old.pcap"), fs::Permissions::from_mode(0o640)).unwrap();
    // Only root may give a file away, and only root replaces one of another user.
    let owner = if rustix::process::geteuid().is_root() { 4711 } else { rustix::process::geteuid().as_raw() };
    chown(fixture.path("old.pcap"), Some(owner), None).unwrap();
    symlink("old.pcap", fixture.path("link.pcap")).unwrap();
    let said = fixture.replay(&["--rx", IN, "--tx", "unprotected=link.pcap", "--tx", "protected=new.pcap"]);
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""), "{said:#?}");
    assert!(fs::symlink_metadata(fixture.path("link.pcap")).unwrap().is_symlink());
    let replaced = fs::metadata(fixture.path("old.pcap")).unwrap();
    assert_eq!((replaced.uid(), replaced.mode() & 0o777), (owner, 0o640));
    assert_eq!(fs::metadata(fixture.path("new.pcap")).unwrap().mode() & 0o777, 0o600);
    assert_eq!([count(&fixture.path("old.pcap")), count(&fixture.path("new.pcap"))], [3, 0]);
    assert_eq!(
        fixture.content().len(),
        7,
        "configuration, two keys, input, link, two outputs: {:?}",
        fixture.content()
    );
}

#[test]
fn devices_and_pipes_are_written_directly() {
    let fixture = Fixture::new();
    let said = fixture.replay(&["--rx", IN, "--tx", "unprotected=/dev/null", "--tx", "protected=/dev/null"]);
    assert!(
        said.code == Some(0) && fs::metadata("/dev/null").unwrap().file_type().is_char_device(),
        "{said:#?}"
    );

    let output = fixture.command(&["--rx", IN, "--tx", "unprotected=/dev/stdout"]).output().unwrap();
    assert_eq!(
        output.stdout,
        fs::read(fixture.path("in.pcap")).map(rewritten).unwrap(),
        "packets and nothing else"
    );

    let whole = File::create(fixture.path("appended")).unwrap();
    (&whole).write_all(b"before ").unwrap();
    let appended = OpenOptions::new().append(true).open(fixture.path("appended")).unwrap();
    let status =
        fixture.command(&["--rx", IN, "--tx", "unprotected=/dev/stdout"]).stdout(appended).status().unwrap();
    assert!(
        status.success()
            && fs::read(fixture.path("appended")).unwrap().starts_with(b"before \x4D\x3C\xB2\xA1")
    );

    let pipe = fixture.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut child =
        fixture.command(&["--rx", IN, "--tx", "unprotected=pipe"]).stdout(Stdio::null()).spawn().unwrap();
    assert_eq!(wait::output(Command::new("cat").arg(&pipe)).unwrap().stdout, output.stdout);
    assert!(wait::ended(&mut child).unwrap().success());
    assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
}

/// The capture as `replay` writes it: times are in nanoseconds, and the snapshot length is the writer's own.
fn rewritten(mut capture: Vec<u8>) -> Vec<u8> {
    capture[..4].copy_from_slice(&0xA1B2_3C4D_u32.to_le_bytes());
    capture[16..20].copy_from_slice(&262_144_u32.to_le_bytes());
    for record in capture[24..].chunks_mut(16 + 28) {
        let micros = u32::from_le_bytes([record[4], record[5], record[6], record[7]]);
        record[4..8].copy_from_slice(&(micros * 1000).to_le_bytes());
    }
    capture
}

#[test]
fn a_cut_input_gives_the_packets_before_the_cut_and_status_1() {
    let fixture = Fixture::new();
    let whole = capture(200);
    fs::write(fixture.path("cut.pcap"), &whole[..whole.len() - 1]).unwrap();
    // The other side's file is complete and is replayed to its end.
    let said = fixture.replay(&[
        "--rx",
        "protected=cut.pcap",
        "--rx",
        "unprotected=in.pcap",
        "--tx",
        "unprotected=out.pcap",
        "--tx",
        "protected=back.pcap",
        "--json",
    ]);
    let position = format!("cut.pcap: record 200, at byte {}: the file ends within it", 24 + 199 * 44);
    assert!(
        said.code == Some(1) && said.stderr.contains(&position) && said.stderr.lines().count() == 1,
        "{said:#?}"
    );
    assert_eq!([count(&fixture.path("out.pcap")), count(&fixture.path("back.pcap"))], [199, 3]);
    let counters: serde_json::Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!(counters["ports"]["unprotected"]["tx_packets"], 199, "{said:#?}");
}

/// The clock of a replay stands still: what waits for that of a tunnel elsewhere leaves as it comes.
#[test]
fn packets_of_a_tunnel_with_a_clock_are_replayed_as_they_come() {
    let fixture = Fixture::new();
    let mut config = pair(true).unwrap()[0].clone();
    config.unprotected = "interface = \"eth0\"".to_owned();
    let known_answer = "known_answer = { next_sequence_number = 1, iv_seed = 0 }";
    config.tunnels[0].more = format!("{known_answer}\nclocked_packets_per_second = 10");
    config.write(fixture.0.path()).unwrap();
    let said = fixture.replay(&["--rx", IN, "--tx", "unprotected=out.pcap"]);
    assert_eq!((said.code, count(&fixture.path("out.pcap"))), (Some(0), 3), "{said:#?}");
}

#[test]
fn skipped_blocks_are_reported() {
    let fixture = Fixture::new();
    let words = |words: &[u32]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>();
    let section = words(&[0x0A0D_0D0A, 28, 0x1A2B_3C4D, 1, u32::MAX, u32::MAX, 28]);
    let file = [section, words(&[1, 20, 101, 0, 20]), words(&[0x99, 12, 12])].concat();
    fs::write(fixture.path("odd.pcapng"), file).unwrap();
    let said = fixture.replay(&["--rx", "protected=odd.pcapng"]);
    let warning = "testudo: warning: odd.pcapng: passed over blocks of a type that is not known here: 1, the first of type 0x99\n";
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), warning));
}

#[test]
fn an_interrupted_replay_leaves_no_temporary_file() {
    let fixture = Fixture::new();
    fs::write(fixture.path("out.pcap"), OLD).unwrap();
    assert!(Command::new("mkfifo").arg(fixture.path("pipe")).status().unwrap().success());
    let before: Vec<_> = fixture.content_names();
    let mut child =
        fixture.command(&["--rx", "protected=pipe", "--tx", "unprotected=out.pcap"]).spawn().unwrap();
    let mut input = File::options().read(true).write(true).open(fixture.path("pipe")).unwrap();
    input.write_all(&capture(0)).unwrap();
    wait::until(
        "for the temporary file",
        || Ok((fixture.content_names().len() > before.len()).then_some(())),
    )
    .unwrap();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let status = wait::ended(&mut child).unwrap();
    assert_eq!(status.signal(), Some(2));
    assert_eq!(fixture.content_names(), before);
    assert_eq!(fs::read(fixture.path("out.pcap")).unwrap(), OLD);
}

impl Fixture {
    /// Only names: a pipe must not be read.
    fn content_names(&self) -> Vec<PathBuf> {
        let mut names: Vec<_> =
            fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        names.sort();
        names
    }
}

#[test]
fn testudo_reads_whole_and_truncated_captures_of_scapy() {
    const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/scapy");
    let fixture = Fixture::new();
    let configuration = fixture.path(CONFIGURATION);
    let scapy = Scapy::find(Path::new(SCRIPTS)).unwrap();
    match scapy.judge("captures.py", Path::new(PROGRAM), &[OsStr::new(&configuration)]) {
        Ok(said) => println!("{said}"),
        Err(error) => panic!("{error}"),
    }
}
