/* Datagrams that the program has not read, and requests that have no answer. */
#define _GNU_SOURCE
#include "shim.h"
#include <errno.h>
#include <linux/xfrm.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The longest datagram that is taken from the gateway, and how much may wait that nobody has asked for. */
#define MAX_RECORD ((size_t)1 << 17)
#define MAX_WAITING ((size_t)1 << 22)
#define MAX_RECORDS 4096

/* An error, as netlink says it. */
struct refusal {
	struct nlmsghdr header;
	struct nlmsgerr error;
};

void ring(struct entry *entry)
{
	uint64_t rings = 1;
	bool is_wanted = entry->first || entry->has_lost;
	if (is_wanted == entry->is_rung)
		return;
	ssize_t done = is_wanted ? real.write(entry->bell, &rings, sizeof rings)
	                         : real.read(entry->bell, &rings, sizeof rings);
	(void)done; /* an eventfd that is read when it was written never refuses */
	entry->is_rung = is_wanted;
}

static struct record *new_record(size_t length)
{
	struct record *record = malloc(sizeof *record + length);
	if (record)
		*record = (struct record){ .length = length };
	return record;
}

static void append(struct entry *entry, struct record *record)
{
	*entry->end = record;
	entry->end = &record->next;
	entry->record_count++;
	entry->record_bytes += record->length;
	ring(entry);
}

bool add_record(struct entry *entry, const uint8_t *bytes, size_t length)
{
	struct record *record = new_record(length);
	if (!record) {
		entry->has_lost = true;
		ring(entry);
		return false;
	}
	memcpy(record->bytes, bytes, length);
	append(entry, record);
	return true;
}

static void forget_first(struct entry *entry)
{
	struct record *record = entry->first;
	entry->first = record->next;
	if (!entry->first)
		entry->end = &entry->first;
	entry->record_count--;
	entry->record_bytes -= record->length;
	free(record);
}

void empty_queue(struct entry *entry)
{
	while (entry->first)
		forget_first(entry);
}

bool has_room(const struct entry *entry)
{
	return entry->record_bytes < MAX_WAITING && entry->record_count < MAX_RECORDS;
}

/* The next message of a datagram, which is looked at only as far as it is there. */
static bool next_message(const uint8_t *bytes, size_t length, size_t *at, struct nlmsghdr *header)
{
	if (*at > length || length - *at < sizeof *header)
		return false;
	memcpy(header, bytes + *at, sizeof *header);
	if (header->nlmsg_len < sizeof *header)
		return false;
	/* In 64 bits: the length may be any, and aligning must not make it 0. */
	*at += ((size_t)header->nlmsg_len + NLMSG_ALIGNTO - 1) & ~(size_t)(NLMSG_ALIGNTO - 1);
	return true;
}

/* Whether a message of a datagram says that a request was carried out. */
static bool is_agreed(const struct record *record, size_t at)
{
	struct refusal said;
	if (at > record->length || record->length - at < sizeof said)
		return false;
	memcpy(&said, record->bytes + at, sizeof said);
	return said.header.nlmsg_type == NLMSG_ERROR && said.error.error == 0;
}

/* Forgets the requests that a datagram ends, and keeps what they have installed. */
static void note_answered(struct entry *entry, const struct record *record)
{
	struct nlmsghdr header;
	for (size_t begin = 0, at = 0; next_message(record->bytes, record->length, &at, &header); begin = at) {
		if (header.nlmsg_type == XFRM_MSG_EXPIRE)
			note_expired(record->bytes + begin, record->length - begin);
		for (size_t i = 0; i < entry->asked_count; i++) {
			if (entry->asked[i].sequence != header.nlmsg_seq)
				continue;
			bool is_end = header.nlmsg_type == NLMSG_ERROR || header.nlmsg_type == NLMSG_DONE;
			bool is_only = !(header.nlmsg_flags & NLM_F_MULTI) && !entry->asked[i].has_ack;
			if (is_end || is_only) {
				if (is_agreed(record, begin))
					keep(entry->asked[i].adds);
				else
					free(entry->asked[i].adds);
				entry->asked_count--;
				memmove(&entry->asked[i], &entry->asked[i + 1],
					(entry->asked_count - i) * sizeof entry->asked[0]);
			}
			break;
		}
	}
}

