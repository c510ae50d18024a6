// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/* The gate's entry points. docs/datapath follows a packet through them.
 *
 *   gate_xdp       external interface, native XDP:  answers ARP; parks SYNs before a socket buffer is allocated
 *   gate_xdp_skb   external interface, generic XDP: the same
 *   gate_nic       external interface, ingress:     packets of clients outside, and of other nodes' gates
 *   gate_local     wangell0, egress:                packets of clients on this node
 *   gate_released  wangell0, ingress:               SYNs that the daemon releases; replies to clients on this node
 *   gate_pod       host end of a pod's veth:        the pod's replies, and its own packets to services
 *   gate_node      tail call:                       packets from other nodes' gates
 *   gate_home      tail call:                       replies to clients of other nodes, to floods, and of hairpins
 *   gate_retry     tail call:                       SYNs that their pod refused or did not answer
 *   gate_moved     tail call:                       flows whose client now uses another edge node
 *   gate_cold      tail call:                       SYNs of services that are not warm, or whose pods may not listen
 *   gate_behalf    tail call:                       fronts' packets to pods from their clients' addresses
 *   gate_hairpin   tail call:                       segments of pods to themselves, by their service address
 *   gate_icmp      tail call:                       ICMP of pods, and of other nodes' gates
 *   gate_listen    tracepoint inet_sock_set_state:  a pod's socket enters or leaves LISTEN
 *   gate_unpark    run by the daemon:               drops a parked SYN
 *   gate_end       run by the daemon:               removes one flow
 *   gate_sweep     run by the daemon:               removes flows that have ended
 */
#include "arp.h"
#include "cold.h"
#include "errors.h"
#include "front.h"
#include "listen.h"
#include "moved.h"
#include "reply.h"
#include "shortcut.h"
#include "sweep.h"
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "GPL";

#define PACKET_HOST 0 /* <linux/if_packet.h> */
#define VLAN_ID 0xfff /* bits of skb->vlan_tci (<linux/if_vlan.h>) */

static __always_inline int xdp(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	if ((void *)(eth + 1) > end)
		return XDP_PASS;
	if (eth->h_proto == bpf_htons(ETH_P_ARP))
		return answer_arp(data, end, ctx->ingress_ifindex, true) ? XDP_TX : XDP_PASS;
	return edge_xdp(ctx, eth);
}

/* With a large MTU, frames come in several fragments, and natively only to programs that declare support for them. */
SEC("xdp.frags")
int gate_xdp(struct xdp_md *ctx)
{
	return xdp(ctx);
}

/* In generic XDP, that declaration makes the kernel copy packets without their MAC header length (skb_pp_cow_data),
 * which hides the MAC header from gate_nic. */
SEC("xdp")
int gate_xdp_skb(struct xdp_md *ctx)
{
	return xdp(ctx);
}

SEC("tc")
int gate_nic(struct __sk_buff *skb)
{
	/* Packets of a VLAN belong to the VLAN's interface. A tag with VLAN 0 says only how urgent a packet of this one is
	 * (IEEE 802.1Q, 9.6). */
	if (skb->vlan_present && ((skb->vlan_tci & VLAN_ID) || bpf_skb_vlan_pop(skb)))
		return TCX_NEXT;
	/* Requests that XDP did not answer: it is off, or cannot send. */
	if (skb->protocol == bpf_htons(ETH_P_ARP)) {
		pull(skb, sizeof(struct ethhdr) + sizeof(struct arp_ipv4));
		if (answer_arp((void *)(long)skb->data, (void *)(long)skb->data_end, skb->ifindex, false))
			return bpf_redirect(skb->ifindex, 0);
		return TCX_NEXT;
	}
	/* For other hosts, or for all. */
	if (skb->pkt_type != PACKET_HOST)
		return TCX_NEXT;
	struct packet p = {};
	enum packet_kind kind = parse_skb(skb, &p);
	if (kind == PACKET_OTHER) {
		if (encap_port && skb->protocol == bpf_htons(ETH_P_IP))
			bpf_tail_call(skb, &steps, STEP_NODE);
		return TCX_NEXT;
	}
	return edge_from_client(skb, kind, &p, PATH_NIC, true);
}

