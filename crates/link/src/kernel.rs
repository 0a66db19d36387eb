//! The kernel's routes and neighbours of one interface, by rtnetlink(7), for ports where the kernel keeps ARP
//! and neighbour discovery.
//!
//! ```text
//!   kernel ── dumps, notifications ──► KernelReader, on a thread ── Change ──► OutsideResolver, in the port
//!      ▲                                                                             │
//!      └──────────────── "this neighbour is used", and "what is known of it?" ───────┘
//! ```
//!
//! A neighbour in use is *used* in the kernel, too, every 30 seconds: the kernel then checks it by its own
//! rules, and what it says is believed. Routes are read before the port is made, so that its first packets
//! have them. When one changes, all are read again: replaced routes, next hop objects and multipath are then
//! the kernel's matter. When notifications were lost, everything is read again.
//!
//! Routes are those of the main table; of several ways, the first that leads out of the interface is taken.
//! Deliberately missing: policy rules and other tables.

use crate::outside::{Ask, Bell, Change, OutsideResolver};
use crate::routes::{NextHop, Route, Routes};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrAny, SocketFlags, SocketType};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};
use testudo_wire::netlink::datagram::Datagram;
use testudo_wire::netlink::{Message, flag, kind, messages};
use testudo_wire::rtnetlink::{
    KernelRoute, MAIN_TABLE, NeighbourState, RtMessage, dump_neighbours, dump_routes, group, use_neighbour,
};

/// Changes that wait for the port at most. While it takes none, the reader waits, and the kernel's messages
/// with it.
const MOST_CHANGES: usize = 1024;
/// How long the kernel may take to list its routes before the port is made without them: a million are read
/// in a second or two, but while they change all the time, they are read again and again.
const FIRST_ROUTES: Duration = Duration::from_secs(10);
/// Bytes of the kernel's longest datagrams.
const DATAGRAM_BYTES: usize = 64 * 1024;
/// `NLM_F_DUMP_INTR`: the table changed while it was read.
const INTERRUPTED: u16 = 0x10;
/// The number of requests about single neighbours. Dumps have numbers from 1 on.
const SINGLE: u32 = 0;

/// Reads what the kernel says.
pub struct KernelReader {
    socket: Arc<OwnedFd>,
    changes: SyncSender<Change>,
    bell: Arc<Bell>,
    state: State,
    datagram: Box<[u8]>,
    handed: Handed,
}

/// Tables of routes that the port has or had: they are freed here, not by the worker.
#[derive(Default)]
struct Handed(Vec<Arc<Routes>>);

impl Handed {
    fn keep(&mut self, change: &Change) {
        if let Change::Routes(table) = change {
            self.0.push(Arc::clone(table));
        }
    }

    fn free_unused(&mut self) {
        self.0.retain(|table| Arc::strong_count(table) > 1);
    }
}

/// What is being read. It knows no socket: a test plays the kernel.
struct State {
    interface: u32,
    /// The dump that is under way, and its number.
    dump: Option<(Table, u32)>,
    dumps: u32,
    /// Whether the dump that is under way has to be repeated.
    is_interrupted: bool,
    wants_neighbours: bool,
    wants_routes: bool,
    /// Those of the dump that is under way.
    routes: Vec<Route>,
    /// Whether a table of routes was told.
    has_told_routes: bool,
}

/// What can be dumped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Table {
    Neighbours,
    Routes,
}

impl KernelReader {
    /// Opens a socket for the interface with this name, reads its routes, and makes the resolver that is told
    /// by it: a port with that resolver has these routes from the beginning. The caller calls
    /// [`turn`](Self::turn) again and again, on a thread of its own.
    ///
    /// # Errors
    /// That there is no such interface, or what the kernel says.
    pub fn open(interface: &str) -> io::Result<(Self, OutsideResolver)> {
        Self::open_within(interface, FIRST_ROUTES)
    }

