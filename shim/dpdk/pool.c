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

/* Free mbufs, the last one first: it is in the cache. A driver may give mbufs back on a thread of its own. */
struct stack {
	rte_spinlock_t lock;
	uint32_t length;
	uint32_t size;
	uint32_t shift;
	uintptr_t first;
	uint64_t refused;
	const struct rte_memzone *zone;
	uint8_t *states;
	void *free[];
};

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

static int stack_enqueue(struct rte_mempool *pool, void *const *mbufs, unsigned int count)
{
	struct stack *stack = pool->pool_data;
	rte_spinlock_lock(&stack->lock);
	for (unsigned int nth = 0; nth < count; nth++) {
		uint32_t number = number_of(stack, mbufs[nth]);
		if (number == stack->size || stack->states[number] == MBUF_FREE) {
			stack->refused++;
			continue;
		}
		stack->states[number] = MBUF_FREE;
		stack->free[stack->length++] = mbufs[nth];
	}
	rte_spinlock_unlock(&stack->lock);
	return 0;
}

static int stack_dequeue(struct rte_mempool *pool, void **mbufs, unsigned int count)
{
	struct stack *stack = pool->pool_data;
	int outcome = -ENOBUFS;
	rte_spinlock_lock(&stack->lock);
	if (count <= stack->length) {
		for (unsigned int nth = 0; nth < count; nth++) {
			mbufs[nth] = stack->free[--stack->length];
			stack->states[number_of(stack, mbufs[nth])] = MBUF_OUT;
		}
		outcome = 0;
	}
	rte_spinlock_unlock(&stack->lock);
	return outcome;
}

static unsigned int stack_count(const struct rte_mempool *pool)
{
	return ((const struct stack *)pool->pool_data)->length;
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
	/* A page more: a mempool may begin at a later page than its memory. */
	stack->zone = rte_memzone_reserve_aligned(zone, (size_t)count * stride + PAGE, SOCKET_ID_ANY, 0, PAGE);
	if (stack->states == NULL || stack->zone == NULL) {
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
	if ((uint32_t)outcome != count || stack->length != count)
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
	unsigned int free = stack_count(pool);
	count = count < free ? count : free;
	return rte_mempool_get_bulk(pool, mbufs, count) == 0 ? (int32_t)count : 0;
}

void pool_put(void *pool, void *const *mbufs, uint32_t count)
{
	rte_mempool_put_bulk(pool, mbufs, count);
}
