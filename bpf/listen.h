/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Readiness: reports that a pod's socket has entered LISTEN, or left it. */
#pragma once

#include "deaf.h"

/* The parts of the kernel's structs that are read; CO-RE finds the offsets. */
struct net {
	__u64 net_cookie;
} __attribute__((preserve_access_index));

struct sock_common {
	__be32 skc_rcv_saddr;
	__u16 skc_num;
	unsigned short skc_family;
	struct {
		struct net *net;
	} skc_net;
} __attribute__((preserve_access_index));

struct sock {
	struct sock_common __sk_common;
} __attribute__((preserve_access_index));

/* <net/tcp_states.h> */
#define TCP_CLOSE 7
#define TCP_LISTEN 10

/* Handles a socket's change of state. When a listening socket is closed, the kernel has already removed it from where
 * SYNs find it. Another one may be left there: the next SYN looks. (A connection's socket begins as a copy of the
 * listening one, so not every change from LISTEN is its end.) */
static __always_inline int socket_state_changed(struct sock *sk, int from, int to)
{
	bool ends = from == TCP_LISTEN && to == TCP_CLOSE;
	if (to != TCP_LISTEN && !ends)
		return 0;
	struct listener_key k = {.netns = sk->__sk_common.skc_net.net->net_cookie, .port = sk->__sk_common.skc_num};
	__u64 *listener = bpf_map_lookup_elem(&listeners, &k);
	if (!listener)
		return 0;
	__u32 index = *listener, generation = *listener >> 32;
	struct pod *pod = lookup_pod(index, generation);
	/* A socket bound to the loopback address cannot serve clients. */
	__be32 bound = sk->__sk_common.skc_rcv_saddr;
	if (!pod || (bound && bound != pod->addr.w[3]))
		return 0;
	if (ends)
		doubt(index);
	notify_pod(ends ? EVENT_DEAF : EVENT_LISTEN, index, generation, bpf_ktime_get_ns(), true);
	return 0;
}
