/* Devices that do the cryptography of IPsec as packets pass them: what they declare, their sessions with the
 * flow rules of those that are received, and what goes with a packet to be sealed. */
#include "security.h"
#include <errno.h>
#include <netinet/in.h>
#include <rte_cryptodev.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_flow.h>
#include <rte_ip.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_security.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NONCE_BYTES 12u
#define IV_BYTES 8u

/* A device with sessions. */
struct engine {
	uint16_t port;
	bool sums; /* the device computes IPv4's checksum, and is told where that is */
	void *context;
	struct rte_mempool *pool;
};

/* One session. Drivers keep the address of the key that they are given, so that it stays as long. */
struct session {
	void *its;
	struct rte_flow *rule;
	bool needs_metadata;
	uint8_t key[MAX_KEY_BYTES + SECURITY_SALT_BYTES];
};

/* Whether a range of lengths has this one. */
static bool has(const struct rte_crypto_param_range *range, uint16_t bytes)
{
	if (bytes < range->min || bytes > range->max)
		return false;
	return bytes == range->min || bytes == range->max ||
	       (range->increment != 0 && (bytes - range->min) % range->increment == 0);
}

/* The IV as a driver counts it: the nonce, or what of it is in the packet. 0: neither. */
static uint16_t iv_of(const struct rte_crypto_param_range *range)
{
	if (has(range, NONCE_BYTES))
		return NONCE_BYTES;
	return has(range, IV_BYTES) ? IV_BYTES : 0;
}

static uint32_t suites_of_aead(const struct rte_cryptodev_symmetric_capability *its)
{
	uint32_t suites = 0;
	if (its->aead.algo != RTE_CRYPTO_AEAD_AES_GCM || iv_of(&its->aead.iv_size) == 0)
		return 0;
	for (uint16_t key = 16; key <= 32; key += 8)
		for (uint16_t icv = 8; icv <= 16; icv += 4)
			if (has(&its->aead.key_size, key) && has(&its->aead.digest_size, icv))
				suites |= GCM_BIT(key, icv);
	return suites;
}

static uint32_t suites_of_auth(const struct rte_cryptodev_symmetric_capability *its)
{
	uint32_t suites = 0;
	if (its->auth.algo != RTE_CRYPTO_AUTH_AES_GMAC || iv_of(&its->auth.iv_size) == 0)
		return 0;
	for (uint16_t key = 16; key <= 32; key += 8)
		if (has(&its->auth.key_size, key) && has(&its->auth.digest_size, 16))
			suites |= GMAC_BIT(key);
	return suites;
}

/* An algorithm of a list that ends with an undefined operation; NULL if it is not there. */
static const struct rte_cryptodev_symmetric_capability *
algorithm_of(const struct rte_cryptodev_capabilities *list, enum rte_crypto_sym_xform_type type, int algorithm)
{
	for (; list != NULL && list->op != RTE_CRYPTO_OP_TYPE_UNDEFINED; list++) {
		const struct rte_cryptodev_symmetric_capability *its = &list->sym;
		if (list->op != RTE_CRYPTO_OP_TYPE_SYMMETRIC || its->xform_type != type)
			continue;
		if ((type == RTE_CRYPTO_SYM_XFORM_AEAD && (int)its->aead.algo == algorithm) ||
		    (type == RTE_CRYPTO_SYM_XFORM_AUTH && (int)its->auth.algo == algorithm))
			return its;
	}
	return NULL;
}

static uint32_t suites_of(const struct rte_cryptodev_capabilities *list)
{
	const struct rte_cryptodev_symmetric_capability *gcm, *gmac;
	gcm = algorithm_of(list, RTE_CRYPTO_SYM_XFORM_AEAD, RTE_CRYPTO_AEAD_AES_GCM);
	gmac = algorithm_of(list, RTE_CRYPTO_SYM_XFORM_AUTH, RTE_CRYPTO_AUTH_AES_GMAC);
	return (gcm != NULL ? suites_of_aead(gcm) : 0) | (gmac != NULL ? suites_of_auth(gmac) : 0);
}

