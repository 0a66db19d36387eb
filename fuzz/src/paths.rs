//! What is said of a path: ICMP errors of routers, answers to probes, and what a gateway makes of them.

use crate::input::Input;
use crate::support::gateway::PoolSize;
use crate::support::{Gateway, Inner, Side, TunnelSpec};
use std::net::IpAddr;
use std::time::Duration;
use testudo_crypto::Suite;
use testudo_ipsec::{Df, EventKind, FlowLabel, Fragmentation, IpsecProtocol, MtuProbe, PacketRules};
use testudo_packet::DropReason;
use testudo_wire::checksum::{self, Sum};
use testudo_wire::icmp::{self, MAX_TOO_BIG_BYTES};
use testudo_wire::ip::{IpHeader, Version};

/// Steps per input, limited so that one input does not take long.
const STEPS: usize = 200;
const CONFIGURED: usize = 1500;

fn spec(choice: u8, rules: u8) -> TunnelSpec {
    let is_ah = choice & 4 == 4;
    let suite = if is_ah { Suite::NULL_SHA384 } else { Suite::AES128GCM16 };
    let outer = if choice & 1 == 0 { Version::V4 } else { Version::V6 };
    let [source, destination]: [IpAddr; 2] = [[10, 0, 0, 1], [172, 16, 0, 2]].map(IpAddr::from);
    let probe = MtuProbe { source, destination, interval: Duration::from_secs(5) };
    let rules = PacketRules {
        df: [Df::Set, Df::Copy, Df::Clear][usize::from(rules % 3)],
        flow_label: if rules & 4 == 0 { FlowLabel::Zero } else { FlowLabel::PerFlow },
        tfc_pad_to: [0, 300, 1400, 9000][usize::from(rules >> 3 & 3)],
        dummy_packets_per_second: u16::from(rules >> 5),
        mtu_probe: (choice & 8 == 8).then(|| Box::new(probe)),
        ..PacketRules::default()
    };
    TunnelSpec {
        outer,
        udp: !is_ah && choice & 2 == 2,
        protocol: if is_ah { IpsecProtocol::Ah } else { IpsecProtocol::Esp },
        fragmentation: if choice & 16 == 16 { Fragmentation::After } else { Fragmentation::Before },
        rules,
        ..TunnelSpec::new(0, suite)
    }
}

/// Changes bytes: pairs of index and value.
fn overwrite(bytes: &mut [u8], changes: &[u8]) {
    for change in changes.chunks_exact(2) {
        if let Some(byte) = bytes.get_mut(usize::from(change[0])) {
            *byte = change[1];
        }
    }
}

/// What a host answers to a ping.
fn reply_to(mut packet: Vec<u8>) -> Vec<u8> {
    let (first, bytes, kind) = if packet[0] >> 4 == 4 { (12, 4, 0) } else { (8, 16, 129) };
    let (source, destination) = packet[first..first + 2 * bytes].split_at_mut(bytes);
    source.swap_with_slice(destination);
    let header = IpHeader::parse(&packet).expect("what was delivered is a packet");
    let message = &mut packet[header.header_bytes..];
    if message.len() < 8 {
        return packet;
    }
    message[0] = kind;
    message[2..4].fill(0);
    let sum = match header.version {
        Version::V4 => checksum::of(message),
        Version::V6 => {
            let length = message.len() as u32;
            Sum::default()
                .pseudo_header(header.source, header.destination, 58, length)
                .bytes(message)
                .finish()
        }
    };
    message[2..4].copy_from_slice(&sum.to_bytes());
    packet
}

/// Two gateways, of which A learns what their path carries.
struct Site {
    a: Gateway,
    b: Gateway,
    /// What A takes the path to carry, by its own word, in bytes.
    mtu: usize,
    floor: usize,
    last: Vec<u8>,
}

impl Site {
    fn listen(&mut self) {
        for event in self.a.worker.take_events() {
            if let EventKind::PathMtu { mtu, .. } = event.kind {
                assert!((self.floor..=CONFIGURED).contains(&mtu), "{mtu} bytes");
                self.mtu = mtu;
            }
        }
        self.a.worker.take_audit();
    }

