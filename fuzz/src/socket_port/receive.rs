//! Receiving.

use super::twin::{Arrival, ERRORS, Message, Twin, about, control_messages};
use super::{Fields, UDP, endpoint, packet};
use crate::delivered::deliver;
use crate::input::Input;
use crate::support::random_bytes;
use fastrand::Rng;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use testudo_packet::{BATCH_SIZE, Batch, DropReason, Pool, Port, TAILROOM_BYTES};
use testudo_port_socket::{Bypass, Encapsulation, Endpoint, SocketPort};
use testudo_wire::{checksum, protocol};

/// The longest control data that the kernel has room for, at all sockets but those that take extension
/// headers.
const CONTROL_BYTES: usize = 128;
/// The longest control data with extension headers.
const AREA_BYTES: usize = 1024;
/// Messages of a run, and the bytes of all of them.
const MAX_MESSAGES: usize = 200;
const MAX_BYTES: usize = 1 << 20;

/// What the kernel gives is delivered, datagram by datagram and in order, under headers with the kernel's
/// information; what is truncated or invalid is dropped with a reason, and the pool's buffers are accounted
/// for.
pub fn socket_receive(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.byte();
    let raw = if choice & 0x20 == 0 { Encapsulation::RawEsp } else { Encapsulation::RawAh };
    let endpoint = match choice & 7 {
        0..4 => endpoint("192.0.2.1", UDP),
        4 => endpoint("::", UDP),
        5 => endpoint("0.0.0.0", UDP),
        6 => endpoint("192.0.2.1", raw),
        _ => endpoint("2001:db8::1", raw),
    };
    let packet_bytes = [1500, 2048, 9000, 65_536][usize::from(choice >> 3 & 3)];
    // Frames may be shorter, and then there are more long buffers than a batch needs.
    let frame_bytes = if choice & 0x40 == 0 { packet_bytes } else { 900 };
    let mut pool =
        Pool::new(1 + usize::from(input.byte()) % 150, frame_bytes).with_long(4 * BATCH_SIZE, packet_bytes);
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
                let message = message(kind, &endpoint, &mut input);
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
    assert_eq!(pool.in_use(), 0);
    assert_eq!(port.counters().rx_packets, got as u64);
}

/// One call of `rx`; `true` if it delivered a packet.
fn receive(port: &mut SocketPort<Twin>, twin: &Twin, pool: &mut Pool, batch: &mut Batch) -> bool {
    let fatal = || twin.kernel.lock().expect("not poisoned").fatal;
    let (before, fatal_before) = (batch.len(), fatal());
    let outcome = port.rx(pool, batch);
    assert_eq!(outcome.is_err(), fatal() > fatal_before, "{outcome:?}");
    assert!(outcome.is_err() || outcome.is_ok_and(|received| received == batch.len() - before));
    assert_eq!(pool.in_use(), batch.len(), "a buffer is lost");
    batch.len() > before
}

