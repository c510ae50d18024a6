/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The edge: clients' packets to service addresses, as they enter the cluster on this node. */
#pragma once

#include "deaf.h"
#include "hairpin.h"
#include "icmp.h"
#include "retry.h"
#include "source.h"

/* Chooses a pod for a SYN, or NO_POD: by its client's hash if its service is flooded, so that the choice can be made
 * again. Forgets a reusable flow on its 5-tuple (old, may be NULL) first, so that it does not count when pods are
 * compared. */
static __always_inline int choose_pod(const struct flow_key *k, struct flow *old, const struct packet *p, __u32 service,
				      const struct origin *o, bool flooded)
{
	if (old)
		flow_replace(k, old, p);
	__be32 by = chooser(o, p->saddr);
	return flooded || is_flooded(service) ? choose_by_hash(k, service, by) : pick_pod(service, 0, by);
}

/* Chooses a pod for a released SYN: the service's front, else the one the daemon has set, else as for any other SYN. */
static __always_inline int choose_pod_for_released(const struct flow_key *k, struct flow *old, const struct packet *p,
						   const struct service_status *st, __u32 service, const struct origin *o)
{
	int usual = choose_pod(k, old, p, service, o, false);
	if (front_of(st, service, 0, chooser(o, p->saddr)) != NO_POD)
		return usual;
	__u32 index = *(volatile __u32 *)&st->release_to - 1;
	struct pod *pod = bpf_map_lookup_elem(&pods, &index);
	return pod && pod->state == POD_SERVING && pod->service == service ? (int)index : usual;
}

/* Opens a flow to a pod. Returns the pod that the SYN is to be sent to, or NULL: drop it. */
static __always_inline struct pod *open_flow(struct __sk_buff *skb, const struct packet *p, const struct flow_key *k,
					     __u32 index, const struct origin *o)
{
	if (flow_open(k, p, o, index))
		return NULL;
	struct flow *f = bpf_map_lookup_elem(&flows, k);
	/* Another CPU may be entering the flow at this moment; the client retransmits its SYN. */
	if (!f || f->isn != p->seq)
		return NULL;
	/* Or it has entered it already, with another pod. */
	struct pod *pod = pod_of_flow(f);
	if (!pod)
		return NULL;
	backup_syn(skb, p, k, f);
	account_in(f, p, pod, true);
	return pod;
}

/* Whether a SYN is a retransmission of a parked one that the daemon keeps for a pod that is about to listen. Sent on
 * now, it would go to a pod that listened earlier, as would those of all clients that came at the same time. */
static __always_inline bool is_kept(struct service_status *st, const struct flow_key *k, const struct packet *p)
{
	__u64 until = *(volatile __u64 *)&st->kept_until;
	if (!until)
		return false;
	struct parked_flow *pf = bpf_map_lookup_elem(&parked_flows, k);
	if (!pf || pf->isn != p->seq || bpf_ktime_get_ns() >= until)
		return false;
	__sync_fetch_and_add(&st->duplicates, 1);
	return true;
}

/* Drops the parked copy of a SYN that was retransmitted just as its service became warm: only one may be sent on. */
static __always_inline void unpark_twin(struct service_status *st, const struct flow_key *k)
{
	struct parked_flow *pf = bpf_map_lookup_elem(&parked_flows, k);
	if (!pf)
		return;
	struct ticket t = pf->ticket;
	if (unpark(&t) == 0)
		__sync_fetch_and_add(&st->released, 1);
}

/* Sends a SYN to a pod of a warm service, and opens a flow to it, unless a flood leaves no slot for that. old is the
 * flow on its 5-tuple, or NULL. checked: gate_cold has looked whether the pods listen. */
