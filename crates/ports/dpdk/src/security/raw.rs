//! The plugin's interface for cryptography, as `shim/dpdk/security.h` declares it: both change together.

use std::ffi::c_void;

/// The version of the interface that this is.
pub const VERSION: u32 = 1;

/// What a device takes over (`TAKES_…`).
pub mod takes {
    pub const CRYPTOGRAPHY: u8 = 1;
    pub const PROTOCOL: u8 = 2;
}

/// Algorithms (`SUITE_…`).
pub mod algorithms {
    pub const GCM: u8 = 0;
    pub const GMAC: u8 = 1;
}

/// Bits of suites (`GCM_BIT`, `GMAC_BIT`), by bytes of key and ICV.
pub const fn gcm_bit(key: usize, icv: usize) -> u32 {
    1 << ((key / 8 - 2) * 3 + (icv / 4 - 2))
}

/// As above.
pub const fn gmac_bit(key: usize) -> u32 {
    1 << (9 + (key / 8 - 2))
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Offer {
    pub takes: u8,
    pub is_ah: u8,
    pub is_tunnel: u8,
    pub is_inbound: u8,
    pub has_esn: u8,
    pub has_udp: u8,
    pub has_trailer: u8,
    pub padding: u8,
    pub suites: u32,
}

#[repr(C)]
pub struct Session {
    pub key: *const u8,
    pub key_bytes: u8,
    pub icv_bytes: u8,
    pub algorithm: u8,
    pub is_ah: u8,
    pub is_tunnel: u8,
    pub is_inbound: u8,
    pub is_ipv6: u8,
    pub padding: u8,
    pub spi: u32,
    pub source: [u8; 16],
    pub destination: [u8; 16],
    pub number: u32,
}

/// The functions. None of them is null.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Table {
    pub version: u32,
    pub size: u32,
    pub offers: unsafe extern "C" fn(port: u16, offers: *mut Offer, room: u32) -> i32,
    pub open: unsafe extern "C" fn(port: u16, sessions: u32, handle: *mut *mut c_void) -> i32,
    pub close: unsafe extern "C" fn(handle: *mut c_void),
    pub renew: unsafe extern "C" fn(handle: *mut c_void) -> i32,
    pub session_make:
        unsafe extern "C" fn(handle: *mut c_void, session: *const Session, made: *mut *mut c_void) -> i32,
    pub session_end: unsafe extern "C" fn(handle: *mut c_void, session: *mut c_void) -> i32,
    pub session_forget: unsafe extern "C" fn(session: *mut c_void),
    pub prepare: unsafe extern "C" fn(
        handle: *mut c_void,
        session: *mut c_void,
        mbuf: *mut c_void,
        link_bytes: u16,
        ip_bytes: u16,
    ) -> i32,
    pub undo: unsafe extern "C" fn(mbuf: *mut c_void),
}

/// The symbol that the plugin exports.
pub type Symbol = unsafe extern "C" fn() -> *const Table;
/// Its name.
pub const SYMBOL: &[u8] = b"testudo_dpdk_security\0";

const _: () = assert!(size_of::<Offer>() == 12 && size_of::<Session>() == 56);
