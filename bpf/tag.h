/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Tags of encapsulated packets: proof that a node has sent them. docs/cluster/tags.md specifies them, and
 * docs/adr/0009-tagged-encapsulation.md says why they are as they are. */
#pragma once

#include "build.h"
#include "siphash.h"
#include <linux/udp.h>

#define ENCAP_PLAIN 1  /* version of a header without a tag */
#define ENCAP_TAGGED 2 /* version of a header with a tag */

/* Purpose of an encapsulated packet. The edge node is where a client's packets enter the cluster, the home node is
 * where the pod runs. */
enum encap_type {
	ENCAP_TO_POD = 1,     /* edge to home node: a client's packet, or an ICMP error, for a pod */
	ENCAP_TO_CLIENT = 2,  /* home to edge node: a pod's segment, from the service address */
	ENCAP_CLOSED = 3,     /* home to edge node: the client's segment that ended its flow */
	ENCAP_FLOW_QUERY = 4, /* edge to all home nodes of a service: a client's segment of an unknown flow */
	ENCAP_FLOW_CLAIM = 5, /* home to edge node: that segment, from the home node that has the flow */
};
EXPORT_TO_GO(enum, encap_type);

/* Flags of an encapsulated packet. */
enum encap_flag {
	ENCAP_INSIDE = 1, /* TO_POD: the client is on the edge node, so all replies go back there */
	ENCAP_CLOSES = 2, /* TO_CLIENT: this segment ends the flow, according to the home node */
	ENCAP_LEFT = 1,   /* TO_CLIENT, if it ends the flow: the pod takes no new flows any more */
	ENCAP_MOVED = 4,  /* CLOSED: the flow continues through another edge node */
};
EXPORT_TO_GO(enum, encap_flag);

/* The gate's header, between UDP and the inner packet. */
struct encap_header {
	__u8 version; /* ENCAP_PLAIN or ENCAP_TAGGED */
	__u8 type;    /* enum encap_type; tagged: flags << 3 and the key's slot << 6 as well */
	__u8 flags;   /* enum encap_flag; FLOW_CLAIM: SEEN_FIN bits of the sides that have sent FIN; tagged: zero, masked */
	__u8 scales;  /* FLOW_CLAIM: window scales (low nibble client, high nibble pod, 15: none); else 0; tagged: masked */
	__be32 id[2]; /* the pod's ID, most significant word first; FLOW_QUERY: zero; tagged: masked */
};

/* All headers before the inner packet, apart from Ethernet's. */
struct outer {
	struct iphdr ip;
	struct udphdr udp;
	struct encap_header h;
};

/* An encapsulated packet apart from its inner one. */
struct encap_meta {
	__be32 node;  /* IPv4 address of the other node: destination or source */
	__u32 type;   /* enum encap_type */
	__u32 flags;  /* enum encap_flag or SEEN_FIN bits, as in encap_header */
	__u32 len;    /* length of the inner packet, bytes; only set for sending */
	__u32 hash;   /* equal for all packets of a flow: spreads flows over queues and paths; only set for sending */
	__u32 scales; /* as in encap_header */
	__u64 id;     /* the pod's ID */
};

/* What a tag covers. Segmentation leaves all of it as it is, so that the segments of a packet share its tag. */
struct tag_input {
	__be32 from, to;     /* the nodes */
	__u8 version;        /* of the header */
	__u8 type;           /* as in the header, with flags and slot */
	__u8 protocol;       /* of the inner packet */
	__u8 flags;          /* its TCP_SYN and TCP_RST bits; 0 if it is not TCP */
	__be32 seq;          /* its sequence number if one of them is set, else 0 */
	__be32 saddr, daddr; /* its addresses */
	__be32 ports;        /* the first four bytes after its IP header: ports, or ICMP type, code and checksum */
	__u32 pad;           /* zero */
};

_Static_assert(sizeof(struct tag_input) == 4 * sizeof(__u64), "a tag covers four words");

