// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/* The gate: entry points. See docs/architecture.md for the way of a packet.
 *
 *   gate_xdp      external interface, XDP:     ARP; parks SYNs of cold services before a socket buffer is made
 *   gate_xdp_skb  the same, for generic XDP
 *   gate_nic      external interface, ingress: clients' packets to pods
 *   gate_local    wangell0, egress:            packets of clients on this machine (and its other pods)
 *   gate_released wangell0, ingress:           released SYNs; replies to clients on this machine
 *   gate_pod      host end of a pod's veth:    replies; the pod's own packets to services, all or (shortcut) what follows a SYN
 *   gate_node     called by gate_nic:          packets that other nodes' gates send here
 *   gate_home     called by gate_pod:          replies to clients of other nodes
 *   gate_retry    called by several:           SYNs that their pod did not take
 *   gate_moved    called by several:           flows whose client comes by another edge node than before
 *   gate_listen   inet_sock_set_state:         a pod's socket listens
 *   gate_unpark, gate_sweep                    run by the daemon
 */
#include "retry.h"
#include "icmp.h"
#include "moved.h"
#include "arp.h"
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "GPL";

#define PACKET_HOST_TYPE 0 /* <linux/if_packet.h> PACKET_HOST */

/* Lets the headers that are looked at be read directly. No more than these: pulling may copy the packet. */
static __always_inline void linear(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct iphdr *ip = data + sizeof(struct ethhdr);
	/* An ICMP error's own headers, and the first of the packet that it is about. */
	__u32 want = sizeof(struct ethhdr) + 60 + sizeof(struct icmphdr) + 60 + 8;
	if ((void *)(ip + 1) <= end && ip->protocol == IPPROTO_TCP)
		want = sizeof(struct ethhdr) + ip->ihl * 4 + sizeof(struct tcphdr);
	if (want > skb->len)
		want = skb->len;
	if (end - data < want)
		bpf_skb_pull_data(skb, want);
}

static __always_inline int at_xdp(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	if ((void *)(eth + 1) > end)
		return XDP_PASS;
	if (eth->h_proto == bpf_htons(ETH_P_ARP))
		return arp(data, end, ctx->ingress_ifindex, true) == ARP_ANSWER ? XDP_TX : XDP_PASS;
	struct packet p;
	/* What is not a SYN, or not well-formed, gate_nic deals with. */
	if (parse(data, end, bpf_xdp_get_buff_len(ctx), &p) != PACKET_TCP || !in_range(p.daddr) || !is_syn(&p))
		return XDP_PASS;
	struct service_key sk;
	service_key_in(&sk, &p);
	struct service *s = bpf_map_lookup_elem(&services, &sk);
	if (!s)
		return XDP_PASS;
	struct service_state *st = bpf_map_lookup_elem(&states, &s->index);
	if (!st || *(volatile __u32 *)&st->phase == PHASE_WARM)
		return XDP_PASS;
	/* Frames that a switch floods are for others. */
	__u32 ifindex = ctx->ingress_ifindex;
	struct nic *nic = bpf_map_lookup_elem(&nics, &ifindex);
	if (!nic || __builtin_memcmp(nic->mac, eth->h_dest, 6))
		return XDP_PASS;
	struct flow_key k;
	flow_key_in(&k, &p);
	struct flow *f = bpf_map_lookup_elem(&flows, &k);
	if (f && !flow_reusable(f, &p))
		return XDP_PASS;
	struct origin o = {.ifindex = ifindex, .path = PATH_NIC};
	__builtin_memcpy(o.client_mac, eth->h_source, 6);
	__builtin_memcpy(o.our_mac, eth->h_dest, 6);
	return park(ctx, true, &p, &k, s, st, &o) == PARKED ? XDP_DROP : XDP_PASS;
}

/* Frames in several pieces come with a large MTU, and natively only to programs that say that they can read them. */
SEC("xdp.frags")
int gate_xdp(struct xdp_md *ctx)
{
	return at_xdp(ctx);
}

