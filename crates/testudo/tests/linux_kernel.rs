//! Testudo interoperates with the Linux kernel's own ESP: the real program on one end of a TAP device, an
//! unmodified kernel in a virtual machine on the other, real traffic between them.
//!
//! Each suite is tested with IPv4 and IPv6 outside, raw ESP and ESP in UDP, extended and plain sequence
//! numbers, so that every pair of these occurs; IPv4 and IPv6 pass through every tunnel.

mod support;

use std::collections::BTreeSet;
use std::error::Error;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use support::config::{Config, Sa, Tunnel};
use support::gateway::Gateway;
use support::wait::PATIENCE;
use support::{Outcome, ensure, folder, wait};
use testudo_crypto::Suite;
use testudo_judge::harness::{self, TestResult};
use testudo_judge::linux_peer::LinuxPeer;
use testudo_lab::attack::{self, Recorded};
use testudo_lab::capture::{Capture, WHOLE};
use testudo_lab::namespaces::{Namespace, enter, is_inside};
use testudo_lab::traffic::ping;

/// Outer addresses: ours, the guest's.
const OUTER: [[&str; 2]; 2] = [["192.0.2.1", "192.0.2.2"], ["2001:db8::1", "2001:db8::2"]];
/// Inner addresses: ours, the guest's.
const INNER: [[&str; 2]; 2] = [["10.1.0.1", "10.2.0.1"], ["fd00:1::1", "fd00:2::1"]];
const ECHO_PORT: u16 = 7000;
/// Bytes sent each way over each of three TCP connections.
const TCP_BYTES: usize = 1 << 20;
/// The first needs several fragments, the second nearly the maximum.
const UDP_BYTES: [usize; 2] = [8_000, 60_000];

/// Dropped in this order.
struct Wire {
    peer: LinuxPeer,
    host: Namespace,
    cases: u32,
}

/// The settings that both ends share.
#[derive(Debug, Clone, Copy)]
struct Case {
    suite: Suite,
    ipv6: bool,
    udp: bool,
    esn: bool,
}

impl Case {
    fn name(&self) -> String {
        let outside = if self.ipv6 { "ipv6" } else { "ipv4" };
        let encapsulation = if self.udp { "udp" } else { "raw" };
        let esn = if self.esn { "esn" } else { "no_esn" };
        format!(
            "linux_speaks_{}_over_{outside}_{encapsulation}_{esn}",
            self.suite.to_string().replace('-', "_")
        )
    }
}

/// An orthogonal array: any two columns have all four pairs.
const SHAPES: [[bool; 3]; 4] =
    [[false, false, true], [false, true, false], [true, false, false], [true, true, true]];

const EVERY_SHAPE: [Suite; 6] = [
    Suite::AES128GCM16,
    Suite::AES256GCM16,
    Suite::CHACHA20POLY1305,
    Suite::AES128_SHA1,
    Suite::AES256_SHA256,
    Suite::NULL_SHA1,
];

fn main() -> ExitCode {
    let mut tests = harness::Suite::new();
    let known_to_linux = |suite: &Suite| suite.cipher().info().linux.is_some();
    let all = Suite::EACH_PRIMITIVE.iter().chain(&EVERY_SHAPE).copied().filter(known_to_linux);
    let suites: BTreeSet<Suite> = all.collect();
    for (index, suite) in suites.into_iter().enumerate() {
        // The suites that gateways use most in every shape, any other primitive in one.
        let shapes = if EVERY_SHAPE.contains(&suite) { &SHAPES[..] } else { &SHAPES[index % 4..][..1] };
        for &[ipv6, udp, esn] in shapes {
            let case = Case { suite, ipv6, udp, esn };
            tests = tests.test(case.name(), move |wire| understands(wire, case));
        }
    }
    tests
        .test("replayed_packets_of_linux_are_refused", refuses_replays)
        .test("packets_of_linux_under_a_wrong_key_are_counted_and_do_not_pass", refuses_wrong_keys)
        .test("linux_refuses_our_packets_under_a_wrong_key", linux_refuses_wrong_keys)
        .run(boot)
}

