/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The shortcut: connections of pods on this node bypass its stack once the stack has let their SYN pass. */
#pragma once

#include "remote.h"

/* Handles a segment of a pod on this node that may be a client. Its SYN goes through the stack, and so through any
 * firewall. Once that has reached the gate and was answered, later segments bypass the stack, like flows offloaded
 * by netfilter (kernel doc: networking/nf_flowtable). The ACK that completes the handshake decides, because only the
 * receiver of the SYN-ACK can have sent it. Connections that the stack translates have other addresses here and
 * remain in the stack. */
static __always_inline int shortcut_from_pod(struct __sk_buff *skb, const struct packet *p)
{
	if (is_syn(p) || !in_range(p->daddr))
		return TCX_NEXT;
	struct flow_key k;
	flow_key_from_client(&k, p);
	struct flow *f = bpf_map_lookup_elem(&flows, &k);
	if (!f)
		return TCX_NEXT;
	bool starts = f->origin.path == PATH_STACK && f->state == FLOW_HALF_OPEN;
	/* Another pod's packet with this client's address is for the stack to judge. */
	if (!starts && !is_from_client_pod(f, skb->ifindex))
		return TCX_NEXT;
	struct pod *pod = pod_of_flow(f);
	struct ethhdr *eth = (void *)(long)skb->data;
	if (!pod || (void *)(eth + 1) > (void *)(long)skb->data_end)
		return TCX_NEXT;
	int genuine = track(&k, f, p, IN);
	if (starts && !genuine)
		return TCX_NEXT;
	if (starts) {
		/* The path comes last: replies on another CPU use the other fields only with PATH_POD. */
		f->origin.ifindex = skb->ifindex;
		__builtin_memcpy(f->origin.client_mac, eth->h_source, 6);
		__builtin_memcpy(f->origin.our_mac, eth->h_dest, 6);
		/* An exchange orders the stores before it, on every CPU; read_origin orders the loads. */
		__sync_lock_test_and_set((__u32 *)&f->origin.path, PATH_POD);
		count(COUNT_SHORTCUTS);
	}
	account_in(f, p, pod, genuine);
	return deliver(skb, p, pod, PATH_POD, true);
}
