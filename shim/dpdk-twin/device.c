/* libtestudo-dpdk-twin.so: a virtual NIC with inline cryptography, a driver that the EAL loads with -d. For
 * tests: `--vdev net_testudo_twin0,peer=net_testudo_twin1 --vdev net_testudo_twin1,peer=net_testudo_twin0`
 * is two NICs and a cable, one without a peer receives what it sends, and with `tap=NAME` the cable leads to
 * that interface of the kernel's.
 *
 * Its limits and its calls are those of an Intel 82599 under ixgbe: AES-128-GCM and GMAC, 1,024 SAs each
 * way, no ESN, no UDP encapsulation; outbound SAs by sessions, inbound ones by sessions and flow rules;
 * headers, IV, padding and trailer by the sender, the ICV by the device; received packets keep all of these.
 * As on a wire, the receiver gets copies of frames, in buffers that it takes when it receives them.
 *
 *     tx burst ─► copy ─► packet.c: seal ─► ring of the peer ─► packet.c: open ─► rx burst
 *                            │ tables.c: SAs, crypto.c: OpenSSL      │
 *                            └── faults.c: how it lies and fails ────┘
 *
 * security.c has the calls of rte_security, flow.c those of rte_flow. */
#include "twin.h"
#include <ethdev_vdev.h>
#include <rte_ip.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* All devices of the process, which find their peers by name. */
static struct twin *all;
static rte_spinlock_t all_lock = RTE_SPINLOCK_INITIALIZER;

static struct twin *twin_named(const char *name)
{
	struct twin *found;
	rte_spinlock_lock(&all_lock);
	for (found = all; found && strcmp(found->name, name); found = found->next)
		;
	rte_spinlock_unlock(&all_lock);
	return found;
}

/* The queue at the other end of the cable; NULL if nobody is there. */
static struct rx_queue *far_queue(struct twin *twin, uint16_t queue)
{
	struct twin *peer = *twin->peer ? twin_named(twin->peer) : twin;
	if (!peer || !peer->is_started || peer->needs_reset || !peer->dev->data->nb_rx_queues)
		return NULL;
	return &peer->rx[queue % peer->dev->data->nb_rx_queues];
}

/* The frame on the cable, in one piece and in memory of no pool; NULL if there is none, or it is too long. */
static struct rte_mbuf *copy_of(const struct rte_mbuf *frame)
{
	struct rte_mbuf *copy = frame->pkt_len > MAX_FRAME ? NULL : malloc(sizeof *copy + MAX_FRAME);
	uint32_t at = 0;
	if (!copy)
		return NULL;
	memset(copy, 0, sizeof *copy);
	copy->buf_addr = copy + 1;
	copy->buf_len = MAX_FRAME;
	copy->nb_segs = 1;
	for (const struct rte_mbuf *part = frame; part; part = part->next) {
		memcpy(rte_pktmbuf_mtod_offset(copy, uint8_t *, at), rte_pktmbuf_mtod(part, void *),
		       part->data_len);
		at += part->data_len;
	}
	copy->pkt_len = at;
	copy->data_len = (uint16_t)at;
	copy->tx_offload = frame->tx_offload;
	return copy;
}

/* What the device does to a frame on its way out; false if the frame goes no further. The lock is held. */
static bool work_on(struct twin *twin, const struct rte_mbuf *frame, struct rte_mbuf *copy)
{
	union metadata metadata = { 0 };
	if (frame->ol_flags & RTE_MBUF_F_TX_SEC_OFFLOAD) {
		metadata.whole = *rte_security_dynfield((struct rte_mbuf *)(uintptr_t)frame);
		if (!frame_seal(twin, copy, metadata))
			return false;
	} else {
		twin->counters.tx_plain++;
	}
	if (frame->ol_flags & RTE_MBUF_F_TX_IP_CKSUM &&
	    copy->pkt_len >= copy->l2_len + sizeof(struct rte_ipv4_hdr)) {
		struct rte_ipv4_hdr *ip = rte_pktmbuf_mtod_offset(copy, struct rte_ipv4_hdr *, copy->l2_len);
		ip->hdr_checksum = 0;
		ip->hdr_checksum = rte_ipv4_cksum(ip);
	}
	copy->tx_offload = 0;
	return true;
}

/* The device's own reset, told outside of its lock: what hears of it may call the device. */
static void tell_reset(struct twin *twin)
{
	rte_eth_dev_callback_process(twin->dev, RTE_ETH_EVENT_INTR_RESET, NULL);
}

