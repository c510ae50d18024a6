// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/testutil/envoytest"
	"wangell.loutres.me/internal/testutil/freeport"
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

// BenchmarkWork measures requests that cost their pod 2 ms of processor time, of clients with one connection each: to
// the pods themselves, each client to one pod (direct); through an Envoy with the least configuration that balances
// requests (bare); and through one that Wangell configures (wangell). ns/op is the time per request of all clients
// together, so direct over wangell is the share of requests per second that Request leaves.
func BenchmarkWork(b *testing.B) {
	pods := workingPods(b, 5, 2*time.Millisecond)
	r := runEnvoy(b)
	s := shop(b, pods...)
	r.set(s)
	bare, bareProcess := runBareEnvoy(b, pods)
	for _, clients := range []int{1, 5} {
		for _, way := range []struct {
			name string
			to   []netip.AddrPort
			pid  int // of Envoy
		}{
			{"direct", pods, 0},
			{"bare", []netip.AddrPort{bare}, bareProcess},
			{"wangell", []netip.AddrPort{s.at()}, r.pid},
		} {
			b.Run(fmt.Sprintf("clients=%d/%s", clients, way.name), func(b *testing.B) {
				all := make([]*http.Client, clients)
				for i := range all {
					all[i] = client(b, false)
					get(b, all[i], way.to[i%len(way.to)]) // connects
				}
				var left atomic.Int64
				left.Store(int64(b.N))
				var before int64
				if way.pid != 0 {
					before = processorTime(b, way.pid)
				}
				b.ResetTimer()
				var asking sync.WaitGroup
				for i, c := range all {
					asking.Go(func() {
						for left.Add(-1) >= 0 {
							get(b, c, way.to[i%len(way.to)])
						}
					})
				}
				asking.Wait()
				if way.pid != 0 {
					b.ReportMetric(float64(processorTime(b, way.pid)-before)/float64(b.N), "cpu-ns/op")
				}
			})
		}
	}
}

// workingPods starts processes of the hello server whose answers cost them processor time.
func workingPods(b *testing.B, n int, work time.Duration) []netip.AddrPort {
	b.Helper()
	program := filepath.Join(b.TempDir(), "hello")
	build := exec.Command("go", "build", "-o", program, "wangell.loutres.me/internal/image/hello")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("build: %v: %s", err, out)
	}
	pods := make([]netip.AddrPort, n)
	for i := range pods {
		pods[i] = freeport.Reserve(b)
		cmd := exec.Command(program)
		cmd.Env = []string{fmt.Sprintf("PORT=%d", pods[i].Port()), "WORK=" + work.String()}
		startForTest(b, cmd)
		awaitListener(b, pods[i])
	}
	return pods
}

// runBareEnvoy starts an Envoy without Wangell's configuration, and returns where it listens, and its process.
func runBareEnvoy(b *testing.B, pods []netip.AddrPort) (at netip.AddrPort, pid int) {
	b.Helper()
	at = freeport.Reserve(b)
	var endpoints strings.Builder
	for _, p := range pods {
		fmt.Fprintf(&endpoints, "\n        - endpoint: {address: {socket_address: {address: %s, port_value: %d}}}", p.Addr(),
			p.Port())
	}
	cmd := exec.Command(envoytest.Path(b), "--disable-hot-restart", "--concurrency", "2", "--log-level", "error",
		"--config-yaml", fmt.Sprintf(bareEnvoy, at.Port(), endpoints.String()))
	startForTest(b, cmd)
	awaitListener(b, at)
	return at, cmd.Process.Pid
}

// bareEnvoy is the bootstrap of runBareEnvoy, without the port and the endpoints.
const bareEnvoy = `
static_resources:
  listeners:
  - address: {socket_address: {address: 127.0.0.1, port_value: %d}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          '@type': type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: bare
          route_config:
            virtual_hosts:
            - name: all
              domains: ['*']
              routes:
              - match: {prefix: /}
                route: {cluster: pods}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
  clusters:
  - name: pods
    type: STATIC
    lb_policy: LEAST_REQUEST
    load_assignment:
      cluster_name: pods
      endpoints:
      - lb_endpoints:%s
`

// startForTest starts a program that ends with the benchmark.
func startForTest(b *testing.B, cmd *exec.Cmd) {
	b.Helper()
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

// awaitListener waits until something listens at an address.
func awaitListener(b *testing.B, at netip.AddrPort) {
	b.Helper()
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		c, err := net.Dial("tcp4", at.String())
		if err == nil {
			c.Close()
			return
		}
		if time.Since(begin) > time.Minute {
			b.Fatal(err)
		}
	}
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
