/* Sending and receiving, by all calls that do. */
#define _GNU_SOURCE
#include "shim.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* How long one who waits for room looks at one connection, which another thread may replace. */
#define LOOK_MS 100

void give_address(struct sockaddr *address, socklen_t *length, uint32_t port_id, uint32_t groups)
{
	struct sockaddr_nl netlink = { .nl_family = AF_NETLINK, .nl_pid = port_id, .nl_groups = groups };
	if (!address || !length)
		return;
	memcpy(address, &netlink, *length < sizeof netlink ? *length : sizeof netlink);
	*length = sizeof netlink;
}

static bool is_patient(int fd, int flags)
{
	return !(flags & MSG_DONTWAIT) && !(real.fcntl(fd, F_GETFL) & O_NONBLOCK);
}

/* When a call that begins now has to end; INT64_MAX without a limit. */
static int64_t end_of(const struct timeval *limit)
{
	if (!limit->tv_sec && !limit->tv_usec)
		return INT64_MAX;
	int64_t seconds = limit->tv_sec < INT_MAX ? limit->tv_sec : INT_MAX;
	return now_ms() + seconds * 1000 + (limit->tv_usec + 999) / 1000;
}

/* Waits for a file: whether the time was enough; -1 with errno if a signal ended it. */
static int wait_for(int fd, short events, int64_t end, int at_most_ms)
{
	int64_t left = end == INT64_MAX ? INT_MAX : end - now_ms();
	if (left <= 0)
		return 0;
	struct pollfd there = { .fd = fd, .events = events };
	int wait = left < at_most_ms ? (int)left : at_most_ms;
	return poll(&there, 1, end == INT64_MAX && at_most_ms == INT_MAX ? -1 : wait) < 0 ? -1 : 1;
}

/* ---- sending ------------------------------------------------------------------------------------------- */

static size_t length_of(const struct msghdr *message)
{
	size_t length = 0;
	for (size_t i = 0; i < message->msg_iovlen; i++)
		length += message->msg_iov[i].iov_len;
	return length;
}

/* Sends a record if there is room, over a new connection if there is none. With the lock. */
static ssize_t try_to_send(struct entry *entry, const struct msghdr *message, int flags)
{
	for (int attempt = 0; attempt < 2; attempt++) {
		size_t before = entry->asked_count;
		if (entry->connection < 0 && reach(entry) < 0) {
			/* pluto asks only once whether SAs can be moved, and goes by what it hears. */
			if (is_probe(message)) {
				note_asked(entry, message);
				answer_asked(entry, ENOPROTOOPT);
				return (ssize_t)length_of(message);
			}
			/* What a program deletes meanwhile is gone for it: the next gateway must not have it again. */
			note_deleted(message);
			break;
		}
		note_asked(entry, message);
		ssize_t sent = real.sendmsg(entry->connection, message, flags | MSG_NOSIGNAL | MSG_DONTWAIT);
		if (sent >= 0)
			return sent;
		int error = errno;
		unask(entry, before);
		if (!is_gone(error)) {
			errno = error;
			return -1;
		}
		/* Once more: the gateway may have been restarted. */
		lose(entry);
	}
	errno = ECONNREFUSED;
	return -1;
}

static ssize_t send_record(int fd, const struct msghdr *message, int flags)
{
	/* Its destination is netlink's address of the kernel. */
	struct msghdr plain = { .msg_iov = message->msg_iov, .msg_iovlen = message->msg_iovlen };
	int64_t end = 0;
	if (length_of(message) == 0 || (flags & MSG_OOB)) {
		/* As the kernel says it. A record of no length would be the end of the connection. */
		errno = (flags & MSG_OOB) ? EOPNOTSUPP : ENODATA;
		return -1;
	}
	for (bool is_first = true;; is_first = false) {
		take_lock();
		struct entry *entry = entry_of(fd);
		errno = EBADF;
		ssize_t sent = entry ? try_to_send(entry, &plain, flags) : -1;
		bool is_full = entry && sent < 0 && errno == EAGAIN;
		int connection = entry ? entry->connection : -1;
		if (is_first && entry)
			end = end_of(&entry->send_limit);
		release_lock();
		if (!is_full || !is_patient(fd, flags))
			return sent;
		/* If the number is another file's by now, it is asked anew a moment later. */
		int waited = wait_for(connection, POLLOUT, end, LOOK_MS);
		if (waited <= 0) {
			errno = waited < 0 ? errno : EAGAIN;
			return -1;
		}
	}
}

