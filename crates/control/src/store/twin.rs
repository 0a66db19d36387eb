//! A simulated disk: it loses power, fills up and decays, reproducibly from a seed.

use super::StoreError;
use super::ledger::Medium;
use fastrand::Rng;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Bytes that a disk writes atomically.
const SECTOR: usize = 512;

/// The disk; clones share their content.
#[derive(Debug, Clone, Default)]
pub(super) struct Disk(Arc<Mutex<Content>>);

#[derive(Debug, Default)]
struct Content {
    /// Content as a reader sees it.
    seen: Vec<u8>,
    /// Content that is certain to survive.
    durable: Vec<u8>,
    /// Sectors written since the last sync.
    unsynced: Vec<usize>,
    /// Writes that will still succeed; `None` is no limit.
    writes_left: Option<u64>,
    writes: u64,
}

impl Disk {
    /// Bytes as a reader sees them.
    pub(super) fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().seen.clone()
    }

    /// Overwrites the content from outside.
    pub(super) fn restore(&self, bytes: Vec<u8>) {
        self.0.lock().unwrap().seen = bytes;
    }

    /// A disk with this content.
    pub(super) fn holding(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Mutex::new(Content { seen: bytes.clone(), durable: bytes, ..Content::default() })))
    }

    /// Makes it full after this many more writes; `None` removes the limit.
    pub(super) fn full_after(&self, writes: Option<u64>) {
        self.0.lock().unwrap().writes_left = writes;
    }

    /// Writes and resizes so far.
    pub(super) fn writes(&self) -> u64 {
        self.0.lock().unwrap().writes
    }

    /// The disk as it may be after a power failure now: each unsynced sector was written or was not.
    pub(super) fn after_power_cut(&self, random: &mut Rng) -> Self {
        let content = self.0.lock().unwrap();
        let mut bytes = content.durable.clone();
        // The length is separate metadata: it, too, is the old or the new one.
        if random.u64(..2) == 0 {
            bytes.resize(content.seen.len(), 0);
        }
        for sector in content.unsynced.iter().filter(|_| random.u64(..2) == 0) {
            let range = sector * SECTOR..(sector + 1) * SECTOR;
            if let (Some(to), Some(from)) = (bytes.get_mut(range.clone()), content.seen.get(range)) {
                to.copy_from_slice(from);
            }
        }
        Self::holding(bytes)
    }
}

impl Content {
    fn spend(&mut self) -> io::Result<()> {
        self.writes += 1;
        match &mut self.writes_left {
            Some(0) => Err(io::ErrorKind::StorageFull.into()),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl Medium for Disk {
    type Backend = Disk;

    fn open(&self) -> Result<Disk, StoreError> {
        Ok(self.clone())
    }

    fn path(&self) -> &Path {
        Path::new("twin")
    }
}

impl redb::StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap().seen.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let content = self.0.lock().unwrap();
        let start = usize::try_from(offset).unwrap();
        let bytes = content.seen.get(start..start + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut content = self.0.lock().unwrap();
        content.spend()?;
        content.seen.resize(usize::try_from(len).unwrap(), 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut content = self.0.lock().unwrap();
        content.durable = content.seen.clone();
        content.unsynced.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut content = self.0.lock().unwrap();
        content.spend()?;
        let start = usize::try_from(offset).unwrap();
        content.seen[start..start + data.len()].copy_from_slice(data);
        content.unsynced.extend(start / SECTOR..(start + data.len()).div_ceil(SECTOR));
        Ok(())
    }
}
