/* Cryptodevs: devices, sessions, and operations on packets that stay where they are. */
#include "crypto.h"
#include <errno.h>
#include <rte_cryptodev.h>
#include <rte_dev.h>
#include <rte_errno.h>
#include <rte_malloc.h>
#include <rte_mbuf.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BURST 64u
/* DPDK wants the nonce of CCM after one byte, and its AAD after 18, for what the algorithm puts there. */
#define CCM_NONCE_AT 1u
#define CCM_AAD_AT 18u
#define AAD_ROOM (CCM_AAD_AT + MAX_AAD_BYTES + 2u)

/* After each operation, in the same object. */
struct beside {
	uint8_t iv[MAX_IV_BYTES];
	uint8_t aad[AAD_ROOM];
	uint32_t slot;
};
#define BESIDE_AT (sizeof(struct rte_crypto_op) + sizeof(struct rte_crypto_sym_op))
#define IV_AT (BESIDE_AT + offsetof(struct beside, iv))

struct device {
	uint8_t id;
	uint32_t number; /* of its pools: DPDK numbers devices again */
	bool is_made; /* by us: a virtual device, which ends with this */
	char name[64];
	uint32_t slots;
	struct rte_mempool *operations, *sessions;
	struct rte_crypto_op **ops;
	struct rte_mbuf *mbufs;
	uint8_t *icvs, *copies;
};

static struct beside *beside(struct rte_crypto_op *op)
{
	return (struct beside *)((uint8_t *)op + BESIDE_AT);
}

static const enum rte_crypto_cipher_algorithm ciphers[] = {
	[CIPHER_AES_CBC] = RTE_CRYPTO_CIPHER_AES_CBC, [CIPHER_AES_CTR] = RTE_CRYPTO_CIPHER_AES_CTR,
	[CIPHER_3DES_CBC] = RTE_CRYPTO_CIPHER_3DES_CBC, [CIPHER_DES_CBC] = RTE_CRYPTO_CIPHER_DES_CBC,
};
static const enum rte_crypto_aead_algorithm aeads[] = {
	[AEAD_AES_GCM - AEADS] = RTE_CRYPTO_AEAD_AES_GCM,
	[AEAD_AES_CCM - AEADS] = RTE_CRYPTO_AEAD_AES_CCM,
	[AEAD_CHACHA20_POLY1305 - AEADS] = RTE_CRYPTO_AEAD_CHACHA20_POLY1305,
};
static const enum rte_crypto_auth_algorithm auths[] = {
	[AUTH_MD5_HMAC] = RTE_CRYPTO_AUTH_MD5_HMAC,       [AUTH_SHA1_HMAC] = RTE_CRYPTO_AUTH_SHA1_HMAC,
	[AUTH_SHA256_HMAC] = RTE_CRYPTO_AUTH_SHA256_HMAC, [AUTH_SHA384_HMAC] = RTE_CRYPTO_AUTH_SHA384_HMAC,
	[AUTH_SHA512_HMAC] = RTE_CRYPTO_AUTH_SHA512_HMAC, [AUTH_AES_XCBC] = RTE_CRYPTO_AUTH_AES_XCBC_MAC,
	[AUTH_AES_CMAC] = RTE_CRYPTO_AUTH_AES_CMAC,       [AUTH_AES_GMAC] = RTE_CRYPTO_AUTH_AES_GMAC,
};

static bool is_known(const struct crypto_work *work)
{
	bool is_cipher = work->cipher < RTE_DIM(ciphers);
	bool is_aead = work->cipher >= AEADS && work->cipher - AEADS < RTE_DIM(aeads);
	return (is_cipher || is_aead) && work->auth < RTE_DIM(auths) && (work->cipher || work->auth) &&
	       !(is_aead && work->auth) && work->iv_bytes <= MAX_IV_BYTES && work->aad_bytes <= MAX_AAD_BYTES &&
	       work->icv_bytes <= SLOT_ICV_BYTES;
}

static bool does_aead(uint8_t id, const struct crypto_work *work)
{
	struct rte_cryptodev_sym_capability_idx index = { .type = RTE_CRYPTO_SYM_XFORM_AEAD,
							  .algo.aead = aeads[work->cipher - AEADS] };
	const struct rte_cryptodev_symmetric_capability *found = rte_cryptodev_sym_capability_get(id, &index);
	return found && !rte_cryptodev_sym_capability_check_aead(found, work->cipher_key_bytes, work->icv_bytes,
								 work->aad_bytes, work->iv_bytes);
}

