/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Parks SYNs of a service without a pod: whole, in order, and within limits. */
#pragma once

#include "flow.h"

#define PARKED 0     /* the SYN is parked or beyond a limit: drop the packet */
#define NOT_PARKED 1 /* the service became warm meanwhile: send the packet on */

/* Adds to the number of parked SYNs of all services. Returns what it was before. */
static __always_inline __s64 count_places(int n)
{
	__u32 zero = 0;
	__s64 *places = bpf_map_lookup_elem(&parked_places, &zero);
	return places ? __sync_fetch_and_add(places, n) : 0;
}

/* Reverses admit. */
static __always_inline void unadmit(struct service_status *st, const struct source_key *src)
{
	__u32 *n = bpf_map_lookup_elem(&parked_sources, src);
	/* A SYN counted between the decrement and the removal loses its count, or hands it to the next user of the
	 * entry; that makes the limit inexact by one. The daemon's sweep removes leftovers. */
	if (n && __sync_fetch_and_add(n, -1) <= 1)
		bpf_map_delete_elem(&parked_sources, src);
	if (st)
		__sync_fetch_and_add(&st->parked, -1);
	count_places(-1);
}

/* Removes a flow's entry in `parked_flows`, if it still leads to this ticket. */
static __always_inline void unlink_parked_flow(const struct flow_key *k, const struct ticket *t)
{
	struct parked_flow *pf = bpf_map_lookup_elem(&parked_flows, k);
	if (pf && pf->ticket.service == t->service && pf->ticket.number == t->number)
		bpf_map_delete_elem(&parked_flows, k);
}

/* Removes a parked SYN. Of any number of concurrent callers, exactly one gets 0. */
__noinline int unpark(const struct ticket *t)
{
	if (!t)
		return -1;
	struct parked *syn = bpf_map_lookup_elem(&parked_syns, t);
	if (!syn)
		return -1;
	/* Copied, because the entry may be reused as soon as it is deleted. */
	struct flow_key k = syn->flow;
	struct source_key src = {.service = t->service, .client = syn->flow.client};
	if (bpf_map_delete_elem(&parked_syns, t))
		return -1;
	unlink_parked_flow(&k, t);
	unadmit(status_of(src.service), &src);
	return 0;
}

/* Sends the daemon one event a wake: that of the SYN that finds the service cold. */
static __always_inline void request_wake(__u32 index, struct service_status *st, __u64 seen)
{
	bool sent = false;
	if (__sync_val_compare_and_swap(&st->state, SERVICE_COLD, SERVICE_WAKING) != SERVICE_COLD)
		return;
	st->syn_seen = seen;
	struct event e = {.type = EVENT_WAKE, .index = index, .at = seen};
	notify(&e, true, &sent);
	if (sent)
		__sync_fetch_and_add(&st->wakes, 1);
	else /* the client's next SYN tries again */
		__sync_val_compare_and_swap(&st->state, SERVICE_WAKING, SERVICE_COLD);
}

/* Counts one more SYN for a service and a source; false if that exceeds a limit, or the table of sources is full. */
static __always_inline bool admit(const struct service *s, struct service_status *st, const struct source_key *src)
{
	__u32 own = __sync_fetch_and_add(&st->parked, 1);
	__s64 all = count_places(1);
	if (own >= s->max_parked)
		goto full;
	/* The last places are for services that have few, so that a flood of some leaves room for the others. */
	if (own >= PARKED_OWN && all >= parked_shared) {
		count(COUNT_PARKED_FULL);
		goto full;
	}
	__u32 *n = bpf_map_lookup_elem(&parked_sources, src);
	if (!n) {
		__u32 zero = 0;
		bpf_map_update_elem(&parked_sources, src, &zero, BPF_NOEXIST);
		n = bpf_map_lookup_elem(&parked_sources, src);
		if (!n) {
			/* The table of sources has as much room as that of SYNs. */
			__sync_fetch_and_add(&st->parked, -1);
			count(COUNT_PARKED_FULL);
			return false;
		}
	}
	if (__sync_fetch_and_add(n, 1) >= s->max_parked_per_source) {
		__sync_fetch_and_add(n, -1);
		goto full;
	}
	return true;
full:
	count_places(-1);
	__sync_fetch_and_add(&st->parked, -1);
	__sync_fetch_and_add(&st->overflows, 1);
	return false;
}

