//! For ports that no kernel sees: the gateway finds its neighbours itself, and is found by them.
//!
//! What comes to an address of the port is one of these:
//!
//! | packet | becomes |
//! | --- | --- |
//! | ESP, AH, UDP to a port that the gateway listens on, ICMP errors, fragments | the gateway's |
//! | ARP, neighbour solicitations and advertisements | an answer, or knowledge |
//! | an echo request that is no fragment | its reply |
//! | anything else | "port unreachable" or "protocol unreachable", within a rate |
//!
//! What comes to other addresses is the gateway's, as a router's. Deliberately missing: redirects and router
//! advertisements (routes are configured), duplicate address detection for its own addresses.

use crate::neighbours::Heard;
use crate::rate::Bucket;
use crate::resolver::{Disposition, Link, Resolver};
use crate::routes::is_in;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use testudo_packet::{Buffer, DropReason};
use testudo_wire::arp::{ArpOperation, ArpPacket};
use testudo_wire::ethernet::{EthernetHeader, MacAddress, ether_type};
use testudo_wire::icmp::{MAX_TOO_BIG_BYTES, Unreachable, echo_reply, is_echo_request, unreachable};
use testudo_wire::ip::{self, IpHeader};
use testudo_wire::neighbour_discovery::{
    ALL_NODES, MAX_NEIGHBOUR_MESSAGE_BYTES, NeighbourMessage, solicited_node,
};
use testudo_wire::protocol;

/// Messages about undeliverable packets, a second.
const MESSAGES_PER_SECOND: u64 = 100;

/// An address of the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnAddress {
    /// The address.
    pub address: IpAddr,
    /// Bits of the network that its neighbours share.
    pub prefix_bits: u8,
}

/// A resolver that asks and answers.
#[derive(Debug)]
pub struct OwnResolver {
    addresses: Vec<OwnAddress>,
    udp_ports: Vec<u16>,
    /// Protocol numbers of the gateway beside ESP and AH.
    protocols: Vec<u8>,
    messages: Bucket,
}

impl OwnResolver {
    /// A resolver for a port with these addresses, where the gateway listens on these ports of UDP.
    #[must_use]
    pub fn new(addresses: Vec<OwnAddress>, udp_ports: Vec<u16>) -> Self {
        Self { addresses, udp_ports, protocols: Vec::new(), messages: Bucket::new(MESSAGES_PER_SECOND) }
    }

    /// The same where these protocol numbers are the gateway's, too: those of VPE.
    #[must_use]
    pub fn with_protocols(self, protocols: Vec<u8>) -> Self {
        Self { protocols, ..self }
    }