    /// What A sends now, probes apart, fits what it takes the path to carry; and B gets all of it.
    fn carry(&mut self) -> Vec<Vec<u8>> {
        let sent = self.a.unprotected.take();
        assert!(sent.iter().all(|datagram| datagram.len() <= self.mtu), "longer than {} bytes", self.mtu);
        if let Some(last) = sent.last() {
            self.last.clone_from(last);
        }
        sent.into_iter().flat_map(|datagram| self.b.open(datagram)).collect()
    }

    fn send(&mut self, input: &mut Input<'_>) {
        let (choice, bytes) = (input.byte(), usize::from(input.word()) % 4000);
        let dont_fragment = choice & 1 == 1;
        let packet = match choice & 2 {
            0 => Inner { dont_fragment, ..Inner::udp("10.0.0.1", "172.16.0.2", bytes.max(28)) },
            _ => Inner::udp("fd0a::1", "fd16::2", bytes.max(48)),
        };
        let before = self.a.drops(DropReason::TooBig);
        self.a.protected.push(packet.bytes());
        self.a.settle();
        let delivered: usize = self.carry().iter().map(Vec::len).sum();
        let is_refused = self.a.drops(DropReason::TooBig) > before;
        let may_be_refused = dont_fragment || choice & 2 == 2;
        assert!(if is_refused { may_be_refused } else { delivered >= packet.total_bytes }, "{packet:?}");
        for reply in self.a.protected.take() {
            IpHeader::parse(&reply).expect("a reply is a packet");
        }
    }

    /// A router, or somebody in its name, complains about something.
    fn complain(&mut self, input: &mut Input<'_>) {
        let (mtu, changes) = (input.word(), input.run());
        let mut quoted = self.last.clone();
        overwrite(&mut quoted, changes);
        let Ok(header) = IpHeader::parse(&quoted) else { return };
        let router = if header.version == Version::V4 { "203.0.113.9" } else { "2001:db8:f::9" };
        let router = router.parse().expect("an address");
        let mut message = [0; MAX_TOO_BIG_BYTES];
        if let Ok(Some(length)) = icmp::too_big(&header, &quoted, mtu, router, &mut message) {
            assert!(self.a.open(&message[..length]).is_empty());
        }
    }

    /// Time passes. The path carries so many bytes, and what it answers may be changed, or come twice.
    fn wait(&mut self, input: &mut Input<'_>) {
        let (seconds, passes, changes) = (input.byte() % 8, usize::from(input.word()) % 1600, input.run());
        for _ in 0..=seconds {
            self.a.clock.advance(Duration::from_secs(1));
            let now = self.a.now();
            self.a.worker.tick(now);
            self.a.settle();
            for probe in self.a.unprotected.take() {
                assert!(probe.len() <= CONFIGURED, "longer than the path can be");
                if probe.len() > passes {
                    continue;
                }
                for request in self.b.open(probe) {
                    let mut reply = reply_to(request);
                    let header = IpHeader::parse(&reply).expect("a packet").header_bytes;
                    overwrite(&mut reply[header..], changes);
                    for answer in self.b.seal(reply) {
                        self.a.open(answer.clone());
                        assert!(self.a.open(answer).is_empty(), "it was received before");
                    }
                }
            }
            self.listen();
            self.a.worker.send_dummies(now);
            self.a.settle();
            assert!(self.carry().is_empty(), "a dummy is no packet");
        }
    }
}

/// Routers that lie, probes that are lost or answered wrongly, packets of any length: what A believes stays
/// between the floor and what is configured, nothing that it sends is longer than what it believes, and all
/// that it sends arrives.
pub fn path_mtu(data: &[u8]) {
    let mut input = Input::new(data);
    let spec = spec(input.byte(), input.byte());
    let plain = TunnelSpec { rules: PacketRules::default(), ..spec.clone() };
    let [mut a, mut b] = [(Side::A, &spec), (Side::B, &plain)]
        .map(|(side, spec)| Gateway::with_buffers(side, std::slice::from_ref(spec), PoolSize(64, 4096)));
    a.worker.set_audit(true);
    b.worker.set_audit(true);
    let floor = if spec.outer == Version::V4 { 576 } else { 1280 };
    let mut site = Site { a, b, mtu: CONFIGURED, floor, last: Vec::new() };
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        match input.byte() % 4 {
            0 | 1 => site.send(&mut input),
            2 => site.complain(&mut input),
            _ => site.wait(&mut input),
        }
        site.listen();
    }
    site.a.assert_settled();
    site.b.assert_settled();
}
