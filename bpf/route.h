/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Sends packets by this node's routes. */
#pragma once

#include "parse.h"

#define TCX_NEXT -1
#define TCX_PASS 0
#define TCX_DROP 2

#define AF_INET 2 /* <sys/socket.h> */

/* Looks up the route to an address. Returns 0, or a BPF_FIB_LKUP_RET_ code if there is none. */
static __always_inline long find_route(struct __sk_buff *skb, __be32 from, __be32 to, __u8 protocol, __u16 len,
				       struct bpf_fib_lookup *fib)
{
	__builtin_memset(fib, 0, sizeof(*fib));
	fib->family = AF_INET;
	fib->l4_protocol = protocol;
	fib->tot_len = len;
	fib->ipv4_src = from;
	fib->ipv4_dst = to;
	/* As if it came in on wangell0, where forwarding is always enabled. */
	fib->ifindex = wangell_ifindex;
	/* Resolving the neighbor is left to bpf_redirect_neigh. */
	return bpf_fib_lookup(skb, fib, sizeof(*fib), BPF_FIB_LOOKUP_SKIP_NEIGH);
}

/* Sends a packet along a route that find_route has found, bypassing netfilter. */
static __always_inline int send_by_route(const struct bpf_fib_lookup *fib)
{
	struct bpf_redir_neigh nh = {.nh_family = fib->family};
	__builtin_memcpy(nh.ipv6_nh, fib->ipv6_dst, sizeof(nh.ipv6_nh)); /* a union with the IPv4 address */
	return bpf_redirect_neigh(fib->ifindex, &nh, sizeof(nh), 0);
}

/* Sends a packet by this node's routes, not back to the neighbor that sent the packet that it answers. */
__noinline int send_routed(struct __sk_buff *skb)
{
	struct iphdr *ip = (void *)(long)skb->data + sizeof(struct ethhdr);
	struct bpf_fib_lookup fib;
	if ((void *)(ip + 1) > (void *)(long)skb->data_end)
		return TCX_DROP;
	if (find_route(skb, ip->saddr, ip->daddr, IPPROTO_TCP, 0, &fib)) {
		count(COUNT_NO_ROUTE);
		return TCX_DROP;
	}
	return send_by_route(&fib);
}

/* Whether the route to the source of a packet leads through another device than the one on which it came in. */
__noinline int comes_from_elsewhere(struct __sk_buff *skb, const struct packet *p)
{
	struct bpf_fib_lookup fib;
	return !p || find_route(skb, p->daddr, p->saddr, IPPROTO_TCP, 0, &fib) || fib.ifindex != skb->ifindex;
}
