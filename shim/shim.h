/* What the parts of libtestudo-xfrm.so share: see testudo-xfrm.c. */
#ifndef TESTUDO_SHIM_H
#define TESTUDO_SHIM_H

#include <linux/netlink.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

/* Sockets of this kind in one process. charon has two, pluto three. */
#define MAX_SOCKETS 64
/* Their file descriptors, with what dup(2) adds. */
#define MAX_NAMES 256
/* Requests of one socket that may wait for their answers. charon and pluto have one at a time. */
#define MAX_ASKED 64
/* Sockets that pass all policies: charon has four, pluto two for each address of the host. */
#define MAX_SPARED 1024
/* "TXFR": how what this library and the gateway say to each other begins. */
#define HELLO_MAGIC 0x52465854u
/* How often a gateway that is away is looked for, and how long a call waits for one that is slow to
 * answer. */
#define RETRY_MS 250
#define PATIENCE_MS 1000

/* What tells an SA or a policy from others. All bytes count: it is made by memset(3). */
struct kept_key {
	uint8_t selector[56]; /* of a policy; of an SA its destination */
	uint32_t mark[2];
	uint32_t interface;
	uint32_t spi;
	uint16_t family;
	uint8_t kind; /* a policy's direction, an SA's protocol */
	bool is_sa;
};

/* An SA or a policy that the program has installed. */
struct kept {
	struct kept *next;           /* in its bucket */
	struct kept *before, *after; /* in the order in which they came */
	struct kept_key key;
	uint32_t generation; /* the gateway that has it */
	uint32_t told;       /* the last gateway because of which its end was told */
	uint32_t serial;
	bool is_inbound;
	bool is_move; /* none to keep, but a message that moves others to new addresses */
	size_t length;
	uint8_t bytes[]; /* the message of a policy, the xfrm_usersa_info of an SA */
};

/* A request without an answer so far. */
struct asked {
	uint32_t sequence;
	uint16_t type;
	bool has_ack; /* an acknowledgement is to come, whichever messages come before */
	struct kept *adds; /* what it installs if the answer is good; NULL for nothing */
};

/* A datagram that the program has not read. */
struct record {
	struct record *next;
	size_t length;
	uint8_t bytes[];
};

/* A socket of the program. Its file descriptors are the names of an epoll instance. */
struct entry {
	int names; /* 0 for an entry that is free */
	int fd;    /* one of them */
	int type;  /* SOCK_RAW or SOCK_DGRAM */
	int connection; /* -1 while the gateway is away */
	int timer; /* ticks while the gateway is away */
	int bell;  /* readable while there is something to say here */
	bool is_rung;
	bool is_bound;
	bool is_lost;  /* the connection, which was there */
	bool may_have_lost; /* events, while the gateway was away: said after what its welcome brings */
	bool has_lost; /* events, which the next recv(2) says */
	uint32_t port_id;
	uint32_t groups;
	uint32_t options;
	uint32_t hello;  /* sequence number of the last hello that asks for an acknowledgement */
	uint32_t heeded; /* of the last one that has it, or needs none any more */
	int64_t reached_ms;   /* when the connection was made */
	int64_t lost_ms;      /* when the one before was lost, until that is told; 0 if none was */
	int64_t answer_by_ms; /* how long a recv(2) that may not wait waits for an answer */
	int receive_buffer, send_buffer;
	struct timeval receive_limit, send_limit;
	size_t asked_count;
	struct asked asked[MAX_ASKED];
	struct record *first, **end; /* datagrams in order */
	size_t record_count, record_bytes;
};

/* The C library's own. */
struct real {
	int (*socket)(int, int, int);
	int (*close)(int);
	int (*close_range)(unsigned, unsigned, int); /* NULL where it has none */
	int (*dup)(int);
	int (*dup2)(int, int);
	int (*dup3)(int, int, int);
	int (*fcntl)(int, int, ...);
	int (*bind)(int, const struct sockaddr *, socklen_t);
	int (*connect)(int, const struct sockaddr *, socklen_t);
	int (*getsockname)(int, struct sockaddr *, socklen_t *);
	int (*setsockopt)(int, int, int, const void *, socklen_t);
	int (*getsockopt)(int, int, int, void *, socklen_t *);
	ssize_t (*send)(int, const void *, size_t, int);
	ssize_t (*sendto)(int, const void *, size_t, int, const struct sockaddr *, socklen_t);
	ssize_t (*sendmsg)(int, const struct msghdr *, int);
	int (*sendmmsg)(int, struct mmsghdr *, unsigned, int);
	ssize_t (*write)(int, const void *, size_t);
	ssize_t (*writev)(int, const struct iovec *, int);
	ssize_t (*recv)(int, void *, size_t, int);
	ssize_t (*recvfrom)(int, void *, size_t, int, struct sockaddr *, socklen_t *);
	ssize_t (*recvmsg)(int, struct msghdr *, int);
	int (*recvmmsg)(int, struct mmsghdr *, unsigned, int, struct timespec *);
	ssize_t (*read)(int, void *, size_t);
	ssize_t (*readv)(int, const struct iovec *, int);
};
extern struct real real;

/* ---- table.c: the program's sockets -------------------------------------------------------------------- */

