/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Types shared by the gate's programs and the daemon. bpf2go generates the Go types from these. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>

/* Makes the compiler emit debug information for a type that no map uses, so that bpf2go finds it. */
#define EXPORT_TO_GO(kind, name) const kind name *export_##name __attribute__((unused))

/* Sizes fixed at compile time. */
enum limit {
	MAX_PODS_PER_SERVICE = 32, /* pods of one service that one gate balances over */
	MAX_OPTIONS = 40,          /* longest TCP options, bytes */
	MAX_FRAME = 1536,          /* longest SYN that is parked, bytes, Ethernet header included */
	MAX_RANGES = 8,            /* service address ranges */
	MAX_HOMES = 64,            /* home nodes queried for a flow of one service */
	MAGLEV_SIZE = 1021,        /* entries in a Maglev lookup table; must be prime */
	RING_SHARDS = 16,          /* rings of each kind, so that a flood on one service spares the others */
	SOURCE_SHARES = 65536,     /* entries in `source_shares`; a power of two */
	IDLE_TIMES = 128,          /* entries in `idle_flows` */
	IDLE_SHIFT = 36,           /* they stand for as many times 2^IDLE_SHIFT ns (69 s) of silence, and the last for more */
	SOURCE_BUDGETS = 16384,    /* budgets of client prefixes, with and without a proof; a power of two */
	PARKED_OWN = 1,            /* parked SYNs of a service up to which it may use the places that others may not */
	REPEATED_SYNS = 65536,     /* SYNs whose repeats are counted; a power of two */
	SYN_RECORDS = 65536,       /* entries of `syn_records`; a power of two */
	TAG_SLOTS = 4,             /* keys in `tag_keys` */
	CACHE_LINE = 64,           /* bytes that CPUs pass on as a whole */
	MAX_COUNTERS = 64,         /* entries in `counters`; spare ones let the map survive new counters */
	FORMER_EDGES = 4,          /* nodes that announced a VIP before the one that does now */
	MAX_LEFT = 5,              /* addresses that a service has left and whose flows go on, and one to return to */
};
EXPORT_TO_GO(enum, limit);

/* A 128-bit address. IPv4 is mapped: ::ffff:a.b.c.d (RFC 4291, 2.5.5.2). */
struct addr {
	__be32 w[4]; /* most significant word first */
};

/* Key of `services`: a service address. */
struct service_key {
	struct addr addr; /* VIP */
	__be16 port;      /* TCP port */
	__u16 pad;        /* zero */
};

/* Bits of service.flags and service_status.flags. */
enum service_flag {
	SERVICE_AFFINITY = 1,     /* a client address keeps its pod */
	SERVICE_PREFER_LOCAL = 2, /* prefer pods on this node */
	SERVICE_PROOF_ALWAYS = 4, /* a client that wakes it always proves itself first */
	SERVICE_PROOF_NEVER = 8,  /* clients beyond a budget are dropped instead of asked for a proof */
	SERVICE_SOURCES = 16,     /* only sources that its `source_rules` allow may connect */
	SERVICE_DRAINS = 32,      /* status only: all its pods drain, and only a proven client can cancel that */
	SERVICE_DOUBTED = 64,     /* status only: its last wake brought no connection: the next client proves itself */
	SERVICE_LEFT = 128,       /* `services` only: it has another address now; its flows at this one go on */
};
EXPORT_TO_GO(enum, service_flag);

/* Value of `services`: a service's configuration. Written by the daemon. */
struct service {
	__u32 index;                 /* index into `service_statuses` */
	__u32 max_parked;            /* limit on parked SYNs; 0 refuses all */
	__u32 max_parked_per_source; /* limit on parked SYNs from one client address */
	__u8 flags;                  /* enum service_flag */
	__u8 retries;                /* limit on further pods tried after one did not take a SYN */
	__u16 pad;                   /* zero */
};

