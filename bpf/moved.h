/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Flows whose client uses another edge node than before, because its service address has moved. The new edge node
 * does not know them, so it sends a copy of the client's segment to every home node of the service
 * (ENCAP_FLOW_QUERY). The one that has the flow sends its copy back (ENCAP_FLOW_CLAIM). The edge node then enters
 * the flow and sends this and all further segments there. Finally the home node informs the previous edge node, if
 * it still exists (ENCAP_CLOSED). */
#pragma once

#include "icmp.h"

#define QUERY_TIMEOUT 200000000ull   /* ns without a claim after which a flow's next segment begins a new round */
#define QUERY_ROUNDS 3               /* rounds without a claim after which a segment gets a RST: packets get lost */
#define QUERY_EXPIRY 120000000000ull /* ns after which the ports belong to a new connection (RFC 6298, 2.5) */
#define QUERY_WINDOW 100000000ull    /* ns over which the query budget is counted */
#define MAX_QUERIES 1024             /* packets in one such window */
#define MAX_SERVICE_QUERIES 256      /* of them for one service, so that a flood on some leaves room for others */
#define FAR (1u << 30)               /* in sequence space: beyond any window (RFC 7323, 2.3) */

/* Counts packets in a window of queries; false if that exceeds a limit. If two CPUs start a window at once, it may be
 * exceeded by a few. */
static __always_inline bool count_queries(struct query_count *b, __u32 packets, __u32 max, __u64 window)
{
	if (b->window != window) {
		b->window = window;
		b->packets = 0;
	}
	return __sync_fetch_and_add(&b->packets, packets) + packets <= max;
}

/* Takes copies of a packet, which may be of several segments, out of the query budgets of its service and of this node;
 * false if there is not enough left. The service comes first, so that what exceeds its share spends none of others. */
static __always_inline bool spend_query_budget(struct __sk_buff *skb, __u32 service, __u32 copies, __u64 now)
{
	__u32 segments = skb->gso_segs, packets = segments > 1 ? copies * segments : copies;
	__u32 zero = 0;
	struct query_count *node = bpf_map_lookup_elem(&query_budget, &zero);
	struct query_count *share = bpf_map_lookup_elem(&query_shares, &service);
	__u64 window = now / QUERY_WINDOW;
	return node && share && count_queries(share, packets, MAX_SERVICE_QUERIES, window) &&
	       count_queries(node, packets, MAX_QUERIES, window);
}

/* New edge node: sends a copy of a packet to each home node. A clone cannot be redirected to a neighbor that is not yet
 * resolved. So each goes through wangell0, on which it comes back to query_marked_home. */
static __always_inline void send_queries(struct __sk_buff *skb, const struct home_node_list *h)
{
	count(COUNT_ASKED);
	for (int i = 0; i < MAX_HOMES && i < h->n; i++) {
		skb->mark = i + 1;
		bpf_clone_redirect(skb, wangell_ifindex, BPF_F_INGRESS);
	}
}

/* New edge node: asks the home nodes for the flow of a client's segment. */
static __always_inline int query_homes(struct __sk_buff *skb, const struct packet *p, const struct flow_key *k,
				       __u32 service)
{
	struct home_node_list *h = bpf_map_lookup_elem(&home_nodes, &service);
	struct pending_query *before = bpf_map_lookup_elem(&pending_queries, k);
	__u64 now = bpf_ktime_get_ns(), age = before && before->at ? now - before->at : QUERY_EXPIRY;
	__u32 rounds = age < QUERY_EXPIRY ? before->rounds : 0;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	if ((void *)(eth + 1) > end)
		return TCX_DROP;
	struct pending_query q = {
		.at = age < QUERY_TIMEOUT ? before->at : now,
		.rounds = age < QUERY_TIMEOUT ? rounds : rounds + 1,
	};
	origin_from_frame(&q.origin, eth, skb->ifindex, PATH_NIC);
	/* A segment with neither ACK nor RST does not belong to an open connection (RFC 9293, 3.10.7.4). */
	if (!h || !(p->flags & (TCP_ACK | TCP_RST)) || (p->flags & TCP_SYN) ||
	    (age >= QUERY_TIMEOUT && rounds >= QUERY_ROUNDS)) {
		if (before)
			bpf_map_delete_elem(&pending_queries, k);
		count(COUNT_STRAY);
		return reply_reset(skb, p, true);
	}
	if (!spend_query_budget(skb, service, h->n, now)) {
		count(COUNT_ASK_LIMIT);
		return TCX_DROP;
	}
	bpf_map_update_elem(&pending_queries, k, &q, BPF_ANY);
	send_queries(skb, h);
	return TCX_DROP;
}

