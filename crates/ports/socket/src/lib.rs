//! UDP sockets and raw sockets of ESP and AH as a port: the unprotected side of a gateway that has no NIC of
//! its own.
//!
//! To the gateway, a [`SocketPort`] is a port like any other: it gives and takes whole IP datagrams. The
//! kernel's UDP sockets give and take payloads; so the port strips the outer headers when sending, passes
//! their content to the kernel in other ways, and rebuilds them when receiving:
//!
//! | outer header | sent with | received from |
//! | --- | --- | --- |
//! | source | which socket (and `IP_PKTINFO`, if it has no address of its own) | the peer's address |
//! | destination | `sendmsg` address | the socket's address, or `IP_PKTINFO` |
//! | DSCP, ECN | `IP_TOS`, `IPV6_TCLASS` | `IP_RECVTOS`, `IPV6_RECVTCLASS` |
//! | DF | `IP_MTU_DISCOVER` | unknown: set |
//! | TTL, hop limit | `IP_TTL`, `IPV6_HOPLIMIT`, where it is not 64 | `IP_RECVTTL`, `IPV6_RECVHOPLIMIT` if the configuration asks for it, else 64 |
//! | identification, options, extension headers | the kernel's, which sends none | unknown: 0, none |
//!
//! **Raw sockets** of ESP and AH send datagrams as they are (`IP_HDRINCL`, `IPV6_HDRINCL`): the ICV of AH
//! covers identification, length, addresses, immutable options and extension headers (RFC 4302 3.3.3.1), and
//! in transport mode all of them are the hosts' own. The kernel fills in one field of IPv4, an identification
//! of 0 (raw(7)). That is harmless where DF is set, since it leaves 0 then; without DF,
//! [`DropReason::BadHeader`](testudo_packet::DropReason::BadHeader) refuses the datagram if it has AH or is a
//! fragment. Over IPv4 raw sockets receive whole datagrams. Over IPv6 the kernel removes the headers and
//! gives them as control data, from which they are rebuilt, extension headers included; a datagram with more
//! than about 900 bytes of these is dropped as `receive_truncated`. The kernel reassembles what was
//! fragmented.
//!
//! **Beside IKE.** An IKE daemon has the UDP socket of port 4500, and ESP comes to that port, too (RFC 3948).
//! There a raw socket of UDP receives the ESP, and only it, by a filter in the kernel (`filter`). The
//! daemon's own socket gets all of it, too, and has to ignore ESP; without a socket on the port, the kernel
//! answers what comes with "port unreachable". Received are whole datagrams, reassembled, as from other raw
//! sockets, whose UDP checksum nobody has verified (RFC 3948 2.1): the ICV judges. Sent are datagrams with
//! the UDP header that they have, and, over IPv6, with a checksum; the kernel makes the IP header as in the
//! table above, because it fragments only then. There is neither segmentation nor `UDP_GRO`: each datagram is
//! a message of its own.
//!
//! **From many ports.** What has a source port for each window (VPE) leaves by such a raw socket, too, since
//! a UDP socket has one port; one socket of UDP receives what comes back to the tunnel's port. These
//! datagrams are not joined either.
//!
//! **Speed.** Consecutive UDP packets of one size for one peer leave as one system call with `UDP_SEGMENT`,
//! gathered from where they are. With `UDP_GRO`, up to 64 KiB of datagrams arrive together; the port predicts
//! the size of each from the last time, and lets the kernel scatter them into a buffer each. A wrong
//! prediction costs a copy.
//!
//! **DF.** If the gateway requests DF, the socket probes (`IP_PMTUDISC_PROBE`): DF is set, and the kernel's
//! path MTU, which anyone can lower by forged ICMP, is ignored; a datagram longer than the interface's own
//! MTU is refused and counted. Without DF, the kernel fragments what goes in UDP; over IPv6, which has no DF,
//! what goes in UDP and is longer than the paths' MTU ([`SocketConfig::mtu`]) or has a fragment header (RFC
//! 6946), which the kernel's own then replace. It refuses too long datagrams of ESP and AH in any case, and
//! sends fragments that were made before.
//!
//! **Several queues.** The same endpoints can be opened several times, with a port for each worker
//! ([`SocketQueues`]): programs in the kernel say which datagram comes to which.
//!
//! **Path MTU.** Raw sockets of ICMP hear what routers say is too big, and the port passes on what is about
//! its own datagrams (`icmp_errors`): the gateway decides whether to believe it. Without CAP_NET_RAW there
//! are none.
//!
//! FFI layers: `sys` makes the raw calls and owns the descriptors; the rest is safe code.
//!
//! Deliberately missing: IKE on a UDP socket of the port's own, ICMP errors but "too big", IPv6 link-local
//! peers.

mod address;
mod channel;
mod control;
mod datagram;
mod error;
mod extension_headers;
mod filter;
mod groups;
mod header;
mod icmp_errors;
mod kernel;
mod open;
mod port;
mod queues;
mod raw_receive;
mod sys;
mod transmit;
mod udp_receive;

pub use control::{About, ControlArea};
pub use error::OpenError;
pub use groups::Membership;
pub use icmp_errors::IcmpErrors;
pub use kernel::{Incoming, MessageSocket, Outgoing};
pub use open::{Encapsulation, Endpoint, SocketConfig};
pub use port::SocketPort;
pub use queues::SocketQueues;
pub use sys::{Socket, dropped, namespace_cookie};
pub use transmit::Bypass;