/* Key of `source_rules`: a prefix of client addresses in one set of rules. prefix_bits includes the bits of rules. */
struct source_rule_key {
	__u32 prefix_bits;  /* significant bits of what follows; the kernel wants them first */
	__u32 rules;        /* which set of rules */
	struct addr client; /* network address */
};

/* Values of `source_rules`. An address without a rule is denied. */
enum source_verdict {
	SOURCE_DENIED = 0,  /* its SYNs are dropped */
	SOURCE_ALLOWED = 1, /* it may connect */
};
EXPORT_TO_GO(enum, source_verdict);

/* Value of `source_filters`. The daemon maps it into its memory. */
struct source_filter {
	__u32 rules;  /* set of rules in force; 0: one without rules (daemon) */
	__u32 pad;    /* zero */
	__u64 denied; /* SYNs dropped since the service was added */
	__u64 told;   /* when EVENT_DENIED was sent last, ns of CLOCK_MONOTONIC; 0: never */
};

/* Bits in the values of `addresses`. */
enum address_flag {
	ADDRESS_ANNOUNCED = 1, /* this node answers ARP requests for the VIP */
};
EXPORT_TO_GO(enum, address_flag);

/* Values of `own_addresses`. */
enum own_address {
	OWN_HOST = 1,      /* an address of this node: only its own stack sends from it */
	OWN_BROADCAST = 2, /* the broadcast address of a subnet that this node is in: nobody sends from it */
};
EXPORT_TO_GO(enum, own_address);

/* Decides what happens to a service's next SYN. */
enum service_state {
	SERVICE_COLD = 0,   /* park it and send a wake event */
	SERVICE_WAKING = 1, /* park it; a wake event was sent */
	SERVICE_WARM = 2,   /* send it to a pod */
};

/* Value of `service_statuses`: the part of a service that changes. The daemon maps it into its memory. Fields marked
 * (daemon) are written by the daemon only. */
struct service_status {
	enum service_state state; /* what happens to the next SYN */
	__u32 pods;               /* how many entries of pod[] are valid */
	__u32 next;               /* where the search for the least loaded pod starts, so that ties rotate */
	__u32 flags;              /* enum service_flag (daemon) */
	__u32 release_to;         /* 1 + index of the pod that receives released SYNs; 0: balance as usual (daemon) */
	__u32 parked;             /* SYNs parked now */
	__u32 head;               /* ticket number of the next parked SYN */
	__u32 tail;               /* lowest ticket number that may still be parked (daemon) */
	__u64 wake_budget;        /* when its budget of wakes is full again, ns of CLOCK_MONOTONIC */
	__u64 syn_seen;           /* when the SYN that started the latest wake was parked, ns of CLOCK_MONOTONIC */
	__u64 wakes;              /* wake events sent */
	__u64 parked_total;       /* SYNs parked since the service was added */
	__u64 duplicates;         /* retransmissions of parked SYNs */
	__u64 overflows;          /* SYNs dropped because a limit was reached */
	__u64 refused;            /* parked SYNs answered with a RST */
	__u64 released;           /* parked SYNs sent on to a pod */
	__u32 pod[MAX_PODS_PER_SERVICE]; /* indices into `pods` of those that take new flows */
	__u32 front;                     /* 1 + index of its front in `pods`; 0: it has none (daemon) */
	__u64 kept_until; /* until when its parked SYNs wait for further pods, ns of CLOCK_MONOTONIC; 0: none do (daemon) */
};

/* State of an entry of `pods`. */
enum pod_state {
	POD_UNUSED = 0,   /* the entry is free */
	POD_STARTING = 1, /* its replies are translated; it takes no flow yet */
	POD_SERVING = 2,  /* it takes new flows */
	POD_DRAINING = 3, /* it keeps its flows and takes no new ones */
	POD_DEAF = 4,     /* as POD_DRAINING: the gate has found that nothing listens there, or its home node has */
};