static __always_inline int open_to_some_pod(struct __sk_buff *skb, struct packet *p, const struct flow_key *k,
					    struct flow *old, __u32 service, struct service_status *st,
					    const struct origin *o, bool ingress, bool checked)
{
	if (*(volatile __u32 *)&st->parked && is_kept(st, k, p))
		return TCX_DROP;
	bool flooded = half_open_crowded(k, service);
	if (flooded && !share_has_room(k))
		return TCX_DROP;
	int pod = choose_pod(k, old, p, service, o, flooded);
	if (!checked && (pod == NO_POD || is_doubted(pod)))
		return run_step(skb, STEP_COLD);
	if (pod == NO_POD) {
		count(COUNT_NO_POD);
		return TCX_DROP;
	}
	if (*(volatile __u32 *)&st->parked)
		unpark_twin(st, k);
	if (o->path != PATH_NIC && is_own_client(k, pod))
		return run_step(skb, STEP_HAIRPIN);
	if (flooded)
		record_syn(k, p, o, pod);
	__u32 index = pod;
	struct pod *to = flooded ? bpf_map_lookup_elem(&pods, &index) : open_flow(skb, p, k, index, o);
	return to && !clamp_for_replies(skb, p, to, o->path) ? deliver(skb, p, to, o->path, ingress) : TCX_DROP;
}

/* Handles a packet to the service range that is not a TCP segment. */
static __always_inline int edge_not_tcp(struct __sk_buff *skb, enum packet_kind kind, const struct packet *p,
					enum flow_path path, bool ingress)
{
	if (kind == PACKET_ICMP)
		return icmp_to_service(skb, p, path, ingress);
	struct addr vip;
	set_addr(&vip, p->daddr);
	if (!bpf_map_lookup_elem(&addresses, &vip))
		return TCX_NEXT;
	count(kind == PACKET_FRAGMENT ? COUNT_FRAGMENTS : COUNT_MALFORMED);
	return TCX_DROP;
}

/* Updates where replies go from a segment that only the client can have sent, as its router may change. Returns true if
 * the client used another edge node so far. */
static __always_inline bool follow_route(struct flow *f, const struct ethhdr *eth, __u32 ifindex)
{
	if (!__builtin_memcmp(f->origin.client_mac, eth->h_source, 6) && f->origin.ifindex == ifindex)
		return false;
	if (f->origin.path == PATH_STACK || f->origin.path == PATH_POD)
		return false;
	bool moved = f->origin.path != PATH_NIC;
	if (!moved && !f->origin.ifindex && (f->state != FLOW_ESTABLISHED || (f->seen & SEEN_UNPROVEN)))
		return false; /* the client has not answered a reply yet */
	f->origin.path = PATH_NIC;
	f->origin.ifindex = ifindex;
	__builtin_memcpy(f->origin.client_mac, eth->h_source, 6);
	__builtin_memcpy(f->origin.our_mac, eth->h_dest, 6);
	return moved;
}

/* Whether a packet from a pod's device is of a front that connects from its client's address. */
__noinline int is_on_behalf(__u32 ifindex, __be32 client)
{
	__be32 *front = bpf_map_lookup_elem(&front_devices, &ifindex);
	return front && *front != client;
}

/* Whether the stack has to judge the SYN of a pod: its service has rules for sources, and the source that the SYN
 * claims is not the pod's, but the reply would go back to the pod all the same. On a cluster, only fronts' SYNs come
 * here from a pod's device, and their source is known: see is_from_front. */
static __always_inline bool is_for_stack(struct __sk_buff *skb, const struct packet *p, const struct service *s,
					 enum flow_path path)
{
	return path == PATH_POD && !encap_port && (s->flags & SERVICE_SOURCES) &&
	       !is_on_behalf(skb->ifindex, p->saddr) && comes_from_elsewhere(skb, p);
}

