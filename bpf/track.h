/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Follows TCP connections (RFC 9293, RFC 5961) as far as an observer can. Nothing here drops a packet: a segment that
 * does not fit its flow is forwarded to the pod, whose kernel decides, and changes nothing. */
#pragma once

#include "flow.h"

/* How far behind the latest acknowledgment another one still fits its flow, bytes. RFC 5961, 5.2, allows the largest
 * window that was ever offered. Segments of a fast flow may be later than this: they would change nothing that matters,
 * and a forged segment would fit more easily. */
#define OLD_ACK (1 << 20)

/* Moves a sequence number forward, and never back. A plain store could overwrite the number of a later segment, which
 * another CPU follows at the same time. That might last until the connection ends: while the recorded window is too
 * small, the peer's segments do not fit the flow, and nor do the acknowledgments of them, which would enlarge it. Three
 * attempts suffice unless four CPUs follow one flow at the same moment. */
static __always_inline void seq_raise(__u32 *at, __u32 to)
{
#pragma clang loop unroll(disable)
	for (int i = 0; i < 3; i++) {
		__u32 was = *(volatile __u32 *)at;
		if (seq_diff(to, was) <= 0 || __sync_val_compare_and_swap(at, was, to) == was)
			return;
	}
}

/* Records the time of an event that is reported once in a pod's life, and reports it. */
static __always_inline void record_first(__u64 *when, enum event_type type, const struct flow *f)
{
	__u64 at = bpf_ktime_get_ns();
	if (__sync_val_compare_and_swap(when, 0, at) == 0)
		notify_pod(type, f->pod, f->generation, at, false);
}

/* Learns the pod's sequence numbers from its segment; seq is the next one that it may send. */
static __always_inline void learn_pod_seq(struct flow *f, const struct packet *p, __u32 seq)
{
	f->seq[OUT] = seq;
	f->ack[IN] = seq - 1;
	f->ack[OUT] = p->ack;
	f->edge[OUT] = p->ack + p->window;
	/* The window in the client's SYN is relative to a sequence number that is only known now. */
	f->edge[IN] = seq + f->syn_window;
}

/* Follows a SYN, or a SYN-ACK that answers it, of a flow that the pod has accepted with another SYN. A pod that has the
 * connection replies to the SYN with an ACK (RFC 5961, 4.2). One that has lost it accepts a new one: its SYN-ACK, which
 * it sends for no other reason, starts the flow anew. Returns 1 then. */
__noinline int track_new_start(struct flow *f, const struct packet *p, __u32 dir)
{
	if (!f || !p)
		return 0;
	if (dir == OUT && (p->flags & TCP_ACK) && (f->seen & SEEN_NEXT_SYN) && p->ack == f->next_isn + 1 &&
	    f->next_isn != f->isn) {
		f->isn = f->next_isn;
		f->seq[IN] = p->ack;
		f->wscale[IN] = f->next_wscale;
		f->wscale[OUT] = p->wscale;
		f->syn_window = f->next_window;
		learn_pod_seq(f, p, p->seq + 1);
		__sync_fetch_and_and(&f->seen, ~(SEEN_FINS | SEEN_FIN_ACKS | SEEN_NEXT_SYN));
		return 1;
	}
	if (dir == IN && is_syn(p)) {
		f->next_isn = p->seq;
		f->next_window = p->window;
		f->next_wscale = p->wscale;
		__sync_fetch_and_or(&f->seen, SEEN_NEXT_SYN);
	}
	count(COUNT_OUT_OF_WINDOW);
	return 0;
}

/* Whether a pod's segment is a RST that acknowledges the client's SYN. */
static __always_inline bool resets_syn(const struct flow *f, const struct packet *p)
{
	return (p->flags & (TCP_RST | TCP_ACK)) == (TCP_RST | TCP_ACK) &&
	       (p->ack == f->isn + 1 || p->ack == f->seq[IN]);
}

/* Whether a pod refuses a SYN that it has not answered before. */
static __always_inline bool refuses_syn(const struct flow *f, const struct packet *p)
{
	return f->state == FLOW_HALF_OPEN && !(f->seen & SEEN_SYNACK) && resets_syn(f, p);
}

