// SPDX-License-Identifier: Apache-2.0

// Package distribution runs the distribution project's registry for tests. It is built from the Go module that
// module/go.mod names.
package distribution

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"wangell.loutres.me/internal/base/process"
	"wangell.loutres.me/test/testutil/checkout"
	"wangell.loutres.me/test/testutil/ownns"
)

// program is the package of the registry.
const program = "github.com/distribution/distribution/v3/cmd/registry"

// Registry is a registry that runs.
type Registry struct {
	// Host is its address in the names of images.
	Host string

	proc *process.Process
}

// config is the configuration of a pull-through registry.
const config = `version: 0.1
log: {level: warn, accesslog: {disabled: true}}
storage: {filesystem: {rootdirectory: %q}, delete: {enabled: true}}
http: {addr: %q}
proxy: {remoteurl: %q}
`

// Build builds the registry, and returns its program, which is removed after the test.
func Build(t testing.TB) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "registry")
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", bin, program)
	build.Dir = filepath.Join(checkout.Dir(t), "test", "testutil", "distribution", "module")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if err := ownns.Outside(build); err != nil {
		t.Fatal(err)
	}
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v: %s", program, err, out)
	}
	return bin
}

// StartCache starts a pull-through registry on 127.0.0.1 for the one at a URL. It ends with the test.
func StartCache(t testing.TB, upstream string) *Registry {
	t.Helper()
	bin, dir := Build(t), t.TempDir()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &Registry{Host: l.Addr().String()}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	settings := filepath.Join(dir, "config.yaml")
	text := fmt.Appendf(nil, config, filepath.Join(dir, "blobs"), r.Host, upstream)
	if err := os.WriteFile(settings, text, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin, "serve", settings)
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	cmd.Env = append(os.Environ(), "OTEL_TRACES_EXPORTER=none")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if r.proc, err = process.Start(cmd, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Stop(); err != nil {
			t.Error(err)
		}
	})
	r.await(t)
	return r
}

// await waits until it answers.
func (r *Registry) await(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.Host+"/v2/", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			res.Body.Close()
			return
		}
		select {
		case <-r.proc.Ended():
			t.Fatalf("the registry has ended: %v", r.proc.Err())
		case <-ctx.Done():
			t.Fatalf("the registry does not answer: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Stop ends it. A second call does nothing.
func (r *Registry) Stop() error {
	if r.proc == nil {
		return nil
	}
	proc := r.proc
	r.proc = nil
	return proc.Stop(10 * time.Second)
}
