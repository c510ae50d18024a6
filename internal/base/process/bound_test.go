// SPDX-License-Identifier: Apache-2.0

package process

import (
	"os/exec"
	"runtime"
	"sync"
	"testing"
	"time"
)

// A child outlives the threads of this process, which Go ends with goroutines that never unlock theirs.
func TestBoundChildrenOutliveThreads(t *testing.T) {
	p, err := StartBound(exec.Command("sleep", "60"))
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() { runtime.LockOSThread() })
		}
		all.Wait()
	}
	select {
	case <-p.Ended():
		t.Errorf("the child has ended: %v", p.Err())
	case <-time.After(300 * time.Millisecond): // a signal would have come long ago
	}
	if err := p.Stop(time.Second); err != nil {
		t.Error(err)
	}
}
