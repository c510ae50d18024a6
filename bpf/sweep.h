/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The sweep: removes flows that have ended, and counts the others. */
#pragma once

#include "flow.h"

/* State of sweep_flows' loop. */
struct sweep {
	struct sweep_args args; /* maximum ages, and evictions that are left */
	__u64 now;              /* ns of CLOCK_MONOTONIC */
	__u32 left;             /* flows that stay */
};

/* Returns the maximum age of a flow. */
static __always_inline __u64 max_age(const struct flow *f, const struct sweep_args *args)
{
	if (f->state >= FLOW_CLOSED)
		return args->closed;
	if (f->state == FLOW_HALF_OPEN || (f->seen & SEEN_FINS) == SEEN_FINS)
		return args->half_open;
	return f->seen & SEEN_FINS ? args->half_closed : args->established;
}

/* Whether a flow is established and not both sides have sent FIN. */
static __always_inline bool is_open(const struct flow *f)
{
	return f->state == FLOW_ESTABLISHED && (f->seen & SEEN_FINS) != SEEN_FINS;
}

static long sweep_flow(void *map, const void *key, void *value, void *ctx)
{
	struct sweep *s = ctx;
	struct flow *f = value;
	__u64 word = flow_word(f); /* before anything else, so that all is about the same flow */
	struct flow_key k = *(struct flow_key *)key;
	__u32 index = f->pod;
	__s64 age = s->now - f->last; /* below zero if another CPU has just set it */
	bool old = age > 0 && age > max_age(f, &s->args), open = is_open(f);
	if (!old && open && age > 0 && age > s->args.evictable && s->args.evictions) {
		s->args.evictions--;
		count(COUNT_IDLE_EVICTED);
		old = true;
	}
	if (!pod_of_flow(f) || old) {
		/* A program that set FLOW_GONE may have failed to delete the entry because its bucket was locked. */
		if ((__u32)word == FLOW_GONE || flow_advance_from(&k, f, word, FLOW_GONE))
			bpf_map_delete_elem(&flows, &k);
		return 0;
	}
	s->left++;
	if (open) {
		__u32 at = age > 0 ? (__u64)age >> IDLE_SHIFT : 0;
		if (at >= IDLE_TIMES)
			at = IDLE_TIMES - 1;
		struct idle_count *idle = bpf_map_lookup_elem(&idle_flows, &at);
		if (idle)
			idle->established++;
	}
	struct recount *r = bpf_map_lookup_elem(&recounts, &index);
	if (f->state == FLOW_ESTABLISHED) {
		if (r)
			r->open++;
		share_found(&k);
	} else if (r && f->state == FLOW_HALF_OPEN) {
		r->half_open++;
	}
	return 0;
}

/* Removes a flow, unless another CPU has done so or entered another one meanwhile. Returns 1 if it did. */
static __always_inline int end_flow(const struct flow_key *key, __u32 isn)
{
	struct flow_key k = *key;
	struct flow *f = bpf_map_lookup_elem(&flows, &k);
	if (!f || f->isn != isn || !flow_advance(&k, f, FLOW_GONE))
		return 0;
	bpf_map_delete_elem(&flows, &k);
	return 1;
}

/* Removes flows that have ended, whose pod is gone or that are evicted, and counts the others in `recounts`,
 * `idle_flows` and the shares. Returns how many are left. */
static __always_inline int sweep_flows(const struct sweep_args *args)
{
	struct sweep s = {.args = *args, .now = bpf_ktime_get_ns()};
	bpf_for_each_map_elem(&flows, sweep_flow, &s, 0);
	return s.left;
}
