/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Records of SYNs whose flows have no entry in `flows`: a lossy array. */
#pragma once

#include "balance.h"

/* Hashes a flow's client, equally on every node. */
static __always_inline __u32 hash_flow(const struct flow_key *k)
{
	return hash_client(hash_client(bpf_ntohl(k->client.w[3])) ^
			   ((__u32)bpf_ntohs(k->client_port) << 16 | bpf_ntohs(k->service_port)) ^
			   bpf_ntohl(k->service.w[3]));
}

/* Returns the place of a flow's record. It differs between nodes, so that two seldom lose the same record. */
static __always_inline struct syn_record *record_place(const struct flow_key *k)
{
	__u32 at = hash_client(hash_flow(k) ^ node_addr) & (SYN_RECORDS - 1);
	return bpf_map_lookup_elem(&syn_records, &at);
}

/* Returns the record of a flow's SYN, or NULL if there is none. */
static __always_inline struct syn_record *find_record(const struct flow_key *k)
{
	struct syn_record *r = record_place(k);
	return r && r->flow.client.w[3] == k->client.w[3] && r->flow.service.w[3] == k->service.w[3] &&
			       r->flow.client_port == k->client_port && r->flow.service_port == k->service_port
		       ? r
		       : NULL;
}

/* Records the SYN of a flow without an entry. Another SYN may take the place at any time. */
static __always_inline void write_record(const struct flow_key *k, __u32 isn, const struct origin *o, __u32 pod,
					 __u32 generation)
{
	struct syn_record *r = record_place(k);
	if (!r)
		return;
	r->flow = *k;
	r->isn = isn;
	r->origin = *o;
	r->pod = pod;
	r->generation = generation;
}