/* For generic XDP it must not say so: the kernel copies the packets then (skb_pp_cow_data), without the length of
 * their MAC header, and gate_nic would see them without it. */
SEC("xdp")
int gate_xdp_skb(struct xdp_md *ctx)
{
	return at_xdp(ctx);
}

/* Chooses a pod for a SYN, or NO_POD. What was on its 5-tuple (old, or NULL) is over before pods are compared. */
static __always_inline int choose(const struct flow_key *k, struct flow *old, const struct packet *p, __u32 service)
{
	if (old && flow_reusable(old, p))
		flow_forget(k, old);
	return pick(service, 0, p->saddr);
}

/* Chooses a pod for a released SYN: the one whose share it is, or as for any other SYN. */
static __always_inline int choose_released(const struct flow_key *k, struct flow *old, const struct packet *p,
					   const struct service_state *st, __u32 service)
{
	int least = choose(k, old, p, service);
	__u32 index = *(volatile __u32 *)&st->to - 1;
	struct pod *pod = bpf_map_lookup_elem(&pods, &index);
	return pod && pod->state == POD_SERVING && pod->service == service ? (int)index : least;
}

/* Gives a SYN to a pod, whose flow it becomes. */
static __always_inline int begin(struct __sk_buff *skb, struct packet *p, const struct flow_key *k, __u32 index,
				 const struct origin *o, bool ingress)
{
	if (flow_open(k, p, o, index))
		return TCX_DROP;
	struct flow *f = bpf_map_lookup_elem(&flows, k);
	/* Another CPU may be making the entry at this moment; the client sends its SYN again. */
	if (!f || f->isn != p->seq)
		return TCX_DROP;
	/* Or it has made it, and chose another pod for the same SYN. */
	index = f->pod;
	struct pod *pod = bpf_map_lookup_elem(&pods, &index);
	if (!pod || pod->generation != f->generation)
		return TCX_DROP;
	keep_syn(skb, p, k, f);
	account(index, f, IN, p->ip_len);
	return deliver(skb, p, pod, o->path, ingress);
}

/* The same SYN may be parked, if it was sent again just when its service became warm: only one of both may go on. */
static __always_inline void unpark_twin(struct service_state *st, const struct flow_key *k)
{
	struct parked_flow *pf = bpf_map_lookup_elem(&parked_flows, k);
	if (!pf)
		return;
	struct ticket t = pf->ticket;
	if (unpark(&t) == 0)
		__sync_fetch_and_add(&st->released, 1);
}

/* What is for an address in the service range, but is no TCP segment. */
static __always_inline int no_segment(struct __sk_buff *skb, enum verdict v, const struct packet *p, bool ingress)
{
	struct addr vip;
	addr4(&vip, p->daddr);
	if (!bpf_map_lookup_elem(&addresses, &vip))
		return TCX_NEXT;
	if (v == PACKET_ICMP)
		return icmp(skb, p, ingress);
	count(v == PACKET_FRAGMENT ? COUNT_FRAGMENTS : COUNT_MALFORMED);
	return TCX_DROP;
}

static __always_inline enum verdict parse_skb(struct __sk_buff *skb, struct packet *p)
{
	linear(skb);
	return parse((void *)(long)skb->data, (void *)(long)skb->data_end, skb->len, p);
}

/* The way back follows the client's router, as told by segments that only the client can have sent. True if they came
 * by another edge node so far. */
static __always_inline bool follow_route(struct flow *f, const struct ethhdr *eth, __u32 ifindex)
{
	if (!__builtin_memcmp(f->origin.client_mac, eth->h_source, 6) && f->origin.ifindex == ifindex)
		return false;
	if (f->origin.path == PATH_STACK || f->origin.path == PATH_POD)
		return false;
	bool moved = f->origin.path != PATH_NIC;
	f->origin.path = PATH_NIC;
	f->origin.ifindex = ifindex;
	__builtin_memcpy(f->origin.client_mac, eth->h_source, 6);
	__builtin_memcpy(f->origin.our_mac, eth->h_dest, 6);
	return moved;
}

