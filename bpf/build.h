/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Builds headers: of encapsulated packets, RSTs and SYNs. */
#pragma once

#include "rewrite.h"

#define IP_DF 0x4000 /* don't fragment (RFC 791) */

/* Writes an IPv4 header without options, checksum included. tot_len is in bytes, header included. */
static __always_inline void write_ip(struct iphdr *ip, __u8 protocol, __be32 saddr, __be32 daddr, __u16 tot_len,
				     __u8 tos, __u8 ttl)
{
	__builtin_memset(ip, 0, sizeof(*ip));
	ip->version = 4;
	ip->ihl = 5;
	ip->tos = tos;
	ip->tot_len = bpf_htons(tot_len);
	ip->frag_off = bpf_htons(IP_DF); /* the gate cannot handle fragments */
	ip->ttl = ttl;
	ip->protocol = protocol;
	ip->saddr = saddr;
	ip->daddr = daddr;
	ip->check = csum_fold((__u32)bpf_csum_diff(NULL, 0, (__be32 *)ip, sizeof(*ip), 0));
}

/* Returns the TCP checksum for a header of size bytes, of which len are sent and the rest is zero; its own checksum
 * field is zero, and no payload follows. For a partial checksum, that is the pseudo header's sum. */
static __always_inline __u16 tcp_csum(struct __sk_buff *skb, __be32 saddr, __be32 daddr, void *tcp, __u32 size,
				      __u32 len)
{
	__be32 pseudo[3] = {saddr, daddr, bpf_htonl(IPPROTO_TCP << 16 | len)};
	__s64 sum = bpf_csum_diff(NULL, 0, pseudo, sizeof(pseudo), 0);
	if (csum_kind_of(skb) == CSUM_PARTIAL)
		return ~csum_fold((__u32)sum);
	return csum_fold((__u32)bpf_csum_diff(NULL, 0, tcp, size, (__u32)sum));
}

/* Turns a segment into the RST that answers it. To be accepted, it carries the segment's acknowledgment as its
 * sequence number, or acknowledges all that the segment occupies in sequence space (RFC 9293, 3.5.2). Returns 0 on
 * success; a RST is not answered. */
__noinline int build_reset(struct __sk_buff *skb, const struct packet *p)
{
	const __u32 len = sizeof(struct ethhdr) + sizeof(struct iphdr) + sizeof(struct tcphdr);
	if (!p || (p->flags & TCP_RST) || bpf_skb_change_tail(skb, len, 0))
		return -1;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = data + sizeof(*eth);
	struct tcphdr *tcp = (void *)(ip + 1);
	if ((void *)(tcp + 1) > end)
		return -1;
	swap_macs(eth);
	write_ip(ip, IPPROTO_TCP, p->daddr, p->saddr, sizeof(*ip) + sizeof(*tcp), 0, 64);
	__builtin_memset(tcp, 0, sizeof(*tcp));
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
	tcp->check = tcp_csum(skb, p->daddr, p->saddr, tcp, sizeof(*tcp), sizeof(*tcp));
	return 0;
}

/* Answers a segment with a RST. */
static __always_inline int reply_reset(struct __sk_buff *skb, const struct packet *p, bool ingress)
{
	return build_reset(skb, p) ? TCX_DROP : send_back(skb, ingress);
}

/* A TCP header with room for the longest options. */
struct tcp_header {
	struct tcphdr h;
	__u8 options[MAX_OPTIONS];
};

/* Turns a packet into the backed-up SYN of flow k. Returns 0 on success. */
__noinline int build_syn(struct __sk_buff *skb, const struct syn_backup *s, const struct flow_key *k)
{
	if (!s || !k)
		return -1;
	__u32 n = s->options_len;
	if (n > MAX_OPTIONS)
		return -1;
	struct tcp_header t = {};
	__u32 len = sizeof(t.h) + n;
	if (bpf_skb_change_tail(skb, sizeof(struct ethhdr) + sizeof(struct iphdr) + len, 0))
		return -1;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct iphdr *ip = data + sizeof(struct ethhdr);
	if ((void *)(ip + 1) > end)
		return -1;
	write_ip(ip, IPPROTO_TCP, k->client.w[3], k->service.w[3], sizeof(*ip) + len, s->tos, s->ttl);
	t.h.source = k->client_port;
	t.h.dest = k->service_port;
	t.h.seq = bpf_htonl(s->isn);
	t.h.doff = len / 4;
	((__u8 *)&t.h)[13] = s->flags;
	t.h.window = s->window;
	for (int i = 0; i < MAX_OPTIONS; i++)
		t.options[i] = i < n ? s->options[i] : 0;
	t.h.check = tcp_csum(skb, k->client.w[3], k->service.w[3], &t, sizeof(t), len);
	const __u32 at = sizeof(struct ethhdr) + sizeof(struct iphdr);
	if (bpf_skb_store_bytes(skb, at, &t.h, sizeof(t.h), 0))
		return -1;
	/* Bounds in a form that the verifier understands. */
	__u32 last = (n - 1) & 0x3f;
	if (n == 0 || last >= MAX_OPTIONS)
		return 0;
	return bpf_skb_store_bytes(skb, at + sizeof(t.h), t.options, last + 1, 0);
}