static bool does_cipher(uint8_t id, const struct crypto_work *work)
{
	struct rte_cryptodev_sym_capability_idx index = { .type = RTE_CRYPTO_SYM_XFORM_CIPHER,
							  .algo.cipher = ciphers[work->cipher] };
	const struct rte_cryptodev_symmetric_capability *found = rte_cryptodev_sym_capability_get(id, &index);
	return found && !rte_cryptodev_sym_capability_check_cipher(found, work->cipher_key_bytes, work->iv_bytes);
}

static bool does_auth(uint8_t id, const struct crypto_work *work)
{
	struct rte_cryptodev_sym_capability_idx index = { .type = RTE_CRYPTO_SYM_XFORM_AUTH,
							  .algo.auth = auths[work->auth] };
	const struct rte_cryptodev_symmetric_capability *found = rte_cryptodev_sym_capability_get(id, &index);
	uint16_t iv_bytes = work->auth == AUTH_AES_GMAC ? work->iv_bytes : 0;
	return found && !rte_cryptodev_sym_capability_check_auth(found, work->auth_key_bytes, work->icv_bytes,
								 iv_bytes);
}

static int32_t does(void *handle, const struct crypto_work *work)
{
	struct device *device = handle;
	struct rte_cryptodev_info info;
	if (!is_known(work))
		return 0;
	if (work->cipher >= AEADS)
		return does_aead(device->id, work);
	rte_cryptodev_info_get(device->id, &info);
	if (work->cipher && work->auth && !(info.feature_flags & RTE_CRYPTODEV_FF_SYM_OPERATION_CHAINING))
		return 0;
	return (!work->cipher || does_cipher(device->id, work)) && (!work->auth || does_auth(device->id, work));
}

static struct rte_crypto_sym_xform aead_xform(const struct crypto_work *work)
{
	uint16_t iv_at = IV_AT;
	return (struct rte_crypto_sym_xform){
		.type = RTE_CRYPTO_SYM_XFORM_AEAD,
		.aead = { .op = work->seals ? RTE_CRYPTO_AEAD_OP_ENCRYPT : RTE_CRYPTO_AEAD_OP_DECRYPT,
			  .algo = aeads[work->cipher - AEADS],
			  .key = { work->cipher_key, work->cipher_key_bytes },
			  .iv = { iv_at, work->iv_bytes },
			  .digest_length = work->icv_bytes,
			  .aad_length = work->aad_bytes },
	};
}

static struct rte_crypto_sym_xform cipher_xform(const struct crypto_work *work)
{
	return (struct rte_crypto_sym_xform){
		.type = RTE_CRYPTO_SYM_XFORM_CIPHER,
		.cipher = { .op = work->seals ? RTE_CRYPTO_CIPHER_OP_ENCRYPT : RTE_CRYPTO_CIPHER_OP_DECRYPT,
			    .algo = ciphers[work->cipher],
			    .key = { work->cipher_key, work->cipher_key_bytes },
			    .iv = { IV_AT, work->iv_bytes } },
	};
}

static struct rte_crypto_sym_xform auth_xform(const struct crypto_work *work)
{
	bool has_iv = work->auth == AUTH_AES_GMAC;
	return (struct rte_crypto_sym_xform){
		.type = RTE_CRYPTO_SYM_XFORM_AUTH,
		.auth = { .op = work->seals ? RTE_CRYPTO_AUTH_OP_GENERATE : RTE_CRYPTO_AUTH_OP_VERIFY,
			  .algo = auths[work->auth],
			  .key = { work->auth_key, work->auth_key_bytes },
			  .iv = { IV_AT, has_iv ? work->iv_bytes : 0 },
			  .digest_length = work->icv_bytes },
	};
}

static int32_t session_make(void *handle, const struct crypto_work *work, void **session)
{
	struct device *device = handle;
	struct rte_crypto_sym_xform first, second;
	if (!is_known(work))
		return -EINVAL;
	if (work->cipher >= AEADS) {
		first = aead_xform(work);
	} else if (!work->auth) {
		first = cipher_xform(work);
	} else if (!work->cipher) {
		first = auth_xform(work);
	} else {
		first = work->seals ? cipher_xform(work) : auth_xform(work);
		second = work->seals ? auth_xform(work) : cipher_xform(work);
		first.next = &second;
	}
	*session = rte_cryptodev_sym_session_create(device->id, &first, device->sessions);
	return *session ? 0 : -(rte_errno ? rte_errno : EIO);
}

