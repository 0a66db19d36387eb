//! DPDK with its virtual NIC, SAs, and the two ends of a cable.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use testudo_crypto::{
    Direction, Engine, Job, JobStatus, KeyId, KeyMaterial, OffloadState, PortableEngine, SaFacts,
    SecurityMode, SecurityProtocol, Suite,
};
use testudo_engine_inline::{Checks, InlineEngine, InlineFrames, Nic};
use testudo_lab::namespaces::{self, Entered};
use testudo_link::FrameDevice;
use testudo_packet::{BATCH_SIZE, Batch, Buffer, Pool};
use testudo_port_dpdk::{DpdkConfig, DpdkDevice, Eal, EalConfig, FILE, Plugin};
use testudo_wire::ip::IPV4_HEADER_BYTES;
use zeroize::Zeroizing;

pub const GCM: Suite = Suite::AES128GCM16;
pub const ICV: usize = 16;
const ETHERNET: [u8; 12] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];

pub fn gmac() -> Suite {
    "aes128gmac".parse().unwrap()
}

/// DPDK in this process.
pub struct Dpdk {
    pub eal: Eal,
    _inside: Entered,
    /// Devices so far: none has the name of an earlier one.
    devices: usize,
}

fn build(script: &str, arguments: &[&str], folder: &Path) -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let built = Command::new(root.join("scripts").join(script)).arg(folder).args(arguments).output();
    let built = built.map_err(|e| format!("scripts/{script}: {e}"))?;
    let said = String::from_utf8_lossy(&built.stderr);
    if built.status.success() && said.is_empty() {
        return Ok(());
    }
    Err(format!("scripts/{script}: {said}\nrun `make setup`, or set TESTUDO_WITHOUT_DPDK=1"))
}

impl Dpdk {
    pub fn start() -> Result<Self, String> {
        let inside = namespaces::enter_as_root().map_err(|e| e.to_string())?;
        // Not below /tmp: the EAL loads no driver from below a folder that everybody may write to.
        let folder: PathBuf = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dpdk-security");
        build("shim.sh", &["dpdk"], &folder)?;
        build("dpdk-twin.sh", &[], &folder)?;
        let driver = folder.join("libtestudo-dpdk-twin.so").canonicalize().map_err(|e| e.to_string())?;
        let arguments = vec!["--no-huge".into(), "-d".into(), driver.to_string_lossy().into_owned()];
        let plugin = Plugin::open(Some(&folder.join(FILE))).map_err(|e| e.to_string())?;
        let eal = Eal::start(plugin, &EalConfig { arguments, pci: Vec::new() }).map_err(|e| e.to_string())?;
        Ok(Self { eal, _inside: inside, devices: 0 })
    }

    /// A cable, with a NIC that does cryptography at one end and one that does not at the other.
    pub fn cable(&mut self, faults: &str, checks: Checks) -> Cable {
        let [near, far] = [self.devices, self.devices + 1].map(|nth| format!("net_testudo_twin{nth}"));
        self.devices += 2;
        let open = |name: &str, peer: &str, security, faults: &str| {
            let mut pool = Pool::for_devices(4096, 1514);
            let device = format!("{name},peer={peer}{faults}");
            let config = DpdkConfig { security, ..DpdkConfig::of(&device) };
            (DpdkDevice::open(&self.eal, &mut pool, &config).unwrap(), pool)
        };
        let far = open(&far, &near, false, "");
        assert!(far.0.security().unwrap_err().contains("not asked for"));
        let (device, pool) = open(&near, far.0.name(), true, faults);
        let security = Box::new(device.security().unwrap());
        let nic = Nic::start(security, Box::new(PortableEngine::new()), checks).unwrap();
        Cable { frames: InlineFrames::around(device, &nic), pool, engine: nic.engine(), nic, far }
    }
}

/// The NIC, and the other end.
pub struct Cable {
    pub frames: InlineFrames<DpdkDevice>,
    pub pool: Pool,
    pub engine: InlineEngine,
    pub nic: Nic,
    pub far: (DpdkDevice, Pool),
}

