/* Mempools whose mbufs say where they are: free, or out. What a device gives back twice, or never had, is
 * refused here, and the gateway refuses it on receipt.
 *
 * Mbufs of one pool follow each other at one distance, a power of two, so that an address is checked by a
 * subtraction and a shift. */
#include "plugin.h"
#include <errno.h>
#include <rte_errno.h>
#include <rte_malloc.h>
#include <rte_mbuf.h>
#include <rte_mbuf_pool_ops.h>
#include <rte_mempool.h>
#include <rte_memzone.h>
#include <rte_spinlock.h>
#include <stdio.h>
#include <stdlib.h>

#define OPS "testudo"
#define PAGE 4096u
/* The least distance: the mempool's header, the mbuf, and room up to a power of two. */
#define SHORT_STRIDE 256u
#define HEADER_BYTES 64u
#define MAX_MBUFS (1u << 20)

/* Free mbufs, the last one first: it is in the cache. The thread that is in a call for the pool's device has
 * `free` for itself, without a lock: a locked instruction waits until the packets that were just written have
 * left the processor. What a driver's own threads give back is in `returned`, which has a lock; they find
 * nothing else there, and the device's thread takes all of it when it has no other. */
struct stack {
	uint32_t length;
	uint32_t size;
	uint32_t shift;
	uint32_t returned_length;
	uintptr_t first;
	uint64_t refused;
	uint8_t *states;
	const struct rte_memzone *zone;
	rte_spinlock_t lock;
	void **returned;
	void *free[];
};

/* The pools of devices, and the one of the device that the calling thread is in a call for. A device, and with
 * it its pool, belongs to one thread at a time. */
static struct stack *of_port[RTE_MAX_ETHPORTS];
static __thread struct stack *in_call __attribute__((tls_model("initial-exec")));

void pool_of_port(uint16_t port, void *pool)
{
	of_port[port] = pool != NULL ? ((struct rte_mempool *)pool)->pool_data : NULL;
}

void pool_enter(uint16_t port)
{
	in_call = of_port[port];
}

void pool_leave(void)
{
	in_call = NULL;
}

static int stack_alloc(struct rte_mempool *pool)
{
	struct stack *stack = pool->pool_config;
	pool->pool_data = stack;
	return stack != NULL ? 0 : -EINVAL;
}

static void stack_free(struct rte_mempool *pool)
{
	pool->pool_data = NULL;
}

/* The number of an mbuf of the pool; `size` if it is none. */
static inline uint32_t number_of(const struct stack *stack, const void *mbuf)
{
	uintptr_t offset = (uintptr_t)mbuf - stack->first;
	uintptr_t number = offset >> stack->shift;
	return number < stack->size && number << stack->shift == offset ? (uint32_t)number : stack->size;
}

/* Puts those into a list that are the pool's and not free; the list has room for all of the pool. */
static inline uint32_t put(struct stack *stack, void **list, uint32_t length, void *const *mbufs,
			   unsigned int count)
{
	for (unsigned int nth = 0; nth < count; nth++) {
		uint32_t number = number_of(stack, mbufs[nth]);
		if (number == stack->size || stack->states[number] == MBUF_FREE || length == stack->size) {
			stack->refused++;
			continue;
		}
		stack->states[number] = MBUF_FREE;
		list[length++] = mbufs[nth];
	}
	return length;
}

/* Takes as many from a list, if it has as many. One that was given back by two threads at once is there twice,
 * and is given out once. */
static inline int take(struct stack *stack, void **list, uint32_t *length, void **mbufs, unsigned int count)
{
	uint32_t left = *length;
	unsigned int got = 0;
	while (got < count && left > 0) {
		void *mbuf = list[--left];
		uint32_t number = number_of(stack, mbuf);
		if (stack->states[number] != MBUF_FREE) {
			stack->refused++;
			continue;
		}
		stack->states[number] = MBUF_OUT;
		mbufs[got++] = mbuf;
	}
	if (got == count) {
		*length = left;
		return 0;
	}
	*length = put(stack, list, left, mbufs, got);
	return -ENOBUFS;
}

/* Moves what other threads have given back to the free ones. */
static __attribute__((noinline)) void collect(struct stack *stack)
{
	rte_spinlock_lock(&stack->lock);
	while (stack->returned_length > 0 && stack->length < stack->size)
		stack->free[stack->length++] = stack->returned[--stack->returned_length];
	rte_spinlock_unlock(&stack->lock);
}

static int stack_enqueue(struct rte_mempool *pool, void *const *mbufs, unsigned int count)
{
	struct stack *stack = pool->pool_data;
	if (in_call == stack) {
		stack->length = put(stack, stack->free, stack->length, mbufs, count);
		return 0;
	}
	rte_spinlock_lock(&stack->lock);
	stack->returned_length = put(stack, stack->returned, stack->returned_length, mbufs, count);
	rte_spinlock_unlock(&stack->lock);
	return 0;
}

static int stack_dequeue(struct rte_mempool *pool, void **mbufs, unsigned int count)
{
	struct stack *stack = pool->pool_data;
	if (in_call == stack) {
		if (count > stack->length)
			collect(stack);
		return take(stack, stack->free, &stack->length, mbufs, count);
	}
	rte_spinlock_lock(&stack->lock);
	int outcome = take(stack, stack->returned, &stack->returned_length, mbufs, count);
	rte_spinlock_unlock(&stack->lock);
	return outcome;
}

static unsigned int stack_count(const struct rte_mempool *pool)
{
	const struct stack *stack = pool->pool_data;
	return stack->length + __atomic_load_n(&stack->returned_length, __ATOMIC_RELAXED);
}

