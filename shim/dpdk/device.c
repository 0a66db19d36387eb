/* Ethernet devices. */
#include "plugin.h"
#include <errno.h>
#include <rte_bus.h>
#include <rte_dev.h>
#include <rte_ethdev.h>
#include <string.h>

static uint32_t events[RTE_MAX_ETHPORTS];

/* DPDK's bits and ours. */
struct pair {
	uint64_t theirs;
	uint32_t ours;
};

static const struct pair rx_offloads[] = {
	{ RTE_ETH_RX_OFFLOAD_SCATTER, OFFERS_SCATTER },
	{ RTE_ETH_RX_OFFLOAD_UDP_CKSUM | RTE_ETH_RX_OFFLOAD_TCP_CKSUM, OFFERS_CHECKSUMS },
	{ RTE_ETH_RX_OFFLOAD_SECURITY, OFFERS_OPENING },
	{ RTE_ETH_RX_OFFLOAD_TCP_LRO, OFFERS_JOINING },
};
static const struct pair tx_offloads[] = {
	{ RTE_ETH_TX_OFFLOAD_MULTI_SEGS, OFFERS_SEGMENTS },
	{ RTE_ETH_TX_OFFLOAD_MBUF_FAST_FREE, OFFERS_FAST_FREE },
	{ RTE_ETH_TX_OFFLOAD_TCP_TSO | RTE_ETH_TX_OFFLOAD_TCP_CKSUM, OFFERS_TCP_SEGMENTATION },
	{ RTE_ETH_TX_OFFLOAD_UDP_TSO | RTE_ETH_TX_OFFLOAD_UDP_CKSUM, OFFERS_UDP_SEGMENTATION },
	{ RTE_ETH_TX_OFFLOAD_IPV4_CKSUM, OFFERS_IP_CHECKSUMS },
	{ RTE_ETH_TX_OFFLOAD_UDP_CKSUM, OFFERS_UDP_CHECKSUMS },
	{ RTE_ETH_TX_OFFLOAD_SECURITY, OFFERS_SEALING },
};
/* A device may have some types of a kind and lack others. */
static const struct pair spreads[] = {
	{ RTE_ETH_RSS_ESP, SPREADS_BY_ESP },
	{ RTE_ETH_RSS_AH, SPREADS_BY_AH },
	{ RTE_ETH_RSS_NONFRAG_IPV4_UDP | RTE_ETH_RSS_NONFRAG_IPV6_UDP | RTE_ETH_RSS_IPV6_UDP_EX, SPREADS_BY_UDP },
	{ RTE_ETH_RSS_NONFRAG_IPV4_TCP | RTE_ETH_RSS_NONFRAG_IPV6_TCP | RTE_ETH_RSS_IPV6_TCP_EX, SPREADS_BY_TCP },
	{ RTE_ETH_RSS_IPV4 | RTE_ETH_RSS_FRAG_IPV4 | RTE_ETH_RSS_NONFRAG_IPV4_OTHER | RTE_ETH_RSS_IPV6 |
		  RTE_ETH_RSS_FRAG_IPV6 | RTE_ETH_RSS_NONFRAG_IPV6_OTHER | RTE_ETH_RSS_IPV6_EX,
	  SPREADS_BY_IP },
};
#define COUNT(array) (sizeof(array) / sizeof(array)[0])

/* What a device must have for a bit of ours: all of DPDK's. */
static uint32_t ours_of(const struct pair *pairs, size_t count, uint64_t theirs)
{
	uint32_t ours = 0;
	for (size_t nth = 0; nth < count; nth++)
		if ((theirs & pairs[nth].theirs) == pairs[nth].theirs)
			ours |= pairs[nth].ours;
	return ours;
}

/* The same where one of DPDK's is enough. */
static uint32_t any_of(const struct pair *pairs, size_t count, uint64_t theirs)
{
	uint32_t ours = 0;
	for (size_t nth = 0; nth < count; nth++)
		if ((theirs & pairs[nth].theirs) != 0)
			ours |= pairs[nth].ours;
	return ours;
}

static uint64_t theirs_of(const struct pair *pairs, size_t count, uint32_t ours)
{
	uint64_t theirs = 0;
	for (size_t nth = 0; nth < count; nth++)
		if ((ours & pairs[nth].ours) != 0)
			theirs |= pairs[nth].theirs;
	return theirs;
}

