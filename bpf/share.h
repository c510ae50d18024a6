/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Shares: how much of the flow table one client address and one service may take. Only established flows count, as the
 * rings bound all others. */
#pragma once

#include "balance.h"
#include "parse.h"

/* Returns the share of a client address. Addresses with equal hashes have one in common. */
static __always_inline struct flow_share *share_of_source(const struct flow_key *k)
{
	__u32 at = hash_client(bpf_ntohl(k->client.w[3])) & (SOURCE_SHARES - 1);
	return bpf_map_lookup_elem(&source_shares, &at);
}

/* Returns the share of a flow's service, or NULL if the service is gone. */
static __always_inline struct flow_share *share_of_service(const struct flow_key *k)
{
	struct service *s = service_of_flow(k);
	__u32 at = s ? s->index : 0;
	return s ? bpf_map_lookup_elem(&service_shares, &at) : NULL;
}

/* Adds to the established flows of a flow's client address and service. A service that is gone is left to the sweep. */
__noinline int share_add(const struct flow_key *k, int n)
{
	if (!k)
		return -1;
	struct flow_share *s = share_of_source(k);
	if (s)
		__sync_fetch_and_add(&s->open, n);
	s = share_of_service(k);
	if (s)
		__sync_fetch_and_add(&s->open, n);
	return 0;
}

/* Whether a new flow's client address and service have room in their shares. CPUs that ask at once may exceed them by
 * one each. */
__noinline int share_has_room(const struct flow_key *k)
{
	if (!k)
		return 0;
	struct flow_share *source = share_of_source(k), *service = share_of_service(k);
	/* A count that is too low by a race has wrapped around. */
	if (source && (__s32)source->open >= (__s32)source_share_max) {
		count(COUNT_SOURCE_FULL);
		return 0;
	}
	if (service && (__s32)service->open >= (__s32)service_share_max) {
		count(COUNT_SERVICE_FULL);
		return 0;
	}
	return 1;
}

/* Counts a flow that the sweep has found. Of the client addresses with a share in common, the one with most of its
 * flows stays in `client` (the majority vote of Boyer and Moore). Only one sweep runs at a time. */
static __always_inline void share_found(const struct flow_key *k)
{
	struct flow_share *s = share_of_source(k);
	if (s) {
		__be32 client = k->client.w[3];
		s->found++;
		if (!s->votes)
			s->client = client;
		s->votes += s->client == client ? 1 : -1;
	}
	s = share_of_service(k);
	if (s)
		s->found++;
}
