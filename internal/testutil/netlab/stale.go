// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Prefix is how the names of all our namespaces begin; pid and start time of the process that made them follow.
const Prefix = "wgl-"

// CleanStale removes the namespaces that a process made which is no more, and kills what still runs in them. Those
// of living processes, and names that are not ours, stay.
func CleanStale() error {
	entries, err := os.ReadDir(Dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for stale network namespaces: %w", err)
	}
	var errs []error
	for _, e := range entries {
		pid, start, ok := ownerOf(e.Name())
		if !ok {
			continue
		}
		if now, err := startTime(pid); err == nil && now == start {
			continue
		}
		ns := &Namespace{Name: e.Name(), Path: filepath.Join(Dir, e.Name())}
		if _, err := ns.remove(); err != nil {
			errs = append(errs, fmt.Errorf("clean up after process %d: %w", pid, err))
		}
	}
	return errors.Join(errs...)
}

// ownerOf reads pid and start time out of a name.
func ownerOf(name string) (pid int, start string, ok bool) {
	rest, ours := strings.CutPrefix(name, Prefix)
	parts := strings.SplitN(rest, "-", 4)
	if !ours || len(parts) != 4 {
		return 0, "", false
	}
	pid, err := strconv.Atoi(parts[0])
	if _, startErr := strconv.ParseUint(parts[1], 10, 64); err != nil || startErr != nil || pid <= 0 {
		return 0, "", false
	}
	return pid, parts[1], true
}

// startTime returns when a process started, in clock ticks since boot (field 22 of /proc/PID/stat, proc(5)).
// A zombie counts as gone.
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

// proc is what /proc tells of a process.
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
	// The name, in parentheses, may itself hold spaces and parentheses.
	open, end := strings.IndexByte(string(stat), '('), strings.LastIndexByte(string(stat), ')')
	if open < 0 || end < open {
		return proc{}, fmt.Errorf("%s/stat: no name in it", dir)
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

// processes lists all processes but zombies.
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

// killAll kills every process of the namespace and returns what they were. Never this process itself.
func (ns *Namespace) killAll() ([]string, error) {
	var own unix.Stat_t
	if err := unix.Stat(ns.Path, &own); err != nil {
		return nil, fmt.Errorf("look at network namespace %s: %w", ns.Name, err)
	}
	all, err := processes()
	if err != nil {
		return nil, err
	}
	var killed []string
	for _, p := range all {
		var st unix.Stat_t
		if p.pid == os.Getpid() || unix.Stat(fmt.Sprintf("/proc/%d/ns/net", p.pid), &st) != nil || st.Ino != own.Ino || st.Dev != own.Dev {
			continue
		}
		fd, err := unix.PidfdOpen(p.pid, 0)
		if err != nil {
			continue // it has just ended
		}
		// The pid might be another process by now; with the pidfd open it can no longer change.
		if now, err := startTime(p.pid); err == nil && now == p.start && unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil {
			killed = append(killed, p.String())
			// A process in the middle of a system call takes its time to die; its end is waited for, up to 5 s.
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 5000)
		}
		unix.Close(fd)
	}
	return killed, nil
}
