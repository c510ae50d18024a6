// SPDX-License-Identifier: Apache-2.0

package podnet

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/vishvananda/netns"
)

// onThread runs f on a locked thread, which may change its network namespace and returns to the original one
// afterwards. A thread that cannot return ends with its goroutine and is not reused.
func onThread(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := netns.Get()
		if err != nil {
			result <- err
			return
		}
		defer home.Close()
		err = f()
		if back := netns.Set(home); back != nil {
			result <- errors.Join(err, fmt.Errorf("return to the original network namespace: %w", back))
			return
		}
		runtime.UnlockOSThread()
		result <- err
	}()
	return <-result
}