/* Puts a frame on the cable, which then has it. False if there is no room. */
static bool deliver(struct twin *twin, struct rx_queue *to, struct rte_mbuf *copy)
{
	if (!*twin->tap)
		return rte_ring_enqueue(to->ring, copy) == 0;
	if (!tap_send(twin, copy))
		return false;
	free(copy);
	return true;
}

/* True if the ring is full: the sender keeps this frame. */
static bool send_one(struct twin *twin, struct rx_queue *to, struct rte_mbuf *frame, bool *resets)
{
	struct rte_mbuf *copy = copy_of(frame);
	uint32_t bytes = frame->pkt_len;
	bool is_sent;
	if (!copy) {
		twin->counters.tx_no_buffer++;
		twin->stats.oerrors++;
		rte_pktmbuf_free(frame);
		return false;
	}
	if (to && rte_ring_full(to->ring)) {
		free(copy);
		return true;
	}
	is_sent = work_on(twin, frame, copy);
	if (is_sent && frame->ol_flags & RTE_MBUF_F_TX_SEC_OFFLOAD)
		*resets |= twin_counts(twin);
	rte_pktmbuf_free(frame);
	if (is_sent && deliver(twin, to, copy)) {
		twin->stats.opackets++;
		twin->stats.obytes += bytes;
	} else {
		twin->stats.oerrors++;
		free(copy);
	}
	return false;
}

/* The same from the kernel's interface: all of them come to the first queue. */
static uint16_t take_from_tap(struct rx_queue *at, struct rte_mbuf **frames, uint16_t count)
{
	uint16_t taken = 0;
	while (taken < count && at == &at->twin->rx[0]) {
		struct rte_mbuf *frame = rte_pktmbuf_alloc(at->pool);
		uint32_t bytes = 0;
		if (frame)
			bytes = tap_receive(at->twin, rte_pktmbuf_mtod(frame, uint8_t *), rte_pktmbuf_tailroom(frame));
		if (!bytes) {
			rte_pktmbuf_free(frame);
			break;
		}
		frame->pkt_len = bytes;
		frame->data_len = (uint16_t)bytes;
		frames[taken++] = frame;
	}
	return taken;
}

/* Takes frames from the cable into buffers of the receiver, as many as there are of both. */
static uint16_t take(struct rx_queue *at, struct rte_mbuf **frames, uint16_t count)
{
	struct rte_mbuf *came;
	uint16_t taken = 0;
	while (taken < count && !rte_ring_empty(at->ring)) {
		struct rte_mbuf *frame = rte_pktmbuf_alloc(at->pool);
		if (!frame) {
			at->twin->dev->data->rx_mbuf_alloc_failed++;
			break;
		}
		if (rte_ring_dequeue(at->ring, (void **)&came)) {
			rte_pktmbuf_free(frame);
			break;
		}
		if (came->pkt_len <= rte_pktmbuf_tailroom(frame)) {
			memcpy(rte_pktmbuf_mtod(frame, void *), rte_pktmbuf_mtod(came, void *), came->pkt_len);
			frame->pkt_len = came->pkt_len;
			frame->data_len = (uint16_t)came->pkt_len;
			frames[taken++] = frame;
		} else {
			at->twin->stats.ierrors++;
			rte_pktmbuf_free(frame);
		}
		free(came);
	}
	return taken;
}

static uint16_t transmit(void *queue, struct rte_mbuf **frames, uint16_t count)
{
	struct tx_queue *from = queue;
	struct twin *twin = from->twin;
	struct rx_queue *to = *twin->tap ? NULL : far_queue(twin, from->id);
	bool resets = false;
	uint16_t sent = 0;
	rte_spinlock_lock(&twin->lock);
	for (; sent < count && !twin->needs_reset; sent++) {
		if (!to && !*twin->tap) {
			twin->counters.tx_unlinked++;
			twin->stats.oerrors++;
			rte_pktmbuf_free(frames[sent]);
		} else if (send_one(twin, to, frames[sent], &resets)) {
			break;
		}
	}
	rte_spinlock_unlock(&twin->lock);
	if (resets)
		tell_reset(twin);
	return sent;
}

static uint16_t receive(void *queue, struct rte_mbuf **frames, uint16_t count)
{
	struct rx_queue *at = queue;
	struct twin *twin = at->twin;
	bool resets = false;
	uint16_t received;
	if (twin->needs_reset)
		return 0;
	received = *twin->tap ? take_from_tap(at, frames, count) : take(at, frames, count);
	rte_spinlock_lock(&twin->lock);
	for (uint16_t i = 0; i < received; i++) {
		frames[i]->port = twin->dev->data->port_id;
		twin->stats.ipackets++;
		twin->stats.ibytes += frames[i]->pkt_len;
		frame_open(twin, frames[i]);
		if (frames[i]->ol_flags & RTE_MBUF_F_RX_SEC_OFFLOAD)
			resets |= twin_counts(twin);
	}
	rte_spinlock_unlock(&twin->lock);
	if (resets)
		tell_reset(twin);
	return received;
}