int32_t device_find(const char *arguments, uint16_t *port)
{
	char name[RTE_ETH_NAME_MAX_LEN];
	size_t bytes = strcspn(arguments, ",");
	if (bytes == 0 || bytes >= sizeof name)
		return -EINVAL;
	memcpy(name, arguments, bytes);
	name[bytes] = 0;
	if (rte_eth_dev_get_port_by_name(name, port) == 0)
		return 0;
	int outcome = rte_dev_probe(arguments);
	if (outcome < 0 && outcome != -EEXIST)
		return outcome;
	return rte_eth_dev_get_port_by_name(name, port);
}

int32_t device_info(uint16_t port, struct dpdk_info *info)
{
	struct rte_eth_dev_info its;
	struct rte_ether_addr mac;
	int outcome = rte_eth_dev_info_get(port, &its);
	if (outcome < 0)
		return outcome;
	memset(info, 0, sizeof *info);
	if ((outcome = rte_eth_macaddr_get(port, &mac)) < 0 || (outcome = rte_eth_dev_get_mtu(port, &info->mtu)) < 0)
		return outcome;
	memcpy(info->mac, mac.addr_bytes, sizeof info->mac);
	rte_eth_dev_get_name_by_port(port, info->name);
	strncpy(info->driver, its.driver_name, sizeof info->driver - 1);
	info->min_mtu = its.min_mtu;
	info->max_mtu = its.max_mtu;
	info->max_rx_queues = its.max_rx_queues;
	info->max_tx_queues = its.max_tx_queues;
	info->min_buffer = its.min_rx_bufsize;
	info->max_frame = its.max_rx_pktlen;
	info->offers = ours_of(rx_offloads, COUNT(rx_offloads), its.rx_offload_capa) |
		       ours_of(tx_offloads, COUNT(tx_offloads), its.tx_offload_capa);
	if (its.dev_flags != NULL && (*its.dev_flags & RTE_ETH_DEV_INTR_RMV) != 0)
		info->offers |= OFFERS_REMOVAL;
	if (its.device != NULL && strcmp(rte_bus_name(rte_dev_bus(its.device)), "vdev") == 0)
		info->offers |= IS_VIRTUAL;
	info->spreads = any_of(spreads, COUNT(spreads), its.flow_type_rss_offloads);
	return 0;
}

/* On a thread of DPDK's. */
static int note(uint16_t port, enum rte_eth_event_type type, void *argument, void *unused)
{
	(void)argument;
	(void)unused;
	uint32_t event = type == RTE_ETH_EVENT_INTR_RMV ? EVENT_REMOVED : EVENT_RESET;
	__atomic_fetch_or(&events[port], event, __ATOMIC_RELEASE);
	return 0;
}

uint32_t *device_events(uint16_t port)
{
	return port < RTE_MAX_ETHPORTS ? &events[port] : NULL;
}

static int32_t configure(uint16_t port, struct dpdk_config *config, struct rte_eth_dev_info *info)
{
	struct rte_eth_conf its = { 0 };
	uint16_t mtu;
	its.rxmode.offloads = theirs_of(rx_offloads, COUNT(rx_offloads), config->offers);
	its.txmode.offloads = theirs_of(tx_offloads, COUNT(tx_offloads), config->offers);
	if (config->rx_queues > 1 && config->spreads != 0) {
		its.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
		its.rx_adv_conf.rss_conf.rss_hf =
			theirs_of(spreads, COUNT(spreads), config->spreads) & info->flow_type_rss_offloads;
	}
	int outcome = rte_eth_dev_get_mtu(port, &mtu);
	if (outcome < 0)
		return outcome;
	its.rxmode.mtu = config->mtu != 0 ? config->mtu : mtu;
	outcome = rte_eth_dev_configure(port, config->rx_queues, config->tx_queues, &its);
	if (outcome < 0)
		return outcome;
	outcome = rte_eth_dev_adjust_nb_rx_tx_desc(port, &config->rx_descriptors, &config->tx_descriptors);
	if (outcome < 0)
		return outcome;
	for (uint16_t queue = 0; queue < config->rx_queues; queue++) {
		struct rte_eth_rxconf rx = info->default_rxconf;
		rx.offloads = its.rxmode.offloads & info->rx_queue_offload_capa;
		outcome = rte_eth_rx_queue_setup(port, queue, config->rx_descriptors, (unsigned int)SOCKET_ID_ANY, &rx,
						 config->pool);
		if (outcome < 0)
			return outcome;
	}
	for (uint16_t queue = 0; queue < config->tx_queues; queue++) {
		struct rte_eth_txconf tx = info->default_txconf;
		tx.offloads = its.txmode.offloads & info->tx_queue_offload_capa;
		outcome = rte_eth_tx_queue_setup(port, queue, config->tx_descriptors, (unsigned int)SOCKET_ID_ANY,
						 &tx);
		if (outcome < 0)
			return outcome;
	}
	return 0;
}

