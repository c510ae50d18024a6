// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// pins lists the pins in bpf file systems below the paths.
func (s Snapshot) pins(scope Scope) error {
	for _, dir := range scope.Paths {
		for _, name := range []string{dir, filepath.Join(dir, "bpf")} {
			if !isBPFfs(name) {
				continue
			}
			err := filepath.WalkDir(name, func(path string, d fs.DirEntry, err error) error {
				if err == nil && !d.IsDir() {
					s["pin "+path] = true
				}
				return ignoreGone(err)
			})
			if err != nil {
				return fmt.Errorf("snapshot of pins: %w", err)
			}
		}
	}
	return nil
}

func (s Snapshot) bpf(scope Scope) error {
	if len(scope.BPF) == 0 {
		return nil
	}
	programs, used := map[ebpf.ProgramID]bool{}, map[ebpf.MapID]bool{}
	for id, err := ebpf.ProgramGetNextID(0); err == nil; id, err = ebpf.ProgramGetNextID(id) {
		p, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue // freed since
		}
		info, err := p.Info()
		p.Close()
		if err != nil {
			continue
		}
		maps, _ := info.MapIDs()
		for _, m := range maps {
			used[m] = true
		}
		if hasPrefix(info.Name, scope.BPF) {
			programs[id] = true
			s[fmt.Sprintf("eBPF program %s (id %d)", info.Name, id)] = true
		}
	}
	for id, err := ebpf.MapGetNextID(0); err == nil; id, err = ebpf.MapGetNextID(id) {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			continue
		}
		info, err := m.Info()
		m.Close()
		if err != nil || !hasPrefix(info.Name, scope.BPF) ||
			info.Type == ebpf.ProgramArray && !used[id] && !isOpen(id) {
			continue
		}
		s[fmt.Sprintf("eBPF map %s (id %d)", info.Name, id)] = true
	}
	// EAGAIN means that another process is creating a link (bpf_link_by_id in kernel/bpf/syscall.c).
	err := s.links(programs)
	for try := 0; errors.Is(err, unix.EAGAIN) && try < 100; try++ {
		time.Sleep(time.Millisecond)
		err = s.links(programs)
	}
	return err
}

// isOpen reports whether a process has a map open. A program array that none has open, and that no program uses, is
// one that the kernel has lost: if one is opened by its ID just after its last file was closed, as a snapshot does, its
// work is queued once and holds two references (prog_array_map_clear in kernel/bpf/arraymap.c, Linux 6.18).
func isOpen(id ebpf.MapID) bool {
	files, _ := filepath.Glob("/proc/[0-9]*/fdinfo/*")
	want := fmt.Sprintf("map_id:\t%d\n", id)
	return slices.ContainsFunc(files, func(name string) bool {
		info, _ := os.ReadFile(name) // it may be closed since
		return strings.Contains(string(info), want)
	})
}

func (s Snapshot) links(programs map[ebpf.ProgramID]bool) error {
	links := new(link.Iterator)
	defer links.Close()
	for links.Next() {
		if info, err := links.Link.Info(); err == nil && programs[info.Program] {
			s[fmt.Sprintf("eBPF link (id %d) of program %d", info.ID, info.Program)] = true
		}
	}
	return links.Err()
}

// ownBPF finds the eBPF objects among this process's open files through their fdinfo (proc(5)).
func (s Snapshot) ownBPF(scope Scope) error {
	if !scope.OwnProcess {
		return nil
	}
	entries, err := os.ReadDir("/proc/self/fdinfo")
	if err != nil {
		return fmt.Errorf("snapshot of own files: %w", err)
	}
	for _, e := range entries {
		info, err := os.ReadFile("/proc/self/fdinfo/" + e.Name())
		if err != nil {
			continue // closed since
		}
		for line := range strings.Lines(string(info)) {
			kind, id, ok := strings.Cut(line, ":")
			if ok && (kind == "map_id" || kind == "prog_id" || kind == "link_id") {
				s[fmt.Sprintf("open eBPF %s %s", kind, strings.TrimSpace(id))] = true
			}
		}
	}
	return nil
}

// isBPFfs reports whether path is in a bpf file system.
func isBPFfs(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.BPF_FS_MAGIC
}
