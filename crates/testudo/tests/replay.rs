//! `testudo replay` and the files of its user: inputs stay as they are, outputs appear when all went well,
//! and what cannot be done is told in one line.

#![allow(clippy::unwrap_used, reason = "a test that cannot prepare its files has failed")]

mod support;

use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
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

/// A folder with a gateway that lets 10.0.0.0/8 and fd00::/8 pass, and three packets.
struct Desk(TempDir);

impl Desk {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut config = pair(true).unwrap()[0].clone();
        config.unprotected = "interface = \"eth0\"".to_owned();
        config.policies = BYPASS.to_owned();
        config.tunnels[0].selectors = vec![("172.16.0.1".to_owned(), "172.16.0.2".to_owned())];
        config.tunnels[0].more = "known_answer = { next_sequence_number = 1, iv_seed = 0 }".to_owned();
        config.write(folder.path()).unwrap();
        let desk = Self(folder);
        fs::write(desk.path("in.pcap"), capture(3)).unwrap();
        desk
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
    (0..packets).for_each(|mark| writer.write(std::time::Duration::ZERO, &packet(mark), 28).unwrap());
    file
}

/// How many packets a whole capture has.
fn count(path: &Path) -> usize {
    let mut reader = FrameReader::open(path).unwrap();
    let mut count = 0;
    while reader.next_frame().unwrap().is_some() {
        count += 1;
    }
    count
}

/// The command is refused as a wrong command line, in one line that says this, and nothing in the folder has
/// changed.
fn is_refused(desk: &Desk, words: &[&str], complaint: &str) {
    let before = desk.content();
    let said = desk.replay(words);
    assert_eq!(said.code, Some(CONFIGURATION_IS_WRONG), "{words:?}: {said:#?}");
    assert!(said.stderr.lines().count() == 1 && said.stderr.contains(complaint), "{words:?}: {said:#?}");
    assert_eq!(desk.content(), before, "{words:?}");
}

#[test]
fn an_output_that_is_an_input_by_any_name_is_refused_and_nothing_is_touched() {
    let desk = Desk::new();
    fs::create_dir(desk.path("folder")).unwrap();
    symlink("in.pcap", desk.path("link.pcap")).unwrap();
    symlink("..", desk.path("folder/up")).unwrap();
    fs::hard_link(desk.path("in.pcap"), desk.path("hard.pcap")).unwrap();
    let absolute = desk.path("in.pcap");
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
                &desk,
                &["--rx", IN, "--tx", &format!("{side}={name}")],
                "is the same file as input in.pcap",
            );
        }
    }
    for name in [CONFIGURATION, "1001.key", "state.redb"] {
        is_refused(&desk, &["--rx", IN, "--tx", &format!("unprotected={name}")], name);
    }
}

#[test]
fn two_outputs_in_one_file_are_refused_whether_it_is_there_or_not() {
    let desk = Desk::new();
    fs::create_dir(desk.path("folder")).unwrap();
    fs::write(desk.path("old.pcap"), OLD).unwrap();
    symlink("old.pcap", desk.path("link.pcap")).unwrap();
    for (one, other) in [
        ("new.pcap", "new.pcap"),
        ("new.pcap", "folder/../new.pcap"),
        ("old.pcap", "link.pcap"),
        ("old.pcap", "./old.pcap"),
    ] {
        let (protected, unprotected) = (format!("protected={one}"), format!("unprotected={other}"));
        let words = ["--rx", IN, "--tx", &protected, "--tx", &unprotected];
        is_refused(&desk, &words, &format!("output {other} is the same file as output {one}"));
    }
    is_refused(&desk, &["--rx", IN, "--tx", "protected=a.pcap", "--tx", "protected=b.pcap"], "a second file");
}

