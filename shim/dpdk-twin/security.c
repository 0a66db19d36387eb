/* The calls of rte_security: sessions of inline crypto, and what is said of a packet before it is sent. */
#include "twin.h"
#include <openssl/crypto.h>
#include <rte_cryptodev.h>
#include <string.h>

static struct session *own(struct rte_security_session *session)
{
	return (struct session *)session->driver_priv_data;
}

/* The key, if the transform is one that the device has. */
static const uint8_t *key_of(const struct rte_crypto_sym_xform *xform, bool is_ingress, bool *is_gmac)
{
	if (!xform || xform->next)
		return NULL;
	if (xform->type == RTE_CRYPTO_SYM_XFORM_AEAD) {
		const struct rte_crypto_aead_xform *aead = &xform->aead;
		enum rte_crypto_aead_operation op =
			is_ingress ? RTE_CRYPTO_AEAD_OP_DECRYPT : RTE_CRYPTO_AEAD_OP_ENCRYPT;
		*is_gmac = false;
		return aead->algo == RTE_CRYPTO_AEAD_AES_GCM && aead->op == op && aead->key.length == KEY_BYTES &&
		               aead->digest_length == ICV_BYTES && aead->iv.length == NONCE_BYTES
		               ? aead->key.data : NULL;
	}
	if (xform->type == RTE_CRYPTO_SYM_XFORM_AUTH) {
		const struct rte_crypto_auth_xform *auth = &xform->auth;
		enum rte_crypto_auth_operation op =
			is_ingress ? RTE_CRYPTO_AUTH_OP_VERIFY : RTE_CRYPTO_AUTH_OP_GENERATE;
		*is_gmac = true;
		return auth->algo == RTE_CRYPTO_AUTH_AES_GMAC && auth->op == op && auth->key.length == KEY_BYTES &&
		               auth->digest_length == ICV_BYTES && auth->iv.length == NONCE_BYTES
		               ? auth->key.data : NULL;
	}
	return NULL;
}

static bool is_offered(const struct twin *twin, const struct rte_security_session_conf *conf)
{
	const struct rte_eth_conf *configured = &twin->dev->data->dev_conf;
	const struct rte_security_ipsec_sa_options *options = &conf->ipsec.options;
	bool is_on = conf->ipsec.direction == RTE_SECURITY_IPSEC_SA_DIR_INGRESS
	                     ? configured->rxmode.offloads & RTE_ETH_RX_OFFLOAD_SECURITY
	                     : configured->txmode.offloads & RTE_ETH_TX_OFFLOAD_SECURITY;
	return conf->action_type == RTE_SECURITY_ACTION_TYPE_INLINE_CRYPTO &&
	       conf->protocol == RTE_SECURITY_PROTOCOL_IPSEC &&
	       conf->ipsec.proto == RTE_SECURITY_IPSEC_SA_PROTO_ESP && !options->esn && !options->udp_encap && is_on;
}

static int create(struct twin *twin, const struct rte_security_session_conf *conf, struct session *session)
{
	const uint8_t *key;
	session->is_ingress = conf->ipsec.direction == RTE_SECURITY_IPSEC_SA_DIR_INGRESS;
	key = key_of(conf->crypto_xform, session->is_ingress, &session->is_gmac);
	if (!key || !is_offered(twin, conf))
		return -ENOTSUP;
	/* ixgbe reads the salt after the key, others where the API has it: who gives both the same is right
	 * for all. */
	if (memcmp(key + KEY_BYTES, &conf->ipsec.salt, SALT_BYTES))
		return -EINVAL;
	session->twin = twin;
	session->serial = ++twin->serial;
	session->spi = rte_cpu_to_be_32(conf->ipsec.spi);
	memcpy(session->key, key, KEY_BYTES);
	memcpy(session->salt, &conf->ipsec.salt, SALT_BYTES);
	/* An inbound SA gets its entry with the address that its flow rule names. */
	return session->is_ingress || table_add(twin, session, NULL) ? 0 : -ENOSPC;
}

static int session_create(void *device, struct rte_security_session_conf *conf,
			  struct rte_security_session *session)
{
	struct twin *twin = ((struct rte_eth_dev *)device)->data->dev_private;
	int result = -EIO;
	rte_spinlock_lock(&twin->lock);
	if (!twin->needs_reset && (!twin->fail_session || ++twin->session_calls % twin->fail_session))
		result = create(twin, conf, own(session));
	if (result) {
		twin->counters.sessions_refused++;
		OPENSSL_cleanse(own(session), sizeof(struct session));
	}
	rte_spinlock_unlock(&twin->lock);
	return result;
}

static int session_destroy(void *device, struct rte_security_session *session)
{
	struct twin *twin = ((struct rte_eth_dev *)device)->data->dev_private;
	if (own(session)->twin != twin)
		return -ENODEV;
	rte_spinlock_lock(&twin->lock);
	table_remove(twin, own(session));
	rte_spinlock_unlock(&twin->lock);
	OPENSSL_cleanse(own(session), sizeof(struct session));
	return 0;
}

