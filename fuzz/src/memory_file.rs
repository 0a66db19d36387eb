//! Files that exist only in memory: each caller gets a path, and nothing remains afterwards.

use rustix::fs::{MemfdFlags, Mode, fchmod, memfd_create};
use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// A file in memory, removed when it is dropped.
pub struct MemoryFile(File);

impl MemoryFile {
    /// A file with these bytes and permission bits.
    #[must_use]
    pub fn new(bytes: &[u8], mode: u32) -> Self {
        let file = File::from(memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("memory"));
        file.write_all_at(bytes, 0).expect("memory");
        fchmod(&file, Mode::from_raw_mode(mode)).expect("a mode");
        Self(file)
    }

    /// The path to open it by.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }

    /// Its current content.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        File::open(self.path()).and_then(|mut f| f.read_to_end(&mut bytes)).expect("a readable file");
        bytes
    }
}
