// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"fmt"
	"path/filepath"
)

// Existing returns a network namespace that somebody else has made and bound to path, to run things and to make
// connections in. Host and Addr stay empty, and it is not removed by anything here.
func Existing(path string) (*Namespace, error) {
	ns := &Namespace{Name: filepath.Base(path), Path: path}
	err := ns.Do(func() (err error) {
		ns.Cookie, err = threadCookie()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("network namespace %s: %w", path, err)
	}
	return ns, nil
}
