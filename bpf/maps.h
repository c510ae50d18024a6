/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* All maps of the gate. The sizes here are defaults; the daemon sets the real ones when it loads the programs. State
 * that cannot be rebuilt is never in an LRU map, because these evict live entries. */
#pragma once

#include "types.h"
#include <bpf/bpf_helpers.h>

/* Service address → configuration of the service. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct service_key);
	__type(value, struct service);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} services SEC(".maps");

/* Prefix of client addresses in a set of rules → enum source_verdict. The longest prefix counts. Only entries in use
 * take memory. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1 << 22);
	__type(key, struct source_rule_key);
	__type(value, __u32);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} source_rules SEC(".maps");

/* Service index → which sources it serves. Of services with SERVICE_SOURCES only. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct source_filter);
	__uint(map_flags, BPF_F_MMAPABLE);
} source_filters SEC(".maps");

/* VIP → enum address_flag bits. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct addr);
	__type(value, __u32);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} addresses SEC(".maps");

/* Address → enum own_address. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct addr);
	__type(value, __u32);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} own_addresses SEC(".maps");

/* Service index → the part of the service that changes. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct service_status);
	__uint(map_flags, BPF_F_MMAPABLE);
} service_statuses SEC(".maps");

/* Pod index → pod. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct pod);
	__uint(map_flags, BPF_F_MMAPABLE);
} pods SEC(".maps");

/* Pod index → its listening sockets. Of pods on this node only. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct pod_socket);
	__uint(map_flags, BPF_F_MMAPABLE);
} pod_sockets SEC(".maps");

/* Pod index → traffic to and from the pod, per CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct traffic);
} pod_traffic SEC(".maps");

/* Interface and source port of a reply → pod index. Pods on this node only. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct pod_port);
	__type(value, __u32);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} pod_ports SEC(".maps");

/* Address of a pod or front on this node → its device. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct addr);
	__type(value, struct pod_device);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} pod_devices SEC(".maps");

/* Device of a front on this machine → the front's IPv4 address. What comes from there with another source is a
 * connection of the front on behalf of a client. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __be32);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} front_devices SEC(".maps");

/* Fronts' connections to pods from their clients' addresses → where the pods' segments go. An evicted one is entered
 * again by the front's next segment. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct front_flow_key);
	__type(value, struct front_flow);
} front_flows SEC(".maps");

/* Addresses of the fronts on all nodes of a cluster → 1. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, __be32);
	__type(value, __u32);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} fronts SEC(".maps");

/* The flow table: client and service address → flow. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 262144);
	__type(key, struct flow_key);
	__type(value, struct flow);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} flows SEC(".maps");

/* Rings of half-open (first half of the map) and closed flows (second half), RING_SHARDS of each with ring_size slots
 * a ring. A new flow evicts the oldest of its ring. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 131072);
	__type(key, __u32);
	__type(value, struct ring_slot);
	__uint(map_flags, BPF_F_MMAPABLE);
} ring_slots SEC(".maps");

/* Slot in the half-open rings (same index as in `ring_slots`) → that flow's SYN. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct syn_backup);
	__uint(map_flags, BPF_F_MMAPABLE);
} syn_backups SEC(".maps");

/* Hash of a flow → the latest SYN with that hash that got no entry in `flows`. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SYN_RECORDS);
	__type(key, __u32);
	__type(value, struct syn_record);
} syn_records SEC(".maps");

/* Service index → when a SYN of it last got no entry in `flows`, ns of CLOCK_MONOTONIC, precise to one tick. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, __u64);
} floods SEC(".maps");

/* Service index → Maglev lookup table. Services with SERVICE_AFFINITY and a serving pod only. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct maglev_table);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} maglev_tables SEC(".maps");

/* 0 → whether the daemon looks for unanswered SYNs. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct syn_watcher);
	__uint(map_flags, BPF_F_MMAPABLE);
} syn_watch SEC(".maps");

/* Ring → how many slots of it were taken so far. The rings are in the order of `ring_slots`. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * RING_SHARDS);
	__type(key, __u32);
	__type(value, __u64);
	__uint(map_flags, BPF_F_MMAPABLE);
} ring_heads SEC(".maps");

/* Service index and order of arrival → parked SYN. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct ticket);
	__type(value, struct parked);
} parked_syns SEC(".maps");

/* Flow → its parked SYN; recognizes retransmissions. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct flow_key);
	__type(value, struct parked_flow);
} parked_flows SEC(".maps");

/* Service index and client address → number of SYNs this client has parked there. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct source_key);
	__type(value, __u32);
} parked_sources SEC(".maps");

/* 0 → limits on wakes that all services share. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct node_limits);
} wake_limits SEC(".maps");

/* 0 → number of entries in `parked_syns`. The daemon's sweep corrects it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __s64);
	__uint(map_flags, BPF_F_MMAPABLE);
} parked_places SEC(".maps");

/* Keyed hash of a client's /24 → when its budget of wakes with a proof is full again, ns of CLOCK_MONOTONIC. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SOURCE_BUDGETS);
	__type(key, __u32);
	__type(value, __u64);
} proven_budgets SEC(".maps");

/* Keyed hash of a client's /24 → when its budget of wakes is full again, ns of CLOCK_MONOTONIC. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SOURCE_BUDGETS);
	__type(key, __u32);
	__type(value, __u64);
} source_budgets SEC(".maps");

/* Service index and client address → when the client has proven itself, ns of CLOCK_MONOTONIC. An evicted client is
 * challenged again. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct source_key);
	__type(value, __u64);
} proven_clients SEC(".maps");

/* Keyed hash of a SYN → its repeats. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, REPEATED_SYNS);
	__type(key, __u32);
	__type(value, struct repeated_syn);
} repeated_syns SEC(".maps");

/* 0 → buffer in which a parked SYN is assembled, per CPU: it is too large for the stack. Not pinned. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct parked);
} scratch SEC(".maps");

/* Interface index → external interface. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, struct nic);
} nics SEC(".maps");

/* IPv4 address of another node → enum node_flag bits. Encapsulated packets from any other address are dropped. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, __be32);
	__type(value, __u32);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} nodes SEC(".maps");

/* 0 → keys of the tags of encapsulated packets. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tag_key_set);
} tag_keys SEC(".maps");

/* Service index → the other nodes with pods of the service. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct home_node_list);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} home_nodes SEC(".maps");

/* VIP → the nodes that announce it, now and before. Empty unless replies_by_edge. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct addr);
	__type(value, struct vip_edge);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} vip_edges SEC(".maps");

/* Service index → addresses that the service has left and whose flows go on. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct left_list);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} left_addresses SEC(".maps");

/* Flow → query to the home nodes. An evicted one is sent again. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct flow_key);
	__type(value, struct pending_query);
} pending_queries SEC(".maps");

/* 0 → rate limit for queries to home nodes. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct query_count);
} query_budget SEC(".maps");

/* Service index → its share of that. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct query_count);
} query_shares SEC(".maps");

/* The controller's ID and service address of a pod → pod index. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct pod_name);
	__type(value, __u32);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} pod_names SEC(".maps");

/* Namespace and port of listening sockets → their pod: index in the low half, generation in the high half. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct listener_key);
	__type(value, __u64);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} listeners SEC(".maps");

/* Ring buffer of struct event, read by the daemon. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} events SEC(".maps");

_Static_assert((int)COUNTERS <= (int)MAX_COUNTERS, "counters: the map is too small");

/* enum counter → count, per CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MAX_COUNTERS);
	__type(key, enum counter);
	__type(value, __u64);
} counters SEC(".maps");

/* Pod index → flows that gate_sweep found. The daemon zeroes it before each sweep. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct recount);
	__uint(map_flags, BPF_F_MMAPABLE);
} recounts SEC(".maps");

/* Hash of a client's IPv4 address → established flows. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SOURCE_SHARES);
	__type(key, __u32);
	__type(value, struct flow_share);
	__uint(map_flags, BPF_F_MMAPABLE);
} source_shares SEC(".maps");

/* Service index → established flows. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct flow_share);
	__uint(map_flags, BPF_F_MMAPABLE);
} service_shares SEC(".maps");

/* Silence in units of 2^IDLE_SHIFT ns → flows that gate_sweep found. The daemon zeroes it before each sweep. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, IDLE_TIMES);
	__type(key, __u32);
	__type(value, struct idle_count);
	__uint(map_flags, BPF_F_MMAPABLE);
} idle_flows SEC(".maps");

/* Constants that the daemon sets when it loads the programs. */
volatile const __u32 range_count = 0;         /* valid entries of range_addr and range_mask */
volatile const __be32 range_addr[MAX_RANGES]; /* network addresses of the service ranges */
volatile const __be32 range_mask[MAX_RANGES]; /* their netmasks */
volatile const __u32 wangell_ifindex = 0;     /* interface index of wangell0 */
volatile const __u8 wangell_mac[6] = {};      /* MAC address of wangell0 */
volatile const __u32 ring_size = 4096;        /* slots in each ring; a power of two */
volatile const __u32 source_share_max = 131072;  /* established flows of one client address */
volatile const __u32 service_share_max = 196608; /* established flows of one service */
volatile const bool shortcut_enabled = false; /* pods' SYNs to services pass the stack, later segments bypass it */
volatile const bool replies_by_edge = false;  /* all replies go back through the edge node of their flow */
volatile const __be16 encap_port = 0;         /* UDP port of encapsulated packets; 0 on a single node */
volatile const __u64 proof_key[2] = {};       /* key of what strangers must not predict: challenges, hashes */
volatile const __u64 wake_interval[WAKE_SCOPES] = {}; /* ns until a budget of wakes has one more */
volatile const __u64 wake_burst[WAKE_SCOPES] = {};    /* most wakes in a budget; 0 is without limit */
volatile const __u32 parked_shared = 0;       /* parked SYNs from which on services with PARKED_OWN get no more */
volatile const __u32 unproven_parked = 0;     /* SYNs of unproven clients that a waking service keeps; 0: any */
volatile const __be32 node_addr = 0;          /* this node's IPv4 address */