static bool is_inline(const struct rte_security_capability *its)
{
	return its->protocol == RTE_SECURITY_PROTOCOL_IPSEC &&
	       (its->action == RTE_SECURITY_ACTION_TYPE_INLINE_CRYPTO ||
		its->action == RTE_SECURITY_ACTION_TYPE_INLINE_PROTOCOL);
}

static struct security_offer offer_of(const struct rte_security_capability *its)
{
	uint32_t trailer = RTE_SECURITY_TX_HW_TRAILER_OFFLOAD | RTE_SECURITY_RX_HW_TRAILER_OFFLOAD;
	bool is_crypto = its->action == RTE_SECURITY_ACTION_TYPE_INLINE_CRYPTO;
	return (struct security_offer){
		.takes = is_crypto ? TAKES_CRYPTOGRAPHY : TAKES_PROTOCOL,
		.is_ah = its->ipsec.proto == RTE_SECURITY_IPSEC_SA_PROTO_AH,
		.is_tunnel = its->ipsec.mode == RTE_SECURITY_IPSEC_SA_MODE_TUNNEL,
		.is_inbound = its->ipsec.direction == RTE_SECURITY_IPSEC_SA_DIR_INGRESS,
		.has_esn = its->ipsec.options.esn,
		.has_udp = its->ipsec.options.udp_encap,
		.has_trailer = (its->ol_flags & trailer) != 0,
		.suites = suites_of(its->crypto_capabilities),
	};
}

static int32_t offers(uint16_t port, struct security_offer *list, uint32_t room)
{
	void *context = rte_eth_dev_get_sec_ctx(port);
	const struct rte_security_capability *its = context != NULL ? rte_security_capabilities_get(context) : NULL;
	uint32_t count = 0;
	if (its == NULL)
		return -ENOTSUP;
	for (; its->action != RTE_SECURITY_ACTION_TYPE_NONE && count < room; its++)
		if (is_inline(its))
			list[count++] = offer_of(its);
	return (int32_t)count;
}

static int32_t renew(void *handle)
{
	struct engine *engine = handle;
	struct rte_eth_conf configured;
	int outcome = rte_eth_dev_conf_get(engine->port, &configured);
	engine->context = rte_eth_dev_get_sec_ctx(engine->port);
	if (outcome < 0)
		return outcome;
	engine->sums = (configured.txmode.offloads & RTE_ETH_TX_OFFLOAD_IPV4_CKSUM) != 0;
	return engine->context != NULL ? 0 : -ENOTSUP;
}

static void close_engine(void *handle)
{
	struct engine *engine = handle;
	rte_mempool_free(engine->pool);
	free(engine);
}

static int32_t open_engine(uint16_t port, uint32_t sessions, void **handle)
{
	char name[RTE_MEMPOOL_NAMESIZE];
	struct engine *engine = calloc(1, sizeof *engine);
	if (engine == NULL)
		return -ENOMEM;
	engine->port = port;
	int32_t outcome = renew(engine);
	if (outcome == 0) {
		unsigned int bytes = rte_security_session_get_size(engine->context);
		snprintf(name, sizeof name, "testudo-s-%u", port);
		engine->pool = bytes == 0 ? NULL : rte_mempool_create(name, sessions, bytes, 0, 0, NULL, NULL, NULL,
								      NULL, SOCKET_ID_ANY, 0);
		if (engine->pool == NULL)
			outcome = bytes == 0 ? -ENOTSUP : -rte_errno;
	}
	if (outcome < 0) {
		free(engine);
		return outcome;
	}
	*handle = engine;
	return 0;
}

