/* One frame on its way out or in: what the device finds in it, and what it does to it. */
#include "twin.h"
#include <netinet/in.h>
#include <rte_ether.h>
#include <rte_ip.h>
#include <string.h>

/* Bytes before the ESP header, from the headers that the device reads, and to whom the packet is. 0: the
 * device leaves it alone, as an 82599 does with options, extension headers and fragments. */
static uint32_t esp_at(const uint8_t *frame, uint32_t bytes, struct address *to)
{
	const struct rte_ether_hdr *ether = (const void *)frame;
	uint32_t at = sizeof *ether;
	memset(to, 0, sizeof *to);
	if (bytes < at + sizeof(struct rte_ipv4_hdr))
		return 0;
	if (ether->ether_type == rte_cpu_to_be_16(RTE_ETHER_TYPE_IPV4)) {
		const struct rte_ipv4_hdr *ip = (const void *)(frame + at);
		uint16_t parts = RTE_IPV4_HDR_MF_FLAG | RTE_IPV4_HDR_OFFSET_MASK;
		if (ip->version_ihl != 0x45 || ip->next_proto_id != IPPROTO_ESP ||
		    (ip->fragment_offset & rte_cpu_to_be_16(parts)))
			return 0;
		memcpy(to->bytes, &ip->dst_addr, 4);
		return at + (uint32_t)sizeof *ip;
	}
	if (ether->ether_type == rte_cpu_to_be_16(RTE_ETHER_TYPE_IPV6)) {
		const struct rte_ipv6_hdr *ip = (const void *)(frame + at);
		if (bytes < at + sizeof *ip || ip->proto != IPPROTO_ESP)
			return 0;
		memcpy(to->bytes, ip->dst_addr, 16);
		to->is_ipv6 = true;
		return at + (uint32_t)sizeof *ip;
	}
	return 0;
}

/* Where the IP packet ends: a short frame is padded after it. 0: beyond the frame. */
static uint32_t ip_end(const uint8_t *frame, uint32_t bytes, bool is_ipv6)
{
	const struct rte_ipv4_hdr *four = (const void *)(frame + sizeof(struct rte_ether_hdr));
	const struct rte_ipv6_hdr *six = (const void *)four;
	uint32_t end = (uint32_t)sizeof(struct rte_ether_hdr) +
	               (is_ipv6 ? (uint32_t)sizeof *six + rte_be_to_cpu_16(six->payload_len)
	                        : rte_be_to_cpu_16(four->total_length));
	return end <= bytes ? end : 0;
}

bool frame_seal(struct twin *twin, struct rte_mbuf *frame, union metadata metadata)
{
	uint8_t *start = rte_pktmbuf_mtod(frame, uint8_t *);
	uint32_t at = (uint32_t)(frame->l2_len + frame->l3_len), bytes = frame->pkt_len;
	uint32_t least = ESP_HEADER_BYTES + IV_BYTES + ESP_TRAILER_BYTES + ICV_BYTES;
	struct sa *sa;

	if (metadata.sa == 0 || metadata.sa > MAX_SAS || metadata.generation != twin->generation ||
	    !twin->outbound[metadata.sa - 1].session) {
		twin->counters.tx_no_sa++;
		return false;
	}
	sa = &twin->outbound[metadata.sa - 1];
	if (bytes < at + least || at < sizeof(struct rte_ether_hdr) + sizeof(struct rte_ipv4_hdr) ||
	    memcmp(start + at, &sa->spi, sizeof sa->spi)) {
		twin->counters.tx_bad_packet++;
		return false;
	}
	/* The metadata must be of the packet as it is now: padding and ICV are laid out before they are set. */
	if (metadata.tail_bytes != start[bytes - ICV_BYTES - ESP_TRAILER_BYTES] + ESP_TRAILER_BYTES + ICV_BYTES) {
		twin->counters.tx_bad_metadata++;
		return false;
	}
	if (twin_lies(twin, LIE_UNSEALED))
		return true;
	if (!sa_seal(sa, start + at, bytes - at - ICV_BYTES)) {
		sa->stats.oerrors++;
		twin->counters.tx_bad_packet++;
		return false;
	}
	if (twin_lies(twin, LIE_CIPHERTEXT))
		start[at + ESP_HEADER_BYTES + IV_BYTES] ^= 1;
	sa->stats.opackets++;
	sa->stats.obytes += bytes - at;
	twin->counters.tx_sealed++;
	return true;
}

static void mark(struct twin *twin, struct rte_mbuf *frame, bool is_authentic)
{
	frame->ol_flags |= RTE_MBUF_F_RX_SEC_OFFLOAD;
	if (!is_authentic)
		frame->ol_flags |= RTE_MBUF_F_RX_SEC_OFFLOAD_FAILED;
	if (is_authentic)
		twin->counters.rx_opened++;
	else
		twin->counters.rx_refused++;
}

void frame_open(struct twin *twin, struct rte_mbuf *frame)
{
	uint8_t *start = rte_pktmbuf_mtod(frame, uint8_t *);
	struct address to;
	uint32_t at = esp_at(start, frame->pkt_len, &to), end, bytes;
	rte_be32_t spi;
	struct sa *sa;
	bool is_authentic;

	end = at ? ip_end(start, frame->pkt_len, to.is_ipv6) : 0;
	if (end < at + ESP_HEADER_BYTES + IV_BYTES + ESP_TRAILER_BYTES + ICV_BYTES) {
		twin->counters.rx_plain++;
		return;
	}
	memcpy(&spi, start + at, sizeof spi);
	sa = table_find(twin, spi, &to);
	if (!sa) {
		twin->counters.rx_no_sa++;
		return;
	}
	if (twin_lies(twin, LIE_MARKED)) {
		mark(twin, frame, true);
		return;
	}
	bytes = end - at - ICV_BYTES;
	is_authentic = sa_open(sa, start + at, bytes);
	if (is_authentic) {
		sa->stats.ipackets++;
		sa->stats.ibytes += bytes;
	} else {
		sa->stats.ierrors++;
	}
	if (twin_lies(twin, LIE_PLAINTEXT))
		start[at + ESP_HEADER_BYTES + IV_BYTES] ^= 1;
	if (twin_lies(twin, LIE_FAILED))
		is_authentic = false;
	if (!twin_lies(twin, LIE_UNMARKED))
		mark(twin, frame, is_authentic);
}
