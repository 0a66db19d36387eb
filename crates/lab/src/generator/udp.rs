//! The generator over sockets: through whatever network lies between two hosts, such as namespaces joined by
//! veth.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use testudo_port_socket::dropped;

use super::memory::Timer;
use super::payload::Payloads;
use super::sizes::Sizes;
use super::stamp::{STAMP_BYTES, Stamp};
use super::{Arrivals, Generator};
use crate::error::{LabError, io as io_error};
use crate::harness::{Ceiling, Device, DeviceError, Load, Trial};
use crate::namespaces::Namespace;

/// Flows at most: each is a socket, of which a process has a bounded number.
pub(crate) const MOST_FLOWS: u32 = 16_384;
/// Files that a process has besides.
const OTHER_FILES: u64 = 256;
/// How long the receiving thread waits before it looks whether to stop.
const POLL: Duration = Duration::from_millis(10);
/// Packets that come later than this after the last one sent are lost (RFC 2544 section 23 says two seconds).
const RESIDUAL: Duration = Duration::from_secs(2);
/// The rate that a path is flooded with: sockets send no faster.
const MOST_PACKETS_PER_SECOND: f64 = 500_000.0;
/// How long a path is flooded to know what rates make sense, and the maximum rate as a multiple of what it
/// carries then.
const PROBE: Duration = Duration::from_millis(50);
const BEYOND: f64 = 2.0;
const LARGEST_BYTES: usize = 65_535;
/// How often a packet is sent until it is taken for refused.
const ATTEMPTS: u32 = 3;

/// A path between two hosts, which carries UDP one way; it is a [`Device`]. Frames are as long as Ethernet
/// would have them; the kernel writes their headers.
///
/// The sink is not what loses packets: those that found its socket full have come through, and count as
/// received. How late they were nobody knows.
#[derive(Debug)]
pub struct UdpPath {
    senders: Vec<UdpSocket>,
    sink: UdpSocket,
    seed: u64,
    trials: u16,
    residual: Duration,
    maxima: Vec<(Sizes, Ceiling)>,
    counts: [u64; 2],
    /// Packets that were to be sent, and those that the system refused.
    refused: [u64; 2],
}

impl UdpPath {
    /// Opens `flows` sockets in `from`, at most 16,384, and one in `to`, whose address is `address`. If there
    /// are `sources`, each flow has an address that is drawn from a part of them, in turn: `from` takes them
    /// all as its own, and `to` needs a route back only where reverse paths are checked.
    ///
    /// # Errors
    /// A namespace refuses sockets or addresses.
    pub fn between(
        from: &Namespace,
        to: &Namespace,
        address: IpAddr,
        flows: u32,
        sources: Option<Sources>,
        seed: u64,
    ) -> Result<Self, LabError> {
        if let Some(Sources { network: (network, length), .. }) = sources {
            let prefix = format!("{network}/{length}");
            from.run(&["ip", "route", "add", "local", &prefix, "dev", "lo"])?;
        }
        let sink = to.within(|| receiver((address, 0).into()))??;
        let there = bound_to(&sink)?;
        let senders = from.within(|| senders(there, flows, sources, seed))??;
        Ok(Self::of(senders, sink, seed))
    }

    /// The same between two sockets of this host, through its loopback.
    ///
    /// # Errors
    /// A socket cannot be opened.
    pub fn loopback(flows: u32, seed: u64) -> Result<Self, LabError> {
        let sink = receiver((Ipv4Addr::LOCALHOST, 0).into())?;
        let senders =
            senders(bound_to(&sink)?, flows, Some(Sources::whole((Ipv4Addr::new(127, 0, 0, 0), 16))), seed)?;
        Ok(Self::of(senders, sink, seed))
    }

    fn of(senders: Vec<UdpSocket>, sink: UdpSocket, seed: u64) -> Self {
        let (maxima, counts, refused) = (Vec::new(), [0; 2], [0; 2]);
        Self { senders, sink, seed, trials: 0, residual: RESIDUAL, maxima, counts, refused }
    }

    /// The same, which waits so long for packets that are late, where RFC 2544 section 23 says two seconds.
    #[must_use]
    pub fn patient_for(self, residual: Duration) -> Self {
        Self { residual, ..self }
    }

    /// Flows: each is a socket.
    #[must_use]
    pub fn flows(&self) -> usize {
        self.senders.len()
    }

