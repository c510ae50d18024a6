// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// startTime returns the start time of a process in clock ticks since boot (field 22 of /proc/PID/stat, proc(5)). For a
// zombie it returns os.ErrProcessDone.
func startTime(pid int) (string, error) {
	p, err := readProc(pid)
	if err != nil {
		return "", err
	}
	if p.state == "Z" || p.state == "X" {
		return "", os.ErrProcessDone
	}
	return p.start, nil
}

// proc is a process as described by /proc.
type proc struct {
	pid, parent  int
	state, start string
	argv         []string
}

func (p proc) String() string { return fmt.Sprintf("%d (%s)", p.pid, strings.Join(p.argv, " ")) }

// readProc reads /proc/PID/stat and cmdline.
func readProc(pid int) (proc, error) {
	dir := "/proc/" + strconv.Itoa(pid)
	stat, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return proc{}, err
	}
	// The name is in parentheses and may itself contain spaces and parentheses.
	open, end := strings.IndexByte(string(stat), '('), strings.LastIndexByte(string(stat), ')')
	if open < 0 || end < open {
		return proc{}, fmt.Errorf("%s/stat: no process name", dir)
	}
	fields := strings.Fields(string(stat)[end+1:]) // from field 3 on
	if len(fields) < 20 {
		return proc{}, fmt.Errorf("%s/stat: %d fields", dir, len(fields))
	}
	p := proc{pid: pid, state: fields[0], start: fields[19], argv: []string{string(stat)[open+1 : end]}}
	p.parent, _ = strconv.Atoi(fields[1])
	if cmdline, err := os.ReadFile(dir + "/cmdline"); err == nil && len(cmdline) > 0 {
		p.argv = strings.Split(strings.TrimRight(string(cmdline), "\x00"), "\x00")
	}
	return p, nil
}

// processes lists all processes except zombies.
func processes() ([]proc, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var all []proc
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if p, err := readProc(pid); err == nil && p.state != "Z" && p.state != "X" {
			all = append(all, p)
		}
	}
	return all, nil
}
