// SPDX-License-Identifier: Apache-2.0

// Package gate is the eBPF gate in Go: it loads and pins the programs of bpf/, attaches them, and gives
// typed views of their maps. It knows addresses, pods and packets; it knows neither the controller nor a runtime.
//
// Programs and maps are pinned in a bpf file system of the gate's own, so traffic goes on while no daemon
// runs, and the next one adopts what it finds.
package gate

//go:generate go tool bpf2go -cc clang-19 -target bpfel -cflags "-O2 -g -Wall -Werror -mcpu=v3" -type addr -type service_key -type service -type service_state -type pod -type traffic -type pod_port -type pod_name -type flow_key -type flow -type ticket -type parked -type parked_flow -type source_key -type ring_slot -type nic -type kept -type maglev -type home_nodes -type asked -type asking -type watch -type listener_key -type event -type unpark_args -type sweep_args -type recount -type phase -type pod_state -type flow_state -type flow_path -type event_type -type counter gate ../../bpf/gate.c -- -I../../bpf -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu
//go:generate sh -c "clang-19 -dumpversion > gate_bpfel.clang"