    /// Packets that came through so far, and those among them that found the sink's socket full.
    #[must_use]
    pub fn counts(&self) -> [u64; 2] {
        self.counts
    }

    /// Packets that were to be sent so far, and those among them that the generator's system refused: they
    /// were not offered.
    #[must_use]
    pub fn refused(&self) -> [u64; 2] {
        self.refused
    }
}

fn bound_to(socket: &UdpSocket) -> Result<SocketAddr, LabError> {
    socket.local_addr().map_err(io_error("read the port of a UDP socket"))
}

fn receiver(at: SocketAddr) -> Result<UdpSocket, LabError> {
    let socket = UdpSocket::bind(at).map_err(io_error(format!("bind to {at}")))?;
    socket.set_read_timeout(Some(POLL)).map_err(io_error("set a receive timeout"))?;
    // As much as the system allows: the sink must not be what loses packets.
    let _ = socket2::SockRef::from(&socket).set_recv_buffer_size(8 << 20);
    Ok(socket)
}

fn senders(
    there: SocketAddr,
    flows: u32,
    sources: Option<Sources>,
    seed: u64,
) -> Result<Vec<UdpSocket>, LabError> {
    allow_files(u64::from(flows) + OTHER_FILES)?;
    let mut draw = Rng::with_seed(seed);
    let any = if there.is_ipv6() { IpAddr::from([0_u16; 8]) } else { IpAddr::from([0_u8; 4]) };
    let open = |flow| {
        let source = sources.map_or(any, |sources| IpAddr::V4(address_of(sources.part(flow), &mut draw)));
        let socket = UdpSocket::bind((source, 0)).and_then(|socket| socket.connect(there).map(|()| socket));
        socket.map_err(io_error(format!("send from {source} to {there}")))
    };
    (0..flows.clamp(1, MOST_FLOWS)).map(open).collect()
}

/// Lets this process have so many files, as far as the system allows it.
fn allow_files(wanted: u64) -> Result<(), LabError> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit });
    raised.map_err(|errno| io_error(format!("open {wanted} files: fewer --flows need fewer"))(errno.into()))
}

/// A network that flows have their addresses from, in equal parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sources {
    /// The network, and the length of its prefix.
    pub network: (Ipv4Addr, u8),
    /// How many parts: a power of two, and no more than there are addresses.
    pub parts: u32,
}

impl Sources {
    /// In one part.
    #[must_use]
    pub const fn whole(network: (Ipv4Addr, u8)) -> Self {
        Self { network, parts: 1 }
    }

    /// The part with a number, from 0 on; after the last one they begin again.
    #[must_use]
    pub fn part(&self, number: u32) -> (Ipv4Addr, u8) {
        let ((network, length), parts) = (self.network, self.parts.max(1));
        let longer = (u32::from(length) + parts.ilog2()).min(32);
        let place = (number % parts).checked_shl(32 - longer).unwrap_or(0);
        (Ipv4Addr::from_bits(network.to_bits() | place), u8::try_from(longer).unwrap_or(32))
    }
}

/// A host of a network: neither its first address nor its last, where there are others.
fn address_of((network, length): (Ipv4Addr, u8), draw: &mut Rng) -> Ipv4Addr {
    let hosts = u32::MAX.checked_shr(length.into()).unwrap_or(0);
    let host = if hosts > 2 { draw.u32(1..hosts) } else { hosts.min(1) };
    Ipv4Addr::from_bits((network.to_bits() & !hosts) | host)
}

/// What the receiving thread tells the sending one.
#[derive(Default)]
struct Watch {
    received: AtomicU64,
    stop: AtomicBool,
}

