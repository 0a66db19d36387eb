/* libtestudo-dpdk.so: DPDK as Testudo's gateway sees it. The gateway opens this library at run time; it is
 * built against the DPDK that is installed, and hides what differs between versions of that.
 *
 * The interface is one structure of functions. Its numbers are of fixed width, and a function returns 0 (or
 * a count) or a negative errno. The gateway's side of it is crates/ports/dpdk/src/raw.rs: both change
 * together, with TESTUDO_DPDK_VERSION. */
#ifndef TESTUDO_DPDK_PLUGIN_H
#define TESTUDO_DPDK_PLUGIN_H

#include <stdint.h>

#define TESTUDO_DPDK_VERSION 3u

/* What a device can do, and what it is to do. */
#define OFFERS_SCATTER (1u << 0)    /* receives frames into several mbufs */
#define OFFERS_CHECKSUMS (1u << 1)  /* says whether checksums are right */
#define OFFERS_SEGMENTS (1u << 2)   /* sends frames out of several mbufs */
#define OFFERS_FAST_FREE (1u << 3)  /* gives mbufs back faster if all are of one mempool */
#define OFFERS_REMOVAL (1u << 4)    /* tells if it is taken away */
#define IS_VIRTUAL (1u << 5)        /* no hardware: it reads and writes memory by virtual addresses */
#define WANTS_PROMISCUOUS (1u << 6) /* to receive frames for other stations as well */
#define OFFERS_TCP_SEGMENTATION (1u << 7) /* cuts frames with TCP that it sends (TSO) */
#define OFFERS_UDP_SEGMENTATION (1u << 8) /* the same with UDP (USO) */
#define OFFERS_JOINING (1u << 9)          /* hands over segments of TCP in one frame (LRO) */
#define OFFERS_IP_CHECKSUMS (1u << 10)    /* fills the header checksums of IPv4 that it sends */
#define OFFERS_UDP_CHECKSUMS (1u << 11)   /* fills checksums of UDP that it sends */
/* Cryptography of IPsec: security.h has what of it. */
#define OFFERS_SEALING (1u << 16) /* of what is sent */
#define OFFERS_OPENING (1u << 17) /* of what is received */

/* By what a device spreads packets over its queues. */
#define SPREADS_BY_ESP (1u << 0) /* SPI */
#define SPREADS_BY_AH (1u << 1)
#define SPREADS_BY_UDP (1u << 2) /* ports */
#define SPREADS_BY_TCP (1u << 3)
#define SPREADS_BY_IP (1u << 4) /* addresses */

/* What happened to a device, as bits of its word of events. */
#define EVENT_REMOVED (1u << 0)
#define EVENT_RESET (1u << 1)

/* What is known of an mbuf, one byte for each. */
#define MBUF_FREE 0u
#define MBUF_OUT 1u     /* the device's, to receive into; or just taken by the gateway */
#define MBUF_TAKEN 2u   /* the gateway's, which sets it */
#define MBUF_SENDING 3u /* the device's, to send; the gateway sets it */

struct dpdk_info {
	char name[64];
	char driver[64];
	uint8_t mac[6];
	uint16_t mtu;
	uint16_t min_mtu;
	uint16_t max_mtu;
	uint16_t max_rx_queues;
	uint16_t max_tx_queues;
	uint32_t min_buffer; /* bytes of an mbuf's room, without DPDK's headroom */
	uint32_t max_frame;
	uint32_t offers;  /* OFFERS_… */
	uint32_t spreads; /* SPREADS_BY_… */
};

struct dpdk_config {
	void *pool;
	uint16_t rx_queues;
	uint16_t tx_queues;
	uint16_t rx_descriptors;
	uint16_t tx_descriptors;
	uint16_t mtu; /* 0: the device's own */
	uint16_t padding;
	uint32_t offers;  /* those that are to be used */
	uint32_t spreads; /* the same */
};

struct dpdk_pool {
	void *handle;
	uint8_t *states;  /* of each mbuf */
	uint64_t first;   /* the address of the first mbuf; the others follow */
	uint32_t stride;  /* bytes from one to the next, a power of two */
	uint32_t count;
	uint64_t refused; /* address of a count of mbufs that came back and were not out */
};

struct dpdk_statistics {
	uint64_t rx_packets;
	uint64_t rx_bytes;
	uint64_t rx_missed;   /* no descriptor was free: the worker was too slow */
	uint64_t rx_errors;
	uint64_t rx_no_mbuf;
	uint64_t tx_packets;
	uint64_t tx_bytes;
	uint64_t tx_errors;
	uint32_t link_mbps; /* 0 if it is not known */
	uint8_t link_up;
	uint8_t padding[3];
};

struct testudo_dpdk {
	uint32_t version; /* TESTUDO_DPDK_VERSION */
	uint32_t size;    /* of this structure */
	const char *dpdk_version;

