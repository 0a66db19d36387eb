//! An opened device: the plugin's functions, as safe ones where their preconditions can be kept here.

use crate::place::Beside;
use crate::raw::{self, Done, Open, Opened, Operation, Table, Work};
use std::ffi::{CString, c_void};
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};
use testudo_packet::Region;
use testudo_port_dpdk::{Eal, Errno, Plugin, Registered};

/// What a device is opened with.
pub(crate) struct Wanted {
    pub device: CString,
    pub queue_pairs: u16,
    pub slots_per_pair: u16,
    pub sessions: u32,
}

/// Held while a device comes or goes: DPDK numbers devices again, and drivers name what they have by number.
static DEVICES: Mutex<()> = Mutex::new(());

/// A session of this device.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Session(NonNull<c_void>);

// SAFETY: a session is of one device, which one thread uses at a time.
unsafe impl Send for Session {}

/// A device, with its slots.
pub(crate) struct Device {
    table: Table,
    opened: Opened,
    pub(crate) queue_pairs: u16,
    /// Memory that the device may reach; after it, the device itself is gone.
    mapped: Vec<Registered>,
    /// A device is used by one thread at a time.
    _one_thread: PhantomData<*mut ()>,
}

// SAFETY: DPDK wants one thread at a time for a queue pair, not always the same one; `&mut self` is one.
unsafe impl Send for Device {}

/// The plugin's functions for cryptodevs; in words, what is wrong with a plugin without them.
pub(crate) fn table(plugin: &Plugin) -> Result<Table, String> {
    // SAFETY: the plugin declares this symbol so, in all versions of this interface.
    let symbol = unsafe { plugin.symbol::<raw::Symbol>(raw::SYMBOL) };
    let old = "libtestudo-dpdk.so is of another version of Testudo: \
               build it again with `scripts/shim.sh FOLDER dpdk`";
    let symbol = symbol.ok_or(old)?;
    // SAFETY: it takes nothing and returns a constant address.
    let table = unsafe { symbol() };
    // SAFETY: in all versions the table stays until the process ends, and begins with these two.
    let (version, size) = unsafe { ((*table).version, (*table).size) };
    if version != raw::VERSION || usize::try_from(size) != Ok(size_of::<Table>()) {
        return Err(old.to_owned());
    }
    // SAFETY: it has this version's structure.
    Ok(unsafe { *table })
}

fn outcome(code: i32) -> Result<(), Errno> {
    if code < 0 { Err(Errno(code.checked_neg().unwrap_or(0))) } else { Ok(()) }
}

impl Device {
    pub(crate) fn open(table: Table, wanted: &Wanted) -> Result<Self, Errno> {
        let open = Open {
            device: wanted.device.as_ptr(),
            queue_pairs: wanted.queue_pairs,
            slots_per_pair: wanted.slots_per_pair,
            sessions: wanted.sessions,
        };
        let mut opened = Opened::EMPTY;
        let _alone = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: a text with a zero at its end, and a place for the result.
        outcome(unsafe { (table.open)(&raw const open, &raw mut opened) })?;
        let queue_pairs = wanted.queue_pairs;
        Ok(Self { table, opened, queue_pairs, mapped: Vec::new(), _one_thread: PhantomData })
    }

    /// Its name: `crypto_aesni_mb0`.
    pub(crate) fn name(&self) -> String {
        text(&self.opened.name)
    }

    /// Its driver's name.
    pub(crate) fn driver(&self) -> String {
        text(&self.opened.driver)
    }

    pub(crate) fn slots(&self) -> u32 {
        self.opened.slots
    }

    pub(crate) fn sessions(&self) -> u32 {
        self.opened.sessions
    }

    /// Whether it is software, which reads and writes wherever this process may.
    pub(crate) fn is_software(&self) -> bool {
        self.opened.is_software != 0
    }

