//! The opened plugin: its functions, as safe ones where their preconditions can be kept here.

use crate::error::OpenError;
use crate::raw::{self, Config, Info, MadePool, Statistics, Table};
use crate::security::raw as security;
use std::ffi::{CStr, CString, c_void};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

/// The file's name.
pub const FILE: &str = "libtestudo-dpdk.so";

/// The plugin. It stays mapped until the process ends, because threads of DPDK's run in it.
#[derive(Clone, Copy)]
pub struct Plugin {
    table: &'static Table,
    /// `None` for one that a test plays.
    library: Option<&'static libloading::Library>,
    security: Option<&'static security::Table>,
}

impl std::fmt::Debug for Plugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Plugin(DPDK {})", self.dpdk_version())
    }
}

// SAFETY: the table is never written, and its functions may be called on any thread, or are called by one
// thread at a time for one device, as DPDK wants it: see `DpdkDevice`.
unsafe impl Send for Plugin {}
// SAFETY: as above.
unsafe impl Sync for Plugin {}

/// Why a function of DPDK did not do what it was to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl std::fmt::Display for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

fn outcome(code: i32) -> Result<u32, Errno> {
    u32::try_from(code).map_err(|_| Errno(code.checked_neg().unwrap_or(0)))
}

impl Plugin {
    /// Opens the plugin at `path`, or where it is installed: beside this program, in `lib/testudo` of the
    /// prefix that this program is in, of `/usr/local`, or of `/usr`.
    ///
    /// # Errors
    /// [`OpenError`] says what to install or build.
    pub fn open(path: Option<&Path>) -> Result<Self, OpenError> {
        let places = path.map_or_else(places, |path| vec![path.to_owned()]);
        match places.iter().find(|place| place.exists()) {
            Some(found) => Self::load(found),
            None => {
                let shown: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
                Err(OpenError::PluginAbsent { places: shown.join(", ") })
            }
        }
    }

    fn load(path: &Path) -> Result<Self, OpenError> {
        let unusable = |error: libloading::Error| {
            let reason =
                std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            OpenError::PluginUnusable { path: path.to_owned(), reason }
        };
        let whole = std::fs::canonicalize(path).map_err(|error| OpenError::PluginUnusable {
            path: path.to_owned(),
            reason: error.to_string(),
        })?;
        if let Some(what) = exposed(&whole) {
            return Err(OpenError::PluginExposed { path: path.to_owned(), what });
        }
        // SAFETY: opening a library runs its constructors, so it must be one that the administrator put
        // there: `path` is where `make install` puts it, or comes from the configuration, and not everybody
        // may write there. Safe Rust has no way to use a C library that may be absent.
        let library = unsafe { libloading::Library::new(&whole) }.map_err(unusable)?;
        // SAFETY: the plugin declares this symbol so, in all versions of its interface.
        let symbol = unsafe { library.get::<raw::Symbol>(raw::SYMBOL) }.map_err(unusable)?;
        // SAFETY: it takes nothing and returns a constant address.
        let table = unsafe { symbol() };
        // SAFETY: in all versions, the table is there as long as the library, and begins with these two.
        let (found, size) = unsafe { ((*table).version, (*table).size) };
        if found != raw::VERSION || usize::try_from(size) != Ok(size_of::<Table>()) {
            return Err(OpenError::PluginVersion { path: path.to_owned(), found, wanted: raw::VERSION });
        }
        // Never closed: threads of DPDK's run in it.
        let library: &'static libloading::Library = Box::leak(Box::new(library));
        // SAFETY: it has this version's structure, and stays until the process ends.
        let plugin = Self { table: unsafe { &*table }, library: Some(library), security: None };
        Ok(Self { security: plugin.find_security(), ..plugin })
    }

