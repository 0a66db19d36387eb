//! SAs under a hostile peer and on a hostile path: numbers of any kind, SAs that come and go.

use crate::input::Input;
use crate::support::gateway::{PoolSize, portable};
use crate::support::{Gateway, Handmade, Inner, LeaseTwin, Sealer, Side, TunnelSpec};
use std::collections::BTreeSet;
use testudo_crypto::Suite;
use testudo_gateway::{SaChange, UseFrom};
use testudo_ipsec::{IpsecProtocol, MAX_TUNNEL_SAS};
use testudo_packet::DropReason;

/// Steps per input, limited so that one input does not take long.
const STEPS: usize = 300;
/// Numbers that a window spans.
const WINDOW: u64 = 64;
const SPAN: u64 = 1 << 32;
/// Packets after which a peer is heard again that is up to sixteen halves ahead (RFC 4303 A3): those that
/// look like some of the window, those that fail before the search, and those for each half of two rounds.
const UNTIL_FOUND: u64 = WINDOW + 32 + 2 * 8 * 16;

/// A receiver, and what it must have received by the definition of a window (RFC 4303 3.4.3).
struct Receiver {
    b: Gateway,
    sealer: Sealer,
    seen: BTreeSet<u64>,
}

impl Receiver {
    fn top(&self) -> u64 {
        self.seen.last().copied().unwrap_or(0)
    }

    fn packet(number: u64) -> Vec<u8> {
        Inner { seed: number, ..Inner::udp("10.0.0.1", "172.16.0.2", 60) }.bytes()
    }

    /// The peer sends a packet under this number; whether it was delivered.
    fn receive(&mut self, number: u64) -> bool {
        let top = self.top();
        let datagram = self.sealer.seal(number, &Handmade::carrying(&Self::packet(number)));
        let delivered = self.b.open(datagram);
        let is_fresh = number > 0 && number + WINDOW > top && !self.seen.contains(&number);
        // The receiver takes the number to be the first of these low bits that is not left of its window.
        let left = (top + 1).saturating_sub(WINDOW);
        let is_inferred = number >= left && number - left < SPAN;
        if is_fresh && is_inferred {
            assert_eq!(delivered, [Self::packet(number)], "number {number:#x} above {top:#x}");
        }
        if let [packet] = &delivered[..] {
            assert!(is_fresh && *packet == Self::packet(number), "number {number:#x} above {top:#x}");
            self.seen.insert(number);
        }
        assert!(delivered.len() <= 1);
        !delivered.is_empty()
    }

    /// Somebody without the key sends one.
    fn receive_forged(&mut self, number: u64, changed: u8) {
        let mut datagram = self.sealer.seal(number, &Handmade::carrying(&Self::packet(number)));
        let at = datagram.len() - 1 - usize::from(changed) % 40;
        datagram[at] ^= 1 | changed;
        assert!(self.b.open(datagram).is_empty(), "a forged packet was delivered");
    }
}

/// A peer that sends numbers near and far, in any order and again, with forged packets between: each packet
/// of the window is delivered once, nothing forged moves the window, and the peer is heard again wherever it
/// has gone, up to sixteen times 2^32 numbers ahead.
pub fn sequence_numbers(data: &[u8]) {
    let mut input = Input::new(data);
    let spec = TunnelSpec { window: WINDOW as u32, ..TunnelSpec::new(0, Suite::AES128GCM16) };
    let b = Gateway::with_buffers(Side::B, std::slice::from_ref(&spec), PoolSize(32, 2048));
    let mut receiver = Receiver { b, sealer: Sealer::new(&spec, Side::A), seen: BTreeSet::new() };
    let mut current = 0_u64;
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        let (kind, step) = (input.byte(), u64::from(input.byte()));
        match kind % 8 {
            0..=2 => current += 1 + step % 8,
            3 => current += step << 24,
            4 => current += (step % 18) << 32,
            5 => drop(receiver.receive(current.saturating_sub(step))),
            6 => receiver.receive_forged(current.saturating_add(step << (kind >> 3)), kind),
            _ => {
                for _ in 0..step % 48 {
                    current += 1;
                    receiver.receive(current);
                }
            }
        }
        receiver.receive(current);
        let (failed, tried) =
            (receiver.b.drops(DropReason::AuthenticationFailed), receiver.b.drops(DropReason::ResyncFailed));
        assert!(tried <= failed / 8, "{tried} tries for {failed} packets");
    }
    // Nearer than sixteen halves, or it is out of reach and stays so.
    if current.saturating_sub(receiver.top()) < 16 * SPAN {
        let is_heard = (1..=UNTIL_FOUND).any(|ahead| receiver.receive(current + ahead));
        assert!(is_heard, "a peer at {current:#x} is not heard above {:#x}", receiver.top());
    }
    receiver.b.assert_settled();
}

/// The keys of a tunnel.
const KEYS: u8 = 12;

/// One end of a tunnel whose SAs come and go, and which it has by definition.
struct End {
    gateway: Gateway,
    side: Side,
    store: LeaseTwin,
    /// In the order of their addition.
    outbound: Vec<u8>,
    inbound: BTreeSet<u8>,
    in_use: Option<u8>,
    /// The key from the peer that is awaited, and the one that is used from then on.
    takeover: Option<(u8, u8)>,
}

/// The tunnel under its key number `key`.
fn under(spec: &TunnelSpec, key: u8) -> TunnelSpec {
    TunnelSpec { number: key, ..spec.clone() }
}

fn other(side: Side) -> Side {
    if side == Side::A { Side::B } else { Side::A }
}

