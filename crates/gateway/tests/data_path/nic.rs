//! A NIC that does cryptography as packets pass: which SAs it has and why not the others, and that nobody
//! notices which packets it does not do.

use crate::support::fragments::fragments;
use crate::support::gateway::{PoolSize, portable};
use crate::support::packet::{number, numbered};
use crate::support::{Gateway, LeaseTwin, PortHandle, Side, TunnelSpec};
use crate::with_nic::fit;
use std::collections::HashMap;
use std::time::Duration;
use testudo_crypto::{OffloadState, Suite};
use testudo_engine_inline::{Checks, Nic};
use testudo_gateway::{OffloadMode, PortPair, SaCounts, Worker};
use testudo_ipsec::{Action, Fragmentation, IpsecProtocol, Mode, Policy, Spd};
use testudo_packet::{Batch, DropReason, Mark, Pool, Port, PortCounters, PortError};
use testudo_port_twin82599::{Faults, Twin82599, Work};
use testudo_wire::ip::Version;

const SUITE: Suite = Suite::AES128GCM16;

/// A tunnel that the NIC can have.
fn spec(number: u8) -> TunnelSpec {
    TunnelSpec { esn: false, ..TunnelSpec::new(number, SUITE) }
}

fn gmac() -> Suite {
    "aes128gmac".parse().expect("a suite")
}

/// A port that marks what it receives as to be sealed under a session that is none.
struct Marking(Box<dyn Port>);

impl Port for Marking {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let received = self.0.rx(pool, batch)?;
        batch.iter_mut().for_each(|packet| packet.set_mark(Mark::seal_under(77)));
        Ok(received)
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        self.0.tx(pool, batch)
    }

    fn joins(&self) -> bool {
        false
    }

    fn counters(&self) -> PortCounters {
        self.0.counters()
    }
}

/// A gateway to whose NIC a packet came with the mark of a session that does not exist.
pub fn marked_by_nobody() -> Gateway {
    let (protected, unprotected) = (PortHandle::default(), PortHandle::default());
    let twin = Twin82599::new(Work::Real);
    let (engines, port, _) = fit(&twin, Checks::usual(1), unprotected.port("unprotected"), portable());
    let ports = PortPair { protected: Box::new(Marking(protected.port("protected"))), unprotected: port };
    let selector = spec(0).selectors(Side::A)[0];
    let policies = Spd::new(vec![Policy::new(selector, Action::Bypass)]).expect("one range");
    let worker = Worker::new(ports, Pool::new(64, 2048), engines, Box::new(policies));
    let mut gateway = Gateway { worker, protected, unprotected, clock: Default::default() };
    assert!(gateway.seal(numbered(9, 1, 0, true, 300).bytes()).is_empty(), "it left in clear");
    gateway
}

/// A with a NIC, and B, where the portable engine seals and opens.
struct Ends {
    a: Gateway,
    b: Gateway,
    twin: Twin82599,
    nic: Nic,
    /// Of A's SAs, by tunnel: towards B, and from B.
    counters: Vec<[SaCounts; 2]>,
    specs: Vec<TunnelSpec>,
    next: HashMap<(u8, bool), u32>,
}

impl Ends {
    fn new(specs: &[TunnelSpec], twin: Twin82599) -> Self {
        Self::checked(specs, twin, Checks::usual(1))
    }

    fn checked(specs: &[TunnelSpec], twin: Twin82599, checks: Checks) -> Self {
        let mut nic = None;
        let policies = specs.iter().flat_map(|spec| spec.policies(Side::A)).collect();
        let links = (Default::default(), Default::default());
        let mut a = Gateway::equipped(links.0, links.1, policies, PoolSize(2048, 2048), |link| {
            let (engines, port, of) = fit(&twin, checks, link, portable());
            nic = Some(of);
            (engines, port)
        });
        let mut store = LeaseTwin::new(1 << 40);
        let installed = specs.iter().map(|spec| a.install_seen(spec.install(Side::A, &mut store, None)));
        let counters = installed.map(|sas| [sas.outbound.counters, sas.inbound.counters]).collect();
        let b = Gateway::with_buffers(Side::B, specs, PoolSize(2048, 2048));
        let nic = nic.expect("it was fitted");
        Self { a, b, twin, nic, counters, specs: specs.to_vec(), next: HashMap::new() }
    }

