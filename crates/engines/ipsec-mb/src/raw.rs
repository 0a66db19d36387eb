//! The library's ABI, per version: symbols, offsets, structures. Nothing here is safe to use by itself.
//!
//! Only `alloc_mb_mgr` and a few others are exported symbols; the cryptographic functions are pointers inside
//! the manager (`IMB_MGR`), at offsets that depend on the version. `libIPSec_MB.so.1` names several versions
//! whose structures differ, so the numeric version decides and not the file's name.
//!
//! The offsets were computed with a C compiler from `intel-ipsec-mb.h` of 1.3.0, 1.5.0, 2.0.0 and 2.0.2. The
//! pointers used here precede the first member that ever changed size (the ring of `IMB_JOB`), and came out
//! equal; what differs is the size of a GCM key (1,024 bytes in 1.3, 1,280 since), the numbers of the
//! architectures and the self-test's feature bits. Offsets for AES-GCM with keys of 192 bits come from 1.3
//! alone: in all of them just one pointer is between the functions for 128 and for 256 bits. All others are
//! of 1.3 alone, too, and used with it alone.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// The names under which the dynamic linker may know the library, newest first.
pub(crate) const SONAMES: &[&str] = &["libIPSec_MB.so.2", "libIPSec_MB.so.1"];

/// `IMB_MGR` as an opaque type: only its address and the members at the [`Offsets`] are used.
#[repr(C)]
pub(crate) struct ImbMgr {
    _opaque: [u8; 0],
}

/// `unsigned imb_get_version(void)`: major, minor and patch, a byte each.
pub(crate) type GetVersion = unsafe extern "C" fn() -> c_uint;
/// `IMB_MGR *alloc_mb_mgr(uint64_t flags)`.
pub(crate) type AllocMgr = unsafe extern "C" fn(u64) -> *mut ImbMgr;
/// `void free_mb_mgr(IMB_MGR *)`.
pub(crate) type FreeMgr = unsafe extern "C" fn(*mut ImbMgr);
/// `void init_mb_mgr_auto(IMB_MGR *, IMB_ARCH *)`.
pub(crate) type InitMgrAuto = unsafe extern "C" fn(*mut ImbMgr, *mut c_uint);
/// `int imb_get_errno(IMB_MGR *)`.
pub(crate) type GetErrno = unsafe extern "C" fn(*mut ImbMgr) -> c_int;
/// `const char *imb_get_strerror(int)`: a static string.
pub(crate) type GetStrerror = unsafe extern "C" fn(c_int) -> *const c_char;

/// `aes_gcm_pre_t`: expands a cipher key.
pub(crate) type GcmPre = unsafe extern "C" fn(*const c_void, *mut GcmKeyData);
/// `aes_gcm_enc_dec_t`: key, context, out, in, length, IV (12 bytes), AAD, its length, tag, its length.
pub(crate) type GcmRun = unsafe extern "C" fn(
    *const GcmKeyData,
    *mut GcmContext,
    *mut u8,
    *const u8,
    u64,
    *const u8,
    *const u8,
    u64,
    *mut u8,
    u64,
);
/// `aes_gcm_init_t`: key, context, IV (12 bytes), AAD, its length.
pub(crate) type GcmInit = unsafe extern "C" fn(*const GcmKeyData, *mut GcmContext, *const u8, *const u8, u64);
/// `aes_gcm_enc_dec_update_t`: key, context, out, in, length, which may be any.
pub(crate) type GcmUpdate = unsafe extern "C" fn(*const GcmKeyData, *mut GcmContext, *mut u8, *const u8, u64);
/// `aes_gcm_enc_dec_finalize_t`: key, context, tag, its length.
pub(crate) type GcmFinalize = unsafe extern "C" fn(*const GcmKeyData, *mut GcmContext, *mut u8, u64);
/// `aes_gmac_init_t`: key, context, IV, its length.
pub(crate) type GmacInit = unsafe extern "C" fn(*const GcmKeyData, *mut GcmContext, *const u8, u64);
/// `aes_gmac_update_t`: key, context, a part of the message of any length, its length.
pub(crate) type GmacUpdate = unsafe extern "C" fn(*const GcmKeyData, *mut GcmContext, *const u8, u64);
/// `aes_gmac_finalize_t`: key, context, tag, its length.
pub(crate) type GmacFinalize = unsafe extern "C" fn(*const GcmKeyData, *mut GcmContext, *mut u8, u64);
/// `chacha_poly_init_t`: key, context, IV (12 bytes), AAD, its length.
pub(crate) type ChaChaInit =
    unsafe extern "C" fn(*const c_void, *mut ChaChaContext, *const c_void, *const c_void, u64);
