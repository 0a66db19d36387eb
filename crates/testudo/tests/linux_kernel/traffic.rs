//! Real traffic between the host and the guest, from addresses that the caller chooses.

use crate::site::Site;
use crate::support::wait::PATIENCE;
use crate::support::{Outcome, ensure, wait};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;
use testudo_lab::namespaces::Namespace;
use testudo_lab::traffic::ping_from;

/// Where the guest sends back what it receives, by TCP and by UDP.
pub const ECHO_PORT: u16 = 7000;

/// How much passes.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Pings from each end.
    pub pings: u16,
    /// Bytes each way over a TCP connection.
    pub tcp_bytes: usize,
    /// The lengths of datagrams of UDP, sent and sent back.
    pub udp_bytes: &'static [usize],
}

impl Load {
    /// Little, but with fragments and full segments: machines are emulated, and rows are many.
    pub const LIGHT: Load = Load { pings: 2, tcp_bytes: 64 << 10, udp_bytes: &[5_000] };
    /// The first datagram needs several fragments, the second is nearly the longest.
    pub const HEAVY: Load = Load { pings: 3, tcp_bytes: 1 << 20, udp_bytes: &[8_000, 60_000] };
}

/// Everything between two addresses.
pub fn exchange(site: &mut Site, ours: &str, theirs: &str, load: Load) -> Outcome<()> {
    pings_both_ways(site, ours, theirs, load.pings)?;
    let (ours, theirs) = (ours.parse()?, theirs.parse()?);
    tcp_from_here(&site.host, ours, theirs, load.tcp_bytes)?;
    udp_from_here(&site.host, ours, theirs, load.udp_bytes)
}

pub fn pings_both_ways(site: &mut Site, ours: &str, theirs: &str, count: u16) -> Outcome<()> {
    let trips = ping_from(&site.host, Some(ours.parse()?), theirs.parse()?, count, PATIENCE)?;
    let lost = trips.lost;
    ensure(lost == 0, || format!("{lost} of {count} pings from {ours} to {theirs} were lost"))?;
    let command = format!("ping -q -c {count} -i 0.1 -W 20 -I {theirs} {ours}");
    let printed = site.peer.sh(&command, PATIENCE)?;
    let all = format!("{count} packets received");
    ensure(printed.stdout.contains(&all), || {
        format!("pings from {theirs} to {ours}: {}", last_line(&printed.to_string()))
    })
}

/// The last line that says something.
fn last_line(text: &str) -> String {
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default().trim().to_owned()
}

/// Bytes that show their position in a stream: no two windows of them are equal.
fn pattern(length: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let next = || {
        // Marsaglia's xorshift64 (2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_be_bytes()[0]
    };
    std::iter::repeat_with(next).take(length).collect()
}

fn connect_from(ours: IpAddr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let family = if to.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // It is the limit of connect(2), too (socket(7)).
    set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
    rustix::net::bind(&socket, &SocketAddr::new(ours, 0))?;
    rustix::net::connect(&socket, &to)?;
    Ok(TcpStream::from(socket))
}

fn tcp_from_here(host: &Namespace, ours: IpAddr, theirs: IpAddr, bytes: usize) -> Outcome<()> {
    let stream = host.within(|| connect_from(ours, (theirs, ECHO_PORT).into()))?;
    comes_back(stream.map_err(|e| format!("TCP to {theirs}: no connection: {e}"))?, bytes)
}

/// The guest connects, and sends back what it receives.
pub fn tcp_from_the_guest(site: &mut Site, ours: &str, bytes: usize) -> Outcome<()> {
    let address: IpAddr = ours.parse()?;
    let listener = site.host.within(|| TcpListener::bind((address, 0)))??;
    listener.set_nonblocking(true)?;
    let server = listener.local_addr()?.to_string();
    let echo = site.peer.background(&format!("exec socat -t 30 TCP:{server} EXEC:/bin/cat"))?;
    let stream = wait::until("for the guest to connect", || match listener.accept() {
        Ok((stream, _)) => Ok(Some(stream)),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error.into()),
    })?;
    stream.set_nonblocking(false)?;
    comes_back(stream, bytes)?;
    site.peer.stop(echo)?;
    Ok(())
}

/// Sends so many bytes to an echo service and expects the same back.
fn comes_back(stream: TcpStream, bytes: usize) -> Outcome<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let sent = pattern(bytes);
    let mut received = vec![0; bytes];
    let result = thread::scope(|scope| {
        let source = scope.spawn(|| (&stream).write_all(&sent));
        let read = (&stream).read_exact(&mut received);
        read.and(source.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    result.map_err(|e| format!("TCP: {e}"))?;
    let first = sent.iter().zip(&received).position(|(a, b)| a != b);
    ensure(first.is_none(), || format!("TCP: other bytes came back from {first:?} on"))
}

fn udp_from_here(host: &Namespace, ours: IpAddr, theirs: IpAddr, lengths: &[usize]) -> Outcome<()> {
    let socket = host.within(|| UdpSocket::bind((ours, 0)))??;
    socket.connect((theirs, ECHO_PORT))?;
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let (bytes, mut answer) = (pattern(longest), vec![0; 65_536]);
    for &length in lengths {
        let sent =
            socket.send(&bytes[..length]).map_err(|e| format!("{length} bytes of UDP to {theirs}: {e}"))?;
        let received =
            socket.recv(&mut answer).map_err(|e| format!("{length} bytes of UDP from {theirs}: {e}"))?;
        ensure(sent == length && answer[..received] == bytes[..length], || {
            format!("of {length} bytes of UDP to {theirs}, {received} came back, or others")
        })?;
    }
    Ok(())
}
