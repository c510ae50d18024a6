/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Second chance: until a flow's SYN-ACK has been seen, what its SYN said is kept. A pod that refuses it, or does not
 * answer, loses the flow to another pod, and the client does not hear of it. */
#pragma once

#include "balance.h"
#include "park.h"
#include "remote.h"

/* Keeps the SYN of a flow that was just opened, and reads its options. */
__noinline int keep_syn(struct __sk_buff *skb, const struct packet *p, const struct flow_key *k, struct flow *f)
{
	if (!p || !k || !f)
		return 0;
	struct options o = {};
	if (load_options(skb, p, &o))
		f->wscale[IN] = wscale_of(&o);
	__u32 stamp = f->stamp, at = shard_of(k) * ring_size + (((stamp - 1) >> 1) & (ring_size - 1));
	struct kept *s = bpf_map_lookup_elem(&kepts, &at);
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct iphdr *ip = data + sizeof(struct ethhdr);
	if (!stamp || !s || (void *)(ip + 1) > end)
		return 0;
	*(volatile __u32 *)&s->stamp = 0;
	s->tried = 0;
	s->sent = f->created;
	s->isn = p->seq;
	s->retries = 0;
	__builtin_memcpy(s->options, o.byte, MAX_OPTIONS);
	s->options_len = o.len;
	s->tos = ip->tos;
	s->ttl = ip->ttl;
	s->flags = p->flags;
	s->window = bpf_htons(p->window);
	*(volatile __u32 *)&s->stamp = stamp;
	want_watch();
	return 0;
}

/* A TCP header with the longest options. */
struct tcp_header {
	struct tcphdr h;
	__u8 options[MAX_OPTIONS];
};

/* Makes a packet the SYN that was kept, of the flow of key k. Returns 0 if it has become one. */
__noinline int make_syn(struct __sk_buff *skb, const struct kept *s, const struct flow_key *k)
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
	__builtin_memset(ip, 0, sizeof(*ip));
	ip->version = 4;
	ip->ihl = 5;
	ip->tos = s->tos;
	ip->tot_len = bpf_htons(sizeof(*ip) + len);
	ip->frag_off = bpf_htons(0x4000);
	ip->ttl = s->ttl;
	ip->protocol = IPPROTO_TCP;
	ip->saddr = k->client.w[3];
	ip->daddr = k->service.w[3];
	ip->check = csum_fold((__u32)bpf_csum_diff(NULL, 0, (__be32 *)ip, sizeof(*ip), 0));
	t.h.source = k->client_port;
	t.h.dest = k->service_port;
	t.h.seq = bpf_htonl(s->isn);
	t.h.doff = len / 4;
	((__u8 *)&t.h)[13] = s->flags;
	t.h.window = s->window;
	/* Zeros behind the options do not change the sum. */
	for (int i = 0; i < MAX_OPTIONS; i++)
		t.options[i] = i < n ? s->options[i] : 0;
	__be32 pseudo[3] = {k->client.w[3], k->service.w[3], bpf_htonl(IPPROTO_TCP << 16 | len)};
	__s64 sum = bpf_csum_diff(NULL, 0, pseudo, sizeof(pseudo), 0);
	if (summed(skb) == SUM_PARTIAL)
		t.h.check = ~csum_fold((__u32)sum);
	else
		t.h.check = csum_fold((__u32)bpf_csum_diff(NULL, 0, (__be32 *)&t, sizeof(t), (__u32)sum));
	const __u32 at = sizeof(struct ethhdr) + sizeof(struct iphdr);
	if (bpf_skb_store_bytes(skb, at, &t.h, sizeof(t.h), 0))
		return -1;
	/* Bounds in the form that the verifier follows. */
	__u32 last = (n - 1) & 0x3f;
	if (n == 0 || last >= MAX_OPTIONS)
		return 0;
	return bpf_skb_store_bytes(skb, at + sizeof(t.h), t.options, last + 1, 0);
}

/* Gives a flow's SYN to another pod, or parks it if its service has none any more. skb holds either the RST by which
 * its pod refuses it, from the service address, or the SYN again, sent by the daemon because nobody answers. */
static __always_inline int retry(struct __sk_buff *skb, struct packet *p)
{
	bool silent = is_syn(p);
	struct flow_key k;
	if (silent) {
		flow_key_in(&k, p);
	} else {
		addr4(&k.client, p->daddr);
		addr4(&k.service, p->saddr);
		k.client_port = p->dport;
		k.service_port = p->sport;
	}
	struct flow *f = bpf_map_lookup_elem(&flows, &k);
	if (!f || (silent && (f->state != FLOW_HALF_OPEN || (f->seen & SEEN_SYNACK) || f->isn != p->seq)))
		return TCX_DROP;
	struct origin o = f->origin;
	struct service_key sk = {.addr = k.service, .port = k.service_port};
	struct service *s = bpf_map_lookup_elem(&services, &sk);
	struct service_state *st = s ? bpf_map_lookup_elem(&states, &s->index) : NULL;
	struct kept *syn = kept_of(&k, f);
	__u32 index = f->pod;
	struct pod *pod = bpf_map_lookup_elem(&pods, &index);
	if (!st || !syn || !pod || syn->retries >= s->retries)
		goto told;
	syn->tried |= 1u << (pod->slot & 31);
	int next = pick(s->index, syn->tried, k.client.w[3]);
	bool parks = next == NO_POD && *(volatile __u32 *)&st->phase != PHASE_WARM;
	if (next == NO_POD && !parks)
		goto told;
	/* A partial checksum begins where the TCP header was. */
	if (!silent && p->l4 != sizeof(struct ethhdr) + sizeof(struct iphdr))
		goto told;
	if (!flow_leave(f, FLOW_GONE))
		return TCX_DROP;
	bpf_map_delete_elem(&flows, &k);
	syn->stamp = 0;
	if (!silent && make_syn(skb, syn, &k))
		return TCX_DROP;
	if (parse((void *)(long)skb->data, (void *)(long)skb->data_end, skb->len, p) != PACKET_TCP)
		return TCX_DROP;
	if (parks && park(skb, false, p, &k, s, st, &o) == PARKED)
		return TCX_DROP;
	if (next == NO_POD)
		next = pick(s->index, 0, k.client.w[3]); /* just warm again */
	if (next == NO_POD || flow_open(&k, p, &o, next))
		return TCX_DROP;
	f = bpf_map_lookup_elem(&flows, &k);
	if (!f || f->isn != p->seq)
		return TCX_DROP;
	index = f->pod;
	pod = bpf_map_lookup_elem(&pods, &index);
	if (!pod || pod->generation != f->generation)
		return TCX_DROP;
	__u32 tried = syn->tried, retries = syn->retries + 1;
	keep_syn(skb, p, &k, f);
	syn = kept_of(&k, f);
	if (syn) {
		syn->tried = tried;
		syn->retries = retries;
	}
	count(COUNT_RETRIES);
	account(index, f, IN, p->ip_len);
	return deliver(skb, p, pod, o.path, true);
told:
	if (silent)
		return TCX_DROP;
	track(&k, f, p, OUT);
	account(index, f, OUT, p->ip_len);
	return to_origin(skb, &o);
}
