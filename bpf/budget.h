/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Budgets of wakes: how many wakes strangers may start before they must prove that they are where they claim to
 * be. */
#pragma once

#include "balance.h"

#define REPEAT_PAUSE 500000000ull     /* ns: less apart, two equal SYNs are not a repeat; TCP waits 1 s (RFC 6298) */
#define REPEAT_EXPIRY 20000000000ull  /* ns after which a SYN is forgotten */
#define REPEATS 3                     /* repeats of a SYN that count as much as a proof */
#define REPEAT_INTERVAL 1000000000ull /* ns for one more such SYN on this node */
#define REPEAT_BURST 16               /* such SYNs at once */
#define DOUBTED_REPEAT 32             /* wakes that such a SYN costs the budget of a doubted service */
#define TELL_PAUSE 1000000000ull      /* ns between two reports to the daemon */

/* What exceeded_budget returns besides an enum wake_scope. */
#define WITHIN_BUDGET WAKE_SCOPES       /* no budget is exceeded */
#define BEYOND_PARKED (WAKE_SCOPES + 1) /* the service keeps enough SYNs of unproven clients */

/* Spends one of a budget that holds burst of them at most and gets one more each interval (ns); burst 0 is without
 * limit. *due is the time at which the budget is full again: a generic cell rate algorithm (ITU-T I.371). */
static __always_inline bool spend(__u64 *due, __u64 interval, __u64 burst, __u64 now)
{
	if (!burst)
		return true;
	for (int i = 0; i < 4; i++) {
		__u64 was = *(volatile __u64 *)due, from = was > now ? was : now;
		if (from + interval > now + burst * interval)
			return false;
		if (__sync_val_compare_and_swap(due, was, from + interval) == was)
			return true;
	}
	/* Other CPUs took some at this moment. Being off by a few does no harm. */
	return true;
}

/* Returns the index of a client's /24 in `source_budgets` and `proven_budgets`. Prefixes share the entries, by a keyed
 * hash that strangers cannot predict. */
static __always_inline __u32 source_index(const struct flow_key *k)
{
	__u32 prefix = bpf_ntohl(k->client.w[3]) >> 8;
	return hash_client(prefix ^ (__u32)proof_key[0]) & (SOURCE_BUDGETS - 1);
}

/* Returns which budget the SYN of an unproven client exceeds: one of those of wakes if it would start one, else the
 * number of SYNs that its service keeps for unproven clients. The source comes first, so that one alone cannot spend
 * what others share. */
static __always_inline __u32 exceeded_budget(const struct flow_key *k, struct service_status *st, bool cold, __u64 now)
{
	if (!cold)
		return !unproven_parked || *(volatile __u32 *)&st->parked < unproven_parked ? WITHIN_BUDGET
											    : BEYOND_PARKED;
	__u32 zero = 0;
	struct node_limits *node = bpf_map_lookup_elem(&wake_limits, &zero);
	__u32 at = source_index(k);
	__u64 *source = bpf_map_lookup_elem(&source_budgets, &at);
	if (!source || !node || !spend(source, wake_interval[WAKES_SOURCE], wake_burst[WAKES_SOURCE], now))
		return WAKES_SOURCE;
	if (!spend(&st->wake_budget, wake_interval[WAKES_SERVICE], wake_burst[WAKES_SERVICE], now))
		return WAKES_SERVICE;
	if (!spend(&node->wakes, wake_interval[WAKES_NODE], wake_burst[WAKES_NODE], now))
		return WAKES_NODE;
	return WITHIN_BUDGET;
}

/* Whether a SYN of a proven client is within the budget of its /24, which bounds how many services a scan wakes. Forged
 * SYNs cannot spend it. */
static __always_inline bool within_proven_budget(const struct flow_key *k, struct service_status *st, __u64 now)
{
	if (state_now(st) != SERVICE_COLD)
		return true;
	__u32 at = source_index(k);
	__u64 *source = bpf_map_lookup_elem(&proven_budgets, &at);
	return !source || spend(source, wake_interval[WAKES_PROVEN], wake_burst[WAKES_PROVEN], now);
}

/* Whether a SYN has come so often that its client must be one whose network swallows challenges. Such clients have a
 * budget of their own, as anyone can repeat a SYN. */
static __always_inline bool is_repeated(const struct flow_key *k, __u32 isn, __u64 now)
{
	__u32 zero = 0;
	__u32 ports = (__u32)k->client_port << 16 | k->service_port;
	__u32 h = hash_client(k->client.w[3] ^ (__u32)proof_key[1]);
	h = hash_client(h ^ k->service.w[3]);
	h = hash_client(h ^ ports);
	__u32 tag = hash_client(h ^ isn), at = hash_client(tag ^ h) & (REPEATED_SYNS - 1);
	struct repeated_syn *r = bpf_map_lookup_elem(&repeated_syns, &at);
	struct node_limits *node = bpf_map_lookup_elem(&wake_limits, &zero);
	if (!r || !node)
		return false;
	__u64 age = now - r->at;
	if (r->tag != tag || age > REPEAT_EXPIRY) {
		/* A SYN that was repeated already stays, so that a flood of new ones does not displace it. */
		if (r->repeats && age <= REPEAT_EXPIRY)
			return false;
		r->tag = tag;
		r->repeats = 0;
		r->at = now;
		return false;
	}
	if (age < REPEAT_PAUSE)
		return false;
	r->at = now;
	r->repeats++;
	return r->repeats >= REPEATS && spend(&node->repeats, REPEAT_INTERVAL, REPEAT_BURST, now);
}

/* Whether a doubted service may be woken by a SYN for its repeats. Anyone can repeat a SYN, so this is far rarer than
 * other wakes. */
static __always_inline bool may_repeats_wake(struct service_status *st, __u64 now)
{
	__u64 burst = wake_burst[WAKES_SERVICE];
	if (!burst)
		return true;
	__u64 times = burst < DOUBTED_REPEAT ? 1 : burst / DOUBTED_REPEAT;
	return spend(&st->wake_budget, wake_interval[WAKES_SERVICE] * DOUBTED_REPEAT, times, now);
}

/* Reports to the daemon, rate-limited, which service and client exceed a budget of wakes. */
static __always_inline void tell_over_budget(__u32 service, const struct flow_key *k, __u32 scope, __u64 now)
{
	__u32 zero = 0;
	struct node_limits *node = bpf_map_lookup_elem(&wake_limits, &zero);
	if (!node)
		return;
	__u64 told = *(volatile __u64 *)&node->told;
	if ((told && now - told < TELL_PAUSE) || __sync_val_compare_and_swap(&node->told, told, now) != told)
		return;
	struct event e = {
		.type = EVENT_OVER_BUDGET,
		.scope = scope,
		.index = service,
		.client = k->client.w[3],
		.at = now,
	};
	notify(&e, false, NULL);
}
