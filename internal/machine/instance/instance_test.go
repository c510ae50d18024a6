// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"

	"wangell.loutres.me/test/testutil/syncbuf"
)

func good(t *testing.T) Config {
	t.Helper()
	return Config{
		RunDir: "/run/w", StateDir: "/var/lib/w", Addresses: DefaultAddresses, PodAddresses: DefaultPodAddresses,
		XDPMode: "auto", Containerd: ContainerdAuto,
	}
}

func TestValidateNamesTheFlag(t *testing.T) {
	if err := good(t).Validate(); err != nil {
		t.Errorf("good configuration: %v", err)
	}
	prefix := netip.MustParsePrefix
	for name, test := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"relative run folder": {func(c *Config) { c.RunDir = "run" }, "--run-dir"},
		"long run folder":     {func(c *Config) { c.RunDir = "/" + strings.Repeat("x", 100) }, "shorter"},
		"state folder /":      {func(c *Config) { c.StateDir = "/" }, "--state-dir"},
		"IPv6 addresses":      {func(c *Config) { c.Addresses = prefix("fd00::/64") }, "IPv4"},
		"no addresses":        {func(c *Config) { c.Addresses = netip.Prefix{} }, "--addresses"},
		"host bits":           {func(c *Config) { c.Addresses = prefix("10.46.100.5/24") }, "want 10.46.100.0/24"},
		"one address":         {func(c *Config) { c.Addresses = prefix("10.46.100.5/32") }, "between"},
		"overlap":             {func(c *Config) { c.PodAddresses = prefix("10.46.0.0/16") }, "overlap"},
		"XDP mode":            {func(c *Config) { c.XDPMode = "fast" }, "--xdp-mode"},
		"containerd":          {func(c *Config) { c.Containerd = "mine" }, "--containerd"},
	} {
		c := good(t)
		test.change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want an error with %q", name, err, test.want)
		}
	}
}

func TestConfigIsSavedAndLoaded(t *testing.T) {
	c := good(t)
	c.RunDir = t.TempDir()
	if _, found, err := load(c.RunDir); found || err != nil {
		t.Fatalf("empty folder: %t, %v", found, err)
	}
	if err := c.save(); err != nil {
		t.Fatal(err)
	}
	got, found, err := load(c.RunDir)
	if !found || err != nil {
		t.Fatalf("load: %t, %v", found, err)
	}
	a, _ := json.Marshal(c)
	b, _ := json.Marshal(got)
	if !bytes.Equal(a, b) {
		t.Errorf("kept %s, got %s", a, b)
	}
}

func TestKeyIsMadeOnceAndChecked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "wire.key")
	first, err := loadOrMakeKey(path)
	if err != nil {
		t.Fatal(err)
	}
	again, err := loadOrMakeKey(path)
	if err != nil || again != first {
		t.Errorf("second time: another key, %v", err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v, want 0600", info.Mode(), err)
	}
	if err := os.WriteFile(path, first[:31], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := loadOrMakeKey(path); err == nil || !strings.Contains(err.Error(), "31 bytes") {
		t.Errorf("short key: %v", err)
	}
}

func TestParseRecordKeepsLevelMessageAndAttributes(t *testing.T) {
	level, message, attrs := parseRecord(
		[]byte(`{"time":"x","level":"WARN","msg":"no room","b":6067610779035718001,"a":"x"}` + "\n"))
	if level != slog.LevelWarn || message != "no room" || len(attrs) != 2 || attrs[0].Key != "a" ||
		attrs[1].Value.String() != "6067610779035718001" {
		t.Errorf("got %v %q %v", level, message, attrs)
	}
	for _, line := range []string{"panic: x", `{"level":"INFO"}`, `{"msg":"x","level":"?"}`, `[1]`,
		`{"level":"INFO","msg":"x"} {}`} {
		if level, message, _ := parseRecord([]byte(line + "\n")); level != slog.LevelError || message != line {
			t.Errorf("%s: got %v %q", line, level, message)
		}
	}
}

// shell returns a child that runs a shell script.
func shell(script string, log io.Writer) child {
	return child{name: "part", path: "/bin/sh", args: []string{"-c", script}, log: slog.New(slog.NewTextHandler(log, nil))}
}

func TestChildIsRestartedAndStopped(t *testing.T) {
	var out syncbuf.Buffer
	pids, ready := make(chan int, 16), make(chan bool, 16)
	c := shell(`echo '{"level":"INFO","msg":"hello"}' >&2; echo ready; exec sleep 1000`, &out)
	c.started = func(pid int) { pids <- pid }
	c.ready = func() { ready <- true }
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- c.keep(ctx) }()
	first := <-pids
	<-ready
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	second := <-pids
	<-ready
	cancel()
	if err := <-done; err != nil {
		t.Errorf("keep: %v", err)
	}
	for _, pid := range []int{first, second} {
		if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
			t.Errorf("process %d after the end: %v", pid, err)
		}
	}
	log := out.String()
	for _, want := range []string{"msg=hello part=part", "signal: killed"} {
		if !strings.Contains(log, want) {
			t.Errorf("log lacks %q:\n%s", want, log)
		}
	}
}

