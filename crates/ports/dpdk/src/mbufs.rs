//! The mbufs of a device, and the frames that they point to.
//!
//! Each mbuf points to a frame of the gateway's pool, always. A packet that was received is taken with its
//! frame, and another frame takes its place; a packet to send takes the place of an empty frame. So mbufs
//! stay DPDK's, packets stay where they are, and a frame has one owner.

use crate::eal::{Eal, Registered, c_text};
use crate::error::OpenError;
use crate::mbuf::{DPDK_HEADROOM, Known, Received, ToSend};
use crate::plugin::{Errno, Plugin};
use crate::raw::states;
use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use testudo_packet::{Buffer, DropReason, HEADROOM_BYTES, Mark, Pages, Pool};

/// Where in a frame the room of its mbuf starts: a packet that a device receives then has the headroom of the
/// pool's buffers.
pub(crate) const ROOM_AT: usize = HEADROOM_BYTES - DPDK_HEADROOM as usize;
/// Bytes of a room in the mbuf itself: with the mempool's header (64) and the mbuf (128) they make 4,096,
/// beyond which AF_XDP takes none.
const ROOM_INSIDE: u32 = 4096 - 64 - 128;
/// Bytes of a frame that DPDK's programs have room for in an mbuf, unless they carry longer ones. Drivers are
/// made for just that: memif allocates and frees by the burst only if its own buffers are as long.
const USUAL_BYTES: usize = 2048;
const USUAL_ROOM: usize = USUAL_BYTES + DPDK_HEADROOM as usize;
const MBUF_BYTES: usize = 128;
/// Mempools that this process has made.
static MADE: AtomicU32 = AtomicU32::new(0);
const LARGE_PAGE: u64 = 2 << 20;
const LARGE_PAGE_BYTES: usize = 2 << 20;

/// Addresses of frames as a device has them.
#[derive(Debug)]
pub(crate) enum Addresses {
    /// Those of this process.
    Virtual,
    /// Those of large pages, one after another.
    Physical { start: usize, pages: Vec<u64> },
}

impl Addresses {
    /// `None` if the device needs physical ones, and these are not known or may change.
    pub(crate) fn of(plugin: Plugin, pool: &Pool, is_virtual: bool) -> Option<Self> {
        if is_virtual || plugin.uses_virtual_addresses() {
            return Some(Self::Virtual);
        }
        // Of other pages, the kernel may move the contents.
        let region = pool.region();
        let (start, bytes) = region.extent();
        let of_page = |page| plugin.physical_address(start.wrapping_add(page * LARGE_PAGE_BYTES));
        let pages = (0..bytes.div_ceil(LARGE_PAGE_BYTES)).map(of_page);
        let pages = (region.pages() == Pages::Huge).then(|| pages.collect::<Option<Vec<_>>>());
        Some(Self::Physical { start: start.addr(), pages: pages?? })
    }

    /// Lets a device read and write memory.
    pub(crate) fn map(&self, plugin: Plugin, port: u16, memory: &Registered) -> Result<(), Errno> {
        let map = |start, address, bytes| {
            // SAFETY: the memory is the pool's: the device is given frames of it, which are held back from
            // all others meanwhile, and is closed before that ends.
            match unsafe { plugin.memory_map(port, start, address, bytes) } {
                // A bus whose devices reach all memory, or have none to be told of.
                Err(Errno(code)) if code == rustix::io::Errno::NOTSUP.raw_os_error() => Ok(()),
                other => other,
            }
        };
        match self {
            Self::Virtual => map(memory.start, u64::try_from(memory.start.addr()).unwrap_or(0), memory.bytes),
            Self::Physical { pages, .. } => pages.iter().enumerate().try_for_each(|(nth, &page)| {
                map(memory.start.wrapping_add(nth * LARGE_PAGE_BYTES), page, LARGE_PAGE)
            }),
        }
    }

    #[inline]
    pub(crate) fn of_byte(&self, address: usize) -> u64 {
        let wide = |address: usize| u64::try_from(address).unwrap_or(u64::MAX);
        match self {
            Self::Virtual => wide(address),
            Self::Physical { start, pages } => {
                let offset = address - start;
                let page = pages.get(offset / LARGE_PAGE_BYTES).copied().unwrap_or(0);
                page + wide(offset % LARGE_PAGE_BYTES)
            }
        }
    }
}

