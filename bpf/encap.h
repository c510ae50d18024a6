/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Packets between gates: IPv4, UDP, the gate's own header, and the client's or pod's IP packet. */
#pragma once

#include "tag.h"

/* Hashes a client's address and port: Knuth's multiplicative hash. */
static __always_inline __u32 flow_hash(__be32 client, __be16 port)
{
	__u32 h = (client ^ port) * 2654435761u;
	return h ^ h >> 16;
}

/* Encapsulates a packet and sends it to another node. GSO segments and partial checksums stay as they are: the outer
 * UDP checksum is zero, meaning none (RFC 768). */
__noinline int encapsulate(struct __sk_buff *skb, const struct encap_meta *m)
{
	if (!m)
		return TCX_DROP;
	struct bpf_fib_lookup fib;
	long err = find_route(skb, node_addr, m->node, IPPROTO_UDP, 0, &fib);
	__u32 len = m->len + sizeof(struct outer);
	if (err == BPF_FIB_LKUP_RET_FRAG_NEEDED || (!err && !skb->gso_size && fib.mtu_result && len > fib.mtu_result)) {
		count(COUNT_TOO_BIG);
		return TCX_DROP;
	}
	if (err) {
		count(COUNT_NO_ROUTE);
		return TCX_DROP;
	}
	/* clamp_mss left room for the headers, so GSO segments keep their size. */
	__u64 how = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_NO_CSUM_RESET;
	/* Segmentation and checksum offload need to know about the outer headers. A packet marked as encapsulated
	 * cannot change its length any more, not even behind a veth, so others stay unmarked. One that arrived
	 * encapsulated on a veth is marked already. */
	struct sk_buff *kernel = bpf_cast_to_kern_ctx(skb);
	if ((skb->gso_size || csum_kind_of(skb) == CSUM_PARTIAL) && !BPF_CORE_READ_BITFIELD(kernel, encapsulation))
		how |= BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 | BPF_F_ADJ_ROOM_ENCAP_L4_UDP;
	if (bpf_skb_adjust_room(skb, sizeof(struct outer), BPF_ADJ_ROOM_MAC, how))
		return TCX_DROP;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct outer *o = data + sizeof(struct ethhdr);
	if ((void *)(o + 1) > end)
		return TCX_DROP;
	/* A GSO packet may be longer than the field can say; segmentation sets the length. */
	__u16 tot_len = len > 0xffff ? 0 : len;
	write_ip(&o->ip, IPPROTO_UDP, node_addr, m->node, tot_len, 0, 64);
	o->udp.source = bpf_htons(0xc000 | (m->hash & 0x3fff)); /* dynamic ports (RFC 6335) */
	o->udp.dest = encap_port;
	o->udp.len = tot_len ? bpf_htons(tot_len - sizeof(struct iphdr)) : 0;
	o->udp.check = 0;
	__u32 *node = bpf_map_lookup_elem(&nodes, &m->node);
	if (write_encap_header(o, end, m, node ? *node : 0))
		return TCX_DROP;
	if (csum_kind_of(skb) == CSUM_COMPLETE) /* the sum of all bytes now includes these */
		bpf_csum_update(skb, bpf_csum_diff(NULL, 0, (__be32 *)o, sizeof(*o), 0));
	return send_by_route(&fib);
}

/* Reduces the MSS of a SYN or SYN-ACK so that segments fit when they are encapsulated to and from a node (RFC 9293,
 * 3.7.1). Returns 0 unless the packet cannot be changed. */
