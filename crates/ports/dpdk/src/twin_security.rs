//! The cryptography of a DPDK that is played by a test: sessions without keys, which seal nothing.

use crate::mbuf::{Mbuf, tx_lengths};
use crate::raw::offers;
use crate::security::raw::{Offer, Session, Table, VERSION, gcm_bit, takes};
use std::cell::RefCell;
use std::ffi::c_void;

/// What a device must offer for it.
pub const OFFERS: u32 = offers::SEALING | offers::OPENING;
#[allow(clippy::cast_possible_truncation, reason = "a table of a few functions")]
const TABLE_BYTES: u32 = size_of::<Table>() as u32;
/// The error of a function that refuses: EINVAL.
const REFUSED: i32 = -22;

/// The device is to seal it (`RTE_MBUF_F_TX_SEC_OFFLOAD`).
const SEALS: u64 = 1 << 43;

/// What is played on this thread.
#[derive(Default)]
pub(crate) struct Played {
    /// Whether a session of this number is there.
    pub sessions: Vec<bool>,
    /// Calls of `session_end` that are still to fail.
    pub failing_ends: u32,
    /// Whether packets are refused.
    pub refuses_packets: bool,
}

thread_local! {
    static PLAYED: RefCell<Played> = RefCell::default();
}

pub(crate) fn played<T>(work: impl FnOnce(&mut Played) -> T) -> T {
    PLAYED.with_borrow_mut(work)
}

pub(crate) static TABLE: Table = Table {
    version: VERSION,
    size: TABLE_BYTES,
    offers: offered,
    open,
    close,
    renew,
    session_make,
    session_end,
    session_forget,
    prepare,
    undo,
};

unsafe extern "C" fn offered(_: u16, list: *mut Offer, room: u32) -> i32 {
    let offer =
        Offer { takes: takes::CRYPTOGRAPHY, is_tunnel: 1, suites: gcm_bit(16, 16), ..Offer::default() };
    let both = [offer, Offer { is_inbound: 1, ..offer }];
    for (nth, offer) in both.into_iter().enumerate().take(room as usize) {
        // SAFETY: the caller has room for as many.
        unsafe { list.add(nth).write(offer) };
    }
    2
}

unsafe extern "C" fn open(_: u16, _: u32, handle: *mut *mut c_void) -> i32 {
    // SAFETY: the caller has a place there.
    unsafe { handle.write(std::ptr::null_mut()) };
    0
}

unsafe extern "C" fn close(_: *mut c_void) {}

unsafe extern "C" fn renew(_: *mut c_void) -> i32 {
    0
}

/// A session's handle is its number here, plus one.
unsafe extern "C" fn session_make(_: *mut c_void, _: *const Session, made: *mut *mut c_void) -> i32 {
    let number = played(|played| {
        played.sessions.push(true);
        played.sessions.len()
    });
    // SAFETY: the caller has a place there.
    unsafe { made.write(std::ptr::without_provenance_mut(number)) };
    0
}

unsafe extern "C" fn session_end(_: *mut c_void, session: *mut c_void) -> i32 {
    played(|played| {
        if played.failing_ends > 0 {
            played.failing_ends -= 1;
            return REFUSED;
        }
        match played.sessions.get_mut(session.addr() - 1) {
            Some(is_there) if *is_there => {
                *is_there = false;
                0
            }
            _ => REFUSED,
        }
    })
}

unsafe extern "C" fn session_forget(session: *mut c_void) {
    played(|played| played.sessions[session.addr() - 1] = false);
}

unsafe extern "C" fn prepare(
    _: *mut c_void,
    _: *mut c_void,
    packet: *mut c_void,
    link_bytes: u16,
    ip_bytes: u16,
) -> i32 {
    if played(|played| played.refuses_packets) {
        return REFUSED;
    }
    let mbuf = packet.cast::<Mbuf>();
    // SAFETY: the caller has this mbuf, and nobody else.
    unsafe {
        (*mbuf).ol_flags |= SEALS;
        (*mbuf).tx_offload = tx_lengths(link_bytes, ip_bytes, 0, 0);
    }
    0
}

/// As the plugin: whatever was asked for.
unsafe extern "C" fn undo(packet: *mut c_void) {
    // SAFETY: as in `prepare`.
    unsafe { (*packet.cast::<Mbuf>()).ol_flags = 0 };
}
