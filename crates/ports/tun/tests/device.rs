//! The port on real TUN devices, in private namespaces: two interfaces joined by a loop that passes packets
//! between them, with the kernel's TCP and UDP on both sides as the judges.
//!
//! ```text
//!   namespace left            this process             namespace right
//!   TCP ── tun0 10.9.0.1 ── rx/tx ═ batch ═ rx/tx ── tun0 10.9.0.2 ── TCP
//! ```

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    reason = "a test panics on failure, and its data is made of small numbers"
)]

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use testudo_lab::namespaces::{self, Entered, Namespace, veth};
use testudo_packet::{Batch, Buffer, DropReason, Pool, Port, PortCounters};
use testudo_port_tun::configure::{self, Prefix, Route, RoutingTable};
use testudo_port_tun::{ConfigureError, OpenError, TunConfig, TunPort, TunQueues};

const MTU: u32 = 1400;
const STREAM_BYTES: usize = 400 << 20;
const BLOCK_BYTES: usize = (1 << 18) + 1;

fn main() {
    let inside = namespaces::enter().expect("private namespaces");
    if let Err(error) = namespaces::require_tun() {
        panic!("{error}");
    }
    opening_says_what_is_wrong();
    without_the_right_to_steer_packets_come_all_the_same(inside);
    refused_and_lost_devices_are_told_apart(inside);
    a_route_outlives_its_source_address(inside);
    a_table_beside_the_main_one(inside);
    rules_of_others_at_the_same_priorities_stay(inside);
    let (left, right) = (Site::new(inside, "left", 1), Site::new(inside, "right", 2));
    for (address, name) in [("10.9.0.2:5001", "IPv4"), ("[fd09::2]:5001", "IPv6")] {
        tcp_keeps_content_and_rides_super_frames(&left, &right, address.parse().unwrap(), name);
        udp_keeps_content_and_order(&left, &right, address.parse().unwrap());
    }
    println!("device: ok");
}

struct Site {
    namespace: Namespace,
    port: std::sync::Mutex<TunPort>,
}

impl Site {
    fn new(inside: Entered, name: &str, host: u8) -> Self {
        let namespace = Namespace::new(inside, name).unwrap();
        let port = namespace.within(|| {
            let port = TunPort::open(&TunConfig::new("tun0")).unwrap();
            let addresses = [format!("10.9.0.{host}"), format!("fd09::{host}")];
            let prefix = |(text, bits): (&String, u8)| Prefix::new(text.parse().unwrap(), bits);
            let addresses = [prefix((&addresses[0], 24)), prefix((&addresses[1], 64))];
            let routes = ["192.0.2.0", "2001:db8::"].map(|text| text.parse().unwrap());
            let routes = [Prefix::new(routes[0], 24), Prefix::new(routes[1], 32)].map(Route::to);
            port.configure(&addresses, MTU, &routes).unwrap();
            check_configuration(&routes);
            port
        });
        let port = port.unwrap();
        println!("{name}: {:?}", port.offloads());
        Self { namespace, port: port.into() }
    }
}

fn check_configuration(routes: &[Route]) {
    let output = std::process::Command::new("ip").args(["-o", "address", "show", "tun0"]).output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains("10.9.0.") && shown.contains("fd09::"), "{shown}");
    let twice = configure::add_route("tun0", routes[0]).unwrap_err().to_string();
    assert!(twice.contains("route 192.0.2.0/24 into tun0") && twice.contains("ip route"), "{twice}");
    for &route in routes {
        configure::remove_route("tun0", route).unwrap();
        assert!(configure::remove_route("tun0", route).is_err());
    }
    let host = Prefix::new("10.9.1.1".parse().unwrap(), 32);
    configure::add_address("tun0", host).unwrap();
    configure::add_address("tun0", host).unwrap();
    configure::remove_address("tun0", host).unwrap();
    assert!(configure::set_mtu("tun0", 20).unwrap_err().to_string().contains("MTU of tun0 to 20"));
}

fn opening_says_what_is_wrong() {
    let first = TunPort::open(&TunConfig::new("tun7")).unwrap();
    assert!(
        matches!(TunPort::open(&TunConfig::new("tun7")), Err(OpenError::Busy { name }) if name == "tun7")
    );
    assert!(
        matches!(TunPort::open(&TunConfig::new("lo")), Err(OpenError::OtherKind { name }) if name == "lo")
    );
    drop(first);
    let queue = TunConfig { multi_queue: true, ..TunConfig::new("tun7") };
    let _queues = [TunPort::open(&queue).unwrap(), TunPort::open(&queue).unwrap()];
}

