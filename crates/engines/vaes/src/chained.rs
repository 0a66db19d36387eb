//! AES-128-CBC with HMAC-SHA-1-96, and the latter alone: sixteen packets of any lengths and keys in parallel.
//!
//! ```text
//!   seal   chunk 0 of each packet is encrypted; then each block is hashed while the next chunk is encrypted
//!   open   all is hashed and compared; then what is authentic is decrypted, packet by packet
//! ```
//!
//! Chunks of 64 bytes are encrypted from the IV on and blocks of 64 bytes hashed from the ESP header on, 8
//! bytes earlier: chunk `n` completes block `n`. Partial chunks and blocks are processed in memory outside
//! the packet, and so are the lanes without work.

use crate::cbc::{self, CHUNK_BYTES, Encryption, LANES, LaidOut, ROUND_KEYS};
use crate::engine::MAX_TEXT_BYTES;
use crate::memory::{Columns, load, load_prefix, store, store_prefix};
use crate::sha1::{self, BLOCK_BYTES, STATE_WORDS, States};
use crate::{aes, aes::MAX_ROUND_KEYS};
use arrayvec::ArrayVec;
use core::arch::x86_64::*;
use testudo_crypto::{AesKey, Cipher, Direction, Integrity, Job, JobStatus, KeyId, KeyMaterial, Suite};
use zeroize::{Zeroize, Zeroizing};

/// Bytes of every ICV here.
const ICV_BYTES: usize = 12;

/// Bytes of SPI and sequence number.
const HEADER_BYTES: usize = 8;

/// Most bytes of a message after its last whole block: a block less one byte, the high half, the end marker
/// and the length.
const TAIL_BYTES: usize = 2 * BLOCK_BYTES;

/// From this many chunks on it pays to find what all packets of a lot have in common.
const LONG_CHUNKS: usize = 3;

/// The hash input of a packet after its whole blocks; also, 8 bytes in, where its last chunk is encrypted if
/// it is partial.
type Tail = [u8; TAIL_BYTES];

/// The chunk in a tail.
#[inline]
fn chunk_of_tail(tail: &mut Tail) -> Option<&mut [u8; CHUNK_BYTES]> {
    tail.get_mut(HEADER_BYTES..)?.first_chunk_mut()
}

/// What jobs must have in common to be done in parallel.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    SealCbc,
    OpenCbc,
    SealNull,
    OpenNull,
}

/// Number of kinds.
pub(crate) const KINDS: usize = Kind::ALL.len();

impl Kind {
    /// All kinds, each at its own index.
    pub(crate) const ALL: [Self; 4] = [Self::SealCbc, Self::OpenCbc, Self::SealNull, Self::OpenNull];

    /// The kind of jobs in `suite`; `None` for a suite that is not done here.
    pub(crate) const fn new(suite: Suite, direction: Direction) -> Option<Self> {
        match (suite.cipher(), suite.integrity(), direction) {
            (Cipher::AesCbc(AesKey::Aes128), Integrity::HmacSha1, Direction::Seal) => Some(Self::SealCbc),
            (Cipher::AesCbc(AesKey::Aes128), Integrity::HmacSha1, Direction::Open) => Some(Self::OpenCbc),
            (Cipher::Null, Integrity::HmacSha1, Direction::Seal) => Some(Self::SealNull),
            (Cipher::Null, Integrity::HmacSha1, Direction::Open) => Some(Self::OpenNull),
            _ => None,
        }
    }

    /// Bytes of the IV, which are also those of the cipher's block, if there is a cipher.
    const fn iv_bytes(self) -> usize {
        const _: () = assert!(Suite::AES128_SHA1.block_bytes() == Suite::AES128_SHA1.iv_bytes());
        match self {
            Self::SealCbc | Self::OpenCbc => const { Suite::AES128_SHA1.iv_bytes() },
            Self::SealNull | Self::OpenNull => 0,
        }
    }
}

