//! Receiving.

use super::twin::{Arrival, ERRORS, Message, Twin, about};
use super::{UDP, endpoint, packet};
use crate::delivered::deliver;
use crate::input::Input;
use crate::support::random_bytes;
use fastrand::Rng;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use testudo_packet::{Batch, DropReason, Pool, Port};
use testudo_port_socket::{Bypass, Encapsulation, Endpoint, SocketPort};

/// The longest control data that the kernel has room for.
const CONTROL_BYTES: usize = 128;
/// Messages of a run, and the bytes of all of them.
const MAX_MESSAGES: usize = 200;
const MAX_BYTES: usize = 1 << 20;

/// What the kernel gives is delivered, datagram by datagram and in order, under headers with the kernel's
/// information; what is truncated or invalid is dropped with a reason, and the pool's buffers are accounted
/// for.
pub fn socket_receive(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.byte();
    let endpoint = match choice & 7 {
        0..4 => endpoint("192.0.2.1", UDP),
        4 => endpoint("::", UDP),
        5 => endpoint("0.0.0.0", UDP),
        6 => endpoint("192.0.2.1", Encapsulation::RawEsp),
        _ => endpoint("2001:db8::1", Encapsulation::RawEsp),
    };
    let packet_bytes = [1500, 2048, 9000, 65_536][usize::from(choice >> 3 & 3)];
    let mut pool = Pool::new(1 + usize::from(input.byte()) % 150, packet_bytes);
    let twin = Twin { number: 0, kernel: Arc::default() };
    let mut port = SocketPort::over([(endpoint, twin.clone())], Bypass { v4: None, v6: None });
    let (mut expected, mut got, mut drops) = (VecDeque::new(), 0, BTreeMap::new());
    let (mut messages, mut bytes) = (0, 0);
    let mut batch = Batch::new();
    while !input.is_empty() && messages < MAX_MESSAGES && bytes < MAX_BYTES {
        match input.byte() {
            0..24 => {
                let code = ERRORS[usize::from(input.byte()) % ERRORS.len()];
                twin.kernel.lock().expect("not poisoned").arriving.push_back(Arrival::Error(code));
            }
            24..64 => {
                receive(&mut port, &twin, &mut pool, &mut batch);
                let taken = usize::from(input.byte()).min(batch.len());
                got += deliver(&mut batch, taken, &mut expected, &mut pool);
            }
            kind => {
                let message = message(kind, &mut input);
                (messages, bytes) = (messages + 1, bytes + message.bytes.len());
                foretell(&message, &endpoint, packet_bytes, &mut expected, &mut drops);
                twin.kernel.lock().expect("not poisoned").arriving.push_back(Arrival::Message(message));
            }
        }
    }
    // Each call takes something while there is anything, or returns an error.
    for _ in 0..4 * MAX_MESSAGES + 65_536 {
        let all = batch.len();
        got += deliver(&mut batch, all, &mut expected, &mut pool);
        let waits = !twin.kernel.lock().expect("not poisoned").arriving.is_empty();
        if !receive(&mut port, &twin, &mut pool, &mut batch) && !waits {
            break;
        }
    }
    assert!(batch.is_empty() && expected.is_empty(), "{} packets never came", expected.len());
    for (reason, count) in pool.drops().iter() {
        assert_eq!(count, drops.remove(&(reason as usize)).unwrap_or(0), "dropped as {reason:?}");
    }
    assert_eq!(pool.available(), pool.size());
    assert_eq!(port.counters().rx_packets, got as u64);
}

/// One call of `rx`; `true` if it delivered a packet.
fn receive(port: &mut SocketPort<Twin>, twin: &Twin, pool: &mut Pool, batch: &mut Batch) -> bool {
    let fatal = || twin.kernel.lock().expect("not poisoned").fatal;
    let (before, fatal_before) = (batch.len(), fatal());
    let outcome = port.rx(pool, batch);
    assert_eq!(outcome.is_err(), fatal() > fatal_before, "{outcome:?}");
    assert!(outcome.is_err() || outcome.is_ok_and(|received| received == batch.len() - before));
    assert_eq!(pool.available() + batch.len(), pool.size(), "a buffer is lost");
    batch.len() > before
}

