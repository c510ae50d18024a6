/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Replies: pods' packets to their clients. */
#pragma once

#include "remote.h"

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
	return *f && (*f)->pod == *index && (*f)->generation == pod->generation ? pod : NULL;
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
	if (through_edge_node(&o))
		return run_step(skb, STEP_HOME);
	if (p->flags & (TCP_SYN | TCP_RST)) {
		parse_wscale(skb, p);
		if (refuses_syn(f, p))
			return translate_from_pod(skb, p, pod) ? TCX_DROP : run_step(skb, STEP_RETRY);
		/* The client may use another edge node later, and its segments must fit then. */
		if ((p->flags & TCP_SYN) && encap_port && o.path == PATH_NIC && clamp_mss(skb, p, p->daddr))
			return TCX_DROP;
	}
	account(f, p, OUT, track(k, f, p, OUT));
	return send_to_client(skb, p, pod, &o);
}