/* Whether a pod on this node is frozen: its processes stand still, while its kernel answers for them. */
enum pod_freeze {
	POD_RUNS = 0,   /* it is not frozen */
	POD_FROZEN = 1, /* it is, or is about to be: the first packet that asks its program something sends EVENT_THAW */
	POD_THAWS = 2,  /* as POD_FROZEN, and EVENT_THAW was sent */
};
EXPORT_TO_GO(enum, pod_freeze);

/* Value of `pods`. The daemon maps it into its memory. What changes with connections is in a cache line of its own, so
 * that packets on other CPUs do not wait for it. */
struct pod {
	struct addr addr;       /* its own address */
	__be16 port;            /* its own port */
	__u16 moved;            /* 1: it may have flows at addresses of `left_addresses` */
	enum pod_state state;   /* whether it takes flows */
	__u32 service;          /* index of its service */
	__u32 generation;       /* distinguishes it from earlier pods with the same index; never 0 */
	__u32 ifindex;          /* host end of its veth; 0 if it is on another node */
	__u8 mac[6];            /* MAC address of the pod's end; zero if it is on another node */
	__u8 host_mac[6];       /* MAC address of the host's end; zero if it is on another node */
	__be32 node;            /* IPv4 address of its home node; 0 if that is this node */
	enum pod_freeze frozen; /* whether its processes run; of a pod on another node, as far as the daemon knows */
	__u64 first_byte;       /* when its first payload passed, ns of CLOCK_MONOTONIC; 0: not yet */
	struct service_key vip; /* its service address */
	__u64 id;               /* the controller's ID for it */
	__u64 first_synack;     /* when its first SYN-ACK passed, ns of CLOCK_MONOTONIC; 0: not yet */
	__u64 served;           /* when it took new flows first, same clock; 0: not yet (daemon) */
	__u32 slot;             /* its bit in syn_backup.tried, unique among the serving pods of its service */

	__u32 open __attribute__((aligned(CACHE_LINE))); /* flows established and not closed */
	__u32 half_open;                                 /* flows in handshake */
	__u64 new_flows;                                 /* handshakes completed */
	__u32 elsewhere;                                 /* if remote: its flows through other edges (daemon) */
};

/* Value of `pod_sockets`: what leads to the listening sockets of a pod on this node. The daemon maps it into its
 * memory. */
struct pod_socket {
	__u64 netns;   /* cookie of the pod's network namespace; 0: its sockets are not followed (daemon) */
	__u32 nsid;    /* 1 + ID of that namespace in this node's; 0: unknown (daemon) */
	__u32 doubted; /* 1: a socket has left LISTEN, and no SYN has looked for another one since */
};

/* Value of `pod_traffic`. Index [0] is client to pod, [1] pod to client. */
struct traffic {
	__u64 bytes[2];   /* IP bytes */
	__u64 packets[2]; /* packets */
	__u64 last;       /* when the pod was last used: see account; ns of CLOCK_MONOTONIC, precise to one tick */
	__u64 asked;      /* when its program was last asked something, or said something; same clock as last */
	__u64 now;        /* time of the last packet, same clock */
	__u64 tick;       /* jiffies at that time */
};

/* Value of `pod_devices`: the device of an address that a pod or a front on this node has. */
struct pod_device {
	__u32 ifindex;    /* host end of its veth */
	__u32 pod;        /* index into `pods`; of a front, one of those that it has */
	__u8 mac[6];      /* MAC address of the pod's end */
	__u8 host_mac[6]; /* MAC address of the host's end */
	__u16 front;      /* 1: it is a front */
	__u16 pad;        /* zero */
};

/* Key of `front_flows`: a connection of a front, from its client's address, to a pod's own address. */
struct front_flow_key {
	struct addr client; /* the client's address */
	__be16 port;        /* the front's port */
	__u16 pad;          /* zero */
	__u32 pod;          /* index into `pods` */
};

/* Value of `front_flows`. */
struct front_flow {
	__be32 front;     /* IPv4 address of the front */
	__u32 generation; /* generation of the pod */
};