/* New edge node: sends a copy of a client's segment to the home node that its mark selects. */
static __always_inline int query_marked_home(struct __sk_buff *skb, const struct packet *p, __u32 service)
{
	struct home_node_list *h = bpf_map_lookup_elem(&home_nodes, &service);
	__u32 i = skb->mark - 1;
	if (!h || i >= MAX_HOMES || i >= h->n)
		return TCX_DROP;
	skb->mark = 0;
	struct encap_meta m = {
		.node = h->node[i],
		.type = ENCAP_FLOW_QUERY,
		.len = p->ip_len,
		.hash = flow_hash(p->saddr, p->sport),
	};
	return encapsulate(skb, &m);
}

/* Handles a client's segment in gate_moved: one of an unknown flow, a copy of such a segment, one whose flow was just
 * taken over, or one whose flow has its home here and used another edge node so far. */
static __always_inline int handle_moved(struct __sk_buff *skb, const struct packet *p)
{
	struct flow_key k;
	flow_key_from_client(&k, p);
	struct service *s = service_of_flow(&k);
	if (!s)
		return TCX_DROP;
	if (skb->ifindex == wangell_ifindex)
		return query_marked_home(skb, p, s->index);
	struct flow *f = bpf_map_lookup_elem(&flows, &k);
	if (!f)
		return query_homes(skb, p, &k, s->index);
	struct pod *pod = pod_of_flow(f);
	if (!pod)
		return TCX_DROP;
	if (!pod->node)
		return deliver_and_close_at(skb, p, pod, f->origin.edge, ENCAP_MOVED);
	account(f, p, IN, track(&k, f, p, IN));
	return send_to_node(skb, p, pod, false);
}

/* Handles an ICMP error about a segment of an unknown flow in gate_moved, or a copy of such an error. The home node
 * that has the flow checks it and gives it to the pod. */
static __always_inline int handle_error_of_unknown_flow(struct __sk_buff *skb, const struct packet *p)
{
	struct flow_key k;
	struct iphdr *inner;
	struct tcphdr *tcp;
	if (!find_quoted(skb, p, &k, &inner, &tcp))
		return TCX_DROP;
	struct service *s = service_of_flow(&k);
	__u32 service = s ? s->index : 0;
	struct home_node_list *h = s ? bpf_map_lookup_elem(&home_nodes, &service) : NULL;
	if (!h)
		return TCX_DROP;
	if (skb->ifindex == wangell_ifindex)
		return query_marked_home(skb, p, service);
	if (spend_query_budget(skb, service, h->n, bpf_ktime_get_ns()))
		send_queries(skb, h);
	else
		count(COUNT_ASK_LIMIT);
	return TCX_DROP;
}

/* Encodes a window scale in four bits of encap_header.scales. */
static __always_inline __u32 wscale_to_nibble(__u8 wscale)
{
	return wscale == NO_WSCALE ? 15 : wscale & 15;
}

/* Decodes a window scale. */
static __always_inline __u8 wscale_from_nibble(__u32 nibble)
{
	return (nibble & 15) == 15 ? NO_WSCALE : nibble & 15;
}

