//! Events for the operator.

use crate::acquire::Acquire;
use crate::path_mtu::LearnedFrom;
use crate::spd::TunnelIndex;
use std::net::{IpAddr, SocketAddr};

/// Something happened to a tunnel, or to one of its SAs. Each kind is reported once per cause, never per
/// packet; acquires within [limits](Acquire).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// The tunnel.
    pub tunnel: TunnelIndex,
    /// What happened.
    pub kind: EventKind,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// A soft limit was reached: the SA should be replaced soon.
    SoftLifetime {
        /// The SA.
        spi: u32,
        /// Whether it is the SA towards the peer.
        outbound: bool,
    },
    /// A hard limit was reached: the SA has stopped.
    HardLifetime {
        /// The SA.
        spi: u32,
        /// Whether it is the SA towards the peer.
        outbound: bool,
    },
    /// All sequence numbers are used: the SA has stopped.
    SequenceExhausted {
        /// The SA, towards the peer.
        spi: u32,
    },
    /// The durable store did not grant numbers in time: packets are dropped until it does.
    SequenceNotLeased {
        /// The SA, towards the peer.
        spi: u32,
    },
    /// More than 2^32 packets of the peer were lost, and the high half of its numbers was found again (RFC
    /// 4303 A3).
    Resynchronised {
        /// The SA, from the peer.
        spi: u32,
        /// Packets that are missing.
        lost: u64,
    },
    /// A flow wants an SA of its own, made after this tunnel, or the tunnel has none and
    /// [acquires](crate::TunnelParameters::acquires). Of ESP that has one, and that AH is to cover: the
    /// tunnel of AH, which has none. Or a worker has no SA of its own.
    Acquire(Acquire),
    /// The peer has used a new key: packets go out through the SA that waited for that.
    TookOver {
        /// The SA towards the peer that is in use from now on.
        spi: u32,
    },
    /// A packet of the peer came from a new address, and packets are sent there from now on: at most once a
    /// second for a tunnel.
    PeerMoved {
        /// The SA from the peer that the packet came under.
        spi: u32,
        /// Where packets were sent before; `None` if the peer was unknown.
        before: Option<SocketAddr>,
        /// Its address.
        address: IpAddr,
        /// Its UDP port.
        port: u16,
    },
    /// Of a group: authentic packets of one Sender ID came from two addresses within a second, so that two
    /// devices have it, and may have used a nonce twice. At most once a minute for each. With our own ID:
    /// such a packet came from another address than ours.
    SenderTwice {
        /// The SA from the peers.
        spi: u32,
        /// The Sender ID.
        sender: u16,
        /// Where its packet before came from; of our own ID, our address.
        before: IpAddr,
        /// Where this one came from.
        address: IpAddr,
    },
    /// Of a group: an authentic packet has our own Sender ID, and a number that we have not used. Nothing is
    /// sent under the ID any more, until the tunnel is installed anew.
    SenderTaken {
        /// The SA towards the peers, which has stopped.
        spi: u32,
        /// Our Sender ID.
        sender: u16,
        /// Where the packet came from.
        address: IpAddr,
    },
    /// Datagrams to the peer may have at most this many bytes from now on: at most once a second for a
    /// tunnel.
    PathMtu {
        /// In bytes.
        mtu: usize,
        /// Who says so; `None` if it is the configured value again.
        learned_from: Option<LearnedFrom>,
    },
}
