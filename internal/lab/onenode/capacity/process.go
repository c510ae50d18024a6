// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"wangell.loutres.me/internal/lab/onenode"
	"wangell.loutres.me/internal/lab/report"
)

// childOf finds the child of a process whose first argument is arg.
func childOf(parent int, arg string) (int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	for _, file := range files {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		fields, err := statFields(pid)
		if err != nil || len(fields) < 2 || fields[1] != strconv.Itoa(parent) {
			continue
		}
		cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if args := strings.Split(string(cmdline), "\x00"); err == nil && len(args) > 1 && args[1] == arg {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("process %d has no child %q", parent, arg)
}

// statFields returns the fields of /proc/PID/stat behind the name, beginning with the state; see proc_pid_stat(5).
func statFields(pid int) ([]string, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	// The name may contain spaces and parentheses: it ends with the last one.
	return strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:])), nil
}

// ticksPerSecond is the unit of utime and stime in /proc/PID/stat, USER_HZ. It is 100 on every architecture of Go.
const ticksPerSecond = 100

// cpuSeconds returns the processor time that a process has used.
func cpuSeconds(pid int) (float64, error) {
	fields, err := statFields(pid)
	if err != nil {
		return 0, err
	}
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields, want at least 13", pid, len(fields))
	}
	user, err1 := strconv.ParseFloat(fields[11], 64)
	system, err2 := strconv.ParseFloat(fields[12], 64)
	return (user + system) / ticksPerSecond, errors.Join(err1, err2)
}

// settle waits until processes together use less than 2 % of a core over a second: then their start is over.
func settle(ctx context.Context, processes map[int]*Usage) error {
	ctx, cancel := context.WithTimeout(ctx, onenode.SettleTimeout)
	defer cancel()
	used := func() (sum float64, err error) {
		for pid := range processes {
			s, err := cpuSeconds(pid)
			if err != nil {
				return 0, err
			}
			sum += s
		}
		return sum, nil
	}
	before, err := used()
	for err == nil {
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return fmt.Errorf("wait until daemon and controller are idle: %w", ctx.Err())
		}
		var after float64
		if after, err = used(); err == nil && after-before < 0.02 {
			return nil
		}
		before = after
	}
	return err
}

// measureIdle measures the usage of processes during a time without requests.
func measureIdle(ctx context.Context, idle time.Duration, processes map[int]*Usage) error {
	if err := settle(ctx, processes); err != nil {
		return err
	}
	before := map[int]float64{}
	for pid := range processes {
		var err error
		if before[pid], err = cpuSeconds(pid); err != nil {
			return err
		}
	}
	begin := time.Now()
	select {
	case <-time.After(idle):
	case <-ctx.Done():
		return ctx.Err()
	}
	elapsed := time.Since(begin).Seconds()
	for pid, usage := range processes {
		after, err := cpuSeconds(pid)
		if err != nil {
			return err
		}
		usage.CPU = 100 * (after - before[pid]) / elapsed
		if usage.Resident, err = report.Memory(pid, "VmRSS"); err == nil {
			usage.Anonymous, err = report.Memory(pid, "RssAnon")
		}
		if err != nil {
			return err
		}
	}
	return nil
}