/// The mbufs of one device.
#[derive(Debug)]
pub(crate) struct Mbufs {
    plugin: Plugin,
    handle: *mut c_void,
    first: usize,
    shift: u32,
    count: usize,
    states: NonNull<AtomicU8>,
    refused: NonNull<AtomicU64>,
    /// The frame of each mbuf; none where mbufs have rooms of their own.
    held: Vec<Buffer>,
    room_bytes: usize,
    memory_start: *mut u8,
    addresses: Addresses,
    /// Whether what was sent may come back as received: a ring.
    pub loops: bool,
    /// After the frames.
    registered: Option<Registered>,
}

// SAFETY: the pointers are to memory of the mempool's, which belongs to this until it is dropped.
unsafe impl Send for Mbufs {}

/// What mbufs are made with.
pub(crate) struct Making<'a> {
    pub eal: &'a Eal,
    pub device: &'a str,
    pub count: usize,
    /// Whether each is to have a room of its own, from and to which packets are copied.
    pub inside: bool,
    /// Bytes of the longest frame that the device is to carry.
    pub longest: usize,
    pub addresses: Addresses,
    pub registered: Option<Registered>,
}

impl Mbufs {
    pub(crate) fn new(making: Making<'_>, pool: &mut Pool) -> Result<Self, OpenError> {
        let plugin = making.eal.plugin();
        let frame_room = pool.region().frame_bytes().saturating_sub(ROOM_AT).min(usize::from(u16::MAX));
        let frame_room = if making.longest <= USUAL_BYTES { frame_room.min(USUAL_ROOM) } else { frame_room };
        let inside = if making.inside { ROOM_INSIDE } else { 0 };
        let room = if making.inside { ROOM_INSIDE } else { u32::try_from(frame_room).unwrap_or(0) };
        let failed = |said| OpenError::Device {
            device: making.device.to_owned(),
            driver: "mempool".into(),
            action: format!("have {} mbufs", making.count),
            said,
        };
        // A mempool whose driver has not given all back stays, and its name with it.
        let name = c_text(&format!("testudo-{}", MADE.fetch_add(1, Ordering::Relaxed)))?;
        let count = u32::try_from(making.count).unwrap_or(u32::MAX);
        let made =
            plugin.pool_make(&name, count, room, inside).map_err(|errno| failed(plugin.words(errno)))?;
        let states = NonNull::new(made.states.cast::<AtomicU8>());
        let refused = usize::try_from(made.refused).ok();
        let refused = refused.and_then(|at| NonNull::new(std::ptr::with_exposed_provenance_mut(at)));
        let (Some(states), Some(refused), true) = (states, refused, made.stride.is_power_of_two()) else {
            return Err(failed("the plugin's answer makes no sense".into()));
        };
        let mut mbufs = Self {
            plugin,
            handle: made.handle,
            first: usize::try_from(made.first).unwrap_or(0),
            shift: made.stride.trailing_zeros(),
            count: usize::try_from(made.count).unwrap_or(0),
            states,
            refused,
            held: Vec::new(),
            room_bytes: usize::try_from(room).unwrap_or(0),
            memory_start: pool.region().extent().0,
            addresses: making.addresses,
            loops: false,
            registered: making.registered,
        };
        if !making.inside {
            mbufs.give_frames(pool).map_err(|have| OpenError::Buffers {
                device: making.device.to_owned(),
                needed: making.count,
                may: have,
            })?;
        }
        Ok(mbufs)
    }

    /// Lets each mbuf point to a frame. Otherwise says how many frames there were.
    fn give_frames(&mut self, pool: &mut Pool) -> Result<(), usize> {
        while self.held.len() < self.count {
            let frame = pool.pop().filter(|frame| pool.region().owns(frame));
            let Some(frame) = frame else {
                let have = self.held.len();
                self.held.drain(..).for_each(|frame| pool.recycle(frame));
                return Err(have);
            };
            self.held.push(frame);
        }
        for number in 0..self.count {
            self.at(number)
                .set_room(self.room(number), self.addresses.of_byte(self.room(number).addr().get()));
        }
        Ok(())
    }

    pub(crate) fn handle(&self) -> *mut c_void {
        self.handle
    }

    /// Bytes of an mbuf's room, with DPDK's headroom.
    pub(crate) fn room_bytes(&self) -> usize {
        self.room_bytes
    }

    /// Whether packets stay where they are, instead of being copied.
    #[inline]
    pub(crate) fn exchanges(&self) -> bool {
        !self.held.is_empty()
    }

    fn at(&self, number: usize) -> Known {
        let address = self.handle.with_addr(self.first + (number << self.shift)).cast();
        // The address of an object is not null.
        let at = NonNull::new(address).unwrap_or(NonNull::dangling());
        // SAFETY: mbufs follow each other at this distance, `number` is below their count for all callers,
        // and the mempool exists as long as this.
        unsafe { Known::new(at, number) }
    }