/* Follows a pod's SYN-ACK or RST during the handshake. Returns 1 if it fits the flow. */
static __always_inline int track_answer(const struct flow_key *k, struct flow *f, const struct packet *p)
{
	if (p->flags & TCP_RST) {
		if (resets_syn(f, p) || ((f->seen & SEEN_SYNACK) && p->seq == f->seq[OUT])) {
			flow_close(k, f);
			return 1;
		}
		count(COUNT_BAD_RST);
		return 0;
	}
	if (!(p->flags & TCP_ACK))
		return 0;
	if (seq_diff(p->ack, f->isn) <= 0 || seq_diff(p->ack, f->seq[IN]) > 0)
		return track_new_start(f, p, OUT);
	/* A retransmitted SYN-ACK changes nothing. With SYN cookies, each has a new sequence number. */
	if ((f->seen & SEEN_SYNACK) && f->ack[IN] == p->seq)
		return 1;
	f->wscale[OUT] = p->wscale;
	learn_pod_seq(f, p, p->seq + 1);
	f->seq[OUT] += p->payload;
	__sync_fetch_and_or(&f->seen, SEEN_SYNACK);
	struct syn_backup *syn = find_syn_backup(k, f);
	if (syn)
		syn->stamp = 0;
	struct pod *pod = bpf_map_lookup_elem(&pods, &f->pod);
	if (pod && !pod->first_synack)
		record_first(&pod->first_synack, EVENT_SYNACK, f);
	return 1;
}

/* Follows any other segment during the handshake. Returns 0 if there is nothing more to learn from it. */
static __always_inline int track_handshake(const struct flow_key *k, struct flow *f, const struct packet *p, __u32 dir)
{
	if (!(f->seen & SEEN_SYNACK))
		return 0;
	if (dir == IN) {
		/* ack[IN] is the pod's initial sequence number. With TCP Fast Open, more than that + 1 is valid. */
		if (!(p->flags & TCP_ACK) || seq_diff(p->ack, f->ack[IN]) <= 0 || seq_diff(p->ack, f->seq[OUT]) > 0)
			return 0;
		flow_establish(k, f);
		return 1;
	}
	/* A pod that sends data considers the connection established: the client has acknowledged a SYN-ACK that did
	 * not pass here (SYN cookies), or uses TCP Fast Open. A bare ACK proves nothing, as anyone can provoke one
	 * (RFC 5961). */
	if (!p->payload && !(p->flags & TCP_FIN))
		return 0;
	if (seq_diff(p->seq, f->ack[IN]) <= 0 || seq_diff(p->seq, f->seq[OUT]) > 0)
		learn_pod_seq(f, p, p->seq);
	if (seq_diff(p->ack, f->seq[IN]) > 0)
		f->seq[IN] = p->ack;
	flow_establish(k, f);
	return 1;
}

/* Whether both sides have offered window scaling; otherwise neither uses it (RFC 7323, 2.2). */
static __always_inline bool scales_windows(const struct flow *f)
{
	return f->wscale[IN] != NO_WSCALE && f->wscale[OUT] != NO_WSCALE;
}

/* Returns the window that a side offers, bytes. */
static __always_inline __u32 scale_window(const struct flow *f, int side, __u16 window)
{
	return scales_windows(f) ? (__u32)window << (f->wscale[side] & 0xf) : window;
}

/* Whether a segment acknowledges the FIN of its peer. seq[peer] may be less: when two CPUs follow two segments of the
 * peer at once, the earlier segment may be the last to set it, and nothing may come that corrects that. Inlined, it
 * would cost each packet of a pod 6 ns. */
__noinline int acks_fin(const struct flow *f, const struct packet *p, __u32 peer)
{
	return f && p && (f->seen & SEEN_FIN(peer & OUT)) && p->ack == f->fin_end[peer & OUT];
}

/* Follows the acknowledgment in a segment of direction dir. Returns what track does: 0 if its sender cannot have sent
 * it. */
