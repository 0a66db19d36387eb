//! A DPDK that is played by a test: the same functions, over mbufs in our own memory. It may say what it
//! likes about them.
//!
//! What is played belongs to one thread: the device under test must stay on it.

use crate::eal::Eal;
use crate::mbuf::{DPDK_HEADROOM, Mbuf};
use crate::plugin::Plugin;
use crate::raw::{Config, Info, MadePool, Statistics, Table, VERSION, states};
use crate::twin_security::{Played, played};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::{c_char, c_void};
use std::marker::PhantomData;

/// Bytes from one mbuf to the next, as the plugin has them.
const STRIDE: usize = 256;
/// The same, and the length of the table, as the interface has them.
const STRIDE_TOLD: u32 = 256;
#[allow(clippy::cast_possible_truncation, reason = "a table of thirty functions")]
const TABLE_BYTES: u32 = size_of::<Table>() as u32;
/// The error of a function that refuses: EINVAL.
const REFUSED: i32 = -22;

/// A slot of the mempool: an mbuf, and what makes it as long as the stride.
#[repr(C, align(256))]
struct Slot {
    mbuf: Mbuf,
}

const _: () = assert!(size_of::<Slot>() == STRIDE);

/// What is played on this thread.
#[derive(Default)]
struct World {
    slots: Vec<Slot>,
    states: Vec<u8>,
    free: Vec<usize>,
    refused: Box<u64>,
    events: Box<u32>,
    /// What the next call of `receive` returns, as addresses.
    received: VecDeque<usize>,
    /// Numbers of mbufs that are to be sent.
    sent: VecDeque<usize>,
    /// How many mbufs `send` takes in a call; more than there are is a lie.
    takes: Option<u16>,
    /// How many `receive` says it wrote; `None` for the truth.
    says: Option<u16>,
    offers: u32,
    resets: u32,
    starts_fail: bool,
    /// Whether it takes no packet that it would have to cut.
    refuses_joined: bool,
}

thread_local! {
    static WORLD: RefCell<World> = RefCell::default();
}

fn world<T>(work: impl FnOnce(&mut World) -> T) -> T {
    WORLD.with_borrow_mut(work)
}

impl World {
    fn address(&self, number: usize) -> usize {
        self.slots[number % self.slots.len()].mbuf_address()
    }

    fn number(&self, address: usize) -> Option<usize> {
        let first = self.slots.first()?.mbuf_address();
        let offset = address.checked_sub(first)?;
        (offset % STRIDE == 0 && offset / STRIDE < self.slots.len()).then_some(offset / STRIDE)
    }

    /// As the plugin's mempool does it.
    fn put(&mut self, address: usize) {
        match self.number(address) {
            Some(number) if self.states[number] != states::FREE => {
                self.states[number] = states::FREE;
                self.free.push(number);
            }
            _ => *self.refused += 1,
        }
    }

    /// What is asked for a packet, and its bytes.
    fn request(&self, first: usize) -> (u64, u64, Vec<u8>) {
        let (mut bytes, mut next) = (Vec::new(), Some(first));
        while let Some(number) = next {
            let mbuf = &self.slots[number].mbuf;
            // SAFETY: the device under test describes what is to be sent in a frame of its pool, which is
            // there until the packet was sent.
            bytes.extend(unsafe {
                let start = mbuf.buf_addr.add(usize::from(mbuf.data_off));
                std::slice::from_raw_parts(start, usize::from(mbuf.data_len))
            });
            next = self.number(mbuf.next.addr());
        }
        let mbuf = &self.slots[first].mbuf;
        (mbuf.ol_flags, mbuf.tx_offload, bytes)
    }

    fn get(&mut self) -> Option<usize> {
        let number = self.free.pop()?;
        self.states[number] = states::OUT;
        Some(number)
    }
}

impl Slot {
    fn mbuf_address(&self) -> usize {
        (&raw const self.mbuf).expose_provenance()
    }
}

/// What a device that is played says of an mbuf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Words {
    /// Where its packet begins, from the start of its room.
    pub data_off: u16,
    /// The packet's bytes in it.
    pub data_len: u16,
    /// Mbufs of the packet.
    pub segments: u16,
    /// The address of the next one; 0 if there is none.
    pub next: usize,
    /// Where its room is; `None` leaves that as it is.
    pub buf_addr: Option<usize>,
    /// Offload flags.
    pub flags: u64,
    /// Bytes of payload of each segment that was joined to it.
    pub segment_bytes: u16,
}