fn boot() -> Result<Wire, Box<dyn Error>> {
    let cache = LinuxPeer::default_cache();
    if !is_inside() {
        // While there is still a network.
        LinuxPeer::prepare_image(&cache)?;
    }
    let host = Namespace::new(enter()?, "host")?;
    host.tap("tap0")?;
    host.address("tap0", &format!("{}/24", OUTER[0][0]))?;
    host.address("tap0", &format!("{}/64", OUTER[1][0]))?;
    let mut peer = LinuxPeer::boot(&host, "tap0", &cache)?;
    peer.run(&format!(
        "ip address add {}/24 dev eth0; ip address add {}/64 dev eth0 nodad; ip link set eth0 up
         ip address add {}/32 dev lo; ip address add {}/128 dev lo nodad
         ip route add {} dev eth0 src {}; ip -6 route add {} dev eth0 src {}",
        OUTER[0][1],
        OUTER[1][1],
        INNER[0][1],
        INNER[1][1],
        INNER[0][0],
        INNER[0][1],
        INNER[1][0],
        INNER[1][1]
    ))?;
    // RFC 3948: a UDP socket that accepts ESP (level UDP, option UDP_ENCAP, value UDP_ENCAP_ESPINUDP).
    for version in ["UDP4-RECV:4500", "UDP6-RECV:4500,ipv6only=1"] {
        let _ = peer.background(&format!("exec socat -u {version},setsockopt-listen=17:100:i2 /dev/null"))?;
    }
    let _ =
        peer.background(&format!("exec socat -t 30 TCP6-LISTEN:{ECHO_PORT},reuseaddr,fork EXEC:/bin/cat"))?;
    let _ = peer.background(&format!("exec socat -b 65536 UDP6-RECVFROM:{ECHO_PORT},fork PIPE"))?;
    peer.wait_until(
        &format!("ss -Hltn | grep -q :{ECHO_PORT} && ss -Hlun | grep -q :{ECHO_PORT}"),
        PATIENCE,
    )?;
    peer.wait_until("test $(ss -Haun | grep -c :4500) -ge 2", PATIENCE)?;
    Ok(Wire { peer, host, cases: 0 })
}

/// Both ends of a tunnel, configured.
struct Ends {
    gateway: Gateway,
    /// `/proc/net/xfrm_stat` before the test.
    statistics: String,
}

impl Wire {
    /// Configures both ends alike, except for what `spoil` changes at ours.
    fn connect(&mut self, case: Case, spoil: impl FnOnce(&mut Tunnel)) -> Outcome<Ends> {
        self.cases += 1;
        let folder = folder(&format!("case-{}", self.cases))?;
        let [local, remote] = OUTER[usize::from(case.ipv6)].map(str::to_owned);
        // Each case has its own SPIs and keys, so that leftovers of another cannot be mistaken for it.
        let spi = 0x1000 + 16 * self.cases;
        let mut tunnel = Tunnel {
            name: "linux".to_owned(),
            local,
            remote,
            suite: case.suite.to_string(),
            udp: case.udp,
            esn: case.esn,
            selectors: INNER.map(|[ours, theirs]| (ours.to_owned(), theirs.to_owned())).to_vec(),
            outbound: Sa::random(spi, &case.suite.to_string())?,
            inbound: Sa::random(spi + 1, &case.suite.to_string())?,
            more: String::new(),
        };
        self.peer.run(&guest_script(case, &tunnel))?;
        spoil(&mut tunnel);
        let addresses = vec![format!("{}/32", INNER[0][0]), format!("{}/128", INNER[1][0])];
        Config { addresses, tunnels: vec![tunnel], ..Config::default() }.write(&folder)?;
        let statistics = self.peer.run("cat /proc/net/xfrm_stat")?;
        Ok(Ends { gateway: Gateway::init_and_start(&self.host, &folder)?, statistics })
    }

    /// Ends a successful case: neither end counted an error.
    fn part(&mut self, ends: Ends) -> Outcome<()> {
        let now = self.peer.run("cat /proc/net/xfrm_stat")?;
        ensure(now == ends.statistics, || {
            format!("Linux counted errors, before:\n{}after:\n{now}", ends.statistics)
        })?;
        let drops = ends.drops()?;
        ensure(drops.is_empty(), || format!("Testudo dropped {drops:?}"))?;
        ends.gateway.stop()
    }
}

impl Ends {
    /// Packets that Testudo dropped, except those that the host itself sends on a new interface (router
    /// solicitations and the like).
    fn drops(&self) -> Outcome<Vec<(String, u64)>> {
        let status = self.gateway.ask_json(&["status"])?;
        let drops = status["drops"].as_object().into_iter().flatten();
        let counted = drops.filter_map(|(reason, count)| Some((reason.clone(), count.as_u64()?)));
        Ok(counted.filter(|(reason, count)| reason != "no_policy" && *count > 0).collect())
    }
}

/// The algorithms and keys of a suite in the syntax of `ip xfrm state`.
fn algorithms(suite: Suite, key: &str) -> String {
    let cipher = suite.cipher().info().linux.unwrap_or_default();
    let integrity = suite.integrity().info().linux;
    let icv_bits = 8 * suite.icv_bytes();
    if suite.is_combined() {
        return format!("aead '{cipher}' 0x{key} {icv_bits}");
    }
    // Linux takes the salt of counter mode for the end of the key, as RFC 3686 5.1 does.
    let (cipher_key, integrity_key) = key.split_at(2 * (suite.key_bytes() + suite.salt_bytes()));
    let cipher_key = if cipher_key.is_empty() { "''".to_owned() } else { format!("0x{cipher_key}") };
    format!("enc '{cipher}' {cipher_key} auth-trunc '{integrity}' 0x{integrity_key} {icv_bits}")
}

