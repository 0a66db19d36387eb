/* Plays devices with inline cryptography through DPDK's public calls alone, as a gateway would: commands from
 * standard input, one answer line for each. The arguments are the EAL's.
 *
 *     start PORT                                    stop PORT                reset PORT
 *     session PORT in|out gcm|gmac SPI KEY SALT     destroy PORT SESSION     stats PORT SESSION
 *     rule PORT SESSION ADDRESS                     unrule PORT RULE
 *     send PORT SESSION|- L3_BYTES FRAME            receive PORT             split BYTES
 *     capabilities PORT                             counter PORT NAME        events
 *
 * Keys, addresses and frames are in hexadecimal. `split` makes the next frames of several segments. */
#include <rte_cryptodev.h>
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_flow.h>
#include <rte_malloc.h>
#include <rte_security.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ITEMS 4096
#define LINE_BYTES 65536
#define IV_AT 0

static struct rte_mempool *packets, *sessions_pool;
static void *sessions[MAX_ITEMS];
static struct rte_flow *rules[MAX_ITEMS];
static unsigned int session_count, rule_count, events;
static uint32_t segment_bytes = UINT16_MAX;

static int on_reset(uint16_t port, enum rte_eth_event_type type, void *data, void *more)
{
	(void)port, (void)type, (void)data, (void)more;
	events++;
	return 0;
}

static struct rte_security_ctx *security(uint16_t port)
{
	return rte_eth_dev_get_sec_ctx(port);
}

static size_t bytes_of(const char *hex, uint8_t *to, size_t room)
{
	size_t count = 0;
	unsigned int byte;
	for (; count < room && sscanf(hex, "%2x", &byte) == 1; hex += 2)
		to[count++] = (uint8_t)byte;
	return count;
}

static bool start_port(uint16_t port)
{
	struct rte_eth_conf conf = { .rxmode.offloads = RTE_ETH_RX_OFFLOAD_SECURITY,
				     .txmode.offloads = RTE_ETH_TX_OFFLOAD_SECURITY |
							RTE_ETH_TX_OFFLOAD_MULTI_SEGS };
	unsigned int size = rte_security_session_get_size(security(port));
	if (!sessions_pool)
		sessions_pool = rte_mempool_create("sessions", MAX_ITEMS, size, 0, 0, NULL, NULL, NULL, NULL,
						   SOCKET_ID_ANY, 0);
	rte_eth_dev_callback_register(port, RTE_ETH_EVENT_INTR_RESET, on_reset, NULL);
	return sessions_pool && !rte_eth_dev_configure(port, 1, 1, &conf) &&
	       !rte_eth_rx_queue_setup(port, 0, 256, rte_socket_id(), NULL, packets) &&
	       !rte_eth_tx_queue_setup(port, 0, 256, rte_socket_id(), NULL) && !rte_eth_dev_start(port);
}

/* The key with the salt after it, as ixgbe wants it, and the salt where the API has it. */
static void *make_session(uint16_t port, bool is_in, bool is_gmac, uint32_t spi, const char *key,
			  const char *salt)
{
	uint8_t material[64];
	size_t bytes = bytes_of(key, material, 32);
	struct rte_crypto_sym_xform xform = { 0 };
	struct rte_security_session_conf conf = {
		.action_type = RTE_SECURITY_ACTION_TYPE_INLINE_CRYPTO,
		.protocol = RTE_SECURITY_PROTOCOL_IPSEC,
		.ipsec = { .spi = spi,
			   .direction = is_in ? RTE_SECURITY_IPSEC_SA_DIR_INGRESS : RTE_SECURITY_IPSEC_SA_DIR_EGRESS,
			   .proto = RTE_SECURITY_IPSEC_SA_PROTO_ESP,
			   .mode = RTE_SECURITY_IPSEC_SA_MODE_TUNNEL },
		.crypto_xform = &xform,
	};
	bytes_of(salt, material + bytes, 4);
	memcpy(&conf.ipsec.salt, material + bytes, 4);
	if (is_gmac) {
		xform.type = RTE_CRYPTO_SYM_XFORM_AUTH;
		xform.auth = (struct rte_crypto_auth_xform){
			.op = is_in ? RTE_CRYPTO_AUTH_OP_VERIFY : RTE_CRYPTO_AUTH_OP_GENERATE,
			.algo = RTE_CRYPTO_AUTH_AES_GMAC, .key = { material, (uint16_t)bytes },
			.iv = { IV_AT, 12 }, .digest_length = 16 };
	} else {
		xform.type = RTE_CRYPTO_SYM_XFORM_AEAD;
		xform.aead = (struct rte_crypto_aead_xform){
			.op = is_in ? RTE_CRYPTO_AEAD_OP_DECRYPT : RTE_CRYPTO_AEAD_OP_ENCRYPT,
			.algo = RTE_CRYPTO_AEAD_AES_GCM, .key = { material, (uint16_t)bytes },
			.iv = { IV_AT, 12 }, .digest_length = 16, .aad_length = 8 };
	}
	return rte_security_session_create(security(port), &conf, sessions_pool);
}

