/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Deaf pods: those whose program has closed its listening socket, or has ended. User space learns of that milliseconds
 * later. Until then the gate itself gives them no new flows, so that no client is refused. */
#pragma once

#include "balance.h"

/* Notes that a socket of a pod on this node has left LISTEN. */
static __always_inline void doubt(__u32 index)
{
	struct pod_socket *s = bpf_map_lookup_elem(&pod_sockets, &index);
	if (s)
		*(volatile __u32 *)&s->doubted = 1;
}

/* Whether a socket of a pod has left LISTEN since the gate has looked for one. */
static __always_inline bool is_doubted(__u32 index)
{
	struct pod_socket *s = bpf_map_lookup_elem(&pod_sockets, &index);
	return s && *(volatile __u32 *)&s->doubted;
}

/* Whether a SYN to a pod on this node would find a listening socket: one with the pod's address, one with none, or an
 * IPv6 socket that accepts IPv4. True if the pod's network namespace is not known. */
static __always_inline bool listens(struct __sk_buff *skb, const struct pod *pod, const struct pod_socket *s)
{
	/* No client has the address and port 0, so this finds no connection. */
	struct bpf_sock_tuple to = {.ipv4 = {.daddr = pod->addr.w[3], .dport = pod->port}};
	__u32 nsid = s->nsid;
	if (!nsid)
		return true;
	struct bpf_sock *sk = bpf_skc_lookup_tcp(skb, &to, sizeof(to.ipv4), nsid - 1, 0);
	if (!sk)
		return false;
	bpf_sk_release(sk);
	return true;
}

/* Stops new flows to a serving pod, and notifies the daemon. */
static __always_inline void mark_deaf(__u32 index, struct pod *pod)
{
	if (__sync_val_compare_and_swap(&pod->state, POD_SERVING, POD_DEAF) == POD_SERVING)
		notify_pod(EVENT_DEAF, index, pod->generation, bpf_ktime_get_ns(), true);
}

/* Checks whether a serving pod on this node listens, and marks it as deaf if not. */
__noinline int check_pod(struct __sk_buff *skb, __u32 index)
{
	struct pod *pod = bpf_map_lookup_elem(&pods, &index);
	struct pod_socket *s = bpf_map_lookup_elem(&pod_sockets, &index);
	if (!pod || !s || pod->node || pod->state != POD_SERVING)
		return 0;
	/* First, so that a socket that leaves LISTEN from now on raises another doubt. */
	__sync_lock_test_and_set(&s->doubted, 0);
	if (!listens(skb, pod, s))
		mark_deaf(index, pod);
	return 0;
}

/* Makes a warm service cold if none of its pods takes new flows, so that its SYNs are parked. */
__noinline int cool_without_pods(__u32 service)
{
	struct service_status *st = status_of(service);
	if (!st || pick_backend(service, 0, 0) != NO_POD ||
	    __sync_val_compare_and_swap(&st->state, SERVICE_WARM, SERVICE_COLD) != SERVICE_WARM)
		return 0;
	/* The daemon may have made a pod serve just before, and found the service warm. */
	if (pick_backend(service, 0, 0) != NO_POD &&
	    __sync_val_compare_and_swap(&st->state, SERVICE_COLD, SERVICE_WARM) != SERVICE_COLD)
		__sync_val_compare_and_swap(&st->state, SERVICE_WAKING, SERVICE_WARM);
	return 0;
}

/* Checks the pods of a warm service if one of them is doubted, or none can be chosen. */
__noinline int check_pods(struct __sk_buff *skb, __u32 service)
{
	struct service_status *st = status_of(service);
	if (!st)
		return 0;
	for (__u32 i = 0; i < MAX_PODS_PER_SERVICE && i < st->pods; i++) {
		__u32 index = st->pod[i];
		if (is_doubted(index))
			check_pod(skb, index);
	}
	__u32 front = st->front - 1;
	if (is_doubted(front))
		check_pod(skb, front);
	return cool_without_pods(service);
}

/* Finds a deaf pod of a service that is not in tried. Returns its index, or NO_POD. */
__noinline int pick_deaf_pod(__u32 service, __u32 tried)
{
	struct service_status *st = status_of(service);
	if (!st)
		return NO_POD;
	for (__u32 i = 0; i < MAX_PODS_PER_SERVICE && i < st->pods; i++) {
		__u32 index = st->pod[i];
		struct pod *pod = bpf_map_lookup_elem(&pods, &index);
		if (pod && pod->state == POD_DEAF && pod->service == service && !(tried & (1u << (pod->slot & 31))))
			return index;
	}
	return NO_POD;
}
