//! The port: packets above, frames below.

use crate::chains;
use crate::device::FrameDevice;
use crate::framing::{Framing, Template};
use crate::neighbours::{NeighbourEvent, Neighbours, Resolution};
use crate::outbox::Outbox;
use crate::resolver::{Disposition, Link, Resolver, Tables};
use crate::routes::{Route, Routes};
use crate::waiting::{Waiting, WaitingLimits};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;
use testudo_packet::{Batch, Buffer, DropReason, Pool, Port, PortCounters, PortError};
use testudo_wire::ethernet::{EthernetHeader, MacAddress, VlanTag, ether_type};
use testudo_wire::{ip, udp};

/// Batches of frames that are looked at in a call that finds no packet among them.
const BATCHES_WITHOUT_PACKETS: usize = 4;
/// Messages to senders that are kept for the next call.
const MOST_RETURNED: usize = 32;

/// The time since some moment; it never goes back.
pub type Clock = Box<dyn Fn() -> Duration + Send>;

/// What a port is made of, besides its device and its resolver.
#[derive(Debug, Clone)]
pub struct LinkConfig {
    /// The tags of its VLAN, outermost first: those of frames that are received, and of those that are sent.
    pub tags: [Option<VlanTag>; 2],
    /// Its first routes.
    pub routes: Vec<Route>,
    /// Entries of the table of neighbours.
    pub neighbours: usize,
    /// How many packets may wait for a neighbour.
    pub waiting: WaitingLimits,
    /// Whether it forwards between hosts and the other side, as a router: each packet loses a hop on its way
    /// in, and one on its way out.
    pub forwards: bool,
    /// Whether UDP over IPv6 whose checksum is 0 leaves with one (RFC 8200 8.1): sealed datagrams come so,
    /// and most devices send what they are given.
    pub completes_udp: bool,
}

impl Default for LinkConfig {
    /// No VLAN, no route, 1024 neighbours, no router, and checksums of UDP as they come.
    fn default() -> Self {
        Self {
            tags: [None; 2],
            routes: Vec::new(),
            neighbours: 1024,
            waiting: WaitingLimits::default(),
            forwards: false,
            completes_udp: false,
        }
    }
}

/// Where packets to a destination go, and until when that holds.
struct Path {
    destination: IpAddr,
    template: Template,
    until: Duration,
    /// Of neighbours and routes.
    generation: (u64, u64),
}

/// The paths of destinations, in as many slots as there may be: a destination that shares its slot with
/// another one is looked up more often.
struct Paths(Box<[Option<Path>]>);

const PATHS: usize = 256;

impl Paths {
    fn new() -> Self {
        Self(std::iter::repeat_with(|| None).take(PATHS).collect())
    }

    #[inline]
    fn slot(&mut self, destination: IpAddr) -> &mut Option<Path> {
        let (high, low) = match destination {
            IpAddr::V4(address) => (0, u64::from(u32::from(address))),
            IpAddr::V6(address) => {
                let [a, b, c, d, e, f, g, h, rest @ ..] = address.octets();
                (u64::from_ne_bytes([a, b, c, d, e, f, g, h]), u64::from_ne_bytes(rest))
            }
        };
        // Fibonacci hashing: the upper bits of the product depend on all bits of the number.
        let hash = (high.rotate_left(17) ^ low).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &mut self.0[usize::from(hash.to_be_bytes()[0]) % PATHS]
    }
}

enum Outcome {
    Frame(Template),
    Wait(IpAddr),
    Drop(DropReason),
}

/// A [`Port`] over a [`FrameDevice`].
pub struct LinkPort<D, R> {
    device: D,
    resolver: R,
    clock: Clock,
    tables: Tables,
    waiting: Waiting,
    outbox: Outbox,
    /// Messages to senders whose packets could not be sent: received from this port.
    returned: VecDeque<Buffer>,
    paths: Paths,
    forwards: bool,
    completes_udp: bool,
}

