/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Structs that the gate's programs and the daemon share. bpf2go makes the Go types from these. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>

#define MAX_PODS_PER_SERVICE 32 /* pods of one service that one gate balances over */
#define MAX_OPTIONS 40          /* longest TCP options */
#define MAX_FRAME 1536          /* longest SYN that is parked, Ethernet header included */
#define MAX_RANGES 8            /* ranges of service addresses */
#define MAX_HOMES 64            /* other nodes with pods of one service that are asked for a flow */
#define MAGLEV 1021             /* places in a table of consistent hashing; a prime */
#define RING_SHARDS 16          /* queues of short-lived flows, so that a flood on one service spares others */

/* An address of 128 bits in network byte order; IPv4 as ::ffff:a.b.c.d (RFC 4291, 2.5.5.2). */
struct addr {
	__be32 w[4]; /* the address, most significant word first */
};

/* Key of `services`: a service address. */
struct service_key {
	struct addr addr; /* VIP */
	__be16 port;      /* TCP port, network byte order */
	__u16 pad;        /* zero */
};

/* Value of `services`: what does not change while the service is known. Written by the daemon. */
struct service {
	__u32 index;                 /* place in `states` */
	__u32 max_parked;            /* parked SYNs at most, 0 refuses all */
	__u32 max_parked_per_source; /* of these, at most so many from one client address */
	__u8 flags;                  /* SERVICE_ bits */
	__u8 retries;                /* other pods that a SYN is given to at most, after one that did not take it */
	__u16 pad;                   /* zero */
};

#define SERVICE_AFFINITY 1     /* a client address keeps its pod */
#define SERVICE_PREFER_LOCAL 2 /* pods on this machine come first */

/* Value of `addresses`: a VIP. */
#define ADDRESS_ANNOUNCED 1u /* ARP requests for it are answered here */

/* What the gate does with a new SYN of a service. */
enum phase {
	PHASE_COLD = 0,   /* park, and tell the daemon */
	PHASE_WAKING = 1, /* park; the daemon knows */
	PHASE_WARM = 2,   /* give it to a pod */
};

/* Value of `states`, by service index: what changes. The daemon maps it into its memory. */
struct service_state {
	enum phase phase;    /* where it stands */
	__u32 pods;          /* how many of pod[] take new flows */
	__u32 next;          /* where the search for the least loaded pod begins, so that ties rotate */
	__u32 flags;         /* SERVICE_ bits (daemon) */
	__u32 to;            /* 1 + index of the pod that gets released SYNs; 0: the usual choice (daemon) */
	__u32 parked;        /* SYNs parked now */
	__u32 head;          /* ticket that the next parked SYN gets */
	__u32 tail;          /* lowest ticket that may still be parked (daemon) */
	__u64 syn_seen;      /* when the SYN that began the present wake was parked, ns of CLOCK_MONOTONIC */
	__u64 wakes;         /* wake events sent */
	__u64 parked_total;  /* SYNs parked since the service is known */
	__u64 duplicates;    /* retransmissions of a parked SYN */
	__u64 overflows;     /* SYNs dropped because a limit was reached */
	__u64 refused;       /* clients told with an RST */
	__u64 released;      /* SYNs let go to a pod */
	__u32 pod[MAX_PODS_PER_SERVICE]; /* indices into `pods`; only the first `pods` count */
};

/* What a pod is to the gate. */
enum pod_state {
	POD_UNUSED = 0,   /* the place is free */
	POD_STARTING = 1, /* its replies are rewritten; no new flow yet */
	POD_SERVING = 2,  /* takes new flows */
	POD_DRAINING = 3, /* keeps its flows, takes no new one */
};