static int32_t start(uint16_t port, struct dpdk_config *config)
{
	struct rte_eth_dev_info info;
	int outcome = rte_eth_dev_info_get(port, &info);
	if (outcome < 0 || (outcome = configure(port, config, &info)) < 0)
		return outcome;
	/* Where a driver has neither, nothing comes. Both replace an earlier registration. What comes from now on
	 * stays until the gateway takes it, also what happens while a device is started anew. */
	rte_eth_dev_callback_register(port, RTE_ETH_EVENT_INTR_RMV, note, NULL);
	rte_eth_dev_callback_register(port, RTE_ETH_EVENT_INTR_RESET, note, NULL);
	/* Some drivers take an MTU only here, and some only with the configuration. */
	if (config->mtu != 0 && (outcome = rte_eth_dev_set_mtu(port, config->mtu)) < 0 && outcome != -ENOTSUP)
		return outcome;
	if ((outcome = rte_eth_dev_get_mtu(port, &config->mtu)) < 0)
		return outcome;
	if ((outcome = rte_eth_dev_start(port)) < 0)
		return outcome;
	/* A virtual device without the notion has all frames anyway. */
	int wanted = (config->offers & WANTS_PROMISCUOUS) != 0;
	outcome = wanted ? rte_eth_promiscuous_enable(port) : rte_eth_promiscuous_disable(port);
	return outcome < 0 && outcome != -ENOTSUP && wanted ? outcome : 0;
}

int32_t device_start(uint16_t port, struct dpdk_config *config)
{
	pool_of_port(port, config->pool);
	pool_enter(port);
	int32_t outcome = start(port, config);
	pool_leave();
	return outcome;
}

int32_t device_stop(uint16_t port)
{
	pool_enter(port);
	int32_t outcome = rte_eth_dev_stop(port);
	pool_leave();
	return outcome;
}

int32_t device_reset(uint16_t port)
{
	pool_enter(port);
	int32_t outcome = rte_eth_dev_reset(port);
	pool_leave();
	return outcome;
}

/* Removes it as well, so that the same name can be made again. */
int32_t device_close(uint16_t port)
{
	struct rte_eth_dev_info info;
	int outcome = rte_eth_dev_info_get(port, &info);
	rte_eth_dev_callback_unregister(port, RTE_ETH_EVENT_INTR_RMV, note, NULL);
	rte_eth_dev_callback_unregister(port, RTE_ETH_EVENT_INTR_RESET, note, NULL);
	pool_enter(port);
	rte_eth_dev_stop(port);
	int closed = rte_eth_dev_close(port);
	if (outcome == 0 && info.device != NULL)
		outcome = rte_dev_remove(info.device);
	pool_leave();
	pool_of_port(port, NULL);
	if (port < RTE_MAX_ETHPORTS)
		__atomic_store_n(&events[port], 0, __ATOMIC_RELEASE);
	return closed < 0 ? closed : outcome;
}

int32_t device_statistics(uint16_t port, struct dpdk_statistics *statistics)
{
	struct rte_eth_stats its;
	struct rte_eth_link link;
	int outcome = rte_eth_stats_get(port, &its);
	if (outcome < 0)
		return outcome;
	*statistics = (struct dpdk_statistics){
		.rx_packets = its.ipackets, .rx_bytes = its.ibytes, .rx_missed = its.imissed,
		.rx_errors = its.ierrors, .rx_no_mbuf = its.rx_nombuf,
		.tx_packets = its.opackets, .tx_bytes = its.obytes, .tx_errors = its.oerrors,
	};
	if (rte_eth_link_get_nowait(port, &link) == 0) {
		statistics->link_up = link.link_status == RTE_ETH_LINK_UP;
		statistics->link_mbps = link.link_speed == RTE_ETH_SPEED_NUM_UNKNOWN ? 0 : link.link_speed;
	}
	return 0;
}

uint16_t receive(uint16_t port, uint16_t queue, void **mbufs, uint16_t count)
{
	pool_enter(port);
	count = rte_eth_rx_burst(port, queue, (struct rte_mbuf **)mbufs, count);
	pool_leave();
	return count;
}

uint16_t send_burst(uint16_t port, uint16_t queue, void **mbufs, uint16_t count)
{
	pool_enter(port);
	count = rte_eth_tx_burst(port, queue, (struct rte_mbuf **)mbufs, count);
	pool_leave();
	return count;
}

int32_t reap(uint16_t port, uint16_t queue)
{
	pool_enter(port);
	int32_t outcome = rte_eth_tx_done_cleanup(port, queue, 0);
	pool_leave();
	return outcome;
}