/* Handles a client's packet. path says how it arrived; ingress: it did not leave this node's stack. */
static __always_inline int edge_from_client(struct __sk_buff *skb, enum packet_kind kind, struct packet *p,
					    enum flow_path path, bool ingress)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (kind == PACKET_OTHER || !in_range(p->daddr))
		return TCX_NEXT;
	if (kind != PACKET_TCP)
		return edge_not_tcp(skb, kind, p, path, ingress);
	if (taking_over)
		return TCX_DROP;

	struct ethhdr *eth = data;
	if ((void *)(eth + 1) > end)
		return TCX_DROP;
	struct flow_key k;
	flow_key_from_client(&k, p);
	struct flow *f = bpf_map_lookup_elem(&flows, &k);
	bool syn = is_syn(p), known = f;
	/* The VIP may just have moved here from another node. */
	bool moves = path == PATH_NIC && encap_port;
	struct origin o;
	if (!f && path != PATH_NIC && is_of_hairpin(&k))
		return run_step(skb, STEP_HAIRPIN);
	if (!f && !syn) {
		origin_from_frame(&o, eth, skb->ifindex, path);
		if (!enter_by_ack(&k, p, &o, moves))
			f = bpf_map_lookup_elem(&flows, &k);
	}
	if (f && !(syn && flow_reusable(f, p))) {
		struct pod *pod = pod_of_flow(f);
		/* A front that connects on behalf of this client has happened to choose the same port: it tries another
		 * one. Any other pod's packet with this client's address is for the stack to judge. */
		if (path == PATH_POD && !is_from_client_pod(f, skb->ifindex)) {
			if (is_on_behalf(skb->ifindex, p->saddr))
				return syn ? reply_reset(skb, p, ingress) : TCX_DROP;
			if (f->origin.path == PATH_POD)
				return TCX_NEXT;
		}
		if (pod) {
			if (syn) {
				parse_wscale(skb, p);
				eth = clamp_for_replies(skb, p, pod, path) ? NULL : (void *)(long)skb->data;
				end = (void *)(long)skb->data_end;
				if (!eth || (void *)(eth + 1) > end)
					return TCX_DROP;
			}
			int genuine = track(&k, f, p, IN);
			account_in(f, p, pod, genuine);
			if (genuine && path == PATH_NIC && follow_route(f, eth, skb->ifindex))
				bpf_tail_call(skb, &steps, STEP_MOVED);
			return deliver(skb, p, pod, path, ingress);
		}
		flow_forget(&k, f);
		f = NULL;
	}

	struct service *s = service_of_flow(&k);
	if (!s || (syn && (s->flags & SERVICE_LEFT))) {
		if (!bpf_map_lookup_elem(&addresses, &k.service))
			return TCX_NEXT;
		count(COUNT_NO_SERVICE);
		return reply_reset(skb, p, ingress);
	}
	struct service_status *st = status_of(s->index);
	if (!st)
		return TCX_DROP;
	if (syn && is_for_stack(skb, p, s, path))
		return TCX_NEXT;
	if (state_now(st) != SERVICE_WARM && (syn || (p->flags & TCP_RST)))
		return run_step(skb, STEP_COLD);
	if (!syn) {
		if (!known && moves)
			bpf_tail_call(skb, &steps, STEP_MOVED);
		count(COUNT_STRAY);
		return reply_reset(skb, p, ingress);
	}
	if (is_denied(s, &k))
		return TCX_DROP;
	origin_from_frame(&o, eth, skb->ifindex, path);
	distrust(&o, s);
	return open_to_some_pod(skb, p, &k, f, s->index, st, &o, ingress, false);
}

/* Handles a SYN that the daemon has released, or sends to another pod because it was not answered. */
static __always_inline int edge_from_daemon(struct __sk_buff *skb, struct packet *p)
{
	struct flow_key k;
	flow_key_from_client(&k, p);
	struct parked_flow *pf = bpf_map_lookup_elem(&parked_flows, &k);
	if (!pf || pf->isn != p->seq)
		return run_step(skb, STEP_RETRY);
	struct ticket t = pf->ticket;
	struct parked *syn = bpf_map_lookup_elem(&parked_syns, &t);
	struct service_status *st = status_of(t.service);
	struct service *s = service_of_flow(&k);
	if (!syn || !st || !s)
		return TCX_DROP;
	/* The rules, or the service's address, may have changed since it was parked. */
	if ((s->flags & SERVICE_LEFT) || is_denied(s, &k)) {
		unpark(&t);
		return TCX_DROP;
	}
	struct origin o = syn->origin;
	distrust(&o, s);
	/* In the next two cases it stays parked, unless another CPU has sent it on. */
	if (state_now(st) != SERVICE_WARM)
		return TCX_DROP;
	int pod = choose_pod_for_released(&k, bpf_map_lookup_elem(&flows, &k), p, st, t.service, &o);
	if (pod == NO_POD || unpark(&t))
		return TCX_DROP;
	__sync_fetch_and_add(&st->released, 1);
	if (is_own_client(&k, pod))
		return run_step(skb, STEP_HAIRPIN);
	struct pod *to = open_flow(skb, p, &k, pod, &o);
	return to && !clamp_for_replies(skb, p, to, o.path) ? deliver(skb, p, to, o.path, true) : TCX_DROP;
}
