/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Flows whose client comes by another edge node than before, because its service address has moved. The new edge node
 * knows nothing of them, so it asks the home nodes of the service (ENCAP_WHOSE), each with a copy of the client's
 * segment. The one that has the flow sends its copy back (ENCAP_MINE); the edge node makes an entry and sends the segment
 * on, as all that follow. The home node then tells the edge node before, if it is still there (ENCAP_CLOSED). */
#pragma once

#include "remote.h"

#define ASK_TIMEOUT 200000000ull    /* ns: what comes later and is still nobody's gets a RST */
#define ASK_FORGOTTEN 120000000000ull /* ns: this is another connection, as TCP sends again sooner (RFC 6298, 2.5) */
#define ASK_WINDOW 100000000ull     /* ns in which at most so many packets are sent to ask: */
#define MAX_ASKS 1024
#define FAR (1u << 30) /* in sequence space: beyond all windows (RFC 7323, 2.3) */

/* Takes some packets out of what may be sent now. Where two CPUs begin a window at once, it may be a little more. */
static __always_inline bool may_ask(__u32 packets, __u64 now)
{
	__u32 zero = 0;
	struct asking *a = bpf_map_lookup_elem(&askings, &zero);
	if (!a)
		return false;
	__u64 window = now / ASK_WINDOW;
	if (a->window != window) {
		a->window = window;
		a->packets = 0;
	}
	return __sync_fetch_and_add(&a->packets, packets) + packets <= MAX_ASKS;
}

/* New edge node: asks for the flow of a client's segment. */
static __always_inline int ask(struct __sk_buff *skb, const struct packet *p, const struct flow_key *k, __u32 service)
{
	struct home_nodes *h = bpf_map_lookup_elem(&homes, &service);
	struct asked *before = bpf_map_lookup_elem(&askeds, k);
	__u64 now = bpf_ktime_get_ns(), age = before ? now - before->at : ASK_FORGOTTEN;
	/* What is neither ACK nor RST is no segment of an open connection (RFC 9293, 3.10.7.4). */
	if (!h || !(p->flags & (TCP_ACK | TCP_RST)) || (p->flags & TCP_SYN) || (age >= ASK_TIMEOUT && age < ASK_FORGOTTEN)) {
		if (before)
			bpf_map_delete_elem(&askeds, k);
		count(COUNT_STRAY);
		return reset(skb, p, true);
	}
	if (!may_ask(h->n, now)) {
		count(COUNT_ASK_LIMIT);
		return TCX_DROP;
	}
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	if ((void *)(eth + 1) > end)
		return TCX_DROP;
	struct asked a = {.at = age < ASK_TIMEOUT ? before->at : now, .origin = {.ifindex = skb->ifindex, .path = PATH_NIC}};
	__builtin_memcpy(a.origin.client_mac, eth->h_source, 6);
	__builtin_memcpy(a.origin.our_mac, eth->h_dest, 6);
	bpf_map_update_elem(&askeds, k, &a, BPF_ANY);
	count(COUNT_ASKED);
	/* A copy cannot be sent by way of a neighbour that is yet to be found. Each goes through wangell0, where it comes
	 * to ask_one. */
	for (int i = 0; i < MAX_HOMES && i < h->n; i++) {
		skb->mark = i + 1;
		bpf_clone_redirect(skb, wangell_ifindex, BPF_F_INGRESS);
	}
	return TCX_DROP;
}

/* New edge node: sends a copy of a client's segment to the home node that its mark says. */
static __always_inline int ask_one(struct __sk_buff *skb, const struct packet *p, __u32 service)
{
	struct home_nodes *h = bpf_map_lookup_elem(&homes, &service);
	__u32 i = skb->mark - 1;
	if (!h || i >= MAX_HOMES || i >= h->n)
		return TCX_DROP;
	skb->mark = 0;
	struct passage w = {.node = h->node[i], .type = ENCAP_WHOSE, .len = p->ip_len, .hash = flow_hash(p->saddr, p->sport)};
	return encapsulate(skb, &w);
}

/* What gate_moved does with a client's segment: one of no known flow, its copy, one whose flow was just taken over, or one
 * whose flow is at home here and came by another edge node so far. */