#[test]
fn an_output_is_not_touched_before_there_is_an_input() {
    let desk = Desk::new();
    fs::write(desk.path("old.pcap"), OLD).unwrap();
    fs::write(desk.path("rubbish.pcap"), "#!/bin/sh").unwrap();
    let before = desk.content();
    for (input, complaint) in
        [("missing.pcap", "No such file"), ("rubbish.pcap", "neither a pcap nor a pcapng")]
    {
        let said = desk.replay(&["--rx", &format!("protected={input}"), "--tx", "unprotected=old.pcap"]);
        assert!(said.code == Some(PORT_IS_WRONG) && said.stderr.contains(complaint), "{said:#?}");
        let said = desk.replay(&[
            "--rx",
            IN,
            "--rx",
            &format!("unprotected={input}"),
            "--tx",
            "unprotected=old.pcap",
        ]);
        assert!(said.code == Some(PORT_IS_WRONG) && said.stderr.contains(input), "{said:#?}");
        assert_eq!(desk.content(), before);
    }
}

#[test]
fn what_cannot_be_written_is_named_and_leaves_nothing_behind() {
    let desk = Desk::new();
    fs::create_dir(desk.path("folder")).unwrap();
    symlink("nowhere", desk.path("dangling.pcap")).unwrap();
    let before = desk.content();
    for (name, complaint) in [
        ("missing/out.pcap", "No such file"),
        ("folder", "is a directory"),
        ("dangling.pcap", "a dangling symbolic link"),
        ("/dev/full", "No space left"),
    ] {
        let said = desk.replay(&[
            "--rx",
            IN,
            "--tx",
            "protected=other.pcap",
            "--tx",
            &format!("unprotected={name}"),
        ]);
        let is_named = said.stderr.contains(name) && said.stderr.contains(complaint);
        assert!(said.code == Some(PORT_IS_WRONG) && is_named, "{name}: {said:#?}");
        assert_eq!(desk.content(), before, "{name}");
    }
}

#[test]
fn a_replaced_output_keeps_its_permissions_and_the_links_to_it() {
    let desk = Desk::new();
    fs::write(desk.path("old.pcap"), OLD).unwrap();
    fs::set_permissions(desk.path("old.pcap"), fs::Permissions::from_mode(0o640)).unwrap();
    symlink("old.pcap", desk.path("link.pcap")).unwrap();
    let said = desk.replay(&["--rx", IN, "--tx", "unprotected=link.pcap", "--tx", "protected=new.pcap"]);
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""), "{said:#?}");
    assert!(fs::symlink_metadata(desk.path("link.pcap")).unwrap().is_symlink());
    assert_eq!(fs::metadata(desk.path("old.pcap")).unwrap().mode() & 0o777, 0o640);
    assert_eq!(fs::metadata(desk.path("new.pcap")).unwrap().mode() & 0o777, 0o600);
    assert_eq!([count(&desk.path("old.pcap")), count(&desk.path("new.pcap"))], [3, 0]);
    assert_eq!(
        desk.content().len(),
        7,
        "configuration, two keys, input, link, two outputs: {:?}",
        desk.content()
    );
}

#[test]
fn devices_and_pipes_are_written_directly() {
    let desk = Desk::new();
    let said = desk.replay(&["--rx", IN, "--tx", "unprotected=/dev/null", "--tx", "protected=/dev/null"]);
    assert!(
        said.code == Some(0) && fs::metadata("/dev/null").unwrap().file_type().is_char_device(),
        "{said:#?}"
    );

    let output = desk.command(&["--rx", IN, "--tx", "unprotected=/dev/stdout"]).output().unwrap();
    assert_eq!(
        output.stdout,
        fs::read(desk.path("in.pcap")).map(stamped).unwrap(),
        "packets and nothing else"
    );

    let whole = File::create(desk.path("appended")).unwrap();
    (&whole).write_all(b"before ").unwrap();
    let appended = OpenOptions::new().append(true).open(desk.path("appended")).unwrap();
    let status =
        desk.command(&["--rx", IN, "--tx", "unprotected=/dev/stdout"]).stdout(appended).status().unwrap();
    assert!(
        status.success() && fs::read(desk.path("appended")).unwrap().starts_with(b"before \xD4\xC3\xB2\xA1")
    );

    let pipe = desk.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut child =
        desk.command(&["--rx", IN, "--tx", "unprotected=pipe"]).stdout(Stdio::null()).spawn().unwrap();
    assert_eq!(wait::output(Command::new("cat").arg(&pipe)).unwrap().stdout, output.stdout);
    assert!(wait::ended(&mut child).unwrap().success());
    assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
}