impl End {
    fn new(side: Side, spec: &TunnelSpec) -> Self {
        let mut gateway = Gateway::new(spec.policies(side), PoolSize(32, 2048), portable());
        let mut store = LeaseTwin::new(1 << 20);
        gateway.install(spec.install(side, &mut store, None));
        let (outbound, inbound) = (vec![0], BTreeSet::from([0]));
        Self { gateway, side, store, outbound, inbound, in_use: Some(0), takeover: None }
    }

    fn change(&mut self, spec: &TunnelSpec, kind: u8, key: u8, awaited: u8) {
        let (index, new) = (spec.index(), under(spec, key));
        let (ours, theirs) = (new.spi_from(self.side), new.spi_from(other(self.side)));
        let has_room = |has: bool, sas: usize| !has && sas < MAX_TUNNEL_SAS;
        let receives = has_room(self.inbound.contains(&key), self.inbound.len());
        let sends = has_room(self.outbound.contains(&key), self.outbound.len());
        let (change, is_possible) = match kind {
            0 => (SaChange::AddInbound(index, Box::new(new.inbound(self.side))), receives),
            1 => (SaChange::RemoveInbound(index, theirs), self.inbound.contains(&key)),
            2 => (SaChange::RemoveOutbound(index, ours), self.outbound.contains(&key)),
            3 => (SaChange::UseOutbound(index, ours), self.outbound.contains(&key)),
            _ => {
                let outbound = new.outbound(self.side, &mut self.store);
                let from = match kind {
                    4 => UseFrom::Now,
                    5 => UseFrom::Later,
                    _ => UseFrom::PeersUseOf(under(spec, awaited).spi_from(other(self.side))),
                };
                let is_awaited = kind < 6 || self.inbound.contains(&awaited);
                let change = SaChange::AddOutbound(index, Box::new(outbound), from);
                (change, sends && is_awaited)
            }
        };
        let now = self.gateway.now();
        let changed = self.gateway.worker.change_sa(change, now);
        assert_eq!(changed.is_ok(), is_possible, "{:?}: {kind} {key}: {:?}", self.side, changed.err());
        if is_possible {
            self.note(kind, key, awaited);
        }
    }

    fn add_outbound(&mut self, key: u8) {
        if !self.outbound.contains(&key) {
            self.outbound.push(key);
        }
    }

    /// What a change that was made means.
    fn note(&mut self, kind: u8, key: u8, awaited: u8) {
        match kind {
            0 => {
                self.inbound.insert(key);
            }
            1 => {
                self.inbound.remove(&key);
                self.takeover = self.takeover.filter(|(awaited, _)| *awaited != key);
            }
            2 => {
                self.outbound.retain(|sa| *sa != key);
                self.takeover = self.takeover.filter(|(_, next)| *next != key);
                if self.in_use == Some(key) {
                    // The newest that remains; one that waits for the peer comes last.
                    let waits = self.takeover.map(|(_, next)| next);
                    let newest = self.outbound.iter().rev().copied().find(|sa| Some(*sa) != waits);
                    self.in_use = newest.or(waits);
                    self.takeover = self.takeover.filter(|(_, next)| Some(*next) != self.in_use);
                }
            }
            3 | 4 => {
                self.add_outbound(key);
                (self.in_use, self.takeover) = (Some(key), None);
            }
            5 => self.add_outbound(key),
            _ => {
                self.add_outbound(key);
                self.takeover = Some((awaited, key));
            }
        }
    }
}

/// SAs of a tunnel are added, put to use and removed at both ends, in any order, while packets pass: each
/// change succeeds or fails as it must, packets leave under the SA in use, and those of every SA that the
/// other end has come out (RFC 7296 2.8).
pub fn sa_changes(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.byte();
    let mut spec = TunnelSpec { window: 64, ..TunnelSpec::new(0, Suite::AES128GCM16) };
    spec.udp = choice & 1 == 1;
    if choice & 2 == 2 {
        spec = TunnelSpec { protocol: IpsecProtocol::Ah, ..TunnelSpec::new(0, Suite::NULL_SHA384) };
    }
    let mut ends = [Side::A, Side::B].map(|side| End::new(side, &spec));
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        let kind = input.byte();
        let from = usize::from(kind & 1);
        match kind >> 1 & 7 {
            7 => {
                let [a, b] = &mut ends;
                pass(&spec, if from == 0 { (a, b) } else { (b, a) });
            }
            kind => {
                let (key, awaited) = (input.byte() % KEYS, input.byte() % KEYS);
                ends[from].change(&spec, kind, key, awaited);
            }
        }
    }
    ends.iter().for_each(|end| end.gateway.assert_settled());
}

/// One packet from end to end.
fn pass(spec: &TunnelSpec, (from, to): (&mut End, &mut End)) {
    let ends = if from.side == Side::A { ("10.0.0.1", "172.16.0.2") } else { ("172.16.0.2", "10.0.0.1") };
    let packet = Inner::udp(ends.0, ends.1, 100).bytes();
    let sealed = from.gateway.seal(packet.clone());
    let Some(key) = from.in_use else { return assert!(sealed.is_empty(), "no SA is in use") };
    let at = 20 + if spec.udp { 8 } else { 0 } + if spec.protocol == IpsecProtocol::Ah { 4 } else { 0 };
    let spi = sealed[0][at..].first_chunk().map(|spi| u32::from_be_bytes(*spi));
    assert_eq!(spi, Some(under(spec, key).spi_from(from.side)), "of the SA in use");
    let opened = to.gateway.open(sealed[0].clone());
    if !to.inbound.contains(&key) {
        return assert!(opened.is_empty(), "its SA is not there");
    }
    assert_eq!(opened, [packet]);
    if let Some((_, next)) = to.takeover.filter(|(awaited, _)| *awaited == key) {
        (to.in_use, to.takeover) = (Some(next), None);
    }
}
