//! Sending.

use super::twin::{Datagram, Kernel, Twin};
use super::{Fields, UDP, endpoint, packet};
use crate::input::Input;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use testudo_packet::{Batch, Buffer, Pool, Port};
use testudo_port_socket::{Bypass, Encapsulation, Endpoint, SocketPort};
use testudo_wire::ip::{IpHeader, Version};
use testudo_wire::udp::UdpHeader;
use testudo_wire::{checksum, protocol};

/// A prefix of the batch is sent, each packet as its outer header says; refused packets are dropped with a
/// reason; the rest waits.
pub fn socket_transmit(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.byte();
    let (esp, ah) = (Encapsulation::RawEsp, Encapsulation::RawAh);
    let endpoints = [
        endpoint("192.0.2.1", UDP),
        endpoint("192.0.2.1", esp),
        endpoint("2001:db8::1", esp),
        endpoint("192.0.2.1", ah),
        endpoint("::", ah),
        endpoint(if choice & 1 == 0 { "::" } else { "2001:db8::1" }, UDP),
        endpoint("0.0.0.0", UDP),
    ];
    let kernel = Arc::<Mutex<Kernel>>::default();
    let twin = |number| Twin { number, kernel: Arc::clone(&kernel) };
    let bypass = |number: usize, bit: u8| (choice & bit != 0).then(|| twin(number));
    let bypass = Bypass { v4: bypass(BYPASS_V4, 2), v6: bypass(BYPASS_V6, 4) };
    let has_bypass = [bypass.v4.is_some(), bypass.v6.is_some()];
    let mut port = SocketPort::over(endpoints.iter().enumerate().map(|(n, e)| (*e, twin(n))), bypass);
    let mut pool = Pool::new(64, 9000);
    let mut batch = Batch::new();
    let mut steps = 0;
    while !input.is_empty() && steps < 40 {
        steps += 1;
        let answers = usize::from(input.byte() % 8);
        let answers: Vec<u8> = input.take(answers).to_vec();
        kernel.lock().expect("not poisoned").answers = answers.into();
        for _ in 0..1 + input.byte() % 40 {
            if let (false, Some(mut buffer)) = (batch.is_full(), pool.pop()) {
                fill(&mut buffer, &mut input);
                batch.push(buffer);
            }
        }
        send(&mut port, &kernel, &endpoints, has_bypass, &mut pool, &mut batch);
    }
    kernel.lock().expect("not poisoned").answers.clear();
    for _ in 0..3 {
        send(&mut port, &kernel, &endpoints, has_bypass, &mut pool, &mut batch);
    }
    assert!(batch.is_empty(), "{} packets stay although all goes", batch.len());
    assert_eq!(pool.available(), pool.size());
}

const BYPASS_V4: usize = 100;
const BYPASS_V6: usize = 101;

/// A packet, mostly like the previous one.
fn fill(buffer: &mut Buffer, input: &mut Input<'_>) {
    let (kind, length) = (input.byte(), input.byte());
    let bytes = match kind & 0x7 {
        7 => input.run().to_vec(),
        kind_of => {
            let payload = vec![kind; [1400, 60, 8, usize::from(length) * 32][usize::from(length & 3)]];
            let v6 = kind_of == 4 || kind_of == 5;
            let peers =
                if v6 { ["[2001:db8::1]:4500", "2001:db8::9"] } else { ["192.0.2.1:4500", "192.0.2.9"] };
            let mut source: SocketAddr = peers[0].parse().expect("an address");
            if kind & 0x40 != 0 {
                source.set_ip(if v6 { "2001:db8::5" } else { "192.0.2.5" }.parse().expect("an address"));
            }
            let destination = peers[1].parse().expect("an address");
            let number = match (kind_of, kind & 0x20) {
                (3, _) | (5, 0) => protocol::ESP,
                (5 | 6, _) => protocol::AH,
                _ => protocol::UDP,
            };
            let hop_limit = [64, 255, 0, 64][usize::from(kind >> 5 & 3)];
            let fields = Fields { number, class: (kind & 8) << 2, hop_limit, flow_label: 0 };
            let mut bytes = packet(source, destination, fields, &payload).expect("it fits");
            if kind & 0x90 == 0x90 && !v6 {
                bytes[6] = 0;
                bytes[10..12].fill(0);
                let sum = checksum::of(&bytes[..20]).to_bytes();
                bytes[10..12].copy_from_slice(&sum);
            }
            bytes
        }
    };
    let length = bytes.len().min(9000);
    buffer.receive_area()[..length].copy_from_slice(&bytes[..length]);
    buffer.set_len(length);
}