/// `chacha_poly_enc_dec_update_t`: key, context, out, in, length.
pub(crate) type ChaChaUpdate =
    unsafe extern "C" fn(*const c_void, *mut ChaChaContext, *mut c_void, *const c_void, u64);
/// `chacha_poly_finalize_t`: context, tag, its length.
pub(crate) type ChaChaFinalize = unsafe extern "C" fn(*mut ChaChaContext, *mut c_void, u64);

/// `keyexp_t`: a cipher key, its round keys for encryption and for decryption.
pub(crate) type KeyExp = unsafe extern "C" fn(*const c_void, *mut c_void, *mut c_void);
/// `cmac_subkey_gen_t`: round keys, and the masks for a whole and for a padded last block.
pub(crate) type CmacSubkeys = unsafe extern "C" fn(*const c_void, *mut c_void, *mut c_void);
/// `xcbc_keyexp_t`: a key, the round keys of K1, then K2 and K3.
pub(crate) type XcbcKeyExp = unsafe extern "C" fn(*const c_void, *mut c_void, *mut c_void, *mut c_void);
/// `des_keysched_t`: 16 round keys of 8 bytes, and the key; returns 0 if it took it.
pub(crate) type DesSchedule = unsafe extern "C" fn(*mut u64, *const c_void) -> c_int;
/// `hash_one_block_t`: a block of 64 or 128 bytes, and where the digest's state after it is written.
pub(crate) type HashOneBlock = unsafe extern "C" fn(*const c_void, *mut c_void);
/// `submit_cipher_burst_t`, also of the burst without checks: jobs, their number, cipher, direction, bytes of
/// the key; returns how many were completed.
pub(crate) type CipherBurst =
    unsafe extern "C" fn(*mut ImbMgr, *mut ImbJob, u32, c_uint, c_uint, c_uint) -> u32;
/// `submit_hash_burst_t`, also of the burst without checks: jobs, their number, algorithm; returns how many
/// were completed.
pub(crate) type HashBurst = unsafe extern "C" fn(*mut ImbMgr, *mut ImbJob, u32, c_uint) -> u32;

/// `get_next_job_t`, `submit_job_t`, `get_completed_job_t`, `flush_job_t`: the next free slot of the queue;
/// the first job in it that has ended, or null.
pub(crate) type GetJob = unsafe extern "C" fn(*mut ImbMgr) -> *mut ImbJob;
/// `queue_size_t`: jobs in the queue.
pub(crate) type QueueSize = unsafe extern "C" fn(*mut ImbMgr) -> u32;

/// `IMB_JOB` of 1.3. Its union of the hash algorithms' parameters is three words here: addresses of inner and
/// outer state for HMAC, of round keys and of two masks or keys for AES-XCBC and AES-CMAC; for AES-CCM the
/// address and the length of the AAD.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ImbJob {
    pub(crate) enc_keys: *const c_void,
    pub(crate) dec_keys: *const c_void,
    pub(crate) key_len_in_bytes: u64,
    pub(crate) src: *const u8,
    pub(crate) dst: *mut u8,
    pub(crate) cipher_start_src_offset_in_bytes: u64,
    pub(crate) msg_len_to_cipher_in_bytes: u64,
    pub(crate) hash_start_src_offset_in_bytes: u64,
    pub(crate) msg_len_to_hash_in_bytes: u64,
    pub(crate) iv: *const u8,
    pub(crate) iv_len_in_bytes: u64,
    pub(crate) auth_tag_output: *mut u8,
    pub(crate) auth_tag_output_len_in_bytes: u64,
    pub(crate) algorithm_fields: [*const u8; 3],
    pub(crate) status: c_uint,
    pub(crate) cipher_mode: c_uint,
    pub(crate) cipher_direction: c_uint,
    pub(crate) hash_alg: c_uint,
    pub(crate) chain_order: c_uint,
    pub(crate) user_data: [*const c_void; 2],
    pub(crate) functions: [*const c_void; 2],
    pub(crate) sgl_state: c_uint,
    pub(crate) cipher_fields: *const c_void,
}

