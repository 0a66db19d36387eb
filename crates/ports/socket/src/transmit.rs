//! Sending: packets of one peer and size as one message, many messages as one system call, no copies.

use crate::address::RawAddress;
use crate::channel::{Channel, is_fatal};
use crate::control::Control;
use crate::datagram::{Datagram, Way};
use crate::kernel::{MessageSocket, Outgoing};
use crate::open::Endpoint;
use arrayvec::ArrayVec;
use std::io::{self, IoSlice};
use std::ops::Range;
use testudo_packet::{BATCH_SIZE, Batch, DropReason, Pool, Sent, TxOutcome};
use testudo_wire::ip::Version;
use testudo_wire::udp::complete_ipv6_checksum;

/// The most payload of one message: without segmentation it would be one IP datagram, whose length has 16
/// bits.
const MAX_MESSAGE_BYTES: usize = 65_535 - 48;

/// The TTL that the kernel gives by itself (ip(7), `ip_default_ttl`), and that tunnels have.
const USUAL_HOP_LIMIT: u8 = 64;

/// Sockets for packets in clear; `None` if the port has no interface for them.
#[derive(Debug)]
pub struct Bypass<S> {
    /// For IPv4.
    pub v4: Option<S>,
    /// For IPv6.
    pub v6: Option<S>,
}

type Datagrams = ArrayVec<Result<Datagram, DropReason>, BATCH_SIZE>;

/// A batch that is being sent.
struct Dispatch<'a> {
    batch: &'a Batch,
    datagrams: &'a [Result<Datagram, DropReason>],
    outcomes: [TxOutcome; BATCH_SIZE],
    calls: u64,
}

/// Packets of a joined message that was refused.
struct Retry {
    packets: Range<usize>,
    /// Whether the system will refuse all such messages.
    is_about_joining: bool,
}

/// Why nothing more can be sent now.
enum Stop {
    Later,
    Fatal(io::Error),
}

/// Sends a prefix of the batch; over IPv6 the kernel may fragment what is longer than `mtu`. Returns what was
/// sent, and an error if a socket is unusable from now on.
pub(crate) fn transmit<S: MessageSocket>(
    channels: &mut [Channel<S>],
    bypass: &Bypass<S>,
    mtu: usize,
    pool: &mut Pool,
    batch: &mut Batch,
) -> (Sent, io::Result<()>) {
    let mut datagrams = Datagrams::new();
    address_all(channels, batch, mtu, &mut datagrams);
    complete_checksums(channels, &datagrams, batch);
    let mut dispatch =
        Dispatch { batch, datagrams: &datagrams, outcomes: [TxOutcome::Kept; BATCH_SIZE], calls: 0 };
    let outcome = dispatch.run(channels, bypass);
    let (outcomes, calls) = (dispatch.outcomes, dispatch.calls);
    let sent = Sent::settle(pool, batch, &outcomes, calls);
    match outcome {
        Err(Stop::Fatal(error)) => (sent, Err(error)),
        Err(Stop::Later) | Ok(()) => (sent, Ok(())),
    }
}

/// Finds the destination of every packet of a batch, from the packet before where both are alike. The list is
/// filled in place, not returned: it has thousands of bytes.
fn address_all<S>(channels: &[Channel<S>], batch: &Batch, mtu: usize, datagrams: &mut Datagrams) {
    let endpoints = channels.iter().map(|c| &c.endpoint);
    let mut before: &[u8] = &[];
    for buffer in batch {
        let packet = buffer.bytes();
        let alike = match datagrams.last() {
            Some(Ok(datagram)) => datagram.of_next(before, packet, mtu),
            _ => None,
        };
        datagrams.push(alike.map_or_else(|| Datagram::address(packet, endpoints.clone(), mtu), Ok));
        before = packet;
    }
}

/// Writes the UDP checksum of what leaves by raw sockets over IPv6, where there must be one (RFC 8200 8.1)
/// and no UDP socket computes it. Over IPv4 none is as good (RFC 3948 2.1).
fn complete_checksums<S>(channels: &[Channel<S>], datagrams: &Datagrams, batch: &mut Batch) {
    let needs_one = |end: &Endpoint| end.local.is_ipv6() && end.encapsulation.has_own_udp_header();
    if !channels.iter().any(|channel| needs_one(&channel.endpoint)) {
        return;
    }
    for (datagram, buffer) in datagrams.iter().zip(batch.iter_mut()) {
        if let Ok(Datagram { way: Way::Endpoint(index), .. }) = datagram
            && channels.get(*index).is_some_and(|channel| needs_one(&channel.endpoint))
        {
            complete_ipv6_checksum(buffer.bytes_mut());
        }
    }
}

