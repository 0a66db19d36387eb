//! ESP packets made by hand: valid under their key, whatever their content.

use super::{Side, TunnelSpec};
use testudo_crypto::{Direction, Engine, Job, JobStatus, KeyId, PortableEngine, Suite};
use testudo_packet::Buffer;
use testudo_wire::ip::{OuterHeader, Version};
use testudo_wire::protocol;
use testudo_wire::udp::{UDP_HEADER_BYTES, UdpHeader};

/// Seals as one side of a tunnel does, but with any content and number.
pub struct Sealer {
    engine: PortableEngine,
    key: KeyId,
    spec: TunnelSpec,
    from: Side,
}

/// The plaintext of a handmade ESP packet.
#[derive(Debug, Clone)]
pub struct Handmade {
    /// Payload, TFC padding included.
    pub payload: Vec<u8>,
    pub padding: Vec<u8>,
    pub pad_length: u8,
    pub next_header: u8,
    /// Outer TOS or Traffic Class.
    pub outer_class: u8,
}

impl Handmade {
    /// A correct sender's plaintext for a packet: padding 1, 2, 3, … up to a multiple of 4 (RFC 4303 2.4).
    pub fn carrying(packet: &[u8]) -> Self {
        let next_header = if packet.first().is_some_and(|b| b >> 4 == 6) { 41 } else { 4 };
        Self::with_payload(packet.to_vec(), next_header)
    }

    pub fn with_payload(payload: Vec<u8>, next_header: u8) -> Self {
        let pad_length = ((payload.len() + 2).next_multiple_of(4) - payload.len() - 2) as u8;
        Self { padding: (1..=pad_length).collect(), payload, pad_length, next_header, outer_class: 0 }
    }

    /// The same with the padding that this suite needs.
    pub fn padded_for(self, suite: Suite) -> Self {
        let bytes = self.payload.len() + 2;
        let pad_length = (bytes.next_multiple_of(suite.alignment_bytes()) - bytes) as u8;
        Self { padding: (1..=pad_length).collect(), pad_length, ..self }
    }

    /// Traffic flow confidentiality: bytes after the packet, which the receiver removes by the packet's own
    /// length (RFC 4303 2.7).
    pub fn with_tfc(packet: &[u8], tfc_bytes: usize) -> Self {
        let next_header = Self::carrying(packet).next_header;
        let mut payload = packet.to_vec();
        payload.resize(packet.len() + tfc_bytes, 0x5A);
        Self::with_payload(payload, next_header)
    }

    pub fn text(&self) -> Vec<u8> {
        [&self.payload[..], &self.padding[..], &[self.pad_length, self.next_header]].concat()
    }
}

impl Sealer {
    pub fn new(spec: &TunnelSpec, from: Side) -> Self {
        let mut engine = PortableEngine::new();
        let key = engine.install(&spec.key_from(from), Direction::Seal).expect("a key");
        Self { engine, key, spec: spec.clone(), from }
    }

    /// The whole datagram with this plaintext and sequence number, addressed to the other side.
    pub fn seal(&mut self, sequence: u64, made: &Handmade) -> Vec<u8> {
        self.seal_text(sequence, &made.text(), made.outer_class)
    }

    /// A text that the suite's cipher does not accept is sent as it is, with an ICV of zeros.
    pub fn seal_text(&mut self, sequence: u64, text: &[u8], outer_class: u8) -> Vec<u8> {
        let (spi, suite) = (self.spec.spi_from(self.from), self.spec.suite);
        let block = u128::from(sequence).to_be_bytes();
        let header = [spi, sequence as u32].map(u32::to_be_bytes);
        let front = [header.as_flattened(), &block[16 - suite.iv_bytes()..]].concat();
        let esp = [&front, text, &vec![0; suite.icv_bytes()]].concat();
        if !text.len().is_multiple_of(suite.block_bytes()) {
            return encapsulate(&self.spec, self.from, &esp, outer_class);
        }
        let mut jobs = [Job {
            sequence,
            key: self.key,
            text_start: front.len() as u32,
            text_bytes: text.len() as u32,
            esn: self.spec.esn,
            ..Job::new(Buffer::copied(&esp, 0, 0), Direction::Seal, 0)
        }];
        self.engine.submit(&mut jobs);
        assert_eq!(jobs[0].status, JobStatus::Done);
        encapsulate(&self.spec, self.from, jobs[0].buffer.bytes(), outer_class)
    }
}

/// Puts outer headers around bytes that should be ESP.
pub fn encapsulate(spec: &TunnelSpec, from: Side, esp: &[u8], outer_class: u8) -> Vec<u8> {
    let to = if from == Side::A { Side::B } else { Side::A };
    let payload = if spec.udp {
        let mut udp = vec![0; UDP_HEADER_BYTES];
        let total_bytes = UDP_HEADER_BYTES + esp.len();
        UdpHeader { source_port: 4500, destination_port: 4500, total_bytes }.write(&mut udp).expect("UDP");
        [&udp[..], esp].concat()
    } else {
        esp.to_vec()
    };
    let header = OuterHeader {
        source: spec.address(from),
        destination: spec.address(to),
        protocol: if spec.udp { protocol::UDP } else { protocol::ESP },
        traffic_class: outer_class,
        hop_limit: 64,
        dont_fragment: true,
    };
    let mut datagram = vec![0; header.bytes()];
    header.write(&mut datagram, header.bytes() + payload.len(), 0).expect("a header");
    datagram.extend(payload);
    datagram
}

/// Where ESP starts in a datagram of a tunnel.
pub fn esp_offset(spec: &TunnelSpec) -> usize {
    Version::header_bytes(spec.outer) + if spec.udp { UDP_HEADER_BYTES } else { 0 }
}
