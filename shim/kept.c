/* What the program has installed at the gateway, as far as the gateway has agreed: SAs without their keys, and
 * policies. A gateway that is restarted has none of it, and daemons install nothing twice by themselves:
 * renewal.c goes by what is kept here.
 *
 * What is deleted is forgotten when the program asks for it, whatever the answer is: a gateway that refuses
 * does not have it. What is added is kept once the gateway has said so. */
#define _GNU_SOURCE
#include "shim.h"
#include <linux/rtnetlink.h>
#include <linux/xfrm.h>
#include <stdlib.h>
#include <string.h>

/* SAs and policies at most: a program that adds without end takes no more memory than for these. */
#define MAX_KEPT 65536
/* The longest message of a policy: one with six templates has half of it. */
#define MAX_POLICY 1024
#define BUCKETS 4096

static struct kept *buckets[BUCKETS];
static struct kept *first, *last; /* in the order in which they came */
static size_t count;
static uint32_t serials;

uint32_t generation = 1;

/* ---- reading messages ---------------------------------------------------------------------------------- */

/* The content of an attribute, the last one of its type; NULL if there is none that is long enough. */
static const uint8_t *attribute(const uint8_t *message, size_t length, size_t at, uint16_t type, size_t wants)
{
	const uint8_t *found = NULL;
	struct nlattr header;
	for (at = NLMSG_ALIGN(at); at <= length && length - at >= sizeof header;) {
		memcpy(&header, message + at, sizeof header);
		if (header.nla_len < sizeof header || header.nla_len > length - at)
			break;
		if ((header.nla_type & NLA_TYPE_MASK) == type && header.nla_len >= sizeof header + wants)
			found = message + at + sizeof header;
		at = NLMSG_ALIGN(at + header.nla_len);
	}
	return found;
}

static struct kept_key key_of_sa(const xfrm_address_t *to, uint16_t family, uint8_t protocol, uint32_t spi)
{
	struct kept_key key;
	memset(&key, 0, sizeof key);
	key.is_sa = true;
	memcpy(key.selector, to, family == AF_INET ? 4 : sizeof *to);
	key.family = family;
	key.kind = protocol;
	key.spi = spi;
	return key;
}

static struct kept_key key_of_policy(const struct xfrm_selector *selector, uint8_t direction,
	const uint8_t *message, size_t length, size_t attributes)
{
	struct kept_key key;
	memset(&key, 0, sizeof key);
	_Static_assert(sizeof key.selector == sizeof *selector, "a selector is kept whole");
	memcpy(key.selector, selector, sizeof *selector);
	key.kind = direction;
	const uint8_t *mark = attribute(message, length, attributes, XFRMA_MARK, sizeof key.mark);
	const uint8_t *interface = attribute(message, length, attributes, XFRMA_IF_ID, sizeof key.interface);
	if (mark)
		memcpy(key.mark, mark, sizeof key.mark);
	if (interface)
		memcpy(&key.interface, interface, sizeof key.interface);
	return key;
}

/* ---- the table ----------------------------------------------------------------------------------------- */

static struct kept **bucket_of(const struct kept_key *key)
{
	/* FNV-1a: the keys are the program's own, and nobody else chooses them to collide. */
	const uint8_t *bytes = (const uint8_t *)key;
	uint32_t hash = 2166136261u;
	for (size_t i = 0; i < sizeof *key; i++)
		hash = (hash ^ bytes[i]) * 16777619u;
	return &buckets[hash % BUCKETS];
}

static struct kept *find(const struct kept_key *key)
{
	struct kept *kept = *bucket_of(key);
	while (kept && memcmp(&kept->key, key, sizeof *key) != 0)
		kept = kept->next;
	return kept;
}

static void leave_bucket(struct kept *kept)
{
	struct kept **link = bucket_of(&kept->key);
	while (*link != kept)
		link = &(*link)->next;
	*link = kept->next;
}

static void enter_bucket(struct kept *kept)
{
	struct kept **bucket = bucket_of(&kept->key);
	kept->next = *bucket;
	*bucket = kept;
}

static void forget(struct kept *kept)
{
	if (!kept)
		return;
	leave_bucket(kept);
	*(kept->before ? &kept->before->after : &first) = kept->after;
	*(kept->after ? &kept->after->before : &last) = kept->before;
	count--;
	free(kept);
}

static void forget_all(bool are_sas, uint8_t kind)
{
	for (struct kept *kept = first, *after; kept; kept = after) {
		after = kept->after;
		if (kept->key.is_sa == are_sas && (kind == 0 || kept->key.kind == kind))
			forget(kept);
	}
}

struct kept *first_kept(void)
{
	return first;
}

