//! Key exchange daemons beside a running gateway: their socket, and what the worker has to say to them.
//!
//! ```text
//!   charon, pluto, ip xfrm ─► XfrmSocket ─► XfrmServer ─► WorkerPath ─► worker
//!                                   ▲                                      │ events
//!                          acquire, expire, mapping ◄── thread "ike" ◄─────┘
//! ```

use super::api::Shared;
use super::daemon::unix_s;
use super::negotiated::{NegotiatedRoutes, NegotiatedTunnel, Settings, WorkerPath, of_packet};
use super::peer;
use super::xfrm::{Notification, Surroundings, XfrmServer, XfrmSocket};
use crate::account;
use crate::config::Ike;
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use testudo_ipsec::{Event, EventKind, IpsecProtocol, TunnelIndex};

/// How often reserved SPIs are looked at.
const TICK: Duration = Duration::from_secs(1);
/// Events that wait for the thread. More are lost, and made up for.
const MAX_EVENTS: usize = 1024;

/// The socket could not be made.
#[derive(Debug, thiserror::Error)]
pub enum IkeError {
    /// There is no such user.
    #[error("[ike]: this system has no user \"{0}\"")]
    User(String),
    /// The system refuses.
    #[error("[ike]: the socket {path}: {source}")]
    Socket {
        /// Its path.
        path: String,
        /// Why.
        source: io::Error,
    },
}

/// The socket of `[ike]`, made while the process still may give files away.
///
/// # Errors
/// [`IkeError`].
pub fn bind(ike: &Ike) -> Result<XfrmSocket, IkeError> {
    let owner = user_of(ike)?;
    XfrmSocket::bind(&ike.socket, owner)
        .map_err(|source| IkeError::Socket { path: ike.socket.display().to_string(), source })
}

/// The user that may connect beside root and our own.
fn user_of(ike: &Ike) -> Result<Option<u32>, IkeError> {
    let Some(name) = &ike.user else { return Ok(None) };
    let number = name.parse().ok().or_else(|| account::user_named(name));
    number.map(Some).ok_or_else(|| IkeError::User(name.clone()))
}

/// The host's clocks and its random numbers.
struct Host;

impl Surroundings for Host {
    fn unix_s(&self) -> u64 {
        unix_s()
    }

    fn monotonic_ms(&self) -> u64 {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        u64::try_from(now.tv_sec).unwrap_or(0) * 1000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000
    }

    fn random(&self, highest: u32) -> u32 {
        let seed = super::seed::random_seed().unwrap_or_default();
        let range = u64::from(highest) + 1;
        u32::try_from(seed % range).unwrap_or(highest)
    }
}

/// What the thread takes from its queue.
enum Told {
    Event(Event),
    /// Some were lost.
    Lost,
}

/// Tells daemons what happens to what they have negotiated.
pub struct Negotiation {
    sender: SyncSender<Told>,
    has_lost: bool,
}

impl Negotiation {
    /// Serves daemons at a socket until the process ends.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn start(
        socket: &XfrmSocket,
        ike: &Ike,
        shared: &Arc<Shared>,
        settings: Settings,
        routes: Arc<dyn NegotiatedRoutes>,
    ) -> io::Result<Self> {
        let mark = if routes.spare_peers() { ike.mark } else { 0 };
        let path = WorkerPath::new(Arc::clone(shared), settings, routes);
        let server = Arc::new(XfrmServer::new(path, Box::new(Host)).with_mark(mark));
        let owner = user_of(ike).ok().flatten();
        socket.serve(Arc::clone(&server), move |stream: &UnixStream| {
            let user = peer::user_of(stream);
            match (&user, owner) {
                (Ok(user), Some(owner)) if *user == owner => Ok(()),
                _ => peer::check_user(user).map(drop),
            }
        })?;
        let (sender, news) = sync_channel(MAX_EVENTS);
        let told = Teller { server, shared: Arc::clone(shared), sequence: 0 };
        std::thread::Builder::new().name("ike".into()).spawn(move || told.run(&news))?;
        tracing::info!("key exchange daemons find this gateway at {}", ike.socket.display());
        Ok(Self { sender, has_lost: false })
    }

    /// Something has happened to a negotiated tunnel.
    pub(super) fn tell(&mut self, event: Event) {
        self.send(Told::Event(event));
    }

    /// Events of the worker were lost.
    pub(super) fn has_lost(&mut self) {
        self.send(Told::Lost);
    }

    fn send(&mut self, told: Told) {
        if std::mem::take(&mut self.has_lost) && self.sender.try_send(Told::Lost).is_err() {
            self.has_lost = true;
        }
        self.has_lost |= self.sender.try_send(told).is_err();
    }
}

struct Teller {
    server: Arc<XfrmServer<WorkerPath>>,
    shared: Arc<Shared>,
    /// Of the last acquire.
    sequence: u32,
}

impl Teller {
    fn run(mut self, news: &Receiver<Told>) {
        let mut next = Instant::now() + TICK;
        loop {
            match news.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(Told::Event(event)) => self.note(event),
                Ok(Told::Lost) => self.look_for_stopped(),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if Instant::now() >= next {
                next = Instant::now() + TICK;
                self.server.tick();
                let renewal = self.server.xfrm().renewal();
                self.shared.installed().negotiated.note_renewal(renewal);
            }
        }
    }

    fn note(&mut self, Event { tunnel, kind }: Event) {
        match kind {
            EventKind::Acquire(acquire) => {
                let Some(index) = self.shared.installed().negotiated.policy_with_id(acquire.policy) else {
                    return;
                };
                self.sequence = self.sequence.wrapping_add(1).max(1);
                let packet = of_packet(&acquire.packet);
                let told = self.server.xfrm().acquire(index, packet, acquire.worker, self.sequence);
                self.server.tell(told.as_slice());
            }
            EventKind::SoftLifetime { spi, outbound } => self.reached(tunnel, spi, outbound, false),
            EventKind::HardLifetime { spi, outbound } => self.reached(tunnel, spi, outbound, true),
            EventKind::SequenceExhausted { spi } => self.reached(tunnel, spi, true, true),
            EventKind::PeerMoved { spi, address, port, .. } => {
                self.moved(tunnel, spi, (address, port).into())
            }
            _ => {}
        }
    }

    fn reached(&self, tunnel: TunnelIndex, spi: u32, is_outbound: bool, is_hard: bool) {
        let place = self.shared.installed().negotiated.sa_of(tunnel, spi, is_outbound);
        let Some(place) = place else { return };
        self.server.change(|xfrm| {
            let told: Vec<Notification> = xfrm.reached_limit(place, is_hard).into_iter().collect();
            ((), told)
        });
    }

    fn moved(&self, tunnel: TunnelIndex, spi: u32, from: SocketAddr) {
        // A NAT's port for VPE is not the one for IKE, which a daemon would take it for.
        let is_vpe = |of: Arc<NegotiatedTunnel>| of.running.tunnel.protocol == IpsecProtocol::Vpe;
        if self.shared.installed().negotiated.at(tunnel).is_some_and(is_vpe) {
            return;
        }
        let Some(place) = self.shared.installed().negotiated.sa_of(tunnel, spi, false) else { return };
        let told = self.server.xfrm().mapping(place, from);
        self.server.tell(told.as_slice());
    }

    /// SAs may have stopped unheard.
    fn look_for_stopped(&self) {
        for (tunnel, spi, is_outbound) in self.shared.installed().negotiated.stopped() {
            self.reached(tunnel, spi, is_outbound, true);
        }
    }
}
