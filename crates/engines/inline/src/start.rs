//! The start of a device: its test, and its two halves.

use crate::check::Software;
use crate::engine::InlineEngine;
use crate::nic::{Checks, Nic};
use crate::port::InlinePort;
use crate::sessions::NOBODYS;
use std::net::IpAddr;
use testudo_crypto::{
    Direction, Engine, EngineError, KeyMaterial, SaFacts, SecurityDevice, SecurityMode, SecurityProtocol,
    SessionParameters, Suite,
};
use testudo_packet::{Buffer, Mark, Port};
use testudo_wire::ah::{AhHeader, ah_bytes};
use testudo_wire::ip::{IPV4_HEADER_BYTES, Version};
use testudo_wire::protocol;
use zeroize::Zeroizing;

/// The number of the sessions of the test.
const NUMBER: u16 = NOBODYS;
const SPI: u32 = 0x7e57_0001;
/// Lengths of payloads that are tried, in bytes.
const PAYLOADS: [usize; 3] = [1, 46, 1400];

impl Nic {
    /// Starts a device after it has given right answers, in all that it does, where it can be asked
    /// ([`SecurityDevice::loop_back`]). `software` stands beside it: an engine that ends every job inside
    /// `submit`, and has passed its own test.
    ///
    /// # Errors
    /// [`EngineError::SelfTest`] naming the first wrong answer.
    pub fn start(
        mut device: Box<dyn SecurityDevice>,
        software: Box<dyn Engine>,
        checks: Checks,
    ) -> Result<Self, EngineError> {
        let mut software = Software::new(software);
        let limits = device.limits();
        for &(protocol, suite) in &limits.suites {
            let mode = limits.modes.first().copied().unwrap_or(SecurityMode::Tunnel);
            let result = check_suite(&mut *device, &mut software, &facts(protocol, suite, mode));
            result.map_err(|what| EngineError::SelfTest {
                engine: "nic",
                reason: format!("{}: {suite} ({protocol:?}): {what}", device.name()),
            })?;
        }
        Ok(Self::new(device, software, checks))
    }

    /// The engine half.
    #[must_use]
    pub fn engine(&self) -> InlineEngine {
        InlineEngine::new(self.clone())
    }

    /// The port half, around the device's own port.
    #[must_use]
    pub fn port(&self, port: Box<dyn Port>) -> InlinePort {
        InlinePort::new(port, self.clone())
    }
}

fn facts(protocol: SecurityProtocol, suite: Suite, mode: SecurityMode) -> SaFacts {
    SaFacts {
        spi: SPI,
        suite,
        protocol,
        mode,
        esn: false,
        in_udp: false,
        local: IpAddr::from([192, 0, 2, 2]),
        remote: Some(IpAddr::from([192, 0, 2, 1])),
        is_covered: false,
        changed_if: 0,
    }
}

/// One suite in both directions, and a forged ICV.
fn check_suite(device: &mut dyn SecurityDevice, software: &mut Software, sa: &SaFacts) -> Result<(), String> {
    let bytes: Vec<u8> = (1..=u8::MAX).cycle().take(sa.suite.keying_material_bytes()).collect();
    let key = KeyMaterial::new(sa.suite, Zeroizing::new(bytes)).map_err(|error| error.to_string())?;
    let software_key = software.install(&key).map_err(|error| error.to_string())?;
    for direction in [Direction::Seal, Direction::Open] {
        let session = SessionParameters { direction, sa, key: &key };
        device.create(NUMBER, session).map_err(|error| format!("no session: {error}"))?;
    }
    let answers = PAYLOADS.iter().try_for_each(|&payload| {
        let clear = datagram(sa, payload);
        let mut sealed = Buffer::copied(&clear, 0, 64);
        if !software.seal(&mut sealed, software_key, sa) {
            return Err("the engine beside it does not do it".to_owned());
        }
        check_answers(device, &clear, sealed.bytes())
    });
    for direction in [Direction::Seal, Direction::Open] {
        device.destroy(direction, NUMBER).map_err(|error| format!("a session does not end: {error}"))?;
    }
    software.remove(software_key);
    answers
}

fn check_answers(device: &mut dyn SecurityDevice, clear: &[u8], sealed: &[u8]) -> Result<(), String> {
    let mut packet = clear.to_vec();
    if device.loop_back(Direction::Seal, NUMBER, &mut packet).is_none() {
        return Ok(());
    }
    if packet != sealed {
        return Err(format!("a packet of {} bytes was sealed wrongly", clear.len()));
    }
    let opened = device.loop_back(Direction::Open, NUMBER, &mut packet);
    let text = ..clear.len() - ICV_BYTES;
    // The ICV of AH is within the packet, and stays.
    let is_clear = packet == sealed || packet[text] == clear[text];
    if opened != Some(Mark::opened_under(NUMBER)) || !is_clear {
        return Err(format!("a packet of {} bytes was opened wrongly", clear.len()));
    }
    let mut forged = sealed.to_vec();
    if let Some(last) = forged.last_mut() {
        *last ^= 1;
    }
    let refused = device.loop_back(Direction::Open, NUMBER, &mut forged);
    if refused == Some(Mark::refused_under(NUMBER)) {
        Ok(())
    } else {
        Err("a forgery was not refused".to_owned())
    }
}

/// Bytes of the ICV of AES-GCM and AES-GMAC.
const ICV_BYTES: usize = 16;

/// A datagram as it is given to the device: headers, IV and trailer, zeros for the ICV.
fn datagram(sa: &SaFacts, payload_bytes: usize) -> Vec<u8> {
    let payload = (0..=u8::MAX).cycle().take(payload_bytes);
    let (number, iv) = (1_u32, [0xA5; 8]);
    let (iv, icv) = (&iv[..sa.suite.iv_bytes().min(8)], vec![0; sa.suite.icv_bytes()]);
    let (protocol, body) = match sa.protocol {
        SecurityProtocol::Esp => {
            let padding = (4 - (payload_bytes + 2) % 4) % 4;
            let header = [SPI.to_be_bytes(), number.to_be_bytes()].concat();
            let mut body: Vec<u8> = header.into_iter().chain(iv.iter().copied()).chain(payload).collect();
            body.extend((1..).take(padding));
            body.extend([u8::try_from(padding).unwrap_or(0), protocol::IPV4]);
            body.extend(icv);
            (protocol::ESP, body)
        }
        SecurityProtocol::Ah => {
            let header_bytes = ah_bytes(iv.len() + icv.len(), Version::V4);
            let ah = AhHeader { next_header: protocol::IPV4, header_bytes, spi: SPI, sequence: number };
            let mut body = vec![0; header_bytes];
            // It has room for exactly this.
            let _ = ah.write(&mut body);
            let iv_at = header_bytes - iv.len() - icv.len();
            body[iv_at..iv_at + iv.len()].copy_from_slice(iv);
            body.extend(payload);
            (protocol::AH, body)
        }
    };
    let total = u16::try_from(IPV4_HEADER_BYTES + body.len()).unwrap_or(u16::MAX);
    let [high, low] = total.to_be_bytes();
    let mut packet = vec![0x45, 0, high, low, 0, 1, 0x40, 0, 64, protocol, 0, 0];
    packet.extend([192, 0, 2, 1, 192, 0, 2, 2]);
    packet.extend(body);
    packet
}
