/* Frames that a device cuts, and what the gateway relies on in their mbufs
 * (crates/ports/dpdk/src/joining.rs and cutting.rs). */
#include "plugin.h"
#include <rte_ethdev.h>
#include <rte_mbuf.h>

_Static_assert(RTE_MBUF_F_RX_LRO == 1ull << 16, "another flag of joined segments");
_Static_assert(RTE_MBUF_F_TX_UDP_SEG == 1ull << 42, "another flag of USO");
_Static_assert(RTE_MBUF_F_TX_TCP_SEG == 1ull << 50, "another flag of TSO");
_Static_assert(RTE_MBUF_F_TX_TCP_CKSUM == 1ull << 52, "another flag of TCP's checksum");
_Static_assert(RTE_MBUF_F_TX_UDP_CKSUM == 3ull << 52, "another flag of UDP's checksum");
_Static_assert(RTE_MBUF_F_TX_IP_CKSUM == 1ull << 54, "another flag of IPv4's checksum");
_Static_assert(RTE_MBUF_F_TX_IPV4 == 1ull << 55, "another flag of IPv4");
_Static_assert(RTE_MBUF_F_TX_IPV6 == 1ull << 56, "another flag of IPv6");
_Static_assert(RTE_MBUF_L2_LEN_BITS == 7 && RTE_MBUF_L3_LEN_BITS == 9 && RTE_MBUF_L4_LEN_BITS == 8 &&
		       RTE_MBUF_TSO_SEGSZ_BITS == 16,
	       "lengths of headers are elsewhere");

uint16_t prepare_burst(uint16_t port, uint16_t queue, void **mbufs, uint16_t count)
{
	return rte_eth_tx_prepare(port, queue, (struct rte_mbuf **)mbufs, count);
}