/* Home node: enters the flow of a queried segment, if it completes the handshake of a SYN of a flood that this node has
 * recorded and the edge node has not. Returns the flow, or NULL. */
static __always_inline struct flow *enter_recorded(const struct flow_key *k, const struct packet *p,
						   const struct encap_meta *m)
{
	struct origin o = {.path = path_by_edge(m), .edge = m->node};
	struct syn_record *r = find_record(k);
	if (!r || r->isn + 1 != p->seq || !lookup_pod(r->pod, r->generation) || enter_at_home(k, p, &o, r->pod))
		return NULL;
	return bpf_map_lookup_elem(&flows, k);
}

/* Home node: answers a query if the flow's pod is here; stays silent otherwise. */
__noinline int answer_flow_query(struct __sk_buff *skb, const struct packet *p, const struct encap_meta *m)
{
	struct flow_key k;
	if (!p || !m)
		return TCX_DROP;
	flow_key_from_client(&k, p);
	struct flow *f = bpf_map_lookup_elem(&flows, &k);
	if (!f)
		f = enter_recorded(&k, p, m);
	if (!f || !segment_fits_flow(f, p))
		return TCX_DROP;
	struct pod *pod = pod_of_flow(f);
	if (!pod || pod->node)
		return TCX_DROP;
	struct encap_meta claim = {
		.node = m->node,
		.type = ENCAP_FLOW_CLAIM,
		.flags = f->seen & SEEN_FINS,
		.len = p->ip_len,
		.hash = flow_hash(p->saddr, p->sport),
		.scales = wscale_to_nibble(f->wscale[IN]) | wscale_to_nibble(f->wscale[OUT]) << 4,
		.id = pod->id,
	};
	return encapsulate(skb, &claim);
}

/* New edge node: enters the flow of a client's segment that a home node has claimed. Returns 0 if there is an entry
 * now. */
__noinline int adopt_claimed_flow(const struct packet *p, const struct encap_meta *m)
{
	struct flow_key k;
	if (!p || !m)
		return -1;
	flow_key_from_client(&k, p);
	if (bpf_map_lookup_elem(&flows, &k)) {
		/* Queried again meanwhile: it must not count as unanswered when the client comes back some day. */
		bpf_map_delete_elem(&pending_queries, &k);
		return 0;
	}
	__u32 index;
	struct pod *pod = pod_by_name(&k, m->id, &index);
	struct pending_query *q = bpf_map_lookup_elem(&pending_queries, &k);
	if (!pod || pod->node != m->node || !q)
		return -1;
	__u64 now = bpf_ktime_get_coarse_ns();
	/* The pod's numbers are learned as for any flow whose replies bypass this node. */
	struct flow f = {
		.state = FLOW_ESTABLISHED,
		.pod = index,
		.generation = pod->generation,
		.isn = p->seq - 1,
		.origin = q->origin,
		.seq = {p->seq, p->ack},
		.ack = {p->ack, p->seq - FAR}, /* unknown: the client may retransmit earlier segments */
		.edge = {p->ack, p->seq},
		.fin_end = {p->seq + FAR, p->ack + FAR}, /* unknown, if there was a FIN */
		.seen = SEEN_SYNACK | SEEN_BLIND | (m->flags & SEEN_FINS),
		.wscale = {wscale_from_nibble(m->scales), wscale_from_nibble(m->scales >> 4)},
		.created = now,
		.last = now,
	};
	long err = bpf_map_update_elem(&flows, &k, &f, BPF_NOEXIST);
	if (err == -EEXIST)
		return 0;
	if (err) {
		count(COUNT_FLOWS_FULL);
		return -1;
	}
	__sync_fetch_and_add(&pod->open, 1);
	share_add(&k, 1);
	bpf_map_delete_elem(&pending_queries, &k);
	count(COUNT_MOVED);
	return 0;
}
