/* The third interface of libtestudo-dpdk.so: devices that do the cryptography of IPsec as packets pass them
 * (rte_security, inline crypto). The gateway's side is crates/ports/dpdk/src/security/raw.rs: both change
 * together, with TESTUDO_DPDK_SECURITY_VERSION.
 *
 * A session is an SA's key in one direction. One for what is received comes with a flow rule, by which the
 * device knows its packets. */
#ifndef TESTUDO_DPDK_SECURITY_H
#define TESTUDO_DPDK_SECURITY_H

#include <stdint.h>

#define TESTUDO_DPDK_SECURITY_VERSION 1u

/* What a device takes over. */
#define TAKES_CRYPTOGRAPHY 1u
#define TAKES_PROTOCOL 2u

/* Algorithms, and suites as bits: AES-GCM by key (16, 24, 32) and ICV (8, 12, 16 bytes), then AES-GMAC by key. */
#define SUITE_GCM 0u
#define SUITE_GMAC 1u
#define GCM_BIT(key, icv) (1u << (((key) / 8u - 2u) * 3u + (icv) / 4u - 2u))
#define GMAC_BIT(key) (1u << (9u + (key) / 8u - 2u))

#define MAX_KEY_BYTES 32u
#define SECURITY_SALT_BYTES 4u

/* One of the things that a device declares. */
struct security_offer {
	uint8_t takes; /* TAKES_… */
	uint8_t is_ah;
	uint8_t is_tunnel;
	uint8_t is_inbound;
	uint8_t has_esn;
	uint8_t has_udp;
	uint8_t has_trailer; /* the device writes or removes ESP's trailer */
	uint8_t padding;
	uint32_t suites;
};

/* What a session is to be. Addresses of IPv4 are the first four bytes. */
struct security_session {
	const uint8_t *key; /* with the salt after it */
	uint8_t key_bytes;  /* without the salt */
	uint8_t icv_bytes;
	uint8_t algorithm; /* SUITE_… */
	uint8_t is_ah;
	uint8_t is_tunnel;
	uint8_t is_inbound;
	uint8_t is_ipv6;
	uint8_t padding;
	uint32_t spi;
	uint8_t source[16]; /* zeros if it is not known */
	uint8_t destination[16];
	uint32_t number; /* for the driver to keep */
};

struct testudo_dpdk_security {
	uint32_t version;
	uint32_t size;
	/* What the device declares, up to `room`; how much that is. -ENOTSUP if it does no cryptography. */
	int32_t (*offers)(uint16_t port, struct security_offer *offers, uint32_t room);
	/* For a device that was started with OFFERS_SEALING and OFFERS_OPENING, and so many sessions. */
	int32_t (*open)(uint16_t port, uint32_t sessions, void **handle);
	/* After the device was closed. */
	void (*close)(void *handle);
	/* After the device was reset: its earlier sessions have been ended. */
	int32_t (*renew)(void *handle);
	int32_t (*session_make)(void *handle, const struct security_session *session, void **made);
	/* With its rule. If that fails, it may be tried again. */
	int32_t (*session_end)(void *handle, void *session);
	/* The session is forgotten, whatever the device has of it. */
	void (*session_forget)(void *session);
	/* Has a packet sealed as it leaves: its mbufs describe all of it, with zeros for the ICV. */
	int32_t (*prepare)(void *handle, void *session, void *mbuf, uint16_t link_bytes, uint16_t ip_bytes);
	/* The packet does not leave after all: it is as it was. */
	void (*undo)(void *mbuf);
};

const struct testudo_dpdk_security *testudo_dpdk_security(void);

#endif
