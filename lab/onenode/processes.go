// SPDX-License-Identifier: Apache-2.0

package onenode

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
)

// Processes are the IDs of an instance's processes.
type Processes struct {
	// Parts are daemon and controller.
	Parts []int
	// Others are containerd and its shims.
	Others []int
}

// All returns all IDs.
func (p Processes) All() []int { return append(p.Parts[:len(p.Parts):len(p.Parts)], p.Others...) }

// Processes finds the instance's processes, except its pods': they all have its folder in their command lines.
func (i *Instance) Processes() (p Processes, err error) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return p, err
	}
	for _, file := range files {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file))) // the pattern has digits only
		line, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(line, []byte(i.baseDir)) {
			continue // it has ended, or is another's
		}
		args := bytes.Split(line, []byte{0})
		if pid == i.PID() || len(args) > 1 && string(args[1]) == "daemon" {
			p.Parts = append(p.Parts, pid)
		} else {
			p.Others = append(p.Others, pid)
		}
	}
	return p, nil
}