impl<D: FrameDevice, R: Resolver> LinkPort<D, R> {
    /// A port over `device`. It knows at once what the resolver has been told: its first packets may leave
    /// before it receives.
    #[must_use]
    pub fn new(device: D, mut resolver: R, config: &LinkConfig, clock: Clock) -> Self {
        let framing = Framing::new(device.mac(), config.tags);
        let neighbours = Neighbours::new(config.neighbours);
        let mut tables =
            Tables { neighbours, routes: Arc::new(Routes::new(&config.routes)), route_changes: 0 };
        resolver.poll(&mut tables, clock());
        Self {
            device,
            resolver,
            clock,
            tables,
            waiting: Waiting::new(config.waiting),
            outbox: Outbox::new(framing),
            returned: VecDeque::with_capacity(MOST_RETURNED),
            paths: Paths::new(),
            forwards: config.forwards,
            completes_udp: config.completes_udp,
        }
    }

    /// Its device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// What it knows of its link.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Packets that wait for a neighbour.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Does what time, and what was heard, calls for.
    fn settle(&mut self, pool: &mut Pool, now: Duration) {
        self.tables.neighbours.expire(now);
        while let Some(event) = self.tables.neighbours.next_event() {
            match event {
                NeighbourEvent::Solicit { address, mac } => {
                    let mut link = Link { tables: &mut self.tables, pool, now, outbox: &mut self.outbox };
                    self.resolver.solicit(address, mac, &mut link);
                }
                NeighbourEvent::Resolved { address, mac } => {
                    while let Some(packet) = self.waiting.pop(address) {
                        let template = self.template(mac, &packet);
                        self.outbox.packet(pool, packet, &template);
                    }
                }
                NeighbourEvent::Failed { address } => {
                    while let Some(packet) = self.waiting.pop(address) {
                        self.give_up(pool, packet, now);
                    }
                }
            }
        }
    }

    fn give_up(&mut self, pool: &mut Pool, packet: Buffer, now: Duration) {
        if self.returned.len() < MOST_RETURNED {
            let mut link = Link { tables: &mut self.tables, pool, now, outbox: &mut self.outbox };
            self.returned.extend(self.resolver.unreachable(&packet, &mut link));
        }
        pool.discard(packet, DropReason::NeighbourUnresolved);
    }

    fn template(&self, mac: MacAddress, packet: &Buffer) -> Template {
        let is_v6 = packet.bytes().first().is_some_and(|byte| byte >> 4 == 6);
        let kind = if is_v6 { ether_type::IPV6 } else { ether_type::IPV4 };
        self.outbox.framing().template(mac, kind)
    }

    /// What is to become of a packet that is to be sent. While routes and neighbours stay as they are, each
    /// destination is looked up once.
    #[inline]
    fn outcome(&mut self, packet: &Buffer, now: Duration) -> Outcome {
        let Some((_, destination)) = ip::addresses(packet.bytes()) else {
            return Outcome::Drop(DropReason::NotIp);
        };
        if packet.chain_bytes() > self.device.mtu() {
            return Outcome::Drop(DropReason::MessageTooLong);
        }
        let generation = (self.tables.neighbours.generation(), self.tables.route_changes);
        match self.paths.slot(destination) {
            Some(path)
                if path.destination == destination && path.generation == generation && now < path.until =>
            {
                Outcome::Frame(path.template)
            }
            _ => self.look_up(packet, destination, now),
        }
    }

    #[cold]
    fn look_up(&mut self, packet: &Buffer, destination: IpAddr, now: Duration) -> Outcome {
        if let Some(group) = MacAddress::of_group(destination) {
            return Outcome::Frame(self.template(group, packet));
        }
        let Some(next_hop) = self.tables.routes.next_hop(destination) else {
            return Outcome::Drop(DropReason::NoRoute);
        };
        match self.tables.neighbours.resolve(next_hop, now) {
            Resolution::Known { mac, until } => {
                let template = self.template(mac, packet);
                let generation = (self.tables.neighbours.generation(), self.tables.route_changes);
                *self.paths.slot(destination) = Some(Path { destination, template, until, generation });
                Outcome::Frame(template)
            }
            Resolution::Pending => Outcome::Wait(next_hop),
        }
    }

