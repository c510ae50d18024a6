// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/test/testutil/need"
)

// onCPU binds the calling goroutine to a thread, and that to a processor.
func onCPU(b *testing.B, cpu int) {
	runtime.LockOSThread()
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		b.Error(err)
	}
}

// BenchmarkCountsBesidePackets reports the time of a packet of an established connection on one processor, while
// another changes the counts of the same pod, as when connections to it begin and end there: where both are in one
// cache line, the packet waits for it.
func BenchmarkCountsBesidePackets(b *testing.B) {
	if runtime.NumCPU() < 2 {
		need.Unmet(b, "needs two processors")
	}
	all := newWorld(b, nil)
	for _, c := range []struct {
		name  string
		pause time.Duration // between two changes; negative: there are none
	}{{"alone", -1}, {"200,000 changes a second", 5 * time.Microsecond}, {"all the time", 0}} {
		for _, d := range []struct {
			name string
			on   program
		}{{"to pod", onNIC}, {"from pod", onPod1}} {
			b.Run(d.name+", "+c.name, func(b *testing.B) {
				w := all.in(b)
				data, reply := mirrored(w)
				frame := map[program][]byte{onNIC: data.frame(), onPod1: reply.frame()}[d.on]
				stop := w.changeCounts(b, c.pause)
				defer stop()
				done := make(chan struct{})
				go func() { // its thread ends with it, and the binding with that
					defer close(done)
					onCPU(b, 0)
					w.batches(b, d.on, frame, tcxRedirect)
				}()
				<-done
			})
		}
	}
}

// changeCounts adds to the counts of all pods and takes it back, on the second processor.
func (w *world) changeCounts(b *testing.B, pause time.Duration) (stop func()) {
	if pause < 0 {
		return func() {}
	}
	var group sync.WaitGroup
	var over atomic.Bool
	group.Go(func() {
		onCPU(b, 1)
		next := time.Now()
		for !over.Load() {
			for _, i := range w.g.podTable.used() {
				p := w.g.pods.at(i)
				atomic.AddUint32(&p.HalfOpen, 1)
				atomic.AddUint32(&p.HalfOpen, ^uint32(0))
			}
			for next = next.Add(pause); pause > 0 && time.Now().Before(next); {
			}
		}
	})
	return func() { over.Store(true); group.Wait() }
}