impl Words {
    /// A packet of so many bytes, as honest devices describe it.
    #[must_use]
    pub fn of(bytes: u16) -> Self {
        Self {
            data_off: DPDK_HEADROOM,
            data_len: bytes,
            segments: 1,
            next: 0,
            buf_addr: None,
            flags: 0,
            segment_bytes: 0,
        }
    }
}

/// The other side of a device: the driver.
pub struct DpdkTwin {
    /// What is played is this thread's.
    _thread: PhantomData<*const ()>,
}

impl std::fmt::Debug for DpdkTwin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DpdkTwin")
    }
}

impl DpdkTwin {
    /// A DPDK with one device, of whatever name, which offers what real ones do (`offers`). An earlier one of
    /// this thread ends.
    #[must_use]
    pub fn start(offers: u32) -> (Eal, Self) {
        world(|world| *world = World { offers, ..World::default() });
        played(|played| *played = Played::default());
        // SAFETY: the functions do what the header says, but for what the driver says of mbufs.
        let plugin = unsafe { Plugin::of(&TABLE) };
        (Eal::over(plugin, vec!["played".to_owned()]), Self { _thread: PhantomData })
    }

    /// The driver takes a free mbuf to receive into, and has its address.
    #[must_use]
    pub fn take(&self) -> Option<usize> {
        world(|world| world.get().map(|number| world.address(number)))
    }

    /// The driver describes an mbuf of its mempool; not if it is none.
    pub fn describe(&self, address: usize, words: Words) {
        world(|world| {
            let Some(number) = world.number(address) else { return };
            let mbuf = &mut world.slots[number].mbuf;
            (mbuf.data_off, mbuf.data_len, mbuf.nb_segs) = (words.data_off, words.data_len, words.segments);
            (mbuf.pkt_len, mbuf.ol_flags) = (words.data_len.into(), words.flags);
            mbuf.tx_offload = u64::from(words.segment_bytes) << 24;
            mbuf.next = std::ptr::with_exposed_provenance_mut(words.next);
            if let Some(address) = words.buf_addr {
                mbuf.buf_addr = std::ptr::with_exposed_provenance_mut(address);
            }
        });
    }

    /// The driver writes a packet where an mbuf of its mempool begins; not if it is none.
    ///
    /// # Panics
    /// If the mbuf's room is shorter.
    pub fn fill(&self, address: usize, packet: &[u8]) {
        world(|world| {
            let Some(number) = world.number(address) else { return };
            let mbuf = &world.slots[number].mbuf;
            assert!(usize::from(mbuf.data_off) + packet.len() <= usize::from(mbuf.buf_len));
            // SAFETY: the room is a frame of the gateway's, this long, and the mbuf is the driver's.
            unsafe {
                mbuf.buf_addr
                    .add(usize::from(mbuf.data_off))
                    .copy_from_nonoverlapping(packet.as_ptr(), packet.len());
            }
        });
    }

    /// The driver names an mbuf as received, whatever that address is.
    pub fn deliver(&self, address: usize) {
        world(|world| world.received.push_back(address));
    }

    /// The driver has sent the packet that was handed to it first: its mbufs are freed. Returns the first
    /// mbuf's address.
    pub fn finish(&self) -> Option<usize> {
        world(|world| {
            let number = world.sent.pop_front()?;
            let first = world.address(number);
            let mut next = first;
            while let Some(number) = world.number(next) {
                let mbuf = &mut world.slots[number].mbuf;
                let following = mbuf.next.addr();
                (mbuf.next, mbuf.nb_segs) = (std::ptr::null_mut(), 1);
                world.put(next);
                next = following;
            }
            Some(first)
        })
    }

    /// The driver frees an mbuf, whether it has it or not.
    pub fn free(&self, address: usize) {
        world(|world| world.put(address));
    }

    /// The driver gives all back that it has.
    pub fn free_all(&self) {
        world(|world| {
            world.sent.clear();
            (0..world.slots.len()).for_each(|number| {
                if world.states[number] != states::FREE {
                    world.put(world.address(number));
                }
            });
        });
    }

    /// Mbufs of the packets that are to be sent: bytes in all and segments of each.
    #[must_use]
    pub fn to_send(&self) -> Vec<(u32, u16)> {
        world(|world| {
            let of = |&number: &usize| {
                let mbuf = &world.slots[number].mbuf;
                (mbuf.pkt_len, mbuf.nb_segs)
            };
            world.sent.iter().map(of).collect()
        })
    }

