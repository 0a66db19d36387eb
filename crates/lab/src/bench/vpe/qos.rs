//! What reordering costs: packets that replay windows refuse after urgent ones have overtaken them.
//!
//! ```text
//!   sealed in order ─► a queue that urgent packets pass first, or two paths ─► opened as they arrive
//! ```
//!
//! One packet in four is urgent (DSCP 46). The network loses nothing, and both encapsulations go through the
//! same one: it sees what the outer header says. ESP has one window for all; VPE has one for each class and
//! flow, which the network keeps in order. Time is counted in packets, and so everything comes out the same
//! in every run.

use std::collections::VecDeque;

use serde_json::json;
use testudo_ipsec::VpeClasses;
use testudo_packet::DropReason;
use testudo_port_memory::Packets;

use super::gateways::{self, Tunnel, through};
use super::report::{Outcome, Row, line, words};
use super::{Experiment, Setup};
use crate::bench::case::{Carrier, Case, Way};
use crate::bench::chart::{self, Extent, Panel};
use crate::bench::error::{BenchError, Wrong};
use crate::statistics::Spread;
use crate::table::{Table, grouped};

const PACKET_BYTES: usize = 200;
/// Packets of one run.
const PACKETS: usize = 65_536;
/// One in so many is urgent, with this DSCP.
const URGENT_ONE_IN: usize = 4;
const URGENT_DSCP: u8 = 46;
/// Where an IPv4 header has its DSCP.
const DSCP_AT: usize = 1;
/// Replay windows, in packets.
const WINDOWS: [u32; 3] = [64, 1024, 4096];
/// Packets that come at once to the scheduler. It sends half as fast as they come, and then nothing comes
/// until it has sent all.
const BURST: usize = 16_384;
/// How much later packets of the slow path arrive, in packets: at a million a second, 6 ms.
const SLOWER_BY: usize = 6_000;

/// What is between the gateways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Network {
    /// A bottleneck with strict priority.
    Priority,
    /// Urgent packets have a path of their own, which is faster.
    TwoPaths,
}

impl Network {
    const ALL: [Self; 2] = [Self::Priority, Self::TwoPaths];

    fn name(self) -> &'static str {
        match self {
            Self::Priority => "priority",
            Self::TwoPaths => "two_paths",
        }
    }

    fn words(self) -> String {
        match self {
            Self::Priority => format!(
                "urgent packets pass a queue first: {} come at once, twice as fast as they leave",
                grouped(BURST as u64)
            ),
            Self::TwoPaths => {
                format!("two paths: urgent packets come {} packets earlier", grouped(SLOWER_BY as u64))
            }
        }
    }

    /// The order in which packets arrive.
    fn deliver(self, sent: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        match self {
            Self::Priority => scheduled(sent),
            Self::TwoPaths => {
                // A stable sort: packets of one path stay in order.
                let arrival = |at: usize, packet: &[u8]| at + if is_urgent(packet) { 0 } else { SLOWER_BY };
                let mut timed: Vec<(usize, Vec<u8>)> =
                    sent.into_iter().enumerate().map(|(at, packet)| (arrival(at, &packet), packet)).collect();
                timed.sort_by_key(|(at, _)| *at);
                timed.into_iter().map(|(_, packet)| packet).collect()
            }
        }
    }
}

/// What the outer header says.
fn is_urgent(packet: &[u8]) -> bool {
    packet.get(DSCP_AT).is_some_and(|traffic_class| traffic_class >> 2 == URGENT_DSCP)
}

/// Strict priority at a link that sends one packet while two come.
fn scheduled(sent: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let mut arrived = Vec::with_capacity(sent.len());
    let (mut urgent, mut others) = (VecDeque::new(), VecDeque::new());
    let mut leave = |urgent: &mut VecDeque<Vec<u8>>, others: &mut VecDeque<Vec<u8>>| {
        let next = urgent.pop_front().or_else(|| others.pop_front());
        let is_one = next.is_some();
        arrived.extend(next);
        is_one
    };
    for (number, packet) in (1..).zip(sent) {
        if is_urgent(&packet) {
            urgent.push_back(packet)
        } else {
            others.push_back(packet)
        }
        if number % 2 == 0 {
            leave(&mut urgent, &mut others);
        }
        while number % BURST == 0 && leave(&mut urgent, &mut others) {}
    }
    while leave(&mut urgent, &mut others) {}
    arrived
}

/// What became of the packets of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counted {
    carrier: Carrier,
    network: Network,
    window: u32,
    sent: u64,
    delivered: u64,
    too_old: u64,
}

impl Counted {
    fn lost(&self) -> u64 {
        self.sent - self.delivered
    }

    fn percent(&self) -> f64 {
        self.lost() as f64 * 100.0 / self.sent as f64
    }
}

