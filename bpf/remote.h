/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Flows whose pod is not on the client's edge node. The edge node has an entry, and sees all that the client sends;
 * the home node has one too, and sees everything. Replies to clients of the edge node's external interfaces go straight
 * to the client, except those that say where the flow stands: these go by the edge node, so that it knows as well. */
#pragma once

#include "encap.h"
#include "track.h"

/* Edge node: sends a client's packet to its pod's home node. */
__noinline int to_node(struct __sk_buff *skb, const struct packet *p, const struct pod *pod, bool inside)
{
	if (!p || !pod)
		return TCX_DROP;
	struct passage w = {.node = pod->node, .type = ENCAP_TO_POD, .flags = inside ? ENCAP_INSIDE : 0, .len = p->ip_len,
			    .id = pod->id};
	if (p->l4_len) { /* it is a segment */
		w.hash = flow_hash(p->saddr, p->sport);
		if ((p->flags & TCP_SYN) && clamp_mss(skb, p, pod->node))
			return TCX_DROP;
	}
	return encapsulate(skb, &w);
}

/* Sends a client's packet to its pod, which may be on another node. */
static __always_inline int deliver(struct __sk_buff *skb, const struct packet *p, const struct pod *pod,
				   enum flow_path path, bool ingress)
{
	return pod->node ? to_node(skb, p, pod, path != PATH_NIC) : to_pod(skb, p, pod, ingress);
}

/* Home node: sends a packet from a service address by the edge node. */
static __always_inline int by_edge(struct __sk_buff *skb, const struct packet *p, __be32 client, __be16 client_port,
				   __u32 len, __u64 id, __be32 edge, __u32 type, __u32 flags)
{
	struct passage w = {.node = edge, .type = type, .flags = flags, .len = len, .id = id,
			    .hash = flow_hash(client, client_port)};
	return encapsulate(skb, &w);
}

/* Home node: follows the client to another edge node. Returns the one before, or 0. */
static __always_inline __be32 follow_edge(struct flow *f, const struct passage *w)
{
	enum flow_path path = w->flags & ENCAP_INSIDE ? PATH_EDGE_NODE : PATH_EDGE_NIC;
	__be32 before = f->origin.path >= PATH_EDGE_NIC && f->origin.edge != w->node ? f->origin.edge : 0;
	if (f->origin.edge == w->node && f->origin.path == path)
		return 0;
	f->origin.edge = w->node;
	f->origin.path = path;
	f->origin.ifindex = 0;
	return before;
}

/* Home node: gives a client's segment to the pod, and tells an edge node that the flow is over for it: with a RST, or
 * the last ACK, as it cannot know as well what the pod had sent and acknowledged; or because the client comes by another
 * node now. */
static __always_inline int over_at(struct __sk_buff *skb, const struct packet *p, const struct pod *pod, __be32 node,
				   __u32 flags)
{
	if (translate_in(skb, p, pod) || bpf_clone_redirect(skb, pod->ifindex, 0))
		return TCX_DROP;
	/* And as it was. */
	if (tcp_csum_replace(skb, p, pod->addr.w[3], p->daddr, pod->port, p->dport))
		return TCX_DROP;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct iphdr *ip = data + sizeof(struct ethhdr);
	struct tcphdr *tcp = data + (p->l4 & 0x7f);
	if ((void *)(ip + 1) > end || (void *)(tcp + 1) > end)
		return TCX_DROP;
	ip_csum_replace(ip, ip->daddr, p->daddr);
	ip->daddr = p->daddr;
	tcp->dest = p->dport;
	return by_edge(skb, p, p->saddr, p->sport, p->ip_len, pod->id, node, ENCAP_CLOSED, flags);
}

/* Home node: a client's segment that an edge node sent for a pod. */
static __always_inline int at_home(struct __sk_buff *skb, struct packet *p, const struct passage *w)
{
	struct flow_key k;
	flow_key_in(&k, p);
	struct flow *f = bpf_map_lookup_elem(&flows, &k);
	bool syn = is_syn(p);
	if (syn && clamp_mss(skb, p, w->node))
		return TCX_DROP;
	if (f && !(syn && flow_reusable(f, p))) {
		__u32 index = f->pod;
		struct pod *pod = bpf_map_lookup_elem(&pods, &index);
		if (pod && pod->generation == f->generation && pod->id == w->id && !pod->node) {
			bool open = f->state < FLOW_CLOSED;
			__be32 before = 0;
			if (track(&k, f, p, IN))
				before = follow_edge(f, w);
			account(index, f, IN, p->ip_len);
			if (open && f->state >= FLOW_CLOSED && !(w->flags & ENCAP_INSIDE))
				return over_at(skb, p, pod, w->node, 0);
			return before ? over_at(skb, p, pod, before, ENCAP_MOVED) : to_pod(skb, p, pod, true);
		}
	}
	struct pod_name n = {.id = w->id, .vip = {.addr = k.service, .port = k.service_port}};
	__u32 *index = bpf_map_lookup_elem(&pod_names, &n);
	struct pod *pod = index ? bpf_map_lookup_elem(&pods, index) : NULL;
	if (!syn || !pod || pod->node || pod->state == POD_UNUSED) {
		/* The pod is gone, or its node has forgotten the flow. */
		count(COUNT_STRAY);
		if (make_reset(skb, p))
			return TCX_DROP;
		return by_edge(skb, p, p->saddr, p->sport, sizeof(struct iphdr) + sizeof(struct tcphdr), w->id, w->node,
			       ENCAP_TO_CLIENT, ENCAP_CLOSES);
	}
	/* The edge node chooses: what it knows nothing of is over. */
	if (f)
		flow_forget(&k, f);
	parse_wscale(skb, p);
	struct origin o = {.path = w->flags & ENCAP_INSIDE ? PATH_EDGE_NODE : PATH_EDGE_NIC, .edge = w->node};
	if (flow_open(&k, p, &o, *index))
		return TCX_DROP;
	f = bpf_map_lookup_elem(&flows, &k);
	if (!f || f->isn != p->seq || f->pod != *index)
		return TCX_DROP;
	account(*index, f, IN, p->ip_len);
	return to_pod(skb, p, pod, true);
}