    /// The mbuf of a handle that a device names; `None` if it is none of these.
    #[inline]
    fn known(&self, handle: *mut c_void) -> Option<Known> {
        let offset = handle.addr().wrapping_sub(self.first);
        let number = offset >> self.shift;
        let at = NonNull::new(handle.cast())?;
        if number >= self.count || number << self.shift != offset {
            return None;
        }
        // SAFETY: it is the address of an mbuf of this mempool, which exists as long as this.
        Some(unsafe { Known::new(at, number) })
    }

    #[inline]
    fn state(&self, known: Known) -> &AtomicU8 {
        // SAFETY: the plugin keeps a byte for each mbuf as long as the mempool exists, and accesses it in
        // calls of this thread, or as atomically as a byte always is.
        unsafe { self.states.add(known.number).as_ref() }
    }

    /// Takes an mbuf that a device names as received; `None` if the device did not have it.
    #[inline]
    pub(crate) fn claim(&self, handle: *mut c_void) -> Option<Known> {
        let known = self.known(handle)?;
        let state = self.state(known);
        match state.load(Ordering::Relaxed) {
            states::OUT => {}
            states::SENDING if self.loops => {}
            _ => return None,
        }
        state.store(states::TAKEN, Ordering::Relaxed);
        Some(known)
    }

    /// Takes free mbufs to send; as many as there are. Returns how many.
    #[inline]
    pub(crate) fn get(&self, handles: &mut [*mut c_void]) -> usize {
        // SAFETY: the mempool exists as long as this.
        unsafe { self.plugin.pool_get(self.handle, handles) }
    }

    /// An mbuf that came from the mempool.
    #[inline]
    pub(crate) fn own(&self, handle: *mut c_void) -> io::Result<Known> {
        self.known(handle).ok_or_else(|| io::Error::other("the mempool gave an mbuf that is not its own"))
    }

    /// Gives mbufs back.
    #[inline]
    pub(crate) fn put(&self, handles: &[*mut c_void]) {
        if !handles.is_empty() {
            // SAFETY: the mempool exists, it has checked the handles or `claim` has, and this took them.
            unsafe { self.plugin.pool_put(self.handle, handles) }
        }
    }

    /// Where the room of an mbuf is to be.
    #[inline]
    fn room(&self, number: usize) -> NonNull<u8> {
        let address = match self.held.get(number) {
            Some(frame) => frame.identity().unwrap_or(0) + ROOM_AT,
            None => self.first + (number << self.shift) + MBUF_BYTES,
        };
        let base = if self.held.is_empty() { self.handle.cast() } else { self.memory_start };
        NonNull::new(base.with_addr(address)).unwrap_or(NonNull::dangling())
    }

    /// Whether a device describes bytes in the room of its mbuf.
    #[inline]
    pub(crate) fn check(&self, known: Known, received: &Received) -> Result<(), DropReason> {
        if received.buf_addr != self.room(known.number).addr().get() {
            return Err(DropReason::DeviceFrameUnknown);
        }
        if usize::from(received.data_off) + usize::from(received.bytes) > self.room_bytes {
            return Err(DropReason::DeviceFrameBounds);
        }
        Ok(())
    }

    /// Takes the packet that an mbuf has received, with its frame, and leaves `fresh` there; the mbuf goes
    /// back by [`put`](Self::put). [`check`](Self::check) has been asked.
    #[inline]
    pub(crate) fn exchange(&mut self, known: Known, received: &Received, fresh: Buffer) -> Buffer {
        let mut packet = std::mem::replace(&mut self.held[known.number], fresh);
        packet.reset(ROOM_AT + usize::from(received.data_off));
        packet.set_len(usize::from(received.bytes));
        let room = self.room(known.number);
        known.set_room(room, self.addresses.of_byte(room.addr().get()));
        packet
    }

    /// Copies what an mbuf has received to `target`. [`check`](Self::check) has been asked.
    pub(crate) fn read(&mut self, known: Known, received: &Received, target: &mut [u8]) {
        let (offset, bytes) = (usize::from(received.data_off), usize::from(received.bytes));
        if let Some(frame) = self.held.get_mut(known.number) {
            frame.reset(ROOM_AT + offset);
            frame.set_len(bytes);
            return target.copy_from_slice(frame.bytes());
        }
        let room = self.room(known.number);
        assert!(target.len() == bytes && offset + bytes <= self.room_bytes, "an mbuf was not checked");
        // SAFETY: the room of an mbuf of this mempool is that long, and initialised since the mempool's
        // memory was mapped; the mbuf is the gateway's now. `target` is a buffer's memory, elsewhere.
        unsafe { room.add(offset).copy_to_nonoverlapping(NonNull::from(target).cast(), bytes) }
    }