/// bpf(2) is refused in a user namespace: packets then come by queues of the kernel's choice, and the reason
/// is told. As root without user namespaces there is nothing to refuse.
fn without_the_right_to_steer_packets_come_all_the_same(inside: Entered) {
    let host = Namespace::new(inside, "unsteered").unwrap();
    let (mut queues, mut ports) = host.within(|| TunQueues::open("tun0", 2).unwrap()).unwrap();
    let is_user_namespace = std::fs::read_to_string("/proc/self/uid_map").unwrap().split_whitespace().last()
        != Some("4294967295");
    let refused = queues.steering_refused().map(str::to_owned);
    assert_eq!(refused.is_some(), is_user_namespace, "{refused:?}");
    assert!(refused.is_none_or(|said| said.contains("CAP_BPF") && said.contains("user namespaces")));
    let own = Prefix::new("10.9.0.1".parse().unwrap(), 24);
    host.within(|| ports[0].configure(&[own], MTU, &[]).unwrap()).unwrap();
    ports.push(host.within(|| queues.add().unwrap()).unwrap());
    let sockets: Vec<_> =
        host.within(|| (0..30).map(|_| UdpSocket::bind("10.9.0.1:0").unwrap()).collect()).unwrap();
    sockets.iter().for_each(|socket| assert_eq!(socket.send_to(b"datagram", "10.9.0.2:9").unwrap(), 8));
    let mut pool = Pool::new(64, 2048);
    let mut count = 0;
    for port in &mut ports {
        let mut batch = Batch::new();
        while port.rx(&mut pool, &mut batch).unwrap() > 0 {}
        count += batch.iter().filter(|buffer| buffer.bytes().ends_with(b"datagram")).count();
        pool.recycle_all(&mut batch);
    }
    assert_eq!(count, 30);
    queues.retire().unwrap();
    assert_eq!(queues.queues(), 2);
}

/// A host whose outer address is also the inner end of a tunnel, between hosts: `wan` is its interface to the
/// network, and `lan` another, made first, whose address Linux would choose as the source.
fn a_route_outlives_its_source_address(inside: Entered) {
    let [host, network] = ["host", "network"].map(|name| Namespace::new(inside, name).unwrap());
    for (interface, addresses) in [("lan", ["10.1.0.1/24", "fd01::1/64"]), ("wan", OUR)] {
        veth((&host, interface), (&network, interface)).unwrap();
        addresses.iter().for_each(|address| host.address(interface, address).unwrap());
    }
    let _port = host.within(|| TunPort::open(&TunConfig::new("tun0")).unwrap()).unwrap();
    host.link_up("tun0").unwrap();
    for (ours, peer) in OUR.into_iter().zip(["192.0.2.2", "2001:db8::2"]) {
        let source: IpAddr = ours.split_once('/').unwrap().0.parse().unwrap();
        let destination = Prefix::new(peer.parse().unwrap(), if source.is_ipv4() { 32 } else { 128 });
        let route = Route { source: Some(source), ..Route::to(destination) };
        let plain = Route::to(destination);
        let in_host = |work: &(dyn Fn() -> Result<(), ConfigureError> + Sync)| {
            host.within(work).unwrap().unwrap();
        };
        let chosen = || host.run(&["ip", "-o", "route", "get", peer]).unwrap();
        let uses = |source: IpAddr| {
            let said = chosen();
            assert!(said.contains("dev tun0") && said.contains(&format!("src {source} ")), "{said}");
        };
        in_host(&|| configure::add_route("tun0", route));
        uses(source);
        host.run(&["ip", "address", "del", ours, "dev", "wan"]).unwrap();
        assert!(chosen().contains("dev tun0"), "{}", chosen());
        let missing = host.within(|| configure::restore_source("tun0", source, &[route])).unwrap();
        assert!(missing.len() == 1 && missing[0].to_string().contains("with source"), "{missing:?}");
        assert!(chosen().contains("dev tun0"), "{}", chosen());
        host.address("wan", ours).unwrap();
        let unconcerned = "198.51.100.1".parse().unwrap();
        for address in [unconcerned, source, source] {
            let failures = host.within(|| configure::restore_source("tun0", address, &[route])).unwrap();
            assert!(failures.is_empty(), "{failures:?}");
        }
        uses(source);
        in_host(&|| configure::change_source("tun0", route, plain));
        let version = if source.is_ipv4() { "-4" } else { "-6" };
        let said = host.run(&["ip", version, "route", "show", peer]).unwrap();
        assert!(said.lines().count() == 1 && !said.contains(" src "), "{said}");
        in_host(&|| configure::change_source("tun0", plain, route));
        uses(source);
        in_host(&|| configure::remove_route("tun0", route));
        assert!(!chosen().contains("dev tun0"), "{}", chosen());
        in_host(&|| configure::add_route("tun0", route));
        host.run(&["ip", "address", "del", ours, "dev", "wan"]).unwrap();
        in_host(&|| configure::remove_route("tun0", route));
    }
}