SEC("tc")
int gate_local(struct __sk_buff *skb)
{
	struct packet p = {};
	enum packet_kind kind = parse_skb(skb, &p);
	int ret = edge_from_client(skb, kind, &p, PATH_STACK, false);
	/* There is nothing behind wangell0 but the gate. */
	return ret == TCX_NEXT ? TCX_DROP : ret;
}

SEC("tc")
int gate_released(struct __sk_buff *skb)
{
	struct packet p = {};
	enum packet_kind kind = parse_skb(skb, &p);
	if (kind == PACKET_OTHER || !in_range(p.daddr))
		return TCX_NEXT; /* a reply to a client on this node */
	if (kind != PACKET_TCP && kind != PACKET_ICMP)
		return TCX_DROP;
	/* Other packets are copies that send_queries has made. */
	return kind == PACKET_TCP && is_syn(&p) ? edge_from_daemon(skb, &p) : run_step(skb, STEP_MOVED);
}

SEC("tc")
int gate_pod(struct __sk_buff *skb)
{
	struct packet p = {};
	enum packet_kind kind = parse_skb(skb, &p);
	struct flow_key k;
	struct flow *f = NULL;
	if (taking_over && kind == PACKET_TCP && is_from_served_port(skb, &p))
		return TCX_DROP;
	struct pod *pod = kind == PACKET_TCP ? find_replying_pod(skb, &p, &k, &f) : NULL;
	if (pod)
		return reply_from_pod(skb, &p, &k, f, pod);
	if (answers_retried_syn(f, &p))
		return reply_reset(skb, &p, true);
	if (kind == PACKET_TCP && !f && may_answer_flooded_syn(skb, &p))
		return run_step(skb, STEP_HOME);
	if (frozen_pods && kind == PACKET_TCP)
		thaw_sender(skb, &p);
	if (kind == PACKET_TCP && !encap_port) {
		int passed = pass_between_front_and_pod(skb, &p);
		if (passed == TCX_ON_BEHALF)
			return run_step(skb, STEP_BEHALF);
		if (passed != TCX_NEXT)
			return passed;
	}
	if (kind != PACKET_TCP && is_for_gates(skb)) {
		count(COUNT_PODS_TO_GATES);
		return TCX_DROP;
	}
	if (encap_port && kind == PACKET_TCP && !in_range(p.daddr))
		account_answer_to_front(skb, &p);
	/* On a cluster, what other pods send to services goes through the stack, and its rules: all of it, or until the
	 * handshake is complete. A front's goes straight to the gate, which has to know it by its address. */
	bool stack = encap_port && !(in_range(p.daddr) && is_from_front(skb, &p));
	if (kind == PACKET_ICMP && (!stack || !in_range(p.daddr))) {
		bpf_tail_call(skb, &steps, STEP_ICMP);
		return TCX_NEXT;
	}
	if (stack)
		return shortcut_enabled && kind == PACKET_TCP ? shortcut_from_pod(skb, &p) : TCX_NEXT;
	return edge_from_client(skb, kind, &p, PATH_POD, true);
}