/// The capture as it is written: the packet's number as its time, and the writer's own longest packet.
fn stamped(mut capture: Vec<u8>) -> Vec<u8> {
    capture[16..20].copy_from_slice(&262_144_u32.to_le_bytes());
    for (number, record) in capture[24..].chunks_mut(16 + 28).enumerate() {
        record[4..8].copy_from_slice(&u32::try_from(number).unwrap().to_le_bytes());
    }
    capture
}

#[test]
fn a_cut_input_gives_the_packets_before_the_cut_and_status_1() {
    let desk = Desk::new();
    let whole = capture(200);
    fs::write(desk.path("cut.pcap"), &whole[..whole.len() - 1]).unwrap();
    // The other side's file is whole, and is replayed to its end.
    let said = desk.replay(&[
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
    let place = format!("cut.pcap: record 200, at byte {}: the file ends within it", 24 + 199 * 44);
    assert!(
        said.code == Some(1) && said.stderr.contains(&place) && said.stderr.lines().count() == 1,
        "{said:#?}"
    );
    assert_eq!([count(&desk.path("out.pcap")), count(&desk.path("back.pcap"))], [199, 3]);
    let counters: serde_json::Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!(counters["ports"]["unprotected"]["tx_packets"], 199, "{said:#?}");
}

#[test]
fn blocks_that_were_passed_over_are_told_of() {
    let desk = Desk::new();
    let words = |words: &[u32]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>();
    let section = words(&[0x0A0D_0D0A, 28, 0x1A2B_3C4D, 1, u32::MAX, u32::MAX, 28]);
    let file = [section, words(&[1, 20, 101, 0, 20]), words(&[0x99, 12, 12])].concat();
    fs::write(desk.path("odd.pcapng"), file).unwrap();
    let said = desk.replay(&["--rx", "protected=odd.pcapng"]);
    let warning = "testudo: warning: odd.pcapng: passed over blocks of a type that is not known here: 1, the first of type 0x99\n";
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), warning));
}

#[test]
fn an_interrupted_replay_leaves_no_temporary_file() {
    let desk = Desk::new();
    fs::write(desk.path("out.pcap"), OLD).unwrap();
    assert!(Command::new("mkfifo").arg(desk.path("pipe")).status().unwrap().success());
    let before: Vec<_> = desk.content_names();
    let mut child =
        desk.command(&["--rx", "protected=pipe", "--tx", "unprotected=out.pcap"]).spawn().unwrap();
    let mut input = File::options().read(true).write(true).open(desk.path("pipe")).unwrap();
    input.write_all(&capture(0)).unwrap();
    wait::until("for the temporary file", || Ok((desk.content_names().len() > before.len()).then_some(())))
        .unwrap();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let status = wait::ended(&mut child).unwrap();
    assert_eq!(status.signal(), Some(2));
    assert_eq!(desk.content_names(), before);
    assert_eq!(fs::read(desk.path("out.pcap")).unwrap(), OLD);
}

impl Desk {
    /// Names alone: a pipe must not be read.
    fn content_names(&self) -> Vec<PathBuf> {
        let mut names: Vec<_> =
            fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        names.sort();
        names
    }
}

#[test]
fn testudo_reads_what_scapy_writes_whole_and_cut() {
    const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/scapy");
    let desk = Desk::new();
    let configuration = desk.path(CONFIGURATION);
    let scapy = Scapy::find(Path::new(SCRIPTS)).unwrap();
    match scapy.judge("captures.py", Path::new(PROGRAM), &[OsStr::new(&configuration)]) {
        Ok(said) => println!("{said}"),
        Err(error) => panic!("{error}"),
    }
}
