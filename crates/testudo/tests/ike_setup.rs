//! `testudo ike`, on the files that Debian's packages of strongSwan, libreswan and AppArmor bring.

#![allow(clippy::unwrap_used, reason = "a test that cannot prepare its files has failed")]

mod support;

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use support::gateway::{PROGRAM, Said};
use support::wait;
use tempfile::TempDir;

const LIBRARY: &str = "usr/local/lib/testudo/libtestudo-xfrm.so";
const CHARON: &str = "etc/apparmor.d/local/usr.lib.ipsec.charon";
const SNIPPET: &str = "etc/strongswan.d/testudo.conf";
const FAILED: i32 = 1;
const CONFIGURATION_IS_WRONG: i32 = 2;
const PORT_IS_WRONG: i32 = 4;

/// The unpacked packages.
fn packages() -> &'static Path {
    static CACHE: OnceLock<PathBuf> = OnceLock::new();
    CACHE.get_or_init(|| {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
        let cache = target.join("ike-setup");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/ike-setup/files.sh");
        let output = wait::output(Command::new(script).arg(&cache)).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        cache
    })
}

/// A host's files.
struct Root {
    folder: TempDir,
}

impl Root {
    /// With a daemon's packages, our program's units and library, and a gateway called `site`.
    fn with(daemon: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut copy = Command::new("cp");
        copy.arg("-a").arg(packages().join(daemon).join(".")).arg(folder.path());
        assert!(wait::output(&mut copy).unwrap().status.success());
        let root = Self { folder };
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let text = |path: &str| fs::read_to_string(sources.join(path)).unwrap();
        root.write("etc/testudo/site.toml", &text("examples/site-to-site.toml"));
        for unit in ["testudo@.service", "testudo-firewall@.service"] {
            root.write(&format!("etc/systemd/system/{unit}"), &text(&format!("contrib/{unit}")));
        }
        root.write(LIBRARY, "");
        // As the packages' scripts make them, where AppArmor is.
        for profile in ["usr.sbin.charon-systemd", "usr.sbin.swanctl", "usr.lib.ipsec.stroke"] {
            root.write(&format!("etc/apparmor.d/local/{profile}"), "");
        }
        root
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
    }

    fn ike(&self, words: &str) -> Said {
        self.ike_with(words, &packages().join("bin"))
    }

    /// With another folder of programs in front of the others.
    fn ike_with(&self, words: &str, programs: &Path) -> Said {
        let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
        let mut command = Command::new(PROGRAM);
        command.arg("ike").args(words.split_whitespace()).arg("--root").arg(self.folder.path());
        wait::output(command.env("PATH", path)).unwrap().into()
    }

    fn done(&self, words: &str) -> String {
        let said = self.ike(words);
        assert_eq!(said.code, Some(0), "{words}: {said:#?}");
        said.stdout
    }

    fn json(&self, words: &str) -> Value {
        serde_json::from_str(&self.done(&format!("{words} --json"))).unwrap()
    }

    /// All that there is: permissions, and bytes or the aim of a link.
    fn tree(&self) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
        let mut tree = BTreeMap::new();
        let mut folders = vec![self.folder.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let found = fs::symlink_metadata(&path).unwrap();
                let bytes = if found.is_dir() {
                    folders.push(path.clone());
                    Vec::new()
                } else if found.is_symlink() {
                    fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
                } else {
                    fs::read(&path).unwrap()
                };
                tree.insert(path, (found.permissions().mode(), bytes));
            }
        }
        tree
    }
}

/// What Debian's packages bring, and what an administrator has made of it.
fn lived_in() -> Root {
    let root = Root::with("strongswan");
    root.write(CHARON, "# ours\n/srv/keys/** r,");
    fs::set_permissions(root.path(CHARON), Permissions::from_mode(0o640)).unwrap();
    root.write(SNIPPET, "charon {\n}\n");
    root.write("etc/systemd/system/strongswan.service.d/limits.conf", "[Service]\nLimitNOFILE=9999\n");
    root
}

