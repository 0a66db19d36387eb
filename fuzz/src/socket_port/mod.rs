//! The socket port over sockets in memory, whose kernel returns arbitrary data.

mod receive;
mod transmit;
mod twin;

pub use receive::socket_receive;
pub use transmit::socket_transmit;

use std::net::{IpAddr, SocketAddr};
use testudo_port_socket::{Encapsulation, Endpoint};
use testudo_wire::{checksum, protocol};

/// The port of the UDP endpoints.
const PORT: u16 = 4500;
/// ESP in UDP, as all UDP endpoints here use it.
const UDP: Encapsulation = Encapsulation::Udp { port: PORT };

fn endpoint(local: &str, encapsulation: Encapsulation) -> Endpoint {
    Endpoint { local: local.parse().expect("an address"), encapsulation }
}

/// Fields of an IP header.
#[derive(Debug, Clone, Copy)]
struct Fields {
    /// The number of the first header after it; of UDP, which is then written, too.
    number: u8,
    class: u8,
    hop_limit: u8,
    /// Of IPv6, 20 bits.
    flow_label: u32,
}

/// A datagram, header by header (RFC 791, RFC 8200, RFC 768).
fn packet(source: SocketAddr, destination: IpAddr, fields: Fields, payload: &[u8]) -> Option<Vec<u8>> {
    let Fields { number, class, hop_limit, flow_label } = fields;
    let mut content = Vec::new();
    if number == protocol::UDP {
        let length = u16::try_from(8 + payload.len()).ok()?;
        content.extend([source.port(), PORT, length, 0].map(u16::to_be_bytes).concat());
    }
    content.extend_from_slice(payload);
    let mut header = match (source.ip(), destination) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let [high, low] = u16::try_from(20 + content.len()).ok()?.to_be_bytes();
            let mut header = vec![0x45, class, high, low, 0, 0, 0x40, 0, hop_limit, number, 0, 0];
            header.extend([from.octets(), to.octets()].concat());
            let sum = checksum::of(&header).to_bytes();
            header[10..12].copy_from_slice(&sum);
            header
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let [high, low] = u16::try_from(content.len()).ok()?.to_be_bytes();
            let word = 6 << 28 | u32::from(class) << 20 | flow_label;
            let mut header = word.to_be_bytes().to_vec();
            header.extend([high, low, number, hop_limit]);
            header.extend([from.octets(), to.octets()].concat());
            header
        }
        _ => return None,
    };
    header.extend(content);
    Some(header)
}
