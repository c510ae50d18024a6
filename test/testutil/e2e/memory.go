// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"testing"
)

var vmRSS = regexp.MustCompile(`VmRSS:\s+(\d+) kB`)

// Resident returns the resident memory of a process in bytes.
func Resident(t testing.TB, pid int) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	m := vmRSS.FindSubmatch(status)
	if m == nil {
		t.Fatalf("no VmRSS of process %d", pid)
	}
	kb, err := strconv.Atoi(string(m[1]))
	if err != nil {
		t.Fatal(err)
	}
	return kb << 10
}