/* Key of `pod_ports`: where a pod's replies come from. */
struct pod_port {
	__u32 ifindex; /* host end of the pod's veth */
	__be16 port;   /* the pod's source port */
	__u16 pad;     /* zero */
};

/* Key of `pod_names`: identifies a pod on every node. */
struct pod_name {
	__u64 id;               /* the controller's ID for it */
	struct service_key vip; /* its service address */
	__u32 pad;              /* zero */
};

/* Key of `flows`: a TCP connection as its client sees it. */
struct flow_key {
	struct addr client;  /* client address */
	struct addr service; /* VIP */
	__be16 client_port;  /* client port */
	__be16 service_port; /* service port */
};

/* How a flow's client packets arrive, and thus how its replies leave. */
enum flow_path {
	PATH_NIC = 0,       /* external interface: replies go straight back to the neighbor that sent the packet */
	PATH_STACK = 1,     /* wangell0: replies go through the node's stack, so that conntrack sees both directions */
	PATH_POD = 2,       /* veth of a pod on this node: replies go straight into it */
	PATH_EDGE_NIC = 3,  /* external interface of an edge node: most replies go straight to the client */
	PATH_EDGE_NODE = 4, /* stack or pods of an edge node: all replies go back through it */
	PATH_HAIRPIN = 5,   /* as PATH_POD, or PATH_STACK if origin.ifindex is 0: the pod is its own client */
};

/* Flow states only move forward, by compare-and-swap, so that each change is counted exactly once. */
enum flow_state {
	FLOW_HALF_OPEN = 1,   /* SYN passed; handshake under way */
	FLOW_ESTABLISHED = 2, /* handshake complete; lasts until both FINs are acknowledged, or a valid RST */
	FLOW_CLOSED = 3,      /* kept for stragglers: the last ACK, retransmitted FINs */
	FLOW_GONE = 4,        /* the entry is being removed */
};

/* Where a flow's client packets come from; replies go back there. */
struct origin {
	__u32 ifindex;       /* interface they arrive on; 0 if from an edge node, or with PATH_NIC not known: see distrust */
	__u8 client_mac[6];  /* MAC address of the neighbor that sends them: the client or its router */
	__u8 our_mac[6];     /* MAC address they are sent to */
	enum flow_path path; /* kind of interface */
	__be32 edge;         /* IPv4 address of the edge node; 0 if that is this node */
};

/* Bits of flow.seen. In SEEN_FIN and SEEN_FIN_ACK, side is 0 for the client and 1 for the pod. */
#define SEEN_FIN(side) (1u << (side))     /* this side's FIN has passed */
#define SEEN_FIN_ACK(side) (4u << (side)) /* the other side has acknowledged it */
#define SEEN_SYNACK 16u                   /* the pod's SYN-ACK has passed */
#define SEEN_BLIND 32u                    /* most of the pod's segments bypass this node */
#define SEEN_NEXT_SYN 64u                 /* a SYN of the client has passed while established */
#define SEEN_UNPROVEN 128u                /* it was entered by an ACK that the pod has not confirmed yet */
#define SEEN_GUESSED 256u                 /* that ACK may belong to a flow that another edge node has entered */
#define SEEN_FINS (SEEN_FIN(0) | SEEN_FIN(1))
#define SEEN_FIN_ACKS (SEEN_FIN_ACK(0) | SEEN_FIN_ACK(1))

/* Directions, and sides: the side that sends in a direction. */
#define IN 0  /* client to pod */
#define OUT 1 /* pod to client */

