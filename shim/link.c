/* The connection to the gateway, and what is told of a socket. */
#define _GNU_SOURCE
#include "shim.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <unistd.h>

/* The first message of a connection; again when groups or options change. All in host byte order. */
struct hello {
	struct nlmsghdr header; /* NLMSG_NOOP; NLM_F_ACK where an acknowledgement is waited for */
	uint32_t magic;         /* "TXFR" */
	uint32_t version;       /* 1 */
	uint32_t port_id;
	uint32_t groups;  /* bit n - 1: group n */
	uint32_t options; /* bit n: netlink option n, as setsockopt(2) numbers them */
	uint32_t tunnels; /* those that the program had at the gateway before, if its connection was lost */
	uint32_t lost_ms[2]; /* when that was: milliseconds of CLOCK_MONOTONIC, lower half first; 0 if none was */
	char name[16];    /* of the program, for people, with a final zero */
};
/* How often one who waits for an acknowledgement looks whether another thread has received it. */
#define LOOK_MS 10

char gateway_path[sizeof ((struct sockaddr_un *)0)->sun_path];

int64_t now_ms(void)
{
	struct timespec now = { 0 };
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

bool is_gone(int error)
{
	return error == EPIPE || error == ECONNRESET || error == ENOTCONN || error == ECONNREFUSED;
}

/* Lets the epoll instance watch a file, and marks it as this library's own. */
static int watch(int epoll, int fd)
{
	struct epoll_event event = { .events = EPOLLIN };
	if (fd < 0)
		return -1;
	if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) < 0) {
		int error = errno;
		real.close(fd);
		errno = error;
		return -1;
	}
	mark(fd);
	return fd;
}

static int new_timer(void)
{
	return timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
}

