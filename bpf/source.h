/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Which sources may connect to a service. Judged for SYNs only: established flows do not pay for it. */
#pragma once

#include "maps.h"

#define DENIED_PAUSE 60000000000ull /* ns between two reports of a service to the daemon */
#define SOURCE_RULE_BITS (8 * (sizeof(struct source_rule_key) - sizeof(__u32))) /* of a key that is looked up */

/* Reports to the daemon, rate-limited, that a service refuses a client. */
static __always_inline void tell_denied(__u32 service, struct source_filter *f, __be32 client)
{
	__u64 now = bpf_ktime_get_ns(), told = *(volatile __u64 *)&f->told;
	if ((told && now - told < DENIED_PAUSE) || __sync_val_compare_and_swap(&f->told, told, now) != told)
		return;
	struct event e = {.type = EVENT_DENIED, .index = service, .client = client, .at = now};
	notify(&e, false, NULL);
}

/* Whether the rules of a service refuse a client, which counts as a refusal. */
__noinline int refuses_source(__u32 service, const struct flow_key *k)
{
	struct source_filter *f = bpf_map_lookup_elem(&source_filters, &service);
	if (!k || !f)
		return 1;
	struct source_rule_key key = {
		.prefix_bits = SOURCE_RULE_BITS,
		.rules = *(volatile __u32 *)&f->rules,
		.client = k->client,
	};
	__u32 *verdict = bpf_map_lookup_elem(&source_rules, &key);
	if (verdict && *verdict == SOURCE_ALLOWED)
		return 0;
	__sync_fetch_and_add(&f->denied, 1);
	tell_denied(service, f, k->client.w[3]);
	return 1;
}

/* Forgets where the client of a service with rules seems to be, so that its pod's replies go by this node's routes until
 * the client has answered one: who forges an allowed address does not get them. The stack does the same for its own. */
static __always_inline void distrust(struct origin *o, const struct service *s)
{
	if ((s->flags & SERVICE_SOURCES) && o->path == PATH_NIC)
		o->ifindex = 0;
}

/* Whether a SYN may not reach its service, whatever the service's state. */
static __always_inline bool is_denied(const struct service *s, const struct flow_key *k)
{
	return (s->flags & SERVICE_SOURCES) && refuses_source(s->index, k);
}