	/* The EAL, once for each process; pins the calling thread. */
	int32_t (*eal_start)(int32_t argc, char **argv);
	/* 1 if addresses for devices are virtual ones, 0 if physical. */
	int32_t (*uses_virtual_addresses)(void);
	/* For each thread that receives or sends. */
	int32_t (*thread_register)(void);
	void (*thread_unregister)(void);
	/* Copies what DPDK has said since the last call, as text, and returns its length. */
	int32_t (*said)(char *text, uint32_t room);

	/* Makes memory known to DPDK, or unknown again. */
	int32_t (*memory_register)(void *start, uint64_t bytes, uint64_t page_bytes);
	int32_t (*memory_unregister)(void *start, uint64_t bytes);
	/* Physical address; UINT64_MAX if it is not known. */
	uint64_t (*physical_address)(const void *start);
	/* Lets a device read and write memory. */
	int32_t (*memory_map)(uint16_t port, void *start, uint64_t address, uint64_t bytes);

	/* A mempool of `count` mbufs. With `room_inside` bytes each has a room of its own; with 0 none, and
	 * `room` bytes wherever its buf_addr points. */
	int32_t (*pool_make)(const char *name, uint32_t count, uint32_t room, uint32_t room_inside,
			     struct dpdk_pool *made);
	void (*pool_end)(void *pool);
	/* As many as there are, up to `count`. */
	int32_t (*pool_get)(void *pool, void **mbufs, uint32_t count);
	void (*pool_put)(void *pool, void *const *mbufs, uint32_t count);

	/* Finds a device or makes it, and gives its number. */
	int32_t (*device_find)(const char *arguments, uint16_t *port);
	int32_t (*device_info)(uint16_t port, struct dpdk_info *info);
	/* Configures and starts it. Changes `config` to what became of it. */
	int32_t (*device_start)(uint16_t port, struct dpdk_config *config);
	int32_t (*device_stop)(uint16_t port);
	/* Back to what it was before it was configured. */
	int32_t (*device_reset)(uint16_t port);
	int32_t (*device_close)(uint16_t port);
	int32_t (*device_statistics)(uint16_t port, struct dpdk_statistics *statistics);
	/* The word of events, EVENT_…, which the gateway clears. */
	uint32_t *(*device_events)(uint16_t port);

	uint16_t (*receive)(uint16_t port, uint16_t queue, void **mbufs, uint16_t count);
	uint16_t (*send)(uint16_t port, uint16_t queue, void **mbufs, uint16_t count);
	/* Has the driver write into frames what it needs to cut them or to fill their checksums. Returns how
	 * many it would send. */
	uint16_t (*prepare)(uint16_t port, uint16_t queue, void **mbufs, uint16_t count);
	/* Frees mbufs that were sent; -ENOTSUP if the device does that only when it sends. */
	int32_t (*reap)(uint16_t port, uint16_t queue);
};

/* The one symbol that is exported. */
const struct testudo_dpdk *testudo_dpdk(void);

/* The parts. */
int32_t eal_start(int32_t argc, char **argv);
int32_t uses_virtual_addresses(void);
int32_t thread_register(void);
void thread_unregister(void);
int32_t said(char *text, uint32_t room);

int32_t memory_register(void *start, uint64_t bytes, uint64_t page_bytes);
int32_t memory_unregister(void *start, uint64_t bytes);
uint64_t physical_address(const void *start);
int32_t memory_map(uint16_t port, void *start, uint64_t address, uint64_t bytes);

int32_t pool_make(const char *name, uint32_t count, uint32_t room, uint32_t room_inside,
		  struct dpdk_pool *made);
void pool_end(void *pool);
int32_t pool_get(void *pool, void **mbufs, uint32_t count);
void pool_put(void *pool, void *const *mbufs, uint32_t count);
/* Which pool a device has, and that the calling thread is in a call for the device, which no other is. */
void pool_of_port(uint16_t port, void *pool);
void pool_enter(uint16_t port);
void pool_leave(void);

int32_t device_find(const char *arguments, uint16_t *port);
int32_t device_info(uint16_t port, struct dpdk_info *info);
int32_t device_start(uint16_t port, struct dpdk_config *config);
int32_t device_stop(uint16_t port);
int32_t device_reset(uint16_t port);
int32_t device_close(uint16_t port);
int32_t device_statistics(uint16_t port, struct dpdk_statistics *statistics);
uint32_t *device_events(uint16_t port);
uint16_t receive(uint16_t port, uint16_t queue, void **mbufs, uint16_t count);
uint16_t send_burst(uint16_t port, uint16_t queue, void **mbufs, uint16_t count);
uint16_t prepare_burst(uint16_t port, uint16_t queue, void **mbufs, uint16_t count);
int32_t reap(uint16_t port, uint16_t queue);

#endif
