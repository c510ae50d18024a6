/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* SYN floods. While the ring of half-open flows is full of young ones, a SYN gets no entry in `flows`: its pod follows
 * from the client's address and port, and `syn_records` keeps what its SYN-ACK needs, as long as there is room. The
 * flow is entered at the client's ACK. If the record is lost by then, the choice of the pod is made again, and the pod
 * judges the ACK by its SYN cookie: a wrong guess ends by its RST. */
#pragma once

#include "source.h"
#include "track.h"

#define HALF_OPEN_GRACE 2000000000ull /* ns for which a half-open flow keeps its slot against a newer one */
#define FLOOD_MEMORY 10000000000ull   /* ns for which a service counts as flooded after a SYN without an entry */
#define FLOOD_WSCALE 14               /* window scale of flows whose SYN is not remembered: the largest */

/* Whether the flow in a slot of the half-open ring still needs it. */
static __always_inline bool slot_is_needed(__u32 at, __u64 now)
{
	struct ring_slot *slot = bpf_map_lookup_elem(&ring_slots, &at);
	if (!slot || !slot->stamp)
		return false;
	struct flow_key k = slot->flow;
	struct flow *f = bpf_map_lookup_elem(&flows, &k);
	/* Another CPU may have created it after now. */
	return f && f->stamp == slot->stamp && f->state == FLOW_HALF_OPEN &&
	       (__s64)(now - f->created) < (__s64)HALF_OPEN_GRACE;
}

/* Whether a SYN should get no entry, because the next two slots of its ring are needed by young half-open flows. One
 * of two may belong to a client that has vanished; it is passed over. The result holds for the service until the
 * clock ticks, because looking at two flows costs more than everything else that the gate does with a SYN of a
 * flood. */
__noinline int half_open_crowded(const struct flow_key *k, __u32 service)
{
	__u64 *last = bpf_map_lookup_elem(&floods, &service), now = bpf_ktime_get_coarse_ns();
	if (last && *last == now)
		return 1;
	if (!k)
		return 0;
	__u32 ring = ring_shard(k);
	__u64 *head = bpf_map_lookup_elem(&ring_heads, &ring);
	if (!head)
		return 0;
	__u32 pos = *(volatile __u64 *)head;
	if (!slot_is_needed(ring * ring_size + (pos & (ring_size - 1)), now))
		return 0;
	__sync_fetch_and_add(head, 1);
	if (!slot_is_needed(ring * ring_size + ((pos + 1) & (ring_size - 1)), now))
		return 0;
	__sync_fetch_and_add(head, 1);
	return 1;
}

/* State of choose_by_hash's loop. */
struct hash_choice {
	const struct service_status *st; /* the service */
	__u32 service;                   /* service index */
	__u32 hash;                      /* of the flow */
	__u32 greatest;                  /* weight of the best candidate so far */
	int best;                        /* its pod index, or NO_POD */
};

/* Weighs pod i of the service for a flow. */
static long weigh_step(__u32 i, void *ctx)
{
	struct hash_choice *c = ctx;
	__u32 candidate = c->st->pod[i & (MAX_PODS_PER_SERVICE - 1)];
	struct pod *p = bpf_map_lookup_elem(&pods, &candidate);
	if (!p || p->state != POD_SERVING || p->service != c->service)
		return 0;
	__u32 weight = hash_client(c->hash ^ hash_client((__u32)p->id ^ (__u32)(p->id >> 32))) >> 1;
	if (!p->node || !(c->st->flags & SERVICE_PREFER_LOCAL))
		weight |= 0x80000000;
	if (c->best == NO_POD || weight > c->greatest) {
		c->greatest = weight;
		c->best = candidate;
	}
	return 0;
}

/* Chooses a serving pod by a flow's client address and port alone (rendezvous hashing), so that the choice can be made
 * again, and few clients change pods when a pod comes or goes. by is what chooser returns. Returns its index, or
 * NO_POD. */
__noinline int choose_by_hash(const struct flow_key *k, __u32 service, __be32 by)
{
	struct service_status *st = status_of(service);
	if (!k || !st)
		return NO_POD;
	int front = st->pods ? front_of(st, service, 0, by) : NO_POD;
	if (front != NO_POD)
		return front;
	if (st->flags & SERVICE_AFFINITY)
		return pick_backend(service, 0, k->client.w[3]);
	__u32 n = st->pods;
	struct hash_choice c = {.st = st, .service = service, .hash = hash_flow(k), .best = NO_POD};
	bpf_loop(n < MAX_PODS_PER_SERVICE ? n : MAX_PODS_PER_SERVICE, weigh_step, &c, 0);
	return c.best;
}

/* Whether a service has recently been sent SYNs without an entry. */
static __always_inline bool is_flooded(__u32 service)
{
	__u64 *last = bpf_map_lookup_elem(&floods, &service);
	/* Another CPU may note a later tick than this one has read. */
	return last && *last && (__s64)(bpf_ktime_get_coarse_ns() - *last) < (__s64)FLOOD_MEMORY;
}

