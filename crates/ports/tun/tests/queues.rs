//! Several queues of one TUN interface, as root in network namespaces: which flow comes to which, in which
//! order, and what happens when queues come and go.
//!
//! ```text
//!   namespace: UDP sockets ── tun0 10.9.0.1 ──┬─ queue 0 ── TunPort
//!                                             ├─ queue 1 ── TunPort
//!                                             └─ queue 2 ── TunPort
//! ```
//!
//! bpf(2) is refused without root's rights outside of all user namespaces. The tests then fail, unless
//! `TESTUDO_WITHOUT_XDP=1` says that this is known.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    reason = "a test panics on failure, and its data is made of small numbers"
)]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::namespaces::{self, Entered, Namespace};
use testudo_packet::{Batch, Buffer, Pool, Port};
use testudo_port_tun::configure::Prefix;
use testudo_port_tun::{AddError, OpenError, TunConfig, TunPort, TunQueues};
use testudo_wire::flow::flow_hash;
use testudo_wire::ip::IpHeader;
use testudo_wire::protocol;

const PORT: u16 = 5001;

fn main() -> ExitCode {
    if std::env::var_os("TESTUDO_WITHOUT_XDP").is_some() {
        println!("queues: skipped, TESTUDO_WITHOUT_XDP is set");
        return ExitCode::SUCCESS;
    }
    let fixture = || {
        let inside = namespaces::enter_as_root().map_err(|error| {
            format!("{error}\nsteering needs real root; TESTUDO_WITHOUT_XDP=1 leaves these tests out")
        })?;
        namespaces::require_tun().map_err(|error| error.to_string())?;
        Ok::<_, String>(inside)
    };
    let suite = Suite::new()
        .test("the_program_in_the_kernel_computes_the_flow_hash", computes_the_flow_hash)
        .test("each_flow_comes_by_one_queue_in_its_order", one_queue_in_order)
        .test("a_flow_keeps_its_queue_whichever_its_answers_take", keeps_its_queue)
        .test("left_to_itself_the_kernel_moves_a_flow_to_the_queue_of_its_answers", left_to_itself)
        .test("super_frames_of_one_connection_come_by_one_queue_and_keep_their_content", super_frames)
        .test("queues_come_and_go_under_load_and_no_packet_is_lost_or_doubled", come_and_go)
        .test("a_writer_sends_by_a_queue_of_another_and_takes_none_of_its_packets", writes_alone)
        .test("what_is_wrong_with_an_interface_of_several_queues_is_told", what_is_wrong);
    suite.run(fixture)
}

/// A host with an interface that has several queues.
struct Host {
    namespace: Namespace,
    queues: TunQueues,
    ports: Vec<TunPort>,
}

impl Host {
    fn new(inside: Entered, name: &str, queues: u32) -> Self {
        Self::with_number(inside, name, queues, 1)
    }

    fn with_number(inside: Entered, name: &str, queues: u32, number: u8) -> Self {
        let namespace = Namespace::new(inside, name).unwrap();
        let (queues, ports) = namespace.within(|| TunQueues::open("tun0", queues).unwrap()).unwrap();
        assert_eq!(queues.steering_refused(), None);
        configure(&namespace, &ports[0], number);
        Self { namespace, queues, ports }
    }
}

fn configure(namespace: &Namespace, port: &TunPort, number: u8) {
    let addresses = [(format!("10.9.0.{number}"), 24), (format!("fd09::{number}"), 64)];
    let addresses = addresses.map(|(text, bits)| Prefix::new(text.parse().unwrap(), bits));
    namespace.within(|| port.configure(&addresses, 1400, &[]).unwrap()).unwrap();
}

