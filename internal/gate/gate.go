// SPDX-License-Identifier: Apache-2.0

// Package gate loads, pins and attaches the eBPF programs of bpf/ and provides typed views of their maps. It deals in
// addresses, pods and packets, and depends on neither the controller nor a container runtime.
//
// Programs and maps are pinned in a bpf file system of the gate's own. Traffic therefore continues while no daemon
// runs, and the next daemon adopts what it finds.
package gate

import (
	"log/slog"
	"net"
	"sync"

	"github.com/cilium/ebpf/link"
)

//go:generate go tool bpf2go -cc clang-19 -target bpfel -cflags "-O2 -g -Wall -Werror -mcpu=v3" -type addr -type service_key -type service -type service_status -type pod -type traffic -type pod_port -type pod_name -type flow_key -type flow -type ticket -type parked -type parked_flow -type source_key -type ring_slot -type nic -type syn_backup -type maglev_table -type home_node_list -type pending_query -type query_count -type syn_watcher -type listener_key -type event -type unpark_args -type sweep_args -type recount -type limit -type service_flag -type address_flag -type service_state -type pod_state -type flow_state -type flow_path -type event_type -type encap_type -type encap_flag -type counter gate ../../bpf/gate.c -- -I../../bpf -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu
//go:generate sh -c "clang-19 -dumpversion > gate_bpfel.clang"

// Gate is an open gate. Its methods may be called from several goroutines unless they say otherwise.
type Gate struct {
	cfg    Config
	log    *slog.Logger
	objs   gateObjects
	dev    devices
	inject *injector

	// Array maps, mapped into memory.
	statuses *view[gateServiceStatus]
	pods     *view[gatePod]
	recounts *view[gateRecount]
	backups  *view[gateSynBackup]
	rings    *view[gateRingSlot]
	heads    *view[uint64]
	watch    *view[gateSynWatcher]

	services  serviceTable
	podTable  podTable
	silence   silence
	shortcuts shortcuts

	links         map[string]link.Link     // attached programs, by name of the pin
	attached      map[string]string        // XDP mode, by name of the external interface
	nicMACs       map[int]net.HardwareAddr // MAC addresses of the external interfaces, by index
	followsListen bool                     // gate_listen is attached

	stopEvents func() error   // stops the reader of events; nil if there is none
	closing    chan struct{}  // closed by Close
	announcing sync.WaitGroup // goroutines that repeat announcements
}

// silence is the state of the search for SYNs that their pods do not answer. It walks the rings of half-open flows,
// which the programs fill, from the oldest slot that may hold one.
type silence struct {
	next  [gateLimitRING_SHARDS]uint64 // position in each ring up to which the search is done
	until [gateLimitRING_SHARDS]uint64 // head of each ring one round ago: slots before it are completely written
	sent  int                          // SYNs sent in this round
	wake  chan struct{}                // receives a value when there are half-open flows again
}

// shortcuts holds the devices to which gate_pod is attached for Config.Shortcut.
type shortcuts struct {
	devices map[int]bool   // by interface index; guarded by podTable.mu
	stop    chan struct{}  // stops following devices; nil if they are not followed
	done    sync.WaitGroup // the goroutine that follows them
}