/// What came of a trial, and how many of it were not what was sent.
fn receive(
    socket: &UdpSocket,
    (trial, payloads): (u16, &Payloads),
    timer: Timer,
    watch: &Watch,
) -> io::Result<(Arrivals, u64)> {
    let (mut arrivals, mut packet, mut changed) = (Arrivals::new(trial), vec![0; LARGEST_BYTES], 0);
    while !watch.stop.load(Ordering::Acquire) {
        match socket.recv(&mut packet) {
            Ok(length) => {
                let now_ns = timer.now_ns();
                if let Some(stamp) = Stamp::parse(&packet[..length]) {
                    let is_of_trial = stamp.trial == trial;
                    changed += u64::from(is_of_trial && !payloads.is_whole(&stamp, &packet[..length]));
                    arrivals.take(stamp, now_ns);
                }
                watch.received.store(arrivals.received(), Ordering::Release);
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(error) => return Err(error),
        }
    }
    Ok((arrivals, changed))
}

impl Device for UdpPath {
    /// Twice what the path carries when it is flooded, found once for each size.
    fn maximum_rate(&mut self, sizes: Sizes) -> Result<Ceiling, DeviceError> {
        if let Some((_, ceiling)) = self.maxima.iter().find(|(known, _)| *known == sizes) {
            return Ok(*ceiling);
        }
        let flooded = self.trial(sizes, Load::rate(MOST_PACKETS_PER_SECOND, PROBE))?;
        let ceiling = Ceiling::without_medium(MOST_PACKETS_PER_SECOND, BEYOND * flooded.received_rate());
        if flooded.received == 0 || ceiling.packets_per_second < 1.0 {
            let why = if flooded.offered > 0 { "" } else { ": the generator's system refuses to send any" };
            return Err(DeviceError(format!("no packet comes through the path{why}")));
        }
        self.maxima.push((sizes, ceiling));
        Ok(ceiling)
    }

    fn trial(&mut self, sizes: Sizes, load: Load) -> Result<Trial, DeviceError> {
        self.trials = self.trials.wrapping_add(1);
        let (watch, timer, trial) = (Watch::default(), Timer::start(), self.trials);
        let mut generator = load.generator(trial, timer.now_ns());
        let payloads = Payloads::of(sizes, self.seed);
        let failed = |error: io::Error| DeviceError(format!("cannot receive: {error}"));
        let before = dropped(&self.sink).map_err(failed)?;
        let arrivals = thread::scope(|scope| {
            let sink = scope.spawn(|| receive(&self.sink, (trial, &payloads), timer, &watch));
            let refused = send(&self.senders, &payloads, &mut generator, timer);
            let last = timer.now_ns();
            let all = generator.offered() - refused;
            let patience_ns = u64::try_from(self.residual.as_nanos()).unwrap_or(u64::MAX);
            while watch.received.load(Ordering::Acquire) < all
                && timer.now_ns() - last < patience_ns
                && !sink.is_finished()
            {
                thread::yield_now();
            }
            watch.stop.store(true, Ordering::Release);
            let arrivals = sink.join();
            let panicked = |_| Err(io::Error::other("the receiving thread has panicked"));
            arrivals.unwrap_or_else(panicked).map(|arrivals| (arrivals, refused))
        });
        let ((arrivals, changed), refused) = arrivals.map_err(failed)?;
        if changed > 0 {
            return Err(DeviceError(format!("{changed} packets came through changed")));
        }
        let trial = Trial::of(load, &generator, arrivals);
        self.refused = [self.refused[0] + trial.offered, self.refused[1] + refused];
        let trial = Trial { offered: trial.offered - refused, refused, ..trial };
        // Those of an earlier trial that come now are none of this one's; no more came than were offered.
        let unread = dropped(&self.sink).map_err(failed)?.wrapping_sub(before);
        let unread = u64::from(unread).min(trial.lost());
        let received = trial.received + unread;
        self.counts = [self.counts[0] + received, self.counts[1] + unread];
        Ok(Trial { received, ..trial })
    }
}

/// Sends all packets in time; how many the system refused, as where its queue is full. These never were on
/// the path: it is the generator that is too slow, or is not let through.
fn send(sockets: &[UdpSocket], payloads: &Payloads, generator: &mut Generator, timer: Timer) -> u64 {
    let (mut packet, mut refused) = (payloads.buffer(), 0);
    while !generator.is_done() {
        let sent = generator.poll(timer.now_ns(), |mut stamp| {
            // A burst is sent one by one, and each has its own time.
            stamp.sent_ns = timer.now_ns();
            let of_flow = usize::try_from(stamp.sequence % sockets.len() as u64).unwrap_or(0);
            packet[..STAMP_BYTES].copy_from_slice(&stamp.to_bytes());
            let (socket, packet) = (&sockets[of_flow], &packet[..payloads.length(stamp.sequence)]);
            // An error may be what ICMP says of an earlier packet, after which this one has not left.
            let is_sent = (0..ATTEMPTS).any(|_| socket.send(packet).is_ok());
            refused += u64::from(!is_sent);
        });
        if sent == 0 {
            thread::yield_now();
        }
    }
    refused
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Length, Limit};
    use std::collections::HashSet;

    #[test]
    fn packets_of_all_sizes_cross_sockets_and_are_counted() {
        let mut path = UdpPath::loopback(5, 3).unwrap();
        let sources: HashSet<_> = path.senders.iter().map(|one| one.local_addr().unwrap().ip()).collect();
        assert!(sources.len() > 1, "{sources:?}");
        for sizes in [Sizes::Bytes(64), Sizes::Random, Sizes::Bytes(1518)] {
            let load = Load { packets_per_second: 5_000.0, length: Length::Packets(100) };
            let trial = path.trial(sizes, load).unwrap();
            println!("seed {}, {trial:?}", path.seed);
            // The loopback loses nothing that fits the receiver's buffer.
            assert_eq!((trial.offered, trial.received, trial.duplicated), (100, 100, 0));
            assert!(trial.latency.quantile_us(0.5).unwrap() > 0.0);
        }
    }

    #[test]
    fn packets_that_the_sink_does_not_take_have_come_through() {
        let mut path = UdpPath::loopback(1, 5).unwrap();
        // Nobody reads: what the socket's buffer does not hold is dropped there, and counted.
        let before = dropped(&path.sink).unwrap();
        let packet = [0; 1400];
        let sent = (0..50_000).filter(|_| path.senders[0].send(&packet).is_ok()).count();
        let unread = dropped(&path.sink).unwrap() - before;
        println!("{unread} of {sent} were dropped");
        assert!(unread > 0 && (unread as usize) < sent);
        let list = std::fs::read_to_string("/proc/self/net/udp").unwrap();
        let port = format!("0100007F:{:04X}", path.sink.local_addr().unwrap().port());
        let line =
            list.lines().find(|line| line.split_whitespace().nth(1).is_some_and(|at| at.ends_with(&port)));
        // Sockets that other tests close meanwhile can hide one from the list.
        let listed = line.and_then(|line| line.split_whitespace().last());
        assert!(listed.is_none_or(|listed| listed == (before + unread).to_string()), "{line:?}");
        // A trial afterwards counts neither those nor what still lies in the buffer.
        let load = Load { packets_per_second: 5_000.0, length: Length::Packets(100) };
        let trial = path.trial(Sizes::Bytes(64), load).unwrap();
        assert_eq!((trial.offered, trial.received <= 100), (100, true), "{trial:?}");
    }

    /// They never were on the path, whose gateways have not lost them.
    #[test]
    fn packets_that_the_system_refuses_to_send_were_not_offered() {
        let sink = receiver((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let there = bound_to(&sink).unwrap();
        let unconnected = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let sends = unconnected();
        sends.connect(there).unwrap();
        // A socket that leads nowhere is refused each packet: every second one.
        let mut path = UdpPath::of(vec![sends, unconnected()], sink, 7);
        let load = Load { packets_per_second: 5_000.0, length: Length::Packets(100) };
        let trial = path.trial(Sizes::Bytes(64), load).unwrap();
        assert_eq!((trial.offered, trial.received, trial.lost()), (50, 50, 0), "{trial:?}");
        assert_eq!((path.refused(), path.counts()), ([100, 50], [50, 0]));
        let ceiling = Ceiling { packets_per_second: 1e6, limit: Limit::Flood };
        let in_time = Trial { sending: Duration::from_millis(20), ..trial };
        assert_eq!(ceiling.limits(&in_time), Some(Limit::Generator), "it is the bottleneck");
        // Of one in a million, too: not all were offered.
        let sending = Duration::from_millis(19);
        let nearly_all = Trial { offered: 100, received: 100, refused: 1, sending, ..in_time };
        assert_eq!(ceiling.limits(&nearly_all), Some(Limit::Generator));
        assert_eq!(ceiling.limits(&Trial { refused: 0, ..nearly_all }), None);

        drop(path.senders.remove(0));
        let error = path.maximum_rate(Sizes::Bytes(64)).unwrap_err().to_string();
        assert!(error.ends_with("the generator's system refuses to send any"), "{error}");
    }

    #[test]
    fn packets_that_come_through_changed_are_no_measurement() {
        let sink = receiver((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let there = bound_to(&sink).unwrap();
        let [between, sender] = [(); 2].map(|()| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        sender.connect(between.local_addr().unwrap()).unwrap();
        between.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut path = UdpPath::of(vec![sender], sink, 9);
        thread::scope(|scope| {
            // Who stands between cuts a byte off each packet.
            scope.spawn(|| {
                let mut packet = [0; 2048];
                for _ in 0..10 {
                    let length = between.recv(&mut packet).unwrap();
                    between.send_to(&packet[..length - 1], there).unwrap();
                }
            });
            let load = Load { packets_per_second: 5_000.0, length: Length::Packets(10) };
            let error = path.trial(Sizes::Bytes(512), load).unwrap_err().to_string();
            assert_eq!(error, "10 packets came through changed");
        });
    }

    /// The system tells a sender of an earlier packet's fate in place of sending the next one.
    #[test]
    fn what_icmp_says_of_a_packet_does_not_keep_the_next_from_being_sent() {
        let closed = bound_to(&receiver((Ipv4Addr::LOCALHOST, 0).into()).unwrap()).unwrap();
        let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        sender.connect(closed).unwrap();
        let sink = receiver((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let mut path = UdpPath::of(vec![sender], sink, 8).patient_for(Duration::ZERO);
        let load = Load { packets_per_second: 50_000.0, length: Length::Packets(100) };
        let trial = path.trial(Sizes::Bytes(64), load).unwrap();
        assert_eq!((trial.offered, path.refused()), (100, [100, 0]), "{trial:?}");
    }

    #[test]
    fn the_maximum_rate_is_beyond_what_a_path_carries_and_found_once() {
        let mut path = UdpPath::loopback(4, 6).unwrap().patient_for(Duration::from_millis(50));
        let ceiling = path.maximum_rate(Sizes::Bytes(64)).unwrap();
        let rate = ceiling.packets_per_second;
        assert!(rate > 1.0 && rate <= MOST_PACKETS_PER_SECOND, "{rate}");
        assert_eq!(path.maximum_rate(Sizes::Bytes(64)).unwrap(), ceiling);
        let [received, unread] = path.counts();
        assert!(received > 0 && unread <= received && path.flows() == 4);
    }

    #[test]
    fn more_flows_than_a_process_usually_has_files_are_sent() {
        let mut path = UdpPath::loopback(1_500, 8).unwrap();
        assert_eq!(path.flows(), 1_500);
        let load = Load { packets_per_second: 5_000.0, length: Length::Packets(1_500) };
        let trial = path.trial(Sizes::Bytes(64), load).unwrap();
        assert_eq!((trial.offered, trial.received), (1_500, 1_500), "each flow has sent one");
        let asked = allow_files(u64::MAX / 2).unwrap_err().to_string();
        assert!(asked.contains("fewer --flows need fewer"), "{asked}");
    }

    #[test]
    fn flows_have_addresses_of_the_parts_in_turn() {
        let sources = Sources { network: (Ipv4Addr::new(127, 1, 2, 128), 25), parts: 4 };
        let parts: Vec<_> = (0..5).map(|number| sources.part(number)).collect();
        let expected = [128, 160, 192, 224, 128].map(|last| (Ipv4Addr::new(127, 1, 2, last), 27));
        assert_eq!(parts, expected);
        assert_eq!(Sources::whole((Ipv4Addr::UNSPECIFIED, 0)).part(7), (Ipv4Addr::UNSPECIFIED, 0));
        let all = Sources { network: (Ipv4Addr::new(127, 0, 0, 0), 30), parts: 4 };
        assert_eq!(all.part(3), (Ipv4Addr::new(127, 0, 0, 3), 32));
        let sink = receiver((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let senders = senders(bound_to(&sink).unwrap(), 8, Some(sources), 9).unwrap();
        for (number, sender) in (0..).zip(&senders) {
            let IpAddr::V4(address) = sender.local_addr().unwrap().ip() else { panic!("IPv4 alone") };
            let (part, _) = sources.part(number);
            assert_eq!(address.to_bits() >> 5, part.to_bits() >> 5, "{address}");
        }
    }

    #[test]
    fn addresses_are_of_the_network_and_neither_first_nor_last() {
        let mut draw = Rng::with_seed(4);
        for _ in 0..1000 {
            let address = address_of((Ipv4Addr::new(10, 1, 2, 255), 30), &mut draw);
            assert!([253, 254].contains(&address.octets()[3]), "{address}");
            assert_eq!(address.octets()[..3], [10, 1, 2]);
        }
        assert_eq!(address_of((Ipv4Addr::new(10, 1, 2, 3), 32), &mut draw), Ipv4Addr::new(10, 1, 2, 3));
    }
}