/// Both keys of an SA. Zeroed when dropped; boxed, so that it never moves.
#[repr(C, align(64))]
pub(crate) struct ChainedKey {
    /// In the order of their use; all zero for null encryption.
    round_keys: [u128; ROUND_KEYS],
    /// HMAC's states after the key's block (RFC 2104 4), first the inner one, then the outer one, in the
    /// layout of a message block: those of sixteen keys are transposed into vectors like blocks.
    states: [u8; BLOCK_BYTES],
}

impl ChainedKey {
    /// Expands the keys of an SA.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    pub(crate) fn new(material: &KeyMaterial, kind: Kind) -> Box<Self> {
        let mut new = Box::new(Self { round_keys: [0; _], states: [0; _] });
        let inner = Zeroizing::new(sha1::key_state(material.integrity_key(), 0x36));
        let outer = Zeroizing::new(sha1::key_state(material.integrity_key(), 0x5C));
        for (place, word) in new.states.as_chunks_mut().0.iter_mut().zip(inner.iter().chain(outer.iter())) {
            *place = word.to_be_bytes();
        }
        let mut round_keys = Zeroizing::new([0; MAX_ROUND_KEYS]);
        if let Kind::SealCbc | Kind::OpenCbc = kind {
            aes::expand(material.key(), &mut round_keys);
        }
        let expanded = round_keys.first_chunk().unwrap_or(&[0; _]);
        match kind {
            Kind::SealCbc => new.round_keys = *expanded,
            Kind::OpenCbc => cbc::invert(expanded, &mut new.round_keys),
            Kind::SealNull | Kind::OpenNull => (),
        }
        new
    }
}

impl Drop for ChainedKey {
    fn drop(&mut self) {
        self.round_keys.zeroize();
        self.states.zeroize();
    }
}

/// One packet, its key and the parts of its job.
pub(crate) struct Lane<'a> {
    key: &'a ChainedKey,
    id: KeyId,
    /// ESP header, IV, text and ICV.
    packet: &'a mut [u8],
    /// Where the text ends and the ICV starts.
    icv_at: usize,
    /// Authenticated after the text.
    high_half: Option<[u8; 4]>,
    status: &'a mut JobStatus,
}

/// Packets of one kind, collected to be done together.
pub(crate) type Lot<'a> = ArrayVec<Lane<'a>, LANES>;

impl<'a> Lane<'a> {
    /// Takes a job apart; it is a fault if its packet is not inside its buffer or its text is not whole
    /// blocks.
    #[inline]
    pub(crate) fn new(key: &'a ChainedKey, kind: Kind, job: &'a mut Job) -> Option<Self> {
        let high_half = job.high_half();
        let Job { buffer, auth_start, text_start, text_bytes, key: id, status, .. } = job;
        let iv_bytes = kind.iv_bytes();
        let (text_at, len) = ((*text_start).wrapping_sub(*auth_start) as usize, *text_bytes as usize);
        // An IV follows the header; without one the text, which is not encrypted, may start anywhere.
        let is_esp = match iv_bytes {
            0 => text_at >= HEADER_BYTES && text_at + len <= HEADER_BYTES + MAX_TEXT_BYTES,
            _ => text_at == HEADER_BYTES + iv_bytes,
        };
        let packet = buffer.bytes_mut().get_mut(*auth_start as usize..);
        let packet = packet.and_then(|packet| packet.get_mut(..text_at + len + ICV_BYTES));
        match packet {
            // Whole blocks: 16 bytes or 0 as a mask, where a remainder would be a division.
            Some(packet) if is_esp && len & iv_bytes.saturating_sub(1) == 0 => {
                Some(Self { key, id: *id, packet, icv_at: text_at + len, high_half, status })
            }
            _ => {
                *status = JobStatus::Fault;
                None
            }
        }
    }

    /// Blocks that are hashed in the packet itself.
    #[inline]
    fn whole_blocks(&self) -> usize {
        self.icv_at / BLOCK_BYTES
    }

