/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Frozen pods: their processes stand still, and their kernel goes on. It completes handshakes, acknowledges what it has
 * room for, answers keepalives, and sends what the program has written. What only the program can answer makes the
 * daemon thaw the pod, and waits for it in the pod's sockets. */
#pragma once

#include "parse.h"

/* What track says of a segment. */
#define TRACK_FITS 1   /* it fits its flow, so that it is most likely genuine */
#define TRACK_ALLOWS 2 /* it also acknowledges more than its sender has before, or enlarges the window */

/* Whether a client's segment asks the program something; fits is what track says of it. A client that has received more,
 * or has room for more, lets a program write on that has filled its socket's buffer. The kernel alone deals with what
 * carries nothing new: ACKs like the one before and keepalives (RFC 1122, 4.2.3.6: at most one byte, before those
 * acknowledged), what was acknowledged before, and the byte that probes a window in which there is no room (RFC 9293,
 * 3.8.6.1). It ends the connection at a RST, for which nobody awaits an answer. Whether the segment is genuine does not
 * matter: a pod that runs in vain costs less than a client that waits in vain. */
static __always_inline bool asks_program(const struct flow *f, const struct packet *p, int fits)
{
	if (p->flags & TCP_RST)
		return false;
	/* The handshake may be complete, and this node have missed the end of it. */
	if ((p->flags & TCP_SYN) || f->state == FLOW_HALF_OPEN || !(f->seen & SEEN_SYNACK))
		return true;
	/* The second acknowledges what has not passed here. */
	if ((fits & TRACK_ALLOWS) || ((p->flags & TCP_ACK) && seq_diff(p->ack, f->ack[IN]) > 0))
		return true;
	if (!p->payload && !(p->flags & TCP_FIN))
		return false;
	bool probes = p->payload == 1 && p->seq == f->edge[OUT] && !(p->flags & TCP_FIN);
	return seq_diff(seq_end(p), f->ack[OUT]) > 0 && !probes;
}

/* Whether a segment of a pod, or of a front to a pod, carries data or ends what its sender has to say. */
static __always_inline bool says_something(const struct packet *p)
{
	return (p->payload || (p->flags & TCP_FIN)) && !(p->flags & TCP_RST);
}

/* Notes when a segment in direction dir asks the pod's program something, or carries what the program says. fits is what
 * track says of it. */
__noinline int note_asked(struct traffic *t, const struct flow *f, const struct packet *p, __u32 dir, int fits)
{
	if (t && f && p && (dir == IN ? asks_program(f, p, fits) : says_something(p)))
		t->asked = t->now;
	return 0;
}

/* Whether a pod is frozen, and nothing has asked for it since. */
static __always_inline bool is_frozen(const struct pod *pod)
{
	return *(volatile const enum pod_freeze *)&pod->frozen == POD_FROZEN;
}

/* Notifies the daemon that a frozen pod on this node is asked something, if that is the first time since it was
 * frozen. */
__noinline int thaw_pod(__u32 index, __u32 cause)
{
	struct pod *pod = bpf_map_lookup_elem(&pods, &index);
	bool sent;
	if (!pod || pod->node ||
	    __sync_val_compare_and_swap(&pod->frozen, POD_FROZEN, POD_THAWS) != POD_FROZEN)
		return 0;
	struct event e = {
		.type = EVENT_THAW,
		.scope = cause,
		.index = index,
		.generation = pod->generation,
		.at = bpf_ktime_get_ns(),
	};
	notify(&e, true, &sent);
	if (sent)
		count(COUNT_THAWS);
	else /* the next packet tries again */
		__sync_val_compare_and_swap(&pod->frozen, POD_THAWS, POD_FROZEN);
	return 0;
}

/* Has a flow's frozen pod thawed if a client's segment asks its program something. fits is what track says of it. */
__noinline int thaw_for(const struct flow *f, const struct packet *p, int fits)
{
	return f && p && asks_program(f, p, fits) ? thaw_pod(f->pod, THAW_CLIENT) : 0;
}

/* Notes that a pod is asked something, by a packet outside of the known flows or by one that does not show it, and
 * has the pod thawed. */
__noinline int ask_pod(__u32 index)
{
	struct traffic *t = bpf_map_lookup_elem(&pod_traffic, &index);
	struct pod *pod = bpf_map_lookup_elem(&pods, &index);
	if (t)
		t->asked = bpf_ktime_get_coarse_ns();
	if (pod && is_frozen(pod))
		thaw_pod(index, THAW_CLIENT);
	return 0;
}

/* Thaws the frozen pod that sends a segment outside the flows of its service. Its kernel does so when a peer has sent
 * something: a client at the pod's own address, or a server that the pod is a client of. What it was is not known here,
 * since packets to such addresses do not pass the gate. */
static __always_inline void thaw_sender(struct __sk_buff *skb, const struct packet *p)
{
	struct addr a;
	if (p->flags & TCP_RST)
		return;
	set_addr(&a, p->saddr);
	struct pod_device *from = bpf_map_lookup_elem(&pod_devices, &a);
	if (from && !from->front && from->ifindex == skb->ifindex)
		thaw_pod(from->pod, THAW_DIRECT);
}
