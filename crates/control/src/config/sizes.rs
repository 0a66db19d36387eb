//! What fits through a tunnel: the MTU calculator of `check`, `status` and `sa list` (RFC 4301 8.2).

use super::model::Tunnel;
use std::borrow::Cow;
use testudo_crypto::Suite;
use testudo_ipsec::Mode;
use testudo_wire::ip::Version;

/// What every path carries over IPv6 (RFC 8200 5).
const IPV6_LEAST_MTU: u16 = 1280;
/// Headers of IP and TCP without options (RFC 9293 3.7.1).
const TCP_OVER_IPV4_BYTES: u16 = 40;
const TCP_OVER_IPV6_BYTES: u16 = 60;

/// Lengths of a tunnel's packets over a path, all in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// The longest datagram that the path carries, outer headers included.
    pub path_mtu: u16,
    /// The longest inner packet whose datagram is not longer.
    pub inner_mtu: u16,
    /// What suite and encapsulation add to it: headers, IV, padding, trailer and ICV.
    pub overhead: u16,
    /// The most that a TCP segment may carry in such a packet over IPv4; `None` if the tunnel carries none.
    pub mss_ipv4: Option<u16>,
    /// The same over IPv6. Packets of 1,280 bytes cross any path there.
    pub mss_ipv6: Option<u16>,
}

impl Tunnel {
    /// The same tunnel with an SA of this suite: keys may be replaced by those of another.
    #[must_use]
    pub fn under(&self, suite: Suite) -> Cow<'_, Self> {
        if self.suite == suite { Cow::Borrowed(self) } else { Cow::Owned(Self { suite, ..self.clone() }) }
    }

    /// The lengths of its packets over a path, if those of `covering`, a tunnel of AH, go around them.
    #[must_use]
    pub fn sizes(&self, path_mtu: u16, covering: Option<&Tunnel>) -> Sizes {
        let inner_mtu = self.inner_mtu(self.path_mtu(path_mtu, covering));
        // A tunnel that covers another's datagrams carries nothing else, and transport mode packets between
        // the outer addresses alone.
        let carries = |version| {
            let is_outer = self.mode == Mode::Tunnel || Version::of(self.local) == version;
            is_outer && self.covers.is_none()
        };
        let mss = |version, longest: u16, headers| carries(version).then(|| longest.saturating_sub(headers));
        Sizes {
            path_mtu,
            inner_mtu,
            overhead: path_mtu.saturating_sub(inner_mtu),
            mss_ipv4: mss(Version::V4, inner_mtu, TCP_OVER_IPV4_BYTES),
            mss_ipv6: mss(Version::V6, inner_mtu.max(IPV6_LEAST_MTU), TCP_OVER_IPV6_BYTES),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Configuration;
    use crate::config::tests::MINIMAL;
    use testudo_ipsec::{Encapsulation, IpsecProtocol};

    fn tunnel() -> Tunnel {
        Configuration::parse(MINIMAL, "t.toml").unwrap().tunnels[0].clone()
    }

    /// RFC 4303 2, RFC 4106 4 and 6: 20 + 8 + 8 + 16 bytes, the trailer's 2, and 0 to 3 of padding.
    #[test]
    fn the_calculator_adds_up() {
        let of = |tunnel: &Tunnel, path| {
            let Sizes { inner_mtu, overhead, mss_ipv4, mss_ipv6, .. } = tunnel.sizes(path, None);
            (inner_mtu, overhead, mss_ipv4, mss_ipv6)
        };
        assert_eq!(of(&tunnel(), 1500), (1446, 54, Some(1406), Some(1386)));
        assert_eq!(of(&tunnel(), 1499), (1442, 57, Some(1402), Some(1382)));
        let mut in_udp = tunnel();
        in_udp.encapsulation = Encapsulation::EspInUdp { local_port: 4500, remote_port: 4500 };
        assert_eq!(of(&in_udp, 1500), (1438, 62, Some(1398), Some(1378)));
        in_udp.local = "2001:db8::1".parse().unwrap();
        assert_eq!(of(&in_udp, 1280), (1198, 82, Some(1158), Some(1220)), "IPv6 has 1280 in any case");
    }

    /// RFC 4302 2: 12 bytes and 12 of ICV around the datagram of ESP.
    #[test]
    fn ah_around_esp_counts_and_transport_mode_has_one_ip_version() {
        let ah = Tunnel {
            protocol: IpsecProtocol::Ah,
            mode: Mode::Transport,
            suite: Suite::NULL_SHA1,
            covers: Some(0),
            ..tunnel()
        };
        let around = tunnel().sizes(1500, Some(&ah));
        assert_eq!((around.inner_mtu, around.overhead), (1422, 78));
        let of_ah = ah.sizes(1500, None);
        assert_eq!((of_ah.inner_mtu, of_ah.mss_ipv4, of_ah.mss_ipv6), (1476, None, None));
        let in_transport = Tunnel { covers: None, ..ah }.sizes(1500, None);
        assert_eq!((in_transport.mss_ipv4, in_transport.mss_ipv6), (Some(1436), None));
    }
}