func TestChildThatCannotStartIsAnError(t *testing.T) {
	for script, want := range map[string]string{
		"echo 'wangell: no such device' >&2; exit 1": "cannot start: no such device",
		"exit 3": "cannot start: exit status 3",
	} {
		var out syncbuf.Buffer
		if err := shell(script, &out).keep(context.Background()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", script, err, want)
		}
	}
}

// The parent is killed, as by kill -9 of wangell up.
func TestChildDiesWithItsParent(t *testing.T) {
	parent := exec.Command("/proc/self/exe")
	parent.Env = append(os.Environ(), keepEnv+"=1")
	stdout, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 60_000)
	if err != nil || n != 1 {
		t.Errorf("the child is still there: %d, %v", n, err)
	}
}

func TestMetricsAreThoseOfControllerAndDaemon(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "daemon.sock")
	daemon := prometheus.NewRegistry()
	parked := prometheus.NewCounter(prometheus.CounterOpts{Name: "wangell_parked_total", Help: "Parked SYNs."})
	parked.Add(3)
	daemon.MustRegister(parked)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: promhttp.HandlerFor(daemon, promhttp.HandlerOpts{}), ReadHeaderTimeout: time.Second}
	go func() { _ = server.Serve(listener) }()
	defer server.Close()

	both := prometheus.Gatherers{ownRegistry(), daemonGatherer(socket)}
	if _, err := both.Gather(); err != nil {
		t.Errorf("both parts: %v", err)
	}
	if n, err := testutil.GatherAndCount(both, "wangell_parked_total", "go_goroutines"); err != nil || n != 2 {
		t.Errorf("%d metrics, %v, want wangell_parked_total of the daemon and go_goroutines of this process", n, err)
	}
	server.Close()
	families, err := both.Gather()
	if err == nil || !strings.Contains(err.Error(), "metrics of the daemon") {
		t.Errorf("without the daemon: %v", err)
	}
	if len(families) == 0 {
		t.Error("without the daemon, the controller's metrics are missing")
	}
}

// A page whose name leads to this machine (DNS rebinding) reads neither metrics nor whether services can be woken.
func TestMetricsAreNotServedToWebPages(t *testing.T) {
	h := metricsHandler(prometheus.NewCounter(prometheus.CounterOpts{Name: "c"}), filepath.Join(t.TempDir(), "none"),
		func() error { return nil })
	for _, path := range []string{"/metrics", "/readyz"} {
		for host, want := range map[string]int{
			DefaultMetricsAddress: http.StatusOK, "localhost:9464": http.StatusOK,
			"evil.example:9464": http.StatusMisdirectedRequest,
		} {
			r := httptest.NewRequest(http.MethodGet, path, nil)
			r.Host = host
			w := httptest.NewRecorder()
			if h.ServeHTTP(w, r); w.Code != want {
				t.Errorf("%s of %s: %d, want %d", path, host, w.Code, want)
			}
		}
	}
}
