//! Owns what the library's functions need: the manager, keys in the library's form, contexts. All methods are
//! safe.

use crate::chained::{Chained, ChainedFunctions};
use crate::gmac::Gmac;
use crate::in_parts::{GcmInParts, InParts};
use crate::library::Library;
use crate::queue::QueueFunctions;
use crate::raw::{
    ChaChaContext, ChaChaFinalize, ChaChaInit, ChaChaUpdate, ChainedOffsets, FEATURE_VAES, GcmContext,
    GcmFinalize, GcmInit, GcmKeyData, GcmPartsOffsets, GcmPre, GcmRun, GcmUpdate, GmacFinalize, GmacInit,
    GmacOffsets, GmacUpdate, ImbMgr, Layout,
};
use std::ffi::{c_uint, c_void};
use std::ptr::NonNull;
use subtle::ConstantTimeEq;
use testudo_crypto::{AesKey, Direction};
use zeroize::Zeroize;

/// Bytes of an AEAD's ICV, and of the longest of all.
pub(crate) const ICV_BYTES: usize = 16;

/// An integrity check value.
pub(crate) type Icv = [u8; ICV_BYTES];

/// A key of AES-GCM or AES-GMAC, expanded by the library; zeroed when dropped.
pub(crate) struct GcmKey(pub(crate) Box<GcmKeyData>);

impl Drop for GcmKey {
    fn drop(&mut self) {
        self.0.0.zeroize();
    }
}

/// A ChaCha20-Poly1305 key, which needs no expansion; zeroed when dropped. Boxed, so that it never moves in
/// memory.
pub(crate) struct ChaChaKey(Box<[u8; 32]>);

impl ChaChaKey {
    /// A copy of `key`; `None` if it is not 32 bytes long.
    pub(crate) fn new(key: &[u8]) -> Option<Self> {
        let mut boxed = Box::new([0; 32]);
        (key.len() == boxed.len()).then(|| boxed.copy_from_slice(key))?;
        Some(Self(boxed))
    }
}

impl Drop for ChaChaKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// The functions that the manager offered for this machine's instructions.
struct Functions {
    /// For each length of key, as below.
    gcm: [GcmFunctions; 3],
    gmac: Option<[GmacFunctions; 3]>,
    gcm_parts: Option<[GcmPartsFunctions; 3]>,
    chacha_init: ChaChaInit,
    chacha_enc: ChaChaUpdate,
    chacha_dec: ChaChaUpdate,
    chacha_finalize: ChaChaFinalize,
}

/// AES-GCM for one length of key.
#[derive(Clone, Copy)]
struct GcmFunctions {
    expand: GcmPre,
    seal: GcmRun,
    open: GcmRun,
}

/// AES-GMAC for one length of key.
#[derive(Clone, Copy)]
pub(crate) struct GmacFunctions {
    pub(crate) init: GmacInit,
    pub(crate) update: GmacUpdate,
    pub(crate) finalize: GmacFinalize,
}

/// AES-GCM over texts in parts, for one length of key.
#[derive(Clone, Copy)]
pub(crate) struct GcmPartsFunctions {
    pub(crate) init: GcmInit,
    pub(crate) seal: (GcmUpdate, GcmFinalize),
    pub(crate) open: (GcmUpdate, GcmFinalize),
}

/// One multi-buffer manager, and the contexts for its direct calls.
pub(crate) struct Manager {
    manager: NonNull<ImbMgr>,
    functions: Functions,
    gcm_context: Box<GcmContext>,
    chacha_context: Box<ChaChaContext>,
    /// The suites that are no AEADs; `None` where the library's version has jobs of an unknown layout.
    pub(crate) chained: Option<Chained>,
    /// Last: the code that everything above points to.
    library: Library,
}

// SAFETY: `NonNull` and the addresses in jobs that have ended, which are never read again, keep the compiler
// from deriving this. The manager is heap memory that only this value points to, is bound to no thread, and
// is used through `&self` and `&mut self` only; the library's global state is an error number. A
// reference-counted or locked wrapper would not make this safer: nothing is shared.
unsafe impl Send for Manager {}

