//! Several sockets for each endpoint, in private namespaces: which datagram comes to which, judged by the
//! model ([`Steering::queue_of_datagram`]), and what happens when queues come and go.
//!
//! ```text
//!   namespace left   eth0 10.8.0.1 ═══ veth ═══ 10.8.0.2 eth0   namespace right
//!   datagrams, byte by byte                     queue 0, queue 1, … : a SocketPort each
//! ```

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    reason = "a test panics on failure, and its data is made of small numbers"
)]

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::num::{NonZeroU16, NonZeroU32};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::namespaces::{self, Namespace, veth};
use testudo_packet::{Batch, Buffer, Pool, Port};
use testudo_port_socket::{
    Encapsulation, Endpoint, Membership, OpenError, SocketConfig, SocketPort, SocketQueues,
};
use testudo_wire::ip::{IpHeader, OuterHeader, Version};
use testudo_wire::protocol;
use testudo_wire::steering::Steering;
use testudo_wire::udp::{UdpHeader, complete_ipv6_checksum};
use testudo_wire::vpe::VPE_PROTOCOL;

const ADDRESSES: [[&str; 2]; 2] = [["10.8.0.1", "10.8.0.2"], ["fd08::1", "fd08::2"]];
const UDP: Encapsulation = Encapsulation::Udp { port: 4500 };
const BESIDE: Encapsulation = Encapsulation::UdpBeside { port: 4510 };
const VPE: Encapsulation = Encapsulation::RawVpe { number: VPE_PROTOCOL };
/// `IPPROTO_RAW`: whole datagrams.
const RAW: i32 = 255;
const STEERINGS: [Steering; 4] = [
    Steering::BySpi,
    Steering::BySequence { block: NonZeroU32::new(3).unwrap() },
    Steering::ByWindow { classes: NonZeroU16::new(3).unwrap() },
    Steering::ByUdpSource,
];

fn main() -> ExitCode {
    let fixture = || {
        let inside = namespaces::enter().map_err(|error| error.to_string())?;
        let sites = ["left", "right"].map(|name| Namespace::new(inside, name).unwrap());
        veth((&sites[0], "eth0"), (&sites[1], "eth0")).unwrap();
        for (index, site) in sites.iter().enumerate() {
            site.address("eth0", &format!("{}/24", ADDRESSES[0][index])).unwrap();
            site.address("eth0", &format!("{}/64", ADDRESSES[1][index])).unwrap();
        }
        Ok::<_, String>(Sites(sites))
    };
    let suite = Suite::new()
        .test("every_spi_comes_to_exactly_one_socket_of_each_kind", every_spi)
        .test("sequence_numbers_windows_and_source_ports_steer_as_the_model_says", every_steering)
        .test("options_and_extension_headers_do_not_mislead_the_filters", headers)
        .test("ike_and_keepalives_and_what_is_too_short_come_to_queue_0", to_queue_0)
        .test("a_message_of_several_datagrams_goes_where_its_first_one_does", messages_of_several)
        .test("socket_queues_come_and_go_under_load_and_no_datagram_is_lost", come_and_go)
        .test("a_group_is_joined_once_and_each_of_its_datagrams_has_one_queue", groups)
        .test("what_sends_alone_has_the_same_port_and_gets_no_datagram", sends_alone)
        .test("a_port_that_queues_share_is_taken_for_others", taken);
    suite.run(fixture)
}

struct Sites([Namespace; 2]);

impl Sites {
    fn open(
        &self,
        local: IpAddr,
        encapsulation: Encapsulation,
        queues: u32,
        steering: Steering,
    ) -> (SocketQueues, Vec<SocketPort>) {
        let mut config = SocketConfig::new(vec![Endpoint { local, encapsulation }]);
        if local.is_multicast() {
            let own = pairs()[usize::from(local.is_ipv6())][1];
            config.groups = vec![Membership { group: local, local: own }];
        }
        let open = || SocketQueues::open(&config, queues, |_| steering).unwrap();
        self.0[1].within(open).unwrap()
    }

