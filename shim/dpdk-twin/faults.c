/* How the device fails, from its arguments. Each kind of failure comes every so many occasions, so that a
 * run can be repeated. */
#include "twin.h"
#include <errno.h>
#include <rte_kvargs.h>
#include <stdlib.h>
#include <string.h>

static const char *const known[] = { "peer",        "sa_limit", "fail_session",
				     "reset_after", "lie",      "lie_every", "tap", NULL };
static const char *const lies[] = {
	[LIE_NONE] = "none",           [LIE_UNMARKED] = "unmarked",     [LIE_MARKED] = "marked",
	[LIE_FAILED] = "failed",       [LIE_PLAINTEXT] = "plaintext",   [LIE_CIPHERTEXT] = "ciphertext",
	[LIE_UNSEALED] = "unsealed",
};

static int number(const char *text, uint64_t *to)
{
	char *end;
	errno = 0;
	*to = strtoull(text, &end, 10);
	return errno || end == text || *end ? -EINVAL : 0;
}

static int lie_named(const char *text, enum lie *to)
{
	for (size_t i = 0; i < RTE_DIM(lies); i++)
		if (!strcmp(text, lies[i])) {
			*to = (enum lie)i;
			return 0;
		}
	return -EINVAL;
}

static int set(const char *key, const char *value, void *into)
{
	struct twin *twin = into;
	uint64_t count = 0;
	if (!value)
		return -EINVAL;
	if (!strcmp(key, "peer"))
		return rte_strscpy(twin->peer, value, sizeof twin->peer) < 0 ? -EINVAL : 0;
	if (!strcmp(key, "lie"))
		return lie_named(value, &twin->lie);
	if (!strcmp(key, "tap"))
		return rte_strscpy(twin->tap, value, sizeof twin->tap) < 0 ? -EINVAL : 0;
	if (number(value, &count))
		return -EINVAL;
	if (!strcmp(key, "sa_limit")) {
		if (count > MAX_SAS)
			return -EINVAL;
		twin->sa_limit = (uint32_t)count;
	} else if (!strcmp(key, "fail_session")) {
		twin->fail_session = (uint32_t)count;
	} else if (!strcmp(key, "reset_after")) {
		twin->reset_after = count;
	} else {
		twin->lie_every = count;
	}
	return 0;
}

int faults_parse(struct twin *twin, const char *arguments)
{
	struct rte_kvargs *pairs;
	int failed = 0;
	twin->sa_limit = MAX_SAS;
	twin->lie_every = 1;
	if (!arguments || !*arguments)
		return 0;
	pairs = rte_kvargs_parse(arguments, known);
	if (!pairs)
		return -EINVAL;
	for (size_t i = 0; known[i] && !failed; i++)
		failed = rte_kvargs_process(pairs, known[i], set, twin);
	rte_kvargs_free(pairs);
	return failed ? -EINVAL : 0;
}

bool twin_lies(struct twin *twin, enum lie lie)
{
	if (twin->lie != lie || !twin->lie_every || ++twin->occasions % twin->lie_every)
		return false;
	twin->counters.lies++;
	return true;
}

bool twin_counts(struct twin *twin)
{
	if (!twin->reset_after || ++twin->secured % twin->reset_after)
		return false;
	twin->counters.resets++;
	twin->needs_reset = true;
	tables_clear(twin);
	return true;
}