/// The sizes and offsets in 1.3; a test compares them with the header.
const _: () = assert!(size_of::<ImbJob>() == 200 && align_of::<ImbJob>() == 8);
const _: () = assert!(std::mem::offset_of!(ImbJob, algorithm_fields) == 104);
const _: () = assert!(std::mem::offset_of!(ImbJob, status) == 128);
const _: () = assert!(std::mem::offset_of!(ImbJob, user_data) == 152);
const _: () = assert!(std::mem::offset_of!(ImbJob, cipher_fields) == 192);

impl ImbJob {
    /// A job without any work: null pointers and zeros, as after `memset`.
    pub(crate) const EMPTY: Self = Self {
        enc_keys: std::ptr::null(),
        dec_keys: std::ptr::null(),
        key_len_in_bytes: 0,
        src: std::ptr::null(),
        dst: std::ptr::null_mut(),
        cipher_start_src_offset_in_bytes: 0,
        msg_len_to_cipher_in_bytes: 0,
        hash_start_src_offset_in_bytes: 0,
        msg_len_to_hash_in_bytes: 0,
        iv: std::ptr::null(),
        iv_len_in_bytes: 0,
        auth_tag_output: std::ptr::null_mut(),
        auth_tag_output_len_in_bytes: 0,
        algorithm_fields: [std::ptr::null(); 3],
        status: 0,
        cipher_mode: CIPHER_NULL,
        cipher_direction: DIR_ENCRYPT,
        hash_alg: AUTH_NULL,
        chain_order: ORDER_CIPHER_HASH,
        user_data: [std::ptr::null(); 2],
        functions: [std::ptr::null(); 2],
        sgl_state: 0,
        cipher_fields: std::ptr::null(),
    };
}

/// `IMB_CIPHER_MODE`, `IMB_CIPHER_DIRECTION`, `IMB_HASH_ALG`, `IMB_CHAIN_ORDER` of 1.3.
pub(crate) const CIPHER_CBC: c_uint = 1;
pub(crate) const CIPHER_CTR: c_uint = 2;
pub(crate) const CIPHER_NULL: c_uint = 3;
pub(crate) const CIPHER_DES: c_uint = 7;
pub(crate) const CIPHER_CCM: c_uint = 9;
pub(crate) const CIPHER_DES3: c_uint = 10;
pub(crate) const DIR_ENCRYPT: c_uint = 1;
pub(crate) const DIR_DECRYPT: c_uint = 2;
pub(crate) const AUTH_HMAC_SHA_1: c_uint = 1;
pub(crate) const AUTH_HMAC_SHA_256: c_uint = 3;
pub(crate) const AUTH_HMAC_SHA_384: c_uint = 4;
pub(crate) const AUTH_HMAC_SHA_512: c_uint = 5;
pub(crate) const AUTH_AES_XCBC: c_uint = 6;
pub(crate) const AUTH_HMAC_MD5: c_uint = 7;
pub(crate) const AUTH_NULL: c_uint = 8;
pub(crate) const AUTH_AES_CCM: c_uint = 11;
pub(crate) const AUTH_AES_CMAC: c_uint = 12;
pub(crate) const ORDER_CIPHER_HASH: c_uint = 1;
pub(crate) const ORDER_HASH_CIPHER: c_uint = 2;

/// `IMB_MAX_BURST_SIZE`: jobs in a burst.
pub(crate) const MAX_BURST: c_uint = 128;

/// `struct gcm_key_data`: round keys and powers of the hash key. As large as the largest version's.
#[repr(C, align(64))]
pub(crate) struct GcmKeyData(pub(crate) [u8; 1280]);

