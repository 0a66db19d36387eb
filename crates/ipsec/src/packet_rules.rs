//! What a tunnel does to packets and to the headers around them, beyond protecting them: all of it optional.

use crate::mtu_probe::MtuProbe;
use crate::vpe::VpeRules;
use testudo_wire::ip::Version;
use testudo_wire::mss;

/// The DF bit of outer IPv4 headers (RFC 4301 8.1). IPv6 has none: its routers never cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Df {
    /// Set: no router cuts a datagram, and none needs an Identification (RFC 6864 4.1).
    #[default]
    Set,
    /// As in the inner packet; IPv6 packets count as set, since no router may cut these.
    Copy,
    /// Clear: routers may cut, and the peer must reassemble.
    Clear,
}

/// The flow label of outer IPv6 headers. A gateway never copies the inner one (RFC 4301 5.1.2.2, note 8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum FlowLabel {
    /// 0: all packets of the tunnel look alike.
    #[default]
    Zero,
    /// One for each inner flow, so that routers can spread flows over equal paths (RFC 6438 3). An observer
    /// sees how many flows there are, and not which.
    PerFlow,
}

/// The MSS of TCP connections through a tunnel (RFC 9293 3.7.1): their SYNs are changed so that no segment is
/// longer than fits. Never raised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum MssClamp {
    /// What fits the path, as far as it is known.
    #[default]
    Auto,
    /// SYNs stay as they are.
    Off,
    /// This, in bytes.
    Bytes(u16),
}

impl MssClamp {
    /// The highest MSS over IPv4 and over IPv6, where packets of `mtu` bytes fit the path.
    pub(crate) fn limits(self, mtu: u16) -> [u16; 2] {
        match self {
            Self::Auto => [Version::V4, Version::V6].map(|version| mss::that_fits(mtu, version)),
            Self::Off => [u16::MAX; 2],
            Self::Bytes(bytes) => [bytes; 2],
        }
    }
}

/// The choices of a tunnel.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct PacketRules {
    /// DF of outer IPv4 headers, in tunnel mode.
    pub df: Df,
    /// Flow label of outer IPv6 headers, in tunnel mode.
    pub flow_label: FlowLabel,
    /// MSS of TCP connections, in both directions.
    pub mss_clamp: MssClamp,
    /// Shorter packets are padded to this length inside ESP, as far as the path carries that uncut (TFC
    /// padding, RFC 4303 2.7), in bytes; 0 for not at all. In tunnel mode alone: there the inner packet's own
    /// length says where it ends.
    pub tfc_pad_to: u16,
    /// Dummy packets that are sent (RFC 4303 2.6), in VPE fill packets; 0 for none, and none in AH.
    pub dummy_packets_per_second: u16,
    /// Packets that each worker that encrypts sends in a second, one at each tick of its clock, whatever
    /// there is to send: the tunnel's own, which wait for a tick, or a dummy where none waits. Then there are
    /// no other dummies. 0 for packets as they come, as always in AH.
    pub clocked_packets_per_second: u16,
    /// Probes of the path's MTU, where ICMP errors are filtered; `None` for none, as most tunnels have it.
    pub mtu_probe: Option<Box<MtuProbe>>,
    /// What a tunnel of VPE has beyond one of ESP; `None` for the defaults.
    pub vpe: Option<Box<VpeRules>>,
}

impl PacketRules {
    /// What the tunnel has beyond one of ESP, if it is one of VPE.
    #[must_use]
    pub fn of_vpe(&self) -> VpeRules {
        self.vpe.as_deref().copied().unwrap_or_default()
    }
}
