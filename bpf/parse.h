/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Reading a packet's headers, from XDP and from socket buffers alike. */
#pragma once

#include "maps.h"
#include <bpf/bpf_endian.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/tcp.h>
#include <linux/types.h>
#include <stddef.h>

#define IP_MF 0x2000     /* more fragments (RFC 791) */
#define IP_OFFSET 0x1fff /* fragment offset */

#define ICMP_ECHOREPLY 0     /* RFC 792, 4884 */
#define ICMP_DEST_UNREACH 3  /* path MTU: code 4 (RFC 1191) */
#define ICMP_ECHO 8
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETERPROB 12

/* ICMP header (RFC 792). */
struct icmphdr {
	__u8 type;
	__u8 code;
	__sum16 checksum;
	__be32 rest; /* by type */
};

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

/* What a packet turned out to be. */
enum verdict {
	PACKET_OTHER = 0,  /* not ours: pass it untouched */
	PACKET_TCP,        /* TCP over IPv4 with whole headers */
	PACKET_ICMP,       /* ICMP with at least its 8 bytes of header */
	PACKET_FRAGMENT,   /* an IP fragment */
	PACKET_MALFORMED,  /* IPv4, but not to be understood */
};

/* A parsed TCP packet. */
struct packet {
	__be32 saddr, daddr; /* IPv4 addresses */
	__be16 sport, dport; /* TCP ports */
	__u32 seq, ack;      /* host byte order */
	__u32 payload;       /* TCP payload in bytes */
	__u32 ip_len;        /* IP total length in bytes */
	__u16 window;        /* as sent, unscaled */
	__u8 flags;          /* TCP_FIN ... */
	__u8 l4;             /* offset of the TCP header from the start of the frame */
	__u8 l4_len;         /* its length in bytes, options included */
	__u8 wscale;         /* window scale of a SYN or SYN-ACK (RFC 7323), NO_WSCALE if it has none */
};

#define NO_WSCALE 0xff

static __always_inline void addr4(struct addr *a, __be32 v4)
{
	a->w[0] = 0;
	a->w[1] = 0;
	a->w[2] = bpf_htonl(0xffff);
	a->w[3] = v4;
}

/* Whether an address is in a range of service addresses, or is a VIP outside of these. */
static __always_inline bool in_range(__be32 a)
{
#pragma clang loop unroll(full)
	for (__u32 i = 0; i < MAX_RANGES; i++)
		if (i < ranges && (a & range_mask[i]) == range_addr[i])
			return true;
	if (!outside)
		return false;
	struct addr vip;
	addr4(&vip, a);
	return bpf_map_lookup_elem(&addresses, &vip) != NULL;
}

/* Parses an Ethernet frame that holds IPv4. frame_len is the length of the whole frame, which may be longer
 * than what lies between data and end. VLAN-tagged frames are another interface's: PACKET_OTHER. */
static __always_inline enum verdict parse(void *data, void *end, __u32 frame_len, struct packet *p)
{
	struct ethhdr *eth = data;
	if ((void *)(eth + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP))
		return PACKET_OTHER;
	struct iphdr *ip = (void *)(eth + 1);
	if ((void *)(ip + 1) > end)
		return PACKET_MALFORMED;
	p->saddr = ip->saddr;
	p->daddr = ip->daddr;
	__u32 ihl = ip->ihl * 4;
	p->ip_len = bpf_ntohs(ip->tot_len);
	if (ip->version != 4 || ihl < sizeof(*ip) || p->ip_len < ihl)
		return PACKET_MALFORMED;
	/* A GSO packet made by the stack may be longer than 65,535 bytes: tot_len is 0 then, and malformed above
	 * for anything but BIG TCP, which IPv4 devices do not use unless told to. */
	if (p->ip_len > frame_len - sizeof(*eth))
		return PACKET_MALFORMED;
	if (ip->frag_off & bpf_htons(IP_MF | IP_OFFSET))
		return PACKET_FRAGMENT;
	p->l4 = sizeof(*eth) + ihl;
	if (ip->protocol == IPPROTO_ICMP)
		return p->ip_len >= ihl + sizeof(struct icmphdr) ? PACKET_ICMP : PACKET_MALFORMED;
	if (ip->protocol != IPPROTO_TCP)
		return PACKET_OTHER;
	struct tcphdr *tcp = data + (p->l4 & 0x7f);
	if ((void *)(tcp + 1) > end)
		return PACKET_MALFORMED;
	p->l4_len = tcp->doff * 4;
	if (p->l4_len < sizeof(*tcp) || ihl + p->l4_len > p->ip_len)
		return PACKET_MALFORMED;
	p->sport = tcp->source;
	p->dport = tcp->dest;
	p->seq = bpf_ntohl(tcp->seq);
	p->ack = bpf_ntohl(tcp->ack_seq);
	p->window = bpf_ntohs(tcp->window);
	p->flags = ((__u8 *)tcp)[13];
	p->payload = p->ip_len - ihl - p->l4_len;
	p->wscale = NO_WSCALE;
	return PACKET_TCP;
}