pub fn framed(pool: &mut Pool, datagram: &[u8]) -> Buffer {
    let kind: [u8; 2] = if datagram[0] >> 4 == 6 { [0x86, 0xDD] } else { [8, 0] };
    let frame = [&ETHERNET[..], &kind, datagram].concat();
    let mut buffer = pool.pop_for(frame.len()).unwrap();
    buffer.receive_area()[..frame.len()].copy_from_slice(&frame);
    buffer.set_len(frame.len());
    buffer
}

impl Cable {
    /// Sends a job's datagram with its mark, in order, however often the NIC has to be asked.
    pub fn send(&mut self, jobs: &[Job]) {
        for jobs in jobs.chunks(BATCH_SIZE) {
            let mut batch: Batch = jobs
                .iter()
                .map(|job| {
                    let mut frame = framed(&mut self.pool, job.buffer.bytes());
                    frame.set_mark(job.buffer.mark());
                    frame
                })
                .collect();
            while !batch.is_empty() {
                self.frames.tx(&mut self.pool, &mut batch).unwrap();
                // It is reset when it is asked for packets.
                assert!(self.receive().is_empty());
            }
        }
    }

    /// What the NIC has received, without its link layer.
    pub fn receive(&mut self) -> Vec<Buffer> {
        let mut batch = Batch::new();
        self.frames.rx(&mut self.pool, &mut batch).unwrap();
        let copy = |mut frame: Buffer| {
            let mut datagram = Buffer::copied(&frame.bytes()[14..], 64, 64);
            datagram.set_mark(frame.mark());
            frame.set_mark(testudo_packet::Mark::NONE);
            self.pool.recycle(frame);
            datagram
        };
        batch.drain(..).map(copy).collect()
    }

    /// What the far end has received.
    pub fn arrived(&mut self) -> Vec<Vec<u8>> {
        let (device, pool) = &mut self.far;
        let mut datagrams = Vec::new();
        loop {
            let mut batch = Batch::new();
            device.rx(pool, &mut batch).unwrap();
            if batch.is_empty() {
                return datagrams;
            }
            datagrams.extend(batch.iter().map(|frame| frame.bytes()[14..].to_vec()));
            pool.recycle_all(&mut batch);
        }
    }

    /// The far end sends datagrams.
    pub fn far_sends(&mut self, datagrams: &[Vec<u8>]) {
        let (device, pool) = &mut self.far;
        let mut batch: Batch = datagrams.iter().map(|datagram| framed(pool, datagram)).collect();
        while !batch.is_empty() {
            device.tx(pool, &mut batch).unwrap();
        }
    }

    pub fn admit(&mut self, direction: Direction, sa: &Sa) -> Result<KeyId, OffloadState> {
        self.engine.offload().unwrap().admit(direction, &sa.key, &sa.facts)
    }

    pub fn state(&mut self, key: KeyId) -> OffloadState {
        self.engine.offload().unwrap().state(key)
    }

    /// Closes both devices: each buffer is in its pool then.
    pub fn close(mut self) {
        let mut far = self.far;
        far.0.close(&mut far.1);
        self.frames.into_device().close(&mut self.pool);
        assert_eq!((self.pool.available(), far.1.available()), (self.pool.size(), far.1.size()));
    }
}

/// An SA with a key, and the portable engine for it.
pub struct Sa {
    pub facts: SaFacts,
    pub key: KeyMaterial,
    portable: PortableEngine,
    seal: KeyId,
    open: KeyId,
}

