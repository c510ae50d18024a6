// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"wangell.loutres.me/test/testutil/netlab"
)

// Result is what a load tool reports.
type Result struct {
	Requests, Lost int
	Slowest        time.Duration
	Output         string
}

// Add adds the result of a later run. Of its output, only that of a run with losses is kept.
func (r *Result) Add(next Result) {
	r.Requests, r.Lost, r.Slowest = r.Requests+next.Requests, r.Lost+next.Lost, max(r.Slowest, next.Slowest)
	if next.Lost > 0 {
		r.Output += next.Output
	}
}

// AB runs ApacheBench with the flags, each request on a new connection unless they include -k.
func AB(ctx context.Context, from *netlab.Namespace, address string, flags ...string) Result {
	argv := append(append([]string{"ab", "-q"}, flags...), "http://"+address+"/")
	out, err := from.Command(ctx, argv...).CombinedOutput()
	r := Result{
		Output: string(out), Requests: number(string(out), `Complete requests:`),
		Slowest: time.Duration(number(string(out), `100%`)) * time.Millisecond,
		Lost:    number(string(out), `Failed requests:`) + number(string(out), `Non-2xx responses:`),
	}
	if err != nil {
		r.Lost++ // it gave up, and its report is shorter
		r.Requests = max(r.Requests, number(string(out), `Total of`))
		r.Output += err.Error()
	}
	return r
}

// Wrk has clients send requests on kept connections for a time, or until ctx ends.
func Wrk(ctx context.Context, from *netlab.Namespace, address string, clients int, length time.Duration) Result {
	cmd := from.Command(ctx, "wrk", "-t", "1", "-c", fmt.Sprint(clients), "-d", fmt.Sprintf("%ds", int(length.Seconds())),
		"--timeout", "30s", "http://"+address+"/")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it prints its report and exits
	out, err := cmd.CombinedOutput()
	r := Result{Output: string(out)}
	if m := regexp.MustCompile(`(\d+) requests in`).FindStringSubmatch(r.Output); m != nil {
		r.Requests, _ = strconv.Atoi(m[1])
	}
	if m := regexp.MustCompile(`Latency\s+\S+\s+\S+\s+(\S+)`).FindStringSubmatch(r.Output); m != nil {
		r.Slowest, _ = time.ParseDuration(m[1])
	}
	for _, kind := range []string{"connect", "read,? ?", "write", "timeout", `Non-2xx or 3xx responses:`} {
		r.Lost += number(r.Output, kind)
	}
	if err != nil && ctx.Err() == nil {
		r.Lost++
		r.Output += err.Error()
	}
	return r
}

// number returns the number that follows a pattern in the output of a tool; 0 if there is none.
func number(output, pattern string) int {
	if m := regexp.MustCompile(pattern + `\s*(\d+)`).FindStringSubmatch(output); m != nil {
		n, _ := strconv.Atoi(m[1])
		return n
	}
	return 0
}

// GoBuild builds a Go program without C, so that it runs in an empty image.
func GoBuild(pkg, file string) error {
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", file, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", pkg, err, out)
	}
	return nil
}

// Wangell returns the program under test: the one that WANGELL_BIN names, or else one that is built into the folder.
func Wangell(folder string) (string, error) {
	if program := os.Getenv("WANGELL_BIN"); program != "" {
		return program, nil
	}
	return Program(folder, "wangell")
}

// Program returns a program of cmd: the one beside WANGELL_BIN, or else one that is built into the folder.
func Program(folder, name string) (string, error) {
	if wangell := os.Getenv("WANGELL_BIN"); wangell != "" {
		program := filepath.Join(filepath.Dir(wangell), name)
		if _, err := os.Stat(program); err == nil {
			return program, nil
		}
	}
	program := filepath.Join(folder, name)
	return program, GoBuild("wangell.loutres.me/cmd/"+name, program)
}

// ServerPackage is the tests' own server.
const ServerPackage = "wangell.loutres.me/test/e2e/server"
