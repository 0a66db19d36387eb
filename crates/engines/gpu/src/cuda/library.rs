//! Functions of a library of C that is opened at run time.

use std::ffi::CStr;
use std::path::Path;

/// Opens a library: a file name for the dynamic linker's search, or a path.
///
/// # Errors
/// The linker's words, in one line.
pub(super) fn open(path: &Path) -> Result<libloading::Library, String> {
    // SAFETY: a library runs constructors when it is opened, so it must be one that the administrator put
    // there: `path` is a name that the system's linker resolves, or one from the configuration.
    unsafe { libloading::Library::new(path) }.map_err(|error| {
        let why = std::error::Error::source(&error).map(ToString::to_string);
        why.unwrap_or_else(|| format!("{}: {error}", path.display()))
    })
}

/// Looks a function up.
///
/// # Errors
/// Its name, if the library has none such.
///
/// # Safety
/// `F` is the type of a function pointer, with the signature that the library gives this symbol.
pub(super) unsafe fn symbol<F: Copy>(library: &libloading::Library, name: &CStr) -> Result<F, String> {
    // SAFETY: the signature is the caller's promise, presence is checked.
    match unsafe { library.get::<F>(name.to_bytes_with_nul()) } {
        Ok(found) => Ok(*found),
        Err(_) => Err(format!("the library is too old: it has no {}", name.to_string_lossy())),
    }
}

/// A structure of functions that return a status, with the names by which the library exports them.
macro_rules! functions {
    ($(#[$meta:meta])* $name:ident { $($field:ident = $symbol:literal ($($argument:ty),*),)* }) => {
        $(#[$meta])*
        pub(super) struct $name {
            $($field: unsafe extern "C" fn($($argument),*) -> i32,)*
            /// What the pointers above point into. It is never closed: drivers leave threads behind.
            _library: std::mem::ManuallyDrop<libloading::Library>,
        }

        impl $name {
            /// Looks all of them up.
            ///
            /// # Safety
            /// The library gives these symbols the signatures of the structure.
            unsafe fn look_up(library: libloading::Library) -> Result<Self, String> {
                Ok(Self {
                    // SAFETY: the caller's promise.
                    $($field: unsafe { $crate::cuda::library::symbol(&library, $symbol) }?,)*
                    _library: std::mem::ManuallyDrop::new(library),
                })
            }
        }
    };
}
pub(super) use functions;