static int new_bell(void)
{
	return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

int equip(struct entry *entry)
{
	/* Both at once: later there may be no file descriptor left, and whoever polls would never rest. */
	entry->timer = watch(entry->fd, lifted(new_timer()));
	if (entry->timer >= 0)
		entry->bell = watch(entry->fd, lifted(new_bell()));
	return entry->timer >= 0 && entry->bell >= 0 ? 0 : -1;
}

void set_timer(int timer, int every_ms)
{
	struct timespec every = { .tv_sec = every_ms / 1000, .tv_nsec = every_ms % 1000 * 1000000 };
	struct itimerspec when = { .it_interval = every, .it_value = every };
	timerfd_settime(timer, 0, &when, NULL);
}

int reach(struct entry *entry)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	memcpy(address.sun_path, gateway_path, sizeof address.sun_path);
	int fd = lifted(real.socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
	if (fd < 0)
		return -1;
	/* Without waiting: a gateway whose queue of connections is full is one that is not there. */
	if (real.connect(fd, (struct sockaddr *)&address, sizeof address) < 0) {
		int error = errno;
		real.close(fd);
		errno = error;
		return -1;
	}
	entry->connection = watch(entry->fd, fd);
	if (entry->connection < 0)
		return -1;
	set_timer(entry->timer, 0);
	entry->may_have_lost |= entry->is_lost && entry->groups;
	entry->is_lost = false;
	entry->reached_ms = now_ms();
	ring(entry);
	say_hello(entry, false);
	/* A gateway that has gone in between. */
	errno = ECONNREFUSED;
	return entry->connection < 0 ? -1 : 0;
}

static void disconnect(struct entry *entry)
{
	if (entry->connection < 0)
		return;
	/* A child of vfork(2) may have it open, too: closing alone would leave it in the instance. */
	bool is_it = epoll_ctl(entry->fd, EPOLL_CTL_DEL, entry->connection, NULL) == 0;
	unmark(entry->connection);
	if (is_it)
		real.close(entry->connection);
	entry->connection = -1;
	entry->is_lost = true;
	if (!entry->lost_ms)
		entry->lost_ms = now_ms();
	entry->heeded = entry->hello;
	answer_asked(entry, ENOBUFS);
}

void wait_for_gateway(struct entry *entry)
{
	disconnect(entry);
	set_timer(entry->timer, RETRY_MS);
}

void lose(struct entry *entry)
{
	disconnect(entry);
	/* A gateway that disconnects at once is not asked at once again. */
	if (now_ms() - entry->reached_ms <= RETRY_MS || reach(entry) < 0)
		wait_for_gateway(entry);
}

void say_hello(struct entry *entry, bool is_acked)
{
	if (is_acked)
		entry->hello++;
	uint64_t lost = (uint64_t)entry->lost_ms;
	struct hello hello = {
		.header = { .nlmsg_len = sizeof hello, .nlmsg_type = NLMSG_NOOP, .nlmsg_flags = is_acked ? NLM_F_ACK : 0,
			.nlmsg_seq = entry->hello, .nlmsg_pid = entry->port_id },
		.magic = HELLO_MAGIC,
		.version = 1,
		.port_id = entry->port_id,
		.groups = entry->groups,
		.options = entry->options,
		.tunnels = lost ? tunnels_to_renew() : 0,
		.lost_ms = { (uint32_t)lost, (uint32_t)(lost >> 32) },
	};
	strncpy(hello.name, program_invocation_short_name, sizeof hello.name - 1);
	if (entry->connection < 0)
		entry->heeded = entry->hello;
	else if (real.send(entry->connection, &hello, sizeof hello, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		/* A gateway that does not read hears it on the next connection. */
		wait_for_gateway(entry);
}

bool is_welcome(struct entry *entry, const uint8_t *bytes, size_t length)
{
	struct welcome said;
	if (length < sizeof said)
		return false;
	memcpy(&said, bytes, sizeof said);
	if (said.header.nlmsg_type != NLMSG_NOOP || said.magic != HELLO_MAGIC)
		return false;
	if (said.version == 1) {
		heed_mark(said.mark);
		heed_gateway(entry, &said);
	}
	return true;
}

void wait_for_heed(int fd, uint32_t hello)
{
	for (int64_t end = now_ms() + PATIENCE_MS;;) {
		take_lock();
		struct entry *entry = entry_of(fd);
		bool is_over = !entry;
		/* What comes before it waits for the program, in order. */
		while (!is_over) {
			bool is_heeded = (int32_t)(entry->heeded - hello) >= 0;
			int pulled = is_heeded || !has_room(entry) ? 0 : pull(entry);
			is_over = is_heeded || !has_room(entry) || pulled < 0;
			if (pulled < 0)
				lose(entry);
			if (pulled <= 0)
				break;
		}
		struct pollfd there = { .fd = entry ? entry->connection : -1, .events = POLLIN };
		release_lock();
		int64_t left = end - now_ms();
		if (is_over || left <= 0)
			return;
		/* If the number is another file's by now, it is asked anew at once, or a moment later. */
		poll(&there, 1, left < LOOK_MS ? (int)left : LOOK_MS);
	}
}

/* Puts a new file in the place of one that is shared with the parent. */
static int replace(int fd, int by, int flags)
{
	int placed = by < 0 ? -1 : real.dup3(by, fd, flags);
	if (by >= 0)
		real.close(by);
	return placed;
}

void split_from_parent(struct entry *entry, const int *names, int count)
{
	int epoll = lifted(epoll_create1(EPOLL_CLOEXEC));
	if (epoll < 0)
		return; /* They share it, then. */
	struct epoll_event event = { .events = EPOLLIN };
	int flags = real.fcntl(entry->fd, F_GETFL);
	real.fcntl(epoll, F_SETFL, flags & O_NONBLOCK);
	replace(entry->timer, new_timer(), O_CLOEXEC);
	replace(entry->bell, new_bell(), O_CLOEXEC);
	int files[] = { entry->timer, entry->bell, entry->connection };
	for (size_t i = 0; i < sizeof files / sizeof *files; i++)
		if (files[i] >= 0)
			epoll_ctl(epoll, EPOLL_CTL_ADD, files[i], &event);
	for (int i = 0; i < count; i++) {
		bool closes = real.fcntl(names[i], F_GETFD) & FD_CLOEXEC;
		real.dup3(epoll, names[i], closes ? O_CLOEXEC : 0);
	}
	real.close(epoll);
	set_timer(entry->timer, entry->connection < 0 ? RETRY_MS : 0);
	entry->is_rung = false;
	ring(entry);
}
