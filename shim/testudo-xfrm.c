/* libtestudo-xfrm.so: lets a program speak to Testudo where it means to speak to the kernel's XFRM.
 *
 * Loaded with LD_PRELOAD into an IKE daemon or into `ip xfrm`. A socket(AF_NETLINK, …, NETLINK_XFRM) becomes
 * a connection to the gateway's Unix socket (SOCK_SEQPACKET); each netlink datagram is one record of it, in
 * both directions and unchanged. Everything else goes to the kernel as before.
 *
 *      daemon ── its file descriptor: an epoll instance ──┬── the connection, while there is one
 *                                                         ├── a timer: while there is none, four times a second
 *                                                         └── a bell (an eventfd): datagrams that wait here
 *
 * The daemon's file descriptor never changes, so that poll(2), select(2) and epoll(7) keep working while the
 * gateway is away: an epoll instance is readable when what it watches is. There is no thread. When the
 * connection is there again after a loss, recv(2) says ENOBUFS once to one who has joined groups, which is
 * netlink's word for lost messages; others hear it at the loss, too. In between it says EAGAIN four times a
 * second at most, so that no daemon spins. Timer and bell are opened with the socket: later there may be no file
 * descriptor left.
 *
 * Requests whose answers are lost with the connection are answered here, with an error: charon waits for each
 * answer without end, whatever recv(2) says meanwhile. The kernel's answer is there when send(2) returns, and
 * pluto reads it without waiting: a recv(2) that may not wait does so nevertheless, for a second at most,
 * while an answer is due.
 *
 * What netlink knows of a socket and a Unix socket does not, its port id, groups and options, is told to the
 * gateway in a message of type NLMSG_NOOP (struct hello in link.c): first of all, and whenever it changes.
 * Where a program joins groups, the gateway acknowledges it (NLM_F_ACK), and the call waits for that, for a
 * second at most: what happens after the call is heard. The gateway bids welcome in return: by that the library
 * knows a gateway that was restarted, which has nothing of what the program has installed (kept.c, renewal.c).
 *
 * Options that belong to the kernel's IPsec are answered here:
 *
 *   - Policies for one socket (IP_XFRM_POLICY and its kin), with which a daemon lets its own packets pass:
 *     the socket gets the gateway's mark (mark.c).
 *   - UDP_ENCAP: the gateway takes the ESP that comes to that port, and the socket gets a filter that leaves
 *     it the rest (udp_encap.c).
 *
 * TESTUDO_XFRM names the gateway's socket; without it, it is /run/testudo/xfrm.sock.
 * TESTUDO_UDP_ENCAP=kernel leaves UDP_ENCAP to the kernel.
 */
#define _GNU_SOURCE
#include "shim.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/udp.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

static uint32_t given_ids;

/* ---- making and naming --------------------------------------------------------------------------------- */

static int open_socket(int type)
{
	int fd = epoll_create1((type & SOCK_CLOEXEC) ? EPOLL_CLOEXEC : 0);
	if (fd < 0)
		return -1;
	if (type & SOCK_NONBLOCK)
		real.fcntl(fd, F_SETFL, real.fcntl(fd, F_GETFL) | O_NONBLOCK);
	take_lock();
	struct entry *entry = add_entry(fd);
	if (!entry || equip(entry) < 0) {
		int error = errno;
		if (entry)
			drop_entry(entry);
		real.close(fd);
		errno = error;
		release_lock();
		return -1;
	}
	entry->type = type & ~(SOCK_CLOEXEC | SOCK_NONBLOCK);
	/* The kernel's for sockets that say nothing else. */
	entry->receive_buffer = entry->send_buffer = 212992;
	int error = reach(entry) < 0 ? errno : 0;
	if (error)
		wait_for_gateway(entry);
	release_lock();
	/* Where the kernel or the administrator refuses it, waiting would hide why. */
	if (error == EACCES || error == EPERM)
		fprintf(stderr, "libtestudo-xfrm: %s: %s\n", gateway_path, strerror(error));
	return fd;
}

/* A port id as the kernel gives them: the process's own for its first socket. */
static uint32_t new_port_id(void)
{
	uint32_t given = given_ids++;
	return given == 0 ? (uint32_t)getpid() : UINT32_MAX - 4096 - given;
}

