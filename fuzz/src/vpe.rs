//! Inbound VPE, of a peer and of a group: any datagrams, and packets that are authentic, whatever their
//! header and content.

use crate::input::Input;
use crate::support::gateway::{PoolSize, portable};
use crate::support::group;
use crate::support::vpe::{datagram, datagram_between, sealed, vpe};
use crate::support::{Gateway, Inner, LeaseTwin, Side, TunnelSpec};
use std::collections::HashSet;
use std::time::Duration;
use testudo_crypto::Suite;
use testudo_ipsec::{EventKind, PacketRules, VpeRules};
use testudo_wire::ip::IpHeader;
use testudo_wire::protocol;
use testudo_wire::vpe::{VPE_PROTOCOL, VpeHeader};

/// Windows that the SA may have: few, so that inputs reach the limit.
const WINDOWS_MAX: u32 = 4;

/// The tunnel selected by the first byte.
fn spec(choice: u8) -> TunnelSpec {
    let vpe_rules = VpeRules::default().with_windows_max(WINDOWS_MAX);
    let rules = PacketRules { vpe: Some(Box::new(vpe_rules)), ..PacketRules::default() };
    let suite = Suite::ALL_FOR_VPE[usize::from(choice % 3)];
    TunnelSpec { udp: choice & 4 != 0, window: 64, rules, ..vpe(suite) }
}

/// A header with a small window, and a number that is small or near the last one.
fn header(spec: &TunnelSpec, input: &mut Input<'_>) -> VpeHeader {
    let (kind, window) = (input.byte(), u16::from(input.byte() % 8));
    let number = u64::from(input.byte());
    let number = if kind & 1 == 0 { number } else { u64::MAX - number };
    VpeHeader { sender: u16::from(kind & 6 == 6), window, number, spi: spec.spi_from(Side::A) }
}

/// A plaintext: any, a packet between these addresses with any padding, zeros, or a packet that was damaged.
fn text(input: &mut Input<'_>, [source, destination]: [&str; 2]) -> Vec<u8> {
    let kind = input.byte();
    let mut packet = Inner::udp(source, destination, 28 + usize::from(kind >> 2)).bytes();
    match kind % 4 {
        0 => return input.run().to_vec(),
        1 => packet.extend(input.run()),
        2 => packet = vec![0; usize::from(input.byte())],
        _ => {
            for change in input.run().chunks_exact(2) {
                if let Some(byte) = packet.get_mut(usize::from(change[0])) {
                    *byte = change[1];
                }
            }
        }
    }
    packet
}

/// Whatever comes: no number of a window is delivered twice, there are never more windows than there may be,
/// only sender 0 is heard, and the gateway still works.
pub fn inbound_vpe(data: &[u8]) {
    let mut input = Input::new(data);
    let spec = spec(input.byte());
    let number = if spec.udp { protocol::UDP } else { VPE_PROTOCOL };
    let mut b = Gateway::new(spec.policies(Side::B), PoolSize(64, 2048), portable());
    b.worker.set_audit(true);
    b.install(spec.install(Side::B, &mut LeaseTwin::new(1 << 40), None));
    let (key, mut received, mut last) = (spec.key_from(Side::A), HashSet::new(), Vec::new());
    while !input.is_empty() {
        let kind = input.byte();
        let mut authentic = None;
        let sent = match kind % 5 {
            0 => input.run().to_vec(),
            1 => datagram(&spec, number, input.run()),
            2 => last.clone(),
            _ => {
                let header = header(&spec, &mut input);
                authentic = Some(header);
                datagram(&spec, number, &sealed(&key, header, &text(&mut input, ["10.0.0.1", "172.16.0.2"])))
            }
        };
        for packet in b.open(sent.clone()) {
            let parsed = IpHeader::parse(&packet).expect("what is delivered is a packet");
            assert_eq!(parsed.total_bytes, packet.len());
            let header = authentic.expect("only what is authentic, and no replay, is delivered");
            assert_eq!(header.sender, 0);
            assert!(header.number > 0 && received.insert((header.window, header.number)));
        }
        let windows: HashSet<u16> = received.iter().map(|(window, _)| *window).collect();
        assert!(windows.len() <= WINDOWS_MAX as usize);
        last = sent;
    }
    assert_eq!(b.seal(Inner::udp("172.16.0.2", "10.0.0.1", 60).bytes()).len(), 1, "the gateway still works");
    b.assert_settled();
}

/// Our own Sender ID in the group.
const OWN: u16 = 9;
/// No number of ours is as high: the store has leased none above 2^40.
const NOT_OURS: u64 = 1 << 62;
/// Longer datagrams do not fit the buffers.
const FITS: usize = 1500;

/// A member of a group, and what it has sent and received.
struct Member {
    gateway: Gateway,
    sent: Vec<Vec<u8>>,
    received: HashSet<(u16, u16, u64)>,
    numbered: HashSet<(u16, u64)>,
    /// It has said that somebody else has its Sender ID.
    is_taken: bool,
    last: Vec<u8>,
}