/* What the device declares of such a session; NULL if nothing. */
static const struct rte_security_capability *declared(const struct engine *engine,
						      const struct security_session *wanted)
{
	const struct rte_security_capability *its = rte_security_capabilities_get(engine->context);
	for (; its != NULL && its->action != RTE_SECURITY_ACTION_TYPE_NONE; its++) {
		struct security_offer offer = offer_of(its);
		uint32_t suite = wanted->algorithm == SUITE_GCM ? GCM_BIT(wanted->key_bytes, wanted->icv_bytes)
								: GMAC_BIT(wanted->key_bytes);
		if (is_inline(its) && offer.takes == TAKES_CRYPTOGRAPHY && !offer.has_trailer &&
		    offer.is_ah == wanted->is_ah && offer.is_tunnel == wanted->is_tunnel &&
		    offer.is_inbound == wanted->is_inbound && (offer.suites & suite) != 0)
			return its;
	}
	return NULL;
}

static struct rte_crypto_sym_xform transform(const struct security_session *wanted, const uint8_t *key,
					     const struct rte_security_capability *declared)
{
	struct rte_crypto_sym_xform xform = { 0 };
	const struct rte_cryptodev_capabilities *list = declared->crypto_capabilities;
	if (wanted->algorithm == SUITE_GCM) {
		xform.type = RTE_CRYPTO_SYM_XFORM_AEAD;
		xform.aead.op = wanted->is_inbound ? RTE_CRYPTO_AEAD_OP_DECRYPT : RTE_CRYPTO_AEAD_OP_ENCRYPT;
		xform.aead.algo = RTE_CRYPTO_AEAD_AES_GCM;
		xform.aead.key.data = key;
		xform.aead.key.length = wanted->key_bytes;
		xform.aead.iv.length =
			iv_of(&algorithm_of(list, xform.type, RTE_CRYPTO_AEAD_AES_GCM)->aead.iv_size);
		xform.aead.digest_length = wanted->icv_bytes;
		xform.aead.aad_length = 8; /* SPI and number (RFC 4106 5) */
	} else {
		xform.type = RTE_CRYPTO_SYM_XFORM_AUTH;
		xform.auth.op = wanted->is_inbound ? RTE_CRYPTO_AUTH_OP_VERIFY : RTE_CRYPTO_AUTH_OP_GENERATE;
		xform.auth.algo = RTE_CRYPTO_AUTH_AES_GMAC;
		xform.auth.key.data = key;
		xform.auth.key.length = wanted->key_bytes;
		xform.auth.iv.length =
			iv_of(&algorithm_of(list, xform.type, RTE_CRYPTO_AUTH_AES_GMAC)->auth.iv_size);
		xform.auth.digest_length = wanted->icv_bytes;
	}
	return xform;
}

static void set_addresses(struct rte_security_ipsec_tunnel_param *tunnel, const struct security_session *wanted)
{
	if (wanted->is_ipv6) {
		tunnel->type = RTE_SECURITY_IPSEC_TUNNEL_IPV6;
		memcpy(&tunnel->ipv6.src_addr, wanted->source, 16);
		memcpy(&tunnel->ipv6.dst_addr, wanted->destination, 16);
	} else {
		tunnel->type = RTE_SECURITY_IPSEC_TUNNEL_IPV4;
		memcpy(&tunnel->ipv4.src_ip, wanted->source, 4);
		memcpy(&tunnel->ipv4.dst_ip, wanted->destination, 4);
	}
}

/* By what a device knows the packets of an SA: destination, protocol and SPI (RFC 4301 4.1). */
struct rule {
	struct rte_flow_item_ipv4 ipv4, ipv4_mask;
	struct rte_flow_item_ipv6 ipv6, ipv6_mask;
	struct rte_flow_item_esp esp;
	struct rte_flow_item_ah ah;
	struct rte_flow_item items[4];
};

