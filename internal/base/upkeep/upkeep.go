// SPDX-License-Identifier: Apache-2.0

// Package upkeep keeps what a program has set up on the machine: what somebody else has removed or changed is put back.
package upkeep

import (
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"strings"
	"sync"
	"time"
)

// Interval is how often a program looks at what it has set up. A look costs microseconds for each part.
const Interval = 2 * time.Second

// Part is something that the program has set up on the machine.
type Part struct {
	Kind string // of a few, for counts: "route", "sysctl"
	Name string // which one of them, for the log; unique with the kind
	// Intact reports whether it is as the program has set it up.
	Intact func() (bool, error)
	// Put sets it up again.
	Put func() error
}

// SettingIs reports whether a setting of the kernel, a file below /proc/sys, has a value. One that does not exist, as
// after the end of its device or in a kernel without IPv6, needs no upkeep: it counts as having it.
func SettingIs(file, value string) (bool, error) {
	now, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	return strings.TrimSpace(string(now)) == value, err
}

// Keeper puts parts back and counts them. It is safe for concurrent use.
type Keeper struct {
	log  *slog.Logger
	what string

	mu      sync.Mutex
	counts  map[string]uint64
	failing map[[2]string]string // part → its last error
}

// NewKeeper returns a Keeper that logs to log. what names the owner of the parts, such as "the gate".
func NewKeeper(log *slog.Logger, what string) *Keeper {
	return &Keeper{log: log, what: what, counts: map[string]uint64{}, failing: map[[2]string]string{}}
}

// Keep looks at parts, in their order, and puts back those that are not intact. A later part may rest on an earlier
// one. An error is logged once until it changes or passes.
func (k *Keeper) Keep(parts []Part) {
	for _, p := range parts {
		intact, err := p.Intact()
		if err == nil && intact {
			k.settled(p)
			continue
		}
		if err == nil {
			err = p.Put()
		}
		if err != nil {
			k.failed(p, err)
			continue
		}
		k.settled(p)
		k.Count(p.Kind)
		k.log.Warn("somebody has removed or changed what "+k.what+" needs: put back", "kind", p.Kind, "name", p.Name)
	}
}

// Count counts a part that was put back in another way.
func (k *Keeper) Count(kind string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.counts[kind]++
}

// Counts returns how many parts were put back, by kind.
func (k *Keeper) Counts() map[string]uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.Clone(k.counts)
}

func (k *Keeper) settled(p Part) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.failing, [2]string{p.Kind, p.Name})
}

func (k *Keeper) failed(p Part, err error) {
	k.mu.Lock()
	key := [2]string{p.Kind, p.Name}
	known := k.failing[key] == err.Error()
	k.failing[key] = err.Error()
	k.mu.Unlock()
	if !known {
		k.log.Error("cannot put back what "+k.what+" needs; tried again", "kind", p.Kind, "name", p.Name, "error", err)
	}
}
