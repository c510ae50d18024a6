#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Compiles bpf/gate.c and generates its Go side: go generate ./internal/gate
set -eu

# Structs and enums of bpf/types.h that Go uses.
types="
    addr service_key service service_status pod pod_socket traffic pod_port pod_device pod_name flow_key flow ticket parked
    parked_flow source_key ring_slot nic syn_backup maglev_table home_node_list pending_query
    query_count syn_watcher listener_key event unpark_args end_args sweep_args recount flow_share idle_count limit service_flag
    node_limits repeated_syn wake_scope tag_key_set node_flag source_rule_key source_verdict source_filter left_list
    address_flag own_address service_state pod_state flow_state flow_path event_type encap_type encap_flag counter
    pod_freeze thaw_cause
"

flags=
for t in $types; do
    flags="$flags -type $t"
done
# shellcheck disable=SC2086 # one word each
go tool bpf2go -cc clang-19 -target bpfel -cflags "-O2 -g -Wall -Werror -mcpu=v3" $flags gate ../../bpf/gate.c -- \
    -I../../bpf -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu
clang-19 -dumpversion >gate_bpfel.clang
