/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Judges a SYN whose service has no pod, before anything is kept or started for it. A pod's own kernel judges the SYNs
 * of a warm service, and one that it drops costs nothing. */
#pragma once

#include "rewrite.h"

#define SUM_CHUNK 512 /* most bytes that bpf_csum_diff takes at once before Linux 6.13 */

/* Returns the ones' complement sum, 16 bits, of the first len bytes of the frame in `scratch`, or -1. */
__noinline int sum_scratch(__u32 len)
{
	__u32 zero = 0, sum = 0;
	struct parked *s = bpf_map_lookup_elem(&scratch, &zero);
	if (!s || len > MAX_FRAME - 4)
		return -1;
	/* bpf_csum_diff takes whole words only. */
	for (int i = 0; i < 3; i++)
		s->frame[len + i] = 0;
	for (__u32 at = 0; at < MAX_FRAME && at < len; at += SUM_CHUNK) {
		__u32 n = (len - at + 3) & ~3u;
		if (n > SUM_CHUNK)
			n = SUM_CHUNK;
		sum = bpf_csum_diff(NULL, 0, (__be32 *)(s->frame + at), n, sum);
	}
	return (__u16)~csum_fold(sum);
}

/* Whether the TCP checksum of the segment in ctx, which is a struct xdp_md if xdp is set, else a struct __sk_buff, is
 * right. XDP cannot see that a checksum is left to a device, as on a veth, so the pseudo header's sum alone is
 * right as well. Overwrites `scratch`. */
static __always_inline bool has_right_checksum(void *ctx, bool xdp, const struct packet *p)
{
	if (!xdp) {
		enum csum_kind kind = csum_kind_of(ctx);
		if (kind == CSUM_UNNECESSARY || kind == CSUM_PARTIAL)
			return true;
	}
	__u32 zero = 0, len = p->l4_len + p->payload;
	struct parked *s = bpf_map_lookup_elem(&scratch, &zero);
	/* Bounds in a form that the verifier understands. */
	__u32 n = (len - 1) & 0x7ff;
	if (!s || n >= MAX_FRAME - 4)
		return false;
	if (xdp ? bpf_xdp_load_bytes(ctx, p->l4, s->frame, n + 1) : bpf_skb_load_bytes(ctx, p->l4, s->frame, n + 1))
		return false;
	__u64 pseudo = (__u64)p->saddr + p->daddr + bpf_htons(IPPROTO_TCP) + bpf_htons(len);
	__u16 partial = ~csum_fold(pseudo);
	if (((struct tcphdr *)s->frame)->check == partial)
		return true;
	int sum = sum_scratch(len);
	return sum >= 0 && csum_fold((__u64)partial + sum) == 0;
}

/* Whether the checksum of the IP header of the packet in ctx is right. Overwrites `scratch`. */
static __always_inline bool has_right_ip_checksum(void *ctx, bool xdp, const struct packet *p)
{
	const __u32 at = sizeof(struct ethhdr);
	__u32 zero = 0;
	struct parked *s = bpf_map_lookup_elem(&scratch, &zero);
	/* Bounds in a form that the verifier of Linux 6.12 understands, too. */
	__u32 n = (p->l4 - at - 1) & 0x3f;
	barrier_var(n);
	if (!s || (xdp ? bpf_xdp_load_bytes(ctx, at, s->frame, n + 1) : bpf_skb_load_bytes(ctx, at, s->frame, n + 1)))
		return false;
	return sum_scratch(n + 1) == 0xffff;
}

/* Whether the IP header of the packet in ctx has an option that names routers to pass (RFC 791), which would bring
 * replies to wherever the sender likes, or options that cannot be parsed, among which one may hide. */
static __always_inline bool is_source_routed(void *ctx, bool xdp, const struct packet *p)
{
	const __u32 at = sizeof(struct ethhdr) + sizeof(struct iphdr);
	/* Bounds in a form that the verifier of Linux 6.12 understands, too. */
	__u32 n = (p->l4 - at - 1) & 0x3f;
	barrier_var(n);
	if (p->l4 <= at || n >= MAX_OPTIONS)
		return false;
	struct options o = {.len = n + 1};
	if (xdp ? bpf_xdp_load_bytes(ctx, at, o.byte, n + 1) : bpf_skb_load_bytes(ctx, at, o.byte, n + 1))
		return true;
	return find_option(&o, IPOPT_LSRR, 0) != NO_OPTION || find_option(&o, IPOPT_SSRR, 0) != NO_OPTION;
}

/* Whether no client can have a flow's client address: 0.0.0.0/8, 127.0.0.0/8, multicast, broadcast (RFC 1122, 3.2.1.3),
 * class E, or a VIP, such as the one that the SYN is for. An address of this node is one of its own stack's clients. */
static __always_inline bool has_impossible_client(const struct flow_key *k, enum flow_path path)
{
	__u32 a = bpf_ntohl(k->client.w[3]);
	if (a >> 24 == 0 || a >> 24 == 127 || a >> 28 >= 14 || bpf_map_lookup_elem(&addresses, &k->client))
		return true;
	__u32 *own = bpf_map_lookup_elem(&own_addresses, &k->client);
	return own && (*own == OWN_BROADCAST || path != PATH_STACK);
}

/* Whether a SYN that came by path may wake its service. ctx is as for has_right_checksum. Overwrites `scratch`. */
static __always_inline bool may_wake(void *ctx, bool xdp, const struct packet *p, const struct flow_key *k,
				     enum flow_path path)
{
	if (sizeof(struct ethhdr) + p->ip_len > MAX_FRAME) {
		count(COUNT_TOO_LONG);
		return false;
	}
	if (has_impossible_client(k, path) || is_source_routed(ctx, xdp, p)) {
		count(COUNT_BAD_SOURCE);
		return false;
	}
	if (!has_right_ip_checksum(ctx, xdp, p) || !has_right_checksum(ctx, xdp, p)) {
		count(COUNT_BAD_CHECKSUM);
		return false;
	}
	return true;
}
