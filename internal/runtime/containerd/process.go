// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/base/process"
)

// ended reports whether a process has ended, although its parent may not have noticed yet.
func ended(pid uint32) bool {
	fields, err := process.Stat(int(pid))
	return err != nil || len(fields) == 0 || strings.ContainsAny(fields[process.StatState], "ZX")
}

// processStart returns the start time of a process, to 10 ms.
func processStart(pid uint32) (monotime.Time, error) {
	fields, err := process.Stat(int(pid))
	if err != nil {
		return 0, err
	}
	if len(fields) <= process.StatStartTime {
		return 0, fmt.Errorf("/proc/%d/stat: too short", pid)
	}
	ticks, err := strconv.ParseInt(fields[process.StatStartTime], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("/proc/%d/stat: %w", pid, err)
	}
	var boot unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot); err != nil {
		return 0, err
	}
	return monotime.Time(int64(monotime.Now()) - boot.Nano() + ticks*int64(process.Tick)), nil
}
