// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"wangell.loutres.me/internal/wire"
)

// usageInterval is the interval at which the usage of pods is reported.
const usageInterval = 2 * time.Second

// sendUsage reports the usage of the pods of services with wire.FlagUsage. It does not wait for the container
// runtime; a slow one is queried less often.
func (d *daemon) sendUsage(ctx context.Context) {
	if d.cri == nil || time.Since(d.usage.at) < usageInterval {
		return
	}
	d.usage.at = time.Now()
	pods := d.meteredPods()
	if len(pods) == 0 {
		return
	}
	select {
	case d.usage.busy <- struct{}{}:
	default:
		return
	}
	d.tasks.Go(func() {
		defer func() { <-d.usage.busy }()
		err := d.readUsage(ctx, pods)
		if err != nil && ctx.Err() == nil && !d.usage.failed {
			d.log.Warn("cannot read the usage of pods: services do not scale by it", "error", err)
		}
		d.usage.failed = err != nil
	})
}

// meteredPods returns the serving local pods whose usage the controller wants, by network namespace.
func (d *daemon) meteredPods() map[string][]wire.PodUsage {
	out := map[string][]wire.PodUsage{}
	for _, s := range d.allServices() {
		s.mu.Lock()
		for _, p := range s.pods {
			if s.usage && p.home && s.serves(p.id) {
				out[p.netns] = append(out[p.netns], wire.PodUsage{Service: s.addr, PodID: p.id})
			}
		}
		s.mu.Unlock()
	}
	return out
}

// readUsage reads the usage of pods from the container runtime and reports it.
func (d *daemon) readUsage(ctx context.Context, pods map[string][]wire.PodUsage) error {
	used, err := d.cri.Usage(ctx, slices.Collect(maps.Keys(pods)))
	if err != nil {
		return err
	}
	var usage []wire.PodUsage
	for path, u := range used {
		for _, p := range pods[path] {
			p.CPU, p.Memory, p.At = uint64(u.CPU), u.Memory, u.At
			usage = append(usage, p)
		}
	}
	for batch := range slices.Chunk(usage, wire.MaxPodUsage) {
		d.send(&wire.Usage{Pods: batch})
	}
	return nil
}

// meminfo is described in proc_meminfo(5).
const meminfo = "/proc/meminfo"

// A node is short of memory if less than a share of it is available. The limit is above kubelet's threshold for
// evictions, by default 100 MiB.
const (
	lowShare = 20
	lowLeast = 256 << 20 // bytes; a small machine has a lower limit, see lowMost
	lowMost  = 8         // the limit is at most 1/lowMost of the machine's memory
)

// checkMemory tells the controller if this node is short of memory while pods are frozen here: it may stop some of
// them. It returns true if so; then call it again soon.
func (d *daemon) checkMemory() bool {
	if d.freezing.number() == 0 {
		return false
	}
	f, err := os.Open(meminfo)
	if err != nil {
		d.log.Debug("the memory of this node cannot be read", "error", err)
		return false
	}
	defer f.Close()
	m, err := readMemory(f)
	if err != nil {
		d.log.Debug("the memory of this node cannot be read", "error", err)
	}
	if err != nil || !isShort(m) {
		return false
	}
	d.send(&m)
	return true
}

// isShort reports whether a node is short of memory.
func isShort(m wire.Memory) bool {
	return m.Available < max(m.Total/lowShare, min(lowLeast, m.Total/lowMost))
}

// readMemory reads meminfo.
func readMemory(r io.Reader) (m wire.Memory, err error) {
	scanner := bufio.NewScanner(r)
	for found := 0; found < 2 && scanner.Scan(); {
		name, rest, _ := strings.Cut(scanner.Text(), ":")
		of := map[string]*uint64{"MemTotal": &m.Total, "MemAvailable": &m.Available}[name]
		if of == nil {
			continue
		}
		number, unit, _ := strings.Cut(strings.TrimSpace(rest), " ")
		kib, err := strconv.ParseUint(number, 10, 54)
		if err != nil || unit != "kB" {
			return m, fmt.Errorf("%s: %s: %q is not a number of kB", meminfo, name, rest)
		}
		*of = kib << 10
		found++
	}
	if err := scanner.Err(); err != nil {
		return m, err
	}
	if m.Total == 0 || m.Available > m.Total {
		return m, fmt.Errorf("%s: %d bytes available of %d", meminfo, m.Available, m.Total)
	}
	return m, nil
}
