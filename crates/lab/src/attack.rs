//! An attacker on the link: sends recorded packets again, unchanged or altered, with the source address of
//! the gateway that had sent them.

use std::net::{IpAddr, UdpSocket};

use rustix::net::{AddressFamily, SocketType, ipproto, socket};

use crate::error::{LabError, io};
use crate::namespaces::Namespace;
use crate::traffic::portless;

/// A packet that was recorded between the gateways, from its IP header on.
#[derive(Debug, Clone)]
pub struct Recorded {
    packet: Vec<u8>,
    udp_at: Option<usize>,
    esp_at: usize,
}

impl Recorded {
    /// `packet` has its ESP header at `esp_at`, after a UDP header if `in_udp`. `None` if it is too short to
    /// alter every part.
    pub fn new(packet: &[u8], esp_at: usize, in_udp: bool) -> Option<Self> {
        let shortest = esp_at + 8 + 8 + 16;
        let udp_at = in_udp.then(|| esp_at.saturating_sub(8));
        let recorded = Self { packet: packet.to_vec(), udp_at, esp_at };
        (packet.len() >= shortest).then(|| recorded.with_udp_checksum())
    }

    /// `packet` has its AH at `ah_at`: SPI and number follow the first word there (RFC 4302 2).
    pub fn of_ah(packet: &[u8], ah_at: usize) -> Option<Self> {
        Self::new(packet, ah_at + 4, false)
    }

    /// The bytes to send.
    pub fn packet(&self) -> &[u8] {
        &self.packet
    }

    /// The same packet with a sequence number that is `ahead` and one bit of the ciphertext flipped: number
    /// and format are valid, and only the integrity check can reject it.
    #[must_use]
    pub fn forged(&self, ahead: u32) -> Self {
        let mut forged = self.clone();
        if let Some(number) =
            forged.packet.get_mut(self.esp_at + 4..).and_then(|at| at.first_chunk_mut::<4>())
        {
            *number = u32::from_be_bytes(*number).wrapping_add(ahead).to_be_bytes();
        }
        let last = forged.packet.len().saturating_sub(17);
        if let Some(byte) = forged.packet.get_mut(last) {
            *byte ^= 1;
        }
        forged.with_udp_checksum()
    }

    /// A recorded checksum may be one that the interface was still to compute. ESP does not protect UDP's
    /// checksum, so anybody may fill it in.
    fn with_udp_checksum(mut self) -> Self {
        let Some(at) = self.udp_at else { return self };
        let checksum = match self.packet.first() {
            // Optional in IPv4 (RFC 768; RFC 3948 2.1 recommends zero).
            Some(byte) if byte >> 4 == 4 => 0,
            _ => {
                self.set_udp_checksum(at, 0);
                udp_checksum_v6(&self.packet, at)
            }
        };
        self.set_udp_checksum(at, checksum);
        self
    }

    fn set_udp_checksum(&mut self, udp_at: usize, checksum: u16) {
        if let Some(field) = self.packet.get_mut(udp_at + 6..udp_at + 8) {
            field.copy_from_slice(&checksum.to_be_bytes());
        }
    }
}

/// RFC 8200 8.1: over addresses, length, protocol and the datagram, with the checksum field zero.
fn udp_checksum_v6(packet: &[u8], udp_at: usize) -> u16 {
    const ADDRESSES: std::ops::Range<usize> = 8..40;
    let (addresses, datagram) = (packet.get(ADDRESSES).unwrap_or(&[]), packet.get(udp_at..).unwrap_or(&[]));
    let pairs = addresses.chunks(2).chain(datagram.chunks(2));
    let words = pairs.map(|pair| u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])));
    let mut sum = words.sum::<u64>() + 17 + u64::try_from(datagram.len()).unwrap_or(0);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    // Zero would mean "no checksum".
    match !u16::try_from(sum).unwrap_or(u16::MAX) {
        0 => u16::MAX,
        checksum => checksum,
    }
}

/// Sends `packets` from `namespace` to `destination`, with the source addresses in their headers.
///
/// # Errors
/// A raw socket cannot be opened, or a packet cannot be sent.
pub fn send(namespace: &Namespace, destination: IpAddr, packets: &[Recorded]) -> Result<(), LabError> {
    send_through(&raw_socket(namespace, destination)?, destination, packets)
}

/// The same by the interface `link`: a route to `destination` may lead into the tunnel.
///
/// # Errors
/// As [`send`], or there is no such interface.
pub fn send_by(
    namespace: &Namespace,
    link: &str,
    destination: IpAddr,
    packets: &[Recorded],
) -> Result<(), LabError> {
    let socket = raw_socket(namespace, destination)?;
    let bound = socket2::SockRef::from(&socket).bind_device(Some(link.as_bytes()));
    bound.map_err(io(format!("bind a socket to {link}")))?;
    send_through(&socket, destination, packets)
}

fn raw_socket(namespace: &Namespace, destination: IpAddr) -> Result<UdpSocket, LabError> {
    let family = if destination.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    // IPPROTO_RAW: we supply the headers, source address included (`man 7 raw`).
    let open = || socket(family, SocketType::RAW, Some(ipproto::RAW)).map(UdpSocket::from);
    namespace.within(open)?.map_err(|errno| io("open a raw socket")(errno.into()))
}

fn send_through(socket: &UdpSocket, destination: IpAddr, packets: &[Recorded]) -> Result<(), LabError> {
    for packet in packets {
        socket
            .send_to(packet.packet(), portless(destination))
            .map_err(io("send a packet with a forged source address"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(first: u8, ip: usize) -> Recorded {
        let mut packet = vec![3; ip + 8 + 60];
        packet[0] = first;
        packet[ip + 8 + 4..ip + 8 + 8].copy_from_slice(&[0, 0, 0, 9]);
        Recorded::new(&packet, ip + 8, true).unwrap()
    }

    #[test]
    fn a_forged_packet_differs_in_number_ciphertext_and_nothing_else() {
        let original = recorded(0x45, 20);
        let forged = original.forged(1000);
        assert_eq!(forged.packet.len(), original.packet.len());
        let changed: Vec<usize> =
            (0..forged.packet.len()).filter(|&at| forged.packet[at] != original.packet[at]).collect();
        assert_eq!(changed, [34, 35, original.packet.len() - 17]);
        assert_eq!(forged.packet[32..36], 1009_u32.to_be_bytes());
    }

    #[test]
    fn udp_checksums_are_left_out_over_ipv4_and_right_over_ipv6() {
        assert_eq!(recorded(0x45, 20).packet[26..28], [0, 0]);
        let packet = recorded(0x60, 40).packet;
        // The sum over a datagram and its checksum is all ones (RFC 1071 1).
        let mut sum: u64 = packet[8..].chunks(2).map(|p| u64::from(p[0]) << 8 | u64::from(p[1])).sum();
        sum += 17 + 68;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        assert_eq!(sum, 0xffff);
    }

    #[test]
    fn packets_too_short_to_forge_are_refused() {
        assert!(Recorded::new(&[0x45; 59], 28, true).is_none());
        assert!(Recorded::new(&[0x45; 60], 28, true).is_some());
    }
}
