/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* ARP (RFC 826): other hosts on the link find service addresses here. */
#pragma once

#include "parse.h"

#define ARP_REQUEST 1  /* ar_op */
#define ARP_REPLY 2    /* ar_op */
#define ARP_ETHERNET 1 /* ar_hrd */

/* An ARP packet for IPv4 over Ethernet. */
struct arp_ipv4 {
	__be16 hardware;    /* ar_hrd */
	__be16 protocol;    /* ar_pro, an EtherType */
	__u8 hardware_len;  /* of a MAC address */
	__u8 protocol_len;  /* of an IPv4 address */
	__be16 op;          /* ar_op */
	__u8 sender_mac[6];
	__be32 sender __attribute__((packed)); /* its address */
	__u8 target_mac[6];
	__be32 target __attribute__((packed)); /* whose MAC address is asked for */
} __attribute__((packed));

enum arp_verdict {
	ARP_PASS = 0, /* not ours */
	ARP_ANSWER,   /* the frame has become the answer: send it back */
	ARP_LATER,    /* ours, but cannot be sent back from here */
};

/* Turns a request for a service address into its answer. from_xdp: the frame is to go back by XDP_TX. */
static __always_inline enum arp_verdict arp(void *data, void *end, __u32 ifindex, bool from_xdp)
{
	struct ethhdr *eth = data;
	struct arp_ipv4 *a = (void *)(eth + 1);
	if ((void *)(a + 1) > end)
		return ARP_PASS;
	if (a->op != bpf_htons(ARP_REQUEST) || a->hardware != bpf_htons(ARP_ETHERNET) ||
	    a->protocol != bpf_htons(ETH_P_IP) || a->hardware_len != 6 || a->protocol_len != 4)
		return ARP_PASS;
	__be32 target = a->target;
	/* A gratuitous one (RFC 5227) asks nothing. */
	if (target == a->sender)
		return ARP_PASS;
	struct addr vip;
	addr4(&vip, target);
	__u32 *known = bpf_map_lookup_elem(&addresses, &vip);
	if (!known || !(*known & ADDRESS_ANNOUNCED))
		return ARP_PASS;
	struct nic *nic = bpf_map_lookup_elem(&nics, &ifindex);
	if (!nic)
		return ARP_PASS;
	if (from_xdp && !nic->tx)
		return ARP_LATER;
	__u8 ours[6];
	__builtin_memcpy(ours, nic->mac, 6);
	__builtin_memcpy(eth->h_dest, a->sender_mac, 6);
	__builtin_memcpy(eth->h_source, ours, 6);
	__builtin_memcpy(a->target_mac, a->sender_mac, 6);
	__builtin_memcpy(a->sender_mac, ours, 6);
	a->op = bpf_htons(ARP_REPLY);
	a->target = a->sender;
	a->sender = target;
	count(COUNT_ARP_REPLIES);
	return ARP_ANSWER;
}
