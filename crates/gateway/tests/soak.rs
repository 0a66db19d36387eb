//! A soak: two gateways whose NICs fail at everything exchange packets for a long time. Every packet comes
//! out once and in order, or is counted; no number comes twice; memory does not grow, and huge pages are
//! given back.
//!
//! `make soak` runs it for 10^8 packets; `TESTUDO_SOAK_PACKETS` asks for another number.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::expect_used,
    reason = "test data is made of small numbers, and a test says what must hold"
)]

#[path = "support/mod.rs"]
mod support;

#[path = "support/nic.rs"]
mod with_nic;

use fastrand::Rng;
use std::collections::VecDeque;
use std::time::Duration;
use support::gateway::{PoolSize, portable};
use support::packet::{number, numbered, tunnel_of};
use support::random::seed;
use support::{Gateway, LeaseTwin, Side, TunnelSpec};
use testudo_crypto::Suite;
use testudo_engine_inline::{Checks, Nic};
use testudo_ipsec::IpsecProtocol;
use testudo_port_twin82599::{Faults, Twin82599, Work};
use testudo_wire::protocol;

const TUNNELS: u8 = 5;
/// Identities of packets come again after so many: far more than are ever under way.
const IDS: u32 = 1 << 16;

/// One way of all tunnels: what was sent and has not come out.
struct Way {
    from_a: bool,
    next: [u32; TUNNELS as usize],
    expected: [VecDeque<u32>; TUNNELS as usize],
    /// The last number of each SA that was seen on the wire.
    last: [u32; TUNNELS as usize],
    delivered: u64,
    lost: u64,
}

impl Way {
    fn new(from_a: bool) -> Self {
        const NONE: [u32; TUNNELS as usize] = [0; TUNNELS as usize];
        Self { from_a, next: NONE, expected: Default::default(), last: NONE, delivered: 0, lost: 0 }
    }

    fn send(&mut self, random: &mut Rng, gateway: &Gateway) {
        let tunnel = random.u8(..TUNNELS);
        let id = self.next[usize::from(tunnel)];
        self.next[usize::from(tunnel)] = (id + 1) % IDS;
        self.expected[usize::from(tunnel)].push_back(id);
        gateway.protected.push(numbered(1, id, tunnel, self.from_a, 300).bytes());
    }

    /// A datagram is on the wire: its number is above all before it, so that no IV comes twice.
    fn watch(&mut self, specs: &[TunnelSpec], datagram: &[u8]) {
        let (protocol_at, header) = if datagram[0] >> 4 == 4 { (9, 20) } else { (6, 40) };
        let spi_at = header + if datagram[protocol_at] == protocol::AH { 4 } else { 0 };
        let word = |at| u32::from_be_bytes(*datagram[at..].first_chunk().expect("an SPI and a number"));
        let [spi, sequence] = [word(spi_at), word(spi_at + 4)];
        let side = if self.from_a { Side::A } else { Side::B };
        let tunnel = specs.iter().position(|spec| spec.spi_from(side) == spi).expect("an SA of ours");
        assert!(sequence > self.last[tunnel], "number {sequence} of {spi:#x} after {}", self.last[tunnel]);
        self.last[tunnel] = sequence;
    }

    /// A packet came out: the next one, or one after those that the network has lost.
    fn deliver(&mut self, packet: &[u8]) {
        let tunnel = tunnel_of(packet, self.from_a);
        let id = number(packet, self.from_a);
        let expected = &mut self.expected[usize::from(tunnel)];
        let place = expected.iter().position(|expected| *expected == id);
        let place = place.unwrap_or_else(|| panic!("packet {id} of tunnel {tunnel} came twice or late"));
        assert!(packet == numbered(1, id, tunnel, self.from_a, 300).bytes(), "packet {id} was changed");
        expected.drain(..=place);
        self.delivered += 1;
        self.lost += place as u64;
    }
}

fn specs() -> Vec<TunnelSpec> {
    let gmac: Suite = "aes128gmac".parse().expect("a suite");
    use IpsecProtocol::{Ah, Esp};
    // The last is none for the NIC.
    let of = [
        (Esp, Suite::AES128GCM16),
        (Esp, Suite::AES128GCM16),
        (Esp, gmac),
        (Ah, gmac),
        (Esp, Suite::AES256GCM16),
    ];
    let spec =
        |(number, (protocol, suite))| TunnelSpec { protocol, esn: false, ..TunnelSpec::new(number, suite) };
    (0..).zip(of).map(spec).collect()
}

