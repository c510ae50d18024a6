/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Retries: a flow's SYN is backed up until its SYN-ACK has passed. If the pod refuses it or does not answer, it is
 * sent to another pod, unnoticed by the client. */
#pragma once

#include "deaf.h"
#include "hairpin.h"
#include "park.h"
#include "prove.h"
#include "remote.h"

#define START_TIME 60000000000ull /* ns for which a pod that has answered no SYN yet may still be starting */

/* Whether a serving pod that has answered no SYN yet may not be ready, although its program listens: something in its
 * network namespace may lead clients to another program, such as a sidecar, which does not listen yet. */
static __always_inline bool is_starting(const struct pod *pod)
{
	return !pod->first_synack && pod->served && pod->state == POD_SERVING &&
	       bpf_ktime_get_ns() - pod->served < START_TIME;
}

/* Backs up the SYN of a flow that was just opened, and reads its options. */
__noinline int backup_syn(struct __sk_buff *skb, const struct packet *p, const struct flow_key *k, struct flow *f)
{
	if (!p || !k || !f)
		return 0;
	struct options o = {};
	if (load_options(skb, p, &o))
		f->wscale[IN] = find_wscale(&o);
	__u32 stamp = f->stamp, at = backup_index(k, stamp);
	struct syn_backup *s = bpf_map_lookup_elem(&syn_backups, &at);
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct iphdr *ip = data + sizeof(struct ethhdr);
	if (!stamp || !s || (void *)(ip + 1) > end)
		return 0;
	/* The daemon reads it only while the stamp is valid. */
	*(volatile __u32 *)&s->stamp = 0;
	s->tried = 0;
	s->sent = f->created;
	s->isn = p->seq;
	s->retries = 0;
	s->refused = 0;
	__builtin_memcpy(s->options, o.byte, MAX_OPTIONS);
	s->options_len = o.len;
	s->tos = ip->tos;
	s->ttl = ip->ttl;
	s->flags = p->flags;
	s->window = bpf_htons(p->window);
	*(volatile __u32 *)&s->stamp = stamp;
	start_syn_watch();
	return 0;
}

/* Returns the bit of a flow's client in syn_backup.tried, if it is a serving pod of the service itself; 0 otherwise. */
__noinline int bit_of_client(const struct flow_key *k, __u32 service)
{
	struct pod_device *d = k ? bpf_map_lookup_elem(&pod_devices, &k->client) : NULL;
	__u32 index = d ? d->pod : 0;
	struct pod *pod = d && !d->front ? bpf_map_lookup_elem(&pods, &index) : NULL;
	return pod && pod->service == service && pod->state == POD_SERVING ? 1u << (pod->slot & 31) : 0;
}

/* Sends a flow's SYN to another pod, to deaf ones last. If none of its service serves any more, the SYN is judged as any
 * other of a cold service: it is parked, dropped, or its client challenged. skb holds either the RST with which the pod
 * refuses the SYN, translated to come from the service address, or the SYN itself, sent again by the daemon because the
 * pod does not answer. If nothing works, the client gets the RST, unless the pod may still be starting: then the SYN waits,
 * and the daemon sends it again. */
static __always_inline int retry_syn(struct __sk_buff *skb, struct packet *p)
{
	bool silent = is_syn(p);
	struct flow_key k;
	if (silent)
		flow_key_from_client(&k, p);
	else
		flow_key_to_client(&k, p);
	struct flow *f = bpf_map_lookup_elem(&flows, &k);
	if (!f || (silent && (f->state != FLOW_HALF_OPEN || (f->seen & SEEN_SYNACK) || f->isn != p->seq)))
		return TCX_DROP;
	struct origin o = f->origin;
	struct service *s = service_of_flow(&k);
	/* At an address that the service has left, only the pod that has the SYN may still take it. */
	struct service_status *st = s && !(s->flags & SERVICE_LEFT) ? status_of(s->index) : NULL;
	struct syn_backup *syn = find_syn_backup(&k, f);
	struct pod *pod = bpf_map_lookup_elem(&pods, &f->pod);
	if (!st || !syn || !pod)
		goto give_up;
	/* Distinguish a pod that gets no new flows any more from one that refuses this flow. */
	if (!silent)
		check_pod(skb, f->pod);
	bool left = !silent && pod->state != POD_SERVING;
	/* In a flood, SYN-ACKs may pass that the flow does not see. */
	if (silent && is_flooded(s->index))
		goto give_up;
	if (silent && syn->refused && is_starting(pod)) { /* from the beginning: the same pod is tried again */
		syn->tried = 0;
		syn->retries = -1;
	} else if (syn->retries >= s->retries && !left) {
		goto give_up;
	} else {
		syn->tried |= 1u << (pod->slot & 31);
	}
	/* A pod gets its own SYN only as a hairpin. */
	syn->tried |= bit_of_client(&k, s->index);
	int next = pick_pod(s->index, syn->tried, chooser(&o, k.client.w[3]));
	if (next == NO_POD && left)
		cool_without_pods(s->index);
	bool parks = next == NO_POD && state_now(st) != SERVICE_WARM;
	/* A deaf pod may listen again. If not, the client is answered, as this service parks nothing. */
	if (next == NO_POD && !parks && syn->retries < s->retries)
		next = pick_deaf_pod(s->index, syn->tried);
	if (next == NO_POD && !parks) {
		if (!bit_of_client(&k, s->index))
			goto give_up;
		flow_forget(&k, f); /* its TCP sends the SYN again, and it may get itself */
		return TCX_DROP;
	}
	/* A partial checksum starts at the original TCP header, so that must not move. */
	if (!silent && p->l4 != sizeof(struct ethhdr) + sizeof(struct iphdr))
		goto give_up;
	if (!flow_advance(&k, f, FLOW_GONE))
		return TCX_DROP;
	bpf_map_delete_elem(&flows, &k);
	syn->stamp = 0;
	if (!silent && build_syn(skb, syn, &k))
		return TCX_DROP;
	if (parse((void *)(long)skb->data, (void *)(long)skb->data_end, skb->len, p) != PACKET_TCP)
		return TCX_DROP;
	if (parks) {
		/* If it is dropped, its client repeats it. */
		enum judgment j = judge(skb, false, p, &k, s, st, o.path);
		if (j == CHALLENGE)
			return challenge(skb, p, &k, &o);
		if (j == REJECT || park(skb, false, p, &k, s, st, &o) == PARKED)
			return TCX_DROP;
	}
	if (next == NO_POD) /* it has just become warm again */
		next = pick_pod(s->index, bit_of_client(&k, s->index), chooser(&o, k.client.w[3]));
	if (next == NO_POD || flow_open(&k, p, &o, next))
		return TCX_DROP;
	f = bpf_map_lookup_elem(&flows, &k);
	if (!f || f->isn != p->seq)
		return TCX_DROP;
	pod = pod_of_flow(f);
	if (!pod)
		return TCX_DROP;
	__u32 tried = syn->tried, retries = syn->retries + 1;
	backup_syn(skb, p, &k, f);
	syn = find_syn_backup(&k, f);
	if (syn) {
		syn->tried = tried;
		syn->retries = retries;
	}
	count(COUNT_RETRIES);
	account_in(f, p, pod, true);
	return deliver(skb, p, pod, o.path, true);
give_up:
	if (silent)
		return TCX_DROP;
	if (st && syn && pod && is_starting(pod)) {
		syn->refused = 1;
		return TCX_DROP;
	}
	account(f, p, OUT, track(&k, f, p, OUT));
	return send_to_origin(skb, &o);
}
