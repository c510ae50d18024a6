/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Hairpins: flows of a pod that connects to its own service and gets itself. Its kernel would drop what comes from the
 * pod's own address, and would answer it inside of the pod, past the gate. So the pod sees another client address, and
 * its replies to that come back to the gate. The address is in 240.0.0.0/4, which no client has (RFC 1112, 4), and
 * stands for the pod, as two pods may use one port. The flow is entered under it. */
#pragma once

#include "flooded.h"
#include "icmp.h"

#define HAIRPIN_RANGE 0xf0000000u /* 240.0.0.0/4, host byte order */

/* Returns the address that a pod sees as that of itself as a client; index is its own. */
static __always_inline __be32 hairpin_addr(__u32 index)
{
	return bpf_htonl(HAIRPIN_RANGE | index);
}

/* Key of the flow that a pod has with itself, of a segment to its service. */
static __always_inline void hairpin_key(struct flow_key *k, const struct packet *p, __u32 index)
{
	flow_key_from_client(k, p);
	k->client.w[3] = hairpin_addr(index);
}

/* Returns the device of the pod on this node that sends a segment, or NULL. */
static __always_inline struct pod_device *pod_that_sends(const struct packet *p)
{
	struct addr a;
	set_addr(&a, p->saddr);
	struct pod_device *d = bpf_map_lookup_elem(&pod_devices, &a);
	return d && !d->front ? d : NULL;
}

/* Whether there is a flow that a client's pod has with itself by the ports of k. It leaves the key as it is. */
__noinline int is_of_hairpin(struct flow_key *k)
{
	struct pod_device *d = k ? bpf_map_lookup_elem(&pod_devices, &k->client) : NULL;
	if (!d)
		return 0;
	__be32 client = k->client.w[3];
	k->client.w[3] = hairpin_addr(d->pod);
	struct flow *f = bpf_map_lookup_elem(&flows, k);
	k->client.w[3] = client;
	return f != NULL;
}

/* Whether the pod that was chosen for a flow is its client. */
static __always_inline bool is_own_client(const struct flow_key *k, __u32 index)
{
	struct pod *pod = bpf_map_lookup_elem(&pods, &index);
	return pod && pod->addr.w[3] == k->client.w[3];
}

/* Gives a packet another source or destination address. at is where that is in the IPv4 header. */
static __always_inline int replace_addr(struct __sk_buff *skb, const struct packet *p, __u32 at, __be32 from, __be32 to)
{
	if (tcp_csum_replace(skb, p, from, to, 0, 0))
		return -1;
	struct iphdr *ip = (void *)(long)skb->data + sizeof(struct ethhdr);
	if ((void *)(ip + 1) > (void *)(long)skb->data_end)
		return -1;
	ip_csum_replace(ip, from, to);
	*(__be32 *)((void *)ip + at) = to;
	return 0;
}

/* Opens a flow of a pod to itself. There is no second chance for its SYN: see reply_by_hairpin. On a cluster, the stack
 * has let the SYN pass, and has to see all of the connection. */
static __always_inline struct flow *open_hairpin(struct __sk_buff *skb, struct packet *p, const struct flow_key *k,
						 const struct pod *pod, __u32 index)
{
	struct origin o = {.ifindex = encap_port ? 0 : pod->ifindex, .path = PATH_HAIRPIN};
	__builtin_memcpy(o.client_mac, pod->mac, 6);
	__builtin_memcpy(o.our_mac, pod->host_mac, 6);
	if (half_open_crowded(k, pod->service))
		return NULL;
	parse_wscale(skb, p);
	if (flow_open(k, p, &o, index))
		return NULL;
	struct flow *f = bpf_map_lookup_elem(&flows, k);
	return f && f->isn == p->seq ? f : NULL;
}

/* Handles a segment of a pod to its own service: of such a flow, or a SYN for which the pod itself was chosen. */
static __always_inline int hairpin_from_client(struct __sk_buff *skb, struct packet *p)
{
	bool ingress = skb->ifindex != wangell_ifindex;
	struct pod_device *d = pod_that_sends(p);
	__u32 index = d ? d->pod : 0;
	struct pod *pod = d ? bpf_map_lookup_elem(&pods, &index) : NULL;
	/* Another pod may use its address. */
	if (!pod || pod->node || (ingress && skb->ifindex != pod->ifindex))
		return TCX_DROP;
	struct flow_key k;
	hairpin_key(&k, p, index);
	struct flow *f = bpf_map_lookup_elem(&flows, &k);
	bool syn = is_syn(p);
	int genuine = 1;
	if (f && pod_of_flow(f) != pod) {
		flow_forget(&k, f); /* of an earlier pod with this index */
		f = NULL;
	}
	if (syn && (!f || flow_reusable(f, p))) {
		if (pod->state != POD_SERVING) {
			if (f)
				flow_forget(&k, f); /* another pod is chosen for the next SYN */
			return TCX_DROP;
		}
		f = open_hairpin(skb, p, &k, pod, index);
		if (!f)
			return TCX_DROP;
	} else if (f) {
		if (syn)
			parse_wscale(skb, p);
		genuine = track(&k, f, p, IN);
	} else {
		count(COUNT_STRAY);
		return reply_reset(skb, p, ingress);
	}
	account_in(f, p, pod, genuine);
	if (replace_addr(skb, p, offsetof(struct iphdr, saddr), p->saddr, k.client.w[3]))
		return TCX_DROP;
	return send_to_pod(skb, p, pod, ingress);
}

/* Handles a pod's segment of a flow to itself. If it refuses a SYN because it does not listen, it gets no answer: its
 * TCP sends the SYN again, which goes to another pod, or waits for one. */
static __always_inline int reply_by_hairpin(struct __sk_buff *skb, struct packet *p, const struct flow_key *k,
					    struct flow *f, const struct pod *pod)
{
	struct origin o = f->origin;
	o.path = o.ifindex ? PATH_POD : PATH_STACK;
	if (p->flags & TCP_SYN)
		parse_wscale(skb, p);
	if (refuses_syn(f, p)) {
		check_pod(skb, f->pod);
		if (pod->state != POD_SERVING) {
			flow_forget(k, f);
			return TCX_DROP;
		}
	}
	account(f, p, OUT, track(k, f, p, OUT));
	if (replace_addr(skb, p, offsetof(struct iphdr, daddr), p->daddr, pod->addr.w[3]))
		return TCX_DROP;
	return send_to_client(skb, p, k, &o);
}
