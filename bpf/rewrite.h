/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Changing a packet's addresses and ports, and answering one. Checksums may be partial: a device would complete them. */
#pragma once

#include "parse.h"
#include <bpf/bpf_core_read.h>

#define TCX_NEXT -1
#define TCX_PASS 0
#define TCX_DROP 2

/* Updates an IPv4 header checksum for an address that changes (RFC 1624, eqn. 3). */
static __always_inline void ip_csum_replace(struct iphdr *ip, __be32 from, __be32 to)
{
	__u32 sum = (__u16)~ip->check;
	sum += (__u16)~from + (__u16)(~from >> 16);
	sum += (__u16)to + (__u16)(to >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	ip->check = (__u16)~sum;
}

static __always_inline __u16 csum_fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + ((sum >> 16) & 0xffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (__u16)~sum;
}

/* What is read of the kernel's socket buffer; CO-RE finds where it is. */
struct sk_buff {
	__u8 ip_summed : 2;
	__u8 encapsulation : 1;
} __attribute__((preserve_access_index));

/* <linux/skbuff.h>: what the checksum of a packet is, in ip_summed. */
enum summed {
	SUM_NONE = 0,        /* in the packet, not looked at */
	SUM_UNNECESSARY = 1, /* in the packet, and right */
	SUM_COMPLETE = 2,    /* in the packet, and the device gave the sum of all bytes besides */
	SUM_PARTIAL = 3,     /* only the pseudo header's is in the packet: a device is to complete it */
};

extern void *bpf_cast_to_kern_ctx(void *ctx) __ksym;

static __always_inline enum summed summed(struct __sk_buff *skb)
{
	struct sk_buff *kernel = bpf_cast_to_kern_ctx(skb);
	return BPF_CORE_READ_BITFIELD(kernel, ip_summed);
}

/* Changes the TCP checksum for one address and one port. Without calls, which are what costs most here; only the
 * kernel can keep the device's sum of all bytes right, though. */
static __always_inline int tcp_csum_replace(struct __sk_buff *skb, const struct packet *p, __be32 from, __be32 to,
					    __be16 from_port, __be16 to_port)
{
	__u32 at = p->l4 + offsetof(struct tcphdr, check);
	enum summed kind = summed(skb);
	if (kind == SUM_COMPLETE)
		return bpf_l4_csum_replace(skb, at, from, to, BPF_F_PSEUDO_HDR | 4) ||
		       bpf_l4_csum_replace(skb, at, from_port, to_port, 2);
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct tcphdr *tcp = data + (p->l4 & 0x7f);
	if ((void *)(tcp + 1) > end)
		return -1;
	/* RFC 1624, eqn. 3: ~check, less what was, and what is. */
	__u32 diff = (__u16)~from + (__u16)(~from >> 16) + (__u16)to + (to >> 16);
	if (kind == SUM_PARTIAL)
		tcp->check = ~csum_fold((__u32)tcp->check + diff);
	else
		tcp->check = csum_fold((__u32)(__u16)~tcp->check + diff + (__u16)~from_port + to_port);
	return 0;
}

/* Gives a client's packet a pod's address, port and MAC address. */
static __always_inline int translate_in(struct __sk_buff *skb, const struct packet *p, const struct pod *pod)
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

/* Sends a client's packet to a pod on this machine. ingress: the packet came in by a device, rather than
 * leaving the stack; it can then go straight into the pod's network namespace. */
static __always_inline int to_pod(struct __sk_buff *skb, const struct packet *p, const struct pod *pod, bool ingress)
{
	if (translate_in(skb, p, pod))
		return TCX_DROP;
	return ingress ? bpf_redirect_peer(pod->ifindex, 0) : bpf_redirect(pod->ifindex, 0);
}

/* Gives a pod's packet the service address as its source. */
static __always_inline int translate_out(struct __sk_buff *skb, const struct packet *p, const struct pod *pod)
{
	__be32 from = pod->vip.addr.w[3];
	__be16 port = pod->vip.port;
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

/* Sends a packet from a service address to a client, the way that the client's come. */
static __always_inline int to_origin(struct __sk_buff *skb, const struct origin *o)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	if ((void *)(eth + 1) > end)
		return TCX_DROP;
	if (o->path == PATH_STACK) {
		/* As if it came in by wangell0, where the service range is routed to: reverse-path filters and
		 * conntrack see the way that the client's packets went. */
		for (int i = 0; i < 6; i++)
			eth->h_dest[i] = wangell_mac[i];
		return bpf_redirect(wangell_ifindex, BPF_F_INGRESS);
	}
	__builtin_memcpy(eth->h_dest, o->client_mac, 6);
	__builtin_memcpy(eth->h_source, o->our_mac, 6);
	if (o->path == PATH_POD)
		return bpf_redirect_peer(o->ifindex, 0);
	return bpf_redirect(o->ifindex, 0);
}

/* Sends a pod's packet to the client, from the service address. */
static __always_inline int to_client(struct __sk_buff *skb, const struct packet *p, const struct pod *pod,
				     const struct origin *o)
{
	if (translate_out(skb, p, pod))
		return TCX_DROP;
	return to_origin(skb, o);
}

/* Back to where the packet came from. */
static __always_inline int send_back(struct __sk_buff *skb, bool ingress)
{
	return bpf_redirect(skb->ifindex, ingress ? 0 : BPF_F_INGRESS);
}

static __always_inline void swap_macs(struct ethhdr *eth)
{
	__u8 mac[6];
	__builtin_memcpy(mac, eth->h_dest, 6);
	__builtin_memcpy(eth->h_dest, eth->h_source, 6);
	__builtin_memcpy(eth->h_source, mac, 6);
}

/* Makes a segment the RST that answers it, and that its sender accepts (RFC 9293, 3.5.2: the sequence number is what
 * it acknowledged, or else the acknowledgment is one past all that it sent). Returns 0 if it has become one. */
static __always_inline int make_reset(struct __sk_buff *skb, const struct packet *p)
{
	const __u32 len = sizeof(struct ethhdr) + sizeof(struct iphdr) + sizeof(struct tcphdr);
	if ((p->flags & TCP_RST) || bpf_skb_change_tail(skb, len, 0))
		return -1;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = data + sizeof(*eth);
	struct tcphdr *tcp = (void *)(ip + 1);
	if ((void *)(tcp + 1) > end)
		return -1;
	swap_macs(eth);
	__builtin_memset(ip, 0, sizeof(*ip) + sizeof(*tcp));
	ip->version = 4;
	ip->ihl = 5;
	ip->tot_len = bpf_htons(sizeof(*ip) + sizeof(*tcp));
	ip->frag_off = bpf_htons(0x4000);
	ip->ttl = 64;
	ip->protocol = IPPROTO_TCP;
	ip->saddr = p->daddr;
	ip->daddr = p->saddr;
	ip->check = csum_fold((__u32)bpf_csum_diff(NULL, 0, (__be32 *)ip, sizeof(*ip), 0));
	tcp->source = p->dport;
	tcp->dest = p->sport;
	tcp->doff = 5;
	tcp->rst = 1;
	if (p->flags & TCP_ACK) {
		tcp->seq = bpf_htonl(p->ack);
	} else {
		tcp->ack = 1;
		tcp->ack_seq = bpf_htonl(p->seq + p->payload + ((p->flags & TCP_SYN) ? 1 : 0) +
					 ((p->flags & TCP_FIN) ? 1 : 0));
	}
	__be32 pseudo[3] = {p->daddr, p->saddr, bpf_htonl(IPPROTO_TCP << 16 | sizeof(*tcp))};
	__s64 sum = bpf_csum_diff(NULL, 0, pseudo, sizeof(pseudo), 0);
	if (summed(skb) == SUM_PARTIAL) {
		tcp->check = ~csum_fold((__u32)sum);
		return 0;
	}
	sum = bpf_csum_diff(NULL, 0, (__be32 *)tcp, sizeof(*tcp), (__u32)sum);
	tcp->check = csum_fold((__u32)sum);
	return 0;
}

/* Answers a segment with a RST. */
static __always_inline int reset(struct __sk_buff *skb, const struct packet *p, bool ingress)
{
	return make_reset(skb, p) ? TCX_DROP : send_back(skb, ingress);
}