fn gateway(side: Side, seed: u64) -> (Gateway, Nic) {
    let specs = specs();
    let policies = specs.iter().flat_map(|spec| spec.policies(side)).collect();
    // Two sessions each way for four SAs.
    let twin = Twin82599::new(Work::Real).with_sessions(2);
    let mut nic = None;
    let links = (Default::default(), Default::default());
    let mut gateway = Gateway::equipped(links.0, links.1, policies, PoolSize(1024, 1500), |link| {
        let (engines, port, of) = with_nic::fit(&twin, Checks::usual(seed), link, portable());
        nic = Some(of);
        (engines, port)
    });
    twin.fail(Faults::OFTEN, seed);
    let mut store = LeaseTwin::new(1 << 40);
    specs.iter().for_each(|spec| gateway.install(spec.install(side, &mut store, None)));
    (gateway, nic.expect("it was fitted"))
}

/// Bytes of memory that this process has.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("pages");
    pages * 4096
}

/// Free huge pages of the machine.
fn free_huge_pages() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").expect("Linux");
    let line = text.lines().find_map(|line| line.strip_prefix("HugePages_Free:"));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

fn soak(packets: u64) {
    let huge_before = free_huge_pages();
    let specs = specs();
    let ((a, nic_a), (b, nic_b)) = (gateway(Side::A, seed()), gateway(Side::B, seed() + 1));
    let (mut gateways, mut ways) = ([a, b], [Way::new(true), Way::new(false)]);
    let mut random = Rng::with_seed(seed());
    let (mut sent, mut dropped, mut resident) = (0, 0, None);
    while sent < packets {
        for (from, way) in ways.iter_mut().enumerate() {
            let burst = random.u64(1..=64);
            (0..burst).for_each(|_| way.send(&mut random, &gateways[from]));
            sent += burst;
            gateways[from].clock.advance(Duration::from_millis(5));
            gateways[from].settle();
            let to = 1 - from;
            for datagram in gateways[from].unprotected.take() {
                way.watch(&specs, &datagram);
                match random.u32(..100) {
                    0 => dropped += 1,
                    1 => {
                        gateways[to].unprotected.push(datagram.clone());
                        gateways[to].unprotected.push(datagram);
                    }
                    _ => gateways[to].unprotected.push(datagram),
                }
            }
            // Twice: the NIC may have kept the status of some.
            gateways[to].settle();
            gateways[to].settle();
            gateways[to].protected.take().iter().for_each(|packet| way.deliver(packet));
        }
        if sent >= packets / 10 && resident.is_none() {
            resident = Some(resident_bytes());
        }
    }
    let (before, after) = (resident.expect("a tenth was sent"), resident_bytes());
    gateways.iter_mut().for_each(Gateway::settle);
    let delivered: u64 = ways.iter().map(|way| way.delivered).sum();
    let missing: u64 =
        ways.iter().map(|way| way.lost + way.expected.iter().map(|e| e.len() as u64).sum::<u64>()).sum();
    assert_eq!((delivered + missing, missing), (sent, dropped), "each is accounted for");
    for gateway in &gateways {
        gateway.assert_settled();
    }
    println!(
        "{sent} packets, {dropped} lost by the network, {before} bytes resident after a tenth and {after} in the end"
    );
    println!("{:?}\n{:?}", nic_a.report(), nic_b.report());
    assert!(after <= before + before / 20 + (2 << 20), "memory grew from {before} to {after} bytes");
    drop(gateways);
    assert_eq!(free_huge_pages(), huge_before, "huge pages were not given back");
}

#[test]
fn two_gateways_with_nics_that_fail_soak_for_a_while() {
    soak(60_000);
}

#[test]
#[ignore = "takes minutes: make soak"]
fn two_gateways_with_nics_that_fail_soak_for_long() {
    let asked = std::env::var("TESTUDO_SOAK_PACKETS").ok();
    soak(asked.map_or(100_000_000, |text| text.parse().expect("TESTUDO_SOAK_PACKETS is a number")));
}