/* Reads what a tag covers, except for version and type. Returns 0 unless the packet is too short. */
static __always_inline int read_tag_input(const struct outer *o, void *end, struct tag_input *t)
{
	struct iphdr *ip = (void *)(o + 1);
	if ((void *)(ip + 1) > end)
		return -1;
	void *l4 = (void *)ip + ((ip->ihl * 4) & 0x3c);
	struct tcphdr *tcp = l4;
	t->from = o->ip.saddr;
	t->to = o->ip.daddr;
	t->protocol = ip->protocol;
	t->saddr = ip->saddr;
	t->daddr = ip->daddr;
	if (l4 + 4 > end)
		return -1;
	t->ports = *(__be32 *)l4;
	if (ip->protocol != IPPROTO_TCP)
		return 0;
	if (l4 + 14 > end)
		return -1;
	t->flags = ((__u8 *)tcp)[13] & (TCP_SYN | TCP_RST);
	if (t->flags)
		t->seq = tcp->seq;
	return 0;
}

/* Returns the tag for a key: the SipHash-1-3 of what it covers. */
__noinline __u64 compute_tag(const struct tag_input *t, __u32 slot)
{
	__u32 zero = 0;
	struct tag_key_set *keys = bpf_map_lookup_elem(&tag_keys, &zero);
	if (!t || !keys)
		return 0;
	const __u64 *key = keys->key[slot % TAG_SLOTS];
	return siphash(key[0], key[1], (const __u64 *)t, 4, 1, 3);
}

/* Folds a tag into what masks flags and scales. */
static __always_inline __u16 fold_tag(__u64 tag)
{
	tag ^= tag >> 32;
	return tag ^ tag >> 16;
}

/* Writes the header of a packet whose outer IP header is complete. node is the value of the destination in `nodes`.
 * Returns 0 on success. */
static __always_inline int write_encap_header(struct outer *o, void *end, const struct encap_meta *m, __u32 node)
{
	__u32 zero = 0;
	struct tag_key_set *keys = bpf_map_lookup_elem(&tag_keys, &zero);
	__u32 slot = keys ? keys->send - 1 : TAG_SLOTS;
	__u64 id = m->id;
	__u32 mask = 0;
	if ((node & NODE_TAGS) && slot < TAG_SLOTS) {
		struct tag_input t = {.version = ENCAP_TAGGED, .type = m->type | m->flags << 3 | slot << 6};
		if (read_tag_input(o, end, &t))
			return -1;
		__u64 tag = compute_tag(&t, slot);
		mask = fold_tag(tag);
		id ^= tag;
		o->h.version = ENCAP_TAGGED;
		o->h.type = t.type;
		o->h.flags = mask >> 8;
	} else {
		o->h.version = ENCAP_PLAIN;
		o->h.type = m->type;
		o->h.flags = m->flags;
	}
	o->h.scales = m->scales ^ mask;
	o->h.id[0] = bpf_htonl(id >> 32);
	o->h.id[1] = bpf_htonl(id);
	return 0;
}

/* Reads the header of a packet. node is the value of its source in `nodes`. Returns 0, or the counter of those that are
 * dropped for the same reason. */
static __always_inline enum counter read_encap_header(const struct outer *o, void *end, struct encap_meta *m,
						      __u32 node)
{
	__u64 id = (__u64)bpf_ntohl(o->h.id[0]) << 32 | bpf_ntohl(o->h.id[1]);
	__u8 type = o->h.type, flags = o->h.flags, scales = o->h.scales;
	if (o->h.version == ENCAP_PLAIN) {
		if (node & NODE_TAGS_ALL)
			return COUNT_UNTAGGED;
	} else if (o->h.version == ENCAP_TAGGED) {
		struct tag_input t = {.version = ENCAP_TAGGED, .type = type};
		__u32 zero = 0, slot = type >> 6;
		struct tag_key_set *keys = bpf_map_lookup_elem(&tag_keys, &zero);
		if (!keys || !(keys->valid & 1u << slot) || read_tag_input(o, end, &t))
			return COUNT_BAD_TAG;
		__u64 tag = compute_tag(&t, slot);
		__u16 mask = fold_tag(tag);
		id ^= tag;
		scales ^= mask;
		if ((flags ^ mask >> 8) || (scales && (type & 7) != ENCAP_FLOW_CLAIM) ||
		    (id && (type & 7) == ENCAP_FLOW_QUERY))
			return COUNT_BAD_TAG;
		flags = type >> 3 & 7;
		type &= 7;
	} else {
		return COUNT_BAD_ENCAP;
	}
	m->type = type;
	m->flags = flags;
	m->scales = scales;
	m->id = id;
	return 0;
}
