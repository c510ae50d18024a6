// SPDX-License-Identifier: Apache-2.0

// Package atomicfile replaces files in one step.
package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
)

// Write replaces a file (mode 0600) in one step: no reader sees half of it, not even after a crash of the machine.
func Write(path string, data []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // fails once it is renamed
	if _, err = tmp.Write(data); err == nil {
		err = tmp.Sync()
	}
	if err = errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}
