//! A NAT between hosts: a namespace with an address on each side, and a program that passes the datagrams of
//! IKE and of ESP in UDP on, from ports of its own, which it can lose.
//!
//! ```text
//!   A 198.51.100.1 ─┐
//!                   ├─ 198.51.100.254  NAT  203.0.113.1 ── 203.0.113.2 B
//!   C 198.51.100.3 ─┘
//! ```
//!
//! Hosts inside speak to the NAT as if it were B, at an address of its own or at B's. It needs nothing of the
//! kernel's own NAT, which not every kernel has.

use crate::support::Outcome;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;
use testudo_lab::namespaces::{Namespace, enter, veth};

/// Where hosts inside find what they take for B.
pub const INSIDE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 254);
/// Where B finds the hosts inside.
pub const OUTSIDE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
/// B's own address on that side.
pub const FAR: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 2);
/// The interfaces of hosts and NAT.
const LINK: &str = "nat";
const PORTS: [u16; 2] = [500, 4500];
const POLL: Duration = Duration::from_millis(20);
const MAX_DATAGRAM: usize = 1 << 16;

/// The port outside that stands for a host's port: its socket, and whether the NAT still has it.
struct Mapping {
    socket: UdpSocket,
    is_over: AtomicBool,
}

#[derive(Default)]
struct Shared {
    /// By the port of B that is meant, and the sender inside.
    mappings: Mutex<HashMap<(u16, SocketAddr), Arc<Mapping>>>,
    is_over: AtomicBool,
}

impl Mapping {
    fn new(port: u16) -> io::Result<Self> {
        let socket = UdpSocket::bind((OUTSIDE, 0))?;
        socket.connect((FAR, port))?;
        socket.set_read_timeout(Some(POLL))?;
        Ok(Self { socket, is_over: AtomicBool::new(false) })
    }
}

impl Shared {
    fn mappings(&self) -> MutexGuard<'_, HashMap<(u16, SocketAddr), Arc<Mapping>>> {
        self.mappings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running NAT. Dropping it ends it and removes its links.
pub struct Nat {
    shared: Arc<Shared>,
    namespace: Namespace,
    threads: Vec<thread::JoinHandle<io::Result<()>>>,
    /// Its ends of the cables.
    links: Vec<String>,
}

impl Nat {
    /// Joins B, outside, with hosts inside, which have these addresses.
    pub fn between(inside: &[(&Namespace, Ipv4Addr)], outside: &Namespace) -> Outcome<Self> {
        Self::beside(inside, outside, INSIDE, 32)
    }

    /// The same where hosts inside find B at the address `taken`, unless they have a better route to its
    /// network, of so many bits.
    pub fn beside(
        inside: &[(&Namespace, Ipv4Addr)],
        outside: &Namespace,
        taken: Ipv4Addr,
        bits: u32,
    ) -> Outcome<Self> {
        let network = Ipv4Addr::from_bits(taken.to_bits() & u32::MAX << (32 - bits));
        let to_b = format!("{network}/{bits}");
        let namespace = Namespace::new(enter()?, "nat")?;
        veth((outside, LINK), (&namespace, "far"))?;
        outside.address(LINK, &format!("{FAR}/24"))?;
        namespace.address("far", &format!("{OUTSIDE}/24"))?;
        let mut links = vec!["far".to_owned()];
        for (number, (host, address)) in inside.iter().enumerate() {
            let near = format!("near{number}");
            veth((host, LINK), (&namespace, &near))?;
            host.address(LINK, &format!("{address}/32"))?;
            let source = address.to_string();
            host.run(&["ip", "route", "add", &to_b, "dev", LINK, "src", &source, "metric", "1000"])?;
            namespace.address(&near, &format!("{taken}/32"))?;
            namespace.run(&["ip", "route", "add", &address.to_string(), "dev", &near])?;
            links.push(near);
        }
        let shared = Arc::new(Shared::default());
        let mut threads = Vec::new();
        for port in PORTS {
            let near = Arc::new(namespace.within(|| UdpSocket::bind((taken, port)))??);
            near.set_read_timeout(Some(POLL))?;
            let shared = Arc::clone(&shared);
            // In the namespace, where it opens sockets.
            threads.push(namespace.within(|| thread::spawn(move || outwards(&near, port, &shared)))?);
        }
        Ok(Self { shared, namespace, threads, links })
    }

    /// Forgets all its ports: the next datagrams from inside go out from others.
    pub fn rebinds(&self) {
        for (_, mapping) in self.shared.mappings().drain() {
            mapping.is_over.store(true, Ordering::Relaxed);
        }
    }

    /// The port outside that stands for a host inside towards B's port 4500.
    pub fn port_of(&self, host: Ipv4Addr) -> Option<u16> {
        let inside = SocketAddr::V4(SocketAddrV4::new(host, 4500));
        let mappings = self.shared.mappings();
        mappings.get(&(4500, inside)).and_then(|mapping| Some(mapping.socket.local_addr().ok()?.port()))
    }
}

impl Drop for Nat {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.rebinds();
        for thread in self.threads.drain(..) {
            // A thread that has panicked has failed the test already, which waits for datagrams.
            let _ = thread.join();
        }
        // At once: with the namespace they would go a while later.
        for link in &self.links {
            let _ = self.namespace.run(&["ip", "link", "delete", link]);
        }
    }
}

/// Passes on what hosts inside send to one port, until the NAT ends.
fn outwards(near: &Arc<UdpSocket>, port: u16, shared: &Shared) -> io::Result<()> {
    let mut datagram = vec![0; MAX_DATAGRAM];
    while !shared.is_over.load(Ordering::Relaxed) {
        let (length, host) = match near.recv_from(&mut datagram) {
            Err(error) if is_nothing(&error) => continue,
            received => received?,
        };
        let mut mappings = shared.mappings();
        let mapping = match mappings.entry((port, host)) {
            Entry::Occupied(entry) => Arc::clone(entry.get()),
            Entry::Vacant(entry) => {
                let mapping = Arc::new(Mapping::new(port)?);
                let (own, near) = (Arc::clone(&mapping), Arc::clone(near));
                thread::spawn(move || inwards(&own, &near, host));
                Arc::clone(entry.insert(mapping))
            }
        };
        drop(mappings);
        // A refusal is B's (ICMP), and concerns what was sent before.
        let _ = mapping.socket.send(&datagram[..length]);
    }
    Ok(())
}

/// Passes on what B sends to one port outside, until the NAT loses that.
fn inwards(mapping: &Mapping, near: &UdpSocket, host: SocketAddr) {
    let mut datagram = vec![0; MAX_DATAGRAM];
    while !mapping.is_over.load(Ordering::Relaxed) {
        if let Ok(length) = mapping.socket.recv(&mut datagram) {
            let _ = near.send_to(&datagram[..length], host);
        }
    }
}

fn is_nothing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}