/// `struct gcm_context_data` (88 bytes), rounded up.
#[repr(C, align(64))]
pub(crate) struct GcmContext(pub(crate) [u8; 128]);

/// `struct chacha20_poly1305_context_data` (192 bytes), rounded up.
#[repr(C, align(64))]
pub(crate) struct ChaChaContext(pub(crate) [u8; 256]);

/// Offsets in `IMB_MGR`, in bytes from its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Offsets {
    pub(crate) features: usize,
    pub(crate) used_arch: usize,
    /// For keys of 128, 192 and 256 bits, here and below.
    pub(crate) gcm_enc: [usize; 3],
    pub(crate) gcm_dec: [usize; 3],
    pub(crate) gcm_pre: [usize; 3],
    pub(crate) chacha20_poly1305_init: usize,
    pub(crate) chacha20_poly1305_enc_update: usize,
    pub(crate) chacha20_poly1305_dec_update: usize,
    pub(crate) chacha20_poly1305_finalize: usize,
}

/// Offsets of the functions of AES-GMAC, for keys of 128, 192 and 256 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GmacOffsets {
    pub(crate) init: [usize; 3],
    pub(crate) update: [usize; 3],
    pub(crate) finalize: [usize; 3],
}

/// Offsets of the functions of AES-GCM over a text in parts, for keys of 128, 192 and 256 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GcmPartsOffsets {
    pub(crate) init: [usize; 3],
    pub(crate) enc_update: [usize; 3],
    pub(crate) dec_update: [usize; 3],
    pub(crate) enc_finalize: [usize; 3],
    pub(crate) dec_finalize: [usize; 3],
}

/// Offsets of the functions of all other suites, for a version whose `IMB_JOB` is [`ImbJob`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChainedOffsets {
    pub(crate) get_next_job: usize,
    pub(crate) submit_job_nocheck: usize,
    pub(crate) get_completed_job: usize,
    pub(crate) flush_job: usize,
    pub(crate) queue_size: usize,
    /// For keys of 128, 192 and 256 bits.
    pub(crate) keyexp: [usize; 3],
    pub(crate) cmac_subkey_gen_128: usize,
    pub(crate) xcbc_keyexp: usize,
    pub(crate) des_key_sched: usize,
    pub(crate) sha1_one_block: usize,
    pub(crate) sha256_one_block: usize,
    pub(crate) sha384_one_block: usize,
    pub(crate) sha512_one_block: usize,
    pub(crate) md5_one_block: usize,
    pub(crate) submit_cipher_burst_nocheck: usize,
    pub(crate) submit_hash_burst_nocheck: usize,
}

/// What must be known of a version before its manager is touched.
pub(crate) struct Layout {
    /// Major and minor version; patch releases keep the ABI.
    pub(crate) version: (u32, u32),
    pub(crate) offsets: Offsets,
    /// `None` where the header was not read for them.
    pub(crate) gmac: Option<GmacOffsets>,
    /// `None` where the header was not read for them.
    pub(crate) gcm_parts: Option<GcmPartsOffsets>,
    /// `None` where jobs have a layout other than [`ImbJob`]'s: 240 bytes in 1.5, 216 in 2.0, which also
    /// wants sessions.
    pub(crate) chained: Option<ChainedOffsets>,
    /// Names of the values of `used_arch` (`IMB_ARCH`), from 0.
    pub(crate) architectures: &'static [&'static str],
    /// Bit of `features` that says that the library tests itself; the next one says that it passed.
    pub(crate) self_test_bit: u32,
    /// Sizes of `gcm_key_data`, `gcm_context_data` and `chacha20_poly1305_context_data` in bytes, compared
    /// with the header.
    #[cfg(test)]
    pub(crate) sizes: [usize; 3],
}

/// `IMB_FEATURE_VAES`, in every version.
pub(crate) const FEATURE_VAES: u64 = 1 << 12;

