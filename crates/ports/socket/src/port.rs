//! The port: the sockets of all endpoints as one.

use crate::channel::{Channel, is_fatal};
use crate::error::OpenError;
use crate::icmp_errors::ErrorSocket;
use crate::kernel::MessageSocket;
use crate::open::{self, Endpoint, Role, SocketConfig};
use crate::sys::Socket;
use crate::transmit::{Bypass, transmit};
use crate::udp_receive::Received;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::BorrowedFd;
use testudo_packet::{Batch, Pool, Port, PortCounters, PortError};
use testudo_wire::ip::Version;

/// The sockets of one or more endpoints.
pub struct SocketPort<S = Socket> {
    name: String,
    channels: Vec<Channel<S>>,
    bypass: Bypass<S>,
    /// Optional ones that the host does not allow for.
    left_out: Vec<Endpoint>,
    /// `None` where none may be opened.
    errors: Option<Vec<ErrorSocket<S>>>,
    /// Datagrams in UDP over IPv6 that are longer may be fragmented.
    mtu: usize,
    /// The endpoint that receives first next time.
    next: usize,
    /// Calls until ICMP errors are asked for.
    errors_in: u32,
    counters: PortCounters,
}

/// Calls of `rx` under load for each that asks for ICMP errors, too: so these cost next to nothing.
const CALLS_PER_LOOK: u32 = 16;

impl SocketPort {
    /// Opens and binds a socket for each endpoint.
    ///
    /// # Errors
    /// [`OpenError`] names the endpoint and what the user can do.
    pub fn open(config: &SocketConfig) -> Result<Self, OpenError> {
        Self::open_as(config, Role::Alone)
    }

    /// Opens a port that is perhaps one of several with the same endpoints. The first of them hears ICMP
    /// errors for all.
    pub(crate) fn open_as(config: &SocketConfig, role: Role) -> Result<Self, OpenError> {
        let (channels, left_out) = open::all(config, |endpoint| Channel::open(endpoint, config, role))?;
        let port = Self::with_channels(channels, open_bypass(config)?, config.mtu);
        let errors = match role {
            Role::Alone | Role::First => {
                ErrorSocket::open_all(&port.endpoints().collect::<Vec<_>>(), config)?
            }
            Role::Further | Role::Probe => Some(Vec::new()),
        };
        Ok(Self { errors, left_out, ..port })
    }

    /// The sockets of the endpoints, in their order.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = &Socket> {
        self.channels.iter().map(|channel| &channel.socket)
    }
}

impl<S: MessageSocket> SocketPort<S> {
    /// A port over sockets that are already open. Nothing is fragmented over IPv6.
    #[must_use]
    pub fn over(sockets: impl IntoIterator<Item = (Endpoint, S)>, bypass: Bypass<S>) -> Self {
        let channels = sockets.into_iter().map(|(endpoint, socket)| Channel::new(endpoint, socket));
        Self::with_channels(channels.collect(), bypass, usize::MAX)
    }

    /// The same port with sockets for the ICMP errors of these IP versions.
    #[must_use]
    pub fn with_icmp(self, sockets: impl IntoIterator<Item = (Version, S)>) -> Self {
        let sockets = sockets.into_iter().map(|(version, socket)| ErrorSocket::new(version, socket));
        Self { errors: Some(sockets.collect()), ..self }
    }

    fn with_channels(channels: Vec<Channel<S>>, bypass: Bypass<S>, mtu: usize) -> Self {
        let names: Vec<_> = channels.iter().map(|c| c.endpoint.to_string()).collect();
        let counters = PortCounters::default();
        Self {
            name: names.join(", "),
            channels,
            bypass,
            left_out: Vec::new(),
            errors: None,
            mtu,
            next: 0,
            errors_in: 0,
            counters,
        }
    }