/* Nonzero while some VIPs are outside all service ranges. Set by the daemon at any time. */
volatile __u32 vips_outside_ranges = 0;

/* How many pods on this node are frozen. Set by the daemon at any time. */
volatile __u32 frozen_pods = 0;

/* Nonzero while the daemon carries maps of another layout to these programs: what has to be tracked is dropped, as the
 * flow may be missing or outdated. TCP sends it again. The daemon sets this. */
volatile __u32 taking_over = 0;

/* Adds one to a counter. */
static __always_inline void count(enum counter which)
{
	__u64 *c = bpf_map_lookup_elem(&counters, &which);
	if (c)
		*c += 1;
}

/* Sends an event to the daemon and reports in *sent (may be NULL) whether there was room for it. A forced event wakes
 * the reader at once. Any other wakes it only if it has caught up, on which a wake must not depend. */
static __always_inline void notify(const struct event *what, bool force, bool *sent)
{
	struct event *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	if (sent)
		*sent = e != NULL;
	if (!e) {
		count(COUNT_EVENTS_LOST);
		return;
	}
	*e = *what;
	bpf_ringbuf_submit(e, force ? BPF_RB_FORCE_WAKEUP : 0);
}

/* The same for an event of a pod without a scope. */
static __always_inline void notify_pod(enum event_type type, __u32 index, __u32 generation, __u64 at, bool force)
{
	struct event e = {.type = type, .index = index, .generation = generation, .at = at};
	notify(&e, force, NULL);
}

/* Returns the pod with an index and generation, or NULL if that pod is gone. */
static __always_inline struct pod *lookup_pod(__u32 index, __u32 generation)
{
	struct pod *pod = bpf_map_lookup_elem(&pods, &index);
	return pod && pod->generation == generation ? pod : NULL;
}

/* Returns the pod of a flow, or NULL if it is gone. */
static __always_inline struct pod *pod_of_flow(const struct flow *f)
{
	return lookup_pod(f->pod, f->generation);
}

/* Returns the status of a service. */
static __always_inline struct service_status *status_of(__u32 service)
{
	return bpf_map_lookup_elem(&service_statuses, &service);
}

/* Returns the state of a service as it is now, whatever the compiler has read before. */
static __always_inline enum service_state state_now(const struct service_status *st)
{
	return *(volatile enum service_state *)&st->state;
}

/* Whether replies of a flow go back through another node. */
static __always_inline bool through_edge_node(const struct origin *o)
{
	return o->path == PATH_EDGE_NIC || o->path == PATH_EDGE_NODE;
}