static __always_inline int track_ack(const struct flow_key *k, struct flow *f, const struct packet *p, __u32 dir)
{
	__u32 peer = !dir;
	if ((seq_diff(p->ack, f->seq[peer]) > 0 && !acks_fin(f, p, peer)) || seq_diff(p->ack, f->ack[dir]) < -OLD_ACK)
		return 0;
	__u32 edge = p->ack + scale_window(f, dir, p->window);
	int fits = TRACK_FITS;
	if (seq_diff(edge, f->edge[dir]) > 0) {
		seq_raise(&f->edge[dir], edge);
		fits |= TRACK_ALLOWS;
	}
	/* The next segment corrects what a plain store of another CPU undoes here: OLD_ACK leaves room for that. */
	if (seq_diff(p->ack, f->ack[dir]) > 0) {
		f->ack[dir] = p->ack;
		fits |= TRACK_ALLOWS;
	}
	__u32 seen = f->seen;
	if (!(seen & SEEN_FIN(peer)))
		return fits;
	if (seq_diff(p->ack, f->fin_end[peer]) > 0) {
		/* Nothing follows a FIN, so the one that was seen was not the peer's. */
		__sync_fetch_and_and(&f->seen, ~(SEEN_FIN(peer) | SEEN_FIN_ACK(peer)));
	} else if (p->ack == f->fin_end[peer] && !(seen & SEEN_FIN_ACK(peer))) {
		/* A half-closed flow is alive until the other side closes as well. Atomic, so that one of two last
		 * ACKs on different CPUs sees both bits. */
		seen = __sync_fetch_and_or(&f->seen, SEEN_FIN_ACK(peer)) | SEEN_FIN_ACK(peer);
		if ((seen & SEEN_FIN_ACKS) == SEEN_FIN_ACKS)
			flow_close(k, f);
	}
	return fits;
}

/* Follows the FIN, or data after an earlier FIN, in a segment of direction dir that ends before stop. A FIN that the
 * peer never acknowledges, such as a forged one, closes nothing. */
static __always_inline void track_fin(struct flow *f, const struct packet *p, __u32 dir, __u32 stop)
{
	__u32 peer = !dir;
	if (p->flags & TCP_FIN) {
		if (seq_diff(stop, f->ack[peer]) <= 0)
			return; /* retransmitted, or forged: that sequence number was acknowledged before */
		if (!(f->seen & SEEN_FIN(dir)) || seq_diff(stop, f->fin_end[dir]) < 0)
			f->fin_end[dir] = stop;
		if (!(f->seen & SEEN_FIN(dir)))
			__sync_fetch_and_or(&f->seen, SEEN_FIN(dir));
	} else if (p->payload && (f->seen & (SEEN_FIN(dir) | SEEN_FIN_ACK(dir))) == SEEN_FIN(dir) &&
		   seq_diff(stop, f->fin_end[dir]) > 0) {
		/* Data beyond the FIN: it was not this side's. */
		__sync_fetch_and_and(&f->seen, ~SEEN_FIN(dir));
	}
}

/* Learns from a client's segment that ends before stop what the pod has sent and acknowledged past this node. All of
 * the client's segments pass here. Its window bounds what the pod can have sent. The largest window that the pod can
 * offer bounds what the pod must have acknowledged before the client could send this segment. */
static __always_inline void track_blind(struct flow *f, const struct packet *p, __u32 stop)
{
	__u32 window = scale_window(f, OUT, 0xffff);
	seq_raise(&f->edge[OUT], f->seq[IN] + window);
	if (seq_diff(stop, f->edge[OUT]) > 1 || !(p->flags & TCP_ACK))
		return;
	if (seq_diff(f->seq[IN] - window, f->ack[OUT]) > 0)
		f->ack[OUT] = f->seq[IN] - window;
	if (seq_diff(p->ack, f->edge[IN]) <= 0)
		seq_raise(&f->seq[OUT], p->ack);
}

/* Follows what a flow lacks whose handshake, or whose pod's segments, have not passed here. A pod confirms the client's
 * ACK by a segment, no RST, with the number that the ACK expects: a pod that does not know the connection answers by a
 * RST, or by an ACK with a number of its own. */
