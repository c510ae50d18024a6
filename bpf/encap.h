/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Packets between nodes: IPv4, UDP, a header of our own, and the client's or pod's IP packet. */
#pragma once

#include "rewrite.h"
#include <linux/udp.h>

#define ENCAP_VERSION 1
#define AF_INET_FAMILY 2              /* <sys/socket.h> AF_INET */
#define FIB_LOOKUP_SKIP_NEIGH (1u << 2) /* <linux/bpf.h> BPF_FIB_LOOKUP_SKIP_NEIGH */

/* Programs that others call. They have a stack of their own, and keep what is of remote flows out of the way of local
 * ones. Pinned: the kernel empties the map when the last process lets go of it otherwise. */
int gate_node(struct __sk_buff *skb);
int gate_home(struct __sk_buff *skb);
int gate_retry(struct __sk_buff *skb);
int gate_moved(struct __sk_buff *skb);
enum step { STEP_NODE = 0, STEP_HOME, STEP_RETRY, STEP_MOVED, STEPS };
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, STEPS);
	__uint(key_size, sizeof(__u32));
	__array(values, int(struct __sk_buff *));
} steps SEC(".maps") = {
	.values = {[STEP_NODE] = (void *)&gate_node, [STEP_HOME] = (void *)&gate_home,
		   [STEP_RETRY] = (void *)&gate_retry,
		   [STEP_MOVED] = (void *)&gate_moved}};

/* What is in an encapsulated packet. */
enum encap_type {
	ENCAP_TO_POD = 1,    /* a client's packet, or an ICMP error, for a pod: from edge to home node */
	ENCAP_TO_CLIENT = 2, /* a pod's segment, from the service address: from home to edge node */
	ENCAP_CLOSED = 3,    /* a client's segment with which its flow is over for an edge node: from home node, which knows */
	ENCAP_WHOSE = 4,     /* a client's segment of a flow that the edge node does not know: to every home node of the service */
	ENCAP_MINE = 5,      /* that segment, back from the home node that has the flow */
};

#define ENCAP_INSIDE 1u /* TO_POD: the client is on the edge node, all replies go back there */
#define ENCAP_CLOSES 2u /* TO_CLIENT: the flow is over with this segment, as the home node sees it */
#define ENCAP_MOVED 4u  /* CLOSED: it goes on by another edge node */

/* The header between UDP and the inner packet. */
struct encap_header {
	__u8 version;
	__u8 type;    /* enum encap_type */
	__u8 flags;   /* ENCAP_ flags; MINE: SEEN_FIN bits, of the sides that have sent FIN */
	__u8 scales;  /* MINE: window scales, the client's in the low 4 bits, the pod's in the high; 15: none. Else zero */
	__be32 id[2]; /* the pod's name, most significant word first; WHOSE: zero */
};

/* All headers before the inner packet. */
struct outer {
	struct iphdr ip;
	struct udphdr udp;
	struct encap_header h;
};

/* An encapsulated packet without its inner one. */
struct passage {
	__be32 node;  /* the other node: to which it goes, or from which it came */
	__u32 type;   /* enum encap_type */
	__u32 flags;  /* ENCAP_ flags */
	__u32 len;    /* bytes of the inner packet */
	__u32 hash;   /* the same for all packets of a flow: spreads flows over queues and paths */
	__u32 scales; /* MINE: window scales */
	__u64 id;     /* the pod's name */
};

/* Finds the way to an address. Returns 0, or why there is none (BPF_FIB_LKUP_RET_). */
static __always_inline long find_route(struct __sk_buff *skb, __be32 from, __be32 to, __u8 protocol, __u16 len,
				       struct bpf_fib_lookup *fib)
{
	__builtin_memset(fib, 0, sizeof(*fib));
	fib->family = AF_INET_FAMILY;
	fib->l4_protocol = protocol;
	fib->tot_len = len;
	fib->ipv4_src = from;
	fib->ipv4_dst = to;
	/* wangell0 always forwards; other devices do so only where the machine is a router. */
	fib->ifindex = wangell_ifindex;
	/* Whether the neighbour answers is for bpf_redirect_neigh to find out. */
	return bpf_fib_lookup(skb, fib, sizeof(*fib), FIB_LOOKUP_SKIP_NEIGH);
}

/* Sends a packet the way that was found, round netfilter. */
static __always_inline int by_route(const struct bpf_fib_lookup *fib)
{
	struct bpf_redir_neigh nh = {.nh_family = fib->family};
	__builtin_memcpy(nh.ipv6_nh, fib->ipv6_dst, sizeof(nh.ipv6_nh)); /* or IPv4: it is a union */
	return bpf_redirect_neigh(fib->ifindex, &nh, sizeof(nh), 0);
}

static __always_inline __u32 flow_hash(__be32 client, __be16 port)
{
	__u32 h = (client ^ port) * 2654435761u; /* Knuth's multiplicative hash */
	return h ^ h >> 16;
}

/* Encapsulates a packet and sends it to another node. Segments joined or not yet cut, and checksums that a device is
 * to complete, stay so: the outer UDP checksum is zero (RFC 768: none). */
