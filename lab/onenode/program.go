// SPDX-License-Identifier: Apache-2.0

package onenode

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// FindWangell returns the program to measure: the wangell in the folder of the running program, or the one in $PATH.
func FindWangell() (string, error) {
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), "wangell")
		if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() {
			return beside, nil
		}
	}
	file, err := exec.LookPath("wangell")
	if err != nil {
		return "", fmt.Errorf("no wangell beside this program and none in $PATH: run `make build`: %w", err)
	}
	return file, nil
}