static unsigned int session_size(void *device)
{
	(void)device;
	return sizeof(struct session);
}

static int session_stats(void *device, struct rte_security_session *session,
			 struct rte_security_stats *stats)
{
	struct twin *twin = ((struct rte_eth_dev *)device)->data->dev_private;
	if (!session || own(session)->twin != twin)
		return -EINVAL;
	memset(stats, 0, sizeof *stats);
	stats->protocol = RTE_SECURITY_PROTOCOL_IPSEC;
	rte_spinlock_lock(&twin->lock);
	if (own(session)->sa)
		stats->ipsec = own(session)->sa->stats;
	rte_spinlock_unlock(&twin->lock);
	return 0;
}

/* Called when the packet is complete but for what the device does: the last byte but one of the text says how
 * long its padding is. */
static int set_metadata(void *device, struct rte_security_session *session, struct rte_mbuf *packet,
			void *unused)
{
	struct twin *twin = ((struct rte_eth_dev *)device)->data->dev_private;
	struct session *of = own(session);
	union metadata metadata = { 0 };
	const uint8_t *padding;
	uint8_t space;
	(void)unused;
	if (of->twin != twin || of->is_ingress || packet->pkt_len < ESP_TRAILER_BYTES + ICV_BYTES)
		return -EINVAL;
	padding = rte_pktmbuf_read(packet, packet->pkt_len - ICV_BYTES - ESP_TRAILER_BYTES, 1, &space);
	rte_spinlock_lock(&twin->lock);
	if (of->sa && padding) {
		metadata.sa = (uint16_t)(of->sa - twin->outbound + 1);
		metadata.generation = twin->generation;
		metadata.tail_bytes = (uint16_t)(*padding + ESP_TRAILER_BYTES + ICV_BYTES);
	}
	rte_spinlock_unlock(&twin->lock);
	*rte_security_dynfield(packet) = metadata.whole;
	return metadata.sa ? 0 : -ENOENT;
}

#define ONE_SIZE(bytes) { .min = (bytes), .max = (bytes), .increment = 0 }
static const struct rte_cryptodev_capabilities crypto_capabilities[] = {
	{ .op = RTE_CRYPTO_OP_TYPE_SYMMETRIC,
	  { .sym = { .xform_type = RTE_CRYPTO_SYM_XFORM_AUTH,
		     { .auth = { .algo = RTE_CRYPTO_AUTH_AES_GMAC, .block_size = 16, .key_size = ONE_SIZE(KEY_BYTES),
				 .digest_size = ONE_SIZE(ICV_BYTES), .iv_size = ONE_SIZE(NONCE_BYTES) } } } } },
	{ .op = RTE_CRYPTO_OP_TYPE_SYMMETRIC,
	  { .sym = { .xform_type = RTE_CRYPTO_SYM_XFORM_AEAD,
		     { .aead = { .algo = RTE_CRYPTO_AEAD_AES_GCM, .block_size = 16, .key_size = ONE_SIZE(KEY_BYTES),
				 .digest_size = ONE_SIZE(ICV_BYTES), .aad_size = ONE_SIZE(ESP_HEADER_BYTES),
				 .iv_size = ONE_SIZE(NONCE_BYTES) } } } } },
	RTE_CRYPTODEV_END_OF_CAPABILITIES_LIST(),
};

#define ESP(way, in, needs) \
	{ .action = RTE_SECURITY_ACTION_TYPE_INLINE_CRYPTO, .protocol = RTE_SECURITY_PROTOCOL_IPSEC, \
	  { .ipsec = { .proto = RTE_SECURITY_IPSEC_SA_PROTO_ESP, .mode = RTE_SECURITY_IPSEC_SA_MODE_##in, \
		       .direction = RTE_SECURITY_IPSEC_SA_DIR_##way } }, \
	  .crypto_capabilities = crypto_capabilities, .ol_flags = (needs) }
static const struct rte_security_capability capabilities[] = {
	ESP(EGRESS, TRANSPORT, RTE_SECURITY_TX_OLOAD_NEED_MDATA),
	ESP(INGRESS, TRANSPORT, 0),
	ESP(EGRESS, TUNNEL, RTE_SECURITY_TX_OLOAD_NEED_MDATA),
	ESP(INGRESS, TUNNEL, 0),
	{ .action = RTE_SECURITY_ACTION_TYPE_NONE },
};

static const struct rte_security_capability *capabilities_get(void *device)
{
	(void)device;
	return capabilities;
}

const struct rte_security_ops security_ops = {
	.session_create = session_create,
	.session_get_size = session_size,
	.session_stats_get = session_stats,
	.session_destroy = session_destroy,
	.set_pkt_metadata = set_metadata,
	.capabilities_get = capabilities_get,
};
