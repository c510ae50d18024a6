// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"time"
)

// Tick is the unit of times in /proc/PID/stat, 1/USER_HZ, which is the same on every architecture of Go.
const Tick = time.Second / 100

// The fields of Stat that are used, by their numbers in proc_pid_stat(5).
const (
	StatState     = 3 - statFirst
	StatParent    = 4 - statFirst
	StatSession   = 6 - statFirst
	StatUserTime  = 14 - statFirst // in ticks; then that in the kernel, and both of its ended children
	StatStartTime = 22 - statFirst // in ticks since boot, those of suspension included

	statFirst = 3 // the first field that Stat returns
)

// Stat returns the fields of /proc/PID/stat behind the name of the program. The error is fs.ErrNotExist if there is no
// such process.
func Stat(pid int) ([]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	return statFields(text), nil
}

// statFields splits what is behind the name, field 2 in parentheses, which may contain anything.
func statFields(text []byte) []string {
	return strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
}
