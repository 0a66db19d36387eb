//! bpf(2), as the kernel has it: the first of the three layers. Each structure is the part of
//! `union bpf_attr` (linux/bpf.h) that one command reads; the kernel takes what is missing as zeros.

use std::io;

/// Commands (`enum bpf_cmd`).
pub const MAP_CREATE: u32 = 0;
pub const MAP_UPDATE: u32 = 2;
pub const MAP_DELETE: u32 = 3;
pub const PROGRAM_LOAD: u32 = 5;
pub const PROGRAM_TEST_RUN: u32 = 10;
pub const LINK_CREATE: u32 = 28;

/// Kinds of maps (`enum bpf_map_type`).
pub const ARRAY: u32 = 2;
pub const MAP_OF_PREFIXES: u32 = 11;
pub const MAP_OF_SOCKETS: u32 = 17;
/// `BPF_F_NO_PREALLOC`: maps of prefixes must say so.
pub const NO_PREALLOCATION: u32 = 1;

/// `BPF_PROG_TYPE_SOCKET_FILTER` and `BPF_PROG_TYPE_XDP`.
pub const PROGRAM_OF_SOCKETS: u32 = 1;
pub const PROGRAM_OF_XDP: u32 = 6;
/// `BPF_XDP`, of `enum bpf_attach_type`.
pub const ATTACH_XDP: u32 = 37;
/// `BPF_F_XDP_HAS_FRAGS`: the program may be shown the first of several buffers of a frame.
pub const HAS_FRAGMENTS: u32 = 1 << 5;

/// A program of XDP is to run after the driver: `XDP_FLAGS_SKB_MODE` (linux/if_link.h).
pub const GENERIC_MODE: u32 = 1 << 1;
/// A program of XDP is to run in the driver: `XDP_FLAGS_DRV_MODE`.
pub const NATIVE_MODE: u32 = 1 << 2;

#[repr(C)]
#[derive(Default)]
pub struct MapCreate {
    pub kind: u32,
    pub key_bytes: u32,
    pub value_bytes: u32,
    pub entries: u32,
    pub flags: u32,
    pub inner_map: u32,
    pub numa_node: u32,
    pub name: [u8; 16],
}

#[repr(C)]
#[derive(Default)]
pub struct MapElement {
    pub map: i32,
    pub padding: u32,
    pub key: u64,
    pub value: u64,
    pub flags: u64,
}

#[repr(C)]
#[derive(Default)]
pub struct ProgramLoad {
    pub kind: u32,
    pub instruction_count: u32,
    pub instructions: u64,
    pub license: u64,
    pub log_level: u32,
    pub log_bytes: u32,
    pub log: u64,
    pub kernel_version: u32,
    pub flags: u32,
    pub name: [u8; 16],
    pub interface: u32,
    pub attach_type: u32,
}

#[repr(C)]
#[derive(Default)]
pub struct TestRun {
    pub program: i32,
    pub verdict: u32,
    pub bytes_in: u32,
    pub bytes_out: u32,
    pub input: u64,
    pub output: u64,
    pub repeat: u32,
    pub duration_ns: u32,
    pub context_bytes_in: u32,
    pub context_bytes_out: u32,
    pub context_in: u64,
    pub context_out: u64,
}

#[repr(C)]
#[derive(Default)]
pub struct LinkCreate {
    pub program: i32,
    pub interface: u32,
    pub attach_type: u32,
    pub flags: u32,
}

/// One call of bpf(2): its result, a descriptor or 0.
///
/// # Safety
/// `attributes` is the structure that `command` reads, and each address in it is that of memory which has as
/// many bytes as the kernel will read or write there, alive and not otherwise used during the call.
pub unsafe fn bpf<A>(command: u32, attributes: &mut A) -> io::Result<i32> {
    let bytes = u32::try_from(size_of::<A>()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: no library that we use has this call. The kernel reads `bytes` bytes from `attributes`, which
    // has that many, and writes some of them back; the rest is the caller's promise.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, libc::c_long::from(command), &raw mut *attributes, bytes) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    i32::try_from(result).map_err(|_| io::ErrorKind::InvalidData.into())
}