    fn wait(&mut self, pool: &mut Pool, next_hop: IpAddr, packet: Buffer) {
        if let Some(oldest) = self.waiting.push(next_hop, packet) {
            pool.discard(oldest, DropReason::NeighbourQueueFull);
        }
    }

    /// Frames the packets of `batch` that have a next hop; the others leave it.
    fn frame(&mut self, pool: &mut Pool, batch: &mut Batch, now: Duration) {
        let mut framed = 0;
        for at in 0..batch.len() {
            let mut outcome = self.outcome(&batch[at], now);
            if self.forwards && !matches!(outcome, Outcome::Drop(_)) && !ip::lose_hop(batch[at].bytes_mut()) {
                outcome = Outcome::Drop(DropReason::HopLimitExceeded);
            }
            let reason = match outcome {
                Outcome::Frame(template) => match self.outbox.framing().put(&template, &mut batch[at]) {
                    Ok(()) => {
                        batch.swap(framed, at);
                        framed += 1;
                        continue;
                    }
                    Err(reason) => reason,
                },
                Outcome::Wait(next_hop) => {
                    self.wait(pool, next_hop, std::mem::take(&mut batch[at]));
                    self.settle(pool, now);
                    continue;
                }
                Outcome::Drop(reason) => reason,
            };
            pool.discard(std::mem::take(&mut batch[at]), reason);
        }
        batch.truncate(framed);
    }

    /// Sends a packet of the port's own.
    fn send(&mut self, pool: &mut Pool, packet: Buffer, now: Duration) {
        match self.outcome(&packet, now) {
            Outcome::Frame(template) => self.outbox.packet(pool, packet, &template),
            Outcome::Wait(next_hop) => self.wait(pool, next_hop, packet),
            Outcome::Drop(reason) => pool.discard(packet, reason),
        }
    }

    /// Makes a frame the datagram in it, and says what is to become of that.
    fn receive(&mut self, pool: &mut Pool, buffer: &mut Buffer, now: Duration) -> Disposition {
        if buffer.is_chain() && !chains::gather_headers(buffer) {
            return Disposition::Drop(DropReason::FrameMalformed);
        }
        let Ok(header) = EthernetHeader::parse(buffer.bytes()) else {
            return Disposition::Drop(DropReason::FrameMalformed);
        };
        if !self.outbox.framing().is_ours(header.tags) {
            return Disposition::Drop(DropReason::OtherVlan);
        }
        if !matches!(header.ether_type, ether_type::ARP | ether_type::IPV4 | ether_type::IPV6) {
            return Disposition::Drop(DropReason::OtherEtherType);
        }
        if header.destination != self.outbox.framing().mac() && !header.destination.is_multicast() {
            return Disposition::Drop(DropReason::OtherMac);
        }
        // A header has at most 22 bytes.
        buffer.narrow(u32::try_from(header.bytes()).unwrap_or(0), u32::MAX);
        let mut link = Link { tables: &mut self.tables, pool, now, outbox: &mut self.outbox };
        if header.ether_type == ether_type::ARP {
            return Disposition::Drop(self.resolver.arp(&header, buffer.bytes(), &mut link));
        }
        match datagram_bytes(header.ether_type, buffer.bytes(), buffer.chain_bytes()) {
            Ok(length) if buffer.is_chain() => link.pool.trim_back(buffer, length),
            Ok(length) => buffer.truncate(length),
            Err(reason) => return Disposition::Drop(reason),
        }
        match self.resolver.packet(&header, buffer, &mut link) {
            Disposition::Deliver if self.forwards && !ip::lose_hop(buffer.bytes_mut()) => {
                Disposition::Drop(DropReason::HopLimitExceeded)
            }
            other => other,
        }
    }

    /// Leaves in `batch`, from `first` on, the datagrams that are for the gateway.
    fn strip(&mut self, pool: &mut Pool, batch: &mut Batch, first: usize, now: Duration) {
        let mut kept = first;
        for at in first..batch.len() {
            match self.receive(pool, &mut batch[at], now) {
                Disposition::Deliver => {
                    batch.swap(kept, at);
                    kept += 1;
                }
                Disposition::Drop(reason) => pool.discard(std::mem::take(&mut batch[at]), reason),
                Disposition::Answer => self.send(pool, std::mem::take(&mut batch[at]), now),
                Disposition::Refuse(reason, message) => {
                    pool.discard(std::mem::take(&mut batch[at]), reason);
                    self.send(pool, message, now);
                }
            }
        }
        batch.truncate(kept);
        self.settle(pool, now);
    }
}

