//! The Linux guest is fit to judge: it boots, is on the wire, knows every algorithm that Testudo must
//! interoperate with, and carries TCP. Needs qemu and, the first time, the network to fetch the guest's
//! kernel.

use std::error::Error;
use std::process::{Command, ExitCode};
use std::time::Duration;

use testudo_judge::harness::{Suite, TestResult};
use testudo_judge::linux_peer::{LinuxPeer, Options, PeerError, ShellOutput};
use testudo_lab::namespaces::{Namespace, enter, is_inside};

const PATIENCE: Duration = Duration::from_secs(60);

/// A guest on a TAP of the namespace. The fields are dropped in this order.
struct Wire {
    peer: LinuxPeer,
    host: Namespace,
}

fn main() -> ExitCode {
    let mut suite = Suite::new()
        .test("the_guest_runs_its_own_kernel", runs_its_own_kernel)
        .test("commands_report_status_output_and_errors_exactly", reports_exactly)
        .test("a_command_that_takes_too_long_is_killed_and_the_next_one_runs", kills_the_slow)
        .test("background_programs_run_until_stopped", runs_in_the_background)
        .test("the_guest_answers_ping_over_ipv4_and_ipv6", pings);
    for (name, algorithms) in SUITES {
        suite = suite.test(format!("linux_knows_{name}"), move |wire| knows(wire, name, algorithms));
    }
    suite
        .test("linux_knows_extended_sequence_numbers", knows_esn)
        .test("linux_knows_udp_encapsulation", knows_udp_encapsulation)
        .test("tcp_flows_both_ways_over_the_tap", carries_tcp)
        .test("udp_is_echoed_by_socat", echoes_udp)
        .test("tcp_flows_without_offloads_too", carries_tcp_without_offloads)
        .test("a_guest_that_dies_is_reported_with_its_console", reports_death)
        .run(boot)
}

fn boot() -> Result<Wire, Box<dyn Error>> {
    let cache = LinuxPeer::default_cache();
    if !is_inside() {
        // While the network still exists.
        LinuxPeer::prepare_image(&cache)?;
    }
    let inside = enter()?;
    wire(Namespace::new(inside, "host")?, "tap0", &Options::default())
}

fn wire(host: Namespace, tap: &str, options: &Options) -> Result<Wire, Box<dyn Error>> {
    host.tap(tap)?;
    host.address(tap, "10.77.0.1/24")?;
    host.address(tap, "fd77::1/64")?;
    let mut peer = LinuxPeer::boot_with(&host, tap, &LinuxPeer::default_cache(), options)?;
    peer.run(
        "ip address add 10.77.0.2/24 dev eth0; ip address add fd77::2/64 dev eth0 nodad; ip link set eth0 up",
    )?;
    Ok(Wire { peer, host })
}

fn runs_its_own_kernel(wire: &mut Wire) -> TestResult {
    let release = wire.peer.run("uname -r")?;
    assert!(release.contains("cloud"), "{release}");
    let first_line = wire.peer.run("dmesg | grep -c 'Linux version'")?;
    assert_eq!(first_line, "1\n");
    println!("  {} on {}", release.trim(), wire.peer.accelerator());
    Ok(())
}

fn reports_exactly(wire: &mut Wire) -> TestResult {
    let output = wire.peer.sh("printf 'a\\n\\nb'; printf oops >&2; exit 3", PATIENCE)?;
    assert_eq!(output, ShellOutput { status: 3, stdout: "a\n\nb".into(), stderr: "oops".into() });
    // More than any pipe or ring on the path holds.
    let long = wire.peer.run("seq 1 200000")?;
    assert_eq!((long.lines().count(), long.lines().last()), (200_000, Some("200000")));
    let failed = wire.peer.run("ip link show dev nosuch");
    assert!(
        matches!(&failed, Err(PeerError::Failed { output, .. }) if output.stderr.contains("nosuch")),
        "{failed:?}"
    );
    Ok(())
}

fn kills_the_slow(wire: &mut Wire) -> TestResult {
    let slow = wire.peer.sh("echo begun; sleep 1234", Duration::from_secs(1));
    assert!(
        matches!(&slow, Err(PeerError::TimedOut { output, .. }) if output.stdout == "begun\n"),
        "{slow:?}"
    );
    wire.peer.wait_until("! ps | grep -q '[s]leep 1234'", PATIENCE)?;
    Ok(())
}