/* Records the SYN of a flow that gets no entry, and that its service is flooded. */
__noinline int record_syn(const struct flow_key *k, const struct packet *p, const struct origin *o, __u32 index)
{
	struct pod *pod = bpf_map_lookup_elem(&pods, &index);
	if (!k || !p || !o || !pod)
		return 0;
	__u32 service = pod->service;
	__u64 *last = bpf_map_lookup_elem(&floods, &service), now = bpf_ktime_get_coarse_ns();
	write_record(k, p->seq, o, index, pod->generation);
	if (last && *last != now)
		*last = now;
	ask_pod(index);
	count(COUNT_FLOODED_SYNS);
	return 0;
}

/* Enters the flow of a client's segment that completes, or comes after, the handshake with a pod. Anyone can send
 * such a segment: the flow does not count as use of the pod until the pod has confirmed it. guessed is SEEN_GUESSED
 * or 0. The segment is yet to be followed. Returns 0 if there is an entry now. */
__noinline int enter_flooded(const struct flow_key *k, const struct packet *p, const struct origin *o, __u32 index,
			     __u32 guessed)
{
	struct pod *pod = bpf_map_lookup_elem(&pods, &index);
	if (!k || !p || !o || !pod || !share_has_room(k))
		return -1;
	__u64 now = bpf_ktime_get_coarse_ns();
	struct flow f = {
		.state = FLOW_HALF_OPEN,
		.pod = index,
		.generation = pod->generation,
		.isn = p->seq - 1,
		.origin = *o,
		.seq = {p->seq, p->ack},
		.ack = {p->ack - 1, p->seq},
		.edge = {p->ack + ((__u32)p->window << FLOOD_WSCALE), p->seq + (0xffff << FLOOD_WSCALE)},
		.seen = SEEN_SYNACK | SEEN_UNPROVEN | guessed | (pod->node && o->path == PATH_NIC ? SEEN_BLIND : 0),
		.wscale = {FLOOD_WSCALE, FLOOD_WSCALE},
		.syn_window = p->window,
		.created = now,
		.last = now,
	};
	int added = flow_insert(k, &f, pod);
	if (added > 0)
		count(COUNT_FLOODED_ACKS);
	return added < 0 ? -1 : 0;
}

/* Edge node: enters the flow of a client's segment that has no entry, if it can complete the handshake of a SYN without
 * one. Its pod is the recorded one, or, if there is no record, chosen again. moves: the flow may be one that another edge
 * node has entered. Then the pod is chosen only once, until it refuses the segment (forget_guess). Returns 0 if there is
 * an entry now. */
__noinline int enter_by_ack(const struct flow_key *k, const struct packet *p, const struct origin *o, __u32 moves)
{
	if (!k || !p || !o || (p->flags & (TCP_ACK | TCP_SYN | TCP_RST)) != TCP_ACK)
		return -1;
	struct service *s = service_of_flow(k);
	if (!s || !is_flooded(s->index) || is_denied(s, k))
		return -1;
	struct syn_record *r = find_record(k);
	int pod = NO_POD;
	__u32 guessed = 0;
	if (r && r->isn + 1 == p->seq && lookup_pod(r->pod, r->generation)) {
		pod = r->pod;
	} else if (!moves || !bpf_map_lookup_elem(&pending_queries, k)) {
		pod = choose_by_hash(k, s->index, chooser(o, k->client.w[3]));
		guessed = moves ? SEEN_GUESSED : 0;
	}
	struct origin from = *o;
	distrust(&from, s);
	return pod == NO_POD ? -1 : enter_flooded(k, p, &from, pod, guessed);
}

/* Edge node: forgets a flow that was entered by a guess, if the pod refuses its segment by the RST with which a kernel
 * answers for a connection that it does not know. The flow may be another pod's: the home nodes are queried with the
 * client's next segment. Returns 1 then: the client does not get the RST. */
__noinline int forget_guess(const struct flow_key *k, struct flow *f, const struct packet *p)
{
	if (!k || !f || !p || (f->seen & (SEEN_GUESSED | SEEN_UNPROVEN)) != (SEEN_GUESSED | SEEN_UNPROVEN) ||
	    (p->flags & (TCP_RST | TCP_ACK)) != TCP_RST)
		return 0;
	struct pending_query q = {.origin = f->origin};
	flow_forget(k, f);
	bpf_map_update_elem(&pending_queries, k, &q, BPF_ANY);
	return 1;
}

/* Home node: enters the flow of a client's segment that has no entry here. The edge node has chosen the pod. Returns 0
 * if there is an entry now. */
__noinline int enter_at_home(const struct flow_key *k, const struct packet *p, const struct origin *o, __u32 index)
{
	struct pod *pod = bpf_map_lookup_elem(&pods, &index);
	if (!k || !p || !o || !pod || pod->node || (p->flags & (TCP_ACK | TCP_SYN | TCP_RST)) != TCP_ACK ||
	    !is_flooded(pod->service))
		return -1;
	return enter_flooded(k, p, o, index, 0);
}