fn message(kind: u8, input: &mut Input<'_>) -> Message {
    let (length, shape) = (usize::from(input.word()), input.byte());
    let count = match shape & 3 {
        0 => length % 2100,
        1 => length % 300,
        2 => length,
        _ => length + 200,
    };
    let bytes = random_bytes(&mut Rng::with_seed(length as u64 ^ u64::from(kind)), count);
    let mut control = Vec::new();
    if shape & 4 != 0 {
        control.extend(cmsg(libc::SOL_UDP, libc::UDP_GRO, &i32::from(input.word()).to_ne_bytes()));
    }
    if shape & 8 != 0 {
        control.extend(cmsg(libc::IPPROTO_IP, libc::IP_TOS, &[input.byte()]));
    }
    if shape & 16 != 0 {
        control.extend(cmsg(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &[input.byte(); 20]));
    }
    if shape & 32 != 0 {
        control.extend_from_slice(input.run());
    }
    control.truncate(CONTROL_BYTES);
    let source = match kind {
        64..68 => None,
        68..76 => Some("[2001:db8::9]:4501"),
        _ => Some("192.0.2.9:4501"),
    };
    let source = source.map(|text| text.parse().expect("an address"));
    // Mostly a peer of the socket's IP version: anything else from the kernel is nonsense.
    let source =
        if shape & 64 != 0 { Some("[2001:db8::7]:4500".parse().expect("an address")) } else { source };
    Message { bytes, control, source, cut: kind > 250 }
}

fn cmsg(level: i32, kind: i32, data: &[u8]) -> Vec<u8> {
    let mut bytes = (16 + data.len() as u64).to_ne_bytes().to_vec();
    bytes.extend([level.to_ne_bytes(), kind.to_ne_bytes()].concat());
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

/// The expected result of a message.
fn foretell(
    message: &Message,
    endpoint: &Endpoint,
    packet_bytes: usize,
    expected: &mut VecDeque<Vec<u8>>,
    drops: &mut BTreeMap<usize, u64>,
) {
    let is_udp = endpoint.encapsulation == UDP;
    let about = about(&message.control);
    let length = message.bytes.len();
    let size = about.gro_size.filter(|_| is_udp).unwrap_or(length).min(length).max(1);
    let pieces = if length == 0 {
        vec![&[][..]]
    } else {
        message.bytes.chunks(if is_udp { size } else { length }).collect()
    };
    let mut drop =
        |reason: DropReason, count: usize| *drops.entry(reason as usize).or_insert(0) += count as u64;
    let is_whole_v4 = !is_udp && endpoint.local.is_ipv4();
    let is_too_long = if is_udp { length > 65_536 || size > packet_bytes } else { length > packet_bytes };
    let is_cut = message.cut || is_too_long;
    match message.source {
        // UDP checks for a sender first, raw ESP for the length.
        None if is_udp => return drop(DropReason::BadHeader, pieces.len()),
        _ if is_cut => return drop(DropReason::ReceiveTruncated, pieces.len()),
        None if !is_whole_v4 => return drop(DropReason::BadHeader, 1),
        _ => {}
    }
    for piece in pieces {
        let packet = match message.source {
            _ if is_whole_v4 => Some(piece.to_vec()),
            Some(source) => packet(
                source,
                about.destination.unwrap_or(endpoint.local),
                is_udp,
                about.traffic_class,
                piece,
            ),
            None => None,
        };
        match packet {
            Some(packet) => expected.push_back(packet),
            None => drop(DropReason::BadHeader, 1),
        }
    }
}
