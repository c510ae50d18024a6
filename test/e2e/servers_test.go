// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/test/testutil/debimage"
	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/netlab"
)

// debian builds the image of a recipe, once, and returns its service.
func debian(t *testing.T, r debimage.Recipe) service {
	t.Helper()
	if !debianImages[r.Name] {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute) // packages are downloaded
		defer cancel()
		built, err := debimage.Build(ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		if err := loadImage(built.Tag, built.Image); err != nil {
			t.Fatal(err)
		}
		debianImages[r.Name] = true
	}
	return service{name: r.Name, image: r.Tag(), port: r.Port, to: r.Port}
}

// debianImages are the images in the shared state folder. Tests do not run in parallel.
var debianImages = map[string]bool{}

// tool runs a client program on a host, which must succeed, and returns what it prints.
func tool(t *testing.T, from *netlab.Namespace, argv ...string) string {
	t.Helper()
	out, err := runTool(t.Context(), from, argv...)
	if err != nil {
		t.Error(err)
	}
	return out
}

// runTool runs a client program on a host and returns what it prints.
func runTool(ctx context.Context, from *netlab.Namespace, argv ...string) (string, error) {
	if _, err := exec.LookPath(argv[0]); err != nil {
		return "", fmt.Errorf("%w: hack/install-deps.sh test installs it", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cmd := from.Command(ctx, argv...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s%s", strings.Join(argv, " "), err, stdout.String(), stderr.String())
	}
	return stdout.String(), err
}

// ab runs ApacheBench and checks that no request failed.
func ab(t *testing.T, from *netlab.Namespace, requests, clients int, address string, flags ...string) {
	t.Helper()
	flags = append([]string{"-n", fmt.Sprint(requests), "-c", fmt.Sprint(clients), "-s", "60"}, flags...)
	if r := e2e.AB(t.Context(), from, address, flags...); r.Requests != requests || r.Lost != 0 {
		t.Errorf("ab: %d requests complete, %d lost, want %d and 0:\n%s", r.Requests, r.Lost, requests, r.Output)
	}
}

// wrk runs wrk for a time and checks that no request failed.
func wrk(t *testing.T, from *netlab.Namespace, clients int, length time.Duration, address string) {
	t.Helper()
	if r := e2e.Wrk(t.Context(), from, address, clients, length); r.Requests == 0 || r.Lost != 0 {
		t.Errorf("wrk: %d requests, %d lost:\n%s", r.Requests, r.Lost, r.Output)
	}
}

// curl, ab with and without keep-alive, and wrk, each of which finds it cold.
func TestNginxServesItsClients(t *testing.T) {
	s := debian(t, debimage.Nginx())
	l := newLab(t, 1)
	l.start(t, s)
	url := "http://" + l.address(t, s.name)
	for _, use := range []struct {
		what string
		do   func()
	}{
		{"curl", func() {
			if out := tool(t, l.Client(), "curl", "-sS", "--fail", "--noproxy", "*", url+"/"); out != "nginx\n" {
				t.Errorf("curl: %q", out)
			}
		}},
		{"curl, a large answer", func() {
			out := tool(t, l.Client(), "curl", "-sS", "--fail", "--noproxy", "*", "-o", "/dev/null", "-w", "%{size_download}",
				url+"/1m")
			if out != fmt.Sprint(1<<20) {
				t.Errorf("curl of 1 MiB: %s bytes", out)
			}
		}},
		{"ab", func() { ab(t, l.Client(), 3000, 20, l.address(t, s.name)) }},
		{"ab -k", func() { ab(t, l.Client(), 10000, 20, l.address(t, s.name), "-k") }},
		{"wrk", func() { wrk(t, l.Client(), 20, 2*time.Second, l.address(t, s.name)) }},
	} {
		use.do()
		// A short use may end before the controller has recorded the wake: the node lets the client in by itself.
		l.until(t, s.name, "replica after "+use.what, func(s status.Status) bool {
			return s.Service.Status.Replicas == 1
		})
		l.untilNoFlows(t, s.name)
		l.sleep(t, s.name)
	}
}

func TestRedisServesItsBenchmark(t *testing.T) {
	s := debian(t, debimage.Redis())
	l := newLab(t, 1)
	l.start(t, s)
	host, port, _ := strings.Cut(l.address(t, s.name), ":")
	out := tool(t, l.Client(), "redis-benchmark", "-h", host, "-p", port, "-n", "5000", "-c", "20", "--csv", "-t",
		"ping,set,get")
	for _, want := range []string{`"SET"`, `"GET"`} {
		if !strings.Contains(out, want) {
			t.Errorf("redis-benchmark: no %s: %s", want, out)
		}
	}
	if out := tool(t, l.Client(), "redis-cli", "-h", host, "-p", port, "incr", "key:__rand_int__"); out == "" {
		t.Error("redis-cli says nothing")
	}
	l.untilNoFlows(t, s.name)
}

func TestSSHServerSpeaksFirst(t *testing.T) {
	s := debian(t, debimage.SSH())
	l := newLab(t, 1)
	l.start(t, s)
	host, port, _ := strings.Cut(l.address(t, s.name), ":")
	for _, state := range []string{"cold", "warm"} {
		out := tool(t, l.Client(), "ssh", "-F", "/dev/null", "-p", port, "-o", "StrictHostKeyChecking=no", "-o",
			"UserKnownHostsFile=/dev/null",
			"-o", "LogLevel=ERROR", "-o", "ConnectTimeout=60", "root@"+host, "echo", "hello")
		if out != "hello\n" {
			t.Errorf("ssh, %s: %q", state, out)
		}
	}
	l.untilNoFlows(t, s.name)
}