    /// `send` takes at most so many packets in a call; with a number beyond what it is given it lies.
    pub fn set_takes(&self, packets: Option<u16>) {
        world(|world| world.takes = packets);
    }

    /// `receive` says that it wrote so many mbufs, once.
    pub fn set_says(&self, mbufs: u16) {
        world(|world| world.says = Some(mbufs));
    }

    /// Something happens to the device (`raw::events`).
    pub fn happen(&self, event: u32) {
        world(|world| *world.events |= event);
    }

    /// From now on it takes no packet that it would have to cut.
    pub fn refuse_joined(&self) {
        world(|world| world.refuses_joined = true);
    }

    /// Of the packets that are to be sent: offload flags, lengths of headers and segments
    /// (`rte_mbuf.tx_offload`), and bytes.
    #[must_use]
    pub fn requests(&self) -> Vec<(u64, u64, Vec<u8>)> {
        world(|world| world.sent.iter().map(|&number| world.request(number)).collect())
    }

    /// From now on the device does not start.
    pub fn fail_to_start(&self) {
        world(|world| world.starts_fail = true);
    }

    /// Times that it was reset.
    #[must_use]
    pub fn resets(&self) -> u32 {
        world(|world| world.resets)
    }

    /// Sessions for cryptography that the device has.
    #[must_use]
    pub fn sessions(&self) -> usize {
        played(|played| played.sessions.iter().filter(|is_there| **is_there).count())
    }

    /// So many sessions that are to end do not.
    pub fn fail_to_end(&self, sessions: u32) {
        played(|played| played.failing_ends = sessions);
    }

    /// Whether the device refuses packets that it is to seal.
    pub fn refuse_to_seal(&self, refuses: bool) {
        played(|played| played.refuses_packets = refuses);
    }

    /// Mbufs that are free.
    #[must_use]
    pub fn free_mbufs(&self) -> usize {
        world(|world| world.free.len())
    }
}

static TABLE: Table = Table {
    version: VERSION,
    size: TABLE_BYTES,
    dpdk_version: c"DPDK played".as_ptr(),
    eal_start,
    uses_virtual_addresses: yes,
    thread_register: none,
    thread_unregister: nothing,
    said,
    memory_register,
    memory_unregister,
    physical_address,
    memory_map,
    pool_make,
    pool_end,
    pool_get,
    pool_put,
    device_find,
    device_info,
    device_start,
    device_stop: of_port,
    device_reset,
    device_close: of_port,
    device_statistics,
    device_events,
    receive,
    send,
    prepare,
    reap,
};

unsafe extern "C" fn eal_start(_: i32, _: *mut *mut c_char) -> i32 {
    0
}

unsafe extern "C" fn yes() -> i32 {
    1
}

unsafe extern "C" fn none() -> i32 {
    0
}

unsafe extern "C" fn nothing() {}

unsafe extern "C" fn said(_: *mut u8, _: u32) -> i32 {
    0
}

unsafe extern "C" fn memory_register(_: *mut u8, _: u64, _: u64) -> i32 {
    0
}

unsafe extern "C" fn memory_unregister(_: *mut u8, _: u64) -> i32 {
    0
}

unsafe extern "C" fn physical_address(_: *const u8) -> u64 {
    u64::MAX
}

unsafe extern "C" fn memory_map(_: u16, _: *mut u8, _: u64, _: u64) -> i32 {
    0
}

unsafe extern "C" fn pool_make(
    _: *const c_char,
    count: u32,
    room: u32,
    inside: u32,
    made: *mut MadePool,
) -> i32 {
    let told = count;
    let Some(count) = usize::try_from(count).ok().filter(|_| inside == 0) else { return REFUSED };
    world(|world| {
        let room = u16::try_from(room).unwrap_or(u16::MAX);
        world.slots = std::iter::repeat_with(|| Slot { mbuf: empty(room) }).take(count).collect();
        world.states = vec![states::FREE; count];
        world.free = (0..count).rev().collect();
        let first = world.slots.first_mut().map_or(std::ptr::null_mut(), |slot| &raw mut slot.mbuf);
        let made_pool = MadePool {
            handle: first.cast(),
            states: world.states.as_mut_ptr(),
            first: first.expose_provenance() as u64,
            stride: STRIDE_TOLD,
            count: told,
            refused: (&raw mut *world.refused).expose_provenance() as u64,
        };
        // SAFETY: the caller has a place there.
        unsafe { made.write(made_pool) };
        0
    })
}

