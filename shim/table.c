/* The program's sockets: which file descriptors are ours, and the lock over all that is known of them. */
#define _GNU_SOURCE
#include "shim.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

struct real real;

struct name {
	int fd; /* -1 for one that is free */
	struct entry *entry;
};

static struct entry entries[MAX_SOCKETS];
static struct name names[MAX_NAMES];
/* How many of our file descriptors have this number, to be looked at without the lock: most calls are for
 * other files. */
#define MARKS 4096
static atomic_ushort marks[MARKS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
/* The process that all this is about. */
static pid_t owner;

/* What the thread that has the lock restores when it gives it back. */
static _Thread_local sigset_t signals_before;
static _Thread_local int cancelling_before;

static bool find_any(void *function, const char *name)
{
	void *found = dlsym(RTLD_NEXT, name);
	memcpy(function, &found, sizeof found);
	return found != NULL;
}

static void find(void *function, const char *name)
{
	if (!find_any(function, name)) {
		fprintf(stderr, "libtestudo-xfrm: the C library has no %s\n", name);
		abort();
	}
}

static void find_all(void)
{
	for (size_t i = 0; i < MAX_NAMES; i++)
		names[i].fd = -1;
	owner = getpid();
	find(&real.socket, "socket");
	find(&real.close, "close");
	find_any(&real.close_range, "close_range");
	find(&real.dup, "dup");
	find(&real.dup2, "dup2");
	find(&real.dup3, "dup3");
	/* The larger of the two where there are two: they differ in nothing for sockets. */
	if (!find_any(&real.fcntl, "fcntl64"))
		find(&real.fcntl, "fcntl");
	find(&real.bind, "bind");
	find(&real.connect, "connect");
	find(&real.getsockname, "getsockname");
	find(&real.setsockopt, "setsockopt");
	find(&real.getsockopt, "getsockopt");
	find(&real.send, "send");
	find(&real.sendto, "sendto");
	find(&real.sendmsg, "sendmsg");
	find(&real.sendmmsg, "sendmmsg");
	find(&real.write, "write");
	find(&real.writev, "writev");
	find(&real.recv, "recv");
	find(&real.recvfrom, "recvfrom");
	find(&real.recvmsg, "recvmsg");
	find(&real.recvmmsg, "recvmmsg");
	find(&real.read, "read");
	find(&real.readv, "readv");
	const char *path = secure_getenv("TESTUDO_XFRM");
	if (!path || !*path)
		path = "/run/testudo/xfrm.sock";
	/* One that is too long stays empty: no gateway is reached. */
	if (strlen(path) < sizeof gateway_path)
		strcpy(gateway_path, path);
	prepare_encap();
}

void prepare(void)
{
	pthread_once(&once, find_all);
}

/* Signals wait while a thread has the lock, since their handlers may write(2) and close(2), and so does the
 * thread's end by cancellation. Nothing that is done with the lock waits. */
void take_lock(void)
{
	sigset_t all, before;
	int cancelling;
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancelling);
	pthread_mutex_lock(&lock);
	signals_before = before;
	cancelling_before = cancelling;
}

void release_lock(void)
{
	sigset_t before = signals_before;
	int error = errno, cancelling = cancelling_before;
	pthread_mutex_unlock(&lock);
	pthread_setcancelstate(cancelling, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	errno = error;
}

/* A child of fork(2) has the memory for itself, and shares the files: an epoll instance that both change
 * would be readable for both by what only one of them has. */
static void after_fork(void)
{
	int error = errno;
	owner = getpid();
	for (size_t i = 0; i < MAX_SOCKETS; i++) {
		int fds[MAX_NAMES], count = 0;
		for (size_t at = 0; at < MAX_NAMES; at++)
			if (names[at].fd >= 0 && names[at].entry == &entries[i])
				fds[count++] = names[at].fd;
		if (count > 0)
			split_from_parent(&entries[i], fds, count);
	}
	errno = error;
	release_lock();
}

__attribute__((constructor)) static void load(void)
{
	prepare();
	/* A child must not inherit a lock that another thread of its parent held. */
	pthread_atfork(take_lock, release_lock, after_fork);
}

void mark(int fd)
{
	if (fd >= 0)
		atomic_fetch_add(&marks[fd % MARKS], 1);
}

void unmark(int fd)
{
	if (fd >= 0)
		atomic_fetch_sub(&marks[fd % MARKS], 1);
}

static bool is_marked(int fd)
{
	prepare();
	return fd >= 0 && atomic_load_explicit(&marks[fd % MARKS], memory_order_relaxed) > 0;
}

int lifted(int fd)
{
	if (fd < 0 || fd > STDERR_FILENO)
		return fd;
	int above = real.fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), error = errno;
	real.close(fd);
	errno = error;
	return above;
}