/// The host's addresses at `wan`.
const OUR: [&str; 2] = ["192.0.2.1/24", "2001:db8::1/64"];

fn refused_and_lost_devices_are_told_apart(inside: Entered) {
    let namespace = Namespace::new(inside, "lost").unwrap();
    let mut port = namespace.within(|| TunPort::open(&TunConfig::new("tun0")).unwrap()).unwrap();
    let mut pool = Pool::new(64, 2048);
    let mut batch = Batch::new();
    let packet = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 59, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    batch.push(Buffer::copied(&packet, 0, 0));
    assert_eq!(port.tx(&mut pool, &mut batch).unwrap(), 1, "the link is down");
    assert_eq!(pool.drops().get(DropReason::SendRefused), 1);
    assert_eq!(port.rx(&mut pool, &mut batch).unwrap(), 0);
    namespace.link_up("tun0").unwrap();
    batch.push(Buffer::copied(&packet, 0, 0));
    batch.push(Buffer::copied(b"\0 no packet", 0, 0));
    assert_eq!(port.tx(&mut pool, &mut batch).unwrap(), 2);
    assert_eq!((port.counters().tx_packets, pool.drops().get(DropReason::SendRefused)), (1, 2));
    namespace.run(&["ip", "link", "delete", "tun0"]).unwrap();
    let error = port.rx(&mut pool, &mut batch).unwrap_err();
    assert_eq!((error.port.as_str(), error.what.as_str()), ("tun0", "receive"));
    batch.push(Buffer::copied(&packet, 0, 0));
    assert!(port.tx(&mut pool, &mut batch).is_err());
}

/// Hands packets between the two ports until `done`.
fn join(left: &Site, right: &Site, done: &AtomicBool) {
    let (mut a, mut b) = (left.port.lock().unwrap(), right.port.lock().unwrap());
    let mut pool = Pool::new(512, 2048);
    let (mut to_b, mut to_a) = (Batch::new(), Batch::new());
    while !done.load(Ordering::Relaxed) {
        let moved = a.rx(&mut pool, &mut to_b).unwrap() + b.rx(&mut pool, &mut to_a).unwrap();
        b.tx(&mut pool, &mut to_b).unwrap();
        a.tx(&mut pool, &mut to_a).unwrap();
        if moved == 0 {
            let fds = [a.readiness(), b.readiness()].concat();
            let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
            poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 50_000_000 })).unwrap();
        }
    }
    assert_eq!((to_a.len(), to_b.len()), (0, 0));
    assert_eq!(pool.available(), pool.size(), "every buffer came back");
    assert_eq!(pool.drops().total(), 0, "{:?}", pool.drops());
}

/// Runs `left_work` and `right_work` in their namespaces while packets flow; returns the counts moved per
/// port.
fn with_traffic(
    left: &Site,
    right: &Site,
    left_work: impl FnOnce() + Send,
    right_work: impl FnOnce() + Send,
) -> [PortCounters; 2] {
    let before = [left, right].map(|site| site.port.lock().unwrap().counters());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| join(left, right, &done));
        let receiver = scope.spawn(|| right.namespace.within(right_work).unwrap());
        left.namespace.within(left_work).unwrap();
        receiver.join().unwrap();
        done.store(true, Ordering::Relaxed);
    });
    let after = [left, right].map(|site| site.port.lock().unwrap().counters());
    std::array::from_fn(|i| PortCounters {
        rx_packets: after[i].rx_packets - before[i].rx_packets,
        rx_bytes: after[i].rx_bytes - before[i].rx_bytes,
        tx_packets: after[i].tx_packets - before[i].tx_packets,
        tx_bytes: after[i].tx_bytes - before[i].tx_bytes,
        rx_calls: after[i].rx_calls - before[i].rx_calls,
        tx_calls: after[i].tx_calls - before[i].tx_calls,
    })
}

