/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Which pod gets a new flow. */
#pragma once

#include "maps.h"
#include <bpf/bpf_endian.h>

#define NO_POD -1
#define MAGLEV_STEPS 64 /* places of a table that are looked at, if pods in it do not take flows */

/* How far pick has got. */
struct choice {
	struct service_state *st; /* whose pods */
	struct maglev *table;     /* its table, if it has one */
	__u32 service;            /* its index */
	__u32 tried;              /* pod.slot bits of pods that are out of the question */
	__u32 at;                 /* place of the next candidate */
	__u32 least;              /* flows of the best so far; those on this machine before others where these are preferred */
	int best;                 /* its index, or NO_POD */
};

static __always_inline bool takes(const struct pod *p, const struct choice *c)
{
	return p && p->state == POD_SERVING && p->service == c->service && !(c->tried & (1u << (p->slot & 31)));
}

static long consider(__u32 i, void *ctx)
{
	struct choice *c = ctx;
	__u32 candidate = c->st->pod[c->at & (MAX_PODS_PER_SERVICE - 1)];
	struct pod *p = bpf_map_lookup_elem(&pods, &candidate);
	c->at = c->at + 1 >= c->st->pods ? 0 : c->at + 1;
	if (!takes(p, c))
		return 0;
	__u32 load = (p->open + p->half_open + p->elsewhere) & 0x7fffffff;
	if (p->node && (c->st->flags & SERVICE_PREFER_LOCAL))
		load |= 0x80000000;
	if (load < c->least) {
		c->least = load;
		c->best = candidate;
	}
	return 0;
}

static long hashed(__u32 i, void *ctx)
{
	struct choice *c = ctx;
	__u32 at = c->at >= MAGLEV ? 0 : c->at;
	__u32 candidate = c->table->pod[at];
	if (takes(bpf_map_lookup_elem(&pods, &candidate), c)) {
		c->best = candidate;
		return 1;
	}
	c->at = at + 1;
	return 0;
}

/* Mixes the bits of a client's address: murmur3's finalizer. Every node has the same. */
static __always_inline __u32 mix(__u32 h)
{
	h ^= h >> 16;
	h *= 0x85ebca6b;
	h ^= h >> 13;
	h *= 0xc2b2ae35;
	return h ^ h >> 16;
}

/* Chooses a pod for a client's new flow, other than those tried: by the client's address where the service wants that,
 * otherwise the serving pod with the fewest flows; ties rotate. Returns its index, or NO_POD. */
__noinline int pick(__u32 service, __u32 tried, __be32 client)
{
	struct service_state *st = bpf_map_lookup_elem(&states, &service);
	if (!st)
		return NO_POD;
	__u32 n = st->pods;
	if (n > MAX_PODS_PER_SERVICE)
		n = MAX_PODS_PER_SERVICE;
	if (!n)
		return NO_POD;
	struct choice c = {.st = st, .service = service, .tried = tried, .least = 0xffffffff, .best = NO_POD};
	if (st->flags & SERVICE_AFFINITY) {
		c.table = bpf_map_lookup_elem(&maglevs, &service);
		if (c.table) {
			c.at = mix(bpf_ntohl(client)) % MAGLEV;
			bpf_loop(MAGLEV_STEPS, hashed, &c, 0);
			if (c.best != NO_POD)
				return c.best;
		}
		c.at = 0;
	}
	if (n == 1) {
		consider(0, &c);
	} else {
		c.at = __sync_fetch_and_add(&st->next, 1) % n;
		bpf_loop(n, consider, &c, 0);
	}
	return c.best;
}
