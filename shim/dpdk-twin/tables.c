/* The device's tables: SAs each way, and the addresses of those inbound. The lock is held in all of this. */
#include "twin.h"
#include <string.h>

static struct sa *free_entry(const struct twin *twin, struct sa *table)
{
	for (uint32_t i = 0; i < twin->sa_limit; i++)
		if (!table[i].session)
			return &table[i];
	return NULL;
}

/* The index of an address that is there, else of a free place, else MAX_ADDRESSES. */
static uint16_t address_index(const struct twin *twin, const struct address *to)
{
	uint16_t unused = MAX_ADDRESSES;
	for (uint16_t i = 0; i < MAX_ADDRESSES; i++) {
		if (twin->address_users[i] && !memcmp(&twin->addresses[i], to, sizeof *to))
			return i;
		if (!twin->address_users[i] && unused == MAX_ADDRESSES)
			unused = i;
	}
	return unused;
}

struct sa *table_add(struct twin *twin, struct session *session, const struct address *to)
{
	struct sa *sa = free_entry(twin, session->is_ingress ? twin->inbound : twin->outbound);
	uint16_t address = 0;
	if (!sa)
		return NULL;
	if (session->is_ingress) {
		address = address_index(twin, to);
		if (address == MAX_ADDRESSES)
			return NULL;
	}
	if (sa_set_key(sa, session))
		return NULL;
	if (session->is_ingress) {
		twin->addresses[address] = *to;
		twin->address_users[address]++;
		sa->address = address;
	}
	sa->session = session;
	session->sa = sa;
	return sa;
}

void table_remove(struct twin *twin, struct session *session)
{
	struct sa *sa = session->sa;
	if (!sa)
		return;
	if (sa->is_ingress)
		twin->address_users[sa->address]--;
	session->sa = NULL;
	sa_clear(sa);
}

void tables_clear(struct twin *twin)
{
	for (uint32_t i = 0; i < MAX_SAS; i++) {
		if (twin->outbound[i].session)
			table_remove(twin, twin->outbound[i].session);
		if (twin->inbound[i].session)
			table_remove(twin, twin->inbound[i].session);
	}
	twin->generation++;
}

struct sa *table_find(struct twin *twin, rte_be32_t spi, const struct address *to)
{
	for (uint32_t i = 0; i < twin->sa_limit; i++) {
		struct sa *sa = &twin->inbound[i];
		if (sa->session && sa->spi == spi && !memcmp(&twin->addresses[sa->address], to, sizeof *to))
			return sa;
	}
	return NULL;
}
