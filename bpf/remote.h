/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Flows whose pod is not on the client's edge node. Both nodes have an entry. The edge node sees all that the client
 * sends, the home node sees everything. Replies to clients behind an external interface of the edge node go straight to
 * the client, except for those that the edge node needs to follow the flow. With replies_by_edge all of them go back
 * through the edge node, which follows the flow no differently. */
#pragma once

#include "deaf.h"
#include "encap.h"
#include "flooded.h"
#include "steps.h"

/* Edge node: sends a client's packet to its pod's home node. inside: the client is on this node. */
__noinline int send_to_node(struct __sk_buff *skb, const struct packet *p, const struct pod *pod, bool inside)
{
	if (!p || !pod)
		return TCX_DROP;
	struct encap_meta m = {
		.node = pod->node,
		.type = ENCAP_TO_POD,
		.flags = inside ? ENCAP_INSIDE : 0,
		.len = p->ip_len,
		.id = pod->id,
	};
	if (p->l4_len) { /* a TCP segment */
		m.hash = flow_hash(p->saddr, p->sport);
		if ((p->flags & TCP_SYN) && clamp_mss(skb, p, pod->node))
			return TCX_DROP;
	}
	return encapsulate(skb, &m);
}

/* Limits the MSS that a pod on this node learns from a client's SYN, if its segments may have to be encapsulated later:
 * the client may use another edge node, through which replies then go. Returns 0 unless the SYN cannot be changed. */
static __always_inline int clamp_for_replies(struct __sk_buff *skb, const struct packet *p, const struct pod *pod,
					     enum flow_path path)
{
	return replies_by_edge && path == PATH_NIC && !pod->node ? clamp_mss(skb, p, p->saddr) : 0;
}

/* Sends a client's packet to its pod, on this node or another. */
static __always_inline int deliver(struct __sk_buff *skb, const struct packet *p, const struct pod *pod,
				   enum flow_path path, bool ingress)
{
	return pod->node ? send_to_node(skb, p, pod, path != PATH_NIC) : send_to_pod(skb, p, pod, ingress);
}

/* Home node: sends a packet from a service address through the edge node. */
static __always_inline int send_to_edge(struct __sk_buff *skb, __be32 client, __be16 client_port, __u32 len, __u64 id,
					__be32 edge, __u32 type, __u32 flags)
{
	struct encap_meta m = {
		.node = edge,
		.type = type,
		.flags = flags,
		.len = len,
		.id = id,
		.hash = flow_hash(client, client_port),
	};
	return encapsulate(skb, &m);
}

/* Where the packets that an edge node has encapsulated come from. */
static __always_inline enum flow_path path_by_edge(const struct encap_meta *m)
{
	return m->flags & ENCAP_INSIDE ? PATH_EDGE_NODE : PATH_EDGE_NIC;
}

/* Home node: notes that a flow's client now uses this edge node. Returns the previous edge node, or 0. */
static __always_inline __be32 follow_edge(struct flow *f, const struct encap_meta *m)
{
	enum flow_path path = path_by_edge(m);
	__be32 before = through_edge_node(&f->origin) && f->origin.edge != m->node ? f->origin.edge : 0;
	if (f->origin.edge == m->node && f->origin.path == path)
		return 0;
	f->origin.edge = m->node;
	f->origin.path = path;
	f->origin.ifindex = 0;
	return before;
}

/* Home node: delivers a client's segment to its pod, and also sends it to an edge node as word that the flow has ended
 * there: by a RST or the last ACK, which the edge node cannot judge as it does not see all of the pod's segments, or
 * because the client now uses another edge node. */
static __always_inline int deliver_and_close_at(struct __sk_buff *skb, const struct packet *p, const struct pod *pod,
						__be32 node, __u32 flags)
{
	if (translate_to_pod(skb, p, pod) || bpf_clone_redirect(skb, pod->ifindex, 0))
		return TCX_DROP;
	/* Undo the translation for the other copy. */
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
	return send_to_edge(skb, p->saddr, p->sport, p->ip_len, pod->id, node, ENCAP_CLOSED, flags);
}

/* Finds a pod by its controller's ID and the service address of a flow. Stores its index. */
static __always_inline struct pod *pod_by_name(const struct flow_key *k, __u64 id, __u32 *index)
{
	struct pod_name n = {.id = id, .vip = {.addr = k->service, .port = k->service_port}};
	__u32 *found = bpf_map_lookup_elem(&pod_names, &n);
	if (!found)
		return NULL;
	*index = *found;
	return bpf_map_lookup_elem(&pods, index);
}

