//! Encapsulations: what an SA puts around a packet and takes off again, one file each.
//!
//! ```text
//!   esp_tunnel      | IP, (UDP) | ESP | IV | IP packet ………………………… | padding, trailer | ICV |  RFC 4303 3.1.2
//!   esp_transport   | IP, extensions, (UDP) | ESP | IV | payload … | padding, trailer | ICV |  RFC 4303 3.1.1
//!   ah, tunnel      | IP | AH with ICV | IP packet ………………………… |                               RFC 4302 3.1.2
//!   ah, transport   | IP, extensions | AH with ICV | payload … |                               RFC 4302 3.1.1
//!   vpe, tunnel     | IP, (UDP) | VPE with ICV | IP packet ………………………… |                       docs/VPE.md
//! ```
//!
//! ESP in tunnel mode is what most SAs do: its packets are framed run by run ([`esp_tunnel::Framing`]) and
//! opened by a function of its own. [`Frame`] and [`Strip`] take a packet at a time; whose functions is
//! chosen once for each run of packets of an SA.
//!
//! AH over ESP on one packet is two SAs: that of ESP, and one of AH in transport mode that covers its
//! datagrams, which RFC 2401 4.3 calls a bundle (transport adjacency). A datagram passes the engines twice:
//! when the first job has ended, it becomes a job of the other SA
//! ([`Ipsec::take_again`](crate::Ipsec::take_again)).

pub(crate) mod ah;
pub(crate) mod esp_transport;
pub(crate) mod esp_tunnel;
pub(crate) mod outer_fields;
pub(crate) mod template;
pub(crate) mod vpe;

use crate::event::Event;
use crate::fragments::Identifications;
use crate::lifetime::Moment;
use crate::sa::{InboundSa, OutboundSa};
use crate::slots::SaRef;
use crate::tunnel::Encapsulation;
use template::BLOCK_BYTES;
use testudo_crypto::{Job, Suite};
use testudo_packet::{Buffer, DropReason};
use testudo_wire::ah::ah_bytes;
use testudo_wire::esp::{ESP_HEADER_BYTES, ESP_TRAILER_BYTES};
use testudo_wire::ip::{IpHeader, Version};
use testudo_wire::udp::UDP_HEADER_BYTES;
use testudo_wire::vpe::VPE_HEADER_BYTES;

/// The security protocol of an SA (RFC 4301 4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum IpsecProtocol {
    /// RFC 4303.
    #[default]
    Esp,
    /// RFC 4302.
    Ah,
    /// Vector Packet Encapsulation (`docs/VPE.md`), in tunnel mode alone.
    Vpe,
}

/// What an SA protects (RFC 4301 4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Mode {
    /// Whole packets, inside others between two gateways or a host and a gateway.
    #[default]
    Tunnel,
    /// What packets between two hosts carry.
    Transport,
}

/// Protocol and mode of an SA, as one choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encap {
    EspTunnel,
    EspTransport,
    AhTunnel,
    AhTransport,
    Vpe,
}

impl Encap {
    pub(crate) fn new(protocol: IpsecProtocol, mode: Mode) -> Self {
        match (protocol, mode) {
            (IpsecProtocol::Esp, Mode::Tunnel) => Self::EspTunnel,
            (IpsecProtocol::Esp, Mode::Transport) => Self::EspTransport,
            (IpsecProtocol::Ah, Mode::Tunnel) => Self::AhTunnel,
            (IpsecProtocol::Ah, Mode::Transport) => Self::AhTransport,
            (IpsecProtocol::Vpe, _) => Self::Vpe,
        }
    }

    pub(crate) fn protocol(self) -> IpsecProtocol {
        match self {
            Self::EspTunnel | Self::EspTransport => IpsecProtocol::Esp,
            Self::AhTunnel | Self::AhTransport => IpsecProtocol::Ah,
            Self::Vpe => IpsecProtocol::Vpe,
        }
    }
}

/// All that the lengths of an SA's datagrams depend on.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// IP version of the outer header.
    pub outer: Version,
    /// Whether ESP or VPE is in UDP.
    pub encapsulation: Encapsulation,
    /// ESP, AH or VPE.
    pub protocol: IpsecProtocol,
    /// Tunnel or transport mode.
    pub mode: Mode,
    /// Algorithms.
    pub suite: Suite,
}

/// The longest datagram that an IPv4 length field allows, in bytes.
pub(crate) const MAX_DATAGRAM: usize = 65_535;

