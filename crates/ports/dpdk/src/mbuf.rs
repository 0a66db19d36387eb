//! `rte_mbuf`, as far as the gateway reads and writes it. The plugin's C compiler has asserted the offsets.

use std::ffi::c_void;
use std::ptr::{NonNull, addr_of, addr_of_mut};

/// Bytes that DPDK leaves free before a packet that it receives (`RTE_PKTMBUF_HEADROOM`).
pub const DPDK_HEADROOM: u16 = 128;

/// The device found that the packet's checksum of TCP or UDP is right (`RTE_MBUF_F_RX_L4_CKSUM_GOOD`).
pub const L4_GOOD: u64 = 1 << 8;
/// Both: there is none yet, and nothing was damaged (`RTE_MBUF_F_RX_L4_CKSUM_NONE`).
pub const L4_NONE: u64 = 1 << 8 | 1 << 3;
/// It is wrong (`RTE_MBUF_F_RX_L4_CKSUM_BAD`).
pub const L4_BAD: u64 = 1 << 3;

/// The device has done its cryptography of IPsec (`RTE_MBUF_F_RX_SEC_OFFLOAD`).
pub const SECURED: u64 = 1 << 18;
/// It has failed: the ICV is wrong, mostly (`RTE_MBUF_F_RX_SEC_OFFLOAD_FAILED`).
pub const SECURITY_FAILED: u64 = 1 << 19;
/// What is known of a received packet, or asked for one to send (`RTE_MBUF_F_…`).
pub mod flags {
    /// Several segments were joined to it (`RX_LRO`).
    pub const JOINED: u64 = 1 << 16;
    pub const UDP_SEGMENTS: u64 = 1 << 42;
    pub const TCP_SEGMENTS: u64 = 1 << 50;
    pub const TCP_CHECKSUM: u64 = 1 << 52;
    pub const UDP_CHECKSUM: u64 = 3 << 52;
    pub const IP_CHECKSUM: u64 = 1 << 54;
    pub const IPV4: u64 = 1 << 55;
    pub const IPV6: u64 = 1 << 56;
}

/// `rte_mbuf.tx_offload`: lengths of the headers of the link, of IP and of TCP or UDP, and bytes of payload
/// of a segment.
#[must_use]
pub const fn tx_lengths(l2: u16, l3: u16, l4: u16, segment: u16) -> u64 {
    l2 as u64 | (l3 as u64) << 7 | (l4 as u64) << 16 | (segment as u64) << 24
}

/// The layout of DPDK 21.11 and later.
#[repr(C, align(64))]
pub struct Mbuf {
    pub buf_addr: *mut u8,
    pub buf_iova: u64,
    pub data_off: u16,
    pub refcnt: u16,
    pub nb_segs: u16,
    pub port: u16,
    pub ol_flags: u64,
    pub packet_type: u32,
    pub pkt_len: u32,
    pub data_len: u16,
    pub vlan_tci: u16,
    pub hash: [u32; 2],
    pub vlan_tci_outer: u16,
    pub buf_len: u16,
    pub pool: *mut c_void,
    pub next: *mut Self,
    pub tx_offload: u64,
    pub rest: [u64; 6],
}

const _: () = {
    assert!(size_of::<Mbuf>() == 128);
    assert!(std::mem::offset_of!(Mbuf, data_off) == 16 && std::mem::offset_of!(Mbuf, ol_flags) == 24);
    assert!(std::mem::offset_of!(Mbuf, pkt_len) == 36 && std::mem::offset_of!(Mbuf, data_len) == 40);
    assert!(std::mem::offset_of!(Mbuf, buf_len) == 54 && std::mem::offset_of!(Mbuf, pool) == 56);
    assert!(std::mem::offset_of!(Mbuf, next) == 64 && std::mem::offset_of!(Mbuf, tx_offload) == 72);
};

/// An mbuf of a mempool that exists. Made by [`crate::mbufs::Mbufs`] alone, which has checked the address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    at: NonNull<Mbuf>,
    /// Its number in its mempool.
    pub number: usize,
}

/// What a device says of what it received.
#[derive(Debug, Clone, Copy)]
pub struct Received {
    pub buf_addr: usize,
    pub data_off: u16,
    pub segments: u16,
    pub flags: u64,
    pub bytes: u16,
}

/// What an mbuf is to send.
#[derive(Debug, Clone, Copy)]
pub struct ToSend {
    pub address: NonNull<u8>,
    pub iova: u64,
    pub offset: u16,
    pub bytes: u16,
    /// Those of all mbufs of the packet.
    pub packet_bytes: u32,
    pub segments: u16,
}