fn runs_in_the_background(wire: &mut Wire) -> TestResult {
    let program = wire.peer.background("echo 'it'\\''s up'; sleep 4321")?;
    wire.peer.wait_until("ps | grep -q '[s]leep 4321'", PATIENCE)?;
    assert_eq!(wire.peer.output_of(&program)?, "it's up\n");
    assert_eq!(wire.peer.stop(program)?, "it's up\n");
    wire.peer.wait_until("! ps | grep -q '[s]leep 4321'", PATIENCE)?;
    Ok(())
}

fn pings(wire: &mut Wire) -> TestResult {
    for address in ["10.77.0.1", "fd77::1"] {
        let printed = wire.peer.run(&format!("ping -c 3 -i 0.2 -W 5 {address}"))?;
        assert!(printed.contains("3 packets received"), "{printed}");
    }
    Ok(())
}

/// strongSwan's proposal keyword, and the arguments of `ip xfrm state add` for the same algorithms.
const SUITES: [(&str, &str); 15] = [
    ("aes128gcm16", "aead 'rfc4106(gcm(aes))' KEY20 128"),
    ("aes256gcm16", "aead 'rfc4106(gcm(aes))' KEY36 128"),
    ("aes128gcm8", "aead 'rfc4106(gcm(aes))' KEY20 64"),
    ("aes128ccm16", "aead 'rfc4309(ccm(aes))' KEY19 128"),
    ("chacha20poly1305", "aead 'rfc7539esp(chacha20,poly1305)' KEY36 128"),
    ("null_aes128gmac", "aead 'rfc4543(gcm(aes))' KEY20 128"),
    ("aes128_sha1", "enc 'cbc(aes)' KEY16 auth-trunc 'hmac(sha1)' KEY20 96"),
    ("aes256_sha256", "enc 'cbc(aes)' KEY32 auth-trunc 'hmac(sha256)' KEY32 128"),
    ("aes256_sha512", "enc 'cbc(aes)' KEY32 auth-trunc 'hmac(sha512)' KEY64 256"),
    ("aes128ctr_sha256", "enc 'rfc3686(ctr(aes))' KEY20 auth-trunc 'hmac(sha256)' KEY32 128"),
    ("aes128_aesxcbc", "enc 'cbc(aes)' KEY16 auth-trunc 'xcbc(aes)' KEY16 96"),
    ("aes128_aescmac", "enc 'cbc(aes)' KEY16 auth-trunc 'cmac(aes)' KEY16 96"),
    ("3des_md5", "enc 'cbc(des3_ede)' KEY24 auth-trunc 'hmac(md5)' KEY16 96"),
    ("null_sha256", "enc 'cipher_null' '' auth-trunc 'hmac(sha256)' KEY32 128"),
    ("null_sha1", "enc 'cipher_null' '' auth-trunc 'hmac(sha1)' KEY20 96"),
];

