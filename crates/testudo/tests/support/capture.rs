//! A capture of packets to be protected.

use super::Outcome;
use std::time::Duration;
use testudo_port_pcap::{FrameWriter, Link};

/// How many packets it has.
const PACKETS: u8 = 200;

/// Packets of all lengths up to 1,400 bytes.
pub fn capture() -> Outcome<Vec<u8>> {
    let mut file = Vec::new();
    let mut writer = FrameWriter::new(&mut file, Link::Raw, 65_535)?;
    for mark in 0..PACKETS {
        let length = 28 + 7 * u16::from(mark);
        let [high, low] = length.to_be_bytes();
        let mut packet = vec![0x45, 0, high, low, 0, mark, 0, 0, 64, 17, 0, 0, 10, 1, 0, 1, 10, 2, 0, 1];
        let sum = testudo_wire::checksum::of(&packet).to_bytes();
        packet[10..12].copy_from_slice(&sum);
        packet.resize(usize::from(length), mark);
        let time = Duration::from_secs(1_700_000_000) + Duration::from_micros(7) * mark.into();
        writer.write(time, &packet, usize::from(length))?;
    }
    Ok(file)
}
