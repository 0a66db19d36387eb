//! UDP and raw ESP sockets as a port: the unprotected side of a gateway that has no NIC of its own.
//!
//! To the gateway, a [`SocketPort`] is a port like any other: it gives and takes whole IP datagrams. The
//! kernel's sockets give and take payloads; so the port strips the outer headers when sending, passes their
//! content to the kernel in other ways, and rebuilds them when receiving:
//!
//! | outer header | sent with | received from |
//! | --- | --- | --- |
//! | source | which socket (and `IP_PKTINFO`, if it has no address of its own) | the peer's address |
//! | destination | `sendmsg` address | the socket's address, or `IP_PKTINFO` |
//! | DSCP, ECN | `IP_TOS`, `IPV6_TCLASS` | `IP_RECVTOS`, `IPV6_RECVTCLASS` |
//! | DF | `IP_MTU_DISCOVER` | unknown: set |
//! | TTL, identification | the kernel's | unknown: 64 and 0 |
//!
//! Raw ESP over IPv4 is the exception: the socket passes whole datagrams.
//!
//! **Speed.** Consecutive UDP packets of one size for one peer leave as one system call with `UDP_SEGMENT`,
//! gathered from where they are. With `UDP_GRO`, up to 64 KiB of datagrams arrive together; the port predicts
//! the size of each from the last time, and lets the kernel scatter them into a buffer each. A wrong
//! prediction costs a copy.
//!
//! **DF.** If the gateway requests DF, the socket probes (`IP_PMTUDISC_PROBE`): DF is set, and the kernel's
//! path MTU, which anyone can lower by forged ICMP, is ignored; a datagram longer than the interface's own
//! MTU is refused and counted. Without DF, the kernel fragments.
//!
//! FFI layers: `sys` makes the raw calls and owns the descriptors; the rest is safe code.
//!
//! Deliberately missing: IKE on the same UDP port, ICMP errors (they are not authentic), IPv6 link-local
//! peers.

mod address;
mod channel;
mod control;
mod datagram;
mod error;
mod header;
mod kernel;
mod open;
mod port;
mod raw_receive;
mod sys;
mod transmit;
mod udp_receive;

pub use control::About;
pub use error::OpenError;
pub use kernel::{Incoming, MessageSocket, Outgoing};
pub use open::{Encapsulation, Endpoint, SocketConfig};
pub use port::SocketPort;
pub use sys::Socket;
pub use transmit::Bypass;