/* Whether a datagram is the acknowledgement of a hello, and which one's: the program has said none. */
static bool is_heed(const struct entry *entry, const struct record *record, uint32_t *which)
{
	struct refusal said;
	if (record->length < sizeof said)
		return false;
	memcpy(&said, record->bytes, sizeof said);
	*which = said.header.nlmsg_seq;
	return said.header.nlmsg_type == NLMSG_ERROR && said.error.msg.nlmsg_type == NLMSG_NOOP &&
	       (int32_t)(*which - entry->heeded) > 0 && (int32_t)(entry->hello - *which) >= 0;
}

/* A connection that was made anew has something to say. */
static void end_loss(struct entry *entry)
{
	entry->has_lost |= entry->may_have_lost;
	entry->may_have_lost = false;
	ring(entry);
}

int pull(struct entry *entry)
{
	while (entry->connection >= 0) {
		uint8_t none;
		ssize_t length = real.recv(entry->connection, &none, 0, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT);
		if (length < 0)
			return errno == EAGAIN || errno == EINTR ? 0 : -1;
		if (length == 0)
			return -1;
		struct record *record = (size_t)length <= MAX_RECORD ? new_record((size_t)length) : NULL;
		if (!record) {
			/* It is lost, as netlink loses what there is no memory for. */
			real.recv(entry->connection, &none, 0, MSG_DONTWAIT);
			entry->has_lost = true;
			ring(entry);
			return 0;
		}
		length = real.recv(entry->connection, record->bytes, record->length, MSG_DONTWAIT);
		/* Another process, which shares the connection since a fork(2), may have been faster. */
		if (length <= 0) {
			bool is_none = length < 0 && (errno == EAGAIN || errno == EINTR);
			free(record);
			return is_none ? 0 : -1;
		}
		record->length = (size_t)length;
		uint32_t which;
		if (is_welcome(entry, record->bytes, record->length) || is_own_refusal(entry, record->bytes, record->length) ||
		    is_early_acquire(record->bytes, record->length)) {
			free(record);
			end_loss(entry);
			if (entry->first || entry->has_lost)
				return 1;
			continue;
		}
		if (is_heed(entry, record, &which)) {
			entry->heeded = which;
			free(record);
			continue;
		}
		end_loss(entry);
		note_answered(entry, record);
		append(entry, record);
		return 1;
	}
	return 0;
}

ssize_t give_first(struct entry *entry, struct msghdr *message, int flags)
{
	const struct record *record = entry->first;
	size_t given = 0, length = record->length;
	for (size_t i = 0; i < message->msg_iovlen && given < length; i++) {
		struct iovec *part = &message->msg_iov[i];
		size_t count = part->iov_len < length - given ? part->iov_len : length - given;
		if (count > 0)
			memcpy(part->iov_base, record->bytes + given, count);
		given += count;
	}
	message->msg_flags = given < length ? MSG_TRUNC : 0;
	if (!(flags & MSG_PEEK)) {
		forget_first(entry);
		ring(entry);
	}
	return (ssize_t)((flags & MSG_TRUNC) ? length : given);
}

/* ---- requests ------------------------------------------------------------------------------------------ */

/* The beginning of a message of the program: how many bytes of it are in `bytes`. */
static size_t beginning(const struct msghdr *message, uint8_t *bytes, size_t room)
{
	size_t length = 0;
	for (size_t i = 0; i < message->msg_iovlen && length < room; i++) {
		const struct iovec *part = &message->msg_iov[i];
		size_t count = part->iov_len < room - length ? part->iov_len : room - length;
		if (count > 0)
			memcpy(bytes + length, part->iov_base, count);
		length += count;
	}
	return length;
}