    /// The endpoints as bound: with the ports that the kernel chose.
    pub fn endpoints(&self) -> impl Iterator<Item = Endpoint> + '_ {
        self.channels.iter().map(|channel| channel.endpoint)
    }

    /// Optional endpoints that were not opened, since the host has no IP of their version.
    #[must_use]
    pub fn left_out(&self) -> &[Endpoint] {
        &self.left_out
    }

    /// UDP endpoints for which the system refused to segment (an interface without checksum offload, for
    /// example): their packets leave one by one. Meant to be reported to the user once.
    pub fn endpoints_without_segmentation(&self) -> impl Iterator<Item = Endpoint> + '_ {
        let udp = |channel: &&Channel<S>| channel.endpoint.encapsulation.is_udp();
        self.channels.iter().filter(udp).filter(|channel| !channel.joins).map(|channel| channel.endpoint)
    }

    /// Whether packets in clear can be sent.
    #[must_use]
    pub fn can_bypass(&self) -> bool {
        self.bypass.v4.is_some()
    }

    /// Whether ICMP errors about the endpoints' datagrams arrive: not without CAP_NET_RAW. Of several
    /// [queues](crate::SocketQueues) the first one's port gets those of all.
    #[must_use]
    pub fn hears_icmp_errors(&self) -> bool {
        self.errors.is_some()
    }

    /// Receives ICMP errors, now and then and when little else arrives.
    fn hear_errors(&mut self, pool: &mut Pool, batch: &mut Batch, done: &mut Received) -> io::Result<()> {
        if self.errors_in > 0 {
            self.errors_in -= 1;
            return Ok(());
        }
        self.errors_in = CALLS_PER_LOOK - 1;
        for socket in self.errors.iter().flatten() {
            match socket.receive(self.channels.iter().map(|channel| &channel.endpoint), pool, batch, done) {
                Err(error) if is_fatal(&error) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn error(&self, what: &str, source: io::Error) -> PortError {
        PortError { port: self.name.clone(), what: what.to_owned(), source: Some(source) }
    }
}

/// Sockets for packets in clear, if these are wanted and have an interface to leave by. A host without IPv6
/// lacks one of them.
fn open_bypass(config: &SocketConfig) -> Result<Bypass<Socket>, OpenError> {
    if !config.bypass || config.interface.is_none() {
        return Ok(Bypass { v4: None, v6: None });
    }
    let v4 = open::bypass(IpAddr::V4(Ipv4Addr::UNSPECIFIED), config)?;
    let v6 = match open::bypass(IpAddr::V6(Ipv6Addr::UNSPECIFIED), config) {
        Err(OpenError::NoIpv6(_)) => None,
        other => Some(other?),
    };
    Ok(Bypass { v4: Some(v4), v6 })
}

impl<S: MessageSocket> Port for SocketPort<S> {
    fn name(&self) -> &str {
        &self.name
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let before = batch.len();
        let mut done = Received::default();
        // First, since a full batch would leave no room.
        let mut outcome = self.hear_errors(pool, batch, &mut done);
        for turn in 0..self.channels.len() {
            let index = (self.next + turn) % self.channels.len();
            outcome = outcome.and(self.channels[index].receive(pool, batch, &mut done));
            if batch.is_full() {
                break;
            }
        }
        self.next = (self.next + 1) % self.channels.len().max(1);
        if batch.len() == before {
            self.errors_in = 0;
        }
        self.counters.rx_packets += done.packets;
        self.counters.rx_bytes += done.bytes;
        self.counters.rx_calls += done.calls;
        outcome.map_err(|e| self.error("receive", e))?;
        Ok(batch.len() - before)
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let (sent, outcome) = transmit(&mut self.channels, &self.bypass, self.mtu, pool, batch);
        self.counters.tx_packets += sent.packets;
        self.counters.tx_bytes += sent.bytes;
        self.counters.tx_calls += sent.calls;
        outcome.map_err(|e| self.error("send", e))?;
        Ok(sent.taken)
    }

    fn readiness(&self) -> Vec<BorrowedFd<'_>> {
        let channels = self.channels.iter().map(|channel| &channel.socket);
        let errors = self.errors.iter().flatten().map(|errors| &errors.socket);
        channels.chain(errors).filter_map(MessageSocket::readiness).collect()
    }

    /// True while the system segments for any endpoint. Raw sockets and those without the offload send
    /// each packet by itself.
    fn joins(&self) -> bool {
        self.channels.iter().any(|channel| channel.joins)
    }

    /// The kernel does.
    fn fragments_udp(&self) -> bool {
        true
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}