/* A client's packet to an address in the service range; path tells whose client. */
static __always_inline int edge(struct __sk_buff *skb, enum verdict v, struct packet *p, enum flow_path path, bool ingress)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (v == PACKET_OTHER || !in_range(p->daddr))
		return TCX_NEXT;
	if (v != PACKET_TCP)
		return no_segment(skb, v, p, ingress);

	struct ethhdr *eth = data;
	if ((void *)(eth + 1) > end)
		return TCX_DROP;
	struct flow_key k;
	flow_key_in(&k, p);
	struct flow *f = bpf_map_lookup_elem(&flows, &k);
	bool syn = is_syn(p), known = f;
	if (f && !(syn && flow_reusable(f, p))) {
		__u32 index = f->pod;
		struct pod *pod = bpf_map_lookup_elem(&pods, &index);
		if (pod && pod->generation == f->generation) {
			int genuine = track(&k, f, p, IN);
			account(index, f, IN, p->ip_len);
			if (genuine && path == PATH_NIC && follow_route(f, eth, skb->ifindex))
				bpf_tail_call(skb, &steps, STEP_MOVED);
			return deliver(skb, p, pod, path, ingress);
		}
		/* Its pod is gone. */
		flow_forget(&k, f);
		f = NULL;
	}

	struct service_key sk;
	service_key_in(&sk, p);
	struct service *s = bpf_map_lookup_elem(&services, &sk);
	if (!s) {
		if (!bpf_map_lookup_elem(&addresses, &sk.addr))
			return TCX_NEXT;
		count(COUNT_NO_SERVICE);
		return reset(skb, p, ingress);
	}
	if (!syn) {
		/* Its address may have been another node's until now. */
		if (!known && path == PATH_NIC && encap_port)
			bpf_tail_call(skb, &steps, STEP_MOVED);
		count(COUNT_STRAY);
		return reset(skb, p, ingress);
	}
	struct service_state *st = bpf_map_lookup_elem(&states, &s->index);
	if (!st)
		return TCX_DROP;
	struct origin o = {.ifindex = skb->ifindex, .path = path};
	__builtin_memcpy(o.client_mac, eth->h_source, 6);
	__builtin_memcpy(o.our_mac, eth->h_dest, 6);
	if (*(volatile __u32 *)&st->phase != PHASE_WARM && park(skb, false, p, &k, s, st, &o) == PARKED)
		return TCX_DROP;
	int pod = choose(&k, f, p, s->index);
	if (pod == NO_POD) {
		count(COUNT_NO_POD);
		return TCX_DROP;
	}
	if (*(volatile __u32 *)&st->parked)
		unpark_twin(st, &k);
	return begin(skb, p, &k, pod, &o, ingress);
}

SEC("tc")
int gate_node(struct __sk_buff *skb)
{
	struct passage w = {};
	switch (decapsulate(skb, &w)) {
	case ENCAP_NONE:
		return TCX_NEXT;
	case ENCAP_DROP:
		return TCX_DROP;
	default:
		break;
	}
	struct packet p = {};
	enum verdict v = parse_skb(skb, &p);
	if (w.type == ENCAP_TO_POD && v == PACKET_TCP && in_range(p.daddr))
		return at_home(skb, &p, &w);
	if (w.type == ENCAP_TO_POD && v == PACKET_ICMP && in_range(p.daddr))
		return icmp_error(skb, &p, true);
	if (w.type == ENCAP_TO_CLIENT && v == PACKET_TCP && in_range(p.saddr))
		return at_edge(skb, &p, &w);
	if (w.type == ENCAP_CLOSED && v == PACKET_TCP)
		return closed_at_edge(&p, &w);
	if (w.type == ENCAP_WHOSE && v == PACKET_TCP && in_range(p.daddr))
		return whose(skb, &p, &w);
	if (w.type == ENCAP_MINE && v == PACKET_TCP && in_range(p.daddr)) {
		if (!adopt(&p, &w))
			bpf_tail_call(skb, &steps, STEP_MOVED);
		return TCX_DROP;
	}
	count(COUNT_BAD_ENCAP);
	return TCX_DROP;
}

