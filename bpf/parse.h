/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Reads a packet's headers, both in XDP and in tc programs. */
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

/* ICMP types (RFC 792). */
#define ICMP_ECHOREPLY 0
#define ICMP_DEST_UNREACH 3 /* code 4 carries the path MTU (RFC 1191) */
#define ICMP_ECHO 8
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETERPROB 12

/* ICMP header (RFC 792). */
struct icmphdr {
	__u8 type;
	__u8 code;
	__sum16 checksum;
	__be32 rest; /* meaning depends on the type */
};

/* Byte 13 of a TCP header (RFC 9293, 3.1). */
#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

/* Kind of a packet. */
enum packet_kind {
	PACKET_OTHER = 0, /* nothing for the gate: passes untouched */
	PACKET_TCP,       /* TCP over IPv4 with complete headers */
	PACKET_ICMP,      /* ICMP with a complete header */
	PACKET_FRAGMENT,  /* an IP fragment */
	PACKET_MALFORMED, /* IPv4 with an invalid or truncated header */
};

/* The headers of a packet. Those of TCP are valid for PACKET_TCP only. */
struct packet {
	__be32 saddr, daddr; /* IPv4 addresses */
	__be16 sport, dport; /* TCP ports */
	__u32 seq, ack;      /* sequence and acknowledgment number, host byte order */
	__u32 payload;       /* TCP payload, bytes */
	__u32 ip_len;        /* IP total length, bytes */
	__u16 window;        /* TCP window, unscaled */
	__u8 flags;          /* TCP_ bits */
	__u8 l4;             /* offset of the TCP or ICMP header in the frame */
	__u8 l4_len;         /* length of the TCP header with options, bytes */
	__u8 wscale;         /* window scale of a SYN or SYN-ACK (RFC 7323) once parse_wscale has read it */
	bool uncharged;      /* judge admitted this SYN because its service is waking: it may not start a wake */
};

#define NO_WSCALE 0xff /* no window scale was offered */

/* Stores an IPv4 address in its 128-bit form. */
static __always_inline void set_addr(struct addr *a, __be32 v4)
{
	a->w[0] = 0;
	a->w[1] = 0;
	a->w[2] = bpf_htonl(0xffff);
	a->w[3] = v4;
}

/* Whether an address may be a VIP: it is in a service range, or is a VIP outside of them. */
static __always_inline bool in_range(__be32 a)
{
#pragma clang loop unroll(full)
	for (__u32 i = 0; i < MAX_RANGES; i++)
		if (i < range_count && (a & range_mask[i]) == range_addr[i])
			return true;
	if (!vips_outside_ranges)
		return false;
	struct addr vip;
	set_addr(&vip, a);
	return bpf_map_lookup_elem(&addresses, &vip) != NULL;
}

/* Parses an Ethernet frame. frame_len is its whole length, of which only the part between data and end can be read.
 * VLAN-tagged frames belong to another interface and are PACKET_OTHER. */
static __always_inline enum packet_kind parse(void *data, void *end, __u32 frame_len, struct packet *p)
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
	/* A BIG TCP packet has tot_len 0 and is refused above. IPv4 interfaces use it only if configured to. */
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

/* Makes the first bytes of a packet directly readable. Pulling more than needed may copy the packet in vain. */
static __always_inline void pull(struct __sk_buff *skb, __u32 want)
{
	__u32 have = (void *)(long)skb->data_end - (void *)(long)skb->data;
	if (have >= want)
		return;
	if (want > skb->len)
		want = skb->len;
	if (have < want)
		bpf_skb_pull_data(skb, want);
}

/* Makes the headers that the gate reads directly readable. */
static __always_inline void pull_headers(struct __sk_buff *skb)
{
	struct iphdr *ip = (void *)(long)skb->data + sizeof(struct ethhdr);
	if ((void *)(ip + 1) > (void *)(long)skb->data_end) {
		pull(skb, sizeof(struct ethhdr) + sizeof(*ip));
		ip = (void *)(long)skb->data + sizeof(struct ethhdr);
		if ((void *)(ip + 1) > (void *)(long)skb->data_end)
			return;
	}
	if (ip->protocol == IPPROTO_TCP)
		pull(skb, sizeof(struct ethhdr) + ip->ihl * 4 + sizeof(struct tcphdr));
	else if (ip->protocol == IPPROTO_ICMP && in_range(ip->daddr))
		/* An ICMP error quotes the IP header and the first 8 bytes of the packet it is about. */
		pull(skb, sizeof(struct ethhdr) + 60 + sizeof(struct icmphdr) + 60 + 8);
}

/* Parses the packet of a tc program. */
static __always_inline enum packet_kind parse_skb(struct __sk_buff *skb, struct packet *p)
{
	pull_headers(skb);
	return parse((void *)(long)skb->data, (void *)(long)skb->data_end, skb->len, p);
}

/* TCP options, copied from a packet. */
struct options {
	__u8 byte[MAX_OPTIONS]; /* as sent */
	__u32 len;              /* valid bytes */
};