    /// Sends so many packets through a tunnel in each direction. All must be delivered, in order.
    fn exchange(&mut self, tunnel: u8, packets: u32) {
        for from_a in [true, false] {
            let first = *self.next.entry((tunnel, from_a)).or_default();
            self.next.insert((tunnel, from_a), first + packets);
            let max = self.specs[usize::from(tunnel)].inner_mtu();
            let sent: Vec<_> =
                (first..first + packets).map(|id| numbered(9, id, tunnel, from_a, max).bytes()).collect();
            let (sender, receiver) =
                if from_a { (&mut self.a, &mut self.b) } else { (&mut self.b, &mut self.a) };
            sent.iter().for_each(|packet| sender.protected.push(packet.clone()));
            sender.settle();
            sender.unprotected.take().into_iter().for_each(|datagram| receiver.unprotected.push(datagram));
            receiver.settle();
            let delivered = receiver.protected.take();
            let ids = |packets: &[Vec<u8>]| packets.iter().map(|p| number(p, from_a)).collect::<Vec<_>>();
            assert_eq!(ids(&delivered), ids(&sent), "tunnel {tunnel}, from A: {from_a}");
            assert!(delivered == sent);
        }
    }

    /// Lets an eighth of a second pass, in which the gateway may move SAs.
    fn pass(&mut self) {
        self.a.clock.advance(Duration::from_millis(125));
        take_turns(&mut self.a, 200);
    }

    /// Gives these tunnels so many packets a pass, for ten passes.
    fn load(&mut self, tunnels: &[(u8, u32)]) {
        for _ in 0..10 {
            tunnels.iter().for_each(|&(tunnel, packets)| self.exchange(tunnel, packets));
            self.pass();
        }
    }

    fn states(&self, tunnel: usize) -> [OffloadState; 2] {
        self.counters[tunnel].each_ref().map(|counters| counters.offload())
    }

    fn in_nic(&self) -> Vec<usize> {
        (0..self.specs.len()).filter(|&tunnel| self.states(tunnel) == [OffloadState::InNic; 2]).collect()
    }
}

fn take_turns(gateway: &mut Gateway, turns: usize) {
    for _ in 0..turns {
        gateway.turn();
    }
}

#[test]
fn sas_with_packets_go_to_the_nic_and_those_without_do_not() {
    let mut ends = Ends::new(&[spec(0), spec(1)], Twin82599::new(Work::Real));
    ends.load(&[(0, 20)]);
    assert_eq!((ends.states(0), ends.states(1)), ([OffloadState::InNic; 2], [OffloadState::Cold; 2]));
    assert_eq!(ends.twin.sessions(), (1, 1));
    let counts = ends.nic.report().counts;
    assert!(counts.sealed >= 100 && counts.opened >= 100, "{counts:?}");
    assert_eq!((counts.unmarked, counts.doubtful, counts.headers), (0, 0, 0));
    ends.a.worker.set_offload_mode(OffloadMode::Always);
    ends.pass();
    ends.pass();
    assert_eq!(ends.in_nic(), [0, 1], "always: as many as there is room for");
    ends.a.assert_settled();
}

