// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"net/http"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// BenchmarkRequest measures what a request of a kept connection costs Envoy, in processor time: cpu-ns/op. The other
// figure is the time that it takes the client.
func BenchmarkRequest(b *testing.B) {
	r := runEnvoy(b)
	var pods []netip.AddrPort
	for range 5 {
		pods = append(pods, newHTTPPod(b, func(http.ResponseWriter, *http.Request) {}).at)
	}
	s := shop(b, pods...)
	r.set(s)
	c := client(b, false)
	for range 1000 { // connects to all pods
		get(b, c, s.at())
	}
	before := processorTime(b, r.pid)
	for b.Loop() {
		get(b, c, s.at())
	}
	b.ReportMetric(float64(processorTime(b, r.pid)-before)/float64(b.N), "cpu-ns/op")
}

// processorTime returns what all threads of a process have used, in nanoseconds.
func processorTime(t testing.TB, pid int) int64 {
	t.Helper()
	const clock = 2 // CPUCLOCK_SCHED of the kernel: clock_getcpuclockid(3) makes clocks of processes this way
	var used unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|clock), &used); err != nil {
		t.Fatalf("processor time of process %d: %v", pid, err)
	}
	return used.Nano()
}
