//! The opened library.

use crate::raw::{
    AllocMgr, FreeMgr, GetErrno, GetStrerror, GetVersion, ImbMgr, InitMgrAuto, LAYOUTS, Layout, layout_of,
    version_parts,
};
use std::ffi::{CStr, OsStr};

/// The dynamic library, of a version with a known layout, and its exported symbols.
pub(crate) struct Library {
    pub(crate) alloc_mgr: AllocMgr,
    pub(crate) free_mgr: FreeMgr,
    pub(crate) init_mgr_auto: InitMgrAuto,
    get_errno: GetErrno,
    get_strerror: GetStrerror,
    version: u32,
    pub(crate) layout: &'static Layout,
    /// Keeps the code mapped that the pointers above point to; dropped after them.
    _handle: libloading::Library,
}

impl Library {
    /// Opens the library `name`, a file name for the dynamic linker's search or a path.
    ///
    /// # Errors
    /// A text for people: it is not there, lacks a symbol, or is of an unknown version.
    pub(crate) fn open(name: &OsStr) -> Result<Self, String> {
        let shown = name.display();
        // SAFETY: opening a library runs its constructors, so it must be one that the administrator put
        // there: the name is a constant that the system's linker resolves, or a path that the caller of
        // `open_at` trusts. libIPSec_MB brings only the compiler's own. Safe Rust has no way to use a C
        // library that may be absent.
        let handle = unsafe { libloading::Library::new(name) }.map_err(|e| cannot_open(&e, &shown))?;
        // SAFETY: `imb_get_version` has had this signature in every release since 0.50 (intel-ipsec-mb.h).
        let get_version = unsafe { symbol::<GetVersion>(&handle, c"imb_get_version") }?;
        // SAFETY: the function takes nothing, reads a constant, and its code is mapped while `handle` lives.
        let version = unsafe { get_version() };
        let layout = layout_of(version).ok_or_else(|| unknown_version(&shown.to_string(), version))?;
        // SAFETY: the version is one whose header declares exactly these signatures.
        unsafe {
            Ok(Self {
                alloc_mgr: symbol(&handle, c"alloc_mb_mgr")?,
                free_mgr: symbol(&handle, c"free_mb_mgr")?,
                init_mgr_auto: symbol(&handle, c"init_mb_mgr_auto")?,
                get_errno: symbol(&handle, c"imb_get_errno")?,
                get_strerror: symbol(&handle, c"imb_get_strerror")?,
                version,
                layout,
                _handle: handle,
            })
        }
    }

    /// Fails if the manager or the library reports an error.
    ///
    /// # Errors
    /// The library's text.
    ///
    /// # Safety
    /// `manager` came from this library's `alloc_mgr` and is not freed.
    pub(crate) unsafe fn check(&self, manager: *mut ImbMgr) -> Result<(), String> {
        // SAFETY: the manager is alive (our precondition); the function only reads a number from it.
        let code = unsafe { (self.get_errno)(manager) };
        if code == 0 {
            return Ok(());
        }
        // SAFETY: takes any number.
        let text = unsafe { (self.get_strerror)(code) };
        if text.is_null() {
            return Err(format!("error {code}"));
        }
        // SAFETY: not null, and the library's texts are static, zero-terminated strings.
        let text = unsafe { CStr::from_ptr(text) };
        Err(format!("error {code}: {}", text.to_string_lossy()))
    }

    /// The version, `1.3.0`.
    pub(crate) fn version(&self) -> String {
        let (major, minor, patch) = version_parts(self.version);
        format!("{major}.{minor}.{patch}")
    }
}

/// The linker's own message, which says whether the file is missing or unfit; it begins with the file's name.
fn cannot_open(error: &libloading::Error, name: &impl std::fmt::Display) -> String {
    match std::error::Error::source(error) {
        Some(why) => why.to_string(),
        None => format!("{name}: {error}"),
    }
}

fn unknown_version(name: &str, version: u32) -> String {
    let (major, minor, patch) = version_parts(version);
    let known: Vec<_> = LAYOUTS.iter().map(|l| format!("{}.{}", l.version.0, l.version.1)).collect();
    format!("{name} is version {major}.{minor}.{patch}; supported are {}", known.join(", "))
}

/// Looks a function up.
///
/// # Safety
/// `F` is the type of a function pointer, with the signature that the library gives this symbol.
unsafe fn symbol<F: Copy>(handle: &libloading::Library, name: &CStr) -> Result<F, String> {
    // SAFETY: the signature is the caller's promise; libloading checks the presence and the size of a
    // pointer.
    match unsafe { handle.get::<F>(name.to_bytes_with_nul()) } {
        Ok(found) => Ok(*found),
        Err(_) => Err(format!("the library has no symbol {}", name.to_string_lossy())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_version_is_refused_by_name_with_those_that_are_supported() {
        let text = unknown_version("libIPSec_MB.so.1", 0x1_0400);
        assert_eq!(text, "libIPSec_MB.so.1 is version 1.4.0; supported are 1.3, 1.5, 2.0");
    }

    #[test]
    fn a_missing_library_is_named() {
        let text = Library::open(OsStr::new("libIPSec_MB.so.999")).err().unwrap();
        assert!(text.starts_with("libIPSec_MB.so.999: "), "{text}");
    }

    #[test]
    fn an_unrelated_library_is_refused() {
        let text = Library::open(OsStr::new("libc.so.6")).err().unwrap();
        assert_eq!(text, "the library has no symbol imb_get_version");
    }
}