SEC("tc")
int gate_nic(struct __sk_buff *skb)
{
	/* A VLAN's packets belong to the VLAN's interface; those to other hosts, or to all, to nobody here. */
	if (skb->vlan_present)
		return TCX_NEXT;
	/* Where XDP is off, or cannot send. */
	if (skb->protocol == bpf_htons(ETH_P_ARP)) {
		linear(skb);
		if (arp((void *)(long)skb->data, (void *)(long)skb->data_end, skb->ifindex, false) == ARP_ANSWER)
			return bpf_redirect(skb->ifindex, 0);
		return TCX_NEXT;
	}
	if (skb->pkt_type != PACKET_HOST_TYPE)
		return TCX_NEXT;
	struct packet p = {};
	enum verdict v = parse_skb(skb, &p);
	if (v == PACKET_OTHER) {
		if (encap_port && skb->protocol == bpf_htons(ETH_P_IP))
			bpf_tail_call(skb, &steps, STEP_NODE);
		return TCX_NEXT;
	}
	return edge(skb, v, &p, PATH_NIC, true);
}

SEC("tc")
int gate_local(struct __sk_buff *skb)
{
	struct packet p = {};
	enum verdict v = parse_skb(skb, &p);
	int ret = edge(skb, v, &p, PATH_STACK, false);
	/* Nothing is behind wangell0 but the gate. */
	return ret == TCX_NEXT ? TCX_DROP : ret;
}

SEC("tc")
int gate_released(struct __sk_buff *skb)
{
	struct packet p = {};
	enum verdict v = parse_skb(skb, &p);
	if (v == PACKET_OTHER || !in_range(p.daddr))
		return TCX_NEXT; /* a reply to a client on this machine */
	if (v != PACKET_TCP)
		return TCX_DROP;
	if (!is_syn(&p)) {
		bpf_tail_call(skb, &steps, STEP_MOVED); /* a copy for one of the nodes that are asked */
		return TCX_DROP;
	}
	struct flow_key k;
	flow_key_in(&k, &p);
	struct parked_flow *pf = bpf_map_lookup_elem(&parked_flows, &k);
	if (!pf || pf->isn != p.seq) {
		bpf_tail_call(skb, &steps, STEP_RETRY); /* nobody has answered it */
		return TCX_DROP;
	}
	struct ticket t = pf->ticket;
	struct parked *kept = bpf_map_lookup_elem(&parked_syns, &t);
	struct service_state *st = bpf_map_lookup_elem(&states, &t.service);
	if (!kept || !st)
		return TCX_DROP;
	struct origin o = kept->origin;
	if (*(volatile __u32 *)&st->phase != PHASE_WARM)
		return TCX_DROP; /* it stays parked */
	int pod = choose_released(&k, bpf_map_lookup_elem(&flows, &k), &p, st, t.service);
	if (pod == NO_POD || unpark(&t))
		return TCX_DROP; /* it stays parked, or went another way */
	__sync_fetch_and_add(&st->released, 1);
	return begin(skb, &p, &k, pod, &o, true);
}

/* Finds the pod whose segment this is, and its flow. */
static __always_inline struct pod *pod_of(struct __sk_buff *skb, const struct packet *p, struct flow_key *k, struct flow **f)
{
	struct pod_port pp = {.ifindex = skb->ifindex, .port = p->sport};
	__u32 *index = bpf_map_lookup_elem(&pod_ports, &pp);
	struct pod *pod = index ? bpf_map_lookup_elem(&pods, index) : NULL;
	if (!pod)
		return NULL;
	k->service = pod->vip.addr;
	k->service_port = pod->vip.port;
	k->client_port = p->dport;
	addr4(&k->client, p->daddr);
	*f = bpf_map_lookup_elem(&flows, k);
	return *f && (*f)->pod == *index && (*f)->generation == pod->generation ? pod : NULL;
}