/// A block of odd length, so that no two packets of the stream begin alike.
fn block() -> Vec<u8> {
    let mut state = 0x2545_F491_4F6C_DD1D_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..BLOCK_BYTES).map(|_| next()).collect()
}

fn tcp_keeps_content_and_rides_super_frames(left: &Site, right: &Site, address: SocketAddr, name: &str) {
    let block = block();
    let listener = right.namespace.within(|| TcpListener::bind(address).unwrap()).unwrap();
    let blocks = STREAM_BYTES / BLOCK_BYTES;
    let started = Instant::now();
    let send = || {
        let mut stream = TcpStream::connect(address).unwrap();
        (0..blocks).for_each(|_| stream.write_all(&block).unwrap());
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    };
    let receive = || {
        let mut stream = listener.accept().unwrap().0;
        let mut received = vec![0; BLOCK_BYTES];
        for index in 0..blocks {
            stream.read_exact(&mut received).unwrap();
            assert!(received == block, "block {index} differs");
        }
        assert_eq!(stream.read(&mut received).unwrap(), 0);
    };
    let [from_left, to_right] = with_traffic(left, right, send, receive);
    let seconds = started.elapsed().as_secs_f64();
    let gbit_s = (blocks * BLOCK_BYTES) as f64 * 8e-9 / seconds;
    let per_call = |packets: u64, calls: u64| packets as f64 / calls as f64;
    let rx = per_call(from_left.rx_packets, from_left.rx_calls);
    let tx = per_call(to_right.tx_packets, to_right.tx_calls);
    let copied = left.port.lock().unwrap().copied_frames();
    println!(
        "TCP {name}: {gbit_s:.1} Gbit/s, {rx:.1} packets per rx call, {tx:.1} per tx call, {copied} frames copied"
    );
    assert!(rx > 10.0 && tx > 10.0, "no super-frames: {rx:.1} and {tx:.1} packets per call");
}

fn udp_keeps_content_and_order(left: &Site, right: &Site, address: SocketAddr) {
    let receiver = right.namespace.within(|| UdpSocket::bind(address).unwrap()).unwrap();
    receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let (bytes, block) = ([1, 100, 1300, 1352, 7], block());
    let send = || {
        let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let sender = UdpSocket::bind(any).unwrap();
        for (index, length) in bytes.iter().cycle().take(60).enumerate() {
            sender.send_to(&block[index..index + length], address).unwrap();
        }
    };
    let receive = || {
        let mut received = [0; 2000];
        for (index, &length) in bytes.iter().cycle().take(60).enumerate() {
            let got = receiver.recv(&mut received).unwrap();
            assert!(received[..got] == block[index..index + length], "datagram {index} differs");
        }
    };
    with_traffic(left, right, send, receive);
}

