/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* ICMP to a VIP: pings are answered; errors, such as those of path MTU discovery, go to the pod that they are about.
 * errors.h has those that pods send. */
#pragma once

#include "remote.h"

/* Whether an ICMP message reports what became of a packet, which it quotes. */
static __always_inline bool is_icmp_error(const struct icmphdr *h)
{
	return h->type == ICMP_DEST_UNREACH || h->type == ICMP_TIME_EXCEEDED || h->type == ICMP_PARAMETERPROB;
}

/* Answers an echo request (RFC 792). */
static __always_inline int answer_ping(struct __sk_buff *skb, const struct packet *p, bool ingress)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = data + sizeof(*eth);
	struct icmphdr *icmp = data + (p->l4 & 0x7f);
	if ((void *)(ip + 1) > end || (void *)(icmp + 1) > end)
		return TCX_DROP;
	swap_macs(eth);
	ip->saddr = p->daddr;
	ip->daddr = p->saddr;
	icmp->type = ICMP_ECHOREPLY;
	count(COUNT_PINGS);
	/* Type and code form one 16-bit word of the checksum; the type becomes 0 and the code stays. */
	if (bpf_l4_csum_replace(skb, p->l4 + offsetof(struct icmphdr, checksum), bpf_htons(ICMP_ECHO << 8), 0, 2))
		return TCX_DROP;
	return send_back(skb, ingress);
}

/* Finds the TCP segment that an ICMP error quotes, at least the first 8 bytes of its TCP header; false if there is none. */
static __always_inline bool find_quoted_segment(struct __sk_buff *skb, const struct packet *p, struct iphdr **ip,
						struct tcphdr **tcp)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 at = (p->l4 & 0x7f) + sizeof(struct icmphdr);
	struct iphdr *inner = data + at;
	if ((void *)(inner + 1) > end || inner->version != 4 || inner->protocol != IPPROTO_TCP ||
	    (inner->frag_off & bpf_htons(IP_OFFSET)))
		return false;
	__u32 ihl = inner->ihl * 4;
	if (ihl < sizeof(*inner))
		return false;
	struct tcphdr *quoted = data + at + (ihl & 0x3f);
	if ((void *)quoted + 8 > end)
		return false;
	*ip = inner;
	*tcp = quoted;
	return true;
}

/* Finds the TCP segment of a service address that an ICMP error quotes. Stores its flow's key and where the quoted IP
 * header starts; false if there is none. */
static __always_inline bool find_quoted(struct __sk_buff *skb, const struct packet *p, struct flow_key *k,
					struct iphdr **ip, struct tcphdr **tcp)
{
	if (!find_quoted_segment(skb, p, ip, tcp))
		return false;
	set_addr(&k->client, (*ip)->daddr);
	set_addr(&k->service, (*ip)->saddr);
	k->client_port = (*tcp)->dest;
	k->service_port = (*tcp)->source;
	return true;
}

/* Forwards an ICMP error to the pod that sent the quoted packet (RFC 1812, 4.3.2.3), translated like its flow (RFC
 * 5508, 4.2). asks: if the flow is unknown, the home nodes are asked for it, as the error may come by another edge node
 * than the client's packets. */
static __always_inline int forward_icmp_error(struct __sk_buff *skb, const struct packet *p, bool ingress, bool asks)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	struct flow_key k;
	struct iphdr *inner;
	struct tcphdr *tcp;
	if (!find_quoted(skb, p, &k, &inner, &tcp))
		return TCX_DROP;
	struct flow *f = bpf_map_lookup_elem(&flows, &k);
	if (!f && asks && encap_port)
		return run_step(skb, STEP_MOVED);
	struct pod *pod = f ? pod_of_flow(f) : NULL;
	if (!pod)
		return TCX_DROP;
	if (pod->node)
		return send_to_node(skb, p, pod, true); /* the home node validates it */
	/* The pod must have sent that sequence number, or anyone could reduce its path MTU (RFC 5927, 4.1). */
	if (seq_diff(bpf_ntohl(tcp->seq), f->seq[OUT]) >= 0 || seq_diff(bpf_ntohl(tcp->seq), f->ack[IN]) < 0)
		return TCX_DROP;
	struct iphdr *ip = data + sizeof(*eth);
	if ((void *)(ip + 1) > end)
		return TCX_DROP;
	__be32 to = pod->addr.w[3], was = inner->saddr;
	__be16 port = pod->port, was_port = tcp->source;
	ip_csum_replace(ip, p->daddr, to);
	ip->daddr = to;
	/* The change of address cancels out against that of the inner checksum, so only the port changes ICMP's. */
	ip_csum_replace(inner, was, to);
	inner->saddr = to;
	tcp->source = port;
	__builtin_memcpy(eth->h_dest, pod->mac, 6);
	__builtin_memcpy(eth->h_source, pod->host_mac, 6);
	__u32 ifindex = pod->ifindex;
	if (was_port != port && bpf_l4_csum_replace(skb, p->l4 + offsetof(struct icmphdr, checksum), was_port, port, 2))
		return TCX_DROP;
	count(COUNT_ICMP_ERRORS);
	return send_to_peer(skb, ifindex, ingress);
}

/* Handles ICMP to an address of the service ranges. */
static __always_inline int icmp_to_service(struct __sk_buff *skb, const struct packet *p, enum flow_path path,
				       bool ingress)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct icmphdr *h = data + (p->l4 & 0x7f);
	struct addr vip;
	set_addr(&vip, p->daddr);
	if (!bpf_map_lookup_elem(&addresses, &vip))
		return TCX_NEXT;
	if ((void *)(h + 1) > end)
		return TCX_DROP;
	if (h->type == ICMP_ECHO && h->code == 0)
		return answer_ping(skb, p, ingress);
	return is_icmp_error(h) ? forward_icmp_error(skb, p, ingress, path == PATH_NIC) : TCX_DROP;
}
