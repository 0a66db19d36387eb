//! The same endpoints with several sockets each: a port for each worker.

use crate::error::OpenError;
use crate::filter::{Content, Raw, Share, udp_queue};
use crate::open::{Encapsulation, Endpoint, Role, SocketConfig};
use crate::port::SocketPort;
use crate::sys::Socket;
use rustix::thread::{MembarrierCommand, membarrier};
use std::io;
use testudo_wire::ip::Version;
use testudo_wire::steering::Steering;

const MAX_QUEUES: u32 = 256;

/// The queues of a set of endpoints. Each is a [`SocketPort`] of its own with a socket for each endpoint, for
/// a worker of its own; this says which datagrams come to which, and has queues come and go. Every queue
/// sends from the same addresses and ports.
///
/// | endpoint | how its sockets share |
/// | --- | --- |
/// | UDP | one program for the port (`SO_REUSEPORT`): each datagram has one socket, also while queues change |
/// | UDP from many ports | sends alone: a socket for each queue, which gets nothing |
/// | raw, and beside IKE | the kernel copies each datagram to each raw socket: a filter lets its share pass |
/// | of a multicast group | the same, also in UDP; the first socket alone joins the group |
///
/// Both are classic BPF, which needs no privilege, and compute [`Steering::queue`]. IKE's messages,
/// keepalives and what is too short go to queue 0. Its port also has the ICMP errors about the datagrams of
/// all queues.
///
/// **Messages of several datagrams.** Where `UDP_GRO` is on, the kernel joins datagrams of one pair of ports
/// before it asks for their queue. It is on where one queue is open, by UDP source, whose datagrams have one
/// queue anyway, and by sequence number, where any queue will do. By SPI and by window it is off, and stays
/// so while queues come and go: what was joined before would be read as one datagram. A sender on this host
/// or behind a veth can hand over several datagrams at once (`UDP_SEGMENT`): these go where their first one
/// does, so that a worker has to expect datagrams of others.
///
/// **Come and go.** [`add`](Self::add) and [`retire`](Self::retire) change the number of queues. No datagram
/// is lost. While the filters of raw sockets change, for a grace period of the kernel's (some ten
/// milliseconds), a datagram that changes its queue may come to its old and to its new one: a replay, which
/// the SA's window refuses if the two queues share it.
///
/// The kernel numbers the sockets of a UDP port in the order in which they were bound, and puts the last one
/// in the place of one that is closed: so the last queue goes first.
#[derive(Debug)]
pub struct SocketQueues {
    /// With the endpoints as they were bound.
    config: SocketConfig,
    ends: Vec<(Endpoint, Steering)>,
    /// Of each queue that is open, the socket of each endpoint.
    sockets: Vec<Vec<Socket>>,
    /// How many of them get datagrams: the first ones.
    queues: u32,
    /// Ports that send alone. Their sockets have numbers after those of the queues, so that none can come or
    /// go where there are any.
    senders: u32,
}

impl SocketQueues {
    /// Opens all endpoints with so many sockets each, 1 to 256. `steering` says how the datagrams of an
    /// endpoint are spread.
    ///
    /// # Errors
    /// [`OpenError`] as [`SocketPort::open`].
    pub fn open(
        config: &SocketConfig,
        queues: u32,
        steering: impl Fn(&Endpoint) -> Steering,
    ) -> Result<(Self, Vec<SocketPort>), OpenError> {
        Self::open_with_senders(config, queues, 0, steering)
    }

    /// The same, and after the ports of the queues so many more that send from the same addresses and ports
    /// and get no datagram: for workers that take none. The queues are then as many as long as they are open.
    ///
    /// # Errors
    /// [`OpenError`] as [`SocketPort::open`].
    pub fn open_with_senders(
        config: &SocketConfig,
        queues: u32,
        senders: u32,
        steering: impl Fn(&Endpoint) -> Steering,
    ) -> Result<(Self, Vec<SocketPort>), OpenError> {
        if queues == 0 || queues.saturating_add(senders) > MAX_QUEUES {
            return Err(OpenError::Queues { queues: queues.saturating_add(senders) });
        }
        let first = SocketPort::open_as(config, Role::First)?;
        let endpoints: Vec<_> = first.endpoints().collect();
        let ends = endpoints.iter().map(|end| (*end, steering(end))).collect();
        let config = SocketConfig { endpoints, optional: Vec::new(), ..config.clone() };
        let mut set = Self { config, ends, sockets: Vec::new(), queues, senders };
        set.hold(&first)?;
        // From the first socket on: nobody is to get a datagram by the kernel's own choice.
        set.share(1, 1)?;
        let mut ports = vec![first];
        for _ in 1..queues {
            let port = SocketPort::open_as(&set.config, Role::Further)?;
            set.hold(&port)?;
            ports.push(port);
        }
        set.share(1, queues)?;
        // Further sockets have no share until they are given one.
        for _ in 0..senders {
            ports.push(SocketPort::open_as(&set.config, Role::Further)?);
        }
        Ok((set, ports))
    }

    /// Keeps descriptors of a port's sockets, by which their programs are replaced.
    fn hold(&mut self, port: &SocketPort) -> Result<(), OpenError> {
        let sockets = port.sockets().map(Socket::try_clone).collect::<io::Result<_>>();
        self.sockets.push(sockets.map_err(failed("duplicate a socket"))?);
        Ok(())
    }

    /// The number of queues that get datagrams.
    #[must_use]
    pub fn queues(&self) -> u32 {
        self.queues
    }

    fn opened(&self) -> u32 {
        u32::try_from(self.sockets.len()).unwrap_or(MAX_QUEUES)
    }

    /// The endpoints as bound, each with the steering of its datagrams.
    #[must_use]
    pub fn endpoints(&self) -> &[(Endpoint, Steering)] {
        &self.ends
    }