    fn sender(&self, version: Version) -> Socket {
        let domain = if version == Version::V4 { Domain::IPV4 } else { Domain::IPV6 };
        let open = || Socket::new(domain, Type::RAW, Some(Protocol::from(RAW))).unwrap();
        let socket = self.0[0].within(open).unwrap();
        if version == Version::V6 {
            socket.set_header_included_v6(true).unwrap();
        }
        // What goes to groups leaves by the link.
        if version == Version::V4 {
            socket.set_multicast_if_v4(&ADDRESSES[0][0].parse().unwrap()).unwrap();
        } else {
            let index = || rustix::net::netdevice::name_to_index(&socket, "eth0").unwrap();
            socket.set_multicast_if_v6(self.0[0].within(index).unwrap()).unwrap();
        }
        socket
    }
}

fn pairs() -> [[IpAddr; 2]; 2] {
    ADDRESSES.map(|pair| pair.map(|text| text.parse().unwrap()))
}

fn datagram([source, destination]: [IpAddr; 2], protocol: u8, content: &[u8]) -> Vec<u8> {
    let header =
        OuterHeader { source, destination, protocol, traffic_class: 0, hop_limit: 64, dont_fragment: true };
    let mut bytes = vec![0; header.bytes()];
    header.write(&mut bytes, header.bytes() + content.len(), 0).unwrap();
    bytes.extend_from_slice(content);
    if protocol == protocol::UDP && source.is_ipv6() {
        complete_ipv6_checksum(&mut bytes);
    }
    bytes
}

fn udp(ports: (u16, u16), content: &[u8]) -> Vec<u8> {
    let header =
        UdpHeader { source_port: ports.0, destination_port: ports.1, total_bytes: 8 + content.len() };
    let mut bytes = vec![0; 8];
    header.write(&mut bytes).unwrap();
    bytes.extend_from_slice(content);
    bytes
}

/// A datagram of an endpoint, whose ESP (or AH, or VPE) begins with these bytes.
fn of(encapsulation: Encapsulation, pair: [IpAddr; 2], source_port: u16, content: &[u8]) -> Vec<u8> {
    match encapsulation {
        Encapsulation::RawEsp => datagram(pair, protocol::ESP, content),
        Encapsulation::RawAh => datagram(pair, protocol::AH, &[&[50, 4, 0, 0], content].concat()),
        Encapsulation::RawVpe { number } => datagram(pair, number, content),
        Encapsulation::Udp { port }
        | Encapsulation::UdpBeside { port }
        | Encapsulation::UdpFromMany { port } => {
            datagram(pair, protocol::UDP, &udp((source_port, port), content))
        }
    }
}

/// ESP's first bytes, and some more: the last eight make each one different.
fn esp(spi: u32, number: u32, mark: u64) -> Vec<u8> {
    [&spi.to_be_bytes()[..], &number.to_be_bytes(), &[7; 16], &mark.to_be_bytes()].concat()
}

fn mark(packet: &[u8]) -> u64 {
    u64::from_be_bytes(*packet.last_chunk().unwrap())
}

/// All datagrams that a port has now.
fn received(port: &mut SocketPort) -> Vec<Vec<u8>> {
    let mut pool = Pool::new(256, 2048);
    let mut packets = Vec::new();
    loop {
        let mut batch = Batch::new();
        if port.rx(&mut pool, &mut batch).unwrap() == 0 {
            let dropped: Vec<_> = pool.drops().iter().filter(|drop| drop.1 > 0).collect();
            assert!(dropped.is_empty(), "{dropped:?}");
            return packets;
        }
        for buffer in batch.drain(..) {
            packets.push(buffer.bytes().to_vec());
            pool.recycle(buffer);
        }
    }
}