    /// Bytes that are hashed, the key's block not counted.
    #[inline]
    fn message_bytes(&self) -> usize {
        self.icv_at + if self.high_half.is_some() { 4 } else { 0 }
    }

    /// Blocks that are hashed, the key's not counted: after the message come one byte and a length of 8.
    #[inline]
    fn blocks(&self) -> usize {
        (self.message_bytes() + 9).div_ceil(BLOCK_BYTES)
    }

    /// Chunks of IV and text that are encrypted, a partial last one included.
    #[inline]
    fn chunks(&self) -> usize {
        self.icv_at.saturating_sub(HEADER_BYTES).div_ceil(CHUNK_BYTES)
    }

    /// Writes the hash input after the whole blocks to the tail.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn write_tail(&self, tail: &mut Tail) {
        let start = self.whole_blocks() * BLOCK_BYTES;
        let ([first, _], _) = tail.as_chunks_mut() else { return };
        store(first, load_prefix(self.packet.get(start..self.icv_at).unwrap_or_default()));
        self.write_padding(tail);
    }

    /// Writes the high half and the padding (FIPS 180-4 5.1.1) after the text.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn write_padding(&self, tail: &mut Tail) {
        let mut at = self.icv_at % BLOCK_BYTES;
        let zero = _mm512_setzero_si512();
        if let Some(place) = tail.get_mut(at..).and_then(|tail| tail.first_chunk_mut()) {
            store(place, zero);
        }
        if let Some(place) = tail.last_chunk_mut() {
            store(place, zero);
        }
        if let Some(high_half) = self.high_half {
            if let Some(place) = tail.get_mut(at..).and_then(|tail| tail.first_chunk_mut()) {
                *place = high_half;
            }
            at += 4;
        }
        if let Some(place) = tail.get_mut(at) {
            *place = 0x80;
        }
        let end = (self.blocks() - self.whole_blocks()) * BLOCK_BYTES;
        let bits = (BLOCK_BYTES + self.message_bytes()) as u64 * 8;
        if let Some(place) = tail.get_mut(..end).and_then(|tail| tail.last_chunk_mut()) {
            *place = bits.to_be_bytes();
        }
    }

    /// Bytes of the last chunk if it is partial, otherwise 0.
    #[inline]
    fn partial_bytes(&self) -> usize {
        self.icv_at.saturating_sub(HEADER_BYTES) % CHUNK_BYTES
    }

    /// Before encryption: copies a partial chunk to the tail, where it will be encrypted; otherwise completes
    /// the tail except for the ciphertext in it.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn prepare_tail(&self, tail: &mut Tail) {
        let bytes = self.partial_bytes();
        if bytes == 0 {
            self.write_padding(tail);
        } else if let Some(place) = chunk_of_tail(tail) {
            store(place, load_prefix(self.packet.get(self.icv_at - bytes..self.icv_at).unwrap_or_default()));
        }
    }

    /// After the last chunk was encrypted: completes the tail's hash input. A tail begins with the last 8
    /// bytes of the previous chunk, or of the last one. They are copied alone, because a wider load would
    /// fail store-to-load forwarding from the recent stores of 16 bytes.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn complete_tail(&self, tail: &mut Tail) {
        let bytes = self.partial_bytes();
        if bytes > 0 {
            self.write_padding(tail);
        }
        let before =
            self.packet.get(..self.icv_at - bytes).and_then(|before| before.last_chunk::<HEADER_BYTES>());
        if let (Some(before), Some(place)) = (before, tail.first_chunk_mut()) {
            *place = *before;
        }
    }

    /// Copies the chunk that was encrypted in the tail to the packet.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn fetch_tail(&mut self, tail: &mut Tail) {
        let (start, end) = (self.icv_at - self.partial_bytes(), self.icv_at);
        if let (Some(place), Some(chunk)) = (self.packet.get_mut(start..end), chunk_of_tail(tail)) {
            store_prefix(place, load(chunk));
        }
    }

    /// Block `n` of the hash input, in the packet or its tail; an arbitrary one beyond the end.
    #[inline]
    fn block<'b>(packet: &'b [u8], whole: usize, tail: &'b Tail, n: usize) -> &'b [u8; BLOCK_BYTES] {
        let [first, second] = tail.as_chunks::<BLOCK_BYTES>().0 else { return const { &[0; _] } };
        if n < whole
            && let Some(block) = packet.get(n * BLOCK_BYTES..).and_then(|rest| rest.first_chunk())
        {
            return block;
        }
        if n == whole { first } else { second }
    }

    /// Ends the job of a sealed packet.
    #[inline]
    fn end_sealed(&mut self, digest: &[u8; 16]) {
        if let (Some(icv), Some(first)) = (self.packet.last_chunk_mut::<ICV_BYTES>(), digest.first_chunk()) {
            *icv = *first;
        }
        *self.status = JobStatus::Done;
    }

    /// Ends the job of a received packet: whether it is authentic. All bytes are compared, in constant time.
    #[inline]
    fn judge(&mut self, digest: &[u8; 16]) -> bool {
        let ends = |bytes: &[u8]| {
            Some((u64::from_ne_bytes(*bytes.first_chunk()?), u32::from_ne_bytes(*bytes.last_chunk()?)))
        };
        let computed = digest.first_chunk::<ICV_BYTES>().and_then(|first| ends(first));
        let received = self.packet.last_chunk::<ICV_BYTES>().and_then(|icv| ends(icv));
        let is_authentic = match (computed, received) {
            (Some((a, b)), Some((c, d))) => (a ^ c) | u64::from(b ^ d) == 0,
            _ => false,
        };
        *self.status = if is_authentic { JobStatus::Done } else { JobStatus::AuthenticationFailed };
        is_authentic
    }
}