EXPORT int socket(int domain, int type, int protocol)
{
	prepare();
	int plain = type & ~(SOCK_CLOEXEC | SOCK_NONBLOCK);
	bool is_kind = plain == SOCK_RAW || plain == SOCK_DGRAM;
	if (domain == AF_NETLINK && protocol == NETLINK_XFRM && is_kind)
		return open_socket(type);
	return real.socket(domain, type, protocol);
}

/* The entry of a file descriptor that was one of ours a moment ago. With the lock. */
static struct entry *known(int fd)
{
	struct entry *entry = entry_of(fd);
	if (!entry)
		errno = EBADF;
	return entry;
}

EXPORT int bind(int fd, const struct sockaddr *address, socklen_t length)
{
	if (!is_ours(fd))
		return real.bind(fd, address, length);
	struct sockaddr_nl netlink;
	if (!address || length < sizeof netlink || address->sa_family != AF_NETLINK) {
		errno = EINVAL;
		return -1;
	}
	memcpy(&netlink, address, sizeof netlink);
	take_lock();
	struct entry *entry = known(fd);
	uint32_t hello = 0;
	if (entry) {
		if (!entry->is_bound)
			entry->port_id = netlink.nl_pid ? netlink.nl_pid : new_port_id();
		entry->is_bound = true;
		entry->groups = netlink.nl_groups;
		say_hello(entry, netlink.nl_groups != 0);
		hello = entry->hello;
	}
	release_lock();
	if (entry && netlink.nl_groups)
		wait_for_heed(fd, hello);
	return entry ? 0 : -1;
}

EXPORT int connect(int fd, const struct sockaddr *address, socklen_t length)
{
	if (!is_ours(fd))
		return real.connect(fd, address, length);
	return 0; /* to the kernel, which is where it leads anyway */
}

EXPORT int getsockname(int fd, struct sockaddr *address, socklen_t *length)
{
	if (!is_ours(fd))
		return real.getsockname(fd, address, length);
	take_lock();
	struct entry *entry = known(fd);
	if (entry)
		give_address(address, length, entry->port_id, entry->groups);
	release_lock();
	return entry ? 0 : -1;
}

/* ---- options ------------------------------------------------------------------------------------------- */

/* An option of netlink. Unknown ones are kept as bits as well: the gateway knows which it understands. */
static int set_netlink_option(int fd, int name, const void *value, socklen_t length)
{
	int number = 0;
	bool joins = name == NETLINK_ADD_MEMBERSHIP, leaves = name == NETLINK_DROP_MEMBERSHIP;
	if (!value || length < sizeof number) {
		errno = EINVAL;
		return -1;
	}
	memcpy(&number, value, sizeof number);
	if ((joins || leaves) && (number < 1 || number > 32)) {
		errno = EINVAL;
		return -1;
	}
	if (name < 0 || name > 31) {
		errno = ENOPROTOOPT;
		return -1;
	}
	take_lock();
	struct entry *entry = known(fd);
	uint32_t hello = 0;
	if (entry) {
		uint32_t *bits = joins || leaves ? &entry->groups : &entry->options;
		uint32_t bit = 1u << (joins || leaves ? number - 1 : name);
		*bits = joins || (!leaves && number) ? *bits | bit : *bits & ~bit;
		say_hello(entry, joins);
		hello = entry->hello;
	}
	release_lock();
	if (entry && joins)
		wait_for_heed(fd, hello);
	return entry ? 0 : -1;
}

/* A limit of time, as setsockopt(2) of any socket takes it. */
static int set_limit(struct timeval *limit, const void *value, socklen_t length)
{
	struct timeval given;
	if (length < sizeof given) {
		errno = EINVAL;
		return -1;
	}
	memcpy(&given, value, sizeof given);
	if (given.tv_usec < 0 || given.tv_usec >= 1000000) {
		errno = EDOM;
		return -1;
	}
	*limit = given.tv_sec < 0 ? (struct timeval){ .tv_usec = 1 } : given;
	return 0;
}

/* The kernel counts its own overhead, too. */
static int set_buffer(int *size, const void *value, socklen_t length)
{
	int given;
	if (length < sizeof given) {
		errno = EINVAL;
		return -1;
	}
	memcpy(&given, value, sizeof given);
	*size = given < 1152 ? 2304 : given < INT32_MAX / 2 ? 2 * given : INT32_MAX;
	return 0;
}