/// Sockets that send to many hosts beyond the interface, over both versions of IP.
fn flows(namespace: &Namespace, count: usize) -> Vec<UdpSocket> {
    let open = |index: usize| {
        let (own, to) = match index % 2 {
            0 => ("10.9.0.1:0", format!("10.9.0.{}", 2 + index % 200)),
            _ => ("[fd09::1]:0", format!("fd09::{:x}", 2 + index)),
        };
        let socket = UdpSocket::bind(own).unwrap();
        socket.connect((to.as_str(), PORT)).unwrap();
        socket
    };
    namespace.within(|| (0..count).map(open).collect()).unwrap()
}

/// What a datagram of a test carries: its flow and its place there.
fn content(flow: usize, number: usize) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&(flow as u32).to_be_bytes());
    bytes[4..].copy_from_slice(&(number as u32).to_be_bytes());
    bytes
}

/// Flow and place of a packet; `None` for one of the kernel's own, such as a router solicitation.
fn read(packet: &[u8]) -> Option<(usize, usize)> {
    let header = IpHeader::parse(packet).ok().filter(|header| header.protocol == protocol::UDP)?;
    let (_, to) = header.ports(packet)?;
    let content = header.payload(packet).get(8..16).filter(|_| to == PORT)?;
    let number = |at: usize| u32::from_be_bytes(content[at..at + 4].try_into().unwrap()) as usize;
    Some((number(0), number(4)))
}

/// All packets that a port has now.
fn received(port: &mut TunPort) -> Vec<Vec<u8>> {
    let mut pool = Pool::new(256, 2048);
    let mut packets = Vec::new();
    loop {
        let mut batch = Batch::new();
        if port.rx(&mut pool, &mut batch).unwrap() == 0 {
            return packets;
        }
        packets.extend(batch.drain(..).map(|buffer| {
            let packet = buffer.bytes().to_vec();
            pool.recycle(buffer);
            packet
        }));
    }
}

fn send(port: &mut TunPort, packet: &[u8]) {
    let mut batch = Batch::new();
    batch.push(Buffer::copied(packet, 0, 0));
    assert_eq!(port.tx(&mut Pool::new(4, 2048), &mut batch).unwrap(), 1);
}

/// A packet back to the sender of one: over IPv4, without a checksum of UDP.
fn answer(packet: &[u8]) -> Vec<u8> {
    let mut answer = packet.to_vec();
    answer[12..16].copy_from_slice(&packet[16..20]);
    answer[16..20].copy_from_slice(&packet[12..16]);
    answer[20..22].copy_from_slice(&packet[22..24]);
    answer[22..24].copy_from_slice(&packet[20..22]);
    answer[26..28].fill(0);
    answer
}

/// Random packets of both versions, whole, cut off, with options, fragments and nonsense.
fn computes_the_flow_hash(inside: &mut Entered) -> TestResult {
    let host = Host::new(*inside, "hash", 7);
    let mut random = fastrand::Rng::with_seed(16);
    let mut seen = BTreeMap::new();
    for round in 0..20_000 {
        let mut packet: Vec<u8> = (0..random.usize(1..80)).map(|_| random.u8(..)).collect();
        packet[0] = match random.u8(..8) {
            0 => random.u8(..),
            1..4 => 0x40 | random.u8(..16),
            4 => 0x45,
            _ => 0x60 | random.u8(..16),
        };
        let next = if packet[0] >> 4 == 4 { 9 } else { 6 };
        if packet.len() > 40 && random.bool() {
            packet[next] = [6, 17, 33, 132, 136, 1, 44][random.usize(..7)];
            if next == 9 {
                packet[6..8].copy_from_slice(&[0x40, 0]);
            }
        }
        let queue = host.queues.judge(&packet)?.ok_or("no program")?;
        let expected = host.queues.buckets().queue(&packet);
        assert_eq!(queue, expected, "seed 16, round {round}: {packet:02x?}, hash {:x}", flow_hash(&packet));
        *seen.entry(queue).or_insert(0) += 1;
    }
    assert_eq!(seen.len(), 7, "{seen:?}");
    Ok(())
}