/// The keys of sixteen packets as vectors, cached from one lot to the next, most of which have the same keys.
#[repr(C, align(64))]
struct Keys {
    round_keys: LaidOut,
    inner: [[u32; LANES]; STATE_WORDS],
    outer: [[u32; LANES]; STATE_WORDS],
    /// The keys' ids.
    ids: Option<[KeyId; LANES]>,
}

/// Scratch memory outside the packets' buffers.
#[repr(C, align(64))]
pub(crate) struct Scratch {
    keys: [Keys; KINDS],
    tails: [Tail; LANES],
    /// Dummy chunks for lanes that have nothing to encrypt.
    chunks: [[u8; CHUNK_BYTES]; LANES],
    /// Number of blocks of each packet.
    blocks: [u32; LANES],
}

impl Scratch {
    pub(crate) fn new() -> Box<Self> {
        let keys =
            || Keys { round_keys: [[[0; _]; _]; _], inner: [[0; _]; _], outer: [[0; _]; _], ids: None };
        Box::new(Self {
            keys: [keys(), keys(), keys(), keys()],
            tails: [[0; _]; _],
            chunks: [[0; _]; _],
            blocks: [0; _],
        })
    }

    /// Wipes all keys.
    pub(crate) fn wipe(&mut self) {
        for keys in &mut self.keys {
            keys.round_keys.zeroize();
            keys.inner.zeroize();
            keys.outer.zeroize();
            keys.ids = None;
        }
    }

