//! What the twin's engine does to a packet.

use testudo_crypto::{
    Direction, Engine, Job, JobStatus, KeyId, KeyMaterial, PortableEngine, SecurityProtocol, Suite,
};
use testudo_packet::Buffer;
use testudo_wire::ah::AhHeader;
use testudo_wire::ip::{IPV4_HEADER_BYTES, IPV6_HEADER_BYTES};
use testudo_wire::mutable::{mask, masked_bytes};
use testudo_wire::protocol;

/// Whether a twin does what it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// It seals and opens.
    Real,
    /// It takes packets for sealed and opened as they are.
    Nothing,
}

/// Bytes of the IV of AES-GCM and AES-GMAC, and of their ICV.
const IV_BYTES: usize = 8;
const ICV_BYTES: usize = 16;

/// A packet of ESP or AH that the engine finds: where fixed offsets say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) protocol: SecurityProtocol,
    pub(crate) at: usize,
    pub(crate) spi: u32,
    pub(crate) destination: u128,
}

impl Place {
    /// `None` for what the engine passes by.
    pub(crate) fn of(datagram: &[u8]) -> Option<Self> {
        let (at, number, destination) = match datagram.first()? >> 4 {
            4 => {
                let header = datagram.first_chunk::<IPV4_HEADER_BYTES>()?;
                let is_plain = header[0] == 0x45 && header[6] & 0x3F == 0 && header[7] == 0;
                let address = u32::from_be_bytes([header[16], header[17], header[18], header[19]]);
                (is_plain.then_some(IPV4_HEADER_BYTES)?, header[9], u128::from(address))
            }
            6 => {
                let header = datagram.first_chunk::<IPV6_HEADER_BYTES>()?;
                (IPV6_HEADER_BYTES, header[6], u128::from_be_bytes(*header.last_chunk()?))
            }
            _ => return None,
        };
        let (protocol, spi_at) = match number {
            protocol::ESP => (SecurityProtocol::Esp, at),
            protocol::AH => (SecurityProtocol::Ah, at + 4),
            _ => return None,
        };
        let spi = u32::from_be_bytes(*datagram.get(spi_at..spi_at + 4)?.first_chunk()?);
        Some(Self { protocol, at, spi, destination })
    }
}

/// The engine of a twin.
pub(crate) struct Cryptography {
    engine: PortableEngine,
    work: Work,
}

impl Cryptography {
    pub(crate) fn new(work: Work) -> Self {
        Self { engine: PortableEngine::new(), work }
    }

    pub(crate) fn does_nothing(&self) -> bool {
        self.work == Work::Nothing
    }

    pub(crate) fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Option<KeyId> {
        self.engine.install(key, direction).ok()
    }

    pub(crate) fn remove(&mut self, key: KeyId) {
        self.engine.remove(key);
    }

    /// Seals or opens a datagram in place: whether that went well, and the ICV was right.
    pub(crate) fn run(
        &mut self,
        datagram: &mut [u8],
        place: Place,
        key: KeyId,
        direction: Direction,
    ) -> bool {
        if self.work == Work::Nothing {
            return true;
        }
        let done = match place.protocol {
            SecurityProtocol::Esp => self.run_esp(datagram, place.at, key, direction),
            SecurityProtocol::Ah => self.run_ah(datagram, place.at, key, direction),
        };
        done.unwrap_or(false)
    }

    fn run_esp(&mut self, datagram: &mut [u8], at: usize, key: KeyId, direction: Direction) -> Option<bool> {
        let text_start = at + 8 + IV_BYTES;
        let text_bytes = datagram.len().checked_sub(text_start + ICV_BYTES).filter(|n| n % 4 == 0)?;
        let buffer = Buffer::copied(datagram, 0, 0);
        let (status, result) = self.submit(buffer, [at, text_start, text_bytes], key, direction);
        if status == JobStatus::Done {
            datagram.copy_from_slice(result.bytes().get(..datagram.len())?);
        }
        Some(status == JobStatus::Done)
    }

    /// The ICV of AH covers the datagram without what routers change; its field has the IV first.
    fn run_ah(&mut self, datagram: &mut [u8], at: usize, key: KeyId, direction: Direction) -> Option<bool> {
        let header = AhHeader::parse(datagram.get(at..)?).ok()?;
        let field = IV_BYTES + ICV_BYTES;
        let front = masked_bytes(datagram, field).ok()?;
        let (iv, icv) = (front - field..front - ICV_BYTES, front - ICV_BYTES..front);
        let mut masked = datagram.to_vec();
        let covered = mask(&mut masked, field).ok()?;
        masked[front - IV_BYTES..front].copy_from_slice(&datagram[iv]);
        masked.extend_from_slice(&datagram[icv.clone()]);
        let ranges = [covered.start, front, datagram.len() - front];
        debug_assert_eq!(header.header_bytes % 4, 0);
        let (status, result) = self.submit(Buffer::copied(&masked, 0, 0), ranges, key, direction);
        if status == JobStatus::Done && direction == Direction::Seal {
            let made = result.bytes().get(datagram.len()..)?;
            datagram[icv].copy_from_slice(made);
        }
        Some(status == JobStatus::Done)
    }

    fn submit(
        &mut self,
        buffer: Buffer,
        ranges: [usize; 3],
        key: KeyId,
        direction: Direction,
    ) -> (JobStatus, Buffer) {
        let [auth_start, text_start, text_bytes] = ranges.map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        let mut job = Job { key, auth_start, text_start, text_bytes, ..Job::new(buffer, direction, 0) };
        self.engine.submit(std::slice::from_mut(&mut job));
        (job.status, job.buffer)
    }
}

/// What the 82599 does.
pub(crate) fn suites() -> Vec<(SecurityProtocol, Suite)> {
    let gmac = "aes128gmac".parse::<Suite>().ok();
    let with = |protocol, suite: Option<Suite>| suite.map(|suite| (protocol, suite));
    let all = [
        with(SecurityProtocol::Esp, Some(Suite::AES128GCM16)),
        with(SecurityProtocol::Esp, gmac),
        with(SecurityProtocol::Ah, gmac),
    ];
    all.into_iter().flatten().collect()
}
