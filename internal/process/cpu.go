// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// tick is the unit of times in /proc/PID/stat, 1/USER_HZ, which is the same on every architecture of Go.
const tick = time.Second / 100

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

// parseCPU adds utime, stime, cutime and cstime: fields 14 to 17 of proc_pid_stat(5). The name of the program, field 2
// in parentheses, may contain anything.
func parseCPU(stat []byte) (time.Duration, error) {
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 15 {
		return 0, fmt.Errorf("/proc/PID/stat has %d fields behind the name, want at least 15", len(fields))
	}
	var sum int64
	for _, f := range fields[11:15] {
		n, err := strconv.ParseInt(string(f), 10, 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return time.Duration(sum) * tick, nil
}