/* Value of `flows`. Index [IN] is the client's side, [OUT] the pod's. Sequence numbers are in host byte order. */
struct flow {
	enum flow_state state; /* how far the connection has got */
	__u32 isn;             /* client's initial sequence number; one word with the state, see flow_word */
	__u32 pod;             /* pod index */
	__u32 generation;      /* generation of that pod */
	struct origin origin;  /* where replies go */
	__u32 seq[2];          /* next sequence number this side will send: highest seen + 1 */
	__u32 ack[2];          /* highest acknowledgment this side has sent */
	__u32 edge[2];         /* right edge of the window this side has offered */
	__u32 fin_end[2];      /* sequence number after this side's FIN */
	__u32 seen;            /* SEEN_ bits; changed atomically, as both sides may close at once */
	__u8 wscale[2];        /* window scale (RFC 7323); 0xff if not offered */
	__u16 syn_window;      /* window of the client's SYN, unscaled */
	__u32 stamp;           /* stamp of its entry in `ring_slots`; 0 if it has none */
	__u32 next_isn;        /* sequence number of the last SYN of the client while established */
	__u16 next_window;     /* window of that SYN, unscaled */
	__u8 next_wscale;      /* its window scale; 0xff if not offered */
	__u8 pad;              /* zero */
	__u64 created;         /* ns of CLOCK_MONOTONIC, precise to one tick */
	__u64 last;            /* time of the last genuine segment, same clock; see account */
};

/* Value of `vip_edges`: which node announces a VIP, and which did before. Written by the daemon. */
struct vip_edge {
	__be32 now;                  /* IPv4 address of the node that announces the VIP; may be this one's */
	__be32 before[FORMER_EDGES]; /* those of nodes that announced it before, the latest first; 0: none */
};

/* Value of `home_nodes`: the other nodes with pods of a service, in any state. Written by the daemon. */
struct home_node_list {
	__u32 n;                /* how many entries of node[] are valid */
	__be32 node[MAX_HOMES]; /* their IPv4 addresses */
};

/* Value of `left_addresses`: addresses that a service has left and whose flows go on. Written by the daemon. */
struct left_list {
	__u32 n;                              /* how many entries of address[] are valid */
	struct service_key address[MAX_LEFT]; /* the addresses */
	__u32 pad;                            /* zero */
	__u64 until[MAX_LEFT];                /* when their flows end, ns of CLOCK_MONOTONIC; of use to the daemon only */
};

/* Value of `pending_queries`: home nodes were queried for a client's flow, or are with its next segment. */
struct pending_query {
	__u64 at;             /* time of the first query of this round, ns of CLOCK_MONOTONIC; 0: none yet */
	struct origin origin; /* where replies go if a home node claims the flow */
	__u32 rounds;         /* rounds of queries so far, this one included; see QUERY_ROUNDS */
};

/* Bits in the values of `nodes`. */
enum node_flag {
	NODE_KNOWN = 1,     /* always set */
	NODE_TAGS = 2,      /* it opens tagged packets: those sent to it get a tag */
	NODE_TAGS_ALL = 4,  /* all that it sends is tagged: other packets of it are dropped */
};
EXPORT_TO_GO(enum, node_flag);

/* Value of `tag_keys`: the keys of the tags of encapsulated packets. A key's slot is its number modulo TAG_SLOTS. */
struct tag_key_set {
	__u64 key[TAG_SLOTS][2]; /* each 16 bytes, as two little-endian words */
	__u32 valid;             /* bit for each slot whose key is accepted */
	__u32 send;              /* 1 + slot of the key for packets that this node sends; 0: there is none */
	__u64 first;             /* number of the first valid key; of use to the daemon only */
};

/* Value of `query_budget` and `query_shares`: limits the rate of queries. */
struct query_count {
	__u64 window;  /* current window: CLOCK_MONOTONIC divided by QUERY_WINDOW */
	__u32 packets; /* packets sent in it */
	__u32 pad;     /* zero */
};

/* Key of `parked_syns`. */
struct ticket {
	__u32 service; /* service index */
	__u32 number;  /* order of arrival within the service; wraps around */
};

/* Value of `parked_syns`: a SYN, byte for byte. */
struct parked {
	__u64 seen;            /* when it arrived, ns of CLOCK_MONOTONIC */
	struct flow_key flow;  /* its flow */
	__u32 isn;             /* its sequence number, host byte order */
	struct origin origin;  /* where a reply goes */
	__u32 len;             /* valid bytes of frame */
	__u8 frame[MAX_FRAME]; /* from the Ethernet header on */
};