impl Manager {
    /// A manager of `library`, set up for the best instructions that this CPU has.
    ///
    /// # Errors
    /// A text for people: no memory, the CPU lacks something, a function is missing, the library's self-test
    /// failed.
    pub(crate) fn new(library: Library) -> Result<Self, String> {
        // SAFETY: 0 asks for every CPU feature; the result is checked for null below.
        let manager = unsafe { (library.alloc_mgr)(0) };
        let manager = NonNull::new(manager).ok_or("the library could not allocate a manager")?;
        match Self::set_up(&library, manager) {
            Ok((functions, chained)) => Ok(Self {
                manager,
                functions,
                chained: chained.map(Chained::new),
                gcm_context: Box::new(GcmContext([0; _])),
                chacha_context: Box::new(ChaChaContext([0; _])),
                library,
            }),
            Err(reason) => {
                // SAFETY: the manager came from this library, and nothing else holds it.
                unsafe { (library.free_mgr)(manager.as_ptr()) };
                Err(reason)
            }
        }
    }

    /// Initialises the manager and reads what it offers.
    fn set_up(
        library: &Library,
        manager: NonNull<ImbMgr>,
    ) -> Result<(Functions, Option<ChainedFunctions>), String> {
        let mut architecture: c_uint = 0;
        // SAFETY: the manager came from this library's allocator; the second argument may be written to.
        unsafe { (library.init_mgr_auto)(manager.as_ptr(), &raw mut architecture) };
        // SAFETY: the manager is alive.
        unsafe { library.check(manager.as_ptr()) }?;
        let layout = library.layout;
        // SAFETY: the layout is that of the library's version; features is a 64-bit number there.
        let features = unsafe { field::<u64>(manager, layout.offsets.features) };
        let (tests, passed) = (1 << layout.self_test_bit, 2 << layout.self_test_bit);
        if features & tests != 0 && features & passed == 0 {
            return Err("the library's own self-test failed on this CPU".to_owned());
        }
        // SAFETY: the manager was initialised, and the offsets are those of the library's version.
        unsafe {
            let chained = layout.chained.as_ref().map(|offsets| ChainedFunctions::read(manager, offsets));
            Ok((Functions::read(manager, layout)?, chained.transpose()?))
        }
    }

    /// Fails if the library reports an error.
    ///
    /// # Errors
    /// The library's text.
    pub(crate) fn check(&self) -> Result<(), String> {
        // SAFETY: the manager came from this library and lives as long as `self`.
        unsafe { self.library.check(self.manager.as_ptr()) }
    }

    /// The instructions in use, `VAES-AVX512`.
    pub(crate) fn architecture(&self) -> String {
        let name = self.used_architecture();
        // SAFETY: the layout is that of the library's version; the manager lives as long as `self`.
        let features = unsafe { field::<u64>(self.manager, self.library.layout.offsets.features) };
        if features & FEATURE_VAES != 0 && name.starts_with("AVX") {
            format!("VAES-{name}")
        } else {
            name.to_owned()
        }
    }

