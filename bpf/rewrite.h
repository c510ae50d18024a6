/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Translates addresses and ports, and sends packets on. A checksum may be partial, to be completed by a device. */
#pragma once

#include "route.h"
#include <bpf/bpf_core_read.h>

/* Updates an IPv4 header checksum for a changed address (RFC 1624, eqn. 3). */
static __always_inline void ip_csum_replace(struct iphdr *ip, __be32 from, __be32 to)
{
	__u32 sum = (__u16)~ip->check;
	sum += (__u16)~from + (__u16)(~from >> 16);
	sum += (__u16)to + (__u16)(to >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	ip->check = (__u16)~sum;
}

/* Folds a ones' complement sum into a checksum (RFC 1071). */
static __always_inline __u16 csum_fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + ((sum >> 16) & 0xffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (__u16)~sum;
}

/* The part of the kernel's socket buffer that the gate reads; CO-RE finds the offsets. */
struct sk_buff {
	__u8 ip_summed : 2;
	__u8 encapsulation : 1;
} __attribute__((preserve_access_index));

/* Values of sk_buff.ip_summed (<linux/skbuff.h>): what is known of a packet's checksum. */
enum csum_kind {
	CSUM_NONE = 0,        /* it is in the packet, unverified */
	CSUM_UNNECESSARY = 1, /* it is in the packet, verified */
	CSUM_COMPLETE = 2,    /* it is in the packet, and skb->csum is the sum of all bytes */
	CSUM_PARTIAL = 3,     /* the packet holds the pseudo header's sum; a device completes it */
};

extern void *bpf_cast_to_kern_ctx(void *ctx) __ksym;

/* Returns what is known of a packet's checksum. */
static __always_inline enum csum_kind csum_kind_of(struct __sk_buff *skb)
{
	struct sk_buff *kernel = bpf_cast_to_kern_ctx(skb);
	return BPF_CORE_READ_BITFIELD(kernel, ip_summed);
}

/* Updates the TCP checksum for one changed address and one changed port. Helper calls dominate the cost of a packet, so
 * it makes none, except for CSUM_COMPLETE, where only the kernel can update skb->csum. */
static __always_inline int tcp_csum_replace(struct __sk_buff *skb, const struct packet *p, __be32 from, __be32 to,
					    __be16 from_port, __be16 to_port)
{
	__u32 at = p->l4 + offsetof(struct tcphdr, check);
	enum csum_kind kind = csum_kind_of(skb);
	if (kind == CSUM_COMPLETE)
		return bpf_l4_csum_replace(skb, at, from, to, BPF_F_PSEUDO_HDR | 4) ||
		       bpf_l4_csum_replace(skb, at, from_port, to_port, 2);
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct tcphdr *tcp = data + (p->l4 & 0x7f);
	if ((void *)(tcp + 1) > end)
		return -1;
	/* RFC 1624, eqn. 3. */
	__u32 diff = (__u16)~from + (__u16)(~from >> 16) + (__u16)to + (to >> 16);
	if (kind == CSUM_PARTIAL)
		tcp->check = ~csum_fold((__u32)tcp->check + diff);
	else
		tcp->check = csum_fold((__u32)(__u16)~tcp->check + diff + (__u16)~from_port + to_port);
	return 0;
}

/* Gives a client's packet the address, port and MAC address of its pod. */
static __always_inline int translate_to_pod(struct __sk_buff *skb, const struct packet *p, const struct pod *pod)
{
	__be32 to = pod->addr.w[3];
	__be16 port = pod->port;
	if (tcp_csum_replace(skb, p, p->daddr, to, p->dport, port))
		return -1;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = data + sizeof(*eth);
	struct tcphdr *tcp = data + (p->l4 & 0x7f);
	if ((void *)(ip + 1) > end || (void *)(tcp + 1) > end)
		return -1;
	__builtin_memcpy(eth->h_dest, pod->mac, 6);
	__builtin_memcpy(eth->h_source, pod->host_mac, 6);
	ip_csum_replace(ip, p->daddr, to);
	ip->daddr = to;
	tcp->dest = port;
	return 0;
}

/* Sends a packet to the other end of a pod's device. ingress: it arrived on an interface instead of leaving the stack,
 * so it can go straight into the pod's network namespace. A packet that a netkit device is about to pass on, which has
 * no ingress interface yet, cannot (skb_do_redirect). */
static __always_inline int send_to_peer(struct __sk_buff *skb, __u32 ifindex, bool ingress)
{
	return ingress && skb->ingress_ifindex ? bpf_redirect_peer(ifindex, 0) : bpf_redirect(ifindex, 0);
}

/* Sends a client's packet to a pod on this node. */
static __always_inline int send_to_pod(struct __sk_buff *skb, const struct packet *p, const struct pod *pod,
				       bool ingress)
{
	if (translate_to_pod(skb, p, pod))
		return TCX_DROP;
	return send_to_peer(skb, pod->ifindex, ingress);
}

/* Gives a pod's packet the service address of its flow as its source. */
static __always_inline int translate_from_pod(struct __sk_buff *skb, const struct packet *p, const struct flow_key *k)
{
	__be32 from = k->service.w[3];
	__be16 port = k->service_port;
	if (tcp_csum_replace(skb, p, p->saddr, from, p->sport, port))
		return -1;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct iphdr *ip = data + sizeof(struct ethhdr);
	struct tcphdr *tcp = data + (p->l4 & 0x7f);
	if ((void *)(ip + 1) > end || (void *)(tcp + 1) > end)
		return -1;
	ip_csum_replace(ip, p->saddr, from);
	ip->saddr = from;
	tcp->source = port;
	return 0;
}

/* Sends a packet from a service address to a client, back the way the client's packets come, or by this node's routes
 * as long as that way is not known. */
static __always_inline int send_to_origin(struct __sk_buff *skb, const struct origin *o)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	if ((void *)(eth + 1) > end)
		return TCX_DROP;
	if (o->path == PATH_STACK) {
		/* It comes in on wangell0, to which the service ranges are routed, so that conntrack and
		 * reverse-path filters see both directions on the same interface. */
		for (int i = 0; i < 6; i++)
			eth->h_dest[i] = wangell_mac[i];
		return bpf_redirect(wangell_ifindex, BPF_F_INGRESS);
	}
	if (!o->ifindex)
		return send_routed(skb);
	__builtin_memcpy(eth->h_dest, o->client_mac, 6);
	__builtin_memcpy(eth->h_source, o->our_mac, 6);
	if (o->path == PATH_POD)
		return send_to_peer(skb, o->ifindex, true);
	return bpf_redirect(o->ifindex, 0);
}

/* Sends a pod's packet to its client, from the service address. */
static __always_inline int send_to_client(struct __sk_buff *skb, const struct packet *p, const struct flow_key *k,
					  const struct origin *o)
{
	if (translate_from_pod(skb, p, k))
		return TCX_DROP;
	return send_to_origin(skb, o);
}

/* Sends a packet back out of the interface it came from. */
static __always_inline int send_back(struct __sk_buff *skb, bool ingress)
{
	return bpf_redirect(skb->ifindex, ingress ? 0 : BPF_F_INGRESS);
}

/* Swaps source and destination MAC address. */
static __always_inline void swap_macs(struct ethhdr *eth)
{
	__u8 mac[6];
	__builtin_memcpy(mac, eth->h_dest, 6);
	__builtin_memcpy(eth->h_dest, eth->h_source, 6);
	__builtin_memcpy(eth->h_source, mac, 6);
}
