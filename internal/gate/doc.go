// SPDX-License-Identifier: Apache-2.0

// Package gate loads, pins and attaches the eBPF programs of bpf/ and provides typed views of their maps. It deals in
// addresses, pods and packets, and depends on neither the controller nor a container runtime. It imports internal/base
// and internal/decide/sources only.
//
// Programs and maps are pinned in a bpf file system of the gate's own. Traffic therefore continues while no daemon
// runs, and the next daemon adopts what it finds.
package gate