/* ---- addresses that change (MOBIKE of pluto) ------------------------------------------------------------ */

static bool is_same(const xfrm_address_t *one, const xfrm_address_t *other, uint16_t family)
{
	return memcmp(one, other, family == AF_INET ? 4 : sizeof *one) == 0;
}

static void move_sas(const struct xfrm_user_migrate *move)
{
	for (struct kept *kept = first, *after; kept; kept = after) {
		after = kept->after;
		struct xfrm_usersa_info info;
		if (!kept->key.is_sa)
			continue;
		memcpy(&info, kept->bytes, sizeof info);
		bool is_meant = info.family == move->old_family && info.id.proto == move->proto && info.mode == move->mode &&
			(!move->reqid || info.reqid == move->reqid) &&
			is_same(&info.id.daddr, &move->old_daddr, info.family) && is_same(&info.saddr, &move->old_saddr, info.family);
		if (!is_meant)
			continue;
		info.id.daddr = move->new_daddr;
		info.saddr = move->new_saddr;
		info.family = move->new_family;
		struct kept_key key = key_of_sa(&info.id.daddr, info.family, info.id.proto, info.id.spi);
		if (find(&key) && find(&key) != kept) {
			forget(kept);
			continue;
		}
		leave_bucket(kept);
		kept->key = key;
		memcpy(kept->bytes, &info, sizeof info);
		enter_bucket(kept);
	}
}

/* The templates of a policy, which only tunnels have addresses in. */
static void move_templates(struct kept *policy, const struct xfrm_user_migrate *move)
{
	size_t at = NLMSG_HDRLEN + sizeof(struct xfrm_userpolicy_info);
	struct xfrm_user_tmpl template;
	struct nlattr header;
	const uint8_t *found = attribute(policy->bytes, policy->length, at, XFRMA_TMPL, sizeof template);
	if (!found)
		return;
	uint8_t *templates = policy->bytes + (found - policy->bytes);
	memcpy(&header, templates - sizeof header, sizeof header);
	size_t length = header.nla_len - sizeof header;
	for (at = 0; length - at >= sizeof template; at += sizeof template) {
		memcpy(&template, templates + at, sizeof template);
		bool is_meant = template.family == move->old_family && template.id.proto == move->proto &&
			template.mode == move->mode && template.mode == XFRM_MODE_TUNNEL &&
			(!move->reqid || template.reqid == move->reqid) &&
			is_same(&template.id.daddr, &move->old_daddr, template.family) &&
			is_same(&template.saddr, &move->old_saddr, template.family);
		if (!is_meant)
			continue;
		template.id.daddr = move->new_daddr;
		template.saddr = move->new_saddr;
		template.family = move->new_family;
		memcpy(templates + at, &template, sizeof template);
	}
}

/* Does what a message of XFRM_MSG_MIGRATE does, as far as it is kept. */
static void move_all(const uint8_t *message, size_t length)
{
	struct xfrm_userpolicy_id id;
	struct xfrm_user_migrate move;
	struct nlattr header;
	size_t attributes = NLMSG_HDRLEN + sizeof id;
	memcpy(&id, message + NLMSG_HDRLEN, sizeof id);
	const uint8_t *moves = attribute(message, length, attributes, XFRMA_MIGRATE, sizeof move);
	if (!moves)
		return;
	struct kept_key key = key_of_policy(&id.sel, id.dir, message, length, attributes);
	struct kept *policy = find(&key);
	memcpy(&header, moves - sizeof header, sizeof header);
	for (size_t at = 0; header.nla_len - sizeof header - at >= sizeof move; at += sizeof move) {
		memcpy(&move, moves + at, sizeof move);
		move_sas(&move);
		if (policy)
			move_templates(policy, &move);
	}
}

void keep(struct kept *kept)
{
	if (!kept)
		return;
	if (kept->is_move) {
		move_all(kept->bytes, kept->length);
		free(kept);
		return;
	}
	struct kept *old = find(&kept->key);
	if (!old && count >= MAX_KEPT) {
		free(kept);
		return;
	}
	kept->generation = generation;
	kept->serial = ++serials;
	/* An update keeps its place among policies, and stays what it was of an SA. */
	kept->before = old ? old->before : last;
	kept->after = old ? old->after : NULL;
	if (old) {
		kept->is_inbound = old->is_inbound;
		leave_bucket(old);
		free(old);
	} else {
		count++;
	}
	enter_bucket(kept);
	*(kept->before ? &kept->before->after : &first) = kept;
	*(kept->after ? &kept->after->before : &last) = kept;
}

/* ---- what requests and notices say --------------------------------------------------------------------- */