/* TCP options, copied from a packet. */
struct options {
	__u8 byte[MAX_OPTIONS]; /* as sent */
	__u32 len;              /* bytes that count */
};

/* How far find_option has got. */
struct option_walk {
	const struct options *o; /* the options */
	__u32 at;                /* next byte to look at */
	__u32 kind, len;         /* of the option that is looked for */
	int found;               /* where its data begin, or -1 */
};

static long option_step(__u32 i, void *ctx)
{
	struct option_walk *w = ctx;
	__u32 at = w->at;
	if (at >= w->o->len || at > MAX_OPTIONS - 2)
		return 1;
	__u8 kind = w->o->byte[at], len = w->o->byte[at + 1];
	if (kind == 0) /* end of options */
		return 1;
	if (kind == 1) { /* padding */
		w->at = at + 1;
		return 0;
	}
	if (kind == w->kind && len == w->len && at + len <= w->o->len) {
		w->found = at + 2;
		return 1;
	}
	w->at = at + len;
	return len < 2;
}

/* Finds an option of a kind and length (RFC 9293, 3.1). Returns the place of its data among the options, or -1.
 * Global, for the verifier to look at once. */
__noinline int find_option(const struct options *o, __u32 kind, __u32 len)
{
	struct option_walk w = {.o = o, .kind = kind, .len = len, .found = -1};
	if (o)
		bpf_loop(MAX_OPTIONS, option_step, &w, 0);
	return w.found;
}

/* Copies a segment's options. */
static __always_inline bool load_options(struct __sk_buff *skb, const struct packet *p, struct options *o)
{
	__u32 len = (p->l4_len - sizeof(struct tcphdr)) & 0x3f;
	if (p->l4_len <= sizeof(struct tcphdr) || len > MAX_OPTIONS || len == 0)
		return false;
	o->len = len;
	return bpf_skb_load_bytes(skb, p->l4 + sizeof(struct tcphdr), o->byte, len) == 0;
}

/* Window scale among options (RFC 7323, 2.3), or NO_WSCALE. */
static __always_inline __u8 wscale_of(const struct options *o)
{
	int at = find_option(o, 3, 3);
	if (at < 0 || at >= MAX_OPTIONS)
		return NO_WSCALE;
	__u8 scale = o->byte[at];
	return scale > 14 ? 14 : scale;
}

/* Reads the window scale of a SYN or SYN-ACK into p. */
static __always_inline void parse_wscale(struct __sk_buff *skb, struct packet *p)
{
	struct options o = {};
	if (load_options(skb, p, &o))
		p->wscale = wscale_of(&o);
}

/* SYN, and none of ACK, RST and FIN. */
static __always_inline bool is_syn(const struct packet *p)
{
	return (p->flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) == TCP_SYN;
}

static __always_inline void flow_key_in(struct flow_key *k, const struct packet *p)
{
	addr4(&k->client, p->saddr);
	addr4(&k->service, p->daddr);
	k->client_port = p->sport;
	k->service_port = p->dport;
}

static __always_inline void service_key_in(struct service_key *k, const struct packet *p)
{
	addr4(&k->addr, p->daddr);
	k->port = p->dport;
	k->pad = 0;
}