/* Whether an epoll instance has a file under a number: a program may close files by other means than are
 * known here, and the numbers be other files' by now. */
static bool watches(int fd, int number)
{
	struct epoll_event event = { .events = EPOLLIN };
	return number >= 0 && epoll_ctl(fd, EPOLL_CTL_MOD, number, &event) == 0;
}

static void forget_name(struct name *name)
{
	struct entry *entry = name->entry;
	unmark(name->fd);
	name->fd = -1;
	entry->names--;
	for (size_t i = 0; i < MAX_NAMES; i++)
		if (names[i].fd >= 0 && names[i].entry == entry)
			entry->fd = names[i].fd;
}

struct entry *entry_of(int fd)
{
	for (size_t i = 0; i < MAX_NAMES && fd >= 0; i++) {
		if (names[i].fd != fd)
			continue;
		struct entry *entry = names[i].entry;
		if (watches(fd, entry->timer)) {
			entry->fd = fd;
			return entry;
		}
		forget_name(&names[i]);
		/* Of its other files nobody knows whose they are by now: they stay open. */
		if (entry->names == 0)
			drop_entry(entry);
	}
	return NULL;
}

bool is_ours(int fd)
{
	if (!is_marked(fd))
		return false;
	int before = errno;
	take_lock();
	bool is = entry_of(fd) != NULL;
	release_lock();
	errno = before;
	return is;
}

static bool add_name(int fd, struct entry *entry)
{
	for (size_t i = 0; i < MAX_NAMES; i++)
		if (names[i].fd < 0) {
			names[i] = (struct name){ .fd = fd, .entry = entry };
			entry->names++;
			entry->fd = fd;
			mark(fd);
			return true;
		}
	errno = EMFILE;
	return false;
}

struct entry *add_entry(int fd)
{
	/* What had the number before was closed by other means. */
	entry_of(fd);
	for (size_t i = 0; i < MAX_SOCKETS; i++)
		if (entries[i].names == 0) {
			entries[i] = (struct entry){ .connection = -1, .timer = -1, .bell = -1 };
			entries[i].end = &entries[i].first;
			return add_name(fd, &entries[i]) ? &entries[i] : NULL;
		}
	errno = EMFILE;
	return NULL;
}

void drop_entry(struct entry *entry)
{
	for (size_t i = 0; i < MAX_NAMES; i++)
		if (names[i].fd >= 0 && names[i].entry == entry) {
			unmark(names[i].fd);
			names[i].fd = -1;
		}
	int files[] = { entry->connection, entry->timer, entry->bell };
	for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
		unmark(files[i]);
		if (watches(entry->fd, files[i]))
			real.close(files[i]);
	}
	empty_queue(entry);
	unask(entry, 0);
	*entry = (struct entry){ .connection = -1, .timer = -1, .bell = -1 };
}

/* Whether a number is that of a file which this library has open for itself. */
static bool is_inside(int fd)
{
	for (size_t i = 0; i < MAX_SOCKETS; i++) {
		struct entry *entry = &entries[i];
		bool is_one = fd == entry->connection || fd == entry->timer || fd == entry->bell;
		if (entry->names > 0 && is_one && watches(entry->fd, fd))
			return true;
	}
	return false;
}

/* A name is closed: so is the entry, if it was the last. */
static void leave(int fd)
{
	struct entry *entry = entry_of(fd);
	for (size_t i = 0; entry && i < MAX_NAMES; i++)
		if (names[i].fd == fd)
			forget_name(&names[i]);
	if (entry && entry->names == 0)
		drop_entry(entry);
}

/* Whether a call changes what is known here. A child of vfork(2) has its parent's memory, and files of its
 * own. */
static bool is_for_us(int fd)
{
	return is_marked(fd) && getpid() == owner;
}

EXPORT int close(int fd)
{
	if (!is_for_us(fd))
		return real.close(fd);
	take_lock();
	int result = -1;
	if (is_inside(fd)) {
		/* For the program, the number is not open: some close all that there may be. */
		errno = EBADF;
	} else {
		leave(fd);
		/* With the lock: the number may be another socket's the moment it is closed. */
		result = real.close(fd);
	}
	release_lock();
	return result;
}

