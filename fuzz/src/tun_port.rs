//! The TUN port over a device in memory with arbitrary input and results.

use crate::delivered::deliver;
use crate::input::Input;
use crate::support::Inner;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use testudo_packet::{BATCH_SIZE, Batch, DropReason, Pool, Port};
use testudo_port_tun::split::{SuperFrame, complete_checksum};
use testudo_port_tun::vnet::{VNET_HEADER_BYTES, VnetHeader};
use testudo_port_tun::{FrameDevice, Offloads, TunPort};

/// Frames of a run, and the bytes of all of them.
const MAX_FRAMES: usize = 200;
const MAX_BYTES: usize = 1 << 20;
/// Longer than any frame.
const FRAME_BYTES: usize = 66_048;
/// Errors that a device returns: first those after which it is gone, when it is written to.
const ERRORS: [i32; 9] = [
    libc::EBADFD,
    libc::ENODEV,
    libc::EAGAIN,
    libc::EINTR,
    libc::EINVAL,
    libc::EIO,
    libc::EMSGSIZE,
    libc::ENOBUFS,
    libc::EAGAIN,
];
const FATAL: usize = 2;

#[derive(Default)]
struct Kernel {
    /// Frames with their vnet header, or errors.
    arriving: VecDeque<Result<Vec<u8>, i32>>,
    /// Errors returned that end a call of `rx` or of `tx` with an error.
    fatal: usize,
    /// Results of the next writes: an error, or success. After these, all succeed.
    answers: VecDeque<u8>,
    written: Vec<Vec<u8>>,
}

#[derive(Clone)]
struct Twin {
    udp: bool,
    kernel: Arc<Mutex<Kernel>>,
}

impl FrameDevice for Twin {
    fn read(&self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut kernel = self.kernel.lock().expect("not poisoned");
        let frame = match kernel.arriving.pop_front().ok_or(io::ErrorKind::WouldBlock)? {
            Ok(frame) => frame,
            Err(code) => {
                kernel.fatal += usize::from(!matches!(code, libc::EAGAIN | libc::EINTR));
                return Err(io::Error::from_raw_os_error(code));
            }
        };
        let mut rest = &frame[..];
        for slice in slices {
            let (now, later) = rest.split_at(slice.len().min(rest.len()));
            slice[..now.len()].copy_from_slice(now);
            rest = later;
        }
        assert!(rest.is_empty() || frame.len() > FRAME_BYTES, "{} bytes found no room", rest.len());
        Ok(frame.len() - rest.len())
    }

    fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut kernel = self.kernel.lock().expect("not poisoned");
        let answer = kernel.answers.pop_front().unwrap_or(u8::MAX);
        if let Some(&code) = ERRORS.get(usize::from(answer)) {
            kernel.fatal += usize::from(usize::from(answer) < FATAL);
            return Err(io::Error::from_raw_os_error(code));
        }
        let frame: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        kernel.written.push(frame.clone());
        Ok(frame.len())
    }

    fn offloads(&self) -> Offloads {
        Offloads { tcp: true, udp: self.udp }
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Twin {
    fn kernel(&self) -> std::sync::MutexGuard<'_, Kernel> {
        self.kernel.lock().expect("not poisoned")
    }
}

fn sum(bytes: &mut [u8]) {
    bytes[10..12].fill(0);
    let sum = testudo_wire::checksum::of(&bytes[..20]).to_bytes();
    bytes[10..12].copy_from_slice(&sum);
}

