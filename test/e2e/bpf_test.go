// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
)

// foreignMaps returns the ids of eBPF maps that processes outside of the lab hold, or held in an earlier call: another
// Wangell on the machine has maps and programs of the same names, also while its daemon is restarted.
func (l *lab) foreignMaps() map[string]bool {
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range processes {
		command, err := os.ReadFile(p + "/cmdline")
		if err != nil || strings.Contains(string(command), l.dir) {
			continue
		}
		infos, _ := filepath.Glob(p + "/fdinfo/*")
		for _, name := range infos {
			info, _ := os.ReadFile(name)
			for line := range strings.Lines(string(info)) {
				if id, ok := strings.CutPrefix(line, "map_id:"); ok {
					l.foreign[strings.TrimSpace(id)] = true
				}
			}
		}
	}
	return l.foreign
}

// isGone reports whether an eBPF map no longer exists. Another gate makes some for an instant, to be attached anew.
func isGone(id string) bool {
	var number ebpf.MapID
	if _, err := fmt.Sscan(id, &number); err != nil {
		return false
	}
	m, err := ebpf.NewMapFromID(number)
	if err != nil {
		return errors.Is(err, os.ErrNotExist)
	}
	m.Close()
	return false
}

// isForeign reports whether a line of a difference is about an eBPF object of another process: a map that it holds, or
// a program with such a map.
func isForeign(line string, foreign map[string]bool) bool {
	if strings.HasPrefix(line, "gone: eBPF") {
		return true // it was there before the test, so it belongs to another process
	}
	_, rest, _ := strings.Cut(line, "(id ")
	id, tail, _ := strings.Cut(rest, ")")
	program := id
	switch {
	case strings.HasPrefix(line, "left: eBPF map"):
		return foreign[id] || isGone(id)
	case strings.HasPrefix(line, "left: eBPF link"):
		_, program, _ = strings.Cut(tail, "of program ")
	case !strings.HasPrefix(line, "left: eBPF program"):
		return false
	}
	var number ebpf.ProgramID
	if _, err := fmt.Sscan(program, &number); err != nil {
		return false
	}
	p, err := ebpf.NewProgramFromID(number)
	if err != nil {
		return true // gone since
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return false
	}
	maps, _ := info.MapIDs()
	for _, m := range maps {
		if foreign[fmt.Sprint(m)] {
			return true
		}
	}
	return false
}
