//! Where datagrams of VPE arrive: protocol numbers, UDP ports, and addresses where ESP's number means VPE.

use super::VpeRules;
use crate::encap::IpsecProtocol;
use crate::spd::address_bits;
use crate::tunnel::{Encapsulation, TunnelParameters};
use crate::udp_ports::UdpPorts;
use hashbrown::HashMap;
use std::net::IpAddr;
use testudo_wire::ip::Version;
use testudo_wire::protocol;

/// What tunnels of VPE listen on, with a reference count of the tunnels that use each.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// How they are carried, without UDP: few numbers, mostly one.
    protocols: Vec<(u8, u32)>,
    ports: UdpPorts,
    users_of_ports: u32,
    /// Our addresses where ESP's protocol number means VPE.
    instead_of_esp: HashMap<IpAddr, u32, foldhash::fast::RandomState>,
    /// All tunnels of VPE.
    tunnels: u32,
}

/// A kind of datagram that a tunnel listens for.
#[derive(Debug, Clone, Copy)]
enum Place {
    Protocol(u8),
    InsteadOfEsp(IpAddr),
    Port(u16),
}

fn place_of(tunnel: &TunnelParameters) -> Option<Place> {
    if tunnel.protocol != IpsecProtocol::Vpe {
        return None;
    }
    Some(match tunnel.endpoints.encapsulation {
        Encapsulation::EspInUdp { local_port, .. } => Place::Port(local_port),
        Encapsulation::Esp => match tunnel.rules.of_vpe() {
            VpeRules { ip_protocol: protocol::ESP, .. } => {
                Place::InsteadOfEsp(tunnel.endpoints.destination())
            }
            VpeRules { ip_protocol, .. } => Place::Protocol(ip_protocol),
        },
    })
}

impl Places {
    /// Whether any tunnel is of VPE.
    #[inline(always)]
    pub(crate) fn is_any(&self) -> bool {
        self.tunnels > 0
    }

    /// Whether any tunnel of VPE has ESP's number.
    #[inline]
    pub(crate) fn has_esp_number(&self) -> bool {
        !self.instead_of_esp.is_empty()
    }

    /// Whether a protocol number means VPE at this address of ours.
    #[inline]
    pub(crate) fn is_vpe(&self, number: u8, version: Version, address: u128) -> bool {
        if number == protocol::ESP {
            let is_at = |at: &IpAddr| Version::of(*at) == version && address_bits(*at) == address;
            return self.instead_of_esp.keys().any(is_at);
        }
        self.protocols.iter().any(|(own, _)| *own == number)
    }

    /// Whether VPE is expected on a UDP port.
    #[inline]
    pub(crate) fn has_port(&self, port: u16) -> bool {
        self.users_of_ports > 0 && self.ports.contains(port)
    }

    pub(crate) fn add(&mut self, tunnel: &TunnelParameters) {
        let place = place_of(tunnel);
        self.tunnels += u32::from(place.is_some());
        match place {
            None => {}
            Some(Place::Port(port)) => {
                self.ports.add(port);
                self.users_of_ports += 1;
            }
            Some(Place::InsteadOfEsp(address)) => *self.instead_of_esp.entry(address).or_default() += 1,
            Some(Place::Protocol(number)) => {
                match self.protocols.iter_mut().find(|(own, _)| *own == number) {
                    Some((_, users)) => *users += 1,
                    None => self.protocols.push((number, 1)),
                }
            }
        }
    }

    pub(crate) fn unref(&mut self, tunnel: &TunnelParameters) {
        let place = place_of(tunnel);
        self.tunnels -= u32::from(place.is_some());
        match place {
            None => {}
            Some(Place::Port(port)) => {
                self.ports.unref(port);
                self.users_of_ports -= 1;
            }
            Some(Place::InsteadOfEsp(address)) => {
                if let Some(users) = self.instead_of_esp.get_mut(&address) {
                    *users -= 1;
                }
                self.instead_of_esp.retain(|_, users| *users > 0);
            }
            Some(Place::Protocol(number)) => {
                if let Some((_, users)) = self.protocols.iter_mut().find(|(own, _)| *own == number) {
                    *users -= 1;
                }
                self.protocols.retain(|(_, users)| *users > 0);
            }
        }
    }
}
