// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/test/testutil/e2e"
)

// tool runs a program of hack/tool.sh and returns its output.
func tool(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "../../../hack/tool.sh", args...).CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// hey is a load generator with a pool of connections; each request of the second run has a connection of its own.
func TestHeyGetsAnAnswerToEachRequest(t *testing.T) {
	t.Parallel()
	r := runEnvoy(t)
	a, b := newHTTPPod(t, ok), newHTTPPod(t, ok)
	s := shop(t, a.at, b.at)
	r.set(s)
	get(t, client(t, false), s.at())
	for _, more := range []string{"-disable-compression", "-disable-keepalive"} {
		before := a.requests.Load() + b.requests.Load()
		const n = 2000
		out := tool(t, "hey", "-n", strconv.Itoa(n), "-c", "20", "-t", "60", more, fmt.Sprintf("http://%s/", s.at()))
		if !strings.Contains(out, fmt.Sprintf("[200]\t%d responses", n)) || strings.Contains(out, "Error distribution") {
			t.Errorf("hey %s:\n%s", more, out)
		}
		if got := a.requests.Load() + b.requests.Load() - before; got != n {
			t.Errorf("hey %s: pods got %d requests of %d", more, got, n)
		}
	}
	if x, y := a.requests.Load(), b.requests.Load(); x < y*9/10 || y < x*9/10 {
		t.Errorf("%d and %d requests", x, y)
	}
}

func TestManyIdleConnectionsOfClientsTakeBoundedMemory(t *testing.T) {
	t.Parallel()
	r := runEnvoy(t)
	s := shop(t, newHTTPPod(t, ok).at)
	s.ClientIdle = 20 * time.Second
	r.set(s)
	get(t, client(t, false), s.at())
	before := e2e.Resident(t, r.pid)
	const (
		n       = 10_000
		perEach = 32 << 10 // bytes; about 14 kB were measured
	)
	conns := make([]net.Conn, 0, n)
	t.Cleanup(func() {
		for _, c := range conns {
			c.Close()
		}
	})
	request := []byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	buf := make([]byte, 4096)
	for range n { // each has had a request
		c := connect(t, s)
		conns = append(conns, c)
		if _, err := c.Write(request); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(buf); err != nil {
			t.Fatalf("after %d connections: %v", len(conns), err)
		}
	}
	grown := e2e.Resident(t, r.pid) - before
	t.Logf("%d connections take %d bytes each", n, grown/n)
	if grown > n*perEach {
		t.Errorf("Envoy has grown by %d bytes for %d connections", grown, n)
	}
	if code, _ := get(t, client(t, false), s.at()); code != http.StatusOK {
		t.Errorf("another client gets %d", code)
	}
	for i, c := range conns { // each is closed after ClientIdle
		if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(buf); err != io.EOF { //nolint:errorlint // Read returns it as it is
			t.Fatalf("connection %d: %v, want its end", i, err)
		}
	}
}
