/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What TCP says of a connection (RFC 9293, 5961), as far as it can be known in between. Nothing here drops a
 * packet: what does not belong to a flow goes on to its pod, which knows better, and changes nothing. */
#pragma once

#include "flow.h"

/* Acknowledgments this much older than the newest are still taken as the peer's (RFC 5961, 5.2). */
#define OLD_ACK (1 << 20)

/* a - b in sequence space (RFC 9293, 3.4). */
static __always_inline __s32 seq_diff(__u32 a, __u32 b) { return (__s32)(a - b); }

/* Notes when something happened for the first time in a pod's life. */
static __always_inline void first(__u64 *when, enum event_type type, const struct flow *f)
{
	__u64 at = bpf_ktime_get_ns();
	if (__sync_val_compare_and_swap(when, 0, at) == 0)
		notify(type, f->pod, f->generation, at, false, NULL);
}

/* Learns where the pod's sequence numbers begin; seq is one that it may send next. */
static __always_inline void learn_pod(struct flow *f, const struct packet *p, __u32 seq)
{
	f->seq[OUT] = seq;
	f->ack[IN] = seq - 1;
	f->ack[OUT] = p->ack;
	f->edge[OUT] = p->ack + p->window;
	/* The client's window in its SYN is relative to a sequence number that is known only now. */
	f->edge[IN] = seq + f->syn_window;
}

/* Whether a pod's segment refuses a SYN that it never answered otherwise. */
static __always_inline bool refuses(const struct flow *f, const struct packet *p)
{
	return (p->flags & (TCP_RST | TCP_ACK)) == (TCP_RST | TCP_ACK) && f->state == FLOW_HALF_OPEN &&
	       !(f->seen & SEEN_SYNACK) && (p->ack == f->isn + 1 || p->ack == f->seq[IN]);
}

/* The pod answers a SYN with SYN-ACK or RST. */
static __always_inline int track_answer(const struct flow_key *k, struct flow *f, const struct packet *p)
{
	if (p->flags & TCP_RST) {
		bool of_syn = (p->flags & TCP_ACK) && (p->ack == f->isn + 1 || p->ack == f->seq[IN]);
		if (of_syn || ((f->seen & SEEN_SYNACK) && p->seq == f->seq[OUT])) {
			flow_close(k, f);
			return 1;
		}
		count(COUNT_BAD_RST);
		return 0;
	}
	if (!(p->flags & TCP_ACK))
		return 0;
	if (seq_diff(p->ack, f->isn) <= 0 || seq_diff(p->ack, f->seq[IN]) > 0) {
		count(COUNT_OUT_OF_WINDOW);
		return 0;
	}
	/* A repeated SYN-ACK changes nothing. One with another sequence number does: with SYN cookies, each is new. */
	if ((f->seen & SEEN_SYNACK) && f->ack[IN] == p->seq)
		return 1;
	f->wscale[OUT] = p->wscale;
	learn_pod(f, p, p->seq + 1);
	f->seq[OUT] += p->payload;
	__sync_fetch_and_or(&f->seen, SEEN_SYNACK);
	struct kept *syn = kept_of(k, f);
	if (syn)
		syn->stamp = 0;
	struct pod *pod = bpf_map_lookup_elem(&pods, &f->pod);
	if (pod && !pod->first_synack)
		first(&pod->first_synack, EVENT_SYNACK, f);
	return 1;
}

/* Follows a segment of a flow whose handshake is under way. Returns 0 if that is all there is to be learned. */
static __always_inline int track_handshake(struct flow *f, const struct packet *p, __u32 dir)
{
	if (!(f->seen & SEEN_SYNACK))
		return 0;
	if (dir == IN) {
		/* ack[IN] is the pod's initial sequence number. More than that + 1 is possible: TCP Fast Open. */
		if (!(p->flags & TCP_ACK) || seq_diff(p->ack, f->ack[IN]) <= 0 || seq_diff(p->ack, f->seq[OUT]) > 0)
			return 0;
		flow_establish(f);
		return 1;
	}
	/* A pod sends data only once it holds the connection for established. So the client has acknowledged a
	 * SYN-ACK, though not the one known here (cookies), or the connection is by TCP Fast Open. A bare ACK tells
	 * nothing: anyone can provoke one (RFC 5961). */
	if (!p->payload && !(p->flags & TCP_FIN))
		return 0;
	if (seq_diff(p->seq, f->ack[IN]) <= 0 || seq_diff(p->seq, f->seq[OUT]) > 0)
		learn_pod(f, p, p->seq);
	if (seq_diff(p->ack, f->seq[IN]) > 0)
		f->seq[IN] = p->ack;
	flow_establish(f);
	return 1;
}