const OFFSETS: Offsets = Offsets {
    features: 8,
    used_arch: 56,
    gcm_enc: [256, 264, 272],
    gcm_dec: [280, 288, 296],
    gcm_pre: [448, 456, 464],
    chacha20_poly1305_init: 920,
    chacha20_poly1305_enc_update: 928,
    chacha20_poly1305_dec_update: 936,
    chacha20_poly1305_finalize: 944,
};

const GMAC_OFFSETS: GmacOffsets =
    GmacOffsets { init: [720, 728, 736], update: [744, 752, 760], finalize: [768, 776, 784] };

const GCM_PARTS_OFFSETS: GcmPartsOffsets = GcmPartsOffsets {
    init: [304, 312, 320],
    enc_update: [328, 336, 344],
    dec_update: [352, 360, 368],
    enc_finalize: [376, 384, 392],
    dec_finalize: [400, 408, 416],
};

const CHAINED_OFFSETS: ChainedOffsets = ChainedOffsets {
    get_next_job: 64,
    submit_job_nocheck: 80,
    get_completed_job: 88,
    flush_job: 96,
    queue_size: 104,
    keyexp: [112, 120, 128],
    cmac_subkey_gen_128: 136,
    xcbc_keyexp: 144,
    des_key_sched: 152,
    sha1_one_block: 160,
    sha256_one_block: 176,
    sha384_one_block: 184,
    sha512_one_block: 192,
    md5_one_block: 200,
    submit_cipher_burst_nocheck: 992,
    submit_hash_burst_nocheck: 1008,
};

/// The versions whose headers were read. 1.4 is missing because its header was not.
pub(crate) const LAYOUTS: &[Layout] = &[
    Layout {
        version: (1, 3),
        offsets: OFFSETS,
        gmac: Some(GMAC_OFFSETS),
        gcm_parts: Some(GCM_PARTS_OFFSETS),
        chained: Some(CHAINED_OFFSETS),
        architectures: &["none", "no AES-NI", "SSE", "AVX", "AVX2", "AVX512"],
        self_test_bit: 20,
        #[cfg(test)]
        sizes: [1024, 88, 192],
    },
    Layout {
        version: (1, 5),
        offsets: OFFSETS,
        gmac: None,
        gcm_parts: None,
        chained: None,
        architectures: &["none", "no AES-NI", "SSE", "AVX", "AVX2", "AVX512"],
        self_test_bit: 20,
        #[cfg(test)]
        sizes: [1280, 88, 192],
    },
    Layout {
        version: (2, 0),
        offsets: OFFSETS,
        gmac: None,
        gcm_parts: None,
        chained: None,
        architectures: &["none", "SSE", "AVX2", "AVX512"],
        self_test_bit: 19,
        #[cfg(test)]
        sizes: [1280, 88, 192],
    },
];

/// Major, minor and patch of what `imb_get_version` returns.
pub(crate) fn version_parts(version: u32) -> (u32, u32, u32) {
    (version >> 16, version >> 8 & 0xFF, version & 0xFF)
}

