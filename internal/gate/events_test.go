// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"testing"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/test/testutil/need"
)

func TestEventsAreReadAheadOfOtherWork(t *testing.T) {
	need.Root(t)
	const least = 20 // getpriority(2): the system call returns 20 less the nice value
	before, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		t.Fatal(err)
	}
	reads := make(chan int)
	go func() {
		hurry()
		now, _ := unix.Getpriority(unix.PRIO_PROCESS, 0)
		reads <- now
	}()
	if now := <-reads; now != least-eventsNice {
		t.Errorf("the thread that reads events has priority %d, want %d", now, least-eventsNice)
	}
	if after, err := unix.Getpriority(unix.PRIO_PROCESS, 0); err != nil || after == least-eventsNice && after != before {
		t.Errorf("other threads have priority %d, %v", after, err)
	}
}