#[test]
fn every_reason_that_keeps_an_sa_out_of_the_nic_is_named() {
    use OffloadState as S;
    let cases = [
        (TunnelSpec { suite: Suite::AES256GCM16, ..spec(0) }, S::Suite),
        (TunnelSpec { suite: Suite::CHACHA20POLY1305, ..spec(1) }, S::Suite),
        (TunnelSpec { esn: true, ..spec(2) }, S::Esn),
        (TunnelSpec { udp: true, ..spec(3) }, S::InUdp),
        (TunnelSpec { protocol: IpsecProtocol::Ah, suite: Suite::NULL_SHA1, ..spec(4) }, S::Suite),
    ];
    let specs: Vec<_> = cases.iter().map(|(spec, _)| spec.clone()).collect();
    let mut ends = Ends::new(&specs, Twin82599::new(Work::Real));
    ends.load(&[(0, 20), (1, 20), (2, 20), (3, 20), (4, 20)]);
    for (tunnel, (_, state)) in cases.iter().enumerate() {
        assert_eq!(ends.states(tunnel), [*state; 2]);
    }
    assert_eq!(ends.nic.report().counts, Default::default(), "the NIC never met them");
}

#[test]
fn esp_that_ah_covers_stays_in_software_and_the_ah_may_go_to_the_nic() {
    let inner = TunnelSpec { covered_by: Some(1), ..spec(0) };
    let ah = TunnelSpec {
        covers: Some(0),
        protocol: IpsecProtocol::Ah,
        mode: Mode::Transport,
        suite: gmac(),
        ..spec(1)
    };
    let mut ends = Ends::new(&[inner, ah], Twin82599::new(Work::Real));
    ends.load(&[(0, 20)]);
    assert_eq!(ends.states(0), [OffloadState::Covered; 2]);
    assert_eq!(ends.states(1), [OffloadState::InNic; 2]);
    assert!(ends.nic.report().counts.opened >= 100);
}

/// Every protocol, mode and IP version that the device does; the other end is the portable engine, which
/// shares no code with the twin's way of finding packets.
#[test]
fn whatever_the_device_does_the_portable_engine_opens_and_the_reverse() {
    for outer in [Version::V4, Version::V6] {
        for mode in [Mode::Tunnel, Mode::Transport] {
            for (protocol, suite) in
                [(IpsecProtocol::Esp, SUITE), (IpsecProtocol::Esp, gmac()), (IpsecProtocol::Ah, gmac())]
            {
                let spec = TunnelSpec { outer, mode, protocol, suite, ..spec(0) };
                if mode == Mode::Transport {
                    // Its packets are those of two hosts: the numbers of others are in their addresses.
                    host_to_host(&spec);
                    continue;
                }
                let mut ends = Ends::checked(
                    &[spec],
                    Twin82599::new(Work::Real),
                    Checks { one_of: 1, ..Checks::usual(1) },
                );
                ends.load(&[(0, 30)]);
                let counts = ends.nic.report().counts;
                let done = (counts.sealed >= 150, counts.opened >= 150, counts.differences);
                assert_eq!(done, (true, true, 0), "{outer:?} {protocol:?} {suite}: {counts:?}");
                assert!(counts.spot_checks >= counts.opened, "both ways: {counts:?}");
            }
        }
    }
}

fn host_to_host(spec: &TunnelSpec) {
    let mut ends = Ends::checked(
        std::slice::from_ref(spec),
        Twin82599::new(Work::Real),
        Checks { one_of: 1, ..Checks::usual(1) },
    );
    let [a, b] = [Side::A, Side::B].map(|side| spec.address(side).to_string());
    let packet = |from: &str, to: &str, bytes| crate::support::Inner::udp(from, to, bytes).bytes();
    for round in 0..300 {
        let (there, back) = (packet(&a, &b, 60 + round), packet(&b, &a, 60 + round));
        let sealed = ends.a.seal(there.clone());
        assert_eq!(ends.b.open(sealed[0].clone()), [there]);
        let sealed = ends.b.seal(back.clone());
        assert_eq!(ends.a.open(sealed[0].clone()), [back]);
        if round % 20 == 0 {
            ends.pass();
        }
    }
    let counts = ends.nic.report().counts;
    let done = (counts.sealed >= 150, counts.opened >= 150, counts.differences, counts.changed_later);
    assert_eq!(done, (true, true, 0, 0), "{spec:?}: {counts:?}");
}