/// The layout of a version; `None` for one that is not known.
pub(crate) fn layout_of(version: u32) -> Option<&'static Layout> {
    let (major, minor, _) = version_parts(version);
    LAYOUTS.iter().find(|l| l.version == (major, minor))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::{Path, PathBuf};
    use std::process::Command;

    /// Prints the values of [`expected`], one per line.
    const PROGRAM: &str = r#"
        #include <stdio.h>
        #include <stddef.h>
        #include <intel-ipsec-mb.h>
        #define O(f) printf("%zu\n", offsetof(IMB_MGR, f));
        int main(void) {
            printf("%u\n", (unsigned)IMB_VERSION_NUM);
            O(features) O(used_arch)
            O(gcm128_enc) O(gcm192_enc) O(gcm256_enc) O(gcm128_dec) O(gcm192_dec) O(gcm256_dec)
            O(gcm128_pre) O(gcm192_pre) O(gcm256_pre)
            O(chacha20_poly1305_init) O(chacha20_poly1305_enc_update)
            O(chacha20_poly1305_dec_update) O(chacha20_poly1305_finalize)
            printf("%zu\n", sizeof(struct gcm_key_data));
            printf("%zu\n", sizeof(struct gcm_context_data));
            printf("%zu\n", sizeof(struct chacha20_poly1305_context_data));
            printf("%u\n", (unsigned)IMB_ARCH_AVX512);
            printf("%llu\n", (unsigned long long)IMB_FEATURE_VAES);
            printf("%llu\n", (unsigned long long)IMB_FEATURE_SELF_TEST);
            printf("%llu\n", (unsigned long long)IMB_FEATURE_SELF_TEST_PASS);
            return 0;
        }"#;

    /// Prints the values of [`expected_of_jobs`]; only for a version whose jobs are used.
    const PROGRAM_FOR_JOBS: &str = r#"
        #include <stdio.h>
        #include <stddef.h>
        #include <intel-ipsec-mb.h>
        #define O(f) printf("%zu\n", offsetof(IMB_MGR, f));
        #define J(f) printf("%zu\n", offsetof(IMB_JOB, f));
        #define E(e) printf("%u\n", (unsigned)e);
        int main(void) {
            printf("%u\n", (unsigned)IMB_VERSION_NUM);
            O(get_next_job) O(submit_job_nocheck) O(get_completed_job) O(flush_job) O(queue_size)
            O(keyexp_128) O(keyexp_192) O(keyexp_256)
            O(cmac_subkey_gen_128) O(xcbc_keyexp) O(des_key_sched)
            O(sha1_one_block) O(sha256_one_block) O(sha384_one_block) O(sha512_one_block) O(md5_one_block)
            O(submit_cipher_burst_nocheck) O(submit_hash_burst_nocheck)
            J(enc_keys) J(dec_keys) J(key_len_in_bytes) J(src) J(dst) J(cipher_start_src_offset_in_bytes)
            J(msg_len_to_cipher_in_bytes) J(hash_start_src_offset_in_bytes) J(msg_len_to_hash_in_bytes)
            J(iv) J(iv_len_in_bytes) J(auth_tag_output) J(auth_tag_output_len_in_bytes)
            J(u.HMAC._hashed_auth_key_xor_ipad) J(u.HMAC._hashed_auth_key_xor_opad)
            J(u.XCBC._k1_expanded) J(u.XCBC._k2) J(u.XCBC._k3)
            J(u.CMAC._key_expanded) J(u.CMAC._skey1) J(u.CMAC._skey2)
            J(u.CCM.aad) J(u.CCM.aad_len_in_bytes)
            J(status) J(cipher_mode) J(cipher_direction) J(hash_alg) J(chain_order)
            J(user_data) J(cipher_func) J(sgl_state) J(cipher_fields)
            printf("%zu\n", sizeof(IMB_JOB));
            E(IMB_CIPHER_CBC) E(IMB_CIPHER_CNTR) E(IMB_CIPHER_NULL) E(IMB_CIPHER_DES) E(IMB_CIPHER_CCM)
            E(IMB_CIPHER_DES3) E(IMB_DIR_ENCRYPT) E(IMB_DIR_DECRYPT)
            E(IMB_AUTH_HMAC_SHA_1) E(IMB_AUTH_HMAC_SHA_256) E(IMB_AUTH_HMAC_SHA_384) E(IMB_AUTH_HMAC_SHA_512)
            E(IMB_AUTH_AES_XCBC) E(IMB_AUTH_MD5) E(IMB_AUTH_NULL) E(IMB_AUTH_AES_CCM) E(IMB_AUTH_AES_CMAC)
            E(IMB_ORDER_CIPHER_HASH) E(IMB_ORDER_HASH_CIPHER)
            printf("%d\n", IMB_MAX_BURST_SIZE);
            printf("%d\n", IMB_MAX_JOBS >= IMB_MAX_BURST_SIZE);
            printf("%d\n", DES_KEY_SCHED_SIZE);
            return 0;
        }"#;

    /// Prints the offsets of [`GmacOffsets`].
    const PROGRAM_FOR_GMAC: &str = r#"
        #include <stdio.h>
        #include <stddef.h>
        #include <intel-ipsec-mb.h>
        #define O(f) printf("%zu\n", offsetof(IMB_MGR, f));
        int main(void) {
            O(gmac128_init) O(gmac192_init) O(gmac256_init)
            O(gmac128_update) O(gmac192_update) O(gmac256_update)
            O(gmac128_finalize) O(gmac192_finalize) O(gmac256_finalize)
            return 0;
        }"#;

    /// Prints the offsets of [`GcmPartsOffsets`].
    const PROGRAM_FOR_GCM_PARTS: &str = r#"
        #include <stdio.h>
        #include <stddef.h>
        #include <intel-ipsec-mb.h>
        #define O(f) printf("%zu\n", offsetof(IMB_MGR, f));
        int main(void) {
            O(gcm128_init) O(gcm192_init) O(gcm256_init)
            O(gcm128_enc_update) O(gcm192_enc_update) O(gcm256_enc_update)
            O(gcm128_dec_update) O(gcm192_dec_update) O(gcm256_dec_update)
            O(gcm128_enc_finalize) O(gcm192_enc_finalize) O(gcm256_enc_finalize)
            O(gcm128_dec_finalize) O(gcm192_dec_finalize) O(gcm256_dec_finalize)
            return 0;
        }"#;

    fn expected_of_jobs(o: &ChainedOffsets) -> Vec<usize> {
        use std::mem::offset_of;
        let mut list =
            vec![o.get_next_job, o.submit_job_nocheck, o.get_completed_job, o.flush_job, o.queue_size];
        list.extend(o.keyexp);
        list.extend([o.cmac_subkey_gen_128, o.xcbc_keyexp, o.des_key_sched, o.sha1_one_block]);
        list.extend([o.sha256_one_block, o.sha384_one_block, o.sha512_one_block, o.md5_one_block]);
        list.extend([o.submit_cipher_burst_nocheck, o.submit_hash_burst_nocheck]);
        list.extend([offset_of!(ImbJob, enc_keys), offset_of!(ImbJob, dec_keys)]);
        list.extend([offset_of!(ImbJob, key_len_in_bytes), offset_of!(ImbJob, src), offset_of!(ImbJob, dst)]);
        list.push(offset_of!(ImbJob, cipher_start_src_offset_in_bytes));
        list.push(offset_of!(ImbJob, msg_len_to_cipher_in_bytes));
        list.push(offset_of!(ImbJob, hash_start_src_offset_in_bytes));
        list.push(offset_of!(ImbJob, msg_len_to_hash_in_bytes));
        list.extend([offset_of!(ImbJob, iv), offset_of!(ImbJob, iv_len_in_bytes)]);
        list.push(offset_of!(ImbJob, auth_tag_output));
        list.push(offset_of!(ImbJob, auth_tag_output_len_in_bytes));
        let fields = [0, 8, 16].map(|word| offset_of!(ImbJob, algorithm_fields) + word);
        list.extend([&fields[..2], &fields, &fields, &fields[..2]].concat());
        list.extend([offset_of!(ImbJob, status), offset_of!(ImbJob, cipher_mode)]);
        list.extend([offset_of!(ImbJob, cipher_direction), offset_of!(ImbJob, hash_alg)]);
        list.extend([offset_of!(ImbJob, chain_order), offset_of!(ImbJob, user_data)]);
        list.extend([offset_of!(ImbJob, functions), offset_of!(ImbJob, sgl_state)]);
        list.extend([offset_of!(ImbJob, cipher_fields), size_of::<ImbJob>()]);
        let enums = [
            [CIPHER_CBC, CIPHER_CTR, CIPHER_NULL, CIPHER_DES, CIPHER_CCM, CIPHER_DES3].as_slice(),
            &[DIR_ENCRYPT, DIR_DECRYPT, AUTH_HMAC_SHA_1, AUTH_HMAC_SHA_256, AUTH_HMAC_SHA_384],
            &[AUTH_HMAC_SHA_512, AUTH_AES_XCBC, AUTH_HMAC_MD5, AUTH_NULL, AUTH_AES_CCM, AUTH_AES_CMAC],
            &[ORDER_CIPHER_HASH, ORDER_HASH_CIPHER, MAX_BURST, 1, 128],
        ];
        list.extend(enums.concat().into_iter().map(|value| value as usize));
        list
    }

    fn expected(layout: &Layout) -> Vec<usize> {
        let o = &layout.offsets;
        let mut list = vec![o.features, o.used_arch];
        list.extend([o.gcm_enc, o.gcm_dec, o.gcm_pre].as_flattened());
        list.extend([o.chacha20_poly1305_init, o.chacha20_poly1305_enc_update]);
        list.extend([o.chacha20_poly1305_dec_update, o.chacha20_poly1305_finalize]);
        list.extend(layout.sizes);
        list.push(layout.architectures.iter().position(|a| *a == "AVX512").unwrap());
        list.extend([1 << 12, 1 << layout.self_test_bit, 1 << (layout.self_test_bit + 1)]);
        list
    }

    /// The compiler's values for the header in `include`, with the flags of the library's own build; `None`
    /// without a compiler.
    fn ask_the_compiler(include: &Path, program: &str) -> Option<Vec<usize>> {
        let number = program.len();
        let name = format!("testudo-ipsec-mb-layout-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let (source, binary) = (dir.join("layout.c"), dir.join("layout"));
        std::fs::write(&source, program).unwrap();
        let built = Command::new("cc")
            .args(["-w", "-DLINUX", "-I"])
            .arg(include)
            .arg(&source)
            .arg("-o")
            .arg(&binary)
            .output();
        let Ok(output) = built else { return None };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let printed = Command::new(&binary).output().unwrap().stdout;
        std::fs::remove_dir_all(&dir).unwrap();
        Some(String::from_utf8(printed).unwrap().lines().map(|l| l.parse().unwrap()).collect())
    }

    /// `TESTUDO_IPSEC_MB_INCLUDE` may name the folder of another version's header.
    #[test]
    fn the_offsets_are_those_of_the_installed_header() {
        let include =
            std::env::var_os("TESTUDO_IPSEC_MB_INCLUDE").map_or("/usr/include".into(), PathBuf::from);
        if !include.join("intel-ipsec-mb.h").exists() {
            println!("skipped: no intel-ipsec-mb.h in {} (package libipsec-mb-dev)", include.display());
            return;
        }
        let Some(found) = ask_the_compiler(&include, PROGRAM) else {
            println!("skipped: no C compiler called cc");
            return;
        };
        let layout =
            layout_of(u32::try_from(found[0]).unwrap()).expect("the header is of a version not supported");
        println!("compared with the header of {:x}", found[0]);
        assert_eq!(found[1..], expected(layout));
        if let Some(gmac) = &layout.gmac {
            let found = ask_the_compiler(&include, PROGRAM_FOR_GMAC).unwrap();
            assert_eq!(found, [gmac.init, gmac.update, gmac.finalize].as_flattened());
        }
        if let Some(o) = &layout.gcm_parts {
            let found = ask_the_compiler(&include, PROGRAM_FOR_GCM_PARTS).unwrap();
            let expected = [o.init, o.enc_update, o.dec_update, o.enc_finalize, o.dec_finalize];
            assert_eq!(found, expected.as_flattened());
        }
        match &layout.chained {
            None => println!("the jobs of this version are not used"),
            Some(offsets) => {
                let found = ask_the_compiler(&include, PROGRAM_FOR_JOBS).unwrap();
                assert_eq!(found[1..], expected_of_jobs(offsets));
            }
        }
    }

    #[test]
    fn our_structures_hold_those_of_every_version() {
        for layout in LAYOUTS {
            let ours = [size_of::<GcmKeyData>(), size_of::<GcmContext>(), size_of::<ChaChaContext>()];
            assert!(
                ours.iter().zip(layout.sizes).all(|(ours, theirs)| *ours >= theirs),
                "{:?}",
                layout.version
            );
        }
    }

    #[test]
    fn versions_whose_header_was_not_read_are_unknown() {
        for version in [0, 0x1_0200, 0x1_0400, 0x2_0100, 0x3_0000, u32::MAX] {
            assert!(layout_of(version).is_none(), "{version:x}");
        }
        assert!(layout_of(0x2_0002).is_some_and(|l| l.version == (2, 0)));
    }
}