fn one_queue_in_order(inside: &mut Entered) -> TestResult {
    let mut host = Host::new(*inside, "order", 3);
    let flows = flows(&host.namespace, 64);
    let mut numbers = vec![0; flows.len()];
    let mut by_queue = [0; 3];
    for number in 0..30 {
        for (flow, socket) in flows.iter().enumerate() {
            socket.send(&content(flow, number))?;
        }
        for (queue, port) in host.ports.iter_mut().enumerate() {
            for packet in received(port) {
                let Some((flow, number)) = read(&packet) else { continue };
                assert_eq!(host.queues.buckets().queue(&packet) as usize, queue, "flow {flow}");
                assert_eq!(numbers[flow], number, "flow {flow}");
                numbers[flow] += 1;
                by_queue[queue] += 1;
            }
        }
    }
    assert!(numbers.iter().all(|count| *count == 30), "{numbers:?}");
    assert!(by_queue.iter().all(|count| *count > 0), "{by_queue:?}");
    Ok(())
}

/// The queues by which a flow's packets come, each after an answer on another queue.
fn queues_after_answers(namespace: &Namespace, ports: &mut [TunPort]) -> Vec<usize> {
    let flow = &flows(namespace, 1)[0];
    let mut seen = Vec::new();
    for number in 0..6 {
        flow.send(&content(0, number)).unwrap();
        let found = ports.iter_mut().enumerate().find_map(|(queue, port)| {
            let packets = received(port);
            packets.into_iter().find(|packet| read(packet) == Some((0, number))).map(|packet| (queue, packet))
        });
        let (queue, packet) = found.expect("the packet comes by some queue");
        seen.push(queue);
        let other = (queue + 1) % ports.len();
        send(&mut ports[other], &answer(&packet));
        let mut bytes = [0; 100];
        assert_eq!(flow.recv(&mut bytes).unwrap(), 8, "the answer");
    }
    seen
}

fn keeps_its_queue(inside: &mut Entered) -> TestResult {
    let mut host = Host::new(*inside, "sticky", 3);
    let seen = queues_after_answers(&host.namespace, &mut host.ports);
    assert!(seen.iter().all(|queue| *queue == seen[0]), "{seen:?}");
    Ok(())
}

/// Why there is a program at all.
/// Beside one queue and beside two.
fn writes_alone(inside: &mut Entered) -> TestResult {
    for (queues, name) in [(1, "writer-1"), (2, "writer-2")] {
        let namespace = Namespace::new(*inside, name)?;
        let open = || match queues {
            1 => vec![TunPort::open(&TunConfig::new("tun0")).unwrap()],
            _ => TunQueues::open("tun0", queues).unwrap().1,
        };
        let mut ports = namespace.within(open)?;
        configure(&namespace, &ports[0], 1);
        let mut writer = ports[0].writer()?;
        let flows = flows(&namespace, 20);
        for number in 0..6 {
            // Those over IPv4.
            for (flow, socket) in flows.iter().enumerate().step_by(2) {
                socket.send(&content(flow, number))?;
                assert!(received(&mut writer).is_empty());
                let packets: Vec<_> = ports.iter_mut().flat_map(received).collect();
                let packet = packets.iter().find(|packet| read(packet) == Some((flow, number)));
                send(&mut writer, &answer(packet.expect("it comes by a queue that is read")));
                assert_eq!(socket.recv(&mut [0; 100])?, 8, "the answer");
            }
        }
        assert_eq!(writer.counters().rx_packets, 0);
    }
    Ok(())
}

fn left_to_itself(inside: &mut Entered) -> TestResult {
    let namespace = Namespace::new(*inside, "learning")?;
    let config = TunConfig { multi_queue: true, ..TunConfig::new("tun0") };
    let open = || (0..3).map(|_| TunPort::open(&config).unwrap()).collect::<Vec<_>>();
    let mut ports = namespace.within(open)?;
    configure(&namespace, &ports[0], 1);
    let seen = queues_after_answers(&namespace, &mut ports);
    assert!(seen.windows(2).all(|pair| pair[1] == (pair[0] + 1) % 3), "{seen:?}");
    Ok(())
}