static const struct rte_mempool_ops ops = {
	.name = OPS,
	.alloc = stack_alloc,
	.free = stack_free,
	.enqueue = stack_enqueue,
	.dequeue = stack_dequeue,
	.get_count = stack_count,
};
RTE_MEMPOOL_REGISTER_OPS(ops);

static void stack_end(struct stack *stack)
{
	if (stack->zone != NULL)
		rte_memzone_free(stack->zone);
	free(stack->states);
	free(stack->returned);
	free(stack);
}

static struct stack *stack_new(const char *name, uint32_t count, uint32_t stride)
{
	struct stack *stack = calloc(1, sizeof *stack + count * sizeof stack->free[0]);
	char zone[RTE_MEMZONE_NAMESIZE];
	if (stack == NULL)
		return NULL;
	snprintf(zone, sizeof zone, "%s-m", name);
	stack->states = malloc(count);
	stack->returned = malloc(count * sizeof stack->returned[0]);
	/* A page more: a mempool may begin at a later page than its memory. */
	stack->zone = rte_memzone_reserve_aligned(zone, (size_t)count * stride + PAGE, SOCKET_ID_ANY, 0, PAGE);
	if (stack->states == NULL || stack->returned == NULL || stack->zone == NULL) {
		stack_end(stack);
		return NULL;
	}
	memset(stack->states, MBUF_OUT, count); /* until the mempool puts them in */
	stack->size = count;
	stack->shift = (uint32_t)__builtin_ctz(stride);
	stack->first = (uintptr_t)stack->zone->addr + HEADER_BYTES;
	rte_spinlock_init(&stack->lock);
	return stack;
}

/* Makes mbufs of the pool's objects, and those without a room of their own point nowhere. */
static void prepare(struct rte_mempool *pool, void *inside, void *object, unsigned int number)
{
	struct rte_mbuf *mbuf = object;
	rte_pktmbuf_init(pool, NULL, object, number);
	if (*(const uint32_t *)inside == 0) {
		mbuf->buf_addr = NULL;
		mbuf->buf_iova = 0;
	}
}

static int32_t fill(struct rte_mempool *pool, struct stack *stack, uint32_t count, uint32_t stride,
		    uint32_t room, uint32_t room_inside)
{
	struct rte_pktmbuf_pool_private private = { 0 };
	if (pool->header_size != HEADER_BYTES ||
	    pool->header_size + pool->elt_size + pool->trailer_size != stride)
		return -EXDEV;
	int outcome = rte_mempool_set_ops_byname(pool, OPS, stack);
	if (outcome < 0)
		return outcome;
	private.mbuf_data_room_size = (uint16_t)room;
	private.mbuf_priv_size = (uint16_t)(pool->elt_size - sizeof(struct rte_mbuf) - room_inside);
	/* Says that the bytes of packets are elsewhere. The mbufs have no flag of external buffers: the
	 * gateway takes care that none is freed while it is used, and no driver has to ask. */
	private.flags = room_inside == 0 ? RTE_PKTMBUF_POOL_F_PINNED_EXT_BUF : 0;
	rte_pktmbuf_pool_init(pool, &private);
	outcome = rte_mempool_populate_virt(pool, stack->zone->addr, (size_t)count * stride,
					    stack->zone->hugepage_sz, NULL, NULL);
	if (outcome < 0)
		return outcome;
	if ((uint32_t)outcome != count || stack_count(pool) != count)
		return -EXDEV;
	rte_mempool_obj_iter(pool, prepare, &room_inside);
	return 0;
}

int32_t pool_make(const char *name, uint32_t count, uint32_t room, uint32_t room_inside,
		  struct dpdk_pool *made)
{
	uint32_t stride = SHORT_STRIDE;
	if (count == 0 || count > MAX_MBUFS || room > UINT16_MAX || room_inside > room)
		return -EINVAL;
	while (stride < HEADER_BYTES + sizeof(struct rte_mbuf) + room_inside)
		stride *= 2;
	struct stack *stack = stack_new(name, count, stride);
	if (stack == NULL)
		return -ENOMEM;
	struct rte_mempool *pool =
		rte_mempool_create_empty(name, count, stride - HEADER_BYTES, 0,
					 sizeof(struct rte_pktmbuf_pool_private), SOCKET_ID_ANY,
					 RTE_MEMPOOL_F_NO_SPREAD);
	int32_t outcome = pool == NULL ? -rte_errno : fill(pool, stack, count, stride, room, room_inside);
	if (outcome < 0) {
		rte_mempool_free(pool);
		stack_end(stack);
		return outcome;
	}
	*made = (struct dpdk_pool){ .handle = pool, .states = stack->states, .first = stack->first,
				    .stride = stride, .count = count,
				    .refused = (uint64_t)(uintptr_t)&stack->refused };
	return 0;
}

void pool_end(void *pool)
{
	struct stack *stack = ((struct rte_mempool *)pool)->pool_data;
	rte_mempool_free(pool);
	stack_end(stack);
}

int32_t pool_get(void *pool, void **mbufs, uint32_t count)
{
	struct stack *stack = ((struct rte_mempool *)pool)->pool_data;
	if (count > stack->length)
		collect(stack);
	count = count < stack->length ? count : stack->length;
	return take(stack, stack->free, &stack->length, mbufs, count) == 0 ? (int32_t)count : 0;
}

void pool_put(void *pool, void *const *mbufs, uint32_t count)
{
	struct stack *stack = ((struct rte_mempool *)pool)->pool_data;
	stack->length = put(stack, stack->free, stack->length, mbufs, count);
}