/// What the NIC does not find, software opens; and what is cut after it is sealed, software seals.
#[test]
fn fragments_and_options_of_an_sa_in_the_nic_are_done_by_software() {
    let cut = TunnelSpec { fragmentation: Fragmentation::After, ..spec(1) };
    let mut ends = Ends::new(&[spec(0), cut], Twin82599::new(Work::Real));
    ends.load(&[(0, 20), (1, 20)]);
    assert_eq!(ends.in_nic(), [0, 1]);
    let before = ends.nic.report().counts;
    // A router cuts a datagram on its way to A.
    let packet = numbered(9, 5000, 0, false, 1200).bytes();
    let sealed = ends.b.seal(packet.clone());
    for fragment in fragments(&sealed[0], 7, 256) {
        ends.a.unprotected.push(fragment);
    }
    ends.a.settle();
    assert_eq!(ends.a.protected.take(), [packet]);
    // One with an IPv4 option, and one that is not: no operation and end of list.
    let packet = numbered(9, 5001, 0, false, 1200).bytes();
    let sealed = ends.b.seal(packet.clone());
    assert_eq!(ends.a.open(with_option(&sealed[0])), [packet]);
    // A packet that is too long for the path is cut after it is sealed.
    let long = crate::support::Inner::udp("10.0.0.1", "172.17.0.1", 1500).bytes();
    let pieces = ends.a.seal(long.clone());
    assert!(pieces.len() > 1);
    pieces.into_iter().for_each(|piece| ends.b.unprotected.push(piece));
    ends.b.settle();
    assert_eq!(ends.b.protected.take(), [long]);
    let after = ends.nic.report().counts;
    assert!(after.unmarked > before.unmarked && after.changed_later > before.changed_later, "{after:?}");
    ends.a.assert_settled();
}

/// The same datagram with four bytes of options.
fn with_option(datagram: &[u8]) -> Vec<u8> {
    let mut with = [&datagram[..20], &[1, 1, 1, 0], &datagram[20..]].concat();
    with[0] = 0x46;
    let total = (with.len() as u16).to_be_bytes();
    with[2..4].copy_from_slice(&total);
    with[10..12].fill(0);
    let sum = testudo_wire::checksum::of(&with[..24]);
    with[10..12].copy_from_slice(&sum.to_bytes());
    with
}

#[test]
fn hot_sas_displace_cold_ones_while_packets_flow_and_the_full_table_is_named() {
    let specs: Vec<_> = (0..6).map(spec).collect();
    let mut ends = Ends::new(&specs, Twin82599::new(Work::Real).with_sessions(2));
    let load = |hot: [u8; 2]| (0..6).map(|n| (n, if hot.contains(&n) { 60 } else { 3 })).collect::<Vec<_>>();
    ends.load(&load([0, 1]));
    assert_eq!((ends.in_nic(), ends.twin.sessions()), (vec![0, 1], (2, 2)));
    assert_eq!(ends.states(2), [OffloadState::TableFull; 2]);
    for hot in [[3, 1], [4, 5], [0, 1], [2, 5]] {
        ends.load(&load(hot));
        ends.load(&load(hot));
        let mut expected = hot.map(usize::from).to_vec();
        expected.sort_unstable();
        assert_eq!((ends.in_nic(), ends.twin.sessions()), (expected, (2, 2)));
    }
    let before = ends.nic.report().counts.sessions_made;
    // Nearly equal SAs do not take each other's place.
    for _ in 0..5 {
        ends.load(&[(0, 50), (1, 55), (2, 60), (5, 50)]);
    }
    let made = ends.nic.report().counts.sessions_made - before;
    assert!(made <= 2, "{made} sessions were made for SAs with nearly as many packets");
    ends.a.assert_settled();
    ends.b.assert_settled();
}