/// An interface's queues, and their ports.
type Ends = (TunQueues, Vec<TunPort>);

/// Hands what one host's queues have to the other's queues, each to that of the same number; packets of TCP
/// come by the queue of their flow. Returns packets and calls.
fn hand_over(from: &mut Ends, to: &mut Ends, pool: &mut Pool) -> (usize, usize) {
    let (mut packets, mut calls) = (0, 0);
    for (queue, (port, other)) in (0..).zip(from.1.iter_mut().zip(&mut to.1)) {
        let mut batch = Batch::new();
        while port.rx(pool, &mut batch).unwrap() > 0 {
            let of_tcp = |packet: &&Buffer| {
                IpHeader::parse(packet.bytes()).is_ok_and(|header| header.protocol == protocol::TCP)
            };
            assert!(batch.iter().filter(of_tcp).all(|p| from.0.buckets().queue(p.bytes()) == queue));
            (packets, calls) = (packets + batch.len(), calls + 1);
            while !batch.is_empty() {
                other.tx(pool, &mut batch).unwrap();
            }
        }
    }
    (packets, calls)
}

/// Connections of TCP between two hosts, whose packets the kernel hands over 64 KiB at a time.
fn super_frames(inside: &mut Entered) -> TestResult {
    const CONNECTIONS: usize = 6;
    const BYTES: usize = 4_000_000;
    let hosts = [("super-left", 1), ("super-right", 2)];
    let [left, right] = hosts.map(|(name, number)| Host::with_number(*inside, name, 3, number));
    let listener = right.namespace.within(|| TcpListener::bind("10.9.0.2:5001").unwrap())?;
    let (here, mut left, mut right) =
        (left.namespace, (left.queues, left.ports), (right.queues, right.ports));
    let content: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
    let done = AtomicUsize::new(0);
    let (packets, calls) = std::thread::scope(|scope| {
        let (done, content, listener, here) = (&done, &content, &listener, &here);
        let send = || TcpStream::connect("10.9.0.2:5001").unwrap().write_all(content).unwrap();
        for _ in 0..CONNECTIONS {
            scope.spawn(move || here.within(send).unwrap());
            scope.spawn(move || {
                let mut received = Vec::new();
                listener.accept().unwrap().0.read_to_end(&mut received).unwrap();
                assert!(received == *content, "{} bytes came", received.len());
                done.fetch_add(1, Ordering::AcqRel);
            });
        }
        let mut pool = Pool::new(1024, 2048);
        let (mut packets, mut calls) = (0, 0);
        while done.load(Ordering::Acquire) < CONNECTIONS {
            let (more_packets, more_calls) = hand_over(&mut left, &mut right, &mut pool);
            hand_over(&mut right, &mut left, &mut pool);
            (packets, calls) = (packets + more_packets, calls + more_calls);
            std::thread::yield_now();
        }
        (packets, calls)
    });
    assert!(packets > 5 * calls, "no super-frames: {packets} packets in {calls} calls");
    Ok(())
}

/// What the workers and the sender of a test share.
struct Load {
    /// Datagrams that are sent and not yet received: never more than queues hold.
    under_way: AtomicUsize,
    done: AtomicBool,
    /// How often each datagram came.
    seen: Mutex<BTreeMap<(usize, usize), usize>>,
}

impl Load {
    /// Receives until the end, or until it was told to close and its queue is empty.
    fn serve(&self, port: &mut TunPort, close: &mpsc::Receiver<()>) {
        loop {
            let is_last = self.done.load(Ordering::Acquire) || close.try_recv().is_ok();
            for packet in received(port) {
                let Some(found) = read(&packet) else { continue };
                *self.seen.lock().unwrap().entry(found).or_insert(0) += 1;
                self.under_way.fetch_sub(1, Ordering::AcqRel);
            }
            if is_last {
                return;
            }
            std::thread::yield_now();
        }
    }
}

