// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/monotime"
)

// clockTick is the unit of times in /proc/PID/stat: USER_HZ is 100 on every architecture that Go supports.
const clockTick = 10_000_000 // ns

// ended reports whether a process has ended, although its parent may not have noticed yet: field 3 of /proc/PID/stat.
func ended(pid uint32) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	return len(fields) == 0 || bytes.ContainsAny(fields[0], "ZX")
}

// processStart returns the start time of a process, to 10 ms: field 22 of /proc/PID/stat (proc_pid_stat(5)), which
// counts from boot and includes the time that the machine was suspended.
func processStart(pid uint32) (monotime.Time, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The second field, the command, may contain anything, but ends at the last parenthesis.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 {
		return 0, fmt.Errorf("/proc/%d/stat: too short", pid)
	}
	ticks, err := strconv.ParseInt(string(fields[19]), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("/proc/%d/stat: %w", pid, err)
	}
	var boot unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot); err != nil {
		return 0, err
	}
	return monotime.Time(int64(monotime.Now()) - boot.Nano() + ticks*clockTick), nil
}
