//! ICMP errors about packets of VPE: [`crate::path_mtu`] takes them as it does those about ESP, by the number
//! of a window that was used in the last few seconds.
//!
//! ```text
//!   8 bytes are quoted for certain (RFC 792):   Sender ID, Window ID, low half of the number
//!   16, as most routers do (RFC 1812 4.3.2.3):  the SPI, too
//! ```
//!
//! Who does not see our packets must guess a number in a window of ours, and the SPI. A quote that ends
//! before the SPI leaves the number alone, which counts from 1 in each window and can be guessed: such an
//! error is believed as long as it leaves 1,280 bytes, which harms little.

use crate::Ipsec;
use crate::encap::IpsecProtocol;
use crate::lifetime::Moment;
use crate::path_mtu::{Claim, SaName, floor};
use crate::spd::{TunnelIndex, address_bits};
use crate::tunnel::Encapsulation;
use testudo_wire::icmp_error::{QuotedHeader, QuotedPacket, QuotedVpe};

/// The least MTU that is believed of a quote without SPI, in bytes.
const FLOOR_WITHOUT_SPI: usize = 1280;
/// Tunnels that are asked about a quote without SPI: as many as go to one peer, mostly one.
const MAX_ASKED: usize = 64;

impl Ipsec {
    /// What a quoted packet shows of VPE, if it is of a protocol number or a port where VPE is served.
    pub(crate) fn quoted_vpe(&self, quoted: &QuotedPacket) -> Option<QuotedVpe> {
        let is_vpe = match quoted.header {
            // Whichever end has a port of its window's, or behind a NAT: both of a tunnel are one.
            Some(QuotedHeader::Udp { source_port, destination_port, .. }) => {
                self.vpe.has_port(source_port) || self.vpe.has_port(destination_port)
            }
            Some(QuotedHeader::Ah { .. }) => false,
            _ => self.vpe.is_vpe(quoted.protocol, quoted.version, address_bits(quoted.source)),
        };
        quoted.vpe.filter(|_| is_vpe)
    }

    /// Takes an error that says of a packet of VPE that it did not fit; `None` if it is ignored.
    pub(crate) fn believe_of_vpe(
        &mut self,
        quoted: &QuotedPacket,
        vpe: &QuotedVpe,
        mtu: u32,
        now: Moment,
    ) -> Option<()> {
        let port = match quoted.header {
            Some(QuotedHeader::Udp { destination_port, .. }) => Some(destination_port),
            _ => None,
        };
        let spi = vpe.spi.unwrap_or(0);
        let name = SaName { protocol: IpsecProtocol::Vpe, spi, peer: quoted.destination, port };
        let (version, quoted_bytes) = (quoted.version, quoted.total_bytes);
        let claim = Claim { version, mtu, quoted_bytes, sequence: vpe.number };
        for at in 0..MAX_ASKED {
            let index = *self.names.get(&name).get(at)?;
            if self.is_believed_of(index, quoted, vpe, &claim, now) {
                self.apply_path_mtu(index);
                return Some(());
            }
        }
        None
    }

    /// Whether the claim is to be believed of a tunnel, by its SA in use.
    fn is_believed_of(
        &mut self,
        index: TunnelIndex,
        quoted: &QuotedPacket,
        vpe: &QuotedVpe,
        claim: &Claim,
        now: Moment,
    ) -> bool {
        let way = self.tunnel(index).and_then(|tunnel| self.way_of(tunnel));
        let sa = way.and_then(|sa| self.outbound.get(sa));
        let sa = sa.filter(|sa| vpe.spi.is_none_or(|spi| spi == sa.spi));
        let windows = sa.and_then(|sa| sa.vpe.as_ref());
        let windows = windows.filter(|windows| windows.rules().sender == vpe.sender);
        let recent = windows.and_then(|windows| windows.recent(vpe.window));
        let tunnel = self.tunnels.get_mut(index.0 as usize).and_then(Option::as_mut);
        let Some((recent, tunnel)) = recent.zip(tunnel) else { return false };
        let (ends, rules) = (tunnel.parameters.endpoints, tunnel.parameters.rules.of_vpe());
        let is_from_here = quoted.source == ends.local
            && match (ends.encapsulation, quoted.header) {
                (Encapsulation::EspInUdp { local_port, .. }, Some(QuotedHeader::Udp { source_port, .. })) => {
                    source_port == rules.source_ports.of_window(local_port, vpe.window)
                }
                (Encapsulation::Esp, _) => quoted.protocol == rules.ip_protocol,
                _ => false,
            };
        let least = floor(claim.version);
        let least = if vpe.spi.is_some() { least } else { least.max(FLOOR_WITHOUT_SPI) };
        is_from_here && tunnel.path_mtu.believe_within(claim, least, &recent, now)
    }
}
