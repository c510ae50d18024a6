/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Fronts: proxies on this node that clients of a service get instead of its pods. See front_of for how. A front connects to
 * the pods' own addresses. */
#pragma once

#include "flow.h"
#include "rewrite.h"

/* Whether a packet comes from a front on this node, and its sender is who it claims to be. */
static __always_inline bool is_from_front(struct __sk_buff *skb, const struct packet *p)
{
	struct addr a;
	set_addr(&a, p->saddr);
	struct pod_device *from = bpf_map_lookup_elem(&pod_devices, &a);
	return from && from->front && from->ifindex == skb->ifindex;
}

/* Counts a packet between a front and a pod for the pod. What has no payload is no use of it: a front keeps connections
 * that it does not need. */
static __always_inline void account_to_front(__u32 index, const struct packet *p, int dir)
{
	struct traffic *t = bpf_map_lookup_elem(&pod_traffic, &index);
	if (!t)
		return;
	if (p->payload)
		t->last = bpf_ktime_get_coarse_ns();
	if (dir == IN && (says_something(p) || (p->flags & TCP_SYN)))
		ask_pod(index);
	else if (says_something(p))
		t->asked = bpf_ktime_get_coarse_ns();
	t->bytes[dir] += p->ip_len;
	t->packets[dir] += 1;
}

/* Counts what a pod sends to a front of any node of a cluster, where such packets go by the pod network. */
static __always_inline void account_answer_to_front(struct __sk_buff *skb, const struct packet *p)
{
	struct pod_port pp = {.ifindex = skb->ifindex, .port = p->sport};
	__u32 *index = bpf_map_lookup_elem(&pod_ports, &pp);
	if (index && bpf_map_lookup_elem(&fronts, &p->daddr))
		account_to_front(*index, p, OUT);
}

/* Sends a packet between a front and a pod, both on this machine, straight to the other one's device, past the stack: it
 * need not forward packets, and no firewall rule for forwarded packets applies. Returns TCX_NEXT for all other packets. */
static __always_inline int pass_between_front_and_pod(struct __sk_buff *skb, const struct packet *p)
{
	struct addr a;
	set_addr(&a, p->daddr);
	struct pod_device *to = bpf_map_lookup_elem(&pod_devices, &a);
	if (!to)
		return TCX_NEXT;
	set_addr(&a, p->saddr);
	struct pod_device *from = bpf_map_lookup_elem(&pod_devices, &a);
	/* The sender is who it claims to be. */
	if (!from || from->ifindex != skb->ifindex || from->front == to->front)
		return TCX_NEXT;
	account_to_front(from->front ? to->pod : from->pod, p, from->front ? IN : OUT);
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	if ((void *)(eth + 1) > end)
		return TCX_DROP;
	__builtin_memcpy(eth->h_dest, to->mac, 6);
	__builtin_memcpy(eth->h_source, to->host_mac, 6);
	return send_to_peer(skb, to->ifindex, true);
}
