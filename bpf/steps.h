/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Tail calls. Each program has a stack of its own, and the rare cases stay out of the common ones' way. */
#pragma once

#include "rewrite.h"

int gate_node(struct __sk_buff *skb);
int gate_home(struct __sk_buff *skb);
int gate_retry(struct __sk_buff *skb);
int gate_moved(struct __sk_buff *skb);
int gate_cold(struct __sk_buff *skb);
int gate_behalf(struct __sk_buff *skb);
int gate_hairpin(struct __sk_buff *skb);
int gate_icmp(struct __sk_buff *skb);

/* Programs that others call. */
enum step {
	STEP_NODE = 0, /* gate_node */
	STEP_HOME,     /* gate_home */
	STEP_RETRY,    /* gate_retry */
	STEP_MOVED,    /* gate_moved */
	STEP_COLD,     /* gate_cold */
	STEP_BEHALF,   /* gate_behalf */
	STEP_HAIRPIN,  /* gate_hairpin */
	STEP_ICMP,     /* gate_icmp */
	STEPS,         /* how many there are */
};

/* enum step → program. Pinned like the other maps: the kernel empties a program array once no process holds it. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, STEPS);
	__uint(key_size, sizeof(__u32));
	__array(values, int(struct __sk_buff *));
} steps SEC(".maps") = {
	.values =
		{
			[STEP_NODE] = (void *)&gate_node,
			[STEP_HOME] = (void *)&gate_home,
			[STEP_RETRY] = (void *)&gate_retry,
			[STEP_MOVED] = (void *)&gate_moved,
			[STEP_COLD] = (void *)&gate_cold,
			[STEP_BEHALF] = (void *)&gate_behalf,
			[STEP_HAIRPIN] = (void *)&gate_hairpin,
			[STEP_ICMP] = (void *)&gate_icmp,
		},
};

/* Continues in another program. Returns only if that fails. */
static __always_inline int run_step(struct __sk_buff *skb, enum step step)
{
	bpf_tail_call(skb, &steps, step);
	return TCX_DROP;
}