fn message(kind: u8, endpoint: &Endpoint, input: &mut Input<'_>) -> Message {
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
    if shape & 128 != 0 {
        let word = [input.byte(), input.byte(), input.byte(), input.byte()];
        control.extend(cmsg(libc::IPPROTO_IPV6, libc::IPV6_FLOWINFO, &word));
        let (level, limit) = [(libc::IPPROTO_IP, libc::IP_TTL), (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT)]
            [usize::from(word[3] & 1)];
        control.extend(cmsg(level, limit, &i32::from(input.word()).to_ne_bytes()));
        control.extend(extension_headers(endpoint.encapsulation.protocol(), input));
    }
    if !takes_headers(endpoint) {
        control.truncate(CONTROL_BYTES);
    }
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

/// Whether extension headers come with its messages.
fn takes_headers(endpoint: &Endpoint) -> bool {
    endpoint.encapsulation != UDP && endpoint.local.is_ipv6()
}

/// Extension headers before one of number `last`, in control messages, most of them well formed.
fn extension_headers(last: u8, input: &mut Input<'_>) -> Vec<u8> {
    let choice = input.byte();
    let (mut messages, mut next) = (Vec::new(), last);
    for code in input.take(usize::from(choice & 15)).iter().rev() {
        let (kind, number) = KINDS[usize::from(code % 3)];
        let units = code >> 2 & 7;
        let mut header = vec![*code; 8 + 8 * usize::from(units)];
        header[0] = [next, next, next, next, next, next, protocol::FRAGMENT, 99][usize::from(code >> 5)];
        header[1] = units + (choice >> 7);
        messages.push(cmsg(libc::IPPROTO_IPV6, kind, &header));
        next = number;
    }
    messages.into_iter().rev().flatten().collect()
}

/// Control messages with an extension header, and the header's number.
const KINDS: [(i32, u8); 3] = [
    (libc::IPV6_HOPOPTS, protocol::HOP_BY_HOP),
    (libc::IPV6_DSTOPTS, protocol::DESTINATION_OPTIONS),
    (libc::IPV6_RTHDR, protocol::ROUTING),
];

/// A payload with the extension headers before it, and the number of the first of them.
fn with_headers(control: &[u8], last: u8, payload: &[u8]) -> Result<(u8, Vec<u8>), DropReason> {
    let headers = control_messages(control).into_iter().filter_map(|(level, kind, data)| {
        let number = KINDS.iter().find(|(header, _)| (level, kind) == (libc::IPPROTO_IPV6, *header))?.1;
        Some((number, data.to_vec()))
    });
    let mut headers: Vec<_> = headers.collect();
    if headers.len() > 8 {
        return Err(DropReason::BadHeader);
    }
    let (mut next, mut content) = (last, payload.to_vec());
    while let Some((number, mut header)) = headers.pop() {
        if header.len() < 2 || header.len() != 8 + 8 * usize::from(header[1]) {
            return Err(DropReason::BadHeader);
        }
        if header[0] != next && header[0] != protocol::FRAGMENT {
            return Err(DropReason::BadHeader);
        }
        header[0] = next;
        header.extend(content);
        (next, content) = (number, header);
    }
    Ok((next, content))
}

/// What the kernel gives of an IPv4 datagram; the checksum of a header with options is made anew.
fn corrected(datagram: &[u8]) -> Vec<u8> {
    let mut datagram = datagram.to_vec();
    let header_bytes = datagram.first().map_or(0, |first| usize::from(first & 15) * 4);
    if header_bytes > 20 && header_bytes <= datagram.len() {
        datagram[10..12].fill(0);
        let sum = checksum::of(&datagram[..header_bytes]).to_bytes();
        datagram[10..12].copy_from_slice(&sum);
    }
    datagram
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
    let is_cut = message.cut || is_too_long || takes_headers(endpoint) && message.control.len() > AREA_BYTES;
    match message.source {
        // UDP checks for a sender first, raw sockets for the length.
        None if is_udp => return drop(DropReason::BadHeader, pieces.len()),
        _ if is_cut => return drop(DropReason::ReceiveTruncated, pieces.len()),
        _ => {}
    }
    for piece in pieces {
        let packet = match message.source {
            _ if is_whole_v4 => Ok(corrected(piece)),
            source => under_headers(source, &message.control, endpoint, packet_bytes, piece),
        };
        match packet {
            Ok(packet) => expected.push_back(packet),
            Err(reason) => drop(reason, 1),
        }
    }
}

/// A payload under the headers that the kernel removed.
fn under_headers(
    source: Option<SocketAddr>,
    control: &[u8],
    endpoint: &Endpoint,
    packet_bytes: usize,
    payload: &[u8],
) -> Result<Vec<u8>, DropReason> {
    let about = about(control);
    let number = endpoint.encapsulation.protocol();
    let (number, content) = if takes_headers(endpoint) {
        with_headers(control, number, payload)?
    } else {
        (number, payload.to_vec())
    };
    // The payload moves by twice the headers' length, so that there is room before the datagram.
    if 2 * (content.len() - payload.len()) > TAILROOM_BYTES + packet_bytes - payload.len() {
        return Err(DropReason::NoRoom);
    }
    let fields = Fields {
        number,
        class: about.traffic_class,
        hop_limit: about.hop_limit.unwrap_or(64),
        flow_label: about.flow_label,
    };
    let destination = about.destination.unwrap_or(endpoint.local);
    source.and_then(|source| packet(source, destination, fields, &content)).ok_or(DropReason::BadHeader)
}