/// Packets with the mark go by the main table, others by the longest prefix of either.
fn a_table_beside_the_main_one(inside: Entered) {
    let [host, network] = ["ruled", "beyond"].map(|name| Namespace::new(inside, name).unwrap());
    veth((&host, "wan"), (&network, "wan")).unwrap();
    OUR.iter().for_each(|address| host.address("wan", address).unwrap());
    let _port = host.within(|| TunPort::open(&TunConfig::new("tun0")).unwrap()).unwrap();
    host.link_up("tun0").unwrap();
    let table = RoutingTable { number: 7465, priority: 32000, mark: 0x7465 };
    let in_host = |work: &(dyn Fn() -> Result<(), ConfigureError> + Sync)| {
        host.within(work).unwrap().unwrap();
    };
    let interface_to = |address: &str, mark: &str| {
        let said = host.run(&["ip", "-o", "route", "get", address, "mark", mark]).unwrap();
        said.split(" dev ").nth(1).unwrap().split(' ').next().unwrap().to_owned()
    };
    // A peer on the link, its neighbour, and an address far away.
    let ends =
        [["192.0.2.2", "192.0.2.9", "198.51.100.1"], ["2001:db8::2", "2001:db8::9", "2001:db8:ffff::1"]];
    for ([peer, neighbour, far], (any, gateway)) in
        ends.into_iter().zip([("0.0.0.0", "192.0.2.254"), ("::", "2001:db8::fe")])
    {
        let any = Prefix::new(any.parse().unwrap(), 0);
        let peer_alone = Prefix::new(peer.parse().unwrap(), if any.address.is_ipv4() { 32 } else { 128 });
        host.run(&["ip", "route", "add", "default", "via", gateway]).unwrap();
        in_host(&|| table.clear(any));
        for prefix in [any, peer_alone, any] {
            let route = Route { table: table.number, ..Route::to(prefix) };
            in_host(&|| table.open_to(prefix));
            let added = host.within(|| configure::add_route("tun0", route)).unwrap();
            let is_there = added.is_err_and(|error| error.source.kind() == ErrorKind::AlreadyExists);
            assert!(!is_there || prefix == any);
        }
        let seen = |mark| [peer, neighbour, far].map(|address| interface_to(address, mark));
        assert_eq!(seen("0"), ["tun0", "wan", "tun0"]);
        assert_eq!(seen("0x7465"), ["wan"; 3]);
        // What refuses is an answer, however short.
        let bits = if any.address.is_ipv4() { 16 } else { 40 };
        let distant = Prefix::new(far.parse().unwrap(), bits);
        let refusal = || host.within(|| table.refusal(distant)).unwrap().map(|error| error.to_string());
        in_host(&|| table.open_to(distant));
        in_host(&|| configure::add_route("tun0", Route { table: table.number, ..Route::to(distant) }));
        assert_eq!(refusal(), None);
        let wide = if bits == 16 { "198.0.0.0/8" } else { "2001::/16" };
        host.run(&["ip", "route", "add", "unreachable", wide]).unwrap();
        assert!(refusal().unwrap().contains(&format!("reach {distant}")));
        host.run(&["ip", "route", "del", "unreachable", wide]).unwrap();
        assert_eq!(refusal(), None);
        in_host(&|| configure::remove_route("tun0", Route { table: table.number, ..Route::to(distant) }));
        in_host(&|| table.close_to(distant));
        in_host(&|| table.close_to(any));
        assert_eq!(seen("0"), ["tun0", "wan", "wan"]);
        // As what a process leaves that was killed.
        in_host(&|| RoutingTable { mark: 1, ..table }.open_to(any));
        in_host(&|| table.clear(any));
        assert_eq!(seen("0"), ["wan"; 3]);
        let rules = host.run(&["ip", if any.address.is_ipv4() { "-4" } else { "-6" }, "rule"]).unwrap();
        assert!(!rules.contains("7465") && !rules.contains("320"), "{rules}");
    }
}

/// wg-quick(8) lets the kernel choose its priorities: below the lowest that is taken, which may be ours.
fn rules_of_others_at_the_same_priorities_stay(inside: Entered) {
    let host = Namespace::new(inside, "shared").unwrap();
    let table = RoutingTable { number: 7465, priority: 32000, mark: 0x7465 };
    let of_killed = RoutingTable { number: 7466, mark: 1, ..table };
    for (version, any, longest) in [("-4", "0.0.0.0", 32), ("-6", "::", 128)] {
        let rules = || host.run(&["ip", version, "rule"]).unwrap();
        let in_host = |work: &(dyn Fn() -> Result<(), ConfigureError> + Sync)| {
            host.within(work).unwrap().unwrap();
        };
        let any = Prefix::new(any.parse().unwrap(), 0);
        let [main, own] = [0, 1].map(|place| (table.priority + 2 * longest + place).to_string());
        let others = [
            // Like ours in all but its origin.
            vec!["priority", &main, "table", "main", "suppress_prefixlength", "0"],
            vec!["priority", &main, "table", "main", "suppress_prefixlength", "8"],
            vec!["priority", &own, "table", "7465", "fwmark", "0x5"],
            vec!["not", "priority", &own, "table", "7465", "fwmark", "0x7465"],
        ];
        for other in others {
            host.run(&[["ip", version, "rule", "add"].to_vec(), other].concat()).unwrap();
        }
        let theirs = rules();
        in_host(&|| table.open_to(any));
        in_host(&|| table.open_to(any));
        assert_eq!(rules().lines().count(), theirs.lines().count() + 2, "{}", rules());
        assert_eq!(rules().matches("proto 126").count(), 2, "{}", rules());
        for _ in 0..2 {
            in_host(&|| table.close_to(any));
            assert_eq!(rules(), theirs);
        }
        in_host(&|| table.open_to(any));
        in_host(&|| of_killed.open_to(any));
        in_host(&|| table.clear(any));
        assert_eq!(rules(), theirs);
    }
}
