/* A cable to an interface of the kernel's, for tests of whole programs: their peers are then other programs. */
#include "twin.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

int tap_open(struct twin *twin)
{
	struct ifreq request = { .ifr_flags = IFF_TAP | IFF_NO_PI };
	if (!*twin->tap)
		return 0;
	twin->tap_fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (twin->tap_fd < 0)
		return -errno;
	memcpy(request.ifr_name, twin->tap, sizeof twin->tap);
	return ioctl(twin->tap_fd, TUNSETIFF, &request) < 0 ? -errno : 0;
}

bool tap_send(const struct twin *twin, const struct rte_mbuf *frame)
{
	ssize_t sent = write(twin->tap_fd, rte_pktmbuf_mtod(frame, void *), frame->pkt_len);
	/* One that is down takes no frames, as a cable without a far end. */
	return sent >= 0 || (errno != EAGAIN && errno != ENOBUFS);
}

uint32_t tap_receive(const struct twin *twin, uint8_t *to, uint32_t room)
{
	ssize_t received = read(twin->tap_fd, to, room);
	return received > 0 ? (uint32_t)received : 0;
}
