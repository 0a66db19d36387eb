/* After a restart of the gateway: the daemon is made to renew what the new one does not have.
 *
 *   the gateway's welcome: another process than before ──┬─► its policies, from kept.c, go to the gateway
 *                                                         └─► SAs: the daemon hears that each is about to end
 *                                                             (a soft XFRM_MSG_EXPIRE), and negotiates anew
 *
 * Keys are not kept, and a key that was used must not be used again from number 1: so SAs are not replayed,
 * but renewed over the IKE_SA, which lives on. The daemon believes that its policies are there, and installs
 * them not at all (pluto) or with its next SA (charon).
 *
 * The socket that listens to expiries does it, a part at a time, so that neither gateway nor daemon is
 * flooded: its timer ticks as long as there is something to do. */
#define _GNU_SOURCE
#include "shim.h"
#include <errno.h>
#include <linux/xfrm.h>
#include <stdio.h>
#include <string.h>

/* In one step, and how long to the next. */
#define POLICIES_AT_ONCE 128
#define SAS_AT_ONCE 32
/* SAs whose counterparts are looked for, each among all. */
#define LOOKS_AT_ONCE 256
#define STEP_MS 100
/* How long a renewal may take until packets ask for an SA in the ordinary way. */
#define RENEWAL_MS 10000
/* The port id of the requests that are made here, which errors have in the request that they return. */
#define OWN_PORT 0x54535554u

/* The gateway's process, as it has said. */
static uint8_t gateway[16];
static bool is_known;
static bool is_due;
static int64_t begun_ms;

static bool listens(const struct entry *entry)
{
	return entry->groups & (1u << (XFRMNLGRP_EXPIRE - 1));
}

/* ---- policies ------------------------------------------------------------------------------------------ */

static bool send_policy(struct entry *entry, struct kept *kept)
{
	struct nlmsghdr header;
	memcpy(&header, kept->bytes, sizeof header);
	header.nlmsg_type = XFRM_MSG_UPDPOLICY;
	header.nlmsg_flags = NLM_F_REQUEST;
	header.nlmsg_seq = kept->serial;
	header.nlmsg_pid = OWN_PORT;
	memcpy(kept->bytes, &header, sizeof header);
	return real.send(entry->connection, kept->bytes, kept->length, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
}

/* Whether all are sent. */
static bool send_policies(struct entry *entry)
{
	int left = POLICIES_AT_ONCE;
	for (struct kept *kept = first_kept(); kept; kept = kept->after) {
		if (kept->key.is_sa || kept->generation == generation)
			continue;
		/* Without room, the next step goes on. */
		if (left-- == 0 || !send_policy(entry, kept))
			return false;
		kept->generation = generation;
	}
	return true;
}

bool is_own_refusal(struct entry *entry, const uint8_t *message, size_t length)
{
	struct nlmsghdr header;
	struct nlmsgerr error;
	if (length < sizeof header + sizeof error)
		return false;
	memcpy(&header, message, sizeof header);
	memcpy(&error, message + sizeof header, sizeof error);
	if (header.nlmsg_type != NLMSG_ERROR || error.msg.nlmsg_pid != OWN_PORT)
		return false;
	for (struct kept *kept = first_kept(); kept; kept = kept->after) {
		if (kept->serial != error.msg.nlmsg_seq)
			continue;
		/* A gateway that is starting is asked again. */
		if (error.error == -EBUSY) {
			kept->generation = generation - 1;
			is_due = true;
			set_timer(entry->timer, STEP_MS);
		} else if (error.error) {
			fprintf(stderr, "libtestudo-xfrm: the gateway that was restarted refuses a policy: %s\n",
				strerror(-error.error));
		}
		break;
	}
	return true;
}

/* ---- SAs ----------------------------------------------------------------------------------------------- */

static struct xfrm_usersa_info info_of(const struct kept *kept)
{
	struct xfrm_usersa_info info;
	memcpy(&info, kept->bytes, sizeof info);
	return info;
}

/* Whether an SA from the peer is renewed whose counterpart this one is: both are renewed at once. */
static bool has_counterpart(const struct kept *outbound)
{
	struct xfrm_usersa_info own = info_of(outbound);
	for (struct kept *kept = first_kept(); kept; kept = kept->after) {
		if (!kept->key.is_sa || !kept->is_inbound || kept->generation == generation)
			continue;
		struct xfrm_usersa_info other = info_of(kept);
		if (own.reqid == other.reqid && own.family == other.family && own.id.proto == other.id.proto &&
		    memcmp(&own.saddr, &other.id.daddr, sizeof own.saddr) == 0 &&
		    memcmp(&own.id.daddr, &other.saddr, sizeof own.saddr) == 0)
			return true;
	}
	return false;
}

static bool tell_expiry(struct entry *entry, const struct kept *kept)
{
	struct {
		struct nlmsghdr header;
		struct xfrm_user_expire expire;
	} said;
	memset(&said, 0, sizeof said);
	said.header.nlmsg_len = NLMSG_LENGTH(sizeof said.expire);
	said.header.nlmsg_type = XFRM_MSG_EXPIRE;
	said.expire.state = info_of(kept);
	return add_record(entry, (const uint8_t *)&said, said.header.nlmsg_len);
}

/* Whether all are told. */
static bool tell_expiries(struct entry *entry)
{
	int left = SAS_AT_ONCE, looks = LOOKS_AT_ONCE;
	for (struct kept *kept = first_kept(); kept; kept = kept->after) {
		if (!kept->key.is_sa || kept->generation == generation || kept->told == generation)
			continue;
		if (!kept->is_inbound && looks-- == 0)
			return false;
		bool is_told = kept->is_inbound || !has_counterpart(kept);
		if (is_told && (left-- == 0 || !has_room(entry) || !tell_expiry(entry, kept)))
			return false;
		kept->told = generation;
	}
	return true;
}

bool is_early_acquire(const uint8_t *message, size_t length)
{
	struct nlmsghdr header;
	struct xfrm_user_acquire acquire;
	if (length < sizeof header + sizeof acquire || now_ms() - begun_ms > RENEWAL_MS)
		return false;
	memcpy(&header, message, sizeof header);
	memcpy(&acquire, message + sizeof header, sizeof acquire);
	if (header.nlmsg_type != XFRM_MSG_ACQUIRE)
		return false;
	uint32_t reqid = template_reqid(message, length, sizeof header + sizeof acquire);
	for (struct kept *kept = first_kept(); kept; kept = kept->after)
		if (kept->key.is_sa && kept->generation != generation && info_of(kept).reqid == reqid)
			return true;
	return false;
}

/* ---- the gateway --------------------------------------------------------------------------------------- */

uint32_t tunnels_to_renew(void)
{
	uint32_t count = 0;
	for (struct kept *kept = first_kept(); kept; kept = kept->after)
		count += kept->key.is_sa && !kept->is_inbound;
	return count;
}

void renew(struct entry *entry)
{
	if (!listens(entry) || entry->connection < 0)
		return;
	if (is_due) {
		bool is_done = send_policies(entry);
		is_done &= tell_expiries(entry);
		is_due = !is_done;
	}
	/* Also of a socket that finds it done by another one. */
	set_timer(entry->timer, is_due ? STEP_MS : 0);
}

void heed_gateway(struct entry *entry, const struct welcome *said)
{
	if (is_known && memcmp(gateway, said->gateway, sizeof gateway) != 0) {
		generation++;
		is_due = true;
		begun_ms = now_ms();
	}
	memcpy(gateway, said->gateway, sizeof gateway);
	is_known = true;
	entry->lost_ms = 0;
	renew(entry);
}
