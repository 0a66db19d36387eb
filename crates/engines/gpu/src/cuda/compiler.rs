//! NVRTC: CUDA's compiler as a library. It needs neither a driver nor a device.

use super::library::{self, functions};
use crate::SOURCE;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr;

/// What the driver loads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Image {
    /// For one architecture.
    Cubin(Vec<u8>),
    /// Text for a virtual architecture, which the driver compiles for any that is newer; its last byte is
    /// zero.
    Ptx(Vec<u8>),
}

impl Image {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Cubin(bytes) | Self::Ptx(bytes) => bytes,
        }
    }
}

type Program = *mut c_void;

functions! {
    /// Functions of NVRTC 11.2 (nvrtc.h), which is the first that knows which architectures it supports.
    Functions {
        version = c"nvrtcVersion"(*mut c_int, *mut c_int),
        count_architectures = c"nvrtcGetNumSupportedArchs"(*mut c_int),
        architectures = c"nvrtcGetSupportedArchs"(*mut c_int),
        create = c"nvrtcCreateProgram"(
            *mut Program, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char
        ),
        compile = c"nvrtcCompileProgram"(Program, c_int, *const *const c_char),
        log_bytes = c"nvrtcGetProgramLogSize"(Program, *mut usize),
        log = c"nvrtcGetProgramLog"(Program, *mut c_char),
        cubin_bytes = c"nvrtcGetCUBINSize"(Program, *mut usize),
        cubin = c"nvrtcGetCUBIN"(Program, *mut c_char),
        ptx_bytes = c"nvrtcGetPTXSize"(Program, *mut usize),
        ptx = c"nvrtcGetPTX"(Program, *mut c_char),
        destroy = c"nvrtcDestroyProgram"(*mut Program),
    }
}

/// The longest output that is taken: some hundred times what our kernels become.
const MOST_BYTES: usize = 64 << 20;
/// Architectures that are asked for at most.
const MOST_ARCHITECTURES: c_int = 1024;
/// Architectures are two digits of the compute capability, or three: 90 is 9.0.
pub(crate) type Architecture = u32;

/// The compiler.
pub(crate) struct Compiler {
    functions: Functions,
    architectures: Vec<Architecture>,
    version: (c_int, c_int),
}

/// A program of the compiler's, destroyed at the end.
struct Compilation<'a> {
    functions: &'a Functions,
    program: Program,
}

impl Drop for Compilation<'_> {
    fn drop(&mut self) {
        // SAFETY: a program that was created, once; the call sets the pointer to zero.
        let _status = unsafe { (self.functions.destroy)(&raw mut self.program) };
    }
}

/// Names by which the dynamic linker finds NVRTC, the newest first.
pub(crate) fn names() -> Vec<PathBuf> {
    ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"].map(PathBuf::from).into()
}

fn check(what: &str, status: i32) -> Result<(), String> {
    if status == 0 { Ok(()) } else { Err(format!("NVRTC: {what} failed with status {status}")) }
}

impl Compiler {
    /// Opens the first library of `paths` that is there and fit: of a major version up to `newest`, the
    /// driver's, which loads nothing of a newer one.
    ///
    /// # Errors
    /// What the dynamic linker says of each.
    pub(crate) fn open(paths: &[PathBuf], newest: c_int) -> Result<Self, String> {
        let mut errors = Vec::new();
        for path in paths {
            match Self::open_one(path) {
                Ok(compiler) if compiler.version.0 > newest => {
                    let description = compiler.description();
                    errors.push(format!("{description} is too new for a driver of CUDA {newest}"));
                }
                Ok(compiler) => return Ok(compiler),
                Err(error) => errors.push(error),
            }
        }
        Err(format!("NVRTC, the compiler of CUDA, is missing ({})", errors.join("; ")))
    }

    fn open_one(path: &Path) -> Result<Self, String> {
        let library = library::open(path)?;
        // SAFETY: nvrtc.h declares exactly these signatures, since 11.2.
        let functions = unsafe { Functions::look_up(library) }?;
        let (mut major, mut minor, mut count) = (0, 0, 0);
        // SAFETY: each writes integers to where it is told.
        unsafe {
            check("a question for its version", (functions.version)(&raw mut major, &raw mut minor))?;
            check("a question for architectures", (functions.count_architectures)(&raw mut count))?;
        }
        let count = usize::try_from(count.clamp(0, MOST_ARCHITECTURES)).unwrap_or(0);
        let mut found: Vec<c_int> = vec![0; count.max(1)];
        // SAFETY: there is room for as many as it has just said that there are.
        check("a question for architectures", unsafe { (functions.architectures)(found.as_mut_ptr()) })?;
        let mut architectures: Vec<_> =
            found.into_iter().take(count).filter_map(|one| Architecture::try_from(one).ok()).collect();
        architectures.sort_unstable();
        Ok(Self { functions, architectures, version: (major, minor) })
    }

