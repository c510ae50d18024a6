/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The flow table: entries, and the counts that follow from them. Packets of several CPUs may meet at one entry,
 * so whoever changes its state by compare-and-swap does what follows from the change, and nobody else.
 * The larger functions are global: the verifier looks at each once, not at every path through all of them. */
#pragma once

#include "parse.h"

#define IN 0  /* client to pod */
#define OUT 1 /* pod to client */

#define RING_HALF_OPEN 0
#define RING_CLOSED 1

static __always_inline void pod_add(__u32 index, __u32 generation, __s32 open, __s32 half_open)
{
	struct pod *p = bpf_map_lookup_elem(&pods, &index);
	if (!p || p->generation != generation)
		return;
	if (open)
		__sync_fetch_and_add(&p->open, open);
	if (half_open)
		__sync_fetch_and_add(&p->half_open, half_open);
	if (open > 0)
		__sync_fetch_and_add(&p->new_flows, 1);
}

/* Takes a flow on to a later state, and out of its pod's counts. True for exactly one caller. */
static __always_inline bool flow_leave(struct flow *f, __u32 to)
{
	/* States only go forward, so that this many tries are enough. */
	for (int i = 0; i < 3; i++) {
		__u32 was = *(volatile __u32 *)&f->state;
		if (was >= to)
			return false;
		if (__sync_val_compare_and_swap(&f->state, was, to) != was)
			continue;
		if (was == FLOW_ESTABLISHED)
			pod_add(f->pod, f->generation, -1, 0);
		else if (was == FLOW_HALF_OPEN)
			pod_add(f->pod, f->generation, 0, -1);
		return true;
	}
	return false;
}

/* Removes a flow's entry, unless somebody else just does. */
static __always_inline void flow_forget(const struct flow_key *k, struct flow *f)
{
	if (flow_leave(f, FLOW_GONE))
		bpf_map_delete_elem(&flows, k);
}

/* The half-open ring of a service address. Others' floods are in other rings, mostly. */
static __always_inline __u32 shard_of(const struct flow_key *k)
{
	return (k->service.w[3] ^ (k->service.w[3] >> 24) ^ k->service_port ^ (k->service_port >> 8)) & (RING_SHARDS - 1);
}

/* What is kept of a half-open flow's SYN; NULL if nothing is. */
static __always_inline struct kept *kept_of(const struct flow_key *k, const struct flow *f)
{
	__u32 at = shard_of(k) * ring_size + (((f->stamp - 1) >> 1) & (ring_size - 1));
	struct kept *s = f->stamp ? bpf_map_lookup_elem(&kepts, &at) : NULL;
	return s && s->stamp == f->stamp ? s : NULL;
}

/* Wakes whoever looks for SYNs that are not answered, unless it looks already. */
static __always_inline void want_watch(void)
{
	__u32 zero = 0;
	struct watch *w = bpf_map_lookup_elem(&watches, &zero);
	if (w && !*(volatile __u32 *)&w->on && !__sync_lock_test_and_set(&w->on, 1))
		notify(EVENT_SYN, 0, 0, 0, true, NULL);
}

/* Takes the next place in a ring of short-lived flows for a flow; the flow that had the place is forgotten
 * if it is still short-lived. Half-open and closed flows are bounded this way without a timer, and a flood
 * on one service can only push out flows of its own shard. Returns the flow's stamp. */
__noinline int ring_take(__u32 kind, const struct flow_key *k)
{
	if (!k || kind > RING_CLOSED)
		return 0;
	__u32 ring = kind * RING_SHARDS + shard_of(k);
	__u64 *head = bpf_map_lookup_elem(&ring_heads, &ring);
	if (!head)
		return 0;
	__u32 pos = __sync_fetch_and_add(head, 1);
	__u32 at = ring * ring_size + (pos & (ring_size - 1));
	/* Tells places of both rings apart: a flow goes from one to the other. */
	__u32 stamp = (pos << 1 | kind) + 1;
	struct ring_slot *slot = bpf_map_lookup_elem(&short_lived, &at);
	if (!slot)
		return 0;
	if (slot->stamp) {
		struct flow_key old = slot->flow;
		struct flow *f = bpf_map_lookup_elem(&flows, &old);
		if (f && f->stamp == slot->stamp) {
			/* Not flow_forget: the handshake may be completed at this moment. */
			if (__sync_val_compare_and_swap(&f->state, FLOW_HALF_OPEN, FLOW_CLOSED) == FLOW_HALF_OPEN)
				pod_add(f->pod, f->generation, 0, -1);
			if (__sync_val_compare_and_swap(&f->state, FLOW_CLOSED, FLOW_GONE) == FLOW_CLOSED) {
				bpf_map_delete_elem(&flows, &old);
				count(COUNT_EVICTED);
			}
		}
	}
	slot->flow = *k;
	slot->stamp = stamp;
	return stamp;
}

