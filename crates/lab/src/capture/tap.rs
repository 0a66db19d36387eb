//! An eavesdropper on a link that is a queue in memory: it is handed every packet.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::WHOLE;
use super::judge::{Eavesdropper, Seen};
use crate::error::{LabError, io};
use testudo_port_pcap::{FrameWriter, Link};

/// Maximum number of packets per file; all packets are judged.
const RECORDED: u64 = 10_000;
const ETHERNET_HEADER: usize = 14;

/// Judges every packet as it passes, and records the first ones.
#[derive(Debug)]
pub(crate) struct Tap {
    eavesdropper: Eavesdropper,
    inner_headers: Vec<Vec<u8>>,
    seen: Seen,
    /// Bytes of each packet that are judged and recorded.
    snap: u32,
    output: Option<Output>,
    frame: Vec<u8>,
}

#[derive(Debug)]
struct Output {
    file: FrameWriter<BufWriter<File>>,
    path: PathBuf,
    packets: u64,
}

impl Output {
    fn failed(&self) -> impl FnOnce(std::io::Error) -> LabError {
        io(format!("record to {}", self.path.display()))
    }

    fn flush(&mut self) -> Result<(), LabError> {
        self.file.flush().map_err(self.failed())
    }
}

impl Tap {
    pub(crate) fn new(eavesdropper: Eavesdropper) -> Self {
        let inner_headers = eavesdropper.inner_headers();
        Self {
            eavesdropper,
            inner_headers,
            seen: Seen::default(),
            snap: WHOLE,
            output: None,
            frame: Vec::new(),
        }
    }

    pub(crate) fn eavesdropper(&self) -> &Eavesdropper {
        &self.eavesdropper
    }

    /// From now on, records into `path` (pcap) instead of the previous file, `snap` bytes of each frame.
    pub(crate) fn record(&mut self, path: &Path, snap: u32) -> Result<(), LabError> {
        if let Some(mut before) = self.output.take() {
            before.flush()?;
        }
        let open = || FrameWriter::new(BufWriter::new(File::create(path)?), Link::Ethernet, snap);
        let file = open().map_err(io(format!("write {}", path.display())))?;
        self.snap = snap;
        self.output = Some(Output { file, path: path.to_owned(), packets: 0 });
        Ok(())
    }

    /// Takes a passing packet, from its IP header on.
    pub(crate) fn packet(&mut self, packet: &[u8]) -> Result<(), LabError> {
        let kind: [u8; 2] =
            if packet.first().is_some_and(|byte| byte >> 4 == 6) { [0x86, 0xdd] } else { [8, 0] };
        self.frame.clear();
        self.frame.extend_from_slice(&[0; ETHERNET_HEADER - 2]);
        self.frame.extend_from_slice(&kind);
        self.frame.extend_from_slice(packet);
        let length = self.frame.len();
        self.frame.truncate(usize::try_from(self.snap).unwrap_or(usize::MAX));
        self.eavesdropper.look(&self.inner_headers, &self.frame, length, &mut self.seen);
        if let Some(output) = self.output.as_mut().filter(|output| output.packets < RECORDED) {
            let time = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
            let written = output.file.write(time, &self.frame, length);
            written.map_err(output.failed())?;
            output.packets += 1;
        }
        Ok(())
    }

    /// The most recent whole packets from the first gateway.
    pub(crate) fn take_kept(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.seen.to_send_again)
    }

    /// The packets that have passed so far; the file is complete afterwards.
    pub(crate) fn finish(&mut self) -> Result<&Seen, LabError> {
        if let Some(output) = &mut self.output {
            output.flush()?;
        }
        Ok(&self.seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protection::Protocols;

    #[test]
    fn a_recording_ends_while_judging_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("link.pcap");
        let [gateways, inner] = [["192.0.2.1", "192.0.2.2"], ["10.1.0.2", "10.2.0.2"]]
            .map(|pair| pair.map(|address| address.parse().unwrap()));
        let mut tap =
            Tap::new(Eavesdropper { gateways, udp_port: None, inner, protocols: Protocols::Esp, ike: false });
        tap.record(&path, WHOLE).unwrap();
        let mut cleartext = vec![0; 60];
        cleartext[..4].copy_from_slice(&[0x45, 0, 0, 60]);
        for _ in 0..RECORDED + 5 {
            tap.packet(&cleartext).unwrap();
        }
        assert_eq!(tap.finish().unwrap().cleartext, RECORDED + 5);
        let mut recorded = 0;
        let mut reader = testudo_port_pcap::FrameReader::open(&path).unwrap();
        while let Some(frame) = reader.next_frame().unwrap() {
            assert_eq!((frame.bytes.len(), frame.wire_bytes), (74, 74));
            recorded += 1;
        }
        assert_eq!(recorded, RECORDED);
    }
}