impl Shape {
    /// The longest packet that is carried over a path with this MTU, in bytes.
    #[must_use]
    pub fn inner_mtu(&self, path_mtu: usize) -> usize {
        let path_mtu = path_mtu.min(MAX_DATAGRAM);
        let outer = self.outer.header_bytes();
        let udp = if matches!(self.encapsulation, Encapsulation::Esp) { 0 } else { UDP_HEADER_BYTES };
        let (iv, icv) = (self.suite.iv_bytes(), self.suite.icv_bytes());
        let alignment = self.suite.alignment_bytes();
        match Encap::new(self.protocol, self.mode) {
            Encap::EspTunnel => {
                let text = path_mtu.saturating_sub(outer + udp + ESP_HEADER_BYTES + iv + icv);
                (text / alignment * alignment).saturating_sub(ESP_TRAILER_BYTES)
            }
            Encap::EspTransport => esp_transport::longest_packet(path_mtu, udp, iv, icv, alignment),
            Encap::AhTunnel => path_mtu.saturating_sub(outer + ah_bytes(iv + icv, self.outer)),
            Encap::AhTransport => path_mtu.saturating_sub(ah_bytes(iv + icv, self.outer)),
            Encap::Vpe => path_mtu.saturating_sub(outer + udp + VPE_HEADER_BYTES),
        }
    }
}

/// What is put around packets, packet by packet.
pub(crate) trait Frame {
    /// Whether a packet can be carried; asked before a sequence number is used up.
    ///
    /// # Errors
    /// Why not.
    fn check(sa: &OutboundSa, packet: &Buffer) -> Result<(), DropReason>;

    /// The number of a packet that passed [`check`](Self::check), which counts so many bytes towards the
    /// lifetime.
    ///
    /// # Errors
    /// Why it must not be sent.
    #[inline]
    fn admit(
        sa: &mut OutboundSa,
        packet: &Buffer,
        header: &IpHeader,
        bytes: usize,
        now: Moment,
        events: &mut Vec<Event>,
    ) -> Result<u64, DropReason> {
        let _ = (packet, header);
        sa.admit(bytes, now, events)
    }

    /// Surrounds a packet that passed [`check`](Self::check), and makes the job that seals it under this
    /// number. A datagram that needs one gets the next Identification.
    ///
    /// # Errors
    /// The packet, and why it cannot be carried.
    fn frame(
        sa: &OutboundSa,
        sa_ref: SaRef,
        packet: Buffer,
        header: &IpHeader,
        sequence: u64,
        identifications: &mut Identifications,
    ) -> Result<Job, (Buffer, DropReason)>;
}

/// What is taken off packets, packet by packet.
pub(crate) trait Strip {
    /// Takes off what surrounds the packet of an opened job. What remains has not been checked against
    /// policy.
    ///
    /// # Errors
    /// Why nothing was carried that may be forwarded.
    fn strip(sa: &InboundSa, job: &mut Job) -> Result<Carried, DropReason>;
}

/// What a packet that was stripped is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Carried {
    /// The protocol of its first header: 4 or 41.
    pub(crate) next_header: u8,
    /// Where it begins in the buffer, in bytes.
    pub(crate) at: u32,
    /// Traffic class of the datagram that it came in; `None` in transport mode, which has one header for
    /// both.
    pub(crate) outer_class: Option<u8>,
}

/// What is done with a job that has ended well ([`Job::then`]): any of these.
pub(crate) mod then {
    /// Nothing: it is sent, or decapsulated, as it is.
    pub(crate) const SEND: u8 = 0;
    /// AH: its ICV is put in its place, and the mutable fields are restored.
    pub(crate) const UNMASK: u8 = 1;
    /// The same with the IV of AES-GMAC before the ICV.
    pub(crate) const UNMASK_WITH_IV: u8 = UNMASK | 8;
    /// ESP: the datagram goes through the SA of AH that covers it.
    pub(crate) const AUTHENTICATE: u8 = 2;
    /// The datagram is cut if it is too long for the path.
    pub(crate) const CUT: u8 = 4;
    /// A copy of a packet from the peer, tried under another high half of its number
    /// ([`resync`](crate::resync)).
    pub(crate) const RESYNCHRONISE: u8 = 16;
    /// It is not cut, whatever its length: a probe of the path.
    pub(crate) const WHOLE: u8 = 32;
}

/// Bytes of the longest IV.
pub(crate) const MAX_IV_BYTES: usize = 16;
/// Bytes of the longest ICV.
pub(crate) const MAX_ICV_BYTES: usize = 32;
/// Bytes that the fast path writes before a packet at once, and must be free.
pub(crate) const ROOM_BEFORE: usize = BLOCK_BYTES + MAX_IV_BYTES;
/// Bytes after a packet that must be free for it.
pub(crate) const ROOM_BEHIND: usize = esp_tunnel::TRAILER_BLOCK_BYTES + MAX_ICV_BYTES;

/// Whether a buffer has the room that the fast path needs.
#[inline]
pub(crate) fn has_room(buffer: &Buffer) -> bool {
    buffer.headroom() >= ROOM_BEFORE && buffer.tailroom() >= ROOM_BEHIND
}

/// An offset or a length inside a datagram. Asserted: a value that does not fit is a bug of ours, and a wrong
/// offset would be worse than a panic.
#[inline]
#[allow(clippy::cast_possible_truncation, reason = "asserted")]
pub(crate) fn packet_offset(n: usize) -> u32 {
    assert!(n <= u32::MAX as usize, "no offset inside a datagram: {n}");
    n as u32
}
