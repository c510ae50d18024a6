// SPDX-License-Identifier: Apache-2.0

package debimage

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"wangell.loutres.me/internal/base/atomicfile"
)

// aptState is where apt keeps what decides which packages it chooses, apart from its configuration.
var aptState = []string{"/var/lib/apt/lists", "/etc/apt"}

// resolutionFile returns the file in the cache for the packages that apt chooses for names, of a suite or of the
// machine's sources. The name of its folder depends on apt's configuration, and on size and time of each file of its
// state. apt takes a second of CPU time to choose, and an image is looked up far more often than package lists change.
func resolutionFile(cache string, conf []byte, state []string, suite string, names []string) (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "%d %q\n", format, conf)
	for _, root := range state {
		err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if e != nil && e.IsDir() && e.Name() == "partial" {
				return fs.SkipDir // unfinished downloads, which only apt may list
			}
			if err != nil || !e.Type().IsRegular() || e.Name() == "lock" {
				return err
			}
			info, err := e.Info()
			if err == nil {
				fmt.Fprintf(h, "%q %d %d\n", path, info.Size(), info.ModTime().UnixNano())
			}
			return err
		})
		if err != nil {
			return "", err
		}
	}
	wanted := sha256.Sum256(fmt.Appendf(nil, "%s%q", suite, names))
	return filepath.Join(cache, "resolved", hex.EncodeToString(h.Sum(nil)[:8]), hex.EncodeToString(wanted[:8])), nil
}

// readResolution returns the packages in a file of the cache.
func readResolution(file string) ([]Package, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var packages []Package
	err = json.Unmarshal(data, &packages)
	return packages, err
}

// writeResolution writes the file, and removes those of other states. The caller holds the lock of the cache.
func writeResolution(file string, packages []Package) error {
	data, err := json.Marshal(packages)
	if err != nil {
		return err
	}
	folder := filepath.Dir(file)
	if _, err := os.Stat(folder); err != nil {
		if err := os.RemoveAll(filepath.Dir(folder)); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	return atomicfile.Write(file, data)
}
