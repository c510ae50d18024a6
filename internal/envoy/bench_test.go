// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
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

// processorTime returns what all threads of a process have used, in nanoseconds (kernel doc: scheduler/sched-stats).
func processorTime(t testing.TB, pid int) (ns int64) {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(threads) == 0 {
		t.Fatalf("threads of process %d: %v, %v", pid, threads, err)
	}
	for _, path := range threads {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		used, _, _ := strings.Cut(string(text), " ")
		n, err := strconv.ParseInt(used, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		ns += n
	}
	return ns
}