/* Whether a pod answers a SYN that was given to another meanwhile. f is the flow, if there is one. */
static __always_inline bool too_late(const struct flow *f, const struct packet *p)
{
	return f && (p->flags & (TCP_SYN | TCP_ACK)) == (TCP_SYN | TCP_ACK) && p->ack == f->isn + 1;
}

/* A packet of a pod here that may be a client. Its SYN goes the stack's way, with all that a firewall has to say. When it
 * has come to the gate from there and was answered, what follows goes round the stack, as flows do that netfilter has
 * offloaded (kernel doc: networking/nf_flowtable). The ACK that completes the handshake decides: only who got the answer
 * can have sent it. What the stack has translated has other addresses here, and stays there. */
static __always_inline int beside_stack(struct __sk_buff *skb, enum verdict v, const struct packet *p)
{
	if (v != PACKET_TCP || is_syn(p) || !in_range(p->daddr))
		return TCX_NEXT;
	struct flow_key k;
	flow_key_in(&k, p);
	struct flow *f = bpf_map_lookup_elem(&flows, &k);
	if (!f)
		return TCX_NEXT;
	bool first = f->origin.path == PATH_STACK && f->state == FLOW_HALF_OPEN;
	if (!first && f->origin.path != PATH_POD)
		return TCX_NEXT;
	__u32 index = f->pod;
	struct pod *pod = bpf_map_lookup_elem(&pods, &index);
	struct ethhdr *eth = (void *)(long)skb->data;
	if (!pod || pod->generation != f->generation || (void *)(eth + 1) > (void *)(long)skb->data_end)
		return TCX_NEXT;
	int genuine = track(&k, f, p, IN);
	if (first && !genuine)
		return TCX_NEXT;
	if (first) {
		/* The path last: replies on another CPU read the rest only with it. */
		f->origin.ifindex = skb->ifindex;
		__builtin_memcpy(f->origin.client_mac, eth->h_source, 6);
		__builtin_memcpy(f->origin.our_mac, eth->h_dest, 6);
		barrier();
		f->origin.path = PATH_POD;
		count(COUNT_SHORTCUTS);
	}
	account(index, f, IN, p->ip_len);
	return deliver(skb, p, pod, PATH_POD, true);
}

SEC("tc")
int gate_pod(struct __sk_buff *skb)
{
	struct packet p = {};
	enum verdict v = parse_skb(skb, &p);
	struct flow_key k;
	struct flow *f = NULL;
	struct pod *pod = v == PACKET_TCP ? pod_of(skb, &p, &k, &f) : NULL;
	if (!pod && too_late(f, &p))
		return reset(skb, &p, true);
	if (!pod)
		return shortcut ? beside_stack(skb, v, &p) : edge(skb, v, &p, PATH_POD, true);
	struct origin o = f->origin;
	if (o.path >= PATH_EDGE_NIC) {
		bpf_tail_call(skb, &steps, STEP_HOME);
		return TCX_DROP;
	}
	if (p.flags & (TCP_SYN | TCP_RST)) {
		parse_wscale(skb, &p);
		if (refuses(f, &p)) {
			if (!translate_out(skb, &p, pod))
				bpf_tail_call(skb, &steps, STEP_RETRY);
			return TCX_DROP;
		}
		/* The client may come by another node later, and its segments must fit then. */
		if ((p.flags & TCP_SYN) && encap_port && o.path == PATH_NIC && clamp_mss(skb, &p, p.daddr))
			return TCX_DROP;
	}
	track(&k, f, &p, OUT);
	account(f->pod, f, OUT, p.ip_len);
	return to_client(skb, &p, pod, &o);
}

