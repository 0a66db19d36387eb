/* The second interface of libtestudo-dpdk.so: cryptodevs, which are handed packets and give them back (the
 * gateway's engine `cryptodev`). The gateway's side is crates/engines/cryptodev/src/raw.rs: both change
 * together, with TESTUDO_DPDK_CRYPTO_VERSION.
 *
 * A device is opened with a number of slots. A slot is one operation with its mbuf, and what stays with it:
 * it is attached to a packet's own bytes, handed over, and free again when it came back. */
#ifndef TESTUDO_DPDK_CRYPTO_H
#define TESTUDO_DPDK_CRYPTO_H

#include <stdint.h>

#define TESTUDO_DPDK_CRYPTO_VERSION 1u

/* Algorithms. A cipher from AEADS on authenticates, too. */
#define CIPHER_NONE 0u
#define CIPHER_AES_CBC 1u
#define CIPHER_AES_CTR 2u
#define CIPHER_3DES_CBC 3u
#define CIPHER_DES_CBC 4u
#define AEADS 16u
#define AEAD_AES_GCM 16u
#define AEAD_AES_CCM 17u
#define AEAD_CHACHA20_POLY1305 18u
#define AUTH_NONE 0u
#define AUTH_MD5_HMAC 1u
#define AUTH_SHA1_HMAC 2u
#define AUTH_SHA256_HMAC 3u
#define AUTH_SHA384_HMAC 4u
#define AUTH_SHA512_HMAC 5u
#define AUTH_AES_XCBC 6u
#define AUTH_AES_CMAC 7u
#define AUTH_AES_GMAC 8u

/* How an operation ended. */
#define ENDED_WELL 0u
#define ENDED_WRONG_ICV 1u
#define ENDED_IN_ERROR 2u
#define NOT_ENDED 3u /* given back, and not done: the device may still have it */

/* Bytes beside each slot: the ICV where it cannot be in the packet, and a copy of a packet that cannot be
 * handed over where it is. */
#define SLOT_ICV_BYTES 64u
#define SLOT_COPY_BYTES 9728u
#define MAX_AAD_BYTES 12u
#define MAX_IV_BYTES 16u

/* What a session is to do. */
struct crypto_work {
	uint8_t cipher;
	uint8_t auth;
	uint8_t seals; /* encrypt, then make the ICV; else check it, then decrypt */
	uint8_t cipher_key_bytes;
	uint8_t auth_key_bytes;
	uint8_t iv_bytes;
	uint8_t icv_bytes;
	uint8_t aad_bytes;
	const uint8_t *cipher_key;
	const uint8_t *auth_key;
};

struct crypto_open {
	const char *device; /* a name and arguments; a virtual device is made if it is not there */
	uint16_t queue_pairs;
	uint16_t slots_per_pair;
	uint32_t sessions;
};

struct crypto_opened {
	void *handle;
	uint8_t *icvs;   /* SLOT_ICV_BYTES for each slot */
	uint8_t *copies; /* SLOT_COPY_BYTES for each slot */
	uint32_t slots;
	uint32_t sessions; /* the device may hold fewer than it was asked for */
	uint8_t is_software; /* it reads and writes memory by this process's own addresses */
	uint8_t padding[7];
	char name[64];
	char driver[64];
};

/* One operation. Places are counted from `packet`. */
struct crypto_job {
	void *session;
	uint8_t *packet;
	uint8_t *icv;
	uint32_t bytes;
	uint32_t slot;
	uint32_t cipher_at;
	uint32_t cipher_bytes;
	uint32_t auth_at;
	uint32_t auth_bytes;
	uint8_t is_aead;
	uint8_t is_ccm;
	uint8_t aad_bytes;
	uint8_t padding;
	uint8_t aad[MAX_AAD_BYTES];
	uint8_t iv[MAX_IV_BYTES];
};

struct crypto_done {
	uint32_t slot; /* UINT32_MAX: what came back is none of ours */
	uint32_t ended;
};

struct testudo_dpdk_crypto {
	uint32_t version;
	uint32_t size;
	int32_t (*open)(const struct crypto_open *open, struct crypto_opened *opened);
	void (*close)(void *handle);
	/* 1 if the device does this work. */
	int32_t (*does)(void *handle, const struct crypto_work *work);
	int32_t (*session_make)(void *handle, const struct crypto_work *work, void **session);
	void (*session_end)(void *handle, void *session);
	/* How many were taken, from the front. */
	uint16_t (*submit)(void *handle, uint16_t pair, const struct crypto_job *jobs, uint16_t count);
	uint16_t (*poll)(void *handle, uint16_t pair, struct crypto_done *done, uint16_t count);
	/* Lets a device read and write memory, and no more. */
	int32_t (*map)(void *handle, void *start, uint64_t bytes);
	int32_t (*unmap)(void *handle, void *start, uint64_t bytes);
};

const struct testudo_dpdk_crypto *testudo_dpdk_crypto(void);

#endif