impl Dispatch<'_> {
    /// Sends the batch, one run of packets that share a socket and its options after the other.
    fn run<S: MessageSocket>(&mut self, channels: &mut [Channel<S>], bypass: &Bypass<S>) -> Result<(), Stop> {
        let mut at = 0;
        while let Some(first) = self.datagrams.get(at) {
            let first = match *first {
                Ok(datagram) => datagram,
                Err(reason) => {
                    self.outcomes[at] = TxOutcome::Refused(reason);
                    at += 1;
                    continue;
                }
            };
            let same = |p: &Result<Datagram, DropReason>| {
                p.is_ok_and(|p| (p.way, p.dont_fragment) == (first.way, first.dont_fragment))
            };
            let end =
                self.datagrams[at..].iter().position(|p| !same(p)).map_or(self.datagrams.len(), |n| at + n);
            match first.way {
                Way::Endpoint(index) => match channels.get_mut(index) {
                    Some(channel) => self.send_by_endpoint(channel, first.dont_fragment, at..end)?,
                    None => self.refuse(at..end, DropReason::SendRefused),
                },
                Way::Bypass(version) => self.send_in_clear(bypass, version, at..end)?,
            }
            at = end;
        }
        Ok(())
    }

    fn send_by_endpoint(
        &mut self,
        channel: &mut Channel<impl MessageSocket>,
        dont_fragment: bool,
        run: Range<usize>,
    ) -> Result<(), Stop> {
        if channel.set_dont_fragment(dont_fragment).is_err() {
            self.refuse(run, DropReason::SendRefused);
            return Ok(());
        }
        let run = if channel.joins { self.without_growing_tail(run) } else { run };
        self.send(&channel.socket, &mut channel.joins, run)
    }

    /// After a full batch more packets are waiting: its last message, if it could take more packets, stays
    /// for the next call, so that super-frames that do not fit one message do not each leave a small message
    /// at their end.
    fn without_growing_tail(&self, run: Range<usize>) -> Range<usize> {
        if !self.batch.is_full() || run.end < self.datagrams.len() {
            return run;
        }
        match self.messages(run.clone(), true).as_slice() {
            [_, .., last] if self.may_grow(last) => run.start..last.start,
            _ => run,
        }
    }

    /// Whether another packet like its first could join a message.
    fn may_grow(&self, message: &Range<usize>) -> bool {
        let lengths = || self.datagrams[message.clone()].iter().flatten().map(Datagram::len);
        let first = lengths().next().unwrap_or(0);
        lengths().all(|bytes| bytes == first) && first * (message.len() + 1) <= MAX_MESSAGE_BYTES
    }

    fn send_in_clear(
        &mut self,
        bypass: &Bypass<impl MessageSocket>,
        version: Version,
        run: Range<usize>,
    ) -> Result<(), Stop> {
        let socket = if version == Version::V4 { &bypass.v4 } else { &bypass.v6 };
        match socket {
            // A packet that waits here would block those of the tunnels after it; packets in clear have
            // senders that retransmit.
            Some(socket) => match self.send(socket, &mut false, run.clone()) {
                Err(Stop::Later) => {
                    let kept = run.filter(|&index| self.outcomes[index] == TxOutcome::Kept);
                    kept.collect::<ArrayVec<usize, BATCH_SIZE>>()
                        .into_iter()
                        .for_each(|index| self.outcomes[index] = TxOutcome::Refused(DropReason::QueueFull));
                    Ok(())
                }
                other => other,
            },
            None => {
                self.refuse(run, DropReason::BypassUnavailable);
                Ok(())
            }
        }
    }

    /// Sends a run by one socket. `joins` is set to `false` when the system refuses to segment.
    fn send(&mut self, socket: &impl MessageSocket, joins: &mut bool, run: Range<usize>) -> Result<(), Stop> {
        let mut at = run.start;
        // A message that was refused as a whole is sent again packet by packet.
        let mut retry = Retry { packets: at..at, is_about_joining: false };
        while at < run.end {
            let in_retry = retry.packets.contains(&at);
            let end = if in_retry { retry.packets.end } else { run.end };
            let ranges = self.messages(at..end, *joins && !in_retry);
            let first = ranges.first().cloned().unwrap_or(at..end);
            match self.send_messages(socket, at..end, &ranges) {
                Ok(count) => {
                    let sent_to = ranges.get(count.saturating_sub(1)).map_or(end, |r| r.end);
                    self.outcomes[at..sent_to].fill(TxOutcome::Sent);
                    at = sent_to;
                }
                Err(error) if first.len() > 1 && may_be_about_joining(&error) => {
                    let is_about_joining = self.is_about_joining(&error, first.start);
                    retry = Retry { packets: first, is_about_joining };
                }
                Err(error) => {
                    let reason = refusal(error)?;
                    at = first.end;
                    self.refuse(first, reason);
                }
            }
            if in_retry && at >= retry.packets.end && retry.is_about_joining {
                let all_went =
                    self.outcomes[retry.packets.clone()].iter().all(|&outcome| outcome == TxOutcome::Sent);
                *joins = *joins && !all_went;
            }
        }
        Ok(())
    }

    /// Whether a joined message was refused because it was joined, not for the length of its packets, which
    /// may be fragmented when they are sent one by one.
    fn is_about_joining(&self, error: &io::Error, first: usize) -> bool {
        let dont_fragment = self.datagrams.get(first).is_some_and(|p| p.is_ok_and(|p| p.dont_fragment));
        match error.raw_os_error() {
            Some(libc::EIO) => true,
            Some(libc::EINVAL) => dont_fragment,
            _ => false,
        }
    }

    /// Splits a run into messages: ranges of packets that are sent together.
    fn messages(&self, run: Range<usize>, joins: bool) -> ArrayVec<Range<usize>, BATCH_SIZE> {
        let mut ranges = ArrayVec::new();
        let mut at = run.start;
        while at < run.end {
            let end = if joins { self.joined_end(at, run.end) } else { at + 1 };
            ranges.push(at..end);
            at = end;
        }
        ranges
    }

    /// The end of the message that starts with packet `start`: the first shorter packet is its last one.
    fn joined_end(&self, start: usize, limit: usize) -> usize {
        let Some(Ok(first)) = self.datagrams.get(start) else { return start + 1 };
        let mut bytes = first.len();
        for (index, datagram) in self.datagrams.iter().enumerate().take(limit).skip(start + 1) {
            let Ok(datagram) = datagram else { return index };
            bytes += datagram.len();
            if !datagram.may_follow(first) || bytes > MAX_MESSAGE_BYTES {
                return index;
            }
            if datagram.len() < first.len() {
                return index + 1;
            }
        }
        limit
    }

    fn send_messages(
        &mut self,
        socket: &impl MessageSocket,
        run: Range<usize>,
        ranges: &[Range<usize>],
    ) -> io::Result<usize> {
        let mut slices: ArrayVec<IoSlice<'_>, BATCH_SIZE> = ArrayVec::new();
        for (buffer, datagram) in self.batch[run.clone()].iter().zip(&self.datagrams[run.clone()]) {
            let bytes = datagram.ok().and_then(|p| buffer.bytes().get(p.start..p.end));
            slices.push(IoSlice::new(bytes.unwrap_or_default()));
        }
        let mut messages: ArrayVec<Outgoing<'_>, BATCH_SIZE> = ArrayVec::new();
        for range in ranges {
            let Some(Ok(first)) = self.datagrams.get(range.start) else { continue };
            let slices = &slices[range.start - run.start..range.end - run.start];
            messages.push(Outgoing {
                destination: RawAddress::new(first.destination),
                control: control(first, range.len() > 1),
                slices,
            });
        }
        let count = socket.send_many(&messages)?;
        self.calls += 1;
        Ok(count)
    }

    fn refuse(&mut self, range: Range<usize>, reason: DropReason) {
        self.outcomes[range].fill(TxOutcome::Refused(reason));
    }
}

