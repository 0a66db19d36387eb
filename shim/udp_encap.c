/* ESP in UDP beside the program (RFC 3948).
 *
 * A key exchange daemon asks the kernel to take the ESP that comes to its UDP socket (UDP_ENCAP). The gateway
 * receives that ESP itself, from a raw socket: the kernel gives each its own copy of a datagram. So the
 * program's socket gets a filter that passes what the kernel would have left: messages of IKE, which begin
 * with the marker of four zero bytes (2.2). ESP, whose SPI is never 0, and keepalives of one byte (2.3) are
 * dropped. The program reads the marker with the message, as it does with UDP_ENCAP.
 *
 * Whose filter a socket has is asked of the kernel: sockets are copied, inherited and closed by many ways.
 * One of the program's own stays.
 */
#define _GNU_SOURCE
#include "shim.h"
#include <errno.h>
#include <linux/filter.h>
#include <linux/udp.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#define UDP_HEADER 8

/* A load behind the end of the datagram ends it, and drops the datagram. */
static struct sock_filter instructions[] = {
	BPF_STMT(BPF_LD | BPF_W | BPF_ABS, UDP_HEADER),
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1),
	BPF_STMT(BPF_RET | BPF_K, UINT32_MAX),
	BPF_STMT(BPF_RET | BPF_K, 0),
};
#define COUNT (sizeof instructions / sizeof *instructions)

static bool is_kernels;

void prepare_encap(void)
{
	const char *encap = secure_getenv("TESTUDO_UDP_ENCAP");
	is_kernels = encap && strcmp(encap, "kernel") == 0;
}

enum filter { NO_FILTER, OUR_FILTER, OTHER_FILTER };

static enum filter filter_of(int fd)
{
	struct sock_filter found[COUNT];
	socklen_t count = 0;
	/* Without room, it says how many instructions there are. */
	if (real.getsockopt(fd, SOL_SOCKET, SO_GET_FILTER, NULL, &count) < 0)
		return OTHER_FILTER;
	if (count != COUNT)
		return count == 0 ? NO_FILTER : OTHER_FILTER;
	if (real.getsockopt(fd, SOL_SOCKET, SO_GET_FILTER, found, &count) < 0 || count != COUNT)
		return OTHER_FILTER;
	return memcmp(found, instructions, sizeof found) == 0 ? OUR_FILTER : OTHER_FILTER;
}

static bool is_udp(int fd)
{
	int protocol = 0;
	socklen_t length = sizeof protocol;
	return real.getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &length) == 0 && protocol == IPPROTO_UDP;
}

int set_encap(int fd, const void *value, socklen_t length)
{
	int kind = 0, before = errno;
	if (is_kernels || !value || length < sizeof kind || !is_udp(fd))
		return real.setsockopt(fd, IPPROTO_UDP, UDP_ENCAP, value, length);
	memcpy(&kind, value, sizeof kind);
	/* Of a draft, with a marker of eight bytes: newer kernels have it no more. */
	if (kind == UDP_ENCAP_ESPINUDP_NON_IKE) {
		errno = ENOPROTOOPT;
		return -1;
	}
	/* Other protocols than ESP are the kernel's. */
	if (kind != 0 && kind != UDP_ENCAP_ESPINUDP)
		return real.setsockopt(fd, IPPROTO_UDP, UDP_ENCAP, value, length);
	enum filter filter = filter_of(fd);
	struct sock_fprog program = { .len = COUNT, .filter = instructions };
	int result = 0;
	if (kind == UDP_ENCAP_ESPINUDP && filter == NO_FILTER)
		result = real.setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
	else if (kind == 0 && filter == OUR_FILTER)
		result = real.setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &kind, sizeof kind);
	else if (kind == 0)
		return real.setsockopt(fd, IPPROTO_UDP, UDP_ENCAP, value, length);
	if (result == 0)
		errno = before;
	return result;
}

int get_encap(int fd, void *value, socklen_t *length)
{
	int kind = UDP_ENCAP_ESPINUDP;
	if (is_kernels || !value || !length || *length < sizeof kind || !is_udp(fd) || filter_of(fd) != OUR_FILTER)
		return real.getsockopt(fd, IPPROTO_UDP, UDP_ENCAP, value, length);
	memcpy(value, &kind, sizeof kind);
	*length = sizeof kind;
	return 0;
}
