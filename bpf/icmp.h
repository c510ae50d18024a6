/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* ICMP for a service address: pings are answered, errors (path MTU) go to the pod whose packet they are about. */
#pragma once

#include "remote.h"

/* Answers an echo request (RFC 792). */
static __always_inline int ping(struct __sk_buff *skb, const struct packet *p, bool ingress)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = data + sizeof(*eth);
	struct icmphdr *icmp = data + (p->l4 & 0x7f);
	if ((void *)(ip + 1) > end || (void *)(icmp + 1) > end)
		return TCX_DROP;
	swap_macs(eth);
	ip->saddr = p->daddr;
	ip->daddr = p->saddr;
	icmp->type = ICMP_ECHOREPLY;
	count(COUNT_PINGS);
	/* Type and code are one 16-bit word of the checksum: 8,c becomes 0,c. */
	if (bpf_l4_csum_replace(skb, p->l4 + offsetof(struct icmphdr, checksum), bpf_htons(ICMP_ECHO << 8), 0, 2))
		return TCX_DROP;
	return send_back(skb, ingress);
}

/* Carries an ICMP error to the pod that sent the packet inside of it (RFC 1812, 4.3.2.3; RFC 5508, 4.2: what
 * translates a flow translates the errors about it). */
static __always_inline int icmp_error(struct __sk_buff *skb, const struct packet *p, bool ingress)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	__u32 at = (p->l4 & 0x7f) + sizeof(struct icmphdr);
	struct iphdr *inner = data + at;
	if ((void *)(inner + 1) > end || inner->version != 4 || inner->protocol != IPPROTO_TCP ||
	    (inner->frag_off & bpf_htons(IP_OFFSET)))
		return TCX_DROP;
	__u32 ihl = inner->ihl * 4;
	if (ihl < sizeof(*inner))
		return TCX_DROP;
	struct tcphdr *tcp = data + at + (ihl & 0x3f);
	if ((void *)tcp + 8 > end)
		return TCX_DROP;
	struct flow_key k;
	addr4(&k.client, inner->daddr);
	addr4(&k.service, inner->saddr);
	k.client_port = tcp->dest;
	k.service_port = tcp->source;
	struct flow *f = bpf_map_lookup_elem(&flows, &k);
	if (!f)
		return TCX_DROP;
	struct pod *pod = bpf_map_lookup_elem(&pods, &f->pod);
	if (pod && pod->generation == f->generation && pod->node)
		return to_node(skb, p, pod, true); /* its home node knows what it has sent */
	/* The sequence number must be one that the pod has sent, or anyone could shrink its path MTU (RFC 5927, 4.1). */
	if (!pod || pod->generation != f->generation || seq_diff(bpf_ntohl(tcp->seq), f->seq[OUT]) >= 0 ||
	    seq_diff(bpf_ntohl(tcp->seq), f->ack[IN]) < 0)
		return TCX_DROP;
	struct iphdr *ip = data + sizeof(*eth);
	if ((void *)(ip + 1) > end)
		return TCX_DROP;
	__be32 to = pod->addr.w[3], was = inner->saddr;
	__be16 port = pod->port, was_port = tcp->source;
	ip_csum_replace(ip, p->daddr, to);
	ip->daddr = to;
	/* The inner header's checksum takes up its change of address, so the ICMP checksum sees only the port. */
	ip_csum_replace(inner, was, to);
	inner->saddr = to;
	tcp->source = port;
	__builtin_memcpy(eth->h_dest, pod->mac, 6);
	__builtin_memcpy(eth->h_source, pod->host_mac, 6);
	__u32 ifindex = pod->ifindex;
	if (was_port != port &&
	    bpf_l4_csum_replace(skb, p->l4 + offsetof(struct icmphdr, checksum), was_port, port, 2))
		return TCX_DROP;
	count(COUNT_ICMP_ERRORS);
	return ingress ? bpf_redirect_peer(ifindex, 0) : bpf_redirect(ifindex, 0);
}

/* ICMP for a service's VIP. */
static __always_inline int icmp(struct __sk_buff *skb, const struct packet *p, bool ingress)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct icmphdr *h = data + (p->l4 & 0x7f);
	if ((void *)(h + 1) > end)
		return TCX_DROP;
	if (h->type == ICMP_ECHO && h->code == 0)
		return ping(skb, p, ingress);
	if (h->type == ICMP_DEST_UNREACH || h->type == ICMP_TIME_EXCEEDED || h->type == ICMP_PARAMETERPROB)
		return icmp_error(skb, p, ingress);
	return TCX_DROP;
}