impl Sa {
    pub fn new(spi: u32, suite: Suite, mode: SecurityMode, is_v6: bool) -> Self {
        let bytes = (0..suite.keying_material_bytes()).map(|at| (at as u32 * 7 + spi) as u8).collect();
        let key = KeyMaterial::new(suite, Zeroizing::new(bytes)).unwrap();
        let address = |last: u8| {
            if is_v6 {
                IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, last.into()])
            } else {
                [192, 0, 2, last].into()
            }
        };
        let facts = SaFacts {
            spi,
            suite,
            protocol: SecurityProtocol::Esp,
            mode,
            esn: false,
            in_udp: false,
            local: address(1),
            remote: Some(address(2)),
            is_covered: false,
            changed_if: 0,
        };
        let mut portable = PortableEngine::new();
        let [seal, open] = [Direction::Seal, Direction::Open].map(|way| portable.install(&key, way).unwrap());
        Self { facts, key, portable, seal, open }
    }

    /// A datagram to be sealed, with this number: from us, or to us.
    pub fn job(&self, number: u32, bytes: usize, direction: Direction) -> Job {
        let is_out = direction == Direction::Seal;
        let (from, to) = (self.facts.local, self.facts.remote.unwrap());
        let (from, to) = if is_out { (from, to) } else { (to, from) };
        let padding = (4 - (bytes + 2) % 4) % 4;
        let text: Vec<u8> =
            (0..bytes).map(|at| (at as u32 + number) as u8).chain((1..).take(padding)).collect();
        let esp = [
            &self.facts.spi.to_be_bytes()[..],
            &number.to_be_bytes(),
            &u64::from(number).to_be_bytes(),
            &text,
            &[padding as u8, 4],
            &[0; ICV],
        ]
        .concat();
        let (mut datagram, header) = match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let total = (IPV4_HEADER_BYTES + esp.len()) as u16;
                let mut header = vec![0x45, 0, (total >> 8) as u8, total as u8, 0, 1, 0x40, 0, 64, 50, 0, 0];
                header.extend(from.octets().into_iter().chain(to.octets()));
                let sum =
                    header.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum::<u32>();
                let sum = !((sum & 0xFFFF) + (sum >> 16)) as u16;
                header[10..12].copy_from_slice(&sum.to_be_bytes());
                (header, 20)
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let mut header = vec![0x60, 0, 0, 0, (esp.len() >> 8) as u8, esp.len() as u8, 50, 64];
                header.extend(from.octets().into_iter().chain(to.octets()));
                (header, 40)
            }
            _ => unreachable!("one version"),
        };
        datagram.extend(esp);
        let text_bytes = (datagram.len() - header - 16 - ICV) as u32;
        let buffer = Buffer::copied(&datagram, 64, 64);
        Job {
            sequence: number.into(),
            auth_start: header as u32,
            text_start: header as u32 + 16,
            text_bytes,
            ..Job::new(buffer, direction, 0)
        }
    }

    /// The same, by the portable engine.
    pub fn sealed(&mut self, number: u32, bytes: usize, direction: Direction) -> Vec<u8> {
        let job = Job { key: self.seal, direction: Direction::Seal, ..self.job(number, bytes, direction) };
        let job = submit(&mut self.portable, job);
        assert_eq!(job.status, JobStatus::Done);
        job.buffer.bytes().to_vec()
    }

    /// Makes a job to open of a datagram that has been received.
    pub fn received(&self, datagram: Buffer, key: KeyId) -> Job {
        let header = if datagram.bytes()[0] >> 4 == 6 { 40 } else { 20_u32 };
        let text_bytes = datagram.len() as u32 - header - 16 - ICV as u32;
        let sequence = number_of(datagram.bytes()).into();
        Job {
            key,
            sequence,
            auth_start: header,
            text_start: header + 16,
            text_bytes,
            ..Job::new(datagram, Direction::Open, 0)
        }
    }

    /// Opens a datagram by the portable engine, after another engine would not.
    pub fn open(&mut self, job: Job) -> Job {
        submit(&mut self.portable, Job { key: self.open, ..job })
    }

    /// Seals by the portable engine, after another engine would not.
    pub fn seal(&mut self, job: Job) -> Job {
        submit(&mut self.portable, Job { key: self.seal, ..job })
    }
}

/// The sequence number of a datagram of ESP.
pub fn number_of(datagram: &[u8]) -> u32 {
    let at = if datagram[0] >> 4 == 6 { 44 } else { 24 };
    u32::from_be_bytes(datagram[at..at + 4].try_into().unwrap())
}

pub fn submit(engine: &mut dyn Engine, job: Job) -> Job {
    let mut jobs = [job];
    assert_eq!(engine.submit(&mut jobs), 1);
    let [job] = jobs;
    job
}