/* Value of `pods`, by pod index. The daemon maps it into its memory. */
struct pod {
	struct service_key vip; /* service address whose copy it is */
	struct addr addr;       /* the pod's own address */
	__be16 port;            /* port on which it listens, network byte order */
	__u16 pad;              /* zero */
	enum pod_state state;   /* where it stands */
	__u32 service;          /* service index */
	__u32 generation;       /* tells this pod from earlier ones of the same index; never 0 */
	__u32 ifindex;          /* host end of its veth; 0: it is on another node, as are both below */
	__u8 mac[6];            /* MAC address of the pod's end */
	__u8 host_mac[6];       /* MAC address of the host's end */
	__u32 open;             /* established flows that are not closed */
	__u32 half_open;        /* flows whose handshake is under way */
	__be32 node;            /* address of its home node; 0: this one */
	__u32 elsewhere;        /* node set: flows that it has by other edge nodes, as last told (daemon) */
	__u32 slot;             /* its bit in kept.tried: no other serving pod of its service has it */
	__u64 id;               /* the controller's name for it */
	__u64 new_flows;        /* handshakes that were completed */
	__u64 first_synack;     /* when its first SYN-ACK went out, ns of CLOCK_MONOTONIC, 0: not yet */
	__u64 first_byte;       /* when its first payload went out, ns of CLOCK_MONOTONIC, 0: not yet */
};

/* Value of `pod_traffic`, by pod index, one a CPU. */
struct traffic {
	__u64 bytes[2];   /* IP bytes: [0] client to pod, [1] pod to client */
	__u64 packets[2]; /* packets, likewise */
	__u64 last;       /* when the last packet of a flow passed, ns of CLOCK_MONOTONIC, coarse (one tick) */
	__u64 tick;       /* the kernel's tick at that time */
};

/* Key of `pod_ports`: from where a pod's replies come. */
struct pod_port {
	__u32 ifindex; /* host end of the pod's veth */
	__be16 port;   /* the pod's source port, network byte order */
	__u16 pad;     /* zero */
};

/* Key of `pod_names`: a pod as all nodes call it. */
struct pod_name {
	__u64 id;               /* the controller's name for it */
	struct service_key vip; /* service address whose copy it is */
	__u32 pad;              /* zero */
};

/* Key of `flows`: one TCP connection as the client sees it. */
struct flow_key {
	struct addr client;   /* client's address */
	struct addr service;  /* service address */
	__be16 client_port;   /* network byte order */
	__be16 service_port;  /* network byte order */
};

/* Where a flow's client packets come in, and so where its replies leave. */
enum flow_path {
	PATH_NIC = 0,   /* an external interface: straight back to the neighbour it came from */
	PATH_STACK = 1, /* wangell0: through the machine's own stack, so that conntrack sees both directions */
	PATH_POD = 2,   /* the veth of a pod on this machine: straight into it */
	PATH_EDGE_NIC = 3,  /* an external interface of an edge node: most replies go straight to the client */
	PATH_EDGE_NODE = 4, /* an edge node's own stack or pods: all replies go back by it */
};

/* A flow's state only goes forward, by compare-and-swap, so that counts are changed exactly once. */
enum flow_state {
	FLOW_HALF_OPEN = 1,   /* SYN passed; handshake under way */
	FLOW_ESTABLISHED = 2, /* handshake complete; alive until both sides' FIN are acknowledged, or a valid RST */
	FLOW_CLOSED = 3,      /* kept a while for stragglers (the last ACK, retransmitted FINs) */
	FLOW_GONE = 4,        /* somebody is just removing the entry */
};

/* From where a client's packets come: what a reply needs. */
struct origin {
	__u32 ifindex;      /* device the packets come in by; 0: another node's */
	__u8 client_mac[6]; /* neighbour that sent them: the client or its router */
	__u8 our_mac[6];    /* to which of our MAC addresses */
	enum flow_path path; /* what kind of device that is */
	__be32 edge;         /* address of the edge node, if that is another */
};

/* What a flow has seen; side is 0 for the client, 1 for the pod. */
#define SEEN_FIN(side) (1u << (side))       /* this side's FIN has passed */
#define SEEN_FIN_ACK(side) (4u << (side))   /* the other side has acknowledged it */
#define SEEN_SYNACK 16u                     /* the pod's SYN-ACK has passed */
#define SEEN_BLIND 32u                      /* most of the pod's segments do not pass here: they go straight to the client */
#define SEEN_FINS (SEEN_FIN(0) | SEEN_FIN(1))
#define SEEN_FIN_ACKS (SEEN_FIN_ACK(0) | SEEN_FIN_ACK(1))