/// Replaces `KEY20` by a key of 20 different bytes: the three DES keys of a triple must differ.
fn with_keys(algorithms: &str) -> String {
    let word = |word: &str| match word.strip_prefix("KEY").and_then(|length| length.parse::<u8>().ok()) {
        Some(length) => (0..length).fold("0x".to_owned(), |key, byte| format!("{key}{:02x}", byte ^ 0x5a)),
        None => word.to_owned(),
    };
    algorithms.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

fn add_state(peer: &mut LinuxPeer, family: &str, rest: &str) -> Result<String, PeerError> {
    let ends = if family == "-6" { "src fd77::1 dst fd77::2" } else { "src 10.77.0.1 dst 10.77.0.2" };
    // Ciphers are loaded and self-tested on first use.
    let script = format!(
        "ip xfrm state flush && ip {family} xfrm state add {ends} proto esp spi 0x1000 mode tunnel {rest} \
         && ip -d xfrm state"
    );
    let output = peer.sh(&script, PATIENCE)?;
    if output.status == 0 { Ok(output.stdout) } else { Err(PeerError::Failed { script, output }) }
}

fn knows(wire: &mut Wire, suite: &str, algorithms: &str) -> TestResult {
    for family in ["-4", "-6"] {
        let state = add_state(&mut wire.peer, family, &with_keys(algorithms))?;
        for word in algorithms.split('\'').filter(|word| word.contains('(')) {
            assert!(state.contains(word), "{suite}: no {word} in\n{state}");
        }
    }
    Ok(())
}

fn knows_esn(wire: &mut Wire) -> TestResult {
    for algorithms in
        ["aead 'rfc4106(gcm(aes))' KEY20 128", "enc 'cbc(aes)' KEY16 auth-trunc 'hmac(sha256)' KEY32 128"]
    {
        let state = add_state(
            &mut wire.peer,
            "-4",
            &format!("replay-window 256 flag esn {}", with_keys(algorithms)),
        )?;
        assert!(state.contains("esn") && state.contains("replay_window 256"), "{state}");
    }
    Ok(())
}

fn knows_udp_encapsulation(wire: &mut Wire) -> TestResult {
    for (family, any) in [("-4", "0.0.0.0"), ("-6", "::")] {
        let rest = format!("encap espinudp 4500 4500 {any} aead 'rfc4106(gcm(aes))' KEY20 128");
        let state = add_state(&mut wire.peer, family, &with_keys(&rest))?;
        assert!(state.contains("encap type espinudp sport 4500 dport 4500"), "{state}");
    }
    Ok(())
}

/// Sends TCP for a second and returns the received rate in bit/s.
fn transfer(wire: &mut Wire, direction: &[&str]) -> Result<f64, Box<dyn Error>> {
    let server = wire.peer.background("exec iperf3 -s -1")?;
    wire.peer.wait_until("ss -Hltn | grep -q :5201", PATIENCE)?;
    let mut client: Command = wire.host.command("iperf3");
    let output = client.args(["-c", "10.77.0.2", "-t", "1", "-J"]).args(direction).output()?;
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let said = wire.peer.stop(server)?;
    let rate = report["end"]["sum_received"]["bits_per_second"].as_f64();
    rate.filter(|&rate| rate > 0.0).ok_or_else(|| format!("nothing arrived: {report:#}\n{said}").into())
}

fn carries_tcp(wire: &mut Wire) -> TestResult {
    let to_guest = transfer(wire, &[])?;
    let to_host = transfer(wire, &["-R"])?;
    println!("  TCP: {:.2} Gbit/s to the guest, {:.2} Gbit/s from it", to_guest / 1e9, to_host / 1e9);
    Ok(())
}

fn echoes_udp(wire: &mut Wire) -> TestResult {
    let server = wire.peer.background("exec socat UDP6-RECVFROM:7777,fork EXEC:/bin/cat")?;
    wire.peer.wait_until("ss -Hlun | grep -q :7777", PATIENCE)?;
    let echoed = wire.host.within(|| -> std::io::Result<Vec<u8>> {
        let socket = std::net::UdpSocket::bind("[fd77::1]:0")?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.send_to(b"testudo", "[fd77::2]:7777")?;
        let mut answer = [0; 64];
        let length = socket.recv(&mut answer)?;
        Ok(answer[..length].to_vec())
    })??;
    wire.peer.stop(server)?;
    assert_eq!(echoed, b"testudo");
    Ok(())
}

/// A second guest on a second wire: several guests may run at once.
fn plain_wire(name: &str) -> Result<Wire, Box<dyn Error>> {
    let options = Options { offloads: false, ..Options::default() };
    wire(Namespace::new(enter()?, name)?, "tap0", &options)
}

fn carries_tcp_without_offloads(_: &mut Wire) -> TestResult {
    let mut wire = plain_wire("plain")?;
    let rate = transfer(&mut wire, &[])?;
    let features = wire.peer.run("cat /sys/bus/virtio/drivers/virtio_net/virtio*/features")?;
    assert!(features.starts_with("00"), "checksum offload was negotiated: {features}");
    println!("  TCP without offloads: {:.2} Gbit/s to the guest", rate / 1e9);
    Ok(())
}

fn reports_death(_: &mut Wire) -> TestResult {
    let mut wire = plain_wire("mortal")?;
    let died = wire.peer.sh("echo c >/proc/sysrq-trigger", PATIENCE);
    assert!(
        matches!(&died, Err(PeerError::Lost { console, .. }) if console.contains("Kernel panic")),
        "{died:?}"
    );
    Ok(())
}