/* Ends a flow; its entry stays a while for stragglers. */
__noinline int flow_close(const struct flow_key *k, struct flow *f)
{
	if (!k || !f)
		return -1;
	if (flow_leave(f, FLOW_CLOSED))
		f->stamp = ring_take(RING_CLOSED, k);
	return 0;
}

/* Whether a new SYN on a known 5-tuple begins a new flow (the client uses its port again). A SYN that differs from an
 * established flow's goes to its pod, which answers as RFC 5961, 4.2 says. */
static __always_inline bool flow_reusable(const struct flow *f, const struct packet *p)
{
	return f->state >= FLOW_CLOSED || (f->seen & SEEN_FINS) == SEEN_FINS ||
	       (f->state == FLOW_HALF_OPEN && f->isn != p->seq);
}

/* Makes the entry of a new flow to a pod, in place of one that may be used again. Returns 0 if the flow's entry
 * is there now: it may be one that another CPU made for the same SYN, to another pod. -1: there is no room. */
__noinline int flow_open(const struct flow_key *k, const struct packet *p, const struct origin *o, __u32 index)
{
	struct pod *pod = bpf_map_lookup_elem(&pods, &index);
	if (!k || !p || !o || !pod)
		return -1;
	struct flow *old = bpf_map_lookup_elem(&flows, k);
	if (old) {
		if (!flow_reusable(old, p))
			return 0;
		if (!flow_leave(old, FLOW_GONE))
			return 0;
		bpf_map_delete_elem(&flows, k);
	}
	__u64 now = bpf_ktime_get_coarse_ns();
	struct flow f = {
		.state = FLOW_HALF_OPEN,
		.pod = index,
		.generation = pod->generation,
		.isn = p->seq,
		.origin = *o,
		.seq = {p->seq + 1 + p->payload, 0},
		.seen = pod->node && o->path == PATH_NIC ? SEEN_BLIND : 0,
		.wscale = {p->wscale, NO_WSCALE},
		.syn_window = p->window,
		.created = now,
		.last = now,
	};
	f.stamp = ring_take(RING_HALF_OPEN, k);
	long err = bpf_map_update_elem(&flows, k, &f, BPF_NOEXIST);
	if (err == -17) /* EEXIST */
		return 0;
	if (err) {
		count(COUNT_FLOWS_FULL);
		return -1;
	}
	__sync_fetch_and_add(&pod->half_open, 1);
	return 0;
}

/* Completes a flow's handshake. */
static __always_inline void flow_establish(struct flow *f)
{
	f->stamp = 0;
	if (__sync_val_compare_and_swap(&f->state, FLOW_HALF_OPEN, FLOW_ESTABLISHED) == FLOW_HALF_OPEN)
		pod_add(f->pod, f->generation, 1, -1);
}

/* Counts a packet that goes on. */
static __always_inline void account(__u32 index, struct flow *f, int dir, __u32 ip_len)
{
	struct traffic *t = bpf_map_lookup_elem(&pod_traffic, &index);
	if (!t)
		return;
	/* The coarse clock goes on with the ticks. To read it anew for each packet would be a call. */
	__u64 tick = bpf_jiffies64();
	if (t->tick != tick) {
		t->tick = tick;
		t->last = bpf_ktime_get_coarse_ns();
	}
	if (f->last != t->last)
		f->last = t->last;
	t->bytes[dir] += ip_len;
	t->packets[dir] += 1;
}