    fn find_security(&self) -> Option<&'static security::Table> {
        // SAFETY: the plugin declares this symbol so, in all versions of its interface.
        let symbol = unsafe { self.symbol::<security::Symbol>(security::SYMBOL) }?;
        // SAFETY: it takes nothing and returns a constant address.
        let table = unsafe { symbol() };
        // SAFETY: in all versions, the table is there as long as the library, and begins with these two.
        let (found, size) = unsafe { ((*table).version, (*table).size) };
        let is_ours = found == security::VERSION && usize::try_from(size) == Ok(size_of::<security::Table>());
        // SAFETY: it has this version's structure, and stays until the process ends.
        is_ours.then(|| unsafe { &*table })
    }

    /// The functions for cryptography; `None` if the plugin has other ones.
    pub(crate) fn security(&self) -> Option<&'static security::Table> {
        self.security
    }

    /// Another interface of the plugin: `None` if it has no such symbol.
    ///
    /// # Safety
    /// `F` is the type of a function pointer, with the signature that the plugin gives this symbol, in all of
    /// its versions. `name` ends with a zero.
    pub unsafe fn symbol<F: Copy>(&self, name: &[u8]) -> Option<F> {
        // SAFETY: as our caller says; the library stays until the process ends.
        unsafe { self.library?.get::<F>(name) }.ok().map(|found| *found)
    }

    /// A plugin whose functions are these.
    ///
    /// # Safety
    /// They do what `shim/dpdk/plugin.h` says.
    pub(crate) unsafe fn of(table: &'static Table) -> Self {
        Self { table, library: None, security: Some(&crate::twin_security::TABLE) }
    }

    /// What DPDK calls its version: `DPDK 22.11.11`.
    #[must_use]
    pub fn dpdk_version(&self) -> String {
        // SAFETY: a constant of DPDK's, with a zero at its end.
        let text = unsafe { CStr::from_ptr(self.table.dpdk_version) };
        text.to_string_lossy().trim_start_matches("DPDK ").to_owned()
    }

    /// What DPDK has said since the last call, on one line.
    #[must_use]
    pub fn said(&self) -> String {
        let mut text = vec![0_u8; 4096];
        // SAFETY: it writes at most as many bytes as there are.
        let bytes = unsafe { (self.table.said)(text.as_mut_ptr(), 4096) };
        text.truncate(usize::try_from(bytes).unwrap_or(0));
        let text = String::from_utf8_lossy(&text).into_owned();
        text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
    }

    /// The error in words: DPDK's own, and the number's.
    #[must_use]
    pub fn words(&self, errno: Errno) -> String {
        match self.said() {
            said if said.is_empty() => errno.to_string(),
            said => format!("{errno}: {said}"),
        }
    }

    pub(crate) fn eal_start(&self, arguments: &[CString]) -> Result<(), Errno> {
        // DPDK changes the order of what it is given, and keeps some of it.
        let copies: Vec<CString> = arguments.to_vec();
        let mut pointers: Vec<_> = copies.into_iter().map(CString::into_raw).collect();
        let count = i32::try_from(pointers.len()).unwrap_or(i32::MAX);
        pointers.push(std::ptr::null_mut());
        // SAFETY: as many texts as are counted, with zeros at their ends and a null pointer after the last.
        // All of them stay until the process ends, since DPDK may keep them; this is called once.
        let outcome = outcome(unsafe { (self.table.eal_start)(count, pointers.leak().as_mut_ptr()) });
        outcome.map(|_| ())
    }

    /// Whether addresses for devices are virtual ones.
    #[must_use]
    pub fn uses_virtual_addresses(&self) -> bool {
        // SAFETY: takes nothing; the EAL has started before there is anything to ask this for.
        unsafe { (self.table.uses_virtual_addresses)() != 0 }
    }

    pub(crate) fn thread_register(&self) -> Result<(), Errno> {
        // SAFETY: takes nothing, and may be called on any thread.
        outcome(unsafe { (self.table.thread_register)() }).map(|_| ())
    }

    pub(crate) fn thread_unregister(&self) {
        // SAFETY: as above.
        unsafe { (self.table.thread_unregister)() }
    }

    /// # Safety
    /// The memory stays until it is unregistered.
    pub(crate) unsafe fn memory_register(&self, start: *mut u8, bytes: u64, page: u64) -> Result<(), Errno> {
        // SAFETY: as our caller says; DPDK does not read or write it by itself.
        outcome(unsafe { (self.table.memory_register)(start, bytes, page) }).map(|_| ())
    }

    pub(crate) fn memory_unregister(&self, start: *mut u8, bytes: u64) {
        // What cannot be unregistered stays known, at an address that nobody uses.
        // SAFETY: only numbers are compared.
        let _unknown = unsafe { (self.table.memory_unregister)(start, bytes) };
    }

    pub(crate) fn physical_address(&self, start: *const u8) -> Option<u64> {
        // SAFETY: the kernel is asked about the address; nothing is read there.
        let address = unsafe { (self.table.physical_address)(start) };
        (address != u64::MAX).then_some(address)
    }

    /// # Safety
    /// The device may read and write the memory, until it is closed.
    pub(crate) unsafe fn memory_map(
        &self,
        port: u16,
        start: *mut u8,
        address: u64,
        bytes: u64,
    ) -> Result<(), Errno> {
        // SAFETY: as our caller says.
        outcome(unsafe { (self.table.memory_map)(port, start, address, bytes) }).map(|_| ())
    }

    pub(crate) fn pool_make(
        &self,
        name: &CStr,
        count: u32,
        room: u32,
        inside: u32,
    ) -> Result<MadePool, Errno> {
        let null = std::ptr::null_mut();
        let mut made =
            MadePool { handle: null, states: null.cast(), first: 0, stride: 0, count: 0, refused: 0 };
        // SAFETY: a text with a zero at its end, and a place for the result.
        outcome(unsafe { (self.table.pool_make)(name.as_ptr(), count, room, inside, &raw mut made) })?;
        Ok(made)
    }

    /// # Safety
    /// It was made by [`pool_make`](Self::pool_make), and nobody uses it any more, no device either.
    pub(crate) unsafe fn pool_end(&self, pool: *mut c_void) {
        // SAFETY: as our caller says.
        unsafe { (self.table.pool_end)(pool) }
    }

    /// Takes up to as many mbufs as there is room for.
    ///
    /// # Safety
    /// The pool exists.
    #[inline]
    pub(crate) unsafe fn pool_get(&self, pool: *mut c_void, mbufs: &mut [*mut c_void]) -> usize {
        let count = u32::try_from(mbufs.len()).unwrap_or(0);
        // SAFETY: room for as many as are asked for; the pool exists.
        let got = unsafe { (self.table.pool_get)(pool, mbufs.as_mut_ptr(), count) };
        usize::try_from(got).unwrap_or(0).min(mbufs.len())
    }

    /// # Safety
    /// The pool exists, and the mbufs are of it; nobody uses them.
    #[inline]
    pub(crate) unsafe fn pool_put(&self, pool: *mut c_void, mbufs: &[*mut c_void]) {
        let count = u32::try_from(mbufs.len()).unwrap_or(0);
        // SAFETY: as our caller says.
        unsafe { (self.table.pool_put)(pool, mbufs.as_ptr(), count) }
    }

    pub(crate) fn device_find(&self, arguments: &CStr) -> Result<u16, Errno> {
        let mut port = 0;
        // SAFETY: a text with a zero at its end, and a place for the result.
        outcome(unsafe { (self.table.device_find)(arguments.as_ptr(), &raw mut port) })?;
        Ok(port)
    }

    pub(crate) fn device_info(&self, port: u16) -> Result<Info, Errno> {
        let mut info = Info::EMPTY;
        // SAFETY: a place for the result; DPDK knows which ports exist.
        outcome(unsafe { (self.table.device_info)(port, &raw mut info) })?;
        Ok(info)
    }

    /// # Safety
    /// The pool of the configuration exists until the device is closed, and its mbufs point to room for
    /// packets.
    pub(crate) unsafe fn device_start(&self, port: u16, config: &mut Config) -> Result<(), Errno> {
        // SAFETY: as our caller says.
        outcome(unsafe { (self.table.device_start)(port, config) }).map(|_| ())
    }

    pub(crate) fn device_stop(&self, port: u16) -> Result<(), Errno> {
        // SAFETY: a number, which DPDK checks.
        outcome(unsafe { (self.table.device_stop)(port) }).map(|_| ())
    }

    pub(crate) fn device_reset(&self, port: u16) -> Result<(), Errno> {
        // SAFETY: as above.
        outcome(unsafe { (self.table.device_reset)(port) }).map(|_| ())
    }

    /// Stops the device and removes it. Mbufs that its driver does not give back then stay out.
    pub(crate) fn device_close(&self, port: u16) {
        // SAFETY: as above.
        let _refused = unsafe { (self.table.device_close)(port) };
    }

    pub(crate) fn device_statistics(&self, port: u16) -> Option<Statistics> {
        let mut statistics = Statistics::default();
        // SAFETY: a number, which DPDK checks, and a place for the result.
        outcome(unsafe { (self.table.device_statistics)(port, &raw mut statistics) }).ok()?;
        Some(statistics)
    }

    pub(crate) fn device_events(&self, port: u16) -> Option<&'static AtomicU32> {
        // SAFETY: a number, which the plugin checks.
        let word = NonNull::new(unsafe { (self.table.device_events)(port) })?;
        // SAFETY: a word of the plugin's, which is aligned, never goes away, and is accessed atomically.
        Some(unsafe { AtomicU32::from_ptr(word.as_ptr()) })
    }

    /// Receives up to as many mbufs as there is room for. The number that the device says is not checked.
    ///
    /// # Safety
    /// The device is started, has the queue, and no other thread receives from it now.
    #[inline]
    pub(crate) unsafe fn receive(&self, port: u16, queue: u16, mbufs: &mut [*mut c_void]) -> u16 {
        let count = u16::try_from(mbufs.len()).unwrap_or(0);
        // SAFETY: as our caller says.
        unsafe { (self.table.receive)(port, queue, mbufs.as_mut_ptr(), count) }
    }

    /// Sends mbufs from the front. The number that the device says is not checked.
    ///
    /// # Safety
    /// The device is started, has the queue, and no other thread sends by it now. The mbufs are of its pool,
    /// taken from there, and describe memory that stays as it is until they are given back.
    #[inline]
    pub(crate) unsafe fn send(&self, port: u16, queue: u16, mbufs: &mut [*mut c_void]) -> u16 {
        let count = u16::try_from(mbufs.len()).unwrap_or(0);
        // SAFETY: as our caller says.
        unsafe { (self.table.send)(port, queue, mbufs.as_mut_ptr(), count) }
    }

    /// Has the driver look at a packet that it is to cut, and write into its headers what it needs. Returns
    /// whether it would send it.
    ///
    /// # Safety
    /// As for [`send`](Self::send).
    pub(crate) unsafe fn prepare(&self, port: u16, queue: u16, mbuf: *mut c_void) -> bool {
        // SAFETY: as our caller says.
        unsafe { (self.table.prepare)(port, queue, &mut [mbuf] as *mut _, 1) == 1 }
    }

    /// # Safety
    /// As for [`send`](Self::send).
    pub(crate) unsafe fn reap(&self, port: u16, queue: u16) {
        // A driver that cannot do so does it when it sends.
        // SAFETY: as our caller says.
        let _unsupported = unsafe { (self.table.reap)(port, queue) };
    }
}