/// Bytes of the datagram that begins with `front`, of a payload of `available` bytes: padding may follow.
#[inline]
fn datagram_bytes(kind: u16, front: &[u8], available: usize) -> Result<usize, DropReason> {
    let [first, _, v4_high, v4_low, v6_high, v6_low, ..] = *front else {
        return Err(DropReason::Truncated);
    };
    let (version, shortest, length) = if kind == ether_type::IPV6 {
        (6, ip::IPV6_HEADER_BYTES, ip::IPV6_HEADER_BYTES + usize::from(be(v6_high, v6_low)))
    } else {
        (4, ip::IPV4_HEADER_BYTES, usize::from(be(v4_high, v4_low)))
    };
    if first >> 4 != version {
        Err(DropReason::NotIp)
    } else if length < shortest {
        Err(DropReason::BadHeader)
    } else if length > available {
        Err(DropReason::Truncated)
    } else {
        Ok(length)
    }
}

fn be(high: u8, low: u8) -> u16 {
    u16::from_be_bytes([high, low])
}

impl<D: FrameDevice, R: Resolver> Port for LinkPort<D, R> {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let (now, first) = ((self.clock)(), batch.len());
        self.resolver.poll(&mut self.tables, now);
        self.settle(pool, now);
        let returned = self.returned.len().min(batch.remaining_capacity());
        batch.extend(self.returned.drain(..returned));
        for _ in 0..BATCHES_WITHOUT_PACKETS {
            let (before, received) = (batch.len(), self.device.rx(pool, batch));
            self.strip(pool, batch, before, now);
            if received? == 0 || batch.len() > before {
                break;
            }
        }
        self.outbox.flush(pool, &mut self.device)?;
        Ok(batch.len() - first)
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let (now, before) = ((self.clock)(), batch.len());
        // What waited is older than what comes now.
        self.outbox.flush(pool, &mut self.device)?;
        if !self.outbox.is_empty() {
            return Ok(0);
        }
        if self.completes_udp {
            batch.iter_mut().for_each(|packet| match packet.is_chain() {
                true => chains::complete_udp(packet),
                false => udp::complete_ipv6_checksum(packet.bytes_mut()),
            });
        }
        self.frame(pool, batch, now);
        let sent = if batch.is_empty() { Ok(0) } else { self.device.tx(pool, batch) };
        for packet in batch.iter_mut() {
            self.outbox.framing().take_off(packet);
            if self.forwards {
                ip::regain_hop(packet.bytes_mut());
            }
        }
        self.settle(pool, now);
        sent?;
        self.outbox.flush(pool, &mut self.device)?;
        Ok(before - batch.len())
    }

    fn readiness(&self) -> Vec<BorrowedFd<'_>> {
        let mut all = self.device.readiness();
        all.extend(self.resolver.readiness());
        all
    }

    fn seals_marked(&self) -> bool {
        self.device.seals_marked()
    }

    fn takes_chains(&self) -> bool {
        self.device.takes_chains()
    }

    fn joins(&self) -> bool {
        false
    }

    fn end(&mut self, pool: &mut Pool) {
        let unsent = self.outbox.drain().chain(self.waiting.drain()).chain(self.returned.drain(..));
        unsent.for_each(|packet| pool.discard(packet, DropReason::ShuttingDown));
        self.device.end(pool);
    }

    /// Frames, and their bytes less a header of the port's VLAN each.
    fn counters(&self) -> PortCounters {
        let mut counters = self.device.counters();
        let header = self.outbox.framing().header_bytes() as u64;
        counters.rx_bytes = counters.rx_bytes.saturating_sub(header * counters.rx_packets);
        counters.tx_bytes = counters.tx_bytes.saturating_sub(header * counters.tx_packets);
        counters
    }
}