#[test]
fn a_reset_in_the_middle_loses_nothing_and_sas_come_back() {
    let mut ends = Ends::new(&[spec(0), spec(1)], Twin82599::new(Work::Real));
    for round in 0..5 {
        ends.load(&[(0, 30), (1, 30)]);
        assert_eq!(ends.in_nic(), [0, 1], "round {round}");
        ends.twin.reset();
        ends.exchange(0, 10);
        ends.exchange(1, 10);
    }
    assert_eq!(ends.nic.report().counts.resets, 5);
    assert!(ends.nic.report().counts.session_gone > 0);
}

#[test]
fn packets_that_wait_for_the_port_when_their_sessions_go_are_sealed_by_software_in_their_order() {
    let mut ends = Ends::new(&[spec(0)], Twin82599::new(Work::Real));
    ends.load(&[(0, 30)]);
    for lose in [Twin82599::reset, Twin82599::lose_table] {
        let sent: Vec<_> = (7000..7100).map(|id| numbered(9, id, 0, true, 900).bytes()).collect();
        ends.twin.fail(Faults { busy: 1_000_000, ..Faults::default() }, 1);
        sent.iter().for_each(|packet| ends.a.protected.push(packet.clone()));
        take_turns(&mut ends.a, 5);
        assert!(ends.a.worker.is_waiting().1 && ends.a.unprotected.departed() == 0);
        let before = ends.nic.report().counts.sealed_after_loss;
        lose(&ends.twin);
        ends.twin.fail(Faults::default(), 1);
        ends.a.settle();
        let left = ends.a.unprotected.take();
        let delivered: Vec<_> = left.into_iter().flat_map(|datagram| ends.b.open(datagram)).collect();
        assert!(delivered == sent, "{} of {}", delivered.len(), sent.len());
        assert!(ends.nic.report().counts.sealed_after_loss > before);
        ends.load(&[(0, 30)]);
        assert_eq!(ends.in_nic(), [0]);
    }
}

/// The SA is removed while its packets wait, marked, for the port.
#[test]
fn packets_of_a_removed_sa_that_wait_are_still_sealed() {
    let mut ends = Ends::new(&[spec(0)], Twin82599::new(Work::Real));
    ends.load(&[(0, 30)]);
    ends.twin.fail(Faults { busy: 1_000_000, ..Faults::default() }, 1);
    let sent: Vec<_> = (7000..7050).map(|id| numbered(9, id, 0, true, 900).bytes()).collect();
    sent.iter().for_each(|packet| ends.a.protected.push(packet.clone()));
    take_turns(&mut ends.a, 5);
    ends.twin.fail(Faults::default(), 1);
    let now = ends.a.now();
    let remove = testudo_gateway::Update { remove: vec![spec(0).index()], ..Default::default() };
    ends.a.worker.update(remove, now);
    assert_eq!(ends.twin.sessions(), (0, 0));
    ends.a.settle();
    let left = ends.a.unprotected.take();
    let delivered: Vec<_> = left.into_iter().flat_map(|datagram| ends.b.open(datagram)).collect();
    assert!(delivered == sent, "{} of {}", delivered.len(), sent.len());
    ends.a.assert_settled();
}

#[test]
fn a_device_that_opens_wrongly_is_out_of_service_and_its_sas_go_on_in_software() {
    let checks = Checks { one_of: 1, ..Checks::usual(1) };
    let mut ends = Ends::checked(&[spec(0), spec(1)], Twin82599::new(Work::Real), checks);
    ends.load(&[(0, 30), (1, 30)]);
    ends.twin.fail(Faults { wrong_text: 1_000_000, ..Faults::default() }, 1);
    let packet = numbered(9, 8000, 0, false, 900).bytes();
    let sealed = ends.b.seal(packet);
    assert!(ends.a.open(sealed[0].clone()).is_empty(), "its plaintext is lost with the device's mistake");
    assert_eq!(ends.a.drops(DropReason::AuthenticationFailed), 1);
    let why = ends.nic.report().out_of_service.expect("it is out of service");
    assert!(why.contains("0x00001001") || why.contains("SPI"), "{why}");
    let failure = ends.a.worker.offload_report().and_then(|report| report.out_of_service);
    assert_eq!(failure.as_ref(), Some(&why));
    ends.pass();
    ends.twin.fail(Faults::default(), 1);
    ends.load(&[(0, 30), (1, 30)]);
    assert_eq!(ends.states(0), [OffloadState::OutOfService; 2]);
    assert_eq!(ends.twin.sessions(), (0, 0), "what it holds is ended");
}