    fn used_architecture(&self) -> &'static str {
        let layout = self.library.layout;
        // SAFETY: as above.
        let used = unsafe { field::<u32>(self.manager, layout.offsets.used_arch) };
        layout.architectures.get(used as usize).copied().unwrap_or("unknown")
    }

    /// Whether it is the library's code for AVX-512, which alone has lanes for DES.
    pub(crate) fn has_lanes_of_des(&self) -> bool {
        self.used_architecture() == "AVX512"
    }

    /// The library's version, `1.3.0`.
    pub(crate) fn version(&self) -> String {
        self.library.version()
    }

    /// Whether this version's AES-GMAC is known.
    pub(crate) fn does_gmac(&self) -> bool {
        self.functions.gmac.is_some()
    }

    /// Whether this version's AES-GCM over texts in parts is known.
    pub(crate) fn does_gcm_in_parts(&self) -> bool {
        self.functions.gcm_parts.is_some()
    }

    /// Expands a key of AES-GCM or AES-GMAC.
    ///
    /// # Errors
    /// The library refused it, or did not do what it should; or the key has another length.
    pub(crate) fn expand_gcm(&mut self, length: AesKey, key: &[u8]) -> Result<GcmKey, String> {
        let GcmFunctions { expand, .. } = self.functions.gcm[length as usize];
        if key.len() != [16, 24, 32][length as usize] {
            return Err(format!("a key of {} bytes", key.len()));
        }
        let mut expanded = GcmKey(Box::new(GcmKeyData([0; _])));
        // SAFETY: `key` has the length that `expand` reads, just checked. `expanded` is aligned to 64 bytes
        // and as large as the largest version's structure (a test compares both with the header). Neither is
        // kept by the library.
        unsafe { expand(key.as_ptr().cast(), &raw mut *expanded.0) };
        self.check()?;
        // The first round key is the cipher key itself (FIPS 197 5.2): proof that the expansion took place,
        // and here.
        if expanded.0.0[..key.len()].ct_eq(key).into() {
            Ok(expanded)
        } else {
            Err("the expanded key does not begin with the key".to_owned())
        }
    }

    /// The passes for AEADs, and for the suites that are none if the library's version is known for them.
    #[inline]
    pub(crate) fn parts(&mut self) -> (Aeads<'_>, Option<Scratch<'_>>) {
        let aeads = Aeads {
            functions: &self.functions,
            gcm_context: &mut self.gcm_context,
            chacha_context: &mut self.chacha_context,
            has_refused: false,
        };
        let manager = self.manager;
        (aeads, self.chained.as_mut().map(|chained| Scratch { manager, chained }))
    }

    /// Wipes key stream and hash states of the last job.
    pub(crate) fn wipe_contexts(&mut self) {
        self.gcm_context.0.zeroize();
        self.chacha_context.0.zeroize();
        if let Some(chained) = &mut self.chained {
            chained.wipe();
        }
    }
}

/// The AEADs of a manager.
pub(crate) struct Aeads<'a> {
    functions: &'a Functions,
    gcm_context: &'a mut GcmContext,
    chacha_context: &'a mut ChaChaContext,
    /// Whether any job was refused: it may be over a chain.
    pub(crate) has_refused: bool,
}

impl Aeads<'_> {
    /// The pass for AES-GCM with keys of this length.
    pub(crate) fn gcm(&mut self, length: AesKey) -> GcmPass<'_> {
        let GcmFunctions { seal, open, .. } = self.functions.gcm[length as usize];
        GcmPass { seal, open, context: self.gcm_context }
    }

    /// AES-GMAC with keys of this length; `None` if the library's is not known.
    pub(crate) fn gmac(&mut self, length: AesKey) -> Option<Gmac<'_>> {
        let functions = self.functions.gmac.as_ref()?[length as usize];
        Some(Gmac::new(functions, self.gcm_context))
    }

    /// AES-GCM over texts in parts with keys of this length; `None` if the library's is not known.
    pub(crate) fn gcm_in_parts(&mut self, length: AesKey) -> Option<GcmInParts<'_>> {
        let functions = self.functions.gcm_parts.as_ref()?[length as usize];
        Some(GcmInParts { functions, context: self.gcm_context })
    }

    /// The pass for ChaCha20-Poly1305.
    pub(crate) fn chacha(&mut self) -> ChaChaPass<'_> {
        ChaChaPass { functions: self.functions, context: self.chacha_context }
    }
}

/// A manager for bursts, borrowed as long as this lives.
pub(crate) struct Scratch<'a> {
    /// Alive, and the one that the functions of `chained` were read from.
    manager: NonNull<ImbMgr>,
    pub(crate) chained: &'a mut Chained,
}