    /// What an mbuf is to send of `buffer`, in whose frame it will be; `None` where it must be copied: it is
    /// elsewhere, or begins before the room of an mbuf.
    #[inline]
    pub(crate) fn in_place(&self, buffer: &Buffer) -> Option<ToSend> {
        let address = buffer.identity()? + ROOM_AT;
        let offset = u16::try_from(buffer.headroom().checked_sub(ROOM_AT)?).ok()?;
        let bytes = u16::try_from(buffer.len()).ok()?;
        let address = NonNull::new(self.memory_start.with_addr(address))?;
        let iova = self.addresses.of_byte(address.addr().get());
        Some(ToSend { address, iova, offset, bytes, packet_bytes: u32::from(bytes), segments: 1 })
    }

    /// Copies bytes into the room of a free mbuf.
    pub(crate) fn write(&mut self, known: Known, bytes: &[u8]) -> ToSend {
        let address = self.room(known.number);
        let offset = usize::from(DPDK_HEADROOM);
        assert!(offset + bytes.len() <= self.room_bytes, "{} bytes do not fit an mbuf", bytes.len());
        match self.held.get_mut(known.number) {
            Some(frame) => {
                frame.reset(HEADROOM_BYTES);
                frame.receive_area()[..bytes.len()].copy_from_slice(bytes);
            }
            // SAFETY: the room of an mbuf of this mempool is that long; the mbuf is the gateway's now, and
            // `bytes` are a buffer's memory, elsewhere.
            None => unsafe {
                address.add(offset).copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len());
            },
        }
        let iova = match self.held.get(known.number) {
            Some(_) => self.addresses.of_byte(address.addr().get()),
            None => known.own_room().1,
        };
        let length = u16::try_from(bytes.len()).unwrap_or(0); // a room has less than 2^16 bytes
        ToSend {
            address,
            iova,
            offset: DPDK_HEADROOM,
            bytes: length,
            packet_bytes: length.into(),
            segments: 1,
        }
    }

    /// The mbuf is about to be a device's, to send. This comes first: a driver may free it at once.
    #[inline]
    pub(crate) fn lend(&self, known: Known) {
        self.state(known).store(states::SENDING, Ordering::Relaxed);
    }

    /// Whether an mbuf is the device's, to send.
    pub(crate) fn is_sending(&self, number: usize) -> bool {
        number < self.count && self.state(self.at(number)).load(Ordering::Relaxed) == states::SENDING
    }

    /// The mbuf was sent with the frame of `packet`, which it keeps, for another packet; its own is free.
    #[inline]
    pub(crate) fn sent(&mut self, known: Known, mut packet: Buffer) -> Buffer {
        packet.set_mark(Mark::NONE);
        std::mem::replace(&mut self.held[known.number], packet)
    }

    /// The mbuf was not sent: it points to its own frame again, and to no other mbuf.
    pub(crate) fn unsent(&self, known: Known) {
        let room = self.room(known.number);
        if self.exchanges() {
            known.set_room(room, self.addresses.of_byte(room.addr().get()));
        }
        known.unchain();
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.count == 0
    }

    /// Mbufs that came back to the mempool without having been out.
    pub(crate) fn refused(&self) -> u64 {
        // SAFETY: a word of the plugin's, which is there as long as the mempool.
        unsafe { self.refused.as_ref() }.load(Ordering::Relaxed)
    }

    /// Ends the mempool, once the device is closed. Frames that the device did not give back are written off:
    /// it may read or write them still, and with another packet in them, that one would leave in clear.
    /// Returns how many.
    pub(crate) fn end(&mut self, free: &mut dyn FnMut(Buffer)) -> usize {
        let is_out = |number| self.state(self.at(number)).load(Ordering::Relaxed) != states::FREE;
        let out: Vec<bool> = (0..self.count).map(is_out).collect();
        let lost = out.iter().filter(|out| **out).count();
        self.count = 0;
        drop(self.registered.take());
        for (frame, out) in self.held.drain(..).zip(out) {
            if out { std::mem::forget(frame) } else { free(frame) }
        }
        if lost == 0 {
            // SAFETY: no mbuf is out, and the device is closed.
            unsafe { self.plugin.pool_end(self.handle) };
        }
        lost
    }
}
