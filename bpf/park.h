/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Keeping SYNs of a service that has no pod, whole and in order, within limits. */
#pragma once

#include "parse.h"

#define PARKED 0     /* the gate has the SYN, or dropped it: drop the packet */
#define NOT_PARKED 1 /* the service has become warm meanwhile: let the packet go on */

/* Takes a SYN that is no longer parked out of the counts of its service and source. */
static __always_inline void unadmit(struct service_state *st, const struct source_key *src)
{
	__u32 *n = bpf_map_lookup_elem(&parked_sources, src);
	/* A SYN that comes between these two steps loses its count, or gives it to whoever gets the place: the limit
	 * is loose by one then. The daemon removes what is left over (Sweep). */
	if (n && __sync_fetch_and_add(n, -1) <= 1)
		bpf_map_delete_elem(&parked_sources, src);
	if (st)
		__sync_fetch_and_add(&st->parked, -1);
}

/* Forgets how a flow finds its parked SYN, if it is that of a ticket. */
static __always_inline void unlink_flow(const struct flow_key *k, const struct ticket *t)
{
	struct parked_flow *pf = bpf_map_lookup_elem(&parked_flows, k);
	if (pf && pf->ticket.service == t->service && pf->ticket.number == t->number)
		bpf_map_delete_elem(&parked_flows, k);
}

/* Forgets a parked SYN. Returns 0 for exactly one caller, however many try. */
__noinline int unpark(const struct ticket *t)
{
	if (!t)
		return -1;
	struct parked *kept = bpf_map_lookup_elem(&parked_syns, t);
	if (!kept)
		return -1;
	/* Copied: the place may be used again as soon as it is free. */
	struct flow_key k = kept->flow;
	struct source_key src = {.service = t->service, .client = kept->flow.client};
	if (bpf_map_delete_elem(&parked_syns, t))
		return -1;
	unlink_flow(&k, t);
	unadmit(bpf_map_lookup_elem(&states, &src.service), &src);
	return 0;
}

/* Tells the daemon that a cold service is wanted: one event a wake. */
static __always_inline void wake(__u32 index, struct service_state *st, __u64 seen)
{
	bool sent = false;
	if (__sync_val_compare_and_swap(&st->phase, PHASE_COLD, PHASE_WAKING) != PHASE_COLD)
		return;
	st->syn_seen = seen;
	notify(EVENT_WAKE, index, 0, seen, true, &sent);
	if (sent)
		__sync_fetch_and_add(&st->wakes, 1);
	else /* the client's next SYN tries again */
		__sync_val_compare_and_swap(&st->phase, PHASE_WAKING, PHASE_COLD);
}

/* Counts one more SYN for a service and a source; false if that is more than allowed. */
static __always_inline bool admit(const struct service *s, struct service_state *st, const struct source_key *src)
{
	if (__sync_fetch_and_add(&st->parked, 1) >= s->max_parked)
		goto full;
	__u32 *n = bpf_map_lookup_elem(&parked_sources, src);
	if (!n) {
		__u32 zero = 0;
		bpf_map_update_elem(&parked_sources, src, &zero, BPF_NOEXIST);
		n = bpf_map_lookup_elem(&parked_sources, src);
		if (!n)
			goto full;
	}
	if (__sync_fetch_and_add(n, 1) >= s->max_parked_per_source) {
		__sync_fetch_and_add(n, -1);
		goto full;
	}
	return true;
full:
	__sync_fetch_and_add(&st->parked, -1);
	__sync_fetch_and_add(&st->overflows, 1);
	return false;
}

/* Parks the SYN that ctx (struct xdp_md if xdp, else struct __sk_buff) holds. A SYN that cannot be parked wakes its
 * service all the same: its client sends it again. */
static __always_inline int park(void *ctx, bool xdp, const struct packet *p, const struct flow_key *k,
				const struct service *s, struct service_state *st, const struct origin *o)
{
	__u32 len = sizeof(struct ethhdr) + p->ip_len; /* without what Ethernet pads */
	__u64 now = bpf_ktime_get_ns();
	struct ticket t = {.service = s->index};
	struct parked_flow *have = bpf_map_lookup_elem(&parked_flows, k);
	struct source_key src = {.service = s->index, .client = k->client};

	if (have && have->isn == p->seq) {
		__sync_fetch_and_add(&st->duplicates, 1);
		goto tell;
	}
	/* Bounds in the form that the verifier follows. */
	__u32 n = (len - 1) & 0x7ff;
	if (len > MAX_FRAME || n >= MAX_FRAME) {
		count(COUNT_TOO_LONG);
		goto tell;
	}
	__u32 zero = 0;
	struct parked *r = bpf_map_lookup_elem(&scratch, &zero);
	if (!r)
		return PARKED;
	r->seen = now;
	r->flow = *k;
	r->isn = p->seq;
	r->origin = *o;
	r->len = len;
	if (xdp ? bpf_xdp_load_bytes(ctx, 0, r->frame, n + 1) : bpf_skb_load_bytes(ctx, 0, r->frame, n + 1))
		return PARKED;
	struct parked_flow pf = {.ticket = t, .isn = p->seq};
	if (have) {
		/* The client gave up and began anew from the same port: its new SYN takes the old one's place, if
		 * that is still parked. */
		t = pf.ticket = have->ticket;
		if (bpf_map_update_elem(&parked_syns, &t, r, BPF_EXIST) == 0)
			bpf_map_update_elem(&parked_flows, k, &pf, BPF_EXIST);
	} else {
		if (!admit(s, st, &src))
			goto tell;
		t.number = pf.ticket.number = __sync_fetch_and_add(&st->head, 1);
		long err = bpf_map_update_elem(&parked_syns, &t, r, BPF_NOEXIST);
		if (err) {
			count(COUNT_PARKED_FULL);
			unadmit(st, &src);
			goto tell;
		}
		err = bpf_map_update_elem(&parked_flows, k, &pf, BPF_NOEXIST);
		if (err) {
			/* No room, or another CPU has parked the same SYN just now. */
			if (err == -17) /* EEXIST */
				__sync_fetch_and_add(&st->duplicates, 1);
			else
				count(COUNT_PARKED_FULL);
			unpark(&t);
			goto tell;
		}
		__sync_fetch_and_add(&st->parked_total, 1);
		/* The daemon may have taken the SYN already. */
		if (!bpf_map_lookup_elem(&parked_syns, &t))
			unlink_flow(k, &t);
	}
	/* The daemon first makes the service warm and then empties the queue. It may have looked for this SYN
	 * before it was there; then whoever forgets it first owns it. */
	if (*(volatile __u32 *)&st->phase == PHASE_WARM) {
		if (unpark(&t))
			return PARKED;
		__sync_fetch_and_add(&st->parked_total, -1);
		return NOT_PARKED;
	}
tell:
	if (*(volatile __u32 *)&st->phase == PHASE_COLD)
		wake(s->index, st, now);
	return PARKED;
}
