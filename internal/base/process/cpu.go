// SPDX-License-Identifier: Apache-2.0

package process

import (
	"fmt"
	"os"
	"strconv"
	"time"
)

// CPU returns the processor time that the process and those of its children that have ended used, in steps of 10 ms.
func (p *Process) CPU() (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid))
	if err != nil {
		return 0, fmt.Errorf("processor time of process %d: %w", p.pid, err)
	}
	used, err := parseCPU(stat)
	if err != nil {
		return 0, fmt.Errorf("processor time of process %d: %w", p.pid, err)
	}
	return used, nil
}

// parseCPU adds utime, stime, cutime and cstime: fields 14 to 17 of proc_pid_stat(5).
func parseCPU(stat []byte) (time.Duration, error) {
	fields := statFields(stat)
	if len(fields) < 15 {
		return 0, fmt.Errorf("/proc/PID/stat has %d fields behind the name, want at least 15", len(fields))
	}
	var sum int64
	for _, f := range fields[StatUserTime : StatUserTime+4] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return time.Duration(sum) * Tick, nil
}
