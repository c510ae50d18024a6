// SPDX-License-Identifier: Apache-2.0

package load

import (
	"strings"
	"testing"
)

const abWell = `Concurrency Level:      100
Time taken for tests:   32.382 seconds
Complete requests:      60000
Failed requests:        309
   (Connect: 0, Receive: 173, Length: 0, Exceptions: 136)
Total transferred:      8606313 bytes
Requests per second:    1852.90 [#/sec] (mean)
Time per request:       53.969 [ms] (mean)
`

func TestAbOutputIsParsed(t *testing.T) {
	for _, c := range []struct {
		name, stdout, stderr string
		want                 Result
		lost                 int
	}{
		{"failures", abWell, "", Result{Seconds: 32.382, Requests: 60000, PerSecond: 1852.9, Failed: 309}, 309},
		{"refusals", strings.Replace(abWell, "309", "0", 1) + "Non-2xx responses:      7\n", "",
			Result{Seconds: 32.382, Requests: 60000, PerSecond: 1852.9, Failed: 7}, 7},
		{"cut off", "Benchmarking 10.0.0.1 (be patient)...Total of 2820 requests completed\n",
			"apr_socket_recv: Connection refused (111)\n",
			Result{Requests: 2820, Aborted: "apr_socket_recv: Connection refused (111)"}, 1},
		{"hangs", "Total of 5 requests completed\n", "\napr_pollset_poll: The timeout specified has expired (70007)\n",
			Result{Requests: 5, Aborted: "apr_pollset_poll: The timeout specified has expired (70007)"}, 1},
		{"ten failures", "", "\nTest aborted after 10 failures\n\napr_socket_connect(): Connection refused (111)\n",
			Result{Aborted: "Test aborted after 10 failures apr_socket_connect(): Connection refused (111)"}, 1},
		{"usage", "", "ab: invalid URL\n", Result{Aborted: "ab: invalid URL"}, 1},
		{"killed", "", "", Result{Aborted: "ab printed no result"}, 1},
	} {
		if got := parseAb(c.stdout, c.stderr); got != c.want || got.Lost() != c.lost {
			t.Errorf("%s: %+v, %d lost; want %+v, %d", c.name, got, got.Lost(), c.want, c.lost)
		}
	}
}

func TestWrkOutputIsParsed(t *testing.T) {
	const well = `Running 3s test @ http://10.204.2.50/
  2 threads and 30 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     2.97ms    6.96ms  61.92ms   90.62%
    Req/Sec    12.99k     5.73k   31.49k    68.33%
  79309 requests in 3.09s, 11.26MB read
`
	const rate = "Requests/sec:  25635.00\nTransfer/sec:      3.64MB\n"
	for _, c := range []struct {
		name, stdout, stderr string
		want                 Result
	}{
		{"well", well + rate, "", Result{Seconds: 3.09, Requests: 79309, PerSecond: 25635}},
		{"errors", well + "  Socket errors: connect 1, read 20, write 300, timeout 4000\n" +
			"  Non-2xx or 3xx responses: 50000\n" + rate, "",
			Result{Seconds: 3.09, Requests: 79309, PerSecond: 25635, Failed: 54321}},
		{"minutes", "  100 requests in 1.50m, 1MB read\nRequests/sec:  1.11\n", "",
			Result{Seconds: 90, Requests: 100, PerSecond: 1.11}},
		{"refused", "", "unable to connect to 10.204.0.11:9 Connection refused\n",
			Result{Aborted: "unable to connect to 10.204.0.11:9 Connection refused"}},
		{"killed", "", "", Result{Aborted: "wrk printed no result"}},
	} {
		if got := parseWrk(c.stdout, c.stderr); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// FuzzParsers feeds the parsers with anything.
func FuzzParsers(f *testing.F) {
	f.Add(abWell, "apr_socket_recv: Connection refused (111)")
	f.Add("  1 requests in 3.09s, 1MB read\n  Socket errors: connect 1, read 2, write 3, timeout 4\n", "")
	f.Fuzz(func(t *testing.T, stdout, stderr string) {
		for _, l := range []Result{parseAb(stdout, stderr), parseWrk(stdout, stderr)} {
			if l.Aborted != "" && l.Lost() == 0 {
				t.Errorf("broke off without a lost request: %+v", l)
			}
		}
	})
}

func TestResultsAddUp(t *testing.T) {
	got := sum([]Result{{Seconds: 1, Requests: 10, PerSecond: 10},
		{Seconds: 3, Requests: 20, PerSecond: 7, Failed: 2, Aborted: "a"},
		{Aborted: "b", Failed: 1}})
	if want := (Result{Seconds: 3, Requests: 30, PerSecond: 17, Failed: 3, Aborted: "a"}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	got = InSequence([]Result{{Seconds: 1, Requests: 10, PerSecond: 10},
		{Seconds: 3, Requests: 6, PerSecond: 2, Failed: 2, Aborted: "a"},
		{Aborted: "b", Failed: 1}})
	if want := (Result{Seconds: 4, Requests: 16, PerSecond: 4, Failed: 3, Aborted: "a"}); got != want {
		t.Errorf("one after the other: %+v, want %+v", got, want)
	}
	if got := InSequence(nil); got != (Result{}) {
		t.Errorf("of nothing: %+v", got)
	}
}
