/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* All maps of the gate. The daemon sets sizes when it loads them; those here are the defaults.
 * Nothing that cannot be rebuilt is in an LRU map: these evict live entries. */
#pragma once

#include "types.h"
#include <bpf/bpf_helpers.h>

/* Service addresses to services. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct service_key);
	__type(value, struct service);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} services SEC(".maps");

/* VIPs, and ADDRESS_ bits of each. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct addr);
	__type(value, __u32);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} addresses SEC(".maps");

/* The changing part of each service, by index. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct service_state);
	__uint(map_flags, BPF_F_MMAPABLE);
} states SEC(".maps");

/* Pods, by index. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct pod);
	__uint(map_flags, BPF_F_MMAPABLE);
} pods SEC(".maps");

/* What passed to and from each pod. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct traffic);
} pod_traffic SEC(".maps");

/* From a pod's device and source port to its index. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct pod_port);
	__type(value, __u32);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} pod_ports SEC(".maps");

/* The flow table. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 262144);
	__type(key, struct flow_key);
	__type(value, struct flow);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} flows SEC(".maps");

/* Rings of half-open (first half) and closed (second half) flows: who comes makes room of the oldest. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 131072);
	__type(key, __u32);
	__type(value, struct ring_slot);
	__uint(map_flags, BPF_F_MMAPABLE);
} short_lived SEC(".maps");

/* SYNs of the flows in the half-open rings, by place. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct kept);
	__uint(map_flags, BPF_F_MMAPABLE);
} kepts SEC(".maps");

/* Tables of consistent hashing of services with SERVICE_AFFINITY, by index. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct maglev);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} maglevs SEC(".maps");

/* One entry. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct watch);
	__uint(map_flags, BPF_F_MMAPABLE);
} watches SEC(".maps");

/* Next place in each ring: RING_SHARDS of half-open flows, then as many of closed ones. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * RING_SHARDS);
	__type(key, __u32);
	__type(value, __u64);
	__uint(map_flags, BPF_F_MMAPABLE);
} ring_heads SEC(".maps");

/* Parked SYNs, by service and order of arrival. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct ticket);
	__type(value, struct parked);
} parked_syns SEC(".maps");

/* Parked SYNs, by flow: recognises duplicates. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct flow_key);
	__type(value, struct parked_flow);
} parked_flows SEC(".maps");

/* How many SYNs a source has parked at a service. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct source_key);
	__type(value, __u32);
} parked_sources SEC(".maps");

/* Room to build a parked SYN in: it is too large for the stack. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct parked);
} scratch SEC(".maps");

/* External interfaces, by index, for ARP. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, struct nic);
} nics SEC(".maps");

/* Addresses of the other nodes: from these only, encapsulated packets are taken. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, __be32);
	__type(value, __u32);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} nodes SEC(".maps");

/* Other nodes with pods of a service, by its index. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct home_nodes);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} homes SEC(".maps");

/* Flows that home nodes were asked for. What is evicted is asked again. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct flow_key);
	__type(value, struct asked);
} askeds SEC(".maps");

/* One entry. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct asking);
} askings SEC(".maps");

/* From a pod's name to its index. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct pod_name);
	__type(value, __u32);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} pod_names SEC(".maps");

/* LISTENs that are waited for, and the pod index and generation (low and high half) that they mean. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct listener_key);
	__type(value, __u64);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} listeners SEC(".maps");

/* struct event, to the daemon. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} events SEC(".maps");

/* Places for counters: more than there are, as a map of another size would not be adopted. */
#define MAX_COUNTERS 64
_Static_assert(COUNTERS <= MAX_COUNTERS, "counters: the map is too small");

/* enum counter. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MAX_COUNTERS);
	__type(key, enum counter);
	__type(value, __u64);
} counters SEC(".maps");

/* What gate_sweep counted, by pod index. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct recount);
	__uint(map_flags, BPF_F_MMAPABLE);
} recounts SEC(".maps");

/* Set by the daemon when it loads the programs. */
volatile const __u32 ranges = 0;               /* how many ranges of service addresses there are */
volatile const __be32 range_addr[MAX_RANGES];  /* their addresses, network byte order */
volatile const __be32 range_mask[MAX_RANGES];  /* their masks */
volatile const __u32 wangell_ifindex = 0;      /* wangell0 */
volatile const __u8 wangell_mac[6] = {};       /* MAC address of wangell0 */
volatile const __u32 ring_size = 4096;         /* places in each ring of short-lived flows; a power of two */
volatile const bool shortcut = false;          /* pods' SYNs to services are the stack's; what follows goes round it */
volatile const __be16 encap_port = 0;          /* UDP port of encapsulated packets, network byte order; 0: none */
volatile const __be32 node_addr = 0;           /* this node's address, network byte order */

/* Set by the daemon while some VIPs are outside of all ranges. */
volatile __u32 outside = 0;

static __always_inline void count(enum counter which)
{
	__u64 *c = bpf_map_lookup_elem(&counters, &which);
	if (c)
		*c += 1;
}

static __always_inline void notify(enum event_type type, __u32 index, __u32 generation, __u64 at, bool force, bool *sent)
{
	struct event *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	if (sent)
		*sent = e != NULL;
	if (!e) {
		count(COUNT_EVENTS_LOST);
		return;
	}
	e->type = type;
	e->index = index;
	e->generation = generation;
	e->pad = 0;
	e->at = at;
	/* Unforced, the reader is woken only once it has caught up; a wake must not depend on that. */
	bpf_ringbuf_submit(e, force ? BPF_RB_FORCE_WAKEUP : 0);
}

/* Makes the compiler emit the type for bpf2go: no map has it as its value. */
const struct event *event_type_for_go __attribute__((unused));