    /// For people: `NVRTC 12.9`.
    pub(crate) fn description(&self) -> String {
        format!("NVRTC {}.{}", self.version.0, self.version.1)
    }

    /// Compiles the kernels for a device: to its own code where the compiler knows the architecture, and to
    /// PTX of the newest one that it knows and that is no newer than the device's. Takes seconds.
    ///
    /// # Errors
    /// What the compiler says.
    pub(crate) fn compile(&self, architecture: Architecture) -> Result<Image, String> {
        if self.architectures.contains(&architecture) {
            return self.cubin(architecture);
        }
        self.portable(architecture)
    }

    /// Compiles to PTX of the newest virtual architecture up to `architecture`.
    ///
    /// # Errors
    /// There is none such, or what the compiler says.
    pub(crate) fn portable(&self, architecture: Architecture) -> Result<Image, String> {
        let known = self.architectures.iter().rev().find(|known| **known <= architecture);
        let known = known.ok_or_else(|| {
            format!("{} knows no architecture as old as {architecture}", self.description())
        })?;
        let compiled = self.run(&format!("--gpu-architecture=compute_{known}"))?;
        let Functions { ptx_bytes, ptx, .. } = self.functions;
        let mut text = compiled.output("PTX", ptx_bytes, ptx)?;
        if text.last() != Some(&0) {
            text.push(0);
        }
        Ok(Image::Ptx(text))
    }

    fn cubin(&self, architecture: Architecture) -> Result<Image, String> {
        let compiled = self.run(&format!("--gpu-architecture=sm_{architecture}"))?;
        let Functions { cubin_bytes, cubin, .. } = self.functions;
        compiled.output("CUBIN", cubin_bytes, cubin).map(Image::Cubin)
    }

    fn run(&self, option: &str) -> Result<Compilation<'_>, String> {
        let text = |text: &[u8]| CString::new(text).map_err(|_| "a text has a zero in it".to_owned());
        let source = text(SOURCE.concat().as_bytes())?;
        let options = [text(option.as_bytes())?, text(b"--std=c++17")?];
        let options = options.each_ref().map(|option| option.as_ptr());
        let (functions, mut program) = (&self.functions, ptr::null_mut());
        // SAFETY: texts that end with zero and live until the call returns, and no headers.
        let created = unsafe {
            let name = c"testudo.cu".as_ptr();
            (functions.create)(&raw mut program, source.as_ptr(), name, 0, ptr::null(), ptr::null())
        };
        check("making a program", created)?;
        let compilation = Compilation { functions, program };
        let count = c_int::try_from(options.len()).unwrap_or(0);
        // SAFETY: the program was created, and there are as many texts as is said.
        let status = unsafe { (functions.compile)(program, count, options.as_ptr()) };
        check("compiling", status).map_err(|error| format!("{error}: {}", compilation.log()))?;
        Ok(compilation)
    }
}

impl Compilation<'_> {
    /// What the compiler gives, by a function that says how long it is and one that writes it.
    fn output(
        &self,
        what: &str,
        bytes: unsafe extern "C" fn(Program, *mut usize) -> i32,
        write: unsafe extern "C" fn(Program, *mut c_char) -> i32,
    ) -> Result<Vec<u8>, String> {
        let mut len = 0;
        // SAFETY: the program was created, and an integer is written.
        check(what, unsafe { bytes(self.program, &raw mut len) })?;
        if len == 0 || len > MOST_BYTES {
            return Err(format!("NVRTC: {what} of {len} bytes"));
        }
        let mut output = vec![0_u8; len];
        // SAFETY: there is room for as much as it has just said that it writes.
        check(what, unsafe { write(self.program, output.as_mut_ptr().cast()) })?;
        Ok(output)
    }

    fn log(&self) -> String {
        let Functions { log_bytes, log, .. } = *self.functions;
        let said = self.output("its log", log_bytes, log).unwrap_or_default();
        let said = CStr::from_bytes_until_nul(&said).map(CStr::to_string_lossy).unwrap_or_default();
        crate::device::in_one_line(&said)
    }
}