    /// Opens one more queue, and gives it its share. All that are open get datagrams then.
    ///
    /// # Errors
    /// [`OpenError`] as [`SocketPort::open`], or because some ports send alone; the number of queues has not
    /// changed then.
    pub fn add(&mut self) -> Result<SocketPort, OpenError> {
        let opened = self.opened();
        if self.senders > 0 {
            return Err(OpenError::Senders);
        }
        if opened == MAX_QUEUES {
            return Err(OpenError::Queues { queues: opened + 1 });
        }
        let port = SocketPort::open_as(&self.config, Role::Further)?;
        self.hold(&port)?;
        if let Err(error) = self.spread(opened + 1) {
            self.sockets.pop();
            return Err(error);
        }
        Ok(port)
    }

    /// Spreads the share of the last queue over the others. When this returns, nothing more comes to it: its
    /// port is to be emptied, by receiving until nothing is left, and then closed. What is left at that time
    /// is lost.
    ///
    /// # Errors
    /// [`OpenError`] if it is the only queue, if some ports send alone, or with the system's error.
    pub fn retire(&mut self) -> Result<(), OpenError> {
        if self.senders > 0 {
            return Err(OpenError::Senders);
        }
        let left = self.opened() - 1;
        if left == 0 {
            return Err(OpenError::Queues { queues: 0 });
        }
        self.spread(self.queues.min(left))?;
        self.sockets.pop();
        Ok(())
    }

    /// Gives all datagrams to the first `queues` of those that are open. When this returns, nothing more
    /// comes to the others, which stay open and may send. What they have by then is still to be received.
    ///
    /// # Errors
    /// [`OpenError`] if fewer are open, or with the system's error; the shares are those of before then.
    pub fn spread(&mut self, queues: u32) -> Result<(), OpenError> {
        if !(1..=self.opened()).contains(&queues) {
            return Err(OpenError::Queues { queues });
        }
        if let Err(error) = self.share(self.queues, queues) {
            // What was refused for lack of memory may be refused again: then some sockets keep both shares.
            let _ = self.share(queues, self.queues);
            return Err(error);
        }
        self.queues = queues;
        Ok(())
    }

    /// Replaces the shares of `before` queues by those of `after`.
    ///
    /// Raw sockets have filters of their own, which change one after the other. So each socket first gets its
    /// old and its new share, and its new one alone only after every socket has both and no datagram is on
    /// its way past filters of before: at any time somebody takes a datagram.
    fn share(&self, before: u32, after: u32) -> Result<(), OpenError> {
        for (place, (end, steering)) in self.ends.iter().enumerate() {
            if let Encapsulation::Udp { .. } = end.encapsulation {
                self.share_udp(place, end, *steering, after)
                    .map_err(failed("set the program of UDP sockets"))?;
            }
        }
        if before != after {
            self.share_raw(&[before, after])?;
            wait_for_readers();
        }
        self.share_raw(&[after])?;
        wait_for_readers();
        Ok(())
    }

    fn share_udp(&self, place: usize, end: &Endpoint, steering: Steering, queues: u32) -> io::Result<()> {
        let joins = match steering {
            // What was joined before it is off would be read as one datagram: off where there may be more.
            Steering::BySpi | Steering::ByWindow { .. } => self.queues.max(self.opened()) == 1,
            Steering::BySequence { .. } | Steering::ByUdpSource => true,
        };
        let program = udp_queue(Version::of(end.local), steering, queues);
        for (queue, sockets) in self.sockets.iter().enumerate() {
            // Best effort: without it, datagrams arrive one by one.
            let _ = sockets[place].set_option(libc::SOL_UDP, libc::UDP_GRO, joins.into());
            // The program is the port's, whichever of its sockets it is given to.
            if queue == 0 {
                sockets[place].set_chooser(&program)?;
            }
        }
        Ok(())
    }

    /// Lets each raw socket have its share by each of these numbers of queues.
    fn share_raw(&self, numbers: &[u32]) -> Result<(), OpenError> {
        for (queue, sockets) in (0..).zip(&self.sockets) {
            let shares = numbers.iter().filter(|queues| queue < **queues);
            let shares: Vec<_> = shares.map(|queues| Share { queue, queues: *queues }).collect();
            for (socket, (end, steering)) in sockets.iter().zip(&self.ends) {
                if let Some(raw) = Raw::of(end) {
                    let set = socket.set_filter(&raw.program(*steering, &shares));
                    set.map_err(failed("set the filter of a socket"))?;
                }
            }
        }
        Ok(())
    }
}

impl Raw {
    /// The raw socket by which an endpoint receives, or that of a group, if it has one.
    fn of(end: &Endpoint) -> Option<Self> {
        let content = match end.encapsulation {
            Encapsulation::Udp { .. } if end.local.is_multicast() => Content::Udp,
            Encapsulation::Udp { .. } | Encapsulation::UdpFromMany { .. } => return None,
            Encapsulation::UdpBeside { port } => Content::EspInUdp(port),
            // VPE has its windows where ESP has its SPI.
            Encapsulation::RawEsp | Encapsulation::RawVpe { .. } => Content::Esp,
            Encapsulation::RawAh => Content::Ah,
        };
        Some(Self { version: Version::of(end.local), content })
    }
}

/// Waits until every processor is out of the kernel's read-side sections of now, such as that in which a
/// datagram passes the filters of all raw sockets.
fn wait_for_readers() {
    // Missing only where some processors run without ticks: datagrams on their way are then not waited for.
    let _ = membarrier(MembarrierCommand::Global);
}

fn failed(action: &str) -> impl FnOnce(io::Error) -> OpenError {
    let action = action.to_owned();
    move |source| OpenError::Io { action, source }
}