static struct rte_flow *make_rule(uint16_t port, void *session, const char *address)
{
	uint8_t to[16];
	bool is_ipv6 = bytes_of(address, to, sizeof to) == 16;
	struct rte_flow_item_ipv4 four = { 0 };
	struct rte_flow_item_ipv6 six = { 0 };
	struct rte_flow_attr attributes = { .ingress = 1 };
	struct rte_flow_item items[] = {
		{ .type = RTE_FLOW_ITEM_TYPE_ETH },
		{ .type = is_ipv6 ? RTE_FLOW_ITEM_TYPE_IPV6 : RTE_FLOW_ITEM_TYPE_IPV4,
		  .spec = is_ipv6 ? (void *)&six : (void *)&four },
		{ .type = RTE_FLOW_ITEM_TYPE_END },
	};
	struct rte_flow_action actions[] = {
		{ .type = RTE_FLOW_ACTION_TYPE_SECURITY, .conf = session },
		{ .type = RTE_FLOW_ACTION_TYPE_END },
	};
	struct rte_flow_error error;
	memcpy(&four.hdr.dst_addr, to, 4);
	memcpy(six.hdr.dst_addr, to, 16);
	return rte_flow_create(port, &attributes, items, actions, &error);
}

static struct rte_mbuf *packet_of(const uint8_t *bytes, size_t count)
{
	struct rte_mbuf *first = rte_pktmbuf_alloc(packets), *last = first;
	for (size_t at = 0; first && at < count;) {
		uint16_t part = (uint16_t)RTE_MIN(count - at, RTE_MIN(segment_bytes, rte_pktmbuf_tailroom(last)));
		memcpy(rte_pktmbuf_append(last, part), bytes + at, part);
		at += part;
		if (last != first)
			first->pkt_len += part;
		if (at < count) {
			last->next = rte_pktmbuf_alloc(packets);
			last = last->next;
			first->nb_segs++;
		}
	}
	return first;
}

static const char *send_frame(uint16_t port, void *session, uint32_t l3_bytes, const char *hex)
{
	static uint8_t bytes[LINE_BYTES / 2];
	struct rte_mbuf *packet = packet_of(bytes, bytes_of(hex, bytes, sizeof bytes));
	packet->l2_len = sizeof(struct rte_ether_hdr);
	packet->l3_len = l3_bytes & 0x1FF;
	if (session) {
		packet->ol_flags |= RTE_MBUF_F_TX_SEC_OFFLOAD;
		if (rte_security_set_pkt_metadata(security(port), session, packet, NULL)) {
			rte_pktmbuf_free(packet);
			return "no metadata";
		}
	}
	if (rte_eth_tx_burst(port, 0, &packet, 1) == 1)
		return "sent";
	rte_pktmbuf_free(packet);
	return "kept";
}

static void receive_frame(uint16_t port)
{
	struct rte_mbuf *packet;
	if (rte_eth_rx_burst(port, 0, &packet, 1) == 0) {
		puts("nothing");
		return;
	}
	printf("%s%s ", packet->ol_flags & RTE_MBUF_F_RX_SEC_OFFLOAD ? "secured" : "plain",
	       packet->ol_flags & RTE_MBUF_F_RX_SEC_OFFLOAD_FAILED ? "-failed" : "");
	for (uint32_t i = 0; i < packet->pkt_len; i++)
		printf("%02x", *rte_pktmbuf_mtod_offset(packet, uint8_t *, i));
	puts("");
	rte_pktmbuf_free(packet);
}

static void show_capabilities(uint16_t port)
{
	const struct rte_security_capability *at = rte_security_capabilities_get(security(port));
	for (; at && at->action != RTE_SECURITY_ACTION_TYPE_NONE; at++)
		printf("%s-%s%s ", at->ipsec.direction == RTE_SECURITY_IPSEC_SA_DIR_INGRESS ? "in" : "out",
		       at->ipsec.mode == RTE_SECURITY_IPSEC_SA_MODE_TUNNEL ? "tunnel" : "transport",
		       at->ol_flags & RTE_SECURITY_TX_OLOAD_NEED_MDATA ? "-metadata" : "");
	puts("");
}