static void session_end(void *handle, void *session)
{
	rte_cryptodev_sym_session_free(((struct device *)handle)->id, session);
}

static void attach(struct rte_mbuf *mbuf, const struct crypto_job *job)
{
	mbuf->buf_addr = job->packet;
	mbuf->buf_iova = (uintptr_t)job->packet;
	mbuf->data_off = 0;
	mbuf->buf_len = mbuf->data_len = (uint16_t)job->bytes;
	mbuf->pkt_len = job->bytes;
	mbuf->nb_segs = 1;
	mbuf->next = NULL;
}

static struct rte_crypto_op *prepared(struct device *device, const struct crypto_job *job)
{
	struct rte_crypto_op *op = device->ops[job->slot];
	struct beside *own = beside(op);
	struct rte_crypto_sym_op *sym = op->sym;
	attach(&device->mbufs[job->slot], job);
	op->status = RTE_CRYPTO_OP_STATUS_NOT_PROCESSED;
	op->sess_type = RTE_CRYPTO_OP_WITH_SESSION;
	sym->session = job->session;
	sym->m_src = &device->mbufs[job->slot];
	sym->m_dst = NULL;
	memcpy(own->iv + (job->is_ccm ? CCM_NONCE_AT : 0), job->iv, MAX_IV_BYTES - (job->is_ccm ? CCM_NONCE_AT : 0));
	if (job->is_aead) {
		memcpy(own->aad + (job->is_ccm ? CCM_AAD_AT : 0), job->aad, MAX_AAD_BYTES);
		sym->aead.data.offset = job->cipher_at;
		sym->aead.data.length = job->cipher_bytes;
		sym->aead.digest.data = job->icv;
		sym->aead.digest.phys_addr = (uintptr_t)job->icv;
		sym->aead.aad.data = own->aad;
		sym->aead.aad.phys_addr = op->phys_addr + BESIDE_AT + offsetof(struct beside, aad);
	} else {
		sym->cipher.data.offset = job->cipher_at;
		sym->cipher.data.length = job->cipher_bytes;
		sym->auth.data.offset = job->auth_at;
		sym->auth.data.length = job->auth_bytes;
		sym->auth.digest.data = job->icv;
		sym->auth.digest.phys_addr = (uintptr_t)job->icv;
	}
	return op;
}

static uint16_t submit(void *handle, uint16_t pair, const struct crypto_job *jobs, uint16_t count)
{
	struct device *device = handle;
	struct rte_crypto_op *ops[MAX_BURST];
	uint16_t taken = 0;
	while (taken < count) {
		uint16_t burst = (uint16_t)RTE_MIN((uint32_t)(count - taken), MAX_BURST), done;
		for (uint16_t i = 0; i < burst; i++)
			ops[i] = prepared(device, &jobs[taken + i]);
		done = rte_cryptodev_enqueue_burst(device->id, pair, ops, burst);
		taken = (uint16_t)(taken + done);
		if (done < burst)
			break;
	}
	return taken;
}

/* The slot of what a device has given back. Only what lies among our operations is looked at. */
static uint32_t slot_of(const struct device *device, struct rte_crypto_op *op)
{
	uint32_t slot;
	if ((uintptr_t)op < (uintptr_t)device->ops[0] || (uintptr_t)op > (uintptr_t)device->ops[device->slots - 1])
		return UINT32_MAX;
	memcpy(&slot, &beside(op)->slot, sizeof slot);
	return slot < device->slots && device->ops[slot] == op ? slot : UINT32_MAX;
}

static uint32_t ended(uint8_t status)
{
	if (status == RTE_CRYPTO_OP_STATUS_SUCCESS)
		return ENDED_WELL;
	if (status == RTE_CRYPTO_OP_STATUS_NOT_PROCESSED)
		return NOT_ENDED;
	return status == RTE_CRYPTO_OP_STATUS_AUTH_FAILED ? ENDED_WRONG_ICV : ENDED_IN_ERROR;
}

