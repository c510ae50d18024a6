// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/base/buildinfo"
)

// MachineVersions returns the versions of this program and of the machine.
func MachineVersions() map[string]string {
	info := buildinfo.Get()
	v := map[string]string{
		"wangell": info.Version, "go": info.Go, "architecture": info.Arch, "cores": strconv.Itoa(runtime.NumCPU()),
	}
	if info.Commit != "" {
		v["commit"] = info.Commit
	}
	var uts unix.Utsname
	if unix.Uname(&uts) == nil {
		v["kernel"] = unix.ByteSliceToString(uts.Release[:])
	}
	if model := Field("/proc/cpuinfo", "model name"); model != "" {
		v["cpu"] = model
	}
	if name := strings.Trim(Field("/etc/os-release", "PRETTY_NAME"), `"`); name != "" {
		v["distribution"] = name
	}
	return v
}

// Field returns the first value of a key in a file with lines "key : value" or "key=value", or "" if there is none.
func Field(file, key string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if i := strings.IndexAny(lines.Text(), ":="); i >= 0 && strings.TrimSpace(lines.Text()[:i]) == key {
			return strings.TrimSpace(lines.Text()[i+1:])
		}
	}
	return ""
}

// Memory returns a value of /proc/PID/status, such as VmRSS, in MiB.
func Memory(pid int, key string) (float64, error) {
	file := fmt.Sprintf("/proc/%d/status", pid)
	n, err := strconv.ParseFloat(strings.TrimSuffix(Field(file, key), " kB"), 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %s: %w", file, key, err)
	}
	return n / 1024, nil
}

// LoadAverage returns the load of the machine over the last minute, from /proc/loadavg. It shows what else ran.
func LoadAverage() string {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	load, _, _ := strings.Cut(string(data), " ")
	return load
}