#[test]
fn it_shows_first_then_does_it_once_and_takes_it_back_byte_for_byte() {
    let root = lived_in();
    let before = root.tree();
    let shown = root.done("setup strongswan");
    assert_eq!(root.tree(), before, "only shown");
    for expected in [
        "would write /etc/systemd/system/strongswan.service.d/testudo.conf:",
        "would write /etc/systemd/system/strongswan-starter.service.d/testudo.conf:",
        "  + Environment=\"LD_PRELOAD=/usr/local/lib/testudo/libtestudo-xfrm.so\"",
        "  + After=testudo@site.service",
        "would change /etc/apparmor.d/local/usr.lib.ipsec.charon, the present one being",
        "  +     install_virtual_ip_on = testudo0",
        "    [ike]",
        "missing: /etc/testudo/site.toml has no [ike] section",
        "nothing was changed: --apply does it",
        "systemctl try-restart testudo@site.service && systemctl try-restart strongswan.service strongswan-starter.service",
    ] {
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
    assert_eq!(shown.matches("ipsec.service").count(), 0, "an alias of strongswan-starter.service: {shown}");

    let done = root.done("setup strongswan --apply");
    assert!(done.contains("changed /etc/apparmor.d/local/usr.lib.ipsec.charon"), "{done}");
    let charon = root.read(CHARON);
    let added = "/usr/local/lib/testudo/libtestudo-xfrm.so mr,\n/run/testudo/xfrm.sock rw,\nnetwork unix seqpacket,\n";
    assert!(charon.starts_with("# ours\n/srv/keys/** r,\n# Begin"), "{charon}");
    assert!(charon.contains(added), "{charon}");
    assert_eq!(fs::metadata(root.path(CHARON)).unwrap().permissions().mode() & 0o7777, 0o640);
    assert_eq!(fs::metadata(root.path(SNIPPET)).unwrap().permissions().mode() & 0o7777, 0o644);

    let after = root.tree();
    for words in ["setup strongswan", "setup strongswan --yes"] {
        let said = root.done(words);
        assert!(said.contains("nothing to do: strongswan is set up so already"), "{said}");
        assert_eq!(root.tree(), after);
    }
    let shown = root.done("setup strongswan --undo");
    assert!(shown.contains("would remove /etc/systemd/system/strongswan.service.d/testudo.conf"), "{shown}");
    assert_eq!(root.tree(), after, "only shown");
    root.done("setup strongswan --undo --apply");
    assert_eq!(root.tree(), before);
    assert_eq!(root.done("setup strongswan --undo --apply"), "nothing to do: strongswan is not set up\n");
}

/// The same for what has no AppArmor, and a script.
#[test]
fn libreswan_is_set_up_and_left_as_it_was() {
    let root = Root::with("libreswan");
    let before = root.tree();
    let shown = root.json("setup libreswan");
    let paths: Vec<_> =
        shown["files"].as_array().unwrap().iter().map(|file| file["path"].as_str().unwrap()).collect();
    let expected = [
        "/etc/systemd/system/testudo@site.service.d/ike-libreswan.conf",
        "/etc/systemd/system/ipsec.service.d/testudo.conf",
        "/etc/ipsec.d/testudo.conf",
        "/etc/ipsec.d/testudo-updown",
    ];
    assert_eq!(paths, expected);
    assert_eq!(root.tree(), before);
    root.done("setup libreswan --apply");
    assert_eq!(fs::metadata(root.path(&expected[3][1..])).unwrap().permissions().mode() & 0o7777, 0o755);
    assert!(root.json("setup libreswan")["nothing_to_do"].as_bool().unwrap());
    root.done("setup libreswan --undo --apply");
    assert_eq!(root.tree(), before);
}

/// strongSwan's starter has a unit of libreswan's name, ipsec.service.
#[test]
fn a_unit_is_known_by_what_it_starts_not_by_its_name() {
    let strongswan = Root::with("strongswan");
    fs::remove_file(strongswan.path("lib/systemd/system/strongswan.service")).unwrap();
    let files = strongswan.json("setup strongswan")["files"].to_string();
    assert!(files.contains("strongswan-starter.service.d") && !files.contains("ipsec.service.d"), "{files}");
    // Masked.
    symlink("/dev/null", strongswan.path("etc/systemd/system/strongswan-starter.service")).unwrap();
    for (root, daemon, package) in
        [(&strongswan, "libreswan", "libreswan"), (&strongswan, "strongswan", "charon-systemd")]
    {
        let said = root.ike(&format!("setup {daemon}"));
        said.refused(PORT_IS_WRONG, &format!("it is in the package {package}")).unwrap();
    }
    let libreswan = Root::with("libreswan");
    libreswan.ike("setup strongswan").refused(PORT_IS_WRONG, "strongSwan is not installed").unwrap();
}

#[test]
fn what_somebody_else_has_changed_since_is_not_touched_without_force() {
    let root = lived_in();
    let before = root.tree();
    root.done("setup strongswan --apply");
    let ours = root.read(SNIPPET);
    root.write(SNIPPET, &ours.replace("install_routes = no", "install_routes = yes"));
    let changed = root.tree();
    for words in ["setup strongswan --undo --apply", "setup strongswan --apply", "setup strongswan --undo"] {
        let said = root.ike(words);
        said.refused(FAILED, "nothing was changed: take these changes back by hand, or give --force")
            .unwrap();
        let lines = "/etc/strongswan.d/testudo.conf: somebody else has changed it since it was written:\n  -     \
                     install_routes = no\n  +     install_routes = yes\n";
        assert!(said.stderr.contains(lines), "{said:#?}");
        assert_eq!(root.tree(), changed, "{words}");
    }
    assert_eq!(root.json("status")["daemons"][0]["set_up"], "changed since");
    root.done("setup strongswan --apply --force");
    assert_eq!(root.read(SNIPPET), ours);
    root.write(SNIPPET, "theirs");
    root.done("setup strongswan --undo --apply --force");
    assert_eq!(root.tree(), before);
}

/// An administrator who has put the original back, or removed our file, has done half of the undoing.
#[test]
fn what_was_taken_back_by_hand_is_taken_back() {
    let root = lived_in();
    let before = root.tree();
    root.done("setup strongswan --apply");
    fs::rename(root.path(&format!("{CHARON}.before-testudo")), root.path(CHARON)).unwrap();
    fs::remove_dir_all(root.path("etc/systemd/system/strongswan-starter.service.d")).unwrap();
    root.done("setup strongswan --undo --apply");
    assert_eq!(root.tree(), before);
}

/// AppArmor's own parser judges the mended profiles; where it refuses one, nothing was done.
#[test]
fn what_apparmor_refuses_leaves_nothing_behind() {
    let root = lived_in();
    root.write(CHARON, "this is no rule\n");
    let before = root.tree();
    let said = root.ike("setup strongswan --apply");
    said.refused(PORT_IS_WRONG, "nothing was changed").unwrap();
    assert!(
        said.stderr.contains("apparmor_parser refuses") && said.stderr.contains("usr.lib.ipsec.charon"),
        "{said:#?}"
    );
    assert_eq!(root.tree(), before);

    // A comment without an end of line is one that the parser does not take at the end of a file.
    root.write(CHARON, "# ours");
    let before = root.tree();
    root.done("setup strongswan --apply");
    let said = root.done("setup strongswan --undo --apply");
    assert!(said.contains("note: apparmor_parser refuses"), "{said}");
    assert_eq!(root.tree(), before, "as it was, be it wrong");
}

/// A local file that no profile includes would be taken, too: the compiled profiles must have become others.
#[test]
fn the_rules_change_what_the_profiles_allow() {
    let root = Root::with("strongswan");
    let compiled = |profile: &str| {
        let mut parser = Command::new(packages().join("bin/apparmor_parser"));
        parser.args(["-Q", "-K", "-S", "--base"]).arg(root.path("etc/apparmor.d"));
        let output = wait::output(parser.arg(root.path(&format!("etc/apparmor.d/{profile}")))).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let profiles = ["usr.sbin.charon-systemd", "usr.sbin.swanctl"];
    let before = profiles.map(compiled);
    root.done("setup strongswan --apply");
    for (profile, before) in profiles.iter().zip(before) {
        assert_ne!(compiled(profile), before, "{profile}");
    }
}

#[test]
fn another_gateway_takes_the_place_of_the_first() {
    let root = lived_in();
    let before = root.tree();
    root.done("setup strongswan --apply");
    let other = "setup strongswan --gateway other --interface tun7 --socket /run/other/ike.sock --apply";
    let said = root.done(other);
    assert!(
        said.contains("removed /etc/systemd/system/testudo@site.service.d/ike-strongswan.conf"),
        "{said}"
    );
    assert!(!root.path("etc/systemd/system/testudo@site.service.d/ike-strongswan.conf").exists());
    assert!(root.read(SNIPPET).contains("interfaces_ignore = tun7"));
    let charon = root.read(CHARON);
    assert!(charon.contains("/run/other/ike.sock rw,") && !charon.contains("/run/testudo"), "{charon}");
    assert!(root.ike(other).stdout.contains("nothing to do"));
    root.done("setup strongswan --undo --apply");
    assert_eq!(root.tree(), before);
}

#[test]
fn what_is_missing_is_said_and_a_daemon_is_never_led_to_a_library_that_is_not_there() {
    let root = lived_in();
    fs::remove_file(root.path(LIBRARY)).unwrap();
    fs::remove_file(root.path("etc/systemd/system/testudo@.service")).unwrap();
    root.write("etc/strongswan.d/charon-systemd.conf", "charon-systemd {\n    user = ipsec\n}\n");
    root.write(
        "etc/testudo/site.toml",
        "[port.protected]\nname = \"tun3\"\n[ike]\nuser = \"root\"\nsocket = \"/run/s\"\n",
    );
    root.write("etc/selinux/config", "SELINUX=enforcing\n");
    root.write("etc/strongswan.conf", "charon {\n}\n");
    let before = root.tree();
    let shown = root.done("setup strongswan");
    for expected in [
        "missing: the library /usr/local/lib/testudo/libtestudo-xfrm.so is not installed",
        "missing: the service testudo@site.service is not installed",
        "has the user root, but the daemon runs as ipsec: set user = \"ipsec\"",
        "Environment=\"TESTUDO_XFRM=/run/s\"",
        "note: SELinux is enforcing",
        "note: /etc/strongswan.conf has no line `include strongswan.d/*.conf`",
        "install_virtual_ip_on = tun3",
    ] {
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
    root.ike("setup strongswan --apply").refused(PORT_IS_WRONG, "is not installed").unwrap();
    assert_eq!(root.tree(), before);

    root.write("etc/testudo/second.toml", "");
    root.ike("setup strongswan").refused(CONFIGURATION_IS_WRONG, "several gateways, second, site").unwrap();
    root.ike("setup strongswan --gateway second")
        .refused(CONFIGURATION_IS_WRONG, "--interface NAME")
        .unwrap();
    for words in [
        "--gateway ../site",
        "--gateway site --interface a/b",
        "--gateway site --socket relative",
        "--gateway site --socket /run/%i/s",
        "--gateway site --library /tmp/a:/tmp/b",
        "--gateway site --library /tmp/*.so",
    ] {
        root.ike(&format!("setup strongswan {words}"))
            .refused(CONFIGURATION_IS_WRONG, "expected letters")
            .unwrap();
    }
    let long = format!("setup strongswan --gateway site --socket /{}", "s".repeat(107));
    root.ike(&long).refused(CONFIGURATION_IS_WRONG, "longer than 107 bytes").unwrap();
}

#[test]
fn a_profile_without_a_place_for_additions_and_a_file_that_is_none_are_left_alone() {
    let root = Root::with("strongswan");
    let profile = "etc/apparmor.d/usr.sbin.swanctl";
    root.write(profile, &root.read(profile).replace("#include <local/usr.sbin.swanctl>", ""));
    let shown = root.done("setup strongswan");
    assert!(
        shown.contains("note: /etc/apparmor.d/usr.sbin.swanctl does not include local/usr.sbin.swanctl"),
        "{shown}"
    );
    symlink("/etc/passwd", root.path(SNIPPET)).unwrap();
    root.ike("setup strongswan --apply").refused(PORT_IS_WRONG, "it is no regular file").unwrap();
    fs::remove_file(root.path(SNIPPET)).unwrap();
    root.write(SNIPPET, "theirs");
    root.write(&format!("{SNIPPET}.before-testudo"), "somebody's");
    root.ike("setup strongswan --apply").refused(FAILED, "move it away").unwrap();
    assert_eq!(root.read(SNIPPET), "theirs");
}

/// Debian's own configuration files name every option, in comments.
#[test]
fn strongswan_knows_every_option_that_is_set() {
    let root = Root::with("strongswan");
    root.done("setup strongswan --apply");
    let known = root.read("etc/strongswan.d/charon.conf");
    let plugin = root.read("etc/strongswan.d/charon/kernel-libipsec.conf");
    let snippet = root.read(SNIPPET);
    let lines = snippet.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let options: Vec<_> = lines.filter_map(|line| line.split_once(" = ")).map(|(option, _)| option).collect();
    assert_eq!(options, ["install_routes", "install_virtual_ip_on", "interfaces_ignore", "load"]);
    for option in &options[..3] {
        assert!(known.lines().any(|line| line.trim().starts_with(&format!("# {option} ="))), "{option}");
    }
    assert!(plugin.contains("load = "), "{plugin}");
}

#[test]
fn systemd_understands_every_line_of_the_drop_ins() {
    for daemon in ["strongswan", "libreswan"] {
        let root = Root::with(daemon);
        root.done(&format!("setup {daemon} --apply"));
        let folder = root.path("etc/systemd/system");
        let packaged = root.path("lib/systemd/system");
        let mut units: Vec<_> = ["strongswan.service", "strongswan-starter.service", "ipsec.service"].into();
        units.retain(|unit| packaged.join(unit).exists());
        let verify = || {
            let mut command = Command::new("systemd-analyze");
            command.args(["verify", "--man=false", "testudo@site.service"]).args(&units);
            command.env("SYSTEMD_UNIT_PATH", format!("{}:{}:", folder.display(), packaged.display()));
            let output = wait::output(&mut command).unwrap();
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8(said).unwrap();
            let drop_ins = ["testudo.conf", "ike-strongswan.conf", "ike-libreswan.conf"];
            let of_ours = |line: &&str| drop_ins.iter().any(|name| line.contains(name));
            said.lines().filter(of_ours).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(verify(), [""; 0], "{daemon}");
        let drop_ins =
            [format!("testudo@site.service.d/ike-{daemon}.conf"), format!("{}.d/testudo.conf", units[0])];
        for drop_in in drop_ins {
            let path = format!("etc/systemd/system/{drop_in}");
            let text = root.read(&path);
            root.write(&path, &(text.clone() + "Unheard=of\n"));
            let complaints = verify();
            assert!(complaints.len() == 1 && complaints[0].contains(&drop_in), "{complaints:?}");
            root.write(&path, &text);
        }
    }
}

/// With a program in the place of libreswan's `ipsec` that prints what it was called with.
#[test]
fn plutos_script_routes_only_for_an_own_inner_address_and_then_into_the_gateway() {
    let root = Root::with("libreswan");
    root.done("setup libreswan --apply");
    let programs = tempfile::tempdir().unwrap();
    let ipsec = programs.path().join("ipsec");
    fs::write(&ipsec, "#!/bin/sh\necho \"$* $PLUTO_XFRMI_ROUTE $PLUTO_VIRT_INTERFACE\"\n").unwrap();
    fs::set_permissions(&ipsec, Permissions::from_mode(0o755)).unwrap();
    let updown = |verb: &str, variables: &[(&str, &str)]| {
        let mut command = Command::new("/bin/sh");
        command.arg(root.path("etc/ipsec.d/testudo-updown")).arg("--more").env("PLUTO_VERB", verb);
        let path = format!("{}:/usr/bin:/bin", programs.path().display());
        let output = wait::output(command.env("PATH", path).envs(variables.iter().copied())).unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let passed_on = "_updown --more yes testudo0\n";
    for verb in ["route-client", "unroute-host-v6", "route-client-v6"] {
        assert_eq!(updown(verb, &[]), "", "{verb}");
        assert_eq!(updown(verb, &[("PLUTO_MY_SOURCEIP", "10.9.0.7")]), passed_on, "{verb}");
        assert_eq!(updown(verb, &[("PLUTO_MTU", "1400")]), passed_on, "{verb}");
    }
    assert_eq!(updown("up-client", &[]), passed_on);
    assert_eq!(updown("down-host", &[]), passed_on);
}

#[test]
fn status_tells_a_daemon_with_the_library_from_one_without() {
    let root = lived_in();
    root.done("setup strongswan --apply");
    let process = |id: u32, name: &str, maps: &str| {
        root.write(&format!("proc/{id}/comm"), &format!("{name}\n"));
        root.write(&format!("proc/{id}/maps"), maps);
    };
    let line = |path: &str| format!("7f0000000000-7f0000001000 r-xp 00000000 08:01 12   {path}\n");
    let libc = line("/usr/lib/x86_64-linux-gnu/libc.so.6");
    process(12, "charon", &(libc.clone() + &line("/usr/local/lib/testudo/libtestudo-xfrm.so")));
    process(9, "charon-systemd", &libc);
    process(30, "pluto", &line("/usr/local/lib/testudo/libtestudo-xfrm.so (deleted)"));
    process(31, "sshd", &libc);
    let status = root.json("status");
    let daemons = status["daemons"].as_array().unwrap();
    let library = |daemon: usize, at: usize| {
        let process = &daemons[daemon]["processes"][at];
        (process["pid"].as_u64(), process["library"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(library(0, 0), (Some(9), "not loaded".into()));
    assert_eq!(library(0, 1), (Some(12), "loaded".into()));
    assert_eq!(library(1, 0), (Some(30), "loaded, but replaced on the disk since: restart it".into()));
    assert_eq!(daemons[0]["set_up"], "yes");
    assert_eq!(daemons[1]["set_up"], "no");
    assert_eq!(daemons[1]["services"], Value::Array(Vec::new()));
    assert_eq!(status["sockets"][0]["path"], "/run/testudo/xfrm.sock");
    assert_eq!(status["sockets"][0]["is_there"], false);
    fs::create_dir_all(root.path("run/testudo")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(root.path("run/testudo/xfrm.sock")).unwrap();
    assert_eq!(root.json("status")["sockets"][0]["is_there"], true);
    let text = root.done("status");
    assert!(text.contains("charon-systemd, process 9") && text.contains("xfrm.sock is there"), "{text}");
}

#[test]
fn status_says_how_long_tunnels_were_without_traffic() {
    let root = lived_in();
    root.done("setup strongswan --apply");
    let said = root.done("status");
    assert!(said.contains("without traffic is unknown: no gateway answers at "), "{said}");
    let toml = root.read("etc/testudo/site.toml");
    root.write("etc/testudo/site.toml", &toml.replace("/run/testudo/control.sock", "/run/testudo/site.sock"));
    fs::create_dir_all(root.path("run/testudo")).unwrap();
    let listener = std::os::unix::net::UnixListener::bind(root.path("run/testudo/site.sock")).unwrap();
    let renewal = json!({ "expected": 3, "renewed": 3, "without_traffic_ms": 1730 });
    let answers = [json!({ "ike": { "renewal": renewal } }), json!({ "ike": { "renewal": null } })];
    let gateway = std::thread::spawn(move || {
        // Each is asked for twice: as a text, and as JSON.
        for answer in [&answers[0], &answers[0], &answers[1], &answers[1]] {
            let mut client = listener.accept().unwrap().0;
            let mut request = String::new();
            BufReader::new(&client).read_line(&mut request).unwrap();
            assert_eq!(request.trim_end(), r#"{"verb":"status"}"#);
            writeln!(client, "{answer}").unwrap();
        }
    });
    let of_site = "tunnels of the gateway at /run/testudo/site.sock:";
    let said = root.done("status");
    let line = format!("{of_site} 3 of 3 renewed after the restart, without traffic for 1.7 s at most\n");
    assert!(said.contains(&line), "{said}");
    let told = root.json("status")["gateways"].clone();
    assert_eq!(told, json!([{ "control": "/run/testudo/site.sock", "renewal": renewal, "error": null }]));
    let said = root.done("status");
    assert!(said.contains(&format!("{of_site} no daemon had one before the gateway's start\n")), "{said}");
    assert!(root.json("status")["gateways"][0]["renewal"].is_null());
    gateway.join().unwrap();
}
