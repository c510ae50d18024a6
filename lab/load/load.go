// SPDX-License-Identifier: Apache-2.0

// Package load runs the load generators ab and wrk, and parses their output.
package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"wangell.loutres.me/test/testutil/netlab"
)

// Host is where a generator runs: a network namespace, and the source address of its connections.
type Host struct {
	Namespace *netlab.Namespace
	Addr      string
}

// abLimit is the number of requests that ab gets when its time is limited: more than it can do.
const abLimit = 5_000_000

// abTimeout is how long, in seconds, ab waits on a silent connection before it breaks off, when its time is limited.
const abTimeout = 10

// AbRequests runs ab for a number of requests, each on a connection of its own. It aborts at the first broken
// connection.
func AbRequests(ctx context.Context, from Host, address string, requests, concurrency int) (Result, error) {
	return generate(ctx, from, parseAb, "ab", "-q", "-l", "-B", from.Addr, "-c", strconv.Itoa(concurrency),
		"-n", strconv.Itoa(requests), "http://"+address+"/")
}

// AbFor runs ab for a time, in whole seconds, with a connection for each request. It continues after broken
// connections.
func AbFor(ctx context.Context, from Host, address string, d time.Duration, concurrency int) (Result, error) {
	return generate(ctx, from, parseAb, "ab", "-q", "-l", "-r", "-s", strconv.Itoa(abTimeout), "-B", from.Addr,
		"-c", strconv.Itoa(concurrency), "-t", strconv.Itoa(wholeSeconds(d)), "-n", strconv.Itoa(abLimit),
		"http://"+address+"/")
}

// WrkFor runs wrk for a time, in whole seconds, on persistent connections.
func WrkFor(ctx context.Context, from Host, address string, d time.Duration, connections int) (Result, error) {
	return generate(ctx, from, parseWrk, "wrk", "-t", "1", "-c", strconv.Itoa(connections),
		"-d", strconv.Itoa(wholeSeconds(d))+"s", "http://"+address+"/")
}

func wholeSeconds(d time.Duration) int { return max(1, int(d.Seconds())) }

// generate runs a load generator on a host. A generator that fails is a result; one that cannot be run is an error.
func generate(
	ctx context.Context, from Host, parse func(stdout, stderr string) Result, argv ...string,
) (Result, error) {
	cmd := from.Namespace.Command(ctx, argv...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	if ctx.Err() != nil {
		return Result{}, ctx.Err()
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return Result{}, fmt.Errorf("%s: %w", argv[0], err)
	}
	if exit != nil && (exit.ExitCode() == 127 || strings.Contains(stderr.String(), "nsenter:")) {
		return Result{}, fmt.Errorf("%s: %w: %s: install apache2-utils and wrk", argv[0], err,
			strings.TrimSpace(stderr.String()))
	}
	return parse(stdout.String(), stderr.String()), nil
}

// Together runs n load generators at the same time and adds up their results.
func Together(n int, run func(i int) (Result, error)) (Result, error) {
	results, errs := make([]Result, n), make([]error, n)
	done := make(chan int)
	for i := range n {
		go func() {
			results[i], errs[i] = run(i)
			done <- i
		}()
	}
	for range n {
		<-done
	}
	return sum(results), errors.Join(errs...)
}

// Versions returns the versions of the load generators.
func Versions() map[string]string {
	versions := map[string]string{}
	for tool, args := range map[string][]string{"ab": {"-V"}, "wrk": {"-v"}} {
		out, _ := exec.Command(tool, args...).CombinedOutput() // wrk -v exits with status 1
		if line, _, _ := strings.Cut(string(out), "\n"); line != "" {
			versions[tool] = strings.TrimSpace(line)
		}
	}
	return versions
}