/* An option of all sockets. The sizes of buffers are those of the connection: they are kept to be told. */
static int set_socket_option(int fd, int name, const void *value, socklen_t length)
{
	if (!value) {
		errno = EFAULT;
		return -1;
	}
	take_lock();
	struct entry *entry = known(fd);
	int result = entry ? 0 : -1;
	if (entry && (name == SO_RCVBUF || name == SO_RCVBUFFORCE))
		result = set_buffer(&entry->receive_buffer, value, length);
	else if (entry && (name == SO_SNDBUF || name == SO_SNDBUFFORCE))
		result = set_buffer(&entry->send_buffer, value, length);
	else if (entry && name == SO_RCVTIMEO)
		result = set_limit(&entry->receive_limit, value, length);
	else if (entry && name == SO_SNDTIMEO)
		result = set_limit(&entry->send_limit, value, length);
	release_lock();
	return result;
}

/* Whether an option is a policy for one socket. */
static bool is_policy(int level, int name)
{
	return (level == IPPROTO_IP && (name == IP_XFRM_POLICY || name == IP_IPSEC_POLICY)) ||
	       (level == IPPROTO_IPV6 && (name == IPV6_XFRM_POLICY || name == IPV6_IPSEC_POLICY));
}

EXPORT int setsockopt(int fd, int level, int name, const void *value, socklen_t length)
{
	if (is_ours(fd)) {
		if (level == SOL_NETLINK)
			return set_netlink_option(fd, name, value, length);
		if (level == SOL_SOCKET)
			return set_socket_option(fd, name, value, length);
		errno = ENOPROTOOPT;
		return -1;
	}
	if (is_policy(level, name))
		return spare(fd);
	if (level == IPPROTO_UDP && name == UDP_ENCAP)
		return set_encap(fd, value, length);
	return real.setsockopt(fd, level, name, value, length);
}

/* What getsockopt(2) says of an entry: how many bytes; 0 if it has no such option. */
static socklen_t option_of(const struct entry *entry, int level, int name, uint8_t *value)
{
	int number = 0;
	const struct timeval *limit = name == SO_RCVTIMEO ? &entry->receive_limit : &entry->send_limit;
	if (level == SOL_NETLINK) {
		/* Groups as bits, or an option that is on or off. */
		if (name == NETLINK_LIST_MEMBERSHIPS)
			number = (int)entry->groups;
		else if (name >= 0 && name <= 31)
			number = (entry->options >> name) & 1;
		else
			return 0;
	} else if (level != SOL_SOCKET) {
		return 0;
	} else {
		switch (name) {
		case SO_TYPE: number = entry->type; break;
		case SO_DOMAIN: number = AF_NETLINK; break;
		case SO_PROTOCOL: number = NETLINK_XFRM; break;
		case SO_RCVBUF: number = entry->receive_buffer; break;
		case SO_SNDBUF: number = entry->send_buffer; break;
		case SO_RCVTIMEO:
		case SO_SNDTIMEO:
			memcpy(value, limit, sizeof *limit);
			return sizeof *limit;
		default: break; /* SO_ERROR, and what is off */
		}
	}
	memcpy(value, &number, sizeof number);
	return sizeof number;
}

EXPORT int getsockopt(int fd, int level, int name, void *value, socklen_t *length)
{
	if (!is_ours(fd)) {
		if (level == IPPROTO_UDP && name == UDP_ENCAP)
			return get_encap(fd, value, length);
		return real.getsockopt(fd, level, name, value, length);
	}
	uint8_t bytes[sizeof(struct timeval)];
	if (!length || (!value && *length > 0)) {
		errno = EFAULT;
		return -1;
	}
	take_lock();
	struct entry *entry = known(fd);
	socklen_t has = entry ? option_of(entry, level, name, bytes) : 0;
	if (entry && has == 0)
		errno = ENOPROTOOPT;
	release_lock();
	if (has == 0)
		return -1;
	if (*length > has)
		*length = has;
	if (*length > 0)
		memcpy(value, bytes, *length);
	return 0;
}
