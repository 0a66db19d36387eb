/* Marks on sockets that pass all policies.
 *
 * A key exchange daemon sets a policy of its own on each socket that it sends to peers with (IP_XFRM_POLICY):
 * what leaves there meets no other. The gateway has no policies for single sockets, but routes into its
 * interface, and packets with its mark (SO_MARK) pass by them. Which mark that is, it says in its answer to a
 * hello; sockets that are older than that get it then.
 */
#define _GNU_SOURCE
#include "shim.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* A socket that passes all policies. File descriptors are given anew: the inode says whether it is the same. */
static struct spared {
	int fd;
	ino_t inode;
	bool is_there;
} spared[MAX_SPARED];
/* 0 as long as none is known. */
static uint32_t gateway_mark;

static bool inode_of(int fd, ino_t *inode)
{
	struct stat status;
	int before = errno;
	bool is_socket = fstat(fd, &status) == 0 && S_ISSOCK(status.st_mode);
	errno = before;
	*inode = is_socket ? status.st_ino : 0;
	return is_socket;
}

/* A mark of the program's own stays: it knows what it is for. */
static int set_mark(int fd)
{
	uint32_t found = 0;
	socklen_t length = sizeof found;
	if (gateway_mark == 0 || (real.getsockopt(fd, SOL_SOCKET, SO_MARK, &found, &length) == 0 && found != 0))
		return 0;
	return real.setsockopt(fd, SOL_SOCKET, SO_MARK, &gateway_mark, sizeof gateway_mark);
}

static void tell(int error)
{
	fprintf(stderr, "libtestudo-xfrm: packets of IKE have no mark, and may be led into tunnels: %s\n", strerror(error));
}

void heed_mark(uint32_t mark)
{
	if (mark == gateway_mark)
		return;
	gateway_mark = mark;
	for (size_t i = 0; i < MAX_SPARED; i++) {
		ino_t inode;
		int before = errno;
		if (spared[i].is_there && inode_of(spared[i].fd, &inode) && inode == spared[i].inode &&
		    set_mark(spared[i].fd) < 0)
			tell(errno);
		errno = before;
	}
}

int spare(int fd)
{
	ino_t inode, other;
	struct spared *free = NULL;
	if (!inode_of(fd, &inode)) {
		errno = ENOTSOCK;
		return -1;
	}
	take_lock();
	for (size_t i = 0; i < MAX_SPARED; i++) {
		struct spared *at = &spared[i];
		if (at->is_there && (!inode_of(at->fd, &other) || other != at->inode))
			at->is_there = false;
		/* Once for each direction, and for each name: one is enough. */
		if (!at->is_there || at->inode == inode)
			free = at;
		if (at->is_there && at->inode == inode)
			break;
	}
	if (free)
		*free = (struct spared){ .fd = fd, .inode = inode, .is_there = true };
	int result = set_mark(fd), error = errno;
	if (result < 0)
		tell(error);
	release_lock();
	errno = error;
	return result;
}