/* Value of `flows`. Index [0] is the client's side, [1] the pod's. Sequence numbers in host byte order. */
struct flow {
	enum flow_state state; /* where it stands */
	__u32 pod;            /* pod index */
	__u32 generation;     /* of that pod */
	__u32 isn;            /* client's initial sequence number */
	struct origin origin; /* the way back */
	__u32 seq[2];         /* next sequence number that this side will send: highest seen + 1 */
	__u32 ack[2];         /* highest acknowledgment this side has sent */
	__u32 edge[2];        /* right edge of the window that this side has offered */
	__u32 fin_end[2];     /* sequence number after this side's FIN */
	__u32 seen;           /* SEEN_ bits; changed by atomic operations: both sides may close at once */
	__u8 wscale[2];       /* window scale (RFC 7323); 0xff: not offered */
	__u16 syn_window;     /* window of the client's SYN */
	__u32 stamp;          /* place in the ring of short-lived flows; 0: in none */
	__u64 created;        /* ns of CLOCK_MONOTONIC, coarse */
	__u64 last;           /* last packet, ns of CLOCK_MONOTONIC, coarse */
};

/* Value of `homes`, by service index: the other nodes that have pods of it, in whatever state. Written by the daemon. */
struct home_nodes {
	__u32 n;                /* nodes that count */
	__be32 node[MAX_HOMES]; /* their addresses, network byte order */
};

/* Value of `askeds`: the home nodes were asked whose a client's segments are. */
struct asked {
	__u64 at;             /* when first, ns of CLOCK_MONOTONIC */
	struct origin origin; /* the way back */
};

/* Value of `askings`: bounds how many packets are sent in order to ask. */
struct asking {
	__u64 window;  /* which stretch of ASK_WINDOW ns is counted */
	__u32 packets; /* sent in it */
	__u32 pad;     /* zero */
};

/* Key of `parked_syns`. */
struct ticket {
	__u32 service; /* service index */
	__u32 number;  /* order of arrival */
};

/* Value of `parked_syns`: a SYN, byte for byte. */
struct parked {
	__u64 seen;           /* ns of CLOCK_MONOTONIC */
	struct flow_key flow; /* whose SYN it is */
	__u32 isn;            /* its sequence number, host byte order */
	struct origin origin; /* the way back */
	__u32 len;            /* bytes of frame that count */
	__u8 frame[MAX_FRAME]; /* from the Ethernet header on */
};

/* Value of `parked_flows`: finds a parked SYN by its flow. */
struct parked_flow {
	struct ticket ticket; /* key in `parked_syns` */
	__u32 isn;            /* host byte order */
	__u32 pad;            /* zero */
};

/* Key of `parked_sources`. */
struct source_key {
	__u32 service;      /* service index */
	struct addr client; /* client's address */
};

/* Value of `short_lived`: a place in a ring of flows that are half-open or closed. */
struct ring_slot {
	struct flow_key flow; /* whose place it is */
	__u32 stamp;          /* flow.stamp must equal it, or the place is no longer that flow's */
};

/* Value of `kept`, by place in the half-open rings: what of a SYN is needed to give it to another pod. IP options and
 * payload are not: the client sends its payload again. */
struct kept {
	__u32 stamp;                 /* flow.stamp must equal it; 0: the flow has been answered, or was given up */
	__u32 tried;                 /* bits of the pods that did not take it: pod.slot */
	__u64 sent;                  /* when it was given to its present pod, ns of CLOCK_MONOTONIC, coarse */
	__u32 isn;                   /* its sequence number, host byte order */
	__u32 retries;               /* how often it was given to another pod */
	__u8 options[MAX_OPTIONS];   /* its TCP options */
	__u8 options_len;            /* bytes that count; a multiple of 4 */
	__u8 tos;                    /* of its IP header */
	__u8 ttl;                    /* likewise */
	__u8 flags;                  /* byte 13 of its TCP header */
	__be16 window;               /* as sent */
	__u16 pad;                   /* zero */
};

/* Value of `maglev`, by service index: a client's address, hashed, gives a place. */
struct maglev {
	__u32 pod[MAGLEV]; /* pod indices */
	__u32 pad;         /* zero */
};

/* Value of `watch`: whether somebody looks for SYNs that are not answered. */
struct watch {
	__u32 on;  /* 0: the next SYN wakes the daemon */
	__u32 pad; /* zero */
};

/* Key of `listeners`: which LISTEN is waited for. */
struct listener_key {
	__u64 netns;  /* network namespace cookie */
	__u32 port;   /* host byte order */
	__u32 pad;    /* zero */
};