impl Scratch<'_> {
    /// The manager itself, for the functions that it offered.
    pub(crate) fn pointer(&self) -> *mut ImbMgr {
        self.manager.as_ptr()
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.wipe_contexts();
        // SAFETY: the manager came from this library, which is still mapped (fields drop after this), and is
        // freed only here.
        unsafe { (self.library.free_mgr)(self.manager.as_ptr()) };
    }
}

/// An AEAD over one text in place, under a key of the kind that it takes.
pub(crate) trait Pass {
    /// Its keys.
    type Key;

    /// Encrypts `text` and writes the ICV, of 16 bytes or fewer.
    fn seal(&mut self, key: &Self::Key, nonce: &[u8; 12], aad: &[u8], text: &mut [u8], icv: &mut [u8]);

    /// Decrypts `text` and writes the ICV that it should have had. The caller compares it.
    fn decrypt(&mut self, key: &Self::Key, nonce: &[u8; 12], aad: &[u8], text: &mut [u8], icv: &mut [u8]);
}

/// Compares in constant time.
#[inline]
pub(crate) fn same_icv<const N: usize>(a: &[u8; N], b: &[u8; N]) -> bool {
    match (a.first_chunk(), b.first_chunk()) {
        (Some(a), Some(b)) if N == ICV_BYTES => {
            u128::from_ne_bytes(*a).ct_eq(&u128::from_ne_bytes(*b)).into()
        }
        _ => a.ct_eq(b).into(),
    }
}

/// AES-GCM, for one run of jobs.
pub(crate) struct GcmPass<'a> {
    seal: GcmRun,
    open: GcmRun,
    context: &'a mut GcmContext,
}

impl GcmPass<'_> {
    #[inline]
    fn call(
        &mut self,
        run: GcmRun,
        key: &GcmKey,
        nonce: &[u8; 12],
        aad: &[u8],
        text: &mut [u8],
        icv: &mut [u8],
    ) {
        let (data, len) = (text.as_mut_ptr(), text.len() as u64);
        // SAFETY: `run` is a GCM function of this manager's library, which stays mapped while `self` borrows
        // the manager. It reads an expanded key, 12 bytes of nonce, `aad`, and `len` bytes; it writes the
        // context (larger than the header's structure), `len` bytes in place (the library allows out = in)
        // and as much of the ICV as there is room for. Every pointer is from a reference that covers this and
        // lives through the call; nothing is kept. No safe binding exists.
        unsafe {
            run(
                &raw const *key.0,
                &raw mut *self.context,
                data,
                data,
                len,
                nonce.as_ptr(),
                aad.as_ptr(),
                aad.len() as u64,
                icv.as_mut_ptr(),
                icv.len() as u64,
            );
        }
    }
}

impl Pass for GcmPass<'_> {
    type Key = GcmKey;

    fn seal(&mut self, key: &GcmKey, nonce: &[u8; 12], aad: &[u8], text: &mut [u8], icv: &mut [u8]) {
        self.call(self.seal, key, nonce, aad, text, icv);
    }

    fn decrypt(&mut self, key: &GcmKey, nonce: &[u8; 12], aad: &[u8], text: &mut [u8], icv: &mut [u8]) {
        self.call(self.open, key, nonce, aad, text, icv);
    }
}

/// ChaCha20-Poly1305, for one run of jobs.
pub(crate) struct ChaChaPass<'a> {
    functions: &'a Functions,
    context: &'a mut ChaChaContext,
}