static __always_inline __u32 scaled(const struct flow *f, int side, __u16 window)
{
	/* Both must have offered it for either to use it (RFC 7323, 2.2). */
	if (f->wscale[0] == NO_WSCALE || f->wscale[1] == NO_WSCALE)
		return window;
	return (__u32)window << (f->wscale[side] & 0xf);
}

/* Follows the acknowledgment of dir's segment. Returns 0 if it cannot be the sender's. */
static __always_inline int track_ack(const struct flow_key *k, struct flow *f, const struct packet *p, __u32 dir)
{
	__u32 peer = !dir;
	if (seq_diff(p->ack, f->seq[peer]) > 0 || seq_diff(p->ack, f->ack[dir]) < -OLD_ACK)
		return 0;
	__u32 edge = p->ack + scaled(f, dir, p->window);
	if (seq_diff(edge, f->edge[dir]) > 0)
		f->edge[dir] = edge;
	if (seq_diff(p->ack, f->ack[dir]) > 0)
		f->ack[dir] = p->ack;
	__u32 seen = f->seen;
	if (!(seen & SEEN_FIN(peer)))
		return 1;
	if (seq_diff(p->ack, f->fin_end[peer]) > 0) {
		/* Nothing follows a FIN: as more was acknowledged, that one was not the peer's. */
		__sync_fetch_and_and(&f->seen, ~(SEEN_FIN(peer) | SEEN_FIN_ACK(peer)));
	} else if (p->ack == f->fin_end[peer] && !(seen & SEEN_FIN_ACK(peer))) {
		/* Half-closed is alive: both must have closed. Atomic, or two last ACKs could miss one another. */
		seen = __sync_fetch_and_or(&f->seen, SEEN_FIN_ACK(peer)) | SEEN_FIN_ACK(peer);
		if ((seen & SEEN_FIN_ACKS) == SEEN_FIN_ACKS)
			flow_close(k, f);
	}
	return 1;
}

/* Follows the FIN, or the data after one, of dir's segment, which ends before stop. A FIN that the peer never
 * acknowledges, such as a forged one, ends nothing. */
static __always_inline void track_fin(struct flow *f, const struct packet *p, __u32 dir, __u32 stop)
{
	__u32 peer = !dir;
	if (p->flags & TCP_FIN) {
		if (seq_diff(stop, f->ack[peer]) <= 0)
			return; /* a repeated one, or none: what is acknowledged already was no FIN */
		if (!(f->seen & SEEN_FIN(dir)) || seq_diff(stop, f->fin_end[dir]) < 0)
			f->fin_end[dir] = stop;
		if (!(f->seen & SEEN_FIN(dir)))
			__sync_fetch_and_or(&f->seen, SEEN_FIN(dir));
	} else if (p->payload && (f->seen & (SEEN_FIN(dir) | SEEN_FIN_ACK(dir))) == SEEN_FIN(dir) &&
		   seq_diff(stop, f->fin_end[dir]) > 0) {
		/* Data after its end: that FIN was not this side's. */
		__sync_fetch_and_and(&f->seen, ~SEEN_FIN(dir));
	}
}

/* Learns from a client's segment, which ends before stop, what the pod has sent and acknowledged meanwhile without
 * being seen here. All of the client's segments are, so its window tells what the pod can have sent, and the largest
 * window that the pod can offer tells what it must have acknowledged for the client to send this. */