__noinline int encapsulate(struct __sk_buff *skb, const struct passage *w)
{
	if (!w)
		return TCX_DROP;
	struct bpf_fib_lookup fib;
	long err = find_route(skb, node_addr, w->node, IPPROTO_UDP, 0, &fib);
	__u32 len = w->len + sizeof(struct outer);
	if (err == BPF_FIB_LKUP_RET_FRAG_NEEDED || (!err && !skb->gso_size && fib.mtu_result && len > fib.mtu_result)) {
		count(COUNT_TOO_BIG);
		return TCX_DROP;
	}
	if (err) {
		count(COUNT_NO_ROUTE);
		return TCX_DROP;
	}
	/* The MSS of remote flows leaves room for the headers: segments need not be cut smaller. */
	__u64 how = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_NO_CSUM_RESET;
	/* What is left to be done below the outer headers. A packet that says so cannot change its length any more, not
	 * even behind a veth; so those without say nothing. One that came encapsulated by a veth says so already. */
	struct sk_buff *kernel = bpf_cast_to_kern_ctx(skb);
	if ((skb->gso_size || summed(skb) == SUM_PARTIAL) && !BPF_CORE_READ_BITFIELD(kernel, encapsulation))
		how |= BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 | BPF_F_ADJ_ROOM_ENCAP_L4_UDP;
	if (bpf_skb_adjust_room(skb, sizeof(struct outer), BPF_ADJ_ROOM_MAC, how))
		return TCX_DROP;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct outer *o = data + sizeof(struct ethhdr);
	if ((void *)(o + 1) > end)
		return TCX_DROP;
	/* Longer than the field: segments that are joined, which will be cut. */
	__u16 tot_len = len > 0xffff ? 0 : len;
	__builtin_memset(o, 0, sizeof(*o));
	o->ip.version = 4;
	o->ip.ihl = 5;
	o->ip.tot_len = bpf_htons(tot_len);
	o->ip.frag_off = bpf_htons(0x4000); /* don't fragment: a fragment would not be recognised */
	o->ip.ttl = 64;
	o->ip.protocol = IPPROTO_UDP;
	o->ip.saddr = node_addr;
	o->ip.daddr = w->node;
	o->ip.check = csum_fold((__u32)bpf_csum_diff(NULL, 0, (__be32 *)&o->ip, sizeof(o->ip), 0));
	o->udp.source = bpf_htons(0xc000 | (w->hash & 0x3fff)); /* RFC 6335: dynamic ports */
	o->udp.dest = encap_port;
	o->udp.len = tot_len ? bpf_htons(tot_len - sizeof(struct iphdr)) : 0;
	o->h.version = ENCAP_VERSION;
	o->h.type = w->type;
	o->h.flags = w->flags;
	o->h.scales = w->scales;
	o->h.id[0] = bpf_htonl(w->id >> 32);
	o->h.id[1] = bpf_htonl(w->id);
	if (summed(skb) == SUM_COMPLETE) /* the sum of all bytes, now also these */
		bpf_csum_update(skb, bpf_csum_diff(NULL, 0, (__be32 *)o, sizeof(*o), 0));
	return by_route(&fib);
}

/* Makes the MSS of a SYN or SYN-ACK small enough for segments to be encapsulated on the way to and from a node
 * (RFC 9293, 3.7.1). */
__noinline int clamp_mss(struct __sk_buff *skb, const struct packet *p, __be32 node)
{
	struct bpf_fib_lookup fib;
	struct options o = {};
	if (!p || !load_options(skb, p, &o))
		return 0;
	int at = find_option(&o, 2, 4);
	/* The longest packet of all does not fit, and so the kernel tells how long it may be. */
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
	if (at & 1) { /* it lies across two words of the sum */
		was = __builtin_bswap16(was);
		is = __builtin_bswap16(is);
	}
	return bpf_l4_csum_replace(skb, p->l4 + offsetof(struct tcphdr, check), was, is, 2);
}

/* What decapsulate found. */
enum encap_verdict {
	ENCAP_NONE = 0, /* not encapsulated by a gate: pass it untouched */
	ENCAP_INNER,    /* the packet is now the inner one */
	ENCAP_DROP,     /* for this gate, but no good */
};

/* Takes the outer headers off a packet that another node's gate sent here. */
static __always_inline enum encap_verdict decapsulate(struct __sk_buff *skb, struct passage *w)
{
	const __u32 room = sizeof(struct ethhdr) + sizeof(struct outer);
	__u32 want = room + sizeof(struct iphdr);
	if (want > skb->len)
		want = skb->len;
	if ((void *)(long)skb->data_end - (void *)(long)skb->data < want)
		bpf_skb_pull_data(skb, want);
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct outer *o = data + sizeof(struct ethhdr);
	if ((void *)&o->h > end)
		return ENCAP_NONE;
	if (o->ip.version != 4 || o->ip.ihl != 5 || o->ip.protocol != IPPROTO_UDP || o->ip.daddr != node_addr ||
	    (o->ip.frag_off & bpf_htons(IP_MF | IP_OFFSET)) || o->udp.dest != encap_port)
		return ENCAP_NONE;
	w->node = o->ip.saddr;
	if (!bpf_map_lookup_elem(&nodes, &w->node)) {
		count(COUNT_UNKNOWN_NODE);
		return ENCAP_DROP;
	}
	struct iphdr *inner = (void *)(o + 1);
	if ((void *)(inner + 1) > end || o->h.version != ENCAP_VERSION)
		goto bad;
	/* Segments that are joined may be longer than the fields say. */
	__u32 len = bpf_ntohs(o->ip.tot_len);
	if (!skb->gso_size && (len > skb->len - sizeof(struct ethhdr) || bpf_ntohs(o->udp.len) != len - sizeof(struct iphdr) ||
			       bpf_ntohs(inner->tot_len) != len - sizeof(struct outer)))
		goto bad;
	w->type = o->h.type;
	w->flags = o->h.flags;
	w->scales = o->h.scales;
	w->id = (__u64)bpf_ntohl(o->h.id[0]) << 32 | bpf_ntohl(o->h.id[1]);
	if (bpf_skb_adjust_room(skb, -(int)sizeof(struct outer), BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO))
		goto bad;
	return ENCAP_INNER;
bad:
	count(COUNT_BAD_ENCAP);
	return ENCAP_DROP;
}