/// As many datagrams as are to come.
fn wait_for(port: &mut SocketPort, count: usize) -> Vec<Vec<u8>> {
    let mut packets = received(port);
    while packets.len() < count {
        assert!(is_ready(std::slice::from_ref(port)), "{} of {count} datagrams came", packets.len());
        packets.extend(received(port));
    }
    packets
}

/// Whether one of the ports has something, now or soon.
fn is_ready(ports: &[SocketPort]) -> bool {
    let fds: Vec<_> = ports.iter().flat_map(Port::readiness).collect();
    let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    poll(&mut fds, Some(&Timespec { tv_sec: 5, tv_nsec: 0 })).unwrap() > 0
}

/// Sends datagrams, each of which differs in its [`mark`], and compares the queue of each with the model.
/// veth delivers within sendto(2), but for what softirqs put off: so it is waited for as many as were sent,
/// and then looked whether there are more.
fn assert_steered(sender: &Socket, ports: &mut [SocketPort], steering: Steering, datagrams: &[Vec<u8>]) {
    let mut expected = BTreeMap::new();
    let mut seen: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    for (index, datagram) in datagrams.iter().enumerate() {
        let queue = steering.queue_of_datagram(datagram, ports.len() as u32, &[VPE_PROTOCOL]);
        expected.insert(mark(datagram), queue);
        let destination = IpHeader::parse(datagram).unwrap().destination;
        sender.send_to(datagram, &SocketAddr::new(destination, 0).into()).unwrap();
        while seen.len() <= index {
            assert!(is_ready(ports), "{steering:?}, {} queues: nobody got {datagram:02x?}", ports.len());
            for (queue, port) in (0..).zip(ports.iter_mut()) {
                received(port).iter().for_each(|packet| seen.entry(mark(packet)).or_default().push(queue));
            }
        }
    }
    let last: usize = ports.iter_mut().map(|port| received(port).len()).sum();
    assert_eq!(last, 0, "a datagram came twice");
    for (mark, queue) in expected {
        assert_eq!(seen[&mark], [queue], "{steering:?}, {} queues, datagram {mark}", ports.len());
    }
}

/// The daemon's socket of a port that raw sockets are beside.
fn daemon(sites: &Sites, local: IpAddr) -> UdpSocket {
    sites.0[1].within(|| UdpSocket::bind((local, 4510)).unwrap()).unwrap()
}

fn every_spi(sites: &mut Sites) -> TestResult {
    for pair in pairs() {
        let sender = sites.sender(Version::of(pair[0]));
        let _daemon = daemon(sites, pair[1]);
        for encapsulation in [Encapsulation::RawEsp, Encapsulation::RawAh, UDP, BESIDE] {
            for queues in 1..=5 {
                let (_set, mut ports) = sites.open(pair[1], encapsulation, queues, Steering::BySpi);
                let datagrams: Vec<_> = (0..40_u32)
                    .map(|n| {
                        let spi = if n < 20 { 256 + n } else { u32::MAX - n };
                        of(encapsulation, pair, 4500, &esp(spi, n, n.into()))
                    })
                    .collect();
                assert_steered(&sender, &mut ports, Steering::BySpi, &datagrams);
            }
        }
    }
    Ok(())
}

fn every_steering(sites: &mut Sites) -> TestResult {
    let mut random = fastrand::Rng::with_seed(18);
    for pair in pairs() {
        let sender = sites.sender(Version::of(pair[0]));
        let _daemon = daemon(sites, pair[1]);
        for encapsulation in [Encapsulation::RawEsp, Encapsulation::RawAh, VPE, UDP, BESIDE] {
            for (steering, queues) in STEERINGS.into_iter().flat_map(|s| [(s, 2), (s, 3), (s, 7)]) {
                let (_set, mut ports) = sites.open(pair[1], encapsulation, queues, steering);
                let datagrams: Vec<_> = (0..60_u64)
                    .map(|n| {
                        let (spi, number) = (random.u32(1..), random.u32(..));
                        // One SA, then the windows of a sender before and after they are turned.
                        let (spi, number) = match n as u32 {
                            0..20 => (0x1122_0100, n as u32),
                            20..40 => (u32::from_be_bytes([1, 0, n as u8 * 5 - 100, 0]), number),
                            _ => (spi, number),
                        };
                        of(encapsulation, pair, random.u16(1..), &esp(spi, number, n))
                    })
                    .collect();
                assert_steered(&sender, &mut ports, steering, &datagrams);
            }
        }
    }
    Ok(())
}