__noinline int clamp_mss(struct __sk_buff *skb, const struct packet *p, __be32 node)
{
	struct bpf_fib_lookup fib;
	struct options o = {};
	if (!p || !load_options(skb, p, &o))
		return 0;
	int at = find_option(&o, 2, 4);
	/* The kernel reports the path's MTU only for a packet that exceeds it, which one of the maximum length does. */
	if (at < 0 || find_route(skb, node_addr, node, IPPROTO_UDP, 0xffff, &fib) != BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return 0;
	const __u32 headers = sizeof(struct outer) + sizeof(struct iphdr) + sizeof(struct tcphdr);
	__u32 max = fib.mtu_result;
	if (max < headers + 8)
		return 0;
	max -= headers;
	__u32 mss_at = p->l4 + sizeof(struct tcphdr) + at;
	__be16 was = 0, is = bpf_htons(max);
	if (bpf_skb_load_bytes(skb, mss_at, &was, 2) || bpf_ntohs(was) <= max)
		return 0;
	if (bpf_skb_store_bytes(skb, mss_at, &is, 2, 0))
		return -1;
	if (at & 1) { /* it straddles two 16-bit words of the sum */
		was = __builtin_bswap16(was);
		is = __builtin_bswap16(is);
	}
	return bpf_l4_csum_replace(skb, p->l4 + offsetof(struct tcphdr, check), was, is, 2);
}

/* Whether a pod's packet that is no TCP segment is for the port at which gates exchange packets. Where the pod's node
 * masquerades it, it would arrive from the address of a node. Later fragments are harmless without the first one. */
static __always_inline bool is_for_gates(struct __sk_buff *skb)
{
	struct iphdr ip;
	if (!encap_port || skb->protocol != bpf_htons(ETH_P_IP) ||
	    bpf_skb_load_bytes(skb, sizeof(struct ethhdr), &ip, sizeof(ip)) || ip.protocol != IPPROTO_UDP ||
	    (ip.frag_off & bpf_htons(IP_OFFSET)))
		return false;
	if (ip.daddr != node_addr && !bpf_map_lookup_elem(&nodes, &ip.daddr))
		return false;
	__be16 port;
	__u32 at = sizeof(struct ethhdr) + ip.ihl * 4 + offsetof(struct udphdr, dest);
	return bpf_skb_load_bytes(skb, at, &port, sizeof(port)) || port == encap_port;
}

/* Result of decapsulate. */
enum decap_result {
	DECAP_NONE = 0, /* no encapsulated packet: passes untouched */
	DECAP_INNER,    /* skb now holds the inner packet */
	DECAP_DROP,     /* an encapsulated packet that is not accepted */
};

/* Strips the outer headers of a packet from another gate and stores what they say in m. */
static __always_inline enum decap_result decapsulate(struct __sk_buff *skb, struct encap_meta *m)
{
	const __u32 inner_at = sizeof(struct ethhdr) + sizeof(struct outer);
	pull(skb, inner_at + sizeof(struct iphdr) + sizeof(struct tcphdr));
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct iphdr *options = data + inner_at;
	if ((void *)(options + 1) <= end && options->ihl > 5) {
		pull(skb, inner_at + 60 + sizeof(struct tcphdr));
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
	}
	struct outer *o = data + sizeof(struct ethhdr);
	if ((void *)&o->h > end)
		return DECAP_NONE;
	if (o->ip.version != 4 || o->ip.ihl != 5 || o->ip.protocol != IPPROTO_UDP || o->ip.daddr != node_addr ||
	    (o->ip.frag_off & bpf_htons(IP_MF | IP_OFFSET)) || o->udp.dest != encap_port)
		return DECAP_NONE;
	m->node = o->ip.saddr;
	__u32 *node = bpf_map_lookup_elem(&nodes, &m->node);
	enum counter why = COUNT_BAD_ENCAP;
	if (!node) {
		count(COUNT_UNKNOWN_NODE);
		return DECAP_DROP;
	}
	struct iphdr *inner = (void *)(o + 1);
	if ((void *)(inner + 1) > end)
		goto bad;
	/* A GSO packet may be longer than its length fields say. */
	__u32 len = bpf_ntohs(o->ip.tot_len);
	if (!skb->gso_size &&
	    (len > skb->len - sizeof(struct ethhdr) || bpf_ntohs(o->udp.len) != len - sizeof(struct iphdr) ||
	     bpf_ntohs(inner->tot_len) != len - sizeof(struct outer)))
		goto bad;
	why = read_encap_header(o, end, m, *node);
	if (why)
		goto bad;
	why = COUNT_BAD_ENCAP;
	if (bpf_skb_adjust_room(skb, -(int)sizeof(struct outer), BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO))
		goto bad;
	return DECAP_INNER;
bad:
	count(why);
	return DECAP_DROP;
}
