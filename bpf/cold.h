/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Cold services: clients' packets that wake them, or prove that they may. */
#pragma once

#include "edge.h"
#include "prove.h"

/* Parks the SYN of a service that is not warm, or challenges its client, before a socket buffer is allocated. All other
 * packets pass: gate_nic handles them. */
static __always_inline int edge_xdp(struct xdp_md *ctx, struct ethhdr *eth)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct packet p;
	if (parse(data, end, bpf_xdp_get_buff_len(ctx), &p) != PACKET_TCP)
		return XDP_PASS;
	bool syn = is_syn(&p);
	if ((!syn && !(p.flags & TCP_RST)) || !in_range(p.daddr))
		return XDP_PASS;
	struct flow_key k;
	flow_key_from_client(&k, &p);
	struct service *s = service_of_flow(&k);
	if (!s || (s->flags & SERVICE_LEFT))
		return XDP_PASS;
	struct service_status *st = status_of(s->index);
	if (!st || state_now(st) == SERVICE_WARM)
		return XDP_PASS;
	/* A frame that a switch has flooded is for another host. */
	__u32 ifindex = ctx->ingress_ifindex;
	struct nic *nic = bpf_map_lookup_elem(&nics, &ifindex);
	if (!nic || __builtin_memcmp(nic->mac, eth->h_dest, 6))
		return XDP_PASS;
	struct flow *f = bpf_map_lookup_elem(&flows, &k);
	if (f && !flow_reusable(f, &p))
		return XDP_PASS;
	if (!syn)
		return take_proof(&p, &k, s->index) ? XDP_DROP : XDP_PASS;
	if (is_denied(s, &k))
		return XDP_DROP;
	struct origin o;
	origin_from_frame(&o, eth, ifindex, PATH_NIC);
	enum judgment j = judge(ctx, true, &p, &k, s, st, PATH_NIC);
	if (j == REJECT)
		return XDP_DROP;
	struct bpf_fib_lookup fib;
	/* gate_cold sends what XDP cannot. */
	if (j == CHALLENGE && (!nic->tx || find_neighbor(ctx, &p, &fib)))
		return XDP_PASS;
	if (j == CHALLENGE)
		return challenge_xdp(ctx, &p, &k, &fib) ? XDP_DROP : XDP_TX;
	return park(ctx, true, &p, &k, s, st, &o) == PARKED ? XDP_DROP : XDP_PASS;
}

/* Returns how a client's packet arrives, and whether it did not leave this node's stack. */
static __always_inline enum flow_path path_of(struct __sk_buff *skb, bool *ingress)
{
	__u32 ifindex = skb->ifindex;
	*ingress = ifindex != wangell_ifindex;
	if (!*ingress)
		return PATH_STACK;
	return bpf_map_lookup_elem(&nics, &ifindex) ? PATH_NIC : PATH_POD;
}

/* Handles a client's SYN or RST whose flow is unknown or reusable, and whose service was not warm a moment ago or has a
 * pod that may not listen. */
static __always_inline int cold_from_client(struct __sk_buff *skb, struct packet *p)
{
	bool ingress;
	enum flow_path path = path_of(skb, &ingress);
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	struct flow_key k;
	flow_key_from_client(&k, p);
	struct service *s = service_of_flow(&k);
	struct service_status *st = s ? status_of(s->index) : NULL;
	if (!st || (void *)(eth + 1) > end)
		return TCX_DROP;
	if (!is_syn(p)) {
		if (take_proof(p, &k, s->index))
			return TCX_DROP;
		/* The VIP may just have moved here from another node. A RST is not answered. */
		if (path == PATH_NIC && encap_port)
			bpf_tail_call(skb, &steps, STEP_MOVED);
		count(COUNT_STRAY);
		return TCX_DROP;
	}
	if (is_denied(s, &k))
		return TCX_DROP;
	struct origin o;
	origin_from_frame(&o, eth, skb->ifindex, path);
	if (state_now(st) == SERVICE_WARM)
		check_pods(skb, s->index);
	if (state_now(st) != SERVICE_WARM) {
		enum judgment j = judge(skb, false, p, &k, s, st, path);
		if (j == CHALLENGE)
			return challenge(skb, p, &k, &o);
		if (j == REJECT || park(skb, false, p, &k, s, st, &o) == PARKED)
			return TCX_DROP;
	}
	distrust(&o, s);
	struct flow *f = bpf_map_lookup_elem(&flows, &k);
	return open_to_some_pod(skb, p, &k, f, s->index, st, &o, ingress, true);
}