static ssize_t send_parts(int fd, const struct iovec *parts, size_t count, int flags)
{
	struct msghdr message = { .msg_iov = (struct iovec *)parts, .msg_iovlen = count };
	return send_record(fd, &message, flags);
}

static ssize_t send_bytes(int fd, const void *bytes, size_t length, int flags)
{
	struct iovec part = { .iov_base = (void *)bytes, .iov_len = length };
	return send_parts(fd, &part, 1, flags);
}

EXPORT ssize_t send(int fd, const void *bytes, size_t length, int flags)
{
	return is_ours(fd) ? send_bytes(fd, bytes, length, flags) : real.send(fd, bytes, length, flags);
}

EXPORT ssize_t sendto(int fd, const void *bytes, size_t length, int flags, const struct sockaddr *to,
	socklen_t to_length)
{
	return is_ours(fd) ? send_bytes(fd, bytes, length, flags) : real.sendto(fd, bytes, length, flags, to, to_length);
}

EXPORT ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	return is_ours(fd) ? send_record(fd, message, flags) : real.sendmsg(fd, message, flags);
}

EXPORT int sendmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags)
{
	if (!is_ours(fd))
		return real.sendmmsg(fd, messages, count, flags);
	unsigned done = 0;
	for (; done < count && done < IOV_MAX; done++) {
		ssize_t sent = send_record(fd, &messages[done].msg_hdr, flags);
		if (sent < 0)
			return done > 0 ? (int)done : -1;
		messages[done].msg_len = (unsigned)sent;
	}
	return (int)done;
}

EXPORT ssize_t write(int fd, const void *bytes, size_t length)
{
	return is_ours(fd) ? send_bytes(fd, bytes, length, 0) : real.write(fd, bytes, length);
}

static bool is_count(int count)
{
	errno = EINVAL;
	return count >= 0 && count <= IOV_MAX;
}

EXPORT ssize_t writev(int fd, const struct iovec *parts, int count)
{
	if (!is_ours(fd))
		return real.writev(fd, parts, count);
	return is_count(count) ? send_parts(fd, parts, (size_t)count, 0) : -1;
}

/* ---- receiving ----------------------------------------------------------------------------------------- */

/* What a recv(2) finds at once: its length; -1 with errno, EAGAIN if it may wait for more. With the lock. */
static ssize_t try_to_receive(struct entry *entry, struct msghdr *message, int flags, bool *may_wait)
{
	uint64_t ticks;
	int error = 0;
	*may_wait = false;
	if (!entry->first && !entry->has_lost) {
		if (pull(entry) < 0) {
			lose(entry);
			/* One who listens hears of it when the gateway is there again: charon sleeps for a second after
			 * each error, and renews nothing meanwhile. */
			error = entry->groups ? EAGAIN : ENOBUFS;
		} else if (entry->connection < 0 && real.read(entry->timer, &ticks, sizeof ticks) > 0) {
			/* What the gateway said in between is lost, and there may be nothing to wait for: a socket that
			 * poll(2) has called readable never keeps a recv(2) waiting for longer. */
			bool is_reached = reach(entry) == 0;
			error = is_reached && !entry->groups ? ENOBUFS : EAGAIN;
			entry->may_have_lost |= is_reached && entry->groups;
		} else if (entry->connection >= 0 && !entry->first && real.read(entry->timer, &ticks, sizeof ticks) > 0) {
			renew(entry);
		}
	}
	if (!error && entry->first)
		return give_first(entry, message, flags);
	if (!error && !entry->has_lost) {
		*may_wait = true;
		error = EAGAIN;
	}
	if (entry->has_lost)
		error = ENOBUFS;
	entry->has_lost = false; /* it is said here */
	ring(entry);
	errno = error;
	return -1;
}

static ssize_t receive_record(int fd, struct msghdr *message, int flags)
{
	int64_t end = 0;
	if (flags & MSG_OOB) {
		errno = EOPNOTSUPP;
		return -1;
	}
	for (bool is_first = true;; is_first = false) {
		bool may_wait = false;
		take_lock();
		struct entry *entry = entry_of(fd);
		errno = EBADF;
		ssize_t received = entry ? try_to_receive(entry, message, flags, &may_wait) : -1;
		bool is_due = entry && entry->asked_count > 0 && entry->connection >= 0;
		int64_t due_ms = is_due ? entry->answer_by_ms : 0;
		if (is_first && entry)
			end = end_of(&entry->receive_limit);
		release_lock();
		if (received >= 0) {
			message->msg_controllen = 0;
			give_address(message->msg_name, message->msg_name ? &message->msg_namelen : NULL, 0, 0);
		}
		if (!may_wait)
			return received;
		/* The kernel's answer would be there already. */
		int waited = wait_for(fd, POLLIN, is_patient(fd, flags) ? end : due_ms, INT_MAX);
		if (waited <= 0) {
			errno = waited < 0 ? errno : EAGAIN;
			return -1;
		}
	}
}