/* The lowest number from `first` on of a file that this library has open for itself; -1 if there is none. */
static int next_inside(unsigned first, unsigned last)
{
	int next = -1;
	for (size_t i = 0; i < MAX_SOCKETS; i++) {
		int files[] = { entries[i].connection, entries[i].timer, entries[i].bell };
		for (size_t at = 0; entries[i].names > 0 && at < sizeof files / sizeof *files; at++)
			if (files[at] >= 0 && (unsigned)files[at] >= first && (unsigned)files[at] <= last &&
			    (next < 0 || files[at] < next))
				next = files[at];
	}
	return next;
}

EXPORT int close_range(unsigned first, unsigned last, int flags)
{
	prepare();
	if (!real.close_range) {
		errno = ENOSYS;
		return -1;
	}
	if (flags || first > last || getpid() != owner)
		return real.close_range(first, last, flags);
	take_lock();
	for (size_t i = 0; i < MAX_NAMES; i++)
		if (names[i].fd >= 0 && (unsigned)names[i].fd >= first && (unsigned)names[i].fd <= last)
			leave(names[i].fd);
	/* Of sockets that stay open, the files stay as well. */
	int result = 0, inside;
	while (result == 0 && first <= last && (inside = next_inside(first, last)) >= 0) {
		if ((unsigned)inside > first)
			result = real.close_range(first, (unsigned)inside - 1, 0);
		first = (unsigned)inside + 1;
	}
	if (result == 0 && first <= last)
		result = real.close_range(first, last, 0);
	release_lock();
	return result;
}

EXPORT void closefrom(int first)
{
	close_range(first < 0 ? 0 : (unsigned)first, ~0u, 0);
}

/* ---- dup(2) -------------------------------------------------------------------------------------------- */

/* A file descriptor that is a copy of one of ours is a name of the same entry. */
static int copied(int copy, int fd)
{
	struct entry *entry = copy < 0 ? NULL : entry_of(fd);
	/* What had the number before may have been closed by other means: that is found out first. */
	if (!entry || entry_of(copy) == entry || add_name(copy, entry))
		return copy;
	real.close(copy);
	errno = EMFILE;
	return -1;
}

EXPORT int dup(int fd)
{
	if (!is_for_us(fd))
		return real.dup(fd);
	take_lock();
	int copy = copied(real.dup(fd), fd);
	release_lock();
	return copy;
}

static int dup_to(int fd, int to, int flags, bool has_flags)
{
	if (!is_for_us(fd) && !is_for_us(to))
		return has_flags ? real.dup3(fd, to, flags) : real.dup2(fd, to);
	take_lock();
	int copy = -1;
	if (fd != to && is_inside(to)) {
		/* The program has not opened it: somebody was faster. */
		errno = EBUSY;
	} else {
		/* Before the number is another file's: it is looked at by what it means. */
		bool is_valid = real.fcntl(fd, F_GETFD) >= 0 && fd != to;
		if (is_valid && !(flags & ~O_CLOEXEC))
			leave(to);
		copy = has_flags ? real.dup3(fd, to, flags) : real.dup2(fd, to);
		if (fd != to)
			copy = copied(copy, fd);
	}
	release_lock();
	return copy;
}

EXPORT int dup2(int fd, int to)
{
	return dup_to(fd, to, 0, false);
}

EXPORT int dup3(int fd, int to, int flags)
{
	return dup_to(fd, to, flags, true);
}

static int do_fcntl(int fd, int command, void *argument)
{
	bool is_dup = command == F_DUPFD || command == F_DUPFD_CLOEXEC;
	if (!is_for_us(fd) || !is_dup)
		return real.fcntl(fd, command, argument);
	take_lock();
	int copy = copied(real.fcntl(fd, command, argument), fd);
	release_lock();
	return copy;
}

EXPORT int fcntl(int fd, int command, ...)
{
	va_list arguments;
	va_start(arguments, command);
	void *argument = va_arg(arguments, void *);
	va_end(arguments);
	return do_fcntl(fd, command, argument);
}

EXPORT int fcntl64(int fd, int command, ...)
{
	va_list arguments;
	va_start(arguments, command);
	void *argument = va_arg(arguments, void *);
	va_end(arguments);
	return do_fcntl(fd, command, argument);
}