static int configure(struct rte_eth_dev *dev)
{
	(void)dev;
	return 0;
}

static int start(struct rte_eth_dev *dev)
{
	struct twin *twin = dev->data->dev_private;
	twin->is_started = true;
	dev->data->dev_link.link_status = RTE_ETH_LINK_UP;
	return 0;
}

static void empty(struct rte_ring *ring)
{
	void *frame;
	while (ring && rte_ring_dequeue(ring, &frame) == 0)
		free(frame);
}

static int stop(struct rte_eth_dev *dev)
{
	struct twin *twin = dev->data->dev_private;
	twin->is_started = false;
	dev->data->dev_link.link_status = RTE_ETH_LINK_DOWN;
	for (uint16_t i = 0; i < MAX_QUEUES; i++)
		empty(twin->rx[i].ring);
	return 0;
}

/* After it the application configures the device anew, and makes its sessions and rules again. */
static int reset(struct rte_eth_dev *dev)
{
	struct twin *twin = dev->data->dev_private;
	rte_spinlock_lock(&twin->lock);
	tables_clear(twin);
	twin->needs_reset = false;
	rte_spinlock_unlock(&twin->lock);
	return 0;
}

static int close_device(struct rte_eth_dev *dev)
{
	struct twin *twin = dev->data->dev_private, **link;
	stop(dev);
	rte_spinlock_lock(&all_lock);
	for (link = &all; *link && *link != twin; link = &(*link)->next)
		;
	if (*link)
		*link = twin->next;
	rte_spinlock_unlock(&all_lock);
	rte_spinlock_lock(&twin->lock);
	tables_clear(twin);
	rte_spinlock_unlock(&twin->lock);
	for (uint16_t i = 0; i < MAX_QUEUES; i++)
		rte_ring_free(twin->rx[i].ring);
	if (twin->tap_fd >= 0)
		close(twin->tap_fd);
	twin->tap_fd = -1;
	rte_free(dev->security_ctx);
	dev->security_ctx = NULL;
	dev->data->mac_addrs = NULL; /* part of the device's own memory */
	return 0;
}

static int info(struct rte_eth_dev *dev, struct rte_eth_dev_info *to)
{
	(void)dev;
	to->max_mac_addrs = 1;
	to->max_rx_queues = to->max_tx_queues = MAX_QUEUES;
	to->max_rx_pktlen = MAX_FRAME;
	to->rx_offload_capa = RTE_ETH_RX_OFFLOAD_SECURITY;
	to->tx_offload_capa =
		RTE_ETH_TX_OFFLOAD_SECURITY | RTE_ETH_TX_OFFLOAD_MULTI_SEGS | RTE_ETH_TX_OFFLOAD_IPV4_CKSUM;
	return 0;
}

static int set_rx_queue(struct rte_eth_dev *dev, uint16_t id, uint16_t frames, unsigned int socket,
			const struct rte_eth_rxconf *conf, struct rte_mempool *pool)
{
	struct twin *twin = dev->data->dev_private;
	struct rx_queue *queue = &twin->rx[id];
	char name[RTE_RING_NAMESIZE];
	(void)frames, (void)socket, (void)conf;
	if (!queue->ring) {
		if (snprintf(name, sizeof name, "twin%u_%u", dev->data->port_id, id) >= (int)sizeof name)
			return -ENAMETOOLONG;
		queue->ring = rte_ring_create(name, RING_FRAMES, SOCKET_ID_ANY, 0);
	}
	if (!queue->ring)
		return -ENOMEM;
	queue->twin = twin;
	queue->pool = pool;
	dev->data->rx_queues[id] = queue;
	return 0;
}

static int set_tx_queue(struct rte_eth_dev *dev, uint16_t id, uint16_t frames, unsigned int socket,
			const struct rte_eth_txconf *conf)
{
	struct twin *twin = dev->data->dev_private;
	(void)frames, (void)socket, (void)conf;
	twin->tx[id] = (struct tx_queue){ .twin = twin, .id = id };
	dev->data->tx_queues[id] = &twin->tx[id];
	return 0;
}

static int link_update(struct rte_eth_dev *dev, int wait)
{
	(void)dev, (void)wait;
	return 0;
}

static int any(struct rte_eth_dev *dev)
{
	(void)dev;
	return 0;
}

