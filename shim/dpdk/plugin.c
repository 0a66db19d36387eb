/* The table of functions, and what the gateway relies on in DPDK's structures. */
#include "plugin.h"
#include <rte_mbuf.h>
#include <rte_version.h>
#include <stddef.h>

/* The gateway reads and writes these fields itself (crates/ports/dpdk/src/mbuf.rs). A DPDK that has them
 * elsewhere needs changes there. */
#define AT(field, offset) \
	_Static_assert(offsetof(struct rte_mbuf, field) == (offset), "rte_mbuf." #field " is elsewhere")
AT(buf_addr, 0);
AT(buf_iova, 8);
AT(data_off, 16);
AT(refcnt, 18);
AT(nb_segs, 20);
AT(port, 22);
AT(ol_flags, 24);
AT(packet_type, 32);
AT(pkt_len, 36);
AT(data_len, 40);
AT(vlan_tci, 42);
AT(buf_len, 54);
AT(pool, 56);
AT(next, 64);
AT(tx_offload, 72);
_Static_assert(sizeof(struct rte_mbuf) == 128, "rte_mbuf has another length");
_Static_assert(RTE_PKTMBUF_HEADROOM == 128, "DPDK leaves another headroom");
_Static_assert(RTE_MBUF_F_RX_L4_CKSUM_MASK == (1ull << 3 | 1ull << 8), "other flags of checksums");
_Static_assert(RTE_MBUF_F_RX_L4_CKSUM_GOOD == 1ull << 8, "another flag of right checksums");
_Static_assert(RTE_MBUF_F_RX_SEC_OFFLOAD == 1ull << 18, "another flag of opened packets");
_Static_assert(RTE_MBUF_F_RX_SEC_OFFLOAD_FAILED == 1ull << 19, "another flag of refused packets");

static struct testudo_dpdk table = {
	.version = TESTUDO_DPDK_VERSION,
	.size = sizeof table,
	.eal_start = eal_start,
	.uses_virtual_addresses = uses_virtual_addresses,
	.thread_register = thread_register,
	.thread_unregister = thread_unregister,
	.said = said,
	.memory_register = memory_register,
	.memory_unregister = memory_unregister,
	.physical_address = physical_address,
	.memory_map = memory_map,
	.pool_make = pool_make,
	.pool_end = pool_end,
	.pool_get = pool_get,
	.pool_put = pool_put,
	.device_find = device_find,
	.device_info = device_info,
	.device_start = device_start,
	.device_stop = device_stop,
	.device_reset = device_reset,
	.device_close = device_close,
	.device_statistics = device_statistics,
	.device_events = device_events,
	.receive = receive,
	.send = send_burst,
	.prepare = prepare_burst,
	.reap = reap,
};

__attribute__((visibility("default"))) const struct testudo_dpdk *testudo_dpdk(void)
{
	table.dpdk_version = rte_version();
	return &table;
}