static ssize_t receive_parts(int fd, const struct iovec *parts, size_t count, int flags)
{
	struct msghdr message = { .msg_iov = (struct iovec *)parts, .msg_iovlen = count };
	return receive_record(fd, &message, flags);
}

static ssize_t receive_bytes(int fd, void *bytes, size_t length, int flags, struct sockaddr *from,
	socklen_t *from_length)
{
	struct iovec part = { .iov_base = bytes, .iov_len = length };
	ssize_t received = receive_parts(fd, &part, 1, flags);
	if (received >= 0)
		give_address(from, from_length, 0, 0);
	return received;
}

EXPORT ssize_t recv(int fd, void *bytes, size_t length, int flags)
{
	if (!is_ours(fd))
		return real.recv(fd, bytes, length, flags);
	return receive_bytes(fd, bytes, length, flags, NULL, NULL);
}

EXPORT ssize_t recvfrom(int fd, void *bytes, size_t length, int flags, struct sockaddr *from,
	socklen_t *from_length)
{
	if (!is_ours(fd))
		return real.recvfrom(fd, bytes, length, flags, from, from_length);
	return receive_bytes(fd, bytes, length, flags, from, from_length);
}

EXPORT ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
	return is_ours(fd) ? receive_record(fd, message, flags) : real.recvmsg(fd, message, flags);
}

/* Says with the next recv(2) what a call cannot say that has received something before. */
static void keep_lost(int fd)
{
	take_lock();
	struct entry *entry = entry_of(fd);
	if (entry) {
		entry->has_lost = true;
		ring(entry);
	}
	release_lock();
}

EXPORT int recvmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags, struct timespec *limit)
{
	if (!is_ours(fd))
		return real.recvmmsg(fd, messages, count, flags, limit);
	struct timeval within = { 0 };
	if (limit)
		within = (struct timeval){ .tv_sec = limit->tv_sec, .tv_usec = limit->tv_nsec / 1000 + 1 };
	/* As the kernel does, which looks at the time after each datagram. */
	int64_t end = end_of(&within);
	unsigned done = 0;
	while (done < count && done < IOV_MAX) {
		ssize_t received = receive_record(fd, &messages[done].msg_hdr, flags & ~MSG_WAITFORONE);
		if (received < 0 && done == 0)
			return -1;
		if (received < 0) {
			if (errno == ENOBUFS)
				keep_lost(fd);
			break;
		}
		messages[done++].msg_len = (unsigned)received;
		if (flags & MSG_WAITFORONE)
			flags |= MSG_DONTWAIT;
		if (now_ms() >= end)
			break;
	}
	return (int)done;
}

EXPORT ssize_t read(int fd, void *bytes, size_t length)
{
	return is_ours(fd) ? receive_bytes(fd, bytes, length, 0, NULL, NULL) : real.read(fd, bytes, length);
}

EXPORT ssize_t readv(int fd, const struct iovec *parts, int count)
{
	if (!is_ours(fd))
		return real.readv(fd, parts, count);
	return is_count(count) ? receive_parts(fd, parts, (size_t)count, 0) : -1;
}

/* What _FORTIFY_SOURCE makes of the calls above. */

#define CHECK(length, room) do { if ((length) > (room)) abort(); } while (0)

EXPORT ssize_t __recv_chk(int fd, void *bytes, size_t length, size_t room, int flags)
{
	CHECK(length, room);
	return recv(fd, bytes, length, flags);
}

EXPORT ssize_t __recvfrom_chk(int fd, void *bytes, size_t length, size_t room, int flags, struct sockaddr *from,
	socklen_t *from_length)
{
	CHECK(length, room);
	return recvfrom(fd, bytes, length, flags, from, from_length);
}

EXPORT ssize_t __read_chk(int fd, void *bytes, size_t length, size_t room)
{
	CHECK(length, room);
	return read(fd, bytes, length);
}