    fn is_own(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|own| own.address == address)
    }

    /// The address to ask from: one that shares a network with who is asked, otherwise the first of the
    /// version.
    fn own_towards(&self, address: IpAddr) -> Option<IpAddr> {
        let same = || self.addresses.iter().filter(|own| own.address.is_ipv4() == address.is_ipv4());
        let near = same().find(|own| is_in(address, own.address, own.prefix_bits));
        near.or_else(|| same().next()).map(|own| own.address)
    }

    fn ask_by_arp(&self, target: Ipv4Addr, mac: Option<MacAddress>, link: &mut Link<'_>) {
        let Some(IpAddr::V4(sender)) = self.own_towards(target.into()) else { return };
        let request = ArpPacket {
            operation: ArpOperation::Request,
            sender_mac: link.mac(),
            sender,
            target_mac: MacAddress::default(),
            target,
        };
        link.send(mac.unwrap_or(MacAddress::BROADCAST), ether_type::ARP, &request.to_bytes());
    }

    fn ask_by_solicitation(&self, target: Ipv6Addr, mac: Option<MacAddress>, link: &mut Link<'_>) {
        let Some(IpAddr::V6(source)) = self.own_towards(target.into()) else { return };
        let group = solicited_node(target);
        // RFC 4861 7.3.3: a probe goes to the neighbour alone.
        let (destination, to) = match mac {
            Some(mac) => (target, mac),
            None => (group, MacAddress::of_group(group.into()).unwrap_or(MacAddress::BROADCAST)),
        };
        let message = NeighbourMessage::Solicitation { target, source_mac: Some(link.mac()) };
        send_message(message, source, destination, to, link);
    }

    /// Neighbour discovery (RFC 4861 7.2.3 to 7.2.5), checked by the parser.
    fn discovery(&self, message: NeighbourMessage, ip: &IpHeader, from: MacAddress, link: &mut Link<'_>) {
        let IpAddr::V6(source) = ip.source else { return };
        match message {
            NeighbourMessage::Solicitation { target, source_mac } if self.is_own(target.into()) => {
                let answer = |is_solicited| NeighbourMessage::Advertisement {
                    target,
                    is_router: true,
                    is_solicited,
                    overrides: true,
                    target_mac: Some(link.mac()),
                };
                if source.is_unspecified() {
                    // Somebody is about to take the address, which is ours.
                    let to = MacAddress::of_group(ALL_NODES.into()).unwrap_or(MacAddress::BROADCAST);
                    return send_message(answer(false), target, ALL_NODES, to, link);
                }
                let answer = answer(true);
                let heard = Heard { mac: source_mac, is_answer: false, overrides: true, creates: true };
                if !self.is_own(source.into()) {
                    link.tables.neighbours.hear(source.into(), heard, link.now);
                }
                send_message(answer, target, source, source_mac.unwrap_or(from), link);
            }
            NeighbourMessage::Advertisement { target, is_solicited, overrides, target_mac, .. }
                if !self.is_own(target.into()) =>
            {
                let heard = Heard { mac: target_mac, is_answer: is_solicited, overrides, creates: false };
                link.tables.neighbours.hear(target.into(), heard, link.now);
            }
            _ => {}
        }
    }

    /// A packet to an address of the port.
    fn serve(&mut self, ip: &IpHeader, packet: &mut Buffer, link: &mut Link<'_>) -> Disposition {
        let is_error = |kind: u8| match ip.protocol {
            protocol::ICMP => !matches!(kind, 0 | 8..=10 | 13..=18),
            _ => kind < 128,
        };
        let (next_layer, first) = (ip.next_layer_protocol(), ip.payload(packet.bytes()).first().copied());
        let why = match (next_layer, first) {
            _ if ip.fragment.is_some() => return Disposition::Deliver,
            (None | Some(protocol::ESP | protocol::AH), _) => return Disposition::Deliver,
            (Some(protocol::ICMP | protocol::ICMPV6), kind) => {
                if is_echo_request(ip, packet.bytes()) {
                    return answer_echo(ip, packet);
                }
                let is_error = kind.is_some_and(is_error);
                return if is_error {
                    Disposition::Deliver
                } else {
                    Disposition::Drop(DropReason::NotServed)
                };
            }
            (Some(protocol::UDP), _) => match ip.ports(packet.bytes()) {
                Some((_, port)) if self.udp_ports.contains(&port) => return Disposition::Deliver,
                _ => Unreachable::Port,
            },
            (Some(number), _) if self.protocols.contains(&number) => return Disposition::Deliver,
            _ => Unreachable::Protocol,
        };
        match self.message(ip, packet, why, ip.destination, link) {
            Some(message) => Disposition::Refuse(DropReason::NotServed, message),
            None => Disposition::Drop(DropReason::NotServed),
        }
    }

    /// Whether its first bytes show that a packet is the gateway's, wherever it goes. Most are, and this is
    /// all that is looked at.
    #[inline]
    fn is_plainly_the_gateways(&self, packet: &[u8]) -> bool {
        let (number, ports) = match packet {
            [0x45, _, _, _, _, _, _, _, _, number, ..] => (*number, ip::IPV4_HEADER_BYTES),
            [first, _, _, _, _, _, number, ..] if first >> 4 == 6 => (*number, ip::IPV6_HEADER_BYTES),
            _ => return false,
        };
        match (number, packet.get(ports..ports + 4)) {
            (protocol::ESP | protocol::AH, _) => true,
            (protocol::UDP, Some(&[_, _, high, low])) => {
                self.udp_ports.contains(&u16::from_be_bytes([high, low]))
            }
            (number, _) if number != protocol::UDP => self.protocols.contains(&number),
            _ => false,
        }
    }

    /// A message about `packet`, if one may be sent now.
    fn message(
        &mut self,
        ip: &IpHeader,
        packet: &Buffer,
        why: Unreachable,
        from: IpAddr,
        link: &mut Link<'_>,
    ) -> Option<Buffer> {
        let mut out = [0; MAX_TOO_BIG_BYTES];
        let length = unreachable(ip, packet.bytes(), why, from, &mut out).ok()??;
        if !self.messages.admits(link.now) {
            return None;
        }
        let mut message = link.pool.create_from(packet, length)?;
        message.receive_area()[..length].copy_from_slice(&out[..length]);
        message.set_len(length);
        Some(message)
    }
}

fn answer_echo(ip: &IpHeader, packet: &mut Buffer) -> Disposition {
    match echo_reply(ip, packet.bytes_mut()) {
        Some(start) => {
            packet.narrow(u32::try_from(start).unwrap_or(u32::MAX), u32::MAX);
            Disposition::Answer
        }
        None => Disposition::Drop(DropReason::NotServed),
    }
}