SEC("tc")
int gate_home(struct __sk_buff *skb)
{
	struct packet p = {};
	struct flow_key k;
	struct flow *f;
	struct pod *pod = parse_skb(skb, &p) == PACKET_TCP ? pod_of(skb, &p, &k, &f) : NULL;
	return pod ? from_home(skb, &k, f, &p, pod) : TCX_DROP;
}

SEC("tc")
int gate_retry(struct __sk_buff *skb)
{
	struct packet p = {};
	return parse_skb(skb, &p) == PACKET_TCP ? retry(skb, &p) : TCX_DROP;
}

SEC("tc")
int gate_moved(struct __sk_buff *skb)
{
	struct packet p = {};
	return parse_skb(skb, &p) == PACKET_TCP ? moved(skb, &p) : TCX_DROP;
}

/* What is read of the kernel's structs; CO-RE finds where the fields are. */
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

#define TCP_LISTEN_STATE 10 /* <net/tcp_states.h> TCP_LISTEN */

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(gate_listen, struct sock *sk, int oldstate, int newstate)
{
	if (newstate != TCP_LISTEN_STATE)
		return 0;
	struct listener_key k = {.netns = sk->__sk_common.skc_net.net->net_cookie, .port = sk->__sk_common.skc_num};
	__u64 *pod = bpf_map_lookup_elem(&listeners, &k);
	if (!pod)
		return 0;
	__u32 index = *pod, generation = *pod >> 32;
	struct pod *p = bpf_map_lookup_elem(&pods, &index);
	/* One that listens for its own machine only is not there for clients. */
	__be32 at = sk->__sk_common.skc_rcv_saddr;
	if (p && p->generation == generation && (!at || at == p->addr.w[3]))
		notify(EVENT_LISTEN, index, generation, bpf_ktime_get_ns(), true, NULL);
	return 0;
}

SEC("syscall")
int gate_unpark(struct unpark_args *args)
{
	struct ticket t = args->ticket;
	if (unpark(&t))
		return 1;
	struct service_state *st = bpf_map_lookup_elem(&states, &t.service);
	if (st && args->refused)
		__sync_fetch_and_add(&st->refused, 1);
	return 0;
}

struct sweep {
	struct sweep_args args; /* ages */
	__u64 now;              /* ns of CLOCK_MONOTONIC, coarse */
	__u32 left;             /* flows that stay */
};

static long sweep_one(void *map, const void *key, void *value, void *ctx)
{
	struct sweep *s = ctx;
	struct flow_key k = *(struct flow_key *)key;
	struct flow *f = value;
	__u32 index = f->pod;
	struct pod *pod = bpf_map_lookup_elem(&pods, &index);
	bool gone = !pod || pod->generation != f->generation;
	__u64 age = s->now > f->last ? s->now - f->last : 0;
	if (gone || (f->state == FLOW_HALF_OPEN && age > s->args.half_open) ||
	    (f->state >= FLOW_CLOSED && age > s->args.closed) ||
	    (f->state == FLOW_ESTABLISHED &&
	     age > ((f->seen & SEEN_FINS) == SEEN_FINS ? s->args.half_open : s->args.established))) {
		/* If who was to remove it could not, for a lock that was held. */
		if (f->state == FLOW_GONE)
			bpf_map_delete_elem(&flows, &k);
		else
			flow_forget(&k, f);
		return 0;
	}
	s->left++;
	struct recount *r = bpf_map_lookup_elem(&recounts, &index);
	if (r && f->state == FLOW_ESTABLISHED)
		r->open++;
	else if (r && f->state == FLOW_HALF_OPEN)
		r->half_open++;
	return 0;
}

/* Forgets flows that are over, and counts the others into `recounts`, which the daemon has set to zero.
 * Returns how many flows are left. */
SEC("syscall")
int gate_sweep(struct sweep_args *args)
{
	struct sweep s = {.args = *args, .now = bpf_ktime_get_ns()};
	bpf_for_each_map_elem(&flows, sweep_one, &s, 0);
	return s.left;
}