static uint16_t poll(void *handle, uint16_t pair, struct crypto_done *done, uint16_t count)
{
	struct device *device = handle;
	struct rte_crypto_op *ops[MAX_BURST];
	uint16_t burst = (uint16_t)RTE_MIN((uint32_t)count, MAX_BURST);
	uint16_t got = rte_cryptodev_dequeue_burst(device->id, pair, ops, burst);
	if (got > burst)
		got = burst;
	for (uint16_t i = 0; i < got; i++) {
		uint32_t slot = slot_of(device, ops[i]);
		done[i] = (struct crypto_done){ slot, slot == UINT32_MAX ? ENDED_IN_ERROR : ended(ops[i]->status) };
	}
	return got;
}

static int32_t map(void *handle, void *start, uint64_t bytes)
{
	struct rte_cryptodev_info info;
	rte_cryptodev_info_get(((struct device *)handle)->id, &info);
	return rte_dev_dma_map(info.device, start, (uintptr_t)start, bytes) < 0 ? -rte_errno : 0;
}

static int32_t unmap(void *handle, void *start, uint64_t bytes)
{
	struct rte_cryptodev_info info;
	rte_cryptodev_info_get(((struct device *)handle)->id, &info);
	return rte_dev_dma_unmap(info.device, start, (uintptr_t)start, bytes) < 0 ? -rte_errno : 0;
}

static void close_device(void *handle)
{
	struct device *device = handle;
	rte_cryptodev_stop(device->id);
	rte_cryptodev_close(device->id);
	if (device->is_made)
		rte_eal_hotplug_remove("vdev", device->name);
	for (uint32_t i = 0; device->ops && i < device->slots; i++)
		rte_crypto_op_free(device->ops[i]);
	rte_mempool_free(device->operations);
	rte_mempool_free(device->sessions);
	rte_free(device->mbufs);
	rte_free(device->icvs);
	rte_free(device->copies);
	free(device->ops);
	free(device);
}

static int by_address(const void *one, const void *other)
{
	uintptr_t a = *(const uintptr_t *)one, b = *(const uintptr_t *)other;
	return a < b ? -1 : a > b;
}

/* All that slots need: operations in DPDK's memory, sorted by address, with an mbuf, ICV and copy each. */
static int32_t make_slots(struct device *device, uint32_t slots)
{
	char name[RTE_MEMPOOL_NAMESIZE];
	snprintf(name, sizeof name, "crypto%u-ops", device->number);
	device->operations = rte_crypto_op_pool_create(name, RTE_CRYPTO_OP_TYPE_SYMMETRIC, slots, 0,
						       sizeof(struct beside), SOCKET_ID_ANY);
	device->ops = calloc(slots, sizeof *device->ops);
	device->mbufs = rte_zmalloc(NULL, slots * sizeof *device->mbufs, RTE_CACHE_LINE_SIZE);
	device->icvs = rte_zmalloc(NULL, (size_t)slots * SLOT_ICV_BYTES, RTE_CACHE_LINE_SIZE);
	device->copies = rte_zmalloc(NULL, (size_t)slots * SLOT_COPY_BYTES, RTE_CACHE_LINE_SIZE);
	if (!device->operations || !device->ops || !device->mbufs || !device->icvs || !device->copies)
		return -ENOMEM;
	if (rte_crypto_op_bulk_alloc(device->operations, RTE_CRYPTO_OP_TYPE_SYMMETRIC, device->ops,
				     (uint16_t)slots) != slots)
		return -ENOMEM;
	device->slots = slots;
	qsort(device->ops, slots, sizeof *device->ops, by_address);
	for (uint32_t i = 0; i < slots; i++) {
		beside(device->ops[i])->slot = i;
		rte_mbuf_refcnt_set(&device->mbufs[i], 1);
	}
	return 0;
}

/* How many objects of the pool a session takes: a scheduler has one of its own and one for each worker. */
static uint32_t objects_per_session(const char *driver, const char *arguments)
{
	uint32_t workers = 0;
	if (strcmp(driver, "crypto_scheduler") != 0)
		return 1;
	for (const char *at = arguments; (at = strstr(at, "worker=")) != NULL; at++)
		workers++;
	/* Where it was made with other arguments, as many as DPDK allows. */
	return 1 + (workers ? workers : 8);
}

