// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Load is what a run of a load generator came to.
type Load struct {
	// Seconds is how long it took by the generator's own clock.
	Seconds float64 `json:"seconds"`
	// Requests is how many were answered, PerSecond their rate.
	Requests  int     `json:"requests"`
	PerSecond float64 `json:"per_second"`
	// Failed is how many requests were not answered well, whatever the reason.
	Failed int `json:"failed"`
	// Aborted tells why the generator broke off; empty if it did not.
	Aborted string `json:"aborted,omitempty"`
}

// lost is how many requests clients lost at least: breaking off is for one that failed and was counted nowhere.
func (l Load) lost() int {
	if l.Aborted != "" && l.Failed == 0 {
		return 1
	}
	return l.Failed
}

// value finds the number after a label at the begin of a line; 0 if there is none.
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

// abTotal is what ab says of its work when it breaks off.
var abTotal = regexp.MustCompile(`Total of (\d+) requests completed`)

// parseAb reads what ab (ApacheBench 2.3) wrote. Its failed requests are those that could not connect or were cut off,
// had another length than the first answer unless -l is given, and, told apart, those with a status other than 2xx.
func parseAb(stdout, stderr string) Load {
	l := Load{
		Seconds: value(stdout, "Time taken for tests:"), Requests: int(value(stdout, "Complete requests:")), PerSecond: value(stdout, "Requests per second:"),
		Failed: int(value(stdout, "Failed requests:")) + int(value(stdout, "Non-2xx responses:")),
	}
	if strings.Contains(stdout, "Complete requests:") {
		return l
	}
	for line := range strings.Lines(stderr) {
		if line = strings.TrimSpace(line); strings.Contains(line, "apr_") || strings.HasPrefix(line, "ab:") || strings.HasPrefix(line, "Test aborted") {
			l.Aborted = strings.TrimSpace(l.Aborted + " " + line)
		}
	}
	if m := abTotal.FindStringSubmatch(stdout + stderr); m != nil {
		l.Requests, _ = strconv.Atoi(m[1])
	}
	if l.Aborted == "" {
		l.Aborted = "ab told nothing"
	}
	return l
}

var (
	wrkTotal  = regexp.MustCompile(`(\d+) requests in ([0-9.]+)(us|ms|s|m|h)`)
	wrkErrors = regexp.MustCompile(`Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)`)
)

// parseWrk reads what wrk (4.1) wrote. Its failed requests are those that could not connect, were cut off, took more than
// wrk's timeout of 2 s, or had a status other than 2xx and 3xx.
func parseWrk(stdout, stderr string) Load {
	m := wrkTotal.FindStringSubmatch(stdout)
	if m == nil {
		why := strings.TrimSpace(stderr)
		if why == "" {
			why = "wrk told nothing"
		}
		return Load{Aborted: why}
	}
	l := Load{PerSecond: value(stdout, "Requests/sec:"), Failed: int(value(stdout, "Non-2xx or 3xx responses:"))}
	l.Requests, _ = strconv.Atoi(m[1])
	l.Seconds, _ = strconv.ParseFloat(m[2], 64)
	l.Seconds *= map[string]float64{"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600}[m[3]]
	if m := wrkErrors.FindStringSubmatch(stdout); m != nil {
		for _, n := range m[1:] {
			failed, _ := strconv.Atoi(n)
			l.Failed += failed
		}
	}
	return l
}

// abLimit is how many requests ab is asked for when its time is limited: more than it can do.
const abLimit = 5_000_000

// abPatience is how long, in seconds, nothing may come on any connection until ab breaks off, where its time is limited.
const abPatience = 10

// abRequests runs ab for a number of requests with a connection each. It breaks off at the first that is cut off, unless
// it shall go on.
func abRequests(ctx context.Context, from loadHost, address string, requests, concurrency int, goOn bool) (Load, error) {
	args := []string{"ab", "-q", "-l", "-B", from.addr, "-c", strconv.Itoa(concurrency), "-n", strconv.Itoa(requests)}
	if goOn {
		args = append(args, "-r")
	}
	return generate(ctx, from, parseAb, append(args, "http://"+address+"/")...)
}

// abFor runs ab for a time, in whole seconds, with a connection for each request; it goes on when some are cut off.
func abFor(ctx context.Context, from loadHost, address string, time time.Duration, concurrency int) (Load, error) {
	return generate(ctx, from, parseAb, "ab", "-q", "-l", "-r", "-s", strconv.Itoa(abPatience), "-B", from.addr, "-c", strconv.Itoa(concurrency),
		"-t", strconv.Itoa(max(1, int(time.Seconds()))), "-n", strconv.Itoa(abLimit), "http://"+address+"/")
}

// wrkFor runs wrk for a time, in whole seconds, with connections that are kept.
func wrkFor(ctx context.Context, from loadHost, address string, time time.Duration, connections int) (Load, error) {
	return generate(ctx, from, parseWrk, "wrk", "-t", "1", "-c", strconv.Itoa(connections), "-d", strconv.Itoa(max(1, int(time.Seconds())))+"s", "http://"+address+"/")
}

// generate runs a load generator in a host's network namespace. That it ends with an error is part of what it came to;
// that it cannot be run at all is an error.
func generate(ctx context.Context, from loadHost, parse func(stdout, stderr string) Load, argv ...string) (Load, error) {
	cmd := from.ns.Command(ctx, argv...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	if ctx.Err() != nil {
		return Load{}, ctx.Err()
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return Load{}, fmt.Errorf("%s: %w", argv[0], err)
	}
	if exit != nil && (exit.ExitCode() == 127 || strings.Contains(stderr.String(), "nsenter:")) {
		return Load{}, fmt.Errorf("%s: %w: %s: install apache2-utils and wrk", argv[0], err, strings.TrimSpace(stderr.String()))
	}
	return parse(stdout.String(), stderr.String()), nil
}

// together runs load generators at the same time and adds up what they came to.
func together(n int, run func(i int) (Load, error)) (Load, error) {
	loads, errs := make([]Load, n), make([]error, n)
	done := make(chan int)
	for i := range n {
		go func() {
			loads[i], errs[i] = run(i)
			done <- i
		}()
	}
	for range n {
		<-done
	}
	return sum(loads), errors.Join(errs...)
}

// sum adds up what generators came to that ran at the same time.
func sum(loads []Load) (all Load) {
	for _, l := range loads {
		all.Seconds = max(all.Seconds, l.Seconds)
		all.Requests += l.Requests
		all.PerSecond += l.PerSecond
		all.Failed += l.Failed
		if all.Aborted == "" {
			all.Aborted = l.Aborted
		}
	}
	return all
}

// inSequence adds up what generators came to one after the other. The rate is that of the whole time.
func inSequence(loads []Load) (all Load) {
	for _, l := range loads {
		all.Seconds += l.Seconds
		all.Requests += l.Requests
		all.PerSecond += l.PerSecond * l.Seconds
		all.Failed += l.Failed
		if all.Aborted == "" {
			all.Aborted = l.Aborted
		}
	}
	if all.Seconds > 0 {
		all.PerSecond /= all.Seconds
	}
	return all
}

// toolVersions names the load generators.
func toolVersions() map[string]string {
	versions := map[string]string{}
	for tool, args := range map[string][]string{"ab": {"-V"}, "wrk": {"-v"}} {
		out, _ := exec.Command(tool, args...).CombinedOutput() // wrk -v ends with status 1
		if line, _, _ := strings.Cut(string(out), "\n"); line != "" {
			versions[tool] = strings.TrimSpace(line)
		}
	}
	return versions
}