fn come_and_go(inside: &mut Entered) -> TestResult {
    const FLOWS: usize = 40;
    const CHANGES: usize = 40;
    let Host { namespace, mut queues, ports } = Host::new(*inside, "changing", 2);
    let flows = flows(&namespace, FLOWS);
    let load = Load { under_way: 0.into(), done: false.into(), seen: Mutex::default() };
    let (load, stop) = (&load, AtomicBool::new(false));
    let sent = std::thread::scope(|scope| {
        let work = |mut port: TunPort| {
            let (close, closed) = mpsc::channel();
            (close, scope.spawn(move || load.serve(&mut port, &closed)))
        };
        let mut workers: Vec<_> = ports.into_iter().map(work).collect();
        let sender = scope.spawn(|| {
            let mut sent = 0;
            while !stop.load(Ordering::Acquire) {
                for (flow, socket) in flows.iter().enumerate() {
                    while load.under_way.load(Ordering::Acquire) > 200 {
                        std::thread::yield_now();
                    }
                    load.under_way.fetch_add(1, Ordering::AcqRel);
                    socket.send(&content(flow, sent)).unwrap();
                }
                sent += 1;
            }
            sent
        });
        let mut random = fastrand::Rng::with_seed(17);
        for _ in 0..CHANGES {
            let before = load.seen.lock().unwrap().len();
            while load.seen.lock().unwrap().len() < before + 200 {
                std::thread::yield_now();
            }
            if workers.len() == 1 || workers.len() < 5 && random.bool() {
                workers.push(work(namespace.within(|| queues.add().unwrap()).unwrap()));
            } else {
                queues.retire().unwrap();
                let (close, thread) = workers.pop().unwrap();
                close.send(()).unwrap();
                thread.join().unwrap();
            }
            assert_eq!(queues.queues() as usize, workers.len());
        }
        stop.store(true, Ordering::Release);
        let sent = sender.join().unwrap();
        while load.under_way.load(Ordering::Acquire) > 0 {
            std::thread::yield_now();
        }
        load.done.store(true, Ordering::Release);
        sent
    });
    let seen = load.seen.lock().unwrap();
    assert_eq!(seen.len(), FLOWS * sent);
    assert!(seen.values().all(|count| *count == 1));
    println!("{} datagrams over {CHANGES} changes", seen.len());
    Ok(())
}

fn what_is_wrong(inside: &mut Entered) -> TestResult {
    let namespace = Namespace::new(*inside, "wrong")?;
    let open = |queues| TunQueues::open("tun0", queues);
    let within = |work: &(dyn Fn() -> String + Sync)| namespace.within(work).unwrap();
    let refused = |queues| open(queues).map(drop).unwrap_err().to_string();
    for queues in [0, 257] {
        assert!(within(&|| refused(queues)).contains("1 to 256 queues"));
    }
    namespace.run(&["ip", "tuntap", "add", "dev", "tun0", "mode", "tun", "vnet_hdr"])?;
    let said = within(&|| refused(2));
    assert!(said.contains("single queue") && said.contains("multi_queue"), "{said}");
    namespace.run(&["ip", "link", "delete", "tun0"])?;
    namespace.run(&["ip", "tuntap", "add", "dev", "tun0", "mode", "tun", "vnet_hdr", "multi_queue"])?;
    let said = within(&|| TunPort::open(&TunConfig::new("tun0")).map(drop).unwrap_err().to_string());
    assert!(said.contains("several queues"), "{said}");
    let (mut queues, ports) = namespace.within(|| open(2).unwrap())?;
    assert!(matches!(namespace.within(|| open(2))?, Err(OpenError::Busy { .. })));
    queues.retire()?;
    assert!(matches!(queues.retire(), Err(AddError::LastQueue { .. })));
    drop(ports);
    assert_eq!(namespace.within(|| open(3).unwrap().1.len())?, 3, "an interface that stays is taken again");
    Ok(())
}