    /// Does the packets of a lot, and empties it.
    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    pub(crate) fn run(&mut self, kind: Kind, lot: &mut Lot<'_>) {
        self.lay_out(kind, lot);
        let digests = match kind {
            Kind::SealCbc => self.encrypt_and_digest(lot),
            Kind::OpenCbc | Kind::SealNull | Kind::OpenNull => self.digest(kind, lot),
        };
        for ((n, lane), tail) in lot.iter_mut().enumerate().zip(&mut self.tails) {
            let digest = &digests[n % 4][n / 4];
            match kind {
                Kind::SealCbc => {
                    if lane.partial_bytes() > 0 {
                        lane.fetch_tail(tail);
                    }
                    lane.end_sealed(digest);
                }
                Kind::SealNull => lane.end_sealed(digest),
                Kind::OpenNull => _ = lane.judge(digest),
                Kind::OpenCbc => {
                    if lane.judge(digest) {
                        let end = lane.icv_at;
                        cbc::decrypt(
                            &lane.key.round_keys,
                            lane.packet.get_mut(HEADER_BYTES..end).unwrap_or_default(),
                        );
                    }
                }
            }
        }
        lot.clear();
    }

    /// Lays out the keys of a lot, unless they are those of the last one. Unused lanes get the first key.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn lay_out(&mut self, kind: Kind, lot: &Lot<'_>) {
        let Some(first) = lot.first() else { return };
        let mut ids = [first.id; LANES];
        ids.iter_mut().zip(lot).for_each(|(id, lane)| *id = lane.id);
        let keys = &mut self.keys[kind as usize];
        if keys.ids == Some(ids) {
            return;
        }
        keys.ids = Some(ids);
        let mut of = [first.key; LANES];
        of.iter_mut().zip(lot).for_each(|(key, lane)| *key = lane.key);
        sha1::lay_out(&of.map(|key| &key.states), &mut keys.inner, &mut keys.outer);
        if let Kind::SealCbc = kind {
            cbc::lay_out(of.map(|key| &key.round_keys), &mut keys.round_keys);
        }
    }

    /// The first bytes of the digest of each packet of a lot.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn digest(&mut self, kind: Kind, lot: &mut Lot<'_>) -> [[[u8; 16]; 4]; 4] {
        let Self { keys, tails, blocks, .. } = self;
        let keys = &keys[kind as usize];
        for (lane, tail) in lot.iter().zip(&mut *tails) {
            lane.write_tail(tail);
        }
        let totals = Totals::new(lot, blocks);
        let mut states = sha1::load_states(&keys.inner);
        let mut first = 0;
        if let Some(lanes) = lot.first_chunk_mut::<LANES>() {
            // Until the shortest packet ends.
            let whole = lanes.iter().map(Lane::whole_blocks).min().unwrap_or(0);
            let columns = Columns::new(lanes.each_mut().map(|lane| &mut *lane.packet));
            while first < whole
                && let Some(block) = columns.part(first * BLOCK_BYTES)
            {
                sha1::compress(&mut states, u16::MAX, &block);
                first += 1;
            }
        }
        for n in first..totals.most {
            let mut blocks = [const { &[0; BLOCK_BYTES] }; LANES];
            for ((block, lane), tail) in blocks.iter_mut().zip(&*lot).zip(&*tails) {
                *block = Lane::block(lane.packet, lane.whole_blocks(), tail, n);
            }
            sha1::compress(&mut states, totals.active(n), &blocks);
        }
        finish(keys, &states)
    }

    /// Encrypts the packets of a lot, and returns the first bytes of the digest of each.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn encrypt_and_digest(&mut self, lot: &mut Lot<'_>) -> [[[u8; 16]; 4]; 4] {
        let Self { keys, tails, chunks, blocks } = self;
        let keys = &keys[Kind::SealCbc as usize];
        let totals = Totals::new(lot, blocks);
        let most_chunks = lot.iter().map(Lane::chunks).max().unwrap_or(0);
        let mut states = sha1::load_states(&keys.inner);
        // The first block, which becomes the IV, is encrypted from an IV of zeros (see `Job`).
        let mut chain = [_mm512_setzero_si512(); _];
        let common = if most_chunks < LONG_CHUNKS { 0 } else { common_chunks(lot) };
        for (lane, tail) in lot.iter().zip(&mut *tails) {
            lane.prepare_tail(tail);
        }
        let mut n = 0;
        while n <= totals.most {
            if n == 1
                && let Some(lanes) = lot.first_chunk_mut::<LANES>()
            {
                // Until the shortest packet ends.
                let mut columns = Columns::new(lanes.each_mut().map(|lane| &mut *lane.packet));
                while n + 1 < common
                    && let Some((block, chunk)) =
                        columns.parts((n - 1) * BLOCK_BYTES, HEADER_BYTES + n * CHUNK_BYTES)
                {
                    let mut encryption = Encryption { chain, keys: &keys.round_keys, chunks: chunk };
                    sha1::compress_and_encrypt(&mut states, u16::MAX, &block, &mut encryption);
                    chain = encryption.chain;
                    n += 1;
                }
            }
            // Chunk `n` is encrypted while block `n - 1` is hashed.
            let mut encryption = Encryption { chain, keys: &keys.round_keys, chunks: chunks.each_mut() };
            let mut before = [const { &[0; BLOCK_BYTES] }; LANES];
            for (((lane, chunk), tail), block) in
                lot.iter_mut().zip(&mut encryption.chunks).zip(&mut *tails).zip(&mut before)
            {
                let whole_blocks = lane.whole_blocks();
                let end = lane.icv_at.min(HEADER_BYTES + n * CHUNK_BYTES);
                let left = lane.icv_at - end;
                let (hashed, rest) = lane.packet.split_at_mut(end);
                if left == 0 {
                    *block = Lane::block(hashed, whole_blocks, tail, n.wrapping_sub(1));
                    continue;
                }
                *block = Lane::block(hashed, whole_blocks, const { &[0; _] }, n.wrapping_sub(1));
                let place = if left < CHUNK_BYTES { chunk_of_tail(tail) } else { rest.first_chunk_mut() };
                if let Some(place) = place {
                    *chunk = place;
                }
            }
            if n == 0 {
                encryption.run();
            } else if n < most_chunks {
                sha1::compress_and_encrypt(&mut states, totals.active(n - 1), &before, &mut encryption);
            } else {
                sha1::compress(&mut states, totals.active(n - 1), &before);
            }
            chain = encryption.chain;
            for (lane, tail) in lot.iter().zip(&mut *tails) {
                if n + 1 == lane.chunks() {
                    lane.complete_tail(tail);
                }
            }
            n += 1;
        }
        finish(keys, &states)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.wipe();
    }
}

