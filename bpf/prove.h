/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Proof that a client is where it claims to be, asked for without keeping state. The gate answers a SYN with an ACK of
 * a number that the client has not sent. A client that waits for a SYN-ACK answers with a RST that carries this number
 * (RFC 9293, 3.10.7.3) and goes on waiting; its next SYN counts. docs/adr/0007-prove-by-challenge.md says why. */
#pragma once

#include "budget.h"
#include "build.h"
#include "siphash.h"
#include "verify.h"

#define PROOF_SLOT_SHIFT 33           /* a number is valid for 2^33 ns (8.6 s) and as long again */
#define PROOF_EXPIRY 10000000000ull   /* ns for which a client stays proven at a service */
#define MIN_FRAME 60                  /* shortest Ethernet frame, bytes, without its checksum */

/* Returns the number that a client is challenged with in a slot of time. */
static __always_inline __u32 challenge_number(const struct flow_key *k, __u32 slot)
{
	const __u64 words[2] = {
		(__u64)k->service.w[3] << 32 | k->client.w[3],
		(__u64)slot << 32 | (__u32)k->service_port << 16 | k->client_port,
	};
	return siphash(proof_key[0], proof_key[1], words, 2, 2, 4);
}

/* Returns the present slot of time. It is the same on nodes whose clocks agree. */
static __always_inline __u32 proof_slot(void)
{
	return bpf_ktime_get_tai_ns() >> PROOF_SLOT_SHIFT;
}

/* Handles the RST with which a client answers a challenge. Returns true if it is one. */
static __always_inline bool take_proof(const struct packet *p, const struct flow_key *k, __u32 service)
{
	__u32 slot = proof_slot();
	if (p->seq != challenge_number(k, slot) && p->seq != challenge_number(k, slot - 1))
		return false;
	struct source_key src = {.service = service, .client = k->client};
	__u64 now = bpf_ktime_get_ns();
	bpf_map_update_elem(&proven_clients, &src, &now, BPF_ANY);
	count(COUNT_PROVEN);
	return true;
}

/* Whether a client has recently proven itself to a service. */
static __always_inline bool is_proven(const struct flow_key *k, __u32 service, __u64 now)
{
	struct source_key src = {.service = service, .client = k->client};
	__u64 *at = bpf_map_lookup_elem(&proven_clients, &src);
	return at && now - *at < PROOF_EXPIRY;
}

/* What is to be done with the SYN of a service that has no pod. */
enum judgment {
	ADMIT = 0, /* park it */
	REJECT,    /* drop it */
	CHALLENGE, /* ask its client for a proof */
};

/* Judges a SYN that came by path before it is kept or wakes anything. ctx is a struct xdp_md if xdp is set, else a
 * struct __sk_buff. */
static __always_inline enum judgment judge(void *ctx, bool xdp, struct packet *p, const struct flow_key *k,
					   const struct service *s, struct service_status *st, enum flow_path path)
{
	p->uncharged = false;
	if (!may_wake(ctx, xdp, p, k, path))
		return REJECT;
	struct parked_flow *have = bpf_map_lookup_elem(&parked_flows, k);
	if (have && have->isn == p->seq)
		return ADMIT; /* it was admitted before */
	__u64 now = bpf_ktime_get_ns();
	if (is_proven(k, s->index, now)) {
		if (within_proven_budget(k, st, now))
			return ADMIT;
		count(COUNT_OVER_BUDGET);
		tell_over_budget(s->index, k, WAKES_PROVEN, now);
		return REJECT;
	}
	__u32 wary = *(volatile __u32 *)&st->flags & (SERVICE_DRAINS | SERVICE_DOUBTED);
	if (s->flags & SERVICE_PROOF_NEVER)
		wary = 0;
	if (!wary && !(s->flags & SERVICE_PROOF_ALWAYS)) {
		bool cold = state_now(st) == SERVICE_COLD;
		__u32 scope = exceeded_budget(k, st, cold, now);
		p->uncharged = !cold;
		if (scope == WITHIN_BUDGET)
			return ADMIT;
		/* A crowd at a waking service is ordinary. */
		if (scope != BEYOND_PARKED)
			tell_over_budget(s->index, k, scope, now);
	}
	if (s->flags & SERVICE_PROOF_NEVER) {
		count(COUNT_OVER_BUDGET);
		return REJECT;
	}
	/* Its client goes on repeating it for longer than pods drain. */
	if (is_repeated(k, p->seq, now) && !(wary & SERVICE_DRAINS) && (!wary || may_repeats_wake(st, now))) {
		count(COUNT_UNPROVEN);
		return ADMIT;
	}
	return CHALLENGE;
}