static void show_stats(uint16_t port, void *session)
{
	struct rte_security_stats stats;
	if (rte_security_session_stats_get(security(port), session, &stats))
		puts("refused");
	else
		printf("in %lu out %lu errors %lu\n", stats.ipsec.ipackets, stats.ipsec.opackets,
		       stats.ipsec.ierrors + stats.ipsec.oerrors);
}

static void show_counter(uint16_t port, const char *name)
{
	uint64_t id, value;
	if (rte_eth_xstats_get_id_by_name(port, name, &id) || rte_eth_xstats_get_by_id(port, &id, &value, 1) != 1)
		puts("unknown");
	else
		printf("%lu\n", value);
}

static const char *run(uint16_t port, const char *verb, char *const *rest)
{
	unsigned int number = rest[0] ? (unsigned int)strtoul(rest[0], NULL, 10) % MAX_ITEMS : 0;
	if (!strcmp(verb, "start"))
		return start_port(port) ? "ok" : "failed";
	if (!strcmp(verb, "stop"))
		return rte_eth_dev_stop(port) ? "failed" : "ok";
	if (!strcmp(verb, "reset"))
		return rte_eth_dev_reset(port) ? "failed" : "ok";
	if (!strcmp(verb, "destroy"))
		return rte_security_session_destroy(security(port), sessions[number]) ? "failed" : "ok";
	if (!strcmp(verb, "unrule"))
		return rte_flow_destroy(port, rules[number], NULL) ? "failed" : "ok";
	if (!strcmp(verb, "send") && rest[2])
		return send_frame(port, *rest[0] == '-' ? NULL : sessions[number], (uint32_t)atoi(rest[1]), rest[2]);
	return NULL;
}

static void run_printing(uint16_t port, const char *verb, char *const *rest)
{
	unsigned int number = rest[0] ? (unsigned int)strtoul(rest[0], NULL, 10) % MAX_ITEMS : 0;
	if (!strcmp(verb, "session") && rest[4] && session_count < MAX_ITEMS) {
		void *made = make_session(port, !strcmp(rest[0], "in"), !strcmp(rest[1], "gmac"),
					  (uint32_t)strtoul(rest[2], NULL, 10), rest[3], rest[4]);
		if (!made)
			puts("refused");
		else
			printf("%u\n", session_count), sessions[session_count++] = made;
	} else if (!strcmp(verb, "rule") && rest[1] && rule_count < MAX_ITEMS) {
		struct rte_flow *made = make_rule(port, sessions[number], rest[1]);
		if (!made)
			puts("refused");
		else
			printf("%u\n", rule_count), rules[rule_count++] = made;
	} else if (!strcmp(verb, "receive")) {
		receive_frame(port);
	} else if (!strcmp(verb, "stats")) {
		show_stats(port, sessions[number]);
	} else if (!strcmp(verb, "capabilities")) {
		show_capabilities(port);
	} else if (!strcmp(verb, "counter") && rest[0]) {
		show_counter(port, rest[0]);
	} else if (!strcmp(verb, "events")) {
		printf("%u\n", events);
	} else if (!strcmp(verb, "split")) {
		segment_bytes = port;
		puts("ok");
	} else {
		puts("unknown");
	}
}

int main(int count, char **arguments)
{
	static char line[LINE_BYTES];
	if (rte_eal_init(count, arguments) < 0)
		return 1;
	packets = rte_pktmbuf_pool_create("packets", 8191, 0, 0, RTE_MBUF_DEFAULT_BUF_SIZE, SOCKET_ID_ANY);
	if (!packets)
		return 1;
	while (fgets(line, sizeof line, stdin)) {
		char *words[9] = { 0 };
		size_t at = 0;
		const char *answer = NULL;
		for (char *word = strtok(line, " \n"); word && at < 8; word = strtok(NULL, " \n"))
			words[at++] = word;
		if (!words[0])
			continue;
		uint16_t port = words[1] ? (uint16_t)atoi(words[1]) : 0;
		if (words[1])
			answer = run(port, words[0], words + 2);
		if (answer)
			puts(answer);
		else
			run_printing(port, words[0], words + 2);
		fflush(stdout);
	}
	for (uint16_t port = rte_eth_dev_count_avail(); port-- > 0;) {
		rte_eth_dev_stop(port);
		rte_eth_dev_close(port);
	}
	return rte_eal_cleanup();
}