static struct kept *new_kept(struct kept_key key, const uint8_t *bytes, size_t length)
{
	struct kept *kept = malloc(sizeof *kept + length);
	if (!kept)
		return NULL;
	*kept = (struct kept){ .key = key, .length = length };
	memcpy(kept->bytes, bytes, length);
	return kept;
}

static struct kept *sa_of(uint16_t type, const uint8_t *message, size_t length)
{
	struct xfrm_usersa_info info;
	if (length < NLMSG_HDRLEN + sizeof info)
		return NULL;
	memcpy(&info, message + NLMSG_HDRLEN, sizeof info);
	struct kept_key key = key_of_sa(&info.id.daddr, info.family, info.id.proto, info.id.spi);
	struct kept *kept = new_kept(key, (const uint8_t *)&info, sizeof info);
	/* Under an SPI that was reserved before come the SAs from the peer. */
	if (kept)
		kept->is_inbound = type == XFRM_MSG_UPDSA;
	return kept;
}

static struct kept *policy_of(const uint8_t *message, size_t length)
{
	struct xfrm_userpolicy_info info;
	size_t attributes = NLMSG_HDRLEN + sizeof info;
	if (length < attributes || length > MAX_POLICY)
		return NULL;
	memcpy(&info, message + NLMSG_HDRLEN, sizeof info);
	struct kept_key key = key_of_policy(&info.sel, info.dir, message, length, attributes);
	return new_kept(key, message, length);
}

static struct kept *move_of(const uint8_t *message, size_t length)
{
	const struct kept_key none = { 0 };
	if (length < NLMSG_HDRLEN + sizeof(struct xfrm_userpolicy_id) || length > MAX_POLICY)
		return NULL;
	struct kept *kept = new_kept(none, message, length);
	if (kept)
		kept->is_move = true;
	return kept;
}

static void forget_sa(const uint8_t *message, size_t length)
{
	struct xfrm_usersa_id id;
	if (length < NLMSG_HDRLEN + sizeof id)
		return;
	memcpy(&id, message + NLMSG_HDRLEN, sizeof id);
	struct kept_key key = key_of_sa(&id.daddr, id.family, id.proto, id.spi);
	forget(find(&key));
}

static void forget_policy(const uint8_t *message, size_t length)
{
	struct xfrm_userpolicy_id id;
	size_t attributes = NLMSG_HDRLEN + sizeof id;
	if (length < attributes)
		return;
	memcpy(&id, message + NLMSG_HDRLEN, sizeof id);
	struct kept_key key = key_of_policy(&id.sel, id.dir, message, length, attributes);
	forget(find(&key));
}

struct kept *requested(const uint8_t *message, size_t length)
{
	struct nlmsghdr header;
	memcpy(&header, message, sizeof header);
	switch (header.nlmsg_type) {
	case XFRM_MSG_NEWSA:
	case XFRM_MSG_UPDSA:
		return sa_of(header.nlmsg_type, message, length);
	case XFRM_MSG_NEWPOLICY:
	case XFRM_MSG_UPDPOLICY:
		return policy_of(message, length);
	case XFRM_MSG_MIGRATE:
		return move_of(message, length);
	case XFRM_MSG_DELSA:
		forget_sa(message, length);
		return NULL;
	case XFRM_MSG_DELPOLICY:
		forget_policy(message, length);
		return NULL;
	case XFRM_MSG_FLUSHSA:
		/* Its protocol; 255 is all. */
		if (length > NLMSG_HDRLEN)
			forget_all(true, message[NLMSG_HDRLEN] == 255 ? 0 : message[NLMSG_HDRLEN]);
		return NULL;
	case XFRM_MSG_FLUSHPOLICY:
		forget_all(false, 0);
		return NULL;
	default:
		return NULL;
	}
}

void note_expired(const uint8_t *message, size_t length)
{
	struct xfrm_user_expire expire;
	if (length < NLMSG_HDRLEN + sizeof expire)
		return;
	memcpy(&expire, message + NLMSG_HDRLEN, sizeof expire);
	const struct xfrm_id *id = &expire.state.id;
	struct kept_key key = key_of_sa(&id->daddr, expire.state.family, id->proto, id->spi);
	if (expire.hard)
		forget(find(&key));
}

/* The number by which the templates of a message and SAs belong together; 0 if it has no template. */
uint32_t template_reqid(const uint8_t *message, size_t length, size_t attributes)
{
	struct xfrm_user_tmpl template;
	const uint8_t *found = attribute(message, length, attributes, XFRMA_TMPL, sizeof template);
	if (!found)
		return 0;
	memcpy(&template, found, sizeof template);
	return template.reqid;
}
