/* What the parts of libtestudo-dpdk-twin.so share: see device.c. */
#ifndef TESTUDO_DPDK_TWIN_H
#define TESTUDO_DPDK_TWIN_H

#include <ethdev_driver.h>
#include <openssl/evp.h>
#include <rte_flow_driver.h>
#include <rte_ring.h>
#include <rte_security_driver.h>
#include <rte_spinlock.h>
#include <stdbool.h>
#include <stdint.h>

/* The tables of an 82599 (datasheet 7.12.2): SAs each way, and addresses that inbound SAs may have. */
#define MAX_SAS 1024
#define MAX_ADDRESSES 128

#define MAX_QUEUES 8
#define RING_FRAMES 1024
#define MAX_FRAME 9728

/* AES-128-GCM as RFC 4106 has it, AES-128-GMAC as RFC 4543. */
#define KEY_BYTES 16
#define SALT_BYTES 4
#define ICV_BYTES 16
#define NONCE_BYTES 12
#define IV_BYTES 8
#define ESP_HEADER_BYTES 8
/* Pad length and next header, the end of what ESP encrypts (RFC 4303 2.4, 2.6). */
#define ESP_TRAILER_BYTES 2

/* What the device does wrong, every `lie_every` packets of its own kind. */
enum lie {
	LIE_NONE,
	LIE_UNMARKED,   /* opened, and not marked as opened */
	LIE_MARKED,     /* marked as authentic, and not looked at */
	LIE_FAILED,     /* authentic, and marked as failed */
	LIE_PLAINTEXT,  /* opened with a wrong bit in the text */
	LIE_CIPHERTEXT, /* sealed with a wrong bit in the text */
	LIE_UNSEALED,   /* sent as it came */
};

/* Counters, by their names in rte_eth_xstats_get(). */
#define COUNTERS(X) \
	X(tx_sealed) X(tx_plain) X(tx_no_sa) X(tx_bad_metadata) X(tx_bad_packet) X(tx_no_buffer) \
	X(tx_unlinked) X(rx_opened) X(rx_refused) X(rx_plain) X(rx_no_sa) X(rx_not_for_device) \
	X(lies) X(resets) X(sessions_refused)
#define AS_MEMBER(name) uint64_t name;
struct counters {
	COUNTERS(AS_MEMBER)
};

struct address {
	uint8_t bytes[16]; /* IPv4: the first four */
	bool is_ipv6;
};

/* One entry of the device's tables. */
struct sa {
	struct session *session; /* NULL: free */
	EVP_CIPHER_CTX *context;
	uint8_t salt[SALT_BYTES];
	rte_be32_t spi;
	uint16_t address; /* of an inbound SA, in the table of addresses */
	bool is_gmac;
	bool is_ingress;
	struct rte_security_ipsec_stats stats;
};

/* What a session keeps beside its entry: an inbound one gets that by a flow rule only, as at ixgbe. */
struct session {
	struct twin *twin;
	struct sa *sa; /* NULL: in no table, or lost by a reset */
	uint8_t key[KEY_BYTES];
	uint8_t salt[SALT_BYTES];
	rte_be32_t spi;
	bool is_gmac;
	bool is_ingress;
	uint64_t serial;
};

/* What travels with a packet to be sealed, in the dynamic field of its mbuf. */
union metadata {
	uint64_t whole;
	struct {
		uint16_t sa;           /* the entry's index, plus one */
		uint16_t tail_bytes;   /* padding, trailer and ICV */
		uint32_t generation;   /* of the tables: a reset makes all metadata stale */
	};
};

struct rx_queue {
	struct twin *twin;
	struct rte_ring *ring;
	struct rte_mempool *pool;
};

struct tx_queue {
	struct twin *twin;
	uint16_t id;
};

struct twin {
	struct twin *next;
	struct rte_eth_dev *dev;
	char name[RTE_ETH_NAME_MAX_LEN];
	char peer[RTE_ETH_NAME_MAX_LEN]; /* empty: its own frames come back to it */
	char tap[16]; /* the interface that is its cable; empty: none */
	int tap_fd;
	struct rte_ether_addr mac;
	struct rx_queue rx[MAX_QUEUES];
	struct tx_queue tx[MAX_QUEUES];
	bool is_started;
	bool needs_reset; /* no frame moves until the application has reset the device */

	rte_spinlock_t lock; /* of all below */
	struct sa outbound[MAX_SAS];
	struct sa inbound[MAX_SAS];
	struct address addresses[MAX_ADDRESSES];
	uint32_t address_users[MAX_ADDRESSES];
	uint32_t generation;
	struct rte_eth_stats stats;
	struct counters counters;

	/* From the arguments: how the device fails. Zero: never. */
	uint32_t sa_limit;
	uint32_t fail_session; /* every so many creations of a session, one fails */
	uint64_t reset_after;  /* packets sealed or opened */
	enum lie lie;
	uint64_t lie_every;
	uint64_t session_calls, secured, occasions, serial;
};

/* crypto.c. `esp` begins with the SPI; `bytes` are without the ICV, which follows. */
int sa_set_key(struct sa *sa, const struct session *session);
void sa_clear(struct sa *sa);
bool sa_seal(struct sa *sa, uint8_t *esp, uint32_t bytes);
bool sa_open(struct sa *sa, uint8_t *esp, uint32_t bytes);

/* packet.c: one frame on its way out or in. The lock is held. */
bool frame_seal(struct twin *twin, struct rte_mbuf *frame, union metadata metadata);
void frame_open(struct twin *twin, struct rte_mbuf *frame);

/* tap.c: a cable to an interface of the kernel's. */
int tap_open(struct twin *twin);
/* False if the interface has no room. */
bool tap_send(const struct twin *twin, const struct rte_mbuf *frame);
/* Bytes of the next frame; 0 if there is none. */
uint32_t tap_receive(const struct twin *twin, uint8_t *to, uint32_t room);

/* tables.c */
struct sa *table_add(struct twin *twin, struct session *session, const struct address *to);
void table_remove(struct twin *twin, struct session *session);
void tables_clear(struct twin *twin);
struct sa *table_find(struct twin *twin, rte_be32_t spi, const struct address *to);

/* security.c, flow.c */
extern const struct rte_security_ops security_ops;
extern const struct rte_flow_ops flow_ops;

/* faults.c */
int faults_parse(struct twin *twin, const char *arguments);
bool twin_lies(struct twin *twin, enum lie lie);
/* Counts a packet that was sealed or opened; true if the device resets itself now. */
bool twin_counts(struct twin *twin);

#endif