impl InParts for ChaChaPass<'_> {
    type Key = ChaChaKey;

    fn begin(&mut self, key: &ChaChaKey, nonce: &[u8; 12], aad: &[u8]) {
        let key: *const c_void = key.0.as_ptr().cast();
        let (nonce, context) = (nonce.as_ptr().cast(), &raw mut *self.context);
        // SAFETY: as in `call`.
        unsafe { (self.functions.chacha_init)(key, context, nonce, aad.as_ptr().cast(), aad.len() as u64) };
    }

    fn update(&mut self, key: &ChaChaKey, direction: Direction, text: &mut [u8]) {
        let update = match direction {
            Direction::Seal => self.functions.chacha_enc,
            Direction::Open => self.functions.chacha_dec,
        };
        let data: *mut c_void = text.as_mut_ptr().cast();
        // SAFETY: as in `call`; a part may have any length.
        unsafe { update(key.0.as_ptr().cast(), &raw mut *self.context, data, data, text.len() as u64) };
    }

    fn end(&mut self, _: &ChaChaKey, _: Direction, icv: &mut Icv) {
        // SAFETY: as in `call`.
        unsafe {
            (self.functions.chacha_finalize)(
                &raw mut *self.context,
                icv.as_mut_ptr().cast(),
                icv.len() as u64,
            );
        }
    }
}

impl ChaChaPass<'_> {
    #[inline]
    fn call(
        &mut self,
        update: ChaChaUpdate,
        key: &ChaChaKey,
        nonce: &[u8; 12],
        aad: &[u8],
        text: &mut [u8],
        icv: &mut [u8],
    ) {
        let key: *const c_void = key.0.as_ptr().cast();
        let data: *mut c_void = text.as_mut_ptr().cast();
        let context = &raw mut *self.context;
        // SAFETY: the functions belong to this manager's library, which stays mapped while `self` borrows the
        // manager. They read 32 bytes of key, 12 of nonce and `aad`, process `text` in place (out = in is
        // allowed), write an ICV of the given length and keep their state in the context, which is larger
        // than the header's structure. Every pointer is from a reference that lives through the calls;
        // nothing is kept. No safe binding exists.
        unsafe {
            (self.functions.chacha_init)(
                key,
                context,
                nonce.as_ptr().cast(),
                aad.as_ptr().cast(),
                aad.len() as u64,
            );
            update(key, context, data, data, text.len() as u64);
            (self.functions.chacha_finalize)(context, icv.as_mut_ptr().cast(), icv.len() as u64);
        }
    }
}

impl Pass for ChaChaPass<'_> {
    type Key = ChaChaKey;

    fn seal(&mut self, key: &ChaChaKey, nonce: &[u8; 12], aad: &[u8], text: &mut [u8], icv: &mut [u8]) {
        self.call(self.functions.chacha_enc, key, nonce, aad, text, icv);
    }

    fn decrypt(&mut self, key: &ChaChaKey, nonce: &[u8; 12], aad: &[u8], text: &mut [u8], icv: &mut [u8]) {
        self.call(self.functions.chacha_dec, key, nonce, aad, text, icv);
    }
}

impl Functions {
    /// Reads the pointers from an initialised manager.
    ///
    /// # Safety
    /// `layout` is that of the version of the library that made `manager`.
    unsafe fn read(manager: NonNull<ImbMgr>, layout: &Layout) -> Result<Self, String> {
        let o = &layout.offsets;
        // SAFETY: as below.
        let gcm = |n: usize| unsafe {
            Ok::<_, String>(GcmFunctions {
                expand: function(manager, o.gcm_pre[n])?,
                seal: function(manager, o.gcm_enc[n])?,
                open: function(manager, o.gcm_dec[n])?,
            })
        };
        // SAFETY: as below.
        let gmac = |o: &GmacOffsets, n: usize| unsafe {
            Ok::<_, String>(GmacFunctions {
                init: function(manager, o.init[n])?,
                update: function(manager, o.update[n])?,
                finalize: function(manager, o.finalize[n])?,
            })
        };
        // SAFETY: as below.
        let parts = |o: &GcmPartsOffsets, n: usize| unsafe {
            Ok::<_, String>(GcmPartsFunctions {
                init: function(manager, o.init[n])?,
                seal: (function(manager, o.enc_update[n])?, function(manager, o.enc_finalize[n])?),
                open: (function(manager, o.dec_update[n])?, function(manager, o.dec_finalize[n])?),
            })
        };
        let all_parts = |o| Ok::<_, String>([parts(o, 0)?, parts(o, 1)?, parts(o, 2)?]);
        let gmacs = |o| Ok::<_, String>([gmac(o, 0)?, gmac(o, 1)?, gmac(o, 2)?]);
        // SAFETY: each offset is that of a pointer to a function of the signature that the field's type says
        // (our precondition, and the signatures of the headers read for `raw`).
        unsafe {
            Ok(Self {
                gcm: [gcm(0)?, gcm(1)?, gcm(2)?],
                gmac: layout.gmac.as_ref().map(gmacs).transpose()?,
                gcm_parts: layout.gcm_parts.as_ref().map(all_parts).transpose()?,
                chacha_init: function(manager, o.chacha20_poly1305_init)?,
                chacha_enc: function(manager, o.chacha20_poly1305_enc_update)?,
                chacha_dec: function(manager, o.chacha20_poly1305_dec_update)?,
                chacha_finalize: function(manager, o.chacha20_poly1305_finalize)?,
            })
        }
    }
}