    /// The same, without routes if the kernel takes longer than this to list them; a time beyond all clocks
    /// is none.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_within(interface: &str, most: Duration) -> io::Result<(Self, OutsideResolver)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // No protocol means number 0, which is NETLINK_ROUTE.
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        let groups = group::NEIGHBOURS | group::IPV4_ROUTES | group::IPV6_ROUTES;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, groups))?;
        let interface = rustix::net::netdevice::name_to_index(&socket, interface)?;
        let socket = Arc::new(socket);
        let (changes, resolver) = resolver(Arc::clone(&socket), interface);
        let datagram = vec![0; DATAGRAM_BYTES].into_boxed_slice();
        let bell = Arc::new(Bell::new()?);
        let resolver = resolver.with_bell(Arc::clone(&bell));
        let mut reader =
            Self { socket, changes, bell, state: State::new(interface), datagram, handed: Handed::default() };
        reader.ask()?;
        reader.read_first_routes(Instant::now().checked_add(most))?;
        Ok((reader, resolver))
    }

    /// Whether the kernel has listed its routes so far.
    #[must_use]
    pub fn has_routes(&self) -> bool {
        self.state.has_told_routes
    }

    /// Reads no further than the routes: nobody takes what comes after them yet. Nor longer, though a dump
    /// has to be repeated again and again.
    fn read_first_routes(&mut self, until: Option<Instant>) -> io::Result<()> {
        while !self.has_routes() {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let left = left.unwrap_or(FIRST_ROUTES);
            if left.is_zero() {
                return Ok(());
            }
            match self.receive()? {
                Some(received) => _ = self.note(received),
                None => self.wait(left)?,
            }
            self.ask()?;
        }
        Ok(())
    }

    /// Waits for the kernel, at most so long, and passes on what it has said. `false` once the port is gone.
    ///
    /// # Errors
    /// What the kernel says; its tables are then no longer read.
    pub fn turn(&mut self, at_most: Duration) -> io::Result<bool> {
        self.handed.free_unused();
        self.wait(at_most)?;
        while let Some(received) = self.receive()? {
            if !self.note(received) {
                return Ok(false);
            }
            self.ask()?;
        }
        Ok(true)
    }

    fn wait(&self, at_most: Duration) -> io::Result<()> {
        let timeout = Timespec::try_from(at_most).map_err(|_| io::ErrorKind::InvalidInput)?;
        match poll(&mut [PollFd::new(&*self.socket, PollFlags::IN)], Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The bytes of the kernel's next datagram, if there is one; 0 of those that do not count.
    fn receive(&mut self) -> io::Result<Option<usize>> {
        loop {
            match rustix::net::recvfrom(&*self.socket, &mut self.datagram[..], RecvFlags::empty()) {
                Ok((length, _, from)) => return Ok(Some(if is_kernel(from) { length } else { 0 })),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => return Ok(None),
                // More was said than the socket holds.
                Err(Errno::NOBUFS) => {
                    self.state.read_all_again();
                    return Ok(Some(0));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Passes on what the datagram says. Whether the port is there.
    fn note(&mut self, bytes: usize) -> bool {
        for message in messages(&self.datagram[..bytes]).map_while(Result::ok) {
            let Some(change) = self.state.note(&message) else { continue };
            self.handed.keep(&change);
            if !self.pass_on(change) {
                return false;
            }
        }
        true
    }

    /// Tells the port of a change, and wakes who waits for it. Whether it is there.
    fn pass_on(&self, change: Change) -> bool {
        self.bell.announce();
        // While the port takes none of many, it must hear of those that wait.
        let sent = match self.changes.try_send(change) {
            Ok(()) => true,
            Err(TrySendError::Disconnected(_)) => return false,
            Err(TrySendError::Full(change)) => {
                self.bell.ring();
                self.changes.send(change).is_ok()
            }
        };
        self.bell.ring();
        sent
    }

    /// Asks for the next dump, if one is wanted and none is under way.
    fn ask(&mut self) -> io::Result<()> {
        let mut datagram = Datagram::new();
        match self.state.next_dump() {
            Some((Table::Neighbours, number)) => dump_neighbours(&mut datagram, number),
            Some((Table::Routes, number)) => dump_routes(&mut datagram, number),
            None => return Ok(()),
        }
        Ok(send(&self.socket, &datagram)?)
    }
}

/// The resolver, and the sender of what it is told.
fn resolver(socket: Arc<OwnedFd>, interface: u32) -> (SyncSender<Change>, OutsideResolver) {
    let (changes, received): (_, Receiver<Change>) = sync_channel(MOST_CHANGES);
    let mut datagram = Datagram::with_capacity(256);
    let ask: Ask = Box::new(move |address: IpAddr| {
        datagram.clear();
        use_neighbour(&mut datagram, SINGLE, interface, address);
        // What does not get through is asked again.
        let _ = send(&socket, &datagram);
    });
    (changes, OutsideResolver::new(received, ask))
}

fn send(socket: &OwnedFd, datagram: &Datagram) -> Result<(), Errno> {
    let kernel = SocketAddrNetlink::new(0, 0);
    rustix::net::sendto(socket, datagram.as_bytes(), SendFlags::empty(), &kernel).map(drop)
}

/// The kernel's port number is 0; other processes have others.
fn is_kernel(from: Option<SocketAddrAny>) -> bool {
    from.and_then(|from| SocketAddrNetlink::try_from(from).ok()).is_some_and(|from| from.pid() == 0)
}

impl State {
    fn new(interface: u32) -> Self {
        Self {
            interface,
            dump: None,
            dumps: 0,
            is_interrupted: false,
            wants_neighbours: true,
            wants_routes: true,
            routes: Vec::new(),
            has_told_routes: false,
        }
    }

    fn read_all_again(&mut self) {
        // The end of a dump that is under way may be lost, too.
        (self.dump, self.wants_neighbours, self.wants_routes) = (None, true, true);
    }

    /// A dump that is to be asked for now.
    fn next_dump(&mut self) -> Option<(Table, u32)> {
        if self.dump.is_some() {
            return None;
        }
        // Without routes no neighbour is of use.
        let table = if self.has_told_routes && std::mem::take(&mut self.wants_neighbours) {
            Table::Neighbours
        } else if std::mem::take(&mut self.wants_routes) {
            self.routes.clear();
            Table::Routes
        } else {
            return None;
        };
        self.is_interrupted = false;
        self.dumps = self.dumps.wrapping_add(1).max(1);
        self.dump = Some((table, self.dumps));
        self.dump
    }

    /// What a message of the kernel changes.
    fn note(&mut self, message: &Message<'_>) -> Option<Change> {
        let header = message.header;
        let is_of_dump = self.dump.is_some_and(|(_, number)| number == header.sequence);
        self.is_interrupted |= is_of_dump && header.has(INTERRUPTED);
        match header.kind {
            // An error: the dump before it, of which something was lost, is still under way (EBUSY).
            kind::DONE | kind::ERROR if is_of_dump => return self.dump_ended(header.kind == kind::DONE),
            kind::DONE | kind::ERROR => return None,
            _ => {}
        }
        match RtMessage::read(message).ok()?? {
            // A notification has the number of who made the change, but is never one of several.
            RtMessage::Route(route) if is_of_dump && header.has(flag::MULTI) => {
                self.routes.extend(self.route(&route))
            }
            RtMessage::Route(_) | RtMessage::RouteRemoved => self.wants_routes = true,
            // Before the first routes nobody takes such messages; all neighbours are listed after them.
            RtMessage::Neighbour { interface, address, state }
                if interface == self.interface && self.has_told_routes =>
            {
                match state {
                    // The kernel has checked it, or does so now that it is used.
                    NeighbourState::Known(mac) => {
                        return Some(Change::Neighbour { address, mac, is_reachable: true });
                    }
                    NeighbourState::Gone => return Some(Change::NoNeighbour(address)),
                    NeighbourState::Unknown => {}
                }
            }
            RtMessage::Neighbour { .. } => {}
        }
        None
    }

    fn dump_ended(&mut self, is_done: bool) -> Option<Change> {
        let (table, _) = self.dump.take()?;
        match table {
            Table::Neighbours if self.is_interrupted || !is_done => self.wants_neighbours = true,
            Table::Routes if self.is_interrupted || !is_done => self.wants_routes = true,
            Table::Neighbours => {}
            Table::Routes => {
                self.has_told_routes = true;
                return Some(Change::routes(&std::mem::take(&mut self.routes)));
            }
        }
        None
    }

    /// What a route of the kernel is to this interface.
    fn route(&self, route: &KernelRoute) -> Option<Route> {
        let hop = route.hops.iter().find(|hop| hop.interface == self.interface);
        let next_hop = match hop {
            None => NextHop::Elsewhere,
            Some(hop) => hop.gateway.map_or(NextHop::OnLink, NextHop::Gateway),
        };
        let (network, prefix_bits, metric) = (route.network, route.prefix_bits, route.metric);
        (route.table == MAIN_TABLE).then_some(Route { network, prefix_bits, next_hop, metric })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testudo_wire::netlink::Header;

    /// A message as the kernel sends it: type, number of the dump, structure, attributes.
    fn message(kind: u16, sequence: u32, structure: &[u8], attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut datagram = Datagram::new();
        let header = Header { kind, sequence, flags: flag::MULTI, ..Header::default() };
        let mut message = datagram.message(header);
        message.body(structure);
        attributes.iter().for_each(|(kind, value)| message.attribute(*kind, value));
        message.finish();
        datagram.as_bytes().to_vec()
    }

    /// A route of table `table` to 10.`second`.0.0/16 out of `interface`.
    fn route(sequence: u32, table: u8, second: u8, interface: u8) -> Vec<u8> {
        let structure = [2, 16, 0, 0, table, 3, 0, 1, 0, 0, 0, 0];
        message(24, sequence, &structure, &[(1, &[10, second, 0, 0]), (4, &[interface, 0, 0, 0])])
    }

    fn done(sequence: u32) -> Vec<u8> {
        message(kind::DONE, sequence, &[0; 4], &[])
    }

    fn note(state: &mut State, bytes: &[u8]) -> Option<Change> {
        let all: Vec<_> = messages(bytes).map(|message| state.note(&message.unwrap())).collect();
        all.into_iter().flatten().next()
    }

    /// What has read everything once, by other dumps.
    fn with_routes() -> State {
        State { has_told_routes: true, wants_routes: false, wants_neighbours: false, ..State::new(3) }
    }

    #[test]
    fn routes_are_told_as_a_whole_when_their_dump_ends() {
        let mut state = State::new(3);
        assert_eq!((state.next_dump(), state.next_dump()), (Some((Table::Routes, 1)), None));
        for bytes in [route(1, 254, 1, 3), route(1, 254, 2, 4), route(1, 100, 3, 3), done(7)] {
            assert_eq!(note(&mut state, &bytes), None);
        }
        let to = |second: u8, next_hop| Route {
            network: [10, second, 0, 0].into(),
            prefix_bits: 16,
            next_hop,
            metric: 0,
        };
        let expected = Change::routes(&[to(1, NextHop::OnLink), to(2, NextHop::Elsewhere)]);
        assert_eq!(note(&mut state, &done(1)), Some(expected));
        assert_eq!((state.next_dump(), state.next_dump()), (Some((Table::Neighbours, 2)), None));
        assert_eq!((note(&mut state, &done(2)), state.next_dump()), (None, None));
        note(&mut state, &route(0, 254, 9, 3));
        assert_eq!(state.next_dump(), Some((Table::Routes, 3)), "a change has all read again");
    }

    #[test]
    fn a_table_of_routes_is_kept_until_the_port_has_another() {
        let (mut handed, changes) = (Handed::default(), [Change::routes(&[]), Change::routes(&[])]);
        changes.iter().for_each(|change| handed.keep(change));
        let [Change::Routes(old), Change::Routes(new)] = changes else { panic!("routes") };
        let tables = [Arc::downgrade(&old), Arc::downgrade(&new)];
        let is_there = |nth: usize| tables[nth].strong_count() > 0;
        drop(old);
        assert!(is_there(0), "the port has let it go, and did not free it");
        handed.free_unused();
        assert!(!is_there(0) && is_there(1));
        drop(new);
    }

    #[test]
    fn an_interrupted_dump_is_repeated() {
        let mut state = State::new(3);
        assert_eq!(state.next_dump(), Some((Table::Routes, 1)));
        let mut interrupted = route(1, 254, 1, 3);
        interrupted[6..8].copy_from_slice(&(flag::MULTI | INTERRUPTED).to_ne_bytes());
        note(&mut state, &interrupted);
        assert_eq!(note(&mut state, &done(1)), None);
        assert_eq!(state.next_dump(), Some((Table::Routes, 2)));
        note(&mut state, &route(2, 254, 1, 3));
        assert_eq!(state.routes.len(), 1, "each route once");
        assert!(matches!(note(&mut state, &done(2)), Some(Change::Routes(_))));
    }

    #[test]
    fn after_a_loss_all_is_read_again_and_the_rest_of_the_old_dump_is_not_taken_for_the_new() {
        let mut state = with_routes();
        note(&mut state, &route(0, 254, 1, 3));
        assert_eq!(state.next_dump(), Some((Table::Routes, 1)));
        note(&mut state, &route(1, 254, 1, 3));
        state.read_all_again();
        assert_eq!(state.next_dump(), Some((Table::Neighbours, 2)));
        assert_eq!(note(&mut state, &message(kind::ERROR, 2, &[0xF0, 0xFF, 0xFF, 0xFF], &[])), None, "busy");
        note(&mut state, &route(1, 254, 2, 3));
        assert_eq!(note(&mut state, &done(1)), None);
        assert_eq!(state.next_dump(), Some((Table::Neighbours, 3)));
        note(&mut state, &done(3));
        assert_eq!(state.next_dump(), Some((Table::Routes, 4)));
        assert_eq!(note(&mut state, &done(4)), Some(Change::routes(&[])));
    }

    #[test]
    fn neighbours_of_the_interface_are_told_and_others_are_not() {
        let mut state = with_routes();
        let neighbour = |interface: u8, nud: u8| {
            let structure = [2, 0, 0, 0, interface, 0, 0, 0, nud, 0, 0, 1];
            message(28, 0, &structure, &[(1, &[192, 0, 2, 2]), (2, &[2; 6])])
        };
        let address = IpAddr::from([192, 0, 2, 2]);
        let told = Change::Neighbour {
            address,
            mac: testudo_wire::ethernet::MacAddress([2; 6]),
            is_reachable: true,
        };
        assert_eq!(note(&mut state, &neighbour(3, 4)), Some(told));
        assert_eq!(
            note(&mut State::new(3), &neighbour(3, 4)),
            None,
            "nobody takes it before the first routes"
        );
        assert_eq!(note(&mut state, &neighbour(3, 0x20)), Some(Change::NoNeighbour(address)));
        assert_eq!((note(&mut state, &neighbour(3, 1)), note(&mut state, &neighbour(4, 4))), (None, None));
        assert_eq!(note(&mut state, &message(28, 0, &[2, 0], &[])), None, "broken");
    }
}