fn empty(room: u16) -> Mbuf {
    Mbuf {
        buf_addr: std::ptr::null_mut(),
        buf_iova: 0,
        data_off: DPDK_HEADROOM,
        refcnt: 1,
        nb_segs: 1,
        port: 0,
        ol_flags: 0,
        packet_type: 0,
        pkt_len: 0,
        data_len: 0,
        vlan_tci: 0,
        hash: [0; 2],
        vlan_tci_outer: 0,
        buf_len: room,
        pool: std::ptr::null_mut(),
        next: std::ptr::null_mut(),
        tx_offload: 0,
        rest: [0; 6],
    }
}

unsafe extern "C" fn pool_end(_: *mut c_void) {}

unsafe extern "C" fn pool_get(_: *mut c_void, mbufs: *mut *mut c_void, count: u32) -> i32 {
    world(|world| {
        let mut got = 0;
        for nth in 0..count as usize {
            let Some(number) = world.get() else { break };
            let address = std::ptr::with_exposed_provenance_mut(world.address(number));
            // SAFETY: the caller has room for `count`.
            unsafe { mbufs.add(nth).write(address) };
            got += 1;
        }
        got
    })
}

unsafe extern "C" fn pool_put(_: *mut c_void, mbufs: *const *mut c_void, count: u32) {
    // SAFETY: the caller has as many there.
    let mbufs = unsafe { std::slice::from_raw_parts(mbufs, count as usize) };
    world(|world| mbufs.iter().for_each(|mbuf| world.put(mbuf.addr())));
}

unsafe extern "C" fn device_find(_: *const c_char, port: *mut u16) -> i32 {
    // SAFETY: the caller has a place there.
    unsafe { port.write(0) };
    0
}

unsafe extern "C" fn device_info(_: u16, info: *mut Info) -> i32 {
    let mut its = Info {
        mac: [2, 0, 0, 0, 0, 1],
        mtu: 1500,
        max_mtu: 9000,
        max_rx_queues: 4,
        max_tx_queues: 4,
        offers: world(|world| world.offers),
        spreads: u32::MAX,
        ..Info::EMPTY
    };
    its.name[..6].copy_from_slice(b"played");
    its.driver[..6].copy_from_slice(b"played");
    // SAFETY: the caller has a place there.
    unsafe { info.write(its) };
    0
}

unsafe extern "C" fn device_start(_: u16, config: *mut Config) -> i32 {
    // SAFETY: the caller has a configuration there.
    let config = unsafe { &mut *config };
    config.mtu = if config.mtu == 0 { 1500 } else { config.mtu };
    if world(|world| world.starts_fail) { REFUSED } else { 0 }
}

unsafe extern "C" fn of_port(_: u16) -> i32 {
    0
}

unsafe extern "C" fn device_reset(_: u16) -> i32 {
    world(|world| world.resets += 1);
    0
}

unsafe extern "C" fn device_statistics(_: u16, statistics: *mut Statistics) -> i32 {
    // SAFETY: the caller has a place there.
    unsafe { statistics.write(Statistics::default()) };
    0
}

unsafe extern "C" fn device_events(_: u16) -> *mut u32 {
    world(|world| &raw mut *world.events)
}

unsafe extern "C" fn receive(_: u16, queue: u16, mbufs: *mut *mut c_void, count: u16) -> u16 {
    if queue != 0 {
        return 0;
    }
    world(|world| {
        let mut written = 0;
        while written < count {
            let Some(address) = world.received.pop_front() else { break };
            let handle = std::ptr::with_exposed_provenance_mut(address);
            // SAFETY: the caller has room for `count`.
            unsafe { mbufs.add(usize::from(written)).write(handle) };
            written += 1;
        }
        world.says.take().unwrap_or(written)
    })
}

unsafe extern "C" fn send(_: u16, _: u16, mbufs: *mut *mut c_void, count: u16) -> u16 {
    world(|world| {
        let takes = world.takes.unwrap_or(count);
        for nth in 0..takes.min(count) {
            // SAFETY: the caller has `count` there.
            let address = unsafe { *mbufs.add(usize::from(nth)) }.addr();
            let number = world.number(address);
            world.sent.extend(number);
        }
        takes
    })
}

unsafe extern "C" fn prepare(_: u16, _: u16, _: *mut *mut c_void, count: u16) -> u16 {
    world(|world| if world.refuses_joined { 0 } else { count })
}

unsafe extern "C" fn reap(_: u16, _: u16) -> i32 {
    0
}
