/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Fronts: proxies on this node that clients of a service get instead of its pods. See front_of for how. A front connects to
 * the pods' own addresses. */
#pragma once

#include "flow.h"
#include "reply.h"

/* Whether a packet comes from a front on this node, and its sender is who it claims to be. */
static __always_inline bool is_from_front(struct __sk_buff *skb, const struct packet *p)
{
	struct addr a;
	set_addr(&a, p->saddr);
	struct pod_device *from = bpf_map_lookup_elem(&pod_devices, &a);
	return from && from->front && from->ifindex == skb->ifindex;
}

/* Counts a packet between a front and a pod for the pod. Packets without payload do not count as use of it, as a
 * front keeps connections that it does not need. */
__noinline int account_to_front(__u32 index, const struct packet *p, int dir)
{
	struct traffic *t = bpf_map_lookup_elem(&pod_traffic, &index);
	if (!t || !p || dir < IN || dir > OUT)
		return 0;
	if (p->payload)
		t->last = bpf_ktime_get_coarse_ns();
	if (dir == IN && (says_something(p) || (p->flags & TCP_SYN)))
		ask_pod(index);
	else if (says_something(p))
		t->asked = bpf_ktime_get_coarse_ns();
	t->bytes[dir] += p->ip_len;
	t->packets[dir] += 1;
	return 0;
}

/* Counts what a pod sends to a front of any node of a cluster, where such packets go by the pod network. */
static __always_inline void account_answer_to_front(struct __sk_buff *skb, const struct packet *p)
{
	struct pod_port pp = {.ifindex = skb->ifindex, .port = p->sport};
	__u32 *index = bpf_map_lookup_elem(&pod_ports, &pp);
	if (index && bpf_map_lookup_elem(&fronts, &p->daddr))
		account_to_front(*index, p, OUT);
}

/* Sends a packet straight to a device. */
__noinline int pass_to_device(struct __sk_buff *skb, const struct pod_device *to)
{
	if (!to)
		return TCX_DROP;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	if ((void *)(eth + 1) > end)
		return TCX_DROP;
	__builtin_memcpy(eth->h_dest, to->mac, 6);
	__builtin_memcpy(eth->h_source, to->host_mac, 6);
	return send_to_peer(skb, to->ifindex, true);
}

/* Enters a connection of a front to a pod from its client's address. Returns -1 if the pod could not tell it from a
 * connection of the client through the gate. */
static __always_inline int enter_on_behalf(const struct front_flow_key *k, const struct packet *p, struct pod *pod,
					   __be32 front)
{
	struct front_flow *known = bpf_map_lookup_elem(&front_flows, k);
	if (known && known->front == front && known->generation == pod->generation)
		return 0;
	struct flow_key through;
	flow_key_from_client(&through, p);
	through.service = pod->vip.addr;
	through.service_port = pod->vip.port;
	struct flow *f = bpf_map_lookup_elem(&flows, &through);
	if (f && f->pod == k->pod && f->generation == pod->generation && f->state < FLOW_CLOSED)
		return -1;
	struct front_flow entry = {.front = front, .generation = pod->generation};
	return bpf_map_update_elem(&front_flows, k, &entry, BPF_ANY) ? -1 : 0;
}

#define TCX_ON_BEHALF (-2) /* what pass_between_front_and_pod returns for gate_behalf */

/* Sends a packet of a front to a pod's own address, both on this machine. */
static __always_inline int pass_from_front(struct __sk_buff *skb, const struct packet *p, __be32 front)
{
	struct addr a;
	set_addr(&a, p->daddr);
	struct pod_device *to = bpf_map_lookup_elem(&pod_devices, &a);
	if (!to || to->front)
		return TCX_NEXT;
	if (front != p->saddr)
		return TCX_ON_BEHALF;
	account_to_front(to->pod, p, IN);
	return pass_to_device(skb, to);
}

/* Sends a packet of a front, from the address of one of its clients, to a pod's own address. A front may do so to pods of
 * services of which it is a front. */
