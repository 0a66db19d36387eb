//! The plugin's interface, as `shim/dpdk/plugin.h` declares it: both change together.

#![allow(missing_docs, reason = "the C header describes these")]

use std::ffi::{c_char, c_void};

/// The version of the interface that this is.
pub const VERSION: u32 = 3;

/// What a device can do, or is to do (`OFFERS_…`, `IS_…`, `WANTS_…`).
pub mod offers {
    pub const SCATTER: u32 = 1 << 0;
    pub const CHECKSUMS: u32 = 1 << 1;
    pub const SEGMENTS: u32 = 1 << 2;
    pub const FAST_FREE: u32 = 1 << 3;
    pub const REMOVAL: u32 = 1 << 4;
    pub const IS_VIRTUAL: u32 = 1 << 5;
    pub const PROMISCUOUS: u32 = 1 << 6;
    pub const TCP_SEGMENTATION: u32 = 1 << 7;
    pub const UDP_SEGMENTATION: u32 = 1 << 8;
    pub const JOINING: u32 = 1 << 9;
    pub const IP_CHECKSUMS: u32 = 1 << 10;
    pub const UDP_CHECKSUMS: u32 = 1 << 11;
    pub const SEALING: u32 = 1 << 16;
    pub const OPENING: u32 = 1 << 17;
}

/// By what a device spreads packets over its queues (`SPREADS_BY_…`).
pub mod spreads {
    pub const ESP: u32 = 1 << 0;
    pub const AH: u32 = 1 << 1;
    pub const UDP: u32 = 1 << 2;
    pub const TCP: u32 = 1 << 3;
    pub const IP: u32 = 1 << 4;
}

/// What happened to a device (`EVENT_…`).
pub mod events {
    pub const REMOVED: u32 = 1 << 0;
    pub const RESET: u32 = 1 << 1;
}

/// What is known of an mbuf (`MBUF_…`).
pub mod states {
    pub const FREE: u8 = 0;
    pub const OUT: u8 = 1;
    pub const TAKEN: u8 = 2;
    pub const SENDING: u8 = 3;
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Info {
    pub name: [u8; 64],
    pub driver: [u8; 64],
    pub mac: [u8; 6],
    pub mtu: u16,
    pub min_mtu: u16,
    pub max_mtu: u16,
    pub max_rx_queues: u16,
    pub max_tx_queues: u16,
    pub min_buffer: u32,
    pub max_frame: u32,
    pub offers: u32,
    pub spreads: u32,
}

impl Info {
    pub const EMPTY: Self = Self {
        name: [0; 64],
        driver: [0; 64],
        mac: [0; 6],
        mtu: 0,
        min_mtu: 0,
        max_mtu: 0,
        max_rx_queues: 0,
        max_tx_queues: 0,
        min_buffer: 0,
        max_frame: 0,
        offers: 0,
        spreads: 0,
    };
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Config {
    pub pool: *mut c_void,
    pub rx_queues: u16,
    pub tx_queues: u16,
    pub rx_descriptors: u16,
    pub tx_descriptors: u16,
    pub mtu: u16,
    pub padding: u16,
    pub offers: u32,
    pub spreads: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct MadePool {
    pub handle: *mut c_void,
    pub states: *mut u8,
    pub first: u64,
    pub stride: u32,
    pub count: u32,
    pub refused: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Statistics {
    pub rx_packets: u64,
    pub rx_bytes: u64,
    pub rx_missed: u64,
    pub rx_errors: u64,
    pub rx_no_mbuf: u64,
    pub tx_packets: u64,
    pub tx_bytes: u64,
    pub tx_errors: u64,
    pub link_mbps: u32,
    pub link_up: u8,
    pub padding: [u8; 3],
}

type Handles = *mut *mut c_void;

/// The functions. None of them is null.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Table {
    pub version: u32,
    pub size: u32,
    pub dpdk_version: *const c_char,
    pub eal_start: unsafe extern "C" fn(argc: i32, argv: *mut *mut c_char) -> i32,
    pub uses_virtual_addresses: unsafe extern "C" fn() -> i32,
    pub thread_register: unsafe extern "C" fn() -> i32,
    pub thread_unregister: unsafe extern "C" fn(),
    pub said: unsafe extern "C" fn(text: *mut u8, room: u32) -> i32,
    pub memory_register: unsafe extern "C" fn(start: *mut u8, bytes: u64, page_bytes: u64) -> i32,
    pub memory_unregister: unsafe extern "C" fn(start: *mut u8, bytes: u64) -> i32,
    pub physical_address: unsafe extern "C" fn(start: *const u8) -> u64,
    pub memory_map: unsafe extern "C" fn(port: u16, start: *mut u8, address: u64, bytes: u64) -> i32,
    pub pool_make: unsafe extern "C" fn(
        name: *const c_char,
        count: u32,
        room: u32,
        room_inside: u32,
        made: *mut MadePool,
    ) -> i32,
    pub pool_end: unsafe extern "C" fn(pool: *mut c_void),
    pub pool_get: unsafe extern "C" fn(pool: *mut c_void, mbufs: Handles, count: u32) -> i32,
    pub pool_put: unsafe extern "C" fn(pool: *mut c_void, mbufs: *const *mut c_void, count: u32),
    pub device_find: unsafe extern "C" fn(arguments: *const c_char, port: *mut u16) -> i32,
    pub device_info: unsafe extern "C" fn(port: u16, info: *mut Info) -> i32,
    pub device_start: unsafe extern "C" fn(port: u16, config: *mut Config) -> i32,
    pub device_stop: unsafe extern "C" fn(port: u16) -> i32,
    pub device_reset: unsafe extern "C" fn(port: u16) -> i32,
    pub device_close: unsafe extern "C" fn(port: u16) -> i32,
    pub device_statistics: unsafe extern "C" fn(port: u16, statistics: *mut Statistics) -> i32,
    pub device_events: unsafe extern "C" fn(port: u16) -> *mut u32,
    pub receive: unsafe extern "C" fn(port: u16, queue: u16, mbufs: Handles, count: u16) -> u16,
    pub send: unsafe extern "C" fn(port: u16, queue: u16, mbufs: Handles, count: u16) -> u16,
    pub prepare: unsafe extern "C" fn(port: u16, queue: u16, mbufs: Handles, count: u16) -> u16,
    pub reap: unsafe extern "C" fn(port: u16, queue: u16) -> i32,
}

// SAFETY: functions, and the address of a constant text.
unsafe impl Sync for Table {}

/// The symbol that the plugin exports.
pub type Symbol = unsafe extern "C" fn() -> *const Table;
/// Its name.
pub const SYMBOL: &[u8] = b"testudo_dpdk\0";

const _: () = {
    assert!(size_of::<Info>() == 160 && size_of::<Config>() == 32);
    assert!(size_of::<MadePool>() == 40 && size_of::<Statistics>() == 72);
};