/* Parks the SYN in ctx, which is a struct xdp_md if xdp is set, else a struct __sk_buff. A SYN that cannot be parked
 * for want of room still requests a wake, as its client retransmits it. Returns PARKED or NOT_PARKED. */
static __always_inline int park(void *ctx, bool xdp, const struct packet *p, const struct flow_key *k,
				const struct service *s, struct service_status *st, const struct origin *o)
{
	__u32 len = sizeof(struct ethhdr) + p->ip_len; /* without Ethernet's padding */
	__u64 now = bpf_ktime_get_ns();
	struct ticket t = {.service = s->index};
	struct parked_flow *have = bpf_map_lookup_elem(&parked_flows, k);
	struct source_key src = {.service = s->index, .client = k->client};

	if (have && have->isn == p->seq) {
		__sync_fetch_and_add(&st->duplicates, 1);
		goto wake;
	}
	/* Bounds in a form that the verifier understands. */
	__u32 n = (len - 1) & 0x7ff;
	if (n >= MAX_FRAME)
		return PARKED;
	__u32 zero = 0;
	struct parked *syn = bpf_map_lookup_elem(&scratch, &zero);
	if (!syn)
		return PARKED;
	syn->seen = now;
	syn->flow = *k;
	syn->isn = p->seq;
	syn->origin = *o;
	syn->len = len;
	if (xdp ? bpf_xdp_load_bytes(ctx, 0, syn->frame, n + 1) : bpf_skb_load_bytes(ctx, 0, syn->frame, n + 1))
		return PARKED;
	struct parked_flow pf = {.ticket = t, .isn = p->seq};
	if (have) {
		/* The client gave up and started anew from the same port. The new SYN replaces the old one, if that is
		 * still parked. */
		t = pf.ticket = have->ticket;
		if (bpf_map_update_elem(&parked_syns, &t, syn, BPF_EXIST) == 0)
			bpf_map_update_elem(&parked_flows, k, &pf, BPF_EXIST);
	} else {
		if (!admit(s, st, &src))
			goto wake;
		t.number = pf.ticket.number = __sync_fetch_and_add(&st->head, 1);
		long err = bpf_map_update_elem(&parked_syns, &t, syn, BPF_NOEXIST);
		if (err) {
			count(COUNT_PARKED_FULL);
			unadmit(st, &src);
			goto wake;
		}
		err = bpf_map_update_elem(&parked_flows, k, &pf, BPF_NOEXIST);
		if (err) {
			/* There is no room, or another CPU has just parked the same SYN. */
			if (err == -EEXIST)
				__sync_fetch_and_add(&st->duplicates, 1);
			else
				count(COUNT_PARKED_FULL);
			unpark(&t);
			goto wake;
		}
		__sync_fetch_and_add(&st->parked_total, 1);
		/* The daemon may have released the SYN already. */
		if (!bpf_map_lookup_elem(&parked_syns, &t))
			unlink_parked_flow(k, &t);
	}
	/* The daemon first makes the service warm and then empties the queue, so it may have missed this SYN. It
	 * belongs to the one that unparks it first. */
	if (state_now(st) == SERVICE_WARM) {
		if (unpark(&t))
			return PARKED;
		__sync_fetch_and_add(&st->parked_total, -1);
		return NOT_PARKED;
	}
	/* The daemon may have refused the wake for which this SYN was to wait. Its client's next SYN is judged anew. */
	if (p->uncharged && state_now(st) == SERVICE_COLD) {
		if (!unpark(&t))
			__sync_fetch_and_add(&st->parked_total, -1);
		return PARKED;
	}
wake:
	if (!p->uncharged && state_now(st) == SERVICE_COLD)
		request_wake(s->index, st, now);
	return PARKED;
}