/// One call of `tx`, and the check of its result.
fn send(
    port: &mut SocketPort<Twin>,
    kernel: &Mutex<Kernel>,
    endpoints: &[Endpoint],
    has_bypass: [bool; 2],
    pool: &mut Pool,
    batch: &mut Batch,
) {
    let packets: Vec<Vec<u8>> = batch.iter().map(|buffer| buffer.bytes().to_vec()).collect();
    let (fatal_before, drops_before, sent_before) =
        (kernel.lock().expect("not poisoned").fatal, pool.drops().total(), port.counters().tx_packets);
    let outcome = port.tx(pool, batch);
    let mut kernel = kernel.lock().expect("not poisoned");
    assert_eq!(outcome.is_err(), kernel.fatal > fatal_before, "{outcome:?}");
    let gone = packets.len() - batch.len();
    assert!(
        batch.iter().map(|b| b.bytes()).eq(packets[gone..].iter().map(Vec::as_slice)),
        "not the last ones stay"
    );
    assert_eq!(pool.available() + batch.len(), pool.size(), "a buffer is lost");
    let sent = std::mem::take(&mut kernel.sent);
    let dropped = (pool.drops().total() - drops_before) as usize;
    assert_eq!(sent.len() + dropped, gone, "what is gone was sent or refused");
    assert!(outcome.is_err() || outcome.is_ok_and(|taken| taken == gone));
    assert_eq!(port.counters().tx_packets - sent_before, sent.len() as u64);
    // In the order of the batch, each as its header says.
    let mut packets = packets[..gone].iter();
    for datagram in sent {
        let is_it = |packet: &Vec<u8>| {
            addressed(packet, endpoints, has_bypass).as_ref().is_some_and(|d| agrees(d, &datagram))
        };
        assert!(packets.any(is_it), "sent, but not of the batch, or out of order: {datagram:?}");
    }
}

/// DF is an option of the socket: it is set by the first packet that needs it changed, and is never set for
/// IPv6, raw sockets or in clear.
fn agrees(expected: &Datagram, sent: &Datagram) -> bool {
    let dont_fragment = sent.dont_fragment.or(expected.dont_fragment.map(|_| true));
    *expected == Datagram { dont_fragment, ..sent.clone() }
}

/// How a packet must leave; `None` if it must not.
fn addressed(packet: &[u8], endpoints: &[Endpoint], has_bypass: [bool; 2]) -> Option<Datagram> {
    let header = IpHeader::parse(packet).ok()?;
    let udp = (header.protocol == protocol::UDP && header.fragment.is_none())
        .then(|| UdpHeader::parse(header.payload(packet)));
    let udp = udp.transpose().ok()?;
    let is_v4 = header.version == Version::V4;
    let wanted = match (header.protocol, udp) {
        (protocol::ESP, _) => Some(Encapsulation::RawEsp),
        (protocol::AH, _) => Some(Encapsulation::RawAh),
        (_, Some(udp)) => Some(Encapsulation::Udp { port: udp.source_port }),
        _ => None,
    };
    let fits =
        |local: IpAddr| endpoints.iter().position(|e| Some(e.encapsulation) == wanted && e.local == local);
    let any: IpAddr = if is_v4 { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
    let own = fits(header.source).or_else(|| fits(any));
    let Some(socket) = own else {
        let socket = if is_v4 { BYPASS_V4 } else { BYPASS_V6 };
        return has_bypass[usize::from(!is_v4)].then(|| Datagram {
            socket,
            destination: SocketAddr::new(header.destination, 0),
            source: None,
            traffic_class: 0,
            hop_limit: None,
            dont_fragment: None,
            payload: packet[..header.total_bytes].to_vec(),
        });
    };
    let content = header.payload(packet);
    let (port, payload) = match udp {
        Some(udp) => (udp.destination_port, &content[8..udp.total_bytes]),
        None => (0, &packet[..header.total_bytes]),
    };
    // What the kernel would change: see raw(7).
    let must_be_identified =
        header.fragment.is_some() || header.protocol == protocol::AH && !header.dont_fragment;
    if udp.is_none() && is_v4 && must_be_identified && packet[4..6] == [0, 0] {
        return None;
    }
    let hop_limit = (udp.is_some() && ![0, 64].contains(&header.hop_limit)).then_some(header.hop_limit);
    Some(Datagram {
        socket,
        destination: SocketAddr::new(header.destination, port),
        source: endpoints[socket]
            .local
            .is_unspecified()
            .then_some(header.source)
            .filter(|s| !s.is_unspecified()),
        traffic_class: header.traffic_class,
        hop_limit,
        dont_fragment: (is_v4 && udp.is_some()).then_some(header.dont_fragment),
        payload: payload.to_vec(),
    })
}