/* Home node: handles a client's segment from an edge node. */
static __always_inline int home_from_edge(struct __sk_buff *skb, struct packet *p, const struct encap_meta *m)
{
	struct flow_key k;
	flow_key_from_client(&k, p);
	struct flow *f = bpf_map_lookup_elem(&flows, &k);
	bool syn = is_syn(p);
	if (syn && clamp_mss(skb, p, m->node))
		return TCX_DROP;
	if (f && !(syn && flow_reusable(f, p))) {
		struct pod *pod = pod_of_flow(f);
		if (pod && pod->id == m->id && !pod->node) {
			bool open = f->state < FLOW_CLOSED;
			if (syn)
				parse_wscale(skb, p);
			int genuine = track(&k, f, p, IN);
			__be32 before = genuine ? follow_edge(f, m) : 0;
			account_in(f, p, pod, genuine);
			if (open && f->state >= FLOW_CLOSED && !(m->flags & ENCAP_INSIDE))
				return deliver_and_close_at(skb, p, pod, m->node, 0);
			return before ? deliver_and_close_at(skb, p, pod, before, ENCAP_MOVED)
				      : send_to_pod(skb, p, pod, true);
		}
	}
	__u32 index;
	struct pod *pod = pod_by_name(&k, m->id, &index);
	struct origin o = {.path = path_by_edge(m), .edge = m->node};
	if (!syn && !f && pod && !enter_at_home(&k, p, &o, index)) {
		f = bpf_map_lookup_elem(&flows, &k);
		if (!f)
			return TCX_DROP;
		account_in(f, p, pod, track(&k, f, p, IN));
		return send_to_pod(skb, p, pod, true);
	}
	if (!syn || !pod || pod->node || pod->state == POD_UNUSED) {
		/* The pod is gone, or this node has forgotten the flow. */
		count(COUNT_STRAY);
		if (build_reset(skb, p))
			return TCX_DROP;
		return send_to_edge(skb, p->saddr, p->sport, sizeof(struct iphdr) + sizeof(struct tcphdr), m->id,
				    m->node, ENCAP_TO_CLIENT, ENCAP_CLOSES | (pod ? 0 : ENCAP_LEFT));
	}
	/* The edge node chose the pod, so a flow that it does not know has ended. */
	if (f)
		flow_forget(&k, f);
	if (half_open_crowded(&k, pod->service)) {
		record_syn(&k, p, &o, index);
		return send_to_pod(skb, p, pod, true);
	}
	parse_wscale(skb, p);
	if (flow_open(&k, p, &o, index))
		return TCX_DROP;
	f = bpf_map_lookup_elem(&flows, &k);
	if (!f || f->isn != p->seq || f->pod != index)
		return TCX_DROP;
	account_in(f, p, pod, true);
	return send_to_pod(skb, p, pod, true);
}

/* Home node: returns the node by which replies of a flow leave: its edge node, which may be this one. If that has
 * announced the VIP before and lost it, they leave by the node that announces it now: the network may drop what comes
 * from an address that has moved away, and a client that waits for a reply sends nothing by which its new edge node could
 * be learned. A SYN-ACK needs the edge node that has the flow. */
static __always_inline __be32 edge_for_replies(const struct flow_key *k, const struct flow *f, const struct origin *o)
{
	__be32 edge = through_edge_node(o) ? o->edge : node_addr;
	if (!replies_by_edge || f->state == FLOW_HALF_OPEN || (o->path != PATH_NIC && o->path != PATH_EDGE_NIC))
		return edge;
	struct vip_edge *e = bpf_map_lookup_elem(&vip_edges, &k->service);
	for (int i = 0; e && i < FORMER_EDGES; i++)
		if (e->before[i] == edge)
			return e->now;
	return edge;
}

/* Home node: sends a pod's segment of a flow whose replies leave by another node, or did until its VIP moved here. */
static __always_inline int home_to_client(struct __sk_buff *skb, const struct flow_key *k, struct flow *f,
					  struct packet *p, const struct pod *pod)
{
	struct origin o = f->origin;
	o.edge = edge_for_replies(k, f, &o);
	/* A retransmitted FIN may mean that the edge node is gone: it goes straight to the client, if it may. */
	bool fin_again = (p->flags & TCP_FIN) && (f->seen & SEEN_FIN(OUT));
	bool by_edge = replies_by_edge || o.path == PATH_EDGE_NODE || f->state == FLOW_HALF_OPEN ||
		       (f->seen & SEEN_UNPROVEN) || (p->flags & (TCP_SYN | TCP_RST)) || ((p->flags & TCP_FIN) && !fin_again);
	if (p->flags & TCP_SYN) {
		parse_wscale(skb, p);
		if (clamp_mss(skb, p, o.edge))
			return TCX_DROP;
	}
	__u32 flags = 0;
	if (refuses_syn(f, p)) {
		check_pod(skb, f->pod);
		/* This node may hear of the pod later than the edge node: a starting pod has not left. */
		flags = pod->state == POD_DEAF || pod->state == POD_DRAINING ? ENCAP_LEFT : 0;
	}
	account(f, p, OUT, track(k, f, p, OUT));
	bool closed = f->state >= FLOW_CLOSED;
	/* The edge node also needs the ACK of the client's FIN. */
	by_edge = by_edge || closed || ((f->seen & SEEN_FIN(IN)) && !p->payload && !fin_again);
	if (translate_from_pod(skb, p, k))
		return TCX_DROP;
	if (!by_edge || o.edge == node_addr) {
		struct bpf_fib_lookup fib;
		if (!find_route(skb, k->service.w[3], p->daddr, IPPROTO_TCP, 0, &fib))
			return send_by_route(&fib);
		/* Only the edge node can reach this client. */
	}
	return send_to_edge(skb, p->daddr, p->dport, p->ip_len, pod->id, o.edge, ENCAP_TO_CLIENT,
			    closed ? ENCAP_CLOSES | flags : 0);
}

