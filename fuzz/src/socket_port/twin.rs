//! Sockets in memory, and their kernel, which returns what it is told to return.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use testudo_port_socket::{About, ControlArea, Incoming, MessageSocket, Outgoing};

/// Errors that a socket returns: the ones that make it unusable first.
pub(super) const ERRORS: [i32; 14] = [
    libc::EBADF,
    libc::EOPNOTSUPP,
    libc::EAGAIN,
    libc::EINTR,
    libc::ENOBUFS,
    libc::ENOMEM,
    libc::ECONNREFUSED,
    libc::EHOSTUNREACH,
    libc::EMSGSIZE,
    libc::EIO,
    libc::EINVAL,
    libc::EPERM,
    libc::ENETUNREACH,
    libc::EAGAIN,
];
const FATAL: usize = 2;

/// What arrives at a socket.
pub(super) enum Arrival {
    Message(Message),
    Error(i32),
}

/// A message, and the kernel's information on it.
pub(super) struct Message {
    pub(super) bytes: Vec<u8>,
    pub(super) control: Vec<u8>,
    pub(super) source: Option<SocketAddr>,
    pub(super) cut: bool,
}

/// A datagram as it would be on the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Datagram {
    pub(super) socket: usize,
    pub(super) destination: SocketAddr,
    pub(super) source: Option<IpAddr>,
    pub(super) traffic_class: u8,
    /// The TTL or hop limit that was asked for.
    pub(super) hop_limit: Option<u8>,
    pub(super) dont_fragment: Option<bool>,
    pub(super) payload: Vec<u8>,
}

/// The kernel of all sockets.
#[derive(Default)]
pub(super) struct Kernel {
    pub(super) arriving: VecDeque<Arrival>,
    /// Errors returned that mean that a socket is unusable.
    pub(super) fatal: usize,
    /// Results of the next calls that send: an error, or a number of messages taken. After these, all are
    /// taken.
    pub(super) answers: VecDeque<u8>,
    pub(super) sent: Vec<Datagram>,
    pub(super) dont_fragment: BTreeMap<usize, bool>,
}

#[derive(Clone)]
pub(super) struct Twin {
    pub(super) number: usize,
    pub(super) kernel: Arc<Mutex<Kernel>>,
}