impl Known {
    /// # Safety
    /// `at` is an mbuf of a mempool that is not freed as long as this exists.
    pub unsafe fn new(at: NonNull<Mbuf>, number: usize) -> Self {
        Self { at, number }
    }

    /// The handle that the plugin's functions take.
    pub fn handle(self) -> *mut c_void {
        self.at.as_ptr().cast()
    }

    /// Each field is read once, so that what was checked is what is used, whatever the device does meanwhile.
    #[inline]
    pub fn received(self) -> Received {
        let at = self.at.as_ptr();
        // SAFETY: `at` is an mbuf that exists (`new`), aligned, and all its bytes are initialised. No
        // reference to it is made, so that a device may write to it at the same time.
        unsafe {
            Received {
                buf_addr: addr_of!((*at).buf_addr).read_volatile().addr(),
                data_off: addr_of!((*at).data_off).read_volatile(),
                segments: addr_of!((*at).nb_segs).read_volatile(),
                flags: addr_of!((*at).ol_flags).read_volatile(),
                bytes: addr_of!((*at).data_len).read_volatile(),
            }
        }
    }

    /// Bytes of payload of each segment that was joined to the packet.
    #[cold]
    pub fn segment_bytes(self) -> u16 {
        // SAFETY: as in `received`.
        let lengths = unsafe { addr_of!((*self.at.as_ptr()).tx_offload).read_volatile() };
        let [_, _, _, low, high, ..] = lengths.to_le_bytes();
        u16::from_le_bytes([low, high])
    }

    /// Whether the device was asked for the packet's checksum of UDP.
    pub fn wants_udp_checksum(self) -> bool {
        // SAFETY: as in `received`.
        let asked = unsafe { addr_of!((*self.at.as_ptr()).ol_flags).read() };
        asked & flags::UDP_CHECKSUM == flags::UDP_CHECKSUM
    }

    /// Asks the device for more than to send the packet that this mbuf begins.
    pub fn request(self, flags: u64, lengths: u64) {
        let at = self.at.as_ptr();
        // SAFETY: as in `set_room`.
        unsafe {
            addr_of_mut!((*at).ol_flags).write(flags);
            addr_of_mut!((*at).tx_offload).write(lengths);
        }
    }

    /// The next mbuf of the packet, as the device says.
    pub fn next(self) -> *mut c_void {
        // SAFETY: as in `received`.
        unsafe { addr_of!((*self.at.as_ptr()).next).read_volatile() }.cast()
    }

    /// Lets the mbuf point to its room, from DPDK's headroom on.
    #[inline]
    pub fn set_room(self, address: NonNull<u8>, iova: u64) {
        let at = self.at.as_ptr();
        // SAFETY: as in `received`; nobody else has the mbuf: it is the gateway's.
        unsafe {
            addr_of_mut!((*at).buf_addr).write(address.as_ptr());
            addr_of_mut!((*at).buf_iova).write(iova);
        }
    }

    /// Describes what it is to send, as the only mbuf of its packet or the first of several.
    #[inline]
    pub fn prepare(self, what: ToSend) {
        let at = self.at.as_ptr();
        self.set_room(what.address, what.iova);
        // SAFETY: as in `set_room`.
        unsafe {
            addr_of_mut!((*at).data_off).write(what.offset);
            addr_of_mut!((*at).refcnt).write(1);
            addr_of_mut!((*at).nb_segs).write(what.segments);
            addr_of_mut!((*at).ol_flags).write(0);
            addr_of_mut!((*at).pkt_len).write(what.packet_bytes);
            addr_of_mut!((*at).data_len).write(what.bytes);
        }
    }

    /// Ends a chain, or continues it.
    pub fn set_next(self, next: Option<Self>) {
        let next = next.map_or(std::ptr::null_mut(), |next| next.at.as_ptr());
        // SAFETY: as in `set_room`.
        unsafe { addr_of_mut!((*self.at.as_ptr()).next).write(next) }
    }

    /// As mempools have it: an mbuf by itself.
    pub fn unchain(self) {
        self.set_next(None);
        // SAFETY: as in `set_room`.
        unsafe { addr_of_mut!((*self.at.as_ptr()).nb_segs).write(1) }
    }

    /// Where an mbuf with a room of its own has it, and the address for devices.
    pub fn own_room(self) -> (NonNull<u8>, u64) {
        let at = self.at.as_ptr();
        // SAFETY: as in `received`.
        let (address, iova) = unsafe { (addr_of!((*at).buf_addr).read(), addr_of!((*at).buf_iova).read()) };
        (NonNull::new(address).unwrap_or(self.at.cast()), iova)
    }
}