/* Value of `nics`: an external interface. */
struct nic {
	__u8 mac[6]; /* its MAC address */
	__u8 tx;     /* 1: XDP_TX works. A veth loses such frames unless its peer has NAPI, and does not tell. */
	__u8 pad;    /* zero */
};

enum event_type {
	EVENT_WAKE = 1,       /* the first SYN of a cold service was parked */
	EVENT_LISTEN = 2,     /* a pod's socket entered LISTEN */
	EVENT_SYNACK = 3,     /* a pod's first SYN-ACK passed */
	EVENT_FIRST_BYTE = 4, /* a pod's first payload passed */
	EVENT_SYN = 5,        /* there are half-open flows again, whose SYNs may want another pod */
};

/* What `events` carries. */
struct event {
	enum event_type type; /* what happened */
	__u32 index;      /* WAKE: service index; else pod index */
	__u32 generation; /* pod's generation; 0 for WAKE */
	__u32 pad;        /* zero */
	__u64 at;         /* ns of CLOCK_MONOTONIC */
};

/* Counters of the whole gate, by number, one a CPU. */
enum counter {
	COUNT_ARP_REPLIES = 0, /* ARP requests for service addresses answered */
	COUNT_PINGS,           /* ICMP echo requests answered */
	COUNT_ICMP_ERRORS,     /* ICMP errors carried on to a pod */
	COUNT_MALFORMED,       /* for a service address, but no valid TCP over IPv4: dropped */
	COUNT_FRAGMENTS,       /* IP fragments for a service address: dropped */
	COUNT_STRAY,           /* segments of no known flow: answered with RST */
	COUNT_NO_SERVICE,      /* SYNs to a port that is no service's: answered with RST */
	COUNT_BAD_RST,         /* RSTs whose sequence number is not exact: carried on, the flow stays */
	COUNT_OUT_OF_WINDOW,   /* segments outside of the window: carried on, not counted for the flow's state */
	COUNT_FLOWS_FULL,      /* SYNs dropped because the flow table is full */
	COUNT_PARKED_FULL,     /* SYNs dropped because the table of parked SYNs is full */
	COUNT_EVICTED,         /* half-open or closed flows that made room for newer ones */
	COUNT_EVENTS_LOST,     /* events that found the ring buffer full */
	COUNT_NO_POD,          /* SYNs of a warm service that no pod could take: dropped */
	COUNT_TOO_LONG,        /* SYNs longer than MAX_FRAME: dropped, TCP sends them again without data */
	COUNT_UNKNOWN_NODE,    /* encapsulated packets of an unknown source: dropped */
	COUNT_BAD_ENCAP,       /* encapsulated packets that are not to be understood: dropped */
	COUNT_LATE_REPLIES,    /* replies from other nodes of no known flow: dropped */
	COUNT_NO_ROUTE,        /* packets for another node to which there is no route: dropped */
	COUNT_RETRIES,         /* SYNs given to another pod: theirs refused, or did not answer */
	COUNT_TOO_BIG,         /* packets for another node longer than the way there allows: dropped */
	COUNT_ASKED,           /* segments of no known flow: the home nodes of the service were asked for it */
	COUNT_ASK_LIMIT,       /* segments of no known flow that were too many to ask: dropped */
	COUNT_MOVED,           /* flows that came here from another edge node */
	COUNT_SHORTCUTS,       /* flows of pods here that go round the stack since their SYN has passed it */
	COUNTERS,
};

/* Argument of gate_unpark (BPF_PROG_TYPE_SYSCALL). */
struct unpark_args {
	struct ticket ticket; /* which SYN to forget */
	__u32 refused;        /* 1: count it as refused */
};

/* Argument of gate_sweep (BPF_PROG_TYPE_SYSCALL). All times in ns. */
struct sweep_args {
	__u64 half_open;   /* age at which a half-open flow is forgotten, or one that both sides have closed */
	__u64 closed;      /* likewise closed flows */
	__u64 established; /* likewise established flows, since their last packet */
};

/* Value of `recount`, by pod index: what gate_sweep counted. */
struct recount {
	__u32 open;      /* established flows */
	__u32 half_open; /* half-open flows */
};
