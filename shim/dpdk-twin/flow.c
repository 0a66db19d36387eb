/* Flow rules: ETH, then IPV4 or IPV6 with a destination, then (or not) ESP with an SPI; and the action
 * SECURITY, which gives an inbound session its entry. Nothing else is taken. The action's configuration is
 * the session itself, as ixgbe and ipsec-secgw have it. */
#include "twin.h"
#include <rte_malloc.h>
#include <string.h>

/* The memory of a session that is gone may be another's: the serial number tells. */
struct rte_flow {
	struct session *session;
	uint64_t serial;
};

/* What a rule says. */
struct rule {
	struct session *session;
	struct address to;
	rte_be32_t spi;
	bool has_address, has_spi;
};

static int refuse(struct rte_flow_error *error, enum rte_flow_error_type type, const char *why)
{
	return rte_flow_error_set(error, ENOTSUP, type, NULL, why);
}

static bool read_item(const struct rte_flow_item *item, struct rule *rule)
{
	if (item->last)
		return false;
	switch (item->type) {
	case RTE_FLOW_ITEM_TYPE_VOID:
	case RTE_FLOW_ITEM_TYPE_ETH:
		return true;
	case RTE_FLOW_ITEM_TYPE_IPV4:
		if (!item->spec)
			return false;
		memcpy(rule->to.bytes, &((const struct rte_flow_item_ipv4 *)item->spec)->hdr.dst_addr, 4);
		rule->has_address = true;
		return true;
	case RTE_FLOW_ITEM_TYPE_IPV6:
		if (!item->spec)
			return false;
		memcpy(rule->to.bytes, ((const struct rte_flow_item_ipv6 *)item->spec)->hdr.dst_addr, 16);
		rule->to.is_ipv6 = rule->has_address = true;
		return true;
	case RTE_FLOW_ITEM_TYPE_ESP:
		if (item->spec) {
			rule->spi = ((const struct rte_flow_item_esp *)item->spec)->hdr.spi;
			rule->has_spi = true;
		}
		return true;
	default:
		return false;
	}
}

static int read_rule(struct twin *twin, const struct rte_flow_attr *attributes,
		     const struct rte_flow_item *items, const struct rte_flow_action *actions,
		     struct rule *rule, struct rte_flow_error *error)
{
	const struct rte_security_session *session = NULL;
	memset(rule, 0, sizeof *rule);
	if (!attributes->ingress || attributes->egress || attributes->transfer)
		return refuse(error, RTE_FLOW_ERROR_TYPE_ATTR, "for received packets only");
	for (; items->type != RTE_FLOW_ITEM_TYPE_END; items++)
		if (!read_item(items, rule))
			return refuse(error, RTE_FLOW_ERROR_TYPE_ITEM, "ETH, an IP destination and ESP only");
	for (; actions->type != RTE_FLOW_ACTION_TYPE_END; actions++) {
		if (actions->type == RTE_FLOW_ACTION_TYPE_SECURITY && !session)
			session = actions->conf;
		else if (actions->type != RTE_FLOW_ACTION_TYPE_VOID)
			return refuse(error, RTE_FLOW_ERROR_TYPE_ACTION, "SECURITY only");
	}
	if (!session || !rule->has_address)
		return refuse(error, RTE_FLOW_ERROR_TYPE_ACTION, "a destination and a session are needed");
	rule->session = (struct session *)(uintptr_t)session->driver_priv_data;
	if (rule->session->twin != twin || !rule->session->is_ingress || rule->session->sa ||
	    (rule->has_spi && rule->spi != rule->session->spi))
		return refuse(error, RTE_FLOW_ERROR_TYPE_ACTION_CONF, "no free inbound session with this SPI");
	return 0;
}

static int validate(struct rte_eth_dev *dev, const struct rte_flow_attr *attributes,
		    const struct rte_flow_item *items, const struct rte_flow_action *actions,
		    struct rte_flow_error *error)
{
	struct rule rule;
	return read_rule(dev->data->dev_private, attributes, items, actions, &rule, error);
}

static struct rte_flow *create(struct rte_eth_dev *dev, const struct rte_flow_attr *attributes,
			       const struct rte_flow_item *items, const struct rte_flow_action *actions,
			       struct rte_flow_error *error)
{
	struct twin *twin = dev->data->dev_private;
	struct rte_flow *flow;
	struct sa *sa = NULL;
	struct rule rule;
	if (read_rule(twin, attributes, items, actions, &rule, error))
		return NULL;
	flow = rte_zmalloc("testudo_twin_flow", sizeof *flow, 0);
	if (!flow) {
		rte_flow_error_set(error, ENOMEM, RTE_FLOW_ERROR_TYPE_HANDLE, NULL, "no memory");
		return NULL;
	}
	rte_spinlock_lock(&twin->lock);
	if (!twin->needs_reset && !table_find(twin, rule.session->spi, &rule.to))
		sa = table_add(twin, rule.session, &rule.to);
	rte_spinlock_unlock(&twin->lock);
	if (!sa) {
		rte_free(flow);
		rte_flow_error_set(error, ENOSPC, RTE_FLOW_ERROR_TYPE_HANDLE, NULL, "the table is full");
		return NULL;
	}
	flow->session = rule.session;
	flow->serial = rule.session->serial;
	return flow;
}

static int destroy(struct rte_eth_dev *dev, struct rte_flow *flow, struct rte_flow_error *error)
{
	struct twin *twin = dev->data->dev_private;
	(void)error;
	rte_spinlock_lock(&twin->lock);
	if (flow->session->serial == flow->serial)
		table_remove(twin, flow->session);
	rte_spinlock_unlock(&twin->lock);
	rte_free(flow);
	return 0;
}

const struct rte_flow_ops flow_ops = {
	.validate = validate,
	.create = create,
	.destroy = destroy,
};
