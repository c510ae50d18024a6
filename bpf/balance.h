/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Chooses the pod of a new flow. */
#pragma once

#include "frozen.h"
#include <bpf/bpf_endian.h>

#define NO_POD -1
#define MAGLEV_STEPS 64 /* entries of a Maglev table that are tried while their pods accept no flows */

/* State of pick_pod's loops. */
struct choice {
	struct service_status *st;  /* the service */
	struct maglev_table *table; /* its Maglev table, if it has one */
	__u32 service;              /* service index */
	__u32 tried;                /* pod.slot bits of pods to leave out */
	__u32 at;                   /* position of the next candidate */
	__u32 least;                /* load of the best candidate so far */
	int best;                   /* its pod index, or NO_POD */
};

/* Whether a pod can be chosen. */
static __always_inline bool is_eligible(const struct pod *p, const struct choice *c)
{
	return p && p->state == POD_SERVING && p->service == c->service && !(c->tried & (1u << (p->slot & 31)));
}

/* Compares the next pod of the service with the least loaded so far. */
static long least_loaded_step(__u32 i, void *ctx)
{
	struct choice *c = ctx;
	__u32 candidate = c->st->pod[c->at & (MAX_PODS_PER_SERVICE - 1)];
	struct pod *p = bpf_map_lookup_elem(&pods, &candidate);
	c->at = c->at + 1 >= c->st->pods ? 0 : c->at + 1;
	if (!is_eligible(p, c))
		return 0;
	__u32 load = (p->open + p->half_open + p->elsewhere) & 0x3fffffff;
	/* Where local pods are preferred, any of them counts as less loaded than any remote one. A pod that runs, or is
	 * about to, counts as less loaded than any frozen one. */
	if (p->node && (c->st->flags & SERVICE_PREFER_LOCAL))
		load |= 0x40000000;
	if (is_frozen(p))
		load |= 0x80000000;
	if (load < c->least) {
		c->least = load;
		c->best = candidate;
	}
	return 0;
}

/* Chooses the next entry of the Maglev table if its pod is eligible. */
static long maglev_step(__u32 i, void *ctx)
{
	struct choice *c = ctx;
	__u32 at = c->at >= MAGLEV_SIZE ? 0 : c->at;
	__u32 candidate = c->table->pod[at];
	if (is_eligible(bpf_map_lookup_elem(&pods, &candidate), c)) {
		c->best = candidate;
		return 1;
	}
	c->at = at + 1;
	return 0;
}

/* Hashes a client address, equally on every node: murmur3's finalizer. */
static __always_inline __u32 hash_client(__u32 h)
{
	h ^= h >> 16;
	h *= 0x85ebca6b;
	h ^= h >> 13;
	h *= 0xc2b2ae35;
	return h ^ h >> 16;
}

/* Returns the index of the front of a service, a proxy on this node that chooses a pod for each request of its clients,
 * or NO_POD if it has none, the front takes no new flows or is in tried, or the client is a front of this node. */
static __always_inline int front_of(const struct service_status *st, __u32 service, __u32 tried, __be32 client)
{
	__u32 index = *(volatile const __u32 *)&st->front - 1;
	struct pod *p = bpf_map_lookup_elem(&pods, &index);
	if (!p || p->state != POD_SERVING || p->service != service || (tried & (1u << (p->slot & 31))))
		return NO_POD;
	struct addr a;
	set_addr(&a, client);
	struct pod_device *from = bpf_map_lookup_elem(&pod_devices, &a);
	return from && from->front ? NO_POD : index;
}

/* Returns the address by which the pod of a new flow is chosen: the client's, or that of the front that the flow
 * comes from, if the front has connected from its client's address. */
__noinline __u32 chooser(const struct origin *o, __be32 client)
{
	if (!o)
		return client;
	__u32 ifindex = o->ifindex;
	__be32 *front = o->path == PATH_POD ? bpf_map_lookup_elem(&front_devices, &ifindex) : NULL;
	return front ? *front : client;
}

/* Chooses a pod of a service itself, and not its front: see pick_pod. */
__noinline int pick_backend(__u32 service, __u32 tried, __be32 client)
{
	struct service_status *st = status_of(service);
	if (!st)
		return NO_POD;
	__u32 n = st->pods;
	if (n > MAX_PODS_PER_SERVICE)
		n = MAX_PODS_PER_SERVICE;
	if (!n)
		return NO_POD;
	struct choice c = {.st = st, .service = service, .tried = tried, .least = 0xffffffff, .best = NO_POD};
	if (st->flags & SERVICE_AFFINITY) {
		c.table = bpf_map_lookup_elem(&maglev_tables, &service);
		if (c.table) {
			c.at = hash_client(bpf_ntohl(client)) % MAGLEV_SIZE;
			bpf_loop(MAGLEV_STEPS, maglev_step, &c, 0);
			if (c.best != NO_POD)
				return c.best;
		}
		c.at = 0;
	}
	if (n == 1) {
		least_loaded_step(0, &c);
	} else {
		c.at = __sync_fetch_and_add(&st->next, 1) % n;
		bpf_loop(n, least_loaded_step, &c, 0);
	}
	return c.best;
}

/* Chooses a pod for a client's new flow, leaving out those in tried: the front of the service if one of its pods serves,
 * else by the client's address if the service has SERVICE_AFFINITY, else the serving pod with the fewest flows; ties
 * rotate. Returns its index, or NO_POD. */
__noinline int pick_pod(__u32 service, __u32 tried, __be32 client)
{
	struct service_status *st = status_of(service);
	int front = st && st->pods ? front_of(st, service, tried, client) : NO_POD;
	return front != NO_POD ? front : pick_backend(service, tried, client);
}
