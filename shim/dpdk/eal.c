/* The environment abstraction layer: start, threads, memory, and what DPDK says. */
#define _GNU_SOURCE
#include "plugin.h"
#include <errno.h>
#include <pthread.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_memory.h>
#include <stdio.h>
#include <string.h>

/* The end of what DPDK has logged: its functions say what is wrong there, and return a number. */
static struct {
	pthread_mutex_t lock;
	size_t bytes;
	char text[4096];
} heard = { .lock = PTHREAD_MUTEX_INITIALIZER };

static ssize_t hear(void *cookie, const char *text, size_t bytes)
{
	size_t kept = bytes < sizeof heard.text ? bytes : sizeof heard.text;
	(void)cookie;
	pthread_mutex_lock(&heard.lock);
	if (heard.bytes + kept > sizeof heard.text) {
		size_t lost = heard.bytes + kept - sizeof heard.text;
		memmove(heard.text, heard.text + lost, heard.bytes - lost);
		heard.bytes -= lost;
	}
	memcpy(heard.text + heard.bytes, text + bytes - kept, kept);
	heard.bytes += kept;
	pthread_mutex_unlock(&heard.lock);
	return (ssize_t)bytes;
}

int32_t said(char *text, uint32_t room)
{
	pthread_mutex_lock(&heard.lock);
	size_t bytes = heard.bytes < room ? heard.bytes : room;
	memcpy(text, heard.text + heard.bytes - bytes, bytes);
	heard.bytes = 0;
	pthread_mutex_unlock(&heard.lock);
	return (int32_t)bytes;
}

int32_t eal_start(int32_t argc, char **argv)
{
	FILE *log = fopencookie(NULL, "w", (cookie_io_functions_t){ .write = hear });
	if (log != NULL) {
		setvbuf(log, NULL, _IOLBF, 0);
		rte_openlog_stream(log);
	}
	return rte_eal_init(argc, argv) < 0 ? -(rte_errno != 0 ? rte_errno : EIO) : 0;
}

int32_t uses_virtual_addresses(void)
{
	return rte_eal_iova_mode() == RTE_IOVA_VA;
}

int32_t thread_register(void)
{
	return rte_thread_register() < 0 ? -rte_errno : 0;
}

void thread_unregister(void)
{
	rte_thread_unregister();
}

int32_t memory_register(void *start, uint64_t bytes, uint64_t page_bytes)
{
	return rte_extmem_register(start, bytes, NULL, 0, page_bytes) < 0 ? -rte_errno : 0;
}

int32_t memory_unregister(void *start, uint64_t bytes)
{
	return rte_extmem_unregister(start, bytes) < 0 ? -rte_errno : 0;
}

uint64_t physical_address(const void *start)
{
	return rte_mem_virt2iova(start);
}

int32_t memory_map(uint16_t port, void *start, uint64_t address, uint64_t bytes)
{
	struct rte_eth_dev_info info;
	int outcome = rte_eth_dev_info_get(port, &info);
	if (outcome < 0)
		return outcome;
	return rte_dev_dma_map(info.device, start, address, bytes) < 0 ? -rte_errno : 0;
}
