/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The flow table: entries, and the counts derived from them. Several CPUs may handle one entry at once. Its state is
 * changed by compare-and-swap, and only the CPU that succeeds applies what follows from the change. The larger
 * functions are global, so that the verifier checks each of them once. */
#pragma once

#include "frozen.h"
#include "records.h"
#include "share.h"

#define RING_HALF_OPEN 0
#define RING_CLOSED 1

#define EEXIST 17 /* <asm-generic/errno-base.h> */

/* Adds to the flow counts of a pod, unless the pod is gone. */
__noinline int pod_count_flows(__u32 index, __u32 generation, __s32 open, __s32 half_open)
{
	struct pod *p = lookup_pod(index, generation);
	if (!p)
		return 0;
	if (open)
		__sync_fetch_and_add(&p->open, open);
	if (half_open)
		__sync_fetch_and_add(&p->half_open, half_open);
	return 0;
}

/* Counts a flow as new, once both sides have taken part in it. */
__noinline int count_new_flow(const struct flow *f)
{
	struct pod *p = f ? pod_of_flow(f) : NULL;
	if (p)
		__sync_fetch_and_add(&p->new_flows, 1);
	return 0;
}

_Static_assert(offsetof(struct flow, state) == 0 && offsetof(struct flow, isn) == 4, "flow_word: state, then isn");

/* Returns the state of a flow and, in the upper half, its initial sequence number. They are changed together, because
 * another CPU may delete an entry at any time and enter another flow in its memory. That has another number. */
static __always_inline __u64 flow_word(const struct flow *f)
{
	return *(volatile const __u64 *)&f->state;
}

/* Changes the state of a flow, if it is still as flow_word has returned it. */
static __always_inline bool flow_swap(struct flow *f, __u64 word, __u32 to)
{
	return __sync_val_compare_and_swap((__u64 *)&f->state, word, (word >> 32) << 32 | to) == word;
}

/* Moves a flow forward to a later state, if it is still as flow_word has returned it, and removes it from the
 * counts. */
static __always_inline bool flow_advance_from(const struct flow_key *k, struct flow *f, __u64 word, __u32 to)
{
	__u32 was = word, pod = f->pod, generation = f->generation;
	if (was >= to || !flow_swap(f, word, to))
		return false;
	if (was == FLOW_ESTABLISHED) {
		pod_count_flows(pod, generation, -1, 0);
		share_add(k, -1);
	} else if (was == FLOW_HALF_OPEN) {
		pod_count_flows(pod, generation, 0, -1);
	}
	return true;
}

/* Moves a flow forward to a later state and removes it from the counts. True for exactly one caller. */
static __always_inline bool flow_advance(const struct flow_key *k, struct flow *f, __u32 to)
{
	/* States only move forward, so three attempts suffice. */
	for (int i = 0; i < 3; i++) {
		__u64 word = flow_word(f);
		if ((__u32)word >= to)
			return false;
		if (flow_advance_from(k, f, word, to))
			return true;
	}
	return false;
}

/* Removes a flow's entry, unless another CPU is doing so. */
static __always_inline void flow_forget(const struct flow_key *k, struct flow *f)
{
	if (flow_advance(k, f, FLOW_GONE))
		bpf_map_delete_elem(&flows, k);
}

/* Returns the ring shard of a flow's service address. */
static __always_inline __u32 ring_shard(const struct flow_key *k)
{
	return (k->service.w[3] ^ (k->service.w[3] >> 24) ^ k->service_port ^ (k->service_port >> 8)) &
	       (RING_SHARDS - 1);
}

/* Returns the index into `syn_backups` for a half-open flow with a stamp. */
static __always_inline __u32 backup_index(const struct flow_key *k, __u32 stamp)
{
	return ring_shard(k) * ring_size + (((stamp - 1) >> 1) & (ring_size - 1));
}

/* Returns the backup of a half-open flow's SYN, or NULL if there is none. */
static __always_inline struct syn_backup *find_syn_backup(const struct flow_key *k, const struct flow *f)
{
	__u32 at = backup_index(k, f->stamp);
	struct syn_backup *s = f->stamp ? bpf_map_lookup_elem(&syn_backups, &at) : NULL;
	return s && s->stamp == f->stamp ? s : NULL;
}

/* Makes the daemon look for unanswered SYNs, if it does not do so already. */
static __always_inline void start_syn_watch(void)
{
	__u32 zero = 0;
	struct syn_watcher *w = bpf_map_lookup_elem(&syn_watch, &zero);
	struct event e = {.type = EVENT_SYN};
	if (w && !*(volatile __u32 *)&w->on && !__sync_lock_test_and_set(&w->on, 1))
		notify(&e, true, NULL);
}