SEC("tc")
int gate_node(struct __sk_buff *skb)
{
	struct encap_meta m = {};
	enum decap_result result = decapsulate(skb, &m);
	if (result != DECAP_INNER)
		return result == DECAP_NONE ? TCX_NEXT : TCX_DROP;
	struct packet p = {};
	enum packet_kind kind = parse_skb(skb, &p);
	if (taking_over)
		return TCX_DROP;
	if (m.type == ENCAP_TO_POD && kind == PACKET_TCP && in_range(p.daddr))
		return home_from_edge(skb, &p, &m);
	if (kind == PACKET_ICMP && (m.type == ENCAP_TO_CLIENT ? in_range(p.saddr) :
				    (m.type == ENCAP_TO_POD || m.type == ENCAP_FLOW_QUERY) && in_range(p.daddr)))
		return run_step(skb, STEP_ICMP);
	if (m.type == ENCAP_TO_CLIENT && kind == PACKET_TCP && in_range(p.saddr))
		return edge_from_home(skb, &p, &m);
	if (m.type == ENCAP_CLOSED && kind == PACKET_TCP)
		return edge_flow_closed(&p, &m);
	if (m.type == ENCAP_FLOW_QUERY && kind == PACKET_TCP && in_range(p.daddr))
		return answer_flow_query(skb, &p, &m);
	if (m.type == ENCAP_FLOW_CLAIM && kind == PACKET_TCP && in_range(p.daddr))
		return adopt_claimed_flow(&p, &m) ? TCX_DROP : run_step(skb, STEP_MOVED);
	count(COUNT_BAD_ENCAP);
	return TCX_DROP;
}

SEC("tc")
int gate_home(struct __sk_buff *skb)
{
	struct packet p = {};
	struct flow_key k;
	struct flow *f;
	if (parse_skb(skb, &p) != PACKET_TCP)
		return TCX_DROP;
	if (in_range(p.saddr))
		return reply_from_home(skb, &p);
	struct pod *pod = find_replying_pod(skb, &p, &k, &f);
	if (pod && f->origin.path == PATH_HAIRPIN)
		return reply_by_hairpin(skb, &p, &k, f, pod);
	return pod ? home_to_client(skb, &k, f, &p, pod) : answer_during_flood(skb, &p);
}

SEC("tc")
int gate_retry(struct __sk_buff *skb)
{
	struct packet p = {};
	return parse_skb(skb, &p) == PACKET_TCP ? retry_syn(skb, &p) : TCX_DROP;
}

SEC("tc")
int gate_moved(struct __sk_buff *skb)
{
	struct packet p = {};
	enum packet_kind kind = parse_skb(skb, &p);
	if (kind == PACKET_ICMP)
		return handle_error_of_unknown_flow(skb, &p);
	return kind == PACKET_TCP ? handle_moved(skb, &p) : TCX_DROP;
}

SEC("tc")
int gate_cold(struct __sk_buff *skb)
{
	struct packet p = {};
	return parse_skb(skb, &p) == PACKET_TCP ? cold_from_client(skb, &p) : TCX_DROP;
}

SEC("tc")
int gate_behalf(struct __sk_buff *skb)
{
	struct packet p = {};
	return parse_skb(skb, &p) == PACKET_TCP ? pass_on_behalf(skb, &p) : TCX_DROP;
}

SEC("tc")
int gate_hairpin(struct __sk_buff *skb)
{
	struct packet p = {};
	return parse_skb(skb, &p) == PACKET_TCP ? hairpin_from_client(skb, &p) : TCX_DROP;
}

SEC("tc")
int gate_icmp(struct __sk_buff *skb)
{
	struct packet p = {};
	return parse_skb(skb, &p) == PACKET_ICMP ? handle_icmp(skb, &p) : TCX_DROP;
}

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(gate_listen, struct sock *sk, int oldstate, int newstate)
{
	return socket_state_changed(sk, oldstate, newstate);
}

SEC("syscall")
int gate_unpark(struct unpark_args *args)
{
	struct ticket t = args->ticket;
	if (unpark(&t))
		return 1;
	struct service_status *st = status_of(t.service);
	if (st && args->refused)
		__sync_fetch_and_add(&st->refused, 1);
	return 0;
}

SEC("syscall")
int gate_end(struct end_args *args)
{
	return end_flow(&args->flow, args->isn);
}

SEC("syscall")
int gate_sweep(struct sweep_args *args)
{
	return sweep_flows(args);
}