static int stats_get(struct rte_eth_dev *dev, struct rte_eth_stats *to)
{
	*to = ((struct twin *)dev->data->dev_private)->stats;
	return 0;
}

#define AS_NAME(name) #name,
static const char *const counter_names[] = { COUNTERS(AS_NAME) };

static int counters_get(struct rte_eth_dev *dev, struct rte_eth_xstat *to, unsigned int count)
{
	const uint64_t *values = (const void *)&((struct twin *)dev->data->dev_private)->counters;
	for (unsigned int i = 0; i < count && i < RTE_DIM(counter_names); i++)
		to[i] = (struct rte_eth_xstat){ .id = i, .value = values[i] };
	return RTE_DIM(counter_names);
}

static int counters_names(struct rte_eth_dev *dev, struct rte_eth_xstat_name *to, unsigned int count)
{
	(void)dev;
	for (unsigned int i = 0; to && i < count && i < RTE_DIM(counter_names); i++)
		rte_strscpy(to[i].name, counter_names[i], sizeof to[i].name);
	return RTE_DIM(counter_names);
}

static int flow_ops_get(struct rte_eth_dev *dev, const struct rte_flow_ops **to)
{
	(void)dev;
	*to = &flow_ops;
	return 0;
}

static const struct eth_dev_ops operations = {
	.dev_configure = configure,
	.dev_start = start,
	.dev_stop = stop,
	.dev_reset = reset,
	.dev_close = close_device,
	.dev_infos_get = info,
	.rx_queue_setup = set_rx_queue,
	.tx_queue_setup = set_tx_queue,
	.link_update = link_update,
	.promiscuous_enable = any,
	.promiscuous_disable = any,
	.allmulticast_enable = any,
	.allmulticast_disable = any,
	.stats_get = stats_get,
	.xstats_get = counters_get,
	.xstats_get_names = counters_names,
	.flow_ops_get = flow_ops_get,
};

/* The context through which rte_security finds the device. */
static int give_security(struct rte_eth_dev *dev)
{
	struct rte_security_ctx *context = rte_zmalloc("testudo_twin_security", sizeof *context, 0);
	if (!context || rte_security_dynfield_register() < 0) {
		rte_free(context);
		return -ENOMEM;
	}
	context->device = dev;
	context->ops = &security_ops;
	dev->security_ctx = context;
	return 0;
}

static void give_data(struct rte_eth_dev *dev, struct twin *twin)
{
	dev->data->dev_link = (struct rte_eth_link){ .link_speed = RTE_ETH_SPEED_NUM_10G,
						     .link_duplex = RTE_ETH_LINK_FULL_DUPLEX,
						     .link_autoneg = RTE_ETH_LINK_FIXED };
	dev->data->mac_addrs = &twin->mac;
	dev->data->promiscuous = dev->data->all_multicast = 1;
	dev->dev_ops = &operations;
	dev->rx_pkt_burst = receive;
	dev->tx_pkt_burst = transmit;
}

static int probe(struct rte_vdev_device *vdev)
{
	struct rte_eth_dev *dev = rte_eth_vdev_allocate(vdev, sizeof(struct twin));
	struct twin *twin;
	if (!dev)
		return -ENOMEM;
	twin = dev->data->dev_private;
	rte_spinlock_init(&twin->lock);
	twin->dev = dev;
	twin->tap_fd = -1;
	if (faults_parse(twin, rte_vdev_device_args(vdev)) || tap_open(twin) || give_security(dev) ||
	    rte_strscpy(twin->name, rte_vdev_device_name(vdev), sizeof twin->name) < 0) {
		rte_eth_dev_release_port(dev);
		return -EINVAL;
	}
	rte_eth_random_addr(twin->mac.addr_bytes);
	give_data(dev, twin);
	rte_spinlock_lock(&all_lock);
	twin->next = all;
	all = twin;
	rte_spinlock_unlock(&all_lock);
	rte_eth_dev_probing_finish(dev);
	return 0;
}

static int removed(struct rte_vdev_device *vdev)
{
	struct rte_eth_dev *dev = rte_eth_dev_allocated(rte_vdev_device_name(vdev));
	if (!dev)
		return 0;
	close_device(dev);
	return rte_eth_dev_release_port(dev);
}

static struct rte_vdev_driver driver = { .probe = probe, .remove = removed };

RTE_PMD_REGISTER_VDEV(net_testudo_twin, driver);
RTE_PMD_REGISTER_PARAM_STRING(net_testudo_twin,
			      "peer=<name> tap=<name> sa_limit=<int> fail_session=<int> reset_after=<int> "
			      "lie=<kind> lie_every=<int>");