fn send_message(
    message: NeighbourMessage,
    source: Ipv6Addr,
    destination: Ipv6Addr,
    to: MacAddress,
    link: &mut Link<'_>,
) {
    let mut out = [0; MAX_NEIGHBOUR_MESSAGE_BYTES];
    let length = message.write(source, destination, &mut out);
    link.send(to, ether_type::IPV6, &out[..length]);
}

/// Whether it may be a neighbour solicitation or advertisement: what the whole parser then decides.
fn may_be_discovery(packet: &[u8]) -> bool {
    matches!(packet, [first, _, _, _, _, _, protocol::ICMPV6, 255, ..] if first >> 4 == 6)
        && matches!(packet.get(ip::IPV6_HEADER_BYTES), Some(135 | 136))
}

impl Resolver for OwnResolver {
    fn solicit(&mut self, address: IpAddr, mac: Option<MacAddress>, link: &mut Link<'_>) {
        match address {
            IpAddr::V4(target) => self.ask_by_arp(target, mac, link),
            IpAddr::V6(target) => self.ask_by_solicitation(target, mac, link),
        }
    }

    fn arp(&mut self, header: &EthernetHeader, payload: &[u8], link: &mut Link<'_>) -> DropReason {
        let Ok(packet) = ArpPacket::parse(payload) else { return DropReason::FrameMalformed };
        let (sender, is_ours) = (packet.sender, self.is_own(packet.target.into()));
        let is_host = !sender.is_unspecified() && !sender.is_multicast() && !sender.is_broadcast();
        if is_host && !self.is_own(sender.into()) {
            let is_request = packet.operation == ArpOperation::Request;
            let heard = Heard {
                mac: Some(packet.sender_mac),
                is_answer: !is_request && is_ours && !header.destination.is_multicast(),
                overrides: true,
                creates: is_request && is_ours,
            };
            link.tables.neighbours.hear(sender.into(), heard, link.now);
        }
        // Also a probe, which says no sender (RFC 5227 2.1.1).
        if is_ours && packet.operation == ArpOperation::Request && !self.is_own(sender.into()) {
            let reply = ArpPacket {
                operation: ArpOperation::Reply,
                sender_mac: link.mac(),
                sender: packet.target,
                target_mac: packet.sender_mac,
                target: sender,
            };
            link.send(packet.sender_mac, ether_type::ARP, &reply.to_bytes());
        }
        DropReason::LinkControl
    }

    fn packet(&mut self, header: &EthernetHeader, packet: &mut Buffer, link: &mut Link<'_>) -> Disposition {
        let is_group = header.destination.is_multicast();
        if !is_group && self.is_plainly_the_gateways(packet.bytes()) {
            return Disposition::Deliver;
        }
        let is_own = ip::addresses(packet.bytes()).is_some_and(|(_, to)| self.is_own(to));
        let may_be_discovery = may_be_discovery(packet.bytes());
        if !is_own && !may_be_discovery {
            return if is_group { Disposition::Drop(DropReason::OtherMac) } else { Disposition::Deliver };
        }
        // What is looked at as a whole has to be in one buffer.
        match link.pool.linearise(std::mem::take(packet)) {
            Ok(whole) => *packet = whole,
            Err(chain) => {
                *packet = chain;
                return Disposition::Drop(DropReason::PoolEmpty);
            }
        }
        // The gateway says what is wrong with it.
        let Ok(ip) = IpHeader::parse(packet.bytes()) else { return Disposition::Deliver };
        if may_be_discovery {
            return match NeighbourMessage::parse(&ip, packet.bytes()) {
                Ok(Some(message)) => {
                    self.discovery(message, &ip, header.source, link);
                    Disposition::Drop(DropReason::LinkControl)
                }
                Ok(None) => Disposition::Deliver,
                Err(_) => Disposition::Drop(DropReason::FrameMalformed),
            };
        }
        // RFC 1122 3.3.6: a packet for one host in a frame for many is discarded.
        if is_group { Disposition::Drop(DropReason::OtherMac) } else { self.serve(&ip, packet, link) }
    }

    fn unreachable(&mut self, packet: &Buffer, link: &mut Link<'_>) -> Option<Buffer> {
        let ip = IpHeader::parse(packet.bytes()).ok()?;
        if self.is_own(ip.source) {
            return None;
        }
        let from = self.own_towards(ip.source)?;
        self.message(&ip, packet, Unreachable::Host, from, link)
    }
}