static void set_rule(struct rule *rule, const struct security_session *wanted)
{
	memset(rule, 0, sizeof *rule);
	memcpy(&rule->ipv4.hdr.src_addr, wanted->source, 4);
	memcpy(&rule->ipv4.hdr.dst_addr, wanted->destination, 4);
	memset(&rule->ipv4_mask.hdr.dst_addr, 0xFF, 4);
	memcpy(rule->ipv6.hdr.src_addr, wanted->source, 16);
	memcpy(rule->ipv6.hdr.dst_addr, wanted->destination, 16);
	memset(rule->ipv6_mask.hdr.dst_addr, 0xFF, 16);
	rule->esp.hdr.spi = rule->ah.spi = rte_cpu_to_be_32(wanted->spi);
	rule->items[0].type = RTE_FLOW_ITEM_TYPE_ETH;
	rule->items[1] = wanted->is_ipv6
				 ? (struct rte_flow_item){ .type = RTE_FLOW_ITEM_TYPE_IPV6, .spec = &rule->ipv6,
							   .mask = &rule->ipv6_mask }
				 : (struct rte_flow_item){ .type = RTE_FLOW_ITEM_TYPE_IPV4, .spec = &rule->ipv4,
							   .mask = &rule->ipv4_mask };
	rule->items[2] = wanted->is_ah
				 ? (struct rte_flow_item){ .type = RTE_FLOW_ITEM_TYPE_AH, .spec = &rule->ah,
							   .mask = &rte_flow_item_ah_mask }
				 : (struct rte_flow_item){ .type = RTE_FLOW_ITEM_TYPE_ESP, .spec = &rule->esp,
							   .mask = &rte_flow_item_esp_mask };
	rule->items[3].type = RTE_FLOW_ITEM_TYPE_END;
}

/* Some drivers take a rule with nothing but the session, and give the packets to the queue that they would go
 * to anyway; others want to be told a queue. Not validated first: ixgbe makes the entry even then. */
static int32_t make_rule(uint16_t port, const struct security_session *wanted, struct session *session)
{
	struct rule rule;
	struct rte_flow_error error = { 0 };
	struct rte_flow_attr attributes = { .ingress = 1 };
	struct rte_flow_action_queue first = { .index = 0 };
	struct rte_flow_action alone[] = { { RTE_FLOW_ACTION_TYPE_SECURITY, session->its },
					   { RTE_FLOW_ACTION_TYPE_END, NULL } };
	struct rte_flow_action queued[] = { { RTE_FLOW_ACTION_TYPE_SECURITY, session->its },
					    { RTE_FLOW_ACTION_TYPE_QUEUE, &first },
					    { RTE_FLOW_ACTION_TYPE_END, NULL } };
	set_rule(&rule, wanted);
	session->rule = rte_flow_create(port, &attributes, rule.items, alone, &error);
	int32_t reason = rte_errno;
	if (session->rule == NULL && reason != ENOSPC)
		session->rule = rte_flow_create(port, &attributes, rule.items, queued, &error);
	return session->rule != NULL ? 0 : -(reason != 0 ? reason : EIO);
}

static void forget(void *handle)
{
	struct session *session = handle;
	explicit_bzero(session, sizeof *session);
	free(session);
}

static int32_t session_end(void *handle, void *ended)
{
	struct engine *engine = handle;
	struct session *session = ended;
	struct rte_flow_error error;
	/* A driver that knows no rule of this kind any more may still have the session. */
	if (session->rule != NULL)
		rte_flow_destroy(engine->port, session->rule, &error);
	session->rule = NULL;
	int32_t outcome = rte_security_session_destroy(engine->context, session->its);
	if (outcome == 0)
		forget(session);
	return outcome;
}