#[test]
fn a_device_that_seals_wrongly_is_found_by_what_it_has_sent() {
    let mut ends =
        Ends::checked(&[spec(0)], Twin82599::new(Work::Real), Checks { one_of: 1, ..Checks::usual(1) });
    ends.load(&[(0, 30)]);
    ends.twin.fail(Faults { wrong_seal: 1_000_000, ..Faults::default() }, 1);
    ends.a.seal(numbered(9, 8000, 0, true, 900).bytes());
    let why = ends.nic.report().out_of_service.expect("it is out of service");
    assert!(why.starts_with("a packet that it sealed"), "{why}");
    let packet = numbered(9, 8001, 0, true, 900).bytes();
    let sealed = ends.a.seal(packet.clone());
    assert_eq!(ends.b.open(sealed[0].clone()), [packet]);
}

/// A flood of forgeries: each is refused, by the device or by software, and what is authentic passes.
#[test]
fn forgeries_are_refused_whether_the_device_leaves_them_unchanged_or_not() {
    for twin in [Twin82599::new(Work::Real), Twin82599::new(Work::Real).that_changes_refused()] {
        let mut ends = Ends::new(&[spec(0)], twin);
        ends.load(&[(0, 30)]);
        for id in 0..50 {
            let packet = numbered(9, 9000 + id, 0, false, 900).bytes();
            let sealed = ends.b.seal(packet.clone());
            let mut forged = sealed[0].clone();
            *forged.last_mut().expect("an ICV") ^= 1;
            assert!(ends.a.open(forged).is_empty());
            assert_eq!(ends.a.open(sealed[0].clone()), [packet]);
        }
        assert_eq!(ends.a.drops(DropReason::AuthenticationFailed), 50);
        assert_eq!(ends.in_nic(), [0]);
        assert_eq!(ends.nic.report().counts.differences, 0);
    }
}

/// Calls that fail: the SA stays in software, is named, and is tried again less and less often.
#[test]
fn a_session_that_cannot_be_made_is_tried_again() {
    let mut ends = Ends::new(&[spec(0)], Twin82599::new(Work::Real));
    ends.twin.fail(Faults { calls: 1_000_000, ..Faults::default() }, 1);
    for _ in 0..10 {
        ends.load(&[(0, 10)]);
    }
    assert_eq!(ends.states(0), [OffloadState::Refused; 2]);
    let calls = ends.nic.report().counts.failed_calls;
    assert!((6..=20).contains(&calls), "{calls} calls in 100 passes");
    ends.twin.fail(Faults::default(), 1);
    for _ in 0..10 {
        ends.load(&[(0, 10)]);
    }
    assert_eq!(ends.in_nic(), [0]);
}

#[test]
fn a_device_that_knows_too_many_receive_addresses_opens_no_more() {
    let second = TunnelSpec { outer: Version::V6, ..spec(1) };
    let mut ends = Ends::new(&[spec(0), second], Twin82599::new(Work::Real).with_receive_addresses(1));
    ends.load(&[(0, 20)]);
    ends.load(&[(1, 20)]);
    assert_eq!(ends.in_nic(), [0]);
    assert_eq!(ends.states(1), [OffloadState::InNic, OffloadState::Addresses]);
}