/* Gives a flow the next slot in the ring of its shard. The flow that had the slot is removed if it is still
 * half-open or closed. That bounds such flows without a timer, and a flood on one service only evicts flows of its
 * own shard. Returns the flow's stamp, or 0 if it got no slot. */
__noinline int ring_claim_slot(__u32 kind, const struct flow_key *k)
{
	if (!k || kind > RING_CLOSED)
		return 0;
	__u32 ring = kind * RING_SHARDS + ring_shard(k);
	__u64 *head = bpf_map_lookup_elem(&ring_heads, &ring);
	if (!head)
		return 0;
	__u32 pos = __sync_fetch_and_add(head, 1);
	__u32 at = ring * ring_size + (pos & (ring_size - 1));
	/* The lowest bit distinguishes the kinds, as a flow moves from one ring to the other. The daemon computes
	 * stamps as well (synwatch.go). */
	__u32 stamp = (pos << 1 | kind) + 1;
	struct ring_slot *slot = bpf_map_lookup_elem(&ring_slots, &at);
	if (!slot)
		return 0;
	if (slot->stamp) {
		struct flow_key old = slot->flow;
		struct flow *f = bpf_map_lookup_elem(&flows, &old);
		__u64 word = f ? flow_word(f) : 0;
		/* If the handshake completes at this moment, the flow stays. */
		if (f && f->stamp == slot->stamp && (__u32)word != FLOW_ESTABLISHED &&
		    flow_advance_from(&old, f, word, FLOW_GONE)) {
			if ((__u32)word == FLOW_HALF_OPEN)
				write_record(&old, f->isn, &f->origin, f->pod, f->generation);
			bpf_map_delete_elem(&flows, &old);
			count(COUNT_EVICTED);
		}
	}
	slot->flow = *k;
	slot->stamp = stamp;
	return stamp;
}

/* Closes a flow; its entry stays for stragglers. */
__noinline int flow_close(const struct flow_key *k, struct flow *f)
{
	if (!k || !f)
		return -1;
	if (flow_advance(k, f, FLOW_CLOSED))
		f->stamp = ring_claim_slot(RING_CLOSED, k);
	return 0;
}

/* Whether a SYN on the 5-tuple of a known flow starts a new flow, because the client reuses its port. A different
 * SYN on a flow that the pod has accepted is the pod's to answer (RFC 9293, 3.10.7.4; RFC 5961, 4.2), or one forged SYN
 * would take the flow from its client. */
static __always_inline bool flow_reusable(const struct flow *f, const struct packet *p)
{
	return f->state >= FLOW_CLOSED || (f->seen & SEEN_FINS) == SEEN_FINS ||
	       (f->state == FLOW_HALF_OPEN && f->isn != p->seq && !(f->seen & SEEN_SYNACK));
}

/* Removes the flow on the 5-tuple of a SYN that starts a new one. Returns false if the flow is not reusable, or if
 * another CPU has changed it meanwhile. */
static __always_inline bool flow_replace(const struct flow_key *k, struct flow *f, const struct packet *p)
{
	__u64 word = flow_word(f); /* before the next line, so that both are about the same flow */
	if (!flow_reusable(f, p) || !flow_advance_from(k, f, word, FLOW_GONE))
		return false;
	bpf_map_delete_elem(&flows, k);
	return true;
}

#define NOT_LEFT 0    /* there is no such flow */
#define LEFT_OPEN 1   /* it is open */
#define LEFT_CLOSED 2 /* it has ended */

/* Finds the flow that a pod has with a flow's client address and port at an address that its service has left, and
 * changes the key to that flow's. Returns one of the above. */
__noinline int find_left_flow(struct flow_key *k, __u32 index)
{
	struct pod *pod = bpf_map_lookup_elem(&pods, &index);
	if (!k || !pod)
		return NOT_LEFT;
	__u32 service = pod->service;
	struct left_list *left = bpf_map_lookup_elem(&left_addresses, &service);
#pragma clang loop unroll(disable)
	for (int i = 0; left && i < MAX_LEFT && i < left->n; i++) {
		k->service = left->address[i].addr;
		k->service_port = left->address[i].port;
		struct flow *f = bpf_map_lookup_elem(&flows, k);
		if (f && f->pod == index && f->generation == pod->generation)
			return f->state < FLOW_CLOSED ? LEFT_OPEN : LEFT_CLOSED;
	}
	return NOT_LEFT;
}

/* Whether the pod cannot distinguish a new flow from an open one whose client has the same address and port and uses an
 * address that the service has left. */