#define NO_OPTION -1   /* there is no such option */
#define BAD_OPTIONS -2 /* nor are the options well formed */

/* State of find_option's loop. */
struct option_walk {
	const struct options *o; /* where to look */
	__u32 at;                /* next byte */
	__u32 kind, len;         /* option to find; len 0 is any */
	int found;               /* offset of its data, NO_OPTION or BAD_OPTIONS */
};

static long find_option_step(__u32 i, void *ctx)
{
	struct option_walk *w = ctx;
	__u32 at = w->at;
	if (at >= w->o->len || at >= MAX_OPTIONS)
		return 1;
	/* A length beyond the last byte makes the option invalid, as 0 does. */
	__u8 kind = w->o->byte[at], len = at < MAX_OPTIONS - 1 ? w->o->byte[at + 1] : 0;
	if (kind == 0) /* end of option list */
		return 1;
	if (kind == 1) { /* no-operation */
		w->at = at + 1;
		return 0;
	}
	if (len < 2 || at + len > w->o->len) {
		w->found = BAD_OPTIONS;
		return 1;
	}
	if (kind == w->kind && (len == w->len || !w->len)) {
		w->found = at + 2;
		return 1;
	}
	w->at = at + len;
	return 0;
}

/* Finds an option of a given kind and length (RFC 9293, 3.1), or of any length if len is 0. Returns the offset of its
 * data in the options, NO_OPTION or BAD_OPTIONS. A global function, so that the verifier checks it once. */
__noinline int find_option(const struct options *o, __u32 kind, __u32 len)
{
	struct option_walk w = {.o = o, .kind = kind, .len = len, .found = NO_OPTION};
	if (o)
		bpf_loop(MAX_OPTIONS, find_option_step, &w, 0);
	return w.found;
}

/* Copies the options of a segment; false if it has none. */
static __always_inline bool load_options(struct __sk_buff *skb, const struct packet *p, struct options *o)
{
	/* Bounds in a form that the verifier of Linux 6.12 understands, too. */
	__u32 n = (p->l4_len - sizeof(struct tcphdr) - 1) & 0x3f;
	barrier_var(n);
	if (p->l4_len <= sizeof(struct tcphdr) || n >= MAX_OPTIONS)
		return false;
	o->len = n + 1;
	return bpf_skb_load_bytes(skb, p->l4 + sizeof(struct tcphdr), o->byte, n + 1) == 0;
}

/* Returns the window scale that options offer, at most 14 (RFC 7323, 2.3), or NO_WSCALE. */
static __always_inline __u8 find_wscale(const struct options *o)
{
	int at = find_option(o, 3, 3);
	if (at < 0 || at >= MAX_OPTIONS)
		return NO_WSCALE;
	__u8 scale = o->byte[at];
	return scale > 14 ? 14 : scale;
}

/* Reads the window scale of a SYN or SYN-ACK into p. */
__noinline int parse_wscale(struct __sk_buff *skb, struct packet *p)
{
	struct options o = {};
	if (p && load_options(skb, p, &o))
		p->wscale = find_wscale(&o);
	return 0;
}

/* Whether a segment is a SYN without ACK, RST and FIN. */
static __always_inline bool is_syn(const struct packet *p)
{
	return (p->flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) == TCP_SYN;
}

/* Returns a - b in sequence space (RFC 9293, 3.4). */
static __always_inline __s32 seq_diff(__u32 a, __u32 b)
{
	return (__s32)(a - b);
}

/* Returns the sequence number after a segment's payload and FIN. */
static __always_inline __u32 seq_end(const struct packet *p)
{
	return p->seq + p->payload + ((p->flags & TCP_FIN) ? 1 : 0);
}

/* Key of the flow of a client's segment. */
static __always_inline void flow_key_from_client(struct flow_key *k, const struct packet *p)
{
	set_addr(&k->client, p->saddr);
	set_addr(&k->service, p->daddr);
	k->client_port = p->sport;
	k->service_port = p->dport;
}

/* Key of the flow of a segment from a service address to a client. */
static __always_inline void flow_key_to_client(struct flow_key *k, const struct packet *p)
{
	set_addr(&k->client, p->daddr);
	set_addr(&k->service, p->saddr);
	k->client_port = p->dport;
	k->service_port = p->sport;
}

/* Returns the service of a flow. */
static __always_inline struct service *service_of_flow(const struct flow_key *k)
{
	struct service_key sk = {.addr = k->service, .port = k->service_port};
	return bpf_map_lookup_elem(&services, &sk);
}

/* Describes where a packet at an interface of this node comes from. */
static __always_inline void origin_from_frame(struct origin *o, const struct ethhdr *eth, __u32 ifindex,
					      enum flow_path path)
{
	o->ifindex = ifindex;
	o->path = path;
	o->edge = 0;
	__builtin_memcpy(o->client_mac, eth->h_source, 6);
	__builtin_memcpy(o->our_mac, eth->h_dest, 6);
}