/* Edge node: whether a pod's segment belongs to this flow, and not to an earlier one on the same ports. */
static __always_inline bool belongs_to_flow(const struct flow *f, const struct packet *p)
{
	if (!(p->flags & TCP_ACK))
		return seq_diff(p->seq, f->ack[IN]) >= 0 && seq_diff(p->seq, f->edge[IN]) <= 1;
	__s32 behind = seq_diff(f->seq[IN], p->ack);
	return behind >= 0 && behind <= OLD_ACK && (f->state != FLOW_HALF_OPEN || seq_diff(p->ack, f->isn) > 0);
}

/* Edge node: whether a flow is that of the pod and home node that a packet comes from. */
static __always_inline bool is_flow_of_sender(const struct flow *f, const struct encap_meta *m)
{
	struct pod *pod = pod_of_flow(f);
	return pod && pod->id == m->id && pod->node == m->node;
}

/* Edge node: whether a pod's segment answers a SYN that got no entry here. */
static __always_inline bool answers_unentered(const struct flow_key *k, const struct packet *p,
					      const struct encap_meta *m)
{
	__u32 index;
	if (!(p->flags & (TCP_SYN | TCP_RST)) || !(p->flags & TCP_ACK))
		return false;
	struct pod *pod = pod_by_name(k, m->id, &index);
	return pod && pod->node == m->node && is_flooded(pod->service);
}

/* Edge node: handles a pod's segment from its home node. */
static __always_inline int edge_from_home(struct __sk_buff *skb, struct packet *p, const struct encap_meta *m)
{
	struct flow_key k;
	flow_key_to_client(&k, p);
	struct flow *f = bpf_map_lookup_elem(&flows, &k);
	/* A flow that this node has forgotten, or never knew, is the client's to judge. Its next segment makes this node
	 * ask for the flow. */
	if (!f && ((replies_by_edge && !(p->flags & TCP_SYN)) || answers_unentered(&k, p, m)))
		return run_step(skb, STEP_HOME);
	if (!f || !is_flow_of_sender(f, m)) {
		/* This node does not know the flow, or it is another pod's by now: the pod gets a RST. */
		count(COUNT_LATE_REPLIES);
		if (build_reset(skb, p))
			return TCX_DROP;
		struct encap_meta reply = {
			.node = m->node,
			.type = ENCAP_TO_POD,
			.id = m->id,
			.hash = flow_hash(p->daddr, p->dport),
			.len = sizeof(struct iphdr) + sizeof(struct tcphdr),
		};
		return encapsulate(skb, &reply);
	}
	if (p->flags & TCP_SYN) {
		parse_wscale(skb, p);
		if (clamp_mss(skb, p, m->node))
			return TCX_DROP;
	}
	if (forget_guess(&k, f, p))
		return TCX_DROP;
	bool closes = (m->flags & ENCAP_CLOSES) && belongs_to_flow(f, p);
	if (closes && refuses_syn(f, p)) {
		struct pod *pod = pod_of_flow(f);
		if (pod && (m->flags & ENCAP_LEFT))
			mark_deaf(f->pod, pod);
		return run_step(skb, STEP_RETRY);
	}
	struct origin o;
	read_origin(f, &o);
	account(f, p, OUT, track(&k, f, p, OUT));
	if (closes)
		flow_close(&k, f);
	return send_to_origin(skb, &o);
}

/* Edge node: whether a segment that ended a flow according to the home node can be the client's. Its numbers are within
 * the windows as far as they are known here, as most of the pod's segments bypass this node. */
static __always_inline bool can_end_flow(const struct flow *f, const struct packet *p)
{
	/* The client may have started anew from the same port. */
	if (f->state == FLOW_HALF_OPEN)
		return p->seq == f->isn + 1 || p->seq == f->seq[IN];
	if (seq_diff(seq_end(p), f->edge[OUT]) > 1 || seq_diff(p->seq, f->ack[OUT]) < -OLD_ACK)
		return false;
	return !(p->flags & TCP_ACK) ||
	       (seq_diff(p->ack, f->edge[IN]) <= 1 && seq_diff(p->ack, f->ack[IN]) >= -OLD_ACK);
}

/* Edge node: handles a client's segment that ended its flow, according to the home node. */
static __always_inline int edge_flow_closed(const struct packet *p, const struct encap_meta *m)
{
	struct flow_key k;
	flow_key_from_client(&k, p);
	struct flow *f = bpf_map_lookup_elem(&flows, &k);
	if (!f || !is_flow_of_sender(f, m) || !can_end_flow(f, p))
		return TCX_DROP;
	if (m->flags & ENCAP_MOVED)
		flow_forget(&k, f); /* the client may come back */
	else
		flow_close(&k, f);
	return TCX_DROP;
}