static int32_t session_make(void *handle, const struct security_session *wanted, void **made)
{
	struct engine *engine = handle;
	const struct rte_security_capability *its = declared(engine, wanted);
	if (its == NULL || wanted->key_bytes > MAX_KEY_BYTES)
		return -ENOTSUP;
	struct session *session = calloc(1, sizeof *session);
	if (session == NULL)
		return -ENOMEM;
	memcpy(session->key, wanted->key, wanted->key_bytes + SECURITY_SALT_BYTES);
	struct rte_crypto_sym_xform xform = transform(wanted, session->key, its);
	struct rte_security_session_conf conf = {
		.action_type = RTE_SECURITY_ACTION_TYPE_INLINE_CRYPTO,
		.protocol = RTE_SECURITY_PROTOCOL_IPSEC,
		.crypto_xform = &xform,
		.userdata = (void *)(uintptr_t)wanted->number,
	};
	conf.ipsec.spi = wanted->spi;
	/* Some drivers read it here, others after the key. */
	memcpy(&conf.ipsec.salt, wanted->key + wanted->key_bytes, SECURITY_SALT_BYTES);
	conf.ipsec.direction = its->ipsec.direction;
	conf.ipsec.proto = its->ipsec.proto;
	conf.ipsec.mode = its->ipsec.mode;
	set_addresses(&conf.ipsec.tunnel, wanted);
	session->needs_metadata = (its->ol_flags & RTE_SECURITY_TX_OLOAD_NEED_MDATA) != 0;
	session->its = rte_security_session_create(engine->context, &conf, engine->pool);
	/* It gives no reason. */
	if (session->its == NULL) {
		forget(session);
		return -EREMOTEIO;
	}
	int32_t outcome = wanted->is_inbound ? make_rule(engine->port, wanted, session) : 0;
	if (outcome == 0)
		*made = session;
	else
		/* A session that does not end keeps its memory: its driver may use that. */
		session_end(engine, session);
	return outcome;
}

static int32_t prepare(void *handle, void *of, void *packet, uint16_t link_bytes, uint16_t ip_bytes)
{
	struct engine *engine = handle;
	struct session *session = of;
	struct rte_mbuf *mbuf = packet;
	bool is_ipv4 = ip_bytes == sizeof(struct rte_ipv4_hdr);
	mbuf->tx_offload = rte_mbuf_tx_offload(link_bytes, ip_bytes, 0, 0, 0, 0, 0);
	if (session->needs_metadata &&
	    rte_security_set_pkt_metadata(engine->context, session->its, mbuf, NULL) < 0)
		return -ENOENT;
	mbuf->ol_flags |= RTE_MBUF_F_TX_SEC_OFFLOAD | (is_ipv4 ? RTE_MBUF_F_TX_IPV4 : RTE_MBUF_F_TX_IPV6);
	if (is_ipv4 && engine->sums) {
		/* ixgbe tells its device that a packet is IPv4 only together with this. */
		rte_pktmbuf_mtod_offset(mbuf, struct rte_ipv4_hdr *, link_bytes)->hdr_checksum = 0;
		mbuf->ol_flags |= RTE_MBUF_F_TX_IP_CKSUM;
	}
	return 0;
}

static void undo(void *packet)
{
	struct rte_mbuf *mbuf = packet;
	uint64_t both = RTE_MBUF_F_TX_SEC_OFFLOAD | RTE_MBUF_F_TX_IP_CKSUM;
	if ((mbuf->ol_flags & both) == both) {
		struct rte_ipv4_hdr *ip = rte_pktmbuf_mtod_offset(mbuf, struct rte_ipv4_hdr *, mbuf->l2_len);
		ip->hdr_checksum = rte_ipv4_cksum(ip);
	}
	mbuf->ol_flags = 0;
}

static const struct testudo_dpdk_security table = {
	.version = TESTUDO_DPDK_SECURITY_VERSION,
	.size = sizeof table,
	.offers = offers,
	.open = open_engine,
	.close = close_engine,
	.renew = renew,
	.session_make = session_make,
	.session_end = session_end,
	.session_forget = forget,
	.prepare = prepare,
	.undo = undo,
};

__attribute__((visibility("default"))) const struct testudo_dpdk_security *testudo_dpdk_security(void)
{
	return &table;
}