/* Value of `parked_flows`: finds a parked SYN by its flow. */
struct parked_flow {
	struct ticket ticket; /* key in `parked_syns` */
	__u32 isn;            /* sequence number of the SYN, host byte order */
	__u32 pad;            /* zero */
};

/* Key of `parked_sources`. */
struct source_key {
	__u32 service;      /* service index */
	struct addr client; /* client address */
};

/* Which budget of wakes: index of wake_interval and wake_burst. */
enum wake_scope {
	WAKES_NODE = 0, /* all wakes on this node */
	WAKES_SERVICE,  /* wakes of one service */
	WAKES_SOURCE,   /* wakes by clients of one /24 without a proof */
	WAKES_PROVEN,   /* wakes by clients of one /24 with a proof, over all services */
	WAKE_SCOPES,    /* how many there are */
};
EXPORT_TO_GO(enum, wake_scope);

/* Value of `wake_limits`: what all services of this node share. Times are ns of CLOCK_MONOTONIC. */
struct node_limits {
	__u64 wakes;   /* when the node's budget of wakes is full again */
	__u64 repeats; /* when the budget of SYNs admitted for their repeats is full again */
	__u64 told;    /* when EVENT_OVER_BUDGET was sent last; 0: never */
};

/* Value of `repeated_syns`: a SYN whose client was challenged. */
struct repeated_syn {
	__u32 tag;     /* hash of its 5-tuple and sequence number */
	__u32 repeats; /* how often it was repeated */
	__u64 at;      /* when it came last, ns of CLOCK_MONOTONIC */
};

/* Value of `ring_slots`: an entry in a ring of half-open or closed flows. */
struct ring_slot {
	struct flow_key flow; /* the flow that last took the slot */
	__u32 stamp;          /* equals flow.stamp as long as the slot is that flow's; 0: never used */
};

/* Value of `syn_backups`: what is needed to send a half-open flow's SYN to another pod. IP options and payload are not
 * kept; the client retransmits the payload. */
struct syn_backup {
	__u32 stamp;               /* equals flow.stamp; 0 once the SYN was answered or given up */
	__u32 tried;               /* pod.slot bits of the pods that did not take it */
	__u64 sent;                /* when its present pod got it, ns of CLOCK_MONOTONIC, precise to one tick */
	__u32 isn;                 /* sequence number, host byte order */
	__u32 retries;             /* how many times it was sent to another pod */
	__u8 options[MAX_OPTIONS]; /* TCP options */
	__u8 options_len;          /* valid bytes of options; a multiple of 4 */
	__u8 tos;                  /* from the IP header */
	__u8 ttl;                  /* from the IP header */
	__u8 flags;                /* byte 13 of the TCP header */
	__be16 window;             /* unscaled */
	__u16 refused;             /* 1: its pod has refused it, and may not be ready yet: see is_starting */
};

/* Value of `syn_records`: a SYN that got no entry in `flows`. */
struct syn_record {
	struct flow_key flow; /* its flow */
	__u32 isn;            /* its sequence number, host byte order */
	struct origin origin; /* where replies go */
	__u32 pod;            /* index of the pod that got it */
	__u32 generation;     /* generation of that pod */
};

/* Value of `maglev_tables`: maps the hash of a client address to a pod. */
struct maglev_table {
	__u32 pod[MAGLEV_SIZE]; /* pod indices */
	__u32 pad;              /* zero */
};

/* Value of `syn_watch`: whether the daemon looks for unanswered SYNs. */
struct syn_watcher {
	__u32 on;  /* 0: the next SYN sends EVENT_SYN */
	__u32 pad; /* zero */
};

/* Key of `listeners`: sockets that are expected to enter and leave LISTEN. */
struct listener_key {
	__u64 netns; /* network namespace cookie */
	__u32 port;  /* host byte order */
	__u32 pad;   /* zero */
};

