/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Replies: pods' packets to their clients. */
#pragma once

#include "remote.h"

/* Whether a segment comes from the port at which a pod serves. */
static __always_inline bool is_from_served_port(struct __sk_buff *skb, const struct packet *p)
{
	struct pod_port pp = {.ifindex = skb->ifindex, .port = p->sport};
	return bpf_map_lookup_elem(&pod_ports, &pp);
}

/* Finds the pod that sent a segment, if the segment is of a flow of this pod; NULL otherwise. Stores the flow's key,
 * and in *f the flow with that key, which may be another pod's, or NULL. */
static __always_inline struct pod *find_replying_pod(struct __sk_buff *skb, const struct packet *p, struct flow_key *k,
						     struct flow **f)
{
	struct pod_port pp = {.ifindex = skb->ifindex, .port = p->sport};
	__u32 *index = bpf_map_lookup_elem(&pod_ports, &pp);
	struct pod *pod = index ? bpf_map_lookup_elem(&pods, index) : NULL;
	if (!pod)
		return NULL;
	k->service = pod->vip.addr;
	k->service_port = pod->vip.port;
	k->client_port = p->dport;
	set_addr(&k->client, p->daddr);
	*f = bpf_map_lookup_elem(&flows, k);
	if (*f && (*f)->pod == *index && (*f)->generation == pod->generation)
		return pod;
	struct flow_key left = *k;
	if (!pod->moved || find_left_flow(&left, *index) == NOT_LEFT)
		return NULL;
	struct flow *at_left = bpf_map_lookup_elem(&flows, &left);
	if (!at_left)
		return NULL;
	*k = left;
	*f = at_left;
	return pod;
}

/* Whether a segment of no flow may be a pod's answer to a SYN that got no entry. gate_home finds out. */
static __always_inline bool may_answer_flooded_syn(struct __sk_buff *skb, const struct packet *p)
{
	struct pod_port pp = {.ifindex = skb->ifindex, .port = p->sport};
	if (!(p->flags & (TCP_SYN | TCP_RST)) || !(p->flags & TCP_ACK))
		return false;
	__u32 *index = bpf_map_lookup_elem(&pod_ports, &pp);
	struct pod *pod = index ? bpf_map_lookup_elem(&pods, index) : NULL;
	return pod && is_flooded(pod->service);
}

/* Sends a pod's answer, from the service address, to a SYN that got no entry. r is its record; if there is none, the
 * answer goes by this node's routes. */
static __always_inline int send_to_flooded(struct __sk_buff *skb, const struct syn_record *r)
{
	return r ? send_to_origin(skb, &r->origin) : send_routed(skb);
}

/* Edge node: sends on the answer of a pod on another node to a SYN that got no entry here. */
static __always_inline int reply_from_home(struct __sk_buff *skb, const struct packet *p)
{
	struct flow_key k;
	flow_key_to_client(&k, p);
	struct syn_record *r = find_record(&k);
	if (r && r->isn + 1 != p->ack)
		r = NULL;
	struct pod *pod = r ? lookup_pod(r->pod, r->generation) : NULL;
	if ((p->flags & TCP_SYN) && clamp_mss(skb, p, pod && pod->node ? pod->node : p->daddr))
		return TCX_DROP;
	return send_to_flooded(skb, r);
}

/* Returns the record of the SYN, with the key k, that a pod answers; NULL if it is lost, or there was none. */
static __always_inline struct syn_record *find_answered_syn(const struct flow_key *k, const struct packet *p, __u32 pod)
{
	struct syn_record *r = find_record(k);
	return r && r->isn + 1 == p->ack && r->pod == pod ? r : NULL;
}

/* Sends the answer of a pod on this node to a SYN that got no entry. k is its key; r is its record, or NULL. */
static __always_inline int reply_to_flooded(struct __sk_buff *skb, const struct packet *p, const struct flow_key *k,
					    const struct syn_record *r, const struct pod *pod)
{
	bool by_edge = r && through_edge_node(&r->origin);
	/* The client may use another edge node later, and its segments must fit then. */
	if ((p->flags & TCP_SYN) && encap_port && (by_edge || !r || r->origin.path == PATH_NIC) &&
	    clamp_mss(skb, p, by_edge ? r->origin.edge : p->daddr))
		return TCX_DROP;
	if (translate_from_pod(skb, p, k))
		return TCX_DROP;
	if (by_edge)
		return send_to_edge(skb, p->daddr, p->dport, p->ip_len, pod->id, r->origin.edge, ENCAP_TO_CLIENT,
				    p->flags & TCP_RST ? ENCAP_CLOSES : 0);
	return send_to_flooded(skb, r);
}

/* Whether a pod answers a SYN that another pod got meanwhile. f is the flow, or NULL. */
static __always_inline bool answers_retried_syn(const struct flow *f, const struct packet *p)
{
	return f && (p->flags & (TCP_SYN | TCP_ACK)) == (TCP_SYN | TCP_ACK) && p->ack == f->isn + 1;
}

/* Handles a pod's segment of a flow of its own. */
static __always_inline int reply_from_pod(struct __sk_buff *skb, struct packet *p, const struct flow_key *k,
					  struct flow *f, struct pod *pod)
{
	struct origin o;
	read_origin(f, &o);
	/* Through an edge node, or of a hairpin. */
	if (o.path >= PATH_EDGE_NIC || edge_for_replies(k, f, &o) != node_addr)
		return run_step(skb, STEP_HOME);
	if (p->flags & (TCP_SYN | TCP_RST)) {
		if (forget_guess(k, f, p))
			return TCX_DROP;
		parse_wscale(skb, p);
		if (refuses_syn(f, p))
			return translate_from_pod(skb, p, k) ? TCX_DROP : run_step(skb, STEP_RETRY);
		/* The client may use another edge node later, and its segments must fit then. */
		if ((p->flags & TCP_SYN) && encap_port && o.path == PATH_NIC && clamp_mss(skb, p, p->daddr))
			return TCX_DROP;
	}
	account(f, p, OUT, track(k, f, p, OUT));
	return send_to_client(skb, p, k, &o);
}
