/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The sweep: removes flows that have ended, and counts the others. */
#pragma once

#include "flow.h"

/* State of sweep_flows' loop. */
struct sweep {
	struct sweep_args args; /* maximum ages */
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

static long sweep_flow(void *map, const void *key, void *value, void *ctx)
{
	struct sweep *s = ctx;
	struct flow_key k = *(struct flow_key *)key;
	struct flow *f = value;
	__u32 index = f->pod;
	__s64 age = s->now - f->last; /* below zero if another CPU has just set it */
	if (!pod_of_flow(f) || (age > 0 && age > max_age(f, &s->args))) {
		/* A program that set FLOW_GONE may have failed to delete the entry because its bucket was locked. */
		if (f->state == FLOW_GONE)
			bpf_map_delete_elem(&flows, &k);
		else
			flow_forget(&k, f);
		return 0;
	}
	s->left++;
	struct recount *r = bpf_map_lookup_elem(&recounts, &index);
	if (r && f->state == FLOW_ESTABLISHED)
		r->open++;
	else if (r && f->state == FLOW_HALF_OPEN)
		r->half_open++;
	return 0;
}

/* Removes flows that have ended or whose pod is gone, and counts the others in `recounts`. Returns how many are
 * left. */
static __always_inline int sweep_flows(const struct sweep_args *args)
{
	struct sweep s = {.args = *args, .now = bpf_ktime_get_ns()};
	bpf_for_each_map_elem(&flows, sweep_flow, &s, 0);
	return s.left;
}