impl Member {
    fn new() -> Self {
        let rules = VpeRules::default().with_sender(OWN).with_windows_max(WINDOWS_MAX);
        let mut gateway = Gateway::new(group::policies(), PoolSize(64, 2048), portable());
        gateway.worker.set_audit(true);
        gateway.install(group::install(rules, &mut LeaseTwin::new(1 << 40), None));
        let (received, numbered) = (HashSet::new(), HashSet::new());
        Self { gateway, sent: Vec::new(), received, numbered, is_taken: false, last: Vec::new() }
    }

    /// It sends as long as nobody else has its ID, and no number of a window twice.
    fn send(&mut self, seed: u64) {
        let left = self.gateway.seal(group::inner(OWN, seed));
        assert_eq!(left.len(), usize::from(!self.is_taken));
        for datagram in &left {
            let header = VpeHeader::parse(&datagram[20..]).expect("a header");
            assert!(header.sender == OWN && self.numbered.insert((header.window, header.number)));
        }
        self.sent.extend(left);
    }

    /// A datagram arrives, which is authentic under this header if it is new.
    fn receive(&mut self, datagram: Vec<u8>, authentic: Option<VpeHeader>) {
        for packet in self.gateway.open(datagram.clone()) {
            let parsed = IpHeader::parse(&packet).expect("what is delivered is a packet");
            assert_eq!(parsed.total_bytes, packet.len());
            let VpeHeader { sender, window, number, .. } =
                authentic.expect("only what is authentic, and neither ours nor a replay, is delivered");
            assert!(sender != 0 && sender != OWN && number > 0);
            assert!(self.received.insert((sender, window, number)));
        }
        let windows: HashSet<_> = self.received.iter().map(|(sender, window, _)| (sender, window)).collect();
        assert!(windows.len() <= WINDOWS_MAX as usize);
        let events = self.gateway.worker.take_events();
        let is_taken = events.iter().any(|event| matches!(event.kind, EventKind::SenderTaken { .. }));
        let own = authentic.filter(|header| header.sender == OWN);
        assert!(!is_taken || own.is_some(), "what we have sent, or nobody has sealed, silences us");
        let is_foreign = own.is_some_and(|header| header.number > NOT_OURS) && datagram.len() <= FITS;
        assert!(is_taken || self.is_taken || !is_foreign, "another device with our Sender ID is not noticed");
        self.is_taken |= is_taken;
        self.last = datagram;
    }
}

/// The header of a member of the group, of nobody, or with our own ID; with a small window, and a number that
/// is small or near the last one.
fn header_in_group(input: &mut Input<'_>) -> VpeHeader {
    let (kind, sender) = (input.byte(), input.byte() % 8);
    let sender = [0, OWN, u16::MAX].get(usize::from(sender)).copied().unwrap_or(sender.into());
    let (window, number) = (u16::from(input.byte() % 8), u64::from(input.byte()));
    let number = if kind & 1 == 0 { number } else { u64::MAX - number };
    VpeHeader { sender, window, number, spi: group::spec().spi_from(Side::A) }
}

/// Whatever comes to a member of a group, from any address, also its own packets: no number of a sender's
/// window is delivered twice, there are never more windows than there may be, nothing is heard under our own
/// ID, and only an authentic packet that we have not sent keeps us from sending.
pub fn inbound_group(data: &[u8]) {
    let (mut input, mut member) = (Input::new(data), Member::new());
    let key = group::spec().key_from(Side::A);
    let to_group = |from: u8, packet: &[u8]| {
        datagram_between(group::address(from.into()), group::GROUP.into(), VPE_PROTOCOL, packet)
    };
    while !input.is_empty() {
        match input.byte() % 8 {
            0 => member.receive(input.run().to_vec(), None),
            1 => member.receive(to_group(input.byte(), input.run()), None),
            2 => member.receive(member.last.clone(), None),
            3 => {
                // A copy of what it has sent, as it was or from another address.
                let (which, from) = (usize::from(input.byte()), input.byte());
                if let Some(copy) = member.sent.get(which % member.sent.len().max(1)).cloned() {
                    let copy = if from == 0 { copy } else { to_group(from, &copy[20..]) };
                    member.receive(copy, None);
                }
            }
            4 => member.send(input.byte().into()),
            5 => member.gateway.clock.advance(Duration::from_millis(10 * u64::from(input.byte()))),
            _ => {
                let (from, header) = (input.byte(), header_in_group(&mut input));
                let text = text(&mut input, ["10.1.0.1", "239.9.9.9"]);
                member.receive(to_group(from, &sealed(&key, header, &text)), Some(header));
            }
        }
    }
    member.send(1);
    member.gateway.assert_settled();
}