/* Whether a request has an answer even if it succeeds, or fails always as the probe of pluto does. */
static bool has_answer(const struct nlmsghdr *header)
{
	switch (header->nlmsg_type) {
	case XFRM_MSG_GETSA:
	case XFRM_MSG_GETPOLICY:
	case XFRM_MSG_ALLOCSPI:
	case XFRM_MSG_GETAE:
	case XFRM_MSG_GETSADINFO:
	case XFRM_MSG_GETSPDINFO:
	case XFRM_MSG_GETDEFAULT:
	case XFRM_MSG_MIGRATE:
		return true;
	default:
		return header->nlmsg_flags & NLM_F_ACK;
	}
}

/* Further ones than there is room for are not noted. */
void note_asked(struct entry *entry, const struct msghdr *message)
{
	uint8_t bytes[4096];
	size_t length = beginning(message, bytes, sizeof bytes);
	struct nlmsghdr header;
	for (size_t begin = 0, at = 0; next_message(bytes, length, &at, &header); begin = at) {
		bool is_asked = (header.nlmsg_flags & NLM_F_REQUEST) && header.nlmsg_type >= NLMSG_MIN_TYPE;
		bool is_whole = header.nlmsg_len <= length - begin;
		if (!is_asked)
			continue;
		struct kept *adds = is_whole ? requested(bytes + begin, header.nlmsg_len) : NULL;
		if (has_answer(&header) && entry->asked_count < MAX_ASKED) {
			bool has_ack = header.nlmsg_flags & NLM_F_ACK;
			entry->asked[entry->asked_count++] = (struct asked){ .sequence = header.nlmsg_seq,
				.type = header.nlmsg_type, .has_ack = has_ack, .adds = adds };
			entry->answer_by_ms = now_ms() + PATIENCE_MS;
		} else {
			/* Nothing will say that it was refused. */
			keep(adds);
		}
	}
}

/* Of a request that no gateway hears only what it takes away counts. */
void note_deleted(const struct msghdr *message)
{
	uint8_t bytes[4096];
	size_t length = beginning(message, bytes, sizeof bytes);
	struct nlmsghdr header;
	for (size_t begin = 0, at = 0; next_message(bytes, length, &at, &header); begin = at)
		if ((header.nlmsg_flags & NLM_F_REQUEST) && header.nlmsg_len <= length - begin)
			free(requested(bytes + begin, header.nlmsg_len));
}

void unask(struct entry *entry, size_t count)
{
	while (entry->asked_count > count)
		free(entry->asked[--entry->asked_count].adds);
}

void answer_asked(struct entry *entry, int error)
{
	for (size_t i = 0; i < entry->asked_count; i++) {
		const struct asked *asked = &entry->asked[i];
		struct refusal said = { 0 };
		said.header = (struct nlmsghdr){ .nlmsg_len = sizeof said, .nlmsg_type = NLMSG_ERROR,
			.nlmsg_seq = asked->sequence, .nlmsg_pid = entry->port_id };
		said.error.error = -error;
		said.error.msg = (struct nlmsghdr){ .nlmsg_len = sizeof said.error.msg, .nlmsg_type = asked->type,
			.nlmsg_seq = asked->sequence, .nlmsg_pid = entry->port_id };
		add_record(entry, (const uint8_t *)&said, sizeof said);
	}
	unask(entry, 0);
	ring(entry);
}

bool is_probe(const struct msghdr *message)
{
	struct {
		struct nlmsghdr header;
		struct xfrm_userpolicy_id id;
	} probe = { 0 };
	const struct xfrm_userpolicy_id nothing = { 0 };
	size_t length = beginning(message, (uint8_t *)&probe, sizeof probe);
	return length >= sizeof probe.header && probe.header.nlmsg_type == XFRM_MSG_MIGRATE &&
	       (probe.header.nlmsg_flags & NLM_F_REQUEST) && memcmp(&probe.id, &nothing, sizeof nothing) == 0;
}