/// What everybody may change of a file or the folders that it is in; the path has no links. In a folder with
/// the sticky bit others cannot replace what is there, but may have put it there.
fn exposed(path: &Path) -> Option<PathBuf> {
    let (own, mut in_sticky) = (rustix::process::geteuid().as_raw(), false);
    let mut on_the_way: Vec<&Path> = path.ancestors().collect();
    on_the_way.reverse();
    on_the_way.into_iter().find_map(|at| {
        let Ok(found) = std::fs::symlink_metadata(at) else { return Some(at.to_owned()) };
        let is_others = in_sticky && ![0, own].contains(&found.uid());
        let is_writable = found.mode() & 0o002 != 0;
        in_sticky = is_writable && found.is_dir() && found.mode() & 0o1000 != 0;
        (is_others || is_writable && !in_sticky).then(|| at.to_owned())
    })
}

/// Where the plugin is looked for.
fn places() -> Vec<PathBuf> {
    let program = std::env::current_exe().ok();
    let folder = program.as_deref().and_then(Path::parent);
    let beside = folder.map(|folder| folder.join(FILE));
    let prefix = folder.and_then(Path::parent).map(|prefix| prefix.join("lib/testudo").join(FILE));
    let installed = ["/usr/local", "/usr"].map(|prefix| Path::new(prefix).join("lib/testudo").join(FILE));
    let mut places: Vec<PathBuf> = beside.into_iter().chain(prefix).chain(installed).collect();
    places.dedup();
    places
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_missing_plugin_is_one_clear_line() {
        let error = Plugin::open(Some(Path::new("/nonexistent/libtestudo-dpdk.so"))).unwrap_err().to_string();
        assert!(
            error.contains("/nonexistent/libtestudo-dpdk.so") && error.contains("libdpdk-dev"),
            "{error}"
        );
        assert!(!error.contains('\n'));
        assert!(places().len() >= 3);
    }

    #[test]
    fn a_plugin_that_everybody_may_change_is_not_loaded() {
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        // Below /tmp, in which nobody can replace what is another's.
        let folder = std::env::temp_dir().join(format!("testudo-no-plugin-{}", std::process::id()));
        let file = folder.join(FILE);
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(&file, "not a library").unwrap();
        let mut told = Vec::new();
        for (of_folder, of_file) in [(0o755, 0o644), (0o777, 0o644), (0o755, 0o646)] {
            mode(&folder, of_folder);
            mode(&file, of_file);
            told.push(Plugin::open(Some(&file)).unwrap_err());
        }
        // A link there leads to one elsewhere: what it leads to counts.
        let link = folder.join("link.so");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        told.push(Plugin::open(Some(&link)).unwrap_err());
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(matches!(told[0], OpenError::PluginUnusable { .. }), "{}", told[0]);
        assert!(matches!(&told[1], OpenError::PluginExposed { what, .. } if *what == folder), "{}", told[1]);
        for told in &told[2..] {
            assert!(matches!(told, OpenError::PluginExposed { what, .. } if *what == file), "{told}");
        }
    }
}