static __always_inline int moved(struct __sk_buff *skb, const struct packet *p)
{
	struct flow_key k;
	flow_key_in(&k, p);
	struct service_key sk;
	service_key_in(&sk, p);
	struct service *s = bpf_map_lookup_elem(&services, &sk);
	if (!s)
		return TCX_DROP;
	if (skb->ifindex == wangell_ifindex)
		return ask_one(skb, p, s->index);
	struct flow *f = bpf_map_lookup_elem(&flows, &k);
	if (!f)
		return ask(skb, p, &k, s->index);
	__u32 index = f->pod;
	struct pod *pod = bpf_map_lookup_elem(&pods, &index);
	if (!pod || pod->generation != f->generation)
		return TCX_DROP;
	if (!pod->node)
		return over_at(skb, p, pod, f->origin.edge, ENCAP_MOVED);
	track(&k, f, p, IN);
	account(index, f, IN, p->ip_len);
	return to_node(skb, p, pod, false);
}

static __always_inline __u32 nibble(__u8 wscale) { return wscale == NO_WSCALE ? 15 : wscale & 15; }

/* Home node: another node asks whose a client's segment is. Who does not know says nothing. */
__noinline int whose(struct __sk_buff *skb, const struct packet *p, const struct passage *w)
{
	struct flow_key k;
	if (!p || !w)
		return TCX_DROP;
	flow_key_in(&k, p);
	struct flow *f = bpf_map_lookup_elem(&flows, &k);
	if (!f || !fits(f, p))
		return TCX_DROP;
	__u32 index = f->pod;
	struct pod *pod = bpf_map_lookup_elem(&pods, &index);
	if (!pod || pod->generation != f->generation || pod->node)
		return TCX_DROP;
	struct passage back = {.node = w->node, .type = ENCAP_MINE, .flags = f->seen & SEEN_FINS, .len = p->ip_len, .hash = flow_hash(p->saddr, p->sport),
			       .scales = nibble(f->wscale[IN]) | nibble(f->wscale[OUT]) << 4, .id = pod->id};
	return encapsulate(skb, &back);
}

static __always_inline __u8 wscale_in(__u32 nibble) { return (nibble & 15) == 15 ? NO_WSCALE : nibble & 15; }

/* New edge node: a home node has the flow of a client's segment. Makes its entry. Returns 0 if there is one now. */
__noinline int adopt(const struct packet *p, const struct passage *w)
{
	struct flow_key k;
	if (!p || !w)
		return -1;
	flow_key_in(&k, p);
	if (bpf_map_lookup_elem(&flows, &k))
		return 0;
	struct pod_name n = {.id = w->id, .vip = {.addr = k.service, .port = k.service_port}};
	__u32 *index = bpf_map_lookup_elem(&pod_names, &n);
	struct pod *pod = index ? bpf_map_lookup_elem(&pods, index) : NULL;
	struct asked *a = bpf_map_lookup_elem(&askeds, &k);
	if (!pod || pod->node != w->node || !a)
		return -1;
	__u64 now = bpf_ktime_get_coarse_ns();
	/* The pod's numbers are learned as those of a flow whose replies go past this node. */
	struct flow f = {
		.state = FLOW_ESTABLISHED,
		.pod = *index,
		.generation = pod->generation,
		.isn = p->seq - 1,
		.origin = a->origin,
		.seq = {p->seq, p->ack},
		.ack = {p->ack, p->seq - FAR}, /* what the pod has acknowledged is not known: something before may be sent again */
		.edge = {p->ack, p->seq},
		.fin_end = {p->seq + FAR, p->ack + FAR}, /* not known, if there is a FIN */
		.seen = SEEN_SYNACK | SEEN_BLIND | (w->flags & SEEN_FINS),
		.wscale = {wscale_in(w->scales), wscale_in(w->scales >> 4)},
		.created = now,
		.last = now,
	};
	long err = bpf_map_update_elem(&flows, &k, &f, BPF_NOEXIST);
	if (err == -17) /* EEXIST */
		return 0;
	if (err) {
		count(COUNT_FLOWS_FULL);
		return -1;
	}
	__sync_fetch_and_add(&pod->open, 1);
	bpf_map_delete_elem(&askeds, &k);
	count(COUNT_MOVED);
	return 0;
}
