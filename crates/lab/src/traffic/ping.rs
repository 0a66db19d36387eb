//! ICMP echo without the program `ping`: uses the kernel's ICMP sockets (`man 7 icmp`, ping_group_range).

use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, ipproto, socket};

use super::RoundTrips;
use super::tcp::portless;
use crate::error::{LabError, io};
use crate::namespaces::Namespace;

/// Bytes of an ICMP header (RFC 792, RFC 4443 4.1), and of the whole message, which is as long as that of
/// `ping`.
const HEADER: usize = 8;
const MESSAGE: usize = 64;

/// Sends `count` echo requests from `from` to `address`, each after the previous one was answered or timed
/// out after `patience`.
///
/// # Errors
/// An ICMP socket cannot be opened, or a request cannot be sent. An unanswered request is no error; it is
/// counted.
pub fn ping(
    from: &Namespace,
    address: IpAddr,
    count: u16,
    patience: Duration,
) -> Result<RoundTrips, LabError> {
    ping_from(from, None, address, count, patience)
}

/// The same from this address, or from the one that routes choose.
///
/// # Errors
/// As [`ping`], and the host does not have the address.
pub fn ping_from(
    from: &Namespace,
    source: Option<IpAddr>,
    address: IpAddr,
    count: u16,
    patience: Duration,
) -> Result<RoundTrips, LabError> {
    // Group 0 is the only one sure to exist in a user namespace, and it is ours.
    from.sysctl("net.ipv4.ping_group_range", "0 0")?;
    let socket = from.within(|| open(address))?.map_err(io("open an ICMP socket"))?;
    if let Some(source) = source {
        let bound = rustix::net::bind(&socket, &portless(source));
        bound.map_err(|error| io(format!("send from {source}"))(error.into()))?;
    }
    socket.connect(portless(address)).map_err(io(format!("find a route to {address}")))?;
    let mut trips = RoundTrips::default();
    for number in 0..count {
        match echo(&socket, address, number, patience).map_err(io(format!("ping {address}")))? {
            Some(time) => trips.times.push(time),
            None => trips.lost += 1,
        }
    }
    Ok(trips)
}

/// An ICMP socket, as std's type for datagram sockets.
fn open(address: IpAddr) -> std::io::Result<UdpSocket> {
    let (family, protocol) = match address {
        IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP),
        IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6),
    };
    Ok(UdpSocket::from(socket(family, SocketType::DGRAM, Some(protocol))?))
}

/// The kernel fills in identifier and checksum.
pub(crate) fn echo_request(address: IpAddr, number: u16) -> [u8; MESSAGE] {
    let mut message = [0x5a; MESSAGE];
    message[..HEADER].fill(0);
    message[0] = if address.is_ipv6() { 128 } else { 8 };
    message[6..HEADER].copy_from_slice(&number.to_be_bytes());
    message
}

/// Whether `answer` is the echo reply to `request`: same number, same data.
pub(crate) fn echo_answers(address: IpAddr, request: &[u8; MESSAGE], answer: &[u8]) -> bool {
    let reply = if address.is_ipv6() { 129 } else { 0 };
    answer.len() == MESSAGE && answer[0] == reply && answer[6..] == request[6..]
}

fn echo(
    socket: &UdpSocket,
    address: IpAddr,
    number: u16,
    patience: Duration,
) -> std::io::Result<Option<Duration>> {
    let request = echo_request(address, number);
    let started = Instant::now();
    socket.send(&request)?;
    let mut answer = [0; 2 * MESSAGE];
    loop {
        let left = patience.saturating_sub(started.elapsed());
        if left.is_zero() {
            return Ok(None);
        }
        socket.set_read_timeout(Some(left))?;
        // Errors here are an unreachable destination or our timeout: no echo in either case.
        if let Ok(length) = socket.recv(&mut answer)
            && echo_answers(address, &request, &answer[..length])
        {
            return Ok(Some(started.elapsed()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_reply_to_this_request_with_its_data_is_an_answer() {
        for (address, reply) in [("10.0.0.1", 0), ("fd00::1", 129)] {
            let address = address.parse().unwrap();
            let sent = echo_request(address, 7);
            let mut answer = sent;
            assert!(!echo_answers(address, &sent, &answer), "our own request");
            answer[0] = reply;
            answer[4] = 99; // the identifier, which the kernel chose
            assert!(echo_answers(address, &sent, &answer));
            assert!(!echo_answers(address, &echo_request(address, 8), &answer), "another number");
            assert!(!echo_answers(address, &sent, &answer[..63]), "truncated");
            answer[63] ^= 1;
            assert!(!echo_answers(address, &sent, &answer), "other data");
        }
    }
}