/// The script that configures the guest's end of `tunnel`, which is given from the host's point of view.
fn guest_script(case: Case, tunnel: &Tunnel) -> String {
    // A large window: while AES instructions are busy, Linux defers single packets and handles them hundreds
    // of packets later.
    let window =
        if case.esn { "replay-window 4096 flag esn af-unspec" } else { "replay-window 4096 flag af-unspec" };
    let any = if case.ipv6 { "::" } else { "0.0.0.0" };
    let encapsulation = if case.udp { format!("encap espinudp 4500 4500 {any}") } else { String::new() };
    let (host, guest) = (&tunnel.local, &tunnel.remote);
    let state = |from: &str, to: &str, sa: &Sa| {
        format!(
            "/usr/bin/ip xfrm state add src {from} dst {to} proto esp spi {:#x} reqid 1 mode tunnel {window} \
             {encapsulation} {}\n",
            sa.spi,
            algorithms(case.suite, &sa.key)
        )
    };
    let mut script = "set -e\nip xfrm state flush\nip xfrm policy flush\n".to_owned();
    script += &state(host, guest, &tunnel.outbound);
    script += &state(guest, host, &tunnel.inbound);
    for [ours, theirs] in INNER {
        script += &format!(
            "ip xfrm policy add src {theirs} dst {ours} dir out tmpl src {guest} dst {host} proto esp reqid 1 mode tunnel\n\
             ip xfrm policy add src {ours} dst {theirs} dir in tmpl src {host} dst {guest} proto esp reqid 1 mode tunnel\n"
        );
    }
    script
}

fn understands(wire: &mut Wire, case: Case) -> TestResult {
    let ends = wire.connect(case, |_| {})?;
    if let Err(error) = exchange(wire, case) {
        let (drops, statistics) = (ends.drops()?, wire.peer.run("cat /proc/net/xfrm_stat")?);
        return Err(format!("{error}\nTestudo dropped {drops:?}\nLinux counted\n{statistics}").into());
    }
    wire.part(ends)
}

fn exchange(wire: &mut Wire, case: Case) -> Outcome<()> {
    for [ours, theirs] in INNER {
        pings_both_ways(wire, ours, theirs)?;
        tcp_from_here(&wire.host, theirs.parse()?)?;
        udp_from_here(&wire.host, theirs.parse()?)?;
    }
    // IPv4 inside IPv6, and the reverse.
    tcp_from_the_guest(wire, INNER[usize::from(!case.ipv6)][0])
}

fn pings_both_ways(wire: &mut Wire, ours: &str, theirs: &str) -> Outcome<()> {
    let trips = ping(&wire.host, theirs.parse()?, 3, PATIENCE)?;
    ensure(trips.lost == 0, || format!("{} of 3 pings to {theirs} were lost", trips.lost))?;
    let printed = wire.peer.sh(&format!("ping -c 3 -i 0.1 -W 20 -I {theirs} {ours}"), PATIENCE)?.stdout;
    ensure(printed.contains("3 packets received"), || printed)
}

/// Bytes that show their position in a stream: no two windows of them are equal.
fn pattern(length: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let next = || {
        // Marsaglia's xorshift64 (2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_be_bytes()[0]
    };
    std::iter::repeat_with(next).take(length).collect()
}

fn tcp_from_here(host: &Namespace, theirs: IpAddr) -> Outcome<()> {
    let stream = host.within(|| TcpStream::connect_timeout(&(theirs, ECHO_PORT).into(), PATIENCE))??;
    comes_back(stream)
}

/// The guest connects, and sends back what it receives.
fn tcp_from_the_guest(wire: &mut Wire, ours: &str) -> Outcome<()> {
    let address: IpAddr = ours.parse()?;
    let listener = wire.host.within(|| TcpListener::bind((address, 0)))??;
    listener.set_nonblocking(true)?;
    let server = listener.local_addr()?.to_string();
    let echo = wire.peer.background(&format!("exec socat -t 30 TCP:{server} EXEC:/bin/cat"))?;
    let stream = wait::until("for the guest to connect", || match listener.accept() {
        Ok((stream, _)) => Ok(Some(stream)),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error.into()),
    })?;
    stream.set_nonblocking(false)?;
    comes_back(stream)?;
    wire.peer.stop(echo)?;
    Ok(())
}

