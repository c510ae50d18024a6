// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/test/testutil/envoytest"
	"wangell.loutres.me/test/testutil/freeport"
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
// the pods themselves, each client to one pod (direct), or to all in turn (turns); through an Envoy with the least
// configuration that balances requests (bare); and through one that Wangell configures (wangell). They are measured in
// turn. For each, the figures are the time per request of all clients together, and what a request costs Envoy in
// processor time.
func BenchmarkWork(b *testing.B) {
	pods := workingPods(b, 5, 2*time.Millisecond)
	r := runEnvoy(b)
	s := shop(b, pods...)
	r.set(s)
	bare, bareProcess := runBareEnvoy(b, pods)
	for _, clients := range []int{1, 5, 20} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			turns := newWay(b, "turns", clients, 0, pods...)
			turns.turns = true
			ways := []*way{
				newWay(b, "direct", clients, 0, pods...),
				turns,
				newWay(b, "bare", clients, bareProcess, bare),
				newWay(b, "wangell", clients, r.pid, s.at()),
			}
			const requests = 200 // of each in its turn
			rounds := 0
			for ; b.Loop(); rounds++ {
				for _, w := range ways {
					w.ask(b, requests)
				}
				slices.Reverse(ways)
			}
			b.ReportMetric(0, "ns/op") // of all ways together
			for _, w := range ways {
				n := float64(rounds * requests)
				b.ReportMetric(float64(w.took.Nanoseconds())/n, w.name+"-ns/request")
				if w.envoy != 0 {
					b.ReportMetric(float64(w.used)/n, w.name+"-cpu-ns/request")
				}
			}
		})
	}
}

// way is a way of requests to pods, with its clients.
type way struct {
	name    string
	clients []*http.Client
	to      []netip.AddrPort // of the clients, in turn
	turns   bool             // of each client's requests, in turn
	envoy   int              // its process; 0 if there is none
	took    time.Duration    // of all requests
	used    int64            // processor time of Envoy, in nanoseconds
}

// newWay returns a way whose clients are connected.
func newWay(b *testing.B, name string, clients, envoy int, to ...netip.AddrPort) *way {
	b.Helper()
	w := &way{name: name, envoy: envoy, to: to}
	for i := range clients {
		w.clients = append(w.clients, client(b, false))
		get(b, w.clients[i], to[i%len(to)])
	}
	return w
}

// ask makes n requests.
func (w *way) ask(b *testing.B, n int64) {
	b.Helper()
	var left atomic.Int64
	left.Store(n)
	before, begin := w.processorTime(b), time.Now()
	var asking sync.WaitGroup
	for i, c := range w.clients {
		asking.Go(func() {
			for k := left.Add(-1); k >= 0 && !b.Failed(); k = left.Add(-1) {
				to := i
				if w.turns {
					to = int(k)
				}
				if err := request(c, w.to[to%len(w.to)]); err != nil {
					b.Error(err) // not Fatal: this is not the benchmark's goroutine
				}
			}
		})
	}
	asking.Wait()
	w.took += time.Since(begin)
	w.used += w.processorTime(b) - before
}

// request makes a request.
func request(c *http.Client, at netip.AddrPort) error {
	r, err := c.Get(fmt.Sprintf("http://%s/", at))
	if err != nil {
		return err
	}
	defer r.Body.Close()
	_, err = io.Copy(io.Discard, r.Body)
	return err
}

// processorTime returns that of Envoy.
func (w *way) processorTime(b *testing.B) int64 {
	b.Helper()
	if w.envoy == 0 {
		return 0
	}
	return processorTime(b, w.envoy)
}

// workingPods starts processes of the hello server whose answers cost them processor time.
func workingPods(b *testing.B, n int, work time.Duration) []netip.AddrPort {
	b.Helper()
	program := filepath.Join(b.TempDir(), "hello")
	build := exec.Command("go", "build", "-o", program, "wangell.loutres.me/internal/images/image/hello")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("build: %v: %s", err, out)
	}
	pods := make([]netip.AddrPort, n)
	for i := range pods {
		pods[i] = freeport.Reserve(b)
		cmd := exec.Command(program)
		cmd.Env = []string{fmt.Sprintf("PORT=%d", pods[i].Port()), "WORK=" + work.String()}
		startForTest(b, cmd)
		get(b, client(b, false), pods[i]) // waits until it listens
	}
	return pods
}

// runBareEnvoy starts an Envoy without Wangell's configuration, and returns where it will listen, and its process.
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
