//! The plugin's second interface, as `shim/dpdk/crypto.h` declares it: both change together.

#![allow(missing_docs, reason = "the C header describes these")]

use std::ffi::{c_char, c_void};

/// The version of the interface that this is.
pub(crate) const VERSION: u32 = 1;

/// The symbol that the plugin exports.
pub(crate) const SYMBOL: &[u8] = b"testudo_dpdk_crypto\0";
pub(crate) type Symbol = unsafe extern "C" fn() -> *const Table;

/// Ciphers and AEADs (`CIPHER_…`, `AEAD_…`).
pub(crate) mod cipher {
    pub(crate) const NONE: u8 = 0;
    pub(crate) const AES_CBC: u8 = 1;
    pub(crate) const AES_CTR: u8 = 2;
    pub(crate) const TRIPLE_DES_CBC: u8 = 3;
    pub(crate) const DES_CBC: u8 = 4;
    pub(crate) const AES_GCM: u8 = 16;
    pub(crate) const AES_CCM: u8 = 17;
    pub(crate) const CHACHA20_POLY1305: u8 = 18;
}

/// Integrity algorithms (`AUTH_…`).
pub(crate) mod auth {
    pub(crate) const NONE: u8 = 0;
    pub(crate) const MD5_HMAC: u8 = 1;
    pub(crate) const SHA1_HMAC: u8 = 2;
    pub(crate) const SHA256_HMAC: u8 = 3;
    pub(crate) const SHA384_HMAC: u8 = 4;
    pub(crate) const SHA512_HMAC: u8 = 5;
    pub(crate) const AES_XCBC: u8 = 6;
    pub(crate) const AES_CMAC: u8 = 7;
    pub(crate) const AES_GMAC: u8 = 8;
}

/// How an operation ended (`ENDED_…`).
pub(crate) mod ended {
    pub(crate) const WELL: u32 = 0;
    pub(crate) const WRONG_ICV: u32 = 1;
    pub(crate) const NOT_YET: u32 = 3;
}

pub(crate) const SLOT_ICV_BYTES: usize = 64;
pub(crate) const SLOT_COPY_BYTES: usize = 9728;
/// Most operations that one call takes or gives back.
pub(crate) const MAX_BURST: usize = 64;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Work {
    pub cipher: u8,
    pub auth: u8,
    pub seals: u8,
    pub cipher_key_bytes: u8,
    pub auth_key_bytes: u8,
    pub iv_bytes: u8,
    pub icv_bytes: u8,
    pub aad_bytes: u8,
    pub cipher_key: *const u8,
    pub auth_key: *const u8,
}

#[repr(C)]
pub(crate) struct Open {
    pub device: *const c_char,
    pub queue_pairs: u16,
    pub slots_per_pair: u16,
    pub sessions: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Opened {
    pub handle: *mut c_void,
    pub icvs: *mut u8,
    pub copies: *mut u8,
    pub slots: u32,
    pub sessions: u32,
    pub is_software: u8,
    pub padding: [u8; 7],
    pub name: [u8; 64],
    pub driver: [u8; 64],
}

impl Opened {
    pub(crate) const EMPTY: Self = Self {
        handle: std::ptr::null_mut(),
        icvs: std::ptr::null_mut(),
        copies: std::ptr::null_mut(),
        slots: 0,
        sessions: 0,
        is_software: 0,
        padding: [0; 7],
        name: [0; 64],
        driver: [0; 64],
    };
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Operation {
    pub session: *mut c_void,
    pub packet: *mut u8,
    pub icv: *mut u8,
    pub bytes: u32,
    pub slot: u32,
    pub cipher_at: u32,
    pub cipher_bytes: u32,
    pub auth_at: u32,
    pub auth_bytes: u32,
    pub is_aead: u8,
    pub is_ccm: u8,
    pub padding: [u8; 2],
    pub aad: [u8; 12],
    pub iv: [u8; 16],
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Done {
    pub slot: u32,
    pub ended: u32,
}

/// The functions. None of them is null.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Table {
    pub version: u32,
    pub size: u32,
    pub open: unsafe extern "C" fn(open: *const Open, opened: *mut Opened) -> i32,
    pub close: unsafe extern "C" fn(handle: *mut c_void),
    pub does: unsafe extern "C" fn(handle: *mut c_void, work: *const Work) -> i32,
    pub session_make:
        unsafe extern "C" fn(handle: *mut c_void, work: *const Work, session: *mut *mut c_void) -> i32,
    pub session_end: unsafe extern "C" fn(handle: *mut c_void, session: *mut c_void),
    pub submit:
        unsafe extern "C" fn(handle: *mut c_void, pair: u16, jobs: *const Operation, count: u16) -> u16,
    pub poll: unsafe extern "C" fn(handle: *mut c_void, pair: u16, done: *mut Done, count: u16) -> u16,
    pub map: unsafe extern "C" fn(handle: *mut c_void, start: *mut u8, bytes: u64) -> i32,
    pub unmap: unsafe extern "C" fn(handle: *mut c_void, start: *mut u8, bytes: u64) -> i32,
}

const _: () = {
    assert!(size_of::<Work>() == 24 && size_of::<Open>() == 16 && size_of::<Opened>() == 168);
    assert!(size_of::<Operation>() == 80 && size_of::<Done>() == 8 && size_of::<Table>() == 80);
};
