// SPDX-License-Identifier: Apache-2.0

package load

import (
	"regexp"
	"strconv"
	"strings"
)

// value returns the number behind a label at the beginning of a line, or 0 if there is none.
func value(text, label string) float64 {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), label); ok {
			if f := strings.Fields(rest); len(f) > 0 {
				v, _ := strconv.ParseFloat(f[0], 64)
				return v
			}
		}
	}
	return 0
}

// abTotal is what ab prints about completed requests when it breaks off.
var abTotal = regexp.MustCompile(`Total of (\d+) requests completed`)

// parseAb reads the output of ab (ApacheBench 2.3). Failed requests are those that could not connect or were cut off,
// those with a length other than the first answer's (unless -l is given), and those with a status other than 2xx, which
// ab counts separately.
func parseAb(stdout, stderr string) Result {
	r := Result{
		Seconds:   value(stdout, "Time taken for tests:"),
		Requests:  int(value(stdout, "Complete requests:")),
		PerSecond: value(stdout, "Requests per second:"),
		Failed:    int(value(stdout, "Failed requests:")) + int(value(stdout, "Non-2xx responses:")),
	}
	if strings.Contains(stdout, "Complete requests:") {
		return r
	}
	for line := range strings.Lines(stderr) {
		line = strings.TrimSpace(line)
		if strings.Contains(line, "apr_") || strings.HasPrefix(line, "ab:") || strings.HasPrefix(line, "Test aborted") {
			r.Aborted = strings.TrimSpace(r.Aborted + " " + line)
		}
	}
	if m := abTotal.FindStringSubmatch(stdout + stderr); m != nil {
		r.Requests, _ = strconv.Atoi(m[1])
	}
	if r.Aborted == "" {
		r.Aborted = "ab printed no result"
	}
	return r
}

var (
	wrkTotal  = regexp.MustCompile(`(\d+) requests in ([0-9.]+)(us|ms|s|m|h)`)
	wrkErrors = regexp.MustCompile(`Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)`)
)

// parseWrk reads the output of wrk (4.1). Failed requests are those that could not connect, were cut off, took longer
// than wrk's timeout of 2 s, or had a status other than 2xx and 3xx.
func parseWrk(stdout, stderr string) Result {
	m := wrkTotal.FindStringSubmatch(stdout)
	if m == nil {
		why := strings.TrimSpace(stderr)
		if why == "" {
			why = "wrk printed no result"
		}
		return Result{Aborted: why}
	}
	r := Result{PerSecond: value(stdout, "Requests/sec:"), Failed: int(value(stdout, "Non-2xx or 3xx responses:"))}
	r.Requests, _ = strconv.Atoi(m[1])
	r.Seconds, _ = strconv.ParseFloat(m[2], 64)
	r.Seconds *= map[string]float64{"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600}[m[3]]
	if m := wrkErrors.FindStringSubmatch(stdout); m != nil {
		for _, n := range m[1:] {
			failed, _ := strconv.Atoi(n)
			r.Failed += failed
		}
	}
	return r
}