/// A packet of one of a few flows, TCP (whose sequence number continues at `sequence`) or UDP.
fn packet(kind: u8, payload: usize, sequence: u32) -> Vec<u8> {
    let v6 = kind & 1 != 0;
    let is_tcp = kind & 2 == 0;
    let (header, transport) = (if v6 { 40 } else { 20 }, if is_tcp { 20 } else { 8 });
    let total = header + transport + payload;
    let (from, to) = if v6 { ("fd0a::1", "fd16::2") } else { ("10.0.0.1", "172.16.0.2") };
    let mut bytes = Inner::udp(from, to, total.max(header + 28)).bytes();
    bytes.truncate(total);
    bytes[if v6 { 6 } else { 9 }] = if is_tcp { 6 } else { 17 };
    let at = header;
    bytes[at..at + 4].copy_from_slice(&[0x10, kind & 0x0C, 0x20, 0]);
    if is_tcp {
        bytes[at + 4..at + 8].copy_from_slice(&sequence.to_be_bytes());
        bytes[at + 8..at + 20].copy_from_slice(&[0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    } else {
        bytes[at + 4..at + 6].copy_from_slice(&((transport + payload) as u16).to_be_bytes());
    }
    set_length(&mut bytes);
    bytes
}

/// Sets the length in the IP header to that of the packet.
fn set_length(bytes: &mut [u8]) {
    let length = bytes.len();
    if bytes[0] >> 4 == 6 {
        bytes[4..6].copy_from_slice(&((length - 40) as u16).to_be_bytes());
    } else {
        bytes[2..4].copy_from_slice(&(length as u16).to_be_bytes());
        sum(bytes);
    }
}

/// What the device gives is delivered, split as it says, in order; what is invalid is dropped with a reason,
/// and the pool's buffers are accounted for.
pub fn tun_receive(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.byte();
    let packet_bytes = [600, 1500, 2048, 9000][usize::from(choice & 3)];
    // Frames may be shorter, and then there are more long buffers than a batch needs.
    let frame_bytes = if choice & 4 == 0 { packet_bytes } else { 500 };
    let mut pool =
        Pool::new(1 + usize::from(input.byte()) % 150, frame_bytes).with_long(4 * BATCH_SIZE, packet_bytes);
    let twin = Twin { udp: true, kernel: Arc::default() };
    let mut port = TunPort::over("fuzz", twin.clone());
    let (mut expected, mut drops, mut got) = (VecDeque::new(), BTreeMap::new(), 0);
    let (mut frames, mut bytes) = (0, 0);
    let mut batch = Batch::new();
    while !input.is_empty() && frames < MAX_FRAMES && bytes < MAX_BYTES {
        match input.byte() {
            0..16 => twin.kernel().arriving.push_back(Err(ERRORS[usize::from(input.byte()) % ERRORS.len()])),
            16..64 => {
                receive(&mut port, &twin, &mut pool, &mut batch);
                let taken = usize::from(input.byte()).min(batch.len());
                got += deliver(&mut batch, taken, &mut expected, &mut pool);
            }
            kind => {
                let frame = frame(kind, &mut input);
                (frames, bytes) = (frames + 1, bytes + frame.len());
                foretell(&frame, packet_bytes, &mut expected, &mut drops);
                twin.kernel().arriving.push_back(Ok(frame));
            }
        }
    }
    for _ in 0..4 * MAX_FRAMES + FRAME_BYTES {
        let all = batch.len();
        got += deliver(&mut batch, all, &mut expected, &mut pool);
        let waits = !twin.kernel().arriving.is_empty();
        if !receive(&mut port, &twin, &mut pool, &mut batch) && !waits {
            break;
        }
    }
    assert!(batch.is_empty() && expected.is_empty(), "{} packets never came", expected.len());
    for (reason, count) in pool.drops().iter() {
        assert_eq!(count, drops.remove(&(reason as usize)).unwrap_or(0), "dropped as {reason:?}");
    }
    assert_eq!((pool.in_use(), port.counters().rx_packets), (0, got as u64));
}

/// One call of `rx`; `true` if it delivered a packet.
fn receive(port: &mut TunPort<Twin>, twin: &Twin, pool: &mut Pool, batch: &mut Batch) -> bool {
    let (before, fatal) = (batch.len(), twin.kernel().fatal);
    let outcome = port.rx(pool, batch);
    assert_eq!(outcome.is_err(), twin.kernel().fatal > fatal, "{outcome:?}");
    assert!(outcome.is_err() || outcome.is_ok_and(|received| received == batch.len() - before));
    assert_eq!(pool.in_use(), batch.len(), "a buffer is lost");
    batch.len() > before
}

/// A frame: any bytes, a whole packet, or one to be split, perhaps damaged.
fn frame(kind: u8, input: &mut Input<'_>) -> Vec<u8> {
    if kind < 72 {
        return input.run().to_vec();
    }
    let (payload, gso_size) = (usize::from(input.word()), input.word());
    let payload = if kind & 0x10 != 0 { payload % 3000 } else { payload.min(65_000) };
    let mut bytes = packet(kind, payload, 1);
    for (index, byte) in bytes.iter_mut().enumerate().skip(60) {
        *byte = (index % 251) as u8;
    }
    let is_v6 = kind & 1 != 0;
    let gso_type = match (kind & 0x20 != 0, kind & 2 == 0) {
        (false, _) => 0,
        (true, true) => {
            if is_v6 {
                4
            } else {
                1
            }
        }
        (true, false) => 5,
    };
    let (start, field) = (if is_v6 { 40 } else { 20 }, if kind & 2 == 0 { 16 } else { 6 });
    let gso_size = if kind & 0x40 != 0 { gso_size % 1500 } else { gso_size };
    let mut vnet = VnetHeader {
        flags: 1,
        gso_type,
        gso_size,
        checksum_start: start,
        checksum_offset: field,
        ..VnetHeader::default()
    };
    if kind > 240 {
        vnet =
            VnetHeader { flags: input.byte(), gso_type: input.byte(), checksum_start: input.word(), ..vnet };
        for change in input.run().chunks_exact(2) {
            if let Some(byte) = bytes.get_mut(usize::from(change[0])) {
                *byte = change[1];
            }
        }
        bytes.truncate(bytes.len() - usize::from(input.byte()).min(bytes.len()));
    }
    [&vnet.to_bytes()[..], &bytes].concat()
}

/// The expected result of a frame.
fn foretell(
    frame: &[u8],
    packet_bytes: usize,
    expected: &mut VecDeque<Vec<u8>>,
    drops: &mut BTreeMap<usize, u64>,
) {
    let mut drop =
        |reason: DropReason, count: usize| *drops.entry(reason as usize).or_insert(0) += count as u64;
    let Some((vnet, bytes)) = frame.split_first_chunk::<VNET_HEADER_BYTES>() else {
        return drop(DropReason::BadHeader, 1);
    };
    let vnet = VnetHeader::from_bytes(vnet);
    match vnet.gso() {
        _ if bytes.len() > FRAME_BYTES => drop(DropReason::ReceiveTruncated, 1),
        Err(_) => drop(DropReason::BadHeader, 1),
        Ok(None) if bytes.len() > packet_bytes => drop(DropReason::ReceiveTruncated, 1),
        Ok(None) => {
            let mut packet = bytes.to_vec();
            match complete_checksum(&vnet, &mut packet) {
                Ok(()) => expected.push_back(packet),
                Err(reason) => drop(reason, 1),
            }
        }
        Ok(Some(_)) => match SuperFrame::parse(&vnet, bytes, bytes.len()) {
            Err(reason) => drop(reason, 1),
            Ok(whole) if whole.header_bytes() + whole.payload_range(0).len() > packet_bytes => {
                drop(DropReason::ReceiveTruncated, whole.segments());
            }
            Ok(whole) => expected.extend(cut(&whole, bytes)),
        },
    }
}

/// The packets of a super-frame, in order.
fn cut(whole: &SuperFrame, bytes: &[u8]) -> Vec<Vec<u8>> {
    let payload = &bytes[whole.header_bytes()..];
    let pieces = payload.chunks(whole.gso_size()).enumerate();
    let packet = |(index, piece): (usize, &[u8])| {
        let mut packet = [&vec![0; whole.header_bytes()][..], piece].concat();
        whole.write_headers(index, &mut packet);
        packet
    };
    pieces.map(packet).collect()
}

/// What is written, split again as the kernel would, is what was sent: each packet once, those of a flow in
/// order; refused packets are dropped with a reason; the rest waits.
pub fn tun_transmit(data: &[u8]) {
    let mut input = Input::new(data);
    let twin = Twin { udp: input.byte() & 1 == 0, kernel: Arc::default() };
    let mut port = TunPort::over("fuzz", twin.clone());
    let mut pool = Pool::new(64, 2048);
    let mut batch = Batch::new();
    let mut next = BTreeMap::new();
    let mut steps = 0;
    while !input.is_empty() && steps < 40 {
        steps += 1;
        let answers = usize::from(input.byte() % 8);
        twin.kernel().answers = input.take(answers).to_vec().into();
        for _ in 0..1 + input.byte() % 40 {
            if let (false, Some(mut buffer)) = (batch.is_full(), pool.pop()) {
                let bytes = outgoing(&mut input, &mut next);
                buffer.receive_area()[..bytes.len()].copy_from_slice(&bytes);
                buffer.set_len(bytes.len());
                batch.push(buffer);
            }
        }
        send(&mut port, &twin, &mut pool, &mut batch);
    }
    twin.kernel().answers.clear();
    for _ in 0..3 {
        send(&mut port, &twin, &mut pool, &mut batch);
    }
    assert!(batch.is_empty(), "{} packets stay although all goes", batch.len());
    assert_eq!(pool.available(), pool.size());
}

/// A packet to be sent, mostly one that continues a flow. At most 2,048 bytes.
fn outgoing(input: &mut Input<'_>, next: &mut BTreeMap<u8, u32>) -> Vec<u8> {
    let (kind, size) = (input.byte(), input.byte());
    if kind > 240 {
        let mut bytes = input.run().to_vec();
        bytes.truncate(2048);
        return bytes;
    }
    let payload = [1400, 1400, 100, usize::from(size) * 5][usize::from(size & 3)];
    let sequence = next.entry(kind & 0x0F).or_insert(u32::MAX - 4000);
    let mut bytes = packet(kind & 0x0F, payload, *sequence);
    *sequence = sequence.wrapping_add(payload as u32);
    let (start, field) = (if kind & 1 != 0 { 40 } else { 20 }, if kind & 2 == 0 { 16 } else { 6 });
    let length = (bytes.len() - start) as u32;
    let protocol = if kind & 2 == 0 { 6 } else { 17 };
    if kind & 0x10 != 0 && protocol == 6 {
        bytes[start + 13] |= 8;
    }
    let addresses = if start == 40 { bytes[8..40].to_vec() } else { bytes[12..20].to_vec() };
    bytes[start + field..start + field + 2].fill(0);
    let sum = testudo_wire::checksum::Sum::default().bytes(&addresses).bytes(&[0, 0, 0, protocol]);
    let sum = sum.bytes(&length.to_be_bytes()).bytes(&bytes[start..]).finish().to_bytes();
    let sum = if sum == [0, 0] && protocol == 17 { [0xFF; 2] } else { sum };
    bytes[start + field..start + field + 2].copy_from_slice(&sum);
    if kind & 0x60 == 0x60 {
        let index = usize::from(input.byte()) % bytes.len();
        bytes[index] ^= 1 << (kind & 7);
    }
    bytes
}

/// One call of `tx`, and the check of its result.
fn send(port: &mut TunPort<Twin>, twin: &Twin, pool: &mut Pool, batch: &mut Batch) {
    let mut before: Vec<Vec<u8>> = batch.iter().map(|buffer| buffer.bytes().to_vec()).collect();
    let (fatal, drops, counted) = (twin.kernel().fatal, pool.drops().total(), port.counters().tx_packets);
    let outcome = port.tx(pool, batch);
    assert_eq!(outcome.is_err(), twin.kernel().fatal > fatal, "{outcome:?}");
    assert_eq!(pool.in_use(), batch.len(), "a buffer is lost");
    let sent: Vec<Vec<u8>> =
        std::mem::take(&mut twin.kernel().written).iter().flat_map(|frame| arrived(frame)).collect();
    let dropped = (pool.drops().total() - drops) as usize;
    assert_eq!(sent.len() + dropped + batch.len(), before.len(), "each is sent, refused or kept");
    assert_eq!(port.counters().tx_packets - counted, sent.len() as u64);
    for kept in batch.iter() {
        let index = before.iter().rposition(|packet| packet == kept.bytes()).expect("it is of the batch");
        before.remove(index);
    }
    // What left of a flow is part of it, in order. Equal packets cannot be told apart.
    let mut behind_last: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
    let mut taken = vec![false; before.len()];
    for packet in sent {
        let flow = flow_key(&packet);
        let from = flow.as_ref().and_then(|flow| behind_last.get(flow)).copied().unwrap_or(0);
        let is_it = |n: &usize| !taken[*n] && comparable(&before[*n]) == comparable(&packet);
        let index = (from..before.len()).find(is_it);
        let index = index.unwrap_or_else(|| {
            panic!(
                "not of the batch, or before another of its flow: {:02x?}",
                &packet[..packet.len().min(60)]
            )
        });
        taken[index] = true;
        flow.map(|flow| behind_last.insert(flow, index + 1));
    }
}

/// Protocol, addresses and ports of a packet with plain headers.
fn flow_key(packet: &[u8]) -> Option<Vec<u8>> {
    match packet.first()? >> 4 {
        4 => Some([packet.get(9..10)?, packet.get(12..24)?].concat()),
        6 => Some([packet.get(6..7)?, packet.get(8..44)?].concat()),
        _ => None,
    }
}

/// The packet without what splitting and joining may change: identification and header checksum of IPv4.
fn comparable(packet: &[u8]) -> Vec<u8> {
    let mut bytes = packet.to_vec();
    if bytes.len() >= 20 && bytes[0] >> 4 == 4 {
        bytes[4..6].fill(0);
        bytes[10..12].fill(0);
    }
    bytes
}

/// The packets of a written frame.
fn arrived(frame: &[u8]) -> Vec<Vec<u8>> {
    let (vnet, bytes) = frame.split_first_chunk::<VNET_HEADER_BYTES>().expect("a header");
    let vnet = VnetHeader::from_bytes(vnet);
    if vnet.gso().expect("one that the kernel knows").is_none() {
        assert_eq!(vnet, VnetHeader::default(), "a single packet is as it is");
        return vec![bytes.to_vec()];
    }
    let whole = SuperFrame::parse(&vnet, bytes, bytes.len()).expect("a whole super-frame");
    cut(&whole, bytes)
}
