// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"context"
	"errors"
	"sort"
	"time"
)

// TakeSnapshot lists what exists in a scope now.
func TakeSnapshot(scope Scope) (Snapshot, error) {
	s := Snapshot{}
	return s, errors.Join(s.namespaces(scope), s.devices(scope), s.routes(scope), s.mounts(scope), s.pins(scope),
		s.cgroups(scope), s.processes(scope), s.bpf(scope), s.ownBPF(scope))
}

// Diff returns, sorted, the entries that only after has ("left: …") and those that only s has ("gone: …").
func (s Snapshot) Diff(after Snapshot) []string {
	var diff []string
	for thing := range after {
		if !s[thing] {
			diff = append(diff, "left: "+thing)
		}
	}
	for thing := range s {
		if !after[thing] {
			diff = append(diff, "gone: "+thing)
		}
	}
	sort.Strings(diff)
	return diff
}

// WaitSame takes snapshots until one equals s or ctx ends, because the kernel frees some things with a delay. It
// returns the last difference.
func (s Snapshot) WaitSame(ctx context.Context, scope Scope) ([]string, error) {
	for {
		now, err := TakeSnapshot(scope)
		if err != nil {
			return nil, err
		}
		diff := s.Diff(now)
		if len(diff) == 0 {
			return nil, nil
		}
		select {
		case <-ctx.Done():
			return diff, nil
		case <-time.After(20 * time.Millisecond):
		}
	}
}