static __always_inline int pass_on_behalf(struct __sk_buff *skb, const struct packet *p)
{
	__u32 ifindex = skb->ifindex;
	__be32 *front = bpf_map_lookup_elem(&front_devices, &ifindex);
	struct addr a;
	set_addr(&a, p->daddr);
	struct pod_device *to = bpf_map_lookup_elem(&pod_devices, &a);
	if (!front || !to || to->front)
		return TCX_DROP;
	struct front_flow_key k = {.port = p->sport, .pod = to->pod};
	set_addr(&k.client, p->saddr);
	struct pod *pod = bpf_map_lookup_elem(&pods, &k.pod);
	struct service_status *st = pod ? status_of(pod->service) : NULL;
	if (!st || !st->front || pod->port != p->dport)
		return TCX_DROP;
	/* A pod drops packets from its own address. The front tries another one. */
	if (p->saddr == p->daddr || enter_on_behalf(&k, p, pod, *front))
		return reply_reset(skb, p, true);
	account_to_front(k.pod, p, IN);
	return pass_to_device(skb, to);
}

/* Sends a packet of a pod to a front, both on this machine: at the front's own address, or at that of a client for which
 * the front has connected. */
static __always_inline int pass_to_front(struct __sk_buff *skb, const struct packet *p)
{
	struct addr a;
	set_addr(&a, p->daddr);
	struct pod_device *to = bpf_map_lookup_elem(&pod_devices, &a);
	__u32 index;
	if (to && to->front) {
		set_addr(&a, p->saddr);
		struct pod_device *from = bpf_map_lookup_elem(&pod_devices, &a);
		/* The sender is who it claims to be. */
		if (!from || from->ifindex != skb->ifindex)
			return TCX_NEXT;
		index = from->pod;
	} else {
		struct pod_port pp = {.ifindex = skb->ifindex, .port = p->sport};
		__u32 *at = bpf_map_lookup_elem(&pod_ports, &pp);
		if (!at)
			return TCX_NEXT;
		struct front_flow_key k = {.client = a, .port = p->dport, .pod = *at};
		struct front_flow *f = bpf_map_lookup_elem(&front_flows, &k);
		if (!f || !lookup_pod(k.pod, f->generation))
			return TCX_NEXT;
		index = k.pod;
		set_addr(&a, f->front);
		to = bpf_map_lookup_elem(&pod_devices, &a);
		if (!to || !to->front)
			return TCX_DROP;
	}
	account_to_front(index, p, OUT);
	return pass_to_device(skb, to);
}

/* Sends a packet between a front and a pod, both on this machine, straight to the other one's device, past the stack: it
 * need not forward packets, and no firewall rule for forwarded packets applies. Returns TCX_ON_BEHALF for what is to be
 * continued by gate_behalf, and TCX_NEXT for all other packets. */
__noinline int pass_between_front_and_pod(struct __sk_buff *skb, const struct packet *p)
{
	__u32 ifindex = skb->ifindex;
	__be32 *front = bpf_map_lookup_elem(&front_devices, &ifindex);
	if (!p)
		return TCX_NEXT;
	return front ? pass_from_front(skb, p, *front) : pass_to_front(skb, p);
}

/* Handles what answers a SYN of which the gate knows nothing, during a flood, on the pod's node. A SYN to the service
 * address may have got no entry and lost its record. Others were sent to the pod's own address, without the gate: by a
 * front, or by this node, as probes are. */
static __always_inline int answer_during_flood(struct __sk_buff *skb, const struct packet *p)
{
	struct pod_port pp = {.ifindex = skb->ifindex, .port = p->sport};
	__u32 *at = bpf_map_lookup_elem(&pod_ports, &pp);
	struct pod *pod = at ? bpf_map_lookup_elem(&pods, at) : NULL;
	if (!pod)
		return TCX_DROP;
	struct flow_key k = {.service = pod->vip.addr, .service_port = pod->vip.port, .client_port = p->dport};
	set_addr(&k.client, p->daddr);
	struct syn_record *r = find_answered_syn(&k, p, *at);
	__u32 ifindex = skb->ifindex;
	if (!r && !bpf_map_lookup_elem(&front_devices, &ifindex)) {
		__u32 *own = bpf_map_lookup_elem(&own_addresses, &k.client);
		bool elsewhere = bpf_map_lookup_elem(&fronts, &p->daddr) || (own && *own == OWN_HOST);
		if (frozen_pods && elsewhere)
			thaw_sender(skb, p);
		if (encap_port)
			account_answer_to_front(skb, p);
		int passed = encap_port ? TCX_NEXT : pass_to_front(skb, p);
		if (passed != TCX_NEXT || elsewhere)
			return passed;
	}
	return reply_to_flooded(skb, p, &k, r, pod);
}