/* Writes the challenge to a SYN into its frame, all but the MAC addresses and the TCP checksum. Returns the TCP header, or NULL if there is
 * no room. */
static __always_inline struct tcphdr *write_challenge(void *data, void *end, const struct packet *p,
						      const struct flow_key *k)
{
	struct iphdr *ip = data + sizeof(struct ethhdr);
	struct tcphdr *tcp = (void *)(ip + 1);
	if ((void *)(tcp + 1) > end)
		return NULL;
	write_ip(ip, IPPROTO_TCP, p->daddr, p->saddr, sizeof(*ip) + sizeof(*tcp), 0, 64);
	__builtin_memset(tcp, 0, sizeof(*tcp));
	tcp->source = p->dport;
	tcp->dest = p->sport;
	tcp->ack_seq = bpf_htonl(challenge_number(k, proof_slot()));
	tcp->doff = sizeof(*tcp) / 4;
	tcp->ack = 1;
	count(COUNT_CHALLENGES);
	return tcp;
}

/* Finds the MAC addresses with which a packet from a VIP goes to a client by this node's routes. Returns 0 if XDP_TX can
 * send it: it goes out of the interface on which ctx came in, and the neighbor is known. */
static __always_inline int find_neighbor(struct xdp_md *ctx, const struct packet *p, struct bpf_fib_lookup *fib)
{
	__builtin_memset(fib, 0, sizeof(*fib));
	fib->family = AF_INET;
	fib->l4_protocol = IPPROTO_TCP;
	fib->ipv4_src = p->daddr;
	fib->ipv4_dst = p->saddr;
	fib->ifindex = wangell_ifindex; /* as in find_route */
	return bpf_fib_lookup(ctx, fib, sizeof(*fib), 0) || fib->ifindex != ctx->ingress_ifindex;
}

/* Turns a SYN into the challenge that answers it, in XDP, to the MAC addresses of fib. Returns 0 on success. */
static __always_inline int challenge_xdp(struct xdp_md *ctx, const struct packet *p, const struct flow_key *k,
					 const struct bpf_fib_lookup *fib)
{
	const __u32 used = sizeof(struct ethhdr) + sizeof(struct iphdr) + sizeof(struct tcphdr);
	int more = MIN_FRAME - (int)bpf_xdp_get_buff_len(ctx);
	if (more < 0 && bpf_xdp_adjust_tail(ctx, more))
		return -1;
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct tcphdr *tcp = write_challenge(data, end, p, k);
	if (!tcp)
		return -1;
	struct ethhdr *eth = data;
	__builtin_memcpy(eth->h_dest, fib->dmac, 6);
	__builtin_memcpy(eth->h_source, fib->smac, 6);
	__be32 pseudo[3] = {p->daddr, p->saddr, bpf_htonl(IPPROTO_TCP << 16 | sizeof(*tcp))};
	__u32 sum = bpf_csum_diff(NULL, 0, pseudo, sizeof(pseudo), 0);
	tcp->check = csum_fold((__u32)bpf_csum_diff(NULL, 0, (__be32 *)tcp, sizeof(*tcp), sum));
	if (data + MIN_FRAME <= end)
		__builtin_memset(data + used, 0, MIN_FRAME - used);
	return 0;
}

/* Turns a SYN into the challenge that answers it. Returns 0 on success. */
__noinline int make_challenge(struct __sk_buff *skb, const struct packet *p, const struct flow_key *k)
{
	if (!p || !k ||
	    bpf_skb_change_tail(skb, sizeof(struct ethhdr) + sizeof(struct iphdr) + sizeof(struct tcphdr), 0))
		return -1;
	struct tcphdr *tcp = write_challenge((void *)(long)skb->data, (void *)(long)skb->data_end, p, k);
	if (!tcp)
		return -1;
	tcp->check = tcp_csum(skb, p->daddr, p->saddr, tcp, sizeof(*tcp), sizeof(*tcp));
	return 0;
}

/* Answers a SYN with a challenge, which goes where the routes say that the client is: a proof is worth nothing if the
 * host that sent the SYN can give it from any address. */
static __always_inline int challenge(struct __sk_buff *skb, const struct packet *p, const struct flow_key *k,
				     const struct origin *o)
{
	if (make_challenge(skb, p, k))
		return TCX_DROP;
	return o->path == PATH_STACK ? send_to_origin(skb, o) : send_routed(skb);
}
