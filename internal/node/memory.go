// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"wangell.loutres.me/internal/wire"
)

// meminfo is described in proc_meminfo(5).
const meminfo = "/proc/meminfo"

// A node is short of memory if less than a share of it is available. The limit is above that at which kubelet evicts
// pods, by default 100 MiB.
const (
	lowShare = 20
	lowLeast = 256 << 20 // bytes, unless that is too much of a small machine
	lowMost  = 8         // the share of a small machine
)

// checkMemory tells the controller if this node is short of memory while pods are frozen here, some of which may be
// stopped. It returns true if so: then it should be called again soon.
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