    /// Whether it does this work.
    pub(crate) fn does(&self, work: &Work) -> bool {
        // SAFETY: the handle is open; the keys' pointers are not read.
        unsafe { (self.table.does)(self.opened.handle, work) == 1 }
    }

    /// A session for the work, whose keys are copied.
    ///
    /// # Safety
    /// The pointers of `work` are to as many bytes of keys as it says.
    pub(crate) unsafe fn session(&mut self, work: &Work) -> Result<Session, Errno> {
        let mut session = std::ptr::null_mut();
        // SAFETY: as our caller says; the handle is open.
        outcome(unsafe { (self.table.session_make)(self.opened.handle, work, &raw mut session) })?;
        NonNull::new(session).map(Session).ok_or(Errno(0))
    }

    /// Ends a session, which no operation in the device has any more.
    pub(crate) fn end(&mut self, session: Session) {
        // SAFETY: it was made by this device, and is given up here.
        unsafe { (self.table.session_end)(self.opened.handle, session.0.as_ptr()) }
    }

    /// The pointer of a session, for an operation.
    pub(crate) fn pointer(session: &Session) -> *mut c_void {
        session.0.as_ptr()
    }

    /// The bytes beside a slot, which the device does not have now.
    pub(crate) fn beside(&mut self, slot: u32) -> Beside<'_> {
        assert!(slot < self.opened.slots, "there is no slot {slot}");
        let at = slot as usize;
        // SAFETY: the device was opened with so many bytes for each slot, and `slot` is one of them. No other
        // reference to them exists while this borrows the device; the device itself has them only while the
        // slot is handed over, which the engine's table of slots keeps apart.
        unsafe {
            Beside {
                icv: &mut *self.opened.icvs.add(at * raw::SLOT_ICV_BYTES).cast(),
                copy: &mut *self.opened.copies.add(at * raw::SLOT_COPY_BYTES).cast(),
            }
        }
    }

    /// Hands operations over, and says how many from the front were taken: never more than there are.
    ///
    /// # Safety
    /// Each operation's slot is free and below [`slots`](Self::slots); its session is one of this device; its
    /// pointers are to as many bytes as it says, which nobody reads, writes or frees until
    /// [`poll`](Self::poll) has given the slot back, or the device is dropped.
    pub(crate) unsafe fn submit(&mut self, pair: u16, operations: &[Operation]) -> usize {
        let count = u16::try_from(operations.len()).unwrap_or(0);
        // SAFETY: as our caller says; the device has this queue pair.
        let taken = unsafe { (self.table.submit)(self.opened.handle, pair, operations.as_ptr(), count) };
        usize::from(taken.min(count))
    }

    /// What has ended, up to as many as there is room for.
    pub(crate) fn poll(&mut self, pair: u16, done: &mut [Done]) -> usize {
        let count = u16::try_from(done.len()).unwrap_or(u16::MAX);
        // SAFETY: room for as many as are asked for; the device has this queue pair.
        let ended = unsafe { (self.table.poll)(self.opened.handle, pair, done.as_mut_ptr(), count) };
        usize::from(ended.min(count))
    }

    /// Makes a region known to DPDK and to the device, until the device is dropped.
    pub(crate) fn learn(&mut self, eal: &Eal, region: &Region) -> Result<(), Errno> {
        let registered = eal.register(region)?;
        // SAFETY: the region's frames stay as long as one of its buffers is in a slot, and the device writes
        // to what an operation names alone. It is unmapped before the device is closed.
        outcome(unsafe { (self.table.map)(self.opened.handle, registered.start, registered.bytes) })?;
        self.mapped.push(registered);
        Ok(())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        for memory in &self.mapped {
            // SAFETY: it was mapped by `learn`. A device that cannot unmap it is closed next.
            let _unsupported = unsafe { (self.table.unmap)(self.opened.handle, memory.start, memory.bytes) };
        }
        let _alone = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the handle is open, and not used again.
        unsafe { (self.table.close)(self.opened.handle) }
    }
}

/// The text before the first zero.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
