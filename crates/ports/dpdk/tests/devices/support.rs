//! DPDK, started once, and devices of it.

use std::path::{Path, PathBuf};
use std::process::Command;
use testudo_lab::namespaces::{self, Entered, NamespaceError};
use testudo_link::FrameDevice;
use testudo_packet::{Batch, Buffer, Pool};
use testudo_port_dpdk::{DpdkConfig, DpdkDevice, Eal, EalConfig, FILE, Plugin};

/// DPDK in this process.
pub struct Dpdk {
    pub eal: Eal,
    pub inside: Entered,
}

pub const MTU: usize = 1500;
/// Buffers of a device's pool.
pub const FRAMES: usize = 4096;

impl Dpdk {
    pub fn start() -> Result<Self, String> {
        let left_out = |e: NamespaceError| format!("{e}\nTESTUDO_WITHOUT_DPDK=1 leaves these tests out");
        let inside = namespaces::enter_as_root().map_err(left_out)?;
        let folder = build()?;
        let started = Plugin::open(Some(&folder.join(FILE))).and_then(|plugin| {
            let config = EalConfig { arguments: vec!["--no-huge".into()], pci: Vec::new() };
            Eal::start(plugin, &config)
        });
        let eal = started.map_err(|e| format!("{e}\nTESTUDO_WITHOUT_DPDK=1 leaves these tests out"))?;
        Ok(Self { eal, inside })
    }
}

/// An empty folder for the files of a test.
pub fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dpdk").join(name);
    let _absent = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Builds the plugin, and returns its folder.
fn build() -> Result<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dpdk");
    let built = Command::new(root.join("scripts/shim.sh")).arg(&folder).arg("dpdk").output();
    let built = built.map_err(|e| format!("scripts/shim.sh: {e}"))?;
    let said = String::from_utf8_lossy(&built.stderr);
    if built.status.success() && said.is_empty() {
        return Ok(folder);
    }
    Err(format!(
        "the plugin cannot be built: {said}\ninstall libdpdk-dev and pkg-config (`scripts/setup.sh dpdk`), or set TESTUDO_WITHOUT_DPDK=1"
    ))
}

/// A device with its pool.
pub struct Port {
    pub device: DpdkDevice,
    pub pool: Pool,
}

impl Port {
    pub fn open(dpdk: &Dpdk, config: &DpdkConfig) -> Self {
        Self::with(dpdk, config, Pool::for_devices(FRAMES, MTU + 14))
    }

    pub fn with(dpdk: &Dpdk, config: &DpdkConfig, mut pool: Pool) -> Self {
        let device = DpdkDevice::open(&dpdk.eal, &mut pool, config).unwrap();
        Self { device, pool }
    }

    /// Sends these frames, all of them.
    pub fn send(&mut self, frames: &[Vec<u8>]) {
        let mut left = frames;
        while !left.is_empty() {
            let mut batch = Batch::new();
            while let Some((frame, rest)) = left.split_first() {
                if batch.is_full() {
                    break;
                }
                batch.push(buffer(&mut self.pool, frame));
                left = rest;
            }
            while !batch.is_empty() {
                self.device.tx(&mut self.pool, &mut batch).unwrap();
            }
        }
    }

    /// Receives until `count` frames are there.
    pub fn receive(&mut self, count: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while frames.len() < count {
            frames.extend(self.poll());
        }
        frames
    }

    /// Receives what is there.
    pub fn poll(&mut self) -> Vec<Vec<u8>> {
        let mut batch = Batch::new();
        self.device.rx(&mut self.pool, &mut batch).unwrap();
        let frames = batch.iter().map(|frame| frame.bytes().to_vec()).collect();
        self.pool.recycle_all(&mut batch);
        frames
    }

    /// Closes the device: all buffers are in the pool then, each once.
    pub fn close(mut self) {
        self.device.close(&mut self.pool);
        let size = self.pool.size();
        let all: Vec<Buffer> = std::iter::from_fn(|| self.pool.pop()).collect();
        let different: std::collections::HashSet<_> = all.iter().map(Buffer::identity).collect();
        assert_eq!((all.len(), different.len()), (size, size));
    }
}

pub fn buffer(pool: &mut Pool, frame: &[u8]) -> Buffer {
    let mut buffer = pool.pop_for(frame.len()).unwrap();
    buffer.receive_area()[..frame.len()].copy_from_slice(frame);
    buffer.set_len(frame.len());
    buffer
}

/// A frame of so many bytes, with this number in it.
pub fn frame(number: usize, bytes: usize) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([0x88, 0xB5]); // for experiments
    frame.extend(number.to_be_bytes());
    frame.extend((22..bytes).map(|at| (at * 7 + number) as u8));
    frame
}