/// Number of whole chunks that all packets of a lot have.
fn common_chunks(lot: &Lot<'_>) -> usize {
    lot.iter().map(|lane| lane.icv_at.saturating_sub(HEADER_BYTES) / CHUNK_BYTES).min().unwrap_or(0)
}

/// Number of blocks of the packets of a lot.
struct Totals {
    each: __m512i,
    most: usize,
}

impl Totals {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn new(lot: &Lot<'_>, blocks: &mut [u32; LANES]) -> Self {
        let mut most = 0;
        *blocks = [0; _];
        for (lane, blocks) in lot.iter().zip(&mut *blocks) {
            // A text has 65,535 bytes at the most.
            #[allow(clippy::cast_possible_truncation, reason = "a small number")]
            {
                *blocks = lane.blocks() as u32;
            }
            most = most.max(lane.blocks());
        }
        Self { each: crate::memory::load_words(blocks), most }
    }

    /// Mask of the packets that have a block `n`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn active(&self, n: usize) -> __mmask16 {
        #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "a small number")]
        let n = _mm512_set1_epi32(n as i32);
        _mm512_cmpgt_epi32_mask(self.each, n)
    }
}

/// HMAC's second half: the first bytes of each digest, in four rows; packet `n` is at index `n / 4` of row `n
/// % 4`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
fn finish(keys: &Keys, inner: &States) -> [[[u8; 16]; 4]; 4] {
    let mut states = sha1::load_states(&keys.outer);
    sha1::finish(&mut states, inner);
    let mut digests = [[[0; _]; _]; 4];
    sha1::first_bytes(&states, &mut digests);
    digests
}