static int32_t start(struct device *device, const struct crypto_open *open, struct crypto_opened *opened,
		     const struct rte_cryptodev_info *info)
{
	unsigned int size = rte_cryptodev_sym_get_private_session_size(device->id);
	uint32_t most = info->sym.max_nb_sessions, each, slots = (uint32_t)open->queue_pairs * open->slots_per_pair;
	struct rte_cryptodev_config config = { .socket_id = SOCKET_ID_ANY, .nb_queue_pairs = open->queue_pairs,
					       .ff_disable = RTE_CRYPTODEV_FF_ASYMMETRIC_CRYPTO };
	/* A ring holds one less than its length. */
	struct rte_cryptodev_qp_conf pair = { .nb_descriptors = 2u * open->slots_per_pair };
	char name[RTE_MEMPOOL_NAMESIZE];
	int32_t outcome;
	if (open->queue_pairs > info->max_nb_queue_pairs)
		return -ERANGE;
	opened->sessions = most && most < open->sessions ? most : open->sessions;
	snprintf(name, sizeof name, "crypto%u-sessions", device->number);
	outcome = rte_cryptodev_configure(device->id, &config);
	if (outcome)
		return outcome;
	each = objects_per_session(info->driver_name, open->device);
	device->sessions =
		rte_cryptodev_sym_session_pool_create(name, opened->sessions * each, size, 0, 0, SOCKET_ID_ANY);
	if (!device->sessions)
		return -ENOMEM;
	pair.mp_session = device->sessions;
	for (uint16_t i = 0; i < open->queue_pairs && !outcome; i++)
		outcome = rte_cryptodev_queue_pair_setup(device->id, i, &pair, SOCKET_ID_ANY);
	if (!outcome)
		outcome = make_slots(device, slots);
	return outcome ? outcome : rte_cryptodev_start(device->id);
}

/* The device with this name; a virtual one is made. Its name ends where its arguments begin. */
static int32_t find(struct device *device, const char *arguments)
{
	size_t bytes = strcspn(arguments, ",");
	int id;
	if (bytes >= sizeof device->name)
		return -ENAMETOOLONG;
	memcpy(device->name, arguments, bytes);
	id = rte_cryptodev_get_dev_id(device->name);
	if (id < 0) {
		const char *rest = arguments + bytes + (arguments[bytes] != 0);
		int outcome = rte_eal_hotplug_add("vdev", device->name, rest);
		if (outcome)
			return outcome;
		device->is_made = true;
		id = rte_cryptodev_get_dev_id(device->name);
	}
	if (id < 0)
		return -ENODEV;
	device->id = (uint8_t)id;
	return 0;
}

static int32_t open_device(const struct crypto_open *open, struct crypto_opened *opened)
{
	static uint32_t opened_so_far; /* devices are opened one at a time */
	struct device *device = calloc(1, sizeof *device);
	struct rte_cryptodev_info info;
	int32_t outcome;
	if (!device)
		return -ENOMEM;
	device->number = opened_so_far++;
	outcome = find(device, open->device);
	if (outcome) {
		if (device->is_made)
			rte_eal_hotplug_remove("vdev", device->name);
		free(device);
		return outcome;
	}
	memset(&info, 0, sizeof info);
	rte_cryptodev_info_get(device->id, &info);
	outcome = start(device, open, opened, &info);
	if (outcome) {
		close_device(device);
		return outcome < 0 ? outcome : -EIO;
	}
	opened->handle = device;
	opened->icvs = device->icvs;
	opened->copies = device->copies;
	opened->slots = device->slots;
	opened->is_software = !(info.feature_flags & RTE_CRYPTODEV_FF_HW_ACCELERATED);
	snprintf(opened->name, sizeof opened->name, "%s", device->name);
	snprintf(opened->driver, sizeof opened->driver, "%s", info.driver_name);
	return 0;
}

static const struct testudo_dpdk_crypto table = {
	.version = TESTUDO_DPDK_CRYPTO_VERSION,
	.size = sizeof table,
	.open = open_device,
	.close = close_device,
	.does = does,
	.session_make = session_make,
	.session_end = session_end,
	.submit = submit,
	.poll = poll,
	.map = map,
	.unmap = unmap,
};

__attribute__((visibility("default"))) const struct testudo_dpdk_crypto *testudo_dpdk_crypto(void)
{
	return &table;
}