fn headers(sites: &mut Sites) -> TestResult {
    for pair in pairs() {
        let sender = sites.sender(Version::of(pair[0]));
        let _daemon = daemon(sites, pair[1]);
        for encapsulation in [Encapsulation::RawEsp, Encapsulation::RawAh, UDP, BESIDE] {
            for steering in STEERINGS {
                let (_set, mut ports) = sites.open(pair[1], encapsulation, 5, steering);
                let datagrams: Vec<_> = (0..15_u16)
                    .map(|n| {
                        let content = esp(0x3300_0100 + u32::from(n) * 3, n.into(), n.into());
                        with_more_headers(of(encapsulation, pair, 4500 + n * 7, &content))
                    })
                    .collect();
                assert_steered(&sender, &mut ports, steering, &datagrams);
            }
        }
    }
    Ok(())
}

/// RFC 791 3.1, RFC 8200 4: four bytes of options, or headers of eight and sixteen bytes.
fn with_more_headers(mut datagram: Vec<u8>) -> Vec<u8> {
    if datagram[0] >> 4 == 4 {
        datagram.splice(20..20, [1, 1, 1, 0]);
        datagram[0] = 0x46;
        let bytes = datagram.len() as u16;
        datagram[2..4].copy_from_slice(&bytes.to_be_bytes());
        datagram[10..12].fill(0);
        let sum: u32 =
            datagram[..24].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
        let folded = (sum & 0xFFFF) + (sum >> 16);
        datagram[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    } else {
        let last = datagram[6];
        let mut headers = vec![protocol::DESTINATION_OPTIONS, 0, 1, 4, 0, 0, 0, 0];
        // An option that is skipped where it is unknown: the kernel takes no longer padding than 7 bytes.
        headers.extend([last, 1, 0x1E, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        datagram[6] = protocol::HOP_BY_HOP;
        let bytes = (datagram.len() - 40 + headers.len()) as u16;
        datagram[4..6].copy_from_slice(&bytes.to_be_bytes());
        datagram.splice(40..40, headers);
    }
    datagram
}

/// Also what the kernel delivers and no protocol allows: a datagram that ends within its SPI.
fn to_queue_0(sites: &mut Sites) -> TestResult {
    for pair in pairs() {
        for steering in STEERINGS {
            let (_set, mut ports) = sites.open(pair[1], UDP, 4, steering);
            let sender = sites.0[0].within(|| UdpSocket::bind((pair[0], 4503)).unwrap())?;
            let contents: [&[u8]; 4] = [&[0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8], &[0xFF], &[1, 2], &[]];
            for content in contents {
                sender.send_to(content, (pair[1], 4500))?;
                assert!(wait_for(&mut ports[0], 1)[0].ends_with(content));
            }
            assert!(ports[1..].iter_mut().all(|port| received(port).is_empty()));
        }
        let (_set, mut ports) = sites.open(pair[1], Encapsulation::RawEsp, 4, Steering::BySpi);
        let sender = sites.sender(Version::of(pair[0]));
        for content in [&[1, 2, 3][..], &[9], &[1, 2, 3, 5, 6, 7, 8]] {
            let short = datagram(pair, protocol::ESP, content);
            sender.send_to(&short, &SocketAddr::new(pair[1], 0).into())?;
            let expected = Steering::BySpi.queue_of_datagram(&short, 4, &[VPE_PROTOCOL]) as usize;
            assert!(wait_for(&mut ports[expected], 1)[0].ends_with(content));
            assert!(ports.iter_mut().all(|port| received(port).is_empty()), "{content:?}");
        }
    }
    Ok(())
}

/// Of one sender, in a message of several datagrams: as a gateway sends them.
fn messages_of_several(sites: &mut Sites) -> TestResult {
    let pair = pairs()[0];
    let (_set, mut ports) = sites.open(pair[1], UDP, 3, Steering::BySpi);
    let config = SocketConfig::new(vec![Endpoint { local: pair[0], encapsulation: UDP }]);
    let mut sender = sites.0[0].within(|| SocketPort::open(&config).unwrap())?;
    for first in 256..259_u32 {
        let datagrams = (0..10).map(|n| of(UDP, pair, 4500, &esp(first + n, n, n.into())));
        let mut batch: Batch = datagrams.map(|packet| Buffer::copied(&packet, 0, 0)).collect();
        assert_eq!(sender.tx(&mut Pool::new(64, 2048), &mut batch)?, 10);
        assert_eq!(sender.endpoints_without_segmentation().count(), 0, "they leave as one message");
        let queue = (first % 3) as usize;
        let came = wait_for(&mut ports[queue], 10);
        assert_eq!(came.iter().map(|packet| mark(packet)).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
    }
    assert!(ports.iter_mut().all(|port| received(port).is_empty()));
    Ok(())
}

struct Load {
    done: AtomicBool,
    under_way: AtomicUsize,
    seen: Mutex<BTreeMap<u64, usize>>,
}

impl Load {
    /// Receives until the end, or until it was told to close and its sockets are empty.
    fn serve(&self, port: &mut SocketPort, close: &mpsc::Receiver<()>) {
        loop {
            let is_last = self.done.load(Ordering::Acquire) || close.try_recv().is_ok();
            for packet in received(port) {
                let mut seen = self.seen.lock().unwrap();
                let count = seen.entry(mark(&packet)).or_insert(0);
                *count += 1;
                if *count == 1 {
                    self.under_way.fetch_sub(1, Ordering::AcqRel);
                }
            }
            if is_last {
                return;
            }
            std::thread::yield_now();
        }
    }
}

fn come_and_go(sites: &mut Sites) -> TestResult {
    for (encapsulation, pair) in
        [(Encapsulation::RawEsp, pairs()[0]), (UDP, pairs()[1]), (BESIDE, pairs()[0])]
    {
        let _daemon = daemon(sites, pair[1]);
        let twice = changes_under_load(sites, encapsulation, pair)?;
        assert!(twice == 0 || encapsulation != UDP, "a datagram of UDP has one socket at any time");
    }
    Ok(())
}

const GROUPS: [&str; 2] = ["239.1.2.3", "ff05::1:23"];

/// How often the kernel has a group joined on the link, by its own word.
fn users(host: &Namespace, group: IpAddr) -> Option<u32> {
    let (file, name, after) = match group {
        // A line of its own, with the address in the byte order of the machine.
        IpAddr::V4(v4) => ("igmp", format!("{:08X}", u32::from_ne_bytes(v4.octets())), 1),
        // `index interface group users …`
        IpAddr::V6(v6) => ("igmp6", format!("{:032x}", v6.to_bits()), 1),
    };
    let path = format!("/proc/thread-self/net/{file}");
    let listed = host.within(|| std::fs::read_to_string(path).unwrap()).unwrap();
    let words: Vec<_> = listed.split_ascii_whitespace().collect();
    let at = words.iter().position(|word| *word == name)?;
    words[at + after].parse().ok()
}

/// The kernel gives each datagram to every socket of a group: filters leave it to one. One socket joins for
/// all, and the group is left with the last one.
fn groups(sites: &mut Sites) -> TestResult {
    let mut random = fastrand::Rng::with_seed(23);
    for (pair, group) in pairs().into_iter().zip(GROUPS) {
        let group: IpAddr = group.parse()?;
        let (sender, pair) = (sites.sender(Version::of(group)), [pair[0], group]);
        for (encapsulation, queues) in [VPE, UDP].into_iter().flat_map(|e| [(e, 1), (e, 2), (e, 5)]) {
            for steering in STEERINGS {
                let (set, mut ports) = sites.open(group, encapsulation, queues, steering);
                assert_eq!(users(&sites.0[1], group), Some(1), "{group}: joined once, by {queues} sockets");
                let mut datagrams: Vec<_> = (0..60_u64)
                    .map(|n| {
                        let (spi, number) = (random.u32(1..), random.u32(..));
                        let (spi, number) = if n < 20 { (0x0100_0000, n as u32) } else { (spi, number) };
                        of(encapsulation, pair, random.u16(1..), &esp(spi, number, n))
                    })
                    .collect();
                // Four zero bytes: to queue 0, whatever the port it comes from.
                let zeros = esp(0, 0, 60);
                datagrams.extend((encapsulation == UDP).then(|| of(encapsulation, pair, 77, &zeros)));
                assert_steered(&sender, &mut ports, steering, &datagrams);
                drop((set, ports));
                assert_eq!(users(&sites.0[1], group), None, "{group}: nobody is in it");
            }
        }
        for encapsulation in [VPE, UDP] {
            changes_under_load(sites, encapsulation, pair)?;
        }
    }
    Ok(())
}

/// Returns how many datagrams came twice.
fn changes_under_load(
    sites: &Sites,
    encapsulation: Encapsulation,
    pair: [IpAddr; 2],
) -> Result<usize, Box<dyn std::error::Error>> {
    const CHANGES: usize = 12;
    let (mut set, ports) = sites.open(pair[1], encapsulation, 2, Steering::BySpi);
    let sender = sites.sender(Version::of(pair[0]));
    let load = Load { done: false.into(), under_way: 0.into(), seen: Mutex::default() };
    let (load, stop) = (&load, AtomicBool::new(false));
    let sent = std::thread::scope(|scope| {
        let work = |mut port: SocketPort| {
            let (close, closed) = mpsc::channel();
            (close, scope.spawn(move || load.serve(&mut port, &closed)))
        };
        let mut workers: Vec<_> = ports.into_iter().map(work).collect();
        let sending = scope.spawn(|| {
            let mut sent = 0_u64;
            while !stop.load(Ordering::Acquire) {
                while load.under_way.load(Ordering::Acquire) > 200 {
                    std::thread::yield_now();
                }
                load.under_way.fetch_add(1, Ordering::AcqRel);
                let datagram = of(encapsulation, pair, 4500, &esp(256 + sent as u32 % 60, 1, sent));
                sender.send_to(&datagram, &SocketAddr::new(pair[1], 0).into()).unwrap();
                sent += 1;
            }
            sent
        });
        let mut random = fastrand::Rng::with_seed(19);
        for _ in 0..CHANGES {
            let before = load.seen.lock().unwrap().len();
            while load.seen.lock().unwrap().len() < before + 200 {
                std::thread::yield_now();
            }
            if workers.len() == 1 || workers.len() < 5 && random.bool() {
                workers.push(work(sites.0[1].within(|| set.add().unwrap()).unwrap()));
            } else {
                set.retire().unwrap();
                let (close, thread) = workers.pop().unwrap();
                close.send(()).unwrap();
                thread.join().unwrap();
            }
            assert_eq!(set.queues() as usize, workers.len());
        }
        stop.store(true, Ordering::Release);
        let sent = sending.join().unwrap();
        while load.under_way.load(Ordering::Acquire) > 0 {
            std::thread::yield_now();
        }
        load.done.store(true, Ordering::Release);
        sent
    });
    let seen = load.seen.lock().unwrap();
    assert_eq!(seen.len() as u64, sent);
    let twice = seen.values().filter(|count| **count > 1).count();
    assert!(seen.values().all(|count| *count <= 2));
    println!("{encapsulation:?}: {sent} datagrams over {CHANGES} changes, {twice} of them twice");
    Ok(twice)
}

/// Senders beside one queue and beside two, of each kind of endpoint.
fn sends_alone(sites: &mut Sites) -> TestResult {
    for pair in pairs() {
        let raw = sites.sender(Version::of(pair[0]));
        let _daemon = daemon(sites, pair[1]);
        for encapsulation in [Encapsulation::RawEsp, Encapsulation::RawAh, UDP, BESIDE] {
            for queues in [1, 2] {
                let config = SocketConfig::new(vec![Endpoint { local: pair[1], encapsulation }]);
                let open = || SocketQueues::open_with_senders(&config, queues, 2, |_| Steering::BySpi);
                let (mut set, mut ports) = sites.0[1].within(|| open().unwrap())?;
                let mut senders = ports.split_off(queues as usize);
                assert_eq!((ports.len(), senders.len(), set.queues()), (queues as usize, 2, queues));
                let of_spi = |n: u32| of(encapsulation, pair, 4500, &esp(256 + n, n, n.into()));
                let datagrams: Vec<_> = (0..40).map(of_spi).collect();
                assert_steered(&raw, &mut ports, Steering::BySpi, &datagrams);
                assert!(senders.iter_mut().all(|port| received(port).is_empty()), "{encapsulation:?}");
                assert!(matches!(set.add(), Err(OpenError::Senders)));
                assert!(matches!(set.retire(), Err(OpenError::Senders)));
            }
        }
    }
    // What one sends comes from the port of all.
    let (near, far) = (pairs()[0][0], pairs()[0][1]);
    let config = SocketConfig::new(vec![Endpoint { local: far, encapsulation: UDP }]);
    let open = || SocketQueues::open_with_senders(&config, 2, 1, |_| Steering::BySpi).unwrap();
    let (_set, mut ports) = sites.0[1].within(open)?;
    let peer = sites.0[0].within(|| UdpSocket::bind((near, 4500)).unwrap())?;
    let (mut pool, mut batch) = (Pool::new(4, 2048), Batch::new());
    batch.push(Buffer::copied(&of(UDP, [far, near], 4500, &esp(256, 1, 1)), 0, 0));
    assert_eq!(ports[2].tx(&mut pool, &mut batch)?, 1);
    let mut bytes = [0; 100];
    assert_eq!(peer.recv_from(&mut bytes)?, (32, SocketAddr::new(far, 4500)));
    Ok(())
}

fn taken(sites: &mut Sites) -> TestResult {
    let local = pairs()[0][1];
    let (mut set, _ports) = sites.open(local, UDP, 3, Steering::BySpi);
    let config = SocketConfig::new(vec![Endpoint { local, encapsulation: UDP }]);
    let again = || SocketQueues::open(&config, 2, |_| Steering::BySpi).map(drop);
    assert!(matches!(sites.0[1].within(again)?, Err(OpenError::PortTaken(_))));
    let alone = || SocketPort::open(&config).map(drop);
    assert!(matches!(sites.0[1].within(alone)?, Err(OpenError::PortTaken(_))));
    for queues in [0, 257] {
        let refused = || SocketQueues::open(&config, queues, |_| Steering::BySpi).map(drop);
        assert!(matches!(sites.0[1].within(refused)?, Err(OpenError::Queues { .. })));
    }
    set.retire()?;
    set.retire()?;
    assert!(matches!(set.retire(), Err(OpenError::Queues { queues: 0 })));
    // The kernel chooses a port, and all have the same.
    let chosen = SocketConfig::new(vec![Endpoint { local, encapsulation: Encapsulation::Udp { port: 0 } }]);
    let open = || SocketQueues::open(&chosen, 3, |_| Steering::BySpi).unwrap();
    let (set, ports) = sites.0[1].within(open)?;
    let ends: Vec<_> = ports.iter().flat_map(SocketPort::endpoints).collect();
    assert!(ends.iter().all(|end| *end == set.endpoints()[0].0 && *end != chosen.endpoints[0]), "{ends:?}");
    Ok(())
}