impl ChainedFunctions {
    /// Reads the pointers from an initialised manager.
    ///
    /// # Safety
    /// `o` are the offsets of the version of the library that made `manager`.
    unsafe fn read(manager: NonNull<ImbMgr>, o: &ChainedOffsets) -> Result<Self, String> {
        // SAFETY: as in `Functions::read`.
        unsafe {
            Ok(Self {
                expand_aes: [
                    function(manager, o.keyexp[0])?,
                    function(manager, o.keyexp[1])?,
                    function(manager, o.keyexp[2])?,
                ],
                expand_des: function(manager, o.des_key_sched)?,
                expand_xcbc: function(manager, o.xcbc_keyexp)?,
                cmac_subkeys: function(manager, o.cmac_subkey_gen_128)?,
                md5_block: function(manager, o.md5_one_block)?,
                sha1_block: function(manager, o.sha1_one_block)?,
                sha256_block: function(manager, o.sha256_one_block)?,
                sha384_block: function(manager, o.sha384_one_block)?,
                sha512_block: function(manager, o.sha512_one_block)?,
                cipher: function(manager, o.submit_cipher_burst_nocheck)?,
                hash: function(manager, o.submit_hash_burst_nocheck)?,
                queue: QueueFunctions {
                    get_next: function(manager, o.get_next_job)?,
                    submit: function(manager, o.submit_job_nocheck)?,
                    get_completed: function(manager, o.get_completed_job)?,
                    flush: function(manager, o.flush_job)?,
                    size: function(manager, o.queue_size)?,
                },
            })
        }
    }
}

/// Reads a function pointer from the manager.
///
/// # Safety
/// At `offset` is a pointer to a function of signature `F`, or null.
unsafe fn function<F: Copy>(manager: NonNull<ImbMgr>, offset: usize) -> Result<F, String> {
    const { assert!(size_of::<F>() == size_of::<*const c_void>()) };
    // SAFETY: a pointer is there (our precondition).
    let pointer = unsafe { field::<*const c_void>(manager, offset) };
    if pointer.is_null() {
        return Err(format!(
            "the manager offers no function at offset {offset}; the CPU may lack AES instructions"
        ));
    }
    // SAFETY: not null, of the same size (asserted above), and a function of signature `F` (our
    // precondition).
    Ok(unsafe { std::mem::transmute_copy::<*const c_void, F>(&pointer) })
}

/// Reads a member of the manager.
///
/// # Safety
/// A `T` is at `offset` in the manager, which is alive and initialised.
unsafe fn field<T: Copy>(manager: NonNull<ImbMgr>, offset: usize) -> T {
    // SAFETY: inside the manager's allocation and a valid `T` (our precondition). An unaligned read needs
    // nothing more.
    unsafe { manager.as_ptr().cast::<u8>().add(offset).cast::<T>().read_unaligned() }
}