impl Twin {
    fn take(&self, slices: &mut [IoSliceMut<'_>], area: Option<&mut ControlArea>) -> io::Result<Incoming> {
        let mut kernel = self.kernel.lock().expect("not poisoned");
        match kernel.arriving.pop_front().ok_or(io::ErrorKind::WouldBlock)? {
            Arrival::Error(code) => {
                kernel.fatal += usize::from(ERRORS[..FATAL].contains(&code));
                Err(io::Error::from_raw_os_error(code))
            }
            Arrival::Message(message) => {
                let mut rest = &message.bytes[..];
                for slice in slices {
                    let (now, later) = rest.split_at(slice.len().min(rest.len()));
                    slice[..now.len()].copy_from_slice(now);
                    rest = later;
                }
                let control_fits = area.is_none_or(|area| area.fill(&message.control));
                Ok(Incoming {
                    bytes: message.bytes.len(),
                    cut: message.cut || !rest.is_empty() || !control_fits,
                    source: message.source,
                    about: About::read(&message.control),
                })
            }
        }
    }
}

impl MessageSocket for Twin {
    fn receive(&self, slices: &mut [IoSliceMut<'_>]) -> io::Result<Incoming> {
        self.take(slices, None)
    }

    fn receive_many<const N: usize>(
        &self,
        messages: &mut [&mut [IoSliceMut<'_>]],
        controls: &mut [ControlArea],
        received: &mut arrayvec::ArrayVec<Incoming, N>,
    ) -> io::Result<()> {
        received.clear();
        let mut controls = controls.iter_mut();
        for slices in messages.iter_mut().take(N) {
            // Like recvmmsg(2): an error after the first message is left for the next call.
            let next_is_error = {
                let kernel = self.kernel.lock().expect("not poisoned");
                matches!(kernel.arriving.front(), None | Some(Arrival::Error(_)))
            };
            if next_is_error && !received.is_empty() {
                break;
            }
            received.push(self.take(slices, controls.next())?);
        }
        Ok(())
    }

    fn send_many(&self, messages: &[Outgoing<'_>]) -> io::Result<usize> {
        assert!(!messages.is_empty() && messages.len() <= 64, "{} messages at once", messages.len());
        let mut kernel = self.kernel.lock().expect("not poisoned");
        let answer = kernel.answers.pop_front().unwrap_or(u8::MAX);
        if let Some(&code) = ERRORS.get(usize::from(answer)) {
            kernel.fatal += usize::from(usize::from(answer) < FATAL);
            return Err(io::Error::from_raw_os_error(code));
        }
        let taken = messages.len().min(usize::from(answer) - ERRORS.len() + 1);
        let dont_fragment = kernel.dont_fragment.get(&self.number).copied();
        for message in &messages[..taken] {
            let datagrams = on_the_wire(self.number, message, dont_fragment);
            kernel.sent.extend(datagrams);
        }
        Ok(taken)
    }

    fn set_dont_fragment(&self, _: IpAddr, wanted: bool) -> io::Result<()> {
        self.kernel.lock().expect("not poisoned").dont_fragment.insert(self.number, wanted);
        Ok(())
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Control messages by level and type, parsed by a plain loop.
pub(super) fn control_messages(bytes: &[u8]) -> Vec<(i32, i32, &[u8])> {
    let mut messages = Vec::new();
    let mut at = 0usize;
    while at + 16 <= bytes.len() {
        let length = u64::from_ne_bytes(*bytes[at..].first_chunk().expect("16 bytes"));
        let int = |at: usize| i32::from_ne_bytes(*bytes[at..].first_chunk().expect("four bytes"));
        let Ok(length) = usize::try_from(length) else { break };
        if length < 16 || length > bytes.len() - at {
            break;
        }
        messages.push((int(at + 8), int(at + 12), &bytes[at + 16..at + length]));
        at += length.next_multiple_of(8);
    }
    messages
}

fn int(data: &[u8]) -> Option<i64> {
    data.first_chunk().map(|bytes| i64::from(i32::from_ne_bytes(*bytes)))
}

fn address(data: &[u8], at: usize, bytes: usize) -> Option<IpAddr> {
    let data = data.get(at..at + bytes)?;
    match bytes {
        4 => data.first_chunk::<4>().map(|b| IpAddr::from(*b)),
        _ => data.first_chunk::<16>().map(|b| IpAddr::from(*b)),
    }
}

/// What control data says of a received datagram; the last value counts.
pub(super) fn about(bytes: &[u8]) -> About {
    let mut about = About::default();
    for (level, kind, data) in control_messages(bytes) {
        match (level, kind) {
            (libc::SOL_UDP, libc::UDP_GRO) => {
                about.gro_size = int(data).filter(|&size| size > 0).map(|size| size as usize);
            }
            (libc::IPPROTO_IP, libc::IP_TOS) => about.traffic_class = data.first().copied().unwrap_or(0),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                about.traffic_class = int(data).and_then(|class| u8::try_from(class).ok()).unwrap_or(0);
            }
            (libc::IPPROTO_IPV6, libc::IPV6_FLOWINFO) => {
                let word = data.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
                about.traffic_class = (word >> 20) as u8;
                about.flow_label = word % (1 << 20);
            }
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                about.hop_limit = int(data).and_then(|limit| u8::try_from(limit).ok());
            }
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => about.destination = address(data, 8, 4),
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => about.destination = address(data, 0, 16),
            _ => {}
        }
    }
    about
}

/// The datagrams that a message becomes: the kernel splits it where it is told to.
fn on_the_wire(socket: usize, message: &Outgoing<'_>, dont_fragment: Option<bool>) -> Vec<Datagram> {
    let (mut traffic_class, mut hop_limit, mut segment, mut source) = (0, None, None, None);
    for (level, kind, data) in control_messages(message.control()) {
        match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                traffic_class = int(data).expect("an int") as u8;
            }
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                let limit = int(data).expect("an int");
                // ip(7): the kernel refuses any other.
                assert!((1..=255).contains(&limit), "a TTL of {limit}");
                hop_limit = Some(limit as u8);
            }
            (libc::SOL_UDP, libc::UDP_SEGMENT) => {
                segment = data.first_chunk().map(|bytes| usize::from(u16::from_ne_bytes(*bytes)));
            }
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => source = address(data, 4, 4),
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => source = address(data, 0, 16),
            other => panic!("control message {other:?}"),
        }
    }
    let payload: Vec<u8> = message.slices().iter().flat_map(|slice| slice.iter().copied()).collect();
    let destination = message.destination().expect("an address");
    let datagram = |payload: &[u8]| Datagram {
        socket,
        destination,
        source,
        traffic_class,
        hop_limit,
        dont_fragment,
        payload: payload.to_vec(),
    };
    match segment {
        Some(size) => {
            assert!(size > 0 && payload.len() <= 65_487, "{} bytes in segments of {size}", payload.len());
            payload.chunks(size).map(datagram).collect()
        }
        None => {
            assert!(message.slices().len() == 1, "several packets without a segment size");
            vec![datagram(&payload)]
        }
    }
}