static __always_inline void track_blind(struct flow *f, const struct packet *p, __u32 stop)
{
	__u32 window = f->wscale[0] == NO_WSCALE || f->wscale[1] == NO_WSCALE ? 0xffff : 0xffffu << (f->wscale[OUT] & 0xf);
	__u32 edge = f->seq[IN] + window;
	if (seq_diff(edge, f->edge[OUT]) > 0)
		f->edge[OUT] = edge;
	if (seq_diff(stop, f->edge[OUT]) > 1 || !(p->flags & TCP_ACK))
		return;
	if (seq_diff(f->seq[IN] - window, f->ack[OUT]) > 0)
		f->ack[OUT] = f->seq[IN] - window;
	if (seq_diff(p->ack, f->seq[OUT]) > 0 && seq_diff(p->ack, f->edge[IN]) <= 0)
		f->seq[OUT] = p->ack;
}

/* Whether a client's segment can be of a flow that is open, as far as its numbers tell. It changes nothing. */
static __always_inline bool fits(const struct flow *f, const struct packet *p)
{
	__u32 stop = p->seq + p->payload + ((p->flags & TCP_FIN) ? 1 : 0);
	if (f->state >= FLOW_CLOSED || (f->state == FLOW_HALF_OPEN && !(f->seen & SEEN_SYNACK)) || (p->flags & TCP_SYN) ||
	    seq_diff(stop, f->edge[OUT]) > 1 || seq_diff(p->seq, f->ack[OUT]) < -OLD_ACK)
		return false;
	if (!(p->flags & TCP_ACK))
		return p->flags & TCP_RST;
	return seq_diff(p->ack, f->seq[OUT]) <= 0 && seq_diff(p->ack, f->ack[IN]) >= (f->state == FLOW_HALF_OPEN ? 1 : -OLD_ACK);
}

/* Follows one segment of a flow; dir is who sent it. Returns 1 if it is the sender's as far as can be known. */
__noinline int track(const struct flow_key *k, struct flow *f, const struct packet *p, __u32 dir)
{
	if (!k || !f || !p || dir > OUT || f->state >= FLOW_CLOSED)
		return 0;
	__u32 peer = !dir;
	if (f->state == FLOW_HALF_OPEN) {
		if (dir == OUT && (p->flags & (TCP_SYN | TCP_RST)))
			return track_answer(k, f, p);
		if (dir == IN && (p->flags & TCP_SYN))
			return p->seq == f->isn; /* repeated */
		if (dir == IN && (p->flags & TCP_RST)) {
			/* The client's kernel gave up, or does not know of the connection. */
			if (p->seq == f->isn + 1 || p->seq == f->seq[IN]) {
				flow_close(k, f);
				return 1;
			}
			count(COUNT_BAD_RST);
			return 0;
		}
		if (!track_handshake(f, p, dir))
			return 0;
	}
	if (p->flags & TCP_RST) {
		/* Exactly what the peer expects next, or exactly what its sender would send next: anything else in
		 * the window gets a challenge ACK from the peer, and the real sender repeats it with the right
		 * number (RFC 5961, 3.2). */
		if (p->seq == f->ack[peer] || p->seq == f->seq[dir]) {
			flow_close(k, f);
			return 1;
		}
		count(COUNT_BAD_RST);
		return 0;
	}
	__u32 stop = p->seq + p->payload + ((p->flags & TCP_FIN) ? 1 : 0);
	if ((f->seen & SEEN_BLIND) && dir == IN)
		track_blind(f, p, stop);
	/* In the window that the peer offered, as far as it can be known here. */
	if ((p->flags & TCP_SYN) || seq_diff(stop, f->edge[peer]) > 1 || seq_diff(p->seq, f->ack[peer]) < -OLD_ACK ||
	    ((p->flags & TCP_ACK) && !track_ack(k, f, p, dir))) {
		count(COUNT_OUT_OF_WINDOW);
		return 0;
	}
	if (seq_diff(stop, f->seq[dir]) > 0)
		f->seq[dir] = stop;
	track_fin(f, p, dir, stop);
	if (dir == OUT && p->payload) {
		struct pod *pod = bpf_map_lookup_elem(&pods, &f->pod);
		if (pod && !pod->first_byte)
			first(&pod->first_byte, EVENT_FIRST_BYTE, f);
	}
	return 1;
}