/// The control data of a message that starts with the packet `first`.
fn control(first: &Datagram, is_joined: bool) -> Control {
    let mut control = Control::EMPTY;
    if first.way == Way::Bypass(Version::V4) || first.way == Way::Bypass(Version::V6) {
        return control;
    }
    if first.traffic_class != 0 {
        control.push_traffic_class(first.destination.is_ipv6(), first.traffic_class);
    }
    if first.flow_label != 0 {
        control.push_flow_label(first.flow_label);
    }
    if is_joined {
        // Lossless: a message of several packets is below 64 KiB.
        control.push_segment_size(u16::try_from(first.len()).unwrap_or(u16::MAX));
    }
    if let Some(source) = first.source {
        control.push_source(source);
    }
    // 0 is no TTL to ask for: such a datagram goes nowhere.
    if !first.is_whole() && ![0, USUAL_HOP_LIMIT].contains(&first.hop_limit) {
        control.push_hop_limit(first.destination.is_ipv6(), first.hop_limit);
    }
    control
}

/// EIO: the interface cannot checksum, or IPsec in the kernel prevents it. EINVAL: some kernels mean the
/// same, some a datagram beyond the MTU, for which others say EMSGSIZE: a shorter one after it may still be
/// sent.
fn may_be_about_joining(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE))
}

/// Why a single message was refused.
fn refusal(error: io::Error) -> Result<DropReason, Stop> {
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => Err(Stop::Later),
        Some(libc::EMSGSIZE) => Ok(DropReason::MessageTooLong),
        _ if is_fatal(&error) => Err(Stop::Fatal(error)),
        // No route, host unreachable, a firewall, or an ICMP error about an earlier packet.
        _ => Ok(DropReason::SendRefused),
    }
}