/// Sends [`TCP_BYTES`] to an echo service and expects the same bytes back.
fn comes_back(stream: TcpStream) -> Outcome<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let sent = pattern(TCP_BYTES);
    let mut received = vec![0; TCP_BYTES];
    let result = thread::scope(|scope| {
        let source = scope.spawn(|| (&stream).write_all(&sent));
        let read = (&stream).read_exact(&mut received);
        read.and(source.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    result.map_err(|e| format!("TCP: {e}"))?;
    let first = sent.iter().zip(&received).position(|(a, b)| a != b);
    ensure(first.is_none(), || format!("TCP: other bytes came back from {first:?} on"))
}

fn udp_from_here(host: &Namespace, theirs: IpAddr) -> Outcome<()> {
    let any = if theirs.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" };
    let socket = host.within(|| UdpSocket::bind(any))??;
    socket.connect((theirs, ECHO_PORT))?;
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    let (bytes, mut answer) = (pattern(UDP_BYTES[1]), vec![0; 65_536]);
    for length in UDP_BYTES {
        let sent =
            socket.send(&bytes[..length]).map_err(|e| format!("{length} bytes of UDP to {theirs}: {e}"))?;
        let received =
            socket.recv(&mut answer).map_err(|e| format!("{length} bytes of UDP from {theirs}: {e}"))?;
        ensure(sent == length && answer[..received] == bytes[..length], || {
            format!("of {length} bytes of UDP to {theirs}, {received} came back, or others")
        })?;
    }
    Ok(())
}

const PLAIN: Case = Case { suite: Suite::AES128GCM16, ipv6: false, udp: false, esn: true };

fn refuses_replays(wire: &mut Wire) -> TestResult {
    let ends = wire.connect(PLAIN, |_| {})?;
    for interface in ["all", "lo"] {
        wire.host.sysctl(&format!("net.ipv4.conf.{interface}.rp_filter"), "0")?;
    }
    let file = folder("replay")?.join("tap.pcap");
    let capture = Capture::start(&wire.host, "tap0", &file, WHOLE)?;
    pings_both_ways(wire, INNER[0][0], INNER[0][1])?;
    let mut from_linux = Vec::new();
    let guest: Ipv4Addr = OUTER[0][1].parse()?;
    capture.finish(&wire.host)?.frames(|frame, _| {
        let is_esp = frame.get(12..14) == Some(&[8, 0]) && frame.get(23) == Some(&50);
        if is_esp && frame.get(26..30) == Some(&guest.octets()) {
            from_linux.extend(Recorded::new(&frame[14..], 20, false));
        }
    })?;
    let (accepted, count) = (ends.gateway.sa("linux", "inbound")?["packets"].clone(), from_linux.len());
    ensure(count >= 6, || format!("only {count} ESP packets of Linux were recorded"))?;
    attack::send(&wire.host, OUTER[0][0].parse()?, &from_linux)?;
    ends.gateway.counts("replay_duplicate", u64::try_from(count)?)?;
    let now = ends.gateway.sa("linux", "inbound")?["packets"].clone();
    ensure(now == accepted, || format!("{accepted} packets were accepted before the replay, {now} after"))?;
    ends.gateway.stop()
}

fn refuses_wrong_keys(wire: &mut Wire) -> TestResult {
    let other = Sa::random(0, &PLAIN.suite.to_string())?.key;
    let ends = wire.connect(PLAIN, |tunnel| tunnel.inbound.key = other)?;
    let [ours, theirs] = INNER[0];
    let printed = wire.peer.sh(&format!("ping -c 2 -i 0.1 -W 1 -I {theirs} {ours}"), PATIENCE)?.stdout;
    ensure(printed.contains(" 0 packets received"), || printed)?;
    ends.gateway.counts("authentication_failed", 2)?;
    let packets = ends.gateway.sa("linux", "inbound")?["packets"].clone();
    ensure(packets == 0, || format!("{packets} packets with a wrong ICV passed"))?;
    ends.gateway.stop()
}

/// The reverse: how Linux reports a packet of ours under another key.
fn linux_refuses_wrong_keys(wire: &mut Wire) -> TestResult {
    let other = Sa::random(0, &PLAIN.suite.to_string())?.key;
    let ends = wire.connect(PLAIN, |tunnel| tunnel.outbound.key = other)?;
    let trips = ping(&wire.host, INNER[0][1].parse()?, 2, Duration::from_secs(1))?;
    ensure(trips.times.is_empty(), || "a ping under a wrong key was answered".to_owned())?;
    let errors = "grep -q 'XfrmInStateProtoError *[^0]' /proc/net/xfrm_stat";
    wire.peer.wait_until(errors, PATIENCE).map_err(|e| format!("Linux did not count them: {e}"))?;
    ends.gateway.stop()
}
