// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"log/slog"
	"sync"
	"sync/atomic"
)

//go:generate sh generate.sh

// Gate is an open gate. Its methods may be called from several goroutines unless they say otherwise.
type Gate struct {
	cfg    Config
	log    *slog.Logger
	objs   gateObjects
	dev    devices
	inject *injector

	takeover *takeover // of maps of another layout; nil unless Open is at it

	// Array maps, mapped into memory.
	statuses      *view[gateServiceStatus]
	pods          *view[gatePod]
	sockets       *view[gatePodSocket]
	recounts      *view[gateRecount]
	sourceShares  *view[gateFlowShare]
	serviceShares *view[gateFlowShare]
	idle          *view[gateIdleCount]
	backups       *view[gateSynBackup]
	rings         *view[gateRingSlot]
	heads         *view[uint64]
	places        *view[int64]
	watch         *view[gateSynWatcher]
	filters       *view[gateSourceFilter]

	services  serviceTable
	podTable  podTable
	silence   silence
	shortcuts shortcuts
	doubts    doubts

	links         attachments
	nics          nics
	follower      follower
	own           map[gateAddr]uint32 // what `own_addresses` holds; nil: not known yet
	reattached    atomic.Uint64       // how often keepFirst had to attach again
	followsListen bool                // gate_listen is attached

	stopEvents func() error   // stops the reader of events; nil if there is none
	closing    chan struct{}  // closed by Close
	announcing sync.WaitGroup // the goroutine that repeats announcements
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
	devices map[int]bool // by interface index; guarded by podTable.mu
}

// follower is the goroutine that follows devices.
type follower struct {
	stop chan struct{}  // closed by stopFollowing; nil if nothing is followed
	done sync.WaitGroup // the goroutine
}
