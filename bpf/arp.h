/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* ARP (RFC 826): lets other hosts on the link find the VIPs of this node. */
#pragma once

#include "parse.h"

#define ARP_REQUEST 1  /* ar_op */
#define ARP_REPLY 2    /* ar_op */
#define ARP_ETHERNET 1 /* ar_hrd */

/* An ARP packet for IPv4 over Ethernet. */
struct arp_ipv4 {
	__be16 hardware;                       /* ar_hrd */
	__be16 protocol;                       /* ar_pro, an EtherType */
	__u8 hardware_len;                     /* length of a MAC address */
	__u8 protocol_len;                     /* length of an IPv4 address */
	__be16 op;                             /* ar_op */
	__u8 sender_mac[6];                    /* MAC address of the sender */
	__be32 sender __attribute__((packed)); /* IPv4 address of the sender */
	__u8 target_mac[6];                    /* ignored in a request */
	__be32 target __attribute__((packed)); /* address whose MAC address is requested */
} __attribute__((packed));

/* Turns a request for a VIP that this node announces into the reply. from_xdp: the frame is to be sent by XDP_TX.
 * Returns true if the frame has become the reply, which is to be sent back; a request that XDP cannot answer is left
 * to gate_nic. */
static __always_inline bool answer_arp(void *data, void *end, __u32 ifindex, bool from_xdp)
{
	struct ethhdr *eth = data;
	struct arp_ipv4 *a = (void *)(eth + 1);
	if ((void *)(a + 1) > end)
		return false;
	if (a->op != bpf_htons(ARP_REQUEST) || a->hardware != bpf_htons(ARP_ETHERNET) ||
	    a->protocol != bpf_htons(ETH_P_IP) || a->hardware_len != 6 || a->protocol_len != 4)
		return false;
	__be32 target = a->target;
	/* An announcement (RFC 5227), not a request. */
	if (target == a->sender)
		return false;
	struct addr vip;
	set_addr(&vip, target);
	__u32 *known = bpf_map_lookup_elem(&addresses, &vip);
	if (!known || !(*known & ADDRESS_ANNOUNCED))
		return false;
	struct nic *nic = bpf_map_lookup_elem(&nics, &ifindex);
	if (!nic || (from_xdp && !nic->tx))
		return false;
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
	return true;
}
