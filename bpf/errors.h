/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* ICMP errors about clients' segments that come out of a pod. The pod may be a router: what runs behind it may have a
 * smaller MTU, or may not be reachable. Such an error comes from the service address and quotes the segment as the client
 * has sent it (RFC 5508, 4.2). */
#pragma once

#include "front.h"
#include "icmp.h"

/* Finds the flow, to a pod on this node, of the client's segment that an ICMP error of this pod quotes. Stores its key.
 * NULL if there is none. */
static __always_inline struct flow *find_flow_of_error(const struct pod *pod, __u32 index, struct flow_key *k)
{
	k->service = pod->vip.addr;
	k->service_port = pod->vip.port;
	struct flow *f = bpf_map_lookup_elem(&flows, k);
	if (f && f->pod == index && f->generation == pod->generation)
		return f;
	return pod->moved && find_left_flow(k, index) ? bpf_map_lookup_elem(&flows, k) : NULL;
}

/* Gives an ICMP error the source address of a flow's service, and the segment that it quotes this destination. */
static __always_inline int translate_error(struct __sk_buff *skb, const struct packet *p, const struct flow_key *k)
{
	struct iphdr *ip = (void *)(long)skb->data + sizeof(struct ethhdr), *inner;
	struct tcphdr *tcp;
	if ((void *)(ip + 1) > (void *)(long)skb->data_end || !find_quoted_segment(skb, p, &inner, &tcp))
		return -1;
	__be32 from = k->service.w[3];
	__be16 port = k->service_port, was = tcp->dest;
	ip_csum_replace(ip, ip->saddr, from);
	ip->saddr = from;
	/* The change of address cancels out against that of the inner checksum, so only the port changes ICMP's. */
	ip_csum_replace(inner, inner->daddr, from);
	inner->daddr = from;
	tcp->dest = port;
	return was == port ? 0 :
			     bpf_l4_csum_replace(skb, p->l4 + offsetof(struct icmphdr, checksum), was, port, 2);
}

/* Handles ICMP of a pod on this node, or of a front, to an address that is no service's. */
static __always_inline int error_from_pod(struct __sk_buff *skb, const struct packet *p)
{
	pull(skb, sizeof(struct ethhdr) + 60 + sizeof(struct icmphdr) + 60 + 8);
	struct icmphdr *icmp = (void *)(long)skb->data + (p->l4 & 0x7f);
	struct iphdr *inner;
	struct tcphdr *tcp;
	if ((void *)(icmp + 1) > (void *)(long)skb->data_end || !is_icmp_error(icmp) ||
	    !find_quoted_segment(skb, p, &inner, &tcp) || inner->saddr != p->daddr)
		return TCX_NEXT;
	struct pod_port pp = {.ifindex = skb->ifindex, .port = tcp->dest};
	__u32 *at = bpf_map_lookup_elem(&pod_ports, &pp);
	__u32 index = at ? *at : 0;
	struct pod *pod = at ? bpf_map_lookup_elem(&pods, &index) : NULL;
	if (!pod || pod->addr.w[3] != inner->daddr)
		return TCX_NEXT;
	struct flow_key k = {.client_port = tcp->source};
	set_addr(&k.client, inner->saddr);
	struct front_flow_key fk = {.client = k.client, .port = k.client_port, .pod = index};
	struct flow *f = find_flow_of_error(pod, index, &k);
	if (!f) { /* a front may have sent the segment, from its client's address */
		struct front_flow *front = bpf_map_lookup_elem(&front_flows, &fk);
		struct addr a;
		if (!front || front->generation != pod->generation)
			return TCX_NEXT;
		set_addr(&a, front->front);
		struct pod_device *to = bpf_map_lookup_elem(&pod_devices, &a);
		return to ? pass_to_device(skb, to) : TCX_NEXT;
	}
	struct origin o;
	read_origin(f, &o);
	if (o.path == PATH_HAIRPIN)
		return TCX_NEXT; /* its addresses are the pod's own */
	__be32 edge = edge_for_replies(&k, f, &o);
	__u64 id = pod->id;
	if (translate_error(skb, p, &k))
		return TCX_DROP;
	count(COUNT_ICMP_ERRORS);
	if (!through_edge_node(&o) && edge == node_addr)
		return send_to_origin(skb, &o);
	if (edge == node_addr || !(replies_by_edge || o.path == PATH_EDGE_NODE)) {
		struct bpf_fib_lookup fib;
		if (!find_route(skb, k.service.w[3], p->daddr, IPPROTO_ICMP, 0, &fib))
			return send_by_route(&fib);
		/* Only the edge node can reach this client. */
	}
	return send_to_edge(skb, p->daddr, k.client_port, p->ip_len, id, edge, ENCAP_TO_CLIENT, 0);
}

/* Edge node: sends on the ICMP error of a pod on another node, whose home node has translated it. */
static __always_inline int error_from_home(struct __sk_buff *skb, const struct packet *p)
{
	pull(skb, sizeof(struct ethhdr) + 60 + sizeof(struct icmphdr) + 60 + 8);
	struct icmphdr *icmp = (void *)(long)skb->data + (p->l4 & 0x7f);
	struct iphdr *inner;
	struct tcphdr *tcp;
	if ((void *)(icmp + 1) > (void *)(long)skb->data_end || !is_icmp_error(icmp) ||
	    !find_quoted_segment(skb, p, &inner, &tcp) || inner->saddr != p->daddr || inner->daddr != p->saddr)
		return TCX_DROP;
	struct flow_key k = {.client_port = tcp->source, .service_port = tcp->dest};
	set_addr(&k.client, inner->saddr);
	set_addr(&k.service, inner->daddr);
	struct flow *f = bpf_map_lookup_elem(&flows, &k);
	struct pod *pod = f ? pod_of_flow(f) : NULL;
	if (!pod || !pod->node)
		return TCX_DROP;
	struct origin o;
	read_origin(f, &o);
	count(COUNT_ICMP_ERRORS);
	return send_to_origin(skb, &o);
}

/* Handles ICMP that a pod on this node has sent, or another node's gate. */
static __always_inline int handle_icmp(struct __sk_buff *skb, const struct packet *p)
{
	__u32 ifindex = skb->ifindex;
	bool by_gate = bpf_map_lookup_elem(&nics, &ifindex);
	if (by_gate)
		return in_range(p->daddr) ? forward_icmp_error(skb, p, true, false) : error_from_home(skb, p);
	return in_range(p->daddr) ? icmp_to_service(skb, p, PATH_POD, true) : error_from_pod(skb, p);
}