fn run(setup: &Setup<'_>, carrier: Carrier, network: Network, window: u32) -> Result<Counted, Wrong> {
    // With numbers of 64 bits, of which a packet of ESP has 32, one that is far too old looks far too new
    // instead: as many are lost, as not authentic.
    let case = Case { esn: carrier == Carrier::Vpe, ..setup.case(carrier, Way::Outbound, PACKET_BYTES) };
    let classes = VpeClasses::of_sets([&[URGENT_DSCP][..]]);
    let tunnel = Tunnel { replay_window: window, classes, ..Tunnel::of(case) };
    let engine = || setup.engines.available[setup.engine].open();
    let originals = gateways::packets(&case, |number, packet| {
        packet[DSCP_AT] = if number % URGENT_ONE_IN == 0 { URGENT_DSCP << 2 } else { 0 };
    })?;
    let (_, sealed) = through(&tunnel, Way::Outbound, engine()?, &originals, PACKETS)?;
    let sent = sealed.len();
    if sent != PACKETS {
        return Err(format!("{sent} of {PACKETS} packets were sealed"));
    }
    let arrived: Packets = network.deliver(sealed).into();
    let (worker, opened) = through(&tunnel, Way::Inbound, engine()?, &arrived, arrived.len())?;
    let too_old = worker.pool().drops().get(DropReason::ReplayTooOld);
    let counted =
        Counted { carrier, network, window, sent: sent as u64, delivered: opened.len() as u64, too_old };
    if counted.lost() != too_old || arrived.len() != sent {
        return Err(format!("packets are missing; drops: {}", gateways::drops(&worker)));
    }
    crate::bench::judge::compare(&opened, &originals)?;
    Ok(counted)
}

/// Losses of ESP and VPE over the size of their windows.
pub(super) fn qos(setup: &mut Setup<'_>) -> Result<Outcome, BenchError> {
    let mut counted = Vec::new();
    for network in Network::ALL {
        for carrier in [Carrier::Esp, Carrier::Vpe] {
            for window in WINDOWS {
                let case = format!("qos, {}, {}, window {window}", network.name(), carrier.name());
                setup
                    .progress
                    .stage(&case, super::experiments::expected(Experiment::Qos, setup.options) / 12);
                let one = run(setup, carrier, network, window);
                counted.push(one.map_err(|what| BenchError::Invalid { case, what })?);
            }
        }
    }
    Ok(Outcome {
        rows: counted.iter().map(row).collect(),
        text: text(&counted),
        picture: Some(draw(&counted)),
    })
}

fn row(counted: &Counted) -> Row {
    let mut row = Row::of_one(Experiment::Qos, counted.carrier, PACKET_BYTES);
    row.more = vec![
        ("network", json!(counted.network.name())),
        ("replay_window", json!(counted.window)),
        ("classes", json!(if counted.carrier == Carrier::Vpe { 2 } else { 1 })),
        ("sent_packets", json!(counted.sent)),
        ("lost_packets", json!(counted.lost())),
        ("lost_percent", json!(counted.percent())),
    ];
    row
}

fn text(counted: &[Counted]) -> String {
    let mut text = format!(
        "qos: packets lost to replay windows, of {} sent, one in {URGENT_ONE_IN} urgent; the network itself loses none\n",
        grouped(PACKETS as u64)
    );
    for network in Network::ALL {
        let mut table = Table::new(&["encapsulation", "replay window", "lost packets", "lost"]);
        for one in counted.iter().filter(|one| one.network == network) {
            table.row(vec![
                words(one.carrier).to_owned(),
                grouped(one.window.into()),
                grouped(one.lost()),
                format!("{:.1} %", one.percent()),
            ]);
        }
        text += &format!("  {}\n{table}", network.words());
    }
    text + "VPE has a window for urgent packets and one for others, each of this size, for each of 8 groups of flows.\n"
}

fn draw(counted: &[Counted]) -> String {
    let panel = |network: Network| {
        let of = |(colour, carrier): (usize, Carrier)| {
            let own = counted.iter().filter(|one| (one.carrier, one.network) == (carrier, network));
            let points = own.map(|one| (one.window as usize, Spread::of([one.percent()])));
            line(words(carrier).to_owned(), colour, 0, points.collect())
        };
        Panel {
            title: format!("Testudo: loss to replay windows, {}", network.name().replace('_', " ")),
            subtitle: network.words(),
            across: "replay window (packets)".to_owned(),
            up: "packets lost (%)".to_owned(),
            extent: Extent::Zero,
            lines: [Carrier::Esp, Carrier::Vpe].into_iter().enumerate().map(of).collect(),
        }
    };
    chart::svg(&Network::ALL.map(panel))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet that says its number, and whether it is urgent.
    fn packet(number: usize) -> Vec<u8> {
        let class = if number.is_multiple_of(URGENT_ONE_IN) { URGENT_DSCP << 2 } else { 0 };
        [&[0x45, class][..], &u32::try_from(number).unwrap().to_be_bytes()].concat()
    }

    fn number(packet: &[u8]) -> usize {
        u32::from_be_bytes(packet[2..6].try_into().unwrap()) as usize
    }

    #[test]
    fn networks_lose_nothing_and_keep_the_order_of_each_class() {
        let sent: Vec<Vec<u8>> = (0..3 * BURST + 1001).map(packet).collect();
        for network in Network::ALL {
            let arrived = network.deliver(sent.clone());
            assert_eq!(arrived.len(), sent.len());
            for urgent in [true, false] {
                let of_class: Vec<usize> =
                    arrived.iter().filter(|one| is_urgent(one) == urgent).map(|one| number(one)).collect();
                assert!(of_class.is_sorted(), "{network:?}");
            }
            let (mut highest, mut furthest) = (0, 0);
            for number in arrived.iter().map(|one| number(one)) {
                highest = highest.max(number);
                furthest = furthest.max(highest - number);
            }
            assert!(furthest > WINDOWS[2] as usize, "{network:?} reorders by {furthest} at most");
        }
    }
}
