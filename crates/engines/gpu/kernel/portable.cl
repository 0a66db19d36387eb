// The cryptography of engine `gpu`, in files that are one source when joined in this order: portable, tables,
// ciphers, hashes, jobs, keys. It is OpenCL C 1.2, CUDA C++ (NVRTC: no header is included) and, for tests,
// C++ on the CPU.
//
//   plan    bins, then jobs: what is to be done. Group g does bin g.
//             bin   kind, the word at which its first job is, number of jobs, lanes of a packet: a power of
//                   two up to 32; the product of both is LANES at most
//             job   see JOB_*
//   arena   packets, in place, and behind each its digest and mark
//   keys    KEY_WORDS for each slot: schedules, written by `testudo_expand`, zeroed by `testudo_wipe`
//
// A group goes from step to step together. In a step a lane has a part of a packet, or, where that cannot be
// divided, a whole one. Between steps only global and shared memory keep anything, so that the CPU can have a
// step done by one lane after the other.
//
// All is 32-bit words, of bytes in the order of a little-endian machine. Offsets and lengths come from the
// host, which has checked them. A bin has one kind, so that the lanes of a group do not part ways.
//
// PoCL 3.1 miscompiles arrays of bytes, blocks of 3DES in arrays of words, and 3DES that is called from two
// places; it ends in an error where steps follow each other without a loop.
//
// Not constant in time: tables are indexed by secrets.

#if defined(__OPENCL_VERSION__)
#define KERNEL __kernel
#define FN static
#define GLOBAL __global
#define LOCAL __local
#define SHARED __local
#define CONSTANT __constant
#define EACH_LANE
#define BARRIER barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#define GROUP ((uint)get_group_id(0))
#define LANE ((uint)get_local_id(0))
#define LANES ((uint)get_local_size(0))
#elif defined(__CUDACC__)
typedef unsigned int uint;
typedef unsigned long long ulong;
#define KERNEL extern "C" __global__
#define FN static __device__
#define GLOBAL
#define LOCAL
#define SHARED __shared__
#define CONSTANT static __constant__ const
#define EACH_LANE
#define BARRIER __syncthreads()
#define GROUP (blockIdx.x)
#define LANE (threadIdx.x)
#define LANES (blockDim.x)
#else
typedef unsigned int uint;
typedef unsigned long long ulong;
#define KERNEL extern "C"
#define FN static
#define GLOBAL
#define LOCAL
#define SHARED static thread_local
#define CONSTANT static const
#define BARRIER
static thread_local uint GROUP, LANE, LANES = 1;
// Lanes that need each other's results of the same step do not get them in both orders.
static thread_local bool IS_LAST_LANE_FIRST;
#define EACH_LANE \
  for (uint turn = 0; turn < LANES && ((LANE = IS_LAST_LANE_FIRST ? LANES - 1 - turn : turn), true); turn++)
#endif

// A kind: cipher, integrity algorithm, whether it opens (and, in the next bit, whether frames are written
// first), words of the AES key, a byte each from the lowest.
#define CIPHER(kind) ((kind) & 0xff)
#define INTEGRITY(kind) ((kind) >> 8 & 0xff)
#define OPENS(kind) ((kind) >> 16 & 1)
#define FRAMES(kind) ((kind) >> 17 & 1)
#define AES_KEY_WORDS(kind) ((kind) >> 24)
#define ROUNDS(kind) (AES_KEY_WORDS(kind) + 6)

#define CIPHER_CBC 1
#define CIPHER_CTR 2
#define CIPHER_3DES 3
#define CIPHER_GCM 4
#define HMAC_MD5 1
#define HMAC_SHA1 2
#define HMAC_SHA256 3
#define HMAC_SHA384 4
#define HMAC_SHA512 5

// Lanes of a group at most.
#define MOST_LANES 128

#define BIN_WORDS 4
// Words of a bin.
#define BIN_KIND 0
#define BIN_JOBS_AT 1
#define BIN_JOBS 2
#define BIN_PARTS 3
#define JOB_WORDS 12
// Words of a job. The packet's offset is in words, the cipher's offset in bytes behind that, lengths are in
// bytes.
#define JOB_PACKET 0
#define JOB_AUTHENTICATED 1
#define JOB_CIPHER_AT 2
#define JOB_CIPHER_BYTES 3
#define JOB_KEY 4
#define JOB_RESULT 5
#define JOB_NONCE 6
#define JOB_MARK 9
// Where the frame is to be written: the number's low half, as packets carry it, and a byte each of pad
// length, next header, the word where the number goes, and words of the IV behind it. The IV is the nonce's.
#define JOB_NUMBER 10
#define JOB_FRAME 11

// Words of a key's slot. Round keys are those of AES or 3DES, in the order of their use. SP 800-38D's hash
// key H is there, with H^2, H^4 and so on up to H^32 for up to 32 lanes of a packet, each multiplied by each
// number of four bits; HMAC, which no key has beside that, has its two states after the padded key.
#define KEY_WORDS 448
#define KEY_ROUNDS 0
#define KEY_GHASH 60
#define KEY_HMAC 124
#define GHASH_WORDS 64
#define GHASH_POWERS 6
// The SPI, as packets carry it, behind all of these.
#define KEY_SPI 444
// Of the digest, behind which the mark is.
#define DIGEST_WORDS 16

// Tables, and a block for each lane.
#define SHARED_WORDS 512
#define BLOCK_WORDS 4

// What the host has of a key: the cipher's, at most 8 words, then the integrity algorithm's, then the SPI.
#define RAW_CIPHER 0
#define RAW_HMAC 8
#define RAW_SPI 24
typedef struct {
  uint word[25];
} raw_key;

FN uint rotl(uint x, uint n) { return x << n | x >> (32 - n); }
FN uint rotr(uint x, uint n) { return x >> n | x << (32 - n); }
FN ulong rotr64(ulong x, uint n) { return x >> n | x << (64 - n); }
FN uint swapped(uint x) { return (rotl(x, 8) & 0x00ff00ff) | (rotl(x, 24) & 0xff00ff00); }
FN uint byte_of(uint x, uint n) { return x >> (8 * n) & 0xff; }

// The word at byte `at` of a message of `bytes` bytes, with zeros behind its end. Reads no word without a
// byte of it.
FN uint word_within(GLOBAL const uint *message, uint at, uint bytes) {
  if (at + 4 <= bytes) return message[at / 4];
  if (at >= bytes) return 0;
  return message[at / 4] & ((1u << (8 * (bytes - at))) - 1);
}

// Writes the bytes of a word that are within the message.
FN void put_within(GLOBAL uint *message, uint at, uint bytes, uint word) {
  if (at >= bytes) return;
  uint mask = at + 4 <= bytes ? 0xffffffff : (1u << (8 * (bytes - at))) - 1;
  message[at / 4] = (message[at / 4] & ~mask) | (word & mask);
}