/* Value of `nics`: an external interface. */
struct nic {
	__u8 mac[6]; /* its MAC address */
	__u8 tx;     /* 1 if XDP_TX works. A veth silently drops such frames unless its peer has NAPI. */
	__u8 pad;    /* zero */
};

/* Type of an event. */
enum event_type {
	EVENT_WAKE = 1,        /* the first SYN of a cold service was parked */
	EVENT_LISTEN = 2,      /* a pod's socket entered LISTEN */
	EVENT_SYNACK = 3,      /* a pod's first SYN-ACK passed */
	EVENT_FIRST_BYTE = 4,  /* a pod's first payload passed */
	EVENT_SYN = 5,         /* a flow became half-open while syn_watch was off */
	EVENT_OVER_BUDGET = 6, /* a client exceeded a budget of wakes */
	EVENT_DENIED = 7,      /* a service refused a client by its address */
	EVENT_DEAF = 8,        /* a pod's socket left LISTEN, or the pod refused a SYN because it has none */
	EVENT_THAW = 9,        /* a packet asked something of a frozen pod's program: once until the daemon thaws it */
};
EXPORT_TO_GO(enum, event_type);

/* Who asked something of a frozen pod. */
enum thaw_cause {
	THAW_CLIENT = 0, /* a client, at the service address, or the service's front */
	THAW_DIRECT = 1, /* another peer: a client at the pod's own address, or a server that the pod is a client of */
};
EXPORT_TO_GO(enum, thaw_cause);

/* Record in `events`. */
struct event {
	__u16 type;       /* enum event_type: what happened */
	__u16 scope;      /* EVENT_OVER_BUDGET: enum wake_scope; EVENT_THAW: enum thaw_cause; else 0 */
	__u32 index;      /* EVENT_WAKE, _OVER_BUDGET, _DENIED: service index; EVENT_SYN: 0; else pod index */
	__u32 generation; /* generation of the pod; EVENT_WAKE, _OVER_BUDGET, _DENIED, _SYN: 0 */
	__be32 client;    /* EVENT_OVER_BUDGET, _DENIED: the client's IPv4 address; else 0 */
	__u64 at;         /* ns of CLOCK_MONOTONIC; 0 for EVENT_SYN */
};
EXPORT_TO_GO(struct, event);