static __always_inline bool collides_with_left(const struct flow_key *k, const struct pod *pod, __u32 index)
{
	struct flow_key left = *k;
	return pod->moved && find_left_flow(&left, index) == LEFT_OPEN;
}

/* Adds the entry of a half-open flow to a pod. Returns 1 if it did, 0 if there is one already, which another CPU has
 * just added, or -1 if there is no room. */
static __always_inline int flow_insert(const struct flow_key *k, const struct flow *f, struct pod *pod)
{
	long err = bpf_map_update_elem(&flows, k, f, BPF_NOEXIST);
	if (err == -EEXIST)
		return 0;
	if (err) {
		count(COUNT_FLOWS_FULL);
		return -1;
	}
	__sync_fetch_and_add(&pod->half_open, 1);
	return 1;
}

/* Enters a new flow to a pod in place of any reusable one. Returns 0 if there is an entry now, which may be one that
 * another CPU made for the same SYN and another pod, or -1 if there is no room, or not before another flow has ended. */
__noinline int flow_open(const struct flow_key *k, const struct packet *p, const struct origin *o, __u32 index)
{
	struct pod *pod = bpf_map_lookup_elem(&pods, &index);
	if (!k || !p || !o || !pod)
		return -1;
	struct flow *old = bpf_map_lookup_elem(&flows, k);
	if (old && !flow_replace(k, old, p))
		return 0;
	if (!share_has_room(k) || collides_with_left(k, pod, index))
		return -1;
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
	f.stamp = ring_claim_slot(RING_HALF_OPEN, k);
	return flow_insert(k, &f, pod) < 0 ? -1 : 0;
}

/* Completes a flow's handshake. */
static __always_inline void flow_establish(const struct flow_key *k, struct flow *f)
{
	__u64 word = flow_word(f);
	f->stamp = 0;
	if ((__u32)word != FLOW_HALF_OPEN || !flow_swap(f, word, FLOW_ESTABLISHED))
		return;
	pod_count_flows(f->pod, f->generation, 1, -1);
	/* A program that accepts it may be the one to speak first. */
	ask_pod(f->pod);
	if (!(f->seen & SEEN_UNPROVEN))
		count_new_flow(f);
	share_add(k, 1);
}

/* Reads where a flow's replies go. While shortcut_from_pod changes it, the path and the other fields fit each other:
 * these are read at an address that depends on the path, and no CPU does that before it has read the path. */
static __always_inline void read_origin(const struct flow *f, struct origin *o)
{
	const struct origin *from = &f->origin;
	__u64 path = *(volatile const __u32 *)&from->path, zero = path;
	asm volatile("%[zero] &= 0\n\t%[from] += %[zero]" : [from] "+r"(from), [zero] "+r"(zero));
	*o = *from;
	o->path = path;
}

/* Whether a device is that of the pod on this node that is a flow's client. */
static __always_inline bool is_from_client_pod(const struct flow *f, __u32 ifindex)
{
	return f->origin.path == PATH_POD && f->origin.ifindex == ifindex;
}

/* Counts a packet of a flow that is sent on. genuine is what track says of it. Only genuine segments keep a flow from
 * aging, and of a pod only those that are no bare ACKs, as anyone can provoke these (RFC 5961). Those of a handshake, or
 * of a flow that the pod has not confirmed, do not count as use of the pod. */
static __always_inline void account(struct flow *f, const struct packet *p, int dir, int genuine)
{
	__u32 index = f->pod;
	struct traffic *t = bpf_map_lookup_elem(&pod_traffic, &index);
	if (!t)
		return;
	/* The coarse clock advances with the tick: reading it only then saves a helper call a packet. */
	__u64 tick = bpf_jiffies64();
	if (t->tick != tick) {
		t->tick = tick;
		t->now = bpf_ktime_get_coarse_ns();
	}
	bool bare = dir == OUT && !p->payload && !(p->flags & (TCP_SYN | TCP_FIN | TCP_RST));
	if (genuine && !bare) {
		if (f->last != t->now)
			f->last = t->now;
		if (f->state >= FLOW_ESTABLISHED && t->last != t->now && !(f->seen & SEEN_UNPROVEN))
			t->last = t->now;
	}
	if (t->asked != t->now)
		note_asked(t, f, p, dir, genuine);
	t->bytes[dir] += p->ip_len;
	t->packets[dir] += 1;
}

/* Counts a client's packet that is sent on to a pod, as account does, and has a frozen pod thawed if its program is
 * asked something. */
static __always_inline void account_in(struct flow *f, const struct packet *p, const struct pod *pod, int genuine)
{
	account(f, p, IN, genuine);
	if (is_frozen(pod))
		thaw_for(f, p, genuine);
}