/* Home node: a pod's segment of a flow that came by an edge node. */
static __always_inline int from_home(struct __sk_buff *skb, const struct flow_key *k, struct flow *f, struct packet *p,
				     const struct pod *pod)
{
	struct origin o = f->origin;
	/* A FIN that is repeated may be so because the edge node is gone: the client itself is to know. */
	bool again = (p->flags & TCP_FIN) && (f->seen & SEEN_FIN(OUT));
	bool by = o.path == PATH_EDGE_NODE || f->state == FLOW_HALF_OPEN || (p->flags & (TCP_SYN | TCP_RST)) ||
		  ((p->flags & TCP_FIN) && !again);
	if (p->flags & TCP_SYN) {
		parse_wscale(skb, p);
		if (clamp_mss(skb, p, o.edge))
			return TCX_DROP;
	}
	track(k, f, p, OUT);
	account(f->pod, f, OUT, p->ip_len);
	bool over = f->state >= FLOW_CLOSED;
	/* The ACK of the client's FIN says where the flow stands, too. */
	by = by || over || ((f->seen & SEEN_FIN(IN)) && !p->payload && !again);
	if (translate_out(skb, p, pod))
		return TCX_DROP;
	if (!by) {
		struct bpf_fib_lookup fib;
		if (!find_route(skb, pod->vip.addr.w[3], p->daddr, IPPROTO_TCP, 0, &fib))
			return by_route(&fib);
		/* Only the edge node has a way to this client. */
	}
	return by_edge(skb, p, p->daddr, p->dport, p->ip_len, pod->id, o.edge, ENCAP_TO_CLIENT, over ? ENCAP_CLOSES : 0);
}

/* Edge node: whether a pod's segment is of this flow, and not of an earlier one of the same ports. */
static __always_inline bool is_of(const struct flow *f, const struct packet *p)
{
	if (!(p->flags & TCP_ACK))
		return seq_diff(p->seq, f->ack[IN]) >= 0 && seq_diff(p->seq, f->edge[IN]) <= 1;
	__s32 behind = seq_diff(f->seq[IN], p->ack);
	return behind >= 0 && behind <= OLD_ACK && (f->state != FLOW_HALF_OPEN || seq_diff(p->ack, f->isn) > 0);
}

/* Edge node: finds the pod of a flow that is on another node. */
static __always_inline struct pod *remote_pod(const struct flow *f, const struct passage *w)
{
	__u32 index = f->pod;
	struct pod *pod = bpf_map_lookup_elem(&pods, &index);
	return pod && pod->generation == f->generation && pod->id == w->id && pod->node == w->node ? pod : NULL;
}

/* Edge node: a pod's segment from its home node. */
static __always_inline int at_edge(struct __sk_buff *skb, struct packet *p, const struct passage *w)
{
	struct flow_key k = {.client_port = p->dport, .service_port = p->sport};
	addr4(&k.client, p->daddr);
	addr4(&k.service, p->saddr);
	struct flow *f = bpf_map_lookup_elem(&flows, &k);
	if (!f || !remote_pod(f, w)) {
		/* The pod is to forget what nobody here knows; the flow may be another pod's by now. */
		count(COUNT_LATE_REPLIES);
		if (make_reset(skb, p))
			return TCX_DROP;
		struct passage back = {.node = w->node, .type = ENCAP_TO_POD, .id = w->id, .hash = flow_hash(p->daddr, p->dport),
				       .len = sizeof(struct iphdr) + sizeof(struct tcphdr)};
		return encapsulate(skb, &back);
	}
	if (p->flags & TCP_SYN) {
		parse_wscale(skb, p);
		if (clamp_mss(skb, p, w->node))
			return TCX_DROP;
	}
	bool closes = (w->flags & ENCAP_CLOSES) && is_of(f, p);
	if (closes && refuses(f, p)) {
		bpf_tail_call(skb, &steps, STEP_RETRY);
		return TCX_DROP;
	}
	struct origin o = f->origin;
	track(&k, f, p, OUT);
	account(f->pod, f, OUT, p->ip_len);
	if (closes)
		flow_close(&k, f);
	return to_origin(skb, &o);
}

/* Edge node: a client's segment with which its flow is over here, as the home node tells. */
static __always_inline int closed_at_edge(const struct packet *p, const struct passage *w)
{
	struct flow_key k;
	flow_key_in(&k, p);
	struct flow *f = bpf_map_lookup_elem(&flows, &k);
	/* It may have been on its way while the client began anew with the same ports. */
	if (!f || !remote_pod(f, w) || (f->state == FLOW_HALF_OPEN && p->seq != f->isn + 1 && p->seq != f->seq[IN]))
		return TCX_DROP;
	if (w->flags & ENCAP_MOVED)
		flow_forget(&k, f); /* the client may come back */
	else
		flow_close(&k, f);
	return TCX_DROP;
}