/* Key of `counters`. */
enum counter {
	COUNT_ARP_REPLIES = 0, /* ARP requests for VIPs answered */
	COUNT_PINGS,           /* ICMP echo requests answered */
	COUNT_ICMP_ERRORS,     /* ICMP errors forwarded to a pod, or from one to its client */
	COUNT_MALFORMED,       /* packets to a VIP that are not well-formed TCP or ICMP over IPv4: dropped */
	COUNT_FRAGMENTS,       /* IP fragments to a VIP: dropped */
	COUNT_STRAY,           /* segments of no known flow: answered with a RST */
	COUNT_NO_SERVICE,      /* segments to a VIP's port without a service: answered with a RST */
	COUNT_BAD_RST,         /* RSTs with an inexact sequence number: forwarded, the flow stays */
	COUNT_OUT_OF_WINDOW,   /* segments outside the window: forwarded, the flow's state does not change */
	COUNT_FLOWS_FULL,      /* flows not entered because `flows` is full: the segment is dropped */
	COUNT_PARKED_FULL,     /* SYNs dropped because `parked_syns` or `parked_flows` is full */
	COUNT_EVICTED,         /* half-open or closed flows evicted in favor of newer ones */
	COUNT_EVENTS_LOST,     /* events dropped because `events` is full */
	COUNT_NO_POD,          /* SYNs of a warm service that no pod could take: dropped */
	COUNT_TOO_LONG,        /* SYNs of cold services longer than MAX_FRAME: dropped, TCP retransmits without data */
	COUNT_UNKNOWN_NODE,    /* encapsulated packets from an address that is not in `nodes`: dropped */
	COUNT_BAD_ENCAP,       /* encapsulated packets that cannot be parsed: dropped */
	COUNT_LATE_REPLIES,    /* replies from a home node for no known flow: the pod gets a RST */
	COUNT_NO_ROUTE,        /* packets to another node or a client without a route there: dropped */
	COUNT_RETRIES,         /* SYNs sent to another pod after one refused or did not answer */
	COUNT_TOO_BIG,         /* packets to another node that exceed the path's MTU: dropped */
	COUNT_ASKED,           /* segments of no known flow for which the home nodes were queried */
	COUNT_ASK_LIMIT,       /* segments of no known flow beyond the query budget: dropped */
	COUNT_MOVED,           /* flows taken over from another edge node */
	COUNT_SHORTCUTS,       /* flows of pods on this node that bypass the stack after their handshake */
	COUNT_PODS_TO_GATES,   /* UDP packets of pods to the gates' port of a node: dropped */
	COUNT_BAD_CHECKSUM,    /* SYNs of cold services with a wrong IP or TCP checksum: dropped */
	COUNT_BAD_SOURCE,      /* SYNs of cold services from an impossible address, or with such IP options: dropped */
	COUNT_SOURCE_FULL,     /* SYNs of client addresses that have their share of `flows`: dropped */
	COUNT_SERVICE_FULL,    /* SYNs to services that have their share of `flows`: dropped */
	COUNT_IDLE_EVICTED,    /* established flows removed before their age because `flows` was almost full */
	COUNT_CHALLENGES,      /* SYNs of cold services answered with a challenge */
	COUNT_PROVEN,          /* valid answers to challenges */
	COUNT_UNPROVEN,        /* SYNs admitted without a proof, for their repeats */
	COUNT_OVER_BUDGET,     /* SYNs beyond a budget of a service that asks for no proof: dropped */
	COUNT_FLOODED_SYNS,    /* SYNs sent to a pod without an entry in `flows`, which was full of half-open ones */
	COUNT_FLOODED_ACKS,    /* flows entered at the ACK of such a SYN's SYN-ACK */
	COUNT_BAD_TAG,         /* encapsulated packets with a wrong tag, or one of a key that is not valid: dropped */
	COUNT_UNTAGGED,        /* encapsulated packets without a tag from a node that tags all: dropped */
	COUNT_THAWS,           /* frozen pods that a packet had thawed */
	COUNTERS,              /* how many there are */
};

/* Argument of gate_unpark (BPF_PROG_TYPE_SYSCALL). */
struct unpark_args {
	struct ticket ticket; /* the SYN to drop */
	__u32 refused;        /* 1 counts it as refused */
};

/* Argument of gate_end (BPF_PROG_TYPE_SYSCALL). */
struct end_args {
	struct flow_key flow; /* the flow to end */
	__u32 isn;            /* its client's initial sequence number */
};

/* Argument of gate_sweep (BPF_PROG_TYPE_SYSCALL): maximum ages in ns, measured from a flow's last genuine segment. */
struct sweep_args {
	__u64 half_open;   /* of a half-open flow, or an established one of which both sides have sent FIN */
	__u64 closed;      /* of a closed flow */
	__u64 half_closed; /* of an established flow of which one side has sent FIN */
	__u64 established; /* of any other established flow */
	__u64 evictable;   /* age from which other established flows may be removed as well */
	__u64 evictions;   /* how many of those */
};

/* Value of `source_shares` and `service_shares`: established flows of a client address or service. */
struct flow_share {
	__u32 open;    /* now */
	__u32 found;   /* by gate_sweep; the daemon zeroes this and the next two before each sweep */
	__be32 client; /* `source_shares`: the IPv4 address with most of them */
	__s32 votes;   /* flows found of that address less those of others */
};

/* Value of `idle_flows`: flows that gate_sweep found. */
struct idle_count {
	__u32 established; /* established flows that were silent for this long, of which not both sides have sent FIN */
	__u32 pad;         /* zero */
};

/* Value of `recounts`: flows of a pod that gate_sweep found. */
struct recount {
	__u32 open;      /* established flows */
	__u32 half_open; /* half-open flows */
};