/* Finds the C library's functions, once. */
void prepare(void);
void take_lock(void);
void release_lock(void);
/* Whether a file descriptor is one of ours. Without the lock. */
bool is_ours(int fd);
/* Its entry; NULL if it is none of ours. All below is called with the lock. */
struct entry *entry_of(int fd);
/* An entry that `fd` is the name of; NULL with errno if there is no room. */
struct entry *add_entry(int fd);
/* Closes what an entry has open, and forgets it. */
void drop_entry(struct entry *entry);
/* Marks a file descriptor as one that this library has open for itself, or no more. */
void mark(int fd);
void unmark(int fd);
/* A file descriptor that is none of the standard three, for which a program may close and open others. */
int lifted(int fd);

/* ---- link.c: the connection to the gateway ------------------------------------------------------------- */

/* The gateway's answer to a hello. All in host byte order. */
struct welcome {
	struct nlmsghdr header; /* NLMSG_NOOP */
	uint32_t magic;
	uint32_t version;    /* 1 */
	uint32_t mark;       /* of what passes all policies; 0 for none */
	uint8_t gateway[16]; /* by chance: which process it is */
};

extern char gateway_path[108];
int64_t now_ms(void);
/* Lets a timer tick every so many milliseconds; 0 is never. */
void set_timer(int timer, int every_ms);
/* The timer and the bell of a new entry. */
int equip(struct entry *entry);
/* Connects to the gateway. */
int reach(struct entry *entry);
/* The gateway is away: a timer says when to try again. */
void wait_for_gateway(struct entry *entry);
/* The connection is gone: requests without an answer get one here, and a new connection is made, now or when
 * the timer says so. */
void lose(struct entry *entry);
/* Whether an error of a call means that the connection is gone. */
bool is_gone(int error);
/* Tells the gateway what it has to know of the socket, and asks for an acknowledgement if one is wanted. */
void say_hello(struct entry *entry, bool is_acked);
/* Whether a datagram is the gateway's answer to a hello, which is heeded. */
bool is_welcome(struct entry *entry, const uint8_t *bytes, size_t length);
/* Waits until a hello is acknowledged. Without the lock. */
void wait_for_heed(int fd, uint32_t hello);
/* Gives a child of fork(2) epoll instances, timers and bells of its own. */
void split_from_parent(struct entry *entry, const int *names, int count);

/* ---- queue.c: datagrams and requests ------------------------------------------------------------------- */

/* Takes a datagram from the connection into the queue: 1 if there was one, 0 if none, -1 if the connection is
 * gone. */
int pull(struct entry *entry);
/* Whether the queue has room for another datagram that is not asked for yet. */
bool has_room(const struct entry *entry);
/* Copies the first datagram, and forgets it unless it is peeked at. */
ssize_t give_first(struct entry *entry, struct msghdr *message, int flags);
void empty_queue(struct entry *entry);
/* Lets the bell be rung if there is something to say. */
void ring(struct entry *entry);
/* A copy of a datagram as the last one of the queue; false without memory, which counts as a loss. */
bool add_record(struct entry *entry, const uint8_t *bytes, size_t length);
/* Notes the requests of a message that have answers. */
void note_asked(struct entry *entry, const struct msghdr *message);
/* Forgets requests that were not sent after all: all but the first `count`. */
void note_deleted(const struct msghdr *message);
void unask(struct entry *entry, size_t count);
/* Answers all requests with an error. */
void answer_asked(struct entry *entry, int error);
/* Whether a message only asks whether SAs can be moved. */
bool is_probe(const struct msghdr *message);

/* ---- kept.c: what the program has installed ------------------------------------------------------------ */

/* Counts the gateways that there were. */
extern uint32_t generation;
/* The first of what is kept. */
struct kept *first_kept(void);
/* What a whole message of the program installs, to be kept once the gateway agrees; NULL for nothing. What it
 * deletes is forgotten at once. */
struct kept *requested(const uint8_t *message, size_t length);
/* Keeps what the gateway has agreed to, in the place of what was there. */
void keep(struct kept *kept);
/* Forgets an SA of which the gateway says that it has ended. */
void note_expired(const uint8_t *message, size_t length);
/* The reqid of a message's first template; 0 without one. */
uint32_t template_reqid(const uint8_t *message, size_t length, size_t attributes);

/* ---- renewal.c: after a restart of the gateway --------------------------------------------------------- */

/* The gateway says which process it is. */
void heed_gateway(struct entry *entry, const struct welcome *said);
/* Whether a datagram refuses a request that the program has not made. */
bool is_own_refusal(struct entry *entry, const uint8_t *message, size_t length);
/* Whether a datagram asks for an SA that is being renewed. */
bool is_early_acquire(const uint8_t *message, size_t length);
/* Goes on with a renewal, if there is one and the entry listens to expiries. */
void renew(struct entry *entry);
/* How many tunnels another gateway would not have. */
uint32_t tunnels_to_renew(void);

/* ---- transfer.c: sending and receiving ----------------------------------------------------------------- */

/* Writes an address of netlink where a caller wants one, cut to its room as the kernel does. */
void give_address(struct sockaddr *address, socklen_t *length, uint32_t port_id, uint32_t groups);

/* ---- mark.c: sockets that pass all policies ------------------------------------------------------------ */

/* The gateway's mark is on all such sockets from now on. With the lock. */
void heed_mark(uint32_t mark);
/* Lets a socket pass all policies. Without the lock. */
int spare(int fd);

/* ---- udp_encap.c: ESP in UDP beside the program -------------------------------------------------------- */

void prepare_encap(void);
/* setsockopt(2) and getsockopt(2) of UDP_ENCAP. */
int set_encap(int fd, const void *value, socklen_t length);
int get_encap(int fd, void *value, socklen_t *length);

#endif
