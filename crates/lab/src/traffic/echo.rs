//! Echoed UDP datagrams of any size, fragmented ones included.

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::RoundTrips;
use super::pattern::Pattern;
use crate::error::{LabError, io as io_error};
use crate::namespaces::Namespace;

/// How long to wait for an answer, and how often a datagram is sent before it counts as lost.
const PATIENCE: Duration = Duration::from_millis(500);
const ATTEMPTS: usize = 3;
/// How often the echoing thread checks whether to stop.
const POLL: Duration = Duration::from_millis(20);
const LARGEST: usize = 65_535;

/// Sends a datagram of each of `sizes` (bytes of user data) from `from` to `address`, which is in `to` and
/// echoes it, and waits for each answer; the sizes must differ from one another. One that is not answered is
/// sent again, twice at most.
///
/// # Errors
/// A socket cannot be opened or used, or [`LabError::Corrupted`] if a datagram comes back changed. A lost
/// datagram is no error; it is counted.
pub fn udp_echo(
    from: &Namespace,
    to: &Namespace,
    address: IpAddr,
    sizes: &[usize],
) -> Result<RoundTrips, LabError> {
    let far = to.within(|| UdpSocket::bind((address, 0)))?.map_err(io_error(format!("bind to {address}")))?;
    let port = far.local_addr().map_err(io_error("read the port of a UDP socket"))?.port();
    let any = if address.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" };
    let near = from
        .within(|| UdpSocket::bind(any).and_then(|near| near.connect((address, port)).map(|()| near)))?
        .map_err(io_error("open a UDP socket"))?;
    far.set_read_timeout(Some(POLL)).map_err(io_error("set a receive timeout"))?;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| reflect(&far, &done));
        let result = exchange(&near, sizes);
        done.store(true, Ordering::Relaxed);
        result
    })
}

/// Echoes every datagram to its sender.
fn reflect(socket: &UdpSocket, done: &AtomicBool) {
    let mut buffer = vec![0; LARGEST];
    while !done.load(Ordering::Relaxed) {
        if let Ok((length, from)) = socket.recv_from(&mut buffer) {
            // The other end counts an answer that could not be sent as missing.
            let _ = socket.send_to(&buffer[..length], from);
        }
    }
}

fn exchange(socket: &UdpSocket, sizes: &[usize]) -> Result<RoundTrips, LabError> {
    let (pattern, mut trips, mut answer) = (Pattern::new(), RoundTrips::default(), vec![0; LARGEST]);
    for (number, &size) in sizes.iter().enumerate() {
        let position = u64::try_from(number * 4099).unwrap_or(0) % 65_536;
        let datagram = &pattern.from(position)[..size];
        let sent = || io_error(format!("send {size} bytes of UDP"));
        // The first attempt may be lost in discovering the path's MTU (RFC 8201 3).
        let times =
            [(); ATTEMPTS].iter().find_map(|()| there_and_back(socket, datagram, &mut answer).transpose());
        match times.transpose().map_err(sent())? {
            Some(time) if answer[..size] == *datagram => trips.times.push(time),
            Some(_) => {
                return Err(LabError::Corrupted(format!("a UDP datagram of {size} bytes came back changed")));
            }
            None => trips.lost += 1,
        }
    }
    Ok(trips)
}

/// Sends `datagram` and waits for an answer of its length; `None` if there is none. An answer of another
/// length is a late one, to an attempt that was given up.
fn there_and_back(socket: &UdpSocket, datagram: &[u8], answer: &mut [u8]) -> io::Result<Option<Duration>> {
    let started = Instant::now();
    // The path's MTU has just been learned from an ICMP message: the kernel fragments the next attempt. The
    // message may have come before this attempt, or in answer to it.
    let is_too_long = |error: &io::Error| error.raw_os_error() == Some(Errno::MSGSIZE.raw_os_error());
    match socket.send(datagram) {
        Err(error) if is_too_long(&error) => return Ok(None),
        other => other?,
    };
    loop {
        let left = PATIENCE.saturating_sub(started.elapsed());
        if left.is_zero() {
            return Ok(None);
        }
        socket.set_read_timeout(Some(left))?;
        match socket.recv(answer) {
            Ok(length) if length == datagram.len() => return Ok(Some(started.elapsed())),
            Ok(_) => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(error) if is_too_long(&error) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}