static __always_inline void track_unseen(struct flow *f, const struct packet *p, __u32 dir, __u32 stop)
{
	if ((f->seen & SEEN_BLIND) && dir == IN)
		track_blind(f, p, stop);
	if ((f->seen & SEEN_UNPROVEN) && dir == OUT && p->seq == f->seq[OUT] &&
	    (__sync_fetch_and_and(&f->seen, ~SEEN_UNPROVEN) & SEEN_UNPROVEN))
		count_new_flow(f);
}

/* Whether a client's segment can belong to an open flow, judging by its sequence numbers. Changes nothing. */
static __always_inline bool segment_fits_flow(const struct flow *f, const struct packet *p)
{
	bool half_open = f->state == FLOW_HALF_OPEN;
	if (f->state >= FLOW_CLOSED || (half_open && !(f->seen & SEEN_SYNACK)) || (p->flags & TCP_SYN) ||
	    seq_diff(seq_end(p), f->edge[OUT]) > 1 || seq_diff(p->seq, f->ack[OUT]) < -OLD_ACK)
		return false;
	if (!(p->flags & TCP_ACK))
		return p->flags & TCP_RST;
	return seq_diff(p->ack, f->seq[OUT]) <= 0 && seq_diff(p->ack, f->ack[IN]) >= (half_open ? 1 : -OLD_ACK);
}

/* Follows one segment of a flow in direction dir. Returns the TRACK_ bits that hold for it, 0 if it does not fit. */
__noinline int track(const struct flow_key *k, struct flow *f, const struct packet *p, __u32 dir)
{
	if (!k || !f || !p || dir > OUT || f->state >= FLOW_CLOSED)
		return 0;
	barrier_var(dir); /* so that the verifier sees the next line */
	dir &= OUT;
	__u32 peer = !dir;
	if (f->state == FLOW_HALF_OPEN) {
		if (dir == OUT && (p->flags & (TCP_SYN | TCP_RST)))
			return track_answer(k, f, p);
		if (dir == IN && (p->flags & TCP_SYN))
			return p->seq == f->isn /* retransmitted */ || track_new_start(f, p, IN);
		if (dir == IN && (p->flags & TCP_RST)) {
			/* The client gave up, or does not know the connection. */
			if (p->seq == f->isn + 1 || p->seq == f->seq[IN]) {
				flow_close(k, f);
				return 1;
			}
			count(COUNT_BAD_RST);
			return 0;
		}
		if (!track_handshake(k, f, p, dir))
			return 0;
	}
	if (p->flags & TCP_RST) {
		/* Only the number that the peer expects next, or that its sender would send next, is certain. To any
		 * other in the window the peer replies with a challenge ACK, and the real sender repeats the RST
		 * with the exact number (RFC 5961, 3.2). */
		if (p->seq == f->ack[peer] || p->seq == f->seq[dir]) {
			flow_close(k, f);
			return 1;
		}
		count(COUNT_BAD_RST);
		return 0;
	}
	if (p->flags & TCP_SYN)
		return track_new_start(f, p, dir);
	__u32 stop = seq_end(p);
	if (f->seen & (SEEN_BLIND | SEEN_UNPROVEN))
		track_unseen(f, p, dir, stop);
	int fits = 0;
	/* The window that the peer offered, as far as it is known here. Without ACK, TCP drops a segment. */
	if (seq_diff(stop, f->edge[peer]) <= 1 && seq_diff(p->seq, f->ack[peer]) >= -OLD_ACK && (p->flags & TCP_ACK))
		fits = track_ack(k, f, p, dir);
	if (!fits) {
		count(COUNT_OUT_OF_WINDOW);
		return 0;
	}
	seq_raise(&f->seq[dir], stop);
	track_fin(f, p, dir, stop);
	if (dir == OUT && p->payload) {
		struct pod *pod = bpf_map_lookup_elem(&pods, &f->pod);
		if (pod && !pod->first_byte)
			record_first(&pod->first_byte, EVENT_FIRST_BYTE, f);
	}
	return fits;
}
